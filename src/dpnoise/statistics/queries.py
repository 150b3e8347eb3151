"""What can be asked of a column, and how its exact answer is released.

Neighbouring data sets differ by one person, or one row, added or removed, or in another's place.
Every query asks the data for exact integers (`ask`), whose sensitivity is known whatever the rows
hold, and releases them by group. A statistic is that of the values clamped to the declared bounds
and rounded to the grid, which comes from the bounds, never from the data.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dpnoise.core.arrays import Array, Integers, exact_floats
from dpnoise.core.errors import ArgumentError, check_probability, reject
from dpnoise.noise.generator import Generator
from dpnoise.release import exact
from dpnoise.release.calibration import EXTREME
from dpnoise.statistics.bounds import ONE_ROW, Bounds, Move, Reach
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.digits import shown_up
from dpnoise.statistics.plan import Edges, Rows, Sums
from dpnoise.statistics.plan import Sum as SumAnswer
from dpnoise.statistics.results import Priced, Release, WholeNoise, as_loss, jointly
from dpnoise.statistics.selections import Quantiles

_SURE_BITS: Final = 32  # Of what one row moves a sum of squares: with 2^30 rows it fits in 62 bits.
_Whole = Any  # An integer, or an array of them.
_CURVATURE: Final = 3.25  # Of the variance in its three sums: half of a bound on its Hessian.


class _Noisy(Priced):
    """What all statistics with noise on integers share."""

    name: str
    noise: WholeNoise

    @property
    def mechanism(self) -> Any:
        """What adds the noise."""
        return self.noise.mechanism


class _Added(_Noisy):
    """What counts and sums share: the noise is added to the number that is published."""

    labels: tuple[str, ...] = ()

    _grid = 1.0  # Of the numbers that are published.

    def error(self, confidence: float) -> float:
        """Return the margin of each number by itself: of an integer, an integer."""
        return math.floor(self.noise.error(confidence))

    def _margins(self, confidence: float, number: int) -> tuple[float, float | None]:
        """Return the margin of each of some numbers by itself and, of several, that of all."""
        joint = None if number == 1 else self.error(jointly(confidence, number))
        return self.error(confidence), joint

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be."""
        number = groups * max(len(self.labels), 1)
        alone, joint = self._margins(confidence, number)
        together = "" if joint is None else f"; all {number:,} within {shown_up(joint)}"
        return f"within {shown_up(alone)}{together}"

    def _value(self, released: int) -> float:
        return released

    def _released(self, exactly: Array, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the numbers of each group: a row is in one of them, so all cost epsilon once."""
        error, joint = self._margins(confidence, exactly.size)
        return [
            Release(
                self.name, self._value(value), self.epsilon, self.mechanism.scale * self._grid,
                error, confidence, joint_error=joint, labels=self.labels,
                mechanism=self.noise.words, grid=self._grid, rho=self.rho,
            )
            for value in self.noise.release(exactly, rng).tolist()
        ]  # fmt: skip


class Count(_Added):
    """How many rows, or how many values of a column."""

    name = "count"

    def __init__(
        self,
        column: str | None,
        epsilon: float | Loss,
        *,
        clamp: bool = True,
        reach: Reach = ONE_ROW,
    ) -> None:
        self.column, self.losses = column, (as_loss(epsilon),)
        move, lower = Move.of_number(reach.rows, reach.rows), 0 if clamp else None
        self.noise = WholeNoise.of(self.losses[0], reach, move, counts=True, lower=lower)

    @property
    def ask(self) -> Rows | Edges:
        """All rows, or all values."""
        return Rows() if self.column is None else Edges(self.column, (-math.inf, math.inf))

    def release(self, answer: Integers, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the number of each group."""
        return self._released(answer.reshape(-1), confidence, rng)


class Histogram(_Added):
    """How many values lie in each cell between declared edges; those outside are left out."""

    name = "histogram"

    def __init__(
        self,
        column: str,
        edges: Sequence[float],
        epsilon: float | Loss,
        *,
        clamp: bool = True,
        reach: Reach = ONE_ROW,
    ) -> None:
        checked = np.atleast_1d(exact_floats(edges))
        rising = checked[1:] > checked[:-1]
        if checked.ndim != 1 or checked.size < 2 or not np.all(rising):  # noqa: PLR2004
            raise ArgumentError("edges must be two or more increasing numbers.")
        self.column, self.edges = column, tuple(checked.tolist())
        shown = [f"{edge:,.12g}" for edge in self.edges]
        self.labels = tuple(f"{low} to {high}" for low, high in pairwise(shown))
        self.losses = (as_loss(epsilon),)
        move, lower = Move.of_parts(reach.rows), 0 if clamp else None
        self.noise = WholeNoise.of(self.losses[0], reach, move, counts=True, lower=lower)

    @property
    def ask(self) -> Edges:
        """The number of values in each cell."""
        return Edges(self.column, self.edges)

    def release(self, answer: Integers, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the counts of each group."""
        return self._released(answer.reshape(-1, len(self.labels)), confidence, rng)


class _Bounded(_Noisy):
    """What statistics of clamped values share: declared bounds, and noise for what one row adds."""

    _squares = False  # Whether the sum of the squares is asked for, too.

    def __init__(
        self,
        column: str,
        lower: float,
        upper: float,
        epsilon: float | Loss,
        grid: float | None = None,
        reach: Reach = ONE_ROW,
    ) -> None:
        bounds_of = Bounds.of_squares if self._squares else Bounds.of_sum
        self.column, self.bounds = column, bounds_of(lower, upper, grid)
        self._grid = self.bounds.grid
        self.losses = (as_loss(epsilon),)
        move = self._move(reach.rows)
        self.sensitivity = move.alone
        self.noise = WholeNoise.of(self.losses[0], reach, move)
        width = self.bounds.upper - self.bounds.lower
        scale = self.mechanism.scale * (width**2 if self._squares else self.bounds.grid)
        if scale > EXTREME:
            reject("scale", scale, "be at most 2^960. It is the larger bound over epsilon")

    def _move(self, rows: int) -> Move:
        """Return how far so many rows of one person move one group, in whole grids."""
        raise NotImplementedError

    @property
    def ask(self) -> Sums:
        """The number of values and their sum in whole grids, with that of the squares if needed."""
        bounds = self.bounds
        return Sums(self.column, bounds.grid, bounds.least, bounds.most, self._squares)


class Sum(_Bounded, _Added):
    """The sum of the clamped values."""

    name = "sum"

    def _move(self, rows: int) -> Move:
        return Move.of_number(rows * self.bounds.largest, rows * self.bounds.span)

    def _value(self, released: int) -> float:
        return exact.nearest_float(released, self.bounds.grid)

    def error(self, confidence: float) -> float:
        """Return the margin of each number by itself."""
        return self.noise.error(confidence) * self.bounds.grid

    def release(self, answer: SumAnswer, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the sum of each group."""
        return self._released(answer.total.reshape(-1), confidence, rng)


class _Moments(_Bounded):
    """What mean and variance share: sums of parts that add up to one number for every row.

    So one row moves all of them together by that number (in L1), and all are released with the
    whole of epsilon: there is nothing to split.
    """

    _words: str  # Which sums the noise is on.
    _at_once: int  # How many of the parts must be within their error for the margin to hold.

    def parts_of(self, count: _Whole, total: _Whole, squares: _Whole) -> tuple[_Whole, ...]:
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
        error, joint = (
            self.noise.error(jointly(confidence, self._at_once * number)) for number in (1, groups)
        )
        words = f"{self.noise.words}, on {self._words}, scale {self.mechanism.scale:.17g} grids"
        return [
            Release(
                self.name, self.from_parts(row), self.epsilon, None, self.margin(row, error),
                confidence, joint_error=None if groups == 1 else self.margin(row, joint),
                mechanism=words, grid=self.bounds.grid, rho=self.rho,
            )
            for row in self.noise.release(exactly, rng).tolist()
        ]  # fmt: skip

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be, for some numbers of rows in a group."""
        del groups  # Each holds by itself.
        error = self.noise.error(jointly(confidence, self._at_once))
        margins = ", ".join(
            f"{shown_up(self.margin(self._typical(rows), error))} of {rows:,} rows"
            for rows in (100, 10_000, 1_000_000)
        )
        return f"within {margins}"

    def _typical(self, rows: int) -> list[int]:
        """Return the parts of values that are spread evenly, which stand for others."""
        raise NotImplementedError


class Mean(_Moments):
    """The mean of the clamped values.

    For a value q between l and u in whole grids, A is the sum of q - l and B that of u - q. One row
    adds u - l to A + B, split between them as the row has it, so both have noise of scale
    (u - l)/epsilon. The mean is (l B + u A)/(A + B).
    """

    name = "mean"
    _at_once = 1
    _words = "the sums of the distances to both bounds"

    def _move(self, rows: int) -> Move:
        return Move.of_parts(rows * self.bounds.width)

    def _typical(self, rows: int) -> list[int]:
        half = rows * self.bounds.width // 2
        return [half, half]

    def parts_of(self, count: _Whole, total: _Whole, squares: _Whole = None) -> tuple[_Whole, ...]:
        """Return A and B."""
        del squares
        least, most = self.bounds.least, self.bounds.most
        if isinstance(total, np.ndarray):
            count = count.astype(total.dtype)  # In int64 its product with a bound could overflow.
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
    which one person then moves by at most 3 more in a group.
    """

    name = "variance"
    _at_once = 3
    _words = "the sums of the squares and products of the distances to both bounds"

    _squares = True

    def _move(self, rows: int) -> Move:
        whole = rows * self.bounds.width**2
        return Move.of_parts((whole >> self._shift) + 1 + 3 if self._shift else whole)

    @property
    def _shift(self) -> int:
        """By how many bits the sums are rounded down."""
        return max(0, (self.bounds.width**2).bit_length() - _SURE_BITS)

    def _typical(self, rows: int) -> list[int]:
        return [rows * (self.bounds.width**2 >> self._shift) // 3] * 3

    def parts_of(self, count: _Whole, total: _Whole, squares: _Whole) -> tuple[_Whole, ...]:
        """Return the three sums, in units of 2^shift."""
        least, most = self.bounds.least, self.bounds.most
        count, total, squares = (_unlimited(sums) for sums in (count, total, squares))
        below = most * most * count - 2 * most * total + squares
        both = 2 * ((least + most) * total - least * most * count - squares)
        above = squares - 2 * least * total + least * least * count
        return tuple(_fixed(part >> self._shift) for part in (below, both, above))

    def from_parts(self, parts: Sequence[int]) -> float:
        """Return the variance: 0 where nothing is known."""
        b0, b1, b2 = (max(part, 0) for part in parts)
        whole = b0 + b1 + b2 or 1
        variance = float(Fraction(4 * b0 * b2 - b1 * b1, 4 * whole * whole))
        return self._in_units(min(max(variance, 0.0), 0.25))

    def margin(self, parts: Sequence[int], error: float) -> float:
        """Return how far off the variance is if each sum is off by `error` at most.

        By Taylor's theorem at most error * (|g0| + |g1| + |g2|) + 3.25 (3 error/T)^2, where g is
        the gradient and T the least that the sum of all three can be: see docs/publishing.md.
        """
        b0, b1, b2 = (float(max(part, 0)) for part in parts)
        whole = b0 + b1 + b2
        least = whole - 3 * error
        if least <= 0:
            return self._in_units(0.25)
        bent = 2 * (b0 * b2 - b1 * b1 / 4) / whole
        slopes = (abs(b2 - bent), abs(b1 / 2 + bent), abs(b0 - bent))
        steep = sum(slopes) / whole**2 * error
        return self._in_units(min(steep + _CURVATURE * (3 * error / least) ** 2, 0.25))

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


def _unlimited(sums: _Whole) -> _Whole:
    return sums.astype(object) if isinstance(sums, np.ndarray) else int(sums)


def _fixed(sums: _Whole) -> _Whole:
    """Return integers in int64 where all fit: always, below 2^30 rows."""
    if not isinstance(sums, np.ndarray):
        return sums
    try:
        return sums.astype(np.int64)
    except OverflowError:
        return sums


Query = Count | Sum | Mean | Variance | Histogram | Quantiles


def check_confidence(confidence: float) -> float:
    """Return a confidence at which errors are finite, those of several parts too."""
    part = check_probability("confidence", confidence)
    if (1 + part) / 2 == 1:
        reject("confidence", confidence, "be at most 1 - 2^-52")
    return part
