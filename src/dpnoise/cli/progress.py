"""How far long work has come, shown on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpnoise.cli import terminal
from dpnoise.core.errors import import_extra
from dpnoise.core.safe_text import shown


def bar_on(console: Any, **options: Any) -> Any:
    """Return a progress bar that shows its title as it is."""
    rich = import_extra("rich.progress", "cli")
    title = rich.TextColumn("{task.description}", markup=False)
    columns = (title, rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeRemainingColumn())
    return rich.Progress(*columns, console=console, **options)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], object]]:
    """Give a function that shows the part that is done; elsewhere than on a terminal, nothing."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with bar_on(terminal.console(stderr=True), transient=True) as bar:
        task = bar.add_task(shown(title), total=1.0)
        yield lambda part: bar.update(task, completed=part)
