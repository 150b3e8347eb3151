"""Thresholds of discovery: the smallest that keep a person who is alone in a group hidden."""

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
    places = sorted({start, max(start, mpmath.mpf(0)), abs(start) + s})
    return mpmath.quad(lambda z: mpmath.exp(-abs(z) / s) / (2 * s), [*places, mpmath.inf])


def gaussian_tail(mechanism: Any, least: int) -> Any:
    """Integrate the density from where 1 + noise is rounded to `least` on."""
    s = mpmath.mpf(mechanism.scale)
    start = least - mpmath.mpf(3) / 2
    places = [start, start + s, start + 3 * s, start + 10 * s, start + 40 * s]
    return mpmath.quad(lambda z: mpmath.npdf(z, 0, s), places)


def gaussian(epsilon: float, sensitivity: float) -> GaussianMechanism:
    return GaussianMechanism(epsilon=epsilon, delta=1e-6, sensitivity=math.sqrt(sensitivity))


KINDS = [
    (DiscreteLaplaceMechanism, discrete_tail),
    (LaplaceMechanism, laplace_tail),
    (gaussian, gaussian_tail),
]


@pytest.mark.parametrize(("make", "tail"), KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 7.5])
@pytest.mark.parametrize(("max_groups", "delta"), [(1, 1e-6), (50, 1e-9), (2, 0.3)])
def test_the_threshold_is_the_smallest_that_keeps_within_delta(
    make: Any, tail: Any, epsilon: float, max_groups: int, delta: float
) -> None:
    mechanism = make(epsilon, float(max_groups))
    found = threshold(mechanism, max_groups, delta)
    with mpmath.workdps(25):
        at, below = (1 - (1 - tail(mechanism, least)) ** max_groups for least in (found, found - 1))
        assert at <= delta < below


@pytest.mark.parametrize(
    "mechanism",
    [
        DiscreteLaplaceMechanism(0.5, 2.0),
        DiscreteLaplaceMechanism(0.5, 2.0, lower=0),
        LaplaceMechanism(0.5, 2.0),
        GaussianMechanism.for_scale(3.0, sensitivity=1.0),
        GaussianMechanism.for_scale(3e7, sensitivity=1.0),  # Its integers have a grid of 32.
    ],
    ids=repr,
)
def test_released_numbers_reach_the_threshold_as_seldom_as_they_may(mechanism: Any) -> None:
    """Of pairs of groups that hold one person each, at most delta of them show one or both."""
    delta, n = 0.02, 100_000
    least = threshold(mechanism, 2, delta)
    released = mechanism.release(np.ones((n, 2), dtype=np.int64))
    seen = int((released >= least).any(axis=1).sum())
    alarms.check_probability(stats.binomtest(seen, n, delta, alternative="greater").pvalue)
    step = 32 if mechanism.scale > 1e6 else 1
    more = int((released >= least - step).any(axis=1).sum())
    alarms.check_probability(stats.binomtest(more, n, delta, alternative="less").pvalue)


@pytest.mark.parametrize("alone", [(0, 2), (2, 0), (1, 2), (2, 2), (1, 0), (0, 1)])
def test_replaced_persons_are_protected_with_the_same_delta(alone: tuple[int, int]) -> None:
    """Sum the hockey stick over all outputs: one person alone in x groups, the other in y.

    Each is also in a group that others are in, whose count then moves, if alone in fewer than two.
    """
    max_groups, delta, epsilon, n = 2, 1e-3, 1.0, 200
    mechanism = DiscreteLaplaceMechanism(epsilon, 2.0 * max_groups)  # Replacing moves 4 counts.
    least = threshold(mechanism, max_groups, delta)
    a = math.exp(-1 / mechanism.scale)
    hidden = [(1 - a ** (least - 1) / (1 + a)) ** groups for groups in alone]
    values = np.arange(-n, n + 1)

    def law(persons: int) -> Any:
        return (1 - a) / (1 + a) * a ** np.abs(values - persons)

    # The groups that both worlds have: the first person's and the second's others, at 5 and 6.
    here = [law(5 + (max_groups - alone[0])), law(6)]
    there = [law(5), law(6 + (max_groups - alone[1]))]
    p = hidden[0] * np.outer(*here)
    q = hidden[1] * np.outer(*there)
    loss = (1 - hidden[0]) + np.maximum(p - math.exp(epsilon) * q, 0).sum()
    assert loss <= delta * (1 + 1e-9)


def test_a_threshold_lies_above_what_counts_are_clamped_to() -> None:
    assert threshold(DiscreteLaplaceMechanism(50.0, lower=0), 1, 0.999) >= 1
    assert threshold(DiscreteLaplaceMechanism(1.0, lower=40), 1, 1e-6) == 41
    coarse = GaussianMechanism.for_scale(3e7, sensitivity=1.0, lower=10**9)
    assert threshold(coarse, 1, 1e-6) == 10**9 // 32 * 32 + 32


def test_the_smallest_delta_and_the_largest_noise_have_an_answer_or_an_error() -> None:
    least = threshold(DiscreteLaplaceMechanism(1.0), 10**9, 5e-324)
    # P(X >= k) is a^k/(1 + a): k is within 1 of log(10^9 / (5e-324 (1 + a))).
    k = math.log(1e9) + 1074 * math.log(2) - math.log1p(math.exp(-1))
    assert math.ceil(k) <= least - 1 <= math.ceil(k) + 1
    with pytest.raises(ArgumentError, match="persons"):
        threshold(DiscreteLaplaceMechanism(1e-16), 1, 1e-6)
    with pytest.raises(ArgumentError, match="persons"):
        threshold(GaussianMechanism.for_scale(1e100, sensitivity=1.0), 1, 1e-6)


@pytest.mark.parametrize(
    ("max_groups", "delta"),
    [(0, 1e-6), (1, 0.0), (1, 1.0), (1, -1e-6), (1, math.nan), (1, math.inf)],
)
def test_contradictions_are_refused(max_groups: int, delta: float) -> None:
    with pytest.raises(ArgumentError):
        threshold(DiscreteLaplaceMechanism(1.0), max_groups, delta)


def test_only_noise_for_counts_has_a_threshold() -> None:
    selection: Any = NoisyMax(1.0, 1.0)
    with pytest.raises(ArgumentTypeError, match="NoisyMax"):
        threshold(selection, 1, 1e-6)
    with pytest.raises(ArgumentTypeError, match="max_groups"):
        threshold(DiscreteLaplaceMechanism(1.0), True, 1e-6)  # noqa: FBT003 - that is the question
