"""From the columns of a result to a tally: sums by group put in their places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError
from dpnoise.statistics.engines.arithmetic import HALF
from dpnoise.statistics.engines.checking import cells_of
from dpnoise.statistics.plan import Cells, Edges, Plan, Rows, Sum, Sums, Tally

Integers = NDArray[np.int64]

_MOST_ROWS: Final = 2**37  # With more, a sum of halves could wrap around.


@dataclass(frozen=True)
class Table:
    """A result: keys, sums and, if a code is named, the cell that they are about, by column."""

    code: str | None  # The name of the column of cells.
    columns: dict[str, Any]


def asked_columns(plan: Plan) -> list[str]:
    """Return the columns whose values are asked for, each once."""
    return list(dict.fromkeys(ask.column for ask in plan.asks if not isinstance(ask, Rows)))


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
        elif isinstance(ask, Sums):
            found.append(_sum(first, plan, place, ask, places, shape))
        else:
            table = next(one for one in tables if one.code == f"cell{place}")
            found.append(_counts(table, ask, _places(table, matches, shape), shape))
    return Tally(tuple(found))


def _places(table: Table, matches: Sequence[dict[Any, int]], shape: tuple[int, ...]) -> Integers:
    """Return the group of each row, as its place in an array of that shape made flat."""
    size = len(table.columns["rows"])
    place = np.zeros(size, dtype=np.int64)
    for axis, (key_places, groups) in enumerate(zip(matches, shape, strict=True)):
        own = [key_places[key] for key in table.columns[f"key{axis}"]]
        place = place * groups + np.array(own, dtype=np.int64)
    return place


def _by_group(table: Table, name: str, places: Integers, shape: tuple[int, ...]) -> Integers:
    added = np.zeros(shape, dtype=np.int64)
    np.add.at(added.reshape(-1), places, table.columns[name])
    return added


def _check_values(plan: Plan, table: Table, rows: int) -> None:
    """Raise if there was text that is no number or, unless they are dropped, a missing value."""
    for number, name in enumerate(asked_columns(plan)):
        if table.columns.get(f"wrong{number}", np.zeros(1)).any():
            raise ArgumentError(
                f"Column {name!r} holds text that is no number. Correct it, or empty it and say "
                'missing="drop".'
            )
        if plan.missing == "error" and int(table.columns[f"count{number}"].sum()) < rows:
            raise ArgumentError(
                f'Column {name!r} has rows without a value. To leave them out, say missing="drop".'
            )


def _sum(
    table: Table, plan: Plan, place: int, ask: Sums, places: Integers, shape: tuple[int, ...]
) -> Sum:
    number = asked_columns(plan).index(ask.column)
    count = _by_group(table, f"count{number}", places, shape)
    squares = _whole(table, f"square{place}", places, shape) if ask.squares else None
    return Sum(count, _whole(table, f"sum{place}", places, shape), squares)


def _whole(table: Table, name: str, places: Integers, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a sum from its halves, in Python's integers."""
    high, low = (
        _by_group(table, f"{name}{part}", places, shape).astype(object) for part in ("high", "low")
    )
    return np.asarray(high * HALF + low, dtype=object)


def _counts(table: Table, ask: Cells | Edges, places: Integers, shape: tuple[int, ...]) -> Integers:
    cells = cells_of(ask)
    counts = np.zeros((*shape, cells + 2), dtype=np.int64)  # With those outside, and those missing.
    codes = table.columns[str(table.code)]
    np.add.at(counts.reshape(-1), places * (cells + 2) + codes, table.columns["rows"])
    return np.ascontiguousarray(counts[..., :cells])
