"""Every sampler against its exact distribution, on fresh noise; see alarms.py."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import alarms, naive

import dpnoise
from dpnoise.noise.distributions import Distribution

SAMPLES = alarms.SAMPLES if alarms.LONG else 150_000
rng = dpnoise.Generator()

# Distribution, options, fourth central moment at scale 1 (None if it does not exist).
SAMPLERS: list[tuple[Distribution, dict[str, Any], float | None]] = [
    (dpnoise.Uniform(), {}, 1 / 80),
    (dpnoise.Gaussian(), {"variates": 2}, 3),
    (dpnoise.Gaussian(3.0), {}, 3),
    (dpnoise.Gaussian(), {"variates": 6}, 3),
    (dpnoise.Gaussian(), {"dtype": "float32"}, 3),
    (dpnoise.Laplace(), {}, 24),
    (dpnoise.Laplace(0.25), {"variates": 2}, 24),
    (dpnoise.Laplace(), {"variates": 8}, 24),
    (dpnoise.Laplace(), {"dtype": "float32"}, 24),
    (dpnoise.Laplace(), {"form": "products", "variates": 4}, 24),
    (dpnoise.Laplace(), {"form": "squares"}, 24),
    (dpnoise.Laplace(), {"form": "squares", "variates": 8}, 24),
    (dpnoise.Laplace(), {"form": "gammas"}, 24),
    (dpnoise.Laplace(), {"form": "inverse"}, 24),
    (dpnoise.Exponential(2.0), {}, 9),
    (dpnoise.Exponential(), {"variates": 8}, 9),
    (dpnoise.Gamma(0.5), {}, 15 / 4),
    (dpnoise.Gamma(2.5, 3.0), {}, 3 * 2.5**2 + 6 * 2.5),
    (dpnoise.Gamma(0.3), {}, 3 * 0.3**2 + 6 * 0.3),
    (dpnoise.ChiSquared(3), {}, 3 * 1.5**2 + 6 * 1.5),
    (dpnoise.ChiSquared(1), {"variates": 2}, 3 * 0.5**2 + 6 * 0.5),
    (dpnoise.Gumbel(), {}, 3 * math.pi**4 / 20),
    (dpnoise.Gumbel(), {"variates": 8}, 3 * math.pi**4 / 20),
    (dpnoise.Cauchy(), {}, None),
    (dpnoise.Cauchy(), {"form": "inverse"}, None),
]


def is_inverted(distribution: Distribution, options: dict[str, Any]) -> bool:
    """Return whether each piece needs a slow inverse of the incomplete gamma function."""
    shape = getattr(distribution, "shape", 0.5)
    return options.get("form") == "gammas" or not (2 * shape).is_integer()


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("distribution", "options", "fourth"),
    SAMPLERS,
    ids=[f"{d} {o}" for d, o, _ in SAMPLERS],
)
def test_sampler_has_its_distribution(
    distribution: Distribution, options: dict[str, Any], fourth: float | None
) -> None:
    count = SAMPLES // (4 if is_inverted(distribution, options) else 1)
    sample = rng.sample(distribution, size=count, **options).astype(np.float64)
    alarms.check_independence(sample, distribution, lags=(1, 2, 8))
    sample.sort()  # The checks below do not depend on the order.
    alarms.check_distribution(sample, distribution)
    alarms.check_cells(sample, distribution)
    alarms.check_tails(sample, distribution)
    if fourth is not None:
        alarms.check_moments(sample, distribution, fourth)


def test_calls_are_independent() -> None:
    """Pairs of elements from two calls."""
    pairs = np.stack([rng.laplace(size=SAMPLES) for _ in range(2)], axis=1)
    alarms.check_independence(pairs.ravel(), dpnoise.Laplace())


def test_scalar_calls_have_the_distribution() -> None:
    for draw, distribution in (
        (rng.laplace, dpnoise.Laplace()),
        (rng.normal, dpnoise.Gaussian()),
        (rng.exponential, dpnoise.Exponential()),
        (rng.random, dpnoise.Uniform()),
    ):
        sample = np.array([draw() for _ in range(50_000 if alarms.LONG else 26_000)])
        alarms.check_distribution(sample, distribution)
        alarms.check_independence(sample, distribution)


WHOLES = [
    (dpnoise.Laplace(2.0), 1),
    (dpnoise.Laplace(2.0), 3),
    (dpnoise.Gaussian(2.0), 5),
    (dpnoise.Gamma(2.5, 2.0), 5),
    (dpnoise.Gamma(2.0), 3),
    (dpnoise.Exponential(3.0), 2),
    (dpnoise.ChiSquared(4), 2),
    (dpnoise.Cauchy(2.0), 7),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("whole", "parties"), WHOLES, ids=[f"{w} / {k}" for w, k in WHOLES])
def test_the_sum_of_shares_has_the_whole_distribution(whole: Any, parties: int) -> None:
    share = whole.share(parties)
    count = SAMPLES // (20 if parties == 3 else 5)  # Thirds are slow, because each is inverted.
    total = np.sort(sum(rng.sample(share, size=count) for _ in range(parties)))
    alarms.check_distribution(total, whole)
    alarms.check_cells(total, whole, cells=100)


def test_a_share_has_its_own_density() -> None:
    share = dpnoise.Laplace(2.0).share(2)
    sample = rng.sample(share, size=SAMPLES // 5)
    borders = np.linspace(0.01, 6, 60)
    middles = (borders[1:] + borders[:-1]) / 2
    # On such narrow cells the error of Simpson's rule is far below the noise of the counts.
    inner = (share.pdf(borders[1:]) + 4 * share.pdf(middles) + share.pdf(borders[:-1])) / 6
    probabilities = inner * np.diff(borders)
    counts = np.histogram(sample, borders)[0]
    probabilities = np.append(probabilities, 1 - probabilities.sum())
    alarms.check_counts(np.append(counts, len(sample) - counts.sum()), probabilities)


# At reduced precision: against the distribution over all words, by enumeration.

ENUMERATED: list[tuple[str, dict[str, Any], naive.Formula, int, int]] = [
    ("laplace", {}, naive.laplace_theorem, 4, 5),
    ("laplace", {}, naive.laplace_exponentials, 2, 10),
    ("laplace", {}, naive.laplace_products, 8, 2),
    ("laplace", {"form": "products"}, naive.laplace_products, 4, 5),
    ("laplace", {"form": "squares"}, naive.laplace_squares, 4, 5),
    ("laplace", {"form": "gammas"}, naive.laplace_gammas, 4, 4),
    ("laplace", {"form": "inverse"}, naive.laplace_inverse, 1, 11),
    ("normal", {}, naive.gaussian, 2, 9),
    ("normal", {}, naive.gaussian, 4, 5),
    ("normal", {}, naive.gaussian, 6, 3),
    ("exponential", {}, naive.half_gammas(2), 4, 5),
    ("chisquare", {"df": 3}, lambda u: 2 * naive.half_gammas(3)(u), 6, 3),
    ("gumbel", {}, naive.gumbel(5), 4, 5),
    ("cauchy", {}, naive.cauchy, 2, 9),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("method", "options", "formula", "n", "p"),
    ENUMERATED,
    ids=[f"{row[0]} {row[1]} n={row[3]} p={row[4]}" for row in ENUMERATED],
)
def test_reduced_precision_has_the_enumerated_distribution(
    method: str, options: dict[str, Any], formula: naive.Formula, n: int, p: int
) -> None:
    """The naive formula on all 2^(np) words gives the exact probability of every output."""
    axes = np.meshgrid(*[np.arange(2**p) / 2**p] * n, indexing="ij")
    exact = np.unique(
        formula(np.stack([axis.ravel() for axis in axes], axis=1)), return_counts=True
    )
    for dtype in ("float64", "float32", "float16"):
        sample = getattr(rng, method)(
            size=200_000 if alarms.LONG else 60_000, variates=n, precision=p, dtype=dtype, **options
        ).astype(np.float64)
        check_enumerated(np.sort(sample), *exact, dtype)


def check_enumerated(
    sample: alarms.Sample, exact: alarms.Sample, times: NDArray[np.intp], dtype: str
) -> None:
    """Compare a sample with exact values and the number of times that each occurs.

    All are sorted. The sampler's values are within `slack` of the exact ones before rounding.
    Floats to which one exact value could round are counted together.
    """
    slack = 1e-12 * (1 + np.abs(exact))
    low, high = ((exact + side * slack).astype(dtype).astype(np.float64) for side in (-1, 1))
    floats = np.unique([low, high])
    first, last = np.searchsorted(floats, low), np.searchsorted(floats, high)
    # joined[k] counts the values that could round to float k or to float k+1.
    joined = np.cumsum(
        np.bincount(first, minlength=len(floats)) - np.bincount(last, minlength=len(floats))
    )
    cell_of = np.cumsum(np.append(0, joined[:-1] == 0))
    cells = cell_of[-1] + 1
    probabilities = np.bincount(cell_of[first], times, minlength=cells) / times.sum()
    # Every output lies in a cell, between its smallest and its largest float.
    nearest = np.searchsorted(floats, sample, side="right") - 1
    next_float = np.minimum(nearest + 1, len(floats) - 1)
    assert np.all((floats[nearest] == sample) | (cell_of[nearest] == cell_of[next_float]))
    assert cells > 10
    alarms.check_counts(np.bincount(cell_of[nearest], minlength=cells), probabilities)


@pytest.mark.parametrize(("dtype", "most"), [("float64", 53), ("float32", 24), ("float16", 11)])
def test_uniforms_are_multiples_on_the_unit_interval(dtype: str, most: int) -> None:
    for precision in (1, 2, most - 1, most):
        sample = rng.random(size=100_000, dtype=dtype, precision=precision)
        assert sample.dtype == dtype
        scaled = sample.astype(np.float64) * 2**precision
        assert np.all(scaled == np.floor(scaled))
        assert sample.min() >= 0
        assert sample.max() < 1
        # All bits are used, including the lowest.
        low = scaled.astype(np.int64) & 1
        alarms.check_counts(np.bincount(low, minlength=2), np.array([0.5, 0.5]))


def test_narrow_formats_round_the_wide_computation_once() -> None:
    from dpnoise.testing import fixed_generator

    key = b"the same key for all the formats"
    wide = fixed_generator(key).laplace(scale=3.7, size=10_000, variates=8, precision=11)
    for dtype in ("float32", "float16"):
        narrow = fixed_generator(key).laplace(
            scale=3.7, size=10_000, variates=8, precision=11, dtype=dtype
        )
        np.testing.assert_array_equal(narrow, wide.astype(dtype))
