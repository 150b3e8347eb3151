"""`dpnoise release`: publish private statistics of a CSV or Parquet file."""

import argparse
import csv
import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from decimal import ROUND_CEILING, Decimal, localcontext
from importlib import resources
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, Final

from dpnoise import strict_json
from dpnoise.cli import terminal
from dpnoise.cli.bars import Bar, bars_of, draw_bars
from dpnoise.cli.files import check_plot, check_targets, file_name, written
from dpnoise.cli.progress import progress_bar
from dpnoise.errors import ArgumentError, import_extra
from dpnoise.showing import shown
from dpnoise.statistics import files, publishing
from dpnoise.statistics.functions import MISSING
from dpnoise.statistics.groups import groups_in_file
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.queries import Release
from dpnoise.statistics.requests import Request, load_request, simple_request

_LARGE: Final = 50 * 2**20  # From this size on, reading a file shows its progress.
_BAR: Final = 30
_SHORTEST_BAR: Final = 5
_DECIMAL_DIGITS: Final = 800  # More than any float and its margin have.
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
        description="Publish private statistics of a column, or all that a request in TOML asks "
        "for. Neighbouring data sets differ by one row. Without FILE, a small data set that comes "
        "with dpnoise is used.",
    )
    command.add_argument(
        "file", nargs="?", type=file_name, metavar="FILE", help="the data, or a request: *.toml"
    )
    command.add_argument(
        "--source", type=file_name, help="the data of a request, if it does not name them"
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="say what would be published, with margins, and read no row",
    )
    command.add_argument("--column", help="the column of numbers")
    command.add_argument(
        "--query",
        action="append",
        metavar="QUERY",
        help="count, sum, mean, variance, std, median, quantile:0.9, quantiles:0.1,0.9 or "
        "histogram; repeat it for several, which split epsilon evenly (count)",
    )
    command.add_argument("--epsilon", type=float, help="for all queries together (1)")
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
        "--groups-file",
        type=_groups_file,
        action=_Once,
        metavar="COLUMN=FILE",
        help="declared groups, one on each line of a file; beside --group-by, groups of both",
    )
    command.add_argument(
        "--missing",
        choices=MISSING,
        help="what to do about rows without a value: empty, NA, NaN, null (error)",
    )
    command.add_argument(
        "--delimiter", type=_delimiter, help="what separates a CSV file's entries (,)"
    )
    command.add_argument("--confidence", type=float, help="of the margins (0.95)")
    command.add_argument(
        "--no-clamp", action="store_true", help="publish counts below 0 as they are"
    )
    command.add_argument(
        "--no-intervals", action="store_true", help="spend no epsilon on intervals of quantiles"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--output", type=file_name, help="write the table (.csv, .parquet) or the record (JSON)"
    )
    command.add_argument("--record", type=file_name, help="write the record of what was done: JSON")
    command.add_argument("--plot", type=file_name, help="draw bars with error bars: out.png")
    command.add_argument(
        "--force", action="store_true", help="replace an earlier release, which cannot be repeated"
    )
    command.set_defaults(run=_release)


# What a request in a file says, and the command line may not say again.
_IN_REQUESTS: Final = (
    *("column", "query", "epsilon", "lower", "upper", "grid", "edges", "group_by", "groups_file"),
    *("missing", "delimiter", "confidence", "no_clamp", "no_intervals"),
)


def _asked_for(asked: argparse.Namespace) -> tuple[Request, Path | None]:
    """Return the request and the data that it is about; None is the data set that is shipped."""
    if asked.file is None or asked.file.suffix.lower() != ".toml":
        if asked.source is not None:
            raise ArgumentError("--source goes with a request: dpnoise release request.toml.")
        return _request(asked), asked.file
    for name in _IN_REQUESTS:
        if getattr(asked, name) not in {None, False}:
            option = "--" + name.replace("_", "-")
            raise ArgumentError(f"{asked.file} says what to publish: write {option} there.")
    signed = load_request(asked.file)
    source = asked.source or signed.source
    if source is None and not asked.check:
        raise ArgumentError(f'Say which data {asked.file} is about: --source FILE, or source = "".')
    return signed.request, source


def _request(asked: argparse.Namespace) -> Request:
    groups = dict(filter(None, (asked.group_by, asked.groups_file)))
    if asked.groups_file is not None:
        column, path = asked.groups_file
        groups[column] = groups_in_file(path)
    return simple_request(
        "income" if asked.file is None and asked.column is None else asked.column,
        asked.query or ["count"],
        1.0 if asked.epsilon is None else asked.epsilon,
        lower=asked.lower,
        upper=asked.upper,
        grid=asked.grid,
        edges=asked.edges,
        groups=groups,
        missing=asked.missing or "error",
        delimiter="," if asked.delimiter is None else asked.delimiter,
        confidence=0.95 if asked.confidence is None else asked.confidence,
        clamp=not asked.no_clamp,
        intervals=not asked.no_intervals,
    )


def _release(asked: argparse.Namespace) -> None:
    if asked.file is not None:
        files.check_there(asked.file)
    request, source = _asked_for(asked)
    if asked.check:
        _explain(request)
        return
    _check_source(source, request, asked)
    # What could fail after the noise is drawn is done before: epsilon is spent only once.
    targets = (asked.output, asked.record, asked.plot)
    check_targets(*targets, source=source, replace=asked.force)
    check_plot(asked.plot)
    _rehearse(request, asked)
    table: Table | None = None
    try:
        with ExitStack() as stack:
            plot = stack.enter_context(written(asked.plot, replace=asked.force))
            record = stack.enter_context(written(asked.record, replace=asked.force))
            path = stack.enter_context(_file(source))
            progress = stack.enter_context(_progress(path))
            with written(asked.output, replace=asked.force) as output:
                table = publishing.publish(path, request, progress=progress)
                if output is not None:
                    _write(table, output, asked.output.suffix)
            if record is not None:
                record.write_text(_report(table), encoding="utf-8")
            if plot is not None:
                draw_bars(table, plot)
    finally:
        # What was paid for is shown, even if a file could not be written after all.
        if table is not None:
            _show(table, as_json=asked.json)
    if not asked.json:
        for target in filter(None, targets):
            print(f"Written to {shown(target)}.")  # noqa: T201 - this is the command line


def _check_source(source: Path | None, request: Request, asked: argparse.Namespace) -> None:
    if source is None:
        return
    files.check_there(source)
    if source == asked.file and asked.column is None:
        names = publishing.columns_of(source, request.delimiter)
        raise ArgumentError(f"Say which column of {source} to use: --column NAME. It has: {names}.")


def _rehearse(request: Request, asked: argparse.Namespace) -> None:
    """Make with zeros for numbers all that will be made of the release, and throw it away."""
    zeros = publishing.rehearsal(request)
    _report(zeros)
    if asked.output is not None:
        _write(zeros, BytesIO(), asked.output.suffix)
    if asked.plot is not None:
        draw_bars(zeros, BytesIO(), asked.plot.suffix)
    with redirect_stdout(StringIO()):
        _show(zeros, as_json=asked.json)


def _write(table: Table, target: Path | BytesIO, suffix: str) -> None:
    """Write the table as CSV or Parquet, or the record as JSON."""
    if suffix.lower() in {".parquet", ".pq"}:
        import_extra("pyarrow.parquet", "files").write_table(table.to_arrow(), target)
        return
    text = _as_csv(table) if suffix.lower() == ".csv" else _report(table)
    content = text.encode("utf-8")
    if isinstance(target, BytesIO):
        target.write(content)
    else:
        target.write_bytes(content)


def _as_csv(table: Table) -> str:
    text, rows = StringIO(), table.rows()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _report(table: Table) -> str:
    return strict_json.dumps(table.record()) + "\n"


def _explain(request: Request) -> None:
    """Say what would be published, at which cost and how far off, without reading a row."""
    console = terminal.console(soft_wrap=True)
    titles = ["column", "statistic", "groups", "epsilon", "margins"]
    rows = []
    for question, query in request.prepare():
        groups = len(request.keys(question))
        by = f"{groups:,} of {' and '.join(question.by)}" if question.by else "all rows"
        name = "rows" if question.column is None else question.column
        margins = query.expected(request.confidence, groups)
        rows.append([name, query.name, by, f"{query.epsilon:.4g}", margins])
    terminal.print_table(console, terminal.table(titles, rows, console.width, folded=4))
    for column, keys in request.groups.items():
        named = ", ".join(str(key) for key in keys)
        console.print(f"\ngroups of {shown(column)}: {shown(named)}")
    console.print(
        f"\nepsilon {request.epsilon:g} in all. One row added or removed. Missing values: "
        f"{request.missing}.\nMargins hold with probability {request.confidence:g}. No row is read."
    )


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


def _show(table: Table, *, as_json: bool) -> None:
    if as_json:
        print(_report(table), end="")  # noqa: T201 - this is the command line
        return
    console = terminal.console(soft_wrap=True)
    request, bars = table.request, bars_of(table)
    columns = request.columns()
    title = columns[0] if len(columns) == 1 else ""
    joint = any(bar.joint is not None for bar in bars)
    titles = [title, "published", "within", *(["all within"] if joint else []), ""]
    rows = [_row(bar, joint=joint) for bar in bars]
    length = min(_BAR, console.width - terminal.natural_width(titles, rows))
    if length >= _SHORTEST_BAR:
        for row, blocks in zip(rows, _blocks(bars, length), strict=True):
            row[-1] = blocks
    made = terminal.table(titles, rows, console.width, folded=0)
    made.columns[-1].style = "cyan"
    terminal.print_table(console, made)
    spent = ", ".join(dict.fromkeys(_spent(one.release) for one in table))
    console.print(
        f"\nepsilon {request.epsilon:g} in all: {spent}. One row added or removed.\n"
        f"{_what_margins_mean(request.confidence, joint=joint)}"
    )


def _what_margins_mean(confidence: float, *, joint: bool) -> str:
    together = ' and "all within" for all numbers of one statistic together' if joint else ""
    return (
        f'With probability {confidence:g} "within" holds, for each number by itself{together}, '
        "apart from what the bounds clamp."
    )


def _row(bar: Bar, *, joint: bool) -> list[str]:
    if bar.interval is not None:
        width = bar.interval[1] - bar.interval[0] or None
        value, low, high = (_rounded(end, width)[0] for end in (bar.value, *bar.interval))
        return [bar.label, value, f"{low} to {high}", *([""] if joint else []), ""]
    value, margin = _rounded(bar.value, bar.error)
    together = [_rounded(bar.value, bar.joint)[1] if bar.joint is not None else ""] if joint else []
    return [bar.label, value, margin, *together, ""]


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
    """Show a number with the digits that its error leaves, and the error with two, rounded up.

    What the number loses by its own rounding is part of the margin that is shown.
    """
    if not error or not math.isfinite(error) or not math.isfinite(value):
        return f"{value:,.10g}", "no bound"
    within = "±" if terminal.can_show("±") else "+-"
    if isinstance(value, int) and isinstance(error, int):
        return f"{value:,}", f"{within} {error:,}"
    decimals = 1 - math.floor(math.log10(error))
    with localcontext(prec=_DECIMAL_DIGITS):
        exactly = Decimal(value)
        if not -_MOST_DIGITS < decimals < _MOST_DIGITS:
            rounded = Decimal(f"{value:.10g}")
            margin = _up(Decimal(error) + abs(rounded - exactly), decimals)
            return f"{value:.10g}", f"{within} {margin:.2g}"
        decimals = max(0, decimals)
        rounded = exactly if isinstance(value, int) else round(exactly, decimals)
        margin = _up(Decimal(error) + abs(rounded - exactly), decimals)
    places = 0 if isinstance(value, int) else decimals
    return f"{rounded:,.{places}f}", f"{within} {margin:,.{decimals}f}"


def _up(margin: Decimal, decimals: int) -> Decimal:
    """Round a margin up, to this many decimals or to two digits."""
    digits = min(decimals, 1 - margin.adjusted())
    return margin.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)


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


def _groups_file(text: str) -> tuple[str, Path]:
    column, rest = _name(text, "=")
    if not rest:
        raise argparse.ArgumentTypeError("give a column and a file: city=cities.txt")
    return column, file_name(rest)


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
