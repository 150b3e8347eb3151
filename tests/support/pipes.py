"""A pipe for a standard input."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock


@contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """Let a pipe be the standard input, into which somebody writes."""
    ours, theirs = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), os.fdopen(theirs, "wb") as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    with os.fdopen(ours) as given, mock.patch.object(sys, "stdin", given):
        writer.start()
        yield
    writer.join()  # The other end is closed: nothing is left to wait for.
