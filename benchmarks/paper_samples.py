"""The four Laplace samplers that the paper times in its appendix B, written from their formulas."""

import math
import random

import numpy as np


def naive() -> float:
    """Invert the distribution function at one uniform, equation (2)."""
    offset = random.random() - 0.5
    return math.copysign(math.log(1 - 2 * abs(offset)), offset)


def theorem() -> float:
    """Apply Theorem 5.1 to four uniforms."""
    total = 0.0
    for _ in range(2):
        total += math.log(1 - random.random()) * math.cos(math.pi * random.random())
    return total


def math_and_random(n: int = 1) -> float:
    """Combine equations (7) and (10): products of Gaussians, each a sum of n Gaussians."""
    a, b, c, d = (sum(random.normalvariate(0, 1) for _ in range(n)) for _ in range(4))
    return (a * b - c * d) / n


def with_numpy(n: int = 1) -> float:
    """Do the same with NumPy's Gaussians, two for each uniform pair."""
    a, b, c, d = np.random.standard_normal((4, 2 * n)).sum(axis=1)
    return float((a * b - c * d) / (2 * n))
