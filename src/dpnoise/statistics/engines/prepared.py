"""Prepare frames so that every engine computes the same: quirks of pandas, Arrow and others.

Only the columns that a plan reads are looked at. Those that cannot be made plain are refused.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra

nw = import_extra("narwhals", "engines")

_TEXTS: Final = {"string", "empty"}  # Names that pandas gives to objects that are text, or missing.


def prepare(frame: Any, wanted: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """Return a frame that computes as it should, and what its columns are called in it."""
    engine, native = frame.implementation, frame.to_native()
    if engine.is_pyspark():  # It would take dots and backticks in a name for syntax.
        safe = [f"column{place}" for place in range(len(native.columns))]
        names = dict(zip(native.columns, safe, strict=True))
        if len(names) < len(safe):
            raise ArgumentError("Every column must have another name. Rename some.")
        return nw.from_native(native.toDF(*safe)), names
    if engine.is_duckdb():
        _check_capitals(native.columns, wanted)
    elif engine.is_pandas():
        frame = nw.from_native(_plain_pandas(native, wanted))
    elif engine.is_pyarrow():
        frame = nw.from_native(_plain_arrow(native, wanted))
    return frame, {name: name for name in frame.collect_schema()}


def _check_capitals(columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise if DuckDB, which ignores case, could take another column for one that is wanted."""
    for name in wanted:
        same = [column for column in columns if column.casefold() == name.casefold()]
        if len(same) > 1:
            raise ArgumentError(
                f"Columns {same[0]!r} and {same[1]!r} differ only by capitals, which DuckDB "
                "ignores. Rename one."
            )


def _plain_pandas(frame: Any, wanted: Sequence[str]) -> Any:
    """Return a frame without categories of numbers, mixed objects, and Arrow's uint64.

    narwhals would take a column of objects for text by its first rows, write categories as the type
    of all of them prints them, and take literals next to Arrow's uint64 for int64.
    """
    frame = frame.copy(deep=False)
    for name in wanted:
        if name not in frame or getattr(frame[name], "ndim", 1) != 1:
            continue  # Missing columns, and several of one name, are errors later.
        column, kind = frame[name], frame[name].dtype
        if kind == "object":
            _check_objects(name, column)
        elif kind == "uint64[pyarrow]":
            frame[name] = _masked(column)
        elif str(kind) == "category" and kind.categories.inferred_type not in _TEXTS:
            frame[name] = _values_of_categories(name, column)
        elif str(kind).startswith("dictionary"):
            values = import_module("pandas").ArrowDtype(kind.pyarrow_dtype.value_type)
            frame[name] = column.astype(values)
    return frame


def _check_objects(name: str, column: Any) -> None:
    """Raise unless a column of Python's objects holds only text."""
    inferred = import_module("pandas").api.types.infer_dtype(column, skipna=True)
    if inferred not in _TEXTS:
        raise ArgumentError(
            f"Column {name!r} holds Python objects that are not all text. Convert it to a type of "
            "pandas first, as in frame.astype({" + repr(name) + ': "Int64"}).'
        )


def _values_of_categories(name: str, column: Any) -> Any:
    """Return the values of categories of numbers, dates or truth values, in their own type."""
    kind = column.dtype.categories.dtype
    if kind == "object":
        raise ArgumentError(
            f"Column {name!r} has categories that are not all text. Convert it to a type of "
            "pandas first."
        )
    if kind.kind in "iu":  # A missing category would turn integers into floats.
        return column.astype("UInt64" if kind.kind == "u" else "Int64")
    return column.astype("boolean" if kind.kind == "b" else kind)


def _masked(column: Any) -> Any:
    """Return Arrow's uint64 as pandas' own; by `astype` they would go through floats."""
    arrays = import_module("pandas").arrays
    return arrays.IntegerArray(column.fillna(0).to_numpy("uint64"), column.isna().to_numpy())


def _plain_arrow(table: Any, wanted: Sequence[str]) -> Any:
    """Return a table without dictionaries, whose values may be of any type."""
    types = import_module("pyarrow").types
    for place, column in enumerate(table.schema):
        if column.name in wanted and types.is_dictionary(column.type):
            plain = table.column(place).cast(column.type.value_type)
            table = table.set_column(place, column.name, plain)
    return table
