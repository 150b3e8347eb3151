"""Release arrays, lists, tuples and Series as the same kind of container.

The result's type depends on the container, never on the values. Integers in a list have no limit,
as in Python. Arrays and Series of any integer type give int64 and saturate: whether a library chose
int64, uint64 or object depends on the values, so it must not matter. The index of a pandas Series
is kept, with a warning unless it is a plain row number.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np

from dpnoise.core.arrays import Array, DType, array_from_list, numeric_array
from dpnoise.core.errors import ArgumentTypeError
from dpnoise.noise.generator import Generator
from dpnoise.release.exact import AdditiveForm

_INT64: Final = np.iinfo(np.int64)

# A number, an array, a list, a tuple, a Series or a tensor, both as argument and as result. Some of
# these types belong to optional libraries.
Value = Any
Bounds = tuple[float, float] | None


class TensorTask(NamedTuple):
    """How to release a tensor: form, scale, grid, bounds by format, and the way for arrays."""

    form: AdditiveForm
    scale: float
    grid: float
    bounds: Callable[[DType], Bounds]
    release_array: Callable[[Array], Array]


def import_tensor_release() -> Callable[[TensorTask, Value, Generator], Value]:
    """Import PyTorch, and return the function that releases a tensor.

    It is imported by its name, because `dpnoise.integrations` is a higher layer.
    """
    release: Callable[[TensorTask, Value, Generator], Value] = import_module(
        "dpnoise.integrations.torch"
    ).release_tensor
    return release


def release_like(value: Value, release: Callable[[Array], Array]) -> Value:
    """Release the numbers of an array, a list, a tuple or a Series, and return the same kind."""
    if isinstance(value, np.ndarray):
        return _saturate(release(numeric_array(value)))
    if isinstance(value, list | tuple):
        return _rebuild_container(value, release(array_from_list(value)).tolist())
    library = type(value).__module__.split(".")[0]
    if library in {"pandas", "polars"} and type(value).__name__ == "Series":
        _warn_of_index(value)
        released = _saturate(release(numeric_array(_array_of_series(value))))
        if library == "polars":
            return type(value)(value.name, released)
        return type(value)(released, index=value.index, name=value.name)
    if hasattr(type(value), "columns"):  # A frame of any library, or a relation of DuckDB.
        raise ArgumentTypeError(
            f"value must be a number or numbers, got a {type(value).__name__}. To publish "
            "statistics of a frame, use dpnoise.statistics.publish."
        )
    raise ArgumentTypeError(
        "value must be an int, a float, a NumPy array, a list, a pandas or polars Series or a "
        f"PyTorch tensor, got {type(value).__name__}."
    )


def is_tensor(value: object) -> bool:
    """Return whether a value is a PyTorch tensor, without importing PyTorch."""
    return any(
        kind.__name__ == "Tensor" and kind.__module__.split(".")[0] == "torch"
        for kind in type(value).__mro__
    )


def _warn_of_index(series: Value) -> None:
    """Warn, before noise is drawn, that the index of a Series is published with its numbers."""
    index = getattr(series, "index", None)
    if index is not None and type(index).__name__ != "RangeIndex":
        warnings.warn(
            "The index of a Series is published unchanged. If its keys come from the data, as "
            "after a groupby, they reveal which groups exist. Reindex it by a declared list "
            "and release its to_numpy().",
            stacklevel=6,
        )


def _array_of_series(series: Value) -> Array:
    is_numeric = getattr(series.dtype, "is_numeric", lambda: True)
    if is_numeric():  # Polars would convert a struct's integers and floats to floats.
        with suppress(Exception):  # Each library raises other exceptions.
            return np.asarray(series.to_numpy())
    # Only the name: the type of an Enum contains its categories, which may be data.
    kind = type(series.dtype).__name__
    raise ArgumentTypeError(f"A Series must hold integers or floats, got {kind}.")


def _saturate(released: Array) -> Array:
    """Return unlimited integers as int64, saturating."""
    if released.dtype != object:
        return released
    clamped = [min(max(x, _INT64.min), _INT64.max) for x in released.flat]
    return np.array(clamped, dtype=np.int64).reshape(released.shape)


def _rebuild_container(value: list[Value] | tuple[Value, ...], released: list[Value]) -> Value:
    """Return a list for a list, and a tuple for a tuple; a named one keeps its names."""
    if isinstance(value, list):
        return released
    make = getattr(type(value), "_make", tuple)
    return make(released)
