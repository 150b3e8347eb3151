"""Compiled arithmetic: words in, numbers out. These kernels draw no entropy and allocate nothing.

Every kernel compiles once and is kept on disk (`dpnoise.kernels.cache`). Without fast-math Numba
fuses no multiply-add, so a result does not depend on how LLVM vectorises a loop. Formulas call
`fma` where they want it.
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


def compile_kernel(function: _Function) -> _Function:
    """Compile a function for the CPU, cached, without the GIL, with NumPy's division by zero.

    LLVM inlines all calls between kernels (`forceinline`), because it does not vectorise a loop
    with a call. Numba's own inlining is off. No C code calls kernels, so Numba compiles no C
    wrapper.
    """
    return _compile(function, "never")


def compile_inline(function: _Function) -> _Function:
    """Compile a small function only as a part of each kernel that calls it: Numba inlines it.

    The machine code is the same, and the first call is faster: Numba compiles fewer functions.
    """
    return _compile(function, "always")


def _compile(function: _Function, numba_inline: str) -> _Function:
    cache = KernelCache(function)
    jit = numba.njit(
        nogil=True,
        error_model="numpy",
        forceinline=True,
        no_cfunc_wrapper=True,
        inline=numba_inline,
        **numba_internals.memory_options(allocates=cache.allocates),
    )
    kernel = jit(function)
    if numba_internals.is_kernel(kernel):
        numba_internals.set_cache(kernel, cache)
    return cast("_Function", kernel)


@compile_kernel
def _warm_up(values: Floats, whole: int, real: float) -> int:
    """Compute nothing useful: the first call imports modules of Numba."""
    return values.size


@lru_cache(maxsize=1)
def finish_importing() -> None:
    """Import the modules that Numba imports only on the first call of a kernel from the disk.

    The compiler's, about 200, are imported by the first kernel that is compiled, under its lock.
    """
    numba_internals.import_lazy_modules()
    _warm_up(np.empty(0), 0, 0.0)
