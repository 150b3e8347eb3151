"""Read files and database tables with DuckDB, in a stream."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from dpnoise.core.errors import ArgumentError, import_extra

import_extra("narwhals", "engines")  # The modules below import it.

from dpnoise.statistics.engines import csv_files, description, discovery, frames, sources
from dpnoise.statistics.engines.checking import check_persons
from dpnoise.statistics.engines.description import DATABASES, STANDARD_INPUT, Files, describe_paths
from dpnoise.statistics.engines.postgres import PostgresTable
from dpnoise.statistics.engines.runners import FileColumns
from dpnoise.statistics.engines.sources import INEXACT_NUMBER, RowSource, UnreadableError
from dpnoise.statistics.engines.sqlite import SqliteTable
from dpnoise.statistics.expressions import DATE, NUMBER, TEXT, check_kinds, equated_columns
from dpnoise.statistics.plan import Key, PersonCounts, Plan, Tally, Unit

# DuckDB writes no data to a disk and downloads nothing. It measures the progress of a query without
# printing it.
_SETTINGS: Final = (
    "SET temp_directory = ''",
    "SET autoinstall_known_extensions = false",
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
)
_POLL_SECONDS: Final = 0.1  # The interval between two readings of the progress.
_PERCENT: Final = 100  # DuckDB reports progress in percent.
_LINE_NUMBER: Final = re.compile(r"Line: (\d+)")
_HIVE_COLUMN: Final = re.compile(rf"{sources.HIVE_COLUMN_IN_ROW} (\d+)")
_WRONG_LENGTH: Final = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")
# Parts of DuckDB's errors in lower case, with the words of ours.
_FAILURES: Final = {
    "lock": "is open in another program. Close it there, or copy it",
    "unterminated quote": "has a quote that is not closed, or text after one",
    "unicode": "is not text in the declared encoding",
    "utf-8": "is not text in the declared encoding",
    "encoded": "is not text in the declared encoding",
    INEXACT_NUMBER: "has an id or a group that is neither text nor a whole number below 2^53",
    sources.NOT_TEXT: "has a number or a truth value that is compared as text. Compare it as a "
    "number, as in code == 7, or write it as a string",
    sources.OTHER_SPELLING: "has a column of text in which a declared group is also written in "
    "another way, such as 05 or 5.0 for 5. Write each group in one way, or declare both as text",
    "expected object": "has a line that is not a JSON object",
    "maximum line size": "is longer than 16 MiB, or has a quote that is not closed",
    "invalid state": "has line ends of several kinds, or quotes that are not those declared",
}

_SOURCES: Final[dict[str, type[RowSource]]] = {
    "csv": csv_files.Csv,
    "json": sources.JsonLines,
    "parquet": sources.Parquet,
    "sqlite": SqliteTable,
    "duckdb": sources.DuckDBTable,
    "postgres": PostgresTable,
}

Progress = Callable[[float], object]
_T = TypeVar("_T")


def tally_all(files: Files, plans: Sequence[Plan], progress: Progress | None = None) -> list[Tally]:
    """Answer plans from files in one scan, and report the progress from 0 to 1.

    Plans with a privacy unit scan the rows more than once, and so do plans with several filters.
    """
    reads_twice = any(plan.unit is not None for plan in plans)
    reads_twice |= len({plan.where for plan in plans}) > 1
    return _query_files(files, partial(_answers, plans), progress, reads_twice=reads_twice)


def count_persons_by_group(
    files: Files, columns: Sequence[str], unit: Unit | None, progress: Progress | None = None
) -> PersonCounts:
    """Return the groups of columns and the number of persons in each."""

    def count_persons(source: RowSource) -> PersonCounts:
        file = source.columns([], {}, () if unit is None else unit.columns, columns)
        return discovery.count_persons_by_group(file.relation, columns, unit, file=file)

    return _query_files(files, count_persons, progress, reads_twice=True)


def _query_files(
    files: Files, query: Callable[[RowSource], _T], progress: Progress | None, *, reads_twice: bool
) -> _T:
    """Query files. If DuckDB cannot read CSV in parallel, query them again in order.

    `reads_twice` says that rows are read more than once. Rows from a pipe are then kept in memory.
    """
    is_piped = files.is_standard_input

    def answer(*, in_order: bool) -> _T:
        in_memory = reads_twice and (in_order or is_piped)
        with _open_source(files, in_order=in_order, in_memory=in_memory) as source:
            result = _run_interruptibly(lambda: query(source), source, progress)
            if fault := source.fault():
                raise ArgumentError(fault)
            return result

    try:
        # DuckDB does not know windows-1252: Python decodes it, for a pipe.
        return answer(in_order=files.encoding == "windows-1252")
    except UnreadableError:
        if file_format(files) != "csv" or is_piped:
            raise
    return answer(in_order=True)


def _answers(plans: Sequence[Plan], source: RowSource) -> list[Tally]:
    ids = [name for plan in plans if plan.unit is not None for name in plan.unit.columns]
    columns = _columns_of(plans, source, ids)
    try:
        return frames.answer_all(columns.relation, plans, columns)
    except frames.RowError as error:
        raise _locate_error(error, source) from None


def _columns_of(
    plans: Sequence[Plan], source: RowSource, ids: Sequence[str] = (), path: str | None = None
) -> FileColumns:
    """Return the columns of plans, with numbers and dates parsed; of one path if it is given."""
    sources = dict.fromkeys(column for plan in plans for column in plan.sources)
    check_kinds(sources)
    numeric, dates, texts = (
        [column.name for column in sources if column.kind == kind] for kind in (NUMBER, DATE, TEXT)
    )
    source.compared_texts = frozenset(texts)
    source.equated = frozenset(
        name for plan in plans if plan.where is not None for name in equated_columns(plan.where)
    )
    declared: dict[str, Sequence[Key]] = {}
    for plan in plans:
        for each in (part for grouping in plan.by for part in grouping.groupings):
            if each.column not in dict(plan.derived):
                # An error about labels would depend on groups that are not shown.
                keys = ("",) if each.discovered else each.keys
                declared[each.column] = (*declared.get(each.column, ()), *keys)
    groups = {**dict.fromkeys(texts, ("",)), **declared}  # The keys of `texts` are text.
    distinct = [ask.column for plan in plans for ask in plan.distinct_asks]
    for name in ids:
        check_persons([name], [*groups, *distinct], numeric, dates)
    return source.columns(numeric, groups, ids, distinct, dates, numbered=path)


def _locate_error(error: frames.RowError, source: RowSource) -> frames.RowError:
    """Return the error with its remedy and, if rows can be read again, its first row."""
    location, files = None, source.files
    for path in source.paths if source.is_repeatable else ():
        row = frames.find_first_wrong_row(error, _columns_of([error.plan], source, path=path))
        if row is not None:
            of_file = f" of {path}" if len(source.paths) > 1 else ""
            header = " (the header not counted)" if source.has_header else ""
            location = f"Row {row}{of_file} of column {error.column!r}{header}"
            break
    # Numbers cannot have decimal commas if columns are separated by commas.
    may_have_commas = file_format(files) == "csv" and "," not in (files.delimiter, files.decimal)
    return error.at(location, may_have_commas=may_have_commas)


def described_columns(files: Files) -> str:
    """Return a description of the columns for an error. It shows no line of CSV."""
    with _open_source(files) as source:
        return source.described_columns


def names_in_csv(files: Files) -> set[str]:
    """Return the names in the headers of CSV files; none of other formats or of a pipe."""
    if file_format(files) != "csv" or files.is_standard_input:
        return set()
    headers = (csv_files.column_names(files, str(path)) for path in check_there(files))
    return set().union(*headers)


def file_format(files: Files) -> str:
    """Return the format of the files; raise if they have several."""
    if not files.path_texts:
        raise ArgumentError("Give at least one file.")
    formats = {files.format_of(name) for name in files.path_texts}
    if len(formats) > 1:
        raise ArgumentError(f"All files must have one format, got {' and '.join(sorted(formats))}.")
    kind = formats.pop()
    if files.table is not None and kind not in DATABASES:
        raise ArgumentError(
            f"A table needs a database, and {describe_paths(files.path_texts)} is not one."
        )
    if files.hive and kind in DATABASES:
        raise ArgumentError(
            "hive is about folders of files, and a database has none. Leave it out."
        )
    return kind


def check_there(files: Files) -> list[Path]:
    """Return the paths of all files; raise if one is missing. PostgreSQL has no paths."""
    import_extra("duckdb", "engines")
    if file_format(files) == "postgres":
        return []
    paths = [path for name in files.path_texts for path in description.expand_path(name)]
    if STANDARD_INPUT in paths and len(paths) > 1:
        raise ArgumentError(
            "The standard input cannot be combined with files. Leave out the other files."
        )
    if len(paths) > 1:  # Each row of a file that is given twice would count twice.
        different = {(state.st_dev, state.st_ino) for state in map(os.stat, paths)}
        if len(different) < len(paths):
            raise ArgumentError(
                f"{len(paths):,} files are given, and {len(paths) - len(different):,} of them more "
                "than once, by several patterns, names or links. Give each file once."
            )
    return [Path(path) for path in paths]


@contextmanager
def _open_source(
    files: Files, *, in_order: bool = False, in_memory: bool = False
) -> Iterator[RowSource]:
    """Open files for reading; raise if they change before all rows are read."""
    duckdb = import_extra("duckdb", "engines")
    kind = file_format(files)
    paths = list(map(str, check_there(files))) or files.path_texts
    before = [description.file_state(path) for path in paths] if kind != "postgres" else []
    shown = describe_paths(paths)
    with ExitStack() as stack:
        utf8_paths = _utf8_paths(paths, stack) if kind in {"csv", "json", "parquet"} else paths
        connection = duckdb.connect(":memory:")
        try:
            for setting in _SETTINGS:
                connection.execute(setting)
            for path in utf8_paths:
                csv_files.check_complete(path)
            values = sources.partition_values(files.hive, paths) if files.hive else []
            partitions = dict(zip(utf8_paths, values, strict=False))
            yield _SOURCES[kind](
                connection, files, utf8_paths, shown, stack, in_order, in_memory, partitions
            )
            if before and [description.file_state(path) for path in paths] != before:
                raise ArgumentError(f"{shown} changed while it was read. Read it again.")
        except duckdb.OutOfMemoryException:
            raise ArgumentError(f"There is not enough memory to read {shown}.") from None
        except duckdb.Error as error:
            failure = _describe_failure(str(error), list(files.hive))
            raise UnreadableError(f"{shown} cannot be read: {failure}.") from None
        finally:
            connection.close()


def _utf8_paths(paths: list[str], stack: ExitStack) -> list[str]:
    """Return the paths in UTF-8, as DuckDB needs them; links for files with other names."""
    if all(path == os.fsencode(path).decode("utf-8", "replace") for path in paths):
        return paths
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="dpnoise-")))
    links = []
    for index, path in enumerate(paths):
        name = Path(path).name.encode("utf-8", "replace").decode()
        links.append(folder / f"{index}-{name}")
        links[-1].symlink_to(Path(path).absolute())
    return list(map(str, links))


def _describe_failure(message: str, hive: Sequence[str]) -> str:
    """Describe an error of DuckDB without the data that it quotes."""
    if (index := _HIVE_COLUMN.search(message)) and int(index[1]) < len(hive):
        name = hive[int(index[1])]
        return f"a row has a column {name!r}, which hive declares. Leave it out of hive"
    line = _LINE_NUMBER.search(message)
    where = f"line {line[1]} " if line else "it "
    if lengths := _WRONG_LENGTH.search(message):
        return f"{where}has {lengths[2]} entries where the header has {lengths[1]}"
    for sign, failure in _FAILURES.items():
        if sign in message.lower():
            return where + failure
    return f"{where}is damaged, or not what the request says"


def _run_interruptibly(work: Callable[[], _T], source: RowSource, progress: Progress | None) -> _T:
    """Run `work` in another thread and report its progress. A signal can end it at any time."""
    results: list[_T] = []
    errors: list[BaseException] = []
    # A signal handler may raise while we wait. Joining a thread is not safe then, and an event
    # could keep its lock. This lock only wakes the waiting thread.
    finished = threading.Lock()
    finished.acquire()
    furthest = 0.0  # DuckDB starts again with each query, and reports -1 between two.

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            errors.append(error)
        finally:
            finished.release()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not (results or errors):
            if not finished.acquire(timeout=_POLL_SECONDS) and progress is not None:
                furthest = max(furthest, source.connection.query_progress() / _PERCENT)
                progress(furthest)
    except BaseException:
        while not (results or errors):  # Repeat: the query may not have started yet.
            source.connection.interrupt()
            source.stop()
            finished.acquire(timeout=_POLL_SECONDS)
        raise
    if errors:
        raise errors.pop()
    if progress is not None:
        progress(1.0)
    return results.pop()
