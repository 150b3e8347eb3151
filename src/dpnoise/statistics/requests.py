"""Requests: the statistics to publish and their budget. They are made before a row is read."""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import Any, Final

from dpnoise.core.errors import (
    ArgumentError,
    check_choice,
    explain_construction,
    is_list,
    reject,
    reject_type,
    unknown_name_error,
)
from dpnoise.core.safe_text import escape_text
from dpnoise.core.strict_json import Data
from dpnoise.release.calibration import quotient_down
from dpnoise.statistics.bounds import (
    ADD_REMOVE,
    NEIGHBOURS,
    REPLACE,
    ContributionBounds,
    RowChange,
)
from dpnoise.statistics.budget_split import BEST, LAPLACE, Budget, Item, Prices, price_items
from dpnoise.statistics.composition import PURE, Cost, Loss
from dpnoise.statistics.discovery_threshold import threshold
from dpnoise.statistics.engines import checking
from dpnoise.statistics.expressions import (
    NUMBER,
    Condition,
    SourceColumn,
    ValueNode,
    check_kinds,
    group_column,
    kind_of,
    parse_condition,
    parse_value,
    possible_values,
    source_columns,
)
from dpnoise.statistics.group_discovery import (
    FROM_DISCOVERY,
    DiscoveredCount,
    DiscoveredGroups,
    Discovery,
    PartitionSelection,
)
from dpnoise.statistics.marginals import (
    ADDS_UP,
    Adjustment,
    Hierarchy,
    Level,
    Marginal,
    derived_groups,
    from_coarse_to_fine,
    hierarchy_axes,
    level_of,
)
from dpnoise.statistics.plan import Ask, Cells, Edges, Grouping, Key, PersonValue, Plan, Rows, Unit
from dpnoise.statistics.queries import Count, Mean, Query, Sum, Variance, check_confidence
from dpnoise.statistics.questions import (
    GROUPS,
    MOST_GROUPS,
    PERSON_LIMITS,
    QUERIES,
    SELECTED,
    PlanKey,
    Question,
    check_groups,
    check_person_limits,
)
from dpnoise.statistics.results import WholeNoise
from dpnoise.statistics.shared_sums import AnyQuery, share_sums

__all__ = ["Discovery", "Question", "Request", "key_for_json"]

_MOST_CELLS: Final = 2**26  # The most cells in all groups: 512 MiB of counts.
_MOST_SELECTIONS: Final = 100  # With more groups of one person, noise discovers smaller groups.

Groups = Mapping[str, Sequence[Key]]  # The keys of each column, or the word "discover".


@explain_construction
@dataclass(frozen=True)
class Request:
    """The statistics to publish from a data set, and their budget.

    A request is public: you make it before you look at the data. `publish` answers it in one pass
    over the rows, or in several if groups are discovered.

    Parameters
    ----------
    epsilon
        The privacy loss of all statistics together. Smaller is more private; 0.1 to 10 are common.
        Statistics split it evenly, or by their weights. The groups of one statistic do not split it
        further. None if `rho` or the errors of questions set the budget.
    publish
        The questions.
    groups
        The groups of each column that questions group by: a list of keys. Rows of other groups are
        left out without an error, because an error would reveal them. Declared groups without rows
        are published, too. "discover" in place of a list publishes the groups with enough persons,
        which needs `delta`. A count by this column then costs nothing more, if each person counts
        once in a group: it is the noisy number of persons that discovered the group.
    missing
        How to treat rows without a value: "error" raises, "drop" leaves them out.
    confidence
        The probability that a published margin or interval holds.
    clamp
        Whether counts below 0, and sums of values that cannot be negative, are published as 0.
        Noise can make them negative.
    suppress
        A rule for leaving out numbers, such as "margin > 0.3": those whose margin is more than 0.3
        times the number. The rule reads only published numbers.
    labels
        What people call columns, and rows: {"rows": "stays", "cost": "cost in EUR"}. The page has
        these in its headings.
    notes
        Notes for the readers of the page.
    released_by
        Who publishes the numbers, for the record and the page.
    part
        The part of the data set that the rows are of, if the ledger has parts. None for all of it.
    intervals
        Whether quantiles spend half of their epsilon on confidence intervals. The numbers are then
        less accurate, often by a factor of two to three.
    delimiter
        The character between the fields of a CSV file.
    person
        The column, or the columns, that identify a person. None if every row is another person.
    max_groups, max_rows
        The contribution bounds of one person: the largest number of groups in which they count, and
        of rows in each group. Their other rows are left out. Larger bounds need more noise.
    max_total_rows
        The largest number of rows of one person in all groups together. With it, `max_groups` and
        `max_rows` are optional. It does not apply to the values of `per_person`.
    neighbours
        "add-remove" hides whether a person is in the data. "replace" hides the values of a person,
        but not the number of persons.
    without_id
        How to treat rows without an id: "error" raises, "own" counts each as another person.
    delta
        The probability that epsilon does not hold, such as 1e-6. Gaussian noise and discovered
        groups need it; otherwise it must be 0.
    rho
        The budget in zero-concentrated differential privacy, in place of epsilon.
    mechanism
        The noise: "laplace", "gaussian", or "best" for the one with smaller margins, or with which
        smaller groups are discovered. None is "best" with a delta, and "laplace" without one.
    text_columns
        The columns of ids, and of groups to discover, that are text in a frame. In text, 7, 07 and
        7.0 are different. Files need no such declaration.
    derived
        Columns that are computed from each row, for questions to publish, group by and filter by.
        The expression of each is a text: "month(admitted)", "drug_cost + stay_cost",
        "band(age, 0, 18, 65)" or "map(county, {'cork': 'south', 'dublin': 'east'})". The groups of
        bands, maps, months and weekdays are all their values, unless `groups` declares some.
    consistent
        Whether the counts of several questions are adjusted to add up, and likewise the sums of a
        column with the same bounds. They then cover only rows in the declared groups of all columns
        of these questions. Adjusted counts are integers unless `clamp` is False.
    hierarchy
        Coarser columns for consistent counts and sums, which the data need not have. For each
        column one coarser column, and the groups that each of its groups consists of:
        `{"town": {"county": {"cork": ["mallow", "cobh"], "kerry": ["tralee"]}}}`.

    Raises
    ------
    ArgumentError
        If an argument is out of range or missing, or if two arguments contradict each other.

    Examples
    --------
    >>> income = Question(["mean", "median"], "income", lower=0, upper=200_000, by=["city"])
    >>> request = Request(1.0, [income], groups={"city": ["cork", "dublin"]})
    >>> [query.epsilon for _, query in request.prepare()]
    [0.5, 0.5]

    With several rows per person:

    >>> visits = Question(["count"], by=["city"])
    >>> groups = {"city": ["cork", "dublin", "galway"]}
    >>> request = Request(1.0, [visits], groups, person="patient", max_groups=2, max_rows=3)
    >>> [query.mechanism.scale for _, query in request.prepare()]
    [6.0]
    """

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "publish", _check_questions(self.publish))
        object.__setattr__(self, "derived", _check_derived(self.derived))
        groups = {**self._derived_groups(), **check_groups(self.groups)}
        object.__setattr__(self, "groups", _with_hierarchy(groups, self.hierarchy))
        if not self.publish:
            raise ArgumentError(f"publish must name at least one query, of {', '.join(QUERIES)}.")
        check_confidence(self.confidence)
        check_choice("missing", self.missing, checking.MISSING)
        check_choice("neighbours", self.neighbours, NEIGHBOURS)
        check_choice("without_id", self.without_id, checking.WITHOUT_ID)
        _check_texts(self)
        for name in ("clamp", "intervals", "consistent"):
            if not isinstance(getattr(self, name), bool):
                reject(name, getattr(self, name), "be true or false")
        delimiter = self.delimiter
        is_character = isinstance(delimiter, str) and len(delimiter) == 1
        if not is_character or not delimiter.isascii() or delimiter in '"\r\n\0':
            reject("delimiter", delimiter, "be one ASCII character, no quote or newline")
        self.largest_margin  # noqa: B018 - raises for a rule of another form
        _check_groups(self)
        _check_person(self)
        _check_text_columns(self)
        _check_expressions(self)
        _check_consistent(self)
        self.cost()  # Raises if the arguments of the budget contradict each other.
        placeholders = dict.fromkeys(self.discovered, ("",))  # One group for each such column.
        self.check_plans({**self.groups, **placeholders})
        self.discoveries()  # Raises if no group could ever be shown.

    def __str__(self) -> str:
        """Return the questions, the groups, the cost and the privacy unit in words."""
        groups = [
            f"groups of {column}: {keys if isinstance(keys, str) else ', '.join(map(str, keys))}"
            for column, keys in self.groups.items()
        ]
        groups += [f"{name} = {text}" for name, text in self.derived.items()]
        cost = f"{self.cost_in_words} in all, with {self.neighbours_in_words}"
        lines = [*map(str, self.publish), *groups, *self.adjusted_in_words, cost]
        lines.append(f"protected: {self.privacy_unit}")
        return "\n".join(map(escape_text, lines))

    @property
    def discovered(self) -> tuple[str, ...]:
        """The columns whose groups are discovered."""
        return tuple(name for name in self.groups if name in self.grouped and self._is_open(name))

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
        texts = dict.fromkeys(question.where for question in self.publish)
        return {
            text: None if text is None else parse_condition(text, self.derived_values)
            for text in texts
        }

    def _derived_groups(self) -> dict[str, Sequence[Key]]:
        """Return all groups of the derived columns that questions group by, if they are known."""
        values = {name: possible_values(value) for name, value in self.derived_values.items()}
        return {name: known for name in self.grouped if (known := values.get(name)) is not None}

    def _is_open(self, column: str) -> bool:
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
        declared = (name for name in self.grouped if not self._is_open(name))
        return {name: level_of(name, self.hierarchy, self.groups) for name in declared}

    def is_adjusted(self, question: Question, statistic: str) -> bool:
        """Return whether the numbers of a statistic are adjusted to add up with others."""
        return question.measure(statistic) in self.families

    def table_columns(self, question: Question, statistic: str) -> tuple[str, ...]:
        """Return the columns of the table that numbers are sums of: those of a whole family.

        They are the columns of the question if its numbers are not adjusted.
        """
        if not self.is_adjusted(question, statistic):
            return tuple(question.by)
        members = self.families[question.measure(statistic)]
        columns = (self.levels[name].column for member in members for name in member.by)
        return tuple(dict.fromkeys(columns))

    def marginal(self, question: Question, statistic: str) -> Marginal:
        """Return the sums of a table that the numbers of a statistic are."""
        columns = self.table_columns(question, statistic)
        shape = tuple(len(self.groups[name]) for name in columns) or (1,)
        levels = (self.levels[name] for name in question.by)
        return Marginal(shape, tuple((columns.index(level.column), level) for level in levels))

    def adjustments(self) -> list[tuple[list[int], Adjustment]]:
        """Return how numbers are adjusted, and which of the prepared queries they are from."""
        prepared = self.prepare()
        adjustments = []
        for measure in self.families:
            indices = [
                index
                for index, (question, query) in enumerate(prepared)
                if isinstance(query, Count | Sum) and question.measure(query.name) == measure
            ]
            marginals = [self.marginal(prepared[i][0], prepared[i][1].name) for i in indices]
            queries: Any = [prepared[i][1] for i in indices]
            adjustment = Adjustment(marginals, queries, self.confidence, clamp=self.clamp)
            adjustments.append((indices, adjustment))
        return adjustments

    def limits_of(self, question: Question) -> tuple[int | None, ...]:
        """Return the limits of a question, or else those of the request; as in PERSON_LIMITS."""
        limits = tuple(
            getattr(self if getattr(question, name) is None else question, name)
            for name in PERSON_LIMITS
        )
        return limits if question.per_person is None else (limits[0], None, None)

    def _bounds_of_table(
        self, question: Question, statistic: str, groups: Groups
    ) -> ContributionBounds:
        """Return the contribution bounds of one person for the table that a statistic is from."""
        max_groups, max_rows, total = self.limits_of(question)
        most = max_groups or min(total or 1, MOST_GROUPS)
        rows = max_rows or total or 1
        if total is not None:  # The question and the request may give one of them each.
            most, rows = min(most, total), min(rows, total)
        columns = self.table_columns(question, statistic)
        bounds = self._contribution_bounds(_number_of_groups(columns, groups), most, rows)
        return replace(bounds, total=total)

    def _bounds_of_question(
        self, question: Question, statistic: str, groups: Groups
    ) -> ContributionBounds:
        """Return the contribution bounds of one person for a statistic of a question.

        Sums of a table have larger groups: all rows that count of a person may be in one of them.
        """
        bounds = self._bounds_of_table(question, statistic, groups)
        if set(question.by) == set(self.table_columns(question, statistic)):
            return bounds
        all_groups = self.marginal(question, statistic).size
        most_rows = bounds.most_rows
        return replace(bounds, groups=1, rows=most_rows, all_groups=all_groups, total=None)

    def _contribution_bounds(
        self, all_groups: int | None, most: int, rows: int
    ) -> ContributionBounds:
        """Return the contribution bounds of one person for `all_groups` groups; None if unknown."""
        if all_groups is None:
            all_groups = 2 * most
        all_groups = max(all_groups, 1)  # It is 0 if no group was discovered.
        default = BEST if self.delta else LAPLACE
        return ContributionBounds(
            *(max(1, min(most, all_groups)), rows, self.neighbours == REPLACE, all_groups),
            is_pure=self.rho is None and (self.mechanism or default) == LAPLACE,
        )

    def _discovery_bounds(self, column: str) -> ContributionBounds:
        """Return the bounds with which groups are discovered: the most of any question by them."""
        questions = [question for question in self.publish if column in question.by]
        bounds = [
            self._bounds_of_table(question, question.statistic_names[0], self.groups)
            for question in questions
        ]
        return self._contribution_bounds(None, max(each.groups for each in bounds), 1)

    def _query(self, question: Question, statistic: str, groups: Groups, loss: Loss) -> Query:
        contribution = self._bounds_of_question(question, statistic, groups)
        clamp = self.clamp and not self.is_adjusted(question, statistic)
        options = {"clamp": clamp, "intervals": self.intervals}
        return question.query(statistic, loss, contribution=contribution, **options)

    def _shared_statistics(self, question: Question) -> tuple[str, ...]:
        """Return the statistics of a question that share noisy sums.

        If neighbours replace a person, separate counts and sums are more accurate: a person in
        another's place moves the two sums of a mean by twice the width of the bounds. Numbers that
        are adjusted to add up have separate noise.
        """
        if self.neighbours != ADD_REMOVE:
            return ()
        names = question.shared_statistics
        shared = tuple(
            name
            for name in names
            if not self._is_from_discovery(question, name) and not self.is_adjusted(question, name)
        )
        return shared if len(shared) > 1 else ()

    def _is_from_discovery(self, question: Question, name: str) -> bool:
        """Return whether the discovery of groups answers a statistic, at no further cost.

        It counts the persons of all rows. The rows, or values, have the same number if each person
        counts once in a group and no value is missing.
        """
        if question.by not in {(column,) for column in self.discovered} or question.where:
            return False
        own = self._bounds_of_question(question, name, self.groups)
        counts_once = own.rows == 1 and own.groups == self._discovery_bounds(question.by[0]).groups
        has_values = question.column is None or self.missing == "error"
        return name == GROUPS or (name == "count" and counts_once and has_values)

    def _payments(self, question: Question) -> list[tuple[str, ...]]:
        """Return the statistics of a question in order; those that share noisy sums together.

        Those that the discovery of groups answers are not paid for again.
        """
        shared = self._shared_statistics(question)
        payments: list[tuple[str, ...]] = [
            (name,)
            for name in question.statistic_names
            if name not in shared and not self._is_from_discovery(question, name)
        ]
        return [shared, *payments] if shared else payments

    def _queries(
        self, question: Question, names: tuple[str, ...], groups: Groups, loss: Loss
    ) -> list[tuple[str, AnyQuery]]:
        """Return the queries that one payment is for, with their names."""
        if len(names) == 1:
            return [(names[0], self._query(question, names[0], groups, loss))]
        spread = {"variance", "std"}.intersection(names)
        base = self._query(question, "variance" if spread else "mean", groups, loss)
        assert isinstance(base, Mean | Variance)  # noqa: S101 - for the type checker
        queries = share_sums(base, names, clamp=self.clamp)
        return [(name, queries[name]) for name in names]

    def _first_query(self, question: Question, names: tuple[str, ...], loss: Loss) -> AnyQuery:
        return self._queries(question, names, self.groups, loss)[0][1]

    @cached_property
    def prices(self) -> Prices:
        """The loss of each part, and the total cost."""
        items = list(map(self._discovery_item, self.discovered))
        for question in self.publish:
            for names in self._payments(question):
                is_selected = names[0].partition(":")[0] in SELECTED
                bounds = self._bounds_of_question(question, names[0], self.groups)
                selections = bounds.selections if is_selected else None
                make = partial(self._first_query, question, names)
                items.append(Item(make, selections, question.weight * len(names), question.error))
        budget = Budget(
            *(self.epsilon, self.delta, self.rho, self.mechanism, self.confidence),
            discovers=bool(self.discovered),
        )
        return price_items(items, budget)

    def cost(self) -> Cost:
        """Return the total cost, in epsilon and in rho."""
        return self.prices.cost

    def _answers(self, column: str) -> dict[str, float]:
        """Return the weights of the statistics that the discovery of a column answers."""
        weights: dict[str, float] = {}
        for question in self.publish:
            for name in question.statistic_names:
                if question.by == (column,) and self._is_from_discovery(question, name):
                    weights[name] = weights.get(name, 0.0) + question.weight
        return weights

    def _changed_groups(self, column: str) -> int | None:
        """Return the number of groups that a person changes, if only their names are discovered.

        None if noisy numbers of persons are needed: to publish them, to keep the largest groups of
        statistics with many cells, or because the losses would be too many to compose.
        """
        contribution = self._discovery_bounds(column)
        changed = contribution.groups * (2 if contribution.replace else 1)
        has_cells = any(
            column in question.by and name.partition(":")[0] in {*SELECTED, "histogram"}
            for question in self.publish
            for name in question.statistic_names
        )
        is_numbered = has_cells or "count" in self._answers(column)
        return None if is_numbered or changed > _MOST_SELECTIONS else changed

    def _discovery_item(self, column: str) -> Item:
        """Return the item that pays for a discovery and for all statistics that it answers."""
        weight = sum(self._answers(column).values()) or 1.0
        make = partial(self._discovery, column)
        return Item(make, self._changed_groups(column), weight, discovers=True)

    def _discovery(self, column: str, loss: Loss, aside: float) -> Discovery:
        """Return how to discover the groups of a column with a loss.

        The columns split the delta that is set aside, because one person may be the only member of
        a group in each of them. So do the groups of a person, if only their names are discovered.
        """
        contribution = self._discovery_bounds(column)
        unit = self._unit(contribution, None)
        delta = quotient_down(aside, len(self.discovered))
        changed = self._changed_groups(column)
        if loss.kind == PURE and changed is not None:
            selection = PartitionSelection(loss.amount, quotient_down(delta, changed))
            selection.smallest_shown(0.5)  # Raises if no group could ever be shown.
            return Discovery(column, unit, selection, None, (loss,) * changed)
        change = RowChange.of_number(1, 0)  # A replaced person does not change a number.
        noise = WholeNoise.of(loss, contribution, change, counts=True)
        least = threshold(noise.mechanism, contribution.groups, delta)
        counts = "count" in self._answers(column)
        return Discovery(column, unit, noise, least, (loss,), counts)

    @cached_property
    def _discoveries(self) -> dict[str, Discovery]:
        losses = zip(self.discovered, self.prices.losses, strict=False)
        return {column: self._discovery(column, loss, self.prices.aside) for column, loss in losses}

    def discoveries(self) -> list[Discovery]:
        """Return how to discover the groups of each column without declared groups."""
        return list(self._discoveries.values())

    def _discovered_query(self, question: Question, name: str) -> AnyQuery:
        discovery = self._discoveries[question.by[0]]
        if name == GROUPS:
            return DiscoveredGroups(discovery)
        return DiscoveredCount(question.column, discovery)

    def prepare(self, groups: Groups | None = None) -> list[tuple[Question, AnyQuery]]:
        """Return a query for each statistic, with its part of the budget."""
        groups = self.groups if groups is None else groups
        losses = iter(self.prices.losses[len(self.discovered) :])
        prepared: list[tuple[Question, AnyQuery]] = []
        for question in self.publish:
            queries = [
                query
                for names in self._payments(question)
                for query in self._queries(question, names, groups, next(losses))
            ]
            queries += [
                (name, self._discovered_query(question, name))
                for name in question.statistic_names
                if self._is_from_discovery(question, name)
            ]
            # In the order of the question: sorting is stable.
            order = {name: i for i, name in reversed(list(enumerate(question.statistic_names)))}
            queries.sort(key=lambda named: order[named[0]])
            prepared += [(question, query) for _, query in queries]
        return prepared

    def plans(self, groups: Groups | None = None) -> dict[PlanKey, Plan]:
        """Return one plan for each way of grouping. Statistics share an ask if they can."""
        groups = self.groups if groups is None else groups
        plans: dict[PlanKey, Plan] = {}
        for question, query in self.prepare(groups):
            key = self.table_key(question, query)
            if isinstance(query, FROM_DISCOVERY) or not all(groups[name] for name in key.by):
                continue  # The discovery answers it, or no group was discovered.
            asks = dict.fromkeys((*(plans[key].asks if key in plans else ()), query.ask))
            by = tuple(
                Grouping(name, tuple(groups[name]), discovered=self._is_open(name))
                for name in key.by
            )
            bounds = self._bounds_of_table(question, query.name, groups)
            unit = self._unit(bounds, question.person_value)
            where = self.conditions[question.where]
            derived = tuple(self.derived_values.items())
            plans[key] = Plan(tuple(asks), by, self.missing, unit, where, derived)
        return plans

    def table_key(self, question: Question, query: AnyQuery) -> PlanKey:
        """Return the key of the plan that answers a query, for the whole table that it is from."""
        columns = self.table_columns(question, query.name)
        return PlanKey(columns, question.person_value, question.where, self.limits_of(question))

    def checks(self) -> tuple[Plan, ...]:
        """Return plans that detect errors in columns and values before groups are discovered.

        They cover all rows that match a filter, of all groups that are not declared.
        """
        asks: dict[tuple[Condition | None, tuple[str, ...]], dict[str | None, Ask]] = {}
        for question, query in self.prepare():
            declared = tuple(name for name in question.by if not self._is_open(name))
            column = getattr(query.ask, "column", None)
            asks.setdefault((self.conditions[question.where], declared), {})[column] = query.ask
        derived = tuple(self.derived_values.items())
        unit = self._unit(ContributionBounds(), None)
        plans: list[Plan] = []
        for (where, declared), by_column in asks.items():
            by = tuple(Grouping(name, tuple(self.groups[name])) for name in declared)
            plans.append(Plan(tuple(by_column.values()), by, self.missing, None, where, derived))
            if unit is not None:  # Finds wrong ids.
                plans.append(Plan((Rows(),), by, self.missing, unit, where, derived))
        return tuple(plans)

    def _unit(
        self, contribution: ContributionBounds, person_value: PersonValue | None
    ) -> Unit | None:
        if self.person is None:
            return None
        text = tuple(name for name in self.person if name in self.text_columns)
        return Unit(
            tuple(self.person),
            contribution.groups,
            contribution.rows,
            self.without_id,
            person_value,
            text,
            contribution.total,
        )

    def keys(self, question: Question, groups: Groups | None = None) -> list[tuple[Key, ...]]:
        """Return the keys of a question's groups in order; one empty key if it does not group."""
        groups = self.groups if groups is None else groups
        return list(product(*(groups[column] for column in question.by)))

    def columns(self) -> list[str]:
        """Return the columns of numbers, each once."""
        columns = (question.column for question in self.publish)
        return list(dict.fromkeys(column for column in columns if column is not None))

    def to_dict(self) -> Data:
        """Return the request as plain data, for JSON."""
        data = asdict(self)
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
            words[0] += _limit_words(limits, grouped=bool(self.grouped))
        for question in self.publish:
            if any(getattr(question, name) is not None for name in PERSON_LIMITS):
                bounds = _limit_words(self.limits_of(question), grouped=bool(question.by))
                words.append(f"{question}{bounds}")
        return "; ".join(words)

    @property
    def neighbours_in_words(self) -> str:
        """How neighbouring data sets differ, in words."""
        who = "row" if self.person is None else "person"
        how = "added or removed" if self.neighbours == ADD_REMOVE else "in another's place"
        return f"one {who} {how}"

    @property
    def uncounted(self) -> str:
        """What the margins do not count, in words."""
        limited = (self, *self.publish)
        bounds = [
            name
            for name in PERSON_LIMITS
            if any(getattr(each, name) is not None for each in limited)
        ]
        return "clamping" + (f" and rows left out by {_join_words(bounds)}" if bounds else "")

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

    @property
    def cost_in_words(self) -> str:
        """The total cost, in words."""
        cost = self.cost().floats()
        amounts = {
            "epsilon": self.epsilon or cost["epsilon"],
            "rho": self.rho,
            "delta": cost["delta"],
        }
        return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items() if amount)

    def check_plans(self, groups: Groups) -> None:
        """Raise ArgumentError if engines cannot answer exactly, or if there are too many counts."""
        cells = 0
        for question, query in self.prepare(groups):
            if isinstance(query, FROM_DISCOVERY):
                continue
            ask = query.ask
            group_cells = checking.number_of_cells(ask) if isinstance(ask, Cells | Edges) else 1
            cells += group_cells * (_number_of_groups(question.by, groups) or 0)
        if cells > _MOST_CELLS:
            raise ArgumentError(
                f"All groups together must have at most 2^26 cells, got {cells:,}. Use fewer "
                "groups, or give quantiles a coarser grid."
            )
        for plan in self.plans(groups).values():
            checking.check_plan(plan)


def _check_questions(questions: object) -> tuple[Question, ...]:
    checked = tuple(questions) if is_list(questions) else ()
    if not is_list(questions) or not all(isinstance(question, Question) for question in checked):
        reject_type("publish", questions, 'be a list of questions, such as [Question(["count"])]')
    return checked


def _check_groups(request: Request) -> None:
    for column in request.grouped:
        if column not in request.groups:
            raise ArgumentError(
                f"The groups of {column!r} must be declared: "
                f'groups={{"{column}": ["cork", "dublin"]}}.'
            )
    for column in request.discovered:
        if column in request.columns():
            raise ArgumentError(
                f"The groups of {column!r} cannot be discovered where its values are published "
                "too. Declare them, or publish another column."
            )
    for question in request.publish:
        if GROUPS in question.statistic_names and question.by[0] not in request.discovered:
            raise ArgumentError(
                f"The groups of {question.by[0]!r} are declared. To publish which there are, "
                f'discover them: groups={{"{question.by[0]}": "discover"}}.'
            )
    if request.discovered and any(question.error is not None for question in request.publish):
        raise ArgumentError(
            "A request for an error needs declared groups, because discovery costs a "
            "part of the budget. Give weights instead."
        )


def _with_hierarchy(groups: Groups, hierarchy: Hierarchy) -> Groups:
    """Return the groups of each column, with those of the coarser columns of a hierarchy."""
    derived = derived_groups(hierarchy, groups)
    for column, keys in derived.items():
        if groups.get(column, keys) != keys:
            raise ArgumentError(
                f"The groups of {column!r} come from the hierarchy: leave them out of groups."
            )
    return {**groups, **derived}


def _check_consistent(request: Request) -> None:
    """Raise unless the questions of a consistent request can be made to add up."""
    for question in request.publish:
        _check_levels(request, question)
    if not request.consistent:
        return
    if request.discovered or any(question.error is not None for question in request.publish):
        raise ArgumentError(
            "A consistent request needs declared groups, and a budget in place of errors: groups "
            "are not discovered, and margins change when numbers are adjusted."
        )
    if not request.families:
        raise ArgumentError(
            "Nothing adds up: a consistent request needs the counts, or the sums of a column with "
            "the same bounds, of several groupings."
        )
    for (statistic, *_), questions in request.families.items():
        marginals = [request.marginal(question, statistic) for question in questions]
        if len(hierarchy_axes(marginals)) > 1:
            raise ArgumentError(
                f"The {statistic}s that add up must use one hierarchy. Ask for others in another "
                "request."
            )
        is_clamped = request.clamp and (statistic == "count" or (questions[0].lower or 0.0) >= 0)
        if is_clamped and from_coarse_to_fine(marginals) is None:
            raise ArgumentError(
                f"The {statistic}s of groupings that overlap add up only if some may be negative: "
                "set clamp to false. Or let each grouping refine another: by city, and by city "
                "and sex."
            )


def _check_levels(request: Request, question: Question) -> None:
    """Raise unless a question uses coarser columns as it may."""
    levels = [request.levels[name] for name in question.by if name in request.levels]
    is_additive = len(question.additive_statistics) == len(question.statistics)
    if any(level.depth for level in levels) and not (request.consistent and is_additive):
        raise ArgumentError(
            "Only the counts and sums of a consistent request can be grouped by a coarser column "
            f"of a hierarchy, got by={list(question.by)}."
        )
    if len({level.column for level in levels}) < len(levels):
        raise ArgumentError(f"by must name one level of a hierarchy, got {list(question.by)}.")


def _check_derived(derived: object) -> dict[str, str]:
    if not isinstance(derived, Mapping) or not all(isinstance(name, str) for name in derived):
        rule = 'map names to expressions, such as {"month": "month(admitted)"}'
        reject_type("derived", derived, rule)
    return dict(derived)


def _check_expressions(request: Request) -> None:
    """Raise unless expressions and questions use every column in one way."""
    used = [column for value in request.derived_values.values() for column in source_columns(value)]
    for where in request.conditions.values():
        used += [] if where is None else source_columns(where)
    names = {column.name for column in used}
    for name, value in request.derived_values.items():
        _check_derived_column(request, name, value)
        if name in names:
            raise ArgumentError(
                f"Column {name!r} is derived. Derive columns from those of the data."
            )
    if request.person is not None:
        checking.check_persons(request.person, (), (), list(names))
    used += [SourceColumn(name, NUMBER) for name in request.columns() if name in names]
    for name in names.intersection(request.grouped):
        used.append(
            group_column(name, [""] if name in request.discovered else request.groups[name])
        )
    check_kinds(used)


def _check_derived_column(request: Request, name: str, value: ValueNode) -> None:
    if name in {*(request.person or ()), *request.discovered}:
        raise ArgumentError(
            f"Column {name!r} is derived. It cannot identify a person, and its groups must be "
            "declared."
        )
    if name in request.columns() and kind_of(value) != NUMBER:
        raise ArgumentError(f"Column {name!r} is derived text. Group by it, or count rows.")
    known = possible_values(value)
    if known is not None and name in request.grouped:
        for key in request.groups[name]:
            if key not in known:
                rule = f"have only values of {name!r}: {', '.join(map(str, known))}"
                reject("groups", key, rule)


def _check_text_columns(request: Request) -> None:
    columns = request.text_columns
    if not _are_names(columns):
        reject("text_columns", columns, "be a list of names")
    object.__setattr__(request, "text_columns", tuple(columns))
    for name in columns:
        if name not in {*(request.person or ()), *request.discovered}:
            raise ArgumentError(
                f"Nothing uses text_columns={name!r}: it must be a column of person, or one "
                "whose groups are discovered."
            )


def _check_texts(request: Request) -> None:
    """Raise unless what is only shown to readers is text."""
    for name in ("part", "released_by"):
        if not isinstance(getattr(request, name), str | None):
            reject_type(name, getattr(request, name), "be text")
    labels, known = request.labels, {"rows", *request.columns(), *request.grouped}
    if not isinstance(labels, Mapping) or not _are_names([*labels, *labels.values()]):
        reject_type("labels", labels, 'map columns to texts, such as {"rows": "stays"}')
    for name in labels:
        if name not in known:
            raise unknown_name_error("column", name, sorted(known))
    if not _are_names(request.notes):
        reject_type("notes", request.notes, "be a list of texts")
    object.__setattr__(request, "notes", tuple(request.notes))


def _are_names(names: object) -> bool:
    return is_list(names) and all(isinstance(name, str) for name in names)


def _check_person(request: Request) -> None:
    if request.person is None:
        for limited, name in product((request, *request.publish), PERSON_LIMITS):
            if getattr(limited, name) is not None:
                raise ArgumentError(f'{name} needs person: person="patient_id".')
        if request.without_id != "error" or any(
            question.per_person for question in request.publish
        ):
            raise ArgumentError(
                "person is missing: the column that identifies a person, such as "
                'person="patient_id".'
            )
        return
    columns = (request.person,) if isinstance(request.person, str) else request.person
    if not _are_names(columns):
        reject("person", columns, "be a name or a list of names")
    object.__setattr__(request, "person", tuple(columns))
    checking.check_persons(tuple(columns), request.grouped, request.columns())
    check_person_limits(request)
    for name in PERSON_LIMITS[1:]:
        if getattr(request, name) is not None and not any(map(_counts_rows, request.publish)):
            raise ArgumentError(
                f"Nothing uses {name}: all questions take a person's own sum or mean, which is of "
                "all their rows, or publish only groups."
            )
    for question in request.publish:
        _check_limits(question, request)
        _check_max_groups(question, [question], request)
    _check_max_groups(request, request.publish, request)


def _check_limits(question: Question, request: Request) -> None:
    """Raise unless what one person contributes to a question is bounded."""
    max_groups, max_rows, total = request.limits_of(question)
    if _counts_rows(question) and max_rows is None and total is None:
        raise ArgumentError(
            "max_rows is missing: how many rows of one person count in a group, such as "
            "max_rows=3. Or bound their rows in all groups together: max_total_rows=6."
        )
    if question.by and max_groups is None and total is None:
        raise ArgumentError(
            "max_groups is missing: in how many groups one person counts, such as max_groups=2."
        )


def _check_max_groups(
    limited: Request | Question, questions: Sequence[Question], request: Request
) -> None:
    """Raise if `max_groups` is more than the number of groups of all these questions."""
    numbers = [
        _number_of_groups(request.table_columns(question, statistic), request.groups)
        for question in questions
        for statistic in question.statistic_names
    ]
    if limited.max_groups is None or None in numbers:
        return
    most = max(number for number in numbers if number is not None)
    if limited.max_groups > most:
        reject("max_groups", limited.max_groups, f"be at most {most}, the number of groups")


def _number_of_groups(by: Sequence[str], groups: Groups) -> int | None:
    """Return the number of groups of all columns together, or None if it is not known yet."""
    if any(isinstance(groups[column], str) for column in by):
        return None
    return prod(len(groups[column]) for column in by)


def _counts_rows(question: Question) -> bool:
    """Return whether the rows of a person count, and not only the person."""
    return question.per_person is None and GROUPS not in question.statistic_names


def _limit_words(limits: Sequence[int | None], *, grouped: bool) -> str:
    """Return limits in words, after a comma; nothing if there are none."""
    max_groups, max_rows, total = limits
    if not grouped:
        rows = [limit for limit in (max_rows, total) if limit is not None]
        return f", at most {_count_words(min(rows), 'row')}" if rows else ""
    words = []
    if max_groups is not None:
        words.append(_count_words(max_groups, "group"))
    if max_rows is not None:
        words.append(f"{_count_words(max_rows, 'row')} in each{'' if words else ' group'}")
    if total is not None:
        words.append(f"{_count_words(total, 'row')} in all groups")
    return f", at most {_join_words(words)}" if words else ""


def _join_words(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _count_words(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number > 1 else ''}"


def key_for_json(key: Key) -> Key:
    """Return a key for JSON: dates become text."""
    return key.isoformat() if isinstance(key, dt.date) else key
