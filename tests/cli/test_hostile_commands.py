"""Hostile commands are refused with one line, before noise is drawn, and leave no files."""

import datetime as dt
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.alarms import LONG

from dpnoise import LaplaceMechanism, cli, statistics
from dpnoise.core.entropy import SYSTEM, EntropySource
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import publishing
from dpnoise.statistics.requests import Request

Run = Callable[..., tuple[int, str, str]]
SUM = ["--query", "sum", "--lower", "0", "--upper", "10"]
CONTROL_CHARACTERS = "\x1b[31m\x07\x9b\x7f\u202e\u2066\u2028"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command and returns its status, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as error:  # Raised by argparse.
            status = error.code  # type: ignore[assignment]
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records every request for noise to the operating system."""
    recorded: list[str] = []
    for hook in ("key", "random_bytes"):
        real = getattr(SYSTEM, hook)

        def record(*arguments: Any, real: Any = real, hook: str = hook) -> Any:
            recorded.append(hook)
            return real(*arguments)

        monkeypatch.setattr(EntropySource, hook, staticmethod(record))
    return recorded


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of hostile files."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = {
        "ok.csv": "x,city\n1,cork\n2,dublin\n",
        "tabs.csv": "x\tcity\n1\tcork\n",
        "empty.csv": "",
        "blank.csv": "\n\n\n",
        "mark.csv": "\ufeff",
        "twice.csv": "x,x\n1,2\n",
        "long.csv": "x" * 200_000 + ",y\n1,2\n",
        "longer.csv": "x" * 3_000_000 + ",y\n1,2\n",
        "nul.csv": "x\n1\0\n",
        "ragged.csv": "x,y\n1,2\n1,2,secret\n",
        "text.parquet": "x\n1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    (folder / os.fsdecode(b"not-utf8-\xff.csv")).write_text("x\nsecret\n")
    pq.write_table(pa.table({"x": [1.0]}), folder / "plain.parquet")
    (folder / os.fsdecode(b"not-utf8-\xff.parquet")).write_bytes(
        (folder / "plain.parquet").read_bytes()
    )
    for name, column in PARQUET.items():
        rows = {"x": pa.array([1.0]), "g": column}
        pq.write_table(pa.table(rows), folder / f"{name}.parquet")
    two_columns = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["x", "x"])
    pq.write_table(two_columns, folder / "twice.parquet")
    os.mkfifo(folder / "fifo.csv")
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.fixture(autouse=True)
def _hostile_folder(hostile_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the hostile folder the current one, with an empty folder `out`."""
    monkeypatch.chdir(hostile_folder)
    (hostile_folder / "out").unlink(missing_ok=True)
    (hostile_folder / "out").symlink_to(tmp_path)


PARQUET = {
    "list": pa.array([[1, 2]]),
    "struct": pa.array([{"a": 1}]),
    "map": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
    "binary": pa.array([b"\xff\xfe"]),
    "date": pa.array([dt.date(2020, 1, 1)]),
    "null": pa.array([None], pa.null()),
    "bytes": pa.array([b"a"]),
    "large": pa.array([2**53 + 1]),
    "dictionary": pa.array(["a"]).dictionary_encode(),
}

X = ["--column", "x"]
OUTPUT = ["--output", "out/r.json"]
# Arguments, and words of the error message.
RELEASES: list[tuple[list[object], str]] = [
    (["empty.csv", *X], "is empty: it has no header"),
    (["blank.csv", *X], "is empty: it has no header"),
    (["mark.csv", *X], "is empty: it has no header"),
    (["twice.csv", *X], "has more than one column 'x'"),
    (["twice.parquet", *X], "has more than one column 'x'"),
    (["long.csv", *X], "header"),
    (["longer.csv", "--column", "y"], "header"),
    (["nul.csv", *X], "Row 1 of column 'x'"),
    (["ragged.csv", *X], "cannot be read"),
    (["binary.csv", *X], "cannot be read"),
    (["text.parquet", *X], "cannot be read"),
    (["fifo.csv", *X], "is not a regular file"),
    (["/dev/null", *X], "is not a regular file"),
    (["not-utf8-\udcff.csv", *X], "Row 1 of column 'x'"),
    (["none-\udcff.parquet", *X], r"no file none-\udcff.parquet"),
    (["out", *X], "is a folder"),
    (["a\0b", *X], "a name without NUL"),
    (["", *X], "give the name of a file"),
    (["ok.csv", "--column", ""], "Every column must have a name"),
    (["ok.csv", "--column", CONTROL_CHARACTERS], r"has no column '\x1b[31m\x07\x9b\x7f\u202e"),
    (
        [f"{CONTROL_CHARACTERS}.csv", *X],
        r"no file \x1b[31m\x07\x9b\x7f\u202e\u2066\u2028.csv",
    ),
    (["one\ntwo.csv", *X], r"no file one\ntwo.csv"),
    (["ok.csv", *X, "--delimiter", ""], "must be one ASCII character"),
    (["ok.csv", *X, "--delimiter", ";;"], "must be one ASCII character"),
    (["ok.csv", *X, "--delimiter", "é"], "must be one ASCII character"),
    (["ok.csv", *X, "--delimiter", '"'], "must differ from the quote"),
    (["ok.csv", *X, "--delimiter", "\n"], "must be one ASCII character"),
    (["ok.csv", *X, "--confidence", "0.9999999999999999"], "confidence"),
    (["ok.csv", *X, *SUM, "--confidence", "0.9999999999999999"], "confidence"),
    (["ok.csv", *X, "--confidence", "nan"], "confidence"),
    (["ok.csv", *X, "--confidence", "1"], "confidence"),
    (["ok.csv", *X, "--query", "sum", "--lower=-1e308", "--upper=1e308"], "another unit"),
    (["ok.csv", *X, "--query", "mean", "--lower=-1e308", "--upper=1e308"], "another unit"),
    (["ok.csv", *X, "--query", "sum", "--lower", "nan", "--upper", "10"], "lower"),
    (["ok.csv", *X, "--query", "sum", "--lower", "0", "--upper", "inf"], "upper"),
    (["ok.csv", *X, *SUM, "--grid", "0"], "grid"),
    (["ok.csv", *X, *SUM, "--grid", "1e-320"], "grid"),
    (["ok.csv", *X, *SUM, "--query", "median", "--grid", "1e-320"], "grid"),
    (["ok.csv", *X, "--epsilon", "nan"], "epsilon"),
    (["ok.csv", *X, "--epsilon", "inf"], "epsilon"),
    (["ok.csv", *X, "--epsilon", "0"], "epsilon"),
    (["ok.csv", *X, "--epsilon", "-1"], "epsilon"),
    (["ok.csv", *X, "--epsilon", "1e400"], "epsilon"),
    (["ok.csv", *X, "--epsilon", "1e-400"], "epsilon"),
    (["ok.csv", *X, "--epsilon", "1e-300"], "scale"),
    (["ok.csv", *X, "--epsilon", "1e300"], "scale"),
    (["ok.csv", *X, "--epsilon", ""], "epsilon"),
    (["ok.csv", *X, "--epsilon", CONTROL_CHARACTERS], "epsilon"),
    (["ok.csv", *X, "--group-by", "city"], "declare the groups"),
    (["ok.csv", *X, "--group-by", ""], "declare the groups"),
    (["ok.csv", *X, "--group-by", "=cork"], "Every column must have a name"),
    (["ok.csv", *X, "--group-by", "city="], "must have a name"),
    (["ok.csv", *X, "--group-by", "city=a\udcff"], "must have a name, in UTF-8"),
    (["ok.csv", *X, "--group-by", "city\udcff=a"], r"has no column 'city\udcff'"),
    (["ok.csv", *X, "--group-by", "city=cork,cork"], "not repeat a group"),
    (["list.parquet", *X, "--group-by", "g=a"], "Column 'g' holds List"),
    (["struct.parquet", *X, "--group-by", "g=a"], "Column 'g' holds Struct"),
    (["map.parquet", *X, "--group-by", "g=a"], "Column 'g' holds"),
    (["list.parquet", "--column", "g"], "Column 'g' holds List"),
    (["struct.parquet", "--column", "g"], "Column 'g' holds Struct"),
    (["binary.parquet", "--column", "g"], "Column 'g' holds Binary"),
    (["date.parquet", "--column", "g"], "Column 'g' holds Date"),
    (["null.parquet", "--column", "g"], "Row 1 of column 'g' has no value"),
    (["dictionary.parquet", "--column", "g"], "holds text that is not a number"),
    (["ok.csv", *X, "--query", ""], "no statistic ''"),
    (["ok.csv", *X, *SUM, "--query", "quantile:nan"], "q must"),
    (["ok.csv", *X, "--query", "count:3"], "no statistic 'count:3'"),
    (["ok.csv", *X, "--edges", "", "--query", "histogram"], "give numbers"),
    (["ok.csv", *X, "--edges", "0,nan", "--query", "histogram"], "increasing"),
    (["ok.csv", *X, "--edges", "0", "--query", "histogram"], "increasing"),
    (["ok.csv", *X, "--edges", "inf,inf", "--query", "histogram"], "increasing"),
    (["ok.csv", *X, "--plot", ""], "give the name of a file"),
    (["ok.csv", *X, "--output", ""], "give the name of a file"),
    (["ok.csv", *X, "--output", "a\0b"], "a name without NUL"),
    (["ok.csv", *X, "--plot", "out/r.png", "--output", "out/r.png"], "the same file"),
    (["ok.csv", *X, "--output", "out"], "is a folder"),
    (["ok.csv", *X, "--output", "ok.csv"], "is the data"),
    (["ok.csv", *X, "--output", "ok.csv", "--force"], "is the data"),
    (["ok.csv", *X, "--output", "ok.csv/r.json"], "no folder ok.csv"),
    (["ok.csv", *X, "--output", "out/" + "n" * 300], "cannot be written"),
    (["ok.csv", *X, "--output", "loop/r.json"], "no folder loop"),
    (["loop", *X], "Too many levels"),
    (["n" * 300, *X], "File name too long"),
    (["ok.csv", *X, *["--query", "count"] * 1100, "--plot", "out/r.png"], "--plot draws"),
    (["ok.csv", *X, "--missing", CONTROL_CHARACTERS], "--missing"),
    (["ok.csv", *X, CONTROL_CHARACTERS], "was not expected"),
    (["ok.csv", *X, "--no-such-option"], "There is no option --no-such-option."),
]
OTHERS: list[tuple[list[object], str]] = [
    ([], "COMMAND"),
    ([""], "COMMAND"),
    ([CONTROL_CHARACTERS], "COMMAND"),
    (["sample"], "distribution"),
    (["sample", "laplace", "--size", "-1"], "size"),
    (["sample", "laplace", "--size", "9" * 30], "size"),
    (["sample", "laplace", "--size", "9" * 5000], "size"),
    (["sample", "laplace", "--scale", "nan"], "scale"),
    (["sample", "laplace", "--scale", "-1"], "scale"),
    (["sample", "laplace", "--variates", "0"], "variates"),
    (["sample", "laplace", "--form", ""], "form"),
    (["sample", "laplace", "--form", CONTROL_CHARACTERS], "form"),
    (["sample", "laplace", "--output", ""], "give the name of a file"),
    (["sample", "laplace", "--output", "out/noise"], "must end in"),
    (["sample", "laplace", "--output", "nowhere/noise.npy"], "no folder nowhere"),
    (["cost", "--precision", "0"], "precision"),
    (["cost", "--variates", "-3"], "variates"),
    (["cost", "--form", "["], "form"),
    (["attack", CONTROL_CHARACTERS], r"There is no attack '\x1b"),
    (["attack", ""], "There is no attack"),
    (["attack", "precision", "--target", CONTROL_CHARACTERS], r"There is no target '\x1b"),
    (["attack", "precision", "--target", ""], "There is no target"),
    (["attack", "precision", "--epsilon", "nan"], "epsilon"),
    (["attack", "precision", "--size", "-5"], "--size must be at least 1, got -5"),
    (["attack", "precision", "--value0", "nan"], "value0"),
    (["attack", "precision", "--value1", "inf"], "value1"),
    (["attack", "precision", "--confidence", "2"], "confidence"),
    (["audit", CONTROL_CHARACTERS, "--epsilon", "1"], r"There is no target '\x1b"),
    (["audit", "", "--epsilon", "1"], "There is no target"),
    (["audit", ":", "--epsilon", "1"], "is not module:function"),
    (["audit", "numpy.laplace", "--epsilon", "nan"], "epsilon"),
    (["audit", "numpy.laplace", "--epsilon", "1", "--confidence", "1"], "confidence"),
    (["audit", "numpy.laplace", "--epsilon", "1", "--time-limit", "nan"], "--time-limit must"),
    (["audit", "numpy.laplace", "--epsilon", "1", "--html", ""], "give the name of a file"),
    (
        ["audit", "numpy.laplace", "--epsilon=1", "--html", "out/a", "--json", "out/a"],
        "the same file",
    ),
    (["audit", "--command", "no-such-\x1bprogram", "--epsilon", "1"], r"no-such-\x1bprogram"),
    (["leakage", "--epsilon", "nan"], "epsilon"),
    (["leakage", "--epsilon=-1"], "epsilon"),
    (["leakage", "--plot", "out/p.txt"], "must end in"),
]


def check_refusal(answer: tuple[int, str, str], words: str, draws: list[str]) -> None:
    status, out, err = answer
    assert status == 2, err
    assert out == ""
    assert err.startswith("dpnoise: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert words in err
    assert "Traceback" not in err
    assert "secret" not in err
    assert len(err) < 2000
    assert draws == []
    assert list(Path("out").iterdir()) == []
    assert Path("ok.csv").read_text() == "x,city\n1,cork\n2,dublin\n"


@pytest.mark.sample(18)
@pytest.mark.parametrize(("arguments", "words"), RELEASES)
def test_a_hostile_release_is_refused(
    arguments: list[object], words: str, run: Run, draws: list[str]
) -> None:
    output_option = [] if {"--output", "--plot"} & set(arguments) else OUTPUT
    check_refusal(run("release", *arguments, *output_option), words, draws)


@pytest.mark.parametrize(("arguments", "words"), OTHERS)
def test_other_hostile_commands_are_refused(
    arguments: list[object], words: str, run: Run, draws: list[str]
) -> None:
    check_refusal(run(*arguments), words, draws)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(run: Run, draws: list[str]) -> None:
    Path("ok.csv").chmod(0)
    answer = run("release", "ok.csv", *X)
    Path("ok.csv").chmod(0o600)
    check_refusal(answer, "Permission denied", draws)


def value_of(out: str) -> Any:
    return json.loads(out)["releases"][0]["value"]


PRECISE = ["--epsilon", "1e6", "--json"]


def test_unusual_but_valid_files_are_read(run: Run) -> None:
    """At epsilon 10^6 a count is wrong with probability 2 exp(-5 * 10^5)."""
    Path("late.csv").write_text("\n\nx,city\n1,cork\n2,dublin\n")
    columns = 10_000 if LONG else 1_000
    Path("many.csv").write_text(
        ",".join(f"c{i}" for i in range(columns)) + "\n" + ",".join(["1"] * columns) + "\n"
    )
    for arguments, count in [
        (["late.csv", *X], 2),
        (["many.csv", "--column", f"c{columns - 1}"], 1),
        (["tabs.csv", *X, "--delimiter", r"\t"], 1),
        (["tabs.csv", *X, "--delimiter", "\t"], 1),
        (["not-utf8-\udcff.parquet", *X], 1),
        (["dictionary.parquet", *X, "--group-by", "g=a"], 1),
        (["date.parquet", *X, "--group-by", "g=2020-01-01"], 1),
        (["bytes.parquet", *X, "--group-by", "g=a"], 1),
        (["binary.parquet", *X, "--group-by", "g=a"], 0),
        (["large.parquet", "--column", "g"], 1),
        (["ok.csv", *X, "--group-by", "x=2"], 1),
    ]:
        status, out, err = run("release", *arguments, *PRECISE)
        assert status == 0, err
        assert value_of(out) == count, arguments
        assert err.startswith("This run spent epsilon 1e+06.")
        assert err.count("\n") == 1


def test_columns_of_parquet_are_found_by_name_in_any_order(run: Run) -> None:
    pq.write_table(pa.table({"g": ["1", "1", "2"], "x": [5.0, 6.0, 7.0]}), "order.parquet")
    out = run("release", "order.parquet", *X, *SUM, "--group-by", "g=1", *PRECISE)[1]
    assert value_of(out) == pytest.approx(11, abs=0.1)


def test_bounds_too_small_for_a_grid_are_released_or_refused_in_words(
    run: Run, draws: list[str]
) -> None:
    for query in ("sum", "mean", "median"):
        options = ["--query", query, "--lower", "0", "--upper", "1e-320"]
        status, _, err = run("release", "ok.csv", *X, *options)
        assert status == 0 or (status == 2 and err.startswith("dpnoise: ") and not draws)


# Exit statuses -----------------------------------------------------------------------------------


class _OddError(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ZeroDivisionError("secret"), 70, "ZeroDivisionError"),
        (RecursionError("secret"), 70, "RecursionError"),
        (AssertionError("secret"), 70, "AssertionError"),
        (_OddError("secret"), 70, "_OddError"),
        (SystemExit(1), 2, "sys.exit"),
        (SystemExit(0), 2, "sys.exit"),
        (MemoryError(), 2, "memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_status_1_is_never_an_accident(
    error: BaseException, status: int, words: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(publishing, "publish", fail)
    actual_status, out, err = run("release", "ok.csv", *X, "--output", "out/r.json")
    assert (actual_status, out) == (status, "")
    assert words in err
    assert err.count("\n") == (1 if words else 0)
    assert "Traceback" not in err
    assert "secret" not in err
    assert list(Path("out").iterdir()) == []


def test_a_bug_shows_its_traceback_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "publish", lambda *_, **__: 1 / 0)
    assert "DPNOISE_TRACEBACK=1" in run("release", "ok.csv", *X)[2]
    monkeypatch.setenv("DPNOISE_TRACEBACK", "1")
    assert "in _release" in run("release", "ok.csv", *X)[2]


def publish_zeros(_path: Path, request: Request, **_: object) -> Any:
    return publishing.rehearsal(request)


RELEASE_COMMAND = ["release", "ok.csv", "--column", "x", "--output", "out/r.json"]
PROGRAM = """
import os, signal, sys
from dpnoise import cli
from dpnoise.statistics import publishing

def publish(_path, request, **_):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return publishing.rehearsal(request)

publishing.publish = publish
# The parent of the tests may ignore it too.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[2] == "ignored" else signal.SIG_DFL)
before = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
status = cli.main(sys.argv[3:])
assert before == [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
sys.exit(status)
"""


def run_with_signal(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in a separate process that gets a signal instead of drawing noise."""
    command = [sys.executable, "-c", PROGRAM, *arguments, *RELEASE_COMMAND]
    return subprocess.run(command, check=False, capture_output=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_that_ends_the_command_leaves_nothing(name: str, status: int) -> None:
    process = run_with_signal(name, "handled")
    assert list(Path("out").iterdir()) == []
    assert (process.returncode, process.stdout) == (status, b"")
    assert process.stderr == f"dpnoise: ended by {name}\n".encode()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """`nohup` makes its command ignore SIGHUP."""
    process = run_with_signal("SIGHUP", "ignored")
    assert process.returncode == 0, process.stderr
    assert [path.name for path in Path("out").iterdir()] == ["r.json"]


def test_the_command_runs_in_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the main thread may handle signals."""
    monkeypatch.setattr(publishing, "publish", publish_zeros)
    statuses: list[int] = []
    call = threading.Thread(target=lambda: statuses.append(cli.main(RELEASE_COMMAND)))
    call.start()
    call.join()
    assert statuses == [0]


def test_a_closed_output_is_refused_before_noise_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], draws: list[str]
) -> None:
    for closed in (None, io.StringIO()):
        if closed is not None:
            closed.close()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", closed)
            assert cli.main(RELEASE_COMMAND) == 2
        assert "standard output is closed" in capsys.readouterr().err
    assert draws == []


def run_with_output(
    out: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Run a command with a given standard output, and return its status and errors."""
    monkeypatch.setattr(publishing, "publish", publish_zeros)
    with out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        status = cli.main(list(arguments))
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [RELEASE_COMMAND, [*RELEASE_COMMAND, "--json"], ["sample", "laplace"]]
)
def test_a_reader_who_stops_early_causes_no_error_and_no_finding(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    out = os.fdopen(write_end, "w", encoding="utf-8")
    assert run_with_output(out, monkeypatch, capsys, *arguments) == (141, "")
    if arguments[0] == "release":
        assert [path.name for path in Path("out").iterdir()] == ["r.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
@pytest.mark.parametrize("arguments", [RELEASE_COMMAND, [*RELEASE_COMMAND, "--json"]])
def test_a_full_output_is_an_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closed by run_with_output
    status, err = run_with_output(out, monkeypatch, capsys, *arguments)
    assert status == 2
    assert err.count("\n") == 1
    assert "No space left" in err
    assert [path.name for path in Path("out").iterdir()] == ["r.json"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(
    encoding: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(raw, "close", lambda: None, raising=False)
    status, err = run_with_output(
        out, monkeypatch, capsys,
        "release", "ok.csv", "--column", "größe 尺", "--group-by", "city=cork,köln,尺",
    )  # fmt: skip
    assert (status, err) == (0, "")
    printed = raw.getvalue().decode(encoding)
    assert ("±" in printed) == (encoding != "ascii")
    assert ("köln" in printed) == (encoding != "ascii")
    assert ("尺, count" in printed) == (encoding == "utf-8")
    assert out.errors == "strict"


def test_edges_that_are_far_apart_give_no_warning() -> None:
    """Warnings are errors in the tests, and the difference of these edges overflows."""
    for edges in ([-1e308, 1e308], [-np.inf, 0.0, np.inf]):
        released = statistics.histogram([1.0], edges=edges, epsilon=1.0)
        assert len(released.value) == len(edges) - 1


def test_errors_near_certainty_are_finite_or_refused_before_noise(draws: list[str]) -> None:
    """The Laplace distribution has a mass of exp(-h) beyond h scales, here 2^-53."""
    confidence = 1 - 2.0**-53
    mechanism = LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    assert mechanism.error(confidence) == pytest.approx(53 * np.log(2), rel=1e-6)
    for query in (statistics.mean, statistics.sum):
        with pytest.raises(ArgumentError, match="confidence"):
            query([1.0], lower=0, upper=1, epsilon=1.0, confidence=confidence)
        assert draws == []
        released = query([1.0], lower=0, upper=1, epsilon=1.0, confidence=1 - 2.0**-52)
        assert released.error is not None
        assert np.isfinite(released.error)
        draws.clear()


def test_a_signal_that_a_library_makes_another_error_of_still_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DuckDB does this: its error hides the exception of the handler."""

    def raise_signal(*_: object) -> NoReturn:
        with suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        raise RuntimeError

    monkeypatch.setattr("dpnoise.cli.release.parse_request", raise_signal)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert cli.main(["release"]) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "dpnoise: ended by SIGTERM\n"
