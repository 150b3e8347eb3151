"""Files and tables of databases, read by DuckDB in a stream."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final, TypeVar

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import discovery, frames
from dpnoise.statistics.engines.checking import check_persons
from dpnoise.statistics.engines.csv_files import Csv, check_complete, is_zstd
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files, expanded, listed, state_of
from dpnoise.statistics.engines.discovery import Holders
from dpnoise.statistics.engines.frames import MistakeError, asked_columns
from dpnoise.statistics.engines.postgres import PostgresTable
from dpnoise.statistics.engines.sources import (
    IN_ROWS,
    INEXACT_NUMBER,
    JsonLines,
    Opening,
    Parquet,
    Source,
    UnreadableError,
    partition_values,
)
from dpnoise.statistics.engines.sqlite import SqliteTable
from dpnoise.statistics.plan import Plan, Tally, Unit

# Nothing of the data is written to a disk, nothing is fetched from a network, and how far a query
# is can be asked.
_SETTINGS: Final = (
    "SET temp_directory = ''",
    "SET autoinstall_known_extensions = false",
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
)
_TICK: Final = 0.1  # Seconds between two looks at how far a query is.
_HUNDRED: Final = 100
_LINE: Final = re.compile(r"Line: (\d+)")
_IN_ROWS: Final = re.compile(rf"{IN_ROWS} (\d+)")
_RAGGED: Final = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")
# What DuckDB says, in small letters, and what is wrong then.
_COMPLAINTS: Final = {
    "unterminated quote": "has a quote that is not closed, or text after one",
    "unicode": "is not text in the declared encoding",
    "utf-8": "is not text in the declared encoding",
    "encoded": "is not text in the declared encoding",
    INEXACT_NUMBER: "has an id or a group that is neither text nor a whole number below 2^53",
    "expected object": "has a line that is no object of JSON",
    "maximum line size": "is longer than 16 MiB, or has a quote that is not closed",
    "invalid state": "has line ends of several kinds, or quotes that are not those declared",
}

_SOURCES: Final[dict[str, Callable[[Opening], Source]]] = {
    "csv": Csv,
    "json": JsonLines,
    "parquet": Parquet,
    "sqlite": SqliteTable,
    "postgres": PostgresTable,
}

Progress = Callable[[float], object]
_T = TypeVar("_T")


def tally_all(files: Files, plans: Sequence[Plan], progress: Progress | None = None) -> list[Tally]:
    """Answer plans from files, in one pass; `progress` is told how far it is, from 0 to 1.

    Plans about persons pass over the rows more often.
    """
    again = any(plan.unit is not None for plan in plans)
    return _asked(files, lambda source: _answers(source, plans), progress, again=again)


def holders(
    files: Files, column: str, unit: Unit | None, progress: Progress | None = None
) -> Holders:
    """Return the groups of a column of files with how many persons each has."""

    def counted(source: Source) -> Holders:
        held = source.columns([], {}, () if unit is None else unit.columns, [column])
        return discovery.counted(held.relation, column, unit, file=held)

    return _asked(files, counted, progress, again=True)


def _asked(
    files: Files, ask: Callable[[Source], _T], progress: Progress | None, *, again: bool
) -> _T:
    """Ask open files, and once more, read in order, where DuckDB cannot read them in parallel.

    `again` says that rows are read more than once: what comes from a pipe is then kept.
    """
    is_piped = files.is_standard_input

    def answer(*, in_order: bool) -> _T:
        with _opened(files, in_order=in_order, kept=again and (in_order or is_piped)) as source:
            found = _watched(lambda: ask(source), source, progress)
            if fault := source.fault():
                raise ArgumentError(fault)
            return found

    try:
        return answer(in_order=False)
    except UnreadableError:
        if kind_of(files) != "csv" or is_piped:
            raise
    return answer(in_order=True)


def _answers(source: Source, plans: Sequence[Plan]) -> list[Tally]:
    numeric = list(dict.fromkeys(name for plan in plans for name in asked_columns(plan)))
    groups = {one.column: one.keys for plan in plans for one in plan.by}
    ids = [name for plan in plans if plan.unit is not None for name in plan.unit.columns]
    for name in ids:
        check_persons([name], list(groups), numeric)
    held = source.columns(numeric, groups, ids)
    try:
        return frames.answer_all(held.relation, plans, held)
    except MistakeError as error:
        raise _located(error, source) from None


def _located(error: MistakeError, source: Source) -> MistakeError:
    """Return the error with the first row that it is about, if rows can be read again."""
    groups = {grouping.column: grouping.keys for grouping in error.plan.by}
    for path in source.paths if source.is_repeatable else ():
        held = source.columns(asked_columns(error.plan), groups, numbered=path)
        row = frames.first_wrong_row(error, held)
        if row is not None:
            of_file = f" of {path}" if len(source.paths) > 1 else ""
            header = " (the header not counted)" if source.has_header else ""
            place = f"Row {row}{of_file} of column {error.column!r}{header}"
            return MistakeError(error.plan, error.column, is_missing=error.is_missing, place=place)
    return error


def described_columns(files: Files) -> str:
    """Return what an error says about the columns; it shows no line of CSV."""
    with _opened(files) as source:
        return source.described_columns


def kind_of(files: Files) -> str:
    """Return the one format of all files."""
    if not files.names:
        raise ArgumentError("Give at least one file.")
    formats = {files.format_of(name) for name in files.names}
    if len(formats) > 1:
        raise ArgumentError(f"All files must have one format, got {' and '.join(sorted(formats))}.")
    kind = formats.pop()
    if files.table is not None and kind not in {"sqlite", "postgres"}:
        raise ArgumentError(f"A table is one of a database, and {listed(files.names)} is none.")
    if files.hive and kind in {"sqlite", "postgres"}:
        raise ArgumentError(
            "hive is about folders of files, and a database has none. Leave it out."
        )
    return kind


def check_there(files: Files) -> list[Path]:
    """Return the files that there are, or say which there are not; a database elsewhere is none."""
    _start(import_extra("duckdb", "engines"))
    if kind_of(files) == "postgres":
        return []
    paths = [path for name in files.names for path in expanded(name)]
    if STANDARD_INPUT in paths and len(paths) > 1:
        raise ArgumentError("The standard input is read by itself. Leave out the other files.")
    if len(paths) > 1:  # Each row of a file that is given twice, under any name, would count twice.
        different = {(state.st_dev, state.st_ino) for state in map(os.stat, paths)}
        if len(different) < len(paths):
            raise ArgumentError(
                f"{len(paths):,} files are given, and {len(paths) - len(different):,} of them more "
                "than once, by several patterns, names or links. Give each file once."
            )
    return [Path(path) for path in paths]


@cache
def _start(duckdb: ModuleType) -> None:
    """Start DuckDB once, so that no signal comes into the middle of importing it later."""
    duckdb.connect(":memory:").close()


@contextmanager
def _opened(files: Files, *, in_order: bool = False, kept: bool = False) -> Iterator[Source]:
    """Open files for reading, and see to it that they stay the same until all is read."""
    duckdb = import_extra("duckdb", "engines")
    kind = kind_of(files)
    paths = list(map(str, check_there(files))) or files.names
    before = [state_of(path) for path in paths] if kind != "postgres" else []
    shown = listed(paths)
    with ExitStack() as stack:
        places = _as_text(paths, stack) if kind in {"csv", "json", "parquet"} else paths
        connection = duckdb.connect(":memory:")
        try:
            for setting in _SETTINGS:
                connection.execute(setting)
            for path in filter(is_zstd, places):
                check_complete(path)
            values = partition_values(files.hive, paths) if files.hive else []
            partitions = dict(zip(places, values, strict=False))
            yield _SOURCES[kind](
                Opening(connection, files, places, shown, stack, in_order, kept, partitions)
            )
            if before and [state_of(path) for path in paths] != before:
                raise ArgumentError(f"{shown} changed while it was read. Read it again.")
        except duckdb.OutOfMemoryException:
            raise ArgumentError(f"There is not enough memory to read {shown}.") from None
        except duckdb.Error as error:
            words = _what_is_wrong(str(error), list(files.hive))
            raise UnreadableError(f"{shown} cannot be read: {words}.") from None
        finally:
            connection.close()


def _as_text(paths: list[str], stack: ExitStack) -> list[str]:
    """Return names that are UTF-8, as DuckDB wants them: links, if files have others."""
    if all(
        path.isascii() or path == os.fsencode(path).decode("utf-8", "replace") for path in paths
    ):
        return paths
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="dpnoise-")))
    links = []
    for place, path in enumerate(paths):
        named = Path(path).name.encode("utf-8", "replace").decode()
        links.append(folder / f"{place}-{named}")
        links[-1].symlink_to(Path(path).absolute())
    return list(map(str, links))


def _what_is_wrong(words: str, hive: Sequence[str]) -> str:
    """Say what DuckDB found, but for the data that it quotes."""
    if (in_rows := _IN_ROWS.search(words)) and int(in_rows[1]) < len(hive):
        name = hive[int(in_rows[1])]
        return f"a row has a column {name!r}, which hive declares. Leave it out of hive"
    line = _LINE.search(words)
    where = f"line {line[1]} " if line else "it "
    if ragged := _RAGGED.search(words):
        return f"{where}has {ragged[2]} entries where the header has {ragged[1]}"
    for sign, what in _COMPLAINTS.items():
        if sign in words.lower():
            return where + what
    return f"{where}is damaged, or not what the request says"


def _watched(work: Callable[[], _T], source: Source, progress: Progress | None) -> _T:
    """Work in another thread, and tell how far it is, so that a signal can end it at any time."""
    found: list[_T] = []
    failed: list[BaseException] = []
    # To join a thread is not safe where a signal may raise, nor is an event, whose lock may stay
    # taken then. This one only wakes who waits.
    bell = threading.Lock()
    bell.acquire()
    furthest = 0.0  # DuckDB begins anew with each query, and tells -1 between two.

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed.append(error)
        finally:
            bell.release()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not (found or failed):
            if not bell.acquire(timeout=_TICK) and progress is not None:
                furthest = max(furthest, source.connection.query_progress() / _HUNDRED)
                progress(furthest)
    except BaseException:
        while not (found or failed):  # Again: what is to be ended may not have begun yet.
            source.connection.interrupt()
            source.stop()
            bell.acquire(timeout=_TICK)
        raise
    if failed:
        raise failed.pop()
    if progress is not None:
        progress(1.0)
    return found.pop()
