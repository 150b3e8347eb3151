"""The paper's formulas: words in, variates out, one compiled kernel for each form.

`variates` (n in the paper) is the number of uniforms that each output uses: a kernel takes that
many words for each output. It uses the top `precision` bits of every word, multiplies by `scale`
and fills `out`. `scratch` is as long as `words` and holds intermediate values; for a single output
it may be `out`. The functions named ..._from_bytes return one output, so that a scalar call of the
default forms needs no array.

V = 1 - U. The uniforms of an element are, in order, V1, U1, V2, U2, ...
Equation, theorem and remark numbers are those of Holohan and Braghin 2021.
"""

import math

import numpy as np

from dpnoise.kernels import Floats, Words, compile_kernel
from dpnoise.kernels.elementary import (
    Word,
    complement,
    cospi,
    half_turn,
    half_turn_left,
    log,
    power_of_two,
    sinpi,
    uniform,
    with_sign_of,
    word_of,
)


@compile_kernel
def uniforms(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """U: multiples of 2^-precision on [0, 1) (Definition 3.1)."""
    for i in range(words.size):
        out[i] = scale * uniform(words[i], precision)


@compile_kernel
def box_muller(v: Word, u: Word, precision: int) -> float:
    """Return sqrt(-log V) cos(pi U): one member of a Box-Muller pair, divided by sqrt(2)."""
    return math.sqrt(-log(complement(v, precision))) * cospi(u, precision)


@compile_kernel
def normals(words: Words, variates: int, precision: int, out: Floats) -> None:
    """Fill the front of `out` with standard Gaussians N, each from `variates` uniforms.

    N = 2/sqrt(n) * sum over n/2 pairs of sqrt(-log V) cos(pi U)      (equation 7 and section 5.1)
    """
    # Two pairs in each iteration, so that LLVM loads the words in whole vectors.
    for i in range(words.size // 4):
        out[2 * i] = box_muller(words[4 * i], words[4 * i + 1], precision)
        out[2 * i + 1] = box_muller(words[4 * i + 2], words[4 * i + 3], precision)
    if words.size % 4 == 2:
        out[words.size // 2 - 1] = box_muller(words[-2], words[-1], precision)
    pairs = variates // 2
    norm = 2.0 / math.sqrt(variates)
    for i in range(words.size // variates):
        total = 0.0
        for j in range(pairs):
            total += out[i * pairs + j]
        out[i] = norm * total


@compile_kernel
def one_gaussian(v1: Word, u1: Word, v2: Word, u2: Word, precision: int) -> float:
    """Return N from four uniforms: sqrt(-log V1) cos(pi U1) + sqrt(-log V2) cos(pi U2)."""
    return box_muller(v1, u1, precision) + box_muller(v2, u2, precision)


@compile_kernel
def gaussian_from_bytes(raw: bytes, precision: int) -> float:
    """Return one Gaussian variate N, from four uniforms in 32 bytes."""
    v1, u1, v2, u2 = word_of(raw, 0), word_of(raw, 1), word_of(raw, 2), word_of(raw, 3)
    return one_gaussian(v1, u1, v2, u2, precision)


@compile_kernel
def gaussian(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """N from any even number of uniforms; four, the default, in one loop."""
    if variates == 4:
        for i in range(words.size // 4):
            v1, u1, v2, u2 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
            out[i] = scale * one_gaussian(v1, u1, v2, u2, precision)
    else:
        normals(words, variates, precision, scratch)
        for i in range(words.size // variates):
            out[i] = scale * scratch[i]


@compile_kernel
def one_laplace(v1: Word, u1: Word, v2: Word, u2: Word, precision: int) -> float:
    """Return log V1 cos(pi U1) + log V2 cos(pi U2), with the symmetric cosine of Remark 1."""
    first = log(complement(v1, precision)) * cospi(u1, precision)
    second = log(complement(v2, precision)) * cospi(u2, precision)
    return first + second


@compile_kernel
def laplace_from_bytes(raw: bytes, precision: int) -> float:
    """Return one Laplace variate by Theorem 5.1, from four uniforms in 32 bytes."""
    v1, u1, v2, u2 = word_of(raw, 0), word_of(raw, 1), word_of(raw, 2), word_of(raw, 3)
    return one_laplace(v1, u1, v2, u2, precision)


@compile_kernel
def laplace_theorem(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """Theorem 5.1: four uniforms for each variate."""
    for i in range(words.size // 4):
        v1, u1, v2, u2 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
        out[i] = scale * one_laplace(v1, u1, v2, u2, precision)


@compile_kernel
def laplace_exponentials(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """Equation (8): E1 - E2, with E = -log V."""
    for i in range(words.size // 2):
        E1 = -log(complement(words[2 * i], precision))
        E2 = -log(complement(words[2 * i + 1], precision))
        out[i] = scale * (E1 - E2)


@compile_kernel
def laplace_inverse(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """Equation (2): the inverse CDF, with the first bit of U as the sign.

    For U < 1/2 the paper takes log(2 U), which is infinite at U = 0; the mirror image
    log(1 - 2 U) has the same distribution and no such point.
    """
    for i in range(words.size):
        # half_turn_left is 1/2 minus the bits of U after the first one, so V is 1 - 2 U modulo 1.
        V = 2.0 * half_turn_left(words[i], precision)
        out[i] = -scale * with_sign_of(words[i], -log(V))


@compile_kernel
def box_muller_pair(v: Word, u: Word, precision: int) -> tuple[float, float]:
    """Return both standard Gaussians of a Box-Muller pair, equations (3a) and (3b)."""
    radius = math.sqrt(-2.0 * log(complement(v, precision)))
    # 2 pi U = pi (h + x) with h = 0, 1 or 2 half turns and x in [-1/2, 1/2].
    turns = 2.0 * uniform(u, precision)
    h = np.floor(turns + 0.5)
    x = turns - h
    sign = 1.0 - 2.0 * (h - 2.0 * np.floor(0.5 * h))
    return sign * radius * sinpi(0.5 - abs(x)), sign * radius * sinpi(x)


@compile_kernel
def laplace_squares(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """Equation (9): (N1^2 - N2^2 + N3^2 - N4^2) / 2.

    With four uniforms, N1, N2 and N3, N4 are the members of one pair each, as in the paper. With
    4k, each N has k separate uniforms.
    """
    count = words.size // variates
    if variates > 4:
        normals(words, variates // 4, precision, scratch)
        for i in range(count):
            N1, N2, N3, N4 = (
                scratch[4 * i],
                scratch[4 * i + 1],
                scratch[4 * i + 2],
                scratch[4 * i + 3],
            )
            out[i] = scale * 0.5 * (N1 * N1 - N2 * N2 + N3 * N3 - N4 * N4)
    else:
        for i in range(count):
            N1, N2 = box_muller_pair(words[4 * i], words[4 * i + 1], precision)
            N3, N4 = box_muller_pair(words[4 * i + 2], words[4 * i + 3], precision)
            out[i] = scale * 0.5 * (N1 * N1 - N2 * N2 + N3 * N3 - N4 * N4)


@compile_kernel
def laplace_products(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """Equation (10): N1 N2 - N3 N4, the N drawn as in `laplace_squares`."""
    count = words.size // variates
    if variates > 4:
        normals(words, variates // 4, precision, scratch)
        for i in range(count):
            N1, N2, N3, N4 = (
                scratch[4 * i],
                scratch[4 * i + 1],
                scratch[4 * i + 2],
                scratch[4 * i + 3],
            )
            out[i] = scale * (N1 * N2 - N3 * N4)
    else:
        for i in range(count):
            N1, N2 = box_muller_pair(words[4 * i], words[4 * i + 1], precision)
            N3, N4 = box_muller_pair(words[4 * i + 2], words[4 * i + 3], precision)
            out[i] = scale * (N1 * N2 - N3 * N4)


@compile_kernel
def half_gamma(v: Word, u: Word, precision: int) -> float:
    """Return -log V cos^2(pi U) = N^2 / 2, a Gamma(1/2)."""
    c = cospi(u, precision)
    return -log(complement(v, precision)) * (c * c)


@compile_kernel
def gamma_from_halves(
    words: Words,
    variates: int,
    precision: int,
    halves: int,
    scale: float,
    scratch: Floats,
    out: Floats,
) -> None:
    """Gamma(halves/2): the sum of `halves` half gammas N^2/2, each N from variates/halves uniforms.

    Two halves are the exponential distribution.
    """
    if variates == 2 * halves:
        for i in range(words.size // 4):
            scratch[2 * i] = half_gamma(words[4 * i], words[4 * i + 1], precision)
            scratch[2 * i + 1] = half_gamma(words[4 * i + 2], words[4 * i + 3], precision)
        if words.size % 4 == 2:
            scratch[words.size // 2 - 1] = half_gamma(words[-2], words[-1], precision)
    else:
        normals(words, variates // halves, precision, scratch)
        for i in range(words.size // (variates // halves)):
            scratch[i] = 0.5 * scratch[i] * scratch[i]
    for i in range(words.size // variates):
        total = 0.0
        for j in range(halves):
            total += scratch[i * halves + j]
        out[i] = scale * total


@compile_kernel
def gumbel(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """-log E, with E the sum of two half gammas.

    E is 0 with probability 4^-precision (both V are 1). Then 4^-precision is used, so that the
    logarithm is finite.
    """
    gamma_from_halves(words, variates, precision, 2, 1.0, scratch, out)
    least = power_of_two(-2 * precision)
    for i in range(words.size // variates):
        out[i] = -scale * log(max(out[i], least))


@compile_kernel
def tanpi(word: Word, precision: int) -> float:
    """Return tan(pi U), drawn like the cosine: first bit for the sign, others for magnitude."""
    tangent = sinpi(half_turn(word, precision)) / sinpi(half_turn_left(word, precision))
    return with_sign_of(word, tangent)


@compile_kernel
def cauchy(
    words: Words, variates: int, precision: int, scale: float, scratch: Floats, out: Floats
) -> None:
    """Fill with means of n tangents: the Cauchy distribution is stable, so they are Cauchy too."""
    for i in range(words.size):
        scratch[i] = tanpi(words[i], precision)
    for i in range(words.size // variates):
        total = 0.0
        for j in range(variates):
            total += scratch[i * variates + j]
        out[i] = scale * (total / variates)
