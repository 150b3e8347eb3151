"""Dividing a budget among statistics, and the cost of a target error or of a request.

Everything here is public, because it depends only on the request. Parts of a budget are floats,
rounded down, that mechanisms take unchanged.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    DeltaCurve,
    Loss,
    compose,
    gaussian_rho,
)
from dpnoise.statistics.results import AdditiveMechanism

LAPLACE: Final = "laplace"
BEST: Final = "best"
MECHANISMS: Final = (LAPLACE, GAUSSIAN, BEST)
_MOST_PIECES: Final = 1_000  # Composing more losses than this takes too long.
_LARGEST_AMOUNT: Final = 2.0**900  # A search for epsilon or rho ends here.
_HALVINGS: Final = 40  # Steps of bisection for the factor by which parts of a mixed budget grow.


def split(total: float, weights: Sequence[float]) -> tuple[float, ...]:
    """Return parts of a total in proportion to weights, rounded down: together at most the total.

    The total counts as the decimal number that you write: 0.1 is a tenth, although the float is a
    little more. The parts of ten requests of 0.1 are therefore at most 1.

    Parameters
    ----------
    total
        The budget to divide, in epsilon, rho or delta; greater than 0.
    weights
        One number greater than 0 for each part. A weight of 2 gets twice as much as a weight of 1.

    Raises
    ------
    ArgumentError
        If there is no weight, or if a part would be 0.

    Examples
    --------
    >>> split(1.0, [3, 1])
    (0.75, 0.25)
    >>> split(0.1, [1])
    (0.09999999999999999,)
    """
    exact_weights = [Fraction(check_positive("weight", weight)) for weight in weights]
    if not exact_weights:
        raise ArgumentError("There must be at least one weight.")
    decimal_total = Fraction(repr(check_positive("total", total)))
    weight_sum = sum(exact_weights)
    parts = tuple(quotient_down(decimal_total * weight, weight_sum) for weight in exact_weights)
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
    """Divide a budget among statistics, and return the loss of each: together within the budget.

    Parameters
    ----------
    kinds
        "pure" or "gaussian", one for each statistic: the kind of its loss.
    weights
        The proportions of the parts; by default all parts are equal.
    epsilon, delta
        The budget. Only Gaussian noise uses delta, the probability that epsilon does not hold.
    rho
        The budget in zero-concentrated differential privacy, in place of epsilon.

    Raises
    ------
    ArgumentError
        If both epsilon and rho are given or neither, if Gaussian noise has no delta, or if the
        number of weights differs from the number of kinds.

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
            "Gaussian noise needs a delta, such as {delta}. Without a delta, use "
            "Laplace noise or a budget in rho.",
            delta=1e-6,
        )
    return _shared_epsilon(kinds, split(check_positive("epsilon", epsilon), weights), delta)


def _within_rho(kind: str, part: float) -> Loss:
    """Return the largest loss of a kind within a part of rho."""
    if kind == GAUSSIAN:
        return Loss(kind, part)
    beyond = smallest_float(lambda epsilon: Loss(PURE, epsilon).rho > part, 2.0**600)
    return Loss(kind, math.nextafter(beyond, 0.0))


def _shared_epsilon(kinds: Sequence[str], parts: Sequence[float], delta: float) -> tuple[Loss, ...]:
    """Return pure losses for parts of epsilon, and Gaussian losses from one curve at delta."""
    shares = list(zip(kinds, parts, strict=True))
    if GAUSSIAN not in kinds:
        return tuple(Loss(PURE, part) for part in parts)
    gaussian_part = sum(Fraction(part) for kind, part in shares if kind == GAUSSIAN)
    rho = Fraction(gaussian_rho(quotient_down(gaussian_part, 1), delta))

    def scale_losses(factor: float) -> tuple[Loss, ...]:
        """Return the parts of a plain sum, with every noise scale divided by a factor."""
        return tuple(
            Loss(
                kind,
                part * factor
                if kind == PURE
                else quotient_down(rho * Fraction(part) * Fraction(factor) ** 2, gaussian_part),
            )
            for kind, part in shares
        )

    if PURE not in kinds:
        return scale_losses(1.0)
    whole = quotient_down(sum(map(Fraction, parts)), 1)

    def fits(factor: float) -> bool:
        return DeltaCurve(scale_losses(factor)).is_private_at(whole, delta)

    low, high = 1.0, 2.0
    while fits(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return scale_losses(low)


def smallest_amount(error_at: Callable[[float], float], error: float) -> float:
    """Return the smallest epsilon, or rho, with an error of at most `error`.

    Parameters
    ----------
    error_at
        A function that returns the error for an amount of epsilon or rho. The error must fall as
        the amount grows. An ArgumentError means that the amount is too small.
    error
        The largest error that you accept.

    Raises
    ------
    ArgumentError
        If no amount has so small an error.

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
    """Return the smallest epsilon or rho that keeps a release within an error, with a probability.

    Parameters
    ----------
    mechanism
        "laplace" or "discrete" for an epsilon, "gaussian" for a rho.
    error
        The largest error that you accept.
    confidence
        The probability that the error of a release is at most `error`.
    sensitivity
        How far one person can change the number that is released.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if no amount has so small an error.

    Examples
    --------
    >>> epsilon = amount_for_error("discrete", error=5, confidence=0.95)
    >>> round(epsilon, 4), DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1.0).error(0.95)
    (0.5382, 5)
    """
    check_choice("mechanism", mechanism, tuple(_ADDITIVE))
    make = _ADDITIVE[mechanism]
    return smallest_amount(lambda amount: make(amount, sensitivity).error(confidence), error)


# The mechanisms by name, from an amount and a sensitivity.
_ADDITIVE: Final[dict[str, Callable[[float, float], AdditiveMechanism]]] = {
    "laplace": lambda epsilon, size: LaplaceMechanism(epsilon=epsilon, sensitivity=size),
    "discrete": lambda epsilon, size: DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=size),
    "gaussian": lambda rho, size: GaussianMechanism.for_rho(rho, sensitivity=size),
}


@dataclass(frozen=True)
class Item:
    """One thing that a request pays for."""

    make: Callable[..., Any]  # Returns the query for a loss.
    selections: int | None  # The groups of one person, each of which costs; None for added noise.
    weight: float = 1.0  # The weight of its part of the budget.
    error: float | None = None  # The target error, in place of a part of the budget.
    # Whether it discovers groups: `make` takes a loss and the delta set aside, and Gaussian noise
    # takes the place of selections.
    discovers: bool = False


@dataclass(frozen=True)
class Budget:
    """The amount that a request may spend, and the kind of noise."""

    epsilon: float | None
    delta: float = 0.0
    rho: float | None = None
    mechanism: str | None = None  # None is "best" with a delta, else "laplace".
    confidence: float = 0.95
    discovers: bool = False  # Whether a part of delta is set aside for groups that are discovered.

    @property
    def chosen_mechanism(self) -> str:
        """The mechanism, or the default."""
        return self.mechanism or (BEST if self.delta else LAPLACE)

    def check(self, *, by_error: bool) -> None:
        """Raise ArgumentError if the fields contradict each other."""
        if self.mechanism is not None:
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
                "single person is in appears: {delta}. Or declare the groups.",
                delta=1e-6,
            )
        if self.mechanism == LAPLACE:
            self.check_delta_is_used(LAPLACE)
        if self.chosen_mechanism != LAPLACE and self.rho is None and not self.delta:
            raise ArgumentError(
                f'mechanism="{self.mechanism}" needs a delta greater than 0 or a budget in rho: '
                "{delta}.",
                delta=1e-6,
            )

    def check_delta_is_used(self, kind: str) -> None:
        """Raise ArgumentError if a delta is given and a kind of noise leaves it unused."""
        if self.delta and kind != GAUSSIAN and not self.discovers:
            best = "" if self.mechanism else ", and its margins are smaller here"
            raise ArgumentError(
                f"Nothing uses delta: Laplace noise has none{best}. "
                "Say {mechanism}, or {delta}.",
                mechanism=GAUSSIAN,
                delta=0,
            )


@dataclass(frozen=True)
class Prices:
    """The loss of each item, the total cost, and the part of delta set aside for discovery.

    An item that is selected has its loss in each group of one person.
    """

    losses: tuple[Loss, ...]
    cost: Cost
    aside: float


def price_items(items: Sequence[Item], budget: Budget) -> Prices:
    """Divide a budget among items, or add up the costs of their target errors."""
    by_error = {item.error is not None for item in items}
    if len(by_error) > 1:
        raise ArgumentError("Give an error for every question, or weights, but not both.")
    budget.check(by_error=by_error == {True})
    mechanism = budget.chosen_mechanism
    if mechanism != BEST:
        return _price_items(items, budget, PURE if mechanism == LAPLACE else GAUSSIAN)
    gaussian, pure = (_price_items(items, budget, kind) for kind in (GAUSSIAN, PURE))
    if _is_better(items, gaussian, pure, budget):
        return gaussian
    if budget.mechanism is None:
        budget.check_delta_is_used(PURE)
    return pure


def _price_items(items: Sequence[Item], budget: Budget, kind: str) -> Prices:
    items = [
        replace(item, selections=None) if item.discovers and kind == GAUSSIAN else item
        for item in items
    ]
    kinds = [kind if item.selections is None else PURE for item in items]
    gaussian_delta, aside = _deltas(budget, kinds)
    if (
        kind == GAUSSIAN
        and budget.mechanism != BEST
        and budget.delta
        and not gaussian_delta + aside
    ):
        names = "delta" if budget.mechanism is None else "both mechanism and delta"
        raise ArgumentError(
            "Nothing uses delta: quantiles are selected, with no Gaussian noise. Leave out "
            f"{names}."
        )
    by_error = items[0].error is not None
    if by_error:
        losses = tuple(
            _loss_for_error(item, kind, item.error, budget.confidence)
            for item, kind in zip(items, kinds, strict=True)
            if item.error is not None
        )
    else:
        losses = _divide(items, kinds, budget, gaussian_delta)
    flat = [
        loss for item, loss in zip(items, losses, strict=True) for _ in range(item.selections or 1)
    ]
    cost = compose(flat, gaussian_delta, aside=aside)
    if by_error:
        _check_within(cost, budget)
    return Prices(losses, cost, aside)


def _deltas(budget: Budget, kinds: Sequence[str]) -> tuple[float, float]:
    """Return the delta of Gaussian noise, and the delta set aside for discovery."""
    if not budget.discovers:
        return (budget.delta if GAUSSIAN in kinds else 0.0), 0.0
    if GAUSSIAN not in kinds or budget.rho is not None:
        return 0.0, budget.delta
    gaussian_delta, aside = split(budget.delta, [1, 1])
    return gaussian_delta, aside


def _divide(
    items: Sequence[Item], kinds: Sequence[str], budget: Budget, delta: float
) -> tuple[Loss, ...]:
    """Return the loss of each item; a selection divides its part among a person's groups."""
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
    pieces_of_budget = share(
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
    first_pieces = [sum(pieces[:index]) for index in range(len(items))]
    return tuple(pieces_of_budget[index] for index in first_pieces)


def _loss_for_error(item: Item, kind: str, error: float, confidence: float) -> Loss:
    """Return the smallest loss of a kind with which an item meets its target error."""

    def error_at(amount: float) -> float:
        margin: float = item.make(Loss(kind, amount)).error(confidence)
        return margin

    return Loss(kind, smallest_amount(error_at, error))


def _check_within(cost: Cost, budget: Budget) -> None:
    """Raise ArgumentError if the target errors cost more than the budget."""
    for name in ("epsilon", "rho"):
        limit, spent = getattr(budget, name), cost.floats()[name]
        if limit is not None and spent is not None and spent > limit:
            raise ArgumentError(
                f"The errors that are wanted cost {name} {spent:.4g}, more than the {limit:g} of "
                "the request. Ask for larger errors, or for fewer statistics."
            )


def _is_better(items: Sequence[Item], prices: Prices, other: Prices, budget: Budget) -> bool:
    """Return whether prices lead to smaller margins than others, by the mean log ratio.

    For groups to discover, the number of persons with which one is shown takes the place of the
    margin.
    """
    if items[0].error is not None:  # The errors are the same, so the cost decides.
        costs = [prices.cost.floats(), other.cost.floats()]
        spent = [cost["rho" if cost["epsilon"] is None else "epsilon"] or 0.0 for cost in costs]
        return spent[0] < spent[1]
    ratios = 0.0
    for item, loss, other_loss in zip(items, prices.losses, other.losses, strict=True):
        if item.discovers:
            makes = (item.make(loss, prices.aside), item.make(other_loss, other.aside))
            sizes = [discovery.shown_size(budget.confidence) for discovery in makes]
            ratios += math.log(sizes[0] / sizes[1])
            continue
        if item.selections is not None:
            ratios += math.log(other_loss.amount / loss.amount)
            continue
        queries = (item.make(loss), item.make(other_loss))
        errors = [query.noise.error(budget.confidence) for query in queries]
        ratios += math.log(max(errors[0], 0.5) / max(errors[1], 0.5))
    return ratios < 0
