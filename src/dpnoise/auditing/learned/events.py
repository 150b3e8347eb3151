"""Events learned from releases: where a likelihood ratio, estimated on one part, is large.

One part of the releases gives each view of an output its likelihood ratio, a second part the
weights with which several are summed up, a third the threshold of each sum (see `promises`).
Whatever is learned here is a proposal: an audit counts it in fresh releases.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.auditing.attacks.bounds import Judge
from dpnoise.auditing.learned.boosting import boosted_trees
from dpnoise.auditing.learned.expected_bounds import Proposal, Score, each_once, thresholds
from dpnoise.auditing.learned.scores import (
    Cells,
    Steps,
    cells_of,
    counts,
    edges_of,
    edges_of_codes,
    relearned,
    rising_steps,
    steps,
    weights,
)
from dpnoise.auditing.learned.views import (
    PARTS,
    SIDES,
    STEPS,
    WHOLE,
    Block,
    Take,
    Text,
    View,
    folded,
    no_text,
    row_codes,
    views_of,
)

Floats = NDArray[np.float64]

# Shares at which cells end: of ratios that only rise, finer where there are few; of free ones.
_FINE: Final = special.expit(np.linspace(-4.2, 4.2, 95))
_COARSE: Final = np.arange(1, 16) / 16
_SUMMED: Final = 24  # The most parts that are summed up.
_MIXED: Final = 6  # The most scores of several kinds in one sum.
_SURE: Final = 2.0  # Standard errors that a score must be apart to be summed up with others.
_CERTAIN: Final = (5.0, 10.0)  # And those for sums of fewer scores.
_SIDES: Final = 3  # Scores of one sort of parts that are learned again before the best is taken.
_ALONE: Final = 12  # The most scores that are tried by themselves.
_SEEN_FIRST: Final = 20_000  # Releases of each data set that decide what views there are.
_GLANCE: Final = 20_000  # The most by which all views are compared.
_QUICK_ON: Final = 200_000  # The most by which pairs of data sets are compared.
_BOOSTED_ON: Final = 150_000  # The most on which trees are learned.
_SUMMED_ON: Final = 100_000  # The most on which sums are learned.
_ALIKE: Final = 8  # How often each must be seen, on average, for equal ones to be folded.
_FOLDED: Final = 8_000  # Releases of each data set that tell whether many are alike.
_TWO: Final = 5  # Edges of a view that has two numbers.
_KEPT: Final = 24  # Scores of single views that are learned again, on all releases.
_KEPT_QUICKLY: Final = 16


def proposals(
    rows0: Floats,
    rows1: Floats,
    names: Sequence[str],
    judge: Judge,
    *,
    text: Text = no_text,
    quick: bool = False,
    trees: int | None = None,
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
    text
        What stands behind a number that is a text's.
    quick
        Leave out the sums that take long to learn, to compare pairs of data sets.
    trees
        Learn boosted trees as well; this is the seed of their own choices.
    """
    n = min(len(rows0), len(rows1))
    cuts = [0, n // 2, n // 2, n] if quick else [0, n // 2, 3 * n // 4, n]
    parts = [slice(*ends) for ends in pairwise(cuts)]
    fit, combine, select = (_Part(rows0[part], rows1[part]) for part in parts)
    if quick:
        fit, select = fit.first(_QUICK_ON), select.first(_QUICK_ON)
        combine = select
    sample = [rows[: min(n // 2, _SEEN_FIRST)] for rows in (rows0, rows1)]
    views = views_of(np.concatenate(sample), names, text)
    found: list[Proposal] = []
    scores = _scores(views, fit, combine, quick=quick)
    boosted = iter(()) if trees is None else _boosted(fit.first(_BOOSTED_ON), combine, trees)
    for score in chain(scores, boosted):
        part = select.first(_SUMMED_ON) if len(score.views) > 1 else select
        found += thresholds(score, part.scored(score), judge)
    return each_once(found)


def tuned(scores: Sequence[Score], rows0: Floats, rows1: Floats, judge: Judge) -> list[Proposal]:
    """Choose the thresholds of scores anew, on rows that they were not learned from.

    For each score there are some: of the best event, and of rarer and likelier ones.
    """
    part = _Part(rows0, rows1)
    seen = ((score, part.scored(score)) for score in scores)
    found = chain.from_iterable(thresholds(*one, judge, some=True) for one in seen)
    return each_once(proposal for proposal in found if not proposal.rare)


class _Part:
    """Rows of both data sets, with how often each was seen; what a view takes of them is kept."""

    def __init__(self, rows0: Floats, rows1: Floats) -> None:
        self._given = rows0, rows1
        self.rows, self.often0, self.often1, self.folded = _folded(rows0, rows1)
        self._block = Block(self.rows)
        self._cells: dict[tuple[Take, int], tuple[Floats, Cells]] = {}
        self._first: dict[int, _Part] = {}

    def first(self, n: int) -> "_Part":
        """Return the first n rows of each data set; all of them where equal ones were folded."""
        if self.folded or n >= len(self._given[0]):
            return self
        if n not in self._first:
            self._first[n] = _Part(*(rows[:n] for rows in self._given))
        return self._first[n]

    def taken(self, view: View) -> Floats:
        return self._block.of(view.take).astype(np.float64, copy=False)

    def cells(self, view: View, edges: Floats) -> Cells:
        key = view.take, id(edges)
        if key not in self._cells:
            # With the edges, so that no others get their id.
            self._cells[key] = edges, cells_of(edges, self.taken(view))
        return self._cells[key][1]

    def features(self, pairs: Sequence[tuple[View, Steps]]) -> Floats:
        return np.column_stack([step.ratios[self.cells(view, step.edges)] for view, step in pairs])

    def scored(self, score: Score) -> tuple[Floats, Floats, Floats]:
        """Return the scores of all rows, or all scores of one view, with how often each is seen."""
        if len(score.views) == 1:
            step = score.steps[0]
            cells = self.cells(score.views[0], step.edges)
            often = counts(step.edges, cells, self.often0, self.often1)
            return score.weights[0] * step.ratios, *often
        total = np.zeros(len(self.rows))
        for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
            total += (weight * step.ratios)[self.cells(view, step.edges)]
        return total, self.often0, self.often1


def _folded(rows0: Floats, rows1: Floats) -> tuple[Floats, Floats, Floats, bool]:
    """Return the rows of both, and how often each was seen at either; equal rows once, if few."""
    rows = np.concatenate([rows0, rows1])
    at0 = np.repeat([1.0, 0.0], [len(rows0), len(rows1)])
    if not are_alike(np.concatenate([rows0[:_FOLDED], rows1[:_FOLDED]])):
        return rows, at0, 1 - at0, False
    first, same = folded(rows)
    at0, at1 = (np.bincount(part, minlength=len(first)) for part in np.split(same, [len(rows0)]))
    return rows[first], at0.astype(np.float64), at1.astype(np.float64), True


def different(rows: Floats) -> tuple[Floats, Floats]:
    """Return rows with how often each was seen; equal ones once, if there are many."""
    if not are_alike(rows[:_FOLDED]):
        return rows, np.ones(len(rows))
    first, same = folded(rows)
    return rows[first], np.bincount(same).astype(np.float64)


def are_alike(rows: Floats) -> bool:
    """Tell whether so many of some rows are equal that each is to be looked at once."""
    return len(np.unique(row_codes(rows))) * _ALIKE <= len(rows)


def _kept(
    views: Sequence[View], fit: _Part, combine: _Part, *, quick: bool
) -> list[tuple[View, Steps]]:
    """Return the scores of single views that a glance does not rule out.

    Those of a whole output stay; and if there is time and they are few, those of all parts and of
    their differences, because they may tell much together.
    """
    learned = [(view, step) for view in views for step in _learned(view, fit)]
    worth = [_worth(view, step, combine) for view, step in learned]
    best = {
        int(i) for i in np.argsort(worth, kind="stable")[::-1][: _KEPT_QUICKLY if quick else _KEPT]
    }
    parts = not quick and sum(view.kind == PARTS for view in views) <= _SUMMED

    def stays(view: View, step: Steps) -> bool:
        return view.kind in {WHOLE, *SIDES} or (
            view.kind in {PARTS, STEPS} and parts and not step.free
        )

    return [pair for i, pair in enumerate(learned) if i in best or stays(*pair)]


def _scores(views: Sequence[View], fit: _Part, combine: _Part, *, quick: bool) -> Iterator[Score]:
    """Learn the scores of single views, then sums of those of a kind and of the best of all.

    Most views are looked at in few releases, and the best again in all.
    """
    glance = _GLANCE // 4 if quick else _GLANCE
    kept = _kept(views, fit.first(glance), combine.first(glance), quick=quick)
    ranked, worth = _ranked(kept, fit.first(_SUMMED_ON), combine.first(_SUMMED_ON))
    few, before, mixed = combine.first(_SUMMED_ON), 0, 0
    for least in (_SURE,) if quick else (_SURE, *_CERTAIN):
        telling = _one_each([pair for pair in ranked if worth[id(pair[1])] > least], id)
        if len(telling) == before:
            continue
        before = len(telling)
        for kind in (PARTS, STEPS):
            yield from _sums([pair for pair in telling if pair[0].kind == kind], few, quick=quick)
        mix = _one_each(telling, lambda view: view.take)[:_MIXED]  # A number may be of two kinds.
        if not quick and len(mix) != mixed:
            mixed = len(mix)
            yield from _sums(mix, few, quick=False)
    sides = [[pair for pair in ranked if pair[0].kind == kind][:_SIDES] for kind in SIDES]
    if all(sides):
        best_of = [_ranked(side, fit, combine)[0][0] for side in sides]
        yield from _sums(best_of, combine, quick=quick)
    best = ranked[: _ALONE // 2] + [pair for pair in ranked[_ALONE // 2 :] if pair[0].kind == WHOLE]
    for view, step in _ranked(best, fit, combine)[0][:_ALONE]:
        yield Score((view,), (step,), (1.0,))


def _boosted(fit: _Part, combine: _Part, seed: int) -> Iterator[Score]:
    """Learn trees, and the ratio of what they say."""
    view = boosted_trees(fit.rows, fit.often0, fit.often1, seed)
    x = combine.taken(view)
    (edges,) = edges_of(x, combine.often0 + combine.often1, _FINE)
    step = rising_steps(edges, combine.cells(view, edges), combine.often0, combine.often1)
    yield Score((view,), (step,), (1.0,))


def _ranked(
    pairs: Sequence[tuple[View, Steps]], fit: _Part, combine: _Part
) -> tuple[list[tuple[View, Steps]], dict[int, float]]:
    """Learn scores again, and return them in the order of their worth, with it."""
    learned = [
        (view, relearned(step, fit.cells(view, step.edges), fit.often0, fit.often1))
        for view, step in pairs
    ]
    worth = {id(step): _worth(view, step, combine) for view, step in learned}
    return sorted(learned, key=lambda pair: -worth[id(pair[1])]), worth


def _learned(view: View, fit: _Part) -> list[Steps]:
    x, often = fit.taken(view), fit.often0 + fit.often1
    if view.coded:
        edges = edges_of_codes(x, often)
        seen = edges, fit.cells(view, edges), fit.often0, fit.often1
        return [steps(*seen, together) for together in sorted({0, view.together})]
    fine, coarse = edges_of(x, often, _FINE, _COARSE)
    rising = rising_steps(fine, fit.cells(view, fine), fit.often0, fit.often1)
    if len(fine) <= _TWO:
        return [rising]
    return [rising, steps(coarse, fit.cells(view, coarse), fit.often0, fit.often1)]


def _worth(view: View, step: Steps, part: _Part) -> float:
    """Return how far apart releases that it was not learned on are, in standard errors."""
    means, errors = [], []
    for seen in counts(step.edges, part.cells(view, step.edges), part.often0, part.often1):
        share = seen / seen.sum()
        mean = share @ step.ratios
        means.append(mean)
        errors.append(share @ (step.ratios - mean) ** 2 / seen.sum())
    error = np.sqrt(sum(errors))
    return float((means[0] - means[1]) / error) if error > 0 else 0.0


def _one_each(
    pairs: Sequence[tuple[View, Steps]], of: Callable[[View], Hashable]
) -> list[tuple[View, Steps]]:
    """Return the best score of what each view is of: naive Bayes counts nothing twice."""
    best: dict[Hashable, tuple[View, Steps]] = {}
    for pair in pairs:
        best.setdefault(of(pair[0]), pair)
    return list(best.values())


def _sums(pairs: list[tuple[View, Steps]], combine: _Part, *, quick: bool) -> Iterator[Score]:
    if len(pairs) < 2:
        return
    views, parts = zip(*pairs, strict=True)
    yield Score(views, parts, (1.0,) * len(pairs))
    if not quick:
        fitted = weights(combine.features(pairs), combine.often0, combine.often1)
        yield Score(views, parts, tuple(fitted.tolist()))
