"""The sources that DuckDB selects from: one for each format, with every column declared.

Every entry of CSV and JSON is text, and becomes a number only in a column of numbers. The number
depends only on that text: DuckDB's cast rounds to the nearest float. Text such as 1_000, which
DuckDB reads as a number and people do not, is a parse error. `quote_text` and `quote_name` quote
all names, paths and texts of requests and files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import unquote_to_bytes

import narwhals as nw

from dpnoise.core.errors import ArgumentError, did_you_mean, import_extra, is_real
from dpnoise.core.safe_text import escape_text, shorten
from dpnoise.statistics.engines import keys
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.runners import ArrowObject, FileColumns
from dpnoise.statistics.plan import Key

if TYPE_CHECKING:
    import duckdb

_MAX_LIST_LENGTH: Final = 500  # The most characters of column names in an error.
# Messages that our SQL raises about JSON: a column that hive declares too, and an inexact id.
HIVE_COLUMN_IN_ROW: Final = "declared by hive and in a row:"
INEXACT_NUMBER: Final = "an id or a group that is not exact"
# A number or a truth value of JSON that an expression compares as text.
NOT_TEXT: Final = "compared as text and not a string"
# The message of our SQL about text that is a declared group in another spelling.
OTHER_SPELLING: Final = "a declared group in another spelling"
_EXACT_LIMIT: Final = 2**53  # Floats hold all whole numbers below it.
# The types of columns, as SQL, that could hold the values of a text column.
_OTHER_TYPES: Final = {
    "DOUBLE": nw.Float64(),
    "HUGEINT": nw.Int64(),
    "BOOLEAN": nw.Boolean(),
    "TIMESTAMP": nw.Datetime(),
}
# Text that means a missing number, in addition to empty text and NaN.
_MISSING_WORDS: Final = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL"),
    *("n/a", "null"),
)
# Text that is a date, with or without a time; times with a zone are not.
_DATE_TEXT: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?)?"
)
_NULL_FOLDER: Final = b"__HIVE_DEFAULT_PARTITION__"
# The types of hive columns: in SQL, in errors, and as a pattern of their text.
_HIVE_TYPES: Final = {
    "text": ("VARCHAR", "text", re.compile(r"[^\0]*")),
    "integer": ("BIGINT", "an integer of 64 bits", re.compile(r"[+-]?[0-9]{1,19}")),
    "date": ("DATE", "a date such as 2024-02-29", re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")),
}
_INTEGER_LIMIT: Final = 2**63  # Integers have 64 bits.


class UnreadableError(ArgumentError):
    """DuckDB cannot read a file in this way."""


def quote_text(text: str) -> str:
    """Return text as a literal of SQL."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def quote_name(name: str) -> str:
    """Return a name as a quoted identifier of SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def read_files(reader: str, paths: Sequence[str], *options: str) -> str:
    """Return the SQL that reads files. No character of a path or folder has a special meaning."""
    plain = (re.sub(r"([*?\[])", r"[\1]", path) for path in paths)
    arguments = [f"[{', '.join(map(quote_text, plain))}]", "hive_partitioning=false", *options]
    return f"{reader}({', '.join(arguments)})"


def _parse_number(text: str, decimal: str) -> str:
    """Return the SQL that parses text, itself SQL, as a number; null if it is not one."""
    if decimal == ",":  # A point is then a parse error.
        text = f"CASE WHEN contains({text}, '.') THEN '.' ELSE replace({text}, ',', '.') END"
    return f"TRY_CAST({text} AS DOUBLE)"


def _parse_date(text: str) -> str:
    """Return the SQL that parses text, itself SQL, as a date; null if it is not one."""
    day = f"TRY_CAST(left(trim({text}), 10) AS DATE)"
    return f"CASE WHEN regexp_full_match(trim({text}), {quote_text(_DATE_TEXT)}) THEN {day} END"


def _parse_error_flag(text: str, parsed: str, refused: str = "false") -> str:
    """Return the SQL of a parse-error flag, 0 or 1. Missing values are not errors.

    `parsed` is null for text that cannot be parsed. `refused` is true for text that must not be.
    """
    words = ", ".join(map(quote_text, _MISSING_WORDS))
    return (
        f"CASE WHEN {text} IS NULL THEN 0 WHEN {refused} THEN 1 WHEN {parsed} IS NOT NULL THEN 0 "
        # Few rows get here. DuckDB would plan an IN as a join of all rows.
        f"WHEN list_contains(['', {words}], trim({text})) THEN 0 ELSE 1 END"
    )


def _is_unusual_number(text: str) -> str:
    """Return the SQL that is true for numbers of DuckDB that people do not write: 1_000, +-5."""
    return f"(contains({text}, '_') OR contains({text}, '+-'))"


def _as_number(column: str, kind: str, decimal: str) -> str:
    """Return the SQL of a column of numbers; `kind` is DuckDB's type."""
    if kind == '"NULL"':  # DuckDB has a type for columns that hold only nulls.
        return f"CAST({column} AS DOUBLE)"
    return _parse_number(column, decimal) if kind == "VARCHAR" else column


def _parse_group(text: str, decimal: str) -> str:
    """Return the SQL of a group that is a number; null if people do not write it so."""
    return f"CASE WHEN NOT {_is_unusual_number(text)} THEN {_parse_number(text, decimal)} END"


def _check_spelling(text: str, declared: Sequence[Key]) -> str:
    """Return the SQL of a group's text. It fails for another spelling of a key, such as 2.0 for 2.

    In a column of numbers, this row would match. The type of the column may have been chosen by its
    rows, so a row of one person could change which rows of all others match.
    """
    checks = []
    for kind, dtype in _OTHER_TYPES.items():
        values = {value for key in declared for value in keys.matching_values(key, dtype)}
        if kind in {"DOUBLE", "HUGEINT"}:  # Larger floats may be rounded.
            values = {
                value
                for value in values
                if isinstance(value, float | int)
                and (abs(value) < _EXACT_LIMIT) == (kind == "DOUBLE")
            }
        if values:
            literals = ", ".join(f"CAST({quote_text(str(value))} AS {kind})" for value in values)
            checks.append(f"list_contains([{literals}], TRY_CAST({text} AS {kind}))")
    if not checks:
        return text
    texts = {quote_text(value) for key in declared for value in keys.matching_texts(key)}
    return (
        f"CASE WHEN list_contains([{', '.join(texts)}], {text}) THEN {text} "
        f"WHEN {' OR '.join(checks)} THEN error({quote_text(OTHER_SPELLING)}) ELSE {text} END"
    )


@dataclass
class RowSource:
    """An open source of rows. Subclasses read one format each."""

    connection: "duckdb.DuckDBPyConnection"
    files: Files
    paths: list[str]
    shown: str  # The name of the files for errors.
    stack: ExitStack  # What to close afterwards.
    in_order: bool = False  # Whether to read CSV in order, because reading in parallel failed.
    in_memory: bool = False  # Whether to hold rows in memory, because they can be read only once.
    # Maps each path to the values of its hive columns, as SQL.
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    has_header: ClassVar = False  # Whether names come from the first line, which may be data.
    has_types: ClassVar = True  # Whether the program that wrote the rows chose their types.
    row_count: int | None = None  # None if the rows must be read to count them.

    def __post_init__(self) -> None:
        self._hive = list(self.files.hive)
        self.ids, self.discovered = frozenset[str](), frozenset[str]()
        self.compared_texts = frozenset[str]()  # Columns that expressions compare as text.
        self.equated = frozenset[str]()  # Names that a column is compared with by == or !=.
        self.stream_fault: str | None = None  # The error that ended a stream early.
        # Whether the rows can be read again, in the same order.
        self.is_repeatable = STANDARD_INPUT not in self.paths
        names = self.open()
        names_in_file = {name.casefold() for name in names or ()}
        for name in self._hive:
            if name.casefold() in names_in_file:
                raise ArgumentError(
                    f"{self.shown} has a column {name!r}, which hive declares as one of folders. "
                    "Leave it out of hive."
                )
        # None if the names are only in the rows.
        self.names = None if names is None else [*names, *self._hive]

    def open(self) -> list[str] | None:
        """Return the names of the columns; None if they are only in the rows."""
        raise NotImplementedError

    def table(self, names: Sequence[str], paths: Sequence[str]) -> str:
        """Return the SQL of a table with some columns, from some of the paths."""
        raise NotImplementedError

    def check_comparable(self, name: str) -> None:
        """Raise if a column may have equal entries that are written differently."""

    def fault(self) -> str | None:
        """Return a failure outside DuckDB; None if there is none."""
        return self.stream_fault

    def stop(self) -> None:
        """End reads that wait for more rows."""

    def declare_ids(self, ids: Sequence[str], discovered: Sequence[str]) -> None:
        """Set the columns of ids and of groups to discover; raise if one is not comparable."""
        for name in [*ids, *discovered]:
            self.check_comparable(name)
        self.ids, self.discovered = frozenset(ids), frozenset(discovered)

    def columns(
        self,
        numeric: Sequence[str],
        groups: Mapping[str, Sequence[Key]],
        ids: Sequence[str] = (),
        others: Sequence[str] = (),
        dates: Sequence[str] = (),
        numbered: str | None = None,
    ) -> FileColumns:
        """Return columns of all paths, or of one path with its rows numbered from 1.

        Text in `numeric` columns is parsed as numbers, and in `dates` as dates. Groups are
        converted to match their keys. `others` are unchanged.
        """
        columns_read = list(dict.fromkeys([*numeric, *dates, *groups, *ids, *others]))
        self._check_columns(columns_read)
        self.declare_ids(ids, others)
        row, *free = _free_names([*(self.names or []), *columns_read], 1 + len(columns_read))
        paths, number = self.paths, ""
        if numbered is not None:
            paths, number = [numbered], f", row_number() OVER () AS {row}"
        table = self._table_with_partitions(columns_read, paths)
        raw = self.connection.sql(f"SELECT *{number} FROM {table}")
        kinds = dict(zip(raw.columns, map(str, raw.types), strict=True))
        texts = (name for name in [*numeric, *dates] if kinds[name] == "VARCHAR")
        parse_errors = dict(zip(texts, free, strict=False))
        parsed = set(parse_errors).intersection(groups)
        parts = {name: quote_name(name) for name in raw.columns}
        for name, declared in groups.items():
            if self.holds_decimals(name) and all(is_real(key) for key in declared):
                parsed.add(name)
                parts[name] = _parse_group(quote_name(name), self.files.decimal)
            else:
                parts[name] = self._group(name, kinds[name], declared)
        parts |= self._parse(numeric, dates, parse_errors, kinds)
        columns = (f"{sql} AS {quote_name(name)}" for name, sql in parts.items())
        relation = raw.project(", ".join(columns))
        if self.in_memory:
            relation = self.connection.from_arrow(relation.to_arrow_table())
        return FileColumns(relation, parse_errors, parsed, row, self.row_count)

    def _parse(
        self,
        numeric: Sequence[str],
        dates: Sequence[str],
        flags: Mapping[str, str],
        kinds: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the SQL of numbers and dates, and of parse-error flags, by their names."""
        decimal = self.files.decimal
        parts = {name: _as_number(quote_name(name), kinds[name], decimal) for name in numeric}
        for name, flag in flags.items():
            column = quote_name(name)
            if name in dates:
                parts[name] = _parse_date(column)
                parts[flag] = _parse_error_flag(column, parts[name])
            else:
                refused = _is_unusual_number(column)
                parts[flag] = _parse_error_flag(column, parts[name], refused)
        return parts

    def _group(self, name: str, kind: str, declared: Sequence[Key]) -> str:
        """Return the SQL of a column that is compared with declared keys; `kind` is its type."""
        group = quote_name(name)
        if kind == "VARCHAR":  # A table of DuckDB may have a collation.
            group = f"{group} COLLATE POSIX"
        elif kind == "BLOB":  # Bytes that are not UTF-8 are in no declared group.
            group = f"TRY(decode({group}))"
        is_text = kind in {"VARCHAR", "BLOB"}
        return _check_spelling(group, declared) if self.has_types and is_text else group

    def holds_decimals(self, name: str) -> bool:
        """Return whether a column of text holds numbers that a database declares as decimals."""
        del name
        return False

    def check_same_columns(self, columns_of: Mapping[str, object]) -> None:
        """Raise unless all paths have the columns of the first one."""
        for path, columns in columns_of.items():
            if columns != columns_of[self.paths[0]]:
                raise ArgumentError(
                    f"{path} has other columns than {self.paths[0]}. Read it separately."
                )

    def select_by_index(self, names: Iterable[str]) -> str:
        """Return the SQL that selects columns by position: DuckDB may rename columns."""
        index_of = (self.names or []).index
        return ", ".join(f"c{index_of(name)} AS {quote_name(name)}" for name in names) or "1"

    def _table_with_partitions(self, columns_read: list[str], paths: list[str]) -> str:
        """Return the SQL of a table that includes the columns of hive."""
        if not self._hive:
            return self.table(columns_read, paths)
        by_values: dict[tuple[str, ...], list[str]] = {}
        for path in paths:
            by_values.setdefault(self.partitions[path], []).append(path)
        # Only the rows of JSON show whether they have such a column too.
        file_columns = [
            name for name in columns_read if self.names is None or name not in self._hive
        ]
        parts = []
        for values, group in by_values.items():
            sql = {name: quote_name(name) for name in columns_read}
            for index, (name, value) in enumerate(zip(self._hive, values, strict=True)):
                if name in file_columns:
                    error = f"error({quote_text(f'{HIVE_COLUMN_IN_ROW} {index}')})"
                    sql[name] = (
                        f"CASE WHEN {quote_name(name)} IS NULL THEN {value} ELSE {error} END"
                    )
                elif name in columns_read:
                    sql[name] = value
            columns = ", ".join(f"{value} AS {quote_name(name)}" for name, value in sql.items())
            parts.append(f"SELECT {columns or '1'} FROM {self.table(file_columns, group)}")
        return f"({' UNION ALL '.join(parts)})"

    def _check_columns(self, columns_read: list[str]) -> None:
        """Raise unless each column exists once. DuckDB ignores case."""
        first_spellings: dict[str, str] = {}
        for name in columns_read:
            other = first_spellings.setdefault(name.casefold(), name)
            if other != name:
                raise ArgumentError(
                    f"Columns {other!r} and {name!r} differ only by capitals. Rename one."
                )
            times = 1 if self.names is None else self.names.count(name)
            if times > 1:
                raise ArgumentError(
                    f"{self.shown} has more than one column {name!r}. Rename all but one."
                )
            if times == 0:
                hint = escape_text(self._suggest_column(name, columns_read))
                spelling = f" Else check the spelling of {name!r}." if self.has_header else ""
                hint = hint or self.described_columns + spelling
                if name in self.equated:
                    hint = f"If it is text, write it in quotes. {hint}"
                raise ArgumentError(f"{self.shown} has no column {name!r}. {hint}", delimiter=";")

    def _suggest_column(self, name: str, columns_read: list[str]) -> str:
        """Return a sentence about the columns that are most similar to a name; empty without any.

        The first line of a CSV file may be a row of somebody. Nothing of it is shown unless the
        request names another of its entries to the letter, so that it is a header.
        """
        entries = self.names or []
        if self.has_header and set(entries).isdisjoint(columns_read):
            return ""
        spaced = [entry for entry in entries if entry != name and entry.strip() == name.strip()]
        if spaced:
            return f"It has {spaced[0]!r}: remove the spaces there, or write them too."
        hint = did_you_mean(name, entries)
        if hint or not self.has_header:
            return hint
        named = ", ".join(entry for entry in columns_read if entry in entries)
        return f"Its header has {shorten(named, _MAX_LIST_LENGTH)}: check the spelling of {name!r}."

    @property
    def described_columns(self) -> str:
        """A description of the columns for errors. It shows nothing that a row may hold."""
        if self.names is None:
            return "Its columns are named in its rows."
        if self.has_header:  # If the file has no header, the first line is a row.
            entries = "1 entry" if len(self.names) == 1 else f"{len(self.names):,} entries"
            return (
                f"Its first line has {entries}. Is that line a header? If it is separated by "
                "another sign, say so, as in {delimiter}."
            )
        return f"It has: {shorten(', '.join(map(escape_text, self.names)), _MAX_LIST_LENGTH)}."


def _free_names(taken: Iterable[str], number: int) -> list[str]:
    """Return unused names for helper columns; DuckDB ignores case."""
    taken_names = {name.casefold() for name in taken}
    candidates = (f"helper{index}" for index in range(number + len(taken_names)))
    return [name for name in candidates if name not in taken_names][:number]


class JsonLines(RowSource):
    """JSON with one object per line. Each row names its columns."""

    def open(self) -> None:
        """Raise for a pipe, in which DuckDB finds no rows."""
        if STANDARD_INPUT in self.paths:
            raise ArgumentError("JSON lines are not read from a pipe. Write them to a file first.")

    def table(self, names: Sequence[str], paths: Sequence[str]) -> str:
        """Return the SQL of the rows, with every entry as text."""
        types = ", ".join(f"{quote_text(name)}: 'JSON'" for name in names or ["nothing"])
        options = (f"columns={{{types}}}", "auto_detect=false", "records=true")
        columns = (f"{self._text(name)} AS {quote_name(name)}" for name in names)
        rows = read_files("read_ndjson", paths, *options)
        return f"(SELECT {', '.join(columns) or '1'} FROM {rows})"

    def _text(self, name: str) -> str:
        """Return the SQL of the text of a value. 7.0 and 7 are one number and have the same text.

        An id must not be a list, an object, or a number that the writer may have rounded. What is
        compared as text must be a string: if the writer made strings of all numbers because of one
        row, 7.0 would become another text.
        """
        value = quote_name(name)
        if name in self.compared_texts:
            error = f"error({quote_text(NOT_TEXT)})"
            is_text = f"json_type({value}) = 'VARCHAR' OR {value} IS NULL"
            return f"CASE WHEN {is_text} THEN {value}->>'$' ELSE {error} END"
        number, text = f"TRY_CAST({value} AS DOUBLE)", f"{value}->>'$'"
        is_whole = f"{number} = floor({number}) AND abs({number}) < {2**53}"
        is_exact = name in self.ids | self.discovered
        other = f"error({quote_text(INEXACT_NUMBER)})" if is_exact else text
        return (
            f"CASE WHEN json_type({value}) = 'DOUBLE' AND {is_whole} "
            f"THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) "
            f"WHEN json_type({value}) IN ('DOUBLE', 'ARRAY', 'OBJECT') THEN {other} ELSE {text} END"
        )


class Parquet(RowSource):
    """Parquet files, which declare their columns."""

    def open(self) -> list[str]:
        """Read the schemas, which must be the same."""
        if STANDARD_INPUT in self.paths:
            raise ArgumentError("Parquet is not read from a pipe. Write it to a file first.")
        types, read = import_extra("pyarrow", "files").types, import_module("pyarrow.parquet")
        self._rounded = set[str]()  # Columns of numbers that DuckDB reads as shorter floats.
        declared, self.row_count = {}, 0
        for path in self.paths:
            rows = self.connection.sql(f"SELECT * FROM {read_files('read_parquet', [path])}")
            schema = read.read_schema(path)  # With the original names: DuckDB changes some.
            self.row_count += read.read_metadata(path).num_rows
            declared[path] = (schema.names, list(map(str, rows.types)))
            for column in schema:
                if types.is_decimal256(column.type) or types.is_float16(column.type):
                    self._rounded.add(column.name)
        self.check_same_columns(declared)
        names: list[str] = declared[self.paths[0]][0]
        self._places = ", ".join(f"c{index}" for index in range(len(names)))
        return names

    def check_comparable(self, name: str) -> None:
        """Refuse ids that DuckDB would round to floats."""
        if name in self._rounded:
            raise ArgumentError(
                f"Column {name!r} of {self.shown} holds decimals of more than 38 digits, or floats "
                "of 16 bits, which would be rounded. Write it as text or integers."
            )

    def table(self, names: Sequence[str], paths: Sequence[str]) -> str:
        """Return the SQL of the rows."""
        rows = f"{read_files('read_parquet', paths)} AS t({self._places})"
        return f"(SELECT {self.select_by_index(names)} FROM {rows})"


@dataclass(frozen=True)
class Stream:
    """A table of Arrow in batches, which can be read several times."""

    schema: ArrowObject
    batches: Callable[[], Iterator[ArrowObject]]

    def __arrow_c_stream__(self, schema: object = None) -> object:
        reader = import_extra("pyarrow", "files").RecordBatchReader
        return reader.from_batches(self.schema, self.batches()).__arrow_c_stream__(schema)


class Database(RowSource):
    """A table or view of a database, read as batches of Arrow."""

    def open(self) -> list[str]:
        """Connect to the database; raise unless it has the table."""
        if len(self.paths) > 1 or self.files.table is None:
            raise ArgumentError(
                "Give one database and the name of a table: {table}.", table="people"
            )
        (self.address,), self.table_name = self.paths, self.files.table
        names, tables = self.connect()
        if not names:
            available = shorten(", ".join(tables), _MAX_LIST_LENGTH) or "none"
            raise ArgumentError(
                f"{self.address} has no table {self.table_name!r}. It has: {available}."
            )
        return names

    def connect(self) -> tuple[list[str], list[str]]:
        """Return the names of the columns. If there are none, also return those of all tables."""
        raise NotImplementedError

    def stream(self, names: Sequence[str]) -> Stream:
        """Return a stream of some columns."""
        raise NotImplementedError

    def table(self, names: Sequence[str], _: Sequence[str]) -> str:
        """Register the stream of rows, and return its name in SQL."""
        self.connection.register("streamed", self.stream(names))
        return "streamed"


class DuckDBTable(Database):
    """A table or view in a file of DuckDB, which declares its columns."""

    def connect(self) -> tuple[list[str], list[str]]:
        """Attach the file, read-only."""
        self.connection.execute(f"ATTACH {quote_text(self.address)} AS attached (READ_ONLY)")
        self.connection.execute("USE attached")  # Views may name tables without their database.
        schema, _, name = self.table_name.rpartition(".")
        self._sql = f"attached.{quote_name(schema or 'main')}.{quote_name(name)}"
        columns = (
            "SELECT column_name FROM duckdb_columns() WHERE database_name = 'attached' "
            "AND schema_name = ? AND table_name = ? ORDER BY column_index"
        )
        tables = "SELECT DISTINCT schema_name, table_name FROM duckdb_columns() WHERE NOT internal"
        rows = self.connection.execute(columns, [schema or "main", name]).fetchall()
        others = self.connection.execute(f"{tables} ORDER BY ALL").fetchall()
        return [column for (column,) in rows], list(map(".".join, others))

    def table(self, names: Sequence[str], _: Sequence[str]) -> str:
        """Return the SQL of the rows."""
        return f"(SELECT {', '.join(map(quote_name, names)) or '1'} FROM {self._sql})"


def spelling_error(name: str, fact: str, instead: str) -> ArgumentError:
    """Return the error for a column of ids in which equal values may be written differently."""
    return ArgumentError(
        f"Column {name!r} {escape_text(fact)}: equal values may be written differently. Make a "
        f"view with one spelling for each value, such as {escape_text(instead)}, and give that."
    )


def partition_values(hive: Mapping[str, str], paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of the hive columns for each path, as SQL.

    Hive, Spark and others leave such columns out of files and write folders such as `year=2024`.
    Their types are declared, because inferred types would depend on the folders that exist. No
    error shows a path, because the names of its folders are data.
    """
    values = []
    for number, path in enumerate(paths, start=1):
        parts = (folder.partition("=") for folder in PurePath(path).parent.parts)
        folders = [
            (_decode_percent_signs(name), _decode_percent_signs(value))
            for name, sign, value in parts
            if sign and name
        ]
        file_label = f"file {number:,} of {len(paths):,}"
        values.append(
            tuple(_partition_value(name, hive[name], folders, file_label) for name in hive)
        )
    return values


def _decode_percent_signs(text: str) -> bytes:
    """Return the bytes of a folder name, in which Hive escapes characters by percent signs."""
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape"))


def _partition_value(
    name: str, kind: str, folders: list[tuple[bytes, bytes]], file_label: str
) -> str:
    """Return the value of a hive column as SQL."""
    matching = {value for folder, value in folders if folder == name.encode("utf-8", "replace")}
    if len(matching) != 1:
        number = "no" if not matching else "more than one"
        raise ArgumentError(
            f"The path of {file_label} has {number} folder {name + '=...'!r}, and hive declares "
            "that column. Give the files with that folder in their path, or leave it out of hive."
        )
    value, (sql_type, described, pattern) = matching.pop(), _HIVE_TYPES[kind]
    if value == _NULL_FOLDER:
        return f"CAST(NULL AS {sql_type})"
    with suppress(ValueError):  # Also raised for bytes that are not UTF-8.
        text = value.decode()
        if kind == "date":
            date.fromisoformat(text)  # Raises if there is no such day.
        if pattern.fullmatch(text) and kind != "integer":
            return f"CAST({quote_text(text)} AS {sql_type})"
        if pattern.fullmatch(text) and -_INTEGER_LIMIT <= int(text) < _INTEGER_LIMIT:
            return f"CAST('{int(text)}' AS {sql_type})"
    raise ArgumentError(
        f"The folder {name + '=...'!r} of {file_label} does not name {described}, as hive declares."
        " Rename it, or declare text."
    )
