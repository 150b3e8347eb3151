"""Check Figure 1: the pairs of uniforms that give one Gaussian."""

import math

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.searches import gaussian_of_uniforms
from reproduction.drawing import lines
from reproduction.piece import CONFIRMED, DIFFERS, Effort, Judgement, Piece, Table

Floats = NDArray[np.float64]


def level_curve(N1: float, U2: Floats) -> Floats:
    """Return equation (6): U1 = 1 - exp(-N1^2 / (2 cos^2(2 pi U2)))."""
    return 1.0 - np.exp(-(N1**2) / (2.0 * np.cos(2.0 * np.pi * U2) ** 2))


def check_figure_1(effort: Effort) -> Judgement:
    """Draw the curves, and apply the Box-Muller transform to every point of them."""
    U2 = np.arange(1, effort.pick(4096, 256)) / effort.pick(4096, 256)
    U2 = U2[np.abs(np.cos(2.0 * np.pi * U2)) > 1e-9]
    curves, rows = {}, []
    for N1 in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0):
        U1 = level_curve(N1, U2)
        curves[f"N1 = {N1:g}"] = (U2.tolist(), U1.tolist())
        # If U1 is next to 1, its rounding determines N1, so only smaller U1 are compared.
        clear = np.flatnonzero(U1 < 1.0 - 2.0**-20)
        back = np.array([gaussian_of_uniforms(U1[i], U2[i]) for i in clear])
        error = float(np.max(np.abs(np.abs(back) - N1)))
        rows.append(
            (N1, float(U1.min()), 1.0 - math.exp(-(N1**2) / 2), error, float(np.mean(back < 0)))
        )
    columns = ("N1", "lowest U1", "1 - exp(-N1^2/2)", "largest error of |N1|", "share with -N1")
    table = Table("The curves, put back into equation (3a)", columns, rows)
    holds = max(table.column("largest error of |N1|")) < 1e-8
    return Judgement(
        CONFIRMED if holds else DIFFERS,
        "Every point of a curve gives |N1| back, to rounding, and the curve's lowest point is the "
        "limit of section 6. Since (6) squares the cosine, half of each curve belongs to -N1: a "
        "search needs the half where the cosine has the sign of N1.",
        [table],
        lines("figure-1", curves, "U2", "U1", marker=""),
    )


PIECES = (
    Piece(
        key="1",
        title="Figure 1: level curves of the Box-Muller transform",
        place="Example 3.2, equation (6)",
        statement="For a given N1, each U2 leaves one U1: the pairs that give N1 form curves, and "
        "an attacker has to walk along one of them.",
        check=check_figure_1,
        code=(level_curve, check_figure_1),
    ),
)
