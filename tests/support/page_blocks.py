"""Extract the commands and code of a page of the docs, for tests that run them."""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"


class Command(NamedTuple):
    """A command, and the output that the page shows below it."""

    line: str
    shown: list[str]


def commands(page: str) -> list[Command]:
    """Return the commands after `$` in the page, in order."""
    commands_of_page: list[Command] = []
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", _text(page), re.MULTILINE | re.DOTALL)
    for block in (text for language, text in blocks if not language):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands_of_page.append(Command(line[2:], []))
            else:
                commands_of_page[-1].shown.append(line)
    return commands_of_page


def code(page: str) -> dict[str, str]:
    """Return the first Python block under each heading; "" for the part before all headings."""
    parts = re.split(r"^## (.*)$", _text(page), flags=re.MULTILINE)
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    blocks = {
        heading: re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for heading, text in sections.items()
    }
    return {heading: block[1] for heading, block in blocks.items() if block}


def code_with_output(page: str) -> list[tuple[str, str]]:
    """Return the Python blocks of a page that a block of output follows, with this output."""
    return re.findall(
        r"^```python\n(.*?)^```\n\n```output\n(.*?)^```", _text(page), re.MULTILINE | re.DOTALL
    )


def _text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")
