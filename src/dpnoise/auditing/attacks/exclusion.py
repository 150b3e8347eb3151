"""Attacks that exclude a value by searching all its uniforms, where p is small enough to.

These are the paper's searches turned into distinguishers. They take a sampler of few bits: at
p = 53 and n >= 2 every double has preimages, and no search excludes anything.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks import searches
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Flags, Progress, silent
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.errors import check_integer
from dpnoise.core.parallel import cores

Floats = NDArray[np.float64]

_ZERO: Final = 2.0**-49  # Above cos(3 pi/2), as it is rounded, times the largest radius at 24 bits.


@dataclass(frozen=True)
class GaussianSearch(Attack):
    """Excludes a value when no (U1, U2) of one Box-Muller Gaussian leads from it to the release."""

    name = "gaussian-search"
    access = SOURCE
    breaks = "one member of a Box-Muller pair, at a precision small enough to search"
    source = "Holohan and Braghin 2021, Example 3.2 and section 6"
    default_target = "paper.gaussian.12bits"
    in_audit = False
    default_size = 2_000

    precision: int = 12

    def __post_init__(self) -> None:
        check_integer("precision", self.precision, least=2, most=24)

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that value0 has a preimage and value1 has none."""

        def possible(y: float, value: float) -> bool:
            # The search leaves out the uniforms whose Gaussian is zero up to rounding.
            if abs(y - value) <= _ZERO * max(target.scale, abs(value)):
                return True
            search = searches.gaussian_preimages(y, self.precision, value=value, scale=target.scale)
            return bool(search.preimages)

        words = f"no pair of uniforms of {self.precision} bits leads from {value1:g} to y"
        return _event(words, possible, value0, value1, progress)


@dataclass(frozen=True)
class MeetInTheMiddle(Attack):
    """Excludes a value when no two summands lead from it to the release.

    Parameters
    ----------
    precision
        p, for the summands of Theorem 5.1 as the paper writes them.
    table
        Or all values of a summand of another sampler, as that sampler computes them.
    """

    name = "middle"
    access = SOURCE
    breaks = "Theorem 5.1 and every sum of two summands, at a precision small enough to tabulate"
    source = "this library's docs; the search that the paper's figure 2^(p(n-1)) leaves out"
    default_target = "paper.theorem.8bits"
    in_audit = False
    default_size = 2_000

    precision: int = 8
    table: Floats | None = field(default=None, repr=False, compare=False)

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that value0 has a preimage and value1 has none."""
        table = searches.summands(self.precision) if self.table is None else self.table
        ordered = np.sort(table)

        def possible(y: float, value: float) -> bool:
            search = searches.meet_in_the_middle(y, ordered, value=value, scale=target.scale)
            return bool(search.preimages)

        words = f"no two of {len(table):,} summands lead from {value1:g} to y"
        return _event(words, possible, value0, value1, progress)


def _event(
    words: str,
    possible: Callable[[float, float], bool],
    value0: float,
    value1: float,
    progress: Progress,
) -> Event:
    """Return the event that value0 is possible and value1 is not, searched on all cores."""

    def decide(y: float) -> bool:
        return not possible(y, value1) and possible(y, value0)

    def holds(y: Releases) -> Flags:
        return _on_all_cores(decide, y, progress)

    def explains(y: Releases, value: float) -> Flags:
        return _on_all_cores(lambda one: possible(one, value), y, silent)

    return Event(words, holds, explains=explains)


def _on_all_cores(decide: Callable[[float], bool], y: Releases, progress: Progress) -> Flags:
    decisions = np.empty(len(y), dtype=np.bool_)
    with ThreadPoolExecutor(cores()) as pool:
        for i, decision in enumerate(pool.map(decide, y.tolist())):
            decisions[i] = decision
            progress((i + 1) / len(y))
    return decisions
