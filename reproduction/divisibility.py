"""Check section 4: the definition of divisible, and distributions whose parts can be drawn."""

import cmath
import math
from typing import Any

import numpy as np
from scipy import integrate, stats

from dpnoise.noise import distributions
from dpnoise.noise.generator import Generator
from reproduction.piece import (
    CONFIRMED,
    DIFFERS,
    FALSE_ALARM,
    Cell,
    Effort,
    Judgement,
    Piece,
    Table,
)

_RNG = Generator(threads=1)
_PARTS = (2, 3, 8)

LAWS: dict[str, Any] = {
    "Gaussian": distributions.Gaussian(),
    "Laplace": distributions.Laplace(),
    "exponential": distributions.Exponential(),
    "gamma, k = 5/2": distributions.Gamma(2.5),
    "chi-squared, k = 3": distributions.ChiSquared(3),
    "Cauchy": distributions.Cauchy(),
}


def p_value_of_sum(law: Any, parts: int, size: int) -> float:
    """Draw `parts` independent parts, add them, and return the p-value of the sum's law."""
    total = _RNG.sample(law.share(parts), size=(parts, size)).sum(axis=0)
    return float(stats.kstest(total, law.cdf).pvalue)


def gamma_part(t: float, parts: int) -> complex:
    """Return the characteristic function of Gamma(1/n, 1)."""
    return cmath.exp(-cmath.log(1 - 1j * t) / parts)


def laplace_of_parts(t: float, parts: int) -> complex:
    """Return the function of the sum of n differences of Gamma(1/n, 1): Proposition 4.1."""
    return (gamma_part(t, parts) * gamma_part(-t, parts)) ** parts


def product_of_gaussians(t: float) -> float:
    """Return the characteristic function of N1 N2: the mean of that of N2 at t N1."""

    def integrand(x: float) -> float:
        return math.exp(-((t * x) ** 2) / 2 - x**2 / 2) / math.sqrt(2 * math.pi)

    return float(integrate.quad(integrand, -math.inf, math.inf, epsabs=1e-13)[0])


def slope_at_zero(t: float) -> float:
    """Return the slope at a zero of sin(t/2)/(t/2), the function of a uniform on [-1/2, 1/2].

    If the uniform had two equal parts, this function would be the square of theirs. That one is
    smooth, because the parts are bounded, so the slope would be 0.
    """
    return math.cos(t / 2) / t - 2 * math.sin(t / 2) / t**2


def check_divisible(effort: Effort) -> Judgement:
    """Test sums of parts against the law, and compare characteristic functions."""
    size, least = effort.pick(20_000, 1_000), 1.0
    rows: list[tuple[Cell, ...]] = []
    for i, (name, law) in enumerate(LAWS.items()):
        p_values = [p_value_of_sum(law, n, size) for n in _PARTS]
        least = min(least, *p_values)
        rows.append((name, *p_values))
        effort.progress((i + 1) / len(LAWS))
    points = np.linspace(-5, 5, 21).tolist()
    largest_difference = max(
        abs(laplace_of_parts(t, n) - 1 / (1 + t**2)) for t in points for n in _PARTS
    )
    product = max(abs(product_of_gaussians(t) - (1 + t**2) ** -0.5) for t in points)
    slope = slope_at_zero(2 * math.pi)
    holds = least > FALSE_ALARM and max(largest_difference, product) < 1e-10 and abs(slope) > 0.1
    return Judgement(
        CONFIRMED if holds else DIFFERS,
        f"For {len(LAWS)} infinitely divisible distributions parts were drawn and added: the sums "
        f"have the whole law (of {3 * len(LAWS)} p-values the smallest is {least:.2g}; below "
        f"{FALSE_ALARM:g} would reject, which errs in {3 * len(LAWS) * FALSE_ALARM:.0e} of all "
        "runs). 'Any' of them takes a way to draw the parts, which the abstract does not give: "
        "the Gumbel distribution is infinitely divisible too, and dpnoise has no parts of it. A "
        "uniform variate is not even divisible: its characteristic function has simple zeros "
        f"(slope {slope:.3f} at 2 pi), which no square has. So uniform noise gains nothing.",
        [
            Table(
                f"p-values of {size:,} sums of n parts (Kolmogorov and Smirnov)",
                ("distribution", *(f"n = {n}" for n in _PARTS)),
                rows,
            ),
            Table(
                "Characteristic functions, largest difference",
                ("what", "off by"),
                [
                    (
                        "n differences of Gamma(1/n), n = 2, 3, 8, against 1/(1 + t^2)",
                        largest_difference,
                    ),
                    ("N1 N2, integrated, against (1 + t^2)^(-1/2), as proved for (10)", product),
                ],
            ),
        ],
    )


PIECES = (
    Piece(
        key="divisible",
        title="Section 4: divisibility, and 'any' infinitely divisible distribution",
        place="Abstract, section 4, proof of Proposition 4.4",
        statement="A distribution is divisible if it is that of a sum of two independent parts of "
        "one law, infinitely divisible if that holds for any number of parts. Gaussian and Laplace "
        "are, and the method works for any that is.",
        check=check_divisible,
        code=(
            p_value_of_sum,
            gamma_part,
            laplace_of_parts,
            product_of_gaussians,
            slope_at_zero,
            check_divisible,
        ),
    ),
)
