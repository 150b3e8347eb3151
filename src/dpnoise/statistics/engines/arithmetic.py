"""The exact arithmetic of a row, in expressions that every engine evaluates alike.

A number counts as the float64 nearest to it, whatever type its column has: a reader may turn the
integers of a column into floats because of one row. That float x counts as q = floor(x/grid + 1/2).
The grid is a power of two, so y = x/grid is exact, but y + 1/2 would round; instead
q = floor((floor(2y) + 1)/2), where every step is exact up to 2^52.
"""

from dataclasses import dataclass
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.plan import Cells, Edges, Sums

nw = import_extra("narwhals", "engines")

HALF: Final = 2**26  # Sums of q div 2^26 and of q mod 2^26 stay below 2^63 for 2^37 rows.
_ALL_EXACT: Final = 2**53  # Up to here every integer is a float.
_ALL_EXACT_SINGLE: Final = 2**24  # Up to here every integer is a float of 32 bits.
_WIDEST: Final = (nw.Int128, nw.UInt128)
_LONGEST_EXACT: Final = 15  # Digits of a decimal whose digits and scale are floats.
_LIMITS: Final = {
    getattr(nw, f"{sign}Int{bits}"): (0, 2**bits - 1)
    if sign
    else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


def limits(dtype: Any) -> tuple[int, int] | None:
    """Return the least and the most of a type of integers; None for other types."""
    return _LIMITS.get(dtype.base_type())


def exact_limit(dtype: Any) -> int:
    """Return the magnitude below which whole numbers in a column of floats were not rounded."""
    return _ALL_EXACT_SINGLE if dtype == nw.Float32 else _ALL_EXACT


def kind_of(dtype: Any) -> str:
    """Return a type as errors name it: without the categories that an enumeration lists."""
    return getattr(dtype, "__name__", type(dtype).__name__)


def check_numbers(name: str, dtype: Any) -> None:
    """Raise unless a column of this type holds numbers."""
    numbers = {nw.Float32, nw.Float64, nw.Boolean, nw.Decimal, *_WIDEST}
    if limits(dtype) is None and dtype.base_type() not in numbers:
        raise ArgumentError(
            f"Column {name!r} holds {kind_of(dtype)}. Expected numbers or booleans: convert it "
            "first."
        )


@dataclass(frozen=True)
class Habits:
    """What an engine does well; what it computes is the same."""

    adds_in_128_bits: bool = False
    casts_integers: bool = False  # To the nearest float; else it refuses those beyond 2^53.
    divides_decimals: bool = False  # Else it multiplies by a power of 1/10, which is rounded.
    clips: bool = True  # Else it takes the least and the greatest of numbers.
    counts_comparisons: bool = False  # Quicker than it branches.


def present(column: Any, dtype: Any) -> Any:
    """Tell whether a row has a value: neither null nor NaN."""
    there = ~column.is_null()
    return there & ~column.is_nan() if dtype in {nw.Float32, nw.Float64} else there


def filled(column: Any, dtype: Any, habits: Habits) -> Any:
    """Return a column of floats, with 0 where the value is missing; -0.0 becomes 0.0."""
    floats = _nearest_float(column, dtype, habits) + 0.0
    return nw.when(present(column, dtype)).then(floats).otherwise(nw.lit(0.0))


def _nearest_float(column: Any, dtype: Any, habits: Habits) -> Any:
    """Return a column as the float64 nearest to each number."""
    if dtype in _WIDEST or (dtype == nw.Decimal and not _casts_decimal(dtype, habits)):
        return column.cast(nw.String).cast(nw.Float64)  # Engines would round twice.
    if dtype == nw.Boolean:
        return column.cast(nw.Int64).cast(nw.Float64)
    within = limits(dtype)
    if within is None or within[1] <= _ALL_EXACT or habits.casts_integers:
        return column.cast(nw.Float64)
    high, low = _split(nw.when(~column.is_null()).then(column).otherwise(nw.lit(0, dtype)), dtype)
    return high.cast(nw.Float64) * float(HALF) + low.cast(nw.Float64)  # Rounds once, here.


def _casts_decimal(dtype: Any, habits: Habits) -> bool:
    """Tell whether an engine divides the digits by a power of ten, and so rounds once."""
    return habits.divides_decimals and dtype.precision <= _LONGEST_EXACT


def doubled(value: Any, ask: Sums | Cells) -> Any:
    """Return 2x/grid, which the bounds clamp."""
    return value * (2.0 / ask.grid)


def _split(whole: Any, dtype: Any) -> tuple[Any, Any]:
    """Return high and low with x = 2^26 high + low and 0 <= low < 2^26: both are floats.

    Spark divides integers as floats, so that its quotient may be one too large.
    """
    half, (least, most) = nw.lit(HALF, dtype), _LIMITS[dtype.base_type()]
    quotient = (whole // half).clip(nw.lit(least // HALF, dtype), nw.lit(most // HALF, dtype))
    rest = whole - quotient * half
    if least == 0:
        return quotient, rest
    borrowed = (rest < nw.lit(0, dtype)).cast(dtype)
    return quotient - borrowed, rest + borrowed * half


def clamped(twice: Any, ask: Sums | Cells, habits: Habits) -> Any:
    """Return q, from 2x/grid; a row without a value counts as 0, clamped like any other."""
    least, most = 2.0 * ask.least, 2.0 * ask.most
    if habits.clips:
        inside = twice.clip(least, most)
    else:
        inside = nw.max_horizontal(nw.min_horizontal(twice, nw.lit(most)), nw.lit(least))
    return ((inside.floor() + 1.0) * 0.5).floor()


def summands(whole: Any, habits: Habits) -> dict[str, Any]:
    """Return what is added up of q, at most 2^52: q, or q div 2^26 and q mod 2^26."""
    if habits.adds_in_128_bits:
        return {"": whole.cast(nw.Int64)}
    high = (whole * (1.0 / HALF)).floor().cast(nw.Float64)
    return {"high": high.cast(nw.Int64), "low": (whole - high * float(HALF)).cast(nw.Int64)}


def cell(whole: Any, ask: Cells) -> Any:
    """Return the cell of q, from 0."""
    return (whole - float(ask.least)).cast(nw.Int64)


def comparisons(value: Any, ask: Edges) -> list[Any]:
    """Tell for each edge if a value is at or above it; for the last one if it is above."""
    return [~test for test in _tests(value, ask)]


def cell_between(value: Any, ask: Edges) -> Any:
    """Return the cell of a value between edges; outside, the number of cells."""
    cells = len(ask.edges) - 1
    return _bisected(_tests(value, ask), [cells, *range(cells), cells])


def _tests(value: Any, ask: Edges) -> list[Any]:
    """Tell for each edge if a value is below it; for the last one if it is at most that."""
    *edges, last = ask.edges
    return [*(value < edge for edge in edges), value <= last]


def _bisected(tests: list[Any], results: list[int]) -> Any:
    """Return the result before the first test that is true, where all after it are true too."""
    if not tests:
        return nw.lit(results[0])
    middle = len(tests) // 2
    lower = _bisected(tests[:middle], results[: middle + 1])
    upper = _bisected(tests[middle + 1 :], results[middle + 1 :])
    return nw.when(tests[middle]).then(lower).otherwise(upper)
