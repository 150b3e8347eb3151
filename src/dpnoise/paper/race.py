"""How we time: contenders take turns, and what counts is the ratio within a round.

A slow minute of the machine then hits all of them, and the median forgets it.
"""

import statistics
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpnoise.attacks.base import Progress, silent
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
    """Time all contenders in turns, each for about this many seconds a round."""
    rounds, seconds = effort.pick(51, 3), effort.pick(seconds, seconds / 10)
    return Race(take_turns(contenders, rounds, seconds, effort.progress))


def take_turns(
    contenders: Mapping[str, Contender],
    rounds: int,
    seconds: float = 0.0,
    progress: Progress = silent,
) -> dict[str, list[float]]:
    """Return what an item took in each round, of one call or of about this many seconds of them."""
    repeats = {name: _repeats(contender, seconds) for name, contender in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name, contender in contenders.items():
            items = repeats[name] * contender.items
            taken[name].append(timeit.timeit(contender.call, number=repeats[name]) / items)
        progress((i + 1) / rounds)
    return taken


def _repeats(contender: Contender, seconds: float) -> int:
    """Return how many calls fill a round."""
    contender.call()  # Compiles, and warms the caches.
    if not seconds:
        return 1
    once = max(timeit.timeit(contender.call, number=3) / 3, 1e-8)
    return max(1, int(seconds / once))
