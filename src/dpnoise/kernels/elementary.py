"""log, sin(pi x) and exact conversions from words, without branches and table look-ups.

The time of a branch or a look-up would depend on the noise. tools/fit_polynomials.py fits the
minimax polynomials and explains their names.
"""

import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from dpnoise.kernels import Truth, compile_inline, compile_kernel
from dpnoise.kernels.numba_internals import Untyped

Word = int | np.uint64
# The result of a Numba intrinsic: its signature, and the function that generates its code.
Intrinsic = tuple[object, Callable[..., object]]

# log(f) = s Q(s^2) with s = (f-1)/(f+1), for f in [sqrt(1/2), sqrt(2)].
LOG_COEFFICIENTS = (
    2.0,
    0.6666666666666765,
    0.39999999999298885,
    0.28571428761346196,
    0.22222196988277934,
    0.18183635093352954,
    0.15312443766477946,
    0.14810529835259686,
)
# sin(pi x) = x Q(x^2) for x in [-1/2, 1/2].
SINPI_COEFFICIENTS = (
    3.141592653589793,
    -5.167712780049969,
    2.550164039877294,
    -0.5992645293187383,
    0.08214588656989333,
    -0.007370430478768394,
    0.00046629968879996004,
    -2.190318548305919e-05,
    7.694727910685418e-07,
)
L0, L1, L2, L3, L4, L5, L6, L7 = LOG_COEFFICIENTS
S0, S1, S2, S3, S4, S5, S6, S7, S8 = SINPI_COEFFICIENTS
LOG_2 = math.log(2.0)
SQRT_HALF_BITS = int(np.float64(math.sqrt(0.5)).view(np.int64))
LOW_63_BITS = np.uint64(2**63 - 1)
_SIGN_BIT = np.int64(-(2**63))


@intrinsic  # type: ignore[untyped-decorator]
def _llvm_fma(_context: object, a: types.Type, b: types.Type, c: types.Type) -> Intrinsic:
    def codegen(
        _context: object, builder: ir.IRBuilder, _signature: object, arguments: list[ir.Value]
    ) -> ir.Value:
        return builder.fma(*arguments)

    return types.float64(a, b, c), codegen


def fma(a: float, b: float, c: float) -> float:
    """Return a*b + c, rounded once when compiled and twice when interpreted."""
    return a * b + c


@overload(fma, inline="always")  # type: ignore[untyped-decorator]
def _fma(a: Untyped, b: Untyped, c: Untyped) -> Untyped:
    def multiply_add(a: Untyped, b: Untyped, c: Untyped) -> Untyped:
        return _llvm_fma(a, b, c)

    return multiply_add


@intrinsic  # type: ignore[untyped-decorator]
def _prefer_512_bits(_context: object) -> Intrinsic:
    def codegen(
        context: Untyped, builder: ir.IRBuilder, _signature: object, _arguments: object
    ) -> ir.Value:
        # llvmlite's `add` accepts only attributes without a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


def in_widest_vectors() -> None:
    """Request the processor's widest vectors for the loops of the calling kernel.

    By default LLVM uses half the width of AVX-512. Nothing changes on other processors.
    """


@overload(in_widest_vectors, inline="always")  # type: ignore[untyped-decorator]
def _in_widest_vectors() -> Callable[[], None]:
    def ask() -> None:
        _prefer_512_bits()

    return ask


@compile_kernel
def log_ratio(s: float) -> float:
    """Return log((1+s) / (1-s)) for |s| <= (sqrt(2)-1)/(sqrt(2)+1)."""
    t = s * s
    q = fma(fma(fma(fma(fma(fma(fma(L7, t, L6), t, L5), t, L4), t, L3), t, L2), t, L1), t, L0)
    return s * q


@compile_kernel
def binade(x: float) -> tuple[np.int64, np.float64]:
    """Return e and f with x = 2^e f, f in [sqrt(1/2), sqrt(2)), for a normal x > 0."""
    bits = np.float64(x).view(np.int64)
    e = (bits - SQRT_HALF_BITS) >> 52
    return e, np.int64(bits - (e << 52)).view(np.float64)


@compile_kernel
def log(x: float) -> float:
    """Return log x for a normal x > 0, with relative accuracy near x = 1."""
    e, f = binade(x)  # Near x = 1, e is 0 and f-1 is exact.
    return fma(np.float64(e), LOG_2, log_ratio((f - 1.0) / (f + 1.0)))


@compile_kernel
def sinpi(x: float) -> float:
    """Return sin(pi x) for x in [-1/2, 1/2]."""
    t = x * x
    q = fma(fma(fma(fma(S8, t, S7), t, S6), t, S5), t, S4)
    q = fma(fma(fma(fma(q, t, S3), t, S2), t, S1), t, S0)
    return x * q


@compile_inline
def power_of_two(exponent: int) -> float:
    """Return 2^exponent for -1022 <= exponent <= 1023."""
    return np.int64((1023 + exponent) << 52).view(np.float64)


@compile_kernel
def word_of(raw: bytes, i: int) -> np.uint64:
    """Return the i-th word of little-endian bytes.

    Scalar calls read their words with this function. Python integers would differ in length, and
    the shorter ones take less time to create, so the time would reveal the noise.
    """
    word = np.uint64(0)
    for j in range(8):
        word |= np.uint64(raw[8 * i + j]) << np.uint64(8 * j)
    return word


@compile_inline
def as_unsigned(word: Word) -> np.uint64:
    """Return a word, which may be given as a signed number, as 64 unsigned bits."""
    return np.int64(word).view(np.uint64)


@compile_kernel
def uniform(word: Word, precision: int) -> float:
    """Return U in [0, 1): the top `precision` bits of a word."""
    k = np.int64(as_unsigned(word) >> np.uint64(64 - precision))
    return np.float64(k) * power_of_two(-precision)


@compile_kernel
def complement(word: Word, precision: int) -> float:
    """Return V = 1 - U in (0, 1], exactly."""
    k = np.int64(as_unsigned(word) >> np.uint64(64 - precision))
    return fma(np.float64(k), -power_of_two(-precision), 1.0)


@compile_kernel
def half_turn(word: Word, precision: int) -> float:
    """Return U mod 1/2, exactly: all bits of U but the first."""
    k = np.int64((as_unsigned(word) & LOW_63_BITS) >> np.uint64(64 - precision))
    return np.float64(k) * power_of_two(-precision)


@compile_kernel
def half_turn_left(word: Word, precision: int) -> float:
    """Return 1/2 - (U mod 1/2) in (0, 1/2], exactly."""
    k = np.int64((as_unsigned(word) & LOW_63_BITS) >> np.uint64(64 - precision))
    return fma(np.float64(k), -power_of_two(-precision), 0.5)


@compile_inline
def with_sign_of(word: Word, magnitude: float) -> float:
    """Return `magnitude` >= 0 with the first bit of U as its sign: 0 is plus, 1 is minus."""
    bits = np.float64(magnitude).view(np.int64)
    return np.int64(bits | (np.int64(word) & _SIGN_BIT)).view(np.float64)


@compile_inline
def nan_unless(x: float, certain: Truth) -> float:
    """Return x if it is certain, else NaN, whose bits are all ones.

    From a conditional expression LLVM makes a branch where x is expensive, as on x86-64.
    """
    bits = np.float64(x).view(np.int64)
    return np.int64(bits | (np.int64(certain) - np.int64(1))).view(np.float64)


@compile_kernel
def cospi(word: Word, precision: int) -> float:
    """Return cos(pi U) as Remark 1 draws it: the first bit is the sign, the rest the magnitude.

    (-1)^(first bit) cos(pi (U mod 1/2)) lies in [-1, 1] without 0 and is symmetric, where
    cos(pi U) of U in [0, 1) is not. In real arithmetic both have one distribution.
    """
    return with_sign_of(word, sinpi(half_turn_left(word, precision)))
