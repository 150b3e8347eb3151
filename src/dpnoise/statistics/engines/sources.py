"""What DuckDB selects from: a source for each format, with every column declared.

Of CSV and JSON every entry is text, and becomes a number only where one is asked for. Names, paths
and texts that a request or a file brings are quoted in `texts`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from dpnoise.core.errors import ArgumentError
from dpnoise.core.safe_text import shortened, shown
from dpnoise.statistics.engines import postgres, sqlite, texts
from dpnoise.statistics.engines.compression import check_complete, is_zstd
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.frames import FileColumns
from dpnoise.statistics.engines.headers import Content, Header, open_content, read_header
from dpnoise.statistics.engines.pumping import COMMENT, Pump, first_lines, last_line
from dpnoise.statistics.engines.texts import literal, quoted

_LONGEST_LINE: Final = 2**24
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.
# Files have the columns that are in them, whatever their folders are called.
IN_ROWS: Final = "declared by hive and in a row:"  # How an error of DuckDB says that.
_AS_THEY_ARE: Final = "hive_partitioning=false"
# The error that DuckDB raises about an id in JSON.
INEXACT_NUMBER: Final = "an id or a group that is not exact"


class UnreadableError(ArgumentError):
    """DuckDB cannot read a file as it tried to."""


@dataclass(frozen=True)
class Columns:
    """Columns of a source: text as numbers where they are asked for, groups as keys match them."""

    relation: Any
    file: FileColumns
    kinds: dict[str, str]  # DuckDB's types, before.
    row: str | None = None  # The column that numbers rows, where that is asked for.


@dataclass(frozen=True)
class Source:
    """An open source: its connection, what to select from, and the names of its columns."""

    connection: Any
    shown: str  # What an error calls it.
    names: list[str] | None  # None if only the rows know.
    table: Callable[[list[str], list[str]], str]  # Of which columns, and of which of the paths.
    inside: Callable[[str], str]  # What the table calls a column, as SQL.
    paths: list[str]
    in_order: bool = True  # Whether the rows can be read again, in the same order.
    has_header: bool = False  # If so, names are whatever the first line of a file holds.
    decimal: str = "."
    fault: Callable[[], str | None] = lambda: None  # What went wrong outside of DuckDB.
    kept: bool = False  # Whether rows are held in memory, because they can be read only once.
    stop: Callable[[], None] = lambda: None  # End what it waits for.
    # Says which columns are ids and which are groups to discover, before `table` is called. Raises
    # if the source may call two entries of one equal that are written differently.
    declare_ids: Callable[[Sequence[str], Sequence[str]], None] = lambda _ids, _discovered: None

    def columns(
        self,
        numeric: Sequence[str],
        groups: Mapping[str, Sequence[Any]],
        ids: Sequence[str] = (),
        others: Sequence[str] = (),
        numbered: str | None = None,
    ) -> Columns:
        """Return the columns of all paths, or of one with its rows numbered from 1.

        `others` are taken as they are.
        """
        wanted = list(dict.fromkeys([*numeric, *groups, *ids, *others]))
        self._check(wanted)
        self.declare_ids(ids, others)
        table = self.table(wanted, self.paths if numbered is None else [numbered])
        chosen = [f"{self.inside(name)} AS {quoted(name)}" for name in wanted]
        free = _free_names([*(self.names or []), *wanted], 1 + len(numeric))
        row = None if numbered is None else free.pop()
        rows = [] if row is None else [f"row_number() OVER () AS {quoted(row)}"]
        raw = self.connection.sql(f"SELECT {', '.join([*chosen, *rows]) or '1'} FROM {table}")
        kinds = dict(zip(raw.columns, map(str, raw.types), strict=True))
        wrong = [name for name in numeric if kinds[name] == "VARCHAR"]
        parts = {name: quoted(name) for name in raw.columns}
        for name in groups.keys() - set(numeric):
            parts[name] = texts.group(quoted(name), kinds[name], groups[name], self.decimal)
        # A column of nulls alone has a type of its own.
        parts |= {
            name: f"CAST({quoted(name)} AS DOUBLE)" for name in numeric if kinds[name] == '"NULL"'
        }
        parts |= {name: texts.number(quoted(name), self.decimal) for name in wrong}
        told = dict(zip(wrong, free, strict=False))
        parts |= {told[name]: texts.is_wrong(quoted(name), self.decimal) for name in wrong}
        made = ", ".join(f"{part} AS {quoted(name)}" for name, part in parts.items())
        relation = raw.project(made)
        if self.kept:
            relation = self.connection.from_arrow(relation.to_arrow_table())
        parsed = {
            name for name in groups if name in told or texts.is_parsed(kinds[name], groups[name])
        }
        return Columns(relation, FileColumns(told, parsed), kinds, row)

    def _check(self, wanted: list[str]) -> None:
        """Raise unless each column is there once, also to DuckDB, which knows no capitals."""
        same: dict[str, str] = {}
        for name in wanted:
            other = same.setdefault(name.casefold(), name)
            if other != name:
                raise ArgumentError(
                    f"Columns {other!r} and {name!r} differ by capitals alone. Rename one."
                )
            if self.names is not None and self.names.count(name) != 1:
                raise self._none_or_several(name, self.names)

    def _none_or_several(self, name: str, names: list[str]) -> ArgumentError:
        if name in names:
            return ArgumentError(
                f"{self.shown} has more than one column {name!r}. Rename all but one."
            )
        return ArgumentError(f"{self.shown} has no column {name!r}. {self.described_columns}")

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
        return f"It has: {_listed(self.names)}."


def _listed(names: Sequence[str]) -> str:
    """Return the names of columns as an error lists them."""
    return shortened(", ".join(map(shown, names)), _LONGEST_LIST)


def _free_names(taken: Iterable[str], number: int) -> list[str]:
    """Return names for helper columns, none of which is taken; DuckDB ignores case."""
    known = {name.casefold() for name in taken}
    candidates = (f"helper{place}" for place in range(number + len(known)))
    return [name for name in candidates if name not in known][:number]


def _as_paths(paths: Sequence[str]) -> str:
    """Return paths as a list of SQL, in which no letter makes them a pattern."""
    plain = (re.sub(r"([*?\[])", r"[\1]", path) for path in paths)
    return f"[{', '.join(map(literal, plain))}]"


def _place(names: list[str]) -> Callable[[str], str]:
    """Return a function that calls a column by its place: DuckDB may have renamed it."""
    return lambda name: f"c{names.index(name)}"


@dataclass(frozen=True)
class Opening:
    """What is to be opened, and what is closed when all is read."""

    connection: Any
    files: Files
    paths: list[str]
    shown: str
    stack: ExitStack
    patient: bool  # Whether to read CSV in order, because reading in parallel failed.
    partitions: Mapping[str, tuple[str, ...]]  # By path, the values that hive declares, as SQL.


class _Csv:
    """CSV, read in parallel, which notices if quoted line breaks mislead it, or through pipes."""

    def __init__(self, opening: Opening) -> None:
        self._opening, files = opening, opening.files
        self._is_piped = opening.patient or opening.paths == [STANDARD_INPUT]
        self._contents: dict[str, Content] = {}
        self._headers: dict[str, Header] = {}
        for path in opening.paths:
            with ExitStack() as only_header:  # There may be more files than can be open at once.
                self._headers[path] = self._opened(path, only_header)
        self.names = self._headers[opening.paths[0]].names
        for path, header in self._headers.items():
            if header.names != self.names:
                raise ArgumentError(
                    f"{path} has other columns than {opening.paths[0]}. Read it apart."
                )
        types = ", ".join(f"c{place}: 'VARCHAR'" for place in range(len(self.names)))
        quote = literal(files.quote)
        self._options = (
            f"auto_detect=false, columns={{{types}}}, strict_mode=true, {_AS_THEY_ARE}, "
            f"null_padding=false, allow_quoted_nulls=false, delim={literal(files.delimiter)}, "
            f"quote={quote}, escape={quote}"
        )
        if self._is_piped:
            in_order = f", parallel=false, max_line_size={_LONGEST_LINE}, comment='{COMMENT}'"
            self._options += in_order
        self._pumps: list[Pump] = []

    def _opened(self, path: str, stack: ExitStack) -> Header:
        """Open a file, up to the end of its header."""
        opening = self._opening
        content = open_content(opening.connection, opening.files, path, stack)
        self._contents[path] = content
        return read_header(content, opening.files, opening.shown)

    def table(self, _: list[str], chosen: list[str]) -> str:
        parts = [self._piped(path) for path in chosen] if self._is_piped else self._direct(chosen)
        # In a file of one column an empty line is no row; an entry that is missing has quotes.
        kept = " WHERE c0 IS NOT NULL" if len(self.names) == 1 else ""
        return f"({' UNION ALL '.join(f'SELECT * FROM {part}{kept}' for part in parts)})"

    def _direct(self, chosen: list[str]) -> list[str]:
        """Return what reads files in parallel, if DuckDB finds the headers that we have found."""
        encoding = self._opening.files.encoding
        by_skipped: dict[int, list[str]] = {}
        for path in chosen:
            header = self._headers[path]
            by_skipped.setdefault(header.blank_lines, []).append(path)
            as_row = self._read_csv([path], header.blank_lines, encoding, header=False)
            if not header.is_one_line or not self._is_header(as_row):
                raise UnreadableError(f"{self._opening.shown} cannot be read in parallel.")
        return [
            self._read_csv(paths, skipped, encoding, header=True)
            for skipped, paths in by_skipped.items()
        ]

    def _is_header(self, table: str) -> bool:
        """Tell whether DuckDB takes the names of the columns for the first row of a file."""
        rows = self._opening.connection.sql(f"SELECT * FROM {table} LIMIT 1").fetchall()
        return [[entry or "" for entry in row] for row in rows] == [self.names]

    def _read_csv(self, paths: list[str], skipped: int, encoding: str, *, header: bool) -> str:
        return (
            f"read_csv({_as_paths(paths)}, skip={skipped}, header={str(header).lower()}, "
            f"encoding={literal(encoding)}, {self._options})"
        )

    def _piped(self, path: str) -> str:
        """Return what reads a file through a pipe that has the rows and no header."""
        files, stack = self._opening.files, self._opening.stack
        if is_zstd(path):
            raise ArgumentError(
                f"{path} is compressed by zstd, and cannot be read in order, as it must be where "
                "quotes hold line breaks. Decompress it first."
            )
        if path != STANDARD_INPUT:  # A file may be read again.
            self._headers[path] = self._opened(path, stack)
        header, content = self._headers[path], self._contents[path]
        before = first_lines(header.line_end, header.lines)
        after = last_line(header.line_end, files.quote)
        pump = Pump(before, content.rest(), after, stack)
        self._pumps.append(pump)
        return self._read_csv([pump.path], header.lines, content.encoding, header=False)

    def fault(self) -> str | None:
        found = (pump.fault for pump in self._pumps if pump.fault is not None)
        return next((f"{self._opening.shown} {what}." for what in found), None)

    def stop(self) -> None:
        for pump in self._pumps:
            pump.stop()


def _csv(opening: Opening) -> Source:
    held = _Csv(opening)
    return Source(
        opening.connection,
        opening.shown,
        held.names,
        held.table,
        _place(held.names),
        opening.paths,
        in_order=opening.paths != [STANDARD_INPUT],
        has_header=True,
        decimal=opening.files.decimal,
        fault=held.fault,
        stop=held.stop,
    )


def _json(opening: Opening) -> Source:
    if STANDARD_INPUT in opening.paths:  # DuckDB would find no row in a pipe.
        raise ArgumentError("JSON lines are not read from a pipe. Write them to a file first.")

    exact: set[str] = set()  # The columns whose numbers must not have been rounded.

    def declare_ids(ids: Sequence[str], discovered: Sequence[str]) -> None:
        exact.update(ids, discovered)

    def table(wanted: list[str], chosen: list[str]) -> str:
        types = ", ".join(f"{literal(name)}: 'JSON'" for name in wanted or ["nothing"])
        options = f"columns={{{types}}}, auto_detect=false, records=true, {_AS_THEY_ARE}"
        columns = (
            f"{_json_text(quoted(name), exact=name in exact)} AS {quoted(name)}" for name in wanted
        )
        rows = f"read_ndjson({_as_paths(chosen)}, {options})"
        return f"(SELECT {', '.join(columns) or '1'} FROM {rows})"

    return Source(
        opening.connection,
        opening.shown,
        None,
        table,
        quoted,
        opening.paths,
        decimal=opening.files.decimal,
        declare_ids=declare_ids,
    )


def _json_text(name: str, *, exact: bool) -> str:
    """Return the SQL of the text of a JSON value: 7.0 and 7 are one number, and have one text.

    `exact` refuses numbers that a program may have rounded when it wrote them, lists and objects.
    """
    number, text = f"TRY_CAST({name} AS DOUBLE)", f"{name}->>'$'"
    is_whole = f"{number} = floor({number}) AND abs({number}) < {2**53}"
    other = f"error({literal(INEXACT_NUMBER)})" if exact else text
    return (
        f"CASE WHEN json_type({name}) = 'DOUBLE' AND {is_whole} "
        f"THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) "
        f"WHEN json_type({name}) IN ('DOUBLE', 'ARRAY', 'OBJECT') THEN {other} ELSE {text} END"
    )


def _parquet(opening: Opening) -> Source:
    files, paths = opening.files, opening.paths
    if STANDARD_INPUT in paths:
        raise ArgumentError("Parquet is not read from a pipe. Write it to a file first.")
    schemas = [_parquet_schema(opening.connection, path) for path in paths]
    for schema, path in zip(schemas, paths, strict=True):
        if schema != schemas[0]:
            raise ArgumentError(f"{path} has other columns than {paths[0]}. Read it apart.")
    names = [name for name, _ in schemas[0]]
    rounded = [name for path in paths for name in _rounded_columns(opening.connection, path)]

    def declare_ids(ids: Sequence[str], discovered: Sequence[str]) -> None:
        for name in [*ids, *discovered]:
            if name in rounded:
                raise ArgumentError(
                    f"Column {name!r} of {opening.shown} holds decimals of more than 38 digits, or "
                    "floats of 16 bits, which would be rounded. Write it as text or integers."
                )

    called = ", ".join(f"c{place}" for place in range(len(names)))
    return Source(
        opening.connection,
        opening.shown,
        names,
        lambda _, chosen: f"{_read_parquet(chosen)} AS t({called})",
        _place(names),
        paths,
        decimal=files.decimal,
        declare_ids=declare_ids,
    )


def _rounded_columns(connection: Any, path: str) -> list[str]:
    """Return the columns whose numbers DuckDB reads as floats, which may be too short for them."""
    rows = connection.sql(
        f"SELECT name FROM parquet_schema({_as_paths([path])}) WHERE precision > 38 "
        "OR logical_type LIKE 'Float16%'"
    ).fetchall()
    return [name for (name,) in rows]


def _read_parquet(paths: Sequence[str]) -> str:
    return f"read_parquet({_as_paths(paths)}, {_AS_THEY_ARE})"


def _parquet_schema(connection: Any, path: str) -> list[tuple[str, str]]:
    """Return types, and names as they are: DuckDB changes those that are the same to it."""
    leaves = connection.sql(
        f"SELECT name, coalesce(num_children, 0) FROM parquet_schema({_as_paths([path])})"
    ).fetchall()
    names, at = [], 1
    for _ in range(leaves[0][1]):
        names.append(leaves[at][0])
        inner = 1
        while inner:
            inner += leaves[at][1] - 1
            at += 1
    kinds = _described(connection, _read_parquet([path]))
    return list(zip(names, (kind for _, kind in kinds), strict=True))


def _described(connection: Any, table: str) -> list[tuple[str, str]]:
    return [row[:2] for row in connection.sql(f"DESCRIBE SELECT * FROM {table}").fetchall()]


def _one_table(files: Files, paths: list[str]) -> str:
    if len(paths) > 1 or files.table is None:
        raise ArgumentError('Expected one database, and its table: table="people".')
    return files.table


def _sqlite(opening: Opening) -> Source:
    held = sqlite.Table(opening.paths[0], _one_table(opening.files, opening.paths))
    return _streamed(opening, held)


def _postgres(opening: Opening) -> Source:
    table = _one_table(opening.files, opening.paths)
    held = postgres.Table(opening.paths[0], table, opening.stack)
    return replace(_streamed(opening, held), in_order=False, stop=held.stop)


def _streamed(opening: Opening, held: sqlite.Table | postgres.Table) -> Source:
    """Return a table of a database, which comes as Arrow."""

    def table(wanted: list[str], _: list[str]) -> str:
        opening.connection.register("streamed", held.stream(wanted))
        return "streamed"

    return Source(
        opening.connection,
        opening.shown,
        held.names,
        table,
        _place(held.names),
        opening.paths,
        decimal=opening.files.decimal,
        fault=lambda: held.fault,
        declare_ids=held.declare_ids,
    )


def open_source(kind: str, opening: Opening) -> Source:
    """Return an open source, with the partition columns that are declared."""
    for path in filter(is_zstd, opening.paths):
        check_complete(path)
    source = _SOURCES[kind](opening)
    return _partitioned(source, opening) if opening.files.hive else source


def _partitioned(source: Source, opening: Opening) -> Source:
    """Return a source with one more column for each that hive declares."""
    hive, names = list(opening.files.hive), source.names
    known = {} if names is None else {name.casefold(): name for name in names}
    for name in hive:
        if name.casefold() in known:
            raise ArgumentError(
                f"{opening.shown} has a column {name!r}, which hive declares as one of folders. "
                "Leave it out of hive."
            )

    def columns(wanted: list[str], values: tuple[str, ...]) -> str:
        if names is not None:
            first = len(names)
            made = (f"{value} AS c{first + place}" for place, value in enumerate(values))
            return f"*, {', '.join(made)}"
        # Whether a row of JSON has such a column is known when it is read.
        asked = [(place, quoted(name)) for place, name in enumerate(hive) if name in wanted]
        made = (
            f"CASE WHEN {name} IS NULL THEN {values[place]} "
            f"ELSE error({literal(f'{IN_ROWS} {place}')}) END AS {name}"
            for place, name in asked
        )
        return f"* REPLACE ({', '.join(made)})" if asked else "*"

    def table(wanted: list[str], chosen: list[str]) -> str:
        by_values: dict[tuple[str, ...], list[str]] = {}
        for path in chosen:
            by_values.setdefault(opening.partitions[path], []).append(path)
        parts = (
            f"SELECT {columns(wanted, values)} FROM {source.table(wanted, paths)}"
            for values, paths in by_values.items()
        )
        return f"({' UNION ALL '.join(parts)})"

    if names is None:
        return replace(source, table=table)
    return replace(source, names=[*names, *hive], table=table, inside=_place([*names, *hive]))


_SOURCES: Final[dict[str, Callable[[Opening], Source]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "sqlite": _sqlite,
    "postgres": _postgres,
}
