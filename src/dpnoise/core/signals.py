"""Calls a function to its end, however many signals come meanwhile."""

import ctypes
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Final, TypeVar

# The interpreter's own locks, waited for while other threads run. Python's wait for a lock ends as
# soon as a signal's handler raises; this one ends with the lock alone.
_INTERPRETER: Final = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)  # noqa: SLF001
_allocate: Final = _INTERPRETER.PyThread_allocate_lock
_allocate.argtypes, _allocate.restype = [], ctypes.c_void_p
_acquire: Final = _INTERPRETER.PyThread_acquire_lock
_acquire.argtypes, _acquire.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
_release: Final = _INTERPRETER.PyThread_release_lock
_release.argtypes, _release.restype = [ctypes.c_void_p], None

_WAIT: Final = 1
_LOOK_AGAIN: Final = 0.1  # Seconds: where no signal wakes a thread that waits, as on Windows.

# Locks to be used again, all taken. None is freed, as the thread that released it may still hold on
# to its memory; a few bytes are lost where a signal comes before one is laid back.
_spare: Final[list[int]] = []

_Result = TypeVar("_Result")


def shielded(  # noqa: C901 - one thread is handed over to another: it is read in one piece
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
    results: list[_Result] = []
    failures: list[BaseException] = []
    asked: list[bool] = []
    cancelled: list[bool] = []
    stopped = [] if stopped is None else stopped
    bell, done = allocate_lock(), allocate_lock()
    bell.acquire()
    done.acquire()
    ended = _spare.pop() if _spare else _taken_lock()

    def run() -> None:
        while not asked and not cancelled:
            bell.acquire(timeout=_LOOK_AGAIN)
        try:
            if not cancelled:
                results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        done.release()
        _release(ended)

    try:
        start_new_thread(run, ())
        asked.append(True)
        bell.release()
        while not (results or failures):
            done.acquire(timeout=_LOOK_AGAIN)
    except BaseException as error:
        # CPython runs handlers after a call, at the head of a function and where a loop turns. Up
        # to the end of the wait there is none of these, so no second signal can leave it out.
        if asked:
            stopped += [True]
            _acquire(ended, _WAIT)
            _spare.append(ended)
            raise
        cancelled += [True]  # A thread that was started all the same does nothing.
        if not isinstance(error, RuntimeError):
            raise
        return function()  # There are no more threads, as when the interpreter ends.
    _acquire(ended, _WAIT)
    _spare.append(ended)
    if failures:
        raise failures[0]
    return results[0]


def _taken_lock() -> int:
    lock: int | None = _allocate()
    if lock is None:
        raise MemoryError
    _acquire(lock, _WAIT)
    return lock
