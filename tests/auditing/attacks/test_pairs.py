"""The elementary functions that torch makes float32 Gaussians by."""

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from dpnoise.auditing.attacks.pairs import _pair_in_blocks, log_32, sincos_32


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


@pytest.mark.parametrize(("releases", "trials"), [(15, 0), (16, 8), (21, 8), (32, 16), (40, 8)])
def test_pairs_in_blocks_need_one_block_and_leave_out_one_that_was_drawn_again(
    releases: int, trials: int
) -> None:
    paired = _pair_in_blocks(np.arange(float(releases)))
    assert len(paired) == trials
    assert all(second - first == 8 for first, second in paired)
