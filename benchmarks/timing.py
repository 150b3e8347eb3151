"""Time contenders in turns, as in `reproduction.race`; the best round counts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter, process_time

from reproduction.race import Contender, take_turns


@dataclass(frozen=True)
class Timing:
    """The rounds of one contender, in seconds for each item."""

    rounds: tuple[float, ...]

    @property
    def nanoseconds(self) -> float:
        """The best time per item, which is the least disturbed one."""
        return min(self.rounds) * 1e9

    def ratio_to(self, other: "Timing") -> float:
        """Return the ratio of the two best times."""
        return self.nanoseconds / other.nanoseconds

    def median_ratio_to(self, other: "Timing") -> float:
        """Return the ratio of the two median times."""
        return median(self.rounds) / median(other.rounds)


def time_contenders(
    contenders: Mapping[str, tuple[Callable[[], object], int]], rounds: int
) -> dict[str, Timing]:
    """Time each contender, a call and its number of items, once per round, in turns."""
    racers = {name: Contender(*contender) for name, contender in contenders.items()}
    durations = take_turns(racers, rounds)
    return {name: Timing(tuple(seconds)) for name, seconds in durations.items()}


Usage = dict[str, float]


def measure_call(call: Callable[[], object]) -> Usage:
    """Return the wall-clock and CPU seconds of a call, and the peak memory."""
    before, start = process_time(), perf_counter()
    call()
    seconds = perf_counter() - start
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": seconds, "cpu": process_time() - before, "MB": peak}


def run_in_process(module: str, contender: str, *arguments: str) -> Usage:
    """Run a contender in a separate process, which prints its usage: `--run CONTENDER ...`."""
    process = subprocess.run(  # noqa: S603 - this interpreter, our own code
        [sys.executable, "-m", module, "--run", contender, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])},
        cwd=Path(__file__).parent.parent,
    )
    return dict(json.loads(process.stdout))


def best_rounds(
    module: str, contenders: Iterable[str], arguments: Sequence[str], rounds: int
) -> dict[str, Usage]:
    """Run contenders in turns, each run in a separate process, and return their best usage."""
    best_usage: dict[str, Usage] = {}
    for _ in range(rounds):
        for contender in contenders:
            usage = run_in_process(module, contender, *arguments)
            best = best_usage.get(contender, usage)
            best_usage[contender] = {name: min(usage[name], best[name]) for name in usage}
    return best_usage
