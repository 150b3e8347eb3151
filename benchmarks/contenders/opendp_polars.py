"""OpenDP with Polars. It requires one version of Polars: that of `make test-opendp`."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import opendp.prelude as dp
import polars as pl

from benchmarks.contenders import CELLS, DECILES, HIGH, Column, Floats, Stays, Visits, with_mean

dp.enable_features("contrib")
PACKAGES: Final = ("polars",)
X: Final[Any] = pl.col("x")
COST: Final[Any] = pl.col("cost")


def context(frame: pl.LazyFrame, margins: Any, loss: Any, **unit: Any) -> Any:
    """Return OpenDP's context for one query."""
    return dp.Context.compositor(
        data=frame,
        privacy_unit=dp.unit_of(contributions=1, **unit),
        privacy_loss=loss,
        split_evenly_over=1,
        margins=margins,
    )


def release_query(column: Column, rounds: int, query: Callable[[Any], Any]) -> Floats:
    """Release a query `rounds` times with one mechanism."""
    cells = np.clip(
        np.searchsorted(column.edges, column.clamped_values, side="right") - 1, 0, CELLS - 1
    )
    frame = pl.LazyFrame({"x": column.clamped_values, "cell": cells})
    margins = [
        dp.polars.Margin(max_length=len(column.values)),
        dp.polars.Margin(by=["cell"], max_length=len(column.values), max_groups=CELLS),
    ]
    resolved_query = query(context(frame, margins, dp.loss_of(epsilon=column.epsilon)).query())
    mechanism = resolved_query.resolve()
    return [mechanism(frame).collect() for _ in range(rounds)]


def select(*expressions: Any) -> Callable[[Column, int], Floats]:
    """Return a function that releases expressions, each of the column, in one query."""

    def release(column: Column, rounds: int) -> Floats:
        named_expressions = [
            expression(column).alias(str(n)) for n, expression in enumerate(expressions)
        ]
        frames = release_query(column, rounds, lambda rows: rows.select(named_expressions))
        return np.array([frame.row(0) for frame in frames], dtype=float)

    return release


def quantile(q: float) -> Callable[[Column], Any]:
    """Return an expression for a quantile."""
    return lambda column: X.dp.quantile(q, column.candidates)


def histogram(column: Column, rounds: int) -> Floats:
    """Count the values in each cell."""
    cells = pl.LazyFrame({"cell": range(CELLS)})
    frames = release_query(
        column, rounds, lambda rows: rows.group_by("cell").agg(dp.len(signed=True)).with_keys(cells)
    )
    return np.array([frame.sort("cell")["len"] for frame in frames], dtype=float)


def deciles(column: Column, rounds: int) -> Floats:
    """Select all deciles in one query, and sort them."""
    return np.sort(select(*map(quantile, DECILES))(column, rounds), axis=1)


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": select(lambda _: dp.len(signed=True)),
    "sum": select(lambda column: X.dp.sum((column.lower, column.upper))),
    "mean": select(lambda column: X.dp.mean((column.lower, column.upper))),
    "histogram": histogram,
    "median": select(quantile(0.5)),
    "quantile 0.9": select(quantile(HIGH)),
    "deciles": deciles,
}


def visits(question: Visits, rounds: int) -> Iterator[dict[str, list[float]]]:
    """Publish the number, the cost and the mean cost of the visits in each town."""
    frame = pl.LazyFrame(
        {"person": question.persons, "town": question.towns, "cost": question.costs}
    )
    groups = len(set(question.towns))
    loss = dp.loss_of(
        epsilon=question.epsilon, **({"delta": question.delta} if question.delta else {})
    )
    margins = [dp.polars.Margin(by=["town"], max_length=len(question.persons), max_groups=groups)]
    query = context(frame, margins, loss, identifier="person").query()
    if question.declared:
        query = query.truncate_per_group(question.max_groups * question.max_rows)
    else:
        # One more, because it keeps one less than given (tests/peers/test_coming_from.py).
        query = query.truncate_per_group(question.max_rows, by=["town"]).truncate_num_groups(
            question.max_groups + 1, by=["town"], keep="first"
        )
    query = query.group_by("town").agg(dp.len(signed=True), COST.dp.sum((0.0, question.upper)))
    if question.declared:
        query = query.with_keys(pl.LazyFrame({"town": question.declared}))
    mechanism = query.resolve()
    for _ in range(rounds):
        rows = mechanism(frame).collect().iter_rows()
        yield {town: with_mean(question, *numbers) for town, *numbers in rows}


def discover(question: Stays, rounds: int) -> Iterator[dict[str, float]]:
    """Publish the number of patients with each diagnosis that is discovered."""
    frame = pl.LazyFrame({"patient": question.patients, "diagnosis": question.diagnoses})
    rows, by = len(question.patients), ["diagnosis"]
    margins = [dp.polars.Margin(by=by, max_length=rows, max_groups=len(set(question.diagnoses)))]
    loss = dp.loss_of(epsilon=question.epsilon, delta=question.delta)
    query = (
        context(frame, margins, loss, identifier="patient")
        .query()
        .truncate_per_group(1, by=by)
        # One more, because it keeps one less than given (tests/peers/test_coming_from.py).
        .truncate_num_groups(question.max_groups + 1, by=by, keep="first")
        .group_by("diagnosis")
        .agg(dp.len(signed=True))
    )
    mechanism = query.resolve()
    for _ in range(rounds):
        yield dict(mechanism(frame).collect().iter_rows())
