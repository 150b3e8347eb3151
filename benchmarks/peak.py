"""Compare each kernel with a lower bound: the cipher plus its arithmetic at the core's peak.

The arithmetic is counted in the LLVM code of the kernel's loop: operations on vectors of floats and
of integers. We assume the peak rates of loops with only one kind of operation: divisions, roots,
and fused multiply-adds, which stand for all others. These rates are measured in the same run.

The count ignores loads, stores, shuffles and addresses, constants that do not fit into registers,
and operations that wait for another. It also ignores that divisions and roots may run in parallel
with other operations, which can make a kernel faster than its lower bound.
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
from dpnoise.kernels import compile_kernel
from dpnoise.kernels.elementary import fma

Floats = NDArray[np.float64]
Contenders = dict[str, tuple[Callable[[], object], int]]

MILLION: Final = 1_000_000
laplace: Final = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
gaussian: Final = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
one_thread: Final = dpnoise.Generator(threads=1)
numpy_rng: Final = np.random.default_rng()
_WORDS: Final = 2**16  # Words of a chunk, on which the cipher and the kernels are timed.
_IN_CACHE: Final = 4096  # Numbers for the loops of one operation: they fit into the cache.
_BLOCK: Final = re.compile(r"^(\S+):[^\n]*\n((?:  [^\n]*\n)+)", re.MULTILINE)
# ARM can store two vectors in one instruction, interleaved.
_STORE: Final = re.compile(r"store <(\d+) x double>|neon\.st(\d)\.v(\d+)f64")
_OPERATION: Final = re.compile(
    r"= (?:tail call|call|fadd|fsub|fmul|fdiv|fneg|fcmp|icmp|select|sitofp|uitofp|fptosi|fptoui"
    r"|add|sub|mul|and|or|xor|shl|lshr|ashr)\b[^<{\n]*<(\d+) x (?:double|i64|i1)>(?: @llvm\.(\w+))?"
)


@dataclass(frozen=True)
class OperationCounts:
    """The vector operations of a kernel for one number, in lanes."""

    divisions: float
    roots: float
    others: float


@dataclass(frozen=True)
class Peak:
    """Nanoseconds of one lane of each operation, in a loop with only this operation."""

    division: float
    root: float
    other: float

    def time_of(self, counts: OperationCounts) -> float:
        """Return the time of the operations for one number."""
        return (
            self.division * counts.divisions + self.root * counts.roots + self.other * counts.others
        )


def count_operations(kernel: Any, *arguments: Any) -> OperationCounts:
    """Count the operations of a kernel's loop, the longest that stores vectors of floats.

    The kernel is compiled again for these arguments, because Numba cannot show code from a cache.
    """
    signature = tuple(numba.typeof(argument) for argument in arguments)
    with patch.dict(os.environ, {"DPNOISE_CACHE_DIR": ""}):
        recompiled: Any = compile_kernel(kernel.py_func)
        recompiled.compile(signature)
    (text,) = recompiled.inspect_llvm().values()
    bodies = [body for _, body in _BLOCK.findall(text) if _STORE.search(body)]
    if not bodies:
        raise RuntimeError(f"LLVM made no loop over vectors of {kernel.__name__}.")
    body = max(bodies, key=len)
    numbers = sum(
        int(width or 0) + int(vectors or 0) * int(width_of_vector or 0)
        for width, vectors, width_of_vector in _STORE.findall(body)
    )
    lanes: Counter[str] = Counter()
    for line in body.splitlines():
        if match := _OPERATION.search(line):
            name = "fdiv" if "= fdiv" in line else match[2] or ""
            lanes[name if name in {"fdiv", "sqrt"} else "other"] += int(match[1])
    return OperationCounts(*(lanes[name] / numbers for name in ("fdiv", "sqrt", "other")))


# Loops of one operation. -------------------------------------------------------------------------

_Eight = tuple[float, float, float, float, float, float, float, float]


@compile_kernel
def _eight_fmas(y: _Eight, a: float, b: float) -> _Eight:
    """Add a * b to each of eight independent numbers."""
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


@compile_kernel
def _fma_loop(x: Floats, out: Floats) -> None:
    for i in range(out.size):
        a = x[i]
        b = a + 0.5
        y = (a, b, a + 2.0, a + 3.0, a + 4.0, a + 5.0, a + 6.0, a + 7.0)
        y = _eight_fmas(_eight_fmas(_eight_fmas(_eight_fmas(y, a, b), b, b), a, a), a, b)
        y = _eight_fmas(_eight_fmas(_eight_fmas(_eight_fmas(y, a, b), b, b), a, a), a, b)
        out[i] = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]))


@compile_kernel
def _division_loop(x: Floats, out: Floats) -> None:
    for i in range(out.size):
        out[i] = 1.7 / x[i]


@compile_kernel
def _root_loop(x: Floats, out: Floats) -> None:
    for i in range(out.size):
        out[i] = math.sqrt(x[i])


def _repeat_loop(loop: Callable[[Floats, Floats], None]) -> tuple[Callable[[], object], int]:
    """Return a contender that runs a loop 20 times, and its number of lanes."""
    x, out = numpy_rng.random(_IN_CACHE) + 1.0, np.empty(_IN_CACHE)
    loop(x, out)
    operations = count_operations(loop, x, out)
    lanes = operations.divisions or operations.roots or operations.others

    def repeat() -> None:
        for _ in range(20):
            loop(x, out)

    return repeat, round(20 * _IN_CACHE * lanes)


# The kernels. ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A kernel, its arguments for a chunk, and the user's call.

    Parameters
    ----------
    kernel
        Module and function under `dpnoise.kernels`.
    words
        The number of words per number.
    arguments
        Maps the words and the output array to the kernel's arguments.
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

    def release_arguments(words: NDArray[np.uint64], out: Floats) -> tuple[Any, ...]:
        return words, 64, values[: out.size], laplace.scale, laplace.grid, out

    def noise_arguments(words: NDArray[np.uint64], out: Floats) -> tuple[Any, ...]:
        return words, words.size // out.size, 53, 1.0, np.empty(words.size), out

    return {
        "release, Laplace": Row(
            "first_stage.laplace_1",
            1,
            release_arguments,
            lambda: laplace.release(values, one_thread),
        ),
        "release, Gaussian": Row(
            "first_stage.gaussian_pairs",
            1,
            release_arguments,
            lambda: gaussian.release(values, one_thread),
        ),
        "noise, Laplace n=4": Row(
            "variates.laplace_theorem", 4, noise_arguments, lambda: one_thread.laplace(size=MILLION)
        ),
        "noise, Gaussian n=4": Row(
            "variates.gaussian", 4, noise_arguments, lambda: one_thread.normal(size=MILLION)
        ),
        "uniforms": Row(
            "variates.uniforms", 1, noise_arguments, lambda: one_thread.random(size=MILLION)
        ),
    }


def _best(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Return nanoseconds per item: the best of all rounds, in which contenders take turns.

    It measures CPU time of the one thread, which other programs do not lengthen.
    """
    best = dict.fromkeys(contenders, math.inf)
    for _ in range(rounds + 1):
        for name, (call, items) in contenders.items():
            start = time.thread_time_ns()
            call()
            best[name] = min(best[name], (time.thread_time_ns() - start) / items)
    return best


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return nanoseconds per number, by kernel and by part."""
    words = np.frombuffer(numpy_rng.bytes(8 * _WORDS), dtype=np.uint64)
    stream, buffer = Key.fresh().stream(), np.empty(_WORDS, dtype=np.uint64)
    contenders: Contenders = {
        "cipher": (lambda: stream.fill(buffer), _WORDS),
        "division": _repeat_loop(_division_loop),
        "root": _repeat_loop(_root_loop),
        "other": _repeat_loop(_fma_loop),
    }
    table, operations = rows(), {}
    for name, row in table.items():
        module, function = row.kernel.split(".")
        kernel = getattr(import_module(f"dpnoise.kernels.{module}"), function)
        arguments = row.arguments(words, np.empty(_WORDS // row.words))
        kernel(*arguments)
        operations[name] = count_operations(kernel, *arguments)
        contenders[f"{name}: kernel"] = (partial(kernel, *arguments), _WORDS // row.words)
        contenders[f"{name}: call"] = (row.call, MILLION)
    best = _best(contenders, rounds)
    peak = Peak(best["division"], best["root"], best["other"])
    parts = {}
    for name, row in table.items():
        cipher, arithmetic = row.words * best["cipher"], peak.time_of(operations[name])
        parts[name] = {
            "cipher": cipher,
            "kernel": best[f"{name}: kernel"],
            "arithmetic at peak": arithmetic,
            "lower bound": cipher + arithmetic,
            "measured": best[f"{name}: call"],
            "measured over bound": best[f"{name}: call"] / (cipher + arithmetic),
        }
    return parts
