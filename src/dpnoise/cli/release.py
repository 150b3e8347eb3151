"""`dpnoise release`: publish private statistics of files."""

import argparse
import csv
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib import resources
from io import BytesIO, StringIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from dpnoise.cli import terminal
from dpnoise.cli.output_files import check_plot, check_targets, replace_when_complete
from dpnoise.cli.preview import amount_text, explain, neighbours_text
from dpnoise.cli.release_arguments import (
    EXAMPLES,
    GROUPS,
    parse_request,
    request_file,
    setting_text,
)
from dpnoise.cli.terminal import Command
from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import escape_text, format_confidence, shorten
from dpnoise.statistics import publishing, report
from dpnoise.statistics.engines import Files
from dpnoise.statistics.engines.files import check_there
from dpnoise.statistics.ledger import LedgerCharge, open_ledger
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.requests import Request
from dpnoise.statistics.results import BELOW_MARGIN, MARK, Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

_LARGE: Final = 50 * 2**20  # Reading a file of this size or larger shows a progress bar.
_BAR: Final = 30  # The length of the longest bar in a terminal, in characters.
_SHORTEST_BAR: Final = 5  # With fewer characters left, the table has no bars.
_DPI: Final = 150
_TALLEST: Final = 400.0  # Inches; a picture must have fewer than 2^16 dots.
_LONGEST_LABEL: Final = 60
_LONGEST_BAR: Final = 1e300  # The axes of a plot overflow near the largest float.
_SAMPLE_NAME: Final = "sample of 5,000 invented people"
_MOST_ON_A_PAGE: Final = 20_000  # Browsers are slow with more numbers.


class _Sample(Files):
    """The people that come with dpnoise."""

    @property
    def source_name(self) -> str:
        """The name of the sample in every output."""
        return _SAMPLE_NAME


class LabelledNumber(NamedTuple):
    """A published number with its statistic and its label."""

    query: str
    label: str
    number: Number

    @property
    def size(self) -> float:
        """The length of its bar; 0 for a number that is not shown."""
        return 0.0 if self.number.is_hidden else abs(self.number.value)


def _release(arguments: argparse.Namespace) -> None:
    try:
        _answer(arguments)
    except ArgumentError as error:  # A request takes settings in place of options.
        if error.violation is not None or request_file(arguments) is None:
            raise
        raise ArgumentError(error.format_message(setting_text)) from None


def _answer(arguments: argparse.Namespace) -> None:
    """Check a request, or publish it."""
    request, source = parse_request(arguments)
    if arguments.check:
        request = explain(request, arguments.rows, arguments.within)
        if arguments.ledger is not None:
            left = LedgerCharge(arguments.ledger, request).left_after
            print(f"{escape_text(arguments.ledger)} can pay for it, and would have {left} left.")  # noqa: T201 - a command
        return
    paths = [] if source is None else check_there(source)
    # Check first everything that could fail after the noise is drawn: epsilon is spent only once.
    targets = (arguments.output, arguments.record, arguments.plot, arguments.html)
    for path in paths:
        check_targets(*targets, source=path, replace=True)
    check_targets(*targets, ledger=arguments.ledger, replace=arguments.force)
    check_plot(arguments.plot)
    _publish(request, source, paths, _rehearse(request, arguments), arguments)
    if not arguments.json:
        if arguments.ledger is not None:
            left = open_ledger(arguments.ledger).left_in_words()
            print(f"Paid from {escape_text(arguments.ledger)}, which has {left} left.")  # noqa: T201 - a command
        for target in filter(None, targets):
            print(f"Written to {escape_text(target)}.")  # noqa: T201 - a command
    if arguments.ledger is None:
        sys.stdout.flush()  # Raises if nobody reads it.
        # With --json the standard output is the record, and nothing else.
        print(
            f"This run spent {request.cost_in_words}. Running it again spends it again; --ledger "
            "FILE keeps the total.",
            file=sys.stderr if arguments.json else sys.stdout,
        )


def _publish(
    request: Request,
    source: Files | None,
    paths: list[Path],
    max_page_bytes: int,
    arguments: argparse.Namespace,
) -> None:
    """Publish a request, write the output files, and print the result."""
    table: Table | None = None
    try:
        with ExitStack() as stack:
            plot, record = (
                stack.enter_context(replace_when_complete(path, replace=arguments.force))
                for path in (arguments.plot, arguments.record)
            )
            page = stack.enter_context(
                replace_when_complete(arguments.html, replace=arguments.force, size=max_page_bytes)
            )
            sample = resources.files("dpnoise.cli").joinpath("people.csv")
            data = source or _Sample(stack.enter_context(resources.as_file(sample)))
            size = sum(path.stat().st_size for path in paths if path.is_file())
            bar = terminal.progress_bar(f"reading {paths[0].name}" if size >= _LARGE else None)
            progress = stack.enter_context(bar)
            with replace_when_complete(arguments.output, replace=arguments.force) as output:
                table = publishing.publish(
                    data, request, progress=progress, ledger=arguments.ledger
                )
                if output is not None:
                    output.write_bytes(_encode_table(table, arguments.output.suffix))
            if record is not None:
                record.write_bytes(_encode_table(table, ".json"))
            if page is not None:
                table.to_html(page, arguments.title)
            if plot is not None:
                draw_bars(table, plot)
    finally:
        # A paid release is always printed, even if a file could not be written.
        if table is not None:
            _show(table, as_json=arguments.json)


def _rehearse(request: Request, arguments: argparse.Namespace) -> int:
    """Make all outputs with zeros for numbers and discard them, to detect errors early.

    Return an upper bound on the bytes of the HTML page, for which disk space is reserved.
    """
    zeros = publishing.rehearsal(request)
    _encode_table(zeros, ".json")
    if arguments.output is not None:
        _encode_table(zeros, arguments.output.suffix)
    if arguments.plot is not None:
        draw_bars(zeros, BytesIO(), arguments.plot.suffix)
    with redirect_stdout(StringIO()):
        _show(zeros, as_json=arguments.json)
    if arguments.html is None and arguments.title is not None:
        raise ArgumentError("--title needs --html page.html: it is the title of the HTML page.")
    if arguments.html is None:
        return 0
    numbers = len(zeros.rows())
    if numbers > _MOST_ON_A_PAGE:
        raise ArgumentError(
            f"--html shows {_MOST_ON_A_PAGE:,} numbers at most; these are {numbers:,}. "
            "Write them with --output table.csv."
        )
    # Published numbers have more digits than zeros.
    return 2 * len(report.render_record(zeros.record(), arguments.title).encode("utf-8"))


def _encode_table(table: Table, suffix: str) -> bytes:
    """Return the table as CSV or Parquet; or the record as JSON, also if there is no suffix."""
    if suffix.lower() not in {"", ".json", ".csv", ".parquet", ".pq"}:
        raise ArgumentError(
            f"--output writes a table (.csv, .parquet) or the record (.json), got {suffix}. "
            "Spreadsheets open .csv files."
        )
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


def _show(table: Table, *, as_json: bool) -> None:
    if as_json:
        print(report.record_text(table.record()), end="")  # noqa: T201 - this is the command line
        return
    console = terminal.console(soft_wrap=True)
    request, bars = table.request, bars_of(table)
    joint = any(bar.number.joint is not None for bar in bars)
    names_only = bool(bars) and all(bar.number.is_group for bar in bars)
    margins = [] if names_only else ["within", "all within"] if joint else ["within"]
    sign = "±" if terminal.can_show("±") else "+-"
    _print_numbers(console, _only_column(request) or "", bars, margins, sign)
    joint_words = ' and "all within" for all numbers of one statistic together' if joint else ""
    source = "" if table.source is None else f"Data: {escape_text(table.source)}\n"
    if table.invented and table.source != _SAMPLE_NAME:
        source += f"{report.INVENTED_PEOPLE.capitalize()}: these numbers describe nobody.\n"
    filters = {question.filter_in_words for question in request.questions}
    if len(filters) == 1 and (where := filters.pop()) is not None:
        source += f"Only rows where {escape_text(where)}.\n"
    cost = f"{request.cost_in_words} in all: {', '.join(_costs(table))}."
    is_marked = any(bar.number.is_below_margin for bar in bars)
    footnote = f"\n{MARK.strip()} {BELOW_MARGIN}: the exact number may be 0." if is_marked else ""
    adjusted = "".join(f"{escape_text(sentence)}\n" for sentence in request.adjusted_in_words)
    about = f"\n{source}{adjusted}{cost} {neighbours_text(request)}"
    if not names_only:
        about += (
            f'\nWith probability {format_confidence(request.confidence)} "within" holds for '
            f"each single number{joint_words}. Margins do not cover {request.uncounted}.{footnote}"
        )
    console.print(terminal.prose(about))
    for sentence in table.left_out_in_words:
        plain = sentence if sign == "±" else sentence.replace("±", sign)
        console.print(terminal.prose(escape_text(plain)))
    for discovery in request.discoveries():
        if discovery.counts:
            console.print(terminal.prose(escape_text(discovery.count_note)))


def _print_numbers(
    console: "Console",
    column: str,
    bars: list[LabelledNumber],
    margins: list[str],
    sign: str,
) -> None:
    """Print a table of numbers with the margins that have these titles, and bars if they fit."""
    titles = [column, "published", *margins, ""]
    rows = [[bar.label, *bar.number.format(sign, MARK)[: 1 + len(margins)], ""] for bar in bars]
    rich_table = terminal.format_table(titles, rows, console.width, folded=0)
    length = min(_BAR, console.width - terminal.table_width(rich_table))
    if length >= _SHORTEST_BAR:
        for row, text_bar in zip(rows, _text_bars(bars, length), strict=True):
            row[-1] = text_bar
        rich_table = terminal.format_table(titles, rows, console.width, folded=0)
    rich_table.columns[-1].style = "cyan"
    terminal.print_table(console, rich_table)


def _costs(table: Table) -> list[str]:
    """Return what each part of the budget pays for."""
    costs = [
        f"{escape_text(', '.join(discovery.paid_for))} {amount_text(discovery)}"
        for discovery in table.request.discoveries()
    ]
    payments: dict[object, str] = {}
    for published in table:
        release = published.release
        parts = ", ".join(f"{name} {part:.4g}" for name, part in release.parts.items())
        paid_for = escape_text(release.paid_for)
        words = f"{paid_for} {amount_text(release)}" + (f" ({parts})" if parts else "")
        if words not in costs and release.query != "groups":
            payments[published.column, published.by, published.where, words] = words
    left_out = table.request.left_out_cost
    estimates = [] if left_out is None else [f"estimates {left_out.removeprefix('epsilon ')}"]
    return [*costs, *payments.values(), *estimates]


def _text_bars(bars: list[LabelledNumber], length: int) -> list[str]:
    """Return a bar of characters for each number, relative to the largest number of its query.

    A query with one number gets an empty bar.
    """
    block = "█" if terminal.can_show("█") else "#"
    query_sizes: dict[str, list[float]] = {}
    for bar in bars:
        query_sizes.setdefault(bar.query, []).append(bar.size)
    longest = {query: (max(sizes) or 1.0) for query, sizes in query_sizes.items() if len(sizes) > 1}
    shares = [bar.size / longest.get(bar.query, math.inf) for bar in bars]
    return [block * round(length * share) for share in shares]


def _only_column(request: Request) -> str | None:
    """Return the column of which all statistics are; None if there are several, or rows too."""
    columns = {question.column for question in request.questions if question.undeclared is None}
    return columns.pop() if len(columns) == 1 else None


def bars_of(table: Table) -> list[LabelledNumber]:
    """Return all published numbers with their labels."""
    has_columns, bars = _only_column(table.request) is None, []
    has_filters = len({question.filter_in_words for question in table.request.questions}) > 1
    for published in table:
        column = published.column if has_columns else None
        name, where = published.release.query, published.where and f"where {published.where}"
        query = ", ".join(filter(None, [column, name, where]))
        groups = ", ".join(map(str, published.group))
        for number in published.release.numbers():
            words = [groups, column, *(number.path or [name]), where if has_filters else None]
            bars.append(LabelledNumber(query, ", ".join(filter(None, words)), number))
    return bars


def draw_bars(table: Table, target: Path | BytesIO, suffix: str = "") -> None:
    """Draw a panel of bars for each query, with error bars if an error is known.

    The suffix sets the format; by default it is the suffix of the target.
    """
    request = table.request
    bars = [bar for bar in bars_of(table) if not bar.number.is_group]
    if not bars and table.published:
        raise ArgumentError("--plot draws numbers: --query groups has none.")
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
        source = "" if table.source is None else f"Data: {table.source}; "
        title = f"{shorten(escape_text(source), _LONGEST_LABEL)}{request.cost_in_words} in all"
        figure.suptitle(title, fontsize=9, x=0.99, ha="right")
        kind = suffix or getattr(target, "suffix", "")
        try:
            figure.savefig(target, dpi=_DPI, format=kind.lstrip("."))
        finally:
            pyplot.close(figure)


def _draw_panel(axis: "Axes", query: str, panel: list[LabelledNumber], request: Request) -> None:
    # All numbers of a query have a margin or an interval, or none has.
    errors = [span for bar in panel if (span := _span(bar.number)) is not None]
    bar_container = axis.barh(
        range(len(panel)),
        [math.copysign(min(bar.size, _LONGEST_BAR), bar.number.value or 0) for bar in panel],
        xerr=[list(side) for side in zip(*errors, strict=True)] or None,
        tick_label=[
            shorten(escape_text(bar.label), _LONGEST_LABEL)
            + (f"\n({bar.number.format()[0].partition(':')[0]})" if bar.number.is_hidden else "")
            for bar in panel
        ],
        color="#3b7ea1",
        ecolor="#1a1a1a",
        capsize=3,
    )
    # A light rim makes error bars visible on pages of any colour.
    rim = import_extra("matplotlib.patheffects", "plots").withStroke(
        linewidth=3, foreground="white"
    )
    error_bars = bar_container.errorbar
    for lines in () if error_bars is None else error_bars.get_children():
        lines.set_path_effects([rim])
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    note = f"each ± at {request.confidence:.0%}" if errors else "no margin"
    columns = request.columns()
    column = f"{columns[0]}, " if len(columns) == 1 else ""
    title = shorten(escape_text(column + query), _LONGEST_LABEL)
    axis.set_title(f"{title} ({note})", loc="left", fontsize=10)


def _span(number: Number) -> tuple[float, float] | None:
    """Return the lengths of the error bar of a number on both sides."""
    if number.is_hidden:
        return 0.0, 0.0
    if number.interval is not None:
        return number.value - number.interval[0], number.interval[1] - number.value
    return None if number.error is None else (number.error, number.error)


@contextmanager
def _pyplot() -> Iterator[ModuleType]:
    """Give pyplot for files, with text drawn unchanged: no formulas, no LaTeX, no warnings."""
    matplotlib = import_extra("matplotlib", "plots")
    matplotlib.use("Agg")
    pyplot = import_extra("matplotlib.pyplot", "plots")
    plain = {"text.parse_math": False, "text.usetex": False}
    with matplotlib.rc_context(plain), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Characters that no font has are drawn as boxes.
        yield pyplot


RELEASE: Final = Command(
    "release",
    _release,
    groups=GROUPS,
    description="Publish private statistics of a column, or all that a request in TOML asks for. "
    "Neighbouring data sets differ by one row, or with --person by one person.",
    examples=EXAMPLES,
)
