"""Exact sums and histograms: every value becomes a whole number of grids before it is added."""

import numpy as np
from numpy.typing import NDArray

from dpnoise.kernels import compiled

Floats = NDArray[np.float64]

# Adding 1.5 * 2^52 rounds a number below 2^51 to the nearest whole one, in the low bits of the sum.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = int(np.float64(_SHIFT).view(np.int64))


@compiled
def cell(value: float, inverse_grid: float, least: float, most: float) -> np.int64:
    """Return the value in whole grids, clamped first; a NaN counts as 0."""
    quotient = value * inverse_grid if value == value else 0.0  # noqa: PLR0124 - NaN alone differs
    clamped = min(max(quotient, least), most)
    return np.float64(clamped + _SHIFT).view(np.int64) - _SHIFT_BITS


@compiled
def sum_in_grids(values: Floats, inverse_grid: float, least: float, most: float) -> int:
    """Return the sum of the values in whole grids, each clamped to `least` and `most` of them.

    Whole numbers add without rounding, so the order does not matter. The caller sees to it that
    size * max(|least|, |most|) is below 2^62.
    """
    total = np.int64(0)
    for i in range(values.size):
        total += cell(values[i], inverse_grid, least, most)
    return total  # type: ignore[return-value]  # Numba returns a Python int.


@compiled
def count_cells(
    values: Floats, inverse_grid: float, least: float, most: float, counts: NDArray[np.int64]
) -> None:
    """Count each value in the cell of its whole number of grids; counts[0] is that of `least`."""
    first = np.int64(least)
    for i in range(values.size):
        counts[cell(values[i], inverse_grid, least, most) - first] += 1
