"""The costs of inversion: the published figures, and the formulas checked by counting."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from support import naive

import dpnoise
from dpnoise import inversion_cost, variates_for


def test_the_choice_of_n_matches_the_paper() -> None:
    assert [variates_for(bits, 53) for bits in (128, 192, 256)] == [4, 5, 6]
    assert [variates_for(bits, 24) for bits in (128, 192, 256)] == [7, 9, 12]
    assert [variates_for(bits, 11) for bits in (128, 192, 256)] == [13, 19, 25]


@pytest.mark.parametrize(
    ("form", "n", "exhaustive", "middle"),
    [
        ("inverse", 1, 0, 0),
        ("exponentials", 2, 53, 53),
        ("theorem", 4, 3 * 53 - 1, 2 * 53),
        ("products", 4, 3 * 53 - 1, 2 * 53),
        ("products", 16, 15 * 53 - 1, 8 * 53),
        ("squares", 16, 15 * 53, 8 * 53),
        ("gammas", 6, 5 * 53, 3 * 53),
    ],
)
def test_costs_of_the_forms_of_laplace(form: str, n: int, exhaustive: int, middle: int) -> None:
    cost = inversion_cost(53, n, form)
    assert cost.paper == 53 * (n - 1)
    assert cost.exhaustive == exhaustive
    assert cost.meet_in_the_middle == middle


def test_an_odd_number_of_pairs_does_not_split_evenly() -> None:
    cost = inversion_cost(24, 6, distribution=dpnoise.Gaussian())
    assert (cost.meet_in_the_middle, cost.memory) == (4 * 24, 2 * 24)


def all_uniforms(n: int, p: int) -> NDArray[np.float64]:
    axes = np.meshgrid(*[np.arange(2**p) / 2**p] * n, indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("formula", "distribution", "n", "p", "dtype"),
    [
        (naive.laplace_theorem, dpnoise.Laplace(), 4, 5, "float16"),
        (naive.laplace_exponentials, dpnoise.Laplace(), 2, 10, "float16"),
        (naive.gaussian, dpnoise.Gaussian(), 2, 10, "float16"),
        (naive.half_gammas(2), dpnoise.Exponential(), 4, 5, "float16"),
    ],
)
def test_expected_preimages_match_the_count(
    formula: naive.Formula, distribution: dpnoise.Laplace, n: int, p: int, dtype: str
) -> None:
    """Count the preimages of the floats around the median |z|, over all inputs."""
    outputs = np.abs(formula(all_uniforms(n, p)).astype(dtype))
    cost = inversion_cost(p, n, distribution=distribution, dtype=dtype)
    median = np.median(outputs)
    near = outputs[(outputs > 0.9 * median) & (outputs < 1.1 * median)]
    width = np.spacing(near[0].astype(dtype)).astype(float)
    floats = 0.2 * float(median) / width
    # A symmetric distribution has two outputs of each size.
    signs = 2 if distribution.mean == 0 else 1
    preimages = len(near) / floats / signs
    assert abs(np.log2(preimages) - cost.preimages) < 0.5


def checks_for(z: float) -> int:
    """Return how many random V1, U1, U2 it takes until the V2 solved for gives z exactly.

    A z far from 0 takes e^|z| checks, so the search stops early, above any median.
    """
    rng = np.random.default_rng()
    limit = 1_000
    for count in range(1, limit):
        u = rng.random((1, 4))
        first = naive.laplace_theorem(u * [1, 1, 0, 0])
        with np.errstate(all="ignore"):
            solved = -np.expm1((z - first) / naive.cos_pi(u[:, 3]))
        if not 0 <= solved[0] < 1:
            continue
        u[:, 2] = np.round(solved * 2.0**53) * 2.0**-53
        if naive.laplace_theorem(u)[0] == z:
            return count
    return limit


def test_one_preimage_at_full_precision_takes_a_handful_of_checks() -> None:
    """The median of the checks is within a factor of 4 of the formula, for 200 outputs.

    If the formula is right within a factor of 2, the test fails with probability below 10^-8.
    """
    cost = inversion_cost(53, 4)
    assert cost.preimages == 4 * 53 - 55
    checks = [checks_for(z) for z in dpnoise.Generator().laplace(size=200)]
    assert 0.25 <= np.median(checks) / 2**cost.find_one <= 4


def test_the_printed_form_never_says_secure() -> None:
    for cost in (inversion_cost(53, 4), inversion_cost(8, 4, dtype="float64")):
        text = str(cost)
        assert "the paper's figure" in text
        assert "secur" not in text
    assert "no search excludes a wrong value" in str(inversion_cost(53, 4))
    assert "a search can exclude a wrong value" in str(inversion_cost(8, 4, dtype="float64"))


def test_bad_arguments_are_named() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: inversion_cost(54, 4), "precision must be at most 53, got 54"),
        (lambda: inversion_cost(53, 3), "variates must be a supported number"),
        (lambda: inversion_cost(53, 4, dtype="int8"), "dtype must be one of"),
        (lambda: variates_for(0), "security_bits must be at least 1, got 0"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
