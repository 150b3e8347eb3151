"""Show in the site the files of the repository that its pages link to, and formulas as MathML.

In a checkout a page links to `../src/dpnoise/release/exact.py`. The site has no such file, so
each one that a page links to becomes a page of its own, and the link leads there. Formulas are
written in LaTeX; browsers show MathML by themselves, without a script.
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
BEFORE = re.compile(r"(?<=/mi>|/mn>|sub>|qrt>)(?=<mi>(?:log|cos|sin|tan)</mi>)")
AFTER = re.compile(r"(<mi>(?:log|cos|sin|tan)</mi>)(?!<mo)")
# Search finds the pages, not the code that they link to.
PAGE = """---
search: {{exclude: true}}
---
# {path}

~~~~~~{{.{language} linenums="1"}}
{text}
~~~~~~
"""


def outside(link: str, page: str) -> str | None:
    """Return the path from the repository's root if the link of a page leads out of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file outside docs/ that some page links to."""
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    linked = {outside(link, page) for page, text in pages for link in LINK.findall(text)}
    for path in sorted(linked - {None}, key=str):
        file = ROOT / str(path)
        language = file.suffix[1:] or "text"
        text = PAGE.format(path=path, language=language, text=file.read_text())
        files.append(File.generated(config, f"source/{path}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Turn the links that lead out of docs/ towards those pages."""

    def turned(link: re.Match[str]) -> str:
        path = outside(link[1], page.file.src_uri)
        up = "../" * page.file.src_uri.count("/")
        return link[0] if path is None else f"]({up}source/{path}.md"

    return LINK.sub(turned, markdown)


def on_page_content(content: str, **_: object) -> str:
    """Turn the formulas of a page into MathML."""
    return FORMULA.sub(mathml, content)


def mathml(formula: re.Match[str]) -> str:
    """Return a formula as MathML; a wide one is moved to the side in a box of its own."""
    kind, text = formula.groups()
    drawn = convert(html.unescape(text).strip(), display="inline" if kind == "span" else "block")
    spaced = AFTER.sub(rf"\1{SPACE}", BEFORE.sub(SPACE, drawn))
    return spaced if kind == "span" else f'<div class="formula">{spaced}</div>'
