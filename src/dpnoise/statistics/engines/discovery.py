"""Count the persons in each group of columns. The counts have no noise and must not be published.

A group is a combination of keys, one of each column. Rows without one of them are in no group.
Every group with a person leaves the engine, however many there are. Noise decides later which
groups appear. A group without a person cannot be discovered.

The label of a group is text that does not depend on the column's type: labels are published, and a
type may depend on one row. A number is its decimal digits, a boolean "true" or "false", a date
2024-02-29, a time 2024-02-29 10:30:00, and a time at midnight its date.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import narwhals as nw
import numpy as np
from narwhals.dtypes import DType

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import arithmetic, frames, keys, persons
from dpnoise.statistics.engines.arithmetic import FLOATS, Frame
from dpnoise.statistics.engines.checking import check_unit
from dpnoise.statistics.engines.runners import Data, FileColumns, as_narwhals, prepare_data
from dpnoise.statistics.plan import Grouping, PersonCounts, Unit


def count_persons_by_group(
    frame: object,
    columns: Sequence[str],
    unit: Unit | None,
    *,
    file: FileColumns | None = None,
    text: Collection[str] = (),
) -> PersonCounts:
    """Return the groups of columns and the number of persons in each.

    `file` describes the file that the frame reads, if there is one. `text` columns must hold text.
    """
    if unit is not None:
        check_unit(unit, grouped=columns, value_columns=[])
    narwhals_frame = as_narwhals(frame)
    if narwhals_frame.implementation.is_dask():
        raise ArgumentError(frames.NO_PERSONS_IN_DASK)
    ids = () if unit is None else unit.columns
    query = frames.Query(data := prepare_data(narwhals_frame, [*columns, *ids], file))
    key_types = _add_keys(query, columns, text)
    if unit is not None:
        query.add_persons(unit)
    selected = data.runner.without_collation(data.frame.select(**query.expressions.chosen))
    names = persons.Names(query.ids, [*key_types], [], [flag.name for flag in query.flags])
    rows = persons.rows_of(_with_keys(selected, key_types))
    labels = [_label(key, dtype, rows.dialect.text) for key, dtype in key_types.items()]

    def count(part: persons.InDuckDB) -> dict[str, list[Any]]:
        counted = _counts(part, unit, names).project([*labels, "persons", *names.flags])
        return as_narwhals(counted.relation).lazy().collect().to_dict(as_series=False)

    totals = Counter[tuple[str, ...]]()
    results = [count(rows)] if unit is None else persons.answer_in_parts(rows, names, file, count)
    for result in results:
        persons.check_id_flags(query.flags, result)
        groups = zip(*(result[key] for key in key_types), strict=True)
        for group, number in zip(groups, result["persons"], strict=True):
            totals[group] += int(number)
    _check_groups(totals, columns, text, data)
    return PersonCounts(list(totals), np.array(list(totals.values()), dtype=np.int64))


def _add_keys(
    query: frames.Query, columns: Sequence[str], text: Collection[str]
) -> dict[str, DType]:
    """Add the keys of columns to a query; return their names with the types of the columns."""
    data, key_types = query.data, dict[str, DType]()
    for index, column in enumerate(columns):
        key_types[f"key{index}"] = dtype = keys.check_key_type(column, data.schema[column])
        if column in text and not keys.is_text(dtype):
            raise keys.not_text_error(column)
        query.expressions.chosen[f"key{index}"] = keys.key_expression(data.column(column), dtype)
    return key_types


def _with_keys(frame: Frame, key_types: Mapping[str, DType]) -> Frame:
    """Keep the rows with all keys. A key that is null, NaN or empty text is missing."""
    for key, dtype in key_types.items():
        frame = frame.filter(~keys.is_missing(nw.col(key), dtype))
    return frame


def _label(key: str, dtype: DType, text: str) -> str:
    """Return the SQL of a key's label. It is null for a float that may have been rounded."""
    label = f"CAST({key} AS {text})"
    if dtype in FLOATS:
        limit = arithmetic.exact_limit(dtype)
        exact = f"{key} = floor({key}) AND abs({key}) < {limit}"
        label = f"CASE WHEN {exact} THEN CAST(CAST({key} AS BIGINT) AS {text}) END"
    if dtype == nw.Datetime:
        label = f"regexp_replace(CAST({key} AS {text}), ' 00:00:00$', '')"
    return f"{label} AS {key}"


def _counts(rows: persons.InDuckDB, unit: Unit | None, names: persons.Names) -> persons.InDuckDB:
    """Count the persons of each group. Rows with a missing or refused id are counted separately."""
    count, without_flags = "count(*) AS persons", [f"max(0) AS {name}" for name in names.flags]
    if unit is None:
        return rows.group_by(names.keys, [count])
    has_id = " AND ".join(f"{name} = 0" for name in names.flags)
    chosen = persons.choose_groups(rows.filter_rows(has_id), unit.max_groups, names)
    with_flags = [f"max({name}) AS {name}" for name in names.flags]
    others = rows.filter_rows(f"NOT ({has_id})").group_by(names.keys, [count, *with_flags])
    return chosen.group_by(names.keys, [count, *without_flags]).union_all(others)


def _check_groups(
    groups: Collection[tuple[str, ...]],
    columns: Sequence[str],
    text: Collection[str],
    data: Data,
) -> None:
    """Raise unless the labels of every column can be declared as groups."""
    for index, column in enumerate(columns):
        ambiguous = None if column in text else data.ambiguous_text
        different = dict.fromkeys(group[index] for group in groups)
        _check_labels(column, list(different), data.schema[column], ambiguous)


def _check_labels(column: str, labels: list[str], dtype: DType, ambiguous: str | None) -> None:
    """Raise unless every label can be declared as a group: a second scan looks it up.

    A label is None for a float that may have been rounded. `ambiguous` is the pattern of text that
    must be declared, if there is one.
    """
    if None in labels:
        raise keys.inexact_error(column)
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
