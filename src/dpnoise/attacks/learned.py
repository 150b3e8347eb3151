"""Events learned from releases: where a likelihood ratio, estimated on one part, is large.

One part of the releases gives each view of an output its likelihood ratio, a second part the
weights with which several are summed up, a third the threshold of each sum. Whatever is learned
here is a proposal: an audit counts it in fresh releases.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.attacks.base import Event
from dpnoise.attacks.boosting import TREES, boosted_trees
from dpnoise.attacks.claims import Judge
from dpnoise.attacks.ranges import NAMED, borders_of, ranges
from dpnoise.attacks.scores import (
    Cells,
    Steps,
    calibrated,
    cells_of,
    counts,
    edges_of,
    edges_of_codes,
    relearned,
    rising_steps,
    sides,
    steps,
    weights,
)
from dpnoise.attacks.views import (
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
from dpnoise.chunks import cores, in_runs

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Shares at which cells end: of ratios that only rise, finer where there are few; of free ones.
_FINE: Final = special.expit(np.linspace(-4.2, 4.2, 95))
_COARSE: Final = np.arange(1, 16) / 16
_SUMMED: Final = 24  # The most parts that are summed up.
_MIXED: Final = 6  # The most scores of several kinds in one sum.
_SURE: Final = 2.0  # Standard errors that a score must be apart to be summed up with others.
_CERTAIN: Final = (5.0, 10.0)  # And those for sums of fewer scores.
_SIMPLER: Final = 0.01  # The part of its promise that each view of a score costs.
_FREE: Final = 4  # How many times as much one costs whose cells were learned one by one.
_TREES: Final = 20  # How many times as much trees cost.
_KINDS: Final = 2  # How many times as much views of several kinds cost: they overlap.
_SIDES: Final = 3  # Scores of one sort of parts that are learned again before the best is taken.
_ALONE: Final = 12  # The most scores that are tried by themselves.
_CUTS: Final = 120  # Thresholds that are tried.
_SORTED: Final = 50_000  # Scores that are sorted to find them.
_RARE: Final = 0.02  # The share of releases below which an event is rare.
_SEEN: Final = 4  # How often it must have been seen.
_CLEAR: Final = 200  # How often an event must have been seen at both to be held against a curve.
_TRUST: Final = 0.1  # The part of a smooth ratio by which it may be off, as a standard error,
_GROUPS: Final = 16  # besides what is seen of that in so many groups of scores; of rarer ones more.
_SEEN_FIRST: Final = 20_000  # Releases of each data set that decide what views there are.
_GLANCE: Final = 20_000  # The most by which all views are compared.
_QUICK_ON: Final = 200_000  # The most by which pairs of data sets are compared.
_BOOSTED_ON: Final = 150_000  # The most on which trees are learned.
_RARER: Final = 5  # Events of one score that are compared with its best, each rarer than the last,
_LIKELIER: Final = 2  # or likelier, of a sum: there the best is one of many.
_STEP: Final = 0.8  # How likely the rarer of two such events is, at most, beside the other.
_BLOCK: Final = 1 << 14  # Rows that are looked at at a time: what a view takes of them stays near.
_SUMMED_ON: Final = 100_000  # The most on which sums are learned.
_ALIKE: Final = 8  # How often each must be seen, on average, for equal ones to be folded.
_FOLDED: Final = 8_000  # Releases of each data set that tell whether many are alike.
_TWO: Final = 5  # Edges of a view that has two numbers.
_KEPT: Final = 24  # Scores of single views that are learned again, on all releases.
_KEPT_QUICKLY: Final = 16


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

    score: "Score"
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
        few = len(score.views) > 1
        found += _thresholds(score, select.first(_SUMMED_ON) if few else select, judge)
    return _unlike(found)


def tuned(scores: Sequence[Score], rows0: Floats, rows1: Floats, judge: Judge) -> list[Proposal]:
    """Choose the thresholds of scores anew, on rows that they were not learned from.

    For each score there are some: of the best event, and of rarer and likelier ones.
    """
    part = _Part(rows0, rows1)
    found = [one for score in scores for one in _thresholds(score, part, judge, some=True)]
    return _unlike(proposal for proposal in found if not proposal.rare)


def _unlike(found: Iterable[Proposal]) -> list[Proposal]:
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


def _thresholds(score: Score, select: _Part, judge: Judge, *, some: bool = False) -> list[Proposal]:
    """Return the best threshold of a score for each of the two data sets.

    If some are asked for, those of rarer events as well, and of likelier ones: where there are many
    thresholds, that of a rare event may look best by chance.
    """
    s, often0, often1 = select.scored(score)
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
            seen = float(hits0[best]), float(hits1[best])
            smooth = float(smooth0[best]), float(smooth1[best])
            found.append(
                Proposal(
                    score, event, cut, swapped, promise, seen, smooth, off, kind, cost, is_rare
                )
            )
    return found


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
