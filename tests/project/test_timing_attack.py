"""Timing: real differences are certified, others are not. All clocks here are artificial."""

import gc
import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import FALSE_ALARM, LONG

from benchmarks.timing_attack import Event, Half, certify, choose_event, time_calls
from dpnoise.auditing.attacks.certified_bounds import lower_limit, upper_limit

Times = NDArray[np.int64]

N = 40_000


def halves(times: Times, at_value1: NDArray[np.bool_]) -> tuple[Half, Half]:
    """Assign times to the two halves in turn."""
    return (
        Half(times[~at_value1][::2], times[at_value1][::2]),
        Half(times[~at_value1][1::2], times[at_value1][1::2]),
    )


def random_order(n: int = N) -> NDArray[np.bool_]:
    """Return which calls have value1: every other one, shuffled."""
    return np.random.default_rng().permutation(np.arange(n) % 2 == 1)


def drifting_times(n: int = N) -> Times:
    """Return the times of a machine that is slow, then busy, then quick."""
    rng = np.random.default_rng()
    level = np.repeat([5000, 9000, 4000, 4016], n // 4)
    return np.asarray(level + rng.integers(0, 40, n) * 8 + 50_000 * (rng.random(n) < 0.01))


class Clockwork:
    """A call with its clock; a call takes `cost(value, call)`."""

    def __init__(self, cost: Callable[[Any, int], int]) -> None:
        self.now = 0
        self.cost = cost
        self.calls = count()
        self.values: list[Any] = []
        self.collecting: list[bool] = []

    def __call__(self, value: Any) -> None:
        """Record the value, and advance the clock."""
        self.values.append(value)
        self.collecting.append(gc.isenabled())
        self.now += self.cost(value, next(self.calls))

    def time_calls(self, value0: Any, value1: Any, n: int = 4000) -> tuple[Half, Half]:
        """Time its calls with its clock."""
        return time_calls(self, value0, value1, n, lambda: self.now)


@pytest.mark.parametrize("error", [0.1, 0.001])
@pytest.mark.parametrize("trials", [25, 400 if LONG else 150])
def test_values_of_equal_times_are_distinguished_less_often_than_the_error_says(
    trials: int, error: float
) -> None:
    """The exact rate, for every total number of hits and for times of any kind.

    Given the times, the hits of one value are hypergeometric. An epsilon is certified if the lower
    limit of one value is above the upper limit of the other.
    """
    low = np.array([lower_limit(hits, trials, error / 2) for hits in range(trials + 1)])
    high = np.array([upper_limit(hits, trials, error / 2) for hits in range(trials + 1)])
    hits, other = np.meshgrid(np.arange(trials + 1), np.arange(trials + 1))
    alarm = low[hits] > high[other]
    hits, both = hits[alarm], (hits + other)[alarm]
    probabilities = stats.hypergeom.pmf(hits, 2 * trials, both, trials)
    rates = np.bincount(both, probabilities, 2 * trials + 1)
    assert max(rates) <= error


def test_nothing_is_certified_if_the_time_does_not_depend_on_the_value() -> None:
    """It raises a false alarm with probability below FALSE_ALARM, by the test above."""
    assert certify(*halves(drifting_times(), random_order()), error=FALSE_ALARM).epsilon == 0.0


def test_a_slow_path_that_only_one_value_sometimes_takes_is_found() -> None:
    """One call in 100 of value1 takes 1,000 ns more, on a machine with times in 312 ns.

    About 100 of 10,000 calls do. Fewer than 30 have a probability of 1e-16, and 30 against none
    certify log(lower_limit(30) / upper_limit(0)).
    """
    rng = np.random.default_rng()
    at_value1 = random_order()
    times = 5000 + rng.integers(0, 40, N) * 8 + 1000 * (at_value1 & (rng.random(N) < 0.01))
    certificate = certify(*halves(times, at_value1), error=0.001)
    assert certificate.event.at_value1
    assert certificate.event.longer
    each = 0.001 / 2
    least = math.log(lower_limit(30, 10_000, each) / upper_limit(0, 10_000, each))
    assert certificate.epsilon >= least > 0.5


@pytest.mark.parametrize("slower", [0, 1])
def test_a_shift_of_all_times_is_found_whichever_value_it_is_of(slower: int) -> None:
    """A shift by 8 of 312 ns, a step of the clock, with drift a hundred times larger.

    The slower value never takes the shortest of the 40 times; the other does in 1 of 40 cases. This
    is 62 of 10,000 calls while the machine is quickest. Fewer than 19, which certify nothing, have
    a probability of 1e-9.
    """
    at_value1 = random_order()
    certificate = certify(
        *halves(drifting_times() + 8 * (at_value1 == bool(slower)), at_value1), error=0.001
    )
    assert not certificate.event.longer
    assert certificate.event.at_value1 == (slower == 0)
    assert certificate.epsilon > 0


def test_the_half_that_certifies_does_not_affect_the_choice() -> None:
    """The halves differ at other times, below 60 ns and above 1,000: nothing is certified."""
    first = Half(np.full(1000, 50), np.full(1000, 70))
    second = Half(np.full(1000, 2000), np.full(1000, 3000))
    certificate = certify(first, second, error=0.001)
    assert certificate.event == choose_event(first) == Event(50, longer=False, at_value1=False)
    assert (certificate.hits, certificate.epsilon) == ((0, 0), 0.0)
    swapped = certify(second, first, error=0.001)
    assert (swapped.event.threshold, swapped.epsilon) == (2000, 0.0)


def test_all_hits_against_none_certify_the_same_as_in_any_attack() -> None:
    """e^(1/n) and 1 - e^(1/n) are the limits of n hits of n and of none; e is half the error."""
    certificate = certify(*Clockwork(lambda value, _: 100 + value).time_calls(0, 1), error=0.002)
    assert (certificate.hits, certificate.trials) == ((1000, 0), 1000)
    root = 0.001 ** (1 / 1000)
    assert certificate.epsilon == pytest.approx(math.log(root / (1 - root)))


def test_a_delta_that_is_claimed_is_not_counted() -> None:
    half = Half(np.full(1000, 50), np.concatenate([np.full(980, 50), np.full(20, 90)]))
    assert certify(half, half, error=0.001).epsilon > 0
    assert certify(half, half, error=0.001, delta=0.1).epsilon == 0.0


def test_either_half_has_as_many_calls_of_either_value() -> None:
    clockwork = Clockwork(lambda value, _: 100 + value)
    for half in clockwork.time_calls(3, 7, n=4003):
        assert half.at0.tolist() == [103] * 1000
        assert half.at1.tolist() == [107] * 1000
    assert set(clockwork.values) == {3, 7}


def test_the_order_and_the_halves_are_random() -> None:
    """Two orders of 4,000 calls are the same with a probability of 1e-1200."""
    clockwork, other_clockwork = Clockwork(lambda _, call: call), Clockwork(lambda _, call: call)
    first, second = clockwork.time_calls(0, 1), other_clockwork.time_calls(0, 1)
    assert clockwork.values != other_clockwork.values
    assert set(first[0].at0.tolist()) != set(second[0].at0.tolist())


def test_a_time_that_depends_only_on_the_turn_reveals_nothing() -> None:
    """It raises a false alarm with probability below FALSE_ALARM."""
    by_turns = Clockwork(lambda _, call: 100 + 50 * (call % 2) + call // 100)
    assert certify(*by_turns.time_calls(0, 1), error=FALSE_ALARM).epsilon == 0.0


@pytest.mark.parametrize(
    ("value0", "value1"),
    [(2**30 - 1, 2**30), (0.5, 0.25), (np.int64(3), np.int64(4)), (np.zeros(5), np.ones(5))],
)
def test_each_call_gets_a_new_and_equal_value(value0: Any, value1: Any) -> None:
    clockwork = Clockwork(lambda value, _: 1000 if np.array_equal(value, value1) else 500)
    first, second = clockwork.time_calls(value0, value1)
    for half in (first, second):
        assert set(half.at0.tolist()) == {500}
        assert set(half.at1.tolist()) == {1000}
    assert {type(value) for value in clockwork.values} == {type(value0)}
    assert not any(value is value0 or value is value1 for value in clockwork.values)


def test_no_garbage_is_collected_while_calls_are_timed() -> None:
    assert gc.isenabled()
    clockwork = Clockwork(lambda _value, _call: 1)
    clockwork.time_calls(0, 1)
    assert not any(clockwork.collecting)
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_call_that_fails() -> None:
    def raise_error(value: int) -> None:
        raise ZeroDivisionError(value)

    with pytest.raises(ZeroDivisionError):
        time_calls(raise_error, 0, 1, 4000)
    assert gc.isenabled()


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="n must be at least 400, got 399"):
        time_calls(lambda _: None, 0, 1, 399)
