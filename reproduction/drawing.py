"""Draw lines as SVG in the text colour of the page, for light and dark mode."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dpnoise.core.errors import import_extra

# Matplotlib has no "currentColor", so text and axes are drawn in a colour that nothing else has.
_INK: Final = "#010203"
# Distinguishable with most colour blindness, legible on black and white (Okabe and Ito 2008).
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7a2f")
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
}

Line = tuple[Sequence[float], Sequence[float]]


def lines(
    name: str,
    curves: Mapping[str, Line],
    x: str,
    y: str,
    *,
    log: str = "",
    marker: str = "o",
) -> str:
    """Draw named lines; `log` names the axes that are logarithmic, "x", "y" or "xy"."""
    matplotlib = import_extra("matplotlib", "plots")
    figures = import_extra("matplotlib.figure", "plots")
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for (label, (positions, values)), colour in zip(curves.items(), _COLOURS, strict=False):
            axes.plot(positions, values, marker=marker, markersize=3.5, color=colour, label=label)
        if "x" in log:
            axes.set_xscale("log", base=2)
            ticks = list(next(iter(curves.values()))[0])
            axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        if "y" in log:
            axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        figure.legend(loc="outside right upper", fontsize=9)
        return _inline(name, figure)


def _inline(name: str, figure: Any) -> str:
    """Return the SVG for use inside HTML, with ids that no other drawing has."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 class="figure" role="img"', text, count=1)
    return text.replace(_INK, "currentColor").strip()
