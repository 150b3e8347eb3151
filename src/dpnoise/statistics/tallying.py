"""The tally of a plan, from a column in memory: exact integers, added chunk by chunk.

What is added depends on the rows; how it is held depends on the number of rows alone: in int64, as
long as no rows could overflow it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from dpnoise.core.arrays import Array, Floats, number, plain, widened
from dpnoise.core.errors import ArgumentTypeError
from dpnoise.core.kernel_table import sums
from dpnoise.statistics.plan import Ask, Cells, Edges, Plan, Rows, Sum, Sums, Tally

Column = Any  # An array, a list, a Series, an Arrow column, or an iterator over chunks of these.

_TURN: Final = 2**20  # Rows at a time: 2^20 of 2^40 grids add up to less than 2^62.
_WIDEST: Final = 8  # Bytes of a number.
_SURE: Final = 2**62  # Sums below it fit into int64.
_LOW: Final = 2**26


def tally_chunks(chunks: Iterable[Floats], plan: Plan) -> Tally:
    """Return the tally of a plan about one column, without groups, in one pass.

    A chunk is at most 2^20 rows of the column, where NaN is missing.
    """
    totals, rows = [_count(ask, np.empty(0)) for ask in plan.asks], 0
    for chunk in chunks:
        rows += chunk.size
        totals = [total + _count(ask, chunk) for ask, total in zip(plan.asks, totals, strict=True)]
    answers = [
        _sum(ask, total, rows) if isinstance(ask, Sums) else np.asarray(total)
        for ask, total in zip(plan.asks, totals, strict=True)
    ]
    return Tally(tuple(answers))


def _count(ask: Ask, values: Floats) -> Array:
    """Return what some rows add to an answer; of sums, Python's integers: see `_sum`."""
    if isinstance(ask, Rows):
        return np.array(values.size)
    if isinstance(ask, Edges):
        edges, cells = np.array(ask.edges), len(ask.edges) - 1
        places = np.searchsorted(edges, values, side="right") - 1
        places[values == edges[-1]] = cells - 1
        inside = (places >= 0) & (places < cells) & ~np.isnan(values)
        return np.bincount(places[inside], minlength=cells)
    arguments = (values, 1.0 / ask.grid, float(ask.least), float(ask.most))
    if isinstance(ask, Cells):
        counts = np.zeros(ask.most - ask.least + 1, dtype=np.int64)
        sums.count_cells(*arguments, counts)
        return counts
    low_and_high = sums.sum_squares(*arguments) if ask.squares else (0, 0)
    return np.array([int(part) for part in (*sums.sum_all(*arguments), *low_and_high)], object)


def _sum(ask: Sums, totals: Array, rows: int) -> Sum:
    """Return the answer of sums: their count, total, and the low and high parts of squares."""
    count, total, low, high = totals.tolist()
    largest = max(abs(ask.least), abs(ask.most), 1)

    def held(exactly: int, most: int) -> Array:
        return np.array(exactly, dtype=object if rows * most >= _SURE else np.int64)

    squares = held(high * _LOW + low, largest**2) if ask.squares else None
    return Sum(np.array(count), held(total, largest), squares)


def chunks_of(values: Column) -> Iterator[Floats]:
    """Yield the numbers of a column as float64 arrays of at most 2^20; NaN is a missing value."""
    if isinstance(values, Iterator):
        for part in values:
            yield from chunks_of(part)
        return
    try:
        with np.errstate(all="ignore"):
            array = _column(values)
    except Exception:  # noqa: BLE001 - each library has errors of its own
        raise ArgumentTypeError(
            f"Expected a column of numbers, got a {type(values).__name__} that is none. "
            "Convert text first; a missing value is NaN."
        ) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _WIDEST or array.ndim != 1:
        raise ArgumentTypeError(
            f"Expected a column of numbers, got {array.dtype} of shape {array.shape}. "
            "Convert text first; a missing value is NaN."
        )
    for start in range(0, array.size, _TURN):
        yield widened(plain(array[start : start + _TURN]))


def _column(values: Column) -> Array:
    """Return a column as an array. What its kind calls null, NA or masked becomes NaN."""
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data)
    if isinstance(values, list | tuple):
        return _floats_of(values)
    if type(values).__module__.split(".")[0] == "pyarrow":
        values = values.to_pandas() if values.null_count else values
    elif hasattr(values, "isna") and values.dtype.kind in "iufb":
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    return _floats_of(array.tolist()) if array.dtype == object and array.ndim == 1 else array


def _floats_of(entries: Sequence[object]) -> Floats:
    """Return a list as floats: one beyond the largest is infinite, what is missing is NaN.

    Each row is converted by itself, so that no row decides what becomes of the others.
    """
    return np.array([_float_of(entry) for entry in entries], dtype=np.float64)


def _float_of(entry: object) -> float:
    if entry is None or entry is np.ma.masked or type(entry).__name__ == "NAType":
        return math.nan
    if isinstance(entry, bool | np.bool_):
        return float(entry)
    exactly = number(entry)
    try:
        return float(exactly)
    except OverflowError:
        return math.inf if exactly > 0 else -math.inf
