"""The page of a release: all its numbers and nothing else of the data, and names stay text.

tests/browser has the tests in a browser.
"""

import hashlib
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from flint import arb
from markupsafe import Markup
from support import example_tables
from support.example_tables import EVERY_KIND, HOSTILE, SCRIPT
from support.html_reader import Reader

from dpnoise import cli
from dpnoise.cli import release
from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.statistics import Question, Request, load_request, publish, report
from dpnoise.statistics.digits import format_interval, format_number
from dpnoise.statistics.publishing import Table, rehearsal
from dpnoise.statistics.report import Scale, request_toml, statistics_of
from dpnoise.statistics.results import Number

KINDS = pytest.mark.parametrize("table", EVERY_KIND.values(), ids=EVERY_KIND)


def read(table: Table, title: str | None = None) -> Reader:
    return Reader(report.render_record(table.record(), title))


def text_of(**changes: Any) -> str:
    return Reader(report.render_record(example_tables.person_record(**changes))).text


def row_texts(row: dict[str, Any]) -> list[str]:
    """Return the texts on the page for a row of the table."""
    if row["low"] is not None:
        value, low, high = format_interval(row["value"], row["low"], row["high"])
        return [value, f"{low} to {high}"]
    value, margin = format_number(row["value"], row["margin"])
    is_below = row["margin"] is not None and abs(row["value"]) < row["margin"] < math.inf
    margin += " *" if is_below else ""
    joint = row["joint_margin"]
    return [value, margin, *([] if joint is None else [format_number(row["value"], joint)[1]])]


def cells(page: str) -> Iterator[list[str]]:
    """Yield the numbers of every row of the tables, and the single numbers."""
    for row in re.findall(r'<tr role="row"><th scope="row"(.*?)</tr>', page, re.DOTALL):
        yield re.findall(r'class="(?:value|margin)(?: long)?"><span>([^<]+)</span></td>', row)
    for paragraph in re.findall(r'<p class="alone">(.*?)</p>', page, re.DOTALL):
        yield re.findall(r"<(?:strong|span)>(.*?)</", paragraph)


@KINDS
def test_every_number_of_the_table_is_on_the_page_and_no_other(table: Table) -> None:
    page = report.render_record(table.record())
    group_columns = {column for question in table.request.publish for column in question.by}
    if (
        "value" in group_columns
    ):  # A column of that name hides the numbers in rows(), not on the page.
        expected = [
            list(number.format(mark=" *")[:2])
            for published in table.published
            for number in published.release.numbers()
        ]
    else:
        expected = [row_texts(row) for row in table.rows()]
    assert len(expected) == sum(1 for _ in cells(page))
    assert sorted(cells(page)) == sorted(expected)


def test_the_page_has_nothing_else_of_the_data() -> None:
    secrets = [f"secret{i}" for i in range(40)]
    frame = pl.DataFrame(
        {
            "city": ["cork", "dublin", "athlone", "bray"] * 10,
            "income": [31_337.0 + i for i in range(40)],
            "surname": secrets,
        }
    )
    question = Question(["mean", "count"], "income", lower=0, upper=100_000, by=("city",))
    table = publish(frame, Request(20.0, [question], groups={"city": ["cork", "dublin"]}))
    page = report.render_record(table.record())
    text = Reader(page).text
    assert not re.search(r"\b31,?337\b", text), "a hash may have these digits, but no whole number"
    for secret in (*secrets, "athlone", "bray", "surname"):
        assert secret not in text
    assert sorted(cells(page)) == sorted(map(row_texts, table.rows()))


@pytest.mark.sample(2)
@KINDS
def test_every_page_is_well_formed_and_loads_and_runs_nothing(table: Table) -> None:
    for title in (None, HOSTILE):
        page = report.render_record(table.record(), title)
        assert not re.search(r"https?://|url\(|@import|@font-face", page)
        reader = Reader(page)
        assert {"title", "h1", "h2", "h3", "svg", "style"} <= {tag for tag, _ in reader.tags}
        policies = [attributes for _, attributes in reader.tags if "http-equiv" in attributes]
        contents = [str(policy["content"]) for policy in policies]
        assert ["default-src 'none'" in content for content in contents] == [True]
        for tag, attributes in reader.tags:
            assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "a"}
            assert not {"src", "style", "srcset", "href"} & attributes.keys()
            assert not [name for name in attributes if name.startswith("on")]


def test_what_names_contain_is_shown_as_text() -> None:
    reader = read(example_tables.hostile_table(), HOSTILE)
    assert reader.text.count(SCRIPT) >= 15
    assert reader.tags.count(("style", {})) == 1
    page = report.render_record(example_tables.hostile_table().record(), HOSTILE)
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_a_name_of_the_type_that_templates_trust_is_text_as_well() -> None:
    name = Markup("<b>bold</b>")
    by = Question(["count"], name, by=(name,))
    rows = [(by, (name,), example_tables.release("count", i)) for i in (1, 2)]
    page = report.render_record(example_tables.table(rows, {name: [name]}).record(), name)
    assert "<b>" not in page


def test_every_text_of_a_record_stays_text() -> None:
    texts = {"privacy_unit": HOSTILE, "neighbours": HOSTILE, "dpnoise": HOSTILE, "date": HOSTILE}
    text = text_of(**texts, ledger={"head": HOSTILE, "name": HOSTILE, "left": HOSTILE})
    assert text.count(SCRIPT) >= 9


def test_the_title_of_a_page_is_given_or_names_the_statistics() -> None:
    assert "<h1>Visits in 2026</h1>" in report.render_record(
        EVERY_KIND["plain"].record(), "Visits in 2026"
    )
    text = read(EVERY_KIND["plain"]).text
    assert text.startswith("Mean and median of income, by city; histogram of age; quantiles of")
    assert read(EVERY_KIND["alone"]).text.startswith("Number of rows")
    assert "15 November 2026, 09:30 UTC" in text


def test_a_statistic_that_was_asked_for_twice_is_shown_twice() -> None:
    narrow = Question(["mean"], "x", lower=0, upper=1, by=("g",))
    wide = replace(narrow, upper=9)
    rows = [
        (question, (group,), example_tables.release("mean", value))
        for question, value in ((narrow, 0.5), (wide, 4.5))
        for group in ("a", "b")
    ]
    record = example_tables.table(rows, {"g": ["a", "b"]}).record()
    statistics = statistics_of(record["releases"])
    values = [[number.value for number in statistic.numbers] for statistic in statistics]
    assert values == [[0.5] * 2, [4.5] * 2]


# Protection --------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
def test_odds_are_rounded_towards_less_protection(percent: int) -> None:
    """Bayes' rule in ball arithmetic: no belief rises or falls further than the page says."""
    rng = np.random.default_rng()
    for epsilon in [*(float(10.0**x) for x in rng.uniform(-4, 2.5, 300)), 1.0, 700.0]:
        times = arb(epsilon).exp()
        assert (
            arb(Fraction(report.factor(epsilon)).numerator)
            >= times * Fraction(report.factor(epsilon)).denominator
        )
        most, least = (
            100 * arb(percent) * t / (percent * t + 100 - percent) for t in (times, 1 / times)
        )
        largest = report.at_most(percent, epsilon)
        if largest == "over 99.9%":
            assert most > arb("99.9")
        else:
            assert arb(largest.removesuffix("%")) + arb("1e-30") >= most
        assert arb(
            report.smallest_changed_belief(percent, epsilon).removesuffix("%")
        ) <= least + arb("1e-30")


def test_the_page_says_epsilon_in_words_and_as_odds() -> None:
    text = read(EVERY_KIND["plain"]).text
    assert math.exp(1) / (1 + math.exp(1)) == pytest.approx(0.7311, abs=1e-4)
    assert "Epsilon is 1." in text
    assert "the odds move by at most a factor of 2.72" in text
    assert "with probability 50% can believe it with at most 73.2% afterwards" in text
    assert "Delta" not in text


def test_a_delta_is_said_with_what_it_leaves_out() -> None:
    text = text_of()
    assert "Everything on this page together cost epsilon 1.5 and delta 1e-06." in text
    assert "reveals everything with probability 1e-06, once in 1,000,000" in text


def test_a_row_is_not_called_a_person() -> None:
    assert "A person who has several rows is protected less" in read(EVERY_KIND["plain"]).text
    text = text_of()
    assert "at most 2 groups and 3 rows in each" in text
    assert "whether one person is in the data" in text
    assert "Further rows of a person were left out" in text
    assert "several rows is protected less" not in text


def test_replaced_persons_are_protected_in_what_they_say() -> None:
    request = {**example_tables.person_record()["request"], "neighbours": "replace"}
    assert "learns little about what one person says" in text_of(request=request)


def test_an_epsilon_that_promises_nothing_is_called_that() -> None:
    assert "promises hardly anything" in text_of(privacy={"epsilon": 30.0, "delta": 0.0})
    assert "promises hardly anything" not in text_of()


def test_a_loss_in_rho_is_read_at_a_delta() -> None:
    """Bun and Steinke: an epsilon of rho + 2 sqrt(rho log(1/delta)) is enough, never too small."""
    text = text_of(privacy={"epsilon": None, "delta": 0.0, "rho": 0.125, "rho_delta": 1e-9})
    assert "together cost rho 0.125" in text
    loss = re.search(r"rho 0.125, which is epsilon ([\d.]+) and delta 1.001e-06: odds", text)
    assert loss is not None
    enough = 0.125 + 2 * math.sqrt(0.125 * math.log(1e6))
    assert 0.8 * enough < float(loss[1]) <= enough


def test_the_page_shows_the_remaining_budget_if_the_record_has_a_ledger() -> None:
    text = text_of()
    for part in ("visits 2026", "epsilon 2.5, delta 1e-06", "ab" * 32):
        assert part in text
    assert "names no ledger" not in text
    assert "names no ledger" in text_of(ledger=None)


def test_a_wide_margin_leaves_space_for_the_bars_and_no_bar_leaves_its_picture() -> None:
    wide = [Number((name,), value, 1e9, None, None) for name, value in (("a", 1.0), ("b", 3.0))]
    scale = Scale.of(wide)
    assert scale.position(3.0) - scale.position(0.0) == pytest.approx(1 / 3)
    for table in EVERY_KIND.values():
        for _, attributes in read(table).tags:
            for name in ("x", "x1", "x2", "width"):
                length = attributes.get(name) or ""
                assert not length.endswith("%") or 0 <= float(length[:-1]) <= 100


def test_bars_are_as_long_as_their_numbers() -> None:
    pair = [Number((name,), value, 10, None, None) for name, value in (("a", 100), ("b", -50))]
    widths = [Scale.of(pair).bar(number)["width"] for number in pair]
    assert widths == pytest.approx([100 / 170, 50 / 170], abs=1e-4)


def test_groups_that_nobody_declared_are_said_to_be_found() -> None:
    assert "noisy number of persons is 1,029 or more: 5 of them" in text_of()
    assert "were not declared" not in read(EVERY_KIND["plain"]).text


def test_the_page_says_that_numbers_by_declared_groups_leave_out_other_rows() -> None:
    page = report.render_record(stays(labels={"hospital": "<house>"}).record())
    assert "Rows of other groups are in no number by <house>" in Reader(page).text
    groups: dict[str, Any]
    for groups in ({}, {"city": "discover"}):
        question, delta = Question(["count"], by=tuple(groups)), 1e-6 if groups else 0.0
        request = Request(1.0, [question], groups, delta=delta)
        assert "Rows of other groups" not in read(rehearsal(request)).text


def test_a_page_without_any_group_says_so() -> None:
    assert text_of(releases=[]).startswith("No group could be published")


def test_a_statistic_with_gaussian_noise_has_its_rho() -> None:
    mean, *_ = example_tables.person_record()["releases"]
    gaussian = {**mean, "epsilon": None, "rho": 0.03125}
    text = text_of(releases=[gaussian, {**gaussian, "query": "sum"}])
    assert text.count("rho 0.03125") == 2


# The request, and how to check it ----------------------------------------------------------------


def test_the_request_on_the_page_asks_for_the_same(tmp_path: Path) -> None:
    names = [HOSTILE, "a.b", 'quo"te', "back\\slash", "tab\t", "\x7f", "two\nlines", "é"]
    request = Request(
        0.1,
        [
            Question(["mean", "quantile:0.9"], names[0], lower=-1.5, upper=1e30, by=(names[1],)),
            Question(["histogram"], names[5], edges=[0, 1.5, math.inf]),
            Question(["count"], by=(names[1], names[2])),
        ],
        groups={names[1]: names, names[2]: [7, 2.5]},
        missing="drop",
        clamp=False,
    )
    path = tmp_path / "request.toml"
    path.write_text(request_toml(request.to_dict()), encoding="utf-8")
    assert load_request(path).request == request


def test_a_written_request_leaves_out_groups_that_nothing_uses(tmp_path: Path) -> None:
    """`load_request` refuses them: in a file they are of a column that is misspelled."""
    groups = {"city": ("cork",), "ward": ("a", "b")}
    request = Request(1, [Question(["count"], by=["city"])], groups=groups)
    path = tmp_path / "request.toml"
    path.write_text(request_toml(request.to_dict()), encoding="utf-8")
    assert load_request(path).request.groups == {"city": ("cork",)}


def test_the_request_is_on_the_page() -> None:
    table = EVERY_KIND["plain"]
    assert " ".join(request_toml(table.request.to_dict()).split()) in read(table).text


def test_the_page_names_the_hash_of_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, record = tmp_path / "page.html", tmp_path / "record.json"
    bounds = ["--lower", "0", "--upper", "200000"]
    arguments = ["--sample", "--column=income", "--query=mean", *bounds, "--group-by", "city=cork"]
    files = ["--html", str(page), "--record", str(record), "--title", "A <b>title"]
    assert cli.main(["release", *arguments, *files]) == 0
    assert f"Written to {page}." in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert hashlib.sha256(record.read_bytes()).hexdigest() in text
    assert "<h1>A &lt;b&gt;title</h1>" in text


def test_a_page_is_written_in_utf8(tmp_path: Path) -> None:
    EVERY_KIND["hostile"].to_html(tmp_path / "page.html", "Köln")
    text = (tmp_path / "page.html").read_bytes().decode("utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<h1>Köln</h1>" in text
    assert "東京" in text


# On the command line, before any noise is drawn --------------------------------------------------


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["release", "--sample", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_title_needs_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--html page.html" in error_of(capsys, "--title", "x")


def test_an_earlier_page_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("earlier")
    assert "exists" in error_of(capsys, "--html", str(page))
    assert page.read_text() == "earlier"
    assert cli.main(["release", "--sample", "--html", str(page), "--force"]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_python_replaces_a_page_whose_table_is_still_there(tmp_path: Path) -> None:
    table = rehearsal(Request(1.0, [Question(["count"])]))
    for title in ("First", "Second"):
        table.to_html(tmp_path / "page.html", title=title)
    assert "<h1>Second</h1>" in (tmp_path / "page.html").read_text()
    assert "replaced" in (Table.to_html.__doc__ or "")


def test_a_page_and_a_record_are_two_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = str(tmp_path / "same"), str(tmp_path / "other")
    words = error_of(capsys, "--output", other, "--html", same, "--record", same)
    assert f"{same} and {same} are the same file" in words


def test_more_numbers_than_a_browser_shows_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_MOST_ON_A_PAGE", 3)
    options = ["--column", "income", "--query", "histogram", "--html", str(tmp_path / "page.html")]
    words = error_of(capsys, *options, "--edges=0,1,2,3,4")
    assert "--html shows 3 numbers at most; these are 4" in words
    assert cli.main(["release", "--sample", *options, "--edges=0,1,2,3"]) == 0


# Labels, notes and a table of groups by statistics ------------------------------------------------


def stays(**options: Any) -> Table:
    """Return a rehearsal of the stays of two hospitals, with a cost each."""
    cost = Question(["count", "mean"], "cost", 0, 100, by=["hospital"])
    rows = Question(["count", "histogram"], "cost", edges=[0, 50, 100])
    groups = {"hospital": ["north", "<south>"]}
    return rehearsal(
        Request(1.0, [Question(["count"], by=["hospital"]), cost, rows], groups, **options)
    )


def test_headings_are_for_people() -> None:
    page = report.render_record(stays().record())
    for heading in (
        "Number of rows, by hospital",
        "Number of values of cost, by hospital",
        "Mean of cost, by hospital",
        "Number of values of cost",
    ):
        assert f"<h3>{heading}</h3>" in page
    assert "Count of" not in page


def test_labels_notes_and_the_publisher_are_on_the_page_and_in_the_record() -> None:
    labels = {"rows": "stays", "cost": "cost in <EUR>", "hospital": "house"}
    table = stays(labels=labels, notes=["Without <day> cases."], released_by="The <Office>")
    page = report.render_record(table.record())
    for text in (
        "<h3>Number of stays, by house</h3>",
        "<h3>Mean of cost in &lt;EUR&gt;, by house</h3>",
        "Without &lt;day&gt; cases.",
        "by The &lt;Office&gt;, with dpnoise",
    ):
        assert text in page
    request = table.record()["request"]
    assert (request["labels"], table.record()["released_by"]) == (labels, "The <Office>")
    assert request["notes"] == ("Without <day> cases.",)
    loaded = tomllib.loads(request_toml(request))
    assert loaded["labels"] == labels
    assert loaded["notes"] == ["Without <day> cases."]


def test_only_histograms_say_to_which_cell_an_edge_belongs() -> None:
    rows = Question(["histogram"], "age", edges=[0, 50, 100])
    counts = Question(["count"])
    pages = [
        report.render_record(rehearsal(Request(1.0, [question])).record())
        for question in (rows, counts)
    ]
    assert ["includes its lower edge" in page for page in pages] == [True, False]


def test_a_label_names_a_filter() -> None:
    where = "age < 18 and name != '<b>'"
    children = Question(["count"], by=["hospital"], where=where)
    groups = {"hospital": ["north", "south"]}
    labels = {where: "of <children>", "rows": "stays"}
    record = rehearsal(Request(1.0, [children], groups, labels=labels)).record()
    page = report.render_record(record)
    assert "<h3>Number of stays of &lt;children&gt;, by hospital</h3>" in page
    assert tomllib.loads(request_toml(record["request"]))["labels"] == labels


def test_groups_by_statistics_are_one_table() -> None:
    """The histogram, and the count of all rows, are not by hospital."""
    page = report.render_record(stays().record())
    assert page.count('class="wide"') == 1
    (table,) = re.findall(r'<table role="table" class="wide">(.*?)</table>', page, re.DOTALL)
    titles = re.findall(r'role="columnheader">(.*?)</th>', table)
    assert titles == ["hospital", "Number of rows", "Number of values of cost", "Mean of cost"]
    assert re.findall(r'role="rowheader">(.*?)</th>', table) == ["north", "&lt;south&gt;"]
    assert len(re.findall(r'<td role="cell">', table)) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"labels": {"costs": "x"}},
            "no column and no filter of a question. They ask for cost, hospital. Correct the label",
        ),
        ({"labels": {"cost": 1}}, "labels must map columns to texts"),
        ({"labels": "cost"}, "labels must map columns to texts"),
        ({"notes": "a note"}, "notes must be a list of texts"),
        ({"released_by": 1}, "released_by must be text"),
    ],
)
def test_labels_and_notes_are_text(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=re.escape(words)):
        stays(**options)


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_shown_request_has_no_delimiter_that_its_source_may_contradict(delimiter: str) -> None:
    request = {"epsilon": 1.0, "delimiter": delimiter, "publish": [{"statistics": ["count"]}]}
    assert "delimiter" not in request_toml(request)
