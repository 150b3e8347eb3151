"""Calls of an audit's target, with a time limit, and of sizes that fit the limit."""

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dpnoise.auditing.targets.target import (
    DependentError,
    Releases,
    Target,
    TargetError,
    failure_of,
)
from dpnoise.auditing.tuning import TUNING

_Result = TypeVar("_Result")

# Logarithm of the number of orders above which independent releases do not repeat one by chance.
LOG_ORDERS: Final = 30.0
# Seconds that drawing the releases may take if the caller gives no budget.
_DRAWING_SECONDS: Final = 120.0
TIMED_CALLS: Final = 3  # Calls of one release that are timed: the shortest counts.
# Seconds below which a call is short enough, so that the load of a machine does not decide how many
# calls are made.
_SHORT_CALL: Final = 0.005
# A call for several releases that takes this many times as long as calls for one each is timed
# again: it may have compiled something.
_SLOW_START: Final = 2.0
_TIMED_RELEASES: Final = 64  # Releases that are timed to predict the total time.
# A file of Linux about the thread that reads it. Its second number is the nanoseconds in which the
# thread could run, but other threads had all cores.
_SCHEDULE: Final = "/proc/thread-self/schedstat"
# Of each thread: the seconds for which its calls waited, as `of_calls`, and its idle `caller`.
_queue = threading.local()
_REASON: Final = (
    "An audit counts releases that are independent of each other. Draw new noise in each call, or "
    "have it ask for one release a call: one_by_one=True."
)


class Pace:
    """Sizes of calls that fit a time limit, estimated from the times of earlier calls.

    A slow target is asked for a part of the releases at a time, so that it does not look like one
    that hangs. A short and a long call separate the time per release from the time per call. A call
    may take `seconds`; the estimate aims at a quarter of that. Budgets and numbers of calls do not
    depend on other programs: they leave out the time in which a call waited for a core.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._by_clock: dict[int, float] = {}
        self._calls: dict[int, float] = {}  # Without the time in which they waited for a core.

    def call(self, call: Callable[[], _Result], shown: str, n: int) -> _Result:
        """Make a call for n releases with the time limit, and note how long it took."""
        start, queued = time.perf_counter(), seconds_queued()
        releases = call_in_time(call, shown, self.seconds)
        self.note(n, time.perf_counter() - start, seconds_queued() - queued)
        return releases

    def note(self, n: int, seconds: float, queued: float = 0.0) -> None:
        """Note how long a call for n releases took, and how much of that it waited for a core."""
        self._by_clock[n] = min(seconds, self._by_clock.get(n, seconds))
        apart = max(0.0, seconds - queued)
        self._calls[n] = min(apart, self._calls.get(n, apart))

    def seconds_per_release(self) -> float:
        """Return the seconds per release, without the time that every call takes."""
        return _seconds_per_release(self._calls)

    def affordable_budget(self, default: int) -> int | None:
        """Return a budget below the default for a slow target, or None if it can have that."""
        in_time = _DRAWING_SECONDS / max(self.seconds_per_release(), 1e-12)
        return None if in_time >= default else max(TUNING.least_budget, int(in_time))

    def affordable_calls(self, most: int) -> int:
        """Return how many calls for each of two data sets take at most `TUNING.calls_seconds`.

        The time that the releases take is not counted, because it does not depend on the calls.
        """
        few = min(self._calls, default=1)
        per_release = self.seconds_per_release() if len(self._calls) > 1 else 0.0
        overhead = self._calls.get(few, 0.0) - few * per_release
        if overhead < _SHORT_CALL:
            return most
        in_time = TUNING.calls_seconds / (2 * overhead)
        return max(TUNING.least_calls, min(most, int(in_time)))

    def call_sizes(self, n: int, most: int | None = None) -> Iterator[int]:
        """Yield the number of releases for each call, n in total and at most `most` per call."""
        left = n
        while left:
            in_time = self.seconds / 4 / max(_seconds_per_release(self._by_clock), 1e-12)
            at_once = max(1, int(min(left, most or left, in_time)))
            yield at_once
            left -= at_once


def _seconds_per_release(calls: Mapping[int, float]) -> float:
    """Return the seconds per release, given those of calls by their numbers of releases."""
    if not calls:
        return 0.0
    few, many = min(calls), max(calls)
    if few == many:
        return calls[few] / few
    return max(0.0, calls[many] - calls[few]) / (many - few)


def seconds_queued() -> float:
    """Return the seconds for which calls of this thread waited for a core so far.

    A target that waits for something else, such as another process, does not wait for a core. Only
    Linux knows these seconds; elsewhere they are 0.
    """
    return getattr(_queue, "of_calls", 0.0)


def _seconds_queued_here() -> float:
    """Return the seconds for which this thread itself waited for a core since it started."""
    try:
        with open(_SCHEDULE, "rb") as file:  # noqa: PTH123 - a Path takes twice as long
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class _Caller:
    """A thread that makes calls for another thread, one after the other.

    It ends when nothing refers to this object any more, after the call that it is making.
    """

    def __init__(self) -> None:
        self.process = os.getpid()  # A child process does not have the thread.
        self.queued = 0.0  # Seconds for which the thread and its calls waited for a core so far.
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_make_calls, args=(self._calls,), daemon=True).start()

    def __del__(self) -> None:
        self._calls.put(None)

    def make(self, call: Callable[[], None], seconds: float) -> bool:
        """Make a call, and return whether it ended within the seconds."""
        ended = threading.Event()

        def run() -> None:
            call()
            ended.set()

        self._calls.put(run)
        return _wait(ended, seconds)


def _wait(ended: threading.Event, seconds: float) -> bool:
    return ended.wait(seconds)


def _make_calls(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while call := calls.get():
        call()
        del call  # It refers to the releases.


def call_in_time(call: Callable[[], _Result], shown: str, seconds: float) -> _Result:
    """Make a call with a time limit; raise its exceptions as TargetError with the text `shown`.

    The call runs in a separate thread, because only a thread can be abandoned when it hangs. The
    next call uses the same thread if this one ends in time. If the call forks, the child ends when
    the call returns in it.
    """
    result: list[_Result] = []
    failure: list[BaseException] = []
    queued: list[float] = []
    parent_pid = os.getpid()

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            failure.append(error)
        if os.getpid() != parent_pid:
            os._exit(0)
        queued.append(_seconds_queued_here() + seconds_queued())

    caller = _queue.__dict__.pop("caller", None)
    if caller is None or caller.process != parent_pid:
        caller = _Caller()
    if caller.make(run, seconds):
        _queue.of_calls = seconds_queued() + queued[0] - caller.queued
        _queue.caller, caller.queued = caller, queued[0]
    for error in failure:
        if isinstance(error, TargetError):
            raise error
        raise failure_of(shown, error) from error
    if not result:
        raise TargetError(f"{shown} took more than {seconds:g} s.")
    return result[0]


def with_time_limit(target: Target, seconds: float) -> Target:
    """Return the target with a time limit for each call, and with the call named in errors."""
    pace = Pace(seconds)

    def call_once(value: float, n: int) -> ArrayLike:
        try:
            return pace.call(lambda: target.release(value, n), f"{target.name}({value!r}, {n})", n)
        except TargetError as error:
            if value % 1 == 0 or error.__cause__ is None:
                raise
            advice = 'If it takes only integers, give pairs="whole".'
            raise TargetError(f"{str(error).rstrip('.')}. {advice}") from error.__cause__

    def release(value: float, n: int) -> ArrayLike:
        chunks = [call_once(value, m) for m in pace.call_sizes(n)]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    return replace(target, release=release)


def time_calls(ask: Callable[[int], object], most: int = _TIMED_RELEASES) -> Pace:
    """Return the pace of a target from calls of one release and of `most`.

    The first call is not timed, because it may compile. The first call for more than one release
    may compile, too: if it takes much longer than `most` calls of one, a second one is timed.
    """
    pace = Pace(_DRAWING_SECONDS)

    def time_call(n: int) -> float:
        start, queued = time.perf_counter(), seconds_queued()
        ask(n)
        seconds, queued = time.perf_counter() - start, seconds_queued() - queued
        pace.note(n, seconds, queued)
        return max(0.0, seconds - queued)

    ask(1)
    shortest = min(time_call(1) for _ in range(TIMED_CALLS))
    if time_call(most) > _SLOW_START * most * shortest:
        time_call(most)
    return pace


def draw_fresh(
    target: Target, value: float, seen: Releases, sizes: Sequence[int]
) -> list[Releases]:
    """Draw releases in calls of these sizes; raise DependentError if they repeat each other.

    The releases in `seen` are those of an earlier call. A target that repeats its noise may be
    private, but would look broken: its n trials are one trial. A constant target is private as
    well, and passes.
    """
    calls = [target(value, n) for n in sizes]
    call = f"{target.name}({value!r}, {sum(sizes)})"
    constant = all((releases == releases[0]).all() for releases in [seen, *calls])
    if constant and any(releases[0] != seen[0] for releases in calls):
        raise DependentError(
            f"{call} gave one number {sum(sizes)} times, the next time another. {_REASON}"
        )
    shortest = min(len(seen) if len(sizes) == 1 else sizes[0], *sizes)
    starts = np.array([releases[:shortest] for releases in [seen, *calls][len(sizes) > 1 :]])
    # The logarithm of the chance that independent releases repeat the order of the first call.
    repeated = (starts == starts[0]).all()
    if repeated and log_orders(starts.ravel()) - log_orders(starts[0]) > LOG_ORDERS:
        raise DependentError(f"{call} gave the same releases twice: a fixed seed. {_REASON}")
    return calls


def log_orders(releases: Iterable[object]) -> float:
    """Return the logarithm of the number of orders of these releases, all equally likely."""
    counts = Counter(releases).values()
    return math.lgamma(sum(counts) + 1) - sum(math.lgamma(count + 1) for count in counts)
