"""Tables of SQLite, read in a stream by Python's own library: DuckDB would need an extension.

SQLite lets every row hold what it likes; a column counts as what its table declares. One declared
INTEGER or REAL holds such numbers, whatever else is there is a mistake; all others are text.

Ids that SQLite calls equal are one person. So a column of ids must compare text by its bytes, and
hold entries of one type: SQLite calls 7 and 7.0 equal, but not 7 and '7'.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Final
from urllib.parse import quote

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import shown
from dpnoise.statistics.engines.runners import ArrowObject
from dpnoise.statistics.engines.sources import (
    Database,
    Stream,
    quoted,
    spelling_error,
)

_ROWS: Final = 2**14
_UNKNOWN_COLLATION: Final = "no such collation"
# Signs in an error of SQLite, with what our error says.
_COMPLAINTS: Final = {
    "locked": "it is locked. Close the program that writes to it, or copy it",
    _UNKNOWN_COLLATION: (
        "it has a collation that another program defines. Copy the table without it"
    ),
}
_PATIENCE: Final = 1.0  # Seconds, for another program to finish writing.
# SQLite's collations besides BINARY. Each has two texts that only it calls equal, and SQL that
# writes equal texts alike.
_LOOSE_COLLATIONS: Final = {"NOCASE": ("a", "A", "lower({})"), "RTRIM": ("a", "a ", "rtrim({})")}


class _InvalidText(str):
    """Text whose bytes are not UTF-8, with escapes in their place."""

    __slots__ = ()


@dataclass(frozen=True)
class _EntryType:
    """What an error calls one entry of a type and many, and SQL to write in a view instead."""

    one: str
    many: str
    instead: str


_ENTRY_TYPES: Final[dict[type, _EntryType]] = {
    str: _EntryType("text", "text", "CAST({} AS TEXT)"),
    int: _EntryType("an integer", "integers", "CAST({} AS TEXT)"),
    float: _EntryType("a real number", "real numbers", "CAST({} AS INTEGER)"),
    bytes: _EntryType("a blob", "blobs", "hex({})"),
    _InvalidText: _EntryType("text that is not UTF-8", "text", "hex({})"),
}
_DECLARED: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "real": (float,),
    "text": tuple(_ENTRY_TYPES),
}
_ID_TYPES: Final[tuple[type, ...]] = (str, int, bytes)
# Without blobs, which are read as text where the groups are then declared.
_DISCOVERED_TYPES: Final[tuple[type, ...]] = (str, int)


class SqliteTable(Database):
    """A table or view of SQLite."""

    def connect(self) -> tuple[list[str], list[str]]:
        """Read the declared type of each column."""
        listing = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        columns = "SELECT name, type FROM pragma_table_info(?)"
        with self._opened() as database:
            found = database.execute(columns, (self.table_name,))
            self._kinds = {name: _affinity(declared) for name, declared in found}
            return list(self._kinds), [name for (name,) in database.execute(listing)]

    def check_comparable(self, name: str) -> None:
        """Raise if SQLite calls texts of a column equal whose bytes differ.

        No row is read. Of all parts of a UNION the leftmost decides how texts are compared, even
        without rows: https://www.sqlite.org/lang_select.html, section 3.
        """
        if self._kinds[name] != "text":
            return
        column = f"SELECT {quoted(name)} FROM {quoted(self.table_name)} WHERE 0"
        distinct = f"SELECT count(*) FROM ({column} UNION SELECT ? UNION SELECT ?)"
        for collation, (text, equal_text, instead) in _LOOSE_COLLATIONS.items():
            with self._opened() as database:
                try:
                    (number,) = database.execute(distinct, (text, equal_text)).fetchone()
                except sqlite3.Error as error:
                    if _UNKNOWN_COLLATION not in str(error):
                        raise
                    foreign = "has a collation that another program defines"
                    raise spelling_error(name, foreign, f"lower({quoted(name)})") from None
            if number == 1:
                fact = f"has the collation {collation}"
                raise spelling_error(name, fact, instead.format(quoted(name)))

    def stream(self, wanted: Sequence[str]) -> Stream:
        """Return some columns, to be read as often as needed."""
        pa = import_extra("pyarrow", "files")
        types = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string()}
        kinds = {name: types[self._kinds[name]] for name in wanted}
        schema = pa.schema(kinds or {"nothing": pa.int64()})
        return Stream(schema, lambda: self._batches(wanted, schema))

    def _batches(self, wanted: Sequence[str], schema: ArrowObject) -> Iterator[ArrowObject]:
        """Yield the rows. An error would reach DuckDB, which shows it: so it ends the stream."""
        arrow = import_extra("pyarrow", "files")
        comparable = dict.fromkeys(self.discovered, _DISCOVERED_TYPES)
        comparable |= dict.fromkeys(self.ids, _ID_TYPES)
        columns = [_Column(name, self._kinds[name], comparable.get(name)) for name in wanted]
        columns = columns or [_Column("nothing", "integer", None)]
        chosen, first = ", ".join(map(quoted, wanted)) or "1", 1
        try:
            with self._opened() as database:
                rows = database.execute(f"SELECT {chosen} FROM {quoted(self.table_name)}")
                while part := rows.fetchmany(_ROWS):
                    pairs = zip(columns, zip(*part, strict=True), strict=True)
                    held = [column.converted(entries, first) for column, entries in pairs]
                    arrays = [arrow.array(*one) for one in zip(held, schema.types, strict=True)]
                    yield arrow.RecordBatch.from_arrays(arrays, schema=schema)
                    first += len(part)
        except ArgumentError as error:
            self.stream_fault = str(error)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database. Errors are raised without the data that SQLite quotes."""
        address = quote(bytes(Path(self.address).absolute()))
        try:
            # DuckDB reads from another thread.
            with closing(
                sqlite3.connect(
                    f"file:{address}?mode=ro", uri=True, check_same_thread=False, timeout=_PATIENCE
                )
            ) as database:
                database.text_factory = _decoded
                yield database
        except sqlite3.Error as error:
            words = (what for sign, what in _COMPLAINTS.items() if sign in str(error))
            what = next(words, "it is no database of SQLite, or damaged")
            raise ArgumentError(f"{self.address} cannot be read: {what}.") from None


class _Column:
    """A column during one scan: checks its entries, and writes them as Arrow holds them.

    `comparable` has the types of ids, or of groups to discover: all entries have one of these.
    """

    def __init__(self, name: str, kind: str, comparable: Sequence[type] | None) -> None:
        self._name, self._kind, self._is_compared = name, kind, comparable is not None
        self._allowed = comparable if comparable and kind == "text" else _DECLARED[kind]
        self._types = {*self._allowed, NoneType}

    def converted(self, entries: Sequence[object], first_row: int) -> list[object]:
        """Return entries as Arrow takes them; raise if one is of a type that may not be here."""
        present = next((entry for entry in entries if entry is not None), None)
        if self._is_compared and present is not None:
            self._types &= {type(present), NoneType}
        if not set(map(type, entries)) <= self._types:
            wrong = (place for place, entry in enumerate(entries) if type(entry) not in self._types)
            place = next(wrong)
            raise self._error(type(entries[place]), first_row + place)
        if self._kind != "text":
            return list(entries)
        # In a column of ids no byte is lost: else two ids could become one.
        return [
            entry.hex() if self._is_compared and isinstance(entry, bytes) else _text(entry)
            for entry in entries
        ]

    def _error(self, found: type, row: int) -> ArgumentError:
        where = f"Row {row} of column {self._name!r}"
        if not self._is_compared:
            what = "an integer" if self._kind == "integer" else "a number"
            return ArgumentError(
                f"{where} holds what is not {what}, as its table declares. "
                'Correct it, or empty it and say missing="drop".'
            )
        expected = " or ".join(f"all {_ENTRY_TYPES[allowed].many}" for allowed in self._allowed)
        instead = shown(_ENTRY_TYPES[found].instead.format(quoted(self._name)))
        return ArgumentError(
            f"{where} is {_ENTRY_TYPES[found].one}, and entries must be {expected}. Correct it, or "
            f"make a view with {instead}, and give that."
        )


def _affinity(declared: str) -> str:
    """Return what a column holds by the rules of SQLite; numbers it would store either way: text.

    https://www.sqlite.org/datatype3.html, section 3.1.
    """
    declared = declared.upper()
    if "INT" in declared:
        return "integer"
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT", "BLOB")):
        return "text"
    return "real" if any(word in declared for word in ("REAL", "FLOA", "DOUB")) else "text"


def _decoded(held: bytes) -> str:
    r"""Return bytes as text, and those that are none as `\xff`."""
    try:
        return held.decode("utf-8")
    except UnicodeDecodeError:
        return _InvalidText(held.decode("utf-8", "backslashreplace"))


def _text(entry: object) -> str | None:
    """Return an entry as text; a float with all the digits that it takes to be the same again."""
    if isinstance(entry, bytes):
        return _decoded(entry)
    return None if entry is None else str(entry)
