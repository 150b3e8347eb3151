"""Count the persons in each group of a column. The counts have no noise and must not be published.

Every group with a person leaves the engine, however many there are. Noise decides later which
groups appear. A group without a person cannot be discovered.

The label of a group is text that does not depend on the column's type: labels are published, and a
type may depend on one row. A number is its decimal digits, a boolean "true" or "false", a date
2024-02-29, a time 2024-02-29 10:30:00, and a time at midnight its date.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import narwhals as nw
import numpy as np
from narwhals.dtypes import DType

from dpnoise.core.arrays import Integers
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import arithmetic, frames, keys, persons
from dpnoise.statistics.engines.arithmetic import FLOATS, Frame
from dpnoise.statistics.engines.checking import check_unit
from dpnoise.statistics.engines.runners import FileColumns, as_narwhals, prepare_data
from dpnoise.statistics.plan import Grouping, Unit

_KEY: Final = "key0"


@dataclass(frozen=True)
class PersonCounts:
    """The labels of groups, and the number of persons in each."""

    keys: list[str]
    persons: Integers


def count_persons_by_group(
    frame: object,
    column: str,
    unit: Unit | None,
    *,
    file: FileColumns | None = None,
    is_text: bool = False,
) -> PersonCounts:
    """Return the groups of a column and the number of persons in each.

    `file` describes the file that the frame reads, if there is one. `is_text` requires text.
    """
    if unit is not None:
        check_unit(unit, grouped=[column], value_columns=[])
    narwhals_frame = as_narwhals(frame)
    if narwhals_frame.implementation.is_dask():
        raise ArgumentError(frames.NO_PERSONS_IN_DASK)
    ids = () if unit is None else unit.columns
    data = prepare_data(narwhals_frame, [column, *ids], file)
    dtype = keys.check_key_type(column, data.schema[column])
    if is_text and not keys.is_text(dtype):
        raise keys.not_text_error(column)
    query = frames.Query(data)
    query.expressions.chosen[_KEY] = keys.key_expression(data.column(column), dtype)
    if unit is not None:
        query.add_persons(unit)
    selected = data.runner.without_collation(data.frame.select(**query.expressions.chosen))
    names = persons.Names(query.ids, [_KEY], [], [flag.name for flag in query.flags])
    rows = persons.rows_of(_with_key(selected, dtype))
    label = f"{_label(dtype, rows.dialect.text)} AS {_KEY}"

    def count(part: persons.InDuckDB) -> dict[str, list[Any]]:
        counted = _counts(part, unit, names).project([label, "persons", *names.flags])
        return as_narwhals(counted.relation).lazy().collect().to_dict(as_series=False)

    totals: dict[str, int] = {}
    results = [count(rows)] if unit is None else persons.answer_in_parts(rows, names, file, count)
    for result in results:
        persons.check_id_flags(query.flags, result)
        if None in result[_KEY]:
            raise keys.inexact_error(column)
        for key, number in zip(result[_KEY], result["persons"], strict=True):
            totals[key] = totals.get(key, 0) + int(number)
    _check_labels(column, list(totals), dtype, None if is_text else data.ambiguous_text)
    return PersonCounts(list(totals), np.array(list(totals.values()), dtype=np.int64))


def _with_key(frame: Frame, dtype: DType) -> Frame:
    """Keep the rows with a key. A key that is null, NaN or empty text is missing."""
    frame = frame.filter(~nw.col(_KEY).is_null())
    if dtype in FLOATS:
        return frame.filter(~nw.col(_KEY).is_nan()).with_columns(nw.col(_KEY) + 0.0)
    return frame.filter(nw.col(_KEY) != "") if keys.is_text(dtype) else frame


def _label(dtype: DType, text: str) -> str:
    """Return the SQL of a key's label. It is null for a float that may have been rounded."""
    if dtype in FLOATS:
        limit = arithmetic.exact_limit(dtype)
        exact = f"{_KEY} = floor({_KEY}) AND abs({_KEY}) < {limit}"
        return f"CASE WHEN {exact} THEN CAST(CAST({_KEY} AS BIGINT) AS {text}) END"
    if dtype == nw.Datetime:
        return f"regexp_replace(CAST({_KEY} AS {text}), ' 00:00:00$', '')"
    return f"CAST({_KEY} AS {text})"


def _counts(rows: persons.InDuckDB, unit: Unit | None, names: persons.Names) -> persons.InDuckDB:
    """Count the persons of each group. Rows with a missing or refused id are counted separately."""
    count, without_flags = "count(*) AS persons", [f"max(0) AS {name}" for name in names.flags]
    if unit is None:
        return rows.group_by([_KEY], [count])
    has_id = " AND ".join(f"{name} = 0" for name in names.flags)
    chosen = persons.choose_groups(rows.filter_rows(has_id), unit.max_groups, names)
    with_flags = [f"max({name}) AS {name}" for name in names.flags]
    others = rows.filter_rows(f"NOT ({has_id})").group_by([_KEY], [count, *with_flags])
    return chosen.group_by([_KEY], [count, *without_flags]).union_all(others)


def _check_labels(column: str, labels: list[str], dtype: DType, ambiguous: str | None) -> None:
    """Raise unless every label can be declared as a group: a second scan looks it up.

    `ambiguous` is the pattern of text that must be declared, if there is one.
    """
    restored: list[str] = []
    with suppress(ArgumentError):
        values = keys.match_keys(Grouping(column, tuple(labels), discovered=True), dtype, None)
        restored = [keys.label_of(value) for value in values]
    if restored != labels:
        raise ArgumentError(
            f"Column {column!r} holds groups that cannot be discovered, such as dates beyond the "
            "year 9999 or times finer than a microsecond. Convert it to text first."
        )
    if ambiguous is not None and any(keys.is_ambiguous(label, ambiguous) for label in labels):
        raise keys.ambiguous_error(column)
