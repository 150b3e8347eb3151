"""The base of all attacks: an attack finds an event, which is counted in fresh releases.

An attack implements one method, `find`. Calling the attack runs `find`, then counts the event in
fresh releases of both values. Then it repeats this with both values equal, as a placebo: an honest
attack has no advantage there.

An attack that models how a library rounds may be wrong on this machine. Its events therefore have a
function that explains a release (`Event.explains`). Before such an event is used, it must explain
releases of a known value. Certified bounds do not depend on the model: they come from counts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, final

import numpy as np

from dpnoise.auditing.attacks import certified_bounds
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.targets.target import Releases, Target, make_target
from dpnoise.auditing.wording import format_value
from dpnoise.core.arrays import Flags, Floats, Integers
from dpnoise.core.errors import ArgumentError, check_integer
from dpnoise.core.parallel import cores, run_in_parallel

Progress = Callable[[float], object]
Explains = Callable[[Releases, float], Flags]

OUTPUTS: Final = "outputs"  # What an attack knows about the target, from the least to the most.
SCALE: Final = "outputs and scale"
SOURCE: Final = "source"

MISFIT: Final = "its model of the noise does not fit these releases"

_MODEL_RELEASES: Final = 2_000  # Releases on which models of the sampler are compared and checked.
_RANKING_ERROR: Final = 1e-4  # Probability that a limit is wrong, for ranking events.
_RELEASES_PER_TASK: Final = 2**8  # Releases that a thread takes at a time; each costs microseconds.


def no_progress(*_: object) -> None:
    """Ignore all arguments: the default progress callback."""


@dataclass(frozen=True)
class Event:
    """A set of outputs that is likely at one value and unlikely at the other.

    Parameters
    ----------
    words
        The event in plain words, of an output y.
    holds
        Takes releases in their order, in groups of `releases`, and returns for each group whether
        the event happened. Each result depends only on its own group, and groups do not overlap:
        limits of a probability need independent trials.
    applies
        False if the attack cannot be used against this target, for the reason in `words`.
    explains
        For an event that relies on a model of a library: takes releases of a known value in their
        order, and returns which of them, or of their groups, are possible in the model.
    fits
        False if the model was found to be wrong. Then it is wrong for all values.
    source
        The event as Python (see `dpnoise.auditing.predicates`), or an empty text.
    functions
        Functions of the caller that `source` calls: an attack's event, or views.
    """

    words: str
    holds: Callable[[Releases], Flags] = field(repr=False)
    releases: int = 1
    applies: bool = True
    explains: Explains | None = field(default=None, repr=False)
    fits: bool = True
    source: str = field(default="", repr=False)
    functions: tuple[Callable[..., object], ...] = field(default=(), repr=False)


def exclusion_event(
    words: str,
    possible: Explains,
    value0: float,
    value1: float,
    grouped: Callable[[Releases], Releases] = np.asarray,
    releases: int = 1,
    source: str = "",
) -> Event:
    """Return the event that value0 is possible and value1 is not.

    `possible` returns for each release, or each row that `grouped` makes of several releases,
    whether it can come from a value. It is slow, so value0 is tested only where value1 is excluded.
    """

    def explains(y: Releases, value: float) -> Flags:
        return possible(grouped(y), value)

    def holds(y: Releases) -> Flags:
        groups = grouped(y)
        result = ~possible(groups, value1)
        result[result] = possible(groups[result], value0)
        return result

    return Event(words, holds, releases, explains=explains, source=source)


def exclusion_source(
    attack: "Attack", target: Target, value0: float, value1: float, **options: object
) -> str:
    """Return the event of an attack with these options as Python."""
    values = f"{target.scale!r}, {float(value0)!r}, {float(value1)!r}"
    keywords = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"excludes(releases, {attack.name!r}, {values}{keywords})"


def possible_by_kernel(
    kernel: Callable[..., None],
    scale: float,
    model: tuple[object, ...] = (),
    dtype: type = np.float64,
    progress: Progress = no_progress,
) -> Explains:
    """Return a function that says which rows of releases can come from a value.

    A kernel computes this on all cores. It takes rows, value and scale as `dtype`, the parts of the
    model, and the flags to fill.
    """

    def possible(y: Releases, value: float) -> Flags:
        rows: Releases = np.ascontiguousarray(y, dtype)
        flags = np.empty(len(y), dtype=np.bool_)

        def work(first: int, last: int) -> None:
            part = slice(first, last)
            kernel(rows[part], dtype(value), dtype(scale), *model, flags[part])
            progress(last / max(1, len(y)))

        run_in_parallel(work, len(y), _RELEASES_PER_TASK, cores())
        return flags

    return possible


def best_event(
    events: Sequence[Event], target: Target, value0: float, value1: float, n: int
) -> Event:
    """Return the event with the best model, then the largest difference of rates."""
    if len(events) == 1:
        return events[0]
    at0, at1 = (target(value, min(n, _MODEL_RELEASES)) for value in (value0, value1))

    def rank(event: Event) -> tuple[int, float]:
        unexplained = _count_unexplained(event, at0, value0)
        unexplained += _count_unexplained(event, at1, value1)
        return -unexplained, count_event(event, at0).rate - count_event(event, at1).rate

    return max(events, key=rank)


def _count_unexplained(event: Event, releases: Releases, value: float) -> int:
    """Count the releases of a known value that the model behind an event does not explain."""
    return 0 if event.explains is None else int((~event.explains(releases.copy(), value)).sum())


def expected_bound(
    hits0: Integers, hits1: Integers, n: int, estimator: BoundEstimator | None = None
) -> Floats:
    """Return a number for each event, given its counts: the larger, the better the event.

    With an estimator it is the expected bound. Otherwise it is the ratio of the lower limit of the
    first probability to the upper limit of the second. Chosen events are counted again. Many events
    have the same two counts, so each pair of counts is evaluated once.
    """
    pairs, indices = np.unique(hits0 * (n + 1) + hits1, return_inverse=True)
    seen0, seen1 = pairs // (n + 1), pairs % (n + 1)
    if estimator is not None:
        expected = estimator.expected_bounds(seen0, seen1, n)
    else:
        low = certified_bounds.lower_limits(seen0, n, _RANKING_ERROR)
        expected = low / certified_bounds.upper_limits(seen1, n, _RANKING_ERROR)
    return np.asarray(expected[indices.reshape(hits0.shape)])


def threshold_event(threshold: float, *, above: bool) -> Event:
    """Return the event that a release is on one side of a threshold."""

    def holds(y: Releases) -> Flags:
        return np.asarray(y > threshold if above else y < threshold, dtype=np.bool_)

    test = f"{'>' if above else '<'} {format_value(threshold)}"
    return Event(f"y {test}", holds, source=f"releases {test}")


def impossible_event(words: str) -> Event:
    """Return an event that never happens, for an attack that found nothing."""
    return Event(words, lambda y: np.zeros(len(y), dtype=np.bool_), applies=False)


def misfit_event(reason: str) -> Event:
    """Return an event that never happens, for an attack with a wrong model."""
    return replace(impossible_event(f"{MISFIT}: {reason}"), fits=False)


@dataclass(frozen=True)
class EventCount:
    """The number of trials in which an event happened, and the number of all trials."""

    hits: int
    trials: int

    @classmethod
    def of(cls, flags: Flags) -> "EventCount":
        """Return the count of trials, for each of which a flag says whether the event happened."""
        return cls(int(np.count_nonzero(flags)), len(flags))

    @property
    def rate(self) -> float:
        """The fraction of trials in which the event happened."""
        return self.hits / self.trials

    def __add__(self, other: "EventCount") -> "EventCount":
        return EventCount(self.hits + other.hits, self.trials + other.trials)


@dataclass(frozen=True)
class Outcome:
    """The result of an attack, measured on fresh releases.

    Parameters
    ----------
    value0, value1
        The two values; the event should be likelier at value0.
    event, releases
        The event in plain words, and the number of releases in a group.
    at0, at1, placebo
        The counts of the event at each value, and those with both values equal to value0.
    error
        The probability that an interval or epsilon_lower is wrong.
    independent
        Whether the trials are independent, without which no epsilon is certified.
    applies
        False if the attack draws no conclusion, for the reason in `event`.
    """

    attack: str
    target: str
    value0: float
    value1: float
    event: str
    releases: int
    at0: EventCount
    at1: EventCount
    placebo: tuple[EventCount, EventCount] | None
    error: float
    independent: bool = True
    applies: bool = True

    @property
    def _counts(self) -> tuple[int, int, int, int]:
        return self.at0.hits, self.at0.trials, self.at1.hits, self.at1.trials

    @property
    def advantage(self) -> tuple[float, float]:
        """A confidence interval of the event's probability at value0 minus that at value1."""
        return certified_bounds.advantage(*self._counts, self.error)

    @property
    def placebo_advantage(self) -> tuple[float, float] | None:
        """The same interval for the placebo. It contains 0 unless the attack fools itself."""
        if self.placebo is None:
            return None
        return replace(self, at0=self.placebo[0], at1=self.placebo[1]).advantage

    def epsilon_lower(self, delta: float = 0.0) -> float:
        """Return a certified lower bound on the target's epsilon, at this delta."""
        if not self.independent:
            return 0.0
        return certified_bounds.certified_epsilon(
            *self._counts, error=self.error, delta=delta, releases=self.releases
        )


@dataclass(frozen=True)
class Attack(ABC):
    """The base of all attacks: small frozen objects, with their knowledge of the target."""

    name: ClassVar[str]
    access: ClassVar[str]  # What it knows about the target: OUTPUTS, SCALE or SOURCE.
    breaks: ClassVar[str]  # The noise that it breaks, in plain words.
    source: ClassVar[str]  # Where the attack was published.
    default_target: ClassVar[str]
    default_size: ClassVar[int] = 20_000
    noise: ClassVar[str | None] = None  # "laplace" or "gaussian", if it attacks only one of them.
    # Whether audits run it. It must then work on any target, with independent releases.
    in_audit: ClassVar[bool] = True
    # Whether its trials are independent. Trials that share a generator's state prove nothing.
    independent: ClassVar[bool] = True

    # How an audit will count what the attack finds.
    estimator: BoundEstimator | None = field(default=None, kw_only=True, repr=False)

    def target(self, **claims: float) -> Target:
        """Return a target that the attack breaks, with epsilon, delta and sensitivity."""
        return make_target(self.default_target, **claims)

    @abstractmethod
    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event, from at most n releases of each value and what the access allows.

        `event` calls this method, and checks the model of the event.
        """

    @final
    def event(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Find the event, and check its model on releases of both values.

        A model that excludes a true value belongs to another machine or library, and is not used.
        """
        event = self.find(target, value0, value1, n, progress)
        if not event.source:
            own = partial(event_flags, event)
            event = replace(event, source=f"own(releases, {self.name!r})", functions=(own,))
        if self.access != SOURCE or not event.applies:
            return event
        if event.explains is None:
            raise ArgumentError(f"{self.name} knows a library's source: give its event `explains`.")
        size = min(n, _MODEL_RELEASES)
        for value in (value0, value1):
            wrong = _count_unexplained(event, target(value, size), value)
            if wrong:
                reason = f"{wrong:,} of {size:,} releases of the value {value:g} exclude that value"
                return misfit_event(f"{reason} ({event.words})")
        return event

    @final
    def __call__(  # Most of its lines are documentation and names.
        self,
        target: Target,
        value0: float = 0.0,
        value1: float = 1.0,
        *,
        n: int | None = None,
        confidence: float = 0.999,
        placebo: bool = True,
        progress: Progress = no_progress,
    ) -> Outcome:
        """Find an event, and count it in n fresh releases of each value.

        Parameters
        ----------
        target
            The target of the attack.
        value0, value1
            The value where the event should be likelier, and one at most the sensitivity away.
        n
            The number of releases of each value to choose on, and again to count in.
        confidence
            The confidence of the intervals and of the certified epsilon.
        placebo
            Whether to repeat the attack with both values equal.
        progress
            Called with numbers from 0 to 1 while the attack works.
        """
        n = check_integer("n", self.default_size if n is None else n, least=1)

        def measure(other: float, progress: Progress) -> tuple[Event, EventCount, EventCount]:
            event = self.event(target, value0, other, n, progress)
            at0, at1 = (count_event(event, target(value, n)) for value in (value0, other))
            return event, at0, at1

        event, at0, at1 = measure(value1, progress)
        return Outcome(
            attack=self.name,
            target=target.name,
            value0=value0,
            value1=value1,
            event=event.words,
            releases=event.releases,
            at0=at0,
            at1=at1,
            placebo=measure(value0, no_progress)[1:] if placebo else None,
            error=1 - confidence,
            independent=self.independent,
            applies=event.applies,
        )


def event_flags(event: Event, releases: Releases, *, last: bool = False) -> Flags:
    """Return for each trial whether an event happened; an incomplete last group is not used.

    `last`: no other event will use these releases, so that they need not be copied.
    """
    groups = len(releases) // event.releases
    whole = releases[: groups * event.releases]
    # An event that sorts its argument must not change what the next event gets.
    flags = event.holds(whole if last else whole.copy(order="K"))
    # Pairs that do not begin at the first release leave out some releases at the ends.
    if not 0 < len(flags) <= groups:
        trials = f"{len(flags)} trials of {len(releases)} releases, {event.releases} for each"
        raise ArgumentError(f"The event {event.words!r} made {trials}: expected 1 to {groups}.")
    return flags


def count_event(event: Event, releases: Releases) -> EventCount:
    """Count an event in releases; an incomplete last group is not used."""
    return EventCount.of(event_flags(event, releases))
