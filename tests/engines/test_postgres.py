"""A table of PostgreSQL gives the same integers as any other source, from a server of our own."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from engine_list import CENTS, DATES, FLOATS, INTEGERS, KEYS
from tally_reference import assert_same
from tally_reference import tally as judged

from dpnoise.errors import ArgumentError
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files, holders, tally
from dpnoise.statistics.engines.files import tally_all
from dpnoise.statistics.plan import Cells, Grouping, Plan, Rows, Sums, Unit

SECRET = "4711-secret"  # noqa: S105 - what no error may show


def programs() -> Path | None:
    """Return the folder of the server's programs, which Debian keeps out of the path."""
    found = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return Path(found).parent if found else debian[-1].parent if debian else None


pytestmark = pytest.mark.skipif(programs() is None, reason="PostgreSQL's server is not installed")
driver = pytest.importorskip("adbc_driver_postgresql.dbapi")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start a server in a folder of its own, with a socket there and no port; it refuses root."""
    there = programs()
    assert there is not None
    other = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        if other:
            shutil.chown(folder, **other)
        data = ["-D", f"{folder}/data"]
        run: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, **other}
        made = ["-U", "me", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run([there / "initdb", *data, *made], check=True, **run)
        quietly = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        with subprocess.Popen(
            [there / "postgres", *data, *quietly], stderr=subprocess.DEVNULL, **run
        ) as server:
            try:
                yield _once_it_answers(f"postgresql:///postgres?host={folder}&user=me", server)
            finally:
                server.terminate()


def _once_it_answers(address: str, server: Any) -> str:
    while True:
        assert server.poll() is None, "the server ended"
        try:
            driver.connect(address).close()
        except driver.Error:
            time.sleep(0.05)
        else:
            return address


def run(address: str, *statements: str) -> None:
    with driver.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def written(value: Any) -> str:
    """Return a value as SQL has it."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"'{value!r}'"
    text = str(value).replace("'", "''")
    return f"'{text}'"


def made(address: str, name: str, kinds: dict[str, str], columns: dict[str, list[Any]]) -> Files:
    """Make a table of some columns, and return where it is."""
    declared = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
    rows = zip(*(columns[column] for column in kinds), strict=True)
    values = ", ".join(f"({', '.join(map(written, row))})" for row in rows)
    fill = [f'INSERT INTO "{name}" VALUES {values}'] if values else []  # noqa: S608 - ours
    run(address, f'DROP TABLE IF EXISTS "{name}"', f'CREATE TABLE "{name}" ({declared})', *fill)
    return Files(address, table=name)


KINDS = {
    "f64": "double precision",
    "f32": "real",
    "i64": "bigint",
    "i16": "smallint",
    "bool": "boolean",
    "dec": "numeric(18, 2)",
    "big": "numeric",
    "text": "text",
    "gint": "bigint",
    "gbool": "boolean",
    "gdate": "date",
}
HOSTILE: dict[str, list[Any]] = {
    "f64": FLOATS,
    "f32": [0.0, -0.0, 0.5, -0.5, 1.5, 2.0**30, 2.0**-149, *map(float, ("nan", "inf", "-inf"))],
    "i64": INTEGERS,
    "i16": [0, 1, -1, -(2**15), 2**15 - 1],
    "bool": [True, False],
    "dec": CENTS,
    "big": [Decimal(2**53 + 1), Decimal("1e40"), Decimal("-1e-30"), Decimal("0.1"), float("nan"),
            float("inf"), -float("inf"), Decimal(2**64 - 1)],
    "text": KEYS["text"],
    "gint": KEYS["gint"],
    "gbool": [True, False],
    "gdate": DATES,
}  # fmt: skip


def test_every_hostile_value_gives_the_same_integers(address: str) -> None:
    columns = {name: list(islice(cycle([*known, None]), 60)) for name, known in HOSTILE.items()}
    source = made(address, "hostile", KINDS, columns)
    numbers = ("f64", "f32", "i64", "i16", "bool", "dec", "big")
    sums = [Sums(name, 0.5, -(2**20), 2**20, squares=True) for name in numbers]
    wide = [Sums(name, 2.0**13, -(2**51), 2**51) for name in numbers]
    for groups in (("text", "gint"), ("gdate", "gbool"), ()):
        by = tuple(Grouping(name, tuple(HOSTILE[name])) for name in groups)
        plan = Plan((*sums, *wide, Cells("f64", 0.5, -4, 3), Rows()), by, missing="drop")
        assert_same(tally(source, plan), judged(columns, plan))


def test_a_table_may_be_empty_have_any_name_and_be_in_a_schema(address: str) -> None:
    odd = """Ö'"; DROP TABLE x -- {} %s"""
    columns: dict[str, list[Any]] = {"x": []}
    quoted = odd.replace('"', '""')
    run(address, 'CREATE SCHEMA "s p"', f'CREATE TABLE "s p"."{quoted}" ("{quoted}" int)')
    for table in ("empty", f"s p.{odd}"):
        source = made(address, "empty", {"x": "int"}, columns) if table == "empty" else None
        column = "x" if source else odd
        plan = Plan((Sums(column, 1.0, 0, 5), Rows()))
        expected = judged({column: []}, plan)
        assert_same(tally(source or Files(address, table=table), plan), expected)


def test_infinite_dates_are_in_no_group_and_old_ones_are_in_theirs(address: str) -> None:
    days = ["infinity", "-infinity", "0001-01-01", "2024-02-29", None, "0044-03-15 BC"]
    source = made(address, "days", {"day": "date"}, {"day": days})
    keys = (date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31))
    (rows,) = tally(source, Plan((Rows(),), (Grouping("day", keys),))).answers
    assert rows.tolist() == [1, 1, 0]  # type: ignore[union-attr]


def test_persons_are_bounded_and_groups_discovered(address: str) -> None:
    """At epsilon 10,000 noise moves a count with a probability below 1e-300."""
    ids = [person for person in range(200) for _ in range(9)]
    towns = [("cork", "ennis", "tralee")[place % 3] for place in range(len(ids))]
    kinds = {"id": "uuid", "town": "text", "x": "numeric"}
    uuids = [f"00000000-0000-0000-0000-{person:012}" for person in ids]
    source = made(address, "persons", kinds, {"id": uuids, "town": towns, "x": [1] * len(ids)})
    asked = Question(["count"], by=("town",))
    unit: dict[str, Any] = {"person": "id", "max_groups": 3, "max_rows": 2}
    found = publish(source, Request(1e4, [asked], {"town": "discover"}, delta=1e-6, **unit))
    assert [row["value"] for row in found.rows()] == [400, 400, 400]
    plan = Plan((Rows(),), (Grouping("town", ("cork", "ennis")),), unit=Unit(("id",), 1, 2))
    (rows,) = tally(source, plan).answers
    assert int(rows.sum()) == 400  # type: ignore[union-attr]


def test_a_number_is_one_person_however_many_zeros_it_has(address: str) -> None:
    ids = ["7", "7.0", "7.00", "70", "0", "0.0", "-0.50", "-.5", "7"]
    towns = ["1", "1.0", "1.0", "1", "1", "1", "1", "1", "2"]
    kinds = {"id": "numeric", "town": "numeric"}
    source = made(address, "numbers", kinds, {"id": ids, "town": towns})
    assert int(tally(source, Plan((Rows(),), unit=Unit(("id",)))).answers[0]) == 4  # type: ignore[arg-type]
    held = holders(source, "town", Unit(("id",), 3))
    assert dict(zip(held.keys, held.persons.tolist(), strict=True)) == {"1": 4, "1.0": 1, "2": 1}


def test_all_scans_see_one_snapshot(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come after the table was opened are in none of the passes."""
    from dpnoise.statistics.engines import postgres

    source = made(address, "growing", {"id": "int", "x": "int"}, {"id": [1, 2], "x": [1, 1]})
    real = postgres.Table.stream

    def growing(table: Any, wanted: Any) -> Any:
        run(address, "INSERT INTO growing VALUES (3, 1)")
        return real(table, wanted)

    monkeypatch.setattr(postgres.Table, "stream", growing)
    plan = Plan((Rows(),), unit=Unit(("id",), 1, 5))
    counted = [tally.answers[0] for tally in tally_all(source, [plan, Plan((Rows(),))])]
    assert [int(number) for number in counted] == [2, 2]  # type: ignore[arg-type]


def refused(source: Files, *, column: str = "x") -> str:
    with pytest.raises(ArgumentError) as raised:
        tally(source, Plan((Sums(column, 1.0, 0, 5),)))
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_wrong_with_a_table_is_said_in_one_line(address: str) -> None:
    source = made(address, "words", {"x": "text"}, {"x": ["1", SECRET]})
    assert "holds text that is no number" in refused(source)
    assert "has no column 'y'. It has: x." in refused(source, column="y")
    assert "has no table 'nobody'. It has: " in refused(Files(address, table="nobody"))
    assert 'table="people"' in refused(Files(address))
    assert "cannot be read: " in refused(Files("postgresql:///none?host=/nowhere", table="t"))
    run(address, "CREATE ROLE other LOGIN")
    other = Files(address.replace("user=me", "user=other"), table="words")
    assert "permission denied" in refused(other)
    run(address, "CREATE VIEW broken AS SELECT x::int AS x FROM words")
    assert "could not be read to its end" in refused(Files(address, table="broken"))


@pytest.fixture
def heard() -> Iterator[None]:
    """Raise on SIGINT as Python does, even where it is ignored, as in what a shell put aside."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_a_query_that_never_ends_is_ended_by_a_signal(address: str) -> None:
    run(address, "CREATE VIEW slow AS SELECT 1 AS x FROM pg_sleep(600)")
    asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"

    def interrupt() -> None:
        with driver.connect(address, autocommit=True) as other, other.cursor() as cursor:
            while not cursor.execute(asleep).fetchall():
                time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        tally(Files(address, table="slow"), Plan((Rows(),)))
