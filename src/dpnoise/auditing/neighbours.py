"""Pairs for an audit: of data sets, or of values that differ by the sensitivity at most.

Callers give pairs of data sets one by one, or by the name of a relation.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing.programs import to_json_types
from dpnoise.auditing.targets.mechanisms import Data, Pair
from dpnoise.auditing.targets.target import Target, TargetError
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, check_integer, is_real, reject

ValuePair = tuple[float, float]

VECTOR: Final = "vector"
ROWS: Final = "rows"
_MOST_ROWS: Final = 12  # The most rows of a data set that are removed, repeated and replaced.
# Numbers at which formats of integers end, which one of the rows to add has.
_FORMAT_ENDS: Final = (0, *(2**k for k in (7, 8, 15, 16, 31, 32, 53)), -(2**15), -(2**31))
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
    data sets that differ in one row, added to `data`, removed or replaced.

    >>> neighbours_of("vector", 3, 1.0, None)[2]
    (array([1., 1., 1.]), array([2., 0., 0.]))
    >>> neighbours_of("rows", 1, 1.0, ["ann", "bob"])[:2]
    [(['ann', 'bob'], ['bob']), (['ann', 'bob'], ['ann'])]
    """
    if isinstance(neighbours, str):
        if neighbours == VECTOR:
            return vector_pairs(check_integer("size", size, least=1), sensitivity)
        if neighbours == ROWS:
            return row_pairs(data)
        reject("neighbours", neighbours, "be 'vector', 'rows', or a list of pairs of data sets")
    if not isinstance(neighbours, Iterable):
        accepted = "'vector', 'rows', or a list of pairs: [(a, b)]"
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


def row_pairs(data: Data = None) -> list[Pair]:
    """Return data sets that differ in one row: removed, added once more, replaced, or invented."""
    if data is None:
        bases = [list(base) for base in _SMALL_DATA_SETS]
        added = [(base, [*base, extra]) for base in bases for extra in (0, 1)]
        replaced = [(base, [1 - base[0], *base[1:]]) for base in bases]
        return [([], [0]), ([], [1]), *added, *replaced]
    take_rows = _row_getter(data)
    n = len(data)
    if not n:
        raise ArgumentError("data must have at least one row to remove.")
    every, chosen = list(range(n)), rows_to_change(data)
    removed = [(data, take_rows([i for i in every if i != gone])) for gone in chosen]
    repeated = [(data, take_rows([*every, i])) for i in chosen]
    texts = list(map(repr, zip(*_columns(data), strict=True)))
    replaced = [
        (data, take_rows([*every[:gone], other, *every[gone + 1 :]]))
        for gone, other in zip(chosen, chosen[1:] + chosen[:1], strict=True)
        if texts[gone] != texts[other]
    ]
    outliers = [(data, more) for more in _with_row(data)]
    return removed + repeated + replaced + _with_missing(data) + outliers


def rows_to_change(data: Data) -> list[int]:
    """Return the indices of all rows, or of some: the ends, each column's extremes, and others."""
    n = len(data)
    if n <= _MOST_ROWS:
        return list(range(n))
    extremes = [0, n - 1]
    for column in _columns(data):
        if all(map(is_real, column)):
            extremes += [int(np.argmin(column)), int(np.argmax(column))]
        else:
            texts = list(map(repr, column))
            numbers = Counter(texts)
            extremes.append(min(range(n), key=lambda i: numbers[texts[i]]))  # The rarest.
    spread = (i * (n - 1) // (_MOST_ROWS - 1) for i in range(_MOST_ROWS))
    return list(dict.fromkeys([*extremes, *spread]))[:_MOST_ROWS]


def pairs_like(pair: Pair) -> list[Pair]:
    """Return pairs with the row that the pair adds, among other rows, and with other added rows.

    The other rows are none, one, all twice, copies of the added one, or sorted up or down. Added
    rows have the numbers at which formats of integers end. There are at most `MOST_PAIRS_LIKE`.

    >>> pairs_like(([2, 1], [2, 1, 3]))[:3]
    [([], [3]), ([2], [2, 3]), ([2, 1, 2, 1], [2, 1, 2, 1, 3])]
    """
    shorter, longer = sorted(pair, key=len)
    if len(longer) != len(shorter) + 1:
        return []
    take_rows, n = _row_getter(longer), len(longer)
    rows = list(zip(*_columns(longer), strict=True))
    rest = list(zip(*_columns(shorter), strict=True)) if len(shorter) else []
    added = next((i for i, row in enumerate(rest) if repr(row) != repr(rows[i])), n - 1)
    others = [i for i in range(n) if i != added]
    ordered = sorted(
        range(n), key=lambda i: [(is_real(x), x if is_real(x) else repr(x)) for x in rows[i]]
    )
    moved = [([i for i in order if i != added], order) for order in (ordered, ordered[::-1])]
    same = [(base, [*base, added]) for base in ([], others[:1], others * 2, [added] * n)]
    like = [(take_rows(i), take_rows(j)) for i, j in same + moved if j != [*others, added]]
    return like + [(longer, more) for number in _FORMAT_ENDS for more in _with_row(longer, number)]


def _columns(data: Data) -> list[list[Data]]:
    """Return the columns of rows, as lists; a row without parts is one of them."""
    rows = to_json_types(data)
    keys: list[Data] = [None]
    if isinstance(rows[0], dict):
        keys = list(rows[0])
    elif isinstance(rows[0], list | tuple):
        keys = list(range(min(map(len, rows))))
    return [[row if key is None else row[key] for row in rows] for key in keys]


def _with_missing(data: Data) -> list[Pair]:
    """Return a pair with one more row, in which floats are NaN and texts are empty.

    Only a list, an array of NumPy or a frame of pandas has such a row, if it has floats or texts.
    """
    n = len(data)
    if isinstance(data, list):
        rows = ((row, _without_values(row)) for row in reversed(data))
        changed = (missing for row, missing in rows if repr(missing) != repr(row))
        return [(data, [*data, missing]) for missing in changed][:1]
    if isinstance(data, np.ndarray) and data.dtype.kind in "fU":
        empty = np.full((1, *data.shape[1:]), np.nan if data.dtype.kind == "f" else "")
        return [(data, np.concatenate([data, empty.astype(data.dtype)]))]
    if hasattr(data, "iloc") and hasattr(data, "columns") and data.columns.is_unique:
        more = data.iloc[[*range(n), n - 1]].reset_index(drop=True)
        for name in more:
            if getattr(more[name].dtype, "kind", "O") in "fO":
                more.loc[n, name] = None
        return [(data, more)] if more.iloc[-1].isna().any() else []
    return []


def _without_values(row: Data) -> Data:
    """Return a row with NaN in place of its floats, and empty texts.

    >>> _without_values({"age": 31.5, "city": "cork", "rooms": 2})
    {'age': nan, 'city': '', 'rooms': 2}
    """
    if isinstance(row, dict):
        return {key: _without_values(part) for key, part in row.items()}
    if isinstance(row, list | tuple):
        make = getattr(row, "_make", type(row))  # Named tuples take their parts one by one.
        return make(map(_without_values, row))
    if isinstance(row, float):
        return math.nan
    return "" if isinstance(row, str) else row


def _with_row(data: Data, number: int | None = None) -> list[Data]:
    """Return the data with one more row, whose numbers are this one, or larger than all others.

    Only numbers in a list, in an array of NumPy or in a frame of pandas have such a row. Numbers
    beyond the type of a column become the largest or the least that it has.
    """
    n = len(data)
    if isinstance(data, list) and all(map(is_real, data)):
        return [[*data, 10 * max(map(abs, data)) + 1 if number is None else number]]
    if isinstance(data, np.ndarray) and data.dtype.kind in "iuf":
        added = [_number_of(column, number) for column in data.reshape(n, -1).T]
        row = np.array(added, dtype=data.dtype).reshape(1, *data.shape[1:])
        return [np.concatenate([data, row])]
    if hasattr(data, "iloc") and hasattr(data, "columns") and data.columns.is_unique:
        more = data.iloc[[*range(n), n - 1]].reset_index(drop=True)
        numeric = [name for name in more if getattr(more[name].dtype, "kind", "") in "iuf"]
        for name in numeric:
            more.loc[n, name] = _number_of(more[name].to_numpy(), number)
        return [more] if numeric else []
    return []


def _number_of(column: NDArray[Any], number: int | None) -> float | int:
    """Return a number of the column's type; by default ten times its largest if there is."""
    is_whole = column.dtype.kind in "iu"
    limits: Any = np.iinfo(column.dtype) if is_whole else np.finfo(column.dtype)
    if number is not None:
        inside = max(limits.min, min(number, limits.max))
        return int(inside) if is_whole else float(inside)
    finite = column[np.isfinite(column)].astype(np.float64)
    beyond = min(10 * np.abs(finite).max(initial=0.0) + 1, float(limits.max) / 2)
    return int(beyond) if is_whole else beyond


def _row_getter(data: Data) -> Callable[[list[int]], Data]:
    """Return a function that selects rows of a data set by their indices."""
    if hasattr(data, "iloc"):
        return lambda indices: data.iloc[indices]
    if isinstance(data, list):
        return lambda indices: [data[i] for i in indices]
    if isinstance(data, tuple):
        return lambda indices: tuple(data[i] for i in indices)
    if hasattr(data, "num_rows") and hasattr(data, "take"):  # Arrow's tables.
        return lambda indices: data.take(np.array(indices, dtype=np.int64))
    if hasattr(data, "shape") and len(data.shape):  # Arrays, and frames of Polars.
        return lambda indices: data[np.array(indices, dtype=np.int64)]
    raise ArgumentTypeError("data must be rows: a list, an array or a frame.")


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
