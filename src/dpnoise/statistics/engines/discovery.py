"""The groups of a column, and how many persons are in each: before noise, so not for publication.

Every group that has a person leaves the engine, however many there are: noise decides which appear,
and a group that nobody is in could not be found without a list.

Groups are labelled by text, which does not depend on the column's type: a number is its decimal
digits, a truth value "true" or "false", a date 2024-02-29, a time 2024-02-29 10:30:00, at midnight
its date. A type may depend on one row, and labels are published.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import arithmetic, frames, keys, persons
from dpnoise.statistics.engines.checking import check_unit
from dpnoise.statistics.engines.persons import AMBIGUOUS, ID_FLAGS, INEXACT, LOST, Names
from dpnoise.statistics.engines.prepared import prepare
from dpnoise.statistics.engines.tables import check_ids
from dpnoise.statistics.plan import Grouping, Unit

nw = import_extra("narwhals", "engines")

_KEY: Final = "key0"
_FLAGS: Final = (LOST, *ID_FLAGS)
_FLOATS: Final = (nw.Float32, nw.Float64)


@dataclass(frozen=True)
class Holders:
    """Labels of groups, and the number of persons in each."""

    keys: list[str]
    persons: NDArray[np.int64]


def holders(frame: Any, column: str, unit: Unit | None, text: Collection[str]) -> Holders:
    """Return the groups of a column with how many persons each has."""
    with frames.complaints():
        held = counted(frame, column, unit, is_file=False, is_text=column in text)
    in_duckdb = frames.wrapped(frame).implementation.is_duckdb()
    if column not in text and any(keys.is_ambiguous(k, in_duckdb=in_duckdb) for k in held.keys):
        raise keys.ambiguous_error(column)
    return held


def counted(
    frame: Any, column: str, unit: Unit | None, *, is_file: bool, is_text: bool = False
) -> Holders:
    """Return the same, with errors as they are; `is_text` says that the column must be text."""
    if unit is not None:
        check_unit(unit, grouped=[column], asked=[])
    wrapped = frames.wrapped(frame)
    if wrapped.implementation.is_dask():
        raise ArgumentError(frames.NO_PERSONS_IN_DASK)
    columns = () if unit is None else unit.columns
    frame, names = prepare(wrapped, [column, *columns])
    types = dict(frame.collect_schema())
    schema = {name: types[inside] for name, inside in names.items()}
    frames.check_there([column, *columns], schema)
    dtype = frames.check_key(column, schema[column])
    if is_text:
        keys.check_text(column, is_text=frames.is_text(dtype))
    chosen = {_KEY: frames.as_key(names[column], dtype)}
    for place, name in enumerate(columns):
        chosen[f"person{place}"] = persons.as_id(name, names[name], schema[name])
    if unit is not None:
        in_duckdb = wrapped.implementation.is_duckdb()
        ambiguous = None if is_file else keys.ambiguous_text(in_duckdb=in_duckdb)
        chosen |= persons.id_flags(unit, schema, names, ambiguous)
    frame = frames.letter_by_letter(frame.select(**chosen))
    rows = _counts(persons.rows_of(_with_key(frame, dtype)), unit, list(chosen))
    rows = rows.project([f"{_label(dtype, rows.dialect.text)} AS {_KEY}", "persons", *_FLAGS])
    found = nw.from_native(rows.relation)
    result = found.collect() if isinstance(found, nw.LazyFrame) else found
    _check(result, column, unit)
    together: dict[str, int] = {}
    for key, number in zip(result[_KEY].to_list(), result["persons"].to_list(), strict=True):
        together[key] = together.get(key, 0) + int(number)
    _check_labels(column, list(together), dtype)
    return Holders(list(together), np.array(list(together.values()), dtype=np.int64))


def _with_key(frame: Any, dtype: Any) -> Any:
    """Keep the rows that are in a group: a key that is null, NaN or an empty text is missing."""
    frame = frame.filter(~nw.col(_KEY).is_null())
    if dtype in _FLOATS:
        return frame.filter(~nw.col(_KEY).is_nan()).with_columns(nw.col(_KEY) + 0.0)
    return frame.filter(nw.col(_KEY) != "") if frames.is_text(dtype) else frame


def _label(dtype: Any, text: str) -> str:
    """Return the SQL of a key's label; null for a number that a float may have rounded."""
    if dtype in _FLOATS:
        limit = arithmetic.exact_limit(dtype)
        exact = f"{_KEY} = floor({_KEY}) AND abs({_KEY}) < {limit}"
        return f"CASE WHEN {exact} THEN CAST(CAST({_KEY} AS BIGINT) AS {text}) END"
    if dtype == nw.Datetime:
        return f"regexp_replace(CAST({_KEY} AS {text}), ' 00:00:00$', '')"
    return f"CAST({_KEY} AS {text})"


def _counts(rows: Any, unit: Unit | None, columns: list[str]) -> Any:
    """Count the persons of each group, and separately the rows whose id is missing or refused."""
    none = dict.fromkeys(_FLAGS, "0")
    if unit is None:
        return rows.grouped([_KEY], _count_and_flags(none))
    flags = [name for name in columns if name.startswith(ID_FLAGS)]
    names = Names([name for name in columns if name.startswith("person")], [_KEY], [], flags)
    rows = persons.marked(rows, names)
    found = {flag: _sum_of(flags, flag) for flag in ID_FLAGS} | {LOST: LOST}
    has_id = " AND ".join(f"{total} = 0" for total in found.values())
    chosen = persons.chosen_groups(rows.where(has_id), unit.max_groups, names)
    counts = chosen.grouped([_KEY], _count_and_flags(none))
    others = rows.where(f"NOT ({has_id})")
    return counts.and_also(others.grouped([_KEY], _count_and_flags(found)))


def _sum_of(columns: list[str], flag: str) -> str:
    return " + ".join(name for name in columns if name.startswith(flag)) or "0"


def _count_and_flags(flags: Mapping[str, str]) -> list[str]:
    return ["count(*) AS persons", *(f"max({flags[name]}) AS {name}" for name in _FLAGS)]


def _check(result: Any, column: str, unit: Unit | None) -> None:
    """Raise if an id is missing or may be another, or if a key may have been rounded."""
    check_ids(unit, any(result[LOST].to_list()))
    for flag, error in ((INEXACT, keys.inexact_error), (AMBIGUOUS, keys.ambiguous_error)):
        if any(result[flag].to_list()) and unit is not None:
            raise error(" or ".join(unit.columns))
    if any(key is None for key in result[_KEY].to_list()):
        raise keys.inexact_error(column)


def _check_labels(column: str, labels: list[str], dtype: Any) -> None:
    """Raise unless every label can be declared as a group: it is looked up in a second pass."""
    found: list[str] = []
    with suppress(ArgumentError):
        values = frames.matches_of(Grouping(column, tuple(labels), discovered=True), dtype, None)
        found = [keys.label_of(value) for value in values]
    if found != labels:
        raise ArgumentError(
            f"Column {column!r} holds groups that cannot be discovered, such as dates beyond the "
            "year 9999 or times finer than a microsecond. Convert it to text first."
        )
