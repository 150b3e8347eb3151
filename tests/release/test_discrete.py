"""Discrete Laplace noise: its law, its margins, its words, and its largest scale."""

import math
import os
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from flint import arb, ctx
from support import alarms, independent

from dpnoise import statistics
from dpnoise.core import reference
from dpnoise.core.entropy import Key
from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.release import exact
from dpnoise.release.discrete import LARGEST_HALF, LARGEST_SCALE, DiscreteLaplaceMechanism
from dpnoise.testing import fixed_generator

INT64 = np.iinfo(np.int64)
TOO_SMALL = [1e-25, 3e-19, math.nextafter(1 / LARGEST_SCALE, 0)]


def law(scale: float, most: int) -> np.ndarray:
    """Return the probabilities of -most to most."""
    probabilities: np.ndarray = np.exp(-np.abs(np.arange(-most, most + 1)) / scale)
    return probabilities * math.tanh(1 / (2 * scale))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_noise_has_its_law(epsilon: float) -> None:
    mechanism = DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1.0)
    released = mechanism.release(np.full(200_000, 7)) - 7
    most = int(np.abs(released).max())
    counts = np.bincount(released + most, minlength=2 * most + 1)
    probabilities = law(mechanism.scale, most)
    alarms.check_counts(np.append(counts, 0), np.append(probabilities, 1 - probabilities.sum()))


def test_neighbours_differ_by_epsilon_at_most() -> None:
    """The ratio of the probabilities of k and k + 1 is exp(1/scale), and scale >= 1/epsilon."""
    for epsilon in (0.3, 1.0, math.pi):
        scale = DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1.0).scale
        assert Fraction(scale) * Fraction(epsilon) >= 1


@pytest.mark.parametrize("scale", [0.01, 0.5, 10.0, 2.0**30, LARGEST_SCALE])
def test_every_half_equals_the_reference(scale: float) -> None:
    secret = os.urandom(32)
    mechanism = DiscreteLaplaceMechanism(epsilon=1 / scale, sensitivity=1.0)
    halves = mechanism._halves(200, fixed_generator(secret))
    words = np.empty(200, dtype=np.uint64)
    Key(secret).stream().fill(words)
    for i, half in enumerate(halves.tolist()):
        rows = exact.rows_from_key(Key(secret), i, words[i : i + 1])
        formula = exact.EXPONENTIAL.formula
        assert half == reference.released_whole(formula, rows, -0.5, scale, 1.0)


@pytest.mark.parametrize("scale", [0.7, 3.0, 2.0**20, LARGEST_SCALE])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 5)])
def test_number_i_of_n_is_made_of_the_words_i_and_n_plus_i(
    scale: float, shape: tuple[int, ...]
) -> None:
    """The layout of docs/exact-release-proof.md, computed from the key without any code of dpnoise."""
    secret, n = os.urandom(32), math.prod(shape)
    values = np.arange(n).reshape(shape)
    released = DiscreteLaplaceMechanism(epsilon=1 / scale, sensitivity=1.0).release(
        values, fixed_generator(secret)
    )

    def half(element: int) -> int:
        """Return floor(scale E), E = -log V of the uniform of one element."""
        key, centre = independent.Key(secret), Fraction(-1, 2)
        cell = independent.grid_point(
            "exponential", key, element, centre, Fraction(scale), Fraction(1)
        )
        return int(cell)

    assert released.reshape(-1).tolist() == [i + half(i) - half(n + i) for i in range(n)]


def test_the_margin_is_the_smallest_that_covers() -> None:
    for epsilon in (0.05, 0.7, 1.0, 5.0):
        mechanism = DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1.0)
        for confidence in (0.5, 0.9, 0.95, 0.999):
            margin = mechanism.error(confidence)
            a = math.exp(-1 / mechanism.scale)
            beyond = 2 * a ** (margin + 1) / (1 + a)
            assert beyond <= 1 - confidence
            assert margin == 0 or 2 * a**margin / (1 + a) > (1 - confidence) * (1 - 1e-9)


def test_results_are_clamped_to_lower() -> None:
    assert (
        DiscreteLaplaceMechanism(epsilon=0.01, sensitivity=1.0, lower=0)
        .release(np.zeros(100, np.int64))
        .min()
        == 0
    )


@pytest.mark.parametrize("scale", [1.0, 2.0**30, LARGEST_SCALE])
def test_sums_beyond_int64_saturate_and_others_are_exact(scale: float) -> None:
    mechanism, secret = DiscreteLaplaceMechanism(epsilon=1 / scale, sensitivity=1.0), os.urandom(32)
    ends = np.array(
        [INT64.min, INT64.min + 1, -(2**62) - 5, 0, 2**62 + 5, INT64.max - 1, INT64.max]
    )
    values = np.repeat(ends, 8)
    noise = mechanism.release(np.zeros_like(values), fixed_generator(secret)).tolist()
    released = mechanism.release(values, fixed_generator(secret)).tolist()
    for value, noise_of_value, result in zip(values.tolist(), noise, released, strict=True):
        assert result == min(max(value + noise_of_value, INT64.min), INT64.max)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8"])
@pytest.mark.parametrize("order", "<>")
def test_integers_of_every_width_and_byte_order_become_int64(kind: str, order: str) -> None:
    secret, numbers = os.urandom(32), [0, 1, 100]
    mechanism = DiscreteLaplaceMechanism(epsilon=0.5, sensitivity=1.0)
    expected = mechanism.release(np.array(numbers), fixed_generator(secret))
    released = mechanism.release(np.array(numbers, order + kind), fixed_generator(secret))
    assert released.dtype == np.dtype(np.int64)
    assert released.dtype.isnative
    assert released.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [np.uint64, np.float64, bool])
def test_arrays_that_int64_cannot_hold_are_refused(kind: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="must be integers"):
        DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(np.ones(3, dtype=kind))


@pytest.mark.parametrize("lower", [2**63, -(2**63) - 1])
def test_a_lower_end_beyond_int64_is_refused(lower: int) -> None:
    with pytest.raises(ArgumentError, match="lower"):
        DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=lower)


# The largest scale ---------------------------------------------------------------------------


def clamped_law(a: Fraction, most: int) -> dict[int, Fraction]:
    """Return the law of the difference of two geometric halves, each clamped to `most`."""
    half = [(1 - a) * a**k for k in range(most)] + [a**most]
    law: dict[int, Fraction] = {}
    for k, p in enumerate(half):
        for j, q in enumerate(half):
            law[k - j] = law.get(k - j, Fraction(0)) + p * q
    return law


def total_variation_bound(scale: float, largest_half: int) -> arb:
    """Return 2 exp(-largest_half/scale), the bound of docs/exact-release-proof.md, as a ball."""
    exponent: arb = -arb(largest_half) / arb(scale)
    return 2 * exponent.exp()


@pytest.mark.parametrize("a", [Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)])
@pytest.mark.parametrize("most", [1, 2, 5, 20])
def test_holding_the_halves_moves_the_law_by_at_most_the_bound(a: Fraction, most: int) -> None:
    """The exact total variation, for halves clamped to small numbers; a is exp(-1/scale).

    Only the ideal law has mass beyond +-most: 2 a^(most + 1)/(1 + a).
    """
    clamped = clamped_law(a, most)
    assert sum(clamped.values()) == 1
    ideal = {k: (1 - a) / (1 + a) * a ** abs(k) for k in clamped}
    beyond = 2 * a ** (most + 1) / (1 + a)
    assert sum(ideal.values()) + beyond == 1
    distance = (sum(abs(clamped[k] - ideal[k]) for k in clamped) + beyond) / 2
    assert 0 < distance <= 2 * a ** (most + 1) < 2 * a**most
    for k in range(1, most + 1):  # Thresholds rely on this: no tail is larger.
        assert sum(p for j, p in clamped.items() if j >= k) <= a**k / (1 + a)


def test_the_total_variation_is_below_2_to_the_minus_183_at_every_allowed_scale() -> None:
    """In ball arithmetic, at the top of each octave of scales; the bound grows with the scale."""
    with ctx.workprec(128):
        limit = arb(2) ** -183
        scales = [LARGEST_SCALE * 2.0**-k for k in range(64)]
        bounds = [total_variation_bound(scale, LARGEST_HALF) for scale in scales]
        assert all(bound < limit for bound in bounds)
        assert all(lower <= upper for upper, lower in pairwise(bounds))
        assert total_variation_bound(2 * LARGEST_SCALE, LARGEST_HALF) > limit


def test_a_half_beyond_the_largest_is_held_there_and_nothing_overflows() -> None:
    """No allowed scale reaches it, so the test changes the frozen scale."""
    mechanism = DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    object.__setattr__(mechanism, "scale", 2.0**80)
    halves = mechanism._halves(200, fixed_generator(bytes(32)))
    assert set(halves.tolist()) == {LARGEST_HALF}
    assert not mechanism.release(np.zeros(100, np.int64), fixed_generator(bytes(32))).any()


def test_at_the_largest_scale_no_number_is_without_noise() -> None:
    """P(X = 0) is below 1/(2 scale) = 2^-56, and for one of 2,000 numbers below 1e-13."""
    mechanism = DiscreteLaplaceMechanism(epsilon=1 / LARGEST_SCALE, sensitivity=1.0)
    assert mechanism.scale == LARGEST_SCALE
    released = mechanism.release(np.full(2000, 50))
    assert not (released == 50).any()
    assert not (np.abs(released) == LARGEST_HALF).any()
    # |X| is above the scale with probability e^-1, up to 2^-55.
    beyond = int((np.abs(released - 50) > LARGEST_SCALE).sum())
    counts = np.array([beyond, 2000 - beyond])
    alarms.check_counts(counts, np.array([math.exp(-1), 1 - math.exp(-1)]))


@pytest.mark.parametrize("epsilon", TOO_SMALL)
def test_a_larger_scale_is_refused_with_the_epsilon_to_use(epsilon: float) -> None:
    with pytest.raises(ArgumentError, match=f"epsilon of at least {1 / LARGEST_SCALE!r}"):
        DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1.0)
    with pytest.raises(ArgumentError, match="too small"):
        DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1 / epsilon)
    smallest_epsilon = 3.0 / LARGEST_SCALE
    with pytest.raises(ArgumentError, match=f"at least {smallest_epsilon!r}"):
        DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=3.0)
    assert (
        DiscreteLaplaceMechanism(epsilon=smallest_epsilon, sensitivity=3.0).scale == LARGEST_SCALE
    )


QUESTION = statistics.Question(["count"])


@pytest.mark.parametrize("epsilon", TOO_SMALL)
@pytest.mark.parametrize(
    "ask",
    [
        lambda epsilon: statistics.count([1.0, 2.0], epsilon=epsilon),
        lambda epsilon: statistics.count([1.0, 2.0], epsilon=epsilon, clamp=False),
        lambda epsilon: statistics.histogram([1.0, 2.0], edges=[0, 2, 4], epsilon=epsilon),
        lambda epsilon: statistics.Request(epsilon, [QUESTION]),
    ],
    ids=["count", "unclamped count", "histogram", "Request"],
)
def test_statistics_refuse_an_epsilon_whose_noise_would_be_cut(ask: Any, epsilon: float) -> None:
    with pytest.raises(ArgumentError, match="too small for a count"):
        ask(epsilon)


def test_a_count_with_a_tiny_epsilon_that_is_allowed_has_noise() -> None:
    """P(X = 0) is below 1/(2 scale) = 5e-16 at epsilon 1e-15."""
    counts = {statistics.count(range(50), epsilon=1e-15, clamp=False).value for _ in range(100)}
    assert 50 not in counts
    assert len(counts) == 100


@pytest.mark.parametrize("value", [42, -7, np.int8(5), np.uint32(2**31), 2**62, INT64.min])
def test_one_integer_is_released_as_an_array_of_one(value: Any) -> None:
    mechanism, secret = DiscreteLaplaceMechanism(epsilon=0.1, sensitivity=1.0), os.urandom(32)
    released = mechanism.release(value, fixed_generator(secret))
    assert type(released) is int
    (expected,) = mechanism.release(np.array([int(value)]), fixed_generator(secret)).tolist()
    assert released == expected


def test_integers_are_released_as_the_kind_that_goes_in() -> None:
    mechanism, secret = DiscreteLaplaceMechanism(epsilon=0.1, sensitivity=1.0), os.urandom(32)
    integers = [[1, 2, 3], [4, 5, 6]]
    expected = mechanism.release(np.array(integers), fixed_generator(secret))
    assert expected.shape == (2, 3)
    assert mechanism.release(integers, fixed_generator(secret)) == expected.tolist()
    kinds: list[Any] = [tuple, pd.Series, pl.Series, lambda row: np.array(row, dtype=object)]
    flat = mechanism.release(np.arange(5), fixed_generator(secret)).tolist()
    for kind in kinds:
        released = mechanism.release(kind(range(5)), fixed_generator(secret))
        assert type(released) is type(kind(range(5)))
        assert list(released) == flat
    assert mechanism.release(np.array(7)).shape == ()
    assert mechanism.release(np.empty((0, 3), np.int16)).shape == (0, 3)
