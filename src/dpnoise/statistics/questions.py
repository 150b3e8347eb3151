"""The questions of a request, and its declared groups. Both are public."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, NamedTuple

from dpnoise.core.errors import (
    ArgumentError,
    DpnoiseError,
    check_choice,
    check_integer,
    check_positive,
    check_probability,
    explain_construction,
    is_list,
    reject,
    reject_type,
    short_repr,
    suggest_names,
)
from dpnoise.core.safe_text import escape_text
from dpnoise.statistics.bounds import ONE_ROW, Bounds, ContributionBounds
from dpnoise.statistics.composition import PURE, Loss
from dpnoise.statistics.engines.checking import OWN
from dpnoise.statistics.expressions import parse_condition
from dpnoise.statistics.plan import Key, PersonValue
from dpnoise.statistics.queries import (
    Count,
    Deviation,
    DistinctCount,
    Histogram,
    Mean,
    PersonCount,
    Query,
    Sum,
    Variance,
)
from dpnoise.statistics.selections import QuantileSelection, check_places

QUERIES: Final = (
    *("count", "persons", "distinct", "sum", "mean", "variance", "std", "median"),
    *("quantile:Q", "quantiles:Q,Q", "histogram"),
)
# What people call these statistics in other libraries.
_SYNONYMS: Final = {
    **dict.fromkeys(("avg", "average"), "mean"),
    **dict.fromkeys(("stdev", "stddev", "sd"), "std"),
    **dict.fromkeys(("n", "len", "size", "rows"), "count"),
    **dict.fromkeys(("people", "n_persons"), "persons"),
    **dict.fromkeys(("nunique", "n_unique", "count_distinct", "unique"), "distinct"),
    "var": "variance",
    "total": "sum",
    "hist": "histogram",
    **dict.fromkeys(("keys", "partitions"), "groups"),
    **dict.fromkeys(("percentile", "quantile"), "quantile:0.9"),
    **dict.fromkeys(("percentiles", "quantiles"), "quantiles:0.25,0.75"),
}
GROUPS: Final = "groups"  # In place of statistics: the discovered groups, without numbers.
_ANY_LOSS: Final = Loss(PURE, 1.0)  # For checking the arguments of a question.
_BOUNDED: Final = {kind.name: kind for kind in (Sum, Mean, Variance, Deviation)}
SELECTED: Final = ("median", "quantile", "quantiles")  # Selected from candidates, without noise.
PERSONS: Final = PersonCount.name
DISTINCT: Final = DistinctCount.name
HISTOGRAM: Final = Histogram.name
# Their error does not depend on the data.
_KNOWN_ERROR: Final = ("count", PERSONS, DISTINCT, "sum", "histogram")
MOST_ROWS: Final = 2**31 - 1  # The most rows of one person.
MOST_GROUPS: Final = 2**16  # The most groups of one person.
# The bounds on what one person contributes, of a request or of one of its questions.
PERSON_LIMITS: Final = ("max_groups", "max_rows", "max_total_rows")

DISCOVER: Final = "discover"  # This word in place of declared keys discovers the groups.
_EXAMPLE: Final = {"city": ["cork", "dublin"]}  # Groups that error messages recommend.
# A key is of the first kind that matches, because a bool is also an int.
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "boolean": bool,
    "number": (int, float),
    "text": str,
    "date": dt.date,
}


class PlanKey(NamedTuple):
    """The key of a plan: the columns to group by, the value of a person, filter and limits."""

    by: Sequence[str]
    person_value: PersonValue | None
    where: str | None
    limits: tuple[int | None, ...]  # As in `PERSON_LIMITS`.
    undeclared: str | None = None  # Only rows in no declared group of this column.
    distinct: str | None = None  # The column whose different values are counted.


@explain_construction
@dataclass(frozen=True)
class Quantile:
    """A quantile, for the statistics of a `Question`. In TOML it is the text "quantile:0.9".

    Parameters
    ----------
    q
        The fraction of values below the quantile, from 0 to 1. 0.5 is the median.

    Examples
    --------
    >>> str(Quantile(0.9))
    'quantile:0.9'
    """

    q: float

    def __post_init__(self) -> None:
        check_probability("q", self.q, include_ends=True)

    def __str__(self) -> str:
        return f"quantile:{float(self.q)!r}"


@explain_construction
@dataclass(frozen=True)
class Quantiles:
    """Several quantiles that are released together, for the statistics of a `Question`.

    They cost as much as one. In TOML they are a text, such as "quantiles:0.1,0.9".

    Parameters
    ----------
    q
        The fraction of values below each quantile: different numbers from 0 to 1.

    Examples
    --------
    >>> str(Quantiles([0.1, 0.9]))
    'quantiles:0.1,0.9'
    """

    q: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "q", tuple(check_places(self.q)))

    def __str__(self) -> str:
        return f"quantiles:{','.join(map(repr, self.q))}"


@explain_construction
@dataclass(frozen=True)
class Question:
    """Statistics of one column, of all rows or by group.

    Parameters
    ----------
    statistics
        A list of "count", "persons", "sum", "mean", "variance", "std", "median", "histogram",
        `Quantile(0.9)` and `Quantiles([0.25, 0.75])`. The last two become texts, as in TOML:
        "quantile:0.9" and "quantiles:0.25,0.75". "persons" counts each person once in a group. Or
        only one of these: "distinct", which counts the different values of a column, and "groups",
        which publishes the discovered groups without numbers.
    column
        The column of numbers. A count without a column counts rows. For "distinct" it may hold
        text, whole numbers, dates or booleans.
    lower, upper
        The bounds of one value. Values outside are clamped to them. Choose them without looking at
        the data. Counts and histograms need none.
    grid
        A power of two. Values are rounded to its multiples. The default depends on the bounds. For
        quantiles it is at least 1 if the bounds are whole numbers that are 50 or more apart.
    edges
        The edges of the bins of a histogram, in ascending order. Choose them without looking at the
        data.
    by
        The columns to group by, each once. `Request.groups` declares their groups.
    per_person
        "sum" or "mean": the sum or mean of a person's rows in a group counts as their only value
        there. `lower` and `upper` are then the bounds of this value. None: each row counts.
    weight
        The part of the budget of each statistic, relative to the weights of other questions.
        Statistics of a question that share noisy sums add up their parts: count, sum and mean, or
        count, mean, variance and std.
    error
        The margin that each number should have at the confidence of the request. It replaces a part
        of the budget: the cost follows from it. Only for counts, sums and histograms.
    where
        A condition on each row, such as "age >= 18 and sex == 'f'". Only rows that match count, and
        only they use up the bounds of a person. It may use derived columns of the request.
    max_groups, max_rows, max_total_rows
        The contribution bounds of one person for this question, in place of those of the request.

    Raises
    ------
    ArgumentError
        If an argument is out of range or missing.

    Examples
    --------
    >>> Question(["mean", "std"], "income", lower=0, upper=200_000).statistics
    ('mean', 'std')
    >>> Question(["median", Quantile(0.9)], "income", lower=0, upper=200_000).statistics
    ('median', 'quantile:0.9')
    """

    statistics: Sequence[str | Quantile | Quantiles]
    column: str | None = None
    lower: float | None = None
    upper: float | None = None
    grid: float | None = None
    edges: Sequence[float] | None = None
    by: Sequence[str] = ()
    per_person: str | None = None
    weight: float = 1.0
    error: float | None = None
    where: str | None = None
    max_groups: int | None = None
    max_rows: int | None = None
    max_total_rows: int | None = None

    def __post_init__(self) -> None:
        for name, example in (("statistics", "mean"), ("by", "city")):
            object.__setattr__(self, name, _check_names(name, getattr(self, name), example))
        if not isinstance(self.column, str | None):
            reject_type("column", self.column, "be the name of a column")
        if not self.statistics:
            raise ArgumentError(f"publish must name at least one query, of {', '.join(QUERIES)}.")
        if len(set(self.by)) < len(self.by):
            raise ArgumentError(f"by must name each column once, got {short_repr(self.by)}.")
        self._check_edges()
        check_positive("weight", self.weight)
        self._check_error()
        if self.where is not None:
            parse_condition(self.where)
        check_person_limits(self)
        if self.per_person is not None:
            self._check_per_person(self.per_person)
        if GROUPS in self.statistic_names:
            is_single = len(self.statistics) == 1 and self.by
            if not is_single or self.column is not None or self.where is not None:
                raise ArgumentError(
                    '"groups" publishes which groups there are, without numbers: ask for it in a '
                    "separate question, with {by}, without a column of numbers or a filter.",
                    by=["city"],
                )
            return
        if DISTINCT in self.statistic_names and (len(self.statistics) > 1 or self.per_person):
            raise ArgumentError(
                '"distinct" counts the different values of a column, which need not be numbers: '
                "ask for it in a separate question, without per_person."
            )
        for statistic in self.statistic_names:  # Raises if an argument is wrong or missing.
            self.query(statistic, _ANY_LOSS)

    def __str__(self) -> str:
        """Return the statistics, the column with its bounds, and the groups in words."""
        has_bounds = self.lower is not None and self.upper is not None
        bounds = f" from {self.lower:,.12g} to {self.upper:,.12g}" if has_bounds else ""
        return escape_text(self.describe(self.statistic_names, bounds))

    def describe(self, statistics: Sequence[str], bounds: str = "") -> str:
        """Return statistics, the column with its bounds, and the groups in words."""
        words = ", ".join(statistics)
        words += "" if tuple(statistics) == (PERSONS,) else f" of {self.column or 'rows'}"
        words += "" if self.filter_in_words is None else f" where {self.filter_in_words}"
        return words + bounds + (f", by {' and '.join(self.by)}" if self.by else "")

    def clamps(self, statistic: str) -> bool:
        """Return whether a statistic is of values that are clamped to the bounds."""
        if statistic == HISTOGRAM:
            return self.per_person is not None
        return statistic not in {"count", PERSONS, DISTINCT, GROUPS}

    @property
    def filter_in_words(self) -> str | None:
        """Which rows count, in words; None for all rows."""
        return self.where

    @property
    def undeclared(self) -> str | None:
        """The column in whose declared groups no row is that counts; None for any rows."""
        return None

    @property
    def distinct(self) -> str | None:
        """The column whose different values are counted; None for other statistics."""
        return self.column if DISTINCT in self.statistic_names else None

    @property
    def table(self) -> tuple[str, ...] | None:
        """The columns of a table that all numbers are sums of; None for those of `by`."""
        return None

    @property
    def statistic_names(self) -> tuple[str, ...]:
        """The statistics as texts."""
        return tuple(map(str, self.statistics))

    def separate_persons(self) -> list["Question"]:
        """Return the question without the number of persons, and a question of that number.

        Of each person, one row counts in a group.
        """
        if PERSONS not in self.statistic_names:
            return [self]
        others = tuple(name for name in self.statistic_names if name != PERSONS)
        kept = ("by", "weight", "error", "where", "max_groups", "max_total_rows")
        options: dict[str, Any] = {name: getattr(self, name) for name in kept}
        persons = Question((PERSONS,), max_rows=1, **options)
        return [*([replace(self, statistics=others)] if others else []), persons]

    def _check_edges(self) -> None:
        if is_list(self.edges):
            object.__setattr__(self, "edges", tuple(self.edges))
        if self.edges is not None and HISTOGRAM not in self.statistic_names:
            rule = 'belong to a histogram: ask for "histogram" as well, or leave them out'
            reject("edges", self.edges, rule)

    def _check_per_person(self, kind: str) -> None:
        check_choice("per_person", kind, OWN)
        for name in PERSON_LIMITS[1:]:
            if getattr(self, name) is not None:
                raise ArgumentError(f"Nothing uses {name}: a person's own {kind} is of all rows.")
        if self.column is None or self.lower is None or self.upper is None:
            raise ArgumentError(
                f"A person's own {kind} needs a column and bounds: lower and upper."
            )

    def _check_error(self) -> None:
        if self.error is None:
            return
        check_positive("error", self.error)
        for name in self.statistic_names:
            if name not in _KNOWN_ERROR:
                raise ArgumentError(
                    f"The error of a {name.partition(':')[0]} depends on the data. Ask for an "
                    f"error of {', '.join(_KNOWN_ERROR)} alone, and give others a weight."
                )

    @property
    def shared_statistics(self) -> tuple[str, ...]:
        """The statistics that are computed from the same noisy sums, and paid for together."""
        names = self.statistic_names
        spread = {"variance", "std"}.intersection(names)
        family = {"count", "mean", *spread} if spread else {"count", "sum", "mean"}
        shared = tuple(name for name in names if name in family)
        if len(shared) == 1 or self.column is None or self.error is not None:
            return ()
        if self.lower is None or self.upper is None:
            return ()
        bounds_of = Bounds.of_squares if spread else Bounds.of_sum
        bounds = bounds_of(self.lower, self.upper, self.grid)
        return shared if bounds.least < bounds.most else ()  # Else no sum shows how many there are.

    @property
    def additive_statistics(self) -> tuple[str, ...]:
        """The statistics whose groups add up to the number of all rows."""
        return tuple(name for name in self.statistic_names if name in {"count", "sum"})

    def measure(self, statistic: str) -> tuple[Any, ...]:
        """Return what is measured, without the groups: the statistic, the column and the rest."""
        ignored = {"statistics", "by", "weight", "error", "edges"}
        if statistic == "count" and self.per_person is None:
            ignored |= {"lower", "upper", "grid"}
        names = (part.name for part in fields(self) if part.name not in ignored)
        return statistic, *(getattr(self, name) for name in names)

    @property
    def person_value(self) -> PersonValue | None:
        """The value of a person in a group, if `per_person` asks for one."""
        if self.per_person is None or self.column is None:
            return None
        assert self.lower is not None and self.upper is not None  # noqa: S101, PT018 - checked
        bounds = Bounds.of_sum(self.lower, self.upper)
        return PersonValue(self.column, self.per_person, bounds.grid, bounds.least, bounds.most)

    def query(
        self,
        statistic: str,
        loss: Loss,
        *,
        clamp: bool = True,
        intervals: bool = False,
        contribution: ContributionBounds = ONE_ROW,
    ) -> Query:
        """Return the query for one of the statistics; raise if it lacks an argument."""
        name = statistic.partition(":")[0]
        places = _places(statistic)
        if name == "count":
            return Count(self.column, loss, clamp=clamp, contribution=contribution)
        if name == PERSONS:
            return PersonCount(None, loss, clamp=clamp, contribution=contribution)
        if self.column is None:
            raise ArgumentError(f"A {name} needs a column: say which.")
        if name == DISTINCT:
            return DistinctCount(self.column, loss, clamp=clamp, contribution=contribution)
        if name == HISTOGRAM:
            if self.edges is None:
                raise ArgumentError(
                    "A histogram needs its edges: {edges}.", edges=[0, 10000, 20000]
                )
            return Histogram(self.column, self.edges, loss, clamp=clamp, contribution=contribution)
        options: dict[str, Any] = {"interval": intervals, "contribution": contribution}
        if name in _BOUNDED:
            options = {"clamp": clamp, "contribution": contribution}
            return self._bounded_query(name, partial(_BOUNDED[name], self.column), loss, options)
        selection = partial(QuantileSelection, self.column, places)
        return self._bounded_query(name, selection, loss, options)

    def _bounded_query(
        self, name: str, make: Callable[..., Query], loss: Loss, options: dict[str, Any]
    ) -> Query:
        """Return the query for a statistic of clamped values; raise if it lacks a bound."""
        if self.lower is None or self.upper is None:
            raise ArgumentError(
                f"A {name} needs bounds on a value, such as {{lower}} and {{upper}}.",
                lower=0,
                upper=100,
            )
        try:
            return make(self.lower, self.upper, loss, self.grid, **options)
        except DpnoiseError:
            raise
        except (ArithmeticError, ValueError):
            raise ArgumentError(
                f"No {name} can be computed with lower={self.lower}, upper={self.upper} and "
                f"grid={self.grid}: numbers beyond the largest or the smallest float arise."
            ) from None


@dataclass(frozen=True)
class UndeclaredCount(Question):
    """The number of rows in no declared group of a column, which `Request.undeclared` asks for."""

    statistics: Sequence[str | Quantile | Quantiles] = ("count",)
    undeclared: str = ""  # The column.

    @property
    def filter_in_words(self) -> str:
        """Which rows count, in words."""
        return f"{self.undeclared} is in no declared group"


def check_person_limits(limited: object) -> None:
    """Raise unless the contribution bounds of a request or of a question are valid."""
    mosts = (MOST_GROUPS, MOST_ROWS, MOST_ROWS)
    for name, most in zip(PERSON_LIMITS, mosts, strict=True):
        if getattr(limited, name) is not None:
            check_integer(name, getattr(limited, name), least=1, most=most)
    max_groups, max_rows, total = (getattr(limited, name) for name in PERSON_LIMITS)
    for name, bound in (("max_groups", max_groups), ("max_rows", max_rows)):
        if None not in {bound, total} and bound > total:
            reject(name, bound, f"be at most max_total_rows={total}")


def _check_names(name: str, names: object, example: str) -> tuple[str, ...]:
    """Return a list of names as a tuple; `Quantile` and `Quantiles` become texts."""
    parts = tuple(names) if is_list(names) else ()
    kinds = str | Quantile | Quantiles if name == "statistics" else str
    if not is_list(names) or not all(isinstance(part, kinds) for part in parts):
        if isinstance(names, str) and (name == "by" or names in QUERIES):
            example = names
        rule = f'be a list of names, such as ["{example}"]'
        reject_type(name, names, rule)
    return tuple(map(str, parts))


def _places(statistic: str) -> list[float]:
    """Return the places of a quantile, and none for other statistics; raise if unknown."""
    name, colon, text = statistic.partition(":")
    if name == "median" and not colon:
        return [0.5]
    if name in {"quantile", "quantiles"} and colon:
        try:
            places = [float(part) for part in text.split(",")]
        except ValueError:
            raise ArgumentError("A quantile needs its place, as in quantile:0.9.") from None
        if name == "quantile" and len(places) > 1:
            raise ArgumentError(f"To publish several quantiles together, say quantiles:{text}.")
        return check_places(places)
    if statistic not in QUERIES:
        plain = statistic.strip().lower()
        hint = suggest_names(plain, (*QUERIES, GROUPS))
        if plain in _SYNONYMS:
            hint = f"Did you mean {_SYNONYMS[plain]!r}?"
        raise ArgumentError(f"There is no statistic {statistic!r}. {hint}")
    return []


def check_groups(groups: Mapping[str, Sequence[Key]]) -> dict[str, Sequence[Key]]:
    """Return the declared keys of each column; raise unless they are distinct and of one kind.

    The word "discover" stays as it is.
    """
    if not isinstance(groups, Mapping):
        raise ArgumentError(
            "groups must name the groups of each column: {groups}.", groups=_EXAMPLE
        )
    return {
        column: keys if isinstance(keys, str) and keys == DISCOVER else _check_keys(column, keys)
        for column, keys in groups.items()
    }


def _check_keys(column: str, keys: Sequence[Key]) -> tuple[Key, ...]:
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise ArgumentError(
            f"The groups of {column!r} must be a list: {{groups}}.", groups=_EXAMPLE
        )
    if not keys or len({(type(key), key) for key in keys}) < len(keys):
        raise ArgumentError(
            "The list of groups must not be empty and must not repeat a group: {groups}.",
            groups=_EXAMPLE,
        )
    kinds = {
        next((name for name, kind in _KINDS.items() if isinstance(key, kind)), None) for key in keys
    }
    if None in kinds or any(key != key or key == "" or _is_not_utf8(key) for key in keys):  # noqa: PLR0124
        raise ArgumentError(
            "Every declared group must have a name, in UTF-8: {groups}.", groups=_EXAMPLE
        )
    if len(kinds) > 1:
        raise ArgumentError(
            f"The groups of {column!r} must be of one kind: all text, or all numbers."
        )
    return tuple(keys)


def _is_not_utf8(key: Key) -> bool:
    """Return whether a name cannot be encoded as UTF-8, so that no file can contain it."""
    return isinstance(key, str) and key != key.encode("utf-8", "ignore").decode("utf-8")
