"""The folder of a file and the names of its columns do not change what is read."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.choices import every_nth_case
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.cli import main
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, count_persons_by_group, tally, tally_all
from dpnoise.statistics.loading import load_request
from dpnoise.statistics.plan import Cells, Grouping, Plan, Rows, Sums, Unit

SECRET = "4711-secret"  # noqa: S105 - what no error may show
FORMATS = ("csv", "jsonl", "parquet")


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write columns in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        )
    elif path.suffix == ".db":
        declared = ", ".join(
            f'"{name}" {_sqlite_type(entries)}' for name, entries in columns.items()
        )
        with sqlite3.connect(path) as database:
            database.execute(f"CREATE TABLE people ({declared})")
            marks = ", ".join("?" * len(columns))
            database.executemany(f"INSERT INTO people VALUES ({marks})", rows)  # noqa: S608 - ours
        database.close()
    else:
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in [tuple(columns), *rows]))
    return path


def _sqlite_type(entries: list[Any]) -> str:
    return "TEXT" if isinstance(entries[0], str) else "INTEGER"


def error_message(files: Files, plan: Plan) -> str:
    with pytest.raises(ArgumentError) as raised:
        tally(files, plan)
    assert SECRET not in str(raised.value)
    return str(raised.value)


def sum_of_x(files: Files) -> int:
    return int(tally(files, Plan((Sums("x", 1.0, 0, 100),))).answers[0].total)  # type: ignore[union-attr]


# Folders. -----------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_name_of_a_folder_is_not_a_value_of_a_column(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x=5" / "id=1" / f"p.{kind}", {"x": [1, 2], "id": [7, 8]})
    assert sum_of_x(Files(path)) == 3
    persons = Unit(("id",), max_groups=1, max_rows=1)
    plan = Plan((Rows(),), (Grouping("x", (1, 2, 5)),), unit=persons)
    assert tally(Files(path), plan).answers[0].tolist() == [1, 1, 0]  # type: ignore[union-attr]
    assert sorted(count_persons_by_group(Files(path), ["x"], None).keys) == [("1",), ("2",)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_files_in_folders_of_partitions_are_released_by_the_command(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "year=2024" / f"p.{kind}", {"x": [1, 2]})
    monkeypatch.chdir(tmp_path)
    bounds = ["--column", "x", "--query", "sum", "--lower", "0", "--upper", "9"]
    assert main(["release", f"year=2024/*.{kind}", *bounds]) == 0
    hive = ["--hive", "year=integer", "--group-by", "year=2024,2025"]
    assert main(["release", f"year=*/*.{kind}", *bounds, *hive]) == 0
    assert "2025" in capsys.readouterr().out


PARTITIONS = {
    "year=2023/region=north": [1, 2],
    "year=2023/region=a%2Fb%3Dc": [3],
    "year=2024/region=__HIVE_DEFAULT_PARTITION__": [4, 5],
    "year=2024/region=it's%25;--": [6],
    "year=__HIVE_DEFAULT_PARTITION__/region=north": [7],
}
ROWS: dict[str, list[Any]] = {
    "x": [1, 2, 3, 4, 5, 6, 7],
    "year": [2023, 2023, 2023, 2024, 2024, 2024, None],
    "region": ["north", "north", "a/b=c", None, None, "it's%;--", "north"],
}
HIVE = {"year": "integer", "region": "text"}
BY_BOTH = Plan(
    (Rows(), Sums("x", 1.0, 0, 100), Cells("x", 1.0, 0, 9)),
    (Grouping("year", (2023, 2024, 2025)), Grouping("region", ("north", "a/b=c", "it's%;--"))),
)


def write_partitions(folder: Path, kind: str) -> Path:
    """Write files in folders of two partition columns, and return a pattern for them."""
    for name, values in PARTITIONS.items():
        write(folder / name / f"p.{kind}", {"x": values})
    return folder / "*" / "*" / f"*.{kind}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_declared_partitions_are_columns(kind: str, tmp_path: Path) -> None:
    files = Files(write_partitions(tmp_path, kind), hive=HIVE)
    plans = [
        BY_BOTH,
        Plan((Rows(),), (Grouping("year", (2023, 2024)),)),
        Plan((Sums("year", 1.0, 0, 3_000),), missing="drop"),
        Plan((Rows(),)),
    ]
    for ours, plan in zip(tally_all(files, plans), plans, strict=True):
        assert_same(ours, reference_tally(ROWS, plan))
    counts = count_persons_by_group(
        files, ["region"], Unit(("year",), max_groups=9, max_rows=9, without_id="own")
    )
    assert dict(zip(counts.keys, counts.persons.tolist(), strict=True)) == {
        ("north",): 2,
        ("a/b=c",): 1,
        ("it's%;--",): 1,
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_files_at_all_depths_are_found_by_two_stars(kind: str, tmp_path: Path) -> None:
    write_partitions(tmp_path, kind)
    assert sum_of_x(Files(tmp_path / "**" / f"*.{kind}")) == 28
    assert_same(
        tally(Files(tmp_path / "**" / f"*.{kind}", hive=HIVE), BY_BOTH),
        reference_tally(ROWS, BY_BOTH),
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_type_of_a_partition_is_the_declared_one(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "day=2024-02-29" / "code=007" / f"p.{kind}", {"x": [1]})
    pattern = tmp_path / "day=*" / "code=*" / f"*.{kind}"
    for key, key_type in (("007", "text"), (7, "integer")):
        files = Files(pattern, hive={"code": key_type, "day": "date"})
        by = (Grouping("code", (key,)), Grouping("day", ("2024-02-29", "2024-03-01")))
        assert tally(files, Plan((Rows(),), by)).answers[0].tolist() == [[1, 0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_partition_never_replaces_a_column_of_a_file(kind: str, tmp_path: Path) -> None:
    for name in ("x", "X") if kind != "jsonl" else ("x",):
        path = write(tmp_path / f"{name}=5" / f"p.{kind}", {"x": [1]})
        message = error_message(Files(path, hive={name: "integer"}), Plan((Sums(name, 1.0, 0, 9),)))
        assert f"has a column {name!r}" in message


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_folder_that_is_not_as_declared_is_an_error(kind: str, tmp_path: Path) -> None:
    valid = write(tmp_path / "year=2024" / f"p.{kind}", {"x": [1]})
    not_a_number = write(tmp_path / f"year={SECRET}" / f"p.{kind}", {"x": [1]})
    twice = write(tmp_path / f"year={SECRET}" / "year=2024" / f"p.{kind}", {"x": [1]})
    large = write(tmp_path / f"year={2**63}" / f"p.{kind}", {"x": [1]})
    not_text = write(tmp_path / "year=%FF" / f"p.{kind}", {"x": [1]})
    plan = Plan((Rows(),))

    def message(path: Path, kind: str = "integer") -> str:
        return error_message(Files([valid, path], hive={"year": kind}), plan)

    assert "folder 'year=...' of file 2 of 2 does not name an integer" in message(not_a_number)
    assert "does not name an integer of 64 bits" in message(large)
    assert "does not name a date" in error_message(Files(not_a_number, hive={"year": "date"}), plan)
    assert "does not name text" in message(not_text, "text")
    assert "more than one folder 'year=...'" in message(twice)
    assert "has no folder 'month=...'" in error_message(Files(valid, hive={"month": "text"}), plan)


def test_a_row_is_found_in_its_file_with_partitions_too(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "p.csv", {"x": ["1", "2"]})
    write(tmp_path / "year=2024" / "p.csv", {"x": ["1", "NA"]})
    files = Files(tmp_path / "*" / "*.csv", hive={"year": "integer"})
    grouped = Plan((Sums("x", 1.0, 0, 9),), (Grouping("year", (2024,)),))
    assert error_message(files, grouped).startswith("Row 2 of ")


def test_a_folder_whose_name_is_not_text_may_be_above_a_partition(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    path = write(folder / "year=2024" / "p.csv", {"x": [1, 2]})
    files = Files(path, hive={"year": "integer"})
    plan = Plan((Rows(),), (Grouping("year", (2024,)),))
    assert tally(files, plan).answers[0].tolist() == [2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "hive", [{"year": "float"}, {"year": 5}, {"": "text"}, {"a": "text", "A": "text"}, "year", [1]]
)
def test_partitions_have_names_and_known_types(hive: Any) -> None:
    with pytest.raises(ArgumentError, match="hive"):
        Files("p.csv", hive=hive)


def test_a_database_has_no_partitions(tmp_path: Path) -> None:
    path = write(tmp_path / "p.db", {"x": [1]})
    files = Files(path, table="people", hive={"year": "text"})
    assert "a database has none" in error_message(files, Plan((Rows(),)))


def test_a_request_declares_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "year=2024" / "p.csv", {"x": [1, 2]})
    request = tmp_path / "request.toml"
    text = (
        'epsilon = 1.0\n[source]\npath = "year=*/*.csv"\nhive = {year = "integer"}\n'
        '[groups]\nyear = [2024]\n[[publish]]\nstatistics = ["count"]\nby = ["year"]\n'
    )
    request.write_text(text)
    files = load_request(request).files
    assert files is not None
    assert files.hive == {"year": "integer"}
    assert main(["release", str(request)]) == 0
    assert "2024" in capsys.readouterr().out
    for option, value, setting in (
        ("--hive", "year=text", 'hive = {year = "text"} under [source]'),
        ("--delimiter", ";", 'delimiter = ";" under [source]'),
        ("--query", "count", 'statistics = ["count"] under [[publish]]'),
        ("--person", "x", 'person = ["x"] at the top'),
        ("--group-by", "city=cork", 'city = ["cork"] under [groups]'),
        ("--missing", "drop", 'missing = "drop" at the top'),
    ):
        assert main(["release", str(request), option, value]) == 2
        assert f"In place of {option}, write there: {setting}." in capsys.readouterr().err
    request.write_text(text.replace('"integer"', "5"))
    assert main(["release", str(request)]) == 2
    assert "hive['year']" in capsys.readouterr().err


@pytest.mark.parametrize("hive", ["year", "=text", "year=float", "year="])
def test_the_command_takes_columns_with_types(
    hive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["release", "p.csv", "--hive", hive])
    assert "text, integer, date" in capsys.readouterr().err


def test_the_command_takes_a_partition_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "year=1" / "p.csv", {"x": [1]})
    twice = ["--hive", "year=text", "--hive", "year=integer"]
    assert main(["release", str(path), "--column", "x", *twice]) == 2
    assert "--hive must be given once for each column" in capsys.readouterr().err


# Names. -------------------------------------------------------------------------------------------

ODD_NAMES = (
    *("wrong:0", "row:", "c0", "streamed", "WRONG:0", "lost", "key0", "C1", "value0", "person0"),
    *("place", "mixed", "one", "nothing", "helper0", "rows", "HELPER1", "own", "rowid", "filename"),
)


def write_source(folder: Path, kind: str, columns: dict[str, list[Any]]) -> Files:
    (folder / f"p.{kind}").unlink(missing_ok=True)
    path = write(folder / f"p.{kind}", columns)
    return Files(path, table="people" if kind == "db" else None)


def make_plans(value: str, group: str, person: str) -> list[Plan]:
    """Return a plan without and a plan with a privacy unit."""
    asks = (Rows(), Sums(value, 1.0, 0, 100), Cells(value, 1.0, 0, 9))
    by = (Grouping(group, ("a", "b")),)
    unit = Unit((person,), max_groups=1, max_rows=9)
    return [Plan(asks, by), Plan(asks, by, unit=unit)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [*FORMATS, "db"])
def test_a_column_may_have_the_name_of_one_of_ours(kind: str, tmp_path: Path) -> None:
    """Each person is in one group, so the engine does not choose which group counts."""
    columns: dict[str, list[Any]] = {
        "v": [1, 2, 3, 4, 5, 6],
        "g": ["a", "b", "a", "c", "b", "a"],
        "p": ["1", "2", "1", "3", "2", "4"],
        "w": [9, 9, 9, 9, 9, 9],  # No plan reads it.
    }
    expected = [
        tally(write_source(tmp_path, kind, columns), plan) for plan in make_plans("v", "g", "p")
    ]
    for first in every_nth_case(10, range(len(ODD_NAMES))):
        names = [ODD_NAMES[(first + index) % len(ODD_NAMES)] for index in range(4)]
        files = write_source(tmp_path, kind, dict(zip(names, columns.values(), strict=True)))
        for plan, answers in zip(make_plans(*names[:3]), expected, strict=True):
            assert_same(tally(files, plan), answers)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_text_that_is_not_a_number_is_found_whatever_other_columns_are_called(
    kind: str, tmp_path: Path
) -> None:
    for names in (("wrong:0", "x"), ("row:", "wrong:1"), ("helper0", "helper1"), ("c1", "c0")):
        columns: dict[str, list[Any]] = dict(zip(names, (["1", "2"], ["3", SECRET]), strict=True))
        plan = Plan(tuple(Sums(name, 1.0, 0, 9) for name in names))
        message = error_message(write_source(tmp_path, kind, columns), plan)
        assert message.startswith(f"Row 2 of column {names[1]!r}")
