"""Rows that no number counts: those in no declared group."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.html_reader import Reader
from support.payments import losses_paid

from dpnoise import cli
from dpnoise.core.errors import ArgumentError, BudgetError
from dpnoise.statistics import Question, Request, create_ledger, load_request, open_ledger, publish
from dpnoise.statistics.engines import Files
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.report import render_record, request_toml

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


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_counts_the_same_rows_in_no_declared_group(name: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path)
    assert count_undeclared(source) == 6
    assert count_undeclared(source, groups={"city": ["galway", "cork"]}) == 5
    # At most one or three rows of each person.
    of_persons = {"person": "who", "max_groups": 1}
    assert count_undeclared(source, max_rows=1, **of_persons) == 2
    assert count_undeclared(source, max_rows=3, **of_persons) == 5
    assert count_undeclared(source, person="who", max_total_rows=3) == 5
    assert count_undeclared(source, person="who", max_rows=4, max_total_rows=4) == 6


def test_only_text_that_is_a_key_to_the_letter_is_in_its_group(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text("city\n" + "\n".join(["01", "1", "1.0", '"1 "', '""', "NA"]))
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
        "give weights in place of errors",
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
    assert f"all rows where {IN_NO_GROUP}" in capsys.readouterr().out


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
