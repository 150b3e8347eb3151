"""Runs an audit: of added noise by every attack, of any other mechanism by learned events.

For each pair of values, each attack sees releases of its own and fixes an event for each of the two
directions. Then, and only then, n fresh releases of each value are drawn, n fixed in advance, and
all events of the pair are counted in them, at half of the audit's error. The attacks that did best
at the best pair then choose again, on more releases, and the best events are counted in more fresh
ones, at the other half of the error (see `spending`). By the union bound, no certified bound of the
report is too large except with probability 1 - confidence, however the attacks chose.

All of it holds for independent releases. They are tested for that, and a target that gives the same
ones twice, or ones that depend on each other, is refused: its noise is private or not, but nothing
can be counted in it.
"""

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import dpnoise.auditing.attacks
from dpnoise.auditing import any_mechanism, targets
from dpnoise.auditing.additive_noise import Plan, findings_of
from dpnoise.auditing.attacks.base import Attack
from dpnoise.auditing.attacks.bounds import EPSILON, Claim, claim_of, gaussian_claim
from dpnoise.auditing.calls import affordable, limited
from dpnoise.auditing.independence import ERROR
from dpnoise.auditing.mechanisms import Source
from dpnoise.auditing.neighbours import ROWS, neighbours_of
from dpnoise.auditing.pairs import SEARCH, WHOLE, given_pairs, pairs, search
from dpnoise.auditing.processes import LOOKS
from dpnoise.auditing.report import Finding, Report
from dpnoise.auditing.side_channels import observations
from dpnoise.auditing.spending import ceiling
from dpnoise.auditing.targets.target import installed
from dpnoise.auditing.versions import versions
from dpnoise.auditing.wording import number
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_flag,
    check_integer,
    check_part,
    check_positive,
    reject,
    unknown,
)

Progress = Callable[[float, str], object]
Watch = Callable[[list[Finding]], object]

_DEFAULT: Final = 480_000  # Releases of added noise, where no budget is given.
_LEAST: Final = 1_000  # The least budget: 250 releases of each value for the last count.
_SEARCHED: Final = 30 * SEARCH  # The least budget of which a part is spent on a search for pairs.
_SCALE: Final = 1.0  # Of noise that mu or rho is claimed for; only attacks that know it use it.


def run(
    target: Any,
    epsilon: float | None,
    delta: float,
    sensitivity: float,
    mu: float | None,
    rho: float | None,
    curve: bool,  # noqa: FBT001 - one argument for each of audit's
    attacks: Iterable[str | Attack] | None,
    pairs: Any,
    neighbours: Any,
    data: Any,
    size: int,
    one_by_one: bool,  # noqa: FBT001 - as above
    boosting: bool,  # noqa: FBT001 - as above
    budget: int | None,
    confidence: float,
    scale: float | None,
    time_limit: float,
    seed: int | None,
    progress: Progress,
    watch: Watch,
) -> Report:
    """Audit a target: see dpnoise.audit."""
    curve = check_flag("curve", curve)
    one_by_one = check_flag("one_by_one", one_by_one)
    boosting = check_flag("boosting", boosting)
    claim = _claimed(epsilon, delta, mu, rho, curve=curve)
    sensitivity = check_positive("sensitivity", sensitivity)
    check_positive("time_limit", time_limit)
    if budget is not None:
        check_integer("budget", budget, least=_LEAST)
    if scale is not None:
        check_positive("scale", scale)
    if seed is not None:
        check_integer("seed", seed, least=0)
    check_part("confidence", check_positive("confidence", confidence))
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "mu": mu,
        "rho": rho,
        "delta": delta,
        "curve": curve,
        "sensitivity": sensitivity,
        "scale": scale,
    }
    named = targets.MECHANISMS.get(target) if isinstance(target, str) else None
    if data is not None and not (isinstance(neighbours, str) and neighbours == ROWS):
        raise ArgumentError("data is for neighbours='rows': the rows of which one is another.")
    if neighbours is not None or named is not None:
        if attacks is not None or pairs is not None or scale is not None:
            raise ArgumentError(
                "attacks, pairs and scale are for added noise: leave out neighbours."
            )
        if named is not None and neighbours is None:
            tried = list(named.neighbours)
        else:
            tried = neighbours_of(neighbours, size, sensitivity, data)
        mechanism = target if named is None else named.made(epsilon, delta)
        name = None if named is None else named.name
        source = Source(mechanism, time_limit, one_by_one=one_by_one, name=name)
        options |= {"neighbours": neighbours, "one_by_one": one_by_one}
        options |= {"boosting": boosting, "budget": budget, "confidence": confidence, "seed": seed}
        command = _command(target, source.name, **options)
        if budget is None:
            first = tried[0][0]
            budget = affordable(lambda n: source.outputs(first, n), _LEAST, any_mechanism.DEFAULT)
        report = any_mechanism.run(
            source,
            claim,
            tried,
            budget,
            confidence,
            progress,
            watch,
            command,
            seed=seed,
            boosting=boosting,
        )
        return report if named is None else _of_package(report, named.package)
    if boosting:
        raise ArgumentError("boosting is for mechanisms of any kind: give neighbours.")
    return _added(
        target, claim, options, sensitivity, attacks, pairs, budget, confidence, time_limit,
        progress, watch, one_by_one=one_by_one,
    )  # fmt: skip


def _of_package(report: Report, package: str) -> Report:
    """Say which version of a library a report is about."""
    version = installed(package)
    return replace(report, version=version, versions=versions(package, version))


def _claimed(
    epsilon: float | None, delta: float, mu: float | None, rho: float | None, *, curve: bool
) -> Claim:
    claim = claim_of(epsilon, delta, mu=mu, rho=rho)
    if not curve:
        return claim
    if claim.kind != EPSILON or not delta:
        raise ArgumentError("curve is for Gaussian noise that claims epsilon at a delta above 0.")
    return gaussian_claim(claim.value, delta)


def _added(
    target: Any,
    claim: Claim,
    options: dict[str, Any],
    sensitivity: float,
    attacks: Iterable[str | Attack] | None,
    given: Any,
    budget: int | None,
    confidence: float,
    time_limit: float,
    progress: Progress,
    watch: Watch,
    *,
    one_by_one: bool,
) -> Report:
    """Audit noise that is added to a number."""
    started = time.perf_counter()
    epsilon, delta, scale = options["epsilon"], options["delta"], options["scale"]
    if epsilon is None and scale is None:
        scale = _SCALE
    known = 1.0 if epsilon is None else epsilon
    resolved = targets.resolve(target, known, delta, sensitivity, scale, time_limit)
    chosen = _chosen(attacks, resolved.noise)
    whole = isinstance(given, str) and given == WHOLE
    if given is not None and not whole:
        given = given_pairs(given, sensitivity)
    # A command has the limit already, and is ended by it.
    by_command = isinstance(target, list | tuple)
    caller = resolved if by_command else limited(resolved, time_limit)
    if one_by_one:
        caller = targets.one_by_one(caller)
    if given is None or whole:
        tried = pairs(sensitivity, caller(0.0, 1).dtype, whole=whole)
    else:
        tried = given
    asked = budget
    if budget is None:
        budget = affordable(lambda n: caller(tried[0][0], n), _LEAST, _DEFAULT)
    searched = 0
    if (given is None or whole) and not by_command and (budget or _DEFAULT) >= _SEARCHED:
        found = search(caller, sensitivity, caller(0.0, 1).dtype, whole=whole)
        tried += [pair for pair in found if pair not in tried]
        searched = SEARCH
    plan = Plan.of(claim, confidence, budget or _DEFAULT, len(tried), len(chosen))
    findings, skipped, counted = findings_of(
        caller, chosen, tried, plan, progress, watch,
        fixed=budget is not None, learning=attacks is None,
    )  # fmt: skip
    progress(1.0, "looking at forks, restarts and time")
    return Report(
        target=resolved.name,
        version=resolved.version,
        noise=resolved.noise,
        scale=resolved.scale,
        kind=claim.kind,
        claimed=claim.value,
        delta=delta,
        sensitivity=sensitivity,
        confidence=confidence,
        findings=findings,
        observations=observations(target, resolved, caller, time_limit),
        skipped=skipped,
        pairs=list(tried),
        method=(_SEARCH_WORDS if searched else "")
        + _METHOD.format(
            size=plan.size,
            events=2 * len(chosen) * len(tried),
            again=plan.again,
            final=counted,
            last=plan.counted,
            error=ERROR,
        ),
        ceiling=ceiling(claim, counted, plan.last_error),
        releases=searched + 4 * len(tried) * plan.size + 2 * plan.again + 2 * counted,
        seconds=time.perf_counter() - started,
        command=_command(
            target,
            resolved.name,
            **options,
            pairs=given if whole else list(given or []),
            attacks=[] if attacks is None else [attack.name for attack in chosen],
            one_by_one=one_by_one,
            budget=asked,
            confidence=confidence,
        ),
        versions=versions(resolved.package, resolved.version),
    )


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


def _chosen(attacks: Iterable[str | Attack] | None, noise: str) -> list[Attack]:
    known = dpnoise.auditing.attacks.ATTACKS
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
    known = dpnoise.auditing.attacks.ATTACKS
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


def _command(target: Any, name: str, **options: Any) -> str:
    """Return what runs the audit again: in a shell, or in Python where a shell cannot."""
    named = {key: value for key, value in options.items() if key != "neighbours"}
    given = {key: value for key, value in named.items() if value or (value == 0 and key == "seed")}
    neighbours = options.get("neighbours")
    in_shell = isinstance(target, str | list | tuple) and isinstance(neighbours, str | None)
    if not in_shell:
        arguments = [f"{key}={value!r}" for key, value in given.items()]
        if neighbours is not None:
            shown = repr(neighbours) if isinstance(neighbours, str) else "[...]"
            arguments.append(f"neighbours={shown}")
        return f"dpnoise.audit({', '.join((name, *arguments))})"
    words = ["dpnoise", "audit", *([name] if isinstance(target, str) else ["--command", name])]
    for attack in given.pop("attacks", []):
        words += ["--attack", attack]
    for pair in given.pop("pairs", []) if given.get("pairs") != WHOLE else []:
        words += ["--pair", ",".join(map(number, pair))]
    if neighbours is not None:
        words += ["--neighbours", neighbours]
    for key, value in given.items():
        if key == "pairs":
            words += ["--whole"]
            continue
        option = f"--{key.replace('_', '-')}"
        shown = number(value) if isinstance(value, float) else str(value)
        words += [option] if value is True else [option, shown]
    return shlex.join(words)
