"""`dpnoise release`: publish private statistics of a CSV or Parquet file."""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import dpnoise
from dpnoise import publishing
from dpnoise.cli.files import check_plot, check_target, written
from dpnoise.cli.progress import progress_bar
from dpnoise.errors import ArgumentError, import_extra
from dpnoise.statistics import Release

_LARGE = 50 * 2**20  # From this size on, reading a file shows its progress.
_BAR = 30


class _Once(argparse.Action):
    """An option that may be given once, because a second would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} may be given once")
        setattr(namespace, self.dest, values)


def add(commands: Any) -> None:
    """Add the command to the parser."""
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
        check_target(target, asked.file)
    check_plot(asked.plot)
    with ExitStack() as stack:
        output, plot = (stack.enter_context(written(path)) for path in (asked.output, asked.plot))
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
    with progress_bar(f"reading {path.name}") as show:
        yield show


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
