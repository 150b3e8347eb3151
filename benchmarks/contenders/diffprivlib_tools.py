"""diffprivlib, which treats the number of rows as public."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from diffprivlib import tools

from benchmarks.contenders import CELLS, DECILES, HIGH, Column, Floats

PACKAGES: Final = ("diffprivlib",)


def count(column: Column, rounds: int) -> Floats:
    """Count ones among equally many zeros, because a count is clamped to the size."""
    ones = np.repeat([0, 1], len(column.values))
    return [tools.count_nonzero(ones, epsilon=column.epsilon) for _ in range(rounds)]


def call_tool(tool: Callable[..., Any], column: Column, rounds: int) -> Floats:
    """Call a tool `rounds` times."""
    options = {"epsilon": column.epsilon, "bounds": (column.lower, column.upper)}
    clamped_values = column.clamped_values
    return [tool(clamped_values, **options) for _ in range(rounds)]


def histogram(column: Column, rounds: int) -> Floats:
    """Count the values in each cell."""
    cells = {"bins": CELLS, "range": (column.lower, column.upper)}
    clamped_values = column.clamped_values
    return [
        tools.histogram(clamped_values, epsilon=column.epsilon, **cells)[0] for _ in range(rounds)
    ]


def quantile(column: Column, q: float, rounds: int) -> Floats:
    """Select a quantile."""
    return call_tool(lambda x, **options: tools.quantile(x, q, **options), column, rounds)


def deciles(column: Column, rounds: int) -> Floats:
    """Select each decile with its share of epsilon, and sort them."""
    share = column._replace(epsilon=column.epsilon / len(DECILES))
    return np.sort(np.transpose([quantile(share, q, rounds) for q in DECILES]), axis=1)


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": count,
    "sum": lambda column, rounds: call_tool(tools.sum, column, rounds),
    "mean": lambda column, rounds: call_tool(tools.mean, column, rounds),
    "variance": lambda column, rounds: call_tool(tools.var, column, rounds),
    "std": lambda column, rounds: call_tool(tools.std, column, rounds),
    "histogram": histogram,
    "median": lambda column, rounds: call_tool(tools.median, column, rounds),
    "quantile 0.9": lambda column, rounds: quantile(column, HIGH, rounds),
    "deciles": deciles,
}
