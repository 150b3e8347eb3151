"""Plans, answered by the engine that holds a frame: one query, whose result is exact integers.

Rows of no declared group are left out before anything else is asked of them. The rest become
integers by `arithmetic`, and are added up for each group and cell. Only the sums leave the engine.

Several plans are one query where the engine can: what two of them ask is computed once, and in each
row the keys that no plan declares are null.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from dpnoise.core.arrays import Integers
from dpnoise.core.errors import ArgumentError, DpnoiseError, import_extra
from dpnoise.core.safe_text import shortened
from dpnoise.statistics.engines import arithmetic, keys, persons
from dpnoise.statistics.engines.arithmetic import ROWS, AskColumns, Expressions, Grouped
from dpnoise.statistics.engines.checking import check_plan
from dpnoise.statistics.engines.runners import Part, Runner, Tables, runner_of, wrapped
from dpnoise.statistics.plan import Ask, Grouping, Key, Plan, Rows, Sum, Tally, Unit

if TYPE_CHECKING:
    import dask.dataframe
    import narwhals as nw
    from duckdb import DuckDBPyRelation
    from narwhals.dtypes import DType

    from dpnoise.statistics.engines.arithmetic import DataFrame
    from dpnoise.statistics.engines.runners import Frame
else:
    nw = import_extra("narwhals", "engines")

_MOST_ROWS: Final = 2**37  # With more, a sum of halves could wrap around.
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.
NO_PERSONS_IN_DASK: Final = (
    "A partition of Dask does not know of a person's rows in others. Take frame.compute(), or "
    "write it to Parquet and take Files."
)


class MistakeError(ArgumentError):
    """A column has text that is no number, or no value where there must be one."""

    def __init__(
        self, plan: Plan, column: str, *, is_missing: bool, place: str | None = None
    ) -> None:
        self.plan, self.column, self.is_missing = plan, column, is_missing
        subject = f"Column {column!r}" if place is None else place
        if is_missing:
            found = "has rows without a value" if place is None else "has no value"
            super().__init__(f'{subject} {found}. To leave out such rows, say missing="drop".')
        else:
            super().__init__(
                f"{subject} holds text that is no number. Correct it, or empty it and say "
                'missing="drop".'
            )


@dataclass(frozen=True)
class FileColumns:
    """A relation of DuckDB that was made of a file, and what is known about its columns."""

    relation: "DuckDBPyRelation"
    parse_errors: Mapping[str, str]  # By column of text, the column that flags its parse errors.
    parsed: Collection[str]  # The columns of groups that we parsed from text: none is rounded.
    row: str  # The column that numbers rows, where that is asked for.


@dataclass(frozen=True)
class Data:
    """A frame as its engine computes with it, and what is known about its columns."""

    frame: "Frame"
    runner: Runner
    names: Mapping[str, str]  # What columns are called in the frame.
    schema: Mapping[str, "DType"]
    file: FileColumns | None  # None if it was not made of a file.

    @property
    def ambiguous_text(self) -> str | None:
        """A pattern of text that must be declared; None if all types are declared."""
        in_duckdb = self.frame.implementation.is_duckdb()
        return keys.ambiguous_text(in_duckdb=in_duckdb) if self.file is None else None


def prepared(frame: "Frame", wanted: Iterable[str], file: FileColumns | None) -> Data:
    """Return a frame of which some columns are read; raise if one is not there."""
    columns, runner, schema = _once(wanted), runner_of(frame), frame.collect_schema()
    for name in columns:
        if name not in schema:
            there = shortened(", ".join(map(str, schema)), _LONGEST_LIST)
            raise ArgumentError(f"There is no column {name!r}. There are: {there}.")
    frame, names = runner.prepare(frame, columns)
    types = frame.collect_schema()
    return Data(frame, runner, names, {name: types[names[name]] for name in columns}, file)


@contextmanager
def complaints() -> Iterator[None]:
    """Say that an engine failed, and show nothing of what it says: it may quote the data."""
    try:
        yield
    except (DpnoiseError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        raise ArgumentError(
            f"The engine could not answer: {type(error).__name__}. Is its session or connection "
            "still open, and does every column have a name of its own?"
        ) from None


def tally_all(frame: object, plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans from a frame of any engine that narwhals knows."""
    with complaints():
        return answer_all(frame, plans)


def answer_all(
    frame: object, plans: Sequence[Plan], file: FileColumns | None = None
) -> list[Tally]:
    """Answer plans from a frame; `file` says that it was made of a file.

    Rows of persons are bounded for each plan by itself.
    """
    for plan in plans:
        check_plan(plan)
    known = wrapped(frame)
    if known.implementation.is_dask():
        return _answer_by_partition(known.to_native(), plans)
    if all(plan.unit is None for plan in plans):
        return _answer(known, plans, file)
    return [tally for plan in plans for tally in _answer(known, [plan], file)]


def _answer_by_partition(frame: "dask.dataframe.DataFrame", plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans for each of Dask's partitions, where it lies, and add the answers."""
    if any(plan.unit is not None for plan in plans):
        raise ArgumentError(NO_PERSONS_IN_DASK)
    dask = import_module("dask")
    parts = [dask.delayed(answer_all)(part, plans) for part in frame.to_delayed()]
    return [reduce(_added, tallies) for tallies in zip(*dask.compute(*parts), strict=True)]


def _added(one: Tally, other: Tally) -> Tally:
    """Return the tally of two sets of rows together."""
    pairs = zip(one.answers, other.answers, strict=True)
    return Tally(tuple(_added_answer(mine, theirs) for mine, theirs in pairs))


def _added_answer(one: Sum | Integers, other: Sum | Integers) -> Sum | Integers:
    if isinstance(one, Sum) and isinstance(other, Sum):
        squares = None
        if one.squares is not None and other.squares is not None:
            squares = np.asarray(one.squares + other.squares)
        count, total = one.count + other.count, one.total + other.total
        return Sum(np.asarray(count), np.asarray(total), squares)
    return np.asarray(one + other)  # type: ignore[operator]  # Both are counts.


def _answer(known: "Frame", plans: Sequence[Plan], file: FileColumns | None) -> list[Tally]:
    """Answer plans in one query; a plan about persons is answered by itself."""
    data = prepared(known, (name for plan in plans for name in wanted_columns(plan)), file)
    for name in dict.fromkeys(name for plan in plans for name in asked_columns(plan)):
        arithmetic.check_numbers(name, data.schema[name])
    unit = plans[0].unit
    query = _Query(data)
    for plan in plans:
        query.add(plan)
    frame, made = _rows_in_groups(query, masked=len(plans) > 1), query.made
    if unit is not None:
        frame = _bounded(frame, plans[0], unit, query)
    for step in (made.wholes, {**made.summed, **made.codes}):
        frame = frame.with_columns(**step) if step else frame
    results = runner_of(frame).run(frame, [query.part(plan) for plan in plans])
    return [query.tally(plan, tables) for plan, tables in zip(plans, results, strict=True)]


def _rows_in_groups(query: "_Query", *, masked: bool = False) -> "Frame":
    """Return what a query chooses, in the engine that computes, of rows in declared groups.

    If masked, all rows are returned, and keys of other groups are null.
    """
    frame = query.data.runner.load(query.data.frame)
    runner = runner_of(frame)
    if query.made.chosen:
        frame = runner.without_collation(frame.select(**query.made.chosen))
    for grouping, key in query.keys.items():
        values = list(query.matches[grouping])
        frame = runner.limit_groups(frame, key, values, masked=masked)
    return frame


def first_wrong_row(error: MistakeError, file: FileColumns) -> int | None:
    """Return the number of the first row that is in a declared group and has the mistake."""
    plan = replace(error.plan, unit=None)
    query = _Query(prepared(wrapped(file.relation), wanted_columns(plan), file))
    query.add(plan)
    query.made.chosen["row"] = nw.col(file.row)
    value = query.values[error.column]
    wrong = ~nw.col(value.there) if error.is_missing else nw.col(value.is_wrong or "") == 1
    rows = _rows_in_groups(query).filter(wrong)
    first = rows.select(nw.col("row").min()).lazy().collect().item()
    return None if first is None else int(first)


def _bounded(frame: "Frame", plan: Plan, unit: Unit, query: "_Query") -> "Frame":
    """Keep of each person what counts; a group is one, however many spellings it has."""
    for grouping, key in query.keys.items():
        frame = frame.with_columns(**{key: _first_spelling(key, query.matches[grouping])})
    values = [name for one in query.values.values() for name in (one.there, one.value)]
    flags = [one.is_wrong for one in query.values.values() if one.is_wrong is not None]
    flags += [flag.name for flag in query.flags]
    names = persons.Names(query.ids, list(query.keys.values()), values, flags, query.own)
    groups = prod(len(grouping.keys) for grouping in plan.by)
    return wrapped(persons.bounded(persons.rows_of(frame), unit, names, groups).relation)


def _first_spelling(name: str, places: Mapping[Key, int]) -> "nw.Expr":
    """Return a key as the first of its spellings has it."""
    first: dict[int, Key] = {}
    key = nw.col(name)
    for spelling, place in places.items():
        if first.setdefault(place, spelling) != spelling:
            key = nw.when(nw.col(name) == spelling).then(nw.lit(first[place])).otherwise(key)
    return key


@dataclass(frozen=True)
class _ValueColumns:
    """The columns that are made of one column of numbers."""

    value: str
    there: str
    count: str
    is_wrong: str | None  # Flags parse errors, 0 or 1.


@dataclass
class _Query:
    """What plans need of each row, each once, and under which names it is computed."""

    data: Data
    made: Expressions = field(default_factory=Expressions)
    keys: dict[Grouping, str] = field(default_factory=dict)
    matches: dict[Grouping, dict[Key, int]] = field(default_factory=dict)
    values: dict[str, _ValueColumns] = field(default_factory=dict)
    asks: dict[Ask, AskColumns] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    flags: list[persons.IdFlag] = field(default_factory=list)
    own: persons.OwnColumns | None = None

    def add(self, plan: Plan) -> None:
        """Add what a plan needs."""
        data, made = self.data, self.made
        for grouping in plan.by:
            if grouping not in self.keys:
                self.keys[grouping] = key = f"key{len(self.keys)}"
                name, dtype = grouping.column, data.schema[grouping.column]
                parsed = None if data.file is None else data.file.parsed
                self.matches[grouping] = keys.matches(grouping, dtype, parsed)
                made.chosen[key] = keys.as_key(data.names[name], dtype)
        for name in asked_columns(plan):
            if name not in self.values:
                self.values[name] = self._add_value(name)
        for ask in plan.asks:
            if not isinstance(ask, Rows) and ask not in self.asks:
                value = nw.col(self.values[ask.column].value)
                name = f"ask{len(self.asks)}_"
                self.asks[ask] = arithmetic.add_ask(made, name, ask, value)
        if plan.unit is not None:
            self._add_persons(plan.unit)

    def _add_value(self, name: str) -> _ValueColumns:
        number, column = len(self.values), nw.col(self.data.names[name])
        dtype, made = self.data.schema[name], self.made
        parse_errors = {} if self.data.file is None else self.data.file.parse_errors
        is_wrong = f"wrong{number}" if name in parse_errors else None
        columns = _ValueColumns(f"value{number}", f"there{number}", f"count{number}", is_wrong)
        made.chosen[columns.there] = arithmetic.is_present(column, dtype)
        divides_decimals = not self.data.frame.implementation.is_polars()
        made.chosen[columns.value] = arithmetic.filled(
            column, dtype, divides_decimals=divides_decimals
        )
        made.summed[columns.count] = nw.col(columns.there).cast(nw.Int64)
        if is_wrong is not None:
            made.chosen[is_wrong] = nw.col(parse_errors[name])
            made.summed[is_wrong] = nw.col(is_wrong).cast(nw.Int64)
        return columns

    def _add_persons(self, unit: Unit) -> None:
        """Add who the person of a row is, and what the row adds to the person's own value."""
        data, made = self.data, self.made
        self.flags = persons.id_flags(unit, data.schema, data.names, data.ambiguous_text)
        for flag in self.flags:
            made.chosen[flag.name] = flag.is_wrong
        for place, name in enumerate(unit.columns):
            self.ids.append(f"person{place}")
            made.chosen[self.ids[-1]] = persons.as_id(name, data.names[name], data.schema[name])
        for summed in (persons.LOST, *(flag.name for flag in self.flags)):
            made.summed[summed] = nw.col(summed).cast(nw.Int64)
        if unit.own is not None and self.values:
            (columns,) = self.values.values()
            self.own = persons.OwnColumns(unit.own, columns.value, columns.there, "own")
            value, there = made.chosen[columns.value], made.chosen[columns.there]
            made.chosen[self.own.whole] = persons.own_whole(value, there, unit.own)

    def part(self, plan: Plan) -> Part:
        """Return what a plan adds up."""
        asked = [self.asks[ask] for ask in plan.asks if not isinstance(ask, Rows)]
        summed = [self.values[name].count for name in asked_columns(plan)]
        summed += [wrong for name in asked_columns(plan) if (wrong := self.values[name].is_wrong)]
        if plan.unit is not None:
            summed += [persons.LOST, *(flag.name for flag in self.flags)]
        summed += [name for columns in asked for name in columns.summed]
        codes = [columns.code for columns in asked if columns.code is not None]
        wide = {name: name in self.made.wide for name in summed}
        return Part([self.keys[one] for one in plan.by], _once(codes), wide)

    def tally(self, plan: Plan, tables: Tables) -> Tally:
        """Return the answers to a plan from the results of the query."""
        results = {code: self._grouped(plan, table) for code, table in tables.items()}
        first = results[None]
        rows = first.by_group(ROWS)
        if rows.sum() >= _MOST_ROWS:
            raise ArgumentError("The data must have fewer than 2^37 rows. Split it into parts.")
        self._check_values(plan, first)
        found: list[Sum | Integers] = []
        for ask in plan.asks:
            if isinstance(ask, Rows):
                found.append(rows)
            else:
                count = first.by_group(self.values[ask.column].count)
                found.append(self.asks[ask].answer(results, count, np.asarray(rows - count)))
        return Tally(tuple(found))

    def _grouped(self, plan: Plan, table: "DataFrame") -> Grouped:
        """Return a result with the group of each row."""
        places = np.zeros(len(table), dtype=np.int64)
        for grouping in plan.by:
            place_of = self.matches[grouping]
            own = [place_of[entry] for entry in table[self.keys[grouping]].to_list()]
            places = places * len(grouping.keys) + np.array(own, dtype=np.int64)
        return Grouped(table, places, tuple(len(grouping.keys) for grouping in plan.by))

    def _check_values(self, plan: Plan, result: Grouped) -> None:
        """Raise if a row has no id, text that is no number or, unless dropped, no value."""
        if plan.unit is not None:
            check_ids(plan.unit, is_lost=bool(result.integers(persons.LOST).any()))
            for flag in self.flags:
                if result.integers(flag.name).any():
                    raise flag.error(flag.column)
        rows = result.integers(ROWS).sum()
        for name in asked_columns(plan):
            value = self.values[name]
            if value.is_wrong is not None and result.integers(value.is_wrong).any():
                raise MistakeError(plan, name, is_missing=False)
            if plan.missing == "error" and result.integers(value.count).sum() < rows:
                raise MistakeError(plan, name, is_missing=True)


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def check_ids(unit: Unit, *, is_lost: bool) -> None:
    """Raise if rows have no id, and none of them may be a person of its own."""
    if is_lost and unit.without_id == "error":
        raise ArgumentError(
            f"Some rows do not say whose they are: {' or '.join(unit.columns)} is missing. Leave "
            'them out, or take each for a person of its own: without_id="own".'
        )


def asked_columns(plan: Plan) -> list[str]:
    """Return the columns whose values are asked for, each once."""
    return _once(ask.column for ask in plan.asks if not isinstance(ask, Rows))


def wanted_columns(plan: Plan) -> list[str]:
    """Return the columns that a plan reads, each once: values, groups, and who a person is."""
    grouped = [grouping.column for grouping in plan.by]
    return _once([*asked_columns(plan), *grouped, *(plan.unit.columns if plan.unit else ())])
