"""Rare leaks: what was seen several times at one data set and never at the other.

These are numbers, texts and whole outputs, and numbers beyond all of the other data set. Each is
too rare to be noticed among the cells of a view. Taken together they are one score: the logarithm
of how often each was seen.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from dpnoise.auditing.learned.expected_bounds import Score
from dpnoise.auditing.learned.steps import Steps, find_cells
from dpnoise.auditing.learned.views import (
    LEAKS,
    Rows,
    Text,
    View,
    listing,
    part_source,
    reader,
    row_codes,
)
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats, Integers

_INTEGERS: Final = np.arange(-(1 << 15), 1 << 15, dtype=np.float64)  # All of 16 bits.

Tails = list[tuple[float, bool, float]]  # The cut, whether the tail is above it, and its ratio.


def find_rare_leaks(
    rows0: Rows, rows1: Rows, columns: Sequence[int], names: Sequence[str], text: Text
) -> Score | None:
    """Return the score of all rare leaks in rows of two data sets, or None if there are none.

    A leak that only chance made is harmless: the threshold of the score is chosen on other rows.
    """
    most = TUNING.leak_work // (1 + len(columns))
    rows0, rows1 = rows0[:most], rows1[:most]
    found: list[tuple[View, Steps]] = []
    if not columns:
        return None
    # One of the four tails of any column has fewer hits of one data set only by chance.
    least_in_tail = TUNING.least_leak_hits + int(np.log2(4 * max(1, len(columns))))
    seen = [_look_at(rows0[:, j], rows1[:, j], text, least_in_tail) for j in columns]
    if len(columns) > 1:
        seen.append(_look_at(row_codes(rows0), row_codes(rows1), None, least_in_tail))
    of_values = zip(*(values for values, _ in seen), strict=True)
    _, all_hits, totals = (np.concatenate(parts) for parts in of_values)
    least = _least_hits(all_hits, totals)
    for j, ((values, hits, _), tails) in zip([*columns, None], seen, strict=False):
        are_leaks = np.abs(hits) >= least
        step = _leaks_of(values[are_leaks], hits[are_leaks], tails)
        if step is None:
            continue
        if j is None:
            view = _view_of_whole(np.concatenate([rows0, rows1]), step)
        else:
            view = View(names[j], LEAKS, reader(j), text=text, source=part_source(j))
        found.append((view, step))
    if not found:
        return None
    leaky, step_functions = zip(*found, strict=True)
    return Score(leaky, step_functions, (1.0,) * len(found))


def _view_of_whole(rows: Rows, step: Steps) -> View:
    """Return the view of the codes of whole rows, with a row for each code that leaks."""
    codes = row_codes(rows)
    leaks = np.flatnonzero(find_cells(step.edges, codes) % 2)  # In a cell of a single number.
    examples = dict(zip(codes[leaks].tolist(), rows[leaks], strict=True))
    source = f"pattern({{y}}, {listing(range(-1, rows.shape[1] - 1))}, [], [])"
    words, take = "the whole output", lambda block: row_codes(block.rows)
    return View(words, LEAKS, take, coded=True, source=source, examples=examples)


def _look_at(
    x0: Rows, x1: Rows, text: Text | None, least_in_tail: int
) -> tuple[tuple[Floats, Floats, Floats], Tails]:
    """Return values and tails of one data set only; codes have no order, and so no `text`."""
    if x0.dtype != np.int16:
        sorted0, sorted1 = (np.sort(x[~np.isnan(x)].astype(np.float64)) for x in (x0, x1))
        values = _values_of_one_side(sorted0, sorted1)
    else:
        count0, count1 = map(_count_integers, (x0, x1))
        sorted0, sorted1 = np.repeat(_INTEGERS, count0), np.repeat(_INTEGERS, count1)
        repeated = count0 + count1 >= TUNING.least_leak_hits
        values = _leaks_among(_INTEGERS[repeated], count0[repeated], count1[repeated])
    tails = [] if text is None else _tails_of_one_side(sorted0, sorted1, text, least_in_tail)
    return values, tails


def _count_integers(x: Rows) -> Integers:
    """Return how often each number in `_INTEGERS` occurs, which is faster than to sort them."""
    words = np.ascontiguousarray(x).view(np.uint16)
    return np.roll(np.bincount(words, minlength=len(_INTEGERS)), len(_INTEGERS) // 2)


def _leaks_of(values: Floats, hits: Floats, tails: Tails) -> Steps | None:
    """Return the leaks of one number of the outputs: single values, and tails."""
    if not len(values) and not tails:
        return None
    most = np.argsort(-np.abs(hits), kind="stable")[: TUNING.leaks_of_column]
    values, hits = values[most], hits[most]
    cuts = np.array([cut for cut, _, _ in tails])
    edges = np.unique(np.concatenate([values, np.nextafter(values, np.inf), cuts, [np.inf]]))
    ratios = np.zeros(len(edges) + 1)
    for cut, is_high, ratio in tails:
        cell = int(find_cells(edges, np.array([cut]))[0])
        ratios[cell:-1] += ratio * is_high
        ratios[:cell] += ratio * (not is_high)
    ratios[find_cells(edges, values)] += np.sign(hits) * np.log(2.0 * np.abs(hits) + 1)
    return Steps(edges, ratios)


def _values_of_one_side(x0: Floats, x1: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the numbers seen several times at one data set only, with their hits.

    The numbers must be sorted. Hits at the second data set are negative. The third result has the
    hits at both data sets of every number that was seen several times.
    """
    both, others = np.sort(np.concatenate([x0, x1])), TUNING.least_leak_hits - 1
    values = both[others:][both[others:] == both[: len(both) - others]]
    values = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    c0, c1 = (
        np.searchsorted(x, values, "right") - np.searchsorted(x, values, "left") for x in (x0, x1)
    )
    return _leaks_among(values, c0, c1)


def _leaks_among(values: Floats, c0: Integers, c1: Integers) -> tuple[Floats, Floats, Floats]:
    leaks = (c0 == 0) | (c1 == 0)
    return values[leaks] + 0.0, (c0 - c1)[leaks].astype(np.float64), (c0 + c1).astype(np.float64)


def _least_hits(hits: Floats, totals: Floats) -> int:
    """Return the least hits with which at most half of the numbers of one side are due to chance.

    A number that is as likely at both data sets has all of its hits at one of them with probability
    2^(1 - hits). Among many parts with many numbers, chance makes leaks of few hits.

    >>> _least_hits(np.array([4.0, -5.0, 12.0]), np.array([4.0, 5.0, 12.0]))
    4
    >>> _least_hits(np.array([4.0, -5.0, 12.0]), np.array([4.0] * 30 + [12.0]))
    5
    """
    least = TUNING.least_leak_hits
    while 2 * np.exp2(1.0 - totals[totals >= least]).sum() > (np.abs(hits) >= least).sum():
        least += 1
    return least


def _tails_of_one_side(x0: Floats, x1: Floats, text: Text, least: int) -> Tails:
    """Return (cut, is high, log ratio) of each tail with several numbers of one data set only."""
    tails = []
    if not len(x0) or not len(x1):
        return []
    for x, other, side in ((x0, x1, 1), (x1, x0, -1)):
        above = x[np.searchsorted(x, other[-1], "right") :]
        below = x[: np.searchsorted(x, other[0], "left")]
        for beyond, last, is_high in ((above, other[-1], True), (below, other[0], False)):
            if len(beyond) >= least and text(float(beyond[0])) is None:
                # Most of these numbers are beyond the cut, and few others by chance.
                cut = float((last + np.median(beyond)) / 2)
                tails.append((cut, is_high, side * float(np.log(2.0 * len(beyond) + 1))))
    return tails
