"""What `dpnoise release` published, as bars with error bars."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.core.safe_text import shortened, shown
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.requests import Request
from dpnoise.statistics.results import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI: Final = 150
_TALLEST: Final = 400.0  # Inches; a picture has less than 2^16 dots.
_LONGEST_LABEL: Final = 60
_LONGEST_BAR: Final = 1e300  # Near the largest float, axes overflow.


class Bar(NamedTuple):
    """A number that was published, with its statistic and its label."""

    query: str
    label: str
    number: Number


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
