"""The commands, the files and the code that a page of the docs shows, for tests that run them."""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"


class Command(NamedTuple):
    """A command, and the lines that the page shows under it."""

    line: str
    shown: list[str]


def commands(page: str) -> list[Command]:
    """Return what stands behind `$` in the page, in order."""
    found: list[Command] = []
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", _text(page), re.MULTILINE | re.DOTALL)
    for block in (text for language, text in blocks if not language):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            else:
                found[-1].shown.append(line)
    return found


def files(page: str) -> dict[str, str]:
    """Return the files that the page shows in full, each after its name in a line of its own."""
    shown = re.findall(r"`([\w.]+)`:\n\n```toml\n(.*?)^```", _text(page), re.MULTILINE | re.DOTALL)
    return dict(shown)


def code(page: str) -> dict[str, str]:
    """Return the first block of Python under each heading; what stands before all, under none."""
    parts = re.split(r"^## (.*)$", _text(page), flags=re.MULTILINE)
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    blocks = {
        heading: re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for heading, text in sections.items()
    }
    return {heading: block[1] for heading, block in blocks.items() if block}


def _text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")
