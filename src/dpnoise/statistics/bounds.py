"""Declared bounds: of a value, in whole grids, and of what one person adds to a statistic.

The grid and the sensitivities come from them, never from the data. A person is in at most k groups,
and adds to each what at most m rows can: docs/persons.md has the proofs. Without persons a row is
its own: k = m = 1.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from dpnoise.core.errors import check_bound, check_power_of_two, reject
from dpnoise.release.calibration import EXTREME, quotient_down
from dpnoise.statistics.composition import float_up

ADD_REMOVE: Final = "add-remove"
REPLACE: Final = "replace"
NEIGHBOURS: Final = (ADD_REMOVE, REPLACE)
CELLS: Final = 2**16  # At most so many candidates of a quantile.
_GRIDS_IN_A_SUM: Final = 2.0**32  # The default grid of a sum is about the larger bound over this.
_GRIDS_IN_A_SQUARE: Final = 2.0**26  # That of squares: 2^26 squared times 2^10 rows fit in 62 bits.
_MOST_IN_A_SUM: Final = 2**40
_MOST_IN_A_CELL: Final = 2**51  # A float below it is floored exactly after 1/2 is added.
_SMALLEST: Final = 2.0**-1000


@dataclass(frozen=True)
class Bounds:
    """Declared bounds, moved inward to multiples of a power of two."""

    lower: float
    upper: float
    grid: float

    @classmethod
    def of_sum(cls, lower: float, upper: float, grid: float | None = None) -> "Bounds":
        """Check the bounds of a sum; its default grid is the larger bound over 2^32."""
        return cls._of_sums(lower, upper, grid, _GRIDS_IN_A_SUM, _MOST_IN_A_SUM)

    @classmethod
    def of_squares(cls, lower: float, upper: float, grid: float | None = None) -> "Bounds":
        """Check the bounds of a sum of squares: at most 2^26 grids in the larger."""
        return cls._of_sums(lower, upper, grid, _GRIDS_IN_A_SQUARE, int(_GRIDS_IN_A_SQUARE))

    @classmethod
    def of_cells(cls, lower: float, upper: float, grid: float | None = None) -> "Bounds":
        """Check the bounds of a quantile: at most 65,536 candidates, by default over 32,768.

        The grid follows the width of the bounds, but for bounds so close together that floats
        between them are further apart.
        """
        lower, upper = _checked(lower, upper)
        largest = max(abs(lower), abs(upper))
        finest = largest / (_MOST_IN_A_CELL - 1)
        bounds = cls(lower, upper, _power(max((upper - lower) / (CELLS - 1), finest), grid))
        bounds._check(largest, _MOST_IN_A_CELL)
        if bounds.cells > CELLS:
            rule = f"leave at most 65,536 candidates, not {bounds.cells:,}"
            reject("grid", bounds.grid, rule)
        return bounds

    @classmethod
    def _of_sums(
        cls, lower: float, upper: float, grid: float | None, grids: float, most: int
    ) -> "Bounds":
        lower, upper = _checked(lower, upper)
        largest = max(abs(lower), abs(upper))
        bounds = cls(lower, upper, _power(largest / grids, grid))
        bounds._check(largest, most)
        return bounds

    def _check(self, largest: float, most: int) -> None:
        if not 1 / EXTREME <= self.grid <= EXTREME:
            reject("grid", self.grid, "be between 2^-960 and 2^960: measure in another unit")
        if self.least > self.most:
            rule = f"have a multiple between lower={self.lower} and upper={self.upper}"
            reject("grid", self.grid, rule)
        if largest / self.grid > most:
            finest, power = largest / most, most.bit_length() - 1
            rule = f"be at least the larger bound over 2^{power}, {finest:g}"
            reject("grid", self.grid, rule)

    @property
    def least(self) -> int:
        """The lower bound in whole grids."""
        return math.ceil(Fraction(self.lower) / Fraction(self.grid))

    @property
    def most(self) -> int:
        """The upper bound in whole grids."""
        return math.floor(Fraction(self.upper) / Fraction(self.grid))

    @property
    def cells(self) -> int:
        """How many multiples of the grid lie between the bounds."""
        return self.most - self.least + 1

    @property
    def largest(self) -> int:
        """How far one row can move a sum, in whole grids."""
        return max(abs(self.least), abs(self.most), 1)

    @property
    def span(self) -> int:
        """How far apart sums of one row, or of none, can be, in whole grids; at least 1."""
        return max(self.most, 0) - min(self.least, 0) or 1

    @property
    def width(self) -> int:
        """How far apart the bounds are, in whole grids; at least 1."""
        return max(self.most - self.least, 1)


def _checked(lower: object, upper: object) -> tuple[float, float]:
    """Return two declared bounds, each an int or a float, the lower one first."""
    least, most = check_bound("lower", lower), check_bound("upper", upper)
    for name, bound in (("lower", least), ("upper", most)):
        if bound is None:
            reject(name, bound, "be a number")
    assert least is not None and most is not None  # noqa: S101, PT018 - for the type checker
    if least >= most:
        reject("lower", least, f"be below upper={most}")
    if math.isinf(float(most) - float(least)):
        reject("upper", most, "be less than 1e308 above lower: measure in another unit")
    return least, most


def _power(at_least: float, given: float | None) -> float:
    """Return the given grid, or the smallest power of two that is at least this."""
    if given is not None:
        return check_power_of_two("grid", given)
    # What is so small that it underflows is refused later.
    return 2.0 ** math.ceil(math.log2(max(at_least, _SMALLEST)))


class Move(NamedTuple):
    """How far one person moves one group, as whole numbers.

    `alone` if the person comes or goes, in L1 and so in L2. If another takes the person's place in
    the same group, `swapped` in L1, and the root of `swapped_squared` in L2.
    """

    alone: int
    swapped: int
    swapped_squared: int

    @classmethod
    def of_number(cls, alone: int, swapped: int) -> "Move":
        """Return the move of one number."""
        return cls(alone, swapped, swapped * swapped)

    @classmethod
    def of_parts(cls, alone: int) -> "Move":
        """Return the move of several numbers that no person lowers: what goes and what comes add.

        Vectors a and b without negative numbers have |a - b|^2 <= |a|^2 + |b|^2.
        """
        return cls(alone, 2 * alone, 2 * alone * alone)


@dataclass(frozen=True)
class Reach:
    """How many groups one person is in at most, with how many rows, and who neighbours are.

    Examples
    --------
    >>> visits = Reach(groups=4, rows=3, there=20)
    >>> visits.l1(Move.of_number(3, 3)), visits.l2(Move.of_number(3, 3))
    (12.0, 6.0)
    """

    groups: int = 1  # The bound k.
    rows: int = 1  # The bound m, in each group.
    replace: bool = False  # Whether neighbours have one person in another's place.
    there: int = 1  # How many groups there are.

    def l1(self, move: Move) -> float:
        """Return how far all groups move together: the sum of all distances, rounded up."""
        if not self.replace:
            return float_up(Fraction(self.groups * move.alone))
        moved = (
            both * move.swapped + 2 * (self.groups - both) * move.alone for both in self._in_both
        )
        return float_up(Fraction(max(moved)))

    def l2(self, move: Move) -> float:
        """Return how far all groups move together: the root of the sum of squares, rounded up."""
        alone = move.alone * move.alone
        if not self.replace:
            return root_up(self.groups * alone)
        moved = (
            both * move.swapped_squared + 2 * (self.groups - both) * alone for both in self._in_both
        )
        return root_up(max(moved))

    def part_of_selection(self, epsilon: float) -> float:
        """Return epsilon for one row of one group, if one person may cost `epsilon` there.

        A score moves by as much as all rows of a person, and twice that if another has as many.
        """
        return quotient_down(epsilon, self.rows * (2 if self.replace else 1))

    @property
    def _in_both(self) -> tuple[int, int]:
        """The least and the most groups that a person and the one in their place may share."""
        return max(0, 2 * self.groups - self.there), self.groups


ONE_ROW: Final = Reach()


def root_up(squared: int) -> float:
    """Return the smallest float that is at least the root of a positive integer."""
    scaled = 2 * max(0, 110 - squared.bit_length())
    return float_up(Fraction(math.isqrt((squared << scaled) - 1) + 1, 2 ** (scaled // 2)))
