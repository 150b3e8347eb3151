"""Certified rounding onto a grid: the cell of value + scale * Z, or NaN where it is not certain.

Each kernel computes, for its form of Z,

    Y = grid * floor((value + scale * Z) / grid + 1/2)

exactly as in real arithmetic, or writes NaN, and returns how many it left undecided. The decision
is the same code for all forms: `certain_point`.

The loops around it look alike, one for each form, and stay so. The ways to write them once were
measured, on a Neoverse-N1:

- A function that makes the loop of a form makes a closure, and no closure is kept on disk
  (`dpnoise.kernels.cache`): every process would compile it again.
- One loop that is told the form by an integer takes 1.7 to 2.5 times as long.
- Two loops, of which the first fills arrays with noise and errors and the second decides, take up
  to 15 % longer.
"""

import numpy as np
from numpy.typing import NDArray

from dpnoise.kernels import certified, compiled
from dpnoise.kernels.elementary import Word, word_of

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

LARGEST = float(np.finfo(np.float64).max)
_LAST_ROUNDINGS = 2.0**-51
_EXPONENT = np.int64(0x7FF << 52)


@compiled
def not_finite(values: Floats) -> int:
    """Return how many of the values are NaN or infinite."""
    count = 0
    for i in range(values.size):
        bits = np.float64(values[i]).view(np.int64)
        count += (bits & _EXPONENT) == _EXPONENT
    return count


@compiled
def certain_point(value: float, z: float, error: float, scale: float, grid: float) -> float:
    """Return the grid point of value + scale * Z if all Z within `error` of z give the same.

    grid is a power of two, so value/grid is exact, as are its whole and its fractional part and
    cell * grid. Only the last sum rounds, which converts the exact result to a float. Where
    value/grid or that sum overflows, nothing is certain, and the slow path takes over.
    """
    quotient = value * (1.0 / grid)
    whole = np.rint(quotient)
    ratio = scale * (1.0 / grid)
    y = (quotient - whole) + ratio * z
    cell = np.rint(y)
    result = whole * grid + cell * grid + 0.0  # Adding 0.0 turns -0.0 into 0.0.
    certain = abs(y - cell) + (ratio * error + _LAST_ROUNDINGS) < 0.5
    return result if certain and abs(result) <= LARGEST else np.nan


@compiled
def one_laplace_1(word: Word, bits: int, value: float, scale: float, grid: float) -> float:
    """Release one value with Laplace noise from one uniform."""
    z, error = certified.laplace_1(word, bits)
    return certain_point(value, z, error, scale, grid)


@compiled
def laplace_1_of(raw: bytes, bits: int, value: float, scale: float, grid: float) -> float:
    """Release one value with the same noise, from words given as bytes."""
    word = word_of(raw, 0)
    return one_laplace_1(word, bits, value, scale, grid)


@compiled
def laplace_1(
    words: Words, bits: int, values: Floats, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Laplace noise from one uniform each."""
    undecided = 0
    for i in range(out.size):
        out[i] = one_laplace_1(words[i], bits, values[i], scale, grid)
        undecided += out[i] != out[i]
    return undecided


@compiled
def one_laplace_4(
    v1: Word, u1: Word, v2: Word, u2: Word, bits: int, value: float, scale: float, grid: float
) -> float:
    """Release one value with Laplace noise from four uniforms."""
    z, error = certified.laplace_4(v1, u1, v2, u2, bits)
    return certain_point(value, z, error, scale, grid)


@compiled
def laplace_4_of(raw: bytes, bits: int, value: float, scale: float, grid: float) -> float:
    """Release one value with the same noise, from words given as bytes."""
    v1, u1, v2, u2 = word_of(raw, 0), word_of(raw, 1), word_of(raw, 2), word_of(raw, 3)
    return one_laplace_4(v1, u1, v2, u2, bits, value, scale, grid)


@compiled
def laplace_4(
    words: Words, bits: int, values: Floats, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Laplace noise from four uniforms each."""
    undecided = 0
    for i in range(out.size):
        v1, u1, v2, u2 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
        out[i] = one_laplace_4(v1, u1, v2, u2, bits, values[i], scale, grid)
        undecided += out[i] != out[i]
    return undecided


@compiled
def one_gaussian_2(v: Word, u: Word, bits: int, value: float, scale: float, grid: float) -> float:
    """Release one value with Gaussian noise from two uniforms."""
    z, error = certified.gaussian_2(v, u, bits)
    return certain_point(value, z, error, scale, grid)


@compiled
def gaussian_2_of(raw: bytes, bits: int, value: float, scale: float, grid: float) -> float:
    """Release one value with the same noise, from words given as bytes."""
    v, u = word_of(raw, 0), word_of(raw, 1)
    return one_gaussian_2(v, u, bits, value, scale, grid)


@compiled
def gaussian_2(
    words: Words, bits: int, values: Floats, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Gaussian noise from two uniforms each."""
    undecided = 0
    for i in range(out.size):
        out[i] = one_gaussian_2(words[2 * i], words[2 * i + 1], bits, values[i], scale, grid)
        undecided += out[i] != out[i]
    return undecided


@compiled
def one_gaussian_4(
    v1: Word, u1: Word, v2: Word, u2: Word, bits: int, value: float, scale: float, grid: float
) -> float:
    """Release one value with Gaussian noise from four uniforms."""
    z, error = certified.gaussian_4(v1, u1, v2, u2, bits)
    return certain_point(value, z, error, scale, grid)


@compiled
def gaussian_4_of(raw: bytes, bits: int, value: float, scale: float, grid: float) -> float:
    """Release one value with the same noise, from words given as bytes."""
    v1, u1, v2, u2 = word_of(raw, 0), word_of(raw, 1), word_of(raw, 2), word_of(raw, 3)
    return one_gaussian_4(v1, u1, v2, u2, bits, value, scale, grid)


@compiled
def gaussian_4(
    words: Words, bits: int, values: Floats, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Gaussian noise from four uniforms each."""
    undecided = 0
    for i in range(out.size):
        v1, u1, v2, u2 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
        out[i] = one_gaussian_4(v1, u1, v2, u2, bits, values[i], scale, grid)
        undecided += out[i] != out[i]
    return undecided


# For selection the noise itself is needed, with its error.


@compiled
def exponential(words: Words, bits: int, noise: Floats, errors: Floats) -> None:
    """Exponential noise from one uniform each."""
    for i in range(noise.size):
        noise[i], errors[i] = certified.exponential(words[i], bits)


@compiled
def gumbel(words: Words, bits: int, noise: Floats, errors: Floats) -> None:
    """Gumbel noise from one uniform each."""
    for i in range(noise.size):
        noise[i], errors[i] = certified.gumbel(words[i], bits)
