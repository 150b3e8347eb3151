"""Measure the false positives and the detections of `phased` on a busy machine.

`python -m benchmarks.phases` runs `phased` 20 times on each target, or as often as it is told: on
the machine as it is, then with two busy processes per core. It writes a table of docs/attacks.md.
Status 1 means a false positive: noise that keeps no Gaussian was accused.
"""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from marks import measured_with, write_between_marks

from dpnoise.auditing.processes import check_stored_noise
from dpnoise.auditing.targets import make_target

PAGE: Final = Path(__file__).parent.parent / "docs" / "attacks.md"
RELEASES: Final = 2_000  # The number that an audit times.
KEEPS_GAUSSIAN: Final = {
    "random.gauss": True,
    "numpy.RandomState.normal": True,
    "scipy.norm": True,
    "torch.normal": True,
    "torch.normal.float64": True,
    "numpy.laplace": False,
    "numpy.normal": False,
    "random.normalvariate": False,
    "dpnoise.normal": False,
    "dpnoise.release": False,
}


@contextlib.contextmanager
def busy_processes(processes: int) -> Iterator[None]:
    """Keep this many processes busy."""
    context = multiprocessing.get_context("spawn")
    loads = [context.Process(target=_load, daemon=True) for _ in range(processes)]
    for load in loads:
        load.start()
    try:
        yield
    finally:
        for load in loads:
            load.kill()


def _load() -> None:
    """Compute in phases of some milliseconds, in memory larger than the caches."""
    numbers = np.ones(2**22)
    while True:
        numbers[:: 2 ** (1 + os.urandom(1)[0] % 8)].copy().sum()
        sum(range(os.urandom(1)[0] << 8))


def count_detections(name: str, looks: int) -> int:
    """Return how many looks detect that a target keeps a Gaussian."""
    target = make_target(name)
    return sum(check_stored_noise(target, n=RELEASES).found for _ in range(looks))


def main(looks: int) -> int:
    """Measure, print and write the table, and return the status."""
    cores = os.cpu_count() or 1
    installed = [name for name in KEEPS_GAUSSIAN if find_spec(name.partition(".")[0])]
    counts = {name: [count_detections(name, looks)] for name in installed}
    load = os.getloadavg()[0] / cores
    with busy_processes(2 * cores):
        for name in installed:
            counts[name].append(count_detections(name, looks))
            print(name, *counts[name], flush=True)
    note = (
        f"Of {looks} looks at {RELEASES:,} releases each, on {measured_with()}. Its load was "
        f"{load:.1f} for each core; busy: with two more processes for each."
    )
    lines = [
        "| target | keeps a Gaussian | found | on a busy machine |",
        "|---|---|---|---|",
        *(
            f"| {name} | {'yes' if KEEPS_GAUSSIAN[name] else 'no'} | {idle_count} | {busy_count} |"
            for name, (idle_count, busy_count) in counts.items()
        ),
        "",
        note,
    ]
    write_between_marks(PAGE, "phases", "\n".join(lines))
    return int(
        any(
            sum(counts_of_target)
            for name, counts_of_target in counts.items()
            if not KEEPS_GAUSSIAN[name]
        )
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
