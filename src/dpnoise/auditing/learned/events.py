"""Events learned from releases: where a likelihood ratio, estimated on one part, is large.

One part of the releases gives each view of an output its likelihood ratio, a second part the
weights with which several are summed up, a third the threshold of each sum (see `expected_bounds`).
Whatever is learned here is a proposal: an audit counts it in fresh releases.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np

from dpnoise.auditing.attacks.bounds import BoundEstimator
from dpnoise.auditing.learned.expected_bounds import TREES, Proposal, Score, each_once, thresholds
from dpnoise.auditing.learned.scores import (
    Cells,
    Steps,
    cells_of,
    counts,
    edges_of,
    edges_of_codes,
    relearn_steps,
    rising_steps,
    steps,
    tail_shares,
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
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import import_extra

# Shares at which the cells of monotone ratios end, and those of free ones.
_MONOTONE_SHARES: Final = tail_shares(TUNING.monotone_log_odds, TUNING.monotone_cells - 1)
_FREE_SHARES: Final = np.arange(1, TUNING.free_cells) / TUNING.free_cells


def proposals(
    rows0: Floats,
    rows1: Floats,
    names: Sequence[str],
    estimator: BoundEstimator,
    *,
    text: Text = no_text,
    quick: bool = False,
    trees: int | None = None,
) -> list[Proposal]:
    """Return events learned from as many rows of each of two data sets, the best first.

    `names` are those of the columns, `text` gives the text that a number stands for. To compare
    pairs of data sets, `quick` leaves out the sums that take long to learn. `trees` is the seed of
    boosted trees, if they are learned as well.
    """
    n = min(len(rows0), len(rows1))
    cuts = [0, n // 2, n // 2, n] if quick else [0, n // 2, 3 * n // 4, n]
    parts = [slice(*ends) for ends in pairwise(cuts)]
    fit, combine, select = (_Part(rows0[part], rows1[part]) for part in parts)
    if quick:
        fit, select = fit.first(TUNING.quick_outputs), select.first(TUNING.quick_outputs)
        combine = select
    sample = [rows[: min(n // 2, TUNING.view_outputs)] for rows in (rows0, rows1)]
    views = views_of(np.concatenate(sample), names, text)
    found: list[Proposal] = []
    scores = _scores(views, fit, combine, quick=quick)
    if trees is not None:
        scores = chain(scores, _boost_trees(fit.first(TUNING.boosting_outputs), combine, trees))
    for score in scores:
        part = select.first(TUNING.summing_outputs) if len(score.views) > 1 else select
        found += thresholds(score, part.evaluate(score), estimator)
    return each_once(found)


def tune(
    scores: Sequence[Score], rows0: Floats, rows1: Floats, estimator: BoundEstimator
) -> list[Proposal]:
    """Choose the thresholds of scores anew, on rows that they were not learned from.

    For each score there are some: of the best event, and of rarer and likelier ones.
    """
    part = _Part(rows0, rows1)
    seen = ((score, part.evaluate(score)) for score in scores)
    found = chain.from_iterable(thresholds(*one, estimator, some=True) for one in seen)
    return each_once(proposal for proposal in found if not proposal.rare)


class _Part:
    """Rows of both data sets, with how often each was seen; what a view takes of them is kept."""

    def __init__(self, rows0: Floats, rows1: Floats) -> None:
        self._given = rows0, rows1
        self.rows, (self.often0, self.often1), self.folded = fold_rows(rows0, rows1)
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

    def counts(self, view: View, edges: Floats) -> tuple[Floats, Floats]:
        return counts(edges, self.cells(view, edges), self.often0, self.often1)

    def features(self, pairs: Sequence[tuple[View, Steps]]) -> Floats:
        return np.column_stack([step.ratios[self.cells(view, step.edges)] for view, step in pairs])

    def evaluate(self, score: Score) -> tuple[Floats, Floats, Floats]:
        """Return the scores of all rows, or all scores of one view, with how often each is seen."""
        if len(score.views) == 1:
            step = score.steps[0]
            return score.weights[0] * step.ratios, *self.counts(score.views[0], step.edges)
        total = np.zeros(len(self.rows))
        for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
            total += (weight * step.ratios)[self.cells(view, step.edges)]
        return total, self.often0, self.often1


def fold_rows(*parts: Floats) -> tuple[Floats, list[Floats], bool]:
    """Return the rows of all parts, how often each was seen in each part, and if they are folded.

    Where many rows are equal they are folded: each different one is there once.
    """
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    lengths = [len(part) for part in parts]
    if not are_alike(np.concatenate([part[: TUNING.folding_outputs] for part in parts])):
        return rows, [np.repeat(row, lengths) for row in np.eye(len(parts))], False
    first, same = folded(rows)
    of_parts = np.split(same, np.cumsum(lengths)[:-1])
    often = [np.bincount(part, minlength=len(first)).astype(np.float64) for part in of_parts]
    return rows[first], often, True


def are_alike(rows: Floats) -> bool:
    """Tell whether so many of some rows are equal that each is to be looked at once."""
    return len(np.unique(row_codes(rows))) * TUNING.least_repeats <= len(rows)


def _promising_scores(
    views: Sequence[View], fit: _Part, combine: _Part, *, quick: bool
) -> list[tuple[View, Steps]]:
    """Return the scores of single views that a glance does not rule out.

    Those of a whole output stay; and if there is time and they are few, those of all parts and of
    their differences, because they may tell much together.
    """
    learned = [(view, step) for view in views for step in _learn_steps(view, fit)]
    worth = [_worth(view, step, combine) for view, step in learned]
    most = TUNING.quick_scores_relearned if quick else TUNING.scores_relearned
    best = set(np.argsort(worth, kind="stable")[::-1][:most].tolist())
    parts = not quick and sum(view.kind == PARTS for view in views) <= TUNING.parts_summed

    def stays(view: View, step: Steps) -> bool:
        return view.kind in {WHOLE, *SIDES} or (
            view.kind in {PARTS, STEPS} and parts and not step.free
        )

    return [pair for i, pair in enumerate(learned) if i in best or stays(*pair)]


def _scores(views: Sequence[View], fit: _Part, combine: _Part, *, quick: bool) -> Iterator[Score]:
    """Learn the scores of single views, then sums of those of a kind and of the best of all.

    Most views are looked at in few releases, and the best again in all.
    """
    glance = TUNING.view_ranking_outputs // 4 if quick else TUNING.view_ranking_outputs
    kept = _promising_scores(views, fit.first(glance), combine.first(glance), quick=quick)
    few, before, mixed = combine.first(TUNING.summing_outputs), 0, 0
    ranked, worth = _ranked(kept, fit.first(TUNING.summing_outputs), few)
    for least in TUNING.summed_standard_errors[: 1 if quick else None]:
        telling = _best_of_each([pair for pair in ranked if worth[id(pair[1])] > least], id)
        if len(telling) == before:
            continue
        before = len(telling)
        for kind in (PARTS, STEPS):
            yield from _sum_scores(
                [pair for pair in telling if pair[0].kind == kind], few, quick=quick
            )
        # A number may be of two kinds.
        mix = _best_of_each(telling, lambda view: view.take)[: TUNING.kinds_summed]
        if not quick and len(mix) != mixed:
            mixed = len(mix)
            yield from _sum_scores(mix, few, quick=False)
    sides = [[pair for pair in ranked if pair[0].kind == kind] for kind in SIDES]
    if all(sides):
        tried = (side[: TUNING.scores_per_side] for side in sides)
        best_of = [_ranked(side, fit, combine)[0][0] for side in tried]
        yield from _sum_scores(best_of, combine, quick=quick)
    most = TUNING.single_scores
    best = ranked[: most // 2] + [pair for pair in ranked[most // 2 :] if pair[0].kind == WHOLE]
    for view, step in _ranked(best, fit, combine)[0][:most]:
        yield Score((view,), (step,), (1.0,))


def _boost_trees(fit: _Part, combine: _Part, seed: int) -> Iterator[Score]:
    """Learn gradient boosted trees, which see how parts depend on each other; then their ratio.

    What the trees say is a view like others: its ratio is learned on other releases.
    """
    ensemble = import_extra("sklearn.ensemble", "learning")
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=TUNING.boosting_trees,
        max_leaf_nodes=TUNING.boosting_leaves,
        learning_rate=TUNING.boosting_learning_rate,
        min_samples_leaf=TUNING.boosting_leaf_outputs,
        early_stopping=False,
        random_state=seed,
    )
    often = np.append(fit.often0, fit.often1)
    rows, side = np.concatenate([fit.rows, fit.rows]), np.repeat([1, 0], len(fit.rows))
    model.fit(rows[often > 0], side[often > 0], sample_weight=often[often > 0])

    def take(block: Block) -> Floats:
        return np.asarray(model.decision_function(block.rows))

    view = View("the likelihood ratio that boosted trees give", TREES, take)
    x = combine.taken(view)
    (edges,) = edges_of(x, combine.often0 + combine.often1, _MONOTONE_SHARES)
    step = rising_steps(edges, *combine.counts(view, edges))
    yield Score((view,), (step,), (1.0,))


def _ranked(
    pairs: Sequence[tuple[View, Steps]], fit: _Part, combine: _Part
) -> tuple[list[tuple[View, Steps]], dict[int, float]]:
    """Learn scores again, and return them in the order of their worth, with it."""
    learned = [(view, relearn_steps(step, *fit.counts(view, step.edges))) for view, step in pairs]
    worth = {id(step): _worth(view, step, combine) for view, step in learned}
    return sorted(learned, key=lambda pair: -worth[id(pair[1])]), worth


def _learn_steps(view: View, fit: _Part) -> list[Steps]:
    x, often = fit.taken(view), fit.often0 + fit.often1
    if view.coded:
        edges = edges_of_codes(x, often)
        seen = fit.counts(view, edges)
        return [steps(edges, *seen, together) for together in sorted({0, view.together})]
    fine, coarse = edges_of(x, often, _MONOTONE_SHARES, _FREE_SHARES)
    rising = rising_steps(fine, *fit.counts(view, fine))
    if len(fine) <= TUNING.edges_of_two_numbers:
        return [rising]
    return [rising, steps(coarse, *fit.counts(view, coarse))]


def _worth(view: View, step: Steps, part: _Part) -> float:
    """Return how far apart releases that it was not learned on are, in standard errors."""
    means, errors = [], []
    for seen in part.counts(view, step.edges):
        share = seen / seen.sum()
        mean = share @ step.ratios
        means.append(mean)
        errors.append(share @ (step.ratios - mean) ** 2 / seen.sum())
    error = np.sqrt(sum(errors))
    return float((means[0] - means[1]) / error) if error > 0 else 0.0


def _best_of_each(
    pairs: Sequence[tuple[View, Steps]], of: Callable[[View], Hashable]
) -> list[tuple[View, Steps]]:
    """Return the best score of what each view is of: naive Bayes counts nothing twice."""
    best: dict[Hashable, tuple[View, Steps]] = {}
    for pair in pairs:
        best.setdefault(of(pair[0]), pair)
    return list(best.values())


def _sum_scores(pairs: list[tuple[View, Steps]], combine: _Part, *, quick: bool) -> Iterator[Score]:
    if len(pairs) < 2:
        return
    views, parts = zip(*pairs, strict=True)
    yield Score(views, parts, (1.0,) * len(pairs))
    if not quick:
        fitted = weights(combine.features(pairs), combine.often0, combine.often1)
        yield Score(views, parts, tuple(fitted.tolist()))
