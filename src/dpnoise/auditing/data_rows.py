"""Data sets as rows: the columns of any container, and data sets with other rows or cells."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.programs import to_json_types
from dpnoise.auditing.targets.mechanisms import Data
from dpnoise.core.errors import ArgumentTypeError, is_real

Cells = dict[Any, Any]  # Cells of a row by the keys of their columns: a row without parts has None.

_NEW_TEXT: Final = "new"
# The most columns of numbers of which each gets a large number while the others keep theirs.
_MOST_SINGLE_COLUMNS: Final = 4


@dataclass(frozen=True, eq=False)
class DataRows:
    """The rows of a list, a tuple, an array of NumPy, or a frame of pandas, Polars or Arrow.

    Rows are numbers, texts, dicts, tuples, lists, or rows of a frame or an array.

    >>> rows = DataRows([("ann", 31), ("bob", 40)])
    >>> rows.columns
    {0: ['ann', 'bob'], 1: [31, 40]}
    >>> rows.take([1, 0]), rows.with_cells(1, {1: -3})
    ([('bob', 40), ('ann', 31)], [('ann', 31), ('bob', -3)])
    """

    data: Data

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def columns(self) -> dict[Any, list[Any]]:
        """The cells of each column: by the keys of dicts, names of a frame, or indices in a row."""
        rows = to_json_types(self.data)
        if rows and all(isinstance(row, dict) for row in rows):
            keys = dict.fromkeys(key for row in rows for key in row)
            return {key: [row.get(key) for row in rows] for key in keys}
        if rows and all(isinstance(row, list | tuple) for row in rows):
            return {j: [row[j] for row in rows] for j in range(min(map(len, rows)))}
        return {None: list(rows)}

    def row(self, i: int) -> Cells:
        """Return the cells of a row."""
        return {key: column[i] for key, column in self.columns.items()}

    def every_row(self) -> list[Cells]:
        """Return the cells of all rows."""
        return [self.row(i) for i in range(len(self))]

    @property
    def take(self) -> Callable[[Sequence[int]], Data]:
        """A function that selects rows by their indices, in a container of the same kind."""
        data = self.data
        if hasattr(data, "iloc"):
            return lambda indices: data.iloc[list(indices)]
        if isinstance(data, list):
            return lambda indices: [data[i] for i in indices]
        if isinstance(data, tuple):
            return lambda indices: tuple(data[i] for i in indices)
        if hasattr(data, "num_rows") and hasattr(data, "take"):  # Arrow's tables.
            return lambda indices: data.take(np.array(indices, dtype=np.int64))
        if hasattr(data, "shape") and len(data.shape):  # Arrays, and frames of Polars.
            return lambda indices: data[np.array(indices, dtype=np.int64)]
        raise ArgumentTypeError("data must be rows: a list, an array or a frame.")

    def with_cells(self, i: int, cells: Cells) -> Data | None:
        """Return the data with other cells in a row, or None if its container has no such cells."""
        try:
            return _with_cells(self.data, i, cells)
        except Exception:  # noqa: BLE001 - code of many containers, with columns of many types
            return None

    def with_row(self, like: int, cells: Cells) -> Data | None:
        """Return the data with one more row: that of an index, with other cells; or None."""
        longer = DataRows(self.take([*range(len(self)), like]))
        return longer.with_cells(len(self), cells)

    def numeric_columns(self) -> list[Any]:
        """Return the keys of the columns of numbers, in which cells may be None."""
        return [
            key
            for key, column in self.columns.items()
            if any(map(is_real, column)) and all(is_real(x) or x is None for x in column)
        ]

    def text_columns(self) -> list[Any]:
        """Return the keys of the columns of texts, in which cells may be missing."""
        return [
            key
            for key, column in self.columns.items()
            if any(isinstance(x, str) for x in column)
            and all(isinstance(x, str) or x is None or _is_nan(x) for x in column)
        ]

    def number(self, key: Any, number: int) -> float | int:
        """Return a number as a column has it: the largest or the least of its type if beyond."""
        dtype = self._dtype(key)
        if dtype.kind not in "iuf":
            return number  # Integers of any size.
        limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        inside = max(int(limits.min), min(number, int(limits.max)))
        return float(inside) if dtype.kind == "f" else inside

    def invented_cells(self) -> list[Cells]:
        """Return cells that no row has: large and small numbers, no values, new texts, and others.

        Each are the cells of one more row, or the changed ones of another row. The last ones have
        ten times the largest numbers.
        """
        numeric, texts = self.numeric_columns(), self.text_columns()
        large = {key: self._beyond(key) for key in numeric}
        small = {key: self.number(key, -int(x)) for key, x in large.items()}
        is_single = 1 < len(numeric) <= _MOST_SINGLE_COLUMNS
        singles = [{key: large[key]} for key in numeric] if is_single else []
        new = {key: _new_text(self.columns[key]) for key in texts}
        invented = [self._missing_cells(), new, self._mixed_cells(), *singles, small, large]
        distinct = {repr(cells): cells for cells in invented if cells}
        return list(distinct.values())

    def _missing_cells(self) -> Cells:
        """Return NaN in place of floats, and empty texts; a frame has None for both."""
        is_frame = not isinstance(self.data, list | tuple | np.ndarray)
        floats = [
            key
            for key in self.numeric_columns()
            if self._dtype(key).kind == "f" or None in self.columns[key]
        ]
        empty = dict.fromkeys(self.text_columns(), None if is_frame else "")
        return dict.fromkeys(floats, None if is_frame else np.nan) | empty

    def _mixed_cells(self) -> Cells:
        """Return cells of different rows, if there are several columns and no row has these."""
        n = len(self)
        cells = {key: column[k % n] for k, (key, column) in enumerate(self.columns.items())}
        rows = [repr(self.row(i)) for i in range(n)]
        return {} if repr(cells) in rows else cells

    def _beyond(self, key: Any) -> float | int:
        """Return ten times the largest number of a column, plus 1, or half of its type's range."""
        dtype = self._dtype(key)
        numbers: list[Any] = [x for x in self.columns[key] if is_real(x)]
        finite = [abs(x) for x in numbers if abs(x) < math.inf]
        beyond = 10 * max(finite, default=0) + 1
        if dtype.kind not in "iuf":
            return beyond
        if dtype.kind == "f":
            return float(min(float(beyond), float(np.finfo(dtype).max) / 2))
        return int(min(int(beyond), np.iinfo(dtype).max // 2))

    def _dtype(self, key: Any) -> "np.dtype[Any]":
        """Return the type of a column's numbers; of a list, the one that NumPy gives them."""
        data, column = self.data, self.columns[key]
        if isinstance(data, np.ndarray) and data.dtype.names is None:
            own: np.dtype[Any] = data.dtype
            return own
        if not isinstance(data, list | tuple):
            dtype: np.dtype[Any] = np.asarray(data if key is None else data[key]).dtype
            if dtype.kind in "iuf":
                return dtype
        numbers: NDArray[Any] = np.asarray([x for x in column if is_real(x)])
        return numbers.dtype


def _is_nan(x: object) -> bool:
    return isinstance(x, float) and math.isnan(x)


def _new_text(column: Sequence[object]) -> str:
    """Return a text that the column does not have.

    >>> _new_text(["cork", "new"])
    'new new'
    """
    text = _NEW_TEXT
    while text in column:
        text = f"{text} {_NEW_TEXT}"
    return text


def _with_cells(data: Data, i: int, cells: Cells) -> Data:
    """Return a copy of data with other cells in one row."""
    if isinstance(data, list | tuple):
        rows = [*data[:i], _row_with(data[i], cells), *data[i + 1 :]]
        return rows if isinstance(data, list) else tuple(rows)
    if isinstance(data, np.ndarray):
        return _array_with(data, i, cells)
    if hasattr(data, "iloc"):
        more = data.reset_index(drop=True)
        for key, cell in cells.items():
            more.loc[i if key is None else (i, key)] = cell
        return more
    changed = {
        key: [cells.get(key, x) if k == i else x for k, x in enumerate(column)]
        for key, column in DataRows(data).columns.items()
    }
    if None in changed:  # Series of Polars.
        return type(data)(data.name, changed[None], data.dtype)
    # Frames of Polars, and Arrow's tables.
    make = type(data).from_pydict if hasattr(data, "num_rows") else type(data)
    return make(changed, schema=data.schema)


def _row_with(row: Data, cells: Cells) -> Data:
    """Return a row of a list with other cells.

    >>> _row_with({"age": 31, "city": "cork"}, {"age": -3}), _row_with(31, {None: 4})
    ({'age': -3, 'city': 'cork'}, 4)
    """
    if isinstance(row, Mapping):
        return {**row, **cells}
    if isinstance(row, list | tuple):
        parts = [cells.get(j, part) for j, part in enumerate(row)]
        return getattr(row, "_make", type(row))(parts)  # Named tuples take their parts one by one.
    if isinstance(row, np.ndarray):
        return _array_with(row[None], 0, cells)[0]
    return cells[None]


def _array_with(data: Data, i: int, cells: Cells) -> Data:
    """Return a copy of an array with other cells in one row; longer texts widen all."""
    if data.dtype.names is not None:
        changed = data.copy()
        for key, cell in cells.items():
            changed[list(data.dtype.names)[key] if isinstance(key, int) else key][i] = cell
        return changed
    texts = [cell for cell in cells.values() if isinstance(cell, str)]
    changed = data.astype(np.result_type(data.dtype, *(np.array(text).dtype for text in texts)))
    for key, cell in cells.items():
        changed[i if key is None else (i, key)] = cell
    return changed
