"""The tables of the README and of docs/performance.md, from the results of every architecture."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from marks import write_between_marks

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"  # One file for each architecture.
FORMAT: Final = 2
_RARELY: Final = 0.1  # A ratio below it is shown as a fraction.
_HUNDRED: Final = 100
_NONE: Final = "none"

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
# What is compared, in which table, ours, and the peer's.
README_ROWS: Final = (
    (
        "exact release, Laplace",
        "releases",
        "dpnoise Laplace",
        "NumPy laplace (insecure noise)",
    ),
    (
        "exact release, Gaussian",
        "releases",
        "dpnoise Gaussian",
        "NumPy standard_normal (insecure noise)",
    ),
    ("exact release, Laplace", "releases", "dpnoise Laplace", "OpenDP vector Laplace"),
    ("exact release, Laplace", "releases", "dpnoise Laplace", "PyDP Laplace"),
    ("exact release, Laplace", "releases", "dpnoise Laplace", "diffprivlib Laplace"),
    ("exact release, one float", "scalar releases", "dpnoise Laplace, a float", "PyDP Laplace"),
    (
        "exact release, one float",
        "scalar releases",
        "dpnoise Laplace, a float",
        "diffprivlib Laplace",
    ),
    ("noise, Laplace", "arrays", "dpnoise laplace n=4", "NumPy laplace"),
    ("noise, Gaussian", "arrays", "dpnoise normal n=4", "NumPy standard_normal"),
    ("noise, uniform", "arrays", "dpnoise random", "NumPy random"),
)


def kept() -> list[Results]:
    """Read the results of every architecture, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def write() -> list[str]:
    """Write both pages, and return the architectures that they show."""
    results = kept()
    write_between_marks(ROOT / "README.md", "bench", "\n\n".join(map(readme_table, results)))
    write_between_marks(ROOT / "docs/performance.md", "bench", full_tables(results))
    return [one["architecture"] for one in results]


def measured_on(results: Results) -> str:
    """Say on what machine the figures were measured, and what was left out there."""
    left_out = "".join(f" Note: {why}" for why in results["left out"])
    return f"Measured on {results['machine']}.{left_out}"


def readme_table(results: Results) -> str:
    """Return one architecture's table of the README."""
    lines = [
        f"| {results['architecture']} | dpnoise | peer | | time over the peer's |",
        "|---|---|---|---|---|",
    ]
    for what, table, ours, theirs in README_ROWS:
        times = results["nanoseconds"][table]
        if theirs in times:
            ratio = times[ours] / times[theirs]
            shown = f"{ratio:.2f}" if ratio > _RARELY else f"1/{1 / ratio:,.0f}"
            lines.append(
                f"| {what} | {_time(times[ours])} | {theirs} | {_time(times[theirs])} | {shown} |"
            )
    return "\n".join([*lines, "", measured_on(results)])


def _time(nanoseconds: float) -> str:
    """Show a time with as many digits as it deserves."""
    few = nanoseconds < _HUNDRED
    return f"{nanoseconds:.1f} ns" if few else f"{nanoseconds:,.0f} ns"


def full_tables(results: list[Results]) -> str:
    """Return all tables, for docs/performance.md, with a column for each architecture."""
    return "\n".join(_full_lines(results))


def _full_lines(results: list[Results]) -> Iterator[str]:
    for one in results:
        yield from (measured_on(one), "")
    promises = [{p["what"]: p for p in one["promises"]} for one in results]
    yield from ("### What is promised", "")
    yield from _table(["figure"], results)
    for what in _union(promises):
        yield _row(what, *(_measured(own[what]) if what in own else _NONE for own in promises))
    for name, title in TITLES.items():
        timings = [one["nanoseconds"].get(name, {}) for one in results]
        yield from ("", f"### {title}", "")
        yield from _table(["what, ns for each"], results)
        for what in _union(timings):
            yield _row(what, *(f"{own[what]:,.1f}" if what in own else _NONE for own in timings))
    yield from _peak_lines(results)
    points = ", ".join(sorted({f"{one['points']:,}" for one in results}))
    yield from ("", f"### True error over its certified bound, {points} random points", "")
    yield from _table(["form, largest ratio"], results)
    worst = [one["error over bound"] for one in results]
    for form in _union(worst):
        yield _row(form, *(f"{own[form]:.3f}" if form in own else _NONE for own in worst))


def _peak_lines(results: list[Results]) -> Iterator[str]:
    """Yield a table for each architecture, or that it was not measured there."""
    yield from ("", "### How far from the machine's peak, one thread")
    for one in results:
        if "peak" not in one:
            yield from ("", f"Not measured on {one['architecture']}: `make bench` there does.")
            continue
        parts: Parts = one["peak"]
        columns = list(next(iter(parts.values())))
        yield from ("", _row(f"{one['architecture']}, ns for each", *columns))
        yield "|" + "---|" * (len(columns) + 1)
        for name, row in parts.items():
            yield _row(name, *(f"{row[column]:.2f}" for column in columns))


def _measured(promise: dict[str, Any]) -> str:
    missed = "" if promise["reached"] else ", not reached"
    return f"{promise['measured']:.3g} ({promise['promise']}{missed})"


def _union(tables: list[dict[str, Any]]) -> list[str]:
    """Return the rows that any of the tables has, in the order of the fullest."""
    ordered = sorted(tables, key=len, reverse=True)
    return list(dict.fromkeys(what for table in ordered for what in table))


def _table(titles: list[str], results: list[Results]) -> Iterator[str]:
    columns = [*titles, *(one["architecture"] for one in results)]
    yield _row(*columns)
    yield "|" + "---|" * len(columns)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
