"""The number of different values of a column: what counts, for whom, and who is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from support.choices import sample_parameters

from dpnoise import cli
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files, tally
from dpnoise.statistics.plan import Distinct, Grouping, Plan, Rows, Unit
from dpnoise.statistics.report import render_record

STAYS = {
    "who": [1, 1, 1, 1, 2, 2],
    "ward": ["a", "a", "a", "b", "b", "c"],
    "code": ["I10", "I10", "i10", "E11", "E11", None],
}
WARDS = Grouping("ward", ("a", "b", "d"))
CODES = Question(["distinct"], "code")
SURE: dict[str, Any] = {"epsilon": 1e6, "missing": "drop"}


def stays_on(folder: Path) -> dict[str, Callable[[pl.DataFrame], Any]]:
    """Return functions that give the same rows to every engine and reader."""

    def written(name: str, write: Callable[[pl.DataFrame], Callable[[Path], Any]]) -> Any:
        def read(frame: pl.DataFrame) -> Files:
            write(frame)(folder / name)
            return Files(folder / name)

        return read

    return {
        "Polars": lambda frame: frame,
        "Polars lazy": lambda frame: frame.lazy(),
        "pandas": lambda frame: frame.to_pandas(),
        "Arrow": lambda frame: frame.to_arrow(),
        "DuckDB": lambda frame: duckdb.from_arrow(frame.to_arrow()),
        "CSV": written("stays.csv", lambda frame: frame.write_csv),
        "Parquet": written("stays.parquet", lambda frame: frame.write_parquet),
        "JSON": written("stays.jsonl", lambda frame: frame.write_ndjson),
    }


ENGINES = tuple(stays_on(Path()))


@pytest.mark.parametrize("engine", sample_parameters(ENGINES, 2))
def test_every_engine_counts_different_values_to_the_letter(engine: str, tmp_path: Path) -> None:
    source = stays_on(tmp_path)[engine](pl.DataFrame(STAYS))
    unit = Unit(("who",), 3, 4)
    for by, of, expected in (
        ((), unit, 3),
        ((WARDS,), unit, [2, 1, 0]),
        ((WARDS,), None, [2, 1, 0]),
    ):
        (number,) = tally(source, Plan((Distinct("code"),), by, "drop", of, text=("code",))).answers
        assert number.tolist() == expected  # type: ignore[union-attr]


def test_partitions_of_dask_have_values_in_common() -> None:
    dask = pytest.importorskip("dask.dataframe")
    frame = dask.from_pandas(pd.DataFrame(STAYS), npartitions=3)
    asks = (Distinct("code"), Rows())
    number, rows = tally(frame, Plan(asks, missing="drop", text=("code",))).answers
    assert (int(number), int(rows)) == (3, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "number"),
    [
        (["07", "7", "7.0", "7 "], 4),
        (["a\0", "a"], 2),
        ([2**63 - 1, 2**63 - 2, 5, 5], 3),
        ([1.0, -0.0, 0.0], 2),
        ([True, False, True], 2),
    ],
)
def test_text_is_compared_to_the_letter_and_numbers_by_value(
    values: list[Any], number: int
) -> None:
    plan = Plan((Distinct("code"),), text=("code",))
    for frame in (
        pl.DataFrame({"code": values}),
        duckdb.sql("SELECT unnest($v) AS code", params={"v": values}),
    ):
        assert int(tally(frame, plan).answers[0]) == number  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["07", "7"], "text such as 07"),
        ([0.5, 1.0], "whole numbers below 2\\^53"),
        ([2.0**53], "whole numbers below 2\\^53"),
        ([[1], [2]], "which is not grouped by"),
    ],
)
def test_values_that_a_reader_may_have_changed_are_refused(values: list[Any], words: str) -> None:
    """One row would decide whether 07 and 7, or 2^53 and 2^53 + 1, are different."""
    with pytest.raises(ArgumentError, match=words):
        tally(pl.DataFrame({"code": values}), Plan((Distinct("code"),)))


# Persons ------------------------------------------------------------------------------------------

NEIGHBOURS = {"add-remove": [("q", "a", "z")], "replace": [("p", city, "z") for city in "ef"]}


@pytest.mark.sample(2)
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize(("total", "most"), [(None, 6), (4, 4)])
def test_one_person_reaches_the_sensitivity_and_does_not_exceed_it(
    neighbours: str, total: int | None, most: int
) -> None:
    """Person p has five values of their own in each of five groups."""
    base = [("p", city, f"{city}{n}") for city in "abcde" for n in range(5)] + [("q", "a", "z")]
    question = Question(["distinct"], "code", by=["ward"])
    request = Request(
        1.0, [question], {"ward": list("abcdef")}, person="who", max_groups=2, max_rows=3,
        max_total_rows=total, neighbours=neighbours,
    )  # fmt: skip
    (plan,) = request.plans().values()
    others = [*NEIGHBOURS[neighbours], *base[-1:]]
    numbers = [
        tally(pl.DataFrame(rows, ["who", "ward", "code"], orient="row"), plan).answers[0]
        for rows in (base, list(dict.fromkeys(others)))
    ]
    change = int(abs(numbers[0] - numbers[1]).sum())  # type: ignore[operator]
    query: Any
    ((_, query),) = request.prepare()
    assert change <= query.mechanism.sensitivity
    if neighbours == "add-remove":
        assert change == query.mechanism.sensitivity == most


def test_rows_with_the_same_value_use_up_the_bound_once() -> None:
    rows = [("p", "I10")] * 99 + [("p", "E11"), ("q", "I10")]
    frame = pl.DataFrame(rows, ["who", "code"], orient="row")
    plan = Plan((Distinct("code"),), unit=Unit(("who",), 1, 2), text=("code",))
    (number,) = tally(frame, plan).answers
    assert int(number) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("without_id", ["error", "own"])
def test_each_row_without_an_id_is_a_person_or_an_error(without_id: str) -> None:
    rows = [(None, "a"), (None, "b"), ("p", "c"), ("p", "d")]
    plan = Plan((Distinct("code"),), unit=Unit(("who",), 1, 1, without_id))
    frame = pl.DataFrame(rows, ["who", "code"], orient="row")
    if without_id == "own":
        assert int(tally(frame, plan).answers[0]) == 3  # type: ignore[arg-type]
    else:
        with pytest.raises(ArgumentError, match="do not identify a person"):
            tally(frame, plan)


def test_a_missing_value_is_an_error_with_its_row(tmp_path: Path) -> None:
    source = stays_on(tmp_path)["CSV"](pl.DataFrame(STAYS))
    for unit in (None, Unit(("who",), 1, 9)):
        with pytest.raises(ArgumentError, match=r"Row 6 of column 'code'.* has no value"):
            tally(source, Plan((Distinct("code"),), unit=unit))
        one_ward = Plan((Distinct("code"),), (Grouping("ward", ("a",)),), unit=unit)
        assert tally(source, one_ward).answers[0].tolist() == [2]  # type: ignore[union-attr]


# Requests -----------------------------------------------------------------------------------------


def test_a_request_publishes_them_next_to_other_statistics() -> None:
    """With this epsilon no noise is left: a number is off with a probability below 10^-6."""
    questions = [
        Question(["distinct"], "code", by=["ward"], where="ward != 'c'"),
        Question(["count", "persons"], by=["ward"]),
        CODES,
    ]
    request = Request(
        publish=questions, groups={"ward": ["a", "b"]}, person="who", max_groups=2, max_rows=4,
        text_columns=["code"], **SURE,
    )  # fmt: skip
    numbers = {
        (one.release.query, *one.group): one.release.value
        for one in publish(pl.DataFrame(STAYS), request)
    }
    assert numbers["distinct", "a"] == 2
    assert numbers["distinct", "b"] == 1
    assert numbers["distinct",] == 3
    assert numbers["count", "a"] == 3
    assert numbers["persons", "b"] == 2


def test_groups_may_be_discovered() -> None:
    rows = {"ward": ["a"] * 200, "code": ["x", "y"] * 100}
    question = Question(["distinct"], "code", by=["ward"])
    request = Request(publish=[question], groups={"ward": "discover"}, delta=1e-6, **SURE)
    (one,) = publish(pl.DataFrame(rows), request)
    assert (one.group, one.release.value) == (("a",), 2)


@pytest.mark.parametrize(
    ("question", "options", "words"),
    [
        ({"column": None}, {}, "A distinct needs a column"),
        ({"statistics": ["distinct", "count"], "column": "code"}, {}, "in a separate question"),
        ({"column": "who"}, {"person": "who", "max_rows": 1}, "cannot be published too"),
        ({"column": "band"}, {"derived": {"band": "band(x, 0, 1)"}}, "is derived"),
        ({"where": "code > 5"}, {}, "is used as a number and as text"),
        ({}, {"left_out": 0.1}, "Nothing uses left_out"),
    ],
)
def test_what_cannot_be_counted_is_said_before_data_is_read(
    question: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        Request(
            1.0, [Question(**{"statistics": ["distinct"], "column": "code", **question})], **options
        )


def test_a_column_is_not_read_as_numbers_and_to_the_letter() -> None:
    with pytest.raises(ArgumentError, match="also a column of numbers"):
        Request(1.0, [CODES, Question(["count"], "code")])


def test_an_error_that_is_asked_for_sets_the_budget() -> None:
    request = Request(None, [Question(["distinct"], "code", error=10)])
    ((_, query),) = request.prepare()
    assert query.error(request.confidence) <= 10  # type: ignore[union-attr]


def test_outputs_say_what_was_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stays.csv"
    pl.DataFrame(STAYS).write_csv(path)
    command = ["release", str(path), "--column", "code", "--query", "distinct"]
    assert cli.main([*command, "--missing", "drop", "--json"]) == 0
    page = render_record(json.loads(capsys.readouterr().out))
    assert "Number of different values of code" in page
    assert cli.main([*command, "--missing", "drop"]) == 0
    assert capsys.readouterr().out.startswith("code ")
    assert cli.main([*command, "--check", "--rows", "5000", "--within", "5%"]) == 0
    assert "% of the rows" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="Did you mean 'distinct'"):
        Question(["nunique"], "code")
