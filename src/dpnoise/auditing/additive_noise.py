"""Audits noise that is added to a number: every attack at every pair, then the best once more.

1. For each pair of values, each attack chooses an event for each of the two directions, on releases
   that are not counted.
2. Only then n fresh releases of each value are drawn, with n set in advance. All events of the pair
   are counted in them, at half of the audit's failure probability, 1 - confidence.
3. The best attacks choose events again at the best pair, on more releases.
4. The best events are counted in more fresh releases, at the other half of the failure probability
   (see `counting`).

By the union bound all certified bounds of the report hold, except with probability 1 - confidence,
however the attacks chose.

This assumes independent releases, and an audit tests for independence. It rejects a target that
repeats its releases, or whose releases depend on each other: counts of such releases prove nothing.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from dpnoise.auditing import counting, targets
from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Event, no_progress
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.attacks.generic import exponents
from dpnoise.auditing.calls import Pace, draw_fresh, seconds_queued, time_calls, with_time_limit
from dpnoise.auditing.counting import FALSE_ALARM_RATE, LEARNED, Candidate, CountSizes
from dpnoise.auditing.learned.events import propose_events
from dpnoise.auditing.learned.expected_bounds import best_proposals
from dpnoise.auditing.learned.exports import write_event
from dpnoise.auditing.neighbours import SEARCH_RELEASES, pairs_of_values, search_pairs
from dpnoise.auditing.options import AuditOptions, Progress, Watch
from dpnoise.auditing.processes import run_side_channel_checks
from dpnoise.auditing.report import Finding, Report
from dpnoise.auditing.targets.target import (
    NOISE_SIGNATURE,
    Releases,
    Target,
    TargetError,
    check_target,
)
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import format_value
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import DpnoiseError

Pair = tuple[float, float]

_PAIR_CALLS: Final = 32  # Most calls for each value in the first count, which has many pairs.
# Calls have multiples of this size: libraries draw normals in pairs or in blocks of 16.
_CALL_UNIT: Final = 16

_SEARCH_WORDS: Final = (
    "A search looked for values whose noise is unlike that of others, on a few releases of each. "
)
_METHOD: Final = (
    "Each attack chose its events on {plan.pair_size:,} releases of each value, and {events} "
    "events were counted in {plan.pair_size:,} fresh releases of each. The best attacks chose "
    "again at the best pair, on {plan.rechoosing_size:,} releases of each value. At most "
    f"{TUNING.noise_events_counted} events were counted in {{final:,}} fresh releases of each. The "
    "numbers of releases were set before drawing them. {limits} Each of the two counts has half of "
    "the audit's failure probability, which is split over its events and over the two limits of "
    "each. Releases were tested for independence, with a false alarm probability of "
    f"{FALSE_ALARM_RATE:g} for each test. Then calls were assumed independent."
)


@dataclass(frozen=True)
class AuditPlan:
    """The options of an audit, and the numbers set before the first release."""

    options: AuditOptions
    first_error: float  # Failure probability of each bound in the first count, at every pair.
    final_error: float  # Failure probability of each bound in the final count, at the best pair.
    pair_size: int  # Releases of each value of a pair, to choose events and again to count them.
    rechoosing_size: int  # Releases of each value of the best pair to choose events again.
    final_size: int  # Releases of each value of the best pair for the final count.
    may_grow: bool  # Whether `final_size` may grow if the claim needs more releases.
    pair_calls: int  # Calls for each value in the first count.
    final_calls: int  # Calls for each value in the final count.

    @classmethod
    def of(
        cls, options: AuditOptions, budget: int | None, pairs: int, attacks: int, pace: Pace
    ) -> "AuditPlan":
        """Split a budget: a quarter for all pairs, a quarter to choose again, half to count."""
        half = (1 - options.confidence) / 2
        total = budget or TUNING.noise_budget
        return cls(
            options,
            first_error=half / (2 * attacks * pairs),
            final_error=half / TUNING.noise_events_counted,
            pair_size=total // (16 * pairs),
            rechoosing_size=total // 8,
            final_size=total // 4,
            may_grow=budget is None,
            pair_calls=max(1, pace.affordable_calls(_PAIR_CALLS * pairs) // pairs),
            final_calls=pace.affordable_calls(TUNING.final_calls),
        )

    @property
    def estimator(self) -> BoundEstimator:
        """The estimator of the bounds that the final count will certify."""
        return BoundEstimator(self.options.claim, self.final_size, self.final_error, tossed=False)


# Most of its lines are documentation.
def audit_noise(  # noqa: PLR0913 - the options of an audit, which `AuditOptions` holds behind it
    target: object,
    epsilon: float | None = None,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    *,
    mu: float | None = None,
    rho: float | None = None,
    curve: bool = False,
    attacks: Iterable[str | Attack] | None = None,
    pairs: Iterable[tuple[float, float]] | str | None = None,
    one_by_one: bool = False,
    budget: int | None = None,
    confidence: float = 0.999,
    scale: float | None = None,
    time_limit: float = 60.0,
    seed: int | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Report:
    """Audit noise that is added to a number: certify a lower bound on its epsilon.

    Every attack on such noise is tried at several pairs of values. Events are chosen on some
    releases and counted in fresh ones. Exact confidence limits on the counts give the bound. All
    bounds of a report hold together, except with probability 1 - confidence. A report without
    findings proves nothing.

    Parameters
    ----------
    target
        One of:

        - a name from `dpnoise.auditing.targets.names()`, such as "numpy.laplace";
        - a function (value, n) that returns an array of n independent releases of the value;
        - "module:function", the path of such a function;
        - a command as a list of strings, which reads one value per line and writes one release per
          line.
    epsilon, delta
        The claim of the target. It is refuted if the certified bound is larger.
    sensitivity
        The largest distance of two values that the claim covers.
    mu, rho
        The claim in place of epsilon: of Gaussian or zero-concentrated differential privacy.
    curve
        Compare the target with the whole privacy curve of Gaussian noise that has this epsilon at
        this delta. The certified bound is then the mu of Gaussian differential privacy.
    attacks
        Names or attacks; by default all that apply to any target that adds noise.
    pairs
        The pairs of values to try, each at most the sensitivity apart; by default some around zero,
        fractional, negative and large. "whole" keeps only multiples of the sensitivity, for counts:
        integer noise does not hide a fraction.
    one_by_one
        Ask for one release per call, for targets whose releases of one call depend on each other.
    budget
        The number of releases to ask for; at least 1,000. The default is 480,000, or less for a
        slow target. If the claim needs more releases, the default grows by up to a factor of 16,
        while drawing takes at most two minutes. The side-channel checks ask for some thousands
        more.
    confidence
        The probability that no certified bound of the report is too large.
    scale
        The scale of the noise, if it does not follow from epsilon, delta and sensitivity.
    time_limit
        The most seconds that one call of the target may take.
    seed
        The seed of the auditor's random choices, which the target must not know. With a seed and a
        budget, the same releases give the same report; the noise of the target is not seeded.
    progress, watch
        Called with the completed fraction and a text about the current step, and with new findings.

    Examples
    --------
    >>> import numpy as np
    >>> from dpnoise.auditing import audit_noise
    >>> rng = np.random.default_rng()
    >>> def add_laplace(value, n):
    ...     return value + rng.laplace(scale=1.0, size=n)
    >>> report = audit_noise(add_laplace, epsilon=1.0, budget=24_000)
    >>> report.broken, report.epsilon_lower > 3
    (True, True)
    """
    check_target(target, NOISE_SIGNATURE)
    options = AuditOptions(
        epsilon=epsilon, delta=delta, sensitivity=sensitivity, mu=mu, rho=rho, curve=curve,
        attacks=attacks, pairs=pairs, one_by_one=one_by_one, budget=budget, confidence=confidence,
        scale=scale, time_limit=time_limit, seed=seed,
        progress=progress or no_progress, watch=watch or no_progress,
    )  # fmt: skip
    return _audit(target, options)


def _audit(target: object, options: AuditOptions) -> Report:
    """Resolve the target, try every attack, and report what was certified."""
    started = time.perf_counter()
    resolved = _resolve(target, options)
    attacks = options.attacks_on(resolved.noise)
    # A command is killed after its time limit anyway.
    by_command = isinstance(target, list | tuple)
    timed_target = resolved if by_command else with_time_limit(resolved, options.time_limit)
    timed_target = targets.one_by_one(timed_target) if options.one_by_one else timed_target
    first = (options.value_pairs or [(0.0, 1.0)])[0][0]
    # With a budget, only the time that a call takes is needed.
    pace = time_calls(lambda n: timed_target(first, n), *([1] if options.budget else []))
    budget = options.budget or pace.affordable_budget(TUNING.noise_budget)
    pairs, searched = _pairs_to_try(timed_target, options, budget, may_search=not by_command)
    plan = AuditPlan.of(options, budget, len(pairs), len(attacks), pace)
    findings, skipped, final = _find_and_count(timed_target, attacks, pairs, plan)
    options.progress(1.0, "running side-channel checks")
    events = 2 * len(attacks) * len(pairs)
    limits = counting.describe_limits(findings, options)
    method = _METHOD.format(plan=plan, events=events, final=final, limits=limits)
    observations = run_side_channel_checks(target, resolved, timed_target, options.time_limit)
    return options.report(
        target,
        resolved.name,
        resolved.package,
        started,
        noise=resolved.noise,
        scale=resolved.scale,
        sensitivity=options.sensitivity,
        findings=findings,
        observations=observations,
        skipped=skipped,
        pairs=list(pairs),
        points=[],
        method=(_SEARCH_WORDS if searched else "") + method,
        ceiling=counting.ceiling(options.claim, final, plan.final_error),
        releases=searched + 4 * len(pairs) * plan.pair_size + 2 * plan.rechoosing_size + 2 * final,
    )


def _resolve(target: object, options: AuditOptions) -> Target:
    """Make a target of the argument, with the scale that attacks assume."""
    epsilon, scale = options.epsilon, options.scale
    if epsilon is None:
        # mu and rho imply no scale: a named target is made for epsilon 1, and attacks assume this.
        epsilon, scale = 1.0, scale or TUNING.default_scale
    return targets.resolve(
        target,
        epsilon,
        options.delta,
        options.sensitivity,
        scale,
        options.time_limit,
        one_by_one=options.one_by_one,
    )


def _pairs_to_try(
    timed_target: Target, options: AuditOptions, budget: int | None, *, may_search: bool
) -> tuple[list[Pair], int]:
    """Return the pairs to try, and the number of releases that a search for them took."""
    pairs = user_pairs = options.value_pairs
    dtype = np.dtype(np.float64) if user_pairs else timed_target(0.0, 1).dtype
    if not user_pairs:
        pairs = pairs_of_values(options.sensitivity, dtype, only_multiples=options.whole)
    enough = (budget or TUNING.noise_budget) >= TUNING.least_budget_per_search * SEARCH_RELEASES
    if user_pairs or not may_search or not enough:
        return pairs, 0
    odd_pairs = search_pairs(timed_target, options.sensitivity, dtype, only_multiples=options.whole)
    return pairs + [pair for pair in odd_pairs if pair not in pairs], SEARCH_RELEASES


def _find_and_count(
    target: Target, attacks: Sequence[Attack], pairs: Sequence[Pair], plan: AuditPlan
) -> tuple[list[Finding], dict[str, str], int]:
    """Return the best finding of each attack, the skipped attacks, and the final number of trials.

    The largest bound comes first. If no attacks were requested, events are learned as well.
    """
    options = plan.options
    prepared = [replace(attack, estimator=plan.estimator) for attack in attacks]
    findings: list[Finding] = []
    candidates: list[Candidate] = []
    skipped: dict[str, str] = {}
    misfits: set[str] = set()
    for done, pair in enumerate(pairs):
        options.progress(done / (2 * len(pairs)), f"{pair[0]:g} against {pair[1]:g}")
        fitting = [attack for attack in prepared if attack.name not in misfits]
        for candidate, finding in _try_pair(target, fitting, pair, plan, skipped, misfits):
            candidates.append(candidate)
            findings.append(finding)
        # A model that fails at one pair is wrong everywhere: other pairs may not show it.
        findings = [finding for finding in findings if finding.attack not in misfits]
        options.watch(_best_of_each(findings))
    candidates = [candidate for candidate in candidates if candidate.attack not in misfits]
    final = plan.final_size
    if candidates:
        options.progress(0.5, "choosing again at the best pair")
        final_events, final = _rechoose_events(target, candidates, plan)
        options.progress(0.7, f"counting {len(final_events)} events in {2 * final:,} releases")
        findings += _count_final_events(target, final_events, final, plan)
        options.watch(_best_of_each(findings))
    best = _best_of_each(findings)
    run = {finding.attack for finding in best}
    return best, {name: why for name, why in skipped.items() if name not in run}, final


def _best_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """Return the best finding of each attack, the best of all first."""

    def rank(finding: Finding) -> tuple[float, float]:
        difference = finding.hits0 / finding.trials0 - finding.hits1 / finding.trials1
        return finding.certified, difference

    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=rank, reverse=True):
        best.setdefault(finding.attack, finding)
    return list(best.values())


def _replay(target: Target, seen: Mapping[float, Releases]) -> Target:
    """Return a target that returns the releases in `seen` if they suffice, else draws new ones."""

    def replay(value: float, n: int) -> Releases:
        return seen[value][:n] if n <= len(seen.get(value, ())) else target(value, n)

    return replace(target, release=replay)


def _try_pair(
    target: Target,
    attacks: Sequence[Attack],
    pair: Pair,
    plan: AuditPlan,
    skipped: dict[str, str],
    misfits: set[str],
) -> list[tuple[Candidate, Finding]]:
    """Choose all events of a pair of values in both directions, then count them in fresh releases.

    Attacks that cannot run are added to `skipped`; attacks whose model fails, to `misfits`.
    """
    # All attacks choose on the same releases, which are not counted.
    seen = {value: target(value, plan.pair_size) for value in pair}
    replayed = _replay(target, seen)
    candidates: list[Candidate] = []
    for attack in attacks:
        for values in (pair, pair[::-1]):
            event = _choose_event(attack, replayed, values, plan.pair_size, skipped)
            if event is not None and event.applies:
                arguments = attack.name, attack.access, event, values, values
                candidates.append(Candidate(*arguments, finder=attack))
            if event is not None and not event.fits:
                misfits.add(attack.name)
    sizes = counting.split_in_calls(plan.pair_size, plan.pair_calls, _CALL_UNIT)
    calls = {value: draw_fresh(target, value, seen[value], sizes) for value in pair}
    fresh = {value: np.concatenate(of_value) for value, of_value in calls.items()}
    for value in pair:
        call = f"{target.name}({value!r}, {plan.pair_size})"
        columns = _as_column(seen[value]), _as_column(fresh[value])
        counting.check_independent(call, *columns, call_sizes=set(sizes))
    counted = [candidate.count_in(calls) for candidate in candidates]
    return [(c, _certify(c, plan, plan.first_error, fresh)) for c in counted]


def _as_column(releases: Releases) -> Floats:
    """Return releases as float64, one in each row, without a length."""
    return releases.astype(np.float64).reshape(-1, 1)


def _choose_event(
    attack: Attack | None, target: Target, values: Pair, n: int, skipped: dict[str, str]
) -> Event | None:
    """Return the event that an attack chooses, or None and note the reason in `skipped`."""
    if attack is None:
        return None
    try:
        event = attack.event(target, *values, n)
    except TargetError:
        raise
    except DpnoiseError as error:
        skipped[attack.name] = str(error)
        return None
    if not event.applies:
        skipped[attack.name] = event.words
    return event


def _certify(
    candidate: Candidate, plan: AuditPlan, error: float, releases: Mapping[float, Releases]
) -> Finding:
    evidence = count_last_bits(*(releases[value] for value in candidate.data))
    return replace(counting.certify(candidate, plan.options, error), evidence=evidence)


def _rechoose_events(
    target: Target, tried: Sequence[Candidate], plan: AuditPlan
) -> tuple[list[Candidate], int]:
    """Choose events again on more releases, with the best attacks at the best pair.

    Return the best events, old or new, and the number of releases for the final count.
    """
    estimator = plan.estimator
    at_best_pair = _best_pair(target, tried, plan)
    pair = at_best_pair[0].data
    choosing, holding_out = plan.rechoosing_size // 3, plan.rechoosing_size // 6
    started, queued = time.perf_counter(), seconds_queued()
    seen = {value: target(value, choosing) for value in pair}
    seconds = time.perf_counter() - started - (seconds_queued() - queued)
    in_one_call = {value: [target(value, holding_out)] for value in pair}
    candidates: list[Candidate] = []
    for candidate in at_best_pair:
        candidates.append(candidate)
        event = _choose_event(candidate.finder, _replay(target, seen), candidate.data, choosing, {})
        if event is not None and event.applies:
            candidates.append(replace(candidate, event=event))
    if plan.options.attacks is None:
        candidates += _learn_events(pair, seen, estimator)
    measured = [candidate.count_in(in_one_call) for candidate in candidates]
    measured.sort(key=lambda candidate: -candidate.expected_bound(estimator))
    best = measured[: TUNING.noise_events_counted]
    if not plan.may_grow:
        return best, plan.final_size
    in_time = TUNING.noise_growth_seconds / max(seconds / choosing, 1e-9)
    return best, counting.needed_trials(estimator, best, plan.final_size, in_time)


def _best_pair(target: Target, tried: Sequence[Candidate], plan: AuditPlan) -> list[Candidate]:
    """Compare the best pairs in more releases, and return the best events of the best pair.

    The first pair is always compared, because its values differ by the whole sensitivity.
    """

    def by_largest_bound(candidate: Candidate) -> float:
        return -candidate.expected_bound(plan.estimator)

    ranked = sorted(tried, key=by_largest_bound)
    pairs = list(dict.fromkeys(tuple(sorted(candidate.data)) for candidate in ranked))
    first = tuple(sorted(tried[0].data))
    compared = TUNING.noise_pairs_compared
    recounted: list[Candidate] = []
    for pair in dict.fromkeys([*pairs[: compared - 1], first]):
        size = plan.rechoosing_size // (2 * compared)
        releases = {value: [target(value, size)] for value in pair}
        at_pair = [candidate for candidate in ranked if set(candidate.data) == set(pair)]
        for candidate in at_pair[: TUNING.candidates_counted_again]:
            fresh = candidate.count_in(releases)
            counts = [a + b for a, b in zip(candidate.counts, fresh.counts, strict=True)]
            recounted.append(replace(candidate, counts=(counts[0], counts[1])))
    recounted.sort(key=by_largest_bound)
    best = set(recounted[0].data)
    return [candidate for candidate in recounted if set(candidate.data) == best]


def _learn_events(
    pair: Pair, seen: Mapping[float, Releases], estimator: BoundEstimator
) -> list[Candidate]:
    """Learn events from the releases only, without assuming that noise was added."""
    rows0, rows1 = (_as_rows(seen[value]) for value in pair)
    cautious = replace(estimator, chance=TUNING.chance_trials_of_many)
    learned = propose_events(rows0, rows1, ["its length", "y"], cautious)
    events = []
    for proposal in best_proposals(learned, TUNING.candidates_counted_again):
        values = pair[::-1] if proposal.swapped else pair
        source = write_event(proposal, _decode_rows)
        events.append((_adapt_to_numbers(replace(proposal.event, source=source)), values))
    for values in (pair, pair[::-1]):
        # Whatever the noise, a target may release the value itself.
        is_value = partial(np.equal, values[0])
        words = f"y is exactly {format_value(values[0])}"
        events.append((Event(words, is_value, source=f"number(y, 0) == {values[0]!r}"), values))
    return [Candidate(LEARNED, OUTPUTS, event, values, values) for event, values in events]


def _as_rows(releases: Releases) -> Floats:
    """Return rows of (length, value), as learned events take them; the length of a number is 1."""
    return np.column_stack([np.ones(len(releases)), releases])


def _adapt_to_numbers(event: Event) -> Event:
    """Turn an event of such rows into an event of numbers."""
    return replace(event, holds=lambda y: event.holds(_as_rows(y)))


def _decode_rows(rows: Floats) -> list[list[object]]:
    """Return each release of such rows as a list of one part."""
    return [[x] for x in rows[:, 1].tolist()]


def _count_final_events(
    target: Target, candidates: Sequence[Candidate], trials: int, plan: AuditPlan
) -> list[Finding]:
    """Count the final events in fresh releases of the best pair."""
    seen: dict[float, list[Releases]] = {value: [] for value in candidates[0].data}

    def draw(value: float, n: int) -> Releases:
        releases = target(value, n)
        if sum(map(len, seen[value])) < plan.pair_size:  # Evidence for the report.
            seen[value].append(releases)
        return releases

    sizes = CountSizes(trials, TUNING.noise_chunk, plan.final_calls, _CALL_UNIT)
    counted = counting.count_events(candidates, draw, sizes, target.name)
    evidence = {value: np.concatenate(releases) for value, releases in seen.items()}
    return [_certify(candidate, plan, plan.final_error, evidence) for candidate in counted]


def count_last_bits(y0: Releases, y1: Releases) -> dict[str, list[int]]:
    """Count the exponents of the last set bit at both values."""
    last0, last1 = (exponents(y)[1] for y in (y0, y1))
    shown = np.arange(min(last0.min(), last1.min()), max(last0.max(), last1.max()) + 1)
    at0, at1 = (np.bincount(last - shown[0], minlength=len(shown)) for last in (last0, last1))
    return {"exponents": shown.tolist(), "at0": at0.tolist(), "at1": at1.tolist()}
