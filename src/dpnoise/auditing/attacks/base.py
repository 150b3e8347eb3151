"""What every attack is: it finds an event, and is judged on releases that it has not seen.

An attack writes one method, `find`. Calling it runs `find`, then counts the event in fresh
releases of both values; then all of that once more with both values equal, where an honest attack
has no advantage.

An attack that knows how a library rounds may know it of another machine. Its events say how they
explain a release (`Event.explains`), and before one is used it must explain releases whose value is
known. What is certified does not rest on this: it is counted, whatever the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, final

import numpy as np

from dpnoise.auditing.attacks import bounds
from dpnoise.auditing.attacks.bounds import BoundEstimator
from dpnoise.auditing.targets.target import Releases, Target, named
from dpnoise.core.arrays import Flags, Floats, Integers
from dpnoise.core.errors import ArgumentError, check_integer
from dpnoise.core.parallel import cores, run_in_parallel

Progress = Callable[[float], object]
Explains = Callable[[Releases, float], Flags]

# What an attack is given, from the weakest to the strongest.
OUTPUTS: Final = "outputs"
SCALE: Final = "outputs and scale"
SOURCE: Final = "source"

MISFIT: Final = "this model does not fit the library on this machine"

# Releases that tell apart events that differ in what they know of the sampler, and that check one.
_ENOUGH: Final = 2_000
_ERROR: Final = 1e-4  # Of the limits by which events are compared.
_DECIDED_TOGETHER: Final = 2**8  # Releases that a thread takes at a time; each costs microseconds.


def silent(*_: object) -> None:
    """Report to nobody, whatever there is to report."""


@dataclass(frozen=True)
class Event:
    """A set of outputs that happens at one value and hardly at the other.

    Parameters
    ----------
    words
        The event in plain words, of an output y.
    holds
        Takes releases in their order and tells, for each group of `releases` of them, whether the
        event happened. It looks at no other group, and no release is in two: limits of a
        probability hold for independent trials.
    releases
        How many releases one decision takes.
    applies
        False if the attack has nothing to say about this target, for the reason in `words`.
    explains
        Of an event that rests on a model of a library: takes releases of a known value in their
        order and tells which of them, or of their groups, the model gives to that value.
    fits
        False if the model was seen to be wrong. It then is, at whatever values.
    """

    words: str
    holds: Callable[[Releases], Flags] = field(repr=False)
    releases: int = 1
    applies: bool = True
    explains: Explains | None = field(default=None, repr=False)
    fits: bool = True


def excluded(
    words: str,
    possible: Explains,
    value0: float,
    value1: float,
    grouped: Callable[[Releases], Releases] = np.asarray,
    releases: int = 1,
) -> Event:
    """Return the event that value0 is possible and value1 is not.

    `possible` returns for each release, or each row that `grouped` makes of several releases,
    whether it can come from a value. It is slow, so value0 is asked about only where value1 is not
    possible.
    """

    def explains(y: Releases, value: float) -> Flags:
        return possible(grouped(y), value)

    def holds(y: Releases) -> Flags:
        groups = grouped(y)
        result = ~possible(groups, value1)
        result[result] = possible(groups[result], value0)
        return result

    return Event(words, holds, releases, explains=explains)


def decide(
    kernel: Callable[..., None],
    y: Releases,
    value: float,
    *,
    scale: float,
    model: tuple[object, ...] = (),
    dtype: type = np.float64,
    progress: Progress = silent,
) -> Flags:
    """Find out on all cores, by a kernel, which rows of releases can come from the value.

    The kernel takes rows, the value and the scale in a format, the parts of the model, and the
    flags to fill.
    """
    rows: Releases = np.ascontiguousarray(y, dtype)
    flags = np.empty(len(y), dtype=np.bool_)

    def work(first: int, last: int) -> None:
        part = slice(first, last)
        kernel(rows[part], dtype(value), dtype(scale), *model, flags[part])
        progress(last / max(1, len(y)))

    run_in_parallel(work, len(y), _DECIDED_TOGETHER, cores())
    return flags


def best(events: Sequence[Event], target: Target, value0: float, value1: float, n: int) -> Event:
    """Return the event whose model fits best and whose rates differ most, on at most n releases."""
    if len(events) == 1:
        return events[0]
    at0, at1 = (target(value, min(n, _ENOUGH)) for value in (value0, value1))

    def worth(event: Event) -> tuple[int, float]:
        wrong = _unexplained(event, at0, value0) + _unexplained(event, at1, value1)
        return -wrong, count(event, at0).rate - count(event, at1).rate

    return max(events, key=worth)


def exclude(
    models: Sequence[tuple[Any, ...]],
    target: Target,
    value0: float,
    value1: float,
    n: int,
    *,
    otherwise: str = "no model is known",
) -> Event:
    """Return the event that value0 is possible and value1 is not, by the model that fits best.

    A model is what `excluded` takes: words, possible, and for groups of releases the last two.
    """
    events = [excluded(words, can, value0, value1, *groups) for words, can, *groups in models]
    return best(events, target, value0, value1, n) if events else never(otherwise)


def _unexplained(event: Event, releases: Releases, value: float) -> int:
    """Count the releases of a known value that the model behind an event does not explain."""
    return 0 if event.explains is None else int((~event.explains(releases.copy(), value)).sum())


def expected_bound(
    hits0: Integers, hits1: Integers, n: int, estimator: BoundEstimator | None = None
) -> Floats:
    """Return what each event would be worth if these were its counts.

    That is what it would certify in an audit, or without one the ratio of its limits. For choosing
    among events alone: they are counted again. Many have the same two counts: each pair of counts
    is judged once.
    """
    pairs, place = np.unique(hits0 * (n + 1) + hits1, return_inverse=True)
    seen0, seen1 = pairs // (n + 1), pairs % (n + 1)
    if estimator is not None:
        expected = estimator.expected_bounds(seen0, seen1, n)
    else:
        low, high = bounds.lower_limits(seen0, n, _ERROR), bounds.upper_limits(seen1, n, _ERROR)
        expected = low / high
    return np.asarray(expected[place.reshape(hits0.shape)])


def beyond(threshold: float, *, above: bool) -> Event:
    """Return the event on one side of a threshold."""

    def holds(y: Releases) -> Flags:
        return np.asarray(y > threshold if above else y < threshold, dtype=np.bool_)

    return Event(f"y {'>' if above else '<'} {threshold:.6g}", holds)


def never(words: str) -> Event:
    """Return the event of an attack that found nothing."""
    return Event(words, lambda y: np.zeros(len(y), dtype=np.bool_), applies=False)


def misfit(seen: str) -> Event:
    """Return the event of an attack whose model was seen to be wrong here."""
    return replace(never(f"{MISFIT}: {seen}"), fits=False)


@dataclass(frozen=True)
class Count:
    """How often an event happened, and in how many trials."""

    hits: int
    trials: int

    @property
    def rate(self) -> float:
        """The share of the trials in which it happened."""
        return self.hits / self.trials

    def __add__(self, other: "Count") -> "Count":
        return Count(self.hits + other.hits, self.trials + other.trials)


@dataclass(frozen=True)
class Outcome:
    """What an attack found, measured on fresh releases.

    Parameters
    ----------
    attack, target
        Their names.
    value0, value1
        The two values; the event is meant to happen at value0.
    event, releases
        The event in plain words, and how many releases one decision takes.
    at0, at1
        How often it happened at each value.
    placebo
        The same attack with both values equal to value0.
    error
        The probability that an interval or epsilon_lower is wrong.
    independent
        Whether the trials are independent, without which no epsilon is certified.
    applies
        False if nothing is concluded, for the reason in `event`.
    """

    attack: str
    target: str
    value0: float
    value1: float
    event: str
    releases: int
    at0: Count
    at1: Count
    placebo: tuple[Count, Count] | None
    error: float
    independent: bool = True
    applies: bool = True

    @property
    def advantage(self) -> tuple[float, float]:
        """An interval of P0 - P1."""
        return _advantage(self.at0, self.at1, self.error)

    @property
    def placebo_advantage(self) -> tuple[float, float] | None:
        """An interval of the placebo's P0 - P1. It contains 0 unless the attack fools itself."""
        return None if self.placebo is None else _advantage(*self.placebo, self.error)

    def epsilon_lower(self, delta: float = 0.0) -> float:
        """Return an epsilon that the target cannot be below, at this delta."""
        if not self.independent:
            return 0.0
        counts = self.at0.hits, self.at0.trials, self.at1.hits, self.at1.trials
        return bounds.certified_epsilon(
            *counts, error=self.error, delta=delta, releases=self.releases
        )


def _advantage(at0: Count, at1: Count, error: float) -> tuple[float, float]:
    return bounds.advantage(at0.hits, at0.trials, at1.hits, at1.trials, error)


@dataclass(frozen=True)
class Attack(ABC):
    """The base of all attacks: small frozen objects, made with what they know of the target."""

    name: ClassVar[str]
    access: ClassVar[str]
    breaks: ClassVar[str]
    source: ClassVar[str]
    default_target: ClassVar[str]
    default_size: ClassVar[int] = 20_000
    noise: ClassVar[str | None] = None  # "laplace" or "gaussian", if it knows one of them only.
    in_audit: ClassVar[bool] = True  # Whether it applies to any target, one release at a time.
    # Whether its trials are: once a generator's state is known they share it, and prove nothing.
    independent: ClassVar[bool] = True

    def target(self, **claims: float) -> Target:
        """Return a target that it breaks, with epsilon, delta and sensitivity."""
        return named(self.default_target, **claims)

    @abstractmethod
    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event, from at most n releases of each value and what the access allows."""

    @final
    def event(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Find the event, and hold its model against releases of both values, which are known.

        A model that excludes a true value is that of another machine, or of another library:
        nothing is concluded from it.
        """
        event = self.find(target, value0, value1, n, progress)
        if self.access != SOURCE or not event.applies:
            return event
        if event.explains is None:
            raise ArgumentError(f"{self.name} knows a library's source: give its event `explains`.")
        size = min(n, _ENOUGH)
        for value in (value0, value1):
            wrong = _unexplained(event, target(value, size), value)
            if wrong:
                seen = f"{wrong:,} of {size:,} releases of the value {value:g} exclude that value"
                return misfit(f"{seen} ({event.words})")
        return event

    @final
    def __call__(
        self,
        target: Target,
        value0: float = 0.0,
        value1: float = 1.0,
        *,
        n: int | None = None,
        confidence: float = 0.999,
        placebo: bool = True,
        progress: Progress = silent,
    ) -> Outcome:
        """Find an event, and count it in n fresh releases of each value.

        Parameters
        ----------
        target
            What is attacked.
        value0, value1
            The value at which the event is meant to happen; another, at most the sensitivity away.
        n
            How many releases of each value the attack may see, and how many it is measured on.
        confidence
            Of the intervals and of the certified epsilon.
        placebo
            Whether to do all of it again with both values equal.
        progress
            Called with numbers from 0 to 1 while the attack works.
        """
        n = check_integer("n", self.default_size if n is None else n, least=1)
        error = 1 - confidence
        outcome = self._measured(target, value0, value1, n, error, progress)
        if not placebo:
            return outcome
        same = self._measured(target, value0, value0, n, error, silent)
        return replace(outcome, placebo=(same.at0, same.at1))

    def _measured(
        self, target: Target, value0: float, value1: float, n: int, error: float, progress: Progress
    ) -> Outcome:
        event = self.event(target, value0, value1, n, progress)
        at0, at1 = (count(event, target(value, n)) for value in (value0, value1))
        return Outcome(
            attack=self.name,
            target=target.name,
            value0=value0,
            value1=value1,
            event=event.words,
            releases=event.releases,
            at0=at0,
            at1=at1,
            placebo=None,
            error=error,
            independent=self.independent,
            applies=event.applies,
        )


def happened(event: Event, releases: Releases, *, last: bool = False) -> Flags:
    """Tell of each trial whether an event happened; what is left after the last is not used.

    `last` says that no other event will see the releases.
    """
    groups = len(releases) // event.releases
    whole = releases[: groups * event.releases]
    # A copy: an event that sorts what it is given must not change what the next one sees.
    flags = event.holds(whole if last else whole.copy(order="K"))
    if not 0 < len(flags) <= groups:
        made = f"{len(flags)} trials of {len(releases)} releases, {event.releases} for each"
        raise ArgumentError(f"The event {event.words!r} made {made}: expected 1 to {groups}.")
    return flags


def count(event: Event, releases: Releases) -> Count:
    """Count an event in releases; what is left over after the last whole group is not used."""
    flags = happened(event, releases)
    return Count(int(np.count_nonzero(flags)), len(flags))
