"""What differs between engines: how frames are prepared, filtered, and added up.

Preparation removes quirks of pandas, Arrow and others, so that every engine computes the same. Only
the columns that a plan reads are looked at. Those that cannot be made plain are refused.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, import_extra
from dpnoise.statistics.engines.arithmetic import ROWS, EngineTraits
from dpnoise.statistics.plan import Key

if TYPE_CHECKING:
    import narwhals as nw
    from duckdb import DuckDBPyRelation, Expression
    from pandas import CategoricalDtype, Series
    from pyspark.sql import Column

    DataFrame = nw.DataFrame[Any]
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


# The sums of a plan under None, the counts of its cells under their code.
Tables = dict[str | None, "DataFrame"]


class Runner:
    """An engine whose rows are in memory: narwhals adds up for each group, then for each cell."""

    traits = EngineTraits()
    answers_in_one_scan = False  # Whether it answers several plans so.

    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:  # noqa: ARG002 - others need it
        """Return a frame that computes as it should, and what its columns are called in it."""
        return frame, {name: name for name in frame.collect_schema()}

    def without_collation(self, frame: "Frame") -> "Frame":
        """Return a frame whose texts are compared as they are.

        Else one row could decide how a group of several spellings is written, and who two persons
        are.
        """
        return frame

    def keep_declared_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        """Keep the rows whose key is one of some values."""
        return frame.filter(nw.col(key).is_in(_with_negative_zero(values)))

    def mask_other_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        """Set a key to null where it is none of some values."""
        is_declared = nw.col(key).is_in(_with_negative_zero(values))
        return frame.with_columns(**{key: nw.when(is_declared).then(nw.col(key))})

    def run(self, frame: "Frame", parts: Sequence[Part]) -> list[Tables]:
        """Add up what each plan wants."""
        lazy = []
        for part in parts:
            kept = _with_keys(frame, part) if len(parts) > 1 else frame
            lazy += [_grouped(kept, part, code) for code in (None, *part.codes)]
        results = iter(self._collected(lazy))
        return [{code: next(results) for code in (None, *part.codes)} for part in parts]

    def _collected(self, frames: Sequence["Frame"]) -> Iterable["DataFrame"]:
        return [one.collect() if isinstance(one, nw.LazyFrame) else one for one in frames]


def _with_negative_zero(values: list[Key]) -> list[Key]:
    """Return floats with both zeros, of which Arrow compares the bits."""
    return [*values, -0.0] if 0.0 in values and isinstance(values[0], float) else values


def _with_keys(frame: "Frame", part: Part) -> "Frame":
    present = [~nw.col(key).is_null() for key in part.keys]
    return frame.filter(*present) if present else frame


def _grouped(frame: "Frame", part: Part, code: str | None) -> "Frame":
    by = part.keys if code is None else [*part.keys, code]
    summed = part.summed if code is None else {}
    sums = [nw.len().alias(ROWS), *(nw.col(name).sum().alias(name) for name in summed)]
    return frame.group_by(by).agg(*sums) if by else frame.select(*sums)


@dataclass(frozen=True)
class _GroupingSets:
    """What engines with GROUPING SETS group by, in one scan: each set once, or it counts twice."""

    sets: list[list[str]]
    names: list[str]  # All columns that are in a set.
    flagged: list[str]  # Those that are not in all sets, so that a flag says if they are.
    summed: dict[str, bool]

    def tables(self, result: "DataFrame", part: Part) -> Tables:
        """Take from a result what is about one plan. Sums are in the counts of its first cells."""
        tables: Tables = {}
        codes: list[str | None] = [*part.codes] or [None]
        for code, one in zip(codes, _sets(part), strict=True):
            conditions = [nw.col(_SKIPPED + name) == int(name not in one) for name in self.flagged]
            conditions += [~nw.col(key).is_null() for key in part.keys]
            tables[code] = result.filter(*conditions) if conditions else result
        return {None: next(iter(tables.values())), **tables}


def _sets(part: Part) -> list[list[str]]:
    return [[*part.keys, code] for code in part.codes] or [part.keys]


def _grouping_sets(parts: Sequence[Part]) -> _GroupingSets:
    sets = list({frozenset(one): one for part in parts for one in _sets(part)}.values())
    names = list(dict.fromkeys(name for one in sets for name in one))
    flagged = [name for name in names if any(name not in one for one in sets)]
    return _GroupingSets(sets, names, flagged, _all_summed(parts))


def _all_summed(parts: Sequence[Part]) -> dict[str, bool]:
    return {name: is_wide for part in parts for name, is_wide in part.summed.items()}


class _DuckDB(Runner):
    traits = EngineTraits(
        adds_in_128_bits=True, casts_integers=True, divides_decimals=True, clips=False
    )
    answers_in_one_scan = True

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
        columns = zip(relation.columns, map(str, relation.types), strict=True)
        plain = (
            f"{name} COLLATE POSIX AS {name}" if kind == "VARCHAR" else name
            for name, kind in columns
        )
        return wrapped(relation.project(", ".join(plain)))

    def keep_declared_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        return wrapped(frame.to_native().filter(self._is_declared(key, values)))

    def mask_other_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        duckdb = import_module("duckdb")
        declared = self._is_declared(key, values)
        masked = duckdb.CaseExpression(declared, duckdb.ColumnExpression(key)).alias(key)
        others = duckdb.StarExpression(exclude=[key])
        return wrapped(frame.to_native().select(others, masked))

    @staticmethod
    def _is_declared(key: str, values: list[Key]) -> "Expression":
        """Return an IN, which DuckDB hashes: narwhals would search a list for every row."""
        duckdb = import_module("duckdb")
        condition: Expression = duckdb.ColumnExpression(key).isin(
            *map(duckdb.ConstantExpression, values)
        )
        return condition

    def run(self, frame: "Frame", parts: Sequence[Part]) -> list[Tables]:
        grouping = _grouping_sets(parts)
        columns = [*grouping.names, f"count(*) AS {ROWS}"]
        columns += [f"grouping({name}) AS {_SKIPPED}{name}" for name in grouping.flagged]
        for name, is_wide in grouping.summed.items():  # Arrow has decimals alone of 128 bits.
            kind = "DECIMAL(38, 0)" if is_wide else "BIGINT"
            columns.append(f"CAST(sum({name}) AS {kind}) AS {name}")
        sets = ", ".join(f"({', '.join(one)})" for one in grouping.sets)
        result = frame.to_native().aggregate(", ".join(columns), f"GROUPING SETS ({sets})")
        collected = wrapped(result).lazy().collect()  # Once: each time would be another scan.
        return [grouping.tables(collected, part) for part in parts]


class _Spark(Runner):
    traits = EngineTraits(casts_integers=True, divides_decimals=True, clips=False)
    answers_in_one_scan = True

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

    def keep_declared_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        native = frame.to_native()
        return wrapped(native.where(native[key].isin(*_spark_literals(values))))

    def mask_other_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        native, when = frame.to_native(), import_module("pyspark.sql.functions").when
        masked = when(native[key].isin(*_spark_literals(values)), native[key])
        return wrapped(native.withColumn(key, masked))

    def run(self, frame: "Frame", parts: Sequence[Part]) -> list[Tables]:
        functions = import_module("pyspark.sql.functions")
        column = functions.col  # By name: those of a frame are ambiguous where it was joined.
        grouping, native = _grouping_sets(parts), frame.to_native()
        added = [functions.count("*").alias(ROWS)]
        added += [functions.sum(column(name)).alias(name) for name in grouping.summed]
        added += [
            functions.grouping(column(name)).alias(_SKIPPED + name) for name in grouping.flagged
        ]
        names = [column(name) for name in grouping.names]
        sets = [[column(name) for name in one] for one in grouping.sets]
        grouped = native.groupingSets(sets, *names) if len(sets) > 1 else native.groupBy(*names)
        collected = wrapped(grouped.agg(*added)).lazy().collect()
        return [grouping.tables(collected, part) for part in parts]


def _spark_literals(values: list[Key]) -> list["Column"]:
    """Return keys as Spark has them; dates from text, because it cannot take those before 1000."""
    lit = import_module("pyspark.sql.functions").lit

    def literal(value: Key) -> "Column":
        if isinstance(value, dt.datetime):
            return lit(value.isoformat(sep=" ")).cast("timestamp_ntz")
        return lit(value.isoformat()).cast("date") if isinstance(value, dt.date) else lit(value)

    return list(map(literal, values))


class _Polars(Runner):
    traits = EngineTraits(adds_in_128_bits=True, casts_integers=True, counts_comparisons=True)
    answers_in_one_scan = True

    def run(self, frame: "Frame", parts: Sequence[Part]) -> list[Tables]:
        wide = [name for name, is_wide in _all_summed(parts).items() if is_wide]
        widened = frame.lazy().with_columns(nw.col(name).cast(nw.Int128) for name in wide)
        return super().run(widened, parts)

    def _collected(self, frames: Sequence["Frame"]) -> Iterable["DataFrame"]:
        """Let Polars stream, and share the steps that all results begin with."""
        polars = nw.get_native_namespace(frames[0])
        lazy = [frame.to_native() for frame in frames]
        return map(nw.from_native, polars.collect_all(lazy, engine="streaming"))


class _Arrow(Runner):
    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:
        """Remove dictionaries, whose values may be of any type."""
        table, types = frame.to_native(), import_module("pyarrow").types
        for place, column in enumerate(table.schema):
            if column.name in wanted and types.is_dictionary(column.type):
                plain = table.column(place).cast(column.type.value_type)
                table = table.set_column(place, column.name, plain)
        return super().prepare(wrapped(table), wanted)

    def keep_declared_groups(self, frame: "Frame", key: str, values: list[Key]) -> "Frame":
        """Keep them by Arrow's own function: narwhals would take uint64 for int64."""
        arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        table = frame.to_native()
        declared = arrow.array(_with_negative_zero(values), table[key].type)
        return wrapped(table.filter(compute.is_in(table[key], value_set=declared)))


class _Pandas(Runner):
    def prepare(self, frame: "Frame", wanted: Sequence[str]) -> tuple["Frame", dict[str, str]]:
        """Remove categories of numbers and Arrow's uint64, and refuse mixed objects.

        narwhals would take a column of objects for text by its first rows, write categories as the
        type of all of them prints them, and take literals next to Arrow's uint64 for int64.
        """
        native = frame.to_native().copy(deep=False)
        for name in wanted:
            # Missing columns, and several of one name, are errors later.
            if name in native and getattr(native[name], "ndim", 1) == 1:
                column = native[name]
                plain = _plain_column(name, column)
                if plain is not column:
                    native[name] = plain
        return super().prepare(wrapped(native), wanted)


def _plain_column(name: str, column: "Series") -> "Series":
    pandas, kind = import_module("pandas"), column.dtype
    if kind == "object":
        if pandas.api.types.infer_dtype(column, skipna=True) not in _TEXTS:
            raise ArgumentError(
                f"Column {name!r} holds Python objects that are not all text. Convert it to a type "
                "of pandas first, as in frame.astype({" + repr(name) + ': "Int64"}).'
            )
    elif kind == "uint64[pyarrow]":  # By `astype` they would go through floats.
        missing = column.isna().to_numpy()
        return pandas.arrays.IntegerArray(column.fillna(0).to_numpy("uint64"), missing)
    elif str(kind) == "category" and kind.categories.inferred_type not in _TEXTS:
        return column.astype(_type_of_categories(name, kind.categories.dtype))
    elif str(kind).startswith("dictionary"):
        return column.astype(pandas.ArrowDtype(kind.pyarrow_dtype.value_type))
    return column


def _type_of_categories(name: str, kind: "CategoricalDtype") -> object:
    """Return the type of a column for the values of categories of this type."""
    if kind == "object":
        raise ArgumentError(
            f"Column {name!r} has categories that are not all text. Convert it to a type of "
            "pandas first."
        )
    # A missing category would turn integers into floats.
    return {"i": "Int64", "u": "UInt64", "b": "boolean"}.get(kind.kind, kind)


DUCKDB: Final = _DuckDB()
_RUNNERS: Final[dict[str, Runner]] = {
    "duckdb": DUCKDB,
    "pandas": _Pandas(),
    "polars": _Polars(),
    "pyarrow": _Arrow(),
    "pyspark": _Spark(),
}
_IN_MEMORY: Final = Runner()


def runner_of(frame: "Frame") -> Runner:
    """Return what runs queries on a frame."""
    return _RUNNERS.get(frame.implementation.value, _IN_MEMORY)
