"""Events learned from releases: where a likelihood ratio, estimated on one part, is large.

One part of the releases gives the likelihood ratio of each view of an output. A second part gives
the weights of sums over several views, and a third part the threshold of each sum (see
`expected_bounds`). Learned events are proposals: an audit counts them in fresh releases.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from scipy import special

from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim
from dpnoise.auditing.learned import expected_bounds, rare, steps, views, wide
from dpnoise.auditing.learned.expected_bounds import Proposal, Score
from dpnoise.auditing.learned.steps import Cells, Steps
from dpnoise.auditing.learned.views import (
    DIFFERENCES,
    PARTS,
    SIDES,
    TREES,
    WHOLE,
    Block,
    Text,
    View,
)
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import import_extra

# Quantile levels of the edges between cells, for monotone ratios and for free ones.
_MONOTONE_SHARES: Final = steps.tail_shares(TUNING.monotone_log_odds, TUNING.monotone_cells - 1)
_THRESHOLD_SHARES: Final = steps.tail_shares(TUNING.threshold_log_odds, TUNING.thresholds)
_FREE_SHARES: Final = np.arange(1, TUNING.free_cells) / TUNING.free_cells


# A third of its lines are documentation, the others the steps of learning, which share the rows.
def propose_events(
    rows0: Floats,
    rows1: Floats,
    names: Sequence[str],
    estimator: BoundEstimator,
    *,
    text: Text = views.no_text,
    public: Sequence[int] = (),
    quick: bool = False,
    tree_seed: int | None = None,
) -> list[Proposal]:
    """Learn events from rows of two data sets, and return them, the best first.

    `names` are the names of the columns; `text` returns the text that a code stands for; other
    columns are also viewed together with the `public` ones. For the comparison of pairs, `quick`
    skips sums that take long to learn. `tree_seed` seeds boosted trees; None learns no trees.
    """
    n = min(len(rows0), len(rows1))
    cuts = [0, n // 2, n // 2, n] if quick else [0, n // 2, 3 * n // 4, n]
    splits = [slice(*ends) for ends in pairwise(cuts)]
    fit, combine, select = (_PairedRows(rows0[split], rows1[split]) for split in splits)
    if quick:
        # A quick search has no middle split: the last one combines and selects.
        fit, select = fit.first(TUNING.quick_outputs), select.first(TUNING.quick_outputs)
        combine = select
    sample = [rows[: min(n // 2, TUNING.view_outputs)] for rows in (rows0, rows1)]
    ranked = wide.rank_columns(sample[0], sample[1]) if len(names) > TUNING.parts_viewed else None
    all_views = views.views_of(np.concatenate(sample), names, text, ranked)
    all_views += wide.parity_views(sample[0], sample[1], names)
    all_views += views.views_given(np.concatenate(sample), names, public)
    events: list[Proposal] = []
    scores = _learn_scores(all_views, fit, combine, quick=quick)
    columns = [j for j in views.informative_columns(np.concatenate(sample), text) if j > 0]
    relearned: dict[int, Score] = {}
    scores = chain(scores, _discriminants(columns, fit, combine, select, relearned, quick=quick))
    if tree_seed is not None and len(columns) > 1:
        most = min(TUNING.boosting_outputs, TUNING.boosting_work // len(columns))
        scores = chain(scores, _boost_trees(fit.first(most), combine.first(most), tree_seed))
    if not quick:
        claimed = _claimed_share(estimator.claim)
        learned = rows0[: cuts[2]], rows1[: cuts[2]]
        with_ids = [j for j in views.varying_columns(np.concatenate(sample)) if j > 0]
        leaks = rare.find_rare_leaks(*learned, with_ids, names, text, claimed)
        scores = chain(scores, [] if leaks is None else [leaks])
    for score in scores:
        rows = select.first(TUNING.summing_outputs) if len(score.views) > 1 else select
        events += expected_bounds.propose_events_of_score(score, rows.evaluate(score), estimator)
    return [
        replace(event, score=relearned.get(id(event.score), event.score))
        for event in expected_bounds.drop_duplicates(events)
    ]


def _claimed_share(claim: Claim) -> float:
    """Return the most that a claim allows one data set to have of the outputs with one number."""
    return float(special.expit(claim.value)) if claim.is_ratio else TUNING.leak_share


def propose_half(rows: Floats, names: Sequence[str], text: Text = views.no_text) -> Proposal | None:
    """Return an event of the first part that varies, for rows of which nothing was learned.

    It is the upper half of its numbers, or its most frequent text. None if all rows are alike.
    """
    for j in views.varying_columns(rows):
        known = np.sort(rows[~np.isnan(rows[:, j]), j])
        values, seen = np.unique(known, return_counts=True)
        texts = [i for i, value in enumerate(values.tolist()) if j and text(value) is not None]
        if texts:
            value = values[max(texts, key=lambda i: seen[i])]
            edges = np.array([value, np.nextafter(value, np.inf), np.inf])
        else:
            edges = np.array([max(known[len(known) // 2], values[:2][-1]), np.inf])
        ratios = np.eye(1, len(edges) + 1, 1)[0]
        view = View(names[j], PARTS, views.reader(j), text=text, source=views.part_source(j))
        score = Score((view,), (Steps(edges, ratios),), (1.0,))
        none = 0.0, 0.0
        return Proposal(
            score,
            0.5,
            swapped=False,
            expected_bound=0.0,
            hits=none,
            shares=none,
            misfit=0.0,
            cost=0.0,
        )
    return None


def tune_thresholds(
    scores: Sequence[Score], rows0: Floats, rows1: Floats, estimator: BoundEstimator
) -> list[Proposal]:
    """Choose the thresholds of scores again, on rows that they were not learned from.

    Each score gives several events: the best one, and rarer and likelier ones.
    """
    rows, propose = _PairedRows(rows0, rows1), expected_bounds.propose_events_of_score
    # Rare leaks are one score, whose events are counted next to the best of all others.
    of_leaks = replace(estimator, chance=TUNING.chance_trials)
    events = [
        propose(s, rows.evaluate(s), of_leaks if s.is_leaks else estimator, several=True)
        for s in scores
    ]
    usual = (event for event in chain.from_iterable(events) if not event.rare)
    return expected_bounds.drop_duplicates(usual)


class _PairedRows:
    """Rows of both data sets, with the frequency of each and a cache of what views read."""

    def __init__(self, rows0: Floats, rows1: Floats) -> None:
        self._all_rows = rows0, rows1
        self.rows, (self.count0, self.count1), self.deduplicated = deduplicate_rows(rows0, rows1)
        self._block = Block(self.rows)
        self._first: dict[int, _PairedRows] = {}

    def first(self, n: int) -> "_PairedRows":
        """Return the first n rows of each data set; all of them if they were deduplicated."""
        if self.deduplicated or n >= len(self._all_rows[0]):
            return self
        if n not in self._first:
            self._first[n] = _PairedRows(*(rows[:n] for rows in self._all_rows))
        return self._first[n]

    def values_of(self, view: View) -> Floats:
        return self._block.of(view.take).astype(np.float64, copy=False)

    def cells(self, view: View, edges: Floats) -> Cells:
        return self._block.cells(view.take, edges)

    def counts(self, view: View, edges: Floats) -> tuple[Floats, Floats]:
        return steps.count_by_cell(edges, self.cells(view, edges), self.count0, self.count1)

    def features(self, pairs: Sequence[tuple[View, Steps]]) -> Floats:
        return np.column_stack([step.ratios[self.cells(view, step.edges)] for view, step in pairs])

    def evaluate(self, score: Score) -> tuple[Floats, Floats, Floats]:
        """Return the score of each row with its counts at both data sets.

        For a score of one view, return each step of the score with its counts instead.
        """
        if len(score.views) == 1:
            step = score.steps[0]
            return score.weights[0] * step.ratios, *self.counts(score.views[0], step.edges)
        total = np.zeros(len(self.rows))
        for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
            step.add_of_cells(self.cells(view, step.edges), weight, total)
        return total, self.count0, self.count1


def deduplicate_rows(*parts: Floats) -> tuple[Floats, list[Floats], bool]:
    """Return the distinct rows with their counts in each part, or all rows if few repeat.

    The third result says whether the rows were deduplicated.
    """
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    lengths = [len(part) for part in parts]
    if not has_many_duplicates(np.concatenate([part[: TUNING.folding_outputs] for part in parts])):
        return rows, [np.repeat(row, lengths) for row in np.eye(len(parts))], False
    first, same = views.group_equal_rows(rows)
    groups = np.split(same, np.cumsum(lengths)[:-1])
    repeats = [np.bincount(group, minlength=len(first)).astype(np.float64) for group in groups]
    return rows[first], repeats, True


def has_many_duplicates(rows: Floats) -> bool:
    """Return whether enough rows repeat to make deduplication worthwhile."""
    return len(np.unique(views.row_codes(rows))) * TUNING.least_repeats <= len(rows)


def _promising_scores(
    all_views: Sequence[View], fit: _PairedRows, combine: _PairedRows, *, quick: bool
) -> list[tuple[View, Steps]]:
    """Return the best scores of single views.

    Scores of a whole output are always kept. Unless `quick`, scores of parts and of their
    differences are kept too if an output has few parts, because sums of them may be strong.
    """
    learned = [(view, step) for view in all_views for step in _learn_steps(view, fit)]
    z_scores = [_z_score(view, step, combine) for view, step in learned]
    most = TUNING.quick_scores_relearned if quick else TUNING.scores_relearned
    best = set(np.argsort(z_scores, kind="stable")[::-1][:most].tolist())
    keep_parts = not quick and sum(view.kind == PARTS for view in all_views) <= TUNING.parts_summed

    def is_kept(view: View, step: Steps) -> bool:
        return view.kind in {WHOLE, *SIDES} or (
            view.kind in {PARTS, DIFFERENCES} and keep_parts and not step.free
        )

    return [pair for i, pair in enumerate(learned) if i in best or is_kept(*pair)]


def _learn_scores(
    all_views: Sequence[View], fit: _PairedRows, combine: _PairedRows, *, quick: bool
) -> Iterator[Score]:
    """Learn scores of single views, and sums within each kind and over the best of all kinds.

    All views are ranked on few releases, and the best are learned again on all.
    """
    few = TUNING.view_ranking_outputs // 4 if quick else TUNING.view_ranking_outputs
    kept = _promising_scores(all_views, fit.first(few), combine.first(few), quick=quick)
    for_sums, last_size, last_mix = combine.first(TUNING.summing_outputs), 0, 0
    ranked, z_scores = _relearn_and_rank(kept, fit.first(TUNING.summing_outputs), for_sums)
    for threshold in TUNING.summed_standard_errors[: 1 if quick else None]:
        strong = _first_of_each([pair for pair in ranked if z_scores[id(pair[1])] > threshold], id)
        if len(strong) == last_size:
            continue
        last_size = len(strong)
        for kind in (PARTS, DIFFERENCES):
            of_kind = [pair for pair in strong if pair[0].kind == kind]
            yield from _sum_scores(of_kind, for_sums, quick=quick)
        # Views of two kinds may read the same number, which may enter a sum only once.
        mix = _first_of_each(strong, lambda view: view.take)[: TUNING.kinds_summed]
        if not quick and len(mix) != last_mix:
            last_mix = len(mix)
            yield from _sum_scores(mix, for_sums, quick=False)
    sides = [[pair for pair in ranked if pair[0].kind == kind] for kind in SIDES]
    if all(sides):
        leading_of_sides = (side[: TUNING.scores_per_side] for side in sides)
        best_of_sides = [_relearn_and_rank(side, fit, combine)[0][0] for side in leading_of_sides]
        yield from _sum_scores(best_of_sides, combine, quick=quick)
    most = TUNING.single_scores
    rest = ranked[most // 2 :]
    best = ranked[: most // 2] + [pair for pair in rest if pair[0].kind == WHOLE]
    chosen = _relearn_and_rank(best, fit, combine)[0][:most]
    # Events of single parts are the shortest ones.
    parts = [pair for pair in rest if pair[0].kind == PARTS][: TUNING.single_parts]
    for view, step in chosen + _relearn_and_rank(parts, fit, combine)[0]:
        yield Score((view,), (step,), (1.0,))


def _discriminants(
    columns: list[int],
    fit: _PairedRows,
    combine: _PairedRows,
    select: _PairedRows,
    relearned: dict[int, Score],
    *,
    quick: bool,
) -> Iterator[Score]:
    """Learn linear discriminants of the columns; their ratios are learned on other releases.

    Unless `quick`, each is then learned again from all releases. The new score is `relearned`, by
    the id of the one that can be compared with others, because it saw fewer releases.
    """
    if len(columns) < 2 or (quick and len(columns) <= TUNING.parts_summed):
        return
    most = min(TUNING.summing_outputs, TUNING.discriminant_work // len(columns) ** 2)
    fit, combine = fit.first(TUNING.view_ranking_outputs if quick else most), combine.first(most)
    for discriminant in wide.discriminants(fit.rows, columns, quick=quick):
        discriminant.learn(fit.rows, fit.count0, fit.count1)
        scores = [_score_of_ranking(view, combine) for view in discriminant.views()]
        z_scores = [_z_score(score.views[0], score.steps[0], combine) for score in scores]
        best = int(np.argmax(z_scores))
        first = _linear_score(scores[best].views[0], combine)
        if not quick:
            for part in (combine, select.first(most)):
                discriminant.learn(part.rows, part.count0, part.count1)
            relearned[id(first)] = _linear_score(discriminant.views()[best], combine)
        yield first


def _boost_trees(fit: _PairedRows, combine: _PairedRows, seed: int) -> Iterator[Score]:
    """Learn gradient boosted trees, which model dependence between parts, and their ratio.

    The output of the trees is a view like others: its ratio is learned on other releases.
    """
    ensemble = import_extra("sklearn.ensemble", "learning")
    # OpenMP's threads wait actively for each other: on a busy machine that is most of their time.
    threads = import_extra("threadpoolctl", "learning").ThreadpoolController()
    one_thread = partial(threads.limit, limits=1, user_api="openmp")
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=TUNING.boosting_trees,
        max_leaf_nodes=TUNING.boosting_leaves,
        learning_rate=TUNING.boosting_learning_rate,
        min_samples_leaf=TUNING.boosting_leaf_outputs,
        early_stopping=False,
        random_state=seed,
    )
    repeats = np.append(fit.count0, fit.count1)
    rows, side = np.concatenate([fit.rows, fit.rows]), np.repeat([1, 0], len(fit.rows))
    with one_thread():
        model.fit(rows[repeats > 0], side[repeats > 0], sample_weight=repeats[repeats > 0])

    def take(block: Block) -> Floats:
        with one_thread():
            return np.asarray(model.decision_function(block.rows))

    words, source = "the likelihood ratio that boosted trees give", _source_of_trees(model)
    yield _score_of_ranking(View(words, TREES, take, source=source), combine)


def _source_of_trees(model: Any) -> str:
    """Return boosted trees in Python, from attributes that scikit-learn 1.5 to 1.9 keeps private.

    An event whose text is not true of the same outputs loses its text (see `exports.agrees`).
    """

    def write(nodes: Any, i: int) -> str:
        node = nodes[i]
        if node["is_leaf"]:
            return repr(float(node["value"]))
        cut = repr(float(node["num_threshold"])).replace("inf", "1e999")
        below, above = (write(nodes, int(node[side])) for side in ("left", "right"))
        missing_is_below = bool(node["missing_go_to_left"])
        return f"({int(node['feature_idx']) - 1}, {cut}, {missing_is_below}, {below}, {above})"

    trees = ", ".join(write(tree.nodes, 0) for (tree,) in model._predictors)  # noqa: SLF001
    base = float(model._baseline_prediction.item())  # noqa: SLF001
    return f"boosted_trees({{y}}, {{z}}, {base!r}, [{trees}])"


def _score_of_ranking(view: View, combine: _PairedRows) -> Score:
    """Return the score of a view that ranks outputs, with fine cells."""
    x = combine.values_of(view)
    (edges,) = steps.edges_of(x, combine.count0 + combine.count1, _THRESHOLD_SHARES)
    step = steps.fit_rising_steps(edges, *combine.counts(view, edges))
    return Score((view,), (step,), (1.0,))


def _linear_score(view: View, combine: _PairedRows) -> Score:
    """Return the score of a view that ranks outputs, with cells beyond those that were seen."""
    x = combine.values_of(view)
    (edges,) = steps.edges_of(x, combine.count0 + combine.count1, _THRESHOLD_SHARES)
    margin = TUNING.margin_of_range * np.ptp(x)
    even = np.linspace(x.min() - margin, x.max() + margin, TUNING.thresholds)
    edges = np.unique(np.append(edges, even))
    return Score((view,), (steps.fit_line(edges, *combine.counts(view, edges)),), (1.0,))


def _relearn_and_rank(
    pairs: Sequence[tuple[View, Steps]], fit: _PairedRows, combine: _PairedRows
) -> tuple[list[tuple[View, Steps]], dict[int, float]]:
    """Learn scores again from `fit`; return them by z-score on `combine`, largest first.

    The second result has the z-scores, by the id of the step function.
    """
    refit = steps.refit_steps
    learned = [(view, refit(step, *fit.counts(view, step.edges))) for view, step in pairs]
    z_scores = {id(step): _z_score(view, step, combine) for view, step in learned}
    return sorted(learned, key=lambda pair: -z_scores[id(pair[1])]), z_scores


def _learn_steps(view: View, fit: _PairedRows) -> list[Steps]:
    """Fit one or two step functions to a view.

    A number gets a monotone one and, unless it has only two values, a free one. A code gets a free
    one, and a second one if some codes have an order.
    """
    x, repeats = fit.values_of(view), fit.count0 + fit.count1
    if view.coded:
        codes, first = np.unique(x, return_index=True)
        view.examples.update(zip(codes.tolist(), fit.rows[first], strict=True))
        edges = steps.edges_of_codes(x, repeats)
        seen = fit.counts(view, edges)
        return [steps.fit_steps(edges, *seen, span) for span in sorted({0, view.ordered_span})]
    fine, coarse = steps.edges_of(x, repeats, _MONOTONE_SHARES, _FREE_SHARES)
    rising = steps.fit_rising_steps(fine, *fit.counts(view, fine))
    if len(fine) <= TUNING.max_edges_of_binary_view:
        return [rising]
    return [rising, steps.fit_steps(coarse, *fit.counts(view, coarse))]


def _z_score(view: View, step: Steps, part: _PairedRows) -> float:
    """Return the difference of the mean scores of both data sets, in standard errors."""
    means, errors = [], []
    for seen in part.counts(view, step.edges):
        share = seen / seen.sum()
        mean = share @ step.ratios
        means.append(mean)
        errors.append(share @ (step.ratios - mean) ** 2 / seen.sum())
    error = np.sqrt(sum(errors))
    difference = float(means[0] - means[1])
    if error == 0 and difference:  # It tells all outputs apart.
        return math.copysign(math.inf, difference)
    return difference / float(error) if error > 0 else 0.0


def _first_of_each(
    pairs: Sequence[tuple[View, Steps]], key: Callable[[View], Hashable]
) -> list[tuple[View, Steps]]:
    """Keep the first score for each key of a view. `pairs` must be sorted, the best first.

    A sum of scores must not count the same number of an output twice.
    """
    first: dict[Hashable, tuple[View, Steps]] = {}
    for pair in pairs:
        first.setdefault(key(pair[0]), pair)
    return list(first.values())


def _sum_scores(
    pairs: list[tuple[View, Steps]], combine: _PairedRows, *, quick: bool
) -> Iterator[Score]:
    """Yield the plain sum of several scores and, unless `quick`, a weighted sum."""
    if len(pairs) < 2:
        return
    summed_views, step_functions = zip(*pairs, strict=True)
    yield Score(summed_views, step_functions, (1.0,) * len(pairs))
    if not quick:
        fitted = steps.fit_weights(combine.features(pairs), combine.count0, combine.count1)
        yield Score(summed_views, step_functions, tuple(fitted.tolist()))
