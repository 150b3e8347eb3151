"""Exact sums and counts: every value becomes a whole number of grids before it is added.

A NaN is no value, and passed over.
"""

import numpy as np

from dpnoise.kernels import Floats, Integers, compiled

# Adding 1.5 * 2^52 puts a whole number below 2^51 into the low bits of the sum.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = int(np.float64(_SHIFT).view(np.int64))
_LOW_BITS = 26
_LOW = 2**_LOW_BITS - 1


@compiled
def cell(value: float, inverse_grid: float, least: float, most: float) -> np.int64:
    """Return the value in whole grids: clamped, then floor(q + 1/2), as every engine has it."""
    clamped = min(max(value * inverse_grid, least), most)
    return np.float64(np.floor(clamped + 0.5) + _SHIFT).view(np.int64) - _SHIFT_BITS


@compiled
def sum_all(
    values: Floats, inverse_grid: float, least: float, most: float
) -> tuple[np.int64, np.int64]:
    """Return how many values there are, and the sum of their whole grids.

    The caller sees to it that size * max(|least|, |most|) is below 2^62.
    """
    count, total = np.int64(0), np.int64(0)
    for i in range(values.size):
        there = values[i] == values[i]  # NaN alone differs.
        whole = cell(values[i] if there else 0.0, inverse_grid, least, most)
        count += np.int64(1) if there else np.int64(0)
        total += whole if there else np.int64(0)
    return count, total


@compiled
def sum_squares(
    values: Floats, inverse_grid: float, least: float, most: float
) -> tuple[np.int64, np.int64]:
    """Return the sum of squares of whole grids, below 2^53 each: of their low 26 bits, the rest."""
    low, high = np.int64(0), np.int64(0)
    for i in range(values.size):
        if values[i] == values[i]:  # NaN alone differs.
            whole = cell(values[i], inverse_grid, least, most)
            low += (whole * whole) & _LOW
            high += (whole * whole) >> _LOW_BITS
    return low, high


@compiled
def count_cells(
    values: Floats, inverse_grid: float, least: float, most: float, counts: Integers
) -> None:
    """Count each value in the cell of its whole number of grids; counts[0] is `least`'s."""
    first = np.int64(least)
    for i in range(values.size):
        if values[i] == values[i]:  # NaN alone differs.
            counts[cell(values[i], inverse_grid, least, most) - first] += 1
