"""The Mersenne Twister: its state from its noise, and then no noise at all.

The victims are seeded by the operating system. A correct attack fails if a victim draws U = 0, or
if 128 surplus equations agree by chance with bits of another generator: below 10^-11 in all.
"""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing.attacks import twister
from dpnoise.auditing.attacks.mironov import laplace_release
from dpnoise.auditing.attacks.twister import (
    MersenneTwister,
    NoStateError,
    TooFewReleasesError,
    clone_numpy,
    invert_laplace,
    predict_noise,
    recover_state,
)
from dpnoise.auditing.targets import Target
from dpnoise.core.errors import ArgumentError

Floats = NDArray[np.float64]
ALL = 2**53 - 1


def paper_laplace(u: float) -> float:
    """Equation (2) of the paper, letter by letter."""
    return float((-1) ** round(u)) * math.log(1 - 2 * abs(u - 1 / 2))


def paper_releases(uniform: Callable[[], float], scale: float) -> Callable[[float, int], Floats]:
    return lambda value, n: np.array([value + scale * paper_laplace(uniform()) for _ in range(n)])


def target(release: Callable[[float, int], Floats], scale: float = 1.0) -> Target:
    return Target("a victim", "laplace", scale, release)


def drawn_uniforms(n: int) -> NDArray[np.int64]:
    return (np.random.RandomState().random_sample(n) * 2.0**53).astype(np.int64)


# Elimination -------------------------------------------------------------------------------------


def eliminate(
    A: NDArray[np.int64], b: NDArray[np.int64]
) -> tuple[int, NDArray[np.bool_], NDArray[np.int64]]:
    """Put A x = b through the kernels; return the last gain, the pivots and a solution."""
    unknowns = A.shape[1]
    basis = np.zeros((unknowns, (unknowns >> 6) + 1), np.uint64)
    filled = np.zeros(unknowns, np.bool_)
    gain = 0
    for row in np.column_stack([A, b]):
        equation = np.zeros(basis.shape[1], np.uint64)
        for column in np.flatnonzero(row):
            twister._add_unknown(equation, int(column))
        gain = twister._insert(equation, basis, filled)
        if gain == twister._CONTRADICTION:
            break
    solution = twister._solve(basis)
    values = [twister._coefficient_of(solution, column) for column in range(unknowns)]
    return gain, filled, np.array(values)


def test_elimination_agrees_with_trying_all_assignments() -> None:
    rng = np.random.default_rng()
    x = (np.arange(2**7)[:, None] >> np.arange(7)) & 1
    for equations in (3, 6, 7, 8, 9) * 20:
        A, b = rng.integers(0, 2, (equations, 7)), rng.integers(0, 2, equations)
        solutions = x[((x @ A.T - b) % 2 == 0).all(axis=1)]
        gain, filled, solution = eliminate(A, b)
        if len(solutions) == 0:
            assert gain == twister._CONTRADICTION
        else:
            assert len(solutions) == 2 ** int((~filled).sum())
            assert solution.tolist() in solutions.tolist()


def test_elimination_finds_a_planted_solution_of_several_words() -> None:
    """200 random equations leave one of 150 unknowns open with probability 2^-50."""
    rng = np.random.default_rng()
    A, x = rng.integers(0, 2, (200, 150)), rng.integers(0, 2, 150)
    gain, filled, solution = eliminate(A, A @ x % 2)
    assert gain == 0
    assert filled.all()
    assert (solution == x).all()


def test_tempering_is_undone() -> None:
    """On the forms of a word's bits, of 1000 words."""
    x = np.random.default_rng().integers(0, 2**32, 1000)
    forms = ((x >> np.arange(32)[:, None]) & 1).astype(np.uint64)
    tempered = forms.copy()
    twister._add_bits(tempered, twister._TEMPERING)
    y = x ^ (x >> 11)
    y = y ^ ((y << 7) & 0x9D2C5680)
    y = y ^ ((y << 15) & 0xEFC60000)
    y = y ^ (y >> 18)
    assert (tempered == (y >> np.arange(32)[:, None]) & 1).all()
    twister._add_bits(tempered, twister._TEMPERING[::-1])
    assert (tempered == forms).all()


# The inversion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (42.0, 1.0), (-7.3, 10.0)])
def test_the_formulas_are_the_victims_to_the_last_bit(value: float, scale: float) -> None:
    victim = np.random.RandomState()
    twin = np.random.RandomState()
    twin.set_state(victim.get_state())
    noise = predict_noise(twin, 50_000, scale, "numpy")
    assert (value + noise == victim.laplace(value, scale, 50_000)).all()

    victim_too = random.Random()  # noqa: S311 - the victim
    _, (*words, position), _ = victim_too.getstate()
    twin.set_state(("MT19937", np.array(words, np.uint32), position, 0, 0.0))
    noise = predict_noise(twin, 50_000, scale, "paper")
    assert (value + noise == paper_releases(victim_too.random, scale)(value, 50_000)).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("formula", [0, 1])
def test_a_release_never_falls_from_one_uniform_to_the_next(formula: int) -> None:
    k = drawn_uniforms(10_000)
    # Small uniforms, large ones and those around the median have their own regimes.
    near = np.concatenate([k, k >> 20, 2**52 + (k >> 30), ALL - (k >> 25), ALL - (k >> 49)])
    for start in near[(near > 0) & (near < ALL - 4)].tolist():
        z = [laplace_release((start + step) * 2.0**-53, 0.0, 1.0, formula) for step in range(5)]
        assert z == sorted(z)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (42.0, 1.0), (42.0, 10.0), (-1e3, 1.0)])
def test_the_sure_bits_are_those_that_all_candidates_share(value: float, scale: float) -> None:
    """Every candidate within 3,000 of the true one is tried; at 1e3 there are up to 2^11."""
    k = drawn_uniforms(30)
    releases = np.array([value + scale * paper_laplace(u) for u in k * 2.0**-53])
    uniforms, masks = invert_laplace(releases, value, scale, "paper")
    for i, y in enumerate(releases):
        near = range(max(1, int(k[i]) - 3000), min(ALL, int(k[i]) + 3000) + 1)
        feasible = [c for c in near if value + scale * paper_laplace(c * 2.0**-53) == y]
        differ = int(np.bitwise_or.reduce(feasible) ^ np.bitwise_and.reduce(feasible))
        assert masks[i] == ALL & ~differ
        assert uniforms[i] == k[i] & masks[i]


def test_a_release_that_no_uniform_leads_to_is_named() -> None:
    releases = np.array([math.log(0.5), 1e-30])
    with pytest.raises(ArgumentError, match=r"releases\[1\] must be 0\.0 plus noise"):
        invert_laplace(releases, 0.0, 1.0)
    with pytest.raises(ArgumentError, match="formula must be one of"):
        invert_laplace(releases, 0.0, 1.0, "cauchy")


# The state ---------------------------------------------------------------------------------------


def test_624_uniforms_are_enough_and_623_are_not() -> None:
    uniforms = drawn_uniforms(624)
    clone = np.random.RandomState()
    clone.set_state(("MT19937", recover_state(uniforms, np.full(624, ALL)), 624, 0, 0.0))
    assert (clone.random_sample(312) * 2.0**53 == uniforms[312:]).all()
    with pytest.raises(TooFewReleasesError):
        recover_state(uniforms[:-1], np.full(623, ALL))


def test_one_wrong_bit_is_a_contradiction() -> None:
    uniforms = drawn_uniforms(640)
    uniforms[500] ^= 2**20
    with pytest.raises(NoStateError):
        recover_state(uniforms, np.full(640, ALL))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (42.0, 1.0), (0.0, 10.0), (42.0, 10.0)])
def test_numpy_s_legacy_noise_is_predicted_without_exception(value: float, scale: float) -> None:
    """At 42 some need more than the 624 releases that are enough at 0; all are given 5,000."""
    victim = np.random.RandomState()
    clone = clone_numpy(victim.laplace(value, scale, 5000), value, scale)
    assert (clone.laplace(value, scale, 10_000) == victim.laplace(value, scale, 10_000)).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("skipped", [0, 1, 700])
def test_the_standard_library_s_noise_is_predicted_from_any_phase(skipped: int) -> None:
    """An odd number of 32-bit outputs before the first release moves the uniforms by half."""
    victim = random.Random()  # noqa: S311 - the victim
    for _ in range(skipped):
        victim.getrandbits(32)
    clone = clone_numpy(paper_releases(victim.random, 1.0)(0.0, 640), 0.0, 1.0, "paper")
    assert all(clone.random_sample() == victim.random() for _ in range(10_000))


def test_the_noise_of_unknown_integers_is_removed() -> None:
    victim = np.random.RandomState()
    clone = clone_numpy(victim.laplace(scale=10.0, size=640), 0.0, 10.0)
    secrets = np.random.default_rng().integers(0, 10**6, 10_000)
    releases = secrets + victim.laplace(scale=10.0, size=10_000)
    assert (np.rint(releases - predict_noise(clone, 10_000, 10.0)) == secrets).all()


def test_scipy_s_noise_without_a_random_state_is_predicted() -> None:
    clone = clone_numpy(np.asarray(stats.laplace.rvs(scale=2.0, size=640)), 0.0, 2.0)
    assert (predict_noise(clone, 10_000, 2.0) == stats.laplace.rvs(scale=2.0, size=10_000)).all()


# The attack --------------------------------------------------------------------------------------

VICTIMS: dict[str, Callable[[], Callable[..., Floats]]] = {
    "RandomState": lambda: np.random.RandomState().laplace,
    "Generator(MT19937)": lambda: np.random.Generator(np.random.MT19937()).laplace,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("value", [0.0, 42.0, 1e6])
def test_the_event_always_holds_at_one_value_and_never_at_the_other(
    victim: str, value: float
) -> None:
    laplace = VICTIMS[victim]()
    attacked = target(lambda value, n: laplace(value, 1.0, n))
    event = MersenneTwister().find(attacked, value, value + 1, n=5000)
    assert event.holds(attacked(value, 5000)).all()
    assert not event.holds(attacked(value + 1, 5000)).any()
    assert event.holds(attacked(value, 5000)).all()


def test_the_attack_measures_itself_in_step_with_its_victim() -> None:
    victim = np.random.RandomState()
    outcome = MersenneTwister()(target(lambda value, n: victim.laplace(value, 1.0, n)), n=1000)
    assert (outcome.at0.hits, outcome.at1.hits) == (1000, 0)
    assert outcome.placebo is not None
    assert [count.hits for count in outcome.placebo] == [1000, 1000]


def test_the_paper_s_formula_is_found_by_default() -> None:
    victim = random.Random()  # noqa: S311 - the victim
    attacked = target(paper_releases(victim.random, 1.0))
    event = MersenneTwister().find(attacked, 0.0, 1.0, n=1000)
    assert event.holds(attacked(0.0, 1000)).all()


@pytest.mark.parametrize("value", [0.0, 42.0])
@pytest.mark.parametrize("generator", ["PCG64", "SystemRandom"])
def test_no_other_generator_is_mistaken_for_a_twister(generator: str, value: float) -> None:
    laplace = np.random.default_rng().laplace
    attacked = {
        "PCG64": target(lambda value, n: laplace(value, 1.0, n)),
        "SystemRandom": target(paper_releases(random.SystemRandom().random, 1.0)),
    }[generator]
    event = MersenneTwister().find(attacked, value, value + 1, n=1000)
    assert event.words == "no Mersenne Twister state explains the releases"
    assert not event.holds(attacked(value, 1000)).any()


def test_a_formula_that_does_not_exist_is_no_finding() -> None:
    attacked = target(lambda value, n: np.random.RandomState().laplace(value, 1.0, n))
    with pytest.raises(ArgumentError, match="formula must be one of None, 'numpy'"):
        MersenneTwister("gauss").find(attacked, 0.0, 1.0, n=1000)


def test_too_few_releases_are_said_to_be_too_few() -> None:
    attacked = target(lambda value, n: np.random.RandomState().laplace(value, 1.0, n))
    event = MersenneTwister().find(attacked, 0.0, 1.0, n=600)
    assert event.words.startswith("too few releases")
    assert not event.holds(attacked(0.0, 10)).any()
