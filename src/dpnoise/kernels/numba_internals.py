"""Every use of Numba beyond its documented interface, and the versions that it was tested with.

Nothing else in dpnoise names a private attribute of Numba or a class of `numba.core`, but for the
compiler's lock, which `dpnoise.core.kernel_table` finds in other people's Numba too.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import numba

OLDEST: Final = (0, 61)
NEWEST: Final = (0, 68)


def check_version(version: str) -> None:
    """Raise ImportError unless Numba is one that these internals were tested with."""
    minor = tuple(int(part) for part in version.split(".")[:2])
    if not OLDEST <= minor <= NEWEST:
        oldest, newest, after = (
            f"{number[0]}.{number[1]}" for number in (OLDEST, NEWEST, (NEWEST[0], NEWEST[1] + 1))
        )
        raise ImportError(
            f"dpnoise uses internals of Numba and was tested with Numba {oldest} to {newest}, got "
            f'{version}. Install one of these: pip install "numba>={oldest},<{after}"'
        )


check_version(numba.__version__)

from numba.core import config  # noqa: E402 - another version may have no such modules
from numba.core.caching import NullCache  # noqa: E402
from numba.core.compiler import CompileResult  # noqa: E402
from numba.core.compiler_lock import global_compiler_lock  # noqa: E402
from numba.core.dispatcher import Dispatcher  # noqa: E402
from numba.core.serialize import dumps  # noqa: E402

# An object of Numba or llvmlite, which publish no types. Parameters of an overload and of what it
# returns have this one: Numba compares their annotations.
Untyped = Any
Kernel = Callable[..., Any]  # A compiled function: its types are known when it is called.
Kept = tuple[object, tuple[object, ...]]  # A signature, and what Numba rebuilds its code from.

# What changes the machine code beside Numba's description of the processor.
_SETTINGS: Final = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")


def is_kernel(function: object) -> bool:
    """Tell whether Numba compiles a function; it does not where NUMBA_DISABLE_JIT is 1."""
    return isinstance(function, Dispatcher)


def is_compiling() -> bool:
    """Tell whether this thread holds the compiler's lock."""
    locked: bool = global_compiler_lock.is_locked()
    return locked


def set_cache(kernel: Untyped, cache: NullCache) -> None:
    """Let a kernel keep its machine code in a cache of ours; Numba's setter knows its own only."""
    kernel._cache = cache  # noqa: SLF001


def compile_by(kernel: Untyped, run: Callable[[Callable[[], object]], object]) -> None:
    """Let `run` call what compiles or loads a kernel when it meets new types."""
    compile_for = kernel._compile_for_args  # noqa: SLF001
    kernel._compile_for_args = lambda *arguments, **named: run(  # noqa: SLF001
        lambda: compile_for(*arguments, **named)
    )


def machine_code(kernel: Untyped, signature: tuple[object, ...]) -> Kernel:
    """Return the machine code for one signature, which is called without Numba's dispatch."""
    kernel.compile(signature)
    code: Kernel = kernel.get_overload(signature)
    return code


def import_the_rest() -> None:
    """Import what Numba leaves to the first kernel that is compiled, and not loaded."""
    for module in ("numba.core.boxing", "numba.core.runtime.context"):
        import_module(module)


class CodeCache(NullCache):  # type: ignore[misc] # Numba publishes no types
    """Keeps the machine code of one kernel where a subclass puts it."""

    def read(self, described: str) -> Kept:
        """Return what was written for a signature; raise if nothing was."""
        raise NotImplementedError

    def write(self, described: str, data: bytes) -> None:
        """Keep the pickle of what `read` returns."""
        raise NotImplementedError

    def load_overload(self, sig: object, target_context: Untyped) -> CompileResult | None:
        """Return what is kept for a signature, or None."""
        target_context.refresh()
        try:
            kept, code = self.read(describe(sig, target_context.codegen()))
            return CompileResult._rebuild(target_context, *code) if kept == sig else None  # noqa: SLF001
        except Exception:  # noqa: BLE001 - however it is damaged, the kernel can be compiled
            return None

    def save_overload(self, sig: object, data: CompileResult) -> None:
        """Keep a compiled function, if that can be done."""
        with suppress(Exception):
            if not data.library.has_dynamic_globals:
                self.write(describe(sig, data.codegen), dumps((sig, data._reduce())))  # noqa: SLF001


def describe(sig: object, codegen: Untyped) -> str:
    """Describe a signature on this processor, under the settings that change machine code."""
    settings = [getattr(config, name, None) for name in _SETTINGS]
    return repr((sig, codegen.magic_tuple(), settings))
