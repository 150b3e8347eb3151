"""A plan, answered by the engine that holds a frame: one query, whose result is exact integers.

Rows of no declared group are left out before anything else is asked of them. The rest become
integers by `arithmetic`, and are added up for each group and cell. Only the sums leave the engine.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import import_module
from math import prod
from typing import Any, Final

import numpy as np

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, DpnoiseError, import_extra
from dpnoise.core.safe_text import shortened
from dpnoise.statistics.engines import arithmetic, keys, persons
from dpnoise.statistics.engines.checking import check_plan
from dpnoise.statistics.engines.prepared import prepare
from dpnoise.statistics.engines.tables import Table, added, answers, asked_columns, wanted_columns
from dpnoise.statistics.plan import Cells, Edges, Grouping, Plan, Rows, Sums, Tally, Unit

nw = import_extra("narwhals", "engines")

_KINDS: Final = {
    nw.String: keys.TEXT,
    nw.Categorical: keys.TEXT,
    nw.Enum: keys.TEXT,
    nw.Float32: keys.SINGLE,
    nw.Float64: keys.FLOAT,
    nw.Boolean: keys.BOOLEAN,
    nw.Date: keys.DATE,
    nw.Datetime: keys.TIME,
}
HABITS: Final = {
    "polars": arithmetic.Habits(
        adds_in_128_bits=True, casts_integers=True, counts_comparisons=True
    ),
    "duckdb": arithmetic.Habits(
        adds_in_128_bits=True, casts_integers=True, divides_decimals=True, clips=False
    ),
    "pyspark": arithmetic.Habits(casts_integers=True, divides_decimals=True, clips=False),
}
_FEW_EDGES: Final = 33  # With more, a search is quicker than comparing with each.
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.
NO_PERSONS_IN_DASK: Final = (
    "A partition of Dask does not know of a person's rows in others. Take frame.compute(), or "
    "write it to Parquet and take Files."
)
_FRAMES: Final = "a pandas, Polars, Arrow, DuckDB, PySpark or Dask frame"


@dataclass
class Query:
    """The columns that a query makes in three steps, and what it adds up of them.

    Each step may use the names of those before: engines compute a name once.
    """

    chosen: dict[str, Any] = field(default_factory=dict)  # Keys, values, and if there is one.
    wholes: dict[str, Any] = field(default_factory=dict)  # Values in whole grids.
    summed: dict[str, Any] = field(default_factory=dict)  # What is added up.
    codes: dict[str, Any] = field(default_factory=dict)  # What is counted by value.


def tally(frame: Any, plan: Plan) -> Tally:
    """Answer a plan from a frame of any engine that narwhals knows.

    What an engine complains of may quote the data, so nothing but the kind of its error is shown.
    """
    with complaints():
        return answered(frame, plan)


@contextmanager
def complaints() -> Iterator[None]:
    """Say that an engine failed, and show nothing of what it says."""
    try:
        yield
    except (DpnoiseError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        raise ArgumentError(
            f"The engine could not answer: {type(error).__name__}. Is its session or connection "
            "still open, and does every column have a name of its own?"
        ) from None


@dataclass(frozen=True)
class FileColumns:
    """What is known about the columns of a frame that was made of a file.

    Parameters
    ----------
    parse_errors
        Maps each column of parsed text to the column that flags its parse errors.
    parsed
        The columns of groups that are numbers parsed from text: no reader has rounded them.
    """

    parse_errors: Mapping[str, str] = field(default_factory=dict)
    parsed: Collection[str] = ()


def answered(frame: Any, plan: Plan, file: FileColumns | None = None) -> Tally:
    """Answer a plan from a frame; `file` says that it was made of a file."""
    check_plan(plan)
    known = wrapped(frame)
    if known.implementation.is_dask():
        return _by_partition(known.to_native(), plan)
    frame, names = prepare(known, wanted_columns(plan))
    types = dict(frame.collect_schema())
    schema = {name: types[inside] for name, inside in names.items()}
    check_columns(schema, plan)
    matches = [matches_of(grouping, schema[grouping.column], file) for grouping in plan.by]
    own = HABITS.get(frame.implementation.value, arithmetic.Habits())
    habits = replace(
        HABITS.get(_engine_after(frame, plan), arithmetic.Habits()),
        casts_integers=own.casts_integers,
        divides_decimals=own.divides_decimals,
    )
    in_duckdb = frame.implementation.is_duckdb()
    query = query_of(plan, schema, names, file, habits, in_duckdb=in_duckdb)
    by = [f"key{place}" for place in range(len(plan.by))]
    declared = {key: list(places) for key, places in zip(by, matches, strict=True)}
    if query.chosen:
        frame = letter_by_letter(frame.select(**query.chosen))
    late = in_duckdb and plan.unit is None  # It filters first anyway.
    frame = frame if late else only(frame, declared)
    if plan.unit is not None:
        frame = _bounded(frame, plan, plan.unit, query, dict(zip(by, matches, strict=True)))
    for step in (query.wholes, {**query.summed, **query.codes}):
        frame = frame.with_columns(**step) if step else frame
    frame = only(frame, declared) if late else frame
    return answers(plan, _run(frame, by, list(query.codes), list(query.summed)), matches)


def _engine_after(frame: Any, plan: Plan) -> str:
    """Return the engine that adds up: rows of persons go to DuckDB, unless they are in Spark."""
    engine: str = frame.implementation.value
    return engine if plan.unit is None or frame.implementation.is_pyspark() else "duckdb"


def _bounded(
    frame: Any, plan: Plan, unit: Unit, query: Query, matches: Mapping[str, dict[Any, int]]
) -> Any:
    """Keep of each person what counts; a group is one, however many spellings it has."""
    for name, places in matches.items():
        frame = frame.with_columns(**{name: _first_spelling(name, places)})
    chosen = list(query.chosen)
    flags = [name for name in chosen if name.startswith(("wrong", *persons.ID_FLAGS))]
    ids = [name for name in chosen if name.startswith("person")]
    values = [name for name in chosen if name not in {*flags, *ids, *matches}]
    names = persons.Names(ids, list(matches), values, flags)
    groups = prod(len(grouping.keys) for grouping in plan.by)
    rows = persons.bounded(persons.rows_of(frame), unit, names, groups)
    return nw.from_native(rows.relation)


def _first_spelling(name: str, places: Mapping[Any, int]) -> Any:
    """Return a key as the first of its spellings has it."""
    first: dict[int, Any] = {}
    key = nw.col(name)
    for spelling, place in places.items():
        if first.setdefault(place, spelling) != spelling:
            key = nw.when(nw.col(name) == spelling).then(nw.lit(first[place])).otherwise(key)
    return key


def _by_partition(frame: Any, plan: Plan) -> Tally:
    """Answer a plan for each of Dask's partitions, where it lies, and add the answers."""
    if plan.unit is not None:
        raise ArgumentError(NO_PERSONS_IN_DASK)
    dask = import_module("dask")
    parts = [dask.delayed(answered)(part, plan) for part in frame.to_delayed()]
    tallies: tuple[Tally, ...] = dask.compute(*parts)
    return reduce(added, tallies)


def wrapped(frame: Any) -> Any:
    """Return a frame as narwhals has it, or say what is taken for one."""
    try:
        return nw.from_native(frame)
    except TypeError:
        raise ArgumentTypeError(f"Expected {_FRAMES}, got {type(frame).__name__}.") from None


def check_columns(schema: Mapping[str, Any], plan: Plan) -> None:
    """Raise unless all columns of a plan are there, and hold numbers where these are asked for."""
    check_there(wanted_columns(plan), schema)
    for ask in plan.asks:
        if not isinstance(ask, Rows):
            arithmetic.check_numbers(ask.column, schema[ask.column])


def check_there(columns: Iterable[str], schema: Mapping[str, Any]) -> None:
    """Raise if a column is not there."""
    for name in columns:
        if name not in schema:
            there = shortened(", ".join(map(str, schema)), _LONGEST_LIST)
            raise ArgumentError(f"There is no column {name!r}. There are: {there}.")


def matches_of(grouping: Grouping, dtype: Any, file: FileColumns | None) -> dict[Any, int]:
    """Return each value of a column of this type that belongs to a declared key, and its place."""
    limits = arithmetic.limits(check_key(grouping.column, dtype))
    is_parsed = file is not None and grouping.column in file.parsed
    return keys.matches(
        grouping,
        keys.INTEGER if limits else _KINDS[dtype.base_type()],
        limits,
        same_kind=file is None and not grouping.discovered,
        whole_below=None if is_parsed else arithmetic.exact_limit(dtype),
    )


def check_key(column: str, dtype: Any) -> Any:
    """Return the type of a column that can be grouped by."""
    zoned = dtype == nw.Datetime and dtype.time_zone is not None
    if zoned or (arithmetic.limits(dtype) is None and dtype.base_type() not in _KINDS):
        raise ArgumentError(
            f"Column {column!r} holds {arithmetic.kind_of(dtype)}, which is not grouped "
            "by. Convert it to text, integers, floats, booleans, dates or times without a zone "
            "first."
        )
    return dtype


def is_text(dtype: Any) -> bool:
    """Tell whether keys of this type are text."""
    return _KINDS.get(dtype.base_type()) == keys.TEXT


def as_key(name: str, dtype: Any) -> Any:
    """Return a group column as it is compared: text as text, floats of 64 bits."""
    if dtype in {nw.Categorical, nw.Enum}:
        return nw.col(name).cast(nw.String)
    return nw.col(name).cast(nw.Float64) if dtype == nw.Float32 else nw.col(name)


def letter_by_letter(frame: Any) -> Any:
    """Return a frame whose texts are compared as they are: in DuckDB and Spark by no collation.

    Else one row could decide how a group of several spellings is written, and who two persons are.
    """
    if frame.implementation.is_pyspark():
        texts = [name for name, dtype in frame.collect_schema().items() if dtype == nw.String]
        return frame.with_columns(nw.col(*texts).cast(nw.String)) if texts else frame
    if not frame.implementation.is_duckdb():
        return frame
    relation = frame.to_native()
    columns = zip(relation.columns, map(str, relation.types), strict=True)
    plainly = (
        f"{name} COLLATE POSIX AS {name}" if kind == "VARCHAR" else name for name, kind in columns
    )
    return nw.from_native(relation.project(", ".join(plainly)))


def only(frame: Any, declared: Mapping[str, list[Any]]) -> Any:
    """Keep the rows whose keys are declared."""
    for name, values in declared.items():
        if 0.0 in values and isinstance(values[0], float):
            values.append(-0.0)  # Arrow compares their bits.
        if frame.implementation.is_duckdb():
            # As an IN of its own, which it hashes: narwhals would search a list for every row.
            duckdb = import_extra("duckdb", "engines")
            constants = map(duckdb.ConstantExpression, values)
            kept = frame.to_native().filter(duckdb.ColumnExpression(name).isin(*constants))
            frame = nw.from_native(kept)
        elif frame.implementation.is_pyspark():
            native = frame.to_native()
            frame = nw.from_native(native.where(native[name].isin(*spark_literals(values))))
        elif frame.implementation.is_pyarrow():  # narwhals would take uint64 for int64.
            frame = nw.from_native(_arrow_rows_in(frame.to_native(), name, values))
        else:
            frame = frame.filter(nw.col(name).is_in(values))
    return frame


def _arrow_rows_in(table: Any, name: str, values: list[Any]) -> Any:
    """Return the rows of an Arrow table whose key is one of some values."""
    arrow, column = import_module("pyarrow"), table[name]
    compute = import_module("pyarrow.compute")
    return table.filter(compute.is_in(column, value_set=arrow.array(values, column.type)))


def spark_literals(values: list[Any]) -> list[Any]:
    """Return keys as Spark has them; dates from text, because it cannot take those before 1000."""
    lit = import_module("pyspark.sql.functions").lit
    return [_spark_literal(value, lit) for value in values]


def _spark_literal(value: Any, lit: Callable[[Any], Any]) -> Any:
    if isinstance(value, dt.datetime):
        return lit(value.isoformat(sep=" ")).cast("timestamp_ntz")
    return lit(value.isoformat()).cast("date") if isinstance(value, dt.date) else lit(value)


def query_of(
    plan: Plan,
    schema: Mapping[str, Any],
    names: Mapping[str, str],
    file: FileColumns | None,
    habits: arithmetic.Habits,
    *,
    in_duckdb: bool = False,
) -> Query:
    """Write down what a plan needs of each row."""
    query = Query()
    parse_errors = {} if file is None else file.parse_errors
    for place, grouping in enumerate(plan.by):
        name = grouping.column
        query.chosen[f"key{place}"] = as_key(names[name], schema[name])
    for number, name in enumerate(asked_columns(plan)):
        column = nw.col(names[name])
        query.chosen[f"there{number}"] = arithmetic.present(column, schema[name])
        query.chosen[f"value{number}"] = arithmetic.filled(column, schema[name], habits)
        query.summed[f"count{number}"] = nw.col(f"there{number}").cast(nw.Int64)
        if name in parse_errors:
            query.chosen[f"wrong{number}"] = nw.col(parse_errors[name])
            query.summed[f"wrong{number}"] = nw.col(f"wrong{number}").cast(nw.Int64)
    for place, ask in enumerate(plan.asks):
        if not isinstance(ask, Rows):
            _add(query, place, asked_columns(plan).index(ask.column), ask, habits)
    if plan.unit is not None:
        ambiguous = None if file is not None else keys.ambiguous_text(in_duckdb=in_duckdb)
        flags = persons.id_flags(plan.unit, schema, names, ambiguous)
        query.summed |= {flag: nw.col(flag).cast(nw.Int64) for flag in flags}
        query.chosen |= flags
        _add_persons(query, plan.unit, schema, names, habits)
    return query


def _add_persons(
    query: Query,
    unit: Unit,
    schema: Mapping[str, Any],
    names: Mapping[str, str],
    habits: arithmetic.Habits,
) -> None:
    """Write down who the person of a row is, and what the row adds to the person's own value."""
    for place, name in enumerate(unit.columns):
        query.chosen[f"person{place}"] = persons.as_id(name, names[name], schema[name])
    query.summed[persons.LOST] = nw.col(persons.LOST).cast(nw.Int64)
    if unit.own is not None and "value0" in query.chosen:
        value, there = query.chosen["value0"], query.chosen["there0"]
        query.chosen[persons.OWN_WHOLE] = persons.own_whole(value, there, unit.own, habits)


def _add(
    query: Query,
    place: int,
    number: int,
    ask: Sums | Cells | Edges,
    habits: arithmetic.Habits,
) -> None:
    """Write down what one ask needs."""
    value = nw.col(f"value{number}")
    if isinstance(ask, Edges):
        if habits.counts_comparisons and len(ask.edges) <= _FEW_EDGES:
            above = arithmetic.comparisons(value, ask)
            query.summed |= {f"above{place}edge{edge}": each for edge, each in enumerate(above)}
        else:
            query.codes[f"cell{place}"] = arithmetic.cell_between(value, ask)
        return
    whole = nw.col(f"whole{place}")
    twice = arithmetic.doubled(value, ask)
    query.wholes[f"whole{place}"] = arithmetic.clamped(twice, ask, habits)
    if isinstance(ask, Cells):
        query.codes[f"cell{place}"] = arithmetic.cell(whole, ask)
        return
    parts = {"sum": whole, "square": whole * whole} if ask.squares else {"sum": whole}
    for name, part in parts.items():
        for half, summand in arithmetic.summands(part, habits).items():
            query.summed[f"{name}{place}{half}"] = summand


def _run(frame: Any, by: list[str], codes: list[str], summed: list[str]) -> list[Table]:
    """Add up by the keys and each of the codes, in one pass where the engine can."""
    run: Callable[..., list[Table]] = _RUNS.get(frame.implementation.value, _one_by_one)
    return run(frame, by, codes, summed)


def _one_by_one(frame: Any, by: list[str], codes: list[str], summed: list[str]) -> list[Table]:
    """Add up, then count by each code in turn: best where the rows are in memory."""
    return [table_of(_collected(part), code) for code, part in results_of(frame, by, codes, summed)]


def results_of(
    frame: Any, by: list[str], codes: list[str], summed: list[str]
) -> Iterator[tuple[str | None, Any]]:
    """Yield the results, sums first, and what each is about."""
    yield None, _added(frame, by, summed)
    for code in codes:
        yield code, _added(frame, [*by, code], [])


def _added(frame: Any, by: list[str], summed: list[str]) -> Any:
    sums = [nw.len().alias("rows"), *(nw.col(name).sum().alias(name) for name in summed)]
    return frame.group_by(by).agg(*sums) if by else frame.select(*sums)


def _collected(frame: Any) -> Any:
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def table_of(frame: Any, code: str | None) -> Table:
    """Return a result, and the code that it is about."""
    columns = {name: frame[name] for name in frame.columns}
    return Table(
        code,
        {
            name: column.to_list() if name.startswith("key") else _integers(column)
            for name, column in columns.items()
        },
    )


def _integers(column: Any) -> Any:
    """Return sums as an array, of Python's integers if they may be larger than 64 bits."""
    if column.dtype.is_integer() and column.dtype != nw.Int128 and len(column) > 1:
        return column.to_numpy().astype(np.int64)
    entries = column.to_list()  # The sum of no rows is null.
    kind = np.int64 if column.dtype.is_integer() and column.dtype != nw.Int128 else object
    return np.array([int(entry or 0) for entry in entries], dtype=kind)


def is_wide(name: str) -> bool:
    """Tell whether a sum may be larger than 64 bits; the others are counts."""
    return name.startswith(("sum", "square"))


def _in_duckdb(frame: Any, by: list[str], codes: list[str], summed: list[str]) -> list[Table]:
    """Add up by all codes in one scan: a row of the result has the code that it is about."""
    columns = ", ".join([*by, *codes, "count(*) AS rows", *duckdb_sums(summed)])
    sets = ", ".join(f"({', '.join([*by, code])})" for code in codes)
    grouped = f"GROUPING SETS ({sets})" if codes else ", ".join(by)
    result = _collected(nw.from_native(frame.to_native().aggregate(columns, grouped)))
    return _apart(result, codes)


def duckdb_sums(summed: list[str]) -> list[str]:
    """Return sums as SQL. They have 128 bits, for which Arrow has decimals alone."""
    kinds = {name: "DECIMAL(38, 0)" if is_wide(name) else "BIGINT" for name in summed}
    return [f"CAST(sum({name}) AS {kind}) AS {name}" for name, kind in kinds.items()]


def _in_spark(frame: Any, by: list[str], codes: list[str], summed: list[str]) -> list[Table]:
    """Add up by all codes in one scan, as in DuckDB."""
    if not codes:
        return _one_by_one(frame, by, codes, summed)
    functions = import_module("pyspark.sql.functions")
    column = functions.col  # By name: those of a frame are ambiguous where it was joined.
    sets = [[column(name) for name in [*by, code]] for code in codes]
    added = [functions.count("*").alias("rows")]
    added += [functions.sum(column(name)).alias(name) for name in summed]
    grouped = frame.to_native().groupingSets(sets, *(column(name) for name in [*by, *codes]))
    result = grouped.agg(*added)
    return _apart(_collected(nw.from_native(result)), codes)


def _apart(result: Any, codes: list[str]) -> list[Table]:
    """Take a result of grouping sets apart: a code is null where it was not grouped by."""
    if not codes:
        return [table_of(result, None)]
    return [
        table_of(result.filter(~nw.col(code).is_null()).drop([c for c in codes if c != code]), code)
        for code in codes
    ]


def _in_polars(frame: Any, by: list[str], codes: list[str], summed: list[str]) -> list[Table]:
    """Let Polars stream, and share the steps that all results begin with."""
    wide = filter(is_wide, summed)
    frame = frame.lazy().with_columns(nw.col(name).cast(nw.Int128) for name in wide)
    about, parts = zip(*results_of(frame, by, codes, summed), strict=True)
    polars = nw.get_native_namespace(frame)
    results = polars.collect_all([part.to_native() for part in parts], engine="streaming")
    return [table_of(nw.from_native(one), code) for code, one in zip(about, results, strict=True)]


_RUNS: Final[dict[str, Callable[..., list[Table]]]] = {
    "duckdb": _in_duckdb,
    "pyspark": _in_spark,
    "polars": _in_polars,
}
