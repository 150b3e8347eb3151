"""JAX: a search of all keys of 31 bits, after which all noise can be subtracted.

Without a key argument, jax-privacy calls jax.random.key(np.random.randint(0, 2**31)). That leaves
31 random bits of the 64 bits of a Threefry key, and each float32 normal reveals 23 bits of the
stream. So a few numbers of one release with known true values (parameters without a gradient)
determine the key, and with it the noise of everything else in that run.

Keys and counters are those of JAX's default, jax_threefry_partitionable: child i of a key k is
Threefry(k, (0, i)), and element i of a draw uses both halves of Threefry(k, (0, i)), xored.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_integer, import_extra, reject
from dpnoise.core.parallel import cores
from dpnoise.kernels import compile_kernel

Words = NDArray[np.uint32]
_Replay = Callable[[Releases, tuple[float, ...]], list[Flags]]

ALL_SEEDS: Final = range(2**31)
# The splits from the key of a run to that of its first draw. jax-privacy uses the second child for
# this release and keeps the first for later ones. Optax splits again, with a child for each array.
JAX_PRIVACY: Final = (1, 0)

_MANTISSA: Final = 23
# Known numbers: of their 8 * 23 bits about 150 remain after rounding, so no wrong key fits.
_KNOWN: Final = 8
_TEST_NUMBERS: Final = 1_000  # Numbers of a known key on which the bounds of the search are tested.
_AHEAD: Final = 64  # Most releases of a run between two that the attack sees.
_CHUNK: Final = 2**24  # Seeds between two reports of progress.
_BLOCK: Final = 1024  # Both halves of this many keys fit in a core's first-level cache.
_MOST_FOUND: Final = 16  # Most seeds that a chunk reports: only a single one is a success.


@compile_kernel
def _round(x0: np.uint32, x1: np.uint32, r: int) -> tuple[np.uint32, np.uint32]:
    # Without the conversions Numba widens to 64 bits, and vectorises half as well.
    x0 = np.uint32(x0 + x1)
    rotated = np.uint32(np.uint32(x1 << np.uint32(r)) | np.uint32(x1 >> np.uint32(32 - r)))
    return x0, np.uint32(rotated ^ x0)


@compile_kernel
def _four_rounds(
    x0: np.uint32, x1: np.uint32, a: int, b: int, c: int, d: int
) -> tuple[np.uint32, np.uint32]:
    x0, x1 = _round(x0, x1, a)
    x0, x1 = _round(x0, x1, b)
    x0, x1 = _round(x0, x1, c)
    return _round(x0, x1, d)


@compile_kernel
def threefry(
    k0: np.uint32, k1: np.uint32, x0: np.uint32, x1: np.uint32
) -> tuple[np.uint32, np.uint32]:
    """Return Threefry-2x32 with 20 rounds of the counter (x0, x1) under the key (k0, k1)."""
    k2 = np.uint32(k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = np.uint32(x0 + k0), np.uint32(x1 + k1)
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = np.uint32(x0 + k1), np.uint32(x1 + k2 + np.uint32(1))
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0, x1 = np.uint32(x0 + k2), np.uint32(x1 + k0 + np.uint32(2))
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = np.uint32(x0 + k0), np.uint32(x1 + k1 + np.uint32(3))
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0, x1 = np.uint32(x0 + k1), np.uint32(x1 + k2 + np.uint32(4))
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    return np.uint32(x0 + k2), np.uint32(x1 + k0 + np.uint32(5))


@compile_kernel
def _search(
    first: int, last: int, path: Words, lows: Words, highs: Words, fitting_seeds: Words
) -> int:
    """Write the seeds from first to last that fit to `fitting_seeds`, and return their number.

    x0 and x1 hold the cipher state of a block of seeds. The loops over them have no branch, so LLVM
    vectorises them. Few blocks have a seed that fits the first number; only these are checked
    further.
    """
    x0, x1 = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    count = 0
    for start in range(first, last, x0.size):
        size = min(x0.size, last - start)
        for i in range(size):
            x0[i], x1[i] = 0, start + i
        for step in range(path.size + 1):
            child = path[step] if step < path.size else np.uint32(0)
            for i in range(size):
                x0[i], x1[i] = threefry(x0[i], x1[i], np.uint32(0), child)
        near = 0
        for i in range(size):
            near += _is_within(x0[i], x1[i], lows[0], highs[0])
        if near:
            for i in range(size):
                first_fits = _is_within(x0[i], x1[i], lows[0], highs[0])
                if first_fits and _fits(start + i, path, lows, highs):
                    if count < fitting_seeds.size:
                        fitting_seeds[count] = start + i
                    count += 1
    return count


@compile_kernel
def _is_within(x0: np.uint32, x1: np.uint32, low: np.uint32, high: np.uint32) -> bool:
    """Return whether the mantissa of Threefry's output is in an interval."""
    mantissa = (x0 ^ x1) >> np.uint32(9)
    return bool((low <= mantissa) & (mantissa <= high))


@compile_kernel
def _fits(seed: int, path: Words, lows: Words, highs: Words) -> bool:
    """Return whether a seed explains all known numbers."""
    k0, k1 = np.uint32(0), np.uint32(seed)
    for child in path:
        k0, k1 = threefry(k0, k1, np.uint32(0), child)
    for i in range(lows.size):
        x0, x1 = threefry(k0, k1, np.uint32(0), np.uint32(i))
        if not _is_within(x0, x1, lows[i], highs[i]):
            return False
    return True


def _margin(releases: Releases, value: float) -> Floats:
    """Return a bound on the rounding error of value + scale * normal: 8 units in the last place.

    Rounding the value, the scale, their product and the sum costs 2 units. Under jit, XLA reorders
    the products and fuses the sum, which changed the result by 2 more in experiments. The bound is
    twice the sum of both.
    """
    size = np.abs(releases).astype(np.float32) + np.float32(abs(value))
    return np.asarray(8.0 * np.spacing(size).astype(np.float64))


def mantissa_bounds(numbers: Releases, value: float, scale: float) -> tuple[Words, Words]:
    """Return the least and the greatest mantissa m that can give each number.

    JAX draws sqrt(2) erfinv(u) with u = -1 + 2^-24 + m 2^-22. The error of its erfinv is at most
    0.54 steps of m, so one more step on each side suffices.
    """
    margin = _margin(numbers, value)
    noise = numbers.astype(np.float64) - value

    def steps(w: Floats) -> Floats:
        u = special.erf(w / (scale * math.sqrt(2.0)))
        return np.asarray((u + 1.0 - 2.0**-24) * 2.0 ** (_MANTISSA - 1))

    most = 2**_MANTISSA - 1
    lows = np.clip(np.floor(steps(noise - margin)) - 1, 0, most)
    highs = np.clip(np.ceil(steps(noise + margin)) + 1, 0, most)
    return lows.astype(np.uint32), highs.astype(np.uint32)


def recover_seeds(
    numbers: Releases,
    value: float,
    scale: float,
    path: Sequence[int] = JAX_PRIVACY,
    seeds: range = ALL_SEEDS,
    progress: Progress = no_progress,
) -> list[int]:
    """Return every seed for which jax.random.key(seed) explains the first numbers of a release.

    These are value + scale * jax.random.normal(key, shape). Two numbers usually determine the
    seed, unless the value is so large relative to the scale that the addition rounds noise away.
    `path` has the splits from the seed's key to that of the draw: (1, 0) means
    split(split(key)[1])[0].
    """
    if not len(numbers):
        reject("numbers", numbers, "have at least one number")
    lows, highs = mantissa_bounds(numbers, value, scale)

    def work(first: int) -> list[int]:
        fitting = np.empty(_MOST_FOUND, dtype=np.uint32)
        last = min(first + _CHUNK, seeds.stop)
        count = _search(first, last, np.array(path, np.uint32), lows, highs, fitting)
        return [int(seed) for seed in fitting[:count]]

    starts = range(seeds.start, seeds.stop, _CHUNK)
    result: list[int] = []
    with ThreadPoolExecutor(cores()) as pool:
        for done, fitting in enumerate(pool.map(work, starts), start=1):
            result += fitting
            progress(done / len(starts))
    return result


@dataclass(frozen=True)
class KeySearch(Attack):
    """Finds the key of a run from its first release, then subtracts the noise of all later ones.

    Each call of the target is one release of a run, an array under one key. The attack knows the
    value of the first eight numbers of the first array, and attacks the arrays that follow. `path`
    has the splits from the key of the run to the key of its first array. Child 0 of the key of a
    run is the key of its next release. `seeds` are the seeds to try; all 2^31 take some seconds.
    """

    name = "key-search"
    access = SOURCE
    breaks = "JAX noise under a key made of a 31-bit seed, jax-privacy's default"
    source = "exhaustive search; Threefry is of Salmon et al. 2011"
    default_target = "jax_privacy"
    in_audit = False
    independent = False

    path: tuple[int, ...] = JAX_PRIVACY
    seeds: range = ALL_SEEDS

    def __post_init__(self) -> None:
        for child in self.path:
            check_integer("path", child, least=0, most=2**20)
        if self.seeds.step != 1 or self.seeds.start < 0 or self.seeds.stop > 2**32:
            reject("seeds", self.seeds, "be a range of step 1 within 0 and 2^32")

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that y minus the noise of the recovered key is value0."""
        known, scale = target(value0, n)[:_KNOWN], target.scale
        seeds = recover_seeds(known, value0, scale, self.path, self.seeds, progress)
        if not seeds and not bounds_hold_for_jax(value0, scale):
            return base.misfit_event("it does not find the noise of a known key")
        if len(seeds) != 1:
            words = f"{'several keys fit' if seeds else 'no key fits'} the first release"
            return base.impossible_event(f"nothing: {words}, of {len(self.seeds):,} tried")
        match_values = _replay(seeds[0], self.path, scale)

        def explains(y: Releases, value: float) -> Flags:
            return match_values(y, (value,))[0]

        def holds(y: Releases) -> Flags:
            return match_values(y, (value0, value1))[0]

        words = f"y minus the noise of jax.random.key({seeds[0]}) is {value0:g}"
        return Event(words, holds, explains=explains)


def bounds_hold_for_jax(value: float, scale: float) -> bool:
    """Return whether the bounds of the search hold for JAX's noise on this machine.

    The mantissas of a known key are known too: JAX itself returns their bits. The result is True if
    JAX is not installed.
    """
    if find_spec("jax") is None:
        return True
    jax = import_extra("jax", "peers")
    key = jax.random.key(0)
    releases = np.asarray(value + scale * jax.random.normal(key, (_TEST_NUMBERS,)))
    lows, highs = mantissa_bounds(releases, value, scale)
    drawn = np.asarray(jax.random.bits(key, (_TEST_NUMBERS,), np.uint32)) >> (32 - _MANTISSA)
    return bool(((lows <= drawn) & (drawn <= highs)).all())


def _replay(seed: int, path: tuple[int, ...], scale: float) -> _Replay:
    """Return a function that regenerates a run's noise by JAX, and finds releases of given values.

    It advances along the run to the first release where each number has one of the values. The
    search starts with the key of the last match, not after it: a run that never splits uses the
    same key again.
    """
    jax = import_extra("jax", "peers")
    key = jax.random.key(seed)

    def match_values(y: Releases, values: tuple[float, ...]) -> list[Flags]:
        nonlocal key
        ahead = key
        for _ in range(_AHEAD):
            draw = ahead
            for child in path:
                draw = jax.random.split(draw, child + 1)[child]
            noise = np.asarray(scale * jax.random.normal(draw, y.shape), dtype=np.float64)
            matches = [np.asarray(np.abs(y - noise - v) <= _margin(y, v)) for v in values]
            if np.logical_or.reduce(matches).all():
                key = ahead
                return matches
            ahead = jax.random.split(ahead)[0]
        return [np.zeros(len(y), dtype=np.bool_) for _ in values]

    return match_values
