"""Render the results as one self-contained HTML page, for screens, phones and print."""

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dpnoise.auditing.page import ChartBar, draw_bar_chart
from dpnoise.core import html
from reproduction.piece import DIFFERS, VERDICTS, Cell, Result

_LARGE: Final = 1e6
_SMALL: Final = 1e-3


def page(results: Sequence[Result], about: str) -> str:
    """Return the page of these results; `about` describes the run."""
    counts = Counter(result.finding.verdict for result in results)
    rows = [
        ChartBar(verdict, f"{counts[verdict]} of {len(results)}", counts[verdict], _kind(verdict))
        for verdict in VERDICTS
        if counts[verdict]
    ]
    return html.render_template(
        "reproduction/page.html",
        title="Secure Random Sampling in Differential Privacy, reproduced",
        verdict_counts=verdict_counts(results),
        chart=draw_bar_chart("Pieces of each verdict", rows, full=len(results)),
        results=list(map(_view, results)),
        about=about,
    )


def verdict_counts(results: Sequence[Result]) -> str:
    """Return a sentence with the number of pieces of each verdict."""
    counts = Counter(result.finding.verdict for result in results)
    plural = {DIFFERS: "differ"} if counts[DIFFERS] > 1 else {}
    parts = ", ".join(
        f"{counts[verdict]} {plural.get(verdict, verdict)}"
        for verdict in VERDICTS
        if counts[verdict]
    )
    return f"{len(results)} piece{'s' if len(results) != 1 else ''}: {parts}."


def _kind(verdict: str) -> str:
    """Return the CSS class of a verdict."""
    assert verdict in VERDICTS  # noqa: S101 - the style sheet has no others
    return verdict.replace(" ", "-")


def _view(result: Result) -> dict[str, Any]:
    """Return the template's data for a piece, with the source of its functions."""
    piece, judgement = result.piece, result.finding
    # The Python function behind a compiled one.
    functions = [inspect.unwrap(getattr(code, "py_func", code)) for code in piece.code]
    return {
        **_description(result),
        "kind": _kind(judgement.verdict),
        "figure": judgement.figure,
        "tables": [
            {
                "title": table.title,
                "head": table.columns,
                "rows": [[format_cell(cell) for cell in row] for row in table.rows],
            }
            for table in judgement.tables
        ],
        "code": [(code.__name__, code.__module__, inspect.getsource(code)) for code in functions],
    }


def format_cell(cell: Cell) -> str:
    """Format a number with four digits, and an integer with all of them.

    Examples
    --------
    >>> [format_cell(cell) for cell in (0.123456, 1e-9, 65536, 2.0, "p")]
    ['0.1235', '1e-09', '65,536', '2', 'p']
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
        yield {**_description(result), "tables": tables, "seconds": round(result.seconds, 3)}


def _description(result: Result) -> dict[str, Any]:
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
