"""How an audit calls its target: for so long and no longer, and for releases that are new."""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np

from dpnoise.targets.target import Releases, Target, TargetError

_MANY: Final = 30.0  # Of exp(30) orders, independent releases do not repeat one by chance.
_WHY: Final = "An audit counts releases that are independent of each other."


class ExitCalledError(BaseException):
    """What os._exit raises in a call of a target."""


@contextmanager
def without_exit() -> Iterator[None]:
    """Let os._exit raise in this thread of this process, where it would end the whole audit.

    It ends children of the target, and whoever else runs beside an audit, as it always does.
    """
    real, ours = os._exit, (os.getpid(), threading.get_ident())

    def refused(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) != ours:
            real(status)
        raise ExitCalledError(f"called os._exit({status}).")

    os._exit = refused
    try:
        yield
    finally:
        os._exit = real


def timed(call: Callable[[], Any], shown: str, seconds: float) -> Any:
    """Make a call with a time limit, and give every exception its name.

    The call runs in a thread of its own, because nothing else can be left behind when it hangs. A
    child that it forks, and that comes back from it, ends here.
    """
    result: list[Any] = []
    failure: list[BaseException] = []
    ours, really_exit = os.getpid(), os._exit

    def run() -> None:
        try:
            with without_exit():
                result.append(call())
        except BaseException as error:  # noqa: BLE001 - told in the caller's thread
            failure.append(error)
        if os.getpid() != ours:
            really_exit(0)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in failure:
        if isinstance(error, ExitCalledError):
            raise TargetError(f"{shown} {error}")
        raise TargetError(f"{shown} raised {type(error).__name__}: {error}") from error
    if not result:
        raise TargetError(f"{shown} took more than {seconds:g} s.")
    return result[0]


def limited(target: Target, seconds: float) -> Target:
    """Give every call of a target a time limit, and every exception the name of the call."""

    def release(value: float, n: int) -> Any:
        shown = f"{target.name}({value!r}, {n})"
        return timed(lambda: target.release(value, n), shown, seconds)

    return replace(target, release=release)


def fresh(target: Target, value: float, seen: Releases) -> Releases:
    """Return as many releases as were seen, or raise if these are no new ones.

    A target that repeats its noise may be private, and would look broken: its trials are one trial,
    counted n times. A constant target is private as well, and passes.
    """
    n = len(seen)
    releases = target(value, n)
    call = f"{target.name}({value!r}, {n})"
    if (seen == seen[0]).all() and (releases == releases[0]).all() and seen[0] != releases[0]:
        raise TargetError(f"{call} gave one number {n} times, the next time another. {_WHY}")
    if (seen == releases).all() and _orders(releases) > _MANY:
        raise TargetError(f"{call} gave the same releases twice: a fixed seed. {_WHY}")
    return releases


def _orders(releases: Releases) -> float:
    """Return the logarithm of in how many orders these releases could have come, all as likely."""
    counts = np.unique(releases, return_counts=True)[1]
    return math.lgamma(len(releases) + 1) - sum(math.lgamma(count + 1) for count in counts)
