"""Numbers, intervals and lemmas for Gappa that the statements about floats share.

Names in the scripts:

- V is the lower end of a uniform, ln_V its logarithm; w bounds the change by the unseen bits.
- log_x is a computed logarithm and ln_x the real one.
- c_x is a computed sine, low_x the real one at the lower end of its angle, C_x that of all bits.
- bound_x is `reciprocal_bound` of x.
- Z is the real noise.
"""

from collections.abc import Iterable
from fractions import Fraction

from proof.translation import Lemma, Translation, Value, binary_text, gappa

# Relative errors, in u, that one statement proves and the next one assumes.
LOG = Fraction(6)  # Of log x.
SINE = Fraction(5)  # Of sin(pi x), including the rounding of x to a float.
# An upper bound, in u, on log(1+u), -log(1-u), and the change of sin(pi x) when x is rounded.
ONE_ROUNDING = 1 + Fraction(1, 1024)

BITS = Fraction(64)
UNIT = Fraction(1, 2**64)
# The sign of a bounded error, and the operator that subtracts it.
SIGNS = {"+": "-", "-": "+"}


def in_u(multiple: float | Fraction) -> Fraction:
    """Return a multiple of the unit roundoff u = 2^-53."""
    return Fraction(multiple) * Fraction(1, 2**53)


def u(multiple: float | Fraction) -> str:
    """Return a multiple of u for a script."""
    return binary_text(in_u(multiple))


def around_0(bound: str | Fraction) -> str:
    """Return the interval from -bound to bound."""
    text = gappa(bound)
    return f"[-{text}, {text}]"


def interval(ends: tuple[Fraction, Fraction]) -> str:
    """Return an interval for a script."""
    return f"[{gappa(ends[0])}, {gappa(ends[1])}]"


def not_zero(names: Iterable[str]) -> str:
    """Return the condition of a hint that divides by these numbers."""
    return "{ " + ", ".join(f"{name} <> 0" for name in names) + " }"


def polynomial(coefficients: Iterable[float], t: str) -> str:
    """Return a polynomial in t by Horner's rule, without roundings."""
    text = ""
    for coefficient in reversed(list(coefficients)):
        number = gappa(Fraction(coefficient))
        text = f"({text} * {t} + {number})" if text else number
    return text


def _log(translation: Translation, x: str) -> Value:
    translation.assume(f"log_{x} -/ ln_{x} in {around_0(u(LOG))}")
    translation.assume(f"@FLT(log_{x}, 53)", f"@FIX(log_{x}, -1074)")
    return f"log_{x}"


def _sine(translation: Translation, x: str) -> Value:
    translation.assume(f"c_{x} -/ low_{x} in {around_0(u(SINE))}", f"@FLT(c_{x}, 53)")
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


# `log` and `sinpi` have separate statements; the others are checked by `bit_tricks`.
LEMMAS: dict[str, Lemma] = {
    "log": _log,
    "sinpi": _sine,
    "reciprocal_bound": _reciprocal,
    "ones_after": _ones,
    "as_unsigned": lambda _, word: word,
    # z has the sign of Z, so a claim about their absolute values is a claim about them.
    "with_sign_of": lambda _, __, magnitude: magnitude,
}
