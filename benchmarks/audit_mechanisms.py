"""The mechanisms on which published auditors were measured, implemented from their papers.

Each is a function (data, n) -> n outputs. Its loop is compiled and runs on all cores. Each core has
its generator (SplitMix64), which is not for secrets. Noise is rounded to a grid of 2^-20 before it
is added to integers. The sum is then exact, and the audit tests the mechanism, not its floats.

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

from dpnoise.auditing.neighbours import vector_pairs
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.kernels import compile_inline, compile_kernel
from dpnoise.kernels.elementary import in_widest_vectors, log

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Generator = tuple[Words, Floats]  # The seed of the last word, and a buffer of noise.
Mechanism = Callable[[Any, int], NDArray[Any]]

EPSILON: Final = 0.1
BELOW: Final = -1000.0  # Marks a query below the threshold, where other answers are numbers.
UNANSWERED: Final = -1  # Marks a query after the cutoff, where other answers are bits.
_GRID: Final = 2.0**20
_BUFFER: Final = 1 << 10  # Size of the buffer of noise: small enough for the first cache.
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)  # The increment between two seeds.
_LOG_UNIT: Final = 53 * math.log(2.0)
_UNEQUAL_SPLIT: Final = 4  # The algorithm of Lyu, Su and Li that splits epsilon unequally.
_BLOCK: Final = 4  # Bytes in a block of MurmurHash3.
_BITS: Final = 20  # Size of a Bloom filter.
_RUN: Final = 1 << 14  # Smallest number of releases that is worth another core.


def fresh_generator() -> Generator:
    """Return a fresh generator."""
    return np.frombuffer(os.urandom(8), dtype=np.uint64).copy(), np.empty(_BUFFER)


@compile_inline
def word_of(seed: np.uint64) -> np.uint64:
    """Return the word of a seed."""
    word = (seed ^ (seed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compile_kernel
def refill(seed: Words, noise: Floats) -> None:
    """Fill the buffer with Laplace noise of scale 1: a random sign times -log(U)."""
    in_widest_vectors()
    last = seed[0]
    for i in range(noise.size):
        last += _GAMMA
        word = word_of(last)
        uniform = np.float64(
            np.int64(word >> np.uint64(11)) | 1
        )  # In units of 2^-53; odd, so that it is not 0.
        sign = 2.0 * np.float64(np.int64(word) & 1) - 1.0
        noise[i] = sign * (_LOG_UNIT - log(uniform))
    seed[0] = last


def draw_rows(
    fill: Callable[..., None], n: int, width: int, dtype: type, *arguments: Any
) -> NDArray[Any]:
    """Return n rows that a kernel fills column by column."""
    # With one more column, a part and the whole have the same layout, and so the same kernel.
    out: NDArray[Any] = np.empty((width, n + 1), dtype=dtype)[:, :n]
    run_in_parallel(
        lambda start, stop: fill(fresh_generator(), out[:, start:stop], *arguments),
        n,
        _RUN,
        cores(),
    )
    return out.T


def _as_floats(answers: Any) -> Floats:
    return np.atleast_1d(np.asarray(answers, dtype=np.float64))


@compile_inline
def on_grid(noise: float) -> float:
    """Return noise rounded to the grid."""
    return float(np.rint(noise * _GRID)) / _GRID


# One number, and histograms ----------------------------------------------------------------------


@compile_kernel
def _fill_noisy(rng: Generator, out: Floats, answers: Floats, scale: float, sums: bool) -> None:  # noqa: FBT001 - a kernel
    """Fill blocks of rows column by column, so that LLVM vectorises the loops over rows."""
    in_widest_vectors()
    noise = rng[1]
    for start in range(0, out.shape[1], _BUFFER):
        total = np.zeros(min(_BUFFER, out.shape[1] - start))
        for j in range(answers.size):
            refill(*rng)
            for i in range(total.size):
                answer = answers[j] + on_grid(scale * noise[i])
                total[i] = total[i] + answer if sums else answer
            out[j, start : start + total.size] = total


def add_laplace(data: Any, n: int, scale: float = 1 / EPSILON, *, sums: bool = False) -> Floats:
    """Release numbers with Laplace noise, or with `sums` the prefix sums of these."""
    answers = _as_floats(data)
    return draw_rows(_fill_noisy, n, len(answers), np.float64, answers, scale, sums)


def release_20_times(value: float, n: int) -> Floats:
    """Release one number 20 times, each with noise for a twentieth of epsilon."""
    return add_laplace(np.full(20, value), n, 20 / EPSILON)


def truncated_geometric(count: int, n: int, people: int = 5) -> Floats:
    """Release a count with two-sided geometric noise, from integers only (GeoSample)."""
    k = math.ceil(math.log(2 / EPSILON))
    half, unit = 2**k, 2**k + 1
    total = (2 ** (k + 1) + 1) * unit ** (people - 1)
    below = [half ** (count - z) * unit ** (people - (count - z)) for z in range(count)]
    above = [
        total - half ** (z - count + 1) * unit ** (people - 1 - (z - count))
        for z in range(count, people)
    ]
    draws = np.random.default_rng().integers(1, total, size=n, endpoint=True)
    return np.searchsorted(np.array([*below, *above, total]), draws).astype(np.float64)


# The largest of noisy answers --------------------------------------------------------------------


@compile_kernel
def _fill_max(
    rng: Generator,
    out: NDArray[Any],
    answers: Floats,
    scale: float,
    two_sided: bool,  # noqa: FBT001 - a kernel
    value: bool,  # noqa: FBT001
) -> None:
    in_widest_vectors()
    noise = rng[1]
    for start in range(0, out.shape[1], _BUFFER):
        largest = np.full(min(_BUFFER, out.shape[1] - start), -np.inf)
        index = np.zeros(largest.size)
        for j in range(answers.size):
            refill(*rng)
            for i in range(largest.size):
                added = on_grid(scale * noise[i])
                answer = answers[j] + (added if two_sided else abs(added))
                is_larger = answer > largest[i]
                largest[i] = answer if is_larger else largest[i]
                index[i] = j if is_larger else index[i]
        for i in range(largest.size):
            out[0, start + i] = largest[i] if value else index[i]


def noisy_max(answers: Floats, n: int, *, two_sided: bool, value: bool) -> NDArray[Any]:
    """Report the index of the largest noisy answer, or, which is a bug, its value."""
    exact, dtype = _as_floats(answers), np.float64 if value else np.int8
    scale = 2 / EPSILON
    return draw_rows(_fill_max, n, 1, dtype, exact, scale, two_sided, value)[:, 0]


# Sparse vectors ----------------------------------------------------------------------------------


@compile_kernel
def _fill_sparse(  # noqa: PLR0913 - the parameters of the published algorithms
    rng: Generator,
    out: NDArray[Any],
    answers: Floats,
    threshold: float,
    scales: tuple[float, float, float],
    cutoff: int,
    redraw: bool,  # noqa: FBT001 - a kernel
    numbers: bool,  # noqa: FBT001
    below: float,
) -> None:
    """Fill blocks of rows query by query, with lists of the rows that need noise.

    So no branch depends on the noise: a processor would mispredict it often.
    """
    (seed, noise), (threshold_scale, query_scale, answer_scale) = rng, scales
    limits, counts = np.empty(_BUFFER), np.empty(_BUFFER, np.int64)
    going, hits = np.empty(_BUFFER, np.int64), np.empty(_BUFFER, np.int64)
    for start in range(0, out.shape[1], _BUFFER):
        block = out[:, start : start + _BUFFER]
        block[:] = np.nan if numbers else UNANSWERED
        active = block.shape[1]
        refill(seed, noise[:active])
        for i in range(active):
            limits[i] = threshold + on_grid(threshold_scale * noise[i])
            counts[i], going[i] = 0, i
        for j in range(answers.size):
            refill(seed, noise[:active])
            kept, above = 0, 0
            for k in range(active):
                i = going[k]
                answer = answers[j] + on_grid(query_scale * noise[k])
                is_above = answer >= limits[i]
                if numbers:
                    block[j, i] = answer if is_above else below
                else:
                    block[j, i] = is_above
                counts[i] += is_above
                # The next row takes the same place in a list if this one does not belong there.
                hits[above], going[kept] = i, i
                above += is_above
                kept += counts[i] < cutoff
            active = kept
            if redraw:
                refill(seed, noise[:above])
                for k in range(above):
                    limits[hits[k]] = threshold + on_grid(threshold_scale * noise[k])
            if answer_scale:
                refill(seed, noise[:above])
                for k in range(above):
                    block[j, hits[k]] = answers[j] + on_grid(answer_scale * noise[k])


def sparse_vector(  # noqa: PLR0913 - the parameters of the published algorithms
    answers: Floats,
    n: int,
    *,
    threshold_scale: float,
    query_scale: float,
    answer_scale: float = 0.0,
    threshold: float = 1.0,
    cutoff: int | None = 1,
    redraw: bool = False,
    numbers: bool = False,
    below: float = BELOW,
) -> NDArray[Any]:
    """Report for each answer whether it is above a noisy threshold, until `cutoff` of them are.

    `redraw` draws the noise of the threshold again after each answer above it. `numbers` releases
    the noisy answers themselves, and `below` in place of those below the threshold. They get new
    noise if it has an `answer_scale`.
    """
    exact, limit = _as_floats(answers), len(answers) + 1 if cutoff is None else cutoff
    scales, dtype = (threshold_scale, query_scale, answer_scale), np.float64 if numbers else np.int8
    kinds = limit, redraw, numbers, below
    return draw_rows(_fill_sparse, n, len(exact), dtype, exact, threshold, scales, *kinds)


def numerical_sparse_vector(answers: Floats, n: int, cutoff: int = 2) -> NDArray[Any]:
    """Answer the first queries above a noisy threshold with new noise."""
    unit = 3 / EPSILON
    return sparse_vector(
        answers,
        n,
        threshold_scale=unit,
        query_scale=2 * cutoff * unit,
        answer_scale=cutoff * unit,
        cutoff=cutoff,
        numbers=True,
        below=0.0,
    )


def both_sparse_vectors(answers: Floats, n: int) -> NDArray[Any]:
    """Run algorithms 3 and 4, each until two answers are above the threshold."""
    releases = [sparse_vector(answers, n, **settings(i, cutoff=2)) for i in (3, 4)]
    return np.concatenate([part.T for part in releases]).T


def settings(algorithm: int, cutoff: int = 1) -> dict[str, Any]:
    """Return the parameters of an algorithm of Lyu, Su and Li, for epsilon split in two."""
    threshold_epsilon = EPSILON / (4 if algorithm == _UNEQUAL_SPLIT else 2)
    query_epsilon = EPSILON - threshold_epsilon
    parameters: dict[int, dict[str, Any]] = {
        1: {"query_scale": 2 * cutoff / query_epsilon, "threshold": 0.5},
        2: {
            "query_scale": 2 * cutoff / query_epsilon,
            "threshold_scale": cutoff / threshold_epsilon,
            "redraw": True,
        },
        3: {"query_scale": cutoff / query_epsilon, "numbers": True},
        4: {"query_scale": 1 / query_epsilon},
        5: {"query_scale": 0.0, "cutoff": None},
        6: {"query_scale": 1 / query_epsilon, "cutoff": None},
    }
    return {"threshold_scale": 1 / threshold_epsilon, "cutoff": cutoff, **parameters[algorithm]}


# Reports of bits ---------------------------------------------------------------------------------


@compile_kernel
def _fill_bits(
    rng: Generator, out: NDArray[np.uint8], bits: NDArray[np.bool_], steps: NDArray[np.int64]
) -> None:
    """Redraw all bits in steps: each step has a probability of 1 given a 0, and one given a 1."""
    in_widest_vectors()
    last = rng[0][0]
    for j in range(out.shape[0]):
        out[j] = bits[j]
        for given_0, given_1 in steps:  # In units of 2^-53.
            for i in range(out.shape[1]):
                last += _GAMMA
                probability = given_1 if out[j, i] else given_0
                out[j, i] = np.int64(word_of(last) >> np.uint64(11)) < probability
    rng[0][0] = last


def rappor(
    value: int, n: int, f: float, answer: tuple[float, float] | None = None
) -> NDArray[np.bool_]:
    """Report a Bloom filter of 20 bits and 4 hashes, each bit random with probability f.

    `answer` holds the probabilities of reporting 1 if the resulting bit is 0, and if it is 1.
    """
    bits = np.zeros(_BITS, dtype=np.bool_)
    bits[[murmur3(str(value).encode(), seed) % _BITS for seed in range(4)]] = True
    steps = [(f / 2, 1 - f / 2), *([answer] if answer else [])]
    probabilities = np.rint(np.array(steps) * 2**53).astype(np.int64)
    return draw_rows(_fill_bits, n, _BITS, np.uint8, bits, probabilities).view(np.bool_)


def murmur3(key: bytes, seed: int) -> int:
    """Return MurmurHash3 of 32 bits (Appleby, public domain), for keys of at most 4 bytes."""
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
    """A mechanism, its neighbours, and the published results.

    `claim` is its claimed epsilon and `budget` the number of releases in our audit. `published` is
    what DP-Sniper certified with its faster classifier, at confidence 0.9 on a larger machine, and
    `seconds` its time.
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


def _pairs(size: int) -> list[tuple[Any, Any]]:
    return vector_pairs(size)[:2]


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
_index, _value = (partial(noisy_max, value=value) for value in (False, True))
_SCALARS: Final = [(1, 0), (1, 2)]
_TEN: Final = vector_pairs(10)
_FIVE: Final = vector_pairs(5)
_GEOMETRIC: Final = math.log(1 + 2.0 ** -math.ceil(math.log(2 / EPSILON)))

ROWS: Final = [
    Row("Laplace", add_laplace, _SCALARS, 0.1, 0.092, 20, 18 * _MILLION),
    Row("TruncatedGeometric", truncated_geometric, _SCALARS, _GEOMETRIC, 0.109, 18, 4 * _MILLION),
    Row("NoisyHist1", add_laplace, _pairs(5), 0.1, 0.096, 35, 20 * _MILLION),
    Row("NoisyHist2", partial(add_laplace, scale=EPSILON), _pairs(5), 0.1, 4.6, 38, 2 * _MILLION),
    Row("ReportNoisyMax1", partial(_index, two_sided=True), _FIVE, 0.1, 0.085, 59, 20 * _MILLION),
    Row("ReportNoisyMax2", partial(_index, two_sided=False), _FIVE, 0.1, 0.090, 56, 20 * _MILLION),
    Row("ReportNoisyMax3", partial(_value, two_sided=True), _FIVE, 0.1, 0.243, 59, 88 * _MILLION),
    Row("ReportNoisyMax4", partial(_value, two_sided=False), _FIVE, 0.1, 0.344, 60, 30 * _MILLION),
    Row("SVT1", _svt(1), _TEN, 0.1, 0.077, 118, 100 * _MILLION),
    Row("SVT2", _svt(2), _TEN, 0.1, 0.079, 148, 140 * _MILLION),
    Row("SVT3", _svt(3), _TEN, 0.1, 0.165, 150, 40 * _MILLION),
    Row("SVT4", _svt(4), _TEN, 0.1, 0.167, 123, 168 * _MILLION),
    Row("SVT5", _svt(5), _TEN, 0.1, 1.757, 56, 10 * _MILLION),
    Row("SVT6", _svt(6), _TEN, 0.1, 0.269, 91, 36 * _MILLION),
    Row("Rappor", _rappor, _SCALARS, 0.4, 0.292, 131, 100 * _MILLION),
    Row("OneTimeRappor", partial(rappor, f=0.95), _SCALARS, 0.8, 0.592, 80, 80 * _MILLION),
    Row("LaplaceParallel", release_20_times, _SCALARS, 0.1, 0.029, 96, 21 * _MILLION),
    Row("SVT34Parallel", both_sparse_vectors, _TEN, 0.1, 0.260, 341, 50 * _MILLION),
    Row("PrefixSum", partial(add_laplace, sums=True), _TEN, 0.1, 0.506, 92, 5 * _MILLION),
    Row("NumericalSVT", numerical_sparse_vector, _TEN, 0.1, 0.027, 142, 40 * _MILLION),
]  # fmt: skip
