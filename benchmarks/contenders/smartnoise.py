"""SmartNoise SQL, which asks for an OpenDP older than the one beside it: it has no quantiles.

A query costs its epsilon once for each noisy column, and so does finding groups; the epsilon that
it is given is such that what it says it costs is what may be spent. Groups are those of the data.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from snsql import Privacy, from_df

from benchmarks.contenders import CELLS, Column, Floats, Visits

PACKAGES: Final = ("smartnoise-sql",)


def reader_of(frame: Any, told: dict[str, Any], query: str, epsilon: float, delta: float) -> Any:
    """Return what answers a query for this epsilon in all."""
    metadata = {"": {"": {"t": told | {"rows": len(frame), "clamp_counts": False}}}}

    def made(part: float) -> Any:
        return from_df(frame, privacy=Privacy(epsilon=part, delta=delta), metadata=metadata)

    parts, _ = made(1.0).get_privacy_cost(query)
    return made(epsilon / parts)


def released(query: str) -> Callable[[Column, int], Floats]:
    """Return what answers a query again and again: from its exact rows, given as often."""

    def release(one: Column, rounds: int) -> Floats:
        cells = np.clip(np.searchsorted(one.edges, one.clamped, side="right") - 1, 0, CELLS - 1)
        told = {
            "row_privacy": True,
            "censor_dims": False,
            "x": {"name": "x", "type": "float", "lower": one.lower, "upper": one.upper},
            "cell": {"name": "cell", "type": "int"},
        }
        frame = pd.DataFrame({"x": one.clamped, "cell": cells})
        reader = reader_of(frame, told, query, one.epsilon, 0.0)
        subquery, _ = reader._rewrite(query)  # noqa: SLF001 - the query that its engine is asked
        names, *rows = reader._get_reader(subquery)._execute_ast(subquery)  # noqa: SLF001
        _, *told_rows = reader.execute(query, pre_aggregated=[names, *(rows * rounds)])
        if "GROUP BY" not in query:
            return np.array(told_rows, dtype=float)
        # A cell without rows is not published.
        found = np.full((rounds, CELLS), np.nan)
        for place, (cell, number) in enumerate(told_rows):
            found[place // len(rows), cell] = number
        return found

    return release


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": released("SELECT COUNT(*) AS n FROM t"),
    "sum": released("SELECT SUM(x) AS s FROM t"),
    "mean": released("SELECT AVG(x) AS m FROM t"),
    "histogram": released("SELECT cell, COUNT(*) AS n FROM t GROUP BY cell"),
}


def visits(asked: Visits, rounds: int) -> Iterator[dict[str, list[float]]]:
    """Publish how many visits each town had, and their cost; all it bounds is a person's rows."""
    frame = pd.DataFrame({"person": asked.persons, "town": asked.towns, "cost": asked.costs})
    told = {
        "max_ids": asked.max_groups * asked.max_rows,
        "sample_max_ids": True,
        "censor_dims": not asked.declared,
        "person": {"name": "person", "type": "int", "private_id": True},
        "town": {"name": "town", "type": "string"},
        "cost": {"name": "cost", "type": "float", "lower": 0.0, "upper": asked.upper},
    }
    query = "SELECT town, COUNT(*) AS n, SUM(cost) AS s FROM t GROUP BY town"
    reader = reader_of(frame, told, query, asked.epsilon, asked.delta)
    for _ in range(rounds):
        yield {town: numbers for town, *numbers in reader.execute(query)[1:]}
