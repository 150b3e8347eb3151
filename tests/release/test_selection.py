"""Selection: the exact argmax, and its laws in the literature."""

import math
import os
from decimal import Decimal
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from flint import ctx
from scipy import stats
from support import alarms

import dpnoise
from dpnoise.core import reference
from dpnoise.core.entropy import Key
from dpnoise.release import exact, selection
from dpnoise.release.exact import SELECTION
from dpnoise.testing import fixed_generator

DRAWS = 20_000 if alarms.LONG else 5_000
MECHANISMS: list[tuple[Any, str]] = [
    (dpnoise.NoisyMax, "exponential"),
    (dpnoise.ExponentialMechanism, "gumbel"),
]


def reference_argmax(form: str, secret: bytes, scores: list[Any], scale: float) -> int:
    """Return the argmax by the reference only, with 640 digits of every uniform."""
    words = np.empty(len(scores), dtype=np.uint64)
    Key(secret).stream().fill(words)
    totals = []
    for i, score in enumerate(scores):
        rows = exact.rows_from_key(Key(secret), i, words[i : i + 1])
        first_rows = [next(rows) for _ in range(10)]
        *_, noise = reference.enclosures(SELECTION[form].formula, first_rows)
        with ctx.workprec(2000):
            totals.append(reference.ball_of(score) + reference.ball_of(scale) * noise)
    with ctx.workprec(2000):
        leaders = [
            i for i, a in enumerate(totals) if all(a > b for j, b in enumerate(totals) if j != i)
        ]
    assert len(leaders) == 1
    return leaders[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mechanism", "form"), MECHANISMS)
def test_the_selection_equals_the_reference(mechanism: Any, form: str) -> None:
    rng = np.random.default_rng()
    for _ in range(150 if alarms.LONG else 50):
        epsilon = float(10 ** rng.uniform(-3, 2))
        mech = mechanism(epsilon=epsilon, sensitivity=1.0)
        count = int(rng.integers(1, 12))
        scores: list[Any] = (rng.standard_normal(count) * 10 ** rng.uniform(-3, 6)).tolist()
        if rng.random() < 0.3:
            scores = [int(x) + 10**25 for x in scores]
        secret = os.urandom(32)
        assert mech.select(scores, rng=fixed_generator(secret)) == reference_argmax(
            form, secret, scores, mech.scale
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mechanism", "form"), MECHANISMS)
def test_scores_that_floats_cannot_distinguish_are_refined(mechanism: Any, form: str) -> None:
    """With scores far beyond 2^53 scales the noise vanishes in floats, but still decides."""
    mech = mechanism(epsilon=1.0, sensitivity=1.0)
    scores = [2**80, 2**80 + 1, 2**80, 2**80 - 1]
    selected = set()
    for _ in range(60):
        secret = os.urandom(32)
        index = mech.select(scores, rng=fixed_generator(secret))
        assert index == reference_argmax(form, secret, scores, mech.scale)
        selected.add(index)
    assert len(selected) > 1
    words = np.array([5, 6], dtype=np.uint64)
    far = np.array([1e30, 1e30])
    assert selection._possible_leaders(SELECTION[form], words, far, 1.0) == [0, 1]


def test_sums_beyond_the_largest_float_are_compared_exactly() -> None:
    scores = [1.7e308, -1.7e308, 1.75e308, 1.75e308]
    for mechanism, form in MECHANISMS:
        mech = mechanism(epsilon=1.0, sensitivity=2.0**958)
        for _ in range(20):
            secret = os.urandom(32)
            selected = mech.select(scores, rng=fixed_generator(secret))
            assert selected == reference_argmax(form, secret, scores, mech.scale)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mechanism", "form"), MECHANISMS)
def test_the_roundings_of_large_scores_are_covered(mechanism: Any, form: str) -> None:
    """Near 2^50 a float keeps two bits of the noise; the reference decides what they leave open."""
    rng = np.random.default_rng()
    mech = mechanism(epsilon=1.0, sensitivity=0.5)
    for _ in range(150 if alarms.LONG else 50):
        scores = (2.0**50 + np.rint(rng.standard_normal(6) * 4) / 4).tolist()
        secret = os.urandom(32)
        selected = mech.select(scores, rng=fixed_generator(secret))
        assert selected == reference_argmax(form, secret, scores, mech.scale)


@pytest.mark.parametrize("monotonic", [False, True])
def test_the_scale_of_a_selection_is_rounded_up(monotonic: bool) -> None:  # noqa: FBT001
    rng = np.random.default_rng()
    for epsilon, sensitivity in 10 ** rng.uniform(-8, 8, (300, 2)):
        scale = dpnoise.NoisyMax(
            epsilon=epsilon, sensitivity=sensitivity, monotonic=monotonic
        ).scale
        needed = (1 if monotonic else 2) * Fraction(sensitivity)
        below = math.nextafter(scale, 0.0)
        assert Fraction(scale) * Fraction(epsilon) >= needed > Fraction(below) * Fraction(epsilon)


def test_scores_of_numpy_s_kinds_are_taken_exactly() -> None:
    """Also if the reference must decide, far beyond the precision of floats."""
    integers = [2**62, 2**62 + 1]  # Equal as floats.
    narrow = [np.float32(1e30), np.nextafter(np.float32(1e30), np.float32(np.inf))]
    cases: list[tuple[float, list[Any], list[Any]]] = [
        (1.0, integers, [integers, [np.int64(x) for x in integers], np.array(integers)]),
        (1.0, integers, [np.array(integers, np.uint64), np.array(integers, object)]),
        (2.0**76, [float(x) for x in narrow], [narrow, np.array(narrow)]),
        (
            2.0**76,
            [1e30, 1e30 + 2.0**76],
            [[1e30, 1e30 + 2.0**76], np.array([1e30, 1e30 + 2.0**76])],
        ),
    ]
    for (mechanism, form), (sensitivity, exact_scores, kinds) in product(MECHANISMS, cases):
        mech = mechanism(epsilon=1.0, sensitivity=sensitivity)
        selected = []
        for _ in range(60):
            secret = os.urandom(32)
            selected.append(reference_argmax(form, secret, exact_scores, mech.scale))
            for scores in kinds:
                assert mech.select(scores, rng=fixed_generator(secret)) == selected[-1]
        # Each is chosen with a probability above 0.3; 60 draws miss it with one below 10^-9.
        assert set(selected) == {0, 1}


@pytest.mark.parametrize(
    "scores",
    [
        [Fraction(1, 3), 1],
        [Decimal("0.1"), 1],
        ["100000000000000000000.1", "1"],
        [1 + 2j],
        np.array([1.0], np.longdouble),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        np.array(["2020-01-01"], "M8[D]"),
        [10**400],
    ],
    ids=str,
)
def test_scores_that_are_not_exact_floats_are_refused(scores: Any) -> None:
    for mechanism, _ in MECHANISMS:
        with pytest.raises((TypeError, ValueError), match=r"must|not supported"):
            mechanism(epsilon=1.0, sensitivity=1.0).select(scores)


def permute_and_flip(scores: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the exact probabilities of permute-and-flip, over all permutations."""
    flip = np.exp(epsilon / 2 * (scores - scores.max()))
    probabilities = np.zeros(len(scores))
    orders = list(permutations(range(len(scores))))
    for order in orders:
        survive = 1.0
        for i in order:
            probabilities[i] += survive * flip[i] / len(orders)
            survive *= 1 - flip[i]
    return probabilities


def test_noisy_max_is_permute_and_flip() -> None:
    scores = np.array([0.0, 1.5, 2.0, -1.0])
    mech = dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0)
    counts = np.bincount([mech.select(scores) for _ in range(DRAWS)], minlength=4)
    alarms.check_counts(counts, permute_and_flip(scores, 1.0))


def test_the_exponential_mechanism_has_its_law() -> None:
    scores = np.array([0.0, 1.5, 2.0, -1.0])
    for monotonic, factor in ((False, 0.5), (True, 1.0)):
        mech = dpnoise.ExponentialMechanism(epsilon=1.0, sensitivity=1.0, monotonic=monotonic)
        counts = np.bincount([mech.select(scores) for _ in range(DRAWS)], minlength=4)
        weights = np.exp(factor * scores)
        alarms.check_counts(counts, weights / weights.sum())


def test_exact_scores_decide_where_floats_leave_a_choice() -> None:
    """Two scores with the same float differ by ten scales, so the second usually wins."""
    scores = np.array([2.0**60, 2.0**60])
    selected = [
        selection.noisy_argmax(scores, lambda i: 2**60 + 10 * i, 1.0, None) for _ in range(1000)
    ]
    # For exponential noise E, P(E1 > E2 + 10) = e^-10/2.
    alarms.check_probability(stats.binomtest(selected.count(0), 1000, math.exp(-10) / 2).pvalue)


def test_monotonic_halves_the_noise() -> None:
    for mechanism, _ in MECHANISMS:
        assert mechanism(epsilon=0.5, sensitivity=3.0).scale == 12.0
        assert mechanism(epsilon=0.5, sensitivity=3.0, monotonic=True).scale == 6.0


def test_candidates_and_kinds_of_scores() -> None:
    mech = dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0)
    scores = [0, 10**6, 3]
    assert mech.select(scores) == 1
    assert mech.select(np.array(scores)) == 1
    assert mech.select(tuple(scores), candidates="abc") == "b"
    assert mech.select([5.0]) == 0
    assert isinstance(mech.select(np.array(scores)), int)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mechanism", "form"), MECHANISMS)
def test_scores_that_a_float_rounds_are_compared_exactly(mechanism: Any, form: str) -> None:
    """Above 2^53 neighbouring integers have the same float; the margin covers this rounding."""
    for k in range(400 if alarms.LONG else 100):
        secret = k.to_bytes(32, "little")
        scores = [2**53 + 1, 2**53, 2**53 + 2 + k % 2]
        selected = mechanism(epsilon=2.0, sensitivity=1.0).select(
            scores, rng=fixed_generator(secret)
        )
        assert selected == reference_argmax(
            form, secret, scores, mechanism(epsilon=2.0, sensitivity=1.0).scale
        )


def test_no_candidate_is_ruled_out_where_its_noise_has_no_bound() -> None:
    """At V = 0 noise is unbounded, so no score is certain to lead."""
    words = np.array([2**64 - 1, 0], dtype=np.uint64)
    for scores, scale in (([0.0, 1.0], 2.0**-960), ([0.0, 1e300], 1.0)):
        for form in ("exponential", "gumbel"):
            leaders = selection._possible_leaders(SELECTION[form], words, np.array(scores), scale)
            assert 0 in leaders
