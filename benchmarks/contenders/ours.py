"""dpnoise."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from benchmarks.contenders import DECILES, Column, Floats, Visits
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.functions import tally_chunks
from dpnoise.statistics.plan import Plan
from dpnoise.statistics.queries import Count, Histogram, Mean, Query, Sum
from dpnoise.statistics.selections import Quantiles

PACKAGES: Final = ("numpy",)


def released(query: Query, column: Column, rounds: int) -> Floats:
    """Release one tally many times: that of as many groups that are all alike."""
    clamped = column.clamped
    tally = tally_chunks([clamped], Plan((query.ask,)))
    answer: Any = tally.answers[0]
    if isinstance(answer, np.ndarray):
        repeated: Any = np.broadcast_to(answer, (rounds, *answer.shape))
    else:
        parts = (np.full(rounds, part.item()) for part in (answer.count, answer.total))
        repeated = type(answer)(*parts)
    return np.array([one.value for one in query.release(repeated, 0.95, None)], dtype=float)


def quantiles(places: list[float], *, interval: bool) -> Callable[[Column, int], Floats]:
    """Return what selects quantiles together."""

    def release(one: Column, rounds: int) -> Floats:
        query = Quantiles("x", places, one.lower, one.upper, one.epsilon, interval=interval)
        return released(query, one, rounds)

    return release


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": lambda one, rounds: released(Count(None, one.epsilon), one, rounds),
    "sum": lambda one, rounds: released(Sum("x", one.lower, one.upper, one.epsilon), one, rounds),
    "mean": lambda one, rounds: released(Mean("x", one.lower, one.upper, one.epsilon), one, rounds),
    "histogram": lambda one, rounds: released(Histogram("x", one.edges, one.epsilon), one, rounds),
    "median": quantiles([0.5], interval=False),
    "deciles": quantiles(DECILES, interval=False),
    "median, interval": quantiles([0.5], interval=True),
    "deciles, interval": quantiles(DECILES, interval=True),
}


def visits(asked: Visits, rounds: int) -> Iterator[dict[str, list[float]]]:
    """Publish how many visits each town had, and what they cost."""
    frame = pl.DataFrame({"person": asked.persons, "town": asked.towns, "cost": asked.costs})
    request = Request(
        asked.epsilon,
        [Question(["count", "sum"], "cost", lower=0, upper=asked.upper, by=("town",))],
        groups={"town": asked.declared or "discover"},
        delta=asked.delta,
        person="person",
        max_groups=asked.max_groups,
        max_rows=asked.max_rows,
        clamp=False,
    )
    for _ in range(rounds):
        published: dict[str, list[float]] = defaultdict(list)
        for row in publish(frame, request).rows():
            published[row["town"]].append(row["value"])
        yield published
