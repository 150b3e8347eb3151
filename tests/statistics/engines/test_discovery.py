"""Groups are discovered in files and frames, and unsafe columns are refused."""

from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, count_persons_by_group
from dpnoise.statistics.plan import Unit

PEOPLE = pa.table({"who": ["p", "q", "q"], "city": [1, 2, 1], "tags": [["a"], ["b"], []]})


@pytest.fixture(params=["frame", "Parquet"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "frame":
        return PEOPLE
    pq.write_table(PEOPLE, tmp_path / "people.parquet")
    return Files(tmp_path / "people.parquet")


def test_groups_of_numbers_are_discovered(data: Any) -> None:
    counts = count_persons_by_group(data, ["city"], Unit(("who",)))
    assert sorted(counts.keys) == [("1",), ("2",)]
    assert int(counts.persons.sum()) == 2  # Each person counts in one group.


def test_the_column_of_ids_is_not_discovered(data: Any) -> None:
    with pytest.raises(ArgumentError, match="who"):
        count_persons_by_group(data, ["who"], Unit(("who",)))


def test_a_column_that_is_missing_is_named(data: Any) -> None:
    with pytest.raises(ArgumentError, match="'town'"):
        count_persons_by_group(data, ["town"], None)


def test_columns_that_cannot_be_groups_are_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match="'tags'"):
        count_persons_by_group(data, ["tags"], None)


def test_ids_in_a_text_file_are_compared_as_text(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("who,city\n07,cork\n7,cork\n7.0,cork\n")
    counts = count_persons_by_group(Files(path), ["city"], Unit(("who",)))
    assert [*counts.keys, int(counts.persons[0])] == [("cork",), 3]


def test_rows_without_an_id_are_added_to_the_persons_of_their_group() -> None:
    frame = pa.table({"who": ["p", None, None], "city": ["cork", "cork", "dublin"]})
    counts = count_persons_by_group(frame, ["city"], Unit(("who",), without_id="own"))
    numbers = dict(zip(counts.keys, counts.persons.tolist(), strict=True))
    assert numbers == {("cork",): 2, ("dublin",): 1}


@pytest.mark.parametrize("value", [time(10, 30), datetime(2024, 2, 29, tzinfo=UTC), b"cork"])
def test_a_column_of_a_type_without_groups_is_refused_before_it_is_read(value: object) -> None:
    with pytest.raises(ArgumentError, match="which is not grouped by"):
        count_persons_by_group(pa.table({"city": [value]}), ["city"], None)


def test_one_row_without_an_id_is_an_error_if_other_groups_have_them() -> None:
    people = pa.table({"who": [1, None], "city": ["cork", "dublin"]})
    with pytest.raises(ArgumentError, match="do not identify a person"):
        count_persons_by_group(people, ["city"], Unit(("who",)))


def test_a_missing_id_and_a_rounded_one_in_a_group_are_an_error() -> None:
    """Each row has one of two flags. Both must survive the sum over the group."""
    people = pa.table({"who": [1.0, 2.0**60, None], "city": ["cork", "cork", "cork"]})
    with pytest.raises(ArgumentError, match="do not identify a person"):
        count_persons_by_group(people, ["city"], Unit(("who",)))
    with pytest.raises(ArgumentError, match=r"2\^53"):
        count_persons_by_group(people, ["city"], Unit(("who",), without_id="own"))
