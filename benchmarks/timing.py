"""How we time: contenders take turns, so that a slow minute of the machine hits all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The rounds of one contender, in seconds for each item."""

    rounds: tuple[float, ...]

    @property
    def nanoseconds(self) -> float:
        """The median time of an item."""
        return statistics.median(self.rounds) * 1e9

    def ratio_to(self, other: "Timing") -> float:
        """Return the median of the round-by-round ratios: one run, the same minutes."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))


def race(
    contenders: Mapping[str, tuple[Callable[[], object], int]], rounds: int
) -> dict[str, Timing]:
    """Time each contender (a call, and how many items it makes) once a round, in turns."""
    for call, _ in contenders.values():
        call()  # Compiles, and warms the caches.
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (call, items) in contenders.items():
            start = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - start) / items)
    return {name: Timing(tuple(values)) for name, values in taken.items()}
