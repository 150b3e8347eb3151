"""What a request asks: statistics of columns, and the groups that it declares. All is public."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dpnoise.core.errors import ArgumentError, DpnoiseError, check_choice, check_positive, shown
from dpnoise.statistics.bounds import ONE_ROW, Bounds, Reach
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.engines.checking import OWN
from dpnoise.statistics.plan import Key, Own
from dpnoise.statistics.queries import Count, Deviation, Histogram, Mean, Query, Sum, Variance
from dpnoise.statistics.selections import Quantiles

QUERIES: Final = (
    *("count", "sum", "mean", "variance", "std", "median"),
    *("quantile:Q", "quantiles:Q,Q", "histogram"),
)
_BOUNDED: Final = {kind.name: kind for kind in (Sum, Mean, Variance, Deviation)}
SELECTED: Final = ("median", "quantile", "quantiles")  # No noise is added to these.
_OF_KNOWN_ERROR: Final = ("count", "sum", "histogram")
_MOST_WAYS: Final = 2

DISCOVER: Final = "discover"  # In place of declared keys.
_EXAMPLE: Final = 'groups={"city": ["cork", "dublin"]}'  # For errors.
# The first kind that a key is of counts, because a bool is an int.
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "boolean": bool,
    "number": (int, float),
    "text": str,
    "date": dt.date,
}


@dataclass(frozen=True)
class Question:
    """Some statistics of one column, of all rows or by group.

    Parameters
    ----------
    statistics
        "count", "sum", "mean", "variance", "std", "median", "quantile:0.9", "quantiles:0.25,0.75"
        (released together, in order) or "histogram".
    column
        The column of numbers; a count without one is of rows.
    lower, upper
        Declared bounds of a value, for all but counts and histograms.
    grid
        A power of two; by default from the bounds.
    edges
        Declared edges of a histogram.
    by
        One or two columns whose groups the request declares, or lets be discovered.
    per_person
        "sum" or "mean": a person's own sum or mean in a group counts as their one value there. The
        bounds are those of this value.
    weight
        Each statistic's part of the budget, beside those of other questions.
    error
        The margin that is wanted of each number, at the request's confidence, in place of a part of
        the budget: it costs what it costs. For counts, sums and histograms.

    Examples
    --------
    >>> Question(["mean", "std"], "income", lower=0, upper=200_000).statistics
    ('mean', 'std')
    """

    statistics: Sequence[str]
    column: str | None = None
    lower: float | None = None
    upper: float | None = None
    grid: float | None = None
    edges: Sequence[float] | None = None
    by: tuple[str, ...] = ()
    per_person: str | None = None
    weight: float = 1.0
    error: float | None = None

    def __post_init__(self) -> None:
        for name in ("statistics", "by"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(part, str) for part in given):
                raise ArgumentError(f"{name} must be a list of names, got {shown(given)}.")
            object.__setattr__(self, name, tuple(given))
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(self.edges))
        if not self.statistics:
            raise ArgumentError(f"publish must name at least one query, of{', '.join(QUERIES)}.")
        if len(self.by) > _MOST_WAYS or len(set(self.by)) < len(self.by):
            raise ArgumentError(f"by must name one or two columns, got {shown(self.by)}.")
        check_positive("weight", self.weight)
        self._check_error()
        if self.per_person is not None:
            check_choice("per_person", self.per_person, OWN)
            if self.column is None or self.lower is None or self.upper is None:
                raise ArgumentError(
                    f"A person's own {self.per_person} needs a column and bounds: lower and upper."
                )

    def _check_error(self) -> None:
        if self.error is None:
            return
        check_positive("error", self.error)
        for name in self.statistics:
            if name not in _OF_KNOWN_ERROR:
                raise ArgumentError(
                    f"The error of a {name.partition(':')[0]} depends on the data. Ask for an "
                    f"error of {', '.join(_OF_KNOWN_ERROR)} alone, and give others a weight."
                )

    @property
    def own(self) -> Own | None:
        """The one value of a person in a group, if they have one of their own."""
        if self.per_person is None or self.column is None:
            return None
        assert self.lower is not None and self.upper is not None  # noqa: S101, PT018 - checked
        bounds = Bounds.of_sum(self.lower, self.upper)
        return Own(self.column, self.per_person, bounds.grid, bounds.least, bounds.most)

    def query(
        self,
        statistic: str,
        loss: Loss,
        *,
        clamp: bool = True,
        intervals: bool = True,
        reach: Reach = ONE_ROW,
    ) -> Query:
        """Return what asks for one of the statistics, or say what it needs."""
        name, _, argument = statistic.partition(":")
        if name not in {"quantile", "quantiles"}:
            check_choice("query", statistic, QUERIES)
        if name == "count":
            return Count(self.column, loss, clamp=clamp, reach=reach)
        if self.column is None:
            raise ArgumentError(f"A {name} needs a column: say which.")
        if name == "histogram":
            if self.edges is None:
                raise ArgumentError("A histogram needs its edges: edges=[0, 10000, 20000].")
            return Histogram(self.column, self.edges, loss, clamp=clamp, reach=reach)
        if self.lower is None or self.upper is None:
            raise ArgumentError(f"A {name} needs bounds on a value: lower and upper.")
        bounds = (self.lower, self.upper, loss, self.grid)
        try:
            if name in _BOUNDED:
                return _BOUNDED[name](self.column, *bounds, reach)
            places = [0.5] if name == "median" else _places(name, argument)
            return Quantiles(self.column, places, *bounds, interval=intervals, reach=reach)
        except DpnoiseError:
            raise
        except (ArithmeticError, ValueError):
            raise ArgumentError(
                f"No {name} can be computed with lower={self.lower}, upper={self.upper} and "
                f"grid={self.grid}: numbers beyond the largest or the smallest float arise."
            ) from None


def _places(name: str, text: str) -> list[float]:
    try:
        places = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("A quantile needs its place, as in quantile:0.9.") from None
    if name == "quantile" and len(places) > 1:
        raise ArgumentError(f"To publish several quantiles together, say quantiles:{text}.")
    return places


def check_groups(groups: Mapping[str, Sequence[Key]]) -> dict[str, Sequence[Key]]:
    """Return the declared keys of each column: one or more, each once, of one kind.

    The word "discover" stays as it is.
    """
    return {
        column: keys if isinstance(keys, str) and keys == DISCOVER else _checked(column, keys)
        for column, keys in groups.items()
    }


def _checked(column: str, keys: Sequence[Key]) -> tuple[Key, ...]:
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise ArgumentError(f"The groups of {column!r} must be a list: {_EXAMPLE}.")
    if not keys or len({(type(key), key) for key in keys}) < len(keys):
        raise ArgumentError(
            f"The list of groups must not be empty and must not repeat a group: {_EXAMPLE}."
        )
    kinds = {
        next((name for name, kind in _KINDS.items() if isinstance(key, kind)), None) for key in keys
    }
    if None in kinds or any(key != key or key == "" or _is_no_text(key) for key in keys):  # noqa: PLR0124
        raise ArgumentError(f"Every declared group must have a name, in UTF-8: {_EXAMPLE}.")
    if len(kinds) > 1:
        raise ArgumentError(
            f"The groups of {column!r} must be of one kind: all text, or all numbers."
        )
    return tuple(keys)


def _is_no_text(key: Key) -> bool:
    """Tell whether a name holds bytes that are no UTF-8: no row of a file can hold them."""
    return isinstance(key, str) and key != key.encode("utf-8", "ignore").decode("utf-8")
