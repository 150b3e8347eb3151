"""Kinds of values: what comes in as an array, a list or a Series goes out as the same kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentTypeError

Array = NDArray[Any]

_FLOATS = (np.float64, np.float32, np.float16)


def release_like(value: Any, release: Callable[[Array], Array]) -> Any:
    """Release the numbers of an array, a list, a tuple or a Series, and return the same kind."""
    library = type(value).__module__.split(".")[0]
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError("Expected an array without a mask: release value.compressed().")
    if isinstance(value, np.ndarray):
        return release(_checked(np.asarray(value)))
    if isinstance(value, list | tuple):
        return type(value)(release(_checked(_array_of(value))).tolist())
    if library == "pandas" and type(value).__name__ == "Series":
        released = release(_checked(value.to_numpy()))
        return type(value)(released, index=value.index, name=value.name)
    if library == "polars" and type(value).__name__ == "Series":
        return type(value)(value.name, release(_checked(value.to_numpy())))
    raise ArgumentTypeError(
        "Expected value to be an int, a float, a NumPy array, a list, or a pandas or polars "
        f"Series, got {type(value).__name__}."
    )


def _checked(array: Array) -> Array:
    """Return an array of integers or of floats that float64 holds exactly; raise on any other.

    A conversion that rounds, before the noise, would move a value by more than its sensitivity.
    """
    if array.dtype == object:
        if all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in array.flat):
            return array
    elif array.dtype.kind in "iu" or array.dtype in _FLOATS:
        return array
    raise ArgumentTypeError(
        f"Expected integers, or floats of at most 64 bits, got an array of {array.dtype}. "
        "Convert it first, and see to the sensitivity of what you convert."
    )


def _array_of(numbers: list[Any] | tuple[Any, ...]) -> Array:
    """Return a list as an array: all integers, of any size, or all floats."""
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise ArgumentTypeError("Expected a list whose rows have one length.") from None
    if array.size == 0:
        return array.astype(np.float64)
    if array.dtype.kind == "u" or (array.dtype.kind == "f" and _any_integer(numbers)):
        integers = np.asarray(numbers, dtype=object)
        if array.dtype.kind == "u" or all(isinstance(x, int | np.integer) for x in integers.flat):
            return integers
        if any(isinstance(x, int | np.integer) and float(x) != x for x in integers.flat):
            raise ArgumentTypeError("Expected all integers or all floats: no float holds some.")
    return array


def _any_integer(numbers: Any) -> bool:
    if isinstance(numbers, list | tuple):
        return any(_any_integer(number) for number in numbers)
    return isinstance(numbers, int | np.integer)
