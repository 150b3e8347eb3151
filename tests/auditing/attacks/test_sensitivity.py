"""Sensitivity: float sums change by more than real ones, exact sums never."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import FALSE_ALARM

import dpnoise
from dpnoise.auditing.attacks.base import EventCount, Outcome
from dpnoise.auditing.attacks.sensitivity import (
    Neighbours,
    SensitivityAttack,
    find_neighbours,
    sum_target,
)

Data = NDArray[Any]
EPSILON = 1.0
LOWER = 1e12  # Of rows that are 10^12 or one more.


def interval(count: EventCount) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of the probability, given a count."""
    test = stats.binomtest(count.hits, count.trials)
    ends = test.proportion_ci(confidence_level=1 - FALSE_ALARM, method="exact")
    return float(ends.low), float(ends.high)


def is_allowed(outcome: Outcome, epsilon: float) -> bool:
    """Return whether the counts allow P0 <= e^epsilon P1, for the event and its complement."""
    low0, high1 = interval(outcome.at0)[0], interval(outcome.at1)[1]
    factor = math.exp(epsilon)
    return low0 <= factor * high1 and 1 - high1 <= factor * (1 - low0)


def float_release(total: Callable[[Data], Any], neighbours: Neighbours) -> Any:
    rng = np.random.default_rng()
    scale = neighbours.sensitivity / EPSILON
    return lambda data, n: rng.laplace(float(total(data)), scale, n)


def exact_release(neighbours: Neighbours) -> Any:
    mechanism = dpnoise.LaplaceMechanism(epsilon=EPSILON, sensitivity=neighbours.sensitivity)

    def release(data: Data, n: int) -> Any:
        total = neighbours.real_sum(data)
        whole = total.denominator == 1
        return mechanism.release(np.full(n, int(total) if whole else float(total)))

    return release


def left_to_right(data: Data) -> Any:
    """Add the rows one after the other, in their own format."""
    return np.add.accumulate(data)[-1]


def reordered(total: Callable[[Data], Any], rows: int = 2**20) -> Neighbours:
    """Find two orders of the same rows whose sums differ.

    Some rows are the upper bound, all others the lower bound. The former come first, last or evenly
    spread. Their number is the 3 * 2^k with the largest difference of sums.
    """

    def extremes(t: int) -> tuple[float, Data, Data]:
        first = np.arange(t)
        orders = []
        for indices in (first, rows - 1 - first, first * rows // t):
            orders.append(np.full(rows, LOWER))
            orders[-1][indices] = LOWER + 1
        sums = [float(total(order)) for order in orders]
        least, most = min(sums), max(sums)
        return most - least, orders[sums.index(least)], orders[sums.index(most)]

    numbers = (3 * 2**k for k in range((rows // 3).bit_length()))
    _, *data = max(map(extremes, numbers), key=lambda extreme: extreme[0])
    return Neighbours("reordered", (data[0], data[1]), LOWER, LOWER + 1, 1.0, 1.0)


def removed(pairs: int) -> Neighbours:
    """Build float32 data sets that differ by one row, for addition from left to right.

    4096 rows of 4096 add up to 2^24, where the spacing of floats becomes 2. Without one of them the
    sum stays below, where the spacing is 1. Then come pairs of rows 1.25 and -0.75. From 2^24 on
    each pair is rounded to +2 and -0, below to +1 and -1.
    """
    large = np.full(4096, 4096.0, dtype=np.float32)
    small = np.tile(np.array([1.25, -0.75], dtype=np.float32), pairs)
    data = np.concatenate([large, small])
    return Neighbours("removed", (data, data[1:]), -4096.0, 4096.0, 4096.0, 0.25)


def columns(data: Data) -> Any:
    """NumPy's own sum of a column of a table, which adds from left to right."""
    return np.sum(np.stack([data, data], axis=1), axis=0)[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("total", [np.sum, left_to_right, columns, math.fsum])
def test_one_changed_row_moves_every_float_sum_by_a_step_between_floats(
    total: Callable[[Data], Any],
) -> None:
    rows = 2**18
    neighbours = find_neighbours(total, rows=rows)
    assert int((neighbours.data[0] != neighbours.data[1]).sum()) == 1
    assert neighbours.sensitivity == 1
    assert neighbours.gap(total) >= np.spacing(1e12 * rows) > 30
    assert neighbours.gap(neighbours.real_sum) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(("total", "least"), [(np.sum, 128), (left_to_right, 4096)])
def test_another_order_of_the_same_rows_moves_a_float_sum(
    total: Callable[[Data], Any], least: float
) -> None:
    """From left to right, 2^13 rows that come first count in full, and none of those at the end."""
    neighbours = reordered(total)
    data0, data1 = neighbours.data
    assert np.array_equal(np.sort(data0), np.sort(data1))
    assert neighbours.gap(total) >= least * neighbours.sensitivity
    assert neighbours.gap(neighbours.real_sum) == 0


def test_the_order_does_not_move_a_correctly_rounded_sum() -> None:
    assert reordered(math.fsum, rows=2**14).gap(math.fsum) == 0


@pytest.mark.parametrize("total", [left_to_right, columns])
def test_one_removed_row_moves_a_float32_sum_by_all_rows_after_it(
    total: Callable[[Data], Any],
) -> None:
    """4096 for the row itself, and 2 more for each pair that is rounded differently."""
    pairs = 2**16
    neighbours = removed(pairs)
    assert neighbours.gap(total) == 4096 + 2 * pairs
    assert neighbours.gap(neighbours.real_sum) == neighbours.sensitivity == 4096
    assert neighbours.gap(np.sum) < 2 * 4096, "pairwise addition is not deceived by this"


def test_exact_sums_of_random_neighbours_stay_within_the_sensitivity() -> None:
    rng = np.random.default_rng()
    for _ in range(20):
        data = rng.uniform(-1, 1, 1000) * 2.0 ** rng.integers(-20, 20, 1000)
        index = int(rng.integers(1000))
        neighbours = Neighbours(
            "removed", (data, np.delete(data, index)), -8.0, 8.0, sensitivity=8.0, grid=2.0**-10
        )
        assert neighbours.gap(neighbours.real_sum) <= neighbours.sensitivity
        shuffled = Neighbours("reordered", (data, rng.permutation(data)), -8.0, 8.0, 8.0, 2.0**-10)
        assert shuffled.gap(shuffled.real_sum) == 0


CASES = [
    pytest.param(partial(find_neighbours, np.sum), np.sum, id="changed, np.sum"),
    pytest.param(
        partial(find_neighbours, math.fsum, rows=2**17), math.fsum, id="changed, math.fsum"
    ),
    pytest.param(partial(reordered, np.sum), np.sum, id="reordered, np.sum"),
    pytest.param(partial(removed, 2**17), left_to_right, id="removed, float32"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("make", "total"), CASES)
def test_noise_for_the_real_sensitivity_does_not_hide_a_float_sum(
    make: Callable[[], Neighbours], total: Callable[[Data], Any]
) -> None:
    """A release is on the wrong side if its noise exceeds half of the gap.

    The error of the middle of two medians is less than a scale, except with probability 1e-20. The
    number of releases on the wrong side exceeds its limit with probability FALSE_ALARM.
    """
    neighbours, n = make(), 200
    target = sum_target(neighbours, float_release(total, neighbours), epsilon=EPSILON)
    outcome = SensitivityAttack()(target, n=n)
    wrong = math.exp(1 - neighbours.gap(total) / 2 / target.scale) / 2
    most = stats.binom.isf(FALSE_ALARM, n, wrong)
    assert most <= 5
    assert outcome.at0.hits >= n - most
    assert outcome.at1.hits <= most
    assert not is_allowed(outcome, EPSILON)
    assert outcome.epsilon_lower() > 2 * EPSILON


@pytest.mark.sample(1)
@pytest.mark.parametrize(("make", "total"), CASES)
def test_noise_on_an_exact_sum_keeps_to_epsilon(
    make: Callable[[], Neighbours], total: Callable[[Data], Any]
) -> None:
    del total
    neighbours = make()
    target = sum_target(neighbours, exact_release(neighbours), epsilon=EPSILON)
    outcome = SensitivityAttack()(target, n=50_000)
    assert is_allowed(outcome, EPSILON)
    if neighbours.relation == "reordered":
        assert is_allowed(outcome, 0.0), "the same rows: the order must not show at all"
    else:
        assert not is_allowed(outcome, EPSILON / 2), "the test can tell a loss from half of it"


def test_the_attack_says_so_if_it_sees_no_difference() -> None:
    target = sum_target(removed(1), lambda _, n: np.zeros(n))
    outcome = SensitivityAttack()(target, n=10)
    assert outcome.event.startswith("both medians are")
    assert (outcome.at0.hits, outcome.at1.hits) == (0, 0)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="upper must be at least 6, got 5"):
        find_neighbours(np.sum, lower=5, upper=5)
