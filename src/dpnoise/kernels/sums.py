"""Exact sums and counts: every value is rounded to a multiple of the grid, then added.

NaN means missing and is skipped.
"""

import numpy as np

from dpnoise.kernels import Floats, Integers, compile_kernel

# Adding 1.5 * 2^52 puts a whole number below 2^51 into the low bits of the sum.
_SHIFT = 1.5 * 2.0**52
_SHIFT_PATTERN = int(np.float64(_SHIFT).view(np.int64))
_LOW_BIT_COUNT = 26
_LOW_MASK = 2**_LOW_BIT_COUNT - 1


@compile_kernel
def nearest_whole(value: float, inverse_grid: float, least: float, most: float) -> np.int64:
    """Clamp value / grid to [least, most], and round it to the nearest integer, halves up.

    `least` and `most` are whole numbers of the grid. Every engine computes the same.
    """
    clamped = min(max(value * inverse_grid, least), most)
    return np.float64(np.floor(clamped + 0.5) + _SHIFT).view(np.int64) - _SHIFT_PATTERN


@compile_kernel
def count_and_sum(
    values: Floats, inverse_grid: float, least: float, most: float
) -> tuple[np.int64, np.int64]:
    """Return the number of values, and their sum divided by the grid.

    The caller ensures that size * max(|least|, |most|) is below 2^62.
    """
    count, total = np.int64(0), np.int64(0)
    for i in range(values.size):
        present = values[i] == values[i]  # Only NaN differs from itself.
        whole = nearest_whole(values[i] if present else 0.0, inverse_grid, least, most)
        count += np.int64(1) if present else np.int64(0)
        total += whole if present else np.int64(0)
    return count, total


@compile_kernel
def sum_squares(
    values: Floats, inverse_grid: float, least: float, most: float
) -> tuple[np.int64, np.int64]:
    """Square each value divided by the grid; return the sums of the low 26 and of the other bits.

    The caller ensures that each square is below 2^53.
    """
    low, high = np.int64(0), np.int64(0)
    for i in range(values.size):
        if values[i] == values[i]:  # Only NaN differs from itself.
            whole = nearest_whole(values[i], inverse_grid, least, most)
            low += (whole * whole) & _LOW_MASK
            high += (whole * whole) >> _LOW_BIT_COUNT
    return low, high


@compile_kernel
def count_cells(
    values: Floats, inverse_grid: float, least: float, most: float, counts: Integers
) -> None:
    """Count the values by their nearest whole; counts[0] is for `least`."""
    first = np.int64(least)
    for i in range(values.size):
        if values[i] == values[i]:  # Only NaN differs from itself.
            counts[nearest_whole(values[i], inverse_grid, least, most) - first] += 1
