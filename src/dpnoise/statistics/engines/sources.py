"""What DuckDB selects from: a source for each format, with every column declared.

Of CSV and JSON every entry is text, and becomes a number only where one is asked for. Names, paths
and texts that a request or a file brings are quoted in `texts`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from dpnoise.errors import ArgumentError
from dpnoise.showing import shortened, shown
from dpnoise.statistics.engines import postgres, sqlite, texts
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.headers import content_of, header_of
from dpnoise.statistics.engines.pumping import COMMENT, Pump, last_line
from dpnoise.statistics.engines.texts import literal, quoted

ROW: Final = "row:"  # The column that numbers rows, where that is asked for.
_LONGEST_LINE: Final = 2**24
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.


@dataclass(frozen=True)
class Columns:
    """Columns of a source: text as numbers where they are asked for, groups as keys match them."""

    relation: Any
    wrong: dict[str, str]  # The columns that tell where the text of others was no number.
    kinds: dict[str, str]  # DuckDB's types, before.


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
    has_header: bool = False
    decimal: str = "."
    fault: Callable[[], str | None] = lambda: None  # What went wrong outside of DuckDB.
    kept: bool = False  # Whether rows are held in memory, because they can be read only once.
    stop: Callable[[], None] = lambda: None  # End what it waits for.
    as_id: Callable[[str], str] = quoted  # A column of ids, as SQL: what is equal there is here.

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
        table = self.table(wanted, self.paths if numbered is None else [numbered])
        chosen = [f"{self.inside(name)} AS {quoted(name)}" for name in wanted]
        rows = [] if numbered is None else [f"row_number() OVER () AS {quoted(ROW)}"]
        raw = self.connection.sql(f"SELECT {', '.join([*chosen, *rows]) or '1'} FROM {table}")
        kinds = dict(zip(raw.columns, map(str, raw.types), strict=True))
        wrong = [name for name in numeric if kinds[name] == "VARCHAR"]
        parts = {name: quoted(name) for name in raw.columns}
        parts |= {name: self.as_id(name) for name in ids}
        for name in groups.keys() - set(numeric):
            parts[name] = texts.group(quoted(name), kinds[name], groups[name], self.decimal)
        # A column of nulls alone has a type of its own.
        parts |= {
            name: f"CAST({quoted(name)} AS DOUBLE)" for name in numeric if kinds[name] == '"NULL"'
        }
        parts |= {name: texts.number(quoted(name), self.decimal) for name in wrong}
        told = {name: f"wrong:{place}" for place, name in enumerate(wrong)}
        parts |= {told[name]: texts.is_wrong(quoted(name), self.decimal) for name in wrong}
        made = ", ".join(f"{part} AS {quoted(name)}" for name, part in parts.items())
        relation = raw.project(made)
        if self.kept:
            relation = self.connection.from_arrow(relation.to_arrow_table())
        return Columns(relation, told, kinds)

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
        semicolons = len(names) == 1 and ";" in names[0]
        hint = ' Is it separated by ";"? Say delimiter=";".' if semicolons else ""
        return ArgumentError(f"{self.shown} has no column {name!r}. It has: {there(names)}.{hint}")


def there(names: Sequence[str]) -> str:
    """Return the names of columns as an error lists them."""
    return shortened(", ".join(map(shown, names)), _LONGEST_LIST)


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


class _Csv:
    """CSV, read in parallel, which notices if quoted line breaks mislead it, or through pipes."""

    def __init__(self, opening: Opening) -> None:
        self._opening, files = opening, opening.files
        self._is_piped = opening.patient or opening.paths == [STANDARD_INPUT]
        self._headers = {
            path: header_of(opening.connection, files, path, opening.shown)
            for path in opening.paths
        }
        self.names = self._headers[opening.paths[0]].names
        for path, header in self._headers.items():
            if header.names != self.names:
                raise ArgumentError(
                    f"{path} has other columns than {opening.paths[0]}. Read it apart."
                )
        types = ", ".join(f"c{place}: 'VARCHAR'" for place in range(len(self.names)))
        quote = literal(files.quote)
        self._options = (
            f"auto_detect=false, header=true, columns={{{types}}}, strict_mode=true, "
            f"null_padding=false, allow_quoted_nulls=false, delim={literal(files.delimiter)}, "
            f"quote={quote}, escape={quote}, encoding={literal(files.encoding)}"
        )
        if self._is_piped:
            in_order = f", parallel=false, max_line_size={_LONGEST_LINE}, comment='{COMMENT}'"
            self._options += in_order
        self._pumps: list[Pump] = []

    def table(self, _: list[str], chosen: list[str]) -> str:
        by_skipped: dict[int, list[str]] = {}
        for path in chosen:
            places = by_skipped.setdefault(self._headers[path].blank_lines, [])
            places.append(self._pumped(path) if self._is_piped else path)
        # In a file of one column an empty line is no row; an entry that is missing has quotes.
        kept = " WHERE c0 IS NOT NULL" if len(self.names) == 1 else ""
        parts = (
            f"SELECT * FROM read_csv({_as_paths(places)}, skip={skipped}, {self._options}){kept}"
            for skipped, places in by_skipped.items()
        )
        return f"({' UNION ALL '.join(parts)})"

    def _pumped(self, path: str) -> str:
        """Return the pipe that a file is written into."""
        files, header = self._opening.files, self._headers[path]
        content = content_of(files, path, header, self._opening.stack)
        if content is None:
            raise ArgumentError(
                f"{path} cannot be read: where quotes hold line breaks, it must be UTF-8 and not "
                "compressed by zstd. Write it so."
            )
        ending = last_line(header.line_end, files.quote)
        self._pumps.append(Pump(header.taken, content, ending, self._opening.stack))
        return self._pumps[-1].path

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

    def table(wanted: list[str], chosen: list[str]) -> str:
        types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in wanted or ["nothing"])
        options = f"columns={{{types}}}, auto_detect=false, records=true"
        return f"read_ndjson({_as_paths(chosen)}, {options})"

    decimal = opening.files.decimal
    return Source(
        opening.connection, opening.shown, None, table, quoted, opening.paths, decimal=decimal
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
    called = ", ".join(f"c{place}" for place in range(len(names)))
    return Source(
        opening.connection,
        opening.shown,
        names,
        lambda _, chosen: f"read_parquet({_as_paths(chosen)}) AS t({called})",
        _place(names),
        paths,
        decimal=files.decimal,
    )


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
    kinds = _described(connection, f"read_parquet({_as_paths([path])})")
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
    return replace(_streamed(opening, held), in_order=False, stop=held.stop, as_id=held.as_id)


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
    )


SOURCES: Final[dict[str, Callable[[Opening], Source]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "sqlite": _sqlite,
    "postgres": _postgres,
}
