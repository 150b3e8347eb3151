"""How a budget is divided among statistics, and what a wanted error costs.

Parts are floats that go into mechanisms as they are, rounded down.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from dpnoise.core.errors import ArgumentError, check_choice, check_positive, reject
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.calibration import quotient_down, smallest_float
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.composition import (
    GAUSSIAN,
    KINDS,
    PURE,
    Curve,
    Loss,
    check_delta,
    gaussian_rho,
)

_LARGEST_AMOUNT: Final = 2.0**900  # Of epsilon or rho, for any error.
_HALVINGS: Final = 40  # Of the factor by which the parts of a mixed budget grow.


def split(total: float, weights: Sequence[float]) -> tuple[float, ...]:
    """Return parts of a total in proportion to weights, rounded down.

    The total is the decimal number that it is written as: 0.1 is a tenth, although the float is a
    little more. So the parts of ten requests of 0.1 are at most 1.

    Examples
    --------
    >>> split(1.0, [3, 1])
    (0.75, 0.25)
    >>> split(0.1, [1])
    (0.09999999999999999,)
    """
    checked = [Fraction(check_positive("weight", weight)) for weight in weights]
    if not checked:
        raise ArgumentError("Expected one weight or more.")
    written, whole = Fraction(repr(check_positive("total", total))), sum(checked)
    parts = tuple(quotient_down(written * weight, whole) for weight in checked)
    if not all(parts):
        raise ArgumentError("Expected weights that leave something for each.")
    return parts


def share(
    kinds: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    rho: float | None = None,
) -> tuple[Loss, ...]:
    """Divide a budget: return a loss for each kind, all of which together are within it.

    Parameters
    ----------
    kinds
        "pure" or "gaussian", one for each statistic.
    weights
        In what proportion; by default evenly.
    epsilon, delta
        The budget; delta is that of the Gaussian noise alone.
    rho
        The budget, in place of epsilon.

    Examples
    --------
    >>> share(["pure", "pure"], epsilon=1.0)
    (Loss(kind='pure', amount=0.5), Loss(kind='pure', amount=0.5))
    >>> [round(loss.amount, 4) for loss in share(["gaussian", "pure"], epsilon=1.0, delta=1e-6)]
    [0.0079, 0.5066]
    >>> share(["gaussian", "pure"], [3, 1], rho=0.5)
    (Loss(kind='gaussian', amount=0.375), Loss(kind='pure', amount=0.5))
    """
    for kind in kinds:
        check_choice("kind", kind, KINDS)
    weights = [1.0] * len(kinds) if weights is None else weights
    if len(weights) != len(kinds):
        raise ArgumentError(f"Expected a weight for each of {len(kinds)} statistics.")
    if (epsilon is None) == (rho is None):
        raise ArgumentError("Expected a budget in epsilon or in rho: one of them.")
    if rho is not None:
        parts = split(rho, weights)
        return tuple(_within_rho(kind, part) for kind, part in zip(kinds, parts, strict=True))
    if GAUSSIAN in kinds and not delta:
        raise ArgumentError(
            "Expected delta > 0 with Gaussian noise, such as delta=1e-6: without a delta, ask for "
            "Laplace noise or for a budget in rho."
        )
    return _shared_epsilon(kinds, split(check_positive("epsilon", epsilon), weights), delta)


def _within_rho(kind: str, part: float) -> Loss:
    """Return the largest loss of a kind that is at most a part of rho."""
    if kind == GAUSSIAN:
        return Loss(kind, part)
    beyond = smallest_float(lambda epsilon: Loss(PURE, epsilon).rho > part, 2.0**600)
    return Loss(kind, math.nextafter(beyond, 0.0))


def _shared_epsilon(kinds: Sequence[str], parts: Sequence[float], delta: float) -> tuple[Loss, ...]:
    """Give pure ones their parts of epsilon, and Gaussians theirs of one curve at delta."""
    shares = list(zip(kinds, parts, strict=True))
    if GAUSSIAN not in kinds:
        return tuple(Loss(PURE, part) for part in parts)
    theirs = sum(Fraction(part) for kind, part in shares if kind == GAUSSIAN)
    rho = Fraction(gaussian_rho(quotient_down(theirs, 1), check_delta(delta)))

    def grown(factor: float) -> tuple[Loss, ...]:
        """Return the parts of a plain sum, each with its scale divided by a factor."""
        return tuple(
            Loss(
                kind,
                part * factor
                if kind == PURE
                else quotient_down(rho * Fraction(part) * Fraction(factor) ** 2, theirs),
            )
            for kind, part in shares
        )

    if PURE not in kinds:
        return grown(1.0)
    whole = quotient_down(sum(map(Fraction, parts)), 1)

    def fits(factor: float) -> bool:
        return Curve(grown(factor)).suffices(whole, delta)

    low, high = 1.0, 2.0
    while fits(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return grown(low)


# What an error costs ------------------------------------------------------------------------------


def smallest_amount(error_at: Callable[[float], float], error: float) -> float:
    """Return the smallest epsilon, or rho, at which an error is small enough.

    Parameters
    ----------
    error_at
        The error for an amount, which falls as the amount grows. Where it raises ArgumentError, the
        amount is too small.
    error
        The error that is wanted.

    Examples
    --------
    >>> smallest_amount(lambda epsilon: 3 / epsilon, 6.0)
    0.5
    """
    error = check_positive("error", error)

    def suffices(amount: float) -> bool:
        try:
            return error_at(amount) <= error
        except ArgumentError:
            return False

    try:
        return smallest_float(suffices, _LARGEST_AMOUNT)
    except ArgumentError:
        reject("error", error, "to be larger than what no noise at all would have")


def amount_for_error(
    mechanism: str, error: float, confidence: float = 0.95, sensitivity: float = 1.0
) -> float:
    """Return what it costs that a release is within an error, with a probability.

    Parameters
    ----------
    mechanism
        "laplace" or "discrete", for epsilon; "gaussian", for rho.
    error, confidence
        What is wanted of the mechanism's `error(confidence)`.
    sensitivity
        Of what is released.

    Examples
    --------
    >>> epsilon = amount_for_error("discrete", error=5, confidence=0.95)
    >>> round(epsilon, 4), DiscreteLaplaceMechanism(epsilon).error(0.95)
    (0.5382, 5)
    """
    check_choice("mechanism", mechanism, tuple(_MECHANISMS))
    make = _MECHANISMS[mechanism]
    return smallest_amount(lambda amount: make(amount, sensitivity).error(confidence), error)


_Additive = LaplaceMechanism | DiscreteLaplaceMechanism | GaussianMechanism
_MECHANISMS: Final[dict[str, Callable[[float, float], _Additive]]] = {
    "laplace": LaplaceMechanism,
    "discrete": DiscreteLaplaceMechanism,
    "gaussian": lambda rho, sensitivity: GaussianMechanism.for_rho(rho, sensitivity=sensitivity),
}
