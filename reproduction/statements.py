"""List every statement of the paper, in our words and in its order, with the pieces that check it.

statements.txt has a line for each: `place; kind number; statement; pieces`. Instead of pieces there
may be a minus and the reason why nothing checks the statement.

Tests fail if a statement has neither a piece nor a reason, if a piece checks no statement, and if
docs/paper.md does not show this list. `tools/read_paper.py` compares it with the paper's source.
"""

from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

CLAIM: Final = "claim"
NUMBER: Final = "number"
KINDS: Final = (
    "theorem",
    "proposition",
    "corollary",
    "definition",
    "example",
    "remark",
    "assumption",
    "algorithm",
    "equation",
    "figure",
    "listing",
    "footnote",
    CLAIM,
    NUMBER,
)


@dataclass(frozen=True)
class Statement:
    """A statement of the paper.

    Parameters
    ----------
    place
        Its section, as in the map of docs/paper.md, or "Abstract".
    kind, number
        One of KINDS, and the paper's number if it has one: "3a" for equation (3a).
    text
        The statement, in our words.
    pieces
        The keys of the pieces that check it.
    unchecked
        The reason why nothing checks it, if so.
    """

    place: str
    kind: str
    number: str
    text: str
    pieces: tuple[str, ...] = ()
    unchecked: str = ""

    @property
    def name(self) -> str:
        """The usual name: "theorem 5.1", "(9)", or the kind."""
        if self.kind == "equation":
            return f"({self.number})"
        return f"{self.kind} {self.number}".strip()


def _parse(lines: str) -> tuple[Statement, ...]:
    """Return the statements of statements.txt."""
    statements = []
    for line in lines.strip().splitlines():
        place, kind, text, checked = (part.strip() for part in line.split(";"))
        name, _, number = kind.partition(" ")
        if checked.startswith("-"):
            reason = checked[1:].strip(" ,")
            statements.append(Statement(place, name, number, text, unchecked=reason))
        else:
            keys = tuple(key.strip() for key in checked.split(","))
            statements.append(Statement(place, name, number, text, keys))
    return tuple(statements)


STATEMENTS: Final = _parse(files("reproduction").joinpath("statements.txt").read_text("utf-8"))


def count_numbered() -> dict[str, int]:
    """Count the numbered statements of each kind; (3a) and (3b) count as two."""
    return dict(Counter(s.kind for s in STATEMENTS if s.kind not in {CLAIM, NUMBER}))


def table() -> str:
    """Return the list as the table of docs/paper.md."""
    lines = ["| place | kind | statement | piece |", "|---|---|---|---|"]
    for s in STATEMENTS:
        checked = ", ".join(f"`{key}`" for key in s.pieces) or f"none: {s.unchecked}"
        lines.append(f"| {s.place} | {s.name} | {s.text} | {checked} |")
    return "\n".join(lines)
