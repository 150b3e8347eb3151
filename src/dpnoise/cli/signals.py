"""What a signal that ends the command leaves behind: nothing."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# Those that ask a process to end, where a system has them. SIGKILL asks nobody.
_ENDING: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class EndedError(SystemExit):
    """A signal asked the command to end; the status for it is that of a shell."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        self.status = 128 + number
        super().__init__(self.status)


@contextmanager
def raised() -> Iterator[None]:
    """Raise EndedError where the process would have ended, so that everything is cleaned up.

    Signals that are ignored or handled already stay so; only the main thread handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> None:
    # A second one must not disturb the cleaning up.
    signal.signal(number, signal.SIG_IGN)
    raise EndedError(number)
