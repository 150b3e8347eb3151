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
def raised() -> Iterator[list[EndedError]]:
    """Raise EndedError where the process would have ended, so that everything is cleaned up.

    What was raised is also in the list that this gives, because a library that it passes through
    may make another error of it. Signals that are ignored or handled already stay so; only the main
    thread handles signals.
    """
    ended: list[EndedError] = []
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    def end(number: int, _frame: FrameType | None) -> None:
        # A second one must not disturb the cleaning up.
        signal.signal(number, signal.SIG_IGN)
        ended.append(EndedError(number))
        raise ended[0]

    ours = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield ended
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
