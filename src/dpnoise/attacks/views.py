"""The numbers that outputs are looked at through: each output one row, each view one number of it.

A row holds the output's length and its parts: NaN where a part is missing, a code where it is no
number. Views are chosen on a sample, and then are fixed functions of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.attacks.patterns import patterns

Floats = NDArray[np.float64]
Take = Callable[[Floats], Floats]
Text = Callable[[float], str | None]

# Kinds of views: those of one kind are summed up in one score.
PARTS: Final = "parts"
STEPS: Final = "differences"
WHOLE: Final = "the whole"
CODES: Final = "codes"

_DISCRETE: Final = 24  # A part with at most so many different numbers is taken number by number.
_FRACTIONS: Final = 256  # Different fractions that are worth a look.
_WIDEST: Final = 64  # Parts that are looked at one by one.
_SIZES: Final = 24  # Of the others, where a pattern is looked at with how large they are.
_ORDERED: Final = 6  # Parts whose order is a code of its own.
_LOOKED_INTO: Final = 8  # Parts whose bits are looked at.
_BITS: Final = np.uint64((1 << 52) - 1)  # Of a code, which a float holds exactly.


def no_text(_code: float) -> None:
    """Say that a number is a number."""


@dataclass(frozen=True)
class View:
    """One number of an output.

    Parameters
    ----------
    words
        What it is, as the subject of a sentence: "y[2]".
    kind
        Which views it is summed up with.
    take
        Rows -> numbers.
    coded
        Whether the numbers are names of patterns, so that their order means nothing;
    together
        but that of those which differ by less than this.
    text
        What a number stands for if it is a text's, else None.
    gaps
        Whether there are outputs that it is missing in.
    """

    words: str
    kind: str
    take: Take = field(repr=False)
    coded: bool = False
    together: int = 0
    text: Text = field(default=no_text, repr=False)
    gaps: bool = True


def views_of(sample: Floats, names: Sequence[str], text: Text = no_text) -> list[View]:
    """Return the views of rows like these; what is constant in the sample is left out."""
    parts = [j for j in range(sample.shape[1]) if _varies(sample[:, j])]
    numbers = [j for j in parts if j > 0]
    found = [View(names[j], PARTS, _part(j), text=text if j else no_text) for j in parts[:_WIDEST]]
    found += [view for j in numbers[:_LOOKED_INTO] for view in _inside(sample[:, j], j, names[j])]
    continuous = [j for j in numbers if _special(sample[:, j]) is not None]
    if len(continuous) > 1:
        found += _differences(continuous[:_WIDEST], names)
    if len(numbers) > 1:
        found += _summaries(sample, numbers)
        found += _patterns_of(sample, parts)
    taken = [(view, view.take(sample)) for view in found]
    return [replace(view, gaps=bool(np.isnan(x).any())) for view, x in taken if _varies(x)]


def _varies(x: Floats) -> bool:
    known = x[~np.isnan(x)]
    return 0 < len(known) < len(x) or (len(known) > 0 and bool((known != known[0]).any()))


def _part(j: int) -> Take:
    return lambda rows: rows[:, j]


def _inside(x: Floats, j: int, name: str) -> list[View]:
    """Return views of the bits of one part: its parity, its fraction, or its first and last bit."""
    known = x[np.isfinite(x)]
    if len(np.unique(known)) <= _DISCRETE:
        return []
    if (known == np.rint(known)).all():
        return [View(f"{name} modulo 2", CODES, lambda rows: np.mod(rows[:, j], 2.0))]
    found = [
        View(f"the sign and the first and last bit of {name}", CODES,
             lambda rows: patterns(np.nan_to_num(rows[:, j] * 1.0)).astype(np.float64), coded=True)
    ]  # fmt: skip
    if len(np.unique(np.mod(known, 1.0))) <= _FRACTIONS:
        found.append(View(f"the fraction of {name}", CODES, lambda rows: np.mod(rows[:, j], 1.0)))
    return found


def _differences(numbers: list[int], names: Sequence[str]) -> list[View]:
    """Return the steps from each part to the next: sums over parts come apart again."""

    def step(i: int, j: int) -> Take:
        return lambda rows: rows[:, j] - rows[:, i]

    pairs = pairwise(numbers)
    first = View(names[numbers[0]], STEPS, _part(numbers[0]))
    return [first, *(View(f"{names[j]} - {names[i]}", STEPS, step(i, j)) for i, j in pairs)]


def _summaries(sample: Floats, numbers: list[int]) -> list[View]:
    """Return views of all numbers together."""
    chosen = np.array(numbers)
    middle, spread = (x.tolist() for x in _middle(sample[:, chosen]))

    def clipped(rows: Floats) -> Floats:
        total = np.zeros(len(rows))
        for j, usual, wide in zip(numbers, middle, spread, strict=True):
            total += np.nan_to_num(np.clip((rows[:, j] - usual) / wide, -1, 1))
        return total

    def above(rows: Floats) -> Floats:
        total = np.zeros(len(rows))
        for j, usual in zip(numbers, middle, strict=True):
            total += rows[:, j] > usual
        return total

    def extreme(reduce: Callable[..., Floats]) -> Take:
        return lambda rows: reduce(rows[:, numbers[0] : numbers[-1] + 1], axis=1)

    def place(sign: float) -> Take:
        def first(rows: Floats) -> Floats:
            most, found = np.full(len(rows), -np.inf), np.zeros(len(rows))
            for i, j in enumerate(numbers):
                x = sign * rows[:, j]
                np.copyto(found, i, where=x > most)
                np.fmax(most, x, out=most)
            return found

        return first

    views = [
        View("the largest part", WHOLE, extreme(np.fmax.reduce)),
        View("the smallest part", WHOLE, extreme(np.fmin.reduce)),
        View("the place of the largest part", WHOLE, place(1.0)),
        View("the place of the smallest part", WHOLE, place(-1.0)),
        View("how many parts are above their usual middle", WHOLE, above),
        View("the sum of the parts, each clipped", WHOLE, clipped),
        View("the sum of the parts", WHOLE, extreme(np.nansum)),
    ]
    if len(numbers) <= _ORDERED:
        base = len(numbers) ** np.arange(len(numbers))
        order = View("the order of the parts", WHOLE,
                     # Of equal parts the first is first, whatever NumPy sorts with on this machine.
                    lambda rows: (rows[:, chosen].argsort(axis=1, kind="stable") @ base).astype(
                        np.float64
                    ),
                     coded=True)  # fmt: skip
        views.append(order)
    return views


def _middle(parts: Floats) -> tuple[Floats, Floats]:
    """Return the median of each part, and how far half of it is from there."""
    middle = np.array([np.median(x[~np.isnan(x)]) for x in parts.T])
    away = np.abs(parts - middle)
    spread = np.array([np.median(x[~np.isnan(x)]) for x in away.T])
    return middle, np.where(spread > 0, spread, 1.0)


def _patterns_of(sample: Floats, parts: list[int]) -> list[View]:
    """Return codes of which special numbers stand where, and with them of how large the rest is."""
    # What is left out here is discrete: all of its numbers stand for something.
    special = {j: points for j in parts if (points := _special(sample[:, j])) is not None}

    def pattern(rows: Floats) -> Floats:
        return row_codes(rows, [(j, special.get(j)) for j in parts])

    def rest(rows: Floats) -> Floats:
        total = np.zeros(len(rows))
        for j, points in special.items():
            x = rows[:, j]
            total += np.where(np.isnan(x) | np.isin(x, points), 0.0, x)
        return total

    found = [View("the pattern of the parts", WHOLE, pattern, coded=True)]
    if not special:
        return found
    if len(special) == len(parts) and not any(map(len, special.values())):
        return []
    cuts = np.unique(np.quantile(rest(sample), np.arange(1, _SIZES) / _SIZES))

    def joint(rows: Floats) -> Floats:
        size = np.searchsorted(cuts, rest(rows), side="right").astype(np.uint64)
        code = pattern(rows).astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
        return (((code >> np.uint64(11)) + size) & _BITS).astype(np.float64)

    words = "the pattern of the parts, and how large the others are"
    return [*found, View(words, WHOLE, joint, coded=True, together=_SIZES)]


def row_codes(rows: Floats, parts: Sequence[tuple[int, Floats | None]] | None = None) -> Floats:
    """Return a code of each row, or of which special numbers stand in some of its parts."""
    code = np.zeros(len(rows), dtype=np.uint64)
    for j, points in parts if parts is not None else [(j, None) for j in range(rows.shape[1])]:
        x = rows[:, j]
        known = x if points is None else np.where(np.isin(x, points), x, 0.5)
        word = np.ascontiguousarray(known + 0.0).view(np.uint64)
        code = (code ^ word) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    return (code & _BITS).astype(np.float64)


def _special(x: Floats) -> Floats | None:
    """Return the numbers of a part that stand for something: the frequent ones, or None for all."""
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    return None if len(values) <= _DISCRETE else values[counts > len(x) / _DISCRETE]
