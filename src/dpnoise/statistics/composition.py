"""What several releases cost together, each no more than its part and all less than the sum.

Two kinds of loss. *Pure*: any epsilon-private mechanism, whatever it does (Laplace noise, a
selection). *Gaussian*: Gaussian noise, by rho = sensitivity^2 / (2 scale^2). Nothing else is known
of a mechanism, so the worst of its kind stands for it: randomised response, which loses +epsilon or
-epsilon, for a pure one (Kairouz, Oh and Viswanath 2015). The privacy losses of all add up, also
where a mechanism depends on what an earlier one gave (Zhu, Dong and Wang 2022, theorem 10), so
delta at epsilon is a sum of Gaussian curves, which ball arithmetic encloses. Costs are exact
fractions, rounded up where they must be rounded; parts of a budget are floats, rounded down.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from flint import arb

from dpnoise.core.errors import (
    ArgumentError,
    check_choice,
    check_positive,
    check_probability,
    reject,
)
from dpnoise.core.reference import Ball, ball_of
from dpnoise.release.calibration import (
    certainly_at_most,
    gaussian_scale,
    phi,
    quotient_down,
    smallest_float,
)

PURE: Final = "pure"
GAUSSIAN: Final = "gaussian"
KINDS: Final = (PURE, GAUSSIAN)
_MOST_SUMS: Final = 128  # Of privacy losses; more of them are composed by zCDP.
_BITS: Final = 128


@dataclass(frozen=True)
class Loss:
    """What one mechanism costs: epsilon if its kind is "pure", rho if it is "gaussian".

    Examples
    --------
    >>> Loss("pure", 1.0).rho, Loss("gaussian", 0.5).rho
    (Fraction(1, 2), Fraction(1, 2))
    """

    kind: str
    amount: float

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        object.__setattr__(self, "amount", check_positive("amount", self.amount))

    @property
    def rho(self) -> Fraction:
        """The loss in zCDP: epsilon^2/2 for a pure one (Bun and Steinke 2016, proposition 3.3).

        Half of a half would do for the exponential mechanism, whose range is bounded (Cesar and
        Rogers 2021). Permute-and-flip's is not: docs/budgets.md has two data sets that show it.
        """
        amount = Fraction(self.amount)
        return amount * amount / 2 if self.kind == PURE else amount


@dataclass(frozen=True)
class Cost:
    """What a release spends, exactly, in both metrics.

    Parameters
    ----------
    epsilon, delta
        It is (epsilon, delta)-private. None: for no finite epsilon.
    rho, rho_delta
        It is rho_delta-approximately rho-zCDP.

    Examples
    --------
    >>> cost = compose([Loss("pure", 0.5), Loss("pure", 0.25)])
    >>> cost.epsilon, cost.rho
    (Fraction(3, 4), Fraction(5, 32))
    """

    epsilon: Fraction | None
    delta: Fraction
    rho: Fraction
    rho_delta: Fraction

    def floats(self) -> dict[str, float | None]:
        """Return the four numbers as floats, rounded up.

        Examples
        --------
        >>> compose([Loss("pure", 0.5)]).floats()
        {'epsilon': 0.5, 'delta': 0.0, 'rho': 0.125, 'rho_delta': 0.0}
        """
        return {
            "epsilon": None if self.epsilon is None else float_up(self.epsilon),
            "delta": float_up(self.delta),
            "rho": float_up(self.rho),
            "rho_delta": float_up(self.rho_delta),
        }


def compose(losses: Sequence[Loss], delta: float = 0.0, *, aside: float = 0.0) -> Cost:
    """Return what the mechanisms of one request cost together: never more than the plain sum.

    Parameters
    ----------
    losses
        What each mechanism costs.
    delta
        Where epsilon is read: with 0 it is the sum of epsilons, and there is none for Gaussians.
    aside
        The probability that is set aside beside it, for groups that are discovered.

    Examples
    --------
    >>> thirty = compose([Loss("pure", 0.1)] * 30, delta=1e-3)
    >>> round(thirty.floats()["epsilon"], 2)
    1.48
    """
    if not losses:
        raise ArgumentError("There must be at least one loss.")
    own, beside = (
        Fraction(check_probability(name, value, ends=True))
        for name, value in (("delta", delta), ("aside", aside))
    )
    if own + beside >= 1:
        reject("delta", float(own + beside), "be below 1, with what is set aside")
    curve = Curve(losses)
    epsilon = None if curve.gaussian else curve.pure
    if own:
        found = curve.epsilon_at(float(own))
        epsilon = None if math.isinf(found) else Fraction(found)
    return Cost(epsilon, own + beside, sum((loss.rho for loss in losses), Fraction(0)), beside)


class Curve:
    """Delta as a function of epsilon, for the worst mechanisms that have these losses."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.losses = losses
        self.epsilons = [Fraction(loss.amount) for loss in losses if loss.kind == PURE]
        self.pure = sum(self.epsilons, Fraction(0))
        parts = (Fraction(loss.amount) for loss in losses if loss.kind == GAUSSIAN)
        self.gaussian = sum(parts, Fraction(0))

    @cached_property
    def sums(self) -> dict[Fraction, int] | None:
        """In how many ways +-e1 +- ... +-ek give each sum, or None if there are too many sums."""
        if len(self.epsilons) >= _MOST_SUMS:
            return None  # k of them have k + 1 sums, or more.
        ways = Counter({Fraction(0): 1})
        for epsilon in self.epsilons:
            after: Counter[Fraction] = Counter()
            for total, number in ways.items():
                after[total + epsilon] += number
                after[total - epsilon] += number
            ways = after
            if len(ways) > _MOST_SUMS:
                return None
        return ways

    def epsilon_at(self, delta: float) -> float:
        """Return the smallest epsilon that suffices: at most the plain sum, and that of zCDP."""
        bounds = [_zcdp_epsilon(sum((loss.rho for loss in self.losses), Fraction(0)), delta)]
        if self.gaussian and self.epsilons:
            alone = Curve([loss for loss in self.losses if loss.kind == GAUSSIAN])
            bounds.append(float_up(self.pure + Fraction(alone.epsilon_at(delta))))
        elif self.epsilons:
            bounds.append(float_up(self.pure))
        most = min(bounds)
        if math.isinf(most) or self.sums is None or not self.suffices(most, delta):
            return most
        if self.suffices(0.0, delta):
            return 0.0
        return smallest_float(lambda epsilon: self.suffices(epsilon, delta), most)

    def suffices(self, epsilon: float, delta: float) -> bool:
        """Tell whether all together are certainly (epsilon, delta)-private."""
        if self.sums is None:
            return self.epsilon_at(delta) <= epsilon
        return certainly_at_most(lambda bits: self._delta(epsilon, bits), ball_of(delta))

    def _delta(self, epsilon: float, bits: int) -> arb:
        """Enclose the sum over all losses s of P(s) delta(epsilon - s), the Gaussian's curve.

        P(s) is n(s) exp((s - E)/2) over the product of 1 + exp(-e), if n(s) ways lead to s and E is
        the sum of all e: randomised response says the truth with probability 1/(1 + exp(-e)).
        """
        total, whole = _ball(Fraction(0), bits), _ball(Fraction(1), bits)
        for loss, ways in (self.sums or {}).items():
            weight = ways * (_ball(loss - self.pure, bits) / 2).exp()
            total = total + weight * self._gaussian_delta(Fraction(epsilon) - loss, bits)
        for each in self.epsilons:
            whole = whole * (1 + (-_ball(each, bits)).exp())
        return (total / whole).enclosure

    def _gaussian_delta(self, epsilon: Fraction, bits: int) -> Ball:
        """Enclose delta of the Gaussian part: Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m), m^2 = 2 rho.

        Without a Gaussian part it is what remains of it for m = 0, max(0, 1 - exp(e)).
        """
        e = _ball(epsilon, bits)
        if not self.gaussian:
            return (1 - e.exp()).nonnegative_part()
        m = (2 * _ball(self.gaussian, bits)).sqrt()
        return phi(m / 2 - e / m) - e.exp() * phi(-m / 2 - e / m)


def epsilon_of_gaussian(rho: float, delta: float) -> float:
    """Return the epsilon of Gaussian noise at a delta: the exact curve, rounded up.

    Examples
    --------
    >>> round(epsilon_of_gaussian(0.5, 1e-6), 4)
    4.8866
    """
    return Curve([Loss(GAUSSIAN, rho)]).epsilon_at(check_delta(delta))


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Return an epsilon of any rho-zCDP mechanism at a delta, rounded up.

    By Canonne, Kamath and Steinke (2020). Gaussian noise alone has a smaller one.

    Examples
    --------
    >>> round(epsilon_of_zcdp(0.5, 1e-6), 4)
    5.2215
    """
    return _zcdp_epsilon(Fraction(check_positive("rho", rho)), check_delta(delta))


def _zcdp_epsilon(rho: Fraction, delta: float) -> float:
    """Return alpha rho + (log(1/delta) + alpha log(1 - 1/alpha) - log(alpha - 1))/(alpha - 1).

    It holds for every alpha > 1. One near the best is found in floats; the formula is enclosed.
    """
    size, surprise = float_up(rho), -math.log(delta)
    if math.isinf(size):
        return size

    def roughly(power: float) -> float:
        less: float = 2.0**power  # alpha - 1
        curved = (1 + less) * (math.log(less) - math.log1p(less)) - math.log(less)
        return (1 + less) * size + (surprise + curved) / less

    start = (math.log2(surprise) - math.log2(size)) / 2
    low, high = max(start - 20, -1000.0), min(start + 20, 1000.0)
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if roughly(left) < roughly(right) else (left, high)
    less, surprised = _ball(Fraction(2.0**low)), -_ball(Fraction(delta)).log()
    alpha = 1 + less
    curved = alpha * (less / alpha).log() - less.log()
    return max(_up(alpha * _ball(rho) + (surprised + curved) / less), 0.0)


def gaussian_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho whose Gaussian noise is (epsilon, delta)-private, rounded down.

    Examples
    --------
    >>> round(gaussian_rho(1.0, 1e-6), 6)
    0.028014
    """
    scale = Fraction(gaussian_scale(epsilon, delta, 1.0))
    return quotient_down(Fraction(1), 2 * scale * scale)


def float_up(number: Fraction) -> float:
    """Return the smallest float that is at least a number, which may be infinite."""
    try:
        nearest = number.numerator / number.denominator
    except OverflowError:
        return math.inf
    return nearest if nearest >= number else math.nextafter(nearest, math.inf)


def check_delta(delta: float) -> float:
    """Return a delta between 0 and 1, without the two."""
    return check_probability("delta", check_positive("delta", delta))


def _ball(number: Fraction, bits: int = 4 * _BITS) -> Ball:
    return Ball(ball_of(number), bits)


def _up(ball: Ball) -> float:
    """Return a float that is at least every number of a ball."""
    ends = (end.man_exp() for end in (ball.enclosure.mid(), ball.enclosure.rad()))
    parts = (Fraction(int(mantissa)) * Fraction(2) ** int(power) for mantissa, power in ends)
    return float_up(sum(parts, Fraction(0)))
