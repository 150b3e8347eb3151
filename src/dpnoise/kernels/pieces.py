"""Forms whose pieces come from an inverse CDF that SciPy has and a closed formula has not.

They are not Numba: `scipy.special.gammaincinv` is compiled, and writing it again would be worse.
Its running time depends on its argument, which docs/limitations.md says.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpnoise.kernels.variates import uniforms

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]


# Below this shape a piece is 0 as a float, whatever the uniform: SciPy gives NaN for some of them.
_LEAST_SHAPE = 2.0**-1000


def _gammas(words: Words, precision: int, shape: float, scratch: Floats) -> Floats:
    """Return one Gamma(shape) for each word, by the inverse of its CDF, in `scratch`."""
    uniforms(words, 1, precision, 1.0, scratch, scratch)
    pieces = scratch[: words.size]
    special.gammaincinv(max(shape, _LEAST_SHAPE), pieces, out=pieces)
    return pieces


def gamma_pieces(
    words: Words,
    variates: int,
    precision: int,
    shape: float,
    scale: float,
    scratch: Floats,
    out: Floats,
) -> None:
    """Gamma(shape) as the sum of n pieces Gamma(shape/n), one uniform each."""
    pieces = _gammas(words, precision, shape / variates, scratch).reshape(-1, variates)
    np.multiply(scale, pieces.sum(axis=1), out=out[: len(pieces)])


def gamma_differences(
    words: Words,
    variates: int,
    precision: int,
    shape: float,
    scale: float,
    scratch: Floats,
    out: Floats,
) -> None:
    """Proposition 4.1: the sum of n/2 differences X - Y, all Gamma(shape/(n/2)), one uniform each.

    Of shape 1 it is the Laplace distribution; of shape 1/k, one of k shares of it.
    """
    pairs = variates // 2
    pieces = _gammas(words, precision, shape / pairs, scratch).reshape(-1, pairs, 2)
    np.multiply(scale, (pieces[..., 0] - pieces[..., 1]).sum(axis=1), out=out[: len(pieces)])
