"""How far each kernel is from the cipher plus its arithmetic at the peak of this core.

The arithmetic is counted in what LLVM made of the kernel's loop: operations on vectors of floats
and of integers. All but divisions and roots are taken to run as fast as independent fused
multiply-adds do in a loop of their own; divisions and roots as fast as they do in theirs. All three
are measured in the same run.

What the count does not see: loads, stores and shuffles, constants that do not fit into registers,
the addresses, and that one operation waits for another. That divisions and roots may run beside
other operations is not seen either: it can make a kernel faster than its floor says.
"""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

import numba
import numpy as np
from numpy.typing import NDArray

import dpnoise
from dpnoise.core.entropy import Key
from dpnoise.kernels import compiled
from dpnoise.kernels.elementary import fma

Floats = NDArray[np.float64]
Contenders = dict[str, tuple[Callable[[], object], int]]

MILLION: Final = 1_000_000
laplace: Final = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
gaussian: Final = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
one_thread: Final = dpnoise.Generator(threads=1)
numpy_rng: Final = np.random.default_rng()
_WORDS: Final = 2**16  # Of a chunk: what the cipher and the kernels are timed on.
_IN_CACHE: Final = 4096  # Numbers that the loops of one operation work on.
_BLOCK: Final = re.compile(r"^(\S+):[^\n]*\n((?:  [^\n]*\n)+)", re.MULTILINE)
# On ARM two vectors may be stored as one, number by number.
_STORED: Final = re.compile(r"store <(\d+) x double>|neon\.st(\d)\.v(\d+)f64")
_OPERATION: Final = re.compile(
    r"= (?:tail call|call|fadd|fsub|fmul|fdiv|fneg|fcmp|icmp|select|sitofp|uitofp|fptosi|fptoui"
    r"|add|sub|mul|and|or|xor|shl|lshr|ashr)\b[^<{\n]*<(\d+) x (?:double|i64|i1)>(?: @llvm\.(\w+))?"
)


@dataclass(frozen=True)
class Counted:
    """The operations on vectors that a kernel makes for one number, in numbers of lanes."""

    divisions: float
    roots: float
    others: float


@dataclass(frozen=True)
class Peak:
    """Nanoseconds of one lane of an operation, when nothing but this operation is done."""

    division: float
    root: float
    other: float

    def time_of(self, counted: Counted) -> float:
        """Return what the operations of one number take."""
        return (
            self.division * counted.divisions
            + self.root * counted.roots
            + self.other * counted.others
        )


def counted(kernel: Any, *given: Any) -> Counted:
    """Count the operations of a kernel's loop, the longest that stores vectors of floats.

    The kernel is compiled once more for what it is given, because of code from a cache Numba has
    nothing to show.
    """
    signature = tuple(numba.typeof(argument) for argument in given)
    with patch.dict(os.environ, {"DPNOISE_CACHE_DIR": ""}):
        anew: Any = compiled(kernel.py_func)
        anew.compile(signature)
    (text,) = anew.inspect_llvm().values()
    bodies = [body for _, body in _BLOCK.findall(text) if _STORED.search(body)]
    if not bodies:
        raise RuntimeError(f"LLVM made no loop over vectors of {kernel.__name__}.")
    body = max(bodies, key=len)
    numbers = sum(
        int(whole or 0) + int(vectors or 0) * int(each or 0)
        for whole, vectors, each in _STORED.findall(body)
    )
    lanes: Counter[str] = Counter()
    for line in body.splitlines():
        if found := _OPERATION.search(line):
            name = "fdiv" if "= fdiv" in line else found[2] or ""
            lanes[name if name in {"fdiv", "sqrt"} else "other"] += int(found[1])
    return Counted(*(lanes[name] / numbers for name in ("fdiv", "sqrt", "other")))


# Loops of one operation. -------------------------------------------------------------------------

_Eight = tuple[float, float, float, float, float, float, float, float]


@compiled
def _eight_fused(y: _Eight, a: float, b: float) -> _Eight:
    """Add a * b to each of eight numbers, none of which waits for another."""
    return (
        fma(a, b, y[0]),
        fma(a, b, y[1]),
        fma(a, b, y[2]),
        fma(a, b, y[3]),
        fma(a, b, y[4]),
        fma(a, b, y[5]),
        fma(a, b, y[6]),
        fma(a, b, y[7]),
    )


@compiled
def _fused(x: Floats, out: Floats) -> None:
    for i in range(out.size):
        a = x[i]
        b = a + 0.5
        y = (a, b, a + 2.0, a + 3.0, a + 4.0, a + 5.0, a + 6.0, a + 7.0)
        y = _eight_fused(_eight_fused(_eight_fused(_eight_fused(y, a, b), b, b), a, a), a, b)
        y = _eight_fused(_eight_fused(_eight_fused(_eight_fused(y, a, b), b, b), a, a), a, b)
        out[i] = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]))


@compiled
def _divided(x: Floats, out: Floats) -> None:
    for i in range(out.size):
        out[i] = 1.7 / x[i]


@compiled
def _rooted(x: Floats, out: Floats) -> None:
    for i in range(out.size):
        out[i] = math.sqrt(x[i])


def _often(loop: Callable[[Floats, Floats], None]) -> tuple[Callable[[], object], int]:
    """Return a contender that runs a loop again and again, and how many lanes it takes."""
    x, out = numpy_rng.random(_IN_CACHE) + 1.0, np.empty(_IN_CACHE)
    loop(x, out)
    operations = counted(loop, x, out)
    lanes = operations.divisions or operations.roots or operations.others

    def repeat() -> None:
        for _ in range(20):
            loop(x, out)

    return repeat, round(20 * _IN_CACHE * lanes)


# The kernels. ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A kernel, what it is given for a chunk, and the call that a user makes.

    Parameters
    ----------
    kernel
        Module and function under `dpnoise.kernels`.
    words
        How many words a number takes.
    arguments
        From the words and the place for the results to what the kernel is called with.
    call
        Makes a million numbers.
    """

    kernel: str
    words: int
    arguments: Callable[[NDArray[np.uint64], Floats], tuple[Any, ...]]
    call: Callable[[], object]


def rows() -> dict[str, Row]:
    """Return the kernels of the table."""
    values = numpy_rng.random(MILLION) * 1000

    def of_release(words: NDArray[np.uint64], out: Floats) -> tuple[Any, ...]:
        return words, 64, values[: out.size], laplace.scale, laplace.grid, out

    def of_noise(words: NDArray[np.uint64], out: Floats) -> tuple[Any, ...]:
        return words, words.size // out.size, 53, 1.0, np.empty(words.size), out

    return {
        "release, Laplace": Row(
            "first_stage.laplace_1", 1, of_release, lambda: laplace.release(values, one_thread)
        ),
        "release, Gaussian": Row(
            "first_stage.gaussian_pairs",
            1,
            of_release,
            lambda: gaussian.release(values, one_thread),
        ),
        "noise, Laplace n=4": Row(
            "variates.laplace_theorem", 4, of_noise, lambda: one_thread.laplace(size=MILLION)
        ),
        "noise, Gaussian n=4": Row(
            "variates.gaussian", 4, of_noise, lambda: one_thread.normal(size=MILLION)
        ),
        "uniforms": Row("variates.uniforms", 1, of_noise, lambda: one_thread.random(size=MILLION)),
    }


def _best(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Return nanoseconds of an item, the best of all rounds, in which contenders take turns.

    It is the time of the processor, which another program does not lengthen: all run on one thread.
    """
    best = dict.fromkeys(contenders, math.inf)
    for _ in range(rounds + 1):
        for name, (call, items) in contenders.items():
            start = time.thread_time_ns()
            call()
            best[name] = min(best[name], (time.thread_time_ns() - start) / items)
    return best


def measured(rounds: int) -> dict[str, dict[str, float]]:
    """Return nanoseconds for each number, by kernel and by part."""
    words = np.frombuffer(numpy_rng.bytes(8 * _WORDS), dtype=np.uint64)
    stream, filled = Key.fresh().stream(), np.empty(_WORDS, dtype=np.uint64)
    contenders: Contenders = {
        "cipher": (lambda: stream.fill(filled), _WORDS),
        "division": _often(_divided),
        "root": _often(_rooted),
        "other": _often(_fused),
    }
    table, operations = rows(), {}
    for name, row in table.items():
        module, function = row.kernel.split(".")
        kernel = getattr(import_module(f"dpnoise.kernels.{module}"), function)
        given = row.arguments(words, np.empty(_WORDS // row.words))
        kernel(*given)
        operations[name] = counted(kernel, *given)
        contenders[f"{name}: kernel"] = (partial(kernel, *given), _WORDS // row.words)
        contenders[f"{name}: call"] = (row.call, MILLION)
    taken = _best(contenders, rounds)
    peak = Peak(taken["division"], taken["root"], taken["other"])
    parts = {}
    for name, row in table.items():
        cipher, arithmetic = row.words * taken["cipher"], peak.time_of(operations[name])
        parts[name] = {
            "cipher": cipher,
            "kernel": taken[f"{name}: kernel"],
            "arithmetic at peak": arithmetic,
            "floor": cipher + arithmetic,
            "measured": taken[f"{name}: call"],
            "measured over floor": taken[f"{name}: call"] / (cipher + arithmetic),
        }
    return parts
