"""Write tables into a page, between two marks, and say what they were measured with."""

import platform
from importlib.metadata import version
from pathlib import Path

import dpnoise
from dpnoise.core.machine import describe_machine
from dpnoise.core.parallel import cores


def measured_with(*packages: str) -> str:
    """Return the machine and the versions of Python, dpnoise and these packages, for a table."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    python = f"Python {platform.python_version()}, dpnoise {dpnoise.__version__}"
    machine = f"{describe_machine()}, {cores()} cores, {python}"
    return f"{machine}, {versions}" if versions else machine


def write_between_marks(page: Path, mark: str, text: str) -> None:
    """Replace the text between the begin and end marks of a name."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
