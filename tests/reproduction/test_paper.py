"""The reproduction: each piece, at a small size, has the result that mathematics predicts.

Verdicts about time are not tested, because they depend on the machine. The other verdicts err with
the probabilities that they state; if that is above FALSE_ALARM, the numbers are tested instead.
"""

import json
import math
import re
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.alarms import check_limit, check_probability

import reproduction
from dpnoise.auditing.attacks import searches
from dpnoise.core.errors import ArgumentError, MissingExtraError
from dpnoise.core.machine import describe_machine
from dpnoise.core.safe_text import format_near_limits
from reproduction import __main__ as paper_command
from reproduction import (
    addition,
    drawing,
    errata,
    inversions,
    laws,
    level_curves,
    preimages,
    samplers,
    searching,
    subset_sums,
    symmetry,
)
from reproduction.page import format_cell, page, verdict_counts
from reproduction.piece import (
    CONFIRMED,
    DIFFERS,
    INCONCLUSIVE,
    NOT_RUN,
    SUPERSEDED,
    VERDICTS,
    Effort,
    Judgement,
    Piece,
    Result,
    Table,
    floored_percent,
)
from reproduction.race import CONFIDENCE, Race, Ratio, combine_verdicts, rank

ROOT = Path(__file__).parents[2]
QUICK = Effort(quick=True)
TIMED = {"2", "twice", "products", "arrays", "halved", "linear", "polar"}


# The pieces --------------------------------------------------------------------------------------


def test_the_level_curves_lead_back_to_their_gaussian() -> None:
    judgement = level_curves.check_figure_1(QUICK)
    assert judgement.verdict == CONFIRMED
    (table,) = judgement.tables
    for N1, lowest in zip(table.column("N1"), table.column("lowest U1"), strict=True):
        # The curve is lowest where |cos| is 1, as at U2 = 1/2.
        assert lowest == pytest.approx(1 - math.exp(-(N1**2) / 2), rel=1e-12)


@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (samplers.naive, stats.laplace),
        (samplers.theorem, stats.laplace),
        (samplers.products, stats.laplace),
        (samplers.products_in_turn, stats.laplace),
        (samplers.squares, stats.laplace),
        (lambda: samplers.gaussian_sum(3), stats.norm),
        (lambda: samplers.math_and_random(2), stats.laplace),
        (lambda: samplers.with_numpy(2), stats.laplace),
    ],
)
def test_every_timed_sampler_has_its_law(draw: Any, law: Any) -> None:
    """A false alarm has probability FALSE_ALARM, by Kolmogorov and Smirnov."""
    check_probability(float(stats.kstest([draw() for _ in range(5_000)], law.cdf).pvalue))


def test_arrays_of_the_numpy_listing_have_the_law() -> None:
    sample = samplers.numpy_arrays(5_000, 2)
    check_probability(float(stats.kstest(sample, stats.laplace.cdf).pvalue))


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", sorted(TIMED))
def test_timings_are_measured_and_judged_by_their_own_numbers(key: str) -> None:
    judgement = reproduction.PIECES[key].check(QUICK)
    # Three rounds are too few for limits at that confidence.
    assert judgement.verdict == INCONCLUSIVE
    assert (
        f"3 rounds of CPU time on {describe_machine()}, limits at confidence 0.999."
        in judgement.why
    )
    for row in judgement.tables[-1].rows:
        assert all(cell >= 0 for cell in row if not isinstance(cell, str))


def test_the_ratio_of_two_contenders_is_the_median_of_their_rounds() -> None:
    race = Race({"a": [2.0, 30.0, 4.0], "b": [1.0, 1.0, 2.0]})
    assert race.ratio("a", "b").median == 2.0
    assert race.microseconds("a") == 4e6


def test_limits_of_a_median_miss_it_as_seldom_as_they_say() -> None:
    """Exact: the limits miss the median if fewer than k values fall on one side of it."""
    for rounds in (11, 20, 51):
        k = rank(rounds)
        assert 2 * stats.binom.cdf(k - 1, rounds, 0.5) <= 1 - CONFIDENCE
        assert 2 * stats.binom.cdf(k, rounds, 0.5) > 1 - CONFIDENCE
    assert Ratio(tuple(range(1, 52))).limits == (14, 38)


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        (range(150, 201), CONFIRMED),
        (range(100, 151), INCONCLUSIVE),
        (range(300, 351), DIFFERS),
        (range(10, 61), DIFFERS),
        ([190], INCONCLUSIVE),
    ],
)
def test_a_verdict_by_the_clock_takes_limits_on_one_side_of_its_rule(
    rounds: Any, verdict: str
) -> None:
    assert Ratio(tuple(float(x) for x in rounds)).judge(130, 250) == verdict


def test_one_claim_that_differs_or_stays_open_decides_for_all() -> None:
    assert combine_verdicts([CONFIRMED, CONFIRMED]) == CONFIRMED
    assert combine_verdicts([CONFIRMED, INCONCLUSIVE]) == INCONCLUSIVE
    assert combine_verdicts([CONFIRMED, INCONCLUSIVE, DIFFERS]) == DIFFERS


@given(st.floats(0.5, 3), st.sampled_from([1.0, 1.01, 1.5, 2.5]))
def test_no_number_is_rounded_across_the_limit_that_it_is_judged_by(x: float, limit: float) -> None:
    rounded = float(format_near_limits(x, limit))
    if abs(x - limit) > 1e-14:
        assert (rounded > limit) == (x > limit)
        assert (rounded < limit) == (x < limit)


@given(st.floats(0, 1), st.integers(0, 3))
def test_a_share_is_never_rounded_up(share: float, digits: int) -> None:
    rounded = Fraction(floored_percent(share, digits).removesuffix("%")) / 100
    assert rounded <= Fraction(repr(share)) < rounded + Fraction(1, 10 ** (digits + 2))


@pytest.mark.parametrize("precision", [3, 5, 7])
def test_distinct_cosines_match_floats(precision: int) -> None:
    """At these p the values are far apart, so that rounded floats stay distinct."""
    U = np.arange(2**precision) / 2**precision
    for turns in (1, 2, 4):
        values = np.round(np.cos(turns * np.pi * U), 9) + 0.0
        assert symmetry.distinct_cosines(precision, turns) == len(set(values))


def test_two_bits_of_box_muller_are_redundant() -> None:
    assert symmetry.check_redundancy(QUICK).verdict == CONFIRMED


def test_floats_and_uniforms_are_as_the_paper_says() -> None:
    assert symmetry.check_floats(QUICK).verdict == CONFIRMED


def test_one_cosine_is_unmatched_and_none_after_remark_1() -> None:
    judgement = symmetry.check_remark_1(QUICK)
    assert judgement.verdict == CONFIRMED
    assert set(judgement.tables[0].column("unmatched, cos(pi U)")) == {1}
    assert set(judgement.tables[0].column("unmatched, Remark 1")) == {0}


def test_both_members_are_one_member_turned() -> None:
    assert symmetry.check_turn(QUICK).verdict == CONFIRMED


def test_mironov_s_attack_recovers_every_value_at_every_precision() -> None:
    judgement = inversions.check_mironov(QUICK)
    assert judgement.verdict == CONFIRMED
    for row in judgement.tables[0].rows:
        shares = row[1:]
        assert list(shares) == sorted(shares)


def test_the_attack_on_pairs_never_excludes_the_true_value() -> None:
    for precision in (53, 24, 11):
        needed, mistakes = inversions.pairs_until_known(50, precision, scale=4.0)
        assert mistakes == 0
        # 16 pairs fail with 5 % each: a row stays unknown with probability 10^-20.
        assert needed.min() >= 1
    assert inversions.check_gaussian(QUICK).verdict == CONFIRMED


def test_either_mitigation_ends_the_attack_on_pairs() -> None:
    judgement = inversions.check_mitigations(QUICK)
    assert judgement.verdict == CONFIRMED
    both_members, one_discarded, their_sum = judgement.tables[0].column("pair attack, 0")
    assert both_members > 0.5 > max(one_discarded, their_sum)


def test_a_kept_value_is_predicted_and_a_fresh_one_is_not() -> None:
    judgement = inversions.check_discard(QUICK)
    assert judgement.verdict == CONFIRMED
    # N1 = 0 is left out, with probability about 2^-11; 10 of 100 draws have probability 10^-20.
    cached, fresh = judgement.tables[0].column("share predicted")
    assert cached > 0.9
    assert fresh < 0.05


def test_every_form_has_its_law() -> None:
    (table,) = laws.check_laws(QUICK).tables
    for row in table.rows:
        for p_value in row[2:]:
            check_limit(float(p_value))
    assert len(table.rows) == 11


@pytest.mark.parametrize(
    ("law", "draw"),
    [
        (laws.LAPLACE, lambda size: 1.04 * np.random.default_rng().laplace(size=size)),
        (laws.LAPLACE, lambda size: np.random.default_rng().normal(size=size)),
        (laws.GAUSSIAN, lambda size: 0.04 + np.random.default_rng().normal(size=size)),
    ],
)
def test_a_wrong_law_is_rejected(law: laws.Hypothesis, draw: laws.Draw) -> None:
    """Chi-squared is at least 18 standard deviations above the value with p-value 1e-12."""
    assert laws.p_values_of(draw, law, 1_500_000, QUICK)[0] < 1e-12


def test_cells_match_the_distribution_function() -> None:
    points = np.linspace(-9, 9, 1801)
    for law, exact in ((laws.LAPLACE, stats.laplace), (laws.GAUSSIAN, stats.norm)):
        counts = np.zeros(10, dtype=np.int64)
        law.count(points, counts)
        expected = np.minimum(exact.cdf(points) * 10, 9).astype(int)
        np.testing.assert_array_equal(counts, np.bincount(expected, minlength=10))
        assert 2 * exact.sf(law.rare) == pytest.approx(1e-6, rel=1e-6)


def test_the_densities_match_the_appendix() -> None:
    (table,) = laws.check_densities(QUICK).tables
    assert max(table.column("largest error")) < 1e-7
    for p_value in table.column("p-value of a sample"):
        check_limit(p_value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("over", ["U1", "U2"])
@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (3.7, 0.3)])
def test_the_searches_find_the_uniforms_of_every_gaussian(
    over: str, value: float, scale: float
) -> None:
    """All uniforms of 5 bits, except U1 = 0 and a cosine of 0, which the searches skip."""
    p = 5
    for i in range(1, 2**p):
        for k in set(range(2**p)) - {2**p // 4, 3 * 2**p // 4}:
            U = (i / 2**p, k / 2**p)
            release = value + scale * searches.gaussian_of_uniforms(*U)
            search = preimages.gaussian_preimages(release, p, over, value=value, scale=scale)
            assert U in search.preimages


def test_the_search_of_example_3_2_works_at_small_precision() -> None:
    assert searching.check_search(QUICK).verdict == CONFIRMED


@pytest.mark.long
def test_checks_are_2_to_the_p_minus_a_half_over_u1_and_a_quarter_over_u2() -> None:
    """At 7 estimated standard errors a false alarm has probability below 10^-8."""
    judgement = searching.check_checks(QUICK)
    assert judgement.verdict == CONFIRMED
    (table,) = judgement.tables
    assert table.column("over U2") == [2 ** (p - 2) + 1 for p in table.column("p")]


def test_outliers_take_the_checks_of_the_formula() -> None:
    assert searching.check_tails(QUICK).verdict == CONFIRMED


def test_the_sizes_of_n_match_the_paper() -> None:
    judgement = searching.check_sizes(QUICK)
    assert judgement.verdict == CONFIRMED
    (table,) = judgement.tables
    assert [row[1:4] for row in table.rows] == [(4, 5, 6), (7, 9, 12), (13, 19, 25)]


def test_meeting_in_the_middle_supersedes_the_paper_s_figure() -> None:
    judgement = subset_sums.check_subset_sum(QUICK)
    assert judgement.verdict == SUPERSEDED
    for p, papers, one_by_one, meeting, entries in judgement.tables[0].rows:
        assert (papers, one_by_one) == (2 ** (3 * int(p)), 2 ** (3 * int(p) - 1))
        assert meeting == entries == 2 ** (2 * int(p))


def test_the_share_excluded_is_that_of_a_plain_enumeration() -> None:
    U = np.arange(4) / 4
    a = (np.log(1 - U)[:, None] * np.cos(np.pi * U)[None, :]).ravel()
    sums = (a[:, None] + a[None, :]).astype(np.float16)
    inside = sums[(sums >= 0.5) & (sums < 1)]
    share, density = subset_sums.excluded_share(2)
    assert share == 1 - len(set(inside)) / 1024
    assert density == len(inside) / 1024


def test_the_addition_leaks_at_any_n_and_exact_release_does_not() -> None:
    """The certified epsilons are wrong with probability 10^-9 each."""
    judgement = addition.check_addition(QUICK)
    assert judgement.verdict == SUPERSEDED
    assert set(judgement.tables[0].column("1 excluded at 1")) == {0.0}


def test_granularity_is_the_largest_power_of_two() -> None:
    assert addition.granularity([0.0, 96.0, -32.0]) == 32.0
    assert addition.granularity([0.75, 1.0]) == 0.25


def test_without_diffprivlib_snapping_is_not_run_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(module: str, extra: str) -> Any:
        raise MissingExtraError(f'{module}: pip install ".[{extra}]"')

    monkeypatch.setattr(addition, "import_extra", missing)
    judgement = addition.check_snapping(QUICK)
    assert judgement.verdict == NOT_RUN
    assert 'pip install ".[peers]"' in judgement.why


def test_each_erratum_is_shown_by_a_number() -> None:
    """Each limit is at least 7 standard deviations away from the count."""
    judgement = errata.check_errata(QUICK)
    assert judgement.verdict == DIFFERS
    measured = judgement.tables[0].column("measured")
    turn, signs, ratio, keys, neighbours, uniforms, deviation, *others = measured
    without_variate, rounded, same_sign, variance, cdf, more = others
    assert (without_variate, rounded, same_sign, more) == (1, 2, 0.5, 3)
    assert variance == pytest.approx(math.pi**2 / 3, rel=0.1)  # E1 - E2 is then logistic.
    assert cdf == pytest.approx(1 - math.exp(-0.5) / 2)
    assert turn == pytest.approx(0.25, abs=0.05)
    assert signs == 0
    assert ratio == pytest.approx(2**-1.5, rel=0.2)
    assert keys == 2**8
    assert neighbours > 0.02
    assert uniforms > 10
    assert deviation == pytest.approx(math.sqrt(2), rel=0.05)


def test_reduced_mod_1_the_recovered_turn_is_always_right() -> None:
    assert errata.wrong_turns(20_000)[1] == 0


# The page ----------------------------------------------------------------------------------------

HOSTILE = '<script>alert("&")</script>'


def result(verdict: str = CONFIRMED, figure: str | None = None) -> Result:
    judgement = Judgement(
        verdict, HOSTILE, [Table(HOSTILE, (HOSTILE,), [(HOSTILE,), (1.5,)])], figure
    )
    piece = Piece(
        "key", HOSTILE, HOSTILE, HOSTILE, lambda _: judgement, (test_the_page_is_well_formed,)
    )
    return Result(piece, judgement, 1.0)


def test_the_page_is_well_formed() -> None:
    """It is parsed as XML, which is strict: <, > and & in this source are escaped."""
    figure = drawing.lines("one", {"a < b": ([1, 2], [1, 4])}, "x", "y", log="xy")
    text = page([result(verdict, figure) for verdict in VERDICTS], HOSTILE)
    minidom.parseString(text)  # noqa: S318 - it is our own page
    assert "<script" not in text
    assert text.count("def test_the_page_is_well_formed() -&gt;") == len(VERDICTS)


def test_the_page_counts_its_verdicts() -> None:
    results = [result(CONFIRMED), result(DIFFERS), result(CONFIRMED), result(NOT_RUN)]
    assert verdict_counts(results) == "4 pieces: 2 confirmed, 1 differs, 1 not run."
    assert "4 pieces: 2 confirmed, 1 differs, 1 not run." in page(results, "about")
    assert verdict_counts([result(DIFFERS)] * 2) == "2 pieces: 2 differ."


def test_keys_and_verdicts_fit_their_columns() -> None:
    assert max(map(len, reproduction.PIECES)) <= 13
    assert max(map(len, VERDICTS)) <= 12


def test_the_page_needs_nothing_but_itself() -> None:
    figure = drawing.lines("one", {"a": ([1, 2], [1, 4])}, "x", "y")
    text = page([result(figure=figure)], "about")
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert "@import" not in text
    metas = minidom.parseString(text).getElementsByTagName("meta")  # noqa: S318 - likewise
    policies = [m.getAttribute("content") for m in metas if m.hasAttribute("http-equiv")]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]
    assert not re.findall(r"url\((?!#)", text)
    assert set(re.findall(r"https?://[^\"\s]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_no_two_drawings_share_a_name() -> None:
    names: list[str] = []
    for name in ("one", "two"):
        svg = drawing.lines(name, {"a": ([1, 2], [1, 4])}, "x", "y")
        names += re.findall(r'\bid="([^"]+)"', svg)
        for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', svg):
            assert reference in names
    assert len(names) == len(set(names))
    assert "currentColor" in svg


@pytest.mark.parametrize(
    ("cell", "text"),
    [(True, "True"), (2**53, "9,007,199,254,740,992"), (65536.0, "65,536"), (0.0, "0")],
)
def test_cells_are_shown_for_people(cell: Any, text: str) -> None:
    assert format_cell(cell) == text


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = paper_command.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_one_piece_is_written_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--figure", "1", "--quick")
    assert status == 0
    assert "confirmed    1             Figure 1" in out
    assert "1 piece: 1 confirmed." in out
    assert {path.name for path in folder.iterdir()} == {"paper-1"}
    assert {path.name for path in (folder / "paper-1").iterdir()} == {
        "index.html",
        "results.json",
        "1.svg",
    }
    minidom.parse(str(folder / "paper-1" / "1.svg"))  # noqa: S318 - likewise
    report = json.loads((folder / "paper-1" / "results.json").read_text())
    assert report["format"] == 1
    assert [piece["verdict"] for piece in report["pieces"]] == ["confirmed"]


def test_several_pieces_keep_the_page_s_order(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--figure", "sizes", "--figure", "turn", "--list")
    assert [line.split()[0] for line in out.splitlines()] == ["turn", "sizes"]


def test_an_unknown_figure_lists_the_known_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "--figure", "3")
    assert status == 2
    assert "There is no figure '3'. Known: " + ", ".join(reproduction.PIECES) in err
    assert not list(folder.iterdir())


def test_an_existing_folder_is_written_to_by_force_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--figure", "sizes", "--quick", "--output", "out")
    assert run(capsys, *arguments)[0] == 0
    (folder / "out" / "note.txt").write_text("mine")
    (folder / "out" / "index.html").write_text("old")
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "exists. Name another folder, or use --force to write to it." in err
    assert (folder / "out" / "index.html").read_text() == "old"
    assert run(capsys, *arguments, "--force")[0] == 0
    assert (folder / "out" / "index.html").read_text() != "old"
    assert (folder / "out" / "note.txt").read_text() == "mine"


def test_a_target_that_is_not_a_folder_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("more")
    status, _, err = run(capsys, "--figure", "sizes", "--output", "file", "--force")
    assert status == 2
    assert "exists. Name another folder" in err
    assert (folder / "file").read_text() == "more"
    status, _, err = run(capsys, "--figure", "sizes", "--output", folder / "no" / "folder")
    assert status == 2
    assert "There is no folder" in err


@pytest.mark.parametrize("existing", [False, True])
def test_a_run_that_fails_leaves_all_as_it_was(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    existing: bool,  # noqa: FBT001
) -> None:
    if existing:
        assert run(capsys, "--figure", "sizes", "--quick", "--output", "paper")[0] == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def raise_error(_: Effort) -> Judgement:
        raise ArgumentError("stop")

    piece = Piece("turn", "", "", "", raise_error)
    monkeypatch.setitem(reproduction.PIECES, "turn", piece)
    arguments = ("--figure", "sizes", "--figure", "turn", "--output", "paper", "--force")
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "stop" in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert {path.name for path in folder.iterdir()} == ({"paper"} if existing else set())


def test_progress_goes_from_nothing_to_all() -> None:
    parts: list[float] = []
    pieces = reproduction.choose(["turn", "checks"])
    reproduction.measure(pieces, quick=True, progress=parts.append)
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0.0, 1.0)
    assert len(set(parts)) > 3


def test_pieces_have_keys_places_and_code_of_their_own() -> None:
    keys = [piece.key for piece in reproduction.PIECES.values()]
    assert keys[:2] == ["1", "2"]
    for piece in reproduction.PIECES.values():
        assert re.fullmatch(r"[a-z0-9-]+", piece.key)
        assert piece.place
        assert piece.statement.endswith(".")
        assert piece.check in piece.code


# The map in docs/paper.md -------------------------------------------------------------------------

MAP = (ROOT / "docs" / "paper.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its head."""
    under = MAP.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip().strip("|") for line in under.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.split(" | ")] for row in rows[2:]]


def test_the_map_names_only_code_that_exists() -> None:
    code = r"\[`([\w.]+)`\]\(\.\./(?:src/)?((?:dpnoise|reproduction)/[\w/]+)\.py\)"
    links = re.findall(code, MAP)
    assert len(links) > 45
    for name, path in links:
        module = import_module(path.removesuffix("/__init__").replace("/", "."))
        target: Any = module
        for part in name.split("."):
            target = getattr(target, part)


def test_the_map_names_only_tests_that_exist() -> None:
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./tests/([\w/]+\.py)\)", MAP)
    assert len(links) > 30
    for name, path in links:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), name


def test_every_row_of_the_map_has_code_or_says_why_not() -> None:
    for place, _, code, *_ in rows_of("The map"):
        assert code.startswith("[`") or code == "none: no claim to check", place


def test_the_map_has_every_place_of_the_paper() -> None:
    places = " ".join(row[0] for row in rows_of("The map"))
    for number in range(1, 16):
        assert f"({number})" in places, number
    for name in (
        *(f"Section {n}" for n in (1, 2.1, 2.2, 2.3, 2.4, 2.5, 3, 4.1, 4.2, 4.3)),
        *(f"Section {n}" for n in (5.1, 5.2, 5.3, 6, 7, 8)),
        *(f"Assumption {n}" for n in (1, 2, 3)),
        *("Definition 3.1", "Example 3.2", "Proposition 4.1", "Corollary 4.2", "Corollary 4.3"),
        *("Proposition 4.4", "Theorem 5.1", "Remark 1", "Remark 2", "Figure 1", "Figure 2"),
        *("Algorithm 1", *(f"Appendix A.{n}" for n in range(1, 7))),
        *(f"Appendix B.{n}" for n in range(1, 5)),
        *(f"Listing {n}" for n in range(1, 9)),
    ):
        assert name in places, name


def test_the_page_of_docs_lists_every_piece_with_a_verdict() -> None:
    rows = rows_of("The pieces")
    assert [row[0].strip("`") for row in rows] == list(reproduction.PIECES)
    assert {row[2] for row in rows} <= set(VERDICTS)
