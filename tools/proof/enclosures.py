"""Write the ends of balls for Gappa, as exact binary numbers."""

import math
from fractions import Fraction

from flint import arb

BITS = 400  # Precision of the ball arithmetic.


def _dyadic(exact: arb) -> str:
    """Return an exact ball in Gappa's notation."""
    odd, power = exact.man_exp()
    return f"{int(odd)}b{int(power)}"


def ball_hypothesis(name: str, ball: arb) -> str:
    """Return the hypothesis that a number lies in a ball."""
    return f"{name} in [{_dyadic(ball.lower())}, {_dyadic(ball.upper())}]"


def lower_end_of(ball: arb) -> str:
    """Return the lower end of a ball."""
    return _dyadic(ball.lower())


def upper_end_of(ball: arb) -> str:
    """Return the upper end of a ball."""
    return _dyadic(ball.upper())


def bound_hypothesis(name: str, bound: Fraction) -> str:
    """Return the hypothesis |name| <= bound, with the bound rounded up to 2^-500."""
    rounded_bound = math.ceil(bound * 2**500)
    return f"{name} in [-{rounded_bound}b-500, {rounded_bound}b-500]"
