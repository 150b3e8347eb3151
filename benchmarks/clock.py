"""Certify what the time of a release reveals about its value: `make clock`.

`benchmarks.timing_attack` times each pair of values in this process, where a clock is most precise.
Controls test the attack: it must detect a planted slow path, and must not distinguish two equal
values.
"""

import argparse
import ctypes
import json
import os
import platform
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from marks import measured_with, read_results, write_between_marks

import dpnoise
from benchmarks.timing_attack import certify, time_calls
from dpnoise.core.kernel_table import kernel_for_one, second_stage
from dpnoise.statistics.plan import SumAnswer
from dpnoise.statistics.queries import Count, Sum

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "timing.md"
RESULTS: Final = ROOT / "benchmarks" / "results" / "clock"  # One file for each architecture.
ERROR: Final = 1e-3  # Probability of a false alarm in the whole table.
LARGEST: Final = sys.float_info.max
DELTA: Final = 1e-6
one_thread = dpnoise.Generator(threads=1)

Call = Callable[[Any], object]


@dataclass(frozen=True)
class Pair:
    """Two values, and the call that releases them.

    Parameters
    ----------
    words
        A description of the values.
    call
        Releases a value.
    value0, value1
        The values.
    claimed
        The epsilon claimed for these two values: time may depend on the output to this extent. Zero
        if time must reveal nothing.
    delta
        The claimed delta.
    turns
        The duration of a call, in releases of one number.
    planted
        Whether a leak was planted on purpose.
    """

    words: str
    call: Call
    value0: Any
    value1: Any
    claimed: float
    delta: float = 0.0
    turns: int = 1
    planted: bool = False


def laplace(epsilon: float, sensitivity: float = 1.0, **options: float) -> Call:
    """Return a release with Laplace noise, on one thread."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=epsilon, sensitivity=sensitivity, **options)
    return lambda value: mechanism.release(value, one_thread)


def gaussian(sensitivity: float = 1.0) -> Call:
    """Return a release with Gaussian noise for epsilon = 0.1, on one thread."""
    mechanism = dpnoise.GaussianMechanism(epsilon=0.1, delta=DELTA, sensitivity=sensitivity)
    return lambda value: mechanism.release(value, one_thread)


def count_release() -> Call:
    """Return the release of a count, given its total."""
    mechanism = Count(None, 0.1).mechanism
    return lambda total: mechanism.release(np.array([total]), one_thread)


def sum_release() -> Call:
    """Return the release of a sum of values between 0 and 1, given its total in grids of 2^-32.

    Its argument is an array of the number of values and the total, as every engine returns them.
    """
    query = Sum("x", 0, 1, 0.1)
    return lambda count_and_total: query.release(
        SumAnswer(count_and_total[:1], count_and_total[1:]), 0.95, one_thread
    )


def rarely_slower() -> Call:
    """Return a release of 1.0 that is slower by less than a microsecond in 1 call of 64."""
    release = laplace(0.1)

    def release_slowly(value: float) -> None:
        release(value)
        if os.urandom(1)[0] < 4 and value == 1.0:
            end = time.perf_counter_ns() + 800
            while time.perf_counter_ns() < end:
                pass

    return release_slowly


def split_in_python() -> Call:
    """Return a release that splits integers with fractions in Python, as ours once did."""
    release = laplace(0.1, grid=8.0)

    def release_slowly(value: int) -> None:
        release(value)
        if value % 8:
            Fraction(value, 8)

    return release_slowly


def pairs() -> Iterator[Pair]:
    """Yield all rows of the table."""
    release = laplace(0.1)
    yield Pair("control: 0.5 and 0.5", release, 0.5, 0.5, 0.0)
    yield Pair(
        "planted: 1.0 is slower in 1 call of 64", rarely_slower(), 0.0, 1.0, 0.1, planted=True
    )
    yield Pair("planted: fractions in Python, grid 8", split_in_python(), 0, 1, 0.1, planted=True)
    yield Pair("integers 0 and 1, grid 8", laplace(0.1, grid=8.0), 0, 1, 0.1)
    yield Pair("integers 0 and 1", laplace(1e-9), 0, 1, 1e-9)
    yield Pair("integers 1000 and 1001", laplace(1e-9), 1000, 1001, 1e-9)
    yield Pair("integers -1 and 1", laplace(1e-9), -1, 1, 2e-9)
    yield Pair("integers 2^30 - 1 and 2^30", laplace(1e-9), 2**30 - 1, 2**30, 1e-9)
    yield Pair("integers 2^60 - 1 and 2^60", laplace(1e-9), 2**60 - 1, 2**60, 1e-9)
    yield Pair("integers 2^62 - 1 and 2^62", laplace(1e-9), 2**62 - 1, 2**62, 1e-9)
    yield Pair("integers 2^63 - 2 and 2^63 - 1", laplace(1e-9), 2**63 - 2, 2**63 - 1, 1e-9)
    noisier = laplace(1e-13, grid=1.0)
    yield Pair("integers 1000 and 2^31", noisier, 1000, 2**31, 2**31 * 1e-13)
    yield Pair("integers -1 and 1, grid 8", laplace(0.1, grid=8.0), -1, 1, 0.2)
    yield Pair("integers -1 and 1, grid 2^-10", laplace(1e-9, grid=2.0**-10), -1, 1, 2e-9)
    for low, high in ((0, 1), (256, 257), (2**30 - 1, 2**30)):
        words = f"NumPy's integers {low} and {high}"
        yield Pair(words, laplace(1e-9), np.int64(low), np.int64(high), 1e-9)
    yield Pair("integers 0 and 1, Gaussian", gaussian(), 0, 1, 0.1, DELTA)
    yield Pair("a count, one row more", count_release(), 1000, 1001, 0.1)
    rows, one_row = 1000 * 2**31, 1_234_567_891  # In grids of 2^-32.
    without_row, with_row = np.array([1000, rows]), np.array([1001, rows + one_row])
    yield Pair("a sum, one row more", sum_release(), without_row, with_row, 0.1, turns=10)
    no_rows, single_row = np.array([0, 0]), np.array([1, one_row])
    yield Pair("a sum of one row or none", sum_release(), no_rows, single_row, 0.1, turns=10)
    yield Pair("floats 0.0 and 1.0", laplace(1e-9), 0.0, 1.0, 1e-9)
    yield Pair("floats 0.5 and 0.25", laplace(1e-9), 0.5, 0.25, 1e-9)
    yield Pair("floats 0.0 and 2^-1074", release, 0.0, 2.0**-1074, 0.0)
    yield Pair("floats 0.0 and the largest", release, 0.0, LARGEST, 0.0)
    yield Pair("floats 0.0 and 1.0, Gaussian", gaussian(), 0.0, 1.0, 0.1, DELTA)
    zeros, ones = np.zeros(1000), np.ones(1000)
    yield Pair("1000 floats, 0.0 and 1.0", laplace(0.1, 1000.0), zeros, ones, 0.1, turns=10)
    integers = zeros.astype(np.int64), ones.astype(np.int64)
    yield Pair("1000 integers, 0 and 1", laplace(0.1, 1000.0), *integers, 0.1, turns=10)
    many_floats = gaussian(1000.0**0.5)
    yield Pair("1000 floats, 0.0 and 1.0, Gaussian", many_floats, zeros, ones, 0.1, DELTA, turns=10)


def conversions() -> Iterator[Pair]:
    """Yield conversions of a Python integer to a fixed width, without a release.

    Ours is first, with its noise. The last pairs show what the address of an integer reveals, in a
    release and in functions that only read its type: CPython never frees integers up to 256.
    """
    kernel = kernel_for_one(second_stage.laplace_1_integer, "pif")
    ways: dict[str, Call] = {
        "ours": lambda value: kernel(os.urandom(16), value, 0, 1e9),
        "int.to_bytes": lambda value: value.to_bytes(8, "little", signed=True),
        "struct": struct.Struct("q").pack,
        "ctypes.c_int64": ctypes.c_int64,
        "numpy.int64": np.int64,
    }
    for way, call in ways.items():
        yield Pair(f"{way}, 0 and 1", call, 0, 1, 0.0)
        yield Pair(f"{way}, -1 and 1", call, -1, 1, 0.0)
        yield Pair(f"{way}, 2^30 - 1 and 2^30", call, 2**30 - 1, 2**30, 0.0)
    release = laplace(1e-9)
    yield Pair("a release, 256 and 257", release, 256, 257, 1e-9)
    type_and_release: Call = lambda value: (type(value) is int, release(5))  # noqa: E731
    yield Pair("its type, and a release of 5, 256 and 257", type_and_release, 256, 257, 0.0)
    yield Pair("only its type, 256 and 257", lambda value: type(value) is int, 256, 257, 0.0)


def verdict(epsilon: float, pair: Pair) -> str:
    """Return the verdict of the table."""
    if pair.planted:
        return "found" if epsilon > pair.claimed else "NOT FOUND"
    if epsilon > pair.claimed:
        return "A LEAK"
    return "within the claim" if epsilon else "nothing"


def row(pair: Pair, calls: int, error: float) -> list[str]:
    """Measure one pair, and return its row of the table."""
    calls //= pair.turns
    timed_halves = time_calls(pair.call, pair.value0, pair.value1, calls)
    certificate = certify(*timed_halves, error=error, delta=pair.delta)
    median = float(np.median(timed_halves[1].at0))
    event = f"{certificate.event.words}: {certificate.hits[0]:,} and {certificate.hits[1]:,}"
    return [
        pair.words,
        f"{calls:,}",
        f"{median:,.0f} ns",
        f"{pair.claimed:.3g}",
        f"{certificate.epsilon:.3g}",
        verdict(certificate.epsilon, pair),
        event if certificate.epsilon else "",
    ]


def table(results: dict[str, Any]) -> str:
    """Return the table of one architecture."""
    titles = "values", "calls", "median time", "epsilon claimed", "certified", "verdict", "event"
    lines = [titles, ["---"] * len(titles), *results["rows"]]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"Measured on {results['machine']}, at an error of {ERROR:g} for the table.\n\n{rows}"


def main() -> None:
    """Measure all pairs, print and store the table, and write it to the docs."""
    parser = argparse.ArgumentParser(prog="benchmarks.clock", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="for each pair of scalars")
    parser.add_argument("--keep-pages", action="store_true", help="do not write to the docs")
    parser.add_argument(
        "--conversions", action="store_true", help="only print conversions of integers"
    )
    arguments = parser.parse_args()
    chosen_pairs = list(conversions() if arguments.conversions else pairs())
    rows = []
    for pair in chosen_pairs:
        rows.append(row(pair, arguments.calls, ERROR / len(chosen_pairs)))
        print(" | ".join(rows[-1]), flush=True)
    if arguments.conversions:
        return
    if not arguments.keep_pages:
        results_file = RESULTS / f"{platform.machine()}.json"
        results = {"machine": measured_with(), "rows": rows}
        results_file.write_text(json.dumps(results, indent=2) + "\n")
        write_between_marks(PAGE, "clock", "\n\n".join(map(table, read_results(RESULTS))))
    sys.exit(any(row_cells[5] in {"A LEAK", "NOT FOUND"} for row_cells in rows))


if __name__ == "__main__":
    main()
