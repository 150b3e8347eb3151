"""Algorithm 1 of the paper: a whole column recovered from its releases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpnoise.auditing.attacks.base import Progress, no_progress
from dpnoise.auditing.attacks.mironov import FORMULAS, has_uniform
from dpnoise.core.arrays import Flags, Floats, Integers
from dpnoise.core.errors import ArgumentError, check_choice, check_integer
from dpnoise.kernels import compile_kernel


@dataclass(frozen=True)
class Reconstruction:
    """A column recovered from its releases.

    Parameters
    ----------
    values
        The one candidate that is left for each row; NaN where several are.
    queries
        How many releases of the whole column were asked for.
    needed
        How many of them each row needed; 0 where several candidates are left.
    """

    values: Floats
    queries: int
    needed: Integers


@compile_kernel
def _exclude(
    releases: Floats,
    candidates: Floats,
    scale: float,
    precision: int,
    formula: int,
    possible: Flags,
) -> None:
    """Remove from each row's candidates those that its release excludes."""
    for i in range(releases.size):
        for j in range(candidates.size):
            if possible[i, j]:
                possible[i, j] = has_uniform(releases[i], candidates[j], scale, precision, formula)


# It is longer than others because it is Algorithm 1 of the paper in one piece.
def reconstruct(
    query: Callable[[], Floats],
    candidates: Sequence[float],
    scale: float,
    *,
    precision: int = 53,
    formula: str = "numpy",
    most_queries: int = 1000,
    progress: Progress = no_progress,
) -> Reconstruction:
    """Recover a whole column: ask until one candidate is left for each row (Algorithm 1).

    Parameters
    ----------
    query
        Releases the column once more, each row with fresh noise.
    candidates
        The finite set that the values come from.
    scale, precision, formula
        Of the noise, of its uniforms, and "numpy" or "paper".
    most_queries
        Give up after this many.

    Examples
    --------
    >>> rng = np.random.default_rng()
    >>> ages = np.array([23.0, 42.0, 8.0])
    >>> found = reconstruct(lambda: ages + rng.laplace(scale=1e4, size=3), range(100), 1e4)
    >>> found.values.tolist()
    [23.0, 42.0, 8.0]
    """
    check_choice("formula", formula, FORMULAS)
    check_integer("precision", precision, least=2, most=53)
    check_integer("most_queries", most_queries, least=1)
    choices = np.array(sorted(set(candidates)), dtype=np.float64)
    if not len(choices):
        raise ArgumentError("candidates must have at least one value.")
    releases = np.asarray(query(), dtype=np.float64)
    possible = np.ones((len(releases), len(choices)), dtype=np.bool_)
    needed = np.zeros(len(releases), dtype=np.int64)
    for queries in range(1, most_queries + 1):
        _exclude(releases, choices, float(scale), precision, FORMULAS.index(formula), possible)
        left = possible.sum(axis=1)
        if not left.all():
            raise ArgumentError("A release fits no candidate: the noise is another, or the values.")
        needed[(left == 1) & (needed == 0)] = queries
        progress(float(np.mean(left == 1)))
        if (left == 1).all() or queries == most_queries:
            break
        releases = np.asarray(query(), dtype=np.float64)
    values = np.where(left == 1, choices[possible.argmax(axis=1)], np.nan)
    return Reconstruction(values, queries, needed)
