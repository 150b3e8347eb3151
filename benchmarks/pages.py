"""Write the tables of the README and docs/performance.md from the stored results."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from marks import read_results, write_between_marks

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"  # One file for each architecture.
FORMAT: Final = 2
_FEW_TIMES: Final = 10  # Below it, speeds have a decimal.
_NOT_MEASURED: Final = "none"
_IN_SECONDS: Final = {"first draws"}  # Tables of times that are too long for nanoseconds.

Results = dict[str, Any]
Parts = dict[str, dict[str, float]]

TITLES: Final = {
    "releases": "Exact release of 10^6 values a call, one thread",
    "scalar releases": "Exact release of one value a call",
    "release threads": "Exact release of 10^7 values a call",
    "sums": "Sums of 10^8 clamped values",
    "arrays": "Noise: 10^6 variates a call, one thread",
    "scalars": "Noise: one variate a call",
    "threads": "Noise: 10^7 Laplace variates a call",
    "sizes": "Noise: Laplace variates by size of the call, one thread",
    "variates": "Noise: Gaussians by number of uniforms, one thread",
    "first draws": "The first call of a process, which compiles or loads",
}
# A description, our table and row in the results, and those of each peer.
README_ROWS: Final = (
    (
        "10⁶ numbers",
        ("releases", "dpnoise Laplace"),
        {
            "NumPy, insecure": ("releases", "NumPy laplace (insecure noise)"),
            "PyDP": ("releases", "PyDP Laplace"),
            "diffprivlib": ("releases", "diffprivlib Laplace"),
            "OpenDP": ("releases", "OpenDP vector Laplace"),
        },
    ),
    (
        "one number",
        ("scalar releases", "dpnoise Laplace, a float"),
        {
            "NumPy, insecure": ("scalars", "NumPy laplace()"),
            "PyDP": ("scalar releases", "PyDP Laplace"),
            "diffprivlib": ("scalar releases", "diffprivlib Laplace"),
            "OpenDP": ("scalar releases", "OpenDP Laplace"),
        },
    ),
)


def write() -> list[str]:
    """Write both pages, and return the architectures in them."""
    results = read_results(RESULTS)
    write_between_marks(ROOT / "README.md", "bench", readme_table(results))
    write_between_marks(ROOT / "docs/performance.md", "bench", full_tables(results))
    return [stored["architecture"] for stored in results]


def measured_on(results: Results) -> str:
    """Return a sentence on the machine, and on the peers that it lacks."""
    left_out = "".join(f" Note: {reason}" for reason in results["left out"])
    return f"Measured on {results['machine']}.{left_out}"


def readme_table(results: list[Results]) -> str:
    """Return the README's table of speeds over those of peers, for each architecture."""
    _, _, peers = README_ROWS[0]
    lines = [
        _row("exact Laplace release, times the speed of", *peers),
        "|" + "---|" * (1 + len(peers)),
    ]
    for stored in results:
        for description, ours, rows_of_peers in README_ROWS:
            our_time = _time_of(stored, ours)
            assert our_time is not None  # noqa: S101 - every machine measures dpnoise
            speeds = (
                _format_speed(our_time, _time_of(stored, row)) for row in rows_of_peers.values()
            )
            lines.append(_row(f"{description}, {stored['architecture']}", *speeds))
    lines += ["", "Printed by `make bench`.", *(measured_on(stored) for stored in results)]
    return "\n".join(lines)


def _time_of(results: Results, row: tuple[str, str]) -> float | None:
    """Return the nanoseconds of a row of a table, or None where the machine lacks the peer."""
    table, name = row
    time: float | None = results["nanoseconds"][table].get(name)
    return time


def _format_speed(ours: float, theirs: float | None) -> str:
    """Format how many times as fast as a peer we are."""
    if theirs is None:
        return _NOT_MEASURED
    speed = theirs / ours
    return f"{speed:.1f}" if speed < _FEW_TIMES else f"{math.floor(speed):,}"


def full_tables(results: list[Results]) -> str:
    """Return all tables, for docs/performance.md, with a column for each architecture."""
    return "\n".join(_full_lines(results))


def _full_lines(results: list[Results]) -> Iterator[str]:
    for stored in results:
        yield from (measured_on(stored), "")
    promises = [{p["what"]: p for p in stored["promises"]} for stored in results]
    yield from ("### What is promised", "")
    yield from _table_head(["figure"], results)
    for name_of_row in _row_names(promises):
        yield _row(
            name_of_row,
            *(
                _format_promise(of_machine[name_of_row])
                if name_of_row in of_machine
                else _NOT_MEASURED
                for of_machine in promises
            ),
        )
    for name, title in TITLES.items():
        timings = [stored["nanoseconds"].get(name, {}) for stored in results]
        yield from ("", f"### {title}", "")
        yield from _table_head(["call" if name in _IN_SECONDS else "call, ns per item"], results)
        for name_of_row in _row_names(timings):
            yield _row(
                name_of_row,
                *(
                    _format_time(name, of_machine[name_of_row])
                    if name_of_row in of_machine
                    else _NOT_MEASURED
                    for of_machine in timings
                ),
            )
    yield from _peak_lines(results)
    points = ", ".join(sorted({f"{stored['points']:,}" for stored in results}))
    yield from ("", f"### True error over its certified bound, {points} random points", "")
    yield from _table_head(["form, largest ratio"], results)
    worst = [stored["error over bound"] for stored in results]
    for form in _row_names(worst):
        yield _row(
            form,
            *(
                f"{of_machine[form]:.3f}" if form in of_machine else _NOT_MEASURED
                for of_machine in worst
            ),
        )


def _peak_lines(results: list[Results]) -> Iterator[str]:
    """Yield a table for each architecture, or a note that it was not measured."""
    yield from ("", "### How far from the machine's peak, one thread")
    for stored in results:
        if "peak" not in stored:
            yield from ("", f"Not measured on {stored['architecture']}: `make bench` there does.")
            continue
        parts: Parts = stored["peak"]
        columns = list(next(iter(parts.values())))
        yield from ("", _row(f"{stored['architecture']}, ns per number", *columns))
        yield "|" + "---|" * (len(columns) + 1)
        for name, row in parts.items():
            yield _row(name, *(f"{row[column]:.2f}" for column in columns))


def _format_time(table: str, nanoseconds: float) -> str:
    """Format a time for a table: in seconds, or in the nanoseconds that its head names."""
    return f"{nanoseconds / 1e9:.2f} s" if table in _IN_SECONDS else f"{nanoseconds:,.1f}"


def _format_promise(promise: dict[str, Any]) -> str:
    missed = "" if promise["reached"] else ", not reached"
    return f"{promise['measured']:.3g} ({promise['promise']}{missed})"


def _row_names(tables: list[dict[str, Any]]) -> list[str]:
    """Return the names of all rows, in the order of the longest table."""
    ordered = sorted(tables, key=len, reverse=True)
    return list(dict.fromkeys(name for table in ordered for name in table))


def _table_head(titles: list[str], results: list[Results]) -> Iterator[str]:
    columns = [*titles, *(stored["architecture"] for stored in results)]
    yield _row(*columns)
    yield "|" + "---|" * len(columns)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
