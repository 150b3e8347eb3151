"""The probability that a stage leaves a number open: sums of the proof's page, and counts.

The sums are evaluated in ball arithmetic with the constants of the kernels, for balls of
r = scale/grid that cover whole octaves. The counts draw real noise on grids so fine that open
numbers are frequent enough to count.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from flint import arb
from numpy.typing import NDArray
from scipy import stats
from support.alarms import check_probability

from dpnoise.core.entropy import WORD, system_bytes
from dpnoise.kernels.certified import ROUND, ROUND_V
from dpnoise.release import selection
from dpnoise.release.exact import (
    ADDITIVE,
    EXPONENTIAL,
    GUMBEL,
    SELECTION,
    open_after_first_stage,
    slots_for,
)

LOG_2 = arb(2).log()
ROOT_OF_PI = arb.pi().sqrt()
UNSEEN = arb(2.0**-64)


@dataclass(frozen=True)
class Slice:
    """Uniforms for which the bound on the error of Z is at most `error`.

    They have the probability `mass`, and give Z a density of at most `density`, on intervals no
    longer than `length`.
    """

    mass: arb
    density: arb
    length: arb
    error: arb


@dataclass(frozen=True)
class Stage:
    """The constant that a stage adds to the bound, in grids, and its reach, in bounds."""

    added: float
    reach: float


# The 0.01 covers the roundings in the computation of the first stage's bound.
FIRST_STAGE = Stage(added=2.0**-51, reach=2.01)
SECOND_STAGE = Stage(added=2.0**-126, reach=2.0)  # 4 units.


def total(numbers: Iterator[arb]) -> arb:
    return sum(numbers, arb(0))


def from_slices(stage: Stage, slices: tuple[Slice, ...], r: arb) -> arb:
    """Return the probability of a number near a border, summed over slices."""

    def mass_near_border(part: Slice) -> arb:
        reach = stage.reach * (part.error + stage.added / r)  # In scales.
        borders = part.length * r + 2 * r * reach + 1
        return arb(min(part.mass.upper(), (part.density * borders * 2 * reach).upper()))

    return total(mass_near_border(part) for part in slices)


def slice_of_root(least: arb, most: arb, error: arb) -> Slice:
    """Return the slice of roots between two numbers: a ring in the plane of two Gaussians."""
    inside, outside = (-least * least).exp(), (-most * most).exp()
    chord = (2 * (most * most - least * least)).sqrt()
    return Slice(inside - outside, inside * chord / arb.pi(), 2 * arb(2).sqrt() * most, error)


# The first stage. Except for what counts as open, V at its lower end is at least half of V, and a
# computed logarithm or root is within 6 % of the real one, or less than ROUND_V / 2^40 away.

NEAR = arb(1.06)
RECIPROCAL = arb(2 * 1.125)  # reciprocal_bound(V) is at most this over the real V.
LOGS = 44  # -log V is larger with a probability below 2^-63.
OCTAVES = 24  # The root of -log V is below 2^-24 with a probability below 2^-48.


def first_slices_of_laplace() -> Iterator[Slice]:
    for j in range(LOGS):
        density = arb(-j).exp()
        error = NEAR * ROUND * (j + 1) + ROUND_V + 2 * UNSEEN * RECIPROCAL * arb(j + 1).exp()
        yield Slice(density - arb(-j - 1).exp(), density, arb(1), error)


def first_roots() -> Iterator[tuple[arb, arb]]:
    """Yield octaves of the root below 1, and unit steps of its square above."""
    for i in range(1, OCTAVES + 1):
        yield arb(2.0**-i), arb(2.0 ** (1 - i))
    for j in range(1, LOGS):
        yield arb(j).sqrt(), arb(j + 1).sqrt()


def first_slices_of_gaussian() -> Iterator[Slice]:
    for least, most in first_roots():
        by_rounding = ROUND * most + ROUND_V * 1.125 / least
        by_bits = UNSEEN * (8 * most + RECIPROCAL * (most * most).exp() / least)
        yield slice_of_root(least, most, 1.5 * NEAR * (by_rounding + by_bits))


@cache
def first_laplace_slices() -> tuple[Slice, ...]:
    return tuple(first_slices_of_laplace())


@cache
def first_gaussian_slices() -> tuple[Slice, ...]:
    return tuple(first_slices_of_gaussian())


def first_laplace_1(r: arb) -> arb:
    return from_slices(FIRST_STAGE, first_laplace_slices(), r) + arb(-LOGS).exp() + 2.0**-63


def first_gaussian_2(r: arb) -> arb:
    uncovered = 4.0**-OCTAVES + arb(-LOGS).exp() + 2.0**-64
    return from_slices(FIRST_STAGE, first_gaussian_slices(), r) + uncovered


# The second stage, with errors in units of 2^-120.

UNIT = arb(2.0**-120)
NO_BOUND_FROM = 67  # Leading zeros of V.
REFINED_OCTAVES = 45  # Octaves of the root below sqrt(log 2); k >= 50 is beyond them.


def error_of_log(zeros: int, unseen: int) -> int:
    return (1 << (max(zeros, 7) - 7 + unseen)) + 2 * zeros + 6


def error_of_root(least: arb, zeros: int) -> arb:
    """Return the error with 2/root, up to 2^-20 of it, as an upper bound on the code's 2^(k-3)."""
    return 2.001 * error_of_log(zeros, 0) / least + 9


def second_roots() -> Iterator[tuple[arb, arb, int]]:
    """Yield the slices of the root with the leading zeros of V."""
    for i in range(REFINED_OCTAVES):
        yield (LOG_2 / 4 ** (i + 1)).sqrt(), (LOG_2 / 4**i).sqrt(), 0
    for zeros in range(1, NO_BOUND_FROM):
        yield (zeros * LOG_2).sqrt(), ((zeros + 1) * LOG_2).sqrt(), zeros


@cache
def second_laplace_slices() -> tuple[Slice, ...]:
    return tuple(
        Slice(arb(2.0 ** -(e + 1)), arb(2.0**-e), LOG_2, error_of_log(e, 1) * UNIT)
        for e in range(NO_BOUND_FROM)
    )


@cache
def second_gaussian_slices() -> tuple[Slice, ...]:
    return tuple(
        slice_of_root(least, most, (1.5 * error_of_root(least, zeros) + 16) * UNIT)
        for least, most, zeros in second_roots()
    )


def second_laplace_1(r: arb) -> arb:
    return from_slices(SECOND_STAGE, second_laplace_slices(), r) + 2.0**-NO_BOUND_FROM


def second_gaussian_2(r: arb) -> arb:
    uncovered = 2.0**-NO_BOUND_FROM + 4.0**-REFINED_OCTAVES
    return from_slices(SECOND_STAGE, second_gaussian_slices(), r) + uncovered


Bound = Callable[[arb], arb]
FIRST: dict[str, Bound] = {
    "laplace_1": first_laplace_1,
    "gaussian_2": first_gaussian_2,
    "gaussian_pairs": first_gaussian_2,
}
SECOND: dict[str, Bound] = {
    "laplace_1": second_laplace_1,
    "gaussian_2": second_gaussian_2,
    "gaussian_pairs": second_gaussian_2,
}


def octave(k: int) -> arb:
    """Return a ball of all numbers between 2^k and 2^(k+1)."""
    return arb(1.5 * 2.0**k, 0.5 * 2.0**k)


def test_there_is_a_sum_for_every_form() -> None:
    assert FIRST.keys() == SECOND.keys() == ADDITIVE.keys()


@pytest.mark.parametrize("form", FIRST)
def test_the_first_stage_leaves_no_more_open_than_the_bound_says(form: str) -> None:
    """Every grid that a mechanism accepts lies in one of the octaves."""
    for k in range(-60, 50):
        # The bound is convex and smallest at 4, which is an end of an octave.
        claimed = min(open_after_first_stage(2.0**end) for end in (k, k + 1))
        assert claimed >= 1 or FIRST[form](octave(k)) < claimed, k


@pytest.mark.parametrize("form", SECOND)
def test_the_reference_is_reached_less_than_once_in_2_to_the_64(form: str) -> None:
    """For grids between 2^-44 and 2^50 scales, as in the docs, but not for all others."""
    for k in range(-50, 44):
        assert SECOND[form](octave(k)) < 2.0**-64, k
    assert SECOND[form](arb(2.0**50)) > 2.0**-64


@pytest.mark.parametrize(("form", "power"), [("laplace_1", -62.9), ("gaussian_2", -63.8)])
def test_the_reference_is_reached_hardly_more_often_on_the_coarsest_grids(
    form: str, power: float
) -> None:
    assert max(SECOND[form](octave(k)).upper() for k in range(-60, -50)) < 2.0**power


def test_no_cell_of_these_grids_is_beyond_the_exact_floats() -> None:
    """The largest Z with a bound is the largest -log V, of `laplace_1`."""
    largest = NO_BOUND_FROM * LOG_2
    assert largest * 2.0**44 + 2 < 2.0**53


@pytest.mark.parametrize("places", [1, 1000, 2**13, 2**16])
@pytest.mark.parametrize("chunks", [1, 2**10, 2**20])
def test_more_are_open_than_there_are_slots_less_than_once_in_2_to_the_64_calls(
    places: int, chunks: int
) -> None:
    """The tail of the binomial distribution is the incomplete beta function."""
    for width in (1, 2):
        for k in range(-60, 51, 5):
            slots = slots_for(places, chunks, 2.0**k, width)
            if slots < places:
                p = arb(width * open_after_first_stage(2.0**k))
                overflow = p.beta_lower(slots + 1, places - slots, 1)
                assert chunks * overflow < 2.0**-64, (places, chunks, k)
            assert 1 <= slots <= places


# Counts. `check_probability` raises a false alarm with a probability of at most 1e-8.

NUMBERS = 100_000


def count_open(form: str, ratio: float, values: NDArray[np.float64]) -> int:
    """Return how many numbers the first stage leaves open, counting the first of each pair."""
    exact, out = ADDITIVE[form], np.empty(values.size)
    words = np.frombuffer(system_bytes(8 * exact.variates * values.size), dtype=WORD)
    exact.first_stage()(words, 64, values, ratio, 1.0, out)
    return int(np.isnan(out[:: exact.width]).sum())


@pytest.mark.parametrize("form", ADDITIVE)
@pytest.mark.parametrize("power", [34, 36, 38])
def test_the_bound_holds_on_fine_grids_and_is_at_most_64_times_too_large(
    form: str, power: int
) -> None:
    ratio, width = 2.0**power, ADDITIVE[form].width
    values = np.random.default_rng().random(width * NUMBERS)
    count, claimed = count_open(form, ratio, values), open_after_first_stage(ratio)
    check_probability(stats.binom.sf(count - 1, NUMBERS, claimed))
    check_probability(stats.binom.cdf(count, NUMBERS, claimed / 64))


@pytest.mark.parametrize("form", ADDITIVE)
@pytest.mark.parametrize("power", [-34, -26])
def test_the_bound_holds_on_coarse_grids_for_values_on_a_border(form: str, power: int) -> None:
    ratio, width = 2.0**power, ADDITIVE[form].width
    count = count_open(form, ratio, np.full(width * NUMBERS, 0.5))
    check_probability(stats.binom.sf(count - 1, NUMBERS, open_after_first_stage(ratio)))


def several_leaders(candidates: int, size: float) -> float:
    """Return the docs' bound on the probability that the reference selects; `size` is S."""
    return 2.0**-43 * (3 + math.log(candidates) + size) + candidates * 2.0**-44


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", [EXPONENTIAL.name, GUMBEL.name])
@pytest.mark.parametrize("candidates", [2, 50])
def test_the_reference_selects_no_more_often_than_the_bound_says(
    form: str, candidates: int
) -> None:
    """With scores so large that their rounding leaves the leader open."""
    calls, size = 5000, 2.0**38
    scores = np.full(candidates, size)
    selections = 0
    for _ in range(calls):
        words = np.frombuffer(system_bytes(8 * candidates), dtype=WORD)
        leaders = selection._possible_leaders(SELECTION[form], words, scores, 1.0)
        selections += len(leaders) > 1
    check_probability(stats.binom.sf(selections - 1, calls, several_leaders(candidates, size)))
