"""Declared bounds: of a value, in whole grids, and of the contribution of one person.

The grid and the sensitivities come from these bounds, never from the data. A person is in at most k
groups, with at most m rows in each and t in all: docs/statistics-proofs.md has the proofs. If rows
have no persons, the privacy unit is one row: k = m = 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from dpnoise.core.errors import check_bound, check_power_of_two, is_real, reject, reject_type
from dpnoise.release.calibration import EXTREME, quotient_down
from dpnoise.statistics.composition import float_up

ADD_REMOVE: Final = "add-remove"
REPLACE: Final = "replace"
NEIGHBOURS: Final = (ADD_REMOVE, REPLACE)
CELLS: Final = 2**16  # The most candidates of a quantile.
_GRIDS_IN_A_SUM: Final = 2.0**32  # The default grid of a sum is about the larger bound over this.
_GRIDS_IN_A_SQUARE: Final = 2.0**26  # Squares of 2^26 from 2^10 rows add up to 62 bits.
_MOST_IN_A_SUM: Final = 2**40  # Values below this many grids from 2^20 rows add up to 60 bits.
_MOST_IN_A_CELL: Final = 2**51  # Adding 1/2 to a smaller float is exact, and so is its floor.
# The least distance of whole bounds between which a quantile is a whole number by default. The
# rounding is then at most 1 % of it, and the values are mostly whole numbers, such as ages.
_WHOLE_WIDTH: Final = 50
_SMALLEST: Final = 2.0**-1000  # Avoids the logarithm of 0; grids this small are rejected.


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
        """Check the bounds of a quantile: at most 65,536 candidates.

        The grid depends on the width of the bounds, and leaves over 32,768 candidates. If the
        bounds are closer together than neighbouring floats, it depends on their size. Between whole
        bounds that are far apart, such as those of ages, the candidates are whole numbers.
        """
        lower, upper = _check_pair(lower, upper)
        largest = max(abs(lower), abs(upper))
        finest = largest / (_MOST_IN_A_CELL - 1)
        if lower % 1 == upper % 1 == 0 and upper - lower >= _WHOLE_WIDTH:
            finest = max(finest, 1.0)
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
        lower, upper = _check_pair(lower, upper)
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
        """The number of multiples of the grid between the bounds."""
        return self.most - self.least + 1

    @property
    def largest(self) -> int:
        """The most that one row can change a sum by, in whole grids."""
        return max(abs(self.least), abs(self.most), 1)

    @property
    def span(self) -> int:
        """The largest difference between sums of at most one row, in whole grids; at least 1."""
        return max(self.most, 0) - min(self.least, 0) or 1

    @property
    def width(self) -> int:
        """The distance between the bounds, in whole grids; at least 1."""
        return max(self.most - self.least, 1)


def _check_pair(lower: object, upper: object) -> tuple[float, float]:
    """Return the lower and the upper bound as numbers; raise unless they are valid."""
    for name, bound in (("lower", lower), ("upper", upper)):
        if not is_real(bound):
            reject_type(name, bound, "be a number")
    least, most = check_bound("lower", lower), check_bound("upper", upper)
    assert least is not None and most is not None  # noqa: S101, PT018 - for the type checker
    if least >= most:
        reject("lower", least, f"be below upper={most}")
    if math.isinf(float(most) - float(least)):
        reject("upper", most, "be less than 1e308 above lower: measure in another unit")
    return least, most


def _power(at_least: float, grid: float | None) -> float:
    """Return the grid if there is one, else the smallest power of two from `at_least` on."""
    if grid is not None:
        return check_power_of_two("grid", grid)
    # A grid that underflows is rejected later.
    return 2.0 ** math.ceil(math.log2(max(at_least, _SMALLEST)))


class RowChange(NamedTuple):
    """The change that one row can cause in its group, as integers.

    The r rows of a person change a group by at most `added * r`, in L1 and so in L2. If s rows of
    another person replace them there, each pair of rows changes it by at most `swapped` in L1.
    """

    added: int
    swapped: int
    is_number: bool  # Whether the change is in one number, so that L2 is L1; else in several sums.

    @classmethod
    def of_number(cls, added: int, swapped: int) -> "RowChange":
        """Return the change of a single number."""
        return cls(added, swapped, is_number=True)

    @classmethod
    def of_sums(cls, added: int) -> "RowChange":
        """Return the change of several sums that no row can lower.

        If one person replaces another, their contributions add up. Vectors a and b without negative
        numbers have |a - b|^2 <= |a|^2 + |b|^2.
        """
        return cls(added, 2 * added, is_number=False)

    def l1(self, rows: int, replacing: int) -> int:
        """Return the largest change in L1 if `replacing` rows of another person replace `rows`."""
        fewer, more = sorted((rows, replacing))
        return self.added * (more - fewer) + self.swapped * fewer

    def l2_squared(self, rows: int, replacing: int) -> int:
        """Return the square of the largest change in L2."""
        if self.is_number:
            return self.l1(rows, replacing) ** 2
        return self.added**2 * (rows**2 + replacing**2)


@dataclass(frozen=True)
class ContributionBounds:
    """Bounds on the groups and rows of one person, and the kind of neighbouring data sets.

    >>> visits = ContributionBounds(groups=4, rows=3, all_groups=20)
    >>> visits.l1(RowChange.of_number(1, 1)), visits.l2(RowChange.of_number(1, 1))
    (12.0, 6.0)
    >>> ContributionBounds(groups=4, rows=3, all_groups=20, total=7).l1(RowChange.of_number(1, 1))
    7.0
    """

    groups: int = 1  # The bound k on the groups of one person.
    rows: int = 1  # The bound m on the rows of one person in each group.
    replace: bool = False  # Whether neighbouring data sets replace one person by another.
    all_groups: int = 1  # The number of all groups.
    total: int | None = None  # The bound t on the rows of one person in all groups together.
    is_pure: bool = False  # Whether the epsilons of selections are only added up.

    def l1(self, change: RowChange) -> float:
        """Return the L1 sensitivity of all groups together, rounded up."""
        return float_up(Fraction(self._largest(change.l1)))

    def l2(self, change: RowChange) -> float:
        """Return the L2 sensitivity of all groups together, rounded up."""
        return root_up(self._largest(change.l2_squared))

    @property
    def selections(self) -> int:
        """The number of equal losses that bound the selections in all groups of one person.

        Groups with at most m rows each and t in all fit into this many bins of m rows: of the
        fewest bins, any two have more than m rows together. The epsilons of one bin add up. If
        another person replaces the first, bins of 2 m rows hold the rows of both. If epsilons are
        only added up, one loss bounds all t rows.
        """
        if self.total is None:
            return self.groups
        persons = 2 if self.replace else 1
        bins = 2 * persons * self.most_rows // (persons * self._rows_in_group + 1)
        return 1 if self.is_pure else max(1, min(self.groups, bins))

    def row_epsilon(self, epsilon: float) -> float:
        """Return the epsilon that one row may cost, if one of the `selections` costs `epsilon`.

        All rows of a person move a score together, twice as far if another person replaces them.
        """
        is_one_loss = self.is_pure and self.total is not None
        rows = self.most_rows if is_one_loss else self._rows_in_group
        return quotient_down(epsilon, rows * (2 if self.replace else 1))

    @property
    def most_rows(self) -> int:
        """The most rows of one person in all groups together."""
        most = self.groups * self.rows
        return most if self.total is None else min(most, self.total)

    @property
    def _rows_in_group(self) -> int:
        return min(self.rows, self.most_rows)

    def _largest(self, change: Callable[[int, int], int]) -> int:
        """Return the largest sum of changes over all groups.

        The change of a group is convex in the rows of both persons. So the largest sum is where
        each has full groups, with m rows, and one group with the rest. The proof is in
        docs/statistics-proofs.md.
        """
        rows = self._rows_in_group
        full, rest = divmod(self.most_rows, rows)
        if not self.replace:
            return full * change(rows, 0) + change(rest, 0)
        sums = []
        # crossed: the rests that are in a full group of the other person. joint: both in one group.
        for crossed, joint in ((0, 0), (0, 1), (1, 0), (2, 0)):
            groups_of_rests = 2 - crossed - joint if rest else 0
            least = max(0, 2 * full + groups_of_rests - self.all_groups)
            most = full - 1 if crossed else full
            sums += [
                shared * change(rows, rows)
                + (2 * (full - shared) - crossed) * change(rows, 0)
                + crossed * change(rows, rest)
                + joint * change(rest, rest)
                + (2 - crossed - 2 * joint) * change(rest, 0)
                for shared in (least, most)  # The sum is linear in `shared`.
                if least <= most
            ]
        return max(sums)


ONE_ROW: Final = ContributionBounds()


def root_up(squared: int) -> float:
    """Return the root of a positive integer, rounded up to a float."""
    scaled = 2 * max(0, 110 - squared.bit_length())
    return float_up(Fraction(math.isqrt((squared << scaled) - 1) + 1, 2 ** (scaled // 2)))
