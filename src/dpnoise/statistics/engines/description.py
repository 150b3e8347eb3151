"""Descriptions of files and of database tables. Nothing about them is guessed.

Names come from the header, types from the request or the schema of the file, the dialect from the
description. So the meaning of a file does not depend on its rows.
"""

import glob
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dpnoise.core.errors import ArgumentError, check_choice, reject, short_repr
from dpnoise.core.safe_text import escape_text

DATABASES: Final = ("sqlite", "duckdb", "postgres")
FORMATS: Final = ("csv", "parquet", "json", *DATABASES)
ENCODINGS: Final = ("utf-8", "latin-1", "windows-1252", "utf-16")
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
    ".duckdb": "duckdb",
}
_COMPRESSED: Final = {".gz", ".zst"}
_SPREADSHEETS: Final = {".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers"}
# CSV files and frames with this column are samples of invented people, which every output says.
INVENTED: Final = "invented_person"
_MOST_NAMED: Final = 10  # A record names at most this many files.


@dataclass(frozen=True)
class Files:
    """The files or the database table that hold the rows, and their format.

    Parameters
    ----------
    paths
        A file, a pattern such as ``"2024-*.csv"``, several of them, or ``"-"`` for the standard
        input (CSV or JSON lines, not compressed). For ``"postgres"`` the address of a database,
        without a password: PostgreSQL reads that from ``~/.pgpass`` or ``PGPASSWORD``.
    format
        One of ``"csv"``, ``"parquet"``, ``"json"`` (one object a line), ``"sqlite"``,
        ``"duckdb"`` and ``"postgres"``; by default the one of the file's suffix, or CSV. CSV and
        JSON may be compressed (``.gz``, ``.zst``).
    table
        The table of a database: ``"table"`` or ``"schema.table"``.
    delimiter, quote, encoding, decimal
        The dialect of a CSV file. With an empty quote, quotes are ordinary characters.
    hive
        The partition columns to read from the names of folders, such as ``year=2024``, with their
        types: ``{"year": "integer"}``, or ``"text"`` or ``"date"``. By default no column is read
        from folders.

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
            character = getattr(self, name)
            is_allowed = (
                len(character) == 1 and character.isascii() and character not in "\r\n\0\x1f"
            )
            if not is_allowed and not (name == "quote" and not character):
                reject(name, character, "be one ASCII character other than a newline")
        if self.delimiter == self.decimal:
            advice = "if the file has commas for both, write it again with semicolons"
            reject("delimiter", self.delimiter, f"differ from the decimal character: {advice}")
        if self.delimiter == self.quote:
            reject("delimiter", self.delimiter, "differ from the quote")
        _check_hive(self.hive)

    @property
    def path_texts(self) -> list[str]:
        """The paths, as text."""
        if isinstance(self.paths, str | os.PathLike):
            return [os.fspath(self.paths)]
        return [os.fspath(path) for path in self.paths]

    @property
    def source_name(self) -> str:
        """The names of the files without their folders, or the table, for records and pages."""
        names = [
            "standard input" if path == STANDARD_INPUT else escape_text(Path(path).name)
            for path in self.path_texts
            if self.format_of(path) != "postgres"  # Its address may have a user and a host.
        ]
        if len(names) > _MOST_NAMED:
            names[_MOST_NAMED:] = [f"and {len(names) - _MOST_NAMED:,} more"]
        table = [] if self.table is None else [f"table {escape_text(self.table)}"]
        return ", ".join([*names, *table])

    @property
    def is_standard_input(self) -> bool:
        """Whether the rows come from the standard input, which can be read only once."""
        return STANDARD_INPUT in self.path_texts

    def format_of(self, path: str) -> str:
        """Return the format of a file, or "postgres" for the address of a database."""
        if self.format is not None:
            return self.format
        if path.startswith(("postgres://", "postgresql://")):
            return "postgres"
        suffix = Path(path).suffix.lower()
        if suffix in _COMPRESSED:
            suffix = Path(Path(path).stem).suffix.lower()
        if suffix in _SPREADSHEETS:
            raise ArgumentError(
                f"{path} is a spreadsheet, which may hold several sheets and formulas. Save the "
                "sheet as CSV in UTF-8 and publish that file. Or read it in Python with "
                "pandas.read_excel, and give the frame to publish."
            )
        return _SUFFIXES.get(suffix, "csv")


def _check_hive(hive: object) -> None:
    """Raise unless every partition column has a name and a type."""
    if not isinstance(hive, Mapping) or not all(isinstance(name, str) and name for name in hive):
        raise ArgumentError(
            'hive must map column names to types, such as {"year": "integer"}, got '
            f"{short_repr(hive)}."
        )
    for name, kind in hive.items():
        check_choice(f"hive[{name!r}]", kind, PARTITION_TYPES)
    if len({name.casefold() for name in hive}) < len(hive):
        raise ArgumentError("hive must not have columns that differ by capitals only.")


def parse_source(setting: object, folder: Path) -> Files | Path | None:
    """Return the data source of a TOML request: a path in `folder`, or `Files` for a table.

    The caller has checked the names in the table.
    """
    if setting is None:
        return None
    if isinstance(setting, str):
        return folder / setting
    if not isinstance(setting, dict):
        raise ArgumentError(f"source must be the name of a file, got {short_repr(setting)}.")
    path_or_paths = setting.get("paths", setting.get("path"))
    if path_or_paths is None or {"path", "paths"} <= setting.keys():
        raise ArgumentError('source must have path = "people.csv" or paths = ["a.csv", "b.csv"].')
    options = {name: setting[name] for name in setting if name not in {"path", "paths"}}
    paths = [path_or_paths] if isinstance(path_or_paths, str) else path_or_paths
    if not isinstance(paths, list) or not all(
        isinstance(text, str)
        for text in [*paths, *(value for name, value in options.items() if name != "hive")]
    ):
        raise ArgumentError("Every setting of source must be text, and paths a list of text.")
    files = Files(paths, **options)
    # Only the paths of files are relative to the folder.
    not_files = {path for path in paths if files.format_of(path) == "postgres"} | {STANDARD_INPUT}
    resolved = (path if path in not_files else str(folder / path) for path in paths)
    return replace(files, paths=tuple(resolved))


def expand_path(name: str) -> list[str]:
    """Return the files that a path or pattern stands for."""
    if name == STANDARD_INPUT:
        # A redirected file can be opened again; a pipe is read only once.
        return ["/dev/stdin"] if stat.S_ISREG(_state_of_standard_input().st_mode) else [name]
    try:
        paths = [name] if Path(name).stat() else []
    except FileNotFoundError:
        # Without `recursive`, ** would match one folder, and files in deeper ones would be missed.
        paths = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - a pattern may be absolute
    if not paths:
        raise ArgumentError(f"There is no file {name}.")
    for path in map(Path, paths):
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder. Give its files, as in '{path / '*.csv'}'.")
        if not path.is_file():
            raise ArgumentError(
                f"{path} is not a regular file. Write its content to one first, or give it to the "
                "standard input, which is called -."
            )
    return paths


def _state_of_standard_input() -> os.stat_result:
    try:
        return os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        raise ArgumentError("The standard input is closed. Give a file.") from None


def is_input_redirected() -> bool:
    """Return whether the standard input is a pipe or a file, and not a terminal."""
    with suppress(ArgumentError):
        mode = _state_of_standard_input().st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
    return False


def file_state(path: str) -> tuple[int, ...] | None:
    """Return values that change when a file is replaced or written; None for a pipe."""
    if path == STANDARD_INPUT:
        return None
    state = Path(path).stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def describe_paths(paths: Sequence[str]) -> str:
    """Return the name of some files for an error."""
    others = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return ("The standard input" if paths[0] == STANDARD_INPUT else paths[0]) + others
