"""Views that need both data sets: linear discriminants, parities, and the columns that differ most.

A sum of likelihood ratios needs the ratio of each part, which few releases do not show where many
parts reveal a little each. A linear discriminant needs only means and covariances. It also finds
noise that parts share, such as that of a total of the parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from dpnoise.auditing.learned.steps import add_products, count_by_cell, find_cells
from dpnoise.auditing.learned.views import (
    CODES,
    DISCRIMINANT,
    Block,
    Rows,
    Take,
    View,
    column_of,
    listing,
    median_and_spread,
)
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.kernels import compile_kernel

_FARTHEST: Final = 1e3  # Largest distance from the median, in spreads, so that sums stay exact.
# Features that are computed at a time, so that they stay in the cache, but at least of these rows.
_BLOCK_FEATURES: Final = 1 << 16
_LEAST_BLOCK_ROWS: Final = 256
_LEAST_STEP: Final = 0.2  # The least move, in spreads, for which clips are compared.


def rank_columns(sample0: Rows, sample1: Rows) -> list[int]:
    """Return the columns of rows at two data sets, the most different first.

    The statistic is chi-squared over cells between quantiles, and of single numbers at these.
    """
    ones, few = np.ones(len(sample0)), TUNING.column_edge_outputs
    shares = np.arange(1, TUNING.free_cells) / TUNING.free_cells
    statistics = []
    for x0, x1 in zip(sample0.T, sample1.T, strict=True):
        known = np.sort(np.nan_to_num(np.concatenate([x0[:few], x1[:few]])).astype(np.float64))
        cuts = known[(shares * len(known)).astype(int)]
        edges = np.unique(np.concatenate([cuts, np.nextafter(cuts, np.inf), [np.inf]]))
        counts = (count_by_cell(edges, find_cells(edges, x), ones, ones)[0] for x in (x0, x1))
        c0, c1 = counts
        statistics.append(float(((c0 - c1) ** 2 / np.maximum(c0 + c1, 1)).sum()) / len(edges))
    return [int(j) for j in np.argsort(-np.array(statistics), kind="stable")]


class Discriminant:
    """Linear discriminants of features of some columns, which learn from rows step by step.

    They differ in the ridge: a small one shows sums without noise, and a large one needs fewer
    releases.
    """

    def __init__(self, words: str, features: "_Features") -> None:
        self._words, self._features = f"the linear discriminant of {words}", features
        self._squares, self._means = np.zeros((features.width,) * 2), np.zeros((2, features.width))
        self._counts = np.zeros(2)

    def learn(self, rows: Rows, count0: Floats, count1: Floats) -> None:
        """Learn from rows, given their counts at both data sets."""
        step = max(_LEAST_BLOCK_ROWS, _BLOCK_FEATURES // max(1, self._features.width))
        for start in range(0, len(rows), step):
            span = slice(start, start + step)
            x, counts = self._features(rows[span]), (count0[span], count1[span])
            _add_sums(x, *counts, self._means)
            self._counts += [count.sum() for count in counts]
            add_products(x, counts[0] + counts[1], self._squares)

    def views(self) -> list[View]:
        """Return a view for each ridge."""
        project, source = self._features.projection, self._features.source
        return [
            View(self._words, DISCRIMINANT, project(w), source=source(w)) for w in self._weights().T
        ]

    def _weights(self) -> Floats:
        """Return the weights of the features, one column for each ridge."""
        means = self._means / self._counts[:, None]
        lower = self._squares
        products = lower + np.tril(lower, -1).T - (means.T * self._counts) @ means
        covariance = products / self._counts.sum()
        sizes = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        sizes[sizes == 0] = 1.0
        variances, vectors = np.linalg.eigh(covariance / np.outer(sizes, sizes))
        moves = vectors.T @ ((means[0] - means[1]) / sizes)
        ridges = np.array(TUNING.discriminant_ridges)
        weights = vectors @ (moves[:, None] / (np.maximum(variances, 0.0)[:, None] + ridges))
        return np.asarray(weights / sizes[:, None])


def discriminants(rows: Rows, columns: list[int], *, quick: bool) -> Iterator[Discriminant]:
    """Yield discriminants of several kinds of features, for rows that begin with one data set's.

    `quick`: of the first kind only, as for bits, of which all kinds give the same discriminant.
    """
    every = -(-len(rows) // TUNING.view_outputs)
    sample = rows[::every][:, columns].astype(np.float64)
    medians, spreads = median_and_spread(sample)
    scales = 1 / np.maximum(spreads, np.finfo(np.float64).tiny)
    kinds = {"the parts": _Features(columns, medians, scales, _FARTHEST)}
    if not (quick or all(len(np.unique(part)) <= 2 for part in sample.T)):
        steps = _grid_steps(sample)
        plain = _Features(columns, _middles(sample, medians, steps), scales, _FARTHEST)
        few = sample[: max(1, min(len(sample) // 2, TUNING.clip_work // len(columns)))]
        noise = np.nan_to_num((few - medians) * scales)
        clips = _best_clips(noise - np.median(noise, axis=0), steps * scales)
        if (clips < _FARTHEST).any():
            kinds["the parts, each clipped"] = replace(plain, scales=scales / clips, limit=1.0)
        distances = replace(plain, with_distances=True)
        kinds["the parts and their distances from the middle"] = distances
    for words, features in kinds.items():
        if features.width <= TUNING.most_discriminant_features:
            yield Discriminant(words, features)


def _middles(sample: Floats, medians: Floats, steps: Floats) -> Floats:
    """Return the middle of each column: that of counts may lie half way to the next number.

    It is in the middle of the numbers that equal the median, if these fill a step evenly.
    """
    above, below = (sample > medians).sum(axis=0), (sample < medians).sum(axis=0)
    equal = np.maximum((sample == medians).sum(axis=0), 1)
    return np.asarray(medians + steps * np.clip((above - below) / (2 * equal), -0.5, 0.5))


def _grid_steps(sample: Floats) -> Floats:
    """Return the least distance of two numbers of each column, 0 if none differ."""
    gaps = np.diff(np.sort(sample[: TUNING.column_edge_outputs], axis=0), axis=0)
    least = np.where(gaps > 0, gaps, np.inf).min(axis=0, initial=np.inf)
    return np.where(np.isfinite(least), least, 0.0)


def _best_clips(noise: Floats, steps: Floats) -> Floats:
    """Return the size at which to clip each column, so that its mean shows a small move best.

    That depends on the tails of its noise: clipping suits long ones, and loses much of normal ones.
    Numbers on a grid move by its steps.
    """
    sizes, half = np.abs(noise), np.clip(steps, _LEAST_STEP, 1.0) / 2
    best, most = np.full(sizes.shape[1], _FARTHEST), np.zeros(sizes.shape[1])
    for clip in (_FARTHEST, *TUNING.discriminant_clips):
        after, before = np.minimum(sizes + half, clip), np.clip(sizes - half, -clip, clip)
        variance = (after * after + before * before).mean(axis=0)
        shown = ((after - before).mean(axis=0) / half) ** 2 / np.maximum(variance, 1e-300)
        if clip == _FARTHEST:
            shown *= TUNING.least_gain_of_clip
        best[shown > most] = clip
        most = np.maximum(shown, most)
    return best


@dataclass(frozen=True)
class _Features:
    """Clipped deviations of columns from their medians, and perhaps the sizes of these."""

    columns: list[int]
    centres: Floats
    scales: Floats
    limit: float
    with_distances: bool = False

    @property
    def width(self) -> int:
        """The number of features."""
        return (1 + self.with_distances) * len(self.columns)

    def __call__(self, rows: Rows) -> Floats:
        """Return the features of each row; a missing part counts as the median."""
        x, limit = np.empty((len(rows), self.width)), self.limit
        numbers = zip(self.columns, self.centres.tolist(), self.scales.tolist(), strict=True)
        for k, (j, centre, scale) in enumerate(numbers):
            _fill_feature(column_of(rows, j), centre, scale, limit, x[:, k :: len(self.columns)])
        return x

    def projection(self, weights: Floats) -> Take:
        """Return a function that gives the discriminant with these weights.

        It adds in the order of the columns, as `discriminant` does, so that both round alike.
        """
        d = len(self.columns)
        of_parts, of_distances = weights[:d].tolist(), weights[d:].tolist() or [0.0] * d

        def project(block: Block) -> Floats:
            out = np.zeros(len(block.rows))
            for i, j in enumerate(self.columns):
                centre, scale = float(self.centres[i]), float(self.scales[i])
                column, both = column_of(block.rows, j), (of_parts[i], of_distances[i])
                _add_weighted(column, centre, scale, self.limit, *both, out)
            return out

        return project

    def source(self, weights: Floats) -> str:
        """Return the discriminant with these weights in Python."""
        d = len(self.columns)
        lists = (j - 1 for j in self.columns), self.centres, self.scales, weights[:d], weights[d:]
        indices, centres, scales, of_parts, of_distances = map(listing, lists)
        options = f", {of_distances}" if self.with_distances else ""
        shown = f"{indices}, {centres}, {scales}, {self.limit}, {of_parts}{options}"
        return f"discriminant({{z}}, {shown})"


@compile_kernel
def _fill_feature(column: Rows, centre: float, scale: float, limit: float, out: Floats) -> None:
    """Fill in the deviations of a part, and their sizes where `out` has a second column."""
    for i in range(column.size):
        x = (np.float64(column[i]) - centre) * scale
        out[i, 0] = min(max(x, -limit), limit) if x == x else 0.0  # noqa: PLR0124 - NaN is not equal to itself
    if out.shape[1] > 1:
        for i in range(column.size):
            out[i, 1] = abs(out[i, 0])


@compile_kernel
def _add_sums(x: Floats, count0: Floats, count1: Floats, sums: Floats) -> None:
    """Add the weighted sums of the columns of some rows for either data set."""
    for i in range(x.shape[0]):
        for a in range(x.shape[1]):
            sums[0, a] += count0[i] * x[i, a]
            sums[1, a] += count1[i] * x[i, a]


@compile_kernel
def _add_weighted(
    column: Rows,
    centre: float,
    scale: float,
    limit: float,
    weight: float,
    of_distance: float,
    out: Floats,
) -> None:
    """Add the weighted deviation of a part, and its weighted size, to each number of `out`."""
    for i in range(column.size):
        x = (np.float64(column[i]) - centre) * scale
        size = min(max(x, -limit), limit) if x == x else 0.0  # noqa: PLR0124 - NaN is not equal to itself
        out[i] = (out[i] + size * weight) + abs(size) * of_distance


def parity_views(sample0: Rows, sample1: Rows, names: Sequence[str]) -> list[View]:
    """Return parities of two and three bits: those that differ most between two data sets."""
    both = np.concatenate([sample0, sample1])
    bits = [j for j in range(1, both.shape[1]) if len(np.unique(both[:, j])) == 2]
    if len(bits) < 2:
        return []
    bits = bits[: TUNING.parity_bits]
    high = both[:, bits].max(axis=0)
    n = len(sample0)
    # The bits of each column in words; the rows of the two data sets do not share a word.
    packed = [np.packbits((x[:, bits] == high).T, axis=1) for x in (sample0, sample1)]
    words0, words1 = (np.pad(x, ((0, 0), (0, -x.shape[1] % 8))).view(np.uint64) for x in packed)

    def moves(rest: int, *chosen: int) -> list[tuple[float, tuple[int, ...]]]:
        shares = [
            np.bitwise_count(np.bitwise_xor.reduce(words[[*chosen]], axis=0) ^ words[rest:]).sum(1)
            for words in (words0, words1)
        ]
        difference = np.abs(np.subtract(*shares, dtype=np.float64)) / n
        return [(x, (*chosen, rest + k)) for k, x in enumerate(difference.tolist())]

    subsets = [move for i in range(len(bits)) for move in moves(i + 1, i)]
    for i, j in combinations(range(len(bits)), 2):
        subsets += moves(j + 1, i, j)
    best = [subset for _, subset in sorted(subsets, reverse=True)[: TUNING.parities_viewed]]
    return [_parity_view([bits[k] for k in subset], high[[*subset]], names) for subset in best]


def _parity_view(columns: list[int], high: Floats, names: Sequence[str]) -> View:
    def take(block: Block) -> Floats:
        flags = [block.rows[:, j] == most for j, most in zip(columns, high, strict=True)]
        return np.asarray(np.logical_xor.reduce(flags), dtype=np.float64)

    words = f"the parity of {' and '.join(names[j] for j in columns)}"
    source = f"parity({{z}}, {listing(j - 1 for j in columns)}, {listing(high)})"
    return View(words, CODES, take, source=source)
