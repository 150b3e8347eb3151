"""How the reproduction times: contenders take turns, and what counts is the ratio within a round.

A slow minute of the machine then hits all of them, and the median forgets it.
"""

import statistics
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpnoise.paper.piece import Effort


@dataclass(frozen=True)
class Contender:
    """A call, and how many variates it makes."""

    call: Callable[[], object]
    items: int = 1


@dataclass(frozen=True)
class Race:
    """Seconds for each variate, by contender and round."""

    seconds: Mapping[str, list[float]]

    def microseconds(self, name: str) -> float:
        """Return the median time of one variate."""
        return 1e6 * statistics.median(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median over the rounds of the ratio of two times."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)


def race(contenders: Mapping[str, Contender], effort: Effort, seconds: float = 0.01) -> Race:
    """Time all contenders in turns, each for about so many seconds a round."""
    timers, repeats = {}, {}
    for name, contender in contenders.items():
        contender.call()  # Compiles, and warms the caches.
        timers[name] = timeit.Timer(contender.call)
        once = max(timers[name].timeit(3) / 3, 1e-8)
        repeats[name] = max(1, int(effort.pick(seconds, seconds / 10) / once))
    rounds = effort.pick(51, 3)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name, timer in timers.items():
            items = repeats[name] * contenders[name].items
            taken[name].append(timer.timeit(repeats[name]) / items)
        effort.progress((i + 1) / rounds)
    return Race(taken)
