"""Rows with hostile values for expressions, and every engine that they can be put into."""

import csv
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import narwhals as nw
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from dpnoise.statistics.engines import Files, row_expressions, tally_all
from dpnoise.statistics.engines.runners import as_narwhals, prepare_data
from dpnoise.statistics.expressions import (
    TEXT,
    Condition,
    kind_of,
    parse_condition,
    parse_value,
    possible_values,
    source_columns,
)
from dpnoise.statistics.plan import Ask, Edges, Grouping, Plan, Rows, Sums
from support.engine_list import duckdb_frame
from support.expression_reference import evaluate, matches
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

Columns = Mapping[str, Sequence[Any]]
STRANGE = 'it\'s a "name" (Ünder `x`.y)'  # The name of this column is not an identifier.
TYPES = {
    "n": pa.float64(),
    "i": pa.int64(),
    "t": pa.string(),
    "d": pa.date32(),
    "s": pa.timestamp("us"),
    STRANGE: pa.float64(),
}
DAYS = ["2024-02-29", "1999-12-31", "2000-01-01", "1969-12-31", "0001-01-01", "9999-12-31"]
TIMES = ["2024-02-29 23:59:59.999999", "1969-12-31 23:59:59", "2024-03-01", "1900-02-28 12:00"]
VALUES: dict[str, list[Any]] = {
    "n": [
        *(0.1, 0.2, 18.0, 17.999999999999996, -0.0, 0.0, 1e308, -1e308, 5e-324, 2.0**53, 65.0),
        *(7.0, float("nan"), float("inf"), -float("inf"), None),
    ],
    "i": [0, 1, 18, -18, 2**53 + 1, 2**63 - 1, -(2**63), 7, None],
    "t": [
        *("cork", "Cork", "cork ", "07", "7", "7.0", "NA", "a'b", 'q"x', "Köln", "%s; DROP"),
        *("", None),
    ],
    "d": [*map(date.fromisoformat, DAYS), None],
    "s": [*map(datetime.fromisoformat, TIMES), None],
    STRANGE: [1.5, -2.5, None, float("nan")],
}
SIZE = 420  # The number of rows; the lengths of the lists above have few common factors.
TABLE: dict[str, list[Any]] = {
    name: list(islice(cycle(values), SIZE)) for name, values in VALUES.items()
}


def arrow_table(columns: Columns) -> pa.Table:
    return pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


# Engines ------------------------------------------------------------------------------------------


def _pandas(table: pa.Table, _: Path) -> pd.DataFrame:
    return table.drop(["d"]).to_pandas()  # It has no type for dates. Integers become floats.


def _texts(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            name: "" if value is None else value if isinstance(value, str) else str(value)
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]


def _csv(table: pa.Table, folder: Path) -> Files:
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, table.column_names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_texts(table))
    return Files(path)


def _json(table: pa.Table, folder: Path) -> Files:
    path = folder / "table.jsonl"
    path.write_text("\n".join(map(json.dumps, _texts(table))) + "\n")
    return Files(path)


def _parquet(table: pa.Table, folder: Path) -> Files:
    path = folder / "table.parquet"
    parquet.write_table(table, path)
    return Files(path)


def _sqlite(table: pa.Table, folder: Path) -> Files:
    path = folder / "table.db"
    kinds = {pa.float64(): "REAL", pa.int64(): "INTEGER"}
    declared = ", ".join(
        '"{}" {}'.format(field.name.replace('"', '""'), kinds.get(field.type, "TEXT"))
        for field in table.schema
    )
    rows = [
        [str(value) if isinstance(value, date) else value for value in row.values()]
        for row in table.to_pylist()
    ]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE visits ({declared})")
        marks = ", ".join("?" * table.num_columns)
        database.executemany(f"INSERT INTO visits VALUES ({marks})", rows)  # noqa: S608
    return Files(path, table="visits")


def _dask(table: pa.Table, folder: Path) -> Any:
    frame = pytest.importorskip("dask.dataframe")
    return frame.from_pandas(_pandas(table, folder), npartitions=3)


@dataclass(frozen=True)
class Source:
    """The function that makes the rows of an engine, and the columns that it lacks."""

    read: Callable[[pa.Table, Path], Any]
    lacks: tuple[str, ...] = ()


SOURCES = {
    "pandas": Source(_pandas, lacks=("d",)),
    "pandas, Arrow": Source(lambda table, _: table.to_pandas(types_mapper=pd.ArrowDtype)),
    "Polars": Source(lambda table, _: pl.from_arrow(table)),
    "Polars, lazy": Source(lambda table, _: pl.LazyFrame(pl.from_arrow(table))),
    "Arrow": Source(lambda table, _: table),
    "DuckDB": Source(lambda table, _: duckdb_frame(table)),
    "Dask": Source(_dask, lacks=("d",)),
    "CSV file": Source(_csv),
    "JSON file": Source(_json),
    "Parquet file": Source(_parquet),
    "SQLite file": Source(_sqlite),
}

# Expressions --------------------------------------------------------------------------------------

STRANGE_NAME = f"column({STRANGE!r})"
CONDITIONS = [
    "n >= 18",
    "n < 18",
    "not n < 18",
    "not (n < 18 or i > 0)",
    "18 <= n < 65",
    "not 18 <= n < 65",
    "n == 0",
    "n != 0",
    "n == -0.0",
    "n > 1e307",
    "n <= 5e-324",
    "n in (0.1, 7, -0.0)",
    "n not in (0.1, 7)",
    "i == 9007199254740992",
    "i > 9223372036854775806",
    "n == i",
    "n + n > n",
    "n - n == 0",
    "n * 10 > 1e308",
    "-n < i",
    "n + 0.1 == 0.30000000000000004",
    "n * 3 == 0.3",
    "n * 3 - i != 0.30000000000000004",
    f"{STRANGE_NAME} > 0",
    f"{STRANGE_NAME} * n < 0 and i == 7",
    "t == 'cork'",
    "t != 'cork'",
    "not t == 'cork'",
    "'cork' != t",
    "t in ('7', 'NA', 'Köln')",
    "t not in ('7', \"a'b\", 'q\"x')",
    "t == '7' or t == '07'",
    "t == '%s; DROP' and n > 0",
    "band(n, 0, 18) == '0 to 18'",
    "map(t, {'cork': 1, 'Cork': 2}) >= 2",
    "map(t, {'cork': 'a', '7': 'b'}, 'c') != 'c'",
    "month(s) == 2",
    "year(s) < 1970",
    "weekday(s) in (3, 4)",
    "s >= date('2024-02-29')",
    "date(s) == date('2024-02-29')",
    "not s < date('1969-12-31')",
    "s != date('1969-12-31') and not n > 3",
]
DATE_CONDITIONS = [
    "month(d) == 2 and d == date('2024-02-29')",
    "date(d) <= date(s)",
    "d > date('1999-12-31')",
    "year(d) == 1 or year(d) == 9999",
    "weekday(d) != 5",
]
VALUE_EXPRESSIONS = [
    "n + i",
    "n - i",
    "n * i",
    "-n",
    "n * n - n",
    "0.1 + n * 3",
    f"{STRANGE_NAME} - n",
    "month(s)",
    "year(s)",
    "weekday(s)",
    "month(s) * 100 + n",
    "band(n, 0, 18, 65)",
    "band(n - i, -1000.5, 1000)",
    "map(t, {'cork': 'south', 'Cork': 'south', '7': 'seven', 'NA': 'north'})",
    "map(t, {'cork': 'south'}, 'elsewhere')",
    "map(t, {'cork': 1.5, '07': -2})",
    "map(n, {0: 'none', 18: 'adult'}, 'other')",
    "map(i, {7: 1, 9007199254740993: 2})",
]


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> str:
    """Draw an expression of a number."""
    constants = st.sampled_from(["0", "-1", "18", "0.1", "1e300", "9007199254740993"])
    leaves = st.sampled_from(["n", "i", STRANGE_NAME, "month(s)", "year(s)"])
    if depth == 0 or draw(st.booleans()):
        return draw(leaves | constants) if depth < 2 else draw(leaves)
    sign = draw(st.sampled_from(["+", "-", "*"]))
    return f"({draw(numbers(depth - 1))} {sign} {draw(leaves)})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    """Draw a condition."""
    if depth and draw(st.booleans()):
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        form = draw(
            st.sampled_from(["({} and {})", "({} or {})", "(not {} or {})", "not ({} and {})"])
        )
        return form.format(left, right)
    sign = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
    texts = st.sampled_from([text for text in VALUES["t"] if text])
    days = st.dates(date(1960, 1, 1), date(2030, 1, 1)) | st.sampled_from([date(2024, 2, 29)])
    return draw(
        st.one_of(
            st.tuples(numbers(), numbers()).map(lambda pair: f"{pair[0]} {sign} {pair[1]}"),
            texts.map(lambda text: f"t {'==' if sign < '=' else '!='} {text!r}"),
            st.lists(texts, min_size=1, max_size=3).map(lambda members: f"t in {members!r}"),
            days.map(lambda day: f"s {sign} date('{day}')"),
            days.map(lambda day: f"not s {sign} date('{day + timedelta(days=1)}')"),
        )
    )


# Comparison with the reference --------------------------------------------------------------------


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@cache
def number_of_matches(text: str) -> int:
    """Return the number of rows of TABLE that the reference keeps."""
    return sum(matches(text, row) for row in rows_of(TABLE))


def check_conditions(source: Any, texts: Sequence[str]) -> None:
    """Fail unless an engine keeps the rows of TABLE that the reference keeps."""
    parsed = list(map(parse_condition, texts))
    if isinstance(source, Files) or type(source).__module__.startswith("dask"):
        plans = [Plan((Rows(),), where=condition) for condition in parsed]
        kept = [int(answer.answers[0]) for answer in tally_all(source, plans)]  # type: ignore[arg-type]
    else:
        kept = _count_in_one_query(source, parsed)
    for text, number in zip(texts, kept, strict=True):
        assert number == number_of_matches(text), text


def _count_in_one_query(source: Any, conditions: Sequence[Condition]) -> list[int]:
    """Return the number of rows that meet each condition. One query takes less time than many."""
    names = {column.name for condition in conditions for column in source_columns(condition)}
    data = prepare_data(as_narwhals(source), sorted(names), None, compares_text=True)
    filters = (row_expressions.filter_of(data, condition) for condition in conditions)
    flags = {
        f"flag{index}": nw.when(is_kept).then(nw.lit(1)).otherwise(nw.lit(0))
        for index, is_kept in enumerate(filters)
        if is_kept is not None
    }
    flagged = data.runner.load(data.frame).select(**flags)
    sums = flagged.select(*(nw.col(name).sum() for name in flags)).lazy().collect()
    return [int(sums[name].item()) for name in flags]


def asks(column: str) -> tuple[Ask, ...]:
    """Return asks that differ if a number differs by one bit, or by much."""
    return (
        Rows(),
        Sums(column, 2.0**-30, -(2**51), 2**51),
        Sums(column, 0.5, -9, 999, squares=True),
        Edges(column, (-1e300, -18.0, 0.0, 0.1, 18.0, 65.0, 1e300)),
    )


def check_values(
    source: Any, columns: Columns, texts: Sequence[str], where: str = "n < 1e9"
) -> None:
    """Fail unless derived columns have the values of the reference, among the rows of a filter."""
    rows = [row for row in rows_of(columns) if matches(where, row)]
    values = {f"x{index}": parse_value("x", text) for index, text in enumerate(texts)}
    expected = {
        name: [evaluate(text, row) for row in rows]
        for name, text in zip(values, texts, strict=True)
    }
    plans = []
    for name, value in values.items():
        known, is_text = possible_values(value), kind_of(value) == TEXT
        plans += [] if is_text else [Plan(asks(name), missing="drop")]
        keys = tuple(known or ()) if is_text else tuple(map(float, known or ()))
        if keys and (is_text or all(key.is_integer() for key in keys)):
            plans.append(Plan((Rows(),), (Grouping(name, keys),)))
    options: Any = {"where": parse_condition(where), "derived": tuple(values.items())}
    answers = tally_all(source, [replace(plan, **options) for plan in plans])
    for plan, ours in zip(plans, answers, strict=True):
        assert_same(ours, reference_tally(expected, plan))
