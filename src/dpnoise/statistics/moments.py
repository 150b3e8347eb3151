"""Means and variances: several sums at once, whose noise is paid for once."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from dpnoise.core.errors import reject
from dpnoise.noise.generator import Generator
from dpnoise.release.calibration import EXTREME
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.contribution_bounds import ONE_ROW, Move, Reach
from dpnoise.statistics.plan import Sum as SumAnswer
from dpnoise.statistics.plan import Sums
from dpnoise.statistics.results import Priced, Release, WholeNoise, as_loss, jointly, shown_up

_SURE_BITS: Final = 32  # Of what one row moves a sum of squares: with 2^30 rows it fits in 62 bits.
_CURVATURE: Final = 3.25  # Of the variance in its three sums: half of a bound on its Hessian.


def sums_of(column: str, bounds: Bounds, *, squares: bool = False) -> Sums:
    """Return what sums ask of a column with these bounds."""
    return Sums(column, bounds.grid, bounds.least, bounds.most, squares)


def check_scale(scale: float) -> None:
    """Raise if noise has a scale that floats hardly hold."""
    if scale > EXTREME:
        reject("scale", scale, "to be at most 2^960. It is the larger bound over epsilon")


class _Moments(Priced):
    """What mean and variance share: sums of parts that add up to one number for every row.

    So one row moves all of them together by that number (in L1), and all are released with the
    whole of epsilon: there is nothing to split.
    """

    name: str
    column: str
    bounds: Bounds
    noise: WholeNoise
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
        words = f"{self.noise.words}, on {self._words}, scale {self.mechanism.scale:.17g} grids"
        released = []
        for row in self.noise.release(exactly, rng).tolist():
            value = self.from_parts(row)
            together = None if joint is None else self.margin(row, joint)
            release = Release(
                self.name, value, self.epsilon, None, self.margin(row, error), confidence,
                joint_error=together, mechanism=words, grid=self.bounds.grid, rho=self.rho,
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

    @property
    def mechanism(self) -> Any:
        """What adds the noise."""
        return self.noise.mechanism

    def _error(self, confidence: float) -> float:
        return self.noise.error(confidence)


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
        self,
        column: str,
        lower: float,
        upper: float,
        epsilon: float | Loss,
        grid: float | None = None,
        reach: Reach = ONE_ROW,
    ) -> None:
        self.column, self.bounds = column, Bounds.of_sum(lower, upper, grid)
        self.losses = (as_loss(epsilon),)
        move = Move.of_parts(reach.rows * self.bounds.width)
        self.noise = WholeNoise.of(self.losses[0], reach, move)
        check_scale(self.mechanism.scale * self.bounds.grid)

    @property
    def ask(self) -> Sums:
        """The number of values and their sum."""
        return sums_of(self.column, self.bounds)

    def _typical(self, rows: int) -> list[int]:
        half = rows * self.bounds.width // 2
        return [half, half]

    def parts_of(self, count: Any, total: Any, squares: Any = None) -> tuple[Any, ...]:
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

    def __init__(
        self,
        column: str,
        lower: float,
        upper: float,
        epsilon: float | Loss,
        grid: float | None = None,
        reach: Reach = ONE_ROW,
    ) -> None:
        self.column, self.bounds = column, Bounds.of_squares(lower, upper, grid)
        self._shift = max(0, (self.bounds.width**2).bit_length() - _SURE_BITS)
        whole = reach.rows * self.bounds.width**2
        self.sensitivity = whole if not self._shift else (whole >> self._shift) + 1 + 3
        self.losses = (as_loss(epsilon),)
        self.noise = WholeNoise.of(self.losses[0], reach, Move.of_parts(self.sensitivity))
        check_scale(self.mechanism.scale * (self.bounds.upper - self.bounds.lower) ** 2)

    @property
    def ask(self) -> Sums:
        """The number of values, their sum, and that of their squares."""
        return sums_of(self.column, self.bounds, squares=True)

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
