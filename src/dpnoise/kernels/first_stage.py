"""Certified rounding onto a grid: the cell of value + scale * Z, or NaN where it is not certain.

Each kernel computes, for its form of Z,

    Y = grid * floor((value + scale * Z) / grid + 1/2)

exactly as in real arithmetic, or writes NaN, and returns how many numbers (or pairs) it left
undecided: `second_stage` is next. The decision is the same code for all forms: `certain_point`.
Values are floats or integers; of an integer Y lacks the whole grids below it, which are added
later, in integers.

The loops around it look alike, one for each form, and stay so. The ways to write them once are
slower, or cost every process:

- A function that makes the loop of a form makes a closure, and no closure is kept on disk
  (`dpnoise.kernels.cache`): every process would compile it again.
- One loop that is told the form by an integer computes all forms, or branches at every number.
- Two loops, of which the first fills arrays with noise and errors and the second decides, write and
  read both once more.

A loop that does not count what it left undecided is no faster: LLVM then computes fewer numbers
side by side.
"""

import numpy as np
from numba import types
from numba.extending import overload

from dpnoise.kernels import Floats, Integers, Truth, Words, certified, compiled
from dpnoise.kernels.elementary import fma, in_widest_vectors, nan_unless
from dpnoise.kernels.numba_internals import Untyped

Values = Floats | Integers

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


def above_grids(value: float | np.int64, grid: float) -> float:
    """Return a float as it is, and how far an integer is above a whole number of grids.

    For an integer the grid is from 1 to 2^62; what has more than 53 bits rounds.
    """
    return value if isinstance(value, float) else float(value & (np.int64(grid) - np.int64(1)))


@overload(above_grids, inline="always")  # type: ignore[untyped-decorator]
def _above_grids(value: Untyped, grid: Untyped) -> Untyped:
    def of_float(value: Untyped, grid: Untyped) -> Untyped:
        return value

    def of_integer(value: Untyped, grid: Untyped) -> Untyped:
        return np.float64(value & (np.int64(grid) - np.int64(1)))

    if isinstance(value, types.Float):
        return of_float
    return of_integer


@compiled
def certain_point(
    value: float, z: float, error: float, scale: float, grid: float
) -> tuple[float, Truth]:
    """Return the grid point of value + scale * Z, or NaN, and whether it is certain.

    It is if all Z within `error` of z give the same point.

    grid is a power of two, so value/grid is exact, as are its whole and its fractional part and
    cell * grid. A float of 2^53 grids or more is a whole number of them. Only the last sum rounds,
    which converts the exact result to a float. It cannot overflow: a scale is at most 2^960, and so
    beside a value of 2^1023 or more the noise is below half the distance of two floats.
    """
    inside = value if abs(value) < 2.0**53 * grid else 0.0
    quotient = inside * (1.0 / grid)
    whole = np.rint(quotient)
    ratio = scale * (1.0 / grid)
    y = fma(ratio, z, quotient - whole)
    cell = np.rint(y)
    certain = abs(y - cell) + fma(ratio, error, _LAST_ROUNDINGS) < 0.5
    result = fma(cell, grid, fma(whole, grid, value - inside))  # The 0.0 inside makes -0.0 0.0.
    return nan_unless(result, certain), certain


@compiled
def laplace_1(
    words: Words, bits: int, values: Values, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Laplace noise from one uniform each."""
    in_widest_vectors()
    undecided = 0
    for i in range(out.size):
        z, error = certified.laplace_1(words[i], bits)
        out[i], certain = certain_point(above_grids(values[i], grid), z, error, scale, grid)
        undecided += not certain
    return undecided


@compiled
def gaussian_2(
    words: Words, bits: int, values: Values, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Gaussian noise from two uniforms each."""
    in_widest_vectors()
    undecided = 0
    for i in range(out.size):
        z, error = certified.gaussian_2(words[2 * i], words[2 * i + 1], bits)
        out[i], certain = certain_point(above_grids(values[i], grid), z, error, scale, grid)
        undecided += not certain
    return undecided


@compiled
def gaussian_pairs(
    words: Words, bits: int, values: Values, scale: float, grid: float, out: Floats
) -> int:
    """Release values with Gaussian noise, two from two uniforms; a last one has its own."""
    in_widest_vectors()
    undecided = 0
    for i in range(out.size // 2):
        z1, z2, error = certified.gaussian_pair(words[2 * i], words[2 * i + 1], bits)
        given1, given2 = above_grids(values[2 * i], grid), above_grids(values[2 * i + 1], grid)
        first, certain1 = certain_point(given1, z1, error, scale, grid)
        second, certain2 = certain_point(given2, z2, error, scale, grid)
        out[2 * i], out[2 * i + 1] = first, second
        undecided += not (certain1 & certain2)
    if out.size % 2:  # Written as a loop, it slows the one above down.
        last = out.size - 1
        z1, _, error = certified.gaussian_pair(words[last], words[last + 1], bits)
        out[last], certain = certain_point(above_grids(values[last], grid), z1, error, scale, grid)
        undecided += not certain
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
