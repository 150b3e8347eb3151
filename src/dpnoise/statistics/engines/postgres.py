"""Tables of PostgreSQL, read in a stream by ADBC's driver: DuckDB would need an extension.

All scans see one snapshot, even if other programs write. Integers, floats, booleans and dates keep
their types. All other columns come as text, decimals of any size too, and may be parsed as numbers.
Values that PostgreSQL treats as equal are one person. So ids must have a type in which equal values
can be written in one way.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import escape_text, shorten
from dpnoise.statistics.engines.runners import ArrowObject
from dpnoise.statistics.engines.sources import (
    Database,
    Stream,
    quote_name,
    quote_text,
    spelling_error,
)

Connection = Any  # A connection of ADBC's driver, which publishes no types.

_PLAIN_TYPES: Final = {"smallint", "integer", "bigint", "real", "double precision", "boolean"}
_MAX_ERROR_LENGTH: Final = 500  # The most characters of the server's message in an error.
_ONE_SNAPSHOT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# Each column with the type under all of its domains. Only deterministic collations distinguish all
# texts with different bytes. The default collation of a database is deterministic.
_COLUMNS: Final = """
WITH RECURSIVE resolved AS (
    SELECT attnum, attname, atttypid AS declared, atttypid AS base, attcollation FROM pg_attribute
    WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attnum, attname, declared, typbasetype, attcollation
    FROM resolved JOIN pg_type ON pg_type.oid = base WHERE typtype = 'd'
)
SELECT attname::text, format_type(declared, NULL), format_type(base, NULL),
    CASE WHEN typtype = 'e' THEN 'enum' ELSE typname::text END,
    typtype = 'e' OR typnamespace = 'pg_catalog'::regnamespace,
    CASE WHEN collisdeterministic THEN NULL ELSE collname::text END
FROM resolved JOIN pg_type ON pg_type.oid = base
LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE typtype <> 'd' ORDER BY attnum
"""
_TABLES: Final = """
SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace n ON relnamespace = n.oid
WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1
"""

_UNCHANGED: Final = "{}"
_AS_TEXT: Final = "CAST({} AS text)"
# The types of ids by their names in pg_type. The SQL writes two values in the same way exactly if
# they are equal, whatever the session's time zone and formats. NaN is a missing id.
_ID_SQL: Final = {
    **dict.fromkeys(["bool", "int2", "int4", "int8", "float4", "float8"], _UNCHANGED),
    **dict.fromkeys(["text", "varchar", "bpchar", "name", "enum", "uuid"], _AS_TEXT),
    **dict.fromkeys(["date", "time", "timestamp"], _AS_TEXT),
    **dict.fromkeys(["inet", "cidr", "macaddr", "macaddr8"], _AS_TEXT),
    "numeric": "CAST(trim_scale(NULLIF({}, 'NaN')) AS text)",
    "timestamptz": "CAST({} AT TIME ZONE 'UTC' AS text)",
    "bytea": "encode({}, 'hex')",
}
# SQL for a view, which errors propose for columns of other types.
_VIEW_SQL: Final = {
    "citext": "lower(CAST({} AS text))",
    "interval": "CAST(justify_interval({}) AS text)",
    "money": "CAST({} AS numeric)",
    "oid": "CAST({} AS bigint)",
}


@dataclass(frozen=True)
class _PostgresColumn:
    """The type of a column, and its collation if that is not deterministic."""

    declared: str  # As SQL writes it: a domain by its name.
    base: str  # The type under all domains.
    base_name: str  # Its name in pg_type; "enum" for every enum.
    is_built_in: bool  # Any enum counts as built in.
    loose_collation: str | None


class PostgresTable(Database):
    """A table or view of PostgreSQL. The order of its rows may differ between scans."""

    def connect(self) -> tuple[list[str], list[str]]:
        """Read the type of each column."""
        if re.search(r"://[^/@]*:[^/@]*@|password\s*=", self.address):
            raise ArgumentError(
                "The address must not contain a password. Put it in ~/.pgpass or PGPASSWORD."
            )
        self.is_repeatable, self._connections = False, list[Connection]()
        schema, _, name = self.table_name.rpartition(".")
        self._sql = f"{quote_name(schema)}.{quote_name(name)}" if schema else quote_name(name)
        self._driver = import_extra("adbc_driver_postgresql.dbapi", "postgres")
        try:
            self._snapshot_owner = self.stack.enter_context(closing(self._open_connection()))
            self._snapshot = _fetch_all(self._snapshot_owner, "SELECT pg_export_snapshot()")[0][0]
            columns = _fetch_all(self._snapshot_owner, _COLUMNS.format(quote_text(self._sql)))
            self._columns = {name: _PostgresColumn(*facts) for name, *facts in columns}
            if not columns:
                return [], [name for (name,) in _fetch_all(self._snapshot_owner, _TABLES)]
            # Fails without the right to read.
            _fetch_all(self._snapshot_owner, f"SELECT * FROM {self._sql} LIMIT 0")
        except self._driver.Error as error:
            message = shorten(escape_text(" ".join(str(error).split())), _MAX_ERROR_LENGTH)
            raise ArgumentError(f"{self.address} cannot be read: {message}") from None
        return list(self._columns), []

    def check_comparable(self, name: str) -> None:
        """Raise unless equal values of a column can be written in one way."""
        column, sql = self._columns[name], quote_name(name)
        if not column.is_built_in or column.base_name not in _ID_SQL:
            instead = _VIEW_SQL.get(column.base_name, _AS_TEXT).format(sql)
            domain = "" if column.declared == column.base else f" (domain {column.declared})"
            raise spelling_error(name, f"is {column.base}{domain}", instead)
        if column.loose_collation is not None:
            collation = f"has the collation {quote_name(column.loose_collation)}"
            raise spelling_error(name, collation, f'lower({sql}) COLLATE "C"')

    def holds_decimals(self, name: str) -> bool:
        """Return whether a column is numeric: such numbers come as text."""
        return self._columns[name].base_name == "numeric"

    def stream(self, names: Sequence[str]) -> Stream:
        """Return a stream of some columns, which can be read several times."""
        parts = [f"{self._column_sql(name)} AS {quote_name(name)}" for name in names]
        query = f"SELECT {', '.join(parts) or '1 AS nothing'} FROM {self._sql}"
        with self._snapshot_owner.cursor() as cursor:
            schema = cursor.execute(f"{query} LIMIT 0").fetch_arrow_table().schema
        return Stream(schema, lambda: self._batches(query))

    def stop(self) -> None:
        """Cancel the queries that run on the server."""
        for connection in list(self._connections):
            connection.adbc_cancel()

    def _column_sql(self, name: str) -> str:
        """Return the SQL that reads a column."""
        column, sql = self._columns[name], quote_name(name)
        if name in self.ids:
            return _ID_SQL[column.base_name].format(sql)
        if name in self.discovered and column.base_name == "numeric":  # NaN is not a group.
            return f"CAST(NULLIF({sql}, 'NaN') AS text)"
        if column.declared in _PLAIN_TYPES:
            return sql
        if column.declared == "date":  # Python has no other dates, so they are in no group.
            return f"CASE WHEN {sql} BETWEEN '0001-01-01' AND '9999-12-31' THEN {sql} END"
        return _AS_TEXT.format(sql)

    def _batches(self, query: str) -> Iterator[ArrowObject]:
        """Yield the rows. An error ends the stream, because DuckDB would show its message."""
        arrow = import_extra("pyarrow", "files")
        with closing(self._open_connection()) as connection, connection.cursor() as cursor:
            self._connections.append(connection)
            try:
                cursor.execute(f"SET TRANSACTION SNAPSHOT {quote_text(self._snapshot)}")
                cursor.execute(query)
                yield from cursor.fetch_record_batch()
            except (self._driver.Error, arrow.ArrowException, OSError):
                self.stream_fault = f"{self.address} could not be read to its end."
            finally:
                self._connections.remove(connection)

    def _open_connection(self) -> Connection:
        connection = self._driver.connect(self.address)
        with connection.cursor() as cursor:
            cursor.execute(_ONE_SNAPSHOT)
        return connection


def _fetch_all(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())
