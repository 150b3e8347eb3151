"""The certified trade-off curve: valid for a known one, and as sharp as its counts allow."""

import math

import numpy as np
import pytest
from scipy import stats
from support.alarms import check_rate

from dpnoise.auditing.attacks.certified_bounds import Claim
from dpnoise.auditing.tradeoff import ScoreTally, TradeoffCurve, TradeoffPoint, claim_curve

rng = np.random.default_rng()


def curve_of_gaussians(mu: float, n: int, error: float) -> TradeoffCurve:
    """Return the curve of n scores of each data set, whose true one is that of mu."""
    tally = ScoreTally()
    for call in range(9):
        for side in (0, 1):
            tally.add(side, rng.normal(mu if side == 0 else 0.0, size=n if call else 1_000))
    return TradeoffCurve(tuple(tally.points(("a", "b"), error)))


def true_beta(alpha: float, mu: float) -> float:
    return float(stats.norm.cdf(-stats.norm.ppf(alpha) - mu))


def test_all_corners_are_above_the_true_curve_together() -> None:
    """At an error of 0.2, at most one curve of five has a corner below: counted in 60 curves."""

    def is_wrong() -> bool:
        curve = curve_of_gaussians(1.0, 300, 0.2)
        return any(beta < true_beta(alpha, 1.0) for alpha, beta in curve.corners[1:-1])

    check_rate(is_wrong, 60, 0.2)


def test_bounds_on_every_notion_are_below_the_truth_and_near_it() -> None:
    """At an error of 1e-9. mu is 1, so rho is 1/2; the others are those of Gaussian noise."""
    curve = curve_of_gaussians(1.0, 100_000, 1e-9)
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
