"""A column of numbers, whatever holds it: an array, a list, a Series, an Arrow column, chunks."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.arrays import number, plain, widened
from dpnoise.core.errors import ArgumentTypeError

Floats = NDArray[np.float64]

_TURN: Final = 2**20  # Rows at a time: 2^20 of 2^40 grids add up to less than 2^62.
_WIDEST: Final = 8  # Bytes of a number.


def chunks_of(values: Any) -> Iterator[Floats]:
    """Yield the numbers of a column as float64 arrays of at most 2^20; NaN is a missing value."""
    if isinstance(values, Iterator):
        for part in values:
            yield from chunks_of(part)
        return
    try:
        with np.errstate(all="ignore"):
            array = _column(values)
    except Exception:  # noqa: BLE001 - each library has errors of its own
        raise ArgumentTypeError(
            f"Expected a column of numbers, got a {type(values).__name__} that is none. "
            "Convert text first; a missing value is NaN."
        ) from None
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _WIDEST or array.ndim != 1:
        raise ArgumentTypeError(
            f"Expected a column of numbers, got {array.dtype} of shape {array.shape}. "
            "Convert text first; a missing value is NaN."
        )
    for start in range(0, array.size, _TURN):
        yield widened(plain(array[start : start + _TURN]))


def _column(values: Any) -> NDArray[Any]:
    """Return a column as an array. What its kind calls null, NA or masked becomes NaN."""
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data)
    if isinstance(values, list | tuple):
        return _floats_of(values)
    if type(values).__module__.split(".")[0] == "pyarrow":
        values = values.to_pandas() if values.null_count else values
    elif hasattr(values, "isna") and values.dtype.kind in "iufb":
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    return _floats_of(array.tolist()) if array.dtype == object and array.ndim == 1 else array


def _floats_of(entries: Sequence[Any]) -> Floats:
    """Return a list as floats: one beyond the largest is infinite, what is missing is NaN.

    Each row is converted by itself, so that no row decides what becomes of the others.
    """
    return np.array([_float_of(entry) for entry in entries], dtype=np.float64)


def _float_of(entry: Any) -> float:
    if entry is None or entry is np.ma.masked or type(entry).__name__ == "NAType":
        return math.nan
    if isinstance(entry, bool | np.bool_):
        return float(entry)
    exactly = number(entry)
    try:
        return float(exactly)
    except OverflowError:
        return math.inf if exactly > 0 else -math.inf
