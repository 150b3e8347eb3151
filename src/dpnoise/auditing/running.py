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

All of it holds for independent releases. A target that gives the same ones twice, or one number n
times and then another, is refused: its noise is private or not, but nothing can be counted in it.
"""

import platform
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

import numpy as np

import dpnoise.attacks
from dpnoise import machine, targets
from dpnoise.attacks import bounds
from dpnoise.attacks.base import Attack, Event, count
from dpnoise.attacks.patterns import exponents
from dpnoise.attacks.processes import LOOKS
from dpnoise.auditing.calls import fresh, limited
from dpnoise.auditing.looks import observations
from dpnoise.auditing.pairs import pairs
from dpnoise.auditing.report import Finding, Report
from dpnoise.auditing.wording import number
from dpnoise.errors import (
    ArgumentError,
    ArgumentTypeError,
    DpnoiseError,
    check_integer,
    check_part,
    check_positive,
    reject,
    unknown,
)
from dpnoise.targets.target import Releases, Target, TargetError

Progress = Callable[[float, str], object]
Watch = Callable[[list[Finding]], object]

_LEAST: Final = 1_000  # The least budget: 41 releases of each value to choose on, as many to count.


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
    watch: Watch,
) -> Report:
    """Audit a target: see dpnoise.audit."""
    started = time.perf_counter()
    check_positive("epsilon", epsilon)
    sensitivity = check_positive("sensitivity", sensitivity)
    check_positive("time_limit", time_limit)
    check_integer("budget", budget, least=_LEAST)
    if scale is not None:
        check_positive("scale", scale)
    if delta != 0:
        check_part("delta", check_positive("delta", delta))
    check_part("confidence", check_positive("confidence", confidence))
    resolved = targets.resolve(target, epsilon, delta, sensitivity, scale, time_limit)
    chosen = _chosen(attacks, resolved.noise)
    # A command has the limit already, and is ended by it.
    by_command = isinstance(target, list | tuple)
    caller = resolved if by_command else limited(resolved, time_limit)
    tried = pairs(sensitivity, caller(0.0, 1).dtype)
    plan = _Plan(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        error=(1 - confidence) / (2 * len(chosen) * len(tried)),
        size=budget // (4 * len(tried)),
    )
    findings, skipped = _findings(caller, chosen, tried, plan, progress, watch)
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
        observations=observations(target, resolved, caller, time_limit),
        skipped=skipped,
        pairs=tried,
        method=_METHOD.format(events=2 * len(chosen) * len(tried), size=plan.size),
        releases=4 * len(tried) * plan.size,
        seconds=time.perf_counter() - started,
        command=_command(
            target,
            resolved.name,
            epsilon=epsilon,
            delta=delta,
            sensitivity=sensitivity,
            scale=scale,
            attacks=[] if attacks is None else [attack.name for attack in chosen],
            budget=budget,
            confidence=confidence,
        ),
        versions=_versions(resolved),
    )


_METHOD: Final = (
    "Each attack fixed its events on {size:,} releases of each value; all were counted in {size:,} "
    "fresh ones of each, a number fixed in advance. Limits are exact (Clopper and Pearson), and "
    "the audit's error is split over {events} events and the two limits of each. Releases are "
    "taken to be independent."
)


@dataclass(frozen=True)
class _Plan:
    """What is claimed, and what is fixed before the first release."""

    epsilon: float
    delta: float
    confidence: float
    error: float  # Of each certified epsilon.
    size: int  # Releases of each value of a pair: this many to choose on, as many to measure.


def _chosen(attacks: Iterable[str | Attack] | None, noise: str) -> list[Attack]:
    known = dpnoise.attacks.ATTACKS
    if isinstance(attacks, str):
        attacks = [attacks]
    if attacks is None:
        fitting = [a for a in known.values() if a.in_audit and a.noise in {None, noise}]
        return [attack() for attack in fitting]
    chosen = [_attack(attack) for attack in attacks]
    if not chosen:
        raise ArgumentError("Expected attacks to have at least one attack.")
    return chosen


def _attack(asked: str | Attack) -> Attack:
    """Return an attack, given by its name or itself, if an audit can count its events."""
    known = dpnoise.attacks.ATTACKS
    if isinstance(asked, str) and asked in LOOKS:
        reject("attacks", asked, "to be an attack; every audit looks at this by itself")
    if isinstance(asked, str) and asked not in known:
        raise unknown("attack", asked, known)
    attack = known[asked]() if isinstance(asked, str) else asked
    if not isinstance(attack, Attack):
        raise ArgumentTypeError(f"Expected attacks={attack!r} to be names or attacks.")
    if not attack.in_audit:
        reject("attacks", attack.name, "to be one whose events are independent: run it alone")
    return attack


def _findings(
    target: Target,
    attacks: Sequence[Attack],
    pairs: Sequence[tuple[float, float]],
    plan: _Plan,
    progress: Progress,
    watch: Watch,
) -> tuple[list[Finding], dict[str, str]]:
    """Return the best finding of each attack, the largest epsilon first, and what was skipped."""
    best: dict[str, Finding] = {}
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    misfits: set[str] = set()
    for done, pair in enumerate(pairs):
        progress(done / len(pairs), f"{pair[0]:g} against {pair[1]:g}")
        for finding in _findings_at(target, attacks, pair, plan, skipped, misfits):
            if finding.attack not in best or _rank(finding) > _rank(best[finding.attack]):
                best[finding.attack] = finding
        # A model that is wrong at one pair is wrong: at others it may only not show.
        for name in misfits:
            best.pop(name, None)
        findings = sorted(best.values(), key=_rank, reverse=True)
        watch(findings)
    not_run = {name: why for name, why in skipped.items() if name not in best}
    return findings, not_run


def _rank(finding: Finding) -> tuple[float, float]:
    return finding.epsilon_lower, finding.hits0 / finding.trials0 - finding.hits1 / finding.trials1


def _findings_at(
    target: Target,
    attacks: Sequence[Attack],
    pair: tuple[float, float],
    plan: _Plan,
    skipped: dict[str, str],
    misfits: set[str],
) -> list[Finding]:
    """Fix all events of a pair of values in both directions, then count them in fresh releases."""
    # What an attack may see is drawn once, and given to all: they choose, they do not measure.
    seen = {value: target(value, plan.size) for value in pair}

    def replay(value: float, n: int) -> Releases:
        return seen[value][:n] if n <= len(seen.get(value, ())) else target(value, n)

    replayed = replace(target, release=replay)
    events: list[tuple[Attack, Event, tuple[float, float]]] = []
    for attack in (attack for attack in attacks if attack.name not in misfits):
        for value0, value1 in (pair, pair[::-1]):
            try:
                event = attack.event(replayed, value0, value1, plan.size)
            except TargetError:
                raise
            except DpnoiseError as error:
                skipped[attack.name] = str(error)
            else:
                if event.applies:
                    events.append((attack, event, (value0, value1)))
                else:
                    skipped[attack.name] = event.words
                if not event.fits:
                    misfits.add(attack.name)
    counted = {value: fresh(target, value, seen[value]) for value in pair}
    return [_finding(attack, event, values, counted, plan) for attack, event, values in events]


def _finding(
    attack: Attack,
    event: Event,
    values: tuple[float, float],
    counted: dict[float, Releases],
    plan: _Plan,
) -> Finding:
    at0, at1 = (count(event, counted[value]) for value in values)
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
        evidence=_last_bits(*(counted[value] for value in values)),
    )


def _last_bits(y0: Releases, y1: Releases) -> dict[str, list[int]]:
    """Count the exponents of the last set bit at both values."""
    last0, last1 = (exponents(y)[1] for y in (y0, y1))
    shown = np.arange(min(last0.min(), last1.min()), max(last0.max(), last1.max()) + 1)
    at0, at1 = (np.bincount(last - shown[0], minlength=len(shown)) for last in (last0, last1))
    return {"exponents": shown.tolist(), "at0": at0.tolist(), "at1": at1.tolist()}


def _command(target: Any, name: str, **options: Any) -> str:
    """Return what runs the audit again: in a shell, or in Python where a shell cannot."""
    given = {key: value for key, value in options.items() if value}
    if not isinstance(target, str | list | tuple):
        arguments = (f"{key}={value!r}" for key, value in given.items())
        return f"dpnoise.audit({', '.join((name, *arguments))})"
    words = ["dpnoise", "audit", *([name] if isinstance(target, str) else ["--command", name])]
    for attack in given.pop("attacks", []):
        words += ["--attack", attack]
    for key, value in given.items():
        words += [f"--{key}", number(value) if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _versions(target: Target) -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "dpnoise": version("dpnoise"),
        "numpy": np.__version__,
        "machine": machine.described(),
    }
    if target.package and target.version:
        versions[target.package] = target.version
    return versions
