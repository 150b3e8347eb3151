"""The pictures of a report, as inline SVG.

Lengths along the page are in percent and everything else is in pixels, so a picture is as wide as
its page while its text keeps its size. Colours are the style sheet's; each is also said in words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpnoise.core.markup import Markup, tag
from dpnoise.core.safe_text import shortened

_ROW: Final = 52
_LINE: Final = 38  # characters, at least, in the 340 pixels of a phone
_THIN: Final = "2"  # pixels: what happened at all is seen
_WIDEST: Final = 60  # columns
_TALLEST: Final = 90
_MIDDLE: Final = 24 + _TALLEST  # below the label of the upper half
_BAND: Final = 22  # holds the exponents, between the two halves


@dataclass(frozen=True)
class Bar:
    """One bar: what it is, what it says, its length, the style sheet's name for its colour."""

    label: str
    says: str
    length: float
    kind: str
    mark: float | None = None


def bars(title: str, rows: Sequence[Bar], *, full: float | None = None) -> Markup:
    """Draw horizontal bars; `full` is the length that fills the page, by default the longest."""
    lengths = [x for row in rows for x in (row.length, row.mark or 0.0) if math.isfinite(x)]
    most = (max(lengths, default=0.0) if full is None else full) or 1.0
    below = 18 if any(len(row.label) + len(row.says) > _LINE for row in rows) else 0
    tall = _ROW + below
    drawn = [_bar(row, most, tall * i, below) for i, row in enumerate(rows)]
    words = "; ".join(f"{row.label}: {row.says}" for row in rows) + "."
    return picture(title, words, tall * len(rows), *drawn)


def _bar(row: Bar, most: float, top: int, below: int) -> Markup:
    """Draw a bar under its label and what it says, which stands beside the label or below it."""
    label = tag("text", shortened(row.label, _LINE), x="0", y=str(top + 17))
    side = {"x": "0"} if below else {"x": "100%", "text_anchor": "end"}
    says = tag("text", row.says, y=str(top + below + 17), class_="says", **side)
    place = {"x": "0", "y": str(top + below + 25), "height": "14"}
    parts = [label, says, tag("rect", width="100%", class_="track", **place)]
    if row.length > 0:
        widths = (_THIN, percent_of(min(1.0, row.length / most)))
        parts += [tag("rect", width=width, class_=row.kind, **place) for width in widths]
    if row.mark is not None and row.mark <= most:
        x = percent_of(row.mark / most)
        ends = {"y1": str(top + below + 22), "y2": str(top + below + 42)}
        parts.append(tag("line", x1=x, x2=x, class_="mark", **ends))
    return Markup.joined(*parts)


def last_bits(evidence: dict[str, list[int]], value0: str, value1: str) -> Markup:
    """Draw how often the last set bit of a release stands for 2^e, up and down from e."""
    columns = _columns(evidence)
    totals = [sum(column[i] for column in columns) or 1 for i in (1, 2)]
    shares = [(at0 / totals[0], at1 / totals[1]) for _, at0, at1 in columns]
    most = max(max(pair) for pair in shares) or 1.0
    drawn = [
        _column(i, len(columns), up / most, down / most) for i, (up, down) in enumerate(shares)
    ]
    bottom = _MIDDLE + _BAND + _TALLEST
    upper = tag("text", f"At value {shortened(value0, _LINE - 9)}", x="0", y="14")
    lower = tag("text", f"At value {shortened(value1, _LINE - 9)}", x="0", y=str(bottom + 18))
    ticks = [_tick(i, len(columns), exponent) for i, (exponent, _, _) in enumerate(columns)]
    return picture(
        "The last set bit of the releases",
        f"Upward at {value0}: {_most_often(columns, 1)}. Downward at {value1}: "
        f"{_most_often(columns, 2)}.",
        bottom + 24,
        upper,
        *drawn,
        *ticks,
        lower,
    )


def folded(evidence: dict[str, list[int]]) -> bool:
    """Whether the outermost columns of `last_bits` hold more than their own exponent."""
    exponents = [row[0] for row in _seen(evidence)]
    return max(exponents) - min(exponents) >= _WIDEST


def _seen(evidence: dict[str, list[int]]) -> list[tuple[int, int, int]]:
    counted = list(zip(evidence["exponents"], evidence["at0"], evidence["at1"], strict=True))
    return [row for row in counted if row[1] or row[2]] or counted


def _columns(evidence: dict[str, list[int]]) -> list[tuple[int, int, int]]:
    """Return (exponent, at0, at1) without gaps, in the window that holds the most."""
    seen = _seen(evidence)
    exponents = [row[0] for row in seen]
    first, last = min(exponents), max(exponents)
    if folded(evidence):
        inside = {e: sum(a + b for x, a, b in seen if e <= x < e + _WIDEST) for e in exponents}
        first = min(max(inside, key=lambda e: inside[e]), last - _WIDEST + 1)
        last = first + _WIDEST - 1
    rows = dict.fromkeys(range(first, last + 1), (0, 0))
    for exponent, at0, at1 in seen:
        column = min(max(exponent, first), last)
        rows[column] = (rows[column][0] + at0, rows[column][1] + at1)
    return [(exponent, at0, at1) for exponent, (at0, at1) in rows.items()]


def _column(i: int, count: int, up: float, down: float) -> Markup:
    where = {"x": percent_of((i + 0.1) / count), "width": percent_of(0.8 / count)}
    parts = []
    if up:
        tall = max(float(_THIN), _TALLEST * up)
        top = f"{_MIDDLE - tall:.1f}"
        parts.append(tag("rect", y=top, height=f"{tall:.1f}", class_="value0", **where))
    if down:
        tall = max(float(_THIN), _TALLEST * down)
        top = str(_MIDDLE + _BAND)
        parts.append(tag("rect", y=top, height=f"{tall:.1f}", class_="value1", **where))
    return Markup.joined(*parts)


def _tick(i: int, count: int, exponent: int) -> Markup:
    """Write some exponents, as many as a phone has room for, and none that the edge would cut."""
    x = (i + 0.5) / count
    if exponent % (1 + count // 8) or not 0.05 < x < 0.95:  # noqa: PLR2004
        return Markup("")
    y = str(_MIDDLE + 15)
    raised = tag("tspan", str(exponent), class_="raised", dy="-5")
    return tag("text", "2", raised, x=percent_of(x), y=y, class_="tick", text_anchor="middle")


def _most_often(columns: list[tuple[int, int, int]], which: int) -> str:
    return f"most often 2^{max(columns, key=lambda column: column[which])[0]}"


def picture(title: str, words: str, height: int, *drawn: Markup) -> Markup:
    """Return a picture as wide as its page, with a title and words for those who cannot see it."""
    named = (tag("title", title), tag("desc", words))
    return tag("svg", *named, *drawn, role="img", width="100%", height=str(height))


def percent_of(share: float) -> str:
    """Write a share of a picture's width."""
    return f"{100 * share:.2f}%"
