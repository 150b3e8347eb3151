"""Real numbers for Gappa: the ends of balls, as exact binary numbers."""

import math
from fractions import Fraction

from flint import arb

BITS = 400  # Of ball arithmetic.


def _dyadic(exact: arb) -> str:
    """Return an exact ball as Gappa reads it."""
    odd, power = exact.man_exp()
    return f"{int(odd)}b{int(power)}"


def enclosed(name: str, ball: arb) -> str:
    """Return what is known of a real number: the ball's ends."""
    return f"{name} in [{_dyadic(ball.lower())}, {_dyadic(ball.upper())}]"


def at_least(ball: arb) -> str:
    """Return a number that the ball does not fall below."""
    return _dyadic(ball.lower())


def at_most(ball: arb) -> str:
    """Return a number that the ball does not exceed."""
    return _dyadic(ball.upper())


def within(name: str, bound: Fraction) -> str:
    """Return that a number is at most so far from 0, the bound rounded up to 2^-500."""
    up = math.ceil(bound * 2**500)
    return f"{name} in [-{up}b-500, {up}b-500]"
