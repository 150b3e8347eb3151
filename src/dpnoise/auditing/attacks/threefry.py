"""JAX: every key of 31 bits tried, after which all noise can be subtracted.

When it is given no key, jax-privacy makes one with jax.random.key(np.random.randint(0, 2**31)). Of
the 64 bits of a Threefry key that leaves 31, and each float32 normal shows 23 bits of the stream.
A few numbers of one release whose true values are known (parameters without a gradient) therefore
single out the key, and with it the noise of everything else in that run.

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

from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, misfit, never, silent
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_integer, import_extra, reject
from dpnoise.core.parallel import cores
from dpnoise.kernels import compiled

Words = NDArray[np.uint32]
_Replay = Callable[[Releases, tuple[float, ...]], list[Flags]]

ALL_SEEDS: Final = range(2**31)
# The splits from the key of a run to that of its first draw: jax-privacy takes the second child
# for this release and keeps the first for later ones; Optax splits again, a child for each array.
JAX_PRIVACY: Final = (1, 0)

_MANTISSA: Final = 23
_KNOWN: Final = 8  # Of 8 * 23 bits about 150 remain after rounding: no wrong key fits.
_KNOWN_KEY: Final = 1_000  # Numbers of a known key that the bounds of the search are tried on.
_AHEAD: Final = 64  # This many releases of a run may go by between two that are judged.
_CHUNK: Final = 2**24  # Seeds between two reports of progress.
_BLOCK: Final = 1024  # Both halves of this many keys stay in a core's first cache.
_MOST_FOUND: Final = 16  # In a chunk; one is a success, and how many others is of no interest.


@compiled
def _round(x0: np.uint32, x1: np.uint32, r: int) -> tuple[np.uint32, np.uint32]:
    # Numba widens to 64 bits unless it is told otherwise, and then vectorises half as well.
    x0 = np.uint32(x0 + x1)
    rotated = np.uint32(np.uint32(x1 << np.uint32(r)) | np.uint32(x1 >> np.uint32(32 - r)))
    return x0, np.uint32(rotated ^ x0)


@compiled
def _four_rounds(
    x0: np.uint32, x1: np.uint32, a: int, b: int, c: int, d: int
) -> tuple[np.uint32, np.uint32]:
    x0, x1 = _round(x0, x1, a)
    x0, x1 = _round(x0, x1, b)
    x0, x1 = _round(x0, x1, c)
    return _round(x0, x1, d)


@compiled
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


@compiled
def _search(first: int, last: int, path: Words, lows: Words, highs: Words, found: Words) -> int:
    """Write the seeds from first to last that fit to `found`, and return how many there are.

    A block of seeds goes through x0 and x1, in loops without a branch that LLVM vectorises. Hardly
    a block has a seed that fits the first release, and is looked at again.
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
            near += _within(x0[i], x1[i], lows[0], highs[0])
        if near:
            for i in range(size):
                first_fits = _within(x0[i], x1[i], lows[0], highs[0])
                if first_fits and _fits(start + i, path, lows, highs):
                    if count < found.size:
                        found[count] = start + i
                    count += 1
    return count


@compiled
def _within(x0: np.uint32, x1: np.uint32, low: np.uint32, high: np.uint32) -> bool:
    """Tell whether the mantissa that Threefry's output makes is in an interval."""
    mantissa = (x0 ^ x1) >> np.uint32(9)
    return bool((low <= mantissa) & (mantissa <= high))


@compiled
def _fits(seed: int, path: Words, lows: Words, highs: Words) -> bool:
    """Tell whether a seed explains all releases."""
    k0, k1 = np.uint32(0), np.uint32(seed)
    for child in path:
        k0, k1 = threefry(k0, k1, np.uint32(0), child)
    for i in range(lows.size):
        x0, x1 = threefry(k0, k1, np.uint32(0), np.uint32(i))
        if not _within(x0, x1, lows[i], highs[i]):
            return False
    return True


def _margin(releases: Releases, value: float) -> Floats:
    """Bound what float32 loses in value + scale * normal, at 8 units in the last place.

    Rounding the value, the scale, their product and the sum loses 2 units; under jit, XLA reorders
    the products and fuses the sum, which was seen to move the result by 2 more.
    """
    size = np.abs(releases).astype(np.float32) + np.float32(abs(value))
    return np.asarray(8.0 * np.spacing(size).astype(np.float64))


def mantissas(releases: Releases, value: float, scale: float) -> tuple[Words, Words]:
    """Return the least and the greatest mantissa m that can be behind each release.

    JAX draws sqrt(2) erfinv(u) with u = -1 + 2^-24 + m 2^-22. Its erfinv is at most 0.54 steps of m
    off, so a step on each side is enough.
    """
    margin = _margin(releases, value)
    noise = releases.astype(np.float64) - value

    def steps(w: Floats) -> Floats:
        u = special.erf(w / (scale * math.sqrt(2.0)))
        return np.asarray((u + 1.0 - 2.0**-24) * 2.0 ** (_MANTISSA - 1))

    most = 2**_MANTISSA - 1
    lows = np.clip(np.floor(steps(noise - margin)) - 1, 0, most)
    highs = np.clip(np.ceil(steps(noise + margin)) + 1, 0, most)
    return lows.astype(np.uint32), highs.astype(np.uint32)


def recover(
    releases: Releases,
    value: float,
    scale: float,
    *,
    path: Sequence[int] = JAX_PRIVACY,
    seeds: range = ALL_SEEDS,
    progress: Progress = silent,
) -> list[int]:
    """Return every seed for which jax.random.key(seed) explains the first numbers of a release.

    These are value + scale * jax.random.normal(key, shape). Two of them leave one seed, unless the
    value is so large next to the scale that its addition rounds noise away. `path` has the splits
    from the seed's key to that of the draw: (1, 0) stands for split(split(key)[1])[0].
    """
    if not len(releases):
        reject("releases", releases, "have at least one number")
    lows, highs = mantissas(releases, value, scale)

    def work(first: int) -> list[int]:
        found = np.empty(_MOST_FOUND, dtype=np.uint32)
        last = min(first + _CHUNK, seeds.stop)
        count = _search(first, last, np.array(path, np.uint32), lows, highs, found)
        return [int(seed) for seed in found[:count]]

    starts = range(seeds.start, seeds.stop, _CHUNK)
    result: list[int] = []
    with ThreadPoolExecutor(cores()) as pool:
        for done, found in enumerate(pool.map(work, starts), start=1):
            result += found
            progress(done / len(starts))
    return result


@dataclass(frozen=True)
class KeySearch(Attack):
    """Finds the key of a run from its first release, then subtracts the noise of all later ones.

    Each call of the target is one release of a run, an array under one key. The attack knows the
    value of the first array's first eight numbers, and judges the arrays that follow.

    Parameters
    ----------
    path
        The splits from the run's key to that of its first array. The run's first split has the next
        release's key as child 0.
    seeds
        Which seeds to try; all 2^31 take some seconds.
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
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that y, without the noise of the key that was found, is value0."""
        known = target(value0, n)[:_KNOWN]
        found = recover(
            known, value0, target.scale, path=self.path, seeds=self.seeds, progress=progress
        )
        if not found and not fits_jax(value0, target.scale):
            return misfit("it does not find the noise of a known key")
        if len(found) != 1:
            fitting = "several keys fit" if found else "no key fits"
            return never(f"nothing: {fitting} the first release, of {len(self.seeds):,} tried")
        removed = _replay(found[0], self.path, target.scale)

        def explains(y: Releases, value: float) -> Flags:
            return removed(y, (value,))[0]

        def holds(y: Releases) -> Flags:
            return removed(y, (value0, value1))[0]

        words = f"y minus the noise of jax.random.key({found[0]}) is {value0:g}"
        return Event(words, holds, explains=explains)


def fits_jax(value: float, scale: float) -> bool:
    """Tell whether the bounds of the search hold for JAX's noise here, if JAX is installed.

    The mantissas behind the noise of a known key are known too: JAX itself shows their bits.
    """
    if find_spec("jax") is None:
        return True
    jax = import_extra("jax", "peers")
    key = jax.random.key(0)
    releases = np.asarray(value + scale * jax.random.normal(key, (_KNOWN_KEY,)))
    lows, highs = mantissas(releases, value, scale)
    drawn = np.asarray(jax.random.bits(key, (_KNOWN_KEY,), np.uint32)) >> (32 - _MANTISSA)
    return bool(((lows <= drawn) & (drawn <= highs)).all())


def _replay(seed: int, path: tuple[int, ...], scale: float) -> _Replay:
    """Return what regenerates a run's noise through JAX, and tells which releases have a value.

    It moves along the run to the first release where each number is one of the values. It starts
    from the last one found, because a run without splits uses one key for all.
    """
    jax = import_extra("jax", "peers")
    key = jax.random.key(seed)

    def removed(y: Releases, values: tuple[float, ...]) -> list[Flags]:
        nonlocal key
        ahead = key
        for _ in range(_AHEAD):
            draw = ahead
            for child in path:
                draw = jax.random.split(draw, child + 1)[child]
            noise = np.asarray(scale * jax.random.normal(draw, y.shape), dtype=np.float64)
            at = [np.asarray(np.abs(y - noise - v) <= _margin(y, v)) for v in values]
            if np.logical_or.reduce(at).all():
                key = ahead
                return at
            ahead = jax.random.split(ahead)[0]
        return [np.zeros(len(y), dtype=np.bool_) for _ in values]

    return removed
