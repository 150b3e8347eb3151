"""Calls a function to its end, however many signals come meanwhile."""

import ctypes
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_WAIT: Final = 1
_LOOK_AGAIN: Final = 0.1  # Seconds: where no signal wakes a thread that waits, as on Windows.

_Result = TypeVar("_Result")
_CType = type[ctypes.c_void_p | ctypes.c_int]


def _interpreter_function(
    name: str, result: _CType | None, *arguments: _CType
) -> Callable[..., int | None]:
    """Return a function of Python's stable ABI that is called while other threads run."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
    return ctypes.CFUNCTYPE(result, *arguments)(address)


# The interpreter's own locks. Python's wait for a lock ends as soon as a signal's handler raises;
# this one ends with the lock only.
_allocate: Final = _interpreter_function("PyThread_allocate_lock", ctypes.c_void_p)
_acquire: Final = _interpreter_function(
    "PyThread_acquire_lock", ctypes.c_int, ctypes.c_void_p, ctypes.c_int
)
_release: Final = _interpreter_function("PyThread_release_lock", None, ctypes.c_void_p)

# Locks to be used again, all taken. None is freed, as the thread that released it may still hold on
# to its memory; a few bytes are lost where a signal comes before one is laid back.
_spare: Final[list[int]] = []


def _taken_lock() -> int:
    lock = _allocate()
    if lock is None:
        raise MemoryError
    _acquire(lock, _WAIT)
    return lock


class _Job(Generic[_Result]):
    """A function that another thread calls, and what the two threads tell each other."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self.function = function
        self.results: list[_Result] = []
        self.failures: list[BaseException] = []
        self.asked: list[bool] = []
        self.cancelled: list[bool] = []
        self.bell, self.done = allocate_lock(), allocate_lock()
        self.bell.acquire()
        self.done.acquire()
        self.ended = _spare.pop() if _spare else _taken_lock()

    def run(self) -> None:
        while not self.asked and not self.cancelled:
            self.bell.acquire(timeout=_LOOK_AGAIN)
        try:
            if not self.cancelled:
                self.results.append(self.function())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self.failures.append(error)
        self.done.release()
        _release(self.ended)


def run_uninterrupted(
    function: Callable[[], _Result], stopped: list[bool] | None = None
) -> _Result:
    """Call a function where no signal interrupts it, and wait for it, however often interrupted.

    Python runs the handlers of signals in the main thread. An exception of theirs can leave a lock
    taken or a module half imported, so the function gets a thread of its own. What interrupted the
    wait is raised when the function has ended; it may look at `stopped`, which is then no longer
    empty, to end early.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return function()
    stopped = [] if stopped is None else stopped
    job = _Job(function)
    try:
        start_new_thread(job.run, ())
        job.asked.append(True)
        job.bell.release()
        while not (job.results or job.failures):
            job.done.acquire(timeout=_LOOK_AGAIN)
    except BaseException as error:
        # CPython runs handlers after a call, at the head of a function and where a loop turns. Up
        # to the end of the wait there is none of these, so no second signal can leave it out.
        if job.asked:
            stopped += [True]
            _acquire(job.ended, _WAIT)
            _spare.append(job.ended)
            raise
        job.cancelled += [True]  # A thread that was started all the same does nothing.
        if not isinstance(error, RuntimeError):
            raise
        return function()  # There are no more threads, as when the interpreter ends.
    _acquire(job.ended, _WAIT)
    _spare.append(job.ended)
    if job.failures:
        raise job.failures[0]
    return job.results[0]
