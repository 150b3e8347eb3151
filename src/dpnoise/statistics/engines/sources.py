"""What DuckDB selects from: a source for each format, with every column declared.

Of CSV and JSON every entry is text, and becomes a number only where one is asked for. What is read
depends on the text alone: DuckDB's cast rounds to the nearest float, and what it takes for a number
but people do not is a mistake. Names, paths and texts that a request or a file brings are quoted by
`literal` and `quoted`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from dpnoise.core.errors import ArgumentError, import_extra, is_real
from dpnoise.core.safe_text import shortened, shown
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.frames import FileColumns
from dpnoise.statistics.engines.runners import ArrowObject
from dpnoise.statistics.plan import Key

if TYPE_CHECKING:
    import duckdb

_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.
# Files have the columns that are in them, whatever their folders are called.
AS_THEY_ARE: Final = "hive_partitioning=false"
# Errors that DuckDB raises about JSON: a column that hive declares too, and an id.
IN_ROWS: Final = "declared by hive and in a row:"
INEXACT_NUMBER: Final = "an id or a group that is not exact"
# What stands for a missing number in text, besides nothing at all and NaN.
_MISSING_WORDS: Final = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL"),
    *("n/a", "null"),
)
_NULL_FOLDER: Final = b"__HIVE_DEFAULT_PARTITION__"
_SQL_TYPES: Final = {"text": "VARCHAR", "integer": "BIGINT", "date": "DATE"}
_DESCRIBED_TYPES: Final = {
    "text": "text",
    "integer": "an integer of 64 bits",
    "date": "a date such as 2024-02-29",
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LARGEST: Final = 2**63  # Integers have 64 bits.


class UnreadableError(ArgumentError):
    """DuckDB cannot read a file as it tried to."""


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def as_paths(paths: Sequence[str]) -> str:
    """Return paths as a list of SQL, in which no letter makes them a pattern."""
    plain = (re.sub(r"([*?\[])", r"[\1]", path) for path in paths)
    return f"[{', '.join(map(literal, plain))}]"


def _number(text: str, decimal: str) -> str:
    """Return the number that a text, an expression of SQL, reads as, if it is not wrong."""
    if decimal == ",":  # A point is then not a sign of numbers.
        text = f"CASE WHEN contains({text}, '.') THEN '.' ELSE replace({text}, ',', '.') END"
    return f"TRY_CAST({text} AS DOUBLE)"


def _is_wrong(text: str, decimal: str) -> str:
    """Tell, by 0 or 1, where text is neither a number nor stands for a missing one."""
    words = ", ".join(map(literal, _MISSING_WORDS))
    return (
        f"CASE WHEN {text} IS NULL THEN 0 WHEN {_is_odd(text)} THEN 1 "
        f"WHEN {_number(text, decimal)} IS NOT NULL THEN 0 "
        # Of few rows: an IN would be a join of all.
        f"WHEN list_contains(['', {words}], trim({text})) THEN 0 ELSE 1 END"
    )


def _is_odd(text: str) -> str:
    """Tell where DuckDB reads a number that people would not: 1_000 and +-5."""
    return f"(contains({text}, '_') OR contains({text}, '+-'))"


def _is_parsed(kind: str, keys: Sequence[Key]) -> bool:
    """Tell whether a column of groups, of DuckDB's type `kind`, is read as numbers."""
    return kind == "VARCHAR" and all(is_real(key) for key in keys)


def _group(text: str, kind: str, keys: Sequence[Key], decimal: str) -> str:
    """Return a column, of DuckDB's type `kind`, as its declared keys are compared with it."""
    if _is_parsed(kind, keys):
        return f"CASE WHEN NOT {_is_odd(text)} THEN {_number(text, decimal)} END"
    # Bytes that are no text are in no declared group.
    return f"TRY(decode({text}))" if kind == "BLOB" else text


@dataclass(frozen=True)
class Opening:
    """What is to be opened, and what is closed when all is read."""

    connection: "duckdb.DuckDBPyConnection"
    files: Files
    paths: list[str]
    shown: str  # What an error calls it.
    stack: ExitStack
    in_order: bool = False  # Whether to read CSV in order, because reading in parallel failed.
    kept: bool = False  # Whether to hold rows in memory, because they can be read only once.
    # By path, the values that hive declares, as SQL.
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Source:
    """An open source: what to select from, and the names of its columns."""

    is_repeatable = True  # Whether the rows can be read again, in the same order.
    has_header = False  # If so, names are whatever the first line of a file holds.

    def __init__(self, opening: Opening, names: list[str] | None) -> None:
        self.opening, self.paths, self.connection = opening, opening.paths, opening.connection
        self._hive = list(opening.files.hive)
        known = {name.casefold() for name in names or ()}
        for name in self._hive:
            if name.casefold() in known:
                raise ArgumentError(
                    f"{opening.shown} has a column {name!r}, which hive declares as one of "
                    "folders. Leave it out of hive."
                )
        # None if only the rows know the names.
        self.names = None if names is None else [*names, *self._hive]

    def table(self, wanted: Sequence[str], paths: Sequence[str]) -> str:
        """Return the SQL of a table of some columns, from some of the paths."""
        raise NotImplementedError

    def declare_ids(self, ids: Sequence[str], discovered: Sequence[str]) -> None:
        """Say which columns are ids and which are groups to discover, before `table` is called.

        Raises if the source may call two entries of one equal that are written differently.
        """

    def fault(self) -> str | None:
        """Return what went wrong outside of DuckDB."""
        return None

    def stop(self) -> None:
        """End what it waits for."""

    def columns(
        self,
        numeric: Sequence[str],
        groups: Mapping[str, Sequence[Key]],
        ids: Sequence[str] = (),
        others: Sequence[str] = (),
        numbered: str | None = None,
    ) -> FileColumns:
        """Return the columns of all paths, or of one with its rows numbered from 1.

        Text is read as numbers where they are asked for, groups as keys match them. `others` are
        taken as they are.
        """
        wanted = list(dict.fromkeys([*numeric, *groups, *ids, *others]))
        self._check(wanted)
        self.declare_ids(ids, others)
        decimal = self.opening.files.decimal
        row, *free = _free_names([*(self.names or []), *wanted], 1 + len(numeric))
        paths, number = self.paths, ""
        if numbered is not None:
            paths, number = [numbered], f", row_number() OVER () AS {row}"
        raw = self.connection.sql(f"SELECT *{number} FROM {self._partitioned(wanted, paths)}")
        kinds = dict(zip(raw.columns, map(str, raw.types), strict=True))
        parse_errors = dict(zip((n for n in numeric if kinds[n] == "VARCHAR"), free, strict=False))
        parsed = {n for n in groups if n in parse_errors or _is_parsed(kinds[n], groups[n])}
        parts = {name: quoted(name) for name in raw.columns}
        for name in groups.keys() - set(numeric):
            parts[name] = _group(quoted(name), kinds[name], groups[name], decimal)
        for name in numeric:
            if kinds[name] == '"NULL"':  # A column of nulls alone has a type of its own.
                parts[name] = f"CAST({quoted(name)} AS DOUBLE)"
        for name, flag in parse_errors.items():
            parts[name] = _number(quoted(name), decimal)
            parts[flag] = _is_wrong(quoted(name), decimal)
        relation = raw.project(", ".join(f"{sql} AS {quoted(name)}" for name, sql in parts.items()))
        if self.opening.kept:
            relation = self.connection.from_arrow(relation.to_arrow_table())
        return FileColumns(relation, parse_errors, parsed, row)

    def renamed(self, wanted: Iterable[str]) -> str:
        """Return the SQL of columns that are called by their places: DuckDB may rename others."""
        names = self.names or []
        return ", ".join(f"c{names.index(name)} AS {quoted(name)}" for name in wanted) or "1"

    def _partitioned(self, wanted: list[str], paths: list[str]) -> str:
        """Return a table with the columns that hive declares."""
        if not self._hive:
            return self.table(wanted, paths)
        by_values: dict[tuple[str, ...], list[str]] = {}
        for path in paths:
            by_values.setdefault(self.opening.partitions[path], []).append(path)
        # Whether a row of JSON has such a column is known when it is read.
        own = [name for name in wanted if self.names is None or name not in self._hive]
        parts = []
        for values, same in by_values.items():
            sql = {name: quoted(name) for name in wanted}
            for place, (name, value) in enumerate(zip(self._hive, values, strict=True)):
                if name in own:
                    error = f"error({literal(f'{IN_ROWS} {place}')})"
                    sql[name] = f"CASE WHEN {quoted(name)} IS NULL THEN {value} ELSE {error} END"
                elif name in wanted:
                    sql[name] = value
            chosen = ", ".join(f"{value} AS {quoted(name)}" for name, value in sql.items())
            parts.append(f"SELECT {chosen or '1'} FROM {self.table(own, same)}")
        return f"({' UNION ALL '.join(parts)})"

    def _check(self, wanted: list[str]) -> None:
        """Raise unless each column is there once, also to DuckDB, which knows no capitals."""
        same: dict[str, str] = {}
        for name in wanted:
            other = same.setdefault(name.casefold(), name)
            if other != name:
                raise ArgumentError(
                    f"Columns {other!r} and {name!r} differ by capitals alone. Rename one."
                )
            times = 1 if self.names is None else self.names.count(name)
            if times > 1:
                raise ArgumentError(
                    f"{self.opening.shown} has more than one column {name!r}. Rename all but one."
                )
            if times == 0:
                raise ArgumentError(
                    f"{self.opening.shown} has no column {name!r}. {self.described_columns}"
                )

    @property
    def described_columns(self) -> str:
        """What the columns are called, as an error says it: nothing that a row may hold."""
        if self.names is None:
            return "Its columns are named in its rows."
        if self.has_header:  # Without a header, the first line is a row.
            entries = "1 entry" if len(self.names) == 1 else f"{len(self.names):,} entries"
            return (
                f"Its first line has {entries}. Is that line a header? If it is separated by "
                'another sign, say so, as in delimiter=";".'
            )
        return f"It has: {shortened(', '.join(map(shown, self.names)), _LONGEST_LIST)}."


def _free_names(taken: Iterable[str], number: int) -> list[str]:
    """Return names for helper columns, none of which is taken; DuckDB ignores case."""
    known = {name.casefold() for name in taken}
    candidates = (f"helper{place}" for place in range(number + len(known)))
    return [name for name in candidates if name not in known][:number]


class JsonLines(Source):
    """JSON, one object a line: each row names its columns."""

    def __init__(self, opening: Opening) -> None:
        if STANDARD_INPUT in opening.paths:  # DuckDB would find no row in a pipe.
            raise ArgumentError("JSON lines are not read from a pipe. Write them to a file first.")
        super().__init__(opening, None)
        self._exact = set[str]()  # The columns whose numbers must not have been rounded.

    def declare_ids(self, ids: Sequence[str], discovered: Sequence[str]) -> None:
        """Refuse numbers of ids and of discovered groups that may have been rounded."""
        self._exact.update(ids, discovered)

    def table(self, wanted: Sequence[str], paths: Sequence[str]) -> str:
        """Return the rows, with every entry as text."""
        types = ", ".join(f"{literal(name)}: 'JSON'" for name in wanted or ["nothing"])
        options = f"columns={{{types}}}, auto_detect=false, records=true, {AS_THEY_ARE}"
        columns = (f"{self._text(name)} AS {quoted(name)}" for name in wanted)
        rows = f"read_ndjson({as_paths(paths)}, {options})"
        return f"(SELECT {', '.join(columns) or '1'} FROM {rows})"

    def _text(self, name: str) -> str:
        """Return the SQL of the text of a value: 7.0 and 7 are one number, and have one text.

        An id must not be a number that a program may have rounded when it wrote it, a list or an
        object.
        """
        value = quoted(name)
        number, text = f"TRY_CAST({value} AS DOUBLE)", f"{value}->>'$'"
        is_whole = f"{number} = floor({number}) AND abs({number}) < {2**53}"
        other = f"error({literal(INEXACT_NUMBER)})" if name in self._exact else text
        return (
            f"CASE WHEN json_type({value}) = 'DOUBLE' AND {is_whole} "
            f"THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) "
            f"WHEN json_type({value}) IN ('DOUBLE', 'ARRAY', 'OBJECT') THEN {other} ELSE {text} END"
        )


class Parquet(Source):
    """Parquet files, which declare their columns."""

    def __init__(self, opening: Opening) -> None:
        paths = opening.paths
        if STANDARD_INPUT in paths:
            raise ArgumentError("Parquet is not read from a pipe. Write it to a file first.")
        types, read = import_extra("pyarrow", "files").types, import_module("pyarrow.parquet")
        self._rounded = set[str]()  # The columns whose numbers DuckDB reads as shorter floats.
        declared = []
        for path in paths:
            rows = opening.connection.sql(f"SELECT * FROM {_read_parquet([path])}")
            schema = read.read_schema(path)  # With names as they are: DuckDB changes some.
            declared.append((schema.names, list(map(str, rows.types))))
            for column in schema:
                if types.is_decimal256(column.type) or types.is_float16(column.type):
                    self._rounded.add(column.name)
            if declared[-1] != declared[0]:
                raise ArgumentError(f"{path} has other columns than {paths[0]}. Read it apart.")
        super().__init__(opening, declared[0][0])
        self._places = ", ".join(f"c{place}" for place in range(len(declared[0][0])))

    def declare_ids(self, ids: Sequence[str], discovered: Sequence[str]) -> None:
        """Refuse ids whose numbers DuckDB reads as floats, which may be too short for them."""
        for name in [*ids, *discovered]:
            if name in self._rounded:
                raise ArgumentError(
                    f"Column {name!r} of {self.opening.shown} holds decimals of more than 38 "
                    "digits, or floats of 16 bits, which would be rounded. Write it as text or "
                    "integers."
                )

    def table(self, wanted: Sequence[str], paths: Sequence[str]) -> str:
        """Return the rows of files."""
        rows = f"{_read_parquet(paths)} AS t({self._places})"
        return f"(SELECT {self.renamed(wanted)} FROM {rows})"


def _read_parquet(paths: Sequence[str]) -> str:
    return f"read_parquet({as_paths(paths)}, {AS_THEY_ARE})"


@dataclass(frozen=True)
class Stream:
    """Batches of rows as a table of Arrow, to be read as often as needed."""

    schema: ArrowObject
    batches: Callable[[], Iterator[ArrowObject]]

    def __arrow_c_stream__(self, schema: object = None) -> object:
        reader = import_extra("pyarrow", "files").RecordBatchReader
        return reader.from_batches(self.schema, self.batches()).__arrow_c_stream__(schema)


class Database(Source):
    """A table or view of a database, whose rows come as Arrow."""

    names: list[str]
    ids: frozenset[str] = frozenset()
    discovered: frozenset[str] = frozenset()
    stream_fault: str | None = None  # What ended a stream early.

    def __init__(self, opening: Opening) -> None:
        if len(opening.paths) > 1 or opening.files.table is None:
            raise ArgumentError('Give one database and the name of a table: table="people".')
        (self.address,), self.table_name = opening.paths, opening.files.table
        self.stack = opening.stack
        names, tables = self.connect()
        if not names:
            there = shortened(", ".join(tables), _LONGEST_LIST) or "none"
            raise ArgumentError(
                f"{self.address} has no table {self.table_name!r}. It has: {there}."
            )
        super().__init__(opening, names)

    def connect(self) -> tuple[list[str], list[str]]:
        """Return the names of the columns and, if there are none, of all tables."""
        raise NotImplementedError

    def check_comparable(self, name: str) -> None:
        """Raise if the database may call entries of a column equal that are written differently."""
        raise NotImplementedError

    def stream(self, wanted: Sequence[str]) -> Stream:
        """Return some columns."""
        raise NotImplementedError

    def declare_ids(self, ids: Sequence[str], discovered: Sequence[str]) -> None:
        """Set the columns of ids and of groups to discover; raise if that is unsafe."""
        for name in [*ids, *discovered]:
            self.check_comparable(name)
        self.ids, self.discovered = frozenset(ids), frozenset(discovered)

    def table(self, wanted: Sequence[str], _: Sequence[str]) -> str:
        """Return the rows."""
        self.connection.register("streamed", self.stream(wanted))
        return "streamed"

    def fault(self) -> str | None:
        """Return what ended a stream early."""
        return self.stream_fault


def spelling_error(name: str, fact: str, instead: str) -> ArgumentError:
    """Return the error about a column of ids whose equal values may have several spellings."""
    return ArgumentError(
        f"Column {name!r} {shown(fact)}: equal values may be written differently. Make a view with "
        f"one spelling for each value, such as {shown(instead)}, and give that."
    )


def partition_values(hive: Mapping[str, str], paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of the columns that folders declare, for each path, as SQL.

    Hive, Spark and others leave such columns out of files and write folders such as `year=2024`.
    Their types are declared: guessed, they would depend on which folders there are. No error shows
    a path, because the names of its folders are data.
    """
    values = []
    for place, path in enumerate(paths, start=1):
        parts = (folder.partition("=") for folder in PurePath(path).parent.parts)
        folders = [
            (_decoded(name), _decoded(value)) for name, sign, value in parts if sign and name
        ]
        of_file = f"file {place:,} of {len(paths):,}"
        values.append(tuple(_partition(name, hive[name], folders, of_file) for name in hive))
    return values


def _decoded(text: str) -> bytes:
    """Return what percent signs stand for, as Hive writes it."""
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape"))


def _partition(name: str, kind: str, folders: list[tuple[bytes, bytes]], of_file: str) -> str:
    """Return the value of a column as SQL."""
    found = {value for folder, value in folders if folder == name.encode("utf-8", "replace")}
    if len(found) != 1:
        number = "no" if not found else "more than one"
        raise ArgumentError(
            f"The path of {of_file} has {number} folder {name + '=...'!r}, and hive declares that "
            "column. Give the files with that folder in their path, or leave it out of hive."
        )
    value = found.pop()
    constant = "NULL" if value == _NULL_FOLDER else _constant(value, kind)
    if constant is None:
        raise ArgumentError(
            f"The folder {name + '=...'!r} of {of_file} does not name {_DESCRIBED_TYPES[kind]}, as "
            "hive declares. Rename it, or declare text."
        )
    return f"CAST({constant} AS {_SQL_TYPES[kind]})"


def _constant(value: bytes, kind: str) -> str | None:
    """Return a value as a constant of SQL; None if it is not of its type."""
    with suppress(ValueError):  # That of text that is not UTF-8 is one too.
        text = value.decode()
        if kind == "integer" and _INTEGER.fullmatch(text) and -_LARGEST <= int(text) < _LARGEST:
            return literal(str(int(text)))
        if kind == "date" and _DATE.fullmatch(text):
            return literal(date.fromisoformat(text).isoformat())
        if kind == "text" and "\0" not in text:
            return literal(text)
    return None
