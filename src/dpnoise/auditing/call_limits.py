"""Limits of an event's two probabilities from its counts in calls, whose releases may depend.

Releases of one call may share an effect: a sample of the rows that is drawn once a call, or a small
bias. Calls are independent of each other. There are three kinds of limits:

- *Exact* limits (Clopper and Pearson 1934) hold for independent releases.
- *Widened* limits divide the hits and trials by the ratio of the variance between calls to that of
  independent releases, and take Student's distribution with the degrees of freedom of the calls
  (Korn and Graubard 1998). The ratio is at least 1. So they hold for independent releases, and
  approximately for dependence that is too weak to be seen.
- Limits for *any dependence* within a call are those of a mean of independent variables between 0
  and 1, the shares of hits (Waudby-Smith and Ramdas 2024). They hold for any number of calls.

If the counts of calls vary more than those of independent releases (p below `SUSPICION`), the last
kind is used. It is never narrower than the exact limits: so it holds in both cases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy import optimize, special, stats

from dpnoise.auditing.attacks.base import EventCount
from dpnoise.auditing.attacks.certified_bounds import lower_limit, upper_limit
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats, Integers

EXACT: Final = "exact"
WIDENED: Final = "widened"
ANY_DEPENDENCE: Final = "any dependence"

# Probability that independent releases are suspected to depend on each other, for each event and
# data set. It is small because a suspicion costs a large part of a large bound.
SUSPICION: Final = 1e-6
# Fractions of the capital that are bet on each call, and the part of the capital for each. Betting
# everything is the best bet on calls that hardly vary.
_BETS: Final = 0.5 ** np.arange(8)
_PARTS: Final = np.array([0.5, *[0.5 / 7] * 7])


@dataclass(frozen=True, eq=False)
class CallCounts:
    """The hits and trials of an event in each call, for both data sets of a pair."""

    hits: tuple[Integers, Integers]
    trials: tuple[Integers, Integers]

    @classmethod
    def of(cls, calls: Sequence[Sequence[EventCount]]) -> "CallCounts":
        """Return the counts of the calls for both data sets."""
        hits0, hits1 = (np.array([call.hits for call in of_side]) for of_side in calls)
        trials0, trials1 = (np.array([call.trials for call in of_side]) for of_side in calls)
        return cls((hits0, hits1), (trials0, trials1))

    @cached_property
    def totals(self) -> tuple[EventCount, EventCount]:
        """The counts in all calls for either data set."""
        at0, at1 = (EventCount(int(h.sum()), int(t.sum())) for h, t in self._sides)
        return at0, at1

    @cached_property
    def dispersion(self) -> float:
        """The variance of the counts of calls, in units of that of independent releases."""
        return max(dispersion_of(*side) for side in self._sides)

    @cached_property
    def is_suspect(self) -> bool:
        """Whether the counts of calls vary more than those of independent releases."""
        return any(dispersion_p_value(*side) < SUSPICION for side in self._sides)

    @property
    def _sides(self) -> list[tuple[Integers, Integers]]:
        return list(zip(self.hits, self.trials, strict=True))

    def widening(self, error: float) -> float:
        """Return the factor on the variance that widened limits allow for, at least 1."""
        if math.isinf(self.dispersion):
            return self.dispersion
        calls = min(map(len, self.hits))
        ratio = float(stats.t.isf(error, calls - 1) / stats.norm.isf(error))
        return max(1.0, self.dispersion * ratio**2)

    def any_limits(self, error: float, exact_error: float) -> tuple[float, float]:
        """Return limits that hold for any dependence within calls, each at this error.

        They are not narrower than the exact limits at `exact_error`.
        """
        low, high = limits_of(*self.totals, exact_error)
        (share0, share1) = (hits / trials for hits, trials in self._sides)
        return min(low, mean_limit(share0, error)), max(high, 1 - mean_limit(1 - share1, error))

    def chosen_limits(self, error: float) -> tuple[float, float]:
        """Return the limits that the counts of calls call for, each at this error."""
        if self.is_suspect:
            return self.any_limits(error, error)
        return limits_of(*self.totals, error, self.widening(error))

    def best_any_limits(self, error: float) -> tuple[float, float]:
        """Return limits that `any_limits` cannot be narrower than; they take no time."""
        factors = [error ** (1 / len(hits)) for hits in self.hits]
        share0, share1 = (float((hits / trials).mean()) for hits, trials in self._sides)
        return share0 * factors[0], 1 - (1 - share1) * factors[1]


def limits_of(
    at0: EventCount, at1: EventCount, error: float, dispersion: float = 1.0
) -> tuple[float, float]:
    """Return P0's lower and P1's upper limit, each wrong with probability at most `error`."""
    low = lower_limit(at0.hits, at0.trials, error, dispersion)
    return low, upper_limit(at1.hits, at1.trials, error, dispersion)


def dispersion_of(hits: Integers, trials: Integers) -> float:
    """Return the variance of the counts of calls, in units of that of independent releases.

    >>> hits, trials = np.array([40, 60, 40, 60]), np.full(4, 100)
    >>> round(dispersion_of(hits, trials), 2), dispersion_of(hits[:1], trials[:1])
    (5.33, inf)
    """
    if len(hits) == 1:
        return math.inf
    share = hits.sum() / trials.sum()
    if share in {0, 1}:
        return 0.0
    variances = trials * share * (1 - share)
    return float((((hits - trials * share) ** 2 / variances).sum()) / (len(hits) - 1))


def dispersion_p_value(hits: Integers, trials: Integers) -> float:
    """Return the probability that independent releases vary as much between calls, or more.

    It is that of a shifted gamma law with the first three cumulants of the sum of squares, given
    the number of all hits: those of chi-squared, and for few hits those of the number of pairs in
    one call, which is nearly Poisson. It is approximate, which concerns only how often limits for
    any dependence are used.

    >>> dispersion_p_value(np.full(50, 10), np.full(50, 100)) > 0.999
    True
    """
    free = len(hits) - 1
    total = min(int(hits.sum()), int((trials - hits).sum()))
    if free == 0 or total == 0:
        return 1.0
    third = 8 * free + 4 * free**2 / total
    shape, scale = 32 * free**3 / third**2, third / (4 * free)
    return float(stats.gamma.sf(free * (dispersion_of(hits, trials) - 1) / scale + shape, shape))


def mean_limit(shares: Floats, error: float) -> float:
    """Return a lower limit of a mean, wrong with probability at most `error`.

    The shares are independent, between 0 and 1, and otherwise of any laws; the limit is that of the
    average of their means. A bet of a fraction c on each share turns a capital of 1 into the
    product of 1 - c + c share / q. If the average mean is at most q, the expected capital is at
    most 1, by the inequality of arithmetic and geometric means. So it reaches 1 / error with
    probability at most `error` (Markov), and the same holds for capital that is divided over
    several fractions. The capital falls with q. The limit is the q at which it is 1 / error.

    >>> shares = np.full(500, 0.5)
    >>> round(mean_limit(shares, 0.001), 4), mean_limit(0 * shares, 0.001)
    (0.4925, 0.0)
    """
    mean, least = float(shares.mean()), -math.log(error)
    if mean == 0:
        return 0.0

    def excess(log_q: float) -> float:
        with np.errstate(divide="ignore"):
            growth = np.log1p(_BETS[:, None] * (shares * math.exp(-log_q) - 1)).sum(axis=1)
        return float(special.logsumexp(growth, b=_PARTS)) - least

    top = math.log(mean)  # Here the capital is at most 1.
    step = 2 * least / len(shares)
    while excess(top - step) <= 0:
        step *= 2
    log_limit = optimize.brentq(excess, top - step, top, xtol=1e-10, rtol=1e-13)
    return math.exp(log_limit) * (1 - TUNING.rounding_margin)
