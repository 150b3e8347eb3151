"""Certify an epsilon from the times of calls, without their results.

`processes.timed` compares the time of a release with its noise. This module compares two values.
Calls with both values are timed in a random order. One half of the times chooses an event, t <= q
or t > q. The count of the event in the other half certifies an epsilon, as in any attack.

A busy machine can hide a difference but cannot create one. If the time does not depend on the
value, all assignments of the two values to the calls of the second half are equally likely. The
hits of one value are then hypergeometric. This distribution is narrower than the binomial one that
the limits assume: test_timing_attack.py checks for every number of hits that the rate of false
alarms is below the error.
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
from dpnoise.auditing.attacks.certified_bounds import certified_epsilon
from dpnoise.core.errors import check_integer

Clock = Callable[[], int]
Nanoseconds = NDArray[np.int64]

_WARM_UP: Final = 1000
_BATCH: Final = 64
_THREE_DIGITS: Final = 2**89
# Quantiles of all times that are tried as thresholds: even steps, and finer ones at both ends.
_TAIL_QUANTILES: Final = np.geomspace(1e-5, 1 / 64, 24)
_QUANTILES: Final = np.concatenate([_TAIL_QUANTILES, np.arange(4, 253) / 256, 1 - _TAIL_QUANTILES])


@dataclass(frozen=True)
class Half:
    """The times of equally many calls with value0 and with value1."""

    at0: Nanoseconds
    at1: Nanoseconds


@dataclass(frozen=True)
class Event:
    """A call takes longer than a threshold, or not, at the value where this is likelier."""

    threshold: int
    longer: bool
    at_value1: bool

    @property
    def words(self) -> str:
        """The event as text, for a time t."""
        return (
            f"t {'>' if self.longer else '<='} {self.threshold:,} ns at value{int(self.at_value1)}"
        )

    def hits(self, half: Half) -> tuple[int, int]:
        """Count the event, first at the value where it is likelier."""
        at0, at1 = ((t > self.threshold) == self.longer for t in (half.at0, half.at1))
        likelier, other = (at1, at0) if self.at_value1 else (at0, at1)
        return int(likelier.sum()), int(other.sum())


@dataclass(frozen=True)
class Certificate:
    """The epsilon that the times of one half certify for the event chosen by the other half.

    Parameters
    ----------
    event
        The event.
    hits, trials
        The counts of the event, first at the value where it is likelier, and the calls per value.
    epsilon
        The certified epsilon, or zero.
    """

    event: Event
    hits: tuple[int, int]
    trials: int
    epsilon: float


def time_calls(
    call: Callable[[Any], object],
    value0: Any,
    value1: Any,
    n: int,
    clock: Clock = time.perf_counter_ns,
) -> tuple[Half, Half]:
    """Time n calls in random order, half of them with each value, and return two halves.

    The operating system's randomness assigns values and halves to the calls. The values are two
    ints of 64 bits, floats, NumPy scalars or arrays.
    """
    n = check_integer("n", n, least=400) // 4 * 4
    kinds = np.argsort(np.frombuffer(secrets.token_bytes(8 * n), dtype=np.uint64)) % 4
    at_value1 = (kinds % 2).tolist()
    make = _maker(value0, value1)
    collects_garbage = gc.isenabled()
    gc.disable()
    try:
        _times(call, make, at_value1[:_WARM_UP], clock)
        times = _times(call, make, at_value1, clock)
    finally:
        if collects_garbage:
            gc.enable()
    first0, first1, second0, second1 = (times[kinds == kind] for kind in range(4))
    return Half(first0, first1), Half(second0, second1)


def _maker(value0: Any, value1: Any) -> Callable[[int], Any]:
    """Return a function that makes a new value0 or value1, at an address independent of the value.

    Two objects with fixed addresses can be distinguished by access times, even if they are equal.
    CPython's allocator has size classes for integers, so the integers here are computed from ones
    of three or four digits, which share a size class. (Integers from -5 to 256 are fixed objects.)
    """
    values = value0, value1
    if isinstance(value0, np.ndarray):
        return lambda which: values[which].copy()
    if isinstance(value0, np.generic):
        return np.array(values).__getitem__
    if isinstance(value0, float):
        return array("d", values).__getitem__
    masked = [value ^ _THREE_DIGITS for value in values]
    return lambda which: masked[which] ^ _THREE_DIGITS


def _times(
    call: Callable[[Any], object], make: Callable[[int], Any], at_value1: list[int], clock: Clock
) -> Nanoseconds:
    """Return the duration of each call. Its result is freed before the clock is read again.

    Values are made in batches, so that making a value has no effect on the timing of its call.
    """
    times: list[int] = []
    for start in range(0, len(at_value1), _BATCH):
        for value in [make(which) for which in at_value1[start : start + _BATCH]]:
            before = clock()
            call(value)
            times.append(clock() - before)
    return np.array(times, dtype=np.int64)


def choose_event(half: Half) -> Event:
    """Return the most promising event over all thresholds, both sides and both values."""
    ordered = np.sort(np.concatenate([half.at0, half.at1]))
    thresholds = np.unique(ordered[(_QUANTILES * ordered.size).astype(np.int64)])
    n = half.at0.size
    below = [np.searchsorted(np.sort(t), thresholds, side="right") for t in (half.at0, half.at1)]
    above = [n - hits for hits in below]
    expected = np.array(
        [expected_bound(a, b, n) for a, b in (below, below[::-1], above, above[::-1])]
    )
    kind, best = np.unravel_index(expected.argmax(), expected.shape)
    return Event(int(thresholds[best]), longer=bool(kind >= 2), at_value1=bool(kind % 2))


def certify(first: Half, second: Half, *, error: float, delta: float = 0.0) -> Certificate:
    """Return the epsilon that one half certifies for the event chosen by the other half.

    The epsilon is too large with probability at most `error`. `delta` is the claimed one.

    Examples
    --------
    >>> first = Half(np.full(100, 50), np.full(100, 60))
    >>> certificate = certify(first, first, error=0.001)
    >>> certificate.event.words, certificate.hits, round(certificate.epsilon, 1)
    ('t <= 50 ns at value0', (100, 0), 2.5)
    """
    event, trials = choose_event(first), second.at0.size
    hits = event.hits(second)
    epsilon = certified_epsilon(hits[0], trials, hits[1], trials, error=error, delta=delta)
    return Certificate(event, hits, trials, epsilon)
