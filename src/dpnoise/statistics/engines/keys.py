"""Match declared groups with the values of a column: text, integers, floats, booleans, dates.

In a frame, a key matches only columns of its kind: numbers match columns of numbers, text matches
text. The type of a frame's column may depend on one row. If a key matched both types, one row could
change which rows of other persons it matches.

The types of files are declared, so a key matches as people write it. In a column of text, the
number 5 matches the text 5 to the letter, and neither 05 nor 5.0; in a column of integers, the text
5 matches the number. A key that no row of the column's type can hold is an error. The program that
wrote a file may have chosen its types by looking at the rows. Then text such as 5.0 is an error too
if 5 is a key, except in CSV, where everything is text: see `sources`.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from numbers import Real
from typing import Final

import narwhals as nw
import numpy as np
from narwhals.dtypes import DType

from dpnoise.core.errors import ArgumentError, is_integer, is_real, short_repr
from dpnoise.statistics.engines.arithmetic import FLOATS, exact_limit, limits, type_name
from dpnoise.statistics.plan import Combinations, Grouping, Key

_TEXTS: Final = (nw.String, nw.Categorical, nw.Enum)
# The types of columns other than integers, with their names in errors and the types of their keys.
_KINDS: Final[dict[type[DType], tuple[str, type]]] = {
    **dict.fromkeys(_TEXTS, ("text", str)),
    nw.Float32: ("floats of 32 bits", Real),
    nw.Float64: ("floats", Real),
    nw.Boolean: ("booleans", bool),
    nw.Date: ("dates", date),
    nw.Datetime: ("times", date),
}
_LONGEST_DECIMAL: Final = 38  # The most digits of a decimal in DuckDB.
_BOOLEAN_TEXTS: Final = {"true": True, "false": False}
# Text that a reader parses as a number, a time or a boolean if it can parse all other rows so, too.
# DuckDB accepts more words for booleans than other readers. All engines support this syntax. The
# spaces are those of Python, because \s matches fewer in some engines, and pandas skips a \v.
_SPACES: Final = "\v\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_AMBIGUOUS_TEXT: Final = rf"^(?:[-+.,:/_\s{_SPACES}0-9eETZ]+|(?i:true|false{{}}))$"
# Text that is not changed by such parsing: we write numbers, dates and booleans in the same way.
CANONICAL_TEXT: Final = r"^(?:0|-?[1-9][0-9]*|[0-9]{4}-[0-9]{2}-[0-9]{2}|true|false)$"


def match_keys(grouping: Grouping, dtype: DType, parsed: Collection[str] | None) -> dict[Key, int]:
    """Map each value of a column that belongs to a declared key to the index of that key.

    `parsed` has the columns of a file that we parsed from text, so their numbers are not rounded.
    It is None for a frame.
    """
    column, index_of_value = grouping.column, dict[Key, int]()
    kind, key_type = _kind_and_key_type(column, dtype, is_file=parsed is not None)
    is_rounded = dtype in FLOATS and (parsed is None or column not in parsed)
    for index, key in enumerate(grouping.keys):
        if parsed is None and not grouping.discovered and not _is_of_type(key, key_type):
            raise ArgumentError(
                f"Column {column!r} holds {kind}, and the group {short_repr(key)} is not of that "
                "kind. Declare groups of the column's kind, or convert the column first."
            )
        values = list(matching_values(key, dtype))
        if is_rounded and not all(_is_exact_integer(value, exact_limit(dtype)) for value in values):
            raise inexact_error(column)
        if not values and isinstance(key, str) and column in (parsed or ()):
            raise ArgumentError(
                f"Column {column!r} is read as numbers, because its values are published too: no "
                f"row could be in the group {short_repr(key)}. Counting rows needs no column: "
                "leave it out."
            )
        if not values:
            raise ArgumentError(
                f"Column {column!r} holds {kind}, so no row could be in the group "
                f"{short_repr(key)}. Declare groups as the column holds them."
            )
        for value in values:
            if index_of_value.setdefault(value, index) != index:
                other = grouping.keys[index_of_value[value]]
                raise ArgumentError(
                    f"The groups {short_repr(other)} and {short_repr(key)} of column {column!r} "
                    "are the same. Declare each once."
                )
    return index_of_value


def match_groups(
    grouping: Grouping | Combinations, matches: Sequence[Mapping[Key, int]]
) -> dict[tuple[Key, ...], int]:
    """Map the values of all columns of a grouping to the index of their group.

    `matches` are those of each column. A discovered label matches one value.
    """
    if isinstance(grouping, Grouping):
        return {(value,): index for value, index in matches[0].items()}
    value_of = [
        {part.keys[index]: value for value, index in matched.items()}
        for part, matched in zip(grouping.groupings, matches, strict=True)
    ]
    return {
        tuple(values[label] for values, label in zip(value_of, key, strict=True)): index
        for index, key in enumerate(grouping.keys)
    }


def _kind_and_key_type(column: str, dtype: DType, *, is_file: bool) -> tuple[str, type]:
    """Return the name of a column's type in errors, and the type of its keys in a frame."""
    if isinstance(dtype, nw.Decimal) and is_file:
        return f"decimals with {dtype.scale} places", Decimal
    return _KINDS.get(check_key_type(column, dtype).base_type(), ("integers", Real))


def _is_of_type(key: object, key_type: type) -> bool:
    is_bool = isinstance(key, bool | np.bool_)
    return is_bool == (key_type is bool) and (is_bool or isinstance(key, key_type))


def _is_exact_integer(value: object, limit: int) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) < limit


def check_key_type(column: str, dtype: DType) -> DType:
    """Return `dtype`. Raise if a column of this type cannot be used for groups."""
    has_zone = isinstance(dtype, nw.Datetime) and dtype.time_zone is not None
    if has_zone or (limits(dtype) is None and dtype.base_type() not in _KINDS):
        raise ArgumentError(
            f"Column {column!r} holds {type_name(dtype)}, which is not grouped by. Convert it to "
            "text, integers, floats, booleans, dates or times without a zone first."
        )
    return dtype


def is_text(dtype: DType) -> bool:
    """Return whether keys of this type are text."""
    return dtype.base_type() in _TEXTS


def key_expression(column: nw.Expr, dtype: DType) -> nw.Expr:
    """Return the expression that is compared with keys: text as strings, floats with 64 bits.

    -0.0 becomes 0.0: not every engine promises that rows of several columns compare so.
    """
    if is_text(dtype):
        return column.cast(nw.String)
    return column.cast(nw.Float64) + 0.0 if dtype in FLOATS else column


def is_missing(key: nw.Expr, dtype: DType) -> nw.Expr:
    """Return whether a key expression is null, NaN or empty text."""
    if dtype in FLOATS:
        return key.is_null() | key.is_nan()
    return key.is_null() | (key == "") if is_text(dtype) else key.is_null()


def check_values(
    column: str, values: Collection[object], dtype: DType, ambiguous: str | None
) -> None:
    """Raise if a reader may have rounded different values to one, or may write one in two ways.

    `ambiguous` is the pattern of text that must be declared, if there is one.
    """
    limit = exact_limit(dtype) if dtype in FLOATS else 0
    if limit and not all(_is_exact_integer(value, limit) for value in values):
        raise inexact_error(column)
    pattern = ambiguous if is_text(dtype) else None
    if pattern is not None and any(is_ambiguous(str(value), pattern) for value in values):
        raise ambiguous_error(column)


def ambiguous_text_pattern(*, in_duckdb: bool) -> str:
    """Return a regular expression for text that a reader may parse as another type."""
    return _AMBIGUOUS_TEXT.format("|t|f|yes|no" if in_duckdb else "")


def is_ambiguous(text: str, pattern: str) -> bool:
    """Return whether a reader may change text of an ambiguous pattern by parsing it."""
    return bool(re.search(pattern, text)) and not re.search(CANONICAL_TEXT, text)


def not_text_error(column: str) -> ArgumentError:
    """Return the error about a column that is declared as text and does not hold text."""
    return ArgumentError(
        f"Column {column!r} is declared to be text, but does not hold text. Read it as text, as in "
        f"pandas.read_csv(..., dtype={{{column!r}: str}})."
    )


def ambiguous_error(column: str) -> ArgumentError:
    """Return the error about text that a reader may parse as a number, a time or a boolean."""
    return ArgumentError(
        f"Column {column!r} holds text such as 07, 7.0, 10:30 or True. A reader may parse it as "
        "numbers, times or booleans, depending on the other rows. Then one row can change which "
        "ids or groups are equal. Read the column as text and declare it: "
        f"text_columns=[{column!r}]."
    )


def label_of(value: object) -> str:
    """Return the label of a group, which does not depend on the type of its column.

    A float must be a whole number: `match_keys` has checked that.
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float):
        return str(int(value))
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ")
        return (text.rstrip("0") if value.microsecond else text).removesuffix(" 00:00:00")
    return str(value)


def inexact_error(column: str) -> ArgumentError:
    """Return the error about ids and groups that may be rounded in a column of floats."""
    return ArgumentError(
        f"Column {column!r} holds floats, so its ids and groups must be whole numbers below 2^53 "
        "(2^24 in 32 bits): larger ones may have been rounded when the data was read. Read the "
        f"column with a declared type, as in pandas.read_csv(..., dtype={{{column!r}: str}})."
    )


def matching_values(key: object, dtype: DType) -> Iterator[Key]:
    """Return the values of a column of this type that match the key."""
    if is_text(dtype):
        return matching_texts(key)
    if isinstance(dtype, nw.Decimal):
        return _matching_decimals(key, dtype.scale)
    if dtype == nw.Boolean:
        is_word = isinstance(key, bool | np.bool_ | str) and str(key).lower() in _BOOLEAN_TEXTS
        return iter([_BOOLEAN_TEXTS[str(key).lower()]] if is_word else [])
    is_time = dtype.base_type() in {nw.Date, nw.Datetime}
    return _matching_times(key, dtype) if is_time else _matching_numbers(key, dtype)


def matching_texts(key: object) -> Iterator[str]:
    """Yield the text of a key; none if no column can hold it."""
    if isinstance(key, str):
        # No column can hold a lone surrogate, so a key with one matches nothing.
        if key == key.encode("utf-8", "ignore").decode("utf-8"):
            yield key
    elif isinstance(key, bool | np.bool_):
        word = str(bool(key))
        yield from (word, word.lower(), word.upper())
    elif is_integer(key):
        yield str(int(key))
    elif is_real(key) and math.isfinite(key):
        yield repr(float(key))
    elif isinstance(key, datetime):
        yield from (key.isoformat(sep=" "), key.isoformat())
    elif isinstance(key, date):
        yield key.isoformat()


def _parse_number(key: object) -> int | float | None:
    """Return a key as a number, parsed if it is text; None if it is not a number."""
    if is_integer(key):
        return int(key)
    if is_real(key):
        return float(key)
    if isinstance(key, str):
        for parse in (int, float):
            try:
                return parse(key)
            except ValueError:
                continue
    return None


def _matching_numbers(key: object, dtype: DType) -> Iterator[Key]:
    """Yield a key as a number of a column of integers or floats, if it is one."""
    number, bounds = _parse_number(key), limits(dtype)
    if number is None:
        return
    if bounds is not None:
        is_whole = isinstance(number, int) or number.is_integer()
        if is_whole and bounds[0] <= number <= bounds[1]:
            yield int(number)
        return
    with suppress(OverflowError), np.errstate(over="ignore"):
        nearest = float(np.float32(number)) if dtype == nw.Float32 else float(number)
        if not math.isnan(nearest):
            yield nearest


def _matching_decimals(key: object, scale: int) -> Iterator[Key]:
    """Yield a key as a decimal of this scale, if it is one."""
    with localcontext(prec=3 * _LONGEST_DECIMAL), suppress(InvalidOperation):
        exact = Decimal(str(key))
        if exact.is_finite() and abs(exact.adjusted()) < _LONGEST_DECIMAL:
            units = exact.scaleb(scale)
            if units == int(units):
                yield Decimal(int(units)).scaleb(-scale)  # type: ignore[misc]


def _matching_times(key: object, dtype: DType) -> Iterator[Key]:
    """Yield a key as a date, or as a time without a zone, if it is one."""
    if isinstance(key, str):
        with suppress(ValueError):
            key = (date if dtype == nw.Date else datetime).fromisoformat(key)
    if isinstance(key, datetime):
        if dtype == nw.Datetime and key.tzinfo is None:
            yield key
    elif isinstance(key, date):
        is_date = dtype == nw.Date
        yield key if is_date else datetime(key.year, key.month, key.day)  # noqa: DTZ001 - no zone
