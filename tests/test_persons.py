"""Persons: what one of them adds is bounded on every engine, whatever the rows hold."""

from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from alarms import LONG
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from person_worlds import (
    ASKED,
    IDS,
    check_neighbours,
    requests,
    table,
    worlds,
)

from dpnoise.statistics.questions import QUERIES

FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "DuckDB": lambda one: duckdb.connect().from_arrow(one),
    "Polars": pl.from_arrow,
    "Polars lazy": lambda one: pl.LazyFrame(pl.from_arrow(one)),
    "pandas": lambda one: one.to_pandas(types_mapper=pd.ArrowDtype),
    "Arrow": lambda one: one,
}
BOUNDS = [(1, 1), (2, 3), (5, 2), (None, 1), (None, 4), (2, None)]


def test_every_statistic_is_tested() -> None:
    assert ASKED.keys() == set(QUERIES)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@given(data=st.data())
@settings(max_examples=40 if LONG else 8, phases=[Phase.generate])  # Shrinking takes minutes.
def test_one_person_moves_no_statistic_beyond_its_sensitivity(
    neighbours: str, data: st.DataObject
) -> None:
    check_on("DuckDB", neighbours, data)


@pytest.mark.parametrize("engine", [name for name in FRAMES if name != "DuckDB"])
@given(data=st.data())
@settings(max_examples=20 if LONG else 3, phases=[Phase.generate])
def test_frames_that_go_to_duckdb_keep_the_sensitivity(engine: str, data: st.DataObject) -> None:
    check_on(engine, data.draw(st.sampled_from(["add-remove", "replace"])), data)


def check_on(engine: str, neighbours: str, data: st.DataObject) -> None:
    ids = data.draw(st.sampled_from(list(IDS.values())))
    rows, without, replaced = data.draw(worlds(ids))
    bounds = data.draw(st.sampled_from(BOUNDS))
    frame = FRAMES[engine]
    other = without if neighbours == "add-remove" else replaced
    some = requests(neighbours, *bounds)
    for pair in (some[:2], some[2:]):
        if pair:
            check_neighbours(pair, frame(table(rows, ids)), frame(table(other, ids)))
