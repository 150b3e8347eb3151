"""Declared bounds of a value, in whole grids: the grid comes from them, never from the data."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.core.errors import check_bound, check_power_of_two, reject
from dpnoise.release.calibration import EXTREME

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
            rule = f"to leave at most 65,536 candidates, not {bounds.cells:,}"
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
            reject("grid", self.grid, "to be between 2^-960 and 2^960: measure in another unit")
        if self.least > self.most:
            rule = f"to have a multiple between lower={self.lower} and upper={self.upper}"
            reject("grid", self.grid, rule)
        if largest / self.grid > most:
            finest, power = largest / most, most.bit_length() - 1
            rule = f"to be at least the larger bound over 2^{power}, {finest:g}"
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
            reject(name, bound, "to be a number")
    assert least is not None and most is not None  # noqa: S101, PT018 - for the type checker
    if least >= most:
        reject("lower", least, f"< upper={most}")
    if math.isinf(float(most) - float(least)):
        reject("upper", most, "to be less than 1e308 above lower: measure in another unit")
    return least, most


def _power(at_least: float, given: float | None) -> float:
    """Return the given grid, or the smallest power of two that is at least this."""
    if given is not None:
        return check_power_of_two("grid", given)
    # What is so small that it underflows is refused later.
    return 2.0 ** math.ceil(math.log2(max(at_least, _SMALLEST)))
