"""Likelihood ratios learned from releases: step functions of one number, and weighted sums of them.

A number falls into a cell, and each cell has the logarithm of how much more often it was seen at
one data set than at the other. A sum over several numbers is the exact likelihood ratio where they
are independent (naive Bayes); elsewhere the weights are those of a logistic regression.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Cells = NDArray[np.uint16]

_FEW: Final = 256  # Numbers that each have a cell of their own.
_MOST: Final = 4096  # Cells for codes of patterns, the most frequent ones.
_CAUTION: Final = 1.0  # Standard errors by which a ratio is drawn to nothing.
_STEPS: Final = 6  # Of Newton's method.
_RIDGE: Final = 1e-3  # The weight of the penalty on weights, for each release.


@dataclass(frozen=True)
class Steps:
    """A step function: what lies between two edges has one logarithm of a likelihood ratio.

    `free` says that the ratios were learned cell by cell, so that chance has more to say in them.
    """

    edges: Floats
    ratios: Floats
    free: bool = False

    def add(self, x: NDArray[Any], weight: float, total: Floats) -> None:
        """Add the weighted ratio of each number to its total; a NaN has that of the last cell."""
        if x.dtype == np.int16:
            total += (weight * self._of_integers)[x]
        else:
            total += (weight * self.ratios)[cells_of(self.edges, x)]

    @cached_property
    def _of_integers(self) -> Floats:
        """The ratios of all integers of 16 bits, those below zero at the end."""
        every = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
        result: Floats = self.ratios[cells_of(self.edges, every)]
        return result


def cells_of(edges: Floats, x: NDArray[Any]) -> Cells:
    """Return the cell of each number: how many edges it is not below; a NaN is in the last one."""
    return np.searchsorted(edges, x, side="right").astype(np.uint16)


def edges_of(x: Floats, often: Floats, *cells: int) -> list[Floats]:
    """Return edges that give each frequent number a cell, and the others cells of equal shares.

    `often` says how often each number was seen. For each number of cells there are edges.

    Examples
    --------
    >>> edges_of(np.array([1.0, 2.0]), np.array([1.0, 2.0]), 4)[0].tolist()
    [1.0, 1.0000000000000002, 2.0, 2.0000000000000004, inf]
    """
    finite = np.isfinite(x)
    values, seen = _seen(x[finite], often[finite])
    return [_some_edges(values, seen, few) for few in cells]


def _some_edges(values: Floats, seen: Floats, cells: int) -> Floats:
    if len(values) <= _FEW:
        return _edges(values)
    frequent = seen > max(8.0, min(seen.sum() / (8 * cells), 8 * seen.mean()))
    if frequent.sum() > _FEW:
        frequent &= seen >= np.partition(seen, -_FEW)[-_FEW]
    rest, below = values[~frequent], seen[~frequent].cumsum()
    parts = np.arange(1, cells) / cells
    enough = len(rest) > 0 and below[-1] > cells
    cuts = rest[np.searchsorted(below, parts * below[-1])] if enough else rest[:0]
    return _edges(values[frequent], cuts)


def edges_of_codes(x: Floats, often: Floats) -> Floats:
    """Return edges that give each of the most frequent codes a cell of its own."""
    values, seen = _seen(x, often)
    frequent = np.argsort(-seen, kind="stable")[:_MOST]
    return _edges(np.sort(values[frequent]))


def _seen(x: Floats, often: Floats) -> tuple[Floats, Floats]:
    """Return the different numbers, and how often each was seen."""
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(x)])
    return ordered[first], np.add.reduceat(often[order], first) if len(x) else often[:0]


def _edges(points: Floats, cuts: Floats | None = None) -> Floats:
    others = np.array([np.inf]) if cuts is None else np.append(cuts, np.inf)
    return np.unique(np.concatenate([points, np.nextafter(points, np.inf), others]))


def steps(edges: Floats, cells: Cells, often0: Floats, often1: Floats) -> Steps:
    """Learn the ratio of each cell by itself, drawn to zero by its own standard error.

    What is in each of `cells` was seen so often at one data set, and so often at the other.
    """
    c0, c1 = counts(edges, cells, often0, often1)
    ratio = np.log((c0 + 0.5) / (c0.sum() + 1)) - np.log((c1 + 0.5) / (c1.sum() + 1))
    error = np.sqrt(1 / (c0 + 1) + 1 / (c1 + 1))
    shrunk = np.sign(ratio) * np.maximum(0.0, np.abs(ratio) - _CAUTION * error)
    return Steps(edges, shrunk, free=True)


def rising_steps(edges: Floats, cells: Cells, often0: Floats, often1: Floats) -> Steps:
    """Learn ratios that only rise or only fall: neighbours that do not are pooled.

    Pooling (Ayer and others 1955) finds the likeliest such ratios, so that few releases suffice for
    fine cells. A plain threshold of a number is what it mostly comes to.
    """
    c0, c1 = counts(edges, cells, often0, often1)
    either = [_pooled(*(c[::way] for c in (c0, c1)))[::way] for way in (1, -1)]
    share = max(either, key=lambda p: float(c0 @ np.log(p) + c1 @ np.log1p(-p)))
    return Steps(edges, special.logit(share) + np.log(c1.sum() / c0.sum()))


def relearned(step: Steps, cells: Cells, often0: Floats, often1: Floats) -> Steps:
    """Learn the ratios of the same cells from other releases."""
    return (steps if step.free else rising_steps)(step.edges, cells, often0, often1)


def counts(edges: Floats, cells: Cells, often0: Floats, often1: Floats) -> tuple[Floats, Floats]:
    """Return how often each cell was seen at one data set and at the other."""
    size = len(edges) + 1
    c0, c1 = (np.bincount(cells, often, size) for often in (often0, often1))
    return c0.astype(np.float64), c1.astype(np.float64)


def _pooled(c0: Floats, c1: Floats) -> Floats:
    """Return the rising shares of c0 in c0 + c1 that are likeliest."""
    blocks: list[tuple[float, float, int]] = []
    for at0, at1 in zip(c0.tolist(), c1.tolist(), strict=True):
        block = (at0, at1, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    shares = [(at0 + 0.5) / (at0 + at1 + 1) for at0, at1, _ in blocks]
    return np.repeat(shares, [cells for _, _, cells in blocks])


def calibrated(score: Floats, c0: Floats, c1: Floats) -> Floats:
    """Return, for cells of a score, the share of c0 in c0 + c1 as a logistic curve has it."""
    middle = score - score.mean()
    X = np.column_stack([middle, np.ones(len(score))])
    w = np.zeros(2)
    for _ in range(_STEPS):
        p = special.expit(X @ w)
        slope = X.T @ (c0 - (c0 + c1) * p)
        curvature = (X.T * np.maximum((c0 + c1) * p * (1 - p), 1e-6)) @ X + 1e-9 * np.eye(2)
        w = w + np.clip(np.linalg.solve(curvature, slope), -30.0, 30.0)
    return np.asarray(special.expit(X @ w))


def weights(features: Floats, often0: Floats, often1: Floats) -> Floats:
    """Fit a logistic regression, with a small penalty, and return the weights of the features."""
    X = np.column_stack([features, np.ones(len(features))])
    often = often0 + often1
    mean = often @ X / often.sum()
    spread = often @ (X - mean) ** 2 / often.sum()
    w = np.zeros(X.shape[1])
    ridge = _RIDGE * often.sum() * spread.mean() * np.eye(len(w))
    for _ in range(_STEPS):
        p = special.expit(X @ w)
        slope = X.T @ (often0 - often * p) - ridge @ w
        steepness = np.maximum(often * p * (1 - p), 1e-6)
        curvature = X.T @ (steepness[:, None] * X) + ridge + 1e-9 * np.eye(len(w))
        w = w + np.linalg.solve(curvature, slope)
    return np.asarray(w[:-1])
