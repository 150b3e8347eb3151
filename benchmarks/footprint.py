"""What is not speed: memory beyond the output, the cost of the import and of the first draw."""

import json
import statistics
import subprocess
import sys
import time

_MEMORY = """
import json, pathlib, re
import numpy as np, dpnoise

def kilobytes(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+(\\d+) kB", status)[1])

out = np.ones(100_000_000)
dpnoise.Generator().laplace(out=out[:1000])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak starts again from here (Linux).
before = kilobytes("VmRSS")
dpnoise.Generator().laplace(out=out)
print(json.dumps((kilobytes("VmHWM") - before) / 1024))
"""
_FIRST_DRAW = """
import json, time
import dpnoise
start = time.perf_counter()
dpnoise.Generator().laplace(size=10)
print(json.dumps(time.perf_counter() - start))
"""


def _run(code: str) -> float:
    """Run a program in a process of its own and return the number it prints."""
    done = subprocess.run(  # noqa: S603 - this interpreter, our own code
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    return float(json.loads(done.stdout))


def memory_beyond_output() -> float:
    """Return the MB of memory that 10^8 samples take beyond the array they fill."""
    return _run(_MEMORY)


def import_seconds(rounds: int = 11) -> float:
    """Return what `import dpnoise` costs after `import numpy`, in seconds."""
    extra = []
    for _ in range(rounds):
        taken = []
        for code in ("import numpy", "import numpy, dpnoise"):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - as above
            taken.append(time.perf_counter() - start)
        extra.append(taken[1] - taken[0])
    return statistics.median(extra)


def first_draw_seconds(rounds: int = 5) -> float:
    """Return the time of the first draw in a process with a warm compile cache, in seconds."""
    _run(_FIRST_DRAW)
    return statistics.median(_run(_FIRST_DRAW) for _ in range(rounds))
