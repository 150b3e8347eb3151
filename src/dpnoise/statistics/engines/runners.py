"""The differences between engines: how to prepare, filter and sum frames.

Preparation removes quirks of pandas, Arrow and others, so that every engine computes the same. It
checks only the columns that a plan reads, and refuses those that it cannot convert.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import narwhals as nw
import numpy as np
from narwhals.dtypes import DType

from dpnoise.core.arrays import Array
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, did_you_mean, import_extra
from dpnoise.core.safe_text import shorten
from dpnoise.statistics.engines import arithmetic, keys
from dpnoise.statistics.engines.arithmetic import ROWS, DataFrame, Frame
from dpnoise.statistics.plan import Key

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pandas import Series
    from pyspark.sql import Column
    from pyspark.sql import DataFrame as SparkFrame

_TEXTS: Final = {"string", "empty"}  # Types that pandas infers for text and for missing objects.
_MAX_LIST_LENGTH: Final = 500  # The most characters of column names in an error.
_FRAME_TYPES: Final = "a pandas, Polars, Arrow, DuckDB, PySpark or Dask frame"
_DECLARED: Final = "declared"  # The column that is true for rows in declared groups.
_SKIPPED_PREFIX: Final = "skipped_"  # Precedes a name: the flag for rows not grouped by it.


def as_narwhals(frame: object) -> Frame:
    """Return a frame as one of narwhals; raise if its type is not supported."""
    try:
        return nw.from_native(frame)
    except TypeError:
        raise ArgumentTypeError(
            f"The data must be a file or {_FRAME_TYPES}, got {type(frame).__name__}. For one "
            "column in memory, use statistics.mean or its like."
        ) from None


@dataclass(frozen=True)
class PlanColumns:
    """The columns of one plan: its keys, its cell codes and the columns to sum."""

    keys: list[str]
    codes: list[str]
    summed: dict[str, bool]  # Whether the sum may exceed 64 bits.
    labels: list[str] = field(default_factory=list)  # The codes that are not numbers of cells.

    @property
    def results(self) -> list[str | None]:
        """The names of the results: None for the sums, and a code for each count of cells."""
        return [None, *self.codes]


ArrowObject = Any  # An object of pyarrow, which publishes no types.
NativeRows = Any  # A relation of DuckDB or a frame of Spark.
Connect = Callable[[], "DuckDBPyConnection"]  # Opens DuckDB.
Columns = dict[str, Array]  # The columns of a result. Keys and large sums are Python objects.
Values = Sequence[tuple[Key, ...]]  # The keys of groups, one for each column.
# None has the sums of a plan, each code the counts of its cells.
Tables = dict[str | None, Columns]


def open_duckdb() -> "DuckDBPyConnection":
    """Return a new connection of DuckDB, for rows in memory."""
    connection: DuckDBPyConnection = import_extra("duckdb", "engines").connect()
    return connection


class Runner:
    """Runs queries by narwhals in Polars. Subclasses override what other engines need."""

    def prepare(self, frame: Frame, names: Sequence[str]) -> tuple[Frame, dict[str, str]]:
        """Return a frame with columns of plain types, and the name of each column in it."""
        return frame, {name: name for name in names}

    def load(self, frame: Frame, connect: Connect = open_duckdb) -> Frame:  # noqa: ARG002 - for others
        """Move a prepared frame to the engine that computes, which `connect` opens."""
        return frame

    def without_collation(self, frame: Frame) -> Frame:
        """Return a frame that compares text by its characters.

        With a collation, one row could decide the spelling of a group, or merge two persons.
        """
        return frame

    def limit_groups(self, frame: Frame, keys: list[str], values: Values, *, masked: bool) -> Frame:
        """Keep the rows whose keys are in `values`. If masked, set other keys to null instead."""
        polars, native = nw.get_native_namespace(frame), frame.lazy().to_native()
        if len(keys) == 1:
            is_declared = polars.col(keys).is_in([value for (value,) in values])
            if not masked:
                return as_narwhals(native.filter(is_declared))
        else:
            types = {name: native.collect_schema()[name] for name in keys}
            declared = polars.LazyFrame(values, types, orient="row")
            if not masked:
                return as_narwhals(native.join(declared, on=keys, how="semi"))
            declared = declared.with_columns(polars.lit(value=True).alias(_DECLARED))
            native = native.join(declared, on=keys, how="left")
            is_declared = polars.col(_DECLARED)
        masked_keys = [polars.when(is_declared).then(name).alias(name) for name in keys]
        return as_narwhals(native.with_columns(*masked_keys).drop(_DECLARED, strict=False))

    def run(self, frame: Frame, plans: Sequence[PlanColumns]) -> list[Tables]:
        """Compute the sums of each plan. Polars streams, and runs common steps once."""
        polars = nw.get_native_namespace(frame)
        if not hasattr(polars, "Int128"):
            raise ArgumentError(
                f"Exact sums need 128-bit integers, which Polars {polars.__version__} does not "
                "have. Install a newer one: pip install -U polars"
            )
        summed = _summed_columns(plans).items()
        types = {name: nw.Int128 if is_wide else nw.Int64 for name, is_wide in summed}
        widened = frame.lazy().with_columns(nw.col(name).cast(types[name]) for name in types)
        queries = [_group_and_sum(widened, plan, code) for plan in plans for code in plan.results]
        native = [query.to_native() for query in queries]
        collected = polars.collect_all(native, engine="streaming")
        lists = (result.to_dict(as_series=False) for result in collected)
        return [{code: _columns(next(lists), plans) for code in plan.results} for plan in plans]


def _group_and_sum(frame: Frame, plan: PlanColumns, code: str | None) -> Frame:
    by = plan.keys if code is None else [*plan.keys, code]
    summed = plan.summed if code is None else {}
    sums = [nw.len().alias(ROWS), *(nw.col(name).sum().alias(name) for name in summed)]
    has_keys = [~nw.col(key).is_null() for key in plan.keys]
    frame = frame.filter(*has_keys) if has_keys else frame
    return frame.group_by(by).agg(*sums) if by else frame.select(*sums)


def _summed_columns(plans: Sequence[PlanColumns]) -> dict[str, bool]:
    return {name: is_wide for plan in plans for name, is_wide in plan.summed.items()}


def _columns(lists: Mapping[str, list[Any]], plans: Sequence[PlanColumns]) -> Columns:
    wide = {name for name, is_wide in _summed_columns(plans).items() if is_wide}
    objects = wide.union(*([*plan.keys, *plan.labels] for plan in plans))
    return {
        name: np.asarray(entries, dtype=object if name in objects else None)
        for name, entries in lists.items()
    }


class _Sql(Runner):
    """An engine with GROUPING SETS, which answers several plans in one scan."""

    sum: str  # The SQL of a sum of integers or booleans that fits in 64 bits.
    wide_sum: str  # The SQL of a larger sum.

    def run(self, frame: Frame, plans: Sequence[PlanColumns]) -> list[Tables]:
        """Compute the sums of each plan. A grouping set must not repeat, or it counts twice."""
        all_sets = (names for plan in plans for names in _grouping_sets(plan))
        sets = list({frozenset(names): names for names in all_sets}.values())
        names = list(dict.fromkeys(name for grouping_set in sets for name in grouping_set))
        # A name that is not in all sets has a flag for the rows of the other sets.
        flagged = [name for name in names if any(name not in each for each in sets)]
        columns = [*names, f"count(*) AS {ROWS}"]
        columns += [f"grouping({name}) AS {_SKIPPED_PREFIX}{name}" for name in flagged]
        for name, is_wide in _summed_columns(plans).items():
            columns.append((self.wide_sum if is_wide else self.sum).format(name) + f" AS {name}")
        by, *others = map(", ".join, sets)
        if others:
            by = f"GROUPING SETS (({'), ('.join([by, *others])}))"
        result = _columns(self.aggregate(frame.to_native(), ", ".join(columns), by), plans)
        return [_tables(result, plan, flagged) for plan in plans]

    def aggregate(self, rows: NativeRows, columns: str, by: str) -> Mapping[str, list[Any]]:
        """Return columns, given as SQL, for each group; for all rows if `by` is empty."""
        raise NotImplementedError


def _grouping_sets(plan: PlanColumns) -> list[list[str]]:
    return [[*plan.keys, code] for code in plan.codes] or [plan.keys]


def _tables(result: Columns, plan: PlanColumns, flagged: Sequence[str]) -> Tables:
    """Return the rows of a result for one plan. Its first count of cells has the sums too."""
    tables: Tables = {}
    codes: list[str | None] = [*plan.codes] or [None]
    for code, names in zip(codes, _grouping_sets(plan), strict=True):
        conditions = [result[_SKIPPED_PREFIX + name] == int(name not in names) for name in flagged]
        conditions += [
            np.array([entry is not None for entry in result[key]], dtype=bool) for key in plan.keys
        ]
        rows = np.logical_and.reduce(conditions) if conditions else slice(None)
        tables[code] = {name: column[rows] for name, column in result.items()}
    return {None: next(iter(tables.values())), **tables}


class _DuckDB(_Sql):
    sum = "coalesce(CAST(sum({}) AS BIGINT), 0)"  # Without rows, a sum is null.
    # Arrow has no 128-bit integers.
    wide_sum = "coalesce(CAST(sum({}) AS DECIMAL(38, 0)), 0)"

    def prepare(self, frame: Frame, names: Sequence[str]) -> tuple[Frame, dict[str, str]]:
        """Raise if two columns differ only by case, which DuckDB ignores."""
        for name in names:
            spellings = [column for column in frame.columns if column.casefold() == name.casefold()]
            if len(spellings) > 1:
                raise ArgumentError(
                    f"Columns {spellings[0]!r} and {spellings[1]!r} differ only by capitals, "
                    "which DuckDB ignores. Rename one."
                )
        return super().prepare(frame, names)

    def without_collation(self, frame: Frame) -> Frame:
        relation: DuckDBPyRelation = frame.to_native()
        plain = (
            f"{name} COLLATE POSIX AS {name}" if str(kind) == "VARCHAR" else name
            for name, kind in zip(relation.columns, relation.types, strict=True)
        )
        return as_narwhals(relation.project(", ".join(plain)))

    def limit_groups(self, frame: Frame, keys: list[str], values: Values, *, masked: bool) -> Frame:
        """Limit groups by an IN, which DuckDB hashes: narwhals would search a list per row."""
        duckdb, native = import_module("duckdb"), frame.to_native()
        columns = list(map(duckdb.ColumnExpression, keys))
        if len(keys) == 1:
            constants = (duckdb.ConstantExpression(value) for (value,) in values)
            is_declared = columns[0].isin(*constants)
        else:
            is_declared = duckdb.SQLExpression(_is_combination(native, keys, values))
        if not masked:
            return as_narwhals(native.filter(is_declared))
        masked_keys = [
            duckdb.CaseExpression(is_declared, column).alias(name)
            for name, column in zip(keys, columns, strict=True)
        ]
        return as_narwhals(native.select(duckdb.StarExpression(exclude=keys), *masked_keys))

    def aggregate(self, rows: "DuckDBPyRelation", columns: str, by: str) -> Mapping[str, list[Any]]:
        result = rows.aggregate(columns, by)
        if by:
            import_extra("pyarrow", "files")
            table: ArrowObject = result.to_arrow_table()
            return {name: _entries(table[name]) for name in table.column_names}
        # One row: importing Arrow would take as long as a small query.
        (row,) = result.fetchall()
        return {name: [entry] for name, entry in zip(result.columns, row, strict=True)}


def _is_combination(rows: "DuckDBPyRelation", keys: Sequence[str], values: Values) -> str:
    """Return the SQL of whether keys are one of some combinations.

    Thousands of constants that are rows would take seconds to bind, and lists do not.
    """
    kinds = dict(zip(rows.columns, map(str, rows.types), strict=True))
    lists = []
    for name, column in zip(keys, zip(*values, strict=True), strict=True):
        texts = ", ".join("'{}'".format(str(value).replace("'", "''")) for value in column)
        lists.append(f"unnest(CAST([{texts}] AS {kinds[name]}[]))")
    return f"({', '.join(keys)}) IN (SELECT {', '.join(lists)})"


def _entries(column: ArrowObject) -> Any:
    """Return a column of Arrow: integers as an array, which is faster, others as a list."""
    is_array = import_module("pyarrow").types.is_integer(column.type) and not column.null_count
    return column.to_numpy() if is_array else column.to_pylist()


class _Spark(_Sql):
    sum = "coalesce(sum(CAST({} AS BIGINT)), 0)"
    # Spark's sums of integers overflow silently. The sums of q div 2^26 and of q mod 2^26 stay
    # below 2^63 for up to 2^37 rows.
    wide_sum = (
        f"coalesce(CAST(sum(shiftright({{0}}, 26)) AS DECIMAL(20, 0)) * {2**26}"
        f" + sum({{0}} & {2**26 - 1}), 0)"
    )

    def prepare(self, frame: Frame, names: Sequence[str]) -> tuple[Frame, dict[str, str]]:  # noqa: ARG002 - Spark renames all
        """Rename columns: Spark parses dots and backticks in a name."""
        native = frame.to_native()
        safe = [f"column{index}" for index in range(len(native.columns))]
        safe_names = dict(zip(native.columns, safe, strict=True))
        if len(safe_names) < len(safe):
            raise ArgumentError("Every column must have another name. Rename some.")
        return as_narwhals(native.toDF(*safe)), safe_names

    def without_collation(self, frame: Frame) -> Frame:
        texts = [name for name, dtype in frame.collect_schema().items() if dtype == nw.String]
        return frame.with_columns(nw.col(*texts).cast(nw.String)) if texts else frame

    def limit_groups(self, frame: Frame, keys: list[str], values: Values, *, masked: bool) -> Frame:
        native, functions = frame.to_native(), import_module("pyspark.sql.functions")

        def as_row(parts: Sequence["Column"]) -> "Column":
            named = (part.alias(name) for name, part in zip(keys, parts, strict=True))
            return parts[0] if len(parts) == 1 else functions.struct(*named)

        is_declared = as_row([native[name] for name in keys]).isin(
            *(as_row(_spark_literals(each)) for each in values)
        )
        if not masked:
            return as_narwhals(native.where(is_declared))
        masked_keys = {name: functions.when(is_declared, native[name]) for name in keys}
        return as_narwhals(native.withColumns(masked_keys))

    def aggregate(self, rows: "SparkFrame", columns: str, by: str) -> Mapping[str, list[Any]]:
        query = f"SELECT {columns} FROM {{rows}}" + (f" GROUP BY {by}" if by else "")
        result = as_narwhals(rows.sparkSession.sql(query, rows=rows)).lazy().collect()
        return result.to_dict(as_series=False)


def _spark_literals(values: Sequence[Key]) -> list["Column"]:
    """Return keys as literals of Spark. Dates are cast from text: those before 1000 fail."""
    lit = import_module("pyspark.sql.functions").lit

    def literal(value: Key) -> "Column":
        if isinstance(value, dt.datetime):
            return lit(value.isoformat(sep=" ")).cast("timestamp_ntz")
        return lit(value.isoformat()).cast("date") if isinstance(value, dt.date) else lit(value)

    return list(map(literal, values))


class _InMemory(Runner):
    """A frame in memory. DuckDB computes, without a copy where possible."""

    def prepare(self, frame: Frame, names: Sequence[str]) -> tuple[Frame, dict[str, str]]:
        """Decode dictionaries, and rename columns, because DuckDB ignores case."""
        arrow = import_extra("pyarrow", "files")
        new_names = {name: f"column{index}" for index, name in enumerate(names)}
        collected = frame.lazy().collect()
        columns = {}
        for name, column in self.arrow_columns(collected, names).items():
            columns[new_names[name]] = column
            if arrow.types.is_dictionary(column.type):
                chunks = [chunk.dictionary_decode() for chunk in column.chunks]
                columns[new_names[name]] = arrow.chunked_array(chunks, column.type.value_type)
        # A table without columns would have no rows.
        table = arrow.table(columns or {"nothing": arrow.nulls(len(collected))})
        return as_narwhals(table), new_names

    def arrow_columns(self, frame: DataFrame, names: Sequence[str]) -> dict[str, ArrowObject]:
        """Return columns as arrays of Arrow."""
        table = frame.to_arrow()
        return {name: table[name] for name in names}

    def load(self, frame: Frame, connect: Connect = open_duckdb) -> Frame:
        return as_narwhals(connect().from_arrow(frame.to_native()))


class _Pandas(_InMemory):
    def arrow_columns(self, frame: DataFrame, names: Sequence[str]) -> dict[str, ArrowObject]:
        """Refuse objects that are not all text: Arrow infers their type from the first ones."""
        native = frame.to_native()
        return {name: _arrow_column(name, native[name]) for name in names}


def _arrow_column(name: str, column: "Series") -> ArrowObject:
    arrow, infer_dtype = import_module("pyarrow"), import_module("pandas").api.types.infer_dtype
    is_category = str(column.dtype) == "category"
    entries = column.cat.categories if is_category else column
    if entries.dtype == "object" and infer_dtype(entries, skipna=True) not in _TEXTS:
        problem = "has categories" if is_category else "holds Python objects"
        raise ArgumentError(
            f"Column {name!r} {problem} that are not all text. Convert it to a type of pandas "
            "first, as in frame.astype({" + repr(name) + ': "Int64"}).'
        )
    # Objects are text, even if all are missing.
    if entries.dtype == "object" and (entries.empty or not is_category):
        array = arrow.array(column.astype("object"), arrow.string(), from_pandas=True)
    else:
        array = arrow.array(column, from_pandas=True)
    return array if isinstance(array, arrow.ChunkedArray) else arrow.chunked_array([array])


DUCKDB: Final = _DuckDB()
_RUNNERS: Final = {"duckdb": DUCKDB, "pandas": _Pandas(), "polars": Runner(), "pyspark": _Spark()}
_IN_MEMORY: Final = _InMemory()


def runner_of(frame: Frame) -> Runner:
    """Return the runner for the engine of a frame."""
    return _RUNNERS.get(frame.implementation.value, _IN_MEMORY)


@dataclass(frozen=True)
class FileColumns:
    """The relation of DuckDB that reads a file, with facts about its columns."""

    relation: "DuckDBPyRelation"
    parse_errors: Mapping[str, str]  # Maps each text column to its parse-error flag.
    parsed: Collection[str]  # Columns of groups that we parsed from text, so that none is rounded.
    row: str  # The column of row numbers, if these were requested.
    row_count: int | None = None  # None if the rows must be read to count them.


@dataclass(frozen=True)
class Data:
    """A frame that is prepared for its engine, with facts about its columns."""

    frame: Frame
    runner: Runner
    names: Mapping[str, str]  # Maps each column to its name in the frame.
    schema: Mapping[str, DType]
    file: FileColumns | None  # None if the rows do not come from a file.
    derived: Mapping[str, nw.Expr] = field(default_factory=dict)  # The derived columns.

    def column(self, name: str) -> nw.Expr:
        """Return the expression of a column."""
        return self.derived[name] if name in self.derived else nw.col(self.names[name])

    def number(self, name: str) -> tuple[nw.Expr, nw.Expr]:
        """Return a column of numbers as floats, 0 if missing, and whether a row has a number."""
        column, dtype = self.column(name), self.schema[name]
        arithmetic.check_numbers(name, dtype)
        divides_decimals = not self.frame.implementation.is_polars()
        value = arithmetic.fill_missing(column, dtype, divides_decimals=divides_decimals)
        return value, arithmetic.is_present(column, dtype)

    @property
    def parse_errors(self) -> Mapping[str, str]:
        """The parse-error flag of each column that a file holds as text."""
        return {} if self.file is None else self.file.parse_errors

    @property
    def parsed(self) -> Collection[str] | None:
        """The columns of groups that a file holds as text, parsed as numbers; None for a frame."""
        return None if self.file is None else self.file.parsed

    @property
    def ambiguous_text(self) -> str | None:
        """The pattern of text that must be declared; None if all types are declared."""
        in_duckdb = self.frame.implementation.is_duckdb()
        return keys.ambiguous_text_pattern(in_duckdb=in_duckdb) if self.file is None else None


def prepare_data(
    frame: Frame, names: Iterable[str], file: FileColumns | None, *, compares_text: bool = False
) -> Data:
    """Prepare a frame to read some of its columns; raise if one is missing.

    `compares_text` makes comparisons of raw columns compare text by its characters.
    """
    columns, runner, schema = list(dict.fromkeys(names)), runner_of(frame), frame.collect_schema()
    for name in columns:
        if name not in schema:
            names = list(map(str, schema))
            available = shorten(", ".join(names), _MAX_LIST_LENGTH)
            hint = did_you_mean(name, names) or f"There are: {available}."
            raise ArgumentError(f"There is no column {name!r}. {hint}")
    frame, new_names = runner.prepare(frame, columns)
    if compares_text and file is None:
        plain = {name: f"column{index}" for index, name in enumerate(columns)}
        frame = frame.select(**{plain[name]: nw.col(new_names[name]) for name in columns})
        frame, new_names = runner.without_collation(frame), plain
    types = frame.collect_schema()
    return Data(frame, runner, new_names, {name: types[new_names[name]] for name in columns}, file)
