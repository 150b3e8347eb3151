"""CSV: headers, dialects, compressed files and pipes.

The header is the first line that is not empty. DuckDB reads rows in parallel, and detects if quoted
line breaks mislead it. In that case, and for the standard input, rows come in order from a pipe.

When it reads in order, DuckDB silently drops a last row with an unclosed quote. Therefore we append
a line. After a complete row it is a comment; inside quotes it is an error. DuckDB also assumes that
all lines end like the first line break of a file, even if that one is inside quotes. Therefore the
pipe starts with empty lines in place of the header, with the line end of the rows.
"""

import csv
import io
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.sources import RowSource, UnreadableError, quote_text, read_files

_MAX_HEADER_LENGTH: Final = 2**24  # Characters, including the empty lines before the header.
_MAX_LINE_SIZE: Final = 2**24
_CHUNK: Final = 2**20
_COMMENT: Final = "\x01"
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_DECODERS: Final = {"utf-8": "utf-8-sig"}  # Keeps a byte order mark out of the first name.


@dataclass(frozen=True)
class _Header:
    """The names of the columns, and where the rows begin."""

    text: io.TextIOWrapper  # The rows, with unchanged line ends.
    names: list[str]
    blank_lines: int  # The empty lines before the header.
    lines: int  # All lines before the first row.
    line_end: str


def _open_text(files: Files, path: str, stack: ExitStack) -> io.TextIOWrapper:
    """Open a CSV file as text, decompressed. The stack closes it, but not the standard input."""
    encoding = _DECODERS.get(files.encoding, files.encoding)
    # Without Python's buffer: a waiting thread would keep its lock.
    if path == STANDARD_INPUT:
        opened: Any = io.FileIO(sys.stdin.fileno(), closefd=False)
        return io.TextIOWrapper(opened, encoding, newline="")
    if compression := _COMPRESSIONS.get(Path(path).suffix.lower()):
        opened = import_extra("pyarrow", "files").input_stream(path, compression)
    else:
        opened = io.FileIO(path)
    return stack.enter_context(io.TextIOWrapper(opened, encoding, newline=""))


def _read_header(files: Files, path: str, shown: str, stack: ExitStack) -> _Header:
    """Open a CSV file and read it to the end of its header."""
    text, lines = _open_text(files, path, stack), list[str]()
    options: dict[str, Any] = (
        {"quotechar": files.quote} if files.quote else {"quoting": csv.QUOTE_NONE}
    )
    try:
        rows = csv.reader(
            _read_lines(text, lines), delimiter=files.delimiter, strict=True, **options
        )
        names = next(filter(None, rows), None)
    except csv.Error:
        raise ArgumentError(
            f"The header of {shown} has a quote that is not closed, a name of more than 131,072 "
            "characters, or more than 16 MiB. Rename that column."
        ) from None
    except UnicodeError:
        mark = ", with a byte order mark" if files.encoding == "utf-16" else ""
        is_other = files.encoding != "windows-1252"
        advice = ", or declare its encoding, such as {encoding}" if is_other else ""
        raise ArgumentError(
            f"{shown} cannot be read: it is not {files.encoding} text{mark}. Write it as UTF-8"
            f"{advice}.",
            encoding="windows-1252",
        ) from None
    except OSError:
        raise ArgumentError(
            f"{shown} cannot be read: it is damaged, or not what the request says."
        ) from None
    if names is None:
        raise ArgumentError(f"{shown} is empty: it has no header.")
    blank_lines = next(index for index, line in enumerate(lines) if line.strip("\r\n"))
    ends = [line[len(line.rstrip("\r\n")) :] for line in (*lines[:blank_lines], lines[-1])]
    if len(set(ends) - {""}) > 1:  # We would have to guess which one ends rows.
        raise ArgumentError(
            f"{shown} has line ends of several kinds. Remove its first, empty lines."
        )
    return _Header(text, names, blank_lines, len(lines), ends[-1] or "\n")


def column_names(files: Files, path: str) -> list[str]:
    """Return the names in the header of a CSV file, which is closed again."""
    with ExitStack() as stack:
        return _read_header(files, path, path, stack).names


def _read_lines(text: io.TextIOWrapper, lines: list[str]) -> Iterator[str]:
    """Yield lines, and append them to `lines`."""
    remaining = _MAX_HEADER_LENGTH
    while line := text.readline(remaining):
        remaining -= len(line)
        if remaining <= 0:
            raise csv.Error
        if "\0" in line:
            raise UnicodeError
        lines.append(line)
        yield line


class PipeWriter:
    """A thread that writes rows into a pipe. `fault` describes a failure of that thread."""

    def __init__(
        self, before: bytes, rows: Iterator[bytes], after: bytes, stack: ExitStack
    ) -> None:
        self.fault: str | None = None
        self._before, self._rows, self._after = before, rows, after
        reader, self._writer = os.pipe()
        self._is_open, self._closing = True, threading.Lock()
        self.path = f"/dev/fd/{reader}"
        stack.callback(os.close, reader)  # Ends a write that waits for a reader.
        stack.callback(self.stop)
        threading.Thread(target=self._write_all, daemon=True).start()

    def stop(self) -> None:
        """End the pipe. Rows that the stream still has, or waits for, are discarded."""
        with self._closing:
            if self._is_open:
                null_device = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null_device, self._writer)
                os.close(null_device)

    def _write_all(self) -> None:
        try:
            with suppress(BrokenPipeError):
                self._write(self._before)
                for chunk in self._rows:
                    if _COMMENT.encode() in chunk:
                        self.fault = "holds the control character 1, which is not text"
                        break
                    self._write(chunk)
                self._write(self._after)
        except UnicodeError:
            self.fault = "is not text in the declared encoding"
        except Exception:  # noqa: BLE001 - any error ends the stream early, so rows would be missing
            self.fault = "could not be read to its end"
        finally:
            with self._closing:
                self._is_open = False
                os.close(self._writer)

    def _write(self, chunk: bytes) -> None:
        remaining = memoryview(chunk)
        while remaining:
            remaining = remaining[os.write(self._writer, remaining) :]


class Csv(RowSource):
    """CSV files or the standard input."""

    has_header = True
    has_types = False

    def open(self) -> list[str]:
        """Read the headers, which must be the same."""
        files, paths = self.files, self.paths
        self._is_piped = self.in_order or not self.is_repeatable
        self._writers: list[PipeWriter] = []
        self._headers: dict[str, _Header] = {}
        for path in paths:
            # Each file is closed again: there may be more than can be open at once.
            with ExitStack() as only_header:
                self._headers[path] = _read_header(files, path, self.shown, only_header)
        self.check_same_columns({path: header.names for path, header in self._headers.items()})
        self._header_names = self._headers[paths[0]].names
        types = ", ".join(f"c{index}: 'VARCHAR'" for index in range(len(self._header_names)))
        quote = quote_text(files.quote)
        self._options = (
            f"auto_detect=false, columns={{{types}}}, strict_mode=true, "
            f"null_padding=false, allow_quoted_nulls=false, delim={quote_text(files.delimiter)}, "
            f"quote={quote}, escape={quote}"
        )
        if self._is_piped:
            in_order = f", parallel=false, max_line_size={_MAX_LINE_SIZE}, comment='{_COMMENT}'"
            self._options += in_order
        return self._header_names

    def table(self, names: Sequence[str], paths: Sequence[str]) -> str:
        """Return the SQL of the rows, with every entry as text."""
        if self._is_piped:
            tables = [self._read_through_pipe(path) for path in paths]
        else:
            tables = self._read_in_parallel(paths)
        columns = self.select_by_index(names)
        selects = (f"SELECT {columns} FROM {table}" for table in tables)
        return f"({' UNION ALL '.join(selects)})"

    def _read_in_parallel(self, paths: Sequence[str]) -> list[str]:
        """Return the SQL that reads files in parallel; raise if DuckDB finds other headers."""
        encoding = self.files.encoding
        paths_by_skip: dict[int, list[str]] = {}
        for path in paths:
            header = self._headers[path]
            paths_by_skip.setdefault(header.blank_lines, []).append(path)
            as_row = self._read_csv([path], header.blank_lines, encoding, header=False)
            is_one_line = header.lines == header.blank_lines + 1  # If not, a name has a line break.
            if not is_one_line or not self._is_header(as_row):
                raise UnreadableError(f"{self.shown} cannot be read in parallel.")
        return [
            self._read_csv(group, skipped, encoding, header=True)
            for skipped, group in paths_by_skip.items()
        ]

    def _is_header(self, table: str) -> bool:
        """Return whether DuckDB reads the names of the columns as the first row."""
        rows = self.connection.sql(f"SELECT * FROM {table} LIMIT 1").fetchall()
        return [[entry or "" for entry in row] for row in rows] == [self._header_names]

    def _read_csv(self, paths: list[str], skipped: int, encoding: str, *, header: bool) -> str:
        options = f"skip={skipped}, header={str(header).lower()}, encoding={quote_text(encoding)}"
        return read_files("read_csv", paths, options, self._options)

    def _read_through_pipe(self, path: str) -> str:
        """Return the SQL that reads a file through a pipe, which has the rows and no header."""
        files, header = self.files, self._headers[path]
        if path != STANDARD_INPUT:  # A file is opened again for each scan.
            header = _read_header(files, path, self.shown, self.stack)
        encoding = "latin-1" if files.encoding == "latin-1" else "utf-8"
        end = header.line_end
        after = f"{_COMMENT}{files.quote}x{end}".encode()
        rows = _encode_rows(header, encoding)
        writer = PipeWriter(end.encode() * header.lines, rows, after, self.stack)
        self._writers.append(writer)
        return self._read_csv([writer.path], header.lines, encoding, header=False)

    def fault(self) -> str | None:
        """Return the first failure of a pipe; None if there is none."""
        faults = (writer.fault for writer in self._writers if writer.fault is not None)
        return next((f"{self.shown} {fault}." for fault in faults), None)

    def stop(self) -> None:
        """End all pipes."""
        for writer in self._writers:
            writer.stop()


def _encode_rows(header: _Header, encoding: str) -> Iterator[bytes]:
    """Yield the rows, the last one with a line end. In a file of one column, empty lines are rows.

    DuckDB reads these as missing entries.
    """
    last = "\n"
    while chunk := header.text.read(_CHUNK):
        yield chunk.encode(encoding)
        last = chunk[-1]
    if last not in "\r\n":
        yield header.line_end.encode()


def check_complete(path: str) -> None:
    """Raise if a file compressed by zstd is damaged or cut: DuckDB would read the rest of it."""
    if Path(path).suffix.lower() != ".zst":
        return
    with import_extra("pyarrow", "files").input_stream(path, "zstd") as stream:
        try:
            while stream.read(_CHUNK):
                pass
        except OSError:
            raise ArgumentError(
                f"{path} is damaged: its data compressed by zstd is not complete. Write it again."
            ) from None
