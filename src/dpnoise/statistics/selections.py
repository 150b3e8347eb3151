"""Quantiles: selected among the multiples of a grid, each with an interval if wanted.

Candidates are the cells between the bounds, scored by the rows below and at them.

A candidate c has the ranks from #(x < c) to #(x <= c), and its score is minus the distance of this
interval to the target q n: rows that share a value pull the quantile to it. One row more moves
#(x < c) and #(x <= c) by 0 or 1 and q n by q, so it moves every score by at most max(q, 1-q); that
stays so if the ends of the interval are moved inward, by a fixed number of ranks or to its middle.
The selection is permute-and-flip, exact, and its work depends on the number of candidates only.
docs/publishing.md has the proofs.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError, check_probability
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import exact
from dpnoise.release.calibration import difference_down, quotient_down, selection_scale
from dpnoise.release.selection import noisy_argmax
from dpnoise.statistics.bounds import ONE_ROW, Bounds, Reach
from dpnoise.statistics.composition import PURE, Loss
from dpnoise.statistics.plan import Cells
from dpnoise.statistics.results import Priced, Release, as_loss

Counts = NDArray[np.int64]

PARTS: Final = 2**12  # Cuts through a cell, where rows that share it may have to be parted.
_UNIT: Final = 2 * PARTS  # A row, in the units of `Smeared`: cuts have odd numbers of them.
_SELECTION: Final = "permute-and-flip, exact"
_PARTING: Final = 8  # One part in so many of a cut's epsilon says where in its cell the cut goes.
_INWARD: Final = 2  # Scales of the noise by which the ends of a cell are moved.
_PLACE_BITS: Final = 30
_LOW_BITS: Final = 31
_EVERYTHING: Final = 2**61  # More rows than there are.


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
        self.places = [check_probability("q", place, ends=True) for place in places]
        if not self.places or len(set(map(nearest_place, self.places))) < len(self.places):
            raise ArgumentError(
                "q must be one or more different numbers, such as q=[0.25, 0.5, 0.75]."
            )
        self.column, self.interval = column, interval
        loss = as_loss(epsilon)
        if loss.kind != PURE:
            raise ArgumentError("A quantile is selected at a loss in epsilon, not in rho.")
        self.losses = (loss,) * reach.groups
        self.bounds = Bounds.of_cells(lower, upper, grid)
        self.reach, self.epsilon_of_row = reach, reach.part_of_selection(loss.amount)
        parts = self.epsilon_of_row / 2 if interval else self.epsilon_of_row
        self._epsilon_here, self._epsilon_ends = parts, quotient_down(parts, len(self.places))
        for place in self.places:  # So that every scale is possible before noise is drawn.
            place_scale(place, self._epsilon_ends / 2)

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
        half = self._epsilon_ends / 2
        aside = max(
            ranks_aside(self.bounds.cells, place_scale(place, half), confidence)
            for place in self.places
        )
        return f"an interval, whose ends are about {aside:,} ranks aside"

    @property
    def ask(self) -> Cells:
        """The number of values in each cell."""
        return Cells(self.column, self.bounds.grid, self.bounds.least, self.bounds.most)

    def release(self, answer: Counts, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish the quantiles of each group."""
        rng = check_generator(rng)
        groups = answer.reshape(-1, self.bounds.cells)
        return [self._release(counts, confidence, rng) for counts in groups]

    def _release(self, counts: Counts, confidence: float, rng: Generator) -> Release:
        places = sorted(self.places)
        selected = select_places(counts, places, self._epsilon_here, rng)
        cells = dict(zip(places, selected, strict=True))
        values = [self._value(cells[place]) for place in self.places]
        intervals = []
        for place in self.places if self.interval else ():
            low, high = select_ends(counts, place, self._epsilon_ends, confidence, rng)
            ends = (min(low, cells[place]), max(high, cells[place]))
            intervals.append((self._value(ends[0]), self._value(ends[1])))
        one, share = len(values) == 1, (self.epsilon or 0.0) / 2
        return Release(
            self.name, values[0] if one else values, self.epsilon, None, None, confidence,
            {self.name: share, "interval": share} if self.interval else {},
            interval=intervals[0] if one and intervals else intervals or None,
            labels=() if one else self.labels, mechanism=_SELECTION, grid=self.bounds.grid,
        )  # fmt: skip

    def _value(self, cell: int) -> float:
        return exact.nearest_float(self.bounds.least + cell, self.bounds.grid)


class Target(NamedTuple):
    """A rank, not always whole: whole + part, exactly, with the part in [0, 1)."""

    whole: np.int64
    part: np.float64

    def shifted(self, ranks: int) -> "Target":
        """Return the target this many ranks further up."""
        return Target(self.whole + np.int64(ranks), self.part)


def nearest_place(q: float) -> float:
    """Return q as the nearest multiple of 2^-30: it moves a rank by a row in 2^31 at most."""
    return round(q * 2.0**_PLACE_BITS) * 2.0**-_PLACE_BITS


def target_rank(q: float, rows: np.int64) -> Target:
    """Return q times the number of rows, for q a multiple of 2^-30, exactly, in fixed width."""
    numerator = np.int64(round(q * 2.0**_PLACE_BITS))
    low = numerator * (rows & np.int64(2**_LOW_BITS - 1))
    high = 2 * numerator * (rows >> np.int64(_LOW_BITS))
    part = np.float64(low & np.int64(2**_PLACE_BITS - 1)) * 2.0**-_PLACE_BITS
    return Target(high + (low >> np.int64(_PLACE_BITS)), part)


class Ranks:
    """The ranks of each cell, from the counts of rows in them.

    Nothing lies beyond the lowest and the highest cell, so that their ranks go on for ever. Ends
    may be moved inward by a fixed number of ranks, at most to the middle of a cell: rows that share
    a cell need not be equal, and so the cell in whose middle the target is comes first.
    """

    def __init__(self, below: Counts, up_to: Counts, rows: np.int64, inward: int = 0) -> None:
        moved: Counts = np.minimum((up_to - below) // 2, np.int64(inward))
        self.below: Counts = below + moved
        self.up_to: Counts = up_to - moved
        self.rows = rows
        self.below[0], self.up_to[-1] = -_EVERYTHING, _EVERYTHING

    @classmethod
    def of(cls, counts: Counts) -> "Ranks":
        """Return the ranks of cells with these counts."""
        up_to = np.cumsum(counts, dtype=np.int64)
        return cls(up_to - counts, up_to, up_to[-1])

    def scores(self, target: Target) -> NDArray[np.float64]:
        """Return the nearest floats to the scores: differences of ranks are below 2^53."""
        above = (self.below - target.whole).astype(np.float64) - target.part
        beneath = (target.whole - self.up_to).astype(np.float64) + target.part
        return -np.maximum(np.maximum(above, beneath), 0.0)

    def exact_score(self, cell: int, target: Target) -> Fraction:
        """Return the score of one cell."""
        rank = int(target.whole) + Fraction(float(target.part))
        return -max(int(self.below[cell]) - rank, rank - int(self.up_to[cell]), Fraction(0))

    def select(self, target: Target, scale: float, rng: Generator | None) -> int:
        """Return the cell with the best noisy score."""
        scores = self.scores(target)
        return noisy_argmax(scores, lambda cell: self.exact_score(cell, target), scale, rng)


class Smeared:
    """The same rows, each spread evenly over its cell, so that a cut may part a cell.

    Cut p goes through cell p // PARTS; what lies below it is counted in units of a row over
    2 PARTS. The cuts -1 and cells * PARTS have nothing and everything below them.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._up_to = np.cumsum(counts, dtype=np.int64)
        self._last = counts.size * PARTS

    def below(self, cuts: NDArray[np.int64]) -> Counts:
        """Return what lies below each cut, in units."""
        inside = np.clip(cuts, 0, self._last - 1)
        cells, parts = inside // PARTS, inside % PARTS
        counts = self._counts[cells]
        units = _UNIT * (self._up_to[cells] - counts) + (2 * parts + 1) * counts
        return np.where(cuts < 0, 0, np.where(cuts >= self._last, _UNIT * self._up_to[-1], units))

    def cut(self, first: int, last: int, q: float, epsilon: float, rng: Generator | None) -> int:
        """Select a cut between two others that has a part q of what lies between them below it.

        First its cell, then where it goes through it, which matters if many rows share the cell.
        """
        parting = epsilon / _PARTING
        cell = self.cell(first, last, q, difference_down(epsilon, parting), rng)
        start, stop = max(first, cell * PARTS), min(last, cell * PARTS + PARTS - 1)
        low, high = self.below(np.array([first, last]))
        below = self.below(np.arange(start, stop + 1)) - low
        ranks = Ranks(below, below, np.int64(high - low))
        return start + _selected(ranks, q, parting, rng, _UNIT)

    def cell(self, first: int, last: int, q: float, epsilon: float, rng: Generator | None) -> int:
        """Select the cell of the q-quantile of what lies between two cuts."""
        inward = min(math.ceil(_INWARD * place_scale(q, epsilon, _UNIT)), _EVERYTHING)
        ranks = self.ranks(first, last, inward)
        return max(first, 0) // PARTS + _selected(ranks, q, epsilon, rng, _UNIT)

    def ranks(self, first: int, last: int, inward: int) -> Ranks:
        """Return the ranks, in units, of the cells that lie between two cuts, or in part."""
        start, stop = max(first, 0) // PARTS, min(last, self._last - 1) // PARTS
        low, high = self.below(np.array([first, last]))
        counts, up_to = self._counts[start : stop + 1], self._up_to[start : stop + 1]
        below = np.clip(_UNIT * (up_to - counts), low, high) - low
        return Ranks(below, np.clip(_UNIT * up_to, low, high) - low, np.int64(high - low), inward)


def _selected(
    ranks: Ranks, q: float, epsilon: float, rng: Generator | None, row: int, shift: int = 0
) -> int:
    """Select the cell of a quantile; a row counts this much, and the target may be shifted."""
    q = nearest_place(q)
    target = target_rank(q, ranks.rows).shifted(shift)
    return ranks.select(target, place_scale(q, epsilon, row), rng)


@lru_cache(maxsize=256)
def place_scale(q: float, epsilon: float, row: int = 1) -> float:
    """Return the scale of the noise on the scores: twice the sensitivity over epsilon."""
    q = nearest_place(q)
    return selection_scale(epsilon, row * max(q, 1 - q), monotonic=False)


def select_places(
    counts: Counts, places: Sequence[float], epsilon: float, rng: Generator | None
) -> list[int]:
    """Return the cells of several quantiles, given in order, which are in order too.

    The middle one is selected first; it cuts the rows in two, and each half is asked for its own
    (Kaplan, Schnapp and Stemmer 2022). One row lies in one half of each cut, or in parts in both,
    so a level costs as much as one of its selections, and the levels share epsilon.
    """
    smeared = Smeared(counts)
    part = quotient_down(epsilon, levels(len(places)))
    found = [0] * len(places)

    def halve(first: int, last: int, cuts: tuple[int, int], ends: tuple[float, float]) -> None:
        if first == last:
            return
        middle = (first + last) // 2
        low, high = ends
        relative = (places[middle] - low) / (high - low) if high > low else 0.5
        if last - first == 1:
            found[middle] = smeared.cell(*cuts, relative, part, rng)
            return
        cut = smeared.cut(*cuts, relative, part, rng)
        found[middle] = cut // PARTS
        halve(first, middle, (cuts[0], cut), (ends[0], places[middle]))
        halve(middle + 1, last, (cut, cuts[1]), (places[middle], ends[1]))

    halve(0, len(places), (-1, counts.size * PARTS), (0.0, 1.0))
    return found


def levels(places: int) -> int:
    """Return how often the places are halved."""
    return places.bit_length()


def select_ends(
    counts: Counts, place: float, epsilon: float, confidence: float, rng: Generator | None
) -> tuple[int, int]:
    """Return two cells that have a quantile between them, with this probability at least.

    Half of epsilon is for each. A selection misses its target by more than h ranks with a
    probability below cells * exp(-h / scale), so the targets are that far below and above.
    """
    ranks = Ranks.of(counts)
    half = epsilon / 2
    shift = ranks_aside(counts.size, place_scale(place, half), confidence)
    low, high = (_selected(ranks, place, half, rng, 1, way * shift) for way in (-1, 1))
    return min(low, high), max(low, high)


def ranks_aside(cells: int, scale: float, confidence: float) -> int:
    """Return how many ranks an end is shifted by."""
    miss = (1 - confidence) / 2
    return min(math.ceil(scale * math.log(cells / miss)) + 1, 2**60)
