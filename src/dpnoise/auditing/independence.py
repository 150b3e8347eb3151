"""Whether releases depend on each other: without that, nothing that is counted proves anything.

A release is turned into a bit, by a rule that is fixed before it is seen. Of independent releases
the bits of two that stand k apart are independent, so that, given how many bits of each kind there
are, how often both are set has a hypergeometric law (Fisher's exact test). Each test takes disjoint
pairs; the stated error is split over all bits and distances. Exact repeats, noise used twice or
with its sign turned, slow drifts and short periods all show in some bit at some distance. Noise
that is drawn once a call, and what changes from one call to the next, show in how often a bit is
set in one call and in another.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing.targets.target import DependentError

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

ERROR: Final = 1e-9  # That one test refuses independent releases; an audit makes some dozens.
_DISTANCES: Final = (*range(1, 9), 10, 16, 20, 32, 50, 64, 100, 128, 256, 500, 512, 1000, 1024)
_MOST: Final = 200_000  # Releases that are looked at.
_USUAL: Final = 3  # Standard deviations that are passed over.
_BITS: Final = (63, 47, 61, 59, 57, 55, 53, 51)  # Of a hash; two releases differ in some of them.
_REPEATS: Final = 8  # Releases whose next occurrence proposes a period.


def check_independent(call: str, before: Floats, rows: Floats, error: float = ERROR) -> None:
    """Raise unless releases look independent of each other.

    Parameters
    ----------
    call
        What gave the releases, for the error.
    before
        Other releases of the same data, which the rules are fixed on.
    rows
        The releases, in their order.
    error
        The probability with which independent releases are refused.
    """
    distances = sorted({*_DISTANCES, *_periods(before)})
    n = min(len(before), len(rows), _MOST)
    code = _hash(rows[:_MOST])
    bits = [rule(rows[:_MOST]) for rule in _rules(before)] + [_bit(code, i) for i in _BITS[:2]]
    found = _dependence(bits, distances, error / 3)
    codes = _hash(before[:n]), code[:n]
    hashed = [[_bit(part, i) for part in codes] for i in _BITS]
    if found is None:
        # What stands at the same place in two calls is one call's length apart.
        found = _dependence(map(np.concatenate, hashed[:2]), [n], error / 3)
    if found is not None:
        refuse(call, f"those {found[0]} apart are alike", found[1])
    for flags in hashed:
        check_calls(call, [(int(part.sum()), n) for part in flags], error / (3 * len(hashed)))


def check_flags(call: str, flags: Flags, error: float = ERROR) -> None:
    """Raise unless the trials of one event look independent of each other."""
    found = _dependence([flags[:_MOST]], _DISTANCES, error)
    if found is not None:
        refuse(call, f"those {found[0]} apart are alike", found[1])


def check_calls(call: str, calls: Sequence[tuple[int, int]], error: float = ERROR) -> None:
    """Raise unless an event happened about as often in each call, of which are (hits, trials).

    Of independent releases, how many of all hits fall on some calls has a hypergeometric law. Each
    call is held against the others, and those up to each one against those after it. Noise that is
    drawn once a call shows in the first, what changes slowly in the second.
    """
    *before, (hits, trials) = accumulate(calls, lambda a, b: (a[0] + b[0], a[1] + b[1]))
    parts = [*calls, *before]
    least = min(_both_sides(both, hits, part, trials) for both, part in parts)
    if least * len(parts) < error:
        refuse(call, "those of one call are alike", least)


def refuse(call: str, how: str, p_value: float) -> None:
    """Raise the error that says which releases depend on each other."""
    chance = "less than 1e-300" if p_value == 0 else f"{p_value:.1g}"
    raise DependentError(
        f"{call} gave releases that depend on each other: {how}, which by chance has "
        f"probability {chance}. An audit counts independent releases: draw new "
        "noise for each, or have it ask for one release a call (one_by_one=True)."
    )


def _dependence(
    sequences: Iterable[Flags], distances: Iterable[int], error: float
) -> tuple[int, float] | None:
    """Return the distance and the p-value of the clearest dependence, if there is one."""
    tests = [
        (distance, p_value(flags, distance))
        for flags in sequences
        for distance in distances
        if 2 * distance <= len(flags)
    ]
    if not tests:
        return None
    distance, least = min(tests, key=lambda test: test[1])
    return (distance, least) if least * len(tests) < error else None


def p_value(flags: Flags, distance: int) -> float:
    """Return the two-sided p-value of Fisher's exact test, of pairs that share no release.

    Examples
    --------
    >>> p_value(np.array([True, True, False, False]), 1)
    1.0
    >>> p_value(np.repeat(np.arange(20) % 2 == 0, 2), 1) < 1e-4
    True
    """
    whole = len(flags) // (2 * distance) * (2 * distance)
    first, second = flags[:whole].reshape(-1, 2, distance).swapaxes(0, 1).reshape(2, -1)
    pairs = len(first)
    set0, set1, both = (int(np.count_nonzero(x)) for x in (first, second, first & second))
    return _both_sides(both, set0, set1, pairs)


def _both_sides(both: int, set0: int, set1: int, pairs: int) -> float:
    """Return the p-value of how many of `pairs` are in two parts of them, of these sizes."""
    if set0 in {0, pairs} or set1 in {0, pairs}:
        return 1.0
    mean = set0 * set1 / pairs
    deviation = math.sqrt(mean * (1 - set0 / pairs) * (1 - set1 / pairs) * pairs / (pairs - 1))
    if abs(both - mean) < _USUAL * deviation:
        return 1.0  # Not worth the exact law, which takes long.
    law = stats.hypergeom(pairs, set0, set1)
    return float(min(1.0, 2 * min(law.cdf(both), law.sf(both - 1))))


def _rules(before: Floats) -> list[Callable[[Floats], Flags]]:
    """Return the bits of a release that tell on which side of medians it is."""
    column = _widest(before)
    middle = _median(before[:, column])
    away = _median(np.abs(before[:, column] - middle))

    def above(rows: Floats) -> Flags:
        return np.asarray(rows[:, column] > middle)

    def far(rows: Floats) -> Flags:
        return np.asarray(np.abs(rows[:, column] - middle) > away)

    return [above, far]


def _median(x: Floats) -> float:
    known = x[~np.isnan(x)]
    return float(np.median(known)) if len(known) else 0.0


def _widest(rows: Floats) -> int:
    """Return the column with the most different numbers."""
    return int(np.argmax([len(np.unique(column)) for column in rows[:2000].T]))


def _hash(rows: Floats) -> Words:
    """Return a hash of each row; 0.0 and -0.0 are one number."""
    code = np.full(len(rows), 0x243F6A8885A308D3, dtype=np.uint64)
    for column in rows.T:
        word = np.ascontiguousarray(column + 0.0).view(np.uint64)
        code = (code ^ word) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(31)
    return code * np.uint64(0xBF58476D1CE4E5B9)


def _bit(code: Words, bit: int) -> Flags:
    return np.asarray((code >> np.uint64(bit)) & np.uint64(1), dtype=np.bool_)


def _periods(before: Floats) -> list[int]:
    """Return how far away the first releases come again, as periods to look at."""
    periods = []
    for i in range(min(_REPEATS, len(before))):
        again = np.flatnonzero((before[i + 1 :] == before[i]).all(axis=1))
        periods += [int(again[0]) + 1] if again.size else []
    return periods
