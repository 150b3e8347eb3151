"""Every statement of the paper, in our words and in its order, with the pieces that check it.

They are in statements.txt, a line for each: `place; kind number; statement; pieces`, or a minus
and the reason in the place of pieces.

A test fails where a statement has neither a piece nor the reason why there is nothing to check,
where a piece checks none of them, and where docs/paper.md does not show this list.
`tools/read_paper.py` compares it with the paper's own source.
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
    """What the paper says at one place.

    Parameters
    ----------
    place
        Its section, as the map in docs/paper.md has it, or "Abstract".
    kind, number
        One of KINDS, and the paper's number where it has one: "3a" of equation (3a).
    says
        The statement, in our words.
    pieces
        The keys of the pieces that check it.
    unchecked
        Why nothing checks it, where nothing does.
    """

    place: str
    kind: str
    number: str
    says: str
    pieces: tuple[str, ...] = ()
    unchecked: str = ""

    @property
    def name(self) -> str:
        """What people call it: "Theorem 5.1", "(9)", or its kind."""
        if self.kind == "equation":
            return f"({self.number})"
        return f"{self.kind} {self.number}".strip()


def _read(text: str) -> tuple[Statement, ...]:
    """Read the lines of statements.txt."""
    found = []
    for line in text.strip().splitlines():
        place, kind, says, checked = (part.strip() for part in line.split(";"))
        name, _, number = kind.partition(" ")
        if checked.startswith("-"):
            reason = checked[1:].strip(" ,")
            found.append(Statement(place, name, number, says, unchecked=reason))
        else:
            keys = tuple(key.strip() for key in checked.split(","))
            found.append(Statement(place, name, number, says, keys))
    return tuple(found)


STATEMENTS: Final = _read(files("reproduction").joinpath("statements.txt").read_text("utf-8"))


def numbered() -> dict[str, int]:
    """Count the statements of each kind that the paper numbers, those of (3a) and (3b) apart."""
    return dict(Counter(s.kind for s in STATEMENTS if s.kind not in {CLAIM, NUMBER}))


def table() -> str:
    """Return the list as the table of docs/paper.md."""
    lines = ["| place | what | it says | piece |", "|---|---|---|---|"]
    for s in STATEMENTS:
        checked = ", ".join(f"`{key}`" for key in s.pieces) or f"none: {s.unchecked}"
        lines.append(f"| {s.place} | {s.name} | {s.says} | {checked} |")
    return "\n".join(lines)
