"""Discrete Laplace noise for integers: P(X = k) is proportional to exp(-|k|/scale).

For sensitivity 1 and epsilon 1, its error is a ninth below that of rounded Laplace noise. X is
floor(scale E1) - floor(scale E2), with E1 and E2 independent and exponential. Each half is computed
exactly and clamped to 62 bits. The noise is drawn before it is added to a value.

docs/exact-release-proof.md derives the distribution, the words of the key stream for each half, and the
bound on the effect of clamping the halves.
"""

import math
from typing import Final

import numpy as np

from dpnoise.core import reference
from dpnoise.core.arrays import Array, Integers, check_rounding_mode
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_integer,
    check_probability,
    is_integer,
    scrub_traceback,
)
from dpnoise.core.parallel import first_words
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import calibration, exact
from dpnoise.release.containers import Value, release_like
from dpnoise.release.mechanism import Mechanism, check_all_positive, require_named_arguments

# The largest scale that a mechanism can have. A half of the noise exceeds LARGEST_HALF only if its
# exponential variate exceeds 2^62 / 2^55 = 128, which has a probability below exp(-128).
LARGEST_SCALE: Final = 2.0**55
# Halves are clamped to this, so that their difference is an int64.
LARGEST_HALF: Final = 2**62
_INT64: Final = np.iinfo(np.int64)
_ROUND: Final = 2.0**-50  # More than the roundings of a product and a difference.


class DiscreteLaplaceMechanism(Mechanism):
    """The discrete Laplace mechanism for integers: epsilon-differential privacy.

    The noise of one number differs from the ideal distribution by at most 2 exp(-2^62/scale) in
    total variation, because each half is clamped to 2^62. This is below 2^-183 for every allowed
    scale, and 2 exp(-2^30) at a scale of 2^32. Strictly, N released numbers are (epsilon, delta)-
    differentially private with delta = (1 + e^epsilon) N 2^-183: see docs/exact-release-proof.md.

    Parameters
    ----------
    epsilon
        The privacy loss, at least sensitivity / 2^55. Smaller is more private.
    sensitivity
        The largest total change of the integers when one person's data changes (L1).
    lower
        The smallest result; smaller ones are clamped to it. None does not clamp.

    Attributes
    ----------
    scale
        The smallest float that is at least sensitivity / epsilon; at most 2^55.

    Examples
    --------
    >>> mechanism = DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    >>> mechanism.scale, mechanism.error(0.95)
    (1.0, 3)
    >>> isinstance(mechanism.release(42), int)
    True
    >>> len(mechanism.release([42, 17, 4]))
    3
    """

    epsilon: float
    sensitivity: float
    lower: int | None
    scale: float

    @require_named_arguments()
    def __init__(self, *, epsilon: float, sensitivity: float, lower: float | None = None) -> None:
        asked = check_all_positive(epsilon=epsilon, sensitivity=sensitivity)
        scale = calibration.check_scale(calibration.laplace_scale(**asked))
        if scale > LARGEST_SCALE:
            raise ArgumentError(
                f"epsilon={asked['epsilon']!r} is too small for a count of "
                f"sensitivity={asked['sensitivity']!r}: its noise would have scale {scale:.3g}, "
                "and 2^55 is the largest that is supported. Use an epsilon of at least "
                f"{asked['sensitivity'] / LARGEST_SCALE!r} for it."
            )
        if lower is not None:
            lower = int(lower) if isinstance(lower, float) and lower.is_integer() else lower
            lower = check_integer("lower", lower, least=int(_INT64.min), most=int(_INT64.max))
        self._set_attributes({**asked, "lower": lower}, scale=scale)

    def error(self, confidence: float = 0.95) -> int:
        """Return the smallest k with |X| <= k with this probability: P(|X| > k) = 2 a^(k+1)/(1+a).

        Here a is exp(-1/scale). The result is increased by more than the rounding errors.
        """
        left = 1 - check_probability("confidence", confidence)
        scales = math.log(2 / left) - math.log1p(math.exp(-1 / self.scale))
        return max(math.ceil(self.scale * scales * (1 + 2.0**-48)) - 1, 0)

    @scrub_traceback
    def release(self, value: Value, rng: Generator | None = None) -> Value:
        """Return integers plus noise.

        Parameters
        ----------
        value
            The secret: an int, a NumPy integer, or an array, a list, a tuple or a pandas or polars
            Series of integers, all from -2^63 to 2^63 - 1. Every number gets independent noise;
            `sensitivity` is that of all of them together. A Python int takes a time that depends
            on its number of digits; an array does not.
        rng
            A Generator; by default a new one.

        Returns
        -------
        The same kind
            Arrays and Series as int64, single integers as a Python int. Results saturate at the
            ends of int64.
        """
        rng = check_generator(rng)
        if is_integer(value):
            return int(self._release_array(_int64(np.array(int(value), dtype=object)), rng))
        if isinstance(value, bool):
            raise ArgumentTypeError("value must be an integer, got a bool: release int(value).")
        if isinstance(value, float | np.floating):
            raise ArgumentTypeError(
                "value must be an integer, got a float. For floats, use LaplaceMechanism."
            )
        return release_like(value, lambda array: self._release_array(_int64(array), rng))

    def _release_array(self, values: Integers, rng: Generator) -> Integers:
        noise = self._noise(values.size, rng).reshape(values.shape)
        released = _add_saturating(values, noise)
        return released if self.lower is None else np.maximum(released, self.lower)

    def _noise(self, size: int, rng: Generator) -> Integers:
        """Draw X for each number: number i has the halves i and size + i of one key."""
        halves = self._halves(2 * size, rng)
        return halves[:size] - halves[size:]

    def _halves(self, size: int, rng: Generator) -> Integers:
        """Return min(floor(scale E), LARGEST_HALF), half i of word i of a fresh key."""
        check_rounding_mode()
        key = rng.source.key()
        words = first_words(key, size)
        noise, errors = np.empty(size), np.empty(size)
        form = exact.EXPONENTIAL
        form.kernel()(words, reference.WORD_BITS, noise, errors)
        with np.errstate(all="ignore"):
            low, high = (
                np.floor(self.scale * (noise + sign * (errors + _ROUND * noise)))
                for sign in (-1.0, 1.0)
            )
        halves = np.clip(low, 0, LARGEST_HALF).astype(np.int64)
        for i in np.flatnonzero(~(low == high)).tolist():
            rows = exact.rows_from_key(key, i, words[i : i + 1])
            exact_half = reference.released_whole(form.formula, rows, -0.5, self.scale, 1.0)
            halves[i] = min(exact_half, LARGEST_HALF)
        return halves


def _int64(values: Array) -> Integers:
    """Return integers as int64; raise if they are floats, or if int64 cannot hold their type."""
    if values.dtype == object:  # A list of integers.
        try:
            return values.astype(np.int64)
        except OverflowError:
            raise ArgumentError("Every integer must be from -2^63 to 2^63 - 1.") from None
    if values.dtype.kind not in "iu" or not np.can_cast(values.dtype, np.int64):
        raise ArgumentTypeError(
            f"Values must be integers that int64 can hold, got an array of {values.dtype}. For "
            "floats, use LaplaceMechanism."
        )
    return values.astype(np.int64)


def _add_saturating(values: Integers, noise: Integers) -> Integers:
    """Return values + noise, saturating at the ends of int64."""
    least = _INT64.min - np.minimum(noise, 0)
    most = _INT64.max - np.maximum(noise, 0)
    return np.clip(values, least, most) + noise
