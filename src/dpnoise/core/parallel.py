"""Run kernels over a key stream in chunks, on several threads, in constant memory."""

import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from dpnoise.core.entropy import WORD, Key, Words
from dpnoise.core.kernel_table import load_kernels
from dpnoise.core.signals import run_uninterrupted

# 512 KiB of words: enough for a cipher to run at full speed, and within a core's cache.
CHUNK_WORDS: Final = 2**16
# A short call uses shorter chunks, because fresh memory costs more than a few more iterations.
_SHORTEST_CHUNK: Final = 2**13
_CHUNKS_IN_A_SHORT_CALL: Final = 8
# Below this many words a second thread costs more time than it saves.
_WORDS_WORTH_A_THREAD: Final = 2**19
# Spans for each thread in `run_in_parallel`, so that a delayed thread leaves work to the others.
_SPANS_PER_THREAD: Final = 8

Worker = Callable[[Words, int, int], None]
_Span = tuple[int, int]  # A half-open range of elements.
_Job = TypeVar("_Job")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def first_words(key: Key, count: int) -> Words:
    """Return the first words of a key's stream as a read-only array."""
    load_kernels()
    words = np.empty(count, dtype=WORD)
    key.stream().fill(words)
    words.flags.writeable = False
    return words


class _Reader:
    """Reads the words of a span of elements in chunks. Several threads may share it."""

    def __init__(self, key: Key, variates: int, span: _Span, chunk_elements: int) -> None:
        first, self._last = span
        self._variates, self._chunk_elements = variates, chunk_elements
        self._stream, self._lock = key.stream(first * variates), allocate_lock()
        self._starts = iter(range(first, self._last, chunk_elements))

    def read(self, words: Words) -> _Span:
        """Read the words of the next chunk; return its elements, an empty span at the end."""
        with self._lock:
            start = next(self._starts, self._last)
            stop = min(start + self._chunk_elements, self._last)
            if start < stop:
                self._stream.fill(words[: (stop - start) * self._variates])
        return start, stop


def run_over_key_stream(
    key: Key,
    variates: int,
    count: int,
    prepare: Callable[[int], Worker],
    threads: int | None,
    chunk_words: int = CHUNK_WORDS,
) -> None:
    """Run workers over the words of `count` elements, in chunks. An element has `variates` words.

    `prepare(chunk_elements)` is called once in each thread and returns its worker. The worker is
    called with the read-only words of the elements from start to stop, at most `chunk_elements` of
    them.
    """
    short_call_words = max(_SHORTEST_CHUNK, count * variates // _CHUNKS_IN_A_SHORT_CALL)
    chunk_elements = max(1, min(count, min(chunk_words, short_call_words) // variates))
    stopped: list[bool] = []

    def work(reader: _Reader) -> None:
        worker = prepare(chunk_elements)
        words = np.empty(chunk_elements * variates, dtype=WORD)
        readable = words.view()
        readable.flags.writeable = False
        start, stop = reader.read(words)
        while start < stop and not stopped:
            worker(readable[: (stop - start) * variates], start, stop)
            start, stop = reader.read(words)

    if threads is None:
        threads = min(cores(), count * variates // _WORDS_WORTH_A_THREAD)
    spans = _split_into_spans(count, chunk_elements, threads)
    readers: list[_Reader] = []
    if len(spans) > 1 and key.uses_gcm(chunk_elements * variates):
        # The stream from word 0 is twice as fast as others, so two threads share it.
        (start, _), (_, stop), *spans = spans
        readers = [_Reader(key, variates, (start, stop), chunk_elements)] * 2
    readers += [_Reader(key, variates, span, chunk_elements) for span in spans]
    _run_concurrently(work, readers, stopped)


def run_in_parallel(
    work: Callable[[int, int], None], count: int, chunk_elements: int, threads: int
) -> None:
    """Call work(first, last) on spans of elements, in several threads, and wait for all.

    A span has a multiple of `chunk_elements` elements; the last one may be shorter. A delayed
    thread takes fewer spans. No thread is at work when this returns or raises.
    """
    spans = _split_into_spans(
        count, chunk_elements, _SPANS_PER_THREAD * threads if threads > 1 else 1
    )
    remaining, lock, stopped = iter(spans), allocate_lock(), list[bool]()

    def next_span() -> _Span | None:
        with lock:
            return next(remaining, None)

    def take_spans(_: int) -> None:
        while not stopped and (span := next_span()):
            work(*span)

    _run_concurrently(take_spans, range(min(threads, len(spans))), stopped)


def _split_into_spans(count: int, chunk_elements: int, most: int) -> list[_Span]:
    """Split `count` elements into at most `most` spans of whole chunks."""
    chunks = -(-count // chunk_elements)
    number = min(most, chunks)
    if number <= 1:
        return [(0, count)]
    ends = (min(count, chunk_elements * (chunks * i // number)) for i in range(number + 1))
    return list(pairwise(ends))


def _run_concurrently(
    work: Callable[[_Job], None], jobs: Sequence[_Job], stopped: list[bool]
) -> None:
    """Do the first job here and each other job in a new thread; raise the first exception.

    A failure or an interrupt appends to `stopped`, which the other jobs may check to end early.
    New threads for each call, instead of a pool, cannot be lost in a fork.
    """
    if len(jobs) == 1:
        work(jobs[0])
    else:
        run_uninterrupted(lambda: _start_and_join_threads(work, jobs, stopped), stopped)


def _start_and_join_threads(
    work: Callable[[_Job], None], jobs: Sequence[_Job], stopped: list[bool]
) -> None:
    """Do the first job in this thread and the others in new ones; wait for all of them."""
    failures: list[BaseException] = []
    unfinished: list[LockType] = []

    def attempt(job: _Job) -> None:
        try:
            work(job)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            stopped.append(True)

    def attempt_in_thread(job: _Job, done: LockType) -> None:
        attempt(job)
        done.release()

    for job in jobs[1:]:
        done = allocate_lock()
        done.acquire()
        try:
            start_new_thread(attempt_in_thread, (job, done))
        except RuntimeError:  # No thread can start, for example while the interpreter exits.
            attempt(job)
        else:
            unfinished.append(done)
    attempt(jobs[0])
    for done in unfinished:
        done.acquire()
    if failures:
        raise failures[0]
