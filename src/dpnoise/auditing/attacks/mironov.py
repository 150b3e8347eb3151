"""Mironov's inversion of Laplace noise by inverse CDF: Algorithm 1 of the paper.

A candidate c is excluded by a release q if no uniform U, a multiple of 2^-p, has
fl(c + fl(s z)) = q with z the sampler's output for U. The true value is never excluded. Two ways to
write the sampler are in use:

    the paper's equation (2)      z = (-1)^round(U) log(1 - 2|U - 1/2|)
    NumPy, and SciPy through it   z = log(U + U) for U < 1/2, else -log(2 - U - U)

They differ in a rounding: 2 - U loses U's last bit, which moves about half of the positive z.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import (
    SOURCE,
    Attack,
    Event,
    Flags,
    Progress,
    best,
    excluded,
    silent,
)
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.errors import ArgumentError, check_choice, check_integer
from dpnoise.kernels import compiled

Floats = NDArray[np.float64]

# With this many uniforms in question one of them fits, or may as well: it is not searched for.
_MOST: Final = 2.0**7
_FORMULAS: Final = ("numpy", "paper")
_NUMPY: Final = 0


@compiled
def _feasible(q: float, c: float, s: float, precision: int, formula: int) -> bool:
    """Tell whether a uniform U, or its mirror image 1 - U, gives the release q of the value c."""
    w = q - c
    z = w / s
    # |q - c - w| is at most half an ulp of q, and the quotient, exp and log err by less than the
    # second term: all preimages lie within `width` of the middle.
    slack = abs(np.nextafter(q, np.inf) - q) / s + 2.0**-50 * (abs(z) + 1.0)
    unit = 2.0**-precision
    middle = math.exp(-abs(z)) * 0.5
    width = middle * slack + 2.0 * unit
    if width > _MOST * unit:
        return True
    U = max(unit, math.floor((middle - width) / unit) * unit)
    while U <= min(0.5, middle + width):  # noqa: SIM300 - U is the variable
        mirrored = 1.0 - U
        t = (2.0 - mirrored) - mirrored if formula == _NUMPY else U + U
        if c + s * math.log(U + U) == q or c - s * math.log(t) == q:
            return True
        U += unit
    return False


@compiled
def feasible(
    releases: Floats, value: float, scale: float, precision: int, formula: int, out: Flags
) -> None:
    """Tell of each release whether some uniform gives it from this value."""
    for i in range(releases.size):
        out[i] = _feasible(releases[i], value, scale, precision, formula)


@compiled
def _filter(
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
                possible[i, j] = _feasible(releases[i], candidates[j], scale, precision, formula)


@dataclass(frozen=True)
class Mironov(Attack):
    """Excludes a value when no uniform could have led from it to the release.

    Parameters
    ----------
    precision
        p, the bits of the sampler's uniforms.
    formula
        "paper" or "numpy"; by default the one that excludes more is taken.
    """

    name = "mironov"
    access = SOURCE
    breaks = "Laplace noise by inverse CDF: the paper's equation (2), NumPy, SciPy"
    source = "Mironov 2012; Holohan and Braghin 2021, Algorithm 1"
    default_target = "numpy.laplace"
    noise = "laplace"

    precision: int = 53
    formula: str | None = None

    def __post_init__(self) -> None:
        check_integer("precision", self.precision, least=2, most=53)
        check_choice("formula", self.formula, (None, *_FORMULAS))

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that value0 is possible and value1 is not, for the best formula."""
        formulas = _FORMULAS if self.formula is None else (self.formula,)
        events = [self._event(target.scale, value0, value1, formula) for formula in formulas]
        return best(events, target, value0, value1, n)

    def _event(self, scale: float, value0: float, value1: float, formula: str) -> Event:
        def possible(y: Releases, value: float) -> Flags:
            out = np.empty(len(y), dtype=np.bool_)
            releases = np.asarray(y, dtype=np.float64)
            number = _FORMULAS.index(formula)
            feasible(releases, float(value), scale, self.precision, number, out)
            return out

        words = f"no uniform of {self.precision} bits leads from {value1:g} to y ({formula})"
        return excluded(words, possible, value0, value1)


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
    needed: NDArray[np.int64]


def reconstruct(
    query: Callable[[], Floats],
    candidates: Sequence[float],
    scale: float,
    *,
    precision: int = 53,
    formula: str = "numpy",
    most_queries: int = 1000,
    progress: Progress = silent,
) -> Reconstruction:
    """Recover a whole column: ask until one candidate is left for each row (Algorithm 1).

    Parameters
    ----------
    query
        Releases the column once more, each row with noise of its own.
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
    check_choice("formula", formula, _FORMULAS)
    check_integer("precision", precision, least=2, most=53)
    check_integer("most_queries", most_queries, least=1)
    choices = np.array(sorted(set(candidates)), dtype=np.float64)
    if not len(choices):
        raise ArgumentError("Expected candidates to have at least one value.")
    possible, needed = None, None
    for queries in range(1, most_queries + 1):
        releases = np.asarray(query(), dtype=np.float64)
        if possible is None or needed is None:
            possible = np.ones((len(releases), len(choices)), dtype=np.bool_)
            needed = np.zeros(len(releases), dtype=np.int64)
        _filter(releases, choices, float(scale), precision, _FORMULAS.index(formula), possible)
        left = possible.sum(axis=1)
        if not left.all():
            raise ArgumentError("A release fits no candidate: the noise is another, or the values.")
        needed[(left == 1) & (needed == 0)] = queries
        progress(float(np.mean(left == 1)))
        if (left == 1).all():
            break
    assert possible is not None  # noqa: S101 - there was a query
    assert needed is not None  # noqa: S101 - likewise
    alone = possible.sum(axis=1) == 1
    values = np.where(alone, choices[possible.argmax(axis=1)], np.nan)
    return Reconstruction(values, queries, needed)
