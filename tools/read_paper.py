"""Compare the list of statements with the paper's own LaTeX: python -m tools.read_paper FILE.tex.

The source of the paper is at arxiv.org/abs/2107.10138; we may not distribute it. The program counts
everything that LaTeX numbers, compares the counts with reproduction/statements.py, and lists the
numbers in the text, for a person to check.
"""

import re
import sys
from pathlib import Path

from reproduction.statements import count_numbered

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


def count_equations(text: str) -> int:
    """Count the numbered equations: each equation, and each line of an align."""
    single = len(re.findall(r"\\begin\{equation\}", text))
    aligned: list[str] = re.findall(r"\\begin\{align\}(.*?)\\end\{align\}", text, re.DOTALL)
    return single + sum(block.count(r"\\") + 1 for block in aligned)


def count_statements(text: str) -> dict[str, int]:
    """Count the numbered statements of each kind."""
    text = re.sub(r"(?<!\\)%.*", "", text)
    counts = {
        kind: len(re.findall(rf"\\begin\{{{name}\}}", text)) for name, kind in ENVIRONMENTS.items()
    }
    counts["equation"] = count_equations(text)
    counts["remark"] = len(re.findall(r"\\textbf\{Remark \d+:", text))
    counts["footnote"] = len(re.findall(r"\\footnote\{", text))
    return {kind: count for kind, count in counts.items() if count}


def main() -> None:
    """Print the counts of both sides, and all numbers in the text."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the command and its file
        sys.exit("Name the file: python -m tools.read_paper secure-random-sampling.tex")
    text = Path(sys.argv[1]).read_text()
    paper, ours = count_statements(text), count_numbered()
    for kind in sorted(paper.keys() | ours.keys()):
        print(f"{kind:<12} paper {paper.get(kind, 0):>3}   list {ours.get(kind, 0):>3}")
    numbers = re.findall(r"\\num\{([^}]*)\}|(?<![\w.])(\d[\d.]*\^?\{?[-\w()]*\}?)", text)
    print("Numbers:", *dict.fromkeys(a or b for a, b in numbers))
    if paper != ours:
        sys.exit("They differ: complete reproduction/statements.py.")
    print("Everything that the paper numbers is in the list.")


if __name__ == "__main__":
    main()
