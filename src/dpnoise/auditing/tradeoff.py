"""The certified trade-off curve: what events that were counted prove about all of f-DP at once.

A test that guesses the data set from one output has two error rates: alpha, where it takes the
second data set for the first, and beta, where it takes the first for the second. A mechanism is
f-DP if beta >= f(alpha) for every test on every pair of neighbours (Dong, Roth and Su 2019). An
event with probability at least `low` at one data set and at most `high` at the other is such a
test: alpha <= high and beta <= 1 - low. So every f that the mechanism satisfies is at most 1 - low
at high. Because f is convex and neighbours are symmetric, it is also below the convex hull of all
these points and of their mirror images.

If all limits hold together, all that is read off the curve holds together with them: epsilon at
every delta, mu, and rho.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from scipy import special

from dpnoise.auditing.attacks.certified_bounds import EPSILON, MU
from dpnoise.auditing.call_limits import CallCounts, limits_of
from dpnoise.auditing.learned.steps import find_cells
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import bound_text
from dpnoise.core.arrays import Floats, Integers

Corners = list[tuple[float, float]]

CURVE_DELTAS: Final = (0.0, 1e-6, 0.01, 0.1)  # The deltas at which a report states epsilon.

_ORDERS: Final = 1 + np.geomspace(*TUNING.renyi_orders)
# The range of the cuts' probabilities in log odds, and their number: more cuts share the error.
_CUT_LOG_ODDS: Final = (-6.0, 6.0, 25)
_CUT_VALUES: Final = 300  # Values of each data set from which the cuts are chosen.
_DRAWN_LOG_ODDS: Final = (-7.0, 7.0, 61)  # The same of the points of a drawn curve.


@dataclass(frozen=True)
class TradeoffPoint:
    """Limits of an event: its probability is at least `low` at value0, at most `high` at value1."""

    value0: float | str
    value1: float | str
    low: float
    high: float


@dataclass(frozen=True)
class TradeoffCurve:
    """An upper bound on the trade-off function of a mechanism: a lower bound on its privacy loss.

    Every bound on it holds at the same time, with the confidence of the report.

    Examples
    --------
    >>> curve = TradeoffCurve((TradeoffPoint("a", "b", 0.5, 0.1),))
    >>> [(round(alpha, 6), round(beta, 6)) for alpha, beta in curve.corners]
    [(0.0, 1.0), (0.1, 0.5), (0.5, 0.1), (1.0, 0.0)]
    >>> round(curve.beta(0.05), 6), round(curve.epsilon(), 6), round(curve.delta(1.0), 6)
    (0.75, 1.609438, 0.228172)
    """

    points: tuple[TradeoffPoint, ...]

    @property
    def corners(self) -> Corners:
        """The corners of the curve as (alpha, beta), from (0, 1) to (1, 0)."""
        both = [(p.high, 1 - p.low) for p in self.points]
        return _lower_hull([*both, *((beta, alpha) for alpha, beta in both)])

    def beta(self, alpha: float) -> float:
        """Return the largest beta that the mechanism can guarantee at this alpha."""
        alphas, betas = zip(*self.corners, strict=True)
        return float(np.interp(alpha, alphas, betas))

    def epsilon(self, delta: float = 0.0) -> float:
        """Return a lower bound on epsilon at this delta."""
        ratios = [(p.low - delta) / p.high for p in self.points if p.low > delta and p.high > 0]
        return max(0.0, math.log(max(ratios, default=1.0)))

    def delta(self, epsilon: float) -> float:
        """Return a lower bound on delta at this epsilon."""
        factor = math.exp(min(epsilon, 700.0))
        return max([0.0, *(p.low - factor * p.high for p in self.points)])

    @property
    def mu(self) -> float:
        """A lower bound on mu of Gaussian differential privacy."""
        differences = [special.ndtri(p.low) - special.ndtri(p.high) for p in self.points]
        return max(0.0, float(max(differences, default=0.0))) * (1 - TUNING.rounding_margin)

    @property
    def rho(self) -> float:
        """A lower bound on rho of zero-concentrated differential privacy.

        It is computed for one pair of data sets at a time. By data processing, the Rényi divergence
        of a pair is at least that of any pair whose trade-off function is the hull of its points.
        """
        pairs: dict[tuple[object, ...], Corners] = {}
        for p in self.points:
            pairs.setdefault((p.value0, p.value1), []).append((p.high, 1 - p.low))
            pairs.setdefault((p.value1, p.value0), []).append((1 - p.low, p.high))
        bounds = (_rho_of(_lower_hull(corners)) for corners in pairs.values())
        return max(bounds, default=0.0) * (1 - TUNING.rounding_margin)


def claim_curve(kind: str, value: float, delta: float = 0.0) -> Corners:
    """Return points of the trade-off function that a claim allows; none for rho, which has no one.

    >>> [(round(a, 2), round(b, 2)) for a, b in claim_curve("epsilon", math.log(4), 0.1)]
    [(0.0, 0.9), (0.18, 0.18), (0.9, 0.0), (1.0, 0.0)]
    """
    if kind == EPSILON:
        middle = (1 - delta) / (1 + math.exp(min(value, 700.0)))
        return [(0.0, 1 - delta), (middle, middle), (1 - delta, 0.0), (1.0, 0.0)]
    if kind != MU:
        return []
    alphas = special.expit(np.linspace(*_DRAWN_LOG_ODDS))
    betas = special.ndtr(-special.ndtri(alphas) - value)
    return [(0.0, 1.0), *zip(alphas.tolist(), betas.tolist(), strict=True), (1.0, 0.0)]


def curve_words(curve: TradeoffCurve) -> str:
    """Format what a certified curve says, or return an empty text if it says nothing.

    >>> print(curve_words(TradeoffCurve((TradeoffPoint("a", "b", 0.5, 0.1),))))
    epsilon is at least 1.6 at delta 0, 1.6 at 1e-06, 1.58 at 0.01, 1.38 at 0.1; mu 1.28; rho 0.532
    """
    bounds = [f"{bound_text(curve.epsilon(delta))} at {delta:g}" for delta in CURVE_DELTAS]
    if not curve.mu:
        return ""
    epsilons = ", ".join(bounds).replace(" at 0", " at delta 0", 1)
    rest = f"mu {bound_text(curve.mu)}; rho {bound_text(curve.rho)}"
    return f"epsilon is at least {epsilons}; {rest}"


class ScoreTally:
    """Counts the values of a score between cuts, in each call, for points of the curve.

    The cuts are quantiles of the values in the first calls. Those calls are not counted. How many
    they are depends on the sizes of calls only. So the cuts are fixed before the releases that are
    counted, and these are all releases of the later calls.
    """

    def __init__(self) -> None:
        self._first: tuple[list[Floats], list[Floats]] = ([], [])
        self._edges: Floats | None = None
        self._calls: tuple[list[Integers], list[Integers]] = ([], [])

    def add(self, side: int, values: Floats) -> None:
        """Add the values of a call for one of the two data sets."""
        if self._edges is None:
            self._first[side].append(values)
            if min(sum(map(len, calls)) for calls in self._first) >= _CUT_VALUES:
                levels = special.expit(np.linspace(*_CUT_LOG_ODDS))
                first = np.concatenate([*self._first[0], *self._first[1]])
                cuts = np.unique(np.quantile(first, levels, method="lower"))
                # The cells begin just above the cuts. The last edge is that of missing numbers.
                self._edges = np.append(np.nextafter(cuts[cuts < np.inf], np.inf), np.inf)
            return
        cells = np.bincount(find_cells(self._edges, values), minlength=len(self._edges) + 1)
        self._calls[side].append(np.append(cells[:-2], cells[-2:].sum()))

    def points(
        self, shown: tuple[float | str, float | str], error: float, *, one_by_one: bool = False
    ) -> list[TradeoffPoint]:
        """Return points that hold together, except with probability `error`.

        Larger values of the score must be likelier at the first data set. Of each cut there are two
        limits, which share the error (union bound). They are those of the cut's own counts in the
        calls: an effect that a call shares may show at one cut only. If `one_by_one`, a call makes
        one release, and calls are independent trials.
        """
        if not all(self._calls):
            return []
        # The values above each cut, in each call.
        above0, above1 = (np.array(calls)[:, ::-1].cumsum(axis=1)[:, ::-1] for calls in self._calls)
        cuts, points = above0.shape[1] - 1, []
        each = error / (2 * max(1, cuts))
        for i in range(1, cuts + 1):
            counts = CallCounts((above0[:, i], above1[:, i]), (above0[:, 0], above1[:, 0]))
            exact = limits_of(*counts.totals, each)
            # A point that exact limits do not separate is on no curve, whichever limits it has.
            if exact[0] <= exact[1]:
                continue
            limits = exact if one_by_one else counts.chosen_limits(each)
            points.append(TradeoffPoint(*shown, *limits))
        return [point for point in points if point.low > point.high]


def _lower_hull(points: Iterable[tuple[float, float]]) -> Corners:
    """Return the corners of the lower convex hull of points, with (0, 1) and (1, 0)."""
    hull: Corners = []
    for point in sorted({(0.0, 1.0), (1.0, 0.0), *points}):
        while len(hull) > 1 and _cross(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def _cross(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _rho_of(corners: Sequence[tuple[float, float]]) -> float:
    """Return the largest D_a / a of two laws with this trade-off function, over many orders a.

    Each edge of the hull is an outcome, of probability q at the second data set, p at the first.
    """
    steps = [(b[0] - a[0], a[1] - b[1]) for a, b in pairwise(corners)]
    q, p = (np.array(x) for x in zip(*((q, p) for q, p in steps if q > 0 and p > 0), strict=True))
    a = _ORDERS[:, None]
    divergence: Floats = special.logsumexp(a * np.log(p) + (1 - a) * np.log(q), axis=1)
    return max(0.0, float((divergence / (_ORDERS - 1) / _ORDERS).max()))
