"""Views: functions that take one number of an output, which is a row.

A row holds the output's length and its parts: NaN for a missing part, a code for a part that is not
a number. Views are chosen on a sample, and are then fixed functions of a row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.generic import bit_patterns
from dpnoise.auditing.learned.steps import Cells, find_cells, tail_shares
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats, Integers
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.kernels import compile_kernel

Rows = NDArray[np.floating]  # Rows of float64; of int16 if all parts are small integers.
Marks = NDArray[np.int32]
Take = Callable[["Block"], Rows]
Text = Callable[[float], str | None]
_Array = TypeVar("_Array", bound=NDArray[Any])

PARTS: Final = "parts"  # Kinds of views: views of one kind are summed in one score.
DIFFERENCES: Final = "differences"
WHOLE: Final = "the whole"
CODES: Final = "codes"
SIDES: Final = ("parts that are numbers", "parts that are not")  # The two sides may be independent.
DISCRIMINANT: Final = "discriminant"
LEAKS: Final = "leaks"  # What was seen several times at one data set only.
TREES: Final = "trees"  # What boosted trees give.
KINDS: Final = (PARTS, DIFFERENCES, WHOLE, CODES, *SIDES, DISCRIMINANT, LEAKS, TREES)

_NO_POINTS: Final = np.zeros(0)
_SMALLEST_SPREAD: Final = float(np.finfo(np.float64).tiny)  # Its inverse is finite.
_NAN: Final = np.float64(np.nan).view(np.uint64)
_FEW_GROUPS: Final = 1 << 14  # Groups of equal rows whose table fits in the cache.
_BITS: Final = np.uint64((1 << 52) - 1)  # Mask of a code, which a float must hold exactly.


def no_text(_code: float) -> None:
    """Return None for every number: no code stands for a text."""


class Block:
    """Some rows with a cache: a number that several views read is computed once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._cache: dict[Callable[[Block], Any], Any] = {}
        self._cells: dict[tuple[Take, int], tuple[Floats, Cells]] = {}

    def of(self, take: "Callable[[Block], _Array]") -> _Array:
        """Return the result of `take` for these rows."""
        if take not in self._cache:
            self._cache[take] = take(self)
        result: _Array = self._cache[take]
        return result

    def cells(self, take: Take, edges: Floats) -> Cells:
        """Return the cells between edges of the result of `take`."""
        key = take, id(edges)
        if key not in self._cells:
            # The entry keeps the edges alive, so that no other array gets their id.
            self._cells[key] = edges, find_cells(edges, self.of(take))
        return self._cells[key][1]


@dataclass(frozen=True)
class View:
    """One number of an output."""

    words: str  # Its description, as the subject of a sentence: "y[2]".
    kind: str  # Views of one kind are summed.
    take: Take = field(repr=False)  # Rows -> numbers. Views of the same number share the function.
    coded: bool = False  # Whether the numbers are codes of patterns, without a meaningful order.
    ordered_span: int = 0  # Codes that differ by less than this have a meaningful order.
    text: Text = field(default=no_text, repr=False)  # The text that a number stands for, or None.
    may_be_missing: bool = True  # Whether some outputs do not have it.
    # The same in Python, with functions of `auditing.predicates`: a number of the output {z}, which
    # has codes in place of labels, or the pattern of the output {y}. Empty if there is none.
    source: str = ""
    # A row with each code, by the code: they show which patterns the codes stand for.
    examples: dict[float, Rows] = field(default_factory=dict, repr=False, compare=False)


def views_of(
    sample: Floats, names: Sequence[str], text: Text = no_text, ranked: Sequence[int] | None = None
) -> list[View]:
    """Return the views of rows like the sample, without those that are constant in it.

    `ranked` are the columns, the most revealing first: the first ones have a view each.
    """
    # Column 0 is the length of the output.
    columns = informative_columns(sample, text)
    numbers, most = [j for j in columns if j > 0], TUNING.parts_viewed
    leading = [j for j in (columns if ranked is None else ranked) if j in {*columns}]
    viewed = sorted(leading[:most])
    views = [
        View(names[j], PARTS, reader(j), text=text if j else no_text, source=part_source(j))
        for j in viewed
    ]
    for j in [j for j in leading if j > 0][: TUNING.parts_with_bits]:
        views += _bit_views(sample[:, j], j, names[j])
    continuous = [j for j in numbers if _special_numbers(sample[:, j]) is not None][:most]
    if len(continuous) > 1:
        # The difference of each part from the next undoes cumulative sums.
        first = continuous[0]
        views.append(View(names[first], DIFFERENCES, reader(first), source=part_source(first)))
        for i, j in pairwise(continuous):
            words, source = f"{names[j]} - {names[i]}", f"{part_source(j)} - {part_source(i)}"
            views.append(View(words, DIFFERENCES, _difference_reader(i, j), source=source))
    if len(numbers) > 1:
        views += _summary_views(sample, numbers)
        views += _pattern_views(sample, columns)
    block = Block(sample)
    values = [(view, block.of(view.take)) for view in views]
    return [replace(v, may_be_missing=bool(np.isnan(x).any())) for v, x in values if _varies(x)]


def varying_columns(sample: Rows) -> list[int]:
    """Return the columns that are not constant in a sample."""
    return [j for j in range(sample.shape[1]) if _varies(sample[:, j])]


def informative_columns(sample: Rows, text: Text) -> list[int]:
    """Return the columns that vary, without those of texts that hardly repeat, such as ids.

    The codes of such texts say nothing of other releases.
    """
    few = sample[: TUNING.texts_compared]
    return [j for j in varying_columns(sample) if not (j and _are_distinct_texts(few[:, j], text))]


def _are_distinct_texts(x: Rows, text: Text) -> bool:
    values = np.unique(x[~np.isnan(x)])
    is_distinct = len(values) > TUNING.distinct_share * len(x)
    return is_distinct and all(text(value) is not None for value in values.tolist())


def part_source(j: int) -> str:
    """Return the source of column j of a row, whose first column is the number of parts."""
    return f"number({{z}}, {j - 1})" if j else "number({y}, -1)"


def listing(numbers: Iterable[float]) -> str:
    """Return numbers as a list in Python, in which 1e999 is infinity."""
    texts = (repr(float(x)).removesuffix(".0").replace("inf", "1e999") for x in numbers)
    return f"[{', '.join(texts)}]"


def _varies(x: Rows) -> bool:
    known = x[~np.isnan(x)]
    return 0 < len(known) < len(x) or (len(known) > 0 and bool((known != known[0]).any()))


@cache
def reader(j: int) -> Take:
    """Return the function that takes a column."""
    return lambda block: block.rows[:, j]


def _difference_reader(i: int, j: int) -> Take:
    return lambda block: block.rows[:, j] - block.rows[:, i]


def _bit_views(x: Floats, j: int, name: str) -> list[View]:
    """Return views of the bits of one part: its parity, its fraction, or its first and last bit."""
    known, part = x[np.isfinite(x)], part_source(j)
    if len(np.unique(known)) <= TUNING.discrete_values:
        return []
    if (known == np.rint(known)).all():
        parity = View(
            f"{name} modulo 2",
            CODES,
            lambda block: np.mod(block.rows[:, j], 2.0),
            source=f"{part} % 2.0",
        )
        return [parity]

    def bits(block: Block) -> Floats:
        return bit_patterns(block.rows[:, j]).astype(np.float64)

    words, source = f"the sign and the first and last bit of {name}", f"sign_and_bits({part})"
    views = [View(words, CODES, bits, coded=True, source=source)]
    if len(np.unique(np.mod(known, 1.0))) <= TUNING.fraction_values:
        fraction = View(
            f"the fraction of {name}",
            CODES,
            lambda block: block.rows[:, j] - np.floor(block.rows[:, j]),  # `%` is slow.
            source=f"{part} % 1.0",
        )
        views.append(fraction)
    return views


# A third of its lines are the list of views, with their words and sources.
def _summary_views(sample: Floats, numbers: list[int]) -> list[View]:
    """Return views that summarise all numbers of an output."""
    zeros, ones = np.zeros(len(numbers)), np.ones(len(numbers))
    medians, spreads = median_and_spread(sample[:, numbers])

    def count_above(block: Block) -> Floats:
        out = np.zeros(len(block.rows))
        for j, median in zip(numbers, medians.tolist(), strict=True):
            _count_larger(column_of(block.rows, j), median, out)
        return out

    def find_extreme(sign: float) -> tuple[Take, Take]:
        def take_both(block: Block) -> Floats:
            most, indices = np.full(len(block.rows), -np.inf), np.zeros(len(block.rows))
            for k, j in enumerate(numbers):
                _keep_larger(column_of(block.rows, j), sign, float(k), most, indices)
            return np.stack([np.where(most == -np.inf, np.nan, sign * most), indices])

        return lambda block: block.of(take_both)[0], lambda block: block.of(take_both)[1]

    columns = listing(j - 1 for j in numbers)
    (largest, place_of_largest), (smallest, place_of_smallest) = map(find_extreme, (1.0, -1.0))
    clipped = _total_source(numbers, medians, spreads, 1.0)
    plain_sum = _total_source(numbers, zeros, ones, np.inf)
    above = f"parts_above({{z}}, {columns}, {listing(medians)})"
    every_view = [
        ("the largest part", largest, f"largest({{z}}, {columns})"),
        ("the smallest part", smallest, f"smallest({{z}}, {columns})"),
        ("the place of the largest part", place_of_largest,
         f"place_of_largest({{z}}, {columns})"),
        ("the place of the smallest part", place_of_smallest,
         f"place_of_smallest({{z}}, {columns})"),
        ("how many parts are above their usual middle", count_above, above),
        ("the sum of the parts, each clipped", _adder(numbers, medians, spreads, 1.0), clipped),
        ("the sum of the parts", _adder(numbers, zeros, ones, np.inf), plain_sum),
    ]  # fmt: skip
    views = [View(words, WHOLE, take, source=source) for words, take, source in every_view]
    if len(numbers) <= TUNING.parts_ordered:
        order, source = _order_of(numbers), f"order_of_parts({{z}}, {columns})"
        views.append(View("the order of the parts", WHOLE, order, coded=True, source=source))
    return views


def _order_of(numbers: list[int]) -> Take:
    """Return a code for the order of some parts, with a bit for each two; ties keep their order.

    >>> _order_of([0, 1, 2])(Block(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 1.0]])))
    array([0., 7., 6.])
    """

    def take(block: Block) -> Floats:
        code = np.zeros(len(block.rows), dtype=np.int16)
        for k, (i, j) in enumerate(combinations(numbers, 2)):
            code += (block.rows[:, i] > block.rows[:, j]) * np.int16(1 << k)
        return code.astype(np.float64)

    return take


def median_and_spread(parts: Floats) -> tuple[Floats, Floats]:
    """Return the median of each part, and its median absolute deviation."""
    medians = np.nanmedian(parts, axis=0)
    spreads = np.nanmedian(np.abs(parts - medians), axis=0)
    return medians, np.where(spreads > 0, spreads, 1.0)


def _pattern_views(sample: Floats, parts: list[int]) -> list[View]:
    """Return codes of the positions of special numbers, also combined with the size of the rest.

    If some parts are plain numbers and others are not, each side has separate codes, too: if the
    sides come from two mechanisms, the ratios of both multiply.
    """
    # Discrete parts have no entry here: all of their numbers are special.
    points = {j: special for j in parts if (special := _special_numbers(sample[:, j])) is not None}
    special_points = np.unique(np.concatenate([np.zeros(0), *points.values()]))
    numbers, others = list(points), [j for j in parts if j not in points]
    if not others and not len(special_points):
        return []
    words = "the pattern of the parts"
    views = _joint_views(sample, parts, numbers, special_points, words, WHOLE)
    discrete = [j for j in others if j > 0]
    if not numbers or not discrete or not len(special_points):
        return views
    for side, kind in zip((numbers, discrete), SIDES, strict=True):
        plain = [j for j in side if j in points]
        words = f"the pattern of {kind}"
        views += _joint_views(sample, side, plain, special_points, words, kind)
    return views


def _joint_views(
    sample: Floats, parts: list[int], numbers: list[int], points: Floats, words: str, kind: str
) -> list[View]:
    """Return views of the pattern of some parts, also combined with the size of plain numbers."""
    marks = _markers(numbers, points)

    def pattern(block: Block) -> Floats:
        columns = (marks[j](block) if j in marks else column_of(block.rows, j) for j in parts)
        return _codes(len(block.rows), columns)

    source = (
        f"pattern({{y}}, {listing(j - 1 for j in parts)}, {listing(j - 1 for j in numbers)}, "
        f"{listing(points)})"
    )
    views = [View(words, kind, pattern, coded=True, source=source)]
    if not numbers:
        return views
    plain_parts = sample[:, numbers]
    without_special = np.where(np.isin(plain_parts, points), np.nan, plain_parts)
    medians, spreads = median_and_spread(without_special)

    def smallest_plain(block: Block) -> Floats:
        out = np.full(len(block.rows), np.inf)
        for j in numbers:
            _keep_smaller_plain(column_of(block.rows, j), marks[j](block), out)
        return out

    sum_plain = _adder(numbers, medians, spreads, 1.0, points)
    least = f"least_plain({{z}}, {listing(j - 1 for j in numbers)}, {listing(points)})"
    total = _total_source(numbers, medians, spreads, 1.0, points)
    for size_of, size, size_source in (
        (smallest_plain, "how small the least of the others is", least),
        (sum_plain, "how large the others are", total),
    ):
        joint = View(f"{words}, and {size}", kind, pattern, coded=True, source=source)
        views.append(_with_size(joint, sample, size_of, size_source))
    return views


def _total_source(
    parts: list[int], medians: Floats, spreads: Floats, limit: float, points: Floats = _NO_POINTS
) -> str:
    """Return the source of what `_adder` makes with the same arguments."""
    scales = [1 / max(spread, _SMALLEST_SPREAD) for spread in spreads.tolist()]
    lists = [listing(j - 1 for j in parts), listing(medians), listing(scales)]
    options = "" if limit == np.inf else f", {limit}, {listing(points)}"
    return f"clipped_total({{z}}, {', '.join(lists)}{options})"


def _with_size(
    view: View, sample: Floats, size_of: Callable[[Block], Floats], size_source: str
) -> View:
    """Return a view of the same pattern, combined with the class of a size."""
    pattern = view.take
    shares = tail_shares(TUNING.size_class_log_odds, TUNING.size_classes - 1)
    cuts = np.unique(np.quantile(size_of(Block(sample)), shares, method="lower"))

    def take(block: Block) -> Floats:
        return _join_codes(block.of(pattern), find_cells(cuts, size_of(block)))

    source = f"with_size({view.source}, {size_source}, {listing(cuts)})"
    return replace(view, take=take, ordered_span=TUNING.size_classes, source=source, examples={})


def views_given(sample: Floats, names: Sequence[str], public: Sequence[int]) -> list[View]:
    """Return a view of each varying column together with the public columns, in classes."""

    def pattern(block: Block) -> Floats:
        return _codes(len(block.rows), (column_of(block.rows, j) for j in public))

    def size_of(j: int) -> Callable[[Block], Floats]:
        return lambda block: np.nan_to_num(column_of(block.rows, j).astype(np.float64), nan=np.inf)

    given = f"given {' and '.join(names[j] for j in public)}"
    source = f"pattern({{y}}, {listing(j - 1 for j in public)}, [], [])"
    others = [j for j in varying_columns(sample) if j not in public][: TUNING.parts_viewed]
    joint = [
        (j, View(f"{names[j]}, {given},", PARTS, pattern, coded=True, source=source))
        for j in (others if public else [])
    ]
    return [_with_size(view, sample, size_of(j), part_source(j)) for j, view in joint]


def row_codes(rows: Rows) -> Floats:
    """Return a code of each row."""
    codes = np.empty(len(rows))

    def fill(first: int, last: int) -> None:
        for start in range(first, last, TUNING.block_rows):
            span = slice(start, min(last, start + TUNING.block_rows))
            columns = (column_of(rows[span], j) for j in range(rows.shape[1]))
            codes[span] = _codes(span.stop - start, columns)

    run_in_parallel(fill, len(rows), TUNING.block_rows, cores())
    return codes


def _codes(n: int, columns: Iterable[Rows | Marks]) -> Floats:
    """Return a code for each of n rows, given their columns."""
    code = np.zeros(n, dtype=np.uint64)
    for column in columns:
        _mix(column, code)
    return (code & _BITS).astype(np.float64)


def group_equal_rows(rows: Floats) -> tuple[Integers, Integers]:
    """Return the index of the first of each distinct row, and the group number of each row.

    >>> group_equal_rows(np.array([[7.0], [5.0], [7.0]]))
    (array([0, 1]), array([0, 1, 0]))
    """
    codes = row_codes(rows).astype(np.uint64)
    first, same = np.empty((2, len(rows)), dtype=np.int64)
    for most in (_FEW_GROUPS, len(rows)):
        table = np.full(1 << (2 * most).bit_length(), -1)
        groups = _fold(codes, table, most, first, same)
        if groups <= most:
            break
    return first[:groups], same


@compile_kernel
def _fold(
    codes: NDArray[np.uint64], table: Integers, most: int, first: Integers, same: Integers
) -> int:
    """Return the number of groups; it stops at the first group beyond the most."""
    groups = 0
    mask = np.uint64(table.size - 1)
    for i in range(codes.size):
        slot = codes[i] & mask
        while table[slot] >= 0 and codes[first[table[slot]]] != codes[i]:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            if groups == most:
                return most + 1
            table[slot] = groups
            first[groups] = i
            groups += 1
        same[i] = table[slot]
    return groups


def column_of(rows: Rows, j: int) -> Rows:
    """Return a contiguous column: kernels are fastest on contiguous memory."""
    return np.ascontiguousarray(rows[:, j])


def _markers(parts: Sequence[int], points: Floats) -> dict[int, Callable[[Block], Marks]]:
    """Return for each part the function that marks its special numbers.

    Views of the same rows share the marks, unless these are so many that they take much memory.
    """
    key = tuple(points.tolist())
    if len(parts) > TUNING.parts_viewed:
        return {j: _marker(j, key) for j in parts}
    return {j: _share_result(_marker(j, key)) for j in parts}


def _share_result(take: Callable[[Block], _Array]) -> Callable[[Block], _Array]:
    return lambda block: block.of(take)


@cache
def _marker(j: int, points: tuple[float, ...]) -> Callable[[Block], Marks]:
    numbers = np.array(points)
    return lambda block: _mark_special(column_of(block.rows, j), numbers)


def _adder(
    parts: list[int], medians: Floats, spreads: Floats, limit: float, points: Floats = _NO_POINTS
) -> Callable[[Block], Floats]:
    """Sum the clipped, scaled deviations from the median of the parts that are not special."""
    marks = _markers(parts, points)

    def take(block: Block) -> Floats:
        out = np.zeros(len(block.rows))
        for j, median, spread in zip(parts, medians.tolist(), spreads.tolist(), strict=True):
            column, scale = column_of(block.rows, j), 1 / max(spread, _SMALLEST_SPREAD)
            if len(points):
                _add_plain(column, marks[j](block), median, scale, limit, out)
            else:
                _add_all(column, median, scale, limit, out)
        return out

    return take


@compile_kernel
def _mix(column: Rows | Marks, code: NDArray[np.uint64]) -> None:
    for i in range(column.size):
        x = np.float64(column[i]) + 0.0  # 0 and -0 are equal, and so are all NaN.
        word = np.float64(x).view(np.uint64) if x == x else _NAN  # noqa: PLR0124
        mixed = (code[i] ^ word) * np.uint64(0x9E3779B97F4A7C15)
        code[i] = mixed ^ (mixed >> np.uint64(29))


@compile_kernel
def _mark_special(column: Rows, points: Floats) -> Marks:
    """Return the number of each special number, from 1; 0 for plain numbers, -1 for NaN.

    >>> _mark_special(np.array([5.0, 7.0, np.nan]), np.array([6.0, 7.0]))
    array([ 0,  2, -1], dtype=int32)
    """
    marks = np.empty(column.size, dtype=np.int32)
    # The loop over the column is the inner one, because LLVM vectorises it.
    for i in range(column.size):
        marks[i] = -np.int32(column[i] != column[i])  # True only for NaN.
    for k in range(points.size):
        point, mark = points[k], np.int32(k + 1)
        for i in range(column.size):
            marks[i] |= mark * np.int32(column[i] == point)
    return marks


@compile_kernel
def _join_codes(codes: Rows, cells: Cells) -> Floats:
    """Return codes of patterns together with a cell: those of one pattern follow each other."""
    out = np.empty(codes.size)
    for i in range(codes.size):
        code = np.uint64(codes[i]) * np.uint64(0xBF58476D1CE4E5B9)
        out[i] = np.float64(((code >> np.uint64(11)) + np.uint64(cells[i])) & _BITS)
    return out


@compile_kernel
def _keep_smaller_plain(column: Rows, marks: Marks, out: Floats) -> None:
    """Update the smallest number so far of each row that is not special."""
    for i in range(column.size):
        x = np.float64(column[i]) if marks[i] == 0 else np.inf
        out[i] = min(out[i], x)


@compile_kernel
def _count_larger(column: Rows, median: float, out: Floats) -> None:
    """Add one to the count of each row with a number above the median."""
    for i in range(column.size):
        out[i] += np.float64(np.float64(column[i]) > median)


@compile_kernel
def _keep_larger(column: Rows, sign: float, index: float, most: Floats, indices: Floats) -> None:
    """Update the largest number so far of each row, times `sign`, and its index."""
    for i in range(column.size):
        x = sign * np.float64(column[i])
        larger = x > most[i]
        most[i] = x if larger else most[i]
        indices[i] = index if larger else indices[i]


@compile_kernel
def _add_plain(
    column: Rows, marks: Marks, median: float, scale: float, limit: float, out: Floats
) -> None:
    """Add the clipped, scaled deviation from the median of numbers that are not special."""
    for i in range(column.size):
        size = min(max((np.float64(column[i]) - median) * scale, -limit), limit)
        out[i] += size if marks[i] == 0 else 0.0


@compile_kernel
def _add_all(column: Rows, median: float, scale: float, limit: float, out: Floats) -> None:
    """Add the clipped, scaled deviation from the median of numbers that are not missing."""
    for i in range(column.size):
        x = np.float64(column[i])
        size = min(max((x - median) * scale, -limit), limit)
        out[i] += size if x == x else 0.0  # noqa: PLR0124 - NaN is not equal to itself


def _special_numbers(x: Floats) -> Floats | None:
    """Return the frequent numbers of a part, or None for a discrete part: all are special."""
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    most = TUNING.discrete_values
    return None if len(values) <= most else values[counts > len(x) / most]
