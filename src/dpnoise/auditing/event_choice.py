"""Learns events from outputs at the best pairs, and compares them in a pilot."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final

import numpy as np

from dpnoise.auditing import counting
from dpnoise.auditing.attacks.base import OUTPUTS, Event, EventCount
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.counting import LEARNED, Candidate
from dpnoise.auditing.learned import expected_bounds
from dpnoise.auditing.learned.events import propose_events, propose_half, tune_thresholds
from dpnoise.auditing.learned.expected_bounds import Proposal
from dpnoise.auditing.learned.exports import write_event
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.output_parts import printed_number
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.screening import (
    distinct_data_sets,
    map_in_threads,
    screen_pairs,
    search_data_sets,
    tally_events,
)
from dpnoise.auditing.targets.mechanisms import Pair
from dpnoise.auditing.tuning import TUNING, Sizes
from dpnoise.auditing.wording import describe_data, describe_pair
from dpnoise.core.arrays import Floats

_CONSTANT: Final = Event(
    "never: all outputs were alike", lambda y: np.zeros(len(y), np.bool_), source="False"
)
_COMPARED_ROWS: Final = 64  # Rows that show which part varies.


@dataclass(frozen=True)
class ChosenEvents:
    """The events that will be counted, with their counts in the pilot."""

    candidates: list[Candidate]
    proposals: list[Proposal]  # The candidates' scores and thresholds; none if nothing was learned.
    sizes: Sizes
    seconds_each: float  # Seconds per release of the pilot.
    tried: int  # Number of pairs that were compared.
    pairs: int  # Number of pairs for which events were learned.
    scores: int  # Number of compared scores.


class Stopwatch:
    """Measures the time of an audit's steps, as far as a busy machine does not change it.

    That is the processor time, or the time that the target takes, which may wait for others.
    """

    def __init__(self, source: OutputSource) -> None:
        self._source, self._drawn, self._started = source, source.drawn, time.process_time()

    def drawn(self) -> int:
        """Return how many releases were drawn, at least 1."""
        return max(1, self._source.drawn - self._drawn)

    def seconds(self) -> float:
        """Return the seconds since it was made."""
        waited = self.drawn() * self._source.seconds_per_release()
        return max(time.process_time() - self._started, waited)


def choose_events(
    source: OutputSource, pairs: Sequence[Pair], sizes: Sizes, options: AuditOptions
) -> ChosenEvents:
    """Screen pairs, learn events for the best, and compare these in a pilot."""
    error, chance = 1 - options.confidence, TUNING.chance_trials_of_many
    estimator = BoundEstimator(options.claim, sizes.final, error, chance)
    best_pairs = screen_pairs(source, pairs, sizes, estimator, options.progress)
    tried = len(pairs)
    if options.by_rows:
        best_pairs, more = search_data_sets(source, best_pairs, sizes, estimator, options.progress)
        tried += more
    learned = _learn_scores(source, best_pairs, sizes.learning // 2, estimator, options)
    options.progress(0.4, "comparing the best events")
    watch = Stopwatch(source)
    best, counts, trials, sizes = _run_pilot(source, learned, sizes, estimator)
    seen = [hits.sum() + sum(p.hits) for hits, (p, _) in zip(counts, best, strict=True)]
    told = [i for i, hits in enumerate(seen) if 0 < hits < 2 * (trials + sizes.tuning)]
    best, counts = [best[i] for i in told], counts[told]
    counted = [
        _count_in_pilot(proposal, hits, trials, sizes)
        for (proposal, _), hits in zip(best, counts, strict=True)
    ]
    events = [
        (_export_event(proposal, source), pair[::-1] if proposal.swapped else pair)
        for proposal, pair in best
    ]
    if not events:
        rows = source.rows(pairs[0][0], _COMPARED_ROWS)
        half = propose_half(rows, source.names, source.encoder.text)
        event = _CONSTANT if half is None else _export_event(half, source)
        events, counted = [(event, pairs[0])], [(EventCount(0, trials),) * 2]
    candidates = [
        Candidate(LEARNED, OUTPUTS, event, pair, describe_pair(pair), at_both)
        for (event, pair), at_both in zip(events, counted, strict=True)
    ]
    seconds_each = watch.seconds() / watch.drawn()
    proposals = [proposal for proposal, _ in best]
    return ChosenEvents(
        candidates, proposals, sizes, seconds_each, tried, len(best_pairs), len(learned)
    )


def _count_in_pilot(
    proposal: Proposal, hits: Floats, trials: int, sizes: Sizes
) -> tuple[EventCount, EventCount]:
    """Return the counts of an event, of rare leaks also where their threshold was chosen.

    Few releases do not show how rare a leak is, and hardly any of its hits are due to that choice.
    """
    if sizes.comparing and proposal.score.is_leaks:
        hits, trials = hits + proposal.hits, trials + sizes.tuning
    return EventCount(int(hits[0]), trials), EventCount(int(hits[1]), trials)


def grown_budget(chosen: ChosenEvents, seconds: float, options: AuditOptions) -> int | None:
    """Return a larger budget to learn, compare and count events in again, or None.

    It is for a fast mechanism, if no event of the first search is expected to refute the claim: a
    leak may be too rare for the releases in which events were learned. `seconds` is the time of the
    first search.
    """
    estimator = BoundEstimator(options.claim, chosen.sizes.final, 1 - options.confidence)
    if max(c.expected_bound(estimator) for c in chosen.candidates) > options.claim.value:
        return None
    left = TUNING.mechanism_growth_seconds - TUNING.growth_of_search * seconds
    default = TUNING.mechanism_budget
    budget = min(TUNING.budget_growth * default, int(left / max(chosen.seconds_each, 1e-9)))
    return budget if budget >= 2 * default else None


def _export_event(proposal: Proposal, source: OutputSource) -> Event:
    """Return the event with its text in Python, which names the caller's views."""
    encoder, views = source.encoder, [getattr(f, "__name__", repr(f)) for f in source.views]
    codes = encoder.codes, encoder.other_code
    text = write_event(proposal, encoder.decode, *codes, encoder.form_index, views)
    own = tuple(view for view in source.views if view is not printed_number)
    return replace(proposal.event, source=text, functions=own)


def _learn_scores(
    source: OutputSource,
    pairs: Sequence[Pair],
    half: int,
    estimator: BoundEstimator,
    options: AuditOptions,
) -> list[tuple[Proposal, Pair]]:
    """Learn scores in two halves of releases, after a test of their independence.

    Return the best event of each, the best ones of a pair first.
    """
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

    def learn(i: int) -> list[tuple[Proposal, Pair]]:
        outputs = seen[2 * i], seen[2 * i + 1]
        events = propose_events(
            *outputs, names, estimator, text=text, public=public, tree_seed=tree_seed
        )
        best: dict[int, Proposal] = {}
        for event in expected_bounds.best_proposals(events, TUNING.scores_compared):
            best.setdefault(id(event.score), event)
        return [(event, pairs[i]) for event in best.values()]

    return map_in_threads(learn, range(len(pairs)))


def _run_pilot(
    source: OutputSource,
    learned: Sequence[tuple[Proposal, Pair]],
    sizes: Sizes,
    estimator: BoundEstimator,
) -> tuple[list[tuple[Proposal, Pair]], Floats, int, Sizes]:
    """Choose thresholds on fresh releases; return the best events, their counts and the trials.

    The best of many thresholds is partly luck. If there are enough releases, the best events are
    compared again on fresh ones, in rounds with fewer events and more releases. The last result has
    the sizes of the pilot, which is shorter if the best event is clear.
    """
    tuned, sizes = _choose_thresholds(source, learned, sizes, estimator)
    if not tuned:
        return [], np.zeros((0, 2)), sizes.tuning, sizes
    if sizes.comparing:
        return *_compare_events(source, tuned, sizes, estimator), sizes
    # The events are chosen on the counts that their thresholds were chosen on.
    hits = np.array([event.hits for event, _ in tuned])
    best, counts = _choose_counted(tuned, hits, sizes.tuning, 0, estimator)
    return best, counts, sizes.tuning, sizes


def _choose_thresholds(
    source: OutputSource,
    learned: Sequence[tuple[Proposal, Pair]],
    sizes: Sizes,
    estimator: BoundEstimator,
) -> tuple[list[tuple[Proposal, Pair]], Sizes]:
    """Choose thresholds on fresh releases; return the events, the best first, and the sizes.

    If a part of these releases makes the best event clear, the others are for the final count.
    """
    pairs = list({id(pair): pair for _, pair in learned}.values())
    data_sets, drawn = distinct_data_sets(learned), 0
    releases: dict[int, Floats] = {}

    def tune_pair(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (releases[id(data)] for data in pair)
        scores = [event.score for event, other in learned if other is pair]
        return [(event, pair) for event in tune_thresholds(scores, rows0, rows1, estimator)]

    tuned: list[tuple[Proposal, Pair]] = []
    for n in _stages(learned, sizes.tuning):
        for data in data_sets:
            more = source.rows(data, n - drawn)
            releases[id(data)] = np.concatenate([releases[id(data)], more]) if drawn else more
        drawn = n
        tuned = map_in_threads(tune_pair, pairs)
        tuned.sort(key=lambda item: -item[0].expected_bound)
        if _is_clear([event for event, _ in tuned], n, estimator):
            saved = (sizes.tuning + sizes.comparing - n) * len(pairs)
            return tuned, replace(sizes, tuning=n, comparing=0, final=sizes.final + saved)
    return tuned, sizes


def _stages(learned: Sequence[tuple[Proposal, Pair]], tuning: int) -> list[int]:
    """Return the numbers of releases that may make the best event clear, up to `tuning`."""
    stages = {tuning}
    if any(event.is_normal for event, _ in learned):
        few = max(TUNING.least_normal_pilot, tuning // TUNING.normal_pilot_part)
        stages.add(min(tuning, few))
    if any(event.score.is_leaks for event, _ in learned):
        stages.add(tuning // 2)
    return sorted(stages)


def _is_clear(events: Sequence[Proposal], n: int, estimator: BoundEstimator) -> bool:
    """Return whether the best event is clear from the counts of n releases.

    It is of rare leaks, and no other may be better; or of a normal score, whose law gives the rates
    of rare events, no rare leaks may be better, and no others seem much better.
    """
    if not events:
        return False
    hits = np.array([event.hits for event in events])
    low, usual, high = (
        expected_bounds.reestimate(
            events, hits, n, replace(estimator, chance=TUNING.chance_trials, caution=caution)
        )
        for caution in (TUNING.discount_of_best, 0.0, -1.0)
    )
    best = int(low.argmax())
    are_leaks = np.array([event.score.is_leaks for event in events])
    are_normal = np.array([event.is_normal for event in events])
    if are_leaks[best]:
        return bool((high[~are_leaks] < low[best]).all())
    are_others = ~are_leaks & ~are_normal
    others_are_worse = (usual[are_others] < TUNING.bold_factor * low[best]).all()
    return bool(are_normal[best] and others_are_worse and (high[are_leaks] < low[best]).all())


def _best_leaks(
    events: Sequence[Proposal], hits: Floats, trials: int, estimator: BoundEstimator
) -> list[int]:
    """Return the index of the best event of rare leaks, if it may be better than all others.

    `hits` are counts of the events in fresh releases. Only a few events are of rare leaks, so that
    hardly any of their hits are due to the choice.
    """
    leaks = [i for i, event in enumerate(events) if event.score.is_leaks]
    others = [i for i, event in enumerate(events) if not event.score.is_leaks]
    if not leaks:
        return []
    fixed = replace(estimator, chance=TUNING.chance_trials, caution=0.0)
    bounds = expected_bounds.reestimate(events, hits, trials, fixed)
    best = leaks[int(bounds[leaks].argmax())]
    return [best] if not others or bounds[best] > bounds[others].max() else []


def _compare_events(
    source: OutputSource,
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
    left = _order_for_comparison(proposed, sizes.tuning, estimator)
    counts, trials = np.zeros((len(left), 2)), 0
    planned = sizes.comparing * len(distinct_data_sets(left))
    for most, fraction in TUNING.comparison_rounds:
        left, counts = left[:most], counts[:most]
        # The remaining data sets share the releases that were planned for dropped ones.
        fresh = int(fraction * planned / len(distinct_data_sets(left)))
        counts, trials = counts + tally_events(source, left, fresh), trials + fresh
        kept, rivals = _choose_round(left, counts, trials, sizes.tuning, estimator)
        order = _drop_equal_events([*kept, *rivals], left, counts)
        left, counts = [left[i] for i in order], counts[order]
        if set(order) <= set(kept):
            break
    return *_choose_counted(left, counts, trials, sizes.tuning, estimator), trials


def _order_for_comparison(
    proposed: list[tuple[Proposal, Pair]], tuning: int, estimator: BoundEstimator
) -> list[tuple[Proposal, Pair]]:
    """Return events without equal ones, the best by their counts in the `tuning` releases first."""
    events = [event for event, _ in proposed]
    counts = np.array([event.hits for event in events])
    low, high = (
        expected_bounds.reestimate(events, counts, tuning, replace(estimator, caution=caution))
        for caution in (TUNING.discount_of_best, -1.0)
    )
    order = _order_by_turns(low, np.array([event.expected_bound for event in events]), high)
    leaks = _best_leaks(events, counts, tuning, estimator)
    order = list(dict.fromkeys([*leaks, *order]))
    return [proposed[i] for i in _drop_equal_events(order, proposed, counts)]


def _choose_round(
    compared: list[tuple[Proposal, Pair]],
    counts: Floats,
    trials: int,
    tuning: int,
    estimator: BoundEstimator,
) -> tuple[list[int], list[int]]:
    """Return the events that are kept after a round, the best first, and their rivals."""
    events = [event for event, _ in compared]
    low, lowest = (
        expected_bounds.reestimate(events, counts, trials, replace(estimator, caution=caution))
        for caution in (TUNING.discount_of_best, TUNING.discount_of_safest)
    )
    all_counts, optimistic = counts + [e.hits for e in events], replace(estimator, caution=-1.0)
    high = expected_bounds.reestimate(events, all_counts, trials + tuning, optimistic)
    best = int(low.argmax())  # It stays, even if the other releases speak against it.
    rivals = [i for i in _order_by_turns(low, high) if i == best or high[i] >= low[best]]
    safest: dict[int, int] = {}  # For each pair, the event with the largest of these bounds.
    for i in np.argsort(-lowest, kind="stable").tolist():
        safest.setdefault(id(compared[i][1]), i)
    leaks = _best_leaks(events, all_counts, trials + tuning, estimator)
    return [rivals[0], *safest.values(), *leaks], rivals[1:]


def _choose_counted(
    compared: list[tuple[Proposal, Pair]],
    counts: Floats,
    trials: int,
    tuning: int,
    estimator: BoundEstimator,
) -> tuple[list[tuple[Proposal, Pair]], Floats]:
    """Return the events of the first one's pair that are counted, with their counts.

    These are the first event; the safest one, or a much bolder one if the first is the safest; and
    rare leaks. Bold and rare ones are also judged on the `tuning` releases, of which `counts` does
    not have the hits; 0 if it does.
    """
    of_pair = [i for i, (_, pair) in enumerate(compared) if pair is compared[0][1]]
    events = [compared[i][0] for i in of_pair]
    most_cautious = replace(estimator, caution=TUNING.discount_of_safest)
    lowest = expected_bounds.reestimate(events, counts[of_pair], trials, most_cautious)
    chosen = [0, int(lowest.argmax())]
    all_counts = counts[of_pair] + np.array([event.hits for event in events]) * (tuning > 0)
    if not chosen[1]:
        optimistic = replace(estimator, caution=-1.0)
        high = expected_bounds.reestimate(events, all_counts, trials + tuning, optimistic)
        chosen += [int(high.argmax())] * bool(high.max() > TUNING.bold_factor * max(high[0], 0.0))
    chosen += _best_leaks(events, all_counts, trials + tuning, estimator)
    kept = [of_pair[i] for i in dict.fromkeys(chosen)]
    return [compared[i] for i in kept], counts[kept]


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
