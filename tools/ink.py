"""Colours of the pictures in the docs: transparent, and readable on white and on black."""

from typing import Any, Final

INK: Final = "#808080"
_TEXT_AND_LINES: Final = (
    "text.color",
    "axes.edgecolor",
    "axes.labelcolor",
    "xtick.color",
    "ytick.color",
)
# Settings for matplotlib's rc_context.
SETTINGS: Final[dict[Any, Any]] = {
    **dict.fromkeys(_TEXT_AND_LINES, INK),
    "savefig.transparent": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dpnoise",
    "font.family": "sans-serif",
}
