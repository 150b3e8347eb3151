"""Runs an audit: every attack chooses its event, then all are counted in fresh releases.

The bound and its confidence
----------------------------
For each pair of values, each attack sees releases of its own and fixes an event for each of the two
directions. Then, and only then, n fresh releases of each value are drawn, n fixed in advance, and
all events of the pair are counted in them. Each certified epsilon comes from two exact binomial
limits (Clopper and Pearson 1934), at an error that is the whole audit's divided by the number of
events that it can count: attacks, times pairs, times two directions. By the union bound, no
certified epsilon of the report is too large except with probability 1 - confidence, however the
attacks chose.
"""

import platform
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import numpy as np

import dpnoise.attacks
from dpnoise import bounds, targets
from dpnoise.attacks import processes
from dpnoise.attacks.base import Attack, Event, count
from dpnoise.attacks.patterns import exponents
from dpnoise.attacks.processes import Observation
from dpnoise.attacks.twister import MersenneTwister
from dpnoise.auditing.report import Finding, Report
from dpnoise.errors import (
    ArgumentError,
    ArgumentTypeError,
    DpnoiseError,
    check_integer,
    check_positive,
    reject,
)
from dpnoise.targets import Releases, Target, TargetError

Progress = Callable[[float, str], object]

# In units of the sensitivity: around zero, a power of two, a count, negative, large.
_PAIRS: Final = ((0, 1), (1, 2), (7, 8), (42, 43), (-1, 0), (1000, 1001))


_TIMED: Final = 2_000  # Releases that are timed, one by one.
_PREDICTED: Final = 2_000  # Releases from which a state is recovered, and as many to predict.


def nobody(_part: float, _doing: str) -> None:
    """Report progress to nobody."""


def run(
    target: Any,
    epsilon: float,
    delta: float,
    sensitivity: float,
    attacks: Iterable[str | Attack] | None,
    budget: int,
    confidence: float,
    scale: float | None,
    time_limit: float,
    progress: Progress,
) -> Report:
    """Audit a target: see dpnoise.audit."""
    started = time.perf_counter()
    check_positive("epsilon", epsilon)
    if not 0 <= delta < 1:
        reject("delta", delta, ">= 0 and < 1")
    if not 0 < confidence < 1:
        reject("confidence", confidence, "to lie between 0 and 1")
    resolved = targets.resolve(target, epsilon, delta, sensitivity, scale)
    chosen = _chosen(attacks, resolved.noise)
    limited = replace(resolved, release=_limited(resolved, time_limit))
    pairs = [_pair(low, high, sensitivity) for low, high in _PAIRS]
    plan = _Plan(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        error=(1 - confidence) / (2 * len(chosen) * len(pairs)),
        size=check_integer("budget", budget, least=1000) // (4 * len(pairs)),
    )
    findings, skipped = _findings(limited, chosen, pairs, plan, progress)
    progress(1.0, "looking at forks, restarts and time")
    return Report(
        target=resolved.name,
        version=resolved.version,
        noise=resolved.noise,
        scale=resolved.scale,
        epsilon=epsilon,
        delta=delta,
        sensitivity=sensitivity,
        confidence=confidence,
        findings=findings,
        observations=_observations(target, limited, time_limit),
        skipped=skipped,
        pairs=pairs,
        method=_METHOD.format(events=2 * len(chosen) * len(pairs), size=plan.size),
        releases=4 * len(pairs) * plan.size,
        seconds=time.perf_counter() - started,
        command=_command(resolved.name, epsilon, delta, sensitivity),
        versions=_versions(resolved),
    )


_METHOD: Final = (
    "Each attack fixed its events on {size:,} releases of each value; all were counted in {size:,} "
    "fresh ones of each, a number fixed in advance. Limits are exact (Clopper and Pearson), and "
    "the audit's error is split over {events} events and the two limits of each."
)


@dataclass(frozen=True)
class _Plan:
    """What is claimed, and what is fixed before the first release."""

    epsilon: float
    delta: float
    confidence: float
    error: float  # Of each certified epsilon.
    size: int  # Releases of each value of a pair: so many to choose on, as many to measure.


def _chosen(attacks: Iterable[str | Attack] | None, noise: str) -> list[Attack]:
    known = dpnoise.attacks.ATTACKS
    if attacks is None:
        fitting = [a for a in known.values() if a.in_audit and a.noise in {None, noise}]
        return [attack() for attack in fitting]
    chosen = []
    for attack in attacks:
        if isinstance(attack, str):
            if attack not in known:
                raise ArgumentError(f"There is no attack {attack!r}. Known: {', '.join(known)}.")
            chosen.append(known[attack]())
        elif isinstance(attack, Attack):
            chosen.append(attack)
        else:
            raise ArgumentTypeError(f"Expected attacks={attack!r} to be names or attacks.")
    for attack in chosen:
        if not attack.in_audit:
            reject("attacks", attack.name, "to be one whose events are independent: run it alone")
    if not chosen:
        raise ArgumentError("Expected attacks to have at least one attack.")
    return chosen


def _pair(low: int, high: int, sensitivity: float) -> tuple[float, float]:
    """Return two floats that differ by the sensitivity at most, in exact arithmetic."""
    value0, value1 = low * sensitivity, high * sensitivity
    while Fraction(value1) - Fraction(value0) > Fraction(sensitivity):
        value1 = float(np.nextafter(value1, value0))
    return value0, value1


def _findings(
    target: Target,
    attacks: Sequence[Attack],
    pairs: Sequence[tuple[float, float]],
    plan: _Plan,
    progress: Progress,
) -> tuple[list[Finding], dict[str, str]]:
    """Return the best finding of each attack, the largest epsilon first, and what was skipped."""
    best: dict[str, Finding] = {}
    skipped: dict[str, str] = {}
    for done, pair in enumerate(pairs):
        progress(done / len(pairs), f"{pair[0]:g} against {pair[1]:g}")
        for finding in _findings_at(target, attacks, pair, plan, skipped):
            if finding.attack not in best or _rank(finding) > _rank(best[finding.attack]):
                best[finding.attack] = finding
    return sorted(best.values(), key=_rank, reverse=True), skipped


def _rank(finding: Finding) -> tuple[float, float]:
    return finding.epsilon_lower, finding.hits0 / finding.trials0 - finding.hits1 / finding.trials1


def _findings_at(
    target: Target,
    attacks: Sequence[Attack],
    pair: tuple[float, float],
    plan: _Plan,
    skipped: dict[str, str],
) -> list[Finding]:
    """Fix all events of a pair of values in both directions, then count them in fresh releases."""
    # What an attack may see is drawn once, and given to all: they choose, they do not measure.
    seen = {value: target(value, plan.size) for value in pair}
    replayed = replace(target, release=lambda value, n: seen[value][:n])
    events: list[tuple[Attack, Event, tuple[float, float]]] = []
    for attack in attacks:
        for value0, value1 in (pair, pair[::-1]):
            try:
                event = attack.find(replayed, value0, value1, plan.size)
            except TargetError:
                raise
            except DpnoiseError as error:
                skipped[attack.name] = str(error)
            else:
                events.append((attack, event, (value0, value1)))
    fresh = {value: target(value, plan.size) for value in pair}
    return [_finding(attack, event, values, fresh, plan) for attack, event, values in events]


def _finding(
    attack: Attack,
    event: Event,
    values: tuple[float, float],
    fresh: dict[float, Releases],
    plan: _Plan,
) -> Finding:
    at0, at1 = (count(event, fresh[value]) for value in values)
    epsilon = bounds.certified_epsilon(
        at0.hits,
        at0.trials,
        at1.hits,
        at1.trials,
        error=plan.error,
        delta=plan.delta,
        releases=event.releases,
    )
    return Finding(
        attack=attack.name,
        access=attack.access,
        event=event.words,
        value0=values[0],
        value1=values[1],
        releases=event.releases,
        hits0=at0.hits,
        trials0=at0.trials,
        hits1=at1.hits,
        trials1=at1.trials,
        epsilon_lower=epsilon,
        confidence=plan.confidence,
        broken=epsilon > plan.epsilon,
        evidence=_last_bits(*(fresh[value] for value in values)),
    )


def _last_bits(y0: Releases, y1: Releases) -> dict[str, list[int]]:
    """Count the exponents of the last set bit at both values."""
    last0, last1 = (exponents(y)[1] for y in (y0, y1))
    shown = np.arange(min(last0.min(), last1.min()), max(last0.max(), last1.max()) + 1)
    at0, at1 = (np.bincount(last - shown[0], minlength=len(shown)) for last in (last0, last1))
    return {"exponents": shown.tolist(), "at0": at0.tolist(), "at1": at1.tolist()}


def _limited(target: Target, seconds: float) -> targets.Release:
    """Give every call of the target a time limit.

    The call runs in a thread of its own, because nothing else can be left behind when it hangs.
    """

    def release(value: float, n: int) -> Any:
        result: list[Any] = []
        failure: list[BaseException] = []

        def call() -> None:
            try:
                result.append(target.release(value, n))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                failure.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(seconds)
        if failure:
            raise failure[0]
        if not result:
            raise TargetError(f"{target.name}({value!r}, {n}) took more than {seconds:g} s.")
        return result[0]

    return release


def _observations(asked: Any, target: Target, time_limit: float) -> list[Observation]:
    """Look at what certifies nothing: a generator's state, forks, restarts and time."""
    looks: list[Callable[[], Observation]] = [
        partial(_stateful, target),
        partial(processes.timed, target, n=_TIMED),
        partial(processes.phased, target, n=_TIMED),
    ]
    if isinstance(asked, list | tuple):
        looks = [partial(_restarted, target)]
    else:
        looks.append(partial(processes.forked, target, timeout_s=time_limit))
    if isinstance(asked, str) and asked in targets.names():
        looks.append(partial(processes.restarted, processes.program_of(asked)))
    return [_looked(look) for look in looks]


def _looked(look: Callable[[], Observation]) -> Observation:
    """Make a look that fails an observation of that: it must not cost the report."""
    try:
        return look()
    except DpnoiseError as error:
        return Observation("not seen", found=False, words=str(error))


def _stateful(target: Target) -> Observation:
    """Try to solve for the state of a Mersenne Twister, and to predict what comes next."""
    outcome = MersenneTwister()(target, n=_PREDICTED, placebo=False)
    found = outcome.at0.hits == outcome.at0.trials and outcome.at1.hits == 0
    words = (
        f"The generator's state was recovered from {_PREDICTED:,} releases of a known value, and "
        f"all of the next {outcome.at0.trials:,} releases were predicted."
        if found
        else "No state of a Mersenne Twister was recovered."
    )
    return Observation("state", found, words)


def _restarted(target: Target) -> Observation:
    """Compare two runs of a command."""
    found = bool((target(0.0, 64) == target(0.0, 64)).all())
    words = f"Two runs of the command wrote {'the same' if found else 'different'} releases."
    return Observation("restarted", found, words)


def _command(name: str, epsilon: float, delta: float, sensitivity: float) -> str:
    words = ["dpnoise", "audit", name, "--epsilon", f"{epsilon:g}"]
    if delta:
        words += ["--delta", f"{delta:g}"]
    if sensitivity != 1:
        words += ["--sensitivity", f"{sensitivity!r}"]
    return shlex.join(words)


def _versions(target: Target) -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "dpnoise": version("dpnoise"),
        "numpy": np.__version__,
    }
    if target.package and target.version:
        versions[target.package] = target.version
    return versions
