"""Measure memory beyond the output, and the cost of the import and of the first draw."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.timing import Timing

_MEMORY = """
import json, pathlib, re
import numpy as np, dpnoise

def kilobytes(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+(\\d+) kB", status)[1])

out = np.ones(100_000_000)
dpnoise.Generator().laplace(out=out[:1000])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # Resets the peak (Linux).
before = kilobytes("VmRSS")
dpnoise.Generator().laplace(out=out)
print(json.dumps((kilobytes("VmHWM") - before) / 1024))
"""
_FIRST_CALL = """
import json, time
import dpnoise
start = time.perf_counter()
{call}
print(json.dumps(time.perf_counter() - start))
"""
_MECHANISM = "dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)"
_FIRST_CALLS = {
    "laplace()": "dpnoise.Generator().laplace()",
    "laplace(size=10)": "dpnoise.Generator().laplace(size=10)",
    "release(1.5)": f"{_MECHANISM}.release(1.5)",
    "release([1.5] * 10)": f"{_MECHANISM}.release([1.5] * 10)",
}
_SAMPLE_RELEASE = (
    *("-m", "dpnoise.cli", "release", "--sample", "--column", "income", "--query", "mean"),
    *("--lower", "0", "--upper", "200000", "--epsilon", "1"),
)
# Compiling takes seconds and varies little, so a few rounds are enough.
_MOST_ROUNDS = 3


def _run(code: str, **environment: str) -> float:
    """Run a program in a separate process, and return the number that it prints."""
    process = subprocess.run(  # noqa: S603 - this interpreter, our own code
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | environment,
    )
    return float(json.loads(process.stdout))


def memory_beyond_output() -> float:
    """Return the MB of memory that 10^8 samples need in addition to their array."""
    return _run(_MEMORY)


def import_seconds(rounds: int = 11) -> float:
    """Return the seconds that the import of a mechanism adds to `import numpy`."""
    differences = []
    for _ in range(rounds):
        durations = []
        for code in ("import numpy", "import numpy; from dpnoise import LaplaceMechanism"):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-P", "-c", code], check=True)  # noqa: S603 - as above
            durations.append(time.perf_counter() - start)
        differences.append(durations[1] - durations[0])
    return statistics.median(differences)


def release_over_numba(rounds: int = 11) -> float:
    """Return the processor time of a release of the sample, over that of `import numba`.

    The kernels are on the disk after the first run. Rounds take turns, because the speed of a
    shared machine changes; the median of their ratios counts.
    """
    _processor_seconds(_SAMPLE_RELEASE)
    return statistics.median(
        _processor_seconds(_SAMPLE_RELEASE) / _processor_seconds(("-c", "import numba"))
        for _ in range(rounds)
    )


def _processor_seconds(arguments: tuple[str, ...]) -> float:
    """Return the user and system seconds of a Python process."""
    before = os.times()
    subprocess.run([sys.executable, "-P", *arguments], stdout=subprocess.DEVNULL, check=True)  # noqa: S603 - as above
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def first_draws(rounds: int) -> dict[str, Timing]:
    """Time the first call of a process, with an empty compile cache and with a warm one."""
    durations: dict[str, list[float]] = {}
    for _ in range(min(rounds, _MOST_ROUNDS)):
        for name, call in _FIRST_CALLS.items():
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "warm"):
                    seconds = _run(_FIRST_CALL.format(call=call), DPNOISE_CACHE_DIR=cache)
                    durations.setdefault(f"{name}, {state} cache", []).append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in durations.items()}
