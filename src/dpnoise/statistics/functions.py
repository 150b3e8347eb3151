"""Statistics of one column in memory: an array, a list, a Series, an Arrow column, or chunks.

A column is tallied in exact integers, chunk by chunk. How they are held depends on the number of
rows alone: in int64, as long as no rows could overflow it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, TypedDict, Unpack, cast

import numpy as np

from dpnoise.core.arrays import Array, Floats, number, plain, widened
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, check_choice, scrub_traceback
from dpnoise.core.kernel_table import sums
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.statistics import queries
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.engines.checking import MISSING
from dpnoise.statistics.plan import Ask, Cells, Edges, Plan, Rows, Sum, Sums, Tally
from dpnoise.statistics.results import Release
from dpnoise.statistics.selections import Quantiles

Column = Any  # An array, a list, a Series, an Arrow column, or an iterator over chunks of these.

_COLUMN: Final = "values"
_TURN: Final = 2**20  # Rows at a time: 2^20 of 2^40 grids add up to less than 2^62.
_WIDEST: Final = 8  # Bytes of a number.
_SURE: Final = 2**62  # Sums below it fit into int64.
_LOW: Final = 2**26


class Options(TypedDict, total=False):
    """What every statistic takes too: `missing="error"`, `confidence=0.95` and `rng=None`."""

    missing: str  # What to do about rows without a value: "error", or "drop" to leave them out.
    confidence: float  # That of the margins and intervals.
    rng: Generator | None  # Where noise comes from; by default a new Generator.


@scrub_traceback
def exact_sum(values: Column, lower: float, upper: float, grid: float | None = None) -> Fraction:
    """Return the exact sum of the values, each clamped to the bounds and rounded to the grid.

    Adding or removing one value moves it by at most max(|lower|, |upper|), in every order. A NaN
    counts as 0, clamped like any other value. The sum is not private: release it.

    Examples
    --------
    >>> float(exact_sum([0.5, 0.25, 1e300], lower=0, upper=1))
    1.75
    """
    bounds = Bounds.of_sum(lower, upper, grid)
    plan = Plan((Sums(_COLUMN, bounds.grid, bounds.least, bounds.most), Rows()))
    totals, rows = cast("tuple[Any, ...]", tally_chunks(chunks_of(values), plan).answers)
    missing = int(rows.item()) - int(totals.count.item())
    clamped_zero = min(max(0, bounds.least), bounds.most)
    return (int(totals.total.item()) + missing * clamped_zero) * Fraction(bounds.grid)


def _without_gaps(values: Column, missing: str) -> Iterator[Floats]:
    """Yield the values of a column; a NaN is a missing one."""
    for chunk in chunks_of(values):
        if missing == "error" and np.isnan(chunk).any():
            raise ArgumentError(
                'Every row must have a number. To leave out rows without one, set missing="drop".'
            )
        yield chunk


def _release(values: Column, query: queries.Query, options: Options) -> Release:
    """Ask the values, and release what they answer."""
    if unknown := options.keys() - Options.__annotations__:
        names = ", ".join(Options.__annotations__)
        raise ArgumentTypeError(
            f"There is no argument {min(unknown)!r}. Every statistic takes {names} besides its own."
        )
    missing = options.get("missing", "error")
    check_choice("missing", missing, MISSING)
    confidence = queries.check_confidence(options.get("confidence", 0.95))
    rng = check_generator(options.get("rng"))
    plan = Plan((query.ask,), missing=missing)
    answer: Any = tally_chunks(_without_gaps(values, missing), plan).answers[0]
    (release,) = query.release(answer, confidence, rng)
    return release


@scrub_traceback
def count(
    values: Column, *, epsilon: float, clamp: bool = True, **options: Unpack[Options]
) -> Release:
    """Release the number of values. One below 0 is published as 0, unless `clamp` is False.

    Examples
    --------
    >>> count([3.5, 2.0, 7.25], epsilon=1.0).scale
    1.0
    """
    return _release(values, queries.Count(_COLUMN, epsilon, clamp=clamp), options)


@scrub_traceback
def sum(  # noqa: A001 - it is what people ask for, under `dpnoise.statistics`
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the sum of the values, each clamped to the bounds.

    Examples
    --------
    >>> sum([3.5, 2.0, 7.25], lower=0, upper=10, epsilon=0.5).scale
    20.0
    """
    query = queries.Sum(_COLUMN, lower, upper, epsilon, grid)
    return _release(values, query, options)


@scrub_traceback
def mean(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the mean of the clamped values.

    Examples
    --------
    >>> released = mean([1960, 1975, 2001] * 2000, lower=1900, upper=2025, epsilon=1.0)
    >>> 1970 < released.value < 1990 and released.error < 1
    True
    """
    query = queries.Mean(_COLUMN, lower, upper, epsilon, grid)
    return _release(values, query, options)


@scrub_traceback
def variance(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the variance of the clamped values: over their number, not one less.

    Examples
    --------
    >>> released = variance([40.0, 60.0] * 5000, lower=0, upper=100, epsilon=1.0)
    >>> 80 < released.value < 120
    True
    """
    query = queries.Variance(_COLUMN, lower, upper, epsilon, grid)
    return _release(values, query, options)


@scrub_traceback
def std(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the standard deviation of the clamped values: the root of `variance`.

    Examples
    --------
    >>> released = std([40.0, 60.0] * 5000, lower=0, upper=100, epsilon=1.0)
    >>> 9 < released.value < 11
    True
    """
    query = queries.Deviation(_COLUMN, lower, upper, epsilon, grid)
    return _release(values, query, options)


@scrub_traceback
def histogram(
    values: Column,
    *,
    edges: Sequence[float],
    epsilon: float,
    clamp: bool = True,
    **options: Unpack[Options],
) -> Release:
    """Release how many values lie between each two edges; values outside are left out.

    A number below 0 is published as 0, unless `clamp` is False.

    Examples
    --------
    >>> released = histogram([1.0, 2.0, 7.0], edges=[0, 5, 10], epsilon=1.0)
    >>> released.labels
    ('0 to 5', '5 to 10')
    """
    return _release(values, queries.Histogram(_COLUMN, edges, epsilon, clamp=clamp), options)


@scrub_traceback
def quantile(
    values: Column,
    q: float,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    interval: bool = True,
    **options: Unpack[Options],
) -> Release:
    """Release the q-quantile of the clamped values, among the multiples of the grid.

    Half of epsilon is for an interval that has it inside, unless `interval` is False.

    Examples
    --------
    >>> released = quantile([20.0, 30.0, 90.0] * 1000, 0.9, lower=0, upper=100, epsilon=1.0)
    >>> low, high = released.interval
    >>> low <= released.value <= high
    True
    """
    return quantiles(
        values,
        [q],
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        grid=grid,
        interval=interval,
        **options,
    )


@scrub_traceback
def median(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    interval: bool = True,
    **options: Unpack[Options],
) -> Release:
    """Release the median of the clamped values: the 0.5-quantile.

    Examples
    --------
    >>> median([38.0] * 1000, lower=0, upper=120, epsilon=1.0).value
    38.0
    """
    return quantiles(
        values,
        [0.5],
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        grid=grid,
        interval=interval,
        **options,
    )


@scrub_traceback
def quantiles(
    values: Column,
    q: Sequence[float],
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    interval: bool = True,
    **options: Unpack[Options],
) -> Release:
    """Release several quantiles of the clamped values together: in order, they never cross.

    Half of epsilon is for intervals, unless `interval` is False. They are wide, because each is
    selected by itself.

    Examples
    --------
    >>> released = quantiles(range(1000), [0.25, 0.5, 0.75], lower=0, upper=1000, epsilon=1.0)
    >>> released.value == sorted(released.value)
    True
    """
    query = Quantiles(_COLUMN, q, lower, upper, epsilon, grid, interval=interval)
    return _release(values, query, options)


# Tallies -----------------------------------------------------------------------------------------


def tally_chunks(chunks: Iterable[Floats], plan: Plan) -> Tally:
    """Return the tally of a plan about one column, without groups, in one pass.

    A chunk is at most 2^20 rows of the column, where NaN is missing.
    """
    totals, rows = [_count(ask, np.empty(0)) for ask in plan.asks], 0
    for chunk in chunks:
        rows += chunk.size
        totals = [total + _count(ask, chunk) for ask, total in zip(plan.asks, totals, strict=True)]
    answers = [
        _sum(ask, total, rows) if isinstance(ask, Sums) else np.asarray(total)
        for ask, total in zip(plan.asks, totals, strict=True)
    ]
    return Tally(tuple(answers))


def _count(ask: Ask, values: Floats) -> Array:
    """Return what some rows add to an answer; of sums, Python's integers: see `_sum`."""
    if isinstance(ask, Rows):
        return np.array(values.size)
    if isinstance(ask, Edges):
        edges, cells = np.array(ask.edges), len(ask.edges) - 1
        places = np.searchsorted(edges, values, side="right") - 1
        places[values == edges[-1]] = cells - 1
        inside = (places >= 0) & (places < cells) & ~np.isnan(values)
        return np.bincount(places[inside], minlength=cells)
    arguments = (values, 1.0 / ask.grid, float(ask.least), float(ask.most))
    if isinstance(ask, Cells):
        counts = np.zeros(ask.most - ask.least + 1, dtype=np.int64)
        sums.count_cells(*arguments, counts)
        return counts
    low_and_high = sums.sum_squares(*arguments) if ask.squares else (0, 0)
    return np.array([int(part) for part in (*sums.sum_all(*arguments), *low_and_high)], object)


def _sum(ask: Sums, totals: Array, rows: int) -> Sum:
    """Return the answer of sums: their count, total, and the low and high parts of squares."""
    count, total, low, high = totals.tolist()
    largest = max(abs(ask.least), abs(ask.most), 1)

    def held(exactly: int, most: int) -> Array:
        return np.array(exactly, dtype=object if rows * most >= _SURE else np.int64)

    squares = held(high * _LOW + low, largest**2) if ask.squares else None
    return Sum(np.array(count), held(total, largest), squares)


def chunks_of(values: Column) -> Iterator[Floats]:
    """Yield the numbers of a column as float64 arrays of at most 2^20; NaN is a missing value."""
    if isinstance(values, Iterator):
        for part in values:
            yield from chunks_of(part)
        return
    try:
        with np.errstate(all="ignore"):
            array = _column(values)
    except Exception:  # noqa: BLE001 - each library has errors of its own
        raise ArgumentTypeError(
            f"The data must be a column of numbers, got a {type(values).__name__}. "
            "Convert text first; a missing value is NaN."
        ) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _WIDEST or array.ndim != 1:
        raise ArgumentTypeError(
            f"The data must be a column of numbers, got {array.dtype} of shape {array.shape}. "
            "Convert text first; a missing value is NaN."
        )
    for start in range(0, array.size, _TURN):
        yield widened(plain(array[start : start + _TURN]))


def _column(values: Column) -> Array:
    """Return a column as an array. What its kind calls null, NA or masked becomes NaN."""
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data)
    if isinstance(values, list | tuple):
        return _floats_of(values)
    if type(values).__module__.split(".")[0] == "pyarrow":
        values = values.to_pandas() if values.null_count else values
    elif hasattr(values, "isna") and values.dtype.kind in "iufb":
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    return _floats_of(array.tolist()) if array.dtype == object and array.ndim == 1 else array


def _floats_of(entries: Sequence[object]) -> Floats:
    """Return a list as floats: one beyond the largest is infinite, what is missing is NaN.

    Each row is converted by itself, so that no row decides what becomes of the others.
    """
    return np.array([_float_of(entry) for entry in entries], dtype=np.float64)


def _float_of(entry: object) -> float:
    if entry is None or entry is np.ma.masked or type(entry).__name__ == "NAType":
        return math.nan
    if isinstance(entry, bool | np.bool_):
        return float(entry)
    exactly = number(entry)
    try:
        return float(exactly)
    except OverflowError:
        return math.inf if exactly > 0 else -math.inf
