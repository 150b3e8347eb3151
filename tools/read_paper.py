"""Compare the list of statements with the paper's own LaTeX: python tools/read_paper.py FILE.tex.

The source of the paper is at arxiv.org/abs/2107.10138; it is not ours to ship. What LaTeX numbers
is counted and held against reproduction/statements.py, and the numbers in its text are listed,
for a person to look them up there.
"""

import re
import sys
from pathlib import Path

from reproduction.statements import numbered

ENVIRONMENTS = {
    "theorem": "theorem",
    "proposition": "proposition",
    "corollary": "corollary",
    "lemma": "lemma",
    "definition": "definition",
    "example": "example",
    "assumption": "assumption",
    "algorithm": "algorithm",
    "figure": "figure",
    "lstlisting": "listing",
}


def equations(text: str) -> int:
    """Count what gets a number: each equation, and each line of an align."""
    single = len(re.findall(r"\\begin\{equation\}", text))
    aligned: list[str] = re.findall(r"\\begin\{align\}(.*?)\\end\{align\}", text, re.DOTALL)
    return single + sum(block.count(r"\\") + 1 for block in aligned)


def counted(text: str) -> dict[str, int]:
    """Count every kind of statement that has a number of its own."""
    text = re.sub(r"(?<!\\)%.*", "", text)
    found = {
        kind: len(re.findall(rf"\\begin\{{{name}\}}", text)) for name, kind in ENVIRONMENTS.items()
    }
    found["equation"] = equations(text)
    found["remark"] = len(re.findall(r"\\textbf\{Remark \d+:", text))
    found["footnote"] = len(re.findall(r"\\footnote\{", text))
    return {kind: count for kind, count in found.items() if count}


def main() -> None:
    """Print what differs, and all numbers of the text."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the command and its file
        sys.exit("Name the file: python tools/read_paper.py secure-random-sampling.tex")
    text = Path(sys.argv[1]).read_text()
    paper, ours = counted(text), numbered()
    for kind in sorted(paper.keys() | ours.keys()):
        print(f"{kind:<12} paper {paper.get(kind, 0):>3}   list {ours.get(kind, 0):>3}")
    numbers = re.findall(r"\\num\{([^}]*)\}|(?<![\w.])(\d[\d.]*\^?\{?[-\w()]*\}?)", text)
    print("Numbers:", *dict.fromkeys(a or b for a, b in numbers))
    if paper != ours:
        sys.exit("They differ: complete reproduction/statements.py.")
    print("Everything that the paper numbers is in the list.")


if __name__ == "__main__":
    main()
