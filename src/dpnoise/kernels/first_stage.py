"""Certified rounding onto a grid: the cell of value + scale * Z, or NaN where it is not certain.

Each kernel computes, for its form of Z,

    Y = grid * floor((value + scale * Z) / grid + 1/2)

exactly as in real arithmetic, or writes NaN for `second_stage`, and returns the number of undecided
values (or pairs). `certain_point` decides for all forms. Values are floats or integers. For an
integer, Y is relative to the grid point below it, which is added later in integer arithmetic.

Each form has its own loop, although the loops look alike. The alternatives are slower:

- A function that creates the loop of a form is a closure. Closures are not kept on disk
  (`dpnoise.kernels.cache`), so every process would compile them again.
- A single loop with the form as an argument computes all forms, or branches at every number.
- Separate loops for noise and decision write and read the noise and its errors once more.

Not counting the undecided values is not faster: LLVM then computes fewer numbers in parallel.
"""

import numpy as np
from numba import types
from numba.extending import overload

from dpnoise.kernels import Floats, Integers, Truth, Words, certified, compile_kernel
from dpnoise.kernels.elementary import fma, in_widest_vectors, nan_unless
from dpnoise.kernels.numba_internals import Untyped

Values = Floats | Integers

_LAST_ROUNDINGS = 2.0**-51
_EXPONENT = np.int64(0x7FF << 52)


@compile_kernel
def not_finite(values: Floats) -> int:
    """Return the number of values that are NaN or infinite."""
    count = 0
    for i in range(values.size):
        bits = np.float64(values[i]).view(np.int64)
        count += (bits & _EXPONENT) == _EXPONENT
    return count


def above_grids(value: float | np.int64, grid: float) -> float:
    """Return a float unchanged, and an integer modulo the grid, rounded to a float.

    For an integer the grid is from 1 to 2^62.
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


@compile_kernel
def certain_point(
    value: float, z: float, error: float, scale: float, grid: float
) -> tuple[float, Truth]:
    """Return the grid point of value + scale * Z, or NaN, and whether it is certain.

    It is certain if all Z within `error` of z give the same point.

    grid is a power of two, so value/grid is exact, as are its whole and fractional parts and
    cell * grid. A float of 2^53 grids or more is a whole number of grids. Only the last sum rounds;
    it converts the exact result to a float. It cannot overflow: a scale is at most 2^960, so next
    to a value of 2^1023 or more the noise is below half the spacing of the floats.
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


@compile_kernel
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


@compile_kernel
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


@compile_kernel
def gaussian_pairs(
    words: Words, bits: int, values: Values, scale: float, grid: float, out: Floats
) -> int:
    """Release pairs of values with Gaussian noise, two uniforms for a pair or for a last value."""
    in_widest_vectors()
    undecided = 0
    for i in range(out.size // 2):
        z1, z2, error = certified.gaussian_pair(words[2 * i], words[2 * i + 1], bits)
        given1, given2 = above_grids(values[2 * i], grid), above_grids(values[2 * i + 1], grid)
        first, certain1 = certain_point(given1, z1, error, scale, grid)
        second, certain2 = certain_point(given2, z2, error, scale, grid)
        out[2 * i], out[2 * i + 1] = first, second
        undecided += not (certain1 & certain2)
    if out.size % 2:  # As a loop, this would slow down the one above.
        last = out.size - 1
        z1, _, error = certified.gaussian_pair(words[last], words[last + 1], bits)
        out[last], certain = certain_point(above_grids(values[last], grid), z1, error, scale, grid)
        undecided += not certain
    return undecided


# Selection mechanisms need the noise and its error.


@compile_kernel
def exponential(words: Words, bits: int, noise: Floats, errors: Floats) -> None:
    """Exponential noise from one uniform each."""
    for i in range(noise.size):
        noise[i], errors[i] = certified.exponential(words[i], bits)


@compile_kernel
def gumbel(words: Words, bits: int, noise: Floats, errors: Floats) -> None:
    """Gumbel noise from one uniform each."""
    for i in range(noise.size):
        noise[i], errors[i] = certified.gumbel(words[i], bits)
