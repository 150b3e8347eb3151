"""Pairs for an audit: of data sets, or of values that differ by the sensitivity at most.

Callers give pairs of data sets one by one, or by the name of a relation.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from scipy import stats

from dpnoise.auditing.data_rows import Cells, DataRows
from dpnoise.auditing.targets.mechanisms import Data, Pair
from dpnoise.auditing.targets.target import Target, TargetError
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, check_integer, is_real, reject

ValuePair = tuple[float, float]

VECTOR: Final = "vector"
ROWS: Final = "rows"
ADDED: Final = "added"
REPLACED: Final = "replaced"
RELATIONS_OF_ROWS: Final = (ROWS, ADDED, REPLACED)
_ACCEPTED: Final = "'vector', 'rows', 'added', 'replaced', or a list of pairs"
_MOST_ROWS: Final = 12  # The most rows of a data set that are removed, repeated and replaced.
# Numbers at which formats of integers end, and of floats nearly. Of the last two, integers get the
# ends of their type.
_FORMAT_ENDS: Final = (
    0, *(2**k for k in (7, 8, 15, 16, 31, 32, 53)), -(2**15), -(2**31), 10**308, -(10**308),
)  # fmt: skip
MOST_PAIRS_LIKE: Final = 6 + len(_FORMAT_ENDS)  # The most pairs that a search adds.
_SMALL_DATA_SETS: Final = ((1,), (0,), (0, 1), (1, 1, 1), (0, 0, 0, 0, 1), (0, 1) * 10)

# Pairs in units of the sensitivity: around zero, a power of two, a count, negative, large. The
# fractional, tiny and huge ones find targets that round or that treat small numbers differently.
_VALUES: Final = (
    (0, 1), (1, 2), (7, 8), (42, 43), (-1, 0), (1000, 1001),
    (0, 0.5), (0.25, 0.75), (0.375, 1.375), (0, 2.0**-12), (2.0**30, 2.0**30 + 1),
)  # fmt: skip
_MULTIPLES: Final = 6  # The number of pairs, from the first, of multiples of the sensitivity.
_LARGEST_MULTIPLE: Final = 1001  # The largest of these multiples.
# Values, in units of the sensitivity, among which the search looks for special treatment.
_SEARCHED_UNITS: Final = (
    *range(-16, 65), *(10.0**k for k in range(2, 10)), *(-(10.0**k) for k in range(2, 7)),
    *(k / 8 for k in range(-7, 8) if k), 1.5, 2.5, 99.5, 1e-3, 1e-6,
    *(2.0**k for k in range(7, 33)),  # Integers of 8, 16 and 32 bits end at such values.
)  # fmt: skip
_LARGEST_VALUES: Final = (2, 4, 8, 16, 32)  # Numbers of the largest values to compare together.
_RELEASES_EACH: Final = 32  # Releases of each searched value.
_FALSE_ALARM: Final = 0.01  # The probability that a value stands out by chance.
_SEARCH_SECONDS: Final = 20.0  # Seconds after which the search stops with the values seen so far.
SEARCH_RELEASES: Final = _RELEASES_EACH * len(_SEARCHED_UNITS)  # Releases that the search takes.
WHOLE: Final = "whole"


def neighbours_of(neighbours: object, size: int, sensitivity: float, data: Data) -> list[Pair]:
    """Return the caller's pairs, or those of a named relation.

    "vector" has `size` answers to queries that each move by at most the sensitivity. "rows" has
    data sets that differ in one row, added to `data`, removed or replaced; "added" has those with a
    row added or removed, "replaced" those with a row replaced.

    >>> neighbours_of("vector", 3, 1.0, None)[2]
    (array([1., 1., 1.]), array([2., 0., 0.]))
    >>> neighbours_of("rows", 1, 1.0, ["ann", "bob"])[:2]
    [(['ann', 'bob'], ['bob']), (['ann', 'bob'], ['ann'])]
    """
    if isinstance(neighbours, str):
        if neighbours == VECTOR:
            return vector_pairs(check_integer("size", size, least=1), sensitivity)
        if neighbours in RELATIONS_OF_ROWS:
            return row_pairs(data, neighbours)
        reject("neighbours", neighbours, f"be {_ACCEPTED} of data sets")
    if not isinstance(neighbours, Iterable):
        accepted = f"{_ACCEPTED}: [(a, b)]"
        raise ArgumentTypeError(f"neighbours must be {accepted}, got {type(neighbours).__name__}.")
    pairs = list(neighbours)
    for pair in pairs:
        # A tuple, because two lists may as well be one pair of data sets.
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004 - a pair
            rule = "be a list of tuples, each a pair of data sets, as in neighbours=[(a, b)]"
            raise ArgumentTypeError(f"neighbours must {rule}.")
        if _are_equal(*pair):
            raise ArgumentError("The two data sets of each of neighbours must differ.")
    if not pairs:
        raise ArgumentError("neighbours must have at least one pair of data sets.")
    return pairs


def _are_equal(first: Data, second: Data) -> bool:
    """Return whether two data sets are one object, or equal in all their parts."""
    if first is second or type(first) is not type(second):
        return first is second
    try:
        if isinstance(first, list | tuple):
            equal = len(first) == len(second) and all(map(_are_equal, first, second))
        elif isinstance(first, np.ndarray):
            equal = first.dtype == second.dtype and np.array_equal(first, second)
        elif hasattr(first, "equals"):  # Frames of pandas and Polars, and Arrow's tables.
            equal = first.equals(second)
        elif isinstance(first, dict):
            equal = first.keys() == second.keys() and all(
                _are_equal(part, second[key]) for key, part in first.items()
            )
        elif is_dataclass(first) or _is_its_attributes(first):
            equal = _are_equal(vars(first), vars(second))
        else:
            equal = first == second
        return bool(equal)
    except Exception:  # noqa: BLE001 - code of the caller's types
        return False


def _is_its_attributes(data: Data) -> bool:
    """Return whether data is of a class that only collects attributes, and has no `==`."""
    kind: Any = type(data)
    return kind.__eq__ is object.__eq__ and kind.__bases__ == (object,) and bool(vars(data))


def vector_pairs(size: int, sensitivity: float = 1.0) -> list[tuple[Floats, Floats]]:
    """Return the pairs of Ding and others (2018): answers change by at most the sensitivity."""
    ones, half = np.ones(size), size // 2
    first, others = np.arange(size) == 0, np.arange(size) < half
    # One answer changes; one against the rest; one half against the other; all change.
    moved = [
        *(np.where(first, a, b) for a, b in ((0.0, 1.0), (2.0, 1.0), (2.0, 0.0), (0.0, 2.0))),
        *(np.where(others, 2.0, 0.0), np.full(size, 2.0), np.zeros(size)),
    ]
    crossed = (np.where(others, 1.0, 0.0), np.where(others, 0.0, 1.0))
    pairs = [*((ones, vector) for vector in moved), crossed]
    scaled = [(a * sensitivity, b * sensitivity) for a, b in pairs]
    # Short vectors give duplicate pairs, and pairs with two equal members.
    by_bytes = {(a.tobytes(), b.tobytes()): (a, b) for a, b in scaled}
    return [pair for (bytes0, bytes1), pair in by_bytes.items() if bytes0 != bytes1]


def describe_relation(relation: str) -> str:
    """Describe a relation of rows: how two neighbours differ."""
    words = {ADDED: "added or removed", REPLACED: "replaced", ROWS: "added, removed or replaced"}
    return f"one row {words[relation]}"


def row_pairs(data: Data = None, relation: str = ROWS) -> list[Pair]:
    """Return data sets that differ in one row: removed, added, replaced, or one of these.

    Added rows are those of the data once more, and invented ones.
    """
    pairs = _pairs_of_bits() if data is None else _pairs_of_rows(data, relation)
    if relation == ROWS:
        return pairs
    chosen = [(a, b) for a, b in pairs if (len(a) == len(b)) == (relation == REPLACED)]
    if not chosen:
        raise ArgumentError("data must have two different rows, or numbers or texts to change.")
    return chosen


def _pairs_of_bits() -> list[Pair]:
    bases = [list(base) for base in _SMALL_DATA_SETS]
    added = [(base, [*base, extra]) for base in bases for extra in (0, 1)]
    replaced = [(base, [1 - base[0], *base[1:]]) for base in bases]
    return [([], [0]), ([], [1]), *added, *replaced]


def _pairs_of_rows(data: Data, relation: str) -> list[Pair]:
    """Return pairs of the data and data with one row more, less or replaced.

    Cells of a row are changed for the relation "replaced" only: of others, an added row has them.
    """
    rows = DataRows(data)
    take_rows, n = rows.take, len(data)
    if not n:
        raise ArgumentError("data must have at least one row to remove.")
    every, chosen = list(range(n)), rows_to_change(data)
    removed = [(data, take_rows([i for i in every if i != gone])) for gone in chosen]
    repeated = [(data, take_rows([*every, i])) for i in chosen]
    texts = [repr(rows.row(i)) for i in every]
    replaced = [
        (data, take_rows([*every[:gone], other, *every[gone + 1 :]]))
        for gone, other in zip(chosen, chosen[1:] + chosen[:1], strict=True)
        if texts[gone] != texts[other]
    ]
    make = rows.with_cells if relation == REPLACED else rows.with_row
    invented = [make(n - 1, cells) for cells in rows.invented_cells()]
    changed = [(data, other) for other in invented if other is not None]
    return removed + repeated + replaced + changed


def rows_to_change(data: Data) -> list[int]:
    """Return the indices of all rows, or of some: the ends, each column's extremes, and others."""
    n = len(data)
    if n <= _MOST_ROWS:
        return list(range(n))
    extremes = [0, n - 1]
    for column in DataRows(data).columns.values():
        if all(map(is_real, column)):
            extremes += [int(np.argmin(column)), int(np.argmax(column))]
        else:
            texts = list(map(repr, column))
            numbers = Counter(texts)
            extremes.append(min(range(n), key=lambda i: numbers[texts[i]]))  # The rarest.
    spread = (i * (n - 1) // (_MOST_ROWS - 1) for i in range(_MOST_ROWS))
    return list(dict.fromkeys([*extremes, *spread]))[:_MOST_ROWS]


def pairs_like(pair: Pair) -> list[Pair]:
    """Return pairs that differ like a pair, among other rows, and by rows with other numbers.

    The other rows are none, one, all twice, copies of the added one, or sorted up or down. Added
    rows have the numbers at which formats of numbers end. If the pair replaces a row, so do these.
    There are at most `MOST_PAIRS_LIKE`.

    >>> pairs_like(([2, 1], [2, 1, 3]))[:3]
    [([], [3]), ([2], [2, 3]), ([2, 1, 2, 1], [2, 1, 2, 1, 3])]
    """
    shorter, longer = map(DataRows, sorted(pair, key=len))
    n = len(longer)
    is_replaced = len(shorter) == n
    texts = [[repr(rows.row(i)) for i in range(len(rows))] for rows in (shorter, longer)]
    differing = (i for i, text in enumerate(texts[0]) if text != texts[1][i])
    changed = next(differing, n - 1)
    others = [i for i in range(n) if i != changed]
    bases: tuple[list[int], ...] = ([], others[:1], others * 2, [changed] * n)
    ordered = sorted(range(n), key=lambda i: _sort_key(longer.row(i)))
    orders = [([*base, changed], len(base)) for base in bases]
    orders += [(order, order.index(changed)) for order in (ordered, ordered[::-1])]
    like: list[tuple[Data | None, Data | None]] = []
    for order, k in orders:
        more = longer.take(order)
        if is_replaced:
            like.append((DataRows(more).with_cells(k, shorter.row(changed)), more))
        elif order != [*others, changed]:
            like.append((longer.take([*order[:k], *order[k + 1 :]]), more))
    make = longer.with_cells if is_replaced else longer.with_row
    like += [(longer.data, make(changed, cells)) for cells in _cells_at_ends(longer, changed)]
    return [(a, b) for a, b in like if a is not None and b is not None and not _are_equal(a, b)]


def _sort_key(row: Cells) -> list[tuple[bool, Any]]:
    return [(is_real(x), x if is_real(x) else repr(x)) for x in row.values()]


def _cells_at_ends(rows: DataRows, i: int) -> list[Cells]:
    """Return cells with the numbers at which formats end.

    They are for the columns in which row i has a number that no other row has, or else for all.
    """
    keys = rows.numeric_columns()
    own = [key for key in keys if rows.columns[key].count(rows.columns[key][i]) == 1]
    ends = [{key: rows.number(key, end) for key in own or keys} for end in _FORMAT_ENDS]
    return list({repr(cells): cells for cells in ends if cells}.values())


def pairs_of_values(
    sensitivity: float, dtype: np.dtype, *, only_multiples: bool = False
) -> list[ValuePair]:
    """Return the default pairs of values, or those that are multiples of the sensitivity.

    A target may round its value to the format that it releases, before it adds noise. Rounding
    would change the distance of a pair, so the values are numbers of that format. A pair that the
    format cannot represent is left out.

    >>> pairs_of_values(0.5, np.dtype(np.float64))[:6]
    [(0.0, 0.5), (0.5, 1.0), (3.5, 4.0), (21.0, 21.5), (-0.5, 0.0), (500.0, 500.5)]
    >>> pairs_of_values(0.1, np.dtype(np.float32))[0]
    (0.0, 0.09999999403953552)
    """
    number = _value_format(sensitivity, dtype)
    most = float(np.finfo(number).max)
    pairs = [
        _shrink_pair(number(low * sensitivity), number(high * sensitivity), sensitivity)
        for low, high in (_VALUES[:_MULTIPLES] if only_multiples else _VALUES)
        if math.isfinite(high * sensitivity) and abs(high * sensitivity) <= most
    ]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


def _value_format(sensitivity: float, dtype: np.dtype) -> type[np.floating]:
    """Return the format that the target releases, or float64 if the pairs exceed its range."""
    limits = np.finfo(dtype)
    fits = float(limits.smallest_normal) <= sensitivity <= float(limits.max) / _LARGEST_MULTIPLE
    return dtype.type if fits else np.float64


def search_pairs(
    target: Target, sensitivity: float, dtype: np.dtype, *, only_multiples: bool
) -> list[ValuePair]:
    """Return pairs around the value with the most unusual noise, if a value stands out.

    The search only chooses pairs: bounds are certified on other releases.
    """
    number = _value_format(sensitivity, dtype)
    most = float(np.finfo(number).max) / 2
    units = [unit for unit in _SEARCHED_UNITS if not only_multiples or unit == round(unit)]
    values = [unit * sensitivity for unit in units if abs(unit) * sensitivity <= most]
    noise: dict[float, Floats] = {}
    started = time.perf_counter()
    try:
        for value in dict.fromkeys(float(number(value)) for value in values):
            noise[value] = target(value, _RELEASES_EACH).astype(np.float64) - value
            if time.perf_counter() - started > _SEARCH_SECONDS:
                break
    except TargetError:
        pass  # The target may fail at these values; the default pairs are tried anyway.
    if len(noise) < 2:  # noqa: PLR2004 - one value cannot be compared
        return []
    ends = [
        (low, low + sensitivity)
        for value in _odd_values(noise)
        for low in (value - sensitivity, value)
    ]
    pairs = [_shrink_pair(number(low), number(high), sensitivity) for low, high in ends]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


def _odd_values(noise: Mapping[float, Floats]) -> list[float]:
    """Return values where the noise differs from that at others; none if all are alike.

    They are the one that stands out the most and the smallest that does, because a target may treat
    all larger values differently. If the largest stand out only together, one of them is returned.
    """
    by_size = sorted(noise, key=abs)
    p_values = {value: _p_value(noise, {value}) for value in noise}
    largest = {k: _p_value(noise, set(by_size[-k:])) for k in _LARGEST_VALUES if k < len(noise)}
    level = _FALSE_ALARM / (len(p_values) + len(largest))
    odd = [value for value in by_size if p_values[value] < level]
    if odd:
        return list(dict.fromkeys([min(odd, key=lambda value: p_values[value]), odd[0]]))
    together = [k for k in largest if largest[k] < level]
    # A quarter from the end, because some of these values may be like the others.
    return [by_size[-1 - min(together, key=lambda k: largest[k]) // 4]] if together else []


def _p_value(noise: Mapping[float, Floats], some: set[float]) -> float:
    """Return the p-value of the noise at some values, compared with that at others (Kolmogorov)."""
    inside = np.concatenate([noise[value] for value in noise if value in some])
    outside = np.concatenate([noise[value] for value in noise if value not in some])
    return float(stats.ks_2samp(inside, outside, method="asymp").pvalue)


def check_pairs(pairs: object, sensitivity: float) -> list[ValuePair]:
    """Return the caller's pairs of values as floats, or raise for an invalid pair.

    >>> check_pairs([(0.5, 1.5), (3, 2)], 1.0)
    [(0.5, 1.5), (3.0, 2.0)]
    """
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise ArgumentTypeError("pairs must be 'whole' or a list of pairs: [(0.5, 1.5)].")
    checked: list[ValuePair] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(is_real, pair)):  # noqa: PLR2004 - a pair
            raise ArgumentTypeError("pairs must be a list of pairs of numbers: [(0.5, 1.5)].")
        value0, value1 = float(pair[0]), float(pair[1])
        if not (math.isfinite(value0) and math.isfinite(value1)):
            reject("pairs", pair, "be finite")
        if value0 == value1:
            reject("pairs", pair, "be two different values")
        if abs(Fraction(value1) - Fraction(value0)) > Fraction(sensitivity):
            reject("pairs", pair, f"differ by the sensitivity, {sensitivity:g}, at most")
        checked.append((value0, value1))
    if not checked:
        raise ArgumentError("pairs must have at least one pair of values.")
    return checked


def _shrink_pair(value0: np.floating, value1: np.floating, sensitivity: float) -> ValuePair:
    """Move the value of larger magnitude towards the other until they differ by no more."""
    while Fraction(float(value1)) - Fraction(float(value0)) > Fraction(sensitivity):
        if abs(value0) > abs(value1):
            value0 = np.nextafter(value0, value1)
        else:
            value1 = np.nextafter(value1, value0)
    return float(value0), float(value1)
