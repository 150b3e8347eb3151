"""Processes: repeated noise is found where it is and nowhere else; clocks here are artificial."""

import os
import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from alarms import check_probability
from numpy.typing import NDArray

import dpnoise
from dpnoise.attacks.processes import (
    Observation,
    ProcessError,
    forked,
    phased,
    program_of,
    restarted,
    timed,
)
from dpnoise.targets import Target, named, wrap

Floats = NDArray[np.float64]


def one_by_one(draw: Callable[[], float]) -> Callable[[float, int], Floats]:
    return lambda value, n: np.array([value + draw() for _ in range(n)])


@pytest.mark.parametrize(
    "target",
    [
        named("numpy.laplace"),
        named("numpy.RandomState.normal"),
        named("random.gauss"),
    ],
    ids=lambda target: target.name,
)
def test_a_generator_copied_by_a_fork_repeats_its_noise(target: Target) -> None:
    seen = forked(target)
    assert seen.found
    assert seen.measured == {"pairs": 3, "equal": 3}
    assert seen.words == "All 3 children drew the same 64 releases."


@pytest.mark.parametrize(
    "target",
    [
        named("dpnoise.laplace"),
        named("dpnoise.release"),
        named("dpnoise.release.gaussian"),
        wrap(one_by_one(dpnoise.Generator().laplace), "one at a time"),
        wrap(one_by_one(partial(random.SystemRandom().gauss, 0, 1)), "SystemRandom"),
    ],
    ids=lambda target: target.name,
)
def test_noise_without_state_differs_between_forked_children(target: Target) -> None:
    """64 releases of 50 random bits or more are equal with probability below 2^-3200."""
    assert not forked(target).found


def test_the_parent_is_not_changed_by_its_children() -> None:
    bits = np.random.PCG64()
    rng = np.random.Generator(bits)
    target = wrap(lambda value, n: value + rng.laplace(size=n))
    target(0.0, 1)
    before = bits.state
    target(0.0, 1)
    after = bits.state
    bits.state = before
    forked(target)
    assert bits.state == after, "forked draws one release in the parent, to have it seeded"


def only_in_children(action: Callable[[], object]) -> Target:
    parent = os.getpid()

    def release(_: float, n: int) -> Floats:
        if os.getpid() != parent:
            action()
        return np.zeros(n)

    return wrap(release, "odd")


def test_an_exception_in_a_child_is_shown_in_the_parent() -> None:
    def fail() -> None:
        raise OSError("no entropy")

    with pytest.raises(ProcessError, match=r"A forked child failed: .*OSError: no entropy"):
        forked(only_in_children(fail))


def test_a_child_that_dies_or_hangs_is_reported_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children: list[int] = []
    fork = os.fork

    def remembered() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", remembered)
    with pytest.raises(ProcessError, match="A forked child failed: no output"):
        forked(only_in_children(lambda: os._exit(1)))
    with pytest.raises(ProcessError, match=r"gave no answer in 0\.1 s, and was killed"):
        forked(only_in_children(partial(time.sleep, 3600)), timeout_s=0.1)
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_a_fixed_seed_repeats_its_noise_after_a_restart() -> None:
    seeded = "import random; random.seed(1); print([random.gauss(0, 1) for _ in range(9)])"
    assert restarted(seeded).found


@pytest.mark.parametrize("name", ["numpy.laplace", "dpnoise.release"])
def test_a_fresh_seed_does_not(name: str) -> None:
    assert not restarted(program_of(name)).found


def test_a_program_that_fails_or_hangs_is_reported() -> None:
    with pytest.raises(ProcessError, match="The program failed: NameError"):
        restarted("print(nothing)")
    with pytest.raises(ProcessError, match="The program failed: it printed nothing"):
        restarted("pass")
    with pytest.raises(ProcessError, match=r"The program gave no answer in 0\.1 s"):
        restarted("import time; time.sleep(3600)", timeout_s=0.1)


class Clockwork:
    """A target and its clock: each release takes as long as `cost(noise, call)` says."""

    def __init__(self, cost: Callable[[float, int], float]) -> None:
        self.now = self.calls = 0
        self.cost = cost
        self.rng = np.random.default_rng()
        self.target = wrap(self.release, "clockwork")

    def release(self, value: float, n: int) -> Floats:
        """Release the value, and set the clock forward."""
        noise = self.rng.laplace(size=n)
        self.calls += 1
        self.now += 1000 + round(self.cost(float(noise[0]), self.calls))
        return value + noise

    def seen(self, look: Callable[..., Observation], n: int = 2000) -> Observation:
        """Look at the target with its own clock."""
        return look(self.target, 5.0, n=n, clock=lambda: self.now)


def jitter() -> float:
    return random.SystemRandom().expovariate(0.01)


def test_time_that_grows_with_the_noise_is_found_through_jitter() -> None:
    seen = Clockwork(lambda noise, _: 100 * abs(noise) + jitter()).seen(timed)
    assert seen.found
    assert seen.measured["correlation"] > 0.2
    assert seen.measured["noise_when_slow"] > seen.measured["noise_otherwise"]


def test_time_of_every_other_call_is_found_through_jitter() -> None:
    seen = Clockwork(lambda _, call: 100 * (call % 2) + jitter()).seen(phased)
    assert seen.found
    assert "is slower" in seen.words


def test_jitter_alone_is_not_accused() -> None:
    clockwork = Clockwork(lambda _noise, _call: jitter())
    for look in (timed, phased):
        check_probability(clockwork.seen(look).measured["p_value"])


def test_constant_time_is_not_accused() -> None:
    clockwork = Clockwork(lambda _noise, _call: 0.0)
    assert not any(clockwork.seen(look).found for look in (timed, phased))


def test_a_small_difference_of_phase_is_measured_and_not_accused() -> None:
    """Of two exponentials of mean 100, X + 5 is above Y with probability 1 - exp(-0.05)/2.

    That is 0.524, and in 10^5 releases it is measured with a standard deviation of 0.002.
    """
    seen = Clockwork(lambda _, call: 5 * (call % 2) + jitter()).seen(phased, n=100_000)
    assert seen.measured["p_value"] < 1e-8
    assert abs(seen.measured["even_slower"] - 0.5) == pytest.approx(0.024, abs=0.012)
    assert not seen.found


def test_bad_arguments_are_named() -> None:
    target = named("numpy.laplace")
    with pytest.raises(ValueError, match="Expected children=1 >= 2"):
        forked(target, children=1)
    with pytest.raises(ValueError, match="Expected n=10 >= 1000"):
        timed(target, n=10)
