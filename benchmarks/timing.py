"""How we time: contenders take turns, as in `reproduction.race`, and the best round counts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time

from reproduction.race import Contender, take_turns


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


Taken = dict[str, float]


def taken_by(call: Callable[[], object]) -> Taken:
    """Return the seconds of a call, by the clock and of all cores, and the peak of memory."""
    before, start = process_time(), perf_counter()
    call()
    seconds = perf_counter() - start
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": seconds, "cpu": process_time() - before, "MB": peak}


def apart(module: str, contender: str, *arguments: str) -> Taken:
    """Run a contender in a process of its own, which prints what it took: `--run CONTENDER ...`."""
    done = subprocess.run(  # noqa: S603 - this interpreter, our own code
        [sys.executable, "-m", module, "--run", contender, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])},
        cwd=Path(__file__).parent.parent,
    )
    return dict(json.loads(done.stdout))


def least_of(
    module: str, contenders: Iterable[str], arguments: Sequence[str], rounds: int
) -> dict[str, Taken]:
    """Let contenders take turns, each run in a process of its own; the least of all rounds."""
    least: dict[str, Taken] = {}
    for _ in range(rounds):
        for contender in contenders:
            taken = apart(module, contender, *arguments)
            known = least.get(contender, taken)
            least[contender] = {name: min(taken[name], known[name]) for name in taken}
    return least
