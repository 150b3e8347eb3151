"""Statistical checks on fresh noise, with a stated rate of false alarms.

The tests draw real noise, so a correct library fails them rarely. Each check here raises a false
alarm with probability at most FALSE_ALARM. The suite makes fewer than 10,000 checks, so that fewer
than one run in 10,000 has a false alarm. No seed is fixed.
"""

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.noise.distributions import Distribution

FALSE_ALARM = 1e-8
LONG = os.environ.get("DPNOISE_TEST_LONG") == "1"
SAMPLES = 10_000_000 if LONG else 1_000_000

Sample = NDArray[np.floating]


def check_probability(p_value: float) -> None:
    """Fail if the p-value is at most FALSE_ALARM."""
    assert p_value > FALSE_ALARM, f"p-value {p_value:.3g}"


def check_rate(happens: Callable[[], bool], times: int, rate: float) -> None:
    """Fail if an event happens more often in `times` trials than its rate explains (binomial).

    A short run stops as soon as no later trial can make it fail; the result is the same.
    """
    assert rate**times <= FALSE_ALARM, "too few trials to fail"
    count = 0
    for remaining in reversed(range(times)):
        count += happens()
        if not LONG and stats.binom.sf(count + remaining - 1, times, rate) > FALSE_ALARM:
            return
    check_probability(float(stats.binom.sf(count - 1, times, rate)))


def check_limit(p_value: float) -> None:
    """Fail on a p-value of chi-squared or of moments, which are exact only for many draws.

    With 50 draws expected in a cell, or 20 in each of 1,000 cells, the p-value of chi-squared is
    below FALSE_ALARM/100 with probability at most FALSE_ALARM/2: computed for Poisson counts.
    """
    check_probability(100 * p_value)


def check_distribution(sample: Sample, distribution: Distribution) -> None:
    """Compare the whole sample with the distribution function (Kolmogorov-Smirnov).

    This check and the next one are several times faster on a sorted sample.
    """
    check_probability(float(stats.kstest(sample, distribution.cdf).pvalue))


def check_cells(sample: Sample, distribution: Distribution, cells: int = 1000) -> None:
    """Count the sample in cells of equal probability (chi-squared)."""
    borders = distribution.ppf(np.arange(1, cells) / cells)
    up_to = np.searchsorted(np.sort(sample), borders, side="right")
    counts = np.diff(up_to, prepend=0, append=len(sample))
    check_limit(stats.chisquare(counts).pvalue)


def check_moments(sample: Sample, distribution: Distribution, fourth: float) -> None:
    """Compare mean and variance; `fourth` is the fourth central moment at scale 1."""
    n = len(sample)
    variance = distribution.variance
    deviation = sample - distribution.mean
    z_mean = deviation.mean() / np.sqrt(variance / n)
    z_variance = ((deviation**2).mean() - variance) / np.sqrt(
        (fourth * distribution.scale**4 - variance**2) / n
    )
    for z in (z_mean, z_variance):
        check_limit(2 * stats.norm.sf(abs(z)))


def check_tails(sample: Sample, distribution: Distribution, q: float = 1e-5) -> None:
    """Count the values beyond the q-quantile on either side (exact binomial)."""
    for beyond in (sample < distribution.ppf(q), sample > distribution.ppf(1 - q)):
        check_probability(stats.binomtest(int(beyond.sum()), len(sample), q).pvalue)


def check_independence(
    sample: Sample, distribution: Distribution, lags: tuple[int, ...] = (1,)
) -> None:
    """Count disjoint pairs of elements at each lag in 16 by 16 equal cells (chi-squared)."""
    cells = np.searchsorted(distribution.ppf(np.arange(1, 16) / 16), sample)
    for lag in lags:
        used_length = len(cells) // (2 * lag) * (2 * lag)
        first, second = cells[:used_length].reshape(-1, 2, lag).swapaxes(0, 1).reshape(2, -1)
        pairs = np.bincount(16 * first + second, minlength=256)
        check_limit(stats.chisquare(pairs).pvalue)


def check_counts(counts: NDArray[np.integer], probabilities: NDArray[np.floating]) -> None:
    """Compare counts with exact probabilities; cells with few expected counts are merged."""
    expected = probabilities * counts.sum()
    is_thin = expected < 50
    observed = np.append(counts[~is_thin], counts[is_thin].sum())
    expected = np.append(expected[~is_thin], expected[is_thin].sum())
    if expected[-1] < 50:
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    check_limit(stats.chisquare(observed, expected).pvalue)
