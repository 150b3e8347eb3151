"""Statistics of a data set, released: from an array, a column or a file to published numbers."""

from dpnoise.statistics.functions import (
    count,
    exact_sum,
    histogram,
    mean,
    median,
    quantile,
    quantiles,
    std,
    sum,  # noqa: A004 - it is what people ask for, under `dpnoise.statistics`
    variance,
)
from dpnoise.statistics.queries import Release

__all__ = [
    "Release",
    "count",
    "exact_sum",
    "histogram",
    "mean",
    "median",
    "quantile",
    "quantiles",
    "std",
    "sum",
    "variance",
]
