"""Write tables into a page, between two marks, and say what they were measured with."""

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dpnoise
from dpnoise.core.machine import describe_machine
from dpnoise.core.parallel import cores


def measured_with(*packages: str) -> str:
    """Return the machine and the versions of Python, dpnoise and these packages, for a table."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    python = f"Python {platform.python_version()}, dpnoise {dpnoise.__version__}"
    machine = f"{describe_machine()}, {cores()} cores, {python}"
    return f"{machine}, {versions}" if versions else machine


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the stored results of the newest version measured, one for each architecture.

    Pages show no figures of earlier versions.
    """
    stored = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    newest = max(map(_version_of, stored), default=())
    return [results for results in stored if _version_of(results) == newest]


def _version_of(results: dict[str, Any]) -> tuple[int, ...]:
    (found,) = re.findall(r"dpnoise (\d+(?:\.\d+)*)", results["machine"])
    return tuple(map(int, found.split(".")))


def write_between_marks(page: Path, mark: str, text: str) -> None:
    """Replace the text between the begin and end marks of a name."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
