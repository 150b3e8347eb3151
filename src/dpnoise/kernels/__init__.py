"""Compiled arithmetic: words in, numbers out. No entropy, no policy, no allocation.

Every kernel compiles once and is cached on disk. Numba allows no fused multiply-add of its own
accord here (no fast-math), so a result does not depend on how a loop was vectorised: the fused
operations are those that the formulas ask for by name.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
from numba.core.dispatcher import Dispatcher

_BYTES = numba.types.Bytes(numba.types.uint8, 1, "C")
_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile a function for the CPU: cached, without the interpreter's lock, NumPy's division.

    Calls between kernels are always inlined: LLVM vectorises no loop with a call in it.
    """
    jit = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
    return cast("_Function", jit(function))


def without_dispatch(function: Callable[..., float], floats: int) -> Callable[..., float]:
    """Return the machine code for bytes, an integer, then floats, without Numba's dispatch."""
    if not isinstance(function, Dispatcher):
        return function  # The compiler is off (NUMBA_DISABLE_JIT=1).
    signature = (_BYTES, numba.int64) + (numba.float64,) * floats
    function.compile(signature)
    return cast("Callable[..., float]", function.get_overload(signature))
