"""The paper's searches for the uniforms of one variate: Example 3.2, sections 3 and 6.

A candidate value is excluded if the search finds no uniforms at all. At p = 53 every double has
preimages, so `GaussianSearch` and `MeetInTheMiddle` attack samplers with few bits. In a checkout,
reproduction/preimages.py counts the cost of the searches.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_integer
from dpnoise.kernels import compile_kernel

_ZERO: Final = 2.0**-49  # Above cos(3 pi/2), as it is rounded, times the largest radius at 24 bits.


@compile_kernel
def gaussian_of_uniforms(U1: float, U2: float) -> float:
    """Return N1 of equation (3): sqrt(-2 log(1 - U1)) cos(2 pi U2)."""
    return math.sqrt(-2.0 * math.log(1.0 - U1)) * math.cos(2.0 * math.pi * U2)


@compile_kernel
def ulp(q: float) -> float:
    """Return the step from a double to the next."""
    return float(abs(np.nextafter(q, np.inf) - q))


@compile_kernel
def keep_pair(q: float, c: float, s: float, U1: float, U2: float, found: Floats, hits: int) -> int:
    """Append (U1, U2) and its mirror image (U1, 1 - U2) to `found` if they lead from c to q."""
    if not (0.0 <= U1 < 1.0 and U2 >= 0.0):
        return hits
    for U in (U2, 1.0 - U2):
        known = hits > 0 and found[hits - 1, 0] == U1 and found[hits - 1, 1] == U
        if U < 1.0 and hits < len(found) and c + s * gaussian_of_uniforms(U1, U) == q and not known:
            found[hits, 0] = U1
            found[hits, 1] = U
            hits += 1
    return hits


@compile_kernel
def search_second(q: float, c: float, s: float, precision: int, found: Floats) -> tuple[int, int]:
    """Try every U2 of the quarter where cos(2 pi U2) has the sign of N1, and solve for U1."""
    n1 = (q - c) / s
    unit = 2.0**-precision
    hits = checks = 0
    quarter = 2 ** (precision - 2)
    start = 0 if n1 >= 0.0 else quarter
    for k in range(start, start + quarter + 1):
        checks += 1
        cosine = math.cos(2.0 * math.pi * (k * unit))
        V = math.exp(-0.5 * (n1 / cosine) ** 2)
        solved = (1.0 - V) / unit
        # The angle of the mirror image is rounded differently, which matters at a small cosine.
        angle = (n1 / cosine) ** 2 * 2.0**-48 / abs(cosine)
        slack = (2.0**-48 + V * (abs(n1) / cosine**2 * ulp(q) / s + angle)) / unit
        if abs(solved - np.rint(solved)) <= slack:
            for j in range(-int(slack + 0.5), int(slack + 0.5) + 1):
                hits = keep_pair(q, c, s, (np.rint(solved) + j) * unit, k * unit, found, hits)
                if hits == len(found):
                    return hits, checks
    return hits, checks


@compile_kernel
def _have_pairs(q: Floats, c: float, s: float, precision: int, out: Flags) -> None:
    found = np.empty((1, 2))
    for i in range(q.size):
        out[i] = search_second(q[i], c, s, precision, found)[0] > 0


@compile_kernel
def summand(U: float, W: float) -> float:
    """Return log(1 - U) cos(pi W): Theorem 5.1 adds two of these."""
    return math.log(1.0 - U) * math.cos(math.pi * W)


@compile_kernel
def _tabulate(precision: int) -> Floats:
    out, unit = np.empty(1 << (2 * precision)), 2.0**-precision
    for i in range(out.size):
        out[i] = summand((i >> precision) * unit, (i & ((1 << precision) - 1)) * unit)
    return out


def summands(precision: int) -> Floats:
    """Return every value of `summand` for uniforms of this many bits, in the order (U, W)."""
    return _tabulate(check_integer("precision", precision, least=1, most=13))


@compile_kernel
def find_summands(q: float, c: float, s: float, ordered: Floats) -> tuple[int, float, float]:
    """Search increasing summands a and decreasing summands b with a + b near z = (q - c)/s."""
    z = (q - c) / s
    slack = ulp(q) / s + (abs(z) + max(-ordered[0], ordered[-1])) * 2.0**-50
    first = ordered.size
    for i in range(ordered.size):
        a = ordered[i]
        while first > 0 and ordered[first - 1] >= z - a - slack:
            first -= 1
        near = first
        while near < ordered.size and ordered[near] <= z - a + slack:
            if c + s * (a + ordered[near]) == q:
                return i + 1, a, ordered[near]
            near += 1
    return ordered.size, np.nan, np.nan


@compile_kernel
def _have_summands(q: Floats, c: float, s: float, ordered: Floats, out: Flags) -> None:
    for i in range(q.size):
        out[i] = not math.isnan(find_summands(q[i], c, s, ordered)[1])


@dataclass(frozen=True)
class GaussianSearch(Attack):
    """Excludes a value if no (U1, U2) of one Box-Muller Gaussian leads from it to the release."""

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
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 has a preimage and value1 has none."""
        scale = target.scale
        search = base.possible_by_kernel(_have_pairs, scale, (self.precision,), progress=progress)

        def possible(y: Releases, value: float) -> Flags:
            # The search skips uniforms with a Gaussian that is zero up to rounding.
            near = np.abs(y.astype(np.float64) - value) <= _ZERO * max(scale, abs(value))
            return np.asarray(near | search(y, value))

        words = f"no pair of uniforms of {self.precision} bits leads from {value1:g} to y"
        return base.exclusion_event(words, possible, value0, value1)


@dataclass(frozen=True)
class MeetInTheMiddle(Attack):
    """Excludes a value if no two summands lead from it to the release.

    The summands are those of Theorem 5.1 with uniforms of `precision` bits, or all values in
    `table`, of another sampler.
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
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 has a preimage and value1 has none."""
        table = summands(self.precision) if self.table is None else self.table
        model = (np.sort(table),)
        possible = base.possible_by_kernel(_have_summands, target.scale, model, progress=progress)
        words = f"no two of {len(table):,} summands lead from {value1:g} to y"
        return base.exclusion_event(words, possible, value0, value1)
