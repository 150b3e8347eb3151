"""What a clock alone tells of the value: an epsilon certified from the times of calls.

`processes.timed` compares the time of a release with its noise. This compares two values. Calls of
both are timed in a random order. One half of the times chooses an event, t <= q or t > q; how often
it happens in the other half certifies an epsilon, as the event of any attack does. What the call
returns is not looked at.

A busy machine can hide a difference and cannot feign one. If the time does not depend on the value,
then, whatever the times are, all ways of giving the two values to the calls of the second half are
equally likely. The hits of one value are then hypergeometric, which is narrower than the binomials
that the limits are for: test_timing_attack.py finds the rate of false alarms below the error for
every number of hits.
"""

import gc
import secrets
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import expected_bound
from dpnoise.auditing.attacks.bounds import certified_epsilon
from dpnoise.core.errors import check_integer

Clock = Callable[[], int]
Nanoseconds = NDArray[np.int64]

_WARM_UP: Final = 1000
_AT_A_TIME: Final = 64
_THREE_DIGITS: Final = 2**89
# The parts of all calls below the thresholds that are tried: even steps, and the far ends.
_ENDS: Final = np.geomspace(1e-5, 1 / 64, 24)
_PARTS: Final = np.concatenate([_ENDS, np.arange(4, 253) / 256, 1 - _ENDS])


@dataclass(frozen=True)
class Half:
    """The times of as many calls with value0 as with value1."""

    at0: Nanoseconds
    at1: Nanoseconds


@dataclass(frozen=True)
class Event:
    """A call takes longer than a threshold, or does not, at the value that it is likelier at."""

    threshold: int
    longer: bool
    of1: bool

    @property
    def words(self) -> str:
        """The event of a time t."""
        return f"t {'>' if self.longer else '<='} {self.threshold:,} ns at value{int(self.of1)}"

    def hits(self, half: Half) -> tuple[int, int]:
        """Count it, first at the value that it is likelier at."""
        at0, at1 = ((t > self.threshold) == self.longer for t in (half.at0, half.at1))
        likelier, other = (at1, at0) if self.of1 else (at0, at1)
        return int(likelier.sum()), int(other.sum())


@dataclass(frozen=True)
class Certified:
    """What the times of one half certify of the event that the other half chose.

    Parameters
    ----------
    event
        The event.
    hits, trials
        How often it happened at the value that it is likelier at and at the other one, of how many.
    epsilon
        What is certified. Zero is nothing.
    """

    event: Event
    hits: tuple[int, int]
    trials: int
    epsilon: float


def taken(
    call: Callable[[Any], object],
    value0: Any,
    value1: Any,
    n: int,
    clock: Clock = time.perf_counter_ns,
) -> tuple[Half, Half]:
    """Time n calls, as many with either value, in random order, and return them in two halves.

    Which call is of which value and in which half is drawn from the operating system. The values
    are two ints of 64 bits, floats, NumPy scalars or arrays.
    """
    n = check_integer("n", n, least=400) // 4 * 4
    kinds = np.argsort(np.frombuffer(secrets.token_bytes(8 * n), dtype=np.uint64)) % 4
    of1 = (kinds % 2).tolist()
    make = _maker(value0, value1)
    collected = gc.isenabled()
    gc.disable()
    try:
        _times(call, make, of1[:_WARM_UP], clock)
        times = _times(call, make, of1, clock)
    finally:
        if collected:
            gc.enable()
    first0, first1, second0, second1 = (times[kinds == kind] for kind in range(4))
    return Half(first0, first1), Half(second0, second1)


def _maker(value0: Any, value1: Any) -> Callable[[int], Any]:
    """Return a function that makes value0 or value1 anew, in a place that does not tell which.

    Two objects that stay where they are can be told apart by the time of their places, even if they
    are equal. CPython has places of several sizes for integers: these are all made in one of three
    digits or four, which is one size. (Those from -5 to 256 are objects that stay.)
    """
    values = value0, value1
    if isinstance(value0, np.ndarray):
        return lambda which: values[which].copy()
    if isinstance(value0, np.generic):
        return np.array(values).__getitem__
    if isinstance(value0, float):
        return array("d", values).__getitem__
    longer = [value ^ _THREE_DIGITS for value in values]
    return lambda which: longer[which] ^ _THREE_DIGITS


def _times(
    call: Callable[[Any], object], make: Callable[[int], Any], of1: list[int], clock: Clock
) -> Nanoseconds:
    """Return how long each call took. Its result is gone before the clock is read again.

    Some values are made at a time: what has just been done to make one is over when it is used.
    """
    times: list[int] = []
    for start in range(0, len(of1), _AT_A_TIME):
        for value in [make(which) for which in of1[start : start + _AT_A_TIME]]:
            before = clock()
            call(value)
            times.append(clock() - before)
    return np.array(times, dtype=np.int64)


def chosen(half: Half) -> Event:
    """Return the event with the largest expected bound, over thresholds, sides and values."""
    ordered = np.sort(np.concatenate([half.at0, half.at1]))
    thresholds = np.unique(ordered[(_PARTS * ordered.size).astype(np.int64)])
    n = half.at0.size
    below = [np.searchsorted(np.sort(t), thresholds, side="right") for t in (half.at0, half.at1)]
    above = [n - hits for hits in below]
    expected = np.array(
        [expected_bound(a, b, n) for a, b in (below, below[::-1], above, above[::-1])]
    )
    kind, best = np.unravel_index(expected.argmax(), expected.shape)
    return Event(int(thresholds[best]), longer=bool(kind >= 2), of1=bool(kind % 2))


def certified(first: Half, second: Half, *, error: float, delta: float = 0.0) -> Certified:
    """Return what one half certifies of the event that the other one chooses.

    The epsilon is too large with probability at most `error`. `delta` is the one that is claimed.

    Examples
    --------
    >>> first = Half(np.full(100, 50), np.full(100, 60))
    >>> found = certified(first, first, error=0.001)
    >>> found.event.words, found.hits, round(found.epsilon, 1)
    ('t <= 50 ns at value0', (100, 0), 2.5)
    """
    event, trials = chosen(first), second.at0.size
    hits = event.hits(second)
    epsilon = certified_epsilon(hits[0], trials, hits[1], trials, error=error, delta=delta)
    return Certified(event, hits, trials, epsilon)
