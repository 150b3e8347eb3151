"""OpenDP through Polars, of which it takes one version: `make test-opendp` has the environment."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import opendp.prelude as dp
import polars as pl

from benchmarks.contenders import CELLS, DECILES, Column, Floats, Visits

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


def released(one: Column, rounds: int, query: Callable[[Any], Any]) -> Floats:
    """Release what is made of a query again and again: its mechanism is made once."""
    cells = np.clip(np.searchsorted(one.edges, one.clamped, side="right") - 1, 0, CELLS - 1)
    frame = pl.LazyFrame({"x": one.clamped, "cell": cells})
    margins = [
        dp.polars.Margin(max_length=len(one.values)),
        dp.polars.Margin(by=["cell"], max_length=len(one.values), max_groups=CELLS),
    ]
    asked = query(context(frame, margins, dp.loss_of(epsilon=one.epsilon)).query())
    mechanism = asked.resolve()
    return [mechanism(frame).collect() for _ in range(rounds)]


def selected(*expressions: Any) -> Callable[[Column, int], Floats]:
    """Return what releases expressions, each a function of the column, in one query."""

    def release(one: Column, rounds: int) -> Floats:
        made = [expression(one).alias(str(n)) for n, expression in enumerate(expressions)]
        frames = released(one, rounds, lambda rows: rows.select(made))
        return np.array([frame.row(0) for frame in frames], dtype=float)

    return release


def quantile(q: float) -> Callable[[Column], Any]:
    """Return an expression for a quantile."""
    return lambda one: X.dp.quantile(q, one.candidates)


def histogram(one: Column, rounds: int) -> Floats:
    """Count the values in each cell."""
    cells = pl.LazyFrame({"cell": range(CELLS)})
    frames = released(
        one, rounds, lambda rows: rows.group_by("cell").agg(dp.len(signed=True)).with_keys(cells)
    )
    return np.array([frame.sort("cell")["len"] for frame in frames], dtype=float)


def deciles(one: Column, rounds: int) -> Floats:
    """Select all in one query, and sort them."""
    return np.sort(selected(*map(quantile, DECILES))(one, rounds), axis=1)


STATISTICS: Final[dict[str, Callable[[Column, int], Floats]]] = {
    "count": selected(lambda _: dp.len(signed=True)),
    "sum": selected(lambda one: X.dp.sum((one.lower, one.upper))),
    "mean": selected(lambda one: X.dp.mean((one.lower, one.upper))),
    "histogram": histogram,
    "median": selected(quantile(0.5)),
    "deciles": deciles,
}


def visits(asked: Visits, rounds: int) -> Iterator[dict[str, list[float]]]:
    """Publish how many visits each town had, and what they cost."""
    frame = pl.LazyFrame({"person": asked.persons, "town": asked.towns, "cost": asked.costs})
    groups = len(set(asked.towns))
    loss = dp.loss_of(epsilon=asked.epsilon, **({"delta": asked.delta} if asked.delta else {}))
    margins = [dp.polars.Margin(by=["town"], max_length=len(asked.persons), max_groups=groups)]
    query = (
        context(frame, margins, loss, identifier="person")
        .query()
        .truncate_per_group(asked.max_rows, by=["town"])
        # One more than asked for: it keeps one less (tests/peers/test_coming_from.py).
        .truncate_num_groups(asked.max_groups + 1, by=["town"], keep="first")
        .group_by("town")
        .agg(dp.len(signed=True), COST.dp.sum((0.0, asked.upper)))
    )
    if asked.declared:
        query = query.with_keys(pl.LazyFrame({"town": asked.declared}))
    mechanism = query.resolve()
    for _ in range(rounds):
        rows = mechanism(frame).collect().iter_rows()
        yield {town: list(numbers) for town, *numbers in rows}
