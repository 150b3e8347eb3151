"""The search for JAX's keys, without JAX: published vectors, and a slow reference in integers."""

import math
import secrets
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from dpnoise.auditing.attacks import threefry
from dpnoise.auditing.targets import Target

Pair = tuple[int, int]

# Random123's known-answer tests for threefry2x32 with 20 rounds: key, counter, output.
VECTORS: list[tuple[Pair, Pair, Pair]] = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def twin(key: Pair, counter: Pair) -> Pair:
    """Threefry-2x32 as in its paper: 20 rounds, a subkey added after every fourth."""
    schedule = (*key, 0x1BD11BDA ^ key[0] ^ key[1])
    a, b = ((word + subkey) % 2**32 for word, subkey in zip(counter, key, strict=True))
    for d in range(20):
        rotation = (13, 15, 26, 6, 17, 29, 16, 24)[d % 8]
        a = (a + b) % 2**32
        b = (b * 2**rotation % 2**32 + b // 2 ** (32 - rotation)) ^ a
        if d % 4 == 3:
            s = d // 4 + 1
            a = (a + schedule[s % 3]) % 2**32
            b = (b + schedule[(s + 1) % 3] + s) % 2**32
    return a, b


def twin_mantissas(key: Pair, path: tuple[int, ...], n: int) -> NDArray[np.int64]:
    """Return the top 23 bits of each word that JAX draws from a key's descendant."""
    for child in path:
        key = twin(key, (0, child))
    return np.array([(x0 ^ x1) >> 9 for x0, x1 in (twin(key, (0, i)) for i in range(n))])


def normal(mantissa: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.asarray(math.sqrt(2) * special.erfinv(-1 + 2**-24 + mantissa * 2.0**-22), np.float32)


def kernel(key: Pair, counter: Pair) -> Pair:
    x0, x1 = threefry.threefry(*(np.uint32(word) for word in (*key, *counter)))
    return int(x0), int(x1)


@pytest.mark.parametrize("cipher", [kernel, twin])
@pytest.mark.parametrize(("key", "counter", "output"), VECTORS)
def test_the_published_vectors_come_out(
    cipher: Callable[[Pair, Pair], Pair], key: Pair, counter: Pair, output: Pair
) -> None:
    assert cipher(key, counter) == output


def test_the_kernel_is_its_twin_on_random_words() -> None:
    for _ in range(1000):
        k0, k1, x0, x1 = (secrets.randbits(32) for _ in range(4))
        assert kernel((k0, k1), (x0, x1)) == twin((k0, k1), (x0, x1))


@pytest.mark.parametrize("value", [0.0, 1.0, 1000.0])
def test_a_mantissa_lies_between_its_bounds(value: float) -> None:
    """Also when three units in the last place were lost on the way, up or down."""
    rng = np.random.default_rng()
    mantissa = np.concatenate([rng.integers(2**23, size=10**5), [0, 1, 2**23 - 2, 2**23 - 1]])
    noise = np.float32(3.7) * normal(mantissa)
    unit = np.spacing(np.abs(noise) + np.float32(value))
    for lost in (-3, 0, 3):
        releases = (np.float32(value) + noise) + np.float32(lost) * unit
        lows, highs = threefry.mantissa_bounds(releases, value, 3.7)
        assert (lows <= mantissa).all()
        assert (mantissa <= highs).all()


@pytest.mark.parametrize("path", [(), (1,), (1, 0), (0, 0, 1, 5)])
def test_a_seed_is_found_wherever_it_is(path: tuple[int, ...]) -> None:
    """A wrong seed fits all eight numbers with probability below 2^-100."""
    seed = secrets.randbelow(2**31)
    first = seed - secrets.randbelow(min(seed + 1, 2**20))
    releases = 5 + 2 * normal(twin_mantissas((0, seed), path, 8))
    seeds = range(first, first + 2**20)
    assert threefry.recover_seeds(releases, 5.0, 2.0, path=path, seeds=seeds) == [seed]
    assert threefry.recover_seeds(releases, 5.0, 2.0, path=path, seeds=range(first, seed)) == []
    assert threefry.recover_seeds(releases, 5.5, 2.0, path=path, seeds=seeds) == []


@pytest.mark.parametrize("seed", [0, 1023, 1024, 2**24 - 1, 2**24, 2**24 + 9, 2**31 - 1, 2**32 - 1])
def test_no_seed_is_lost_between_blocks_and_chunks(seed: int) -> None:
    releases = normal(twin_mantissas((0, seed), (1, 0), 8))
    for first, last in [(seed, seed + 1), (max(seed - 2**12, 0), seed + 1), (seed, seed + 2**12)]:
        seeds = range(first, min(last, 2**32))
        assert threefry.recover_seeds(releases, 0.0, 1.0, seeds=seeds) == [seed]


def test_progress_ends_at_one() -> None:
    seen: list[float] = []
    releases = normal(twin_mantissas((0, 7), (), 8))
    seeds = range(2**25)
    assert threefry.recover_seeds(
        releases, 0.0, 1.0, path=(), seeds=seeds, progress=seen.append
    ) == [7]
    assert seen == [0.5, 1.0]


def test_one_number_leaves_several_keys() -> None:
    """Of 2^26 seeds at least 8 are expected to fit 23 bits by chance."""
    releases = normal(twin_mantissas((0, 7), (), 1))
    seeds = threefry.recover_seeds(releases, 0.0, 1.0, path=(), seeds=range(2**26))
    assert 7 in seeds
    assert len(seeds) > 1


def test_noise_of_another_generator_gives_an_event_that_never_happens() -> None:
    rng = np.random.default_rng()
    target = Target("numpy", "gaussian", 1.0, lambda value, n: value + rng.normal(size=n))
    event = threefry.KeySearch(seeds=range(2**20)).find(target, 0.0, 1.0, 100)
    assert event.words == "nothing: no key fits the first release, of 1,048,576 tried"
    assert not event.holds(target(0.0, 100)).any()


def test_bad_arguments_are_named() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: threefry.KeySearch(path=(-1,)), "path must be at least 0, got -1"),
        (lambda: threefry.KeySearch(seeds=range(2**33)), "seeds must "),
        (lambda: threefry.KeySearch(seeds=range(0, 10, 2)), "seeds must "),
        (lambda: threefry.recover_seeds(np.empty(0), 0.0, 1.0), "numbers must "),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
