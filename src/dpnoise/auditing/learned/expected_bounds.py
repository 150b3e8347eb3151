"""Events of a score: its thresholds, their expected bounds, and how events are compared.

A score is meant to be a likelihood ratio, so that an event is that it is above a threshold, or
below. What is chosen here is a proposal: an audit counts it in fresh releases.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from scipy import special

from dpnoise.auditing.attacks.base import Event
from dpnoise.auditing.attacks.bounds import BoundEstimator
from dpnoise.auditing.learned.scores import Steps, fit_logistic_curve, sides, tail_shares
from dpnoise.auditing.learned.views import SIDES, Block, Rows, Text, View, no_text
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.parallel import cores, run_in_parallel

TREES: Final = "trees"  # The kind of the view that boosted trees give.
_NAMED: Final = 4  # Numbers, ranges or views that are named in an event's words.


@dataclass(frozen=True)
class Score:
    """A weighted sum of step functions of views."""

    views: tuple[View, ...]
    steps: tuple[Steps, ...]
    weights: tuple[float, ...]

    def __call__(self, rows: Rows) -> Floats:
        """Return the score of each row."""
        return np.asarray(evaluate([self], rows)[0])


def evaluate(scores: Sequence[Score], rows: Rows) -> Floats:
    """Return the scores of each row, a line for each score; what several look at is taken once."""
    totals = np.zeros((len(scores), len(rows)))

    def add(first: int, last: int) -> None:
        for start in range(first, last, TUNING.block_rows):
            some = slice(start, min(last, start + TUNING.block_rows))
            block = Block(rows[some])
            for score, total in zip(scores, totals, strict=True):
                for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
                    step.add(block.of(view.take), weight, total[some])

    run_in_parallel(add, len(rows), TUNING.block_rows, cores())
    return totals


@dataclass(frozen=True)
class Proposal:
    """An event that was learned: on which side it happens, and its expected bound."""

    score: Score
    event: Event
    cut: float  # The threshold of the score.
    swapped: bool  # It is meant to happen at the second data set, where the score is below.
    expected_bound: float
    hits: tuple[float, float]  # How often it happened where it is meant to, and at the other.
    shares: tuple[float, float]  # How often it does as a smooth curve has it.
    off: float  # By how much the curve is off, as a standard error of its logarithms.
    cost: float  # The part of its expected bound that was taken off, because it is not simple.
    rare: bool = False

    def holds(self, value: Floats) -> Flags:
        """Tell of each value of the score whether the event happened."""
        return _is_beyond(value, self.cut, swapped=self.swapped)


def _is_beyond(value: Floats, cut: float, *, swapped: bool) -> Flags:
    return np.asarray(value < cut if swapped else value > cut)


def _happens(score: Score, cut: float, swapped: bool, rows: Rows) -> Flags:  # noqa: FBT001 - see `partial`
    return _is_beyond(score(rows), cut, swapped=swapped)


def thresholds(
    score: Score,
    seen: tuple[Floats, Floats, Floats],
    estimator: BoundEstimator,
    *,
    some: bool = False,
) -> list[Proposal]:
    """Return the best threshold of a score for each of the two data sets.

    `seen` is what the score was in some releases, and how often each was seen at either data set.
    If some are asked for, those of rarer events as well, and of likelier ones: where there are many
    thresholds, that of a rare event may look best by chance.
    """
    values, often0, often1 = seen
    cuts, few = _cuts(values, often0 + often1)
    n = int(often0.sum())
    above, below = sides(cuts, values, often0, often1)
    upper, lower, off = _fit_curve(cuts, below[0], below[1], n, few=few)
    cost = TUNING.complexity_cost * _complexity(score)
    steps = (TUNING.rarer_events, 0 if few else TUNING.likelier_events) if some else (0, 0)
    found: list[Proposal] = []
    for swapped, hits, shares in ((False, above, upper), (True, below[::-1], lower[::-1])):
        for i, expected, rare in _best_cuts(hits, shares, n, estimator, off, steps):
            cut = cuts[i]
            words = _words(score, cut, swapped=swapped)
            event = Event(words, partial(_happens, score, cut, swapped))
            worth = expected - cost * abs(expected)
            counted, smooth = ((float(x[0][i]), float(x[1][i])) for x in (hits, shares))
            found.append(
                Proposal(score, event, cut, swapped, worth, counted, smooth, off, cost, rare)
            )
    return found


def _best_cuts(
    hits: Sequence[Floats],
    shares: Sequence[Floats],
    n: int,
    estimator: BoundEstimator,
    off: float,
    steps: tuple[int, int],
) -> list[tuple[int, float, bool]]:
    """Return the places of the best thresholds, their expected bounds, and whether it is rare."""
    hits0, hits1 = hits
    usual = np.maximum(
        estimator.expected_bounds(hits0, hits1, n),
        _shrink_to_curve(hits, shares, n, estimator, off),
    )
    chosen = [(i, float(usual[i]), False) for i in _ladder(usual, hits0, steps)]
    # An event of few releases is not seen often enough to be clear: it has a place of its own.
    seldom = (hits0 <= TUNING.rare_share * n) & (hits0 >= TUNING.least_rare_hits)
    rare = np.full(len(hits0), -1.0)
    fixed = replace(estimator, chance=TUNING.chance)
    rare[seldom] = fixed.expected_bounds(hits0[seldom], hits1[seldom], n)
    if rare.max() > usual.max():
        chosen.append((int(rare.argmax()), float(rare.max()), True))
    return chosen


def each_once(found: Iterable[Proposal]) -> list[Proposal]:
    """Return proposals in the order of their expected bounds, each event once.

    Events with equal counts are the same event of several scores: the simplest has the largest
    bound. Rare events may have equal counts by chance.
    """
    first: dict[Hashable, Proposal] = {}
    for one in sorted(found, key=lambda proposal: -proposal.expected_bound):
        first.setdefault(id(one) if one.rare else (one.swapped, one.hits), one)
    return list(first.values())


def expect(found: Sequence[Proposal], hits: Floats, n: int, estimator: BoundEstimator) -> Floats:
    """Return what events expected_bound by how often each happened in n other releases of both."""
    hits0, hits1 = hits.T
    shares = np.array([one.shares for one in found]).T
    off = np.array([one.off for one in found])
    drawn = _shrink_to_curve((hits0, hits1), (shares[0], shares[1]), n, estimator, off, hope=0.0)
    # The better of two guesses would be that of chance, where one of many events is chosen.
    expected = np.where(drawn > -np.inf, drawn, estimator.expected_bounds(hits0, hits1, n))
    return np.asarray(expected - np.array([one.cost for one in found]) * np.abs(expected))


def leading(found: Sequence[Proposal], n: int) -> list[Proposal]:
    """Return the n best proposals, and n/2 of rare events, whose expected bound is less certain."""
    usual = [proposal for proposal in found if not proposal.rare]
    rare = [proposal for proposal in found if proposal.rare]
    return [*usual[:n], *rare[: max(1, n // 2)]]


def _complexity(score: Score) -> int:
    """Return how many simple views a score costs as much as."""
    kinds = {view.kind for view in score.views}
    overlap = len(kinds) > 1 and kinds != set(SIDES)
    total = sum(TUNING.free_cost_factor if step.free else 1 for step in score.steps)
    if TREES in kinds:
        total = TUNING.trees_cost_factor
    return (TUNING.overlap_cost_factor if overlap else 1) * total


def _cuts(score: Floats, often: Floats) -> tuple[Floats, bool]:
    """Return thresholds to try: all where they are few, else closer ones for rarer events."""
    some = slice(None, None, -(-len(score) // TUNING.threshold_sample))
    order = np.argsort(score[some])
    s, total = score[some][order], often[some][order].cumsum()
    cuts = s[np.append(True, s[1:] != s[:-1])]
    if len(cuts) <= TUNING.thresholds:
        return cuts, True
    shares = tail_shares(TUNING.threshold_log_odds, TUNING.thresholds)
    return np.unique(s[np.searchsorted(total[:-1], shares * total[-1])]), False


def _ladder(expected: Floats, hits: Floats, steps: tuple[int, int]) -> list[int]:
    """Return the place of the best, then of the best that is rarer than the last, in some steps.

    Then from the best again, of the best that is likelier than the last.
    """
    places = np.flatnonzero(expected > -np.inf)
    if not len(places):
        return []
    found = [int(places[expected[places].argmax()])]
    for count, sign in zip(steps, (1, -1), strict=True):
        last = found[0]
        for _ in range(count):
            left = places[sign * hits[places] < sign * TUNING.event_step**sign * hits[last]]
            if not len(left):
                break
            last = int(left[expected[left].argmax()])
            found.append(last)
    return found


def _fit_curve(
    cuts: Floats, below0: Floats, below1: Floats, n: int, *, few: bool
) -> tuple[list[Floats], list[Floats], float]:
    """Return the shares of both data sets above and below cuts, as a logistic curve has them.

    And by how much the curve is off, as a standard error of its logarithms.

    A score is meant to be a likelihood ratio. How far it is one, up to a factor, all releases tell
    together, and so they tell of the rare ones as well. `few` says that there is no other score.
    """
    # Cell i has the scores from cut i up to the next.
    c0, c1 = (np.diff(np.append(below, n)) for below in (below0, below1))
    share = fit_logistic_curve(cuts, c0, c1)
    cells = [(c0 + c1) * part / n for part in (share, 1 - share)]
    upper = [np.append(cell[::-1].cumsum()[::-1], 0.0) for cell in cells]
    lower = [np.append(0.0, cell.cumsum())[:-1] for cell in cells]
    off = _misfit(c0, c1, share)
    return [part[1:] if few else part[:-1] for part in upper], lower, off


def _misfit(c0: Floats, c1: Floats, share: Floats) -> float:
    """Return how far counts are from a curve, beyond what chance explains, in groups of cells."""
    below = (c0 + c1).cumsum()
    groups = TUNING.curve_groups
    starts = np.unique(np.searchsorted(below, below[-1] * np.arange(groups) / groups, "right"))
    seen0, seen, expected = (np.add.reduceat(x, starts) for x in (c0, c0 + c1, (c0 + c1) * share))
    variance = np.maximum(expected * (1 - expected / seen), 1e-9)
    chi_squared = ((seen0 - expected) ** 2 / variance).mean()
    # Its own standard error is put down to the curve: few groups say little.
    excess = max(0.0, chi_squared - 1) + np.sqrt(2 / len(starts))
    return float(np.sqrt(excess * (1 / variance).mean()))


def _shrink_to_curve(
    hits: Sequence[Floats],
    shares: Sequence[Floats],
    n: int,
    estimator: BoundEstimator,
    off: float | Floats,
    *,
    hope: float = 0.5,
) -> Floats:
    """Return what events expected_bound whose ratios are drawn to smooth ones, the rarer the more.

    Besides a part of a smooth ratio, `off` is by how much it may be off. Where it is larger than
    what was seen, it is off by the difference, and taken to be larger by `hope` standard errors of
    that at most.
    """
    seen = (np.minimum(*hits) >= TUNING.least_curve_hits) & (np.minimum(*shares) > 0)
    h0, h1, p0, p1 = (np.where(seen, x, 1.0) for x in (*hits, *shares))
    counted, smooth = np.log(h0 / h1), np.log(p0 / p1)
    mass = (h0 + h1) / n
    trust = TUNING.curve_error * np.maximum(1.0, np.sqrt(2 / (TUNING.curve_groups * mass)))
    by_counts, by_model = 1 / h0 + 1 / h1, (trust * smooth) ** 2 + off**2 + 1e-12
    weight = by_counts / (by_counts + by_model)
    ratio = np.minimum(
        (1 - weight) * counted + weight * smooth, counted + hope * np.sqrt(by_counts)
    )
    apart = weight * np.maximum(0.0, smooth - counted)
    spread = np.sqrt(by_counts * by_model / (by_counts + by_model) + apart**2)
    share = special.expit(ratio)
    likely = [np.minimum(1.0, mass * part) for part in (share, 1 - share)]
    expected = estimator.expects(likely[0], likely[1], spread)
    return np.where(seen, expected, -np.inf)


def _words(score: Score, threshold: float, *, swapped: bool) -> str:
    """Say when a score is beyond its threshold."""
    if len(score.views) > 1:
        leading = sorted(zip(score.weights, score.views, strict=True), key=lambda p: -abs(p[0]))
        names = ", ".join(view.words for _, view in leading[:_NAMED])
        more = f" and {len(leading) - _NAMED} more" if len(leading) > _NAMED else ""
        side = "below" if swapped else "above"
        return f"a likelihood ratio of {names}{more} is {side} {np.exp(threshold):.4g}"
    view, step = score.views[0], score.steps[0]
    inside = _is_beyond(step.ratios, threshold, swapped=swapped)
    if view.coded:
        return f"{view.words} is one of {int(inside.sum())}"
    return f"{view.words} is {ranges(step.edges, inside, view.text, gaps=view.gaps)}"


def ranges(edges: Floats, inside: Flags, text: Text = no_text, *, gaps: bool = True) -> str:
    """Say in words which cells between edges are meant.

    A number that is a text's is called by that; `gaps` says that something may be missing.

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
    if len(said) > _NAMED:
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
