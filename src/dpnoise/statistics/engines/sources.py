"""What DuckDB selects from: a source for each format, with every column declared.

Of CSV and JSON every entry is text, and becomes a number only where one is asked for. Names, paths
and texts that a request or a file brings are quoted by `_quoted` and `_literal`.
"""

import csv
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.errors import ArgumentError
from dpnoise.showing import shortened
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files, listed

# What stands for a missing number in text, besides nothing at all.
_MISSING_WORDS: Final = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL"),
    *("n/a", "null"),
)
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.


@dataclass(frozen=True)
class Source:
    """An open source: its connection, a table to select from, and the names of its columns."""

    connection: Any
    shown: str  # What an error calls it.
    names: list[str] | None  # None if only the rows know.
    table: Callable[[list[str]], str]  # What to select from, if these columns are wanted.
    inside: Callable[[str], str]  # What the table calls a column, as SQL.
    decimal: str = "."

    def numbers(self, wanted: list[str], numeric: list[str]) -> tuple[Any, dict[str, str]]:
        """Return the wanted columns, text as numbers where asked, and where it was none."""
        self._check(wanted)
        table = self.table(wanted)
        chosen = ", ".join(f"{self.inside(name)} AS {_quoted(name)}" for name in wanted)
        raw = self.connection.sql(f"SELECT {chosen or '1 AS nothing'} FROM {table}")
        types = dict(zip(raw.columns, map(str, raw.types), strict=True))
        texts = [name for name in wanted if name in numeric and types[name] == "VARCHAR"]
        if not texts:
            return raw, {}
        wrong = {name: f"wrong:{place}" for place, name in enumerate(texts)}
        parts = [*(_number(name, self.decimal) for name in texts)]
        parts += [_is_wrong(name, wrong[name], self.decimal) for name in texts]
        kept = [_quoted(name) for name in wanted if name not in texts]
        return raw.project(", ".join([*kept, *parts])), wrong

    def _check(self, wanted: list[str]) -> None:
        if self.names is None:
            return
        for name in wanted:
            if name not in self.names:
                there = shortened(", ".join(self.names), _LONGEST_LIST)
                hint = ' Is it separated by ";"? Say delimiter=";".'
                semicolons = len(self.names) == 1 and ";" in self.names[0]
                raise ArgumentError(
                    f"{self.shown} has no column {name!r}. It has: {there}.{hint * semicolons}"
                )
            if self.names.count(name) > 1:
                raise ArgumentError(
                    f"{self.shown} has more than one column {name!r}. Rename all but one."
                )


def _number(name: str, decimal: str) -> str:
    return f"TRY_CAST({_readable(name, decimal)} AS DOUBLE) AS {_quoted(name)}"


def _is_wrong(name: str, wrong: str, decimal: str) -> str:
    """Tell where text is neither a number nor stands for a missing one."""
    words = ", ".join(map(_literal, _MISSING_WORDS))
    text = _quoted(name)
    # An underscore between digits is Python's habit, and DuckDB's; in a file it is a mistake.
    return (
        f"CASE WHEN {text} IS NULL THEN 0 WHEN contains({text}, '_') THEN 1 "
        f"WHEN TRY_CAST({_readable(name, decimal)} AS DOUBLE) IS NOT NULL THEN 0 "
        f"WHEN trim({text}) IN ('', {words}) THEN 0 ELSE 1 END AS {_quoted(wrong)}"
    )


def _readable(name: str, decimal: str) -> str:
    """Return the text of a number with a decimal point; with a decimal comma a point is no sign."""
    text = _quoted(name)
    if decimal == ".":
        return text
    return f"CASE WHEN contains({text}, '.') THEN '.' ELSE replace({text}, ',', '.') END"


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _as_paths(paths: Sequence[str]) -> str:
    """Return paths as a list of SQL, in which no letter makes them a pattern."""
    plain = (re.sub(r"([*?\[])", r"[\1]", path) for path in paths)
    return f"[{', '.join(map(_literal, plain))}]"


def _csv(connection: Any, files: Files, paths: list[str]) -> Source:
    standard = paths == [STANDARD_INPUT]
    lines = (
        [_line_of_standard_input(files)]
        if standard
        else [_first_line(connection, files, path) for path in paths]
    )
    headers = [_header(line, files, path) for line, path in zip(lines, paths, strict=True)]
    for header, path in zip(headers, paths, strict=True):
        if header != headers[0]:
            raise ArgumentError(f"{path} has other columns than {paths[0]}. Read it apart.")
    types = ", ".join(f"c{place}: 'VARCHAR'" for place in range(len(headers[0])))
    read = (
        f"read_csv({_as_paths(['/dev/stdin'] if standard else paths)}, auto_detect=false, "
        f"header={'false' if standard else 'true'}, columns={{{types}}}, strict_mode=true, "
        f"null_padding=false, {_dialect(files)})"
    )
    header = headers[0]
    return Source(
        connection,
        listed(paths),
        header,
        lambda _: read,
        lambda name: f"c{header.index(name)}",
        files.decimal,
    )


def _dialect(files: Files) -> str:
    quote = _literal(files.quote)
    return (
        f"delim={_literal(files.delimiter)}, quote={quote}, escape={quote}, "
        f"encoding={_literal(files.encoding)}"
    )


def _first_line(connection: Any, files: Files, path: str) -> str | None:
    """Return the first line of a file as it is, also of a compressed one."""
    found = connection.sql(
        f"SELECT * FROM read_csv({_as_paths([path])}, auto_detect=false, header=false, "
        "columns={line: 'VARCHAR'}, delim='\x1f', quote='', escape='', strict_mode=false, "
        f"encoding={_literal(files.encoding)}) LIMIT 1"
    ).fetchall()
    return found[0][0] or "" if found else None


def _line_of_standard_input(files: Files) -> str | None:
    """Take the first line, and not a byte more, because DuckDB reads the rest."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    if files.encoding == "utf-16":
        raise ArgumentError("The standard input is read as utf-8 or latin-1. Write it to a file.")
    encoding = "utf-8-sig" if files.encoding == "utf-8" else files.encoding
    return line.decode(encoding, "replace").rstrip("\r\n") if line else None


def _header(line: str | None, files: Files, path: str) -> list[str]:
    """Return the names that the first line of a CSV file holds."""
    if line is None:
        raise ArgumentError(f"{listed([path])} is empty: it has no header.")
    if not line.strip():
        raise ArgumentError(f"{listed([path])} begins with an empty line. Remove it.")
    options: dict[str, Any] = (
        {"quotechar": files.quote} if files.quote else {"quoting": csv.QUOTE_NONE}
    )
    try:
        return next(csv.reader([line], delimiter=files.delimiter, strict=True, **options))
    except csv.Error:
        raise ArgumentError(
            f"The header of {listed([path])} has a name with a line break, a quote that is not "
            "closed, or more than 131,072 characters. Rename that column."
        ) from None


def _json(connection: Any, files: Files, paths: list[str]) -> Source:
    standard = paths == [STANDARD_INPUT]
    places = _as_paths(["/dev/stdin"] if standard else paths)

    def table(wanted: list[str]) -> str:
        types = ", ".join(f"{_literal(name)}: 'VARCHAR'" for name in wanted or ["nothing"])
        return f"read_ndjson({places}, columns={{{types}}}, auto_detect=false)"

    return Source(connection, listed(paths), None, table, _quoted, files.decimal)


def _parquet(connection: Any, files: Files, paths: list[str]) -> Source:
    if STANDARD_INPUT in paths:
        raise ArgumentError("Parquet is not read from the standard input. Give its file.")
    schemas = [_described(connection, f"read_parquet({_as_paths([path])})") for path in paths]
    for schema, path in zip(schemas, paths, strict=True):
        if schema != schemas[0]:
            raise ArgumentError(f"{path} has other columns than {paths[0]}. Read it apart.")
    read = f"read_parquet({_as_paths(paths)})"
    names = [name for name, _ in schemas[0]]
    return Source(connection, listed(paths), names, lambda _: read, _quoted, files.decimal)


def _described(connection: Any, table: str) -> list[tuple[str, str]]:
    return [row[:2] for row in connection.sql(f"DESCRIBE SELECT * FROM {table}").fetchall()]


def _database(kind: str) -> Callable[[Any, Files, list[str]], Source]:
    def opened(connection: Any, files: Files, paths: list[str]) -> Source:
        if len(paths) > 1 or files.table is None:
            raise ArgumentError('Expected one database, and its table: table="people".')
        if kind == "postgres" and re.search(r"://[^/@]*:[^/@]*@|password\s*=", paths[0]):
            raise ArgumentError(
                "Expected an address without a password. Put it in ~/.pgpass or PGPASSWORD."
            )
        connection.execute(f"ATTACH {_literal(paths[0])} AS d (TYPE {kind}, READ_ONLY)")
        schema, _, name = files.table.rpartition(".")
        place = ".".join(["d", *([_quoted(schema)] if schema else []), _quoted(name)])
        names = [column for column, _ in _described(connection, place)]
        return Source(connection, f"Table {files.table}", names, lambda _: place, _quoted)

    return opened


SOURCES: Final[dict[str, Callable[[Any, Files, list[str]], Source]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "sqlite": _database("sqlite"),
    "postgres": _database("postgres"),
}
