"""Limits from counts in calls: they hold if the releases of a call depend on each other."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats
from support.alarms import FALSE_ALARM, LONG, check_probability, check_rate
from support.choices import sample_parameters

from dpnoise.auditing import counting
from dpnoise.auditing.attacks.base import OUTPUTS, Event, EventCount
from dpnoise.auditing.attacks.certified_bounds import certified_epsilon, lower_limit, upper_limit
from dpnoise.auditing.call_limits import (
    SUSPICION,
    CallCounts,
    dispersion_of,
    dispersion_p_value,
    mean_limit,
)
from dpnoise.auditing.counting import Candidate
from dpnoise.auditing.options import AuditOptions

CALLS, CALL_SIZE, CONFIDENCE = 200, 100, 0.9
EVENT = Event("y is above 1", lambda y: y > 1)
rng = np.random.default_rng()

Effects = Callable[[int], Any]


def bias(errors: float) -> tuple[Effects, Effects]:
    """Return an effect of this number of standard errors of a call's mean, at both data sets."""
    scale = errors * math.sqrt(2 / CALL_SIZE)
    return (
        lambda calls: 1 + rng.normal(scale=scale, size=calls),
        lambda calls: rng.normal(scale=scale, size=calls),
    )


def sampled_row(rate: float) -> tuple[Effects, Effects]:
    """Return the effect of a row that is in the sample of a call with this probability."""
    return lambda calls: 3.0 * rng.binomial(1, rate, calls), np.zeros


# What all releases of a call add to Laplace noise of scale 1, at two data sets.
EFFECTS: dict[str, tuple[Effects, Effects]] = {
    "independent": (np.ones, np.zeros),
    "a bias of one standard error": bias(1.0),
    "a bias of two standard errors": bias(2.0),
    "a bias of six standard errors": bias(6.0),
    "a row that half of the calls have": sampled_row(0.5),
    "a row that one of 20 calls has": sampled_row(0.05),
}
# Those with which exact limits for independent releases are wrong too often.
STRONG = ("a bias of six standard errors", "a row that half of the calls have")


def count_calls(effects: Effects, calls: int = CALLS) -> list[EventCount]:
    """Return the counts of the event in calls, without drawing each release."""
    hits = rng.binomial(CALL_SIZE, stats.laplace.sf(1 - effects(calls)))
    return [EventCount(count, CALL_SIZE) for count in hits.tolist()]


def candidate() -> Candidate:
    return Candidate("shared", OUTPUTS, EVENT, (1, 0), ("1", "0"))


def true_epsilon(kind: str) -> float:
    """Return the log of the ratio of the event's probabilities, each a mean over many calls."""
    shares = [float(stats.laplace.sf(1 - of(500_000)).mean()) for of in EFFECTS[kind]]
    return math.log(shares[0] / shares[1])


# Any dependence ----------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("error", [0.1, 0.001])
@pytest.mark.parametrize("calls", [1, 5, 40, 500 if LONG else 150])
def test_a_limit_of_a_mean_holds_for_calls_that_are_all_or_nothing(
    calls: int, error: float
) -> None:
    """In such a call all releases are alike. The probability of each number of calls is exact."""
    limits = np.array(
        [mean_limit((np.arange(calls) < k).astype(np.float64), error) for k in range(calls + 1)]
    )
    assert (np.diff(limits) >= 0).all()
    means = np.unique([*special.expit(np.linspace(-9, 9, 181)), *(limits * (1 - 1e-12)), 1e-6])
    for mean in means[means > 0]:
        wrong = stats.binom.sf(np.count_nonzero(limits <= mean) - 1, calls, mean)
        assert wrong <= error


def test_it_is_the_limit_of_the_average_if_calls_differ() -> None:
    """Of 12 calls that are all or nothing, each with its own probability: all 4,096 results."""
    error, sets = 0.05, (np.arange(1 << 12)[:, None] >> np.arange(12)) & 1
    limits = np.array(
        [mean_limit((np.arange(12) < k).astype(np.float64), error) for k in range(13)]
    )[sets.sum(axis=1)]
    for _ in range(200):
        rates = rng.beta(0.3, 0.3, size=12)
        chances = np.where(sets, rates, 1 - rates).prod(axis=1)
        assert chances[limits > rates.mean()].sum() <= error


BETA_LAWS = [(0.1, 0.1), (2.0, 2.0), (0.05, 5.0), (300.0, 200.0)]


@pytest.mark.parametrize(("a", "b"), sample_parameters(BETA_LAWS, 1))
def test_it_holds_for_calls_of_any_law(a: float, b: float) -> None:
    check_rate(lambda: mean_limit(rng.beta(a, b, size=60), 0.1) > a / (a + b), 400, 0.1)


def test_bets_of_everything_are_nearly_the_best_for_calls_that_do_not_vary() -> None:
    """No limit is above 0.5 0.001^(1/500): releases may be alike in each call."""
    best = 0.5 * 0.001 ** (1 / 500)
    assert 0.998 * best < mean_limit(np.full(500, 0.5), 0.001) < best


def test_limits_for_any_dependence_are_never_narrower_than_exact_ones() -> None:
    for _ in range(200 if LONG else 50):
        n = int(rng.integers(1, 50))
        hits = [rng.binomial(20, rng.uniform(), size=n) for _ in (0, 1)]
        counts = CallCounts((hits[0], hits[1]), (np.full(n, 20),) * 2)
        exact = [
            lower_limit(int(hits[0].sum()), 20 * n, 0.01),
            upper_limit(int(hits[1].sum()), 20 * n, 0.01),
        ]
        low, high = counts.any_limits(0.4, 0.01)
        best = counts.best_any_limits(0.4)
        assert low <= min(exact[0], best[0] * (1 + 1e-12))
        assert high >= max(exact[1], best[1] * (1 - 1e-12))


# Which limits are used ---------------------------------------------------------------------------


def certify(kind: str) -> Any:
    counted = candidate().with_calls([count_calls(of_side) for of_side in EFFECTS[kind]])
    return counting.certify(counted, AuditOptions(epsilon=1.0, confidence=CONFIDENCE), 0.1)


@pytest.mark.parametrize("kind", sample_parameters(EFFECTS, 1))
def test_limits_are_wrong_no_more_often_than_stated_if_releases_of_a_call_share_an_effect(
    kind: str,
) -> None:
    """At confidence 0.9 in 200 samples, exact binomial."""
    true = true_epsilon(kind)
    check_rate(lambda: certify(kind).epsilon_lower > true, 200, 1 - CONFIDENCE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", STRONG)
def test_exact_limits_would_be_wrong_too_often_with_these_effects(kind: str) -> None:
    """More often than the stated error explains: so the test above could fail."""
    true, wrong = true_epsilon(kind), 0
    for _ in range(400):
        calls = CallCounts.of([count_calls(of_side) for of_side in EFFECTS[kind]])
        counts = [n for count in calls.totals for n in (count.hits, count.trials)]
        wrong += certified_epsilon(*counts, error=1 - CONFIDENCE) > true
    assert stats.binom.sf(wrong - 1, 400, 1 - CONFIDENCE) < FALSE_ALARM


def test_strong_effects_are_suspected() -> None:
    assert {certify(kind).limits for kind in STRONG} == {"any dependence"}


@pytest.mark.sample(1)
@pytest.mark.parametrize(("calls", "share"), [(500, 0.5), (500, 1e-3), (500, 0.999), (32, 0.1)])
def test_p_values_of_independent_releases_are_hardly_too_small(calls: int, share: float) -> None:
    """Of 1,000 counts in calls of 20 to 40 releases; 15 hits at least. Few hits give few values."""
    trials = rng.integers(20, 40, size=calls)
    for level in (0.1, 0.01):
        small = sum(
            dispersion_p_value(rng.binomial(trials, share), trials) < level for _ in range(1_000)
        )
        check_probability(stats.binom.sf(small - 1, 1_000, 2 * level))


@pytest.mark.parametrize("hits", [100, 300, 30_000])
def test_hits_that_come_two_at_a_time_are_suspected(hits: int) -> None:
    trials = np.full(500, 1_000)
    paired = 2 * rng.multinomial(hits // 2, np.full(500, 1 / 500))
    assert dispersion_p_value(paired, trials) < SUSPICION


def test_limits_of_independent_releases_are_hardly_wider() -> None:
    """The variance of 200 calls is six standard errors of its estimate away from 1.6."""
    counted = CallCounts.of([count_calls(of_side) for of_side in EFFECTS["independent"]])
    assert 1 <= counted.widening(0.001) < 1.7


@pytest.mark.parametrize("error", [0.1, 1e-3, 1e-9])
def test_a_dispersion_of_two_leaves_half_of_the_hits_and_trials(error: float) -> None:
    assert lower_limit(60, 200, error, 2.0) == lower_limit(30, 100, error)
    assert upper_limit(60, 200, error, 2.0) == upper_limit(30, 100, error)
    assert (lower_limit(60, 200, error, math.inf), upper_limit(60, 200, error, math.inf)) == (0, 1)


def test_limits_are_exact_where_calls_do_not_vary() -> None:
    counted = CallCounts.of([[EventCount(50, 100)] * 20, [EventCount(0, 100)] * 20])
    assert (counted.dispersion, counted.widening(0.001)) == (0.0, 1.0)


def test_one_call_certifies_nothing() -> None:
    counted = candidate().with_calls([[EventCount(100, 100)], [EventCount(0, 100)]])
    assert dispersion_of(np.array([100]), np.array([100])) == math.inf
    assert counting.certify(counted, AuditOptions(epsilon=1.0), 0.001).certified == 0.0
