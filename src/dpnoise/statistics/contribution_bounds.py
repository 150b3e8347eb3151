"""How far one person reaches into a statistic: the sensitivities, from the declared bounds alone.

A person is in at most k groups, and adds to each what at most m rows can. docs/persons.md has the
proofs. Without persons a row is its own: k = m = 1.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from dpnoise.release.calibration import quotient_down
from dpnoise.statistics.composition import float_up

ADD_REMOVE: Final = "add-remove"
REPLACE: Final = "replace"
NEIGHBOURS: Final = (ADD_REMOVE, REPLACE)


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

    Parameters
    ----------
    groups, rows
        The bounds k and m.
    replace
        Whether neighbours have one person in another's place, not one more or less.
    there
        How many groups there are.

    Examples
    --------
    >>> visits = Reach(groups=4, rows=3, there=20)
    >>> visits.l1(Move.of_number(3, 3)), visits.l2(Move.of_number(3, 3))
    (12.0, 6.0)
    """

    groups: int = 1
    rows: int = 1
    replace: bool = False
    there: int = 1

    def l1(self, move: Move) -> float:
        """Return how far all groups move together: the sum of all distances, rounded up."""
        if not self.replace:
            return float_up(Fraction(self.groups * move.alone))
        return float_up(
            Fraction(
                max(
                    both * move.swapped + 2 * (self.groups - both) * move.alone
                    for both in self._in_both
                )
            )
        )

    def l2(self, move: Move) -> float:
        """Return how far all groups move together: the root of the sum of squares, rounded up."""
        alone = move.alone * move.alone
        if not self.replace:
            return root_up(self.groups * alone)
        return root_up(
            max(
                both * move.swapped_squared + 2 * (self.groups - both) * alone
                for both in self._in_both
            )
        )

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
    nearest = float_up(Fraction(math.isqrt((squared << scaled) - 1) + 1, 2 ** (scaled // 2)))
    below = math.nextafter(nearest, 0.0)
    return below if Fraction(below) ** 2 >= squared else nearest
