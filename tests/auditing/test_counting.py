"""Counts of releases that depend on others of their call: the limits hold all the same."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import check_rate

import dpnoise
from dpnoise.auditing import counting
from dpnoise.auditing.attacks.base import OUTPUTS, Event, EventCount
from dpnoise.auditing.attacks.certified_bounds import lower_limit, upper_limit
from dpnoise.auditing.counting import Candidate, CountSizes, dispersion_of
from dpnoise.auditing.options import AuditOptions

CALLS, CALL_SIZE, CONFIDENCE = 200, 100, 0.9
EVENT = Event("y is above 1", lambda y: y > 1)
rng = np.random.default_rng()

Effects = Callable[[int], Any]
# What all releases of a call add to Laplace noise of scale 1, at two data sets.
EFFECTS: dict[str, tuple[Effects, Effects]] = {
    "independent": (np.ones, np.zeros),
    "a bias of six standard errors": (
        lambda calls: 1 + rng.normal(scale=6 * math.sqrt(2 / CALL_SIZE), size=calls),
        lambda calls: rng.normal(scale=6 * math.sqrt(2 / CALL_SIZE), size=calls),
    ),
    "a row that is sampled once a call": (
        lambda calls: 3.0 * rng.binomial(1, 0.5, calls),
        np.zeros,
    ),
}


def count_calls(effects: Effects, calls: int = CALLS) -> list[EventCount]:
    """Return the counts of the event in calls, without drawing each release."""
    hits = rng.binomial(CALL_SIZE, stats.laplace.sf(1 - effects(calls)))
    return [EventCount(count, CALL_SIZE) for count in hits.tolist()]


def candidate() -> Candidate:
    return Candidate("shared", OUTPUTS, EVENT, (1, 0), ("1", "0"))


@pytest.mark.parametrize("kind", EFFECTS)
def test_limits_are_wrong_no_more_often_than_stated_if_releases_of_a_call_share_an_effect(
    kind: str,
) -> None:
    """At confidence 0.9 in 200 samples, exact binomial: limits for independent releases fail."""
    at0, at1 = EFFECTS[kind]
    shares = [float(stats.laplace.sf(1 - of_side(200_000)).mean()) for of_side in (at0, at1)]
    true = math.log(shares[0] / shares[1])
    options = AuditOptions(epsilon=max(true, 0.1), confidence=CONFIDENCE)

    def is_wrong() -> bool:
        counted = candidate().with_calls([count_calls(at0), count_calls(at1)])
        finding = counting.certify(counted, options, 1 - CONFIDENCE)
        return finding.epsilon_lower > true

    check_rate(is_wrong, 200, 1 - CONFIDENCE)


def test_limits_of_independent_releases_are_hardly_wider() -> None:
    """The variance of 200 calls is six standard errors of its estimate away from 1.6."""
    counted = candidate().with_calls([count_calls(of_side) for of_side in EFFECTS["independent"]])
    assert 1 <= counted.widening(0.001) < 1.7


@pytest.mark.parametrize("error", [0.1, 1e-3, 1e-9])
def test_a_dispersion_of_two_leaves_half_of_the_hits_and_trials(error: float) -> None:
    assert lower_limit(60, 200, error, 2.0) == lower_limit(30, 100, error)
    assert upper_limit(60, 200, error, 2.0) == upper_limit(30, 100, error)
    assert (lower_limit(60, 200, error, math.inf), upper_limit(60, 200, error, math.inf)) == (0, 1)


def test_limits_are_exact_where_calls_do_not_vary() -> None:
    same = [EventCount(50, 100)] * 20
    counted = candidate().with_calls([same, [EventCount(0, 100)] * 20])
    assert (counted.dispersion, counted.widening(0.001)) == (0.0, 1.0)


def test_one_call_certifies_nothing() -> None:
    counted = candidate().with_calls([[EventCount(100, 100)], [EventCount(0, 100)]])
    assert dispersion_of([EventCount(100, 100)]) == math.inf
    assert counting.certify(counted, AuditOptions(epsilon=1.0), 0.001).certified == 0.0


@pytest.mark.parametrize("tossed", [False, True])
def test_the_final_count_takes_its_releases_from_many_calls(*, tossed: bool) -> None:
    sizes: dict[int, list[int]] = {0: [], 1: []}

    def draw(value: int, n: int) -> NDArray[np.float64]:
        sizes[value].append(n)
        return value + rng.laplace(size=n)

    plan = CountSizes(trials=20_000, most=1 << 20, calls=300)
    (counted,) = counting.count_events([candidate()], draw, plan, "mine", tossed=tossed)
    assert [len(sizes[0]), len(sizes[1]), counted.calls] == [300] * 3
    assert [count.trials for count in counted.counts] == [sum(sizes[1]), sum(sizes[0])]
    assert max(sizes[0]) - min(sizes[0]) <= 1


def test_a_report_says_which_limits_were_used() -> None:
    options = AuditOptions(epsilon=1.0)
    at0, at1 = EFFECTS["a row that is sampled once a call"]
    counted = candidate().with_calls([count_calls(at0), count_calls(at1)])
    words = counting.describe_limits([counting.certify(counted, options, 0.001)])
    assert f"{counted.widening(0.0005):.3g} times the variance of independent releases" in words
    report = dpnoise.audit(lambda bit, n: [bit] * n, 1.0, neighbours=[(0, 1)], budget=2_000)
    assert "Limits are exact (Clopper and Pearson)" in report.method
