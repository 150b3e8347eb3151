"""Variates in fixed point with a bound on their error, from 128 bits of each uniform.

The forms of `certified`, for the second stage of exact release. Each takes its uniforms as pairs of
words and returns its noise as (magnitude, sign, error): a magnitude of `fixed`, a word whose first
bit is the sign, 0 for plus, and an error bound in units of 2^-120 that covers the unseen bits.
docs/exact-release-proof.md derives the bounds. No function branches on a number: conditional expressions
select between two computed numbers.
"""

import numpy as np

from dpnoise.kernels import compile_inline
from dpnoise.kernels.certified import LOW_62_BITS
from dpnoise.kernels.elementary import LOW_63_BITS
from dpnoise.kernels.fixed import SQRT_HALF, Wide, half_sine, minus_log, root, times, up

Noise = tuple[Wide, np.uint64, np.uint64]

_0, _1, _2, _3, _6, _7, _9, _16 = (np.uint64(k) for k in (0, 1, 2, 3, 6, 7, 9, 16))
_50, _63, _67 = (np.uint64(k) for k in (50, 63, 67))
NO_BOUND = np.uint64(2**62)  # An error with which no grid point is certain.


@compile_inline
def _minus_log_v(complement: Wide, unseen: np.uint64) -> tuple[Wide, np.uint64]:
    """Return -log V at the lower end of V, and its error.

    V may be larger by 2^unseen units, which changes log V by up to 2^unseen 2^-128 / V.
    """
    magnitude, zeros = minus_log(complement)
    moved = _1 << ((max(zeros, _7) - _7 + unseen) & _63)
    return magnitude, moved + zeros + zeros + _6 if zeros < _67 else NO_BOUND


@compile_inline
def _root_of_minus_log_v(complement: Wide) -> tuple[Wide, np.uint64]:
    """Return sqrt(-log V) and its error: two roots differ by at most |a - b| / sqrt(b)."""
    square, error = _minus_log_v(complement, _0)
    magnitude, k = root(square)
    bounded = (error < NO_BOUND) & (k < _50)
    return magnitude, ((error << (k & _63)) >> _3) + _9 if bounded else NO_BOUND


@compile_inline
def _half_cosine(u: Wide) -> Wide:
    """Return half of Remark 1's cosine, without its sign: within 66 units of 2^-128."""
    return half_sine(up((~u[0] & LOW_63_BITS, ~u[1]), _1))


@compile_inline
def laplace_1(u: Wide) -> Noise:
    """Equation (2): the first bit is the sign of log V, -log V of the others the magnitude."""
    magnitude, error = _minus_log_v(up((~u[0] & LOW_63_BITS, ~u[1]), _1), _1)
    return magnitude, ~u[0], error


@compile_inline
def gaussian_2(v: Wide, u: Wide) -> Noise:
    """sqrt(2) sqrt(-log V) cos(pi U)."""
    radius, error = _root_of_minus_log_v((~v[0], ~v[1]))
    magnitude = up(times(times(radius, SQRT_HALF), _half_cosine(u)), _2)
    return magnitude, u[0], error + (error >> _1) + _16


@compile_inline
def gaussian_pair(v: Wide, u: Wide) -> tuple[Noise, Noise]:
    """sqrt(2) sqrt(-log V) times cosine and sine of one angle in a quarter turn, two signs."""
    radius, error = _root_of_minus_log_v((~v[0], ~v[1]))
    radius = times(radius, SQRT_HALF)
    error += (error >> _1) + _16
    cosine = half_sine(up((~u[0] & LOW_62_BITS, ~u[1]), _2))
    sine = half_sine(up((u[0] & LOW_62_BITS, u[1]), _2))
    first, second = up(times(radius, cosine), _2), up(times(radius, sine), _2)
    return (first, u[0], error), (second, u[0] << _1, error)
