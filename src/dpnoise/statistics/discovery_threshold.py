"""The discovery threshold: the noisy number of persons from which a group may be shown.

Two data sets differ in one person, who may be the only member of some groups. The other data set
does not have these groups, so showing one reveals the person. A group is shown if its released
number of persons, each counted once, is at candidate T. A person is the only member of at most
`max_groups` groups. T is chosen so that any of them is shown with probability at most delta:

    p = P(1 + noise >= T),    1 - (1 - p)^max_groups <= delta

This is the noise of the released integers, rounded once. Ball arithmetic decides the inequality,
and T is rounded up. Wilson and others (2020) prove it for continuous Laplace noise.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import singledispatch
from typing import Final

from flint import arb

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, check_delta, check_integer
from dpnoise.core.reference import Ball, ball_of
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.calibration import certainly_at_most, phi
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.composition import to_ball
from dpnoise.statistics.results import AdditiveMechanism

_LARGEST: Final = 2**53  # More persons than exist; smaller integers are exact as floats.


def threshold(  # Most of its lines are documentation.
    mechanism: AdditiveMechanism, max_groups: int, delta: float
) -> int:
    """Return the smallest noisy number of persons with which a group may be shown.

    It also holds if neighbouring data sets replace a person (proof: docs/statistics-proofs.md).

    Parameters
    ----------
    mechanism
        The mechanism that releases the number of persons of a group, an integer. Its sensitivity
        must cover all groups of a person together.
    max_groups
        The largest number of groups that a person can be in.
    delta
        The largest probability that any group with only one person is shown, between 0 and 1; 1e-6
        is common.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if no group of fewer than 2^53 persons could be shown.
    ArgumentTypeError
        If the mechanism does not add noise to counts.

    Examples
    --------
    >>> threshold(DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0), 1, 1e-6)
    15
    >>> threshold(GaussianMechanism(epsilon=1.0, delta=5e-7, sensitivity=1.0), 1, 5e-7)
    23
    """
    max_groups = check_integer("max_groups", max_groups, least=1)
    limit = ball_of(check_delta(delta))

    def suffices(candidate: int) -> bool:
        return certainly_at_most(
            lambda bits: _any_shown_probability(mechanism, candidate, max_groups, bits), limit
        )

    step = _step(mechanism)
    smallest = step * _smallest_integer(lambda steps: suffices(steps * step), _LARGEST // step)
    lower = mechanism.lower
    if lower is None or lower < smallest:
        return smallest
    # Clamping lifts every count to `lower`, so the threshold must be above it.
    return int(lower // step + 1) * step


def _any_shown_probability(
    mechanism: AdditiveMechanism, candidate: int, max_groups: int, bits: int
) -> arb:
    """Enclose the probability that any of `max_groups` groups with one person is shown.

    It is 1 - (1 - p)^max_groups.
    """
    p = _single_probability(mechanism, candidate, bits)
    return (1 - (max_groups * (1 - p).log()).exp()).enclosure


@singledispatch
def _single_probability(mechanism: object, candidate: int, bits: int) -> Ball:
    """Enclose p = P(1 + noise >= candidate), after rounding to the grid of released integers.

    The candidate threshold is a multiple of that grid.
    """
    del candidate, bits
    raise ArgumentTypeError(
        f"The mechanism must add noise to counts, got a {type(mechanism).__name__}."
    )


@_single_probability.register
def _(mechanism: DiscreteLaplaceMechanism, candidate: int, bits: int) -> Ball:
    """P(X >= k) = a^k/(1 + a) for k >= 0, with a = exp(-1/scale) and k = candidate - 1."""
    rate = to_ball(-1, bits) / to_ball(mechanism.scale, bits)
    return ((candidate - 1) * rate).exp() / (1 + rate.exp())


@_single_probability.register
def _(mechanism: LaplaceMechanism, candidate: int, bits: int) -> Ball:
    """P(Z >= z) = exp(-z)/2 for z >= 0, and 1 - exp(z)/2 below."""
    distance = _distance(mechanism, candidate)
    z = to_ball(abs(distance), bits) / to_ball(mechanism.scale, bits)
    tail = (-z).exp() / 2
    return tail if distance >= 0 else 1 - tail


@_single_probability.register
def _(mechanism: GaussianMechanism, candidate: int, bits: int) -> Ball:
    """P(Z >= z) = Phi(-z)."""
    return phi(to_ball(-_distance(mechanism, candidate), bits) / to_ball(mechanism.scale, bits))


def _distance(mechanism: LaplaceMechanism | GaussianMechanism, candidate: int) -> Fraction:
    """Return the smallest noise that lifts a count of 1 to the candidate after rounding.

    A sum half a step of the grid below the candidate still rounds up to it.
    """
    return candidate - Fraction(_step(mechanism), 2) - 1


def _step(mechanism: AdditiveMechanism) -> int:
    """Return the grid of released integers, a power of two; discrete noise has 1."""
    return max(1, int(getattr(mechanism, "grid", 1)))


def _smallest_integer(suffices: Callable[[int], bool], most: int) -> int:
    """Return the smallest positive integer that suffices. All larger integers must suffice."""
    low, high = 0, 1
    while not suffices(high):
        if high >= most:
            raise ArgumentError(
                "With this noise and delta no group can be shown: a group "
                "would need more than 2^53 persons. Spend more epsilon, or a larger delta."
            )
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
