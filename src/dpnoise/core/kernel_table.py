"""Lazy access to the kernels for the other packages.

`import dpnoise` must not import Numba, which is slow. So other packages reach the modules of
`dpnoise.kernels` through this one: the first use of `second_stage.settle_floats` imports all
kernels, and later uses are plain attribute look-ups. Type checkers see ordinary imports.

No signal interrupts an import or a compilation: an exception of a signal handler would leave the
library unusable until the process ends. A fork waits for both, because a lock that another thread
holds stays locked in the child.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from dpnoise.core.entropy import WORD, Key, gcm_is_wider
from dpnoise.core.signals import run_uninterrupted

__all__ = [
    "first_stage",
    "formats",
    "import_uninterrupted",
    "kernel_for_one",
    "load_kernels",
    "scipy_special",
    "second_stage",
    "sums",
    "variates",
]

# Held while a library is imported, and by a fork: see `_wait_for_imports`.
_importing: Final = threading.RLock()
_forking: Final = threading.local()
_Result = TypeVar("_Result")
Kernel = Callable[..., Any]  # Numba knows the types when it is called.


def import_uninterrupted(load: Callable[[], _Result]) -> _Result:
    """Call a function that imports modules; no signal interrupts it, and a fork waits for it."""
    with _importing:
        return run_uninterrupted(load)


@lru_cache(maxsize=1)
def scipy_special() -> ModuleType:
    """Return scipy.special, imported on first use because it is slow to import."""
    return import_uninterrupted(_import_special)


def _import_special() -> ModuleType:
    from scipy import special  # noqa: PLC0415 - `import dpnoise` must not import it

    # Some versions import more on the first call of a function.
    half = np.full(1, 0.5)
    for of_one in (special.ndtr, special.ndtri, special.gammaln):
        of_one(half)
    for of_two in (special.gammainc, special.gammaincinv, special.kv, special.xlogy):
        of_two(half, half)
    return special


@lru_cache(maxsize=1)
def load_kernels() -> ModuleType:
    """Import all kernels, and trigger the one-time work of Numba and of the cipher."""
    with _importing:
        kernels = import_uninterrupted(_import_kernels)
        Key.fresh().stream().fill(np.empty(1, dtype=WORD))
        run_uninterrupted(gcm_is_wider)
    return kernels


def _import_kernels() -> ModuleType:
    from dpnoise import kernels  # noqa: PLC0415 - as above
    from dpnoise.kernels import first_stage, formats, scalar, second_stage, sums, variates  # noqa: F401, PLC0415

    kernels.finish_importing()
    return kernels


class _KernelModule:
    """A module of `dpnoise.kernels` whose functions are prepared on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Kernel:
        kernel = _protect_compilation(getattr(getattr(load_kernels(), self._name), name))
        setattr(self, name, kernel)
        return kernel


if TYPE_CHECKING:
    from dpnoise.kernels import first_stage, formats, second_stage, sums, variates
else:
    first_stage = _KernelModule("first_stage")
    formats = _KernelModule("formats")
    second_stage = _KernelModule("second_stage")
    sums = _KernelModule("sums")
    variates = _KernelModule("variates")


def _protect_compilation(kernel: Kernel) -> Kernel:
    """Protect the compilation of a kernel from signals; silence NumPy where Numba is disabled."""
    internals = load_kernels().numba_internals
    if internals.is_kernel(kernel):
        internals.compile_by(kernel, _compile)
        return kernel

    @wraps(kernel)
    def without_warnings(*arguments: object) -> object:
        with np.errstate(all="ignore"):
            return kernel(*arguments)

    return without_warnings


def _compile(function: Callable[[], _Result]) -> _Result:
    """Call a function that compiles, without interruption by signals.

    A thread that already holds Numba's compiler lock calls it directly: another thread would wait
    for that lock forever.
    """
    if load_kernels().numba_internals.is_compiling():
        return function()
    return run_uninterrupted(function)


@lru_cache(maxsize=64)
def kernel_for_one(kernel: Kernel, kinds: str) -> Kernel:
    """Return a kernel for one number as machine code that is called without Numba's dispatch.

    It takes bytes, and then arguments of these kinds: i for int64, u for uint64, f for float64, p
    for one of Python's integers, whose digits are read as they are.
    """
    kernels = load_kernels()
    code: Kernel = _compile(lambda: kernels.scalar.without_dispatch(kernel, kinds))
    if kernels.numba_internals.is_kernel(kernel):
        return code
    return lambda *arguments: np.asarray(code(*arguments)).item()


def _wait_for_imports() -> None:
    """Let a fork wait until no other thread imports or compiles a kernel.

    A child has none of the parent's other threads. A lock that one of them holds, Python's for a
    module that is being imported or Numba's for its compiler, stays locked in the child for ever.
    """
    _forking.held = held = ExitStack()
    held.enter_context(_importing)
    # Other code in this process may have imported Numba and be compiling.
    if numba := sys.modules.get("numba.core.compiler_lock"):
        held.enter_context(numba.global_compiler_lock)


def _release_after_fork() -> None:
    """Release in parent and child what the fork has waited for."""
    held: ExitStack | None = vars(_forking).pop("held", None)
    if held:
        held.close()


if hasattr(os, "register_at_fork"):
    # The last to register is the first to be called before a fork. These two take locks there that
    # an import may need: they must have registered, so that we wait before they take them.
    import concurrent.futures.thread  # noqa: F401
    import logging  # noqa: F401

    os.register_at_fork(
        before=_wait_for_imports,
        after_in_parent=_release_after_fork,
        after_in_child=_release_after_fork,
    )
