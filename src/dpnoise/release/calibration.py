"""Compute the scale from epsilon, delta and sensitivity, rounded up.

Rounding up means that the privacy loss is never larger than claimed.
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from flint import arb

from dpnoise.core.errors import ArgumentError, check_delta, check_positive, reject
from dpnoise.core.reference import Ball, ball_of

_MAX_PRECISION: Final = 2**14  # Bits; a comparison that needs more counts as undecided.
_OUT_OF_REACH: Final = "No finite scale reaches this privacy loss: increase epsilon, delta or rho."
EXTREME: Final = 2.0**960  # Scales lie between 1/EXTREME and EXTREME, so nothing overflows.


def laplace_scale(epsilon: float, sensitivity: float) -> float:
    """Return the smallest float that is at least sensitivity / epsilon.

    >>> laplace_scale(0.1, 1.0)
    10.0
    >>> laplace_scale(0.3, 1.0) * 0.3 >= 1.0
    True
    """
    sensitivity = check_positive("sensitivity", sensitivity)
    return _quotient_up(sensitivity, check_positive("epsilon", epsilon))


def selection_scale(epsilon: float, sensitivity: float, *, monotonic: bool) -> float:
    """Return the smallest float at least 2 * sensitivity / epsilon, without the 2 if monotonic."""
    sensitivity = check_positive("sensitivity", sensitivity)
    factor = 1 if monotonic else 2
    epsilon = check_positive("epsilon", epsilon)
    return check_scale(_quotient_up(factor * Fraction(sensitivity), epsilon))


def check_scale(scale: float) -> float:
    """Return a scale after checking that arithmetic with it cannot overflow."""
    if not 1 / EXTREME <= scale <= EXTREME:
        reject("scale", scale, "be between 2^-960 and 2^960")
    return scale


def gaussian_scale_for_rho(rho: float, sensitivity: float) -> float:
    """Return the smallest float at least sensitivity / sqrt(2 rho), for rho-zCDP.

    >>> gaussian_scale_for_rho(0.5, 3.0)
    3.0
    """
    squared = Fraction(check_positive("sensitivity", sensitivity)) ** 2
    doubled = 2 * Fraction(check_positive("rho", rho))
    return smallest_float(lambda scale: Fraction(scale) ** 2 * doubled >= squared)


def gaussian_scale(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the smallest float whose Gaussian mechanism is (epsilon, delta)-private.

    The analytic calibration of Balle and Wang (2018), solved by bisection over the floats; each
    comparison is decided in ball arithmetic.

    >>> round(gaussian_scale(1.0, 1e-6, 1.0), 4)
    4.2247
    """
    epsilon = check_positive("epsilon", epsilon)
    sensitivity = check_positive("sensitivity", sensitivity)
    return _gaussian_scale(epsilon, check_delta(delta), sensitivity)


@lru_cache(maxsize=256)
def _gaussian_scale(epsilon: float, delta: float, sensitivity: float) -> float:
    """Solve by bisection; cached, because it takes as long as releasing many numbers."""
    target = ball_of(delta)
    return smallest_float(
        lambda scale: certainly_at_most(
            lambda bits: gaussian_delta_ball(scale, epsilon, sensitivity, bits), target
        )
    )


def gaussian_delta_ball(scale: float, epsilon: float, sensitivity: float, bits: int) -> arb:
    """Enclose the smallest delta of the Gaussian mechanism (Balle and Wang 2018, theorem 8).

    delta = Phi(D/2s - es/D) - exp(e) Phi(-D/2s - es/D) with D the sensitivity, s the scale.
    """
    s, e, D = (Ball(ball_of(number), bits) for number in (scale, epsilon, sensitivity))
    near, far = D / (2 * s), e * s / D
    return (phi(near - far) - e.exp() * phi(-near - far)).enclosure


def phi(x: Ball) -> Ball:
    """Return the standard Gaussian distribution function."""
    return (-x / Ball(arb(2), x.bits).sqrt()).erfc() / 2


def certainly_at_most(enclose: Callable[[int], arb], limit: arb) -> bool:
    """Return True if a number is proven to be at most the limit.

    `enclose(bits)` encloses the number at a precision. Return False if no precision can decide.
    """
    bits = 128
    while bits <= _MAX_PRECISION:
        number = enclose(bits)
        if number <= limit:
            return True
        if number > limit:
            return False
        bits *= 2
    return False


def _quotient_up(numerator: float | Fraction, denominator: float) -> float:
    """Return the smallest float that is at least numerator / denominator, both positive."""
    quotient, nearest = _quotient(numerator, denominator)
    scale = nearest if nearest >= quotient else math.nextafter(nearest, math.inf)
    if math.isinf(scale):
        raise ArgumentError(_OUT_OF_REACH)
    return scale


def quotient_down(numerator: float | Fraction, denominator: float | Fraction) -> float:
    """Return the largest float that is at most numerator / denominator, both positive."""
    quotient, nearest = _quotient(numerator, denominator)
    return nearest if nearest <= quotient else math.nextafter(nearest, 0.0)


def difference_down(whole: float, part: float) -> float:
    """Return the largest float that is at most whole - part, for 0 < part < whole."""
    difference = Fraction(whole) - Fraction(part)
    nearest = float(difference)
    return nearest if nearest <= difference else math.nextafter(nearest, 0.0)


def _quotient(numerator: float | Fraction, denominator: float | Fraction) -> tuple[Fraction, float]:
    """Return numerator / denominator and the nearest float, infinity above the largest float.

    Python rounds the quotient of two integers to nearest, so the quotient lies between this float
    and one of its neighbours.
    """
    quotient = Fraction(numerator) / Fraction(denominator)
    try:
        return quotient, quotient.numerator / quotient.denominator
    except OverflowError:
        return quotient, math.inf


def smallest_float(suffices: Callable[[float], bool], most: float = sys.float_info.max) -> float:
    """Return the smallest positive float that suffices, if all larger ones up to `most` do too.

    Positive floats are ordered like their bit patterns, so the search bisects the patterns.
    """
    low, high = 0, int(np.float64(most).view(np.int64))
    if not suffices(_float_from_bits(high)):
        raise ArgumentError(_OUT_OF_REACH)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(_float_from_bits(middle)):
            high = middle
        else:
            low = middle
    return _float_from_bits(high)


def _float_from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
