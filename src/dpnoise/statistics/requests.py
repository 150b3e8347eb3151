"""Requests: the statistics to publish and their budget. They are made before a row is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import sqrt
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, explain_construction
from dpnoise.core.safe_text import escape_text
from dpnoise.release.calibration import quotient_down
from dpnoise.statistics.bounds import ADD_REMOVE, REPLACE, ContributionBounds, RowChange
from dpnoise.statistics.budget_split import BEST, LAPLACE, Budget, Item, Prices, price_items
from dpnoise.statistics.composition import PURE, Cost, Loss
from dpnoise.statistics.discovery_threshold import threshold
from dpnoise.statistics.engines import checking
from dpnoise.statistics.expressions import Condition
from dpnoise.statistics.group_discovery import (
    FROM_DISCOVERY,
    DiscoveredCount,
    DiscoveredGroups,
    Discovery,
    PartitionSelection,
)
from dpnoise.statistics.left_out import ESTIMATES, Coverage, HiddenCounts, TableCount, coverage_of
from dpnoise.statistics.marginals import Adjustment
from dpnoise.statistics.plan import (
    Ask,
    Cells,
    Combinations,
    Edges,
    Grouping,
    PersonValue,
    Plan,
    Rows,
    Unit,
)
from dpnoise.statistics.queries import Count, Mean, Query, Sum, Variance
from dpnoise.statistics.questions import GROUPS, MOST_GROUPS, PERSONS, SELECTED, PlanKey, Question
from dpnoise.statistics.request_checks import check_fields
from dpnoise.statistics.request_fields import Groups, RequestFields
from dpnoise.statistics.results import WholeNoise
from dpnoise.statistics.shared_sums import AnyQuery, share_sums

__all__ = ["Discovery", "Question", "Request"]

_MOST_CELLS: Final = 2**26  # The most cells in all groups: 512 MiB of counts.
_MOST_SELECTIONS: Final = 100  # With more groups of one person, noise discovers smaller groups.

_Groupings = tuple[Grouping | Combinations, ...]


@explain_construction
@dataclass(frozen=True)
class Request(RequestFields):
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
        once in a group: it is the noisy number of persons that discovered the group. Several such
        columns of a question are discovered together: only their combinations with enough persons
        are published.
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
        What people call columns, rows, persons and filters: {"rows": "stays", "persons":
        "patients", "cost": "cost in EUR", "age >= 18": "of adults"}. The page has these in its
        headings.
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
        How to treat rows without an id: "error" raises, "own" counts each as another person. A
        person with k such rows is then protected with up to k times epsilon.
    delta
        The probability that epsilon does not hold, such as 1e-6. Gaussian noise and discovered
        groups need it; otherwise it must be 0.
    rho
        The budget in zero-concentrated differential privacy, in place of epsilon.
    mechanism
        The noise: "laplace", "gaussian", or "best" for the one with smaller margins, or with which
        smaller groups are discovered. None is "best" with a delta, and "laplace" without one.
    text_columns
        The columns of ids, of groups to discover, and of different values to count, that are text
        in a frame. In text, 7, 07 and 7.0 are different. Files need no such declaration.
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
    undeclared
        Whether to publish, for each column with declared groups, the number of rows in none of
        them, or without a group. Each is paid for like another statistic. It is of all rows, with
        the contribution bounds of the request: `max_rows`, and `max_total_rows` if it is given.
    left_out
        The share of the budget for estimates of what the numbers leave out, such as 0.1: the share
        of rows that no number counts, and the share of values that are clamped. Of each person, ten
        times the rows that count are seen. None for no estimates.
    ledger
        The file of the ledger that pays whenever the request is published. None if `publish` names
        one, or if nothing is paid.

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

    def __post_init__(self) -> None:
        check_fields(self)
        self.cost()  # Raises if the arguments of the budget contradict each other.
        self.check_plans(self.with_placeholders())
        if self.discovered:  # Raises if no group could ever be shown, or noise is out of range.
            self.discoveries()
            self.prepare()

    def __str__(self) -> str:
        """Return the questions, the groups, the cost and the privacy unit in words."""
        groups = [
            f"groups of {column}: {keys if isinstance(keys, str) else ', '.join(map(str, keys))}"
            for column, keys in self.groups.items()
        ]
        groups += [f"{name} = {text}" for name, text in self.derived.items()]
        cost = f"{self.cost_in_words} in all, with {self.neighbours_in_words}"
        lines = [*map(str, self.questions), *groups, *self.adjusted_in_words, cost]
        if self.left_out_cost is not None:
            lines.append(f"{self.left_out_cost} of it {ESTIMATES}")
        lines.append(f"protected: {self.privacy_unit}")
        return "\n".join(map(escape_text, lines))

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
        bounds = self._contribution_bounds(self.number_of_groups(columns, groups), most, rows)
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

    def _questions_about(self, columns: tuple[str, ...]) -> list[Question]:
        """Return the questions about groups that are discovered together."""
        return [each for each in self.publish if self.discovered_columns(each.by) == columns]

    def _discovery_bounds(self, columns: tuple[str, ...]) -> ContributionBounds:
        """Return the bounds with which groups are discovered: the most of any question by them."""
        bounds = [
            self._bounds_of_table(question, question.statistic_names[0], self.groups)
            for question in self._questions_about(columns)
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
        columns = self.discovered_columns(question.by)
        if not columns or len(columns) < len(question.by) or question.where:
            return False
        own = self._bounds_of_question(question, name, self.groups)
        counts_once = own.rows == 1 and own.groups == self._discovery_bounds(columns).groups
        has_values = question.column is None or self.missing == "error"
        return name == GROUPS or (name in {"count", PERSONS} and counts_once and has_values)

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
        items = list(map(self._discovery_item, self.discovered_together))
        for question in self.questions:
            for names in self._payments(question):
                is_selected = names[0].partition(":")[0] in SELECTED
                bounds = self._bounds_of_question(question, names[0], self.groups)
                selections = bounds.selections if is_selected else None
                make = partial(self._first_query, question, names)
                items.append(Item(make, selections, question.weight * len(names), question.error))
        items += self._hidden_items(sum(item.weight for item in items))
        budget = Budget(
            *(self.epsilon, self.delta, self.rho, self.mechanism, self.confidence),
            discovers=bool(self.discovered),
        )
        return price_items(items, budget)

    @cached_property
    def coverage(self) -> tuple[Coverage, ...]:
        """The hidden counts that `left_out` asks for, of each table."""
        if self.left_out is None:
            return ()

        def most_rows(question: Question, statistic: str) -> int:
            return self._bounds_of_table(question, statistic, self.groups).most_rows

        coverage = coverage_of(self, most_rows)
        if not coverage:
            raise ArgumentError(
                "Nothing uses left_out: no count leaves out rows, and no value is clamped."
            )
        return coverage

    def _hidden_questions(self) -> list[HiddenCounts]:
        return list(dict.fromkeys(each for table in self.coverage for each in table.questions))

    def _hidden_items(self, weight_of_others: float) -> list[Item]:
        """Return the items of hidden counts, which together have the share `left_out`.

        Their margins add up to the least if weights grow with the root of the sensitivity.
        """
        questions = self._hidden_questions()
        if self.left_out is None:
            return []
        bounds = [self._bounds_of_question(each, "count", self.groups) for each in questions]
        roots = [sqrt(each.most_rows) for each in bounds]
        weight = weight_of_others * self.left_out / (1 - self.left_out) / sum(roots)
        makes = [partial(self._first_query, question, ("count",)) for question in questions]
        return [Item(make, None, weight * root) for make, root in zip(makes, roots, strict=True)]

    def hidden_counts(self, groups: Groups | None = None) -> dict[HiddenCounts, TableCount]:
        """Return the queries of hidden counts, with their part of the budget."""
        groups, questions = self.groups if groups is None else groups, self._hidden_questions()
        losses = self.prices.losses[len(self.prices.losses) - len(questions) :]
        bounds = [self._bounds_of_question(each, "count", groups) for each in questions]
        return {
            question: question.query("count", loss, contribution=contribution)
            for question, loss, contribution in zip(questions, losses, bounds, strict=True)
        }

    @property
    def left_out_cost(self) -> str | None:
        """The cost of the hidden counts, in words; None if there are none."""
        queries = list(self.hidden_counts().values())
        if not queries:
            return None
        name = "epsilon" if queries[0].rho is None else "rho"
        return f"{name} {sum(getattr(query, name) for query in queries):.4g}"

    def cost(self) -> Cost:
        """Return the total cost, in epsilon and in rho."""
        return self.prices.cost

    def _answers(self, columns: tuple[str, ...]) -> dict[str, float]:
        """Return the weights of the statistics that the discovery of columns answers."""
        weights: dict[str, float] = {}
        for question in self._questions_about(columns):
            for name in question.statistic_names:
                if self._is_from_discovery(question, name):
                    weights[name] = weights.get(name, 0.0) + question.weight
        return weights

    def _changed_groups(self, columns: tuple[str, ...]) -> int | None:
        """Return the number of groups that a person changes, if only their names are discovered.

        None if noisy numbers of persons are needed: to publish them, to keep the largest groups of
        statistics with many cells, or because the losses would be too many to compose.
        """
        contribution = self._discovery_bounds(columns)
        changed = contribution.groups * (2 if contribution.replace else 1)
        has_cells = any(
            name.partition(":")[0] in {*SELECTED, "histogram"}
            for question in self._questions_about(columns)
            for name in question.statistic_names
        )
        is_numbered = has_cells or {"count", PERSONS}.intersection(self._answers(columns))
        return None if is_numbered or changed > _MOST_SELECTIONS else changed

    def _discovery_item(self, columns: tuple[str, ...]) -> Item:
        """Return the item that pays for a discovery and for all statistics that it answers."""
        weight = sum(self._answers(columns).values()) or 1.0
        make = partial(self._discovery, columns)
        return Item(make, self._changed_groups(columns), weight, discovers=True)

    def _discovery(self, columns: tuple[str, ...], loss: Loss, aside: float) -> Discovery:
        """Return how to discover the groups of columns with a loss.

        Discoveries split the delta that is set aside, because one person may be the only member of
        a group in each of them. So do the groups of a person, if only their names are discovered.
        """
        contribution = self._discovery_bounds(columns)
        unit = self._unit(contribution, None)
        delta = quotient_down(aside, len(self.discovered_together))
        changed = self._changed_groups(columns)
        if loss.kind == PURE and changed is not None:
            selection = PartitionSelection(loss.amount, quotient_down(delta, changed))
            selection.smallest_shown(0.5)  # Raises if no group could ever be shown.
            return Discovery(columns, unit, selection, None, (loss,) * changed)
        change = RowChange.of_number(1, 0)  # A replaced person does not change a number.
        noise = WholeNoise.of(loss, contribution, change, counts=True)
        least = threshold(noise.mechanism, contribution.groups, delta)
        counts = tuple(name for name in self._answers(columns) if name != GROUPS)
        return Discovery(columns, unit, noise, least, (loss,), counts)

    @cached_property
    def _discoveries(self) -> dict[tuple[str, ...], Discovery]:
        losses = zip(self.discovered_together, self.prices.losses, strict=False)
        return {
            columns: self._discovery(columns, loss, self.prices.aside) for columns, loss in losses
        }

    def discoveries(self) -> list[Discovery]:
        """Return how to discover the groups of columns without declared groups."""
        return list(self._discoveries.values())

    def _discovered_query(self, question: Question, name: str) -> AnyQuery:
        discovery = self._discoveries[self.discovered_columns(question.by)]
        if name == GROUPS:
            return DiscoveredGroups(discovery)
        return DiscoveredCount(name, question.column, discovery)

    def prepare(self, groups: Groups | None = None) -> list[tuple[Question, AnyQuery]]:
        """Return a query for each statistic, with its part of the budget."""
        groups = self.groups if groups is None else groups
        losses = iter(self.prices.losses[len(self.discovered_together) :])
        prepared: list[tuple[Question, AnyQuery]] = []
        for question in self.questions:
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
        hidden = self.hidden_counts(groups).items()
        for question, query in (*self.prepare(groups), *hidden):
            key = self.table_key(question, query)
            if isinstance(query, FROM_DISCOVERY) or not self.number_of_groups(key.by, groups):
                continue  # The discovery answers it, or no group was discovered.
            asks = dict.fromkeys((*(plans[key].asks if key in plans else ()), query.ask))
            by = plans[key].by if key in plans else self._groupings(key.by, key.undeclared, groups)
            bounds = self._bounds_of_table(question, query.name, groups)
            unit = self._unit(bounds, question.person_value)
            where = self.conditions[question.where]
            derived = tuple(self.derived_values.items())
            text = tuple(self.text_columns)
            plans[key] = Plan(tuple(asks), by, self.missing, unit, where, derived, text)
        return plans

    def _groupings(
        self, names: Sequence[str], undeclared: str | None, groups: Groups
    ) -> _Groupings:
        """Return the columns to group by, or the one in whose declared groups no row counts."""
        if undeclared is not None:
            return (Grouping(undeclared, tuple(groups[undeclared]), undeclared=True),)
        return tuple(self.axes(names, groups))

    def table_key(self, question: Question, query: AnyQuery) -> PlanKey:
        """Return the key of the plan that answers a query, for the whole table that it is from."""
        columns = self.table_columns(question, query.name)
        limits = self.limits_of(question)
        others = question.undeclared, question.distinct
        return PlanKey(columns, question.person_value, question.where, limits, *others)

    def checks(self) -> tuple[Plan, ...]:
        """Return plans that detect errors in columns and values before groups are discovered.

        They cover all rows that match a filter, of all groups that are not declared.
        """
        asks: dict[tuple[Condition | None, _Groupings], dict[str | None, Ask]] = {}
        for question, query in (*self.prepare(), *self.hidden_counts().items()):
            columns = self.table_columns(question, query.name)
            declared = tuple(name for name in columns if not self.is_open(name))
            by = self._groupings(declared, question.undeclared, self.groups)
            column = getattr(query.ask, "column", None)
            asks.setdefault((self.conditions[question.where], by), {})[column] = query.ask
        derived, text = tuple(self.derived_values.items()), tuple(self.text_columns)
        unit = self._unit(ContributionBounds(), None)
        plans: list[Plan] = []
        for (where, by), by_column in asks.items():
            about_columns = tuple(by_column.values())
            plans.append(Plan(about_columns, by, self.missing, None, where, derived, text))
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
        """Raise if engines cannot answer exactly; TooManyCountsError if groups are too many."""
        cells = 0
        for question, query in self.prepare(groups):
            if isinstance(query, FROM_DISCOVERY):
                continue
            ask = query.ask
            group_cells = checking.number_of_cells(ask) if isinstance(ask, Cells | Edges) else 1
            cells += group_cells * (self.number_of_groups(question.by, groups) or 0)
        if cells > _MOST_CELLS:
            raise checking.TooManyCountsError(
                f"All groups together must have at most 2^26 cells, got {cells:,}. Use fewer "
                "groups, or give quantiles a coarser grid."
            )
        for plan in self.plans(groups).values():
            checking.check_plan(plan)
