"""The judge of engines: a plan answered row by row in fractions, with nothing but Python."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from dpnoise.statistics.plan import Cells, Edges, Plan, Rows, Sum, Sums, Tally

Columns = Mapping[str, Sequence[Any]]


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def in_grids(value: Any, ask: Sums | Cells) -> int:
    """Return floor(clamp(x)/grid + 1/2), within least..most."""
    if isinstance(value, float) and math.isinf(value):
        return ask.most if value > 0 else ask.least
    exact = Fraction(float(value))  # The nearest float, also of an integer or a decimal.
    whole = math.floor(exact / Fraction(ask.grid) + Fraction(1, 2))
    return min(max(whole, ask.least), ask.most)


def between(value: Any, edges: Sequence[float]) -> int | None:
    """Return the place of the cell that holds a value."""
    exact = float(value)
    if exact == edges[-1]:
        return len(edges) - 2
    inside = (place for place in range(len(edges) - 1) if edges[place] <= exact < edges[place + 1])
    return next(inside, None)


def answer(ask: Any, rows: list[int], columns: Columns) -> Any:
    """Answer one ask for some rows."""
    if isinstance(ask, Rows):
        return len(rows)
    values = [columns[ask.column][row] for row in rows]
    values = [value for value in values if not is_missing(value)]
    if isinstance(ask, Edges):
        cells = [between(value, ask.edges) for value in values]
        return [cells.count(place) for place in range(len(ask.edges) - 1)]
    wholes = [in_grids(value, ask) for value in values]
    if isinstance(ask, Cells):
        return [wholes.count(whole) for whole in range(ask.least, ask.most + 1)]
    return len(wholes), sum(wholes), sum(whole**2 for whole in wholes)


def tally(columns: Columns, plan: Plan) -> Tally:
    """Answer a plan; keys are compared as Python compares them."""
    size = len(next(iter(columns.values())))
    groups = [
        [row for row in range(size) if all(_is(columns, one, row, key) for one, key in chosen)]
        for chosen in product(*([(one.column, key) for key in one.keys] for one in plan.by))
    ]
    shape = tuple(len(one.keys) for one in plan.by)
    answers: list[Any] = []
    for ask in plan.asks:
        found = [answer(ask, rows, columns) for rows in groups]
        if isinstance(ask, Sums):
            parts = [
                np.array(part, dtype=object).reshape(shape) for part in zip(*found, strict=True)
            ]
            answers.append(Sum(parts[0], parts[1], parts[2] if ask.squares else None))
        else:
            cells = () if isinstance(ask, Rows) else (len(found[0]),)
            answers.append(np.array(found, dtype=np.int64).reshape((*shape, *cells)))
    return Tally(tuple(answers))


def _is(columns: Columns, name: str, row: int, key: Any) -> bool:
    value = columns[name][row]
    return value is not None and type(value) is type(key) and bool(value == key)


def assert_same(ours: Tally, judged: Tally) -> None:
    """Every integer is the same, to the last digit."""
    assert len(ours.answers) == len(judged.answers)
    for mine, theirs in zip(ours.answers, judged.answers, strict=True):
        if isinstance(theirs, Sum):
            assert isinstance(mine, Sum)
            assert mine.count.dtype == np.int64
            assert mine.count.tolist() == theirs.count.tolist()
            assert mine.total.tolist() == theirs.total.tolist()
            assert (mine.squares is None) == (theirs.squares is None)
            if mine.squares is not None and theirs.squares is not None:
                assert mine.squares.tolist() == theirs.squares.tolist()
        else:
            assert not isinstance(mine, Sum)
            assert mine.dtype == np.int64
            assert mine.shape == theirs.shape
            assert mine.tolist() == theirs.tolist()
