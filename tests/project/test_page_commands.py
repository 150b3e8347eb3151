"""Every program of ours that a page or the Makefile names starts, as it is typed in the root."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpnoise

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("benchmarks", "reproduction", "tools")  # Other tests run the examples.
OUR_MODULES = {path.stem for name in FOLDERS for path in (ROOT / name).iterdir()} | set(FOLDERS)
# PYTHONPATH if the command sets it, and the module or the file.
COMMAND = (
    r"(?:PYTHONPATH=(\S+) )?(?:\$\(BIN\)/)?python "
    rf"(?:-m ((?:{'|'.join(FOLDERS)})\b[.\w]*)|((?:{'|'.join(FOLDERS)})/\w+\.py))"
)

# Imports each program as Python would start it, without running it, and prints what is missing.
START = """
import importlib.util, json, os, runpy, sys
import dpnoise.auditing, dpnoise.statistics  # Once, for all programs.
for path, module, file in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    sys.path[1:1] = path.split(os.pathsep) if path else []
    try:
        if file:
            sys.path[0] = os.path.dirname(file)
            runpy.run_path(file, run_name="imported")
        else:
            is_package = importlib.util.find_spec(module).submodule_search_locations
            runpy.run_module(module + ".__main__" * bool(is_package), run_name="imported")
    except ModuleNotFoundError as error:
        print(module or file, error.name, flush=True)
    os._exit(0)
"""


def python_commands(text: str) -> set[tuple[str, str, str]]:
    """Return the PYTHONPATH, the module or the file of every command that starts one of ours."""
    return set(re.findall(COMMAND, text))


def missing_modules(commands: set[tuple[str, str, str]]) -> list[list[str]]:
    """Return each program that lacks one of our modules, with this module."""
    process = subprocess.run(
        [sys.executable, "-c", START, json.dumps(sorted(commands))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(dpnoise.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not process.stderr
    missing = [line.split() for line in process.stdout.splitlines()]
    return [[program, name] for program, name in missing if name.split(".")[0] in OUR_MODULES]


@pytest.mark.long  # Imports some thirty programs, with what they measure.
def test_every_program_of_the_pages_starts_in_the_root() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert "PYTHONPATH=" not in text
    commands = python_commands(text + (ROOT / "Makefile").read_text())
    programs = {module or file for _, module, file in commands}
    assert programs > {"benchmarks", "tools.proof", "reproduction", "tools/mutants.py"}
    assert not missing_modules(commands)


def test_a_module_that_is_not_found_is_seen() -> None:
    file = "tools/write_paper.py"
    assert missing_modules({("", "", file)}) == [[file, "reproduction"]]
    assert not missing_modules({(".", "", file)})
