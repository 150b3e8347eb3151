"""Every use of Numba's internals, and the versions that it was tested with.

No other module uses a private attribute of Numba or a class of `numba.core`, with one exception:
`dpnoise.core.kernel_table` takes the compiler lock if other code has imported Numba.
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
from numba.core.runtime import rtsys  # noqa: E402
from numba.core.serialize import dumps  # noqa: E402

# An object of Numba or llvmlite, which publish no types. An overload and the function that it
# returns need the same annotations, because Numba compares them.
Untyped = Any
Kernel = Callable[..., Any]  # A compiled function, whose types are known when it is called.
Kept = tuple[object, tuple[object, ...]]  # A signature, and the data that Numba rebuilds code from.

# Settings that change the machine code, in addition to Numba's description of the processor.
_SETTINGS: Final = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")


def is_kernel(function: object) -> bool:
    """Return whether Numba compiles a function; it does not if NUMBA_DISABLE_JIT is 1."""
    return isinstance(function, Dispatcher)


def is_compiling() -> bool:
    """Return whether this thread holds Numba's compiler lock."""
    locked: bool = global_compiler_lock.is_locked()
    return locked


def memory_options(*, allocates: bool) -> dict[str, Untyped]:
    """Return the options of a kernel that allocates arrays, or that must not compile if it does."""
    return {"_nrt": allocates}


def set_cache(kernel: Untyped, cache: NullCache) -> None:
    """Set the cache of a kernel; Numba's public setter accepts only its own cache."""
    kernel._cache = cache  # noqa: SLF001


def compile_by(kernel: Untyped, run: Callable[[Callable[[], object]], object]) -> None:
    """Make a kernel call `run` with the function that compiles or loads it for new types."""
    compile_for = kernel._compile_for_args  # noqa: SLF001
    kernel._compile_for_args = lambda *arguments, **named: run(  # noqa: SLF001
        lambda: compile_for(*arguments, **named)
    )


def machine_code(kernel: Untyped, signature: tuple[object, ...]) -> Kernel:
    """Return the machine code for a signature, to be called without Numba's dispatch."""
    kernel.compile(signature)
    code: Kernel = kernel.get_overload(signature)
    return code


def import_lazy_modules() -> None:
    """Import the modules that Numba imports only when it loads or compiles a kernel."""
    for module in ("numba.core.boxing", "numba.core.runtime.context", "numba.cpython.numbers"):
        import_module(module)


class CodeCache(NullCache):  # type: ignore[misc] # Numba publishes no types
    """The base of a cache for the machine code of one kernel."""

    # Whether the kernel allocates arrays. If so it needs Numba's runtime, which takes longer to
    # compile than a kernel takes to load.
    allocates: bool

    def read(self, described: str) -> Kept:
        """Return the entry of a signature; raise if there is none."""
        raise NotImplementedError

    def write(self, described: str, data: bytes) -> None:
        """Write the pickled entry of a signature."""
        raise NotImplementedError

    def load_overload(self, sig: object, target_context: Untyped) -> CompileResult | None:
        """Return the compiled function for a signature, or None."""
        # Of a refresh, code from the disk needs at most the runtime: the rest imports 200 modules
        # and SciPy for the compiler, which refreshes the context itself.
        if self.allocates:
            rtsys.initialize(target_context)
        try:
            kept, code = self.read(describe(sig, target_context.codegen()))
            return CompileResult._rebuild(target_context, *code) if kept == sig else None  # noqa: SLF001
        except Exception:  # noqa: BLE001 - after any damage the kernel can be compiled again
            return None

    def save_overload(self, sig: object, data: CompileResult) -> None:
        """Write a compiled function to the cache, if possible."""
        with suppress(Exception):
            if not data.library.has_dynamic_globals:
                self.write(describe(sig, data.codegen), dumps((sig, data._reduce())))  # noqa: SLF001


def describe(sig: object, codegen: Untyped) -> str:
    """Return a description of a signature, this processor and the settings of the compiler."""
    settings = [getattr(config, name, None) for name in _SETTINGS]
    return repr((sig, codegen.magic_tuple(), settings))
