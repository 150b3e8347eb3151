"""The numbers that outputs are looked at through: each output one row, each view one number of it.

A row holds the output's length and its parts: NaN where a part is missing, a code where it is no
number. Views are chosen on a sample, and then are fixed functions of a row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.generic import patterns
from dpnoise.auditing.learned.scores import cells_of, tail_shares
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats, Integers
from dpnoise.kernels import compiled

Rows = NDArray[np.floating]  # In float64; of small integers, in int16.
Marks = NDArray[np.int32]
Take = Callable[["Block"], Rows]
Text = Callable[[float], str | None]

# Kinds of views: those of one kind are summed up in one score.
PARTS: Final = "parts"
STEPS: Final = "differences"
WHOLE: Final = "the whole"
CODES: Final = "codes"
SIDES: Final = ("parts that are numbers", "parts that are not")  # They may be independent.

_LEAST: Final = float(np.finfo(np.float64).tiny)  # The least spread whose inverse is a number.
_BITS: Final = np.uint64((1 << 52) - 1)  # Of a code, which a float holds exactly.


def no_text(_code: float) -> None:
    """Say that a number is a number."""


class Block:
    """Some rows, and what was taken of them: what several views look at is taken once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._taken: dict[Take, Rows] = {}

    def of(self, take: Take) -> Rows:
        """Return what is taken of these rows."""
        if take not in self._taken:
            self._taken[take] = take(self)
        return self._taken[take]


@dataclass(frozen=True)
class View:
    """One number of an output."""

    words: str  # What it is, as the subject of a sentence: "y[2]".
    kind: str  # Which views it is summed up with.
    take: Take = field(repr=False)  # Rows -> numbers. Views of one number have one such function.
    coded: bool = False  # Whether the numbers are names of patterns, so that order means nothing.
    together: int = 0  # Of such names, those that differ by less than this are ordered.
    text: Text = field(default=no_text, repr=False)  # The text that a number stands for, or None.
    gaps: bool = True  # Whether there are outputs that it is missing in.


def views_of(sample: Floats, names: Sequence[str], text: Text = no_text) -> list[View]:
    """Return the views of rows like these; what is constant in the sample is left out."""
    parts = [j for j in range(sample.shape[1]) if _varies(sample[:, j])]
    numbers = [j for j in parts if j > 0]
    most = TUNING.parts_viewed
    found = [View(names[j], PARTS, _part(j), text=text if j else no_text) for j in parts[:most]]
    for j in numbers[: TUNING.parts_with_bits]:
        found += _inside(sample[:, j], j, names[j])
    continuous = [j for j in numbers if _special(sample[:, j]) is not None]
    if len(continuous) > 1:
        found += _differences(continuous[:most], names)
    if len(numbers) > 1:
        found += _summaries(sample, numbers)
        found += _patterns_of(sample, parts)
    block = Block(sample)
    taken = [(view, block.of(view.take)) for view in found]
    return [replace(view, gaps=bool(np.isnan(x).any())) for view, x in taken if _varies(x)]


def _varies(x: Rows) -> bool:
    known = x[~np.isnan(x)]
    return 0 < len(known) < len(x) or (len(known) > 0 and bool((known != known[0]).any()))


@cache
def _part(j: int) -> Take:
    return lambda block: block.rows[:, j]


def _inside(x: Floats, j: int, name: str) -> list[View]:
    """Return views of the bits of one part: its parity, its fraction, or its first and last bit."""
    known = x[np.isfinite(x)]
    if len(np.unique(known)) <= TUNING.discrete_values:
        return []
    if (known == np.rint(known)).all():
        return [View(f"{name} modulo 2", CODES, lambda block: np.mod(block.rows[:, j], 2.0))]
    found = [
        View(f"the sign and the first and last bit of {name}", CODES,
             lambda block: patterns(block.rows[:, j]).astype(np.float64), coded=True)
    ]  # fmt: skip
    if len(np.unique(np.mod(known, 1.0))) <= TUNING.fraction_values:
        fraction = View(f"the fraction of {name}", CODES, lambda block: np.mod(block.rows[:, j], 1))
        found.append(fraction)
    return found


def _differences(numbers: list[int], names: Sequence[str]) -> list[View]:
    """Return the steps from each part to the next: sums over parts come apart again."""

    def step(i: int, j: int) -> Take:
        return lambda block: block.rows[:, j] - block.rows[:, i]

    pairs = pairwise(numbers)
    first = View(names[numbers[0]], STEPS, _part(numbers[0]))
    return [first, *(View(f"{names[j]} - {names[i]}", STEPS, step(i, j)) for i, j in pairs)]


def _summaries(sample: Floats, numbers: list[int]) -> list[View]:
    """Return views of all numbers together."""
    none, zeros, ones = np.zeros(0), np.zeros(len(numbers)), np.ones(len(numbers))
    middle, spread = _middle(sample[:, numbers])

    def clipped(block: Block) -> Floats:
        return _sum_of(block.rows, numbers, none, middle, spread, 1.0)

    def total(block: Block) -> Floats:
        return _sum_of(block.rows, numbers, none, zeros, ones, np.inf)

    def above(block: Block) -> Floats:
        flags = [block.rows[:, j] > usual for j, usual in zip(numbers, middle, strict=True)]
        return np.asarray(np.sum(flags, axis=0, dtype=np.float64))

    def extreme(sign: float, *, place: bool) -> Take:
        def take(block: Block) -> Floats:
            most, found = np.full(len(block.rows), -np.inf), np.zeros(len(block.rows))
            for k, j in enumerate(numbers):
                _keep_larger(_column(block.rows, j), sign, float(k), most, found)
            return found if place else np.where(most == -np.inf, np.nan, sign * most)

        return take

    views = [
        View("the largest part", WHOLE, extreme(1.0, place=False)),
        View("the smallest part", WHOLE, extreme(-1.0, place=False)),
        View("the place of the largest part", WHOLE, extreme(1.0, place=True)),
        View("the place of the smallest part", WHOLE, extreme(-1.0, place=True)),
        View("how many parts are above their usual middle", WHOLE, above),
        View("the sum of the parts, each clipped", WHOLE, clipped),
        View("the sum of the parts", WHOLE, total),
    ]
    if len(numbers) <= TUNING.parts_ordered:
        views.append(View("the order of the parts", WHOLE, _order_of(numbers), coded=True))
    return views


def _order_of(numbers: list[int]) -> Take:
    """Give each order of some parts a code, a bit for each two: of equal ones the first is first.

    >>> _order_of([0, 1, 2])(Block(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 1.0]])))
    array([0., 7., 6.])
    """

    def take(block: Block) -> Floats:
        code = np.zeros(len(block.rows), dtype=np.int16)
        for k, (i, j) in enumerate(combinations(numbers, 2)):
            code += (block.rows[:, i] > block.rows[:, j]) * np.int16(1 << k)
        return code.astype(np.float64)

    return take


def _middle(parts: Floats) -> tuple[Floats, Floats]:
    """Return the median of each part, and how far half of it is from there."""
    middle = np.nanmedian(parts, axis=0)
    spread = np.nanmedian(np.abs(parts - middle), axis=0)
    return middle, np.where(spread > 0, spread, 1.0)


def _patterns_of(sample: Floats, parts: list[int]) -> list[View]:
    """Return codes of which special numbers stand where, and with them of how large the rest is.

    Where some parts are plain numbers and others are not, each sort has codes of its own, too: if
    they come from two mechanisms, the ratios of both multiply.
    """
    # What is left out here is discrete: all of its numbers stand for something.
    points = {j: some for j in parts if (some := _special(sample[:, j])) is not None}
    special_points = np.unique(np.concatenate([np.zeros(0), *points.values()]))
    numbers, others = list(points), [j for j in parts if j not in points]
    if not others and not len(special_points):
        return []
    every = "the pattern of the parts"
    found = _joint_views(sample, parts, numbers, special_points, every, WHOLE)
    sides = [j for j in others if j > 0]
    if not numbers or not sides or not len(special_points):
        return found
    for side, kind in zip((numbers, sides), SIDES, strict=True):
        words = f"the pattern of {kind}"
        found += _joint_views(sample, side, [j for j in side if j in points], special_points,
                              words, kind)  # fmt: skip
    return found


def _joint_views(
    sample: Floats, parts: list[int], numbers: list[int], points: Floats, words: str, kind: str
) -> list[View]:
    """Return the pattern of some parts, and with it how large those are that are plain numbers."""
    plain = set(numbers)

    def pattern(block: Block) -> Floats:
        columns = ((j, _column(block.rows, j)) for j in parts)
        marked = (_marked(column, points) if j in plain else column for j, column in columns)
        return _codes(len(block.rows), marked)

    found = [View(words, kind, pattern, coded=True)]
    if not numbers:
        return found
    some = sample[:, numbers]
    middle, spread = _middle(np.where(np.isin(some, points), np.nan, some))

    def least(block: Block) -> Floats:
        out = np.full(len(block.rows), np.inf)
        for j in numbers:
            column = _column(block.rows, j)
            np.minimum(out, np.where(_marked(column, points) == 0, column, np.inf), out=out)
        return out

    def total(block: Block) -> Floats:
        return _sum_of(block.rows, numbers, points, middle, spread, 1.0)

    smallest, largest = "how small the least of the others is", "how large the others are"
    found.append(_joint(sample, pattern, least, f"{words}, and {smallest}", kind))
    found.append(_joint(sample, pattern, total, f"{words}, and {largest}", kind))
    return found


def _joint(
    sample: Floats, pattern: Take, size_of: Callable[[Block], Floats], words: str, kind: str
) -> View:
    shares = tail_shares(TUNING.size_class_log_odds, TUNING.size_classes - 1)
    cuts = np.unique(np.quantile(size_of(Block(sample)), shares, method="lower"))

    def joint(block: Block) -> Floats:
        size = cells_of(cuts, size_of(block)).astype(np.uint64)
        code = block.of(pattern).astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
        return (((code >> np.uint64(11)) + size) & _BITS).astype(np.float64)

    return View(words, kind, joint, coded=True, together=TUNING.size_classes)


def row_codes(rows: Rows) -> Floats:
    """Return a code of each row."""
    return _codes(len(rows), (_column(rows, j) for j in range(rows.shape[1])))


def _codes(n: int, columns: Iterable[Rows | Marks]) -> Floats:
    """Return codes of the n rows that columns make."""
    code = np.zeros(n, dtype=np.uint64)
    for column in columns:
        _mix(column, code)
    return (code & _BITS).astype(np.float64)


def folded(rows: Floats) -> tuple[Integers, Integers]:
    """Return where each different row was first seen, and which of these each row is.

    >>> folded(np.array([[7.0], [5.0], [7.0]]))
    (array([0, 1]), array([0, 1, 0]))
    """
    codes = row_codes(rows).astype(np.uint64)
    first, same = np.empty((2, len(rows)), dtype=np.int64)
    table = np.full(1 << (2 * len(rows)).bit_length(), -1)
    found = _fold(codes, table, first, same)
    return first[:found], same


@compiled
def _fold(codes: NDArray[np.uint64], table: Integers, first: Integers, same: Integers) -> int:
    found = 0
    mask = np.uint64(table.size - 1)
    for i in range(codes.size):
        place = codes[i] & mask
        while table[place] >= 0 and codes[first[table[place]]] != codes[i]:
            place = (place + np.uint64(1)) & mask
        if table[place] < 0:
            table[place] = found
            first[found] = i
            found += 1
        same[i] = table[place]
    return found


def _column(rows: Rows, j: int) -> Rows:
    """Return a part of all rows: kernels are quickest on what lies together in memory."""
    return np.ascontiguousarray(rows[:, j])


def _sum_of(
    rows: Rows, parts: list[int], points: Floats, middle: Floats, spread: Floats, limit: float
) -> Floats:
    """Sum the parts that are not special, each by its distance from its middle, and clipped."""
    out = np.zeros(len(rows))
    for j, centre, scale in zip(parts, middle.tolist(), spread.tolist(), strict=True):
        column = _column(rows, j)
        _add_plain(column, _marked(column, points), centre, 1 / max(scale, _LEAST), limit, out)
    return out


@compiled
def _mix(column: Rows | Marks, code: NDArray[np.uint64]) -> None:
    number = np.empty(1)
    word = number.view(np.uint64)
    for i in range(column.size):
        x = np.float64(column[i])
        number[0] = x + 0.0 if x == x else np.nan  # noqa: PLR0124 - 0 and -0, all NaN are one
        mixed = (code[i] ^ word[0]) * np.uint64(0x9E3779B97F4A7C15)
        code[i] = mixed ^ (mixed >> np.uint64(29))


def _marked(column: Rows, points: Floats) -> Marks:
    """Return the place of each number among special ones, from 1 on; 0 if it is none, -1 for NaN.

    >>> _marked(np.array([5.0, 7.0, np.nan]), np.array([6.0, 7.0]))
    array([ 0,  2, -1], dtype=int32)
    """
    marks = np.empty(len(column), dtype=np.int32)
    _mark(column, points, marks)
    return marks


@compiled
def _mark(column: Rows, points: Floats, marks: Marks) -> None:
    # One special number after the other: LLVM vectorises loops over a column.
    for i in range(column.size):
        marks[i] = -np.int32(column[i] != column[i])  # Only a NaN.
    for k in range(points.size):
        point, place = points[k], np.int32(k + 1)
        for i in range(column.size):
            marks[i] |= place * np.int32(column[i] == point)


@compiled
def _keep_larger(column: Rows, sign: float, place: float, most: Floats, found: Floats) -> None:
    """Keep the larger of the largest so far and a part, or the smaller, and the place of it."""
    for i in range(column.size):
        x = sign * np.float64(column[i])
        larger = x > most[i]
        most[i] = x if larger else most[i]
        found[i] = place if larger else found[i]


@compiled
def _add_plain(
    column: Rows, marks: Marks, middle: float, scale: float, limit: float, out: Floats
) -> None:
    """Add the distance from the middle, clipped, of numbers that are not special."""
    for i in range(column.size):
        size = min(max((np.float64(column[i]) - middle) * scale, -limit), limit)
        out[i] += size if marks[i] == 0 else 0.0


def _special(x: Floats) -> Floats | None:
    """Return the numbers of a part that stand for something: the frequent ones, or None for all."""
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    few = TUNING.discrete_values
    return None if len(values) <= few else values[counts > len(x) / few]
