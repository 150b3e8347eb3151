"""Targets that spend exactly what they claim.

An audit may call them broken with probability at most 1 - confidence. This is hardest where
P0 = exp(epsilon) P1 + delta. The sensitivity is 1, and values are integers.
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


def flip(value: float, n: int) -> Floats:
    """Return a bit, 1 for odd values, flipped with probability 1/(1 + exp(epsilon))."""
    is_flipped = rng.random(n) < 1 / (1 + math.exp(EPSILON))
    return (is_flipped ^ is_odd(value)).astype(np.float64)


def flip_or_reveal(value: float, n: int) -> Floats:
    """Return the flipped bit, or with probability delta 4 for even and 8 for odd values."""
    return np.where(rng.random(n) < DELTA, 8.0 if is_odd(value) else 4.0, flip(value, n))


def geometric(value: float, n: int) -> Floats:
    """Add two-sided geometric noise: exp(-epsilon |k|) up to a factor."""
    positive, negative = rng.geometric(1 - math.exp(-EPSILON), (2, n))
    return np.asarray(value + (positive - negative), dtype=np.float64)


def uniform(value: float, n: int) -> Floats:
    """Add a uniform integer below 1/delta, which is (0, delta)-private."""
    return value + rng.integers(round(1 / DELTA), size=n).astype(np.float64)
