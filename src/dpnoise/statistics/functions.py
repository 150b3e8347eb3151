"""Statistics of one column in memory: an array, a list, a Series, an Arrow column, or chunks.

Every function raises ArgumentError if an argument is out of range or a value is missing, and
ArgumentTypeError if the data is not a column of numbers or an argument has the wrong type.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final, TypedDict, Unpack, cast

import numpy as np

from dpnoise.core.arrays import Floats
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_flag,
    is_list,
    reject_type,
    scrub_traceback,
)
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.statistics import queries
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.budget_split import LAPLACE, Budget, Item, price_items
from dpnoise.statistics.column_tally import Column, chunks_of, tally_chunks
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.engines.checking import MISSING
from dpnoise.statistics.plan import Plan, Rows, Sums
from dpnoise.statistics.results import Release, as_loss
from dpnoise.statistics.selections import QuantileSelection

_COLUMN: Final = "values"


class Options(TypedDict, total=False):
    """Keyword arguments of every statistic.

    Attributes
    ----------
    mechanism
        The noise: "laplace", "gaussian", or "best" for the one with a smaller margin. By default
        "best" with a delta, else "laplace".
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

    mechanism: str | None
    delta: float
    rho: float | None
    missing: str
    confidence: float
    rng: Generator | None


@scrub_traceback
def exact_sum(values: Column, lower: float, upper: float, grid: float | None = None) -> Fraction:
    """Return the exact sum of the values, each clamped to the bounds and rounded to the grid.

    Adding or removing one value changes the sum by at most max(|lower|, |upper|), in every order
    of the values. The sum of no values is 0. The sum itself is not private. To publish it, release
    it as an integer, in units of the grid. Never release `float(total)`: it can move by more than
    the sensitivity.

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
        about the larger bound divided by 2^32; at least the larger bound divided by 2^40.

    Examples
    --------
    >>> grid = 2.0**-20
    >>> total = exact_sum([0.5, 0.25, 1e300], lower=0, upper=1, grid=grid)
    >>> total
    Fraction(7, 4)
    >>> from dpnoise import LaplaceMechanism
    >>> mechanism = LaplaceMechanism(epsilon=1.0, sensitivity=1 / grid)
    >>> published = mechanism.release(int(total / Fraction(grid))) * grid
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
    mechanism, rho = options.get("mechanism"), options.get("rho")
    delta = options.get("delta", 0.0)
    if epsilon is None and rho is None:
        raise ArgumentError("A statistic needs a budget: {epsilon}, or rho.", epsilon=1.0)
    if mechanism in {None, LAPLACE} and rho is None and delta == 0:
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
        The numbers: an array, a list, a Series, an Arrow column, or an iterator over chunks.
    epsilon
        The privacy loss: smaller is more private and less accurate. None if `rho` is given.
    clamp
        Whether a count below 0 is published as 0. Noise can make it negative.
    **options
        What to do with missing values, the noise, and the confidence of margins: `Options`.

    Returns
    -------
    Release
        The noisy count as `value`, an integer, with its margin of error as `error`. Sums, means,
        variances and standard deviations are published likewise, as floats.

    Examples
    --------
    >>> count([3.5, 2.0, 7.25], epsilon=1.0).scale
    1.0
    """
    query = partial(queries.Count, _COLUMN, clamp=check_flag("clamp", clamp))
    return _release(values, query, epsilon, options)


@scrub_traceback
def sum(  # noqa: A001 - it is what people ask for, under `dpnoise.statistics`
    values: Column,
    *,
    lower: float,
    upper: float,
    epsilon: float | None = None,
    grid: float | None = None,
    clamp: bool = True,
    **options: Unpack[Options],
) -> Release:
    """Release the sum of the values, each clamped to the bounds.

    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values, epsilon, **options
        As for `count`.
    lower, upper
        The bounds that values are clamped to. Choose them without looking at the data.
    grid
        A power of two; values are rounded to its multiples. Default: about the larger bound / 2^32.
    clamp
        Whether a sum below 0 is released as 0 if `lower` is not negative.

    Examples
    --------
    >>> sum([3.5, 2.0, 7.25], lower=0, upper=10, epsilon=0.5).scale
    20.0
    """
    query = partial(queries.Sum, _COLUMN, lower, upper, grid=grid, clamp=check_flag("clamp", clamp))
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
    values, lower, upper, epsilon, grid, **options
        As for `sum`.

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
    values, lower, upper, epsilon, **options
        As for `sum`.
    grid
        A power of two; values are rounded to its multiples. Default: about the larger bound / 2^26.

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
    values, lower, upper, epsilon, grid, **options
        As for `variance`.

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

    A bin includes its lower edge; the last bin includes both. Values outside all bins are left out.
    The privacy unit is one row. If a person can have several rows, use `publish` instead.

    Parameters
    ----------
    values, epsilon, clamp, **options
        As for `count`.
    edges
        The edges of the bins, in ascending order. Choose them without looking at the data.

    Returns
    -------
    Release
        The noisy counts as `value`, a list, and the names of the bins as `labels`. With
        probability `confidence` each count is within `error`, and all are within `joint_error`.

    Examples
    --------
    >>> released = histogram([1.0, 2.0, 7.0], edges=[0, 5, 10], epsilon=1.0)
    >>> released.labels
    ('0 to 5', '5 to 10')
    """
    query = partial(queries.Histogram, _COLUMN, edges, clamp=check_flag("clamp", clamp))
    return _release(values, query, epsilon, options)


@scrub_traceback
def quantile(  # Most of its lines are documentation.
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
    values, lower, upper, epsilon, **options
        As for `sum`.
    q
        The fraction of values below the quantile, from 0 to 1.
    grid
        A power of two. The result is one of its multiples. The default depends on the bounds: it is
        at least 1 if they are whole numbers that are 50 or more apart.
    interval
        Whether to spend half of epsilon on a confidence interval. The result is less accurate.

    Returns
    -------
    Release
        The quantile as `value`, and its confidence interval as `interval`.

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
    interval = check_flag("interval", interval)
    query = partial(QuantileSelection, _COLUMN, [q], lower, upper, grid=grid, interval=interval)
    return _release(values, query, epsilon, options, selects=True)


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
    values, lower, upper, epsilon, grid, interval, **options
        As for `quantile`.

    Examples
    --------
    >>> median([38.0] * 1000, lower=0, upper=120, epsilon=1.0).value
    38.0
    """
    interval = check_flag("interval", interval)
    query = partial(QuantileSelection, _COLUMN, [0.5], lower, upper, grid=grid, interval=interval)
    return _release(values, query, epsilon, options, selects=True)


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
    values, lower, upper, epsilon, grid, interval, **options
        As for `quantile`.
    q
        The fraction of values below each quantile: different numbers from 0 to 1.

    Returns
    -------
    Release
        The quantiles as `value`, a list in the order of `q`; a single number if `q` has one. The
        confidence intervals are `interval`. They are wide, because each is selected separately.

    Examples
    --------
    >>> released = quantiles(range(1000), [0.25, 0.5, 0.75], lower=0, upper=1000, epsilon=1.0)
    >>> released.value == sorted(released.value)
    True
    """
    interval = check_flag("interval", interval)
    query = partial(QuantileSelection, _COLUMN, q, lower, upper, grid=grid, interval=interval)
    return _release(values, query, epsilon, options, selects=True)
