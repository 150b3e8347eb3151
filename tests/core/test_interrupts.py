"""Signals and failing threads leave old numbers, new numbers or zeros, never random words."""

import _thread
import dis
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alarms import LONG

import dpnoise
from dpnoise.core import entropy, parallel, signals
from dpnoise.testing import fixed_generator

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Handle SIGINT, which a shell ignores for commands in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_at(
    turn: int, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], object]
) -> list[np.ndarray[Any, Any]]:
    """Call `interrupt` at the given read of the key stream, and collect all words read."""
    fill = entropy.KeyStream.fill
    turns = itertools.count()
    collected: list[np.ndarray[Any, Any]] = []

    def fill_and_interrupt(self: entropy.KeyStream, words: Any) -> None:
        fill(self, words)
        collected.append(words.copy())
        if next(turns) == turn:
            interrupt()

    monkeypatch.setattr(entropy.KeyStream, "fill", fill_and_interrupt)
    return collected


@pytest.mark.sample(18)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("method", ["random", "laplace", "normal"])
@pytest.mark.parametrize("turn", [0, 3])
def test_an_interrupt_leaves_no_words_and_no_noise_in_out(
    threads: int, dtype: str, method: str, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real SIGINT raises KeyboardInterrupt in the main thread while it draws or waits."""
    out = np.full((2, 60_000), 7.0, dtype)
    draw = getattr(dpnoise.Generator(threads=threads), method)
    draw(out=out)  # Compiles the kernel, and starts all threads.
    before = _thread._count()
    collected = interrupt_at(turn, monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        draw(out=out)
    assert not out.any()
    reads = len(collected)
    while _thread._count() > before:  # A finished thread may not have ended yet.
        time.sleep(0.001)
    assert len(collected) == reads > 0
    assert not out.any(), "a thread continued to write"


def test_a_failing_thread_stops_the_others_and_leaves_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        filling = entropy.KeyStream.fill

        def fill_slowly(*arguments: Any) -> None:
            time.sleep(
                0.1
            )  # Keeps the other thread from going far before it learns of the failure.
            filling(*arguments)

        monkeypatch.setattr(entropy.KeyStream, "fill", fill_slowly)
        raise MemoryError

    out = np.ones(1_000_000)
    collected = interrupt_at(2, monkeypatch, fail)
    with pytest.raises(MemoryError):
        dpnoise.Generator(threads=2).laplace(out=out)
    assert not out.any()
    assert len(collected) < 20


def raise_repeatedly(exceptions: list[BaseException], after: float, every: float) -> None:
    """Raise these exceptions from a signal handler, one after another."""

    def handler(*_: object) -> None:
        if exceptions:
            raise exceptions.pop()
        signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after, every)


REPEATED_SIGNALS = f"""
import signal, sys
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
import numpy as np
import dpnoise
from test_interrupts import raise_repeatedly
for threads in (1, 2):
    rng = dpnoise.Generator(threads=threads)
    rng.laplace(size=300_000)
    for turn in range(0, 80, {1 if LONG else 3}):
        kind = (KeyboardInterrupt, TimeoutError)[turn % 2]
        out = np.full(300_000, 7.0)
        exceptions = [kind() for _ in range(20)]
        try:
            every = (1e-5, 2e-4)[turn // 2 % 2]
            raise_repeatedly(exceptions, after=1e-3 + 1e-4 * (turn % 40), every=every)
            rng.laplace(out=out)
            exceptions.clear()
        except kind:
            exceptions.clear()  # First, so that no second exception leaves this test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        now = out.copy()
        zeros, old = not now.any(), np.all(now == 7.0)
        whole = zeros or old or np.count_nonzero((now == 0) | (now == 7.0)) == 0
        assert whole, f"half of the noise: {{threads}} threads, {{kind.__name__}}"
        rng.laplace(size=300_000)
        np.testing.assert_array_equal(out, now)
print("done")
"""


@pytest.mark.long
def test_repeated_signals_leave_zeros_the_old_or_the_new_numbers() -> None:
    """In a separate process, because signals come at any time. The process must end."""
    process = subprocess.run(
        [sys.executable, "-c", REPEATED_SIGNALS],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert process.stdout == "done\n", process.stderr


@pytest.mark.parametrize(
    ("function", "name", "opcode"),
    [
        (signals.run_uninterrupted, "_acquire", "CALL"),
        (dpnoise.Generator._fill, "out", "STORE_SUBSCR"),
    ],
)
def test_no_signal_handler_runs_before_the_cleanup_of_an_interrupt(
    function: Callable[..., Any], name: str, opcode: str
) -> None:
    """CPython runs handlers after a call, at the start of a function and at a loop's jump."""
    steps = list(dis.get_instructions(function))
    handler = next(i for i, step in enumerate(steps) if step.argval == "BaseException")
    loaded = next(i for i in range(handler, len(steps)) if steps[i].argval == name)
    done = next(i for i in range(loaded, len(steps)) if steps[i].opname == opcode)
    turns = ("CALL", "RESUME", "JUMP_BACKWARD", "SEND", "YIELD", "FOR_ITER")
    assert not [step for step in steps[handler:done] if step.opname.startswith(turns)]


def test_an_interrupt_in_the_first_draw_costs_only_that_draw() -> None:
    """It comes while Numba is being imported; a half import would fail forever."""
    code = """
import signal
import dpnoise
for delay in (0.02, 0.1, 0.3):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        dpnoise.Generator().laplace()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
print(type(dpnoise.Generator().laplace(size=3)).__name__)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.stdout == "ndarray\n", process.stderr


def test_without_further_threads_the_calling_one_does_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the interpreter ends, or at a limit on threads."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    expected = fixed_generator(KEY).laplace(size=10**6)
    monkeypatch.setattr(parallel, "start_new_thread", refuse)
    monkeypatch.setattr(signals, "start_new_thread", refuse)
    np.testing.assert_array_equal(fixed_generator(KEY, threads=2).laplace(size=10**6), expected)


# Interrupts the first kernel that each call loads or compiles, and prints in which thread.
AT_THE_FIRST_USE = """
import os, signal, threading
import numpy as np
import dpnoise
from dpnoise.kernels import cache

signal.signal(signal.SIGINT, signal.default_int_handler)
in_main_thread = []
load = cache.KernelCache.load_overload

def loading(self, *arguments):
    in_main_thread.append(threading.current_thread() is threading.main_thread())
    if len(in_main_thread) == 1:
        os.kill(os.getpid(), signal.SIGINT)
    return load(self, *arguments)

cache.KernelCache.load_overload = loading
mechanism = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
generator = dpnoise.Generator(threads=1)
for call in (
    lambda: mechanism.release(1.0),
    lambda: mechanism.release(1),
    lambda: mechanism.release(np.zeros(3), generator),
    lambda: mechanism.release(np.zeros(3, dtype=int), generator),
    lambda: mechanism.release(np.zeros(3, dtype=np.float16), generator),
    lambda: mechanism.release(np.zeros(3, dtype=np.float32), generator),
    lambda: generator.normal(),
    lambda: generator.normal(size=3),
):
    in_main_thread.clear()
    try:
        call()
    except KeyboardInterrupt:
        print(any(in_main_thread))
    call()
"""


@pytest.mark.long
def test_no_interrupt_comes_into_the_middle_of_compiling() -> None:
    """It could leave Numba or LLVM unusable, so it is raised when the kernel is complete."""
    process = subprocess.run(
        [sys.executable, "-c", AT_THE_FIRST_USE], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["False"] * 8
