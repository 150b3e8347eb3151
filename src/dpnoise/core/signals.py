"""Run a function to completion, even if signals arrive meanwhile."""

import ctypes
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_WAIT: Final = 1
_POLL_SECONDS: Final = 0.1  # On Windows no signal wakes a waiting thread, so it polls.

_Result = TypeVar("_Result")
_CType = type[ctypes.c_void_p | ctypes.c_int]


def _interpreter_function(
    name: str, result: _CType | None, *arguments: _CType
) -> Callable[..., int | None]:
    """Return a function of Python's stable ABI that releases the GIL while it runs."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
    return ctypes.CFUNCTYPE(result, *arguments)(address)


# The interpreter's internal locks. Python stops waiting for its own locks when a signal handler
# raises; the wait for these ends only when the lock is released.
_allocate: Final = _interpreter_function("PyThread_allocate_lock", ctypes.c_void_p)
_acquire: Final = _interpreter_function(
    "PyThread_acquire_lock", ctypes.c_int, ctypes.c_void_p, ctypes.c_int
)
_release: Final = _interpreter_function("PyThread_release_lock", None, ctypes.c_void_p)

# Acquired locks for reuse. None is freed, because the thread that released it may still use its
# memory. A signal at the wrong moment loses a few bytes.
_spare: Final[list[int]] = []


def _acquired_lock() -> int:
    lock = _allocate()
    if lock is None:
        raise MemoryError
    _acquire(lock, _WAIT)
    return lock


class _Job(Generic[_Result]):
    """A function that another thread calls, and the state that both threads share."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self.function = function
        self.results: list[_Result] = []
        self.failures: list[BaseException] = []
        self.asked: list[bool] = []
        self.cancelled: list[bool] = []
        self.bell, self.done = allocate_lock(), allocate_lock()
        self.bell.acquire()
        self.done.acquire()
        self.ended = _spare.pop() if _spare else _acquired_lock()

    def run(self) -> None:
        while not self.asked and not self.cancelled:
            self.bell.acquire(timeout=_POLL_SECONDS)
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
    """Call a function in another thread, where no signal interrupts it, and wait for it.

    Python runs signal handlers in the main thread. An exception there could leave a lock acquired
    or a module half imported. An exception that interrupts the wait is raised after the function
    has ended. It also appends to `stopped`, which the function may check to end early.
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
            job.done.acquire(timeout=_POLL_SECONDS)
    except BaseException as error:
        # CPython runs handlers after a call, at the start of a function and at the end of a loop
        # body. None of these occurs before the wait ends, so a second signal cannot skip the wait.
        if job.asked:
            stopped += [True]
            _acquire(job.ended, _WAIT)
            _spare.append(job.ended)
            raise
        job.cancelled += [True]  # If the thread did start, it does nothing.
        if not isinstance(error, RuntimeError):
            raise
        return function()  # No thread can start, for example while the interpreter exits.
    _acquire(job.ended, _WAIT)
    _spare.append(job.ended)
    if job.failures:
        raise job.failures[0]
    return job.results[0]
