"""Events of a score: its thresholds, their expected bounds, and the ranking of events.

A score estimates a likelihood ratio. Its events are "above a threshold" and "below a threshold".
Chosen events are proposals: an audit counts them in fresh releases. The expected bound of an event
is the epsilon (or mu, or rho) that this count will probably certify with it.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from scipy import special

from dpnoise.auditing.attacks.base import Event
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.learned import steps as step_functions
from dpnoise.auditing.learned.steps import Steps, tail_shares
from dpnoise.auditing.learned.views import (
    DISCRIMINANT,
    LEAKS,
    PARTS,
    SIDES,
    TREES,
    Block,
    Rows,
    Text,
    View,
    no_text,
)
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import format_value
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.kernels import compile_kernel

# A term of a sum is as long as this many ranges of numbers, and what is computed from parts, or is
# their number or form, as so many more than a part.
_LENGTH_OF_TERM: Final = 10
_LENGTH_OF_READING: Final = 3
_MAX_NAMED: Final = 4  # The most numbers, ranges or views in an event's words.


@dataclass(frozen=True)
class Score:
    """A weighted sum of step functions of views."""

    views: tuple[View, ...]
    steps: tuple[Steps, ...]
    weights: tuple[float, ...]

    @property
    def is_leaks(self) -> bool:
        """Whether it is the score of all rare leaks."""
        return any(view.kind == LEAKS for view in self.views)

    def __call__(self, rows: Rows) -> Floats:
        """Return the score of each row."""
        return np.asarray(evaluate([self], rows)[0])


def evaluate(scores: Sequence[Score], rows: Rows) -> Floats:
    """Return the scores of each row, one line per score; shared views are computed once."""
    totals = np.zeros((len(scores), len(rows)))

    def add(first: int, last: int) -> None:
        for start in range(first, last, TUNING.block_rows):
            span = slice(start, min(last, start + TUNING.block_rows))
            block = Block(rows[span])
            for score, total in zip(scores, totals, strict=True):
                for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
                    x = block.of(view.take)
                    if x.dtype == np.int16:
                        step.add_of_integers(x, weight, total[span])
                    else:
                        step.add_of_cells(block.cells(view.take, step.edges), weight, total[span])

    run_in_parallel(add, len(rows), TUNING.block_rows, cores())
    return totals


@dataclass(frozen=True)
class Proposal:
    """A learned event: its score and threshold, its counts, and its expected bound."""

    score: Score
    cut: float  # The threshold of the score.
    swapped: bool  # The event is score < cut, which is likelier at the second data set.
    expected_bound: float
    hits: tuple[float, float]  # Counts at the data set where it is likelier, and at the other.
    shares: tuple[float, float]  # The same as frequencies of a smooth curve.
    misfit: float  # Standard error of the logarithm of the curve.
    cost: float  # Fraction of the expected bound that was subtracted for complexity.
    rare: bool = False
    is_normal: bool = False  # Whether the curve is right in the tails: see `_is_normal`.

    def holds(self, value: Floats) -> Flags:
        """Return for each value of the score whether the event happened."""
        return np.asarray(value < self.cut if self.swapped else value > self.cut)

    @cached_property
    def exact_score(self) -> Score:
        """The score without evidence for what was never seen, so that the event can be listed.

        Patterns without a separate cell get the ratio zero. A number that was never missing is
        outside the event of its score if it is.
        """
        steps = []
        for view, step in zip(self.score.views, self.score.steps, strict=True):
            ratios = step.ratios.copy()
            if view.coded:
                ratios[0::2] = ratios[-1] = 0.0  # Every other cell is a code's.
            elif len(self.score.views) == 1 and not view.may_be_missing:
                ratios[-1] = np.inf if self.swapped else -np.inf
            steps.append(replace(step, ratios=ratios))
        return replace(self.score, steps=tuple(steps))

    @cached_property
    def event(self) -> Event:
        """The event, of rows."""
        score = self.exact_score
        return Event(self._words(), lambda rows: self.holds(score(rows)))

    @property
    def lists_nothing(self) -> bool:
        """Whether only patterns without a separate cell were on one side of the threshold."""
        score = self.exact_score
        inside = self.holds(score.steps[0].ratios)
        is_list = len(score.views) == 1 and score.views[0].coded
        return is_list and bool(inside.all() or not inside.any())

    @cached_property
    def length(self) -> int:
        """How long its text is: the ranges or patterns of one view, and more of several views."""
        score = self.exact_score
        view, step = score.views[0], score.steps[0]
        if len(score.views) > 1 or view.kind in {DISCRIMINANT, TREES}:
            return _LENGTH_OF_TERM * max(len(score.views), 2)
        inside = self.holds(step.ratios)
        if view.coded:
            usual = bool(self.holds(np.zeros(1))[0])
            ranges = int((inside[1:-1:2] != usual).sum())
        else:
            ranges = int(inside[0]) + int((inside[1:] & ~inside[:-1]).sum())
        is_part = view.kind in {PARTS, LEAKS} and not view.words.startswith("its ")
        return ranges + _LENGTH_OF_READING * (not is_part)

    def _words(self) -> str:
        """Describe in words when the score is beyond its threshold."""
        score = self.exact_score
        if len(score.views) > 1:
            pairs = zip(score.weights, score.views, strict=True)
            names = [view.words for _, view in sorted(pairs, key=lambda p: -abs(p[0]))]
            rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            shown = f"{', '.join(names[:_MAX_NAMED])}{rest}"
            side = "below" if self.swapped else "above"
            return f"a likelihood ratio of {shown} is {side} {np.exp(self.cut):.4g}"
        view, step = score.views[0], score.steps[0]
        inside = self.holds(step.ratios)
        if view.coded:
            usual = bool(self.holds(np.zeros(1))[0])
            listed = int((inside[1:-1:2] != usual).sum())
            return f"{view.words} is {'none' if usual else 'one'} of {listed}"
        may_be_missing = view.may_be_missing
        ranges = describe_ranges(step.edges, inside, view.text, may_be_missing=may_be_missing)
        return f"{view.words} is {ranges}"


def propose_events_of_score(
    score: Score,
    seen: tuple[Floats, Floats, Floats],
    estimator: BoundEstimator,
    *,
    several: bool = False,
) -> list[Proposal]:
    """Return the best event of a score for each of the two data sets: above or below a threshold.

    `seen` has values of the score, and their counts at either data set. With `several`, rarer and
    likelier events are returned as well: among many thresholds, a rare event may look best by
    chance.
    """
    values, count0, count1 = seen
    is_normal = not score.views[0].coded and _is_normal(values, count0, count1)
    cuts, is_complete = _choose_cuts(values, [count0, count1] if is_normal else [count0 + count1])
    n = int(count0.sum())
    above, below = step_functions.count_above_and_below(cuts, values, count0, count1)
    upper, lower, misfit = _fit_curve(cuts, below[0], below[1], n, is_complete=is_complete)
    is_normal = is_normal and not is_complete
    if is_normal:
        misfit = TUNING.normal_tail / np.sqrt(n)
    complexity = _complexity(score)
    rarer = TUNING.rarer_events if several else 0
    likelier = TUNING.likelier_events if several and not is_complete else 0
    events: list[Proposal] = []
    for swapped, hits, shares in ((False, above, upper), (True, below[::-1], lower[::-1])):
        curve = shares, misfit, is_normal
        for i, expected, rare in _best_cuts(hits, curve, n, estimator, rarer, likelier):
            counted, smooth = ((float(x[0][i]), float(x[1][i])) for x in (hits, shares))
            of_counts = expected, counted, smooth, misfit, 0.0, rare, is_normal
            event = Proposal(score, cuts[i], swapped, *of_counts)
            # A free ratio may give an event that is as simple as those of a monotone one.
            is_frequent = counted[0] > TUNING.frequent_share * n
            terms = min(complexity, event.length) if is_frequent else complexity
            cost = TUNING.complexity_cost * terms
            discounted = expected - cost * abs(expected)
            events.append(replace(event, cost=cost, expected_bound=discounted))
    return [event for event in events if not event.lists_nothing] or events


def _best_cuts(
    hits: Sequence[Floats],
    curve: tuple[Sequence[Floats], float, bool],
    n: int,
    estimator: BoundEstimator,
    rarer: int,
    likelier: int,
) -> list[tuple[int, float, bool]]:
    """Return (index, expected bound, whether the event is rare) for the best thresholds.

    `curve` has the shares of a smooth curve, its misfit, and whether it is right in the tails.
    """
    hits0, hits1 = hits
    smooth = _shrink_to_curve(hits, curve, n, estimator)
    usual = np.maximum(estimator.expected_bounds(hits0, hits1, n), smooth)
    if curve[2]:
        usual = np.where(smooth > -np.inf, smooth, usual)
    picked = _pick_at_several_rates(usual, hits0, rarer, likelier)
    chosen = [(i, float(usual[i]), False) for i in picked]
    # The bound of a rare event is uncertain: so the best one is kept in addition.
    is_rare = (hits0 <= TUNING.rare_share * n) & (hits0 >= TUNING.least_rare_hits)
    rare = np.full(len(hits0), -1.0)
    fixed = replace(estimator, chance=TUNING.chance_trials)
    rare[is_rare] = fixed.expected_bounds(hits0[is_rare], hits1[is_rare], n)
    if rare.max() > usual.max():
        chosen.append((int(rare.argmax()), float(rare.max()), True))
    return chosen


def drop_duplicates(proposals: Iterable[Proposal]) -> list[Proposal]:
    """Return each event once, with the largest expected bound first.

    Events with equal counts are the same event of several scores: the simplest has the largest
    bound, or the shortest text if they are frequent. Rare events may have equal counts by chance,
    so all of them are kept.
    """
    first: dict[Hashable, Proposal] = {}
    for proposal in sorted(proposals, key=lambda p: (-p.expected_bound, p.length)):
        key = id(proposal) if proposal.rare else (proposal.swapped, proposal.hits)
        other = first.setdefault(key, proposal)
        if proposal.shares[0] > TUNING.frequent_share and proposal.length < other.length:
            first[key] = proposal
    return list(first.values())


def reestimate(
    proposals: Sequence[Proposal], hits: Floats, n: int, estimator: BoundEstimator
) -> Floats:
    """Return the expected bounds of events, from their hits in n fresh releases per data set."""
    hits0, hits1 = hits.T
    shares = np.array([proposal.shares for proposal in proposals]).T
    misfits = np.array([proposal.misfit for proposal in proposals])
    cost = np.array([proposal.cost for proposal in proposals])
    curves = shares, misfits, np.array([proposal.is_normal for proposal in proposals])
    smooth = _shrink_to_curve(hits.T, curves, n, estimator, max_optimism=0.0)
    # The larger of both estimates would favour luck, because one of many events is chosen.
    bounds = np.where(smooth > -np.inf, smooth, estimator.expected_bounds(hits0, hits1, n))
    return np.asarray(bounds - cost * np.abs(bounds))


def best_proposals(proposals: Sequence[Proposal], n: int) -> list[Proposal]:
    """Return the first n proposals, and n/2 of rare events, whose bound is less certain.

    Rare leaks are always among them: few releases do not show how often they happen.
    """
    leaks = [proposal for proposal in proposals if proposal.score.is_leaks]
    usual = [proposal for proposal in proposals if not proposal.rare]
    rare = [proposal for proposal in proposals if proposal.rare]
    return [*usual[:n], *rare[: max(1, n // 2)], *leaks]


def _complexity(score: Score) -> int:
    """Return the complexity of a score: the equivalent number of monotone views."""
    kinds = {view.kind for view in score.views}
    overlap = len(kinds) > 1 and kinds != set(SIDES)
    total = sum(TUNING.free_cost_factor if step.free else 1 for step in score.steps)
    if TREES in kinds:
        total = TUNING.trees_cost_factor
    if DISCRIMINANT in kinds:
        total = TUNING.discriminant_cost_factor
    if LEAKS in kinds:
        total = 1
    return (TUNING.overlap_cost_factor if overlap else 1) * total


def _choose_cuts(score: Floats, counts: Sequence[Floats]) -> tuple[Floats, bool]:
    """Return thresholds to try, denser in the tails, and whether every distinct score is one.

    They are quantiles of each of the counts in turn: the best threshold may lie between two data
    sets whose scores differ much, where those of both together have few quantiles.
    """
    sample = slice(None, None, -(-len(score) // TUNING.threshold_sample))
    order = np.argsort(score[sample])
    ordered = score[sample][order]
    cuts = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    if len(cuts) <= TUNING.thresholds:
        return cuts, True
    shares = tail_shares(TUNING.threshold_log_odds, TUNING.thresholds)
    totals, parts = [count[sample][order].cumsum() for count in counts], len(counts)
    places = [
        np.searchsorted(total[:-1], shares[i::parts] * total[-1]) for i, total in enumerate(totals)
    ]
    return np.unique(ordered[np.concatenate(places)]), False


def _pick_at_several_rates(expected: Floats, hits: Floats, rarer: int, likelier: int) -> list[int]:
    """Return the indices of the best event, of some rarer and then of some likelier ones.

    Each rarer event is the best of those that are clearly rarer than the one before it; likelier
    events are chosen in the same way. Of events with the same hits, which differ in cells that were
    never seen, the smallest is chosen.
    """
    finite = np.flatnonzero(expected > -np.inf)
    if not len(finite):
        return []
    if hits[0] > hits[-1]:  # The last events are the smallest.
        finite = finite[::-1]
    chosen = [int(finite[expected[finite].argmax()])]
    for count, is_rarer in ((rarer, True), (likelier, False)):
        last = chosen[0]
        for _ in range(count):
            if is_rarer:
                beyond = finite[hits[finite] < TUNING.event_step * hits[last]]
            else:
                beyond = finite[hits[finite] > hits[last] / TUNING.event_step]
            if not len(beyond):
                break
            last = int(beyond[expected[beyond].argmax()])
            chosen.append(last)
    return chosen


def _fit_curve(
    cuts: Floats, below0: Floats, below1: Floats, n: int, *, is_complete: bool
) -> tuple[list[Floats], list[Floats], float]:
    """Return the shares of both data sets above and below cuts, from a logistic curve.

    The third result is the misfit of the curve, as a standard error of its logarithms.

    The curve is fitted to all releases. So it also predicts rare events, whose own counts are
    small. `is_complete`: every distinct score is a cut.
    """
    # Cell i has the scores from cut i up to the next.
    c0, c1 = (np.diff(np.append(below, n)) for below in (below0, below1))
    share = step_functions.fit_logistic_curve(cuts, c0, c1)
    cells = [(c0 + c1) * part / n for part in (share, 1 - share)]
    upper = [np.append(cell[::-1].cumsum()[::-1], 0.0) for cell in cells]
    lower = [np.append(0.0, cell.cumsum())[:-1] for cell in cells]
    misfit = _misfit(c0, c1, share)
    return [part[1:] if is_complete else part[:-1] for part in upper], lower, misfit


def _misfit(c0: Floats, c1: Floats, share: Floats) -> float:
    """Return the error of a curve that chance does not explain, as a standard error.

    It comes from the chi-squared statistic of the counts in groups of cells.
    """
    below = (c0 + c1).cumsum()
    groups = TUNING.curve_groups
    starts = np.unique(np.searchsorted(below, below[-1] * np.arange(groups) / groups, "right"))
    seen0, seen, expected = (np.add.reduceat(x, starts) for x in (c0, c0 + c1, (c0 + c1) * share))
    variance = np.maximum(expected * (1 - expected / seen), 1e-9)
    chi_squared = ((seen0 - expected) ** 2 / variance).mean()
    # The standard error of the mean is added to the misfit, because few groups are inconclusive.
    excess = max(0.0, chi_squared - 1) + np.sqrt(2 / len(starts))
    return float(np.sqrt(excess * (1 / variance).mean()))


def _is_normal(score: Floats, count0: Floats, count1: Floats) -> bool:
    """Return whether a score has normal laws of the same variance at both data sets.

    Then its likelihood ratio is a logistic curve, also in the tails. Sums of many parts are nearly
    normal. Chance must explain the ratio of the variances, and of skewness and kurtosis what is
    more than such sums have.
    """
    variances, z_scores = [], []
    for count in (count0, count1):
        n, second, third, fourth = _central_moments(score, count)
        if not 0 < second < np.inf:
            return False
        skewness, kurtosis = abs(third / second**1.5), abs(fourth / second**2 - 3)
        z_scores += [(skewness - TUNING.normal_skewness) / np.sqrt(6 / n)]
        z_scores += [(kurtosis - TUNING.normal_kurtosis) / np.sqrt(24 / n)]
        variances.append((second, 2 / n))
    (variance0, error0), (variance1, error1) = variances
    z_scores.append(abs(np.log(variance0 / variance1)) / np.sqrt(error0 + error1))
    return bool(max(z_scores) < TUNING.normal_standard_errors)


@compile_kernel
def _central_moments(score: Floats, count: Floats) -> tuple[float, float, float, float]:
    """Return the number of scores, each counted as often as `count` says, and three moments."""
    n, total = 0.0, 0.0
    for i in range(score.size):
        n += count[i]
        total += count[i] * score[i]
    mean, second, third, fourth = total / n, 0.0, 0.0, 0.0
    for i in range(score.size):
        deviation = score[i] - mean
        square = deviation * deviation
        second += count[i] * square
        third += count[i] * square * deviation
        fourth += count[i] * square * square
    return n, second / n, third / n, fourth / n


def _shrink_to_curve(
    hits: Sequence[Floats] | Floats,
    curve: tuple[Sequence[Floats] | Floats, float | Floats, bool | Flags],
    n: int,
    estimator: BoundEstimator,
    *,
    max_optimism: float = 0.5,
) -> Floats:
    """Return expected bounds of events, with counted ratios shrunk towards a smooth curve.

    `curve` has its shares, its misfit and whether it is right in the tails. The fewer hits an event
    has, the more its ratio is shrunk. The curve's standard error is the misfit, combined with a
    fraction of its log ratio unless it is right in the tails. Where the curve exceeds the counted
    ratio, the difference then counts as a further error. The shrunk log ratio exceeds the counted
    one by at most `max_optimism` standard errors of the count.
    """
    shares, misfit, is_right = curve
    is_seen = np.minimum(*hits) >= TUNING.least_curve_hits
    seen = (is_seen | np.asarray(is_right)) & (np.minimum(*shares) > 0)
    h0, h1, p0, p1 = (np.where(seen, x, 1.0) for x in (*hits, *shares))
    h0, h1 = (np.where(is_seen, h, h + 0.5) for h in (h0, h1))
    counted, smooth = np.log(h0 / h1), np.log(p0 / p1)
    mass = (h0 + h1) / n
    trust = TUNING.curve_error * np.maximum(1.0, np.sqrt(2 / (TUNING.curve_groups * mass)))
    trust = np.where(is_right, 0.0, trust)
    by_counts, by_model = 1 / h0 + 1 / h1, (trust * smooth) ** 2 + misfit**2 + 1e-12
    weight = by_counts / (by_counts + by_model)
    shrunk, most = (1 - weight) * counted + weight * smooth, max_optimism * np.sqrt(by_counts)
    ratio = np.where(is_right, shrunk, np.minimum(shrunk, counted + most))
    excess = np.where(is_right, 0.0, weight * np.maximum(0.0, smooth - counted))
    spread = np.sqrt(by_counts * by_model / (by_counts + by_model) + excess**2)
    share = special.expit(ratio)
    p0, p1 = (np.minimum(1.0, mass * part) for part in (share, 1 - share))
    expected = estimator.bounds_of(p0, p1, spread)
    return np.where(seen, expected, -np.inf)


def describe_ranges(
    edges: Floats, inside: Flags, text: Text = no_text, *, may_be_missing: bool = True
) -> str:
    """Describe in words the cells between edges that belong to an event.

    `inside` says which cells do. A code is described by its text. `may_be_missing`: some outputs
    do not have the number.

    >>> describe_ranges(np.array([1.0, np.nextafter(1.0, 2.0), 5.0, np.inf]),
    ...        np.array([False, True, False, True, False]))
    '1 or at least 5'
    """
    # The text of each cell that holds exactly one text.
    singles = np.flatnonzero(edges[1:] == np.nextafter(edges[:-1], np.inf))
    names = {int(i) + 1: text(float(edges[i])) for i in singles}
    texts = {i: name for i, name in names.items() if name is not None}
    described = [name for i, name in texts.items() if inside[i]]
    # Those cells are dropped, and the cells before and after each are merged into one.
    inside = inside.copy()
    for i in texts:
        inside[i + 1] &= inside[i - 1]
    dropped = [j for i in texts for j in (i - 1, i)]
    edges, inside = np.delete(edges, dropped), np.delete(inside, dropped)
    inside[-1] &= may_be_missing
    inside[0] &= len(edges) > 1 or not texts  # No number lies between texts.
    # The ends of each range of adjacent cells inside; NaN is the end of the last cell.
    ends = np.concatenate([[-np.inf], edges, [np.nan]])
    marks = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    for start, end in marks.reshape(-1, 2):
        low, high = float(ends[start]), float(ends[end])
        is_text = text(low) or text(high)
        described.append("one of many texts" if is_text else _describe_range(low, high))
    if len(described) > _MAX_NAMED:
        return f"one of {len(described)}, such as {described[0]}"
    return " or ".join(dict.fromkeys(described)) or "never"


def _describe_range(low: float, high: float) -> str:
    """Describe the range [low, high) in words; with NaN as `high` it includes missing numbers."""
    if high == np.nextafter(low, np.inf):
        return format_value(low)
    if low == np.inf:
        return "missing"
    missing = " or missing" if np.isnan(high) else ""
    above = _describe_edge(low, "at least", "above")
    below = _describe_edge(high, "below", "at most")
    if high < np.inf:
        return below if low == -np.inf else f"{above} and {below}"
    if low > -np.inf:
        return above + missing
    return f"anything{missing}" if missing else "not missing"


def _describe_edge(edge: float, words: str, words_before: str) -> str:
    """Name an edge, or the number just below it if that is shorter."""
    before = float(np.nextafter(edge, -np.inf))
    is_shorter = len(repr(before)) < len(repr(float(edge)))
    return (
        f"{words_before} {format_value(before)}" if is_shorter else f"{words} {format_value(edge)}"
    )
