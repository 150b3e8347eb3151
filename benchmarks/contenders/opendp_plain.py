"""OpenDP's constructors: means and variances from sums; quantiles need given candidates.

Discovered groups are those whose noisy number of patients reaches a threshold.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import opendp.prelude as dp

from benchmarks.contenders import DECILES, HIGH, Column, Floats, Stays

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


def variance(column: Column, rounds: int) -> Floats:
    """Compute a variance from a count and two sums, with a third of epsilon each.

    Values are distances to the middle of the bounds, which gives the sums the least sensitivity.
    """
    third, half_width = column.epsilon / 3, (column.upper - column.lower) / 2
    distances = column.clamped_values - (column.lower + column.upper) / 2
    count_of_all = np.maximum(add_noise(distances.size, 1.0, third, rounds), 1)
    first = add_noise(math.fsum(distances), half_width, third, rounds) / count_of_all
    second = add_noise(math.fsum(distances**2), half_width**2, third, rounds) / count_of_all
    return np.clip(second - first**2, 0.0, half_width**2)


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
    "variance": variance,
    "std": lambda column, rounds: np.sqrt(variance(column, rounds)),
    "histogram": histogram,
    "median": lambda column, rounds: quantile(column, 0.5, rounds),
    "quantile 0.9": lambda column, rounds: quantile(column, HIGH, rounds),
    "deciles": deciles,
}


def _with_threshold(question: Stays, kind: str) -> tuple[int, Any]:
    """Return the smallest threshold of a kind of noise with the whole budget, and its mechanism.

    Gaussian noise shares delta with the threshold. The threshold is one more than OpenDP's map
    says, because noisy numbers equal to it are shown too (tests/peers/test_peer_thresholds.py).
    """
    domain = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=int))
    groups, delta = question.max_groups, question.delta
    if kind == "laplace":
        make, space = (
            dp.m.make_laplace_threshold,
            (domain, dp.l01inf_distance(dp.absolute_distance(T=int))),
        )
        scale = groups / question.epsilon * (1 + 1e-9)
        distance: tuple[float, ...] = (groups, groups, 1)
    else:
        make, space = (
            dp.m.make_gaussian_threshold,
            (domain, dp.l02inf_distance(dp.absolute_distance(T=float))),
        )
        delta, distance = delta / 2, (groups, math.sqrt(groups), 1.0)
        vector = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
        scale = dp.binary_search(
            lambda noise: (
                dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*vector, scale=noise))
                .map(math.sqrt(groups))
                .epsilon(delta)
                <= question.epsilon
            ),
            bounds=(1.0, 1000.0),
        )
    least = dp.binary_search(
        lambda least: make(*space, scale=scale, threshold=least).map(distance)[1] <= delta,
        bounds=(2, 100_000),
    )
    return least + 1, make(*space, scale=scale, threshold=least + 1)


def discover(question: Stays, rounds: int) -> Iterator[dict[str, float]]:
    """Publish numbers of patients from the smaller threshold of Laplace and of Gaussian noise.

    Each patient counts in random diagnoses of theirs, as with dpnoise.
    """
    pairs = sorted({*zip(question.patients, question.diagnoses, strict=True)})
    thresholds = [_with_threshold(question, kind) for kind in ("laplace", "gaussian")]
    _, mechanism = min(thresholds, key=lambda pair: pair[0])
    rng = np.random.default_rng()
    for _ in range(rounds):
        number_of: Counter[int] = Counter()
        counts: Counter[str] = Counter()
        for patient, diagnosis in (pairs[i] for i in rng.permutation(len(pairs)).tolist()):
            if number_of[patient] < question.max_groups:
                number_of[patient] += 1
                counts[diagnosis] += 1
        yield mechanism(dict(counts))
