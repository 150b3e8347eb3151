"""Check that an attack breaks a target, or that the target withstands it.

Limits are exact binomial ones, each wrong with probability at most FALSE_ALARM.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpnoise.auditing.attacks import Attack
from dpnoise.auditing.attacks.base import OUTPUTS, Event, Outcome, Progress, no_progress
from dpnoise.auditing.targets import Target, make_target, unavailable_targets
from support.alarms import FALSE_ALARM

DELTA = 1e-6  # The delta of all Gaussian targets.


class Break(NamedTuple):
    """An attack, a target that it breaks, and the rates that it must reach."""

    attack: Attack
    target: str
    epsilon: float
    least: float
    most: float = 0.0
    n: int = 20_000

    def __str__(self) -> str:
        return f"{self.attack.name}-{self.target}-{self.epsilon:g}"


@dataclass(frozen=True)
class EventAttack(Attack):
    """An attack made of a function that returns an event."""

    name = "chosen"
    access = OUTPUTS
    chooses: Callable[[Target, float, float, int], Event]

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event of the function."""
        progress(0.5)
        return self.chooses(target, value0, value1, n)


def run_attack(
    attack: Attack, target: Target, value0: float = 0.0, value1: float = 1.0, n: int = 20_000
) -> Outcome:
    """Return the outcome of an attack and its placebo, with limits at FALSE_ALARM."""
    return attack(target, value0, value1, n=n, confidence=1 - FALSE_ALARM)


def peer(name: str, **claims: float) -> Target:
    """Return a target, or skip the test if its library has no build for this machine."""
    if name in unavailable_targets():
        pytest.skip(unavailable_targets()[name])
    return make_target(name, **claims)


def on_other_machine(target: Target, changed: float = 0.25) -> Target:
    """Return the target as on a machine that rounds a share of its noise to the next float."""
    rng = np.random.default_rng()

    def release(value: float, n: int) -> Any:
        noise = target(0.0, n)
        number = noise.dtype.type
        following = np.nextafter(noise, number(np.inf))
        return number(value) + np.where(rng.random(n) < changed, following, noise)

    return Target("elsewhere", target.noise, target.scale, release)


def check_break(row: Break) -> None:
    """Fail unless the rates reach those of the row, and certify more than is claimed."""
    target = peer(row.target, epsilon=row.epsilon, delta=DELTA)
    outcome = run_attack(row.attack, target, n=row.n)
    assert outcome.at0.rate >= row.least
    assert outcome.at1.rate <= row.most
    assert certified_epsilon(outcome, target) > row.epsilon
    check_placebo(outcome)


def check_withstands(outcome: Outcome, target: Target, epsilon: float) -> None:
    """Fail if P0 <= exp(k epsilon) P1 + k delta is refuted."""
    assert certified_epsilon(outcome, target) <= epsilon
    check_placebo(outcome)


def check_placebo(outcome: Outcome) -> None:
    """Fail if the attack has an advantage when both values are equal."""
    low, high = outcome.placebo_advantage or pytest.fail("no placebo")
    assert low <= 0 <= high


def certified_epsilon(outcome: Outcome, target: Target) -> float:
    """Return the epsilon that the outcome certifies at the delta of the target."""
    return outcome.epsilon_lower(DELTA if target.noise == "gaussian" else 0.0)
