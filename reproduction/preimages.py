"""The paper's searches for the uniforms behind one variate: Example 3.2, sections 3 and 6.

A candidate value is excluded when the search finds no uniforms at all. Each search counts its
checks, at the precision p that is given.

    gaussian_preimages    one Box-Muller Gaussian: try all U1 and solve for U2, or the reverse
    exhaustive            Theorem 5.1: try three uniforms and solve for the last
    meet_in_the_middle    any sum of two summands: tabulate one, look the other up
    one_preimage          Theorem 5.1 at p = 53: try three uniforms at random, solve for the last

The last one shows what the cost of exclusion does not say: for p = 53 a typical double has about
2^157 preimages, and the first is found after a handful of checks.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpnoise.auditing.attacks.searches import (
    find_summands,
    keep_pair,
    search_second,
    summand,
    summands,
    ulp,
)
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import check_choice, check_integer
from dpnoise.kernels import compile_kernel

_MOST_FOUND = 4096


@dataclass(frozen=True)
class Search:
    """What a search found, and how many values it had to check."""

    preimages: list[tuple[float, ...]]
    checks: int


@compile_kernel
def _search_first(q: float, c: float, s: float, precision: int, found: Floats) -> tuple[int, int]:
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
        # The effect of rounding on the solution; around cosine 1 the inverse is steep.
        error = 2.0**-48 + ulp(q) / s / radius
        slack = error / (math.sqrt(1.0 - cosine * cosine) + math.sqrt(error)) / unit
        if abs(solved - np.rint(solved)) <= slack:
            for j in range(-int(slack + 0.5), int(slack + 0.5) + 1):
                hits = keep_pair(q, c, s, k * unit, (np.rint(solved) + j) * unit, found, hits)
    return hits, checks


def gaussian_preimages(
    release: float, precision: int, over: str = "U2", *, value: float = 0.0, scale: float = 1.0
) -> Search:
    """Find all (U1, U2) of this many bits that lead from the value to the release, to the last bit.

    cos(2 pi U2) is the same at 1 - U2, up to rounding, so each check covers both. The search over
    U1 takes 2^(p - 1/2) checks on average, as section 6 says; over U2 it takes 2^(p - 2), so that
    the former is not a lower bound. Left out are U1 = 0 and cos(2 pi U2) = 0, where N1 is zero up
    to rounding.

    Examples
    --------
    >>> from dpnoise.auditing.attacks.searches import gaussian_of_uniforms
    >>> search = gaussian_preimages(gaussian_of_uniforms(0.75, 0.125), precision=8)
    >>> (0.75, 0.125) in search.preimages, search.checks
    (True, 65)
    """
    check_integer("precision", precision, least=2, most=40)
    check_choice("over", over, ("U1", "U2"))
    found = np.empty((_MOST_FOUND, 2))
    kernel = _search_first if over == "U1" else search_second
    hits, checks = kernel(float(release), float(value), float(scale), precision, found)
    return Search(sorted((float(a), float(b)) for a, b in found[:hits]), checks)


@compile_kernel
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

    `ordered` has all values of a summand, as the sampler under attack computes them, in ascending
    order. The release is fl(value + fl(scale * fl(a + b))), or so the candidate value has it.

    Examples
    --------
    >>> table = np.sort(summands(precision=6))
    >>> z = table[1000] + table[2000]
    >>> ((a, b),) = meet_in_the_middle(z, table).preimages
    >>> bool(a + b == z)
    True
    """
    checks, a, b = find_summands(float(release), float(value), float(scale), ordered)
    return Search([] if math.isnan(a) else [(a, b)], checks)


@compile_kernel
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
