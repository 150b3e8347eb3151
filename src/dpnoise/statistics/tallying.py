"""The tally of a plan, from rows in memory: exact integers, added chunk by chunk.

What is added depends on the rows; how it is held depends on the number of rows alone: in int64, as
long as no rows could overflow it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.chunks import kernel_named
from dpnoise.statistics.plan import Ask, Cells, Edges, Plan, Rows, Sum, Sums, Tally

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SURE: Final = 2**62  # Sums below it fit into int64, and so does what is added to them next.
_LOW: Final = 2**26


@dataclass(frozen=True)
class Chunk:
    """At most 2^20 rows: columns of numbers, where NaN is missing, and the groups of each row.

    A group is the place of its key among the declared ones, or -1.
    """

    rows: int
    columns: Mapping[str, Floats]
    groups: Mapping[str, Integers] = field(default_factory=dict)


def tally_chunks(chunks: Iterable[Chunk], plans: tuple[Plan, ...]) -> list[Tally]:
    """Return the tallies of several plans, in one pass."""
    counters = [_Counter(plan) for plan in plans]
    for chunk in chunks:
        for counter in counters:
            counter.add(chunk)
    return [counter.tally() for counter in counters]


class _Counter:
    """The tally of one plan as it grows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shape = tuple(len(grouping.keys) for grouping in plan.by)
        size = int(np.prod(self._shape, dtype=np.int64))
        self._parts = [_MADE[type(ask)](ask, size) for ask in plan.asks]

    def add(self, chunk: Chunk) -> None:
        groups = self._groups(chunk)
        for part in self._parts:
            part.add(chunk, groups)

    def _groups(self, chunk: Chunk) -> Integers | None:
        """Return the place of each row among all groups, in their order; None if it has none."""
        if not self._plan.by:
            return None
        groups = np.zeros(chunk.rows, dtype=np.int64)
        for grouping in self._plan.by:
            places = chunk.groups[grouping.column]
            outside = (groups < 0) | (places < 0)
            groups = np.where(outside, -1, groups * len(grouping.keys) + places)
        return groups

    def tally(self) -> Tally:
        return Tally(tuple(part.answer(self._shape) for part in self._parts))


def _places(chunk: Chunk, groups: Integers | None) -> Integers:
    """Return the groups of the rows: all are in the only one, if there are no groups."""
    return np.zeros(chunk.rows, dtype=np.int64) if groups is None else groups


class _Sums:
    def __init__(self, ask: Sums, groups: int) -> None:
        self._ask = ask
        self._rows, self._largest = 0, max(abs(ask.least), abs(ask.most), 1)
        self._count = np.zeros(groups, dtype=np.int64)
        self._total: NDArray[Any] = np.zeros(groups, dtype=np.int64)
        self._low, self._high = (np.zeros(groups, dtype=np.int64) for _ in range(2))

    def add(self, chunk: Chunk, groups: Integers | None) -> None:
        ask = self._ask
        values = chunk.columns[ask.column]
        scaling = (1.0 / ask.grid, float(ask.least), float(ask.most))
        total = np.zeros_like(self._count)
        if groups is None:
            count, total[0] = kernel_named("sums.sum_all")(values, *scaling)
            self._count += count
        else:
            kernel_named("sums.add_values")(values, groups, *scaling, self._count, total)
        self._rows += chunk.rows
        if self._rows * self._largest >= _SURE:
            self._total = self._total.astype(object)
        self._total = self._total + total
        if ask.squares:
            places = _places(chunk, groups)
            kernel_named("sums.add_squares")(values, places, *scaling, self._low, self._high)

    def answer(self, shape: tuple[int, ...]) -> Sum:
        squares = None
        if self._ask.squares:
            if self._rows * self._largest**2 >= _SURE:
                squares = self._high.astype(object) * _LOW + self._low
            else:
                squares = self._high * _LOW + self._low
            squares = squares.reshape(shape)
        return Sum(self._count.reshape(shape), self._total.reshape(shape), squares)


class _Cells:
    def __init__(self, ask: Cells, groups: int) -> None:
        self._ask = ask
        self._counts = np.zeros((groups, ask.most - ask.least + 1), dtype=np.int64)

    def add(self, chunk: Chunk, groups: Integers | None) -> None:
        ask = self._ask
        arguments = (1.0 / ask.grid, float(ask.least), float(ask.most), self._counts)
        places = _places(chunk, groups)
        kernel_named("sums.count_cells")(chunk.columns[ask.column], places, *arguments)

    def answer(self, shape: tuple[int, ...]) -> Integers:
        return self._counts.reshape(*shape, -1)


class _Edges:
    def __init__(self, ask: Edges, groups: int) -> None:
        self._column, self._edges = ask.column, np.array(ask.edges)
        self._counts = np.zeros((groups, self._edges.size - 1), dtype=np.int64)

    def add(self, chunk: Chunk, groups: Integers | None) -> None:
        values, cells = chunk.columns[self._column], self._counts.shape[1]
        places = np.searchsorted(self._edges, values, side="right") - 1
        places[values == self._edges[-1]] = cells - 1
        of = _places(chunk, groups)
        inside = (places >= 0) & (places < cells) & (of >= 0) & ~np.isnan(values)
        together = of[inside] * cells + places[inside]
        self._counts += np.bincount(together, minlength=self._counts.size).reshape(-1, cells)

    def answer(self, shape: tuple[int, ...]) -> Integers:
        return self._counts.reshape(*shape, -1)


class _Rows:
    def __init__(self, _: Rows, groups: int) -> None:
        self._counts = np.zeros(groups, dtype=np.int64)

    def add(self, chunk: Chunk, groups: Integers | None) -> None:
        of = _places(chunk, groups)
        self._counts += np.bincount(of[of >= 0], minlength=self._counts.size)

    def answer(self, shape: tuple[int, ...]) -> Integers:
        return self._counts.reshape(shape)


_MADE: Final[dict[type[Ask], Any]] = {Sums: _Sums, Cells: _Cells, Edges: _Edges, Rows: _Rows}
