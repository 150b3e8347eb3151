"""Every engine, as a function that makes its frame from an Arrow table.

It also has the strategies of the property tests: hostile values in columns of every type, and
plans.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from itertools import cycle, islice
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from dpnoise.statistics.engines import tally
from dpnoise.statistics.plan import (
    Ask,
    Cells,
    Combinations,
    Distinct,
    Edges,
    Grouping,
    Plan,
    Rows,
    Sums,
)
from support.tally_reference import assert_same, label
from support.tally_reference import tally as reference_tally


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def numpy_frame(table: pa.Table) -> pd.DataFrame:
    """Return the usual frame of pandas: NumPy's floats, pandas' text and nullable integers."""
    frame = table.select(["f64", "f32", "text", "dict"]).to_pandas()
    nullable = {"i64": "Int64", "i16": "Int16", "u64": "UInt64", "bool": "boolean", "gint": "Int64"}
    nullable_columns = {
        name: pd.array(table[name].to_pylist(), dtype=kind) for name, kind in nullable.items()
    }
    return frame.assign(**nullable_columns)


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """Return one connection for all frames: opening one takes longer than a query."""
    return duckdb.connect()


def duckdb_frame(table: pa.Table) -> duckdb.DuckDBPyRelation:
    return connection().from_arrow(table)


def dask_frame(table: pa.Table) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(numpy_frame(table), npartitions=3)


@dataclass(frozen=True)
class Engine:
    """The function that makes an engine's frame, and the column types that it lacks."""

    frame: Callable[[pa.Table], Any]
    lacks: tuple[str, ...] = ()


ENGINES = {
    "pandas": Engine(pandas_frame),
    "pandas with NumPy": Engine(numpy_frame, lacks=("dec", "gfloat", "gbool", "gdate")),
    "Polars": Engine(pl.from_arrow),
    "Polars lazy": Engine(lambda table: pl.LazyFrame(pl.from_arrow(table))),
    "Arrow": Engine(lambda table: table),
    "Dask": Engine(dask_frame, lacks=("dec", "gfloat", "gbool", "gdate")),
    "DuckDB": Engine(duckdb_frame),
}

TYPES = {
    "f64": pa.float64(),
    "f32": pa.float32(),
    "i64": pa.int64(),
    "i16": pa.int16(),
    "u64": pa.uint64(),
    "bool": pa.bool_(),
    "dec": pa.decimal128(18, 2),
    "text": pa.string(),
    "dict": pa.dictionary(pa.int32(), pa.string()),
    "gint": pa.int64(),
    "gfloat": pa.float64(),
    "gbool": pa.bool_(),
    "gdate": pa.date32(),
}
WIDE = 2**51
HALVES = [0.49999999999999994, -0.49999999999999994, 0.5, -0.5, 1.5, 2.5, -1.5, 2.0**51 - 0.5]
FLOATS = [
    *HALVES,
    *(0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, -5e-324, 2.2e-308),
    *(1e300, -1e300, 2.0**52 - 0.5, 2.0**53 + 2, 0.1, -(2.0**51) - 0.5),
]
INTEGERS = [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**62 + 1, 3 * 2**58 - 1]
CENTS = [Decimal(cents) / 100 for cents in (0, 10, -10, 12345, 99999999, 10**17, -(10**17), 25, 75)]
TEXTS = ["NA", "", "a", 'q"x', "a'b", "ü", "%s; DROP", "line\nbreak"]
DATES = [date(2024, 2, 29), date(1969, 12, 31), date(1, 1, 1)]
KEYS: dict[str, list[Any]] = {
    "text": TEXTS,
    "dict": TEXTS,
    "gint": [0, -1, 2**53 + 1, 7],
    "gfloat": [0.0, 7.0, 1.0 - 2.0**53],
    "gbool": [True, False],
    "gdate": DATES,
}
DECLARED_TEXT = ("text", "dict")
floats32 = st.floats(width=32)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "f64": st.sampled_from(FLOATS) | st.floats(),
    "f32": st.sampled_from([0.5, 0.1 + 0.4, -0.5, 1.5, 2.0**30 + 0.5]).map(
        lambda x: float(pa.scalar(x, pa.float32()).as_py())
    )
    | floats32,
    "i64": st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1),
    "i16": st.integers(-(2**15), 2**15 - 1),
    "u64": st.sampled_from([0, 2**53 + 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
    "dec": st.sampled_from(CENTS) | st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 100),
    **{name: st.sampled_from(known) for name, known in KEYS.items()},
    "gfloat": st.sampled_from([*KEYS["gfloat"], -0.0, 0.1, 2.0**53, -1e300, float("inf")]),
}
NUMBERS = ["f64", "f32", "i64", "i16", "u64", "bool", "dec"]


OR_NULL = {name: st.none() | VALUES[name] for name in TYPES}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draw some rows, with nulls in every column."""
    size = draw(st.integers(0, 12))
    return {name: [draw(values) for _ in range(size)] for name, values in OR_NULL.items()}


@st.composite
def asks(draw: st.DrawFn, columns: list[str]) -> Ask:
    """Draw an ask about one of the columns."""
    column = draw(st.sampled_from(columns))
    exponents = st.sampled_from([-3, -1, 0, 1, 2]) | (
        st.just(-4) if column == "dec" else st.sampled_from([-960, -50, 10, 14, 30, 55, 960])
    )
    grid = 2.0 ** draw(exponents)
    kind = draw(st.sampled_from([Sums, Cells, Edges]))
    if kind is Edges:
        edges = draw(st.lists(_edges(column), min_size=2, max_size=9, unique=True))
        return Edges(column, tuple(sorted(edges)))
    if kind is Cells:
        least = draw(st.integers(-20, 20))
        return Cells(column, grid, least, least + draw(st.integers(0, 40)))
    squares = draw(st.booleans())
    widest = 2**26 if squares or column == "dec" else WIDE
    bounds = st.sampled_from([0, 1, -1, widest, -widest]) | st.integers(-widest, widest)
    least, most = sorted([draw(bounds), draw(bounds)])
    return Sums(column, grid, least, most, squares)


def _edges(column: str) -> st.SearchStrategy[float]:
    infinite = st.sampled_from([-float("inf"), float("inf")])
    if column == "dec":
        return infinite | st.integers(-(10**8), 10**8).map(lambda n: n / 100)
    known = [x for x in FLOATS if x == x] + [2.0**53, 2.0**63, -(2.0**63), 2.0**64]  # noqa: PLR0124
    return infinite | st.sampled_from(known) | st.floats(allow_nan=False)


@st.composite
def plans(draw: st.DrawFn, columns: list[str]) -> Plan:
    """Draw a plan over some of the columns."""
    numbers = [name for name in NUMBERS if name in columns]
    keyed = [name for name in KEYS if name in columns]
    drawn_asks = draw(st.lists(asks(numbers), min_size=1, max_size=4))
    by: list[Grouping | Combinations] = []
    names = draw(st.lists(st.sampled_from(keyed), max_size=4, unique=True))
    for name in names[:2]:
        keys = draw(st.lists(st.sampled_from(KEYS[name]), min_size=1, max_size=4, unique=True))
        by.append(Grouping(name, tuple(keys), undeclared=draw(st.booleans())))
    if names[2:]:
        by.insert(draw(st.integers(0, 2)), draw(combinations(tuple(names[2:]))))
    labelled = [name for name in keyed if name != "gfloat"]  # Its fractions are refused.
    different = draw(st.lists(st.sampled_from(labelled).map(Distinct), max_size=1))
    return Plan((*different, *drawn_asks, Rows()), tuple(by), missing="drop", text=DECLARED_TEXT)


@st.composite
def combinations(draw: st.DrawFn, names: tuple[str, ...]) -> Combinations:
    """Draw combinations of the labels of columns."""
    labels = (st.sampled_from(list(filter(None, map(label, KEYS[name])))) for name in names)
    keys = draw(st.lists(st.tuples(*labels), min_size=1, max_size=8, unique=True))
    return Combinations(names, tuple(keys))


def arrow_table(columns: dict[str, list[Any]]) -> pa.Table:
    arrays = {
        name: pa.array(columns[name], TYPES[name].value_type if name == "dict" else TYPES[name])
        for name in columns
    }
    arrays["dict"] = arrays["dict"].dictionary_encode()
    return pa.table(arrays)


def check_engine(engine: Engine, data: st.DataObject) -> None:
    """Compare an engine with the reference implementation, on random rows and a random plan."""
    columns = data.draw(tables())
    plan = data.draw(plans([name for name in TYPES if name not in engine.lacks]))
    assert_same(tally(engine.frame(arrow_table(columns)), plan), reference_tally(columns, plan))


def check_every_hostile_value(engine: Engine) -> None:
    """Compare an engine with the reference on all values known to cause errors, in two plans."""
    hostile_values: dict[str, list[Any]] = {
        "f64": FLOATS,
        "f32": [0.0, -0.0, 0.5, -0.5, 1.5, 2.0**30, 2.0**-149, *map(float, ("nan", "inf", "-inf"))],
        "i64": INTEGERS,
        "i16": [0, 1, -1, -(2**15), 2**15 - 1],
        "u64": [0, 2**53 + 1, 2**63, 2**64 - 1],
        "bool": [True, False],
        "dec": CENTS,
        **KEYS,
    }
    columns = {
        name: list(islice(cycle([*values, None]), 40)) for name, values in hostile_values.items()
    }
    frame = engine.frame(arrow_table(columns))
    numbers = [name for name in NUMBERS if name not in engine.lacks]
    sums = [Sums(name, 0.5, -(2**20), 2**20, squares=True) for name in numbers]
    wide = [Sums(name, 2.0**13, -WIDE, WIDE) for name in numbers if name != "dec"]
    fine = [Sums("f64", 2.0**-900, -WIDE, WIDE), Sums("f64", 2.0**960, -1, 1)]
    binned: list[Ask] = [Cells("f64", 0.5, -4, 3), Cells("i64", 2.0**55, -100, 100)]
    binned += [Edges(name, (-1.0, 0.0, 0.5, 2.0**53, 2.0**63)) for name in numbers[:4]]
    binned += [Edges("u64", (-1.0, 5.0, 2.0**63, 2.0**64))] * ("u64" in numbers)
    by = tuple(Grouping(name, tuple(KEYS[name])) for name in ("text", "gint"))
    names = tuple(name for name in KEYS if name not in {*engine.lacks, "text"})
    rows = zip(*(map(label, columns[name]) for name in names), strict=True)
    every_other = list(dict.fromkeys(row for row in rows if all(row)))[::2]
    together = Combinations(names, tuple(every_other))
    others = [
        Grouping(name, tuple(keys[:2]), undeclared=True)
        for name, keys in KEYS.items()
        if name not in engine.lacks
    ]
    for plan in (
        Plan((*sums, Rows()), (together,), missing="drop"),
        Plan((*wide, *binned), (together, by[0]), missing="drop"),
        Plan((*sums, *wide, *fine, Rows()), by, missing="drop"),
        *(Plan((sums[0], Rows()), (grouping,), missing="drop") for grouping in others),
        Plan(tuple(map(Distinct, names)), by[:1], missing="drop", text=DECLARED_TEXT),
        Plan((*sums, *binned, Rows()), missing="drop"),
    ):
        assert_same(tally(frame, plan), reference_tally(columns, plan))
