"""`dpnoise attack`: run one attack against one target, and print what it found."""

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from dpnoise.auditing import targets
from dpnoise.auditing.wording import at_least, used_as_if
from dpnoise.cli.terminal import Command, Option, progress_bar
from dpnoise.core import strict_json
from dpnoise.core.errors import check_probability, reject, unknown
from dpnoise.core.safe_text import shown

if TYPE_CHECKING:
    from dpnoise.auditing.attacks.base import Attack, Count, Outcome
    from dpnoise.auditing.processes import SideChannelCheck


def _attack(asked: argparse.Namespace) -> None:
    # They bring Numba and SciPy, so they are imported when they are needed.
    from dpnoise.auditing.attacks import ATTACKS
    from dpnoise.auditing.processes import SIDE_CHANNEL_CHECKS

    claims = {"epsilon": asked.epsilon, "delta": asked.delta, "sensitivity": asked.sensitivity}
    lines: Iterable[str]
    if asked.list or asked.name is None:
        lines = _list(ATTACKS, SIDE_CHANNEL_CHECKS)
    elif asked.name in SIDE_CHANNEL_CHECKS:
        lines = _look(SIDE_CHANNEL_CHECKS[asked.name], asked, claims)
    elif asked.name in ATTACKS:
        lines = _run(ATTACKS[asked.name](), asked, claims)
    else:
        raise unknown("attack", asked.name, [*ATTACKS, *SIDE_CHANNEL_CHECKS])
    print("\n".join(lines))  # noqa: T201 - this is the command line


def _target(name: str, claims: dict[str, float]) -> targets.Target:
    """Make a target by its name, or of a function, whose noise is taken to be Laplace's."""
    if ":" in name:
        return targets.resolve(name, claims["epsilon"], 0.0, claims["sensitivity"])
    return targets.named(name, **claims)


def _list(
    attacks: "dict[str, type[Attack]]", looks: "dict[str, SideChannelCheck]"
) -> Iterator[str]:
    described = [
        *((a.name, a.access, a.breaks, a.source) for a in attacks.values()),
        *((k.name, "to run its process", k.breaks, k.source) for k in looks.values()),
    ]
    for name, needs, breaks, source in described:
        yield f"{name}\n  needs   {needs}\n  breaks  {breaks}\n  source  {source}"
    yield f"\nTargets: {', '.join(targets.names())}"
    yield f"\nMechanisms, for audits alone: {', '.join(targets.MECHANISMS)}"


def _look(
    look: "SideChannelCheck", asked: argparse.Namespace, claims: dict[str, float]
) -> list[str]:
    target = _target(look.default_target if asked.target is None else asked.target, claims)
    observation = look.check(target)
    if asked.json:
        return [strict_json.dumps(asdict(observation))]
    found = "FOUND" if observation.found else "not found, which proves nothing"
    lines = f"{look.name}, {target.name} {target.version}: {found}", f"  {observation.words}"
    return list(map(shown, lines))


def _run(attack: "Attack", asked: argparse.Namespace, claims: dict[str, float]) -> list[str]:
    for name in ("value0", "value1"):
        if not math.isfinite(getattr(asked, name)):
            reject(name, getattr(asked, name), "be finite")
    check_probability("confidence", asked.confidence)
    target = attack.target(**claims) if asked.target is None else _target(asked.target, claims)
    options = {"n": asked.size, "confidence": asked.confidence}
    with progress_bar(attack.name) as progress:
        outcome = attack(target, asked.value0, asked.value1, **options, progress=progress)
    delta = asked.delta if target.noise == "gaussian" else 0.0
    certified = outcome.epsilon_lower(delta)
    if asked.json:
        return [strict_json.dumps({**asdict(outcome), "epsilon_lower": certified})]
    version = f" {target.version}" if target.version else ""
    used = used_as_if("epsilon", asked.epsilon, delta)
    lines = [
        f"{outcome.attack} against {target.name}{version}, {used}",
        f"  event      {outcome.event}",
        f"  at {outcome.value0:<8g}{_counted(outcome.at0)}",
        f"  at {outcome.value1:<8g}{_counted(outcome.at1)}",
        f"  advantage  {_interval(outcome.advantage)}, at confidence {1 - outcome.error:g}",
        f"  placebo    {_interval(outcome.placebo_advantage)}, with both values equal",
        f"  {_verdict(outcome, certified, asked.epsilon)}",
    ]
    return list(map(shown, lines))


def _verdict(outcome: "Outcome", certified: float, epsilon: float) -> str:
    if not outcome.independent:
        predicted = outcome.at0.hits == outcome.at0.trials and not outcome.at1.hits
        found = "RECOVERED, all further noise removed" if predicted else "not recovered"
        return f"state      {found}; trials that share a state certify no epsilon"
    if not outcome.applies:
        return "concluded  nothing, for the reason above"
    broken = "BROKEN" if certified > epsilon else "not broken by this attack, which proves nothing"
    return f"certified  epsilon >= {at_least(certified, epsilon)}: {broken}"


def _counted(count: "Count") -> str:
    return f"{count.hits:,} of {count.trials:,}, {count.rate:.2%}"


def _interval(limits: tuple[float, float] | None) -> str:
    return "not measured" if limits is None else f"{limits[0]:.2%} to {limits[1]:.2%}"


ATTACK: Final = Command(
    "attack",
    "run an attack against real software",
    _attack,
    (
        Option("name", {"nargs": "?", "metavar": "NAME"}, "one of --list"),
        Option("--list", bool, "what each attack needs and breaks"),
        Option(
            "--target",
            None,
            "a library's noise, see --list, or module:attribute; by default one that it breaks",
        ),
        Option("--epsilon", 1.0, "what the target is used as if it had (1)"),
        Option("--delta", 1e-6, "of Gaussian noise (1e-6)"),
        Option("--sensitivity", 1.0, "of the value (1)"),
        Option("--value0", 0.0, "one value (0)"),
        Option("--value1", 1.0, "the other (1)"),
        Option("--size", int, "releases of each value"),
        Option("--confidence", 0.999, "of the limits (0.999)"),
        Option("--json", bool, "print JSON"),
    ),
    description="Run one attack against one target. It chooses its event on some releases and is "
    "measured on others; then the same with both values equal, where it must fail.",
)
