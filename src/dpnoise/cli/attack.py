"""`dpnoise attack`: run one attack against one target, and print the result."""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

from dpnoise.auditing import targets
from dpnoise.auditing.wording import bound_text, used_as_if
from dpnoise.cli.terminal import Command, Option, progress_bar
from dpnoise.core import errors, strict_json
from dpnoise.core.errors import ArgumentError
from dpnoise.core.safe_text import escape_text, format_confidence

if TYPE_CHECKING:
    from dpnoise.auditing.attacks.base import Attack, EventCount, Outcome
    from dpnoise.auditing.processes import SideChannelCheck


def _attack(arguments: argparse.Namespace) -> None:
    # These modules import Numba and SciPy, so they are imported late.
    from dpnoise.auditing.attacks import ATTACKS
    from dpnoise.auditing.processes import SIDE_CHANNEL_CHECKS

    claims = {name: getattr(arguments, name) for name in ("epsilon", "delta", "sensitivity")}
    lines: Iterable[str]
    if arguments.list or arguments.name is None:
        lines = _list(ATTACKS, SIDE_CHANNEL_CHECKS)
    elif arguments.name in SIDE_CHANNEL_CHECKS:
        lines = _check_side_channel(SIDE_CHANNEL_CHECKS[arguments.name], arguments, claims)
    elif arguments.name in ATTACKS:
        lines = _run(ATTACKS[arguments.name](), arguments, claims)
    elif arguments.name in {*targets.names(), *targets.MECHANISMS} or ":" in arguments.name:
        raise ArgumentError(
            f"{arguments.name} is a target. dpnoise audit {arguments.name} --epsilon 1 runs all "
            f"attacks; for one attack, dpnoise attack NAME --target {arguments.name}."
        )
    else:
        raise errors.unknown_name_error("attack", arguments.name, [*ATTACKS, *SIDE_CHANNEL_CHECKS])
    print("\n".join(lines))  # noqa: T201 - this is the command line


def _target(
    arguments: argparse.Namespace, claims: dict[str, float], default: Callable[..., targets.Target]
) -> targets.Target:
    """Return a target by name, or a function, which is assumed to add Laplace noise."""
    name, one_by_one = arguments.target, arguments.one_by_one
    if name in targets.MECHANISMS:
        raise ArgumentError(
            f"Attacks take noise that is added to a number. Run dpnoise audit {name} --epsilon 1."
        )
    if name is None:
        target = default(**claims)
    elif name in targets.names():
        target = targets.make_target(name, **claims)
    else:
        epsilon, sensitivity = claims["epsilon"], claims["sensitivity"]
        target = targets.resolve(name, epsilon, 0.0, sensitivity, one_by_one=one_by_one)
    return targets.one_by_one(target) if one_by_one else target


def _list(
    attacks: "dict[str, type[Attack]]", checks: "dict[str, SideChannelCheck]"
) -> Iterator[str]:
    rows = [
        *((a.name, a.access, a.breaks, a.source) for a in attacks.values()),
        *((k.name, "to run its process", k.breaks, k.source) for k in checks.values()),
    ]
    for name, needs, breaks, source in rows:
        yield f"{name}\n  needs   {needs}\n  breaks  {breaks}\n  source  {source}"
    yield f"\nTargets: {', '.join(targets.names())}"
    yield f"\nMechanisms, only for audits: {', '.join(targets.MECHANISMS)}"


def _check_side_channel(
    check: "SideChannelCheck", arguments: argparse.Namespace, claims: dict[str, float]
) -> list[str]:
    target = _target(arguments, claims, partial(targets.make_target, check.default_target))
    observation = check.check(target)
    if arguments.json:
        return [strict_json.dumps(asdict(observation))]
    result = "FOUND" if observation.found else "not found, which proves nothing"
    lines = f"{check.name}, {target.name} {target.version}: {result}", f"  {observation.words}"
    return list(map(escape_text, lines))


def _run(attack: "Attack", arguments: argparse.Namespace, claims: dict[str, float]) -> list[str]:
    for name in ("value0", "value1"):
        if not math.isfinite(getattr(arguments, name)):
            errors.reject(name, getattr(arguments, name), "be finite")
    if arguments.value0 == arguments.value1:
        errors.reject("value1", arguments.value1, f"differ from value0={arguments.value0:g}")
    if arguments.size is not None:
        errors.check_integer("size", arguments.size, least=1)
    errors.check_probability("confidence", arguments.confidence)
    target = _target(arguments, claims, attack.target)
    options = {"n": arguments.size, "confidence": arguments.confidence}
    with progress_bar(attack.name) as progress:
        outcome = attack(target, arguments.value0, arguments.value1, **options, progress=progress)
    delta = arguments.delta if target.noise == "gaussian" else 0.0
    certified = outcome.epsilon_lower(delta)
    if arguments.json:
        return [strict_json.dumps({**asdict(outcome), "epsilon_lower": certified})]
    version = f" {target.version}" if target.version else ""
    used = used_as_if("epsilon", arguments.epsilon, delta)
    confidence = format_confidence(1 - outcome.error)
    lines = [
        f"{outcome.attack} against {target.name}{version}, {used}",
        f"  event      {outcome.event}",
        f"  at {outcome.value0:<8g}{_count_text(outcome.at0)}",
        f"  at {outcome.value1:<8g}{_count_text(outcome.at1)}",
        f"  advantage  {_interval_text(outcome.advantage)}, at confidence {confidence}",
        f"  placebo    {_interval_text(outcome.placebo_advantage)}, with both values equal",
        f"  {_verdict(outcome, certified, arguments.epsilon)}",
    ]
    return list(map(escape_text, lines))


def _verdict(outcome: "Outcome", certified: float, epsilon: float) -> str:
    if not outcome.independent:
        predicted = outcome.at0.hits == outcome.at0.trials and not outcome.at1.hits
        result = "RECOVERED, all further noise removed" if predicted else "not recovered"
        return f"state      {result}; trials that share a state certify no epsilon"
    if not outcome.applies:
        return "concluded  nothing, for the reason above"
    verdict = "BROKEN" if certified > epsilon else "not broken by this attack, which proves nothing"
    return f"certified  epsilon >= {bound_text(certified, epsilon)}: {verdict}"


def _count_text(count: "EventCount") -> str:
    return f"{count.hits:,} of {count.trials:,}, {count.rate:.2%}"


def _interval_text(limits: tuple[float, float] | None) -> str:
    return "not measured" if limits is None else f"{limits[0]:.2%} to {limits[1]:.2%}"


_TARGET_HELP: Final = (
    "a library's noise, see --list, or module:attribute; by default one that it breaks"
)
ATTACK: Final = Command(
    "attack",
    _attack,
    (
        Option("name", {"nargs": "?", "metavar": "NAME"}, "one of --list"),
        Option("--list", bool, "list what each attack needs and breaks"),
        Option("--target", None, _TARGET_HELP),
        Option("--one-by-one", bool, "ask for one release a call"),
        Option("--epsilon", 1.0, "the epsilon that the target is used with (1)"),
        Option("--delta", 1e-6, "the delta of Gaussian noise (1e-6)"),
        Option("--sensitivity", 1.0, "the sensitivity of the value (1)"),
        Option("--value0", 0.0, "one value (0)"),
        Option("--value1", 1.0, "the other (1)"),
        Option("--size", int, "the number of releases of each value"),
        Option("--confidence", 0.999, "the confidence of the limits (0.999)"),
        Option("--json", bool, "print JSON"),
    ),
    description="Run one attack against one target. It chooses its event on some releases and is "
    "measured on others; then the same with both values equal, where it must fail.",
)
