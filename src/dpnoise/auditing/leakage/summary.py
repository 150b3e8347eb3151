"""A table and a plot of the leakage of the samplers and of the exact release.

All numbers are for scale 1 and x = 0 against x' = 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from dpnoise.auditing.leakage import laws
from dpnoise.auditing.leakage.laws import BFLOAT16, FLOAT16, FLOAT32, Format, Law, delta
from dpnoise.core import errors
from dpnoise.core.arrays import Floats
from dpnoise.core.entropy import Words
from dpnoise.noise.distributions import Gaussian, Laplace
from dpnoise.release import exact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FINEST: Final = 2.0**-10  # Finest grid, in scales: on finer grids short words decide nothing.
_FAR: Final = 60.0  # Distance in scales beyond which the probability is below 10^-26.


@dataclass(frozen=True)
class ReleaseBounds:
    """Bounds on delta of the exact release, from the decisions of words of a few bits."""

    form: str  # The kernel.
    bits: int  # The bits of each word.
    grid: float
    low: float  # delta(epsilon) lies between `low` and `high`.
    high: float
    ideal: float  # delta(epsilon) of the ideal mechanism, rounded to the grid.
    undecided: float  # The probability that this many bits do not decide the output at value0.


# Gaussians released in pairs have the law of gaussian_2, so they are left out.
_FORMS: Final = {name: form for name, form in exact.ADDITIVE.items() if form.width == 1}


def release_bounds(  # A third of its lines is the proof.
    form: str,
    bits: int,
    epsilon: float = 1.0,
    *,
    value0: float = 0.0,
    value1: float = 1.0,
    scale: float = 1.0,
    grid: float = 1.0,
) -> ReleaseBounds:
    """Bound delta(epsilon) of the exact release by running its kernel on all short words.

    A decision of the kernel from the first bits of each uniform holds for all further bits. So the
    probability of output k at x is D_x(k) + e_x(k). Here D_x(k) is the share of words that decide
    for k. The unknown e_x(k) >= 0 add up to u_x, the share of undecided words. With S the sum over
    k of max(0, D_0(k) - e^epsilon D_1(k)), it follows that

        S - e^epsilon u_1 <= delta(epsilon) <= S + u_0.

    Examples
    --------
    >>> bounds = release_bounds("laplace_1", bits=16)
    >>> bounds.low <= bounds.ideal <= bounds.high < 0.0012
    True
    """
    errors.check_choice("form", form, _FORMS)
    exact_form = _FORMS[form]
    errors.check_integer("bits", bits, least=2, most=laws.MOST_BITS // exact_form.variates)
    errors.check_positive("scale", scale)
    errors.check_power_of_two("grid", grid)
    if grid < _FINEST * scale:
        rule = "be at least scale / 1024: short words decide nothing on finer ones"
        errors.reject("grid", grid, rule)
    values = value0, value1
    (decided0, undecided0), (decided1, undecided1) = (
        _decided_law(exact_form, bits, value, scale, grid) for value in values
    )
    far = math.ceil((abs(value0) + abs(value1) + _FAR * scale) / grid)
    points = grid * np.arange(-far, far + 1, dtype=np.float64)

    def ideal_law(value: float) -> Law:
        borders = (points[:-1] + grid / 2 - value) / scale
        return Law(points, laws.cell_probabilities(exact_form.distribution, borders))

    decided = delta(epsilon, decided0, decided1)
    ideal = delta(epsilon, ideal_law(value0), ideal_law(value1))
    low = max(0.0, decided - math.exp(epsilon) * undecided1)
    return ReleaseBounds(form, bits, grid, low, min(1.0, decided + undecided0), ideal, undecided0)


def _decided_law(
    form: exact.AdditiveForm, bits: int, value: float, scale: float, grid: float
) -> tuple[Law, float]:
    """Return the shares of words that decide for each output, and of undecided words."""
    n, kernel = form.variates, form.first_stage()

    def draw(words: Words, out: Floats) -> None:
        if kernel(words, bits, np.full(out.size, value), scale, grid, out):
            out[np.isnan(out)] = math.inf

    law = laws.enumerate_law(draw, n, bits, 2 ** (n * bits))
    is_decided = law.values < math.inf
    undecided = float(law.probabilities[~is_decided].sum())
    return Law(law.values[is_decided], law.probabilities[is_decided]), undecided


@dataclass(frozen=True)
class Leak:
    """The leakage of fl(x + z) at scale 1, x = 0 against 1."""

    arithmetic: str  # EVERY, ONCE (dpnoise's own) or PERFECT.
    noise: str
    form: str
    variates: int | None  # n uniforms of p bits; None for perfect noise.
    precision: int | None
    format: str
    delta: float  # delta(epsilon) of 0 against 1.
    reverse: float  # delta(epsilon) of 1 against 0.
    ideal: float  # delta(epsilon) in real arithmetic, equal in both directions.


EVERY: Final = "every operation rounded"
ONCE: Final = "rounded once"
PERFECT: Final = "perfect noise"
_CASES: Final[tuple[tuple[str, str, int, Format, tuple[int, ...]], ...]] = (
    (EVERY, "inverse", 1, FLOAT16, (4, 6, 8, 11)),
    (EVERY, "exponentials", 2, FLOAT16, (4, 6, 8, 11)),
    (EVERY, "theorem", 4, FLOAT16, (4, 6, 8, 11)),
    (EVERY, "inverse", 1, BFLOAT16, (8,)),
    (EVERY, "theorem", 4, BFLOAT16, (8,)),
    (EVERY, "pairs", 2, FLOAT16, (4, 6, 8, 11)),
    (EVERY, "pairs", 4, FLOAT16, (4, 6, 8, 11)),
    (EVERY, "pairs", 8, FLOAT16, (4, 6)),
    (ONCE, "inverse", 1, FLOAT16, (4, 6, 8, 11)),
    (ONCE, "exponentials", 2, FLOAT16, (4, 6, 8, 11)),
    (ONCE, "theorem", 4, FLOAT16, (4, 6, 7)),
    (ONCE, "pairs", 2, FLOAT16, (4, 6, 8, 11)),
    (ONCE, "pairs", 4, FLOAT16, (4, 6, 7)),
    (ONCE, "inverse", 1, FLOAT32, (4, 8, 12, 16)),
    (ONCE, "exponentials", 2, FLOAT32, (4, 8, 10)),
    (ONCE, "theorem", 4, FLOAT32, (4, 5)),
)
_RELEASES: Final = (("laplace_1", (8, 12, 16, 20)), ("gaussian_2", (6, 8, 10, 12)))


def leakage_table(
    epsilon: float = 1.0, progress: Callable[[float], object] | None = None
) -> list[Leak]:
    """Return the leakage of each sampler at `epsilon`, for several n, p and formats.

    This takes about ten seconds. `progress` is called with the completed fraction, from 0 to 1.
    """
    rows = []
    for i, (arithmetic, form, n, fmt, precisions) in enumerate(_CASES):
        enumerate_all = laws.stepwise_law if arithmetic == EVERY else laws.sampler_law
        for p in precisions:
            sampler = arithmetic, form, n, p, fmt.name
            rows.append(_leak(epsilon, sampler, enumerate_all(form, n, p, fmt), fmt))
        if progress is not None:
            progress((i + 1) / len(_CASES))
    for form, distribution in (("theorem", Laplace()), ("pairs", Gaussian())):
        law = laws.ideal_law(distribution, FLOAT16)
        rows.append(_leak(epsilon, (PERFECT, form, None, None, FLOAT16.name), law, FLOAT16))
    return rows


def _leak(
    epsilon: float, sampler: tuple[str, str, int | None, int | None, str], law: Law, fmt: Format
) -> Leak:
    """Return one row: the leak of 0 against 1 at scale 1."""
    at_0, at_1 = (laws.release_law(law, value, fmt) for value in (0.0, 1.0))
    noise = "Gaussian" if sampler[1] == "pairs" else "Laplace"
    deltas = delta(epsilon, at_0, at_1), delta(epsilon, at_1, at_0), _ideal_delta(noise, epsilon)
    return Leak(sampler[0], noise, *sampler[1:], *deltas)


def _ideal_delta(noise: str, epsilon: float) -> float:
    """Return delta(epsilon) in real arithmetic, at scale 1 and a distance of 1."""
    if noise == "Laplace":
        return max(0.0, -math.expm1((epsilon - 1) / 2))
    phi = Gaussian().cdf
    return float(phi(0.5 - epsilon) - math.exp(epsilon) * phi(-0.5 - epsilon))  # Balle, Wang 2018


def release_table(epsilon: float = 1.0) -> list[ReleaseBounds]:
    """Return bounds on delta of the exact release, at scale 1 on a grid of 1, 0 against 1."""
    cases = [(form, bits) for form, all_bits in _RELEASES for bits in all_bits]
    return [release_bounds(form, bits, epsilon) for form, bits in cases]


def format_tables(leaks: list[Leak], releases: list[ReleaseBounds], epsilon: float) -> str:
    """Return both tables as text, with a line for each n and a column for each p."""
    lines = [f"delta({epsilon:g}) of fl(0 + z) against fl(1 + z), in brackets the other way round"]
    for (title, ideal), rows in groupby(
        leaks, lambda row: (f"{row.noise}, {row.format}, {row.arithmetic}", row.ideal)
    ):
        lines += ["", f"{title} (in real arithmetic {ideal:.3f})"]
        for (n, form), line in groupby(rows, lambda row: (row.variates, row.form)):
            sampler = "" if n is None else f"n = {n}  {form}"
            lines.append(f"  {sampler:21}" + "  ".join(map(_entry, line)))
    lines += ["", f"exact release on a grid of 1: delta({epsilon:g}) lies between"]
    for (form, ideal), bounds in groupby(releases, lambda row: (row.form, row.ideal)):
        lines.append(f"  {form} (in real arithmetic, rounded, {ideal:.4f})")
        lines += [f"    {b.low:.4f} and {b.high:.4f} by words of {b.bits} bits" for b in bounds]
    return "\n".join(lines)


def _entry(row: Leak) -> str:
    """Format one p and its two deltas."""
    precision = " " * 8 if row.precision is None else f"p = {row.precision:<4}"
    return f"{precision}{row.delta:.3f} ({row.reverse:.3f})"


# Colours that are distinct for any colour vision (Okabe and Ito), with different markers as well.
_STYLES: Final = {
    1: ("#D55E00", "o"), 2: ("#E69F00", "s"), 4: ("#0072B2", "^"), 8: ("#009E73", "D")
}  # fmt: skip

_PANELS: Final = (
    ("Laplace in float16, every operation rounded", EVERY, "Laplace", ["float16"]),
    ("Gaussian in float16, every operation rounded", EVERY, "Gaussian", ["float16"]),
    ("Laplace by dpnoise, rounded once, added in floats", ONCE, "Laplace", ["float16", "float32"]),
)


def plot_leakage(
    leaks: list[Leak], releases: list[ReleaseBounds], epsilon: float, target: Path
) -> None:
    """Draw delta of samplers against n and p, and of the exact release, to a .png, .pdf or .svg."""
    matplotlib = errors.import_extra("matplotlib", "plots")
    matplotlib.use("Agg")
    pyplot = errors.import_extra("matplotlib.pyplot", "plots")
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 8.6), layout="constrained", sharey=True)
    *samplers, release = axes.flat
    for axis, (title, arithmetic, noise, fmts) in zip(samplers, _PANELS, strict=True):
        axis.set_title(title, loc="left", fontsize=10)
        for fmt, line in zip(fmts, ("-", "--"), strict=False):
            _draw_curves(axis, leaks, arithmetic, noise, fmt, line)
    _draw_releases(release, releases)
    for axis in axes.flat:
        axis.set_ylim(-0.03, 1.03)
        axis.set_ylabel(f"delta({epsilon:g}) of 0 against 1")
        axis.spines[["top", "right"]].set_visible(False)
        # Below the panel the legend covers no curve.
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=8, frameon=False
        )
    figure.savefig(target, dpi=150, format=target.suffix.lstrip("."))
    pyplot.close(figure)


def _draw_curves(
    axis: "Axes", leaks: list[Leak], arithmetic: str, noise: str, fmt: str, line: str
) -> None:
    """Draw delta against p with a line for each n, and the levels of perfect and ideal noise."""
    rows = [row for row in leaks if (row.noise, row.format) == (noise, fmt)]
    drawn = [row for row in rows if row.arithmetic == arithmetic]
    for n in sorted({row.variates for row in drawn if row.variates is not None}):
        points = [(row.precision, row.delta) for row in drawn if row.variates == n]
        label, (color, marker) = f"n = {n}, {fmt}", _STYLES[n]
        axis.plot(*zip(*points, strict=True), line, label=label, color=color, marker=marker)
    for row in rows:
        if row.arithmetic == PERFECT:
            ink = axis.xaxis.label.get_color()
            axis.axhline(row.delta, color=ink, linestyle=":", label="perfect noise, added")
            axis.axhline(row.ideal, color=ink, linewidth=1, label="real arithmetic")
    axis.set_xlabel("p, bits of a uniform")


def _draw_releases(axis: "Axes", releases: list[ReleaseBounds]) -> None:
    """Shade the bounds on delta of each release against the bits of words, and draw the ideal."""
    ink = axis.xaxis.label.get_color()
    for form in dict.fromkeys(row.form for row in releases):
        rows = [row for row in releases if row.form == form]
        noise, _, n = form.partition("_")
        bits, low, high = zip(*((row.bits, row.low, row.high) for row in rows), strict=True)
        color, label = _STYLES[int(n)][0], f"{noise.capitalize()}, n = {n}: left open"
        axis.fill_between(bits, low, high, label=label, color=color, alpha=0.3, linewidth=0)
        ends = (rows[0].bits, rows[-1].bits)
        axis.plot(ends, (rows[0].ideal,) * 2, color=ink, linewidth=1.5)
    axis.plot([], [], color=ink, linewidth=1.5, label="real arithmetic, rounded")
    axis.set_xlabel("bits that are looked at of each word, of 64 and more")
    axis.set_title("Exact release: it lies in the shade, which closes", loc="left", fontsize=10)
