"""The exact arithmetic of values: expressions of a row, and the answers that their sums give.

A number counts as the float64 nearest to it, whatever type its column has: a reader may turn the
integers of a column into floats because of one row. That float x counts as q = floor(x/grid + 1/2).
The grid is a power of two, so y = x/grid is exact, but y + 1/2 would round; instead
q = floor((floor(2y) + 1)/2), where every step is exact up to 2^52.

A row without a value counts as 0, clamped like any other; answers leave such rows out again.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpnoise.core.arrays import Array, Integers
from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines.checking import cells_of
from dpnoise.statistics.plan import Cells, Edges, Sum, Sums

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.dtypes import DType

    DataFrame = nw.DataFrame[Any]
else:
    nw = import_extra("narwhals", "engines")


ROWS: Final = "rows"  # The column of a result that has the number of rows.
_ALL_EXACT: Final = 2**53  # Up to here every integer is a float.
_ALL_EXACT_SINGLE: Final = 2**24  # Up to here every integer is a float of 32 bits.
_FEW_EDGES: Final = 33  # With more, a search is quicker than a comparison with each.
_LONGEST_EXACT: Final = 15  # Digits of a decimal whose digits and scale are floats.
WIDEST: Final = (nw.Int128, nw.UInt128)
FLOATS: Final = (nw.Float32, nw.Float64)
_LIMITS: Final[dict[type["DType"], tuple[int, int]]] = {
    getattr(nw, f"{sign}Int{bits}"): (0, 2**bits - 1)
    if sign
    else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


def limits(dtype: "DType") -> tuple[int, int] | None:
    """Return the least and the most of a type of integers; None for other types."""
    return _LIMITS.get(dtype.base_type())


def exact_limit(dtype: "DType") -> int:
    """Return the magnitude below which whole numbers in a column of floats were not rounded."""
    return _ALL_EXACT_SINGLE if dtype == nw.Float32 else _ALL_EXACT


def kind_of(dtype: "DType") -> str:
    """Return a type as errors name it: without the categories that an enumeration lists."""
    return getattr(dtype, "__name__", type(dtype).__name__)


def check_numbers(name: str, dtype: "DType") -> None:
    """Raise unless a column of this type holds numbers."""
    numbers = {*FLOATS, nw.Boolean, nw.Decimal, *WIDEST}
    if limits(dtype) is None and dtype.base_type() not in numbers:
        raise ArgumentError(
            f"Column {name!r} holds {kind_of(dtype)}. It must hold numbers or booleans: convert it "
            "first."
        )


def is_present(column: "nw.Expr", dtype: "DType") -> "nw.Expr":
    """Tell whether a row has a value: neither null nor NaN."""
    there = ~column.is_null()
    return there & ~column.is_nan() if dtype in FLOATS else there


def filled(column: "nw.Expr", dtype: "DType", *, divides_decimals: bool) -> "nw.Expr":
    """Return the float64 nearest to each number, 0 where it is missing; -0.0 becomes 0.0.

    `divides_decimals` says that an engine divides digits by a power of ten, and so rounds once.
    Others multiply by a power of 1/10, which is rounded.
    """
    is_short = isinstance(dtype, nw.Decimal) and dtype.precision <= _LONGEST_EXACT
    number = column
    if dtype in WIDEST or (dtype == nw.Decimal and not (divides_decimals and is_short)):
        number = column.cast(nw.String)  # Engines would round twice.
    elif dtype == nw.Boolean:
        number = column.cast(nw.Int64)
    floats = number.cast(nw.Float64) + 0.0
    return nw.when(is_present(column, dtype)).then(floats).otherwise(nw.lit(0.0))


def clamped(value: "nw.Expr", ask: Sums | Cells) -> "nw.Expr":
    """Return q of a value."""
    least, most = nw.lit(2.0 * ask.least), nw.lit(2.0 * ask.most)
    # In DuckDB, narwhals's `clip` takes longer.
    inside = nw.max_horizontal(nw.min_horizontal(value * (2.0 / ask.grid), most), least)
    return ((inside.floor() + 1.0) * 0.5).floor()


@dataclass
class Expressions:
    """The columns that a query makes in three steps, by their names.

    Each step may use the names of those before: engines compute a name once.
    """

    chosen: dict[str, "nw.Expr"] = field(default_factory=dict)  # Keys, values, ids and flags.
    wholes: dict[str, "nw.Expr"] = field(default_factory=dict)  # Values in whole grids.
    summed: dict[str, "nw.Expr"] = field(default_factory=dict)  # What is added up.
    codes: dict[str, "nw.Expr"] = field(default_factory=dict)  # What is counted by value.
    wide: set[str] = field(default_factory=set)  # The sums that may be larger than 64 bits.


@dataclass(frozen=True)
class Grouped:
    """A result of a query: sums by group, or by group and cell."""

    table: "DataFrame"
    places: Integers  # The group of each row, as its place in an array of `shape` made flat.
    shape: tuple[int, ...]

    def integers(self, name: str) -> Array:
        """Return sums as an array, of Python's integers if they may be larger than 64 bits."""
        column = self.table[name]
        is_narrow = column.dtype.is_integer() and column.dtype != nw.Int128
        if is_narrow and len(column) > 1:
            narrow: Integers = column.to_numpy().astype(np.int64)
            return narrow
        entries = [int(entry or 0) for entry in column.to_list()]  # The sum of no rows is null.
        return np.array(entries, dtype=np.int64 if is_narrow else object)

    def by_group(self, name: str) -> Array:
        """Return a column added up in an array of all groups."""
        column = self.integers(name)
        added = np.zeros(self.shape, dtype=column.dtype)
        np.add.at(added.reshape(-1), self.places, column)
        return added


Results = Mapping[str | None, Grouped]  # The sums under None, the counts of cells under their code.


@dataclass(frozen=True)
class AskColumns:
    """The columns that answer an ask.

    Those of a sum and of its squares; or flags of values at or above each edge, for the last one
    above it; or one with the cell of each row.
    """

    ask: Sums | Cells | Edges
    summed: tuple[str, ...] = ()
    code: str | None = None

    def answer(self, results: Results, count: Integers, missing: Integers) -> Sum | Integers:
        """Return the sum of the values that are there, or how many are in each cell."""
        ask, added = self.ask, [results[None].by_group(name) for name in self.summed]
        if isinstance(ask, Sums):
            zero = min(max(0, ask.least), ask.most)
            present = [
                np.asarray(total.astype(object) - missing.astype(object) * zero**power)
                for power, total in enumerate(added, start=1)
            ]
            return Sum(count, present[0], present[1] if ask.squares else None)
        if self.code is None:
            counts = np.stack([low - high for low, high in pairwise(added)], axis=-1)
        else:
            counts = self._cell_counts(results[self.code], self.code)
        zero_cell = _cell_of_zero(ask)
        if zero_cell < cells_of(ask):
            counts[..., zero_cell] -= missing
        return counts

    def _cell_counts(self, result: Grouped, code: str) -> Integers:
        """Count the rows of each cell. A last cell has those outside, and is left out."""
        cells = cells_of(self.ask) + 1  # type: ignore[arg-type]  # Sums have no code.
        counts = np.zeros((*result.shape, cells), dtype=np.int64)
        places = result.places * cells + result.integers(code)
        np.add.at(counts.reshape(-1), places, result.integers(ROWS))
        return np.ascontiguousarray(counts[..., :-1])


def add_ask(
    made: Expressions, name: str, ask: Sums | Cells | Edges, column: "nw.Expr"
) -> AskColumns:
    """Add what an ask needs of a column, under names that begin with `name`."""
    if isinstance(ask, Edges):
        *edges, last = ask.edges
        is_below = [*(column < edge for edge in edges), column <= last]
        if len(is_below) <= _FEW_EDGES:
            above = {f"{name}_{edge}": ~test for edge, test in enumerate(is_below)}
            made.summed |= above
            return AskColumns(ask, tuple(above))
        cells = len(edges)
        made.codes[name] = _bisected(is_below, [cells, *range(cells), cells])
        return AskColumns(ask, code=name)
    made.wholes[name], whole = clamped(column, ask), nw.col(name)
    if isinstance(ask, Cells):
        code = f"{name}_cell"
        made.codes[code] = (whole - float(ask.least)).cast(nw.Int64)
        return AskColumns(ask, code=code)
    powers = {f"{name}_total": whole} | ({f"{name}_square": whole * whole} if ask.squares else {})
    made.summed |= {power: expression.cast(nw.Int64) for power, expression in powers.items()}
    made.wide |= powers.keys()
    return AskColumns(ask, tuple(powers))


def _bisected(tests: list["nw.Expr"], results: list[int]) -> "nw.Expr":
    """Return the result before the first test that is true, where all after it are true too."""
    if not tests:
        return nw.lit(results[0])
    middle = len(tests) // 2
    lower = _bisected(tests[:middle], results[: middle + 1])
    upper = _bisected(tests[middle + 1 :], results[middle + 1 :])
    return nw.when(tests[middle]).then(lower).otherwise(upper)


def _cell_of_zero(ask: Cells | Edges) -> int:
    """Return the cell that a row without a value was counted in."""
    if isinstance(ask, Cells):
        return min(max(0, ask.least), ask.most) - ask.least
    if not ask.edges[0] <= 0 <= ask.edges[-1]:
        return cells_of(ask)
    return min(bisect_right(ask.edges, 0.0), cells_of(ask)) - 1
