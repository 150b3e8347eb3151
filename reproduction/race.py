"""Time contenders in turns, and compare them by the ratio within a round.

A slow phase of the machine then affects all contenders, and the median ignores it. The races of the
paper are timed in CPU time, so that other programs do not count.
"""

import math
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dpnoise.auditing.attacks.base import Progress, no_progress
from dpnoise.core.machine import describe_machine
from dpnoise.core.safe_text import format_near_limits
from reproduction.piece import CONFIRMED, DIFFERS, INCONCLUSIVE, Effort

# The confidence of the limits in each verdict on time.
CONFIDENCE: Final = 0.999

# Whether the CPU clock is finer than a round; that of Windows has steps of 16 ms.
_HAS_FINE_CLOCK: Final = time.get_clock_info("process_time").resolution <= 1e-5
TIMER: Final = time.process_time if _HAS_FINE_CLOCK else time.perf_counter


@dataclass(frozen=True)
class Contender:
    """A call, and the number of variates that it makes."""

    call: Callable[[], object]
    items: int = 1


@dataclass(frozen=True)
class Ratio:
    """The ratios of all rounds, their median, and its limits at CONFIDENCE.

    The limits are order statistics: they hold for independent rounds of any distribution. They are
    about this run; another process on this machine may differ by more.
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

    def judge(self, low: float = 0.0, high: float = math.inf) -> str:
        """Return the verdict on "between low and high": inconclusive if the limits straddle one."""
        least, most = self.limits
        if low <= least and most <= high:
            return CONFIRMED
        return DIFFERS if most < low or least > high else INCONCLUSIVE

    def describe(self, *borders: float) -> str:
        """Return the median and its limits as text, none rounded across a border of the verdict."""
        return f"{format_near_limits(self.median, *borders)} ({self.describe_limits(*borders)})"

    def describe_limits(self, *borders: float) -> str:
        """Return the limits as text."""
        if not rank(len(self.rounds)):
            return "too few rounds for limits"
        least, most = (format_near_limits(limit, *borders) for limit in self.limits)
        return f"{least} to {most}"


def rank(rounds: int) -> int:
    """Return the k such that the median lies between the k-th values from either end, or 0.

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


def combine_verdicts(verdicts: Iterable[str]) -> str:
    """Combine verdicts: confirmed if all are, differs if one does, otherwise inconclusive."""
    distinct = set(verdicts)
    if distinct == {CONFIRMED}:
        return CONFIRMED
    return DIFFERS if DIFFERS in distinct else INCONCLUSIVE


@dataclass(frozen=True)
class Race:
    """Seconds for each variate, by contender and round."""

    seconds: Mapping[str, list[float]]

    def microseconds(self, name: str) -> float:
        """Return the median time of one variate."""
        return 1e6 * statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """Return the interquartile range of the rounds, relative to the median."""
        low, middle, high = statistics.quantiles(self.seconds[name], n=4)
        return (high - low) / middle

    def ratio(self, name: str, other: str) -> Ratio:
        """Return the ratio of two times, round by round."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return Ratio(tuple(a / b for a, b in pairs))

    def rows(self, against: str) -> list[tuple[str, float, float, float, str]]:
        """Return the time, spread and ratio to `against` of each contender, for a table."""
        rows = []
        for name in self.seconds:
            ratio = self.ratio(name, against)
            rows.append(
                (
                    name,
                    self.microseconds(name),
                    self.spread(name),
                    ratio.median,
                    ratio.describe_limits(),
                )
            )
        return rows

    def conditions(self) -> str:
        """Return a sentence about rounds, clock and machine, for every verdict on time."""
        rounds = len(next(iter(self.seconds.values())))
        clock = "CPU time" if _HAS_FINE_CLOCK else "time"
        machine = describe_machine()
        return f"{rounds} rounds of {clock} on {machine}, limits at confidence {CONFIDENCE:g}."


def columns(against: str) -> tuple[str, ...]:
    """Return the column titles of `Race.rows`."""
    return ("sampler", "microseconds", "spread", f"times {against}", "limits")


def race(contenders: Mapping[str, Contender], effort: Effort, seconds: float = 0.01) -> Race:
    """Time all contenders in turns, each for about `seconds` per round."""
    rounds, seconds = effort.pick(51, 3), effort.pick(seconds, seconds / 10)
    return Race(take_turns(contenders, rounds, seconds, effort.progress, TIMER))


def take_turns(
    contenders: Mapping[str, Contender],
    rounds: int,
    seconds: float = 0.0,
    progress: Progress = no_progress,
    timer: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds per item in each round, of one call or of calls for about `seconds`."""
    repeats = {name: _repeats(contender, seconds) for name, contender in contenders.items()}
    durations: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name, contender in contenders.items():
            items = repeats[name] * contender.items
            duration = timeit.timeit(contender.call, timer=timer, number=repeats[name])
            durations[name].append(duration / items)
        progress((i + 1) / rounds)
    return durations


def _repeats(contender: Contender, seconds: float) -> int:
    """Return the number of calls that fill a round."""
    contender.call()  # Compiles the call and warms the caches.
    if not seconds:
        return 1
    duration = max(timeit.timeit(contender.call, number=3) / 3, 1e-8)
    return max(1, int(seconds / duration))
