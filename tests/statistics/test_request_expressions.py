"""Requests with filters and derived columns: Python, TOML and the command line."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dpnoise import cli
from dpnoise.core.entropy import EntropySource
from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.statistics.loading import load_request
from dpnoise.statistics.publishing import publish, rehearsal
from dpnoise.statistics.report import render_record, request_toml, statistics_of
from dpnoise.statistics.requests import Question, Request

SURE = 1e6  # At this epsilon the noise of a count is not 0 with a probability below 10^-200000.
STAYS = pl.DataFrame(
    {
        "patient": [1, 1, 2, 2, 3, 3, 4, 5],
        "age": [17, 17, 18, 18, 64, 64, 65, None],
        "sex": ["f", "f", "m", "m", "f", "f", "f", "m"],
        "county": ["cork", "cork", "dublin", "cork", "galway", "dublin", "cork", "mayo"],
        "drugs": [1, 2, 3, 4, 5, 6, 7, 8],
        "bed": [10, 20, 30, 40, 50, 60, 70, 80],
        "admitted": ["2024-01-31", "2024-02-29", "2023-12-31", "2024-02-01"] * 2,
    }
)
DERIVED = {
    "band": "band(age, 0, 18, 65)",
    "month": "month(admitted)",
    "cost": "drugs + bed",
    "region": "map(county, {'cork': 'south', 'dublin': 'east'})",
}
DATED = STAYS.with_columns(pl.col("admitted").str.to_date())


@pytest.fixture(autouse=True)
def _work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    STAYS.write_csv("stays.csv")


def numbers(source: Any, *questions: Question, **options: Any) -> list[Any]:
    """Return the published numbers of a request with very little noise."""
    options.setdefault("derived", DERIVED)
    request = Request(SURE * len(questions), questions, **options)
    return [round(published.release.value) for published in publish(source, request)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("source", [DATED, "stays.csv"])
def test_each_question_has_its_own_rows_and_groups(source: Any) -> None:
    published = numbers(
        source,
        Question(["count"]),
        Question(["count"], where="sex == 'f' and age >= 18"),
        Question(["count"], where="not (sex == 'f' and age >= 18)"),
        Question(["sum"], "cost", lower=0, upper=128, grid=1.0, where="band == '18 to 65'"),
        Question(["count"], by=("band",)),
        Question(["count"], by=("region",), where="month == 2"),
    )
    ages = [2, 4, 1]  # Below 18, below 65, others; one is missing.
    assert published == [8, 3, 5, 33 + 44 + 55 + 66, *ages, 2, 1]


def test_the_groups_of_bands_maps_months_and_weekdays_are_all_their_values() -> None:
    counts = [Question(["count"], by=(name,)) for name in ("band", "region", "month")]
    request = Request(1.0, counts, derived=DERIVED)
    assert request.groups == {
        "band": ("0 to 18", "18 to 65", "65 or more"),
        "region": ("south", "east"),
        "month": tuple(range(1, 13)),
    }
    fewer = Request(1.0, counts, {"month": [1, 2]}, derived=DERIVED)
    assert fewer.groups["month"] == (1, 2)
    assert numbers(DATED, counts[2], groups={"month": [1, 2]}) == [2, 4]


def test_a_derived_number_without_known_values_has_declared_groups() -> None:
    years = {"year": "year(admitted)"}
    by_year = Question(["count"], by=("year",))
    assert numbers(DATED, by_year, groups={"year": [2023, 2024]}, derived=years) == [2, 6]
    with pytest.raises(ArgumentError, match="The groups of 'year' must be declared"):
        Request(1.0, [by_year], derived=years)


def test_filters_come_before_the_bounds_of_a_person() -> None:
    """Person 1 has one stay in February, which counts although max_rows is 1."""
    question = Question(["count"], where="month == 2")
    options: Any = {"person": "patient", "max_rows": 1}
    assert numbers(DATED, question, **options) == [4]
    assert numbers("stays.csv", question, **options) == [4]
    grouped = Question(["sum"], "cost", lower=0, upper=128, grid=1.0, by=("sex",), where="age > 60")
    options = {"person": "patient", "max_rows": 2, "max_groups": 1, "groups": {"sex": ["f", "m"]}}
    assert numbers(DATED, grouped, **options) == [55 + 66 + 77, 0]


def test_a_person_has_one_value_of_the_rows_that_match() -> None:
    question = Question(
        ["sum"], "cost", lower=0, upper=128, grid=1.0, per_person="sum", where="drugs != 2"
    )
    assert numbers(DATED, question, person="patient") == [11 + 77 + 121 + 77 + 88]


def test_groups_are_discovered_in_all_rows_and_counted_in_those_that_match() -> None:
    frame = pl.DataFrame({"city": ["cork"] * 500 + ["rare"], "age": [17] * 200 + [20] * 301})
    question = Question(["count"], by=("city",), where="age >= 18")
    request = Request(50.0, [question], {"city": "discover"}, delta=1e-6)
    table = publish(frame, request)
    assert [(each.group, each.where) for each in table] == [(("cork",), "age >= 18")]
    assert abs(table.published[0].release.value - 300) <= 10


def test_every_error_comes_before_groups_are_discovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks read the rows of every filter, and every derived column."""
    monkeypatch.setattr(EntropySource, "key", staticmethod(lambda *_: pytest.fail("noise")))
    Path("wrong.csv").write_text("city,age,x\n" + "cork,18,1\n" * 500 + "cork,old,1\ncork,19,one\n")
    questions = {
        "age": Question(["count"], by=("city",), where="age >= 18"),
        "x": Question(["sum"], "twice", lower=0, upper=1, by=("city",), where="city != 'mayo'"),
    }
    for column, question in questions.items():
        options: Any = {"delta": 1e-6, "missing": "drop", "derived": {"twice": "x + x"}}
        request = Request(1.0, [question], {"city": "discover"}, **options)
        with pytest.raises(ArgumentError, match=rf"Row 50\d of column '{column}' .* not a number"):
            publish("wrong.csv", request)


# Mistakes -----------------------------------------------------------------------------------------

COUNT = Question(["count"])
BY_BAND = Question(["count"], by=("band",))
MEAN = Question(["mean"], "band", lower=0, upper=1)
BY_AGE = Question(["count"], by=("age",), where="age > 3")
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a list": ({"derived": ["a + b"]}, "derived must map names to expressions, such as"),
    "no text": ({"derived": {"a": 3}}, "derived['a'] must be an expression in quotes, got 3"),
    "a mistake": ({"derived": {"a": "b +"}}, "derived['a'] must consist of columns"),
    "derived from itself": (
        {"derived": {"age": "age + 1"}},
        "Column 'age' is derived. Derive columns from those of the data.",
    ),
    "derived twice": ({"derived": {"a": "b + 1", "c": "a + 1"}}, "Column 'a' is derived."),
    "text as values": ({"publish": [MEAN], "derived": DERIVED}, "Column 'band' is derived text."),
    "to discover": (
        {"publish": [BY_BAND], "groups": {"band": "discover"}, "delta": 1e-6, "derived": DERIVED},
        "Column 'band' is derived. It cannot identify a person, and its groups must be declared.",
    ),
    "no such group": (
        {"publish": [BY_BAND], "groups": {"band": ["0 to 9"]}, "derived": DERIVED},
        "groups must have only values of 'band', got '0 to 9': 0 to 18, 18 to 65, 65 or more.",
    ),
    "a derived person": (
        {"person": "cost", "max_rows": 1, "derived": DERIVED},
        "Column 'cost' is derived. It cannot identify a person",
    ),
    "a person in a filter": (
        {"publish": [Question(["count"], where="who > 3")], "person": "who", "max_rows": 1},
        "Column 'who' identifies a person, and cannot be used in expressions too.",
    ),
    "a person in a derived column": (
        {"person": "age", "max_rows": 1, "derived": DERIVED},
        "Column 'age' identifies a person, and cannot be used in expressions too.",
    ),
    "two kinds in two filters": (
        {"publish": [Question(["count"], where=text) for text in ("age > 3", "age == 'old'")]},
        "Column 'age' is used as a number and as text.",
    ),
    "a group of another kind": (
        {"publish": [BY_AGE], "groups": {"age": ["young", "old"]}},
        "Column 'age' is used as a number and as text.",
    ),
    "a discovered group of another kind": (
        {"publish": [BY_AGE], "groups": {"age": "discover"}, "delta": 1e-6},
        "Column 'age' is used as a number and as text.",
    ),
    "a value of another kind": (
        {"publish": [Question(["count"], "age", where="month(age) == 2")]},
        "Column 'age' is used as a date and as a number.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_of_the_request(mistake: str) -> None:
    options, message = MISTAKES[mistake]
    with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
        Request(1.0, **{"publish": [COUNT], **options})
    assert message in str(error.value)


def test_columns_that_are_numbers_in_every_use_are_accepted() -> None:
    question = Question(["mean"], "age", lower=0, upper=100, by=("age",), where="age > 3")
    Request(1.0, [question], {"age": [18, 65]})


# What is shown ------------------------------------------------------------------------------------


def test_expressions_are_in_every_output() -> None:
    request = Request(1.0, [Question(["count"], by=("band",), where="sex == 'f'")], derived=DERIVED)
    assert "count of rows where sex == 'f', by band" in str(request)
    assert "band = band(age, 0, 18, 65)" in str(request)
    table = publish(DATED, request)
    assert {row["where"] for row in table.rows()} == {"sex == 'f'"}
    assert "sex == 'f'" in str(table)
    assert str(table.published[0]).startswith("rows where sex == 'f', band 0 to 18, count")
    record = table.record()
    assert record["request"]["derived"] == DERIVED
    assert {release["where"] for release in record["releases"]} == {"sex == 'f'"}
    assert "Number of rows where sex == &#39;f&#39;, by band" in render_record(record)


def test_the_page_shows_a_table_for_each_filter() -> None:
    wheres = (None, "age < 18", "age >= 18")
    request = Request(1.0, [Question(["count"], by=("sex",), where=where) for where in wheres],
                      {"sex": ["f", "m"]})  # fmt: skip
    tables = statistics_of(rehearsal(request).record()["releases"])
    assert [table.where for table in tables] == list(wheres)
    assert [len(table.numbers) for table in tables] == [2, 2, 2]


REQUEST = """
epsilon = 1_000_000.0
source = "stays.csv"

[derived]
band = "band(age, 0, 18, 65)"
"is south" = "map(county, {'cork': 'yes'}, 'no')"

[[publish]]
statistics = ["count"]
by = ["band"]
where = "sex == 'f' and column('is south') == 'yes'"
"""


def test_a_request_in_toml_has_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    Path("request.toml").write_text(REQUEST)
    request = load_request("request.toml").request
    assert numbers("stays.csv", *request.publish, derived=request.derived) == [2, 0, 1]
    Path("again.toml").write_text(request_toml(request.to_dict()))
    assert load_request("again.toml").request == request
    assert cli.main(["release", "request.toml", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "3 of band, filter" in shown
    assert "filter: rows where sex == 'f' and column('is south') == 'yes'" in shown
    assert "band = band(age, 0, 18, 65)" in shown
    assert cli.main(["release", "request.toml", "--where", "age > 3"]) == 2
    assert 'write there: where = "age > 3" under [[publish]].' in capsys.readouterr().err


def test_the_command_filters_and_derives(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["release", "stays.csv", "--epsilon", str(SURE), "--json"]
    command += ["--where", "sex == 'f'", "--derive", "cost=drugs + bed", "--column", "cost"]
    command += ["--derive", "band=band(age, 0, 18, 65)", "--group-by", "band"]
    assert cli.main([*command, "--query", "sum", "--lower", "0", "--upper", "128"]) == 0
    record = json.loads(capsys.readouterr().out)
    values = {release["group"]: round(release["value"]) for release in record["releases"]}
    assert values == {"0 to 18": 33, "18 to 65": 121, "65 or more": 77}


def test_the_terminal_says_which_rows_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["release", "stays.csv", "--where", "county != '\x1b[2J'"]) == 0
    shown = capsys.readouterr().out
    assert "Only rows where county != '\\x1b[2J'." in shown
    assert "\x1b" not in shown
    Path("two.toml").write_text(
        'epsilon = 1.0\nsource = "stays.csv"\n'
        + "".join(f'[[publish]]\nstatistics = ["count"]\nwhere = "age {x}"\n' for x in (">1", "<1"))
    )
    assert cli.main(["release", "two.toml"]) == 0
    shown = capsys.readouterr().out
    assert "count, where age >1" in shown
    assert "count, where age <1" in shown
    assert "Only rows" not in shown


COMMANDS = [
    (["--where", "age = 3"], "--where must consist of"),
    (["--derive", "cost"], "give a name and an expression: month=month(admitted)"),
    (["--derive", "a=age+1", "--derive", "a=age+2"], "--derive must be given once for each column"),
    (["--derive", "y=year(admitted)", "--group-by", "y"], "The groups of 'y' must be declared"),
]


@pytest.mark.parametrize(("options", "message"), COMMANDS)
def test_a_mistake_in_a_command_is_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["release", "stays.csv", *options])
    except SystemExit as error:  # argparse exits.
        status = int(error.code or 0)
    assert (status, message in capsys.readouterr().err) == (2, True)
