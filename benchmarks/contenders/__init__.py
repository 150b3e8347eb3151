"""The libraries that `make errors` compares, each of which may need a separate environment.

A contender is a module here. It has `STATISTICS` of a column, `visits` of persons and `discover`
of groups if the library supports them, and the `PACKAGES` to name with their versions. `python -m
benchmarks.contenders MODULE` reads a question as JSON and prints the releases: a row for each
release and a column for each number. So this file and its caller need only NumPy, and each module
only its library.
"""

from typing import Any, Final, NamedTuple

import numpy as np

Floats = Any
DECILES: Final = [i / 10 for i in range(1, 10)]
HIGH: Final = 0.9  # The level of a high quantile.
CELLS: Final = 10


class Column(NamedTuple):
    """A column with its declared bounds, and the epsilon of one statistic."""

    name: str
    values: list[float]
    lower: float
    upper: float
    epsilon: float
    candidates: list[float]  # For libraries that select a quantile from given candidates.

    @property
    def clamped_values(self) -> Floats:
        """The values, clamped to the bounds."""
        return np.clip(self.values, self.lower, self.upper)

    @property
    def edges(self) -> list[float]:
        """The edges of equally wide cells."""
        return [float(edge) for edge in np.linspace(self.lower, self.upper, CELLS + 1)]


class Visits(NamedTuple):
    """Visits of persons in towns, the contribution bounds, and the budget of all statistics.

    Contenders publish the number, the sum and the mean of the costs in each town. If the towns are
    declared, at most `max_groups` times `max_rows` visits of a person count, in any towns.
    """

    persons: list[int]
    towns: list[str]
    costs: list[float]
    upper: float
    max_groups: int
    max_rows: int
    epsilon: float
    delta: float  # 0 if the towns are declared.
    declared: list[str]


class Stays(NamedTuple):
    """Stays of patients in hospital, their diagnoses, the contribution bound, and the budget."""

    patients: list[int]
    diagnoses: list[str]
    max_groups: int  # A patient counts once in each of at most this many.
    epsilon: float
    delta: float


def with_mean(question: Visits, number: float, total: float) -> list[float]:
    """Return a noisy number and a noisy sum of costs, and the mean that they give."""
    return [number, total, float(np.clip(total / max(number, 1), 0, question.upper))]
