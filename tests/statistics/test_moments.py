"""Means, variances and standard deviations: exact sums, one joint release, margins that cover."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support import alarms

from dpnoise import statistics
from dpnoise.statistics import plan, queries


def test_the_mean_is_centred() -> None:
    """Birth years: the mean error of 400 releases, a multiple of 5 deviations below 0.03."""
    years = np.random.default_rng().integers(1940, 2010, 5000)
    true_mean = years.mean()
    errors = [
        abs(statistics.mean(years, lower=1900, upper=2025, epsilon=1.0).value - true_mean)
        for _ in range(400)
    ]
    # The error is h((1-m)a - (1+m)b)/N with Laplace a and b, |m| <= 1: on average 0.019 here, and
    # its standard deviation below 0.019, so that 400 average to 0.03 with probability below 1e-9.
    assert np.mean(errors) < 0.03


def test_one_row_moves_the_sums_of_a_mean_by_the_width_in_all() -> None:
    """By brute force over all values of a small grid: the distances to both bounds add up to it."""
    for query, width in (
        (queries.Mean("x", -3, 8, 1.0, grid=1.0), 11),
        (queries.Variance("x", -3, 8, 1.0, grid=1.0), 121),
    ):
        for value in range(-3, 9):
            parts = [int(part) for part in query.sums_of(1, value, value * value)]
            assert min(parts) >= 0
            assert sum(parts) == width
        assert query.mechanism.sensitivity == width


def test_the_parts_give_back_mean_and_variance_exactly() -> None:
    rng = np.random.default_rng()
    for _ in range(100):
        data = rng.integers(-3, 9, int(rng.integers(1, 20)))
        total, squares = int(data.sum()), int((data**2).sum())
        mean = Fraction(total, data.size)
        variance = Fraction(squares, data.size) - mean**2
        mean_query = queries.Mean("x", -3, 8, 1.0, grid=1.0)
        assert mean_query.from_sums(mean_query.sums_of(data.size, total, squares)) == float(mean)
        variance_query = queries.Variance("x", -3, 8, 1.0, grid=1.0)
        result = variance_query.from_sums(variance_query.sums_of(data.size, total, squares))
        assert abs(result - float(variance)) < 1e-12


def test_the_sums_of_a_mean_have_no_limit() -> None:
    """Rows times a bound beyond int64, on two grids. False alarms: below 2e-9."""
    for query, rows in (
        (queries.Mean("x", -1, 1, 1.0, grid=2.0**-40), 2**24),
        (queries.Mean("x", 0, 200_000, 1.0), 2**33),
    ):
        least, most = query.bounds.least, query.bounds.most
        total = rows * (least + 3 * most) // 4
        counts, totals = np.array([rows, rows + 1]), np.array([total, total + most], dtype=object)
        above, below = query.sums_of(counts, totals)
        assert above.tolist() == [total - rows * least, total + most - (rows + 1) * least]
        assert below.tolist() == [rows * most - total] * 2
        released = query.release(plan.SumAnswer(counts, totals), 1 - 1e-9, None)[0]
        assert abs(released.value - (least + 3 * most) / 4 * query.bounds.grid) < released.error


def test_variance_and_deviation_are_right_where_noise_is_small() -> None:
    data = np.random.default_rng().normal(1_000_000, 15, 10_000)
    bounds: dict[str, Any] = {"lower": 999_900, "upper": 1_000_100, "epsilon": 1e6}
    assert abs(statistics.variance(data, **bounds).value - data.var()) < 1
    assert abs(statistics.std(data, **bounds).value - data.std()) < 0.1


def test_margins_cover_with_their_confidence() -> None:
    """Fewer releases cover than the confidence says only as chance allows."""
    releases = 300 if alarms.LONG else 75
    rng = np.random.default_rng()
    for data in (rng.random(300), rng.beta(0.5, 8, 300), np.repeat([0.0, 1.0], 100)):
        truth = {"mean": data.mean(), "variance": data.var(), "std": data.std()}
        for name, true_value in truth.items():
            ask: Callable[..., statistics.Release] = getattr(statistics, name)
            inside = 0
            for _ in range(releases):
                released = ask(data, lower=0, upper=1, epsilon=0.5, confidence=0.9)
                inside += abs(released.value - true_value) <= (released.error or 0.0) + 1e-6
            alarms.check_probability(stats.binomtest(inside, releases, 0.9, "less").pvalue)


def test_all_cells_are_within_the_joint_margin_together() -> None:
    """Histograms of 20 cells: fewer than the confidence only as chance allows."""
    histograms = 2_000 if alarms.LONG else 700
    data = np.repeat(np.arange(20) + 0.5, 50)
    inside = 0
    for _ in range(histograms):
        released = statistics.histogram(
            data, edges=range(21), epsilon=0.5, confidence=0.9, clamp=False
        )
        inside += max(abs(value - 50) for value in released.value) <= (released.joint_error or 0.0)
        assert (released.error or 0.0) < (released.joint_error or 0.0)
    alarms.check_probability(stats.binomtest(inside, histograms, 0.9, "less").pvalue)


def test_counts_below_zero_are_published_on_request() -> None:
    """At 0 rows half of the noise is negative: 60 releases without one have probability 2^-60."""
    clamped = [statistics.count([], epsilon=0.1).value for _ in range(60)]
    free = [statistics.count([], epsilon=0.1, clamp=False).value for _ in range(60)]
    assert min(clamped) == 0
    assert min(free) < 0


@pytest.mark.parametrize("kind", [queries.Mean, queries.Variance])
def test_an_expected_margin_is_at_most_the_range_of_the_bounds(
    kind: type[queries.Mean | queries.Variance],
) -> None:
    """Noise of 1,000 rows on a number of 10 rows; the range is 90, and a quarter of its square."""
    query = kind("x", 10.0, 100.0, 0.001)
    assert query.expected_margin(10, 0.95) == query.possible_range(10)
    assert query.possible_range(10) == (90.0 if kind is queries.Mean else 90.0**2 / 4)
