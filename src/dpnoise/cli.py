"""The command line: `dpnoise release`, `dpnoise sample`, `dpnoise cost`, `dpnoise leakage`.

Every command is one library call, and what it prints. Exit status: 0 done, 2 an error that says
what to do. Whatever writes a file writes beside it and renames: nothing half-written is left.
"""

import argparse
import json
import math
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

import dpnoise
from dpnoise import leakage_report, publishing
from dpnoise.errors import ArgumentError, DpnoiseError, import_extra
from dpnoise.statistics import Release

_LARGE = 50 * 2**20  # From this size on, reading a file shows its progress.
_BAR = 30
_ROOM = 2**20  # More bytes than a report or a plot has.
_PLOTS = (".png", ".pdf", ".svg")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    asked = _parser().parse_args(arguments)
    try:
        asked.run(asked)
    except (DpnoiseError, OSError) as error:
        print(f"dpnoise: {error}", file=sys.stderr)  # noqa: T201 - this is the command line
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpnoise", description=dpnoise.__doc__)
    parser.add_argument("--version", action="version", version=dpnoise.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_release(commands)
    _add_sample(commands)
    _add_cost(commands)
    _add_leakage(commands)
    return parser


class _Once(argparse.Action):
    """An option that may be given once, because a second would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} may be given once")
        setattr(namespace, self.dest, values)


# release -----------------------------------------------------------------------------------------


def _add_release(commands: Any) -> None:
    command = commands.add_parser(
        "release",
        help="publish private statistics of a CSV or Parquet file",
        description="Publish private statistics of a column. Neighbouring data sets differ by one "
        "row. Without FILE, a small data set that comes with dpnoise is used.",
    )
    command.add_argument("file", nargs="?", type=Path, metavar="FILE")
    command.add_argument("--column", help="the column of numbers")
    command.add_argument(
        "--query",
        action="append",
        metavar="QUERY",
        help="count, sum, mean, median, quantile:0.9 or histogram; repeat it for several, which "
        "split epsilon evenly (count)",
    )
    command.add_argument("--epsilon", type=float, default=1.0, help="for all queries together (1)")
    command.add_argument("--lower", type=float, help="declared lower bound of a value")
    command.add_argument("--upper", type=float, help="declared upper bound of a value")
    command.add_argument("--grid", type=float, help="a power of two; by default from the bounds")
    command.add_argument(
        "--edges",
        type=_numbers,
        help="edges of a histogram: --edges=0,20000,40000; a cell holds its lower edge, the last "
        "one both; values outside are left out",
    )
    command.add_argument(
        "--group-by",
        type=_groups,
        action=_Once,
        metavar="COLUMN=A,B",
        help="declared groups: city=cork,dublin",
    )
    command.add_argument(
        "--missing",
        choices=["error", "drop"],
        default="error",
        help="what to do about rows without a value: empty, NA, NaN, null (error)",
    )
    command.add_argument("--delimiter", default=",", help="what separates a CSV file's entries (,)")
    command.add_argument("--confidence", type=float, default=0.95, help="of the errors (0.95)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--output", type=Path, help="write JSON to this file")
    command.add_argument("--plot", type=Path, help="draw bars with error bars: out.png")
    command.set_defaults(run=_release)


def _release(asked: argparse.Namespace) -> None:
    if asked.file is not None and asked.column is None:
        raise ArgumentError(f"Say which column of {asked.file} to use: --column NAME.")
    group_by, groups = asked.group_by or (None, ())
    request = publishing.Request(
        column=asked.column or "income",
        queries=asked.query or ["count"],
        epsilon=asked.epsilon,
        lower=asked.lower,
        upper=asked.upper,
        grid=asked.grid,
        edges=asked.edges,
        group_by=group_by,
        groups=groups,
        drop_missing=asked.missing == "drop",
        delimiter=asked.delimiter,
        confidence=asked.confidence,
    )
    # What could fail after the noise is drawn is checked before: epsilon is spent only once.
    for target in (asked.output, asked.plot):
        _check_target(target, asked.file)
    _check_plot(asked.plot)
    with ExitStack() as stack:
        output, plot = (stack.enter_context(_written(path)) for path in (asked.output, asked.plot))
        path = stack.enter_context(_file(asked.file))
        progress = stack.enter_context(_progress(path))
        published = publishing.publish(path, request, progress=progress)
        report = {
            "format": 1,
            "dpnoise": dpnoise.__version__,
            "neighbours": "differ by one row, added or removed",
            "request": asdict(request),
            "releases": [{"group": one.group, **asdict(one.release)} for one in published],
        }
        if output is not None:
            output.write_text(json.dumps(report, indent=2) + "\n")
        if plot is not None:
            _plot(published, request, plot)
    if asked.json:
        print(json.dumps(report, indent=2))  # noqa: T201 - this is the command line
        return
    _show(published, request)
    for target in filter(None, (asked.output, asked.plot)):
        print(f"Written to {target}.")  # noqa: T201 - likewise


def _check_target(target: Path | None, source: Path | None) -> None:
    """Raise if a file to be written has no folder, or is the data itself."""
    if target is None:
        return
    if not target.parent.is_dir():
        raise ArgumentError(f"There is no folder {target.parent} to write {target.name} to.")
    if source is not None and target.exists() and target.samefile(source):
        raise ArgumentError(f"{target} is the data. Write to another file.")


def _check_plot(target: Path | None) -> None:
    """Raise if a plot's name says no format that is drawn."""
    if target is not None and target.suffix not in _PLOTS:
        raise ArgumentError(f"Expected --plot {target} to end in {', '.join(_PLOTS)}.")


@contextmanager
def _file(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    with as_file(files("dpnoise").joinpath("data/people.csv")) as shipped:
        yield shipped


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[float], object]]:
    """Show how far a large file has been read."""
    if not path.exists() or path.stat().st_size < _LARGE:
        yield lambda _: None
        return
    with _progress_bar(f"reading {path.name}") as show:
        yield show


@contextmanager
def _progress_bar(title: str) -> Iterator[Callable[[float], object]]:
    """Give a function that shows the part that is done, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    rich_progress = import_extra("rich.progress", "cli")
    console = import_extra("rich.console", "cli").Console(stderr=True)
    with rich_progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part: bar.update(task, completed=part)


def _bars(
    published: list[publishing.Published], request: publishing.Request
) -> Iterator[tuple[str, str, float, float | None]]:
    """Yield the query, a label, a value and an error for each number that was published."""
    for one in published:
        release = one.release
        if isinstance(release.value, list):
            edges = [f"{edge:,.12g}" for edge in request.edges or ()]
            group = "" if one.group is None else f"{one.group}, "
            for low, high, value in zip(edges, edges[1:], release.value, strict=False):
                yield release.query, f"{group}{low} to {high}", value, release.error
        else:
            label = release.query if one.group is None else f"{one.group}, {release.query}"
            yield release.query, label, release.value, release.error


def _rounded(value: float, error: float | None) -> tuple[str, str]:
    """Show a number with the digits that its error leaves, and the error with two."""
    if not error:
        return f"{value:,.10g}", "no bound"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"
    return shown, f"± {float(f'{error:.2g}'):,.{decimals}f}"


def _show(published: list[publishing.Published], request: publishing.Request) -> None:
    console = import_extra("rich.console", "cli").Console()
    table = import_extra("rich.table", "cli").Table(box=None)
    for title in (request.column, "published", "within", ""):
        table.add_column(title)
    rows = list(_bars(published, request))
    for query, label, value, error in rows:
        # A bar is as long as its value among those of the same query; one alone has none.
        peers = [abs(row[2]) for row in rows if row[0] == query]
        bar = "█" * round(_BAR * abs(value) / (max(peers) or 1.0)) if len(peers) > 1 else ""
        table.add_row(label, *_rounded(value, error), f"[cyan]{bar}")
    console.print(table)
    first = published[0].group
    parts = [one.release for one in published if one.group == first]
    spent = ", ".join(_spent(release) for release in parts)
    console.print(
        f"\nepsilon {request.epsilon:g} in all: {spent}. One row added or removed.\n"
        f"Errors hold with probability {request.confidence:g}, apart from what the bounds clamp.",
        highlight=False,
        soft_wrap=True,
    )


def _spent(release: Release) -> str:
    """Say what a query cost: `mean 0.5 (sum 0.25, count 0.25)`."""
    inner = ", ".join(f"{name} {part:.4g}" for name, part in release.parts.items())
    return f"{release.query} {release.epsilon:.4g}" + (f" ({inner})" if inner else "")


def _plot(published: list[publishing.Published], request: publishing.Request, target: Path) -> None:
    """Draw one panel for each query: bars, with error bars where an error is known."""
    matplotlib = import_extra("matplotlib", "cli")
    matplotlib.use("Agg")
    pyplot = import_extra("matplotlib.pyplot", "cli")
    rows = list(_bars(published, request))
    queries = list(dict.fromkeys(row[0] for row in rows))
    panels = [[row for row in rows if row[0] == query] for query in queries]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(7, 0.7 * len(panels) + 0.4 * len(rows)),
        height_ratios=[len(panel) + 1 for panel in panels],
        layout="constrained",
        squeeze=False,
    )
    for axis, query, panel in zip(axes.flat, queries, panels, strict=True):
        _, labels, values, errors = zip(*panel, strict=True)
        known = None if errors[0] is None else errors
        axis.barh(labels, values, xerr=known, color="#3b7ea1", ecolor="#1a1a1a", capsize=3)
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
        note = "no bound on the error" if known is None else f"± at {request.confidence:.0%}"
        axis.set_title(f"{request.column}, {query} ({note})", loc="left", fontsize=10)
    figure.suptitle(f"epsilon = {request.epsilon:g} in all", fontsize=9, x=0.99, ha="right")
    figure.savefig(target, dpi=150, format=target.suffix.lstrip("."))
    pyplot.close(figure)


# sample ------------------------------------------------------------------------------------------


def _add_sample(commands: Any) -> None:
    command = commands.add_parser("sample", help="draw noise into a file")
    command.add_argument(
        "distribution", choices=["laplace", "normal", "exponential", "gumbel", "cauchy"]
    )
    command.add_argument("--scale", type=float, default=1.0, help="the scale of the noise (1)")
    command.add_argument("--size", type=int, default=10, help="how many (10)")
    command.add_argument("--dtype", choices=["float64", "float32", "float16"], default="float64")
    command.add_argument("--variates", type=int, help="uniforms for each variate")
    command.add_argument("--form", help="the formula: see docs/samplers.md")
    command.add_argument("--output", type=Path, help=".npy, .parquet or .csv; else it is printed")
    command.set_defaults(run=_sample)


def _sample(asked: argparse.Namespace) -> None:
    draw = getattr(dpnoise.Generator(), asked.distribution)
    noise = draw(
        asked.scale, asked.size, dtype=asked.dtype, variates=asked.variates, form=asked.form
    )
    if asked.output is None:
        np.savetxt(sys.stdout, noise, fmt="%.17g")
        return
    writers = {".npy": _write_npy, ".csv": _write_csv, ".parquet": _write_parquet}
    _check_target(asked.output, None)
    if asked.output.suffix not in writers:
        raise ArgumentError(f"Expected --output {asked.output} to end in {', '.join(writers)}.")
    with _written(asked.output) as target:
        writers[asked.output.suffix](target, noise)  # type: ignore[arg-type]  # There is a path.


def _write_npy(target: Path, noise: np.ndarray) -> None:
    with target.open("wb") as file:
        np.save(file, noise)


def _write_csv(target: Path, noise: np.ndarray) -> None:
    np.savetxt(target, noise, fmt="%.17g", header="noise", comments="")


def _write_parquet(target: Path, noise: np.ndarray) -> None:
    pa = import_extra("pyarrow", "cli")
    import_extra("pyarrow.parquet", "cli").write_table(pa.table({"noise": noise}), target)


# cost --------------------------------------------------------------------------------------------


def _add_cost(commands: Any) -> None:
    command = commands.add_parser("cost", help="what inverting one variate costs")
    command.add_argument("--precision", type=int, default=53, help="bits of each uniform (53)")
    command.add_argument("--variates", type=int, default=4, help="uniforms for each variate (4)")
    command.add_argument("--form", help="the formula: see docs/samplers.md")
    command.set_defaults(run=_cost)


def _cost(asked: argparse.Namespace) -> None:
    print(dpnoise.inversion_cost(asked.precision, asked.variates, asked.form))  # noqa: T201


# leakage -----------------------------------------------------------------------------------------


def _add_leakage(commands: Any) -> None:
    command = commands.add_parser(
        "leakage",
        help="what noise added in floats leaks, exactly, in small formats",
        description="Enumerate all uniforms of the samplers in small formats and print delta at "
        "epsilon of the sum with 0 against the sum with 1, and beside it the exact release.",
    )
    command.add_argument("--epsilon", type=float, default=1.0, help="where to read delta (1)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--plot", type=Path, help="draw delta against n and p: out.png")
    command.set_defaults(run=_leakage)


def _leakage(asked: argparse.Namespace) -> None:
    _check_target(asked.plot, None)
    _check_plot(asked.plot)
    with _progress_bar("enumerating") as progress:
        leaks = leakage_report.table(asked.epsilon, progress)
        releases = leakage_report.release_table(asked.epsilon)
    with _written(asked.plot) as plot:
        if plot is not None:
            leakage_report.plot(leaks, releases, asked.epsilon, plot)
    if asked.json:
        report = {
            "epsilon": asked.epsilon,
            "leaks": [asdict(row) for row in leaks],
            "releases": [asdict(row) for row in releases],
        }
        print(json.dumps(report, indent=2))  # noqa: T201 - this is the command line
        return
    print(leakage_report.text(leaks, releases, asked.epsilon))  # noqa: T201 - likewise
    if asked.plot is not None:
        print(f"Written to {asked.plot}.")  # noqa: T201 - likewise


# ------------------------------------------------------------------------------------------------


@contextmanager
def _written(path: Path | None) -> Iterator[Path | None]:
    """Give a file beside the target to write to, and rename it when it is complete.

    It starts with room taken on the disk, so that a full one is noticed before noise is drawn.
    """
    if path is None:
        yield None
        return
    beside = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        beside.write_bytes(bytes(_ROOM))
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("give numbers: 0,20000,40000") from None


def _groups(text: str) -> tuple[str, list[str]]:
    column, equals, groups = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("give the declared groups: city=cork,dublin")
    return column.strip(), [group.strip() for group in groups.split(",")]


if __name__ == "__main__":
    sys.exit(main())
