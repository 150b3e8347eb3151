"""Run all benchmarks, print and store the tables, and write them to the docs."""

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass

from marks import measured_with
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import accuracy, footprint, noise, pages, peak, releases, sums
from benchmarks.timing import Timing
from dpnoise.core.machine import why_unavailable

PEERS = ("numpy", "numba", "cryptography", "opendp", "python-dp", "diffprivlib")


@dataclass(frozen=True)
class Figure:
    """A performance figure that we promise, and the measured value."""

    what: str
    promise: str
    measured: float
    reached: bool


def at_most(what: str, limit: float, measured: float) -> Figure:
    """Return a figure with an upper limit."""
    return Figure(what, f"at most {limit:g}", measured, measured <= limit)


def at_least(what: str, limit: float, measured: float) -> Figure:
    """Return a figure with a lower limit."""
    return Figure(what, f"at least {limit:g}", measured, measured >= limit)


TABLES: dict[str, Callable[[int], dict[str, Timing]]] = {
    "releases": releases.arrays,
    "scalar releases": releases.scalars,
    "release threads": releases.threads,
    "sums": sums.sums,
    "arrays": noise.arrays,
    "generators": noise.generators,
    "scalars": noise.scalars,
    "threads": noise.threads,
    "sizes": noise.sizes,
    "variates": noise.variates,
    "first draws": footprint.first_draws,
}


def measure(
    rounds: int, points: int, console: Console
) -> tuple[dict[str, dict[str, Timing]], dict[str, float], list[Figure]]:
    """Run all benchmarks, with a progress bar."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(TABLES) + 2 + accuracy.steps(points))
        tables = {}
        for name, step in TABLES.items():
            progress.update(task, description=name)
            tables[name] = step(rounds)
            progress.advance(task)
        progress.update(task, description="memory")
        memory = footprint.memory_beyond_output()
        progress.update(task, description="import", advance=1)
        import_seconds = footprint.import_seconds()
        start_ratio = footprint.release_over_numba()
        progress.update(task, description="errors against ball arithmetic", advance=1)
        worst = accuracy.worst_ratios(points, lambda: progress.advance(task))
    first_draw = tables["first draws"]["laplace(size=10), warm cache"].nanoseconds / 1e9
    figures = [
        *release_figures(tables, worst),
        *noise_figures(tables),
        at_most("MB beyond the output, 10^8 samples", 32, memory),
        at_most("seconds of import beyond NumPy's", 0.15, import_seconds),
        at_most("seconds of the first draw, warm compile cache", 1.0, first_draw),
        at_most("release of the sample, processor time over import numba's", 2, start_ratio),
    ]
    return tables, worst, figures


def limit_for_machine(x86_64: float, aarch64: float) -> float:
    """Return the limit for the architecture of this machine."""
    return aarch64 if platform.machine() in {"aarch64", "arm64"} else x86_64


def release_figures(tables: dict[str, dict[str, Timing]], worst: dict[str, float]) -> list[Figure]:
    """Return the figures of exact release."""
    arrays, scalars, threads = (
        tables[name] for name in ("releases", "scalar releases", "release threads")
    )
    ours, gaussian = arrays["dpnoise Laplace"], arrays["dpnoise Gaussian"]
    peers = [name for name in releases.PEERS if name in scalars]
    quickest_peer = min((scalars[name] for name in peers), key=lambda timing: timing.nanoseconds)
    scalar = scalars["dpnoise Laplace, a float"]
    return [
        at_most(
            "release, Laplace, time over NumPy's insecure laplace",
            limit_for_machine(0.30, 0.60),
            ours.ratio_to(arrays["NumPy laplace (insecure noise)"]),
        ),
        at_most(
            "release, Gaussian, time over NumPy's insecure standard_normal",
            limit_for_machine(0.55, 1.3),
            gaussian.ratio_to(arrays["NumPy standard_normal (insecure noise)"]),
        ),
        at_most(
            "release, Laplace, time of integers over floats'",
            1.15,
            arrays["dpnoise Laplace, integers"].ratio_to(ours),
        ),
        at_most(
            "release, Gaussian, time of integers over floats'",
            1.15,
            arrays["dpnoise Gaussian, integers"].ratio_to(gaussian),
        ),
        at_least(
            "OpenDP's vector Laplace, time over our release",
            1000,
            arrays["OpenDP vector Laplace"].ratio_to(ours),
        ),
        *(
            at_least("PyDP's Laplace, time over our release", 200, pydp.ratio_to(ours))
            for pydp in filter(None, [arrays.get("PyDP Laplace")])
        ),
        at_least(
            "diffprivlib's Laplace, time over our release",
            300,
            arrays["diffprivlib Laplace"].ratio_to(ours),
        ),
        at_most(
            "microseconds of a scalar release", limit_for_machine(3, 6), scalar.nanoseconds / 1000
        ),
        at_most("scalar release, time over the quickest peer's", 1, scalar.ratio_to(quickest_peer)),
        at_least(
            "release, one thread's time over two threads', 10^7 values",
            1.6,
            threads["1 threads"].ratio_to(threads["2 threads"]),
        ),
        at_most("largest error over its certified bound", 1, max(worst.values())),
        at_most(
            "exact sum, time over NumPy's clip and sum",
            2,
            tables["sums"]["dpnoise exact_sum"].ratio_to(tables["sums"]["NumPy clip and sum"]),
        ),
    ]


def noise_figures(tables: dict[str, dict[str, Timing]]) -> list[Figure]:
    """Return the figures of noise."""
    arrays, scalars, generators = (tables[name] for name in ("arrays", "scalars", "generators"))
    by_size = [timing.nanoseconds for timing in tables["sizes"].values()]
    by_n = tables["variates"]
    return [
        at_most(
            "Laplace n=4, array, time over NumPy's laplace",
            limit_for_machine(0.50, 1.25),
            arrays["dpnoise laplace n=4"].ratio_to(arrays["NumPy laplace"]),
        ),
        at_most(
            "Gaussian n=4, array, time over NumPy's standard_normal",
            limit_for_machine(0.90, 3.5),
            arrays["dpnoise normal n=4"].ratio_to(arrays["NumPy standard_normal"]),
        ),
        at_most(
            "uniform, array, time over NumPy's random",
            limit_for_machine(0.95, 0.70),
            arrays["dpnoise random"].ratio_to(arrays["NumPy random"]),
        ),
        at_most(
            "NumPy's random on SecureBitGenerator, median processor time over that on PCG64",
            1.5,
            generators["dpnoise SecureBitGenerator"].median_ratio_to(generators["PCG64"]),
        ),
        at_least(
            "SystemRandom.random(), time over SecureRandom.random()",
            3.0,
            scalars["stdlib SystemRandom.random()"].ratio_to(
                scalars["dpnoise SecureRandom.random()"]
            ),
        ),
        at_most(
            "Laplace, one scalar, time over NumPy's laplace()",
            3.0,
            scalars["dpnoise laplace()"].ratio_to(scalars["NumPy laplace()"]),
        ),
        at_least(
            "diffprivlib's Laplace, one scalar, time over ours",
            4.0,
            scalars["diffprivlib Laplace.randomise"].ratio_to(scalars["dpnoise laplace()"]),
        ),
        at_least(
            "one thread's time over two threads', 10^7 samples",
            1.6,
            tables["threads"]["1 threads"].ratio_to(tables["threads"]["2 threads"]),
        ),
        at_most(
            "slowest over quickest sample, 10^4 to 10^8 a call",
            1.5,
            max(by_size) / min(by_size),
        ),
        at_most(
            "time of n=32 over 8 times the time of n=4 (linear: 1)",
            1.5,
            by_n["n=32"].ratio_to(by_n["n=4"]) / 8,
        ),
    ]


def show(tables: dict[str, dict[str, Timing]], figures: list[Figure], console: Console) -> None:
    """Print the tables."""
    for name, rows in tables.items():
        table = Table("call", "ns", title=name, title_justify="left")
        for what, timing in rows.items():
            table.add_row(what, f"{timing.nanoseconds:,.1f}", style="bold" * ("dpnoise" in what))
        console.print(table)
    table = Table("figure", "promised", "measured", "", title="promises", title_justify="left")
    for figure in figures:
        mark = "[green]reached" if figure.reached else "[red]not reached"
        table.add_row(figure.what, figure.promise, f"{figure.measured:.3g}", mark)
    console.print(table)


def show_peak(parts: pages.Parts, console: Console) -> None:
    """Print the times of the kernels compared with the peak of the machine."""
    columns = list(next(iter(parts.values())))
    table = Table("ns per number", *columns, title="peak", title_justify="left")
    for name, row in parts.items():
        table.add_row(name, *(f"{row[column]:.2f}" for column in columns))
    console.print(table)


def round_parts(parts: pages.Parts) -> pages.Parts:
    """Return the parts rounded to the digits that are stored."""
    return {name: {part: round(ns, 2) for part, ns in row.items()} for name, row in parts.items()}


def main() -> None:
    """Run as `make bench`."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each contender")
    parser.add_argument("--points", type=int, default=10_080_000, help="points of the error run")
    parser.add_argument("--keep-pages", action="store_true", help="do not write to the docs")
    parser.add_argument(
        "--only-pages", action="store_true", help="write the docs from the stored results"
    )
    parser.add_argument(
        "--only-peak", action="store_true", help="measure only the table of the peak"
    )
    arguments = parser.parse_args()
    console = Console()
    results_file = pages.RESULTS / f"{platform.machine()}.json"
    if arguments.only_peak:
        parts = peak.measure(arguments.rounds)
        show_peak(parts, console)
        if arguments.keep_pages:
            return
        results = json.loads(results_file.read_text()) | {"peak": round_parts(parts)}
        results_file.write_text(json.dumps(results, indent=2) + "\n")
    elif not arguments.only_pages:
        tables, worst, figures = measure(arguments.rounds, arguments.points, console)
        show(tables, figures, console)
        parts = peak.measure(arguments.rounds)
        show_peak(parts, console)
        if arguments.keep_pages:
            return
        results = {
            "format": pages.FORMAT,
            "architecture": platform.machine(),
            "machine": measured_with(*(name for name in PEERS if not why_unavailable(name))),
            "left out": [reason for reason in map(why_unavailable, PEERS) if reason],
            "points": arguments.points,
            "nanoseconds": {
                name: {what: round(timing.nanoseconds, 2) for what, timing in rows.items()}
                for name, rows in tables.items()
            },
            "error over bound": worst,
            "peak": round_parts(parts),
            "promises": [vars(figure) for figure in figures],
        }
        results_file.write_text(json.dumps(results, indent=2) + "\n")
    architectures = pages.write()
    console.print(f"Wrote README.md and docs/performance.md: {', '.join(architectures)}.")


if __name__ == "__main__":
    main()
