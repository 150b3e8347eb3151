"""Variates with a certified bound on their error, for exact release: words in, (z, error) out.

Each function returns z and a bound on |z - Z|, where Z is the value of the formula for infinite
strings of bits. The words hold the first `bits` bits of each string: 64, or fewer in the tests that
enumerate all words. The bound covers the unseen bits, the polynomials and every rounding in these
functions and in `first_stage.certain_point`.

docs/exact-release-proof.md derives each bound line by line, and `make proof` proves it. The letters:

    u = 2^-53 is the unit roundoff, unit = 2^-bits the width of a uniform's unseen part,
    ROUND = 32u exceeds the sum of all roundings, relative to -log V or its root,
    UNSEEN(V) = unit/V bounds the distance of log V from its value at the lower end of V.

No function branches on a number: conditional expressions select between two computed numbers.
"""

import math

import numpy as np

from dpnoise.kernels import compile_inline, compile_kernel
from dpnoise.kernels.elementary import (
    LOW_63_BITS,
    Word,
    as_unsigned,
    fma,
    log,
    power_of_two,
    sinpi,
    with_sign_of,
)

ROUND = 2.0**-48
# Rounding V to a float changes log V by at most u. Near V = 1 the roundings that are not relative
# to log V add less than 2u.
ROUND_V = 2.0**-51
SQRT_2 = math.sqrt(2.0)
_RECIPROCAL = 2046 << 52
LOW_62_BITS = np.uint64(2**62 - 1)
_ALL_BITS = np.uint64(2**64 - 1)


@compile_inline
def reciprocal_bound(x: float) -> float:
    """Return a number between 1/x and 1.125/x for x > 0, and 2^1023 for x = 0.

    Subtracting the bits of x from twice those of 1 replaces 1/m on [1, 2] by its chord (3-m)/2.
    """
    return np.int64(_RECIPROCAL - np.float64(x).view(np.int64)).view(np.float64)


@compile_inline
def ones_after(word: Word, bits: int) -> np.uint64:
    """Return the complement of U's word with all unseen bits of U taken as ones."""
    return (_ALL_BITS << np.uint64(64 - bits)) & ~as_unsigned(word)


@compile_inline
def lower_end(word: Word, bits: int) -> float:
    """Return the lower end of V = 1 - U, rounded to a float. It may be 0."""
    return np.float64(ones_after(word, bits)) * power_of_two(-64)


@compile_kernel
def cosine(word: Word, bits: int) -> float:
    """Return Remark 1's cosine at the lower end of its magnitude, within 6u + 4 unit."""
    left = np.int64(ones_after(word, bits) & LOW_63_BITS)
    return with_sign_of(word, sinpi(np.float64(left) * power_of_two(-64)))


@compile_kernel
def exponential(word: Word, bits: int) -> tuple[float, float]:
    """-log V."""
    V = lower_end(word, bits)
    E = 0.0 - log(V)
    return E, ROUND * E + ROUND_V + power_of_two(-bits) * reciprocal_bound(V)


@compile_kernel
def laplace_1(word: Word, bits: int) -> tuple[float, float]:
    """Equation (2): the first bit is the sign, -log V of the other bits the magnitude."""
    V = np.float64(np.int64(ones_after(word, bits) & LOW_63_BITS)) * power_of_two(-63)
    E = 0.0 - log(V)
    error = fma(power_of_two(1 - bits), reciprocal_bound(V), fma(ROUND, E, ROUND_V))
    return -with_sign_of(word, E), error


@compile_kernel
def half_pair(v: Word, u: Word, bits: int) -> tuple[float, float]:
    """sqrt(-log V) cos(pi U); the root moves by no more than |a - b| / sqrt(b)."""
    V = lower_end(v, bits)
    root = math.sqrt(0.0 - log(V))
    unit = power_of_two(-bits)
    # At V = 0 the second reciprocal is 2^1023, so no grid point is certain at any scale.
    unseen = fma(ROUND_V, reciprocal_bound(root), unit * reciprocal_bound(V * root))
    return root * cosine(u, bits), fma(ROUND + 4.0 * unit, root, unseen)


@compile_kernel
def gaussian_2(v: Word, u: Word, bits: int) -> tuple[float, float]:
    """sqrt(2) sqrt(-log V) cos(pi U)."""
    z, error = half_pair(v, u, bits)
    return SQRT_2 * z, 1.5 * error


@compile_kernel
def gaussian_pair(v: Word, u: Word, bits: int) -> tuple[float, float, float]:
    """sqrt(-2 log V) times cosine and sine of one angle, and the error of either.

    The first two bits of U are the signs, the others the angle in a quarter turn.
    """
    V = lower_end(v, bits)
    R = math.sqrt(fma(-2.0, log(V), 0.0))
    unit = power_of_two(-bits)
    unseen = fma(2.0 * ROUND_V, reciprocal_bound(R), 2.0 * unit * reciprocal_bound(V * R))
    left = np.float64(np.int64(ones_after(u, bits) & LOW_62_BITS)) * power_of_two(-63)
    turned = np.float64(np.int64(as_unsigned(u) & LOW_62_BITS)) * power_of_two(-63)
    second_sign = as_unsigned(u) << np.uint64(1)
    return (
        with_sign_of(u, R * sinpi(left)),
        with_sign_of(second_sign, R * sinpi(turned)),
        fma(ROUND + 8.0 * unit, R, unseen),
    )


@compile_kernel
def gumbel(word: Word, bits: int) -> tuple[float, float]:
    """-log E with E = -log V; a relative error d of E changes -log E by at most d/(1-d)."""
    V = lower_end(word, bits)
    E = 0.0 - log(V)
    z = 0.0 - log(E)
    part = (ROUND_V + power_of_two(-bits) * reciprocal_bound(V)) * reciprocal_bound(E)
    unseen = part / (1.0 - part) if part < 1.0 else np.inf
    return z, ROUND * (1.0 + abs(z)) + unseen
