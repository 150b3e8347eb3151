"""Files and tables of databases, as a request describes them: nothing about them is guessed.

Names come from the header, types from the request or the file's own schema, the dialect from the
description: a file means the same whatever its rows hold.
"""

import glob
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from dpnoise.core.errors import ArgumentError, check_choice, reject, shown, unknown

FORMATS: Final = ("csv", "parquet", "json", "sqlite", "postgres")
ENCODINGS: Final = ("utf-8", "latin-1", "utf-16")
PARTITION_TYPES: Final = ("text", "integer", "date")
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
    hive
        The partition columns to read from the names of folders, such as ``year=2024``, with their
        types: ``{"year": "integer"}``, or ``"text"`` or ``"date"``. By default a file has the
        columns that are in it, wherever it is.

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
    hive: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format is not None:
            check_choice("format", self.format, FORMATS)
        check_choice("encoding", self.encoding, ENCODINGS)
        check_choice("decimal", self.decimal, (".", ","))
        for name in ("delimiter", "quote"):
            given = getattr(self, name)
            one = len(given) == 1 and given.isascii() and given not in "\r\n\0\x1f"
            if not one and not (name == "quote" and not given):
                reject(name, given, "be one ASCII character, no newline")
        if self.delimiter == self.decimal:
            reject("delimiter", self.delimiter, "be another sign than that of decimals, as ';'")
        if self.delimiter == self.quote:
            reject("delimiter", self.delimiter, "be another sign than the quote")
        _check_hive(self.hive)

    @property
    def names(self) -> list[str]:
        """The paths, as text."""
        if isinstance(self.paths, str | os.PathLike):
            return [os.fspath(self.paths)]
        return [os.fspath(path) for path in self.paths]

    @property
    def is_standard_input(self) -> bool:
        """Whether the rows come from the standard input, which is read once."""
        return STANDARD_INPUT in self.names

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


def _check_hive(hive: object) -> None:
    """Raise unless every partition column has a name and a type."""
    if not isinstance(hive, Mapping) or not all(isinstance(name, str) and name for name in hive):
        raise ArgumentError(
            'hive must be a table of columns and their types: {"year": "integer"}, got '
            f"{shown(hive)}."
        )
    for name, kind in hive.items():
        check_choice(f"hive[{name!r}]", kind, PARTITION_TYPES)
    if len({name.casefold() for name in hive}) < len(hive):
        raise ArgumentError("hive must not have columns that differ by capitals only.")


def source_of(told: object, folder: Path) -> Files | Path | None:
    """Return what a request in TOML is about: a file beside it, or a table `[source]`."""
    if told is None:
        return None
    if isinstance(told, str):
        return folder / told
    if not isinstance(told, dict):
        raise ArgumentError(f"source must be the name of a file, got {shown(told)}.")
    known = ["path", *(one.name for one in fields(Files))]
    for name in told:
        if name not in known:
            raise unknown("setting", name, known)
    given = told.get("paths", told.get("path"))
    if given is None or {"path", "paths"} <= told.keys():
        raise ArgumentError('source must have path = "people.csv" or paths = ["a.csv", "b.csv"].')
    settings = {name: told[name] for name in told if name not in {"path", "paths"}}
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, list) or not all(
        isinstance(one, str)
        for one in [*paths, *(value for name, value in settings.items() if name != "hive")]
    ):
        raise ArgumentError("Every setting of source must be text, and paths a list of text.")
    files = Files(paths, **settings)
    # What is no file has no folder.
    elsewhere = {name for name in paths if files.format_of(name) == "postgres"} | {STANDARD_INPUT}
    beside = (name if name in elsewhere else str(folder / name) for name in paths)
    return replace(files, paths=tuple(beside))


def expanded(name: str) -> list[str]:
    """Return the files that a name stands for: itself, or those that a pattern matches."""
    if name == STANDARD_INPUT:
        # A file can be opened anew; what is no file is read once.
        return ["/dev/stdin"] if stat.S_ISREG(_state_of_standard_input().st_mode) else [name]
    try:
        found = [name] if Path(name).stat() else []
    except FileNotFoundError:
        # Without `recursive`, ** would be one folder, and files in others would be left out.
        found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - a pattern may be absolute
    if not found:
        raise ArgumentError(f"There is no file {name}.")
    for path in map(Path, found):
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder. Give its files, as in '{path / '*.csv'}'.")
        if not path.is_file():
            raise ArgumentError(
                f"{path} is no regular file. Write its content to one first, or give it to the "
                "standard input, which is called -."
            )
    return found


def _state_of_standard_input() -> os.stat_result:
    try:
        return os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        raise ArgumentError("The standard input is closed. Give a file.") from None


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
