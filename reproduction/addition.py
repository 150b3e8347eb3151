"""Check what the paper leaves open: the addition of value and noise, and snapping."""

import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing.attacks.generic import Feasibility, Precision, flag_feasible
from dpnoise.auditing.targets.target import Target, make_target, wrap
from dpnoise.core.errors import MissingExtraError, import_extra
from dpnoise.core.machine import describe_machine
from dpnoise.noise.generator import Generator
from dpnoise.noise.inversion import inversion_cost
from reproduction.piece import (
    CONFIRMED,
    DIFFERS,
    FALSE_ALARM,
    NOT_RUN,
    SUPERSEDED,
    Effort,
    Judgement,
    Piece,
    Table,
    floored_percent,
)

VARIATES = (2, 4, 16, 64)  # The numbers of uniforms whose sums are attacked.
_ETA = 2.0**-53  # Half of machine epsilon, as in Mironov's paper.


def _theorem_target(variates: int) -> Target:
    rng = Generator()
    return wrap(
        lambda value, n: value + rng.laplace(size=n, variates=variates),
        f"value + noise of {variates} uniforms",
    )


def attacked_targets() -> list[Target]:
    """Return noise of 2, 4, 16 and 64 uniforms, a library with the theorem, and our release."""
    targets = [_theorem_target(n) for n in VARIATES]
    with suppress(MissingExtraError):
        targets.append(make_target("diffprivlib.Laplace"))
    return [*targets, make_target("dpnoise.release")]


def check_addition(effort: Effort) -> Judgement:
    """Attack the sum of value and noise for growing numbers of uniforms, and exact release."""
    n, rows, targets = effort.pick(20_000, 2_000), [], attacked_targets()
    for i, target in enumerate(targets):
        by_scale, by_bits = (
            attack(target, n=n, confidence=1 - 1e-9, placebo=False)
            for attack in (Feasibility(), Precision())
        )
        name = f"{target.name} {target.version}".strip()
        certified = (by_scale.epsilon_lower(), by_bits.epsilon_lower())
        rows.append((name, by_scale.at0.rate, by_scale.at1.rate, *certified))
        effort.progress((i + 1) / len(targets))
    columns = (
        "released",
        "1 excluded at 0",
        "1 excluded at 1",
        "epsilon >=, scale known",
        "epsilon >=, only outputs",
    )
    are_sums_broken = min(min(row[3:]) for row in rows[:-1]) > 1
    is_exact_unbroken = max(rows[-1][3:]) <= 1
    least = min(row[1] for row in rows[:-1])
    return Judgement(
        SUPERSEDED if are_sums_broken and is_exact_unbroken else DIFFERS,
        "More uniforms close the sampler's holes, but fl(value + noise) keeps bits that no other "
        f"value could have: 1 is excluded for sure in {floored_percent(least)} or more of all "
        "releases of 0, at every n measured, without a search. Haney and others (2022) found it. "
        "All are used as if epsilon were 1; the last columns are certified at confidence 1 - "
        "10^-9. Exact release, which rounds once as if in real numbers, has no such bits: it is "
        "not broken by these attacks, which does not mean safe.",
        [Table(f"Laplace noise of scale 1, {n:,} releases of 0 and of 1", columns, rows)],
    )


# The abstract: infeasible ------------------------------------------------------------------------


def time_exclusion(releases: NDArray[np.float64], value: float) -> tuple[float, float]:
    """Return the share of releases that exclude a value, and the nanoseconds per release."""
    flag_feasible(releases[:10], value, 1.0)  # Compiles the attack.
    start = time.perf_counter_ns()
    excluded = ~flag_feasible(releases, value, 1.0)
    return float(np.mean(excluded)), (time.perf_counter_ns() - start) / len(releases)


def check_infeasible(effort: Effort) -> Judgement:
    """Exclude values from releases of Theorem 5.1 without inverting the sampler."""
    n, rows = effort.pick(200_000, 5_000), []
    for variates in VARIATES:
        releases = 0.0 + Generator().laplace(size=n, variates=variates)
        share, nanoseconds = time_exclusion(releases, 1.0)
        figure = inversion_cost(53, variates).paper
        rows.append(
            (variates, f"2^{figure:g}", share, time_exclusion(releases, 0.0)[0], nanoseconds)
        )
    columns = ("n", "the paper's checks", "1 excluded", "0 excluded", "nanoseconds a release")
    least, slowest = min(row[2] for row in rows), max(row[4] for row in rows)
    return Judgement(
        SUPERSEDED if least > 0.2 and not any(row[3] for row in rows) else DIFFERS,
        "An attack that searches uniforms is infeasible as stated. One that uses only the sum "
        f"excludes the value 1 for sure in {floored_percent(least)} or more of the releases of 0, "
        f"at every n measured, in {slowest:,.0f} ns a release on {describe_machine()} (superseded "
        "if above 20 % and the true value never is). The exponential cost is that of a step that "
        "the attacker need not take.",
        [Table(f"{n:,} releases of 0, used as if epsilon were 1", columns, rows)],
    )


# Appendix A: scaled and shifted ------------------------------------------------------------------


def check_shifts(effort: Effort) -> Judgement:
    """Scale and shift standard variates; test their law and their last bits."""
    size, rng = effort.pick(400_000, 10_000), Generator()
    mu, b = 3.0, 2.0
    laws = [
        ("A.2: sigma N + mu", b * rng.normal(size=size) + mu, stats.norm(mu, b)),
        ("A.3: b L + mu", b * rng.laplace(size=size) + mu, stats.laplace(mu, b)),
        ("A.4: E / lambda", rng.exponential(size=size) / b, stats.expon(scale=1 / b)),
        ("A.5: c G", b * rng.gamma(2.5, size=size), stats.gamma(2.5, scale=b)),
    ]
    p_values = [(name, float(stats.kstest(y, law.cdf).pvalue)) for name, y, law in laws]
    noise = rng.laplace(size=size)
    finest = {shift: _off_grid(shift + noise) for shift in (0.0, 1.0)}
    least = min(p for _, p in p_values)
    return Judgement(
        CONFIRMED if least > FALSE_ALARM and finest[0.0] > 0 == finest[1.0] else DIFFERS,
        "All four have the right distribution (the smallest p-value is "
        f"{least:.2g}; below {FALSE_ALARM:g} would reject). But in floats the shift reveals the "
        f"value: of the same {size:,} Laplace variates, {floored_percent(finest[0.0])} are smaller "
        "than 1/4 and not a multiple of 2^-53 after a shift by 0, and none after a shift by 1. An "
        "exact release rounds after the shift: see 'addition'.",
        [
            Table("Fresh variates against the law", ("form", "p-value"), p_values),
            Table(
                "Near 0, and finer than 2^-53",
                ("shifted by", "share"),
                [*finest.items()],
            ),
        ],
    )


def _off_grid(y: NDArray[np.float64]) -> float:
    scaled = y * 2.0**53
    return float(np.mean((np.abs(y) < 0.25) & (np.rint(scaled) != scaled)))


# Section 2.5: the snapping mechanism -------------------------------------------------------------


def granularity(outputs: list[float]) -> float:
    """Return the largest power of two that all outputs are multiples of."""
    integers = [int(y * 2**20) for y in outputs if y]
    return float(np.gcd.reduce(np.array(integers)) & -np.gcd.reduce(np.array(integers))) / 2**20


def check_snapping(effort: Effort) -> Judgement:
    """Measure the granularity of diffprivlib's Snapping."""
    try:
        snapping = import_extra("diffprivlib.mechanisms", "peers").Snapping
    except MissingExtraError as error:
        return Judgement(NOT_RUN, str(error))
    bound, n, rows = 1024.0, effort.pick(5_000, 300), []
    # The epsilon with an effective epsilon of 2^-5, by section 5.2 of Mironov 2012.
    compensated = (2.0**-5 * (1 + 12 * bound * _ETA) + 2 * _ETA) * (1 + 2.0**-50)
    for name, epsilon in (("2^-5", 2.0**-5), ("2^-5, compensated", compensated), ("2^-3", 2.0**-3)):
        mechanism = snapping(epsilon=epsilon, sensitivity=1.0, lower=-bound, upper=bound)
        outputs = [mechanism.randomise(0.0) for _ in range(n)]
        step = granularity(outputs)
        rows.append((name, mechanism.effective_epsilon() / epsilon - 1, step, len(set(outputs))))
    columns = ("epsilon", "effective over it, less 1", "multiples of", "distinct outputs")
    steps = [row[2] for row in rows]
    return Judgement(
        CONFIRMED if steps[0] == 32 else DIFFERS,
        f"At epsilon = 2^-5 the outputs are multiples of {steps[0]:g}. The mechanism spends a "
        "little of epsilon on its own rounding, so that the scale of the noise comes out just "
        "above 32, and the granularity is the next power of two. With an epsilon that makes up "
        f"for it they are multiples of {steps[1]:g}. The paper's point, that snapping is coarse, "
        "stands.",
        [Table(f"{n:,} releases of 0 through diffprivlib's Snapping", columns, rows)],
    )


PIECES = (
    Piece(
        key="addition",
        title="What remains: the addition",
        place="Sections 1, 3 and 8",
        statement="Drawing each variate from several uniforms makes the attack on floating-point "
        "noise impractical.",
        check=check_addition,
        code=(attacked_targets, check_addition),
    ),
    Piece(
        key="snapping",
        title="Section 2.5: the granularity of the snapping mechanism",
        place="Section 2.5",
        statement="The snapping mechanism with epsilon = 2^-5 gives only multiples of 32.",
        check=check_snapping,
        code=(granularity, check_snapping),
    ),
    Piece(
        key="infeasible",
        title="The abstract: an attack is infeasible",
        place="Abstract, sections 1 and 8",
        statement="Attacks become infeasible, since the work of brute force is exponential in the "
        "size of the domain.",
        check=check_infeasible,
        code=(flag_feasible, time_exclusion, check_infeasible),
    ),
    Piece(
        key="shifts",
        title="Appendix A: scaled and shifted variates",
        place="Section 4.1, appendix A",
        statement="Standard variates, scaled and shifted, have the distribution of any scale and "
        "location.",
        check=check_shifts,
        code=(check_shifts,),
    ),
)
