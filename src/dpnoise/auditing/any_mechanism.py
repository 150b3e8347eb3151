"""Audits mechanisms with outputs of any kind, on pairs of neighbouring data sets.

1. All pairs are screened with a few releases.
2. For the best pairs, events are learned with more releases.
3. The best events are compared in a pilot.
4. The few best events of one pair are counted in the largest part of the releases (see `counting`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np

from dpnoise.auditing import counting
from dpnoise.auditing.attacks.base import OUTPUTS, Event, EventCount, no_progress
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.calls import time_calls
from dpnoise.auditing.counting import FALSE_ALARM_RATE, LEARNED, Candidate, CountSizes
from dpnoise.auditing.learned import expected_bounds
from dpnoise.auditing.learned.events import (
    deduplicate_rows,
    has_many_duplicates,
    propose_events,
    tune_thresholds,
)
from dpnoise.auditing.learned.expected_bounds import Proposal, Score
from dpnoise.auditing.learned.exports import agrees, write_event
from dpnoise.auditing.neighbours import neighbours_of
from dpnoise.auditing.options import AuditOptions, Progress, Watch
from dpnoise.auditing.outputs import Outputs, OutputSource, describe_data
from dpnoise.auditing.report import Finding, Report
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.targets.mechanisms import Data, Pair
from dpnoise.auditing.targets.target import MECHANISM_SIGNATURE, check_target
from dpnoise.auditing.tradeoff import ScoreTally, TradeoffPoint
from dpnoise.auditing.tuning import TUNING
from dpnoise.core import errors
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.parallel import cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CONSTANT: Final = Event("never: all outputs were alike", lambda y: np.zeros(len(y), np.bool_))
# First outputs on which an event and its text must agree.
_COMPARED_OUTPUTS: Final = 1_000
_COMPARED_ROWS: Final = 64  # Rows that show which part varies.
_COIN: Final = " on average: a fair coin chose the data set of each release"
_METHOD: Final = (
    "{pairs} pairs of data sets were compared on {sizes.screening:,} releases of each data set. "
    "Events were learned for {chosen.pairs} of the pairs, on {sizes.learning:,} releases. "
    "Thresholds of {chosen.scores} scores were chosen on {sizes.tuning:,} releases, and the best "
    "events were compared on {sizes.comparing:,} or more. Then {counted} events were counted in "
    "{final:,} fresh releases of each data set{coin}. That number was set before drawing them. "
    "{limits} The audit's failure probability is split over the points of the trade-off curve, the "
    "counted events and the limits of each. Releases were tested for independence, with a false "
    f"alarm probability of {FALSE_ALARM_RATE:g} for each test. Then calls were assumed independent."
)


@dataclass(frozen=True)
class Sizes:
    """Numbers of releases of each data set for the steps of an audit."""

    screening: int
    screening_train: int  # The part of the screening on which events are learned.
    learning: int
    tuning: int  # For choosing thresholds.
    comparing: int  # For comparing the best events; 0 if the pilot is small.
    final: int  # For the final count.

    @classmethod
    def of(cls, budget: int, pairs: int, data_sets: int, *, many_duplicates: bool) -> "Sizes":
        """Split a budget: the largest part is for the final count."""
        factor = TUNING.repeated_outputs_factor if many_duplicates else 1
        learned, screening = min(TUNING.pairs_learned, pairs), 0
        if pairs > learned:
            screening = min(factor * TUNING.screening_outputs, budget // (5 * data_sets))
        share = budget // (10 * learned)
        # With more releases, a smaller part of the share is for learning. Half of the rest is for
        # the pilot.
        base = TUNING.learning_base_outputs + share // 4
        learning = min(factor * TUNING.learning_outputs, base, share)
        tuning = pilot = min(TUNING.pilot_outputs, share + (share - learning) // 2)
        if pilot >= TUNING.least_split_pilot:
            least_tuning = min(TUNING.least_threshold_outputs, pilot * 5 // 8)
            tuning = max(least_tuning, min(factor * TUNING.threshold_outputs, pilot // 6))
        used = data_sets * screening + 2 * learned * (learning + pilot)
        return cls(
            screening=screening,
            screening_train=min(factor * TUNING.screening_train_outputs, screening // 3),
            learning=learning,
            tuning=tuning,
            comparing=pilot - tuning,
            final=(budget - used) // 2,
        )


def audit_mechanism(  # noqa: PLR0913 - the options of an audit, which `AuditOptions` holds
    target: object,
    epsilon: float | None = None,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    *,
    neighbours: object = None,
    data: object = None,
    size: int = 10,
    mu: float | None = None,
    rho: float | None = None,
    curve: bool = False,
    one_by_one: bool = False,
    exceptions: str | None = None,
    boosting: bool | None = None,
    public: Sequence[int | str] = (),
    views: Sequence[Callable[[Any], object]] = (),
    budget: int | None = None,
    confidence: float = 0.999,
    time_limit: float = 60.0,
    seed: int | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Report:
    """Audit a mechanism with outputs of any kind: certify a lower bound on its epsilon.

    Events are learned from outputs at neighbouring data sets and counted in fresh outputs. All
    bounds of a report hold together, except with probability 1 - confidence. A report without
    findings proves nothing.

    Parameters
    ----------
    target
        A function (data, n) -> n independent outputs; "module:function"; a name from
        `dpnoise.auditing.targets.MECHANISMS`, such as "opendp.noisy_max"; or a command as a list
        of strings, which reads one line of JSON, {"data": ..., "n": ...}, and writes n lines. An
        output is a number, a text, None, or a tuple, list or array of these.
    epsilon, delta
        The claim of the target. It is refuted if the certified bound is larger.
    sensitivity
        The most by which each answer of neighbours="vector" changes.
    neighbours
        Pairs of neighbouring data sets, [(a, b), ...]; or a relation: "vector", answers to queries
        that each move by at most the sensitivity, or "rows", one row added, removed or replaced.
        Mechanisms that are given by name have neighbours.
    data
        The rows that "rows" starts from: a list, an array or a frame. By default zeros and ones.
        Give invented rows, because reports show numbers from them.
    size
        The number of answers in a "vector".
    exceptions
        "output": an exception that the target raises is an output, with its type and its text;
        "error": it ends the audit. By default it is an output where the target raises one at only
        one data set of a pair. The target is then asked for one output per call.
    boosting
        Whether to learn events by gradient boosted trees as well, which needs the extra `learning`.
        By default they are learned where it is installed and no budget is given.
    public
        Parts of each output that are public randomness, such as the seed of a hash: their indices,
        or their names in reports ("y[0]"). Other parts are then also viewed together with these.
    views
        Functions of one output that return a number or a text, which events may use:
        [lambda y: y[0] - y[3]].
    budget
        As for `audit_noise`, but the default is 2 million.
    mu, rho, curve, one_by_one, confidence, time_limit, seed, progress, watch
        As for `audit_noise`.

    Examples
    --------
    The largest of three noisy answers, with noise that would suffice for the index only:

    >>> import numpy as np
    >>> from dpnoise.auditing import audit_mechanism
    >>> rng = np.random.default_rng()
    >>> def largest(answers, n):
    ...     return (answers + rng.laplace(scale=2.0, size=(n, len(answers)))).max(axis=1)
    >>> audit_mechanism(largest, 1.0, neighbours="vector", size=3, budget=200_000).broken
    True
    """
    check_target(target, MECHANISM_SIGNATURE)
    options = AuditOptions(
        epsilon=epsilon, delta=delta, sensitivity=sensitivity, mu=mu, rho=rho, curve=curve,
        neighbours=neighbours, data=data, size=size, one_by_one=one_by_one, exceptions=exceptions,
        boosting=boosting, public=public, views=views, budget=budget, confidence=confidence,
        time_limit=time_limit, seed=seed, progress=progress or no_progress,
        watch=watch or no_progress,
    )  # fmt: skip
    return _audit(target, options)


def _audit(target: object, options: AuditOptions) -> Report:
    """Resolve the target and its neighbours, learn events, and report what was certified."""
    source, pairs, package = _resolve(target, options)
    options.progress(0.0, "drawing the first outputs")
    source.prepare(pairs)
    budget = options.budget
    if budget is None:
        pace = time_calls(lambda n: source.outputs(pairs[0][0], n))
        budget = pace.affordable_budget(TUNING.mechanism_budget)
    started = time.perf_counter()
    plan = _plan_sizes(source, pairs, budget or TUNING.mechanism_budget)
    sizes = plan(budget or TUNING.mechanism_budget)
    chosen = _choose_events(source, pairs, sizes, options)
    if budget is None:
        budget = _grown_budget(chosen, sizes, time.perf_counter() - started, options)
        if budget is not None:
            sizes = plan(budget)
            # Trees that found nothing take too long for more releases.
            again = replace(options, boosting=bool(options.boosting))
            chosen = _choose_events(source, pairs, sizes, again)
    final = _final_trials(source, chosen, sizes, budget, options)
    findings, results = _count_final_events(source, chosen, final, options)
    options.watch(findings)
    options.progress(1.0, "done")
    shown, coin = [_describe_pair(pair) for pair in pairs], _COIN if options.claim.is_ratio else ""
    numbers = {"pairs": len(pairs), "counted": len(chosen.candidates), "final": final}
    limits = results.pop("limits")
    method = _METHOD.format(sizes=sizes, chosen=chosen, coin=coin, limits=limits, **numbers)
    for kind in sorted(source.not_copied):
        method += f" Data of the class {kind} cannot be copied: each call got the same object."
    results |= {"method": method, "releases": source.drawn, "pairs": shown}
    return options.report(target, source.name, package, started, findings=findings, **results)


class _ViewedSource(OutputSource):
    """A source whose outputs begin with the values of the caller's views."""

    views: Sequence[Callable[[Any], object]] = ()

    def draw(self, data: object, n: int, shown: str) -> Outputs:
        """Return n outputs of one call, each with the values of the views if there are any."""
        outputs = super().draw(data, n, shown)
        if not self.views:
            return outputs
        each = outputs.to_numpy() if hasattr(outputs, "to_numpy") else outputs
        return [(*(view(output) for view in self.views), output) for output in each]

    @property
    def names(self) -> list[str]:
        """The names of the columns of a row in an event's words."""
        length, *parts = self.encoder.names
        shown, others = (
            [f"views[{i}](y)" for i in range(len(self.views))],
            len(parts) - len(self.views),
        )
        own = ["y"] if others == 1 else [f"y[{j}]" for j in range(others)]
        return [length, *shown, *own] if self.views else [length, *parts]

    def columns_of(self, public: Sequence[int | str]) -> list[int]:
        """Return the columns of the public parts, or raise for one that does not exist."""
        names = self.names[1 + len(self.views) :]
        columns = []
        for part in public:
            index = names.index(part) if part in names else part
            if not isinstance(index, int) or not 0 <= index < len(names):
                errors.reject("public", part, f"be a part of an output: 0 to {len(names) - 1}")
            columns.append(1 + len(self.views) + int(index))
        return columns


def _resolve(target: object, options: AuditOptions) -> tuple[_ViewedSource, list[Pair], str | None]:
    """Return the source of outputs, the pairs of data sets, and the package of a named target."""
    named = MECHANISMS.get(target) if isinstance(target, str) else None
    if named is not None and options.neighbours is None:
        pairs = list(named.neighbours)
    else:
        pairs = neighbours_of(options.neighbours, options.size, options.sensitivity, options.data)
    mechanism = target if named is None else named.build(options.epsilon, options.delta)
    name, package = (None, None) if named is None else (named.name, named.package)
    source = _ViewedSource(
        mechanism,
        options.time_limit,
        one_by_one=options.one_by_one,
        exceptions=options.exceptions,
        name=name,
    )
    source.views = options.views
    return source, pairs, package


def _plan_sizes(source: _ViewedSource, pairs: Sequence[Pair], total: int) -> Callable[[int], Sizes]:
    """Take a first look at the outputs; return the function that splits a budget."""
    data_sets = len({id(data) for pair in pairs for data in pair})
    first = source.rows(pairs[0][0], min(TUNING.first_look_outputs, total // 100))
    many_duplicates = has_many_duplicates(first)

    def plan(total: int) -> Sizes:
        left = total - len(first)
        return Sizes.of(left, len(pairs), data_sets, many_duplicates=many_duplicates)

    return plan


@dataclass(frozen=True)
class _ChosenEvents:
    """The events that will be counted, with their counts in the pilot."""

    candidates: list[Candidate]
    proposals: list[Proposal]  # The candidates' scores and thresholds; none if nothing was learned.
    seconds_each: float  # Seconds per release of the pilot.
    pairs: int  # Number of pairs for which events were learned.
    scores: int  # Number of compared scores.


def _choose_events(
    source: _ViewedSource, pairs: Sequence[Pair], sizes: Sizes, options: AuditOptions
) -> _ChosenEvents:
    """Screen pairs, learn events for the best, and compare these in a pilot."""
    error, chance = 1 - options.confidence, TUNING.chance_trials_of_many
    estimator = BoundEstimator(options.claim, sizes.final, error, chance)
    best_pairs = _screen_pairs(source, pairs, sizes, estimator, options.progress)
    learned = _learn_scores(source, best_pairs, sizes.learning // 2, estimator, options)
    options.progress(0.4, "comparing the best events")
    clock = time.perf_counter()
    if not sizes.comparing:
        # Without a comparison to follow, the thresholds chosen here are final: so be cautious.
        estimator = replace(estimator, caution=TUNING.discount_of_best)
    best, counts, trials = _run_pilot(source, learned, sizes, estimator)
    seen = [hits.sum() + sum(p.hits) for hits, (p, _) in zip(counts, best, strict=True)]
    told = [i for i, hits in enumerate(seen) if 0 < hits < 2 * (trials + sizes.tuning)]
    best, counts = [best[i] for i in told], counts[told]
    events = [
        (_export_event(proposal, source), pair[::-1] if proposal.swapped else pair)
        for proposal, pair in best
    ]
    if not events:
        rows = source.rows(pairs[0][0], _COMPARED_ROWS)
        events, counts = [(_event_of_halves(rows, source.names), pairs[0])], np.zeros((1, 2))
    candidates = []
    for (event, pair), hits in zip(events, counts.astype(int).tolist(), strict=True):
        at0, at1 = (EventCount(h, trials) for h in hits)
        shown = _describe_pair(pair)
        candidates.append(Candidate(LEARNED, OUTPUTS, event, pair, shown, (at0, at1)))
    seconds_each = (time.perf_counter() - clock) / (2 * (sizes.tuning + sizes.comparing))
    proposals = [proposal for proposal, _ in best]
    return _ChosenEvents(candidates, proposals, seconds_each, len(best_pairs), len(learned))


def _is_at_least(j: int, cut: float, rows: Floats) -> Flags:
    return np.asarray(rows[:, j] >= cut)


def _event_of_halves(rows: Floats, names: Sequence[str]) -> Event:
    """Return an event of the first part that varies, if nothing distinguishes the data sets."""
    for j, column in enumerate(rows.T):
        values = np.unique(column[~np.isnan(column)])
        if len(values) > 1:
            cut = max(float(np.nanmedian(column)), float(values[1]))
            text = f"{names[j]} is in the upper half of its values"
            return Event(text, partial(_is_at_least, j, cut))
    return _CONSTANT


def _export_event(proposal: Proposal, source: _ViewedSource) -> Event:
    """Return the event with its text in Python; an event of the caller's views has none."""
    if source.views:
        return proposal.event
    encoder = source.encoder
    codes = encoder.codes, encoder.other_code
    text = write_event(proposal, encoder.decode, *codes, encoder.form_index)
    return replace(proposal.event, source=text)


def _grown_budget(
    chosen: _ChosenEvents, sizes: Sizes, seconds: float, options: AuditOptions
) -> int | None:
    """Return a larger budget to learn, compare and count events in again, or None.

    It is for a fast mechanism, if no event of the first search is expected to refute the claim: a
    leak may be too rare for the releases in which events were learned. `seconds` is the time of the
    first search.
    """
    estimator = BoundEstimator(options.claim, sizes.final, 1 - options.confidence)
    if max(c.expected_bound(estimator) for c in chosen.candidates) > options.claim.value:
        return None
    left = TUNING.mechanism_growth_seconds - TUNING.growth_of_search * seconds
    default = TUNING.mechanism_budget
    budget = min(TUNING.budget_growth * default, int(left / max(chosen.seconds_each, 1e-9)))
    return budget if budget >= 2 * default else None


def _final_trials(
    source: _ViewedSource,
    chosen: _ChosenEvents,
    sizes: Sizes,
    budget: int | None,
    options: AuditOptions,
) -> int:
    """Return the number of releases of each data set for the final count."""
    # The final count also gets the releases that dropped pairs did not use.
    unused = (budget or TUNING.mechanism_budget) - source.drawn
    final = max(sizes.final, unused // 2)
    if budget is not None:
        return final
    estimator = BoundEstimator(options.claim, sizes.final, 1 - options.confidence)
    in_time = TUNING.mechanism_growth_seconds / max(2 * chosen.seconds_each, 1e-9)
    return counting.needed_trials(estimator, chosen.candidates, final, in_time)


def _count_final_events(
    source: _ViewedSource, chosen: _ChosenEvents, final: int, options: AuditOptions
) -> tuple[list[Finding], dict[str, Any]]:
    """Count events in fresh releases.

    Return the findings, and for the report the limits used, the points of the trade-off curve and
    the largest possible bound.
    """
    candidates, proposals = chosen.candidates, chosen.proposals
    options.progress(0.5, f"counting {len(candidates)} events in {2 * final:,} releases")
    claim, tossed, error = options.claim, options.claim.is_ratio, 1 - options.confidence
    curve_error = TUNING.curve_error_share * error if proposals else 0.0
    source.encoder.close()
    scores = _ScoreSource(source, candidates, proposals)
    sizes = CountSizes(final, source.chunk, source.affordable_calls(candidates[0].data[0]))
    counted = counting.count_events(
        [_of_scores(candidate, i, proposals) for i, candidate in enumerate(candidates)],
        scores.draw, sizes, source.name, tossed=tossed, seed=options.seed,
    )  # fmt: skip
    shares = TUNING.event_error_shares if len(candidates) > 1 else (1.0,)
    findings = []
    for i, (candidate, share) in enumerate(zip(counted, shares, strict=True)):
        finding = counting.certify(candidate, options, (error - curve_error) * share, tossed=tossed)
        findings.append(replace(finding, predicate="") if i in scores.differ else finding)
    points = scores.points(counted, curve_error)
    trials = max(count.trials for candidate in counted for count in candidate.counts)
    most = counting.ceiling(claim, trials, (error - curve_error) * shares[0], tossed=tossed)
    limits = counting.describe_limits(findings)
    findings.sort(key=lambda finding: -finding.certified)
    return findings, {"limits": limits, "points": points, "ceiling": most}


class _ScoreSource:
    """Draws the scores of outputs for the last count, and tallies the first score for the curve."""

    def __init__(
        self,
        source: OutputSource,
        candidates: Sequence[Candidate],
        proposals: Sequence[Proposal],
    ) -> None:
        self._source, self._candidates, self._proposals = source, candidates, proposals
        self._scores = [proposal.exact_score for proposal in proposals]
        self._tally, self._compared = ScoreTally(), 0
        self.differ: set[int] = set()  # The events that are not what their text in Python says.
        # The first data set is the one where large values of the first score are likelier.
        self._turn = -1 if proposals and proposals[0].swapped else 1

    def draw(self, data: Data, n: int) -> Floats:
        """Return the scores of n outputs, one in each column; without scores, the rows."""
        rows = self._source.rows(data, n)
        if not self._scores:
            return rows
        if self._compared < _COMPARED_OUTPUTS:
            self._compare(rows[: _COMPARED_OUTPUTS // 2])
        values = expected_bounds.evaluate(self._scores, rows).T
        self._tally.add(int(data is not self._candidates[0].data[:: self._turn][0]), values[:, 0])
        return values

    def points(self, counted: Sequence[Candidate], error: float) -> list[TradeoffPoint]:
        """Return the points of the curve, which hold together except with probability `error`.

        Their limits are widened by the largest dispersion of the counted events.
        """
        if not self._scores:
            return []

        def widening(error: float) -> float:
            return max(candidate.widening(error) for candidate in counted)

        first, second = self._candidates[0].shown[:: self._turn]
        return self._tally.points((first, second), error, widening)

    def _compare(self, rows: Floats) -> None:
        self._compared += len(rows)
        decode = self._source.encoder.decode
        pairs = zip(self._candidates, self._proposals, strict=True)
        for i, (candidate, proposal) in enumerate(pairs):
            text = candidate.event.source
            if text and not agrees(text, proposal, rows, decode):
                self.differ.add(i)


def _of_scores(candidate: Candidate, i: int, proposals: Sequence[Proposal]) -> Candidate:
    """Return the candidate with its event as one of scores: column i has its own."""
    if not proposals:
        return candidate
    event = replace(
        candidate.event,
        holds=lambda values: proposals[i].holds(np.asarray(values[:, i], np.float64)),
    )
    return replace(candidate, event=event)


def _describe_pair(pair: Pair) -> tuple[str, str]:
    return describe_data(pair[0]), describe_data(pair[1])


def _screen_pairs(
    source: _ViewedSource,
    pairs: Sequence[Pair],
    sizes: Sizes,
    estimator: BoundEstimator,
    progress: Progress,
) -> list[Pair]:
    """Return the pairs with the largest expected bound.

    For each pair, a few events are learned on few releases, and counted in more fresh ones.
    """
    if len(pairs) <= TUNING.pairs_learned:
        return list(pairs)
    names, train = source.names, sizes.screening_train
    seen: dict[int, Floats] = {}
    for data in _distinct_data_sets([(None, pair) for pair in pairs]):
        progress(0.1, f"screening {describe_data(data)}")
        seen[id(data)] = source.rows(data, train)

    def learn_quickly(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (seen[id(data)] for data in pair)
        best: dict[int, Proposal] = {}
        for proposal in propose_events(rows0, rows1, names, estimator, quick=True):
            if not proposal.rare:
                best.setdefault(id(proposal.score), proposal)
        return [(proposal, pair) for proposal in [*best.values()][: TUNING.screening_events]]

    learned = _map_in_threads(learn_quickly, pairs)
    if not learned:
        return list(pairs[: TUNING.pairs_learned])
    n = sizes.screening - train
    counts = _tally_events(source, learned, n)
    bounds = expected_bounds.reestimate([event for event, _ in learned], counts, n, estimator)
    best = {id(pair): -np.inf for pair in pairs}
    for bound, (_, pair) in zip(bounds.tolist(), learned, strict=True):
        best[id(pair)] = max(best[id(pair)], bound)
    return sorted(pairs, key=lambda pair: -best[id(pair)])[: TUNING.pairs_learned]


def _learn_scores(
    source: _ViewedSource,
    pairs: Sequence[Pair],
    half: int,
    estimator: BoundEstimator,
    options: AuditOptions,
) -> list[tuple[Score, Pair]]:
    """Learn scores in two halves of releases, after a test of their independence."""
    names, text = source.names, source.encoder.text
    public = source.columns_of(options.public)
    # Drawn from the seed of the audit, because scikit-learn accepts only 32 bits.
    seed = int(np.random.default_rng(options.seed).integers(1 << 32))
    by_default = options.budget is None and find_spec("sklearn") is not None
    learn_trees = by_default if options.boosting is None else options.boosting
    tree_seed = seed if learn_trees else None
    seen = []
    options.progress(0.2, "learning events")
    data_sets = [data for pair in pairs for data in pair]
    drawn = counting.draw_ahead(source.rows, [(data, half) for data in data_sets for _ in range(2)])
    for data, before, after in zip(data_sets, drawn, drawn, strict=True):
        call, scatter = f"{source.name}({describe_data(data)}, {half})", source.encoder.scatter
        counting.check_independent(call, scatter(before), scatter(after))
        seen.append(np.concatenate([before, after]))

    def learn(i: int) -> list[tuple[Score, Pair]]:
        events = propose_events(
            seen[2 * i],
            seen[2 * i + 1],
            names,
            estimator,
            text=text,
            public=public,
            tree_seed=tree_seed,
        )
        best = expected_bounds.best_proposals(events, TUNING.scores_compared)
        return [(score, pairs[i]) for score in {id(p.score): p.score for p in best}.values()]

    return _map_in_threads(learn, range(len(pairs)))


def _run_pilot(
    source: _ViewedSource,
    learned: Sequence[tuple[Score, Pair]],
    sizes: Sizes,
    estimator: BoundEstimator,
) -> tuple[list[tuple[Proposal, Pair]], Floats, int]:
    """Choose thresholds on fresh releases; return the best events, their counts and the trials.

    The best of many thresholds is partly luck. If there are enough releases, the best events are
    compared again on fresh ones, in rounds with fewer events and more releases.
    """
    releases = {id(data): source.rows(data, sizes.tuning) for data in _distinct_data_sets(learned)}

    def tune_pair(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (releases[id(data)] for data in pair)
        scores = [score for score, other in learned if other is pair]
        return [(event, pair) for event in tune_thresholds(scores, rows0, rows1, estimator)]

    pairs = list({id(pair): pair for _, pair in learned}.values())
    tuned = _map_in_threads(tune_pair, pairs)
    tuned.sort(key=lambda item: -item[0].expected_bound)
    if sizes.comparing and tuned:
        return _compare_events(source, tuned, sizes, estimator)
    best = tuned[:1]
    return best, np.array([event.hits for event, _ in best]).reshape(-1, 2), sizes.tuning


def _compare_events(
    source: _ViewedSource,
    proposed: list[tuple[Proposal, Pair]],
    sizes: Sizes,
    estimator: BoundEstimator,
) -> tuple[list[tuple[Proposal, Pair]], Floats, int]:
    """Compare events in fresh releases; return the best, their counts and the trials.

    The best event has the largest cautious estimate. Events stay while an optimistic estimate says
    that they may be better. That estimate includes the releases on which thresholds were chosen,
    because a few fresh releases may miss a rare event. A rare event may also be the best by chance.
    So the event with the largest estimate under much more caution is returned as well, if it
    differs.
    """
    optimistic = replace(estimator, caution=-1.0)
    cautious = replace(estimator, caution=TUNING.discount_of_best)
    most_cautious = replace(estimator, caution=TUNING.discount_of_safest)
    events = [event for event, _ in proposed]
    first_counts = np.array([event.hits for event in events])
    low, high = (
        expected_bounds.reestimate(events, first_counts, sizes.tuning, estimate)
        for estimate in (cautious, optimistic)
    )
    order = _order_by_turns(low, np.array([event.expected_bound for event in events]), high)
    left = [proposed[i] for i in _drop_equal_events(order, proposed, first_counts)]
    counts, trials = np.zeros((len(left), 2)), 0
    planned = sizes.comparing * len(_distinct_data_sets(left))
    for most, fraction in TUNING.comparison_rounds:
        left, counts = left[:most], counts[:most]
        # The remaining data sets share the releases that were planned for dropped ones.
        fresh = int(fraction * planned / len(_distinct_data_sets(left)))
        counts, trials = counts + _tally_events(source, left, fresh), trials + fresh
        events = [event for event, _ in left]
        all_counts = counts + [event.hits for event in events]
        high = expected_bounds.reestimate(events, all_counts, trials + sizes.tuning, optimistic)
        low = expected_bounds.reestimate(events, counts, trials, cautious)
        rivals = [i for i in _order_by_turns(low, high) if high[i] >= low.max()]
        lowest = expected_bounds.reestimate(events, counts, trials, most_cautious)
        safest: dict[int, int] = {}  # For each pair, the event with the largest of these bounds.
        for i in np.argsort(-lowest, kind="stable").tolist():
            safest.setdefault(id(left[i][1]), i)
        kept = [rivals[0], *safest.values()]
        order = _drop_equal_events([*kept, *rivals[1:]], left, counts)
        left, counts = [left[i] for i in order], counts[order]
        if set(order) <= set(kept):
            break
    of_best_pair = [i for i, (_, pair) in enumerate(left) if pair is left[0][1]]
    events = [left[i][0] for i in of_best_pair]
    lowest = expected_bounds.reestimate(events, counts[of_best_pair], trials, most_cautious)
    chosen = list(dict.fromkeys([0, of_best_pair[int(lowest.argmax())]]))
    if len(chosen) == 1:
        # The best event is certain. A much bolder one may be counted in addition.
        all_counts = counts[of_best_pair] + [event.hits for event in events]
        high = expected_bounds.reestimate(events, all_counts, trials + sizes.tuning, optimistic)
        if high.max() > TUNING.bold_factor * max(high[0], 0.0):
            chosen.append(of_best_pair[int(high.argmax())])
    return [left[i] for i in chosen], counts[chosen], trials


def _order_by_turns(*estimates: Floats) -> list[int]:
    """Return the indices of events, in turns by each of several estimates."""
    turns = np.column_stack([np.argsort(-x, kind="stable") for x in estimates])
    return list(dict.fromkeys(turns.ravel().tolist()))


def _drop_equal_events(
    order: Sequence[int], proposed: Sequence[tuple[Proposal, Pair]], counts: Floats
) -> list[int]:
    """Drop events that happen about as often as an earlier one: they would certify the same."""
    kept: list[int] = []
    for i in order:
        event, pair = proposed[i]
        same_pair = [k for k in kept if proposed[k][1] is pair]
        rivals = [k for k in same_pair if proposed[k][0].swapped == event.swapped]
        near = np.abs(counts[rivals] - counts[i]) <= TUNING.equal_counts * counts[rivals]
        if not (near & (counts[rivals] >= TUNING.least_equal_count)).all(axis=1).any():
            kept.append(i)
    return kept


def _tally_events(
    source: _ViewedSource, proposed: Sequence[tuple[Proposal, Pair]], n: int
) -> Floats:
    """Count events in n releases of both data sets: first of the one where each is likelier."""
    hits = np.zeros((len(proposed), 2))
    sides = [(i, side) for i in range(len(proposed)) for side in (0, 1)]
    for data in _distinct_data_sets(proposed):
        of_data = [(i, side) for i, side in sides if proposed[i][1][side] is data]
        sizes = [source.chunk] * (n // source.chunk) + [n % source.chunk] * (n % source.chunk > 0)
        for rows in counting.draw_ahead(source.rows, [(data, size) for size in sizes]):
            distinct, (repeats,), _ = deduplicate_rows(rows)
            scores = {id(proposed[i][0].score): proposed[i][0].score for i, _ in of_data}
            totals = expected_bounds.evaluate(list(scores.values()), distinct)
            values = dict(zip(scores, totals, strict=True))
            for i, side in of_data:
                event = proposed[i][0]
                happened = event.holds(values[id(event.score)])
                hits[i, side ^ event.swapped] += repeats[happened].sum()
    return hits


def _distinct_data_sets(learned: Sequence[tuple[object, Pair]]) -> list[Data]:
    return list({id(data): data for _, pair in learned for data in pair}.values())


def _map_in_threads(
    function: Callable[[_Item], list[_Result]], items: Iterable[_Item]
) -> list[_Result]:
    """Concatenate the lists that a function returns for items, in one thread per core.

    NumPy, which takes most of the time, releases the GIL.
    """
    with ThreadPoolExecutor(cores()) as pool:
        return list(chain.from_iterable(pool.map(function, items)))
