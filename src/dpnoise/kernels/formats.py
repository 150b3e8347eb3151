"""Small floating-point formats: rounding to one, the law of a rounded sum, and all short words.

A format has `digits` binary digits and normal numbers from 2^emin to below 2^(2-emin), as IEEE 754
has it. Its values are float64 whose last bits are zero, so in a histogram over all of them the
place of a value is read off the other bits.
"""

import numpy as np
from numpy.typing import NDArray

from dpnoise.kernels import compiled
from dpnoise.kernels.elementary import power_of_two

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@compiled
def nearest(x: float, digits: int, emin: int) -> float:
    """Return the value nearest to x, ties to even, in the format without an upper end.

    The spacing of the format at x, times 1.5 * 2^52, is so large a float64 that adding it rounds
    x at that spacing, to nearest and ties to even; taking it off again is exact.
    """
    exponent = ((np.float64(x).view(np.int64) >> np.int64(52)) & np.int64(0x7FF)) - np.int64(1023)
    exponent = min(max(exponent, np.int64(emin)), np.int64(2 - emin))
    shift = 1.5 * power_of_two(int(53 - digits + exponent))
    return (x + shift) - shift


@compiled
def round_all(values: Floats, digits: int, emin: int) -> None:
    """Round each of the values, in place; from 2^(2-emin) on they become infinite."""
    infinity = power_of_two(2 - emin)
    for i in range(values.size):
        rounded = nearest(values[i], digits, emin)
        values[i] = rounded if abs(rounded) < infinity else np.copysign(np.inf, rounded)


@compiled
def add_laws(
    a: Floats,
    weights_a: Floats,
    b: Floats,
    weights_b: Floats,
    digits: int,
    emin: int,
    places: Indices,
    out: Floats,
) -> None:
    """Add the law of the rounded sum of two independent variables to a histogram.

    The histogram has two halves, of values >= 0 and of values < 0. In each, 0 comes first, then the
    sizes in order, then infinity. `places` is as long as b: LLVM vectorises the loop that fills it.
    """
    half = out.size // 2
    before = (np.int64(1024 + emin - digits) << np.int64(digits - 1)) - np.int64(1)
    for i in range(a.size):
        for j in range(b.size):
            total = nearest(a[i] + b[j], digits, emin)
            size = np.float64(abs(total)).view(np.int64) >> np.int64(53 - digits)
            place = min(max(size - before, np.int64(0)), np.int64(half - 1))
            places[j] = place + half * np.int64(total < 0.0)
        for j in range(b.size):
            out[places[j]] += weights_a[i] * weights_b[j]


@compiled
def all_words(first: int, variates: int, bits: int, words: Words) -> None:
    """Fill with the words of the elements from `first` on, in a count of all words of `bits` bits.

    Element k has the digits of k in base 2^bits as the top bits of its words.
    """
    for i in range(words.size):
        k = first + i // variates
        digit = k >> (bits * (variates - 1 - i % variates))
        words[i] = np.uint64(digit) << np.uint64(64 - bits)
