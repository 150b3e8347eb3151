"""The paper's searches for the uniforms behind one variate: Example 3.2, sections 3 and 6.

A candidate value is excluded when the search finds no uniforms at all. Everything here is run at
the precision p that is asked for; what a search costs is counted, not estimated.

    gaussian_preimages    one Box-Muller Gaussian: try all U1 and solve for U2, or the reverse
    exhaustive            Theorem 5.1: try three uniforms and solve for the last
    meet_in_the_middle    any sum of two summands: tabulate one, look the other up
    one_preimage          Theorem 5.1 at p = 53: try three uniforms at random, solve for the last

The last one shows what the cost of exclusion does not say: for p = 53 every double has preimages,
about 2^157 of them, and the first is found after a handful of checks. So `GaussianSearch` and
`MeetInTheMiddle`, the searches turned into attacks, take a sampler of few bits.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, silent
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_choice, check_integer
from dpnoise.core.parallel import cores
from dpnoise.kernels import compiled

_MOST_FOUND: Final = 4096
_ZERO: Final = 2.0**-49  # Above cos(3 pi/2), as it is rounded, times the largest radius at 24 bits.


@dataclass(frozen=True)
class Search:
    """What a search found, and how many values it had to check."""

    preimages: list[tuple[float, ...]]
    checks: int


# One Gaussian from two uniforms ------------------------------------------------------------------


@compiled
def gaussian(U1: float, U2: float) -> float:
    """Return N1 of equation (3): sqrt(-2 log(1 - U1)) cos(2 pi U2)."""
    return math.sqrt(-2.0 * math.log(1.0 - U1)) * math.cos(2.0 * math.pi * U2)


@compiled
def _ulp(q: float) -> float:
    return float(abs(np.nextafter(q, np.inf) - q))


@compiled
def _keep(q: float, c: float, s: float, U1: float, U2: float, found: Floats, hits: int) -> int:
    """Note (U1, U2) and its mirror image (U1, 1 - U2) where they lead from c to q."""
    if not (0.0 <= U1 < 1.0 and U2 >= 0.0):
        return hits
    for U in (U2, 1.0 - U2):
        known = hits > 0 and found[hits - 1, 0] == U1 and found[hits - 1, 1] == U
        if U < 1.0 and hits < len(found) and c + s * gaussian(U1, U) == q and not known:
            found[hits, 0] = U1
            found[hits, 1] = U
            hits += 1
    return hits


@compiled
def _over_first(q: float, c: float, s: float, precision: int, found: Floats) -> tuple[int, int]:
    """Try every U1 whose radius reaches |N1|, and solve for U2: the search of section 6."""
    n1 = (q - c) / s
    unit = 2.0**-precision
    hits = checks = 0
    first = math.floor((1.0 - math.exp(-n1 * n1 / 2.0)) / unit)
    for k in range(max(1, first), 2**precision):
        checks += 1
        radius = math.sqrt(-2.0 * math.log(1.0 - k * unit))
        cosine = n1 / radius
        cosine = min(1.0, max(-1.0, cosine))
        solved = math.acos(cosine) / (2.0 * math.pi) / unit
        # What rounding can move the solution by; around cosine 1 the inverse is steep.
        error = 2.0**-48 + _ulp(q) / s / radius
        slack = error / (math.sqrt(1.0 - cosine * cosine) + math.sqrt(error)) / unit
        if abs(solved - np.rint(solved)) <= slack:
            for j in range(-int(slack + 0.5), int(slack + 0.5) + 1):
                hits = _keep(q, c, s, k * unit, (np.rint(solved) + j) * unit, found, hits)
    return hits, checks


@compiled
def _over_second(q: float, c: float, s: float, precision: int, found: Floats) -> tuple[int, int]:
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
        # The mirror image's angle is rounded otherwise, which weighs where the cosine is small.
        angle = (n1 / cosine) ** 2 * 2.0**-48 / abs(cosine)
        slack = (2.0**-48 + V * (abs(n1) / cosine**2 * _ulp(q) / s + angle)) / unit
        if abs(solved - np.rint(solved)) <= slack:
            for j in range(-int(slack + 0.5), int(slack + 0.5) + 1):
                hits = _keep(q, c, s, (np.rint(solved) + j) * unit, k * unit, found, hits)
    return hits, checks


def gaussian_preimages(
    release: float, precision: int, over: str = "U2", *, value: float = 0.0, scale: float = 1.0
) -> Search:
    """Find all (U1, U2) of this many bits that lead from the value to the release, to the last bit.

    cos(2 pi U2) is the same at 1 - U2, up to rounding, so each check covers both. The search over
    U1 takes 2^(p - 1/2) checks on average, as section 6 says; over U2 it takes 2^(p - 2), so that
    the former is no lower bound. Left out are U1 = 0 and cos(2 pi U2) = 0, where N1 is zero up to
    rounding.

    Examples
    --------
    >>> search = gaussian_preimages(gaussian(0.75, 0.125), precision=8)
    >>> (0.75, 0.125) in search.preimages, search.checks
    (True, 65)
    """
    check_integer("precision", precision, least=2, most=40)
    check_choice("over", over, ("U1", "U2"))
    found = np.empty((_MOST_FOUND, 2))
    kernel = _over_first if over == "U1" else _over_second
    hits, checks = kernel(float(release), float(value), float(scale), precision, found)
    return Search(sorted((float(a), float(b)) for a, b in found[:hits]), checks)


# Theorem 5.1: four uniforms ----------------------------------------------------------------------


@compiled
def summand(U: float, W: float) -> float:
    """Return log(1 - U) cos(pi W): Theorem 5.1 adds two of these."""
    return math.log(1.0 - U) * math.cos(math.pi * W)


@compiled
def _tabulate(precision: int, out: Floats) -> None:
    unit = 2.0**-precision
    for i in range(out.size):
        out[i] = summand((i >> precision) * unit, (i & ((1 << precision) - 1)) * unit)


def summands(precision: int) -> Floats:
    """Return every value of `summand` for uniforms of this many bits, in the order (U, W)."""
    check_integer("precision", precision, least=1, most=13)
    out = np.empty(2 ** (2 * precision))
    _tabulate(precision, out)
    return out


@compiled
def _exhaustive(z: float, precision: int, table: Floats) -> tuple[int, int, int]:
    """Try U1, W1 and W2, and solve log(1 - U2) = (z - a) / cos(pi W2)."""
    unit = 2.0**-precision
    size = 2**precision
    checks = 0
    for i in range(table.size):
        remains = z - table[i]
        # log(1 - U2) is never positive: the sign of what remains gives the first bit of W2.
        first = 0 if remains <= 0.0 else size // 2
        for k in range(first, first + size // 2):
            checks += 1
            cosine = math.cos(math.pi * (k * unit))
            middle = int(np.rint((1.0 - math.exp(remains / cosine)) / unit))
            for j in range(max(0, middle - 1), min(size, middle + 2)):
                if table[i] + math.log(1.0 - j * unit) * cosine == z:
                    return checks, i, j * size + k
    return checks, -1, -1


@compiled
def _sweep(q: float, c: float, s: float, ordered: Floats) -> tuple[int, float, float]:
    """Go up through the summands a, and down through those b with a + b near z = (q - c)/s."""
    z = (q - c) / s
    slack = _ulp(q) / s + (abs(z) + max(-ordered[0], ordered[-1])) * 2.0**-50
    at = ordered.size
    for i in range(ordered.size):
        a = ordered[i]
        while at > 0 and ordered[at - 1] >= z - a - slack:
            at -= 1
        near = at
        while near < ordered.size and ordered[near] <= z - a + slack:
            if c + s * (a + ordered[near]) == q:
                return i + 1, a, ordered[near]
            near += 1
    return ordered.size, np.nan, np.nan


def exhaustive(z: float, precision: int) -> Search:
    """Search the preimages of z under Theorem 5.1 one by one, until one is found or none is left.

    A wrong candidate takes 2^(3p - 1) checks: the paper's 2^(p(n-1)), halved by the sign bit. Left
    out is cos(pi W) = 0 for both W, where z is zero up to rounding.
    """
    table = summands(precision)
    size = 2**precision
    checks, a, b = _exhaustive(float(z), precision, table)
    pairs = [] if a < 0 else [(*divmod(a, size), *divmod(b, size))]
    return Search([tuple(k / size for k in pair) for pair in pairs], checks)


def meet_in_the_middle(
    release: float, ordered: Floats, *, value: float = 0.0, scale: float = 1.0
) -> Search:
    """Search summands a and b that lead from the value to the release: one check for each a.

    Parameters
    ----------
    release
        fl(value + fl(scale * fl(a + b))), or so the candidate has it.
    ordered
        All values of a summand, as the sampler under attack computes them, in ascending order.
    value, scale
        The candidate, and the scale of the noise.

    Examples
    --------
    >>> table = np.sort(summands(precision=6))
    >>> z = table[1000] + table[2000]
    >>> ((a, b),) = meet_in_the_middle(z, table).preimages
    >>> bool(a + b == z)
    True
    """
    checks, a, b = _sweep(float(release), float(value), float(scale), ordered)
    return Search([] if math.isnan(a) else [(a, b)], checks)


@compiled
def _one_preimage(z: float, fixed: Floats) -> tuple[int, float]:
    """Solve for U2 along lines given by (U1, W1, W2), one check for each line."""
    unit = 2.0**-53
    for i in range(len(fixed)):
        a = summand(fixed[i, 0], fixed[i, 1])
        cosine = math.cos(math.pi * fixed[i, 2])
        middle = 1.0 - math.exp((z - a) / cosine)
        U2 = np.rint(middle / unit) * unit
        if 0.0 <= U2 < 1.0 and a + math.log(1.0 - U2) * cosine == z:
            return i + 1, U2
    return len(fixed), np.nan


def one_preimage(z: float, most: int = 1_000_000) -> Search:
    """Find one (U1, W1, U2, W2) of 53 bits that Theorem 5.1 maps to z, by random lines.

    Examples
    --------
    >>> (preimage,) = one_preimage(0.7).preimages
    >>> U1, W1, U2, W2 = preimage
    >>> summand(U1, W1) + summand(U2, W2)
    0.7
    """
    rng = np.random.default_rng()
    # A small z needs small cosines: a sum of large summands would lack its last bits.
    reach = min(1.0, 4.0 * abs(z))
    checks = 0
    while checks < most:
        fixed = rng.random((64, 3))
        fixed[:, 1:] = np.rint((0.5 + reach * (fixed[:, 1:] - 0.5)) * 2.0**53) * 2.0**-53
        tried, U2 = _one_preimage(float(z), fixed)
        checks += tried
        if not math.isnan(U2):
            U1, W1, W2 = fixed[tried - 1].tolist()
            return Search([(U1, W1, float(U2), W2)], checks)
    return Search([], checks)


# The attacks -------------------------------------------------------------------------------------


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
            search = gaussian_preimages(y, self.precision, value=value, scale=target.scale)
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
        table = summands(self.precision) if self.table is None else self.table
        ordered = np.sort(table)

        def possible(y: float, value: float) -> bool:
            search = meet_in_the_middle(y, ordered, value=value, scale=target.scale)
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
    """Return the event that value0 is possible and value1 is not, searched on all cores.

    value1 is asked about first: of its own releases, a search soon finds the uniforms.
    """

    def decide(y: float) -> bool:
        return not possible(y, value1) and possible(y, value0)

    def holds(y: Releases) -> Flags:
        return _on_all_cores(decide, y, progress)

    def explains(y: Releases, value: float) -> Flags:
        return _on_all_cores(lambda release: possible(release, value), y, silent)

    return Event(words, holds, explains=explains)


def _on_all_cores(decide: Callable[[float], bool], y: Releases, progress: Progress) -> Flags:
    decisions = np.empty(len(y), dtype=np.bool_)
    with ThreadPoolExecutor(cores()) as pool:
        for i, decision in enumerate(pool.map(decide, y.tolist())):
            decisions[i] = decision
            progress((i + 1) / len(y))
    return decisions
