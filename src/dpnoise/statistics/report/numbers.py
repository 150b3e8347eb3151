"""The published numbers: of each statistic a table, and bars whose lines are the margins."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from dpnoise.core.strict_json import Data
from dpnoise.statistics.digits import rounded, rounded_interval

_NAMES: Final = {"std": "standard deviation"}
_LONGEST: Final = 1e300  # Near the largest float, lengths overflow.


@dataclass(frozen=True)
class Number:
    """A published number: its groups and its own label, what it is, and its margin."""

    path: tuple[str, ...]
    value: float
    error: float | None
    joint: float | None
    interval: tuple[float, float] | None

    def ends(self) -> tuple[float, float]:
        """Return where its error bar begins and ends."""
        if self.interval is not None:
            return float(self.interval[0]), float(self.interval[1])
        error = self.error if self.error and math.isfinite(self.error) else 0
        return float(self.value - error), float(self.value + error)

    def shown(self) -> tuple[str, str, str]:
        """Return the number, its margin and the joint one, as the terminal shows them."""
        if self.interval is not None:
            value, low, high = rounded_interval(self.value, *self.interval)
            return value, f"{low} to {high}", ""
        value, margin = rounded(self.value, self.error)
        joint = "" if self.joint is None else rounded(self.value, self.joint)[1]
        return value, margin, joint


@dataclass(frozen=True)
class Statistic:
    """One statistic of one column, of all rows or of every group."""

    name: str
    column: str | None
    by: tuple[str, ...]
    release: Data
    numbers: list[Number] = field(default_factory=list)

    @property
    def called(self) -> str:
        """What people call it."""
        return _NAMES.get(self.name, self.name)

    @property
    def of_what(self) -> str:
        """The column and the groups: `income, by city and sex`; a count may be of rows."""
        return self._of + (f", by {' and '.join(self.by)}" if self.by else "")

    @property
    def title(self) -> str:
        """All of it: `Mean of income, by city and sex`."""
        return f"{self.called[:1].upper()}{self.called[1:]} of {self.of_what}"

    @property
    def label(self) -> str:
        """What the last part of every number's path is one of."""
        return str(self._of if self.release["labels"] else self.by[-1])

    @property
    def _of(self) -> str:
        return "rows" if self.column is None else self.column

    def view(self) -> Data:
        """Return what the page shows: a number by itself, or a table with bars."""
        if len(self.numbers) == 1:
            (number,) = self.numbers
            return {"title": self.title, "path": number.path, "shown": number.shown()}
        joint = any(number.joint is not None for number in self.numbers)
        head = [self.label, "Published", "Within", *(["All within"] if joint else [])]
        scale = Scale.of(self.numbers)
        groups = [
            {
                "name": ", ".join(f"{by} {key}" for by, key in zip(self.by, keys, strict=False)),
                "rows": [(n.path[-1], n.shown()[: len(head) - 1], scale.bar(n)) for n in numbers],
            }
            for keys, numbers in groupby(self.numbers, key=lambda number: number.path[:-1])
        ]
        return {"title": self.title, "shown": None, "head": head, "groups": groups}


def statistics_of(releases: Iterable[Data]) -> list[Statistic]:
    """Put the groups of every statistic together; one that was asked for twice is two."""
    found: dict[tuple[object, ...], Statistic] = {}
    seen: dict[tuple[object, ...], int] = {}
    for release in releases:
        by = tuple(release["by"])
        keys = tuple(map(named, release["group"] if len(by) > 1 else [release["group"]] * len(by)))
        what = (release["column"], by, release["query"])
        again = seen[(*what, keys)] = seen.get((*what, keys), 0) + 1
        one = Statistic(release["query"], release["column"], by, release)
        found.setdefault((*what, again), one).numbers.extend(_numbers(release, keys))
    return list(found.values())


def named(key: object) -> str:
    """Return the name of a group; quotes show where one begins and ends that cannot be seen.

    Examples
    --------
    >>> named("cork"), named(" cork"), named(""), named(7)
    ('cork', '" cork"', '""', '7')
    """
    text = str(key)
    return text if text and text == text.strip() else f'"{text}"'


def _numbers(release: Data, keys: tuple[str, ...]) -> Iterator[Number]:
    labels = release["labels"]
    values = release["value"] if labels else [release["value"]]
    intervals = release["interval"] if labels else [release["interval"]]
    for i, value in enumerate(values):
        path = (*keys, labels[i]) if labels else keys
        interval = tuple(intervals[i]) if intervals and intervals[i] else None
        yield Number(path, value, release["error"], release["joint_error"], interval)


@dataclass(frozen=True)
class Scale:
    """From which number to which the bars of one statistic go."""

    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[Number]) -> "Scale":
        """Hold all numbers, zero, and of the margins no more than leaves a third to the bars."""
        values = [_held(number.value) for number in numbers]
        least, most = min(0.0, *values), max(0.0, *values)
        room = (most - least) or _LONGEST
        ends = [(_held(low), _held(high)) for low, high in (number.ends() for number in numbers)]
        low = max(min(least, *(end[0] for end in ends)), least - room)
        high = min(max(most, *(end[1] for end in ends)), most + room)
        return cls(low, high if high > low else low + 1.0)

    def place(self, value: float) -> float:
        """Return where a number stands, as a part of the width."""
        inside = min(max(_held(value), self.low), self.high)
        return (inside - self.low) / (self.high - self.low)

    def bar(self, number: Number) -> Data:
        """Place a number from zero, and its margin, capped where its end is in sight."""
        zero, here = self.place(0.0), self.place(number.value)
        low, high = number.ends()
        return {
            "x": min(zero, here),
            "width": abs(here - zero),
            "zero": zero,
            "margin": [self.place(low), self.place(high)] if low < high else None,
            "caps": [self.place(end) for end in (low, high) if self.low <= end <= self.high],
        }


def _held(value: float) -> float:
    """Keep numbers where differences of two do not overflow; integers may be beyond all floats."""
    return float(min(max(value, -_LONGEST), _LONGEST))
