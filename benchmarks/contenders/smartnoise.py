"""SmartNoise SQL, which requires an older OpenDP and has no quantiles.

It refuses variances of values with wide bounds.

A query costs its epsilon once for each noisy column, and once more for discovering groups. We
divide epsilon so that the reported cost is the allowed one. It shows only groups of the data.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from snsql import Privacy, from_df

from benchmarks.contenders import CELLS, Column, Floats, Visits, with_mean

PACKAGES: Final = ("smartnoise-sql",)


def reader_of(
    frame: Any, table_metadata: dict[str, Any], query: str, epsilon: float, delta: float
) -> Any:
    """Return a reader that spends `epsilon` in total on a query."""
    metadata = {"": {"": {"t": table_metadata | {"rows": len(frame), "clamp_counts": False}}}}

    def make_reader(part: float) -> Any:
        return from_df(frame, privacy=Privacy(epsilon=part, delta=delta), metadata=metadata)

    parts, _ = make_reader(1.0).get_privacy_cost(query)
    return make_reader(epsilon / parts)


def release_query(query: str) -> Callable[[Column, int], Floats]:
    """Return a function that answers a query many times, from copies of its exact rows."""

    def release(column: Column, rounds: int) -> Floats:
        cells = np.clip(
            np.searchsorted(column.edges, column.clamped_values, side="right") - 1, 0, CELLS - 1
        )
        table_metadata = {
            "row_privacy": True,
            "censor_dims": False,
            "x": {"name": "x", "type": "float", "lower": column.lower, "upper": column.upper},
            "cell": {"name": "cell", "type": "int"},
        }
        frame = pd.DataFrame({"x": column.clamped_values, "cell": cells})
        reader = reader_of(frame, table_metadata, query, column.epsilon, 0.0)
        subquery, _ = reader._rewrite(query)  # noqa: SLF001 - the query for its engine
        names, *rows = reader._get_reader(subquery)._execute_ast(subquery)  # noqa: SLF001
        _, *answer_rows = reader.execute(query, pre_aggregated=[names, *(rows * rounds)])
        if "GROUP BY" not in query:
            return np.array(answer_rows, dtype=float)
        # A cell without rows is not published.
        counts = np.full((rounds, CELLS), np.nan)
        for index, (cell, number) in enumerate(answer_rows):
            counts[index // len(rows), cell] = number
        return counts

    return release


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": release_query("SELECT COUNT(*) AS n FROM t"),
    "sum": release_query("SELECT SUM(x) AS s FROM t"),
    "mean": release_query("SELECT AVG(x) AS m FROM t"),
    "histogram": release_query("SELECT cell, COUNT(*) AS n FROM t GROUP BY cell"),
}


def visits(question: Visits, rounds: int) -> Iterator[dict[str, list[float]]]:
    """Publish the numbers of each town. Only a person's rows are bounded."""
    frame = pd.DataFrame(
        {"person": question.persons, "town": question.towns, "cost": question.costs}
    )
    table_metadata = {
        "max_ids": question.max_groups * question.max_rows,
        "sample_max_ids": True,
        "censor_dims": not question.declared,
        "person": {"name": "person", "type": "int", "private_id": True},
        "town": {"name": "town", "type": "string"},
        "cost": {"name": "cost", "type": "float", "lower": 0.0, "upper": question.upper},
    }
    query = "SELECT town, COUNT(*) AS n, SUM(cost) AS s FROM t GROUP BY town"
    reader = reader_of(frame, table_metadata, query, question.epsilon, question.delta)
    for _ in range(rounds):
        rows = reader.execute(query)[1:]
        yield {town: with_mean(question, *numbers) for town, *numbers in rows}
