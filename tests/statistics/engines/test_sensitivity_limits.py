"""The rows that count of a person with exactly the allowed groups or rows, or one more."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.choices import sample_cases, sample_parameters
from support.engine_list import duckdb_frame
from support.person_worlds import IDS, check_neighbours, requests, table

from dpnoise.statistics.engines import count_persons_by_group, tally
from dpnoise.statistics.plan import Grouping, Plan, Rows, Unit
from dpnoise.statistics.requests import Request

FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "DuckDB": duckdb_frame,
    "Polars": pl.from_arrow,
    "pandas": lambda arrow: arrow.to_pandas(types_mapper=pd.ArrowDtype),
}
CITIES = ("a", "b", "c", "d", "e")
TEXT = IDS["text"]


# Groups and rows: exactly at the limit, and one beyond it -----------------------------------------


def count_rows(frame: Any, unit: Unit, cities: tuple[str, ...]) -> list[int]:
    """Return the number of rows that count in each city."""
    by = (Grouping("city", cities),) if cities else ()
    (counts,) = tally(frame, Plan((Rows(),), by, unit=unit)).answers
    return list(np.atleast_1d(np.asarray(counts)).tolist())


@pytest.mark.sample(4)
@pytest.mark.parametrize("engine", FRAMES)
@pytest.mark.parametrize("max_groups", [1, 2, 4])
def test_a_person_in_one_group_more_than_allowed_counts_in_all_but_one(
    engine: str, max_groups: int
) -> None:
    """The person is in all declared groups, max_groups + 1."""
    cities = CITIES[: max_groups + 1]
    frame = FRAMES[engine](table([("p", city, 1.0) for city in cities], TEXT))
    counts = count_rows(frame, Unit(("who",), max_groups, 1), cities)
    assert sorted(counts) == [0, *[1] * max_groups]


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", FRAMES)
@pytest.mark.parametrize("max_groups", [1, 2, 4])
def test_a_person_in_as_many_groups_as_allowed_counts_in_all(engine: str, max_groups: int) -> None:
    """The claim holds with and without further declared groups."""
    rows = [("p", city, 1.0) for city in CITIES[:max_groups]]
    for cities in (CITIES[:max_groups], CITIES):
        counts = count_rows(FRAMES[engine](table(rows, TEXT)), Unit(("who",), max_groups), cities)
        assert counts == [1] * max_groups + [0] * (len(cities) - max_groups)


@cache
def requests_of(neighbours: str, max_groups: int, cities: tuple[str, ...]) -> list[Request]:
    """Return requests for all statistics in these groups."""
    every_statistic = requests(neighbours, max_groups, 3)
    return [replace(request, groups={"city": cities}) for request in every_statistic]


@pytest.mark.parametrize(
    ("engine", "neighbours", "max_groups"),
    sample_parameters(
        [
            *product(["DuckDB"], ["add-remove", "replace"], [1, 2]),
            ("Polars", "add-remove", 1),
            ("pandas", "replace", 2),
        ],
        2,
    ),
)
def test_one_group_too_many_moves_no_statistic_beyond_its_sensitivity(
    engine: str, neighbours: str, max_groups: int
) -> None:
    """One person has the most rows, of the largest or the smallest value, in max_groups + 1 groups.

    The neighbouring data has no such person, or one whose rows all have the other value.
    """
    cities, frame = CITIES[: max_groups + 1], FRAMES[engine]
    for value, other_value in sample_cases(((3.0, -2.0), (-2.0, 3.0)), 1):
        rows = [("p", city, value) for city in cities for _ in range(3)]
        others = [("p", city, other_value) for city in cities for _ in range(3)]
        neighbour = others if neighbours == "replace" else []
        pair = requests_of(neighbours, max_groups, cities)
        check_neighbours(pair, frame(table(rows, TEXT)), frame(table(neighbour, TEXT)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", FRAMES)
def test_a_person_in_one_discovered_group_too_many_is_counted_in_all_but_one(engine: str) -> None:
    frame = FRAMES[engine](table([("p", city, 1.0) for city in "abc"], TEXT))
    for max_groups, expected in ((2, 2), (3, 3), (4, 3)):
        discovered = count_persons_by_group(frame, ["city"], Unit(("who",), max_groups))
        assert discovered.persons.tolist() == [1] * expected


@pytest.mark.parametrize(
    ("engine", "max_rows"),
    sample_parameters(product(FRAMES, (1, 2, 999, 1_000, 1_001)), 3),
)
def test_of_one_row_more_than_allowed_all_but_one_count(engine: str, max_rows: int) -> None:
    """DuckDB keeps up to 1,000 rows of a person in a heap and sorts for more: both are tried.

    Rows have different values, or all are equal: then their hashes are equal too.
    """
    for rows in (max_rows - 1, max_rows, max_rows + 1):
        for step in sample_cases((1.0, 0.0), 1):
            people = [("p", "a", step * i) for i in range(rows)] + [("q", "a", 0.0)]
            frame = FRAMES[engine](table(people, TEXT))
            assert count_rows(frame, Unit(("who",), 1, max_rows), ()) == [min(rows, max_rows) + 1]
