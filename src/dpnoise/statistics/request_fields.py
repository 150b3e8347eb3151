"""The fields of a request, and what follows from them before the budget is split."""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, product
from math import prod
from os import PathLike
from typing import Any, Final

from dpnoise.core.errors import reject
from dpnoise.core.strict_json import Data
from dpnoise.statistics.bounds import ADD_REMOVE
from dpnoise.statistics.expressions import (
    Condition,
    ValueNode,
    parse_condition,
    parse_value,
    possible_values,
)
from dpnoise.statistics.group_discovery import group_order
from dpnoise.statistics.marginals import ADDS_UP, Hierarchy, Level, Marginal, level_of
from dpnoise.statistics.plan import Combinations, Grouping, Key
from dpnoise.statistics.questions import GROUPS, PERSON_LIMITS, PERSONS, Question, UndeclaredCount

# The keys of each column, or the word "discover". After the discovery also the groups of columns
# that are discovered together, by a tuple of their names.
Groups = Mapping[Any, Sequence[Any]]
_BEYOND_BOUNDS: Final = "rows of a person beyond those that count"


@dataclass(frozen=True)
class RequestFields:
    """The fields of a request. `Request` describes them."""

    epsilon: float | None
    publish: Sequence[Question]
    groups: Groups = field(default_factory=dict)
    missing: str = "error"
    confidence: float = 0.95
    clamp: bool = True
    intervals: bool = False
    delimiter: str = ","
    person: str | Sequence[str] | None = None
    max_groups: int | None = None
    max_rows: int | None = None
    neighbours: str = ADD_REMOVE
    without_id: str = "error"
    delta: float = 0.0
    rho: float | None = None
    mechanism: str | None = None
    text_columns: Sequence[str] = ()
    max_total_rows: int | None = None
    suppress: str | None = None
    part: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    released_by: str | None = None
    derived: Mapping[str, str] = field(default_factory=dict)
    consistent: bool = False
    hierarchy: Hierarchy = field(default_factory=dict)
    undeclared: bool = False
    left_out: float | None = None
    ledger: str | PathLike[str] | None = None

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """All questions: those to publish, and the counts of rows in no declared group."""
        columns = [level.column for level in self.levels.values()] if self.undeclared else []
        counts = (UndeclaredCount(undeclared=column) for column in dict.fromkeys(columns))
        return (*self.publish, *counts)

    @property
    def discovered(self) -> tuple[str, ...]:
        """The columns whose groups are discovered."""
        return tuple(name for name in self.groups if name in self.grouped and self.is_open(name))

    @cached_property
    def discovered_together(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each discovery."""
        together = dict.fromkeys(self.discovered_columns(each.by) for each in self.publish)
        return tuple(columns for columns in together if columns)

    def discovered_columns(self, by: Sequence[str]) -> tuple[str, ...]:
        """Return those of some columns whose groups are discovered, together."""
        return tuple(name for name in self.groups if name in by and self.is_open(name))

    @property
    def grouped(self) -> list[str]:
        """The columns that questions group by, each once."""
        return list(dict.fromkeys(column for question in self.publish for column in question.by))

    @cached_property
    def derived_values(self) -> dict[str, ValueNode]:
        """The derived columns, parsed."""
        return {name: parse_value(name, text) for name, text in self.derived.items()}

    @cached_property
    def conditions(self) -> dict[str | None, Condition | None]:
        """The filters of the questions, parsed."""
        texts = dict.fromkeys(question.where for question in self.questions)
        return {
            text: None if text is None else parse_condition(text, self.derived_values)
            for text in texts
        }

    def known_groups(self) -> dict[str, Sequence[Key]]:
        """Return all groups of the derived columns that questions group by, if they are known."""
        values = {name: possible_values(value) for name, value in self.derived_values.items()}
        return {name: known for name in self.grouped if (known := values.get(name)) is not None}

    def is_open(self, column: str) -> bool:
        """Return whether the groups of a column are discovered."""
        return isinstance(self.groups[column], str)

    @cached_property
    def families(self) -> dict[tuple[Any, ...], list[Question]]:
        """The questions whose numbers are adjusted together, for each such statistic."""
        families: dict[tuple[Any, ...], list[Question]] = {}
        for question in self.publish if self.consistent else ():
            for statistic in question.statistic_names:
                if statistic in question.additive_statistics:
                    families.setdefault(question.measure(statistic), []).append(question)
        is_coarse = {column for column, level in self.levels.items() if level.depth}
        return {
            measure: questions
            for measure, questions in families.items()
            if len(questions) > 1 or is_coarse.intersection(questions[0].by)
        }

    @cached_property
    def levels(self) -> dict[str, Level]:
        """The level in the hierarchy of each column with declared groups."""
        declared = (name for name in self.grouped if not self.is_open(name))
        return {name: level_of(name, self.hierarchy, self.groups) for name in declared}

    def is_adjusted(self, question: Question, statistic: str) -> bool:
        """Return whether the numbers of a statistic are adjusted to add up with others."""
        return question.measure(statistic) in self.families

    def table_columns(self, question: Question, statistic: str) -> tuple[str, ...]:
        """Return the columns of the table that numbers are sums of: those of a whole family.

        They are the columns of the question if its numbers are not adjusted.
        """
        if not self.is_adjusted(question, statistic):
            return tuple(question.by) if question.table is None else question.table
        members = self.families[question.measure(statistic)]
        columns = (self.levels[name].column for member in members for name in member.by)
        return tuple(dict.fromkeys(columns))

    def marginal(self, question: Question, statistic: str) -> Marginal:
        """Return the sums of a table that the numbers of a statistic are."""
        columns = self.table_columns(question, statistic)
        shape = tuple(len(self.groups[name]) for name in columns) or (1,)
        levels = (self.levels[name] for name in question.by)
        return Marginal(shape, tuple((columns.index(level.column), level) for level in levels))

    def limits_of(self, question: Question) -> tuple[int | None, ...]:
        """Return the limits of a question, or else those of the request; as in PERSON_LIMITS."""
        limits = tuple(
            getattr(self if getattr(question, name) is None else question, name)
            for name in PERSON_LIMITS
        )
        return limits if question.per_person is None else (limits[0], None, None)

    def keys(self, question: Question, groups: Groups | None = None) -> list[tuple[Key, ...]]:
        """Return the keys of a question's groups in order; one empty key if it does not group."""
        axes = self.axes(question.by, self.groups if groups is None else groups)
        names = [part.column for axis in axes for part in axis.groupings]
        order = [names.index(name) for name in question.by]
        keys = (
            axis.keys if isinstance(axis, Combinations) else [(key,) for key in axis.keys]
            for axis in axes
        )
        flat = (tuple(chain.from_iterable(group)) for group in product(*keys))
        return [tuple(group[index] for index in order) for group in flat]

    def axes(self, by: Sequence[str], groups: Groups) -> list[Grouping | Combinations]:
        """Return a grouping for each column with declared groups, and one for all others.

        Columns, and groups that are discovered, are in the order of `by`.
        """
        together = self.discovered_columns(by)
        columns = tuple(name for name in by if name in together)
        order = [together.index(name) for name in columns]
        axes: list[Grouping | Combinations] = []
        for name in by:
            if name not in together:
                axes.append(Grouping(name, tuple(groups[name])))
            elif name == columns[0]:
                labels = (tuple(group[index] for index in order) for group in groups[together])
                axes.append(Combinations(columns, tuple(sorted(labels, key=group_order))))
        return axes

    def number_of_groups(self, by: Sequence[str], groups: Groups) -> int | None:
        """Return the number of groups of all columns together, or None if it is not known yet."""
        together = self.discovered_columns(by)
        if together and together not in groups:
            return None
        names = [*(name for name in by if name not in together), *([together] if together else [])]
        return prod(len(groups[name]) for name in names)

    def with_placeholders(self) -> Groups:
        """Return the groups, with one group of each discovery, whose labels are empty."""
        return {**self.groups, **{each: (("",) * len(each),) for each in self.discovered_together}}

    def columns(self) -> list[str]:
        """Return the columns of which statistics are published, each once."""
        columns = (question.column for question in self.publish)
        return list(dict.fromkeys(column for column in columns if column is not None))

    def number_columns(self) -> list[str]:
        """Return the columns of numbers, each once."""
        columns = (each.column for each in self.publish if each.distinct is None)
        return list(dict.fromkeys(column for column in columns if column is not None))

    def distinct_columns(self) -> list[str]:
        """Return the columns whose different values are counted, each once."""
        return list(dict.fromkeys(each.distinct for each in self.publish if each.distinct))

    def to_dict(self) -> Data:
        """Return the request as plain data, for JSON."""
        data = asdict(self)
        del data["ledger"]  # A path of this machine. The record has what the ledger paid.
        data["groups"] = {
            column: keys if isinstance(keys, str) else [key_for_json(key) for key in keys]
            for column, keys in self.groups.items()
        }
        data["hierarchy"] = {
            finer: {
                column: {name: [key_for_json(key) for key in keys] for name, keys in parts.items()}
                for column, parts in coarser.items()
            }
            for finer, coarser in self.hierarchy.items()
        }
        return data

    @property
    def privacy_unit(self) -> str:
        """The privacy unit, in words."""
        if self.person is None:
            return "one row"
        words = [f"one person ({', '.join(self.person)})"]
        limits = [getattr(self, name) for name in PERSON_LIMITS]
        if any(limits):
            words[0] += f", {_limit_words(limits, grouped=bool(self.grouped))}"
        own = ((question, self.own_limits_in_words(question)) for question in self.publish)
        words += [f"{question}, {bounds}" for question, bounds in own if bounds]
        if self.without_id == "own":
            words.append("each row without an id counts as one person")
        return "; ".join(words)

    def own_limits_in_words(self, question: Question) -> str:
        """Return the bounds on a person that a question sets, in words; "" without any."""
        if all(getattr(question, name) is None for name in PERSON_LIMITS):
            return ""
        limits = _limit_words(self.limits_of(question), grouped=bool(question.by))
        return f"of each person {limits}" if limits else ""

    @property
    def neighbours_in_words(self) -> str:
        """How neighbouring data sets differ, in words."""
        who = "row" if self.person is None else "person"
        how = "added or removed" if self.neighbours == ADD_REMOVE else "in another's place"
        return f"one {who} {how}"

    @property
    def uncounted(self) -> str:
        """What the margins do not cover, in words."""
        of_rows = (each for each in self.publish if PERSONS not in each.statistic_names)
        limited = {"max_rows": (self, *of_rows)}  # More rows do not change the number of persons.
        is_bounded = any(
            getattr(each, name) is not None
            for name in PERSON_LIMITS
            for each in limited.get(name, (self, *self.publish))
        )
        parts = ["clamped values"]
        if self.missing == "drop" and any(each.column is not None for each in self.publish):
            also = any(PERSONS in each.statistic_names for each in self.publish)
            parts.append("rows without a value" + " (persons counts them too)" * also)
        if is_bounded:
            parts.append(_BEYOND_BOUNDS)
        return _join_words(parts)

    def uncounted_rows(self, question: Question, statistic: str) -> str:
        """Return which rows the margin of one statistic does not cover, in words; else ""."""
        is_dropped = self.missing == "drop" and question.column is not None
        parts = ["rows without a value"] if is_dropped else []
        unlimited = set()
        if not self.table_columns(question, statistic):
            unlimited |= {"max_groups", *(PERSON_LIMITS if statistic == PERSONS else ())}
        elif statistic == PERSONS:
            unlimited.add("max_rows")
        limits = zip(PERSON_LIMITS, self.limits_of(question), strict=True)
        if any(limit is not None and name not in unlimited for name, limit in limits):
            parts.append(_BEYOND_BOUNDS)
        return _join_words(parts) if parts else ""

    @property
    def adjusted_in_words(self) -> list[str]:
        """What is adjusted to add up, and the rows that it covers: a sentence for each."""
        sentences = []
        for (statistic, column, *_), questions in self.families.items():
            columns = " and ".join(self.table_columns(questions[0], statistic))
            rows = f", of the rows in declared groups of {columns}" if columns else ""
            sentences.append(
                f"{ADDS_UP.capitalize()}: each {statistic} of {column or 'rows'}{rows}."
            )
        return sentences

    @property
    def largest_margin(self) -> float | None:
        """The largest relative margin that is not suppressed; None without a rule."""
        if self.suppress is None:
            return None
        rule = re.fullmatch(r"\s*margin\s*>\s*([0-9]*\.?[0-9]+)\s*", str(self.suppress))
        if rule is None or not float(rule[1]):
            reject("suppress", self.suppress, 'be a rule such as "margin > 0.3"')
        return float(rule[1])


def counts_rows(question: Question) -> bool:
    """Return whether the rows of a person count, and not only the person."""
    return question.per_person is None and GROUPS not in question.statistic_names


def _limit_words(limits: Sequence[int | None], *, grouped: bool) -> str:
    """Return limits in words; nothing if there are none."""
    max_groups, max_rows, total = limits
    if not grouped:
        rows = [limit for limit in (max_rows, total) if limit is not None]
        return f"at most {_count_words(min(rows), 'row')}" if rows else ""
    words = []
    if max_groups is not None:
        words.append(_count_words(max_groups, "group"))
    if max_rows is not None:
        words.append(f"{_count_words(max_rows, 'row')} in each{'' if words else ' group'}")
    if total is not None:
        words.append(f"{_count_words(total, 'row')} in all groups")
    return f"at most {_join_words(words)}" if words else ""


def _join_words(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _count_words(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number > 1 else ''}"


def key_for_json(key: Key) -> Key:
    """Return a key for JSON: dates become text."""
    return key.isoformat() if isinstance(key, dt.date) else key
