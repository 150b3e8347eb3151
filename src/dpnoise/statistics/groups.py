"""Declared groups: lists of keys, each once, of one kind. Engines match them with the data."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dpnoise.core.errors import ArgumentError

_EXAMPLE: Final = 'groups={"city": ["cork", "dublin"]}'  # For errors.
_KINDS: Final = (str, bool, int, float, dt.datetime, dt.date)


DISCOVER: Final = "discover"  # In place of declared keys.


def check_groups(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared keys of each column: one or more, each once, of one kind.

    The word "discover" stays as it is.
    """
    return {
        column: keys if isinstance(keys, str) and keys == DISCOVER else _checked(column, keys)
        for column, keys in groups.items()
    }


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
