"""Check `binade`, `reciprocal_bound` and other functions that use the bits of a float or a word.

Gappa knows nothing of bits, so this module checks by running the functions what the statements
assume of them. It runs them on every exponent and at the ends of every piece on which they are
linear, which covers all floats. It runs those on words at the ends of each range and on random
words.
"""

import math
import random
from collections.abc import Iterator
from fractions import Fraction
from struct import pack, unpack

import numpy as np

from dpnoise.kernels import certified, elementary

LEAST_F = Fraction(float(np.int64(elementary.SQRT_HALF_BITS).view(np.float64)))
_FRACTION_COUNT = 2**52
_EXPONENTS = range(1, 2047)
_SQRT_HALF_FRACTION = elementary.SQRT_HALF_BITS % _FRACTION_COUNT  # The fraction of sqrt(1/2).
_RANDOM = random.Random(53)


def float_of(bits: int) -> float:
    """Return the float with these bits."""
    number: float = unpack("<d", pack("<Q", bits))[0]
    return number


def normal_floats() -> Iterator[float]:
    """Yield for every exponent both ends, the neighbours of sqrt(1/2) and a random float.

    Both functions subtract bits: on floats of one exponent, and on either side of sqrt(1/2), their
    result is linear in the fraction. A linear or monotone property that holds at both ends of such
    a piece holds on all of it.
    """
    for exponent in _EXPONENTS:
        for fraction in (
            0,
            1,
            _SQRT_HALF_FRACTION - 1,
            _SQRT_HALF_FRACTION,
            _SQRT_HALF_FRACTION + 1,
            _FRACTION_COUNT - 1,
            _RANDOM.getrandbits(52),
        ):
            yield float_of(exponent * _FRACTION_COUNT + fraction)


def binade_splits_exactly() -> None:
    """Check that x = 2^e f, with f from the float below sqrt(1/2) to twice that float."""
    for x in normal_floats():
        e, f = elementary.binade(x)
        assert Fraction(float(f)) * Fraction(2) ** int(e) == Fraction(x), f"binade({x!r})"
        assert LEAST_F <= Fraction(float(f)) < 2 * LEAST_F, f"binade({x!r})"


def reciprocal_is_bounded() -> None:
    """Check that reciprocal_bound(2^e m) = 2^-e (3-m)/2, and 2^1023 at 0.

    Its product with 2^e m is between 1 and 1.125: (3-m) m/2 - 1 = (m-1)(2-m)/2 lies between 0 and
    1/8 on [1, 2].
    """
    assert certified.reciprocal_bound(0.0) == 2.0**1023, "reciprocal_bound(0)"
    for x in normal_floats():
        if not 2.0**-1000 <= x < 2.0**1000:
            continue  # The result would not be normal; the forms never get this large or small.
        exact = Fraction(x)
        e = exact.numerator.bit_length() - exact.denominator.bit_length()
        e -= exact < Fraction(2) ** e
        chord = (3 - exact / Fraction(2) ** e) / 2 / Fraction(2) ** e
        assert Fraction(float(certified.reciprocal_bound(x))) == chord, f"reciprocal_bound({x!r})"


def powers_of_two_are_exact() -> None:
    """Check that power_of_two(k) = 2^k for every k."""
    for k in range(-1022, 1024):
        assert Fraction(float(elementary.power_of_two(k))) == Fraction(2) ** k, f"2^{k}"


def words() -> Iterator[int]:
    """Yield every power of two, its neighbours, and random words of every length."""
    for k in range(65):
        for word in (2**k - 1, 2**k, 2**k + 1, _RANDOM.getrandbits(64) >> min(k, 63)):
            yield word % 2**64


def words_are_complemented() -> None:
    """Check that ones_after(word, 64) is 2^64 - 1 - word, and that as_unsigned(word) is word."""
    for word in words():
        assert int(certified.ones_after(np.uint64(word), 64)) == 2**64 - 1 - word, "ones_after"
        assert int(elementary.as_unsigned(np.uint64(word))) == word, "as_unsigned"


def signs_are_set() -> None:
    """Check that with_sign_of(word, m) is m if the first bit is 0, and -m if it is 1."""
    for word in words():
        for magnitude in (0.0, 2.0**-64, 1.5, 44.0):
            signed = float(elementary.with_sign_of(np.uint64(word), magnitude))
            assert signed == (-magnitude if word >> 63 else magnitude), "with_sign_of"


def uncertain_results_are_nan() -> None:
    """Check that nan_unless(x, certain) is exactly x if it is certain, else a NaN."""
    for x in (0.0, -0.0, 2.0**-1074, 1.5, -1.5, 2.0**1023, math.inf, -math.inf):
        result = np.float64(elementary.nan_unless(x, True))  # noqa: FBT003
        assert result.tobytes() == np.float64(x).tobytes(), "nan_unless: certain"
        assert math.isnan(elementary.nan_unless(x, False)), "nan_unless: not certain"  # noqa: FBT003


NAMES = {"binade", "reciprocal_bound", "power_of_two", "ones_after", "as_unsigned", "with_sign_of"}
ALL = (
    binade_splits_exactly,
    reciprocal_is_bounded,
    powers_of_two_are_exact,
    words_are_complemented,
    signs_are_set,
)
