"""Bound the contribution of each person: their groups, their rows in each, and all their rows.

A hash of each row selects the rows that count; among equal hashes, the rows themselves decide. Rows
with equal columns are interchangeable. So which rows of a person count does not change when another
person comes or goes, nor when a task is repeated. The hash is public: a person who knows it can
choose which of their rows count, but not how many.

The hashes do not depend on the types of columns. A reader infers types from all rows: one empty
cell or one 0.5 turns integers into floats, one word turns them into text. So each value enters the
hash as two parts, one of which is null:

- the number: the float64 nearest to an integer, a float, a decimal, or text that is a number;
- the text: other text in lower case, "true" or "false", a date as 2024-02-29, a time as
  2024-02-29 10:30:00 in UTC, at midnight as its date.

Different values may have the same parts, such as 7 and the text 07. Their hashes are then equal,
and the values themselves decide.

DuckDB and Spark run this as SQL, with the column names of `frames`. Other frames go to DuckDB.

DuckDB holds the persons of a query in memory. If there are many rows, disjoint parts of the persons
are answered one after the other, and the answers are added. A hash of the id decides the part.
Since what counts of a person depends only on their rows, the number of parts changes no answer.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any, Final, Self, TypeVar

import narwhals as nw
from narwhals.dtypes import DType

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import arithmetic, keys
from dpnoise.statistics.engines.arithmetic import FLOATS, WIDEST, Frame
from dpnoise.statistics.engines.runners import Connect, Data, FileColumns, open_duckdb
from dpnoise.statistics.plan import PersonValue, Sums, Unit

LOST: Final = "lost"  # The column that flags rows without an id.
WHOLE: Final = "own"  # The column of a row's value in grid steps, for the value of a person.
_MIDNIGHT: Final = "' 00:00:00$'"  # A regular expression, quoted for SQL.
_LAST_DIGIT: Final = 57  # The code of 9: text that begins with a later character is not a number.
_ROUNDED_TWICE: Final = ("decimal", "hugeint", "uhugeint")  # By a direct cast to floats.
# Prefixes of the names of types without numbers.
_WORDS: Final = ("bool", "date", "timestamp", "uuid")
_LONGEST_HEAP: Final = 1_000  # The most rows per person in DuckDB's heap; for more we sort.
_FARTHEST: Final = 2**51  # Bound on a row in a person's sum, in grid steps; still exact.
_ENTRY_BYTES: Final = 48  # Memory for each entry of a row while DuckDB bounds persons; measured.
_MEMORY_DIVISOR: Final = 3  # A part of the persons may need 1/3 of DuckDB's memory limit.
# The units in which DuckDB writes its memory limit. Without a limit, it is 16,384 PiB.
_UNITS: Final = {
    name: 1024**power for power, name in enumerate(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"))
}
_MORE_PARTS: Final = 8  # The factor of the number of parts if there is not enough memory.
_MOST_PARTS: Final = 4_096
_TOO_LITTLE_MEMORY: Final = "OutOfMemoryException"  # The name of DuckDB's error.
_IDS: Final = (nw.Boolean, nw.Date, nw.Datetime, nw.Decimal)


_T = TypeVar("_T")


@dataclass(frozen=True)
class IdFlag:
    """A column that is 1 for rows whose id is missing or wrong, and 0 for others."""

    name: str
    flag: nw.Expr
    error: ArgumentError | None  # None if such rows count.


def id_flags(unit: Unit, data: Data) -> list[IdFlag]:
    """Return the flags of ids; raise if a column that is declared as text does not hold text."""
    flags = [_missing_flag(unit, data)]
    for index, name in enumerate(unit.columns):
        column, dtype = data.column(name), data.schema[name]
        if dtype in FLOATS:
            is_inexact = _is_inexact(column, dtype)
            flags.append(_flag(f"inexact{index}", is_inexact, keys.inexact_error(name)))
        if name in unit.text and not keys.is_text(dtype):
            raise keys.not_text_error(name)
        if keys.is_text(dtype) and name not in unit.text and data.ambiguous_text is not None:
            text = column.cast(nw.String)
            is_other = text.str.contains(data.ambiguous_text)
            is_ambiguous = is_other & ~text.str.contains(keys.CANONICAL_TEXT)
            flags.append(_flag(f"ambiguous{index}", is_ambiguous, keys.ambiguous_error(name)))
    return flags


def check_id_flags(flags: Sequence[IdFlag], result: Mapping[str, Iterable[object]]) -> None:
    """Raise the error of the first flag that is set in a result."""
    for flag in flags:
        if flag.error is not None and any(result[flag.name]):
            raise flag.error


def _flag(name: str, is_set: nw.Expr, error: ArgumentError | None) -> IdFlag:
    return IdFlag(name, nw.when(is_set).then(nw.lit(1)).otherwise(nw.lit(0)), error)


def _missing_flag(unit: Unit, data: Data) -> IdFlag:
    """Return the flag of rows without an id, each of which may count as a separate person."""
    is_missing = reduce(or_, (as_id(name, data).is_null() for name in unit.columns))
    error = ArgumentError(
        f"Some rows do not identify a person: {' or '.join(unit.columns)} is missing. Remove "
        "them from the data, or count each as a separate person: {without_id}. A person is then "
        "protected less if several of their rows have no id.",
        without_id="own",
    )
    return _flag(LOST, is_missing, error if unit.without_id == "error" else None)


def _is_inexact(column: nw.Expr, dtype: DType) -> nw.Expr:
    """Return whether an id in a column of floats is not whole, or not below 2^53.

    A reader that turned integers into floats may have rounded it, and merged two persons.
    """
    number, limit = column.cast(nw.Float64), arithmetic.exact_limit(dtype)
    is_exact = (number == number.floor()) & (number > -limit) & (number < limit)
    return ~(is_exact | number.is_nan())


def as_id(name: str, data: Data) -> nw.Expr:
    """Return a column of person ids; null where the id is missing, NaN or empty."""
    column, dtype = data.column(name), data.schema[name]
    if dtype in WIDEST:  # Arrow has no 128-bit integers.
        return column.cast(nw.String)
    if dtype in FLOATS:
        number = column.cast(nw.Float64) + 0.0  # Turns -0.0 into 0.0.
        return nw.when(~number.is_nan()).then(number)
    if keys.is_text(dtype):
        text = column.cast(nw.String)
        return nw.when(text != "").then(text)
    if arithmetic.limits(dtype) is None and dtype.base_type() not in _IDS:
        raise ArgumentError(
            f"Column {name!r} holds {arithmetic.type_name(dtype)}, which cannot identify a person. "
            "Convert it to text or integers first."
        )
    return column


def whole_person_value(value: nw.Expr, is_present: nw.Expr, person_value: PersonValue) -> nw.Expr:
    """Return the value of a row in grid steps, as it enters the sum or mean of a person."""
    is_mean = person_value.kind == "mean"
    ends = (person_value.least, person_value.most) if is_mean else (-_FARTHEST, _FARTHEST)
    whole = arithmetic.clamp_to_grid(value, Sums(person_value.column, person_value.grid, *ends))
    return nw.when(is_present).then(whole.cast(nw.Int64)).otherwise(nw.lit(0, nw.Int64))


@dataclass(frozen=True)
class _Dialect:
    mixed: str  # A hash of ids and others: DuckDB combines columns by XOR, and must mix again.
    wide: str  # An integer with a sum of 128 bits.
    divided: str  # The operator of integer division, rounded towards zero.
    text: str  # The name of the text type.
    zoned: str  # A pattern of the names of types for times with a zone.
    utc: str  # Converts such a time to UTC without a zone.


@dataclass(frozen=True)
class InDuckDB:
    """Rows in DuckDB."""

    relation: Any  # A relation of DuckDB, or a frame of Spark.
    dialect = _Dialect(
        mixed="hash(hash(hash({}), hash({})))",
        wide="CAST({} AS BIGINT)",
        divided="//",
        text="VARCHAR",
        zoned="timestamp with.*|timestamptz.*",
        utc="make_timestamp(epoch_us(CAST({} AS TIMESTAMPTZ)))",
    )

    def type_of(self, name: str) -> str:
        """Return the SQL name of the type of a column."""
        return str(self.relation.types[self.relation.columns.index(name)])

    def selection_keys(self, name: str) -> list[str]:
        """Return the SQL of the two parts of a column, number and text, that enter a hash."""
        text, kind = self.dialect.text, self.type_of(name).lower()
        source = f"CAST({name} AS {text})" if kind.startswith(_ROUNDED_TWICE) else name
        number = f"TRY_CAST({source} AS DOUBLE) + CAST(0 AS DOUBLE)"  # -0.0 becomes 0.0.
        if kind.startswith(text.lower()):  # Failed casts are slow.
            number = f"CASE WHEN ascii({name}) <= {_LAST_DIGIT} THEN {number} END"
            return [number, f"CASE WHEN ({number}) IS NULL THEN lower({name}) END"]
        if not kind.startswith(_WORDS):
            return [number, f"CAST(NULL AS {text})"]
        if re.fullmatch(self.dialect.zoned, kind):
            name = self.dialect.utc.format(name)
        day = f"regexp_replace(CAST({name} AS {text}), {_MIDNIGHT}, '')"
        return ["CAST(NULL AS DOUBLE)", day]

    def project(self, columns: Sequence[str]) -> Self:
        """Return these columns, given as SQL."""
        return type(self)(self.relation.project(", ".join(columns)))

    def filter_rows(self, condition: str) -> Self:
        """Return the rows that meet a condition."""
        return type(self)(self.relation.filter(condition))

    def number_of_parts(self, columns: int, row_count: int | None) -> int:
        """Return the number of parts in which to bound persons, from the size of the rows."""
        counted, memory_limit = self.count_rows(is_needed=row_count is None)
        size = (row_count or counted) * columns * _ENTRY_BYTES
        return 1 + size * _MEMORY_DIVISOR // memory_limit

    def count_rows(self, *, is_needed: bool) -> tuple[int, int]:
        """Return the number of rows, 0 if it is not needed, and DuckDB's memory limit in bytes.

        The limit is 80 % of the machine's memory, unless it is set.
        """
        rows = self.relation if is_needed else self.relation.limit(0)
        counted = rows.aggregate("count(*), current_setting('memory_limit')")
        ((number, text),) = counted.fetchall()  # 18.8 GiB
        limit, unit = text.split()
        return number, int(float(limit) * _UNITS[unit])

    def part(self, ids: Sequence[str], index: int, parts: int) -> Self:
        """Return the rows of one of several disjoint parts of the persons."""
        if parts == 1:
            return self
        return self.filter_rows(f"hash({', '.join(ids)}) % {parts} = {index}")

    def group_by(self, by: Sequence[str], sums: Sequence[str] = ()) -> Self:
        """Return one row for each group, with sums."""
        return type(self)(self.relation.aggregate(", ".join([*by, *sums]), ", ".join(by)))

    def first_rows(
        self, number: int, by: Sequence[str], order: Sequence[str], columns: Sequence[str]
    ) -> Self:
        """Return columns of the first `number` rows of each group, ordered by a hash and columns.

        `columns` are among those of `by` and of `order`.
        """
        if number > _LONGEST_HEAP:
            return self._first_by_sorting(number, by, order, columns)
        # The fastest way: it neither sorts nor holds more rows than it keeps.
        mixed, *kept = order
        fields = ", ".join([f"mixed := {mixed}", *(f"{name} := {name}" for name in kept)])
        heads = self.group_by(by, [f"unnest(min(struct_pack({fields}), {number})) AS one"])
        return heads.project([name if name in by else f"one.{name} AS {name}" for name in columns])

    def _first_by_sorting(
        self, number: int, by: Sequence[str], order: Sequence[str], columns: Sequence[str]
    ) -> Self:
        rows = f"PARTITION BY {', '.join(by)} ORDER BY {', '.join(order)}"
        placed = self.project([*columns, f"row_number() OVER ({rows}) AS place"])
        return placed.filter_rows(f"place <= {number}").project(columns)

    def semi_join(self, other: Self, names: Sequence[str]) -> Self:
        """Return the rows that the other has too; null equals null."""
        same = " AND ".join(f"mine.{name} IS NOT DISTINCT FROM theirs.{name}" for name in names)
        mine, theirs = self.relation.set_alias("mine"), other.relation.set_alias("theirs")
        return type(self)(mine.join(theirs, same, how="semi"))

    def union_all(self, other: Self) -> Self:
        """Return the rows of both, which have the same columns in the same order."""
        return type(self)(self.relation.union(other.relation))


class _InSpark(InDuckDB):
    """Rows in Spark, with its functions and methods."""

    dialect = _Dialect(
        mixed="xxhash64({}, {})",
        wide="CAST({} AS DECIMAL(20, 0))",
        divided="div",
        text="STRING",
        zoned="timestamp",
        utc="to_utc_timestamp({}, current_timezone())",
    )

    def type_of(self, name: str) -> str:
        return str(dict(self.relation.dtypes)[name])

    def project(self, columns: Sequence[str]) -> Self:
        return type(self)(self.relation.selectExpr(*columns))

    def number_of_parts(self, columns: int, row_count: int | None) -> int:
        """Return 1: Spark divides the rows among its workers, and writes what they cannot hold."""
        del columns, row_count
        return 1

    def group_by(self, by: Sequence[str], sums: Sequence[str] = ()) -> Self:
        if not sums:
            return type(self)(self.relation.select(*by).distinct())
        functions = import_module("pyspark.sql.functions")
        return type(self)(self.relation.groupBy(*by).agg(*map(functions.expr, sums)))

    def first_rows(
        self, number: int, by: Sequence[str], order: Sequence[str], columns: Sequence[str]
    ) -> Self:
        return self._first_by_sorting(number, by, order, columns)

    def semi_join(self, other: Self, names: Sequence[str]) -> Self:
        same = " AND ".join(f"mine.{name} <=> theirs.{name}" for name in names)
        mine, theirs = self.relation.alias("mine"), other.relation.alias("theirs")
        expression = import_module("pyspark.sql.functions").expr(same)
        return type(self)(mine.join(theirs, expression, "left_semi"))


def rows_of(frame: Frame, connect: Connect = open_duckdb) -> InDuckDB:
    """Return the rows of a frame in an engine that can bound them, which `connect` opens."""
    engine = frame.implementation
    if engine.is_pyspark():
        return _InSpark(frame.to_native())
    if engine.is_duckdb():
        return InDuckDB(frame.to_native())
    # A frame of Polars: `runners` has moved the other frames in memory to DuckDB.
    return InDuckDB(connect().from_arrow(frame.lazy().collect(engine="streaming").to_arrow()))


@dataclass(frozen=True)
class Names:
    """The names of the columns of rows.

    `values` are, for each column of numbers, whether a row has a value, and that value. `flags` are
    0 or 1, and mark rows that raise an error later, or rows without an id.
    """

    ids: list[str]
    keys: list[str]
    values: list[str]
    flags: list[str]


def answer_in_parts(
    rows: InDuckDB, names: Names, file: FileColumns | None, answer: Callable[[InDuckDB], _T]
) -> list[_T]:
    """Return an answer for each of several parts of the persons, which have no person in common.

    The number of rows and the memory limit of DuckDB decide how many parts there are.
    """
    columns = len([*names.ids, *names.keys, *names.values, *names.flags])
    # Counting the rows of other files would read them once more.
    parts = 1 if file is not None and file.row_count is None else 0
    parts = parts or rows.number_of_parts(columns, None if file is None else file.row_count)
    while True:
        try:
            return [answer(rows.part(names.ids, index, parts)) for index in range(parts)]
        except Exception as error:
            if type(error).__name__ != _TOO_LITTLE_MEMORY or parts >= _MOST_PARTS:
                raise
        parts *= _MORE_PARTS


def bound_contributions(rows: InDuckDB, unit: Unit, names: Names, groups: int) -> InDuckDB:
    """Return the rows that count.

    A row without an id may count as a separate person. Otherwise all such rows are treated as one
    person, and an error is raised later.
    """
    if unit.without_id == "error":
        return _bound_known_persons(rows, unit, names, groups)
    known = _bound_known_persons(rows.filter_rows(f"{LOST} = 0"), unit, names, groups)
    return known.union_all(_rows_as_persons(rows.filter_rows(f"{LOST} = 1"), unit, names))


def bound_values(rows: InDuckDB, unit: Unit, names: Names, value: str, groups: int) -> InDuckDB:
    """Return the different values of each person in each group that count.

    Rows with a flag are added unchanged: each is a separate person, or raises an error later.
    """
    is_plain = " AND ".join(f"{name} = 0" for name in names.flags)
    counted = rows.filter_rows(is_plain)
    if unit.max_groups < groups:
        chosen = choose_groups(counted, unit.max_groups, names)
        counted = counted.semi_join(chosen, [*names.ids, *names.keys])
    in_group = replace(names, ids=[*names.ids, *names.keys], keys=[value])
    counted = choose_groups(counted, unit.max_rows, in_group)
    pairs = replace(names, keys=[*names.keys, value])
    if (total := _total_limit(unit, groups)) is not None:
        counted = choose_groups(counted, total, pairs)
    counted = counted.project([*pairs.keys, *(f"0 AS {name}" for name in names.flags)])
    flagged = rows.filter_rows(f"NOT ({is_plain})").project([*pairs.keys, *names.flags])
    return counted.union_all(flagged)


def _rows_as_persons(rows: InDuckDB, unit: Unit, names: Names) -> InDuckDB:
    """Return rows that are one person each, in the same columns as other rows."""
    if unit.person_value is None or not names.values:
        return rows.project([*names.keys, *names.values, *names.flags])
    whole, present = _whole_and_present(rows, names)
    totals = rows.project([*names.keys, *names.flags, f"{whole} AS total", f"{present} AS present"])
    return _values_of_persons(totals, unit.person_value, names)


def _bound_known_persons(rows: InDuckDB, unit: Unit, names: Names, groups: int) -> InDuckDB:
    person = [*names.ids, *names.keys]
    total = _total_limit(unit, groups)
    if unit.max_groups < groups and (total is None or unit.max_groups < total):
        rows = rows.semi_join(choose_groups(rows, unit.max_groups, names), person)
    if unit.person_value is not None and names.values:
        whole, present = _whole_and_present(rows, names)
        totals = [f"sum({whole}) AS total", f"sum({present}) AS present"]
        totals += [f"max({name}) AS {name}" for name in names.flags]
        return _values_of_persons(rows.group_by(person, totals), unit.person_value, names)
    # `frames` has converted values to floats, and flags for missing ones.
    columns = [*names.keys, *names.values, *names.flags]
    if total is None or unit.max_rows < total:
        order = [_hash(rows, names.ids, names.values, tag=2), *names.values, *names.flags]
        kept = columns if total is None else [*names.ids, *columns]
        rows = rows.first_rows(unit.max_rows, person, order, kept)
    return rows if total is None else _first_in_all_groups(rows, total, names)


def _total_limit(unit: Unit, groups: int) -> int | None:
    """Return `max_total_rows` if it can leave out rows that the other limits do not."""
    total = unit.max_total_rows
    if total is None or unit.person_value is not None:
        return None
    return total if total < min(unit.max_groups, groups) * unit.max_rows else None


def _first_in_all_groups(rows: InDuckDB, number: int, names: Names) -> InDuckDB:
    """Return the first `number` rows of each person, of all groups together."""
    keys, columns = _Keys.of(rows, names), [*names.keys, *names.values, *names.flags]
    if keys.added:
        rows = rows.project([*names.ids, *columns, *keys.added])
    mixed = _hash(rows, names.ids, [*keys.hashed, *names.values], tag=3)
    order = dict.fromkeys([mixed, *keys.texts, *columns])
    return rows.first_rows(number, names.ids, list(order), columns)


def _whole_and_present(rows: InDuckDB, names: Names) -> tuple[str, str]:
    """Return the SQL of what a row adds to the total and the number of values of its person."""
    is_present, _ = names.values
    return rows.dialect.wide.format(WHOLE), f"CAST({is_present} AS INT)"


def choose_groups(rows: InDuckDB, max_groups: int, names: Names) -> InDuckDB:
    """Return the ids and keys of the groups that count, at most `max_groups` of each id."""
    keys, person = _Keys.of(rows, names), [*names.ids, *names.keys]
    order = dict.fromkeys([_hash(rows, names.ids, keys.hashed, tag=1), *keys.texts, *names.keys])
    return rows.group_by(person, keys.added).first_rows(max_groups, names.ids, list(order), person)


@dataclass(frozen=True)
class _Keys:
    """The keys of groups as SQL: for a hash, and as text.

    Among equal hashes, keys are ordered as text: numbers would have another order.
    """

    hashed: list[str]
    texts: list[str]  # The names of columns with the keys as text.
    added: list[str]  # The columns to add for that.

    @classmethod
    def of(cls, rows: InDuckDB, names: Names) -> Self:
        text = rows.dialect.text
        others = [key for key in names.keys if rows.type_of(key).upper() != text]
        return cls(
            [part for key in names.keys for part in rows.selection_keys(key)],
            [f"text_of_{key}" if key in others else key for key in names.keys],
            [f"CAST({key} AS {text}) AS text_of_{key}" for key in others],
        )


def _hash(rows: InDuckDB, ids: Sequence[str], others: Sequence[str], tag: int) -> str:
    """Return the SQL of a hash of ids and other columns; each tag gives a different hash."""
    person = ", ".join(part for name in ids for part in rows.selection_keys(name))
    return rows.dialect.mixed.format(person, ", ".join([*others, str(tag)]))


def _values_of_persons(totals: InDuckDB, person_value: PersonValue, names: Names) -> InDuckDB:
    """Return one row for each person and group, with the sum or mean as its value."""
    is_present, value = names.values
    least, most = person_value.least, person_value.most
    if person_value.kind == "sum":
        whole = f"least(greatest(total, {least}), {most})"
    else:  # The lower bound plus floor(m + 1/2), for the mean m above it.
        above = f"(2 * (total - {least} * present) + present)"
        whole = f"({above} {totals.dialect.divided} greatest(2 * present, 1)) + {least}"
    number = f"CAST({whole} AS DOUBLE) * CAST('{person_value.grid!r}' AS DOUBLE)"
    number = f"CASE WHEN present > 0 THEN {number} ELSE CAST(0 AS DOUBLE) END"
    values = [f"present > 0 AS {is_present}", f"{number} AS {value}"]
    return totals.project([*names.keys, *names.flags, *values])
