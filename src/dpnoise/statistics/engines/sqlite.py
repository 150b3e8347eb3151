"""Tables of SQLite, read in a stream by Python's own library: DuckDB would need an extension.

SQLite lets every row hold what it likes; a column counts as what its table declares. One declared
INTEGER or REAL holds such numbers, whatever else is there is a mistake; all others are text.

Ids that SQLite calls equal are one person. So a column of ids must compare text by its bytes, and
hold entries of one type: SQLite calls 7 and 7.0 equal, but not 7 and '7'.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Final
from urllib.parse import quote

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import shortened, shown
from dpnoise.statistics.engines.sources import (
    ArrowObject,
    Database,
    Stream,
    quoted,
)

_ROWS: Final = 2**14
_LONGEST_LIST: Final = 500  # Characters of the names of tables in an error.
_LOCKED: Final = "locked"
_UNKNOWN_COLLATION: Final = "no such collation"
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

    def column_names(self) -> list[str]:
        """Read the declared type of each column."""
        try:
            with closing(self._opened()) as database:
                found = database.execute(
                    "SELECT name, type FROM pragma_table_info(?)", (self.table_name,)
                )
                self._kinds = {name: _affinity(declared) for name, declared in found}
                listing = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                tables = [name for (name,) in database.execute(listing)]
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        if not self._kinds:
            there = shortened(", ".join(tables), _LONGEST_LIST)
            raise ArgumentError(
                f"{self.address} has no table {self.table_name!r}. It has: {there}."
            )
        return list(self._kinds)

    def check_comparable(self, name: str) -> None:
        """Raise if SQLite calls texts of a column equal whose bytes differ."""
        if self._kinds[name] != "text":
            return
        for collation, (text, equal_text, instead) in _LOOSE_COLLATIONS.items():
            try:
                are_equal = self._are_equal(name, text, equal_text)
            except sqlite3.Error as error:
                if _UNKNOWN_COLLATION not in str(error):
                    raise self._unreadable(error) from None
                foreign = "a collation that another program defines"
                raise _collation_error(name, foreign, "lower({})") from None
            if are_equal:
                raise _collation_error(name, f"the collation {collation}", instead)

    def _are_equal(self, name: str, *texts: str) -> bool:
        """Ask SQLite whether it calls two texts equal in a column, without reading a row.

        Of all parts of a UNION the leftmost decides how texts are compared, even without rows.
        https://www.sqlite.org/lang_select.html, section 3.
        """
        column = f"SELECT {quoted(name)} FROM {quoted(self.table_name)} WHERE 0"
        distinct = f"SELECT count(*) FROM ({column} UNION SELECT ? UNION SELECT ?)"
        with closing(self._opened()) as database:
            return bool(database.execute(distinct, texts).fetchone()[0] < len(texts))

    def stream(self, wanted: Sequence[str]) -> Stream:
        """Return some columns, to be read as often as needed."""
        pa = import_extra("pyarrow", "files")
        comparable = dict.fromkeys(self.discovered, _DISCOVERED_TYPES)
        comparable |= dict.fromkeys(self.ids, _ID_TYPES)
        types = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string()}
        kinds = {name: types[self._kinds[name]] for name in wanted}
        schema = pa.schema(kinds or {"nothing": pa.int64()})

        def reader() -> ArrowObject:
            columns = [_Column(one, self._kinds[one], comparable.get(one)) for one in wanted]
            return pa.RecordBatchReader.from_batches(schema, self._batches(columns, schema))

        return Stream(reader)

    def _batches(self, columns: "Sequence[_Column]", schema: ArrowObject) -> Iterator[ArrowObject]:
        """Yield the rows. An error would reach DuckDB, which shows it: so it ends the stream."""
        pa = import_extra("pyarrow", "files")
        first = 1
        chosen = ", ".join(quoted(column.name) for column in columns) or "1"
        readers = columns or [_Column("", "integer", None)]
        try:
            with closing(self._opened()) as database:
                rows = database.execute(f"SELECT {chosen} FROM {quoted(self.table_name)}")
                while part := rows.fetchmany(_ROWS):
                    arrays: list[ArrowObject] = []
                    entries_of = zip(*part, strict=True)
                    for entries, field, column in zip(entries_of, schema, readers, strict=True):
                        bad = column.first_bad(entries)
                        if bad is not None:
                            self._fault = column.error(entries[bad], first + bad)
                            return
                        arrays.append(pa.array(column.written(entries), field.type))
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                    first += len(part)
        except sqlite3.Error as error:
            self._fault = str(self._unreadable(error))

    def _opened(self) -> sqlite3.Connection:
        address = quote(bytes(Path(self.address).absolute()))
        # DuckDB reads from a thread of its own.
        opened = sqlite3.connect(
            f"file:{address}?mode=ro", uri=True, check_same_thread=False, timeout=_PATIENCE
        )
        opened.text_factory = _decoded
        return opened

    def _unreadable(self, error: sqlite3.Error) -> ArgumentError:
        return ArgumentError(f"{self.address} cannot be read: {_what_is_wrong(error)}.")


class _Column:
    """A column during one scan: checks its entries, and writes them as Arrow holds them.

    `comparable` has the types of ids, or of groups to discover: all entries have one of these.
    """

    def __init__(self, name: str, kind: str, comparable: Sequence[type] | None) -> None:
        self.name, self.kind = name, kind
        self._is_compared = comparable is not None
        self._allowed = comparable if comparable and kind == "text" else _DECLARED[kind]
        self._types = {*self._allowed, NoneType}

    def first_bad(self, entries: Sequence[object]) -> int | None:
        """Return the place of the first entry of a type that may not be here, if there is one."""
        present = next((entry for entry in entries if entry is not None), None)
        if self._is_compared and present is not None:
            self._types &= {type(present), NoneType}
        if set(map(type, entries)) <= self._types:
            return None
        return next(place for place, entry in enumerate(entries) if type(entry) not in self._types)

    def written(self, entries: Sequence[object]) -> list[object]:
        """Return entries as Arrow takes them."""
        if self.kind != "text":
            return list(entries)
        # In a column of ids no byte is lost: else two ids could become one.
        return [
            entry.hex() if self._is_compared and isinstance(entry, bytes) else _text(entry)
            for entry in entries
        ]

    def error(self, entry: object, row: int) -> str:
        """Say what is wrong with the type of an entry."""
        where = f"Row {row} of column {self.name!r}"
        if not self._is_compared:
            what = "an integer" if self.kind == "integer" else "a number"
            return (
                f"{where} holds what is not {what}, as its table declares. "
                'Correct it, or empty it and say missing="drop".'
            )
        found = _ENTRY_TYPES[type(entry)]
        *others, last = (f"all {_ENTRY_TYPES[allowed].many}" for allowed in self._allowed)
        expected = f"{', '.join(others)} or {last}" if others else last
        return (
            f"{where} is {found.one}, and entries must be {expected}. Correct it, or make a view "
            f"with {shown(found.instead.format(quoted(self.name)))}, and give that."
        )


def _collation_error(name: str, collation: str, instead: str) -> ArgumentError:
    return ArgumentError(
        f"Column {name!r} has {collation}: equal values may be written differently. "
        "Make a view with one spelling for each value, such as "
        f"{shown(instead.format(quoted(name)))}, and give that."
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


def _what_is_wrong(error: sqlite3.Error) -> str:
    """Say what SQLite found, but for the data that it quotes."""
    if _LOCKED in str(error):
        return "it is locked. Close the program that writes to it, or copy it"
    if _UNKNOWN_COLLATION in str(error):
        return "it has a collation that another program defines. Copy the table without it"
    return "it is no database of SQLite, or damaged"
