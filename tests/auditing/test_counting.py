"""The last count: its calls, and which limits a finding has."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

import dpnoise
from dpnoise.auditing import counting
from dpnoise.auditing.attacks.base import OUTPUTS, Event, EventCount
from dpnoise.auditing.attacks.certified_bounds import certified_epsilon
from dpnoise.auditing.counting import Candidate, CountSizes, _periods
from dpnoise.auditing.options import AuditOptions

EVENT = Event("y is above 1", lambda y: y > 1)
rng = np.random.default_rng()


def candidate() -> Candidate:
    return Candidate("shared", OUTPUTS, EVENT, (1, 0), ("1", "0"))


@pytest.mark.parametrize("tossed", [False, True])
def test_the_final_count_takes_its_releases_from_many_calls(*, tossed: bool) -> None:
    sizes: dict[int, list[int]] = {0: [], 1: []}

    def draw(value: int, n: int) -> NDArray[np.float64]:
        sizes[value].append(n)
        return value + rng.laplace(size=n)

    plan = CountSizes(trials=20_000, most=1 << 20, calls=300)
    (counted,) = counting.count_events([candidate()], draw, plan, "mine", tossed=tossed)
    assert [len(sizes[0]), len(sizes[1])] == [300] * 2
    assert [count.trials for count in counted.counts] == [sum(sizes[1]), sum(sizes[0])]
    assert max(sizes[0]) - min(sizes[0]) <= 1


def test_a_report_says_which_limits_were_used() -> None:
    options = AuditOptions(epsilon=1.0)

    def words(hits0: list[int]) -> str:
        calls = [[EventCount(hits, 1000) for hits in at] for at in (hits0, [10] * len(hits0))]
        finding = counting.certify(candidate().with_calls(calls), options, 0.001)
        return f"{finding.limits}: {counting.describe_limits([finding], options)}"

    assert words([500] * 100).startswith("exact: Limits are exact (Clopper and Pearson): the")
    assert "Whatever the dependence of releases within a call, epsilon is at least" in words([500])
    assert words([482, 518] * 50).startswith("widened: Limits allow for 1.39 times")
    calls = [[EventCount(500, 1000)] * 100, [EventCount(10, 1000)] * 100]
    exact = counting.certify(candidate().with_calls(calls), options, 0.001)
    hardly = dataclasses.replace(exact, limits="widened", dispersion=1.002)
    assert counting.describe_limits([hardly], options).startswith("No widening was needed: the")
    suspect = words([300, 700] * 50)
    assert suspect.startswith("any dependence: The counts of calls varied more")
    alone = AuditOptions(epsilon=1.0, one_by_one=True)
    assert "each call made one release" in counting.describe_limits([], alone)
    report = dpnoise.audit(lambda bit, n: [bit] * n, 1.0, neighbours=[(0, 1)], budget=2_000)
    assert "Limits are exact (Clopper and Pearson)" in report.method


def test_calls_of_one_release_are_independent_trials() -> None:
    """Their variance says nothing that the counts do not: the limits are the exact ones."""
    calls = [[EventCount(hits, 100) for hits in (20, 80) * 50], [EventCount(5, 100)] * 100]
    counted = candidate().with_calls(calls)
    finding = counting.certify(counted, AuditOptions(epsilon=1.0, one_by_one=True), 0.001)
    exact = certified_epsilon(5_000, 10_000, 500, 10_000, error=0.001)
    assert (finding.certified, finding.if_dependent) == (exact, exact)
    dependent = counting.certify(counted, AuditOptions(epsilon=1.0), 0.001)
    assert (dependent.limits, dependent.dispersion > 10) == ("any dependence", True)
    assert 0 < dependent.certified == dependent.if_dependent < exact


@pytest.mark.parametrize("period", [1, 37, 5_000])
def test_the_distances_at_which_the_first_releases_repeat_are_found(period: int) -> None:
    """The second part is often missing, and never repeats then."""
    block = np.column_stack([np.full(period, 2.0), rng.random(period), rng.random(period)])
    block[1::2, 2] = np.nan
    rows = np.tile(block, (8_000 // period + 1, 1))
    expected = [period for i in range(8) if i % period % 2 == 0]
    assert _periods(rows) == expected
    assert _periods(block[:1]) == []
