"""Every source gives the same integers in one scan, or an error of one line."""

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.alarms import LONG
from support.choices import sample_cases
from support.engine_list import ENGINES, TYPES, Engine, arrow_table, plans, tables
from support.pipes import standard_input
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.core.errors import ArgumentError, DpnoiseError, MissingExtraError
from dpnoise.statistics.engines import Files, tally, tally_all
from dpnoise.statistics.engines import files as engine_files
from dpnoise.statistics.plan import Cells, Edges, Grouping, Plan, Rows, Sums, Unit

X = Sums("x", 0.5, -100, 100)
COUNT = Plan((X, Rows()), missing="drop")
SECRET = "4711-secret"  # noqa: S105 - what no error may show


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def error_message(files: Files, plan: Plan = COUNT) -> str:
    with pytest.raises(ArgumentError) as raised:
        tally(files, plan)
    message = str(raised.value)
    assert SECRET not in message
    assert "\n" not in message
    return message


def rows_and_total(files: Files) -> tuple[int, int]:
    values, rows = tally(files, COUNT).answers
    return int(rows), int(values.total)  # type: ignore[arg-type, union-attr]


# Several plans, one scan. -------------------------------------------------------------------------


class CountingStream:
    """A stream of Arrow that counts its scans."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.scans = table, 0

    def __arrow_c_stream__(self, schema: object = None) -> object:
        def batches() -> Any:
            self.scans += 1
            yield from self.table.to_batches()

        reader = pa.RecordBatchReader.from_batches(self.table.schema, batches())
        return reader.__arrow_c_stream__(schema)


PEOPLE: dict[str, list[Any]] = {
    "x": [1.5, 2.25, None, -3.0, 0.1, 7.0],
    "city": ["cork", "NA", "cork", "dublin", None, "cork"],
    "sex": [0, 1, 1, 0, 1, 2],
}
CITY, SEX = Grouping("city", ("cork", "NA", "nobody")), Grouping("sex", (0, 1))
SEVERAL = [
    Plan((X, Rows()), missing="drop"),
    Plan((Cells("x", 1.0, -3, 3), X), (CITY,), missing="drop"),
    Plan(
        (Rows(), Cells("x", 1.0, -3, 3), Edges("x", (0.0, 1.5, 9.0))), (CITY, SEX), missing="drop"
    ),
    Plan((Rows(),), (SEX,), missing="drop"),
    Plan((Rows(), X), (SEX, CITY), missing="drop"),
    Plan((Cells("x", 1.0, -3, 3),), (CITY,), missing="drop"),
]


def test_several_groupings_are_one_scan_of_the_data() -> None:
    stream = CountingStream(pa.table(PEOPLE))
    connection = duckdb.connect()
    connection.register("people", stream)
    for ours, plan in zip(tally_all(connection.table("people"), SEVERAL), SEVERAL, strict=True):
        assert_same(ours, reference_tally(PEOPLE, plan))
    assert stream.scans == 1


ONE_QUERY_ENGINES = [name for name in ENGINES if name.startswith(("Polars", "DuckDB", "Arrow"))]


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ONE_QUERY_ENGINES)
@hypothesis.settings(max_examples=8 if LONG else 2, deadline=None)
@hypothesis.given(data=st.data())
def test_several_plans_have_the_same_answers_as_each_plan_separately(
    engine: str, data: st.DataObject
) -> None:
    chosen: Engine = ENGINES[engine]
    columns = data.draw(tables())
    drawn = data.draw(st.lists(plans(list(TYPES)), min_size=2, max_size=3))
    tallies = tally_all(chosen.frame(arrow_table(columns)), drawn)
    for ours, plan in zip(tallies, drawn, strict=True):
        assert_same(ours, reference_tally(columns, plan))


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", [name for name in ENGINES if "u64" not in ENGINES[name].lacks])
def test_edges_beyond_signed_integers_are_compared_exactly(engine: str) -> None:
    columns = {name: [None] * 3 for name in TYPES} | {"u64": [2**63 - 1, 2**63, 2**64 - 1]}
    plan = Plan((Edges("u64", (0.0, 2.0**63)), Edges("u64", (2.0**63, 1.5 * 2.0**63))))
    assert_same(
        tally(ENGINES[engine].frame(arrow_table(columns)), plan), reference_tally(columns, plan)
    )


def test_a_row_error_in_one_of_several_plans_names_the_row(tmp_path: Path) -> None:
    """The row of dublin is outside the declared groups of one plan. The other has no groups."""
    path = write_file(tmp_path, "p.csv", f"x,city\n1,cork\n{SECRET},dublin\n")
    grouped = Plan((X,), (Grouping("city", ("cork",)),))
    assert "Row 2 of column 'x'" in error_message(Files(path))
    assert int(tally_all(Files(path), [grouped, grouped])[1].answers[0].count[0]) == 1  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="Row 2 of column 'x'"):
        tally_all(Files(path), [grouped, Plan((X,))])


# Line breaks in quotes. ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Write 20 MB of rows with notes that look like rows; return the path and the row count."""
    path = tmp_path_factory.mktemp("notes") / "notes.csv"
    rng = np.random.default_rng()
    rows = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["x", "note"])
        while file.tell() < 20_000_000:
            writer.writerow([2, "\n1,cork" * int(rng.integers(1, 20_000))])
            writer.writerows([[3, "plain"]] * 3)
            rows += 4
    return path, rows


def test_text_in_quotes_is_never_read_as_a_row(notes: tuple[Path, int]) -> None:
    path, rows = notes
    assert rows_and_total(Files(path)) == (rows, rows // 4 * (2 + 3 * 3) * 2)


def test_an_unclosed_last_quote_is_an_error(notes: tuple[Path, int], tmp_path: Path) -> None:
    """When it reads in order, DuckDB would silently leave out the last row."""
    path = write_file(tmp_path, "open.csv", notes[0].read_bytes() + f'5,"{SECRET}\n'.encode())
    assert "has a quote that is not closed" in error_message(Files(path))
    assert "longer than 16 MiB" in error_message(
        Files(write_file(tmp_path, "long.csv", b'x,y\n1,"' + b"a\n" * 2**23 + b'"\n'))
    )


def test_a_row_may_have_millions_of_letters(tmp_path: Path) -> None:
    path = write_file(tmp_path, "long.csv", b"x,y\n1," + b"a" * 5_000_000 + b"\n2,b\n")
    assert rows_and_total(Files(path)) == (2, 6)


# Which lines are rows. ----------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("\n\nx,y\n1,a\n2,b\n", 2),
        ("\r\n\r\nx,y\r\n1,a\r\n2,b", 2),
        ("\ufeffx,y\n1,a\n", 1),
        ("x,y\n1,a\n\n\n2,b\n\n", 2),
        ("x\n1\n\n2\n\n", 4),
        ('x\n1\n""\n2\n', 3),
        ("x,y\r1,a\r2,b\r", 2),
        ("x,y\n 1 , a\n2,b\n", 2),
        ('"x","a\nb"\n1,2\n', 1),
        ('x,y\n1,5" pipe\n', 1),
        ("x,y", 0),
    ],
)
def test_rows_are_counted_as_people_see_them(content: str, rows: int, tmp_path: Path) -> None:
    assert rows_and_total(Files(write_file(tmp_path, "p.csv", content)))[0] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y\n1,a\r\n2,b\n", "line ends of several kinds"),
        ("\n\nx,y\r\n1,a\r\n", "line ends of several kinds"),
        ('x,y\n1,"a"b\n', "line 2 has a quote that is not closed, or text after one"),
        ("x,X\n1,2\n", "differ only by capitals"),
    ],
)
def test_files_that_would_be_misread_are_refused(
    content: str, message: str, tmp_path: Path
) -> None:
    plan = Plan((X, Sums("X", 0.5, 0, 9))) if "X" in content else COUNT
    assert message in error_message(Files(write_file(tmp_path, "p.csv", content)), plan)


def test_no_line_of_json_changes_what_another_means(tmp_path: Path) -> None:
    """By default, DuckDB reads all lines as values of one column if one is not an object."""
    for line in ("5", '"a"', '[{"x": 1}]'):
        path = write_file(tmp_path, "p.jsonl", f'{{"x": 1}}\n{line}\n')
        assert "has a line that is not a JSON object" in error_message(Files(path))
    nested = write_file(tmp_path, "p.jsonl", '{"x": {"a": 1}}\n')
    assert error_message(Files(nested)).startswith(
        "Row 1 of column 'x' holds text that is not a number"
    )


def test_columns_that_differ_by_capitals_are_different_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"X": [100], "x": [3]}), tmp_path / "p.parquet")
    assert rows_and_total(Files(tmp_path / "p.parquet")) == (1, 6)
    assert rows_and_total(Files(write_file(tmp_path, "p.csv", "X,x\n100,3\n"))) == (1, 6)


def write_sqlite(folder: Path, *rows: tuple[Any, ...], kinds: str = "x REAL, city TEXT") -> Files:
    path = folder / "people.db"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE people ({kinds})")
        marks = ", ".join("?" * len(kinds.split(",")))
        database.executemany(f"INSERT INTO people VALUES ({marks})", rows)  # noqa: S608 - ours
    database.close()
    return Files(path, table="people")


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "db"])
@pytest.mark.parametrize("row", [1, 19_998])
def test_the_first_wrong_row_is_named_in_every_format(row: int, kind: str, tmp_path: Path) -> None:
    for problem in sample_cases(("missing", "text"), 1):
        check_first_wrong_row(row, problem, kind, tmp_path)


def check_first_wrong_row(row: int, problem: str, kind: str, tmp_path: Path) -> None:
    """Write a file with the same problem in two rows, and check which one is named."""
    entries: list[Any] = ["1"] * 20_000
    entries[row - 1] = entries[row] = "NA" if problem == "missing" else SECRET
    path = tmp_path / f"p.{kind}"
    source = Files(path)
    if kind == "csv":
        path.write_text("x,city\n" + "".join(f"{entry},cork\n" for entry in entries))
    elif kind == "jsonl":
        path.write_text(
            "".join(json.dumps({"x": entry, "city": "cork"}) + "\n" for entry in entries)
        )
    elif kind == "parquet":
        pq.write_table(
            pa.table({"x": entries, "city": ["cork"] * 20_000}), path, row_group_size=999
        )
    else:
        source = write_sqlite(
            tmp_path, *((entry, "cork") for entry in entries), kinds="x TEXT, city TEXT"
        )
    message = error_message(source, Plan((X,), (Grouping("city", ("cork",)),)))
    assert message.startswith(f"Row {row} of column 'x'")
    assert ("(the header not counted)" in message) == (kind == "csv")
    assert ("has no value" in message) == (problem == "missing")


def test_the_file_with_the_wrong_row_is_named(tmp_path: Path) -> None:
    valid = write_file(tmp_path, "a.csv", "x\n1\n2\n")
    invalid = write_file(tmp_path, "b.csv", f"\nx\n1\n{SECRET}\n")
    message = error_message(Files([valid, invalid]))
    assert message.startswith(f"Row 2 of {invalid} of column 'x'")


# SQLite. ------------------------------------------------------------------------------------------


def test_sqlite_needs_no_extension_and_gives_the_same_integers(tmp_path: Path) -> None:
    columns = {"x": PEOPLE["x"], "city": PEOPLE["city"]}
    source = write_sqlite(tmp_path, *zip(*columns.values(), strict=True))
    plan = Plan((X, Rows()), (CITY,), missing="drop")
    assert_same(tally(source, plan), reference_tally(columns, plan))


def duckdb_file(path: Path, *statements: str) -> Path:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def number_of_rows(path: Path, table: str, unit: Unit | None = None) -> int:
    (rows,) = tally(Files(path, table=table), Plan((Rows(),), unit=unit)).answers
    return int(rows)  # type: ignore[arg-type]


def test_tables_and_views_of_a_duckdb_file_are_read(tmp_path: Path) -> None:
    path = duckdb_file(
        tmp_path / 'it\'s [a] "file".duckdb',
        "CREATE TABLE rows AS SELECT range AS x, 'c' || range % 2 AS city FROM range(10)",
        'CREATE SCHEMA other; CREATE VIEW other."odd ""name" AS SELECT x + 1 AS x FROM rows',
        "CREATE TABLE nothing (x INTEGER)",
    )
    grouped = Plan((Rows(), X), (Grouping("city", ("c0", "c1")),))  # Sums are in halves.
    rows, sums = tally(Files(path, table="rows"), grouped).answers
    assert (rows.tolist(), sums.total.tolist()) == ([5, 5], [40, 50])  # type: ignore[union-attr]
    for name in ("main.rows", "rows"):
        assert number_of_rows(path, name) == 10
    (sums,) = tally(Files(path, table='other.odd "name'), Plan((X,))).answers
    assert int(sums.total) == 110  # type: ignore[union-attr]
    assert number_of_rows(path, "nothing") == 0
    with pytest.raises(ArgumentError, match=r"has no table 'visits'\. It has: main\.nothing, main"):
        tally(Files(path, table="visits"), Plan((Rows(),)))
    with pytest.raises(ArgumentError, match="has no column 'y'"):
        tally(Files(path, table="rows"), Plan((Rows(),), (Grouping("y", ("a",)),)))
    with pytest.raises(ArgumentError, match="the name of a table"):
        tally(Files(path), Plan((Rows(),)))


def test_a_duckdb_file_that_another_program_writes_or_that_is_none_is_refused(
    tmp_path: Path,
) -> None:
    path = duckdb_file(tmp_path / "a.duckdb", "CREATE TABLE rows (x INTEGER)")
    writer = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    )
    command = [sys.executable, "-c", writer, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(ArgumentError, match="is open in another program"):
            tally(Files(path, table="rows"), Plan((Rows(),)))
        process.communicate(b"\n")
    assert number_of_rows(path, "rows") == 0
    other = tmp_path / "b.duckdb"
    other.write_text("secret")
    with pytest.raises(ArgumentError, match="cannot be read") as raised:
        tally(Files(other, table="rows"), Plan((Rows(),)))
    assert "secret" not in str(raised.value)


def test_ids_of_a_duckdb_file_that_its_collation_calls_equal_are_different_persons(
    tmp_path: Path,
) -> None:
    """As in a frame of DuckDB: a person is who has the same id to the letter."""
    path = duckdb_file(
        tmp_path / "a.duckdb",
        "CREATE TABLE rows (who VARCHAR COLLATE NOCASE, x INTEGER)",
        "INSERT INTO rows VALUES ('a', 1), ('A', 1), ('a', 1)",
    )
    assert number_of_rows(path, "rows", Unit(("who",), 1, 1)) == 2


def test_columns_of_sqlite_are_what_their_table_declares(tmp_path: Path) -> None:
    kinds = "x INTEGER, g NUMERIC, t TEXT, r REAL, n"
    source = write_sqlite(
        tmp_path, (2**53 + 1, 1, "1.0", 1, b"1"), (None, 1.5, "b", 2, 7), kinds=kinds
    )
    columns = {"x": [2**53 + 1, None]}
    exact = Plan(
        (Sums("x", 2.0**13, 0, 2**51), Edges("x", (0.0, 2.0**53, 2.0**54))), missing="drop"
    )
    assert_same(tally(source, exact), reference_tally(columns, exact))
    for name, keys in {"g": (1, 1.5), "t": ("1.0", "b"), "r": ("1", 2), "n": ("1", "7")}.items():
        counts = tally(source, Plan((Rows(),), (Grouping(name, tuple(map(str, keys))),)))
        assert counts.answers[0].tolist() == [1, 1]  # type: ignore[union-attr]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kinds", "entry", "message"),
    [
        ("x INTEGER", SECRET, "Row 2 of column 'x' does not hold an integer"),
        ("x INTEGER", 1.5, "Row 2 of column 'x' does not hold an integer"),
        ("x REAL", SECRET, "Row 2 of column 'x' does not hold a number"),
        ("x REAL", b"\xff", "Row 2 of column 'x' does not hold a number"),
        ("x TEXT", SECRET, "Row 2 of column 'x' holds text that is not a number"),
        ("x TEXT", b"\xff", "Row 2 of column 'x' holds text that is not a number"),
    ],
)
def test_a_row_of_sqlite_that_is_not_as_declared_is_named(
    kinds: str, entry: Any, message: str, tmp_path: Path
) -> None:
    assert error_message(write_sqlite(tmp_path, (1,), (entry,), kinds=kinds)).startswith(message)


def test_an_error_describes_what_is_wrong_with_a_database(tmp_path: Path) -> None:
    source = write_sqlite(tmp_path, (1, "a"))
    assert "has no table 'none'. It has: people." in error_message(
        Files(source.paths, table="none")
    )
    assert 'table="people"' in error_message(Files(source.paths))
    assert "is not one" in error_message(
        Files(write_file(tmp_path, "p.csv", "x\n"), table="people")
    )
    assert "not a database of SQLite" in error_message(
        Files(write_file(tmp_path, "x.db", SECRET), table="people")
    )
    lock_holder = sqlite3.connect(source.path_texts[0], isolation_level=None)
    lock_holder.execute("BEGIN EXCLUSIVE")
    assert "it is locked" in error_message(source)
    lock_holder.close()


# PostgreSQL; most of its tests are in tests/cluster. ----------------------------------------------


def test_a_driver_that_is_missing_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[postgres\]"'):
        tally(Files("postgresql://localhost/none", table="people"), COUNT)


# The standard input. ------------------------------------------------------------------------------


def test_a_pipe_is_read_once_and_whole() -> None:
    """The pipe has quoted line breaks and starts with empty lines. Errors name no row."""
    note = io.StringIO()
    csv.writer(note, lineterminator="\n").writerows([[2, "a\n1,b"], [3, "c"]] * 5_000)
    x = Plan((Sums("x", 1.0, 0, 9), Rows()))
    both = [x, Plan((Rows(),), (Grouping("y", ("c",)),))]

    def message(text: str) -> str:
        with standard_input(text.encode()), pytest.raises(DpnoiseError) as raised:
            tally_all(Files("-"), both)
        return str(raised.value)

    with standard_input(f"\n\nx,y\n{note.getvalue()}".encode()):
        first, second = tally_all(Files("-"), both)
    values, rows = first.answers
    assert (int(values.total), int(rows)) == (25_000, 10_000)  # type: ignore[union-attr, arg-type]
    assert second.answers[0].tolist() == [5_000]  # type: ignore[union-attr]
    assert "quote that is not closed" in message(f'x,y\n1,a\n2,"{SECRET}\n')
    assert message(f"x,y\n1,a\n{SECRET},b\n").startswith(
        "Column 'x' holds text that is not a number."
    )


WAITING_COMMAND = """
import signal, sys
from dpnoise import cli
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("ready", file=sys.stderr, flush=True)
sys.exit(cli.main(["release", "-", "--column", "x", "--output", sys.argv[1]]))
"""


class LateSource:
    """A source that starts to read only after the first attempt to end it."""

    def __init__(self) -> None:
        self.connection = self
        self.attempts = 0
        self.tried, self.ended = threading.Event(), threading.Event()

    def query_progress(self) -> float:
        """Return no progress."""
        return 0.0

    def interrupt(self) -> None:
        """Count the attempts to end the query."""
        self.attempts += 1

    def stop(self) -> None:
        """End the query if it has started."""
        if self.attempts > 1:
            self.ended.set()
        self.tried.set()

    def read(self) -> None:
        """Start late, and read until `stop` ends it."""
        self.tried.wait()
        self.ended.wait()


def test_a_query_that_begins_after_a_signal_is_ended_too() -> None:
    source = LateSource()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine_files._run_interruptibly(source.read, source, interrupt)  # type: ignore[arg-type]
    assert source.attempts > 1


def test_a_signal_ends_a_command_that_waits_for_a_pipe(tmp_path: Path) -> None:
    """The pipe has one row and stays open, so the command would wait forever."""
    command = [sys.executable, "-c", WAITING_COMMAND, str(tmp_path / "out.json")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stderr.readline()
        process.stdin.write(b"x\n1\n")
        process.stdin.flush()
        while not list(tmp_path.glob(".dpnoise-*")):  # Its output is opened before it reads.
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
        assert process.stderr.read() == b"dpnoise: ended by SIGTERM\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_formats_that_need_a_file_are_refused_from_a_pipe(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w"), os.fdopen(os.dup(reader)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert "from a pipe" in error_message(Files("-", format=kind))
        assert "cannot be combined with files" in error_message(
            Files(["-", __file__], format="csv")
        )


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert error_message(Files("-")) == "The standard input is closed. Give a file."
