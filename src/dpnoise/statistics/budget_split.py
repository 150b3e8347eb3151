"""How a budget is divided among statistics, what a wanted error costs, and what a request costs.

Everything here is public: it depends on the request alone. Parts are floats that go into mechanisms
as they are, rounded down.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from dpnoise.core.errors import (
    ArgumentError,
    check_choice,
    check_positive,
    check_probability,
    reject,
)
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.calibration import quotient_down, smallest_float
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.composition import (
    GAUSSIAN,
    KINDS,
    PURE,
    Cost,
    Curve,
    Loss,
    compose,
    gaussian_rho,
)
from dpnoise.statistics.results import AdditiveMechanism

LAPLACE: Final = "laplace"
BEST: Final = "best"
MECHANISMS: Final = (LAPLACE, GAUSSIAN, BEST)
_MOST_PIECES: Final = 1_000  # Of a budget that is not simply added up.
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
        raise ArgumentError("There must be at least one weight.")
    written, whole = Fraction(repr(check_positive("total", total))), sum(checked)
    parts = tuple(quotient_down(written * weight, whole) for weight in checked)
    if not all(parts):
        raise ArgumentError("Every weight must leave a part of the budget to each statistic.")
    return parts


def share(  # Most of its lines are documentation.
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
        raise ArgumentError(f"There must be a weight for each of {len(kinds)} statistics.")
    if (epsilon is None) == (rho is None):
        raise ArgumentError("Give a budget in either epsilon or rho.")
    if rho is not None:
        parts = split(rho, weights)
        return tuple(_within_rho(kind, part) for kind, part in zip(kinds, parts, strict=True))
    if GAUSSIAN in kinds and not delta:
        raise ArgumentError(
            "Gaussian noise needs delta, such as delta=1e-6. Without a delta, use "
            "Laplace noise or a budget in rho."
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
    rho = Fraction(gaussian_rho(quotient_down(theirs, 1), delta))

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
        reject("error", error, "be larger than what no noise at all would have")


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
    check_choice("mechanism", mechanism, tuple(_ADDITIVE))
    make = _ADDITIVE[mechanism]
    return smallest_amount(lambda amount: make(amount, sensitivity).error(confidence), error)


_ADDITIVE: Final[dict[str, Callable[[float, float], AdditiveMechanism]]] = {
    "laplace": LaplaceMechanism,
    "discrete": DiscreteLaplaceMechanism,
    "gaussian": lambda rho, sensitivity: GaussianMechanism.for_rho(rho, sensitivity=sensitivity),
}


@dataclass(frozen=True)
class Item:
    """One thing that a request pays for."""

    make: Callable[[Loss], Any]  # The query for a loss.
    selections: int | None  # Of what is selected: the groups of one person, each of which costs.
    weight: float = 1.0  # That of its part of the budget.
    error: float | None = None  # The error that is wanted, in place of a part of the budget.


@dataclass(frozen=True)
class Budget:
    """What a request may spend, and how."""

    epsilon: float | None
    delta: float = 0.0
    rho: float | None = None
    mechanism: str = LAPLACE
    confidence: float = 0.95
    discovers: bool = False  # Whether a part of delta is set aside for groups that are discovered.

    def check(self, *, by_error: bool) -> None:
        """Raise if it contradicts itself."""
        check_choice("mechanism", self.mechanism, MECHANISMS)
        if self.epsilon is not None and self.rho is not None:
            raise ArgumentError("Give a budget in either epsilon or rho, not in both.")
        for name, amount in (("epsilon", self.epsilon), ("rho", self.rho)):
            if amount is not None:
                check_positive(name, amount)
        if self.epsilon is None and self.rho is None and not by_error:
            raise ArgumentError("A request needs epsilon, rho, or an error for every question.")
        if self.delta != 0:
            check_probability("delta", self.delta)
        elif self.discovers:
            raise ArgumentError(
                "Groups that are discovered need delta > 0, the probability that one which a "
                "single person is in appears: delta=1e-6. Or declare the groups."
            )
        if self.delta and self.mechanism == LAPLACE and not self.discovers:
            raise ArgumentError(
                'Nothing uses delta: Laplace noise has none. Say mechanism="gaussian", or delta=0.'
            )
        if self.mechanism != LAPLACE and self.rho is None and not self.delta:
            raise ArgumentError(
                f'mechanism="{self.mechanism}" needs a delta greater than 0 or a budget in rho: '
                "delta=1e-6."
            )


@dataclass(frozen=True)
class Prices:
    """The loss of each item, what all cost together, and the part of delta that is set aside.

    An item that is selected has its loss in each group that one person is in.
    """

    losses: tuple[Loss, ...]
    cost: Cost
    aside: float


def priced(items: Sequence[Item], budget: Budget) -> Prices:
    """Divide a budget among items, or add up what their errors cost."""
    by_error = {item.error is not None for item in items}
    if len(by_error) > 1:
        raise ArgumentError("Give an error for every question, or weights, but not both.")
    budget.check(by_error=by_error == {True})
    if budget.mechanism != BEST:
        return _priced(items, budget, PURE if budget.mechanism == LAPLACE else GAUSSIAN)
    pure, gaussian = (_priced(items, budget, kind) for kind in (PURE, GAUSSIAN))
    return gaussian if _is_better(items, gaussian, pure, budget) else pure


def _priced(items: Sequence[Item], budget: Budget, kind: str) -> Prices:
    kinds = [kind if item.selections is None else PURE for item in items]
    own, aside = _deltas(budget, kinds)
    if budget.mechanism == GAUSSIAN and budget.delta and not own + aside:
        raise ArgumentError(
            "Nothing uses delta: quantiles are selected, with no Gaussian noise. Leave out both "
            "mechanism and delta."
        )
    by_error = items[0].error is not None
    if by_error:
        losses = tuple(
            _loss_for_error(item, kind, item.error, budget.confidence)
            for item, kind in zip(items, kinds, strict=True)
            if item.error is not None
        )
    else:
        losses = _divided(items, kinds, budget, own)
    flat = [
        loss for item, loss in zip(items, losses, strict=True) for _ in range(item.selections or 1)
    ]
    cost = compose(flat, own, aside=aside)
    if by_error:
        _check_within(cost, budget)
    return Prices(losses, cost, aside)


def _deltas(budget: Budget, kinds: Sequence[str]) -> tuple[float, float]:
    """Return the delta of Gaussian noise, and what is set aside for discovery."""
    if not budget.discovers:
        return (budget.delta if GAUSSIAN in kinds else 0.0), 0.0
    if GAUSSIAN not in kinds or budget.rho is not None:
        return 0.0, budget.delta
    own, aside = split(budget.delta, [1, 1])
    return own, aside


def _divided(
    items: Sequence[Item], kinds: Sequence[str], budget: Budget, delta: float
) -> tuple[Loss, ...]:
    """Give every item its part; that of a selection is divided again among a person's groups."""
    pieces = [item.selections or 1 for item in items]
    if budget.rho is None and GAUSSIAN not in kinds:
        parts = share(kinds, [item.weight for item in items], epsilon=budget.epsilon)
        return tuple(
            Loss(PURE, quotient_down(part.amount, number))
            for part, number in zip(parts, pieces, strict=True)
        )
    if sum(pieces) > _MOST_PIECES:
        raise ArgumentError(
            f"Quantiles of persons in {max(pieces):,} groups are too many losses to compose. Take "
            'a smaller max_groups, or mechanism="laplace" and epsilon.'
        )
    shared = share(
        [kind for kind, number in zip(kinds, pieces, strict=True) for _ in range(number)],
        [
            item.weight / number
            for item, number in zip(items, pieces, strict=True)
            for _ in range(number)
        ],
        epsilon=budget.epsilon,
        delta=delta,
        rho=budget.rho,
    )
    firsts = [sum(pieces[:place]) for place in range(len(items))]
    return tuple(shared[first] for first in firsts)


def _loss_for_error(item: Item, kind: str, error: float, confidence: float) -> Loss:
    """Return the smallest loss of a kind at which an item has the error that is wanted of it."""

    def error_at(amount: float) -> float:
        at: float = item.make(Loss(kind, amount)).error(confidence)
        return at

    return Loss(kind, smallest_amount(error_at, error))


def _check_within(cost: Cost, budget: Budget) -> None:
    """Raise if the errors that are wanted cost more than there is."""
    for name in ("epsilon", "rho"):
        limit, spent = getattr(budget, name), cost.floats()[name]
        if limit is not None and spent is not None and spent > limit:
            raise ArgumentError(
                f"The errors that are wanted cost {name} {spent:.4g}, more than the {limit:g} of "
                "the request. Ask for larger errors, or for fewer statistics."
            )


def _is_better(items: Sequence[Item], one: Prices, other: Prices, budget: Budget) -> bool:
    """Tell whether one way has the smaller margins: on the mean of the logarithms of the ratios."""
    if items[0].error is not None:  # The errors are the same: what they cost decides.
        costs = [one.cost.floats(), other.cost.floats()]
        spent = [cost["rho" if cost["epsilon"] is None else "epsilon"] or 0.0 for cost in costs]
        return spent[0] < spent[1]
    ratios = 0.0
    for item, mine, theirs in zip(items, one.losses, other.losses, strict=True):
        if item.selections is not None:
            ratios += math.log(theirs.amount / mine.amount)
            continue
        errors = [item.make(loss).noise.error(budget.confidence) for loss in (mine, theirs)]
        ratios += math.log(max(errors[0], 0.5) / max(errors[1], 0.5))
    return ratios < 0
