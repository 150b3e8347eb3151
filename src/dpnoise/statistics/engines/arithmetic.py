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
from typing import TYPE_CHECKING, Final

import numpy as np

from dpnoise.core.arrays import Array, Integers
from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines.checking import cells_of
from dpnoise.statistics.plan import Cells, Edges, Sum, Sums

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.dtypes import DType

    from dpnoise.statistics.engines.runners import DataFrame
else:
    nw = import_extra("narwhals", "engines")


ROWS: Final = "rows"  # The column of a result that has the number of rows.
_HALF: Final = 2**26  # Sums of q div 2^26 and of q mod 2^26 stay below 2^63 for 2^37 rows.
_ALL_EXACT: Final = 2**53  # Up to here every integer is a float.
_ALL_EXACT_SINGLE: Final = 2**24  # Up to here every integer is a float of 32 bits.
_FEW_EDGES: Final = 33  # With more, a search is quicker than comparing with each.
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


@dataclass(frozen=True)
class EngineTraits:
    """What an engine does well; what it computes is the same."""

    adds_in_128_bits: bool = False
    casts_integers: bool = False  # To the nearest float; else it refuses those beyond 2^53.
    divides_decimals: bool = False  # Else it multiplies by a power of 1/10, which is rounded.
    clips: bool = True  # Else it takes the least and the greatest of numbers.
    counts_comparisons: bool = False  # Quicker than it branches.


def is_present(column: "nw.Expr", dtype: "DType") -> "nw.Expr":
    """Tell whether a row has a value: neither null nor NaN."""
    there = ~column.is_null()
    return there & ~column.is_nan() if dtype in FLOATS else there


def filled(column: "nw.Expr", dtype: "DType", traits: EngineTraits) -> "nw.Expr":
    """Return a column of floats, with 0 where the value is missing; -0.0 becomes 0.0."""
    floats = _nearest_float(column, dtype, traits) + 0.0
    return nw.when(is_present(column, dtype)).then(floats).otherwise(nw.lit(0.0))


def _nearest_float(column: "nw.Expr", dtype: "DType", traits: EngineTraits) -> "nw.Expr":
    """Return a column as the float64 nearest to each number."""
    if dtype in WIDEST or (dtype == nw.Decimal and not _casts_decimal(dtype, traits)):
        return column.cast(nw.String).cast(nw.Float64)  # Engines would round twice.
    if dtype == nw.Boolean:
        return column.cast(nw.Int64).cast(nw.Float64)
    within = limits(dtype)
    if within is None or within[1] <= _ALL_EXACT or traits.casts_integers:
        return column.cast(nw.Float64)
    high, low = _split(nw.when(~column.is_null()).then(column).otherwise(nw.lit(0, dtype)), dtype)
    return high.cast(nw.Float64) * float(_HALF) + low.cast(nw.Float64)  # Rounds once, here.


def _casts_decimal(dtype: "DType", traits: EngineTraits) -> bool:
    """Tell whether an engine divides the digits by a power of ten, and so rounds once."""
    if not (traits.divides_decimals and isinstance(dtype, nw.Decimal)):
        return False
    return dtype.precision <= _LONGEST_EXACT


def _split(whole: "nw.Expr", dtype: "DType") -> tuple["nw.Expr", "nw.Expr"]:
    """Return high and low with x = 2^26 high + low and 0 <= low < 2^26: both are floats.

    Spark divides integers as floats, so that its quotient may be one too large.
    """
    half, (least, most) = nw.lit(_HALF, dtype), _LIMITS[dtype.base_type()]
    quotient = (whole // half).clip(nw.lit(least // _HALF, dtype), nw.lit(most // _HALF, dtype))
    rest = whole - quotient * half
    if least == 0:
        return quotient, rest
    borrowed = (rest < nw.lit(0, dtype)).cast(dtype)
    return quotient - borrowed, rest + borrowed * half


def clamped(value: "nw.Expr", ask: Sums | Cells, traits: EngineTraits) -> "nw.Expr":
    """Return q of a value."""
    twice, least, most = value * (2.0 / ask.grid), 2.0 * ask.least, 2.0 * ask.most
    if traits.clips:
        inside = twice.clip(least, most)
    else:
        inside = nw.max_horizontal(nw.min_horizontal(twice, nw.lit(most)), nw.lit(least))
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
class SumColumns:
    """The columns of a sum and of a sum of squares, each with the weight that it counts with."""

    ask: Sums
    totals: Mapping[str, int]
    squares: Mapping[str, int]
    code: None = None

    @property
    def summed(self) -> list[str]:
        """The columns that are added up."""
        return [*self.totals, *self.squares]

    def answer(self, results: Results, count: Integers, missing: Integers) -> Sum:
        """Return the sum of the values that are there."""
        zero = min(max(0, self.ask.least), self.ask.most)

        def total(weights: Mapping[str, int], of_missing: int) -> Array:
            found = missing.astype(object) * -of_missing
            for name, weight in weights.items():
                found = found + results[None].by_group(name).astype(object) * weight
            return np.asarray(found, dtype=object)

        squares = total(self.squares, zero**2) if self.ask.squares else None
        return Sum(count, total(self.totals, zero), squares)


@dataclass(frozen=True)
class CellColumns:
    """The column with the cell of each row."""

    ask: Cells | Edges
    code: str

    summed: tuple[str, ...] = ()

    def answer(self, results: Results, _: Integers, missing: Integers) -> Integers:
        """Return how many values are in each cell; a last cell, which has those outside, goes."""
        result, cells = results[self.code], cells_of(self.ask) + 1
        counts = np.zeros((*result.shape, cells), dtype=np.int64)
        places = result.places * cells + result.integers(self.code)
        np.add.at(counts.reshape(-1), places, result.integers(ROWS))
        counts[..., _cell_of_zero(self.ask)] -= missing
        return np.ascontiguousarray(counts[..., :-1])


@dataclass(frozen=True)
class EdgeColumns:
    """The columns that flag values at or above each edge; for the last one, above it."""

    ask: Edges
    summed: tuple[str, ...]
    code: None = None

    def answer(self, results: Results, _: Integers, missing: Integers) -> Integers:
        """Return how many values are in each cell, from how many are above its edges."""
        above = [results[None].by_group(name) for name in self.summed]
        counts = np.stack([low - high for low, high in pairwise(above)], axis=-1)
        zero = _cell_of_zero(self.ask)
        if zero < cells_of(self.ask):
            counts[..., zero] -= missing
        return counts


AskColumns = SumColumns | CellColumns | EdgeColumns


def add_ask(
    made: Expressions, name: str, ask: Sums | Cells | Edges, column: "nw.Expr", traits: EngineTraits
) -> AskColumns:
    """Add what an ask needs of a column, under names that begin with `name`."""
    if isinstance(ask, Edges):
        tests = _tests(column, ask)
        if not (traits.counts_comparisons and len(tests) <= _FEW_EDGES):
            cells = len(tests) - 1
            made.codes[name] = _bisected(tests, [cells, *range(cells), cells])
            return CellColumns(ask, name)
        above = {f"{name}_{edge}": ~test for edge, test in enumerate(tests)}
        made.summed |= above
        return EdgeColumns(ask, tuple(above))
    made.wholes[name], whole = clamped(column, ask, traits), nw.col(name)
    if isinstance(ask, Cells):
        code = f"{name}_cell"
        made.codes[code] = (whole - float(ask.least)).cast(nw.Int64)
        return CellColumns(ask, code)
    totals = _add_sum(made, f"{name}_total", whole, traits)
    squares = _add_sum(made, f"{name}_square", whole * whole, traits) if ask.squares else {}
    return SumColumns(ask, totals, squares)


def _add_sum(
    made: Expressions, name: str, whole: "nw.Expr", traits: EngineTraits
) -> dict[str, int]:
    """Add what is added up of q, at most 2^52: q, or q div 2^26 and q mod 2^26."""
    if traits.adds_in_128_bits:
        made.summed[name] = whole.cast(nw.Int64)
        made.wide.add(name)
        return {name: 1}
    high = (whole * (1.0 / _HALF)).floor().cast(nw.Float64)
    made.summed[f"{name}_high"] = high.cast(nw.Int64)
    made.summed[f"{name}_low"] = (whole - high * float(_HALF)).cast(nw.Int64)
    return {f"{name}_high": _HALF, f"{name}_low": 1}


def _tests(value: "nw.Expr", ask: Edges) -> list["nw.Expr"]:
    """Tell for each edge if a value is below it; for the last one if it is at most that."""
    *edges, last = ask.edges
    return [*(value < edge for edge in edges), value <= last]


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
