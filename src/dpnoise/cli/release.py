"""`dpnoise release`: publish private statistics of a CSV or Parquet file."""

import argparse
import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict
from importlib import resources
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, Final

import dpnoise
from dpnoise import strict_json
from dpnoise.cli import terminal
from dpnoise.cli.bars import Bar, bars_of, draw_bars
from dpnoise.cli.files import check_plot, check_targets, file_name, written
from dpnoise.cli.progress import progress_bar
from dpnoise.errors import ArgumentError
from dpnoise.showing import shown
from dpnoise.statistics import files, publishing
from dpnoise.statistics.queries import MISSING, Release

_LARGE: Final = 50 * 2**20  # From this size on, reading a file shows its progress.
_BAR: Final = 30
_SHORTEST_BAR: Final = 5
_MOST_DIGITS: Final = 18  # Numbers of more digits are shown with an exponent.
_QUOTED: Final = re.compile(r'\s*"((?:[^"]|"")*)"\s*')


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
    command.add_argument("file", nargs="?", type=file_name, metavar="FILE")
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
        help="declared groups, as they are written in the data: city=cork,dublin; spaces around a "
        'name are dropped, names in quotes taken as they stand: city="Cork, County","dublin "',
    )
    command.add_argument(
        "--missing",
        choices=MISSING,
        default="error",
        help="what to do about rows without a value: empty, NA, NaN, null (error)",
    )
    command.add_argument(
        "--delimiter", type=_delimiter, default=",", help="what separates a CSV file's entries (,)"
    )
    command.add_argument("--confidence", type=float, default=0.95, help="of the errors (0.95)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--output", type=file_name, help="write JSON to this file")
    command.add_argument("--plot", type=file_name, help="draw bars with error bars: out.png")
    command.add_argument(
        "--force", action="store_true", help="replace an earlier release, which cannot be repeated"
    )
    command.set_defaults(run=_release)


def _release(asked: argparse.Namespace) -> None:
    if asked.file is not None:
        files.check_there(asked.file)
    group_by, groups = asked.group_by or (None, ())
    request = publishing.Request(
        column="income" if asked.column is None else asked.column,
        queries=asked.query or ["count"],
        epsilon=asked.epsilon,
        lower=asked.lower,
        upper=asked.upper,
        grid=asked.grid,
        edges=asked.edges,
        group_by=group_by,
        groups=groups,
        missing=asked.missing,
        delimiter=asked.delimiter,
        confidence=asked.confidence,
    )
    if asked.file is not None and asked.column is None:
        names = files.columns(asked.file, asked.delimiter)
        raise ArgumentError(
            f"Say which column of {asked.file} to use: --column NAME. It has: {names}."
        )
    # What could fail after the noise is drawn is done before: epsilon is spent only once.
    check_targets(asked.output, asked.plot, source=asked.file, replace=asked.force)
    check_plot(asked.plot)
    _rehearse(request, asked)
    published: list[publishing.Published] = []
    try:
        with ExitStack() as stack:
            plot = stack.enter_context(written(asked.plot, replace=asked.force))
            path = stack.enter_context(_file(asked.file))
            progress = stack.enter_context(_progress(path))
            with written(asked.output, replace=asked.force) as output:
                published = publishing.publish(path, request, progress=progress)
                if output is not None:
                    output.write_text(_report(published, request), encoding="utf-8")
            if plot is not None:
                draw_bars(published, request, plot)
    finally:
        # What was paid for is shown, even if a file could not be written after all.
        if published:
            _show(published, request, as_json=asked.json)
    if not asked.json:
        for target in filter(None, (asked.output, asked.plot)):
            print(f"Written to {shown(target)}.")  # noqa: T201 - this is the command line


def _rehearse(request: publishing.Request, asked: argparse.Namespace) -> None:
    """Make with zeros for numbers all that will be made of the release, and throw it away."""
    zeros = publishing.rehearsal(request)
    _report(zeros, request)
    if asked.plot is not None:
        draw_bars(zeros, request, BytesIO(), asked.plot.suffix)
    with redirect_stdout(StringIO()):
        _show(zeros, request, as_json=asked.json)


def _report(published: list[publishing.Published], request: publishing.Request) -> str:
    report = {
        "format": 1,
        "dpnoise": dpnoise.__version__,
        "neighbours": "differ by one row, added or removed",
        "request": asdict(request),
        "releases": [{"group": one.group, **asdict(one.release)} for one in published],
    }
    return strict_json.dumps(report) + "\n"


@contextmanager
def _file(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    with resources.as_file(resources.files("dpnoise").joinpath("data/people.csv")) as shipped:
        yield shipped


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[float], object]]:
    """Show how far a large file has been read."""
    if not path.exists() or path.stat().st_size < _LARGE:
        yield lambda _: None
        return
    with progress_bar(f"reading {path.name}") as show:
        yield show


def _show(
    published: list[publishing.Published], request: publishing.Request, *, as_json: bool
) -> None:
    if as_json:
        print(_report(published, request), end="")  # noqa: T201 - this is the command line
        return
    console = terminal.console(soft_wrap=True)
    bars = bars_of(published, request)
    titles = [request.column, "published", "within", ""]
    rows = [[bar.label, *_rounded(bar.value, bar.error), ""] for bar in bars]
    length = min(_BAR, console.width - terminal.natural_width(titles, rows))
    if length >= _SHORTEST_BAR:
        for row, blocks in zip(rows, _blocks(bars, length), strict=True):
            row[-1] = blocks
    made = terminal.table(titles, rows, console.width, folded=0)
    made.columns[-1].style = "cyan"
    terminal.print_table(console, made)
    first = published[0].group
    parts = [one.release for one in published if one.group == first]
    spent = ", ".join(_spent(release) for release in parts)
    console.print(
        f"\nepsilon {request.epsilon:g} in all: {spent}. One row added or removed.\n"
        f"Errors hold with probability {request.confidence:g}, apart from what the bounds clamp."
    )


def _blocks(bars: list[Bar], length: int) -> list[str]:
    """Draw each number as long as it is among those of the same query; one alone has no bar."""
    block = "█" if terminal.can_show("█") else "#"
    peers: dict[str, list[float]] = {}
    for bar in bars:
        peers.setdefault(bar.query, []).append(abs(bar.value))
    longest = {query: (max(sizes) or 1.0) for query, sizes in peers.items() if len(sizes) > 1}
    shares = [abs(bar.value) / longest.get(bar.query, math.inf) for bar in bars]
    return [block * round(length * share) for share in shares]


def _rounded(value: float, error: float | None) -> tuple[str, str]:
    """Show a number with the digits that its error leaves, and the error with two."""
    if not error or not math.isfinite(error):
        return f"{value:,.10g}", "no bound"
    within = "±" if terminal.can_show("±") else "+-"
    decimals = 1 - math.floor(math.log10(error))
    if not -_MOST_DIGITS < decimals < _MOST_DIGITS:
        return f"{value:.10g}", f"{within} {error:.2g}"
    decimals = max(0, decimals)
    shown_value = f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"
    return shown_value, f"{within} {float(f'{error:.2g}'):,.{decimals}f}"


def _spent(release: Release) -> str:
    """Say what a query cost: `mean 0.5 (sum 0.25, count 0.25)`."""
    inner = ", ".join(f"{name} {part:.4g}" for name, part in release.parts.items())
    return f"{release.query} {release.epsilon:.4g}" + (f" ({inner})" if inner else "")


def _delimiter(text: str) -> str:
    r"""Take \t for the tab that is hard to type."""
    return "\t" if text == r"\t" else text


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("give numbers: 0,20000,40000") from None


def _groups(text: str) -> tuple[str, list[str]]:
    column, rest = _name(text, "=")
    if rest is None:
        raise argparse.ArgumentTypeError("give the declared groups: city=cork,dublin")
    groups = []
    while rest is not None:
        group, rest = _name(rest, ",")
        groups.append(group)
    return column, groups


def _name(text: str, separator: str) -> tuple[str, str | None]:
    """Return the first name of a text, and what its separator, if any, is followed by.

    A name in quotes is what they hold, where "" is a quote; others lose the spaces around them.
    """
    quoted = _QUOTED.match(text)
    if quoted is None and not text.lstrip().startswith('"'):
        name, found, rest = text.partition(separator)
        return name.strip(), rest if found else None
    rest = "" if quoted is None else text[quoted.end() :]
    if quoted is None or rest[:1] not in {"", separator}:
        raise argparse.ArgumentTypeError('a name in quotes ends with them: city="Cork, County"')
    return quoted[1].replace('""', '"'), rest[1:] if rest else None
