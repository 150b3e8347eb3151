"""Files of the command line: where they are, their mode, and which are never replaced."""

import ast
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alarms import LONG
from support.choices import sample_cases
from support.package_source import nodes_by_module

import dpnoise
from dpnoise import cli
from dpnoise.auditing import additive_noise
from dpnoise.auditing.leakage import summary
from dpnoise.auditing.report import Report, read_list
from dpnoise.auditing.targets import adapters
from dpnoise.core import strict_json
from dpnoise.core.entropy import EntropySource
from dpnoise.statistics import publishing

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, a new one with a few rows."""
    (tmp_path / "t.csv").write_text("x,city\n1,cork\n2,dublin\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def release(*arguments: object) -> int:
    return run("release", "t.csv", "--column", "x", *arguments)


def leakage(*arguments: object) -> int:
    return run("leakage", *arguments)


def sample(*arguments: object) -> int:
    return run("sample", "laplace", *arguments)


def audit(*arguments: object) -> int:
    quick = ("--epsilon", "1", "--budget", "1000", "--attack", "bits")
    return min(run("audit", "quick", *quick, *arguments), 1)


def write_instead_of_drawing(_: object, target: Path | BytesIO, __: str = "") -> None:
    if isinstance(target, Path):
        target.write_bytes(b"drawn")


@pytest.fixture(autouse=True)
def _small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make audits, enumerations and drawings small."""
    quick = adapters.Adapter(lambda _: (1.0, lambda value, n: np.full(n, value)), "laplace", None)
    monkeypatch.setitem(adapters.ADAPTERS, "quick", quick)
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])
    if not LONG:
        monkeypatch.setattr("dpnoise.cli.release.draw_bars", write_instead_of_drawing)
    monkeypatch.setattr(summary, "leakage_table", lambda *_: [])
    monkeypatch.setattr(summary, "release_table", lambda *_: [])
    monkeypatch.setattr(summary, "plot_leakage", lambda *parts: parts[-1].write_bytes(b"drawn"))


# A command with an option that writes a file, and the ending of the file's name.
WRITERS: list[tuple[Callable[..., int], str, str]] = [
    (release, "--output", ".json"),
    (release, "--plot", ".png"),
    (release, "--plot", ".svg"),
    (release, "--html", ".html"),
    (sample, "--output", ".npy"),
    (sample, "--output", ".csv"),
    (sample, "--output", ".parquet"),
    (audit, "--html", ".html"),
    (audit, "--json", ".json"),
    (leakage, "--plot", ".png"),
]
IRREPLACEABLE = [writer for writer in WRITERS if writer[0] in {release, sample}]
REPLACEABLE = [writer for writer in WRITERS if writer[0] in {audit, leakage}]
for_each_writer = pytest.mark.parametrize(("command", "option", "ending"), WRITERS)
Command = Callable[..., int]


def folder_has_only(*names: str) -> bool:
    return {path.name for path in Path().iterdir()} == {"t.csv", *names}


# Regular files -----------------------------------------------------------------------------------


@pytest.mark.sample(4)
@for_each_writer
def test_a_new_file_has_the_mode_that_the_umask_gives(
    command: Command, option: str, ending: str
) -> None:
    target = Path(f"new{ending}")
    before = os.umask(0o027)
    try:
        assert command(option, target) in {0, 1}
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.stat().st_size
    assert folder_has_only(target.name)


@pytest.mark.sample(4)
@for_each_writer
def test_a_file_that_is_replaced_hands_on_its_mode(
    command: Command, option: str, ending: str
) -> None:
    for mode in sample_cases((0o600, 0o666), 1):
        target = Path(f"old{ending}")
        target.write_bytes(b"")
        target.chmod(mode)
        assert command(option, target) in {0, 1}
        assert stat.S_IMODE(target.stat().st_mode) == mode
        assert target.stat().st_size
        assert folder_has_only(target.name)


@ROOT_ONLY
def test_a_file_that_is_replaced_hands_on_its_owner() -> None:
    target = Path("old.json")
    target.touch(mode=0o640)
    os.chown(target, 12345, 54321)
    assert release("--output", target) == 0
    assert (target.stat().st_uid, target.stat().st_gid) == (12345, 54321)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_nobody_else_may_read_a_private_file_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("old.json").touch(mode=0o600)
    modes: list[int] = []

    def record_modes(*_: object, **__: object) -> None:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in Path().glob(".dpnoise*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(publishing, "publish", record_modes)
    assert release("--output", "old.json") == 130
    assert modes == [0o600]
    assert folder_has_only("old.json")


@pytest.mark.sample(3)
@pytest.mark.parametrize(("command", "option", "ending"), IRREPLACEABLE)
def test_files_that_cannot_be_made_again_are_replaced_only_by_force(
    command: Command,
    option: str,
    ending: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Path(f"old{ending}")
    target.write_text("an earlier release")
    with monkeypatch.context() as patch:
        for hook in ("key", "random_bytes"):
            patch.setattr(EntropySource, hook, lambda *_: pytest.fail("noise was drawn"))
        assert command(option, target) == 2
    assert capsys.readouterr().err == (
        f"dpnoise: {target} exists. Name another file, or replace it by --force.\n"
    )
    assert target.read_text() == "an earlier release"
    assert folder_has_only(target.name)
    assert command(option, target, "--force") == 0
    assert target.read_bytes() != b"an earlier release"


@pytest.mark.parametrize(("command", "option", "ending"), REPLACEABLE)
def test_files_that_can_be_made_again_are_replaced(
    command: Command, option: str, ending: str
) -> None:
    target = Path(f"old{ending}")
    target.write_text("an earlier report")
    assert command(option, target) in {0, 1}
    assert target.read_bytes() != b"an earlier report"


def test_a_release_that_another_wrote_in_the_meantime_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers are shown, because their budget is spent."""
    real = publishing.publish

    def publish(*arguments: Any, **options: Any) -> Any:
        Path("r.json").write_text("another release")
        return real(*arguments, **options)

    monkeypatch.setattr(publishing, "publish", publish)
    assert release("--output", "r.json") == 2
    assert Path("r.json").read_text() == "another release"
    printed = capsys.readouterr()
    assert "epsilon 1 in all: count 1." in printed.out
    assert "Written" not in printed.out
    assert "exists" in printed.err
    assert folder_has_only("r.json")


def test_a_plot_that_fails_after_all_costs_neither_the_report_nor_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []

    def draw(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("dpnoise.cli.release.draw_bars", draw)
    assert release("--output", "r.json", "--plot", "r.png") == 130
    assert json.loads(Path("r.json").read_text())["format"] == 4
    assert "epsilon 1 in all" in capsys.readouterr().out
    assert folder_has_only("r.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_stays_as_it_is() -> None:
    Path("r.json").touch(mode=0o400)
    assert release("--output", "r.json", "--force") == 2
    assert Path("r.json").stat().st_size == 0


# Links -------------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@for_each_writer
def test_a_link_stays_a_link_and_its_target_is_written(
    command: Command, option: str, ending: str
) -> None:
    Path("far").mkdir()
    Path("far/real").touch(mode=0o600)
    Path(f"second{ending}").symlink_to("far/real")
    Path(f"first{ending}").symlink_to(f"second{ending}")
    assert command(option, f"first{ending}") in {0, 1}
    assert Path(f"first{ending}").is_symlink()
    assert Path(f"second{ending}").is_symlink()
    assert not Path("far/real").is_symlink()
    assert Path("far/real").stat().st_size
    assert stat.S_IMODE(Path("far/real").stat().st_mode) == 0o600
    assert [path.name for path in Path("far").iterdir()] == ["real"]


def test_links_follow_the_rules_of_their_targets(capsys: pytest.CaptureFixture[str]) -> None:
    Path("earlier.json").write_text("an earlier release")
    for name, leads_to, words in [
        ("to-release", "earlier.json", "exists. Name another file"),
        ("to-data", "t.csv", "is the data"),
        ("to-folder", ".", "is a folder"),
        ("to-nowhere", "nowhere/r.json", "nowhere to write to-nowhere to."),
        ("to-itself", "to-itself", "leads to itself"),
    ]:
        Path(name).symlink_to(leads_to)
        assert release("--output", name) == 2
        assert words in capsys.readouterr().err
        assert Path(name).is_symlink()
    Path("to-new").symlink_to("new.json")
    assert release("--output", "to-new") == 0
    assert json.loads(Path("new.json").read_text())["format"] == 4


def test_two_names_of_one_file_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.svg").symlink_to("a.json")
    assert release("--output", "a.json", "--plot", "b.svg") == 2
    assert "the same file" in capsys.readouterr().err


# Devices, pipes and descriptors ------------------------------------------------------------------


def read_from_pipe(path: Path, write: Callable[[], int]) -> tuple[int, bytes]:
    """Run a command while a thread reads from a named pipe; return status and content."""
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    status = write()
    reader.join(60)
    return status, received[0]


@pytest.mark.sample(4)
@for_each_writer
def test_a_named_pipe_is_written_to(command: Command, option: str, ending: str) -> None:
    pipe = Path(f"pipe{ending}")
    os.mkfifo(pipe, mode=0o600)
    status, content = read_from_pipe(pipe, lambda: command(option, pipe))
    assert status in {0, 1}
    assert content
    assert content != bytes(len(content))
    assert pipe.is_fifo()
    assert folder_has_only(pipe.name)
    if (command, option) == (release, "--output"):
        assert json.loads(content)["format"] == 4


@pytest.mark.sample(4)
@ROOT_ONLY
@for_each_writer
def test_a_device_stays_a_device(command: Command, option: str, ending: str) -> None:
    """The device is one like /dev/null."""
    device = Path(f"null{ending}")
    try:
        os.mknod(device, 0o620 | stat.S_IFCHR, os.makedev(1, 3))
        device.open("wb").close()
    except PermissionError:
        pytest.skip("devices are not allowed here")
    before = device.stat()
    Path(f"link{ending}").symlink_to(device)
    for name in sample_cases((device, Path(f"link{ending}")), 1):
        assert command(option, name) in {0, 1}
        assert device.is_char_device()
        assert (device.stat().st_ino, device.stat().st_mode) == (before.st_ino, before.st_mode)
    assert folder_has_only(device.name, f"link{ending}")


def test_a_socket_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
        assert release("--output", "s") == 2
    assert "a disk or a socket" in capsys.readouterr().err
    assert Path("s").is_socket()


@ROOT_ONLY
def test_a_disk_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No driver has this number, so nothing can be written to it."""
    try:
        os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(240, 0))
    except PermissionError:
        pytest.skip("devices are not allowed here")
    assert release("--output", "disk", "--force") == 2
    assert "a disk or a socket" in capsys.readouterr().err
    assert Path("disk").is_block_device()


def test_a_pipe_whose_reader_has_gone_is_an_error_and_the_numbers_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        assert release("--output", f"/dev/fd/{write_end}") == 2
    finally:
        os.close(write_end)
    printed = capsys.readouterr()
    assert "cannot be written: Broken pipe" in printed.err
    assert "epsilon 1 in all" in printed.out


def test_a_descriptor_that_takes_nothing_is_refused_before_noise_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publishing, "publish", lambda *_, **__: pytest.fail("noise was drawn"))
    with Path("t.csv").open("rb") as read_only, Path("other").open("wb"):
        Path("empty").touch()
        with Path("empty").open("rb") as empty:
            assert release("--output", f"/dev/fd/{read_only.fileno()}") == 2
            assert release("--output", f"/dev/fd/{empty.fileno()}") == 2
    assert release("--output", "/dev/fd/987") == 2
    lines = capsys.readouterr().err.splitlines()
    assert "is the data" in lines[0]
    assert "cannot be written: Bad file descriptor" in lines[1]
    assert "cannot be written" in lines[2]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["/dev/fd/1", "link"])
def test_the_standard_output_is_written_to_from_where_it_is(name: str) -> None:
    """The file is open in the shell and has a line already; the output is appended."""
    Path("link").symlink_to("/dev/stdout")
    arguments = ["release", "t.csv", "--column", "x", "--output", name]
    code = f"""
import sys
from dpnoise import cli
from dpnoise.statistics import publishing
publishing.publish = lambda _, request, **__: publishing.rehearsal(request)
print("first")
sys.exit(cli.main({arguments!r}))
"""
    with Path("out.txt").open("wb") as out:
        inode = os.fstat(out.fileno()).st_ino
        out.write(b"before\n")
        out.flush()
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert Path("out.txt").stat().st_ino == inode
    text = Path("out.txt").read_text()
    assert text.startswith('before\nfirst\n{\n  "format": 4')
    assert text.index("\n}\n") < text.index("epsilon 1 in all") < text.index(f"Written to {name}.")


# JSON --------------------------------------------------------------------------------------------


def parse_strictly(text: str) -> Any:
    """Return parsed JSON, without Python's extensions."""

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_infinite_edges_are_published_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    edges = ["--query", "histogram", "--edges=-inf,0,inf"]
    assert release(*edges, "--json", "--output", "r.json") == 0
    for text in (capsys.readouterr().out, Path("r.json").read_text()):
        assert parse_strictly(text)["request"]["publish"][0]["edges"] == ["-inf", 0, "inf"]


def test_an_infinite_epsilon_is_written_as_json_and_read_back(folder: Path) -> None:
    assert audit("--json", "a.json") in {0, 1}
    data = parse_strictly(Path("a.json").read_text())
    data["findings"][0]["epsilon_lower"] = "inf"
    report = Report.from_dict(data)
    assert report.epsilon_lower == float("inf")
    report.to_json("b.json")
    assert parse_strictly(Path("b.json").read_text())["epsilon_lower"] == "inf"
    assert Report.from_json("b.json") == report
    dpnoise.auditing.report.write_list([report], folder / "list.json")
    parse_strictly(Path("list.json").read_text())
    assert read_list("list.json") == [report]


def test_strict_json_has_no_word_that_json_has_not() -> None:
    data = {"a": [float("inf"), (-np.float64("inf"),)], "b": {"c": float("nan")}}
    assert parse_strictly(strict_json.dumps(data)) == {"a": ["inf", ["-inf"]], "b": {"c": "nan"}}


@pytest.mark.long
def test_every_json_writer_refuses_invalid_json() -> None:
    calls = []
    for path, nodes in nodes_by_module().items():
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"json.dumps", "json.dump"}:
                options = {option.arg: ast.unparse(option.value) for option in node.keywords}
                assert options.get("allow_nan") == "False", f"{path}:{node.lineno}"
                calls.append(path.name)
        assert "from json import" not in path.read_text(), path
    assert "strict_json.py" in calls
