"""What `make errors` asks of each library, which may live in an environment of its own.

A contender is a module here: `STATISTICS` of a column, `visits` of persons where it has them, and
the `PACKAGES` whose versions count. It is run as `python -m benchmarks.contenders MODULE`: a
question as JSON comes in, the releases go out, a row for each release and a column for each number.
So this file and what runs it need nothing but NumPy; each module needs its own library.
"""

from typing import Any, Final, NamedTuple

import numpy as np

Floats = Any
DECILES: Final = [i / 10 for i in range(1, 10)]
CELLS: Final = 10


class Column(NamedTuple):
    """A column with its declared bounds, and what may be spent on one statistic of it."""

    name: str
    values: list[float]
    lower: float
    upper: float
    epsilon: float
    candidates: list[float]  # For a quantile, where a library wants to be told.

    @property
    def clamped(self) -> Floats:
        """The values within the bounds."""
        return np.clip(self.values, self.lower, self.upper)

    @property
    def edges(self) -> list[float]:
        """Edges of equal cells."""
        return [float(edge) for edge in np.linspace(self.lower, self.upper, CELLS + 1)]


class Visits(NamedTuple):
    """Visits of persons in towns, the bounds on one person, and what may be spent on all of it."""

    persons: list[int]
    towns: list[str]
    costs: list[float]
    upper: float
    max_groups: int
    max_rows: int
    epsilon: float
    delta: float  # 0 where the towns are declared.
    declared: list[str]
