"""How an audit calls its target: for so long and no longer, and for releases that are new."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dpnoise.auditing.targets.target import DependentError, Releases, Target, TargetError
from dpnoise.auditing.tuning import TUNING

_Result = TypeVar("_Result")

_MANY: Final = 30.0  # Of exp(30) orders, independent releases do not repeat one by chance.
_PATIENCE: Final = 120.0  # Seconds that an audit may take for its releases, if nobody says.
_TIMED: Final = 64  # Releases by which that is foreseen.
_WHY: Final = "An audit counts releases that are independent of each other."


class Pace:
    """How much one call may ask for, by how long the calls before took.

    A target that takes so long for each release is asked for a part of them at a time, so that it
    is not taken for one that hangs. What a call takes by itself, however much it is asked for,
    shows in a shorter and a longer one. A call may take `seconds`, and a quarter is aimed at.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls: dict[int, float] = {}

    def call(self, call: Callable[[], _Result], shown: str, n: int) -> _Result:
        """Make a call for n releases with the time limit, and note how long it took."""
        start = time.perf_counter()
        releases = call_in_time(call, shown, self.seconds)
        self.note(n, time.perf_counter() - start)
        return releases

    def note(self, n: int, seconds: float) -> None:
        """Note how long a call for n releases took."""
        self._calls[n] = seconds

    def each(self) -> float:
        """Return the seconds that one release takes more than none."""
        if not self._calls:
            return 0.0
        few, many = min(self._calls), max(self._calls)
        if few == many:
            return self._calls[few] / few
        return max(0.0, self._calls[many] - self._calls[few]) / (many - few)

    def parts(self, n: int, most: int | None = None) -> Iterator[int]:
        """Yield how many releases to ask for in each call, `most` at most, so that they are n."""
        left = n
        while left:
            in_time = self.seconds / 4 / max(self.each(), 1e-12)
            at_once = max(1, int(min(left, most or left, in_time)))
            yield at_once
            left -= at_once


def affordable_budget(ask: Callable[[int], object], default: int) -> int | None:
    """Return a smaller budget than the default one, if a target is so slow that it would take long.

    `ask` asks for some releases: one for each that it is given, after a first one that may take
    longer than others.
    """
    pace = Pace(_PATIENCE)
    ask(1)
    for n in (1, _TIMED):
        start = time.perf_counter()
        ask(n)
        pace.note(n, time.perf_counter() - start)
    in_time = _PATIENCE / max(pace.each(), 1e-12)
    return None if in_time >= default else max(TUNING.least_budget, int(in_time))


def call_in_time(call: Callable[[], _Result], shown: str, seconds: float) -> _Result:
    """Make a call with a time limit, and give every exception its name.

    The call runs in a thread of its own, because nothing else can be left behind when it hangs. A
    child that it forks, and that comes back from it, ends here.
    """
    result: list[_Result] = []
    failure: list[BaseException] = []
    ours = os.getpid()

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # noqa: BLE001 - told in the caller's thread
            failure.append(error)
        if os.getpid() != ours:
            os._exit(0)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in failure:
        if isinstance(error, TargetError):
            raise error
        raise TargetError(f"{shown} raised {_named(error)}") from error
    if not result:
        raise TargetError(f"{shown} took more than {seconds:g} s.")
    return result[0]


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception of the target's own, which cannot say what it is
        return type(error).__name__


def with_time_limit(target: Target, seconds: float) -> Target:
    """Give every call of a target a time limit, and every exception the name of the call."""
    pace = Pace(seconds)

    def called(value: float, n: int) -> ArrayLike:
        return pace.call(lambda: target.release(value, n), f"{target.name}({value!r}, {n})", n)

    def release(value: float, n: int) -> ArrayLike:
        parts = [called(value, m) for m in pace.parts(n)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return replace(target, release=release)


def draw_fresh(target: Target, value: float, seen: Releases) -> Releases:
    """Return as many releases as were seen, or raise if these are no new ones.

    A target that repeats its noise may be private, and would look broken: its trials are one trial,
    counted n times. A constant target is private as well, and passes.
    """
    n = len(seen)
    releases = target(value, n)
    call = f"{target.name}({value!r}, {n})"
    if (seen == seen[0]).all() and (releases == releases[0]).all() and seen[0] != releases[0]:
        raise DependentError(f"{call} gave one number {n} times, the next time another. {_WHY}")
    if (seen == releases).all():
        # The logarithm of in how many orders these releases could have come, all as likely.
        counts = np.unique(releases, return_counts=True)[1]
        orders = math.lgamma(n + 1) - sum(math.lgamma(count + 1) for count in counts)
        if orders > _MANY:
            raise DependentError(f"{call} gave the same releases twice: a fixed seed. {_WHY}")
    return releases
