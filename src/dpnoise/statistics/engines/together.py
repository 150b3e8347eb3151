"""Several plans, answered in one scan of the data where the engine can.

The plans become one, with all their asks and groupings, each once. In it a key that is not declared
is null, and beside each key stands whether it is declared. So every row of the result tells, by
what is not null in it, which plan and which cells it is about.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from dpnoise.core.errors import import_extra
from dpnoise.statistics.engines.arithmetic import Habits
from dpnoise.statistics.engines.checking import check_plan
from dpnoise.statistics.engines.frames import (
    HABITS,
    FileColumns,
    Query,
    answered,
    check_columns,
    complaints,
    duckdb_sums,
    is_wide,
    letter_by_letter,
    matches_of,
    query_of,
    results_of,
    spark_literals,
    table_of,
    wrapped,
)
from dpnoise.statistics.engines.prepared import prepare
from dpnoise.statistics.engines.tables import Table, answers, asked_columns, wanted_columns
from dpnoise.statistics.plan import Plan, Tally

nw = import_extra("narwhals", "engines")

_NUMBERED: Final = re.compile(r"([a-z]+)(\d+)(.*)")


def tally_all(frame: Any, plans: Sequence[Plan]) -> list[Tally]:
    """Answer plans from a frame of any engine that narwhals knows."""
    with complaints():
        return answered_all(frame, plans)


def answered_all(frame: Any, plans: Sequence[Plan], file: FileColumns | None = None) -> list[Tally]:
    """Answer plans from a frame; `file` says that it was made of a file."""
    run = _RUNS.get(wrapped(frame).implementation.value)
    if run is None or len(plans) == 1 or not in_one_scan(plans):
        return [answered(frame, plan, file) for plan in plans]
    return _united(frame, plans, file, run)


def in_one_scan(plans: Sequence[Plan]) -> bool:
    """Tell whether these plans can be answered so: one at a time can, and those that count rows."""
    return len(plans) == 1 or all(plan.unit is None for plan in plans)


@dataclass(frozen=True)
class _Part:
    """What one plan wants, by its own names: what these are called in the frame of all plans."""

    keys: dict[str, str]
    codes: dict[str, str]
    summed: dict[str, str]

    @property
    def sets(self) -> list[list[str]]:
        """What to group by, for each of its results."""
        keys = [name for key in self.keys.values() for name in (key, f"is_{key}")]
        return [[*keys, code] for code in self.codes.values()] or [keys]


_Run = Callable[[Any, Query, list[_Part]], list[list[Table]]]


def _united(frame: Any, plans: Sequence[Plan], file: FileColumns | None, run: _Run) -> list[Tally]:
    for plan in plans:
        check_plan(plan)
    asks = tuple(dict.fromkeys(ask for plan in plans for ask in plan.asks))
    by = tuple(dict.fromkeys(grouping for plan in plans for grouping in plan.by))
    whole = Plan(asks, by, plans[0].missing)
    frame, names = prepare(wrapped(frame), wanted_columns(whole))
    types = dict(frame.collect_schema())
    schema = {name: types[inside] for name, inside in names.items()}
    check_columns(schema, whole)
    matches = {grouping: matches_of(grouping, schema[grouping.column], file) for grouping in by}
    habits = HABITS.get(frame.implementation.value, Habits())

    def query(of: Plan) -> Query:
        return query_of(of, schema, names, file, habits)

    declared = {f"key{place}": list(matches[grouping]) for place, grouping in enumerate(by)}
    parts = [_part(whole, plan, query(plan)) for plan in plans]
    results = run(_computed(frame, query(whole), declared), query(whole), parts)
    return [
        answers(plan, tables, [matches[grouping] for grouping in plan.by])
        for plan, tables in zip(plans, results, strict=True)
    ]


def _part(whole: Plan, plan: Plan, query: Query) -> _Part:
    keys = [f"key{place}" for place in range(len(plan.by))]
    return _Part(
        *(
            {name: _name_in(whole, plan, name) for name in made}
            for made in (keys, query.codes, query.summed)
        )
    )


def _name_in(whole: Plan, plan: Plan, name: str) -> str:
    """Return what all plans together call a column of one of them: numbers are places in a plan."""
    found = _NUMBERED.fullmatch(name)
    assert found is not None  # noqa: S101 - for the type checker
    kind, number, rest = found[1], int(found[2]), found[3]
    if kind == "key":
        place = whole.by.index(plan.by[number])
    elif kind in {"count", "wrong"}:
        place = asked_columns(whole).index(asked_columns(plan)[number])
    else:
        place = whole.asks.index(plan.asks[number])
    return f"{kind}{place}{rest}"


def _computed(frame: Any, query: Query, declared: Mapping[str, list[Any]]) -> Any:
    """Return the frame with all that is added up of a row, and its keys where they are declared."""
    frame = letter_by_letter(frame.select(**query.chosen)) if query.chosen else frame
    for key, values in declared.items():
        frame = _marked(frame, key, values)
    masked = {key: nw.when(nw.col(f"is_{key}")).then(nw.col(key)) for key in declared}
    for step in (query.wholes, {**masked, **query.summed, **query.codes}):
        frame = frame.with_columns(**step) if step else frame
    return frame


def _marked(frame: Any, key: str, values: list[Any]) -> Any:
    """Return the frame with one more column: whether a key is declared, which a null is not."""
    there = f"is_{key}"
    if frame.implementation.is_pyspark():
        native = frame.to_native()
        column = native[key]
        declared = column.isin(*spark_literals(values)) & column.isNotNull()
        return nw.from_native(native.withColumn(there, declared))
    if not frame.implementation.is_duckdb():
        column = nw.col(key)
        return frame.with_columns(**{there: column.is_in(values) & ~column.is_null()})
    # As an IN of its own, which it hashes: narwhals would search a list for every row.
    duckdb = import_extra("duckdb", "engines")
    column = duckdb.ColumnExpression(key)
    declared = column.isin(*map(duckdb.ConstantExpression, values)) & column.isnotnull()
    return nw.from_native(frame.to_native().select(duckdb.StarExpression(), declared.alias(there)))


def _in_duckdb(frame: Any, query: Query, parts: list[_Part]) -> list[list[Table]]:
    every = _grouped_by(parts)
    columns = ", ".join([*every, "count(*) AS rows", *duckdb_sums(list(query.summed))])
    sets = ", ".join(f"({', '.join(one)})" for one in _sets(parts))
    result = nw.from_native(frame.to_native().aggregate(columns, f"GROUPING SETS ({sets})"))
    collected = result.collect()  # Once: each time would be another scan.
    return [_apart(collected, part, every) for part in parts]


def _in_spark(frame: Any, query: Query, parts: list[_Part]) -> list[list[Table]]:
    functions = import_module("pyspark.sql.functions")
    every, native = _grouped_by(parts), frame.to_native()
    added = [functions.count("*").alias("rows")]
    added += [functions.sum(native[name]).alias(name) for name in query.summed]
    sets = [[native[name] for name in one] for one in _sets(parts)]
    result = native.groupingSets(sets, *(native[name] for name in every)).agg(*added)
    collected = nw.from_native(result).collect()
    return [_apart(collected, part, every) for part in parts]


def _sets(parts: list[_Part]) -> list[list[str]]:
    """Return what to group by, each once: what is there twice would be counted twice."""
    return list({frozenset(one): one for part in parts for one in part.sets}.values())


def _grouped_by(parts: list[_Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for one in part.sets for name in one))


def _apart(result: Any, part: _Part, every: list[str]) -> list[Table]:
    """Take from the result of grouping sets what is about one plan."""
    tables = []
    about_codes: list[str | None] = list(part.codes) or [None]
    for code, grouped in zip(about_codes, part.sets, strict=True):
        left_out = [nw.col(name).is_null() for name in every if name not in grouped]
        declared = [nw.col(f"is_{key}") for key in part.keys.values()]
        there = [] if code is None else [~nw.col(part.codes[code]).is_null()]
        conditions = [*left_out, *declared, *there]
        about = result.filter(*conditions) if conditions else result
        tables.append(table_of(_renamed(about, part, code), code))
    return tables


def _renamed(about: Any, part: _Part, code: str | None) -> Any:
    """Return the columns of a result under the names of its own plan."""
    codes = {} if code is None else {code: part.codes[code]}
    names = {"rows": "rows", **part.keys, **codes, **part.summed}
    return about.select(
        **{own: nw.col(name) for own, name in names.items() if name in about.columns}
    )


def _in_polars(frame: Any, query: Query, parts: list[_Part]) -> list[list[Table]]:
    """Let Polars stream, and share the steps that all results begin with."""
    wide = filter(is_wide, query.summed)
    frame = frame.lazy().with_columns(nw.col(name).cast(nw.Int128) for name in wide)
    lazy: list[Any] = []
    for part in parts:
        declared = [nw.col(f"is_{key}") for key in part.keys.values()]
        kept = frame.filter(*declared) if declared else frame
        grouped = (list(part.keys.values()), list(part.codes.values()), list(part.summed.values()))
        lazy += [one.to_native() for _, one in results_of(kept, *grouped)]
    collected = iter(nw.get_native_namespace(frame).collect_all(lazy, engine="streaming"))
    return [
        [
            table_of(_renamed(nw.from_native(next(collected)), part, code), code)
            for code in (None, *part.codes)
        ]
        for part in parts
    ]


_RUNS: Final[dict[str, _Run]] = {"duckdb": _in_duckdb, "pyspark": _in_spark, "polars": _in_polars}
