"""Runs kernels over a key's stream, chunk by chunk, on several threads, in constant memory."""

import os
import sys
import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, wraps
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.entropy import WORD, Key, gcm_is_wider
from dpnoise.core.signals import shielded

# 512 KiB of words: large enough for a cipher to run at full speed, small enough for a core's cache.
CHUNK_WORDS: Final = 2**16
# A short call takes shorter chunks, because fresh memory costs more than a few more turns.
_SHORTEST_CHUNK: Final = 2**13
_CHUNKS_IN_A_SHORT_CALL: Final = 8
# Below this many words a second thread costs more than it brings.
_WORDS_WORTH_A_THREAD: Final = 2**19
# Runs for each thread, where these take them in turn.
_TURNS: Final = 8

# Held while kernels are imported, and by a fork: see `_wait_for_kernels`.
_importing: Final = threading.RLock()
_forking: Final = threading.local()

Words = NDArray[np.uint64]
Worker = Callable[[Words, int, int], None]
_Run = tuple[int, int]  # From an element to another one, which is not part of it.
_Reader = Callable[[Words], _Run]
_Result = TypeVar("_Result")
_Job = TypeVar("_Job")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=64)
def imported(module: str) -> ModuleType:
    """Import a module that takes long when it is needed first, whole, whatever happens meanwhile.

    A fork waits for it, and an interrupt is raised when it is done: a library that is half imported
    fails for as long as the process lives.
    """
    with _importing:
        return shielded(lambda: _used_once(import_module(module)))


def _used_once(module: ModuleType) -> ModuleType:
    """Do what SciPy's functions leave to their first use: some versions import there."""
    if module.__name__ == "scipy.special":
        half = np.full(1, 0.5)
        for first_use in (module.ndtr, module.ndtri, module.gammaln):
            first_use(half)
        for first_use in (module.gammainc, module.gammaincinv, module.kv, module.xlogy):
            first_use(half, half)
    return module


@lru_cache(maxsize=64)
def kernel_named(name: str) -> Callable[..., Any]:
    """Import a kernel when the first call needs it, because Numba takes long to import."""
    kernel = _kernel(name)
    return _compiled_whole(kernel) if hasattr(kernel, "overloads") else _quiet(kernel)


@lru_cache(maxsize=64)
def _kernel(name: str) -> Callable[..., Any]:
    module, function = name.split(".")
    with _importing:
        _use_once()
        kernel: Callable[..., Any] = getattr(imported(f"dpnoise.kernels.{module}"), function)
    return kernel


def _compiled_whole(kernel: Any) -> Callable[..., Any]:
    """Let each first call of a kernel for some types, which compiles or loads it, be done.

    However it is interrupted: an exception in the middle of it can leave Numba or LLVM unusable for
    as long as the process lives.
    """
    compile_for = kernel._compile_for_args  # noqa: SLF001 - Numba calls it by this name

    def whole(*arguments: Any, **named: Any) -> Any:
        return _compiling(lambda: compile_for(*arguments, **named))

    kernel._compile_for_args = whole  # noqa: SLF001
    return cast("Callable[..., Any]", kernel)


def _compiling(function: Callable[[], _Result]) -> _Result:
    """Call a function that compiles where no signal interrupts it.

    A thread that holds the compiler's lock already, as one that compiles something of its own may,
    would wait for another that needs it: there it is called at once.
    """
    lock = imported("numba.core.compiler_lock").global_compiler_lock
    return function() if lock.is_locked() else shielded(function)


def _quiet(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Let a kernel that is not compiled follow IEEE 754 as compiled ones do: without a warning."""

    @wraps(kernel)
    def quietly(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return kernel(*arguments)

    return quietly


@lru_cache(maxsize=1)
def _use_once() -> None:
    """Do what Numba and the cipher leave to their first use, while a fork would wait for it."""
    shielded(imported("dpnoise.kernels").finish_importing)
    Key.fresh().stream().fill(np.empty(1, dtype=WORD))
    shielded(gcm_is_wider)


@lru_cache(maxsize=64)
def kernel_for_one(name: str, kinds: str) -> Callable[..., Any]:
    """Import a kernel for one number, ready to be called at once.

    It takes bytes, and then arguments of these kinds: i for int64, u for uint64, f for float64, p
    for one of Python's integers, whose digits are read as they are.
    """
    kernel = _kernel(name)
    make = imported("dpnoise.kernels.scalar").without_dispatch
    one: Callable[..., Any] = _compiling(lambda: make(kernel, kinds))
    if hasattr(kernel, "overloads"):
        return one
    quiet = _quiet(one)
    return lambda *arguments: np.asarray(quiet(*arguments)).item()


def _wait_for_kernels() -> None:
    """Let a fork wait until no other thread imports or compiles a kernel.

    A child has none of the parent's other threads. A lock that one of them holds, Python's for a
    module that is being imported or Numba's for its compiler, stays locked in the child for ever.
    """
    _forking.held = held = ExitStack()
    held.enter_context(_importing)
    if numba := sys.modules.get("numba.core.compiler_lock"):
        held.enter_context(numba.global_compiler_lock)


def _go_on() -> None:
    """Release in parent and child what the fork has waited for."""
    held: ExitStack | None = vars(_forking).pop("held", None)
    if held:
        held.close()


if hasattr(os, "register_at_fork"):
    # The last to register is the first to be called before a fork. These two take locks there that
    # an import may need: they must have registered, so that we wait before they take them.
    import_module("logging")
    import_module("concurrent.futures.thread")
    os.register_at_fork(before=_wait_for_kernels, after_in_parent=_go_on, after_in_child=_go_on)


def first_words(key: Key, count: int) -> Words:
    """Return the first words of a key's stream, read-only, in one piece."""
    with _importing:
        _use_once()
    words = np.empty(count, dtype=WORD)
    key.stream().fill(words)
    words.flags.writeable = False
    return words


def expand(
    key: Key,
    variates: int,
    count: int,
    prepare: Callable[[int], Worker],
    threads: int | None,
    chunk_words: int = CHUNK_WORDS,
) -> None:
    """Hand the words of `count` elements, `variates` for each, to a worker, chunk by chunk.

    `prepare(longest)` is called once for each thread and returns the worker, which is then called
    with the read-only words of the elements from start to stop.
    """
    short = max(_SHORTEST_CHUNK, count * variates // _CHUNKS_IN_A_SHORT_CALL)
    longest = max(1, min(count, min(chunk_words, short) // variates))

    def reader(first: int, last: int) -> _Reader:
        """Return what fills the words of a run's next chunk, one thread at a time."""
        stream, turn = key.stream(first * variates), allocate_lock()
        starts = iter(range(first, last, longest))

        def read(words: Words) -> _Run:
            with turn:
                start = next(starts, last)
                stop = min(start + longest, last)
                if start < stop:
                    stream.fill(words[: (stop - start) * variates])
            return start, stop

        return read

    stopped: list[bool] = []

    def work(read: _Reader) -> None:
        worker = prepare(longest)
        words = np.empty(longest * variates, dtype=WORD)
        readable = words.view()
        readable.flags.writeable = False
        start, stop = read(words)
        while start < stop and not stopped:
            worker(readable[: (stop - start) * variates], start, stop)
            start, stop = read(words)

    if threads is None:
        threads = min(cores(), count * variates // _WORDS_WORTH_A_THREAD)
    runs = _runs(count, longest, threads)
    if len(runs) > 1 and key.is_wide(longest * variates):
        # The stream from word 0 is twice as quick as others: two threads read it in turn.
        both = reader(runs[0][0], runs[1][1])
        readers = [both, both, *(reader(*run) for run in runs[2:])]
    else:
        readers = [reader(*run) for run in runs]
    _side_by_side(work, readers, stopped)


def in_runs(work: Callable[[int, int], None], count: int, longest: int, threads: int) -> None:
    """Call work(first, last) on runs of whole chunks, which threads take in turn; wait for all.

    A thread that is held up takes fewer. When this returns or raises, none works any more.
    """
    runs = _runs(count, longest, _TURNS * threads if threads > 1 else 1)
    left, turn, stopped = iter(runs), allocate_lock(), list[bool]()

    def next_run() -> _Run | None:
        with turn:
            return next(left, None)

    def take(_: int) -> None:
        while not stopped and (run := next_run()):
            work(*run)

    _side_by_side(take, range(min(threads, len(runs))), stopped)


def _runs(count: int, longest: int, threads: int) -> list[_Run]:
    """Split a count into one run of whole chunks for each thread."""
    chunks = -(-count // longest)
    threads = min(threads, chunks)
    if threads <= 1:
        return [(0, count)]
    return list(pairwise(min(count, longest * (chunks * t // threads)) for t in range(threads + 1)))


def _side_by_side(work: Callable[[_Job], None], jobs: Sequence[_Job], stopped: list[bool]) -> None:
    """Do each job in a thread of its own, but the first one here; raise what one raised first.

    `stopped` is no longer empty as soon as one has failed or the wait was interrupted, so that the
    others need not go on. Threads made for the call, rather than a pool that is kept, cannot be
    lost in a fork.
    """
    if len(jobs) == 1:
        work(jobs[0])
    else:
        shielded(lambda: _in_threads(work, jobs, stopped), stopped)


def _in_threads(work: Callable[[_Job], None], jobs: Sequence[_Job], stopped: list[bool]) -> None:
    failures: list[BaseException] = []
    others: list[LockType] = []

    def attempt(job: _Job) -> None:
        try:
            work(job)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            stopped.append(True)

    def attempt_elsewhere(job: _Job, done: LockType) -> None:
        attempt(job)
        done.release()

    for job in jobs[1:]:
        done = allocate_lock()
        done.acquire()
        try:
            start_new_thread(attempt_elsewhere, (job, done))
        except RuntimeError:  # There are no more threads, as when the interpreter ends.
            attempt(job)
        else:
            others.append(done)
    attempt(jobs[0])
    for done in others:
        done.acquire()
    if failures:
        raise failures[0]
