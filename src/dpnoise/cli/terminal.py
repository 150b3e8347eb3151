"""The terminal: the options of commands, and output that is safe to print.

All text from data or users passes through `dpnoise.core.safe_text.escape_text` first.
"""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dpnoise.core.errors import import_extra
from dpnoise.core.safe_text import escape_text, shorten

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

_GAP: Final = 2  # The spaces between two columns of a table.
_LONGEST_COMPLAINT: Final = 1500  # The most characters of an error message.
_LEAST_FOLDED: Final = 12  # The smallest width to which entries are folded.


Run = Callable[[argparse.Namespace], int | None]
# Arguments of `add_argument`: text, flags, choices, or functions that parse a text.
Kind = type | float | tuple[str, ...] | Callable[[str], object] | Mapping[str, object] | None


class Option(NamedTuple):
    """An option of a command.

    Its kind is None for text, bool for a flag, a number as the default, or a tuple of choices. It
    can also be a function that parses the text, or a mapping of arguments of `add_argument`.
    """

    name: str
    kind: Kind = None
    help: str | None = None

    @property
    def dest(self) -> str:
        """The attribute that holds the parsed value."""
        return self.name.removeprefix("--").replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser, or to a group of options."""
        if self.kind is bool:
            keywords: Any = {"action": "store_true"}
        elif isinstance(self.kind, int | float):
            keywords = {"type": type(self.kind), "default": self.kind}
        elif isinstance(self.kind, tuple):
            keywords = {"choices": self.kind}
        else:
            keywords = self.kind if isinstance(self.kind, dict) else {"type": self.kind}
        parser.add_argument(self.name, help=self.help, **keywords)


@dataclass(frozen=True)
class Command:
    """A command with its options or actions. Exactly one of `one_of` must be given.

    The help shows `groups` of options by their titles, after `examples`.
    """

    name: str
    run: Run | None = None
    options: Sequence[Option] = ()
    one_of: Sequence[Option] = ()
    description: str | None = None
    actions: Sequence["Command"] = ()
    groups: Mapping[str, Sequence[Option]] = field(default_factory=dict)
    examples: str = ""
    help: str = ""

    def add_to(self, commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        """Add the command to the commands of a parser."""
        keywords: Any = {"description": self.description}
        if self.examples:
            keywords = {
                "description": f"{prose(self.description or '')}\n\n{self.examples}",
                "formatter_class": argparse.RawDescriptionHelpFormatter,
                "usage": f"dpnoise {self.name} FILE [options]",
            }
        parser = commands.add_parser(self.name, help=self.help, **keywords)
        group = parser.add_mutually_exclusive_group(required=True) if self.one_of else parser
        for option in self.one_of:
            option.add_to(group)
        for option in self.options:
            option.add_to(parser)
        for title, options in self.groups.items():
            titled = parser.add_argument_group(title)
            for option in options:
                option.add_to(titled)
        if self.run is not None:
            parser.set_defaults(run=self.run)
        if self.actions:
            actions = parser.add_subparsers(required=True, metavar="ACTION")
            for action in self.actions:
                action.add_to(actions)


def console(**options: object) -> "Console":
    """Return a console of rich that prints text unchanged, without markup and emoji codes."""
    rich_console = import_extra("rich.console", "cli")
    plain: Console = rich_console.Console(markup=False, emoji=False, highlight=False, **options)
    plain.on_broken_pipe = _raise_again  # type: ignore[method-assign]
    return plain


def _raise_again() -> None:
    """Raise the BrokenPipeError that rich has caught, because rich would exit with status 1."""
    raise  # noqa: PLE0704 - rich calls it inside its `except`


def format_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    terminal_width: int,
    *,
    folded: int,
    styles: Sequence[str | None] = (),
) -> "Table":
    """Return a table of rich that fits into the terminal, with a style for each row.

    The column `folded` is folded if the table is too wide. The other columns are numbers or short
    and keep their width, because part of a number would be another number.
    """
    titles, rows = (
        [escape_text(title) for title in titles],
        [[escape_text(x) for x in row] for row in rows],
    )
    cell_len = import_extra("rich.cells", "cli").cell_len
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    others = sum(widths) - widths[folded] + _GAP * len(widths)
    widths[folded] = min(widths[folded], max(_LEAST_FOLDED, terminal_width - others))
    rich_table: Table = import_extra("rich.table", "cli").Table(box=None, padding=(0, _GAP, 0, 0))
    for title, width in zip(titles, widths, strict=True):
        rich_table.add_column(title, width=width, overflow="fold")
    for row, style in zip_longest(rows, styles):
        rich_table.add_row(*row, style=style)
    return rich_table


def table_width(rich_table: "Table") -> int:
    """Return the width of a table, with the gap after it."""
    return sum((column.width or 0) + _GAP for column in rich_table.columns)


def print_table(console: "Console", rich_table: "Table") -> None:
    """Print a table in full; lines that are too long continue beyond the terminal's edge."""
    console.width = max(console.width, table_width(rich_table))
    console.print(rich_table, soft_wrap=False)


def prose(text: str, hanging: int = 0) -> str:
    """Wrap text between words at the width of the terminal; later lines are indented."""
    wrapper = textwrap.TextWrapper(
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(wrapper.fill, text.split("\n")))


def complaint(message: object) -> str:
    """Return the line that reports an error."""
    return f"dpnoise: {shorten(escape_text(message), _LONGEST_COMPLAINT)}\n"


def complain(message: object) -> None:
    """Print an error to the standard error stream, if it is open."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(complaint(message))


def can_show(symbols: str) -> bool:
    """Return whether the encoding of the output has these characters."""
    try:
        symbols.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def escape_unencodable() -> Iterator[None]:
    """Print characters that the encoding does not have as escapes instead of raising."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if hasattr(stream, "reconfigure")]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            with suppress(OSError, ValueError):
                stream.reconfigure(errors=errors)


def flush_or_drop() -> None:
    """Flush the output; if that fails, discard the rest so that Python does not retry at exit."""
    with suppress(OSError, ValueError):
        try:
            sys.stdout.flush()
        except OSError:
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, sys.stdout.fileno())
            os.close(null_device)


def bar_on(console: "Console", **options: bool) -> "Progress":
    """Return a progress bar that prints its title without markup."""
    rich = import_extra("rich.progress", "cli")
    title = rich.TextColumn("{task.description}", markup=False)
    columns = (title, rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeRemainingColumn())
    bar: Progress = rich.Progress(*columns, console=console, **options)
    return bar


@contextmanager
def progress_bar(title: str | None) -> Iterator[Callable[[float], object]]:
    """Give a function that shows the progress, if there is a title and a terminal."""
    if title is None or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with bar_on(console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape_text(title), total=1.0)
        yield lambda part: bar.update(task, completed=part)
