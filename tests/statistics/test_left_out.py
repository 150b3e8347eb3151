"""Rows that no number counts, and values that are clamped: their number and their share."""

import json
import math
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.stats
from pyarrow import parquet
from support.alarms import LONG
from support.choices import sample_cases, sample_parameters
from support.html_reader import Reader
from support.payments import losses_paid

from dpnoise import cli
from dpnoise.core.errors import ArgumentError, BudgetError
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics import Question, Request, create_ledger, load_request, open_ledger, publish
from dpnoise.statistics.engines import Files
from dpnoise.statistics.left_out import LeftOut, Noisy, clamped_share, left_out_share
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.queries import Count
from dpnoise.statistics.report import render_record, request_toml
from dpnoise.statistics.results import single_confidence

SURE = 1e6  # At this epsilon the noise of a count is not 0 with a probability below 10^-200000.
CITIES = {"city": ["cork", "dublin"]}
BY_CITY = Question(["count"], by=("city",))
IN_NO_GROUP = "city is in no declared group"
# Two persons have rows in no declared group: Ann has four of them, Bob two.
PEOPLE = pa.table(
    {
        "who": ["ann"] * 5 + ["bob"] * 3 + ["cyd"],
        "city": ["cork", "galway", "", None, "Cork", "dublin", "galway", "cork ", "cork"],
        "age": [5, 5, 5, 5, 5, 70, 70, 70, 30],
    }
)


def csv_file(folder: Path) -> Files:
    path = folder / "people.csv"
    PEOPLE.to_pandas().to_csv(path, index=False)
    return Files(path)


def parquet_file(folder: Path) -> Files:
    parquet.write_table(PEOPLE, folder / "people.parquet")
    return Files(folder / "people.parquet")


def json_file(folder: Path) -> Files:
    path = folder / "people.jsonl"
    path.write_text("\n".join(map(json.dumps, PEOPLE.to_pylist())))
    return Files(path)


def sqlite_file(folder: Path) -> Files:
    with closing(sqlite3.connect(folder / "people.db")) as database, database:
        PEOPLE.to_pandas().to_sql("people", database, index=False)
    return Files(folder / "people.db", table="people")


def duckdb_file(folder: Path) -> Files:
    with duckdb.connect(str(folder / "people.duckdb")) as connection:
        connection.from_arrow(PEOPLE).create("people")
    return Files(folder / "people.duckdb", table="people")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda _: PEOPLE.to_pandas(),
    "Polars": lambda _: pl.from_arrow(PEOPLE),
    "Polars, lazy": lambda _: pl.LazyFrame(pl.from_arrow(PEOPLE)),
    "Arrow": lambda _: PEOPLE,
    "DuckDB": lambda _: duckdb.connect().from_arrow(PEOPLE),
    "CSV": csv_file,
    "Parquet": parquet_file,
    "JSON": json_file,
    "SQLite": sqlite_file,
    "DuckDB file": duckdb_file,
}


def undeclared_count(table: Table, column: str = "city") -> int:
    """Return the published number of rows in no declared group."""
    (released,) = [one for one in table if one.where == f"{column} is in no declared group"]
    assert (released.column, released.by, released.group) == (None, (), ())
    return int(released.release.value)


def count_undeclared(source: Any, **options: Any) -> int:
    """Return the number of rows in no declared group of a city, with hardly any noise."""
    options = {"groups": CITIES, **options}
    return undeclared_count(publish(source, Request(SURE, [BY_CITY], undeclared=True, **options)))


# Rows in no declared group ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sample_parameters(SOURCES, 2))
def test_every_source_counts_the_same_rows_in_no_declared_group(name: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path)
    person = {"person": "who"}
    cases: list[tuple[int, dict[str, Any]]] = [
        (6, {}),
        (5, {"groups": {"city": ["galway", "cork"]}}),
        # At most one or three rows of each person.
        (2, {**person, "max_groups": 1, "max_rows": 1}),
        (5, {**person, "max_groups": 1, "max_rows": 3}),
        (5, {**person, "max_total_rows": 3}),
        (6, {**person, "max_rows": 4, "max_total_rows": 4}),
    ]
    for expected, options in sample_cases(cases[:2], 1) + sample_cases(cases[2:], 1):
        assert count_undeclared(source, **options) == expected, options


def test_only_text_that_is_a_key_to_the_letter_is_in_its_group(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text('city\n01\n1\n1.0\n"1 "\n""\nNA\n')
    assert count_undeclared(path, groups={"city": [1]}) == 5
    assert count_undeclared(path, groups={"city": ["01", "NA"]}) == 4


@pytest.mark.parametrize(
    ("keys", "column"),
    [
        ([1, 2], pl.Series([1, 2, 2, 3, None])),
        ([1, 2], pl.Series([1.0, 2.0, 2.0, 0.5, float("nan")])),
        ([True], pl.Series([True, True, True, False, None])),
    ],
)
def test_typed_columns_have_rows_in_no_declared_group(keys: list[Any], column: pl.Series) -> None:
    assert count_undeclared(pl.DataFrame({"city": column}), groups={"city": keys}) == 2


def test_keys_of_another_type_than_the_column_are_refused_as_for_groups() -> None:
    with pytest.raises(ArgumentError, match="is not of that kind"):
        count_undeclared(pd.DataFrame({"city": [1, 2]}))


def test_each_column_with_declared_groups_has_one_count_of_all_rows() -> None:
    """Filters of questions do not apply, and derived columns have missing groups."""
    questions = [
        Question(["count", "mean"], "age", 0, 100, by=("city", "band"), where="age > 20"),
        Question(["count"], by=("band",)),
    ]
    request = Request(
        SURE, questions, CITIES, derived={"band": "band(age, 18, 65)"}, undeclared=True
    )
    table = publish(PEOPLE, request)
    assert (undeclared_count(table), undeclared_count(table, "band")) == (6, 5)
    assert len(table.published) == 2 * 4 + 2 + 2


def test_coarser_groups_count_the_rows_in_no_group_of_the_finer_column() -> None:
    questions = [Question(["count"]), Question(["count"], by=("county",))]
    hierarchy = {"city": {"county": {"south": ["cork"], "east": ["dublin"]}}}
    request = Request(
        SURE, questions, CITIES, consistent=True, hierarchy=hierarchy, undeclared=True
    )
    assert undeclared_count(publish(PEOPLE, request)) == 6


def test_discovered_groups_have_no_count_of_other_rows(tmp_path: Path) -> None:
    sexes = pa.table({"city": ["cork"] * 200, "sex": ["f", "m", "x", ""] * 50})
    request = Request(
        50.0, [Question(["count"], by=("city", "sex"))], {"city": "discover", "sex": ["f", "m"]},
        delta=1e-6, undeclared=True,
    )  # fmt: skip
    assert undeclared_count(publish(sexes, request), "sex") == pytest.approx(100, abs=20)
    ledger = create_ledger(tmp_path / "ledger.json", name="people", epsilon=100.0, delta=1e-5)
    wrong = sexes.set_column(1, "sex", pa.array(range(200)))
    with pytest.raises(ArgumentError, match="is not of that kind"):
        publish(wrong, request, ledger=ledger)
    assert not open_ledger(ledger.path).entries  # The error comes before anything is paid for.


def test_each_count_is_paid_for_like_another_statistic(tmp_path: Path) -> None:
    sums = Question(["sum"], "age", 0, 100, by=("city",), weight=2.0)
    request = Request(3.0, [sums], CITIES, person="who", max_groups=1, max_rows=4, undeclared=True)
    (_, total), (_, count) = request.prepare()
    assert (total.epsilon, count.epsilon) == (2.0, 1.0)
    assert isinstance(count, Count)
    assert count.mechanism.sensitivity == 4.0
    assert [loss.amount for loss in losses_paid(request)] == [2.0, 1.0]
    assert request.cost().floats()["epsilon"] == 3.0
    ledger = create_ledger(tmp_path / "ledger.json", name="people", epsilon=2.5)
    with pytest.raises(BudgetError):
        publish(PEOPLE, request, ledger=ledger)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no groups": ({"publish": [Question(["count"])]}, "Nothing uses undeclared"),
    "discovered groups": (
        {"groups": {"city": "discover"}, "delta": 1e-6},
        r'Declare some: groups=\{"city"',
    ),
    "errors": (
        {"epsilon": None, "publish": [Question(["count"], by=("city",), error=5)]},
        "give questions weights in place of errors",
    ),
    "not a flag": ({"undeclared": 1}, "undeclared must be true or false, got 1"),
    "values of persons": (
        {
            "publish": [Question(["sum"], "age", 0, 9, by=("city",), per_person="sum")],
            "person": "who",
            "max_groups": 1,
        },
        "max_rows is missing",
    ),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_requests_without_rows_to_count_are_refused(problem: str) -> None:
    changes, message = REFUSED[problem]
    settings = {"epsilon": 1.0, "publish": [BY_CITY], "groups": CITIES, "undeclared": True}
    with pytest.raises(ArgumentError, match=message):
        Request(**{**settings, **changes})


def test_every_output_says_which_rows_are_in_no_declared_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    csv_file(tmp_path)
    options = ["people.csv", "--group-by", "city=cork,dublin", "--undeclared", "--epsilon", "1e6"]
    outputs = ["--output", "table.csv", "--record", "record.json", "--html", "page.html"]
    assert cli.main(["release", *options, *outputs]) == 0
    shown = capsys.readouterr().out
    assert f"count, where {IN_NO_GROUP}" in shown
    assert "count 5e+05, count 5e+05" in shown
    (row,) = [line for line in Path("table.csv").read_text().splitlines() if IN_NO_GROUP in line]
    assert row.startswith(f",,{IN_NO_GROUP},count,6,")
    record = json.loads(Path("record.json").read_text())
    assert record["releases"][-1]["where"] == IN_NO_GROUP
    page = Reader(Path("page.html").read_text())
    assert f"Number of rows where {IN_NO_GROUP}" in page.text
    assert cli.main(["release", *options, "--check"]) == 0
    assert f"rows where {IN_NO_GROUP}" in capsys.readouterr().out


def test_a_request_in_toml_counts_rows_in_no_declared_group(tmp_path: Path) -> None:
    path = tmp_path / "request.toml"
    path.write_text(
        'epsilon = 1e6\nundeclared = true\n[groups]\ncity = ["cork", "dublin"]\n'
        '[[publish]]\nstatistics = ["count"]\nby = ["city"]\n'
    )
    request = load_request(path).request
    table = publish(PEOPLE, request)
    assert undeclared_count(table) == 6
    assert f"count of rows where {IN_NO_GROUP}" in str(request)
    assert f"rows where {IN_NO_GROUP}, count: 6" in str(table.published[-1])
    path.write_text(request_toml(table.record()["request"]))
    assert load_request(path).request == request
    assert IN_NO_GROUP in render_record(table.record())


# Shares of rows and of values ---------------------------------------------------------------------

MEAN_AGE = Question(["mean"], "age", 10, 60, by=("city",))


def estimates(source: Any, question: Question = MEAN_AGE, **options: Any) -> LeftOut:
    """Return what a question leaves out, with hardly any noise."""
    groups = CITIES if question.by else {}
    request = Request(SURE, [question], groups, left_out=0.3, missing="drop", **options)
    (left_out,) = publish(source, request).left_out
    return left_out


def shares(left_out: LeftOut) -> tuple[Any, ...]:
    """Return the share of rows and the shares of values."""
    rows = None if left_out.rows is None else left_out.rows.value
    return (rows, *(share.value for _, share in left_out.clamped))


@pytest.mark.parametrize("name", sample_parameters(SOURCES, 2))
def test_every_source_has_the_same_shares(name: str, tmp_path: Path) -> None:
    """Three of nine rows are in declared groups: of Ann with 5, of Bob with 70, of Cyd with 30."""
    source = SOURCES[name](tmp_path)
    of_all_rows = Question(["mean"], "age", 10, 60)
    one_row: dict[str, Any] = {"person": "who", "max_rows": 1}
    cases: list[tuple[Any, list[Question], dict[str, Any]]] = [
        (pytest.approx((6 / 9, 2 / 3)), [], {}),
        ((None, pytest.approx(8 / 9)), [of_all_rows], {}),
        (pytest.approx((6 / 9, 2 / 3)), [], {**one_row, "max_groups": 1}),
        (pytest.approx((6 / 9, 2 / 3)), [of_all_rows], one_row),
    ]
    for expected, questions, options in sample_cases(cases[:2], 1) + sample_cases(cases[2:], 1):
        assert shares(estimates(source, *questions, **options)) == expected, options


def test_only_values_beyond_the_bounds_are_clamped() -> None:
    ages = [10.0, 60.0, 9.999, 60.001, 30.0, float("inf"), -float("inf"), None]
    frame = pl.DataFrame({"age": ages})
    question = Question(["mean", "median"], "age", 10, 60)
    assert shares(estimates(frame, question)) == (None, pytest.approx(4 / 7))
    unclamped = Question(["count", "histogram"], "age", 10, 60, edges=(0, 20), by=("city",))
    assert shares(estimates(PEOPLE, unclamped)) == (pytest.approx(6 / 9),)


def test_filters_choose_the_rows_that_shares_are_of() -> None:
    """Four of nine rows are of people over 20: two of them in declared groups."""
    question = Question(["mean"], "age", 10, 60, by=("city",), where="age > 20")
    assert shares(estimates(PEOPLE, question)) == pytest.approx((2 / 4, 1 / 2))


def test_rows_of_a_person_are_seen_up_to_ten_times_what_counts() -> None:
    """One of 100 persons has 1,000 rows, of which 20 are seen and 2 count."""
    frame = pl.DataFrame({"who": [*range(99), *[99] * 1_000], "age": [30] * 1_099})
    question = Question(["mean"], "age", 10, 60)
    left_out = estimates(frame, question, person="who", max_rows=2)
    assert shares(left_out) == pytest.approx((1 - 101 / 119, 0.0))
    in_all = estimates(frame, question, person="who", max_total_rows=3)
    assert shares(in_all) == pytest.approx((1 - 102 / 129, 0.0))


# Each of 3 persons has 4 rows, one in each city. Their sums are 4, 40 and 400.
VISITS = pl.DataFrame(
    {
        "who": [who for who in range(3) for _ in range(4)],
        "city": ["cork", "dublin", "galway", "sligo"] * 3,
        "age": [10**who for who in range(3) for _ in range(4)],
    }
)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "bounds", "by", "max_groups", "expected"),
    [
        ("sum", (4, 400), (), None, (0.0, 0.0)),
        ("sum", (4.5, 399.5), (), None, (0.0, 2 / 3)),
        ("mean", (0, 39), (), None, (0.0, 1 / 3)),
        ("sum", (0, 39), ("city",), 1, (1 - 3 / 12, 1 / 3)),
        ("mean", (0, 39), ("city",), 2, (1 - 6 / 12, 1 / 3)),
    ],
)
def test_values_of_persons_leave_out_rows_and_are_clamped(
    kind: str,
    bounds: tuple[float, float],
    by: tuple[str, ...],
    max_groups: int | None,
    expected: tuple[float, ...],
) -> None:
    question = Question(["mean"], "age", *bounds, by=by, per_person=kind)
    left_out = estimates(VISITS, question, person="who", max_groups=max_groups)
    assert shares(left_out) == pytest.approx(expected)
    assert ("persons' sums of age" in left_out.describe(is_only=True)) == (kind == "sum")


def test_consistent_numbers_leave_out_the_rows_of_their_whole_table() -> None:
    questions = [Question(["count"]), Question(["count"], by=("city",))]
    request = Request(SURE, questions, CITIES, consistent=True, left_out=0.5)
    (left_out,) = publish(PEOPLE, request).left_out
    assert (left_out.by, shares(left_out)) == (("city",), (pytest.approx(6 / 9),))


def test_each_table_has_its_shares_from_one_count_of_all_rows() -> None:
    questions = [MEAN_AGE, Question(["count"], by=("city", "band")), Question(["count"])]
    derived = {"band": "band(age, 18, 65)"}
    request = Request(SURE, questions, CITIES, derived=derived, left_out=0.1)
    # The number of all rows, the rows of two tables, and the values of one.
    assert len(request.hidden_counts()) == 4
    assert len(request.plans()) == len(Request(SURE, questions, CITIES, derived=derived).plans())
    table = publish(PEOPLE, request)
    assert [shares(one) for one in table.left_out] == [
        pytest.approx((6 / 9, 2 / 3)),
        pytest.approx((7 / 9,)),
    ]
    assert [sentence.partition(":")[0] for sentence in table.left_out_in_words] == [
        "Mean of age, by city",
        "Count of rows, by city and band",
    ]


def test_estimates_name_what_differs_between_two_tables() -> None:
    """Three tables count the rows of cities, the second of them with less of each person."""
    few = replace(BY_CITY, max_groups=1, max_total_rows=1)
    adults = replace(BY_CITY, where="age >= 18")
    request = Request(
        SURE, [BY_CITY, few, adults], CITIES, left_out=0.1, person="who", max_total_rows=2
    )
    names = [text.partition(": about ")[0] for text in publish(PEOPLE, request).left_out_in_words]
    assert names == [
        "Count of rows, by city",
        "Count of rows, by city, of each person at most 1 group and 1 row in all groups",
        "Count of rows where age >= 18, by city",
    ]


def test_a_row_of_the_table_has_the_remarks_about_its_own_number() -> None:
    """Of 9 rows, 6 are in no city, and two of the other three ages are clamped; noise is 0."""
    in_city = Question(["mean", "count"], "age", 10, 60, by=("city",))
    questions = [in_city, Question(["histogram"], "age", edges=[0, 100]), Question(["persons"])]
    limit: dict[str, Any] = {"person": "who", "max_total_rows": 9}
    table = publish(
        PEOPLE, Request(SURE, questions, CITIES, left_out=0.1, undeclared=True, **limit)
    )
    margin = "the margin does not cover {}rows of a person beyond those that count"
    rows = r"about 66\.66\d* % ± \S+ % of the rows are not counted"
    clamped = r"about 66\.66\d* % ± \S+ % of the values of age are clamped"
    mean = f"{margin.format('clamped values and ')}; {rows}; {clamped}"
    count = f"{margin.format('')}; {rows}"
    histogram = rf"{margin.format('')}; about 0\S* % ± \S+ % of the rows are not counted"
    # The last two are the persons, all of whom count, and the rows in no city.
    patterns = [mean, count, mean, count, histogram, "", margin.format("")]
    notes = [row["note"] or "" for row in table.rows()]
    for note, pattern in zip(notes, patterns, strict=True):
        assert re.fullmatch(pattern, note), note


def test_no_discovered_group_leaves_out_all_rows() -> None:
    request = Request(
        30.0, [Question(["mean"], "age", 0, 9, by=("city",))], {"city": "discover"}, delta=1e-12,
        missing="drop", left_out=0.9,
    )  # fmt: skip
    table = publish(PEOPLE, request)
    assert not table.published
    (left_out,) = table.left_out
    assert left_out.rows is not None
    assert left_out.rows.value + left_out.rows.margin == pytest.approx(1)
    assert left_out.rows.value > 0.5


# Budget and margins -------------------------------------------------------------------------------

UNITS: list[dict[str, Any]] = [
    {},
    {"person": "who", "max_groups": 1, "max_rows": 2},
    {"person": "who", "max_groups": 2, "max_rows": 2, "neighbours": "replace"},
]


@pytest.mark.parametrize("unit", UNITS)
def test_the_estimates_get_their_share_of_the_budget(unit: dict[str, Any]) -> None:
    sums = Question(["sum", "median"], "age", 0, 100, by=("city",), weight=3.0)
    request = Request(2.0, [sums, BY_CITY], CITIES, left_out=0.25, **unit)
    hidden = [query.losses[0].amount for query in request.hidden_counts().values()]
    assert sum(map(Fraction, hidden)) <= Fraction(1, 2)
    assert math.isclose(sum(hidden), 0.5)
    assert request.left_out_cost == "epsilon 0.5"
    assert 1.999 < (request.cost().floats()["epsilon"] or 0.0) <= 2.0
    in_rho = Request(None, [BY_CITY], CITIES, rho=0.4, left_out=0.25, mechanism="gaussian", **unit)
    assert in_rho.left_out_cost == "rho 0.1"
    assert sum(Fraction(q.rho or 0) for q in in_rho.hidden_counts().values()) <= Fraction("0.1")


def test_noise_is_for_the_rows_of_a_person_in_all_groups() -> None:
    """Of a person, 2 x 3 rows count, and 60 are seen.

    A person in another's place moves the counts of values inside and outside.
    """
    unit: dict[str, Any] = {"person": "who", "max_groups": 2, "max_rows": 3}
    request = Request(1.0, [MEAN_AGE], CITIES, left_out=0.1, **unit)
    queries = request.hidden_counts().values()
    assert [query.mechanism.sensitivity for query in queries] == [60, 6, 6]
    assert all(isinstance(query.mechanism, DiscreteLaplaceMechanism) for query in queries)
    seen, counted, values = (query.losses[0].amount for query in queries)
    # The sum of the margins of two counts is the least at this quotient.
    assert (seen / counted, values / counted) == pytest.approx((math.sqrt(10), 1.0))
    replaced = replace(request, neighbours="replace")
    sensitivities = [q.mechanism.sensitivity for q in replaced.hidden_counts().values()]
    assert sensitivities == [60, 6, 12]
    in_all = replace(request, max_groups=None, max_rows=None, max_total_rows=4)
    sensitivities = [q.mechanism.sensitivity for q in in_all.hidden_counts().values()]
    assert sensitivities == [40, 4, 4]


def test_noise_is_for_the_groups_that_were_discovered() -> None:
    unit: dict[str, Any] = {"person": "who", "max_groups": 2, "max_rows": 3, "delta": 1e-6}
    request = Request(1.0, [MEAN_AGE], {"city": "discover"}, left_out=0.1, **unit)
    discovered = request.hidden_counts({("city",): (("cork",),)}).values()
    for queries, sensitivity in ((request.hidden_counts().values(), 6), (discovered, 3)):
        assert [query.mechanism.sensitivity for query in queries] == [60, *[sensitivity] * 2]


@pytest.mark.sample(3)
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
@pytest.mark.parametrize("rows", [(200, 60, 8), (40, 40, 0), (15, 2, 2), (3, 0, 0)])
def test_the_margins_of_shares_cover_them(mechanism: str, rows: tuple[int, int, int]) -> None:
    """A test fails with a probability below 1e-9: of the margins at least 80 % must hold."""
    in_all, counted, clamped = rows
    delta = 0.0 if mechanism == "laplace" else 1e-3
    request = Request(
        3.0, [MEAN_AGE], CITIES, confidence=0.8, left_out=0.5, mechanism=mechanism, delta=delta
    )
    (coverage,) = request.coverage
    exact = (np.array(in_all), np.array(counted), np.array([clamped, counted - clamped, 0]))
    answers = dict(zip(coverage.questions, exact, strict=True))
    covered = np.zeros(2)
    repeats = 400 if LONG else 150
    queries = request.hidden_counts()
    for _ in range(repeats):
        noisy = {
            question: Noisy(query, query.draw(None, answers[question]))
            for question, query in queries.items()
        }
        left_out = LeftOut.of(coverage, noisy, request.confidence)
        truths = (1 - counted / in_all, clamped / counted if counted else None)
        found = (left_out.rows, left_out.clamped[0][1])
        for index, (truth, share) in enumerate(zip(truths, found, strict=True)):
            assert share is not None
            assert 0 <= share.value <= 1
            covered[index] += truth is None or abs(share.value - truth) <= share.margin
    least = scipy.stats.binom.ppf(1e-9, repeats, request.confidence)
    assert covered.min() >= least


def test_margins_are_not_wider_than_the_noise_makes_them() -> None:
    """With many rows, a margin is about the noise of both counts over the number of rows."""
    request = Request(1.0, [MEAN_AGE], CITIES, left_out=0.1)
    everything, counted, _ = request.hidden_counts().values()
    share = left_out_share(Noisy(everything, [10**6]), Noisy(counted, [700_000]), 0.95)
    error = everything.error(single_confidence(0.95, 2))
    assert share.value == pytest.approx(0.3)
    assert share.margin == pytest.approx(1.7 * error / 10**6, rel=0.01)


NOTHING_LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "all rows": (
        {"publish": [Question(["count"])]},
        "Nothing uses left_out: no count leaves out rows",
    ),
    "only groups": (
        {
            "publish": [Question(["groups"], by=("city",))],
            "groups": {"city": "discover"},
            "delta": 1e-6,
        },
        "Nothing uses left_out",
    ),
    "a percentage": ({"left_out": 10}, "write 0.1 for 10 %"),
    "all of the budget": ({"left_out": 1.0}, "left_out must be between 0 and 1, got 1.0"),
    "errors": (
        {"epsilon": None, "publish": [Question(["count"], by=("city",), error=5)]},
        "left_out needs a part of a budget: give questions weights in place of errors",
    ),
}


@pytest.mark.parametrize("problem", NOTHING_LEFT_OUT)
def test_estimates_of_nothing_are_refused(problem: str) -> None:
    changes, message = NOTHING_LEFT_OUT[problem]
    settings = {"epsilon": 1.0, "publish": [BY_CITY], "groups": CITIES, "left_out": 0.1}
    with pytest.raises(ArgumentError, match=message):
        Request(**{**settings, **changes})


def test_every_output_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    csv_file(tmp_path)
    options = [
        *("people.csv", "--column", "age", "--query", "mean", "--lower", "10", "--upper", "60"),
        *("--group-by", "city=cork,dublin", "--epsilon", "1e6"),
    ]
    outputs = ["--output", "table.csv", "--record", "record.json", "--html", "page.html"]
    assert cli.main(["release", *options, "--left-out", *outputs]) == 0
    shown = capsys.readouterr().out
    sentence = re.compile(
        r"About 66\.66\d* % ± [\d.e-]+ % of the rows are not counted; "
        r"about 66\.66\d* % ± [\d.e-]+ % of the values of age are clamped"
    )
    assert sentence.search(shown)
    assert "mean 9e+05, estimates 1e+05." in shown
    remark = re.compile(sentence.pattern.replace("About", "about", 1))
    assert all(remark.search(line) for line in Path("table.csv").read_text().splitlines()[1:])
    record = json.loads(Path("record.json").read_text())
    assert record["left_out_cost"] == "epsilon 1e+05"
    (left_out,) = record["left_out"]
    assert (left_out["by"], left_out["where"]) == (["city"], None)
    assert left_out["rows"]["value"] == pytest.approx(2 / 3)
    (clamped,) = left_out["clamped"]
    assert (clamped["column"], clamped["lower"], clamped["upper"]) == ("age", 10, 60)
    assert clamped["value"] == pytest.approx(2 / 3)
    page = Reader(Path("page.html").read_text()).text
    assert sentence.search(page)
    assert "Estimates of what is left out epsilon 1e+05" in page
    assert cli.main(["release", *options, "--left-out", "0.3", "--check"]) == 0
    assert "epsilon 3e+05 estimates the share of rows that no number" in capsys.readouterr().out


def test_a_request_in_toml_estimates_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "request.toml"
    path.write_text(
        'epsilon = 1e6\nleft_out = 0.2\n[groups]\ncity = ["cork", "dublin"]\n'
        '[[publish]]\nstatistics = ["count"]\nby = ["city"]\n'
    )
    request = load_request(path).request
    table = publish(PEOPLE, request)
    assert table.left_out_in_words[0].startswith("About 66.66")
    assert table.left_out_in_words[0] in str(table)
    assert "epsilon 2e+05 of it estimates the share of rows" in str(request)
    path.write_text(request_toml(table.record()["request"]))
    assert load_request(path).request == request
    older = {name: part for name, part in table.record().items() if "left_out" not in name}
    assert "66.66" not in render_record(older)


def test_margins_cover_whatever_the_noise_within_its_errors() -> None:
    """Counts without noise are 0 <= counted <= all rows, but noisy counts may not be."""
    request = Request(1.0, [MEAN_AGE], CITIES, left_out=0.1)
    everything, counted, values = request.hidden_counts().values()
    both = single_confidence(0.95, 2)
    error, part_error = everything.error(both), counted.error(both)
    value_error = values.error(both)
    rng = np.random.default_rng()
    for _ in range(2_000):
        rows = int(rng.integers(1, 400))
        part = int(rng.integers(0, rows + 1))
        outside = int(rng.integers(0, part + 1))
        noise = rng.choice([-1, -0.5, 0, 1], size=4) * [error, part_error, value_error, value_error]
        in_all, in_part, inside, beyond = np.trunc(noise).astype(int).tolist()
        share = left_out_share(
            Noisy(everything, [rows + in_all]), Noisy(counted, [part + in_part]), 0.95
        )
        assert abs(share.value - (1 - part / rows)) <= share.margin
        clamped = clamped_share(Noisy(values, [part - outside + inside, outside + beyond]), 0.95)
        if part:
            assert abs(clamped.value - outside / part) <= clamped.margin
        assert min(share.margin, clamped.margin) > 1e-3, "the noise is seen"


def test_a_negative_count_leaves_no_margin_of_nothing() -> None:
    (*_, values) = Request(1.0, [MEAN_AGE], CITIES, left_out=0.1).hidden_counts().values()
    error = values.error(single_confidence(0.95, 2))
    share = clamped_share(Noisy(values, [5_000, -math.ceil(error) - 1]), 0.95)
    assert share.value == 0
    assert share.margin == pytest.approx(error / 5_000, rel=0.1)
