"""The elementary functions that torch makes float32 Gaussians by."""

import numba
import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.pairs import log_32, sincos_32


@numba.njit  # type: ignore[untyped-decorator]
def in_single_precision(
    x: NDArray[np.float32],
    log: NDArray[np.float32],
    sin: NDArray[np.float32],
    cos: NDArray[np.float32],
) -> None:
    """Fill in the logarithms of x, and the sines and cosines of 2 pi x."""
    for i in range(x.size):
        log[i] = log_32(x[i])
        sin[i], cos[i] = sincos_32(np.float32(2 * np.pi) * x[i])


def test_logarithm_sine_and_cosine_are_within_two_units_of_float32() -> None:
    """Every 16th of all 2^24 uniforms; a zero of sine or cosine is within 2^-40."""
    x = (np.arange(1, 2**24, 16) * 2.0**-24).astype(np.float32)
    log, sin, cos = np.empty((3, x.size), dtype=np.float32)
    in_single_precision(x, log, sin, cos)
    angle = (np.float32(2 * np.pi) * x).astype(np.float64)
    for result, exact in (
        (log, np.log(x.astype(np.float64))),
        (sin, np.sin(angle)),
        (cos, np.cos(angle)),
    ):
        units = 2 * np.spacing(np.abs(exact).astype(np.float32))
        assert (np.abs(result - exact) <= np.maximum(units, 2.0**-40)).all()
