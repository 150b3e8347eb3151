"""From the columns of a result to a tally: sums by group put in their places."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines.arithmetic import HALF
from dpnoise.statistics.engines.checking import cells_of
from dpnoise.statistics.engines.keys import ambiguous_error, inexact_error
from dpnoise.statistics.plan import Cells, Edges, Plan, Rows, Sum, Sums, Tally, Unit

Integers = NDArray[np.int64]

_MOST_ROWS: Final = 2**37  # With more, a sum of halves could wrap around.


@dataclass(frozen=True)
class Table:
    """A result: keys, sums and, if a code is named, the cell that they are about, by column."""

    code: str | None  # The name of the column of cells.
    columns: dict[str, Any]


class MistakeError(ArgumentError):
    """A column has text that is no number, or no value where there must be one."""

    plan: Plan
    column: str
    is_missing: bool


def mistake(plan: Plan, column: str, *, is_missing: bool, place: str | None = None) -> MistakeError:
    """Return the error; without a place it is about the column alone."""
    subject = f"Column {column!r}" if place is None else place
    if is_missing:
        found = "has rows without a value" if place is None else "has no value"
        error = MistakeError(f'{subject} {found}. To leave out such rows, say missing="drop".')
    else:
        error = MistakeError(
            f"{subject} holds text that is no number. Correct it, or empty it and say "
            'missing="drop".'
        )
    error.plan, error.column, error.is_missing = plan, column, is_missing
    return error


def asked_columns(plan: Plan) -> list[str]:
    """Return the columns whose values are asked for, each once."""
    return list(dict.fromkeys(ask.column for ask in plan.asks if not isinstance(ask, Rows)))


def wanted_columns(plan: Plan) -> list[str]:
    """Return the columns that a plan reads, each once: values, groups, and who a person is."""
    grouped = [grouping.column for grouping in plan.by]
    persons = plan.unit.columns if plan.unit is not None else ()
    return list(dict.fromkeys([*asked_columns(plan), *grouped, *persons]))


def answers(plan: Plan, tables: Sequence[Table], matches: Sequence[dict[Any, int]]) -> Tally:
    """Return the tally of a plan; the first of the tables has the sums."""
    shape = tuple(len(grouping.keys) for grouping in plan.by)
    first = tables[0]
    places = _places(first, matches, shape)
    rows = _by_group(first, "rows", places, shape)
    if rows.sum() >= _MOST_ROWS:
        raise ArgumentError("Expected fewer than 2^37 rows. Take them in parts.")
    _check_values(plan, first, int(rows.sum()))
    found: list[Sum | Integers] = []
    for place, ask in enumerate(plan.asks):
        if isinstance(ask, Rows):
            found.append(rows)
            continue
        number = asked_columns(plan).index(ask.column)
        count = _by_group(first, f"count{number}", places, shape)
        missing = np.asarray(rows - count)
        if isinstance(ask, Sums):
            found.append(_sum(first, place, ask, places, count, missing))
        elif isinstance(ask, Edges) and f"above{place}edge0" in first.columns:
            found.append(_from_comparisons(first, place, ask, places, missing))
        else:
            table = next(one for one in tables if one.code == f"cell{place}")
            found.append(_counts(table, ask, _places(table, matches, shape), missing))
    return Tally(tuple(found))


def added(one: Tally, other: Tally) -> Tally:
    """Return the tally of two sets of rows together."""
    return Tally(tuple(map(_added, one.answers, other.answers)))


def _added(one: Sum | Integers, other: Sum | Integers) -> Sum | Integers:
    if isinstance(one, Sum) and isinstance(other, Sum):
        squares = None
        if one.squares is not None and other.squares is not None:
            squares = np.asarray(one.squares + other.squares)
        return Sum(
            np.asarray(one.count + other.count), np.asarray(one.total + other.total), squares
        )
    return np.asarray(one + other)  # type: ignore[operator]  # Both are counts.


def _places(table: Table, matches: Sequence[dict[Any, int]], shape: tuple[int, ...]) -> Integers:
    """Return the group of each row, as its place in an array of that shape made flat."""
    size = len(table.columns["rows"])
    place = np.zeros(size, dtype=np.int64)
    for axis, (key_places, groups) in enumerate(zip(matches, shape, strict=True)):
        own = [key_places[key] for key in table.columns[f"key{axis}"]]
        place = place * groups + np.array(own, dtype=np.int64)
    return place


def _by_group(table: Table, name: str, places: Integers, shape: tuple[int, ...]) -> NDArray[Any]:
    column = table.columns[name]
    added = np.zeros(shape, dtype=column.dtype)
    np.add.at(added.reshape(-1), places, column)
    return added


def check_ids(unit: Unit | None, lost: bool) -> None:  # noqa: FBT001 - it is what was found
    """Raise if rows have no id, and none of them may be a person of its own."""
    if lost and unit is not None and unit.without_id == "error":
        raise ArgumentError(
            f"Some rows do not say whose they are: {' or '.join(unit.columns)} is missing. Leave "
            'them out, or take each for a person of its own: without_id="own".'
        )


def _check_values(plan: Plan, table: Table, rows: int) -> None:
    """Raise if a row has no id, text that is no number or, unless dropped, no value."""
    check_ids(plan.unit, bool(table.columns.get("lost", np.zeros(1)).any()))
    for place, name in enumerate(plan.unit.columns if plan.unit is not None else ()):
        for flag, error in (("inexact", inexact_error), ("ambiguous", ambiguous_error)):
            if table.columns.get(f"{flag}{place}", np.zeros(1)).any():
                raise error(name)
    for number, name in enumerate(asked_columns(plan)):
        if table.columns.get(f"wrong{number}", np.zeros(1)).any():
            raise mistake(plan, name, is_missing=False)
        if plan.missing == "error" and int(table.columns[f"count{number}"].sum()) < rows:
            raise mistake(plan, name, is_missing=True)


def _sum(
    table: Table, place: int, ask: Sums, places: Integers, count: Integers, missing: Integers
) -> Sum:
    """Return a sum without the rows that have no value, which were added as 0, clamped."""
    zero = min(max(0, ask.least), ask.most)
    lacking = missing.astype(object)
    total = _whole(table, f"sum{place}", places, count.shape) - lacking * zero
    squares = None
    if ask.squares:
        squares = _whole(table, f"square{place}", places, count.shape) - lacking * zero**2
        squares = np.asarray(squares, dtype=object)
    return Sum(count, np.asarray(total, dtype=object), squares)


def _whole(table: Table, name: str, places: Integers, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a sum, put together from its halves if it has two, in Python's integers."""
    if name in table.columns:
        return _by_group(table, name, places, shape).astype(object)
    high, low = (
        _by_group(table, f"{name}{half}", places, shape).astype(object) for half in ("high", "low")
    )
    return np.asarray(high * HALF + low, dtype=object)


def _counts(table: Table, ask: Cells | Edges, places: Integers, missing: Integers) -> Integers:
    """Return how many values are in each cell; the last one has those outside."""
    cells = cells_of(ask) + 1
    counts = np.zeros((*missing.shape, cells), dtype=np.int64)
    codes = table.columns[str(table.code)]
    np.add.at(counts.reshape(-1), places * cells + codes, table.columns["rows"])
    counts[..., _cell_of_zero(ask)] -= missing
    return np.ascontiguousarray(counts[..., :-1])


def _from_comparisons(
    table: Table, place: int, ask: Edges, places: Integers, missing: Integers
) -> Integers:
    """Return how many values are in each cell, from how many are above its edges."""
    above = [
        _by_group(table, f"above{place}edge{edge}", places, missing.shape)
        for edge in range(len(ask.edges))
    ]
    counts = np.stack([low - high for low, high in pairwise(above)], axis=-1)
    zero = _cell_of_zero(ask)
    if zero < cells_of(ask):
        counts[..., zero] -= missing
    return counts


def _cell_of_zero(ask: Cells | Edges) -> int:
    """Return the cell that a row without a value was counted in."""
    if isinstance(ask, Cells):
        return min(max(0, ask.least), ask.most) - ask.least
    if not ask.edges[0] <= 0 <= ask.edges[-1]:
        return cells_of(ask)
    return min(bisect_right(ask.edges, 0.0), cells_of(ask)) - 1
