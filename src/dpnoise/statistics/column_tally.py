"""Exact integers of one column in memory, tallied chunk by chunk.

Their type depends only on the number of rows: int64 as long as that many rows cannot overflow it,
Python's integers otherwise.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final

import numpy as np

from dpnoise.core.arrays import Array, Floats, as_number, as_plain_array, to_float64
from dpnoise.core.errors import ArgumentTypeError
from dpnoise.core.kernel_table import sums
from dpnoise.statistics.plan import Ask, Cells, Edges, Plan, Rows, SumAnswer, Sums, Tally

Column = Any  # An array, a list, a Series, an Arrow column, or an iterator over chunks of these.

_CHUNK_ROWS: Final = 2**20  # Rows at a time: 2^20 of 2^40 grids add up to less than 2^62.
_MAX_ITEM_BYTES: Final = 8  # A wider number would be rounded when it becomes a float64.
_INT64_SAFE: Final = 2**62  # Sums below this limit fit into int64.
_LOW_PART: Final = 2**26  # The kernel returns a sum of squares as high * 2^26 + low.


def tally_chunks(chunks: Iterable[Floats], plan: Plan) -> Tally:
    """Return the tally of a plan for one column, without groups, in one pass.

    A chunk has at most 2^20 rows of the column. NaN is a missing value.
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
    """Return the contribution of a chunk to one answer; for sums, the parts that `_sum` joins."""
    if isinstance(ask, Rows):
        return np.array(values.size)
    if isinstance(ask, Edges):
        edges, cells = np.array(ask.edges), len(ask.edges) - 1
        bins = np.searchsorted(edges, values, side="right") - 1
        bins[values == edges[-1]] = cells - 1
        inside = (bins >= 0) & (bins < cells) & ~np.isnan(values)
        return np.bincount(bins[inside], minlength=cells)
    assert isinstance(ask, Sums | Cells)  # noqa: S101 - different values are for engines
    arguments = (values, 1.0 / ask.grid, float(ask.least), float(ask.most))
    if isinstance(ask, Cells):
        counts = np.zeros(ask.most - ask.least + 1, dtype=np.int64)
        sums.count_cells(*arguments, counts)
        return counts
    low_and_high = sums.sum_squares(*arguments) if ask.squares else (0, 0)
    return np.array(
        [int(part) for part in (*sums.count_and_sum(*arguments), *low_and_high)], object
    )


def _sum(ask: Sums, totals: Array, rows: int) -> SumAnswer:
    """Return the answer to `Sums`, from count, total and the two parts of the squares."""
    count, total, low, high = totals.tolist()
    largest = max(abs(ask.least), abs(ask.most), 1)

    def as_array(exact: int, most: int) -> Array:
        return np.array(exact, dtype=object if rows * most >= _INT64_SAFE else np.int64)

    squares = as_array(high * _LOW_PART + low, largest**2) if ask.squares else None
    return SumAnswer(np.array(count), as_array(total, largest), squares)


def chunks_of(values: Column) -> Iterator[Floats]:
    """Yield the numbers of a column as float64 arrays of at most 2^20; NaN is a missing value."""
    if isinstance(values, Iterator):
        for part in values:
            yield from chunks_of(part)
        return
    try:
        with np.errstate(all="ignore"):
            array = _column(values)
    except Exception:  # noqa: BLE001 - each library raises different errors
        raise _not_a_column(values) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _MAX_ITEM_BYTES or array.ndim != 1:
        raise _not_a_column(values, array)
    for start in range(0, array.size, _CHUNK_ROWS):
        yield to_float64(as_plain_array(array[start : start + _CHUNK_ROWS]))


def _not_a_column(values: object, array: Array | None = None) -> ArgumentTypeError:
    """Return the error for data that is not one column of numbers."""
    kind = type(values).__name__
    if array is not None and array.ndim:
        kind += f" of {array.dtype}" + (f" with {array.ndim} dimensions" if array.ndim > 1 else "")
    advice = "Convert text, dates and Decimals to numbers first; a missing value is NaN"
    if hasattr(type(values), "columns") or isinstance(values, Mapping):
        advice = 'Give one column, such as frame["age"], or give the whole frame to `publish`'
    elif isinstance(values, str | PathLike):
        advice = "For a file, use `publish`"
    elif isinstance(values, int | float | np.number):
        advice = "Give a list of numbers; an iterator gives whole columns"
    return ArgumentTypeError(f"The data must be a column of numbers, got {kind}. {advice}.")


def _column(values: Column) -> Array:
    """Return a column as an array, with NaN for every null, NA or masked entry."""
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
    """Return a list as floats: too large numbers become infinite, missing entries NaN.

    Each row is converted separately, so that no row affects the conversion of another.
    """
    return np.array([_float_of(entry) for entry in entries], dtype=np.float64)


def _float_of(entry: object) -> float:
    if entry is None or entry is np.ma.masked or type(entry).__name__ == "NAType":
        return math.nan
    if isinstance(entry, bool | np.bool_):
        return float(entry)
    exact = as_number(entry)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
