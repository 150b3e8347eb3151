"""diffprivlib, which takes the number of rows for known."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from diffprivlib import tools

from benchmarks.contenders import CELLS, DECILES, Column, Floats

PACKAGES: Final = ("diffprivlib",)


def count(one: Column, rounds: int) -> Floats:
    """Count ones among as many zeros, because a count is clamped to the size."""
    ones = np.repeat([0, 1], len(one.values))
    return [tools.count_nonzero(ones, epsilon=one.epsilon) for _ in range(rounds)]


def called(tool: Callable[..., Any], one: Column, rounds: int) -> Floats:
    """Call a tool again and again."""
    told = {"epsilon": one.epsilon, "bounds": (one.lower, one.upper)}
    clamped = one.clamped
    return [tool(clamped, **told) for _ in range(rounds)]


def histogram(one: Column, rounds: int) -> Floats:
    """Count the values in each cell."""
    span = {"bins": CELLS, "range": (one.lower, one.upper)}
    clamped = one.clamped
    return [tools.histogram(clamped, epsilon=one.epsilon, **span)[0] for _ in range(rounds)]


def deciles(one: Column, rounds: int) -> Floats:
    """Select them one by one, each with its part of epsilon, and sort them."""
    part = one._replace(epsilon=one.epsilon / len(DECILES))
    found = [called(lambda x, q=q, **told: tools.quantile(x, q, **told), part, rounds)
             for q in DECILES]  # fmt: skip
    return np.sort(np.transpose(found), axis=1)


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": count,
    "sum": lambda one, rounds: called(tools.sum, one, rounds),
    "mean": lambda one, rounds: called(tools.mean, one, rounds),
    "histogram": histogram,
    "median": lambda one, rounds: called(tools.median, one, rounds),
    "deciles": deciles,
}
