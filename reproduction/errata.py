"""Show each error or omission of the paper by a number."""

import itertools
import math
import random
from collections.abc import Callable
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from functools import partial

import numpy as np

from dpnoise.auditing.attacks.searches import gaussian_of_uniforms
from dpnoise.auditing.targets.adapters import paper_laplace
from dpnoise.noise.distributions import Laplace
from dpnoise.noise.generator import Generator
from reproduction import preimages
from reproduction.level_curves import level_curve
from reproduction.piece import CONFIRMED, DIFFERS, Effort, Judgement, Piece, Table

_RNG = Generator()

# The place, the paper's claim, the correction, the measured number, and the one by the paper.
Row = tuple[str, str, str, float, float]


def recovered_turn(N1: float, N2: float) -> float:
    """Return equation (4b) as printed: (atan(N2/N1) + pi [N1 < 0]) / 2 pi."""
    return (math.atan(N2 / N1) + math.pi * (N1 < 0)) / (2 * math.pi)


def wrong_turns(size: int) -> tuple[float, float]:
    """Recover U2 from `size` pairs, and return the wrong shares, as printed and mod 1."""
    U1, U2 = _RNG.random(size=(2, size))
    radius = np.sqrt(-2 * np.log(1 - U1))
    N1, N2 = radius * np.cos(2 * np.pi * U2), radius * np.sin(2 * np.pi * U2)
    recovered = np.array([recovered_turn(*pair) for pair in zip(N1, N2, strict=True)])
    distance = np.abs((recovered - U2 + 0.5) % 1.0 - 0.5)
    return float(np.mean(np.abs(recovered - U2) > 1e-9)), float(np.mean(distance > 1e-9))


def reduction(effort: Effort) -> Row:
    """Recover U2 from pairs; a quarter of the results is negative."""
    wrong, wrong_mod_1 = wrong_turns(effort.pick(100_000, 4_000))
    return (
        "Section 2.4, (4b)",
        "U2 = (atan(N2/N1) + pi [N1 < 0]) / 2 pi",
        f"negative where N1 > 0 > N2. Share of wrong U2; reduced mod 1, {wrong_mod_1:g}",
        wrong,
        0.0,
    )


def equal_signs(precision: int) -> int:
    """Count the U of `precision` bits at which Remark 1's formula and listing agree."""
    equal = 0
    for U in np.arange(2**precision) / 2**precision:
        magnitude = math.cos(math.pi * (U % 0.5))
        formula = (-1) ** math.floor(U + 0.5) * magnitude
        listing = math.copysign(magnitude, U - 0.5)
        equal += formula == listing
    return equal


def signs(effort: Effort) -> Row:
    """Compare the signs of Remark 1's formula and listing at all uniforms."""
    p = effort.pick(12, 8)
    return (
        "Remark 1",
        "the listing (minus below U = 1/2) implements the formula (minus from 1/2 on)",
        f"its sign is the opposite, with the same law. U at which they agree, of all of {p} bits",
        float(equal_signs(p)),
        2.0**p,
    )


def no_lower_bound(_: Effort) -> Row:
    """Compare the checks of both searches for the same Gaussians."""
    p = 10
    draws = _RNG.normal(size=500).tolist()
    over_U1, over_U2 = (
        sum(preimages.gaussian_preimages(N1, p, over).checks for N1 in draws)
        for over in ("U1", "U2")
    )
    return (
        "Section 6, (15)",
        "2^(p-1/2) checks are a lower bound",
        "it counts values of U1; over U2 it takes 2^(p-2). The second over the first, counted",
        over_U2 / over_U1,
        1.0,
    )


def key_search(effort: Effort) -> Row:
    """Count all keys of a small size."""
    bits = effort.pick(16, 8)
    keys = sum(1 for _ in itertools.product((0, 1), repeat=bits))
    return (
        "Section 5.3",
        "trying all keys takes O(key size) steps",
        f"exponential in the key size. Keys of {bits} bits, counted",
        float(keys),
        float(bits),
    )


def nearest_uniform(q: float, c: float) -> float:
    """Return line 4 of Algorithm 1: F(q - c), rounded to a multiple of 2^-53."""
    z = q - c
    F = 0.5 * math.exp(z) if z <= 0 else 1.0 - 0.5 * math.exp(-z)
    return round(F * 2**53) * 2.0**-53


def neighbours(effort: Effort) -> Row:
    """Run lines 4 and 5 of Algorithm 1 as printed on the true value 1."""
    n, excluded = effort.pick(50_000, 5_000), 0
    uniforms = iter(_RNG.random(size=2 * n).tolist())
    for _ in range(n):
        q = 1.0 + paper_laplace(uniforms.__next__)
        U = nearest_uniform(q, 1.0)
        excluded += not 0 < U < 1 or 1.0 + paper_laplace(partial(float, U)) != q
    return (
        "Algorithm 1, lines 4 and 5",
        "a candidate goes if the nearest uniform does not give q",
        "its neighbours have to be tried too. Share of queries that exclude the true value 1",
        excluded / n,
        0.0,
    )


def uniforms_drawn(effort: Effort) -> Row:
    """Count the uniforms that the listing of appendix B.3 draws at n = 1."""
    calls = 0
    draw = random.random

    def count_and_draw() -> float:
        nonlocal calls
        calls += 1
        return draw()

    rng = random.Random()
    rng.random = count_and_draw  # type: ignore[method-assign]
    n = effort.pick(20_000, 2_000)
    for _ in range(4 * n):
        rng.normalvariate(0, 1)
    return (
        "Appendix B.3",
        "it draws from 8n uniforms",
        "normalvariate rejects, so 8n is the least. Uniforms for one variate at n = 1",
        calls / n,
        8.0,
    )


def second_parameter(effort: Effort) -> Row:
    """Measure the standard deviation of N1 + N2."""
    N1, N2 = _RNG.normal(size=(2, effort.pick(1_000_000, 20_000)))
    return (
        "Section 4.2",
        "N1 + N2 is N(0, 2), where appendix A.2 has N(mean, sigma)",
        "2 is its variance. Its standard deviation",
        float(np.std(N1 + N2)),
        2.0,
    )


def raises_at_zero(draw: Callable[[float], float], precision: int) -> int:
    """Count the U of `precision` bits at which a sampler raises an error."""
    failures = 0
    for U in (np.arange(2**precision) / 2**precision).tolist():
        try:
            draw(U)
        except ValueError:
            failures += 1
    return failures


def inverse_as_printed(U: float) -> float:
    """Return equation (2), as in the first listing of appendix B, at U."""
    return math.copysign(math.log(1 - 2 * abs(U - 0.5)), U - 0.5)


def at_zero(effort: Effort) -> Row:
    """Evaluate equation (2) at all uniforms, including U = 0."""
    p = effort.pick(12, 8)
    return (
        "Section 2.3, (2), and listing 5",
        "every U in [0, 1) gives a variate",
        f"the logarithm of 0 at U = 0 raises an error. U without a variate, of all of {p} bits",
        float(raises_at_zero(inverse_as_printed, p)),
        0.0,
    )


def away_from_zero(_: Effort) -> Row:
    """Round 2.25 to an integer by the mode as named and by that of the standard."""
    exact = Decimal("2.25")
    as_named, standard = (
        float(exact.quantize(Decimal(1), rounding=mode)) for mode in (ROUND_UP, ROUND_HALF_UP)
    )
    return (
        "Section 2.1",
        "one of the five modes rounds away from zero",
        "it rounds to nearest, only ties go away from zero (IEEE 754-2019, 4.3.1). 2.25 rounded",
        standard,
        as_named,
    )


def other_sign(effort: Effort) -> Row:
    """Put the points of a level curve of example 3.2 back into the Box-Muller transform."""
    size, N1 = effort.pick(4096, 256), 0.5
    U2 = (np.arange(size) + 0.5) / size
    back = [gaussian_of_uniforms(*pair) for pair in zip(level_curve(N1, U2), U2, strict=True)]
    return (
        "Example 3.2, (6)",
        "in real arithmetic every pair with (6) gives N1",
        "(6) squares the cosine, so half of the pairs give -N1. Share of pairs that give N1",
        float(np.mean(np.array(back) > 0)),
        1.0,
    )


def independence(effort: Effort) -> Row:
    """Measure the variance of E1 - E2 for two exponential variates from one uniform."""
    U = _RNG.random(size=effort.pick(1_000_000, 20_000))
    E1, E2 = -np.log1p(-U), -np.log(np.maximum(U, 2.0**-53))
    return (
        "Proposition 4.1 and corollary 4.2",
        "variates with the laws of these parts have a Laplace sum",
        "if they are independent, which is not said. Variance of E1 - E2 with U2 = 1 - U1",
        float(np.var(E1 - E2)),
        Laplace().variance,
    )


def distribution_function(_: Effort) -> Row:
    """Evaluate equations (1) and (2) at 1/2."""
    return (
        "Section 2.3, below algorithm 1",
        "the distribution function that the attack needs is (2)",
        "(2) is its inverse; the function is (1). F(1/2), by (1) and by (2)",
        float(Laplace().cdf(0.5)),
        inverse_as_printed(0.5),
    )


def multiplications(_: Effort) -> Row:
    """Count the multiplications of equations (9) and (10)."""
    squares = "1/2 * (N1*N1 - N2*N2 + N3*N3 - N4*N4)"
    products = "N1*N2 - N3*N4"
    return (
        "Section 5.2",
        "(9) takes two multiplications more than (10)",
        "three more, with the factor 1/2. Counted",
        float(squares.count("*") - products.count("*")),
        2.0,
    )


ERRATA: tuple[Callable[[Effort], Row], ...] = (
    reduction,
    signs,
    no_lower_bound,
    key_search,
    neighbours,
    uniforms_drawn,
    second_parameter,
    at_zero,
    away_from_zero,
    other_sign,
    independence,
    distribution_function,
    multiplications,
)


def check_errata(effort: Effort) -> Judgement:
    """Show each erratum by a number."""
    rows = []
    for i, erratum in enumerate(ERRATA):
        rows.append(erratum(effort))
        effort.progress((i + 1) / len(ERRATA))
    columns = ("place", "the paper", "what holds, and what is counted", "measured", "the paper's")
    are_shown = all(abs(measured - papers) > 0.01 for *_, measured, papers in rows)
    return Judgement(
        DIFFERS if are_shown else CONFIRMED,
        "In each row the number measured is not the paper's. None changes the law of a sampler "
        "as listed.",
        [Table("Errata", columns, rows)],
    )


PIECES = (
    Piece(
        key="errata",
        title="Errata",
        place="Sections 2.1, 2.3, 2.4, 4.2, 4.3, 5.2, 5.3 and 6, Example 3.2, Remark 1, "
        "appendices B.1 and B.3",
        statement="Several formulas and remarks, as printed.",
        check=check_errata,
        code=(
            recovered_turn,
            wrong_turns,
            equal_signs,
            no_lower_bound,
            key_search,
            nearest_uniform,
            neighbours,
            uniforms_drawn,
            inverse_as_printed,
            raises_at_zero,
            away_from_zero,
            other_sign,
            independence,
            distribution_function,
            multiplications,
            check_errata,
        ),
    ),
)
