"""Quantiles: selected among the multiples of a grid, with an optional confidence interval.

Candidates are the cells between the bounds, scored by the rows below and at them.

A candidate c has the ranks from #(x < c) to #(x <= c). Its score is minus the distance of this
interval to the target q n, so rows that share a value pull the quantile to it. One more row moves
#(x < c) and #(x <= c) by 0 or 1 and q n by q. It therefore moves every score by at most
max(q, 1-q). The same holds if the ends of the interval approach its rank at q of the way, by a part
of a fixed number of ranks. The selection is exact permute-and-flip. Its running time depends only
on the number of candidates. docs/statistics-proofs.md has the proofs.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError, check_probability, is_list, reject_type
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import exact
from dpnoise.release.calibration import difference_down, quotient_down, selection_scale
from dpnoise.release.selection import noisy_argmax
from dpnoise.statistics.bounds import ONE_ROW, Bounds, ContributionBounds
from dpnoise.statistics.composition import PURE, Loss
from dpnoise.statistics.plan import Cells
from dpnoise.statistics.results import LossMixin, Release, as_loss

Counts = NDArray[np.int64]
_Whole = TypeVar("_Whole", np.int64, Counts)

PARTS: Final = 2**12  # Positions of a cut within a cell: rows that share a cell can be divided.
# The units of `SpreadRows` in one row: a cut is at an odd number of units.
UNITS_PER_ROW: Final = 2 * PARTS
_SELECTION: Final = "permute-and-flip, exact"
_POSITION_DIVISOR: Final = 8  # 1/8 of a cut's epsilon selects its position within its cell.
_INWARD_SCALES: Final = 4  # Ends of a cell approach each other by this many scales of noise.
_PLACE_BITS: Final = 30  # A place q is a multiple of 2^-30.
_LOW_BITS: Final = 31  # The product of q and these low bits of the row count fits in 61 bits.
_ALL_RANKS: Final = 2**61  # More ranks than any data set has.


class QuantileSelection(LossMixin):
    """One or several quantiles among the multiples of the grid, with optional intervals.

    Intervals take half of epsilon. One person costs `epsilon` in each of their groups, so `losses`
    has one loss for each of these groups; fewer if their rows have a bound in all groups together.
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
        interval: bool = False,
        contribution: ContributionBounds = ONE_ROW,
    ) -> None:
        self.places = check_places(places)
        self.column, self.interval = column, interval
        loss = as_loss(epsilon)
        if loss.kind != PURE:
            raise ArgumentError("A quantile is selected at a loss in epsilon, not in rho.")
        self.losses = (loss,) * contribution.selections
        self.bounds = Bounds.of_cells(lower, upper, grid)
        self.contribution, self.epsilon_of_row = (
            contribution,
            contribution.row_epsilon(loss.amount),
        )
        parts = self.epsilon_of_row / 2 if interval else self.epsilon_of_row
        self._epsilon_here, self._epsilon_ends = parts, quotient_down(parts, len(self.places))
        for place in self.places:  # Raises for an impossible scale before noise is drawn.
            place_scale(place, self._epsilon_ends)

    @property
    def name(self) -> str:
        """The name of the statistic."""
        return self.labels[0] if len(self.places) == 1 else "quantiles"

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each quantile."""
        return tuple(
            "median" if place == 0.5 else f"quantile {place:g}"  # noqa: PLR2004 - the middle
            for place in self.places
        )

    def describe_margins(self, confidence: float, groups: int) -> str:
        """Describe the width of the intervals in words, in ranks."""
        del groups  # The interval of a group does not depend on the others.
        if not self.interval:
            return "no margin without intervals"
        ranks = math.ceil(self._expected_ranks(confidence))
        return f"an interval with ends about {ranks:,} ranks from the quantile"

    def expected_margin(self, rows: int, confidence: float) -> float:
        """Return how far off a quantile of a number of rows with evenly spread values may be."""
        ranks = self._expected_ranks(confidence)
        return min(ranks / rows, 1.0) * self.possible_range(rows)

    def _expected_ranks(self, confidence: float) -> float:
        """Return how many ranks a quantile of evenly spread values, or its interval, is off.

        Then a selection at scale s is off by more than t ranks with probability exp(-t/s) at most.
        The errors of several levels add up. Intervals have ranks to spare.
        """
        depth = levels(len(self.places))
        scales = [place_scale(place, self._epsilon_here / depth) for place in self.places]
        ranks = depth * max(scales) * math.log(depth / (1 - confidence))
        if not self.interval:
            return ranks
        number = interval_widths(self.bounds.cells).size
        return ranks + max(
            spare_ranks(number, place_scale(place, self._epsilon_ends), confidence)
            for place in self.places
        )

    def possible_range(self, rows: int) -> float:
        """Return how far the numbers that the bounds allow are apart."""
        del rows
        return self.bounds.width * self.bounds.grid

    @property
    def ask(self) -> Cells:
        """The ask for the number of values in each cell."""
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
            ends = select_interval(counts, cells[place], place, self._epsilon_ends, confidence, rng)
            intervals.append((self._value(ends[0]), self._value(ends[1])))
        everything = (self._value(0), self._value(self.bounds.cells - 1))
        marks = [ends == everything for ends in intervals]
        is_single, share = len(values) == 1, (self.epsilon or 0.0) / 2
        return Release(
            self.name, values[0] if is_single else values, self.epsilon, None, None, confidence,
            {self.name: share, "interval": share} if self.interval else {},
            interval=intervals[0] if is_single and intervals else intervals or None,
            labels=() if is_single else self.labels, mechanism=_SELECTION, grid=self.bounds.grid,
            no_information=marks[0] if is_single and marks else marks or False,
        )  # fmt: skip

    def _value(self, cell: int) -> float:
        return exact.nearest_float(self.bounds.least + cell, self.bounds.grid)


def check_places(places: Sequence[float]) -> list[float]:
    """Return the places of quantiles; raise unless they are different numbers from 0 to 1."""
    if not is_list(places):
        reject_type("q", places, "be a list of numbers, such as [0.25, 0.75]")
    checked = [check_probability("q", place, include_ends=True) for place in places]
    if not checked or len(set(map(nearest_place, checked))) < len(checked):
        raise ArgumentError("q must be one or more different numbers, such as q=[0.25, 0.5, 0.75].")
    return checked


class TargetRank(NamedTuple):
    """An exact rank: the sum of a whole number and a fraction, `part`, in [0, 1)."""

    whole: np.int64
    part: np.float64


def nearest_place(q: float) -> float:
    """Round q to a multiple of 2^-30. This moves a rank by at most one row in 2^31."""
    return round(q * 2.0**_PLACE_BITS) * 2.0**-_PLACE_BITS


def target_rank(q: float, rows: np.int64) -> TargetRank:
    """Return q * rows exactly, in 64-bit integers. q must be a multiple of 2^-30."""
    low, high = _split_product(q, rows)
    part = np.float64(low & np.int64(2**_PLACE_BITS - 1)) * 2.0**-_PLACE_BITS
    return TargetRank(high + (low >> np.int64(_PLACE_BITS)), part)


def _split_product(q: float, rows: _Whole) -> tuple[_Whole, _Whole]:
    """Return two integers, of which the first over 2^30 plus the second is q * rows."""
    numerator = np.int64(round(q * 2.0**_PLACE_BITS))
    low = numerator * (rows & np.int64(2**_LOW_BITS - 1))
    return low, 2 * numerator * (rows >> np.int64(_LOW_BITS))


class Ranks:
    """The ranks of each cell, from the counts of rows in them.

    The lowest cell also covers all lower ranks, and the highest all higher ranks. The ends of a
    cell may approach each other by `inward` ranks: the lower end moves by q of them, the upper end
    by the rest. So a cell of few rows has one rank, at q of the way from its lowest to its highest,
    as for one row in the default quantile of NumPy and R.
    """

    def __init__(
        self, below: Counts, up_to: Counts, rows: np.int64, inward: int = 0, q: float = 0.5
    ) -> None:
        moved: Counts = np.minimum(up_to - below, np.int64(inward))
        low, high = _split_product(q, moved)
        from_below = high + (low >> np.int64(_PLACE_BITS))
        self.below: Counts = below + from_below
        self.up_to: Counts = up_to - (moved - from_below)
        self.rows = rows
        self.below[0], self.up_to[-1] = -_ALL_RANKS, _ALL_RANKS

    def scores(self, target: TargetRank) -> NDArray[np.float64]:
        """Return the scores as the nearest floats. Differences of ranks are below 2^53."""
        above = (self.below - target.whole).astype(np.float64) - target.part
        beneath = (target.whole - self.up_to).astype(np.float64) + target.part
        return -np.maximum(np.maximum(above, beneath), 0.0)

    def exact_score(self, cell: int, target: TargetRank) -> Fraction:
        """Return the score of one cell."""
        rank = int(target.whole) + Fraction(float(target.part))
        return -max(int(self.below[cell]) - rank, rank - int(self.up_to[cell]), Fraction(0))

    def select(self, target: TargetRank, scale: float, rng: Generator | None) -> int:
        """Return the cell with the best noisy score."""
        scores = self.scores(target)
        return noisy_argmax(scores, lambda cell: self.exact_score(cell, target), scale, rng)


class SpreadRows:
    """Rows spread evenly over their cells, so that a cut can divide a cell.

    A cell has PARTS positions for a cut: cut p is at position p % PARTS of cell p // PARTS. The
    rows below a cut are counted in units of 1 / (2 PARTS)
    rows. Cut -1 has no rows below it, and cut cells * PARTS has all rows below it.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._up_to = np.cumsum(counts, dtype=np.int64)
        self._last = counts.size * PARTS

    def below(self, cuts: NDArray[np.int64]) -> Counts:
        """Return the rows below each cut, in units."""
        inside = np.clip(cuts, 0, self._last - 1)
        cells, parts = inside // PARTS, inside % PARTS
        counts = self._counts[cells]
        units = UNITS_PER_ROW * (self._up_to[cells] - counts) + (2 * parts + 1) * counts
        return np.where(
            cuts < 0, 0, np.where(cuts >= self._last, UNITS_PER_ROW * self._up_to[-1], units)
        )

    def select_cut(
        self, first: int, last: int, q: float, epsilon: float, rng: Generator | None
    ) -> int:
        """Select a cut at the q-quantile of the rows between two other cuts.

        This selects the cell, then the position within it. The position matters if many rows share
        the cell.
        """
        position_epsilon = epsilon / _POSITION_DIVISOR
        cell = self.cell(first, last, q, difference_down(epsilon, position_epsilon), rng)
        start, stop = max(first, cell * PARTS), min(last, cell * PARTS + PARTS - 1)
        low, high = self.below(np.array([first, last]))
        below = self.below(np.arange(start, stop + 1)) - low
        ranks = Ranks(below, below, np.int64(high - low))
        return start + _select_cell(ranks, q, position_epsilon, rng, UNITS_PER_ROW)

    def cell(self, first: int, last: int, q: float, epsilon: float, rng: Generator | None) -> int:
        """Select the cell of the q-quantile of the rows between two cuts."""
        ranks = self.ranks(first, last, q, epsilon)
        return max(first, 0) // PARTS + _select_cell(ranks, q, epsilon, rng, UNITS_PER_ROW)

    def ranks(self, first: int, last: int, q: float, epsilon: float) -> Ranks:
        """Return the ranks, in units, of the cells that lie at least in part between two cuts."""
        inward = min(math.ceil(_INWARD_SCALES * place_scale(q, epsilon, UNITS_PER_ROW)), _ALL_RANKS)
        start, stop = max(first, 0) // PARTS, min(last, self._last - 1) // PARTS
        low, high = self.below(np.array([first, last]))
        counts, up_to = self._counts[start : stop + 1], self._up_to[start : stop + 1]
        below = np.clip(UNITS_PER_ROW * (up_to - counts), low, high) - low
        ends = np.clip(UNITS_PER_ROW * up_to, low, high) - low
        return Ranks(below, ends, np.int64(high - low), inward, nearest_place(q))


def _select_cell(ranks: Ranks, q: float, epsilon: float, rng: Generator | None, row: int) -> int:
    """Select a quantile among the candidates of `ranks`: cells, or positions in a cell.

    A row counts `row` units.
    """
    q = nearest_place(q)
    return ranks.select(target_rank(q, ranks.rows), place_scale(q, epsilon, row), rng)


@lru_cache(maxsize=256)
def place_scale(q: float, epsilon: float, row: int = 1) -> float:
    """Return the scale of the noise on the scores: twice the sensitivity over epsilon."""
    q = nearest_place(q)
    return selection_scale(epsilon, row * max(q, 1 - q), monotonic=False)


def select_places(
    counts: Counts, places: Sequence[float], epsilon: float, rng: Generator | None
) -> list[int]:
    """Select the cell of each quantile. `places` must be different and in ascending order.

    The middle quantile is selected first. It divides the rows into two halves, and the other
    quantiles are selected within these (Kaplan, Schnapp and Stemmer 2022). A row lies in one half
    of each cut, or partly in both. So a level costs as much as one selection, and the levels share
    epsilon.
    """
    spread_rows = SpreadRows(counts)
    level_epsilon = quotient_down(epsilon, levels(len(places)))
    selected = [0] * len(places)

    def halve(first: int, last: int, cuts: tuple[int, int], ends: tuple[float, float]) -> None:
        if first == last:
            return
        middle = (first + last) // 2
        low, high = ends  # All places differ, so that low < high.
        relative = (places[middle] - low) / (high - low)
        if last - first == 1:
            selected[middle] = spread_rows.cell(*cuts, relative, level_epsilon, rng)
            return
        cut = spread_rows.select_cut(*cuts, relative, level_epsilon, rng)
        selected[middle] = cut // PARTS
        halve(first, middle, (cuts[0], cut), (ends[0], places[middle]))
        halve(middle + 1, last, (cut, cuts[1]), (places[middle], ends[1]))

    halve(0, len(places), (-1, counts.size * PARTS), (0.0, 1.0))
    return selected


def levels(places: int) -> int:
    """Return how many levels of halving this many quantiles need."""
    return places.bit_length()


class SpareRanks:
    """How many ranks intervals around a cell have to spare, beyond those that they need.

    An interval of cells from a to b has min(q n - #(x < a), #(x <= b) - q n) ranks to spare: a
    negative number if it misses the quantile. One more row moves this by at most max(q, 1-q). The
    narrowest interval that has the ranks it needs gets the score 0. A narrower one gets minus the
    ranks that it lacks, and a wider one minus those that the next narrower has beyond its need.
    """

    def __init__(self, counts: Counts, cell: int, target: TargetRank, needed: int) -> None:
        widths = interval_widths(counts.size)
        up_to = np.cumsum(counts, dtype=np.int64)
        below = up_to - counts
        below[0], up_to[-1] = -_ALL_RANKS, _ALL_RANKS
        self.first = np.maximum(cell - widths, 0)
        self.last = np.minimum(cell + widths, counts.size - 1)
        # The ranks beyond those needed are the smaller of under + part and over - part.
        self._under = target.whole - np.int64(needed) - below[self.first]
        self._over = up_to[self.last] - target.whole - np.int64(needed)
        self._part = target.part

    def scores(self) -> NDArray[np.float64]:
        """Return the scores as the nearest floats."""
        under, over = self._under.astype(np.float64), self._over.astype(np.float64)
        beyond = np.minimum(under + self._part, over - self._part)
        narrower = np.concatenate([[-float(_ALL_RANKS)], beyond[:-1]])
        penalties: NDArray[np.float64] = np.maximum(np.maximum(narrower, -beyond), 0.0)
        return -penalties

    def exact_score(self, index: int) -> Fraction:
        """Return the score of one interval."""
        narrower = Fraction(-_ALL_RANKS) if index == 0 else self._beyond(index - 1)
        return -max(narrower, -self._beyond(index), Fraction(0))

    def _beyond(self, index: int) -> Fraction:
        part = Fraction(float(self._part))
        return min(int(self._under[index]) + part, int(self._over[index]) - part)


def select_interval(
    counts: Counts,
    cell: int,
    place: float,
    epsilon: float,
    confidence: float,
    rng: Generator | None,
) -> tuple[int, int]:
    """Select an interval around a cell that has the quantile inside with `confidence` or more."""
    place = nearest_place(place)
    scale = place_scale(place, epsilon)
    needed = spare_ranks(interval_widths(counts.size).size, scale, confidence)
    rows = np.sum(counts, dtype=np.int64)
    spare = SpareRanks(counts, cell, target_rank(place, rows), needed)
    index = noisy_argmax(spare.scores(), spare.exact_score, scale, rng)
    return int(spare.first[index]), int(spare.last[index])


def interval_widths(cells: int) -> Counts:
    """Return how far intervals reach on each side: 0, 1, and each about sqrt(2) times the last.

    The last of them has all cells.
    """
    powers = np.rint(2.0 ** (np.arange(2 * cells.bit_length()) / 2)).astype(np.int64)
    return np.unique(np.concatenate([[0], powers[powers < cells - 1], [cells - 1]]))


def spare_ranks(number: int, scale: float, confidence: float) -> int:
    """Return how many ranks one of `number` intervals needs to spare.

    An interval that misses the quantile lacks more than h ranks if h are needed, and one interval
    lacks none. Permute-and-flip selects the former only if its noise exceeds that of the latter by
    h. This has probability exp(-h/scale)/2 for each of at most number - 1 intervals.
    """
    odds = max((number - 1) / (2 * (1 - confidence)), 1.0)
    return min(math.ceil(scale * math.log(odds)) + 1, 2**60)
