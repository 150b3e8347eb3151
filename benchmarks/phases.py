"""How often `phased` accuses noise that keeps nothing, and finds what does, on a busy machine.

`PYTHONPATH=tools python -m benchmarks.phases 100` looks as often as an audit does at each target,
first as the machine is, then beside two processes for each core that compute and copy, and writes
the table of docs/attacks.md. Status 1 says that noise which keeps nothing was accused.
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
from marks import write_between_marks

from dpnoise.auditing.processes import phased
from dpnoise.auditing.targets import named
from dpnoise.core.machine import described

PAGE: Final = Path(__file__).parent.parent / "docs" / "attacks.md"
RELEASES: Final = 2_000  # As many as an audit times.
KEEPS: Final = {
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
def busy(processes: int) -> Iterator[None]:
    """Keep as many processes busy."""
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
    """Compute in turns of some milliseconds, in memory that no cache holds."""
    numbers = np.ones(2**22)
    while True:
        numbers[:: 2 ** (1 + os.urandom(1)[0] % 8)].copy().sum()
        sum(range(os.urandom(1)[0] << 8))


def found(name: str, looks: int) -> int:
    """Return how many looks found that a target keeps a Gaussian."""
    target = named(name)
    return sum(phased(target, n=RELEASES).found for _ in range(looks))


def main(looks: int) -> int:
    """Look, print and write the table, and return the status."""
    cores = os.cpu_count() or 1
    here = [name for name in KEEPS if find_spec(name.partition(".")[0])]
    counts = {name: [found(name, looks)] for name in here}
    before = os.getloadavg()[0] / cores
    with busy(2 * cores):
        for name in here:
            counts[name].append(found(name, looks))
            print(name, *counts[name], flush=True)
    note = (
        f"Of {looks} looks at {RELEASES:,} releases each, on {described()}. Its load was "
        f"{before:.1f} for each core; busy: with two more processes for each."
    )
    lines = [
        "| target | keeps a Gaussian | found | on a busy machine |",
        "|---|---|---|---|",
        *(
            f"| {name} | {'yes' if KEEPS[name] else 'no'} | {quiet} | {loud} |"
            for name, (quiet, loud) in counts.items()
        ),
        "",
        note,
    ]
    write_between_marks(PAGE, "phases", "\n".join(lines))
    return int(any(sum(both) for name, both in counts.items() if not KEEPS[name]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
