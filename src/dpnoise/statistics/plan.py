"""What is asked of the data and what they answer: a plan, which is public, and a tally of integers.

A plan names columns, bounds and groups, and is made before a row is read. An engine answers it with
a tally: exact integers, the same on every engine. Noise is drawn from a tally, and nothing else.
A value x counts in whole grids as q = floor(clamp(x)/grid + 1/2), clamped to least..most.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from dpnoise.core.arrays import Array, Integers

Key = str | int | float | dt.date  # Of a group; a truth value is an int, and a time a date.


@dataclass(frozen=True)
class Sums:
    """The number of values in a column, the sum of their q and, if asked for, of q^2."""

    column: str
    grid: float
    least: int
    most: int
    squares: bool = False


@dataclass(frozen=True)
class Cells:
    """How many values of a column have each q from least to most: at most 65,536 cells."""

    column: str
    grid: float
    least: int
    most: int


@dataclass(frozen=True)
class Edges:
    """How many values lie between each two edges, lower ones included, of the last both."""

    column: str
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Rows:
    """The number of rows."""


Ask = Sums | Cells | Edges | Rows


@dataclass(frozen=True)
class Grouping:
    """A column and the declared keys by which rows are grouped; rows of other keys are left out."""

    column: str
    keys: tuple[Any, ...]  # Each is a `Key`.
    discovered: bool = False  # Whether the keys are labels of discovered groups: always text.


@dataclass(frozen=True)
class Own:
    """A person's own sum or mean of a column in a group, clamped: it stands for all rows there.

    Of a sum every row counts as q, of a mean as q clamped to least..most; the sum is then clamped,
    the mean rounded, and asks are about the result in units of the column.
    """

    column: str
    kind: str  # "sum" or "mean".
    grid: float
    least: int
    most: int


@dataclass(frozen=True)
class Unit:
    """Whose rows are protected together, and how many of them count.

    Of each person at most `max_groups` groups count, and in each at most `max_rows` rows, or one
    value of their own. Which ones is decided by hashes of that person's rows alone.
    """

    columns: tuple[str, ...]
    max_groups: int = 1
    max_rows: int = 1
    without_id: str = "error"  # What a row without an id is: "error", or a person of its "own".
    own: Own | None = None
    text: tuple[str, ...] = ()  # The columns of a frame that are declared to be text.


@dataclass(frozen=True)
class Plan:
    """What one pass over the data has to answer."""

    asks: tuple[Ask, ...]
    by: tuple[Grouping, ...] = ()
    missing: str = "error"  # What a row without a value is: "error", or "drop" for that column.
    unit: Unit | None = None  # None: one row.


@dataclass(frozen=True)
class Sum:
    """The answer to `Sums`, by group: arrays of int64, or of Python's integers (dtype object)."""

    count: Integers
    total: Array
    squares: Array | None = None


Answer = Sum | Integers


@dataclass(frozen=True)
class Tally:
    """The answers to a plan, in the order of its asks.

    Each array has one axis for each grouping, in the order of its keys, and answers to `Cells` and
    `Edges` one more at the end, for the cells. Counts are int64.
    """

    answers: tuple[Answer, ...]
