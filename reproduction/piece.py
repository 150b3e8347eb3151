"""The pieces of the reproduction: statements of the paper, and the checks that measure them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final, TypeVar

from dpnoise.auditing.attacks.base import Progress, no_progress

Cell = str | int | float
T = TypeVar("T")

CONFIRMED: Final = "confirmed"
DIFFERS: Final = "differs"
INCONCLUSIVE: Final = "inconclusive"
SUPERSEDED: Final = "superseded"
NOT_RUN: Final = "not run"
VERDICTS: Final = (CONFIRMED, DIFFERS, INCONCLUSIVE, SUPERSEDED, NOT_RUN)

# A test of a law rejects below this p-value; a piece with k tests errs with at most k times this.
FALSE_ALARM: Final = 1e-6


def floored_percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage, rounded down.

    Examples
    --------
    >>> floored_percent(0.3466), floored_percent(0.97996, 1), floored_percent(0.29)
    ('34%', '97.9%', '29%')
    """
    percentage = Decimal(repr(share)).scaleb(2).quantize(Decimal(1).scaleb(-digits), ROUND_FLOOR)
    return f"{percentage}%"


@dataclass(frozen=True)
class Effort:
    """How much to measure, and the callback for the progress."""

    quick: bool = False
    progress: Progress = no_progress

    def pick(self, full: T, quick: T) -> T:
        """Return the size for a full or for a quick run."""
        return quick if self.quick else full

    def part(self, i: int, count: int) -> "Effort":
        """Return the effort of part i of `count`, which reports its share of the progress."""
        return Effort(self.quick, lambda done: self.progress((i + done) / count))


@dataclass(frozen=True)
class Table:
    """A table of results."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]

    def column(self, name: str) -> list[Any]:
        """Return one column."""
        return [row[self.columns.index(name)] for row in self.rows]


@dataclass(frozen=True)
class Judgement:
    """The verdict on a statement, and the measurements behind it.

    Parameters
    ----------
    verdict
        "confirmed", "differs", "inconclusive", "superseded" by later work, or "not run".
    why
        The rule by which the verdict was reached, with the numbers that decided.
    tables
        The measurements.
    figure
        A drawing, as SVG.
    """

    verdict: str
    why: str
    tables: Sequence[Table] = ()
    figure: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Piece:
    """A statement of the paper, in our words, and its check.

    Parameters
    ----------
    key
        The short name for the command line.
    title, place
        For readers; the place is a section, equation, theorem, remark, figure or listing.
    statement
        The claim of the paper.
    check
        Measures, and returns the judgement.
    code
        The functions that the page shows.
    """

    key: str
    title: str
    place: str
    statement: str
    check: Callable[[Effort], Judgement]
    code: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True)
class Result:
    """A piece with its judgement, and the time that it took."""

    piece: Piece
    finding: Judgement  # A documented name; its type is not a Finding of an audit.
    seconds: float
