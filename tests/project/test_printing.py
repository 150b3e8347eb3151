"""Results, reports and mechanisms print themselves, as text and in notebooks."""

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import dpnoise
from dpnoise import auditing, statistics
from dpnoise.auditing import Finding, Report
from dpnoise.statistics import Published, Question, Release, Request, Table, publish
from dpnoise.statistics.publishing import rehearsal

# Not results: sources of noise, and distributions, whose repr names their parameters.
NOT_PRINTED = {dpnoise.Generator} | {
    kind
    for kind in (getattr(dpnoise, name) for name in dpnoise.__all__)
    if inspect.isclass(kind) and issubclass(kind, dpnoise.Distribution)
}
HOSTILE = 'x\x1b[2J\n\u202e<b onclick="1">&'
SHOWN = 'x\\x1b[2J\\n\\u202e<b onclick="1">&'  # The same on one line, which cannot do anything.
MEAN = Release("mean", 33299.87576, 1.0, None, 3548.74, 0.95)
MEDIAN = Release("median", 45212.0, 0.5, None, None, 0.9, interval=(38104.25, 52000.5))
BINS = Release("histogram", [12, 7], None, 1.0, 3, 0.95, joint_error=4, labels=("0 to 5", "5 to 10"), rho=0.5)  # fmt: skip  # noqa: E501 - one line
MARGINS = "Margins hold with probability 0.95, and do not cover clamped values."
TABLE = Table(Request(1.0, [Question(["mean"], "x", 0, 9)]), (Published("x", (), (), MEAN),))


def public_classes() -> list[type]:
    """Return the public classes, without exceptions and what is not printed."""
    modules: list[Any] = [dpnoise, statistics, auditing]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    return [
        kind
        for kind in dict.fromkeys(filter(inspect.isclass, public))
        if not issubclass(kind, Exception) and kind not in NOT_PRINTED
    ]


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__qualname__)
def test_what_a_person_may_print_says_it_in_words(kind: type) -> None:
    assert getattr(kind, "__str__") is not getattr(object, "__str__")  # noqa: B009 - mypy compares types


def test_the_classes_are_found() -> None:
    names = {kind.__name__ for kind in public_classes()}
    assert names >= {"Release", "Published", "Table", "Request", "Question", "Ledger", "Report"}
    assert names >= {"Finding", "LaplaceMechanism", "NoisyMax", "DiscreteLaplaceMechanism"}


def test_a_release_shows_its_number_margin_and_loss() -> None:
    assert str(MEAN) == "mean: 33,300 ± 3,600 (confidence 0.95, epsilon 1)"
    assert str(MEDIAN) == "median: 45,212, 38,104 to 52,001 (confidence 0.9, epsilon 0.5)"
    assert str(replace(MEDIAN, interval=None)) == "median: 45,212, no margin (epsilon 0.5)"
    empty = replace(MEAN, no_information=True)
    assert str(empty).startswith("mean: no information: too few rows for this epsilon (conf")
    assert str(BINS).splitlines() == [
        "         published  within  all within",
        "0 to 5          12     ± 3         ± 4",
        "5 to 10          7     ± 3         ± 4",
        "confidence 0.95, rho 0.5",
    ]


def test_a_published_number_shows_its_column_and_group() -> None:
    published = Published("age", ("city", "sex"), ("cork", 1), MEAN)
    assert str(published).startswith("age, city cork, sex 1, mean: 33,300 ± 3,600")
    assert str(Published(None, (), (), BINS)).startswith("rows:\n ")


def test_a_table_is_text_without_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "pandas", "pyarrow", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    assert str(TABLE).splitlines() == [
        "column  statistic  published   within",
        "x       mean          33,300  ± 3,600",
        "",
        f"epsilon 1 in all, with one row added or removed. {MARGINS}",
    ]


def test_every_number_of_a_table_is_printed_with_its_group() -> None:
    questions = [Question(["count"]), Question(["count", "mean"], "x", 0, 9, by=["city"])]
    request = Request(1.0, questions, groups={"city": ["cork", "dublin"]})
    table = publish(pl.DataFrame({"x": [1, 2], "city": ["cork", "cork"]}), request)
    titles, *lines = str(table).partition("\n\n")[0].splitlines()
    assert titles.split() == ["city", "column", "statistic", "published", "within", "all", "within"]
    released = [number for published in table for number in published.release.numbers()]
    for line, row, number in zip(lines, table.rows(), released, strict=True):
        labels = [row[name] for name in ("city", "column", "statistic") if row[name] is not None]
        assert line.split() == " ".join([*labels, *number.format(mark=" *")]).split()


def test_a_long_table_is_cut_and_says_so() -> None:
    request = Request(1.0, [Question(["count"], by=["n"])], groups={"n": list(range(250))})
    lines = str(rehearsal(request)).splitlines()
    assert lines[1 + 100 + 1].startswith("150 more numbers: see rows() or to_pandas().")


def test_a_table_without_groups_says_so() -> None:
    question = Question(["count"], by=["city"])
    request = Request(1.0, [question], groups={"city": "discover"}, delta=1e-6)
    assert "No group could be published." in str(Table(request, ()))


def hostile_objects(folder: Path) -> dict[str, Any]:
    question = Question(["mean"], HOSTILE, 0, 9, by=[HOSTILE + "by"])
    request = Request(1.0, [question], groups={HOSTILE + "by": [HOSTILE]})
    finding = Finding(
        HOSTILE, "outputs", HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 9, 10, 0, 10, 0.5, 0.1, 2.0, 2.0,
        0.99, broken=True, evidence={},
    )  # fmt: skip
    report = Report(
        HOSTILE, "1", "", 0.0, "epsilon", 1.0, 0.0, 1.0, 0.99, [finding], [], {}, [], "", [], 3.0,
        20, 1.0, HOSTILE, {},
    )  # fmt: skip
    return {
        "Question": question,
        "Request": request,
        "Table": rehearsal(request),
        "Published": rehearsal(request).published[0],
        "Finding": finding,
        "Report": report,
        "Ledger": statistics.create_ledger(folder / "ledger", name=HOSTILE, epsilon=1),
    }


def test_hostile_names_are_printed_on_one_line_and_do_nothing(tmp_path: Path) -> None:
    for kind, printed in hostile_objects(tmp_path).items():
        text = str(printed)
        assert SHOWN in text, kind
        assert all(line.isprintable() for line in text.split("\n")), kind
        assert HOSTILE.split("\n")[1] not in text, kind


def test_notebooks_show_a_table_with_every_name_escaped(tmp_path: Path) -> None:
    page = hostile_objects(tmp_path)["Table"]._repr_html_()
    assert "x\\x1b[2J\\n\\u202e&lt;b onclick=&#34;1&#34;&gt;&amp;" in page
    assert "<b" not in page
    assert page.count("<tr>") == 2
    small = BINS._repr_html_()
    assert small.count("<tr>") == 3
    assert '<td style="text-align: right">± 3</td>' in small
    assert "<td>5 to 10</td>" in small


def test_mechanisms_and_budgets_say_what_they_do(tmp_path: Path) -> None:
    """Laplace noise of scale 1 exceeds log(20) = 2.996 with probability 0.05."""
    laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    assert str(laplace) == f"{laplace!r}: noise of scale 1; 95 % of releases are within about 3"
    noisy_max = dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0)
    assert str(noisy_max) == f"{noisy_max!r}: noise of scale 2"
    question = Question(["mean", "std"], "income", lower=0, upper=200_000, by=["city"])
    assert str(question) == "mean, std of income from 0 to 200,000, by city"
    request = Request(1.0, [question], groups={"city": ["cork", "dublin"]})
    assert str(request).splitlines() == [
        str(question),
        "groups of city: cork, dublin",
        "epsilon 1 in all, with one row added or removed",
        "protected: one row",
    ]
    ledger = statistics.create_ledger(tmp_path / "ledger", name="survey", epsilon=3)
    frame = pl.DataFrame({"income": [1, 2], "city": ["cork", "cork"]})
    publish(frame, request, ledger=ledger)
    paid = str(statistics.open_ledger(ledger.path))
    assert paid == f"survey: epsilon 2 left of epsilon 3, after 1 payment ({ledger.path})"
