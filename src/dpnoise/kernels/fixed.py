"""128-bit fixed-point arithmetic in integers, for the second stage of exact release.

A number is two words, (high, low), and means (2^64 high + low) units. A unit is 2^-128 for
fractions of 1 and 2^-120 for magnitudes below 256. Every operation is exact or rounds down by less
than one unit, so errors are counts of units, and they add up. The rounding mode and the flushing of
subnormals have no effect. No instruction takes a time that depends on its operands: there is no
division, no square root, no branch on a number and no table look-up by a number.

docs/exact-release-proof.md derives the bound of each function.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from dpnoise.kernels import Truth, compile_inline, compile_kernel

Wide = tuple[np.uint64, np.uint64]

_Function = TypeVar("_Function", bound=Callable[..., object])

_0, _1, _2, _3, _7, _63 = (np.uint64(k) for k in (0, 1, 2, 3, 7, 63))
_WORD, _TWO_WORDS = ir.IntType(64), ir.IntType(128)
_TYPES = {"word": types.uint64, "wide": types.UniTuple(types.uint64, 2), "truth": types.boolean}

# The operations. Each is defined with Python integers, and compiled to 128-bit LLVM integers.


def whole(a: Wide) -> int:
    """Return a number as one integer."""
    return int(a[0]) << 64 | int(a[1])


def wide(number: int) -> Wide:
    """Return an integer modulo 2^128 as two words."""
    return np.uint64(number >> 64 & 2**64 - 1), np.uint64(number & 2**64 - 1)


def _join_words(builder: ir.IRBuilder, argument: ir.Value) -> ir.Value:
    """Return an LLVM argument of one or two words as a 128-bit integer."""
    if argument.type == _WORD:
        return builder.zext(argument, _TWO_WORDS)
    high, low = (builder.zext(builder.extract_value(argument, k), _TWO_WORDS) for k in (0, 1))
    return builder.or_(builder.shl(high, _TWO_WORDS(64)), low)


def _split(builder: ir.IRBuilder, number: ir.Value, kind: str) -> ir.Value:
    """Return a 128-bit integer as a result of the given kind."""
    if kind == "truth":
        return number
    low = builder.trunc(number, _WORD)
    if kind == "word":
        return low
    pair = builder.insert_value(ir.Constant(ir.ArrayType(_WORD, 2), ir.Undefined), low, 1)
    high = builder.trunc(builder.lshr(number, _TWO_WORDS(64)), _WORD)
    return builder.insert_value(pair, high, 0)


def _compile_as(
    build: Callable[..., ir.Value], arguments: tuple[str, ...], result: str
) -> Callable[[_Function], _Function]:
    """Compile a function of one or two arguments to the LLVM code that `build` generates.

    Only kernels can call the result. If Numba's compiler is disabled, the Python definition runs.
    (Numba compiles these in half the time of functions of words.)
    """
    signature = _TYPES[result](*(_TYPES[argument] for argument in arguments))

    def codegen(
        _context: object, builder: ir.IRBuilder, _signature: object, values: list[ir.Value]
    ) -> ir.Value:
        return _split(builder, build(builder, *(_join_words(builder, v) for v in values)), result)

    def decorate(definition: _Function) -> _Function:
        if config.DISABLE_JIT:
            return definition
        if len(arguments) == 1:
            operation = intrinsic(lambda _context, _a: (signature, codegen))
        else:
            operation = intrinsic(lambda _context, _a, _b: (signature, codegen))
        operation.definition = definition
        return cast("_Function", operation)

    return decorate


def _shift_or_zero(shift: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    """Return a shift that gives 0 from 128 places on, where LLVM's shift is undefined."""

    def build(builder: ir.IRBuilder, a: ir.Value, places: ir.Value) -> ir.Value:
        within = shift(builder, a, builder.and_(places, _TWO_WORDS(127)))
        inside = builder.icmp_unsigned("<", places, _TWO_WORDS(128))
        return builder.select(inside, within, _TWO_WORDS(0))

    return build


def _high_half(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the upper 128 bits of a product, from the four products of words."""
    low_word = _TWO_WORDS(2**64 - 1)
    (a1, a0), (b1, b0) = (
        (builder.lshr(number, _TWO_WORDS(64)), builder.and_(number, low_word)) for number in (a, b)
    )
    first, second = builder.mul(a1, b0), builder.mul(a0, b1)
    middle = builder.lshr(builder.mul(a0, b0), _TWO_WORDS(64))
    for cross in (first, second):
        middle = builder.add(middle, builder.and_(cross, low_word))
    high = builder.add(builder.mul(a1, b1), builder.lshr(middle, _TWO_WORDS(64)))
    for cross in (first, second):
        high = builder.add(high, builder.lshr(cross, _TWO_WORDS(64)))
    return high


@_compile_as(ir.IRBuilder.add, ("wide", "wide"), "wide")
def plus(a: Wide, b: Wide) -> Wide:
    """Return a + b modulo 2^128 units."""
    return wide(whole(a) + whole(b))


@_compile_as(ir.IRBuilder.sub, ("wide", "wide"), "wide")
def minus(a: Wide, b: Wide) -> Wide:
    """Return a - b modulo 2^128 units."""
    return wide(whole(a) - whole(b))


@_compile_as(_high_half, ("wide", "wide"), "wide")
def times(a: Wide, b: Wide) -> Wide:
    """Return a fraction times a fraction, or times a magnitude, rounded down."""
    return wide(whole(a) * whole(b) >> 128)


@_compile_as(ir.IRBuilder.mul, ("word", "word"), "wide")
def product(a: np.uint64, b: np.uint64) -> Wide:
    """Return the product of two words, exactly."""
    return wide(int(a) * int(b))


@_compile_as(_shift_or_zero(ir.IRBuilder.shl), ("wide", "word"), "wide")
def up(a: Wide, b: np.uint64) -> Wide:
    """Return a * 2^b modulo 2^128 units."""
    return wide(whole(a) << min(int(b), 128))


@_compile_as(_shift_or_zero(ir.IRBuilder.lshr), ("wide", "word"), "wide")
def down(a: Wide, b: np.uint64) -> Wide:
    """Return a / 2^b rounded down."""
    return wide(whole(a) >> int(b))


@_compile_as(lambda builder, a, b: builder.icmp_unsigned("<", a, b), ("wide", "wide"), "truth")
def is_less(a: Wide, b: Wide) -> Truth:
    """Return whether a < b."""
    return whole(a) < whole(b)


@_compile_as(lambda builder, a: builder.ctlz(a, ir.IntType(1)(0)), ("wide",), "word")
def zeros_before(a: Wide) -> np.uint64:
    """Return the number of leading zero bits; 128 for 0."""
    return np.uint64(128 - whole(a).bit_length())


@compile_inline
def mask_where(condition: Truth) -> np.uint64:
    """Return a word of ones where the condition holds, else 0."""
    return _0 - np.uint64(condition)


@compile_inline
def mask_of(sign: np.uint64) -> np.uint64:
    """Return a word of ones for a first bit of 1, else 0."""
    return _0 - (sign >> _63)


@compile_inline
def negated_if(mask: np.uint64, a: Wide) -> Wide:
    """Return -a modulo 2^128 units where the mask is all ones, a where it is 0."""
    return minus((a[0] ^ mask, a[1] ^ mask), (mask, mask))


# tests/kernels/test_fixed.py compares both literals with ball arithmetic.
_HALF_PI = Fraction(0x1921FB54442D18469898CC51701B839A252049C1114CF98E8, 2**192)
_HALF_LOG_2 = wide(0x58B90BFBE8E7BCD5E4F1D9CC01F97C)  # Rounded up; its unit is 2^-120.
SQRT_HALF = wide(math.isqrt(2**255))
_HALF_SQRT_HALF = wide(math.isqrt(2**253))
# atanh(s) = s + s t (1/3 + t/5 + ...) with t = s^2 <= 0.0295: the omitted terms are below a unit.
_ATANH_TERMS = 24
_ATANH = tuple(wide(2**128 // (2 * k + 3)) for k in range(_ATANH_TERMS))
# sin(pi t/2)/2 = t (c0 - t^2 (c1 - t^2 (c2 - ...))), ck = (pi/2)^(2k+1) / (2 (2k+1)!).
_SINE_TERMS = 19
_SINE = tuple(
    wide(int(2**127 * _HALF_PI ** (2 * k + 1) / math.factorial(2 * k + 1)))
    for k in range(_SINE_TERMS)
)
# Linear first approximations: of 1/(2x) within 1/64, and of 1/(4 sqrt x) within 1/11, relatively.
_RECIPROCAL_AT_0, _RECIPROCAL_SLOPE = wide(int(0.39308733 * 2**128)), wide(int(0.956064 * 2**128))
_ROOT_AT_0, _ROOT_SLOPE = wide(int(0.53319319 * 2**128)), wide(int(0.30468182 * 2**128))
_THREE_SIXTEENTHS = wide(3 * 2**124)


@compile_kernel
def half_reciprocal(x: Wide) -> Wide:
    """Return 1/(2x) for a fraction x between 0.6035 and 0.8536, within 4 units.

    Newton's g <- 2g(1 - xg) squares the error |2xg - 1|: five times, starting from 2^-6.
    """
    g = minus(_RECIPROCAL_AT_0, times(_RECIPROCAL_SLOPE, x))  # Modulo 1.
    for _ in range(5):
        g = up(times(g, minus((_0, _0), times(x, g))), _1)
    return g


@compile_kernel
def minus_log(v: Wide) -> tuple[Wide, np.uint64]:
    """Return -log V of a fraction V > 0 as a magnitude, and the number e of its leading zeros.

    Its error is below 2e + 5 units, and it is never negative. V = f 2^-e with f in [1/2, 1), and
    log f = 2 atanh((f - c)/(f + c)) + log c with c = sqrt(1/2).
    """
    e = zeros_before(v)
    f = up(v, e)
    difference = minus(f, SQRT_HALF)
    below = mask_where(is_less(f, SQRT_HALF))
    size = negated_if(below, difference)
    s = times(size, half_reciprocal(plus(down(f, _1), _HALF_SQRT_HALF)))
    t = times(s, s)
    rest = _ATANH[_ATANH_TERMS - 1]
    for k in range(_ATANH_TERMS - 2, -1, -1):
        rest = plus(_ATANH[k], times(t, rest))
    twice_atanh = down(plus(s, times(s, times(t, rest))), _7)
    halves = e + e + _1
    logs = plus(product(_HALF_LOG_2[1], halves), (_HALF_LOG_2[0] * halves, _0))
    # One unit more, because the subtrahend may be too large by a unit.
    return minus(plus(logs, (_0, _1)), negated_if(below, twice_atanh)), e


@compile_kernel
def half_sine(t: Wide) -> Wide:
    """Return sin(pi t/2)/2 of a fraction t, within 64 units."""
    square = times(t, t)
    q = _SINE[_SINE_TERMS - 1]
    for k in range(_SINE_TERMS - 2, -1, -1):
        q = minus(_SINE[k], times(square, q))
    return times(t, q)


@compile_kernel
def root(a: Wide) -> tuple[Wide, np.uint64]:
    """Return the root of a magnitude within 8 units, and k with root >= 2^(3-k), or a = 0.

    a = g 2^(8-2k) with g in [1/4, 1), and Newton's y <- y (3 - g y^2)/2 leads to 1/sqrt(g).
    """
    k = zeros_before(a) >> _1
    g = up(a, k + k)
    y = minus(_ROOT_AT_0, times(_ROOT_SLOPE, g))  # A quarter of 1/sqrt(g).
    for _ in range(6):
        y = up(times(y, minus(_THREE_SIXTEENTHS, times(g, times(y, y)))), _3)
    return down(times(g, y), k + _2), k
