"""Bound what counts of each person: some of their groups, and some of their rows in each.

Hashes of a person's own rows select them, and where hashes are equal the rows themselves; rows that
are equal in everything count the same. The hashes do not depend on the types of the columns, which
other people's rows may change: see `selection_keys`. So what counts of one person does not change
when another comes or goes, nor when a task is repeated. The hash is public: a person who knows it
can choose which of their rows count, but not how many.

DuckDB and Spark do it in SQL, on names that `frames` has given; other frames go to DuckDB first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import arithmetic, keys, selection_keys
from dpnoise.statistics.plan import Own, Sums, Unit

nw = import_extra("narwhals", "engines")

LOST: Final = "lost"  # The column that tells which rows have no id.
INEXACT: Final = "inexact"  # The columns that flag ids that a float may have rounded.
AMBIGUOUS: Final = "ambiguous"  # The columns that flag text that may be a number or a time.
ID_FLAGS: Final = (INEXACT, AMBIGUOUS)
OWN_WHOLE: Final = "own"  # That of a row's value in whole grids, for a value of a person's own.
_LONGEST_HEAP: Final = 1_000  # Of rows that DuckDB keeps of a person; for more it sorts.
_FARTHEST: Final = 2**51  # Of a row in a person's own sum, in whole grids: still exact.
_TEXTS: Final = (nw.Categorical, nw.Enum)
_FLOATS: Final = (nw.Float32, nw.Float64)
_WIDEST: Final = (nw.Int128, nw.UInt128)  # Arrow has no such integers.
_IDS: Final = (nw.String, nw.Boolean, nw.Date, nw.Datetime, nw.Decimal)


def id_flags(
    unit: Unit, schema: Mapping[str, Any], names: Mapping[str, str], ambiguous: str | None
) -> dict[str, Any]:
    """Return the columns that flag ids of which an error is made.

    `ambiguous` is a pattern of text that must be declared; None if all types are declared. Raises
    if a column that is declared to be text is not.
    """
    flags = {}
    for place, name in enumerate(unit.columns):
        dtype = schema[name]
        if dtype in _FLOATS:
            flags[f"{INEXACT}{place}"] = _is_inexact(names[name], dtype)
        if name in unit.text:
            keys.check_text(name, is_text=dtype in {nw.String, *_TEXTS})
        elif dtype in {nw.String, *_TEXTS} and ambiguous is not None:
            flags[f"{AMBIGUOUS}{place}"] = _is_ambiguous(names[name], ambiguous)
    return flags


def _is_ambiguous(column: str, pattern: str) -> Any:
    """Flag, by 0 or 1, text that a reader may take for a number, a time or a truth value."""
    text = nw.col(column).cast(nw.String)
    found = text.str.contains(pattern) & ~text.str.contains(keys.CANONICAL_TEXT)
    return nw.when(found).then(nw.lit(1)).otherwise(nw.lit(0))


def _is_inexact(column: str, dtype: Any) -> Any:
    """Flag, by 0 or 1, the ids in a column of floats that are not whole or not below 2^53.

    A reader that turned integers into floats has rounded those: two persons may have become one.
    """
    number = nw.col(column).cast(nw.Float64)
    limit = arithmetic.exact_limit(dtype)
    exact = (number == number.floor()) & (number > -limit) & (number < limit)
    return nw.when(~(exact | number.is_nan())).then(nw.lit(1)).otherwise(nw.lit(0))


def as_id(name: str, column: str, dtype: Any) -> Any:
    """Return a column of person ids; null where the id is missing, NaN or empty."""
    expression = nw.col(column)
    if dtype in _WIDEST:
        return expression.cast(nw.String)
    if dtype in _FLOATS:
        expression = expression.cast(nw.Float64) + 0.0  # So that -0.0 is 0.
        return nw.when(~expression.is_nan()).then(expression)
    if dtype in _TEXTS or dtype == nw.String:
        expression = expression.cast(nw.String)
        return nw.when(expression != "").then(expression)
    if arithmetic.limits(dtype) is None and dtype.base_type() not in _IDS:
        raise ArgumentError(
            f"Column {name!r} holds {arithmetic.kind_of(dtype)}, which cannot identify a person. "
            "Convert it to text or integers first."
        )
    return expression


def own_whole(value: Any, there: Any, own: Own, habits: arithmetic.Habits) -> Any:
    """Return a row's value in whole grids, as a person's own sum or mean counts it."""
    ends = (own.least, own.most) if own.kind == "mean" else (-_FARTHEST, _FARTHEST)
    ask = Sums(own.column, own.grid, *ends)
    whole = arithmetic.clamped(arithmetic.doubled(value, ask), ask, habits)
    return nw.when(there).then(whole.cast(nw.Int64)).otherwise(nw.lit(0, nw.Int64))


@dataclass(frozen=True)
class _Dialect:
    mixed: str  # A hash of ids and others: DuckDB combines by exclusive or, and must mix again.
    wide: str  # An integer whose sum has 128 bits.
    divided: str  # The quotient of integers, rounded to zero.
    text: str  # The type of text.


@dataclass(frozen=True)
class InDuckDB:
    """Rows in DuckDB."""

    relation: Any
    dialect = _Dialect("hash(hash(hash({}), hash({})))", "CAST({} AS BIGINT)", "//", "VARCHAR")

    @property
    def hashed(self) -> dict[str, list[str]]:
        """What enters a hash of each column, as SQL."""
        return selection_keys.duckdb_parts(self.relation)

    def project(self, columns: Sequence[str]) -> "InDuckDB":
        """Return these columns, which are SQL."""
        return InDuckDB(self.relation.project(", ".join(columns)))

    def where(self, condition: str) -> "InDuckDB":
        """Return the rows that meet a condition."""
        return InDuckDB(self.relation.filter(condition))

    def grouped(self, by: Sequence[str], sums: Sequence[str] = ()) -> "InDuckDB":
        """Return one row for each group, with sums."""
        return InDuckDB(self.relation.aggregate(", ".join([*by, *sums]), ", ".join(by)))

    def first(self, number: int, by: Sequence[str], mixed: str, kept: Sequence[str]) -> "InDuckDB":
        """Return so many rows of each group: the first by a hash, then by what is kept of them."""
        if number > _LONGEST_HEAP:
            return self._by_sorting(number, by, mixed, kept)
        # Of all ways the quickest: it neither sorts nor holds more rows than it keeps.
        fields = ", ".join([f"mixed := {mixed}", *(f"{name} := {name}" for name in kept)])
        least = f"unnest(min(struct_pack({fields}), {number})) AS one"
        heads = self.grouped(by, [least])
        return heads.project([*by, *(f"one.{name} AS {name}" for name in kept)])

    def _by_sorting(
        self, number: int, by: Sequence[str], mixed: str, kept: Sequence[str]
    ) -> "InDuckDB":
        return InDuckDB(self.project([*by, *kept, _place(by, mixed, kept)]).relation).where(
            f"place <= {number}"
        )

    def found_in(self, other: "InDuckDB", names: Sequence[str]) -> "InDuckDB":
        """Return the rows that the other has too; null is like null."""
        same = " AND ".join(f"mine.{name} IS NOT DISTINCT FROM theirs.{name}" for name in names)
        mine, theirs = self.relation.set_alias("mine"), other.relation.set_alias("theirs")
        return InDuckDB(mine.join(theirs, same, how="semi"))

    def and_also(self, other: "InDuckDB") -> "InDuckDB":
        """Return the rows of both, which have the same columns in the same order."""
        return InDuckDB(self.relation.union(other.relation))


@dataclass(frozen=True)
class InSpark:
    """Rows in Spark."""

    relation: Any
    dialect = _Dialect("xxhash64({}, {})", "CAST({} AS DECIMAL(20, 0))", "div", "STRING")

    @property
    def hashed(self) -> dict[str, list[str]]:
        """What enters a hash of each column, as SQL."""
        return selection_keys.spark_parts(self.relation)

    def project(self, columns: Sequence[str]) -> "InSpark":
        """Return these columns, which are SQL."""
        return InSpark(self.relation.selectExpr(*columns))

    def where(self, condition: str) -> "InSpark":
        """Return the rows that meet a condition."""
        return InSpark(self.relation.where(condition))

    def grouped(self, by: Sequence[str], sums: Sequence[str] = ()) -> "InSpark":
        """Return one row for each group, with sums."""
        functions = import_module("pyspark.sql.functions")
        if not sums:
            return InSpark(self.relation.select(*by).distinct())
        return InSpark(self.relation.groupBy(*by).agg(*map(functions.expr, sums)))

    def first(self, number: int, by: Sequence[str], mixed: str, kept: Sequence[str]) -> "InSpark":
        """Return so many rows of each group: the first by a hash, then by what is kept of them."""
        placed = self.project([*by, *kept, _place(by, mixed, kept)])
        return placed.where(f"place <= {number}").project([*by, *kept])

    def found_in(self, other: "InSpark", names: Sequence[str]) -> "InSpark":
        """Return the rows that the other has too; null is like null."""
        mine, theirs = self.relation.alias("mine"), other.relation.alias("theirs")
        same = " AND ".join(f"mine.{name} <=> theirs.{name}" for name in names)
        functions = import_module("pyspark.sql.functions")
        return InSpark(mine.join(theirs, functions.expr(same), "left_semi"))

    def and_also(self, other: "InSpark") -> "InSpark":
        """Return the rows of both, which have the same columns in the same order."""
        return InSpark(self.relation.union(other.relation))


def _place(by: Sequence[str], mixed: str, kept: Sequence[str]) -> str:
    order = ", ".join([mixed, *kept])
    return f"row_number() OVER (PARTITION BY {', '.join(by)} ORDER BY {order}) AS place"


def rows_of(frame: Any) -> InDuckDB | InSpark:
    """Return the rows of a frame where they can be bounded."""
    engine = frame.implementation
    if engine.is_pyspark():
        return InSpark(frame.to_native())
    if engine.is_duckdb():
        return InDuckDB(frame.to_native())
    duckdb = import_extra("duckdb", "engines")
    if engine.is_polars():
        lazy = frame.lazy().to_native()
        return InDuckDB(duckdb.connect().from_arrow(lazy.collect(engine="streaming").to_arrow()))
    return InDuckDB(duckdb.connect().from_arrow(frame.to_arrow()))


@dataclass(frozen=True)
class Names:
    """What the columns of rows are called.

    `values` are what is asked of a row. `flags` mark rows of which an error is made later: 0 or 1.
    """

    ids: list[str]
    keys: list[str]
    values: list[str]
    flags: list[str]


def bounded(rows: Any, unit: Unit, names: Names, groups: int) -> Any:
    """Return the rows that count, and in the column "lost" which of them have no id.

    A row without an id counts as it is where each is a person of its own. Else all of them stay
    together, as one person, until an error is made of it.
    """
    rows = marked(rows, names)
    if unit.without_id == "error":
        return _bounded(rows, unit, names, groups)
    return _bounded(rows.where(f"{LOST} = 0"), unit, names, groups).and_also(
        _alone(rows.where(f"{LOST} = 1"), unit, names)
    )


def _alone(rows: Any, unit: Unit, names: Names) -> Any:
    """Return rows that are a person each, as those of others are returned."""
    if unit.own is None:
        return rows.project([*names.keys, *names.values, *names.flags, LOST])
    total = f"{rows.dialect.wide.format(OWN_WHOLE)} AS total"
    present = "CAST(there0 AS INT) AS present"
    return _owns(rows.project([*names.keys, *names.flags, LOST, total, present]), unit.own, names)


def marked(rows: Any, names: Names) -> Any:
    """Return the rows with a column that tells which of them have no id."""
    lost = " OR ".join(f"{name} IS NULL" for name in names.ids)
    columns = [*names.ids, *names.keys, *names.values, *names.flags]
    return rows.project([*columns, f"CAST({lost} AS INT) AS {LOST}"])


def _bounded(rows: Any, unit: Unit, names: Names, groups: int) -> Any:
    person = [*names.ids, *names.keys]
    if groups > unit.max_groups:
        rows = rows.found_in(chosen_groups(rows, unit.max_groups, names), person)
    if unit.own is not None:
        wide = rows.dialect.wide.format(OWN_WHOLE)
        totals = [f"sum({wide}) AS total", "sum(CAST(there0 AS INT)) AS present"]
        totals += [f"max({name}) AS {name}" for name in [*names.flags, LOST]]
        return _owns(rows.grouped(person, totals), unit.own, names)
    # The types of values are those that `frames` gives them: floats, and whether there is one.
    mixed = _hash(rows, names.ids, names.values, tag=2)
    kept = [*names.values, *names.flags, LOST]
    return rows.first(unit.max_rows, person, mixed, kept).project([*names.keys, *kept])


def chosen_groups(rows: Any, max_groups: int, names: Names) -> Any:
    """Return the ids and keys of the groups that count, at most so many of each id."""
    pairs = rows.grouped([*names.ids, *names.keys])
    # Where hashes are equal, keys are compared as text: the order of numbers is another one.
    spelled = [f"CAST({key} AS {rows.dialect.text}) AS spelled_{key}" for key in names.keys]
    pairs = pairs.project([*names.ids, *names.keys, *spelled])
    kept = [*(f"spelled_{key}" for key in names.keys), *names.keys]
    keys = [part for key in names.keys for part in rows.hashed[key]]
    chosen = pairs.first(max_groups, names.ids, _hash(rows, names.ids, keys, tag=1), kept)
    return chosen.project([*names.ids, *names.keys])


def _hash(rows: Any, ids: Sequence[str], others: Sequence[str], tag: int) -> str:
    """Return the SQL of a hash of a person's ids and of others; each tag gives another hash."""
    person = ", ".join(part for name in ids for part in rows.hashed[name])
    return str(rows.dialect.mixed.format(person, ", ".join([*others, str(tag)])))


def _owns(totals: Any, own: Own, names: Names) -> Any:
    """Return one row for each person and group: in place of the value their own sum or mean."""
    if own.kind == "sum":
        whole = f"least(greatest(total, {own.least}), {own.most})"
    else:  # floor(mean + 1/2), of what lies above the lower bound.
        above = f"(2 * (total - {own.least} * present) + present)"
        whole = f"({above} {totals.dialect.divided} greatest(2 * present, 1)) + {own.least}"
    value = f"CAST({whole} AS DOUBLE) * CAST('{own.grid!r}' AS DOUBLE)"
    return totals.project(
        [
            *names.keys,
            *names.flags,
            LOST,
            "present > 0 AS there0",
            f"CASE WHEN present > 0 THEN {value} ELSE CAST(0 AS DOUBLE) END AS value0",
        ]
    )
