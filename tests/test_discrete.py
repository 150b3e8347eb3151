"""Discrete Laplace noise: its law, its margins, and that of every word it equals the judge's."""

import math
import os
from fractions import Fraction

import alarms
import numpy as np
import pytest

from dpnoise import reference
from dpnoise.entropy import Key
from dpnoise.release import deciding
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.testing import fixed_generator


def law(scale: float, most: int) -> np.ndarray:
    """Return the probabilities of -most to most."""
    probabilities: np.ndarray = np.exp(-np.abs(np.arange(-most, most + 1)) / scale)
    return probabilities * math.tanh(1 / (2 * scale))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_noise_has_its_law(epsilon: float) -> None:
    mechanism = DiscreteLaplaceMechanism(epsilon)
    released = mechanism.release(np.full(200_000, 7)) - 7
    most = int(np.abs(released).max())
    counts = np.bincount(released + most, minlength=2 * most + 1)
    probabilities = law(mechanism.scale, most)
    alarms.check_counts(np.append(counts, 0), np.append(probabilities, 1 - probabilities.sum()))


def test_neighbours_differ_by_epsilon_at_most() -> None:
    """The ratio of the probabilities of k and k + 1 is exp(1/scale), and scale >= 1/epsilon."""
    for epsilon in (0.3, 1.0, math.pi):
        scale = DiscreteLaplaceMechanism(epsilon).scale
        assert Fraction(scale) * Fraction(epsilon) >= 1


@pytest.mark.parametrize("scale", [0.01, 0.5, 10.0, 2.0**30, 2.0**55])
def test_every_step_is_the_judge_s(scale: float) -> None:
    secret = os.urandom(32)
    mechanism = DiscreteLaplaceMechanism(1 / scale)
    steps = mechanism._steps(200, fixed_generator(secret))
    words = np.empty(200, dtype=np.uint64)
    Key(secret).stream().fill(words)
    for i, step in enumerate(steps.tolist()):
        rows = deciding.rows_from_key(Key(secret), i, words[i : i + 1])
        formula = deciding.EXPONENTIAL.formula
        assert step == min(reference.grid_point(formula, rows, -0.5, scale, 1.0), 2**61)


def test_the_margin_is_the_smallest_that_covers() -> None:
    for epsilon in (0.05, 0.7, 1.0, 5.0):
        mechanism = DiscreteLaplaceMechanism(epsilon)
        for confidence in (0.5, 0.9, 0.95, 0.999):
            margin = mechanism.error(confidence)
            a = math.exp(-1 / mechanism.scale)
            beyond = 2 * a ** (margin + 1) / (1 + a)
            assert beyond <= 1 - confidence
            assert margin == 0 or 2 * a**margin / (1 + a) > (1 - confidence) * (1 - 1e-9)


def test_results_are_clamped_and_saturate() -> None:
    assert DiscreteLaplaceMechanism(0.01, lower=0).release(np.zeros(100, np.int64)).min() == 0
    largest = np.array([2**63 - 1, -(2**63)])
    high, low = DiscreteLaplaceMechanism(1.0).release(largest)
    assert high > 2**61
    assert low < -(2**61)
