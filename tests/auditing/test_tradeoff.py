"""The certified trade-off curve: valid for a known one, and as sharp as its counts allow."""

import math

import numpy as np
import pytest
from scipy import stats
from support.alarms import FALSE_ALARM, check_rate

from dpnoise.auditing.attacks.certified_bounds import Claim
from dpnoise.auditing.tradeoff import ScoreTally, TradeoffCurve, TradeoffPoint, claim_curve

rng = np.random.default_rng()


def curve_of_gaussians(
    mu: float, n: int, error: float, *, shared: float = 0.0, one_by_one: bool = False
) -> TradeoffCurve:
    """Return the curve of 200 calls of n scores of each data set.

    The variance of a score is 1, and `shared` of it is that of an effect that the scores of a call
    share. So the true curve is that of mu.
    """
    tally = ScoreTally()
    for call in range(201):
        for side in (0, 1):
            mean = rng.normal(mu if side == 0 else 0.0, math.sqrt(shared))
            scores = rng.normal(mean, math.sqrt(1 - shared), size=n if call else 1_000)
            tally.add(side, scores)
    return TradeoffCurve(tuple(tally.points(("a", "b"), error, one_by_one=one_by_one)))


def true_beta(alpha: float, mu: float) -> float:
    return float(stats.norm.cdf(-stats.norm.ppf(alpha) - mu))


def is_wrong(curve: TradeoffCurve) -> bool:
    return any(beta < true_beta(alpha, 1.0) for alpha, beta in curve.corners[1:-1])


@pytest.mark.sample(1)
@pytest.mark.parametrize("shared", [0.0, 0.02, 0.5])
def test_all_corners_are_above_the_true_curve_together(shared: float) -> None:
    """At an error of 0.2, at most one curve of five has a corner below: counted in 40 curves.

    With 50 scores a call, the shared part doubles the variance of a call's mean, or is all of it.
    """
    check_rate(lambda: is_wrong(curve_of_gaussians(1.0, 50, 0.2, shared=shared)), 40, 0.2)


@pytest.mark.long
def test_limits_for_independent_scores_would_be_wrong_for_dependent_calls() -> None:
    """At an error of 0.02, more often than that explains: so the test above could fail."""
    curves = [curve_of_gaussians(1.0, 50, 0.02, shared=0.5, one_by_one=True) for _ in range(80)]
    assert stats.binom.sf(sum(map(is_wrong, curves)) - 1, 80, 0.02) < FALSE_ALARM


def test_an_effect_that_shows_at_one_cut_widens_only_its_limits() -> None:
    """All scores of 3 and more come in one call of 50, so nothing is certified of them."""
    tally = ScoreTally()
    for side in (0, 1):
        tally.add(side, np.repeat([0.0, 1.0, 2.0, 3.0], [100, 100, 99, 1]))
    for call in range(50):
        tally.add(0, np.repeat([0.0, 1.0, 2.0, 3.0], [10, 100, 0, 110 * (call == 0) + 5]))
        tally.add(1, np.repeat([0.0, 1.0], [150, 50]))
    points = tally.points(("a", "b"), 0.01)
    assert [point.low > 0.5 for point in points] == [True]
    assert points[0].high < 0.4


def test_an_infinite_score_is_above_every_cut() -> None:
    """A number that is missing at one data set only has an infinite ratio."""
    tally = ScoreTally()
    for _ in range(51):
        for side, missing in ((0, 60), (1, 20)):
            tally.add(side, np.repeat([-np.inf, 1.0, np.inf], [10, 390 - missing, missing]))
    *_, highest = tally.points(("a", "b"), 0.01)
    assert 0.14 < highest.low < 60 / 400
    assert 20 / 400 < highest.high < 0.06


def test_bounds_on_every_notion_are_below_the_truth_and_near_it() -> None:
    """At an error of 1e-9. mu is 1, so rho is 1/2; the others are those of Gaussian noise."""
    curve = curve_of_gaussians(1.0, 5_000, 1e-9)
    assert 0.97 < curve.mu < 1.0
    assert 0.4 < curve.rho < 0.5
    true_delta = stats.norm.cdf(-0.5) - math.e * stats.norm.cdf(-1.5)
    assert 0.9 * true_delta < curve.delta(1.0) < true_delta
    assert 0.9 < curve.epsilon(true_delta) < 1.0
    assert true_beta(0.1, 1.0) < curve.beta(0.1) < true_beta(0.1, 1.0) + 0.03


def test_rho_of_one_event_is_that_of_its_two_outcomes() -> None:
    curve = TradeoffCurve((TradeoffPoint("a", "b", 0.6, 0.2),))
    expected = max(Claim("rho", 1.0).bound(0.6, 0.2), Claim("rho", 1.0).bound(0.8, 0.4))
    assert curve.rho == pytest.approx(expected, rel=1e-6)


def test_rho_does_not_mix_pairs_of_data_sets() -> None:
    """The hull over two pairs is that of neither, and rho is a property of each pair."""
    first, second = TradeoffPoint("a", "b", 0.5, 0.1), TradeoffPoint("c", "d", 0.99, 0.7)
    alone = [TradeoffCurve((point,)).rho for point in (first, second)]
    assert TradeoffCurve((first, second)).rho == pytest.approx(max(alone))
    together = TradeoffCurve((first, TradeoffPoint("a", "b", 0.99, 0.7))).rho
    assert together > max(alone)


def test_without_points_nothing_is_certified() -> None:
    curve = TradeoffCurve(())
    assert (curve.mu, curve.rho, curve.epsilon(), curve.delta(0.0)) == (0.0, 0.0, 0.0, 0.0)
    assert curve.corners == [(0.0, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize("claim", [("epsilon", 1.0, 0.01), ("mu", 1.0, 0.0)])
def test_the_curve_of_a_claim_is_convex_and_falls(claim: tuple[str, float, float]) -> None:
    alphas, betas = np.array(claim_curve(*claim)).T
    assert (np.diff(alphas) >= 0).all()
    assert (np.diff(betas) <= 0).all()
    assert betas[len(betas) // 2] <= 1 - alphas[len(alphas) // 2]
