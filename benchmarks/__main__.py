"""Run all benchmarks, show the tables, and write them to JSON and into the pages."""

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import footprint, noise
from benchmarks.timing import Timing

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"


@dataclass(frozen=True)
class Figure:
    """A figure that we promise, and what was measured."""

    what: str
    promise: str
    measured: float
    reached: bool


def at_most(what: str, limit: float, measured: float) -> Figure:
    """Return a figure that must not be above its limit."""
    return Figure(what, f"at most {limit:g}", measured, measured <= limit)


def at_least(what: str, limit: float, measured: float) -> Figure:
    """Return a figure that must not be below its limit."""
    return Figure(what, f"at least {limit:g}", measured, measured >= limit)


def measure(rounds: int, console: Console) -> tuple[dict[str, dict[str, Timing]], list[Figure]]:
    """Run everything, with a progress bar."""
    with Progress(console=console, transient=True) as progress:
        steps: dict[str, Callable[[], dict[str, Timing]]] = {
            "arrays": lambda: noise.arrays(rounds),
            "scalars": lambda: noise.scalars(rounds),
            "threads": lambda: noise.threads(max(5, rounds // 3)),
            "sizes": noise.sizes,
            "variates": lambda: noise.variates(rounds),
        }
        task = progress.add_task("benchmarks", total=len(steps) + 3)
        tables = {}
        for name, step in steps.items():
            progress.update(task, description=name)
            tables[name] = step()
            progress.advance(task)
        progress.update(task, description="memory")
        memory = footprint.memory_beyond_output()
        progress.advance(task)
        progress.update(task, description="import")
        import_seconds = footprint.import_seconds()
        progress.advance(task)
        progress.update(task, description="first draw")
        first_draw = footprint.first_draw_seconds()
        progress.advance(task)

    arrays, scalars = tables["arrays"], tables["scalars"]
    by_size = [timing.nanoseconds for timing in tables["sizes"].values()]
    by_n = tables["variates"]
    return tables, [
        at_most(
            "Laplace n=4, array, time over NumPy's laplace",
            0.55,
            arrays["dpnoise laplace n=4"].ratio_to(arrays["NumPy laplace"]),
        ),
        at_most(
            "Gaussian n=4, array, time over NumPy's standard_normal",
            0.95,
            arrays["dpnoise normal n=4"].ratio_to(arrays["NumPy standard_normal"]),
        ),
        at_most(
            "uniform, array, time over NumPy's random",
            1.0,
            arrays["dpnoise random"].ratio_to(arrays["NumPy random"]),
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
        at_most("MB beyond the output, 10^8 samples", 32, memory),
        at_most("seconds of import beyond NumPy's", 0.15, import_seconds),
        at_most("seconds of the first draw, warm compile cache", 1.0, first_draw),
    ]


def show(tables: dict[str, dict[str, Timing]], figures: list[Figure], console: Console) -> None:
    """Print the tables."""
    for name, rows in tables.items():
        table = Table("what", "ns", title=name, title_justify="left")
        for what, timing in rows.items():
            table.add_row(what, f"{timing.nanoseconds:,.1f}", style="bold" * ("dpnoise" in what))
        console.print(table)
    table = Table("figure", "promised", "measured", "", title="promises", title_justify="left")
    for figure in figures:
        mark = "[green]reached" if figure.reached else "[red]not reached"
        table.add_row(figure.what, figure.promise, f"{figure.measured:.3g}", mark)
    console.print(table)


def machine() -> str:
    """Say on what the figures were measured."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "cryptography"))
    return f"{platform.machine()}, Python {platform.python_version()}, {libraries}"


def readme_table(tables: dict[str, dict[str, Timing]]) -> str:
    """Return the README's table."""
    arrays, scalars = tables["arrays"], tables["scalars"]
    rows = [
        ("Laplace, an array", arrays, "dpnoise laplace n=4", "NumPy laplace"),
        ("Gaussian, an array", arrays, "dpnoise normal n=4", "NumPy standard_normal"),
        ("uniform, an array", arrays, "dpnoise random", "NumPy random"),
        ("exponential, an array", arrays, "dpnoise exponential n=4", "NumPy standard_exponential"),
        ("chi-squared(3), an array", arrays, "dpnoise chisquare(3)", "NumPy chisquare(3)"),
        ("Laplace, one number", scalars, "dpnoise laplace()", "NumPy laplace()"),
        ("Laplace, one number", scalars, "dpnoise laplace()", "diffprivlib Laplace.randomise"),
    ]
    lines = ["| drawing | dpnoise | peer | | time over the peer's |", "|---|---|---|---|---|"]
    for what, table, ours, theirs in rows:
        peer = theirs.split()[0]
        ratio = table[ours].ratio_to(table[theirs])
        lines.append(
            f"| {what} | {table[ours].nanoseconds:,.3g} ns | {peer} "
            f"| {table[theirs].nanoseconds:,.3g} ns | {ratio:.2f} |"
        )
    return "\n".join(lines)


def full_tables(tables: dict[str, dict[str, Timing]], figures: list[Figure]) -> str:
    """Return all tables, for docs/performance.md."""
    titles = {
        "arrays": "10^6 variates a call, one thread",
        "scalars": "One variate a call",
        "threads": "10^7 Laplace variates a call",
        "sizes": "Laplace variates by size of the call, one thread",
        "variates": "Gaussians by number of uniforms, one thread",
    }
    lines = ["### What is promised", "", "| figure | promised | measured |", "|---|---|---|"]
    for figure in figures:
        missed = "" if figure.reached else " (not reached)"
        lines.append(f"| {figure.what} | {figure.promise} | {figure.measured:.3g}{missed} |")
    for name, rows in tables.items():
        lines += ["", f"### {titles[name]}", "", "| what | ns for each |", "|---|---|"]
        lines += [f"| {what} | {timing.nanoseconds:,.1f} |" for what, timing in rows.items()]
    return "\n".join(lines)


def write_between_marks(page: Path, mark: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n\nMeasured on {machine()}.\n{end}{after}")


def main() -> None:
    """Run as `python -m benchmarks`."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="turns of each contender")
    parser.add_argument("--keep-pages", action="store_true", help="do not write into the pages")
    arguments = parser.parse_args()
    console = Console()
    tables, figures = measure(arguments.rounds, console)
    show(tables, figures, console)
    if arguments.keep_pages:
        return
    results = {
        "format": 1,
        "machine": machine(),
        "nanoseconds": {
            name: {what: round(timing.nanoseconds, 2) for what, timing in rows.items()}
            for name, rows in tables.items()
        },
        "promises": [vars(figure) for figure in figures],
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write_between_marks(ROOT / "README.md", "bench", readme_table(tables))
    write_between_marks(ROOT / "docs/performance.md", "bench", full_tables(tables, figures))
    console.print(f"Written to {RESULTS.relative_to(ROOT)}, README.md and docs/performance.md.")


if __name__ == "__main__":
    main()
