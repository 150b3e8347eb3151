"""Draw the doubles near 0 that are reached from 0 and from 1, beside the grid that a release has.

Above, every double of a window is asked whether textbook Laplace noise leads there: equation (2) of
the paper, added in floats, at every uniform of 53 bits. Below is the grid of an exact release:
every point of it is reached from every value. One is under the other, for phones. The picture has
no background, and colours that are read on white and on black.
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
WINDOW = 24  # In units, to either side of 0.
POINTS = 12  # Of the grid, likewise.
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FROM_0, FROM_1, BOTH = "#2f8fd0", "#d55e00", "#009e73"


def noise(k: int) -> float:
    """Return equation (2) at U = k 2^-53."""
    U = k * UNIT
    logarithm = math.log(1.0 - 2.0 * abs(U - 0.5))
    return logarithm if U < 0.5 else -logarithm  # noqa: PLR2004 - the median


def reachable(value: float, window: int = WINDOW) -> list[float]:
    """Return the doubles within so many units of 0 that some uniform leads to from this value.

    The release grows with U, so the uniforms that lead there are consecutive.
    """
    low = high = round(0.5 * math.exp(-value) / UNIT)
    while value + noise(low - 1) >= -window * UNIT:
        low -= 1
    while value + noise(high + 1) <= window * UNIT:
        high += 1
    found = {value + noise(k) for k in range(low, high + 1)}
    return sorted(y for y in found if abs(y) <= window * UNIT)


def largest_ratio(mechanism: dpnoise.LaplaceMechanism, window: int = POINTS) -> float:
    """Return how much likelier a point of the grid is from 0 than from 1, or back, at most."""
    law, half = dpnoise.Laplace(mechanism.scale), mechanism.grid / 2
    ratios = []
    for k in range(-window, window + 1):
        y = k * mechanism.grid
        zero, one = (float(law.cdf(y - x + half) - law.cdf(y - x - half)) for x in (0.0, 1.0))
        ratios += [zero / one, one / zero]
    return max(ratios)


def _comb(axes: Axes, at: list[float], height: float, colour: str) -> None:
    axes.vlines(at, height - 0.28, height + 0.28, color=colour, linewidth=1.6)


def _panel(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_yticks([1, 0], labels=["from 0", "from 1"])
    axes.set_ylim(-0.6, 1.6)
    axes.set_xlabel(f"released number, in units of {unit}")
    axes.tick_params(left=False)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)


def drawn(mechanism: dpnoise.LaplaceMechanism) -> Figure:
    """Return the picture."""
    zero, one = ([y / UNIT for y in reachable(value)] for value in (0.0, 1.0))
    shared = set(zero) & set(one)
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1)
    for at, height, own in ((zero, 1.0, FROM_0), (one, 0.0, FROM_1)):
        _comb(above, [y for y in at if y not in shared], height, own)
        _comb(above, [y for y in at if y in shared], height, BOTH)
    _panel(above, "value + noise, in floats: the last bits tell", "2⁻⁵³")
    points = [float(k) for k in range(-POINTS, POINTS + 1)]
    for height in (1.0, 0.0):
        _comb(below, points, height, BOTH)
    step = f"{math.log2(mechanism.grid):.0f}".translate(SUPERSCRIPTS)
    _panel(below, "dpnoise's release: one grid for every value", f"2{step}")
    return figure


def main() -> None:
    """Draw it, and print what it shows."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    with mpl.rc_context(SETTINGS):
        figure = drawn(mechanism)
        figure.savefig(PICTURE, format="svg", metadata={"Date": None})
    zero, one = set(reachable(0.0)), set(reachable(1.0))
    print(
        f"{len(zero)} doubles are reached from 0, {len(one)} from 1, {len(zero & one)} from both; "
        f"on the grid all {2 * POINTS + 1} points from both, each at most "
        f"{largest_ratio(mechanism):.4f} times as likely. Wrote {PICTURE.name}."
    )


if __name__ == "__main__":
    main()
