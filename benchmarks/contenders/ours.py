"""dpnoise, with the interface of a contender."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from benchmarks.contenders import DECILES, HIGH, Column, Floats, Stays, Visits
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.column_tally import tally_chunks
from dpnoise.statistics.plan import Plan
from dpnoise.statistics.queries import Count, Histogram, Mean, Query, Sum, Variance
from dpnoise.statistics.selections import QuantileSelection

PACKAGES: Final = ("numpy",)


def release_repeatedly(query: Query, column: Column, rounds: int) -> Floats:
    """Release one tally many times, as if it belonged to many equal groups."""
    clamped_values = column.clamped_values
    tally = tally_chunks([clamped_values], Plan((query.ask,)))
    answer: Any = tally.answers[0]
    if isinstance(answer, np.ndarray):
        repeated: Any = np.broadcast_to(answer, (rounds, *answer.shape))
    else:
        exact = (answer.count, answer.total, answer.squares)
        parts = (None if part is None else np.full(rounds, part.item()) for part in exact)
        repeated = type(answer)(*parts)
    return np.array([result.value for result in query.release(repeated, 0.95, None)], dtype=float)


def quantiles(levels: list[float], *, interval: bool) -> Callable[[Column, int], Floats]:
    """Return a function that selects quantiles together."""

    def release(column: Column, rounds: int) -> Floats:
        query = QuantileSelection(
            "x", levels, column.lower, column.upper, column.epsilon, interval=interval
        )
        return release_repeatedly(query, column, rounds)

    return release


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": lambda column, rounds: release_repeatedly(Count(None, column.epsilon), column, rounds),
    "sum": lambda column, rounds: release_repeatedly(
        Sum("x", column.lower, column.upper, column.epsilon), column, rounds
    ),
    "mean": lambda column, rounds: release_repeatedly(
        Mean("x", column.lower, column.upper, column.epsilon), column, rounds
    ),
    "variance": lambda column, rounds: release_repeatedly(
        Variance("x", column.lower, column.upper, column.epsilon), column, rounds
    ),
    "std": lambda column, rounds: release_repeatedly(
        Variance("x", column.lower, column.upper, column.epsilon).deviation(), column, rounds
    ),
    "histogram": lambda column, rounds: release_repeatedly(
        Histogram("x", column.edges, column.epsilon), column, rounds
    ),
    "median": quantiles([0.5], interval=False),
    "quantile 0.9": quantiles([HIGH], interval=False),
    "deciles": quantiles(DECILES, interval=False),
    "median, interval": quantiles([0.5], interval=True),
    "deciles, interval": quantiles(DECILES, interval=True),
}


def visits(question: Visits, rounds: int) -> Iterator[dict[str, list[float]]]:
    """Publish the number, the cost and the mean cost of the visits in each town."""
    frame = pl.DataFrame(
        {"person": question.persons, "town": question.towns, "cost": question.costs}
    )
    limits: dict[str, Any] = {
        "max_groups": question.max_groups,
        "max_rows": question.max_rows,
    }
    if question.declared:
        limits = {"max_total_rows": question.max_groups * question.max_rows}
    request = Request(
        question.epsilon,
        [Question(["count", "sum", "mean"], "cost", lower=0, upper=question.upper, by=("town",))],
        groups={"town": question.declared or "discover"},
        delta=question.delta,
        person="person",
        clamp=False,
        **limits,
    )
    # A hash of the person decides which rows count. Other ids choose other rows, as peers do.
    for number in range(rounds):
        values_by_town: dict[str, list[float]] = defaultdict(list)
        renamed = frame.with_columns(pl.col("person") + number * len(question.persons))
        for row in publish(renamed, request).rows():
            values_by_town[row["town"]].append(row["value"])
        yield values_by_town


def discover(question: Stays, rounds: int) -> Iterator[dict[str, float]]:
    """Publish the number of patients with each diagnosis that is discovered."""
    frame = pl.DataFrame({"patient": question.patients, "diagnosis": question.diagnoses})
    request = Request(
        question.epsilon,
        [Question(["count"], by=("diagnosis",))],
        groups={"diagnosis": "discover"},
        delta=question.delta,
        person="patient",
        max_groups=question.max_groups,
        max_rows=1,
    )
    for number in range(rounds):
        renamed = frame.with_columns(pl.col("patient") + number * len(question.patients))
        yield {row["diagnosis"]: row["value"] for row in publish(renamed, request).rows()}
