"""Targets that are private exactly up to what they claim, and not a bit more.

An audit may call them broken with probability 1 - confidence at most, and nothing makes that harder
than P0 = exp(epsilon) P1 + delta. The sensitivity is 1, and values are whole numbers.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EPSILON = 1.0
DELTA = 0.05
rng = np.random.default_rng()


def is_odd(value: float) -> bool:
    return round(value) % 2 == 1


def flipped(value: float, n: int) -> Floats:
    """Return a bit, 1 for odd values, turned over with probability 1/(1 + exp(epsilon))."""
    turned = rng.random(n) < 1 / (1 + math.exp(EPSILON))
    return (turned ^ is_odd(value)).astype(np.float64)


def revealed(value: float, n: int) -> Floats:
    """Return the same bit, or with probability delta the value's own: 4 if even, 8 if odd."""
    return np.where(rng.random(n) < DELTA, 8.0 if is_odd(value) else 4.0, flipped(value, n))


def geometric(value: float, n: int) -> Floats:
    """Add two-sided geometric noise: exp(-epsilon |k|) up to a factor."""
    up, down = rng.geometric(1 - math.exp(-EPSILON), (2, n))
    return np.asarray(value + (up - down), dtype=np.float64)


def uniform(value: float, n: int) -> Floats:
    """Add a whole number below 1/delta: (0, delta)-private."""
    return value + rng.integers(round(1 / DELTA), size=n).astype(np.float64)
