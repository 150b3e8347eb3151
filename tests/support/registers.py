"""The floating-point environment of a thread, changed for a while: rounding, flushed subnormals."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

libm = ctypes.CDLL(None)

# How each processor numbers its rounding modes (down, up, to zero), where glibc's fenv_t keeps the
# control register, as the index of a 32-bit word, and its bits that flush subnormals to zero.
PROCESSORS: dict[str, tuple[tuple[int, int, int], int, int]] = {
    "x86_64": ((0x400, 0x800, 0xC00), 7, 0x8040),  # MXCSR: flush-to-zero, denormals-are-zero
    "aarch64": ((0x800000, 0x400000, 0xC00000), 0, 0x1080000),  # FPCR: FZ, and FZ16 for half floats
}
MODES, REGISTER, FLUSH = PROCESSORS.get(os.uname().machine, ((0, 0, 0), 0, 0))
known = pytest.mark.skipif(
    os.uname().sysname != "Linux" or os.uname().machine not in PROCESSORS,
    reason=f"knows the registers of {' and '.join(PROCESSORS)} on Linux, not {os.uname().machine}",
)


@contextmanager
def rounding_mode(mode: int) -> Iterator[None]:
    """Round in another way."""
    before = libm.fegetround()
    assert libm.fesetround(mode) == 0
    try:
        yield
    finally:
        libm.fesetround(before)


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Set the bits of the control register that flush subnormals to zero, read and written."""
    environment = (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    changed = (ctypes.c_uint32 * 8)(*environment)
    changed[REGISTER] |= FLUSH
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(environment)
