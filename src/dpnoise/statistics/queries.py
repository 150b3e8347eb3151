"""Queries on a column: the exact integers that they need, and how they are released.

Neighbouring data sets differ by one person, or one row, who is added, removed or replaced. Every
query asks the data for exact integers (`ask`) and releases them by group. Their sensitivity is
known for all possible rows. Each statistic is computed from values that are clamped to the declared
bounds and rounded to the grid. The grid comes from the bounds, never from the data.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dpnoise.core.arrays import Array, Floats, Integers, exact_floats
from dpnoise.core.errors import ArgumentTypeError, check_probability, is_list, reject, reject_type
from dpnoise.noise.generator import Generator
from dpnoise.release import exact
from dpnoise.release.calibration import EXTREME
from dpnoise.statistics.bounds import ONE_ROW, Bounds, ContributionBounds, RowChange
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.digits import format_margin
from dpnoise.statistics.plan import Distinct, Edges, Rows, SumAnswer, Sums
from dpnoise.statistics.results import LossMixin, Release, WholeNoise, as_loss, single_confidence
from dpnoise.statistics.selections import QuantileSelection

_SURE_BITS: Final = 32  # Bits that one row adds to a sum of squares; 2^30 rows then fit in 62 bits.
_Whole = Any  # An integer, or an array of integers.
# A bound on the noise of a sum or of several, and the confidence of a weighted sum of several.
_Errors = tuple[float, float]
_PART_OF_BOUND: Final = (
    1 / 20
)  # Of the probability that a margin fails, for the bound on all noise.
_CURVATURE: Final = 3.25  # Half of a bound on the Hessian of the variance in its three sums.


class _NoisyStatistic(LossMixin):
    """Base class of statistics with noise on integers."""

    name: str
    noise: WholeNoise

    @property
    def mechanism(self) -> Any:
        """The mechanism that adds the noise."""
        return self.noise.mechanism


class AdditiveStatistic(_NoisyStatistic):
    """Base class of counts and sums: the noise is added to the number that is published."""

    labels: tuple[str, ...] = ()

    _grid = 1.0  # Published numbers are multiples of it.

    def error(self, confidence: float) -> float:
        """Return the margin of each single number, rounded down to an integer."""
        return math.floor(self.noise.error(confidence))

    def _margins(self, confidence: float, number: int) -> tuple[float, float | None]:
        """Return the margin of each single number and, if there are several, of all together."""
        joint = None if number == 1 else self.error(single_confidence(confidence, number))
        return self.error(confidence), joint

    def describe_margins(self, confidence: float, groups: int) -> str:
        """Describe the margins in words."""
        number = groups * max(len(self.labels), 1)
        single, joint = self._margins(confidence, number)
        all_margins = "" if joint is None else f"; all {number:,} within {format_margin(joint)}"
        return f"within {format_margin(single)}{all_margins}"

    def expected_margin(self, rows: int, confidence: float) -> float:
        """Return the margin for a number of rows, on which it does not depend."""
        del rows
        return self.error(confidence)

    def possible_range(self, rows: int) -> float:
        """Return how far the exact numbers of this many rows may be apart."""
        return rows

    def _value(self, released: int) -> float:
        return released

    def _publish(self, exact: Array, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the numbers of all groups. A row is in one group, so they cost epsilon once."""
        margins = self._margins(confidence, exact.size)  # Raises before noise is drawn.
        return self._releases(self.noise.release(exact, rng), confidence, margins)

    def _releases(
        self, noisy: Array, confidence: float, margins: tuple[float, float | None]
    ) -> list[Release]:
        error, joint = margins
        return [
            Release(
                self.name, self._value(value), self.epsilon, self.mechanism.scale * self._grid,
                error, confidence, joint_error=joint, labels=self.labels,
                mechanism=self.noise.words, grid=self._grid, rho=self.rho,
            )
            for value in noisy.tolist()
        ]  # fmt: skip


class Count(AdditiveStatistic):
    """The number of rows, or the number of values in a column."""

    name = "count"

    def __init__(
        self,
        column: str | None,
        epsilon: float | Loss,
        *,
        clamp: bool = True,
        contribution: ContributionBounds = ONE_ROW,
    ) -> None:
        self.column, self.losses = column, (as_loss(epsilon),)
        change, lower = RowChange.of_number(1, 1), 0 if clamp else None
        self.noise = WholeNoise.of(self.losses[0], contribution, change, counts=True, lower=lower)

    @property
    def ask(self) -> Rows | Edges | Distinct:
        """A tally of all rows, or of all values."""
        return Rows() if self.column is None else Edges(self.column, (-math.inf, math.inf))

    def release(self, answer: Integers, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the number of each group."""
        return self._publish(answer.reshape(-1), confidence, rng)


class PersonCount(Count):
    """The number of persons: each counts once in a group, with any number of rows."""

    name = "persons"


class DistinctCount(Count):
    """The number of different values. One value more or less changes it by at most one."""

    name = "distinct"

    @property
    def ask(self) -> Distinct:
        """A tally of the different values."""
        assert self.column is not None  # noqa: S101 - `Question` checks it
        return Distinct(self.column)


def _check_edges(edges: object) -> Floats:
    rule = "be a list of two or more increasing numbers, such as [0, 10, 20]"
    if not is_list(edges):
        reject_type("edges", edges, rule)
    try:
        array = np.atleast_1d(exact_floats(edges))
    except ArgumentTypeError:
        reject_type("edges", edges, rule)
    if array.ndim != 1 or array.size < 2 or not np.all(array[1:] > array[:-1]):  # noqa: PLR2004
        reject("edges", edges, rule)
    return array


class Histogram(AdditiveStatistic):
    """The number of values in each cell between declared edges; values outside are left out."""

    name = "histogram"

    def __init__(
        self,
        column: str,
        edges: Sequence[float],
        epsilon: float | Loss,
        *,
        clamp: bool = True,
        contribution: ContributionBounds = ONE_ROW,
    ) -> None:
        edge_array = _check_edges(edges)
        self.column, self.edges = column, tuple(edge_array.tolist())
        edge_texts = [f"{edge:,.12g}" for edge in self.edges]
        self.labels = tuple(f"{low} to {high}" for low, high in pairwise(edge_texts))
        self.losses = (as_loss(epsilon),)
        change, lower = RowChange.of_sums(1), 0 if clamp else None
        self.noise = WholeNoise.of(self.losses[0], contribution, change, counts=True, lower=lower)

    @property
    def ask(self) -> Edges:
        """A tally of the values in each cell."""
        return Edges(self.column, self.edges)

    def release(self, answer: Integers, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the counts of each group."""
        return self._publish(answer.reshape(-1, len(self.labels)), confidence, rng)


class _BoundedStatistic(_NoisyStatistic):
    """Base class of statistics with declared bounds and noise for the contribution of one row."""

    _squares = False  # Whether the statistic needs the sum of the squares, too.
    _least_released: int | None = None  # Smaller sums are published as this one, if clamped.

    def __init__(
        self,
        column: str,
        lower: float,
        upper: float,
        epsilon: float | Loss,
        grid: float | None = None,
        contribution: ContributionBounds = ONE_ROW,
        *,
        clamp: bool = True,
    ) -> None:
        bounds_of = Bounds.of_squares if self._squares else Bounds.of_sum
        self.column, self.bounds = column, bounds_of(lower, upper, grid)
        self._grid = self.bounds.grid
        self.losses = (as_loss(epsilon),)
        least = self._least_released if clamp else None
        self.noise = WholeNoise.of(self.losses[0], contribution, self._row_change(), lower=least)
        width = self.bounds.upper - self.bounds.lower
        scale = self.mechanism.scale * (width**2 if self._squares else self.bounds.grid)
        if scale > EXTREME:
            reject("scale", scale, "be at most 2^960. It is the larger bound over epsilon")

    def _row_change(self) -> RowChange:
        """Return how far one row moves its group, in whole grids."""
        raise NotImplementedError

    @property
    def ask(self) -> Sums:
        """A tally of the values and their sum in whole grids, and of their squares if needed."""
        bounds = self.bounds
        return Sums(self.column, bounds.grid, bounds.least, bounds.most, self._squares)


class Sum(_BoundedStatistic, AdditiveStatistic):
    """The sum of the clamped values."""

    name = "sum"

    @property
    def _least_released(self) -> int | None:  # type: ignore[override]
        """0 if no sum can be negative."""
        return 0 if self.bounds.least >= 0 else None

    def _row_change(self) -> RowChange:
        return RowChange.of_number(self.bounds.largest, self.bounds.span)

    def _value(self, released: int) -> float:
        return exact.nearest_float(released, self.bounds.grid)

    def possible_range(self, rows: int) -> float:
        """Return how far the exact sums of this many rows may be apart."""
        return rows * self.bounds.width * self.bounds.grid

    def error(self, confidence: float) -> float:
        """Return the margin of each single number."""
        return self.noise.error(confidence) * self.bounds.grid

    def release(self, answer: SumAnswer, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the sum of each group."""
        return self._publish(answer.total.reshape(-1), confidence, rng)


class _Moments(_BoundedStatistic):
    """Base class of mean and variance, which are computed from two or three noisy sums.

    What one row adds to the sums adds up to the same number for every row. So one row moves all
    sums together by that number (in L1), and each sum is released with the whole epsilon.
    """

    _words: str  # The sums that get the noise, in words.
    number_of_sums: int
    # The statistics that are computed from the same noisy sums, and the query that draws these.
    shared: tuple[str, ...] = ()
    base: "Mean | Variance | None" = None

    def sums_of(self, count: _Whole, total: _Whole, squares: _Whole) -> tuple[_Whole, ...]:
        raise NotImplementedError

    def from_sums(self, sums: Sequence[int]) -> float:
        raise NotImplementedError

    def margin(self, sums: Sequence[int], errors: _Errors) -> float:
        raise NotImplementedError

    def _possible(self) -> tuple[float, float]:
        """Return the least and the largest number that the bounds allow."""
        raise NotImplementedError

    @property
    def row_total(self) -> Fraction:
        """What one row adds to all sums together."""
        raise NotImplementedError

    def release(self, answer: SumAnswer, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the statistic of each group."""
        return self.publish_sums(self.noisy_sums(answer, rng), confidence)

    def noisy_sums(self, answer: SumAnswer, rng: Generator | None) -> list[list[int]]:
        """Return the noisy sums of each group."""
        answers = (answer.count, answer.total, answer.squares)
        flat = [None if numbers is None else numbers.reshape(-1) for numbers in answers]
        exact_sums = np.stack(self.sums_of(*flat), axis=-1)
        sums: list[list[int]] = self.noise.release(exact_sums, rng).tolist()
        return sums

    def weighted_error(self, weights: Sequence[float], confidence: float) -> float:
        """Return the margin of a weighted sum of the noisy sums."""
        return self.noise.weighted_error(weights, confidence)

    @property
    def noise_words(self) -> str:
        """The noise of the sums, in words."""
        return f"{self.noise.words}, on {self._words}, scale {self.mechanism.scale:.17g} grids"

    def publish_sums(self, sums: Sequence[Sequence[int]], confidence: float) -> list[Release]:
        """Publish the statistic of each group, computed from its noisy sums."""
        errors, joint = (
            self._sum_errors(single_confidence(confidence, number)) for number in (1, len(sums))
        )
        (low, high), releases = self._possible(), []
        for row in sums:
            value, margin = self.from_sums(row), self.margin(row, errors)
            farthest = max(value - low, high - value)  # No error can be larger.
            release = Release(
                self.name, value, self.epsilon, None, min(margin, farthest), confidence,
                joint_error=None if len(sums) == 1 else min(self.margin(row, joint), farthest),
                mechanism=self.noise_words, grid=self.bounds.grid, rho=self.rho,
                no_information=value - margin <= low and value + margin >= high,
                shared=self.shared,
            )  # fmt: skip
            releases.append(release)
        return releases

    def _sum_errors(self, confidence: float) -> _Errors:
        """Return the bounds on the noise of the sums that `margin` needs."""
        raise NotImplementedError

    def describe_margins(self, confidence: float, groups: int) -> str:
        """Describe the margins in words, for three numbers of rows in a group."""
        del groups  # The margin of a group does not depend on the others.
        margins = ", ".join(
            f"{format_margin(self.expected_margin(rows, confidence))} of {rows:,} rows"
            for rows in (100, 10_000, 1_000_000)
        )
        return f"within {margins}"

    def expected_margin(self, rows: int, confidence: float) -> float:
        """Return the margin for a number of rows with evenly spread values."""
        margin = self.margin(self._typical(rows), self._sum_errors(confidence))
        return min(margin, self.possible_range(rows))

    def possible_range(self, rows: int) -> float:
        """Return how far the numbers that the bounds allow are apart."""
        del rows
        low, high = self._possible()
        return high - low

    def _typical(self, rows: int) -> list[int]:
        """Return the sums of evenly spread values, as an example for the margins."""
        raise NotImplementedError


class Mean(_Moments):
    """The mean of the clamped values.

    A value q lies between l and u in whole grids. A is the sum of q - l, and B the sum of u - q.
    One row adds u - l to A + B, so both get noise of scale (u - l)/epsilon. The mean is
    (l B + u A)/(A + B).
    """

    name = "mean"
    number_of_sums = 2
    _words = "the sums of the distances to both bounds"

    @property
    def row_total(self) -> Fraction:
        """The width of the bounds."""
        return Fraction(self.bounds.width)

    def _row_change(self) -> RowChange:
        return RowChange.of_sums(self.bounds.width)

    def _possible(self) -> tuple[float, float]:
        return self.bounds.lower, self.bounds.upper

    def _typical(self, rows: int) -> list[int]:
        half = rows * self.bounds.width // 2
        return [half, half]

    def sums_of(self, count: _Whole, total: _Whole, squares: _Whole = None) -> tuple[_Whole, ...]:
        """Return A and B."""
        del squares
        least, most = self.bounds.least, self.bounds.most
        if isinstance(total, np.ndarray):
            count = count.astype(total.dtype)  # In int64 the product with a bound could overflow.
        return total - least * count, most * count - total

    def from_sums(self, sums: Sequence[int]) -> float:
        """Return the mean; halfway between the bounds if the noisy sums are not positive."""
        total = sum(sums)
        above = Fraction(min(max(sums[0], 0), total), total) if total > 0 else Fraction(1, 2)
        mean = self.bounds.least + above * (self.bounds.most - self.bounds.least)
        return float(mean * Fraction(self.bounds.grid))

    def _sum_errors(self, confidence: float) -> _Errors:
        return self.noise.error(confidence), confidence

    def margin(self, sums: Sequence[int], errors: _Errors) -> float:
        """Return the margin of the mean, if `error` bounds the noise a of A.

        B has noise b. The error of the mean is (u - l)(a B - b A)/(A + B) over the noisy A + B. The
        fraction is a weighted mean of a and -b. For symmetric log-concave laws it exceeds `error`
        no more often than a does (Proschan 1965). The rounding of values adds half a grid.
        """
        error, _ = errors
        width, total = self.bounds.width, float(sum(sums))
        relative_error = min(error / total, 1.0) if total > 0 else 1.0
        return (width * relative_error + 0.5) * self.bounds.grid


class Variance(_Moments):
    """The variance of the clamped values; the divisor is the number of values.

    Let a = q - l and b = u - q. The three sums B0, B1 and B2 are those of b^2, 2ab and a^2. One row
    adds (a + b)^2 = (u - l)^2 to all together. The variance is (B0 B2 - B1^2/4)/(B0 + B1 + B2)^2
    widths squared. If squares have more than 32 bits, the three sums are rounded down. Rounding
    lets one person change them by at most 3 more in a group, which counts for each row.
    """

    name = "variance"
    _words = "the sums of the squares and products of the distances to both bounds"
    number_of_sums = 3
    _squares = True

    @property
    def row_total(self) -> Fraction:
        """The squared width of the bounds, in units of 2^shift."""
        return Fraction(self.bounds.width**2, 2**self._shift)

    def deviation(self) -> "Deviation":
        """Return the query for the root of this variance, computed from the same noisy sums."""
        root = Deviation.__new__(Deviation)
        vars(root).update(vars(self), base=self)
        return root

    def weighted_error(self, weights: Sequence[float], confidence: float) -> float:
        """Return the margin of a weighted sum, of which each sum may have been rounded down."""
        rounding = sum(map(abs, weights)) if self._shift else 0.0
        return super().weighted_error(weights, confidence) + rounding

    def _row_change(self) -> RowChange:
        whole = self.bounds.width**2
        return RowChange.of_sums((whole >> self._shift) + 1 + 3 if self._shift else whole)

    @property
    def _shift(self) -> int:
        """The number of bits by which the sums are rounded down."""
        return max(0, (self.bounds.width**2).bit_length() - _SURE_BITS)

    def _possible(self) -> tuple[float, float]:
        return 0.0, self._in_units(0.25)

    def _typical(self, rows: int) -> list[int]:
        return [rows * (self.bounds.width**2 >> self._shift) // 3] * 3

    def sums_of(self, count: _Whole, total: _Whole, squares: _Whole) -> tuple[_Whole, ...]:
        """Return the three sums, in units of 2^shift."""
        least, most = self.bounds.least, self.bounds.most
        count, total, squares = (_to_python_integers(sums) for sums in (count, total, squares))
        below = most * most * count - 2 * most * total + squares
        both = 2 * ((least + most) * total - least * most * count - squares)
        above = squares - 2 * least * total + least * least * count
        return tuple(to_int64(part >> self._shift) for part in (below, both, above))

    def from_sums(self, sums: Sequence[int]) -> float:
        """Return the variance; 0 if the noisy sums are not positive."""
        b0, b1, b2 = (max(noisy, 0) for noisy in sums)
        total = b0 + b1 + b2 or 1
        variance = float(Fraction(4 * b0 * b2 - b1 * b1, 4 * total * total))
        return self._in_units(min(max(variance, 0.0), 0.25))

    def _sum_errors(self, confidence: float) -> _Errors:
        """Return a bound on the sizes of the three noises, and the confidence of their sum.

        The bound fails with a small part of the probability that the margin may fail with.
        """
        beyond = (1 - confidence) * _PART_OF_BOUND
        size = self.noise.error_of_three(1 - beyond) + (3.0 if self._shift else 0.0)
        return size, min(confidence + beyond, 1 - 2.0**-53)

    def margin(self, sums: Sequence[int], errors: _Errors) -> float:
        """Return the margin of the variance.

        By Taylor's theorem the error is at most |g.z| + 3.25 (e/T)^2. Here z is the noise, e bounds
        the sum of its three sizes, T is the least possible sum of all three sums, and g the
        gradient at the exact sums. Each part of it differs by at most 6.5 e/T^2 from the gradient
        at the noisy sums: see docs/statistics-proofs.md.
        """
        size, confidence = errors
        b0, b1, b2 = (float(max(noisy, 0)) for noisy in sums)
        total = b0 + b1 + b2
        smallest_total = total - size
        if smallest_total <= 0:
            return self._in_units(0.25)
        common = 2 * (b0 * b2 - b1 * b1 / 4) / total
        slopes = (abs(b2 - common), abs(b1 / 2 + common), abs(b0 - common))
        change = 2 * _CURVATURE * size / smallest_total**2
        weights = [slope / total**2 + change for slope in slopes]
        # A sum below 0 counts as 0, so its noise has another law.
        is_clamped = min(sums) < 0
        first_order = (
            max(weights) * size if is_clamped else self.weighted_error(weights, confidence)
        )
        second_order = _CURVATURE * (size / smallest_total) ** 2
        return self._in_units(min(first_order + second_order, 0.25))

    def _in_units(self, squared_widths: float) -> float:
        """Return a variance, given in squared widths of the bounds, in squared units of values."""
        width = self.bounds.width * self.bounds.grid
        return squared_widths * width * width


class Deviation(Variance):
    """The standard deviation: the root of the variance."""

    name = "std"

    def _possible(self) -> tuple[float, float]:
        return 0.0, math.sqrt(self._in_units(0.25))

    def from_sums(self, sums: Sequence[int]) -> float:
        """Return the root of the variance."""
        return math.sqrt(super().from_sums(sums))

    def margin(self, sums: Sequence[int], errors: _Errors) -> float:
        """Return the margin of the root, the larger of its two sides."""
        root, margin = self.from_sums(sums), super().margin(sums, errors)
        below = root - math.sqrt(max(root * root - margin, 0.0))
        return max(below, math.sqrt(root * root + margin) - root)


def _to_python_integers(sums: _Whole) -> _Whole:
    return sums.astype(object) if isinstance(sums, np.ndarray) else int(sums)


def to_int64(sums: _Whole) -> _Whole:
    """Return integers in int64 if all fit. Below 2^30 rows they always do."""
    if not isinstance(sums, np.ndarray):
        return sums
    try:
        return sums.astype(np.int64)
    except OverflowError:
        return sums


Query = Count | Sum | Mean | Variance | Histogram | QuantileSelection


def check_confidence(confidence: float) -> float:
    """Return the confidence; raise unless all margins are finite at it."""
    probability = check_probability("confidence", confidence)
    if (1 + probability) / 2 == 1:
        reject("confidence", confidence, "be at most 1 - 2^-52")
    return probability
