"""Checked conversion of user input to the plain arrays that kernels take, without rounding.

A kernel trusts the shape, the strides and the memory of an array. A subclass may redefine them and
a view may overlap itself. NumPy's conversions may round integers, swap bytes, warn, or lose
subnormals where the processor flushes them to zero. This module handles all of these cases.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    RoundingModeError,
    check_positive,
    is_integer,
)
from dpnoise.core.kernel_table import formats

Array = NDArray[Any]  # Of numbers of any kind.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
DType = np.dtype[Any]
NumPyInteger = np.integer[Any]
AnyUnsigned = np.unsignedinteger[Any]
# A number or an array, depending on the arguments: a union would burden every caller.
Numbers = Any
Shape = tuple[int, ...]

# Significand bits, smallest normal exponent and unsigned integer type of each narrow format.
_NARROW: Final[dict[DType, tuple[int, int, type[AnyUnsigned]]]] = {
    np.dtype(np.float32): (24, -126, np.uint32),
    np.dtype(np.float16): (11, -14, np.uint16),
}
_MAX_DIMENSIONS: Final = 32  # Of a nested list, including the arrays in it.
_TOO_DEEP: Final = f"A list must have at most {_MAX_DIMENSIONS} dimensions."
_MAX_EXACT_INTEGER: Final = 2**53  # Every integer up to this magnitude is a float.
_FLOAT_TYPES: Final = (np.dtype(np.float64), *_NARROW)
# Named, because Python would add literals when it compiles and not in the caller's rounding mode.
_ONE: Final = 1.0
_UNIT: Final = 2.0**-53
_THREE_UNITS: Final = 3 * _UNIT


def check_rounding_mode() -> None:
    """Raise unless this thread rounds to nearest, ties to even.

    With u = 2^-53, 1 + 3u lies halfway between two floats and so does 1 + u. Rounded to nearest the
    two sums are 4u apart, in every other mode 2u. Their difference is exact in all modes.
    """
    if (_ONE + _THREE_UNITS) - (_ONE + _UNIT) != 4 * _UNIT:
        raise RoundingModeError(
            "The floating-point rounding mode of this thread is not round-to-nearest: some library "
            "changed it (fesetround). Call dpnoise from a thread where it has not been changed."
        )


def as_plain_array(array: Array) -> Array:
    """Return an array as a base-class array in native byte order, aligned and contiguous."""
    # NumPy imports this module when it is first used, so without it there are no masked arrays.
    masked = sys.modules.get("numpy.ma")
    if masked and isinstance(array, masked.MaskedArray):
        raise ArgumentTypeError("Masked arrays are not supported: give array.compressed().")
    array = np.asarray(array)
    if array.dtype.kind not in "iufbO":
        raise ArgumentTypeError(_wrong_kind_message(f"an array of {array.dtype}"))
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.require(native, requirements=["C_CONTIGUOUS", "ALIGNED"])


def numeric_array(array: Array) -> Array:
    """Return a plain array of integers (dtype object for Python ints of any size) or floats.

    Any other kind is an error: a conversion that rounds could move a value by more than its
    sensitivity before the noise is added.
    """
    array = as_plain_array(array)
    if array.dtype == object:
        if all(is_integer(entry) for entry in array.flat):
            return array
    elif array.dtype.kind in "iu" or array.dtype in _FLOAT_TYPES:
        return array
    raise ArgumentTypeError(_wrong_kind_message(f"an array of {array.dtype}"))


def _wrong_kind_message(kind: str) -> str:
    return (
        f"Values must be integers, or floats of at most 64 bits, got {kind}. Convert them first; "
        "the sensitivity must hold for the converted values."
    )


def array_from_list(entries: Sequence[object]) -> Array:
    """Return nested lists, tuples and arrays as one array of integers of any size, or of floats.

    The result's type depends on the types in the list, never on the values. NumPy would choose
    int64, uint64, float64 or object by the values.
    """
    shape, leaves = _flatten(entries)
    if len(shape) > _MAX_DIMENSIONS:
        raise ArgumentTypeError(_TOO_DEEP)
    if leaves and all(map(_is_integral, set(map(type, leaves)))):
        integers = np.empty(len(leaves), dtype=object)
        integers[:] = [int(leaf) for leaf in leaves]
        return integers.reshape(shape)
    numbers: list[int | float] = []
    for leaf in leaves:
        try:
            numbers.append(as_number(leaf))
        except ArgumentTypeError:
            at = f" at index {len(numbers)}" if len(shape) == 1 else ""
            raise ArgumentTypeError(_wrong_kind_message(f"a {type(leaf).__name__}{at}")) from None
    floats = list(map(_exact_float, numbers))
    return np.array(floats, dtype=np.float64).reshape(shape)


def _is_integral(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and not issubclass(kind, bool | np.timedelta64)


def _flatten(entries: object, depth: int = 0) -> tuple[Shape, list[Any]]:
    """Return the shape of a nested list, and its numbers in order."""
    if depth > _MAX_DIMENSIONS:
        raise ArgumentTypeError(_TOO_DEEP)
    if isinstance(entries, np.ndarray):
        entries = numeric_array(entries)
        leaves: list[Any] = entries.reshape(-1).tolist()
        if entries.dtype in _NARROW:
            leaves = to_float64(entries).reshape(-1).tolist()
        return entries.shape, leaves
    if not isinstance(entries, list | tuple):
        return (), [entries]
    if not any(issubclass(kind, list | tuple | np.ndarray) for kind in set(map(type, entries))):
        return (len(entries),), list(entries)
    rows = [_flatten(entry, depth + 1) for entry in entries]
    if len({shape for shape, _ in rows}) > 1:
        raise ArgumentTypeError("The rows of a nested list must have the same length.")
    return (len(rows), *rows[0][0]), [leaf for _, leaves in rows for leaf in leaves]


def as_number(entry: object) -> int | float:
    """Return an integer as an int and a float of at most 64 bits as a float, both exactly."""
    if is_integer(entry):
        return int(entry)
    if isinstance(entry, float):
        return float(entry)
    if isinstance(entry, np.float32 | np.float16):
        return float(to_float64(np.asarray(entry)))
    raise ArgumentTypeError(_wrong_kind_message(f"a {type(entry).__name__}"))


def _exact_float(number: float) -> float:
    """Return an int or a float as a float; raise on an int above 2^53, which could round."""
    if isinstance(number, int) and abs(number) > _MAX_EXACT_INTEGER:
        raise ArgumentTypeError(
            "Integers in a list with floats become floats, so their magnitude must be at most "
            "2^53. Give only integers or only floats."
        )
    return float(number)


def to_float64(array: Array) -> Floats:
    """Return a plain array of floats as float64, exactly, in every mode of the processor.

    float32 and float16 are decoded from their bits. A conversion would lose subnormals where the
    processor flushes them to zero, and would report signalling NaNs.
    """
    if array.dtype not in _NARROW:
        return np.asarray(array, dtype=np.float64)
    digits, emin, unsigned = _NARROW[array.dtype]
    out = np.empty(array.size)
    formats.widen(array.reshape(-1).view(unsigned), digits, emin, out)
    return out.reshape(array.shape)


def round_to_dtype(values: Floats, dtype: DType) -> Array:
    """Return finite float64 values rounded once to `dtype`, never -0.0.

    The values lie within the range of the format. As in `to_float64`, the bits are
    computed with integers.
    """
    if dtype not in _NARROW:
        return values
    digits, emin, unsigned = _NARROW[dtype]
    patterns = np.empty(values.size, dtype=unsigned)
    formats.narrow(values.reshape(-1), digits, emin, patterns)
    return patterns.view(dtype).reshape(values.shape)


def exact_floats(value: object) -> Floats:
    """Return a list or an array of numbers as float64; raise on what float64 does not hold."""
    if isinstance(value, list | tuple):
        array = array_from_list(value)
    else:
        array = numeric_array(value if isinstance(value, np.ndarray) else np.asarray(value))
    if array.dtype.kind == "f":
        return to_float64(array)
    floats = [_exact_float(int(entry)) for entry in array.flat]
    return np.array(floats, dtype=np.float64).reshape(array.shape)


def check_positive_array(name: str, value: object) -> Floats:
    """Return `value` as a float64 array whose entries are all finite and above zero, exactly."""
    if isinstance(value, list | tuple) or hasattr(value, "__array__"):
        array = exact_floats(value)
    else:
        array = np.array(check_positive(name, value))
    # Raise for the first entry that is not positive, with the usual message.
    for entry in array[~(np.isfinite(array) & (array > 0))].flat[:1]:
        check_positive(name, float(entry))
    return array


def check_no_overlap(out: Array) -> None:
    """Raise if two elements of `out` may share memory: they would share their noise."""
    # From the smallest stride on, each stride must step past the extent of the smaller dimensions.
    extent = out.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True)):
        if out.size and size > 1:
            if stride < extent:
                raise ArgumentError("out must not have two elements that share memory.")
            extent += stride * (size - 1)
