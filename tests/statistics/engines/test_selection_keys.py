"""Which rows and groups of a person count depends on that person's rows, not on column types."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.choices import every_nth_case, sample_cases, sample_parameters
from support.engine_list import duckdb_frame
from support.tally_reference import assert_same

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, count_persons_by_group, tally
from dpnoise.statistics.engines.persons import InDuckDB
from dpnoise.statistics.plan import (
    Cells,
    Combinations,
    Grouping,
    PersonValue,
    Plan,
    Rows,
    Sums,
    Tally,
    Unit,
)

SIZE = 4_000
ASKS = (Rows(), Sums("x", 0.5, -8, 8, squares=True), Cells("x", 1.0, -4, 4))
UNIT = Unit(("who",), 2, 2, without_id="own")
DAYS = [date(2024, 2, 25) + timedelta(days=n) for n in range(6)]

NUMBERS = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "float32": pa.float32(),
    "decimal": pa.decimal128(20, 0),
    "decimal with places": pa.decimal128(38, 7),
    "text": pa.string(),
    "text of floats": pa.float64(),  # Written as 7.0.
    "dictionary": pa.dictionary(pa.int32(), pa.int64()),
    "dictionary of text": pa.dictionary(pa.int32(), pa.string()),
}
TIMES = {
    "date": pa.date32(),
    "seconds": pa.timestamp("s"),
    "milliseconds": pa.timestamp("ms"),
    "microseconds": pa.timestamp("us"),
    "nanoseconds": pa.timestamp("ns"),
    "text": pa.string(),
}


def make_visits() -> pa.Table:
    """Return rows of 500 people, with whole numbers in every column."""
    rng = np.random.default_rng()
    return pa.table(
        {
            "who": rng.integers(1, 500, SIZE),
            "city": rng.integers(0, 6, SIZE),
            "x": rng.integers(0, 5, SIZE),
        }
    )


def with_type(table: pa.Table, column: str, name: str, kind: pa.DataType) -> pa.Table:
    """Return the table with a column of another type."""
    entries = table[column]
    if name == "text of floats":
        converted = pa.array([f"{number}.0" for number in entries.to_pylist()])
    elif pa.types.is_dictionary(kind):
        converted = entries.cast(kind.value_type).dictionary_encode()
    elif pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        converted = entries.cast(pa.int64()).cast(kind)
    else:
        converted = entries.cast(kind)
    return table.set_column(table.schema.get_field_index(column), column, converted)


def answer(frame: Any, keys: tuple[Any, ...] = (0, 1, 2, 3), unit: Unit = UNIT) -> Tally:
    return tally(frame, Plan(ASKS, (Grouping("city", keys),), "drop", unit))


FRAMES: dict[str, Any] = {
    "Arrow": lambda table: table,
    "DuckDB": duckdb_frame,
    "Polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize("engine", sample_parameters(FRAMES, 1))
def test_the_type_of_an_id_changes_nothing(engine: str) -> None:
    table, make = make_visits(), FRAMES[engine]
    expected = answer(make(table))
    labels = count_persons_by_group(make(table), ["city"], UNIT)
    for name, kind in every_nth_case(8, NUMBERS.items()):
        frame = make(with_type(table, "who", name, kind))
        unit = replace(UNIT, text=("who",)) if "text" in name else UNIT
        assert_same(answer(frame, unit=unit), expected)
        repeated = count_persons_by_group(frame, ["city"], unit)
        assert dict(zip(repeated.keys, repeated.persons, strict=True)) == dict(
            zip(labels.keys, labels.persons, strict=True)
        )


@pytest.mark.parametrize("engine", sample_parameters(FRAMES, 1))
def test_the_type_of_a_value_changes_nothing(engine: str) -> None:
    table, make = make_visits(), FRAMES[engine]
    expected = answer(make(table))
    for name, kind in every_nth_case(8, NUMBERS.items()):
        if "text" not in name and name != "dictionary":
            assert_same(answer(make(with_type(table, "x", name, kind))), expected)


@pytest.mark.parametrize("engine", sample_parameters(FRAMES, 1))
def test_the_type_of_a_group_changes_neither_counts_nor_labels(engine: str) -> None:
    """Text of floats has different labels: the text 7.0 is not the number 7."""
    table, make = make_visits(), FRAMES[engine]
    expected = answer(make(table))
    labels = count_persons_by_group(make(table), ["city"], UNIT)
    for name, kind in every_nth_case(8, NUMBERS.items()):
        frame = make(with_type(table, "city", name, kind))
        if name.startswith("decimal"):
            with pytest.raises(ArgumentError, match="not grouped by"):
                answer(frame)
            continue
        written = [f"{n}.0" if name == "text of floats" else str(n) for n in range(4)]
        keys = tuple(written) if "text" in name else (0, 1, 2, 3)
        assert_same(answer(frame, keys), expected)
        if name != "text of floats":
            repeated = count_persons_by_group(frame, ["city"], UNIT)
            assert dict(zip(repeated.keys, repeated.persons, strict=True)) == dict(
                zip(labels.keys, labels.persons, strict=True)
            )


@pytest.mark.parametrize("engine", sample_parameters(FRAMES, 1))
def test_the_unit_of_a_time_changes_nothing(engine: str) -> None:
    table, make = make_visits(), FRAMES[engine]
    days = pa.array([DAYS[n] for n in table["city"].to_pylist()])
    born = pa.array([date(1970, 1, 1) + timedelta(days=n) for n in table["who"].to_pylist()])
    table = table.set_column(0, "who", born).set_column(1, "city", days)
    expected = answer(make(table), tuple(DAYS[:4]))
    labels = sorted(count_persons_by_group(make(table), ["city"], UNIT).keys)
    assert labels == [(day.isoformat(),) for day in DAYS]
    for name, kind in every_nth_case(6, TIMES.items()):
        assert_same(answer(make(with_type(table, "who", name, kind)), tuple(DAYS[:4])), expected)
        frame = make(with_type(table, "city", name, kind))
        keys = tuple(DAYS[:4]) if name != "text" else tuple(map(date.isoformat, DAYS[:4]))
        assert_same(answer(frame, keys), expected)
        assert sorted(count_persons_by_group(frame, ["city"], UNIT).keys) == labels


@pytest.mark.parametrize("engine", sample_parameters(FRAMES, 1))
def test_the_zone_of_an_id_changes_nothing(engine: str) -> None:
    """Polars has no time zones given as offsets."""
    zones = ["UTC", "Asia/Kolkata", *["-03:30"] * (engine != "Polars")]
    table, make = make_visits(), FRAMES[engine]
    start = datetime(2024, 2, 25, 10, 30, tzinfo=UTC)
    instants = [start + timedelta(minutes=n) for n in table["who"].to_pylist()]
    in_utc = table.set_column(0, "who", pa.array(instants, pa.timestamp("us", "UTC")))
    expected = answer(make(in_utc))
    for zone in sample_cases(zones, 1):
        elsewhere = table.set_column(0, "who", pa.array(instants, pa.timestamp("ms", zone)))
        assert_same(answer(make(elsewhere)), expected)


def test_the_order_of_rows_changes_nothing() -> None:
    table = make_visits()
    order = np.random.default_rng().permutation(SIZE)
    assert_same(answer(table.take(order)), answer(table))


def test_rows_are_chosen_independently_of_their_value() -> None:
    """Each of two values of a person is equally likely. The limit is 6 standard deviations."""
    people = 20_000
    rows = duckdb.sql(
        "SELECT $first + i AS who, v::DOUBLE AS x FROM range($people) a(i), range(2) b(v)",
        params={"first": int(np.random.default_rng().integers(2**40)), "people": people},
    )
    plan = Plan((Sums("x", 1.0, 0, 1),), unit=Unit(("who",)))
    (sums,) = tally(rows, plan).answers
    assert abs(int(sums.total) - people / 2) < 6 * (people / 4) ** 0.5  # type: ignore[union-attr]


# Ids that a reader may have rounded ---------------------------------------------------------------

INEXACT = [0.5, 2.0**53, -(2.0**53), 1e300, float("inf"), -float("inf")]


@pytest.mark.parametrize("engine", sample_parameters(FRAMES, 1))
def test_an_id_that_a_float_may_have_rounded_is_refused(engine: str) -> None:
    for who in every_nth_case(6, INEXACT):
        columns = {"who": [1.0, 2.0, who], "city": [1, 1, 1], "x": [1, 1, 1]}
        frame = FRAMES[engine](pa.table(columns))
        with pytest.raises(ArgumentError, match=r"'who' holds floats.*whole numbers") as raised:
            answer(frame)
        assert "whole numbers below" in str(raised.value), who
        assert "dtype={'who': str}" in str(raised.value)
        with pytest.raises(ArgumentError, match="'who' holds floats"):
            count_persons_by_group(frame, ["city"], UNIT)
        with pytest.raises(ArgumentError, match="'who' holds floats"):
            count_persons_by_group(frame, ["who"], None)


def test_the_largest_whole_ids_of_floats_are_taken() -> None:
    for kind, largest in ((pa.float64(), 2**53 - 1), (pa.float32(), 2**24 - 1)):
        ids = pa.array([-largest, largest - 1, largest, largest, None, float("nan")], kind)
        frame = pa.table({"who": ids, "city": [1] * 6, "x": [1] * 6})
        unit = Unit(("who",), without_id="own")
        (counts,) = tally(frame, Plan((Rows(),), unit=unit)).answers
        assert int(counts) == 3 + 2  # type: ignore[arg-type]
        beyond = pa.table({"who": pa.array([largest + 1], kind), "city": [1], "x": [1]})
        with pytest.raises(ArgumentError, match="whole numbers below"):
            tally(beyond, Plan((Rows(),), unit=unit))


def test_rows_of_other_groups_may_have_any_id() -> None:
    frame = pa.table({"who": [1.0, 0.5], "city": [1, 9], "x": [1, 1]})
    assert answer(frame, (1,)).answers[0].tolist() == [1]  # type: ignore[union-attr]


# Discovery raises before any budget is spent ------------------------------------------------------


def test_groups_of_every_size_of_integer_are_discovered_and_found_again() -> None:
    keys = [0, 2**53 + 1, 2**63, 2**64 - 1]
    table = pa.table({"who": [1, 2, 3, 4], "city": pa.array(keys, pa.uint64())})
    for make in FRAMES.values():
        groups = count_persons_by_group(make(table), ["city"], Unit(("who",)))
        labels = sorted(groups.keys, key=lambda key: int(key[0]))
        assert labels == [(str(key),) for key in keys]
        by = (Combinations(("city",), tuple(groups.keys)),)
        (counts,) = tally(make(table), Plan((Rows(),), by, unit=Unit(("who",)))).answers
        assert np.asarray(counts).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 10_000_000], pa.date32()),
        pa.array([-1_000_000, 2], pa.date32()),
        pa.array([1, 1_001], pa.timestamp("ns")),
        pa.array([1, 2**62], pa.timestamp("us")),
    ],
    ids=["a late date", "an early date", "nanoseconds", "a late time"],
)
@pytest.mark.parametrize("engine", ["Arrow", "DuckDB", "Polars"])
def test_groups_that_cannot_be_declared_are_refused(engine: str, column: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be discovered"):
        count_persons_by_group(FRAMES[engine](pa.table({"city": column})), ["city"], None)


def test_ids_of_128_bits_stay_different() -> None:
    """Arrow has no such integers: they are compared as text."""
    ids = pl.Series([2**64, 2**64 + 1, 2**64, 7], dtype=pl.Int128)
    (counts,) = tally(pl.DataFrame({"who": ids}), Plan((Rows(),), unit=Unit(("who",)))).answers
    assert int(counts) == 3  # type: ignore[arg-type]


def test_a_missing_value_adds_nothing_to_the_sum_of_a_person() -> None:
    own = PersonValue("x", "sum", 1.0, 0, 10)
    frame = pa.table({"who": ["p", "p", "q"], "x": [2.0, None, None]})
    plan = Plan((Sums("x", 1.0, 0, 10),), missing="drop", unit=Unit(("who",), person_value=own))
    (sums,) = tally(frame, plan).answers
    assert (int(sums.count), int(sums.total)) == (1, 2)  # type: ignore[union-attr]


def test_text_that_is_not_a_number_is_an_error_in_the_sum_of_a_person(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("who,x\np,1\np,oops\nq,2\n")
    plan = Plan(
        (Sums("x", 1.0, 0, 10),),
        unit=Unit(("who",), person_value=PersonValue("x", "sum", 1.0, 0, 10)),
    )
    with pytest.raises(ArgumentError, match="Row 2 of column 'x'"):
        tally(Files(path), plan)


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        ("'Ab'", None, "ab"),
        ("':1'", None, ":1"),
        ("'7.50'", 7.5, None),
        ("true", None, "true"),
        ("CAST(-0.0 AS DOUBLE)", 0.0, None),
        ("CAST(0.1 AS FLOAT)", float(np.float32(0.1)), None),
        ("CAST('0.3' AS DECIMAL(38, 7))", 0.3, None),
        # DuckDB rounds such an integer twice when it casts it to a float.
        ("CAST('52404997457849937548' AS HUGEINT)", 5.240499745784993e19, None),
        ("DATE '2024-02-29'", None, "2024-02-29"),
        ("TIMESTAMP '2024-02-29 00:00:00'", None, "2024-02-29"),
        ("TIMESTAMP '2024-02-29 10:30:00'", None, "2024-02-29 10:30:00"),
        ("TIMESTAMPTZ '2024-02-29 12:00:00+01:30'", None, "2024-02-29 10:30:00"),
        ("TIMESTAMPTZ '2024-02-29 01:30:00+01:30'", None, "2024-02-29"),
    ],
)
def test_a_value_enters_a_hash_as_the_documented_number_or_text(
    value: str, number: float | None, text: str | None
) -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute("SET TimeZone = 'Asia/Kolkata'")
        relation = connection.sql(f"SELECT {value} AS v")
        keys = InDuckDB(relation).selection_keys("v")
        (row,) = relation.project(f"{keys[0]} AS number, {keys[1]} AS text").fetchall()
    assert row == (number, text)
