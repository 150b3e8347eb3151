"""Answer plans in the engine that holds a frame, with one query that returns exact integers.

Rows outside the declared groups are dropped first. `arithmetic` turns the values of the other rows
into integers, which are summed for each group and cell. Only the sums leave the engine.

Where the engine supports it, several plans share one query, which computes common questions once.
In each row, keys that no plan declares are null. A plan may ask for them as one group instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from importlib import import_module
from math import inf, prod
from typing import TYPE_CHECKING, Any, Final, Self

import narwhals as nw
import numpy as np

from dpnoise.core.arrays import Array
from dpnoise.core.errors import ArgumentError, DpnoiseError
from dpnoise.statistics.engines import arithmetic, keys, persons, row_expressions, runners
from dpnoise.statistics.engines.arithmetic import ROWS, Expressions, Frame, Grouped
from dpnoise.statistics.engines.checking import check_plan
from dpnoise.statistics.engines.runners import Data, FileColumns, as_narwhals, prepare_data
from dpnoise.statistics.expressions import DATE, NUMBER, SourceColumn
from dpnoise.statistics.plan import (
    Answer,
    Ask,
    Combinations,
    Edges,
    Grouping,
    Key,
    Plan,
    SumAnswer,
    Tally,
    Unit,
)

if TYPE_CHECKING:
    import dask.dataframe

_OTHER_KEYS: Final = "other"  # In place of all keys that are not declared, if these are a group.
_MAX_ROWS: Final = 2**37  # With more rows, Spark's partial sums could overflow.
NO_PERSONS_IN_DASK: Final = (
    "A partition of Dask does not know of a person's rows in others. Take frame.compute(), or "
    "write it to Parquet and take Files."
)


class RowError(ArgumentError):
    """A row of a column has text that is not a number, or no value where one is required."""

    def __init__(
        self,
        plan: Plan,
        column: str,
        *,
        is_missing: bool,
        location: str | None = None,
        may_have_commas: bool = False,
    ) -> None:
        self.plan, self.column, self.is_missing = plan, column, is_missing
        if is_missing:
            problem = "has rows without a value" if location is None else "has no value"
            advice = "To leave out such rows, say {missing}."
        else:
            is_date = SourceColumn(column, DATE) in plan.sources
            problem = f"holds text that is not {'a date such as 2024-01-31' if is_date else NUMBER}"
            advice = "Correct it, or empty it and say {missing}."
            if is_date:
                advice = f"If all its dates have another form, rewrite the column. {advice}"
            else:
                advice = f"A number has no currency sign, unit or thousands separator. {advice}"
            if may_have_commas and not is_date:
                advice = "If its numbers have decimal commas, say {decimal} to read them. " + advice
            asks = [ask for ask in plan.value_asks if ask.column == column]
            if asks and all(ask == Edges(column, (-inf, inf)) for ask in asks):
                advice += " Counting rows needs no column: leave it out."
        message = f"{location or f'Column {column!r}'} {problem}. {advice}"
        super().__init__(message, missing="drop", decimal=",")

    def at(self, location: str | None, *, may_have_commas: bool) -> Self:
        """Return the same error of a file, with the location of its first row if it is known."""
        return type(self)(
            self.plan,
            self.column,
            is_missing=self.is_missing,
            location=location,
            may_have_commas=may_have_commas,
        )


@contextmanager
def replace_engine_errors() -> Iterator[None]:
    """Replace errors of an engine by ours: its messages may quote the data."""
    try:
        yield
    except (DpnoiseError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - each library has different errors
        raise ArgumentError(
            f"The engine could not answer: {type(error).__name__}. Is its session or connection "
            "still open, and does every column have a different name?"
        ) from None


def answer_all(
    frame: object, plans: Sequence[Plan], file: FileColumns | None = None
) -> list[Tally]:
    """Answer plans from a frame; `file` describes the file that it reads, if there is one.

    Plans with one filter share a query. The contributions of persons are bounded for each plan
    separately.
    """
    return list(map(_count_values, _answer_plans(frame, plans, file)))


def _answer_plans(
    frame: object, plans: Sequence[Plan], file: FileColumns | None = None
) -> list[Tally]:
    """Answer plans, with the set of different values of each group in place of their number."""
    for plan in plans:
        check_plan(plan)
    narwhals_frame = as_narwhals(frame)
    if narwhals_frame.implementation.is_dask():
        return _answer_by_partition(narwhals_frame.to_native(), plans)
    together: dict[object, list[int]] = {}
    for index, plan in enumerate(plans):
        together.setdefault(plan.where if plan.unit is None else index, []).append(index)
    tallies: dict[int, Tally] = {}
    connect = cache(runners.open_duckdb)  # Opening DuckDB takes as long as a small query.
    for indices in together.values():
        chosen = [plans[index] for index in indices]
        answered = _answer(Query.of(narwhals_frame, chosen, file, connect), chosen)
        tallies |= zip(indices, answered, strict=True)
    return [tallies[index] for index in range(len(plans))]


def _answer_by_partition(frame: "dask.dataframe.DataFrame", plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans in each partition of Dask, and add the answers."""
    if any(plan.unit is not None for plan in plans):
        raise ArgumentError(NO_PERSONS_IN_DASK)
    dask = import_module("dask")
    parts = [dask.delayed(_answer_plans)(part, plans) for part in frame.to_delayed()]
    return [reduce(_add_tallies, tallies) for tallies in zip(*dask.compute(*parts), strict=True)]


def _add_tallies(left: Tally, right: Tally) -> Tally:
    """Return the tally of two disjoint sets of rows, or of persons, together."""
    pairs = zip(left.answers, right.answers, strict=True)
    return Tally(tuple(_add_answers(*pair) for pair in pairs))


def _add_answers(left: Answer, right: Answer) -> Answer:
    if isinstance(left, SumAnswer):
        pairs = zip(vars(left).values(), vars(right).values(), strict=True)
        parts: list[Any] = [None if a is None else np.asarray(a + b) for a, b in pairs]
        return SumAnswer(*parts)
    # Sets of values, or counts.
    return np.asarray(left | right if left.dtype == object else left + right)  # type: ignore[operator]


def _count_values(tally: Tally) -> Tally:
    """Return a tally with numbers in place of sets of values."""
    sizes = np.vectorize(len, otypes=[np.int64])
    is_set = [isinstance(each, np.ndarray) and each.dtype == object for each in tally.answers]
    answers = zip(tally.answers, is_set, strict=True)
    return Tally(tuple(sizes(each) if has_sets else each for each, has_sets in answers))


def _answer(query: "Query", plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans of one filter in one query. A plan with a privacy unit must be the only one."""
    frame = _rows_in_groups(query, masked=len(plans) > 1)
    if plans[0].unit is not None:
        return [_answer_persons(frame, plans[0], plans[0].unit, query)]
    return _answer_rows(frame, plans, query)


def _answer_rows(frame: Frame, plans: Sequence[Plan], query: "Query") -> list[Tally]:
    """Answer plans from the rows that count."""
    for step in (query.expressions.wholes, query.expressions.derived):
        frame = frame.with_columns(**step) if step else frame
    results = runners.runner_of(frame).run(frame, [query.plan_columns(plan) for plan in plans])
    return [query.tally(plan, tables) for plan, tables in zip(plans, results, strict=True)]


def _rows_in_groups(query: "Query", *, masked: bool = False) -> Frame:
    """Return the columns of a query, for the rows in declared groups.

    If masked, all rows are returned, and keys outside the declared groups are null.
    """
    frame = query.data.runner.load(query.data.frame, query.connect)
    runner = runners.runner_of(frame)
    if query.where is not None:
        frame = frame.filter(query.where)
    if query.expressions.chosen:
        frame = runner.without_collation(frame.select(**query.expressions.chosen))
    for grouping, names in query.keys.items():
        values, is_other = query.declared[grouping], nw.col(names[0]).is_null()
        undeclared = isinstance(grouping, Grouping) and grouping.undeclared
        frame = runner.limit_groups(frame, names, values, masked=masked or undeclared)
        if undeclared:  # Its other keys are null now.
            frame = frame if masked else frame.filter(is_other)
            frame = frame.with_columns(**{names[0]: nw.when(is_other).then(nw.lit(_OTHER_KEYS))})
    return frame


def _value_sets(result: Grouped, name: str) -> Array:
    """Return the set of different values in a column, of each group."""
    sets = np.empty(result.shape, dtype=object)
    sets.reshape(-1)[:] = by_place = [set[Key]() for _ in range(sets.size)]
    for place, value in zip(result.places.tolist(), result.columns[name].tolist(), strict=True):
        if value is not None:
            by_place[place].add(value)
    return sets


def find_first_wrong_row(error: RowError, file: FileColumns) -> int | None:
    """Return the number of the first row in a declared group that has the error."""
    plan = replace(error.plan, unit=None)
    query = Query.of(as_narwhals(file.relation), [plan], file)
    query.expressions.chosen["row"] = nw.col(file.row)
    if error.is_missing and error.column in query.labels:
        has_error = nw.col(query.labels[error.column].is_missing) == 1
    elif error.is_missing:
        has_error = ~nw.col(query.values[error.column].is_present)
    else:
        has_error = nw.col(query.wrong[error.column]) == 1
    rows = _rows_in_groups(query).filter(has_error)
    first = rows.select(nw.col("row").min()).lazy().collect().item()
    return None if first is None else int(first)


def _answer_persons(frame: Frame, plan: Plan, unit: Unit, query: "Query") -> Tally:
    """Answer a plan from the rows of each person that count. All spellings of a key are one group.

    The answers to a plan are sums over persons, so those of disjoint parts of them are added.
    """
    for grouping, keys_of_group in query.keys.items():
        if isinstance(grouping, Grouping):  # A discovered label has one spelling.
            (key,) = keys_of_group
            frame = _with_first_spelling(frame, key, query.matches[grouping])
    values = [name for value in query.values.values() for name in (value.is_present, value.value)]
    labels = [query.labels[ask.column] for ask in plan.distinct_asks]
    flags = [*query.wrong.values(), *(flag.name for flag in query.flags)]
    flags += [label.is_missing for label in labels]
    names = persons.Names(query.ids, query.key_names(plan), values, flags)
    groups = prod(grouping.size for grouping in plan.by)

    def answer(rows: persons.InDuckDB) -> Tally:
        if labels:
            counted = persons.bound_values(rows, unit, names, labels[0].value, groups)
        else:
            counted = persons.bound_contributions(rows, unit, names, groups)
        (part,) = _answer_rows(as_narwhals(counted.relation), [plan], query)
        return part

    rows = persons.rows_of(frame, query.connect)
    return reduce(_add_tallies, persons.answer_in_parts(rows, names, query.data.file, answer))


def _with_first_spelling(frame: Frame, name: str, matches: Mapping[tuple[Key, ...], int]) -> Frame:
    """Return a frame with each key in the first of its spellings."""
    first: dict[int, Key] = {}
    key = nw.col(name)
    for (spelling,), index in matches.items():
        if first.setdefault(index, spelling) != spelling:
            key = nw.when(nw.col(name) == spelling).then(nw.lit(first[index])).otherwise(key)
    return frame.with_columns(**{name: key}) if len(first) < len(matches) else frame


@dataclass(frozen=True)
class _ValueColumns:
    """The names of the columns that are computed from one column of numbers."""

    value: str
    is_present: str


@dataclass(frozen=True)
class _LabelColumns:
    """The names of the columns that are computed from one column of values to distinguish."""

    value: str  # Null if missing.
    is_missing: str  # 0 or 1.


@dataclass
class Query:
    """The expressions that plans need of each row, each computed once, with their names."""

    data: Data
    where: nw.Expr | None = None  # The filter; rows with a parse error in its columns stay.
    expressions: Expressions = field(default_factory=Expressions)
    keys: dict[Grouping | Combinations, list[str]] = field(default_factory=dict)
    # The values of the columns of a grouping that belong to a declared key or to a combination.
    declared: dict[Grouping | Combinations, list[tuple[Key, ...]]] = field(default_factory=dict)
    # Maps the values of the columns of a grouping to the index of their group.
    matches: dict[Grouping | Combinations, dict[tuple[Key, ...], int]] = field(default_factory=dict)
    values: dict[str, _ValueColumns] = field(default_factory=dict)
    labels: dict[str, _LabelColumns] = field(default_factory=dict)
    # Maps each column of a file that is parsed from text to its parse-error flag, 0 or 1.
    wrong: dict[str, str] = field(default_factory=dict)
    asks: dict[Ask, arithmetic.AskColumns] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    flags: list[persons.IdFlag] = field(default_factory=list)
    connect: runners.Connect = runners.open_duckdb  # Opens DuckDB for rows that are elsewhere.

    @classmethod
    def of(
        cls,
        frame: Frame,
        plans: Sequence[Plan],
        file: FileColumns | None,
        connect: runners.Connect = runners.open_duckdb,
    ) -> Self:
        """Return the query of plans with one filter."""
        names = (name for plan in plans for name in plan.columns)
        compares_text = any(plan.expressions for plan in plans)
        data = prepare_data(frame, names, file, compares_text=compares_text)
        for plan in plans:
            data = row_expressions.derive_columns(data, plan)
        where = row_expressions.filter_of(data, plans[0].where)
        query = cls(data, where, connect=connect)
        for plan in plans:
            query.add(plan)
        return query

    def add(self, plan: Plan) -> None:
        """Add the expressions that a plan needs."""
        data, chosen = self.data, self.expressions.chosen
        for column in plan.sources:
            if column.name not in self.wrong and column.name in data.parse_errors:
                self.wrong[column.name] = flag = f"wrong{len(self.wrong)}"
                chosen[flag] = nw.col(data.parse_errors[column.name])
        for name in plan.value_columns:
            if name not in self.values:
                self.values[name] = self._add_value(name)
        for grouping in plan.by:
            if grouping not in self.keys:
                self._add_grouping(grouping)
        for label_ask in plan.distinct_asks:
            self._add_label(label_ask.column)
        for ask in plan.value_asks:
            if ask not in self.asks:
                value, name = nw.col(self.values[ask.column].value), f"ask{len(self.asks)}_"
                self.asks[ask] = arithmetic.add_ask(self.expressions, name, ask, value)
        if plan.unit is not None:
            self.add_persons(plan.unit)
            if plan.unit.person_value is not None and self.values:
                (columns,) = self.values.values()
                chosen[persons.WHOLE] = persons.whole_person_value(
                    chosen[columns.value], chosen[columns.is_present], plan.unit.person_value
                )

    def _add_grouping(self, grouping: Grouping | Combinations) -> None:
        data, matches = self.data, []
        self.keys[grouping] = names = list[str]()
        for part in grouping.groupings:
            dtype = data.schema[part.column]
            matches.append(keys.match_keys(part, dtype, data.parsed))
            names.append(f"key{sum(map(len, self.keys.values()))}")
            column = data.column(part.column)
            self.expressions.chosen[names[-1]] = keys.key_expression(column, dtype)
        matched = keys.match_groups(grouping, matches)
        self.declared[grouping] = list(matched)
        undeclared = isinstance(grouping, Grouping) and grouping.undeclared
        self.matches[grouping] = {(_OTHER_KEYS,): 0} if undeclared else matched

    def key_names(self, plan: Plan) -> list[str]:
        """Return the names of the keys of a plan."""
        return [name for grouping in plan.by for name in self.keys[grouping]]

    def _add_value(self, name: str) -> _ValueColumns:
        number, chosen = len(self.values), self.expressions.chosen
        columns = _ValueColumns(f"value{number}", f"there{number}")
        chosen[columns.value], chosen[columns.is_present] = self.data.number(name)
        return columns

    def _add_label(self, name: str) -> None:
        """Add a value that is compared like the key of a group; null, NaN and "" are missing."""
        if name in self.labels:
            return
        dtype, number = keys.check_key_type(name, self.data.schema[name]), len(self.labels)
        self.labels[name] = columns = _LabelColumns(f"label{number}", f"unlabelled{number}")
        label = keys.key_expression(self.data.column(name), dtype)
        is_missing = keys.is_missing(label, dtype)
        self.expressions.chosen[columns.value] = nw.when(~is_missing).then(label)
        flag = nw.when(is_missing).then(nw.lit(1)).otherwise(nw.lit(0))
        self.expressions.chosen[columns.is_missing] = flag

    def add_persons(self, unit: Unit) -> None:
        """Add the ids of the person of a row, and the flags of wrong or missing ids."""
        chosen = self.expressions.chosen
        for index, name in enumerate(unit.columns):
            self.ids.append(f"person{index}")
            chosen[self.ids[-1]] = persons.as_id(name, self.data)
        self.flags = persons.id_flags(unit, self.data)
        chosen |= {flag.name: flag.flag for flag in self.flags}

    def plan_columns(self, plan: Plan) -> runners.PlanColumns:
        """Return the keys, cells and sums of a plan."""
        flags = [self.values[name].is_present for name in plan.value_columns]
        flags += [self.wrong[each.name] for each in plan.sources if each.name in self.wrong]
        flags += [flag.name for flag in self.flags]
        label_columns = [self.labels[ask.column] for ask in plan.distinct_asks]
        flags += [label.is_missing for label in label_columns]
        labels = [label.value for label in label_columns]
        codes, summed = list(labels), dict.fromkeys(flags, False)
        for ask in plan.value_asks:
            columns = self.asks[ask]
            summed |= columns.summed
            codes += [] if columns.code is None else [columns.code]
        codes = list(dict.fromkeys(codes))
        return runners.PlanColumns(self.key_names(plan), codes, summed, labels)

    def tally(self, plan: Plan, tables: runners.Tables) -> Tally:
        """Return the answers to a plan from the results of the query."""
        # The sums are often in the same table as the counts of the first cells.
        different = {id(table): table for table in tables.values()}
        grouped = {key: self._group_rows(plan, table) for key, table in different.items()}
        results = {code: grouped[id(table)] for code, table in tables.items()}
        first = results[None]
        rows = first.by_group(ROWS)
        if rows.sum() >= _MAX_ROWS:
            raise ArgumentError("The data must have fewer than 2^37 rows. Split it into parts.")
        self._check_values(plan, first)
        answers: dict[Ask, Answer] = dict.fromkeys(plan.asks, rows)
        for ask in plan.value_asks:
            count = first.by_group(self.values[ask.column].is_present)
            answers[ask] = self.asks[ask].answer(results, count, np.asarray(rows - count))
        for label_ask in plan.distinct_asks:
            name = self.labels[label_ask.column].value
            answers[label_ask] = value_sets = _value_sets(results[name], name)
            self._check_labels(label_ask.column, value_sets, is_text=label_ask.column in plan.text)
        return Tally(tuple(answers[ask] for ask in plan.asks))

    def _check_labels(self, column: str, sets: Array, *, is_text: bool) -> None:
        """Raise if a reader may have rounded different values to one, or may do so."""
        different = set[Key]().union(*sets.reshape(-1))
        ambiguous = None if is_text else self.data.ambiguous_text
        keys.check_values(column, different, self.data.schema[column], ambiguous)

    def _group_rows(self, plan: Plan, columns: runners.Columns) -> Grouped:
        """Return a result with the group of each row."""
        places = np.zeros(len(columns[ROWS]), dtype=np.int64)
        for grouping in plan.by:
            index_of = self.matches[grouping]
            entries = zip(*(columns[name] for name in self.keys[grouping]), strict=True)
            indices = [index_of[values] for values in entries]
            places = places * grouping.size + np.array(indices, dtype=np.int64)
        return Grouped(columns, places, tuple(grouping.size for grouping in plan.by))

    def _check_values(self, plan: Plan, result: Grouped) -> None:
        """Raise if a row has no id, text that is not a number or, unless dropped, no value."""
        persons.check_id_flags(self.flags, result.columns)
        rows = result.integers(ROWS).sum()
        for column in plan.sources:
            if column.name in self.wrong and result.integers(self.wrong[column.name]).any():
                raise RowError(plan, column.name, is_missing=False)
        for name in plan.value_columns if plan.missing == "error" else ():
            if result.integers(self.values[name].is_present).sum() < rows:
                raise RowError(plan, name, is_missing=True)
        for ask in plan.distinct_asks if plan.missing == "error" else ():
            if result.integers(self.labels[ask.column].is_missing).any():
                raise RowError(plan, ask.column, is_missing=True)
