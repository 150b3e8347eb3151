"""Published numbers with their margins, and the exact noise on integers behind them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np

from dpnoise.core import html
from dpnoise.core.arrays import Array, Floats
from dpnoise.core.errors import check_positive
from dpnoise.core.safe_text import align_columns, format_confidence
from dpnoise.noise.generator import Generator
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.bounds import ContributionBounds, RowChange
from dpnoise.statistics.composition import GAUSSIAN, PURE, Loss, float_up
from dpnoise.statistics.digits import format_interval, format_number

LAPLACE_WORDS: Final = "Laplace noise, exact, rounded once"
GAUSSIAN_WORDS: Final = "Gaussian noise, exact, rounded once"
DISCRETE_WORDS: Final = "discrete Laplace noise, exact"
NO_INFORMATION: Final = "no information: too few rows for this epsilon"
SHOWN: Final = "shown"  # In place of the number of a group that is published without one.
SUPPRESSED: Final = "suppressed: its margin is too large"
BELOW_MARGIN: Final = "smaller than its margin"
MARK: Final = " *"
_SMOOTHING: Final = 2.0**-6  # Widens the margin of a combined noise, in standard deviations.
_PART_OF_SERIES: Final = 2.0**-9  # Of the probability to fail, for each error of a series.
_LEAST_IN_SERIES: Final = 2.0**-26  # A smaller probability to fail drowns in rounding errors.
_NEGLIGIBLE: Final = 2.0**-70  # Terms of a series that no sum of them shows.
_HALVINGS: Final = 30  # Halvings of an interval: its upper end is then at most 10^-9 too large.
SMALL_TABLE: Final = "dpnoise.statistics.report/small_table.html"  # For notebooks.

AdditiveMechanism = LaplaceMechanism | GaussianMechanism | DiscreteLaplaceMechanism


class Number(NamedTuple):
    """A published number: its groups and label, its value, and its margins if known."""

    path: tuple[str, ...]
    value: Any  # None if it is suppressed, or for a group without a number.
    error: float | None
    joint: float | None
    interval: tuple[float, float] | None
    no_information: bool = False
    is_group: bool = False  # Whether it stands for a group that is published without a number.

    @property
    def note(self) -> str | None:
        """What a reader must know of the number, or None."""
        if self.value is None:
            return SHOWN if self.is_group else SUPPRESSED
        if self.no_information:
            return NO_INFORMATION
        return BELOW_MARGIN if self.is_below_margin else None

    @property
    def is_hidden(self) -> bool:
        """Whether a note is shown in place of the number."""
        return self.value is None or self.no_information

    @property
    def is_below_margin(self) -> bool:
        """Whether the number is smaller than its margin, so that 0 may be the exact one."""
        if self.is_hidden or self.error is None or math.isinf(self.error):
            return False
        return bool(abs(self.value) < self.error)

    @property
    def relative_margin(self) -> float:
        """The margin, or half of the interval, as a share of the number; 0 if it is not known."""
        low, high = self.interval or (0.0, 0.0)
        margin = (high - low) / 2 if self.error is None else self.error
        if not margin:
            return 0.0
        return margin / abs(self.value) if self.value else math.inf

    def format(self, sign: str = "±", mark: str = "") -> tuple[str, str, str]:
        """Return the number, its margin or interval, and its joint margin as text.

        The mark follows the margin of a number that is smaller than it.
        """
        if self.is_hidden:
            return self.note or "", "", ""
        if self.interval is not None:
            value, low, high = format_interval(self.value, *self.interval)
            return value, f"{low} to {high}", ""
        value, margin = format_number(self.value, self.error, sign)
        margin += mark if self.is_below_margin else ""
        joint = "" if self.joint is None else format_number(self.value, self.joint, sign)[1]
        return value, margin, joint


@dataclass(frozen=True)
class Release:
    """A published number with its margin and its privacy loss. All fields may be published.

    Parameters
    ----------
    query
        The name of the statistic, such as "mean".
    value
        The published number, or a list of numbers; None for a group without a number.
    epsilon
        The privacy loss of this release; None for Gaussian noise, which has `rho`.
    scale
        The scale of the noise, in units of the value; None if noise is not added to the value.
    error
        The margin of each single number. With probability `confidence` the number is within `error`
        of the statistic of the clamped values. None for quantiles, which have an interval.
    confidence
        The probability that `error`, `joint_error` or `interval` holds.
    parts
        The parts of epsilon by name, if the release consists of several selections.
    joint_error
        The joint margin: with probability `confidence` all cells of all groups are within it. None
        for a single number.
    interval
        For a quantile, a pair of numbers around it; for several quantiles, a list of pairs.
    labels
        The name of each number, if there are several.
    mechanism, grid
        The mechanism in words, and the grid of possible values.
    rho
        The privacy loss of Gaussian noise in zero-concentrated differential privacy.
    no_information
        Whether the margin or interval covers every number that the bounds allow; for several
        quantiles, a list.
    shared
        The statistics that were computed from the same noisy sums, this one included. Together
        they cost `epsilon` or `rho` once. Empty if this release shares its noise with no other.
        Counts that discovered the groups of a column share it with "groups of" that column.
    threshold
        The smallest number that a count may have, if it discovered its group; else None. Counts
        near it are too large on average, because smaller ones are not shown.
    adjusted
        Whether the number was adjusted to add up with others of its statistic. `scale` is that of
        the noise before.
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
    no_information: Any = False
    shared: tuple[str, ...] = ()
    threshold: int | None = None
    adjusted: bool = False

    def suppress(self, largest: float) -> "Release":
        """Return the release without the numbers whose relative margin is larger."""
        if self.query == "groups":
            return self  # It has no numbers.
        values = [
            None if number.no_information or number.relative_margin > largest else number.value
            for number in self.numbers()
        ]
        if None not in values:
            return self
        value = values if isinstance(self.value, list) else values[0]
        return replace(self, value=value)

    @property
    def paid_for(self) -> str:
        """The statistics that the privacy loss of this release pays for."""
        return ", ".join(self.shared) or self.query

    def numbers(self, path: tuple[str, ...] = ()) -> Iterator[Number]:
        """Yield each number. If there are several, a path ends with the label of its number."""
        margins = (self.error, self.joint_error)
        if not isinstance(self.value, list):
            kinds = (self.no_information, self.query == "groups")
            yield Number(path, self.value, *margins, self.interval, *kinds)
            return
        intervals = self.interval or [None] * len(self.value)
        marks = self.no_information or [False] * len(self.value)
        rows = zip(self.labels, self.value, intervals, marks, strict=True)
        for label, value, interval, mark in rows:
            yield Number((*path, label), value, *margins, interval, mark)

    def __str__(self) -> str:
        """Return the numbers with their margins, the confidence and the privacy loss."""
        rows = self._shown()
        if isinstance(self.value, list):
            return f"{align_columns(rows, len(rows[0]) - 1)}\n{self._about}"
        name, value, margin = rows[1][:3]
        if margin:
            margin = f"{' ' if self.interval is None and self.error is not None else ', '}{margin}"
        return f"{name}: {value}{margin} ({self._about})"

    def _repr_html_(self) -> str:
        rows = self._shown()
        return html.render_template(
            SMALL_TABLE, rows=rows, numbers=len(rows[0]) - 1, notes=[self._about]
        )

    @property
    def _about(self) -> str:
        """The privacy loss and, if there are margins, their confidence."""
        loss = f"rho {self.rho:.4g}" if self.epsilon is None else f"epsilon {self.epsilon:.4g}"
        has_margin = self.error is not None or self.interval is not None
        return f"confidence {format_confidence(self.confidence)}, {loss}" if has_margin else loss

    def _shown(self) -> list[list[str]]:
        """Return a row of titles and a row of text for each number: its name, value and margins."""
        numbers = list(self.numbers())
        titles = ["", "published", "within"]
        if any(number.joint is not None for number in numbers):
            titles.append("all within")
        rows = [
            [number.path[-1] if number.path else self.query, *number.format()[: len(titles) - 1]]
            for number in numbers
        ]
        return [titles, *rows]


class LossMixin:
    """Mixin for queries: the total epsilon or rho of `losses`."""

    losses: tuple[Loss, ...]

    @property
    def epsilon(self) -> float | None:
        """The privacy loss, or None for Gaussian noise."""
        if any(loss.kind != PURE for loss in self.losses):
            return None
        return float_up(sum((Fraction(loss.amount) for loss in self.losses), Fraction(0)))

    @property
    def rho(self) -> float | None:
        """The privacy loss of Gaussian noise, or None for other noise.

        A query with Gaussian noise has exactly one loss.
        """
        return self.losses[0].amount if self.losses[0].kind == GAUSSIAN else None


def as_loss(epsilon: float | Loss) -> Loss:
    """Return a loss unchanged, and a number as a pure loss."""
    if isinstance(epsilon, Loss):
        return epsilon
    return Loss(PURE, check_positive("epsilon", epsilon))


@dataclass(frozen=True)
class WholeNoise:
    """Exact noise on integers, scaled to the change that one person can cause."""

    mechanism: AdditiveMechanism
    words: str

    @classmethod
    def of(
        cls,
        loss: Loss,
        contribution: ContributionBounds,
        change: RowChange,
        *,
        counts: bool = False,
        lower: int | None = None,
    ) -> "WholeNoise":
        """Return Gaussian noise for a Gaussian loss.

        For a pure loss, return discrete Laplace noise for counts, and otherwise Laplace noise.
        """
        if loss.kind == GAUSSIAN:
            sensitivity = contribution.l2(change)
            gaussian = GaussianMechanism.for_rho(loss.amount, sensitivity=sensitivity, lower=lower)
            return cls(gaussian, GAUSSIAN_WORDS)
        if counts:
            discrete = DiscreteLaplaceMechanism(
                epsilon=loss.amount, sensitivity=contribution.l1(change), lower=lower
            )
            return cls(discrete, DISCRETE_WORDS)
        return cls(
            LaplaceMechanism(epsilon=loss.amount, sensitivity=contribution.l1(change), lower=lower),
            LAPLACE_WORDS,
        )

    def error(self, confidence: float) -> float:
        """Return the margin of an integer at a confidence, including its rounding."""
        if isinstance(self.mechanism, DiscreteLaplaceMechanism):
            return self.mechanism.error(confidence)
        return self.mechanism.error(confidence) + 0.5

    def weighted_error(self, weights: Sequence[float], confidence: float) -> float:
        """Return the margin of a weighted sum of integers that have independent noise.

        Each integer was rounded once, which moves the sum by at most half of its weight.
        """
        sizes = [abs(weight) for weight in weights if weight]
        if isinstance(self.mechanism, GaussianMechanism):
            noise = self.mechanism.error(confidence) * math.hypot(*sizes)
        else:
            noise = self.mechanism.scale * _laplace_sum_quantile(sizes, confidence)
        return noise * (1 + 2.0**-40) + sum(sizes) / 2

    @property
    def deviation(self) -> float:
        """The standard deviation, not counting rounding."""
        is_gaussian = isinstance(self.mechanism, GaussianMechanism)
        return self.mechanism.scale * (1.0 if is_gaussian else math.sqrt(2))

    def log_characteristic(self, places: Floats) -> Floats:
        """Return the logarithm of the characteristic function of the noise before rounding."""
        scale = self.mechanism.scale
        if isinstance(self.mechanism, GaussianMechanism):
            return -((scale * places) ** 2) / 2
        if isinstance(self.mechanism, DiscreteLaplaceMechanism):
            # With 1/scale near or beyond the largest that sinh takes, the noise is 0.
            places = np.sin(places / 2) / math.sinh(min(0.5 / scale, 300.0))
            return -np.log1p(places**2)
        return -np.log1p((scale * places) ** 2)

    def error_of_three(self, confidence: float) -> float:
        """Return a bound on the sum of the sizes of three independent noises, rounded ones too.

        Sizes of Laplace noise are exponential, so their sum exceeds t scales with probability
        exp(-t) (1 + t + t^2/2). Three Gaussian variates of length r have sizes of at most
        sqrt(3) r together.
        """

        def laplace_tail(t: float) -> float:
            return math.exp(-t) * (1 + t + t * t / 2)

        def gaussian_tail(t: float) -> float:
            r = t / math.sqrt(3)
            density = math.sqrt(2 / math.pi) * math.exp(-r * r / 2)
            return math.erfc(r / math.sqrt(2)) + r * density

        is_gaussian = isinstance(self.mechanism, GaussianMechanism)
        tail = gaussian_tail if is_gaussian else laplace_tail
        return self.mechanism.scale * _quantile(tail, 1 - confidence) * (1 + 2.0**-40) + 1.5

    def release(self, exact: Array, rng: Generator | None) -> Array:
        """Release integers, as int64 or as Python's integers like the input."""
        if exact.dtype == object:
            flat = self.mechanism.release(exact.reshape(-1).tolist(), rng)
            return np.array(flat, dtype=object).reshape(exact.shape)
        released: Array = self.mechanism.release(np.ascontiguousarray(exact, np.int64), rng)
        return released


def _laplace_sum_quantile(weights: Sequence[float], confidence: float) -> float:
    """Return t with P(|w1 X1 + w2 X2 + ...| <= t) >= confidence, for Laplace variates of scale 1.

    For different weights the probability beyond t is the sum of c_i exp(-t/w_i), where c_i is the
    product of w_i^2/(w_i^2 - w_j^2) over all other j. Weights that are too close are increased by
    1/256, which only increases t.
    """
    distinct: list[float] = []
    for weight in sorted(weights):
        distinct.append(max(weight, distinct[-1] * (1 + 2.0**-8)) if distinct else weight)
    factors = [
        math.prod(w * w / ((w - other) * (w + other)) for other in distinct if other != w)
        for w in distinct
    ]
    unit = distinct[-1]

    def tail(t: float) -> float:
        return sum(c * math.exp(-t * unit / w) for c, w in zip(factors, distinct, strict=True))

    return unit * _quantile(tail, 1 - confidence)


def combined_error(parts: Sequence[tuple[WholeNoise, Floats]], confidence: float) -> float:
    """Return the margin of a weighted sum of noisy integers, with the weights of each noise.

    The law of the sum X is a Fourier series of its characteristic function. Where noise is discrete
    the series does not converge, so a little Gaussian noise Z is added: if |Z| <= d and
    |X + Z| <= t, then |X| <= t + d. With a standard deviation s, X is beyond x s with probability
    at most 2.7 exp(-x/sqrt(2)), as all sums of Laplace noise are. Five errors take a small part of
    the probability to fail: that of d, twice; the period of the series; the terms that are left
    out; and rounding errors, below 2^-37.
    """
    terms = [
        (noise, weight, times)
        for noise, weights in parts
        for weight, times in _distinct_weights(weights)
    ]
    if len(terms) == 1 and terms[0][2] == 1:
        return terms[0][1] * terms[0][0].error(confidence)
    spread = math.hypot(*(math.sqrt(n) * w * noise.deviation for noise, w, n in terms))
    rounding = sum(w * n / 2 for noise, w, n in terms if noise.words != DISCRETE_WORDS)
    beyond = 1 - confidence
    if beyond < _LEAST_IN_SERIES:
        return spread * math.sqrt(2) * (1 - math.log(beyond)) + rounding
    share = beyond * _PART_OF_SERIES
    bits = -math.log(share)
    half_period = math.sqrt(2) * (bits + 1) + 2 * _SMOOTHING  # In standard deviations.
    number = math.ceil(2 * bits * half_period / (math.pi * _SMOOTHING))
    indices = np.arange(1, number + 1)
    places = (indices * (math.pi / half_period)).astype(np.float64)  # In units of 1/spread.
    logarithms = -((places * _SMOOTHING) ** 2) / (4 * bits)
    for noise, weight, times in terms:
        logarithms += times * noise.log_characteristic(places * (weight / spread))
    factors = np.exp(logarithms) * (2 / math.pi) / indices
    places, factors = places[factors > _NEGLIGIBLE], factors[factors > _NEGLIGIBLE]

    def tail(t: float) -> float:
        return float(1 - t / half_period - factors @ np.sin(places * t))

    margin = spread * (_quantile(tail, beyond - 5 * share) + _SMOOTHING)
    return margin * (1 + 2.0**-30) + rounding


def _distinct_weights(weights: Floats) -> list[tuple[float, int]]:
    """Return the sizes of weights that are not 0, and how often each occurs, up to rounding."""
    sizes, times = np.unique(np.round(np.abs(weights), 12), return_counts=True)
    return [(w, n) for w, n in zip(sizes.tolist(), times.tolist(), strict=True) if w]


def _quantile(tail: Callable[[float], float], probability: float) -> float:
    """Return the smallest t, but for rounding, with tail(t) at most a probability."""
    low, high = 0.0, 1.0
    while tail(high) > probability:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > probability else (low, middle)
    return high


def single_confidence(confidence: float, number: int) -> float:
    """Return the confidence that each of `number` independent margins needs.

    All of them then hold with probability `confidence`. Rounding errors can only make the result
    larger. It stays below 1.
    """
    each = 1 + math.expm1(math.log(confidence) / number)
    return min(each * (1 + 2.0**-50) if number > 1 else confidence, 1 - 2.0**-53)
