"""The tally of a plan, from rows in memory: exact integers, added chunk by chunk.

What is added depends on the rows; how it is held depends on the number of rows alone: in int64, as
long as no rows could overflow it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.kernel_table import sums
from dpnoise.statistics.plan import Ask, Cells, Edges, Plan, Rows, Sum, Sums, Tally

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SURE: Final = 2**62  # Sums below it fit into int64.
_LOW: Final = 2**26


@dataclass(frozen=True)
class Chunk:
    """At most 2^20 rows: columns of numbers, where NaN is missing."""

    rows: int
    columns: Mapping[str, Floats]


def tally_chunks(chunks: Iterable[Chunk], plan: Plan) -> Tally:
    """Return the tally of a plan without groups, in one pass."""
    parts = [_MADE[type(ask)](ask) for ask in plan.asks]
    for chunk in chunks:
        for part in parts:
            part.add(chunk)
    return Tally(tuple(part.answer() for part in parts))


class _Sums:
    def __init__(self, ask: Sums) -> None:
        self._ask = ask
        self._rows, self._largest = 0, max(abs(ask.least), abs(ask.most), 1)
        self._count, self._total, self._low, self._high = 0, 0, 0, 0

    def add(self, chunk: Chunk) -> None:
        ask = self._ask
        arguments = (
            chunk.columns[ask.column],
            1.0 / ask.grid,
            float(ask.least),
            float(ask.most),
        )
        count, total = sums.sum_all(*arguments)
        self._rows, self._count = self._rows + chunk.rows, self._count + int(count)
        self._total += int(total)
        if ask.squares:
            low, high = sums.sum_squares(*arguments)
            self._low, self._high = self._low + int(low), self._high + int(high)

    def answer(self) -> Sum:
        squares = None
        if self._ask.squares:
            squares = self._held(self._high * _LOW + self._low, self._largest**2)
        return Sum(np.array(self._count), self._held(self._total, self._largest), squares)

    def _held(self, total: int, largest: int) -> NDArray[Any]:
        wide = self._rows * largest >= _SURE
        return np.array(total, dtype=object if wide else np.int64)


class _Cells:
    def __init__(self, ask: Cells) -> None:
        self._ask = ask
        self._counts = np.zeros(ask.most - ask.least + 1, dtype=np.int64)

    def add(self, chunk: Chunk) -> None:
        ask = self._ask
        arguments = (1.0 / ask.grid, float(ask.least), float(ask.most), self._counts)
        sums.count_cells(chunk.columns[ask.column], *arguments)

    def answer(self) -> Integers:
        return self._counts


class _Edges:
    def __init__(self, ask: Edges) -> None:
        self._column, self._edges = ask.column, np.array(ask.edges)
        self._counts = np.zeros(self._edges.size - 1, dtype=np.int64)

    def add(self, chunk: Chunk) -> None:
        values, cells = chunk.columns[self._column], self._counts.size
        places = np.searchsorted(self._edges, values, side="right") - 1
        places[values == self._edges[-1]] = cells - 1
        inside = (places >= 0) & (places < cells) & ~np.isnan(values)
        self._counts += np.bincount(places[inside], minlength=cells)

    def answer(self) -> Integers:
        return self._counts


class _Rows:
    def __init__(self, _: Rows) -> None:
        self._rows = 0

    def add(self, chunk: Chunk) -> None:
        self._rows += chunk.rows

    def answer(self) -> Integers:
        return np.array(self._rows)


_MADE: Final[dict[type[Ask], Any]] = {Sums: _Sums, Cells: _Cells, Edges: _Edges, Rows: _Rows}
