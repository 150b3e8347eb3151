"""What the statements about floats have in common: numbers, intervals and lemmas for Gappa.

Names in the scripts: V is a uniform at its lower end and ln_V its logarithm, w bounds what the bits
not seen add to it; log_x is a logarithm as computed and ln_x the real one; c_x is a sine as
computed, low_x the real one at the lower end of its angle, C_x the one with all bits; bound_x is
`reciprocal_bound` of x; Z is the real noise.
"""

from collections.abc import Iterable
from fractions import Fraction

from proof.translation import Lemma, Translation, Value, exactly, gappa

# What one statement proves and the next one takes, in u.
LOG = Fraction(6)  # log x, relative to itself.
SINE = Fraction(5)  # sin(pi x), relative to itself, the rounding of x to a float included.
# log(1+u) and -log(1-u) are below this many u; so is what a rounding of x makes of sin(pi x).
ONE_ROUNDING = 1 + Fraction(1, 1024)

BITS = Fraction(64)
UNIT = Fraction(1, 2**64)
# The sign of an error that is bounded, and how it is then subtracted.
SIGNS = {"+": "-", "-": "+"}


def in_u(multiple: float | Fraction) -> Fraction:
    """Return a multiple of the unit roundoff u = 2^-53."""
    return Fraction(multiple) * Fraction(1, 2**53)


def u(multiple: float | Fraction) -> str:
    """Return a multiple of u for a script."""
    return exactly(in_u(multiple))


def within(bound: str | Fraction) -> str:
    """Return the interval around 0 that a bound makes."""
    text = gappa(bound)
    return f"[-{text}, {text}]"


def interval(ends: tuple[Fraction, Fraction]) -> str:
    """Return an interval for a script."""
    return f"[{gappa(ends[0])}, {gappa(ends[1])}]"


def not_zero(names: Iterable[str]) -> str:
    """Return the condition of a hint that divides by these."""
    return "{ " + ", ".join(f"{name} <> 0" for name in names) + " }"


def polynomial(coefficients: Iterable[float], t: str) -> str:
    """Return a polynomial in t by Horner's rule, without a rounding."""
    text = ""
    for coefficient in reversed(list(coefficients)):
        number = gappa(Fraction(coefficient))
        text = f"({text} * {t} + {number})" if text else number
    return text


def _log(translation: Translation, x: str) -> Value:
    translation.assume(f"log_{x} -/ ln_{x} in {within(u(LOG))}")
    translation.assume(f"@FLT(log_{x}, 53)", f"@FIX(log_{x}, -1074)")
    return f"log_{x}"


def _sine(translation: Translation, x: str) -> Value:
    translation.assume(f"c_{x} -/ low_{x} in {within(u(SINE))}", f"@FLT(c_{x}, 53)")
    translation.assume(f"low_{x} in [0, 1]", f"C_{x} in [0, 1]")
    translation.assume(f"c_{x} in [0, {gappa(1 + in_u(SINE))}]")
    return f"c_{x}"


def _reciprocal(translation: Translation, x: str) -> Value:
    translation.assume(f"bound_{x} * {x} in [1, 1.125]", f"@FLT(bound_{x}, 53)")
    return f"bound_{x}"


def _ones(translation: Translation, word: str, bits: Value) -> Value:
    if bits != BITS:
        raise ValueError("The proof is for words of 64 bits.")
    return translation.integer(f"ones_{word}")


# `log` and `sinpi` have statements of their own; the others are bit tricks.
LEMMAS: dict[str, Lemma] = {
    "log": _log,
    "sinpi": _sine,
    "reciprocal_bound": _reciprocal,
    "ones_after": _ones,
    "unsigned": lambda _, word: word,
    # The sign of z is that of Z: what is said of their sizes is said of them.
    "with_sign_of": lambda _, __, magnitude: magnitude,
}
