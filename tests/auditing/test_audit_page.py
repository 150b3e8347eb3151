"""The page of a report: it is complete, and no name can add markup to it.

tests/browser tests the page in a browser.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import example_report
from support.html_reader import Reader

from dpnoise.auditing import page
from dpnoise.auditing.report import Report, read_list, write_comparison, write_list
from dpnoise.auditing.wording import bound_text
from dpnoise.core.errors import ArgumentError

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}\"'><img src=x onerror=alert(2)>&amp;]]>{{}}%s^-1"


def read(report: Report) -> Reader:
    return Reader(page.render_audit_page(report.to_dict()))


def read_comparison(*reports: Report) -> Reader:
    return Reader(page.render_comparison([report.to_dict() for report in reports], {}))


def hostile() -> Report:
    """Return a report with markup in every text, which must not become part of the page."""
    report = example_report.broken_report()
    finding = replace(report.findings[0], attack=HOSTILE, access=HOSTILE, event=HOSTILE)
    observation = replace(report.observations[0], name=HOSTILE, words=HOSTILE)
    return replace(
        report,
        target=HOSTILE,
        version=HOSTILE,
        noise=HOSTILE,
        method=HOSTILE,
        command=HOSTILE,
        findings=[finding, replace(finding, broken=False)],
        observations=[observation],
        skipped={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
    )


def extreme(epsilon_lower: float) -> Report:
    finding = example_report.finding(epsilon_lower=epsilon_lower)
    return replace(example_report.broken_report(), findings=[finding])


EVERY_KIND = {
    "broken": example_report.broken_report(),
    "not broken": example_report.unbroken_report(),
    "hostile": hostile(),
    "nothing": replace(
        example_report.broken_report(), findings=[], observations=[], skipped={}, pairs=[]
    ),
    "infinite": extreme(float("inf")),
    "huge": extreme(1e300),
    "long": replace(
        extreme(5.0), target="n" * 500, command="c" * 500, version="1." * 200, method="m" * 5000
    ),
}


@pytest.mark.parametrize("report", EVERY_KIND.values(), ids=EVERY_KIND)
def test_every_page_is_well_formed(report: Report) -> None:
    reader = read(report)
    assert {"title", "h1", "h2", "svg", "style"} <= {tag for tag, _ in reader.tags}
    assert read_comparison(report, example_report.broken_report()).count("table") == 1


@pytest.mark.parametrize("report", EVERY_KIND.values(), ids=EVERY_KIND)
def test_no_page_loads_or_runs_anything(report: Report) -> None:
    read_comparison = page.render_comparison([report.to_dict()], {})
    for text in (page.render_audit_page(report.to_dict()), read_comparison):
        assert not re.search(r"https?://|url\(|@import|@font-face", text)
        for tag, attributes in Reader(text).tags:
            assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base"}
            assert not {"src", "style", "srcset"} & attributes.keys()
            assert attributes.get("href", "#limits") == "#limits"
            assert not [name for name in attributes if name.startswith("on")]


def test_what_names_contain_is_shown_as_text() -> None:
    for reader in (read(hostile()), read_comparison(hostile())):
        assert reader.text.count(SCRIPT) >= 4


def test_the_page_forbids_the_browser_to_load_anything() -> None:
    policies = [
        attributes["content"]
        for tag, attributes in read(example_report.broken_report()).tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert "default-src 'none'" in str(policies[0])


def test_the_verdict_comes_first_with_both_epsilons() -> None:
    report = example_report.broken_report()
    text = read(report).text.removeprefix(f"Audit of {report.target}: broken")
    assert text.index(report.verdict) < text.index("What gave it away")
    assert text.index("Used as if 1") < text.index("Certified at least 5.82")


def test_the_ceiling_stands_next_to_the_bound_and_among_the_limits() -> None:
    text = read(example_report.broken_report()).text
    assert "This number of releases can certify 7.4 at most." in text
    assert "no epsilon above 7.4 could have been certified" in text
    assert "used as if epsilon were 1" in text
    both = [
        example_report.broken_report(),
        replace(example_report.unbroken_report(), ceiling=8.125),
    ]
    assert "no epsilon above 8.12 could have been certified" in read_comparison(*both).text


def test_a_finding_shows_its_event_and_its_two_counts() -> None:
    text = read(example_report.broken_report()).text
    assert "|y| < 2-2 and y is not a multiple of 2-54" in text
    assert "3,723 of 20,000 (18.6%)" in text
    assert "Seen 3,723 times at 0, never at 1." in text
    assert "12 of 10,000 (0.12%)" in text
    assert "epsilon is at least 3.01 for each of 2 releases" in text


def test_every_event_is_shown_as_python() -> None:
    text = read(example_report.broken_report()).text
    assert "event = lambda releases: finer_than(releases, -2, -54)" in text
    learned = example_report.finding(predicate="number(y, 0) > 1.5")
    report = replace(example_report.broken_report(), findings=[learned])
    assert "event = lambda y: number(y, 0) > 1.5" in read(report).text


def test_the_curve_stands_next_to_the_claim() -> None:
    reader = read(example_report.broken_report())
    lines = [attributes["class"] for tag, attributes in reader.tags if tag == "path"]
    assert lines == ["line claimed", "line certified"]
    assert "Mu" in reader.text
    of_rho = replace(example_report.broken_report(), kind="rho")
    assert [tag for tag, _ in read(of_rho).tags].count("path") == 1, "rho has no curve"


@pytest.mark.parametrize(
    ("attack", "event", "advice"),
    [
        ("precision", "y is fine", "the noise was added in floating point"),
        ("threshold", "y > 3", "the noise is too small for its claim"),
        ("likelihood", "y is 'cork'", "Look for what it releases without noise"),
        ("likelihood", "the first bit of y", "the noise was added in floating point"),
    ],
)
def test_the_advice_fits_the_finding(attack: str, event: str, advice: str) -> None:
    finding = example_report.finding(attack=attack, event=event)
    text = read(replace(example_report.broken_report(), findings=[finding])).text
    every = ("floating point: rel", "too small for its claim", "without noise: a group")
    assert advice in text
    assert sum(words in text for words in every) <= 1


def test_every_finding_is_shown_once() -> None:
    report = example_report.broken_report()
    reader = read(report)
    broke = {finding.attack for finding in report.findings if finding.broken}
    assert reader.count("article") == len(broke)
    assert reader.count("tr") - 1 == len(report.findings) - len(broke)


def test_the_same_outputs_are_drawn_once() -> None:
    first = example_report.finding()
    same_values = replace(first, attack="another", value0=first.value1, value1=first.value0)
    others = replace(first, attack="a third", value0=7.0, value1=8.0)
    reader = read(replace(example_report.broken_report(), findings=[first, same_values, others]))
    assert reader.text.count("The last set bit of the releases") == 2


def test_observations_are_set_apart_from_what_is_certified() -> None:
    report = example_report.broken_report()
    text = read(report).text
    assert "They are not part of the certified epsilon." in text
    assert all(observation.words in text for observation in report.observations)
    assert text.count("no problem found") == 1, "a look that failed found nothing, good or bad"


def test_the_page_says_how_to_reproduce_it() -> None:
    report = example_report.broken_report()
    text = read(report).text
    for part in (report.command, report.method, "240,000 in all", "99.9%", "1000 and 1001"):
        assert part in text
    assert all(f"{name} {version}" in text for name, version in report.versions.items())
    assert "Not run: threefry" in text


@pytest.mark.parametrize("report", EVERY_KIND.values(), ids=EVERY_KIND)
def test_every_page_says_what_not_broken_does_not_mean(report: Report) -> None:
    for reader in (read(report), read_comparison(report)):
        assert "does not mean safe, or private" in reader.text


def test_a_page_never_calls_anything_safe_or_secure() -> None:
    text = read(example_report.unbroken_report()).text.lower()
    assert "secure" not in text
    assert re.findall(r"[a-z]+ mean safe", text) == ["not mean safe"] * text.count("safe")


def test_a_report_without_findings_claims_nothing() -> None:
    report = EVERY_KIND["nothing"]
    assert report.verdict == "No attack was run: nothing is known."
    assert "not tried" in read_comparison(report).text


def test_the_comparison_has_a_row_and_a_bar_for_each_target_worst_first() -> None:
    reports = example_report.several_reports()
    reader = read_comparison(*reports)
    assert reader.count("tr") == 1 + len(reports)
    assert sum(attributes.get("class") == "track" for _, attributes in reader.tags) == len(reports)
    assert "2 of 4 targets broken." in reader.text
    table = reader.text[reader.text.index("Target by target") :]
    positions = [table.index(name) for name in ("RandomState", ".normal", ".release", ".nothing")]
    assert positions == sorted(positions)


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0004999, 2.675, 5.8249, 123456.7, 1e300])
def test_no_certified_epsilon_is_rounded_up(epsilon: float) -> None:
    assert 0.99 * epsilon <= float(bound_text(epsilon)) <= epsilon


@pytest.mark.parametrize("excess", [1.0, 1e-3, 1e-8, 2.0**-52])
def test_a_broken_claim_never_reads_as_its_own_bound(excess: float) -> None:
    shown = bound_text(1.0 + excess, claimed=1.0)
    assert 1.0 < float(shown) <= 1.0 + excess


def test_exponents_without_end_fit_into_one_picture() -> None:
    """Counts beyond the window are kept, in the outermost columns."""
    exponents = [-1074, *range(-90, 10), 900]
    evidence = {"exponents": exponents, "at0": [99] * 102, "at1": [0] * 101 + [1]}
    report = replace(
        example_report.broken_report(), findings=[example_report.finding(evidence=evidence)]
    )
    reader = read(report)
    drawn = [attributes for _, attributes in reader.tags if attributes.get("class") == "value0"]
    columns = [attributes for attributes in drawn if attributes.get("x") != "0"]
    assert len(columns) == 60
    assert "The outermost columns hold all that lies beyond." in reader.text


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    for report in EVERY_KIND.values():
        report.to_json(tmp_path / "report.json")
        assert Report.from_json(tmp_path / "report.json") == report
    write_list(list(EVERY_KIND.values()), tmp_path / "reports.json")
    assert read_list(tmp_path / "reports.json") == list(EVERY_KIND.values())


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    for text in ("[]", '{"format": 99}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ArgumentError, match="The report must have format 3"):
            Report.from_json(tmp_path / "other.json")


def test_pages_are_written_in_utf8(tmp_path: Path) -> None:
    report = replace(example_report.broken_report(), target="bruit \N{GREEK SMALL LETTER EPSILON}")
    report.to_html(tmp_path / "one.html")
    write_comparison([report], tmp_path / "many.html")
    for name in ("one.html", "many.html"):
        text = (tmp_path / name).read_bytes().decode("utf-8")
        assert report.target in text
        assert text.startswith("<!DOCTYPE html>")
