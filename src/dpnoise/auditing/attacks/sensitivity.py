"""Floating-point sums that change by far more than the sensitivity of their noise.

Noise for a sum is scaled to the largest change of the *real* sum by one row. A float sum rounds at
each addition, and one row can change the roundings. Casacuberta, Shoemate, Vadhan and Wagaman
(2022) found this in most libraries. `find_neighbours` finds data sets for a given float sum, also
for the correctly rounded `math.fsum`. One row changes by upper - lower, and the sum by a whole step
between floats. Large bounds make that step large; close bounds make the sensitivity small.

`dpnoise.statistics.exact_sum` is the defence: whole numbers of a grid add without rounding, so one
row changes it exactly like the real sum, in every order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.errors import check_integer

Data = NDArray[np.float64]
SumFunction = Callable[[Data], SupportsFloat]

# Bounds that are large and close to each other. Examples are times in milliseconds since 1970
# within one known millisecond, or any quantity known to one part in 10^12.
_LOWER: Final = 10**12
_MAX_BOUND: Final = 2**40  # `exact_sum` accepts a grid of 1 for integers up to this magnitude.
# Enough rows for a large step between floats, few enough to sum in an instant.
_ROWS: Final = 2**20


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that a private sum must not distinguish."""

    relation: str  # How they differ, in a word: "changed".
    data: tuple[Data, Data] = field(repr=False)
    lower: float
    upper: float
    sensitivity: float  # The largest change of the real sum by one row within the bounds.
    grid: float = 1.0  # A power of two of which all rows are multiples.

    def real_sum(self, data: Data) -> Fraction:
        """Return the real sum, by `exact_sum`."""
        from dpnoise.statistics import exact_sum  # noqa: PLC0415 - audits need no such extra

        return exact_sum(data, self.lower, self.upper, self.grid)

    def gap(self, sum_function: SumFunction) -> float:
        """Return the difference of a sum between the two, to compare with `sensitivity`."""
        first, second = (_fraction(sum_function(data)) for data in self.data)
        return float(abs(first - second))


def _fraction(number: SupportsFloat) -> Fraction:
    return number if isinstance(number, Fraction) else Fraction(float(number))


def find_neighbours(
    sum_function: SumFunction, lower: int = _LOWER, upper: int = _LOWER + 1, rows: int = _ROWS
) -> Neighbours:
    """Find data sets that differ in one row and whose sums differ by a step between floats.

    The first t rows are `upper`, all others `lower`. Float sums never fall as t grows, so bisection
    finds a t where one more row makes the sum jump. The sum function is a black box.

    >>> neighbours = find_neighbours(np.sum)
    >>> neighbours.sensitivity, neighbours.gap(np.sum), neighbours.gap(neighbours.real_sum)
    (1.0, 128.0, 1.0)
    """
    lower = check_integer("lower", lower, least=-_MAX_BOUND, most=_MAX_BOUND)
    upper = check_integer("upper", upper, least=lower + 1, most=_MAX_BOUND)
    low, high = 0, check_integer("rows", rows, least=1)

    def data_with(t: int) -> Data:
        return np.repeat([float(upper), float(lower)], [t, rows - t])

    def sum_of(t: int) -> Fraction:
        return _fraction(sum_function(data_with(t)))

    bottom, top = sum_of(low), sum_of(high)
    while high - low > 1:
        middle = (low + high) // 2
        value = sum_of(middle)
        # Keep the half in which the sum grows faster.
        if (value - bottom) * (high - middle) > (top - value) * (middle - low):
            high, top = middle, value
        else:
            low, bottom = middle, value
    data = data_with(low), data_with(high)
    return Neighbours("changed", data, float(lower), float(upper), float(upper - lower))


def sum_target(
    neighbours: Neighbours,
    release: Callable[[Data, int], ArrayLike],
    *,
    epsilon: float = 1.0,
    name: str = "sum",
) -> Target:
    """Make a target that releases the sum of one data set at value 0, and of the other at value 1.

    `release` takes (data, n) and returns n private sums. A public number near the sums is
    subtracted: a large integer would lose its last digits in the float64 that attacks use.
    """
    origin = round(float(neighbours.real_sum(neighbours.data[0])))

    def release_difference(value: float, n: int) -> ArrayLike:
        sums: Releases = np.asarray(release(neighbours.data[int(value)], n))
        return sums - sums.dtype.type(origin)

    return Target(name, "laplace", neighbours.sensitivity / epsilon, release_difference)


@dataclass(frozen=True)
class SensitivityAttack(Attack):
    """Distinguishes two data sets by their sums, for targets made by `sum_target`.

    It needs only outputs: it compares them with the middle of two medians.

    Examples
    --------
    >>> attack = SensitivityAttack()
    >>> outcome = attack(attack.target(epsilon=1.0), n=100)
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
        """Return a target that adds Laplace noise to `np.sum` of neighbouring data sets."""
        neighbours, epsilon = find_neighbours(np.sum), claims["epsilon"]
        rng = np.random.default_rng()

        def release(data: Data, n: int) -> ArrayLike:
            return rng.laplace(np.sum(data), neighbours.sensitivity / epsilon, n)

        return sum_target(neighbours, release, epsilon=epsilon, name=self.default_target)

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that a release is on value0's side of the middle of two medians."""
        median0, median1 = (float(np.median(target(value, n))) for value in (value0, value1))
        middle = (median0 + median1) / 2
        if median0 == median1:
            return base.impossible_event(f"both medians are {middle:g}")
        return base.threshold_event(middle, above=median0 > median1)
