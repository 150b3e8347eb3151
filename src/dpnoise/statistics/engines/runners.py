"""What differs between engines: how frames are prepared, filtered, and added up.

Preparation removes quirks of pandas, Arrow and others, so that every engine computes the same. Only
the columns that a plan reads are looked at. Those that cannot be made plain are refused.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, import_extra
from dpnoise.statistics.engines.arithmetic import ROWS
from dpnoise.statistics.plan import Key

if TYPE_CHECKING:
    import narwhals as nw
    from duckdb import DuckDBPyRelation
    from pandas import Series
    from pyspark.sql import Column
    from pyspark.sql import DataFrame as SparkFrame

    from dpnoise.statistics.engines.arithmetic import DataFrame

    Frame = DataFrame | nw.LazyFrame[Any]
else:
    nw = import_extra("narwhals", "engines")

_TEXTS: Final = {"string", "empty"}  # Names that pandas gives to objects that are text, or missing.
_FRAMES: Final = "a pandas, Polars, Arrow, DuckDB, PySpark or Dask frame"
_SKIPPED: Final = "skipped_"  # How the flags of columns that a row is not grouped by begin.


def wrapped(frame: object) -> "Frame":
    """Return a frame as narwhals has it, or say what is taken for one."""
    try:
        known: Frame = nw.from_native(frame)
    except TypeError:
        raise ArgumentTypeError(
            f"The data must be {_FRAMES}, got {type(frame).__name__}."
        ) from None
    return known


@dataclass(frozen=True)
class Part:
    """What one plan wants: the names of its keys, of its cells and of what it adds up."""

    keys: list[str]
    codes: list[str]
    summed: dict[str, bool]  # Whether a sum may be larger than 64 bits.

    @property
    def results(self) -> list[str | None]:
        """What results are called: None for the sums, and each code for its cells."""
        return [None, *self.codes]


ArrowObject = Any  # Of pyarrow, which publishes no types.
NativeRows = Any  # A relation of DuckDB or a frame of Spark.
# The sums of a plan under None, the counts of its cells under their code.
Tables = dict[str | None, "DataFrame"]


class Runner:
    """How narwhals computes in Polars, and what other engines do in another way."""

    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:
        """Return a frame with columns of plain types, and what they are called in it."""
        return frame, {name: name for name in wanted}

    def load(self, frame: "Frame") -> "Frame":
        """Return a prepared frame in the engine that computes."""
        return frame

    def without_collation(self, frame: "Frame") -> "Frame":
        """Return a frame whose texts are compared as they are.

        Else one row could decide how a group of several spellings is written, and who two persons
        are.
        """
        return frame

    def limit_groups(self, frame: "Frame", key: str, values: list[Key], *, masked: bool) -> "Frame":
        """Keep the rows whose key is one of some values; or set the key of others to null."""
        is_declared = nw.col(key).is_in(values)
        if masked:
            return frame.with_columns(**{key: nw.when(is_declared).then(nw.col(key))})
        return frame.filter(is_declared)

    def run(self, frame: "Frame", parts: Sequence[Part]) -> list[Tables]:
        """Add up what each plan wants. Polars streams, and shares the steps that results share."""
        wide = {name for part in parts for name, is_wide in part.summed.items() if is_wide}
        widened = frame.lazy().with_columns(nw.col(name).cast(nw.Int128) for name in wide)
        queries = [_grouped(widened, part, code) for part in parts for code in part.results]
        polars = nw.get_native_namespace(frame)
        native = [query.to_native() for query in queries]
        collected = map(nw.from_native, polars.collect_all(native, engine="streaming"))
        return [{code: next(collected) for code in part.results} for part in parts]


def _grouped(frame: "Frame", part: Part, code: str | None) -> "Frame":
    by = part.keys if code is None else [*part.keys, code]
    summed = part.summed if code is None else {}
    sums = [nw.len().alias(ROWS), *(nw.col(name).sum().alias(name) for name in summed)]
    has_keys = [~nw.col(key).is_null() for key in part.keys]
    frame = frame.filter(*has_keys) if has_keys else frame
    return frame.group_by(by).agg(*sums) if by else frame.select(*sums)


class _Sql(Runner):
    """An engine with GROUPING SETS, which answers several plans in one scan."""

    sum: str  # The SQL of a sum that fits in 64 bits, of integers or truth values.
    wide_sum: str  # That of a larger one.

    def run(self, frame: "Frame", parts: Sequence[Part]) -> list[Tables]:
        """Add up what each plan wants. Each set is grouped by once, or it would count twice."""
        sets = list({frozenset(one): one for part in parts for one in _sets(part)}.values())
        names = list(dict.fromkeys(name for one in sets for name in one))
        # Names that are not in all sets have a flag that says if they are.
        flagged = [name for name in names if any(name not in one for one in sets)]
        columns = [*names, f"count(*) AS {ROWS}"]
        columns += [f"grouping({name}) AS {_SKIPPED}{name}" for name in flagged]
        summed = {name: is_wide for part in parts for name, is_wide in part.summed.items()}
        for name, is_wide in summed.items():
            columns.append((self.wide_sum if is_wide else self.sum).format(name) + f" AS {name}")
        by, *others = [", ".join(one) for one in sets]
        if others:
            by = f"GROUPING SETS (({'), ('.join([by, *others])}))"
        result = self.aggregate(frame.to_native(), ", ".join(columns), by)
        collected = wrapped(result).lazy().collect()  # Once: each time would be another scan.
        return [_tables(collected, part, flagged) for part in parts]

    def aggregate(self, rows: NativeRows, columns: str, by: str) -> object:
        """Return columns, which are SQL, for each group; for all rows if `by` is empty."""
        raise NotImplementedError


def _sets(part: Part) -> list[list[str]]:
    return [[*part.keys, code] for code in part.codes] or [part.keys]


def _tables(result: "DataFrame", part: Part, flagged: Sequence[str]) -> Tables:
    """Take from a result what is about one plan. Sums are in the counts of its first cells."""
    tables: Tables = {}
    codes: list[str | None] = [*part.codes] or [None]
    for code, one in zip(codes, _sets(part), strict=True):
        conditions = [nw.col(_SKIPPED + name) == int(name not in one) for name in flagged]
        conditions += [~nw.col(key).is_null() for key in part.keys]
        tables[code] = result.filter(*conditions) if conditions else result
    return {None: next(iter(tables.values())), **tables}


class _DuckDB(_Sql):
    sum = "CAST(sum({}) AS BIGINT)"
    wide_sum = "CAST(sum({}) AS DECIMAL(38, 0))"  # Arrow has no integers of 128 bits.

    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:
        """Raise if DuckDB, which ignores case, could take another column for one that is wanted."""
        for name in wanted:
            same = [one for one in frame.columns if one.casefold() == name.casefold()]
            if len(same) > 1:
                raise ArgumentError(
                    f"Columns {same[0]!r} and {same[1]!r} differ only by capitals, which DuckDB "
                    "ignores. Rename one."
                )
        return super().prepare(frame, wanted)

    def without_collation(self, frame: "Frame") -> "Frame":
        relation: DuckDBPyRelation = frame.to_native()
        plain = (
            f"{name} COLLATE POSIX AS {name}" if str(kind) == "VARCHAR" else name
            for name, kind in zip(relation.columns, relation.types, strict=True)
        )
        return wrapped(relation.project(", ".join(plain)))

    def limit_groups(self, frame: "Frame", key: str, values: list[Key], *, masked: bool) -> "Frame":
        """Limit them by an IN, which DuckDB hashes: narwhals would search a list for every row."""
        duckdb, native = import_module("duckdb"), frame.to_native()
        column = duckdb.ColumnExpression(key)
        is_declared = column.isin(*map(duckdb.ConstantExpression, values))
        if not masked:
            return wrapped(native.filter(is_declared))
        masked_key = duckdb.CaseExpression(is_declared, column).alias(key)
        return wrapped(native.select(duckdb.StarExpression(exclude=[key]), masked_key))

    def aggregate(self, rows: "DuckDBPyRelation", columns: str, by: str) -> object:
        return rows.aggregate(columns, by)


class _Spark(_Sql):
    sum = "sum(CAST({} AS BIGINT))"
    # Spark's sums of integers wrap around. Those of q div 2^26 and of q mod 2^26 stay below 2^63
    # for 2^37 rows.
    wide_sum = (
        f"CAST(sum(shiftright({{0}}, 26)) AS DECIMAL(20, 0)) * {2**26} + sum({{0}} & {2**26 - 1})"
    )

    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:  # noqa: ARG002 - Spark renames all
        """Rename columns: Spark would take dots and backticks in a name for syntax."""
        native = frame.to_native()
        safe = [f"column{place}" for place in range(len(native.columns))]
        names = dict(zip(native.columns, safe, strict=True))
        if len(names) < len(safe):
            raise ArgumentError("Every column must have another name. Rename some.")
        return wrapped(native.toDF(*safe)), names

    def without_collation(self, frame: "Frame") -> "Frame":
        texts = [name for name, dtype in frame.collect_schema().items() if dtype == nw.String]
        return frame.with_columns(nw.col(*texts).cast(nw.String)) if texts else frame

    def limit_groups(self, frame: "Frame", key: str, values: list[Key], *, masked: bool) -> "Frame":
        native, when = frame.to_native(), import_module("pyspark.sql.functions").when
        is_declared = native[key].isin(*_spark_literals(values))
        if not masked:
            return wrapped(native.where(is_declared))
        return wrapped(native.withColumn(key, when(is_declared, native[key])))

    def aggregate(self, rows: "SparkFrame", columns: str, by: str) -> object:
        query = f"SELECT {columns} FROM {{rows}}" + (f" GROUP BY {by}" if by else "")
        return rows.sparkSession.sql(query, rows=rows)


def _spark_literals(values: list[Key]) -> list["Column"]:
    """Return keys as Spark has them; dates from text, because it cannot take those before 1000."""
    lit = import_module("pyspark.sql.functions").lit

    def literal(value: Key) -> "Column":
        if isinstance(value, dt.datetime):
            return lit(value.isoformat(sep=" ")).cast("timestamp_ntz")
        return lit(value.isoformat()).cast("date") if isinstance(value, dt.date) else lit(value)

    return list(map(literal, values))


class _InMemory(Runner):
    """An engine whose rows are in memory. DuckDB computes, on the same memory where it can."""

    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:
        """Remove dictionaries, whose values may be of any type, and rename: DuckDB ignores case."""
        arrow = import_extra("pyarrow", "files")
        names = {name: f"column{place}" for place, name in enumerate(wanted)}
        held = frame.lazy().collect()
        columns = {}
        for name, column in self.arrow_columns(held, wanted).items():
            columns[names[name]] = column
            if arrow.types.is_dictionary(column.type):
                chunks = [chunk.dictionary_decode() for chunk in column.chunks]
                columns[names[name]] = arrow.chunked_array(chunks, column.type.value_type)
        # A table without columns would have no rows.
        return wrapped(arrow.table(columns or {"nothing": arrow.nulls(len(held))})), names

    def arrow_columns(self, frame: "DataFrame", wanted: Sequence[str]) -> dict[str, ArrowObject]:
        """Return columns as Arrow holds them."""
        table = frame.to_arrow()
        return {name: table[name] for name in wanted}

    def load(self, frame: "Frame") -> "Frame":
        return wrapped(import_extra("duckdb", "engines").connect().from_arrow(frame.to_native()))


class _Pandas(_InMemory):
    def arrow_columns(self, frame: "DataFrame", wanted: Sequence[str]) -> dict[str, ArrowObject]:
        """Refuse objects that are not all text: Arrow and narwhals take the first ones for all."""
        native = frame.to_native()
        return {name: _arrow_column(name, native[name]) for name in wanted}


def _arrow_column(name: str, column: "Series") -> ArrowObject:
    arrow, infer_dtype = import_module("pyarrow"), import_module("pandas").api.types.infer_dtype
    is_category = str(column.dtype) == "category"
    held = column.cat.categories if is_category else column
    if held.dtype == "object" and infer_dtype(held, skipna=True) not in _TEXTS:
        what = "has categories" if is_category else "holds Python objects"
        raise ArgumentError(
            f"Column {name!r} {what} that are not all text. Convert it to a type of pandas first, "
            "as in frame.astype({" + repr(name) + ': "Int64"}).'
        )
    # Objects are text, even if all are missing.
    if held.dtype == "object" and (held.empty or not is_category):
        found = arrow.array(column.astype("object"), arrow.string(), from_pandas=True)
    else:
        found = arrow.array(column, from_pandas=True)
    return found if isinstance(found, arrow.ChunkedArray) else arrow.chunked_array([found])


DUCKDB: Final = _DuckDB()
_RUNNERS: Final[dict[str, Runner]] = {
    "duckdb": DUCKDB,
    "pandas": _Pandas(),
    "polars": Runner(),
    "pyspark": _Spark(),
}
_IN_MEMORY: Final = _InMemory()


def runner_of(frame: "Frame") -> Runner:
    """Return what runs queries on a frame."""
    return _RUNNERS.get(frame.implementation.value, _IN_MEMORY)
