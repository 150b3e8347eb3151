"""Exact sums and counts: every value is rounded to a whole number of grids, then added.

NaN means missing and is skipped.
"""

import numpy as np

from dpnoise.kernels import Floats, Integers, compile_kernel

# Adding 1.5 * 2^52 puts a whole number below 2^51 into the low bits of the sum.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = int(np.float64(_SHIFT).view(np.int64))
_LOW_BITS = 26
_LOW = 2**_LOW_BITS - 1


@compile_kernel
def cell(value: float, inverse_grid: float, least: float, most: float) -> np.int64:
    """Return a value in whole grids, clamped, then floor(q + 1/2), as every engine computes it."""
    clamped = min(max(value * inverse_grid, least), most)
    return np.float64(np.floor(clamped + 0.5) + _SHIFT).view(np.int64) - _SHIFT_BITS


@compile_kernel
def sum_all(
    values: Floats, inverse_grid: float, least: float, most: float
) -> tuple[np.int64, np.int64]:
    """Return the number of values, and their sum in whole grids.

    The caller ensures that size * max(|least|, |most|) is below 2^62.
    """
    count, total = np.int64(0), np.int64(0)
    for i in range(values.size):
        present = values[i] == values[i]  # Only NaN differs from itself.
        whole = cell(values[i] if present else 0.0, inverse_grid, least, most)
        count += np.int64(1) if present else np.int64(0)
        total += whole if present else np.int64(0)
    return count, total


@compile_kernel
def sum_squares(
    values: Floats, inverse_grid: float, least: float, most: float
) -> tuple[np.int64, np.int64]:
    """Return sums over squares of whole grids below 2^53: of their low 26 bits, and of the rest."""
    low, high = np.int64(0), np.int64(0)
    for i in range(values.size):
        if values[i] == values[i]:  # Only NaN differs from itself.
            whole = cell(values[i], inverse_grid, least, most)
            low += (whole * whole) & _LOW
            high += (whole * whole) >> _LOW_BITS
    return low, high


@compile_kernel
def count_cells(
    values: Floats, inverse_grid: float, least: float, most: float, counts: Integers
) -> None:
    """Count the values by their whole number of grids; counts[0] is for `least`."""
    first = np.int64(least)
    for i in range(values.size):
        if values[i] == values[i]:  # Only NaN differs from itself.
            counts[cell(values[i], inverse_grid, least, most) - first] += 1
