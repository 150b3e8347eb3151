"""Declared groups as a column holds them: text, integers, floats, booleans, dates.

A key is matched as people write it. In a column of text the number 5 is the text 5, in a column of
integers the text 5 is the number; a key that no row of the column's type could hold is an error.
"""

import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, Final

import numpy as np

from dpnoise.errors import ArgumentError, is_integer, is_real, shown
from dpnoise.statistics.plan import Grouping

TEXT: Final = "text"
INTEGER: Final = "integers"
SINGLE: Final = "floats of 32 bits"
FLOAT: Final = "floats"
BOOLEAN: Final = "booleans"
DATE: Final = "dates"
TIME: Final = "times"

_WORDS: Final = {"true": True, "false": False}


def matches(grouping: Grouping, kind: str, limits: tuple[int, int] | None) -> dict[Any, int]:
    """Return each value of the column that belongs to a declared key, with the key's place.

    `limits` are those of a column of integers.
    """
    places: dict[Any, int] = {}
    for place, key in enumerate(grouping.keys):
        values = list(_values(key, kind, limits))
        if not values:
            raise ArgumentError(
                f"Column {grouping.column!r} holds {kind}, so no row could be in the group "
                f"{shown(key)}. Declare groups as the column holds them."
            )
        for value in values:
            if places.setdefault(value, place) != place:
                raise ArgumentError(
                    f"The groups {shown(grouping.keys[places[value]])} and {shown(key)} of column "
                    f"{grouping.column!r} are the same. Declare each once."
                )
    return places


def _values(key: Any, kind: str, limits: tuple[int, int] | None) -> Iterator[Any]:
    """Yield the values of a column of this kind that are written as the key."""
    if kind == TEXT:
        yield from _spellings(key)
    elif kind == INTEGER:
        yield from _integers(key, limits)
    elif kind in {FLOAT, SINGLE}:
        yield from _floats(key, single=kind == SINGLE)
    elif kind == BOOLEAN:
        yield from _booleans(key)
    else:
        yield from _dates(key) if kind == DATE else _times(key)


def _spellings(key: Any) -> Iterator[str]:
    if isinstance(key, str):
        if key == key.encode("utf-8", "ignore").decode("utf-8"):  # Else no text can hold it.
            yield key
    elif isinstance(key, bool | np.bool_):
        word = str(bool(key))
        yield from (word, word.lower(), word.upper())
    elif is_integer(key):
        yield str(int(key))
    elif is_real(key) and math.isfinite(key):
        yield repr(float(key))
        if float(key).is_integer():
            yield str(int(float(key)))
    elif isinstance(key, datetime):
        yield from (key.isoformat(sep=" "), key.isoformat())
    elif isinstance(key, date):
        yield key.isoformat()


def _number(key: Any) -> int | float | None:
    """Return a key as a number: as it is, or as its text reads."""
    if is_integer(key):
        return int(key)
    if is_real(key):
        return float(key)
    if isinstance(key, str):
        for read in (int, float):
            try:
                return read(key)
            except ValueError:
                continue
    return None


def _integers(key: Any, limits: tuple[int, int] | None) -> Iterator[int]:
    number = _number(key)
    if number is None or not math.isfinite(number) or number != int(number):
        return
    least, most = limits or (-(2**63), 2**63 - 1)
    if least <= number <= most:
        yield int(number)


def _floats(key: Any, *, single: bool) -> Iterator[float]:
    number = _number(key)
    if number is None or math.isnan(number):
        return
    try:
        nearest = float(number)
    except OverflowError:
        return
    with np.errstate(over="ignore"):
        yield float(np.float32(nearest)) if single else nearest


def _booleans(key: Any) -> Iterator[bool]:
    if isinstance(key, bool | np.bool_):
        yield bool(key)
    elif isinstance(key, str) and key.lower() in _WORDS:
        yield _WORDS[key.lower()]


def _dates(key: Any) -> Iterator[date]:
    if isinstance(key, date) and not isinstance(key, datetime):
        yield key
    elif isinstance(key, str):
        try:
            yield date.fromisoformat(key)
        except ValueError:
            return


def _times(key: Any) -> Iterator[datetime]:
    if isinstance(key, str):
        try:
            key = datetime.fromisoformat(key)
        except ValueError:
            return
    if isinstance(key, datetime) and key.tzinfo is None:
        yield key
    elif isinstance(key, date) and not isinstance(key, datetime):
        yield datetime(key.year, key.month, key.day)  # noqa: DTZ001 - the column has no zone
