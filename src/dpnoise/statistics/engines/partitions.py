"""Partition columns: their values are in the names of folders, as in `year=2024/part-0.parquet`.

Hive, Spark and others leave such columns out of the files. Their types are declared: guessed from
the names, the type of all rows would depend on which folders there are.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import PurePath
from typing import Final
from urllib.parse import unquote_to_bytes

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines.texts import literal

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SQL_TYPES: Final = {"text": "VARCHAR", "integer": "BIGINT", "date": "DATE"}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LARGEST: Final = 2**63  # Integers have 64 bits.


def partition_values(hive: Mapping[str, str], paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of the declared columns for each path, as SQL.

    No error shows a path, because the names of its folders are data.
    """
    values = []
    for place, path in enumerate(paths, start=1):
        of_file = f"file {place:,} of {len(paths):,}"
        folders = _folders(path)
        values.append(tuple(_value(name, hive[name], folders, of_file) for name in hive))
    return values


def _folders(path: str) -> list[tuple[bytes, bytes]]:
    """Return names and values of all folders of a path that have them."""
    parts = (folder.partition("=") for folder in PurePath(path).parent.parts)
    return [
        (_decoded(name), _decoded(value)) for name, separator, value in parts if separator and name
    ]


def _decoded(text: str) -> bytes:
    """Return what percent signs stand for, as Hive writes it."""
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape"))


def _value(name: str, kind: str, folders: list[tuple[bytes, bytes]], of_file: str) -> str:
    """Return the value of a column as SQL."""
    found = {value for folder, value in folders if folder == name.encode("utf-8", "replace")}
    if len(found) != 1:
        number = "no" if not found else "more than one"
        raise ArgumentError(
            f"The path of {of_file} has {number} folder {name + '=...'!r}, and hive declares that "
            "column. Give the files with that folder in their path, or leave it out of hive."
        )
    value = found.pop()
    constant = "NULL" if value == _NULL.encode() else _constant(value, kind)
    if constant is None:
        raise ArgumentError(
            f"The folder {name + '=...'!r} of {of_file} does not name {_article(kind)}, as hive "
            "declares. Rename it, or declare text."
        )
    return f"CAST({constant} AS {_SQL_TYPES[kind]})"


def _article(kind: str) -> str:
    return {"integer": "an integer of 64 bits", "date": "a date such as 2024-02-29"}.get(kind, kind)


def _constant(value: bytes, kind: str) -> str | None:
    """Return a value as a constant of SQL; None if it is not of its type."""
    with suppress(ValueError):  # That of text that is not UTF-8 is one too.
        text = value.decode()
        if kind == "integer" and _INTEGER.fullmatch(text) and -_LARGEST <= int(text) < _LARGEST:
            return literal(str(int(text)))
        if kind == "date" and _DATE.fullmatch(text):
            return literal(date.fromisoformat(text).isoformat())
        if kind == "text" and "\0" not in text:
            return literal(text)
    return None
