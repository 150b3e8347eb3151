"""The mechanisms on which published auditors were measured, written anew from their papers.

Each is a function (data, n) -> n outputs. Its loop is compiled, and runs on all cores, each with a
generator of its own (SplitMix64), which is not for secrets. Noise is rounded to a grid of 2^-20
before it is added to whole numbers: the sum is then exact, and what is audited is the mechanism,
not its floats.

- Lyu, Su and Li 2017, "Understanding the sparse vector technique", algorithms 1 to 6;
- Ding, Wang, Wang, Zhang and Kifer 2018, "Detecting violations of differential privacy";
- Balcer and Vadhan 2018, "Differential privacy on finite computers", algorithm 4.8;
- Erlingsson, Pihur and Korolova 2014, "RAPPOR";
- Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators";
- Wang, Ding, Wang, Kifer and Zhang 2019, "Proving differential privacy with shadow execution".

Parameters are those of Bichsel, Steffen, Bogunovic and Vechev 2021, "DP-Sniper".
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.neighbours import vectors
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.kernels import compiled, inlined
from dpnoise.kernels.elementary import in_widest_vectors, log

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Generator = tuple[Words, Floats]  # The last seed of a word, and noise that was drawn ahead.
Mechanism = Callable[[Any, int], NDArray[Any]]

EPSILON: Final = 0.1
FALSE: Final = -1000.0  # A query below the threshold, where others are answered by numbers.
ABORTED: Final = -1  # A query that was not answered any more, where others are by a bit.
_GRID: Final = 2.0**20
_AHEAD: Final = 1 << 10  # Noise that is drawn ahead: so little stays next to the core.
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)  # The step from one seed to the next.
_LOG_UNIT: Final = 53 * math.log(2.0)
_UNEQUAL: Final = 4  # The algorithm of Lyu, Su and Li that does not split epsilon in halves.
_BLOCK: Final = 4  # Bytes that MurmurHash3 mixes at a time.
_BITS: Final = 20  # Of a Bloom filter.
_RUN: Final = 1 << 14  # Releases that are worth a core.


def generator() -> Generator:
    """Return a fresh generator."""
    return np.frombuffer(os.urandom(8), dtype=np.uint64).copy(), np.empty(_AHEAD)


@inlined
def word_of(seed: np.uint64) -> np.uint64:
    """Return the word of a seed."""
    word = (seed ^ (seed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def refill(seed: Words, noise: Floats) -> None:
    """Draw Laplace noise of scale 1: minus the logarithm of a uniform number, of either sign."""
    in_widest_vectors()
    last = seed[0]
    for i in range(noise.size):
        last += _GAMMA
        word = word_of(last)
        uniform = np.float64(np.int64(word >> np.uint64(11)) | 1)  # In 2^-53: an odd one, not 0.
        sign = 2.0 * np.float64(np.int64(word) & 1) - 1.0
        noise[i] = sign * (_LOG_UNIT - log(uniform))
    seed[0] = last


def drawn(
    fill: Callable[..., None], n: int, width: int, dtype: type, *arguments: Any
) -> NDArray[Any]:
    """Return n rows that a kernel fills, a column each."""
    # With one more than is asked for, a part of it and all of it have one layout, and one kernel.
    out: NDArray[Any] = np.empty((width, n + 1), dtype=dtype)[:, :n]
    run_in_parallel(
        lambda start, stop: fill(generator(), out[:, start:stop], *arguments), n, _RUN, cores()
    )
    return out.T


def _as_floats(answers: Any) -> Floats:
    return np.atleast_1d(np.asarray(answers, dtype=np.float64))


@inlined
def laplace(rng: Generator, scale: float, left: int) -> tuple[float, int]:
    """Return Laplace noise on the grid, and how much that was drawn ahead is left."""
    if left == 0:
        refill(*rng)
        left = _AHEAD
    return float(np.rint(scale * rng[1][left - 1] * _GRID)) / _GRID, left - 1


# One number, and histograms ----------------------------------------------------------------------


@compiled
def _fill_noisy(rng: Generator, out: Floats, answers: Floats, scale: float, sums: bool) -> None:  # noqa: FBT001 - of a kernel
    left = 0
    for i in range(out.shape[1]):
        total = 0.0
        for j in range(answers.size):
            noise, left = laplace(rng, scale, left)
            answer = answers[j] + noise
            total = total + answer if sums else answer
            out[j, i] = total


def added(data: Any, n: int, scale: float = 1 / EPSILON, *, sums: bool = False) -> Floats:
    """Laplace noise on each of some numbers, or the sums of the first of these."""
    known = _as_floats(data)
    return drawn(_fill_noisy, n, len(known), np.float64, known, scale, sums)


def parallel(value: float, n: int) -> Floats:
    """Release one number 20 times, each with noise for a twentieth of epsilon."""
    return added(np.full(20, value), n, 20 / EPSILON)


def truncated_geometric(count: int, n: int, people: int = 5) -> Floats:
    """GeoSample: two-sided geometric noise on a count, from integers alone."""
    k = math.ceil(math.log(2 / EPSILON))
    half, unit = 2**k, 2**k + 1
    total = (2 ** (k + 1) + 1) * unit ** (people - 1)
    below = [half ** (count - z) * unit ** (people - (count - z)) for z in range(count)]
    above = [
        total - half ** (z - count + 1) * unit ** (people - 1 - (z - count))
        for z in range(count, people)
    ]
    whole = np.random.default_rng().integers(1, total, size=n, endpoint=True)
    return np.searchsorted(np.array([*below, *above, total]), whole).astype(np.float64)


# The largest of noisy answers --------------------------------------------------------------------


@compiled
def _fill_max(
    rng: Generator,
    out: NDArray[Any],
    answers: Floats,
    scale: float,
    two_sided: bool,  # noqa: FBT001 - of a kernel
    value: bool,  # noqa: FBT001
) -> None:
    left = 0
    for i in range(out.shape[1]):
        largest, place = -np.inf, 0
        for j in range(answers.size):
            noise, left = laplace(rng, scale, left)
            if not two_sided:
                noise = abs(noise)
            if answers[j] + noise > largest:
                largest, place = answers[j] + noise, j
        out[0, i] = largest if value else place


def noisy_max(answers: Floats, n: int, *, two_sided: bool, value: bool) -> NDArray[Any]:
    """Report the place of the largest noisy answer, or wrongly its value."""
    known, dtype = _as_floats(answers), np.float64 if value else np.int8
    scale = 2 / EPSILON
    return drawn(_fill_max, n, 1, dtype, known, scale, two_sided, value)[:, 0]


# Sparse vectors ----------------------------------------------------------------------------------


@compiled
def _fill_sparse(  # noqa: PLR0913 - the parameters of the published algorithm
    rng: Generator,
    out: NDArray[Any],
    answers: Floats,
    threshold: float,
    threshold_scale: float,
    query_scale: float,
    cutoff: int,
    anew: bool,  # noqa: FBT001 - of a kernel
    numbers: bool,  # noqa: FBT001
) -> None:
    left = 0
    out[:] = np.nan if numbers else ABORTED
    for i in range(out.shape[1]):
        noise, left = laplace(rng, threshold_scale, left)
        limit = threshold + noise
        found = 0
        for j in range(answers.size):
            noise, left = laplace(rng, query_scale, left)
            above = answers[j] + noise >= limit
            if numbers:
                out[j, i] = answers[j] + noise if above else FALSE
            else:
                out[j, i] = above
            if above:
                found += 1
                if found == cutoff:
                    break
                if anew:
                    noise, left = laplace(rng, threshold_scale, left)
                    limit = threshold + noise


def sparse_vector(
    answers: Floats,
    n: int,
    *,
    threshold_scale: float,
    query_scale: float,
    threshold: float = 1.0,
    cutoff: int | None = 1,
    anew: bool = False,
    numbers: bool = False,
) -> NDArray[Any]:
    """Tell of each answer whether it is above a noisy threshold, until `cutoff` of them were.

    `anew` draws the threshold's noise again after each one above; `numbers` releases the noisy
    answer itself.
    """
    known, most = _as_floats(answers), len(answers) + 1 if cutoff is None else cutoff
    scales = threshold, threshold_scale, query_scale
    dtype = np.float64 if numbers else np.int8
    return drawn(_fill_sparse, n, len(known), dtype, known, *scales, most, anew, numbers)


@compiled
def _fill_numerical(
    rng: Generator, out: Floats, answers: Floats, threshold: float, scale: float, cutoff: int
) -> None:
    left = 0
    out[:] = np.nan
    for i in range(out.shape[1]):
        noise, left = laplace(rng, scale, left)
        limit = threshold + noise
        found = 0
        for j in range(answers.size):
            if found == cutoff:
                break
            noise, left = laplace(rng, 2 * cutoff * scale, left)
            out[j, i] = 0.0
            if answers[j] + noise >= limit:
                found += 1
                noise, left = laplace(rng, cutoff * scale, left)
                out[j, i] = answers[j] + noise


def numerical_sparse_vector(
    answers: Floats, n: int, cutoff: int = 2, threshold: float = 1.0
) -> Floats:
    """Answer the first queries above a noisy threshold with new noise."""
    known, scale = _as_floats(answers), 3 / EPSILON
    return drawn(_fill_numerical, n, len(known), np.float64, known, threshold, scale, cutoff)


def both_sparse_vectors(answers: Floats, n: int) -> NDArray[Any]:
    """Run algorithms 3 and 4 side by side, each until two answers were above."""
    both = [sparse_vector(answers, n, **settings(i, cutoff=2)) for i in (3, 4)]
    return np.concatenate([part.T for part in both]).T


def settings(algorithm: int, cutoff: int = 1) -> dict[str, Any]:
    """Return how Lyu, Su and Li's algorithms differ, for epsilon split in two."""
    first = EPSILON / (4 if algorithm == _UNEQUAL else 2)
    second = EPSILON - first
    differing: dict[int, dict[str, Any]] = {
        1: {"query_scale": 2 * cutoff / second, "threshold": 0.5},
        2: {"query_scale": 2 * cutoff / second, "threshold_scale": cutoff / first, "anew": True},
        3: {"query_scale": cutoff / second, "numbers": True},
        4: {"query_scale": 1 / second},
        5: {"query_scale": 0.0, "cutoff": None},
        6: {"query_scale": 1 / second, "cutoff": None},
    }
    return {"threshold_scale": 1 / first, "cutoff": cutoff, **differing[algorithm]}


# Reports of bits ---------------------------------------------------------------------------------


@compiled
def _fill_bits(
    rng: Generator, out: NDArray[np.uint8], bits: NDArray[np.bool_], steps: NDArray[np.int64]
) -> None:
    """Draw all bits anew, step by step: 1 with one probability for a 0, another one for a 1."""
    in_widest_vectors()
    last = rng[0][0]
    for j in range(out.shape[0]):
        out[j] = bits[j]
        for zero, one in steps:  # In 2^-53.
            for i in range(out.shape[1]):
                last += _GAMMA
                likely = one if out[j, i] else zero
                out[j, i] = np.int64(word_of(last) >> np.uint64(11)) < likely
    rng[0][0] = last


def rappor(
    value: int, n: int, f: float, answer: tuple[float, float] | None = None
) -> NDArray[np.bool_]:
    """Report a Bloom filter of 20 bits and 4 hashes, each bit random with probability f.

    `answer` are the probabilities of reporting 1 for a bit that is then 0, and for one that is 1.
    """
    bits = np.zeros(_BITS, dtype=np.bool_)
    bits[[murmur3(str(value).encode(), seed) % _BITS for seed in range(4)]] = True
    steps = [(f / 2, 1 - f / 2), *([answer] if answer else [])]
    likely = np.rint(np.array(steps) * 2**53).astype(np.int64)
    return drawn(_fill_bits, n, _BITS, np.uint8, bits, likely).view(np.bool_)


def murmur3(key: bytes, seed: int) -> int:
    """MurmurHash3 of 32 bits (Appleby, public domain), for keys of at most 4 bytes."""
    k = int.from_bytes(key, "little") * 0xCC9E2D51 & 0xFFFFFFFF
    h = seed ^ ((k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF)
    if len(key) == _BLOCK:
        h = ((h << 13 | h >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    h ^= len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


# The table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A mechanism, its neighbours, and what is known of it.

    `claim` is what it claims; `published` and `seconds` what DP-Sniper certified with its faster
    classifier, at confidence 0.9 on a larger machine, and its time; `budget` the releases of ours.
    """

    name: str
    mechanism: Mechanism
    neighbours: list[tuple[Any, Any]]
    claim: float
    published: float
    seconds: float
    budget: int

    @property
    def keeps(self) -> bool:
        """Whether it keeps its claim."""
        return self.name not in BREAKING


def _one_moved(size: int) -> list[tuple[Any, Any]]:
    return vectors(size)[:2]


def _svt(algorithm: int) -> Mechanism:
    return partial(sparse_vector, **settings(algorithm))


BREAKING: Final = {
    "NoisyHist2",
    "ReportNoisyMax3",
    "ReportNoisyMax4",
    "SVT3",
    "SVT4",
    "SVT5",
    "SVT6",
    "SVT34Parallel",
    "PrefixSum",
}
_MILLION: Final = 1_000_000
_rappor = partial(rappor, f=0.75, answer=(0.45, 0.55))
_place, _value = (partial(noisy_max, value=value) for value in (False, True))
_SCALARS: Final = [(1, 0), (1, 2)]
_TEN: Final = vectors(10)
_FIVE: Final = vectors(5)
_GEOMETRIC: Final = math.log(1 + 2.0 ** -math.ceil(math.log(2 / EPSILON)))

ROWS: Final = [
    Row("Laplace", added, _SCALARS, 0.1, 0.092, 20, 18 * _MILLION),
    Row("TruncatedGeometric", truncated_geometric, _SCALARS, _GEOMETRIC, 0.109, 18, 4 * _MILLION),
    Row("NoisyHist1", added, _one_moved(5), 0.1, 0.096, 35, 20 * _MILLION),
    Row("NoisyHist2", partial(added, scale=EPSILON), _one_moved(5), 0.1, 4.6, 38, 2 * _MILLION),
    Row("ReportNoisyMax1", partial(_place, two_sided=True), _FIVE, 0.1, 0.085, 59, 20 * _MILLION),
    Row("ReportNoisyMax2", partial(_place, two_sided=False), _FIVE, 0.1, 0.090, 56, 20 * _MILLION),
    Row("ReportNoisyMax3", partial(_value, two_sided=True), _FIVE, 0.1, 0.243, 59, 106 * _MILLION),
    Row("ReportNoisyMax4", partial(_value, two_sided=False), _FIVE, 0.1, 0.344, 60, 30 * _MILLION),
    Row("SVT1", _svt(1), _TEN, 0.1, 0.077, 118, 145 * _MILLION),
    Row("SVT2", _svt(2), _TEN, 0.1, 0.079, 148, 200 * _MILLION),
    Row("SVT3", _svt(3), _TEN, 0.1, 0.165, 150, 54 * _MILLION),
    Row("SVT4", _svt(4), _TEN, 0.1, 0.167, 123, 168 * _MILLION),
    Row("SVT5", _svt(5), _TEN, 0.1, 1.757, 56, 10 * _MILLION),
    Row("SVT6", _svt(6), _TEN, 0.1, 0.269, 91, 40 * _MILLION),
    Row("Rappor", _rappor, _SCALARS, 0.4, 0.292, 131, 100 * _MILLION),
    Row("OneTimeRappor", partial(rappor, f=0.95), _SCALARS, 0.8, 0.592, 80, 80 * _MILLION),
    Row("LaplaceParallel", parallel, _SCALARS, 0.1, 0.029, 96, 22 * _MILLION),
    Row("SVT34Parallel", both_sparse_vectors, _TEN, 0.1, 0.260, 341, 70 * _MILLION),
    Row("PrefixSum", partial(added, sums=True), _TEN, 0.1, 0.506, 92, 5 * _MILLION),
    Row("NumericalSVT", numerical_sparse_vector, _TEN, 0.1, 0.027, 142, 46 * _MILLION),
]  # fmt: skip
