"""Statistics of one column in memory: an array, a list, a Series, an Arrow column, or chunks.

A column is tallied in exact integers, chunk by chunk. Their type depends only on the number of
rows: int64 as long as that many rows cannot overflow it, Python's integers otherwise.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from os import PathLike
from typing import Any, Final, TypedDict, Unpack, cast

import numpy as np

from dpnoise.core.arrays import Array, Floats, as_number, as_plain_array, to_float64
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_flag,
    is_list,
    reject_type,
    scrub_traceback,
)
from dpnoise.core.kernel_table import sums
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.statistics import queries
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.budget_split import LAPLACE, Budget, Item, price_items
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.engines.checking import MISSING
from dpnoise.statistics.plan import Ask, Cells, Edges, Plan, Rows, SumAnswer, Sums, Tally
from dpnoise.statistics.results import Release, as_loss
from dpnoise.statistics.selections import QuantileSelection

Column = Any  # An array, a list, a Series, an Arrow column, or an iterator over chunks of these.

_COLUMN: Final = "values"
_CHUNK_ROWS: Final = 2**20  # Rows at a time: 2^20 of 2^40 grids add up to less than 2^62.
_MAX_ITEM_BYTES: Final = 8  # A wider number would be rounded when it becomes a float64.
_INT64_SAFE: Final = 2**62  # Sums below this limit fit into int64.
_LOW_PART: Final = 2**26  # The kernel returns a sum of squares as high * 2^26 + low.


class Options(TypedDict, total=False):
    """Keyword arguments of every statistic.

    Attributes
    ----------
    mechanism
        The noise: "laplace" (the default), "gaussian", or "best" for the one with a smaller margin.
    delta
        The probability that epsilon does not hold, such as 1e-6. Gaussian noise needs it.
    rho
        The budget in zero-concentrated differential privacy, in place of epsilon.
    missing
        How to treat rows without a value: "error" (the default) raises, "drop" leaves them out.
    confidence
        The probability that a published margin or interval holds; 0.95 by default.
    rng
        The `Generator` that draws the noise; by default a new one.
    """

    mechanism: str
    delta: float
    rho: float | None
    missing: str
    confidence: float
    rng: Generator | None


@scrub_traceback
def exact_sum(values: Column, lower: float, upper: float, grid: float | None = None) -> Fraction:
    """Return the exact sum of the values, each clamped to the bounds and rounded to the grid.

    Adding or removing one value changes the sum by at most max(|lower|, |upper|), in every order
    of the values. The sum itself is not private: pass it to a mechanism before you publish it.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN counts as 0, clamped to the bounds.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: they determine the sensitivity of the sum.
    grid
        A power of two. Values are rounded to its multiples before they are added. By default
        about the larger bound divided by 2^32.

    Returns
    -------
    Fraction
        The sum.

    Raises
    ------
    ArgumentError
        If a bound or the grid is out of range.
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

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


def _check_missing(values: Column, missing: str) -> Iterator[Floats]:
    """Yield the chunks of a column; raise at a missing value if `missing` is "error"."""
    for chunk in chunks_of(values):
        if missing == "error" and np.isnan(chunk).any():
            raise ArgumentError(
                "Every row must have a number. To leave out rows without one, set {missing}.",
                missing="drop",
            )
        yield chunk


def _release(
    values: Column,
    make: Callable[[Loss], queries.Query],
    epsilon: float | None,
    options: Options,
    *,
    selects: bool = False,
) -> Release:
    """Tally the values for a query, and release the answer with noise.

    `make` returns the query for a loss. `selects` says whether it selects instead of adding noise.
    """
    if unknown_names := options.keys() - Options.__annotations__:
        names = ", ".join(Options.__annotations__)
        raise ArgumentTypeError(
            f"There is no argument {min(unknown_names)!r}. "
            f"Every statistic takes {names} besides its own."
        )
    missing = options.get("missing", "error")
    check_choice("missing", missing, MISSING)
    confidence = queries.check_confidence(options.get("confidence", 0.95))
    rng = check_generator(options.get("rng"))
    query = make(_loss(make, epsilon, confidence, options, selects=selects))
    plan = Plan((query.ask,), missing=missing)
    answer: Any = tally_chunks(_check_missing(values, missing), plan).answers[0]
    (release,) = query.release(answer, confidence, rng)
    return release


def _loss(
    make: Callable[[Loss], queries.Query],
    epsilon: float | None,
    confidence: float,
    options: Options,
    *,
    selects: bool,
) -> Loss:
    """Return the loss of a single statistic, which has the whole budget."""
    mechanism, rho = options.get("mechanism", LAPLACE), options.get("rho")
    delta = options.get("delta", 0.0)
    if epsilon is None and rho is None:
        raise ArgumentError("A statistic needs a budget: {epsilon}, or rho.", epsilon=1.0)
    if mechanism == LAPLACE and rho is None and delta == 0:
        return as_loss(epsilon)  # type: ignore[arg-type] # It is checked there.
    budget = Budget(epsilon, delta, rho, mechanism, confidence)
    (loss,) = price_items([Item(make, 1 if selects else None)], budget).losses
    return loss


@scrub_traceback
def count(
    values: Column, *, epsilon: float | None = None, clamp: bool = True, **options: Unpack[Options]
) -> Release:
    """Release the number of values.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    clamp
        Whether a count below 0 is published as 0. Noise can make it negative.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The noisy count as `value`, an integer. With probability `confidence` it is within `error`
        of the true count.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> count([3.5, 2.0, 7.25], epsilon=1.0).scale
    1.0
    """
    clamp = check_flag("clamp", clamp)
    query = partial(queries.Count, _COLUMN, clamp=clamp)
    return _release(values, query, epsilon, options)


@scrub_traceback
def sum(  # noqa: A001 - it is what people ask for, under `dpnoise.statistics`
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float | None = None,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the sum of the values, each clamped to the bounds.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the noise grows with them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. Values are rounded to its multiples before they are added. By default
        about the larger bound divided by 2^32.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The noisy sum as `value`. With probability `confidence` it is within `error` of the sum of
        the clamped values.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> sum([3.5, 2.0, 7.25], lower=0, upper=10, epsilon=0.5).scale
    20.0
    """
    query = partial(queries.Sum, _COLUMN, lower, upper, grid=grid)
    return _release(values, query, epsilon, options)


@scrub_traceback
def mean(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float | None = None,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the mean of the values, each clamped to the bounds.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the noise grows with them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. Values are rounded to its multiples before they are added. By default
        about the larger bound divided by 2^32.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The noisy mean as `value`. With probability `confidence` it is within `error` of the mean
        of the clamped values.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> released = mean([1960, 1975, 2001] * 2000, lower=1900, upper=2025, epsilon=1.0)
    >>> 1970 < released.value < 1990 and released.error < 1
    True
    """
    query = partial(queries.Mean, _COLUMN, lower, upper, grid=grid)
    return _release(values, query, epsilon, options)


@scrub_traceback
def variance(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float | None = None,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the variance of the values, each clamped to the bounds.

    This is the population variance: the divisor is the number of values, not one less. The privacy
    unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the noise grows with them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. Values are rounded to its multiples before they are added. By default
        about the larger bound divided by 2^26.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The noisy variance as `value`. With probability `confidence` it is within `error` of the
        variance of the clamped values.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> released = variance([40.0, 60.0] * 5000, lower=0, upper=100, epsilon=1.0)
    >>> 80 < released.value < 120
    True
    """
    query = partial(queries.Variance, _COLUMN, lower, upper, grid=grid)
    return _release(values, query, epsilon, options)


@scrub_traceback
def std(
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float | None = None,
    grid: float | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release the standard deviation of the values, each clamped to the bounds.

    It is the square root of `variance`. The privacy unit is one row. If a person can have several
    rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the noise grows with them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. Values are rounded to its multiples before they are added. By default
        about the larger bound divided by 2^26.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The noisy standard deviation as `value`. With probability `confidence` it is within `error`
        of the standard deviation of the clamped values.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> released = std([40.0, 60.0] * 5000, lower=0, upper=100, epsilon=1.0)
    >>> 9 < released.value < 11
    True
    """
    query = partial(queries.Deviation, _COLUMN, lower, upper, grid=grid)
    return _release(values, query, epsilon, options)


@scrub_traceback
def histogram(
    values: Column,
    *,
    edges: Sequence[float],
    epsilon: float | None = None,
    clamp: bool = True,
    **options: Unpack[Options],
) -> Release:
    """Release the number of values between each two neighbouring edges.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    edges
        The edges of the bins, in ascending order. A bin includes its lower edge; the last bin
        includes both. Values outside all bins are left out. Choose the edges without looking at
        the data.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    clamp
        Whether a count below 0 is published as 0. Noise can make it negative.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The noisy counts as `value`, a list, and the names of the bins as `labels`. With
        probability `confidence` each count is within `error`, and all are within `joint_error`.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> released = histogram([1.0, 2.0, 7.0], edges=[0, 5, 10], epsilon=1.0)
    >>> released.labels
    ('0 to 5', '5 to 10')
    """
    clamp = check_flag("clamp", clamp)
    query = partial(queries.Histogram, _COLUMN, edges, clamp=clamp)
    return _release(values, query, epsilon, options)


@scrub_traceback
def quantile(
    values: Column,
    q: float,
    *,
    lower: float,
    upper: float,
    epsilon: float | None = None,
    grid: float | None = None,
    interval: bool = False,
    **options: Unpack[Options],
) -> Release:
    """Release the q-quantile of the values, each clamped to the bounds.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    q
        The fraction of values below the quantile, from 0 to 1.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the result lies between them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. The result is one of its multiples. By default it is fine enough for more
        than 32,000 multiples between the bounds.
    interval
        Whether to spend half of epsilon on a confidence interval. The number is then less
        accurate, often by a factor of two to three.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The quantile as `value`. With probability `confidence` the quantile of the clamped values
        lies in `interval`.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> incomes = [20.0, 30.0, 90.0] * 1000
    >>> 80 < quantile(incomes, 0.9, lower=0, upper=100, epsilon=1.0).value < 100
    True
    >>> released = quantile(incomes, 0.9, lower=0, upper=100, epsilon=1.0, interval=True)
    >>> low, high = released.interval
    >>> low <= released.value <= high
    True
    """
    if is_list(q):
        reject_type("q", q, "be one number (`quantiles` takes several)")
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
    epsilon: float | None = None,
    grid: float | None = None,
    interval: bool = False,
    **options: Unpack[Options],
) -> Release:
    """Release the median of the values, each clamped to the bounds.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the result lies between them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. The result is one of its multiples. By default it is fine enough for more
        than 32,000 multiples between the bounds.
    interval
        Whether to spend half of epsilon on a confidence interval. The number is then less
        accurate, often by a factor of two to three.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The median as `value`. With probability `confidence` the median of the clamped values
        lies in `interval`.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

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
    epsilon: float | None = None,
    grid: float | None = None,
    interval: bool = False,
    **options: Unpack[Options],
) -> Release:
    """Release several quantiles of the values, each clamped to the bounds.

    A larger q never gets a smaller result. The privacy unit is one row. If a person can have
    several rows, use `publish` instead.

    Parameters
    ----------
    values
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks of
        these. A null or NaN is a missing value.
    q
        The fraction of values below each quantile: different numbers from 0 to 1.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking
        at the data: the result lies between them.
    epsilon
        The privacy loss. Smaller is more private and less accurate; 0.1 to 10 are common. None if
        `rho` is given.
    grid
        A power of two. The result is one of its multiples. By default it is fine enough for more
        than 32,000 multiples between the bounds.
    interval
        Whether to spend half of epsilon on confidence intervals. They are wide, because each is
        selected separately.
    **options
        `missing="drop"` leaves out missing values; by default they are an error. `confidence`
        is the probability that the margin holds, by default 0.95. `mechanism`, `delta` and `rho`
        choose the noise and its budget, as in `Request`. `rng` is the `Generator` that draws it.

    Returns
    -------
    Release
        The quantiles as `value`, a list in the order of `q`; a single number if `q` has one. With
        probability `confidence` each quantile of the clamped values lies in its pair of `interval`.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if a value is missing and `missing` is "error".
    ArgumentTypeError
        If `values` is not a column of numbers, or if an argument has the wrong type.

    Examples
    --------
    >>> released = quantiles(range(1000), [0.25, 0.5, 0.75], lower=0, upper=1000, epsilon=1.0)
    >>> released.value == sorted(released.value)
    True
    """
    interval = check_flag("interval", interval)
    query = partial(QuantileSelection, _COLUMN, q, lower, upper, grid=grid, interval=interval)
    return _release(values, query, epsilon, options, selects=True)


# Tallies -----------------------------------------------------------------------------------------


def tally_chunks(chunks: Iterable[Floats], plan: Plan) -> Tally:
    """Return the tally of a plan for one column, without groups, in one pass.

    A chunk has at most 2^20 rows of the column. NaN is a missing value.
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
    """Return the contribution of a chunk to one answer; for sums, the parts that `_sum` joins."""
    if isinstance(ask, Rows):
        return np.array(values.size)
    if isinstance(ask, Edges):
        edges, cells = np.array(ask.edges), len(ask.edges) - 1
        bins = np.searchsorted(edges, values, side="right") - 1
        bins[values == edges[-1]] = cells - 1
        inside = (bins >= 0) & (bins < cells) & ~np.isnan(values)
        return np.bincount(bins[inside], minlength=cells)
    arguments = (values, 1.0 / ask.grid, float(ask.least), float(ask.most))
    if isinstance(ask, Cells):
        counts = np.zeros(ask.most - ask.least + 1, dtype=np.int64)
        sums.count_cells(*arguments, counts)
        return counts
    low_and_high = sums.sum_squares(*arguments) if ask.squares else (0, 0)
    return np.array(
        [int(part) for part in (*sums.count_and_sum(*arguments), *low_and_high)], object
    )


def _sum(ask: Sums, totals: Array, rows: int) -> SumAnswer:
    """Return the answer to `Sums`, from count, total and the two parts of the squares."""
    count, total, low, high = totals.tolist()
    largest = max(abs(ask.least), abs(ask.most), 1)

    def as_array(exact: int, most: int) -> Array:
        return np.array(exact, dtype=object if rows * most >= _INT64_SAFE else np.int64)

    squares = as_array(high * _LOW_PART + low, largest**2) if ask.squares else None
    return SumAnswer(np.array(count), as_array(total, largest), squares)


def chunks_of(values: Column) -> Iterator[Floats]:
    """Yield the numbers of a column as float64 arrays of at most 2^20; NaN is a missing value."""
    if isinstance(values, Iterator):
        for part in values:
            yield from chunks_of(part)
        return
    try:
        with np.errstate(all="ignore"):
            array = _column(values)
    except Exception:  # noqa: BLE001 - each library raises different errors
        raise _not_a_column(values) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _MAX_ITEM_BYTES or array.ndim != 1:
        raise _not_a_column(values, array)
    for start in range(0, array.size, _CHUNK_ROWS):
        yield to_float64(as_plain_array(array[start : start + _CHUNK_ROWS]))


def _not_a_column(values: object, array: Array | None = None) -> ArgumentTypeError:
    """Return the error for data that is not one column of numbers."""
    kind = type(values).__name__
    if array is not None and array.ndim:
        kind += f" of {array.dtype}" + (f" with {array.ndim} dimensions" if array.ndim > 1 else "")
    advice = "Convert text and dates to numbers first; a missing value is NaN"
    if hasattr(type(values), "columns") or isinstance(values, Mapping):
        advice = 'Give one column, such as frame["age"], or give the whole frame to `publish`'
    elif isinstance(values, str | PathLike):
        advice = "For a file, use `publish`"
    return ArgumentTypeError(f"The data must be a column of numbers, got {kind}. {advice}.")


def _column(values: Column) -> Array:
    """Return a column as an array, with NaN for every null, NA or masked entry."""
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
    """Return a list as floats: too large numbers become infinite, missing entries NaN.

    Each row is converted separately, so that no row affects the conversion of another.
    """
    return np.array([_float_of(entry) for entry in entries], dtype=np.float64)


def _float_of(entry: object) -> float:
    if entry is None or entry is np.ma.masked or type(entry).__name__ == "NAType":
        return math.nan
    if isinstance(entry, bool | np.bool_):
        return float(entry)
    exact = as_number(entry)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
