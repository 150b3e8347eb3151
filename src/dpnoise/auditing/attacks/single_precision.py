"""Pairs of float32 Gaussians as torch computes them, to the last bit: a test holds them to it.

x86-64, with AVX2      the polynomials of the Cephes library's logf, sinf and cosf (Moshier 1989),
                       eight numbers at a time, joined into fused multiply-adds by torch's compiler
aarch64, and without   one number after the other, with the C library's functions: the machine's own
                       are called
"""

import math

import numpy as np

from dpnoise.kernels import compiled

_f = np.float32
_SQRT_HALF = _f(math.sqrt(0.5))
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440e-4)
_FOUR_OVER_PI = _f(4.0 / math.pi)
# pi/4 in three parts, so that multiples of it are subtracted exactly enough.
_QUARTER_1, _QUARTER_2, _QUARTER_3 = (
    _f(-0.78515625),
    _f(-2.4187564849853515625e-4),
    _f(-3.77489497744594108e-8),
)
_LOG = tuple(
    _f(c)
    for c in (
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
)
_SIN = (_f(-1.9515295891e-4), _f(8.3321608736e-3), _f(-1.6666654611e-1))
_COS = (_f(2.443315711809948e-5), _f(-1.388731625493765e-3), _f(4.166664568298827e-2))


@compiled
def _fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Return a * b + c, rounded once: the product of two float32 is exact in float64.

    The sum is rounded to odd there, after which the second rounding is that of the exact sum
    (Boldo and Melquiond 2008). Rounded to nearest it would differ in about one case of 2^29.
    """
    product, summand = np.float64(a) * np.float64(b), np.float64(c)
    total = product + summand
    part = total - product
    lost = (product - (total - part)) + (summand - part)
    bits = np.float64(total).view(np.int64)
    if lost != 0.0 and bits & 1 == 0:
        bits += 1 if (lost > 0.0) == (total > 0.0) else -1
    return np.float32(np.int64(bits).view(np.float64))


@compiled
def log_32(x: np.float32) -> np.float32:
    """Return log x of a normal x > 0."""
    significand, exponent = math.frexp(x)
    m, e = np.float32(significand), np.float32(exponent)
    if m < _SQRT_HALF:
        e -= _f(1.0)
        m += m
    m -= _f(1.0)
    square = m * m
    y = _LOG[0]
    for c in _LOG[1:]:
        y = _fma(y, m, c)
    y = _fma(y * m, square, e * _LN2_LOW)
    y = _fma(-square, _f(0.5), y)
    return _fma(e, _LN2_HIGH, m + y)


@compiled
def sincos_32(x: np.float32) -> tuple[np.float32, np.float32]:
    """Return sin x and cos x of an x >= 0."""
    octant = (np.int32(x * _FOUR_OVER_PI) + 1) & ~1
    y = np.float32(octant)
    x = _fma(y, _QUARTER_3, _fma(y, _QUARTER_2, _fma(y, _QUARTER_1, x)))
    z = x * x
    cosine = _fma(_fma(_COS[0], z, _COS[1]), z, _COS[2]) * z
    cosine = _fma(cosine, z, -(z * _f(0.5))) + _f(1.0)
    sine = _fma(_fma(_SIN[0], z, _SIN[1]), z, _SIN[2]) * z
    sine = _fma(sine, x, x)
    if octant & 2:
        sine, cosine = cosine, sine
    if octant & 4:
        sine = -sine
    if (octant + 2) & 4:
        cosine = -cosine
    return sine, cosine


@compiled
def gaussians_32(
    V1: np.float32,
    U2: np.float32,
    vectorised: bool,  # noqa: FBT001 - kernels take no keywords
) -> tuple[np.float32, np.float32]:
    """Return the pair of Gaussians that torch makes of V1 = 1 - U1 and U2."""
    if vectorised:
        radius = np.sqrt(_f(-2.0) * log_32(V1))
        sine, cosine = sincos_32(_f(2.0 * math.pi) * U2)
    else:
        radius = np.sqrt(_f(-2.0) * _f(math.log(V1)))
        angle = _f(2.0 * math.pi * np.float64(U2))
        sine, cosine = _f(math.sin(angle)), _f(math.cos(angle))
    return radius * cosine, radius * sine
