"""The meaning of a file does not depend on its rows, and an error about it is one line."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.alarms import LONG
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import (
    Files,
    PersonCounts,
    count_persons_by_group,
    frames,
    tally,
    tally_all,
)
from dpnoise.statistics.plan import Cells, Grouping, Plan, Rows, Sums, Unit

X = Sums("x", 0.5, -100, 100)
PEOPLE: dict[str, list[Any]] = {
    "x": [1.5, 2.25, None, -3.0, 0.1],
    "city": ["cork", "NA", "cork", "Cork, County", 'q"x'],
}
PLAN = Plan(
    (X, Cells("x", 1.0, -3, 3), Rows()),
    (Grouping("city", ("cork", "NA", "Cork, County", 'q"x', "nobody")),),
    missing="drop",
)
CSV = 'x,city\n1.5,cork\n2.25,NA\n,cork\n-3.0,"Cork, County"\n0.1,"q""x"\n'
SECRET = "4711-secret"  # noqa: S105 - what no error may show


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(folder: Path, name: str = "people.parquet", **columns: Any) -> Path:
    path = folder / name
    pq.write_table(pa.table(columns or PEOPLE), path)
    return path


def write_json_lines(folder: Path) -> Path:
    rows = zip(PEOPLE["x"], PEOPLE["city"], strict=True)
    lines = [json.dumps({"city": city} | ({} if x is None else {"x": x})) for x, city in rows]
    return write_file(folder, "people.jsonl", "\n".join(lines))


SOURCES: dict[str, Any] = {
    "CSV": lambda folder: Files(write_file(folder, "people.csv", CSV)),
    "CSV with a mark of order": lambda folder: Files(write_file(folder, "p.csv", "\ufeff" + CSV)),
    "CSV of Windows": lambda folder: Files(write_file(folder, "p.csv", CSV.replace("\n", "\r\n"))),
    "compressed CSV": lambda folder: Files(
        write_file(folder, "people.csv.gz", gzip.compress(CSV.encode()))
    ),
    "European CSV": lambda folder: Files(
        write_file(
            folder, "p.csv", "city;x\ncork;1,5\nNA;2,25\ncork;\nCork, County;-3,0\n'q\"x';0,1\n"
        ),
        delimiter=";",
        decimal=",",
        quote="'",
    ),
    "UTF-16": lambda folder: Files(
        write_file(folder, "p.csv", CSV.encode("utf-16")), encoding="utf-16"
    ),
    "Parquet": lambda folder: Files(write_parquet(folder)),
    "JSON lines": lambda folder: Files(write_json_lines(folder)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("source", SOURCES)
def test_every_format_gives_the_same_integers(source: str, tmp_path: Path) -> None:
    assert_same(tally(SOURCES[source](tmp_path), PLAN), reference_tally(PEOPLE, PLAN))


def test_a_pattern_stands_for_all_its_files(tmp_path: Path) -> None:
    for month in ("01", "02"):
        write_file(tmp_path, f"2024-{month}.csv", CSV)
    twice = {name: [*values, *values] for name, values in PEOPLE.items()}
    assert_same(tally(Files(tmp_path / "2024-*.csv"), PLAN), reference_tally(twice, PLAN))
    both = Files([tmp_path / "2024-01.csv", tmp_path / "2024-02.csv"])
    assert_same(tally(both, PLAN), reference_tally(twice, PLAN))


def test_a_file_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Otherwise each row would count twice, and a person would exceed the declared bound."""
    path = write_file(tmp_path, "a.csv", CSV)
    (tmp_path / "b.csv").symlink_to(path)
    pattern = str(tmp_path / "*.csv")
    for paths in ([path, path], [str(path), pattern], pattern):
        with pytest.raises(ArgumentError, match="Give each file once"):
            tally(Files(paths), PLAN)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["a*b.csv", "a[1].csv", "what?.csv", "it's;--.csv"])
def test_a_file_name_may_look_like_a_pattern(name: str, tmp_path: Path) -> None:
    write_file(tmp_path, "axb.csv", "x,city\n")
    write_file(tmp_path, "a1.csv", "x,city\n")
    write_file(tmp_path, "whats.csv", "x,city\n")
    path = write_file(tmp_path, name, CSV)
    assert_same(tally(Files(path), PLAN), reference_tally(PEOPLE, PLAN))


@pytest.mark.long
@pytest.mark.parametrize("piped", [True, False])
def test_the_standard_input_is_read_from_a_pipe_and_from_a_file(
    piped: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
) -> None:
    code = """
from dpnoise.statistics.engines import Files, tally
from dpnoise.statistics.plan import Plan, Rows, Sums
answers = tally(Files("-"), Plan((Sums("x", 0.5, -100, 100), Rows()), missing="drop")).answers
print(answers[0].total, answers[1])
"""
    command = [sys.executable, "-c", code]
    path = write_file(tmp_path, "people.csv", CSV)
    if piped:
        process = subprocess.run(command, input=CSV.encode(), capture_output=True, check=True)
    else:
        with path.open("rb") as opened:
            process = subprocess.run(command, stdin=opened, capture_output=True, check=True)
    assert process.stdout.split() == [b"2", b"5"]


NAMES = ['a"b', "a'b", "a%sb", "a;DROP TABLE x;--", "a\tb", "Größe", "select", "key0", "value0"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_names_and_groups_are_never_parsed_as_sql(name: str, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"x": [1.0, 2.0, 3.0], name: [name, "b", "c"]}
    plan = Plan((X, Rows()), (Grouping(name, (name, "c")),))
    path = tmp_path / "names.csv"
    pl.DataFrame(columns).write_csv(path)
    assert_same(tally(Files(path), plan), reference_tally(columns, plan))
    values = Plan((Sums(name, 0.5, 0, 9),))
    numbers: dict[str, list[Any]] = {name: [1.0, 2.0]}
    assert_same(
        tally(duckdb.connect().from_arrow(pa.table(numbers)), values),
        reference_tally(numbers, values),
    )


ONLY_X = Plan((X,), missing="drop")
BROKEN: dict[str, tuple[str | bytes, Plan, str]] = {
    "empty": ("", ONLY_X, "is empty: it has no header"),
    "the column twice": ("x,x\n1,2\n", ONLY_X, "more than one column 'x'"),
    "no such column": ("y\n1\n", ONLY_X, "has no column 'x'. Its first line has 1 entry."),
    "other separators": ("x;y\n1;2\n", ONLY_X, 'delimiter=";"'),
    "a line break in a name": (
        '"x\ny",z\n1,2\n',
        ONLY_X,
        "has no column 'x'. Its first line has 2",
    ),
    "no header": (f"{SECRET},2\n3,4\n", ONLY_X, "has no column 'x'. Its first line has 2 entries."),
    "a first line that nearly names the column": (
        f"X,{SECRET}\n1,2\n",
        ONLY_X,
        "has no column 'x'",
    ),
    "an unclosed quote in the header": (f'"x\n1,{SECRET}\n', ONLY_X, "quote that is not closed"),
    "a header that is not text": (b"x,\xff\n1,2\n", ONLY_X, "it is not utf-8 text"),
    "an unclosed quote": (f'x,y\n1,2\n3,"{SECRET}\n', ONLY_X, "line 3 has a quote"),
    "an unclosed quote, only rows": (
        f'x\n1\n"{SECRET}\n3\n',
        Plan((Rows(),)),
        "line 3 has a quote",
    ),
    "a longer row": (f"x,y\n1,2\n3,4,{SECRET}\n", ONLY_X, "line 3 has 3 entries where"),
    "a shorter row": ("x,y\n1,2\n3\n", ONLY_X, "line 3 has 1 entries where"),
    "text": (f"x\n{SECRET}\n", ONLY_X, "Row 1 of column 'x' (the header not counted) holds text"),
    "an underscore": ("x\n1_000\n", ONLY_X, "text that is not a number"),
    "a decimal comma": ('x\n"1,5"\n', ONLY_X, "text that is not a number"),
    "bytes of another encoding": (
        b"x,y\n1,\xff\n",
        Plan((X,), (Grouping("y", ("a",)),)),
        "encoding",
    ),
    "a missing value": (
        "x\n1\nNA\n",
        Plan((X,)),
        "Row 2 of column 'x' (the header not counted) has no",
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("problem", BROKEN)
def test_an_error_describes_the_problem_and_shows_no_data(problem: str, tmp_path: Path) -> None:
    content, plan, message = BROKEN[problem]
    path = write_file(tmp_path, "broken.csv", content)
    with pytest.raises(ArgumentError) as raised:
        tally(Files(path), plan)
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_with_only_a_header_has_no_rows(tmp_path: Path) -> None:
    answers = tally(Files(write_file(tmp_path, "header.csv", "x")), Plan((X, Rows()))).answers
    assert int(answers[1]) == 0  # type: ignore[arg-type]


def test_no_row_changes_what_another_means(tmp_path: Path) -> None:
    """With type inference, one row could decide about the type or the dialect of all."""
    base = tally(Files(write_file(tmp_path, "a.csv", "x,y\n01,a\n2,b\n")), ONLY_X)
    for row in ('3,"x;y"', "4,'", "5,#", "6,|", '7,"1;2"'):
        text = f"x,y\n01,a\n2,b\n{row}\n"
        extended = tally(Files(write_file(tmp_path, "b.csv", text)), ONLY_X)
        assert int(extended.answers[0].count) == int(base.answers[0].count) + 1  # type: ignore[union-attr]


def test_text_that_is_not_a_number_is_allowed_outside_the_declared_groups(tmp_path: Path) -> None:
    path = write_file(tmp_path, "p.csv", "x,city\n1,cork\nlots,dublin\n")
    plan = Plan((X,), (Grouping("city", ("cork",)),))
    assert int(tally(Files(path), plan).answers[0].count[0]) == 1  # type: ignore[union-attr]


def test_a_number_of_json_is_one_person_and_one_group_however_it_is_written(tmp_path: Path) -> None:
    """Some programs write 7 as 7.0 if another row has no id."""
    rows = ['{"who": 7, "city": 1}', '{"who": 7.0, "city": 1.0}', '{"who": 70e-1, "city": "1"}']
    path = write_file(tmp_path, "visits.jsonl", "\n".join(rows))
    by = (Grouping("city", ("1",)),)
    (counts,) = tally(Files(path), Plan((Rows(),), by, unit=Unit(("who",)))).answers
    assert np.asarray(counts).tolist() == [1]
    persons = count_persons_by_group(Files(path), ["city"], None)
    assert persons == PersonCounts([("1",)], np.array([3]))


@pytest.mark.sample(2)
@pytest.mark.parametrize("cell", ["0.5", "9007199254740993.0", "1e300", "[7]", '{"id": 7}'])
def test_an_id_of_json_that_may_have_been_rounded_is_refused(cell: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, "visits.jsonl", f'{{"who": 7}}\n{{"who": {cell}}}\n')
    with pytest.raises(ArgumentError, match="neither text nor a whole number below"):
        tally(Files(path), Plan((Rows(),), unit=Unit(("who",))))
    with pytest.raises(ArgumentError, match="neither text nor a whole number below"):
        count_persons_by_group(Files(path), ["who"], None)


def test_an_id_of_one_plan_cannot_be_a_value_of_another(tmp_path: Path) -> None:
    """Its text would be parsed as a number, which merges the persons 7 and 07."""
    path = write_file(tmp_path, "visits.csv", "who\n7\n07\n")
    plans = [Plan((Rows(),), unit=Unit(("who",))), Plan((Sums("who", 1.0, 0, 9),))]
    with pytest.raises(ArgumentError, match="cannot be published too"):
        tally_all(Files(path), plans)


def test_a_decimal_point_is_an_error_where_commas_are_declared(tmp_path: Path) -> None:
    path = write_file(tmp_path, "p.csv", "x;y\n1.5;a\n")
    with pytest.raises(ArgumentError, match="not a number"):
        tally(Files(path, delimiter=";", decimal=","), ONLY_X)


@pytest.mark.parametrize("name", ["garbage.parquet", "garbage.jsonl", "garbage.csv.gz"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, name, f'{{"x": {SECRET}')
    with pytest.raises(ArgumentError, match="cannot be read") as raised:
        tally(Files(path), ONLY_X)
    assert SECRET not in str(raised.value)


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path, "p.csv", CSV)
    answer_all = frames.answer_all

    def change_and_answer(*arguments: Any) -> Any:
        with path.open("a") as opened:
            opened.write("9,cork\n")
        return answer_all(*arguments)

    monkeypatch.setattr("dpnoise.statistics.engines.frames.answer_all", change_and_answer)
    with pytest.raises(ArgumentError, match="changed while it was read"):
        tally(Files(path), ONLY_X)


def test_files_of_several_kinds_are_not_mixed(tmp_path: Path) -> None:
    first = write_file(tmp_path, "a.csv", CSV)
    second = write_file(tmp_path, "b.csv", "city,x\ncork,1\n")
    with pytest.raises(ArgumentError, match="has other columns than"):
        tally(Files([first, second]), ONLY_X)
    with pytest.raises(ArgumentError, match="files must have one format"):
        tally(Files([first, write_parquet(tmp_path)]), ONLY_X)
    other = write_parquet(tmp_path, "other.parquet", x=[1, 2], city=["a", "b"])
    with pytest.raises(ArgumentError, match="has other columns than"):
        tally(Files([write_parquet(tmp_path), other]), ONLY_X)


def test_paths_without_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no file .*nothing"):
        tally(Files(tmp_path / "nothing-*.csv"), ONLY_X)
    with pytest.raises(ArgumentError, match="is a folder"):
        tally(Files(tmp_path), ONLY_X)
    with pytest.raises(ArgumentError, match="at least one file"):
        tally(Files([]), ONLY_X)


def test_thousands_of_columns_are_read_by_name(tmp_path: Path) -> None:
    names = [f"c{index}" for index in range(9_999 if LONG else 1_999)] + ["x"]
    path = write_file(
        tmp_path, "wide.csv", ",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n"
    )
    assert int(tally(Files(path), ONLY_X).answers[0].total) == 2  # type: ignore[union-attr]


def test_lists_are_neither_numbers_nor_groups(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, x=[[1.0]], city=[["a"]])
    with pytest.raises(ArgumentError, match="must hold numbers or booleans"):
        tally(Files(path), ONLY_X)
    with pytest.raises(ArgumentError, match="which is not grouped by"):
        tally(Files(path), Plan((Rows(),), (Grouping("city", ("a",)),)))


def test_progress_is_reported_up_to_the_end(tmp_path: Path) -> None:
    reports: list[float] = []
    tally(Files(write_parquet(tmp_path)), PLAN, progress=reports.append)
    assert reports[-1] == 1.0
    assert reports == sorted(reports)


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": "ab"},
        {"delimiter": "\n"},
        {"delimiter": '"'},
        {"decimal": ","},
        {"decimal": "x"},
        {"encoding": "rot13"},
        {"format": "xls"},
        {"quote": "''"},
    ],
)
def test_an_invalid_description_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"must|not supported"):
        Files("people.csv", **options)


@pytest.mark.parametrize("name", ["staff.xlsx", "staff.XLS", "old/staff.ods"])
def test_an_error_about_a_spreadsheet_says_what_to_do(tmp_path: Path, name: str) -> None:
    """The name decides, so the file need not exist."""
    path = tmp_path / name
    with pytest.raises(ArgumentError, match=r"Save the sheet as CSV .*read_excel") as raised:
        tally(Files(path), ONLY_X)
    assert str(raised.value).startswith(f"{path} is a spreadsheet")
    assert Files(path, format="csv").format_of(str(path)) == "csv"


def test_the_password_of_a_database_stays_out_of_the_description() -> None:
    with pytest.raises(ArgumentError, match="must not contain a password") as raised:
        tally(Files(f"postgresql://me:{SECRET}@host/db", table="people"), ONLY_X)
    assert SECRET not in str(raised.value)


def test_a_table_of_sqlite_gives_the_same_integers(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "people.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE people (x REAL, city TEXT)")
        rows = zip(PEOPLE["x"], PEOPLE["city"], strict=True)
        database.executemany("INSERT INTO people VALUES (?, ?)", rows)
    database.close()
    assert_same(tally(Files(path, table="people"), PLAN), reference_tally(PEOPLE, PLAN))
