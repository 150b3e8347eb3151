"""A figure that is in several places is the same in all."""

import re
from pathlib import Path

import pytest
from write_comparison import COMMON

from reproduction.errata import ERRATA

ROOT = Path(__file__).parents[2]
FILES_FOR_USERS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "Makefile",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.py")),
]

# The figures and their places; each pattern extracts the figure from its page.
FIGURES = {
    "checks for one preimage, median": {
        "docs/attacks.md": r"checks, median .*\n.*\n\| 53 \| [\d,]+ \| [\d,]+ \| (\d+) \|",
        "docs/beyond-the-paper.md": r"a median of (\d+) checks",
        "docs/choosing-n.md": r"searched\), the median is (\d+)",
    },
    "what snapping gives multiples of": {
        "docs/exact-release.md": r"ε = 2⁻⁵ gives \[multiples of (\d+)\]",
        "docs/paper.md": r"At epsilon = 2\^-5 the outputs are multiples of (\d+)",
        "tests/peers/test_snapping.py": r"minus_5_gives_multiples_of_(\d+)",
    },
    "delta of the inverse CDF in float16": {
        "docs/beyond-the-paper.md": r"between 0 and 1 down from (0\.\d+)",
        "docs/leakage.md": r"n = 1  inverse .* p = 11  (0\.\d+)",
    },
    "delta of Theorem 5.1 in float16": {
        "docs/beyond-the-paper.md": r"inverse CDF, to (0\.\d+)",
        "docs/leakage.md": r"n = 4  theorem .* p = 11  (0\.\d+)",
    },
    "delta of perfect noise in float16": {
        "docs/beyond-the-paper.md": r"added there, has (0\.\d+)",
        "docs/leakage.md": r"not even a perfect one: that leaks (0\.\d+)",
    },
    "minutes of make test": {
        "README.md": r"make test` .*about (\d+) minutes",
        "CONTRIBUTING.md": r"make test .*about (\d+) minutes",
        "Makefile": r"make test .*about (\d+) minutes",
        "docs/index.md": r"make test .*about (\d+) minutes",
        "docs/contributing.md": r"make test .*about (\d+) minutes",
    },
    "the finest grid, in scales": {
        "docs/exact-release.md": r"down to 2⁻(\S+) scales",
        "docs/limitations.md": r"anything between 2⁻(\S+) and",
    },
    "preimages of a double": {
        "docs/attacks.md": r"double of the noise has about 2(\S+) preimages",
        "docs/beyond-the-paper.md": r"double of the noise has about 2(\S+) preimages",
    },
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_in_every_place(name: str) -> None:
    figures = {}
    for page, pattern in FIGURES[name].items():
        hits = set(re.findall(pattern, (ROOT / page).read_text()))
        assert len(hits) == 1, (page, hits)
        figures[page] = hits.pop()
    assert len(set(figures.values())) == 1, figures


def test_the_errata_are_as_many_as_the_page_says() -> None:
    page = (ROOT / "docs/errata.md").read_text()
    rows = re.findall(r"^\| (?!place|-)", page, re.MULTILINE)
    words = {9: "nine", 10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen"}
    assert len(rows) == len(ERRATA)
    assert f"None of the {words[len(ERRATA)]} changes the law of a sampler" in page


def test_the_picture_of_audits_shows_the_table() -> None:
    picture = (ROOT / "docs/pictures/certified.svg").read_text()
    from_picture = re.findall(r">([\d.]+, (?:not )?broken)<", picture)
    page = (ROOT / "docs/scoreboard.md").read_text()
    head, _, *lines = page.split("<!-- audits: begin -->")[1].strip().splitlines()
    titles, *rows = [[cell.strip() for cell in line.split("|")] for line in (head, *lines)]
    certified, verdict = titles.index("certified at least"), titles.index("verdict")
    from_table = {
        row[1]: f"{row[certified]}, {'' if '**' in row[verdict] else 'not '}broken"
        for row in rows
        if len(row) == len(titles)
    }
    assert from_picture == [from_table[name] for name in COMMON if name in from_table]
    assert len(from_picture) >= 8


@pytest.mark.parametrize(
    "path", FILES_FOR_USERS, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_no_page_says_to_install_from_an_index(path: Path) -> None:
    assert not re.search(r'pip install "?dpnoise', path.read_text())
