"""Composition: the total privacy cost of several releases, at most the sum of their costs.

There are two kinds of loss. *Pure*: any epsilon-private mechanism, such as Laplace noise or a
selection. *Gaussian*: Gaussian noise, with rho = sensitivity^2 / (2 scale^2). The worst mechanism
of a kind represents all others. For a pure loss this is randomised response, which loses +epsilon
or -epsilon (Kairouz, Oh and Viswanath 2015). Privacy losses add up, even if a mechanism depends on
earlier results (Zhu, Dong and Wang 2022, theorem 10). So delta at epsilon is a weighted sum of
shifted Gaussian delta curves, one for each total loss of the randomised responses. Ball arithmetic
encloses it. Costs are exact fractions, rounded up where rounding is necessary. Parts of a budget
are floats, rounded down.
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
    check_delta,
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
_MOST_SUMS: Final = 128  # With more sums of privacy losses, composition uses zCDP, which is faster.
_BITS: Final = 128  # More than twice the precision of a float.


@dataclass(frozen=True)
class Loss:
    """The privacy loss of one mechanism.

    Parameters
    ----------
    kind
        "pure" for any epsilon-private mechanism, "gaussian" for Gaussian noise.
    amount
        The epsilon of a pure loss, or the rho of a Gaussian loss; greater than 0.

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
        """The loss in zCDP; epsilon^2/2 if it is pure (Bun and Steinke 2016, proposition 3.3).

        For the exponential mechanism, epsilon^2/8 is enough, because its range is bounded (Cesar
        and Rogers 2021). Permute-and-flip has no such bound: docs/statistics-proofs.md has a
        counterexample.
        """
        amount = Fraction(self.amount)
        return amount * amount / 2 if self.kind == PURE else amount


@dataclass(frozen=True)
class Cost:
    """The exact cost of a release, in both metrics.

    Parameters
    ----------
    epsilon, delta
        The release is (epsilon, delta)-private. None means that no finite epsilon holds.
    rho, rho_delta
        The release is rho_delta-approximately rho-zCDP.

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


def compose(  # Most of its lines are documentation.
    losses: Sequence[Loss], delta: float = 0.0, *, aside: float = 0.0
) -> Cost:
    """Return the total cost of several mechanisms, at most the sum of their costs.

    Parameters
    ----------
    losses
        The loss of each mechanism.
    delta
        The probability for which epsilon is computed. At 0, epsilon is the sum of all epsilons, and
        Gaussian noise has none.
    aside
        The part of delta that is set aside for discovering groups. It is added to `delta`.

    Raises
    ------
    ArgumentError
        If there is no loss, or if a probability is out of range.

    Examples
    --------
    >>> thirty = compose([Loss("pure", 0.1)] * 30, delta=1e-3)
    >>> round(thirty.floats()["epsilon"], 2)
    1.48
    """
    if not losses:
        raise ArgumentError("There must be at least one loss.")
    composition_delta, discovery_delta = (
        Fraction(check_probability(name, value, include_ends=True))
        for name, value in (("delta", delta), ("aside", aside))
    )
    total_delta = composition_delta + discovery_delta
    if total_delta >= 1:
        reject("delta", float(total_delta), "be below 1, with what is set aside")
    curve = DeltaCurve(losses)
    epsilon = None if curve.total_gaussian_rho else curve.pure_epsilon
    if composition_delta:
        smallest = curve.epsilon_at(float(composition_delta))
        epsilon = None if math.isinf(smallest) else Fraction(smallest)
    rho = sum((loss.rho for loss in losses), Fraction(0))
    return Cost(epsilon, total_delta, rho, discovery_delta)


class DeltaCurve:
    """Delta as a function of epsilon, for the worst mechanisms with these losses."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.losses = losses
        self.epsilons = [Fraction(loss.amount) for loss in losses if loss.kind == PURE]
        self.pure_epsilon = sum(self.epsilons, Fraction(0))
        rhos = (Fraction(loss.amount) for loss in losses if loss.kind == GAUSSIAN)
        self.total_gaussian_rho = sum(rhos, Fraction(0))

    @cached_property
    def ways_by_sum(self) -> dict[Fraction, int] | None:
        """Map each sum of +-e1, ..., +-ek to the number of sign choices that give it.

        None if there are more than 128 sums.
        """
        if len(self.epsilons) >= _MOST_SUMS:
            return None  # k epsilons have at least k + 1 sums.
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
        """Return an epsilon that holds at a delta. With at most 128 sums it is the smallest one.

        It is at most the sum of all epsilons, and at most the bound of zCDP.
        """
        bounds = [_zcdp_epsilon(sum((loss.rho for loss in self.losses), Fraction(0)), delta)]
        if self.total_gaussian_rho and self.epsilons:
            gaussian_curve = DeltaCurve([loss for loss in self.losses if loss.kind == GAUSSIAN])
            bounds.append(float_up(self.pure_epsilon + Fraction(gaussian_curve.epsilon_at(delta))))
        elif self.epsilons:
            bounds.append(float_up(self.pure_epsilon))
        most = min(bounds)
        if math.isinf(most) or self.ways_by_sum is None or not self.is_private_at(most, delta):
            return most
        if self.is_private_at(0.0, delta):
            return 0.0
        return smallest_float(lambda epsilon: self.is_private_at(epsilon, delta), most)

    def is_private_at(self, epsilon: float, delta: float) -> bool:
        """Return whether all losses together are certainly (epsilon, delta)-private."""
        if self.ways_by_sum is None:
            return self.epsilon_at(delta) <= epsilon
        return certainly_at_most(lambda bits: self._delta(epsilon, bits), ball_of(delta))

    def _delta(self, epsilon: float, bits: int) -> arb:
        """Enclose the sum of P(s) delta(epsilon - s) over all losses s.

        delta(...) is the curve of the Gaussian part. n(s) sign choices give the loss s, and E is
        the sum of all e. P(s) is n(s) exp((s - E)/2) divided by the product of all 1 + exp(-e),
        because randomised response says the truth with probability 1/(1 + exp(-e)).
        """
        total, product = to_ball(Fraction(0), bits), to_ball(Fraction(1), bits)
        for loss, ways in (self.ways_by_sum or {}).items():
            weight = ways * (to_ball(loss - self.pure_epsilon, bits) / 2).exp()
            total = total + weight * self._gaussian_delta(Fraction(epsilon) - loss, bits)
        for each in self.epsilons:
            product = product * (1 + (-to_ball(each, bits)).exp())
        return (total / product).enclosure

    def _gaussian_delta(self, epsilon: Fraction, bits: int) -> Ball:
        """Enclose delta of the Gaussian part: Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m), m^2 = 2 rho.

        Without a Gaussian part it is the limit for m = 0, max(0, 1 - exp(e)).
        """
        e = to_ball(epsilon, bits)
        if not self.total_gaussian_rho:
            return (1 - e.exp()).nonnegative_part()
        m = (2 * to_ball(self.total_gaussian_rho, bits)).sqrt()
        return phi(m / 2 - e / m) - e.exp() * phi(-m / 2 - e / m)


def epsilon_of_gaussian(rho: float, delta: float) -> float:
    """Return the epsilon of Gaussian noise at a delta, from its exact curve, rounded up.

    Parameters
    ----------
    rho
        The loss in zero-concentrated differential privacy, greater than 0.
    delta
        The probability that epsilon does not hold, between 0 and 1; 1e-6 is common.

    Examples
    --------
    >>> round(epsilon_of_gaussian(0.5, 1e-6), 4)
    4.8866
    """
    return DeltaCurve([Loss(GAUSSIAN, rho)]).epsilon_at(check_delta(delta))


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Return an epsilon that holds for every rho-zCDP mechanism at a delta, rounded up.

    The bound is by Canonne, Kamath and Steinke (2020). Gaussian noise has a smaller epsilon: see
    `epsilon_of_gaussian`.

    Parameters
    ----------
    rho, delta
        As for `epsilon_of_gaussian`.

    Examples
    --------
    >>> round(epsilon_of_zcdp(0.5, 1e-6), 4)
    5.2215
    """
    return _zcdp_epsilon(Fraction(check_positive("rho", rho)), check_delta(delta))


def _zcdp_epsilon(rho: Fraction, delta: float) -> float:
    """Return a bound on epsilon, nearly the smallest over all alpha > 1.

    It is alpha rho + (log(1/delta) + alpha log(1 - 1/alpha) - log(alpha - 1))/(alpha - 1), which
    holds for every alpha > 1. A search in floats finds a nearly optimal alpha. Ball arithmetic then
    encloses the formula.
    """
    rho_float, log_inverse_delta = float_up(rho), -math.log(delta)
    if math.isinf(rho_float):
        return rho_float

    def approximate(power: float) -> float:
        alpha_minus_1: float = 2.0**power
        log_ratio = math.log(alpha_minus_1) - math.log1p(alpha_minus_1)
        correction = (1 + alpha_minus_1) * log_ratio - math.log(alpha_minus_1)
        return (1 + alpha_minus_1) * rho_float + (log_inverse_delta + correction) / alpha_minus_1

    start = (math.log2(log_inverse_delta) - math.log2(rho_float)) / 2
    low, high = max(start - 20, -1000.0), min(start + 20, 1000.0)
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if approximate(left) < approximate(right) else (left, high)
    alpha_minus_1, log_delta = to_ball(Fraction(2.0**low)), to_ball(Fraction(delta)).log()
    alpha = 1 + alpha_minus_1
    correction = alpha * (alpha_minus_1 / alpha).log() - alpha_minus_1.log()
    return max(_upper_float(alpha * to_ball(rho) + (correction - log_delta) / alpha_minus_1), 0.0)


def gaussian_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho of (epsilon, delta)-private Gaussian noise, rounded down.

    Parameters
    ----------
    epsilon
        The privacy loss, greater than 0. Smaller is more private; 0.1 to 10 are common.
    delta
        The probability that epsilon does not hold, between 0 and 1; 1e-6 is common.

    Examples
    --------
    >>> round(gaussian_rho(1.0, 1e-6), 6)
    0.028014
    """
    scale = Fraction(gaussian_scale(epsilon, delta, 1.0))
    return quotient_down(Fraction(1), 2 * scale * scale)


def float_up(number: Fraction) -> float:
    """Round a number up to a float; infinity if it is too large."""
    try:
        nearest = number.numerator / number.denominator
    except OverflowError:
        return math.inf
    return nearest if nearest >= number else math.nextafter(nearest, math.inf)


def to_ball(number: float | Fraction, bits: int = 4 * _BITS) -> Ball:
    """Return a number whose denominator is a power of two, for arithmetic with this precision."""
    return Ball(ball_of(number), bits)


def ball_ends(ball: Ball) -> tuple[Fraction, Fraction]:
    """Return the smallest and the largest number in a ball."""
    ends = (end.man_exp() for end in (ball.enclosure.mid(), ball.enclosure.rad()))
    middle, radius = (Fraction(int(digits)) * Fraction(2) ** int(power) for digits, power in ends)
    return middle - radius, middle + radius


def _upper_float(ball: Ball) -> float:
    """Return a float that is at least every number in a ball."""
    return float_up(ball_ends(ball)[1])
