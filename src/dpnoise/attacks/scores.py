"""Likelihood ratios learned from releases: step functions of one number, and weighted sums of them.

A number falls into a cell, and each cell has the logarithm of how much more often it was seen at
one data set than at the other. A sum over several numbers is the exact likelihood ratio where they
are independent (naive Bayes); elsewhere the weights are those of a logistic regression.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

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

    def __call__(self, x: Floats) -> Floats:
        """Return the ratio of each number; a NaN has that of the last cell."""
        result: Floats = self.ratios[np.searchsorted(self.edges, x, side="right")]
        return result


def edges_of(x: Floats, cells: int) -> Floats:
    """Return edges that give each frequent number a cell, and the others cells of equal shares.

    Examples
    --------
    >>> edges_of(np.array([1.0, 2.0, 2.0]), cells=4).tolist()
    [1.0, 1.0000000000000002, 2.0, 2.0000000000000004, inf]
    """
    numbers = x[np.isfinite(x)]
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) <= _FEW:
        return _edges(values)
    frequent = counts > max(8.0, min(len(numbers) / (8 * cells), 8 * counts.mean()))
    if frequent.sum() > _FEW:
        frequent &= counts >= np.partition(counts, -_FEW)[-_FEW]
    rest = numbers[~np.isin(numbers, values[frequent])]
    parts = np.arange(1, cells) / cells
    cuts = np.quantile(rest, parts) if len(rest) > cells else rest[:0]
    return _edges(values[frequent], cuts)


def edges_of_codes(x: Floats) -> Floats:
    """Return edges that give each of the most frequent codes a cell of its own."""
    values, counts = np.unique(x, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:_MOST]
    return _edges(np.sort(values[frequent]))


def _edges(points: Floats, cuts: Floats | None = None) -> Floats:
    others = np.array([np.inf]) if cuts is None else np.append(cuts, np.inf)
    return np.unique(np.concatenate([points, np.nextafter(points, np.inf), others]))


def steps(edges: Floats, x0: Floats, x1: Floats) -> Steps:
    """Learn the ratio of each cell by itself, drawn to zero by its own standard error."""
    c0, c1 = _counts(edges, x0), _counts(edges, x1)
    ratio = np.log((c0 + 0.5) / (len(x0) + 1)) - np.log((c1 + 0.5) / (len(x1) + 1))
    error = np.sqrt(1 / (c0 + 1) + 1 / (c1 + 1))
    shrunk = np.sign(ratio) * np.maximum(0.0, np.abs(ratio) - _CAUTION * error)
    return Steps(edges, shrunk, free=True)


def rising_steps(edges: Floats, x0: Floats, x1: Floats) -> Steps:
    """Learn ratios that only rise or only fall: neighbours that do not are pooled.

    Pooling (Ayer and others 1955) finds the likeliest such ratios, so that few releases suffice for
    fine cells. A plain threshold of a number is what it mostly comes to.
    """
    c0, c1 = _counts(edges, x0), _counts(edges, x1)
    either = [_pooled(*(c[::way] for c in (c0, c1)))[::way] for way in (1, -1)]
    share = max(either, key=lambda p: float(c0 @ np.log(p) + c1 @ np.log1p(-p)))
    return Steps(edges, special.logit(share) + np.log(len(x1) / len(x0)))


def _counts(edges: Floats, x: Floats) -> Floats:
    cells = np.searchsorted(edges, x, side="right")
    return np.bincount(cells, minlength=len(edges) + 1).astype(np.float64)


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


def weights(features0: Floats, features1: Floats) -> Floats:
    """Fit a logistic regression, with a small penalty, and return the weights of the features."""
    X = np.concatenate([features0, features1])
    X = np.column_stack([X, np.ones(len(X))])
    y = np.repeat([1.0, 0.0], [len(features0), len(features1)])
    w = np.zeros(X.shape[1])
    ridge = _RIDGE * len(X) * X.var(axis=0).mean() * np.eye(len(w))
    for _ in range(_STEPS):
        p = special.expit(X @ w)
        slope = X.T @ (y - p) - ridge @ w
        curvature = (X.T * np.maximum(p * (1 - p), 1e-6)) @ X + ridge + 1e-9 * np.eye(len(w))
        w = w + np.linalg.solve(curvature, slope)
    return np.asarray(w[:-1])
