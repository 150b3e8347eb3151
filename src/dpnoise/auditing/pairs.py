"""The pairs of values that an audit tries: never further apart than the sensitivity."""

import math
from fractions import Fraction
from typing import Any, Final

import numpy as np

# In units of the sensitivity: around zero, a power of two, a count, negative, large.
_PAIRS: Final = ((0, 1), (1, 2), (7, 8), (42, 43), (-1, 0), (1000, 1001))
_LARGEST: Final = 1001


def pairs(sensitivity: float, dtype: np.dtype[Any]) -> list[tuple[float, float]]:
    """Return the pairs, in numbers of the format that the target releases.

    A target may round its value to that format before it adds noise. These it need not round, so
    that no pair is further apart there than it is here.

    Examples
    --------
    >>> pairs(0.5, np.dtype(np.float64))
    [(0.0, 0.5), (0.5, 1.0), (3.5, 4.0), (21.0, 21.5), (-0.5, 0.0), (500.0, 500.5)]
    >>> pairs(0.1, np.dtype(np.float32))[0]
    (0.0, 0.09999999403953552)
    """
    limits = np.finfo(dtype)
    fits = float(limits.smallest_normal) <= sensitivity <= float(limits.max) / _LARGEST
    number = dtype.type if fits else np.float64
    return [
        _pair(number(low * sensitivity), number(high * sensitivity), sensitivity)
        for low, high in _PAIRS
        if math.isfinite(high * sensitivity)
    ]


def _pair(value0: Any, value1: Any, sensitivity: float) -> tuple[float, float]:
    """Move the larger value, of either sign, to the other until they differ by no more."""
    while Fraction(float(value1)) - Fraction(float(value0)) > Fraction(sensitivity):
        if abs(value0) > abs(value1):
            value0 = np.nextafter(value0, value1)
        else:
            value1 = np.nextafter(value1, value0)
    return float(value0), float(value1)
