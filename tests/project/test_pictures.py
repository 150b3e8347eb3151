"""The pictures of the docs, the table of audits, and the reproduction that needs only PyDP."""

import json
import math
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import make_guesses
import numpy as np
import pytest
import write_comparison
from scipy import stats
from support import example_report

import dpnoise

ROOT = Path(__file__).parents[2]
REPRODUCTION = ROOT / "examples" / "pydp_gaussian.py"


# The releases of the page "Can you tell 0 from 1?" ------------------------------------------------


def guesses(game: str) -> list[tuple[int, float, int, bool]]:
    """Return the rows of a game: the secret, the release, the attacker's guess, and certainty."""
    text = make_guesses.DATA.read_text()
    rows = json.loads(re.findall(rf"^  {game}: (.*),$", text, re.MULTILINE)[0])
    return [(secret, float.fromhex(release), *rest) for secret, release, *rest in rows]


def test_the_attacker_of_sums_is_never_wrong_when_certain() -> None:
    rows = guesses("sums")
    assert all(guess == secret for secret, _, guess, certain in rows if certain)
    for _, release, guess, certain in rows:
        assert make_guesses.guess_sum(release) == (guess, certain)
    # Four of five are decided: 80 % of 400 with a standard deviation of 2 %.
    share = sum(certain for *_, certain in rows) / len(rows)
    assert 0.7 < share < 0.9


def test_exact_releases_are_on_the_grid_and_never_certain() -> None:
    rows = guesses("releases")
    grid = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).grid
    assert all(release % grid == 0 and not certain for _, release, _, certain in rows)
    assert grid == 2.0**-20
    # The nearer secret is right with probability 1 - exp(-1/2)/2, 70 %; 2.3 % is one deviation.
    share = sum(secret == guess for secret, _, guess, _ in rows) / len(rows)
    assert abs(share - (1 - math.exp(-0.5) / 2)) < 0.12


def test_the_page_states_the_grid_and_the_guarantee() -> None:
    page = (ROOT / "docs/guess.md").read_text()
    assert "multiple of its grid, 2⁻²⁰" in page
    assert f"e/(e + 1) of the cases: {100 * math.e / (1 + math.e):.0f} %" in page
    assert f"right in {100 - 50 * math.exp(-0.5):.0f} % of the cases" in page


def test_the_page_states_the_scores_of_the_attacker_and_their_deviation_by_chance() -> None:
    page = (ROOT / "docs/guess.md").read_text()
    sums, releases = guesses("sums"), guesses("releases")
    right = [100 * sum(row[0] == row[2] for row in rows) / len(rows) for rows in (sums, releases)]
    certain = 100 * sum(row[3] for row in sums) / len(sums)
    assert f"in {right[1]:.0f} % of the {len(releases)} releases here" in page
    assert f"certain of {certain:.0f} %, and right about {right[0]:.1f} %" in page
    guarantee = math.e / (1 + math.e)
    deviation = 2 * math.sqrt(guarantee * (1 - guarantee) / 100)
    assert f"{100 * guarantee:.0f} % ± {100 * deviation:.0f} % after 100 guesses" in page


# The audits of all peers ------------------------------------------------------------------------


def test_the_table_of_audits_has_the_ceiling_next_to_each_bound() -> None:
    versions = {"python": "3.11.7", "dpnoise": "0.2.0", "machine": "a machine"}
    reports = [replace(report, versions=versions) for report in example_report.several_reports()]
    lines = write_comparison.table(reports).splitlines()
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    ]
    assert head[2:4] == ["certified at least", "of at most"]
    assert [row[2:4] for row in rows] == [
        ["5.82", "7.4"],
        ["0.631", "7.4"],
        ["4.2", "7.4"],
        ["0", "7.4"],
    ]
    commands = [row[-1].strip("`") for row in rows]
    assert commands == [write_comparison.command(report) for report in reports]
    measured = "Measured on a machine, Python 3.11.7, dpnoise 0.2.0, by `make audits` on "
    assert any(line.startswith(measured) for line in lines)


def test_each_row_of_the_table_of_audits_says_how_to_repeat_it_and_what_is_public() -> None:
    broken = example_report.broken_report()
    reports = [
        replace(broken, target="numpy.laplace", delta=0.0),
        replace(broken, target="pydp.gaussian", noise="gaussian", delta=1e-6),
        replace(broken, target="dpnoise.laplace"),
        replace(example_report.unbroken_report(), target="dpnoise.release"),
    ]
    assert [write_comparison.publication(report) for report in reports] == [
        "2012",
        "[not yet](disclosures.md)",
        "ours",
        "",
    ]
    assert write_comparison.command(reports[0]) == "dpnoise audit numpy.laplace --epsilon 1"
    assert write_comparison.command(reports[1]).endswith("pydp.gaussian --epsilon 1 --delta 1e-6")


def test_the_version_of_the_standard_library_is_that_of_python() -> None:
    versions = {"python": "3.11.7", "dpnoise": "0.2.0", "machine": "a machine"}
    broken = replace(example_report.broken_report(), version="2.4.6", versions=versions)
    assert write_comparison.version_of(replace(broken, target="numpy.laplace")) == "2.4.6"
    gauss = replace(broken, target="random.gauss", version="")
    assert write_comparison.version_of(gauss) == "Python 3.11.7"
    page = write_comparison.PAGE.read_text()
    assert page.count("| random.") == page.count(" | Python 3.11.7 |") == 3


def test_the_picture_of_audits_has_no_background_and_names_each_verdict(tmp_path: Path) -> None:
    reports = [
        replace(example_report.broken_report(), target="numpy.laplace"),
        replace(example_report.unbroken_report(), target="dpnoise.release"),
        replace(example_report.broken_report(), target="not.one.that.people.use"),
    ]
    bars = write_comparison.bars_of(reports)
    assert [bar.label for bar in bars] == ["NumPy laplace", "dpnoise release"]
    write_comparison.draw(bars, 0.999, tmp_path / "certified.svg")
    svg = (tmp_path / "certified.svg").read_text()
    assert "5.82, broken" in svg
    assert "0.631, not broken" in svg
    assert "used as if epsilon were 1" in svg
    for picture in (svg, (ROOT / "docs/pictures/certified.svg").read_text()):
        assert not re.search(r"fill: *#f{3,6}", picture)


# The reproduction for PyDP ------------------------------------------------------------------------


def replace_pydp(monkeypatch: pytest.MonkeyPatch, add_noise: Callable[[float], float]) -> None:
    """Replace PyDP by a Gaussian mechanism with this function."""

    class GaussianMechanism:
        def __init__(self, epsilon: float, delta: float, sensitivity: float) -> None:
            assert (epsilon, delta, sensitivity) == (1.0, 1e-6, 1.0)
            self.add_noise = add_noise

    for name in ("pydp", "pydp.algorithms", "pydp.algorithms.numerical_mechanisms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module: Any = sys.modules["pydp.algorithms.numerical_mechanisms"]
    module.GaussianMechanism = GaussianMechanism


def run_and_count(capsys: pytest.CaptureFixture[str], n: int) -> tuple[int, int]:
    """Run the file with fewer releases, and return the printed counts."""
    names = runpy.run_path(str(REPRODUCTION))
    names["main"].__globals__["RELEASES"] = n
    names["main"]()
    counts = re.findall(r"of (\d): ([\d,]+)", capsys.readouterr().out)
    return int(counts[0][1].replace(",", "")), int(counts[1][1].replace(",", ""))


def test_noise_rounded_before_it_is_added_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 1, half of the releases between 0 and 1 count; none of 4,000 has probability 10^-80."""
    rng = np.random.default_rng()
    steps = iter((rng.normal(scale=4.2247, size=8_000) * 2.0**53).astype(np.int64).tolist())
    replace_pydp(monkeypatch, lambda value: value + float(next(steps)) * 2.0**-53)
    at_1, at_2 = run_and_count(capsys, 4_000)
    share = (stats.norm.cdf(1 / 4.2247) - 0.5) / 2
    assert stats.binomtest(at_1, 4_000, share).pvalue > 1e-8
    assert at_2 == 0


@pytest.mark.long
def test_an_exact_release_is_seen_at_neither_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mechanism = dpnoise.GaussianMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0)
    replace_pydp(monkeypatch, mechanism.release)
    assert run_and_count(capsys, 500) == (0, 0)


def test_without_pydp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydp", None)
    with pytest.raises(SystemExit, match="pip install python-dp"):
        runpy.run_path(str(REPRODUCTION), run_name="__main__")
