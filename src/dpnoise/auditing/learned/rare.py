"""Rare leaks: what was seen several times at one data set and never at the other.

These are numbers, texts and whole outputs, and numbers beyond all of the other data set. Each is
too rare to be noticed among the cells of a view. Taken together they are one score, the evidence
of each: the negative logarithm of the probability that chance gives all of its hits to one data
set. For a number, that is the probability of the numbers near it: of a noisy value, many numbers
have all hits at one data set, because all near it are likelier there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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

Tails = list[tuple[float, bool, float]]  # The cut, whether the tail is above it, and its evidence.


def find_rare_leaks(
    rows0: Rows,
    rows1: Rows,
    columns: Sequence[int],
    names: Sequence[str],
    text: Text,
    claimed_share: float = 0.5,
) -> Score | None:
    """Return the score of all rare leaks in rows of two data sets, or None if there are none.

    `claimed_share` is the most that a claim allows one data set to have of the hits of a number.
    A leak that only chance made is harmless: the threshold of the score is chosen on other rows.
    """
    most = TUNING.leak_work // (1 + len(columns))
    rows0, rows1 = rows0[:most], rows1[:most]
    found: list[tuple[View, Steps]] = []
    if not columns:
        return None
    seen = [*_look_at(rows0, rows1, columns, text, claimed_share)]
    leaks = [numbers.leaks() for numbers, _ in seen]
    least = _least_evidence(
        np.concatenate([np.abs(evidence) for _, evidence in leaks]),
        np.concatenate([numbers.possible_evidence.ravel() for numbers, _ in seen]),
    )
    for j, (values, evidence), (_, tails) in zip_longest([*columns], leaks, seen):
        are_kept = np.abs(evidence) >= least
        step = _leaks_of(values[are_kept], evidence[are_kept], tails)
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


def _look_at(
    rows0: Rows, rows1: Rows, columns: Sequence[int], text: Text, claimed_share: float
) -> "Iterator[tuple[_Repeated, Tails]]":
    """Yield repeated numbers and tails of each column; if there are several, of whole rows too."""
    # One of the four tails of any column has less evidence only by chance.
    least_of_tail = TUNING.least_leak_hits * math.log(2) + math.log(4 * len(columns))
    for j in columns:
        samples = _Samples.of(rows0[:, j], rows1[:, j], claimed_share)
        yield samples.repeated_numbers(text), samples.tails(text, least_of_tail)
    if len(columns) > 1:
        codes = _Samples.of(row_codes(rows0), row_codes(rows1), claimed_share)
        yield codes.repeated_numbers(None), []


def _view_of_whole(rows: Rows, step: Steps) -> View:
    """Return the view of the codes of whole rows, with a row for each code that leaks."""
    codes = row_codes(rows)
    leaks = np.flatnonzero(find_cells(step.edges, codes) % 2)  # In a cell of a single number.
    examples = dict(zip(codes[leaks].tolist(), rows[leaks], strict=True))
    source = f"pattern({{y}}, {listing(range(-1, rows.shape[1] - 1))}, [], [])"
    words, take = "the whole output", lambda block: row_codes(block.rows)
    return View(words, LEAKS, take, coded=True, source=source, examples=examples)


@dataclass(frozen=True)
class _Repeated:
    """Numbers seen several times, with their hits and evidence: a row for each data set.

    `possible_evidence` is that of each number if all of its hits were at that data set.
    """

    numbers: Floats
    hits: Integers
    possible_evidence: Floats

    def leaks(self) -> tuple[Floats, Floats]:
        """Return the numbers seen at one data set only, and their evidence.

        Evidence of the second data set is negative.
        """
        signs = (self.hits[1] == 0).astype(int) - (self.hits[0] == 0)
        evidence = signs * np.where(signs > 0, *self.possible_evidence)
        return self.numbers[signs != 0] + 0.0, evidence[signs != 0]


@dataclass(frozen=True)
class _Samples:
    """One part of the outputs at two data sets, sorted: x0, x1, and both together."""

    x0: Floats
    x1: Floats
    both: Floats
    claimed_share: float

    @classmethod
    def of(cls, x0: Rows, x1: Rows, claimed_share: float) -> "_Samples":
        if x0.dtype == np.int16:
            count0, count1 = map(_count_integers, (x0, x1))
            counts = count0, count1, count0 + count1
            ordered = [np.repeat(_INTEGERS, count) for count in counts]
        else:
            known = [x[~np.isnan(x)].astype(np.float64) for x in (x0, x1)]
            ordered = [np.sort(x) for x in (*known, np.concatenate(known))]
        return cls(ordered[0], ordered[1], ordered[2], claimed_share)

    def repeated_numbers(self, text: Text | None) -> _Repeated:
        """Return all numbers seen several times. Without `text`, they are codes without order."""
        others = TUNING.least_leak_hits - 1
        numbers = np.unique(self.both[others:][self.both[others:] == self.both[:-others]])
        hits = self._counts(numbers, numbers)
        shares = np.full(hits.shape, 0.5)
        if text is not None:
            ordered = np.array([text(x) is None for x in numbers.tolist()], np.bool_)
            shares[:, ordered] = self._shares_near(numbers[ordered], hits[:, ordered])
        return _Repeated(numbers, hits, -np.log(shares) * hits.sum(axis=0))

    def tails(self, text: Text, least: float) -> Tails:
        """Return (cut, is high, evidence) of each tail with numbers of one data set only."""
        tails = []
        if not len(self.x0) or not len(self.x1):
            return []
        for x, other, side in ((self.x0, self.x1, 0), (self.x1, self.x0, 1)):
            above = x[np.searchsorted(x, other[-1], "right") :]
            below = x[: np.searchsorted(x, other[0], "left")]
            for beyond, last, is_high in ((above, other[-1], True), (below, other[0], False)):
                if not len(beyond) or text(float(beyond[0])) is not None:
                    continue
                inside = np.array([[0], [0]])
                inside[side] = len(beyond)
                share = float(self._shares_near(np.array([last]), inside)[side, 0])
                evidence = -len(beyond) * math.log(share)
                if evidence >= least:
                    # Most of these numbers are beyond the cut, and few others by chance.
                    cut = float((last + np.median(beyond)) / 2)
                    tails.append((cut, is_high, evidence if side == 0 else -evidence))
        return tails

    def _counts(self, low: Floats, high: Floats) -> Integers:
        """Return how many outputs of each data set are from each of `low` to each of `high`."""
        return np.stack([np.searchsorted(x, high, "right") - np.searchsorted(x, low, "left")
                         for x in (self.x0, self.x1)])  # fmt: skip

    def _shares_near(self, numbers: Floats, hits: Integers) -> Floats:
        """Return the share of each data set of the outputs just below and above each number.

        `hits` are not counted. No share is above the claimed one, because several leaks may be
        close, nor below a half, because few outputs are counted.
        """
        reach, last = TUNING.leak_neighbours, len(self.both) - 1
        low = self.both[np.maximum(np.searchsorted(self.both, numbers, "left") - reach, 0)]
        high = self.both[np.minimum(np.searchsorted(self.both, numbers, "right") + reach - 1, last)]
        near = self._counts(low, high) - hits
        shares = (near + 0.5) / (near.sum(axis=0) + 1.0)
        return np.asarray(np.clip(shares, 0.5, self.claimed_share))


def _count_integers(x: Rows) -> Integers:
    """Return how often each number in `_INTEGERS` occurs, which is faster than to sort them."""
    words = np.ascontiguousarray(x).view(np.uint16)
    return np.roll(np.bincount(words, minlength=len(_INTEGERS)), len(_INTEGERS) // 2)


def _leaks_of(values: Floats, evidence: Floats, tails: Tails) -> Steps | None:
    """Return the leaks of one part of the outputs, single values and tails, by their evidence."""
    if not len(values) and not tails:
        return None
    most = np.argsort(-np.abs(evidence), kind="stable")[: TUNING.leaks_of_column]
    values, evidence = values[most], evidence[most]
    cuts = np.array([cut for cut, _, _ in tails])
    edges = np.unique(np.concatenate([values, np.nextafter(values, np.inf), cuts, [np.inf]]))
    ratios = np.zeros(len(edges) + 1)
    for cut, is_high, of_tail in tails:
        cell = int(find_cells(edges, np.array([cut]))[0])
        ratios[cell:-1] += of_tail * is_high
        ratios[:cell] += of_tail * (not is_high)
    ratios[find_cells(edges, values)] += evidence
    return Steps(edges, ratios)


def _least_evidence(leaks: Floats, possible: Floats) -> float:
    """Return the least evidence with which at most half of the leaks are due to chance.

    `leaks` is the evidence of the leaks; `possible` that of all numbers, if all of their hits were
    at one data set. Chance gives evidence x with probability exp(-x).

    >>> three_leaks = np.log(2) * np.array([4, 5, 12])
    >>> round(_least_evidence(three_leaks, three_leaks) / np.log(2))
    4
    >>> round(_least_evidence(three_leaks, np.repeat(three_leaks, [30, 1, 1])) / np.log(2))
    5
    """
    leaks, possible = np.sort(leaks), np.sort(possible)
    by_chance = np.append(np.exp(-possible)[::-1].cumsum()[::-1], 0.0)
    found = len(leaks) - np.searchsorted(leaks, leaks)
    enough = 2 * by_chance[np.searchsorted(possible, leaks)] <= found
    return float(leaks[enough.argmax()]) if enough.any() else math.inf
