"""Noise added to a number: every attack at every pair of values, then the best once more.

See `running` for what is certified, and why.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Count, Event, count, never
from dpnoise.auditing.attacks.bounds import Claim, Judge
from dpnoise.auditing.attacks.generic import exponents
from dpnoise.auditing.calls import fresh
from dpnoise.auditing.independence import check_independent
from dpnoise.auditing.learned.events import proposals
from dpnoise.auditing.learned.expected_bounds import leading
from dpnoise.auditing.report import Finding
from dpnoise.auditing.spending import Candidate, counted, finding, most_trials, raised
from dpnoise.auditing.targets.target import Releases, Target, TargetError
from dpnoise.core.errors import DpnoiseError

Progress = Callable[[float, str], object]
Watch = Callable[[list[Finding]], object]
Pair = tuple[float, float]

_COUNTED: Final = 2  # Events that are counted in the end.
_CHOOSING: Final = 3  # Attacks, each in one direction, that choose again.
_PAIRS: Final = 3  # Pairs that are compared once more.
_CHANCE: Final = 3.0  # Trials put down to chance where one of many events is learned.
_CHUNK: Final = 1 << 18  # Releases that are drawn at a time.
_SECONDS: Final = 10.0  # That a budget which is raised by itself may take.


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
    counted: int = _COUNTED

    @classmethod
    def of(cls, claim: Claim, confidence: float, budget: int, pairs: int, attacks: int) -> "Plan":
        """Split a budget: a quarter for all pairs, a quarter to choose again, half to count."""
        half = (1 - confidence) / 2
        return cls(
            claim=claim,
            confidence=confidence,
            first_error=half / (2 * attacks * pairs),
            last_error=half / _COUNTED,
            size=budget // (16 * pairs),
            again=budget // 8,
            final=budget // 4,
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


def findings_of(
    target: Target,
    attacks: Sequence[Attack],
    pairs: Sequence[Pair],
    plan: Plan,
    progress: Progress,
    watch: Watch,
    *,
    fixed: bool,
    learning: bool,
) -> tuple[list[Finding], dict[str, str], int]:
    """Return the best finding of each attack, what was skipped, and how many were counted last.

    The largest bound is first. `fixed` says that no more releases may be drawn than planned,
    `learning` that events may be learned beside those of the attacks.
    """
    knowing = [_told(attack, plan.judge) for attack in attacks]
    best: dict[str, Finding] = {}
    tried: list[_Tried] = []
    skipped: dict[str, str] = {}
    misfits: set[str] = set()
    for done, pair in enumerate(pairs):
        progress(done / (2 * len(pairs)), f"{pair[0]:g} against {pair[1]:g}")
        for found, certified in _at_pair(target, knowing, pair, plan, skipped, misfits):
            tried.append(found)
            _keep(best, certified)
        # A model that is wrong at one pair is wrong: at others it may only not show.
        for name in misfits:
            best.pop(name, None)
        watch(_sorted(best))
    fitting = [found for found in tried if found.attack.name not in misfits]
    final = plan.final
    if fitting:
        progress(0.5, "choosing again at the best pair")
        candidates, final = _chosen_again(target, fitting, plan, fixed=fixed, learning=learning)
        progress(0.7, f"counting {len(candidates)} events in {2 * final:,} releases")
        for certified in _counted_last(target, candidates, final, plan):
            _keep(best, certified)
        watch(_sorted(best))
    not_run = {name: why for name, why in skipped.items() if name not in best}
    return _sorted(best), not_run, final


def _told(attack: Attack, judge: Judge) -> Attack:
    """Tell an attack that can use it how its events will be judged."""
    if any(field.name == "judge" for field in fields(attack)):
        return replace(attack, judge=judge)  # type: ignore[call-arg]
    return attack


def _keep(best: dict[str, Finding], found: Finding) -> None:
    if found.attack not in best or _rank(found) > _rank(best[found.attack]):
        best[found.attack] = found


def _sorted(best: dict[str, Finding]) -> list[Finding]:
    return sorted(best.values(), key=_rank, reverse=True)


def _rank(found: Finding) -> tuple[float, float]:
    return found.certified, found.hits0 / found.trials0 - found.hits1 / found.trials1


def _replayed(target: Target, seen: dict[float, Releases]) -> Target:
    """Return a target that gives what was seen before it draws anything new."""

    def replay(value: float, n: int) -> Releases:
        return seen[value][:n] if n <= len(seen.get(value, ())) else target(value, n)

    return replace(target, release=replay)


def _at_pair(
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
    replayed = _replayed(target, seen)
    events: list[tuple[Attack, Event, Pair]] = []
    for attack in (attack for attack in attacks if attack.name not in misfits):
        for values in (pair, pair[::-1]):
            event = _event(attack, replayed, values, plan.size, skipped)
            if event is not None and event.applies:
                events.append((attack, event, values))
            if event is not None and not event.fits:
                misfits.add(attack.name)
    again = {value: fresh(target, value, seen[value]) for value in pair}
    for value in pair:
        call = f"{target.name}({value!r}, {plan.size})"
        check_independent(call, _rows(seen[value]), _rows(again[value]))
    result = []
    for attack, event, values in events:
        at0, at1 = (count(event, again[value]) for value in values)
        found = _Tried(attack, event, values, at0, at1)
        evidence = last_bits(*(again[value] for value in values))
        result.append((found, _certified(found, plan, plan.first_error, evidence)))
    return result


def _rows(releases: Releases) -> Any:
    return releases.astype(np.float64).reshape(-1, 1)


def _event(
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


def _certified(found: _Tried, plan: Plan, error: float, evidence: dict[str, list[int]]) -> Finding:
    hits, trials = (found.at0.hits, found.at1.hits), (found.at0.trials, found.at1.trials)
    return finding(found.candidate, hits, trials, plan.claim, error, plan.confidence, evidence)


def _chosen_again(
    target: Target, tried: Sequence[_Tried], plan: Plan, *, fixed: bool, learning: bool
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
        event = _event(found.attack, _replayed(target, seen), found.values, choosing, {})
        events = [found.event, *([event] if event is not None and event.applies else [])]
        measured += [_measured(found, event, held) for event in events]
    if learning:
        measured += [_measured(found, found.event, held) for found in _learned(pair, seen, judge)]
    best = sorted(measured, key=lambda found: -found.promise(judge))[:_COUNTED]
    if fixed:
        return best, plan.final

    def promise(trials: int, caution: float) -> float:
        guess = replace(judge, trials=trials, caution=caution)
        return max(found.promise(guess) for found in best)

    most = most_trials(plan.final, seconds_each, _SECONDS)
    return best, raised(plan.claim, plan.final, plan.last_error, promise, most)


def _best_pair(target: Target, tried: Sequence[_Tried], plan: Plan) -> list[_Tried]:
    """Compare the best pairs in more releases, and return the best events of the best of them.

    The first pair, whose values are as far apart as they may be, is always among them.
    """
    ranked = sorted(tried, key=lambda found: -found.promise(plan.judge))
    pairs = list(dict.fromkeys(tuple(sorted(found.values)) for found in ranked))
    first = tuple(sorted(tried[0].values))
    compared = [*pairs[: _PAIRS - 1], *([first] if first not in pairs[: _PAIRS - 1] else [])]
    again: list[_Tried] = []
    for pair in compared:
        releases = {value: target(value, plan.again // (2 * _PAIRS)) for value in pair}
        for found in [one for one in ranked if set(one.values) == set(pair)][:_CHOOSING]:
            more = _measured(found, found.event, releases)
            again.append(replace(found, at0=found.at0 + more.at0, at1=found.at1 + more.at1))
    again.sort(key=lambda found: -found.promise(plan.judge))
    best = set(again[0].values)
    return [found for found in again if set(found.values) == best]


def _learned(pair: Pair, seen: dict[float, Releases], judge: Judge) -> list[_Tried]:
    """Return events that were learned without knowing that noise was added."""
    rows = [np.column_stack([np.ones(len(seen[value])), seen[value]]) for value in pair]
    wary = replace(judge, chance=_CHANCE)
    found = leading(proposals(rows[0], rows[1], ["its length", "y"], wary), _CHOOSING)
    events = [
        (Event(one.event.words, _of_numbers(one.event)), pair[::-1] if one.swapped else pair)
        for one in found
    ]
    events += [(_let_through(values[0]), values) for values in (pair, pair[::-1])]
    return [
        _Tried(Likelihood(), event, values, Count(0, 1), Count(0, 1)) for event, values in events
    ]


def _let_through(value: float) -> Event:
    """Return the event that the value itself is released."""
    return Event(f"y is exactly {value:g}", lambda y: np.asarray(y == value))


def _of_numbers(event: Event) -> Callable[[Releases], Any]:
    """Return an event of rows as one of numbers."""
    return lambda y: event.holds(np.column_stack([np.ones(len(y)), y]))


@dataclass(frozen=True)
class Likelihood(Attack):
    """The name under which learned events stand in a report; it finds none by itself."""

    name = "likelihood"
    access = OUTPUTS

    def find(self, *_: Any, **__: Any) -> Event:
        """Find nothing: events are learned where the releases are."""
        return never("events are learned at the best pair alone")


def _measured(found: _Tried, event: Event, releases: dict[float, Releases]) -> _Tried:
    at0, at1 = (count(event, releases[value]) for value in found.values)
    return replace(found, event=event, at0=at0, at1=at1)


def _counted_last(
    target: Target, chosen: Sequence[_Tried], trials: int, plan: Plan
) -> list[Finding]:
    """Count the last events in fresh releases of the best pair."""
    shown: dict[float, Releases] = {}

    def draw(value: float, n: int) -> Releases:
        releases = target(value, n)
        shown.setdefault(value, releases)
        return releases

    tallies = counted([found.candidate for found in chosen], draw, trials, _CHUNK, target.name)
    result = []
    for found, (hits, tried) in zip(chosen, tallies, strict=True):
        evidence = last_bits(*(shown[value] for value in found.values))
        result.append(
            finding(
                found.candidate, hits, tried, plan.claim, plan.last_error, plan.confidence, evidence
            )
        )
    return result


def last_bits(y0: Releases, y1: Releases) -> dict[str, list[int]]:
    """Count the exponents of the last set bit at both values."""
    last0, last1 = (exponents(y)[1] for y in (y0, y1))
    shown = np.arange(min(last0.min(), last1.min()), max(last0.max(), last1.max()) + 1)
    at0, at1 = (np.bincount(last - shown[0], minlength=len(shown)) for last in (last0, last1))
    return {"exponents": shown.tolist(), "at0": at0.tolist(), "at1": at1.tolist()}
