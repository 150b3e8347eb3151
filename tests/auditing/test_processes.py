"""Side-channel checks: they find repeated noise and timing only; clocks are simulated."""

import math
import os
import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import check_probability
from support.choices import sample_cases

import dpnoise
from dpnoise.auditing.processes import (
    PHASE,
    Observation,
    ProcessError,
    check_forks,
    check_restarts,
    check_stored_noise,
    check_timing,
    release_program,
)
from dpnoise.auditing.targets import Target, make_target, wrap
from dpnoise.core.safe_text import format_percent_near_limit

Floats = NDArray[np.float64]


def one_by_one(draw: Callable[[], float]) -> Callable[[float, int], Floats]:
    return lambda value, n: np.array([value + draw() for _ in range(n)])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "target",
    [
        make_target("numpy.laplace"),
        make_target("numpy.RandomState.normal"),
        make_target("random.gauss"),
    ],
    ids=lambda target: target.name,
)
def test_a_generator_copied_by_a_fork_repeats_its_noise(target: Target) -> None:
    seen = check_forks(target)
    assert seen.found
    assert seen.measured == {"pairs": 3, "equal": 3}
    assert seen.words == "All 3 children drew the same 64 releases."


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "target",
    [
        make_target("dpnoise.laplace"),
        make_target("dpnoise.release"),
        make_target("dpnoise.release.gaussian"),
        wrap(one_by_one(dpnoise.Generator().laplace), "one at a time"),
        wrap(one_by_one(partial(random.SystemRandom().gauss, 0, 1)), "SystemRandom"),
    ],
    ids=lambda target: target.name,
)
def test_noise_without_state_differs_between_forked_children(target: Target) -> None:
    """64 releases of 50 random bits or more are equal with probability below 2^-3200."""
    assert not check_forks(target).found


def test_the_parent_is_not_changed_by_its_children() -> None:
    bits = np.random.PCG64()
    rng = np.random.Generator(bits)
    target = wrap(lambda value, n: value + rng.laplace(size=n))
    target(0.0, 1)
    before = bits.state
    target(0.0, 1)
    after = bits.state
    bits.state = before
    check_forks(target)
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
        check_forks(only_in_children(fail))


def test_a_child_that_dies_or_hangs_is_reported_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children: list[int] = []
    fork = os.fork

    def fork_and_note() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", fork_and_note)
    with pytest.raises(ProcessError, match=r"A forked child ended its process with status 1\."):
        check_forks(only_in_children(lambda: os._exit(1)))
    with pytest.raises(ProcessError, match=r"gave no answer in 0\.1 s, and was killed"):
        check_forks(only_in_children(partial(time.sleep, 3600)), timeout_s=0.1)
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_a_fixed_seed_repeats_its_noise_after_a_restart() -> None:
    seeded = "import random; random.seed(1); print([random.gauss(0, 1) for _ in range(9)])"
    assert check_restarts(seeded).found


def test_a_fresh_seed_does_not() -> None:
    for name in sample_cases(["numpy.laplace", "dpnoise.release"], 1):
        assert not check_restarts(release_program(name)).found, name


def test_a_program_that_fails_or_hangs_is_reported() -> None:
    with pytest.raises(ProcessError, match="The program failed: NameError"):
        check_restarts("print(nothing)")
    with pytest.raises(ProcessError, match="The program failed: it printed nothing"):
        check_restarts("pass")
    with pytest.raises(ProcessError, match=r"The program gave no answer in 0\.1 s"):
        check_restarts("import time; time.sleep(3600)", timeout_s=0.1)


class Clockwork:
    """A target and its clock: a release takes the time `cost(noise, call)`.

    The load of the machine, `load[call]`, is added for each call, of the target and of others.
    """

    def __init__(
        self, cost: Callable[[float, int], float], load: Floats | None = None, tick: int = 1
    ) -> None:
        self.now = self.calls = self.reads = 0
        self.cost, self.load, self.tick = cost, load, tick
        self.rng = np.random.default_rng()
        self.target = wrap(self.release, "clockwork")

    def release(self, value: float, n: int) -> Floats:
        """Release the value, and advance the clock."""
        noise = self.rng.laplace(size=n)
        self.calls += 1
        self.now += 1000 + round(self.cost(float(noise[0]), self.calls))
        return value + noise

    def clock(self) -> int:
        """Read the clock: before a call and after it."""
        self.reads += 1
        if self.load is not None and self.reads % 2 == 0:
            self.now += round(self.load[self.reads // 2 % len(self.load)])
        return self.now // self.tick * self.tick

    def check(self, run: Callable[..., Observation], n: int = 2000) -> Observation:
        """Run a check on the target with its simulated clock."""
        return run(self.target, 5.0, n=n, clock=self.clock)


def jitter() -> float:
    return random.SystemRandom().expovariate(0.01)


def test_time_that_grows_with_the_noise_is_found_through_jitter() -> None:
    seen = Clockwork(lambda noise, _: 100 * abs(noise) + jitter()).check(check_timing)
    assert seen.found
    assert seen.measured["correlation"] > 0.2
    assert seen.measured["noise_when_slow"] > seen.measured["noise_otherwise"]


def test_time_of_every_other_call_is_found_through_jitter() -> None:
    """It distinguishes the two kinds with probability 1 - exp(-1)/2, which is 0.816.

    In a third of 2,000 releases that is measured with a standard deviation below 0.023.
    """
    seen = Clockwork(lambda _, call: 100 * (call % 2) + jitter()).check(check_stored_noise)
    assert seen.found
    assert "is slower" in seen.words
    assert seen.measured["least"] == pytest.approx(0.816, abs=0.14)


def test_jitter_alone_is_not_accused() -> None:
    clockwork = Clockwork(lambda _noise, _call: jitter())
    for run in (check_timing, check_stored_noise):
        check_probability(clockwork.check(run).measured["p_value"])


def test_constant_time_is_not_accused() -> None:
    clockwork = Clockwork(lambda _noise, _call: 0.0)
    assert not any(clockwork.check(run).found for run in (check_timing, check_stored_noise))


def test_a_small_difference_of_phase_is_measured_and_not_accused() -> None:
    """Of two exponentials of mean 100, X + 10 is above Y with probability 1 - exp(-0.1)/2.

    That is 0.548, and in 20,000 releases it is measured with a standard deviation of 0.004.
    """
    seen = Clockwork(lambda _, call: 10 * (call % 2) + jitter()).check(check_stored_noise, n=20_000)
    assert seen.measured["p_value"] < 1e-8
    assert abs(seen.measured["odd_slower"] - 0.5) == pytest.approx(0.048, abs=0.024)
    assert not seen.found


CALLS = 3 * 2000  # Each round calls the target, the control, and one of the two.
EXTRA = np.random.default_rng().exponential(100.0, CALLS)
LOADS = {
    "every other call is slow": 400.0 * (np.arange(CALLS) % 2),
    "every other round is slow": 400.0 * (np.arange(CALLS) // 3 % 2) + EXTRA,
    "slow and fast in turn for a while": np.where(
        np.arange(CALLS) // 500 % 2, 400.0 * (np.arange(CALLS) % 2), EXTRA
    ),
    "bursts": np.where(np.arange(CALLS) // 700 % 3 == 0, 50 * EXTRA, EXTRA),
    "drift": np.arange(CALLS) + EXTRA,
    "seldom": np.where(EXTRA > 400, 1e6, 0.0),
}


@pytest.mark.long
@pytest.mark.parametrize("load", [*LOADS, "a clock that ticks seldom"])
def test_a_busy_machine_is_not_accused_of_keeping_gaussians(load: str) -> None:
    """A coin decides which releases are odd; a load independent of it gives uniform p-values.

    A third of 2,000 releases, at a standard deviation of 0.023, gives more than 60 % with
    probability 10^-5, and all three thirds do so with 10^-15.
    """
    ticks = load not in LOADS
    looks = [
        Clockwork(
            lambda *_: jitter() if ticks else 0.0,
            EXTRA if ticks else LOADS[load],
            tick=500 if ticks else 1,
        ).check(check_stored_noise)
        for _ in range(6)
    ]
    assert not any(look.found for look in looks)
    p_values = [look.measured["p_value"] for look in looks]
    check_probability(float(stats.kstest(p_values, "uniform").pvalue))


def test_a_machine_that_treats_a_control_alike_is_not_accused() -> None:
    """Its clock depends on the coins: it advances with each call of the target."""
    clockwork = Clockwork(lambda *_: jitter())

    def clock() -> int:
        clockwork.reads += 1
        clockwork.now += 400 * (clockwork.calls % 2) * (clockwork.reads % 2 == 0)
        return clockwork.now

    seen = check_stored_noise(clockwork.target, n=2000, clock=clock)
    assert seen.measured["p_value"] < 1e-8
    assert seen.measured["least"] > 0.6
    assert seen.measured["control"] > 0.6
    assert not seen.found


def test_what_one_of_three_repeats_does_not_show_is_not_accused() -> None:
    """The last third is jitter: above 60 % with probability 10^-5, because of 6,000 releases."""
    n = 6000
    early = 100 + 1.5 * n * 0.6  # The target is called one and a half times in a round.
    clockwork = Clockwork(lambda _, call: 300 * (call % 2) * (call < early) + jitter())
    seen = clockwork.check(check_stored_noise, n=n)
    assert seen.measured["p_value"] < 1e-8
    assert max(seen.measured["odd_slower"], 1 - seen.measured["odd_slower"]) > 0.6
    assert seen.measured["least"] < 0.6
    assert not seen.found


class Counted(random.Random):
    """A Mersenne Twister, and a clock that advances by 100 for each uniform drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.stored: float | None = None

    def random(self) -> float:
        """Return the next uniform."""
        self.now += 100
        return super().random()

    def polar(self, *, store: bool) -> float:
        """Draw by Marsaglia's method, as std::normal_distribution and RandomState.normal do."""
        if self.stored is not None:
            kept, self.stored = self.stored, None
            return kept
        radius = 0.0
        while not 0 < radius < 1:
            x, y = 2 * self.random() - 1, 2 * self.random() - 1
            radius = x * x + y * y
        factor = math.sqrt(-2 * math.log(radius) / radius)
        self.stored = factor * y if store else None
        return factor * x


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("kept: random.gauss", lambda rng: rng.gauss(0, 1)),
        ("random.normalvariate", lambda rng: rng.normalvariate(0, 1)),
        ("kept: polar, both used", lambda rng: rng.polar(store=True)),
        ("polar, one thrown away", lambda rng: rng.polar(store=False)),
        ("inverse", lambda rng: -math.log(1 - rng.random())),
    ],
)
def test_the_uniforms_that_a_call_draws_show_which_sampler_keeps_a_gaussian(
    name: str, draw: Callable[[Counted], float]
) -> None:
    rng = Counted()
    seen = check_stored_noise(
        wrap(one_by_one(lambda: draw(rng)), name), n=2000, clock=lambda: rng.now
    )
    assert seen.found == name.startswith("kept"), seen.words


@pytest.mark.parametrize("share", [0.59996, 0.6, 0.60004, 0.98])
def test_no_share_is_shown_on_the_other_side_of_its_threshold(share: float) -> None:
    shown = float(format_percent_near_limit(share, PHASE).removesuffix("%")) / 100
    assert (shown > PHASE, shown < PHASE) == (share > PHASE, share < PHASE)


def test_bad_arguments_are_named() -> None:
    target = make_target("numpy.laplace")
    with pytest.raises(ValueError, match="children must be at least 2, got 1"):
        check_forks(target, children=1)
    with pytest.raises(ValueError, match="n must be at least 1000, got 10"):
        check_timing(target, n=10)
