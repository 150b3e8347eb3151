"""Test the distributions of section 4, Theorem 5.1 and appendix A.

Fresh variates are counted in cells of equal probability (chi-squared), and beyond the size that one
in a million exceeds (exact binomial). Variates are drawn and counted in chunks, so that 10^8
variates need the memory of one chunk per core.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, special, stats

from dpnoise.core.parallel import cores
from dpnoise.kernels import compile_kernel
from dpnoise.noise import distributions
from dpnoise.noise.generator import Generator
from reproduction.piece import (
    CONFIRMED,
    DIFFERS,
    FALSE_ALARM,
    Effort,
    Judgement,
    Piece,
    Table,
)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Draw = Callable[[int], Floats]

_CELLS = 1000
_RARE = 1e-6
_CHUNK = 2**19
_RNG = Generator(threads=1)


@compile_kernel
def count_laplace(sample: Floats, counts: Counts) -> None:
    """Count in cells of equal probability under equation (1)."""
    for i in range(sample.size):
        tail = 0.5 * math.exp(-abs(sample[i]))
        F = tail if sample[i] <= 0.0 else 1.0 - tail
        counts[min(counts.size - 1, int(F * counts.size))] += 1


@compile_kernel
def count_gaussian(sample: Floats, counts: Counts) -> None:
    """Count in cells of equal probability under the standard Gaussian."""
    for i in range(sample.size):
        F = 0.5 * math.erfc(-sample[i] * math.sqrt(0.5))
        counts[min(counts.size - 1, int(F * counts.size))] += 1


@dataclass(frozen=True)
class Hypothesis:
    """A law to test: the function that counts in its cells, and the size that 1 in 10^6 exceeds."""

    count: Callable[[Floats, Counts], None]
    rare: float


LAPLACE = Hypothesis(count_laplace, -math.log(_RARE))
GAUSSIAN = Hypothesis(count_gaussian, float(special.ndtri(1 - _RARE / 2)))


def p_values_of(draw: Draw, law: Hypothesis, size: int, effort: Effort) -> tuple[float, float]:
    """Draw `size` variates, and return the p-values of the cells and of the tails."""

    def count_chunk(length: int) -> tuple[Counts, int]:
        sample = draw(length)
        counts = np.zeros(_CELLS, dtype=np.int64)
        law.count(sample, counts)
        return counts, int(np.count_nonzero(np.abs(sample) > law.rare))

    lengths = [_CHUNK] * (size // _CHUNK) + [size % _CHUNK] * (size % _CHUNK > 0)
    total, beyond = np.zeros(_CELLS, dtype=np.int64), 0
    with ThreadPoolExecutor(cores()) as pool:
        for i, (counts, rare) in enumerate(pool.map(count_chunk, lengths)):
            total += counts
            beyond += rare
            effort.progress((i + 1) / len(lengths))
    tails = stats.binomtest(beyond, size, _RARE).pvalue
    return float(stats.chisquare(total).pvalue), float(tails)


# Each row: the statement, its law, how to draw it, and its share of the sample size.
def _laws() -> list[tuple[str, Hypothesis, Draw, float]]:
    def laplace(form: str, n: int) -> Draw:
        return lambda size: _RNG.laplace(size=size, form=form, variates=n)

    def normal(n: int) -> Draw:
        return lambda size: _RNG.normal(size=size, variates=n)

    return [
        ("(3a): one Box-Muller Gaussian", GAUSSIAN, normal(2), 1.0),
        ("(7): two Gaussians", GAUSSIAN, normal(4), 1.0),
        ("(7): eight Gaussians", GAUSSIAN, normal(16), 1.0),
        ("(2): inverse CDF", LAPLACE, laplace("inverse", 1), 1.0),
        ("Proposition 4.1: gammas, n = 2", LAPLACE, laplace("gammas", 4), 0.1),
        ("Proposition 4.1: gammas, n = 3", LAPLACE, laplace("gammas", 6), 0.1),
        ("Corollary 4.2, (8): exponentials", LAPLACE, laplace("exponentials", 2), 1.0),
        ("Corollary 4.3, (9): squares", LAPLACE, laplace("squares", 4), 1.0),
        ("Proposition 4.4, (10): products", LAPLACE, laplace("products", 4), 1.0),
        ("(10) with (7): 16 uniforms", LAPLACE, laplace("products", 16), 1.0),
        ("Theorem 5.1, (11)", LAPLACE, laplace("theorem", 4), 1.0),
    ]


def check_laws(effort: Effort) -> Judgement:
    """Test every form of section 4 and Theorem 5.1."""
    size = effort.pick(100_000_000, 200_000)
    rows, laws = [], _laws()
    for i, (name, law, draw, share) in enumerate(laws):
        samples = int(size * share)
        rows.append((name, samples, *p_values_of(draw, law, samples, effort.part(i, len(laws)))))
    columns = ("form", "samples", f"p-value of {_CELLS} cells", "p-value of the tails")
    least = min(min(row[2:]) for row in rows)
    return Judgement(
        CONFIRMED if least > FALSE_ALARM else DIFFERS,
        f"The smallest of {2 * len(rows)} p-values is {least:.2g}. One below {FALSE_ALARM:g} would "
        f"reject; correct samplers are rejected in fewer than {2 * len(rows) * FALSE_ALARM:.1g} of "
        "all runs. Gammas are drawn through SciPy's inverse, a hundred times slower, so there are "
        "fewer of them. The tail is beyond the size that one in a million exceeds.",
        [Table("Fresh variates against the exact law", columns, rows)],
    )


# Appendix A --------------------------------------------------------------------------------------


def moments(distribution: Any, low: float, high: float) -> tuple[float, float, float]:
    """Return the integral, the mean and the variance of a density, by integration."""

    def integral(power: int, centre: float = 0.0) -> float:
        halves = ((low, 0.0), (0.0, high)) if low < 0 else ((low, high),)
        density = distribution.pdf
        return sum(
            integrate.quad(lambda x: (x - centre) ** power * density(x), *half, epsabs=1e-12)[0]
            for half in halves
        )

    mean = integral(1)
    return integral(0), mean, integral(2, mean)


def check_densities(effort: Effort) -> Judgement:
    """Integrate each density of appendix A, and count variates of dpnoise in its cells."""
    b, lam, theta = 2.0, 4.0, 3.0
    densities: list[tuple[str, Any, float, float, float]] = [
        ("A.1 uniform on [0, 1]", distributions.Uniform(), 1.0, 1 / 2, 1 / 12),
        ("A.2 Gaussian, sigma = 2", distributions.Gaussian(2.0), math.inf, 0.0, 4.0),
        ("A.3 Laplace, b = 2", distributions.Laplace(b), math.inf, 0.0, 2 * b**2),
        ("A.4 exponential, lambda = 4", distributions.Exponential(1 / lam), math.inf, 0.25, 0.0625),
        (
            "A.5 gamma, k = 5/2, theta = 3",
            distributions.Gamma(2.5, theta),
            math.inf,
            2.5 * theta,
            2.5 * theta**2,
        ),
        ("A.6 chi-squared, k = 3", distributions.ChiSquared(3), math.inf, 3.0, 6.0),
    ]
    size, rows = effort.pick(4_000_000, 50_000), []
    for i, (name, law, high, mean, variance) in enumerate(densities):
        low = -math.inf if law.mean == 0 else 0.0
        integral, measured_mean, measured_variance = moments(law, low, high)
        largest_error = max(
            abs(integral - 1), abs(measured_mean - mean), abs(measured_variance / variance - 1)
        )
        borders = law.ppf(np.arange(1, _CELLS // 10) * 10 / _CELLS)
        cells = np.searchsorted(borders, Generator().sample(law, size=size))
        counts = np.bincount(cells, minlength=_CELLS // 10)
        rows.append(
            (
                name,
                integral,
                measured_mean,
                measured_variance,
                largest_error,
                float(stats.chisquare(counts).pvalue),
            )
        )
        effort.progress((i + 1) / len(densities))
    columns = ("density", "integral", "mean", "variance", "largest error", "p-value of a sample")
    table = Table(f"Densities, integrated, and {size:,} variates of each", columns, rows)
    has_moments = max(table.column("largest error")) < 1e-7
    has_law = min(table.column("p-value of a sample")) > FALSE_ALARM
    return Judgement(
        CONFIRMED if has_moments and has_law else DIFFERS,
        "Each density integrates to 1 and has the mean and variance that the appendix states "
        "(within 10^-7), and fresh variates have it (no p-value of 100 cells below "
        f"{FALSE_ALARM:g}). For chi-squared the appendix states no moments; k and 2k are taken.",
        [table],
    )


PIECES = (
    Piece(
        key="laws",
        title="Section 4 and Theorem 5.1: every form has its law",
        place="Propositions 4.1 and 4.4, Corollaries 4.2 and 4.3, Theorem 5.1",
        statement="Sums of Gaussians are Gaussian; differences of gammas or exponentials, squares "
        "and products of Gaussians, and Theorem 5.1's form in four uniforms are Laplace.",
        check=check_laws,
        code=(p_values_of, count_laplace, count_gaussian, check_laws),
    ),
    Piece(
        key="densities",
        title="The densities of appendix A",
        place="Appendix A",
        statement="Six densities, with their means and variances, and how they scale.",
        check=check_densities,
        code=(moments, check_densities),
    ),
)
