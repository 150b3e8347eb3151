"""Tables of PostgreSQL, read in a stream by ADBC's driver: DuckDB would need an extension.

All scans see one snapshot, whatever is written meanwhile. Integers, floats, booleans and dates are
what they are; everything else comes as text that may read as a number, decimals of any size too.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.showing import shortened, shown
from dpnoise.statistics.engines.streams import Stream
from dpnoise.statistics.engines.texts import literal, quoted

_AS_THEY_ARE: Final = {"smallint", "integer", "bigint", "real", "double precision", "boolean"}
_LONGEST: Final = 500  # Characters of the names of tables, or of the server's words, in an error.
_ONE_SNAPSHOT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_COLUMNS: Final = """
SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_TABLES: Final = """
SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace n ON relnamespace = n.oid
WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1
"""


class Table:
    """A table or view of a database. What goes wrong while it streams is kept in `fault`."""

    def __init__(self, address: str, table: str, stack: ExitStack) -> None:
        if re.search(r"://[^/@]*:[^/@]*@|password\s*=", address):
            raise ArgumentError(
                "Expected an address without a password. Put it in ~/.pgpass or PGPASSWORD."
            )
        self.fault: str | None = None
        self._address, self._open = address, list[Any]()
        schema, _, name = table.rpartition(".")
        self._table = f"{quoted(schema)}.{quoted(name)}" if schema else quoted(name)
        driver = import_extra("adbc_driver_postgresql.dbapi", "postgres")
        try:
            self._keeper = stack.enter_context(closing(self._connected()))
            self._snapshot = _rows(self._keeper, "SELECT pg_export_snapshot()")[0][0]
            self._kinds = dict(_rows(self._keeper, _COLUMNS.format(literal(self._table))))
            if not self._kinds:
                there = shortened(
                    ", ".join(name for (name,) in _rows(self._keeper, _TABLES)), _LONGEST
                )
                raise ArgumentError(f"{address} has no table {table!r}. It has: {there or 'none'}.")
            _rows(self._keeper, f"SELECT * FROM {self._table} LIMIT 0")  # May it be read?
        except driver.Error as error:
            words = shortened(shown(" ".join(str(error).split())), _LONGEST)
            raise ArgumentError(f"{address} cannot be read: {words}") from None

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._kinds)

    def stream(self, wanted: Sequence[str]) -> Stream:
        """Return some columns, which are called by their places, to be read as often as needed."""
        pa = import_extra("pyarrow", "files")
        parts = [f"{self._part(name)} AS c{self.names.index(name)}" for name in wanted]
        query = f"SELECT {', '.join(parts) or '1 AS nothing'} FROM {self._table}"
        with self._keeper.cursor() as cursor:
            schema = cursor.execute(f"{query} LIMIT 0").fetch_arrow_table().schema
        return Stream(lambda: pa.RecordBatchReader.from_batches(schema, self._batches(query)))

    def as_id(self, name: str) -> str:
        """Return a column of ids, as SQL of DuckDB: 7 and 7.0 are one number, and one person."""
        text = quoted(name)
        if self._kinds[name] != "numeric":
            return text
        shortest = f"rtrim(rtrim({text}, '0'), '.')"
        return f"CASE WHEN contains({text}, '.') THEN {shortest} ELSE {text} END"

    def stop(self) -> None:
        """End what the server is asked for."""
        for connection in list(self._open):
            connection.adbc_cancel()

    def _part(self, name: str) -> str:
        if self._kinds[name] in _AS_THEY_ARE:
            return quoted(name)
        if self._kinds[name] == "date":  # An infinite one is in no declared group.
            return f"CASE WHEN isfinite({quoted(name)}) THEN {quoted(name)} END"
        return f"CAST({quoted(name)} AS text)"

    def _batches(self, query: str) -> Iterator[Any]:
        """Yield the rows. An error would reach DuckDB, which shows it: so it ends the stream."""
        driver = import_extra("adbc_driver_postgresql.dbapi", "postgres")
        arrow = import_extra("pyarrow", "files")
        with closing(self._connected()) as connection, connection.cursor() as cursor:
            self._open.append(connection)
            try:
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(self._snapshot)}")
                cursor.execute(query)
                yield from cursor.fetch_record_batch()
            except (driver.Error, arrow.ArrowException, OSError):
                self.fault = f"{self._address} could not be read to its end."
            finally:
                self._open.remove(connection)

    def _connected(self) -> Any:
        driver = import_extra("adbc_driver_postgresql.dbapi", "postgres")
        connection = driver.connect(self._address)
        with connection.cursor() as cursor:
            cursor.execute(_ONE_SNAPSHOT)
        return connection


def _rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())
