"""Call kernels for one number without dispatch, and read a Python integer in constant time.

CPython stores an integer as a sign, a number of digits and digits of 30 bits, and branches on them
in every operation. A kernel that takes `PYTHON_INTEGER` gets the object's address: the same loads
and the same arithmetic read every integer of up to 63 bits.
"""

import sys
from functools import wraps
from typing import Final

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import NativeValue, intrinsic, models, overload, register_model, unbox

from dpnoise.kernels import numba_internals
from dpnoise.kernels.elementary import Intrinsic
from dpnoise.kernels.fixed import mask_of
from dpnoise.kernels.numba_internals import Kernel, Untyped

_RAISE: Final = 2**63
_RAISE_FIRST: Final = 2**29
_RAISE_THEN: Final = _RAISE - _RAISE_FIRST
_0, _1, _2, _3, _7 = (np.uint64(k) for k in (0, 1, 2, 3, 7))
_30, _32, _60 = (np.uint64(k) for k in (30, 32, 60))
_SIGN = np.uint64(2**63)

# The digits are at the end of an integer. The word before them holds their number: until Python
# 3.11 negated for a negative integer, since then in the upper 61 bits, with the sign in the second
# lowest bit.
_DIGITS: Final = int.__basicsize__
_SIGNED_COUNT: Final = sys.version_info < (3, 12)
READABLE: Final = (
    sys.implementation.name == "cpython"
    and sys.version_info < (3, 15)
    and sys.byteorder == "little"
    and sys.int_info[:2] == (30, 4)
    and sys.maxsize == 2**63 - 1
    and not numba.config.DISABLE_JIT
)


class PythonInteger(types.Type):  # type: ignore[misc] # Numba publishes no types
    """The address of a Python integer; the caller guarantees the type."""

    def __init__(self) -> None:
        super().__init__("python_integer")


PYTHON_INTEGER: Final = PythonInteger()
_BYTES: Final = types.Bytes(types.uint8, 1, "C")
_KINDS: Final = {"i": types.int64, "u": types.uint64, "f": types.float64, "p": PYTHON_INTEGER}


def without_dispatch(function: Kernel, kinds: str) -> Kernel:
    """Return a function's machine code for bytes, then numbers of these kinds, without dispatch."""
    if "p" in kinds and not READABLE:
        return _accept_python_integers(without_dispatch(function, kinds.replace("p", "u")))
    if not numba_internals.is_kernel(function):
        return function  # Numba's compiler is disabled.
    return numba_internals.machine_code(function, (_BYTES, *(_KINDS[kind] for kind in kinds)))


@register_model(PythonInteger)
class _Address(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: object, of: object) -> None:
        super().__init__(manager, of, ir.IntType(64))


@unbox(PythonInteger)  # type: ignore[untyped-decorator]
def _address(_type: object, integer: ir.Value, c: Untyped) -> NativeValue:
    return NativeValue(c.builder.ptrtoint(integer, ir.IntType(64)))


@intrinsic  # type: ignore[untyped-decorator]
def _digit(_context: object, integer: types.Type, i: types.Type) -> Intrinsic:
    """Return the 32 bits of digit i, an int64; -2 and -1 are the word before the digits."""

    def read(
        _context: object, builder: ir.IRBuilder, _signature: object, arguments: list[ir.Value]
    ) -> ir.Value:
        word = arguments[0].type
        start = builder.add(arguments[0], word(_DIGITS))
        place = builder.add(start, builder.shl(arguments[1], word(2)))
        pointer = builder.inttoptr(place, ir.IntType(32).as_pointer())
        return builder.zext(builder.load(pointer), word)

    return types.uint64(integer, i), read


def raised_word(number: Untyped) -> np.uint64:
    """Return a Python integer plus 2^63, or 0 if it has more than 63 bits; return words as is."""
    return np.uint64(number)


@overload(raised_word, inline="always")  # type: ignore[untyped-decorator]
def _raised_word(number: Untyped) -> Untyped:
    return _read if isinstance(number, PythonInteger) else raised_word


def _read(number: Untyped) -> Untyped:
    """Read a Python integer."""
    tag = _digit(number, np.int64(-2)) | (_digit(number, np.int64(-1)) << _32)
    if _SIGNED_COUNT:
        sign = mask_of(tag)
        count = (tag ^ sign) - sign
    else:
        sign = _0 - ((tag >> _1) & _1)
        count = tag >> _3
    # Instead of a missing digit, the first one is read and masked.
    one, two, three = mask_of(_0 - count), mask_of(_1 - count), mask_of(_2 - count)
    first = _digit(number, np.int64(0)) & one
    second = _digit(number, np.int64(_1 & two)) & two
    third = _digit(number, np.int64(_2 & three)) & three
    magnitude = first | (second << _30) | (third << _60)
    fits = ~(mask_of(_3 - count) | mask_of(_7 - third))
    return (((magnitude ^ sign) - sign) ^ _SIGN) & fits


def _accept_python_integers(kernel: Kernel) -> Kernel:
    """Let a kernel for raised integers take a Python integer, where the kernel cannot read one.

    The first sum depends on the integer's own digits: CPython adds two numbers of one digit without
    branching on zero or the sign. After the second all integers of up to 63 bits have three digits.
    """

    @wraps(kernel)
    def wrapper(raw: bytes, value: int, *rest: float) -> object:
        word = _RAISE_THEN + (_RAISE_FIRST + value)
        return kernel(raw, word if 0 < word < 2 * _RAISE else 0, *rest)

    return wrapper
