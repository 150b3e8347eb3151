"""Signals, failing threads and missing ones: old numbers, new numbers or zeros; never words."""

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
    """Heed SIGINT, which a shell lets a command in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_at(
    turn: int, monkeypatch: pytest.MonkeyPatch, how: Callable[[], object]
) -> list[np.ndarray[Any, Any]]:
    """Call `how` when the key stream is read for this time; collect all words that were read."""
    fill = entropy.KeyStream.fill
    turns = itertools.count()
    seen: list[np.ndarray[Any, Any]] = []

    def filling(self: entropy.KeyStream, words: Any) -> None:
        fill(self, words)
        seen.append(words.copy())
        if next(turns) == turn:
            how()

    monkeypatch.setattr(entropy.KeyStream, "fill", filling)
    return seen


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("method", ["random", "laplace", "normal"])
@pytest.mark.parametrize("turn", [0, 3])
def test_an_interrupt_leaves_no_words_and_no_noise_in_out(
    threads: int, dtype: str, method: str, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real SIGINT, of which the main thread makes a KeyboardInterrupt while it draws or waits."""
    out = np.full((2, 60_000), 7.0, dtype)
    draw = getattr(dpnoise.Generator(threads=threads), method)
    draw(out=out)  # Compiles, and starts whatever threads there will be.
    before = _thread._count()
    seen = interrupted_at(turn, monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        draw(out=out)
    assert not out.any()
    read = len(seen)
    while _thread._count() > before:  # A thread that has done its work may not have ended yet.
        time.sleep(0.001)
    assert len(seen) == read > 0
    assert not out.any(), "a thread wrote on"


def test_a_failing_thread_stops_the_others_and_leaves_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        filling = entropy.KeyStream.fill

        def slowly(*given: Any) -> None:
            time.sleep(0.1)  # So that the other comes not far before this one tells that it failed.
            filling(*given)

        monkeypatch.setattr(entropy.KeyStream, "fill", slowly)
        raise MemoryError

    out = np.ones(1_000_000)
    seen = interrupted_at(2, monkeypatch, fail)
    with pytest.raises(MemoryError):
        dpnoise.Generator(threads=2).laplace(out=out)
    assert not out.any()
    assert len(seen) < 20


def storm(lightnings: list[BaseException], after: float, every: float) -> None:
    """Raise these exceptions from a signal's handler, one after another, until there are none."""

    def handler(*_: object) -> None:
        if lightnings:
            raise lightnings.pop()
        signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after, every)


STORMS = f"""
import signal, sys
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
import numpy as np
import dpnoise
from test_interrupts import storm
for threads in (1, 2):
    rng = dpnoise.Generator(threads=threads)
    rng.laplace(size=300_000)
    for turn in range(0, 80, {1 if LONG else 3}):
        kind = (KeyboardInterrupt, TimeoutError)[turn % 2]
        out = np.full(300_000, 7.0)
        lightnings = [kind() for _ in range(20)]
        try:
            storm(lightnings, after=1e-3 + 1e-4 * (turn % 40), every=(1e-5, 2e-4)[turn // 2 % 2])
            rng.laplace(out=out)
            lightnings.clear()
        except kind:
            lightnings.clear()  # First of all, so that no second one leaves this test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        now = out.copy()
        zeros, old = not now.any(), np.all(now == 7.0)
        whole = zeros or old or np.count_nonzero((now == 0) | (now == 7.0)) == 0
        assert whole, f"half of the noise: {{threads}} threads, {{kind.__name__}}"
        rng.laplace(size=300_000)
        np.testing.assert_array_equal(out, now)
print("done")
"""


def test_a_storm_of_signals_leaves_zeros_the_old_or_the_new_numbers() -> None:
    """In a process of its own, because signals come at any time; that it ends is part of it."""
    ended = subprocess.run(
        [sys.executable, "-c", STORMS], capture_output=True, text=True, timeout=480, check=False
    )
    assert ended.stdout == "done\n", ended.stderr


@pytest.mark.parametrize(
    ("function", "what_must_be_done", "done_by"),
    [
        (signals.run_uninterrupted, "_acquire", "CALL"),
        (dpnoise.Generator._fill, "out", "STORE_SUBSCR"),
    ],
)
def test_a_handler_of_signals_has_no_turn_before_what_an_interrupt_must_do(
    function: Callable[..., Any], what_must_be_done: str, done_by: str
) -> None:
    """CPython runs them after a call, at the head of a function and where a loop turns."""
    steps = list(dis.get_instructions(function))
    caught = next(i for i, step in enumerate(steps) if step.argval == "BaseException")
    named = next(i for i in range(caught, len(steps)) if steps[i].argval == what_must_be_done)
    done = next(i for i in range(named, len(steps)) if steps[i].opname == done_by)
    turns = ("CALL", "RESUME", "JUMP_BACKWARD", "SEND", "YIELD", "FOR_ITER")
    assert not [step for step in steps[caught:done] if step.opname.startswith(turns)]


def test_an_interrupt_in_the_first_draw_costs_that_draw_alone() -> None:
    """While Numba is being imported: half imported, it would fail for ever."""
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
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "ndarray\n", ended.stderr


def test_without_further_threads_the_calling_one_does_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the interpreter ends, or where a limit is reached."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    expected = fixed_generator(KEY).laplace(size=10**6)
    monkeypatch.setattr(parallel, "start_new_thread", refuse)
    monkeypatch.setattr(signals, "start_new_thread", refuse)
    np.testing.assert_array_equal(fixed_generator(KEY, threads=2).laplace(size=10**6), expected)


# Interrupts the first kernel that each call loads or compiles, and says where that was.
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


def test_no_interrupt_comes_into_the_middle_of_compiling() -> None:
    """It could leave Numba or LLVM unusable; it is raised when the kernel is whole."""
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_FIRST_USE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"] * 8
