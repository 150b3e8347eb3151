"""The statistics of a count: exact limits, and an epsilon that is rarely too large."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from flint import arb, ctx, fmpz
from scipy import special, stats
from support.alarms import LONG, check_probability, check_rate

from dpnoise.auditing.attacks.certified_bounds import (
    DELTA_ERROR_SHARE,
    RATIO_ERROR_SHARE,
    advantage,
    beta_quantiles,
    certified_epsilon,
    delta_hits,
    lower_limit,
    ratio_epsilon,
    tossed_epsilon,
    upper_limit,
)

COUNTS = [
    (hits, trials)
    for trials in (1, 2, 10, 1000, 20_000)
    for hits in {0, 1, trials // 1000, trials // 3, trials - 1, trials}
]
rng = np.random.default_rng()
ERRORS = (0.25, 0.001, 1e-8)


def at_most(hits: int, trials: int, p: float) -> arb:
    """Return P(Binomial(trials, p) <= hits) as a ball of 256 bits."""
    precision, ctx.prec = ctx.prec, 256
    try:
        ratio = arb(p) / (1 - arb(p))
        term = total = (1 - arb(p)) ** trials
        for j in range(hits):
            term = term * fmpz(trials - j) / (j + 1) * ratio
            total += term
        return total
    finally:
        ctx.prec = precision


@pytest.mark.sample(20)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("hits", "trials"), COUNTS)
def test_an_upper_limit_is_the_least_p_at_which_so_few_hits_are_as_rare_as_the_error(
    hits: int, trials: int, error: float
) -> None:
    """Rarer at the limit itself; not so any more at a p lower by a few parts in 10^9."""
    limit = upper_limit(hits, trials, error)
    if hits == trials:
        assert limit == 1.0
        return
    assert limit == 1.0 or at_most(hits, trials, limit) <= error
    assert at_most(hits, trials, limit * (1 - 3e-9)) > error


@pytest.mark.sample(20)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("hits", "trials"), COUNTS)
def test_a_lower_limit_is_the_greatest_p_at_which_so_many_hits_are_as_rare_as_the_error(
    hits: int, trials: int, error: float
) -> None:
    limit = lower_limit(hits, trials, error)
    if hits == 0:
        assert limit == 0.0
        return
    assert 1 - at_most(hits - 1, trials, limit) <= error
    assert 1 - at_most(hits - 1, trials, limit * (1 + 3e-9)) > error


def test_limits_at_no_and_at_all_hits_have_closed_forms() -> None:
    """(1 - p)^n = error and p^n = error."""
    for n in (1, 7, 20_000):
        for error in ERRORS:
            root = error ** (1 / n)
            assert lower_limit(n, n, error) == pytest.approx(root, rel=1e-8)
            assert upper_limit(0, n, error) == pytest.approx(-math.expm1(math.log(error) / n))
            assert (lower_limit(0, n, error), upper_limit(n, n, error)) == (0.0, 1.0)


@pytest.mark.parametrize("limit", [lower_limit, upper_limit])
def test_limits_grow_with_the_hits(limit: Callable[[int, int, float], float]) -> None:
    limits = [limit(hits, 500, 0.001) for hits in range(501)]
    assert limits == sorted(limits)
    assert len(set(limits[1:-1])) == 499


def test_limits_move_outward_as_the_error_shrinks() -> None:
    for hits in (1, 250, 499):
        lower = [lower_limit(hits, 500, error) for error in ERRORS]
        upper = [upper_limit(hits, 500, error) for error in ERRORS]
        assert lower == sorted(lower, reverse=True)
        assert upper == sorted(upper)
        assert lower[0] < hits / 500 < upper[0]


@pytest.mark.parametrize(
    ("share", "most"), [(1e-8, 0.05), (0.001, 0.01), (0.1, 0.001), (0.9, 0.001), (0.999, 0.01)]
)
def test_quantiles_that_rank_events_are_within_a_small_part_of_a_standard_error(
    share: float, most: float
) -> None:
    parameters = np.geomspace(1e-3, 1e9, 60)
    a, b = parameters[:, None], parameters
    deviation = np.sqrt(a * b / (a + b + 1)) / (a + b)
    distance = np.abs(beta_quantiles(a, b, share) - special.betaincinv(a, b, share))
    assert (distance <= most * deviation).all()


def test_an_advantage_is_an_interval_of_four_limits() -> None:
    low, high = advantage(300, 1000, 50, 2000, error=0.004)
    assert low == lower_limit(300, 1000, 0.001) - upper_limit(50, 2000, 0.001)
    assert high == upper_limit(300, 1000, 0.001) - lower_limit(50, 2000, 0.001)
    assert low < 0.3 - 0.025 < high
    assert advantage(50, 2000, 300, 1000, error=0.004) == (-high, -low)


def test_an_epsilon_is_certified_as_by_hand() -> None:
    """All of n at one value and none at the other: p0 = e^(1/n) and p1 = 1 - e^(1/n), e = error/2.

    One decision over k releases may have k times the epsilon and k times the delta.
    """
    n, k, delta, error = 1000, 3, 0.01, 0.002
    root = (error / 2) ** (1 / n)
    without_delta = certified_epsilon(n, n, 0, n, error=error)
    assert without_delta == pytest.approx(math.log(root / (1 - root)))
    with_delta = certified_epsilon(n, n, 0, n, error=error, delta=delta)
    assert with_delta == pytest.approx(math.log((root - delta) / (1 - root)))
    several = certified_epsilon(n, n, 0, n, error=error, delta=delta, releases=k)
    assert several == pytest.approx(math.log((root - k * delta) / (1 - root)) / k)


def test_nothing_is_certified_of_equal_or_rare_events() -> None:
    assert certified_epsilon(500, 1000, 500, 1000, error=0.001) == 0.0
    assert certified_epsilon(0, 1000, 0, 1000, error=0.001) == 0.0
    assert certified_epsilon(0, 1000, 1000, 1000, error=0.001) == 0.0
    assert certified_epsilon(9, 1000, 0, 1000, error=0.001, delta=0.01) == 0.0


AUDITS = 1000 if LONG else 300  # Audits in each test of the border.
BORDERS = [
    # p1, epsilon, delta, releases, trials at value0, trials at value1
    (0.3, 1.0, 0.0, 1, 20_000, 20_000),
    (0.001, 1.0, 0.0, 1, 20_000, 20_000),
    (1e-4, 0.1, 0.0, 1, 20_000, 20_000),
    (0.0, 1.0, 1e-3, 1, 20_000, 20_000),
    (0.01, 0.5, 1e-3, 2, 10_000, 10_000),
    (1e-4, 3.0, 1e-6, 1, 500, 500),
    # If P1 is known almost exactly, the two limits together have no slack.
    (0.1, 1.0, 0.0, 1, 300, 10**9),
    (0.001, 1.0, 1e-3, 1, 20_000, 10**9),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("border", BORDERS)
def test_at_the_border_of_privacy_999_of_1000_verdicts_are_right(
    border: tuple[float, float, float, int, int, int],
) -> None:
    """P0 = exp(k epsilon) P1 + k delta is still private, and AUDITS certify at 0.999.

    The number of alarms is at most Binomial(AUDITS, 0.001), and smaller where two limits would have
    to fail together.
    """
    p1, epsilon, delta, k, trials0, trials1 = border
    p0 = math.exp(k * epsilon) * p1 + k * delta
    rng = np.random.default_rng()
    counts = zip(
        rng.binomial(trials0, p0, AUDITS).tolist(),
        rng.binomial(trials1, p1, AUDITS).tolist(),
        strict=True,
    )
    epsilons = [
        certified_epsilon(hits0, trials0, hits1, trials1, error=0.001, delta=delta, releases=k)
        for hits0, hits1 in counts
    ]
    check_alarms(sum(certified > epsilon for certified in epsilons))


def check_alarms(number: int, error: float = 0.001) -> None:
    """Raise if AUDITS, each wrong with at most this probability, give more than chance."""
    check_probability(float(stats.binom.sf(number - 1, AUDITS, error)))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("p1", "epsilon", "delta"),
    [
        *[(0.3, 1.0, 0.0), (0.01, 0.1, 0.0), (1e-4, 3.0, 0.0), (0.36, 1.0, 0.0)],
        *[(1e-4, 1.0, 1e-5), (0.001, 0.1, 1e-3), (0.01, 1.0, 0.02), (0.0, 0.5, 1e-3)],
    ],
)
@pytest.mark.parametrize("trials", [40_000, 400])
@pytest.mark.parametrize("error", [0.001, 0.2])
def test_at_the_border_verdicts_are_right_where_a_coin_divides_the_trials(
    p1: float, epsilon: float, delta: float, trials: int, error: float
) -> None:
    """P0 = exp(epsilon) P1 + delta, as above."""
    rng = np.random.default_rng()
    heads = rng.binomial(trials, 0.5, AUDITS)
    at0 = rng.binomial(heads, math.exp(epsilon) * p1 + delta).tolist()
    at1 = rng.binomial(trials - heads, p1).tolist()
    counts = zip(at0, heads.tolist(), at1, (trials - heads).tolist(), strict=True)
    wrong = sum(tossed_epsilon(*count, error=error, delta=delta) > epsilon for count in counts)
    check_alarms(wrong, error)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("trials", "delta"), [(120_000, 1e-5), (1_000, 0.02), (10, 0.5)])
def test_delta_makes_more_hits_than_are_left_out_only_with_the_error(
    trials: int, delta: float, error: float
) -> None:
    hits = delta_hits(trials, delta, error)
    assert 1 - at_most(hits, trials, delta / 2) <= error
    assert hits == 0 or 1 - at_most(hits - 1, trials, delta / 2) > error


def test_a_coin_certifies_nearly_as_much_for_a_small_delta_as_for_none() -> None:
    """The 3 to 5 hits that a delta may make are left out of 800; two limits certify less."""
    counts, error = (800, 60_000, 130, 60_000), 0.001
    without = tossed_epsilon(*counts, error=error)
    of_coin = tossed_epsilon(*counts, error=error, delta=1e-5)
    assert without - 0.02 < of_coin < without
    assert of_coin > certified_epsilon(*counts, error=error, delta=1e-5) + 0.08


def test_a_ratio_that_a_coin_divides_has_one_limit() -> None:
    """Of 3 trials at the first data set and none at the second: (P0 / (P0 + P1))^3 = error."""
    share = (RATIO_ERROR_SHARE * 0.1) ** (1 / 3)
    expected = math.log(share / (1 - share))
    assert tossed_epsilon(3, 1000, 0, 1000, error=0.1) == pytest.approx(max(0.0, expected))
    assert tossed_epsilon(0, 10, 0, 10, error=0.1) == 0.0
    assert tossed_epsilon(0, 10, 10, 10, error=0.1) == 0.0
    by_limits = certified_epsilon(1000, 1000, 500, 1000, error=(1 - RATIO_ERROR_SHARE) * 0.1)
    assert tossed_epsilon(1000, 1000, 500, 1000, error=0.1) >= by_limits > 0.6


def test_the_ratio_has_an_exact_limit_of_a_share_of_hits() -> None:
    epsilon = ratio_epsilon(60, 20, 190, error=0.05)
    assert stats.binom.cdf(20, 80, 1 / (1 + math.exp(epsilon))) == pytest.approx(0.05)
    lost = delta_hits(190, 0.1, DELTA_ERROR_SHARE * 0.05)
    of_rest = ratio_epsilon(60 - lost, 20, 190, error=(1 - DELTA_ERROR_SHARE) * 0.05)
    assert ratio_epsilon(60, 20, 190, error=0.05, delta=0.1) == of_rest < epsilon
    assert ratio_epsilon(9, 0, 190, error=0.05, delta=0.1) == 0


def test_the_ratio_is_wrong_no_more_often_than_the_error_if_trials_drift() -> None:
    """The event is ten times as likely at the end as at the start, as for a busy machine."""
    trials, epsilon, error = 400, 1.0, 0.1
    p1 = np.linspace(0.02, 0.2, trials)

    def is_wrong() -> bool:
        at_first = rng.random(trials) < 0.5
        happened = rng.random(trials) < np.where(at_first, math.exp(epsilon) * p1, p1)
        hits0, hits1 = (int((happened & (at_first == side)).sum()) for side in (True, False))
        return ratio_epsilon(hits0, hits1, trials, error=error) > epsilon

    check_rate(is_wrong, 2_000, error)


def test_the_border_is_where_alarms_begin() -> None:
    """At twice the claimed epsilon all AUDITS raise it: 2 is measured to within 0.1."""
    rng = np.random.default_rng()
    counts = zip(
        rng.binomial(20_000, 0.1 * math.exp(2.0), AUDITS).tolist(),
        rng.binomial(20_000, 0.1, AUDITS).tolist(),
        strict=True,
    )
    assert all(certified_epsilon(a, 20_000, b, 20_000, error=0.001) > 1.0 for a, b in counts)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="hits must be at most 10, got 11"):
        lower_limit(11, 10, 0.01)
    with pytest.raises(ValueError, match="hits must be at least 0, got -1"):
        upper_limit(-1, 10, 0.01)
    with pytest.raises(ValueError, match="trials must be at least 1, got 0"):
        upper_limit(0, 0, 0.01)
    with pytest.raises(TypeError, match=r"hits must be an integer"):
        upper_limit(1.5, 10, 0.01)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="releases must be at least 1, got 0"):
        certified_epsilon(5, 10, 0, 10, error=0.01, releases=0)


@pytest.mark.parametrize("error", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_an_error_that_is_no_probability_is_refused(error: float) -> None:
    """Also 1.5, although its quarter would be one."""
    with pytest.raises(ValueError, match=r"error must be between 0 and 1"):
        lower_limit(1, 2, error)
    with pytest.raises(ValueError, match=r"error must be between 0 and 1"):
        advantage(1, 2, 1, 2, error)
    with pytest.raises(ValueError, match=r"error must be between 0 and 1"):
        certified_epsilon(1, 2, 1, 2, error=error)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_a_delta_that_would_certify_too_much_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=r"delta must be between 0 and 1"):
        certified_epsilon(1, 2, 1, 2, error=0.01, delta=delta)
