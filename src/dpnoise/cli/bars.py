"""What `dpnoise release` published, as bars with error bars."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.showing import shortened, shown
from dpnoise.statistics.publishing import Published, Request

_DPI: Final = 150
_TALLEST: Final = 400.0  # Inches; a picture has less than 2^16 dots.
_LONGEST_LABEL: Final = 60
_LONGEST_BAR: Final = 1e300  # Near the largest float, axes overflow.


class Bar(NamedTuple):
    """A number that was published: its query, its label, and its error where one is known."""

    query: str
    label: str
    value: float
    error: float | None


def bars_of(published: list[Published], request: Request) -> list[Bar]:
    """Return a bar for each number that was published."""
    return [bar for one in published for bar in _bars(one, request)]


def _bars(one: Published, request: Request) -> Iterator[Bar]:
    release = one.release
    if not isinstance(release.value, list):
        label = release.query if one.group is None else f"{one.group}, {release.query}"
        yield Bar(release.query, label, release.value, release.error)
        return
    edges = [f"{edge:,.12g}" for edge in request.edges or ()]
    group = "" if one.group is None else f"{one.group}, "
    for low, high, value in zip(edges, edges[1:], release.value, strict=False):
        yield Bar(release.query, f"{group}{low} to {high}", value, release.error)


def draw_bars(
    published: list[Published], request: Request, target: Path | BytesIO, suffix: str = ""
) -> None:
    """Draw one panel for each query: bars, with error bars where an error is known.

    The format is that of the suffix, by default the target's.
    """
    bars = bars_of(published, request)
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
        figure.suptitle(f"epsilon = {request.epsilon:g} in all", fontsize=9, x=0.99, ha="right")
        kind = suffix or getattr(target, "suffix", "")
        try:
            figure.savefig(target, dpi=_DPI, format=kind.lstrip("."))
        finally:
            pyplot.close(figure)


def _draw_panel(axis: Any, query: str, panel: list[Bar], request: Request) -> None:
    errors = [bar.error for bar in panel if bar.error is not None]
    axis.barh(
        range(len(panel)),
        [float(min(max(bar.value, -_LONGEST_BAR), _LONGEST_BAR)) for bar in panel],
        xerr=errors or None,
        tick_label=[shortened(shown(bar.label), _LONGEST_LABEL) for bar in panel],
        color="#3b7ea1",
        ecolor="#1a1a1a",
        capsize=3,
    )
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    note = f"± at {request.confidence:.0%}" if errors else "no bound on the error"
    column = shortened(shown(request.column), _LONGEST_LABEL)
    axis.set_title(f"{column}, {query} ({note})", loc="left", fontsize=10)


@contextmanager
def _pyplot() -> Iterator[Any]:
    """Give pyplot for files, with text drawn as it is: no formulas, no LaTeX, no warnings."""
    matplotlib = import_extra("matplotlib", "plots")
    matplotlib.use("Agg")
    pyplot = import_extra("matplotlib.pyplot", "plots")
    plain = {"text.parse_math": False, "text.usetex": False}
    with matplotlib.rc_context(plain), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of characters that no font has: they are drawn as boxes.
        yield pyplot
