"""What counts of an event prove: exact binomial limits, and the epsilon that they certify.

Pure statistics. Every limit holds for any sample size and any probability (Clopper and Pearson
1934): it is wrong with at most the stated error, never "approximately".
"""

import math
from typing import Final

from scipy import stats

from dpnoise.core.errors import check_integer, check_part

# SciPy's quantiles are accurate to about 1e-12; moving a limit outward by this much keeps it exact.
_MARGIN: Final = 1e-9

TOSSED: Final = 0.9  # The part of the error that is for the ratio, where a coin is tossed.


def lower_limit(hits: int, trials: int, error: float) -> float:
    """Return a limit that the probability is below with probability at most `error`.

    Examples
    --------
    >>> lower_limit(0, 100, error=0.01)
    0.0
    >>> round(lower_limit(100, 100, error=0.01), 3), round(0.01 ** (1 / 100), 3)
    (0.955, 0.955)
    """
    _check(hits, trials, error)
    if hits == 0:
        return 0.0
    return float(stats.beta.ppf(error, hits, trials - hits + 1)) * (1 - _MARGIN)


def upper_limit(hits: int, trials: int, error: float) -> float:
    """Return a limit that the probability is above with probability at most `error`.

    Examples
    --------
    >>> round(upper_limit(0, 100, error=0.01), 3)
    0.045
    >>> upper_limit(100, 100, error=0.01)
    1.0
    """
    _check(hits, trials, error)
    if hits == trials:
        return 1.0
    return min(1.0, float(stats.beta.isf(error, hits + 1, trials - hits)) * (1 + _MARGIN))


def advantage(
    hits0: int, trials0: int, hits1: int, trials1: int, error: float
) -> tuple[float, float]:
    """Return an interval that misses p0 - p1 with probability at most `error`.

    Examples
    --------
    >>> low, high = advantage(186, 1000, 0, 1000, error=0.001)
    >>> 0.13 < low < 0.186 < high < 0.24
    True
    """
    check_part("error", error)
    each = error / 4
    return (
        lower_limit(hits0, trials0, each) - upper_limit(hits1, trials1, each),
        upper_limit(hits0, trials0, each) - lower_limit(hits1, trials1, each),
    )


def certified_epsilon(
    hits0: int,
    trials0: int,
    hits1: int,
    trials1: int,
    *,
    error: float,
    delta: float = 0.0,
    releases: int = 1,
) -> float:
    """Return an epsilon that every (epsilon, delta)-private target exceeds or equals.

    An event E over k releases of an (epsilon, delta)-private target has, by composition,

        P0(E) <= exp(k epsilon) P1(E) + k delta

    so epsilon >= log((P0 - k delta) / P1) / k, with P0 at its lower and P1 at its upper limit. It
    is too large with probability at most `error`. Zero means that nothing is certified.

    Examples
    --------
    >>> round(certified_epsilon(20_000, 20_000, 0, 20_000, error=0.001), 1)
    7.9
    >>> certified_epsilon(100, 20_000, 100, 20_000, error=0.001)
    0.0
    """
    check_part("error", error)
    if delta != 0:
        check_part("delta", delta)
    check_integer("releases", releases, least=1)
    low, high = lower_limit(hits0, trials0, error / 2), upper_limit(hits1, trials1, error / 2)
    return epsilon_of(low, high, delta=delta, releases=releases)


def tossed_epsilon(hits0: int, trials0: int, hits1: int, trials1: int, *, error: float) -> float:
    """Return an epsilon as `certified_epsilon` does, of trials that a fair coin divided.

    Where a coin chooses the data set of each trial, and the event has happened in h of them, the
    number of those at the second is binomial with h trials and probability P1 / (P0 + P1). So one
    limit bounds the ratio, which is sharper than two limits. What is left of the error is for
    those: they are the sharper ones where the event nearly always happens.

    Examples
    --------
    >>> counts = 1100, 100_000, 1000, 100_000
    >>> [round(epsilon(*counts, error=0.1), 3) for epsilon in (certified_epsilon, tossed_epsilon)]
    [0.0, 0.036]
    """
    check_part("error", error)
    by_limits = certified_epsilon(hits0, trials0, hits1, trials1, error=(1 - TOSSED) * error)
    if hits0 + hits1 == 0:
        return by_limits
    share = upper_limit(hits1, hits0 + hits1, TOSSED * error)
    return max(by_limits, math.log1p(-share) - math.log(share) if share < 1 else 0.0)


def epsilon_of(low: float, high: float, *, delta: float = 0.0, releases: int = 1) -> float:
    """Return log((P0 - k delta) / P1) / k at the limits P0 >= low and P1 <= high, or zero.

    Examples
    --------
    >>> epsilon_of(0.5, 0.25), epsilon_of(0.5, 0.25, delta=0.3)
    (0.6931471805599453, 0.0)
    """
    p0 = low - releases * delta
    return max(0.0, math.log(p0 / high) / releases) if p0 > 0 else 0.0


def _check(hits: int, trials: int, error: float) -> None:
    check_integer("trials", trials, least=1)
    check_integer("hits", hits, least=0, most=trials)
    check_part("error", error)
