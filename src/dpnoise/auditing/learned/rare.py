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
    sides: list[tuple[Rows, Rows]] = [(rows0[:, j], rows1[:, j]) for j in columns]
    if len(columns) > 1:
        sides.append((row_codes(rows0), row_codes(rows1)))
    seen = [_values_of_one_side(*side) for side in sides]
    _, all_hits, totals = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    least = _least_hits(all_hits, totals)
    for j, side, (values, hits, _) in zip([*columns, None], sides, seen, strict=False):
        leaks = values[np.abs(hits) >= least], hits[np.abs(hits) >= least]
        if j is not None:
            step = _leaks_of(*leaks, _tails_of_one_side(*side, text, least_in_tail))
            view = View(names[j], LEAKS, reader(j), text=text, source=part_source(j))
        elif (step := _leaks_of(*leaks, [])) is not None:
            view = _view_of_whole(np.concatenate([rows0, rows1]), side, step)
        found += [] if step is None else [(view, step)]
    if not found:
        return None
    leaky, step_functions = zip(*found, strict=True)
    return Score(leaky, step_functions, (1.0,) * len(found))


def _view_of_whole(rows: Rows, codes: tuple[Rows, Rows], step: Steps) -> View:
    """Return the view of the codes of whole rows, with a row for each code that leaks."""
    values, first = np.unique(np.concatenate(codes), return_index=True)
    leaks = np.isin(values, step.edges)
    examples = dict(zip(values[leaks].tolist(), rows[first[leaks]], strict=True))
    source = f"pattern({{y}}, {listing(range(-1, rows.shape[1] - 1))}, [], [])"
    words, take = "the whole output", lambda block: row_codes(block.rows)
    return View(words, LEAKS, take, coded=True, source=source, examples=examples)


def _leaks_of(values: Floats, hits: Floats, tails: list[tuple[float, bool, float]]) -> Steps | None:
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


def _values_of_one_side(x0: Rows, x1: Rows) -> tuple[Floats, Floats, Floats]:
    """Return the numbers seen several times at one data set only, with their hits.

    Hits at the second data set are negative. The third result has the hits at both data sets of
    every number that was seen several times.
    """
    x = np.concatenate([x0, x1]).astype(np.float64)
    first, same = group_equal_rows(x[:, None])
    c0, c1 = (np.bincount(part, minlength=len(first)) for part in np.split(same, [len(x0)]))
    several = (c0 + c1 >= TUNING.least_leak_hits) & ~np.isnan(x[first])
    c0, c1, values = c0[several], c1[several], x[first[several]] + 0.0
    leaks = (c0 == 0) | (c1 == 0)
    return values[leaks], (c0 - c1)[leaks].astype(np.float64), (c0 + c1).astype(np.float64)


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
