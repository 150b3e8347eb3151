"""The pairs of values that an audit tries: never further apart than the sensitivity."""

import math
import time
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

import numpy as np
from scipy import stats

from dpnoise.auditing.targets.target import Target, TargetError
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, is_real, reject

Pair = tuple[float, float]

# In units of the sensitivity: around zero, a power of two, a count, negative, large; then what a
# target that rounds or that treats small numbers otherwise gives away: fractional, tiny, huge.
_PAIRS: Final = (
    (0, 1), (1, 2), (7, 8), (42, 43), (-1, 0), (1000, 1001),
    (0, 0.5), (0.25, 0.75), (0.375, 1.375), (0, 2.0**-12), (2.0**30, 2.0**30 + 1),
)  # fmt: skip
_WHOLE: Final = 6  # The first ones, which are multiples of the sensitivity.
_LARGEST: Final = 1001
# Where the search looks for a value that is treated otherwise than the rest.
_SEARCHED: Final = (
    *range(-16, 65), *(10.0**k for k in range(2, 10)), *(-(10.0**k) for k in range(2, 7)),
    *(k / 8 for k in range(-7, 8) if k), 1.5, 2.5, 99.5, 1e-3, 1e-6,
)  # fmt: skip
_FEW: Final = 32  # Releases of each of these values.
_RARE: Final = 0.01  # The probability that a value stands out by chance.
_PATIENCE: Final = 20.0  # Seconds after which the search ends with the values that it has seen.
SEARCH: Final = _FEW * len(_SEARCHED)  # Releases that the search takes.
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
    number = _format(sensitivity, dtype)
    most = float(np.finfo(number).max)
    found = [
        _pair(number(low * sensitivity), number(high * sensitivity), sensitivity)
        for low, high in (_PAIRS[:_WHOLE] if whole else _PAIRS)
        if math.isfinite(high * sensitivity) and abs(high * sensitivity) <= most
    ]
    return [pair for pair in dict.fromkeys(found) if pair[0] != pair[1]]


def _format(sensitivity: float, dtype: np.dtype[Any]) -> Any:
    """Return the format that the target releases, or float64 if it has no room for the pairs."""
    limits = np.finfo(dtype)
    fits = float(limits.smallest_normal) <= sensitivity <= float(limits.max) / _LARGEST
    return dtype.type if fits else np.float64


def search(target: Target, sensitivity: float, dtype: np.dtype[Any], *, whole: bool) -> list[Pair]:
    """Return pairs around the value whose noise is least like that of others, if one stands out.

    It chooses pairs alone: what is certified there is counted in other releases.
    """
    number = _format(sensitivity, dtype)
    most = float(np.finfo(number).max) / 2
    units = [unit for unit in _SEARCHED if not whole or unit == round(unit)]
    values = [unit * sensitivity for unit in units if abs(unit) * sensitivity <= most]
    noise: dict[float, Any] = {}
    started = time.perf_counter()
    try:
        for value in dict.fromkeys(float(number(value)) for value in values):
            noise[value] = target(value, _FEW).astype(np.float64) - value
            if time.perf_counter() - started > _PATIENCE:
                break
    except TargetError:
        pass  # It may fail there; the pairs that are tried anyway tell.
    if len(noise) < 2:  # noqa: PLR2004 - one has nothing to be compared with
        return []
    odd = {value: _unlike(noise, value) for value in noise}
    worst = min(odd, key=lambda value: odd[value])
    if odd[worst] * len(odd) > _RARE:
        return []
    low, high = number(worst - sensitivity), number(worst + sensitivity)
    return [
        pair
        for pair in (
            _pair(low, number(worst), sensitivity),
            _pair(number(worst), high, sensitivity),
        )
        if pair[0] != pair[1]
    ]


def _unlike(noise: dict[float, Any], value: float) -> float:
    """Return the p-value of the noise at one value, beside that at all others (Kolmogorov)."""
    others = np.concatenate([drawn for other, drawn in noise.items() if other != value])
    return float(stats.ks_2samp(noise[value], others, method="asymp").pvalue)


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
