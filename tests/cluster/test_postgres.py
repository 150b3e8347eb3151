"""A table of PostgreSQL gives the same integers as any other source, on a test server."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from support.alarms import LONG
from support.engine_list import CENTS, DATES, FLOATS, INTEGERS, KEYS
from support.neighbours import HOSTILE as HOSTILE_CELLS
from support.neighbours import check_hostile_persons, read_with
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files, count_persons_by_group, tally
from dpnoise.statistics.engines.files import tally_all
from dpnoise.statistics.engines.postgres import PostgresTable
from dpnoise.statistics.plan import Cells, Grouping, Plan, Rows, Sums, Unit

SECRET = "4711-secret"  # noqa: S105 - no error may show it


def program_folder() -> Path | None:
    """Return the folder of the server's programs, which is not in Debian's path."""
    executable = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return Path(executable).parent if executable else debian[-1].parent if debian else None


pytestmark = pytest.mark.skipif(
    program_folder() is None, reason="PostgreSQL's server is not installed"
)
driver = pytest.importorskip("adbc_driver_postgresql.dbapi")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start a server in a new folder, with a socket and no port. It does not run as root."""
    bin_folder = program_folder()
    assert bin_folder is not None
    user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        if user:
            shutil.chown(folder, **user)
        data = ["-D", f"{folder}/data"]
        run: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, **user}
        initdb_options = ["-U", "me", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run([bin_folder / "initdb", *data, *initdb_options], check=True, **run)
        server_options = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        with subprocess.Popen(
            [bin_folder / "postgres", *data, *server_options], stderr=subprocess.DEVNULL, **run
        ) as server:
            try:
                yield _wait_until_ready(f"postgresql:///postgres?host={folder}&user=me", server)
            finally:
                server.terminate()


def _wait_until_ready(address: str, server: Any) -> str:
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


def sql_literal(value: Any) -> str:
    """Return a value as an SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"'{value!r}'"
    text = str(value).replace("'", "''")
    return f"'{text}'"


def make_table(
    address: str, name: str, kinds: dict[str, str], columns: dict[str, list[Any]]
) -> Files:
    """Make a table of some columns, and return its source."""
    declarations = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
    rows = zip(*(columns[column] for column in kinds), strict=True)
    values = ", ".join(f"({', '.join(map(sql_literal, row))})" for row in rows)
    fill = [f'INSERT INTO "{name}" VALUES {values}'] if values else []  # noqa: S608 - our own values
    run(address, f'DROP TABLE IF EXISTS "{name}"', f'CREATE TABLE "{name}" ({declarations})', *fill)
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
    columns = {name: list(islice(cycle([*values, None]), 60)) for name, values in HOSTILE.items()}
    source = make_table(address, "hostile", KINDS, columns)
    numbers = ("f64", "f32", "i64", "i16", "bool", "dec", "big")
    sums = [Sums(name, 0.5, -(2**20), 2**20, squares=True) for name in numbers]
    wide = [Sums(name, 2.0**13, -(2**51), 2**51) for name in numbers]
    for groups in (("text", "gint"), ("gdate", "gbool"), ()):
        by = tuple(Grouping(name, tuple(HOSTILE[name])) for name in groups)
        plan = Plan((*sums, *wide, Cells("f64", 0.5, -4, 3), Rows()), by, missing="drop")
        assert_same(tally(source, plan), reference_tally(columns, plan))


def test_a_table_may_be_empty_have_any_name_and_be_in_a_schema(address: str) -> None:
    odd = """Ö'"; DROP TABLE x -- {} %s"""
    columns: dict[str, list[Any]] = {"x": []}
    quoted = odd.replace('"', '""')
    run(address, 'CREATE SCHEMA "s p"', f'CREATE TABLE "s p"."{quoted}" ("{quoted}" int)')
    for table in ("empty", f"s p.{odd}"):
        source = make_table(address, "empty", {"x": "int"}, columns) if table == "empty" else None
        column = "x" if source else odd
        plan = Plan((Sums(column, 1.0, 0, 5), Rows()))
        expected = reference_tally({column: []}, plan)
        assert_same(tally(source or Files(address, table=table), plan), expected)


def test_infinite_dates_are_in_no_group_and_old_ones_are_in_theirs(address: str) -> None:
    days = ["infinity", "-infinity", "0001-01-01", "2024-02-29", None, "0044-03-15 BC"]
    source = make_table(address, "days", {"day": "date"}, {"day": days})
    keys = (date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31))
    (rows,) = tally(source, Plan((Rows(),), (Grouping("day", keys),))).answers
    assert rows.tolist() == [1, 1, 0]  # type: ignore[union-attr]


def test_persons_are_bounded_and_groups_discovered(address: str) -> None:
    """At epsilon 10,000 noise changes a count with a probability below 1e-300."""
    ids = [person for person in range(200) for _ in range(9)]
    towns = [("cork", "ennis", "tralee")[index % 3] for index in range(len(ids))]
    kinds = {"id": "uuid", "town": "text", "x": "numeric"}
    uuids = [f"00000000-0000-0000-0000-{person:012}" for person in ids]
    source = make_table(
        address, "persons", kinds, {"id": uuids, "town": towns, "x": [1] * len(ids)}
    )
    question = Question(["count"], by=("town",))
    unit: dict[str, Any] = {"person": "id", "max_groups": 3, "max_rows": 2}
    published = publish(source, Request(1e4, [question], {"town": "discover"}, delta=1e-6, **unit))
    assert [row["value"] for row in published.rows()] == [400, 400, 400]
    plan = Plan((Rows(),), (Grouping("town", ("cork", "ennis")),), unit=Unit(("id",), 1, 2))
    (rows,) = tally(source, plan).answers
    assert int(rows.sum()) == 400  # type: ignore[union-attr]


def test_a_number_is_one_person_however_many_zeros_it_has(address: str) -> None:
    ids = ["7", "7.0", "7.00", "70", "0", "0.0", "-0.50", "-.5", "7"]
    towns = ["1", "1.0", "1.0", "1", "1", "1", "1", "1", "2"]
    kinds = {"id": "numeric", "town": "numeric"}
    source = make_table(address, "numbers", kinds, {"id": ids, "town": towns})
    assert int(tally(source, Plan((Rows(),), unit=Unit(("id",)))).answers[0]) == 4  # type: ignore[arg-type]
    counts = count_persons_by_group(source, ["town"], Unit(("id",), 3))
    assert dict(zip(counts.keys, counts.persons.tolist(), strict=True)) == {
        ("1",): 4,
        ("1.0",): 1,
        ("2",): 1,
    }


# Values of every type of ids; PostgreSQL treats some spellings as equal.
SPELLINGS: dict[str, list[str]] = {
    "bool": ["t", "true", "on", "1", "f", "no"],
    "int2": ["7", "07", "-7", "0", "-0"],
    "int4": ["7", "07", "-7", "0", "-0"],
    "int8": ["9007199254740993", "9007199254740992", "+9007199254740993"],
    "float4": ["7", "7.0", "0.7e1", "0", "-0", "8"],
    "float8": ["7", "7.0", "0.7e1", "0", "-0", "9007199254740991"],
    "numeric": ["7", "7.0", "7.00", "70", "0", "-0.0", "-.5", "-0.50", "Infinity", "inf",
                "9007199254740993.10", "9007199254740993.1", "1e40", "1e-40"],
    "text": ["a", "A", "a ", "\u00e4", "a\u0308", "7", "7.0", "NaN"],
    "varchar": ["a", "A", "a ", "\u00e4", "a\u0308", "7", "7.0"],
    "bpchar": ["a", "A", "a ", "a    ", " a"],
    "name": ["a", "A", "a ", "a"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC999C0B4EF8BB6D6BB9BD380A11",
             "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"],
    "date": ["2024-02-29", "29 Feb 2024", "2024-03-01", "12000-01-01", "12000-01-02", "infinity",
             "infinity", "-infinity", "0044-03-15 BC", "0044-03-15"],
    "time": ["12:00", "12:00:00.000000", "12:00 PM", "00:00", "24:00", "12:00:00.000001"],
    "timestamp": ["2024-02-29", "2024-02-29 00:00:00.0", "2024-02-29 00:00:00.000001", "infinity",
                  "infinity", "-infinity", "0044-03-15 BC", "0044-03-15"],
    "timestamptz": ["2024-01-01 00:00+00", "2024-01-01 01:00+01", "2024-10-27 00:30+00",
                    "2024-10-27 01:30+00", "2024-01-01 00:00 UTC", "infinity", "infinity"],
    "bytea": ["\\x61", "a", "\\x5c", "\\x5c783631"],
    "inet": ["10.0.0.1", "10.0.0.1/32", "10.0.0.1/8", "::1", "0:0::0:1", "::ffff:10.0.0.1"],
    "cidr": ["10.0.0.0/8", "10/8", "10.0.0.0/16", "::1", "::1/128"],
    "macaddr": ["08:00:2b:01:02:03", "08002B010203", "08:00:2b:01:02:04"],
    "macaddr8": ["08:00:2b:01:02:03", "08:00:2b:ff:fe:01:02:03", "08:00:2b:01:02:04"],
    "enum_of_two": ["one", "One", "one"],
}  # fmt: skip


def query_rows(address: str, query: str) -> list[Any]:
    with driver.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def count_persons(source: Files, *columns: str, without_id: str = "error") -> list[int]:
    """Return the number of persons by each column; each person adds one row."""
    units = [Unit((column,), without_id=without_id) for column in columns or ["who"]]
    tallies = tally_all(source, [Plan((Rows(),), unit=unit) for unit in units])
    return [int(tally_of_unit.answers[0]) for tally_of_unit in tallies]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def with_types(address: str) -> str:
    """Make the types that the tests of ids need."""
    run(
        address,
        "CREATE EXTENSION citext",
        "CREATE TYPE enum_of_two AS ENUM ('one', 'One')",
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE COLLATION loose "
        "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE DOMAIN email AS citext",
        "CREATE DOMAIN work_email AS email",
        "CREATE DOMAIN loose_text AS text COLLATE loose",
        *(f"CREATE DOMAIN domain_of_{name} AS {name}" for name in SPELLINGS),
    )
    return address


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_id_is_the_person_that_postgresql_calls_it(with_types: str, name: str) -> None:
    spellings = SPELLINGS[name]
    kinds = {"who": name, "domain": f"domain_of_{name}"}
    source = make_table(with_types, "ids", kinds, {"who": spellings, "domain": spellings})
    ((distinct,),) = query_rows(with_types, "SELECT count(DISTINCT who) FROM ids")
    assert 1 < distinct < len(spellings) or name in {"text", "varchar"}
    assert count_persons(source, "who", "domain") == [distinct, distinct]


def test_ids_do_not_depend_on_how_a_session_writes_values(
    with_types: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Clocks go back on October 27, so 00:30 and 01:30 UTC are both shown as 01:30 AAA.
    monkeypatch.setenv("PGTZ", "AAA0AAA-1,M3.5.0,M10.5.0")
    monkeypatch.setenv("PGOPTIONS", "-c datestyle=SQL,DMY -c bytea_output=escape")
    for name in ("date", "timestamp", "timestamptz", "bytea"):
        source = make_table(with_types, "ids", {"who": name}, {"who": SPELLINGS[name]})
        assert [(*count_persons(source),)] == query_rows(
            with_types, "SELECT count(DISTINCT who) FROM ids"
        )


def test_nan_and_empty_text_are_missing_ids(with_types: str) -> None:
    missing_ids: dict[str, list[Any]] = {
        "numeric": ["NaN", "nan", None],
        "domain_of_numeric": ["NaN", "nan", None],
        "float8": ["NaN", "NaN", None],
        "domain_of_float4": ["NaN", "NaN", None],
        "text": ["", "", None],
        "bpchar": ["", "  ", None],
        "bytea": ["", "", None],
    }
    source = make_table(with_types, "ids", {kind: kind for kind in missing_ids}, missing_ids)
    assert count_persons(source, *missing_ids, without_id="own") == [3] * len(missing_ids)
    with pytest.raises(ArgumentError, match="numeric"):
        count_persons(source, "domain_of_numeric")


def open_table(address: str, table: str, stack: ExitStack) -> PostgresTable:
    connection = stack.enter_context(duckdb.connect())
    files = Files(address, table=table)
    return PostgresTable(connection, files, [address], address, stack)


def refusal_message(table: Any, name: str) -> str | None:
    """Return the error for a column of ids, which is the same for discovered groups."""
    errors: list[str | None] = []
    for ids, discovered in (([name], []), ([], [name])):
        try:
            table.declare_ids(ids, discovered)
        except ArgumentError as error:
            errors.append(str(error))
        else:
            errors.append(None)
    assert errors[0] == errors[1]
    return errors[0]


def suggested_sql(error: str) -> str:
    """Return the SQL for a view that an error suggests."""
    assert "Make a view with one spelling for each value, such as " in error
    return error.partition("such as ")[2].removesuffix(", and give that.")


# All types of columns that can be read: without pseudo-types, and without aclitem, which PostgreSQL
# cannot send.
BUILT_IN = """
SELECT t.typname::text, format_type(t.oid, NULL)
FROM pg_type t LEFT JOIN pg_type element ON t.typelem = element.oid
WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype NOT IN ('c', 'p')
AND coalesce(element.typtype NOT IN ('c', 'p'), true)
AND t.typsend <> 0 AND coalesce(element.typsend <> 0, true)
"""


def test_every_type_is_an_id_or_refused_with_a_cast_that_makes_it_one(with_types: str) -> None:
    built_in = query_rows(with_types, BUILT_IN)
    others = ["citext", "email", "work_email", "pair", "enum_of_two[]", "public.domain_of_text[]"]
    types = dict(built_in) | {name: name for name in others}
    declared = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    run(
        with_types,
        "DROP TABLE IF EXISTS every_type CASCADE",
        f"CREATE TABLE every_type ({declared})",
    )
    with ExitStack() as stack:
        table = open_table(with_types, "every_type", stack)
        refusals = {name: refusal_message(table, name) for name in types}
    allowed = {name for name, error in refusals.items() if error is None}
    assert allowed == SPELLINGS.keys() - {"enum_of_two"}
    casts = {name: suggested_sql(error) for name, error in refusals.items() if error is not None}
    columns = ", ".join(f'{cast} AS "{name}"' for name, cast in casts.items())
    run(with_types, f"CREATE VIEW cast_types AS SELECT {columns} FROM every_type")  # noqa: S608
    with ExitStack() as stack:
        open_table(with_types, "cast_types", stack).declare_ids(list(casts), [])


NAMES = ["ann", "ANN"]
DAYS = ["1 day", "24:00:00", "1 mon -29 days"]
LOOSE = 'has the collation "loose":'


@pytest.mark.parametrize(
    ("kind", "ids", "fact", "cast"),
    [
        ("citext", NAMES, "is citext:", 'lower(CAST("who" AS text))'),
        ("work_email", NAMES, "is citext (domain work_email):", 'lower(CAST("who" AS text))'),
        ("text COLLATE loose", NAMES, LOOSE, 'lower("who") COLLATE "C"'),
        ("loose_text", NAMES, LOOSE, 'lower("who") COLLATE "C"'),
        ("char(5) COLLATE loose", NAMES, LOOSE, 'lower("who") COLLATE "C"'),
        ("interval", DAYS, "is interval:", 'CAST(justify_interval("who") AS text)'),
        ("money", ["7", "7.00"], "is money:", 'CAST("who" AS numeric)'),
    ],
)
def test_the_view_that_an_error_asks_for_has_one_person_for_each_value(
    with_types: str, kind: str, ids: list[str], fact: str, cast: str
) -> None:
    run(with_types, "DROP TABLE IF EXISTS loose_ids CASCADE")
    source = make_table(with_types, "loose_ids", {"who": kind}, {"who": ids})
    assert query_rows(with_types, "SELECT count(DISTINCT who) FROM loose_ids") == [(1,)]
    with pytest.raises(ArgumentError) as raised:
        count_persons(source)
    assert f"Column 'who' {fact}" in str(raised.value)
    assert suggested_sql(str(raised.value)) == cast
    run(with_types, f"CREATE VIEW one_spelling AS SELECT {cast} AS who FROM loose_ids")  # noqa: S608
    assert count_persons(Files(with_types, table="one_spelling")) == [1]


def test_a_type_with_a_built_in_name_is_not_taken_for_that_one(with_types: str) -> None:
    run(
        with_types,
        "CREATE SCHEMA impostor",
        "CREATE TYPE impostor.uuid AS (a int)",
        "CREATE TABLE impostors (who impostor.uuid)",
    )
    with pytest.raises(ArgumentError, match=r"is impostor\.uuid: "):
        count_persons(Files(with_types, table="impostors"))


def test_values_and_declared_groups_may_be_of_any_type(with_types: str) -> None:
    kinds = {"a": "citext", "b": "text COLLATE loose", "c": "jsonb", "d": "domain_of_numeric"}
    columns: dict[str, list[Any]] = {name: ["1", "2", "2", None] for name in kinds}
    source = make_table(with_types, "loose_values", kinds, columns)
    numbers = {name: [1, 2, 2, None] for name in kinds}
    values = Plan(tuple(Sums(name, 1.0, 0, 5) for name in kinds), missing="drop")
    assert_same(tally(source, values), reference_tally(numbers, values))
    groups = [Plan((Rows(),), (Grouping(name, ("1", "2")),)) for name in kinds]
    for tally_of_group in tally_all(source, groups):
        assert tally_of_group.answers[0].tolist() == [1, 2]  # type: ignore[union-attr]


def test_only_groups_that_python_can_name_are_discovered(with_types: str) -> None:
    days = ["infinity", "-infinity", "12000-01-01", "0044-03-15 BC", "2024-02-29", None]
    source = make_table(with_types, "groups", {"day": "date"}, {"day": days})
    assert count_persons_by_group(source, ["day"], None).keys == [("2024-02-29",)]
    for kind in ("numeric", "domain_of_numeric", "float8"):
        source = make_table(with_types, "groups", {"x": kind}, {"x": ["NaN", "7", None]})
        ((label,),) = count_persons_by_group(source, ["x"], None).keys
        assert float(label) == 7.0


def test_all_scans_see_one_snapshot(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows inserted after the table was opened are in no pass."""
    source = make_table(address, "growing", {"id": "int", "x": "int"}, {"id": [1, 2], "x": [1, 1]})
    real = PostgresTable.stream

    def insert_and_stream(table: Any, columns: Any) -> Any:
        run(address, "INSERT INTO growing VALUES (3, 1)")
        return real(table, columns)

    monkeypatch.setattr(PostgresTable, "stream", insert_and_stream)
    plan = Plan((Rows(),), unit=Unit(("id",), 1, 5))
    answers = [tally.answers[0] for tally in tally_all(source, [plan, Plan((Rows(),))])]
    assert [int(number) for number in answers] == [2, 2]  # type: ignore[arg-type]


def error_message(source: Files, *, column: str = "x") -> str:
    with pytest.raises(ArgumentError) as raised:
        tally(source, Plan((Sums(column, 1.0, 0, 5),)))
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_errors_about_a_table_are_one_line(address: str) -> None:
    source = make_table(address, "words", {"x": "text"}, {"x": ["1", SECRET]})
    assert "holds text that is not a number" in error_message(source)
    assert "has no column 'y'. It has: x." in error_message(source, column="y")
    assert "has no table 'nobody'. It has: " in error_message(Files(address, table="nobody"))
    assert 'table="people"' in error_message(Files(address))
    assert "cannot be read: " in error_message(Files("postgresql:///none?host=/nowhere", table="t"))
    run(address, "CREATE ROLE other LOGIN")
    other = Files(address.replace("user=me", "user=other"), table="words")
    assert "permission denied" in error_message(other)
    run(address, "CREATE VIEW broken AS SELECT x::int AS x FROM words")
    assert "could not be read to its end" in error_message(Files(address, table="broken"))


@pytest.fixture
def sigint_handler() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, which shells ignore for background commands."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_handler")
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


POSTGRES_TYPES = {
    "int64": "bigint",
    "uint64": "numeric",
    "float64": "double precision",
    "bool": "boolean",
}


def test_a_hostile_person_moves_no_world_beyond_its_sensitivity(
    address: str, tmp_path: Path
) -> None:
    """Columns have the types that pandas infers from all rows."""

    def read_rows(rows: Any) -> Files:
        frame = read_with("pandas", tmp_path, rows)
        kinds = {name: POSTGRES_TYPES.get(str(kind), "text") for name, kind in frame.dtypes.items()}
        columns = {name: [None if pd.isna(x) else x for x in frame[name]] for name in frame}
        return make_table(address, "visits", kinds, columns)

    refused = check_hostile_persons(read_rows, 1_000 if LONG else 30, bases=2)
    assert refused <= len(HOSTILE_CELLS) // 2
