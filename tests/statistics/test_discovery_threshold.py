"""Discovery thresholds: the smallest that hide a person who is the only member of a group."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats
from support import alarms

from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.release.selection import NoisyMax
from dpnoise.statistics.discovery_threshold import threshold


def discrete_tail(mechanism: Any, least: int) -> Any:
    """Sum P(X = k) = (1 - a)/(1 + a) a^|k| from k = least - 1 on, term by term."""
    a = mpmath.exp(-1 / mpmath.mpf(mechanism.scale))
    return mpmath.nsum(lambda k: (1 - a) / (1 + a) * a ** abs(k), [least - 1, mpmath.inf])


def laplace_tail(mechanism: Any, least: int) -> Any:
    """Integrate the density from where 1 + noise is rounded to `least` on."""
    s = mpmath.mpf(mechanism.scale)
    start = least - mpmath.mpf(3) / 2
    limits = sorted({start, max(start, mpmath.mpf(0)), abs(start) + s})
    return mpmath.quad(lambda z: mpmath.exp(-abs(z) / s) / (2 * s), [*limits, mpmath.inf])


def gaussian_tail(mechanism: Any, least: int) -> Any:
    """Integrate the density from where 1 + noise is rounded to `least` on."""
    s = mpmath.mpf(mechanism.scale)
    start = least - mpmath.mpf(3) / 2
    limits = [start, start + s, start + 3 * s, start + 10 * s, start + 40 * s]
    return mpmath.quad(lambda z: mpmath.npdf(z, 0, s), limits)


def gaussian(epsilon: float, sensitivity: float) -> GaussianMechanism:
    return GaussianMechanism(epsilon=epsilon, delta=1e-6, sensitivity=math.sqrt(sensitivity))


KINDS = [
    (DiscreteLaplaceMechanism, discrete_tail),
    (LaplaceMechanism, laplace_tail),
    (gaussian, gaussian_tail),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("make", "tail"), KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 7.5])
@pytest.mark.parametrize(("max_groups", "delta"), [(1, 1e-6), (50, 1e-9), (2, 0.3)])
def test_the_threshold_is_the_smallest_that_keeps_within_delta(
    make: Any, tail: Any, epsilon: float, max_groups: int, delta: float
) -> None:
    mechanism = make(epsilon=epsilon, sensitivity=float(max_groups))
    least_shown = threshold(mechanism, max_groups, delta)
    with mpmath.workdps(25):
        at, below = (
            1 - (1 - tail(mechanism, least)) ** max_groups
            for least in (least_shown, least_shown - 1)
        )
        assert at <= delta < below


@pytest.mark.parametrize(
    "mechanism",
    [
        DiscreteLaplaceMechanism(epsilon=0.5, sensitivity=2.0),
        DiscreteLaplaceMechanism(epsilon=0.5, sensitivity=2.0, lower=0),
        LaplaceMechanism(epsilon=0.5, sensitivity=2.0),
        GaussianMechanism.for_scale(3.0, sensitivity=1.0),
        GaussianMechanism.for_scale(3e7, sensitivity=1.0),  # Its integers have a grid of 32.
    ],
    ids=repr,
)
def test_released_numbers_reach_the_threshold_as_seldom_as_they_may(mechanism: Any) -> None:
    """At most a fraction delta of pairs of groups with one person each show a group."""
    delta, n = 0.02, 100_000
    least = threshold(mechanism, 2, delta)
    released = mechanism.release(np.ones((n, 2), dtype=np.int64))
    shown = int((released >= least).any(axis=1).sum())
    alarms.check_probability(stats.binomtest(shown, n, delta, alternative="greater").pvalue)
    step = 32 if mechanism.scale > 1e6 else 1
    shown_lower = int((released >= least - step).any(axis=1).sum())
    alarms.check_probability(stats.binomtest(shown_lower, n, delta, alternative="less").pvalue)


@pytest.mark.parametrize("single_groups", [(0, 2), (2, 0), (1, 2), (2, 2), (1, 0), (0, 1)])
def test_replaced_persons_are_protected_with_the_same_delta(
    single_groups: tuple[int, int],
) -> None:
    """Sum the hockey stick over all outputs.

    One person is the only member of x groups, their replacement of y groups. If there are fewer
    than two such groups, the person is also in a group with other members, whose count moves.
    """
    max_groups, delta, epsilon, n = 2, 1e-3, 1.0, 200
    mechanism = DiscreteLaplaceMechanism(
        epsilon=epsilon, sensitivity=2.0 * max_groups
    )  # Replacing moves 4 counts.
    least = threshold(mechanism, max_groups, delta)
    a = math.exp(-1 / mechanism.scale)
    hidden = [(1 - a ** (least - 1) / (1 + a)) ** groups for groups in single_groups]
    values = np.arange(-n, n + 1)

    def law(persons: int) -> Any:
        return (1 - a) / (1 + a) * a ** np.abs(values - persons)

    # Both data sets have a group of 5 for the first person and a group of 6 for the second.
    laws = [law(5 + (max_groups - single_groups[0])), law(6)]
    other_laws = [law(5), law(6 + (max_groups - single_groups[1]))]
    p = hidden[0] * np.outer(*laws)
    q = hidden[1] * np.outer(*other_laws)
    loss = (1 - hidden[0]) + np.maximum(p - math.exp(epsilon) * q, 0).sum()
    assert loss <= delta * (1 + 1e-9)


def test_a_threshold_lies_above_what_counts_are_clamped_to() -> None:
    assert (
        threshold(DiscreteLaplaceMechanism(epsilon=50.0, sensitivity=1.0, lower=0), 1, 0.999) >= 1
    )
    assert (
        threshold(DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=40), 1, 1e-6) == 41
    )
    coarse = GaussianMechanism.for_scale(3e7, sensitivity=1.0, lower=10**9)
    assert threshold(coarse, 1, 1e-6) == 10**9 // 32 * 32 + 32


def test_the_smallest_delta_and_the_largest_noise_have_an_answer_or_an_error() -> None:
    least = threshold(DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0), 10**9, 5e-324)
    # P(X >= k) is a^k/(1 + a): k is within 1 of log(10^9 / (5e-324 (1 + a))).
    k = math.log(1e9) + 1074 * math.log(2) - math.log1p(math.exp(-1))
    assert math.ceil(k) <= least - 1 <= math.ceil(k) + 1
    with pytest.raises(ArgumentError, match="persons"):
        threshold(DiscreteLaplaceMechanism(epsilon=1e-16, sensitivity=1.0), 1, 1e-6)
    with pytest.raises(ArgumentError, match="persons"):
        threshold(GaussianMechanism.for_scale(1e100, sensitivity=1.0), 1, 1e-6)


@pytest.mark.parametrize(
    ("max_groups", "delta"),
    [(0, 1e-6), (1, 0.0), (1, 1.0), (1, -1e-6), (1, math.nan), (1, math.inf)],
)
def test_contradictions_are_refused(max_groups: int, delta: float) -> None:
    with pytest.raises(ArgumentError):
        threshold(DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0), max_groups, delta)


def test_only_noise_for_counts_has_a_threshold() -> None:
    selection: Any = NoisyMax(epsilon=1.0, sensitivity=1.0)
    with pytest.raises(ArgumentTypeError, match="NoisyMax"):
        threshold(selection, 1, 1e-6)
    with pytest.raises(ArgumentTypeError, match="max_groups"):
        threshold(DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0), True, 1e-6)  # noqa: FBT003 - that is the question
