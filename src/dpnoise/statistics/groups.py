"""Declared groups, and the rows that are in them: a key matches as people write it.

In a column of text, a key that is text matches the same text, to the letter; a number matches what
reads as that number, a boolean "true" or "false" in any capitals, a date its form in ISO 8601. In a
column of another type, text is read as that type. A key that no row of the type could have is an
error, before a row is read.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, import_extra, shown

_EXAMPLE: Final = 'groups={"city": ["cork", "dublin"]}'  # For errors.
_KINDS: Final = (str, bool, int, float, dt.datetime, dt.date)
_BOOLEANS: Final = {"true": True, "false": False}


def check_groups(groups: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the declared keys of each column: one or more, each once, of one kind."""
    return {column: _checked(column, keys) for column, keys in groups.items()}


def _checked(column: str, keys: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise ArgumentError(f"Expected the groups of {column!r} to be a list: {_EXAMPLE}.")
    if not keys or len({(type(key), key) for key in keys}) < len(keys):
        raise ArgumentError(f"Expected a declared list of groups, each once: {_EXAMPLE}.")
    for key in keys:
        if not isinstance(key, _KINDS) or key != key or key == "" or _is_no_text(key):  # noqa: PLR0124
            raise ArgumentError(
                f"Expected every declared group to have a name, in UTF-8: {_EXAMPLE}."
            )
    if len({_kind(key) for key in keys}) > 1:
        raise ArgumentError(
            f"Expected the groups of {column!r} to be of one kind: all text, or all numbers."
        )
    return tuple(keys)


def _is_no_text(key: Any) -> bool:
    """Tell whether a name holds bytes that are no UTF-8: no row of a file can hold them."""
    return isinstance(key, str) and key != key.encode("utf-8", "ignore").decode("utf-8")


def _kind(key: Any) -> str:
    if isinstance(key, bool):
        return "boolean"
    if isinstance(key, int | float):
        return "number"
    return "text" if isinstance(key, str) else "date"


def groups_in_file(path: Path) -> list[str]:
    """Return the groups of a file that has one on each line; blank lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} cannot be read: it is no UTF-8 text.") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ArgumentError(f"{path} has no groups. Write one on each line.")
    return names


class Matcher:
    """Finds the places of a column's rows among the declared keys."""

    def __init__(self, column: str, held: Any, keys: Sequence[Any]) -> None:
        """Prepare to match keys with a column of this Arrow type, or say why none could."""
        pa = import_extra("pyarrow", "files")
        if pa.types.is_dictionary(held):
            held = held.value_type
        if pa.types.is_binary(held) or pa.types.is_large_binary(held):
            held = pa.string()
        self._column, self._held = column, held
        is_text = pa.types.is_string(held) or pa.types.is_large_string(held)
        self._kind = _kind(keys[0]) if is_text else "text"
        try:
            self._keys = self._texts(keys) if is_text else self._typed(keys)
        except (pa.ArrowException, OverflowError):
            raise self._impossible(keys[0]) from None
        if len(set(self._keys.to_pylist())) < len(keys):
            raise ArgumentError(f"Two of the groups of {column!r} are the same to {held}.")

    def places(self, column: Any) -> NDArray[np.int64]:
        """Return the place of each row's key among the declared ones, or -1."""
        pa = import_extra("pyarrow", "files")
        compute = import_extra("pyarrow.compute", "files")
        try:
            held = column.cast(self._held)
        except pa.ArrowInvalid:
            raise ArgumentError(
                f"Column {self._column!r} holds bytes that are no UTF-8 text."
            ) from None
        if self._kind == "number":
            held = _numbers(held)
        elif self._kind == "boolean":
            held = compute.utf8_lower(held)
        if pa.types.is_floating(held.type):
            held = compute.add(held, pa.scalar(0.0, held.type))  # -0.0 is 0 to people.
        places = compute.index_in(held, value_set=self._keys)
        filled = compute.fill_null(places, -1)
        found: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def _texts(self, keys: Sequence[Any]) -> Any:
        """Return keys as a column of text has them; numbers are compared as floats."""
        pa = import_extra("pyarrow", "files")
        if self._kind == "number":
            return pa.array([float(key) + 0.0 for key in keys], pa.float64())
        if self._kind == "boolean":
            return pa.array([str(key).lower() for key in keys])
        if self._kind == "date":
            return pa.array([key.isoformat() for key in keys])
        return pa.array(list(keys), self._held)

    def _typed(self, keys: Sequence[Any]) -> Any:
        """Return keys as a column of this type has them."""
        pa = import_extra("pyarrow", "files")
        return pa.array([self._as_held(key) for key in keys], self._held)

    def _as_held(self, key: Any) -> Any:
        types, held = import_extra("pyarrow", "files").types, self._held
        try:
            if types.is_boolean(held):
                return key if isinstance(key, bool) else _BOOLEANS[key.lower()]
            if isinstance(key, bool):
                raise self._impossible(key)
            if types.is_integer(held) or types.is_decimal(held):
                number = Decimal(str(key))
                if types.is_integer(held) and number != int(number):
                    raise self._impossible(key)
                return int(number) if types.is_integer(held) else number
            if types.is_floating(held):
                return float(key) + 0.0
            if types.is_date(held):
                return key if isinstance(key, dt.date) else dt.date.fromisoformat(key)
            if types.is_timestamp(held):
                return key if isinstance(key, dt.date) else dt.datetime.fromisoformat(key)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidOperation, OverflowError):
            raise self._impossible(key) from None
        raise ArgumentError(f"Column {self._column!r} holds {held}. Expected text or numbers.")

    def _impossible(self, key: Any) -> ArgumentError:
        return ArgumentError(
            f"Column {self._column!r} holds {self._held}: no row can be in group {shown(key)}."
        )


def _numbers(texts: Any) -> Any:
    """Read texts as numbers; what is none is null."""
    pa = import_extra("pyarrow", "files")
    compute = import_extra("pyarrow.compute", "files")
    written = compute.match_substring_regex(texts, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    return compute.if_else(written, texts, pa.scalar(None, texts.type)).cast(pa.float64())
