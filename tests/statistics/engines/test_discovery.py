"""Groups are discovered in files and frames, and unsafe columns are refused."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.choices import sample_parameters
from support.engine_list import duckdb_frame

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, count_persons_by_group, persons
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


# Several columns ----------------------------------------------------------------------------------


def write_sqlite(frame: pl.DataFrame, folder: Path) -> Files:
    path = folder / "visits.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        kinds = ", ".join(
            f"{name} {'TEXT' if kind == pl.String else 'INTEGER'}"
            for name, kind in frame.schema.items()
        )
        database.execute(f"CREATE TABLE visits ({kinds})")
        places = ", ".join("?" * frame.width)
        database.executemany(f"INSERT INTO visits VALUES ({places})", frame.rows())  # noqa: S608
    return Files(path, table="visits")


def write_duckdb(frame: pl.DataFrame, folder: Path) -> Files:
    path = folder / "visits.duckdb"
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.from_arrow(frame.to_arrow()).create("visits")
    return Files(path, table="visits")


def write(method: str, name: str) -> Callable[[pl.DataFrame, Path], Files]:
    def write_file(frame: pl.DataFrame, folder: Path) -> Files:
        getattr(frame, method)(folder / name)
        return Files(folder / name)

    return write_file


SOURCES: dict[str, Callable[[pl.DataFrame, Path], Any]] = {
    "Polars": lambda frame, _: frame,
    "Polars lazy": lambda frame, _: frame.lazy(),
    "pandas": lambda frame, _: frame.to_pandas(),
    "pandas, Arrow": lambda frame, _: frame.to_arrow().to_pandas(types_mapper=pd.ArrowDtype),
    "Arrow": lambda frame, _: frame.to_arrow(),
    "DuckDB": lambda frame, _: duckdb_frame(frame.to_arrow()),
    "CSV file": write("write_csv", "visits.csv"),
    "JSON file": write("write_ndjson", "visits.jsonl"),
    "Parquet file": write("write_parquet", "visits.parquet"),
    "SQLite file": write_sqlite,
    "DuckDB file": write_duckdb,
}
PAIR = ("city", "day")
CITIES = ["cork", "Cork", "a b", "it's", "", None]
DAYS = [-1, 0, 7, 10, None]


def visits(rows: int = 600) -> pl.DataFrame:
    """Return visits of some persons, of which many lack a city, a day or both."""
    rng = np.random.default_rng()
    drawn = {
        "who": rng.integers(0, 60, rows).tolist(),
        "city": [CITIES[n] for n in rng.integers(0, len(CITIES), rows)],
        "day": [DAYS[n] for n in rng.integers(0, len(DAYS), rows)],
    }
    return pl.DataFrame(drawn, schema={"who": pl.Int64, "city": pl.String, "day": pl.Int64})


def labels_of(frame: pl.DataFrame) -> list[tuple[int, tuple[str, str]]]:
    """Return the person and the labels of each row that has both."""
    rows = frame.select("who", *PAIR).rows()
    return [(who, (city, str(day))) for who, city, day in rows if city and day is not None]


def counted(source: Any, columns: Sequence[str], unit: Unit | None) -> dict[tuple[str, ...], int]:
    counts = count_persons_by_group(source, columns, unit)
    assert len(set(counts.keys)) == len(counts.keys)
    return dict(zip(counts.keys, counts.persons.tolist(), strict=True))


@pytest.mark.parametrize("engine", sample_parameters(SOURCES, 2))
def test_combinations_of_columns_are_counted_as_one_group(engine: str, tmp_path: Path) -> None:
    frame = visits()
    source = SOURCES[engine](frame, tmp_path)
    rows = Counter(labels for _, labels in labels_of(frame))
    different = Counter(labels for _, labels in set(labels_of(frame)))
    assert counted(source, PAIR, None) == rows
    assert counted(source, PAIR, Unit(("who",), max_groups=100)) == different
    reversed_persons = {labels[::-1]: number for labels, number in different.items()}
    assert counted(source, PAIR[::-1], Unit(("who",), max_groups=100)) == reversed_persons


@pytest.mark.parametrize("engine", sample_parameters(SOURCES, 2))
def test_a_person_counts_in_few_combinations_which_only_their_rows_decide(
    engine: str, tmp_path: Path
) -> None:
    frame, unit = visits(), Unit(("who",), max_groups=2)
    counts = counted(SOURCES[engine](frame, tmp_path), PAIR, unit)
    groups = Counter(who for who, _ in set(labels_of(frame)))
    assert sum(counts.values()) == sum(min(2, number) for number in groups.values())
    assert counts == counted(frame, PAIR, unit)  # As in every other engine.
    some = frame["who"] < 30
    parts = (SOURCES[engine](frame.filter(part), tmp_path) for part in (some, ~some))
    first, second = (Counter(counted(part, PAIR, unit)) for part in parts)
    assert counts == first + second


def test_rows_that_are_persons_are_not_divided_into_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts are made by a hash of the ids, and there are none."""
    monkeypatch.setattr(persons.InDuckDB, "number_of_parts", lambda *_: 3)
    frame = visits()
    assert counted(frame, PAIR, None) == Counter(labels for _, labels in labels_of(frame))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [pl.Float64, pl.Int8, pl.String])
def test_the_types_of_columns_change_no_combination(kind: Any) -> None:
    """One empty cell turns integers into floats, one word turns them into text."""
    frame, unit = visits(), Unit(("who",), max_groups=2)
    changed = frame.with_columns(pl.col("day").cast(kind))
    assert counted(changed, PAIR, unit) == counted(frame, PAIR, unit)


def test_three_columns_of_different_types_are_one_group() -> None:
    days = [date(2024, 2, 29), date(2024, 2, 29), None, date(2024, 2, 29)]
    frame = pl.DataFrame({"a": [1.0, -0.0, 2.0, 0.0], "b": [True, False, True, False], "c": days})
    expected = {("1", "true", "2024-02-29"): 1, ("0", "false", "2024-02-29"): 2}
    assert counted(frame, ["a", "b", "c"], None) == expected


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (["07", "x"], r"text_columns=\['second'\]"),
        ([0.5, 1.0], "'second' holds floats"),
        ([b"a", b"b"], "'second' holds"),
    ],
)
def test_every_column_of_a_combination_is_checked(second: list[Any], words: str) -> None:
    people = pa.table({"who": [1, 2], "city": ["a", "b"], "second": second})
    for columns in (["city", "second"], ["second", "city"]):
        with pytest.raises(ArgumentError, match=words):
            count_persons_by_group(people, columns, Unit(("who",)))


def test_text_columns_are_those_that_are_declared() -> None:
    people = pa.table({"city": ["07", "7"], "day": ["1.0", "1"]})
    with pytest.raises(ArgumentError, match=r"text_columns=\['day'\]"):
        count_persons_by_group(people, PAIR, None, text=["city"])
    counts = count_persons_by_group(people, PAIR, None, text=PAIR)
    assert sorted(counts.keys) == [("07", "1.0"), ("7", "1")]
    with pytest.raises(ArgumentError, match="'day' is declared to be text"):
        count_persons_by_group(pa.table({"city": ["a"], "day": [1]}), PAIR, None, text=PAIR)


def test_an_id_is_not_a_part_of_a_combination(data: Any) -> None:
    with pytest.raises(ArgumentError, match="who"):
        count_persons_by_group(data, ["city", "who"], Unit(("who",)))
