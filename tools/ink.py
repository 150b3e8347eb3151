"""Colours of the docs' pictures: read on white and on black alike, on no background."""

from typing import Any, Final

INK: Final = "#808080"
_INKED: Final = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
# For matplotlib's rc_context.
SETTINGS: Final[dict[Any, Any]] = {
    **dict.fromkeys(_INKED, INK),
    "savefig.transparent": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dpnoise",
    "font.family": "sans-serif",
}
