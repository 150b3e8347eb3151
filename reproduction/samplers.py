"""The samplers that the paper times, from their formulas: sections 5.1, 5.2, appendix B."""

import math
import random

import numpy as np
from numpy.typing import NDArray


def naive() -> float:
    """Draw by equation (2), appendix B.1, from one uniform."""
    U = random.random()
    return math.copysign(math.log(1 - 2 * abs(U - 0.5)), U - 0.5)


def theorem() -> float:
    """Draw by Theorem 5.1, appendix B.2, from four uniforms."""
    first = math.log(1 - random.random()) * math.cos(math.pi * random.random())
    return first + math.log(1 - random.random()) * math.cos(math.pi * random.random())


def products() -> float:
    """Draw by equation (10) from the members of two Box-Muller pairs, section 5.2."""
    N = random.gauss
    return N(0, 1) * N(0, 1) - N(0, 1) * N(0, 1)


def squares() -> float:
    """Draw by equation (9) from the members of two Box-Muller pairs."""
    N1, N2, N3, N4 = (random.gauss(0, 1) for _ in range(4))
    return (N1 * N1 - N2 * N2 + N3 * N3 - N4 * N4) / 2


def products_in_turn() -> float:
    """Draw by equation (10), written like `squares`, so that only the arithmetic differs."""
    N1, N2, N3, N4 = (random.gauss(0, 1) for _ in range(4))
    return N1 * N2 - N3 * N4


def box_muller_pair() -> tuple[float, float]:
    """Draw two Gaussians from two uniforms by equation (3)."""
    radius = math.sqrt(-2 * math.log(1 - random.random()))
    angle = 2 * math.pi * random.random()
    return radius * math.cos(angle), radius * math.sin(angle)


def polar_pair() -> tuple[float, float]:
    """Draw two Gaussians without sine and cosine, from a point in the unit disc (section 5)."""
    while True:
        x, y = 2 * random.random() - 1, 2 * random.random() - 1
        square = x * x + y * y
        if 0 < square < 1:
            factor = math.sqrt(-2 * math.log(square) / square)
            return factor * x, factor * y


def gauss() -> float:
    """Draw by Python's Box-Muller, which keeps the second of a pair."""
    return random.gauss(0, 1)


def normalvariate() -> float:
    """Draw by Python's Kinderman and Monahan, which keeps nothing."""
    return random.normalvariate(0, 1)


def gaussian_sum(n: int) -> float:
    """Draw by equation (7), section 5.1: 2n Gaussians, both members of each Box-Muller pair."""
    total = sum(random.gauss(0, 1) for _ in range(2 * n))
    return total / math.sqrt(2 * n)


def math_and_random(n: int = 1) -> float:
    """Draw by equations (7) and (10), appendix B.3: four sums of n Gaussians."""
    sums = [sum(random.normalvariate(0, 1) for _ in range(n)) for _ in range(4)]
    return (sums[0] * sums[1] - sums[2] * sums[3]) / n


def with_numpy(n: int = 1) -> float:
    """Draw with NumPy, appendix B.4: 2n Gaussians in each sum, which may share uniforms."""
    N1, N2, N3, N4 = np.random.standard_normal((4, 2 * n)).sum(axis=1)
    return float((N1 * N2 - N3 * N4) / (2 * n))


def numpy_arrays(count: int, n: int = 1) -> NDArray[np.float64]:
    """Draw `count` variates of `with_numpy` in one call."""
    N1, N2, N3, N4 = np.random.standard_normal((4, 2 * n, count)).sum(axis=1)
    laplace: NDArray[np.float64] = (N1 * N2 - N3 * N4) / (2 * n)
    return laplace
