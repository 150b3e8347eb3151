"""The pairs of values that an audit tries: never further apart than the sensitivity."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

import numpy as np

from dpnoise.errors import ArgumentError, ArgumentTypeError, is_real, reject

Pair = tuple[float, float]

# In units of the sensitivity: around zero, a power of two, a count, negative, large; then what a
# target that rounds or that treats small numbers otherwise gives away: fractional, tiny, huge.
_PAIRS: Final = (
    (0, 1), (1, 2), (7, 8), (42, 43), (-1, 0), (1000, 1001),
    (0, 0.5), (0.25, 0.75), (0.375, 1.375), (0, 2.0**-12), (2.0**30, 2.0**30 + 1),
)  # fmt: skip
_WHOLE: Final = 6  # The first ones, which are multiples of the sensitivity.
_LARGEST: Final = 1001
WHOLE: Final = "whole"


def pairs(sensitivity: float, dtype: np.dtype[Any], *, whole: bool = False) -> list[Pair]:
    """Return the pairs, in numbers of the format that the target releases.

    A target may round its value to that format before it adds noise. These it need not round, so
    that no pair is further apart there than it is here. Where the format has no two such numbers,
    the pair is left out. With `whole`, only multiples of the sensitivity are taken.

    Examples
    --------
    >>> pairs(0.5, np.dtype(np.float64))[:6]
    [(0.0, 0.5), (0.5, 1.0), (3.5, 4.0), (21.0, 21.5), (-0.5, 0.0), (500.0, 500.5)]
    >>> pairs(0.1, np.dtype(np.float32))[0]
    (0.0, 0.09999999403953552)
    """
    limits = np.finfo(dtype)
    fits = float(limits.smallest_normal) <= sensitivity <= float(limits.max) / _LARGEST
    number = dtype.type if fits else np.float64
    most = float(np.finfo(number).max)
    found = [
        _pair(number(low * sensitivity), number(high * sensitivity), sensitivity)
        for low, high in (_PAIRS[:_WHOLE] if whole else _PAIRS)
        if math.isfinite(high * sensitivity) and abs(high * sensitivity) <= most
    ]
    return [pair for pair in dict.fromkeys(found) if pair[0] != pair[1]]


def given_pairs(given: Any, sensitivity: float) -> list[Pair]:
    """Return pairs of values that were given, or say what is wrong with one.

    Examples
    --------
    >>> given_pairs([(0.5, 1.5), (3, 2)], 1.0)
    [(0.5, 1.5), (3.0, 2.0)]
    """
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ArgumentTypeError("Expected pairs to be 'whole' or a list of pairs: [(0.5, 1.5)].")
    found = [_given(pair, sensitivity) for pair in given]
    if not found:
        raise ArgumentError("Expected pairs to have at least one pair of values.")
    return found


def _given(pair: Any, sensitivity: float) -> Pair:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(is_real, pair)):  # noqa: PLR2004 - a pair
        raise ArgumentTypeError("Expected each of pairs to be two numbers: (0.5, 1.5).")
    value0, value1 = float(pair[0]), float(pair[1])
    if not (math.isfinite(value0) and math.isfinite(value1)):
        reject("pairs", pair, "to be finite")
    if value0 == value1:
        reject("pairs", pair, "to be two different values")
    if abs(Fraction(value1) - Fraction(value0)) > Fraction(sensitivity):
        reject("pairs", pair, f"to differ by the sensitivity, {sensitivity:g}, at most")
    return value0, value1


def _pair(value0: Any, value1: Any, sensitivity: float) -> Pair:
    """Move the larger value, of either sign, to the other until they differ by no more."""
    while Fraction(float(value1)) - Fraction(float(value0)) > Fraction(sensitivity):
        if abs(value0) > abs(value1):
            value0 = np.nextafter(value0, value1)
        else:
            value1 = np.nextafter(value1, value0)
    return float(value0), float(value1)
