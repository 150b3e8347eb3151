"""OpenDP's constructors: a mean is a sum over a count; quantiles are selected among given ones."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import opendp.prelude as dp

from benchmarks.contenders import DECILES, Column, Floats

dp.enable_features("contrib")
PACKAGES: Final = ("opendp",)


def noisy(exactly: Floats, sensitivity: float, epsilon: float, rounds: int) -> Floats:
    """Add OpenDP's noise: discrete to integers, and Laplace to floats."""
    kind = int if np.issubdtype(np.asarray(exactly).dtype, np.integer) else float
    space = dp.vector_domain(dp.atom_domain(T=kind, nan=False)), dp.l1_distance(T=kind)
    mechanism = dp.m.make_laplace(*space, scale=sensitivity / epsilon)
    row = np.atleast_1d(exactly).tolist()
    return np.array([mechanism(row) for _ in range(rounds)], dtype=float)


def count(one: Column, rounds: int) -> Floats:
    """Count rows."""
    return noisy(len(one.values), 1.0, one.epsilon, rounds)


def added(one: Column, rounds: int) -> Floats:
    """Add values up."""
    total = math.fsum(one.clamped)
    return noisy(total, max(abs(one.lower), abs(one.upper)), one.epsilon, rounds)


def mean(one: Column, rounds: int) -> Floats:
    """Divide a sum by a count, with half of epsilon each."""
    half = one._replace(epsilon=one.epsilon / 2)
    quotients = added(half, rounds) / np.maximum(count(half, rounds), 1)
    return np.clip(quotients, one.lower, one.upper)


def histogram(one: Column, rounds: int) -> Floats:
    """Count the values in each cell."""
    return noisy(np.histogram(one.clamped, one.edges)[0], 1.0, one.epsilon, rounds)


def quantile(one: Column, q: float, rounds: int) -> Floats:
    """Select among our candidates."""
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    scale = 2 * max(q, 1 - q) / one.epsilon
    mechanism = dp.m.make_private_quantile(
        *space, dp.max_divergence(), candidates=one.candidates, alpha=q, scale=scale
    )
    assert mechanism.map(1) <= one.epsilon * 1.0001  # noqa: S101 - it is at equal epsilon
    rows = one.clamped.tolist()
    return np.array([mechanism(rows) for _ in range(rounds)])


def deciles(one: Column, rounds: int) -> Floats:
    """Select them one by one, each with its part of epsilon, and sort them."""
    part = one._replace(epsilon=one.epsilon / len(DECILES))
    return np.sort(np.stack([quantile(part, q, rounds) for q in DECILES], axis=1), axis=1)


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": count,
    "sum": added,
    "mean": mean,
    "histogram": histogram,
    "median": lambda one, rounds: quantile(one, 0.5, rounds),
    "deciles": deciles,
}
