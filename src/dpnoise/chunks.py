"""Runs kernels over a key's stream, chunk by chunk, on several threads, in constant memory."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from threading import Event
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.entropy import WORD, Key

# 512 KiB of words: large enough for ChaCha20 to run at full speed, small enough for a core's cache.
CHUNK_WORDS: Final = 2**16
# A short call takes shorter chunks, because fresh memory costs more than a few more turns.
_SHORTEST_CHUNK: Final = 2**13
_CHUNKS_IN_A_SHORT_CALL: Final = 8
# Below this many words a second thread costs more than it brings.
_WORDS_WORTH_A_THREAD: Final = 2**19

# Held while kernels are imported, and by a fork: see `_wait_for_kernels`.
_importing: Final = threading.RLock()
_forking: Final = threading.local()

Words = NDArray[np.uint64]
Chunk = Callable[[Words, int, int], None]


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=64)
def kernel_named(name: str) -> Callable[..., Any]:
    """Import a kernel when the first call needs it, because Numba takes long to import."""
    module, function = name.split(".")
    with _importing:
        _use_once()
        kernel: Callable[..., Any] = getattr(import_module(f"dpnoise.kernels.{module}"), function)
    return kernel


@lru_cache(maxsize=1)
def _use_once() -> None:
    """Do what Numba and the cipher leave to their first use, while a fork would wait for it."""
    import_module("dpnoise.kernels").finish_importing()
    Key.fresh().stream().fill(np.empty(1, dtype=WORD))


@lru_cache(maxsize=64)
def kernel_for_one(name: str, floats: int = 0) -> Callable[..., float]:
    """Import a kernel that takes bytes, a number of bits and floats, ready to be called at once."""
    kernel = kernel_named(name)
    without_dispatch = sys.modules["dpnoise.kernels"].without_dispatch
    one: Callable[..., float] = without_dispatch(kernel, floats)
    return one


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
    os.register_at_fork(before=_wait_for_kernels, after_in_parent=_go_on, after_in_child=_go_on)


def expand(
    key: Key,
    variates: int,
    count: int,
    prepare: Callable[[int], Chunk],
    threads: int | None,
    chunk_words: int = CHUNK_WORDS,
) -> None:
    """Hand the words of `count` elements, `variates` for each, to a worker, chunk by chunk.

    `prepare(longest)` is called once for each thread and returns the worker, which is then called
    with the read-only words of the elements from start to stop.
    """
    short = max(_SHORTEST_CHUNK, count * variates // _CHUNKS_IN_A_SHORT_CALL)
    longest = max(1, min(count, min(chunk_words, short) // variates))

    stopped = Event()

    def work(first: int, last: int) -> None:
        worker = prepare(longest)
        words = np.empty(longest * variates, dtype=WORD)
        readable = words.view()
        readable.flags.writeable = False
        stream = key.stream(first * variates)
        for start in range(first, last, longest):
            if stopped.is_set():
                return
            stop = min(start + longest, last)
            size = (stop - start) * variates
            stream.fill(words[:size])
            worker(readable[:size], start, stop)

    if threads is None:
        threads = min(cores(), count * variates // _WORDS_WORTH_A_THREAD)
    in_runs(work, count, longest, threads, stopped)


def in_runs(
    work: Callable[[int, int], None],
    count: int,
    longest: int,
    threads: int,
    stopped: Event | None = None,
) -> None:
    """Call work(first, last) on one run of whole chunks for each thread, and wait for all.

    When this returns or raises, no thread works any more. `stopped` is set as soon as one run has
    failed or the wait was interrupted, so that the others need not go on. A pool made for the call,
    rather than one that is kept, has no threads that a fork could lose.
    """
    stopped = Event() if stopped is None else stopped
    chunks = -(-count // longest)
    threads = max(1, min(threads, chunks))
    if threads == 1:
        work(0, count)
        return

    # Nobody starts before all are known: an interrupt may lose one that was just submitted.
    started = Event()

    def run(first: int, last: int) -> None:
        started.wait()
        if stopped.is_set():
            return
        try:
            work(first, last)
        except BaseException:
            stopped.set()
            raise

    borders = [min(count, longest * (chunks * t // threads)) for t in range(threads + 1)]
    pool = ThreadPoolExecutor(threads)
    runs: list[Future[None]] = []
    try:
        runs = [pool.submit(run, *ends) for ends in pairwise(borders)]
        started.set()
        for future in runs:
            future.result()
    finally:
        stopped.set()
        started.set()
        _finish(runs)
        pool.shutdown(wait=False)


def _finish(runs: list[Future[None]]) -> None:
    """Wait until nothing runs any more, however often that is interrupted."""
    interrupted = None
    while not all(run.done() for run in runs):
        try:
            wait(runs)
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
