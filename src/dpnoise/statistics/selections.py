"""Quantiles: selected among the multiples of a grid, each with an interval if wanted."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError, check_part
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import exact
from dpnoise.release.calibration import quotient_down
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.composition import PURE, Loss
from dpnoise.statistics.contribution_bounds import ONE_ROW, Reach
from dpnoise.statistics.plan import Cells
from dpnoise.statistics.ranks import (
    nearest_place,
    place_scale,
    ranks_aside,
    select_ends,
    select_places,
)
from dpnoise.statistics.results import Priced, Release, as_loss

_SELECTION: Final = "permute-and-flip, exact"


class Quantiles(Priced):
    """One or several quantiles among the multiples of the grid, each with an interval if wanted.

    An interval takes half of epsilon. One person costs `epsilon` in each group that they are in,
    and the losses of all these groups are what it is made of.
    """

    def __init__(
        self,
        column: str,
        places: Sequence[float],
        lower: float,
        upper: float,
        epsilon: float | Loss,
        grid: float | None = None,
        *,
        interval: bool = True,
        reach: Reach = ONE_ROW,
    ) -> None:
        self.places = [check_part("q", place, ends=True) for place in places]
        if not self.places or len(set(map(nearest_place, self.places))) < len(self.places):
            raise ArgumentError("Expected one place or more, each once: q=[0.25, 0.5, 0.75].")
        self.column, self.interval = column, interval
        loss = as_loss(epsilon)
        if loss.kind != PURE:
            raise ArgumentError("A quantile is selected at a loss in epsilon, not in rho.")
        self.losses = (loss,) * reach.groups
        self.bounds = Bounds.of_cells(lower, upper, grid)
        self.reach, self.epsilon_of_row = reach, reach.part_of_selection(loss.amount)
        parts = quotient_down(self.epsilon_of_row, 2) if interval else self.epsilon_of_row
        self._share = quotient_down(self.epsilon or loss.amount, 2)
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
        share = self._share
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
        return exact.nearest_float(self.bounds.least + cell, self.bounds.grid)
