"""The frozen distributions: agreement with SciPy, and consistency."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

import dpnoise
from dpnoise.noise.distributions import Distribution

PEERS: list[tuple[Distribution, Any]] = [
    (dpnoise.Uniform(2.5), stats.uniform(scale=2.5)),
    (dpnoise.Gaussian(2.5), stats.norm(scale=2.5)),
    (dpnoise.Laplace(2.5), stats.laplace(scale=2.5)),
    (dpnoise.Exponential(2.5), stats.expon(scale=2.5)),
    (dpnoise.Gamma(0.3, 2.5), stats.gamma(0.3, scale=2.5)),
    (dpnoise.Gamma(7.5, 2.5), stats.gamma(7.5, scale=2.5)),
    (dpnoise.ChiSquared(3), stats.chi2(3)),
    (dpnoise.Gumbel(2.5), stats.gumbel_r(scale=2.5)),
    (dpnoise.Cauchy(2.5), stats.cauchy(scale=2.5)),
]
IDS = [repr(distribution) for distribution, _ in PEERS]


@pytest.mark.parametrize(("distribution", "peer"), PEERS, ids=IDS)
def test_distribution_agrees_with_scipy(distribution: Distribution, peer: Any) -> None:
    x = np.concatenate([np.linspace(-20, 20, 400), [1e-3, 1e3, -1e3]])
    q = np.array([1e-12, 1e-5, 0.1, 0.5, 0.9, 1 - 1e-5])
    np.testing.assert_allclose(distribution.pdf(x), peer.pdf(x), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(distribution.cdf(x), peer.cdf(x), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(distribution.ppf(q), peer.ppf(q), rtol=1e-8, atol=1e-300)
    np.testing.assert_allclose(distribution.mean, peer.mean(), rtol=1e-12)
    if not np.isnan(distribution.variance):
        np.testing.assert_allclose(distribution.variance, peer.var(), rtol=1e-12)


@pytest.mark.parametrize("distribution", [row[0] for row in PEERS], ids=IDS)
def test_quantiles_invert_the_distribution_function(distribution: Distribution) -> None:
    q = np.linspace(0.01, 0.99, 99)
    np.testing.assert_allclose(distribution.cdf(distribution.ppf(q)), q, rtol=1e-9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        distribution.ppf([0.5, 1.5])


@pytest.mark.parametrize("distribution", [row[0] for row in PEERS], ids=IDS)
def test_distributions_are_frozen_values(distribution: Distribution) -> None:
    assert pickle.loads(pickle.dumps(distribution)) == distribution
    assert hash(distribution) == hash(pickle.loads(pickle.dumps(distribution)))
    with pytest.raises(AttributeError):
        distribution.scale = 3.0


@pytest.mark.parametrize("parties", [1, 2, 3, 10])
def test_the_density_of_a_share_is_one(parties: int) -> None:
    share = dpnoise.Laplace(2.5).share(parties)
    # The density has a pole at 0, which the substitution x = t^parties removes.
    inner = integrate.quad(lambda t: share.pdf(t**parties) * parties * t ** (parties - 1), 0, 1)[0]
    mass = inner + integrate.quad(share.pdf, 1, np.inf)[0]
    assert 2 * mass == pytest.approx(1, abs=1e-6)
    assert parties * share.variance == pytest.approx(dpnoise.Laplace(2.5).variance)
    with pytest.raises(NotImplementedError, match="no closed-form distribution function"):
        share.cdf(0.0)
    with pytest.raises(NotImplementedError, match="no closed-form quantile function"):
        share.ppf(0.5)


def test_bad_parameters_are_named() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: dpnoise.Laplace(-1.0), r"scale must be greater than 0, got -1\.0"),
        (lambda: dpnoise.Gamma(0.0), r"shape must be greater than 0, got 0\.0"),
        (lambda: dpnoise.Gamma(1.0, float("inf")), "scale must be finite"),
        (lambda: dpnoise.ChiSquared(0), r"df must be greater than 0, got 0\.0"),
        (lambda: dpnoise.Laplace().share(0), "parties must be at least 1, got 0"),
        (lambda: dpnoise.Gaussian().share(-1), "parties must be at least 1, got -1"),
    ]
    for bad, message in cases:
        with pytest.raises(ValueError, match=message):
            bad()
    with pytest.raises(TypeError, match="scale must be a number"):
        dpnoise.Laplace("1")  # type: ignore[arg-type]


def test_every_listed_form_can_be_drawn() -> None:
    rng = dpnoise.Generator()
    for distribution, _ in PEERS:
        for form in distribution.forms:
            n = form.smallest_supported(1)
            assert n is not None
            assert np.isfinite(rng.sample(distribution, size=10, form=form.name, variates=n)).all()
            assert f"variates={form.supported}" in repr(form)
