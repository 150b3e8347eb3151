"""Small floating-point formats: rounding, the distribution of a rounded sum, all short words.

A format has `digits` binary digits and normal numbers from 2^emin to below 2^(2-emin), as in
IEEE 754. Its values are float64 whose last bits are zero, so the other bits are the index of a
value in a histogram over all of them.
"""

import numpy as np
from numpy.typing import NDArray

from dpnoise.kernels import Floats, Words, compile_kernel
from dpnoise.kernels.elementary import power_of_two

Indices = NDArray[np.int64]
Patterns = NDArray[np.uint32] | NDArray[np.uint16]


@compile_kernel
def nearest(x: float, digits: int, emin: int) -> float:
    """Return the value nearest to x, ties to even, in the format without an upper limit.

    Adding the spacing of the format at x times 1.5 * 2^52 rounds x to that spacing, to nearest and
    ties to even. Subtracting it again is exact.
    """
    exponent = ((np.float64(x).view(np.int64) >> np.int64(52)) & np.int64(0x7FF)) - np.int64(1023)
    exponent = min(max(exponent, np.int64(emin)), np.int64(2 - emin))
    shift = 1.5 * power_of_two(int(53 - digits + exponent))
    return (x + shift) - shift


@compile_kernel
def round_all(values: Floats, digits: int, emin: int) -> None:
    """Round all values in place; from 2^(2-emin) on they become infinite."""
    infinity = power_of_two(2 - emin)
    for i in range(values.size):
        rounded = nearest(values[i], digits, emin)
        values[i] = rounded if abs(rounded) < infinity else np.copysign(np.inf, rounded)


@compile_kernel
def widen(patterns: Patterns, digits: int, emin: int, out: Floats) -> None:
    """Decode the bits of a format's values to float64, exactly.

    A value is a whole number times the format's spacing, which is a normal float64. No operand is
    subnormal, so the result is right where the processor flushes subnormals to zero.
    """
    fraction_bits = np.int64(digits - 1)
    top = np.int64(3 - 2 * emin)  # The exponent of NaN and the infinities.
    for i in range(out.size):
        pattern = np.int64(patterns[i])
        exponent = (pattern >> fraction_bits) & top
        fraction = pattern & ((np.int64(1) << fraction_bits) - np.int64(1))
        whole = fraction | (min(exponent, np.int64(1)) << fraction_bits)
        spacing = power_of_two(int(max(exponent, np.int64(1)) + emin - digits))
        beyond = np.inf if fraction == 0 else np.nan
        size = np.float64(whole) * spacing if exponent < top else beyond
        out[i] = -size if pattern >> fraction_bits > top else size


@compile_kernel
def narrow(values: Floats, digits: int, emin: int, patterns: Patterns) -> None:
    """Round values within a format's range to nearest, ties to even, and write their bits.

    Zero is always +0.0. As in `widen`, no operand is subnormal.
    """
    below = power_of_two(emin)
    per_spacing = power_of_two(digits - 1 - emin)
    for i in range(values.size):
        rounded = nearest(values[i], digits, emin)
        size = abs(rounded)
        bits = np.float64(size).view(np.int64) >> np.int64(53 - digits)
        normal = bits - (np.int64(1022 + emin) << np.int64(digits - 1))
        # Selected before the conversion: a large number of spacings exceeds int64.
        subnormal = np.int64((size if size < below else 0.0) * per_spacing)
        pattern = subnormal if size < below else normal
        negative = np.int64(rounded < 0.0) << np.int64(digits - 1)
        patterns[i] = pattern + negative * np.int64(4 - 2 * emin)


@compile_kernel
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
    """Add the distribution of the rounded sum of two independent variables to a histogram.

    The histogram has two halves, for values >= 0 and for values < 0. Each starts with 0, continues
    with the magnitudes in order and ends with infinity. `places` is scratch space as long as b.
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


@compile_kernel
def all_words(first: int, variates: int, bits: int, words: Words) -> None:
    """Enumerate all elements made of words of `bits` bits: fill with those from `first` on.

    The top bits of element k's words are the digits of k in base 2^bits.
    """
    for i in range(words.size):
        k = first + i // variates
        digit = k >> (bits * (variates - 1 - i % variates))
        words[i] = np.uint64(digit) << np.uint64(64 - bits)
