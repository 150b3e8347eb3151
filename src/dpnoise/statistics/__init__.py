"""Differentially private statistics of an array, a column, a frame or a file."""

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
from dpnoise.statistics.ledger import Ledger, create_ledger, open_ledger
from dpnoise.statistics.loading import load_request
from dpnoise.statistics.publishing import Published, Table, publish
from dpnoise.statistics.questions import Quantile, Quantiles, Question
from dpnoise.statistics.requests import Request
from dpnoise.statistics.results import Release

__all__ = [
    "Ledger",
    "Published",
    "Quantile",
    "Quantiles",
    "Question",
    "Release",
    "Request",
    "Table",
    "count",
    "create_ledger",
    "exact_sum",
    "histogram",
    "load_request",
    "mean",
    "median",
    "open_ledger",
    "publish",
    "quantile",
    "quantiles",
    "std",
    "sum",
    "variance",
]
