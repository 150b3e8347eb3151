"""Kinds of values: what comes in as an array, a list or a Series goes out as the same kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, ArgumentTypeError

Array = NDArray[Any]


def release_like(value: Any, release: Callable[[Array], Array]) -> Any:
    """Release the numbers of an array, a list, a tuple or a Series, and return the same kind."""
    library = type(value).__module__.split(".")[0]
    if isinstance(value, np.ndarray):
        return release(value)
    if isinstance(value, list | tuple):
        return type(value)(release(_array_of(value)).tolist())
    if library == "pandas" and type(value).__name__ == "Series":
        return type(value)(release(value.to_numpy()), index=value.index, name=value.name)
    if library == "polars" and type(value).__name__ == "Series":
        return type(value)(value.name, release(value.to_numpy()))
    raise ArgumentTypeError(
        "Expected value to be a number, a NumPy array, a list, or a pandas or polars Series, "
        f"got {type(value).__name__}."
    )


def _array_of(numbers: list[Any] | tuple[Any, ...]) -> Array:
    """Return a list as an array; integers beyond 64 bits stay Python's."""
    array = np.asarray(numbers)
    if array.dtype.kind == "u" or (array.dtype.kind == "f" and _only_integers(numbers)):
        return np.asarray(numbers, dtype=object)
    return array.astype(np.float64) if array.size == 0 else array


def _only_integers(numbers: Any) -> bool:
    if isinstance(numbers, list | tuple):
        return all(_only_integers(number) for number in numbers)
    return isinstance(numbers, int | np.integer)


def check_finite(array: NDArray[np.float64]) -> None:
    """Raise before any noise is drawn if a value is NaN or infinite, without showing a value."""
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise ArgumentError(f"Expected every value to be finite, got {bad} NaN or infinite.")
