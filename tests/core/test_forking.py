"""A child of a fork can draw, whatever the other threads of its parent were doing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.alarms import LONG

import dpnoise
from dpnoise.core import entropy, kernel_table
from dpnoise.noise import generator
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.release.selection import noisy_argmax

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# Timeout in seconds for a child that waits forever; a first draw takes a few seconds.
TIMEOUT = 300.0

# Forks when another thread has reached a point of its first draw, in a process without a cache.
AT_THE_FIRST_DRAW = """
import multiprocessing, os, sys, threading, time, warnings
import dpnoise

warnings.simplefilter("ignore")  # Python warns of forks in a process with threads.
rng = dpnoise.Generator()

def draw_in_child_during(draw, reached, fork):
    thread = threading.Thread(target=draw)
    thread.start()
    while thread.is_alive() and not reached():
        time.sleep(0.0005)
    at_work = thread.is_alive()
    print(fork.__name__, reached.__name__, at_work, fork(draw), flush=True)
    thread.join()

def importing():
    return "numba" in sys.modules

def compiling():
    from numba.core.compiler_lock import global_compiler_lock
    free = global_compiler_lock._lock.acquire(blocking=False)
    if free:
        global_compiler_lock._lock.release()
    return not free

def forked(draw):
    child = os.fork()
    if child == 0:
        draw()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def multiprocessed(draw):
    child = multiprocessing.get_context("fork").Process(target=draw)
    child.start()
    child.join()
    return child.exitcode

draw_in_child_during(lambda: rng.random(size=10), importing, forked)
draw_in_child_during(lambda: rng.laplace(), compiling, forked)
draw_in_child_during(lambda: rng.laplace(size=10), compiling, multiprocessed)
"""


def run(code: str, **environment: str) -> str:
    """Run a program and return its output; if it hangs, kill it and all its children."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=TIMEOUT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"It hangs. Before, it printed {process.communicate()[0]!r}.")


@pytest.mark.long
def test_a_child_forked_during_another_thread_s_first_draw_draws() -> None:
    assert run(AT_THE_FIRST_DRAW, DPNOISE_CACHE_DIR="").splitlines() == [
        "forked importing True 0",
        "forked compiling True 0",
        "multiprocessed compiling True 0",
    ]


AT_THE_FIRST_MARGIN = """
import os, threading, time, warnings
import dpnoise
warnings.simplefilter("ignore")
mechanism = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
thread = threading.Thread(target=mechanism.error)
thread.start()
time.sleep(0.02)
child = os.fork()
if child == 0:
    mechanism.error()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""


def test_a_child_forked_during_another_thread_s_first_margin_computes_it() -> None:
    """A margin imports SciPy, and a fork waits for that."""
    for _ in range(3 if LONG else 1):
        assert run(AT_THE_FIRST_MARGIN) == "0\n"


IMPORTED = """
import sys
import dpnoise
from dpnoise.core.kernel_table import variates
variates.uniforms
rng = dpnoise.Generator()
before = set(sys.modules)
rng.random(size=10)
print(*(set(sys.modules) - before))
"""


def test_a_draw_imports_nothing_once_it_has_its_kernel() -> None:
    """A fork waits only for the import of a kernel."""
    assert run(IMPORTED) == "\n"


IMPORTED_LATE = """
import sys
import dpnoise
from dpnoise.core.kernel_table import variates
variates.uniforms
rng = dpnoise.Generator()
from numba.core.compiler_lock import global_compiler_lock
late = []

class Finder:
    def find_spec(self, name, *_):
        late.append(global_compiler_lock.is_locked())

sys.meta_path.insert(0, Finder())
rng.random(size=10)
print(len(late) > 50, all(late))
"""


@pytest.mark.long
def test_a_draw_that_compiles_imports_the_compiler_with_its_lock_held(tmp_path: Path) -> None:
    """Numba loads its first function from the disk without the compiler; a fork takes the lock."""
    first = "from dpnoise import kernels; kernels.finish_importing()"
    assert run(first, DPNOISE_CACHE_DIR=str(tmp_path)) == ""
    assert list(tmp_path.rglob("*"))
    assert run(IMPORTED_LATE, DPNOISE_CACHE_DIR=str(tmp_path)) == "True True\n"


MANY = 10**4  # Enough words for a long read.
LONG_CALLS: dict[str, Callable[[], object]] = {
    "noise": lambda: dpnoise.Generator().random(size=MANY),
    "floats": lambda: dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(
        np.zeros(MANY)
    ),
    "the reference": lambda: dpnoise.LaplaceMechanism(
        epsilon=1.0, sensitivity=2.0**30, grid=2.0**64
    ).release([1] * MANY),
    "discrete": lambda: DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(
        np.zeros(MANY, dtype=np.int64)
    ),
    "selection": lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([0] * MANY),
    "ranks": lambda: noisy_argmax(np.zeros(MANY), lambda _: 0, 1.0, None),
}


@pytest.mark.parametrize("call", LONG_CALLS)
def test_a_fork_waits_while_a_first_call_asks_for_the_processor_s_instructions(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any first call imports llvmlite to ask for them."""
    waits: list[bool] = []

    def fork_would_wait() -> bool:
        free = kernel_table._importing.acquire(blocking=False)
        if free:
            kernel_table._importing.release()
        return not free

    def has_instructions(*_: str) -> bool:
        with ThreadPoolExecutor(1) as another:
            waits.append(another.submit(fork_would_wait).result())
        return False

    monkeypatch.setattr(entropy, "has_instructions", has_instructions)
    for cached in (entropy.gcm_is_wider, kernel_table.load_kernels, generator._choose_plan):
        cached.cache_clear()
    for module in (kernel_table.first_stage, kernel_table.second_stage, kernel_table.variates):
        for name in [name for name in vars(module) if not name.startswith("_")]:
            delattr(module, name)
    try:
        LONG_CALLS[call]()
    finally:
        entropy.gcm_is_wider.cache_clear()
    assert waits == [True]


FORKS = 3 if LONG else 1
IN_BULK_CALLS = f"""
import os, threading, warnings
import dpnoise

warnings.simplefilter("ignore")  # As above.
rng = dpnoise.Generator(threads=2)
stop = threading.Event()

def draw():
    return rng.laplace(size=100_000)

def draw_on():
    while not stop.is_set():
        draw()

draw()
thread = threading.Thread(target=draw_on)
thread.start()
for _ in range({FORKS}):
    child = os.fork()
    if child == 0:
        draw()
        raise SystemExit(7)  # Runs Python's exit handlers.
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
stop.set()
thread.join()
"""


@pytest.mark.long
def test_a_child_forked_during_another_thread_s_bulk_calls_draws_and_ends() -> None:
    assert run(IN_BULK_CALLS).split() == ["7"] * FORKS


OWN_COMPILATION = """
import os
import dpnoise
from dpnoise.core.kernel_table import variates
variates.uniforms
from numba.core.compiler_lock import global_compiler_lock
with global_compiler_lock:
    child = os.fork()
    if child == 0:
        dpnoise.Generator().random()
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), global_compiler_lock.is_locked())
"""


@pytest.mark.long
def test_a_fork_in_the_middle_of_its_own_compilation_does_not_wait() -> None:
    assert run(OWN_COMPILATION).split() == ["7", "False"]
