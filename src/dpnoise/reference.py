"""The judge: the same definitions in ball arithmetic, slow and exact.

A formula here takes the digits of its uniforms and returns a ball that encloses Z. With more digits
and more precision the ball shrinks, until what is asked of Z has one answer. Nothing here knows the
kernels; every backend must give what this module gives, to the last bit.

Balls enclose at any precision. If another thread changes flint's precision meanwhile, a ball comes
out wider, and the search goes on with more digits: the answer stays the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from struct import pack, unpack
from typing import NamedTuple

from flint import arb, ctx

WORD_BITS = 64
_GUARD_BITS = 64


class Digits(NamedTuple):
    """The first binary digits of a uniform: value <= U * 2^length <= value + 1."""

    value: int
    length: int

    @property
    def ball(self) -> arb:
        """The ball that encloses U."""
        return arb((2 * self.value + 1, -self.length - 1), arb((1, -self.length - 1)))

    @property
    def sign(self) -> int:
        """The first digit as a sign: 0 is plus."""
        return -1 if self.value >> (self.length - 1) else 1

    @property
    def rest(self) -> "Digits":
        """2U mod 1: the digits after the first."""
        return Digits(self.value % (1 << (self.length - 1)), self.length - 1)


Formula = Callable[[Sequence[Digits]], arb]


def minus_log_v(u: Digits) -> arb:
    """-log V with V = 1 - U; it is never negative."""
    return (-(1 - u.ball).log()).nonnegative_part()


def cosine(u: Digits) -> arb:
    """Remark 1: the first digit is the sign, cos(pi (U mod 1/2)) the magnitude."""
    return u.sign * (u.rest.ball / 2).cos_pi()


def laplace_1(u: Sequence[Digits]) -> arb:
    """Equation (2), mirrored: the first digit is the sign of log V, V = 1 - (2U mod 1)."""
    return -u[0].sign * minus_log_v(u[0].rest)


def laplace_4(u: Sequence[Digits]) -> arb:
    """Theorem 5.1: log V1 cos(pi U1) + log V2 cos(pi U2)."""
    v1, u1, v2, u2 = u
    return -minus_log_v(v1) * cosine(u1) - minus_log_v(v2) * cosine(u2)


def gaussian_2(u: Sequence[Digits]) -> arb:
    """sqrt(2) sqrt(-log V) cos(pi U)."""
    return arb(2).sqrt() * minus_log_v(u[0]).sqrt() * cosine(u[1])


def gaussian_4(u: Sequence[Digits]) -> arb:
    """sqrt(-log V1) cos(pi U1) + sqrt(-log V2) cos(pi U2)."""
    v1, u1, v2, u2 = u
    return minus_log_v(v1).sqrt() * cosine(u1) + minus_log_v(v2).sqrt() * cosine(u2)


def exponential(u: Sequence[Digits]) -> arb:
    """-log V."""
    return minus_log_v(u[0])


def gumbel(u: Sequence[Digits]) -> arb:
    """-log E with E = -log V."""
    return -minus_log_v(u[0]).log()


# Each exact form: its formula and the number of uniforms that it takes.
FORMS: dict[str, tuple[Formula, int]] = {
    "laplace_1": (laplace_1, 1),
    "laplace_4": (laplace_4, 4),
    "gaussian_2": (gaussian_2, 2),
    "gaussian_4": (gaussian_4, 4),
    "exponential": (exponential, 1),
    "gumbel": (gumbel, 1),
}


def dyadic(number: float | Fraction) -> Fraction:
    """Return a number as a fraction; a float from its bits, also where subnormals are flushed."""
    if not isinstance(number, float):
        return Fraction(number)
    (bits,) = unpack("<q", pack("<d", number))
    exponent, mantissa = (bits >> 52) & 0x7FF, bits & (2**52 - 1)
    if exponent == 0x7FF:  # noqa: PLR2004 - the exponent of NaN and the infinities
        raise ValueError("Expected a finite number.")
    whole = mantissa + 2**52 if exponent else mantissa
    power = max(exponent, 1) - 1075
    size = Fraction(whole << power) if power > 0 else Fraction(whole, 1 << -power)
    return -size if bits < 0 else size


def exact(number: float | Fraction) -> arb:
    """Return a number whose denominator is a power of two as a ball of radius zero."""
    fraction = dyadic(number)
    power = fraction.denominator.bit_length() - 1
    if fraction.denominator != 1 << power:
        raise ValueError("Expected a denominator that is a power of two.")
    return arb((fraction.numerator, -power))


def enclosures(
    formula: Formula, words: Iterable[Sequence[int]], extra_bits: int = 0
) -> Iterator[arb]:
    """Yield balls around Z, each from 64 more digits of every uniform than the one before."""
    digits: list[Digits] = []
    for row in words:
        digits = digits or [Digits(0, 0)] * len(row)
        digits = [
            Digits(old.value << WORD_BITS | int(word), old.length + WORD_BITS)
            for old, word in zip(digits, row, strict=True)
        ]
        with ctx.workprec(digits[0].length + _GUARD_BITS + extra_bits):
            Z = formula(digits)
        yield Z


def grid_point(
    formula: Formula,
    words: Iterable[Sequence[int]],
    value: float | Fraction,
    scale: float,
    grid: float,
) -> int:
    """Return floor((value + scale * Z) / grid + 1/2), exactly.

    Parameters
    ----------
    formula
        What Z is.
    words
        Rows of words, one word for each uniform: first their first 64 digits, then the next 64.
    value, scale, grid
        As in the mechanisms; grid is a power of two.
    """
    fractions = [dyadic(number) / dyadic(grid) for number in (value, scale)]
    quotient, ratio = (exact(fraction) for fraction in fractions)
    extra_bits = sum(int(fraction).bit_length() for fraction in fractions)
    for Z in enclosures(formula, words, extra_bits):
        with ctx.workprec(2 * (extra_bits + Z.bits()) + _GUARD_BITS):
            cell = (quotient + ratio * Z + exact(0.5)).floor().unique_fmpz()
        if cell is not None:
            return int(cell)
    raise ValueError("The words ended before the cell was certain.")
