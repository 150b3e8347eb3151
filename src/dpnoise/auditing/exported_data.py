"""Data sets in a report: as plain data for JSON, and the row by which two of them differ."""

import json
import math
from importlib import import_module
from typing import Any, Final

import numpy as np

from dpnoise.auditing.data_rows import DataRows
from dpnoise.auditing.targets.mechanisms import Data
from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.core.safe_text import shorten

_TYPE: Final = "$type"  # The key that names the type of what JSON does not have.
_LONGEST_JSON: Final = 200_000  # Characters of a larger data set are not exported.
_LONGEST_ROW: Final = 100  # Characters of a row in words.
_FRAMES: Final = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}


def export_pair(pair: tuple[Data, Data]) -> list[Any] | None:
    """Return two data sets as plain data, or None if they are too large or of other types.

    >>> export_pair(([(1, 2.5)], {"a": None}))
    [[{'$type': 'tuple', 'items': [1, 2.5]}], {'a': None}]
    """
    try:
        exported = [_export(data) for data in pair]
        return exported if len(json.dumps(exported, allow_nan=False)) <= _LONGEST_JSON else None
    except (TypeError, ValueError):
        return None


def import_data(exported: Any) -> Data:
    """Return the data set that `export_pair` converted.

    >>> import_data([{"$type": "tuple", "items": [1, 2.5]}])
    [(1, 2.5)]
    """
    try:
        return _import(exported)
    except ImportError:
        raise
    except Exception as error:  # The libraries of frames have exceptions of their own.
        raise ArgumentError(
            "The report's data sets are damaged, or another version of dpnoise wrote them. Audit "
            "again, as the report's command says."
        ) from error


def _import(exported: Any) -> Data:
    if isinstance(exported, list):
        return [_import(part) for part in exported]
    if not isinstance(exported, dict):
        return exported
    kind = exported.get(_TYPE)
    if kind is None:
        return {key: _import(part) for key, part in exported.items()}
    if kind in _FRAMES:
        columns = {name: _import(column) for name, column in exported["columns"]}
        frame = getattr(import_module(kind), _FRAMES[kind])(columns)
        return frame.astype(dict(exported["dtypes"])) if kind == "pandas" else frame
    items = _import(exported["items"])
    if kind == "array":
        return np.array(items, dtype=exported["dtype"]).reshape(exported["shape"])
    types: dict[str, Any] = {"tuple": tuple, "dict": dict, "float": float}
    return types[kind](items)


def _export(data: Data) -> Any:
    plain = data.item() if isinstance(data, np.generic) else data
    if isinstance(plain, float) and not math.isfinite(plain):
        return {_TYPE: "float", "items": str(plain)}
    if plain is None or isinstance(plain, str | int | float):
        return plain
    kind = type(plain).__module__.partition(".")[0]
    if isinstance(plain, list):
        exported: Any = [_export(part) for part in plain]
    elif isinstance(plain, tuple):
        exported = {_TYPE: "tuple", "items": [_export(part) for part in plain]}
    elif isinstance(plain, dict):
        exported = {key: _export(part) for key, part in plain.items()}
        if _TYPE in plain or not all(isinstance(key, str) for key in plain):
            items = [[_export(key), _export(part)] for key, part in plain.items()]
            exported = {_TYPE: "dict", "items": items}
    elif isinstance(plain, np.ndarray) and plain.dtype.kind in "biufU":
        exported = {_TYPE: "array", "dtype": plain.dtype.str, "shape": list(plain.shape)}
        exported["items"] = _export(plain.ravel().tolist())
    elif kind in _FRAMES and hasattr(plain, "columns"):
        columns = DataRows(plain).columns if len(plain) else {}
        names = columns or {key: [] for key in getattr(plain, "column_names", plain.columns)}
        dtypes = (
            [[name, str(dtype)] for name, dtype in plain.dtypes.items()] if kind == "pandas" else []
        )
        listed = [[name, _export(list(column))] for name, column in names.items()]
        exported = {_TYPE: kind, "columns": listed, "dtypes": dtypes}
    else:
        raise TypeError(f"{type(plain).__name__} is not exported.")
    return exported


def describe_change(first: Data, second: Data) -> str:
    """Return the row by which two data sets differ in words, or "" if they differ by more.

    Rows are numbered from 1.

    >>> describe_change([{"age": 41}, {"age": 3}], [{"age": 41}, {"age": 1e308}])
    'row 2 of 2: age 3 → 1e+308'
    >>> describe_change([5, 7, 9], [5, 9]), describe_change(["a"], ["a", "b"])
    ('row 2 of 3 removed: 7', "row 2 added: 'b'")
    """
    try:
        rows = [DataRows(data) for data in (first, second)]
        _ = rows[0].take, rows[1].take  # Raises for other data.
        texts = [[repr(x.row(i)) for i in range(len(x))] if len(x) else [] for x in rows]
    except (ArgumentTypeError, TypeError):
        return ""
    few, many = sorted(texts, key=len)
    n = len(many)
    i = next((k for k, text in enumerate(few) if text != many[k]), len(few))
    if n == len(few) + 1 and few[i:] == many[i + 1 :]:
        is_removed = len(texts[0]) > len(texts[1])
        row = _row_words(rows[0 if is_removed else 1].row(i))
        return f"row {i + 1} of {n} removed: {row}" if is_removed else f"row {i + 1} added: {row}"
    if n == len(few) > i and texts[0][i + 1 :] == texts[1][i + 1 :]:
        before, after = (x.row(i) for x in rows)
        cells = [
            f"{'' if key is None else f'{key} '}{before.get(key)!r} → {after.get(key)!r}"
            for key in {**before, **after}
            if repr(before.get(key)) != repr(after.get(key))
        ]
        return f"row {i + 1} of {n}: {shorten(', '.join(cells), _LONGEST_ROW)}"
    return ""


def _row_words(row: dict[Any, Any]) -> str:
    cells = [f"{'' if key is None else f'{key} '}{cell!r}" for key, cell in row.items()]
    return shorten(", ".join(cells), _LONGEST_ROW)
