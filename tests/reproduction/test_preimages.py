"""The searches for uniforms, each held against the enumeration of all of them.

N1 is drawn from uniforms k 2^-p with k >= 1, and never with cos(2 pi U2) = 0: what is left out
there, the searches leave out too.
"""

import math
import secrets

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import LONG, check_probability

from dpnoise import inversion_cost
from dpnoise.auditing.attacks.searches import gaussian_of_uniforms, summand, summands
from reproduction.preimages import (
    Search,
    exhaustive,
    gaussian_preimages,
    meet_in_the_middle,
    one_preimage,
)

Floats = NDArray[np.float64]
Pair = tuple[float, float]


def slow_gaussian(U1: float, U2: float) -> float:
    """Equation (3a), letter by letter, with Python's functions."""
    return math.sqrt(-2 * math.log(1 - U1)) * math.cos(2 * math.pi * U2)


def slow_summand(U: float, W: float) -> float:
    return math.log(1 - U) * math.cos(math.pi * W)


def some_pair(p: int) -> Pair:
    """Draw U1 > 0, and U2 off the two angles whose cosine is zero."""
    while True:
        U1, U2 = secrets.randbelow(2**p) / 2**p, secrets.randbelow(2**p) / 2**p
        if U1 > 0 and U2 not in {0.25, 0.75}:
            return U1, U2


def others(search: Search, pair: Pair) -> int:
    """Count the preimages besides a pair and its mirror image, mirror images as one."""
    apart = {(U1, min(U2, 1 - U2)) for U1, U2 in search.preimages}
    return len(apart - {(pair[0], min(pair[1], 1 - pair[1]))})


# One Gaussian from two uniforms ------------------------------------------------------------------


@pytest.mark.parametrize("p", [2, 8, 12, 16, 20, 24])
def test_the_search_over_u2_finds_the_pair_and_hardly_another(p: int) -> None:
    """Another pair is within an ulp of z as often as 2^(2p) f(z) ulp(z) says: a Poisson number.

    At few bits there are also true coincidences: V at U2 = 0 and V^2 at 1/8 have one N1.
    """
    expected, found = 0.0, 0
    for _ in range(max(6, 2 ** min(8, 22 - p)) if LONG else max(2, 2 ** min(6, 20 - p))):
        pair = some_pair(p)
        z = slow_gaussian(*pair)
        search = gaussian_preimages(z, p)
        assert pair in search.preimages
        assert search.checks == 2 ** (p - 2) + 1
        assert all(slow_gaussian(*each) == z for each in search.preimages)
        found += others(search, pair)
        expected += 2.0 ** (2 * p) * float(stats.norm.pdf(z)) * math.ulp(z)
    if p >= 16:
        check_probability(float(stats.poisson.sf(found - 1, expected)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("p", [2, 8, 12, 16, 20, 22, 24])
def test_the_search_over_u1_finds_the_pair_in_as_many_checks_as_reach_it(p: int) -> None:
    """U1 is tried from 1 - exp(-N1^2/2) on: where the radius is at least |N1|."""
    for _ in range(max(1, 2 ** min(8 if LONG else 6, 21 - p))):
        pair = some_pair(p)
        z = slow_gaussian(*pair)
        search = gaussian_preimages(z, p, over="U1")
        assert pair in search.preimages
        assert all(slow_gaussian(*each) == z for each in search.preimages)
        assert abs(search.checks - 2**p * math.exp(-z * z / 2)) <= 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("p", "samples"), [(8, 4000), (12, 2000 if LONG else 1000), (16, 400 if LONG else 200)]
)
def test_the_search_over_u1_takes_2_to_the_p_minus_one_half_on_average(
    p: int, samples: int
) -> None:
    """For a standard Gaussian, E exp(-N^2/2) = 2^(-1/2) and its variance is 3^(-1/2) - 1/2.

    The p-value is Bernstein's bound, which holds for any number of samples from 0 to 1.
    """
    z = np.random.default_rng().normal(size=samples)
    checks = [gaussian_preimages(each, p, over="U1").checks for each in z.tolist()]
    # A count is rounded up, by half a check on average.
    off = abs((float(np.mean(checks)) - 0.5) / 2**p - 2**-0.5)
    check_probability(2 * math.exp(-samples * off**2 / (2 * (3**-0.5 - 0.5) + 2 * off / 3)))


def test_an_outlier_is_found_at_once() -> None:
    """|N1| > 5 leaves at most exp(-N1^2/2) 2^24 < 63 values of U1."""
    for k in range(1, 63):
        for U2 in (0.0, 2.0**-9, 0.5 - 2.0**-9, 1.0 - 2.0**-9):
            pair = (1.0 - k * 2.0**-24, U2)
            z = slow_gaussian(*pair)
            if abs(z) > 5:
                search = gaussian_preimages(z, 24, over="U1")
                assert pair in search.preimages
                assert search.checks <= math.exp(-z * z / 2) * 2**24 + 1 < 64


@pytest.mark.sample(2)
@pytest.mark.parametrize("over", ["U1", "U2"])
@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (1.0, 4.2), (2.0**38, 1.0), (0.3, 1e-3)])
def test_all_preimages_are_found_that_enumeration_finds(
    over: str, value: float, scale: float
) -> None:
    """All 2^16 pairs of 8 bits; at 2^38 an output has dozens of preimages."""
    p = 8
    U = [k / 2**p for k in range(2**p)]
    table: dict[float, set[Pair]] = {}
    for U1 in U[1:]:
        for U2 in U:
            if U2 not in {0.25, 0.75}:
                q = value + scale * slow_gaussian(U1, U2)
                table.setdefault(q, set()).add((U1, U2))
    outputs = secrets.SystemRandom().sample(sorted(table), 150)
    for q in outputs:
        search = gaussian_preimages(q, p, over, value=value, scale=scale)
        assert set(search.preimages) == table[q]
        wrong = math.nextafter(q, math.inf)
        search = gaussian_preimages(wrong, p, over, value=value, scale=scale)
        assert set(search.preimages) == table.get(wrong, set())


# Bits, what is searched, and pairs. At 32 bits those of a large output are soon searched over U1.
BEYOND_24_BITS = [(32, "U1", [(1 - 2.0**-12, 0.01)])]
if LONG:
    BEYOND_24_BITS.append((27, "U2", [(0.75, 0.1), (0.76, 0.1)]))


@pytest.mark.parametrize(("p", "over", "pairs"), BEYOND_24_BITS)
def test_beyond_24_bits_an_output_has_several_preimages(
    p: int, over: str, pairs: list[Pair]
) -> None:
    """At p = 27 around z = 1.05 there are 2^54 f(z) ulp(z) = 0.92 more, in mirrored pairs."""
    found, expected = 0, 0.0
    for U1, U2 in pairs:
        pair = (U1 // 2**-p * 2**-p, U2 // 2**-p * 2**-p)
        z = slow_gaussian(*pair)
        search = gaussian_preimages(z, p, over)
        assert pair in search.preimages
        assert all(slow_gaussian(*each) == z for each in search.preimages)
        found += others(search, pair)
        expected += 2.0 ** (2 * p) * float(stats.norm.pdf(z)) * math.ulp(z)
    check_probability(float(stats.poisson.sf(found - 1, expected)))
    assert expected > 1


def test_the_formulas_are_those_of_the_paper_to_the_last_bit() -> None:
    for _ in range(1000):
        U1, U2 = some_pair(53)
        assert gaussian_of_uniforms(U1, U2) == slow_gaussian(U1, U2)
        assert summand(U1, U2) == slow_summand(U1, U2)


# Theorem 5.1 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 5, 8])
def test_the_table_of_summands_is_in_the_order_of_its_uniforms(p: int) -> None:
    size = 2**p
    expected = [slow_summand(i / size, j / size) for i in range(size) for j in range(size)]
    assert summands(p).tolist() == expected


def questions(table: Floats, count: int) -> list[float]:
    """Return outputs, their neighbours and arbitrary doubles."""
    rng = np.random.default_rng()
    # W = 1/2 makes both cosines zero up to rounding, where the exhaustive search does not look.
    usual = table.reshape(math.isqrt(table.size), -1)[1:, 1:]
    usual = np.delete(usual, usual.shape[1] // 2, axis=1).ravel()
    true = rng.choice(usual, count) + rng.choice(usual, count)
    z = [true, np.nextafter(true, np.inf), np.nextafter(true, -np.inf), rng.laplace(size=count)]
    return [float(each) for each in np.concatenate(z)]


def check_agreement(z: float, p: int, table: Floats, ordered: Floats, *, expected: bool) -> None:
    """Hold both searches against what enumeration says of z."""
    one_by_one, middle = exhaustive(z, p), meet_in_the_middle(z, ordered)
    assert bool(one_by_one.preimages) == bool(middle.preimages) == expected
    for U1, W1, U2, W2 in one_by_one.preimages:
        assert slow_summand(U1, W1) + slow_summand(U2, W2) == z
    for a, b in middle.preimages:
        assert a + b == z
        assert np.isin([a, b], table).all()
    cost = inversion_cost(p, 4, "theorem")
    assert one_by_one.checks <= 2**cost.exhaustive
    assert middle.checks <= 2**cost.meet_in_the_middle
    if not expected:
        assert one_by_one.checks == 2**cost.exhaustive
        assert middle.checks == 2**cost.meet_in_the_middle


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("p", "count"), [(4, 200), (5, 200), (6, 10)] if LONG else [(4, 100), (5, 50), (6, 3)]
)
def test_both_searches_agree_with_all_sums_of_two_summands(p: int, count: int) -> None:
    table = summands(p)
    ordered = np.sort(table)
    sums = np.unique(np.add.outer(ordered, ordered))
    for z in questions(table, count):
        expected = np.searchsorted(sums, z, "left") < np.searchsorted(sums, z, "right")
        check_agreement(z, p, table, ordered, expected=bool(expected))


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def among_all_sums(z: float, table: Floats) -> bool:
    """Try all pairs."""
    for a in table:
        hits = 0
        for b in table:
            hits += a + b == z
        if hits:
            return True
    return False


@pytest.mark.parametrize("p", [7, 8] if LONG else [7])
def test_both_searches_agree_with_2_to_the_4p_sums(p: int) -> None:
    table = summands(p)
    ordered = np.sort(table)
    for z in questions(table, 1)[:2]:
        check_agreement(z, p, table, ordered, expected=among_all_sums(z, table))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("value", "scale"), [(0.0, 0.1), (1.0, 3.7), (-5.0, 1e4), (2.0**30, 1.0)])
def test_meeting_in_the_middle_knows_the_value_and_the_scale(value: float, scale: float) -> None:
    table = np.sort(summands(4))
    possible = np.unique(value + scale * np.add.outer(table, table))
    rng = np.random.default_rng()
    q = rng.choice(possible, 200)
    for release in np.concatenate([q, np.nextafter(q, np.inf)]).tolist():
        search = meet_in_the_middle(release, table, value=value, scale=scale)
        assert bool(search.preimages) == np.isin(release, possible)
        assert all(value + scale * (a + b) == release for a, b in search.preimages)


def test_one_preimage_of_53_bits_is_found_after_a_handful_of_checks() -> None:
    """The median is 5; that more than half of 2,000 take over 10, has no chance if a third does.

    Some e^|z| checks are needed: beyond 8, once in 10^7 times, more than the search makes.
    """
    over_ten = 0
    for z in np.clip(np.random.default_rng().laplace(size=2000), -8, 8).tolist():
        search = one_preimage(z)
        ((U1, W1, U2, W2),) = search.preimages
        assert slow_summand(U1, W1) + slow_summand(U2, W2) == z
        assert all((U * 2.0**53).is_integer() and 0 <= U < 1 for U in (U1, W1, U2, W2))
        over_ten += search.checks > 10
    assert over_ten < 1000


def test_the_search_for_one_preimage_gives_up_when_told() -> None:
    search = one_preimage(1000.0, most=640)
    assert search.preimages == []
    assert search.checks == 640


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="precision must be at least 2, got 1"):
        gaussian_preimages(0.5, 1)
    with pytest.raises(ValueError, match="over must be one of 'U1', 'U2'"):
        gaussian_preimages(0.5, 8, "U3")
    with pytest.raises(ValueError, match="precision must be at most 13, got 14"):
        summands(14)
