"""`dpnoise release`: publish private statistics of files."""

import argparse
import csv
import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib import resources
from io import BytesIO, StringIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from dpnoise.cli import terminal
from dpnoise.cli.files import check_plot, check_targets, written
from dpnoise.cli.release_arguments import OPTIONS, asked_for
from dpnoise.cli.terminal import Command
from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import shortened, shown
from dpnoise.statistics import publishing, report
from dpnoise.statistics.engines import Files
from dpnoise.statistics.engines.files import check_there
from dpnoise.statistics.ledger import LedgerCharge, open_ledger
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.queries import Query
from dpnoise.statistics.requests import Discovery, Request
from dpnoise.statistics.results import Number, Release

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGE: Final = 50 * 2**20  # From this size on, reading a file shows its progress.
_BAR: Final = 30
_SHORTEST_BAR: Final = 5
_DPI: Final = 150
_TALLEST: Final = 400.0  # Inches; a picture has less than 2^16 dots.
_LONGEST_LABEL: Final = 60
_LONGEST_BAR: Final = 1e300  # Near the largest float, axes overflow.
_MOST_ON_A_PAGE: Final = 20_000  # A browser is slow with more.


class Bar(NamedTuple):
    """A number that was published, with its statistic and its label."""

    query: str
    label: str
    number: Number


def _release(asked: argparse.Namespace) -> None:
    request, source = asked_for(asked)
    if asked.check:
        _explain(request)
        if asked.ledger is not None:
            left = LedgerCharge(asked.ledger, request).left_after
            print(f"{shown(asked.ledger)} would have {left} left.")  # noqa: T201 - a command
        return
    paths = [] if source is None else check_there(source)
    # What could fail after the noise is drawn is done before: epsilon is spent only once.
    targets = (asked.output, asked.record, asked.plot, asked.html)
    for path in paths:
        check_targets(*targets, source=path, replace=True)
    check_targets(*targets, ledger=asked.ledger, replace=asked.force)
    check_plot(asked.plot)
    _publish(request, source, paths, _rehearse(request, asked), asked)
    if not asked.json:
        if asked.ledger is not None:
            left = open_ledger(asked.ledger).left_in_words()
            print(f"Paid from {shown(asked.ledger)}, which has {left} left.")  # noqa: T201 - a command
        for target in filter(None, targets):
            print(f"Written to {shown(target)}.")  # noqa: T201 - a command


def _publish(
    request: Request, source: Files | None, paths: list[Path], room: int, asked: argparse.Namespace
) -> None:
    """Publish, write all that was asked for, and show it."""
    table: Table | None = None
    try:
        with ExitStack() as stack:
            plot = stack.enter_context(written(asked.plot, replace=asked.force))
            record = stack.enter_context(written(asked.record, replace=asked.force))
            page = stack.enter_context(written(asked.html, replace=asked.force, room=room))
            shipped = resources.files("dpnoise.cli").joinpath("people.csv")
            read = source or Files(stack.enter_context(resources.as_file(shipped)))
            size = sum(path.stat().st_size for path in paths if path.is_file())
            bar = terminal.progress_bar(f"reading {paths[0].name}" if size >= _LARGE else None)
            progress = stack.enter_context(bar)
            with written(asked.output, replace=asked.force) as output:
                table = publishing.publish(read, request, progress=progress, ledger=asked.ledger)
                if output is not None:
                    output.write_bytes(_content(table, asked.output.suffix))
            if record is not None:
                record.write_bytes(_content(table, ".json"))
            if page is not None:
                table.to_html(page, asked.title)
            if plot is not None:
                draw_bars(table, plot)
    finally:
        # What was paid for is shown, even if a file could not be written after all.
        if table is not None:
            _show(table, as_json=asked.json)


def _rehearse(request: Request, asked: argparse.Namespace) -> int:
    """Make with zeros for numbers all that will be made of the release, and throw it away.

    Return how many bytes the page may take.
    """
    zeros = publishing.rehearsal(request)
    _content(zeros, ".json")
    if asked.output is not None:
        _content(zeros, asked.output.suffix)
    if asked.plot is not None:
        draw_bars(zeros, BytesIO(), asked.plot.suffix)
    with redirect_stdout(StringIO()):
        _show(zeros, as_json=asked.json)
    if asked.html is None and asked.title is not None:
        raise ArgumentError("--title is that of a page: write one with --html page.html.")
    if asked.html is None:
        return 0
    numbers = len(zeros.rows())
    if numbers > _MOST_ON_A_PAGE:
        raise ArgumentError(
            f"--html shows {_MOST_ON_A_PAGE:,} numbers at most; these are {numbers:,}. "
            "Write them with --output table.csv."
        )
    return 2 * len(report.render(zeros.record(), asked.title).encode("utf-8"))


def _content(table: Table, suffix: str) -> bytes:
    """Return the table as CSV or Parquet, or the record as JSON."""
    if suffix.lower() in {".parquet", ".pq"}:
        file = BytesIO()
        import_extra("pyarrow.parquet", "files").write_table(table.to_arrow(), file)
        return file.getvalue()
    if suffix.lower() != ".csv":
        return report.record_text(table.record()).encode("utf-8")
    text = StringIO()
    writer = csv.DictWriter(text, table.titles(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.rows())
    return text.getvalue().encode("utf-8")


def _explain(request: Request) -> None:
    """Say what would be published, at which cost and how far off, without reading a row."""
    console = terminal.console(soft_wrap=True)
    spends = "epsilon" if all(one.rho is None for _, one in request.prepare()) else "spends"
    titles = ["column", "statistic", "groups", spends, "margins"]
    rows = []
    for question, query in request.prepare():
        name = "rows" if question.column is None else question.column
        is_discovered = set(question.by) & set(request.discovered)
        groups = 1 if is_discovered else len(request.keys(question))
        number = "found" if is_discovered else f"{groups:,}"
        by = f"{number} of {' and '.join(question.by)}" if question.by else "all rows"
        margins = query.expected(request.confidence, groups)
        rows.append([name, query.name, by, _amount(query), margins])
    terminal.print_table(console, terminal.table(titles, rows, console.width, folded=4))
    for column, keys in request.groups.items():
        if not isinstance(keys, str):
            named = ", ".join(str(key) for key in keys)
            console.print(terminal.prose(f"\ngroups of {shown(column)}: {shown(named)}"))
    for one in request.discoveries():
        threshold = (
            f"\ngroups of {shown(one.column)}: those whose noisy number of "
            f"{'rows' if request.person is None else 'persons'} is {one.threshold:,} or more"
        )
        console.print(terminal.prose(threshold))
    promise = (
        f"\n{request.cost_in_words} in all. {_neighbours(request)} Missing values: "
        f"{request.missing}.\nProtected: {shown(request.privacy_unit)}.\nMargins hold with "
        f"probability {request.confidence:g}. No row is read."
    )
    console.print(terminal.prose(promise))


def _amount(of: Query | Release | Discovery) -> str:
    """Say what was spent on a statistic, or will be."""
    return f"{of.epsilon:.4g}" if of.epsilon is not None else f"rho {of.rho:.4g}"


def _neighbours(request: Request) -> str:
    words = request.neighbours_in_words
    return f"{words[0].upper()}{words[1:]}."


def _show(table: Table, *, as_json: bool) -> None:
    if as_json:
        print(report.record_text(table.record()), end="")  # noqa: T201 - this is the command line
        return
    console = terminal.console(soft_wrap=True)
    request, bars = table.request, bars_of(table)
    columns = request.columns()
    title = columns[0] if len(columns) == 1 else ""
    joint = any(bar.number.joint is not None for bar in bars)
    titles = [title, "published", "within", *(["all within"] if joint else []), ""]
    sign = "±" if terminal.can_show("±") else "+-"
    rows = [[bar.label, *bar.number.shown(sign)[: 3 if joint else 2], ""] for bar in bars]
    made = terminal.table(titles, rows, console.width, folded=0)
    length = min(_BAR, console.width - terminal.table_width(made))
    if length >= _SHORTEST_BAR:
        for row, blocks in zip(rows, _blocks(bars, length), strict=True):
            row[-1] = blocks
        made = terminal.table(titles, rows, console.width, folded=0)
    made.columns[-1].style = "cyan"
    terminal.print_table(console, made)
    spent = [f"groups of {shown(one.column)} {_amount(one)}" for one in request.discoveries()]
    for one in table:
        parts = ", ".join(f"{name} {part:.4g}" for name, part in one.release.parts.items())
        words = f"{one.release.query} {_amount(one.release)}" + (f" ({parts})" if parts else "")
        if words not in spent:
            spent.append(words)
    together = ' and "all within" for all numbers of one statistic together' if joint else ""
    console.print(
        f"\n{request.cost_in_words} in all: {', '.join(spent)}. {_neighbours(request)}\n"
        f'With probability {request.confidence:g} "within" holds, for each number by itself'
        f"{together}, apart from what the bounds clamp."
    )


def _blocks(bars: list[Bar], length: int) -> list[str]:
    """Draw each number as long as it is among those of the same query; one alone has no bar."""
    block = "█" if terminal.can_show("█") else "#"
    peers: dict[str, list[float]] = {}
    for bar in bars:
        peers.setdefault(bar.query, []).append(abs(bar.number.value))
    longest = {query: (max(sizes) or 1.0) for query, sizes in peers.items() if len(sizes) > 1}
    shares = [abs(bar.number.value) / longest.get(bar.query, math.inf) for bar in bars]
    return [block * round(length * share) for share in shares]


def bars_of(table: Table) -> list[Bar]:
    """Return a bar for each number that was published."""
    several, bars = len(table.request.columns()) > 1, []
    for one in table:
        column = one.column if several else None
        query = one.release.query if column is None else f"{column}, {one.release.query}"
        groups = ", ".join(map(str, one.group))
        for number in one.release.numbers():
            words = [groups, column, *number.path] if number.path else [groups, query]
            bars.append(Bar(query, ", ".join(filter(None, words)), number))
    return bars


def draw_bars(table: Table, target: Path | BytesIO, suffix: str = "") -> None:
    """Draw one panel for each query: bars, with error bars where an error is known.

    The format is that of the suffix, by default the target's.
    """
    request = table.request
    bars = bars_of(table)
    queries = list(dict.fromkeys(bar.query for bar in bars))
    panels = [[bar for bar in bars if bar.query == query] for query in queries]
    height = 0.7 * len(panels) + 0.4 * len(bars)
    if height > _TALLEST:
        raise ArgumentError(f"--plot draws some 900 bars at most; these are {len(bars)}.")
    with _pyplot() as pyplot:
        figure, axes = pyplot.subplots(
            len(panels),
            figsize=(7, height),
            height_ratios=[len(panel) + 1 for panel in panels],
            layout="constrained",
            squeeze=False,
        )
        for axis, query, panel in zip(axes.flat, queries, panels, strict=True):
            _draw_panel(axis, query, panel, request)
        figure.suptitle(f"{request.cost_in_words} in all", fontsize=9, x=0.99, ha="right")
        kind = suffix or getattr(target, "suffix", "")
        try:
            figure.savefig(target, dpi=_DPI, format=kind.lstrip("."))
        finally:
            pyplot.close(figure)


def _draw_panel(axis: "Axes", query: str, panel: list[Bar], request: Request) -> None:
    errors = [span for bar in panel if (span := _span(bar.number)) is not None]
    drawn = axis.barh(
        range(len(panel)),
        [float(min(max(bar.number.value, -_LONGEST_BAR), _LONGEST_BAR)) for bar in panel],
        xerr=[list(side) for side in zip(*errors, strict=True)] or None,
        tick_label=[shortened(shown(bar.label), _LONGEST_LABEL) for bar in panel],
        color="#3b7ea1",
        ecolor="#1a1a1a",
        capsize=3,
    )
    # A light rim lets error bars be seen on pages of any colour.
    rim = import_extra("matplotlib.patheffects", "plots").withStroke(
        linewidth=3, foreground="white"
    )
    for lines in () if drawn.errorbar is None else drawn.errorbar.get_children():
        lines.set_path_effects([rim])
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    note = f"each ± at {request.confidence:.0%}" if errors else "no bound on the error"
    columns = request.columns()
    column = f"{columns[0]}, " if len(columns) == 1 else ""
    title = shortened(shown(column + query), _LONGEST_LABEL)
    axis.set_title(f"{title} ({note})", loc="left", fontsize=10)


def _span(number: Number) -> tuple[float, float] | None:
    """Return how far the error bar of a number goes to both sides."""
    if number.interval is not None:
        return number.value - number.interval[0], number.interval[1] - number.value
    return None if number.error is None else (number.error, number.error)


@contextmanager
def _pyplot() -> Iterator[ModuleType]:
    """Give pyplot for files, with text drawn as it is: no formulas, no LaTeX, no warnings."""
    matplotlib = import_extra("matplotlib", "plots")
    matplotlib.use("Agg")
    pyplot = import_extra("matplotlib.pyplot", "plots")
    plain = {"text.parse_math": False, "text.usetex": False}
    with matplotlib.rc_context(plain), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of characters that no font has: they are drawn as boxes.
        yield pyplot


RELEASE: Final = Command(
    "release",
    "publish private statistics of files: CSV, Parquet, JSON lines, SQLite",
    _release,
    OPTIONS,
    description="Publish private statistics of a column, or all that a request in TOML asks for. "
    "Neighbouring data sets differ by one row, or with --person by one person. Without FILE, a "
    "small data set that comes with dpnoise is used.",
)
