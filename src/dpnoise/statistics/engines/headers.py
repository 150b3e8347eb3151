"""The header of a CSV file: the first line that is not empty, which names the columns."""

import csv
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpnoise.errors import ArgumentError
from dpnoise.statistics.engines.description import STANDARD_INPUT, Files
from dpnoise.statistics.engines.texts import literal

_LONGEST: Final = 2**24  # Characters of a header.
_CHUNK: Final = 2**16


@dataclass(frozen=True)
class Header:
    """The names of the columns, how many empty lines are before them, and how lines end."""

    names: list[str]
    blank_lines: int
    line_end: str
    taken: bytes  # What was taken from the standard input to read it.


def header_of(connection: Any, files: Files, path: str, shown: str) -> Header:
    """Read the header of a file, also of a compressed one, or of what the standard input has."""
    lines: list[str] = []
    options: dict[str, Any] = (
        {"quotechar": files.quote} if files.quote else {"quoting": csv.QUOTE_NONE}
    )
    taken = bytearray()
    noted = _noted(_lines(connection, files, path, shown, taken), lines)
    before, names = 0, None
    try:
        for row in csv.reader(noted, delimiter=files.delimiter, strict=True, **options):
            if row:
                names = row
                break
            before = len(lines)
    except csv.Error:
        raise ArgumentError(
            f"The header of {shown} has a quote that is not closed, or a name of more than 131,072 "
            "characters. Rename that column."
        ) from None
    if names is None:
        raise ArgumentError(f"{shown} is empty: it has no header.")
    if any("\0" in line or "\ufffd" in line for line in lines):
        raise ArgumentError(f"{shown} cannot be read: its header is no {files.encoding} text.")
    ends = {line[len(line.rstrip("\r\n")) :] for line in lines} - {""}
    if len(ends) > 1 and before:  # DuckDB would skip more than the empty lines.
        raise ArgumentError(
            f"{shown} has line ends of several kinds. Remove its first, empty lines."
        )
    text = lines[-1].rstrip("\r\n")
    return Header(names, before, lines[-1][len(text) :] or "\n", bytes(taken))


def _noted(lines: Iterator[str], taken: list[str]) -> Iterator[str]:
    """Yield lines, and keep those that were taken, unless they are too long for a header."""
    for line in lines:
        taken.append(line)
        if sum(map(len, taken)) > _LONGEST:
            raise csv.Error
        yield line


def content_of(files: Files, path: str, header: Header, stack: ExitStack) -> Any | None:
    """Return the bytes of a file, but for those taken, as a stream, if they can be had."""
    if path == STANDARD_INPUT:
        return _Descriptor(sys.stdin.fileno())
    if files.encoding == "utf-16" or header.line_end == "\r" or _is_zst(path):
        return None
    return stack.enter_context(_opened(path))


@dataclass(frozen=True)
class _Descriptor:
    """The standard input without Python's buffer, whose lock a waiting thread would keep."""

    number: int

    def read1(self, most: int) -> bytes:
        return os.read(self.number, most)

    def lines(self, taken: bytearray) -> Iterator[bytes]:
        """Yield lines, and keep all that is taken, which may be more."""
        start = 0
        while chunk := self.read1(_CHUNK):
            taken += chunk
            while (end := taken.find(b"\n", start) + 1) > 0:
                yield bytes(taken[start:end])
                start = end
        if start < len(taken):
            yield bytes(taken[start:])


def _is_zst(path: str) -> bool:
    return Path(path).suffix.lower() == ".zst"  # Python has no reader before 3.14.


def _opened(path: str) -> Any:
    return gzip.open(path) if Path(path).suffix.lower() == ".gz" else Path(path).open("rb")


def _lines(connection: Any, files: Files, path: str, shown: str, taken: bytearray) -> Iterator[str]:
    """Yield lines with their ends. What is no text of the encoding is left to the reader."""
    encoding = "utf-8-sig" if files.encoding == "utf-8" else files.encoding
    if path == STANDARD_INPUT:
        if encoding == "utf-16":
            raise ArgumentError(f"{shown} is read as utf-8 or latin-1. Write it to a file.")
        lines = _Descriptor(sys.stdin.fileno()).lines(taken)
        yield from (line.decode(encoding, "replace") for line in lines)
    elif _is_zst(path):
        yield _first_line(connection, files, path)
    else:
        try:
            with io.TextIOWrapper(_opened(path), encoding, "replace", newline="") as text:
                while line := text.readline(_LONGEST):
                    yield line
        except (EOFError, gzip.BadGzipFile, UnicodeError, zlib.error):
            raise ArgumentError(
                f"{shown} cannot be read: it is damaged, or not what the request says."
            ) from None


def _first_line(connection: Any, files: Files, path: str) -> str:
    found = connection.sql(
        f"SELECT line FROM read_csv([{literal(path)}], auto_detect=false, header=false, "
        "columns={line: 'VARCHAR'}, delim='\x1f', quote='', escape='', strict_mode=false, "
        f"encoding={literal(files.encoding)}) LIMIT 1"
    ).fetchall()
    return found[0][0] or "" if found else ""
