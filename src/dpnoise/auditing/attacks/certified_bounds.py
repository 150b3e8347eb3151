"""Exact binomial limits from counts of an event, and the bounds on a claim that they certify.

Every limit holds for any sample size and any probability (Clopper and Pearson 1934): it is wrong
with at most the stated probability, not only approximately. This needs independent trials. Where
the counts of calls vary more than those of independent trials, the hits and trials are divided by
the ratio of these variances, `dispersion` (Korn and Graubard 1998).

An event happens with probability P0 at one data set and P1 at its neighbour. Every claim limits the
difference of P0 and P1. So a lower limit of P0 and an upper limit of P1 give a lower bound on the
parameter of the claim. One pair of limits can be compared with every point of a claim: the
probability that the limits are wrong does not depend on the conclusions.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import (
    ArgumentError,
    check_delta,
    check_integer,
    check_positive,
    check_probability,
)
from dpnoise.release.calibration import gaussian_scale

Counts = NDArray[np.integer | np.floating]

EPSILON: Final = "epsilon"
MU: Final = "mu"
RHO: Final = "rho"

# Orders of Rényi divergence: each gives a valid bound on rho, and the largest is taken.
_ORDERS: Final = 1 + np.geomspace(*TUNING.renyi_orders)
# The fraction of the error for the ratio, if a coin is tossed; the two limits share the rest. The
# second fraction is the part of the first for the hits that delta allows.
RATIO_ERROR_SHARE: Final = 0.9
DELTA_ERROR_SHARE: Final = 0.05

# Parameters of a beta law from which on `beta_quantiles` are approximate.
_LEAST_PARAMETER: Final = 50.0

# SciPy's quantiles are accurate to about 1e-12. `TUNING.rounding_margin` moves limits outward, and
# bounds in the target's favour, by more than that: so they stay valid.


def lower_limit(hits: int, trials: int, error: float, dispersion: float = 1.0) -> float:
    """Return a lower limit of the event's probability, wrong with probability at most `error`.

    Examples
    --------
    >>> lower_limit(0, 100, error=0.01), round(lower_limit(100, 100, error=0.01), 3)
    (0.0, 0.955)
    """
    _check(hits, trials, error)
    if hits == 0 or math.isinf(dispersion):
        return 0.0
    shapes = hits / dispersion, (trials - hits) / dispersion + 1
    return float(stats.beta.ppf(error, *shapes)) * (1 - TUNING.rounding_margin)


def upper_limit(hits: int, trials: int, error: float, dispersion: float = 1.0) -> float:
    """Return an upper limit of the event's probability, wrong with probability at most `error`.

    Examples
    --------
    >>> round(upper_limit(0, 100, error=0.01), 3), upper_limit(100, 100, error=0.01)
    (0.045, 1.0)
    """
    _check(hits, trials, error)
    if hits == trials or math.isinf(dispersion):
        return 1.0
    shapes = hits / dispersion + 1, (trials - hits) / dispersion
    limit = float(stats.beta.isf(error, *shapes))
    return min(1.0, limit * (1 + TUNING.rounding_margin))


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
    dispersion: float = 1.0,
) -> float:
    """Return a lower bound on the epsilon of an (epsilon, delta)-private target.

    An event E over k releases of an (epsilon, delta)-private target has, by composition,

        P0(E) <= exp(k epsilon) P1(E) + k delta

    so epsilon >= log((P0 - k delta) / P1) / k, with P0 at its lower and P1 at its upper limit. The
    bound is too large with probability at most `error`. Zero means that nothing is certified.

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
    low = lower_limit(hits0, trials0, error / 2, dispersion)
    high = upper_limit(hits1, trials1, error / 2, dispersion)
    return epsilon_of(low, high, delta=delta, releases=releases)


def tossed_epsilon(
    hits0: int,
    trials0: int,
    hits1: int,
    trials1: int,
    *,
    error: float,
    delta: float = 0.0,
    dispersion: float = 1.0,
) -> float:
    """Return a lower bound on epsilon, if a fair coin chose the data set of each trial.

    Of h trials in which the event happened, the number at the second data set is binomial, with
    probability P1 / (P0 + P1). So one limit bounds the ratio, which is sharper than two limits. The
    rest of the error is for the two limits, which are sharper if the event nearly always happens.

    With a delta, P0 = A + B with A <= exp(epsilon) P1 and B <= delta. Label each hit at the first
    data set independently, with probability B / P0. The labelled hits are at most `delta_hits`,
    except with a part of the error. The ratio A / P1 is bounded as above by the other hits.

    Examples
    --------
    >>> counts = 1100, 100_000, 1000, 100_000
    >>> [round(epsilon(*counts, error=0.1), 3) for epsilon in (certified_epsilon, tossed_epsilon)]
    [0.0, 0.036]
    """
    check_probability("error", error)
    counts, limit_error = (hits0, trials0, hits1, trials1), (1 - RATIO_ERROR_SHARE) * error
    by_limits = certified_epsilon(*counts, error=limit_error, delta=delta, dispersion=dispersion)
    by_ratio = ratio_epsilon(
        hits0,
        hits1,
        trials0 + trials1,
        error=RATIO_ERROR_SHARE * error,
        delta=delta,
        dispersion=dispersion,
    )
    return max(by_limits, by_ratio)


def ratio_epsilon(
    hits0: int,
    hits1: int,
    trials: int,
    *,
    error: float,
    delta: float = 0.0,
    dispersion: float = 1.0,
) -> float:
    """Return a lower bound on epsilon from the ratio of the hits at both data sets only.

    A fair coin chose the data set of each of the `trials`, as in `tossed_epsilon`. Trials may
    depend on earlier ones: given these, each claim and each toss holds.

    Examples
    --------
    >>> round(ratio_epsilon(1100, 1000, 200_000, error=0.1), 3)
    0.038
    """
    if delta and math.isfinite(dispersion):
        labelled = delta_hits(math.ceil(trials / dispersion), delta, DELTA_ERROR_SHARE * error)
        hits0, error = hits0 - math.ceil(labelled * dispersion), (1 - DELTA_ERROR_SHARE) * error
    if hits0 <= 0:
        return 0.0
    share = upper_limit(hits1, hits0 + hits1, error, dispersion)
    return max(0.0, math.log1p(-share) - math.log(share)) if share < 1 else 0.0


@lru_cache(maxsize=64)
def delta_hits(trials: int, delta: float, error: float) -> int:
    """Return a number of hits that an event of probability delta exceeds only with this error.

    A fair coin chooses for each trial whether the event, which is of one data set, can happen.

    >>> delta_hits(1000, 0.0, 0.01), delta_hits(1000, 2e-6, 0.01), delta_hits(1000, 0.02, 0.01)
    (0, 0, 18)
    """
    hits = max(0, int(stats.binom.isf(error, trials, delta / 2)))
    while stats.binom.sf(hits, trials, delta / 2) > error:  # The quantile is rounded.
        hits += 1
    return hits


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

    >>> claims = Claim("epsilon", 1.0), Claim("epsilon", 1.0, 0.3), Claim("mu", 1.0)
    >>> [round(claim.bound(0.5, 0.25), 6) for claim in claims]
    [0.693147, 0.0, 0.67449]
    """

    kind: str  # "epsilon", "mu" (Gaussian privacy) or "rho" (zero-concentrated privacy).
    value: float
    delta: float = 0.0  # The delta at which a report states epsilon.

    def bounds(self, low: ArrayLike, high: ArrayLike, releases: int = 1) -> Floats:
        """Return the least parameter that allows P0 >= low and P1 <= high, for each pair."""
        p0, p1 = np.broadcast_arrays(*(np.asarray(p, dtype=np.float64) for p in (low, high)))
        differ = (p0 > p1) & (p1 > 0)
        result = np.zeros(p0.shape)
        result[differ] = _FORMULAS[self.kind](p0[differ], p1[differ], self.delta, releases)
        return np.maximum(0.0, result * (1 - TUNING.rounding_margin))

    def bound(self, low: float, high: float, releases: int = 1) -> float:
        """Return the least parameter that allows P0 >= low and P1 <= high."""
        return float(self.bounds(low, high, releases))

    def certified_bound(self, low: float, high: float, releases: int = 1) -> float:
        """Return the certified bound; for epsilon, it equals that of `certified_epsilon`."""
        if self.kind == EPSILON:
            return epsilon_of(low, high, delta=self.delta, releases=releases)
        return self.bound(low, high, releases)

    @property
    def is_ratio(self) -> bool:
        """Whether the claim bounds the ratio of two probabilities, apart from its delta."""
        return self.kind == EPSILON

    @property
    def words(self) -> str:
        """The claim in words."""
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
    """D_a(P0 || P1) <= a k rho for each order a > 1 (Bun and Steinke 2016), for one event."""
    a = _ORDERS[:, None]
    with np.errstate(divide="ignore"):
        happens = a * np.log(p0) + (1 - a) * np.log(p1)
        does_not = a * np.log1p(-p0) + (1 - a) * np.log1p(-p1)
    divergence = np.logaddexp(happens, does_not) / (a - 1)
    return np.asarray((divergence / a).max(axis=0) / k)


_FORMULAS: Final = {EPSILON: _epsilon, MU: _mu, RHO: _rho}


def claim_of(
    epsilon: float | None, delta: float = 0.0, *, mu: float | None = None, rho: float | None = None
) -> Claim:
    """Return the claim of the one parameter that is not None.

    >>> claim_of(1.0), claim_of(None, mu=0.5)
    (Claim(kind='epsilon', value=1.0, delta=0.0), Claim(kind='mu', value=0.5, delta=0.0))
    """
    parameters = {EPSILON: epsilon, MU: mu, RHO: rho}
    claimed = {kind: value for kind, value in parameters.items() if value is not None}
    if len(claimed) != 1:
        raise ArgumentError("Give one claim: epsilon=1.0 (with its delta), mu=1.0 or rho=0.5.")
    if delta != 0:
        delta = check_delta(delta)
    ((kind, value),) = claimed.items()
    return Claim(kind, check_positive(kind, value), delta)


def gaussian_claim(epsilon: float, delta: float) -> Claim:
    """Return the whole privacy curve of Gaussian noise calibrated to (epsilon, delta).

    >>> round(gaussian_claim(1.0, 1e-5).value, 3)
    0.268
    """
    return Claim(MU, (1 + TUNING.rounding_margin) / gaussian_scale(epsilon, delta, 1.0), delta)


@dataclass(frozen=True)
class BoundEstimator:
    """Estimates the bound that an event will certify, to choose the best before counting it."""

    claim: Claim  # The claim that the audit tries to refute.
    trials: int  # Releases of each data set in which the event will be counted.
    error: float  # The probability that the bound is too large.
    # Trials attributed to chance: more if many events are compared.
    chance: float = TUNING.chance_trials
    caution: float = TUNING.discount  # Standard errors by which the estimate is discounted.
    tossed: bool = True  # Whether a coin will choose the data set of each release.

    def expected_bounds(self, hits0: Counts, hits1: Counts, n: int, releases: int = 1) -> Floats:
        """Return the expected bound of each event, given its hits in n releases.

        Events without a bound get a negative number, for ranking. It is closer to zero if less
        caution would give a bound, and if the counts differ more clearly.
        """
        p0 = np.maximum(0.0, hits0 - self.chance) / n
        p1 = np.minimum(1.0, (hits1 + self.chance) / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            # For an event without hits, `chance` is a sufficiently high estimate.
            spread1 = np.where(hits1 > 0, (1 - p1) / (n * p1), 0.0)
            spread = np.sqrt((1 - p0) / (n * p0) + spread1)
        return self.bounds_of(p0, p1, spread, releases)

    def bounds_of(self, p0: Floats, p1: Floats, spread: Floats, releases: int = 1) -> Floats:
        """Return the expected bounds of events with these probabilities.

        `spread` is the standard error of the logarithm of each ratio.
        """
        discount = self.caution * np.where(np.isfinite(spread), spread, 0.0)
        # Each probability gets the part of the discount that its variance has in the ratio's.
        odds0, odds1 = ((1 - p) / np.maximum(p, 1e-300) for p in (p0, p1))
        part = odds0 / np.maximum(odds0 + odds1, 1e-300)
        trials = max(1, self.trials // releases)
        seen0 = np.minimum(1.0, p0 * np.exp(-discount * part)) * trials
        seen1 = np.minimum(1.0, p1 * np.exp(discount * (1 - part))) * trials
        low = lower_limits(seen0, trials, self.error / 2)
        high = upper_limits(seen1, trials, self.error / 2)
        bound = self.claim.bounds(low, high, releases)
        if self.tossed and self.claim.is_ratio and releases == 1:
            error, delta = RATIO_ERROR_SHARE * self.error, self.claim.delta
            labelled = delta_hits(2 * trials, delta, DELTA_ERROR_SHARE * error) if delta else 0
            seen = np.maximum(np.maximum(0.0, seen0 - labelled) + seen1, 1e-3)
            share = upper_limits(seen1, seen, error * (1 - DELTA_ERROR_SHARE * (delta > 0)))
            bound = np.maximum(bound, special.logit(np.clip(1 - share, 1e-12, 1 - 1e-12)))
        left = np.maximum(p0 - releases * self.claim.delta, 1e-300)
        ratio = np.log(left) - np.log(np.maximum(p1, 1e-300))
        clarity = np.clip(ratio / np.maximum(spread, 1e-9), -30.0, 30.0)
        if self.caution <= 1:
            return np.where(bound > 0, bound, -np.exp(-clarity))
        bolder = replace(self, caution=1.0).bounds_of(p0, p1, spread, releases)
        rank = np.where(bolder > 0, -np.exp(-np.maximum(bolder, 0.0)), bolder - 1)
        return np.where(bound > 0, bound, rank)


def lower_limits(hits: Counts, trials: int | Floats, error: float) -> Floats:
    """Return Clopper and Pearson's lower limit for each count, for choosing events only."""
    inside = beta_quantiles(np.maximum(hits, 1e-3), trials - hits + 1.0, error)
    return np.where(hits > 0, inside, 0.0)


def upper_limits(hits: Counts, trials: int | Floats, error: float) -> Floats:
    """Return Clopper and Pearson's upper limit for each count, for choosing events only."""
    inside = beta_quantiles(hits + 1.0, np.maximum(trials - hits, 1e-3), 1 - error)
    return np.where(hits < trials, inside, 1.0)


def beta_quantiles(a: Counts, b: Counts, share: float) -> Floats:
    """Return a quantile of each beta law, for choosing events only.

    If both parameters are large, Paulson's normal law for the cube root of a ratio (1942) gives it.
    An exact quantile takes 45 times as long, and an audit computes thousands.
    """
    a, b = (np.asarray(x, dtype=np.float64) for x in np.broadcast_arrays(a, b))
    z, at, bt = special.ndtri(share), 1 / (9 * a), 1 / (9 * b)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.sqrt(at * (1 - bt) ** 2 + bt * (1 - at) ** 2 - at * bt * z**2)
        root = ((1 - at) * (1 - bt) + z * deviation) / ((1 - bt) ** 2 - bt * z**2)
        quantiles = np.asarray(special.expit(np.log(a) - np.log(b) + 3 * np.log(root)))
    few = np.minimum(a, b) < _LEAST_PARAMETER
    quantiles[few] = special.betaincinv(a[few], b[few], share)
    return quantiles
