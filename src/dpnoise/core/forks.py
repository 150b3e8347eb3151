"""Notice a fork, also one made by C code that Python does not see.

The child of a fork inherits all memory, so it would use the same buffer of random bits as its
parent. On Linux the kernel can give the child zeros instead of a page. Elsewhere the process
number changes.
"""

import ctypes
import mmap
import os
from contextlib import suppress
from typing import Final

# Linux 4.14 and later: a child of a fork finds zeros in this memory.
_MADV_WIPEONFORK: Final = 18


class _ProcessNumber:
    """A mark for systems that cannot wipe memory. Windows has no forks."""

    def __init__(self) -> None:
        self._number = os.getpid()

    def __bool__(self) -> bool:
        return os.getpid() == self._number


# True in the process that made it, and false in its children. The truth of a number of ctypes is
# the fastest read of memory in Python.
ProcessMark = ctypes.c_ubyte | _ProcessNumber


def wiped_memory(size: int) -> mmap.mmap | None:
    """Return zeroed memory that a child of a fork finds zeroed again, or None if not supported."""
    with suppress(AttributeError, OSError, ValueError):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(_MADV_WIPEONFORK)
        return memory
    return None


def _new_mark() -> ProcessMark:
    memory = wiped_memory(mmap.PAGESIZE)
    if memory is None:
        return _ProcessNumber()
    memory[0] = 1
    return ctypes.c_ubyte.from_buffer(memory)


_marks: Final = [_new_mark()]


def process_mark() -> ProcessMark:
    """Return the mark of this process."""
    mark = _marks[-1]
    if not mark:  # A child makes another one, and its parent's stays false.
        mark = _new_mark()
        _marks[:] = [mark]
    return mark
