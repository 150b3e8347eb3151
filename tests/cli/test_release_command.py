"""`dpnoise release`: what it says about the data, the cost, and mistakes of beginners."""

import csv
import json
import math
import os
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpnoise import cli
from dpnoise.cli.release_arguments import EXAMPLES, GROUPS
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files, tally
from dpnoise.statistics.report import render_record
from dpnoise.statistics.shared_sums import NoisySums

Run = Callable[..., tuple[int, str, str]]
SAMPLE_NAME = "sample of 5,000 invented people"
PERSON = "Maura Secretname"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in a folder with some people."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{PERSON},cork,30", *["Ann,dublin,40"] * 49, *["Bob,cork,50"] * 50]
    Path("people.csv").write_text("\n".join(["name,city,age", *rows, ""]))

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse exits.
            status = int(error.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> Iterator[None]:
    """Make a pipe with some content the standard input."""
    read_end, write_end = os.pipe()
    os.write(write_end, content)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        yield


# The data ----------------------------------------------------------------------------------------


def test_no_file_is_an_error_that_says_how_to_give_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        status, out, err = run("release", "--column", "age")
    assert (status, out) == (2, "")
    assert "dpnoise release people.csv" in err
    assert "--sample" in err


def test_piped_input_without_a_dash_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch, b"age\n7\n"):
        status, out, err = run("release", "--column", "age")
    assert (status, out) == (2, "")
    assert "give - as the file" in err


def test_a_closed_standard_input_is_no_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert "Name one" in run("release", "--column", "age")[2]


def test_the_sample_is_named_in_every_output(run: Run) -> None:
    files = ["--record", "record.json", "--html", "page.html"]
    mean = ["--column", "income", "--query", "mean", "--lower", 0, "--upper", 200_000]
    status, out, _ = run("release", "--sample", *mean, *files)
    assert status == 0
    assert f"\nData: {SAMPLE_NAME}\n" in out
    assert json.loads(Path("record.json").read_text())["source"] == SAMPLE_NAME
    assert f"<dt>Data</dt><dd>{SAMPLE_NAME}</dd>" in Path("page.html").read_text()
    assert json.loads(run("release", "--sample", "--json")[1])["source"] == SAMPLE_NAME


def test_every_output_of_invented_people_says_that_they_are(run: Run) -> None:
    make_visits = Path(__file__).parents[2] / "examples" / "make_visits.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["make_visits.py", "visits.csv"])
        runpy.run_path(str(make_visits), run_name="__main__")
    outputs = ["--output", "table.csv", "--record", "record.json", "--html", "page.html", "--force"]
    for data in ("--sample", "visits.csv"):
        status, out, _ = run("release", data, *outputs)
        assert status == 0
        assert "invented" in out
        assert "the people in the data are invented" in Path("table.csv").read_text()
        assert "The people in the data are invented." in Path("page.html").read_text()
        assert json.loads(Path("record.json").read_text())["invented"] is True
    run("release", "people.csv", *outputs)
    for name in ("table.csv", "page.html"):
        assert "invented" not in Path(name).read_text()
    invented = pl.read_csv("visits.csv")
    for frame in (invented, invented.lazy(), invented.to_pandas(), invented.to_arrow()):
        table = publish(frame, Request(1.0, [Question(["count"])]))
        assert "The people in the data are invented." in str(table)
    (real,) = publish(invented.drop("invented_person"), Request(1.0, [Question(["count"])])).rows()
    assert "invented" not in (real["note"] or "")


def test_a_sample_of_people_is_what_its_name_says(run: Run) -> None:
    """At epsilon 10^6 a count is wrong with probability 2 exp(-10^6)."""
    out = run("release", "--sample", "--epsilon", 1e6, "--json")[1]
    assert json.loads(out)["releases"][0]["value"] == 5000


@pytest.mark.parametrize(
    "with_sample", [["people.csv"], ["request.toml"], ["r.toml", "--source=x"]]
)
def test_the_sample_and_files_exclude_each_other(with_sample: list[str], run: Run) -> None:
    question = '[[publish]]\nstatistics = ["count"]'
    Path("request.toml").write_text(f'epsilon = 1.0\nsource = "people.csv"\n{question}')
    Path("r.toml").write_text(f"epsilon = 1.0\n{question}")
    status, _, err = run("release", *with_sample, "--sample")
    assert status == 2
    assert "leave out" in err
    assert run("release", "r.toml", "--sample")[0] == 0


def test_the_record_and_the_page_name_files_without_their_folders(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "private folder"
    folder.mkdir()
    (folder / "request.toml").write_text(
        'epsilon = 1.0\nsource = "people.csv"\n[[publish]]\nstatistics = ["count"]'
    )
    (folder / "people.csv").write_text("age\n7\n")
    for given in ("private folder/people.csv", folder / "people.csv", folder / "request.toml"):
        status, out, _ = run("release", given, "--html", "page.html", "--json", "--force")
        assert status == 0
        assert json.loads(out)["source"] == "people.csv"
        page = Path("page.html").read_text()
        assert "<dd>people.csv</dd>" in page
        assert "private folder" not in page + out


def test_the_standard_input_and_tables_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch, b"age\n7\n"):
        assert "\nData: standard input\n" in run("release", "-", "--column", "age")[1]
    assert Files("a/people.db", table="people").source_name == "people.db, table people"
    address = "postgresql://jane:password@host.example/db"
    assert Files(address, table="public.people").source_name == "table public.people"
    assert Files(["a.csv", "b/*.csv"]).source_name == "a.csv, *.csv"
    many = Files([f"{i}.csv" for i in range(1_000)]).source_name
    assert many.startswith("0.csv, 1.csv, ")
    assert many.endswith(", and 990 more")
    assert Files("a\udcff\x1b.csv").source_name == r"a\udcff\x1b.csv"


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (pd.DataFrame({"x": [1]}), "pandas DataFrame"),
        (pl.DataFrame({"x": [1]}), "polars DataFrame"),
        (pl.LazyFrame({"x": [1]}), "polars LazyFrame"),
        (pa.table({"x": [1]}), "pyarrow Table"),
    ],
)
def test_a_frame_is_named_by_its_kind(frame: Any, kind: str) -> None:
    assert publish(frame, Request(1.0, [Question(["count"])])).record()["source"] == kind


def test_a_record_of_an_older_format_still_becomes_a_page() -> None:
    record = publish(pl.DataFrame({"x": [1]}), Request(1.0, [Question(["count"])])).record()
    del record["source"]
    page = render_record({**record, "format": 3})
    assert "<dt>Data</dt>" not in page
    assert "record format 3" in page


# Counting, and the types that errors name --------------------------------------------------------


def test_counting_needs_no_column(run: Run) -> None:
    """At epsilon 10^6 a count is wrong with probability 2 exp(-10^6)."""
    groups = ["--query", "count", "--group-by", "city=cork,dublin"]
    status, out, _ = run("release", "people.csv", *groups, "--epsilon", 1e6, "--json")
    assert status == 0
    releases = json.loads(out)["releases"]
    assert [(one["group"], one["value"]) for one in releases] == [("cork", 51), ("dublin", 49)]
    assert [one["column"] for one in releases] == [None, None]


def test_a_column_of_text_is_not_said_to_hold_floats(run: Run) -> None:
    for groups in (["--group-by", "city=cork"], []):
        status, _, err = run("release", "people.csv", "--column", "city", *groups)
        assert status == 2
        assert "float" not in err
        assert "Counting rows needs no column" in err
        assert PERSON not in err


def test_errors_name_the_type_that_is_there(run: Run) -> None:
    columns = {"text": ["a"], "float": [0.5], "integer": [1], "flag": [True]}
    pq.write_table(pa.table(columns), "typed.parquet")
    for column, key, words in [
        ("float", "a", "'float' holds floats,"),
        ("integer", "a", "'integer' holds integers,"),
        ("flag", "a", "'flag' holds booleans,"),
    ]:
        status, _, err = run("release", "typed.parquet", "--group-by", f"{column}={key}")
        assert status == 2
        assert words in err
    with pytest.raises(ValueError, match=r"'text' holds String\. It must hold numbers or"):
        publish(pl.DataFrame(columns), Request(1.0, [Question(["count"], "text")]))


# Help and suggestions ----------------------------------------------------------------------------


def test_the_help_has_groups_and_five_examples_before_them(run: Run) -> None:
    status, out, _ = run("release", "--help")
    assert status == 0
    positions = [out.index(f"\n{title}:\n") for title in ("examples", *GROUPS)]
    assert positions == sorted(positions)
    assert list(GROUPS) == ["data", "what to publish", "privacy", "people", "output"]
    assert len(re.findall(r"^  \S.*:$", EXAMPLES, re.MULTILINE)) == 5
    assert max(map(len, EXAMPLES.splitlines())) <= 80


def test_every_example_of_the_help_runs(run: Run) -> None:
    rows = "\n".join(f"{city},{age},{age}000" for city, age in [("cork", 30), ("dublin", 40)])
    Path("people.csv").write_text(f"city,age,income\n{rows}\n")
    Path("visits.csv").write_text("patient_id,cost\na,1\nb,2\n")
    Path("request.toml").write_text(
        'epsilon = 1.0\nsource = "people.csv"\n[[publish]]\nstatistics = ["count"]'
    )
    run("budget", "create", "budget.json", "--name", "n", "--epsilon", 2)
    one_line = EXAMPLES.replace("\\\n", "")
    commands = re.findall(r"^    (dpnoise .*)", one_line, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        status, _, err = run(*shlex.split(command)[1:])
        assert (status, err) == (0, ""), command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["relase"], "Did you mean release? See dpnoise --help."),
        (["budget", "shwo"], "Did you mean show? See dpnoise budget --help."),
        (["--versoin"], "no option --versoin. Did you mean --version?"),
        (["release", "people.csv", "--colum", "age"], "Did you mean --column?"),
        (["release", "people.csv", "--columns=age"], "Did you mean --column? See dpnoise release"),
        (["release", "people.csv", "--xyz"], "no option --xyz. See dpnoise release --help."),
        (["release", "typed.parquet", "--column", "Income"], "Did you mean income?"),
        (["release", "typed.parquet", "--column", "incom"], "Did you mean income?"),
        (["release", "people.csv", "--column=age", "--query=meann"], "mean mean or median?"),
        (["release", "people.csv", "--missing", "dorp"], "Did you mean drop?"),
        (["release", "people.csv", "--column", "age", "x.csv"], "'x.csv' was not expected"),
        (["audit", "numpy.laplce", "--epsilon", "1"], "Did you mean numpy.laplace"),
    ],
)  # fmt: skip
def test_a_name_that_is_almost_right_is_suggested(
    arguments: list[str], words: str, run: Run
) -> None:
    pq.write_table(pa.table({"income": [1.0]}), "typed.parquet")
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_nothing_of_the_first_line_of_csv_is_suggested(run: Run) -> None:
    """Without a header, that line is the row of a person."""
    Path("rows.csv").write_text("murphy,ennis\nkelly,cork\n")
    for name in ("Murphy", "murph", "ennis ", "enis"):
        status, out, err = run("release", "rows.csv", "--column", name, "--query", "count")
        assert (status, out) == (2, "")
        assert "Its first line has 2 entries. Is that line a header?" in err
        shown = err.replace(repr(name), "")
        assert "murphy" not in shown
        assert "ennis" not in shown


def test_columns_are_suggested_where_the_first_line_has_another_column_of_the_request(
    run: Run,
) -> None:
    """That line is then a header, and no row of a person."""
    Path("rows.csv").write_text("who, city,days\na,cork,1\n")
    person = ["--person", "who", "--max-total-rows", "1", "--check"]
    for column, words in (
        ("Days", "has no column 'Days'. Did you mean days?"),
        ("city", "has no column 'city'. It has ' city': remove the spaces there"),
    ):
        options = ["--where", f"column('{column}') > 1", *person[:-1]]
        status, out, err = run("release", "rows.csv", *options)
        assert (status, out) == (2, "")
        assert words in err


def test_a_header_without_a_similar_name_is_said_to_be_one_by_the_columns_of_the_request(
    run: Run,
) -> None:
    Path("rows.csv").write_text("who,city,secret\na,cork,1\n")
    options = ["--column", "secret", "--query", "count", "--person", "patient_id"]
    err = run("release", "rows.csv", *options, "--max-rows", "1")[2]
    assert err.endswith("Its header has secret: check the spelling of 'patient_id'.\n")
    for other in ("who", "city"):
        assert other not in err, "the request does not name it"
    for where in ("city == cork", "secret > 1 and not city == cork", "city != cork or secret > 1"):
        err = run("release", "rows.csv", "--where", where)[2]
        assert "has no column 'cork'. If it is text, write it in quotes. Its header has " in err
    assert "quotes" not in run("release", "rows.csv", "--where", "secret > cork")[2]
    err = run("release", "rows.csv", "--column", "secrecy", "--query", "count")[2]
    assert err.endswith("Else check the spelling of 'secrecy'.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "1", "--epsilon", "2"], "--epsilon was given 2 times, and can be"),
        (["--column", "age", "--column=income"], "--column was given 2 times"),
        (["--upper", "9", "--lower", "0", "--upper", "9"], "--upper was given 2 times"),
        (["--epsilon", "0,5"], "Write a decimal point and no thousands sign."),
        (["--max-rows", "1,000"], "Write a decimal point and no thousands sign."),
        (["--group-by", "city=St", "James,Mater"], "quote a list with spaces"),
        (
            ["--column", "age", "--edges", "0,18,65"],
            '--edges must belong to a histogram, got (0.0, 18.0, 65.0): ask for "histogram"',
        ),
    ],
)
def test_slips_on_the_command_line_say_what_to_write(
    arguments: list[str], words: str, run: Run
) -> None:
    status, out, err = run("release", "people.csv", *arguments)
    assert (status, out) == (2, "")
    assert words in err


def test_an_option_of_a_ledger_is_given_once(run: Run) -> None:
    create = ["budget", "create", "b.json", "--name", "x", "--epsilon", "1", "--epsilon", "2"]
    assert "--epsilon was given 2 times" in run(*create)[2]
    assert not Path("b.json").exists()


def test_columns_of_frames_are_suggested() -> None:
    with pytest.raises(ValueError, match=r"no column 'Incom'\. Did you mean income\?"):
        publish(pl.DataFrame({"income": [1]}), Request(1.0, [Question(["count"], "Incom")]))


@pytest.mark.parametrize("column", ["Maura Secret", "1985-07-2", "city"])
def test_a_first_line_that_may_be_a_row_is_not_quoted(column: str, run: Run) -> None:
    Path("headless.csv").write_text(f"{PERSON},1985-07-21,17\nAnn,1990-01-01,19\n")
    status, _, err = run("release", "headless.csv", "--column", column)
    assert status == 2
    assert "Secretname" not in err
    assert "1985-07-21" not in err


# What it costs -----------------------------------------------------------------------------------


def test_a_run_without_a_ledger_ends_with_its_cost(run: Run) -> None:
    line = (
        "This run spent epsilon 1. Running it again spends it again; --ledger FILE keeps the "
        "total.\n"
    )
    status, out, err = run("release", "people.csv", "--column", "age", "--record", "r.json")
    assert (status, err) == (0, "")
    assert out.endswith(f"Written to r.json.\n{line}")
    out, err = run("release", "people.csv", "--json")[1:]
    assert err == line
    assert json.loads(out)["ledger"] is None


def test_a_run_with_a_ledger_names_what_is_left_instead(run: Run) -> None:
    run("budget", "create", "budget.json", "--name", "n", "--epsilon", 3)
    out = run("release", "people.csv", "--ledger", "budget.json")[1]
    assert "Running it again" not in out
    assert "Paid from budget.json, which has epsilon 2 left." in out


def test_a_preview_spends_nothing(run: Run) -> None:
    assert "spent" not in run("release", "--check")[1]


# Numbers without information, and which epsilon gives a margin -----------------------------------

MEAN = ["--column", "age", "--query", "mean", "--lower", "0", "--upper", "120"]
SAYS_NOTHING = "no information: too few rows for this epsilon"


def test_a_margin_as_wide_as_the_bounds_is_no_information(run: Run) -> None:
    """Noise of 10^6 rows hides 100 rows. Marks follow from the published number and margin."""
    outputs = ["--record", "r.json", "--html", "p.html", "--output", "t.csv", "--plot", "p.png"]
    wide = [*MEAN, "--query", "std", "--query", "count", "--epsilon", "3e-6", "--no-clamp"]
    status, out, _ = run("release", "people.csv", *wide, *outputs)
    assert status == 0
    mean, std, count = json.loads(Path("r.json").read_text())["releases"]
    for release, line in zip((mean, std), out.splitlines()[1:3], strict=True):
        low, high = (release["value"] + sign * release["error"] for sign in (-1, 1))
        covers = low <= 0 and high >= (120 if release is mean else 60)
        assert release["no_information"] == covers
        assert (SAYS_NOTHING in line) == covers
        assert ("±" in line) != covers
    assert count["no_information"] is False


@pytest.mark.sample(2)
@pytest.mark.parametrize("query", ["mean", "variance", "std", "median", "quantiles:0.25,0.75"])
def test_an_empty_group_says_nothing_in_tables_json_and_pages(query: str, run: Run) -> None:
    """Without rows, a run leaves out the mark with a probability below 0.2.

    For example, the noisy sum of both parts of a mean must be 3 scales above 0. So the test repeats
    the run until there is a mark. It fails by chance with a probability below 0.2^20.
    """
    lines = [*MEAN[:2], "--query", query, *MEAN[4:], "--group-by", "city=nowhere"]
    for _ in range(20):
        status, out, _ = run(
            "release", "people.csv", *lines, "--epsilon=1e-6", "--record=r.json", "--html=p.html",
            "--output=t.csv", "--force", "--intervals",
        )  # fmt: skip
        assert status == 0
        (release,) = json.loads(Path("r.json").read_text())["releases"]
        mark = release["no_information"]
        if mark if isinstance(mark, bool) else all(mark):
            break
    assert SAYS_NOTHING in out
    assert "±" not in out
    assert SAYS_NOTHING in Path("p.html").read_text()
    assert "“No information” marks a number" in Path("p.html").read_text()
    with Path("t.csv").open() as file:
        assert {row["note"] for row in csv.DictReader(file)} == {SAYS_NOTHING}


def test_numbers_with_information_are_not_marked(run: Run) -> None:
    queries = [part for query in ("std", "median", "count") for part in ("--query", query)]
    out = run("release", "people.csv", *MEAN, *queries, "--epsilon", 1e4, "--html", "p.html")[1]
    assert "no information" not in out
    assert "o information" not in Path("p.html").read_text()


def margins(out: str) -> dict[str, float]:
    """Return the margin of each statistic in a preview."""
    rows = re.findall(r"^\S+ +(\S+) +.*within ([\d,.e-]+), ", out, re.MULTILINE)
    return {name: float(margin.replace(",", "")) for name, margin in rows}


def test_a_preview_has_the_margins_for_a_number_of_rows(run: Run) -> None:
    """A mean is within 120 ln(20)/(epsilon rows): the noise of one sum over that of all.

    The count comes from the same noisy sums, so it takes no part of epsilon.
    """
    status, out, err = run("release", *MEAN, "--query", "count", "--check", "--rows", 5000)
    assert (status, err) == (0, "")
    assert "margins for 5,000 rows" in out
    assert margins(out)["mean"] == pytest.approx(120 * math.log(20) / 5000, rel=0.01)
    few = " ".join(run("release", *MEAN, "--check", "--rows", 5)[1].split())
    assert SAYS_NOTHING in few


def test_a_check_says_that_the_number_of_rows_is_an_assumption(run: Run) -> None:
    out = run("release", *MEAN, "--check", "--rows", 5000, "--within", "5%")[1]
    assert "The margins assume that the data has 5,000 rows, as --rows says." in out
    out = run("release", "--group-by", "city=cork,dublin", "--check", "--rows", 500)[1]
    assert "The margins assume that each group has 500 rows, as --rows says." in out
    assert "assume" not in run("release", *MEAN, "--check")[1]


def test_a_check_shows_the_margin_of_what_is_left_out(run: Run) -> None:
    """All values are within the bounds and all rows count, so a share is within it, mostly."""
    words = "If nothing is left out, they are within "
    few = ["--person", "name", "--max-rows", 3]
    margins = []
    for options in ([], few):
        out = run("release", *MEAN, *options, "--left-out", "--check", "--rows", 500)[1]
        margins.append(float(re.findall(f"{words}([0-9.]+) %", " ".join(out.split()))[0]))
    assert 0 < margins[0] < margins[1] <= 100
    assert words not in run("release", *MEAN, "--left-out", "--check")[1]
    assert words not in run("release", *MEAN, "--check", "--rows", 500)[1]


def test_a_check_quotes_a_group_with_a_comma(run: Run) -> None:
    groups = 'city=cork,"Süd, alt",galway'
    printed = run("release", "--query", "count", "--group-by", groups, "--check")[1]
    assert 'groups of city: cork, "Süd, alt", galway\n' in printed


def test_a_check_of_rows_says_what_to_do_if_people_have_several(run: Run) -> None:
    hint = "If people have several rows, say which column identifies them: --person."
    assert hint in " ".join(run("release", *MEAN, "--check")[1].split())
    persons = ["--person", "name", "--max-rows", 1]
    assert "several rows" not in run("release", *MEAN, *persons, "--check")[1]


@pytest.mark.parametrize("rows", [[], ["--rows", "5000"]])
def test_a_preview_says_that_a_median_has_no_margin_without_intervals(
    rows: list[str], run: Run
) -> None:
    median = [*(word.replace("mean", "median") for word in MEAN), "--check", *rows]
    assert "no margin without intervals" in run("release", *median)[1]
    assert "no margin" not in run("release", *median, "--intervals")[1]


@pytest.mark.parametrize(
    ("options", "epsilon"),
    [
        # A mean within 5 % of the range: ln(20)/(epsilon rows) = 0.05.
        ([*MEAN, "--rows", "5000", "--within", "5%"], math.log(20) / (0.05 * 5000)),
        ([*MEAN, "--rows", "5000", "--within", "6"], math.log(20) / (0.05 * 5000)),
        ([*MEAN, "--rows", "500", "--within", "5 %"], math.log(20) / (0.05 * 500)),
        # With a = exp(-epsilon), discrete Laplace noise is beyond m with probability
        # 2 a^(m + 1)/(1 + a).
        (["--rows", "5000", "--within", "5%"], math.log(20) / 250.5),
    ],
)
def test_a_preview_finds_the_least_epsilon_for_a_margin(
    options: list[str], epsilon: float, run: Run
) -> None:
    status, out, err = run("release", "--check", *options)
    assert (status, err) == (0, "")
    found = float(re.findall(r"epsilon (\S+) is the least", out)[0])
    assert found == pytest.approx(epsilon, rel=0.01)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("query", "rows"), [("groups", 1_000), ("groups", 50), ("count", 300)])
def test_a_found_epsilon_shows_discovered_groups_of_this_size(
    query: str, rows: int, run: Run
) -> None:
    """With no number to be close, a budget of 10^-5 was found to be enough for groups."""
    options = ["--group-by", "city", "--delta", "1e-6", "--query", query, "--within", "5%"]
    out = run("release", "--check", "--rows", rows, *options)[1]
    found = float(re.findall(r"epsilon (\S+), delta 1e-06 is the least", out)[0])
    assert "It shows groups of this size" in " ".join(out.split())
    for epsilon, is_shown in [(found, True), (found * 0.9, query == "count")]:
        by_city = Question([query], by=["city"])
        request = Request(epsilon, [by_city], {"city": "discover"}, delta=1e-6)
        (discovery,) = request.discoveries()
        assert (discovery.shown_size(0.95) <= rows) == is_shown


def test_a_found_epsilon_is_enough_and_a_smaller_one_is_not(run: Run) -> None:
    queries = [part for query in ("std", "median", "sum") for part in ("--query", query)]
    out = run("release", *MEAN, *queries, "--check", "--rows", 5000, "--within", "5%")[1]
    found = float(re.findall(r"epsilon (\S+) is the least", out)[0])
    for epsilon, is_enough in [(found, True), (found * 0.98, False)]:
        out = run("release", *MEAN, *queries, "--check", "--rows", 5000, "--epsilon", epsilon)[1]
        shares = [float(share) for share in re.findall(r", (\S+) % of the", out)]
        assert len(shares) == 4
        assert (max(shares) <= 5) == is_enough


def test_a_preview_for_rows_works_with_rho_and_with_requests(run: Run) -> None:
    options = ["--check", "--rows", "5000", "--within", "5%"]
    assert "rho " in run("release", *MEAN, "--mechanism=gaussian", "--rho=1", *options)[1]
    Path("request.toml").write_text('epsilon = 9.0\n[[publish]]\nstatistics = ["count"]')
    assert "epsilon 0.012 in all." in run("release", "request.toml", *options)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sample", "--rows", "5"], "say --check"),
        (["--check", "--within", "5%"], "--rows 5000"),
        (["--check", "--rows", "0"], "--rows must be at least 1, got 0."),
        (["--check", "--rows", "9", "--within", "0"], "give a margin above 0"),
        (["--check", "--rows", "9", "--within", "5%%"], "give a margin above 0"),
        (["--check", "--rows", "9", "--within", "five"], "give a margin above 0"),
        (["--check", "--rows", "9", "--within", "5%", "--epsilon", "1"], "leave out --epsilon"),
        (["--check", "--rows", "1", *MEAN, "--within", "1e-30"], "Allow a larger margin."),
        (["errors.toml", "--check", "--rows", "9", "--within", "5%"], "leave out --within"),
    ],
)
def test_previews_that_cannot_be_made_are_refused(options: list[str], words: str, run: Run) -> None:
    Path("errors.toml").write_text('[[publish]]\nstatistics = ["count"]\nerror = 5.0')
    status, out, err = run("release", *options)
    assert (status, out) == (2, "")
    assert words in err


def test_a_file_of_a_kind_that_is_not_written_is_refused(run: Run, tmp_path: Path) -> None:
    status, out, err = run("release", "--sample", "--output", tmp_path / "table.xlsx")
    assert (status, out) == (2, "")
    assert "(.json), got .xlsx. Spreadsheets open .csv files." in err
    assert not (tmp_path / "table.xlsx").exists()


@pytest.mark.parametrize("statistic", ["count", "sum", "mean", "variance", "std", "median"])
def test_the_margins_of_a_preview_hold_for_evenly_spread_values(statistic: str) -> None:
    """Of 60 releases, fewer than 42 are within a margin of 95 % with a probability below 10^-9."""
    rows = 2000
    values = np.linspace(0, 120, rows)
    exact = {
        "count": rows, "sum": values.sum(), "mean": values.mean(), "variance": values.var(),
        "std": values.std(), "median": np.median(values),
    }[statistic]  # fmt: skip
    request = Request(1.0, [Question([statistic], "age", lower=0, upper=120)])
    ((_, query),) = request.prepare()
    (plan,) = request.plans().values()
    answer: Any = tally(pl.DataFrame({"age": values}), plan).answers[0]
    releases = [NoisySums(None).release(query, answer, 0.95)[0] for _ in range(60)]
    errors = [abs(release.value - exact) for release in releases]
    margin = query.expected_margin(rows, 0.95)
    assert sum(error <= margin for error in errors) >= 42
    assert margin < query.possible_range(rows) / 10


# Discovered groups --------------------------------------------------------------------------------

DISCOVER = ("people.csv", "--group-by", "city", "--delta", "1e-6", "--epsilon", "2")


def test_counts_say_that_they_discovered_their_groups(run: Run) -> None:
    status, out, _ = run("release", *DISCOVER)
    assert status == 0
    assert "in all: groups of city, count 2. One row" in out  # They are paid for once.
    assert (
        "only those of 8 or more are shown, so counts near that are too large on average"
        in " ".join(out.split())
    )


def test_groups_are_printed_without_numbers(run: Run) -> None:
    status, out, _ = run("release", *DISCOVER, "--query", "groups", "--output", "groups.csv")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["cork,", "groups", "shown"] in lines
    assert "in all: groups of city 2. One row" in out
    assert "within" not in out
    with Path("groups.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["city"], row["value"]) for row in rows] == [("cork", ""), ("dublin", "")]


def test_a_preview_says_which_groups_would_be_shown(run: Run) -> None:
    _, names, _ = run("release", *DISCOVER, "--query", "groups", "--check", "--rows", "50")
    assert "groups of city: those with enough rows; one of 9 rows or more with" in names
    assert "no numbers" in names
    _, counts, _ = run("release", *DISCOVER, "--check")
    assert "groups of city: those whose noisy number of rows is 8 or more" in counts


def test_groups_cannot_be_drawn(run: Run) -> None:
    status, _, error = run("release", *DISCOVER, "--query", "groups", "--plot", "groups.png")
    assert status != 0
    assert "--plot draws numbers: --query groups has none." in error
