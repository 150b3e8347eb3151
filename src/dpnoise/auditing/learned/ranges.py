"""Cells between edges, as ranges of numbers and in the words of an event."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.learned.views import Text, no_text

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NAMED: Final = 4  # Numbers or ranges that are named in an event's words.


def ranges(edges: Floats, inside: Flags, text: Text = no_text, *, gaps: bool = True) -> str:
    """Say in words which cells between edges are meant.

    A number that is a text's is called by that; `gaps` says that something may be missing.

    Examples
    --------
    >>> ranges(np.array([1.0, np.nextafter(1.0, 2.0), 5.0, np.inf]),
    ...        np.array([False, True, False, True, False]))
    '1 or at least 5'
    """
    texts = _texts(edges, text)
    said = [name for i, name in texts.items() if inside[i]]
    edges, left = _numbers(edges, inside, sorted(texts))
    left[-1] &= gaps
    left[0] &= len(edges) > 1 or not texts  # Between texts there is nothing.
    for low, high in borders_of(edges, left):
        many = text(low) or text(high)
        said.append("one of many texts" if many else _range(low, high))
    if len(said) > NAMED:
        return f"one of {len(said)}, such as {said[0]}"
    return " or ".join(dict.fromkeys(said)) or "never"


def _numbers(edges: Floats, inside: Flags, texts: Sequence[int]) -> tuple[Floats, Flags]:
    """Leave out the cells of texts: what is before one and what is after become one cell."""
    left = inside.copy()
    for i in texts:
        left[i + 1] &= left[i - 1]
    gone = [j for i in texts for j in (i - 1, i)]
    return np.delete(edges, gone), np.delete(left, gone)


def _texts(edges: Floats, text: Text) -> dict[int, str]:
    """Return the cells that have one text alone, with it."""
    alone = np.flatnonzero(edges[1:] == np.nextafter(edges[:-1], np.inf))
    named = {int(i) + 1: text(float(edges[i])) for i in alone}
    return {i: name for i, name in named.items() if name is not None}


def borders_of(edges: Floats, inside: Flags) -> list[tuple[float, float]]:
    """Return the ends of the ranges of cells that are meant: NaN is the end of the last cell."""
    ends = np.concatenate([[-np.inf], edges, [np.nan]])
    marks = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    return [(float(ends[start]), float(ends[end])) for start, end in marks.reshape(-1, 2)]


def _range(low: float, high: float) -> str:
    """Say what lies in [low, high); NaN is the end of all numbers, and of what is missing."""
    if high == np.nextafter(low, np.inf):
        return f"{low:.6g}"
    if low == np.inf:
        return "missing"
    missing = " or missing" if np.isnan(high) else ""
    above, below = _border(low, "at least", "above"), _border(high, "below", "at most")
    if not high < np.inf:
        return (f"anything{missing}" if missing else "there") if low == -np.inf else above + missing
    return below if low == -np.inf else f"{above} and {below}"


def _border(edge: float, words: str, beside: str) -> str:
    """Name an edge, or the number that it lies just above of."""
    before = float(np.nextafter(edge, -np.inf))
    just = len(repr(before)) < len(repr(float(edge)))
    return f"{beside} {before:.6g}" if just else f"{words} {edge:.6g}"
