"""The page: one HTML file that needs nothing else, on a phone, at night and on paper."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from html import escape
from string import Template
from typing import Any, Final

from dpnoise.paper.piece import VERDICTS, Cell, Result, Table

_LARGE: Final = 1e6
_SMALL: Final = 1e-3

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 0 0 .2rem; }
section { border-top: 1px solid var(--line); padding: 1.2rem 0; }
.place, footer, caption, .seconds { color: GrayText; font-size: .85rem; }
.verdict { font-weight: 600; white-space: nowrap; border-left: .5rem solid; padding-left: .4rem; }
.confirmed { border-color: #009e73; } .differs { border-color: #e69f00; }
.superseded { border-color: #cc79a7; } .not-run { border-color: #888; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-top: .6rem; }
svg.figure { width: 100%; max-width: 40rem; height: auto; }
pre { overflow-x: auto; background: var(--soft); padding: .6rem; font-size: .8rem; }
summary { cursor: pointer; }
@media print { details, nav { display: none; } section { break-inside: avoid; } }
"""

_PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>Secure Random Sampling in Differential Privacy, reproduced</title>
<style>$style</style>
</head>
<body>
<h1>Secure Random Sampling in Differential Privacy, reproduced</h1>
<p>Statements of Holohan and Braghin (2021), in our words, each with what was measured on this run
and a verdict: confirmed, differs, or superseded by later work. The code is one click away.</p>
<nav><div class="wide"><table>$contents</table></div></nav>
$sections
<footer><p>$about</p></footer>
</body>
</html>
""")


def page(results: Sequence[Result], about: str) -> str:
    """Return the page of these results; `about` says how, with what and when it was made."""
    return _PAGE.substitute(
        style=_STYLE,
        contents="\n".join(_entry(result) for result in results),
        sections="\n".join(_section(result) for result in results),
        about=escape(about),
    )


def _verdict(verdict: str) -> str:
    assert verdict in VERDICTS  # noqa: S101 - the style knows no others
    return f'<span class="verdict {verdict.replace(" ", "-")}">{verdict}</span>'


def _entry(result: Result) -> str:
    piece = result.piece
    link = f'<a href="#{escape(piece.key)}">{escape(piece.title)}</a>'
    return f"<tr><td>{link}</td><td>{_verdict(result.finding.verdict)}</td></tr>"


def _section(result: Result) -> str:
    piece, finding = result.piece, result.finding
    return "\n".join(
        [
            f'<section id="{escape(piece.key)}">',
            f"<h2>{escape(piece.title)}</h2>",
            f'<p class="place">{escape(piece.place)}</p>',
            f"<p><b>The paper:</b> {escape(piece.statement)}</p>",
            f"<p>{_verdict(finding.verdict)} {escape(finding.why)}</p>",
            finding.figure or "",
            *(_table(table) for table in finding.tables),
            f'<p class="seconds">Measured in {result.seconds:.1f} s.</p>',
            *(_code(function) for function in piece.code),
            "</section>",
        ]
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="wide"><table>{caption}<tr>{head}</tr>\n{rows}</table></div>'


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


def _code(function: Callable[..., Any]) -> str:
    """Show a function's source, folded; of a compiled one, what was compiled."""
    plain = inspect.unwrap(getattr(function, "py_func", function))
    summary = f"<code>{escape(plain.__name__)}</code> in <code>{escape(plain.__module__)}</code>"
    source = escape(inspect.getsource(plain))
    return f"<details><summary>{summary}</summary><pre>{source}</pre></details>"


def summary(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield the results as plain data, without drawings and code."""
    for result in results:
        piece, finding = result.piece, result.finding
        yield {
            "key": piece.key,
            "title": piece.title,
            "place": piece.place,
            "statement": piece.statement,
            "verdict": finding.verdict,
            "why": finding.why,
            "tables": [
                {"title": t.title, "columns": t.columns, "rows": [list(row) for row in t.rows]}
                for t in finding.tables
            ],
            "seconds": round(result.seconds, 3),
        }
