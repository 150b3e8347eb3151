"""Likelihood ratios learned from releases: step functions of one number, and weighted sums of them.

A number falls into a cell, and each cell has the logarithm of how much more often it was seen at
one data set than at the other. A sum over several numbers is the exact likelihood ratio where they
are independent (naive Bayes); elsewhere the weights are those of a logistic regression.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats, Integers
from dpnoise.kernels import compiled

Cells = NDArray[np.uint16]

_PLACES: Final = TUNING.lookup_intervals  # A constant of the module, as Numba needs it.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Fibonacci hashing.


@dataclass(frozen=True)
class Steps:
    """A step function: what lies between two edges has one logarithm of a likelihood ratio.

    `free` says that the ratios were learned cell by cell, so that chance has more to say in them;
    `together`, that those of codes which differ by less than this rise or fall together.
    """

    edges: Floats
    ratios: Floats
    free: bool = False
    together: int = 0

    def add(
        self, x: NDArray[np.floating] | NDArray[np.int16], weight: float, total: Floats
    ) -> None:
        """Add the weighted ratio of each number to its total; a NaN has that of the last cell."""
        if x.dtype == np.int16:
            _add(np.ascontiguousarray(x).view(np.uint16), self._of_integers, weight, total)
        else:
            _add(cells_of(self.edges, x), self.ratios, weight, total)

    @cached_property
    def _of_integers(self) -> Floats:
        """The ratios of all integers of 16 bits, those below zero at the end."""
        every = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
        return np.asarray(self.ratios[cells_of(self.edges, every)])


def cells_of(edges: Floats, x: NDArray[np.floating] | NDArray[np.int16]) -> Cells:
    """Return the cell of each number: how many edges it is not below; a NaN is in the last one.

    >>> cells_of(np.array([0.0, 1.0, np.inf]), np.array([-5.0, -0.0, 0.5, 1.0, np.inf, np.nan]))
    array([0, 1, 1, 2, 3, 3], dtype=uint16)
    """
    numbers = np.ascontiguousarray(x, dtype=np.float64)
    low, scale, starts, keys, known, shift = _index(edges.tobytes())
    places, cells = _places(numbers, low, scale), np.empty(len(numbers), dtype=np.uint16)
    _find(numbers, places, edges, starts, keys, known, shift, cells)
    return cells


@lru_cache(maxsize=128)
def _index(edges: bytes) -> tuple[float, float, Cells, Floats, Cells, np.uint64]:
    """Return what tells the cell of most numbers at once.

    Places of one width divide the numbers from one edge to another, so that a number is only held
    against the edges at its place, if there are any: those below are known. And a hash table has
    the numbers that have cells of their own.
    """
    numbers = np.frombuffer(edges)
    few = int(TUNING.lookup_tail * len(numbers))
    low, high = numbers[few], numbers[max(few, len(numbers) - 2 - few)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.divide(_PLACES, high - low)
    held = np.bincount(_places(numbers, low, scale), minlength=_PLACES + 2)
    starts = np.append(0, held.cumsum()).astype(np.uint16)
    alone = np.flatnonzero(np.nextafter(numbers[:-1], np.inf) == numbers[1:])
    bits = (TUNING.hash_slots * len(alone) + 1).bit_length()
    shift = np.uint64(64 - bits)
    slots = (numbers[alone].view(np.uint64) * _FACTOR) >> shift
    keys, known = np.full(1 << bits, np.nan), np.zeros(1 << bits, dtype=np.uint16)
    keys[slots], known[slots] = numbers[alone], alone + 1
    return float(low), float(scale), starts, keys, known, shift


def _places(numbers: Floats, low: float, scale: float) -> NDArray[np.int32]:
    """Return the place of each number: larger ones have no lower, a NaN has the last."""
    places = np.empty(len(numbers), dtype=np.int32)
    _place(numbers, low, scale, places)
    return places


@compiled
def _place(numbers: Floats, low: float, scale: float, places: NDArray[np.int32]) -> None:
    for i in range(numbers.size):
        place = (numbers[i] - low) * scale
        place = place if place > 0 else 0.0
        place = place if place < _PLACES else float(_PLACES)
        is_number = numbers[i] == numbers[i]  # A NaN is not.
        places[i] = np.int32(place) if is_number else np.int32(_PLACES + 1)


@compiled
def _find(
    numbers: Floats,
    places: NDArray[np.int32],
    edges: Floats,
    starts: Cells,
    keys: Floats,
    known: Cells,
    shift: np.uint64,
    cells: Cells,
) -> None:
    words = numbers.view(np.uint64)
    for i in range(numbers.size):
        number = numbers[i]
        first, last = np.intp(starts[places[i]]), np.intp(starts[places[i] + 1])
        if first < last:
            slot = (words[i] * _FACTOR) >> shift
            if keys[slot] == number:
                first = last = np.intp(known[slot])
            while first < last:
                middle = (first + last) >> 1
                if number < edges[middle]:
                    last = middle
                else:
                    first = middle + 1
        cells[i] = first


@compiled
def _add(cells: Cells, ratios: Floats, weight: float, total: Floats) -> None:
    for i in range(cells.size):
        total[i] += weight * ratios[cells[i]]


def tail_shares(log_odds: float, count: int) -> Floats:
    """Return shares at equal steps of their log odds, closer together where few are beyond."""
    return np.asarray(special.expit(np.linspace(-log_odds, log_odds, count)))


def edges_of(x: Floats, often: Floats, *shares: Floats) -> list[Floats]:
    """Return edges that give each frequent number a cell, and divide the others by shares of them.

    `often` says how often each number was seen. For each list of shares there are edges.

    >>> edges_of(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([0.5]))[0].tolist()
    [1.0, 1.0000000000000002, 2.0, 2.0000000000000004, inf]
    """
    finite = np.isfinite(x)
    values, seen = _seen(x[finite], often[finite])
    return [_some_edges(values, seen, some) for some in shares]


def _some_edges(values: Floats, seen: Floats, shares: Floats) -> Floats:
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


def edges_of_codes(x: Floats, often: Floats) -> Floats:
    """Return edges that give each of the most frequent codes a cell of its own."""
    values, seen = _seen(x, often)
    frequent = np.argsort(-seen, kind="stable")[: TUNING.codes_with_cells]
    return _edges(np.sort(values[frequent]))


def _seen(x: Floats, often: Floats) -> tuple[Floats, Floats]:
    """Return the different numbers, and how often each was seen."""
    if (often == 1).all():  # Without weights there is less to be sorted.
        values, seen = np.unique(x, return_counts=True)
        return values, seen.astype(np.float64)
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(x)])
    return ordered[first], np.add.reduceat(often[order], first) if len(x) else often[:0]


def _edges(points: Floats, cuts: Floats | None = None) -> Floats:
    others = np.array([np.inf]) if cuts is None else np.append(cuts, np.inf)
    return np.unique(np.concatenate([points, np.nextafter(points, np.inf), others]))


def steps(edges: Floats, c0: Floats, c1: Floats, together: int = 0) -> Steps:
    """Learn the ratio of each cell by itself, drawn to zero by its own standard error.

    Each cell was seen c0 times at one data set, and c1 times at the other. The ratios of codes that
    differ by less than `together` only rise or only fall.
    """
    all0, all1 = c0.sum(), c1.sum()
    if together:
        c0, c1 = c0.copy(), c1.copy()
        # Every other cell is a code's, as `edges_of_codes` has them.
        codes = np.arange(1, len(edges), 2)
        for group in np.split(codes, 1 + np.flatnonzero(np.diff(edges[codes - 1]) >= together)):
            c0[group], c1[group] = _pool_monotone(c0[group], c1[group])
    ratio = np.log((c0 + 0.5) / (all0 + 1)) - np.log((c1 + 0.5) / (all1 + 1))
    error = np.sqrt(1 / (c0 + 1) + 1 / (c1 + 1))
    shrunk = np.sign(ratio) * np.maximum(0.0, np.abs(ratio) - TUNING.ratio_shrinkage * error)
    return Steps(edges, shrunk, free=True, together=together)


def rising_steps(edges: Floats, c0: Floats, c1: Floats) -> Steps:
    """Learn ratios that only rise or only fall: neighbours that do not are pooled.

    Pooling (Ayer and others 1955) finds the likeliest such ratios, so that few releases suffice for
    fine cells. A plain threshold of a number is what it mostly comes to.
    """
    pooled0, pooled1 = _pool_monotone(c0, c1)
    ratios = np.log((pooled0 + 0.5) / (pooled1 + 0.5)) + np.log(c1.sum() / c0.sum())
    return Steps(edges, ratios)


def relearn_steps(step: Steps, c0: Floats, c1: Floats) -> Steps:
    """Learn the ratios of the same cells from other releases."""
    if not step.free:
        return rising_steps(step.edges, c0, c1)
    return steps(step.edges, c0, c1, step.together)


def counts(edges: Floats, cells: Cells, often0: Floats, often1: Floats) -> tuple[Floats, Floats]:
    """Return how often each cell was seen at one data set and at the other."""
    c0, c1 = np.zeros((2, len(edges) + 1))
    _count(cells, often0, often1, c0, c1)
    return c0, c1


@compiled
def _count(cells: Cells, often0: Floats, often1: Floats, c0: Floats, c1: Floats) -> None:
    for i in range(cells.size):
        c0[cells[i]] += often0[i]
        c1[cells[i]] += often1[i]


def sides(
    cuts: Floats, score: Floats, often0: Floats, often1: Floats
) -> tuple[list[Floats], list[Floats]]:
    """Return how often a score was seen above and below each of some cuts, at either data set.

    >>> sides(np.array([2.0]), np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]), np.zeros(3))
    ([array([4.]), array([0.])], [array([1.]), array([0.])])
    """
    edges = _edges(cuts)
    seen = [c.cumsum() for c in counts(edges, cells_of(edges, score), often0, often1)]
    at, after = np.searchsorted(edges, cuts), np.searchsorted(edges, np.nextafter(cuts, np.inf))
    return [c[-1] - c[after] for c in seen], [c[at] for c in seen]


def _pool_monotone(c0: Floats, c1: Floats) -> tuple[Floats, Floats]:
    """Pool counts until their ratios only rise, or until they only fall, whichever is likelier."""
    falling = _pool_counts(c0[::-1].copy(), c1[::-1].copy())
    either = _pool_counts(c0, c1), (falling[0][::-1], falling[1][::-1])

    def likelihood(pooled: tuple[Floats, Floats]) -> float:
        share = (pooled[0] + 0.5) / (pooled[0] + pooled[1] + 1)
        return float(c0 @ np.log(share) + c1 @ np.log1p(-share))

    return max(either, key=likelihood)


def _pool_counts(c0: Floats, c1: Floats) -> tuple[Floats, Floats]:
    """Return for each cell the counts of the block of cells that it is pooled with.

    This takes 2 to 6 microseconds for 16 to 500 cells, SciPy's isotonic_regression 39 to 58. That
    one takes no cells without counts, and splits some ties, as it compares rounded means.
    """
    pooled0, pooled1 = np.empty_like(c0), np.empty_like(c1)
    _pool(c0, c1, pooled0, pooled1, np.empty(len(c0), dtype=np.int64))
    return pooled0, pooled1


@compiled
def _pool(c0: Floats, c1: Floats, pooled0: Floats, pooled1: Floats, starts: Integers) -> None:
    """Pool a cell with the block before it, while that has as large a ratio."""
    blocks = 0
    for i in range(c0.size):
        at0, at1, start = c0[i], c1[i], i
        while blocks and pooled0[blocks - 1] * at1 >= at0 * pooled1[blocks - 1]:
            blocks -= 1
            at0, at1, start = at0 + pooled0[blocks], at1 + pooled1[blocks], starts[blocks]
        pooled0[blocks], pooled1[blocks], starts[blocks] = at0, at1, start
        blocks += 1
    last = c0.size
    for block in range(blocks - 1, -1, -1):
        # Blocks stand before their cells, so that none is written over before it is read.
        at0, at1 = pooled0[block], pooled1[block]
        for i in range(starts[block], last):
            pooled0[i], pooled1[i] = at0, at1
        last = starts[block]


def fit_logistic_curve(score: Floats, c0: Floats, c1: Floats) -> Floats:
    """Return, for cells of a score, the share of c0 in c0 + c1 as a logistic curve has it."""
    middle = score - score.mean()
    X = np.column_stack([middle, np.ones(len(score))])
    w = np.zeros(2)
    for _ in range(TUNING.newton_steps):
        p = special.expit(X @ w)
        slope = X.T @ (c0 - (c0 + c1) * p)
        curvature = (X.T * np.maximum((c0 + c1) * p * (1 - p), 1e-6)) @ X + 1e-9 * np.eye(2)
        w = w + np.clip(np.linalg.solve(curvature, slope), -30.0, 30.0)
    return np.asarray(special.expit(X @ w))


def weights(features: Floats, often0: Floats, often1: Floats) -> Floats:
    """Fit a logistic regression, with a small penalty, and return the weights of the features."""
    X = np.column_stack([features, np.ones(len(features))])
    w, ridge = np.zeros(X.shape[1]), np.zeros(0)
    for _ in range(TUNING.newton_steps):
        slope, half = np.zeros(len(w)), np.zeros((len(w), len(w)))
        _descend(X, often0, often1, w, slope, half)
        curvature = half + np.tril(half, -1).T
        if not len(ridge):
            # Without weights, the curvature is a quarter of the sums of squares, and of X itself.
            squares, sums = 4 * curvature.diagonal(), 4 * curvature[-1]
            spread = np.maximum(0.0, squares - sums**2 / sums[-1])
            ridge = TUNING.ridge * spread.mean() * np.eye(len(w))
        curvature += ridge + 1e-9 * np.eye(len(w))
        step = np.linalg.solve(curvature, slope - ridge @ w)
        w = w + step
        if np.abs(step).max() < TUNING.newton_tolerance:
            break
    return np.asarray(w[:-1])


@compiled
def _descend(
    X: Floats, often0: Floats, often1: Floats, w: Floats, slope: Floats, half: Floats
) -> None:
    """Add up the slope of a likelihood, and its curvature, up to the diagonal.

    By itself: matrices so narrow are no quicker with BLAS, whose threads wait for each other.
    """
    for i in range(X.shape[0]):
        z = 0.0
        for a in range(w.size):
            z += X[i, a] * w[a]
        p, often = 1 / (1 + np.exp(-z)), often0[i] + often1[i]
        away, steep = often0[i] - often * p, max(often * p * (1 - p), 1e-6)
        for a in range(w.size):
            slope[a] += away * X[i, a]
            for b in range(a + 1):
                half[a, b] += steep * X[i, a] * X[i, b]
