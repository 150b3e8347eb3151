"""The header of a CSV file: the first line that is not empty, which names the columns."""

import codecs
import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines.compression import is_zstd
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.texts import literal

_LONGEST_HEADER: Final = 2**24  # Bytes, the empty lines before it included.
_FIRST_CHUNK: Final = 2**16  # A header is short, so little is read for it.
_CHUNK: Final = 2**20
_LINE_END: Final = re.compile(rb"\r\n?|\n")


@dataclass(frozen=True)
class Header:
    """The names of the columns, and where the rows begin."""

    names: list[str]
    blank_lines: int  # The empty lines before it.
    lines: int  # All lines before the first row.
    line_end: str

    @property
    def is_one_line(self) -> bool:
        """Whether no name holds a line break."""
        return self.lines == self.blank_lines + 1


class Content:
    """The bytes of an open CSV file, decompressed; UTF-16 comes as UTF-8."""

    def __init__(self, read: Callable[[int], bytes], encoding: str) -> None:
        self.encoding = "utf-8" if encoding == "utf-16" else encoding
        self._read = _as_utf8(read) if encoding == "utf-16" else read
        self._buffer, self._position = b"", 0

    def lines(self) -> Iterator[bytes]:
        """Yield lines with their ends, from where the last reader stopped."""
        while line := self._next_line():
            yield line

    def rest(self) -> Iterator[bytes]:
        """Yield what follows the lines that were taken."""
        if left := self._buffer[self._position :]:
            yield left
        while chunk := self._read(_CHUNK):
            yield chunk

    def _next_line(self) -> bytes:
        searched = self._position
        while not (found := _LINE_END.search(self._buffer, searched)) or (
            found[0] == b"\r" and found.end() == len(self._buffer)  # A newline may follow.
        ):
            chunk = self._read(_FIRST_CHUNK)
            if not chunk:
                found = None
                break
            searched = max(self._position, len(self._buffer) - 1)
            self._buffer += chunk
            if len(self._buffer) > _LONGEST_HEADER:
                raise csv.Error
        start, self._position = self._position, found.end() if found else len(self._buffer)
        return self._buffer[start : self._position]


def _as_utf8(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a reader of UTF-16, with a byte order mark, as UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-16")()

    def read_text(size: int) -> bytes:
        while chunk := read(size):
            if text := decoder.decode(chunk):
                return text.encode()
        return decoder.decode(b"", final=True).encode()

    return read_text


def open_content(connection: Any, files: Files, path: str, stack: ExitStack) -> Content:
    """Open a CSV file to read its bytes in order; one compressed by zstd has its first line only.

    Python has no reader of zstd before version 3.14.
    """
    if path == STANDARD_INPUT:
        # Without Python's buffer, whose lock a waiting thread would keep.
        number = sys.stdin.fileno()
        return Content(lambda size: os.read(number, size), files.encoding)
    if is_zstd(path):
        return Content(io.BytesIO(_first_line(connection, files, path).encode()).read, "utf-8")
    if Path(path).suffix.lower() == ".gz":
        return Content(stack.enter_context(gzip.open(path)).read1, files.encoding)
    return Content(stack.enter_context(Path(path).open("rb")).read1, files.encoding)


def read_header(content: Content, files: Files, shown: str) -> Header:
    """Read the lines up to the end of the header."""
    lines: list[str] = []
    options: dict[str, Any] = (
        {"quotechar": files.quote} if files.quote else {"quoting": csv.QUOTE_NONE}
    )
    try:
        reader = csv.reader(
            _decoded(content, lines), delimiter=files.delimiter, strict=True, **options
        )
        names = next(filter(None, reader), None)
    except csv.Error:
        raise ArgumentError(
            f"The header of {shown} has a quote that is not closed, a name of more than 131,072 "
            "characters, or more than 16 MiB. Rename that column."
        ) from None
    except UnicodeError:
        mark = ", with a byte order mark" if files.encoding == "utf-16" else ""
        raise ArgumentError(
            f"{shown} cannot be read: its header is no {files.encoding} text{mark}. Write it as "
            "UTF-8, or declare its encoding."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ArgumentError(
            f"{shown} cannot be read: it is damaged, or not what the request says."
        ) from None
    if names is None:
        raise ArgumentError(f"{shown} is empty: it has no header.")
    return _header(names, lines, shown)


def _decoded(content: Content, lines: list[str]) -> Iterator[str]:
    """Yield lines as text, without a byte order mark, and add them to `lines`."""
    for line in content.lines():
        is_marked = not lines and content.encoding == "utf-8"
        lines.append(
            (line.removeprefix(codecs.BOM_UTF8) if is_marked else line).decode(content.encoding)
        )
        if "\0" in lines[-1]:
            raise UnicodeError
        yield lines[-1]


def _header(names: list[str], lines: list[str], shown: str) -> Header:
    blank_lines = next(place for place, line in enumerate(lines) if line.strip("\r\n"))
    ends = [line[len(line.rstrip("\r\n")) :] for line in (*lines[:blank_lines], lines[-1])]
    if len(set(ends) - {""}) > 1:  # Which one ends rows would be a guess.
        raise ArgumentError(
            f"{shown} has line ends of several kinds. Remove its first, empty lines."
        )
    return Header(names, blank_lines, len(lines), ends[-1] or "\n")


def _first_line(connection: Any, files: Files, path: str) -> str:
    found = connection.sql(
        f"SELECT line FROM read_csv([{literal(path)}], auto_detect=false, header=false, "
        "columns={line: 'VARCHAR'}, delim='\x1f', quote='', escape='', strict_mode=false, "
        f"hive_partitioning=false, encoding={literal(files.encoding)}) LIMIT 1"
    ).fetchall()
    return found[0][0] or "" if found else ""
