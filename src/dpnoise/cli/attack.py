"""`dpnoise attack`: run one attack against one target, and print what it found."""

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from typing import Any

from dpnoise import targets
from dpnoise.cli.progress import progress_bar
from dpnoise.errors import ArgumentError


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "attack",
        help="run a published attack against real software",
        description="Run one attack against one target. It chooses its event on some releases and "
        "is measured on others; then the same with both values equal, where it must fail.",
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="one of --list")
    command.add_argument("--list", action="store_true", help="what each attack needs and breaks")
    command.add_argument("--target", help="a library's noise, see --list; by default one it breaks")
    command.add_argument("--epsilon", type=float, default=1.0, help="what the target claims (1)")
    command.add_argument("--delta", type=float, default=1e-6, help="of Gaussian noise (1e-6)")
    command.add_argument("--sensitivity", type=float, default=1.0, help="of the value (1)")
    command.add_argument("--value0", type=float, default=0.0, help="one value (0)")
    command.add_argument("--value1", type=float, default=1.0, help="the other (1)")
    command.add_argument("--size", type=int, help="releases of each value")
    command.add_argument("--confidence", type=float, default=0.999, help="of the limits (0.999)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_attack)


def _attack(asked: argparse.Namespace) -> None:
    attacks = _attacks()
    if asked.list or asked.name is None:
        _list(attacks)
        return
    if asked.name not in attacks:
        known = ", ".join(attacks)
        raise ArgumentError(f"There is no attack {asked.name!r}. Known: {known}.")
    attack = attacks[asked.name]()
    target = targets.named(
        asked.target or attack.default_target,
        epsilon=asked.epsilon,
        delta=asked.delta,
        sensitivity=asked.sensitivity,
    )
    with progress_bar(attack.name) as progress:
        outcome = attack(
            target,
            asked.value0,
            asked.value1,
            n=asked.size,
            confidence=asked.confidence,
            progress=progress,
        )
    delta = asked.delta if target.noise == "gaussian" else 0.0
    if asked.json:
        report = {**asdict(outcome), "epsilon_lower": outcome.epsilon_lower(delta)}
        print(json.dumps(report, indent=2))  # noqa: T201 - this is the command line
    else:
        _show(outcome, target, asked.epsilon, delta)


def _attacks() -> Any:
    """Import the attacks when they are needed: they bring Numba and SciPy."""
    return import_module("dpnoise.attacks").ATTACKS


def _list(attacks: Any) -> None:
    lines = []
    for attack in attacks.values():
        lines += [
            attack.name,
            f"  needs    {attack.access}",
            f"  breaks   {attack.breaks}",
            f"  source   {attack.source}",
        ]
    print("\n".join(lines))  # noqa: T201 - this is the command line
    print("\nTargets:", ", ".join(targets.names()))  # noqa: T201


def _show(outcome: Any, target: targets.Target, epsilon: float, delta: float) -> None:
    certified = outcome.epsilon_lower(delta)
    claim = f"epsilon {epsilon:g}" + (f", delta {delta:g}" if delta else "")
    version = f" {target.version}" if target.version else ""
    lines = [
        f"{outcome.attack} against {target.name}{version}, which claims {claim}",
        f"  event      {outcome.event}",
        f"  at {outcome.value0:<8g}{_counted(outcome.at0)}",
        f"  at {outcome.value1:<8g}{_counted(outcome.at1)}",
        f"  advantage  {_interval(outcome.advantage)}, at confidence {1 - outcome.error:g}",
        f"  placebo    {_interval(outcome.placebo_advantage)}, with both values equal",
        f"  certified  epsilon >= {certified:.3g}: "
        + ("BROKEN" if certified > epsilon else "not broken by this attack, which proves nothing"),
    ]
    print("\n".join(lines))  # noqa: T201 - this is the command line


def _counted(count: Any) -> str:
    return f"{count.hits:,} of {count.trials:,}, {count.rate:.2%}"


def _interval(limits: tuple[float, float]) -> str:
    return f"{limits[0]:.2%} to {limits[1]:.2%}"
