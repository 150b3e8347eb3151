"""Discrete Laplace noise, exactly: P(X = k) is proportional to exp(-|k|/scale), for integers k.

It is what integers of sensitivity 1 need and no more: at epsilon 1 its error is a ninth below that
of Laplace noise that is rounded. X is floor(scale E1) - floor(scale E2), with E1 and E2
exponential, and is drawn before it meets a value: its time tells nothing of that.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise import reference
from dpnoise.chunks import first_words, kernel_named
from dpnoise.errors import check_part, forgetful
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import calibration, deciding
from dpnoise.release.mechanism import Mechanism, positive

Integers = NDArray[np.int64]

_ROUND: Final = 2.0**-50  # More than the roundings of a product and a difference.
_MOST: Final = 2**62  # What is beyond is as good as this.


class DiscreteLaplaceMechanism(Mechanism):
    """The discrete Laplace mechanism for integers: epsilon-differential privacy, exactly.

    Parameters
    ----------
    epsilon
        The privacy loss.
    sensitivity
        How far the integers can move together between neighbouring data sets (L1).
    lower
        Where to clamp the output, or None.

    Examples
    --------
    >>> mechanism = DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    >>> mechanism.scale, mechanism.error(0.95)
    (1.0, 3)
    """

    epsilon: float
    sensitivity: float
    lower: int | None
    scale: float

    def __init__(
        self, epsilon: float, sensitivity: float = 1.0, *, lower: int | None = None
    ) -> None:
        asked = positive(epsilon=epsilon, sensitivity=sensitivity)
        scale = calibration.check_scale(calibration.laplace_scale(**asked))
        self._hold({**asked, "lower": lower}, scale=scale)

    def error(self, confidence: float = 0.95) -> int:
        """Return the smallest k with |X| <= k with this probability: P(|X| > k) = 2 a^(k+1)/(1+a).

        Here a is exp(-1/scale). The logarithms are rounded up by more than their own roundings.
        """
        left = 1 - check_part("confidence", confidence)
        scales = math.log(2 / left) - math.log1p(math.exp(-1 / self.scale))
        return max(math.ceil(self.scale * scales * (1 + 2.0**-48)) - 1, 0)

    @forgetful
    def release(self, values: Integers, rng: Generator | None = None) -> Integers:
        """Return an array of integers with noise, in int64, which saturates."""
        noise = self._noise(values.size, check_generator(rng)).reshape(values.shape)
        inside = np.clip(values.astype(np.int64), -_MOST, _MOST - 1) + noise
        return inside if self.lower is None else np.maximum(inside, self.lower)

    def _noise(self, size: int, rng: Generator) -> Integers:
        steps = self._steps(2 * size, rng)
        return steps[:size] - steps[size:]

    def _steps(self, size: int, rng: Generator) -> Integers:
        """Return floor(scale E) for so many E, each at most 2^61."""
        deciding.check_rounding_mode()
        key = rng.source.key()
        words = first_words(key, size)
        noise, errors = np.empty(size), np.empty(size)
        form = deciding.EXPONENTIAL
        kernel_named(form.kernel)(words, reference.WORD_BITS, noise, errors)
        with np.errstate(all="ignore"):
            low, high = (
                np.floor(self.scale * (noise + way * (errors + _ROUND * noise)))
                for way in (-1.0, 1.0)
            )
        steps = np.clip(low, 0, _MOST // 2).astype(np.int64)
        for i in np.flatnonzero(~(low == high)).tolist():
            rows = deciding.rows_from_key(key, i, words[i : i + 1])
            exactly = reference.grid_point(form.formula, rows, -0.5, self.scale, 1.0)
            steps[i] = min(exactly, _MOST // 2)
        return steps
