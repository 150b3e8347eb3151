"""Bounds on real functions that Gappa takes as hypotheses, proved in ball arithmetic.

Each function returns a number that Arb has shown to be a bound over a whole interval.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil

from flint import arb, arb_poly, ctx, fmpz

from dpnoise.core import reference
from dpnoise.kernels import certified, elementary

_PRECISION = 300
_SERIES_TERMS = 60
LARGEST_LOG = Fraction(45)  # Above -log 2^-64.


def log_series(k: int) -> arb:
    """Return the coefficient of t^k in log((1+s)/(1-s))/s, t = s^2."""
    return arb(2) / (2 * k + 1)


def sinpi_series(k: int) -> arb:
    """Return the coefficient of t^k in sin(pi x)/x, t = x^2."""
    return (-1) ** k * arb.pi() ** (2 * k + 1) / arb(fmpz(2 * k + 1)).gamma() / (2 * k + 1)


def largest_ratio() -> arb:
    """Return the largest |s| = |f-1|/(f+1) for f between the float below sqrt(1/2) and twice it."""
    return (arb(2).sqrt() - 1) / (arb(2).sqrt() + 1) + arb(2) ** -52


def enclose_relative_error(
    coefficients: Sequence[float | Fraction],
    series: Callable[[int], arb],
    end: arb,
    pieces: int = 400,
) -> arb:
    """Return an upper bound on |P/f - 1| over all of [0, end], in ball arithmetic.

    P - f is the polynomial of the differences of coefficients, up to a tail that is bounded. On
    each piece it is expanded around the middle, where its ball is as narrow as the piece allows.
    """
    with ctx.workprec(_PRECISION):
        differences = [
            (reference.ball_of(coefficients[k]) if k < len(coefficients) else 0) - series(k)
            for k in range(_SERIES_TERMS)
        ]
        difference = arb_poly(differences)
        function = arb_poly([series(k) for k in range(_SERIES_TERMS)])
        # All further coefficients are below the last one, so the tail is below a geometric series.
        tail = abs(series(_SERIES_TERMS)) * end**_SERIES_TERMS / (1 - end)
        largest = arb(0)
        half = end / (2 * pieces)
        for piece in range(pieces):
            middle = (2 * piece + 1) * half
            coefficients_around_middle = difference(arb_poly([middle, 1])).coeffs()
            numerator = (
                sum((abs(a) * half**k for k, a in enumerate(coefficients_around_middle)), arb(0))
                + tail
            )
            denominator = function(arb(middle.mid(), half)) - arb(0, tail)
            largest = largest.max((numerator / denominator).upper())
        return largest


def round_up(number: Fraction, bits: int = 40) -> Fraction:
    """Return a binary number of about `bits` bits at or above a number."""
    if number == 0:
        return number
    size = abs(number.numerator).bit_length() - number.denominator.bit_length()
    unit = Fraction(2) ** (size - bits)
    return ceil(number / unit) * unit


def upper_bound(ball: arb) -> Fraction:
    """Return a binary number at or above every number of a ball."""
    with ctx.workprec(_PRECISION):
        # The upper end of a ball is exactly m 2^e.
        mantissa, exponent = ball.upper().man_exp()
    return round_up(Fraction(int(mantissa)) * Fraction(2) ** int(exponent))


def lower_bound(ball: arb) -> Fraction:
    """Return a binary number at or below every number of a ball."""
    return -upper_bound(-ball)


@lru_cache
def polynomial_error(name: str) -> Fraction:
    """Return an upper bound on the relative error of the polynomial of log or sinpi."""
    with ctx.workprec(_PRECISION):
        if name == "log":
            end = arb((largest_ratio() ** 2).upper())
            return upper_bound(enclose_relative_error(elementary.LOG_COEFFICIENTS, log_series, end))
        end = arb(1) / 4
        return upper_bound(enclose_relative_error(elementary.SINPI_COEFFICIENTS, sinpi_series, end))


@lru_cache
def atanh_condition() -> Fraction:
    """Return an upper bound on the condition number of log((1+s)/(1-s)) as a function of s.

    It is s/((1-s^2) atanh s) <= 1/((1-s^2)(1+s^2/3)), because atanh s >= s + s^3/3. The right side
    rises with s^2 below 1. The added 10^-5 allows for the error of s.
    """
    with ctx.workprec(_PRECISION):
        t = largest_ratio() ** 2
        return upper_bound(1 / ((1 - t) * (1 + t / 3))) + Fraction(1, 10**5)


def log_2_error() -> tuple[Fraction, Fraction]:
    """Return an interval that contains log 2 - LOG_2."""
    with ctx.workprec(_PRECISION):
        difference = arb(2).log() - reference.ball_of(elementary.LOG_2)
        return lower_bound(difference), upper_bound(difference)


def exp_between(lower: Fraction, upper: Fraction, spread: Fraction) -> tuple[Fraction, Fraction]:
    """Return an interval that contains exp(x) (1 + d) for lower <= x <= upper and |d| <= spread."""
    with ctx.workprec(_PRECISION):
        return (
            lower_bound(reference.ball_of(lower).exp() * reference.ball_of(1 - spread)),
            upper_bound(reference.ball_of(upper).exp() * reference.ball_of(1 + spread)),
        )


def root_2_error() -> tuple[Fraction, Fraction]:
    """Return an interval that contains SQRT_2 - sqrt(2)."""
    with ctx.workprec(_PRECISION):
        difference = reference.ball_of(certified.SQRT_2) - arb(2).sqrt()
        return lower_bound(difference), upper_bound(difference)


def log_between(lower: Fraction, upper: Fraction) -> tuple[Fraction, Fraction]:
    """Return an interval that contains log(x) for lower <= x <= upper."""
    with ctx.workprec(_PRECISION):
        return (
            lower_bound(reference.ball_of(lower).log()),
            upper_bound(reference.ball_of(upper).log()),
        )
