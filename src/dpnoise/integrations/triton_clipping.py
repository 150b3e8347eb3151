"""Per-sample gradients on a device: read once for their norms and once for their clipped sum.

A launch covers many tensors. Each is cut into tiles of its numbers, and `tiles` has a row for each:
the address of the tile in the first sample, how many numbers a sample has in that tensor, how many
of these are in the tile, where the tile's sums go, and which tile it is.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton.language.extra import libdevice

from dpnoise.integrations.triton_stream import INTERPRETED, STRICT

# As in clipping.py, which says what order numbers are added in.
ROWS = tl.constexpr(16)
LANES = tl.constexpr(1024)
FOLDS = tl.constexpr(10)
COLUMNS = tl.constexpr(5)
ALIGNED_NUMBERS = tl.constexpr(8)  # 16 bytes of the narrowest format.


if INTERPRETED:

    @triton.jit
    def truncated(x):
        """Round towards zero."""
        return tl.where(x < 0.0, -tl.floor(-x), tl.floor(x))

else:

    @triton.jit
    def truncated(x):
        """Round towards zero."""
        return libdevice.trunc(x)


@triton.jit
def tile_at(tiles, tile, like, aligned: tl.constexpr):
    """Return a row of the tiles; if `aligned`, the compiler may move 16 bytes at a time."""
    row = tiles + tile * COLUMNS
    first = tl.load(row).to(like.dtype)
    numbers, count, start = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    if aligned:
        first = tl.multiple_of(first, 16)
        numbers = tl.multiple_of(numbers, ALIGNED_NUMBERS)
        count = tl.multiple_of(count, ALIGNED_NUMBERS)
        start = tl.multiple_of(start, ALIGNED_NUMBERS)
    return first, numbers, count, start, tl.load(row + 4)


@triton.jit
def ordered_sums_kernel(
    tiles, like, every, out, columns, squares: tl.constexpr, aligned: tl.constexpr
):
    """Write the sum, or the sum of squares, of each tile of each sample, in float64.

    `every` is how many tiles are in this launch. `out` has a row for each sample, with a column for
    each tile of all launches.
    """
    program = tl.program_id(0).to(tl.int64)
    sample, tile = program // every, program % every
    first, numbers, count, _, column = tile_at(tiles, tile, like, aligned)
    lane = tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float64)
    for row in range(ROWS):
        at = row * LANES + lane
        x = tl.load(first + sample * numbers + at, mask=at < count, other=0.0).to(tl.float64)
        total += x * x if squares else x
    for fold in tl.static_range(FOLDS):
        total = tl.sum(tl.reshape(total, (LANES >> (fold + 1), 2)), axis=1)
    tl.store(out + sample * columns + column + tl.arange(0, 1), total)


@triton.jit
def clipped_sums_kernel(tiles, like, steps, samples, out, aligned: tl.constexpr):
    """Write the sums over the samples of gradients times `steps`, each cut to an integer.

    `steps` has a number for each sample, and last what the sums are multiplied with.
    """
    program = tl.program_id(0).to(tl.int64)
    first, numbers, count, start, _ = tile_at(tiles, program // ROWS, like, aligned)
    at = (program % ROWS) * LANES + tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float64)
    for sample in range(samples):
        x = tl.load(first + at, mask=at < count, other=0.0).to(tl.float64)
        total += truncated(x * tl.load(steps + sample))
        first += numbers
    tl.store(out + start + at, total * tl.load(steps + samples), mask=at < count)


_TILE = ROWS.value * LANES.value
_ALIGNED = ALIGNED_NUMBERS.value
_OPTIONS = {"num_warps": 4, **STRICT}


def ordered_sums(parts: Sequence[torch.Tensor], *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of the tiles of rows, a row for each sample."""
    tiles = _tiles(parts)
    samples, columns = len(parts[0]), len(tiles)
    out = parts[0].new_empty((samples, columns), dtype=torch.float64)
    with torch.cuda.device_of(out):
        for like, some, aligned in _launches(parts, tiles):
            ordered_sums_kernel[(samples * len(some),)](
                some, like, len(some), out, columns, squares=squares, aligned=aligned, **_OPTIONS
            )
    return out


def clipped_sums(
    gradients: Sequence[torch.Tensor], factor: torch.Tensor, step: float
) -> list[torch.Tensor]:
    """Return the sums of gradients times factors, cut to multiples of the step, in float64."""
    tiles, sizes = _tiles(gradients), [each.shape[1] for each in gradients]
    starts = _starts(sizes)
    out = factor.new_empty(starts[-1])
    with torch.cuda.device_of(out):
        steps = torch.cat([factor / step, factor.new_full((1,), step)])
        for like, some, aligned in _launches(gradients, tiles):
            grid = (len(some) * ROWS.value,)
            clipped_sums_kernel[grid](
                some, like, steps, len(factor), out, aligned=aligned, **_OPTIONS
            )
    places = zip(starts[:-1].tolist(), sizes, strict=True)
    return [out[start : start + size] for start, size in places]


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where each tensor's sums begin, where 16 bytes do, and the end of all."""
    padded = -(-np.array([0, *sizes], dtype=np.int64) // _ALIGNED) * _ALIGNED
    return np.cumsum(padded)


def _tiles(parts: Sequence[torch.Tensor]) -> NDArray[np.int64]:
    """Return the rows of all tiles of all tensors, and last of each the tensor's place."""
    tiles = _layout(
        tuple(part.shape[1] for part in parts), tuple(part.element_size() for part in parts)
    ).copy()
    tiles[:, 0] += np.array([part.data_ptr() for part in parts], dtype=np.int64)[tiles[:, -1]]
    return tiles


@lru_cache(maxsize=128)
def _layout(sizes: tuple[int, ...], widths: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the same for tensors that begin at 0."""
    numbers, many = np.array(sizes, dtype=np.int64), -(-np.array(sizes, dtype=np.int64) // _TILE)
    of = np.repeat(np.arange(len(sizes)), many)
    tile = np.arange(len(of))
    first = (tile - (np.cumsum(many) - many)[of]) * _TILE
    count = np.minimum(numbers[of] - first, _TILE)
    start = _starts(sizes)[of] + first
    columns = (first * np.array(widths, dtype=np.int64)[of], numbers[of], count, start, tile, of)
    return np.stack(columns, axis=1)


def _launches(
    parts: Sequence[torch.Tensor], tiles: NDArray[np.int64]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Yield for each launch a tensor of its dtype, its tiles, and whether they are aligned."""
    kinds = [(part.dtype, _is_aligned(part)) for part in parts]
    for kind in dict.fromkeys(kinds):
        members = [i for i, each in enumerate(kinds) if each == kind]
        rows = tiles[np.isin(tiles[:, -1], members)] if len(members) < len(parts) else tiles
        if len(rows):
            table = torch.from_numpy(np.ascontiguousarray(rows[:, :-1]))
            # What is not pinned has been read when this returns.
            yield parts[members[0]], table.to(parts[0].device, non_blocking=True), kind[1]


def _is_aligned(part: torch.Tensor) -> bool:
    return bool(part.shape[1] % _ALIGNED == 0 and part.data_ptr() % 16 == 0)
