"""How we time: contenders take turns, as in `dpnoise.paper.race`, and the best round counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpnoise.paper.race import Contender, take_turns


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


def timed(
    contenders: Mapping[str, tuple[Callable[[], object], int]], rounds: int
) -> dict[str, Timing]:
    """Time each contender (a call, and how many items it makes) once a round, in turns."""
    racing = {name: Contender(*contender) for name, contender in contenders.items()}
    taken = take_turns(racing, rounds)
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}
