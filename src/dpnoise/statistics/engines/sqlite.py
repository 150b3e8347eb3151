"""Tables of SQLite, read in a stream by Python's sqlite3: DuckDB would need an extension.

In SQLite a row may hold any type, whatever its column declares. A column that is declared INTEGER
or REAL must hold such numbers; other entries are errors. All other columns are read as text.

Ids that SQLite treats as equal are one person. So a column of ids must compare text by its bytes,
and hold entries of one type: in SQLite 7 equals 7.0, but not '7'.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import NoneType
from typing import Final
from urllib.parse import quote

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import escape_text
from dpnoise.statistics.engines.runners import ArrowObject
from dpnoise.statistics.engines.sources import Database, Stream, quote_name, spelling_error

_BATCH_ROWS: Final = 2**14
_UNKNOWN_COLLATION: Final = "no such collation"
# Parts of SQLite's errors, with the words of ours.
_FAILURES: Final = {
    "locked": "it is locked. Close the program that writes to it, or copy it",
    _UNKNOWN_COLLATION: (
        "it has a collation that another program defines. Copy the table without it"
    ),
}
_LOCK_TIMEOUT: Final = 1.0  # Seconds to wait for another program that writes.
# SQLite's collations other than BINARY. Each has two texts that are equal only under it, and SQL
# that writes equal texts in the same way.
_LOOSE_COLLATIONS: Final = {"NOCASE": ("a", "A", "lower({})"), "RTRIM": ("a", "a ", "rtrim({})")}


class _InvalidText(str):
    """Text whose bytes are not UTF-8, with escapes in their place."""

    __slots__ = ()


# The singular and plural of each type of entries for errors, and SQL for a view that avoids it.
_ENTRY_TYPES: Final[dict[type, tuple[str, str, str]]] = {
    str: ("text", "text", "CAST({} AS TEXT)"),
    int: ("an integer", "integers", "CAST({} AS TEXT)"),
    float: ("a real number", "real numbers", "CAST({} AS INTEGER)"),
    bytes: ("a blob", "blobs", "hex({})"),
    _InvalidText: ("text that is not UTF-8", "text", "hex({})"),
}
_ALLOWED_TYPES: Final = {"integer": (int,), "real": (float,), "text": tuple(_ENTRY_TYPES)}
_ID_TYPES: Final[tuple[type, ...]] = (str, int, bytes)
# Blobs are excluded: they are read as text where the discovered groups are counted.
_DISCOVERED_TYPES: Final[tuple[type, ...]] = (str, int)


class SqliteTable(Database):
    """A table or view of SQLite."""

    def connect(self) -> tuple[list[str], list[str]]:
        """Read the declared type of each column."""
        listing = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        columns = "SELECT name, type FROM pragma_table_info(?)"
        with self._open() as database:
            rows = database.execute(columns, (self.table_name,))
            self._kinds = {name: _affinity(declared) for name, declared in rows}
            return list(self._kinds), [name for (name,) in database.execute(listing)]

    def check_comparable(self, name: str) -> None:
        """Raise if SQLite treats texts of a column as equal although their bytes differ.

        No row is read. The leftmost part of a UNION decides how texts are compared, even if it has
        no rows: https://www.sqlite.org/lang_select.html, section 3.
        """
        if self._kinds[name] != "text":
            return
        column = f"SELECT {quote_name(name)} FROM {quote_name(self.table_name)} WHERE 0"
        distinct = f"SELECT count(*) FROM ({column} UNION SELECT ? UNION SELECT ?)"
        for collation, (text, equal_text, instead) in _LOOSE_COLLATIONS.items():
            with self._open() as database:
                try:
                    (number,) = database.execute(distinct, (text, equal_text)).fetchone()
                except sqlite3.Error as error:
                    if _UNKNOWN_COLLATION not in str(error):
                        raise
                    foreign = "has a collation that another program defines"
                    raise spelling_error(name, foreign, f"lower({quote_name(name)})") from None
            if number == 1:
                fact = f"has the collation {collation}"
                raise spelling_error(name, fact, instead.format(quote_name(name)))

    def stream(self, names: Sequence[str]) -> Stream:
        """Return a stream of some columns, which can be read several times."""
        pa = import_extra("pyarrow", "files")
        types = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string()}
        kinds = {name: types[self._kinds[name]] for name in names}
        schema = pa.schema(kinds or {"nothing": pa.int64()})
        return Stream(schema, lambda: self._batches(names, schema))

    def _batches(self, names: Sequence[str], schema: ArrowObject) -> Iterator[ArrowObject]:
        """Yield the rows. An error ends the stream, because DuckDB would show its message."""
        arrow = import_extra("pyarrow", "files")
        comparable = dict.fromkeys(self.discovered, _DISCOVERED_TYPES)
        comparable |= dict.fromkeys(self.ids, _ID_TYPES)
        columns = [_SqliteColumn(name, self._kinds[name], comparable.get(name)) for name in names]
        columns = columns or [_SqliteColumn("nothing", "integer", None)]
        selected, first_row = ", ".join(map(quote_name, names)) or "1", 1
        try:
            with self._open() as database:
                rows = database.execute(f"SELECT {selected} FROM {quote_name(self.table_name)}")
                while batch := rows.fetchmany(_BATCH_ROWS):
                    pairs = zip(columns, zip(*batch, strict=True), strict=True)
                    values = [column.convert(entries, first_row) for column, entries in pairs]
                    typed = zip(values, schema.types, strict=True)
                    arrays = [arrow.array(entries, kind) for entries, kind in typed]
                    yield arrow.RecordBatch.from_arrays(arrays, schema=schema)
                    first_row += len(batch)
        except ArgumentError as error:
            self.stream_fault = str(error)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the database. Errors leave out the data that SQLite quotes."""
        address = quote(bytes(Path(self.address).absolute()))
        try:
            database = sqlite3.connect(
                f"file:{address}?mode=ro",
                uri=True,
                check_same_thread=False,  # DuckDB reads from another thread.
                timeout=_LOCK_TIMEOUT,
            )
            with closing(database):
                database.text_factory = _decode
                yield database
        except sqlite3.Error as error:
            failures = (failure for sign, failure in _FAILURES.items() if sign in str(error))
            failure = next(failures, "it is not a database of SQLite, or damaged")
            raise ArgumentError(f"{self.address} cannot be read: {failure}.") from None


class _SqliteColumn:
    """A column during one scan. It checks entries and converts them for Arrow.

    `comparable` has the types of ids or of groups to discover. All entries must have the same one.
    """

    def __init__(self, name: str, kind: str, comparable: Sequence[type] | None) -> None:
        self._name, self._kind, self._is_compared = name, kind, comparable is not None
        self._allowed = comparable if comparable and kind == "text" else _ALLOWED_TYPES[kind]
        self._types = {*self._allowed, NoneType}

    def convert(self, entries: Sequence[object], first_row: int) -> list[object]:
        """Convert entries for Arrow; raise if the type of one is not allowed."""
        present = next((entry for entry in entries if entry is not None), None)
        if self._is_compared and present is not None:
            self._types &= {type(present), NoneType}
        if not set(map(type, entries)) <= self._types:
            rejected = (i for i, entry in enumerate(entries) if type(entry) not in self._types)
            index = next(rejected)
            raise self._error(type(entries[index]), first_row + index)
        if self._kind != "text":
            return list(entries)
        # Ids keep every byte, so that no two of them become one.
        return [
            entry.hex() if self._is_compared and isinstance(entry, bytes) else _as_text(entry)
            for entry in entries
        ]

    def _error(self, entry_type: type, row: int) -> ArgumentError:
        where = f"Row {row} of column {self._name!r}"
        if not self._is_compared:
            expected = "an integer" if self._kind == "integer" else "a number"
            return ArgumentError(
                f"{where} does not hold {expected}, as its table declares. "
                "Correct it, or empty it and say {missing}.",
                missing="drop",
            )
        expected = " or ".join(f"all {_ENTRY_TYPES[allowed][1]}" for allowed in self._allowed)
        singular, _, instead = _ENTRY_TYPES[entry_type]
        view = escape_text(instead.format(quote_name(self._name)))
        return ArgumentError(
            f"{where} is {singular}, and entries must be {expected}. Correct it, or make a view "
            f"with {view}, and give that."
        )


def _affinity(declared: str) -> str:
    """Return the type of a column by the rules of SQLite; text for NUMERIC columns.

    https://www.sqlite.org/datatype3.html, section 3.1.
    """
    declared = declared.upper()
    if "INT" in declared:
        return "integer"
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT", "BLOB")):
        return "text"
    return "real" if any(word in declared for word in ("REAL", "FLOA", "DOUB")) else "text"


def _decode(content: bytes) -> str:
    r"""Decode UTF-8, with invalid bytes written as `\xff`."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _InvalidText(content.decode("utf-8", "backslashreplace"))


def _as_text(entry: object) -> str | None:
    """Return an entry as text; a float with enough digits to restore it exactly."""
    if isinstance(entry, bytes):
        return _decode(entry)
    return None if entry is None else str(entry)
