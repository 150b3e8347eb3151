"""What the pictures of a report show, as shares of their width and height.

The templates draw them. Colours are the style sheet's; each is also said in words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpnoise.auditing.wording import at_least
from dpnoise.core.safe_text import shortened

Drawing = dict[str, object]

_LINE: Final = 38  # Characters, at least, in the 340 pixels of a phone.
_WIDEST: Final = 60  # Columns.


@dataclass(frozen=True)
class Bar:
    """One bar: what it is, what it says, its length, the style sheet's name for its colour."""

    label: str
    says: str
    length: float
    kind: str
    mark: float | None = None


def bar_chart(title: str, rows: Sequence[Bar], *, full: float | None = None) -> Drawing:
    """Return horizontal bars; `full` is the length that fills the page, by default the longest."""
    lengths = [x for row in rows for x in (row.length, row.mark or 0.0) if math.isfinite(x)]
    most = (max(lengths, default=0.0) if full is None else full) or 1.0
    drawn = [
        {
            "label": shortened(row.label, _LINE),
            "says": row.says,
            "kind": row.kind,
            "width": min(1.0, row.length / most) if row.length > 0 else None,
            "mark": row.mark / most if row.mark is not None and row.mark <= most else None,
        }
        for row in rows
    ]
    return {
        "title": title,
        "words": "; ".join(f"{row.label}: {row.says}" for row in rows) + ".",
        "bars": drawn,
        "two_lines": any(len(row.label) + len(row.says) > _LINE for row in rows),
    }


def certified_curve(points: Sequence[Sequence[float]]) -> Drawing | None:
    """Return the least delta at each epsilon, if some events certify a curve."""
    seen = [(epsilon, delta) for epsilon, delta in points if delta > 0]
    if len(seen) < 2:  # noqa: PLR2004 - a curve
        return None
    most, last = seen[0][1], seen[-1][0]
    return {
        "delta": at_least(most),
        "epsilon": at_least(last),
        "columns": [delta / most for _, delta in seen],
    }


def last_bits(evidence: dict[str, list[int]], value0: str, value1: str) -> Drawing:
    """Return how often the last set bit of a release stands for 2^e, at either value."""
    columns, folded = _columns(evidence)
    totals = [sum(column[i] for column in columns) or 1 for i in (1, 2)]
    shares = [(at0 / totals[0], at1 / totals[1]) for _, at0, at1 in columns]
    most = max(max(pair) for pair in shares) or 1.0
    often0, often1 = (max(columns, key=lambda column: column[i])[0] for i in (1, 2))
    return {
        "words": f"Upward at {value0}: most often 2^{often0}. Downward at {value1}: most often "
        f"2^{often1}.",
        "labels": [shortened(value, _LINE - len("At value ")) for value in (value0, value1)],
        "exponents": [column[0] for column in columns],
        "shares": [(up / most, down / most) for up, down in shares],
        "folded": folded,
    }


def _columns(evidence: dict[str, list[int]]) -> tuple[list[tuple[int, int, int]], bool]:
    """Return each exponent with its two counts, without gaps, in the window that holds the most.

    The outermost columns hold what lies beyond the window; whether something does comes second.
    """
    counted = list(zip(evidence["exponents"], evidence["at0"], evidence["at1"], strict=True))
    seen = [row for row in counted if row[1] or row[2]] or counted
    exponents = [row[0] for row in seen]
    first, last = min(exponents), max(exponents)
    folded = last - first >= _WIDEST
    if folded:
        inside = {e: sum(a + b for x, a, b in seen if e <= x < e + _WIDEST) for e in exponents}
        first = min(max(inside, key=lambda e: inside[e]), last - _WIDEST + 1)
        last = first + _WIDEST - 1
    rows = dict.fromkeys(range(first, last + 1), (0, 0))
    for exponent, at0, at1 in seen:
        column = min(max(exponent, first), last)
        rows[column] = (rows[column][0] + at0, rows[column][1] + at1)
    return [(exponent, at0, at1) for exponent, (at0, at1) in rows.items()], folded
