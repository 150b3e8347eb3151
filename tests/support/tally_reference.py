"""The reference implementation of engines: plans answered row by row, in plain Python."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from dpnoise.statistics.plan import (
    Cells,
    Combinations,
    Distinct,
    Edges,
    Grouping,
    Plan,
    Rows,
    SumAnswer,
    Sums,
    Tally,
)

Columns = Mapping[str, Sequence[Any]]


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def in_grids(value: Any, ask: Sums | Cells) -> int:
    """Return floor(clamp(x)/grid + 1/2), within least..most."""
    if isinstance(value, float) and math.isinf(value):
        return ask.most if value > 0 else ask.least
    exact = Fraction(float(value))  # Integers and decimals become the nearest float.
    whole = math.floor(exact / Fraction(ask.grid) + Fraction(1, 2))
    return min(max(whole, ask.least), ask.most)


def cell_of(value: Any, edges: Sequence[float]) -> int | None:
    """Return the index of the cell that contains a value, or None."""
    exact = float(value)
    if exact == edges[-1]:
        return len(edges) - 2
    inside = (index for index in range(len(edges) - 1) if edges[index] <= exact < edges[index + 1])
    return next(inside, None)


def answer(ask: Any, rows: list[int], columns: Columns) -> Any:
    """Return the answer to an ask for some rows."""
    if isinstance(ask, Rows):
        return len(rows)
    values = [columns[ask.column][row] for row in rows]
    values = [value for value in values if not is_missing(value)]
    if isinstance(ask, Distinct):
        return len({value for value in values if value != ""})
    if isinstance(ask, Edges):
        cells = [cell_of(value, ask.edges) for value in values]
        return [cells.count(index) for index in range(len(ask.edges) - 1)]
    wholes = [in_grids(value, ask) for value in values]
    if isinstance(ask, Cells):
        return [wholes.count(whole) for whole in range(ask.least, ask.most + 1)]
    return len(wholes), sum(wholes), sum(whole**2 for whole in wholes)


def tally(columns: Columns, plan: Plan) -> Tally:
    """Return the answers to a plan; keys are compared as in Python."""
    size = len(next(iter(columns.values())))
    groups = [
        [
            row
            for row in range(size)
            if all(is_in_group(columns, row, grouping, key) for grouping, key in chosen)
        ]
        for chosen in product(
            *([(grouping, key) for key in keys_of(grouping)] for grouping in plan.by)
        )
    ]
    shape = tuple(len(keys_of(grouping)) for grouping in plan.by)
    answers: list[Any] = []
    for ask in plan.asks:
        answers_by_group = [answer(ask, rows, columns) for rows in groups]
        if isinstance(ask, Sums):
            parts = [
                np.array(part, dtype=object).reshape(shape)
                for part in zip(*answers_by_group, strict=True)
            ]
            answers.append(SumAnswer(parts[0], parts[1], parts[2] if ask.squares else None))
        else:
            cells = () if isinstance(ask, Rows | Distinct) else (len(answers_by_group[0]),)
            answers.append(np.array(answers_by_group, dtype=np.int64).reshape((*shape, *cells)))
    return Tally(tuple(answers))


def keys_of(grouping: Grouping | Combinations) -> Sequence[Any]:
    """Return a key for each group; None for the rows in no declared group."""
    is_other = isinstance(grouping, Grouping) and grouping.undeclared
    return [None] if is_other else grouping.keys


def is_in_group(columns: Columns, row: int, grouping: Grouping | Combinations, key: Any) -> bool:
    """Return whether a row has the declared key of a column, or the labels of several columns."""
    if isinstance(grouping, Combinations):
        return bool(tuple(label(columns[name][row]) for name in grouping.columns) == key)
    if grouping.undeclared:
        return not any(has_key(columns, grouping.column, row, each) for each in grouping.keys)
    return has_key(columns, grouping.column, row, key)


def has_key(columns: Columns, name: str, row: int, key: Any) -> bool:
    value = columns[name][row]
    return value is not None and type(value) is type(key) and bool(value == key)


def label(value: Any) -> str | None:
    """Return the label of a discovered group: digits, true or false, a date, or the text itself."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.0f}".replace("-0", "0") if value.is_integer() else None
    return None if value is None else str(value)


def assert_same(ours: Tally, expected: Tally) -> None:
    """Fail unless all integers are equal."""
    assert len(ours.answers) == len(expected.answers)
    for mine, theirs in zip(ours.answers, expected.answers, strict=True):
        if isinstance(theirs, SumAnswer):
            assert isinstance(mine, SumAnswer)
            assert mine.count.dtype == np.int64
            assert mine.count.tolist() == theirs.count.tolist()
            assert mine.total.tolist() == theirs.total.tolist()
            assert (mine.squares is None) == (theirs.squares is None)
            if mine.squares is not None and theirs.squares is not None:
                assert mine.squares.tolist() == theirs.squares.tolist()
        else:
            assert not isinstance(mine, SumAnswer)
            assert mine.dtype == np.int64
            assert mine.shape == theirs.shape
            assert mine.tolist() == theirs.tolist()
