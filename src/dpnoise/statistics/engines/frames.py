"""Answer plans in the engine that holds a frame, with one query that returns exact integers.

Rows outside the declared groups are dropped first. `arithmetic` turns the values of the other rows
into integers, which are summed for each group and cell. Only the sums leave the engine.

Where the engine supports it, several plans share one query, which computes common questions once.
In each row, keys that no plan declares are null.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import import_module
from math import inf, prod
from typing import TYPE_CHECKING, Final

import numpy as np

from dpnoise.core.arrays import Integers
from dpnoise.core.errors import ArgumentError, DpnoiseError, did_you_mean, import_extra
from dpnoise.core.safe_text import shorten
from dpnoise.statistics.engines import arithmetic, keys, persons
from dpnoise.statistics.engines.arithmetic import ROWS, AskColumns, Expressions, Grouped
from dpnoise.statistics.engines.checking import check_plan
from dpnoise.statistics.engines.runners import (
    Columns,
    PlanColumns,
    Runner,
    Tables,
    as_narwhals,
    runner_of,
)
from dpnoise.statistics.plan import Ask, Edges, Grouping, Key, Plan, Rows, SumAnswer, Tally, Unit

if TYPE_CHECKING:
    import dask.dataframe
    import narwhals as nw
    from duckdb import DuckDBPyRelation
    from narwhals.dtypes import DType

    from dpnoise.statistics.engines.runners import Frame
else:
    nw = import_extra("narwhals", "engines")

_MAX_ROWS: Final = 2**37  # With more rows, Spark's partial sums could overflow.
_MAX_LIST_LENGTH: Final = 500  # The most characters of column names in an error.
NO_PERSONS_IN_DASK: Final = (
    "A partition of Dask does not know of a person's rows in others. Take frame.compute(), or "
    "write it to Parquet and take Files."
)


class RowError(ArgumentError):
    """A row of a column has text that is not a number, or no value where one is required."""

    def __init__(
        self, plan: Plan, column: str, *, is_missing: bool, location: str | None = None
    ) -> None:
        self.plan, self.column, self.is_missing = plan, column, is_missing
        subject = f"Column {column!r}" if location is None else location
        if is_missing:
            problem = "has rows without a value" if location is None else "has no value"
            advice = "To leave out such rows, say {missing}."
        else:
            problem = "holds text that is not a number"
            advice = "Correct it, or empty it and say {missing}."
            asks = (ask for ask in plan.asks if getattr(ask, "column", None) == column)
            if all(ask == Edges(column, (-inf, inf)) for ask in asks):
                advice += " Counting rows needs no column: leave it out."
        super().__init__(f"{subject} {problem}. {advice}", missing="drop")


@dataclass(frozen=True)
class FileColumns:
    """The relation of DuckDB that reads a file, with facts about its columns."""

    relation: "DuckDBPyRelation"
    parse_errors: Mapping[str, str]  # Maps each text column to its parse-error flag.
    parsed: Collection[str]  # Columns of groups that we parsed from text, so that none is rounded.
    row: str  # The column of row numbers, if these were requested.


@dataclass(frozen=True)
class Data:
    """A frame that is prepared for its engine, with facts about its columns."""

    frame: "Frame"
    runner: Runner
    names: Mapping[str, str]  # Maps each column to its name in the frame.
    schema: Mapping[str, "DType"]
    file: FileColumns | None  # None if the rows do not come from a file.

    @property
    def ambiguous_text(self) -> str | None:
        """The pattern of text that must be declared; None if all types are declared."""
        in_duckdb = self.frame.implementation.is_duckdb()
        return keys.ambiguous_text_pattern(in_duckdb=in_duckdb) if self.file is None else None


def prepare_data(frame: "Frame", names: Iterable[str], file: FileColumns | None) -> Data:
    """Prepare a frame to read some of its columns; raise if one is missing."""
    columns, runner, schema = _unique(names), runner_of(frame), frame.collect_schema()
    for name in columns:
        if name not in schema:
            names = list(map(str, schema))
            available = shorten(", ".join(names), _MAX_LIST_LENGTH)
            hint = did_you_mean(name, names) or f"There are: {available}."
            raise ArgumentError(f"There is no column {name!r}. {hint}")
    frame, new_names = runner.prepare(frame, columns)
    types = frame.collect_schema()
    return Data(frame, runner, new_names, {name: types[new_names[name]] for name in columns}, file)


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


def tally_all(frame: object, plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans from a frame of any engine that narwhals supports."""
    with replace_engine_errors():
        return answer_all(frame, plans)


def answer_all(
    frame: object, plans: Sequence[Plan], file: FileColumns | None = None
) -> list[Tally]:
    """Answer plans from a frame; `file` describes the file that it reads, if there is one.

    The contributions of persons are bounded for each plan separately.
    """
    for plan in plans:
        check_plan(plan)
    narwhals_frame = as_narwhals(frame)
    if narwhals_frame.implementation.is_dask():
        return _answer_by_partition(narwhals_frame.to_native(), plans)
    if all(plan.unit is None for plan in plans):
        return _answer(narwhals_frame, plans, file)
    return [tally for plan in plans for tally in _answer(narwhals_frame, [plan], file)]


def _answer_by_partition(frame: "dask.dataframe.DataFrame", plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans in each partition of Dask, and add the answers."""
    if any(plan.unit is not None for plan in plans):
        raise ArgumentError(NO_PERSONS_IN_DASK)
    dask = import_module("dask")
    parts = [dask.delayed(answer_all)(part, plans) for part in frame.to_delayed()]
    return [reduce(_add_tallies, tallies) for tallies in zip(*dask.compute(*parts), strict=True)]


def _add_tallies(left: Tally, right: Tally) -> Tally:
    """Return the tally of the union of two sets of rows."""
    pairs = zip(left.answers, right.answers, strict=True)
    return Tally(tuple(_add_answers(*pair) for pair in pairs))


def _add_answers(left: SumAnswer | Integers, right: SumAnswer | Integers) -> SumAnswer | Integers:
    if isinstance(left, SumAnswer) and isinstance(right, SumAnswer):
        squares = None
        if left.squares is not None and right.squares is not None:
            squares = np.asarray(left.squares + right.squares)
        count, total = left.count + right.count, left.total + right.total
        return SumAnswer(np.asarray(count), np.asarray(total), squares)
    return np.asarray(left + right)  # type: ignore[operator]  # Both are counts.


def _answer(
    narwhals_frame: "Frame", plans: Sequence[Plan], file: FileColumns | None
) -> list[Tally]:
    """Answer plans in one query. A plan with a privacy unit must be the only one."""
    data = prepare_data(
        narwhals_frame, (name for plan in plans for name in needed_columns(plan)), file
    )
    for name in dict.fromkeys(name for plan in plans for name in asked_columns(plan)):
        arithmetic.check_numbers(name, data.schema[name])
    unit = plans[0].unit
    query = _Query(data)
    for plan in plans:
        query.add(plan)
    frame, expressions = _rows_in_groups(query, masked=len(plans) > 1), query.expressions
    if unit is not None:
        frame = _bound_persons(frame, plans[0], unit, query)
    for step in (expressions.wholes, {**expressions.summed, **expressions.codes}):
        frame = frame.with_columns(**step) if step else frame
    results = runner_of(frame).run(frame, [query.plan_columns(plan) for plan in plans])
    return [query.tally(plan, tables) for plan, tables in zip(plans, results, strict=True)]


def _rows_in_groups(query: "_Query", *, masked: bool = False) -> "Frame":
    """Return the columns of a query, for the rows in declared groups.

    If masked, all rows are returned, and keys outside the declared groups are null.
    """
    frame = query.data.runner.load(query.data.frame)
    runner = runner_of(frame)
    if query.expressions.chosen:
        frame = runner.without_collation(frame.select(**query.expressions.chosen))
    for grouping, key in query.keys.items():
        values = list(query.matches[grouping])
        frame = runner.limit_groups(frame, key, values, masked=masked)
    return frame


def find_first_wrong_row(error: RowError, file: FileColumns) -> int | None:
    """Return the number of the first row in a declared group that has the error."""
    plan = replace(error.plan, unit=None)
    query = _Query(prepare_data(as_narwhals(file.relation), needed_columns(plan), file))
    query.add(plan)
    query.expressions.chosen["row"] = nw.col(file.row)
    value = query.values[error.column]
    has_error = ~nw.col(value.is_present) if error.is_missing else nw.col(value.is_wrong or "") == 1
    rows = _rows_in_groups(query).filter(has_error)
    first = rows.select(nw.col("row").min()).lazy().collect().item()
    return None if first is None else int(first)


def _bound_persons(frame: "Frame", plan: Plan, unit: Unit, query: "_Query") -> "Frame":
    """Keep the rows of each person that count. All spellings of a key are one group."""
    for grouping, key in query.keys.items():
        frame = frame.with_columns(**{key: _first_spelling(key, query.matches[grouping])})
    values = [name for value in query.values.values() for name in (value.is_present, value.value)]
    flags = [value.is_wrong for value in query.values.values() if value.is_wrong is not None]
    flags += [flag.name for flag in query.flags]
    names = persons.Names(query.ids, list(query.keys.values()), values, flags, query.person_value)
    groups = prod(len(grouping.keys) for grouping in plan.by)
    return as_narwhals(
        persons.bound_contributions(persons.rows_of(frame), unit, names, groups).relation
    )


def _first_spelling(name: str, matches: Mapping[Key, int]) -> "nw.Expr":
    """Return a key in the first of its spellings."""
    first: dict[int, Key] = {}
    key = nw.col(name)
    for spelling, index in matches.items():
        if first.setdefault(index, spelling) != spelling:
            key = nw.when(nw.col(name) == spelling).then(nw.lit(first[index])).otherwise(key)
    return key


@dataclass(frozen=True)
class _ValueColumns:
    """The names of the columns that are computed from one column of numbers."""

    value: str
    is_present: str
    count: str
    is_wrong: str | None  # The parse-error flag, 0 or 1.


@dataclass
class _Query:
    """The expressions that plans need of each row, each computed once, with their names."""

    data: Data
    expressions: Expressions = field(default_factory=Expressions)
    keys: dict[Grouping, str] = field(default_factory=dict)
    matches: dict[Grouping, dict[Key, int]] = field(default_factory=dict)
    values: dict[str, _ValueColumns] = field(default_factory=dict)
    asks: dict[Ask, AskColumns] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    flags: list[persons.IdFlag] = field(default_factory=list)
    person_value: persons.PersonValueColumns | None = None

    def add(self, plan: Plan) -> None:
        """Add the expressions that a plan needs."""
        data, expressions = self.data, self.expressions
        for grouping in plan.by:
            if grouping not in self.keys:
                self.keys[grouping] = key = f"key{len(self.keys)}"
                name, dtype = grouping.column, data.schema[grouping.column]
                parsed = None if data.file is None else data.file.parsed
                self.matches[grouping] = keys.match_keys(grouping, dtype, parsed)
                expressions.chosen[key] = keys.key_expression(data.names[name], dtype)
        for name in asked_columns(plan):
            if name not in self.values:
                self.values[name] = self._add_value(name)
        for ask in plan.asks:
            if not isinstance(ask, Rows) and ask not in self.asks:
                value = nw.col(self.values[ask.column].value)
                name = f"ask{len(self.asks)}_"
                self.asks[ask] = arithmetic.add_ask(expressions, name, ask, value)
        if plan.unit is not None:
            self._add_persons(plan.unit)

    def _add_value(self, name: str) -> _ValueColumns:
        number, column = len(self.values), nw.col(self.data.names[name])
        dtype, expressions = self.data.schema[name], self.expressions
        parse_errors = {} if self.data.file is None else self.data.file.parse_errors
        is_wrong = f"wrong{number}" if name in parse_errors else None
        columns = _ValueColumns(f"value{number}", f"there{number}", f"count{number}", is_wrong)
        expressions.chosen[columns.is_present] = arithmetic.is_present(column, dtype)
        divides_decimals = not self.data.frame.implementation.is_polars()
        expressions.chosen[columns.value] = arithmetic.fill_missing(
            column, dtype, divides_decimals=divides_decimals
        )
        expressions.summed[columns.count] = nw.col(columns.is_present).cast(nw.Int64)
        if is_wrong is not None:
            expressions.chosen[is_wrong] = nw.col(parse_errors[name])
            expressions.summed[is_wrong] = nw.col(is_wrong).cast(nw.Int64)
        return columns

    def _add_persons(self, unit: Unit) -> None:
        """Add the ids of the person of a row, and what it adds to the value of that person."""
        data, expressions = self.data, self.expressions
        self.flags = persons.id_flags(unit, data.schema, data.names, data.ambiguous_text)
        for flag in self.flags:
            expressions.chosen[flag.name] = flag.is_wrong
        for index, name in enumerate(unit.columns):
            self.ids.append(f"person{index}")
            expressions.chosen[self.ids[-1]] = persons.as_id(
                name, data.names[name], data.schema[name]
            )
        for summed in (persons.LOST, *(flag.name for flag in self.flags)):
            expressions.summed[summed] = nw.col(summed).cast(nw.Int64)
        if unit.person_value is not None and self.values:
            (columns,) = self.values.values()
            self.person_value = persons.PersonValueColumns(
                unit.person_value, columns.value, columns.is_present, "own"
            )
            value, present = (
                expressions.chosen[columns.value],
                expressions.chosen[columns.is_present],
            )
            expressions.chosen[self.person_value.whole] = persons.whole_person_value(
                value, present, unit.person_value
            )

    def plan_columns(self, plan: Plan) -> PlanColumns:
        """Return the keys, cells and sums of a plan."""
        ask_columns = [self.asks[ask] for ask in plan.asks if not isinstance(ask, Rows)]
        summed = [self.values[name].count for name in asked_columns(plan)]
        summed += [flag for name in asked_columns(plan) if (flag := self.values[name].is_wrong)]
        if plan.unit is not None:
            summed += [persons.LOST, *(flag.name for flag in self.flags)]
        summed += [name for columns in ask_columns for name in columns.summed]
        codes = [columns.code for columns in ask_columns if columns.code is not None]
        wide = {name: name in self.expressions.wide for name in summed}
        return PlanColumns([self.keys[grouping] for grouping in plan.by], _unique(codes), wide)

    def tally(self, plan: Plan, tables: Tables) -> Tally:
        """Return the answers to a plan from the results of the query."""
        results = {code: self._group_rows(plan, table) for code, table in tables.items()}
        first = results[None]
        rows = first.by_group(ROWS)
        if rows.sum() >= _MAX_ROWS:
            raise ArgumentError("The data must have fewer than 2^37 rows. Split it into parts.")
        self._check_values(plan, first)
        answers: list[SumAnswer | Integers] = []
        for ask in plan.asks:
            if isinstance(ask, Rows):
                answers.append(rows)
            else:
                count = first.by_group(self.values[ask.column].count)
                answers.append(self.asks[ask].answer(results, count, np.asarray(rows - count)))
        return Tally(tuple(answers))

    def _group_rows(self, plan: Plan, columns: Columns) -> Grouped:
        """Return a result with the group of each row."""
        places = np.zeros(len(columns[ROWS]), dtype=np.int64)
        for grouping in plan.by:
            index_of = self.matches[grouping]
            indices = [index_of[entry] for entry in columns[self.keys[grouping]]]
            places = places * len(grouping.keys) + np.array(indices, dtype=np.int64)
        return Grouped(columns, places, tuple(len(grouping.keys) for grouping in plan.by))

    def _check_values(self, plan: Plan, result: Grouped) -> None:
        """Raise if a row has no id, text that is not a number or, unless dropped, no value."""
        if plan.unit is not None:
            check_ids(plan.unit, is_lost=bool(result.integers(persons.LOST).any()))
            for flag in self.flags:
                if result.integers(flag.name).any():
                    raise flag.error(flag.column)
        rows = result.integers(ROWS).sum()
        for name in asked_columns(plan):
            value = self.values[name]
            if value.is_wrong is not None and result.integers(value.is_wrong).any():
                raise RowError(plan, name, is_missing=False)
            if plan.missing == "error" and result.integers(value.count).sum() < rows:
                raise RowError(plan, name, is_missing=True)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def check_ids(unit: Unit, *, is_lost: bool) -> None:
    """Raise if rows have no id, unless each of them counts as a separate person."""
    if is_lost and unit.without_id == "error":
        raise ArgumentError(
            f"Some rows do not identify a person: {' or '.join(unit.columns)} is missing. Leave "
            'them out, or count each as a separate person: without_id="own".'
        )


def asked_columns(plan: Plan) -> list[str]:
    """Return the columns of values in a plan, each once."""
    return _unique(ask.column for ask in plan.asks if not isinstance(ask, Rows))


def needed_columns(plan: Plan) -> list[str]:
    """Return the columns that a plan reads, each once: values, groups and person ids."""
    grouped = [grouping.column for grouping in plan.by]
    return _unique([*asked_columns(plan), *grouped, *(plan.unit.columns if plan.unit else ())])
