"""Every example of the pages is run by a test, or has a reason not to be."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.page_examples import NAMED_FILE

from dpnoise.statistics import load_request

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# Pages whose blocks a separate test runs or compares; the test names the page.
PAGES_OF_OTHER_TESTS = {
    "docs/adding-a-form.md": "tests/kernels/test_added_form.py",
    "docs/case-study.md": "tests/project/test_case_study.py",
    "docs/coming-from.md": "tests/peers/test_coming_from.py",
    "docs/command-line.md": "tools/write_help.py",
    "docs/leakage.md": "tests/auditing/test_leakage.py",
    "docs/performance.md": "tests/project/test_benchmarks.py",
}

# Its Python has separate blocks for its output, which a test compares.
PAGE_WITH_OUTPUT = "docs/harden-diffprivlib.md"

# Blocks that no test runs, by page and first line, and why.
MAKE = "test_project.py compares the targets with those of the Makefile"
INSTALL = "installs packages from a network"
PART = "shows a part of the output above; chance orders its rows"
OF_PYTEST = "tests/integrations/test_pytest_fixture.py runs a suite with this plugin"
NOT_RUN = {
    ("README.md", "git clone https://github.com/dpnoise/dpn"): INSTALL,
    ("README.md", "make demo    # installs into .venv, whic"): MAKE,
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
    (
        "docs/dp-sgd.md",
        "plain Opacus   epsilon 3, delta 1e-05: a",
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
        "python -m reproduction               # e",
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
        or block.page in PAGES_OF_OTHER_TESTS
        or (block.page == PAGE_WITH_OUTPUT and block.language in {"python", "output"})
    )


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


@pytest.mark.parametrize(("page", "test"), PAGES_OF_OTHER_TESTS.items())
def test_the_other_tests_name_their_page(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / test).read_text()
