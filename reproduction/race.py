"""How we time: contenders take turns, and what counts is the ratio within a round.

A slow minute of the machine then hits all of them, and the median forgets it. The paper's races are
timed by the processor, not by the wall: what other programs take does not count.
"""

import math
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dpnoise.auditing.attacks.base import Progress, silent
from dpnoise.core.machine import described
from dpnoise.core.safe_text import beside
from reproduction.piece import CONFIRMED, DIFFERS, INCONCLUSIVE, Effort

# Of each limit that a verdict by the clock rests on.
CONFIDENCE: Final = 0.999

# A clock of the processor that is finer than a round: Windows has one of 16 ms.
_FINE: Final = time.get_clock_info("process_time").resolution <= 1e-5
TIMER: Final = time.process_time if _FINE else time.perf_counter


@dataclass(frozen=True)
class Contender:
    """A call, and how many variates it makes."""

    call: Callable[[], object]
    items: int = 1


@dataclass(frozen=True)
class Ratio:
    """The median of what the rounds say, and where it lies at CONFIDENCE.

    The limits are order statistics: they hold for rounds that are independent, whatever their
    distribution. They are about this run: another process on this machine may differ by more.
    """

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    @property
    def limits(self) -> tuple[float, float]:
        """The two limits; 0 and infinity if there are too few rounds for any."""
        ordered = sorted(self.rounds)
        k = rank(len(ordered))
        return (ordered[k - 1], ordered[-k]) if k else (0.0, math.inf)

    def judged(self, low: float = 0.0, high: float = math.inf) -> str:
        """Return the verdict on "between low and high": inconclusive where the limits straddle."""
        least, most = self.limits
        if low <= least and most <= high:
            return CONFIRMED
        return DIFFERS if most < low or least > high else INCONCLUSIVE

    def told(self, *borders: float) -> str:
        """Say the median and its limits, none rounded across a border that it is judged by."""
        return f"{beside(self.median, *borders)} ({self.between(*borders)})"

    def between(self, *borders: float) -> str:
        """Say the limits."""
        if not rank(len(self.rounds)):
            return "too few rounds for limits"
        least, most = (beside(limit, *borders) for limit in self.limits)
        return f"{least} to {most}"


def rank(rounds: int) -> int:
    """Return the k for which the median is between the k-th values from either end, or 0.

    It misses with probability 2 P(B < k), B binomial of this many rounds and 1/2.

    Examples
    --------
    >>> rank(51), rank(11), rank(3)
    (14, 1, 0)
    """
    chance, k = 0.0, 0
    while 2 * (chance + math.comb(rounds, k) / 2**rounds) <= 1 - CONFIDENCE:
        chance += math.comb(rounds, k) / 2**rounds
        k += 1
    return k


def all_of(verdicts: Iterable[str]) -> str:
    """Join verdicts: all confirmed, or one differs, or it stays open."""
    found = set(verdicts)
    if found == {CONFIRMED}:
        return CONFIRMED
    return DIFFERS if DIFFERS in found else INCONCLUSIVE


@dataclass(frozen=True)
class Race:
    """Seconds for each variate, by contender and round."""

    seconds: Mapping[str, list[float]]

    def microseconds(self, name: str) -> float:
        """Return the median time of one variate."""
        return 1e6 * statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """Return the distance between the quartiles of the rounds, as a part of the median."""
        low, middle, high = statistics.quantiles(self.seconds[name], n=4)
        return (high - low) / middle

    def ratio(self, name: str, other: str) -> Ratio:
        """Return the ratio of two times, round by round."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return Ratio(tuple(a / b for a, b in pairs))

    def rows(self, against: str) -> list[tuple[str, float, float, float, str]]:
        """Return each contender's time, spread and ratio to one of them, for a table."""
        found = []
        for name in self.seconds:
            ratio = self.ratio(name, against)
            found.append(
                (name, self.microseconds(name), self.spread(name), ratio.median, ratio.between())
            )
        return found

    def measured(self) -> str:
        """Say how and on what it was measured, for every verdict by the clock."""
        rounds = len(next(iter(self.seconds.values())))
        clock = "CPU time" if _FINE else "time"
        return f"{rounds} rounds of {clock} on {described()}, limits at confidence {CONFIDENCE:g}."


def columns(against: str) -> tuple[str, ...]:
    """Name the columns of `Race.rows`."""
    return ("sampler", "microseconds", "spread", f"times {against}", "limits")


def race(contenders: Mapping[str, Contender], effort: Effort, seconds: float = 0.01) -> Race:
    """Time all contenders in turns, each for about this many seconds a round."""
    rounds, seconds = effort.pick(51, 3), effort.pick(seconds, seconds / 10)
    return Race(take_turns(contenders, rounds, seconds, effort.progress, TIMER))


def take_turns(
    contenders: Mapping[str, Contender],
    rounds: int,
    seconds: float = 0.0,
    progress: Progress = silent,
    timer: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return what an item took in each round, of one call or of about this many seconds of them."""
    repeats = {name: _repeats(contender, seconds) for name, contender in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name, contender in contenders.items():
            items = repeats[name] * contender.items
            once = timeit.timeit(contender.call, timer=timer, number=repeats[name])
            taken[name].append(once / items)
        progress((i + 1) / rounds)
    return taken


def _repeats(contender: Contender, seconds: float) -> int:
    """Return how many calls fill a round."""
    contender.call()  # Compiles, and warms the caches.
    if not seconds:
        return 1
    once = max(timeit.timeit(contender.call, number=3) / 3, 1e-8)
    return max(1, int(seconds / once))
