"""What can be asked of a column, and how its exact answer is released.

Neighbouring data sets differ by one row, added or removed. Every query asks the data for exact
integers (`ask`), whose sensitivity is known whatever the rows hold, and releases them by group. A
statistic is that of the values clamped to the declared bounds and rounded to the grid, which comes
from the bounds, never from the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.arrays import exact_floats
from dpnoise.errors import ArgumentError, check_part, check_positive, reject
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import deciding
from dpnoise.release.additive import LaplaceMechanism
from dpnoise.release.calibration import EXTREME, quotient_down
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.plan import Cells, Edges, Rows, Sums
from dpnoise.statistics.plan import Sum as SumAnswer
from dpnoise.statistics.ranks import (
    nearest_place,
    place_scale,
    ranks_aside,
    select_ends,
    select_places,
)

_LAPLACE: Final = "Laplace noise, exact, rounded once"
_DISCRETE: Final = "discrete Laplace noise, exact"
_SELECTION: Final = "permute-and-flip, exact"
_DECIMAL_DIGITS: Final = 800  # More than any float has.
_PLAINLY: Final = (-6, 12)  # Powers of ten between which a margin is shown without an exponent.
_SURE_BITS: Final = 32  # Of what one row moves a sum of squares: with 2^30 rows it fits in 62 bits.
_CURVATURE: Final = 3.25  # Of the variance in its three sums: half of a bound on its Hessian.


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
        The margin of each number by itself: with probability `confidence` it is within this of the
        statistic of the clamped values. None for quantiles, which have an interval.
    confidence
        The probability that belongs to `error`, `joint_error` and `interval`.
    parts
        How epsilon is split, where the query is made of several releases.
    joint_error
        The joint margin: with probability `confidence` all cells of all groups are within it. None
        for a number that is alone.
    interval
        Of a quantile, two numbers that have it between them; of several, a pair for each.
    labels
        What each number is, where there are several.
    mechanism, grid
        How it was released, and on which grid of values.
    """

    query: str
    value: Any
    epsilon: float
    scale: float | None
    error: float | None
    confidence: float
    parts: dict[str, float] = field(default_factory=dict)
    joint_error: float | None = None
    interval: Any = None
    labels: tuple[str, ...] = ()
    mechanism: str = ""
    grid: float | None = None


def jointly(confidence: float, number: int) -> float:
    """Return the confidence at which each of so many independent numbers must hold, so all do.

    It is rounded up by more than its own roundings, and is below 1.
    """
    each = 1 + math.expm1(math.log(confidence) / number)
    return min(each * (1 + 2.0**-50) if number > 1 else confidence, 1 - 2.0**-53)


def _released(
    mechanism: LaplaceMechanism, exactly: NDArray[Any], rng: Generator | None
) -> NDArray[Any]:
    """Release integers in int64, or without a limit where they came so."""
    if exactly.dtype == object:
        flat = mechanism.release(exactly.reshape(-1).tolist(), rng)
        return np.array(flat, dtype=object).reshape(exactly.shape)
    released: NDArray[Any] = mechanism.release(np.ascontiguousarray(exactly, np.int64), rng)
    return released


class Count:
    """How many rows, or how many values of a column."""

    name = "count"

    def __init__(self, column: str | None, epsilon: float, *, clamp: bool = True) -> None:
        self.column = column
        self.mechanism = DiscreteLaplaceMechanism(epsilon, lower=0 if clamp else None)
        self.epsilon = self.mechanism.epsilon

    @property
    def ask(self) -> Rows | Edges:
        """All rows, or all values."""
        return Rows() if self.column is None else Edges(self.column, (-math.inf, math.inf))

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be."""
        return _expected(_margins(self.mechanism.error, confidence, groups), groups)

    def release(
        self, answer: NDArray[np.int64], confidence: float, rng: Generator | None
    ) -> list[Release]:
        """Publish the number of each group."""
        exactly = answer.reshape(-1)
        error, joint = _margins(self.mechanism.error, confidence, exactly.size)
        values = self.mechanism.release(exactly, rng).tolist()
        return [
            Release(
                self.name, value, self.epsilon, self.mechanism.scale, error, confidence,
                joint_error=joint, mechanism=_DISCRETE, grid=1.0,
            )
            for value in values
        ]  # fmt: skip


def _expected(margins: tuple[float, float | None], number: int) -> str:
    """Say both margins, the joint one only if there is more than one number."""
    alone, joint = margins
    together = "" if joint is None else f"; all {number:,} within {shown_up(joint)}"
    return f"within {shown_up(alone)}{together}"


def shown_up(margin: float) -> str:
    """Show a margin with three digits, rounded up."""
    exactly = Decimal(margin)
    with localcontext(prec=_DECIMAL_DIGITS):
        up = exactly.quantize(Decimal(1).scaleb(exactly.adjusted() - 2), ROUND_CEILING)
    return f"{up:,f}" if _PLAINLY[0] < exactly.adjusted() < _PLAINLY[1] else f"{up:.2e}"


def _margins(
    error: Callable[[float], float], confidence: float, number: int
) -> tuple[float, float | None]:
    """Return the margin of each of some numbers by itself and, of several, that of all."""
    return error(confidence), None if number == 1 else error(jointly(confidence, number))


class Histogram:
    """How many values lie in each cell between declared edges; those outside are left out."""

    name = "histogram"

    def __init__(
        self, column: str, edges: Sequence[float], epsilon: float, *, clamp: bool = True
    ) -> None:
        checked = np.atleast_1d(exact_floats(edges))
        rising = checked[1:] > checked[:-1]
        if checked.ndim != 1 or checked.size < 2 or not np.all(rising):  # noqa: PLR2004
            raise ArgumentError("Expected edges to be two or more increasing numbers.")
        self.column, self.edges = column, tuple(checked.tolist())
        self.mechanism = DiscreteLaplaceMechanism(epsilon, lower=0 if clamp else None)
        self.epsilon = self.mechanism.epsilon

    @property
    def ask(self) -> Edges:
        """The number of values in each cell."""
        return Edges(self.column, self.edges)

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be."""
        number = groups * (len(self.edges) - 1)
        return _expected(_margins(self.mechanism.error, confidence, number), number)

    @property
    def labels(self) -> tuple[str, ...]:
        """The cells, as people read them."""
        shown = [f"{edge:,.12g}" for edge in self.edges]
        return tuple(f"{low} to {high}" for low, high in pairwise(shown))

    def release(
        self, answer: NDArray[np.int64], confidence: float, rng: Generator | None
    ) -> list[Release]:
        """Publish the counts: one row is in one of them, so all together cost epsilon once."""
        exactly = answer.reshape(-1, len(self.edges) - 1)
        error, joint = _margins(self.mechanism.error, confidence, exactly.size)
        rows = self.mechanism.release(exactly, rng).tolist()
        return [
            Release(
                self.name, row, self.epsilon, self.mechanism.scale, error, confidence,
                joint_error=joint, labels=self.labels, mechanism=_DISCRETE, grid=1.0,
            )
            for row in rows
        ]  # fmt: skip


class Sum:
    """The sum of the clamped values."""

    name = "sum"

    def __init__(
        self, column: str, lower: float, upper: float, epsilon: float, grid: float | None = None
    ) -> None:
        self.column, self.bounds = column, Bounds.of_sum(lower, upper, grid)
        self.mechanism = LaplaceMechanism(epsilon, float(self.bounds.largest))
        self.epsilon = self.mechanism.epsilon
        _check_scale(self.mechanism.scale * self.bounds.grid)

    @property
    def ask(self) -> Sums:
        """The sum in whole grids."""
        return _sums(self.column, self.bounds)

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be."""
        return _expected(_margins(self._error, confidence, groups), groups)

    def _error(self, confidence: float) -> float:
        return (self.mechanism.error(confidence) + 0.5) * self.bounds.grid

    def release(self, answer: SumAnswer, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the sum of each group."""
        mechanism, grid = self.mechanism, self.bounds.grid
        exactly = answer.total.reshape(-1)
        error, joint = _margins(self._error, confidence, exactly.size)
        return [
            Release(
                self.name, deciding.nearest_float(value, grid), self.epsilon,
                mechanism.scale * grid, error, confidence,
                joint_error=joint, mechanism=_LAPLACE, grid=grid,
            )
            for value in _released(mechanism, exactly, rng).tolist()
        ]  # fmt: skip


def _sums(column: str, bounds: Bounds, *, squares: bool = False) -> Sums:
    return Sums(column, bounds.grid, bounds.least, bounds.most, squares)


def _check_scale(scale: float) -> None:
    if scale > EXTREME:
        reject("scale", scale, "to be at most 2^960. It is the larger bound over epsilon")


class _Moments:
    """What mean and variance share: sums of parts that add up to one number for every row.

    So one row moves all of them together by that number (in L1), and all are released with the
    whole of epsilon: there is nothing to split.
    """

    name: str
    column: str
    bounds: Bounds
    epsilon: float
    mechanism: LaplaceMechanism
    _at_once: int  # How many of the parts must be within their error for the margin to hold.

    def parts_of(self, count: Any, total: Any, squares: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def from_parts(self, parts: Sequence[int]) -> float:
        raise NotImplementedError

    def margin(self, parts: Sequence[int], error: float) -> float:
        raise NotImplementedError

    def release(self, answer: SumAnswer, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the statistic of each group."""
        flat = (answer.count, answer.total, answer.squares)
        sums = [None if part is None else part.reshape(-1) for part in flat]
        exactly = np.stack(self.parts_of(*sums), axis=-1)
        groups = len(exactly)
        error = self._error(jointly(confidence, self._at_once))
        joint = None if groups == 1 else self._error(jointly(confidence, self._at_once * groups))
        words = f"{_LAPLACE}, on {self._words}, scale {self.mechanism.scale:.17g} grids"
        released = []
        for row in _released(self.mechanism, exactly, rng).tolist():
            value = self.from_parts(row)
            together = None if joint is None else self.margin(row, joint)
            release = Release(
                self.name, value, self.epsilon, None, self.margin(row, error), confidence,
                joint_error=together, mechanism=words, grid=self.bounds.grid,
            )  # fmt: skip
            released.append(release)
        return released

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be, for some numbers of rows in a group."""
        del groups  # Each holds by itself.
        error = self._error(jointly(confidence, self._at_once))
        margins = ", ".join(
            f"{shown_up(self.margin(self._typical(rows), error))} of {rows:,} rows"
            for rows in (100, 10_000, 1_000_000)
        )
        return f"within {margins}"

    def _typical(self, rows: int) -> list[int]:
        """Return the parts of values that are spread evenly, which stand for others."""
        raise NotImplementedError

    _words = ""

    def _error(self, confidence: float) -> float:
        return self.mechanism.error(confidence) + 0.5


class Mean(_Moments):
    """The mean of the clamped values.

    For a value q between l and u in whole grids, A is the sum of q - l and B that of u - q. One row
    adds u - l to A + B, split between them as the row has it, so both have noise of scale
    (u - l)/epsilon. The mean is (l B + u A)/(A + B).
    """

    name = "mean"
    _at_once = 1
    _words = "the sums of the distances to both bounds"

    def __init__(
        self, column: str, lower: float, upper: float, epsilon: float, grid: float | None = None
    ) -> None:
        self.column, self.bounds = column, Bounds.of_sum(lower, upper, grid)
        self.mechanism = LaplaceMechanism(epsilon, float(self.bounds.width))
        self.epsilon = self.mechanism.epsilon
        _check_scale(self.mechanism.scale * self.bounds.grid)

    @property
    def ask(self) -> Sums:
        """The number of values and their sum."""
        return _sums(self.column, self.bounds)

    def _typical(self, rows: int) -> list[int]:
        half = rows * self.bounds.width // 2
        return [half, half]

    def parts_of(self, count: Any, total: Any, squares: Any = None) -> tuple[Any, ...]:
        """Return A and B."""
        del squares
        least, most = self.bounds.least, self.bounds.most
        return total - least * count, most * count - total

    def from_parts(self, parts: Sequence[int]) -> float:
        """Return the mean, halfway between the bounds where nothing is known."""
        whole = sum(parts)
        above = Fraction(min(max(parts[0], 0), whole), whole) if whole > 0 else Fraction(1, 2)
        mean = self.bounds.least + above * (self.bounds.most - self.bounds.least)
        return float(mean * Fraction(self.bounds.grid))

    def margin(self, parts: Sequence[int], error: float) -> float:
        """Return how far off the mean is, for `error` the bound on the noise of A alone.

        With noise a and b it is off by (u - l)(a B - b A)/(A + B), over the noisy A + B: a weighted
        mean of a and -b, which is seldom beyond `error` if a is (Proschan 1965, for symmetric
        log-concave laws). Half a grid is for the rounding of the values.
        """
        width, rows = self.bounds.width, float(sum(parts))
        off = min(error / rows, 1.0) if rows > 0 else 1.0
        return (width * off + 0.5) * self.bounds.grid


class Variance(_Moments):
    """The variance of the clamped values, about their own mean, over the number of values.

    With a = q - l and b = u - q the three sums are those of b^2, 2ab and a^2. One row adds
    (a + b)^2 = (u - l)^2 to all together. The variance is (B0 B2 - B1^2/4)/(B0 + B1 + B2)^2 widths
    squared. Squares of more than 32 bits are rounded down after they are added, all three sums,
    which one row then moves by at most 3 more.
    """

    name = "variance"
    _at_once = 3
    _words = "the sums of the squares and products of the distances to both bounds"

    def __init__(
        self, column: str, lower: float, upper: float, epsilon: float, grid: float | None = None
    ) -> None:
        self.column, self.bounds = column, Bounds.of_squares(lower, upper, grid)
        squared = self.bounds.width**2
        self._shift = max(0, squared.bit_length() - _SURE_BITS)
        self.sensitivity = squared if not self._shift else (squared >> self._shift) + 1 + 3
        self.mechanism = LaplaceMechanism(epsilon, float(self.sensitivity))
        self.epsilon = self.mechanism.epsilon
        _check_scale(self.mechanism.scale * (self.bounds.upper - self.bounds.lower) ** 2)

    @property
    def ask(self) -> Sums:
        """The number of values, their sum, and that of their squares."""
        return _sums(self.column, self.bounds, squares=True)

    def _typical(self, rows: int) -> list[int]:
        return [rows * (self.bounds.width**2 >> self._shift) // 3] * 3

    def parts_of(self, count: Any, total: Any, squares: Any) -> tuple[Any, ...]:
        """Return the three sums, in units of 2^shift."""
        least, most = self.bounds.least, self.bounds.most
        count, total, squares = (_unlimited(sums) for sums in (count, total, squares))
        below = most * most * count - 2 * most * total + squares
        both = 2 * ((least + most) * total - least * most * count - squares)
        above = squares - 2 * least * total + least * least * count
        return tuple(_fixed(part >> self._shift) for part in (below, both, above))

    def from_parts(self, parts: Sequence[int]) -> float:
        """Return the variance: 0 where nothing is known."""
        return self._in_units(self._variance(parts))

    def margin(self, parts: Sequence[int], error: float) -> float:
        """Return how far off the variance is if each sum is off by `error` at most.

        By Taylor's theorem at most error * (|g0| + |g1| + |g2|) + 3.25 (3 error/T)^2, where g is
        the gradient and T the least that the sum of all three can be: see docs/publishing.md.
        """
        return self._in_units(self._part_off(parts, error))

    def _variance(self, parts: Sequence[int]) -> float:
        b0, b1, b2 = (max(part, 0) for part in parts)
        whole = b0 + b1 + b2 or 1
        return min(max(float(Fraction(4 * b0 * b2 - b1 * b1, 4 * whole * whole)), 0.0), 0.25)

    def _part_off(self, parts: Sequence[int], error: float) -> float:
        b0, b1, b2 = (float(max(part, 0)) for part in parts)
        whole = b0 + b1 + b2
        least = whole - 3 * error
        if least <= 0:
            return 0.25
        bent = 2 * (b0 * b2 - b1 * b1 / 4) / whole
        slopes = (abs(b2 - bent), abs(b1 / 2 + bent), abs(b0 - bent))
        steep = sum(slopes) / whole**2 * error
        return min(steep + _CURVATURE * (3 * error / least) ** 2, 0.25)

    def _in_units(self, part: float) -> float:
        width = self.bounds.width * self.bounds.grid
        return part * width * width


class Deviation(Variance):
    """The standard deviation: the root of the variance."""

    name = "std"

    def from_parts(self, parts: Sequence[int]) -> float:
        """Return the root of the variance."""
        return math.sqrt(super().from_parts(parts))

    def margin(self, parts: Sequence[int], error: float) -> float:
        """Return how far the root is off: most below, because the root is steepest there."""
        root, off = self.from_parts(parts), super().margin(parts, error)
        below = root - math.sqrt(max(root * root - off, 0.0))
        return max(below, math.sqrt(root * root + off) - root)


def _unlimited(sums: Any) -> Any:
    return sums.astype(object) if isinstance(sums, np.ndarray) else int(sums)


def _fixed(sums: Any) -> Any:
    """Return integers in int64 where all fit: always, below 2^30 rows."""
    if not isinstance(sums, np.ndarray):
        return sums
    try:
        return sums.astype(np.int64)
    except OverflowError:
        return sums


class Quantiles:
    """One or several quantiles among the multiples of the grid, each with an interval if wanted.

    An interval takes half of epsilon.
    """

    def __init__(
        self,
        column: str,
        places: Sequence[float],
        lower: float,
        upper: float,
        epsilon: float,
        grid: float | None = None,
        *,
        interval: bool = True,
    ) -> None:
        self.places = [check_part("q", place, ends=True) for place in places]
        if not self.places or len(set(map(nearest_place, self.places))) < len(self.places):
            raise ArgumentError("Expected one place or more, each once: q=[0.25, 0.5, 0.75].")
        self.column, self.interval = column, interval
        self.epsilon = check_positive("epsilon", epsilon)
        self.bounds = Bounds.of_cells(lower, upper, grid)
        parts = quotient_down(self.epsilon, 2) if interval else self.epsilon
        self._epsilon_here, self._epsilon_ends = parts, quotient_down(parts, len(self.places))
        for place in self.places:  # So that every scale is possible before noise is drawn.
            place_scale(place, quotient_down(self._epsilon_ends, 2))

    @property
    def name(self) -> str:
        """What people call it."""
        return self.labels[0] if len(self.places) == 1 else "quantiles"

    @property
    def labels(self) -> tuple[str, ...]:
        """What people call each."""
        return tuple(
            "median" if place == 0.5 else f"quantile {place:g}"  # noqa: PLR2004 - the middle
            for place in self.places
        )

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be, in ranks."""
        del groups  # Each holds by itself.
        if not self.interval:
            return "no interval"
        half = quotient_down(self._epsilon_ends, 2)
        aside = max(
            ranks_aside(self.bounds.cells, place_scale(place, half), confidence)
            for place in self.places
        )
        return f"an interval, whose ends are about {aside:,} ranks aside"

    @property
    def ask(self) -> Cells:
        """The number of values in each cell."""
        return Cells(self.column, self.bounds.grid, self.bounds.least, self.bounds.most)

    def release(
        self, answer: NDArray[np.int64], confidence: float, rng: Generator | None
    ) -> list[Release]:
        """Publish the quantiles of each group."""
        rng = check_generator(rng)
        return [
            self._release(counts, confidence, rng)
            for counts in answer.reshape(-1, self.bounds.cells)
        ]

    def _release(self, counts: NDArray[np.int64], confidence: float, rng: Generator) -> Release:
        order = sorted(range(len(self.places)), key=self.places.__getitem__)
        places = [self.places[i] for i in order]
        found = select_places(counts, places, self._epsilon_here, rng)
        cells = [found[order.index(i)] for i in range(len(order))]
        values = [self._value(cell) for cell in cells]
        intervals = [None] * len(cells)
        if self.interval:
            intervals = [
                self._interval(counts, place, cell, confidence, rng)
                for place, cell in zip(self.places, cells, strict=True)
            ]
        one = len(values) == 1
        share = self._epsilon_here
        return Release(
            self.name,
            values[0] if one else values,
            self.epsilon,
            None,
            None,
            confidence,
            {self.name: share, "interval": share} if self.interval else {},
            interval=(intervals[0] if one else intervals) if self.interval else None,
            labels=() if one else self.labels,
            mechanism=_SELECTION,
            grid=self.bounds.grid,
        )

    def _interval(
        self,
        counts: NDArray[np.int64],
        place: float,
        cell: int,
        confidence: float,
        rng: Generator,
    ) -> Any:
        low, high = select_ends(counts, place, self._epsilon_ends, confidence, rng)
        return self._value(min(low, cell)), self._value(max(high, cell))

    def _value(self, cell: int) -> float:
        return deciding.nearest_float(self.bounds.least + cell, self.bounds.grid)


Query = Count | Sum | Mean | Variance | Histogram | Quantiles


def check_confidence(confidence: float) -> float:
    """Return a confidence at which errors are finite, those of several parts too."""
    part = check_part("confidence", confidence)
    if (1 + part) / 2 == 1:
        reject("confidence", confidence, "<= 1 - 2^-52")
    return part
