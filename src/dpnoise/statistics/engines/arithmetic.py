"""Exact arithmetic: the expressions of each row, and the answers computed from their sums.

A number counts as the float64 nearest to it, whatever type its column has. A reader may turn the
integers of a column into floats because of one row. That float x counts as q = floor(x/grid + 1/2).
The grid is a power of two, so y = x/grid is exact, but y + 1/2 would round. Therefore we compute
q = floor((floor(2y) + 1)/2), where every step is exact up to 2^52.

A row without a value counts as 0, clamped like any other value. The answers subtract such rows.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import narwhals as nw
import numpy as np
from narwhals.dtypes import DType

from dpnoise.core.arrays import Array, Integers
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines.checking import number_of_cells
from dpnoise.statistics.plan import Cells, Edges, SumAnswer, Sums

DataFrame = nw.DataFrame[Any]
Frame = DataFrame | nw.LazyFrame[Any]

ROWS: Final = "rows"  # The column of a result with the number of rows.
_EXACT_LIMIT_64: Final = 2**53  # Float64 represents every integer up to here.
_EXACT_LIMIT_32: Final = 2**24  # Float32 represents every integer up to here.
_MAX_FLAGGED_EDGES: Final = 33  # With more edges, bisection is faster than one flag per edge.
_MAX_EXACT_DIGITS: Final = 15  # The digits and the scale of such decimals are exact.
WIDEST: Final = (nw.Int128, nw.UInt128)
FLOATS: Final = (nw.Float32, nw.Float64)


def limits(dtype: DType) -> tuple[int, int] | None:
    """Return the smallest and largest value of an integer type; None for others, and 128 bits."""
    if not dtype.is_integer() or dtype in WIDEST:
        return None
    limits_of_type = np.iinfo(type_name(dtype).lower())
    return int(limits_of_type.min), int(limits_of_type.max)


def exact_limit(dtype: DType) -> int:
    """Return the magnitude below which a float column holds whole numbers unrounded."""
    return _EXACT_LIMIT_32 if dtype == nw.Float32 else _EXACT_LIMIT_64


def type_name(dtype: DType) -> str:
    """Return the name of a type for errors, without the categories of an enumeration."""
    return getattr(dtype, "__name__", type(dtype).__name__)


def check_numbers(name: str, dtype: DType) -> None:
    """Raise unless columns of this type hold numbers."""
    numbers = {*FLOATS, nw.Boolean, nw.Decimal, *WIDEST}
    if limits(dtype) is None and dtype.base_type() not in numbers:
        raise ArgumentError(
            f"Column {name!r} holds {type_name(dtype)}. It must hold numbers or booleans: convert "
            "it first. Counting rows needs no column."
        )


def is_present(column: nw.Expr, dtype: DType) -> nw.Expr:
    """Return an expression that is true where a row has a value, neither null nor NaN."""
    is_not_null = ~column.is_null()
    return is_not_null & ~column.is_nan() if dtype in FLOATS else is_not_null


def fill_missing(column: nw.Expr, dtype: DType, *, divides_decimals: bool) -> nw.Expr:
    """Convert each number to the nearest float64, and missing ones to 0; -0.0 becomes 0.0.

    `divides_decimals` is true for engines that divide the digits of a decimal by a power of ten,
    which rounds once. Other engines multiply by a power of 1/10, which is itself rounded.
    """
    is_short = isinstance(dtype, nw.Decimal) and dtype.precision <= _MAX_EXACT_DIGITS
    number = column
    if dtype in WIDEST or (dtype == nw.Decimal and not (divides_decimals and is_short)):
        number = column.cast(nw.String)  # A direct cast would round twice.
    elif dtype == nw.Boolean:
        number = column.cast(nw.Int64)
    floats = number.cast(nw.Float64) + 0.0
    return nw.when(is_present(column, dtype)).then(floats).otherwise(nw.lit(0.0))


def clamp_to_grid(value: nw.Expr, ask: Sums | Cells) -> nw.Expr:
    """Return q of a value, the clamped number of grid steps."""
    least, most = nw.lit(2.0 * ask.least), nw.lit(2.0 * ask.most)
    # In DuckDB, narwhals's `clip` takes longer.
    inside = nw.max_horizontal(nw.min_horizontal(value * (2.0 / ask.grid), most), least)
    return ((inside.floor() + 1.0) * 0.5).floor()


@dataclass
class Expressions:
    """The columns that a query computes, by name, in three steps.

    Each step may use the names of earlier steps, so that an engine computes each of them once.
    """

    # Keys, values, ids and flags.
    chosen: dict[str, nw.Expr] = field(default_factory=dict)
    # Values as numbers of grid steps.
    wholes: dict[str, nw.Expr] = field(default_factory=dict)
    # Columns to sum, and columns of cell numbers to count.
    derived: dict[str, nw.Expr] = field(default_factory=dict)


@dataclass(frozen=True)
class Grouped:
    """The result of a query: sums by group, or by group and cell."""

    columns: Mapping[str, Array]
    places: Integers  # The group of each row, as an index into a flat array of `shape`.
    shape: tuple[int, ...]

    def integers(self, name: str) -> Array:
        """Return sums as an array, with Python integers if they may exceed 64 bits."""
        column = self.columns[name]
        if column.dtype == object:
            return np.array([int(entry) for entry in column], dtype=object)
        return column.astype(np.int64)

    def by_group(self, name: str) -> Array:
        """Sum a column by group, in an array of all groups."""
        column = self.integers(name)
        totals = np.zeros(self.shape, dtype=column.dtype)
        np.add.at(totals.reshape(-1), self.places, column)
        return totals


Results = Mapping[str | None, Grouped]  # None has the sums, each code the counts of its cells.


@dataclass(frozen=True)
class AskColumns:
    """The columns that answer an ask.

    `summed` has the columns of a sum and of its squares, and whether the sum of each may exceed 64
    bits. For edges it has a flag for each edge: 1 where the value is at or above it (for the last
    edge: above it). `code` has the cell of a row.
    """

    ask: Sums | Cells | Edges
    summed: dict[str, bool] = field(default_factory=dict)
    code: str | None = None

    def answer(self, results: Results, count: Integers, missing: Integers) -> SumAnswer | Integers:
        """Return the sum of the values that are not missing, or the count of each cell."""
        ask, totals = self.ask, [results[None].by_group(name) for name in self.summed]
        if isinstance(ask, Sums):
            zero = min(max(0, ask.least), ask.most)
            present = [
                np.asarray(total.astype(object) - missing.astype(object) * zero**power)
                for power, total in enumerate(totals, start=1)
            ]
            return SumAnswer(count, present[0], present[1] if ask.squares else None)
        if self.code is None:
            counts = np.stack([low - high for low, high in pairwise(totals)], axis=-1)
        else:
            counts = self._cell_counts(results[self.code], self.code)
        zero_cell = _cell_of_zero(ask)
        if zero_cell < number_of_cells(ask):
            counts[..., zero_cell] -= missing
        return counts

    def _cell_counts(self, result: Grouped, code: str) -> Integers:
        """Count the rows of each cell. The last cell holds the rows outside, and is dropped."""
        cells = number_of_cells(self.ask) + 1  # type: ignore[arg-type]  # Sums have no code.
        counts = np.zeros((*result.shape, cells), dtype=np.int64)
        # The cells are objects if other plans of the query have rows without one.
        places = result.places * cells + result.integers(code).astype(np.int64)
        np.add.at(counts.reshape(-1), places, result.integers(ROWS))
        return np.ascontiguousarray(counts[..., :-1])


def add_ask(
    expressions: Expressions, name: str, ask: Sums | Cells | Edges, column: nw.Expr
) -> AskColumns:
    """Add the expressions that an ask needs, under names that begin with `name`."""
    if isinstance(ask, Edges):
        *edges, last = ask.edges
        is_below = [*(column < edge for edge in edges), column <= last]
        if len(is_below) <= _MAX_FLAGGED_EDGES:
            above = {f"{name}_{edge}": ~test for edge, test in enumerate(is_below)}
            expressions.derived |= above
            return AskColumns(ask, dict.fromkeys(above, False))
        cells = len(edges)
        expressions.derived[name] = _bisect(is_below, [cells, *range(cells), cells])
        return AskColumns(ask, code=name)
    expressions.wholes[name], whole = clamp_to_grid(column, ask), nw.col(name)
    if isinstance(ask, Cells):
        code = f"{name}_cell"
        expressions.derived[code] = (whole - float(ask.least)).cast(nw.Int64)
        return AskColumns(ask, code=code)
    powers = {f"{name}_total": whole} | ({f"{name}_square": whole * whole} if ask.squares else {})
    expressions.derived |= {power: value.cast(nw.Int64) for power, value in powers.items()}
    return AskColumns(ask, dict.fromkeys(powers, True))


def _bisect(tests: list[nw.Expr], results: list[int]) -> nw.Expr:
    """Return the result at the index of the first true test. All tests after it are true."""
    if not tests:
        return nw.lit(results[0])
    middle = len(tests) // 2
    lower = _bisect(tests[:middle], results[: middle + 1])
    upper = _bisect(tests[middle + 1 :], results[middle + 1 :])
    return nw.when(tests[middle]).then(lower).otherwise(upper)


def _cell_of_zero(ask: Cells | Edges) -> int:
    """Return the cell in which a row without a value was counted."""
    if isinstance(ask, Cells):
        return min(max(0, ask.least), ask.most) - ask.least
    if not ask.edges[0] <= 0 <= ask.edges[-1]:
        return number_of_cells(ask)
    return min(bisect_right(ask.edges, 0.0), number_of_cells(ask)) - 1
