"""Compiled arithmetic: words in, numbers out. No entropy, no policy, no allocation.

Every kernel compiles once and is kept on disk (`dpnoise.kernels.cache`). Numba allows no fused
multiply-add of its own accord here (no fast-math), so a result does not depend on how a loop was
vectorised: the fused operations are those that the formulas ask for by name.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from dpnoise.kernels import numba_internals
from dpnoise.kernels.cache import KernelCache

Truth = bool | np.bool_
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile a function for the CPU: cached, without the interpreter's lock, NumPy's division.

    Calls between kernels are always inlined: LLVM vectorises no loop with a call in it. Nobody
    calls them from C, so Numba need not compile an entry for that.
    """
    return _compiled(function, "never")


def inlined(function: _Function) -> _Function:
    """Compile a small function as a part of each kernel that calls it, and not by itself.

    Machine code is the same. Every function that Numba compiles by itself costs the first call, and
    one around a large function optimises that anew.
    """
    return _compiled(function, "always")


def _compiled(function: _Function, inline: str) -> _Function:
    jit = numba.njit(
        nogil=True, error_model="numpy", forceinline=True, no_cfunc_wrapper=True, inline=inline
    )
    kernel = jit(function)
    if numba_internals.is_kernel(kernel):
        numba_internals.set_cache(kernel, KernelCache(function))
    return cast("_Function", kernel)


@compiled
def _first(values: Floats, whole: int, real: float) -> int:
    return values.size


@lru_cache(maxsize=1)
def finish_importing() -> None:
    """Call a kernel, because Numba leaves some two hundred imports to the first call.

    Some of them are for compiling: this kernel may lie on the disk, where the next one does not.
    """
    numba_internals.import_the_rest()
    _first(np.empty(0), 0, 0.0)
