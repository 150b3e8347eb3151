"""Sums in floating point that move by far more than their noise is made for.

Noise for a sum is scaled to how far one row can move the *real* sum. A float sum rounds at each
addition, and one row can decide how. Casacuberta, Shoemate, Vadhan and Wagaman (2022) found this in
most libraries. The data sets here are found, or built, for a given way of adding:

changed
    One row changes by upper - lower, and the sum by a whole step between floats, which is larger
    where the bounds are large and close to each other. For every way of adding in floats, the
    correctly rounded `math.fsum` included.
reordered
    The same rows in another order: the real sum does not move at all.
removed
    One row is removed, which moves the partial sums across a power of two, where all rows that
    follow are rounded otherwise. With k digits, n rows move the sum by about n^2 / 2^k times the
    bound: float32 needs some thousands of rows for it, float64 a hundred million.

`dpnoise.statistics.exact_sum` is the defence: whole numbers of a grid add without rounding, so one
row moves it by no more than the real sum, in every order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Event, Flags, Progress, never, silent
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.errors import check_integer

Data = NDArray[Any]
Sum = Callable[[Data], Any]

# Bounds that are large and close to each other: times in milliseconds since 1970 that all fall into
# one known millisecond, or any quantity that is known to one part in a million million.
_LOWER: Final = 10**12
_MOST: Final = 2**40
_ROWS: Final = 2**20


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that a private sum must not tell apart.

    Parameters
    ----------
    relation
        How they differ: "changed", "reordered" or "removed".
    data
        The two data sets.
    lower, upper
        Bounds of all rows.
    sensitivity
        How far one row, changed or removed, moves the real sum of any data within the bounds.
    grid
        A power of two of which all rows are multiples.
    """

    relation: str
    data: tuple[Data, Data] = field(repr=False)
    lower: float
    upper: float
    sensitivity: float
    grid: float

    def real_sum(self, data: Data) -> Fraction:
        """Return the real sum, by `exact_sum`."""
        from dpnoise.statistics import exact_sum  # noqa: PLC0415 - audits need no such extra

        return exact_sum(data, self.lower, self.upper, self.grid)

    def gap(self, total: Sum) -> float:
        """Return how far a sum moves between the two; compare it with `sensitivity`."""
        first, second = (_fraction(total(data)) for data in self.data)
        return float(abs(first - second))


def _fraction(number: Any) -> Fraction:
    return number if isinstance(number, Fraction) else Fraction(float(number))


def left_to_right(data: Data) -> Any:
    """Add the rows one after the other, in their own format."""
    return np.add.accumulate(data)[-1]


def changed(
    total: Sum, lower: int = _LOWER, upper: int = _LOWER + 1, rows: int = _ROWS
) -> Neighbours:
    """Find data sets that differ in one row and whose sums differ by a step between floats.

    The first t rows are `upper`, all others `lower`. Float sums never fall as t grows, so bisection
    finds a t at which one more row makes the sum jump; the sum function is a black box.

    Examples
    --------
    >>> neighbours = changed(np.sum)
    >>> neighbours.sensitivity, neighbours.gap(np.sum), neighbours.gap(neighbours.real_sum)
    (1.0, 128.0, 1.0)
    """
    bounds = _checked(lower, upper)
    low, high = 0, check_integer("rows", rows, least=1)

    def sum_of(t: int) -> Fraction:
        return _fraction(total(_rows_at(np.arange(t), rows, *bounds)))

    bottom, top = sum_of(low), sum_of(high)
    while high - low > 1:
        middle = (low + high) // 2
        value = sum_of(middle)
        # Keep the half in which the sum grows faster.
        if (value - bottom) * (high - middle) > (top - value) * (middle - low):
            high, top = middle, value
        else:
            low, bottom = middle, value
    fewer, more = (_rows_at(np.arange(t), rows, *bounds) for t in (low, high))
    return Neighbours("changed", (fewer, more), *bounds, float(upper - lower), 1.0)


def reordered(
    total: Sum, lower: int = _LOWER, upper: int = _LOWER + 1, rows: int = _ROWS
) -> Neighbours:
    """Find two orders of the same rows whose sums differ.

    Some rows are `upper`, all others `lower`; the former come first, last or evenly spread. Of all
    numbers 3 * 2^k of such rows, the one with the largest difference is taken.

    Examples
    --------
    >>> neighbours = reordered(left_to_right, rows=2**16)
    >>> neighbours.gap(left_to_right) > 1000 * neighbours.sensitivity
    True
    """
    bounds = _checked(lower, upper)
    check_integer("rows", rows, least=4)

    def extremes(t: int) -> tuple[Fraction, Data, Data]:
        first = np.arange(t)
        orders = [
            _rows_at(at, rows, *bounds) for at in (first, rows - 1 - first, first * rows // t)
        ]
        sums = [_fraction(total(order)) for order in orders]
        least, most = min(sums), max(sums)
        return most - least, orders[sums.index(least)], orders[sums.index(most)]

    numbers = (3 * 2**k for k in range((rows // 3).bit_length()))
    _, data0, data1 = max(map(extremes, numbers), key=lambda found: found[0])
    return Neighbours("reordered", (data0, data1), *bounds, float(upper - lower), 1.0)


def _checked(lower: int, upper: int) -> tuple[float, float]:
    """Return the bounds, which are integers for which `exact_sum` takes a grid of 1."""
    least = check_integer("lower", lower, least=-_MOST, most=_MOST)
    return float(least), float(check_integer("upper", upper, least=least + 1, most=_MOST))


def _rows_at(places: NDArray[np.intp], rows: int, lower: float, upper: float) -> Data:
    """Return rows of `lower` with `upper` at these places."""
    data = np.full(rows, lower)
    data[places] = upper
    return data


def removed(pairs: int = 2**18) -> Neighbours:
    """Build float32 data sets that differ by one row, for addition from left to right.

    4096 rows of 4096 make 2^24, from where on floats are 2 apart; without one of them the sum
    stays below, where they are 1 apart. Then come pairs of rows 1.25 and -0.75. From 2^24 on each
    pair is rounded to +2 and -0, below to +1 and -1.

    Examples
    --------
    >>> neighbours = removed()
    >>> neighbours.sensitivity, neighbours.gap(left_to_right), neighbours.gap(neighbours.real_sum)
    (4096.0, 528384.0, 4096.0)
    """
    count = check_integer("pairs", pairs, least=1, most=2**23)
    large = np.full(4096, 4096.0, dtype=np.float32)
    small = np.tile(np.array([1.25, -0.75], dtype=np.float32), count)
    data = np.concatenate([large, small])
    return Neighbours("removed", (data, data[1:]), -4096.0, 4096.0, 4096.0, 0.25)


def sum_target(
    neighbours: Neighbours,
    release: Callable[[Data, int], Any],
    *,
    epsilon: float = 1.0,
    name: str = "sum",
) -> Target:
    """Make a target whose values 0 and 1 are the two data sets.

    Parameters
    ----------
    neighbours
        The data sets.
    release
        (data, n) -> n private sums of the data, with the noise that neighbours.sensitivity and
        epsilon ask for. It is shown after a public number near the sums was subtracted: a large
        integer would lose its last digits in the float64 that attacks look at.
    epsilon
        What the target claims.
    name
        As it is shown.
    """
    origin = round(float(neighbours.real_sum(neighbours.data[0])))

    def released(value: float, n: int) -> Any:
        sums = np.asarray(release(neighbours.data[int(value)], n))
        return sums - sums.dtype.type(origin)

    return Target(name, "laplace", neighbours.sensitivity / epsilon, released)


@dataclass(frozen=True)
class Sensitivity(Attack):
    """Tells two data sets apart by their sums, for targets made by `sum_target`.

    It needs no more than outputs: it looks on which side of the middle of two medians they fall.

    Examples
    --------
    >>> rng = np.random.default_rng()
    >>> neighbours = changed(np.sum)
    >>> target = sum_target(neighbours, lambda data, n: rng.laplace(np.sum(data), 1.0, n))
    >>> outcome = Sensitivity()(target, n=100)
    >>> outcome.at0.rate, outcome.at1.rate
    (1.0, 0.0)
    """

    name = "sensitivity"
    access = OUTPUTS
    breaks = "float sums, with noise for the sensitivity of real sums"
    source = "Casacuberta, Shoemate, Vadhan and Wagaman 2022"
    default_target = "numpy.sum"
    in_audit = False

    def target(self, **claims: float) -> Target:
        """Return NumPy's sum of the data sets of `changed`, with noise for their sensitivity."""
        neighbours = changed(np.sum)
        rng = np.random.default_rng()
        scale = neighbours.sensitivity / claims["epsilon"]
        return sum_target(
            neighbours,
            lambda data, n: rng.laplace(np.sum(data), scale, n),
            epsilon=claims["epsilon"],
            name=self.default_target,
        )

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event on value0's side of the middle of the two medians."""
        median0, median1 = (float(np.median(target(value, n))) for value in (value0, value1))
        middle = (median0 + median1) / 2
        if median0 == median1:
            return never(f"both medians are {middle:g}")

        def holds(y: Releases) -> Flags:
            return np.asarray(y < middle if median0 < median1 else y > middle, dtype=np.bool_)

        return Event(f"y {'<' if median0 < median1 else '>'} {middle:g}", holds)
