"""Likelihood ratios learned from releases: step functions of one number, and weighted sums of them.

Each number falls into a cell, and each cell has a log likelihood ratio: the logarithm of its
frequency at one data set over that at the other. A sum over several numbers is the exact ratio if
they are independent (naive Bayes). Otherwise a logistic regression gives the weights.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.kernels import compile_kernel

Cells = NDArray[np.uint16]

_INTERVALS: Final = TUNING.lookup_intervals  # Numba needs a constant of the module.
_LEAST_VARIANCE: Final = 1e-30  # So that the slope of numbers without noise is finite.
_MOST_RATIOS: Final = 3  # Most ratios of 16-bit integers that are chosen by comparisons.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Fibonacci hashing.


@dataclass(frozen=True)
class Steps:
    """A step function: one log likelihood ratio for each cell between two edges.

    `free`: each ratio was learned separately, and depends more on chance than monotone ones.
    `ordered_span`: the ratios of codes that differ by less than this only rise or only fall.
    """

    edges: Floats
    ratios: Floats
    free: bool = False
    ordered_span: int = 0

    def add_of_cells(self, cells: Cells, weight: float, total: Floats) -> None:
        """Add the weighted ratio of each cell to its total."""
        _add(cells, self.ratios, weight, total)

    def add_of_integers(
        self, x: NDArray[np.floating] | NDArray[np.int16], weight: float, total: Floats
    ) -> None:
        """Add the weighted ratio of each integer to its total."""
        x = np.ascontiguousarray(x)
        if self._jumps is None:
            _add(x.view(np.uint16), self._of_integers, weight, total)
        else:
            ends, ratios = self._jumps
            _add_between(x, ends, weight * ratios, total)

    @cached_property
    def _of_integers(self) -> Floats:
        """The ratios of all 16-bit integers, with the negative ones at the end."""
        integers = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
        return np.asarray(self.ratios[find_cells(self.edges, integers)])

    @cached_property
    def _jumps(self) -> tuple[NDArray[np.int16], Floats] | None:
        """The two 16-bit integers from which on the ratio changes, and the three ratios.

        None if it changes more often. Those of bits change once: then both integers are equal.
        """
        ratios = np.roll(self._of_integers, 1 << 15)  # In increasing order of the integers.
        starts = [0, *(1 + np.flatnonzero(ratios[1:] != ratios[:-1]))]
        if len(starts) > _MOST_RATIOS:
            return None
        starts = [0] * (_MOST_RATIOS - len(starts)) + starts
        return (np.array(starts[1:]) - (1 << 15)).astype(np.int16), ratios[starts]


def find_cells(edges: Floats, x: NDArray[np.floating] | NDArray[np.int16]) -> Cells:
    """Return the cell of each number: the number of edges up to it. NaN is in the last cell.

    >>> find_cells(np.array([0.0, 1.0, np.inf]), np.array([-5.0, -0.0, 0.5, 1.0, np.inf, np.nan]))
    array([0, 1, 1, 2, 3, 3], dtype=uint16)
    """
    numbers = np.ascontiguousarray(x, dtype=np.float64)
    low, scale, starts, keys, key_cells, shift = _index(edges.tobytes())
    intervals, cells = _intervals_of(numbers, low, scale), np.empty(len(numbers), dtype=np.uint16)
    _find_cells(numbers, intervals, edges, starts, keys, key_cells, shift, cells)
    return cells


@lru_cache(maxsize=512)
def _index(edges: bytes) -> tuple[float, float, Cells, Floats, Cells, np.uint64]:
    """Return lookup tables that find the cell of most numbers in one step.

    Intervals of equal width divide the range of the edges. A number is compared only with the edges
    in its interval, because the number of edges below is known. A hash table has the cells of
    single numbers.
    """
    numbers = np.frombuffer(edges)
    tail = int(TUNING.lookup_tail * len(numbers))
    low, high = numbers[tail], numbers[max(tail, len(numbers) - 2 - tail)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.divide(_INTERVALS, high - low)
    edges_in = np.bincount(_intervals_of(numbers, low, scale), minlength=_INTERVALS + 2)
    starts = np.append(0, edges_in.cumsum()).astype(np.uint16)
    singles = np.flatnonzero(np.nextafter(numbers[:-1], np.inf) == numbers[1:])
    bits = (TUNING.hash_slots * len(singles) + 1).bit_length()
    shift = np.uint64(64 - bits)
    slots = (numbers[singles].view(np.uint64) * _FACTOR) >> shift
    keys, cells = np.full(1 << bits, np.nan), np.zeros(1 << bits, dtype=np.uint16)
    keys[slots], cells[slots] = numbers[singles], singles + 1
    return float(low), float(scale), starts, keys, cells, shift


@compile_kernel
def _intervals_of(numbers: Floats, low: float, scale: float) -> NDArray[np.int32]:
    """Return the interval of each number, in increasing order; NaN is in the last one."""
    intervals = np.empty(numbers.size, dtype=np.int32)
    for i in range(numbers.size):
        interval = (numbers[i] - low) * scale
        interval = interval if interval > 0 else 0.0
        interval = interval if interval < _INTERVALS else float(_INTERVALS)
        is_number = numbers[i] == numbers[i]  # False only for NaN.
        intervals[i] = np.int32(interval) if is_number else np.int32(_INTERVALS + 1)
    return intervals


@compile_kernel
def _find_cells(
    numbers: Floats,
    intervals: NDArray[np.int32],
    edges: Floats,
    starts: Cells,
    keys: Floats,
    key_cells: Cells,
    shift: np.uint64,
    cells: Cells,
) -> None:
    words = numbers.view(np.uint64)
    for i in range(numbers.size):
        number = numbers[i]
        first, last = np.intp(starts[intervals[i]]), np.intp(starts[intervals[i] + 1])
        if first < last:
            slot = (words[i] * _FACTOR) >> shift
            if keys[slot] == number:
                first = last = np.intp(key_cells[slot])
            while first < last:
                middle = (first + last) >> 1
                if number < edges[middle]:
                    last = middle
                else:
                    first = middle + 1
        cells[i] = first


@compile_kernel
def _add_between(
    x: NDArray[np.floating] | NDArray[np.int16],
    ends: NDArray[np.int16],
    terms: Floats,
    total: Floats,
) -> None:
    """Add the first term to the totals of numbers below both ends, and the last to those above."""
    first, last = ends[0], ends[1]
    low, middle, high = terms[0], terms[1], terms[2]
    for i in range(x.size):  # Without reading a table, LLVM vectorises it.
        total[i] += low if x[i] < first else middle if x[i] < last else high


@compile_kernel
def _add(cells: Cells, ratios: Floats, weight: float, total: Floats) -> None:
    for i in range(cells.size):
        total[i] += weight * ratios[cells[i]]


def tail_shares(log_odds: float, count: int) -> Floats:
    """Return probabilities at equal steps of their log odds, which are denser in the tails."""
    return np.asarray(special.expit(np.linspace(-log_odds, log_odds, count)))


def edges_of(x: Floats, repeats: Floats, *shares: Floats) -> list[Floats]:
    """Return edges with a cell for each frequent number, and cells at quantiles of the others.

    `repeats` has the count of each number. Each list of quantile levels in `shares` gives edges.

    >>> edges_of(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([0.5]))[0].tolist()
    [1.0, 1.0000000000000002, 2.0, 2.0000000000000004, inf]
    """
    finite = np.isfinite(x)
    values, seen = _distinct_numbers(x[finite], repeats[finite])
    return [_edges_by_shares(values, seen, levels) for levels in shares]


def _edges_by_shares(values: Floats, seen: Floats, shares: Floats) -> Floats:
    most = TUNING.numbers_with_cells
    if len(values) <= most:
        return _edges(values)
    cells = len(shares) + 1
    frequent = seen > max(8.0, min(seen.sum() / (8 * cells), 8 * seen.mean()))
    if frequent.sum() > most:
        frequent &= seen >= np.partition(seen, -most)[-most]
    rest, below = values[~frequent], seen[~frequent].cumsum()
    enough = len(rest) > 0 and below[-1] > cells
    cuts = rest[np.searchsorted(below, shares * below[-1])] if enough else rest[:0]
    return _edges(values[frequent], cuts)


def edges_of_codes(x: Floats, repeats: Floats) -> Floats:
    """Return edges with a separate cell for each of the most frequent codes."""
    values, seen = _distinct_numbers(x, repeats)
    frequent = np.argsort(-seen, kind="stable")[: TUNING.codes_with_cells]
    return _edges(np.sort(values[frequent]))


def _distinct_numbers(x: Floats, repeats: Floats) -> tuple[Floats, Floats]:
    """Return the distinct numbers, and the count of each."""
    if (repeats == 1).all():  # Without weights, np.unique is faster.
        values, seen = np.unique(x, return_counts=True)
        return values, seen.astype(np.float64)
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(x)])
    return ordered[first], np.add.reduceat(repeats[order], first) if len(x) else repeats[:0]


def _edges(points: Floats, cuts: Floats | None = None) -> Floats:
    others = np.array([np.inf]) if cuts is None else np.append(cuts, np.inf)
    return np.unique(np.concatenate([points, np.nextafter(points, np.inf), others]))


def fit_steps(edges: Floats, c0: Floats, c1: Floats, ordered_span: int = 0) -> Steps:
    """Learn the ratio of each cell separately, shrunk towards zero by its standard error.

    Each cell was seen c0 times at one data set, and c1 times at the other. The ratios of codes that
    differ by less than `ordered_span` only rise or only fall.
    """
    all0, all1 = c0.sum(), c1.sum()
    if ordered_span:
        c0, c1 = c0.copy(), c1.copy()
        # Every other cell is a code's cell, as `edges_of_codes` makes them.
        codes = np.arange(1, len(edges), 2)
        for group in np.split(codes, 1 + np.flatnonzero(np.diff(edges[codes - 1]) >= ordered_span)):
            if len(group) > 1:
                c0[group], c1[group] = _pool_monotone(c0[group], c1[group])
    ratio = np.log((c0 + 0.5) / (all0 + 1)) - np.log((c1 + 0.5) / (all1 + 1))
    error = np.sqrt(1 / (c0 + 1) + 1 / (c1 + 1))
    shrunk = np.sign(ratio) * np.maximum(0.0, np.abs(ratio) - TUNING.ratio_shrinkage * error)
    return Steps(edges, shrunk, free=True, ordered_span=ordered_span)


def fit_rising_steps(edges: Floats, c0: Floats, c1: Floats) -> Steps:
    """Learn monotone ratios: neighbouring cells that violate the order are pooled.

    Pooling (Ayer and others 1955) gives the monotone ratios of maximum likelihood, so that few
    releases suffice for fine cells. The best event is then mostly a threshold of the number.
    """
    pooled0, pooled1 = _pool_monotone(c0, c1)
    ratios = np.log((pooled0 + 0.5) / (pooled1 + 0.5)) + np.log(c1.sum() / c0.sum())
    return Steps(edges, ratios)


def fit_line(edges: Floats, c0: Floats, c1: Floats) -> Steps:
    """Learn ratios that are linear in the number: those of two normal laws of equal variance.

    Few releases suffice for them beyond all numbers that were seen, where an event may be best.
    """
    ends = edges[:-1]
    middles = np.concatenate([ends[:1], (ends[:-1] + ends[1:]) / 2, ends[-1:], [np.nan]])
    known = np.isfinite(middles)
    x, shares = middles[known], [c[known] / max(c[known].sum(), 1.0) for c in (c0, c1)]
    mean0, mean1 = (float(share @ x) for share in shares)
    variance = sum(
        float(share @ (x - mean) ** 2) for share, mean in zip(shares, (mean0, mean1), strict=True)
    )
    slope = 2 * (mean0 - mean1) / max(variance, _LEAST_VARIANCE)
    return Steps(edges, np.nan_to_num(slope * (middles - (mean0 + mean1) / 2), nan=0.0))


def refit_steps(step: Steps, c0: Floats, c1: Floats) -> Steps:
    """Learn the ratios of the same cells from other releases."""
    if not step.free:
        return fit_rising_steps(step.edges, c0, c1)
    return fit_steps(step.edges, c0, c1, step.ordered_span)


@compile_kernel
def count_by_cell(
    edges: Floats, cells: Cells, count0: Floats, count1: Floats
) -> tuple[Floats, Floats]:
    """Return the count of each cell at one data set and at the other."""
    c0, c1 = np.zeros(edges.size + 1), np.zeros(edges.size + 1)
    for i in range(cells.size):
        c0[cells[i]] += count0[i]
        c1[cells[i]] += count1[i]
    return c0, c1


def count_above_and_below(
    cuts: Floats, score: Floats, count0: Floats, count1: Floats
) -> tuple[list[Floats], list[Floats]]:
    """Return the counts of scores above and below each cut, at either data set.

    >>> score, count0 = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])
    >>> count_above_and_below(np.array([2.0]), score, count0, np.zeros(3))
    ([array([4.]), array([0.])], [array([1.]), array([0.])])
    """
    edges = _edges(cuts)
    seen = [c.cumsum() for c in count_by_cell(edges, find_cells(edges, score), count0, count1)]
    at, after = np.searchsorted(edges, cuts), np.searchsorted(edges, np.nextafter(cuts, np.inf))
    return [c[-1] - c[after] for c in seen], [c[at] for c in seen]


def _pool_monotone(c0: Floats, c1: Floats) -> tuple[Floats, Floats]:
    """Pool counts until their ratios only rise or only fall, whichever is likelier."""
    falling = _pool_counts(c0[::-1].copy(), c1[::-1].copy())
    directions = _pool_counts(c0, c1), (falling[0][::-1], falling[1][::-1])

    def likelihood(pooled: tuple[Floats, Floats]) -> float:
        share = (pooled[0] + 0.5) / (pooled[0] + pooled[1] + 1)
        return float(c0 @ np.log(share) + c1 @ np.log1p(-share))

    return max(directions, key=likelihood)


@compile_kernel
def _pool_counts(c0: Floats, c1: Floats) -> tuple[Floats, Floats]:
    """Return for each cell the counts of the block of cells that it is pooled with.

    This takes 2 to 6 microseconds for 16 to 500 cells, SciPy's isotonic_regression 39 to 58. SciPy
    also rejects cells without counts, and splits some ties, because it compares rounded means.
    """
    pooled0, pooled1, starts = np.empty_like(c0), np.empty_like(c1), np.empty(c0.size, np.int64)
    blocks = 0
    for i in range(c0.size):
        at0, at1, start = c0[i], c1[i], i
        # A cell is pooled with the block before it, while the ratio of that is not smaller.
        while blocks and pooled0[blocks - 1] * at1 >= at0 * pooled1[blocks - 1]:
            blocks -= 1
            at0, at1, start = at0 + pooled0[blocks], at1 + pooled1[blocks], starts[blocks]
        pooled0[blocks], pooled1[blocks], starts[blocks] = at0, at1, start
        blocks += 1
    last = c0.size
    for block in range(blocks - 1, -1, -1):
        # A block's index is at most that of its cells, so none is overwritten before it is read.
        at0, at1 = pooled0[block], pooled1[block]
        for i in range(starts[block], last):
            pooled0[i], pooled1[i] = at0, at1
        last = starts[block]
    return pooled0, pooled1


def fit_logistic_curve(score: Floats, c0: Floats, c1: Floats) -> Floats:
    """Fit a logistic curve to the share of c0 in c0 + c1; return it for each cell of a score."""
    centred = score - score.mean()
    X = np.column_stack([centred, np.ones(len(score))])
    w = np.zeros(2)
    for _ in range(TUNING.curve_steps):
        p = special.expit(X @ w)
        slope = X.T @ (c0 - (c0 + c1) * p)
        curvature = (X.T * np.maximum((c0 + c1) * p * (1 - p), 1e-6)) @ X + 1e-9 * np.eye(2)
        step = np.clip(np.linalg.solve(curvature, slope), -30.0, 30.0)
        w = w + step
        if np.abs(step).max() < TUNING.newton_tolerance:
            break
    return np.asarray(special.expit(X @ w))


def fit_weights(features: Floats, count0: Floats, count1: Floats) -> Floats:
    """Fit a logistic regression, with a small penalty, and return the weights of the features.

    Newton's method starts from the weights of some of the rows, so that few steps need all.
    """
    X = np.column_stack([features, np.ones(len(features))])
    w = np.zeros(X.shape[1])
    some = len(X) // TUNING.least_regression_rows
    for stride in sorted({1, max(1, min(some, TUNING.regression_stride))}, reverse=True):
        # One memory layout, so that kernels are compiled once.
        w = _fit_from(w, *(np.ascontiguousarray(x[::stride]) for x in (X, count0, count1)))
    return np.asarray(w[:-1])


def _fit_from(w: Floats, X: Floats, count0: Floats, count1: Floats) -> Floats:
    """Return the weights of a logistic regression, by Newton's method from weights w."""
    half = np.zeros((len(w), len(w)))
    add_products(X, (count0 + count1) / 4, half)
    # At weights of zero, the curvature is a quarter of the sums of squares and products.
    squares, sums = 4 * half.diagonal(), 4 * half[-1]
    spread = np.maximum(0.0, squares - sums**2 / sums[-1])
    ridge = (TUNING.ridge * spread.mean() + 1e-9) * np.eye(len(w))
    for _ in range(TUNING.newton_steps):
        slope, variances = np.zeros(len(w)), np.empty(len(X))
        _add_slope(X, count0, count1, w, slope, variances)
        half[:] = 0.0
        add_products(X, variances, half)
        curvature = half + np.tril(half, -1).T + ridge
        step = np.linalg.solve(curvature, slope - ridge @ w)
        w = w + step
        if np.abs(step).max() < TUNING.newton_tolerance:
            break
    return w


@compile_kernel
def _add_slope(
    X: Floats, count0: Floats, count1: Floats, w: Floats, slope: Floats, variances: Floats
) -> None:
    """Add the slope of the log likelihood, and note the variance of each row's count."""
    for i in range(X.shape[0]):
        z = 0.0
        for a in range(w.size):
            z += X[i, a] * w[a]
        p, repeats = 1 / (1 + np.exp(-z)), count0[i] + count1[i]
        residual = count0[i] - repeats * p
        variances[i] = max(repeats * p * (1 - p), 1e-6)
        for a in range(w.size):
            slope[a] += residual * X[i, a]


@compile_kernel
def add_products(x: Floats, weights: Floats, out: Floats) -> None:
    """Add the weighted products of the columns of some rows to the lower triangle of `out`.

    The threads of BLAS wait for each other, which takes long where other processes are busy.
    """
    rows = x.shape[0] // 4 * 4
    for i in range(0, rows, 4):
        for a in range(x.shape[1]):
            w0, w1 = weights[i] * x[i, a], weights[i + 1] * x[i + 1, a]
            w2, w3 = weights[i + 2] * x[i + 2, a], weights[i + 3] * x[i + 3, a]
            for b in range(a + 1):
                first = w0 * x[i, b] + w1 * x[i + 1, b]
                out[a, b] += first + (w2 * x[i + 2, b] + w3 * x[i + 3, b])
    for i in range(rows, x.shape[0]):
        for a in range(x.shape[1]):
            for b in range(a + 1):
                out[a, b] += weights[i] * x[i, a] * x[i, b]
