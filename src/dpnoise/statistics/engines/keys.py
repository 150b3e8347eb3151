"""Match declared groups with the values of a column: text, integers, floats, booleans, dates.

In a frame, a key matches only columns that hold its kind: numbers match columns of numbers, text
matches text. The type of a frame's column may depend on one row, and a key that matched both types
would then match other rows of everybody. The types of files are declared, so there a key is matched
as people write it: in a column of text the number 5 is the text 5, in a column of integers the text
5 is the number. A key that no row of the column's type could hold is an error.
"""

import math
import numbers
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import Final

import numpy as np

from dpnoise.core.errors import ArgumentError, is_integer, is_real, shown
from dpnoise.statistics.plan import Grouping, Key

TEXT: Final = "text"
INTEGER: Final = "integers"
SINGLE: Final = "floats of 32 bits"
FLOAT: Final = "floats"
BOOLEAN: Final = "booleans"
DATE: Final = "dates"
TIME: Final = "times"
DECIMAL: Final = "decimals"

_LONGEST_DECIMAL: Final = 38  # Digits of a decimal in DuckDB.
_WORDS: Final = {"true": True, "false": False}
# Text that a reader takes for a number, a time or a truth value if all other rows are such, too.
# DuckDB knows more words for truth values than others. The syntax is one that all engines have.
# The spaces are those of Python, because \s is fewer in some engines, and pandas skips a \v.
_SPACES: Final = "\v\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_AMBIGUOUS_TEXT: Final = rf"^(?:[-+.,:/_\s{_SPACES}0-9eETZ]+|(?i:true|false{{}}))$"
# Text that means the same then: it is written as we write numbers, dates and truth values.
CANONICAL_TEXT: Final = r"^(?:0|-?[1-9][0-9]*|[0-9]{4}-[0-9]{2}-[0-9]{2}|true|false)$"
_KEY_TYPES: Final[dict[str, type]] = {
    TEXT: str,
    INTEGER: numbers.Real,
    SINGLE: numbers.Real,
    FLOAT: numbers.Real,
    DATE: date,
    TIME: date,
}


def matches(
    grouping: Grouping,
    kind: str,
    limits: tuple[int, int] | None = None,
    *,
    same_kind: bool = False,
    whole_below: int | None = None,
    scale: int = 0,
) -> dict[Key, int]:
    """Return each value of a column that belongs to a declared key, with the key's place.

    `limits` are those of a column of integers. `same_kind` refuses keys of another kind than the
    column. `whole_below` refuses keys of a column of floats that are not whole or not below it.
    `scale` is the number of places of a column of decimals.
    """
    places: dict[Key, int] = {}
    for place, key in enumerate(grouping.keys):
        if same_kind and not _is_of_kind(key, kind):
            raise ArgumentError(
                f"Column {grouping.column!r} holds {kind}, and the group {shown(key)} is not of "
                "that kind. Declare groups of the column's kind, or convert the column first."
            )
        values = _decimals(key, scale) if kind.startswith(DECIMAL) else _values(key, kind, limits)
        below = whole_below if kind in {FLOAT, SINGLE} else None
        if below and not all(
            isinstance(value, float) and value.is_integer() and abs(value) < below
            for value in values
        ):
            raise inexact_error(grouping.column)
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


def ambiguous_text(*, in_duckdb: bool) -> str:
    """Return a pattern of text that a reader may take for a number, a time or a truth value."""
    return _AMBIGUOUS_TEXT.format("|t|f|yes|no" if in_duckdb else "")


def is_ambiguous(text: str, *, in_duckdb: bool) -> bool:
    """Tell whether a reader may take text for something else."""
    if re.search(CANONICAL_TEXT, text):
        return False
    return re.search(ambiguous_text(in_duckdb=in_duckdb), text) is not None


def check_text(column: str, *, is_text: bool) -> None:
    """Raise if a column that is declared to be text is not."""
    if not is_text:
        raise ArgumentError(
            f"Column {column!r} is declared to be text, but does not hold text. Read it as text, "
            f"as in pandas.read_csv(..., dtype={{{column!r}: str}})."
        )


def ambiguous_error(column: str) -> ArgumentError:
    """Return the error about text that is a number or a time where other rows are like it."""
    return ArgumentError(
        f"Column {column!r} holds text such as 07, 7.0, 10:30 or True, which a reader takes for "
        "numbers, times or truth values unless some other row is different. So which ids and "
        "groups are the same may depend on one row. Read the column as text and declare it: "
        f"text_columns=[{column!r}]."
    )


def label_of(value: object) -> str:
    """Return the label of a group: text that does not depend on the type of its column."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float):
        return str(int(value))
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ")
        return (text.rstrip("0") if value.microsecond else text).removesuffix(" 00:00:00")
    return str(value)


def _is_of_kind(key: object, kind: str) -> bool:
    if kind == BOOLEAN or isinstance(key, bool | np.bool_):
        return kind == BOOLEAN and isinstance(key, bool | np.bool_)
    return isinstance(key, _KEY_TYPES[kind])


def inexact_error(column: str) -> ArgumentError:
    """Return the error about ids and groups that a column of floats may have rounded."""
    return ArgumentError(
        f"Column {column!r} holds floats, so its ids and groups must be whole numbers below 2^53 "
        "(2^24 in 32 bits): larger ones may have been rounded when the data was read. Read the "
        f"column with a declared type, as in pandas.read_csv(..., dtype={{{column!r}: str}})."
    )


def _values(key: object, kind: str, limits: tuple[int, int] | None) -> list[Key]:
    """Return the values of a column of this kind that are written as the key."""
    if kind == TEXT:
        return list(_spellings(key))
    if kind == BOOLEAN:
        is_word = isinstance(key, bool | np.bool_ | str) and str(key).lower() in _WORDS
        return [_WORDS[str(key).lower()]] if is_word else []
    return _times(key, kind) if kind in {DATE, TIME} else _numbers(key, kind, limits)


def _spellings(key: object) -> Iterator[str]:
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


def _number(key: object) -> int | float | None:
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


def _numbers(key: object, kind: str, limits: tuple[int, int] | None) -> list[Key]:
    """Return the number of a column of integers or floats that a key is, if there is one."""
    number = _number(key)
    if number is None:
        return []
    if kind == INTEGER:
        least, most = limits or (-(2**63), 2**63 - 1)
        is_whole = isinstance(number, int) or number.is_integer()
        return [int(number)] if is_whole and least <= number <= most else []
    try:
        nearest = float(number)
    except OverflowError:
        return []
    if kind == SINGLE:
        with np.errstate(over="ignore"):
            nearest = float(np.float32(nearest))
    return [] if math.isnan(nearest) else [nearest]


def _decimals(key: object, scale: int) -> list[Key]:
    """Return the decimal with so many places that a key is, if there is one."""
    with localcontext(prec=3 * _LONGEST_DECIMAL), suppress(InvalidOperation):
        exact = Decimal(str(key))
        if exact.is_finite() and abs(exact.adjusted()) < _LONGEST_DECIMAL:
            units = exact.scaleb(scale)
            if units == int(units):
                return [Decimal(int(units)).scaleb(-scale)]  # type: ignore[list-item]
    return []


def _times(key: object, kind: str) -> list[Key]:
    """Return the date or the time without a zone that a key is, if there is one."""
    if isinstance(key, str):
        with suppress(ValueError):
            key = (date if kind == DATE else datetime).fromisoformat(key)
    if not isinstance(key, date):
        return []
    if kind == DATE:
        return [] if isinstance(key, datetime) else [key]
    if isinstance(key, datetime):
        return [key] if key.tzinfo is None else []
    return [datetime(key.year, key.month, key.day)]  # noqa: DTZ001 - the column has no zone
