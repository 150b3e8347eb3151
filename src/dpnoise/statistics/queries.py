"""Statistics of a data set, released: counts, sums, means, histograms and quantiles.

Neighbouring data sets differ by one row, added or removed. Every query is a function of exact
integers: a value becomes a whole number of grids before anything is added, so a row moves a sum by
at most max(|lower|, |upper|), in every order of addition, whatever the row holds. The grid comes
from the declared bounds, never from the data.

Data comes as an array, a list, a Series, an Arrow column, or as an iterable of such chunks. Each
query is an accumulator that chunks are added to; the functions add all and release once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.arrays import exact_floats, number, plain, widened
from dpnoise.chunks import kernel_named
from dpnoise.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_bound,
    check_choice,
    check_part,
    check_positive,
    check_power_of_two,
    forgetful,
    reject,
)
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import deciding
from dpnoise.release.additive import LaplaceMechanism
from dpnoise.release.calibration import EXTREME, selection_scale
from dpnoise.release.selection import select_weighted

Floats = NDArray[np.float64]

MISSING: Final = ("error", "drop")  # What to do about rows without a value.
_GRIDS_IN_A_BOUND: Final = 2.0**32  # The default grid is about the larger bound over this.
_MOST_GRIDS: Final = 2**40  # With 2^20 values a turn, their sum stays below 2^62.
_TURN: Final = 2**20
_MOST_CANDIDATES: Final = 2**22
_CANDIDATES: Final = 2**16
_WIDEST: Final = 8  # Bytes of a number.


@dataclass(frozen=True)
class Release:
    """A published number, and what may be published with it.

    Parameters
    ----------
    query
        What was asked.
    value
        The number, or the numbers.
    epsilon
        The privacy loss spent on it.
    scale
        The scale of the noise, in units of the value; None where noise is not added to it.
    error
        With probability `confidence` the value is within this of the clamped statistic (each of
        the values, for a histogram); None where no such bound is known.
    confidence
        The probability that belongs to `error`.
    parts
        How epsilon is split, where the query is made of several releases.
    """

    query: str
    value: Any
    epsilon: float
    scale: float | None
    error: float | None
    confidence: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """Declared bounds, moved inward to multiples of a power of two."""

    lower: float
    upper: float
    grid: float

    @classmethod
    def declared(cls, lower: float, upper: float, grid: float | None, cells: float) -> "Bounds":
        """Check the bounds and choose the grid: by default the larger bound over `cells`."""
        lower, upper = _checked_bound("lower", lower), _checked_bound("upper", upper)
        if lower >= upper:
            reject("lower", lower, f"< upper={upper}")
        largest = max(abs(lower), abs(upper))
        if grid is None:
            # A bound so small that this underflows is refused below.
            grid = 2.0 ** math.ceil(math.log2(max(largest / cells, 2.0**-1000)))
        grid = check_power_of_two("grid", grid)
        if not 1 / EXTREME <= grid <= EXTREME:
            reject("grid", grid, "to be between 2^-960 and 2^960: measure in another unit")
        bounds = cls(lower, upper, grid)
        if bounds.least > bounds.most:
            reject("grid", grid, f"to have a multiple between lower={lower} and upper={upper}")
        if largest / grid > _MOST_GRIDS:
            reject("grid", grid, f"to be at least the larger bound over 2^40, {largest / 2**40:g}")
        return bounds

    @property
    def least(self) -> int:
        """The lower bound in whole grids."""
        return math.ceil(Fraction(self.lower) / Fraction(self.grid))

    @property
    def most(self) -> int:
        """The upper bound in whole grids."""
        return math.floor(Fraction(self.upper) / Fraction(self.grid))

    @property
    def sensitivity(self) -> int:
        """How far one row can move the sum, in whole grids."""
        return max(abs(self.least), abs(self.most), 1)


def _checked_bound(name: str, value: object) -> float:
    """Return a declared bound as an int or a float."""
    bound = check_bound(name, value)
    if bound is None:
        reject(name, value, "to be a number")
    return bound


def chunks_of(values: Any) -> Iterator[Floats]:
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
            f"Expected a column of numbers, got a {type(values).__name__} that is none. "
            "Convert text first; a missing value is NaN."
        ) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _WIDEST or array.ndim != 1:
        raise ArgumentTypeError(
            f"Expected a column of numbers, got {array.dtype} of shape {array.shape}. "
            "Convert text first; a missing value is NaN."
        )
    for start in range(0, array.size, _TURN):
        yield widened(plain(array[start : start + _TURN]))


def _column(values: Any) -> NDArray[Any]:
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


def _floats_of(entries: Sequence[Any]) -> Floats:
    """Return a list as floats: one beyond the largest is infinite, what is missing is NaN.

    Each row is converted by itself, so that no row decides what becomes of the others.
    """
    return np.array([_float_of(entry) for entry in entries], dtype=np.float64)


def _float_of(entry: Any) -> float:
    if entry is None or entry is np.ma.masked or type(entry).__name__ == "NAType":
        return math.nan
    if isinstance(entry, bool | np.bool_):
        return float(entry)
    exactly = number(entry)
    try:
        return float(exactly)
    except OverflowError:
        return math.inf if exactly > 0 else -math.inf


@forgetful
def exact_sum(values: Any, lower: float, upper: float, grid: float | None = None) -> Fraction:
    """Return the exact sum of the values, each clamped to the bounds and rounded to the grid.

    Adding or removing one value moves it by at most max(|lower|, |upper|), in every order. A NaN
    counts as 0, clamped like any other value. The sum is not private: release it.

    Examples
    --------
    >>> float(exact_sum([0.5, 0.25, 1e300], lower=0, upper=1))
    1.75
    """
    query = Sum(lower, upper, epsilon=1.0, grid=grid)
    for chunk in chunks_of(values):
        query.add(chunk)
    return query.total * Fraction(query.bounds.grid)


class RowCount:
    """How many rows."""

    def __init__(self, epsilon: float) -> None:
        self.mechanism = LaplaceMechanism(epsilon, 1.0, lower=0.0)
        self.total = 0

    def add(self, chunk: Floats) -> None:
        """Count the rows of a chunk."""
        self.total += chunk.size

    def release(self, confidence: float, rng: Generator | None) -> Release:
        """Publish the number of rows."""
        mechanism = self.mechanism
        error = mechanism.error(confidence) + 0.5
        value = mechanism.release(self.total, rng)
        return Release("count", value, mechanism.epsilon, mechanism.scale, error, confidence)


class Sum:
    """The sum of the clamped values."""

    def __init__(
        self, lower: float, upper: float, epsilon: float, grid: float | None = None
    ) -> None:
        self.bounds = Bounds.declared(lower, upper, grid, _GRIDS_IN_A_BOUND)
        self.mechanism = LaplaceMechanism(epsilon, float(self.bounds.sensitivity))
        scale = self.mechanism.scale * self.bounds.grid
        if scale > EXTREME:
            reject("scale", scale, "to be at most 2^960. It is the larger bound over epsilon")
        self.total = 0

    def add(self, chunk: Floats) -> None:
        """Add the values of a chunk, as whole numbers of grids."""
        bounds = self.bounds
        kernel = kernel_named("sums.sum_in_grids")
        arguments = (1.0 / bounds.grid, float(bounds.least), float(bounds.most))
        self.total += int(kernel(chunk, *arguments))

    def release(self, confidence: float, rng: Generator | None) -> Release:
        """Publish the sum."""
        mechanism, grid = self.mechanism, self.bounds.grid
        error = (mechanism.error(confidence) + 0.5) * grid
        value = deciding.nearest_float(mechanism.release(self.total, rng), grid)
        scale = mechanism.scale * grid
        return Release("sum", value, mechanism.epsilon, scale, error, confidence)


class Mean:
    """The noisy sum over the noisy count, half of epsilon for each, clamped to the bounds."""

    def __init__(
        self, lower: float, upper: float, epsilon: float, grid: float | None = None
    ) -> None:
        self.epsilon = check_positive("epsilon", epsilon)
        self.sum = Sum(lower, upper, self.epsilon / 2, grid)
        self.count = RowCount(self.epsilon / 2)

    def add(self, chunk: Floats) -> None:
        """Add the values of a chunk, and count them."""
        self.sum.add(chunk)
        self.count.add(chunk)

    def release(self, confidence: float, rng: Generator | None) -> Release:
        """Publish the mean.

        S/C - s/c = (S-s)/c + (S/C)(c-C)/c, so where S and C are within their errors of s and c
        the quotient is within (error of S + |S/C| error of C) / c, and c is at least C less its
        error. Both are within their errors at (1 + confidence)/2 with probability `confidence`.
        """
        each = (1 + confidence) / 2
        total, count = self.sum.release(each, rng), self.count.release(each, rng)
        bounds = self.sum.bounds
        quotient = total.value / max(count.value, 1)
        mean = float(min(max(quotient, bounds.lower), bounds.upper))
        least_rows = max(count.value - (count.error or 0.0), 1.0)
        error = ((total.error or 0.0) + abs(quotient) * (count.error or 0.0)) / least_rows
        error = min(error, bounds.upper - bounds.lower)
        parts = {part.query: part.epsilon for part in (total, count)}
        return Release("mean", mean, self.epsilon, None, error, confidence, parts)


class Histogram:
    """How many values lie in each cell between declared edges; those outside are left out."""

    def __init__(self, edges: Sequence[float], epsilon: float) -> None:
        self.edges = np.atleast_1d(exact_floats(edges))
        rising = self.edges[1:] > self.edges[:-1]
        if self.edges.ndim != 1 or self.edges.size < 2 or not np.all(rising):  # noqa: PLR2004
            raise ArgumentError("Expected edges to be two or more increasing numbers.")
        self.mechanism = LaplaceMechanism(epsilon, 1.0, lower=0.0)
        self.totals = np.zeros(self.edges.size - 1, dtype=np.int64)

    def add(self, chunk: Floats) -> None:
        """Count the values of a chunk: a cell holds its lower edge, the last its upper one too."""
        cells = np.searchsorted(self.edges, chunk, side="right") - 1
        cells[chunk == self.edges[-1]] -= 1
        inside = (cells >= 0) & (cells < self.totals.size)
        self.totals += np.bincount(cells[inside], minlength=self.totals.size)

    def release(self, confidence: float, rng: Generator | None) -> Release:
        """Publish the counts: one row is in one of them, so all together cost epsilon once."""
        mechanism = self.mechanism
        error = mechanism.error(confidence) + 0.5
        value = mechanism.release(self.totals, rng).tolist()
        return Release("histogram", value, mechanism.epsilon, mechanism.scale, error, confidence)


class Quantile:
    """The q-quantile among the multiples of the grid, by the exponential mechanism.

    The score of a candidate is minus the distance of its rank from q times the number of rows,
    which one row moves by at most 1. Candidates with one rank are one group.
    """

    def __init__(
        self, q: float, lower: float, upper: float, epsilon: float, grid: float | None = None
    ) -> None:
        self.q = check_part("q", q, ends=True)
        self.epsilon = check_positive("epsilon", epsilon)
        self.bounds = Bounds.declared(lower, upper, grid, _CANDIDATES)
        candidates = self.bounds.most - self.bounds.least + 1
        if candidates > _MOST_CANDIDATES:
            reject("grid", self.bounds.grid, f"to leave at most 2^22 candidates, not {candidates}")
        self.counts = np.zeros(candidates, dtype=np.int64)

    def add(self, chunk: Floats) -> None:
        """Count the values of a chunk by whole numbers of grids."""
        bounds = self.bounds
        kernel = kernel_named("sums.count_cells")
        kernel(chunk, 1.0 / bounds.grid, float(bounds.least), float(bounds.most), self.counts)

    def release(self, confidence: float, rng: Generator | None) -> Release:
        """Publish the quantile."""
        rows = int(self.counts.sum())
        # A new group begins at the candidate after each value, because it is above that value.
        starts = np.concatenate([[0], np.flatnonzero(self.counts[:-1]) + 1])
        widths = np.diff(np.append(starts, self.counts.size)).tolist()
        below = np.concatenate([[0], np.cumsum(self.counts)])[starts].tolist()
        target = Fraction(self.q) * rows
        scores = [-abs(rank - target) for rank in below]
        scale = selection_scale(self.epsilon, 1.0, monotonic=False)
        rng = check_generator(rng)
        group = select_weighted(scores, widths, scale, rng)
        inside = int(starts[group]) + uniform_integer(widths[group], rng)
        value = deciding.nearest_float(self.bounds.least + inside, self.bounds.grid)
        name = "median" if self.q == 0.5 else f"quantile {self.q:g}"  # noqa: PLR2004
        return Release(name, value, self.epsilon, None, None, confidence)


Query = RowCount | Sum | Mean | Histogram | Quantile


def uniform_integer(below: int, rng: Generator) -> int:
    """Return a uniform integer from 0 to below - 1, exactly: by rejection of whole bytes."""
    size = max(1, (below.bit_length() + 7) // 8)
    most = 256**size // below * below
    while True:
        number = int.from_bytes(rng.source.random_bytes(size), "little")
        if number < most:
            return number % below


def check_confidence(confidence: float) -> float:
    """Return a confidence at which errors are finite, those of a mean's two parts too."""
    part = check_part("confidence", confidence)
    if (1 + part) / 2 == 1:
        reject("confidence", confidence, "<= 1 - 2^-52")
    return part


def _release(
    values: Any, query: Query, missing: str, confidence: float, rng: Generator | None
) -> Release:
    """Add all values to a query and release it; a NaN is a missing value."""
    check_choice("missing", missing, MISSING)
    confidence = check_confidence(confidence)
    rng = check_generator(rng)
    for chunk in chunks_of(values):
        there = ~np.isnan(chunk)
        if not there.all():
            if missing == "error":
                raise ArgumentError(
                    "Expected a number in every row. To leave out rows without one, say "
                    'missing="drop".'
                )
            chunk = np.ascontiguousarray(chunk[there])  # noqa: PLW2901 - the rest of the chunk
        query.add(chunk)
    return query.release(confidence, rng)


@forgetful
def count(
    values: Any,
    *,
    epsilon: float,
    missing: str = "error",
    confidence: float = 0.95,
    rng: Generator | None = None,
) -> Release:
    """Release the number of rows.

    Examples
    --------
    >>> count([3.5, 2.0, 7.25], epsilon=1.0).scale
    1.0
    """
    return _release(values, RowCount(epsilon), missing, confidence, rng)


@forgetful
def sum(  # noqa: A001 - it is what people ask for, under `dpnoise.statistics`
    values: Any,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    missing: str = "error",
    confidence: float = 0.95,
    rng: Generator | None = None,
) -> Release:
    """Release the sum of the values, each clamped to the bounds."""
    return _release(values, Sum(lower, upper, epsilon, grid), missing, confidence, rng)


@forgetful
def mean(
    values: Any,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    missing: str = "error",
    confidence: float = 0.95,
    rng: Generator | None = None,
) -> Release:
    """Release the mean of the clamped values: half of epsilon for the sum, half for the count."""
    return _release(values, Mean(lower, upper, epsilon, grid), missing, confidence, rng)


@forgetful
def histogram(
    values: Any,
    *,
    edges: Sequence[float],
    epsilon: float,
    missing: str = "error",
    confidence: float = 0.95,
    rng: Generator | None = None,
) -> Release:
    """Release how many values lie between each two edges; values outside are left out."""
    return _release(values, Histogram(edges, epsilon), missing, confidence, rng)


@forgetful
def quantile(
    values: Any,
    q: float,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    missing: str = "error",
    confidence: float = 0.95,
    rng: Generator | None = None,
) -> Release:
    """Release the q-quantile of the clamped values, among the multiples of the grid."""
    return _release(values, Quantile(q, lower, upper, epsilon, grid), missing, confidence, rng)


@forgetful
def median(
    values: Any,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    grid: float | None = None,
    missing: str = "error",
    confidence: float = 0.95,
    rng: Generator | None = None,
) -> Release:
    """Release the median of the clamped values: the 0.5-quantile."""
    query = Quantile(0.5, lower, upper, epsilon, grid)
    return _release(values, query, missing, confidence, rng)
