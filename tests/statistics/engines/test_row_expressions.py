"""Every engine filters rows and derives columns as plain Python does."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.alarms import LONG
from support.choices import sample_parameters
from support.engine_list import duckdb_frame
from support.expression_tables import (
    CONDITIONS,
    DATE_CONDITIONS,
    SOURCES,
    TABLE,
    VALUE_EXPRESSIONS,
    arrow_table,
    check_conditions,
    check_values,
    conditions,
    numbers,
)

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, tally, tally_all
from dpnoise.statistics.expressions import parse_condition, parse_value
from dpnoise.statistics.plan import Grouping, Plan, Rows, Sums, Unit

# These have every expression. The others take turns: all use SQL, or the expressions of narwhals.
COMPLETE = ("Polars", "DuckDB")
OTHERS = [name for name in SOURCES if name not in COMPLETE]


def turn_of(source: str, texts: list[str]) -> list[str]:
    """Return the expressions that a source has in `make test`."""
    if LONG or source in COMPLETE:
        return texts
    return texts[OTHERS.index(source) % 4 :: 4]


@pytest.mark.sample(2)
@pytest.mark.parametrize("source", SOURCES)
def test_every_engine_keeps_the_same_rows(source: str, tmp_path: Path) -> None:
    rows = SOURCES[source].read(arrow_table(TABLE), tmp_path)
    texts = CONDITIONS + ([] if "d" in SOURCES[source].lacks else DATE_CONDITIONS)
    check_conditions(rows, turn_of(source, texts))


@pytest.mark.sample(2)
@pytest.mark.parametrize("source", SOURCES)
def test_every_engine_derives_the_same_values(source: str, tmp_path: Path) -> None:
    rows = SOURCES[source].read(arrow_table(TABLE), tmp_path)
    check_values(rows, TABLE, turn_of(source, VALUE_EXPRESSIONS))


@pytest.mark.parametrize("source", sample_parameters(SOURCES, 2))
@given(data=st.data())
@settings(
    max_examples=20 if LONG else 1,
    phases=[Phase.explicit, Phase.generate],
)
def test_random_expressions_are_those_of_plain_python(
    source: str, data: st.DataObject, tmp_path_factory: Any
) -> None:
    rows = SOURCES[source].read(arrow_table(TABLE), tmp_path_factory.mktemp("table"))
    check_conditions(rows, data.draw(st.lists(conditions(), min_size=3, max_size=3)))
    text = f"{data.draw(numbers())} + n"
    check_values(rows, TABLE, [text], where=data.draw(conditions()))


# Types and errors ---------------------------------------------------------------------------------


def count(source: Any, where: str) -> int:
    """Return the number of rows that match."""
    return int(tally(source, Plan((Rows(),), where=parse_condition(where))).answers[0])  # type: ignore[arg-type]


SAME_TYPES: dict[str, tuple[str, list[Any], list[pa.DataType]]] = {
    "numbers": ("x > 6 and x != 8", [7, 8, 9, 5, None], [pa.int8(), pa.int64(), pa.uint64()]),
    "floats": ("x > 6 and x != 8", [7, 8, 9, 5, None], [pa.float32(), pa.float64()]),
    "decimals": ("x > 6 and x != 8", [7, 8, 9, 5, None], [pa.decimal128(20, 3)]),
    "truth values": ("x == 1 or x - 1 == 0", [True, False, True, None], [pa.bool_()]),
    "text": ("x != 'a'", ["b", "c", "a", "", None], [pa.string(), pa.large_string()]),
    "categories": (
        "x != 'a'",
        ["b", "c", "a", "", None],
        [pa.dictionary(pa.int32(), pa.string())],
    ),
    "dates": (
        "x >= date('2024-02-29') and month(x) in (2, 3)",
        [datetime(2024, *day) for day in ((2, 29), (3, 1), (2, 28), (4, 1))],  # noqa: DTZ001
        [pa.date32(), pa.timestamp("s"), pa.timestamp("ns")],
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", SAME_TYPES)
def test_the_type_that_a_reader_chose_does_not_matter(case: str) -> None:
    where, values, types = SAME_TYPES[case]
    for kind in types:
        table = pa.table({"x": pa.array(values, kind)})
        frames = [table, pl.from_arrow(table), duckdb_frame(table)]
        assert [count(frame, where) for frame in frames] == [2, 2, 2], kind


REFUSED = {
    "text as a number": (["7"], pa.string(), "x > 6", "It must hold numbers or booleans"),
    "text as a date": (["2024-02-29"], pa.string(), "year(x) > 6", "uses it as a date"),
    "numbers as text": ([7], pa.int64(), "x == '7'", "is not of that kind"),
    "numbers as dates": ([7], pa.int64(), "year(x) > 6", "uses it as a date"),
    "dates as numbers": ([date(2024, 2, 29)], pa.date32(), "x > 6", "It must hold numbers"),
    "dates as text": ([date(2024, 2, 29)], pa.date32(), "x == '2024-02-29'", "not of that kind"),
    "times with a zone": (
        [datetime(2024, 2, 29, tzinfo=UTC)],
        pa.timestamp("us", "Europe/Dublin"),
        "month(x) == 2",
        "Column 'x' holds times with a zone, and the request uses it as a date. Convert it to da",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_column_of_another_kind_is_refused(case: str) -> None:
    """One row of one person can change the type of a column; then nothing is published."""
    values, kind, where, message = REFUSED[case]
    table = pa.table({"x": pa.array(values, kind)})
    for frame in (table, pl.from_arrow(table), duckdb_frame(table)):
        with pytest.raises(ArgumentError, match=message):
            count(frame, where)


def test_a_collation_does_not_decide_which_text_matches() -> None:
    rows = duckdb.connect().sql(
        "SELECT x COLLATE NOCASE AS x, y FROM (VALUES ('cork', 1), ('Cork', 2)) AS t(x, y)"
    )
    assert [count(rows, text) for text in ("x == 'cork'", "x != 'cork'", "x in ('cork',)")] == [
        1
    ] * 3
    derived = (("where", parse_value("where", "map(x, {'cork': 'a'}, 'b')")),)
    plan = Plan((Rows(),), (Grouping("where", ("a", "b")),), derived=derived)
    assert tally(rows, plan).answers[0].tolist() == [1, 1]  # type: ignore[union-attr]


def test_a_collation_of_a_file_does_not_decide_which_text_matches(tmp_path: Path) -> None:
    path = tmp_path / "table.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE visits (x VARCHAR COLLATE NOCASE)")
        connection.execute("INSERT INTO visits VALUES ('cork'), ('Cork')")
    files = Files(path, table="visits")
    assert [count(files, text) for text in ("x == 'cork'", "x != 'cork'", "x in ('cork',)")] == [
        1
    ] * 3


WRONG_CELLS = [
    ("n > 3", "1\n4\nfive\n", "Row 3 of column 'n'", "text that is not a number"),
    ("n > 3 and n < 0", "1\nfive\n", "Row 2 of column 'n'", "text that is not a number"),
    ("not n > 3", "1\n1_000\n", "Row 2 of column 'n'", "text that is not a number"),
    ("month(n) == 2", "2024-02-29\n29.2.2024\n", "Row 2", "not a date such as 2024-01-31"),
    ("month(n) == 2", "2024-02-29\n2023-02-29\n", "Row 2", "not a date such as 2024-01-31"),
    ("month(n) == 2", "2024-02-29\n2024-02-29T10:30:00Z\n", "Row 2", "not a date"),
    ("month(n) == 2", "2024-02-29\n2024-02-29 10:30+02:00\n", "Row 2", "not a date"),
    ("month(n) == 2", "2024-02-29\n2024-02-29 noon\n", "Row 2", "not a date"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("where", "rows", "place", "problem"), WRONG_CELLS)
def test_text_that_cannot_be_parsed_is_an_error_with_its_row(
    where: str, rows: str, place: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"n,m\n{rows}".replace("\n", ",0\n").replace("n,m,0", "n,m"))
    with pytest.raises(ArgumentError) as error:
        count(Files(path), where)
    assert place in str(error.value)
    assert problem in str(error.value)
    assert "five" not in str(error.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("word", ["", "NA", "N/A", "null", " "])
def test_words_for_missing_dates_do_not_match(word: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"d,m\n2024-02-29,1\n{word},2\n2024-02-29T23:59:59.5,3\n 2024-02-01 ,4\n")
    assert count(Files(path), "month(d) == 2") == 3
    assert count(Files(path), "month(d) != 2") == 0


def test_numbers_of_a_file_follow_its_dialect(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("n;t\n1,5;a\n2,5;07\n;7\n", encoding="utf-8")
    files = Files(path, delimiter=";", decimal=",")
    assert (count(files, "n * 2 == 3"), count(files, "t == '7'")) == (1, 1)


def test_a_column_of_a_folder_can_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "day=2024-02-29"
    folder.mkdir()
    (folder / "table.csv").write_text("n\n1\n2\n")
    files = Files(folder / "table.csv", hive={"day": "date"})
    assert count(files, "month(day) == 2 and n > 1") == 1


SUM = (Sums("total", 1.0, 0, 100), Rows())
TOTAL = (("total", parse_value("total", "a + b")),)


def test_a_missing_part_makes_a_derived_value_missing() -> None:
    frame = pl.DataFrame({"a": [1, None, 3], "b": [1.0, 2.0, float("nan")]})
    sums, rows = tally(frame, Plan(SUM, missing="drop", derived=TOTAL)).answers
    assert (int(sums.count), int(sums.total), int(rows)) == (1, 2, 3)  # type: ignore[union-attr, arg-type]
    with pytest.raises(ArgumentError, match="Column 'total' has rows without a value"):
        tally(frame, Plan(SUM, derived=TOTAL))
    only_complete = parse_condition("a < 2")
    assert tally(frame, Plan(SUM, derived=TOTAL, where=only_complete)).answers[1] == 1


def test_an_error_in_a_derived_value_names_the_column_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n3,four\n5,\n")
    with pytest.raises(ArgumentError, match=r"^Row 2 of column 'b' .* holds text that is not a n"):
        tally(Files(path), Plan(SUM, missing="drop", derived=TOTAL))
    path.write_text("a,b\n1,2\n5,\n")
    with pytest.raises(ArgumentError, match=r"^Row 2 of column 'total' .* has no value"):
        tally(Files(path), Plan(SUM, derived=TOTAL))


def test_plans_of_several_filters_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("n,t\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(10)))
    wheres = ["n < 3", None, "t == 'a'", "n < 3", "n < 0"]
    plans = [
        Plan((Rows(),), where=None if where is None else parse_condition(where)) for where in wheres
    ]
    for source in (Files(path), pl.read_csv(path)):
        assert [int(each.answers[0]) for each in tally_all(source, plans)] == [3, 10, 5, 3, 0]  # type: ignore[arg-type]


def test_long_lists_and_maps_are_answered() -> None:
    codes = [f"code {n}" for n in range(3_000)]
    frame = pl.DataFrame({"x": codes, "n": range(3_000)})
    some = ", ".join(map(repr, codes[::2]))
    assert count(frame, f"x in ({some})") == 1_500
    assert count(frame, f"x not in ({some})") == 1_500
    assert count(frame, " or ".join(f"n == {n}" for n in range(0, 200, 2))) == 100
    table = ", ".join(f"'{code}': 'chapter {n // 100}'" for n, code in enumerate(codes[:2_000]))
    derived = (("chapter", parse_value("chapter", f"map(x, {{{table}}}, 'rest')")),)
    keys = ("chapter 0", "chapter 19", "rest")
    for source in (frame, duckdb_frame(frame.to_arrow())):
        plan = Plan((Rows(),), (Grouping("chapter", keys),), derived=derived)
        assert tally(source, plan).answers[0].tolist() == [100, 100, 1_000]  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["frame", "file"])
def test_rows_that_do_not_match_use_up_no_bound_of_a_person(engine: str, tmp_path: Path) -> None:
    """Each person has 50 rows that do not match, and one that does in each of two cities."""
    path = tmp_path / "visits.csv"
    rows = [(who, city, 0) for who in range(20) for city in ("cork", "dublin") for _ in range(25)]
    rows += [(who, city, 1) for who in range(20) for city in ("galway", "cork")]
    path.write_text("who,city,x\n" + "".join(f"{w},{c},{x}\n" for w, c, x in rows))
    source = pl.read_csv(path) if engine == "frame" else Files(path)
    by = (Grouping("city", ("cork", "dublin", "galway")),)
    unit, where = Unit(("who",), max_groups=2, max_rows=1), parse_condition("x == 1")
    plan = Plan((Rows(), Sums("x", 1.0, 0, 5)), by, unit=unit, where=where)
    counts, sums = tally(source, plan).answers
    assert counts.tolist() == sums.total.tolist() == [20, 0, 20]  # type: ignore[union-attr]


def test_an_id_cannot_be_used_in_an_expression() -> None:
    plan = Plan((Rows(),), unit=Unit(("who",)), where=parse_condition("who == 'p'"))
    message = "Column 'who' identifies a person, and cannot be used in expressions too"
    with pytest.raises(ArgumentError, match=message):
        tally(pl.DataFrame({"who": ["p"]}), plan)
