"""A pipe as the standard input."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock


@contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """Replace the standard input by a pipe with this content."""
    read_end, write_end = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), os.fdopen(write_end, "wb") as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    with os.fdopen(read_end) as stdin, mock.patch.object(sys, "stdin", stdin):
        writer.start()
        yield
    writer.join()  # The read end is closed, so the writer ends.
