"""Exact leakage at reduced precision: the law of a sampler in a small format, and its delta.

A law comes from all uniforms of a sampler, so it has no sampling error. A probability is a number
of inputs over 2^(n*p). If n*p <= 53, each probability and each sum of them is exactly a float64.
The law gives the probability of every output of fl(x + s*z) at x and at x', and these give the
curve delta(epsilon): see docs/leakage.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpnoise.core.arrays import Floats, Integers
from dpnoise.core.entropy import Words
from dpnoise.core.errors import check_choice, check_integer, reject
from dpnoise.core.kernel_table import formats
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.noise import forms
from dpnoise.noise.distributions import Distribution

Rounding = Callable[[Floats | float], Floats]
Draw = Callable[[Words, Floats], None]  # Fills the floats from the words.

_EXACT_BITS: Final = 53  # A probability with more bits would be rounded.
# The most bits of uniforms for which all outputs can be enumerated in seconds: of all uniforms
# together or, where laws of summands are added, of one summand.
MOST_BITS: Final = 24
_MOST_SUMMED_BITS: Final = 32  # Most bits of two summands whose sums can be counted in a histogram.
_LARGEST_HISTOGRAM: Final = 2**20  # Cells up to which a histogram is worth its memory.
_CHUNK: Final = 2**17  # Outputs that a thread computes at once, so that memory stays bounded.
# Values of one law that are added to the other at a time. Small blocks divide the work evenly.
_ROWS: Final = 64
_UNIFORMS_IN_TWO_PAIRS: Final = 4
_STEPWISE_FORMS: Final = ("inverse", "exponentials", "theorem", "pairs")
_MOST_EPSILON: Final = 700.0  # Above this, e^epsilon overflows float64.


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with IEEE 754's subnormals, infinities and ties to even.

    The significand has `digits` binary digits, including the implicit one. The smallest normal
    number is 2^emin, and all numbers are below 2^(2-emin). emin is at most -4, so that no sampler's
    noise overflows.

    Examples
    --------
    >>> float(FLOAT16.round(0.1)), float(Format("tiny", digits=2, emin=-4).round(5.1))
    (0.0999755859375, 6.0)
    """

    name: str
    digits: int
    emin: int

    def __post_init__(self) -> None:
        check_integer("digits", self.digits, least=2, most=24)
        check_integer("emin", self.emin, least=-126, most=-4)

    def round(self, x: Floats | float) -> Floats:
        """Return the nearest values of the format.

        A sum, product or root of values of the format may be computed in float64 and then rounded:
        the result is rounded correctly, because 53 >= 2 * digits + 2 (Figueroa 1995).
        """
        rounded = np.array(x, dtype=np.float64)
        formats.round_all(rounded.reshape(-1), self.digits, self.emin)
        return rounded

    @property
    def is_small(self) -> bool:
        """Whether a histogram over the whole format is worth its memory."""
        return (self.digits + 1 - 2 * self.emin) << (self.digits - 1) < _LARGEST_HISTOGRAM

    def magnitudes(self) -> Floats:
        """Return 0, the magnitude of each histogram cell, and infinity.

        Below 2^emin some cells lie between the numbers of the format; they stay empty.
        """
        exponents = np.arange(self.emin - self.digits + 1, 2 - self.emin)
        steps = 2 ** (self.digits - 1)
        numbers = np.multiply.outer(2.0**exponents, 1 + np.arange(steps) / steps)
        return np.concatenate([[0.0], numbers.ravel(), [math.inf]])


FLOAT16: Final = Format("float16", 11, -14)
BFLOAT16: Final = Format("bfloat16", 8, -126)
FLOAT32: Final = Format("float32", 24, -126)


@dataclass(frozen=True, eq=False)
class Law:
    """A distribution on finitely many distinct values, in increasing order.

    Zeros of both signs are one value, because adding either gives the same sum.
    """

    values: Floats
    probabilities: Floats


def merge(values: Floats, probabilities: Floats) -> Law:
    """Return the law of values that may repeat, with their probabilities added."""
    order = np.argsort(values)
    ordered = values[order] + 0.0  # Adding 0.0 turns -0.0 into 0.0.
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return Law(ordered[first], np.add.reduceat(probabilities[order], first))


def release_law(law: Law, value: float, fmt: Format, scale: float = 1.0) -> Law:
    """Return the law of fl(value + fl(scale * z)), where z has the given law.

    Examples
    --------
    >>> release_law(Law(np.array([0.001]), np.array([1.0])), 1.0, FLOAT16).values.tolist()
    [1.0009765625]
    """
    for name, number in (("value", value), ("scale", scale)):
        if float(fmt.round(number)) != number:
            reject(name, number, f"be a value of {fmt.name}")
    return merge(fmt.round(value + fmt.round(scale * law.values)), law.probabilities)


def delta(epsilon: float, law0: Law, law1: Law) -> float:
    """Return the smallest delta with P0(S) <= e^epsilon P1(S) + delta for every set S of outputs.

    It is the sum of max(0, P0 - e^epsilon P1) over the outputs. Exchanging the laws gives a
    different delta; a private mechanism keeps both small.

    Examples
    --------
    >>> noise = stepwise_law("inverse", variates=1, precision=11, fmt=FLOAT16)
    >>> x, y = (release_law(noise, value, FLOAT16) for value in (0.0, 1.0))
    >>> round(delta(1.0, x, y), 3)
    0.805
    """
    if not 0 <= epsilon <= _MOST_EPSILON:
        reject("epsilon", epsilon, f"be between 0 and {_MOST_EPSILON:g}")
    values = np.union1d(law0.values, law1.values)
    difference = np.zeros(len(values))
    difference[np.searchsorted(values, law0.values)] = law0.probabilities
    difference[np.searchsorted(values, law1.values)] -= math.exp(epsilon) * law1.probabilities
    return float(np.maximum(difference, 0).sum())


def _summand(form: str, U: Floats, fl: Rounding) -> Floats:
    """Return a summand of a form for all uniforms, with every operation rounded by `fl`."""
    if form == "inverse":
        # Equation (2), with the mirror image log(1 - 2U) of log(2U), as in docs/samplers.md.
        return np.where(U < 1 / 2, 1.0, -1.0) * fl(np.log(fl(1 - fl(2 * (U % 0.5)))))
    logarithm = fl(np.log(fl(1 - U)))
    if form == "exponentials":
        return -logarithm
    # Theorem 5.1 is log(1 - U) cos(pi U'), a member of a pair sqrt(-log(1 - U)) cos(pi U').
    radius = logarithm if form == "theorem" else fl(np.sqrt(-logarithm))
    cosine = fl(np.cos(fl(fl(math.pi) * U)))  # As the paper's program computes it.
    return fl(np.multiply.outer(radius, cosine))


_FORMS: Final = {form.name: form for form in (*forms.LAPLACE, *forms.GAUSSIAN)}


def stepwise_law(form: str, variates: int, precision: int, fmt: Format) -> Law:
    """Return the law of a sampler on a machine that rounds every operation to the format.

    Logarithm and cosine are computed in float64 and rounded again. For uniforms of 11 bits in
    float16 the tests prove that this gives the nearest value.

    Parameters
    ----------
    form
        "inverse", "exponentials", "theorem" or "pairs" (docs/samplers.md). The cosine is the
        paper's, without Remark 1.
    variates, precision
        The number of uniforms for each output, and of their bits, at most `fmt.digits`.

    Examples
    --------
    >>> law = stepwise_law("theorem", 4, 5, FLOAT16)
    >>> float(law.probabilities.sum())
    1.0
    """
    check_choice("form", form, _STEPWISE_FORMS)
    summands = _FORMS[form].summands(check_integer("variates", variates, least=1))
    most = min(_EXACT_BITS, MOST_BITS * summands) if fmt.is_small else MOST_BITS
    n, p = _check_size(form, variates, precision, fmt, most)
    values = _summand(form, np.arange(2.0**p) / 2.0**p, fmt.round).ravel()
    summand = total = merge(values, np.full(values.size, 1 / values.size))
    if form == "exponentials":
        summand = Law(-summand.values, summand.probabilities)
    for _ in range(1, summands):
        total = _sum(total, summand, fmt)
    if form == "pairs":
        norm = fmt.round(2 / math.sqrt(n))
        total = merge(fmt.round(norm * total.values), total.probabilities)
    return total


def sampler_law(form: str, variates: int, precision: int, fmt: Format) -> Law:
    """Return the law of dpnoise's own sampler: its kernel in float64, rounded once to the format.

    The kernel runs on all words. For "theorem" and "pairs" with four uniforms, it runs on one pair
    of uniforms, and the law of the sum of two pairs is computed from that. Form, variates and
    precision are those of `Generator.laplace` and `Generator.normal`.

    Examples
    --------
    >>> float(sampler_law("inverse", 1, 3, FLOAT32).values[-1])
    1.3862943649291992
    """
    check_choice("form", form, _FORMS)
    is_sum_of_pairs = variates == _UNIFORMS_IN_TWO_PAIRS and form in {"theorem", "pairs"}
    most = _MOST_SUMMED_BITS if is_sum_of_pairs and fmt.is_small else MOST_BITS
    n, p = _check_size(form, variates, precision, fmt, most)
    kernel, parameters = _FORMS[form].kernel(), _FORMS[form].parameters

    def draw(words: Words, out: Floats) -> None:
        kernel(words, n, p, *parameters, 1.0, np.empty(words.size), out)

    if is_sum_of_pairs:
        # With zeros for the first two words V1 is 1 and its logarithm 0: one pair remains.
        pair = enumerate_law(draw, n, p, 4**p)
        return _sum(pair, pair, fmt)
    law = enumerate_law(draw, n, p, 2 ** (n * p))
    return merge(fmt.round(law.values), law.probabilities)


def ideal_law(distribution: Distribution, fmt: Format) -> Law:
    """Return the law of perfect noise, symmetric about 0, rounded once to the format.

    It is the limit of samplers with more and longer uniforms. Its probabilities are not counts:
    they come from the distribution function, with the accuracy of float64.

    Examples
    --------
    >>> from dpnoise.noise.distributions import Laplace
    >>> float(ideal_law(Laplace(), BFLOAT16).probabilities.sum())
    1.0
    """
    if not fmt.is_small:
        reject("fmt", fmt.name, "be a format with fewer numbers")
    values = np.unique(fmt.round(np.concatenate([-fmt.magnitudes(), fmt.magnitudes()])))
    borders = (values[1:-2] + values[2:-1]) / 2
    # Numbers beyond the last border, at the spacing of the largest numbers, round to infinity.
    end = borders[-1] + values[-2] - values[-3]
    return Law(values, cell_probabilities(distribution, np.concatenate([[-end], borders, [end]])))


def cell_probabilities(distribution: Distribution, borders: Floats) -> Floats:
    """Return the probability of each cell between borders, including the two outer cells.

    The right half is computed as the mirror image of the left one, where the distribution function
    is small and its differences are accurate.
    """
    ends = np.concatenate([[-math.inf], borders, [math.inf]])
    below = np.diff(distribution.cdf(ends))
    above = -np.diff(distribution.cdf(-ends))
    return np.asarray(np.where(ends[:-1] < 0, below, above))


def _check_size(
    form: str, variates: int, precision: int, fmt: Format, most_bits: int
) -> tuple[int, int]:
    """Return n and p, or raise if p is too large for the format or for an enumeration."""
    _, n = forms.choose_form([_FORMS[form]], form, variates, at_least=1)
    p = check_integer("precision", precision, least=1, most=fmt.digits)
    if n * p > most_bits:
        reject("precision", p, f"be at most {most_bits // n} for {n} uniforms")
    return n, p


def _sum(a: Law, b: Law, fmt: Format) -> Law:
    """Return the law of the sum of two independent variables, added in float64, then rounded."""
    if fmt.is_small:
        return _sum_by_histogram(a, b, fmt)
    sums = fmt.round(np.add.outer(a.values, b.values))
    return merge(sums.ravel(), np.multiply.outer(a.probabilities, b.probabilities).ravel())


def _sum_by_histogram(a: Law, b: Law, fmt: Format) -> Law:
    """Return the law of the sum, from a histogram of all pairs of values over the whole format.

    If both laws are the same object, a pair and its mirror image are counted together.
    """
    kernel, magnitudes = formats.add_laws, fmt.magnitudes()
    histograms: list[Floats] = []

    def work(first: int, last: int) -> None:
        histogram = np.zeros(2 * len(magnitudes))
        cell_indices = np.empty(b.values.size, dtype=np.int64)

        def count(rows: slice, others: slice, times: float) -> None:
            of_a = a.values[rows], times * a.probabilities[rows]
            of_b = b.values[others], b.probabilities[others]
            kernel(*of_a, *of_b, fmt.digits, fmt.emin, cell_indices[: of_b[0].size], histogram)

        if a is b:
            for start in range(first, last, _ROWS):
                stop = min(start + _ROWS, last)
                count(slice(start, stop), slice(start, stop), 1.0)
                count(slice(start, stop), slice(stop, None), 2.0)
        else:
            count(slice(first, last), slice(None), 1.0)
        histograms.append(histogram)

    run_in_parallel(work, a.values.size, _ROWS, cores())
    mass = np.sum(histograms, axis=0)
    positive = mass > 0
    return merge(np.concatenate([magnitudes, -magnitudes])[positive], mass[positive])


def enumerate_law(draw: Draw, n: int, bits: int, count: int) -> Law:
    """Return the law of a kernel's output over the first `count` inputs.

    An input is n words, each with `bits` bits.
    """
    fill = formats.all_words
    counted: list[tuple[Floats, Integers]] = []

    def work(first: int, last: int) -> None:
        for start in range(first, last, _CHUNK):
            out = np.empty(min(_CHUNK, last - start))
            words = np.empty(out.size * n, dtype=np.uint64)
            fill(start, n, bits, words)
            words.flags.writeable = False
            draw(words, out)
            counted.append(np.unique(out, return_counts=True))

    run_in_parallel(work, count, _CHUNK, cores())
    values, counts = (np.concatenate(parts) for parts in zip(*counted, strict=True))
    return merge(values, counts / count)
