"""The parts that every page is laid out with: the document, sections, tables, definitions."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

from dpnoise.core.markup import Markup, tag

HOUSE: Final = "dpnoise.core"  # The package with the style that pages share.
# The browser is told to load and run nothing, should an escape ever be forgotten.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def document(title: str, *parts: Markup, styles: Sequence[str] = (HOUSE,)) -> str:
    """Return a whole page, with the styles of these packages, each its page.css, inside."""
    sheets = [files(package).joinpath("page.css") for package in styles]
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", *(Markup(part + "\n") for part in parts)))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def section(title: str, *parts: str, **attributes: str) -> Markup:
    """Make a section with its heading."""
    return tag("section", tag("h2", title), *parts, **attributes)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Make a table that a phone shows as cards; the roles keep it a table for screen readers."""
    titles = [tag("th", title, scope="col", role="columnheader") for title in head]
    body = [
        tag(
            "tr",
            *(
                tag("td", tag("span", cell), role="cell", data_label=title)
                for title, cell in zip(head, row, strict=True)
            ),
            role="row",
        )
        for row in rows
    ]
    return tag(
        "table",
        tag("thead", tag("tr", *titles, role="row"), role="rowgroup"),
        tag("tbody", *body, role="rowgroup"),
        role="table",
    )


def definitions(rows: Iterable[tuple[str, str]]) -> Markup:
    """Make a list of terms and what they are."""
    entries = [tag("div", tag("dt", term), tag("dd", text)) for term, text in rows]
    return tag("dl", *entries, class_="facts")


def badge(text: str, kind: str = "") -> Markup:
    """Put a few words into a small frame."""
    return tag("span", text, class_=f"badge {kind}".strip())
