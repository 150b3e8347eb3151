"""Composition: total costs agree with dp_accounting and with numerical integrals."""

import math
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.budget_split import amount_for_error, share, smallest_amount, split
from dpnoise.statistics.composition import (
    GAUSSIAN,
    PURE,
    Cost,
    Loss,
    compose,
    epsilon_of_gaussian,
    epsilon_of_zcdp,
    gaussian_rho,
)

amounts = st.floats(1e-3, 3.0)
losses = st.lists(
    st.builds(Loss, st.sampled_from([PURE, GAUSSIAN]), amounts), min_size=1, max_size=4
)
TOGETHER = [
    ([Loss(PURE, 0.1)] * 10, 1e-6),
    ([Loss(GAUSSIAN, 0.02), Loss(PURE, 0.3)], 1e-5),
    ([Loss(GAUSSIAN, 0.1), *[Loss(PURE, 0.2)] * 4, Loss(PURE, 0.7)], 1e-9),
]


def dp_accounting_loss(parts: list[Loss], *, pessimistic: bool) -> Any:
    """Return dp_accounting's distribution of the privacy loss of the worst mechanisms."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    options = {"pessimistic_estimate": pessimistic, "value_discretization_interval": 1e-4}

    def distribution(loss: Loss) -> Any:
        if loss.kind == PURE:
            return pld.from_randomized_response(2 / (1 + math.exp(loss.amount)), 2, **options)
        scale = 1 / math.sqrt(2 * loss.amount)
        return pld.from_gaussian_mechanism(scale, use_connect_dots=False, **options)

    return reduce(lambda total, part: total.compose(part), map(distribution, parts))


@pytest.mark.parametrize(("parts", "delta"), TOGETHER)
def test_the_cost_lies_between_both_bounds_of_dp_accounting(
    parts: list[Loss], delta: float
) -> None:
    cost = compose(parts, delta).floats()["epsilon"]
    assert cost is not None
    low, high = (
        dp_accounting_loss(parts, pessimistic=pessimistic).get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )
    assert low - 1e-9 <= cost <= high + 1e-9
    assert high - low < 2e-3, "the two bounds are informative"


def hockey_stick(epsilon: float, pure: list[float], rho: float) -> Any:
    """Integrate max(0, p(x) - exp(epsilon) q(x)) for randomised responses and Gaussian noise.

    The difference of the logarithms is linear in x, so it has one root.
    """
    with mpmath.workdps(20):
        m, total = mpmath.sqrt(2 * mpmath.mpf(rho)), mpmath.mpf(0)
        for pattern in np.ndindex(*(2,) * len(pure)):
            p, q = mpmath.mpf(1), mpmath.mpf(1)
            for is_true, e in zip(pattern, map(mpmath.mpf, pure), strict=True):
                true, false = 1 / (1 + mpmath.exp(-e)), 1 / (1 + mpmath.exp(e))
                p, q = (p * true, q * false) if is_true else (p * false, q * true)
            root = (mpmath.mpf(epsilon) - mpmath.log(p / q)) / m + m / 2
            limits = [root, root + 1, root + 3, root + 10, root + 40]
            total += mpmath.quad(
                lambda x, p=p, q=q: (
                    p * mpmath.npdf(x, m) - mpmath.exp(epsilon) * q * mpmath.npdf(x)
                ),
                limits,
            )
        return total


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("pure", "rho", "delta"), [([], 0.5, 1e-6), ([0.3], 0.02, 1e-5), ([0.25, 1.0], 0.125, 1e-8)]
)
def test_the_cost_is_the_smallest_by_an_integral(
    pure: list[float], rho: float, delta: float
) -> None:
    parts = [Loss(GAUSSIAN, rho), *(Loss(PURE, epsilon) for epsilon in pure)]
    epsilon = compose(parts, delta).floats()["epsilon"]
    assert epsilon is not None
    assert hockey_stick(epsilon * (1 + 1e-10), pure, rho) <= delta
    assert hockey_stick(epsilon * (1 - 1e-10), pure, rho) > delta


@settings(max_examples=30)
@given(losses)
def test_pure_losses_add_up_exactly_and_gaussians_need_a_delta(parts: list[Loss]) -> None:
    cost = compose(parts)
    if all(loss.kind == PURE for loss in parts):
        assert cost.epsilon == sum(Fraction(loss.amount) for loss in parts)
    else:
        assert cost.epsilon is None
    assert cost.delta == cost.rho_delta == 0
    rhos = [Fraction(loss.amount) ** (2 if loss.kind == PURE else 1) for loss in parts]
    halves = [r / 2 if loss.kind == PURE else r for r, loss in zip(rhos, parts, strict=True)]
    assert cost.rho == sum(halves)


@settings(max_examples=5)
@given(losses, st.sampled_from([1e-9, 1e-6, 1e-2]))
def test_no_cost_is_above_the_plain_sum_nor_above_zcdp(parts: list[Loss], delta: float) -> None:
    cost = compose(parts, delta)
    gaussian = sum(Fraction(loss.amount) for loss in parts if loss.kind == GAUSSIAN)
    pure = sum(Fraction(loss.amount) for loss in parts if loss.kind == PURE)
    gaussian_epsilon = (
        Fraction(epsilon_of_gaussian(math.nextafter(float(gaussian), 99), delta)) if gaussian else 0
    )
    assert cost.epsilon is not None
    assert cost.epsilon <= (pure + gaussian_epsilon) * (1 + Fraction(1, 2**50))
    assert cost.epsilon <= epsilon_of_zcdp(math.nextafter(float(cost.rho), 99), delta)


def test_losses_of_too_many_sums_still_cost_no_more_than_both_simple_ways() -> None:
    parts = [Loss(PURE, 0.1 + i / 1000) for i in range(40)]
    cost = compose(parts, 1e-6).floats()["epsilon"]
    assert cost is not None
    assert cost < sum(loss.amount for loss in parts), "zCDP is smaller here"
    assert cost <= epsilon_of_zcdp(sum(float(loss.rho) for loss in parts) * (1 + 1e-12), 1e-6)
    least = compose([Loss(PURE, 0.1)] * 40, 1e-6).floats()["epsilon"]
    assert least is not None
    assert cost >= least, "no mechanism became cheaper"


def test_what_is_set_aside_comes_on_top_in_both_metrics() -> None:
    cost = compose([Loss(GAUSSIAN, 0.5)], 1e-6, aside=2e-6)
    assert cost.delta == Fraction(1e-6) + Fraction(2e-6)
    assert cost.rho_delta == Fraction(2e-6)
    assert cost.floats()["epsilon"] == epsilon_of_gaussian(0.5, 1e-6)
    assert compose([Loss(PURE, 0.5)], aside=1e-6).epsilon == Fraction(1, 2)


def test_the_conversion_from_zcdp_is_the_best_of_its_formula() -> None:
    for rho, delta in [(0.5, 1e-6), (1e-4, 1e-10), (20.0, 1e-3), (1e-12, 1e-6), (1e6, 1e-6)]:
        epsilon = epsilon_of_zcdp(rho, delta)
        with mpmath.workdps(40):

            def formula(less: Any, rho: float = rho, delta: float = delta) -> Any:
                a = 1 + less
                curved = a * mpmath.log(1 - 1 / a) - mpmath.log(less)
                return a * mpmath.mpf(rho) + (curved - mpmath.log(mpmath.mpf(delta))) / less

            start = mpmath.sqrt(mpmath.log(1 / delta) / rho)
            tried = (start * mpmath.mpf(2) ** (mpmath.mpf(k) / 50) for k in range(-200, 200))
            best = max(min(map(formula, tried)), 0)
        assert best * (1 - mpmath.mpf(10) ** -4) <= epsilon <= best * (1 + mpmath.mpf(10) ** -12)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-9), (5.0, 1e-2)])
def test_rho_of_a_gaussian_and_its_epsilon_are_each_other_s_inverse(
    epsilon: float, delta: float
) -> None:
    rho = gaussian_rho(epsilon, delta)
    assert epsilon_of_gaussian(rho, delta) <= epsilon
    assert epsilon_of_gaussian(rho * (1 + 1e-12), delta) > epsilon * (1 - 1e-12)
    scale = GaussianMechanism.for_rho(rho, sensitivity=1.0).scale
    assert scale >= GaussianMechanism(epsilon=epsilon, delta=delta, sensitivity=1.0).scale


def test_a_loss_that_nothing_protects_and_one_that_is_hardly_one_have_a_cost() -> None:
    assert compose([Loss(PURE, 1e300)], 1e-6).floats()["rho"] == math.inf
    assert compose([Loss(GAUSSIAN, 1e-30)], 1e-3).epsilon == 0
    assert compose([Loss(GAUSSIAN, 1e200)], 1e-6).epsilon is not None
    assert compose([Loss(PURE, 1.7e308)] * 3, 1e-6).epsilon is None, "no float is so large"
    assert 0 <= (compose([Loss(PURE, 5e-324)] * 3, 5e-324).epsilon or 0) <= 3 * Fraction(5e-324)
    assert epsilon_of_zcdp(5e-324, 1e-300) < 1e-140
    assert epsilon_of_zcdp(1e300, 0.999) >= 1e300


def test_permute_and_flip_has_no_bounded_range() -> None:
    """A selection therefore counts epsilon^2/2, not the epsilon^2/8 of a bounded range.

    Two candidates have equal scores, or scores that differ by g noise scales. The second is
    selected with probability exp(-g)/2. With sensitivity 1 and scale 2/epsilon, one row can make
    g = epsilon.
    """
    epsilon = 1.0
    equal = (0.5, 0.5)
    unequal = (1 - math.exp(-epsilon) / 2, math.exp(-epsilon) / 2)
    losses_of = [math.log(a / b) for a, b in zip(equal, unequal, strict=True)]
    assert max(map(abs, losses_of)) <= epsilon * (1 + 1e-15)
    assert max(losses_of) - min(losses_of) > epsilon * 1.4


# Dividing a budget --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.floats(1e-6, 1e6), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_parts_add_up_to_at_most_the_number_as_it_is_written(
    total: float, weights: list[float]
) -> None:
    parts = split(total, weights)
    parts_sum = sum(map(Fraction, parts))
    assert parts_sum <= Fraction(repr(total))
    assert parts_sum >= Fraction(repr(total)) * (1 - Fraction(1, 2**50))
    for part, weight in zip(parts, weights, strict=True):
        assert part == pytest.approx(total * weight / sum(weights))


def test_ten_tenths_are_at_most_one() -> None:
    assert 10 * Fraction(0.1) > 1, "as floats they are not"
    assert 10 * Fraction(split(0.1, [1])[0]) <= 1


MIXTURES = [
    [PURE],
    [GAUSSIAN],
    [PURE, PURE, PURE],
    [GAUSSIAN, GAUSSIAN],
    [GAUSSIAN, PURE],
    [GAUSSIAN, PURE, PURE, GAUSSIAN],
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("kinds", MIXTURES)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-9)])
def test_what_is_shared_is_within_the_budget_and_uses_it_up(
    kinds: list[str], epsilon: float, delta: float
) -> None:
    weights = [1.0 + i for i in range(len(kinds))]
    parts = share(kinds, weights, epsilon=epsilon, delta=delta)
    assert [loss.kind for loss in parts] == kinds
    cost = compose(parts, 0.0 if GAUSSIAN not in kinds else delta).epsilon
    assert cost is not None
    assert Fraction(repr(epsilon)) * (1 - Fraction(1, 10**9)) <= cost <= Fraction(repr(epsilon))


def test_a_mixed_budget_gives_more_to_each_than_a_plain_sum() -> None:
    parts = share([GAUSSIAN, PURE, PURE], epsilon=1.0, delta=1e-6)
    assert parts[0].amount > gaussian_rho(1 / 3, 1e-6)
    assert min(parts[1].amount, parts[2].amount) > 1 / 3


@pytest.mark.parametrize("kinds", MIXTURES)
def test_what_is_shared_by_rho_adds_up_to_rho(kinds: list[str]) -> None:
    cost = compose(share(kinds, rho=0.3))
    assert Fraction("0.3") * (1 - Fraction(1, 2**40)) <= cost.rho <= Fraction("0.3")


@pytest.mark.parametrize(
    "arguments",
    [
        {"kinds": [PURE]},
        {"kinds": [PURE], "epsilon": 1.0, "rho": 1.0},
        {"kinds": [], "epsilon": 1.0},
        {"kinds": ["laplace"], "epsilon": 1.0},
        {"kinds": [GAUSSIAN], "epsilon": 1.0},
        {"kinds": [GAUSSIAN], "epsilon": 1.0, "delta": 1.0},
        {"kinds": [PURE], "epsilon": -1.0},
        {"kinds": [PURE], "epsilon": math.nan},
        {"kinds": [PURE, PURE], "weights": [1.0], "epsilon": 1.0},
        {"kinds": [PURE, PURE], "weights": [1.0, 0.0], "epsilon": 1.0},
        {"kinds": [PURE, PURE], "weights": [1e300, 1e-300], "epsilon": 1e-20},
    ],
)
def test_a_budget_that_cannot_be_divided_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        share(**arguments)


def test_numbers_of_other_kinds_mean_what_they_say_or_are_refused() -> None:
    class Loud(float):
        def __repr__(self) -> str:
            return "1e9"

    single: Any = np.float32(1)
    assert split(Loud(0.1), [single]) == split(np.float64(0.1), [1]) == split(0.1, [1])
    with pytest.raises(ArgumentTypeError):
        split(True, [1])  # noqa: FBT003 - that is the question
    with pytest.raises(ArgumentError):
        compose([])
    with pytest.raises(ArgumentError):
        compose([Loss(PURE, 1.0)], 0.7, aside=0.6)
    with pytest.raises(ArgumentError, match="below 1"):
        compose([Loss(GAUSSIAN, 1.0)], 1.0)
    assert Cost(None, Fraction(0), Fraction(1, 3), Fraction(0)).floats()["rho"] == math.nextafter(
        1 / 3, 1
    )


# The cost of an error -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("laplace", LaplaceMechanism),
        ("discrete", DiscreteLaplaceMechanism),
        ("gaussian", GaussianMechanism.for_rho),
    ],
)
@pytest.mark.parametrize(("error", "sensitivity"), [(5, 1.0), (0.75, 0.5), (1e6, 3.0)])
def test_the_amount_is_the_smallest_that_has_the_error(
    name: str, make: Any, error: float, sensitivity: float
) -> None:
    amount = amount_for_error(name, error, 0.9, sensitivity)
    amount_name = "rho" if name == "gaussian" else "epsilon"

    def error_of(spent: float) -> float:
        mechanism = make(**{amount_name: spent, "sensitivity": sensitivity})
        return float(mechanism.error(0.9))

    assert error_of(amount) <= error
    assert error_of(math.nextafter(amount, 0.0)) > error


def test_an_error_that_no_amount_reaches_is_refused() -> None:
    with pytest.raises(ArgumentError, match="error"):
        smallest_amount(lambda amount: 0.5 + 1 / amount, 0.25)
    with pytest.raises(ArgumentError, match="error"):
        amount_for_error("laplace", -1.0)
    with pytest.raises(ArgumentError, match="mechanism"):
        amount_for_error("cauchy", 1.0)
