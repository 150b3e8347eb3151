"""What counts of an event prove: exact binomial limits, and how much of a claim they refute.

Pure statistics. Every limit holds for any sample size and any probability (Clopper and Pearson
1934): it is wrong with at most the stated error, never "approximately".

An event happens with probability P0 at one data set and P1 at its neighbour. All claims bound how
far the two may be apart, so that a lower limit of P0 and an upper limit of P1 give a lower bound on
the parameter of the claim. One pair of limits is held against every point of a claim at no further
error: the limits are wrong with the stated probability, whatever is concluded from them.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import ArgumentError, check_integer, check_positive, check_probability
from dpnoise.release.calibration import gaussian_scale

Counts = NDArray[np.integer | np.floating]

EPSILON: Final = "epsilon"
MU: Final = "mu"
RHO: Final = "rho"

# Orders of Rényi divergence: each of them alone is a valid bound on rho, the largest is taken.
_ORDERS: Final = 1 + np.geomspace(*TUNING.renyi_orders)
# SciPy's quantiles are accurate to about 1e-12. Moving a limit outward by this much keeps it exact,
# and so it does with a bound, moved toward the target's benefit.

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
    return float(stats.beta.ppf(error, hits, trials - hits + 1)) * (1 - TUNING.rounding_margin)


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
    return min(
        1.0, float(stats.beta.isf(error, hits + 1, trials - hits)) * (1 + TUNING.rounding_margin)
    )


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
    check_probability("error", error)
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
    check_probability("error", error)
    if delta != 0:
        check_probability("delta", delta)
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
    check_probability("error", error)
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
    check_probability("error", error)


@dataclass(frozen=True)
class Claim:
    """A claim of privacy, of which an audit certifies a lower bound.

    Examples
    --------
    >>> claims = Claim("epsilon", 1.0), Claim("epsilon", 1.0, 0.3), Claim("mu", 1.0)
    >>> [round(claim.bound(0.5, 0.25), 6) for claim in claims]
    [0.693147, 0.0, 0.67449]
    """

    kind: str  # "epsilon", "mu" (Gaussian privacy) or "rho" (zero-concentrated privacy).
    value: float
    delta: float = 0.0  # Beside epsilon; of the others, where their curve is read as an epsilon.

    def bounds(self, low: ArrayLike, high: ArrayLike, releases: int = 1) -> Floats:
        """Return the least parameter with which P0 >= low and P1 <= high, for each pair of them."""
        p0, p1 = np.broadcast_arrays(*(np.asarray(p, dtype=np.float64) for p in (low, high)))
        apart = (p0 > p1) & (p1 > 0)
        result = np.zeros(p0.shape)
        result[apart] = _FORMULAS[self.kind](p0[apart], p1[apart], self.delta, releases)
        return np.maximum(0.0, result * (1 - TUNING.rounding_margin))

    def bound(self, low: float, high: float, releases: int = 1) -> float:
        """Return the least parameter with which P0 >= low and P1 <= high."""
        return float(self.bounds(low, high, releases))

    def certified(self, low: float, high: float, releases: int = 1) -> float:
        """Return the bound, computed as `certified_epsilon` does where that is asked for."""
        if self.kind == EPSILON:
            return epsilon_of(low, high, delta=self.delta, releases=releases)
        return self.bound(low, high, releases)

    @property
    def is_ratio(self) -> bool:
        """Whether it bounds the ratio of two probabilities, and nothing else."""
        return self.kind == EPSILON and self.delta == 0

    @property
    def words(self) -> str:
        """The claim, as a report says it."""
        if self.kind == EPSILON:
            at = f", delta {self.delta:g}" if self.delta else ""
            return f"epsilon {self.value:g}{at}"
        notion = "Gaussian" if self.kind == MU else "zero-concentrated"
        return f"{self.kind} {self.value:g} ({notion} differential privacy)"


def _epsilon(p0: Floats, p1: Floats, delta: float, k: int) -> Floats:
    """P0 <= exp(k epsilon) P1 + k delta, by composition."""
    left = p0 - k * delta
    ratio = np.where(left > 0, left, p1) / p1
    return np.asarray(np.log(ratio) / k)


def _mu(p0: Floats, p1: Floats, _delta: float, k: int) -> Floats:
    """P0 <= Phi(Phi^-1(P1) + sqrt(k) mu): the whole curve of a Gaussian (Dong and others 2019)."""
    return np.asarray((special.ndtri(p0) - special.ndtri(p1)) / math.sqrt(k))


def _rho(p0: Floats, p1: Floats, _delta: float, k: int) -> Floats:
    """D_a(P0 || P1) <= a k rho for each order a > 1 (Bun and Steinke 2016), of the event alone."""
    a = _ORDERS[:, None]
    with np.errstate(divide="ignore"):
        happens = a * np.log(p0) + (1 - a) * np.log(p1)
        does_not = a * np.log1p(-p0) + (1 - a) * np.log1p(-p1)
    divergence = np.logaddexp(happens, does_not) / (a - 1)
    return np.asarray((divergence / a).max(axis=0) / k)


_FORMULAS: Final = {EPSILON: _epsilon, MU: _mu, RHO: _rho}


def claim_of(
    epsilon: float | None,
    delta: float = 0.0,
    *,
    mu: float | None = None,
    rho: float | None = None,
) -> Claim:
    """Return the one claim that was given.

    Examples
    --------
    >>> claim_of(1.0), claim_of(None, mu=0.5)
    (Claim(kind='epsilon', value=1.0, delta=0.0), Claim(kind='mu', value=0.5, delta=0.0))
    """
    given = {EPSILON: epsilon, MU: mu, RHO: rho}
    claimed = {kind: value for kind, value in given.items() if value is not None}
    if len(claimed) != 1:
        raise ArgumentError("Give one claim: epsilon=1.0 (with its delta), mu=1.0 or rho=0.5.")
    if delta != 0:
        delta = check_probability("delta", check_positive("delta", delta))
    ((kind, value),) = claimed.items()
    return Claim(kind, check_positive(kind, value), delta)


def gaussian_claim(epsilon: float, delta: float) -> Claim:
    """Return the curve that Gaussian noise calibrated to one point of it claims as a whole.

    Examples
    --------
    >>> round(gaussian_claim(1.0, 1e-5).value, 3)
    0.268
    """
    return Claim(MU, (1 + TUNING.rounding_margin) / gaussian_scale(epsilon, delta, 1.0), delta)


@dataclass(frozen=True)
class BoundEstimator:
    """Estimates the bound that an event will certify, to choose the best before counting it."""

    claim: Claim  # What it is held against.
    trials: int  # Of each data set, in which it will be counted.
    error: float  # Of the bound.
    chance: float = TUNING.chance  # Trials attributed to chance: of many events, more.
    caution: float = TUNING.caution  # Standard errors by which the estimate is discounted.

    def expected_bounds(self, hits0: Counts, hits1: Counts, n: int, releases: int = 1) -> Floats:
        """Return what each event would certify if its probabilities were about what n showed.

        Events without a bound get a negative number: closer to zero if less caution would give one,
        and then if their counts are clearer.
        """
        p0 = np.maximum(0.0, hits0 - self.chance) / n
        p1 = np.minimum(1.0, (hits1 + self.chance) / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Of what was never seen, `chance` is a guess that is high enough.
            spread1 = np.where(hits1 > 0, (1 - p1) / (n * p1), 0.0)
            spread = np.sqrt((1 - p0) / (n * p0) + spread1)
        return self.expects(p0, p1, spread, releases)

    def expects(self, p0: Floats, p1: Floats, spread: Floats, releases: int = 1) -> Floats:
        """Return what events of these probabilities would certify.

        `spread` is how uncertain the logarithm of each ratio is, as a standard error.
        """
        off = np.exp(self.caution * np.where(np.isfinite(spread), spread, 0.0) / 2)
        trials = max(1, self.trials // releases)
        seen0, seen1 = np.minimum(1.0, p0 / off) * trials, np.minimum(1.0, p1 * off) * trials
        low = lower_limits(seen0, trials, self.error / 2)
        high = upper_limits(seen1, trials, self.error / 2)
        bound = self.claim.bounds(low, high, releases)
        if self.claim.is_ratio and releases == 1:
            share = upper_limits(seen1, np.maximum(seen0 + seen1, 1e-3), TOSSED * self.error)
            bound = np.maximum(bound, special.logit(np.clip(1 - share, 1e-12, 1 - 1e-12)))
        left = np.maximum(p0 - releases * self.claim.delta, 1e-300)
        ratio = np.log(left) - np.log(np.maximum(p1, 1e-300))
        clear = np.clip(ratio / np.maximum(spread, 1e-9), -30.0, 30.0)
        if self.caution <= 1:
            return np.where(bound > 0, bound, -np.exp(-clear))
        bolder = replace(self, caution=1.0).expects(p0, p1, spread, releases)
        lower = np.where(bolder > 0, -np.exp(-np.maximum(bolder, 0.0)), bolder - 1)
        return np.where(bound > 0, bound, lower)


def lower_limits(hits: Counts, trials: int | Floats, error: float) -> Floats:
    """Return Clopper and Pearson's lower limit for each count, to choose by: it is not checked."""
    inside = special.betaincinv(np.maximum(hits, 1e-3), trials - hits + 1.0, error)
    return np.where(hits > 0, inside, 0.0)


def upper_limits(hits: Counts, trials: int | Floats, error: float) -> Floats:
    """Return Clopper and Pearson's upper limit for each count, to choose by."""
    inside = special.betaincinv(hits + 1.0, np.maximum(trials - hits, 1e-3), 1 - error)
    return np.where(hits < trials, inside, 1.0)
