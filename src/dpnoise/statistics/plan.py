"""Plans and tallies: a public description of the integers to compute, and the integers.

A plan names columns, bounds and groups. It is made before a row is read. An engine answers it with
a tally of exact integers, the same on every engine. Releases depend on the data only through a
tally. A value x counts in whole grids as q = floor(clamp(x)/grid + 1/2), clamped to least..most.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from dpnoise.core.arrays import Array, Integers
from dpnoise.statistics.expressions import (
    NUMBER,
    Condition,
    SourceColumn,
    ValueNode,
    source_columns,
)

Key = str | int | float | dt.date  # The key of a group; bool is an int, datetime a date.


@dataclass(frozen=True)
class Sums:
    """Ask for the number of values in a column, the sum of q and, with `squares`, of q^2."""

    column: str
    grid: float
    least: int
    most: int
    squares: bool = False


@dataclass(frozen=True)
class Cells:
    """Ask for the number of values with each q from least to most, at most 65,536 cells."""

    column: str
    grid: float
    least: int
    most: int


@dataclass(frozen=True)
class Edges:
    """Ask for the number of values in each bin. A bin includes its lower edge, the last both."""

    column: str
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Rows:
    """Ask for the number of rows."""


@dataclass(frozen=True)
class Distinct:
    """Ask for the number of different values in a column: text to the letter, or whole numbers."""

    column: str


Ask = Sums | Cells | Edges | Rows | Distinct


@dataclass(frozen=True)
class Grouping:
    """A column to group rows by, and its declared keys; rows with other keys are left out.

    If it is `undeclared`, the rows with other keys, or without one, are the only group.
    """

    column: str
    keys: tuple[Any, ...]  # Each is a `Key`.
    discovered: bool = False  # Whether the keys are labels of discovered groups, always text.
    undeclared: bool = False

    @property
    def size(self) -> int:
        """The number of groups."""
        return 1 if self.undeclared else len(self.keys)

    @property
    def groupings(self) -> tuple["Grouping", ...]:
        """The only grouping."""
        return (self,)


@dataclass(frozen=True)
class Combinations:
    """Columns to group rows by together, and the discovered combinations of their labels.

    Rows with other combinations are left out.
    """

    columns: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]  # Each has one label for each column.

    @property
    def size(self) -> int:
        """The number of groups."""
        return len(self.keys)

    @property
    def groupings(self) -> tuple[Grouping, ...]:
        """The labels of each column."""
        return tuple(
            Grouping(name, tuple(dict.fromkeys(key[index] for key in self.keys)), discovered=True)
            for index, name in enumerate(self.columns)
        )


@dataclass(frozen=True)
class PersonValue:
    """One value per person and group: the clamped sum or mean of a column over their rows.

    In a sum every row counts as q, in a mean as q clamped to least..most. The sum is then clamped,
    and the mean is rounded. Plans use the result in units of the column.
    """

    column: str
    kind: str  # "sum" or "mean".
    grid: float
    least: int
    most: int


@dataclass(frozen=True)
class Unit:
    """The privacy unit: the columns that identify a person, and the contribution bounds.

    For each person at most `max_groups` groups count. In each group at most `max_rows` rows count,
    or a single value per person. Of these rows at most `max_total_rows` count, if it is given.
    Hashes of only that person's rows decide which ones.
    """

    columns: tuple[str, ...]
    max_groups: int = 1
    max_rows: int = 1
    without_id: str = "error"  # Rows without an id are an "error", or each is its "own" person.
    person_value: PersonValue | None = None
    text: tuple[str, ...] = ()  # The columns of a frame that are declared to be text.
    max_total_rows: int | None = None  # In all groups; does not limit values of persons.


@dataclass(frozen=True)
class Plan:
    """The integers to compute in one pass over the data."""

    asks: tuple[Ask, ...]
    by: tuple[Grouping | Combinations, ...] = ()
    missing: str = "error"  # Rows without a value are an "error", or "drop" ignores them there.
    unit: Unit | None = None  # The privacy unit; None for one row.
    where: Condition | None = None  # Only rows that match count; None for all rows.
    derived: tuple[tuple[str, ValueNode], ...] = ()  # Columns that are computed from each row.
    text: tuple[str, ...] = ()  # The columns of a frame that are declared to be text.

    @property
    def value_asks(self) -> list[Sums | Cells | Edges]:
        """The asks about a column of numbers."""
        return [ask for ask in self.asks if isinstance(ask, Sums | Cells | Edges)]

    @property
    def distinct_asks(self) -> list[Distinct]:
        """The asks for different values. With a privacy unit, such an ask is the only one."""
        return [ask for ask in self.asks if isinstance(ask, Distinct)]

    @property
    def value_columns(self) -> list[str]:
        """The columns of numbers, each once."""
        return list(dict.fromkeys(ask.column for ask in self.value_asks))

    @property
    def grouped(self) -> list[str]:
        """The columns to group by."""
        return [part.column for each in self.by for part in each.groupings]

    @property
    def expressions(self) -> list[Condition | ValueNode]:
        """The filter, and the derived columns that are values or groups."""
        used = {*self.value_columns, *self.grouped}
        where = [] if self.where is None else [self.where]
        return [*where, *(value for name, value in self.derived if name in used)]

    @property
    def sources(self) -> list[SourceColumn]:
        """The columns of the data that are values, or used in expressions, each once."""
        derived = dict(self.derived)
        values = (SourceColumn(name, NUMBER) for name in self.value_columns if name not in derived)
        used = (column for node in self.expressions for column in source_columns(node))
        return list(dict.fromkeys([*values, *used]))

    @property
    def columns(self) -> list[str]:
        """All columns of the data, each once."""
        derived = dict(self.derived)
        grouped = [name for name in self.grouped if name not in derived]
        ids = () if self.unit is None else self.unit.columns
        names = [column.name for column in self.sources]
        names += [ask.column for ask in self.distinct_asks]
        return list(dict.fromkeys([*names, *grouped, *ids]))


@dataclass(frozen=True)
class SumAnswer:
    """The answer to `Sums` by group: arrays of int64, or of Python's integers (dtype object)."""

    count: Integers
    total: Array
    squares: Array | None = None


Answer = SumAnswer | Integers


@dataclass(frozen=True)
class Tally:
    """The answers to a plan, in the order of its asks.

    Each array has one axis for each grouping, in the order of its keys. Answers to `Cells` and
    `Edges` have one more axis at the end, for the cells. Counts are int64.
    """

    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class PersonCounts:
    """The labels of groups, one for each column, and the number of persons in each group."""

    keys: list[tuple[str, ...]]
    persons: Integers
