"""Private estimates of what numbers leave out: rows that none counts, and values that are clamped.

They are shares, computed from noisy counts that are not published. The rows that count are those of
the plan that answers a question. All rows of a person count up to a public cap, because the noise
grows with it. Rows beyond the cap are not seen.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from dpnoise.core.arrays import Integers
from dpnoise.core.strict_json import Data
from dpnoise.noise.generator import Generator
from dpnoise.statistics.bounds import ONE_ROW, ContributionBounds, RowChange
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.digits import format_number
from dpnoise.statistics.plan import Edges, PersonValue, Rows
from dpnoise.statistics.queries import Count
from dpnoise.statistics.questions import (
    DISTINCT,
    GROUPS,
    MOST_ROWS,
    PERSON_LIMITS,
    PERSONS,
    Quantile,
    Quantiles,
    Question,
)
from dpnoise.statistics.request_fields import RequestFields
from dpnoise.statistics.results import WholeNoise, as_loss, single_confidence

# Follows the cost of the estimates.
ESTIMATES: Final = "estimates the share of rows that no number counts, and of clamped values"
_CAP: Final = 10  # Times what a person may contribute: this many of their rows are seen.


@dataclass(frozen=True)
class HiddenCounts(Question):
    """Counts of all groups of a table together, of which only shares are published.

    Without a column they count rows. With a column, they count the values inside of its bounds and
    the values outside.
    """

    statistics: Sequence[str | Quantile | Quantiles] = ("count",)
    table: tuple[str, ...] = ()

    @property
    def person_value(self) -> PersonValue | None:
        """The value of a person. It stays outside of the bounds if it was outside."""
        value = super().person_value
        if value is None:
            return None
        return PersonValue(value.column, value.kind, value.grid, value.least - 1, value.most + 1)

    @property
    def edges_at_bounds(self) -> tuple[float, ...]:
        """The edges of three cells: below the bounds, inside and above."""
        assert self.lower is not None and self.upper is not None  # noqa: S101, PT018 - for mypy
        return (-math.inf, self.lower, math.nextafter(self.upper, math.inf), math.inf)

    def query(
        self,
        statistic: str,
        loss: Loss,
        *,
        clamp: bool = True,
        intervals: bool = False,
        contribution: ContributionBounds = ONE_ROW,
    ) -> "TableCount":
        """Return the query, whose counts may be negative."""
        del statistic, clamp, intervals
        return TableCount(self, loss, contribution)


class TableCount(Count):
    """The rows of a whole table, or its values inside and outside of bounds."""

    def __init__(
        self, question: HiddenCounts, epsilon: float | Loss, contribution: ContributionBounds
    ) -> None:
        self.column, self.losses = question.column, (as_loss(epsilon),)
        self._cells: Edges | None = None
        change = RowChange.of_number(1, 1)
        if question.column is not None:
            self._cells = Edges(question.column, question.edges_at_bounds)
            # A row that replaces another may leave one of two counts and enter the other.
            change = RowChange.of_sums(1)
        self.noise = WholeNoise.of(self.losses[0], contribution, change, counts=True)

    @property
    def ask(self) -> Rows | Edges:
        """A tally of all rows, or of the values in three cells."""
        return Rows() if self._cells is None else self._cells

    def totals(self, answer: Integers | None = None) -> Integers:
        """Return the exact counts of the whole table: of rows, or of values inside and outside.

        Without an answer they are 0: the table has no groups.
        """
        if answer is None:
            answer = np.zeros(1 if self._cells is None else 3, dtype=np.int64)
        if self._cells is None:
            return np.array([answer.sum()])
        below, inside, above = answer.reshape(-1, 3).sum(axis=0)
        return np.array([inside, below + above])

    def draw(self, rng: Generator | None, answer: Integers | None = None) -> list[int]:
        """Return the counts with noise."""
        noisy: list[int] = self.noise.release(self.totals(answer), rng).tolist()
        return noisy


class Coverage(NamedTuple):
    """The hidden counts of one table, for the questions that are answered from it."""

    members: tuple[tuple[Question, str], ...]  # The questions, with their statistics.
    subject: str  # The questions in words.
    by: tuple[str, ...]
    where: str | None
    rows: tuple[HiddenCounts, ...]  # All rows, and those that count; empty if all rows count.
    clamped: tuple[HiddenCounts, ...]  # One for each column and its bounds.

    @property
    def questions(self) -> tuple[HiddenCounts, ...]:
        """All hidden counts."""
        return (*self.rows, *self.clamped)


def coverage_of(
    request: RequestFields, most_rows: Callable[[Question, str], int]
) -> tuple[Coverage, ...]:
    """Return the hidden counts of each table of a request.

    `most_rows` returns how many rows of one person, or values, count in all groups.
    """
    tables: dict[tuple[Any, ...], list[tuple[Question, str]]] = {}
    for question in request.publish:
        for statistic in question.statistic_names:
            if statistic not in {GROUPS, PERSONS, DISTINCT}:
                columns = request.table_columns(question, statistic)
                limits = request.limits_of(question)
                key = (columns, question.where, limits, question.per_person)
                tables.setdefault(key, []).append((question, statistic))
    coverages = []
    for (columns, *_), members in tables.items():
        cap = None
        if request.person is not None:
            cap = min(_CAP * most_rows(*members[0]), MOST_ROWS)
        coverages.append(_coverage_of_table(request, columns, members, cap))
    return tuple(coverage for coverage in coverages if coverage.questions)


def _subject(request: RequestFields, members: Sequence[tuple[Question, str]]) -> str:
    """Return the statistics of a table in words, with the bounds on a person of their own."""
    statistics: dict[Question, list[str]] = {}
    for question, statistic in members:
        statistics.setdefault(question, []).append(statistic)
    return "; ".join(
        ", ".join(filter(None, [question.describe(names), request.own_limits_in_words(question)]))
        for question, names in statistics.items()
    )


def _coverage_of_table(
    request: RequestFields,
    columns: tuple[str, ...],
    members: Sequence[tuple[Question, str]],
    cap: int | None,
) -> Coverage:
    """Return the hidden counts of one table, for its questions with their statistics.

    `cap` is the number of rows of a person that are seen; None without persons.
    """
    question, _ = members[0]
    limits = request.limits_of(question)
    seen: dict[str, Any] = {"max_rows": cap, "max_total_rows": cap}
    # The rows that count are chosen as for the question: they are those of its plan.
    counted: dict[str, Any] = {name: getattr(question, name) for name in PERSON_LIMITS}
    if question.per_person is not None:
        counted = {"max_groups": limits[0], **seen}
    rows: tuple[HiddenCounts, ...] = ()
    if columns or cap is not None:
        all_rows = HiddenCounts(where=question.where, **seen)
        rows = (all_rows, HiddenCounts(where=question.where, table=columns, **counted))
    if question.per_person == "sum":  # The sums of persons are clamped, not the values of rows.
        counted = {"max_groups": limits[0], "per_person": "sum"}
    counted |= {"where": question.where, "table": columns}
    clamped = tuple(
        HiddenCounts(column=column, lower=lower, upper=upper, **counted)
        for column, lower, upper in _clamped_columns(members)
    )
    subject = _subject(request, members)
    return Coverage(tuple(members), subject, columns, question.where, rows, clamped)


def _clamped_columns(
    members: Sequence[tuple[Question, str]],
) -> list[tuple[str | None, float | None, float | None]]:
    """Return the columns whose values some statistics clamp, with their bounds."""
    columns = (
        (question.column, question.lower, question.upper)
        for question, statistic in members
        if question.clamps(statistic)
    )
    return list(dict.fromkeys(columns))


class Noisy(NamedTuple):
    """Noisy counts, and the query that they answer."""

    query: TableCount
    counts: Sequence[int]


@dataclass(frozen=True)
class Share:
    """A share from 0 to 1 with its margin."""

    value: float
    margin: float

    @classmethod
    def within(cls, value: float, low: float, high: float) -> "Share":
        """Return a share in an interval, as far as it is from 0 to 1."""
        low, high = (min(max(end, 0.0), 1.0) for end in (low, high))
        value = min(max(value, low), high)
        # Adding up floats of this size is off by less than this.
        return cls(value, min(max(high - value, value - low) + 2.0**-50, 1.0))

    def __str__(self) -> str:
        value, margin = format_number(100 * self.value, 100 * self.margin)
        return f"{value} % {margin} %"


def left_out_share(everything: Noisy, counted: Noisy, confidence: float) -> Share:
    """Return the share of rows that do not count, with a margin for the noise of both counts.

    The exact numbers have 0 <= part <= rows. If the noisy ones have not, the nearest that have are
    taken, else the margin would vanish. While the exact numbers are within the errors of the noisy
    ones, they are within those of the nearest, too: of `part`, within the larger of both.
    """
    both = single_confidence(confidence, 2)
    (rows,), (part,) = everything.counts, counted.counts
    error, part_error = everything.query.error(both), counted.query.error(both)
    rows, part = max(rows, 0), max(part, 0)
    if part > rows:
        part, part_error = rows, max(error, part_error)
    value = 1 - part / rows if rows > 0 else 0.0
    low = 1 - (part + part_error) / (rows - error) if rows > error else 0.0
    high = 1 - max(part - part_error, 0) / (rows + error) if rows + error > 0 else 1.0
    return Share.within(value, low, high)


def clamped_share(noisy: Noisy, confidence: float) -> Share:
    """Return the share of values outside of their bounds, with a margin for the noise.

    Exact counts are not negative, so the nearest counts that are not are as close to them.
    """
    inside, outside = (max(count, 0) for count in noisy.counts)
    error = noisy.query.error(single_confidence(confidence, 2))

    def share(part: float, rest: float, default: float) -> float:
        part, rest = max(part, 0), max(rest, 0)
        return part / (part + rest) if part + rest else default

    ends = share(outside - error, inside + error, 0.0), share(outside + error, inside - error, 1.0)
    return Share.within(share(outside, inside, 0.0), *ends)


@dataclass(frozen=True)
class LeftOut:
    """What the numbers of one table leave out."""

    members: tuple[tuple[Question, str], ...]  # The questions, with their statistics.
    subject: str  # The questions in words.
    by: tuple[str, ...]  # The columns that rows are grouped by.
    where: str | None  # The filter; None for all rows.
    rows: Share | None  # The share of matching rows that are not counted; None if all are.
    # The columns whose values are clamped, with their bounds and the share of these values.
    clamped: tuple[tuple[HiddenCounts, Share], ...]

    @classmethod
    def of(
        cls, coverage: Coverage, noisy: Mapping[HiddenCounts, Noisy], confidence: float
    ) -> "LeftOut":
        """Return the estimates from noisy counts."""
        rows = None
        if coverage.rows:
            everything, counted = (noisy[question] for question in coverage.rows)
            rows = left_out_share(everything, counted, confidence)
        clamped = ((each, clamped_share(noisy[each], confidence)) for each in coverage.clamped)
        names = coverage.members, coverage.subject, coverage.by, coverage.where
        return cls(*names, rows, tuple(clamped))

    @property
    def margins(self) -> list[float]:
        """The margins of all shares."""
        shares = [self.rows, *(share for _, share in self.clamped)]
        return [share.margin for share in shares if share is not None]

    def describe(self, *, is_only: bool) -> str:
        """Return a sentence, which names the statistics unless there is only one table."""
        sentence = self._words(self.clamped)
        if not is_only:
            sentence = f"{self.subject}: {sentence}"
        return f"{sentence[0].upper()}{sentence[1:]}."

    def remark(self, question: Question, statistic: str) -> str:
        """Return what one statistic of this table leaves out, in words; "" for nothing."""
        bounds = (question.column, question.lower, question.upper)
        clamped = [
            (each, share)
            for each, share in self.clamped
            if question.clamps(statistic) and (each.column, each.lower, each.upper) == bounds
        ]
        return self._words(clamped)

    def _words(self, clamped: Sequence[tuple[HiddenCounts, Share]]) -> str:
        words = [] if self.rows is None else [f"about {self.rows} of the rows are not counted"]
        for question, share in clamped:
            values = "values" if question.per_person is None else "persons' sums"
            words.append(f"about {share} of the {values} of {question.column} are clamped")
        return "; ".join(words)

    def to_dict(self) -> Data:
        """Return plain data, for JSON."""
        clamped = [
            {
                "column": question.column,
                "lower": question.lower,
                "upper": question.upper,
                "per_person": question.per_person,
                **asdict(share),
            }
            for question, share in self.clamped
        ]
        rows = None if self.rows is None else asdict(self.rows)
        return {"by": list(self.by), "where": self.where, "rows": rows, "clamped": clamped}
