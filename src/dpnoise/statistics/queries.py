"""What can be asked of a column, and how its exact answer is released.

Neighbouring data sets differ by one person, or one row, added or removed, or in another's place.
Every query asks the data for exact integers (`ask`), whose sensitivity is known whatever the rows
hold, and releases them by group. A statistic is that of the values clamped to the declared bounds
and rounded to the grid, which comes from the bounds, never from the data.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.arrays import exact_floats
from dpnoise.core.errors import ArgumentError, check_part, reject
from dpnoise.noise.generator import Generator
from dpnoise.release import exact
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.contribution_bounds import ONE_ROW, Move, Reach
from dpnoise.statistics.moments import Deviation, Mean, Variance, check_scale, sums_of
from dpnoise.statistics.plan import Edges, Rows, Sums
from dpnoise.statistics.plan import Sum as SumAnswer
from dpnoise.statistics.results import (
    Priced,
    Release,
    WholeNoise,
    as_loss,
    expected_words,
    margins,
)
from dpnoise.statistics.selections import Quantiles

__all__ = [
    "Count",
    "Deviation",
    "Histogram",
    "Mean",
    "Quantiles",
    "Query",
    "Release",
    "Sum",
    "Variance",
    "check_confidence",
]


class _Counts(Priced):
    """What counts and histograms share: counts of rows, with discrete noise."""

    name: str
    noise: WholeNoise
    labels: tuple[str, ...] = ()

    @property
    def mechanism(self) -> Any:
        """What adds the noise."""
        return self.noise.mechanism

    def _cells(self) -> int:
        """Return how many counts a group has."""
        return 1

    def error(self, confidence: float) -> float:
        """Return the margin of each number by itself."""
        return self.noise.whole_error(confidence)

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be."""
        number = groups * self._cells()
        return expected_words(margins(self.error, confidence, number), number)

    def _released(
        self, exactly: NDArray[np.int64], confidence: float, rng: Generator | None
    ) -> list[Release]:
        """Publish the counts of each group: one row is in one of them, so all cost epsilon once."""
        error, joint = margins(self.error, confidence, exactly.size)
        return [
            Release(
                self.name, value, self.epsilon, self.mechanism.scale, error, confidence,
                joint_error=joint, labels=self.labels, mechanism=self.noise.words, grid=1.0,
                rho=self.rho,
            )
            for value in self.noise.release(exactly, rng).tolist()
        ]  # fmt: skip


class Count(_Counts):
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
        move = Move.of_number(reach.rows, reach.rows)
        lower = 0 if clamp else None
        self.noise = WholeNoise.of(self.losses[0], reach, move, counts=True, lower=lower)

    @property
    def ask(self) -> Rows | Edges:
        """All rows, or all values."""
        return Rows() if self.column is None else Edges(self.column, (-math.inf, math.inf))

    def release(
        self, answer: NDArray[np.int64], confidence: float, rng: Generator | None
    ) -> list[Release]:
        """Publish the number of each group."""
        return self._released(answer.reshape(-1), confidence, rng)


class Histogram(_Counts):
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
            raise ArgumentError("Expected edges to be two or more increasing numbers.")
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

    def _cells(self) -> int:
        return len(self.edges) - 1

    def release(
        self, answer: NDArray[np.int64], confidence: float, rng: Generator | None
    ) -> list[Release]:
        """Publish the counts of each group."""
        return self._released(answer.reshape(-1, self._cells()), confidence, rng)


class Sum(Priced):
    """The sum of the clamped values."""

    name = "sum"

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
        move = Move.of_number(reach.rows * self.bounds.largest, reach.rows * self.bounds.span)
        self.noise = WholeNoise.of(self.losses[0], reach, move)
        check_scale(self.mechanism.scale * self.bounds.grid)

    @property
    def mechanism(self) -> Any:
        """What adds the noise."""
        return self.noise.mechanism

    @property
    def ask(self) -> Sums:
        """The sum in whole grids."""
        return sums_of(self.column, self.bounds)

    def expected(self, confidence: float, groups: int) -> str:
        """Say how far off the numbers will be."""
        return expected_words(margins(self.error, confidence, groups), groups)

    def error(self, confidence: float) -> float:
        """Return the margin of each number by itself."""
        return self.noise.error(confidence) * self.bounds.grid

    def release(self, answer: SumAnswer, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the sum of each group."""
        mechanism, grid = self.mechanism, self.bounds.grid
        exactly = answer.total.reshape(-1)
        error, joint = margins(self.error, confidence, exactly.size)
        return [
            Release(
                self.name, exact.nearest_float(value, grid), self.epsilon,
                mechanism.scale * grid, error, confidence,
                joint_error=joint, mechanism=self.noise.words, grid=grid, rho=self.rho,
            )
            for value in self.noise.release(exactly, rng).tolist()
        ]  # fmt: skip


Query = Count | Sum | Mean | Variance | Histogram | Quantiles


def check_confidence(confidence: float) -> float:
    """Return a confidence at which errors are finite, those of several parts too."""
    part = check_part("confidence", confidence)
    if (1 + part) / 2 == 1:
        reject("confidence", confidence, "<= 1 - 2^-52")
    return part
