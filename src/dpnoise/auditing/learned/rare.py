"""Rare leaks: what was seen several times at one data set and never at the other.

These are numbers, texts and whole outputs, and numbers beyond all of the other data set. Each is
too rare to be noticed among the cells of a view. Taken together they are one score: the logarithm
of how often each was seen.
"""

from collections.abc import Sequence

import numpy as np

from dpnoise.auditing.learned.expected_bounds import Score
from dpnoise.auditing.learned.steps import Steps, find_cells
from dpnoise.auditing.learned.views import (
    LEAKS,
    Rows,
    Text,
    View,
    group_equal_rows,
    listing,
    part_source,
    reader,
    row_codes,
)
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats


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
    for j in columns:
        step = _leaks_of(rows0[:, j], rows1[:, j], text, least_in_tail)
        if step is not None:
            found.append((View(names[j], LEAKS, reader(j), text=text, source=part_source(j)), step))
    if len(columns) > 1:
        codes = row_codes(rows0), row_codes(rows1)
        step = _leaks_of(*codes, None, least_in_tail)
        if step is not None:
            found.append((_view_of_whole(np.concatenate([rows0, rows1]), codes, step), step))
    if not found:
        return None
    leaky, step_functions = zip(*found, strict=True)
    return Score(leaky, step_functions, (1.0,) * len(found))


def _view_of_whole(rows: Rows, codes: tuple[Floats, Floats], step: Steps) -> View:
    """Return the view of the codes of whole rows, with a row for each code that leaks."""
    values, first = np.unique(np.concatenate(codes), return_index=True)
    leaks = np.isin(values, step.edges)
    examples = dict(zip(values[leaks].tolist(), rows[first[leaks]], strict=True))
    source = f"pattern({{y}}, {listing(range(-1, rows.shape[1] - 1))}, [], [])"
    words, take = "the whole output", lambda block: row_codes(block.rows)
    return View(words, LEAKS, take, coded=True, source=source, examples=examples)


def _leaks_of(x0: Rows, x1: Rows, text: Text | None, least_in_tail: int) -> Steps | None:
    """Return the leaks of one number of the outputs; codes, which have no order, have no `text`."""
    values, counts = _values_of_one_side(x0, x1)
    tails = [] if text is None else _tails_of_one_side(x0, x1, text, least_in_tail)
    if not len(values) and not tails:
        return None
    cuts = np.array([cut for cut, _, _ in tails])
    edges = np.unique(np.concatenate([values, np.nextafter(values, np.inf), cuts, [np.inf]]))
    ratios = np.zeros(len(edges) + 1)
    for cut, is_high, ratio in tails:
        cell = int(find_cells(edges, np.array([cut]))[0])
        ratios[cell:-1] += ratio * is_high
        ratios[:cell] += ratio * (not is_high)
    ratios[find_cells(edges, values)] += counts
    return Steps(edges, ratios)


def _values_of_one_side(x0: Rows, x1: Rows) -> tuple[Floats, Floats]:
    """Return the numbers seen several times at one data set only, each with its log ratio."""
    x = np.concatenate([x0, x1]).astype(np.float64)
    first, same = group_equal_rows(x[:, None])
    c0, c1 = (np.bincount(part, minlength=len(first)) for part in np.split(same, [len(x0)]))
    seen = np.where(c1 == 0, c0, 0) - np.where(c0 == 0, c1, 0)
    several = np.flatnonzero((np.abs(seen) >= TUNING.least_leak_hits) & ~np.isnan(x[first]))
    most = several[np.argsort(-np.abs(seen[several]), kind="stable")][: TUNING.leaks_of_column]
    return x[first[most]] + 0.0, np.sign(seen[most]) * np.log(2.0 * np.abs(seen[most]) + 1)


def _tails_of_one_side(
    x0: Rows, x1: Rows, text: Text, least: int
) -> list[tuple[float, bool, float]]:
    """Return (cut, is high, log ratio) of each tail with several numbers of one data set only."""
    tails = []
    known = [x[~np.isnan(x)].astype(np.float64) for x in (x0, x1)]
    if not all(map(len, known)):
        return []
    for sign in (1, -1):
        for side in (1, -1):
            x, other = known[::side]
            last = (sign * other).max()
            beyond = sign * x[sign * x > last]
            if len(beyond) >= least and text(float(sign * beyond[0])) is None:
                # Most of these numbers are beyond the cut, and few others by chance.
                cut = sign * (last + np.median(beyond)) / 2
                tails.append((float(cut), sign > 0, side * float(np.log(2.0 * len(beyond) + 1))))
    return tails
