"""CSV through a pipe, to be read in order: the standard input, and what misleads parallel readers.

Reading in order, DuckDB drops a last row whose quote is not closed, without a word. So a line is
added to the end: after a complete row it is a comment, inside of quotes it is an error.

DuckDB takes the first line break of a file for the end of all its lines, even inside quotes. So
the lines before the first row are written as empty ones, with the line end that rows have.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

COMMENT: Final = "\x01"


class Pump:
    """A thread that writes rows into a pipe. `fault` says what went wrong there."""

    def __init__(
        self, before: bytes, rows: Iterator[bytes], after: bytes, stack: ExitStack
    ) -> None:
        self.fault: str | None = None
        self._before, self._rows, self._after = before, rows, after
        reader, self._writer = os.pipe()
        self._is_open, self._closing = True, threading.Lock()
        self.path = f"/dev/fd/{reader}"
        stack.callback(os.close, reader)  # What waits for a reader ends then.
        stack.callback(self.stop)
        threading.Thread(target=self._write_all, daemon=True).start()

    def stop(self) -> None:
        """End the pipe, also if the stream has more, or waits for more: that goes nowhere."""
        with self._closing:
            if self._is_open:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._writer)
                os.close(nowhere)

    def _write_all(self) -> None:
        try:
            with suppress(BrokenPipeError):
                self._write(self._before)
                for chunk in self._rows:
                    if COMMENT.encode() in chunk:
                        self.fault = "holds the control character 1, which is no text"
                        break
                    self._write(chunk)
                self._write(self._after)
        except UnicodeError:
            self.fault = "is not text in the declared encoding"
        except Exception:  # noqa: BLE001 - rows would be missing, whatever ends the stream early
            self.fault = "could not be read to its end"
        finally:
            with self._closing:
                self._is_open = False
                os.close(self._writer)

    def _write(self, chunk: bytes) -> None:
        left = memoryview(chunk)
        while left:
            left = left[os.write(self._writer, left) :]


def first_lines(line_end: str, lines: int) -> bytes:
    """Return empty lines, in place of those before the first row."""
    return line_end.encode() * lines


def last_line(line_end: str, quote: str) -> bytes:
    """Return a line that is a comment where a row may begin, and an error inside of quotes."""
    return f"{line_end}{COMMENT}{quote}x{line_end}".encode()
