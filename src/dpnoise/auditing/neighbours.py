"""Pairs of neighbouring data sets: given one by one, or by the name of a relation."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, check_integer, reject

Pair = tuple[Any, Any]

VECTOR: Final = "vector"
ROWS: Final = "rows"
_ROWS: Final = ((1,), (0,), (0, 1), (1, 1, 1), (0, 0, 0, 0, 1), (0, 1) * 10)


def neighbours_of(given: Any, size: int, sensitivity: float, data: Any) -> list[Pair]:
    """Return the pairs that were given, or those of a declared relation.

    Parameters
    ----------
    given
        Pairs of data sets; "vector", answers to queries that each move by at most the sensitivity;
        or "rows", data sets that differ in one row, added, removed or replaced.
    size
        How many answers a vector has.
    sensitivity
        The most that one answer moves.
    data
        The rows that one is added to, removed from or replaced in: a list, an array or a frame.

    Examples
    --------
    >>> neighbours_of("vector", 3, 1.0, None)[2]
    (array([1., 1., 1.]), array([2., 0., 0.]))
    >>> neighbours_of("rows", 1, 1.0, ["ann", "bob"])[:2]
    [(['ann', 'bob'], ['bob']), (['ann', 'bob'], ['ann'])]
    """
    if isinstance(given, str):
        if given == VECTOR:
            return vectors(check_integer("size", size, least=1), sensitivity)
        if given == ROWS:
            return rows(data)
        reject("neighbours", given, "to be 'vector', 'rows', or a list of pairs of data sets")
    if not isinstance(given, Iterable):
        raise ArgumentTypeError("Expected neighbours to be 'vector', 'rows', or a list of pairs.")
    pairs = [_pair(pair) for pair in given]
    if not pairs:
        raise ArgumentError("Expected neighbours to have at least one pair of data sets.")
    return pairs


def _pair(pair: Any) -> Pair:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:  # noqa: PLR2004 - a pair
        raise ArgumentTypeError("Expected each of neighbours to be a pair of data sets: (a, b).")
    return pair[0], pair[1]


def vectors(size: int, sensitivity: float = 1.0) -> list[Pair]:
    """Return the pairs of Ding and others (2018): every answer moves by the sensitivity at most."""
    ones, half = np.ones(size), size // 2
    up, down = np.full(size, 2.0), np.zeros(size)
    first, others = np.arange(size) == 0, np.arange(size) < half
    moved = {
        "one below": np.where(first, 0.0, 1.0),
        "one above": np.where(first, 2.0, 1.0),
        "one above, the rest below": np.where(first, 2.0, 0.0),
        "one below, the rest above": np.where(first, 0.0, 2.0),
        "half and half": np.where(others, 2.0, 0.0),
        "all above": up,
        "all below": down,
    }
    pairs = [(ones, vector) for vector in moved.values()]
    crossed = (np.where(others, 1.0, 0.0), np.where(others, 0.0, 1.0))
    return _unlike([(a * sensitivity, b * sensitivity) for a, b in [*pairs, crossed]])


def rows(data: Any = None) -> list[Pair]:
    """Return data sets that differ in one row: removed, added once more, or replaced."""
    if data is None:
        bases = [list(base) for base in _ROWS]
        added = [(base, [*base, extra]) for base in bases for extra in (0, 1)]
        replaced = [(base, [1 - base[0], *base[1:]]) for base in bases]
        return [([], [0]), ([], [1]), *added, *replaced]
    taken = _taker(data)
    n = len(data)
    if not n:
        raise ArgumentError("Expected data to have at least one row to remove.")
    every = list(range(n))
    removed = [(data, taken([i for i in every if i != gone])) for gone in dict.fromkeys([0, n - 1])]
    again = [(data, taken([*every, i])) for i in dict.fromkeys([0, n - 1])]
    replaced = [(data, taken([n - 1, *every[1:]])), (data, taken([*every[:-1], 0]))]
    return removed + again + (replaced if n > 1 else [])


def _taker(data: Any) -> Any:
    """Return what takes rows of a data set by their places."""
    if hasattr(data, "iloc"):
        return lambda places: data.iloc[places]
    if isinstance(data, list):
        return lambda places: [data[i] for i in places]
    if isinstance(data, tuple):
        return lambda places: tuple(data[i] for i in places)
    if hasattr(data, "num_rows") and hasattr(data, "take"):  # Arrow's tables.
        return lambda places: data.take(np.array(places, dtype=np.int64))
    if hasattr(data, "shape") and len(data.shape):  # Arrays, and frames of Polars.
        return lambda places: data[np.array(places, dtype=np.int64)]
    raise ArgumentTypeError("Expected data to be rows: a list, an array or a frame.")


def _unlike(pairs: list[Pair]) -> list[Pair]:
    """Leave out pairs that are equal to an earlier one, as those of short vectors are."""
    kept: dict[tuple[bytes, bytes], Pair] = {}
    for a, b in pairs:
        if a.tobytes() != b.tobytes():
            kept.setdefault((a.tobytes(), b.tobytes()), (a, b))
    return list(kept.values())
