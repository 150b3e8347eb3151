"""Quirks of readers and frames through which one row could change the meaning of others."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.choices import every_nth_case, sample_cases
from support.engine_list import duckdb_frame
from support.tally_reference import assert_same

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files, count_persons_by_group, tally
from dpnoise.statistics.plan import Grouping, Plan, Rows, Sums, Unit

UNIT = Unit(("who",), 1, 1)
BY_CITY = Plan((Rows(),), (Grouping("city", ("a", "b")),), unit=UNIT)
FRAMES: dict[str, Any] = {
    "pandas": pd.DataFrame,
    "Polars": pl.DataFrame,
    "Arrow": pa.table,
    "DuckDB": lambda columns: duckdb_frame(pa.table(columns)),
}


def random_cities(number: int) -> list[str]:
    return [str(city) for city in np.random.default_rng().choice(["a", "b"], number)]


def test_numbers_that_pandas_coerces_do_not_depend_on_other_rows() -> None:
    """docs/publishing.md cleans so: a cell that is not a number is missing, and others stay."""
    cells = ["€ 51.97", "31", "€ 1,200", "9007199254740993", "0.1"]
    plan = Plan((Rows(), Sums("cost", grid=2.0**-10, least=0, most=2**40)), missing="drop")

    def sum_of(texts: Sequence[str | None]) -> int:
        amounts = pd.Series(texts, dtype=str).str.removeprefix("€").str.replace(",", "")
        frame = pd.DataFrame({"cost": pd.to_numeric(amounts, errors="coerce")})
        _, cost = tally(frame, plan).answers
        return int(cost.total)  # type: ignore[union-attr]

    for text in ("unknown", "", None, "1e400", "-7", "18446744073709551616", "0.5", "True"):
        assert sum_of([*cells, text]) - sum_of(cells) == sum_of([text, "0"])


def test_categories_of_floats_are_floats() -> None:
    """An empty cell turns integers into floats, and rounds the large ones."""
    ids = pd.Series([float(2**53 + n) for n in range(4)], dtype="category")
    with pytest.raises(ArgumentError, match="whole numbers below"):
        tally(pd.DataFrame({"who": ids, "city": random_cities(4)}), BY_CITY)


def test_categories_of_integers_are_the_integers() -> None:
    numbers = [n // 3 for n in range(300)]
    plain = pd.DataFrame({"who": numbers, "city": random_cities(300)})
    categorical = plain.assign(who=plain["who"].astype("category"))
    assert_same(tally(categorical, BY_CITY), tally(plain, BY_CITY))
    missing = pd.concat([categorical, pd.DataFrame({"who": [None], "city": ["a"]})])
    missing["who"] = missing["who"].astype("category")
    with pytest.raises(ArgumentError, match='without_id="own"'):
        tally(missing, BY_CITY)


@pytest.mark.parametrize("odd", [[7, 7.0], [True, 1], [Decimal("7.0")], [b"a"], [("a",)]])
def test_objects_that_are_not_all_text_are_refused_in_any_row(odd: list[Any]) -> None:
    ids = [*(f"p{n}" for n in range(200)), *odd]
    frame = pd.DataFrame({"who": pd.Series(ids, dtype=object), "city": "a"})
    with pytest.raises(ArgumentError, match="not all text"):
        tally(frame, BY_CITY)
    with pytest.raises(ArgumentError, match="not all text"):
        count_persons_by_group(frame, ["who"], None)
    mixed = frame.assign(who=frame["who"].astype("category"))
    with pytest.raises(ArgumentError, match=r"not all text"):
        tally(mixed, BY_CITY)


def test_columns_of_duckdb_that_differ_by_capitals_are_refused() -> None:
    relation = duckdb.connect().sql('SELECT 1 AS who, unnest([1, 2]) AS "WHO"')
    for name in ("who", "WHO"):
        for plan in (Plan((Rows(),), unit=Unit((name,))), Plan((Sums(name, 1.0, 0, 9),))):
            with pytest.raises(ArgumentError, match="differ only by capitals"):
                tally(relation, plan)
        with pytest.raises(ArgumentError, match="differ only by capitals"):
            count_persons_by_group(relation, [name], None)


@pytest.mark.sample(1)
@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_the_unit_of_a_zoned_id_changes_nothing(unit: str) -> None:
    start = datetime(2024, 2, 25, 10, 30, tzinfo=UTC)
    ids = [start + timedelta(minutes=n // 5) for n in range(500)]
    columns = {"city": random_cities(500)}
    expected, result = (
        tally(pa.table({**columns, "who": pa.array(ids, pa.timestamp(time_unit, "UTC"))}), BY_CITY)
        for time_unit in ("us", unit)
    )
    assert_same(result, expected)


def test_the_scale_of_a_decimal_id_changes_nothing() -> None:
    """DuckDB rounds long decimals twice when it casts them to floats."""
    rng = np.random.default_rng()
    ids = [10**12 * int(n) + 7 for n in rng.integers(10**16, 10**17, 200)] * 5
    columns = {"city": random_cities(1_000)}
    kinds: list[tuple[Any, Any]] = [
        (Decimal, pa.decimal128(38, 0)),
        (Decimal, pa.decimal128(38, 2)),
        (str, pa.string()),
    ]
    tables = [
        pa.table({**columns, "who": pa.array(map(convert, ids), kind)}) for convert, kind in kinds
    ]
    first, *others = (tally(table, BY_CITY) for table in tables)
    for other in others:
        assert_same(other, first)


# Text that a reader may parse ---------------------------------------------------------------------

AMBIGUOUS = ["07", "7.0", " 7", "+7", "-0", "1e3", "1,234", "7_0", "10:30", "2024-01-01T00:00:00",
             "01/02/2024", "2024-01-01 10:30", "True", "FALSE", "-", ".",
             "7\v", "\xa07"]  # fmt: skip
PLAIN = ["7", "-7", "0", "2024-02-29", "true", "p7", "7b", "Yes!", "e\u0301", "NA", "12 Main St"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", FRAMES)
def test_ambiguous_text_must_be_declared_to_be_text(engine: str) -> None:
    declared = Unit(("who",), text=("who",))
    undeclared: list[Callable[[Any], object]] = [
        lambda frame: tally(frame, BY_CITY),
        lambda frame: count_persons_by_group(frame, ["who"], None),
        lambda frame: count_persons_by_group(frame, ["city"], UNIT),
    ]
    for text in every_nth_case(4, AMBIGUOUS):
        frame = FRAMES[engine]({"who": [text, "word"], "city": ["a", "a"]})
        for ask in sample_cases(undeclared, 1):
            with pytest.raises(ArgumentError, match=r"text_columns=\['who'\]"):
                ask(frame)
        (counts,) = tally(frame, Plan((Rows(),), unit=declared)).answers
        assert int(counts) == 2, text  # type: ignore[arg-type]
        assert sorted(count_persons_by_group(frame, ["who"], None, text=["who"]).keys) == sorted(
            [(text,), ("word",)]
        )


@pytest.mark.sample(2)
@pytest.mark.parametrize("word", ["t", "F", "yes", "No"])
def test_duckdb_parses_more_words_as_booleans(word: str, tmp_path: Path) -> None:
    path = tmp_path / "words.csv"
    path.write_text(f"who\n{word}\n{word}\n")
    assert [str(kind) for kind in duckdb.read_csv(str(path), header=True).types] == ["BOOLEAN"]
    columns = {"who": [word, "m"]}
    with pytest.raises(ArgumentError, match=r"text_columns=\['who'\]"):
        count_persons_by_group(FRAMES["DuckDB"](columns), ["who"], None)
    assert sorted(count_persons_by_group(FRAMES["pandas"](columns), ["who"], None).keys) == sorted(
        [(word,), ("m",)]
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", FRAMES)
def test_other_text_needs_no_declaration(engine: str) -> None:
    frame = FRAMES[engine]({"who": PLAIN, "city": ["a"] * len(PLAIN)})
    (counts,) = tally(frame, BY_CITY).answers
    assert np.asarray(counts).tolist() == [len(PLAIN), 0]
    assert sorted(count_persons_by_group(frame, ["who"], None).keys) == [
        (text,) for text in sorted(PLAIN)
    ]


@pytest.mark.parametrize("engine", FRAMES)
def test_a_column_that_is_declared_to_be_text_must_hold_text(engine: str) -> None:
    frame = FRAMES[engine]({"who": [1, 2], "city": [1, 2]})
    request = Request(
        1.0, [Question(["count"], by=("city",))], {"city": "discover"}, person="who",
        max_groups=1, max_rows=1, delta=1e-6, text_columns=["who"],
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="'who' is declared to be text"):
        publish(frame, request)
    with pytest.raises(ArgumentError, match="'city' is declared to be text"):
        count_persons_by_group(frame, ["city"], None, text=["city"])


def test_the_format_of_a_file_declares_its_types(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("who,city\n07,a\n7,a\n7.0,a\n")
    (counts,) = tally(Files(path), BY_CITY).answers
    assert np.asarray(counts).tolist() == [3, 0]


def test_a_declaration_that_nothing_uses_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Nothing uses text_columns='x'"):
        Request(1.0, [Question(["count"])], text_columns=["x"])
    with pytest.raises(ArgumentError, match="a list of names"):
        Request(1.0, [Question(["count"])], text_columns="x")


def test_groups_are_not_discovered_in_a_column_whose_values_are_published() -> None:
    """Its text is read as numbers for the values, and as text for the groups."""
    questions = [Question(["count"], by=("x",)), Question(["mean"], "x", lower=0, upper=9)]
    with pytest.raises(ArgumentError, match="cannot be discovered where its values are published"):
        Request(1.0, questions, {"x": "discover"}, delta=1e-6)


@pytest.mark.parametrize(
    "ids",
    [pa.array([Decimal(1)], pa.decimal256(60, 30)), pa.array(np.ones(1, np.float16))],
    ids=["decimal256", "half floats"],
)
def test_ids_that_duckdb_would_round_are_refused(ids: Any, tmp_path: Path) -> None:
    path = tmp_path / "visits.parquet"
    parquet.write_table(pa.table({"who": ids}), path)
    with pytest.raises(ArgumentError, match="would be rounded"):
        tally(Files(path), Plan((Rows(),), unit=UNIT))
    with pytest.raises(ArgumentError, match="would be rounded"):
        count_persons_by_group(Files(path), ["who"], None)


def test_an_error_keeps_no_error_that_quotes_the_data() -> None:
    secret = duckdb.sql("SELECT CAST('4711' || 'secret' AS DOUBLE) AS x")
    with pytest.raises(ArgumentError, match="ConversionException") as raised:
        tally(secret, Plan((Sums("x", 1.0, 0, 1),)))
    assert raised.value.__context__ is None
    assert sys.exception() is None
