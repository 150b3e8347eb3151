"""Change the floating-point environment of a thread: rounding mode, flushing of subnormals."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

libm = ctypes.CDLL(None)

# For each processor: the numbers of its rounding modes (down, up, to zero), where the control
# register is in glibc's fenv_t, in 32-bit words, and the bits that flush subnormals to zero.
PROCESSORS: dict[str, tuple[tuple[int, int, int], int, int]] = {
    "x86_64": ((0x400, 0x800, 0xC00), 7, 0x8040),  # MXCSR: flush-to-zero, denormals-are-zero
    "aarch64": ((0x800000, 0x400000, 0xC00000), 0, 0x1080000),  # FPCR: FZ, and FZ16 for half floats
}
MODES, REGISTER, FLUSH = PROCESSORS.get(os.uname().machine, ((0, 0, 0), 0, 0))
needs_known_registers = pytest.mark.skipif(
    os.uname().sysname != "Linux" or os.uname().machine not in PROCESSORS,
    reason=f"knows the registers of {' and '.join(PROCESSORS)} on Linux, not {os.uname().machine}",
)


@contextmanager
def rounding_mode(mode: int) -> Iterator[None]:
    """Use another rounding mode."""
    before = libm.fegetround()
    assert libm.fesetround(mode) == 0
    try:
        yield
    finally:
        libm.fesetround(before)


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Flush subnormal inputs and results to zero."""
    environment = (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    changed = (ctypes.c_uint32 * 8)(*environment)
    changed[REGISTER] |= FLUSH
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(environment)
