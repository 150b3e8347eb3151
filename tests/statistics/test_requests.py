"""Requests: several columns, statistics and groupings in one pass; spellings of groups."""

import csv
import datetime as dt
import importlib.metadata
import io
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.payments import losses_paid

import dpnoise
from dpnoise import cli, statistics
from dpnoise.core.entropy import SYSTEM, EntropySource
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import publishing
from dpnoise.statistics.engines import runners
from dpnoise.statistics.loading import load_request
from dpnoise.statistics.requests import Question, Request

SURE = 1e6  # At this epsilon the noise of a count is not 0 with a probability below 10^-200000.


@pytest.fixture(autouse=True)
def _work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry at each draw of noise from the operating system."""
    entries: list[str] = []
    real = SYSTEM.key

    def draw_key(*arguments: Any) -> Any:
        entries.append("key")
        return real(*arguments)

    monkeypatch.setattr(EntropySource, "key", staticmethod(draw_key))
    return entries


def counts(path: Path, column: str, keys: list[Any], **options: Any) -> list[int]:
    request = Request(SURE, [Question(["count"], by=(column,))], {column: keys}, **options)
    return [published.release.value for published in publishing.publish(path, request)]


def parquet(**columns: Any) -> Path:
    pq.write_table(pa.table(columns), "t.parquet")
    return Path("t.parquet")


def text(*lines: str) -> Path:
    Path("t.csv").write_text("\n".join(lines) + "\n")
    return Path("t.csv")


def test_groups_of_typed_columns_match_as_people_write_them() -> None:
    day = dt.date(2024, 1, 31)
    path = parquet(
        flag=[True, False, True, None],
        number=[1.0, 2.0, -0.0, 1.0],
        whole=pa.array([1, 2, 3, 1], pa.int8()),
        day=[day, day, None, dt.date(2024, 2, 1)],
        money=pa.array([Decimal("1.50"), Decimal("2.00"), None, None], pa.decimal128(10, 2)),
        name=pa.array(["NA", "Cork, County", "null", "NA"]).dictionary_encode(),
    )
    assert counts(path, "flag", ["true", "False"]) == [2, 1]
    assert counts(path, "flag", [True, False]) == [2, 1]
    assert counts(path, "number", ["1", "2", "0"]) == [2, 1, 1]
    assert counts(path, "number", [1, 2.0, 7]) == [2, 1, 0]
    assert counts(path, "whole", ["1", "2"]) == [2, 1]
    assert counts(path, "day", ["2024-01-31", "2024-02-01"]) == [2, 1]
    assert counts(path, "day", [day]) == [2]
    assert counts(path, "money", ["1.5", "2"]) == [1, 1]
    assert counts(path, "name", ["NA", "Cork, County", "null"]) == [2, 1, 1]


def test_groups_of_text_match_by_what_the_request_declares() -> None:
    lines = ("1,1", "01,1", "1.0,1", "1 ,1", "true,1", "TRUE,1", "2024-01-31,1", "NA,1", ",1")
    path = text("g,x", *lines, "one,1")
    for key in ("1", 1, "01", "1.0", 1.0, "1 "):  # To the letter.
        assert counts(path, "g", [key]) == [1]
    assert counts(path, "g", ["1", "01", "1.0", "1 "]) == [1, 1, 1, 1]
    assert counts(path, "g", [True]) == [2]
    assert counts(path, "g", [dt.date(2024, 1, 31)]) == [1]
    assert counts(path, "g", ["NA", "one"]) == [1, 1]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("key", "other"),
    [
        (2, "2.0"),
        ("2", "02"),
        ("2.0", "2"),
        ("0", "-0.0"),
        (1000, "1e3"),
        (2**53 + 1, f"0{2**53 + 1}"),
        (True, "t"),
        ("true", "True"),
        (dt.date(2024, 1, 31), "2024-01-31 00:00:00"),
        ("2024-01-31", "2024-01-31 00:00:00"),
    ],
)
def test_another_spelling_of_a_group_is_refused_where_a_writer_chose_the_type(
    key: object, other: str
) -> None:
    """As a number, a truth value or a time, the second row would be in the group too."""
    names = [str(key).lower() if key is True else str(key), other, "else"]
    with pytest.raises(ArgumentError, match="another way"):
        counts(parquet(name=names), "name", [key])
    assert counts(parquet(name=["x", names[0], "else"]), "name", [key]) == [1]
    assert counts(parquet(name=names), "name", [names[0], other]) == [1, 1]
    assert counts(text("name,x", *(f"{name},1" for name in names)), "name", [key]) == [1]


@pytest.mark.parametrize("value", ["7", "7.0", "true"])
def test_json_compares_only_strings_as_text(value: str) -> None:
    """If one row has text, pandas writes the strings 7.0 and True in place of these."""
    path = Path("t.jsonl")
    request = Request(SURE, [Question(["count"], where="code != '8'")])
    path.write_text('{"code": "7"}\n{"code": null}\n{}\n{"code": "8"}\n')
    assert publishing.publish(path, request).rows()[0]["value"] == 1
    path.write_text(f'{{"code": "7"}}\n{{"code": {value}}}\n')
    with pytest.raises(ArgumentError, match="compared as text"):
        publishing.publish(path, request)


def test_large_codes_that_round_to_one_float_are_different_groups() -> None:
    path = parquet(name=[str(2**53), str(2**53 + 1), "x"])
    assert counts(path, "name", [2**53 + 1]) == [1]


@pytest.mark.parametrize(
    ("column", "keys", "words"),
    [
        ("whole", ["cork"], "no row could be in the group 'cork'"),
        ("whole", [1.5], "no row could be in the group 1.5"),
        ("whole", [300], "no row could be in the group 300"),
        ("flag", ["yes"], "no row could be in the group 'yes'"),
        ("day", ["31.1.2024"], "no row could be in the group '31.1.2024'"),
        ("number", ["cork"], "no row could be in the group 'cork'"),
        ("number", ["1", "1.0"], "are the same"),
        ("nothing", ["cork"], "which is not grouped by"),
    ],
)
def test_a_group_that_no_row_could_be_in_is_an_error_before_a_row_is_read(
    column: str, keys: list[Any], words: str, monkeypatch: pytest.MonkeyPatch, draws: list[str]
) -> None:
    path = parquet(
        flag=[True],
        number=[1.0],
        whole=pa.array([1], pa.int8()),
        day=[dt.date(2024, 1, 31)],
        nothing=pa.array([None], pa.null()),
    )
    monkeypatch.setattr(runners.DUCKDB, "run", lambda *_: pytest.fail("was read"))
    with pytest.raises(ValueError, match=words):
        counts(path, column, keys)
    assert draws == []


def people(rows: int = 400) -> Path:
    """Write people of two sexes in two cities, with two columns of numbers."""
    rng = np.random.default_rng()
    city, sex = rng.choice(["cork", "dublin"], rows), rng.choice(["f", "m"], rows)
    age, income = rng.integers(0, 100, rows), rng.uniform(0, 1000, rows)
    frame = pd.DataFrame({"city": city, "sex": sex, "age": age, "income": income})
    frame.to_csv("people.csv", index=False)
    return Path("people.csv")


EVERYTHING = Request(
    SURE * 8,
    (
        Question(("count",)),
        Question(("mean", "std"), "age", lower=0, upper=100),
        Question(("sum", "quantiles:0.25,0.75"), "income", lower=0, upper=1000, by=("city",)),
        Question(("count", "median"), "income", lower=0, upper=1000, by=("city", "sex")),
        Question(("histogram",), "age", edges=(0, 50, 100)),
    ),
    {"city": ("cork", "dublin", "nowhere"), "sex": ("f", "m")},
    intervals=False,
)


def test_one_request_answers_several_columns_statistics_and_groupings() -> None:
    path = people()
    table = publishing.publish(path, EVERYTHING)
    frame = pd.read_csv(path)
    values = {
        (row["city"], row["sex"], row["column"], row["statistic"]): row["value"]
        for row in table.rows()
    }
    assert values[None, None, None, "count"] == len(frame)
    assert values[None, None, "age", "mean"] == pytest.approx(frame.age.mean(), abs=0.01)
    assert values[None, None, "age", "std"] == pytest.approx(frame.age.std(ddof=0), abs=0.01)
    assert values[None, None, "age", "histogram, 0 to 50"] == (frame.age < 50).sum()
    for city in ("cork", "dublin"):
        residents = frame[frame.city == city]
        assert values[city, None, "income", "sum"] == pytest.approx(residents.income.sum(), abs=0.1)
        quarter = values[city, None, "income", "quantile 0.25"]
        assert (
            (residents.income < quarter - 1).mean()
            <= 0.25
            <= (residents.income < quarter + 1).mean()
        )
        for sex in ("f", "m"):
            assert values[city, sex, "income", "count"] == (residents.sex == sex).sum()
    assert values["nowhere", "f", "income", "count"] == 0


def test_all_statistics_together_cost_epsilon() -> None:
    spent = sum((Fraction(loss.amount) for loss in losses_paid(EVERYTHING)), Fraction(0))
    assert spent == EVERYTHING.cost().epsilon
    assert Fraction(SURE * 8) * (1 - Fraction(1, 2**50)) <= spent <= Fraction(SURE * 8)


def test_the_table_is_the_same_in_every_library() -> None:
    table = publishing.publish(people(), EVERYTHING)
    rows = table.rows()
    arrow, frame, polars = table.to_arrow(), table.to_pandas(), table.to_polars()
    values = [row["value"] for row in rows]
    assert arrow["value"].to_pylist() == values
    assert frame["value"].tolist() == values
    assert polars["value"].to_list() == values
    assert arrow.column_names == list(rows[0]) == list(frame.columns) == polars.columns


def test_a_record_needs_no_installed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.metadata.distribution

    def missing(name: str) -> importlib.metadata.Distribution:
        if name == "dpnoise":
            raise importlib.metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    question = Question(["count"], "x")
    record = publishing.publish(pd.DataFrame({"x": [1, 2]}), Request(1.0, [question])).record()
    assert record["dpnoise"] == dpnoise.__version__


def test_the_record_says_what_was_done_and_shows_nothing_else() -> None:
    Path("secret").mkdir()
    path = Path("secret/people.csv")
    path.write_text("city,x\nhidden-town,123456789012345\ncork,5\n")
    question = Question(["count", "mean"], "x", lower=0, upper=10, by=("city",))
    request = Request(1.0, [question], {"city": ["cork"]})
    record = publishing.publish(path, request).record()
    assert record["source"] == "people.csv"
    assert record["dpnoise"] == dpnoise.__version__
    assert record["privacy_unit"] == "one row"
    assert dt.datetime.fromisoformat(record["date"]).tzinfo is not None
    count, mean = record["releases"]
    assert count["mechanism"].startswith("Laplace noise, exact, rounded once, on the sums of the")
    assert count["mechanism"] == mean["mechanism"]
    assert (count["scale"], count["grid"], count["confidence"]) == (None, 1.0, 0.95)
    assert count["shared"] == mean["shared"] == ("count", "mean")
    assert mean["grid"] == 2.0**-28
    assert record["request"]["groups"] == {"city": ["cork"]}
    record_text = json.dumps(record)
    assert "hidden-town" not in record_text
    assert (
        "123456789012345" not in record_text
    )  # No noise has this many digits in common by chance.
    assert "secret" not in record_text


TOML = """
# Signed by the privacy officer.
source = "people.csv"
epsilon = 2.0
confidence = 0.9

[groups]
city = ["cork", "dublin"]
sex = {file = "sexes.txt"}

[[publish]]
column = "income"
statistics = ["mean", "median"]
lower = 0
upper = 1000
by = ["city", "sex"]

[[publish]]
statistics = ["count"]
"""


@pytest.fixture
def request_file() -> Path:
    people()
    Path("request.toml").write_text(TOML)
    Path("sexes.txt").write_text("f\n\nm\n")
    return Path("request.toml")


def test_a_request_is_read_from_toml(request_file: Path) -> None:
    loaded = load_request(request_file)
    assert loaded.source == Path("people.csv")
    income, rows = loaded.request.publish
    assert income == Question(("mean", "median"), "income", lower=0, upper=1000, by=("city", "sex"))
    assert rows == Question(("count",))
    assert loaded.request.groups == {"city": ("cork", "dublin"), "sex": ("f", "m")}
    assert (loaded.request.epsilon, loaded.request.confidence) == (2.0, 0.9)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["release", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.long
def test_the_command_publishes_a_request_in_every_format(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, str(request_file), "--output", "a.csv", "--record", "a.json")[0] == 0
    assert run(capsys, str(request_file), "--output", "a.parquet", "--plot", "a.png")[0] == 0
    rows = list(csv.DictReader(io.StringIO(Path("a.csv").read_text())))
    assert len(rows) == 9
    assert pq.read_table("a.parquet").num_rows == 9
    assert rows[0]["city"] == "cork"
    assert rows[-1]["statistic"] == "count"
    assert len(json.loads(Path("a.json").read_text())["releases"]) == 9
    status, out, _ = run(capsys, str(request_file), "--json")
    assert status == 0
    assert json.loads(out)["request"]["publish"][0]["by"] == ["city", "sex"]


def test_check_explains_a_request_and_reads_no_row(
    request_file: Path, capsys: pytest.CaptureFixture[str], draws: list[str]
) -> None:
    Path("people.csv").unlink()
    status, out, err = run(capsys, str(request_file), "--check")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["column", "statistic", "groups", "epsilon", "margins"]
    assert "4 of city and sex" in lines[1]
    assert "rows" in lines[3]
    assert "all rows" in lines[3]
    # With a = exp(-2/3) noise is beyond 3 with probability 2 a^4/(1 + a) = 0.092, beyond 2 0.18.
    assert "within 3.00" in lines[3]
    assert "groups of city: cork, dublin" in out
    assert draws == []


def test_both_margins_are_shown_and_named(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, str(request_file))[1]
    assert out.splitlines()[0].split("  ")[-1] == ""
    assert "all within" in out.splitlines()[0]
    assert 'With probability 0.9 "within" holds for each single number' in out
    assert '"all within" for all numbers of one statistic together' in out
    single = run(capsys, "people.csv", "--column", "age")[1]
    assert "all within" not in single


@pytest.mark.parametrize(
    ("setting", "replacement", "words"),
    [
        ("epsilon = 2.0", "", "A request needs epsilon"),
        ("epsilon = 2.0", "epsilon = -1", "epsilon must be greater than 0, got -1.0"),
        ("confidence = 0.9", "confidense = 0.9", "Did you mean confidence or consistent?"),
        ('["mean", "median"]', '["mode"]', "There is no statistic 'mode'. Known: count"),
        ('["mean", "median"]', '"mean"', "must be a list of names"),
        ("upper = 1000", "", "A mean needs bounds"),
        ('by = ["city", "sex"]', 'by = ["town"]', "groups of 'town' must be declared"),
        ('["cork", "dublin"]', '["cork", 1]', "of one kind"),
        ('["cork", "dublin"]', '["cork", "cork"]', "not repeat a group"),
        ("sexes.txt", "none.txt", "no file none.txt"),
        ("[groups]", "[groups", "is not TOML"),
        ("[[publish]]", "[publish]", "is not TOML"),
        ('column = "income"', 'column = "pay"', "has no column 'pay'"),
        (
            'column = "income"',
            'column = "income"\nledger = "spent.json"',
            "ledger is a setting of the whole request, and not of [[publish]]. Write it above the",
        ),
        ("[groups]", '[groups]\nperson = ["patient"]', "person is a setting of the whole request"),
        ("[groups]", '[derived]\nperson = "patient"\n[groups]', "not of [derived]. Write it above"),
        ('source = "people.csv"', 'source = "none.csv"', "no file none.csv"),
        ('source = "people.csv"', "", "Say which data"),
    ],
)
def test_a_wrong_request_is_one_line_before_noise(
    setting: str,
    replacement: str,
    words: str,
    request_file: Path,
    capsys: pytest.CaptureFixture[str],
    draws: list[str],
) -> None:
    assert setting in TOML
    request_file.write_text(TOML.replace(setting, replacement))
    status, out, err = run(capsys, str(request_file), "--output", "out.csv")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
    assert draws == []
    assert not Path("out.csv").exists()


SOURCE = """
[source]
paths = ["part-*.txt"]
format = "csv"
delimiter = ";"
quote = "'"
decimal = ","
encoding = "latin-1"
"""


def test_a_request_describes_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of files are relative to the request, not to the working folder."""
    Path("data").mkdir()
    for part in ("1", "2"):
        lines = ["größe;city", "1,5;'Cork; County'", "2,5;dublin"]
        Path(f"data/part-{part}.txt").write_text("\n".join(lines), encoding="latin-1")
    question = [
        "[[publish]]",
        'statistics = ["count", "sum"]',
        'column = "größe"',
        "lower = 0",
        "upper = 9",
    ]
    Path("data/request.toml").write_text("\n".join(["epsilon = 2e6", *question, SOURCE]))
    status, out, err = run(capsys, "data/request.toml", "--json")
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith("This run spent epsilon 2e+06.")
    count, total = (release["value"] for release in json.loads(out)["releases"])
    assert count == 4
    assert total == pytest.approx(8, abs=0.01)
    Path("data/part-1.txt").unlink()
    Path("data/part-2.txt").rename("elsewhere.txt")
    assert run(capsys, "data/request.toml", "--check")[0] == 0
    output = run(capsys, "data/request.toml", "--source", "elsewhere.txt", "--json")[1]
    assert json.loads(output)["releases"][0]["value"] == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("source = 3", "source must be the name of a file, got 3"),
        ("[source]", 'source must have path = "people.csv" or paths'),
        ('[source]\npath = "a"\npaths = ["b"]', 'source must have path = "people.csv" or paths'),
        ("[source]\npaths = [1]", "must be text, and paths a list"),
        ('[source]\npath = "a"\nquote = 1', "must be text, and paths a list"),
        ('[source]\npath = "a"\nquotes = "x"', "Did you mean quote?"),
        ('[source]\npath = "a"\nencoding = "rot13"', "encoding must be one of"),
        ('delimiter = ";"\n[source]\npath = "a"', "delimiter belongs in [source]"),
        ('path = "a"', "path belongs in [source]"),
        ('decimal = ","', "decimal belongs in [source]"),
        (
            '[source]\npath = "postgresql://me:word@host/db"\ntable = "t"',
            "must not contain a password",
        ),
        ('[source]\npath = "none-*.csv"', "no file none-*.csv"),
        (
            '[source]\npath = "a"\nperson = "who"',
            "not of [source]. Write it above the first [table] line.",
        ),
    ],
)
def test_a_source_that_cannot_be_is_one_line_before_noise(
    source: str, words: str, capsys: pytest.CaptureFixture[str], draws: list[str]
) -> None:
    settings = 'epsilon = 1\npublish = [{statistics = ["count"]}]\n'
    Path("request.toml").write_text(settings + source)
    status, out, err = run(capsys, "request.toml")
    assert (status, out, draws) == (2, "", [])
    assert err.count("\n") == 1
    assert words in err
    assert "word@" not in err


@pytest.mark.parametrize(
    ("setting", "heading"),
    [
        ('[groups]\nperson = ["patient"]', "[groups]"),
        ("[groups]\nmax_total_rows = 6", "[groups]"),
        ('[groups]\nsource = "a.csv"', "[groups]"),
        ('[derived]\nperson = "patient"', "[derived]"),
        ('[labels]\nnotes = "patient"', "[labels]"),
    ],
)
def test_a_setting_below_a_heading_is_not_taken_as_a_column(setting: str, heading: str) -> None:
    lines = ["epsilon = 1", setting, "[[publish]]", 'statistics = ["count"]']
    Path("request.toml").write_text("\n".join(lines))
    name = setting.split()[1]
    message = f"{name} is a setting of the whole request, and not of {heading}. Write it above"
    with pytest.raises(ArgumentError) as refused:
        load_request("request.toml")
    assert message in str(refused.value)


def test_a_column_may_have_the_name_of_a_setting() -> None:
    question = '[[publish]]\nstatistics = ["count"]\nby = ["part"]\nwhere = "notes > 1"'
    tables = '[groups]\npart = ["a"]\n[derived]\nnotes = "x + y"'
    Path("request.toml").write_text(f"epsilon = 1\n{tables}\n{question}")
    assert load_request("request.toml").request.groups == {"part": ("a",)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('[groups]\nregion = ["a"]\n[[publish]]\nstatistics = ["count"]\nby = ["Region"]',
         "groups of 'Region' must be declared. Did you mean region?"),
        ('[[publish]]\nstatistics = ["count"]\nby = ["city"]',
         'must be declared: city = ["cork", "dublin"] under [groups].'),
        ('max_rows = 3\n[[publish]]\nstatistics = ["count"]',
         'max_rows needs person: person = "patient_id" at the top.'),
        ("delta = 0,5", "Write numbers with a decimal point and no thousands sign."),
        ('[publish]\nstatistics = ["count"]', "write [[publish]] above each."),
        ("[publish]\na = 1\n[publish]\na = 2", "Write [[publish]] above each question."),
    ],
)  # fmt: skip
def test_slips_in_a_request_say_what_to_write(
    settings: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("request.toml").write_text(f"epsilon = 1\n{settings}")
    status, out, err = run(capsys, "request.toml", "--check")
    assert (status, out) == (2, "")
    assert words in err


def test_groups_that_no_question_uses_are_refused() -> None:
    """They would be those of a question that was left out, or of a misspelled column."""
    question = '[[publish]]\nstatistics = ["count"]'
    Path("request.toml").write_text(f'epsilon = 1\n[groups]\nward = ["a", "b"]\n{question}')
    with pytest.raises(ArgumentError, match="groups of 'ward' are used by no question"):
        load_request("request.toml")


def test_the_command_takes_several_files_patterns_and_dialects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, content in {
        "a.csv": "x,y\n1,2\n",
        "b.csv": "x,y\n3,4\n5,6\n",
        "c.txt": "x;y\n'1,5';2\n",
    }.items():
        Path(name).write_text(content)
    pq.write_table(pa.table({"x": [1.0]}), "t.parquet")
    common = ["--column", "x", "--epsilon", "1e6", "--json"]
    for arguments, expected in [
        (["a.csv", "b.csv"], 3),
        (["*.csv"], 3),
        (["--no-clamp", "a.csv", "b.csv"], 3),
        (["[ab].csv"], 3),
        (["c.txt", "--delimiter", ";", "--decimal", ",", "--quote", "'"], 1),
        (["t.parquet", "--format", "parquet"], 1),
    ]:
        status, out, err = run(capsys, *arguments, *common)
        assert (status, err.count("\n")) == (0, 1), arguments
        assert err.startswith("This run spent epsilon 1e+06.")
        assert json.loads(out)["releases"][0]["value"] == expected
    for arguments, words in [
        (["a.csv", "t.parquet"], "files must have one format"),
        (["a.csv", "c.txt"], "has other columns than"),
        (["none-*.csv"], "no file none-*.csv"),
        (["a.csv", "b.csv", "--output", "b.csv"], "is the data"),
        (["--decimal", ","], "--decimal is about data of yours"),
        (["a.csv", "r.toml"], "Give one request, and its data by --source"),
    ]:
        status, out, err = run(capsys, *arguments, *common)
        assert (status, out) == (2, ""), arguments
        assert words in err


def test_a_column_may_be_called_as_a_setting() -> None:
    path = Path("request.toml")
    by = 'epsilon = 1\n[groups]\nperson = ["a"]\n[[publish]]\nstatistics = ["count"]\n'
    path.write_text(f'{by}by = ["person"]')
    assert load_request(path).request.groups == {"person": ("a",)}
    path.write_text(
        'epsilon = 1\n[derived]\npart = "year(day)"\n'
        '[[publish]]\nstatistics = ["count"]\nwhere = "part == 2024"'
    )
    assert dict(load_request(path).request.derived) == {"part": "year(day)"}


def test_what_the_request_says_is_not_said_again(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, str(request_file), "--epsilon", "3")
    assert status == 2
    assert "In place of --epsilon, write there: epsilon = 3.0 at the top." in err


def test_groups_come_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = text("g,x", *["Cork, County,1"] * 0, '"Cork, County",1', "NA,2", "NA,2")
    Path("groups.txt").write_text("Cork, County\nNA\n")
    options = ["--column", "x", "--epsilon", "1e6", "--groups-file", "g=groups.txt", "--json"]
    status, out, _ = run(capsys, str(path), *options)
    assert status == 0
    releases = json.loads(out)["releases"]
    values = {release["group"]: release["value"] for release in releases}
    assert values == {"Cork, County": 1, "NA": 2}


def test_too_many_cells_are_refused() -> None:
    median = Question(["median"], "x", lower=0, upper=1, by=("g",))
    groups = {"g": [str(i) for i in range(3000)]}
    with pytest.raises(ValueError, match=r"at most 2\^26 cells"):
        Request(1.0, [median], groups)


def test_an_index_of_keys_is_warned_of_before_noise_is_drawn(draws: list[str]) -> None:
    frame = pd.DataFrame({"city": ["cork", "dublin", "cork"]})
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    with pytest.warns(UserWarning, match="published unchanged"):
        released = mechanism.release(frame.groupby("city").size())
    assert list(released.index) == ["cork", "dublin"]
    draws.clear()
    with pytest.raises(UserWarning, match="declared list"):  # Warnings are errors here.
        mechanism.release(frame.groupby("city").size())
    assert draws == []
    assert len(mechanism.release(pd.Series([1, 2]))) == 2


def test_a_source_is_a_file_or_a_frame(draws: list[str]) -> None:
    request = Request(SURE, [Question(["count"])])
    assert next(iter(publishing.publish(str(people(3)), request))).release.value == 3
    draws.clear()
    odd: Any = 5
    with pytest.raises(TypeError, match="The data must be a file or a pandas, Polars"):
        publishing.publish(odd, request)
    assert draws == []


def test_requests_are_public_names() -> None:
    assert statistics.Request is Request
    assert statistics.publish is publishing.publish


@pytest.mark.parametrize("name", publishing.rehearsal(Request(1.0, [Question(["count"])])).titles())
def test_a_group_column_with_a_name_of_the_table_s_own_keeps_its_keys(name: str) -> None:
    request = Request(1.0, [Question(["count"], by=(name,))], groups={name: ["cork", "dublin"]})
    table = publishing.rehearsal(request)
    assert [row[f"{name} (group)"] for row in table.rows()] == ["cork", "dublin"]
    assert table.to_arrow().column_names == table.titles() == list(table.rows()[0])


# Numbers that are suppressed or marked ------------------------------------------------------------


def small_groups(suppress: str | None = None) -> statistics.Table:
    """Return counts of 0, 1 and 100,000 rows, the first two of which are below their margins."""
    frame = pl.DataFrame({"city": ["b", *["c"] * 100_000], "x": 5.0})
    groups = {"city": ["a", "b", "c"]}
    questions = [Question(["count"], by=["city"]), Question(["histogram"], "x", edges=[0, 9, 10])]
    return statistics.publish(frame, Request(0.02, questions, groups, suppress=suppress))


def test_a_number_below_its_margin_is_marked() -> None:
    """Each margin is about 300 rows, and noise of 100,000 has a probability below e^-900."""
    table = small_groups()
    numbers = [number for published in table for number in published.release.numbers()]
    below = [abs(number.value) < number.error for number in numbers]
    assert below[2:4] == [False, False]
    notes = [row["note"] for row in table.rows()]
    assert notes == ["smaller than its margin" if mark else None for mark in below]
    lines = str(table).splitlines()
    assert [" *" in line for line in lines[1:6]] == below
    has_footnote = "* smaller than its margin: the exact number may be 0." in lines
    assert has_footnote == any(below)


def test_numbers_with_too_large_a_margin_are_suppressed_everywhere(tmp_path: Path) -> None:
    table = small_groups("margin > 0.3")
    margins = [row["margin"] for row in table.rows()]
    assert [row["value"] is None for row in table.rows()] == [True, True, False, False, True]
    assert [margin is None for margin in margins] == [True, True, False, False, True]
    record = table.record()
    assert [one["value"] for one in record["releases"][:2]] == [None, None]
    assert record["releases"][3]["value"][1] is None
    assert record["request"]["suppress"] == "margin > 0.3"
    assert str(table).count("suppressed: its margin is too large") == 3
    table.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("suppressed: its margin is too large") == 3
    assert "leaves out: margin &gt; 0.3" in page
    assert table.to_pandas()["value"].isna().sum() == 3
    assert table.to_polars()["value"].null_count() == 3


@pytest.mark.parametrize("rule", ["margin", "margin > x", "margin > 0", "count < 5", 0.3])
def test_another_rule_for_suppression_is_an_error(rule: Any) -> None:
    with pytest.raises(ArgumentError, match=r'suppress must be a rule such as "margin > 0.3"'):
        Request(1.0, [Question(["count"])], suppress=rule)


def test_a_rule_judges_intervals_and_leaves_numbers_without_a_margin() -> None:
    """The interval of 3 rows covers nearly everything; without one, nothing is known.

    One of 20 intervals may miss and be short: 11 short ones of 20 have a probability below 1e-9.
    """
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0]})
    question = Question(["median"], "x", 0, 100)
    hidden = {True: 0, False: 0}
    for intervals in [True, False] * 20:
        request = Request(0.01, [question], intervals=intervals, suppress="margin > 0.3")
        (published,) = statistics.publish(frame, request)
        hidden[intervals] += published.release.value is None
    assert hidden[True] >= 10
    assert hidden[False] == 0


@pytest.mark.parametrize("names", [["sum"], ["count", "sum", "mean"]])
def test_sums_of_values_that_cannot_be_negative_are_clamped_like_counts(names: list[str]) -> None:
    """Of 40 sums of nothing about 20 are negative; that none is has the probability 2^-40."""
    frame = pl.DataFrame({"city": ["z"], "x": [1.0]})
    groups = {"city": [f"city {number}" for number in range(40)]}

    def sums(lower: float, *, clamp: bool) -> list[float]:
        request = Request(1.0, [Question(names, "x", lower, 10, by=["city"])], groups, clamp=clamp)
        rows = statistics.publish(frame, request).rows()
        return [row["value"] for row in rows if row["statistic"] == "sum"]

    assert min(sums(0, clamp=True)) == 0
    assert min(sums(0, clamp=False)) < 0
    assert min(sums(-1, clamp=True)) < 0


def test_the_function_clamps_sums_too() -> None:
    sums = {
        clamp: [
            statistics.sum([], lower=0, upper=10, epsilon=1.0, clamp=clamp).value for _ in range(40)
        ]
        for clamp in (True, False)
    }
    assert min(sums[True]) == 0 > min(sums[False])


@pytest.mark.parametrize("name", ["mean", "variance", "std"])
def test_no_margin_exceeds_what_the_bounds_allow(name: str) -> None:
    question = Question([name], "x", 0, 100)
    (published,) = statistics.publish(pl.DataFrame({"x": [50.0]}), Request(0.01, [question]))
    release = published.release
    largest = {"mean": 100, "variance": 2500, "std": 50}[name]
    farthest = max(release.value, largest - release.value)
    assert release.error <= farthest
    # Of a mean, noise that makes the sums large makes the margin small.
    assert release.no_information == (release.error == farthest)
    assert release.no_information or name == "mean"
