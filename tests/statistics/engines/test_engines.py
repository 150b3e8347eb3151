"""All engines answer a plan with the same exact integers."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support.alarms import LONG
from support.engine_list import ENGINES, check_engine, check_every_hostile_value, duckdb_frame
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, DpnoiseError
from dpnoise.statistics.engines import Files, tally, tally_all
from dpnoise.statistics.plan import Ask, Cells, Combinations, Edges, Grouping, Plan, Rows, Sums

# Dask takes seconds to start; `make test-engines` has it.
WITH_DASK = [pytest.param(x, marks=[pytest.mark.long] * (x == "Dask")) for x in ENGINES]


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", WITH_DASK)
@given(data=st.data())
@settings(
    max_examples=40 if LONG else 6, phases=[Phase.explicit, Phase.generate]
)  # No shrinking, because tables shrink slowly.
def test_every_engine_gives_the_exact_integers(engine: str, data: st.DataObject) -> None:
    check_engine(ENGINES[engine], data)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", WITH_DASK)
def test_every_hostile_value_is_counted_exactly(engine: str) -> None:
    check_every_hostile_value(ENGINES[engine])


WIDE_INTEGERS = [2**53 + 1, 2**53 + 3, 2**62 + 2**9, 2**62 + 2**9 + 1, 2**63 - 1, 7, None]
AS_TYPES = {
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "decimal": pa.decimal128(38, 0),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", AS_TYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_number_counts_as_the_nearest_float_whatever_type_its_column_has(
    engine: str, kind: str
) -> None:
    """Readers turn integers into floats where one cell is empty. No value may change."""
    asks = (Sums("x", 2.0**12, 0, 2**51), Edges("x", (0.0, 2.0**53, 2.0**62, 2.0**63)))
    values = [None if x is None else float(x) for x in WIDE_INTEGERS]
    expected = reference_tally({"x": values}, Plan(asks, missing="drop"))
    entries = values if kind == "float64" else WIDE_INTEGERS
    table = pa.table({"x": pa.array(entries, AS_TYPES[kind])})
    if engine in {"pandas with NumPy", "Dask"}:
        frame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        if engine == "Dask":
            frame = pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=2)
        if kind == "decimal":
            pytest.skip("pandas holds decimals as objects")
    else:
        frame = ENGINES[engine].frame(table)
    assert_same(tally(frame, Plan(asks, missing="drop")), expected)


def test_integers_of_128_bits_count_as_the_nearest_float() -> None:
    wide = [2**53 + 1, -(2**53) - 1, 2**62 + 2**9 + 1, -(2**126) - 1, None]
    plan = Plan((Sums("x", 2.0**76, -(2**51), 2**51), Edges("x", (-(2.0**127), 2.0**53, 2.0**63))))
    plan = replace(plan, missing="drop")
    expected = reference_tally({"x": [None if x is None else float(x) for x in wide]}, plan)
    polars = pl.DataFrame({"x": pl.Series(wide, dtype=pl.Int128)})
    texts = [None if x is None else str(x) for x in wide]
    relation = duckdb.sql("SELECT CAST(unnest($texts) AS HUGEINT) AS x", params={"texts": texts})
    for frame in (polars, polars.lazy(), relation):
        assert_same(tally(frame, plan), expected)


def counts(column: list[Any], keys: tuple[Any, ...], kind: pa.DataType | None = None) -> list[int]:
    """Count the rows of each key in a column; assert that all engines agree."""
    table = pa.table({"key": pa.array(column, kind)})
    pandas = table.to_pandas(types_mapper=pd.ArrowDtype)
    frames = [table, pl.from_arrow(table), duckdb_frame(table), pandas]
    by_engine = [count_rows(frame, keys) for frame in frames]
    assert all(engine_counts == by_engine[0] for engine_counts in by_engine)
    return by_engine[0]


def count_rows(source: Any, keys: tuple[Any, ...]) -> list[int]:
    (row_counts,) = tally(source, Plan((Rows(),), (Grouping("key", keys),))).answers
    assert isinstance(row_counts, np.ndarray)
    return [int(count) for count in row_counts]


def count_rows_of_file(
    column: list[Any], keys: tuple[Any, ...], kind: pa.DataType | None, folder: Path
) -> list[int]:
    """Count the rows of each key in a column of a file, which declares its types."""
    path = folder / "keys.parquet"
    parquet.write_table(pa.table({"key": pa.array(column, kind)}), path)
    return count_rows(Files(path), keys)


MATCHES = [
    (["NA", "a", None, ""], ("NA", "", "zz"), None, [1, 1, 0]),
    (["5", "5.0", "05", " 5"], ("5", "5.0", "05", " 5"), None, [1, 1, 1, 1]),
    (["5", "05"], ("5", "05"), None, [1, 1]),
    ([5, 7, None], (5, 7.0, 9), None, [1, 1, 0]),
    ([2**63 + 1, 2**64 - 1], (2**63, 2**63 + 1), pa.uint64(), [0, 1]),
    ([5.0, 0.0, -0.0, float("nan"), 0.1], (5, 0), None, [1, 2]),
    ([2.0**24 - 1, 0.25], (2**24 - 1,), pa.float32(), [1]),
    ([True, False, None], (True, False), None, [1, 1]),
    ([date(2024, 2, 29), None], (date(2024, 2, 29),), None, [1]),
    ([datetime(2024, 2, 29, 1)], (datetime(2024, 2, 29, 1), date(2024, 2, 29)), None, [1, 0]),  # noqa: DTZ001
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("column", "keys", "kind", "expected"), MATCHES)
def test_groups_match_values_of_the_same_kind(
    column: list[Any], keys: tuple[Any, ...], kind: Any, expected: list[int], tmp_path: Path
) -> None:
    assert counts(column, keys, kind) == expected
    assert count_rows_of_file(column, keys, kind, tmp_path) == expected


def test_combinations_match_in_all_their_columns(tmp_path: Path) -> None:
    """-0.0 is 0, and a label of one column does not match in the other."""
    table = pa.table(
        {
            "city": ["0", "0", "7", "0", None, "7", "0"],
            "day": [0.0, -0.0, 7.0, 7.0, 0.0, None, float("nan")],
        }
    )
    parquet.write_table(table, tmp_path / "stays.parquet")
    by = Combinations(("city", "day"), (("7", "7"), ("0", "0"), ("7", "0")))
    pandas = table.to_pandas(types_mapper=pd.ArrowDtype)
    frames = [table, pl.from_arrow(table), duckdb_frame(table), pandas]
    for frame in (*frames, Files(tmp_path / "stays.parquet")):
        plans = [
            Plan((Rows(),), (by,)),
            Plan((Rows(),), (Grouping("city", ("7",)),)),
            Plan((Rows(),)),
        ]
        answers = [answer.answers[0].tolist() for answer in tally_all(frame, plans)]  # type: ignore[union-attr]
        assert answers == [[1, 2, 0], [2], 7]
        assert tally(frame, plans[0]).answers[0].tolist() == [1, 2, 0]  # type: ignore[union-attr]


OTHER_KINDS = [
    (["5"], (5,), None),
    (["true"], (True,), None),
    (["2024-02-29"], (date(2024, 2, 29),), None),
    ([5], ("5",), None),
    ([5], (True,), None),
    ([5.0], ("5",), None),
    ([True], ("true",), None),
    ([date(2024, 2, 29)], ("2024-02-29",), None),
    ([datetime(2024, 2, 29)], ("2024-02-29",), None),  # noqa: DTZ001
]


@pytest.mark.parametrize(("column", "keys", "kind"), OTHER_KINDS)
def test_groups_of_another_kind_than_the_column_of_a_frame_are_refused(
    column: list[Any], keys: tuple[Any, ...], kind: Any
) -> None:
    """One row may have turned a column of numbers into text, where 5.0 is not 5."""
    with pytest.raises(ArgumentError, match="is not of that kind"):
        counts(column, keys, kind)


INEXACT = [
    ([0.5], (0.5,), None),
    ([2.0**53], (2**53,), None),
    ([2.0**53], (-(2.0**53),), None),
    ([float("inf")], (float("inf"),), None),
    ([2.0**24], (2**24,), pa.float32()),
]


@pytest.mark.parametrize(("column", "keys", "kind"), INEXACT)
def test_groups_that_floats_may_have_rounded_are_refused(
    column: list[Any], keys: tuple[Any, ...], kind: Any, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="must be whole numbers below"):
        counts(column, keys, kind)
    with pytest.raises(ArgumentError, match="must be whole numbers below"):
        count_rows_of_file(column, keys, kind, tmp_path)


FILE_MATCHES = [
    (["5", "5.0", "05", " 5"], (5, 5.0, "05", " 5"), None, [1, 1, 1, 1]),
    (["5"], (5, "5"), None, None),
    (["5", "7", "05"], (5, "05"), None, [1, 1]),
    (["1.5", "2", "2.0"], (1.5, 2, 2.0), None, [1, 1, 1]),
    (["true", "True", "TRUE", "other"], (True,), None, [3]),
    (["2024-02-29", "2024-03-01"], (date(2024, 2, 29),), None, [1]),
    ([5, 7, None], ("5", 7.0, 9), None, [1, 1, 0]),
    ([True, False, None], ("true", "False"), None, [1, 1]),
    ([date(2024, 2, 29), None], ("2024-02-29",), None, [1]),
    ([datetime(2024, 2, 29, 1)], ("2024-02-29 01:00", date(2024, 2, 29)), None, [1, 0]),  # noqa: DTZ001
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("column", "keys", "kind", "expected"), FILE_MATCHES)
def test_groups_of_a_file_match_as_people_write_them(
    column: list[Any],
    keys: tuple[Any, ...],
    kind: Any,
    expected: list[int] | None,
    tmp_path: Path,
) -> None:
    if expected is None:
        with pytest.raises(ArgumentError, match="are the same"):
            count_rows_of_file(column, keys, kind, tmp_path)
    else:
        assert count_rows_of_file(column, keys, kind, tmp_path) == expected


IMPOSSIBLE = [
    ([5], ("five",), None),
    ([5], (5.5,), None),
    ([5], (2**70,), None),
    ([5], (300,), pa.int8()),
    ([5], (True,), None),
    ([0.5], (float("nan"),), None),
    ([0.5], ("half",), None),
    ([True], ("yes",), None),
    ([date(2024, 2, 29)], ("2024-02-30",), None),
    (["a"], (None,), None),
    (["a"], ("\udcff",), None),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("column", "keys", "kind"), IMPOSSIBLE)
def test_a_group_that_no_row_could_be_in_is_an_error(
    column: list[Any], keys: tuple[Any, ...], kind: Any, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="no row could be in the group"):
        count_rows_of_file(column, keys, kind, tmp_path)
    with pytest.raises(ArgumentError, match=r"no row could be in the group|not of that kind"):
        counts(column, keys, kind)


def test_types_that_are_not_grouped_by_are_refused() -> None:
    for column in ([Decimal("1.5")], [[1]], [b"a"]):
        with pytest.raises(ArgumentError, match="which is not grouped by"):
            counts(column, ("1",))


FRAME = pl.DataFrame({"x": [1.0, 2.0], "g": ["a", "b"], "t": ["1", "2"]})
REFUSED: dict[str, tuple[tuple[Ask, ...], tuple[Grouping, ...], str]] = {
    "nothing": ((), (), "at least one question"),
    "no such column": ((Sums("y", 1.0, 0, 1),), (), "no column 'y'. There are: x, g, t."),
    "text": ((Sums("t", 1.0, 0, 1),), (), "must hold numbers or booleans"),
    "a grid": ((Sums("x", 3.0, 0, 1),), (), "must be a power of two"),
    "a fine grid": ((Sums("x", 2.0**-961, 0, 1),), (), "between 2^-960 and 2^960"),
    "wide bounds": ((Sums("x", 1.0, 0, 2**52),), (), "over 2^51"),
    "wide bounds of squares": ((Sums("x", 1.0, 0, 2**27, squares=True),), (), "over 2^26"),
    "bounds the wrong way": ((Sums("x", 1.0, 2, 1),), (), "at most most=1"),
    "too many cells": ((Cells("x", 1.0, 0, 2**16),), (), "at most 65,536 cells, not 65,537"),
    "one edge": ((Edges("x", (1.0,)),), (), "two or more increasing"),
    "falling edges": ((Edges("x", (1.0, 0.0)),), (), "two or more increasing"),
    "too many edges": ((Edges("x", tuple(map(float, range(5_000)))),), (), "at most 4,096 cells"),
    "no groups": ((Rows(),), (Grouping("g", ()),), "at least one group"),
    "one column twice": (
        (Rows(),),
        (Grouping("g", ("a",)), Grouping("g", ("b",))),
        "must not be grouped by twice",
    ),
    "too many counts": (
        (Cells("x", 1.0, 0, 2**16 - 1),),
        (Grouping("g", tuple(f"g{index}" for index in range(300))),),
        "300 groups with all their cells are 19,660,800 counts, and at most 16,777,216",
    ),
    "no name": ((Sums("", 1.0, 0, 1),), (), "Every column must have a name"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_plans_that_are_not_exact_or_too_large_are_refused(problem: str) -> None:
    asks, by, message = REFUSED[problem]
    with pytest.raises(ArgumentError) as raised:
        tally(FRAME, Plan(asks, by))
    assert message in str(raised.value)


@pytest.mark.sample(8)
@pytest.mark.parametrize("scale", [1, 3, 5, 22, 37])
@pytest.mark.parametrize("engine", ["pandas", "Polars", "Polars lazy", "Arrow", "DuckDB"])
def test_a_decimal_counts_as_the_nearest_float_whatever_its_scale(engine: str, scale: int) -> None:
    """A reader infers the scale from all rows. N times 10^-s in floats would depend on it."""
    decimals = [Decimal(n) / 10 for n in range(-9, 10)]
    edges = tuple(float(number) for number in decimals)
    table = pa.table({"x": pa.array(decimals, pa.decimal128(38, scale))})
    plan = Plan((Edges("x", edges), Sums("x", 2.0**-40, -(2**40), 2**40)))
    assert_same(tally(ENGINES[engine].frame(table), plan), reference_tally({"x": edges}, plan))


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame, pa.table, pl.LazyFrame])
def test_no_plans_have_no_answers(make: Any) -> None:
    """A request that discovers no group has no plans."""
    assert tally_all(make({"x": [1]}), []) == []


def test_an_object_that_is_not_a_frame_is_refused() -> None:
    for source in ([1, 2], {"x": [1]}, np.ones(3), None):
        with pytest.raises(ArgumentTypeError, match="The data must be a file or a pandas, Polars"):
            tally(source, Plan((Rows(),)))


def test_an_error_of_an_engine_is_named_without_its_message() -> None:
    connection = duckdb.connect()
    relation = connection.sql("SELECT 1.5::DOUBLE AS x")
    connection.close()
    with pytest.raises(ArgumentError, match="Is its session or connection still open"):
        tally(relation, Plan((Rows(),)))
    secret = duckdb.sql("SELECT CAST('4711' || 'secret' AS DOUBLE) AS x")
    with pytest.raises(ArgumentError, match="ConversionException") as raised:
        tally(secret, Plan((Sums("x", 1.0, 0, 1),)))
    assert "4711" not in str(raised.value)
    twice = pd.DataFrame([[1.0, 2.0]], columns=["x", "x"])
    with pytest.raises(ArgumentError, match="a different name"):
        tally(twice, Plan((Sums("x", 1.0, 0, 1),)))


def test_a_missing_value_is_an_error_only_in_a_declared_group() -> None:
    frame = pl.DataFrame({"x": [1.0, None, float("nan")], "g": ["a", "b", None]})
    tally(frame, Plan((Sums("x", 1.0, 0, 1),), (Grouping("g", ("a",)),)))
    for groups in (("a", "b"), ("b",)):
        with pytest.raises(ArgumentError, match="has rows without a value"):
            tally(frame, Plan((Sums("x", 1.0, 0, 1),), (Grouping("g", groups),)))
    dropped = tally(frame, Plan((Sums("x", 1.0, 0, 1), Rows()), missing="drop")).answers
    assert [int(dropped[0].count), int(dropped[1])] == [1, 3]  # type: ignore[union-attr,arg-type]


def test_sums_beyond_64_bits_are_exact() -> None:
    """2^14 rows of 2^51 add up to 2^65. Each engine adds in a different way."""
    rows = 2**14
    table = pa.table({"x": np.full(rows, 2.0**51)})
    plan = Plan((Sums("x", 1.0, 0, 2**51),))
    for frame in (
        table,
        pl.from_arrow(table),
        table.to_pandas(),
        duckdb_frame(table),
    ):
        assert int(tally(frame, plan).answers[0].total) == rows * 2**51  # type: ignore[union-attr]


UNSUPPORTED: dict[str, Any] = {
    "big-endian": lambda: pd.DataFrame({"x": np.array([1.5], dtype=">f8")}),
    "float16": lambda: pd.DataFrame({"x": np.array([1.5], dtype="f2")}),
    "longdouble": lambda: pd.DataFrame({"x": np.array([1.5], dtype="g")}),
    "complex": lambda: pd.DataFrame({"x": np.array([1.5], dtype="c16")}),
    "objects": lambda: pd.DataFrame({"x": np.array([1.5, "secret"], dtype=object)}),
    "categories": lambda: pd.DataFrame({"x": pd.Categorical(["secret"])}),
    "an enumeration": lambda: pl.DataFrame({"x": pl.Series(["secret"], dtype=pl.Enum(["secret"]))}),
    "two of a name": lambda: pd.DataFrame([[1, 2]], columns=["x", "x"]),
    "a Series": lambda: pd.Series([1.5], name="x"),
    "a dict": lambda: {"x": [1.5]},
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_columns_that_are_not_plain_numbers_are_refused_and_not_shown(kind: str) -> None:
    """Nothing is converted silently, and an error shows no category either."""
    plan = Plan((Sums("x", grid=1.0, least=0, most=9),))
    with pytest.raises(DpnoiseError) as raised:
        tally(UNSUPPORTED[kind](), plan)
    assert "secret" not in str(raised.value)


def test_an_old_version_of_polars_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(__version__="1.0.0")  # It has no Int128.
    monkeypatch.setattr("narwhals.get_native_namespace", lambda _: old)
    with pytest.raises(ArgumentError, match="pip install -U polars"):
        tally(pl.DataFrame({"x": [1.0]}), Plan((Rows(),)))
