"""Whether a file compressed by zstd is complete: DuckDB reads what there is without an error.

Frames and blocks have their sizes in front (RFC 8878, section 3.1), so that the file is walked
through without being decompressed.
"""

import os
from pathlib import Path
from typing import IO, Final

from dpnoise.core.errors import ArgumentError

_FRAME: Final = 0xFD2FB528
_SKIPPABLE_FRAME: Final = 0x184D2A5  # Without its last four bits, which are free.
_ID_SIZES: Final = (0, 1, 2, 4)
_CONTENT_SIZES: Final = (0, 2, 4, 8)
_RUN: Final = 1  # The type of a block that repeats one byte.


def is_zstd(path: str) -> bool:
    """Tell whether a file is compressed by zstd, as its name says."""
    return Path(path).suffix.lower() == ".zst"


def check_complete(path: str) -> None:
    """Raise if a file compressed by zstd ends in the middle, or holds something else."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            while file.tell() != size:
                _skip_frame(file)
        except EOFError:
            raise ArgumentError(
                f"{path} is damaged: its data compressed by zstd is not complete. Write it again."
            ) from None


def _skip_frame(file: IO[bytes]) -> None:
    magic = _number(file, 4)
    if magic >> 4 == _SKIPPABLE_FRAME:
        file.seek(_number(file, 4), os.SEEK_CUR)
        return
    if magic != _FRAME:
        raise EOFError
    descriptor = _number(file, 1)
    is_single_segment = descriptor >> 5 & 1
    content_size = _CONTENT_SIZES[descriptor >> 6] or is_single_segment
    window = 1 - is_single_segment
    file.seek(window + _ID_SIZES[descriptor & 3] + content_size, os.SEEK_CUR)
    while not _skip_block(file):
        pass
    has_checksum = descriptor >> 2 & 1
    file.seek(4 * has_checksum, os.SEEK_CUR)


def _skip_block(file: IO[bytes]) -> bool:
    """Skip a block; return whether it is the last one of its frame."""
    block = _number(file, 3)
    size = 1 if block >> 1 & 3 == _RUN else block >> 3
    file.seek(size, os.SEEK_CUR)
    return bool(block & 1)


def _number(file: IO[bytes], size: int) -> int:
    """Read an integer of `size` bytes."""
    held = file.read(size)
    if len(held) < size:
        raise EOFError
    return int.from_bytes(held, "little")
