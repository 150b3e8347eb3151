"""Files and tables of databases, read by DuckDB in a stream."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import frames
from dpnoise.statistics.engines.description import Files, expanded, listed, state_of
from dpnoise.statistics.engines.sources import SOURCES, Source
from dpnoise.statistics.engines.tables import asked_columns
from dpnoise.statistics.plan import Plan, Tally

# Nothing of the data is written to a disk, and how far a query is can be asked.
_SETTINGS: Final = (
    "SET temp_directory = ''",
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
)
_TICK: Final = 0.1  # Seconds between two looks at how far a query is.
_HUNDRED: Final = 100
_LINE: Final = re.compile(r"Line: (\d+)")
_RAGGED: Final = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")

Progress = Callable[[float], object]


def tally(files: Files, plan: Plan, progress: Progress | None = None) -> Tally:
    """Answer a plan from files, in one pass; `progress` is told how far it is, from 0 to 1."""
    with _opened(files) as source:
        wanted = _wanted(plan)
        relation, wrong = source.numbers(wanted, asked_columns(plan))
        with _told(source.connection, progress):
            return frames.answered(relation, plan, wrong)


def columns(files: Files) -> list[str]:
    """Return the names of the columns, without reading a row; of JSON lines they are not known."""
    with _opened(files) as source:
        return source.names or []


def _wanted(plan: Plan) -> list[str]:
    grouped = (grouping.column for grouping in plan.by)
    return list(dict.fromkeys([*asked_columns(plan), *grouped]))


@contextmanager
def _opened(files: Files) -> Iterator[Source]:
    """Open files for reading, and see to it that they stay the same until all is read."""
    duckdb = import_extra("duckdb", "engines")
    names = files.names
    if not names:
        raise ArgumentError("Expected one file or more.")
    formats = {files.format_of(name) for name in names}
    if len(formats) > 1:
        raise ArgumentError(
            f"Expected files of one format, not of {' and '.join(sorted(formats))}."
        )
    kind = formats.pop()
    is_file = kind != "postgres"
    paths = [path for name in names for path in expanded(name)] if is_file else names
    before = [state_of(path) for path in paths] if is_file else []
    connection = duckdb.connect(":memory:")
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
        yield SOURCES[kind](connection, files, paths)
        if is_file and [state_of(path) for path in paths] != before:
            raise ArgumentError(f"{listed(paths)} changed while it was read. Read it again.")
    except duckdb.OutOfMemoryException:
        raise ArgumentError(f"There is not enough memory to read {listed(paths)}.") from None
    except duckdb.Error as error:
        raise ArgumentError(
            f"{listed(paths)} cannot be read: {_what_is_wrong(str(error))}."
        ) from None
    finally:
        connection.close()


def _what_is_wrong(words: str) -> str:
    """Say what DuckDB found, but for the data that it quotes."""
    line = _LINE.search(words)
    where = f"line {line[1]} " if line else "it "
    if ragged := _RAGGED.search(words):
        return f"{where}has {ragged[2]} entries where the header has {ragged[1]}"
    if "unterminated quote" in words:
        return f"{where}has a quote that is not closed, or text after one"
    if "unicode" in words or "utf-8" in words.lower():
        return f"{where}is no text of the declared encoding"
    if "xtension" in words:
        return "DuckDB has no extension for it. Install it once: INSTALL sqlite; INSTALL postgres"
    if "Maximum line size" in words:
        return f"{where}is longer than 2 MB, or has a quote that is not closed"
    return f"{where}is damaged, or not what the request says"


@contextmanager
def _told(connection: Any, progress: Progress | None) -> Iterator[None]:
    """Tell how far a query is, from another thread, until it is done."""
    if progress is None:
        yield
        return
    done = threading.Event()

    def look() -> None:
        while not done.wait(_TICK):
            progress(max(0.0, connection.query_progress() / _HUNDRED))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
        progress(1.0)
    finally:
        done.set()
        watcher.join()
