"""Discovering groups that nobody declared, by noisy numbers of persons or by a selection.

If the numbers of persons are published, noise is added to them, and a group is shown if its noisy
number reaches a threshold (`discovery_threshold`). If only the groups are wanted, each is shown
with the largest probability that epsilon and delta allow, which depends on its number of persons
(Desfontaines, Voss, Gipson and Mandayam 2022). p(0) is 0, because a group without a person cannot
be shown, and one person more may change p to

    p(n + 1) = min(e^epsilon p(n) + delta, 1 - e^-epsilon (1 - p(n) - delta))

Both are rounded down to multiples of 2^-128, so that the inequalities hold exactly for the
probabilities that are drawn.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from dpnoise.core.arrays import Array, Integers
from dpnoise.core.errors import ArgumentError
from dpnoise.core.parallel import first_words
from dpnoise.core.safe_text import format_confidence
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.statistics.composition import Loss, ball_ends, to_ball
from dpnoise.statistics.plan import Unit
from dpnoise.statistics.queries import Count
from dpnoise.statistics.results import LossMixin, Release, WholeNoise

Labels = tuple[str, ...]  # Of a group, one for each column.
SELECTION_WORDS: Final = "optimal partition selection, exact"
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,40}")
_WORD: Final = 64
_CERTAIN: Final = 2**128  # Probabilities are whole multiples of 1/_CERTAIN.
_FACTOR_BITS: Final = 256  # The precision of e^epsilon and e^-epsilon, after the binary point.
_LARGEST_EPSILON: Final = 128.0  # A larger one shows no smaller group.
_MOST_PROBABILITIES: Final = 2**20  # More take seconds to compute, for an epsilon near 0.


@dataclass(frozen=True)
class PartitionSelection:
    """Show groups by their number of persons, with the largest probabilities that are private.

    Parameters
    ----------
    epsilon, delta
        The privacy loss in one group, if its number of persons changes by one.

    Examples
    --------
    >>> selection = PartitionSelection(1.0, 1e-6)
    >>> selection.smallest_shown(0.5), selection.smallest_shown(0.95)
    (14, 16)
    """

    epsilon: float
    delta: float

    @property
    def words(self) -> str:
        """The mechanism in words."""
        return SELECTION_WORDS

    def smallest_shown(self, probability: float) -> int:
        """Return the smallest number of persons that shows a group with a probability."""
        highs, _ = _probabilities(self.epsilon, self.delta)
        return int(np.searchsorted(highs, np.uint64(int(probability * 2.0**_WORD))))

    def show(self, persons: Integers, rng: Generator | None = None) -> Array:
        """Return for each group whether it is shown.

        A uniform integer below 2^128 is less than the probability of the group, in that unit. Its
        digits are two words of one key.
        """
        highs, lows = _probabilities(self.epsilon, self.delta)
        indexes = np.clip(persons, 0, len(highs) - 1)
        words = first_words(check_generator(rng).source.key(), 2 * len(persons))
        high, low = words[: len(persons)], words[len(persons) :]
        shown: Array = (high < highs[indexes]) | ((high == highs[indexes]) & (low < lows[indexes]))
        return shown


@lru_cache(maxsize=8)
def _probabilities(epsilon: float, delta: float) -> tuple[Array, Array]:
    """Return the upper and the lower words of p(0), p(1), ..., up to the largest probability."""
    numbers = show_probabilities(epsilon, delta)
    if numbers[-1] < _CERTAIN - 1:
        raise ArgumentError(
            "With this epsilon and delta no group can be shown: a group would need more than "
            f"{_MOST_PROBABILITIES:,} persons. Spend more epsilon, or a larger delta."
        )
    words = [[number >> _WORD for number in numbers], [number % 2**_WORD for number in numbers]]
    highs, lows = (np.array(part, dtype=np.uint64) for part in words)
    return highs, lows


def show_probabilities(epsilon: float, delta: float) -> list[int]:
    """Return p(0), p(1), ... as multiples of 2^-128, up to the largest, 1 - 2^-128.

    Only p(0) is returned if the list would be too long.
    """
    epsilon = min(epsilon, _LARGEST_EPSILON)
    step = math.floor(Fraction(delta) * _CERTAIN)
    if not step or 2 * math.log1p(math.tanh(epsilon / 2) / delta) / epsilon > _MOST_PROBABILITIES:
        return [0]
    # Both factors are whole multiples of 1/unit: e^epsilon rounded down, e^-epsilon rounded up.
    unit, exponent = 2**_FACTOR_BITS, to_ball(epsilon, 4 * _FACTOR_BITS)
    up = math.floor(unit * ball_ends(exponent.exp())[0])
    down = math.ceil(unit * ball_ends((-exponent).exp())[1])
    numbers = [0]
    while numbers[-1] < _CERTAIN - 1:
        last = numbers[-1]
        rising = last * up // unit + step
        falling = _CERTAIN + (last + step - _CERTAIN) * down // unit
        numbers.append(min(rising, falling, _CERTAIN - 1))
    return numbers


def group_order(labels: Sequence[str]) -> list[tuple[bool, int, str]]:
    """Return a sort key of a group that does not depend on the rows: integers first, then text."""
    is_number = [bool(_WHOLE_NUMBER.fullmatch(label)) for label in labels]
    return [
        (not is_whole, int(label) if is_whole else 0, label)
        for is_whole, label in zip(is_number, labels, strict=True)
    ]


@dataclass(frozen=True)
class Discovery(LossMixin):
    """How to discover the groups of columns: combinations of their keys."""

    columns: tuple[str, ...]
    unit: Unit | None
    noise: WholeNoise | PartitionSelection
    threshold: int | None  # For noisy numbers of persons.
    losses: tuple[Loss, ...]
    counts: tuple[str, ...] = ()  # The statistics that publish the noisy numbers of persons.

    @property
    def subject(self) -> str:
        """The columns, in words."""
        return " and ".join(self.columns)

    @property
    def paid_for(self) -> tuple[str, ...]:
        """The results that the privacy loss of the discovery pays for."""
        return (f"groups of {self.subject}", *self.counts)

    @property
    def scale(self) -> float | None:
        """The scale of the noise; None without noise."""
        return None if isinstance(self.noise, PartitionSelection) else self.noise.mechanism.scale

    def shown_size(self, confidence: float) -> float:
        """Return the number of persons with which a group is shown with a probability."""
        if isinstance(self.noise, PartitionSelection):
            return self.noise.smallest_shown(confidence)
        return (self.threshold or 0) + self.noise.error(confidence)

    def describe_rule(self, confidence: float) -> str:
        """Describe which groups are shown, in words."""
        noun = "rows" if self.unit is None else "persons"
        if self.threshold is None:
            size = f"{self.shown_size(confidence):,} {noun} or more"
            probability = format_confidence(confidence)
            return f"those with enough {noun}; one of {size} with probability {probability}"
        return f"those whose noisy number of {noun} is {self.threshold:,} or more"

    @property
    def count_note(self) -> str:
        """A sentence on counts that discovered groups; empty if they are not published."""
        if not self.counts:
            return ""
        whose = "its" if len(self.columns) == 1 else "their"
        return (
            f"The counts by {self.subject} discovered {whose} groups: only those of "
            f"{self.threshold:,} or more are shown, so counts near that are too large on average. "
            "Margins hold for groups of at least that size."
        )

    def discover(
        self, keys: Sequence[Labels], persons: Integers, rng: Generator | None
    ) -> dict[Labels, int | None]:
        """Return the groups that are shown, with their noisy numbers of persons if there are some.

        Those with the largest noisy numbers come first.
        """
        if not keys:
            return {}
        if isinstance(self.noise, PartitionSelection):
            shown = self.noise.show(persons, rng).tolist()
            names = [key for key, is_shown in zip(keys, shown, strict=True) if is_shown]
            return dict.fromkeys(sorted(names, key=group_order))
        assert self.threshold is not None  # noqa: S101 - for the type checker
        noisy = self.noise.release(persons, rng).tolist()
        ranked = sorted(
            (-number, group_order(key), key)
            for number, key in zip(noisy, keys, strict=True)
            if number >= self.threshold
        )
        return {key: -number for number, _, key in ranked}


class DiscoveredCount(Count):
    """The number of rows or persons in discovered groups, which discovered them."""

    def __init__(self, name: str, column: str | None, discovery: Discovery) -> None:
        assert isinstance(discovery.noise, WholeNoise)  # noqa: S101 - for the type checker
        self.column, self.losses, self.noise = column, discovery.losses, discovery.noise
        self.name, self._discovery = name, discovery

    def release(self, answer: Integers, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish noisy numbers, one for each group. No noise is added to them here."""
        del rng
        shared, threshold = self._discovery.paid_for, self._discovery.threshold
        margins = self._margins(confidence, max(answer.size, 1))
        return [
            replace(release, shared=shared, threshold=threshold)
            for release in self._releases(answer, confidence, margins)
        ]


class DiscoveredGroups(Count):
    """The names of discovered groups, without numbers."""

    name = "groups"

    def __init__(self, discovery: Discovery) -> None:
        self.column, self.losses, self._words = None, discovery.losses, discovery.noise.words

    def release(self, answer: Integers, confidence: float, rng: Generator | None) -> list[Release]:
        """Publish each group."""
        del rng
        release = Release(
            self.name, None, self.epsilon, None, None, confidence,
            mechanism=self._words, rho=self.rho,
        )  # fmt: skip
        return [release] * len(answer)

    def describe_margins(self, confidence: float, groups: int) -> str:
        """Return that groups have no numbers."""
        del confidence, groups
        return "no numbers"

    def expected_margin(self, rows: int, confidence: float) -> float:
        """Return 0, because groups have no numbers."""
        del rows, confidence
        return 0.0


FROM_DISCOVERY: Final = (DiscoveredCount, DiscoveredGroups)
