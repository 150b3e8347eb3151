"""OpenDP's constructors: a mean is a sum over a count; quantiles need given candidates."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import opendp.prelude as dp

from benchmarks.contenders import DECILES, Column, Floats

dp.enable_features("contrib")
PACKAGES: Final = ("opendp",)


def add_noise(exact: Floats, sensitivity: float, epsilon: float, rounds: int) -> Floats:
    """Add OpenDP's noise: discrete to integers, continuous to floats."""
    kind = int if np.issubdtype(np.asarray(exact).dtype, np.integer) else float
    space = dp.vector_domain(dp.atom_domain(T=kind, nan=False)), dp.l1_distance(T=kind)
    mechanism = dp.m.make_laplace(*space, scale=sensitivity / epsilon)
    row = np.atleast_1d(exact).tolist()
    return np.array([mechanism(row) for _ in range(rounds)], dtype=float)


def count(column: Column, rounds: int) -> Floats:
    """Count rows."""
    return add_noise(len(column.values), 1.0, column.epsilon, rounds)


def add_up(column: Column, rounds: int) -> Floats:
    """Add up the values."""
    total = math.fsum(column.clamped_values)
    return add_noise(total, max(abs(column.lower), abs(column.upper)), column.epsilon, rounds)


def mean(column: Column, rounds: int) -> Floats:
    """Divide a sum by a count, with half of epsilon each."""
    half = column._replace(epsilon=column.epsilon / 2)
    quotients = add_up(half, rounds) / np.maximum(count(half, rounds), 1)
    return np.clip(quotients, column.lower, column.upper)


def histogram(column: Column, rounds: int) -> Floats:
    """Count the values in each cell."""
    return add_noise(
        np.histogram(column.clamped_values, column.edges)[0], 1.0, column.epsilon, rounds
    )


def quantile(column: Column, q: float, rounds: int) -> Floats:
    """Select a quantile from our candidates."""
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    scale = 2 * max(q, 1 - q) / column.epsilon
    mechanism = dp.m.make_private_quantile(
        *space, dp.max_divergence(), candidates=column.candidates, alpha=q, scale=scale
    )
    assert mechanism.map(1) <= column.epsilon * 1.0001  # noqa: S101 - both use the same epsilon
    rows = column.clamped_values.tolist()
    return np.array([mechanism(rows) for _ in range(rounds)])


def deciles(column: Column, rounds: int) -> Floats:
    """Select each decile with its share of epsilon, and sort them."""
    decile_column = column._replace(epsilon=column.epsilon / len(DECILES))
    return np.sort(np.stack([quantile(decile_column, q, rounds) for q in DECILES], axis=1), axis=1)


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": count,
    "sum": add_up,
    "mean": mean,
    "histogram": histogram,
    "median": lambda column, rounds: quantile(column, 0.5, rounds),
    "deciles": deciles,
}
