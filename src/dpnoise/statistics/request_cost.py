"""What each part of a request costs: a budget divided, or the sum of what errors cost.

Everything here is public: it depends on the request alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, check_choice, check_part, check_positive
from dpnoise.release.calibration import quotient_down
from dpnoise.statistics.budget_split import share, smallest_amount, split
from dpnoise.statistics.composition import GAUSSIAN, PURE, Cost, Loss, compose

LAPLACE: Final = "laplace"
BEST: Final = "best"
MECHANISMS: Final = (LAPLACE, GAUSSIAN, BEST)
_MOST_PIECES: Final = 1_000  # Of a budget that is not simply added up.


@dataclass(frozen=True)
class Item:
    """One thing that a request pays for.

    Parameters
    ----------
    make
        The query for a loss.
    selections
        For what noise is not added to: in how many groups one person is, each of which costs. Else
        None.
    weight, error
        Its part of the budget, or the error that is wanted.
    """

    make: Callable[[Loss], Any]
    selections: int | None
    weight: float = 1.0
    error: float | None = None


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
            raise ArgumentError("Expected a budget in epsilon or in rho, not in both.")
        for name, amount in (("epsilon", self.epsilon), ("rho", self.rho)):
            if amount is not None:
                check_positive(name, amount)
        if self.epsilon is None and self.rho is None and not by_error:
            raise ArgumentError("Expected epsilon in every request, or rho, or errors for all.")
        if self.delta != 0:
            check_part("delta", self.delta)
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
                f'Expected delta > 0 or a budget in rho with mechanism="{self.mechanism}": '
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
        raise ArgumentError("Expected an error for all questions, or weights: not some of each.")
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
    if items[0].error is not None:
        losses = tuple(
            Loss(kind, smallest_amount(_error_at(item, kind, budget.confidence), item.error))
            for item in items
            if item.error is not None
        )
    else:
        losses = _divided(items, kinds, budget, own)
    flat = [
        loss for item, loss in zip(items, losses, strict=True) for _ in range(item.selections or 1)
    ]
    cost = compose(flat, own, aside=aside)
    if items[0].error is not None:
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


def _error_at(item: Item, kind: str, confidence: float) -> Callable[[float], float]:
    def error_at(amount: float) -> float:
        error: float = item.make(Loss(kind, amount)).error(confidence)
        return error

    return error_at


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
