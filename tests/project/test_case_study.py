"""Every command of the case study runs, in order, with the output that the page shows."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import page_blocks
from support.html_reader import Reader

from dpnoise import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the examples, and the files that the page shows in full."""
    new_folder = tmp_path_factory.mktemp("case-study")
    (new_folder / "examples").symlink_to(ROOT / "examples")
    for name, text in page_blocks.files("case-study.md").items():
        (new_folder / name).write_text(text, encoding="utf-8")
    return new_folder


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command: dpnoise in this process, others in a shell."""
    words = shlex.split(line)
    if words[0] == "dpnoise":
        return cli.main(words[1:]), "".join(capsys.readouterr())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PATH": path},
    )
    return process.returncode, process.stdout + process.stderr


def test_every_command_of_the_case_study_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum, which the page uses, is not installed")
    monkeypatch.chdir(folder)
    commands = page_blocks.commands("case-study.md")
    assert len(commands) > 8
    for command in commands:
        status, printed = run(command.line, capsys)
        refused = any(line.startswith("dpnoise: ") for line in command.shown)
        assert status == (2 if refused else 0), printed
        if command.shown:
            assert printed.splitlines() == command.shown, command.line
    assert refused, "the last one"
    page = Reader((folder / "report.html").read_text(encoding="utf-8")).text
    assert page.startswith("Visits to five clinics")
    assert "one person (patient_id)" in page
    assert "Clinic visits" in page, "the ledger"
    assert "P0" not in page, "a patient"


def test_the_first_block_of_the_other_page_makes_the_same_file() -> None:
    first = page_blocks.commands("coming-from.md")[0]
    assert first == (page_blocks.commands("case-study.md")[0].line, [])
