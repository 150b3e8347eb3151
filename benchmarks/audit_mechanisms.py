"""The mechanisms on which published auditors were measured, written anew from their papers.

Each is a function (data, n) -> n outputs in NumPy. Noise is rounded to a grid of 2^-20 before it is
added to whole numbers: the sum is then exact, and what is audited is the mechanism, not its floats.

- Lyu, Su and Li 2017, "Understanding the sparse vector technique", algorithms 1 to 6;
- Ding, Wang, Wang, Zhang and Kifer 2018, "Detecting violations of differential privacy";
- Balcer and Vadhan 2018, "Differential privacy on finite computers", algorithm 4.8;
- Erlingsson, Pihur and Korolova 2014, "RAPPOR";
- Wang, Ding, Wang, Kifer and Zhang 2019, "Proving differential privacy with shadow execution".

Parameters are those of Bichsel, Steffen, Bogunovic and Vechev 2021, "DP-Sniper".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.neighbours import vectors

Floats = NDArray[np.float64]
Mechanism = Callable[[Any, int], NDArray[Any]]
Draw = Callable[..., Floats]

EPSILON: Final = 0.1
FALSE: Final = -1000.0  # A query below the threshold, where others are answered by numbers.
ABORTED: Final = -1  # A query that was not answered any more, where others are by a bit.
_GRID: Final = 2.0**20
_UNEQUAL: Final = 4  # The algorithm of Lyu, Su and Li that does not split epsilon in halves.
_BLOCK: Final = 4  # Bytes that MurmurHash3 mixes at a time.

rng = np.random.Generator(np.random.SFC64())


def laplace(scale: float, *size: int) -> Floats:
    """Draw Laplace noise on the grid: an exponential of either sign."""
    sign = rng.random(size, np.float32) - np.float32(0.5)
    return np.asarray(np.copysign(exponential(scale, *size), sign))


def exponential(scale: float, *size: int) -> Floats:
    """Draw exponential noise on the grid."""
    noise = rng.standard_exponential(size)
    noise *= scale * _GRID
    np.rint(noise, out=noise)
    noise /= _GRID
    return noise


def noisy(answers: Any, n: int, scale: float, draw: Draw = laplace) -> Floats:
    """Add noise to each of some numbers: n rows, one column after the other in memory."""
    known = np.atleast_1d(np.asarray(answers, dtype=np.float64))
    noise = draw(scale, len(known), n)
    noise += known[:, None]
    return noise.T


# One number, and histograms ----------------------------------------------------------------------


def added(data: Any, n: int, scale: float = 1 / EPSILON) -> Floats:
    """Laplace noise on each of some numbers."""
    return noisy(data, n, scale)


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
    drawn = rng.integers(1, total, size=n, endpoint=True)
    return np.searchsorted(np.array([*below, *above, total]), drawn).astype(np.float64)


# The largest of noisy answers --------------------------------------------------------------------


def noisy_max(answers: Floats, n: int, *, draw: Draw, value: bool) -> NDArray[Any]:
    """Report the place of the largest noisy answer, or wrongly its value."""
    rows = noisy(answers, n, 2 / EPSILON, draw)
    largest, place = rows[:, 0].copy(), np.zeros(n, dtype=np.int8)
    for j, column in enumerate(rows.T):
        place[column > largest] = j
        np.maximum(largest, column, out=largest)
    return largest if value else place


# Sparse vectors ----------------------------------------------------------------------------------


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
    limit = threshold + laplace(threshold_scale, n)
    size = len(answers), n
    result = np.full(size, np.nan) if numbers else np.full(size, ABORTED, dtype=np.int8)
    running, found = np.arange(n), np.zeros(n, dtype=np.int8)  # Those that have not aborted.
    for answer, column in zip(answers, result, strict=True):
        asked = answer + (laplace(query_scale, len(running)) if query_scale else 0.0)
        above = asked >= limit
        column[running] = np.where(above, asked, FALSE) if numbers else above
        if anew:
            limit[above] = threshold + laplace(threshold_scale, int(above.sum()))
        if cutoff is not None:
            found += above
            left = found < cutoff
            running, found, limit = running[left], found[left], limit[left]
    return result.T


def numerical_sparse_vector(
    answers: Floats, n: int, cutoff: int = 2, threshold: float = 1.0
) -> Floats:
    """Answer the first queries above a noisy threshold with new noise."""
    limit = threshold + laplace(3 / EPSILON, n)
    result = np.full((len(answers), n), np.nan)
    running, found = np.arange(n), np.zeros(n, dtype=np.int8)
    for answer, column in zip(answers, result, strict=True):
        above = answer + laplace(6 * cutoff / EPSILON, len(running)) >= limit
        column[running] = 0.0
        column[running[above]] = answer + laplace(3 * cutoff / EPSILON, int(above.sum()))
        found += above
        left = found < cutoff
        running, found, limit = running[left], found[left], limit[left]
    return result.T


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


# Reports of bits, and sums -----------------------------------------------------------------------


def rappor(value: int, n: int, f: float, answer: tuple[float, float] | None = None) -> NDArray[Any]:
    """Report a Bloom filter of 20 bits and 4 hashes, each bit random with probability f.

    `answer` are the probabilities of reporting 1 for a bit that is 0 and for one that is 1.
    """
    bits = np.zeros(20, dtype=np.bool_)
    bits[[murmur3(str(value).encode(), seed) % 20 for seed in range(4)]] = True
    one = np.where(bits, 1 - f / 2, f / 2).astype(np.float32)[:, None]
    kept = rng.random((20, n), np.float32) < one
    if answer is None:
        return kept.T
    below, above = np.array(answer, dtype=np.float32)
    return np.asarray(rng.random((20, n), np.float32) < np.where(kept, above, below)).T


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


def prefix_sums(answers: Floats, n: int) -> Floats:
    """Release the sums of the first noisy answers."""
    return noisy(answers, n, 1 / EPSILON).T.cumsum(axis=0).T


def parallel(value: float, n: int) -> Floats:
    """Release one number 20 times, each with noise for a twentieth of epsilon."""
    return noisy(np.full(20, value), n, 20 / EPSILON)


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
    Row("Laplace", added, _SCALARS, 0.1, 0.092, 20, 4 * _MILLION),
    Row("TruncatedGeometric", truncated_geometric, _SCALARS, _GEOMETRIC, 0.109, 18, 4 * _MILLION),
    Row("NoisyHist1", added, _one_moved(5), 0.1, 0.096, 35, 4 * _MILLION),
    Row("NoisyHist2", partial(added, scale=EPSILON), _one_moved(5), 0.1, 4.6, 38, 2 * _MILLION),
    Row("ReportNoisyMax1", partial(_place, draw=laplace), _FIVE, 0.1, 0.085, 59, 20 * _MILLION),
    Row("ReportNoisyMax2", partial(_place, draw=exponential), _FIVE, 0.1, 0.090, 56, 20 * _MILLION),
    Row("ReportNoisyMax3", partial(_value, draw=laplace), _FIVE, 0.1, 0.243, 59, 30 * _MILLION),
    Row("ReportNoisyMax4", partial(_value, draw=exponential), _FIVE, 0.1, 0.344, 60, 10 * _MILLION),
    Row("SVT1", _svt(1), _TEN, 0.1, 0.077, 118, 40 * _MILLION),
    Row("SVT2", _svt(2), _TEN, 0.1, 0.079, 148, 40 * _MILLION),
    Row("SVT3", _svt(3), _TEN, 0.1, 0.165, 150, 20 * _MILLION),
    Row("SVT4", _svt(4), _TEN, 0.1, 0.167, 123, 60 * _MILLION),
    Row("SVT5", _svt(5), _TEN, 0.1, 1.757, 56, 10 * _MILLION),
    Row("SVT6", _svt(6), _TEN, 0.1, 0.269, 91, 10 * _MILLION),
    Row("Rappor", _rappor, _SCALARS, 0.4, 0.292, 131, 40 * _MILLION),
    Row("OneTimeRappor", partial(rappor, f=0.95), _SCALARS, 0.8, 0.592, 80, 30 * _MILLION),
    Row("LaplaceParallel", parallel, _SCALARS, 0.1, 0.029, 96, 8 * _MILLION),
    Row("SVT34Parallel", both_sparse_vectors, _TEN, 0.1, 0.260, 341, 30 * _MILLION),
    Row("PrefixSum", prefix_sums, _TEN, 0.1, 0.506, 92, 4 * _MILLION),
    Row("NumericalSVT", numerical_sparse_vector, _TEN, 0.1, 0.027, 142, 12 * _MILLION),
]  # fmt: skip
