"""Events learned from releases: where a likelihood ratio, estimated on one part, is large.

One part of the releases gives each view of an output its likelihood ratio, a second part the
weights with which several are summed up, a third the threshold of each sum. Whatever is learned
here is a proposal: an audit counts it in fresh releases.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.attacks.base import Event
from dpnoise.attacks.claims import Judge
from dpnoise.attacks.scores import (
    Steps,
    edges_of,
    edges_of_codes,
    rising_steps,
    steps,
    weights,
)
from dpnoise.attacks.views import PARTS, STEPS, View, views_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_FINE: Final = 64  # Cells of ratios that only rise.
_COARSE: Final = 16  # Cells of ratios that are free.
_SUMMED: Final = 24  # The most scores in one sum.
_SURE: Final = 2.0  # Standard errors that a score must be apart to be summed up with others.
_SIMPLER: Final = 0.005  # The part of its promise that each view of a score costs.
_FREE: Final = 4  # How many times as much one costs whose cells were learned one by one.
_ALONE: Final = 12  # The most scores that are tried by themselves.
_CUTS: Final = 400  # Thresholds that are tried.
_RARE: Final = 0.02  # The share of releases below which an event is rare.
_SEEN: Final = 4  # How often it must have been seen.
_NAMED: Final = 4  # Numbers or ranges that are named in an event's words.


@dataclass(frozen=True)
class Score:
    """A weighted sum of step functions of views."""

    views: tuple[View, ...]
    steps: tuple[Steps, ...]
    weights: tuple[float, ...]

    def __call__(self, rows: Floats) -> Floats:
        """Return the score of each row."""
        total = np.zeros(len(rows))
        for view, step, weight in zip(self.views, self.steps, self.weights, strict=True):
            total += weight * step(view.take(rows))
        return total


@dataclass(frozen=True)
class Proposal:
    """An event that was learned: on which side it happens, and what it promises to certify."""

    score: "Score"
    event: Event
    swapped: bool  # It is meant to happen at the second data set.
    promise: float
    about: str
    rare: bool = False


def proposals(
    rows0: Floats, rows1: Floats, names: Sequence[str], judge: Judge, *, quick: bool = False
) -> list[Proposal]:
    """Return events learned from as many rows of each of two data sets, the best first.

    Parameters
    ----------
    rows0, rows1
        Outputs at the two data sets, as rows.
    names
        Of the columns.
    judge
        How an event will be judged.
    quick
        Leave out the sums that take long to learn, to compare pairs of data sets.
    """
    n = min(len(rows0), len(rows1))
    cuts = [0, n // 2, n // 2, n] if quick else [0, n // 2, 3 * n // 4, n]
    parts = [slice(*ends) for ends in pairwise(cuts)]
    fit, combine, select = (_Part(rows0[part], rows1[part]) for part in parts)
    if quick:
        combine = select
    views = views_of(np.concatenate([fit.rows0, fit.rows1]), names)
    found: list[Proposal] = []
    for score in _scores(views, fit, combine, quick=quick):
        found += _thresholds(score, select, judge)
    return sorted(found, key=lambda proposal: -proposal.promise)


def tuned(score: Score, rows0: Floats, rows1: Floats, judge: Judge) -> list[Proposal]:
    """Choose the thresholds of a score anew, on rows that it was not learned from."""
    found = _thresholds(score, _Part(rows0, rows1), judge)
    return [proposal for proposal in found if not proposal.rare]


def leading(found: Sequence[Proposal], n: int) -> list[Proposal]:
    """Return the n best proposals, and half as many of rare events, whose promise is less sure."""
    usual = [proposal for proposal in found if not proposal.rare]
    rare = [proposal for proposal in found if proposal.rare]
    return [*usual[:n], *rare[: max(1, n // 2)]]


class _Part:
    """Rows of both data sets; what a view takes of them is kept."""

    def __init__(self, rows0: Floats, rows1: Floats) -> None:
        self.rows0, self.rows1 = rows0, rows1
        self._taken: dict[int, tuple[Floats, Floats]] = {}

    def taken(self, view: View) -> tuple[Floats, Floats]:
        if id(view) not in self._taken:
            self._taken[id(view)] = view.take(self.rows0), view.take(self.rows1)
        return self._taken[id(view)]

    def features(self, pairs: Sequence[tuple[View, Steps]]) -> tuple[Floats, Floats]:
        both = [[step(x) for x in self.taken(view)] for view, step in pairs]
        at0, at1 = zip(*both, strict=True)
        return np.column_stack(at0), np.column_stack(at1)

    def scored(self, score: Score) -> tuple[Floats, Floats]:
        pairs = list(zip(score.views, score.steps, strict=True))
        at0, at1 = self.features(pairs)
        return at0 @ np.array(score.weights), at1 @ np.array(score.weights)


def _scores(views: Sequence[View], fit: _Part, combine: _Part, *, quick: bool) -> Iterator[Score]:
    """Learn the scores of single views, then sums of those of a kind and of the best of all."""
    learned = [(view, step) for view in views for step in _learned(view, *fit.taken(view))]
    worth = {id(step): _worth(step, *combine.taken(view)) for view, step in learned}
    learned.sort(key=lambda pair: -worth[id(pair[1])])
    for view, step in learned[:_ALONE]:
        yield Score((view,), (step,), (1.0,))
    telling = _one_each([pair for pair in learned if worth[id(pair[1])] > _SURE])
    for kind in (PARTS, STEPS):
        yield from _sums([pair for pair in telling if pair[0].kind == kind], combine, quick=quick)
    if not quick:
        yield from _sums(telling[:_SUMMED], combine, quick=False)


def _learned(view: View, x0: Floats, x1: Floats) -> list[Steps]:
    both = np.concatenate([x0, x1])
    if view.coded:
        return [steps(edges_of_codes(both), x0, x1)]
    fine, coarse = edges_of(both, _FINE), edges_of(both, _COARSE)
    return [rising_steps(fine, x0, x1), steps(coarse, x0, x1)]


def _worth(step: Steps, x0: Floats, x1: Floats) -> float:
    """Return how far apart releases that it was not learned on are, in standard errors."""
    s0, s1 = step(x0), step(x1)
    error = float(np.sqrt(s0.var() / len(s0) + s1.var() / len(s1)))
    return float(s0.mean() - s1.mean()) / error if error > 0 else 0.0


def _one_each(pairs: Sequence[tuple[View, Steps]]) -> list[tuple[View, Steps]]:
    """Return the best score of each view: naive Bayes counts no view twice."""
    best: dict[int, tuple[View, Steps]] = {}
    for pair in pairs:
        best.setdefault(id(pair[0]), pair)
    return list(best.values())


def _sums(pairs: list[tuple[View, Steps]], combine: _Part, *, quick: bool) -> Iterator[Score]:
    if len(pairs) < 2:
        return
    views, parts = zip(*pairs, strict=True)
    yield Score(views, parts, (1.0,) * len(pairs))
    if not quick:
        fitted = weights(*combine.features(pairs))
        yield Score(views, parts, tuple(fitted.tolist()))


def _thresholds(score: Score, select: _Part, judge: Judge) -> list[Proposal]:
    """Return the best threshold of a score for each of the two data sets."""
    s0, s1 = (np.sort(s) for s in select.scored(score))
    both = np.unique(np.concatenate([s0, s1]))
    if len(both) > _CUTS:
        shares = special.expit(np.linspace(-9, 9, _CUTS))
        both = np.unique(np.quantile(np.concatenate([s0, s1]), shares))
    n = len(s0)
    above = [(n - np.searchsorted(s, both, side="right")).astype(np.float64) for s in (s0, s1)]
    below = [np.searchsorted(s, both).astype(np.float64) for s in (s0, s1)]
    found = []
    for swapped, (hits0, hits1) in ((False, above), (True, below[::-1])):
        usual = judge.promises(hits0, hits1, n)
        # An event of few releases is not seen often enough to be clear: it has a place of its own.
        rare = replace(judge, chance=0.5).promises(hits0, hits1, n)
        rare[(hits0 > _RARE * n) | (hits0 < _SEEN)] = -1.0
        for promised in (usual, rare):
            best = int(promised.argmax())
            if promised is rare and rare[best] <= usual.max():
                continue
            cut, kind = both[best], score.views[0].kind if len(score.views) == 1 else "sum"
            event = Event(_words(score, cut, swapped=swapped), _holds(score, cut, swapped=swapped))
            cost = _SIMPLER * sum(_FREE if step.free else 1 for step in score.steps)
            promise = float(promised[best]) - cost * abs(promised[best])
            found.append(Proposal(score, event, swapped, promise, kind, rare=promised is rare))
    return found


def _holds(score: Score, threshold: float, *, swapped: bool) -> Callable[[Any], Flags]:
    def holds(rows: Any) -> Flags:
        value = score(rows)
        return np.asarray(value < threshold if swapped else value > threshold)

    return holds


def _words(score: Score, threshold: float, *, swapped: bool) -> str:
    """Say when a score is beyond its threshold."""
    if len(score.views) > 1:
        leading = sorted(zip(score.weights, score.views, strict=True), key=lambda p: -abs(p[0]))
        names = ", ".join(view.words for _, view in leading[:_NAMED])
        more = f" and {len(leading) - _NAMED} more" if len(leading) > _NAMED else ""
        side = "below" if swapped else "above"
        return f"a likelihood ratio of {names}{more} is {side} {np.exp(threshold):.4g}"
    view, step = score.views[0], score.steps[0]
    inside = step.ratios < threshold if swapped else step.ratios > threshold
    if view.coded:
        return f"{view.words} is one of {int(inside.sum())}"
    return f"{view.words} is {ranges(step.edges, inside)}"


def ranges(edges: Floats, inside: Flags) -> str:
    """Say in words which cells between edges are meant.

    Examples
    --------
    >>> ranges(np.array([1.0, np.nextafter(1.0, 2.0), 5.0, np.inf]),
    ...        np.array([False, True, False, True, False]))
    '1 or at least 5'
    """
    borders = np.concatenate([[-np.inf], edges])
    marks = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    said = []
    for start, end in marks.reshape(-1, 2):
        low = borders[start]
        high = borders[end] if end < len(borders) else np.nan
        said.append(_range(float(low), float(high)))
    if len(said) > _NAMED:
        return f"in one of {len(said)} ranges, such as {said[0]}"
    return " or ".join(said) or "never"


def _range(low: float, high: float) -> str:
    """Say what lies in [low, high); NaN is the end of all numbers, and of what is missing."""
    if high == np.nextafter(low, np.inf):
        return f"{low:.6g}"
    if low == np.inf:
        return "missing"
    missing = " or missing" if np.isnan(high) else ""
    above, below = _border(low, "at least", "above"), _border(high, "below", "at most")
    if not high < np.inf:
        return f"anything{missing}" if low == -np.inf else f"{above}{missing}"
    return below if low == -np.inf else f"{above} and {below}"


def _border(edge: float, words: str, beside: str) -> str:
    """Name an edge, or the number that it lies just above of."""
    before = float(np.nextafter(edge, -np.inf))
    just = len(repr(before)) < len(repr(float(edge)))
    return f"{beside} {before:.6g}" if just else f"{words} {edge:.6g}"
