"""Bound what counts of each person: some of their groups, and some of their rows in each.

Hashes of a person's own rows select them, and where hashes are equal the rows themselves; rows that
are equal in everything count the same. So what counts of one person does not change when another
comes or goes, nor when a task is repeated. The hash is public: a person who knows it can choose
which of their rows count, but not how many.

The hashes do not depend on the types of columns. A reader infers these from all rows: one empty
cell or one 0.5 turns integers into floats, one word turns them into text. So a hash is taken of two
parts of a value, of which one is null:

- the number: the float64 nearest to an integer, a float, a decimal, or text that reads as a number;
- the text: other text in lower case, "true" or "false", a date as 2024-02-29, a time as
  2024-02-29 10:30:00 in UTC, at midnight as its date.

Different values may have the same parts, such as 7 and the text 07. Their hashes are then equal,
and the values themselves decide.

DuckDB and Spark do it in SQL, on names that `frames` has given; other frames go to DuckDB first.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import arithmetic, keys
from dpnoise.statistics.engines.arithmetic import FLOATS, WIDEST
from dpnoise.statistics.plan import Own, Sums, Unit

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.dtypes import DType

    from dpnoise.statistics.engines.runners import Frame
else:
    nw = import_extra("narwhals", "engines")

LOST: Final = "lost"  # The column that tells which rows have no id.
_MIDNIGHT: Final = "' 00:00:00$'"  # A regular expression, as SQL has it.
_LAST_DIGIT: Final = 57  # The code of 9: no text that begins after it reads as a number.
_ROUNDED_TWICE: Final = ("decimal", "hugeint", "uhugeint")  # Where they are cast to floats.
_WORDS: Final = (
    "bool",
    "date",
    "timestamp",
    "uuid",
)  # How the names of types without numbers begin.
_LONGEST_HEAP: Final = 1_000  # Of rows that DuckDB keeps of a person; for more it sorts.
_FARTHEST: Final = 2**51  # Of a row in a person's own sum, in whole grids: still exact.
_TEXTS: Final = (nw.String, nw.Categorical, nw.Enum)
_IDS: Final = (nw.Boolean, nw.Date, nw.Datetime, nw.Decimal)


@dataclass(frozen=True)
class IdFlag:
    """A column that flags, by 0 or 1, ids of which an error is made."""

    name: str
    column: str  # That of the ids.
    is_wrong: "nw.Expr"
    error: Callable[[str], ArgumentError]


def id_flags(
    unit: Unit, schema: Mapping[str, "DType"], names: Mapping[str, str], ambiguous: str | None
) -> list[IdFlag]:
    """Return what flags ids of which an error is made.

    `ambiguous` is a pattern of text that must be declared; None if all types are declared. Raises
    if a column that is declared to be text is not.
    """
    flags = []
    for place, name in enumerate(unit.columns):
        dtype = schema[name]
        if dtype in FLOATS:
            inexact = _is_inexact(names[name], dtype)
            flags.append(IdFlag(f"inexact{place}", name, inexact, keys.inexact_error))
        if name in unit.text:
            keys.check_text(name, is_text=dtype in _TEXTS)
        elif dtype in _TEXTS and ambiguous is not None:
            found = _is_ambiguous(names[name], ambiguous)
            flags.append(IdFlag(f"ambiguous{place}", name, found, keys.ambiguous_error))
    return flags


def _is_ambiguous(column: str, pattern: str) -> "nw.Expr":
    """Flag, by 0 or 1, text that a reader may take for a number, a time or a truth value."""
    text = nw.col(column).cast(nw.String)
    found = text.str.contains(pattern) & ~text.str.contains(keys.CANONICAL_TEXT)
    return nw.when(found).then(nw.lit(1)).otherwise(nw.lit(0))


def _is_inexact(column: str, dtype: "DType") -> "nw.Expr":
    """Flag, by 0 or 1, the ids in a column of floats that are not whole or not below 2^53.

    A reader that turned integers into floats has rounded those: two persons may have become one.
    """
    number = nw.col(column).cast(nw.Float64)
    limit = arithmetic.exact_limit(dtype)
    exact = (number == number.floor()) & (number > -limit) & (number < limit)
    return nw.when(~(exact | number.is_nan())).then(nw.lit(1)).otherwise(nw.lit(0))


def as_id(name: str, column: str, dtype: "DType") -> "nw.Expr":
    """Return a column of person ids; null where the id is missing, NaN or empty."""
    expression = nw.col(column)
    if dtype in WIDEST:  # Arrow has no such integers.
        return expression.cast(nw.String)
    if dtype in FLOATS:
        expression = expression.cast(nw.Float64) + 0.0  # So that -0.0 is 0.
        return nw.when(~expression.is_nan()).then(expression)
    if dtype in _TEXTS:
        expression = expression.cast(nw.String)
        return nw.when(expression != "").then(expression)
    if arithmetic.limits(dtype) is None and dtype.base_type() not in _IDS:
        raise ArgumentError(
            f"Column {name!r} holds {arithmetic.kind_of(dtype)}, which cannot identify a person. "
            "Convert it to text or integers first."
        )
    return expression


def own_whole(value: "nw.Expr", there: "nw.Expr", own: Own) -> "nw.Expr":
    """Return a row's value in whole grids, as a person's own sum or mean counts it."""
    ends = (own.least, own.most) if own.kind == "mean" else (-_FARTHEST, _FARTHEST)
    whole = arithmetic.clamped(value, Sums(own.column, own.grid, *ends))
    return nw.when(there).then(whole.cast(nw.Int64)).otherwise(nw.lit(0, nw.Int64))


@dataclass(frozen=True)
class _Dialect:
    mixed: str  # A hash of ids and others: DuckDB combines by exclusive or, and must mix again.
    wide: str  # An integer whose sum has 128 bits.
    divided: str  # The quotient of integers, rounded to zero.
    text: str  # The type of text.
    zoned: str  # A pattern of the types of times with a zone.
    utc: str  # Such a time in UTC, without a zone.


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
        """Return the type of a column, as SQL writes it."""
        return str(self.relation.types[self.relation.columns.index(name)])

    def selection_keys(self, name: str) -> list[str]:
        """Return the SQL of the number and of the text that enter a hash of a column."""
        text, kind = self.dialect.text, self.type_of(name).lower()
        held = f"CAST({name} AS {text})" if kind.startswith(_ROUNDED_TWICE) else name
        number = f"TRY_CAST({held} AS DOUBLE) + CAST(0 AS DOUBLE)"  # -0.0 becomes 0.0.
        if kind.startswith(text.lower()):  # A failed cast takes long.
            number = f"CASE WHEN ascii({name}) <= {_LAST_DIGIT} THEN {number} END"
            return [number, f"CASE WHEN ({number}) IS NULL THEN lower({name}) END"]
        if not kind.startswith(_WORDS):
            return [number, f"CAST(NULL AS {text})"]
        if re.fullmatch(self.dialect.zoned, kind):
            name = self.dialect.utc.format(name)
        day = f"regexp_replace(CAST({name} AS {text}), {_MIDNIGHT}, '')"
        return ["CAST(NULL AS DOUBLE)", day]

    def project(self, columns: Sequence[str]) -> Self:
        """Return these columns, which are SQL."""
        return type(self)(self.relation.project(", ".join(columns)))

    def where(self, condition: str) -> Self:
        """Return the rows that meet a condition."""
        return type(self)(self.relation.filter(condition))

    def grouped(self, by: Sequence[str], sums: Sequence[str] = ()) -> Self:
        """Return one row for each group, with sums."""
        return type(self)(self.relation.aggregate(", ".join([*by, *sums]), ", ".join(by)))

    def first(self, number: int, by: Sequence[str], mixed: str, kept: Sequence[str]) -> Self:
        """Return so many rows of each group: the first by a hash, then by what is kept of them."""
        if number > _LONGEST_HEAP:
            return self._first_by_sorting(number, by, mixed, kept)
        # Of all ways the quickest: it neither sorts nor holds more rows than it keeps.
        fields = ", ".join([f"mixed := {mixed}", *(f"{name} := {name}" for name in kept)])
        least = f"unnest(min(struct_pack({fields}), {number})) AS one"
        heads = self.grouped(by, [least])
        return heads.project([*by, *(f"one.{name} AS {name}" for name in kept)])

    def _first_by_sorting(
        self, number: int, by: Sequence[str], mixed: str, kept: Sequence[str]
    ) -> Self:
        order = ", ".join([mixed, *kept])
        place = f"row_number() OVER (PARTITION BY {', '.join(by)} ORDER BY {order}) AS place"
        return self.project([*by, *kept, place]).where(f"place <= {number}").project([*by, *kept])

    def found_in(self, other: Self, names: Sequence[str]) -> Self:
        """Return the rows that the other has too; null is like null."""
        same = " AND ".join(f"mine.{name} IS NOT DISTINCT FROM theirs.{name}" for name in names)
        mine, theirs = self.relation.set_alias("mine"), other.relation.set_alias("theirs")
        return type(self)(mine.join(theirs, same, how="semi"))

    def and_also(self, other: Self) -> Self:
        """Return the rows of both, which have the same columns in the same order."""
        return type(self)(self.relation.union(other.relation))


class _InSpark(InDuckDB):
    """Rows in Spark: what it calls differently."""

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

    def grouped(self, by: Sequence[str], sums: Sequence[str] = ()) -> Self:
        if not sums:
            return type(self)(self.relation.select(*by).distinct())
        functions = import_module("pyspark.sql.functions")
        return type(self)(self.relation.groupBy(*by).agg(*map(functions.expr, sums)))

    def first(self, number: int, by: Sequence[str], mixed: str, kept: Sequence[str]) -> Self:
        return self._first_by_sorting(number, by, mixed, kept)

    def found_in(self, other: Self, names: Sequence[str]) -> Self:
        same = " AND ".join(f"mine.{name} <=> theirs.{name}" for name in names)
        mine, theirs = self.relation.alias("mine"), other.relation.alias("theirs")
        expression = import_module("pyspark.sql.functions").expr(same)
        return type(self)(mine.join(theirs, expression, "left_semi"))


def rows_of(frame: "Frame") -> InDuckDB:
    """Return the rows of a frame where they can be bounded."""
    engine = frame.implementation
    if engine.is_pyspark():
        return _InSpark(frame.to_native())
    if engine.is_duckdb():
        return InDuckDB(frame.to_native())
    connection = import_extra("duckdb", "engines").connect()
    options: dict[str, Any] = {"engine": "streaming"} if engine.is_polars() else {}
    return InDuckDB(connection.from_arrow(frame.lazy().collect(**options).to_arrow()))


@dataclass(frozen=True)
class OwnColumns:
    """The columns of a person's own value: the value, whether there is one, and whole grids."""

    own: Own
    value: str
    there: str
    whole: str


@dataclass(frozen=True)
class Names:
    """What the columns of rows are called.

    `values` are what is asked of a row. `flags` mark rows of which an error is made later: 0 or 1.
    """

    ids: list[str]
    keys: list[str]
    values: list[str]
    flags: list[str]
    own: OwnColumns | None = None


def bounded(rows: InDuckDB, unit: Unit, names: Names, groups: int) -> InDuckDB:
    """Return the rows that count, and in the column "lost" which of them have no id.

    A row without an id counts as it is where each is a person of its own. Else all of them stay
    together, as one person, until an error is made of it.
    """
    rows = marked(rows, names)
    if unit.without_id == "error":
        return _bounded(rows, unit, names, groups)
    alone = _alone(rows.where(f"{LOST} = 1"), names)
    return _bounded(rows.where(f"{LOST} = 0"), unit, names, groups).and_also(alone)


def _alone(rows: InDuckDB, names: Names) -> InDuckDB:
    """Return rows that are a person each, as those of others are returned."""
    if names.own is None:
        return rows.project([*names.keys, *names.values, *names.flags, LOST])
    total = f"{rows.dialect.wide.format(names.own.whole)} AS total"
    present = f"CAST({names.own.there} AS INT) AS present"
    totals = rows.project([*names.keys, *names.flags, LOST, total, present])
    return _owns(totals, names.own, names)


def marked(rows: InDuckDB, names: Names) -> InDuckDB:
    """Return the rows with a column that tells which of them have no id."""
    lost = " OR ".join(f"{name} IS NULL" for name in names.ids)
    own = [] if names.own is None else [names.own.whole]
    columns = [*names.ids, *names.keys, *names.values, *own, *names.flags]
    return rows.project([*columns, f"CAST({lost} AS INT) AS {LOST}"])


def _bounded(rows: InDuckDB, unit: Unit, names: Names, groups: int) -> InDuckDB:
    person = [*names.ids, *names.keys]
    if groups > unit.max_groups:
        rows = rows.found_in(chosen_groups(rows, unit.max_groups, names), person)
    if names.own is not None:
        wide = rows.dialect.wide.format(names.own.whole)
        totals = [f"sum({wide}) AS total", f"sum(CAST({names.own.there} AS INT)) AS present"]
        totals += [f"max({name}) AS {name}" for name in [*names.flags, LOST]]
        return _owns(rows.grouped(person, totals), names.own, names)
    # The types of values are those that `frames` gives them: floats, and whether there is one.
    mixed = _hash(rows, names.ids, names.values, tag=2)
    kept = [*names.values, *names.flags, LOST]
    return rows.first(unit.max_rows, person, mixed, kept).project([*names.keys, *kept])


def chosen_groups(rows: InDuckDB, max_groups: int, names: Names) -> InDuckDB:
    """Return the ids and keys of the groups that count, at most so many of each id."""
    pairs = rows.grouped([*names.ids, *names.keys])
    # Where hashes are equal, keys are compared as text: the order of numbers is another one.
    spelled = [f"CAST({key} AS {rows.dialect.text}) AS spelled_{key}" for key in names.keys]
    pairs = pairs.project([*names.ids, *names.keys, *spelled])
    kept = [*(f"spelled_{key}" for key in names.keys), *names.keys]
    keys = [part for key in names.keys for part in rows.selection_keys(key)]
    chosen = pairs.first(max_groups, names.ids, _hash(rows, names.ids, keys, tag=1), kept)
    return chosen.project([*names.ids, *names.keys])


def _hash(rows: InDuckDB, ids: Sequence[str], others: Sequence[str], tag: int) -> str:
    """Return the SQL of a hash of a person's ids and of others; each tag gives another hash."""
    person = ", ".join(part for name in ids for part in rows.selection_keys(name))
    return rows.dialect.mixed.format(person, ", ".join([*others, str(tag)]))


def _owns(totals: InDuckDB, columns: OwnColumns, names: Names) -> InDuckDB:
    """Return one row for each person and group: in place of the value their own sum or mean."""
    own = columns.own
    if own.kind == "sum":
        whole = f"least(greatest(total, {own.least}), {own.most})"
    else:  # floor(mean + 1/2), of what lies above the lower bound.
        above = f"(2 * (total - {own.least} * present) + present)"
        whole = f"({above} {totals.dialect.divided} greatest(2 * present, 1)) + {own.least}"
    value = f"CAST({whole} AS DOUBLE) * CAST('{own.grid!r}' AS DOUBLE)"
    value = f"CASE WHEN present > 0 THEN {value} ELSE CAST(0 AS DOUBLE) END"
    values = [f"present > 0 AS {columns.there}", f"{value} AS {columns.value}"]
    return totals.project([*names.keys, *names.flags, LOST, *values])
