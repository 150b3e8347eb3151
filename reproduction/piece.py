"""What a piece of the reproduction is: a statement of the paper, and the check that measures it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final, TypeVar

from dpnoise.auditing.attacks.base import Progress, silent

Cell = str | int | float
T = TypeVar("T")

CONFIRMED: Final = "confirmed"
DIFFERS: Final = "differs"
INCONCLUSIVE: Final = "inconclusive"
SUPERSEDED: Final = "superseded"
NOT_RUN: Final = "not run"
VERDICTS: Final = (CONFIRMED, DIFFERS, INCONCLUSIVE, SUPERSEDED, NOT_RUN)

# A test of a law rejects below this p-value; a piece with k of them errs with k times it at most.
FALSE_ALARM: Final = 1e-6


def floored_percent(share: float, digits: int = 0) -> str:
    """Show a share as a percentage that it reaches: never rounded up, past a limit.

    Examples
    --------
    >>> floored_percent(0.3466), floored_percent(0.97996, 1), floored_percent(0.29)
    ('34%', '97.9%', '29%')
    """
    shown = Decimal(repr(share)).scaleb(2).quantize(Decimal(1).scaleb(-digits), ROUND_FLOOR)
    return f"{shown}%"


@dataclass(frozen=True)
class Effort:
    """How much to measure, and whom to tell how far it has come."""

    quick: bool = False
    progress: Progress = silent

    def pick(self, full: T, quick: T) -> T:
        """Return one of two sizes."""
        return quick if self.quick else full

    def part(self, i: int, count: int) -> "Effort":
        """Return the effort of the i-th of this many parts, which reports as such."""
        return Effort(self.quick, lambda done: self.progress((i + done) / count))


@dataclass(frozen=True)
class Table:
    """Numbers with their names."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]

    def column(self, name: str) -> list[Any]:
        """Return one column."""
        return [row[self.columns.index(name)] for row in self.rows]


@dataclass(frozen=True)
class Judgement:
    """What was measured, and what follows for the statement.

    Parameters
    ----------
    verdict
        "confirmed", "differs", "inconclusive", "superseded" by later work, or "not run".
    why
        The rule by which the verdict was reached, with the numbers that decided.
    tables
        What was measured.
    figure
        A drawing, as SVG.
    """

    verdict: str
    why: str
    tables: Sequence[Table] = ()
    figure: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Piece:
    """A statement of the paper, in our words, and how it is checked.

    Parameters
    ----------
    key
        Its short name, by which it is chosen.
    title, place
        For people; the place is a section, equation, theorem, remark, figure or listing.
    statement
        What the paper says there.
    check
        Measures.
    code
        The functions that hold the statement, for the page to show.
    """

    key: str
    title: str
    place: str
    statement: str
    check: Callable[[Effort], Judgement]
    code: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True)
class Result:
    """A piece with what it found, and how long that took."""

    piece: Piece
    finding: Judgement  # A documented name; its type is no Finding of an audit.
    seconds: float
