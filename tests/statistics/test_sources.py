"""All sources of the same data give the same table, with the same noise."""

import gzip
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from support.choices import sample_parameters

from dpnoise import testing
from dpnoise.core.errors import DpnoiseError
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files

KEY = b"one key for all sources, 32 byte"
REQUEST = Request(
    6.0,
    [
        Question(["count", "mean", "median", "variance"], "age", lower=0, upper=120, by=("city",)),
        Question(["sum", "quantiles:0.1,0.9"], "pay", lower=0, upper=100_000),
        Question(["histogram"], "age", edges=[0, 20, 40, 120]),
        Question(["count"], by=("city", "vote")),
    ],
    groups={"city": ["cork", "NA"], "vote": [0, 1]},
)


@pytest.fixture(scope="module")
def people() -> pl.DataFrame:
    rng = np.random.default_rng()
    rows = 2_000
    return pl.DataFrame(
        {
            "age": rng.integers(-10, 140, rows),
            "pay": rng.normal(30_000, 40_000, rows).round(2),
            "city": rng.choice(["cork", "dublin", "NA"], rows),
            "vote": rng.integers(0, 3, rows),
        }
    )


def write_people(people: pl.DataFrame, folder: Path, name: str) -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(people.write_csv().encode()))
    elif name.endswith(".parquet"):
        people.write_parquet(path)
    elif name.endswith(".jsonl"):
        people.write_ndjson(path)
    elif name.endswith(".db"):
        kinds = {"age": "INTEGER", "pay": "REAL", "city": "TEXT", "vote": "INTEGER"}
        schema = ", ".join(f"{column} {kind}" for column, kind in kinds.items())
        with sqlite3.connect(path) as database:
            database.execute(f"CREATE TABLE people ({schema})")
            database.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", people.rows())
        database.close()
    else:
        people.write_csv(path, separator=";" if "semicolon" in name else ",")
    return path


def utf16(people: pl.DataFrame, folder: Path) -> Path:
    """Write a file with the encoding, quotes and decimal commas of some programs."""
    lines = [
        f"'{age}';'{pay!r}';'{city}';'{vote}'".replace(".", ",")
        for age, pay, city, vote in people.rows()
    ]
    path = folder / "utf16.csv"
    path.write_text("\r\n".join(["age;pay;city;vote", *lines]), encoding="utf-16", newline="")
    return path


SourceFactory = Callable[[pl.DataFrame, Path], Any]
SOURCES: dict[str, SourceFactory] = {
    "a CSV file": lambda people, folder: write_people(people, folder, "people.csv"),
    "its name": lambda people, folder: str(write_people(people, folder, "people.csv")),
    "a compressed CSV file": lambda people, folder: write_people(people, folder, "people.csv.gz"),
    "a Parquet file": lambda people, folder: write_people(people, folder, "people.parquet"),
    "JSON lines": lambda people, folder: write_people(people, folder, "people.jsonl"),
    "Files of CSV": lambda people, folder: Files(write_people(people, folder, "people.csv")),
    "another dialect": lambda people, folder: Files(
        write_people(people, folder, "semicolon.csv"), delimiter=";"
    ),
    "several files": lambda people, folder: Files(
        [
            write_people(people.head(700), folder, "first.parquet"),
            write_people(people.tail(-700), folder, "second.parquet"),
        ]
    ),
    "a pattern": lambda people, folder: str(
        write_people(people.head(700), folder, "part-1.csv").parent
        / write_people(people.tail(-700), folder, "part-2.csv").name.replace("2", "*")
    ),
    "SQLite": lambda people, folder: Files(
        write_people(people, folder, "people.db"), table="people"
    ),
    "UTF-16 in quotes": lambda people, folder: Files(
        utf16(people, folder), encoding="utf-16", quote="'", delimiter=";", decimal=","
    ),
    "a name that is not text": lambda people, folder: write_people(people, folder, "p.csv").rename(
        folder / os.fsdecode(b"p-\xff.csv")
    ),
    "pandas": lambda people, _: people.to_pandas(),
    "Polars": lambda people, _: people,
    "Polars, lazy": lambda people, _: people.lazy(),
    "Arrow": lambda people, _: people.to_arrow(),
    "DuckDB": lambda people, _: duckdb.from_arrow(people.to_arrow()),
}


def table_of(source: Any) -> list[dict[str, Any]]:
    return publish(source, REQUEST, testing.fixed_generator(KEY)).rows()


@pytest.fixture(scope="module")
def expected_rows(people: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return table_of(write_people(people, tmp_path_factory.mktemp("reference"), "reference.csv"))


@pytest.mark.parametrize("source", sample_parameters(SOURCES, 3))
def test_every_source_gives_the_same_table(
    source: str, people: pl.DataFrame, expected_rows: Any, tmp_path: Path
) -> None:
    """The reference is a CSV file. The generator is fixed, so a different integer is detected."""
    assert table_of(SOURCES[source](people, tmp_path)) == expected_rows


def test_what_is_no_source_is_refused_before_noise() -> None:
    for wrong in (None, 3, {"age": [1, 2]}, [1, 2, 3], object()):
        with pytest.raises(DpnoiseError):
            publish(wrong, REQUEST)
