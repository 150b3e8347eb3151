"""Time exact sums against NumPy's clip and sum, which round and depend on the order."""

from collections.abc import Callable

import numpy as np

from benchmarks.noise import MILLION, Contenders, numpy_rng
from benchmarks.timing import Timing, time_contenders
from dpnoise import statistics

SIZE = 100 * MILLION


def sums(rounds: int) -> dict[str, Timing]:
    """Time the sum of 10^8 clamped values."""
    values = numpy_rng.random(SIZE) * 250_000 - 10_000
    calls: dict[str, Callable[[], object]] = {
        "NumPy clip and sum": lambda: np.clip(values, 0.0, 200_000.0).sum(),
        "dpnoise exact_sum": lambda: statistics.exact_sum(values, 0.0, 200_000.0),
        "dpnoise released mean": lambda: statistics.mean(
            values, lower=0.0, upper=200_000.0, epsilon=1.0
        ),
    }
    contenders: Contenders = {name: (call, SIZE) for name, call in calls.items()}
    return time_contenders(contenders, max(3, rounds // 6))
