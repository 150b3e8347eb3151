"""Every example of the pages is run by a test, or has a reason not to be."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from support.page_blocks import code_with_output
from support.page_examples import NAMED_FILE
from write_help import help_texts

from dpnoise.statistics import load_request

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# Blocks that a separate test runs or compares, by page and first line, and this test.
ADDED_FORM = "tests/kernels/test_added_form.py"
COMING_FROM = "tests/peers/test_coming_from.py"
BENCHMARKS = "tests/project/test_benchmarks.py"
RUN_BY_OTHER_TESTS = {
    ("docs/adding-a-form.md", "# reference.py"): ADDED_FORM,
    ("docs/adding-a-form.md", "# kernels/certified.py"): ADDED_FORM,
    ("docs/coming-from.md", 'clinics = ["ennis", "cork", "tralee", "a'): COMING_FROM,
    ("docs/coming-from.md", "from dpnoise.statistics import Question,"): COMING_FROM,
    ("docs/coming-from.md", "import opendp.prelude as dp"): COMING_FROM,
    ("docs/coming-from.md", "import polars as pl"): COMING_FROM,
    ("docs/leakage.md", "$ dpnoise leakage --plot leakage.png"): "tests/auditing/test_leakage.py",
    ("docs/performance.md", "SELECT count(income), sum(least(greatest"): BENCHMARKS,
    ("docs/performance.md", "WITH top_groups AS ("): BENCHMARKS,
    ("docs/performance.md", "SELECT city, CAST(floor(least(greatest(x"): BENCHMARKS,
}

# Its blocks without a language are what `--help` prints, which test_project.py compares.
PAGE_WITH_HELP = "docs/command-line.md"

# Its Python has separate blocks for its output, which test_diffprivlib.py compares.
PAGE_WITH_OUTPUT = "docs/harden-diffprivlib.md"

# Blocks that no test runs, by page and first line, and why.
MAKE = "test_project.py compares the targets with those of the Makefile"
ELSEWHERE = "make test-coming-from runs it in another environment, which CI does not install"
INSTALL = "installs packages from a network"
PART = "shows a part of the output above; chance orders its rows"
OF_PYTEST = "tests/integrations/test_pytest_fixture.py runs a suite with this plugin"
NOT_RUN = {
    ("README.md", "git clone https://github.com/dpnoise/dpn"): INSTALL,
    ("CONTRIBUTING.md", "make setup      # the .venv with everyth"): MAKE,
    ("docs/audit-tutorial.md", "attack       epsilon >=  seen at       a"): PART,
    ("docs/audit-tutorial.md", "precision as Python: finer_than(releases"): PART,
    ("docs/auditing.md", '- run: pip install "./dpnoise[cli]"    #'): INSTALL,
    ("docs/auditing.md", "import pytest"): OF_PYTEST,
    (
        "docs/contributing.md",
        "Times are of two cores (x86-64 for the t",
    ): "test_project.py compares it with the Makefile",
    (
        "docs/contributing.md",
        "python tools/mutants.py --module statist",
    ): "takes minutes, as `make mutants`",
    ("docs/coming-from.md", "from tmlt.analytics import ("): ELSEWHERE,
    ("docs/coming-from.md", "import csv"): ELSEWHERE,
    (
        "docs/dp-sgd.md",
        "$ python -W ignore examples/dp_sgd.py",
    ): "trains six models; takes most of a minute",
    ("docs/engines.md", "$ spark-submit examples/spark.py hdfs://"): (
        "needs a cluster; tests/cluster runs the file on two workers"
    ),
    ("docs/gpu.md", "import dpnoise, torch"): "needs a GPU; tests/tensors releases on one",
    ("docs/harden-diffprivlib.md", '$ pip install ".[diffprivlib]"'): INSTALL,
    ("docs/harden-diffprivlib.md", "$ dpnoise audit diffprivlib.Laplace --ep"): (
        "takes minutes; the example before it does the same with fewer releases"
    ),
    ("docs/index.md", "make demo    # see it work: publishes, a"): MAKE,
    (
        "docs/paper.md",
        "# Everything, into the folder paper; tak",
    ): "takes minutes; tests/reproduction runs every piece",
    (
        "docs/persons.md",
        "Column 'who' is citext: equal values may",
    ): "tests/cluster/test_postgres.py compares it, with a server",
    (
        "docs/secure-randomness.md",
        "$ python -m benchmarks.noise",
    ): "`make bench` prints it, with the times of its machine",
    ("docs/quickstart.md", "git clone https://github.com/dpnoise/dpn"): INSTALL,
}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def start(self) -> str:
        """The beginning of the first line, by which `NOT_RUN` names a block."""
        return self.text.split("\n", 1)[0][:40].rstrip()


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, without formulas."""
    name = page.relative_to(ROOT).as_posix()
    pattern = r"^```(\w*)[^\n]*\n(.*?)^```$"
    for language, text in re.findall(pattern, page.read_text(), re.MULTILINE | re.DOTALL):
        if language != "math":
            yield Block(name, language, text)


def is_run(block: Block, files: set[str]) -> bool:
    """Return whether a test runs a block: test_project.py does all consoles and prompts."""
    prompts = block.language == "python" and block.text.startswith(">>> ")
    return (
        block.language == "console"
        or prompts
        or block.language == "toml"  # Tested below.
        or block.text in files
        or (block.page, block.start) in RUN_BY_OTHER_TESTS
        or (block.page == PAGE_WITH_HELP and block.text in help_blocks())
        or (block.page == PAGE_WITH_OUTPUT and block.text in blocks_with_output())
    )


@cache
def help_blocks() -> set[str]:
    """Return what `--help` prints of each command."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        return set(re.findall(r"^```\n(.*?)^```$", help_texts(), re.MULTILINE | re.DOTALL))


@cache
def blocks_with_output() -> set[str]:
    """Return the blocks of Python and of output that test_diffprivlib.py compares."""
    return {text for pair in code_with_output(Path(PAGE_WITH_OUTPUT).name) for text in pair}


# What completes a part of a request: each setting of the pages is then one that is understood.
REST_OF_REQUEST = """
[groups]
city = ["dublin", "cork", "limerick", "galway", "waterford"]
[[publish]]
statistics = ["count"]
by = ["city"]
[[publish]]
statistics = ["count"]
[[publish]]
statistics = ["mean"]
column = "cost"
lower = 0
upper = 300
"""


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in blocks_of(page) if block.language == "toml"],
    ids=lambda block: block.page,
)
def test_every_request_of_the_pages_is_understood(block: Block, tmp_path: Path) -> None:
    text = block.text if "epsilon =" in block.text else f"epsilon = 1.0\n{block.text}"
    path = tmp_path / "request.toml"
    path.write_text(text if "[[publish]]" in text else text + REST_OF_REQUEST)
    assert load_request(path).request.epsilon == 1.0


def named_files(page: Path) -> set[str]:
    """Return the files that a page gives to its commands."""
    text = page.read_text()
    found = re.findall(NAMED_FILE, text, re.MULTILINE | re.DOTALL) if "```console" in text else []
    return {source for _, source in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_run_or_has_a_reason(page: Path) -> None:
    files = named_files(page)
    blocks = [block for block in blocks_of(page) if not is_run(block, files)]
    missing = [block.start for block in blocks if (block.page, block.start) not in NOT_RUN]
    assert not missing, "run it in a test, or say in NOT_RUN why not"


def test_every_reason_is_of_a_block_that_no_test_runs() -> None:
    not_run = {
        (block.page, block.start)
        for page in PAGES
        for block in blocks_of(page)
        if not is_run(block, named_files(page))
    }
    assert set(NOT_RUN) <= not_run, set(NOT_RUN) - not_run


@pytest.mark.parametrize(("block", "test"), RUN_BY_OTHER_TESTS.items())
def test_the_other_tests_name_the_page_of_a_block_that_exists(
    block: tuple[str, str], test: str
) -> None:
    page, start = block
    assert Path(page).name in (ROOT / test).read_text()
    assert start in [block.start for block in blocks_of(ROOT / page)]


# The widest lines that a reader types; outputs are as wide as their programs print them.
WIDEST_LINE = {"python": 88, "sh": 80, "console": 80, "": 80}
PAGES_WITH_WIDER_PYTHON = [f"docs/{name}.md" for name in ("gpu", "publishing", "quickstart")]


def typed_lines(block: Block) -> list[str]:
    """Return the lines that a reader types: those after a prompt, or all if there is none."""
    lines = block.text.splitlines()
    if block.language == "python":
        return [line for line in lines if line.startswith((">>> ", "... "))] or lines
    if block.language == "sh":
        return lines
    typed: list[str] = []
    for line in lines:
        if line.startswith("$ ") or (typed and typed[-1].endswith("\\")):
            typed.append(line.removeprefix("$ "))
        else:
            typed.append("")
    return typed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_reader_types_fits_on_a_screen(page: Path) -> None:
    wide = [
        line
        for block in blocks_of(page)
        if block.language in WIDEST_LINE
        if not (block.language == "python" and block.page in PAGES_WITH_WIDER_PYTHON)
        for line in typed_lines(block)
        if len(line) > WIDEST_LINE[block.language]
    ]
    assert not wide


def test_the_continuation_of_a_command_is_typed_and_its_output_is_not() -> None:
    block = Block("page", "", "$ one \\\n    two\nthree\n$ four\nfive\n")
    assert [line for line in typed_lines(block) if line] == ["one \\", "    two", "four"]
