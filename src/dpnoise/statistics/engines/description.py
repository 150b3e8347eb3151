"""Files and tables of databases, as a request describes them: nothing about them is guessed.

Names come from the header, types from the request or the file's own schema, the dialect from the
description: a file means the same whatever its rows hold.
"""

import glob
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpnoise.errors import ArgumentError, check_choice, reject

FORMATS: Final = ("csv", "parquet", "json", "sqlite", "postgres")
ENCODINGS: Final = ("utf-8", "latin-1", "utf-16")
STANDARD_INPUT: Final = "-"
_SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".db": "sqlite",
}
_COMPRESSED: Final = {".gz", ".zst"}
_PARQUET: Final = {".parquet", ".pq"}


@dataclass(frozen=True)
class Files:
    """Where rows are, and how they are written down.

    Parameters
    ----------
    paths
        A file, a pattern such as ``"2024-*.csv"``, several of them, or ``"-"`` for the standard
        input (CSV or JSON lines, not compressed). For ``"postgres"`` the address of a database,
        without a password: PostgreSQL finds it in ``~/.pgpass`` or ``PGPASSWORD``.
    format
        One of ``"csv"``, ``"parquet"``, ``"json"`` (one object a line), ``"sqlite"`` and
        ``"postgres"``; by default what the name ends in says, or CSV. CSV and JSON may be
        compressed (``.gz``, ``.zst``).
    table
        The table of a database, as ``"table"`` or ``"schema.table"``.
    delimiter, quote, encoding, decimal
        How a CSV file is written. An empty quote means that quotes are letters like any other.

    Examples
    --------
    >>> Files("people.csv", delimiter=";", decimal=",").format_of("people.csv")
    'csv'
    """

    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    format: str | None = None
    table: str | None = None
    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.format is not None:
            check_choice("format", self.format, FORMATS)
        check_choice("encoding", self.encoding, ENCODINGS)
        check_choice("decimal", self.decimal, (".", ","))
        for name in ("delimiter", "quote"):
            given = getattr(self, name)
            one = len(given) == 1 and given.isascii() and given not in "\r\n\0\x1f"
            if not one and not (name == "quote" and not given):
                reject(name, given, "to be one ASCII character, no newline")
        if self.delimiter in {self.quote, self.decimal} and self.delimiter != ",":
            reject("delimiter", self.delimiter, "to be neither the quote nor the decimal sign")
        if self.delimiter == self.decimal == ",":
            reject("delimiter", ",", "to be another sign than the decimal comma, as ';'")

    @property
    def names(self) -> list[str]:
        """The paths, as text."""
        if isinstance(self.paths, str | os.PathLike):
            return [os.fspath(self.paths)]
        return [os.fspath(path) for path in self.paths]

    def format_of(self, name: str) -> str:
        """Return the format of a file."""
        if self.format is not None:
            return self.format
        if name.startswith(("postgres://", "postgresql://")):
            return "postgres"
        path = Path(name)
        suffix = path.suffix.lower()
        if suffix in _COMPRESSED:
            suffix = Path(path.stem).suffix.lower()
        return _SUFFIXES.get(suffix, "csv")


def is_plain(path: Path) -> bool:
    """Tell whether a name is that of a CSV or Parquet file, and not of a compressed one."""
    suffix = path.suffix.lower()
    return suffix in _PARQUET or suffix not in {*_SUFFIXES, *_COMPRESSED}


def expanded(name: str) -> list[str]:
    """Return the files that a name stands for: itself, or those that a pattern matches."""
    if name == STANDARD_INPUT:
        if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
            return ["/dev/stdin"]  # A file, which can be opened anew.
        return [name]
    path = Path(name)
    if path.is_dir():
        raise ArgumentError(f"{name} is a folder. Give its files, as in {path / '*.csv'}.")
    if path.exists():
        return [name]
    found = sorted(glob.glob(name))  # noqa: PTH207 - a pattern may be absolute
    if not found:
        raise ArgumentError(f"There is no file {name}.")
    return found


def state_of(path: str) -> tuple[int, ...] | None:
    """Return what changes with a file."""
    if path == STANDARD_INPUT:
        return None
    state = Path(path).stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def listed(paths: Sequence[str]) -> str:
    """Return what an error calls some files."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return ("The standard input" if paths[0] == STANDARD_INPUT else paths[0]) + more
