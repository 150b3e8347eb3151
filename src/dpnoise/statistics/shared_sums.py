"""Statistics that share noisy sums: count, sum and mean, or count, mean, variance and std.

The two noisy sums of a mean contain the count and the sum too, and the three of a variance contain
the count and the mean. So a question pays for one release and publishes all of them.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from dpnoise.noise.generator import Generator
from dpnoise.statistics.queries import (
    AdditiveStatistic,
    Count,
    Histogram,
    Mean,
    Query,
    Sum,
    Variance,
)
from dpnoise.statistics.results import Release
from dpnoise.statistics.selections import QuantileSelection


class _Derived(AdditiveStatistic):
    """Base class of a count or sum that is computed from the noisy sums of a mean or variance."""

    def __init__(self, base: Mean | Variance, shared: tuple[str, ...]) -> None:
        self.base, self.shared = base, shared
        self.column, self.bounds, self.ask = base.column, base.bounds, base.ask
        self.losses, self.noise = base.losses, base.noise

    def from_sums(self, sums: Sequence[int]) -> float:
        raise NotImplementedError

    def publish_sums(self, sums: Sequence[Sequence[int]], confidence: float) -> list[Release]:
        """Publish the number of each group, computed from its noisy sums."""
        error, joint = self._margins(confidence, len(sums))
        return [
            Release(
                self.name, self.from_sums(row), self.epsilon, None, error, confidence,
                joint_error=joint, mechanism=self.base.noise_words, grid=self._grid,
                rho=self.rho, shared=self.shared,
            )
            for row in sums
        ]  # fmt: skip


class DerivedCount(_Derived):
    """The number of values: all noisy sums together, in units of what one row adds to them."""

    name = "count"

    def __init__(self, base: Mean | Variance, shared: tuple[str, ...], *, clamp: bool) -> None:
        super().__init__(base, shared)
        self._clamp = clamp

    def from_sums(self, sums: Sequence[int]) -> float:
        """Return the nearest integer."""
        count = round(sum(sums) / self.base.row_total)
        return max(count, 0) if self._clamp else count

    def error(self, confidence: float) -> float:
        """Return the margin of a rounded number, which is an integer."""
        noise = self.base.weighted_error([1.0] * self.base.number_of_sums, confidence)
        return math.floor(noise / float(self.base.row_total) + 0.5)


class DerivedSum(_Derived):
    """The sum of the clamped values: (u A + l B)/(u - l), from the sums A and B of a mean."""

    name = "sum"

    def __init__(self, base: Mean, shared: tuple[str, ...], *, clamp: bool) -> None:
        super().__init__(base, shared)
        self._grid = base.bounds.grid
        self._clamp = clamp and base.bounds.least >= 0

    def from_sums(self, sums: Sequence[int]) -> float:
        """Return the sum in the units of the values."""
        above, below = sums
        total = Fraction(self.bounds.most * above + self.bounds.least * below, self.bounds.width)
        return float((max(total, Fraction(0)) if self._clamp else total) * Fraction(self._grid))

    def error(self, confidence: float) -> float:
        """Return the margin of each single number."""
        weights = [bound / self.bounds.width for bound in (self.bounds.most, self.bounds.least)]
        return self.base.weighted_error(weights, confidence) * self._grid

    def possible_range(self, rows: int) -> float:
        """Return how far the exact sums of this many rows may be apart."""
        return rows * self.bounds.width * self._grid


class DerivedMean(Mean):
    """The mean from the sums B0, B1 and B2 of a variance: 2A is 2 B2 + B1, and 2B is 2 B0 + B1."""

    def __init__(self, base: Variance, shared: tuple[str, ...]) -> None:
        self.base, self.shared = base, shared
        self.column, self.bounds, self._squares = base.column, base.bounds, True
        self.losses, self.noise = base.losses, base.noise

    @property
    def noise_words(self) -> str:
        """The noise of the sums of the variance, in words."""
        assert self.base is not None  # noqa: S101 - for the type checker
        return self.base.noise_words

    def publish_sums(self, sums: Sequence[Sequence[int]], confidence: float) -> list[Release]:
        """Publish the mean of each group, computed from the noisy sums of its variance."""
        pairs = [[2 * b2 + b1, 2 * b0 + b1] for b0, b1, b2 in sums]
        return super().publish_sums(pairs, confidence)

    def _sum_errors(self, confidence: float) -> tuple[float, float]:
        """Return the bound on the noise of 2A.

        The error of the mean is a sum of the three noises with weights p, (p - r)/2 and r, where
        p + r = 1. Such weights are majorized by 1, 1/2 and 0, so it exceeds the bound no more often
        than the noise of A does.
        """
        assert self.base is not None  # noqa: S101 - for the type checker
        return self.base.weighted_error([2.0, 1.0], confidence), confidence

    def _typical(self, rows: int) -> list[int]:
        assert self.base is not None  # noqa: S101 - for the type checker
        return [round(rows * self.base.row_total)] * 2


AnyQuery = Query | DerivedCount | DerivedSum
_OwnNoise = Count | Sum | Histogram | QuantileSelection


def share_sums(
    base: Mean | Variance, shared: tuple[str, ...], *, clamp: bool
) -> dict[str, AnyQuery]:
    """Return a query for each statistic that can be computed from the noisy sums of `base`.

    `shared` names those that are published.
    """
    base.shared = shared
    count = DerivedCount(base, shared, clamp=clamp)
    if isinstance(base, Mean):
        return {"count": count, "mean": base, "sum": DerivedSum(base, shared, clamp=clamp)}
    mean = DerivedMean(base, shared)
    return {"count": count, "mean": mean, "variance": base, "std": base.deviation()}


def payer_of(query: AnyQuery) -> Query:
    """Return the query that draws the noise of a statistic, and pays for it."""
    if isinstance(query, DerivedCount | DerivedSum):
        return query.base
    return query if isinstance(query, _OwnNoise) else query.base or query


class NoisySums:
    """The noisy sums of a request, each drawn once for all statistics that share it."""

    def __init__(self, rng: Generator | None) -> None:
        self._rng = rng
        self._drawn: dict[AnyQuery, list[list[int]]] = {}

    def release(self, query: AnyQuery, answer: Any, confidence: float) -> list[Release]:
        """Publish the numbers of each group."""
        if isinstance(query, _OwnNoise):
            return query.release(answer, confidence, self._rng)
        payer = payer_of(query)
        assert isinstance(payer, Mean | Variance)  # noqa: S101 - for the type checker
        if payer not in self._drawn:
            self._drawn[payer] = payer.noisy_sums(answer, self._rng)
        return query.publish_sums(self._drawn[payer], confidence)
