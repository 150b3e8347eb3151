"""How far long work has come, shown on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpnoise.errors import import_extra


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], object]]:
    """Give a function that shows the part that is done; elsewhere than on a terminal, nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    rich_progress = import_extra("rich.progress", "cli")
    console = import_extra("rich.console", "cli").Console(stderr=True)
    with rich_progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part: bar.update(task, completed=part)
