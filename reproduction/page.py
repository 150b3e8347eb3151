"""The page: one HTML file that needs nothing else, on a phone, at night and on paper."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dpnoise.auditing.figures import Bar, bars
from dpnoise.core.markup import Markup, tag
from dpnoise.core.page_layout import HOUSE, document, section, table
from reproduction.piece import DIFFERS, VERDICTS, Cell, Result, Table

_LARGE: Final = 1e6
_SMALL: Final = 1e-3
_TITLE: Final = "Secure Random Sampling in Differential Privacy, reproduced"
_LEAD: Final = (
    "Statements of Holohan and Braghin (2021), in our words, each with what was measured on this "
    "run and a verdict: confirmed, differs, inconclusive, or superseded by later work. The code is "
    "one click away."
)


def page(results: Sequence[Result], about: str) -> str:
    """Return the page of these results; `about` says how, with what and when it was made."""
    return document(
        _TITLE,
        _head(results),
        section("Piece by piece", tag("nav", table(("Piece", "Verdict"), map(_entry, results)))),
        *map(_section, results),
        tag("footer", tag("p", about)),
        styles=(HOUSE, "reproduction"),
    )


def counted(results: Sequence[Result]) -> str:
    """Say how many pieces there are, and of which verdict."""
    found = Counter(result.finding.verdict for result in results)
    plural = {DIFFERS: "differ"} if found[DIFFERS] > 1 else {}
    parts = ", ".join(
        f"{found[verdict]} {plural.get(verdict, verdict)}" for verdict in VERDICTS if found[verdict]
    )
    return f"{len(results)} piece{'s' if len(results) != 1 else ''}: {parts}."


def _head(results: Sequence[Result]) -> Markup:
    """Say first how many pieces came to which verdict."""
    found = Counter(result.finding.verdict for result in results)
    rows = [
        Bar(verdict, f"{found[verdict]} of {len(results)}", found[verdict], _kind(verdict))
        for verdict in VERDICTS
        if found[verdict]
    ]
    return tag(
        "header",
        tag("p", _TITLE, class_="over"),
        tag("h1", counted(results)),
        tag("p", _LEAD, class_="lead"),
        tag("figure", bars("Pieces of each verdict", rows, full=len(results))),
    )


def _kind(verdict: str) -> str:
    """Return the style sheet's name for a verdict."""
    assert verdict in VERDICTS  # noqa: S101 - the style knows no others
    return verdict.replace(" ", "-")


def _verdict(verdict: str) -> Markup:
    return tag("span", verdict, class_=f"verdict {_kind(verdict)}")


def _entry(result: Result) -> tuple[Markup, Markup]:
    link = tag("a", result.piece.title, href=f"#{result.piece.key}")
    return link, _verdict(result.finding.verdict)


def _section(result: Result) -> Markup:
    piece, judgement = result.piece, result.finding
    return section(
        piece.title,
        tag("p", piece.place, class_="place"),
        tag("p", tag("b", "The paper:"), f" {piece.statement}"),
        tag("p", _verdict(judgement.verdict), f" {judgement.why}"),
        Markup(judgement.figure or ""),
        *map(_table, judgement.tables),
        tag("p", f"Measured in {result.seconds:.1f} s.", class_="seconds"),
        *map(_code, piece.code),
        id=piece.key,
    )


def _table(measured: Table) -> Markup:
    rows = [[shown(cell) for cell in row] for row in measured.rows]
    return Markup.joined(tag("h3", measured.title), table(measured.columns, rows))


def shown(cell: Cell) -> str:
    """Show a number with four digits, and an integer with all of them.

    Examples
    --------
    >>> shown(0.123456), shown(1e-9), shown(65536), shown(2.0), shown("p")
    ('0.1235', '1e-09', '65,536', '2', 'p')
    """
    if isinstance(cell, str | bool):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell and not _SMALL <= abs(cell) < _LARGE:
        return f"{cell:.3g}"
    return f"{cell:,.0f}" if abs(cell) >= _LARGE / 100 else f"{cell:.4g}"


def _code(function: Callable[..., Any]) -> Markup:
    """Show a function's source, folded; of a compiled one, what was compiled."""
    plain = inspect.unwrap(getattr(function, "py_func", function))
    name, module = tag("code", plain.__name__), tag("code", plain.__module__)
    source = tag("pre", inspect.getsource(plain))
    return tag("details", tag("summary", name, " in ", module), source)


def summary(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield the results as plain data, without drawings and code."""
    for result in results:
        piece, judgement = result.piece, result.finding
        yield {
            "key": piece.key,
            "title": piece.title,
            "place": piece.place,
            "statement": piece.statement,
            "verdict": judgement.verdict,
            "why": judgement.why,
            "tables": [
                {"title": t.title, "columns": t.columns, "rows": [list(row) for row in t.rows]}
                for t in judgement.tables
            ],
            "seconds": round(result.seconds, 3),
        }
