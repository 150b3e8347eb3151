"""Audits mechanisms with outputs of any kind, on pairs of neighbouring data sets.

All pairs are screened with a few releases; for the most promising ones events are learned with
more; the best of those are measured in a pilot; and the few best of one pair are counted in the
largest part of the releases (see `counting`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from dpnoise.auditing.attacks.base import OUTPUTS, Count, Event
from dpnoise.auditing.attacks.bounds import BoundEstimator
from dpnoise.auditing.calls import affordable_budget
from dpnoise.auditing.counting import (
    ERROR,
    LEARNED,
    Candidate,
    ceiling,
    certify,
    check_independent,
    count_events,
    draw_ahead,
    most_trials,
    needed_trials,
)
from dpnoise.auditing.learned.events import are_alike, fold_rows, proposals, tune
from dpnoise.auditing.learned.expected_bounds import Proposal, Score, evaluate, expect, leading
from dpnoise.auditing.neighbours import neighbours_of
from dpnoise.auditing.options import AuditOptions, Progress
from dpnoise.auditing.outputs import Source, described
from dpnoise.auditing.report import Finding, Report
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.targets.mechanisms import Data, Pair
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import ArgumentError
from dpnoise.core.parallel import cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CONSTANT: Final = Event("never: all outputs were alike", lambda y: np.zeros(len(y), np.bool_))
_COIN: Final = " on average, each of the one or the other as a fair coin said"
_METHOD: Final = (
    "{pairs} pairs of data sets were compared on {sizes.screening:,} releases of each data set; "
    "events were learned for {chosen.pairs} of them, on {sizes.learning:,}; {chosen.scores} kinds "
    "got thresholds on {sizes.tuning:,}, and the best were compared on {sizes.racing:,} or more. "
    "Then {counted} events were counted in {final:,} fresh releases of each data set{coin}, a "
    "number fixed before. Limits are exact (Clopper and Pearson), and the audit's error is split "
    "over the events that were counted and the limits of each. Releases were tested for "
    "independence, at an error of {error:g} for each test, and then taken to be independent."
)


@dataclass(frozen=True)
class Sizes:
    """How many releases of each data set a step takes."""

    screening: int
    glimpse: int  # Of those of the screening.
    learning: int
    tuning: int
    racing: int
    final: int

    @classmethod
    def of(cls, budget: int, pairs: int, data_sets: int, *, alike: bool) -> "Sizes":
        """Split a budget: the largest part is for the last count."""
        more = TUNING.repeated_outputs_factor if alike else 1
        learned, screening = min(TUNING.pairs_learned, pairs), 0
        if pairs > learned:
            screening = min(more * TUNING.screening_outputs, budget // (5 * data_sets))
        share = budget // (10 * learned)
        # The more releases there are, the smaller is the part of a share by which events are
        # learned; half of what is left of it is for the pilot.
        base = TUNING.learning_base_outputs + share // 4
        learning = min(more * TUNING.learning_outputs, base, share)
        tuning = pilot = min(TUNING.pilot_outputs, share + (share - learning) // 2)
        if pilot >= TUNING.least_split_pilot:
            few = min(TUNING.least_threshold_outputs, pilot * 5 // 8)
            tuning = max(few, min(more * TUNING.threshold_outputs, pilot // 6))
        used = data_sets * screening + 2 * learned * (learning + pilot)
        return cls(
            screening=screening,
            glimpse=min(more * TUNING.screening_train_outputs, screening // 3),
            learning=learning,
            tuning=tuning,
            racing=pilot - tuning,
            final=(budget - used) // 2,
        )


def audit_mechanism(target: object, options: AuditOptions) -> Report:
    """Audit a mechanism of any kind: see dpnoise.audit."""
    if options.attacks is not None or options.pairs is not None or options.scale is not None:
        raise ArgumentError("attacks, pairs and scale are for added noise: leave out neighbours.")
    source, pairs, package = _resolve(target, options)
    default, first = TUNING.mechanism_budget, pairs[0][0]
    budget = options.budget or affordable_budget(lambda n: source.outputs(first, n), default)
    started = time.perf_counter()
    sizes = _plan_sizes(source, pairs, budget or default, options.progress)
    chosen = _choose_events(source, pairs, sizes, options)
    final = _final_trials(source, chosen, sizes, budget, options)
    findings, ceiling_of_count = _count_last(source, chosen.candidates, final, options)
    options.watch(findings)
    options.progress(1.0, "done")
    method = _METHOD.format(
        pairs=len(pairs),
        sizes=sizes,
        chosen=chosen,
        counted=len(chosen.candidates),
        final=final,
        coin=_COIN if options.claim.is_ratio else "",
        error=ERROR,
    )
    return options.report(
        target,
        source.name,
        package,
        started,
        noise="",
        scale=0.0,
        sensitivity=1.0,
        findings=findings,
        observations=[],
        skipped={},
        pairs=[_describe_pair(pair) for pair in pairs],
        method=method,
        ceiling=ceiling_of_count,
        releases=source.drawn,
    )


def _resolve(target: object, options: AuditOptions) -> tuple[Source, list[Pair], str | None]:
    """Return what draws outputs, the pairs of data sets, and the package behind a named target."""
    named = MECHANISMS.get(target) if isinstance(target, str) else None
    if named is not None and options.neighbours is None:
        pairs = list(named.neighbours)
    else:
        pairs = neighbours_of(options.neighbours, options.size, options.sensitivity, options.data)
    limit, one_by_one = options.time_limit, options.one_by_one
    if named is None:
        return Source(target, limit, one_by_one=one_by_one), pairs, None
    mechanism = named.made(options.epsilon, options.delta)
    source = Source(mechanism, limit, one_by_one=one_by_one, name=named.name)
    return source, pairs, named.package


def _plan_sizes(source: Source, pairs: Sequence[Pair], total: int, progress: Progress) -> Sizes:
    """Look at the first outputs, and split the budget."""
    data_sets = len({id(data) for pair in pairs for data in pair})
    progress(0.0, "looking at the first outputs")
    source.prepare([data for pair in pairs for data in pair])
    first = source.rows(pairs[0][0], min(TUNING.first_look_outputs, total // 100))
    return Sizes.of(total - len(first), len(pairs), data_sets, alike=are_alike(first))


@dataclass(frozen=True)
class _Chosen:
    """The events that will be counted, with their counts in the pilot."""

    candidates: list[Candidate]
    seconds_each: float  # How long a release of the pilot took.
    pairs: int  # Pairs that events were learned for.
    scores: int  # Scores that were compared.


def _choose_events(
    source: Source, pairs: Sequence[Pair], sizes: Sizes, options: AuditOptions
) -> _Chosen:
    """Screen pairs, learn events for the best, and compare these in a pilot."""
    estimator = BoundEstimator(
        options.claim, sizes.final, 1 - options.confidence, TUNING.chance_of_many
    )
    best_pairs = _screen_pairs(source, pairs, sizes, estimator, options.progress)
    learned = _learn_scores(source, best_pairs, sizes.learning // 2, estimator, options)
    options.progress(0.4, "comparing the best events")
    clock = time.perf_counter()
    # A race is to come, or the thresholds that are chosen now are the last word.
    chosen_by = estimator if sizes.racing else replace(estimator, caution=TUNING.caution_of_best)
    best, counts, seen = _run_pilot(source, learned, sizes, chosen_by)
    events = [(one.event, pair[::-1] if one.swapped else pair) for one, pair in best]
    if not events:
        events, counts = [(_CONSTANT, pairs[0])], np.zeros((1, 2))
    candidates = [
        Candidate(
            LEARNED, OUTPUTS, event, pair, _describe_pair(pair), (Count(a, seen), Count(b, seen))
        )
        for (event, pair), (a, b) in zip(events, counts.astype(int).tolist(), strict=True)
    ]
    seconds_each = (time.perf_counter() - clock) / (2 * (sizes.tuning + sizes.racing))
    return _Chosen(candidates, seconds_each, len(best_pairs), len(learned))


def _final_trials(
    source: Source, chosen: _Chosen, sizes: Sizes, budget: int | None, options: AuditOptions
) -> int:
    """Return in how many releases of each data set events are counted last."""
    # What was planned for pairs that were left out early is left for the last count.
    left = (budget or TUNING.mechanism_budget) - source.drawn
    final = max(sizes.final, left // 2)
    if budget is not None:
        return final
    estimator = BoundEstimator(options.claim, sizes.final, 1 - options.confidence)
    most = most_trials(final, chosen.seconds_each, TUNING.mechanism_growth_seconds)
    return needed_trials(estimator, chosen.candidates, final, most)


def _count_last(
    source: Source, candidates: Sequence[Candidate], final: int, options: AuditOptions
) -> tuple[list[Finding], float]:
    """Count events in fresh releases; return what they certify, and the most they could have."""
    options.progress(0.5, f"counting {len(candidates)} events in {2 * final:,} releases")
    claim, tossed, error = options.claim, options.claim.is_ratio, 1 - options.confidence
    source.encoder.close()
    counted = count_events(
        candidates, source.rows, final, source.chunk, source.name, tossed=tossed, seed=options.seed
    )
    shares = TUNING.event_error_shares if len(candidates) > 1 else (1.0,)
    findings = [
        certify(candidate, options, error * share, tossed=tossed)
        for candidate, share in zip(counted, shares, strict=True)
    ]
    trials = max(count.trials for candidate in counted for count in candidate.counts)
    most = ceiling(claim, trials, error * shares[0], tossed=tossed)
    return sorted(findings, key=lambda found: -found.certified), most


def _describe_pair(pair: Pair) -> tuple[str, str]:
    return described(pair[0]), described(pair[1])


def _screen_pairs(
    source: Source,
    pairs: Sequence[Pair],
    sizes: Sizes,
    estimator: BoundEstimator,
    progress: Progress,
) -> list[Pair]:
    """Return the pairs with the largest expected bound.

    A few events are learned for each, in few releases, and counted in more that are fresh.
    """
    if len(pairs) <= TUNING.pairs_learned:
        return list(pairs)
    names, first = source.encoder.names, sizes.glimpse
    seen: dict[int, Floats] = {}
    for data in _data_sets([(None, pair) for pair in pairs]):
        progress(0.1, f"looking at {described(data)}")
        seen[id(data)] = source.rows(data, first)

    def glimpsed(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (seen[id(data)] for data in pair)
        best: dict[int, Proposal] = {}
        for proposal in proposals(rows0, rows1, names, estimator, quick=True):
            if not proposal.rare:
                best.setdefault(id(proposal.score), proposal)
        return [(proposal, pair) for proposal in [*best.values()][: TUNING.screening_events]]

    found = [one for some in in_threads(glimpsed, pairs) for one in some]
    if not found:
        return list(pairs[: TUNING.pairs_learned])
    n = sizes.screening - first
    expected = expect([one for one, _ in found], _tally_events(source, found, n), n, estimator)
    best = {id(pair): -np.inf for pair in pairs}
    for one, (_, pair) in zip(expected.tolist(), found, strict=True):
        best[id(pair)] = max(best[id(pair)], one)
    return sorted(pairs, key=lambda pair: -best[id(pair)])[: TUNING.pairs_learned]


def _learn_scores(
    source: Source,
    pairs: Sequence[Pair],
    half: int,
    estimator: BoundEstimator,
    options: AuditOptions,
) -> list[tuple[Score, Pair]]:
    """Learn scores in two halves of releases, after a look at whether these are independent."""
    names, text = source.encoder.names, source.encoder.text
    # The trees' seed is drawn from the audit's own, as scikit-learn takes no larger one.
    seed = int(np.random.default_rng(options.seed).integers(1 << 32))
    trees = seed if options.boosting else None
    seen = []
    options.progress(0.2, "learning events")
    data_sets = [data for pair in pairs for data in pair]
    drawn = draw_ahead(source.rows, [(data, half) for data in data_sets for _ in range(2)])
    for data, before, after in zip(data_sets, drawn, drawn, strict=True):
        check_independent(f"{source.name}({described(data)}, {half})", before, after)
        seen.append(np.concatenate([before, after]))

    def learn(i: int) -> list[tuple[Score, Pair]]:
        found = proposals(seen[2 * i], seen[2 * i + 1], names, estimator, text=text, trees=trees)
        best = [proposal.score for proposal in leading(found, TUNING.scores_compared)]
        return [(score, pairs[i]) for score in {id(score): score for score in best}.values()]

    return [one for best in in_threads(learn, range(len(pairs))) for one in best]


def _run_pilot(
    source: Source, learned: Sequence[tuple[Score, Pair]], sizes: Sizes, estimator: BoundEstimator
) -> tuple[list[tuple[Proposal, Pair]], Floats, int]:
    """Choose thresholds in other releases, and return the best events with their counts in some.

    The best of many thresholds looks better than it is. Where there are enough releases, the best
    are compared in some that they were not chosen on: more and more of them, and fewer events.
    """
    releases = {id(data): source.rows(data, sizes.tuning) for data in _data_sets(learned)}

    def tune_pair(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (releases[id(data)] for data in pair)
        of_pair = [score for score, other in learned if other is pair]
        return [(proposal, pair) for proposal in tune(of_pair, rows0, rows1, estimator)]

    pairs = list({id(pair): pair for _, pair in learned}.values())
    found = [one for some in in_threads(tune_pair, pairs) for one in some]
    found.sort(key=lambda one: -one[0].expected_bound)
    if sizes.racing and found:
        return _compare_events(source, found, sizes, estimator)
    best = found[:1]
    return best, np.array([one.hits for one, _ in best]).reshape(-1, 2), sizes.tuning


def _compare_events(
    source: Source, found: list[tuple[Proposal, Pair]], sizes: Sizes, estimator: BoundEstimator
) -> tuple[list[tuple[Proposal, Pair]], Floats, int]:
    """Compare events in fresh releases, and return the best, with its counts.

    The best has the largest expected bound under caution; those that may be better stay in the
    comparison. The releases that their thresholds were chosen on count too, because a rare event
    may be missing in a few fresh ones. A rare event may also be the best by chance. So the event
    with the largest expected bound under much more caution is returned as well, if it differs.
    """
    bold, careful = (
        replace(estimator, caution=-1.0),
        replace(estimator, caution=TUNING.caution_of_best),
    )
    timid = replace(estimator, caution=TUNING.caution_of_safest)
    events = [one for one, _ in found]
    chosen_by = np.array([one.hits for one in events])
    sure = expect(events, chosen_by, sizes.tuning, careful)
    order = _take_turns(sure, np.array([one.expected_bound for one in events]))
    found = [found[i] for i in _drop_equal_events(order, found, chosen_by)]
    counts, seen, planned = np.zeros((len(found), 2)), 0, sizes.racing * len(_data_sets(found))
    for most, part in TUNING.comparison_rounds:
        found, counts = found[:most], counts[:most]
        # What was planned for data sets that are left out is for the others.
        more = int(part * planned / len(_data_sets(found)))
        counts, seen = counts + _tally_events(source, found, more), seen + more
        events = [one for one, _ in found]
        every = counts + [one.hits for one in events]
        hopes = expect(events, every, seen + sizes.tuning, bold)
        sure = expect(events, counts, seen, careful)
        rivals = [i for i in _take_turns(sure, hopes) if hopes[i] >= sure.max()]
        safest = _safest_events(expect(events, counts, seen, timid), found)
        order = _drop_equal_events([rivals[0], *safest, *rivals[1:]], found, counts)
        found, counts = [found[i] for i in order], counts[order]
        if set(order) <= {rivals[0], *safest}:
            break
    of_best = [i for i, (_, pair) in enumerate(found) if pair is found[0][1]]
    safe = expect([found[i][0] for i in of_best], counts[of_best], seen, timid)
    chosen = list(dict.fromkeys([0, of_best[int(safe.argmax())]]))
    return [found[i] for i in chosen], counts[chosen], seen


def _safest_events(safe: Floats, found: Sequence[tuple[Proposal, Pair]]) -> list[int]:
    """Return the place of the event of each pair with the largest expected bound."""
    best: dict[int, int] = {}
    for i in np.argsort(-safe, kind="stable").tolist():
        best.setdefault(id(found[i][1]), i)
    return list(best.values())


def _take_turns(sure: Floats, hopes: Floats) -> list[int]:
    """Return the order of events by two estimates in turn: a cautious one and a hopeful one."""
    turns = np.column_stack([np.argsort(-x, kind="stable") for x in (sure, hopes)])
    return list(dict.fromkeys(turns.ravel().tolist()))


def _drop_equal_events(
    order: Sequence[int], found: Sequence[tuple[Proposal, Pair]], counts: Floats
) -> list[int]:
    """Leave out events that happen about as often as one before: they would certify as much."""
    kept: list[int] = []
    for i in order:
        one, pair = found[i]
        rivals = [k for k in kept if found[k][1] is pair and found[k][0].swapped == one.swapped]
        near = np.abs(counts[rivals] - counts[i]) <= TUNING.equal_counts * counts[rivals]
        if not (near & (counts[rivals] >= TUNING.least_equal_count)).all(axis=1).any():
            kept.append(i)
    return kept


def _tally_events(source: Source, found: Sequence[tuple[Proposal, Pair]], n: int) -> Floats:
    """Count events in n releases: how often each happened where it is meant to, and elsewhere."""
    hits = np.zeros((len(found), 2))
    sides = [(i, side) for i in range(len(found)) for side in (0, 1)]
    for data in _data_sets(found):
        here = [(i, side) for i, side in sides if found[i][1][side] is data]
        sizes = [source.chunk] * (n // source.chunk) + [n % source.chunk] * (n % source.chunk > 0)
        for rows in draw_ahead(source.rows, [(data, size) for size in sizes]):
            unlike, (often,), _ = fold_rows(rows)
            scores = {id(found[i][0].score): found[i][0].score for i, _ in here}
            values = dict(zip(scores, evaluate(list(scores.values()), unlike), strict=True))
            for i, side in here:
                one = found[i][0]
                hits[i, side ^ one.swapped] += often[one.holds(values[id(one.score)])].sum()
    return hits


def _data_sets(learned: Sequence[tuple[object, Pair]]) -> list[Data]:
    return list({id(data): data for _, pair in learned for data in pair}.values())


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Map in as many threads as there are cores: NumPy, which takes most time, lets others run."""
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(function, items))
