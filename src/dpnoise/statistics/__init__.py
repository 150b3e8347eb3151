"""Statistics of a data set, released: from an array, a column or a file to published numbers."""

from dpnoise.statistics.queries import (
    Release,
    count,
    exact_sum,
    histogram,
    mean,
    median,
    quantile,
    sum,  # noqa: A004 - it is what people ask for, under `dpnoise.statistics`
)

__all__ = ["Release", "count", "exact_sum", "histogram", "mean", "median", "quantile", "sum"]
