"""What the time of a release, and nothing else, certifies of its value: run as `make clock`.

Each pair of values is timed in this process, the best place that a clock can have, by
`benchmarks.timing_attack`. Controls show that the clock sees: a slow path planted on purpose must
be found, and two equal values must not be told apart.
"""

import argparse
import ctypes
import json
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from marks import write_between_marks

import dpnoise
from benchmarks.timing_attack import certified, taken
from dpnoise.core.kernel_table import kernel_for_one, second_stage
from dpnoise.core.machine import described
from dpnoise.statistics.plan import Sum as SumAnswer
from dpnoise.statistics.queries import Count, Sum

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "threat-model.md"
RESULTS: Final = ROOT / "benchmarks" / "results" / "clock"  # One file for each architecture.
ERROR: Final = 1e-3  # Of the whole table.
LARGEST: Final = sys.float_info.max
DELTA: Final = 1e-6
one_thread = dpnoise.Generator(threads=1)

Call = Callable[[Any], object]


@dataclass(frozen=True)
class Pair:
    """Two values, and what releases them.

    Parameters
    ----------
    words
        What they are.
    call
        Releases a value.
    value0, value1
        The values.
    claimed
        The epsilon that is claimed for these two: time may follow the output as far as that. Zero
        for values of which it must tell nothing, neighbours or not.
    delta
        The delta that is claimed.
    turns
        A call takes as long as this many releases of one number.
    planted
        Whether a leak is there on purpose.
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
    mechanism = dpnoise.LaplaceMechanism(epsilon, sensitivity, **options)
    return lambda value: mechanism.release(value, one_thread)


def gaussian(sensitivity: float = 1.0) -> Call:
    """Return a release with Gaussian noise for epsilon = 0.1, on one thread."""
    mechanism = dpnoise.GaussianMechanism(epsilon=0.1, delta=DELTA, sensitivity=sensitivity)
    return lambda value: mechanism.release(value, one_thread)


def counted() -> Call:
    """Return what a count does with its total, once the rows are read."""
    mechanism = Count(None, 0.1).mechanism
    return lambda total: mechanism.release(np.array([total]), one_thread)


def summed() -> Call:
    """Return what a sum of values between 0 and 1 does with its total, in grids of 2^-32.

    It leaves the data in an array with the number of values before it, as every engine gives it.
    """
    query = Sum("x", 0, 1, 0.1)
    return lambda both: query.release(SumAnswer(both[:1], both[1:]), 0.95, one_thread)


def seldom_slower() -> Call:
    """Return a release that takes a slow path of less than a microsecond in 1 call of 64, for 1."""
    release = laplace(0.1)

    def leaking(value: float) -> None:
        release(value)
        if os.urandom(1)[0] < 4 and value == 1.0:
            for _ in range(20):
                pass

    return leaking


def split_in_python() -> Call:
    """Return a release that splits integers between grids in fractions, as ours once did."""
    release = laplace(0.1, grid=8.0)

    def leaking(value: int) -> None:
        release(value)
        if value % 8:
            Fraction(value, 8)

    return leaking


def pairs() -> Iterator[Pair]:
    """Yield all rows of the table."""
    tenth = laplace(0.1)
    yield Pair("control: 0.5 and 0.5", tenth, 0.5, 0.5, 0.0)
    yield Pair(
        "planted: 1.0 is slower in 1 call of 64", seldom_slower(), 0.0, 1.0, 0.1, planted=True
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
    louder = laplace(1e-13, grid=1.0)
    yield Pair("integers 1000 and 2^31", louder, 1000, 2**31, 2**31 * 1e-13)
    yield Pair("integers -1 and 1, grid 8", laplace(0.1, grid=8.0), -1, 1, 0.2)
    yield Pair("integers -1 and 1, grid 2^-10", laplace(1e-9, grid=2.0**-10), -1, 1, 2e-9)
    for low, high in ((0, 1), (256, 257), (2**30 - 1, 2**30)):
        words = f"NumPy's integers {low} and {high}"
        yield Pair(words, laplace(1e-9), np.int64(low), np.int64(high), 1e-9)
    yield Pair("integers 0 and 1, Gaussian", gaussian(), 0, 1, 0.1, DELTA)
    yield Pair("a count, one row more", counted(), 1000, 1001, 0.1)
    rows, one_more = 1000 * 2**31, 1_234_567_891  # In grids of 2^-32.
    some, more = np.array([1000, rows]), np.array([1001, rows + one_more])
    yield Pair("a sum, one row more", summed(), some, more, 0.1, turns=10)
    none, one = np.array([0, 0]), np.array([1, one_more])
    yield Pair("a sum of one row or none", summed(), none, one, 0.1, turns=10)
    yield Pair("floats 0.0 and 1.0", laplace(1e-9), 0.0, 1.0, 1e-9)
    yield Pair("floats 0.5 and 0.25", laplace(1e-9), 0.5, 0.25, 1e-9)
    yield Pair("floats 0.0 and 2^-1074", tenth, 0.0, 2.0**-1074, 0.0)
    yield Pair("floats 0.0 and the largest", tenth, 0.0, LARGEST, 0.0)
    yield Pair("floats 0.0 and 1.0, Gaussian", gaussian(), 0.0, 1.0, 0.1, DELTA)
    zeros, ones = np.zeros(1000), np.ones(1000)
    yield Pair("1000 floats, 0.0 and 1.0", laplace(0.1, 1000.0), zeros, ones, 0.1, turns=10)
    whole = zeros.astype(np.int64), ones.astype(np.int64)
    yield Pair("1000 integers, 0 and 1", laplace(0.1, 1000.0), *whole, 0.1, turns=10)
    many = gaussian(1000.0**0.5)
    yield Pair("1000 floats, 0.0 and 1.0, Gaussian", many, zeros, ones, 0.1, DELTA, turns=10)


def conversions() -> Iterator[Pair]:
    """Yield ways to give one of Python's integers a fixed width, by themselves.

    Ours is first, with its noise. At the end is what shows of the place of an integer, in a release
    and in functions that only ask for its type: CPython keeps those up to 256 for good.
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
    beside: Call = lambda value: (type(value) is int, release(5))  # noqa: E731
    yield Pair("its type, and a release of 5, 256 and 257", beside, 256, 257, 0.0)
    yield Pair("its type alone, 256 and 257", lambda value: type(value) is int, 256, 257, 0.0)


def verdict(epsilon: float, pair: Pair) -> str:
    """Say in a word or two what was found."""
    if pair.planted:
        return "found" if epsilon > pair.claimed else "NOT FOUND"
    if epsilon > pair.claimed:
        return "A LEAK"
    return "within the claim" if epsilon else "nothing"


def row(pair: Pair, calls: int, error: float) -> list[str]:
    """Measure one pair."""
    calls //= pair.turns
    halves = taken(pair.call, pair.value0, pair.value1, calls)
    found = certified(*halves, error=error, delta=pair.delta)
    median = float(np.median(halves[1].at0))
    event = f"{found.event.words}: {found.hits[0]:,} and {found.hits[1]:,}"
    return [
        pair.words,
        f"{calls:,}",
        f"{median:,.0f} ns",
        f"{pair.claimed:.3g}",
        f"{found.epsilon:.3g}",
        verdict(found.epsilon, pair),
        event if found.epsilon else "",
    ]


def table(results: dict[str, Any]) -> str:
    """Return one architecture's table."""
    titles = "values", "calls", "median time", "epsilon claimed", "certified", "verdict", "event"
    lines = [titles, ["---"] * len(titles), *results["rows"]]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"Measured on {results['machine']}, at an error of {ERROR:g} for the table.\n\n{shown}"


def main() -> None:
    """Measure all pairs, print and keep the table, and write it into the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.clock", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="for each pair of scalars")
    parser.add_argument("--keep-pages", action="store_true", help="do not write into the pages")
    parser.add_argument("--conversions", action="store_true", help="of integers alone: print them")
    arguments = parser.parse_args()
    asked = list(conversions() if arguments.conversions else pairs())
    rows = []
    for pair in asked:
        rows.append(row(pair, arguments.calls, ERROR / len(asked)))
        print(" | ".join(rows[-1]), flush=True)
    if arguments.conversions:
        return
    if not arguments.keep_pages:
        machine = f"{described()}, Python {platform.python_version()}"
        kept = RESULTS / f"{platform.machine()}.json"
        kept.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
        tables = (table(json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json")))
        write_between_marks(PAGE, "clock", "\n\n".join(tables))
    sys.exit(any(one[5] in {"A LEAK", "NOT FOUND"} for one in rows))


if __name__ == "__main__":
    main()
