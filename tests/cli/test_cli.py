"""The command line: its output, its files, and the arguments that it refuses."""

import csv
import errno
import gc
import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.choices import sample_cases

from dpnoise import cli
from dpnoise.statistics import publishing, queries, selections
from dpnoise.statistics.requests import Question, Request

BOUNDS = ["--lower", "0", "--upper", "100", "--column", "x"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a CSV file and a Parquet file of the same hundred rows, and return the first."""
    x = np.arange(100.0)
    city = ["cork" if i % 4 else "dublin" for i in range(100)]
    lines = ["city,x", *(f"{c},{v}" for c, v in zip(city, x, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    pq.write_table(pa.table({"city": city, "x": x}), tmp_path / "t.parquet")
    return tmp_path / "t.csv"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def releases(out: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(out)["releases"]
    return result


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_release_publishes_each_query_with_its_part_of_epsilon(
    table: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At epsilon 10^6 the noise is smaller than the tolerances here.

    Count, sum and mean share noisy sums, and their parts of epsilon.
    """
    queries = ["count", "sum", "mean", "median", "quantile:0.9", "histogram"]
    query_options = [part for query in queries for part in ("--query", query)]
    status, out, _ = run(
        capsys, "release", table.with_suffix(suffix), *BOUNDS, *query_options,
        "--epsilon", 6e6, "--edges", "0,50,99", "--json",
    )  # fmt: skip
    assert status == 0
    count, total, mean, median, ninth, histogram = releases(out)
    assert count["value"] == 100
    assert total["value"] == pytest.approx(4950, abs=0.01)
    assert mean["value"] == pytest.approx(49.5, abs=0.01)
    assert median["value"] == pytest.approx(49.5, abs=1)
    assert ninth["value"] == pytest.approx(89.5, abs=1)
    assert histogram["value"] == [50, 50]
    for release in releases(out):
        assert release["epsilon"] == 1e6 * max(len(release["shared"]), 1)


def test_only_declared_groups_are_published(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(
        capsys, "release", table, *BOUNDS, "--query", "count", "--epsilon", 1e6,
        "--group-by", "city=cork,nowhere", "--json",
    )  # fmt: skip
    assert [(release["group"], release["value"]) for release in releases(out)] == [
        ("cork", 75),
        ("nowhere", 0),
    ]
    assert "dublin" not in out
    assert all(release["epsilon"] == 1e6 for release in releases(out))


def test_columns_without_groups_are_discovered_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stays.csv"
    path.write_text("city,day\n" + "cork,9\n" * 50 + "dublin,10\n" * 40 + "dublin,9\n")
    columns = ["--group-by", "day", "--group-by", "city", "--delta", "1e-9"]
    _, out, _ = run(capsys, "release", path, "--epsilon", 1e6, *columns, "--json")
    assert [(release["group"], release["value"]) for release in releases(out)] == [
        (["9", "cork"], 50),
        (["10", "dublin"], 40),
    ]
    _, out, _ = run(capsys, "release", path, "--epsilon", 1, *columns, "--check")
    assert "groups of day and city: those whose noisy number of rows is" in out
    _, out, _ = run(capsys, "release", path, "--epsilon", 1e6, *columns, "--query", "groups")
    assert ("9, cork" in out, "10, dublin" in out, "9, dublin" in out) == (True, True, False)


def test_output_and_plot_are_written_whole(
    table: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, _ = run(
        capsys, "release", table, *BOUNDS, "--query", "mean", "--query", "count",
        "--output", tmp_path / "out.json", "--plot", tmp_path / "out.png",
    )  # fmt: skip
    assert status == 0
    assert json.loads((tmp_path / "out.json").read_text())["format"] == 4
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".*"))
    reference = tmp_path / "by-hand"
    reference.touch()
    assert (tmp_path / "out.json").stat().st_mode == reference.stat().st_mode


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        ('"city "="dublin ",cork', {"dublin ": 2, "cork": 1}),
        ('"city "= " cork" , cork ,dublin', {" cork": 1, "cork": 1, "dublin": 0}),
        ('"city "="Cork, County",5" pipe', {"Cork, County": 1, '5" pipe': 1}),
        ('"city "="say ""hi"""', {'say "hi"': 1}),
        ('"a=b"=x', {"x": 7}),
    ],
)  # fmt: skip
def test_names_in_quotes_are_taken_as_they_stand(
    group_by: str, expected: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At epsilon 10^6 the noise of a count is not 0 with a probability below 10^-200000."""
    cities = ["dublin ", "dublin ", "cork", " cork", "Cork, County", 'say "hi"', '5" pipe']
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "city ", "a=b"], *([1, city, "x"] for city in cities)])
    out = run(
        capsys, "release", tmp_path / "t.csv", "--column", "x", "--epsilon", 1e6,
        "--group-by", group_by, "--json",
    )[1]  # fmt: skip
    assert {release["group"]: release["value"] for release in releases(out)} == expected


@pytest.mark.parametrize("group_by", ['city="cork', 'city="cork"x,dublin', 'city=a,"""', '"city=a'])
def test_a_quote_that_does_not_end_a_name_is_refused(
    group_by: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "release", table, *BOUNDS, "--group-by", group_by)
    assert "a name in quotes ends with them" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_sample_writes_noise(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"noise{suffix}"
    arguments = ("sample", "laplace", "--scale", "2", "--size", "1000", "--output", target)
    assert run(capsys, *arguments)[0] == 0
    if suffix == ".npy":
        noise = np.load(target)
    elif suffix == ".csv":
        noise = np.loadtxt(target, skiprows=1)
    else:
        noise = pq.read_table(target)["noise"].to_numpy()
    assert noise.shape == (1000,)
    assert len(set(noise)) == 1000


def test_sample_prints_and_cost_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run(capsys, "sample", "normal", "--size", "5")[1].split()) == 5
    status, out, _ = run(capsys, "cost", "--precision", "24", "--variates", "8")
    assert status == 0
    assert "the paper's figure               2^168 checks" in out


def test_errors_of_other_commands_name_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "cost", "--variates", "3")
    assert status == 2
    assert "--variates must be" in err
    assert "--size must be at least 0, got -1" in run(capsys, "sample", "laplace", "--size=-1")[2]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_errors_are_reported_before_noise_is_drawn(
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_if_called(*_: object) -> None:
        pytest.fail("noise was drawn")

    for query in (queries.Count, queries.Sum, queries.Mean, selections.QuantileSelection):
        monkeypatch.setattr(query, "release", fail_if_called)
    text = write(tmp_path / "text.csv", "x\n1\n2\nsecret\n4\n")
    missing = write(tmp_path / "missing.csv", "x,y\n1,1\n,2\n3,3\n")
    commas = write(tmp_path / "commas.csv", "x;y\n1,5;2\n")
    no_id = write(tmp_path / "no-id.csv", "x,who\n1,a\n2,\n")
    truncated = tmp_path / "truncated.parquet"
    truncated.write_bytes(table.with_suffix(".parquet").read_bytes()[:-20])
    mean = [*BOUNDS, "--query", "mean"]
    cases: list[tuple[list[Any], str]] = [
        ([tmp_path / "none.csv", *mean], "There is no file"),
        ([table, "--column", "income"], "has no column 'income'. Its first line has 2 entries."),
        ([table.with_suffix(".parquet"), "--column", "income"], "It has: city, x."),
        ([text, *mean], "Row 3 of column 'x' (the header not counted) holds text"),
        ([text, *mean], "not a number. A number has no currency sign, unit or thousands sep"),
        ([text, *mean], "Correct it, or empty it and say --missing drop."),
        ([commas, *mean, "--delimiter", ";"], "decimal commas, say --decimal , to read them."),
        (
            [no_id, *mean, "--person", "who", "--max-rows", "1"],
            "count each as a separate person: --without-id own.",
        ),
        ([missing, *mean], "Row 2 of column 'x' (the header not counted) has no value"),
        ([missing, *mean], "To leave out such rows, say --missing drop."),
        ([write(tmp_path / "empty.csv", ""), *mean], "is empty"),
        ([truncated, *mean], "it is damaged, or not what the request says"),
        (
            [table, "--column", "x", "--query", "mean"],
            "on a value, such as --lower 0 and --upper 100.",
        ),
        ([table, *BOUNDS, "--query", "mode"], "There is no statistic 'mode'"),
        ([table, *BOUNDS, "--query", "quantile:x"], "quantile:0.9"),
        ([table, *BOUNDS, "--query", "quantile"], "quantile:0.9"),
        (
            [table, "--query", "median"],
            "t.csv to use: --column NAME. Its first line has 2 entries.",
        ),
        (
            [table.with_suffix(".parquet"), "--query", "sum"],
            "t.parquet to use: --column NAME. It has: city, x.",
        ),
        ([tmp_path / "none.csv", "--query", "count"], "There is no file"),
        ([tmp_path / "none.csv", "--query", "mode"], "There is no file"),
        ([tmp_path, "--query", "count"], "is a folder"),
        ([table, "--delimiter", ";;"], "must be one ASCII character"),
        ([tmp_path, *mean], "is a folder"),
        ([write(tmp_path / "semi.csv", "x;y\n1;2\n"), *mean], "as in --delimiter ';'."),
        (
            [table, *mean, "--group-by", "city="],
            "in UTF-8: --group-by city=cork,dublin.",
        ),
        (
            [table, *mean, "--group-by", "city=a,a"],
            "not repeat a group: --group-by city=cork,dublin.",
        ),
        ([table, *mean, "--plot", tmp_path / "p.xyz"], "must end in .png, .pdf, .svg"),
        ([table, *mean, "--plot", tmp_path / "no" / "p.png"], "There is no folder"),
        ([table, *BOUNDS, "--query", "histogram"], "needs its edges: --edges 0,10000,20000."),
        ([table, *mean, "--epsilon", "0"], "--epsilon must be greater than 0, got 0.0"),
        (
            [table, "--column", "x", "--query", "mean", "--lower", "200", "--upper", "100"],
            "--lower must be below --upper 100.0, got 200.0",
        ),
        ([table, *mean, "--grid", "0.3"], "--grid must be a power of two"),
        ([table, *BOUNDS, "--epsilon=1e-300"], "scale must "),  # No option has this name.
        ([tmp_path / "Expected epsilon=1", *mean, "--epsilon", "1"], "/Expected epsilon=1."),
        ([table, *mean, "--confidence", "2"], "must be between 0 and 1"),
        ([table, *mean, "--group-by", "town=a"], "has no column 'town'"),
    ]
    for arguments, message in sample_cases(cases, 15):
        status, out, err = run(capsys, "release", *arguments, "--output", tmp_path / "out.json")
        assert status == 2, arguments
        assert message in err
        assert out == ""
        assert "secret" not in err
        assert not (tmp_path / "out.json").exists()


def test_the_data_is_never_overwritten(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = table.read_bytes()
    for option in ("--output", "--plot"):
        status, _, err = run(capsys, "release", table, *BOUNDS, "--query", "count", option, table)
        assert status == 2
        assert "is the data" in err
    assert table.read_bytes() == before


def test_groups_of_a_column_are_given_once_and_without_their_spaces(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["release", table, *BOUNDS, "--query", "count", "--epsilon", "1e6", "--json"]
    out = run(capsys, *arguments, "--group-by", "city=cork, dublin")[1]
    assert [release["value"] for release in releases(out)] == [75, 25]
    err = run(capsys, *arguments, "--group-by", "city=cork", "--group-by", "city=dublin")[2]
    assert "--group-by and --groups-file must name each column once." in err


def test_totals_are_published_and_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "ages.csv"
    rows = [f"{city},{age},7" for city in ("cork", "dublin", "x") for age in (30, 40, 50, 60)]
    table.write_text("\n".join(["city,age,x", *rows]) + "\n")
    groups = ["--group-by", "city=cork,dublin", "--group-by", "age=30,40,50"]
    for query in ("count", "sum"):
        arguments = ["release", table, *BOUNDS, "--query", query, *groups, "--totals"]
        found = releases(run(capsys, *arguments, "--json")[1])
        by = [release["by"] for release in found]
        assert by == [[], *[["city"]] * 2, *[["city", "age"]] * 6]
        total, *cities = (release["value"] for release in found[:3])
        cells = [release["value"] for release in found[3:]]
        assert total == sum(cities) == sum(cells)
        assert cities == [sum(cells[:3]), sum(cells[3:])]
        out = run(capsys, *arguments)[1]
        assert f"Adjusted to add up: each {query} of " in out
    err = run(capsys, "release", table, *BOUNDS, "--query", "mean", *groups, "--totals")[2]
    assert "--totals needs --group-by, and a count or a sum to add up." in err
    out = run(capsys, "release", table, *groups, "--totals", "--check")[1]
    words = "Margins are those before the adjustment, which makes most of them smaller."
    assert words in " ".join(out.split())


def test_the_report_can_be_read_without_the_command(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(
        capsys, "release", table, *BOUNDS, "--query", "histogram", "--edges", "0,9", "--json"
    )[1]
    request = json.loads(out)["request"]
    (question,) = request["publish"]
    assert question["edges"] == [0, 9]
    assert (question["lower"], question["upper"], request["epsilon"]) == (0, 100, 1)


def test_semicolons_are_read_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "semi.csv", "x;y\n1;2\n3;4\n")
    arguments = [*BOUNDS, "--query", "count", "--epsilon", "1e6", "--json", "--delimiter", ";"]
    assert releases(run(capsys, "release", path, *arguments)[1])[0]["value"] == 2


def test_errors_about_a_request_write_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an error recommends works when it is written there."""
    path = tmp_path / "people.csv"
    path.write_bytes(b"x;\xe4\n1,5;2\n;2\n")
    top, source = "", f'[source]\npath = "{path}"\n'
    request = tmp_path / "request.toml"
    for setting, place in (
        ('encoding = "windows-1252"', "under [source]."),
        ('delimiter = ";"', "under [source]."),
        ('decimal = ","', "under [source] to read them."),
        ('missing = "drop"', "at the top."),
    ):
        question = '[[publish]]\nstatistics = ["count"]\ncolumn = "x"\n'
        request.write_text(f"epsilon = 1e6\n{top}\n{source}\n{question}")
        status, _, err = run(capsys, "release", request)
        assert (status, f"{setting} {place}" in err) == (2, True), err
        if place == "at the top.":
            top += setting
        else:
            source += setting + "\n"
    request.write_text(f"epsilon = 1e6\n{top}\n{source}\n{question}")
    status, out, _ = run(capsys, "release", request, "--json")
    assert (status, releases(out)[0]["value"]) == (0, 1)


def test_missing_values_are_dropped_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "missing.csv", "x,city\n1,cork\n,cork\n3,\nNaN,cork\n")
    arguments = [*BOUNDS, "--query", "count", "--epsilon", "1e6", "--json", "--missing", "drop"]
    assert releases(run(capsys, "release", path, *arguments)[1])[0]["value"] == 2
    grouped = releases(run(capsys, "release", path, *arguments, "--group-by", "city=cork")[1])
    assert grouped[0]["value"] == 1


def test_headers_are_read_as_csv_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quoted names, commas in names, a byte order mark, a header without rows."""
    for name, text in [
        ('x, "net"', '\ufeffa,"x, ""net"""\n1,2\n'),
        ("x", '"a","x"\n'),
    ]:
        path = tmp_path / "header.csv"
        path.write_text(text, encoding="utf-8")
        status, out, err = run(
            capsys,
            "release",
            path,
            "--column",
            name,
            "--query",
            "count",
            "--epsilon",
            1e6,
            "--json",
        )
        assert status == 0, err
        assert releases(out)[0]["value"] == text.count("\n") - 1
    path.write_bytes(b"x\n\xff\xfe\n")
    assert run(capsys, "release", path, "--column", "x")[0] == 2


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_a_full_disk_is_noticed_before_noise_is_drawn(
    option: str,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_disk_full(self: Path, _: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail_if_called(*_: object) -> None:
        pytest.fail("noise was drawn")

    monkeypatch.setattr(Path, "write_bytes", raise_disk_full)
    monkeypatch.setattr(queries.Count, "release", fail_if_called)
    target = tmp_path / "out" / ("r.png" if option == "--plot" else "r.json")
    target.parent.mkdir()
    status, _, err = run(capsys, "release", table, *BOUNDS, "--query", "count", option, target)
    assert status == 2
    assert "No space left" in err
    assert list(target.parent.iterdir()) == []


def test_a_wrong_ending_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "sample", "laplace", "--output", tmp_path / "noise.txt")
    assert status == 2
    assert ".npy, .csv, .parquet" in err


@pytest.mark.long
def test_parts_of_epsilon_never_add_up_to_more() -> None:
    for epsilon in (1.0, 0.1, math.pi, 1e-3):
        for count in range(1, 50):
            request = Request(epsilon, [Question(["count"] * count, "x")])
            spent = Fraction(0)
            for _, query in request.prepare():
                assert isinstance(query, queries.Count)
                spent += Fraction(query.mechanism.epsilon)
            assert spent <= Fraction(epsilon)


# Files that are easy to read wrongly. -------------------------------------------------------------


def test_words_for_missing_values_are_names_of_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NA is Namibia in one column, and a missing value in the column of numbers."""
    path = tmp_path / "countries.csv"
    path.write_text('country,x\nNA,1\nNA,2\nUS,3\n"NA",3\nnull,3\nUS,NA\n"Cork, County",1\n')
    options = ["--group-by", 'country=NA,US,null,"Cork, County"', "--missing", "drop", "--json"]
    assert cli.main(["release", str(path), "--column", "x", "--epsilon", "1000", *options]) == 0
    releases = json.loads(capsys.readouterr().out)["releases"]
    counts = {release["group"]: release["value"] for release in releases}
    assert counts == {"NA": 3, "US": 1, "null": 1, "Cork, County": 1}


def test_a_row_that_is_not_a_number_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if Python or DuckDB would read the text as a number, but people would not."""
    path = tmp_path / "odd.csv"
    for third in sample_cases(("1_0", "+-5", "0x10", "1,5", "abc", "- 5", "5f"), 3):
        path.write_text(f'x,y\n1,0\n2,0\n"{third}",0\n')
        assert cli.main(["release", str(path), "--column", "x"]) == 2
        assert "Row 3 of column 'x'" in capsys.readouterr().err


def test_a_file_with_only_a_header_has_no_rows(tmp_path: Path) -> None:
    for text in ("x,y", "x,y\n", "x,y\r\n", "\nx,y"):
        (tmp_path / "header.csv").write_text(text)
        request = Request(1e6, [Question(["count"], "x")])
        (count,) = publishing.publish(tmp_path / "header.csv", request)
        assert count.release.value == 0


def test_a_ragged_row_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ragged.csv").write_text("x,y\n1,2\n3,secret,5\n")
    assert cli.main(["release", str(tmp_path / "ragged.csv"), "--column", "x"]) == 2
    error = capsys.readouterr().err
    assert "line 3 has 3 entries where the header has 2" in error
    assert "secret" not in error


def test_negative_numbers_are_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = ["--lower", "-1e5", "--upper", "2e5"]
    sample = ["release", "--sample", "--column", "income"]
    assert cli.main([*sample, "--query", "mean", *bounds]) == 0
    assert cli.main([*sample, "--query", "histogram", "--edges", "-5,5"]) == 0
    assert capsys.readouterr().err == ""


def test_a_scale_that_no_attack_can_work_with_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for claims in (["--epsilon", "1e308"], ["--epsilon", "1", "--sensitivity", "1e-308"]):
        assert cli.main(["audit", "numpy.laplace", *claims, "--budget", "2000"]) == 2
        assert "must be between 2^-960 and 2^960" in capsys.readouterr().err


def test_a_library_that_cannot_be_set_up_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "bogus")
    arguments = ["release", "--sample", "--plot", "a.png"]
    code = f"import sys; from dpnoise import cli; sys.exit(cli.main({arguments}))"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stderr.startswith("dpnoise: matplotlib cannot be imported")
    assert not list(tmp_path.iterdir())


def test_a_caller_of_main_keeps_their_settings(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `dpnoise release` itself imports without threads of BLAS and with less garbage."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    before = gc.get_threshold()
    assert run(capsys, "release", table, "--query", "count")[0] == 0
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    assert gc.get_threshold() == before
