"""Events of a score: its thresholds, what each promises to certify, and how events are compared.

A score is meant to be a likelihood ratio, so that an event is that it is above a threshold, or
below. What is chosen here is a proposal: an audit counts it in fresh releases.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.auditing.attacks.base import Event
from dpnoise.auditing.attacks.bounds import Judge
from dpnoise.auditing.learned.boosting import TREES
from dpnoise.auditing.learned.ranges import NAMED, borders_of, ranges
from dpnoise.auditing.learned.scores import Steps, calibrated, sides
from dpnoise.auditing.learned.views import SIDES, Block, View
from dpnoise.core.parallel import cores, in_runs

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SIMPLER: Final = 0.01  # The part of its promise that each view of a score costs.
_FREE: Final = 4  # How many times as much one costs whose cells were learned one by one.
_TREES: Final = 20  # How many times as much trees cost.
_KINDS: Final = 2  # How many times as much views of several kinds cost: they overlap.
_CUTS: Final = 120  # Thresholds that are tried.
_SORTED: Final = 50_000  # Scores that are sorted to find them.
_RARE: Final = 0.02  # The share of releases below which an event is rare.
_SEEN: Final = 4  # How often it must have been seen.
_CLEAR: Final = 200  # How often an event must have been seen at both to be held against a curve.
_TRUST: Final = 0.1  # The part of a smooth ratio by which it may be off, as a standard error,
_GROUPS: Final = 16  # besides what is seen of that in so many groups of scores; of rarer ones more.
_RARER: Final = 5  # Events of one score that are compared with its best, each rarer than the last,
_LIKELIER: Final = 2  # or likelier, of a sum: there the best is one of many.
_STEP: Final = 0.8  # How likely the rarer of two such events is, at most, beside the other.
_BLOCK: Final = 1 << 14  # Rows that are looked at at a time: what a view takes of them stays near.


@dataclass(frozen=True)
class Score:
    """A weighted sum of step functions of views."""

    views: tuple[View, ...]
    steps: tuple[Steps, ...]
    weights: tuple[float, ...]

    def __call__(self, rows: Floats) -> Floats:
        """Return the score of each row."""
        total: Floats = scored([self], rows)[0]
        return total


def scored(scores: Sequence[Score], rows: Floats) -> Floats:
    """Return the scores of each row, a line for each score; what several look at is taken once."""
    totals = np.zeros((len(scores), len(rows)))

    def work(first: int, last: int) -> None:
        for start in range(first, last, _BLOCK):
            place = slice(start, min(last, start + _BLOCK))
            block = Block(rows[place])
            for score, total in zip(scores, totals, strict=True):
                for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
                    step.add(block.of(view.take), weight, total[place])

    in_runs(work, len(rows), _BLOCK, cores())
    return totals


@dataclass(frozen=True)
class Proposal:
    """An event that was learned: on which side it happens, and what it promises to certify."""

    score: Score
    event: Event
    cut: float  # The threshold of the score.
    swapped: bool  # It is meant to happen at the second data set, where the score is below.
    promise: float
    hits: tuple[float, float]  # How often it happened where it is meant to, and at the other.
    shares: tuple[float, float]  # How often it does as a smooth curve has it.
    off: float  # By how much the curve is off, as a standard error of its logarithms.
    about: str
    cost: float  # The part of its promise that was taken off, because it is not simple.
    rare: bool = False

    def holds(self, value: Floats) -> Flags:
        """Tell of each value of the score whether the event happened."""
        return np.asarray(value < self.cut if self.swapped else value > self.cut)


def thresholds(
    score: Score, seen: tuple[Floats, Floats, Floats], judge: Judge, *, some: bool = False
) -> list[Proposal]:
    """Return the best threshold of a score for each of the two data sets.

    `seen` is what the score was in some releases, and how often each was seen at either data set.
    If some are asked for, those of rarer events as well, and of likelier ones: where there are many
    thresholds, that of a rare event may look best by chance.
    """
    s, often0, often1 = seen
    both, few = _cuts(s, often0 + often1)
    n = int(often0.sum())
    above, below = sides(both, s, often0, often1)
    upper, lower, off = _smoothed(both, below[0], below[1], n, few=few)
    found: list[Proposal] = []
    cost = _SIMPLER * _complexity(score)
    either = (False, above, upper), (True, below[::-1], lower[::-1])
    steps = (_RARER, 0 if few else _LIKELIER) if some else (0, 0)
    for swapped, (hits0, hits1), (smooth0, smooth1) in either:
        usual = judge.promises(hits0, hits1, n)
        usual = np.maximum(usual, _drawn(hits0, hits1, smooth0, smooth1, n, judge, off))
        # An event of few releases is not seen often enough to be clear: it has a place of its own.
        seldom, rare = (hits0 <= _RARE * n) & (hits0 >= _SEEN), np.full(len(hits0), -1.0)
        rare[seldom] = replace(judge, chance=0.5).promises(hits0[seldom], hits1[seldom], n)
        chosen = [(best, usual, False) for best in _ladder(usual, hits0, steps)]
        if rare.max() > usual.max():
            chosen.append((int(rare.argmax()), rare, True))
        for best, promised, is_rare in chosen:
            cut, kind = both[best], score.views[0].kind if len(score.views) == 1 else "sum"
            event = Event(_words(score, cut, swapped=swapped), _holds(score, cut, swapped=swapped))
            promise = float(promised[best]) - cost * abs(promised[best])
            hits = float(hits0[best]), float(hits1[best])
            smooth = float(smooth0[best]), float(smooth1[best])
            found.append(
                Proposal(
                    score, event, cut, swapped, promise, hits, smooth, off, kind, cost, is_rare
                )
            )
    return found


def each_once(found: Iterable[Proposal]) -> list[Proposal]:
    """Return proposals in the order of what they promise, each event once.

    What happened as often is the same event, of several scores: the simplest promises most. Rare
    events may happen as often by chance.
    """
    first: dict[Hashable, Proposal] = {}
    for one in sorted(found, key=lambda proposal: -proposal.promise):
        first.setdefault(id(one) if one.rare else (one.swapped, one.hits), one)
    return list(first.values())


def compared(found: Sequence[Proposal], hits: Floats, n: int, judge: Judge) -> Floats:
    """Return what events promise by how often each happened in n other releases of both."""
    hits0, hits1 = hits.T
    shares0, shares1 = np.array([one.shares for one in found]).T
    off = np.array([one.off for one in found])
    drawn = _drawn(hits0, hits1, shares0, shares1, n, judge, off, hope=0.0)
    # The better of two guesses would be that of chance, where one of many events is chosen.
    promised = np.where(drawn > -np.inf, drawn, judge.promises(hits0, hits1, n))
    result: Floats = promised - np.array([one.cost for one in found]) * np.abs(promised)
    return result


def leading(found: Sequence[Proposal], n: int) -> list[Proposal]:
    """Return the n best proposals, and half as many of rare events, whose promise is less sure."""
    usual = [proposal for proposal in found if not proposal.rare]
    rare = [proposal for proposal in found if proposal.rare]
    return [*usual[:n], *rare[: max(1, n // 2)]]


def _complexity(score: Score) -> int:
    """Return how many simple views a score costs as much as."""
    kinds = {view.kind for view in score.views}
    overlap = len(kinds) > 1 and kinds != set(SIDES)
    each = (
        _TREES if view.kind == TREES else _FREE if step.free else 1
        for view, step in zip(score.views, score.steps, strict=True)
    )
    return (_KINDS if overlap else 1) * sum(each)


def _cuts(score: Floats, often: Floats) -> tuple[Floats, bool]:
    """Return thresholds to try: all where they are few, else closer ones for rarer events."""
    some = slice(None, None, -(-len(score) // _SORTED))
    order = np.argsort(score[some])
    s, total = score[some][order], often[some][order].cumsum()
    cuts = s[np.append(True, s[1:] != s[:-1])]
    if len(cuts) <= _CUTS:
        return cuts, True
    shares = special.expit(np.linspace(-9, 9, _CUTS))
    return np.unique(s[np.searchsorted(total[:-1], shares * total[-1])]), False


def _ladder(promised: Floats, hits: Floats, steps: tuple[int, int]) -> list[int]:
    """Return the place of the best, then of the best that is rarer than the last, in some steps.

    Then from the best again, of the best that is likelier than the last.
    """
    places = np.flatnonzero(promised > -np.inf)
    if not len(places):
        return []
    found = [int(places[promised[places].argmax()])]
    for count, sign in zip(steps, (1, -1), strict=True):
        last = found[0]
        for _ in range(count):
            left = places[sign * hits[places] < sign * _STEP**sign * hits[last]]
            if not len(left):
                break
            last = int(left[promised[left].argmax()])
            found.append(last)
    return found


def _smoothed(
    cuts: Floats, below0: Floats, below1: Floats, n: int, *, few: bool
) -> tuple[list[Floats], list[Floats], float]:
    """Return the shares of both data sets above and below cuts, as a logistic curve has them.

    And by how much the curve is off, as a standard error of its logarithms.

    A score is meant to be a likelihood ratio. How far it is one, up to a factor, all releases tell
    together, and so they tell of the rare ones as well. `few` says that there is no other score.
    """
    # Cell i has the scores from cut i up to the next.
    c0, c1 = (np.diff(np.append(below, n)) for below in (below0, below1))
    share = calibrated(cuts, c0, c1)
    cells = [(c0 + c1) * part / n for part in (share, 1 - share)]
    upper = [np.append(cell[::-1].cumsum()[::-1], 0.0) for cell in cells]
    lower = [np.append(0.0, cell.cumsum())[:-1] for cell in cells]
    off = _misfit(c0, c1, share)
    return [part[1:] if few else part[:-1] for part in upper], lower, off


def _misfit(c0: Floats, c1: Floats, share: Floats) -> float:
    """Return how far counts are from a curve, beyond what chance explains, in groups of cells."""
    below = (c0 + c1).cumsum()
    starts = np.unique(np.searchsorted(below, below[-1] * np.arange(_GROUPS) / _GROUPS, "right"))
    seen0, seen, expected = (np.add.reduceat(x, starts) for x in (c0, c0 + c1, (c0 + c1) * share))
    variance = np.maximum(expected * (1 - expected / seen), 1e-9)
    chi_squared = ((seen0 - expected) ** 2 / variance).mean()
    # Its own standard error is put down to the curve: few groups say little.
    excess = max(0.0, chi_squared - 1) + np.sqrt(2 / len(starts))
    return float(np.sqrt(excess * (1 / variance).mean()))


def _drawn(
    hits0: Floats,
    hits1: Floats,
    shares0: Floats,
    shares1: Floats,
    n: int,
    judge: Judge,
    off: Any,
    *,
    hope: float = 0.5,
) -> Floats:
    """Return what events promise whose ratios are drawn to smooth ones, the rarer the more.

    Besides a part of a smooth ratio, `off` is by how much it may be off. Where it is larger than
    what was seen, it is off by the difference, and taken to be larger by `hope` standard errors of
    that at most.
    """
    seen = (hits0 >= _CLEAR) & (hits1 >= _CLEAR) & (shares0 > 0) & (shares1 > 0)
    h0, h1, p0, p1 = (np.where(seen, x, 1.0) for x in (hits0, hits1, shares0, shares1))
    counted, smooth = np.log(h0 / h1), np.log(p0 / p1)
    mass = (h0 + h1) / n
    trust = _TRUST * np.maximum(1.0, np.sqrt(2 / (_GROUPS * mass)))
    by_counts, by_model = 1 / h0 + 1 / h1, (trust * smooth) ** 2 + off**2 + 1e-12
    weight = by_counts / (by_counts + by_model)
    ratio = np.minimum(
        (1 - weight) * counted + weight * smooth, counted + hope * np.sqrt(by_counts)
    )
    apart = weight * np.maximum(0.0, smooth - counted)
    spread = np.sqrt(by_counts * by_model / (by_counts + by_model) + apart**2)
    share = special.expit(ratio)
    likely = [np.minimum(1.0, mass * part) for part in (share, 1 - share)]
    promised = judge.expects(likely[0], likely[1], spread)
    return np.where(seen, promised, -np.inf)


def _holds(score: Score, threshold: float, *, swapped: bool) -> Callable[[Any], Flags]:
    def holds(rows: Any) -> Flags:
        value = score(rows)
        return np.asarray(value < threshold if swapped else value > threshold)

    if len(score.views) > 1:
        return holds
    view, step = score.views[0], score.steps[0]
    value = score.weights[0] * step.ratios
    borders = borders_of(step.edges, value < threshold if swapped else value > threshold)
    return _within(view, borders) if len(borders) <= NAMED else holds


def _within(view: View, borders: Sequence[tuple[float, float]]) -> Callable[[Any], Flags]:
    """Return the event that what a view takes is in one of some ranges [low, high)."""

    def holds(rows: Any) -> Flags:
        flags = np.zeros(len(rows), dtype=np.bool_)

        def work(first: int, last: int) -> None:
            for start in range(first, last, _BLOCK):
                place = slice(start, min(last, start + _BLOCK))
                x = Block(rows[place]).of(view.take)
                for low, high in borders:
                    inside = ~(x < low)
                    flags[place] |= inside if np.isnan(high) else inside & (x < high)

        in_runs(work, len(rows), _BLOCK, cores())
        return flags

    return holds


def _words(score: Score, threshold: float, *, swapped: bool) -> str:
    """Say when a score is beyond its threshold."""
    if len(score.views) > 1:
        leading = sorted(zip(score.weights, score.views, strict=True), key=lambda p: -abs(p[0]))
        names = ", ".join(view.words for _, view in leading[:NAMED])
        more = f" and {len(leading) - NAMED} more" if len(leading) > NAMED else ""
        side = "below" if swapped else "above"
        return f"a likelihood ratio of {names}{more} is {side} {np.exp(threshold):.4g}"
    view, step = score.views[0], score.steps[0]
    inside = step.ratios < threshold if swapped else step.ratios > threshold
    if view.coded:
        return f"{view.words} is one of {int(inside.sum())}"
    return f"{view.words} is {ranges(step.edges, inside, view.text, gaps=view.gaps)}"
