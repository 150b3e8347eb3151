"""Tables of SQLite, read in a stream by Python's own library: DuckDB would need an extension.

SQLite lets every row hold what it likes; a column counts as what its table declares. One declared
INTEGER or REAL holds such numbers, whatever else is there is a mistake; all others are text.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import NoneType
from typing import Any, Final
from urllib.parse import quote

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.showing import shortened
from dpnoise.statistics.engines.streams import Stream
from dpnoise.statistics.engines.texts import quoted

_ROWS: Final = 2**14
_LONGEST_LIST: Final = 500  # Characters of the names of tables in an error.
_LOCKED: Final = "locked"
_PATIENCE: Final = 1.0  # Seconds, for another program to finish writing.


class Table:
    """A table or view of a database. What goes wrong while it streams is kept in `fault`."""

    def __init__(self, path: str, table: str) -> None:
        self.fault: str | None = None
        self._path, self._table = path, table
        try:
            with closing(self._opened()) as database:
                found = database.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
                self._kinds = {name: _affinity(declared) for name, declared in found}
                listing = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                tables = [name for (name,) in database.execute(listing)]
        except sqlite3.Error as error:
            raise ArgumentError(f"{path} cannot be read: {_what_is_wrong(error)}.") from None
        if not self._kinds:
            there = shortened(", ".join(tables), _LONGEST_LIST)
            raise ArgumentError(f"{path} has no table {table!r}. It has: {there}.")

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._kinds)

    def stream(self, wanted: Sequence[str]) -> Stream:
        """Return some columns, which are called by their places, to be read as often as needed."""
        return Stream(lambda: self._reader(wanted))

    def _reader(self, wanted: Sequence[str]) -> Any:
        pa = import_extra("pyarrow", "files")
        types = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string()}
        kinds = {f"c{self.names.index(name)}": types[self._kinds[name]] for name in wanted}
        schema = pa.schema(kinds or {"nothing": pa.int64()})
        return pa.RecordBatchReader.from_batches(schema, self._batches(wanted, schema))

    def _batches(self, wanted: Sequence[str], schema: Any) -> Iterator[Any]:
        """Yield the rows. An error would reach DuckDB, which shows it: so it ends the stream."""
        pa = import_extra("pyarrow", "files")
        first = 1
        columns = ", ".join(map(quoted, wanted)) or "1"
        try:
            with closing(self._opened()) as database:
                rows = database.execute(f"SELECT {columns} FROM {quoted(self._table)}")
                while part := rows.fetchmany(_ROWS):
                    arrays: list[Any] = []
                    for entries, field in zip(zip(*part, strict=True), schema, strict=True):
                        bad = _first_bad(entries, field.type)
                        if bad is not None:
                            self.fault = _mistake(wanted[len(arrays)], field.type, first + bad)
                            return
                        held = map(_text, entries) if field.type == pa.string() else entries
                        arrays.append(pa.array(list(held), field.type))
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                    first += len(part)
        except sqlite3.Error as error:
            self.fault = f"{self._path} cannot be read: {_what_is_wrong(error)}."

    def _opened(self) -> sqlite3.Connection:
        address = quote(bytes(Path(self._path).absolute()))
        # DuckDB reads from a thread of its own.
        opened = sqlite3.connect(
            f"file:{address}?mode=ro", uri=True, check_same_thread=False, timeout=_PATIENCE
        )
        opened.text_factory = _decoded
        return opened


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
    r"""Return bytes as text, and those that are none as `\xff`: two ids stay two."""
    return held.decode("utf-8", "backslashreplace")


def _text(entry: Any) -> str | None:
    """Return an entry as text; a float with all the digits that it takes to be the same again."""
    if isinstance(entry, bytes):
        return _decoded(entry)
    return None if entry is None else str(entry)


def _first_bad(entries: Sequence[Any], held: Any) -> int | None:
    """Return the place of the first entry that is not of the declared type, if there is one."""
    types = import_extra("pyarrow", "files").types
    if types.is_string(held):
        return None
    taken = {int, NoneType} if types.is_integer(held) else {float, NoneType}
    if set(map(type, entries)) <= taken:
        return None
    return next(place for place, entry in enumerate(entries) if type(entry) not in taken)


def _mistake(column: str, held: Any, row: int) -> str:
    integers = import_extra("pyarrow", "files").types.is_integer(held)
    what = "an integer" if integers else "a number"
    return (
        f"Row {row} of column {column!r} holds what is not {what}, as its table declares. "
        'Correct it, or empty it and say missing="drop".'
    )


def _what_is_wrong(error: sqlite3.Error) -> str:
    """Say what SQLite found, but for the data that it quotes."""
    if _LOCKED in str(error):
        return "it is locked. Close the program that writes to it, or copy it"
    return "it is no database of SQLite, or damaged"
