"""A slow implementation of every sampler: its formula, in plain NumPy on uniforms.

Each function takes uniforms of shape (elements, n). It shares no code with the kernels.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

Uniforms = NDArray[np.float64]
Values = NDArray[np.float64]
Formula = Callable[[Uniforms], Values]


def sign(u: Uniforms) -> Values:
    """Return the sign of Remark 1: plus if the first bit of u is 0."""
    return np.where(u < 0.5, 1.0, -1.0)


def cos_pi(u: Uniforms) -> Values:
    """Return cos(pi x), x = u mod 1/2, as sin(pi (1/2 - x)), which is accurate near 0."""
    return sign(u) * np.sin(np.pi * (0.5 - u % 0.5))


def half_pairs(u: Uniforms) -> Values:
    """Return sqrt(-log V) cos(pi U) of each pair."""
    return np.sqrt(-np.log(1 - u[:, ::2])) * cos_pi(u[:, 1::2])


def gaussian(u: Uniforms) -> Values:
    n = u.shape[1]
    total: Values = 2 / np.sqrt(n) * half_pairs(u).sum(axis=1)
    return total


def gaussians(u: Uniforms, count: int) -> list[Values]:
    """Return `count` Gaussians from the uniforms of each element, in order."""
    return [gaussian(part) for part in np.split(u, count, axis=1)]


def both_members(u: Uniforms) -> list[Values]:
    """Return N1, N2, N3, N4 of two Box-Muller pairs, equation (3)."""
    result = []
    for v, w in ((0, 1), (2, 3)):
        radius = np.sqrt(-2 * np.log(1 - u[:, v]))
        result += [radius * np.cos(2 * np.pi * u[:, w]), radius * np.sin(2 * np.pi * u[:, w])]
    return result


def laplace_theorem(u: Uniforms) -> Values:
    return np.log(1 - u[:, 0]) * cos_pi(u[:, 1]) + np.log(1 - u[:, 2]) * cos_pi(u[:, 3])


def laplace_exponentials(u: Uniforms) -> Values:
    return -np.log(1 - u[:, 0]) + np.log(1 - u[:, 1])


def laplace_squares(u: Uniforms) -> Values:
    N1, N2, N3, N4 = both_members(u) if u.shape[1] == 4 else gaussians(u, 4)
    return (N1**2 - N2**2 + N3**2 - N4**2) / 2


def laplace_products(u: Uniforms) -> Values:
    N1, N2, N3, N4 = both_members(u) if u.shape[1] == 4 else gaussians(u, 4)
    return N1 * N2 - N3 * N4


def laplace_gammas(u: Uniforms) -> Values:
    pieces = special.gammaincinv(2 / u.shape[1], u)
    total: Values = (pieces[:, ::2] - pieces[:, 1::2]).sum(axis=1)
    return total


def laplace_inverse(u: Uniforms) -> Values:
    return sign(u[:, 0]) * np.log(1 - 2 * (u[:, 0] % 0.5))


def half_gammas(halves: int) -> Formula:
    return lambda u: sum((N**2 / 2 for N in gaussians(u, halves)), np.zeros(len(u)))


def gamma_pieces(shape: float) -> Formula:
    return lambda u: special.gammaincinv(shape / u.shape[1], u).sum(axis=1)


def gumbel(precision: int) -> Formula:
    return lambda u: -np.log(np.maximum(half_gammas(2)(u), 4.0**-precision))


def gumbel_size(u: Uniforms, precision: int) -> Values:
    """Return the sensitivity of -log E to relative errors in the pieces of its Gaussians."""
    total: Values = np.zeros(len(u))
    for part, N in zip(np.split(u, 2, axis=1), gaussians(u, 2), strict=True):
        total += np.abs(N) * np.abs(half_pairs(part)).sum(axis=1)
    return total / np.maximum(half_gammas(2)(u), 4.0**-precision)


def tan_pi(u: Uniforms) -> Values:
    return np.sin(np.pi * (u % 0.5)) / cos_pi(u)


def cauchy(u: Uniforms) -> Values:
    mean: Values = tan_pi(u).mean(axis=1)
    return mean


def cauchy_size(u: Uniforms) -> Values:
    mean: Values = np.abs(tan_pi(u)).mean(axis=1)
    return mean
