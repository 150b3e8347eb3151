"""The reference implementation: every noise formula in ball arithmetic, slow and exact.

A formula takes the binary digits of its uniforms and returns a ball that encloses Z. More digits
and more precision shrink the ball until only one grid point remains. This module does not use the
kernels; every backend must equal it to the last bit.

flint's precision is one setting of the whole process and belongs to the user. So every operation
on a `Ball` sets its precision and restores it.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from struct import pack, unpack
from typing import Final, NamedTuple

from flint import arb, arf, ctx

WORD_BITS = 64
_GUARD_BITS = 64


@lru_cache(maxsize=256)
def _at_precision(bits: int, operation: Callable[..., arb]) -> Callable[..., arb]:
    """Return a flint operation that rounds to `bits` bits, independent of the user's precision.

    flint's wrapper sets the precision, computes and restores it in one call of compiled code.
    Threads switch between such calls, never within one, so no other thread sees the change.
    """
    wrapped: Callable[..., arb] = ctx.workprec(bits)(operation)
    return wrapped


def _unary(operation: Callable[[arb], arb]) -> Callable[["Ball"], "Ball"]:
    def method(self: "Ball") -> "Ball":
        return Ball(_at_precision(self.bits, operation)(self.enclosure), self.bits)

    return method


def _binary(operation: Callable[[arb, arb], arb]) -> Callable[["Ball", "Ball | arb"], "Ball"]:
    def method(self: "Ball", other: "Ball | arb") -> "Ball":
        operand = other.enclosure if isinstance(other, Ball) else other
        return Ball(_at_precision(self.bits, operation)(self.enclosure, operand), self.bits)

    return method


class Ball:
    """A real number enclosed by Arb, with the precision of operations on it.

    The precision is rounded up to whole words, so that few precisions occur, which
    `_at_precision` caches.
    """

    __slots__ = ("bits", "enclosure")

    def __init__(self, enclosure: arb, bits: int) -> None:
        self.enclosure = enclosure
        self.bits = -(-bits // WORD_BITS) * WORD_BITS

    __neg__ = _unary(operator.neg)
    __add__ = __radd__ = _binary(operator.add)
    __sub__ = _binary(operator.sub)
    __mul__ = __rmul__ = _binary(operator.mul)
    __truediv__ = _binary(operator.truediv)
    log, exp, sqrt = _unary(arb.log), _unary(arb.exp), _unary(arb.sqrt)
    cos_pi, sin_pi = _unary(arb.cos_pi), _unary(arb.sin_pi)
    tan_pi, erfc = _unary(arb.tan_pi), _unary(arb.erfc)
    floor, nonnegative_part = _unary(arb.floor), _unary(arb.nonnegative_part)

    def __rsub__(self, other: "Ball | arb") -> "Ball":
        difference: Ball = -self + other
        return difference


@lru_cache(maxsize=256)
def _half_a_digit(length: int) -> arb:
    """Return half a unit of binary digit number `length` after the point."""
    return arb((1, -length - 1))


class Digits(NamedTuple):
    """The first binary digits of a uniform: value <= U * 2^length <= value + 1.

    `bits` is the precision of operations on them. Only tests use None, flint's current precision.
    """

    value: int
    length: int
    bits: int | None = None

    @property
    def ball(self) -> Ball | arb:
        """The ball that encloses U."""
        enclosure = arb(arf((2 * self.value + 1, -self.length - 1)), _half_a_digit(self.length))
        return enclosure if self.bits is None else Ball(enclosure, self.bits)

    @property
    def sign(self) -> int:
        """The first digit as a sign: 0 is plus."""
        return -1 if self.value >> (self.length - 1) else 1

    @property
    def rest(self) -> "Digits":
        """2U mod 1: the digits after the first."""
        return Digits(self.value % (1 << (self.length - 1)), self.length - 1, self.bits)


Formula = Callable[[Sequence[Digits]], Ball | arb]


def minus_log_v(u: Digits) -> Ball | arb:
    """-log V with V = 1 - U; it is never negative."""
    return (-(1 - u.ball).log()).nonnegative_part()


def cosine(u: Digits) -> Ball | arb:
    """Remark 1: the first digit is the sign, cos(pi (U mod 1/2)) the magnitude."""
    return u.sign * (u.rest.ball / 2).cos_pi()


def laplace_1(u: Sequence[Digits]) -> Ball | arb:
    """Equation (2), mirrored: the first digit is the sign of log V, V = 1 - (2U mod 1)."""
    return -u[0].sign * minus_log_v(u[0].rest)


def gaussian_2(u: Sequence[Digits]) -> Ball | arb:
    """sqrt(-2 log V) cos(pi U)."""
    return (2 * minus_log_v(u[0])).nonnegative_part().sqrt() * cosine(u[1])


def gaussian_cosine(u: Sequence[Digits]) -> Ball | arb:
    """sqrt(-2 log V) cos(pi T/2): the first of a pair. T is U without its first two digits.

    The first digit of U is the sign of the cosine, the second that of the sine.
    """
    return (2 * minus_log_v(u[0])).nonnegative_part().sqrt() * (
        u[1].sign * (u[1].rest.rest.ball / 2).cos_pi()
    )


def gaussian_sine(u: Sequence[Digits]) -> Ball | arb:
    """sqrt(-2 log V) sin(pi T/2): the second of a pair."""
    return (2 * minus_log_v(u[0])).nonnegative_part().sqrt() * (
        u[1].rest.sign * (u[1].rest.rest.ball / 2).sin_pi()
    )


def exponential(u: Sequence[Digits]) -> Ball | arb:
    """-log V."""
    return minus_log_v(u[0])


def gumbel(u: Sequence[Digits]) -> Ball | arb:
    """-log E with E = -log V."""
    return -minus_log_v(u[0]).log()


def exact_fraction(number: float | Fraction) -> Fraction:
    """Return the exact value of a number as a fraction.

    Floats are decoded from their bits, because some processors flush subnormals to zero.
    """
    if not isinstance(number, float):
        return number if isinstance(number, Fraction) else Fraction(number)
    (bits,) = unpack("<q", pack("<d", number))
    exponent, mantissa = (bits >> 52) & 0x7FF, bits & (2**52 - 1)
    if exponent == 0x7FF:  # noqa: PLR2004 - the exponent of NaN and the infinities
        raise ValueError("The number must be finite.")
    whole = mantissa + 2**52 if exponent else mantissa
    power = max(exponent, 1) - 1075
    size = Fraction(whole << power) if power > 0 else Fraction(whole, 1 << -power)
    return -size if bits < 0 else size


def ball_of(number: float | Fraction) -> arb:
    """Return a number whose denominator is a power of two as a ball of radius zero."""
    fraction = exact_fraction(number)
    power = fraction.denominator.bit_length() - 1
    if fraction.denominator != 1 << power:
        raise ValueError("The denominator must be a power of two.")
    return arb(arf((fraction.numerator, -power)))


_HALF: Final = ball_of(0.5)


def enclosures(
    formula: Formula, words: Iterable[Sequence[int]], extra_bits: int = 0
) -> Iterator[arb]:
    """Yield ever smaller balls around Z, each from 64 more digits of every uniform."""
    digits: list[Digits] = []
    for row in words:
        digits = digits or [Digits(0, 0)] * len(row)
        length = digits[0].length + WORD_BITS
        digits = [
            Digits(old.value << WORD_BITS | int(word), length, length + _GUARD_BITS + extra_bits)
            for old, word in zip(digits, row, strict=True)
        ]
        yield formula(digits).enclosure  # It is a Ball, because these digits have `bits`.


def released_whole(
    formula: Formula,
    words: Iterable[Sequence[int]],
    value: float | Fraction,
    scale: float,
    grid: float,
) -> int:
    """Return the exact release divided by the grid: floor((value + scale * Z) / grid + 1/2).

    Row k of the words, from 0, has the binary digits 64 k + 1 to 64 k + 64 of each uniform of Z's
    formula. The grid is a power of two.
    """
    unit = exact_fraction(grid)
    fractions = [exact_fraction(number) / unit for number in (value, scale)]
    quotient, ratio = (ball_of(fraction) for fraction in fractions)
    extra_bits = sum(int(fraction).bit_length() for fraction in fractions)
    for Z in enclosures(formula, words, extra_bits):
        y = quotient + ratio * Ball(Z, 2 * (extra_bits + Z.bits()) + _GUARD_BITS)
        whole = (y + _HALF).floor().enclosure.unique_fmpz()
        if whole is not None:
            return int(whole)
    raise ValueError("The words ended before the rounding was certain.")
