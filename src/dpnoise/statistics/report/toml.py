"""A request in TOML, as a person signs it and `load_request` reads it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def written(request: Mapping[str, Any]) -> str:
    r"""Return a described request as TOML; what is not set is left out.

    Examples
    --------
    >>> print(written({"epsilon": 1.0, "rho": None, "publish": [{"statistics": ("count",)}]}))
    epsilon = 1.0
    <BLANKLINE>
    [[publish]]
    statistics = ["count"]
    """
    tables = {name: part for name, part in request.items() if _is_table(part)}
    plain = {name: part for name, part in request.items() if name not in tables}
    parts = ["\n".join(_lines(plain))]
    for name, part in sorted(tables.items(), key=lambda table: not isinstance(table[1], Mapping)):
        title = f"[{_key(name)}]" if isinstance(part, Mapping) else f"[[{_key(name)}]]"
        entries = [part] if isinstance(part, Mapping) else part
        parts += ["\n".join([title, *_lines(entry)]) for entry in entries if entry]
    return "\n\n".join(parts)


def _is_table(part: object) -> bool:
    if isinstance(part, Mapping):
        return True
    if isinstance(part, str) or not isinstance(part, Sequence):
        return False
    return any(isinstance(entry, Mapping) for entry in part)


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(name)} = {_value(part)}" for name, part in table.items() if _is_set(part))


def _is_set(part: object) -> bool:
    return part is not None and part not in ((), [])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(part: Any) -> str:
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, str):
        return _text(part)
    if isinstance(part, Mapping):
        return "{" + ", ".join(_lines(part)) + "}"
    if isinstance(part, Sequence):
        return "[" + ", ".join(map(_value, part)) + "]"
    return repr(part)


def _text(text: str) -> str:
    """Write text as TOML's basic strings have it, which are JSON's but for one character."""
    return json.dumps(text, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
