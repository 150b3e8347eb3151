"""One person moves no statistic by more than is declared, whatever types their cells give a column.

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

WORLDS = 3_000 if LONG else 200
# Of hostile cells, for each reader; a refused kind is none of them.
KINDS = len(HOSTILE) if LONG else 4
PAIRS = 1_000_000 if LONG else 10_000
# Of all kinds of hostile cells: some give a column a type that keys or values cannot have.
MOST_REFUSED = 0.5


def test_there_are_as_many_pairs_as_promised() -> None:
    assert len(READERS) * KINDS * WORLDS >= PAIRS


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_person_moves_no_world_beyond_its_sensitivity(
    reader: str, tmp_path: Path
) -> None:
    # pandas writes truth values to SQLite as the integers 0 and 1.
    cities = [kind for kind in CITIES if reader != "SQLite file" or kind != "truth values"]
    refused = check_hostile_persons(
        partial(read_with, reader, tmp_path),
        WORLDS,
        cities=cities,
        bases=3 if LONG else 1,
        compared=KINDS,
    )
    assert refused <= MOST_REFUSED * len(HOSTILE)


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_person_moves_discovery_by_no_more_than_their_groups(
    reader: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng()
    stack = make_stack(WORLDS if LONG else 30, "integers", "integers", rng)
    base = count_persons(read_with(reader, tmp_path, stack.rows), 2)
    compared = refused = 0
    for hostile in rng.permutation(list(HOSTILE)).tolist():
        if compared == KINDS:
            break
        # A stack of one world more: the newcomers of all other worlds do not come.
        alone = Stack(stack.ids, stack.cities, [[]])
        rows = stack.rows + alone.neighbour(hostile, rng, replaced=False)
        try:
            other = count_persons(read_with(reader, tmp_path, rows), 2)
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
    """With 2,000 people, one more person once moved a sum by 20, and groups by 48."""
    rng = np.random.default_rng()
    people = [
        ("0", str(who), str(rng.integers(4)), str(rng.integers(2)))
        for who in range(1, 2_001)
        for _ in range(4)
    ]
    newcomer = ("0", "0", "1", cell)
    for bounds in ((1, 1), (None, 1)):
        made = requests(declared_keys("integers"), "add-remove", *bounds)
        answers = [
            answers_of(made, read_with("pandas", tmp_path, rows), 1)
            for rows in (people, [*people, newcomer])
        ]
        assert check_neighbours(made, *answers) <= 1


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


# Failures that shrink -----------------------------------------------------------------------------

CELLS = st.sampled_from(["1", "2", "3", "0.5", "", "x", "-0", "1e300", "18446744073709551615"])
some_rows = st.lists(st.tuples(st.just("0"), st.sampled_from("123"), CELLS, CELLS), max_size=8)
hostile_rows = st.lists(st.tuples(st.just("0"), CELLS.filter(bool), CELLS, CELLS), max_size=6)


@given(
    rows=some_rows,
    comes=hostile_rows,
    bounds=st.sampled_from(BOUNDS),
    reader=st.sampled_from(["pandas", "pandas, nullable", "Polars", "DuckDB", "CSV file"]),
)
@settings(max_examples=500 if LONG else 10)
def test_a_small_world_moves_by_no_more_than_is_declared(
    rows: list[Any], comes: list[Any], bounds: Any, reader: str, tmp_path_factory: Any
) -> None:
    who = comes[0][1] if comes else ""
    newcomer = [(world, who, city, x) for world, _, city, x in comes]
    rest = [row for row in rows if row[1] != who]
    folder = tmp_path_factory.mktemp("worlds")
    made = requests(declared_keys("integers"), "add-remove", *bounds)
    try:
        answers = [
            answers_of(made, read_with(reader, folder, some), 1) for some in (rest, rest + newcomer)
        ]
    except (ArgumentError, UnreadableError):
        return
    check_neighbours(made, *answers)
