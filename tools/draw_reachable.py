"""Draw the doubles near 0 that noise reaches from 0 and from 1, and the grid of a release.

The upper panel shows the doubles of a window that textbook Laplace noise reaches: equation (2) of
the paper, added in floats, for every uniform of 53 bits. The lower panel shows the grid of an exact
release, of which every point is reached from every value. The panels are stacked, for phones. The
picture is transparent, and its colours are readable on white and on black.
"""

import math
from pathlib import Path

import matplotlib as mpl
from ink import SETTINGS
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dpnoise

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "reachable.svg"
UNIT = 2.0**-53
WINDOW = 24  # Units on either side of 0.
POINTS = 12  # Grid points on either side of 0.
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FROM_0, FROM_1, BOTH = "#2f8fd0", "#d55e00", "#009e73"


def noise(k: int) -> float:
    """Return equation (2) at U = k 2^-53."""
    U = k * UNIT
    logarithm = math.log(1.0 - 2.0 * abs(U - 0.5))
    return logarithm if U < 0.5 else -logarithm  # noqa: PLR2004 - the median


def reachable(value: float, window: int = WINDOW) -> list[float]:
    """Return the doubles within `window` units of 0 that noise reaches from a value.

    The release grows with U, so the uniforms that lead there are consecutive.
    """
    low = high = round(0.5 * math.exp(-value) / UNIT)
    while value + noise(low - 1) >= -window * UNIT:
        low -= 1
    while value + noise(high + 1) <= window * UNIT:
        high += 1
    releases = {value + noise(k) for k in range(low, high + 1)}
    return sorted(y for y in releases if abs(y) <= window * UNIT)


def largest_ratio(mechanism: dpnoise.LaplaceMechanism, window: int = POINTS) -> float:
    """Return the largest ratio of a grid point's probabilities given 0 and given 1."""
    law, half = dpnoise.Laplace(mechanism.scale), mechanism.grid / 2
    ratios = []
    for k in range(-window, window + 1):
        y = k * mechanism.grid
        given_0, given_1 = (
            float(law.cdf(y - x + half) - law.cdf(y - x - half)) for x in (0.0, 1.0)
        )
        ratios += [given_0 / given_1, given_1 / given_0]
    return max(ratios)


def _comb(axes: Axes, positions: list[float], height: float, colour: str) -> None:
    axes.vlines(positions, height - 0.28, height + 0.28, color=colour, linewidth=1.6)


def _panel(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_yticks([1, 0], labels=["from 0", "from 1"])
    axes.set_ylim(-0.6, 1.6)
    axes.set_xlabel(f"released number, in units of {unit}")
    axes.tick_params(left=False)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)


def draw(mechanism: dpnoise.LaplaceMechanism) -> Figure:
    """Return the figure."""
    from_0, from_1 = ([y / UNIT for y in reachable(value)] for value in (0.0, 1.0))
    shared = set(from_0) & set(from_1)
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    upper_panel, lower_panel = figure.subplots(2, 1)
    for positions, height, colour in ((from_0, 1.0, FROM_0), (from_1, 0.0, FROM_1)):
        _comb(upper_panel, [y for y in positions if y not in shared], height, colour)
        _comb(upper_panel, [y for y in positions if y in shared], height, BOTH)
    _panel(upper_panel, "value + noise, in floats: the last bits tell", "2⁻⁵³")
    points = [float(k) for k in range(-POINTS, POINTS + 1)]
    for height in (1.0, 0.0):
        _comb(lower_panel, points, height, BOTH)
    step = f"{math.log2(mechanism.grid):.0f}".translate(SUPERSCRIPTS)
    _panel(lower_panel, "dpnoise's release: one grid for every value", f"2{step}")
    return figure


def main() -> None:
    """Write the picture, and print the counts that it shows."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    with mpl.rc_context(SETTINGS):
        figure = draw(mechanism)
        figure.savefig(PICTURE, format="svg", metadata={"Date": None})
    from_0, from_1 = set(reachable(0.0)), set(reachable(1.0))
    print(
        f"{len(from_0)} doubles are reached from 0, {len(from_1)} from 1, "
        f"{len(from_0 & from_1)} from both; "
        f"on the grid all {2 * POINTS + 1} points from both, each at most "
        f"{largest_ratio(mechanism):.4f} times as likely. Wrote {PICTURE.name}."
    )


if __name__ == "__main__":
    main()
