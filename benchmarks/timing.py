"""How we time: contenders take turns, so that a slow minute of the machine hits all of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The rounds of one contender, in seconds for each item."""

    rounds: tuple[float, ...]

    @property
    def nanoseconds(self) -> float:
        """The best time of an item: what it takes when nothing else disturbs it."""
        return min(self.rounds) * 1e9

    def ratio_to(self, other: "Timing") -> float:
        """Return the quotient of the two best times of one run."""
        return self.nanoseconds / other.nanoseconds


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
