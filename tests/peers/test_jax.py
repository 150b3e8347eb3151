"""JAX and PyTorch in float32: recovering the key, and tables of all outputs."""

import secrets
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import FALSE_ALARM, LONG, SAMPLES, check_probability

from dpnoise.auditing.attacks import mironov, threefry
from dpnoise.auditing.targets import Target, make_target

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

# A search of all seeds takes seconds on a quiet machine; most tests search a part with the seed.
PART = 2**24


def run_of(key: Any, scale: float = 3.7, *, jit: bool = False) -> Target:
    """Return a target like jax-privacy: a split for each release, another for each array."""

    def draw(value: float, leaf: Any, n: int) -> Any:
        return value + scale * jax.random.normal(leaf, (n,))

    compiled = jax.jit(draw, static_argnums=2) if jit else draw

    def release(value: float, n: int) -> NDArray[np.float32]:
        nonlocal key
        key, draws = jax.random.split(key)
        (leaf,) = jax.random.split(draws, 1)
        return np.asarray(compiled(value, leaf, n))

    return Target("run", "gaussian", scale, release)


def draw_seed() -> tuple[int, range]:
    """Return a seed drawn as in jax-privacy, and a range that contains it."""
    seed = secrets.randbelow(2**31)
    first = max(0, seed - secrets.randbelow(PART))
    return seed, range(first, first + PART)


def os_key() -> Any:
    return jax.random.wrap_key_data(np.frombuffer(secrets.token_bytes(8), np.uint32))


# The key -----------------------------------------------------------------------------------------


def test_the_noise_of_jax_privacy_is_that_of_these_splits() -> None:
    """Bit for bit, so that an attack on these splits is one on the library."""
    noise = pytest.importorskip("jax_privacy.noise_addition")
    key = os_key()
    privatizer = noise.gaussian_privatizer(stddev=3.7, prng_key=key)
    state = privatizer.init(jax.numpy.zeros(1))
    target = run_of(key)
    for value in (0.0, 1.0, -5.5):
        released, state = privatizer.update(jax.numpy.full(100, value, "float32"), state)
        np.testing.assert_array_equal(np.asarray(released), target(value, 100))


def test_the_target_is_jax_privacy_itself() -> None:
    pytest.importorskip("jax_privacy")
    target = make_target("jax_privacy")
    assert (target.package, target.version) == ("jax-privacy", version("jax-privacy"))
    assert target(1.0, 10).dtype == np.float32


def test_seeds_splits_and_words_match_the_model_of_the_search() -> None:
    seed = secrets.randbelow(2**31)
    key = jax.random.key(seed)
    assert jax.random.key_data(key).tolist() == [0, seed]
    zero, k1 = np.uint32(0), np.uint32(seed)
    outputs = np.array([threefry.threefry(zero, k1, zero, np.uint32(i)) for i in range(9)])
    np.testing.assert_array_equal(jax.random.key_data(jax.random.split(key, 9)), outputs)
    np.testing.assert_array_equal(jax.random.bits(key, (9,)), outputs[:, 0] ^ outputs[:, 1])


@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (1.0, 3.7), (1000.0, 0.1)])
def test_every_normal_of_jax_has_its_mantissa_between_the_bounds(
    value: float, scale: float
) -> None:
    """All 2^23 normals, so the search cannot miss a key."""
    releases = np.float32(value) + np.float32(scale) * mironov.all_outputs("jax.normal")
    lows, highs = threefry.mantissa_bounds(releases, value, scale)
    assert (lows <= np.arange(2**23)).all()
    assert (np.arange(2**23) <= highs).all()


def test_all_seeds_are_searched_and_all_noise_is_removed_exactly() -> None:
    """Eight known numbers of the first release give, bit for bit, the noise of three releases."""
    key = jax.random.key(np.random.randint(0, 2**31))  # noqa: NPY002 - it is the target
    target = run_of(key)
    secret: Any = np.random.default_rng().normal(size=(3, 10_000)).astype(np.float32)
    secret[0, :8] = 0.0
    releases = [target(row, row.size) for row in secret]
    (seed,) = threefry.recover_seeds(releases[0][:8], 0.0, target.scale)
    regenerated = run_of(jax.random.key(seed))
    for row, release in zip(secret, releases, strict=True):
        noise = regenerated(0.0, row.size)
        np.testing.assert_array_equal(release, row + noise)


@pytest.mark.parametrize("jit", [False, True])
def test_the_attack_distinguishes_the_values_without_an_error(*, jit: bool) -> None:
    seed, seeds = draw_seed()
    target = run_of(jax.random.key(seed), jit=jit)
    outcome = threefry.KeySearch(seeds=seeds)(target, 0.0, 1.0, n=10_000)
    assert outcome.at0.rate == 1.0
    assert outcome.at1.rate == 0.0
    assert str(seed) in outcome.event


def test_one_key_for_all_releases_is_found_too() -> None:
    seed, seeds = draw_seed()
    key = jax.random.key(seed)
    target = Target("one key", "gaussian", 1.0, lambda v, n: v + jax.random.normal(key, (n,)))
    outcome = threefry.KeySearch(path=(), seeds=seeds)(target, n=1000)
    assert (outcome.at0.rate, outcome.at1.rate) == (1.0, 0.0)
    placebo0, placebo1 = outcome.placebo or pytest.fail("no placebo")
    assert (placebo0.rate, placebo1.rate) == (1.0, 1.0)


def test_the_attack_works_after_further_releases() -> None:
    seed, seeds = draw_seed()
    target = run_of(jax.random.key(seed))
    event = threefry.KeySearch(seeds=seeds).find(target, 0.0, 1.0, 100)
    for _ in range(5):
        target(0.5, 100)
    assert event.holds(target(0.0, 100)).all()
    assert not event.holds(target(1.0, 100)).any()
    assert not event.holds(target(0.5, 100)).any()


def test_a_key_of_64_bits_is_not_found() -> None:
    """It is one of the 2^31 seeds with probability 2^-33, below FALSE_ALARM."""
    target = run_of(os_key())
    seeds = threefry.ALL_SEEDS if LONG else range(PART)
    outcome = threefry.KeySearch(seeds=seeds)(target, n=1000)
    assert "no key fits" in outcome.event
    assert outcome.at0.hits == outcome.at1.hits == 0


# The tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "value"), [(1.0, 0.0), (0.1, 1.0), (0.01, -3.3)])
@pytest.mark.parametrize("sampler", mironov.SAMPLERS)
def test_the_true_value_is_never_excluded(sampler: str, epsilon: float, value: float) -> None:
    """A million releases at three scales are all in the table of their value."""
    target = make_target(sampler, epsilon=epsilon)
    releases = target(value, SAMPLES // 3)
    event = mironov.Tabulated(sampler).find(target, value + 1, value, 1)
    assert not event.holds(releases).any()
    assert event.explains is not None
    assert event.explains(releases, value).all()


@pytest.mark.parametrize("sampler", mironov.SAMPLERS)
def test_the_wrong_value_is_excluded_as_often_as_counting_says(sampler: str) -> None:
    """All uniforms are equally likely, so the table gives the probability of the event."""
    target = make_target(sampler, epsilon=1.0)
    attack = mironov.Tabulated(sampler)
    outcome = attack(target, n=50_000, confidence=1 - FALSE_ALARM)
    possible = np.float32(target.scale) * mironov.all_outputs(sampler)
    expected = float(np.mean(attack.find(target, 0.0, 1.0, 1).holds(possible)))
    assert expected > 0.75
    check_probability(stats.binomtest(outcome.at0.hits, outcome.at0.trials, expected).pvalue)
    assert outcome.at1.hits == 0
    low, high = outcome.placebo_advantage or pytest.fail("no placebo")
    assert low <= 0 <= high


def test_a_release_is_in_the_table_exactly_if_some_uniform_gives_it() -> None:
    """A slow search tries all uniforms, for releases of the true value and of a wrong one."""
    target = make_target("jax.normal", epsilon=1.0)
    noise = np.float32(target.scale) * mironov.all_outputs("jax.normal")
    releases = np.concatenate([target(0.0, 50), target(1.0, 50)])
    fast = mironov._is_in_table(releases, np.sort(noise) + np.float32(1))
    slow = [(np.float32(1) + noise == release).any() for release in releases]
    assert fast.tolist() == slow


def test_the_table_says_nothing_of_noise_in_float64() -> None:
    outcome = mironov.Tabulated()(make_target("numpy.normal"), n=10_000)
    assert outcome.at0.hits == outcome.at1.hits == 0


def test_an_unknown_sampler_is_named() -> None:
    with pytest.raises(ValueError, match=r"sampler must be one of"):
        mironov.Tabulated("jax.cauchy")
