"""Count the persons in each group of a column. The counts have no noise and must not be published.

Every group with a person leaves the engine, however many there are. Noise decides later which
groups appear. A group without a person cannot be discovered.

The label of a group is text that does not depend on the column's type: labels are published, and a
type may depend on one row. A number is its decimal digits, a boolean "true" or "false", a date
2024-02-29, a time 2024-02-29 10:30:00, and a time at midnight its date.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from dpnoise.core.arrays import Integers
from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import arithmetic, frames, keys, persons
from dpnoise.statistics.engines.arithmetic import FLOATS
from dpnoise.statistics.engines.checking import check_unit
from dpnoise.statistics.engines.persons import LOST, IdFlag, Names
from dpnoise.statistics.engines.runners import as_narwhals
from dpnoise.statistics.plan import Grouping, Unit

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.dtypes import DType

    from dpnoise.statistics.engines.arithmetic import DataFrame
    from dpnoise.statistics.engines.runners import Frame
else:
    nw = import_extra("narwhals", "engines")

_KEY: Final = "key0"


@dataclass(frozen=True)
class PersonCounts:
    """The labels of groups, and the number of persons in each."""

    keys: list[str]
    persons: Integers


def count_persons_by_group(
    frame: object, column: str, unit: Unit | None, text: Collection[str]
) -> PersonCounts:
    """Return the groups of a column and the number of persons in each."""
    with frames.replace_engine_errors():
        result = count_persons_in_frame(frame, column, unit, is_text=column in text)
    in_duckdb = as_narwhals(frame).implementation.is_duckdb()
    if column not in text and any(keys.is_ambiguous(k, in_duckdb=in_duckdb) for k in result.keys):
        raise keys.ambiguous_error(column)
    return result


def count_persons_in_frame(
    frame: object,
    column: str,
    unit: Unit | None,
    *,
    file: frames.FileColumns | None = None,
    is_text: bool = False,
) -> PersonCounts:
    """Return the same without replacing errors; `is_text` requires a column of text."""
    if unit is not None:
        check_unit(unit, grouped=[column], value_columns=[])
    narwhals_frame = as_narwhals(frame)
    if narwhals_frame.implementation.is_dask():
        raise ArgumentError(frames.NO_PERSONS_IN_DASK)
    columns = () if unit is None else unit.columns
    data = frames.prepare_data(narwhals_frame, [column, *columns], file)
    dtype = keys.check_key_type(column, data.schema[column])
    if is_text and not keys.is_text(dtype):
        raise keys.not_text_error(column)
    expressions = {_KEY: keys.key_expression(data.names[column], dtype)}
    for index, name in enumerate(columns):
        expressions[f"person{index}"] = persons.as_id(name, data.names[name], data.schema[name])
    ids, flags = list(expressions)[1:], list[IdFlag]()
    if unit is not None:
        flags = persons.id_flags(unit, data.schema, data.names, data.ambiguous_text)
        expressions |= {flag.name: flag.is_wrong for flag in flags}
    selected = data.runner.without_collation(data.frame.select(**expressions))
    names = Names(ids, [_KEY], [], [flag.name for flag in flags])
    rows = _counts(persons.rows_of(_with_key(selected, dtype)), unit, names)
    label = f"{_label(dtype, rows.dialect.text)} AS {_KEY}"
    rows = rows.project([label, "persons", LOST, *names.flags])
    result = as_narwhals(rows.relation).lazy().collect()
    _check(result, column, unit, flags)
    totals: dict[str, int] = {}
    for key, number in zip(result[_KEY].to_list(), result["persons"].to_list(), strict=True):
        totals[key] = totals.get(key, 0) + int(number)
    _check_labels(column, list(totals), dtype)
    return PersonCounts(list(totals), np.array(list(totals.values()), dtype=np.int64))


def _with_key(frame: "Frame", dtype: "DType") -> "Frame":
    """Keep the rows with a key. A key that is null, NaN or empty text is missing."""
    frame = frame.filter(~nw.col(_KEY).is_null())
    if dtype in FLOATS:
        return frame.filter(~nw.col(_KEY).is_nan()).with_columns(nw.col(_KEY) + 0.0)
    return frame.filter(nw.col(_KEY) != "") if keys.is_text(dtype) else frame


def _label(dtype: "DType", text: str) -> str:
    """Return the SQL of a key's label. It is null for a float that may have been rounded."""
    if dtype in FLOATS:
        limit = arithmetic.exact_limit(dtype)
        exact = f"{_KEY} = floor({_KEY}) AND abs({_KEY}) < {limit}"
        return f"CASE WHEN {exact} THEN CAST(CAST({_KEY} AS BIGINT) AS {text}) END"
    if dtype == nw.Datetime:
        return f"regexp_replace(CAST({_KEY} AS {text}), ' 00:00:00$', '')"
    return f"CAST({_KEY} AS {text})"


def _counts(rows: persons.InDuckDB, unit: Unit | None, names: Names) -> persons.InDuckDB:
    """Count the persons of each group. Rows with a missing or refused id are counted separately."""
    errors = [LOST, *names.flags]
    without_flags = _count_and_flags(dict.fromkeys(errors, "0"))
    if unit is None:
        return rows.group_by([_KEY], without_flags)
    rows = persons.flag_rows_without_id(rows, names)
    has_id = " AND ".join(f"{name} = 0" for name in errors)
    chosen = persons.choose_groups(rows.filter_rows(has_id), unit.max_groups, names)
    with_flags = _count_and_flags({name: name for name in errors})
    others = rows.filter_rows(f"NOT ({has_id})").group_by([_KEY], with_flags)
    return chosen.group_by([_KEY], without_flags).union_all(others)


def _count_and_flags(flags: Mapping[str, str]) -> list[str]:
    return ["count(*) AS persons", *(f"max({value}) AS {name}" for name, value in flags.items())]


def _check(result: "DataFrame", column: str, unit: Unit | None, flags: list[IdFlag]) -> None:
    """Raise if an id is missing or not exact, or if a key may have been rounded."""
    if unit is not None:
        frames.check_ids(unit, is_lost=any(result[LOST].to_list()))
    for flag in flags:
        if any(result[flag.name].to_list()):
            raise flag.error(flag.column)
    if any(key is None for key in result[_KEY].to_list()):
        raise keys.inexact_error(column)


def _check_labels(column: str, labels: list[str], dtype: "DType") -> None:
    """Raise unless every label can be declared as a group: a second scan looks it up."""
    restored: list[str] = []
    with suppress(ArgumentError):
        values = keys.match_keys(Grouping(column, tuple(labels), discovered=True), dtype, None)
        restored = [keys.label_of(value) for value in values]
    if restored != labels:
        raise ArgumentError(
            f"Column {column!r} holds groups that cannot be discovered, such as dates beyond the "
            "year 9999 or times finer than a microsecond. Convert it to text first."
        )
