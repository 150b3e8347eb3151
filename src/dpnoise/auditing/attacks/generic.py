"""Attacks without a model of the sampler: on the size of a release, on its bits, on the addition.

The sum of a value c and noise w has no bit below the last bit of w, and w near -c is as coarse as
c. So a small y = c + w is a multiple of about ulp(c)/2, while noise around zero can be finer.
`Precision` and `BitPatterns` learn this difference from releases.

`Feasibility` also knows the scale of the noise. Whatever draws z, most code then computes
fl(c + fl(s z)). Given the release q, the candidate c and the scale s, the floats w with
fl(c + w) = q are a few neighbours. Only some of them equal fl(s z) for a float z. If none does, c
is excluded for every sampler.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import OUTPUTS, SCALE, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.adapters import Privacy
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats, Integers
from dpnoise.kernels import compile_kernel

Real = np.floating

_CUTS: Final = 255  # Thresholds to try, at equal steps of probability.
# The range of exponents; exponents beyond it, and that of zero, are moved to its nearest end.
_MIN_EXPONENT: Final = -200
_MAX_EXPONENT: Final = 56
_SPAN: Final = _MAX_EXPONENT - _MIN_EXPONENT


@dataclass(frozen=True)
class Threshold(Attack):
    """Finds the threshold that releases of one value pass more often than those of the other.

    This is the simplest attack, and finds noise that is too small.
    """

    name = "threshold"
    access = OUTPUTS
    breaks = "noise that is too small, or has too light a tail, for its claim"
    source = "the definition of differential privacy"
    default_target = "half the noise"

    def target(self, **claims: float) -> Target:
        """Return Laplace noise of half the claimed scale."""
        scale, rng = Privacy(**claims, noise="laplace").scale(), np.random.default_rng()

        def release(value: float, n: int) -> Floats:
            return value + rng.laplace(scale=scale / 2, size=n)

        return Target(self.default_target, "laplace", scale, release)

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event beyond the threshold, on the side, with the largest expected bound."""
        y0, y1 = (np.sort(target(value, n)) for value in (value0, value1))
        cuts = np.quantile(np.concatenate([y0, y1]), np.arange(1, _CUTS + 1) / (_CUTS + 1))
        below0, below1 = (np.searchsorted(y, cuts) for y in (y0, y1))
        above0, above1 = (n - np.searchsorted(y, cuts, side="right") for y in (y0, y1))
        hits0, hits1 = np.concatenate([below0, above0]), np.concatenate([below1, above1])
        best = int(base.expected_bound(hits0, hits1, n, self.estimator).argmax())
        cut, above = float(cuts[best % _CUTS]), bool(best >= _CUTS)
        # The shortest threshold that no release of the sample lies before.
        short = (float(f"{cut:.{digits}g}") for digits in range(3, 18))
        counts = [int(np.searchsorted(y, cut)) for y in (y0, y1)]
        cut = next(x for x in short if [int(np.searchsorted(y, x)) for y in (y0, y1)] == counts)
        return base.threshold_event(cut, above=above)


def exponents(y: Releases) -> tuple[Integers, Integers]:
    """Return the exponents of the first and of the last set bit of each number.

    >>> exponents(np.array([1.0, 0.75, -12.0, 0.0]))
    (array([   0,   -1,    3, -200]), array([   0,   -2,    2, -200]))
    """
    numbers = np.ascontiguousarray(y, dtype=np.float64)
    first, last = np.empty((2, len(numbers)), dtype=np.int64)
    _find_exponents(numbers.view(np.int64), first, last)
    return first, last


@compile_kernel
def _find_exponents(words: Integers, first: Integers, last: Integers) -> None:
    bit = np.empty(1)
    word = bit.view(np.int64)
    for i in range(words.size):
        exponent, significand = words[i] >> 52 & 2047, words[i] & ((1 << 52) - 1)
        # Zero, subnormal numbers and NaN get the least exponent.
        no_exponent = exponent == 0 or (exponent == 2047 and significand != 0)
        whole = significand | 1 << 52
        bit[0] = whole & -whole
        high, low = exponent - 1023, exponent - 1075 + (word[0] >> 52) - 1023
        if no_exponent:
            high = low = _MIN_EXPONENT
        first[i] = min(max(high, _MIN_EXPONENT), _MAX_EXPONENT - 1)
        last[i] = min(max(low, _MIN_EXPONENT), _MAX_EXPONENT - 1)


@dataclass(frozen=True)
class Precision(Attack):
    """Finds a size below which one value's releases have finer bits than the other's."""

    name = "precision"
    access = OUTPUTS
    breaks = "noise added in floats: NumPy, diffprivlib, torch, JAX, Opacus"
    source = "Haney, Desfontaines, Hartman, Shrestha and Hay 2022"
    default_target = "numpy.laplace"

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return "|y| < 2^t and y is not a multiple of 2^g", for the best t and g."""
        hits0, hits1 = (_count_small_and_fine(target(value, n)) for value in (value0, value1))
        useful = np.flatnonzero(hits0 > hits1)
        if not useful.size:
            return base.impossible_event("no size of y has finer bits at one value")
        counts = hits0.flat[useful], hits1.flat[useful]
        best = useful[base.expected_bound(*counts, n, self.estimator).argmax()]
        t, g = (int(i) + _MIN_EXPONENT for i in np.unravel_index(best, hits0.shape))

        def holds(y: Releases) -> Flags:
            first, last = exponents(y)
            return np.asarray((first < t) & (last < g) & (y != 0))

        words = f"|y| < 2^{t} and y is not a multiple of 2^{g}"
        return Event(words, holds, source=f"finer_than(releases, {t}, {g})")


def _count_small_and_fine(y: Releases) -> Integers:
    """Count, for all t and g, the releases with |y| < 2^t that are not multiples of 2^g."""
    first, last = (exponent - _MIN_EXPONENT for exponent in exponents(y[y != 0]))
    counts = np.bincount(first * _SPAN + last, minlength=_SPAN**2)
    below = counts.reshape(_SPAN, _SPAN).cumsum(axis=0).cumsum(axis=1)
    return np.pad(below, ((1, 0), (1, 0)))[:-1, :-1].astype(np.int64)


@dataclass(frozen=True)
class BitPatterns(Attack):
    """Finds signs, exponents and trailing zeros that are likelier at one value than the other."""

    name = "bits"
    access = OUTPUTS
    breaks = "noise added in floats; also rare patterns that no rule was written for"
    source = "this library; in the spirit of Bichsel and others 2021 (DP-Sniper)"
    default_target = "numpy.laplace"

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the best set of patterns, taken in the order of their likelihood ratios."""
        y0, y1 = (bit_patterns(target(value, n)) for value in (value0, value1))
        cells, index = np.unique(np.concatenate([y0, y1]), return_inverse=True)
        hits0, hits1 = (np.bincount(half, minlength=len(cells)) for half in (index[:n], index[n:]))
        order = np.argsort(-(hits0 + 0.5) / (hits1 + 0.5), kind="stable")
        counts = hits0[order].cumsum(), hits1[order].cumsum()
        best = base.expected_bound(*counts, n, self.estimator).argmax()
        chosen = np.sort(cells[order[: best + 1]])

        def holds(y: Releases) -> Flags:
            return np.isin(bit_patterns(y), chosen)

        words = f"y has one of {len(chosen)} patterns of sign, exponent, last bit"
        patterns = ", ".join(map(repr, map(_pattern_of_code, chosen.tolist())))
        return Event(words, holds, source=f"has_bits(releases, {{{patterns}}})")


def bit_patterns(y: Releases) -> Integers:
    """Return a number for each pattern (sign, exponent of the first bit, exponent of the last)."""
    first, last = exponents(y)
    return ((y < 0) * _SPAN + (first - _MIN_EXPONENT)) * _SPAN + (last - _MIN_EXPONENT)


def _pattern_of_code(code: int) -> tuple[int, int, int]:
    """Return the sign and the exponents that a number of `bit_patterns` stands for."""
    negative, first = divmod(code // _SPAN, _SPAN)
    return negative, first + _MIN_EXPONENT, code % _SPAN + _MIN_EXPONENT


@compile_kernel
def _is_product(w: Real, s: Real) -> bool:
    """Return whether w = fl(s z) for some float z, which is the quotient or next to it."""
    z = w / s
    further, nearer = np.nextafter(z, z + z), np.nextafter(z, z - z)
    return bool(s * z == w or s * further == w or s * nearer == w)


@compile_kernel
def _feasible(q: Real, c: Real, s: Real) -> bool:
    """Return whether fl(c + fl(s z)) = q for some float z.

    The floats w with fl(c + w) = q are neighbours, one of them at most a step from fl(q - c). Of
    three neighbours at least one is a product, so seven around fl(q - c) decide.
    """
    infinity = s / (s - s)  # In the format of s: float32 stays float32.
    w = q - c
    for _ in range(3):
        w = np.nextafter(w, -infinity)
    for _ in range(7):
        if c + w == q and _is_product(w, s):
            return True
        w = np.nextafter(w, infinity)
    return False


@compile_kernel
def _are_feasible(releases: NDArray[Real], value: Real, scale: Real, out: Flags) -> None:
    for i in range(releases.size):
        out[i] = _feasible(releases[i], value, scale)


def flag_feasible(releases: Releases, value: float, scale: float) -> Flags:
    """Return for each release whether noise of this scale can give it, in the releases' format."""
    format_ = np.float64 if releases.dtype == np.float64 else np.float32
    return base.possible_by_kernel(_are_feasible, scale, dtype=format_)(releases, value)


@dataclass(frozen=True)
class Feasibility(Attack):
    """Excludes a value when no noise of the known scale could have led from it to the release."""

    name = "feasibility"
    access = SCALE
    breaks = "every sum of value and scaled noise in floats, whatever the sampler"
    source = "this library's docs; generalises Mironov 2012 and Haney and others 2022"
    default_target = "diffprivlib.Laplace"

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 is possible and value1 is not."""
        words = f"no float z has {value1:g} + {target.scale:g} z = y, rounded twice"
        possible = partial(flag_feasible, scale=target.scale)
        source = base.exclusion_source(self, target, value0, value1)
        return base.exclusion_event(words, possible, value0, value1, source=source)
