"""A published number and its margins, and the exact noise on integers that it comes from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np

from dpnoise.core.arrays import Array
from dpnoise.core.errors import check_positive
from dpnoise.noise.generator import Generator
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.bounds import Move, Reach
from dpnoise.statistics.composition import GAUSSIAN, PURE, Loss, float_up
from dpnoise.statistics.digits import rounded, rounded_interval

LAPLACE_WORDS: Final = "Laplace noise, exact, rounded once"
GAUSSIAN_WORDS: Final = "Gaussian noise, exact, rounded once"
DISCRETE_WORDS: Final = "discrete Laplace noise, exact"

AdditiveMechanism = LaplaceMechanism | GaussianMechanism | DiscreteLaplaceMechanism


class Number(NamedTuple):
    """A published number: its groups and its own label, what it is, and its margins if known."""

    path: tuple[str, ...]
    value: float
    error: float | None
    joint: float | None
    interval: tuple[float, float] | None

    def shown(self, sign: str = "±") -> tuple[str, str, str]:
        """Return the number, its margin or interval, and the joint margin, as people read them."""
        if self.interval is not None:
            value, low, high = rounded_interval(self.value, *self.interval)
            return value, f"{low} to {high}", ""
        value, margin = rounded(self.value, self.error, sign)
        joint = "" if self.joint is None else rounded(self.value, self.joint, sign)[1]
        return value, margin, joint


@dataclass(frozen=True)
class Release:
    """A published number, and what may be published with it.

    Parameters
    ----------
    query
        What was asked.
    value
        The number, or the numbers.
    epsilon
        The privacy loss spent on it; None for Gaussian noise, which has `rho`.
    scale
        The scale of the noise, in units of the value; None where noise is not added to it.
    error
        The margin of each number by itself: with probability `confidence` it is within this of the
        statistic of the clamped values. None for quantiles, which have an interval.
    confidence
        The probability that belongs to `error`, `joint_error` and `interval`.
    parts
        How epsilon is split, where the query is made of several releases.
    joint_error
        The joint margin: with probability `confidence` all cells of all groups are within it. None
        for a number that is alone.
    interval
        Of a quantile, two numbers that have it between them; of several, a pair for each.
    labels
        What each number is, where there are several.
    mechanism, grid
        How it was released, and on which grid of values.
    rho
        The privacy loss of Gaussian noise: rho-zCDP.
    """

    query: str
    value: Any
    epsilon: float | None
    scale: float | None
    error: float | None
    confidence: float
    parts: dict[str, float] = field(default_factory=dict)
    joint_error: float | None = None
    interval: Any = None
    labels: tuple[str, ...] = ()
    mechanism: str = ""
    grid: float | None = None
    rho: float | None = None

    def numbers(self, path: tuple[str, ...] = ()) -> Iterator[Number]:
        """Yield each number; where there are several, its label ends its path."""
        margins = (self.error, self.joint_error)
        if not isinstance(self.value, list):
            yield Number(path, self.value, *margins, self.interval)
            return
        intervals = self.interval or [None] * len(self.value)
        for label, value, interval in zip(self.labels, self.value, intervals, strict=True):
            yield Number((*path, label), value, *margins, interval)


class Priced:
    """What every query has: the losses that it is made of."""

    losses: tuple[Loss, ...]

    @property
    def epsilon(self) -> float | None:
        """The privacy loss, or None for Gaussian noise."""
        if any(loss.kind != PURE for loss in self.losses):
            return None
        return float_up(sum((Fraction(loss.amount) for loss in self.losses), Fraction(0)))

    @property
    def rho(self) -> float | None:
        """The privacy loss of Gaussian noise, or None for others."""
        return self.losses[0].amount if self.losses[0].kind == GAUSSIAN else None


def as_loss(epsilon: float | Loss) -> Loss:
    """Return a loss as it is, and a number as a pure one."""
    if isinstance(epsilon, Loss):
        return epsilon
    return Loss(PURE, check_positive("epsilon", epsilon))


@dataclass(frozen=True)
class WholeNoise:
    """Exact noise on integers, for what one person can move them by."""

    mechanism: AdditiveMechanism
    words: str

    @classmethod
    def of(
        cls, loss: Loss, reach: Reach, move: Move, *, counts: bool = False, lower: int | None = None
    ) -> "WholeNoise":
        """Return the noise that costs this; counts get the discrete kind of Laplace noise."""
        if loss.kind == GAUSSIAN:
            sensitivity = reach.l2(move)
            made = GaussianMechanism.for_rho(loss.amount, sensitivity=sensitivity, lower=lower)
            return cls(made, GAUSSIAN_WORDS)
        if counts:
            exactly = DiscreteLaplaceMechanism(loss.amount, reach.l1(move), lower=lower)
            return cls(exactly, DISCRETE_WORDS)
        return cls(LaplaceMechanism(loss.amount, reach.l1(move), lower=lower), LAPLACE_WORDS)

    def error(self, confidence: float) -> float:
        """Return how far off an integer is at most, with this probability; rounding included."""
        if isinstance(self.mechanism, DiscreteLaplaceMechanism):
            return self.mechanism.error(confidence)
        return self.mechanism.error(confidence) + 0.5

    def release(self, exactly: Array, rng: Generator | None) -> Array:
        """Release integers in int64, or without a limit where they came so."""
        if exactly.dtype == object:
            flat = self.mechanism.release(exactly.reshape(-1).tolist(), rng)  # type: ignore[arg-type]
            return np.array(flat, dtype=object).reshape(exactly.shape)
        released: Array = self.mechanism.release(np.ascontiguousarray(exactly, np.int64), rng)
        return released


def jointly(confidence: float, number: int) -> float:
    """Return the confidence at which each of so many independent numbers must hold, so all do.

    It is rounded up by more than its own roundings, and is below 1.
    """
    each = 1 + math.expm1(math.log(confidence) / number)
    return min(each * (1 + 2.0**-50) if number > 1 else confidence, 1 - 2.0**-53)
