"""One person changes no statistic by more than its sensitivity, whatever their cells hold.

The cells of a person may change the type that a reader gives to a column.

`make test` compares more than 10,000 pairs of worlds, `make test-long` more than 1,000,000.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alarms import LONG
from support.choices import sample_parameters
from support.neighbours import (
    BOUNDS,
    CITIES,
    HOSTILE,
    READERS,
    Stack,
    UnreadableError,
    answers_of,
    check_hostile_persons,
    check_neighbours,
    count_persons,
    declared_keys,
    distance,
    make_stack,
    read_with,
    requests,
)

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import persons

# Readers that are compared; in `make test` two random ones.
SOME_READERS = sample_parameters(READERS, 2)
# Worlds cost less than kinds and readers: all worlds of a kind are answered at once.
WORLDS = 3_000 if LONG else 1_100
# Kinds of hostile cells for each reader, without the refused ones.
KINDS = len(HOSTILE) if LONG else 1
PAIRS = 1_000_000 if LONG else 2_000
# The largest fraction of refused kinds: some give a column a type that keys or values cannot have.
MOST_REFUSED = 0.5


@pytest.fixture(autouse=True)
def random_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer each data set in another number of parts, as if it had more or fewer rows."""
    rng, most = np.random.default_rng(), 3 if LONG else 2
    monkeypatch.setattr(
        persons.InDuckDB, "number_of_parts", lambda *_: int(rng.integers(1, most + 1))
    )


def test_the_documented_number_of_pairs_is_compared() -> None:
    assert len(SOME_READERS) * KINDS * WORLDS >= PAIRS


@pytest.mark.parametrize("reader", SOME_READERS)
def test_a_hostile_person_moves_no_world_beyond_its_sensitivity(
    reader: str, tmp_path: Path
) -> None:
    # pandas writes truth values to SQLite as the integers 0 and 1.
    cities = [kind for kind in CITIES if reader != "SQLite file" or kind != "truth values"]
    refusals = check_hostile_persons(
        partial(read_with, reader, tmp_path),
        WORLDS,
        cities=cities,
        bases=3 if LONG else 1,
        compared=KINDS,
    )
    assert refusals <= MOST_REFUSED * len(HOSTILE)


# Readers whose columns have types, with which a key of another type is compared.
TYPED = [name for name in READERS if LONG or name.endswith("file") or name == "pandas"]
SOME_TYPED = sample_parameters(TYPED, 1)


@pytest.mark.parametrize("reader", SOME_TYPED)
def test_a_hostile_person_moves_no_filter_and_no_derived_column_of_others(
    reader: str, tmp_path: Path
) -> None:
    # Expressions do not compare the truth values of JSON.
    no_truth_values = reader in {"SQLite file", "JSON file"}
    cities = [kind for kind in CITIES if not no_truth_values or kind != "truth values"]
    refusals = check_hostile_persons(
        partial(read_with, reader, tmp_path),
        WORLDS if LONG else 50,
        cities=cities,
        bases=3 if LONG else 1,
        compared=KINDS if LONG else 1,
        with_expressions=True,
    )
    assert refusals <= MOST_REFUSED * len(HOSTILE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("columns", [("city",), ("city", "x")])
@pytest.mark.parametrize("reader", SOME_TYPED)
def test_a_hostile_person_moves_discovery_by_no_more_than_their_groups(
    reader: str, columns: tuple[str, ...], tmp_path: Path
) -> None:
    """Groups of several columns are combinations; cells of each may change its type."""
    rng = np.random.default_rng()
    stack = make_stack(WORLDS if LONG else 20, "integers", "integers", rng)
    if "x" in columns:  # Beyond 2^53 a column of floats is refused.
        stack = stack.with_values([str(x) for x in range(-3, 4)], rng)
    base = count_persons(read_with(reader, tmp_path, stack.rows), 2, columns)
    compared = refused = 0
    for hostile in rng.permutation(list(HOSTILE)).tolist():
        if compared == KINDS:
            break
        # One world with one newcomer. Nobody joins the other worlds.
        single_world = Stack(stack.ids, stack.cities, [[]])
        rows = stack.rows + single_world.neighbour(hostile, rng, replaced=False)
        try:
            other = count_persons(read_with(reader, tmp_path, rows), 2, columns)
        except (ArgumentError, UnreadableError):
            refused += 1
            continue
        assert distance(base, other) <= 2, hostile
        compared += 1
    assert compared + refused == len(HOSTILE) or compared == KINDS
    assert len(HOSTILE) - refused >= len(HOSTILE) // 2


# The reported failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["", "0.5"])
def test_one_cell_does_not_choose_other_rows_of_everybody(cell: str, tmp_path: Path) -> None:
    """With 2,000 people, one more person once changed a sum by 20, and groups by 48."""
    rng = np.random.default_rng()
    people = [
        ("0", str(who), str(rng.integers(4)), str(rng.integers(2)))
        for who in range(1, 2_001)
        for _ in range(4)
    ]
    newcomer = ("0", "0", "1", cell)
    for bounds in ((1, 1), (None, 1)):
        request_list = requests(declared_keys("integers"), "add-remove", *bounds)
        answers = [
            answers_of(request_list, read_with("pandas", tmp_path, rows), 1)
            for rows in (people, [*people, newcomer])
        ]
        assert check_neighbours(request_list, *answers) <= 1


def test_an_empty_id_does_not_choose_other_groups_of_everybody(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    people = [
        ("0", str(who), str(rng.integers(6)), "1") for who in range(1, 2_001) for _ in range(4)
    ]
    sources = [
        read_with("pandas", tmp_path, rows) for rows in (people, [*people, ("0", "", "1", "1")])
    ]
    assert [str(source["who"].dtype) for source in sources] == ["int64", "float64"]
    assert distance(*(count_persons(source, 1) for source in sources)) == 1


# The reported failures do not depend on the bounds, and preparing requests takes long.
SOME_BOUNDS = BOUNDS if LONG else BOUNDS[1:2]


@pytest.mark.sample(2)
@pytest.mark.parametrize("reader", SOME_TYPED)
@pytest.mark.parametrize("hostile", ["a text city", "a city with a time"])
def test_a_column_of_whole_numbers_that_becomes_text_matches_the_same_rows(
    reader: str, hostile: str, tmp_path: Path
) -> None:
    """The text 2.0 once left the group 2 when the city of a newcomer was text."""
    read_rows = partial(read_with, reader, tmp_path)
    cities = ["whole floats"]
    check_hostile_persons(
        read_rows, 5, hostile=[hostile], cities=cities, all_bounds=SOME_BOUNDS, bases=1
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("reader", SOME_TYPED)
@pytest.mark.parametrize("cities", ["truth values", "whole floats"])
def test_a_column_that_becomes_text_meets_the_same_conditions(
    reader: str, cities: str, tmp_path: Path
) -> None:
    """In JSON, the truth value true once became the text True when the city of a newcomer was."""
    if cities == "truth values" and reader in {"SQLite file", "JSON file"}:
        pytest.skip("SQLite has integers for them, and expressions do not compare those of JSON")
    read_rows = partial(read_with, reader, tmp_path)
    check_hostile_persons(
        read_rows,
        5,
        hostile=["a text city"],
        cities=[cities],
        all_bounds=SOME_BOUNDS,
        bases=1,
        with_expressions=True,
    )


# Failures that shrink -----------------------------------------------------------------------------

CELLS = st.sampled_from(["1", "2", "3", "0.5", "", "x", "-0", "1e300", "18446744073709551615"])
row_lists = st.lists(st.tuples(st.just("0"), st.sampled_from("123"), CELLS, CELLS), max_size=8)
hostile_row_lists = st.lists(st.tuples(st.just("0"), CELLS.filter(bool), CELLS, CELLS), max_size=6)


@given(
    rows=row_lists,
    newcomer_rows=hostile_row_lists,
    bounds=st.sampled_from(BOUNDS if LONG else BOUNDS[:2]),
    reader=st.sampled_from(["pandas", "pandas, nullable", "Polars", "DuckDB", "CSV file"]),
)
@settings(max_examples=500 if LONG else 2)
def test_a_small_world_moves_by_no_more_than_is_declared(
    rows: list[Any], newcomer_rows: list[Any], bounds: Any, reader: str, tmp_path_factory: Any
) -> None:
    who = newcomer_rows[0][1] if newcomer_rows else ""
    newcomer = [(world, who, city, x) for world, _, city, x in newcomer_rows]
    rest = [row for row in rows if row[1] != who]
    folder = tmp_path_factory.mktemp("worlds")
    request_list = requests(declared_keys("integers"), "add-remove", *bounds)
    try:
        answers = [
            answers_of(request_list, read_with(reader, folder, people), 1)
            for people in (rest, rest + newcomer)
        ]
    except (ArgumentError, UnreadableError):
        return
    check_neighbours(request_list, *answers)
