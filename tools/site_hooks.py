"""Add linked files of the repository to the site, rank pages, and convert formulas to MathML.

In a checkout a page links to `../src/dpnoise/release/exact.py`. The site has no such file, so
each linked file becomes a page, and the link leads there. Formulas are written in LaTeX; browsers
show MathML without a script.
"""

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# The converter leaves no space around the names of functions.
SPACE = '<mspace width="0.17em"/>'
BEFORE_FUNCTION = re.compile(r"(?<=/mi>|/mn>|sub>|qrt>)(?=<mi>(?:log|cos|sin|tan)</mi>)")
AFTER_FUNCTION = re.compile(r"(<mi>(?:log|cos|sin|tan)</mi>)(?!<mo)")
INLINE_CODE = re.compile(r"(?<=<code>)[^<\n]+(?=</code>)")
# A browser would break words like `--budget` behind a hyphen. Longer ones would not fit on a phone.
BREAKABLE = re.compile(r"[^\s-]*-\S*")
LONGEST_UNBROKEN = 30
# By default 1. A reader who searches for a term wants its definition, then what it is for.
SEARCH_BOOSTS = {"glossary.md": 5.0, "limitations.md": 3.0}
# The search covers the pages, not the code that they link to.
PAGE = """---
search: {{exclude: true}}
---
# {path}

~~~~~~{{.{language} linenums="1"}}
{text}
~~~~~~
"""


def path_outside_docs(link: str, page: str) -> str | None:
    """Return the path from the repository's root, or None if a link stays within docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file outside docs/ that a page links to."""
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    linked = {path_outside_docs(link, page) for page, text in pages for link in LINK.findall(text)}
    for path in sorted(linked - {None}, key=str):
        file = ROOT / str(path)
        language = file.suffix[1:] or "text"
        text = PAGE.format(path=path, language=language, text=file.read_text())
        files.append(File.generated(config, f"source/{path}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Redirect links that leave docs/ to those pages, and rank the page for the search."""
    path = page.file.src_uri
    boost = 0.0002 if path.startswith("api/") else SEARCH_BOOSTS.get(path, 1.0)
    page.meta.setdefault("search", {"boost": boost})

    def redirect(link: re.Match[str]) -> str:
        target = path_outside_docs(link[1], path)
        up = "../" * path.count("/")
        return link[0] if target is None else f"]({up}source/{target}.md"

    return LINK.sub(redirect, markdown)


def on_page_content(content: str, **_: object) -> str:
    """Convert the formulas of a page to MathML, and keep options in inline code on one line."""
    return INLINE_CODE.sub(keep_words_whole, FORMULA.sub(to_mathml, content))


def keep_words_whole(code: re.Match[str]) -> str:
    """Return inline code whose short words with hyphens are not broken."""

    def keep(word: re.Match[str]) -> str:
        fits = len(html.unescape(word[0])) <= LONGEST_UNBROKEN
        return f'<span class="unbroken">{word[0]}</span>' if fits else word[0]

    return BREAKABLE.sub(keep, code[0])


def to_mathml(formula: re.Match[str]) -> str:
    """Return a formula as MathML; displayed formulas get a box that scrolls sideways."""
    kind, text = formula.groups()
    formula_xml = convert(
        html.unescape(text).strip(), display="inline" if kind == "span" else "block"
    )
    spaced = AFTER_FUNCTION.sub(rf"\1{SPACE}", BEFORE_FUNCTION.sub(SPACE, formula_xml))
    return spaced if kind == "span" else f'<div class="formula">{spaced}</div>'
