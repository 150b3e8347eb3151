"""Ids that SQLite treats as equal are one person, or are refused."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.choices import sample_parameters
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files, count_persons_by_group, tally
from dpnoise.statistics.plan import Grouping, Plan, Rows, Sums, Unit

SECRET = "4711-secret"  # noqa: S105 - what no error may show
PERSON = Plan((Rows(),), unit=Unit(("who",)))


def write_visits(folder: Path, declared: str, ids: Sequence[Any], *statements: str) -> Files:
    """Write a table of visits with a column `who`."""
    path = folder / "visits.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.create_collation("mine", lambda a, b: (a > b) - (a < b))
        database.execute(f"CREATE TABLE visits (who {declared})")
        database.executemany("INSERT INTO visits VALUES (?)", [(entry,) for entry in ids])
        for statement in statements:
            database.execute(statement)
    return Files(path, table="visits")


def count_persons(source: Files) -> int:
    """Count the persons, each of whom adds one row."""
    return int(tally(source, PERSON).answers[0])  # type: ignore[arg-type]


def error_message(source: Files, *, discovered: bool = False) -> str:
    with pytest.raises(ArgumentError) as raised:
        count_persons_by_group(source, ["who"], None) if discovered else tally(source, PERSON)
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.sample(3)
@pytest.mark.parametrize("discovered", [False, True])
@pytest.mark.parametrize(
    ("declared", "collation", "instead"),
    [
        ("TEXT COLLATE NOCASE", "NOCASE", 'lower("who")'),
        ("VARCHAR(20) COLLATE nocase", "NOCASE", 'lower("who")'),
        ("COLLATE RTRIM", "RTRIM", 'rtrim("who")'),
        ("TEXT COLLATE mine", "another program", 'lower("who")'),
    ],
)
def test_a_column_whose_collation_merges_texts_is_refused_by_its_schema(
    tmp_path: Path, declared: str, collation: str, instead: str, *, discovered: bool
) -> None:
    message = error_message(write_visits(tmp_path, declared, []), discovered=discovered)
    assert collation in message
    assert f"Make a view with one spelling for each value, such as {instead}" in message


def test_an_index_does_not_hide_the_collation_of_its_column(tmp_path: Path) -> None:
    index = "CREATE INDEX by_who ON visits (who COLLATE BINARY)"
    assert "NOCASE" in error_message(
        write_visits(tmp_path, "TEXT COLLATE NOCASE", ["a", "A"], index)
    )
    assert (
        count_persons(
            write_visits(tmp_path, "TEXT", ["a", "A", "a"], index.replace("BINARY", "NOCASE"))
        )
        == 2
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("column", "is_refused"),
    [
        ("who", True),
        ("CAST(who AS TEXT)", True),
        ("+who", True),
        ("lower(who)", False),
        ("who COLLATE BINARY", False),
    ],
)
def test_the_view_that_an_error_proposes_is_accepted(
    tmp_path: Path, column: str, *, is_refused: bool
) -> None:
    """SQLite keeps the collation of a column through a view and a cast."""
    view = f"CREATE VIEW persons AS SELECT {column} AS who FROM visits"  # noqa: S608 - ours
    ids = ["ann", "ANN", "Bob"]
    source = write_visits(tmp_path, "TEXT COLLATE NOCASE", ids, view)
    with closing(sqlite3.connect(source.path_texts[0])) as database:
        distinct = database.execute("SELECT count(DISTINCT who) FROM persons").fetchone()[0]
    by_view = Files(source.path_texts[0], table="persons")
    if is_refused:
        assert "NOCASE" in error_message(by_view)
    else:
        assert count_persons(by_view) == distinct


DECLARED = ("", "BLOB", "NUMERIC", "TEXT", "INTEGER", "DATE")
SOME_IDS: list[list[Any]] = [
    ["7", "07", "7 ", "7", "a", "A", None, "", "a\0b", "a\0c"],
    [7, 7, -7, 2**63 - 1, None],
    [b"7", b"7", b"\xff", b"\\xff", b"\xfe"],
    ["2024-02-29", "2024-03-01", "2024-02-29"],
]


@pytest.mark.parametrize(("declared", "ids"), sample_parameters(product(DECLARED, SOME_IDS), 5))
def test_ids_are_equal_exactly_if_sqlite_says_so(
    tmp_path: Path, declared: str, ids: list[Any]
) -> None:
    """Ids are counted as the database counts them, or refused if entries have two types."""
    source = write_visits(tmp_path, declared, ids)
    with closing(sqlite3.connect(source.path_texts[0])) as database:
        query = "SELECT count(DISTINCT who) FROM visits WHERE length(CAST(who AS BLOB)) > 0"
        (distinct,) = database.execute(query).fetchone()
        types = {kind for (kind,) in database.execute("SELECT DISTINCT typeof(who) FROM visits")}
    missing = sum(entry in {None, ""} for entry in ids)
    own = Plan((Rows(),), unit=Unit(("who",), without_id="own"))
    if len(types - {"null"}) > 1 or (declared == "INTEGER" and "integer" not in types):
        assert "of column 'who' is " in error_message(source)
    else:
        assert int(tally(source, own).answers[0]) == distinct + missing  # type: ignore[arg-type]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("declared", "ids", "row", "instead"),
    [
        ("", [7, None, 7.0], 3, 'CAST("who" AS INTEGER)'),
        ("NUMERIC", [7, 7.5], 2, 'CAST("who" AS INTEGER)'),
        ("", [7.0, 7], 1, 'CAST("who" AS INTEGER)'),
        ("", [7, "7"], 2, 'CAST("who" AS TEXT)'),
        ("", ["7", 7], 2, 'CAST("who" AS TEXT)'),
        ("TEXT", [SECRET, SECRET.encode()], 2, 'hex("who")'),
        ("INTEGER", [7, SECRET], 2, 'CAST("who" AS TEXT)'),
        ("INTEGER", [*range(20_000), SECRET], 20_001, 'CAST("who" AS TEXT)'),
        ("", [*range(20_000), 0.0], 20_001, 'CAST("who" AS INTEGER)'),
    ],
)
def test_ids_of_two_types_are_refused_with_the_row(
    tmp_path: Path, declared: str, ids: list[Any], row: int, instead: str
) -> None:
    message = error_message(write_visits(tmp_path, declared, ids))
    assert message.startswith(f"Row {row} of column 'who' is ")
    assert f"make a view with {instead}" in message


@pytest.mark.parametrize("discovered", [False, True])
def test_text_that_is_not_utf8_is_not_confused_with_its_escape(
    tmp_path: Path, *, discovered: bool
) -> None:
    invalid = "INSERT INTO visits SELECT CAST(x'ff' AS TEXT)"
    source = write_visits(tmp_path, "TEXT", ["\\xff"], invalid)
    message = error_message(source, discovered=discovered)
    assert message.startswith("Row 2 of column 'who' is text that is not UTF-8")
    assert 'make a view with hex("who")' in message


def test_rows_are_counted_in_the_groups_that_were_discovered(tmp_path: Path) -> None:
    """At epsilon 10,000, noise changes a count with a probability below 1e-300."""
    question = Question(["count"], by=("who",))
    request = Request(1e4, [question], {"who": "discover"}, delta=1e-6)
    for declared, ids in (("", [7] * 50 + [8] * 60), ("TEXT", ["7"] * 50 + ["07"] * 60)):
        release = publish(write_visits(tmp_path, declared, ids), request)
        assert sorted(row["value"] for row in release.rows()) == [50, 60]
    mixtures: list[list[Any]] = [[7, 7.0], [7, "7"], [b"7"]]
    for mixture in mixtures:
        message = error_message(write_visits(tmp_path, "", mixture), discovered=True)
        assert "entries must be all text or all integers" in message


def test_values_and_declared_groups_may_be_of_any_type(tmp_path: Path) -> None:
    source = write_visits(tmp_path, "COLLATE NOCASE", ["1", 1, 1.0, b"1", None, "", 2])
    plan = Plan((Sums("who", 1.0, 0, 5), Rows()), missing="drop")
    assert_same(tally(source, plan), reference_tally({"who": [1, 1, 1, 1, None, None, 2]}, plan))
    (rows,) = tally(source, Plan((Rows(),), (Grouping("who", ("1", "1.0", "2")),))).answers
    assert rows.tolist() == [3, 1, 1]  # type: ignore[union-attr]
