"""Audits noise that is added to a number: every attack at every pair, then the best once more.

For each pair of values, each attack sees releases of its own and fixes an event for each of the two
directions. Then, and only then, n fresh releases of each value are drawn, n fixed in advance, and
all events of the pair are counted in them, at half of the audit's error. The attacks that did best
at the best pair then choose again, on more releases, and the best events are counted in more fresh
ones, at the other half of the error (see `counting`). By the union bound, no certified bound of the
report is too large except with probability 1 - confidence, however the attacks chose.

All of it holds for independent releases. They are tested for that, and a target that gives the same
ones twice, or ones that depend on each other, is refused: its noise is private or not, but nothing
can be counted in it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

import numpy as np

from dpnoise.auditing import targets
from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Count, Event, count, never
from dpnoise.auditing.attacks.bounds import Claim, Judge
from dpnoise.auditing.attacks.generic import exponents
from dpnoise.auditing.calls import affordable_budget, draw_fresh, with_time_limit
from dpnoise.auditing.counting import (
    ERROR,
    Candidate,
    ceiling,
    certify,
    check_independent,
    count_events,
    most_trials,
    needed_trials,
)
from dpnoise.auditing.learned.events import proposals
from dpnoise.auditing.learned.expected_bounds import leading
from dpnoise.auditing.neighbours import SEARCH, pairs_of_values, search
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.processes import observations
from dpnoise.auditing.report import Finding, Report, versions
from dpnoise.auditing.targets.target import Releases, Target, TargetError
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import ArgumentError, DpnoiseError

Pair = tuple[float, float]

_SEARCH_WORDS: Final = (
    "A search looked for values whose noise is unlike that of others, on a few releases of each. "
)
_METHOD: Final = (
    "Each attack fixed its events on {size:,} releases of each value, and {events} events were "
    "counted in {size:,} fresh ones of each. The best chose again at the best pair, on {again:,} "
    "of each, and at most {last} events were counted in {final:,} fresh ones of each. All numbers "
    "were fixed before the releases that they count. Limits are exact (Clopper and Pearson); half "
    "of the audit's error is split over the first events and half over the last, and over the two "
    "limits of each. Releases were tested for independence, at an error of {error:g} for each "
    "test, and then taken to be independent."
)


@dataclass(frozen=True)
class Plan:
    """What is claimed, and what is fixed before the first release."""

    claim: Claim
    confidence: float
    first_error: float  # Of each bound at every pair.
    last_error: float  # Of each bound at the best pair.
    size: int  # Releases of each value of a pair: this many to choose on, as many to measure.
    again: int  # Releases of each value of the best pair to choose on once more.
    final: int  # Releases of each value of the best pair to measure.
    fixed: bool  # Whether `final` is the most that may be drawn.

    @classmethod
    def of(cls, options: AuditOptions, budget: int | None, pairs: int, attacks: int) -> "Plan":
        """Split a budget: a quarter for all pairs, a quarter to choose again, half to count."""
        half = (1 - options.confidence) / 2
        total = budget or TUNING.noise_budget
        return cls(
            claim=options.claim,
            confidence=options.confidence,
            first_error=half / (2 * attacks * pairs),
            last_error=half / TUNING.noise_events_counted,
            size=total // (16 * pairs),
            again=total // 8,
            final=total // 4,
            fixed=budget is not None,
        )

    @property
    def judge(self) -> Judge:
        """How the last events will be judged."""
        return Judge(self.claim, self.final, self.last_error)


@dataclass(frozen=True)
class _Tried:
    """An event of an attack at two values, and how often it happened in fresh releases."""

    attack: Attack
    event: Event
    values: Pair
    at0: Count
    at1: Count

    def promise(self, judge: Judge) -> float:
        n, k = min(self.at0.trials, self.at1.trials), self.event.releases
        hits0, hits1 = (np.array([at.hits]) for at in (self.at0, self.at1))
        return float(judge.promises(hits0, hits1, n, k)[0])

    @property
    def candidate(self) -> Candidate:
        name, access = self.attack.name, self.attack.access
        return Candidate(name, access, self.event, self.values, self.values)


def audit_added_noise(target: object, options: AuditOptions) -> Report:
    """Audit noise that is added to a number: see dpnoise.audit."""
    if options.boosting:
        raise ArgumentError("boosting is for mechanisms of any kind: give neighbours.")
    started = time.perf_counter()
    resolved = _resolve(target, options)
    attacks = options.attacks_on(resolved.noise)
    caller = _caller(target, resolved, options)
    pairs, budget, searched = _pairs_and_budget(target, caller, options)
    plan = Plan.of(options, budget, len(pairs), len(attacks))
    findings, skipped, final = _find_and_count(caller, attacks, pairs, plan, options)
    options.progress(1.0, "looking at forks, restarts and time")
    return Report(
        target=resolved.name,
        version=resolved.version,
        noise=resolved.noise,
        scale=resolved.scale,
        kind=options.claim.kind,
        claimed=options.claim.value,
        delta=options.delta,
        sensitivity=options.sensitivity,
        confidence=options.confidence,
        findings=findings,
        observations=observations(target, resolved, caller, options.time_limit),
        skipped=skipped,
        pairs=list(pairs),
        method=_describe_method(plan, 2 * len(attacks) * len(pairs), final, searched),
        ceiling=ceiling(options.claim, final, plan.last_error),
        releases=searched + 4 * len(pairs) * plan.size + 2 * plan.again + 2 * final,
        seconds=time.perf_counter() - started,
        command=options.command(target, resolved.name),
        versions=versions(resolved.package, resolved.version),
    )


def _resolve(target: object, options: AuditOptions) -> Target:
    """Make a target of what was given, with the scale that attacks are told."""
    epsilon, scale = options.epsilon, options.scale
    if epsilon is None:
        epsilon, scale = 1.0, scale or TUNING.default_scale
    return targets.resolve(
        target, epsilon, options.delta, options.sensitivity, scale, options.time_limit
    )


def _caller(target: object, resolved: Target, options: AuditOptions) -> Target:
    """Give calls a time limit: a command has it already, and is ended by it."""
    by_command = isinstance(target, list | tuple)
    caller = resolved if by_command else with_time_limit(resolved, options.time_limit)
    return targets.one_by_one(caller) if options.one_by_one else caller


def _pairs_and_budget(
    target: object, caller: Target, options: AuditOptions
) -> tuple[list[Pair], int | None, int]:
    """Return the pairs to try, how many releases to ask for, and how many a search for pairs took.

    No budget means the default one, which may be raised.
    """
    pairs = given = options.value_pairs
    if not given:
        dtype = caller(0.0, 1).dtype
        pairs = pairs_of_values(options.sensitivity, dtype, whole=options.whole)
    budget = options.budget
    if budget is None:
        least, default = TUNING.least_budget, TUNING.noise_budget
        budget = affordable_budget(lambda n: caller(pairs[0][0], n), least, default)
    enough = (budget or TUNING.noise_budget) >= TUNING.least_budget_per_search * SEARCH
    if given or isinstance(target, list | tuple) or not enough:
        return pairs, budget, 0
    dtype = caller(0.0, 1).dtype
    found = search(caller, options.sensitivity, dtype, whole=options.whole)
    return pairs + [pair for pair in found if pair not in pairs], budget, SEARCH


def _describe_method(plan: Plan, events: int, final: int, searched: int) -> str:
    last = TUNING.noise_events_counted
    return (_SEARCH_WORDS if searched else "") + _METHOD.format(
        size=plan.size, events=events, again=plan.again, final=final, last=last, error=ERROR
    )


def _find_and_count(
    target: Target,
    attacks: Sequence[Attack],
    pairs: Sequence[Pair],
    plan: Plan,
    options: AuditOptions,
) -> tuple[list[Finding], dict[str, str], int]:
    """Return the best finding of each attack, what was skipped, and how many were counted last.

    The largest bound is first. Where no attacks were asked for, events are learned as well.
    """
    knowing = [_with_judge(attack, plan.judge) for attack in attacks]
    best: dict[str, Finding] = {}
    tried: list[_Tried] = []
    skipped: dict[str, str] = {}
    misfits: set[str] = set()
    for done, pair in enumerate(pairs):
        options.progress(done / (2 * len(pairs)), f"{pair[0]:g} against {pair[1]:g}")
        for found, certified in _try_pair(target, knowing, pair, plan, skipped, misfits):
            tried.append(found)
            _keep(best, certified)
        # A model that is wrong at one pair is wrong: at others it may only not show.
        for name in misfits:
            best.pop(name, None)
        options.watch(_in_order(best))
    fitting = [found for found in tried if found.attack.name not in misfits]
    final = plan.final
    if fitting:
        options.progress(0.5, "choosing again at the best pair")
        learning = options.attacks is None
        candidates, final = _choose_again(target, fitting, plan, learning=learning)
        options.progress(0.7, f"counting {len(candidates)} events in {2 * final:,} releases")
        for certified in _count_last(target, candidates, final, plan):
            _keep(best, certified)
        options.watch(_in_order(best))
    not_run = {name: why for name, why in skipped.items() if name not in best}
    return _in_order(best), not_run, final


def _with_judge(attack: Attack, judge: Judge) -> Attack:
    """Tell an attack that can use it how its events will be judged."""
    if any(field.name == "judge" for field in fields(attack)):
        return replace(attack, judge=judge)  # type: ignore[call-arg]
    return attack


def _keep(best: dict[str, Finding], found: Finding) -> None:
    if found.attack not in best or _rank(found) > _rank(best[found.attack]):
        best[found.attack] = found


def _in_order(best: dict[str, Finding]) -> list[Finding]:
    return sorted(best.values(), key=_rank, reverse=True)


def _rank(found: Finding) -> tuple[float, float]:
    return found.certified, found.hits0 / found.trials0 - found.hits1 / found.trials1


def _replay(target: Target, seen: dict[float, Releases]) -> Target:
    """Return a target that gives what was seen before it draws anything new."""

    def replay(value: float, n: int) -> Releases:
        return seen[value][:n] if n <= len(seen.get(value, ())) else target(value, n)

    return replace(target, release=replay)


def _try_pair(
    target: Target,
    attacks: Sequence[Attack],
    pair: Pair,
    plan: Plan,
    skipped: dict[str, str],
    misfits: set[str],
) -> list[tuple[_Tried, Finding]]:
    """Fix all events of a pair of values in both directions, then count them in fresh releases."""
    # What an attack may see is drawn once, and given to all: they choose, they do not measure.
    seen = {value: target(value, plan.size) for value in pair}
    replayed = _replay(target, seen)
    events: list[tuple[Attack, Event, Pair]] = []
    for attack in (attack for attack in attacks if attack.name not in misfits):
        for values in (pair, pair[::-1]):
            event = _fix_event(attack, replayed, values, plan.size, skipped)
            if event is not None and event.applies:
                events.append((attack, event, values))
            if event is not None and not event.fits:
                misfits.add(attack.name)
    again = {value: draw_fresh(target, value, seen[value]) for value in pair}
    for value in pair:
        call = f"{target.name}({value!r}, {plan.size})"
        check_independent(call, _rows(seen[value]), _rows(again[value]))
    result = []
    for attack, event, values in events:
        at0, at1 = (count(event, again[value]) for value in values)
        found = _Tried(attack, event, values, at0, at1)
        evidence = last_bits(*(again[value] for value in values))
        result.append((found, _certify(found, plan, plan.first_error, evidence)))
    return result


def _rows(releases: Releases) -> Floats:
    return releases.astype(np.float64).reshape(-1, 1)


def _fix_event(
    attack: Attack, target: Target, values: Pair, n: int, skipped: dict[str, str]
) -> Event | None:
    """Return an attack's event, or note why there is none."""
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


def _certify(found: _Tried, plan: Plan, error: float, evidence: dict[str, list[int]]) -> Finding:
    tally = found.at0, found.at1
    return certify(found.candidate, tally, plan.claim, error, plan.confidence, evidence=evidence)


def _choose_again(
    target: Target, tried: Sequence[_Tried], plan: Plan, *, learning: bool
) -> tuple[list[_Tried], int]:
    """Let the best attacks at the best pair choose on more releases, and return the best events.

    With them comes the number of releases that they are to be counted in.
    """
    judge = plan.judge
    best_there = _best_pair(target, tried, plan)
    pair = best_there[0].values
    choosing, holding = plan.again // 3, plan.again // 6
    started = time.perf_counter()
    seen = {value: target(value, choosing) for value in pair}
    seconds_each = (time.perf_counter() - started) / (2 * choosing)
    held = {value: target(value, holding) for value in pair}
    measured: list[_Tried] = []
    for found in best_there:
        event = _fix_event(found.attack, _replay(target, seen), found.values, choosing, {})
        events = [found.event, *([event] if event is not None and event.applies else [])]
        measured += [_measure(found, event, held) for event in events]
    if learning:
        learned = _learn_events(pair, seen, judge)
        measured += [_measure(found, found.event, held) for found in learned]
    best = sorted(measured, key=lambda found: -found.promise(judge))[: TUNING.noise_events_counted]
    if plan.fixed:
        return best, plan.final

    def promise(trials: int, caution: float) -> float:
        guess = replace(judge, trials=trials, caution=caution)
        return max(found.promise(guess) for found in best)

    most = most_trials(plan.final, seconds_each, TUNING.noise_growth_seconds)
    return best, needed_trials(plan.claim, plan.final, plan.last_error, promise, most)


def _best_pair(target: Target, tried: Sequence[_Tried], plan: Plan) -> list[_Tried]:
    """Compare the best pairs in more releases, and return the best events of the best of them.

    The first pair, whose values are as far apart as they may be, is always among them.
    """
    ranked = sorted(tried, key=lambda found: -found.promise(plan.judge))
    pairs = list(dict.fromkeys(tuple(sorted(found.values)) for found in ranked))
    first = tuple(sorted(tried[0].values))
    compared = TUNING.noise_pairs_compared
    again: list[_Tried] = []
    for pair in dict.fromkeys([*pairs[: compared - 1], first]):
        releases = {value: target(value, plan.again // (2 * compared)) for value in pair}
        at_pair = [found for found in ranked if set(found.values) == set(pair)]
        for found in at_pair[: TUNING.attacks_choosing_again]:
            more = _measure(found, found.event, releases)
            again.append(replace(found, at0=found.at0 + more.at0, at1=found.at1 + more.at1))
    again.sort(key=lambda found: -found.promise(plan.judge))
    best = set(again[0].values)
    return [found for found in again if set(found.values) == best]


def _learn_events(pair: Pair, seen: dict[float, Releases], judge: Judge) -> list[_Tried]:
    """Return events that were learned without knowing that noise was added."""
    rows = [np.column_stack([np.ones(len(seen[value])), seen[value]]) for value in pair]
    wary = replace(judge, chance=TUNING.chance_of_many)
    found = proposals(rows[0], rows[1], ["its length", "y"], wary)
    events = [
        (Event(one.event.words, _of_numbers(one.event)), pair[::-1] if one.swapped else pair)
        for one in leading(found, TUNING.attacks_choosing_again)
    ]
    # Whatever the noise, a target may let the value itself through.
    events += [
        (Event(f"y is exactly {values[0]:g}", partial(np.equal, values[0])), values)
        for values in (pair, pair[::-1])
    ]
    unseen = Count(0, 1)
    return [_Tried(Likelihood(), event, values, unseen, unseen) for event, values in events]


def _of_numbers(event: Event) -> Callable[[Releases], Flags]:
    """Return an event of rows as one of numbers."""
    return lambda y: event.holds(np.column_stack([np.ones(len(y)), y]))


@dataclass(frozen=True)
class Likelihood(Attack):
    """The name under which learned events stand in a report; it finds none by itself."""

    name = "likelihood"
    access = OUTPUTS

    def find(self, *_: object, **__: object) -> Event:
        """Find nothing: events are learned where the releases are."""
        return never("events are learned at the best pair alone")


def _measure(found: _Tried, event: Event, releases: dict[float, Releases]) -> _Tried:
    at0, at1 = (count(event, releases[value]) for value in found.values)
    return replace(found, event=event, at0=at0, at1=at1)


def _count_last(target: Target, chosen: Sequence[_Tried], trials: int, plan: Plan) -> list[Finding]:
    """Count the last events in fresh releases of the best pair."""
    shown: dict[float, Releases] = {}

    def draw(value: float, n: int) -> Releases:
        releases = target(value, n)
        shown.setdefault(value, releases)
        return releases

    candidates = [found.candidate for found in chosen]
    tallies = count_events(candidates, draw, trials, TUNING.noise_chunk, target.name)
    result = []
    for found, (at0, at1) in zip(chosen, tallies, strict=True):
        evidence = last_bits(*(shown[value] for value in found.values))
        counts = replace(found, at0=at0, at1=at1)
        result.append(_certify(counts, plan, plan.last_error, evidence))
    return result


def last_bits(y0: Releases, y1: Releases) -> dict[str, list[int]]:
    """Count the exponents of the last set bit at both values."""
    last0, last1 = (exponents(y)[1] for y in (y0, y1))
    shown = np.arange(min(last0.min(), last1.min()), max(last0.max(), last1.max()) + 1)
    at0, at1 = (np.bincount(last - shown[0], minlength=len(shown)) for last in (last0, last1))
    return {"exponents": shown.tolist(), "at0": at0.tolist(), "at1": at1.tolist()}
