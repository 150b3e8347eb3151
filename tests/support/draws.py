"""Draws for a spawned process, which imports this module and not the tests and their libraries."""

import dpnoise


def draw(rng: dpnoise.Generator, _: int = 0) -> list[float]:
    """Draw scalars and an array."""
    scalars: list[float] = [rng.laplace() for _ in range(100)]
    return scalars + list(rng.laplace(size=1000))
