"""The groups that a column has, and how many persons are in each: before noise, for nobody's eyes.

Every group that has a person leaves the engine, however many there are: which appear is decided by
noise alone, and a group that nobody is in could not be found without a list.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.statistics.engines import frames, persons
from dpnoise.statistics.engines.checking import check_unit
from dpnoise.statistics.engines.persons import LOST, Names
from dpnoise.statistics.engines.tables import check_ids
from dpnoise.statistics.plan import Unit

nw = import_extra("narwhals", "engines")

_KEY: Final = "key0"


@dataclass(frozen=True)
class Holders:
    """Keys of groups, and the number of persons in each."""

    keys: list[Any]
    persons: NDArray[np.int64]


def holders(frame: Any, column: str, unit: Unit | None) -> Holders:
    """Return the groups of a column with how many persons each has."""
    with frames.complaints():
        return counted(frame, column, unit)


def counted(frame: Any, column: str, unit: Unit | None) -> Holders:
    """Return the same, with errors as they are."""
    if unit is not None:
        check_unit(unit, grouped=[column], asked=[])
    wrapped = frames.wrapped(frame)
    if wrapped.implementation.is_dask():
        raise ArgumentError(frames.NO_PERSONS_IN_DASK)
    frame, names = frames.named(wrapped)
    types = dict(frame.collect_schema())
    schema = {name: types[inside] for name, inside in names.items()}
    columns = () if unit is None else unit.columns
    frames.check_there([column, *columns], schema)
    chosen = {_KEY: frames.as_key(names[column], frames.check_key(column, schema[column]))}
    for place, name in enumerate(columns):
        chosen[f"person{place}"] = persons.as_id(name, names[name], schema[name])
    frame = frames.letter_by_letter(frame.select(**chosen))
    rows = persons.rows_of(_named(frame, schema[column]))
    found = nw.from_native(_counts(rows, unit).relation)
    return _holders(found.collect() if isinstance(found, nw.LazyFrame) else found, unit)


def _named(frame: Any, dtype: Any) -> Any:
    """Keep the rows that are in a group: a key that is null, NaN or no text is none."""
    frame = frame.filter(~nw.col(_KEY).is_null())
    if dtype in {nw.Float32, nw.Float64}:
        return frame.filter(~nw.col(_KEY).is_nan()).with_columns(nw.col(_KEY) + 0.0)
    return frame.filter(nw.col(_KEY) != "") if frames.is_text(dtype) else frame


def _counts(rows: Any, unit: Unit | None) -> Any:
    """Count the persons of each group; rows without an id are counted apart."""
    if unit is None:
        return rows.grouped([_KEY], ["count(*) AS persons", f"max(0) AS {LOST}"])
    ids = [f"person{place}" for place in range(len(unit.columns))]
    names = Names(ids, [_KEY], [])
    rows = persons.marked(rows, names)
    chosen = persons.chosen_groups(rows.where(f"{LOST} = 0"), unit.max_groups, names)
    known = chosen.grouped([_KEY], ["count(*) AS persons", f"max(0) AS {LOST}"])
    lost = rows.where(f"{LOST} = 1")
    return known.and_also(lost.grouped([_KEY], ["count(*) AS persons", f"max(1) AS {LOST}"]))


def _holders(found: Any, unit: Unit | None) -> Holders:
    check_ids(unit, any(found[LOST].to_list()))
    together: dict[Any, int] = {}
    for key, number in zip(found[_KEY].to_list(), found["persons"].to_list(), strict=True):
        together[key] = together.get(key, 0) + int(number)
    return Holders(list(together), np.array(list(together.values()), dtype=np.int64))
