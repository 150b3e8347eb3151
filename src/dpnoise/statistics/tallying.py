"""The tally of a plan, from a column in memory: exact integers, added chunk by chunk.

What is added depends on the rows; how it is held depends on the number of rows alone: in int64, as
long as no rows could overflow it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from dpnoise.core.arrays import Array, Floats, Integers, number, plain, widened
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
    parts = [_PARTS[type(ask)](ask) for ask in plan.asks]
    for chunk in chunks:
        for part in parts:
            part.add(chunk)
    return Tally(tuple(part.answer() for part in parts))


class _Sums:
    def __init__(self, ask: Sums) -> None:
        self._ask = ask
        self._rows, self._largest = 0, max(abs(ask.least), abs(ask.most), 1)
        self._count, self._total, self._low, self._high = 0, 0, 0, 0

    def add(self, values: Floats) -> None:
        ask = self._ask
        arguments = (values, 1.0 / ask.grid, float(ask.least), float(ask.most))
        count, total = sums.sum_all(*arguments)
        self._rows, self._count = self._rows + values.size, self._count + int(count)
        self._total += int(total)
        if ask.squares:
            low, high = sums.sum_squares(*arguments)
            self._low, self._high = self._low + int(low), self._high + int(high)

    def answer(self) -> Sum:
        squares = None
        if self._ask.squares:
            squares = self._held(self._high * _LOW + self._low, self._largest**2)
        return Sum(np.array(self._count), self._held(self._total, self._largest), squares)

    def _held(self, total: int, largest: int) -> Array:
        wide = self._rows * largest >= _SURE
        return np.array(total, dtype=object if wide else np.int64)


class _Cells:
    def __init__(self, ask: Cells) -> None:
        self._ask = ask
        self._counts = np.zeros(ask.most - ask.least + 1, dtype=np.int64)

    def add(self, values: Floats) -> None:
        ask = self._ask
        arguments = (1.0 / ask.grid, float(ask.least), float(ask.most), self._counts)
        sums.count_cells(values, *arguments)

    def answer(self) -> Integers:
        return self._counts


class _Edges:
    def __init__(self, ask: Edges) -> None:
        self._edges = np.array(ask.edges)
        self._counts = np.zeros(self._edges.size - 1, dtype=np.int64)

    def add(self, values: Floats) -> None:
        cells = self._counts.size
        places = np.searchsorted(self._edges, values, side="right") - 1
        places[values == self._edges[-1]] = cells - 1
        inside = (places >= 0) & (places < cells) & ~np.isnan(values)
        self._counts += np.bincount(places[inside], minlength=cells)

    def answer(self) -> Integers:
        return self._counts


class _Rows:
    def __init__(self, _: Rows) -> None:
        self._rows = 0

    def add(self, values: Floats) -> None:
        self._rows += values.size

    def answer(self) -> Integers:
        return np.array(self._rows)


_PARTS: Final[dict[type[Ask], Any]] = {Sums: _Sums, Cells: _Cells, Edges: _Edges, Rows: _Rows}


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
            f"The data must be a column of numbers, got a {type(values).__name__}. "
            "Convert text first; a missing value is NaN."
        ) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _WIDEST or array.ndim != 1:
        raise ArgumentTypeError(
            f"The data must be a column of numbers, got {array.dtype} of shape {array.shape}. "
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
