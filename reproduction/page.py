"""The page: one HTML file that needs nothing else, on a phone, at night and on paper."""

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dpnoise.auditing.page import Bar, bar_chart
from dpnoise.core import html
from reproduction.piece import DIFFERS, VERDICTS, Cell, Result

_LARGE: Final = 1e6
_SMALL: Final = 1e-3


def page(results: Sequence[Result], about: str) -> str:
    """Return the page of these results; `about` says how, with what and when it was made."""
    found = Counter(result.finding.verdict for result in results)
    rows = [
        Bar(verdict, f"{found[verdict]} of {len(results)}", found[verdict], _kind(verdict))
        for verdict in VERDICTS
        if found[verdict]
    ]
    return html.render(
        "reproduction/page.html",
        title="Secure Random Sampling in Differential Privacy, reproduced",
        counted=counted(results),
        chart=bar_chart("Pieces of each verdict", rows, full=len(results)),
        results=list(map(_view, results)),
        about=about,
    )


def counted(results: Sequence[Result]) -> str:
    """Say how many pieces there are, and of which verdict."""
    found = Counter(result.finding.verdict for result in results)
    plural = {DIFFERS: "differ"} if found[DIFFERS] > 1 else {}
    parts = ", ".join(
        f"{found[verdict]} {plural.get(verdict, verdict)}" for verdict in VERDICTS if found[verdict]
    )
    return f"{len(results)} piece{'s' if len(results) != 1 else ''}: {parts}."


def _kind(verdict: str) -> str:
    """Return the style sheet's name for a verdict."""
    assert verdict in VERDICTS  # noqa: S101 - the style knows no others
    return verdict.replace(" ", "-")


def _view(result: Result) -> dict[str, Any]:
    """Return what the page shows of a piece, the source of its functions too."""
    piece, judgement = result.piece, result.finding
    # Of a compiled function, what was compiled.
    functions = [inspect.unwrap(getattr(code, "py_func", code)) for code in piece.code]
    return {
        **_described(result),
        "kind": _kind(judgement.verdict),
        "figure": judgement.figure,
        "tables": [
            {
                "title": table.title,
                "head": table.columns,
                "rows": [[shown(cell) for cell in row] for row in table.rows],
            }
            for table in judgement.tables
        ],
        "code": [(code.__name__, code.__module__, inspect.getsource(code)) for code in functions],
    }


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


def summary(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield the results as plain data, without drawings and code."""
    for result in results:
        tables = [
            {"title": t.title, "columns": t.columns, "rows": [list(row) for row in t.rows]}
            for t in result.finding.tables
        ]
        yield {**_described(result), "tables": tables, "seconds": round(result.seconds, 3)}


def _described(result: Result) -> dict[str, Any]:
    piece, judgement = result.piece, result.finding
    return {
        "key": piece.key,
        "title": piece.title,
        "place": piece.place,
        "statement": piece.statement,
        "verdict": judgement.verdict,
        "why": judgement.why,
        "seconds": result.seconds,
    }
