"""Sum per-sample gradients on a device: one pass for their norms, one for their clipped sums.

A launch covers many tensors. Each is split into tiles, and `tiles` has a row for each tile:

- the address of the tile in the first sample;
- the numbers per sample in that tensor, and the numbers in the tile;
- the offset of its sums in the output;
- the index of the tile.
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

# As in clipping.py, which defines the order of additions.
ROWS = tl.constexpr(16)
LANES = tl.constexpr(1024)
FOLDS = tl.constexpr(10)
COLUMNS = tl.constexpr(5)
ALIGNED_NUMBERS = tl.constexpr(8)  # 16 bytes of the narrowest format.


if INTERPRETED:

    @triton.jit
    def round_towards_zero(x):
        """Round towards zero."""
        return tl.where(x < 0.0, -tl.floor(-x), tl.floor(x))

else:

    @triton.jit
    def round_towards_zero(x):
        """Round towards zero."""
        return libdevice.trunc(x)


@triton.jit
def tile_at(tiles, tile, like, aligned: tl.constexpr):
    """Return a row of the tiles. If `aligned`, the compiler may load 16 bytes at a time."""
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

    `every` is the number of tiles in this launch. `out` has a row for each sample, and a column for
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
    """Write the sums over samples of gradients times `steps`, with each product truncated.

    `steps` has a factor for each sample, and at its end a factor for the sums.
    """
    program = tl.program_id(0).to(tl.int64)
    first, numbers, count, start, _ = tile_at(tiles, program // ROWS, like, aligned)
    at = (program % ROWS) * LANES + tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float64)
    for sample in range(samples):
        x = tl.load(first + at, mask=at < count, other=0.0).to(tl.float64)
        total += round_towards_zero(x * tl.load(steps + sample))
        first += numbers
    tl.store(out + start + at, total * tl.load(steps + samples), mask=at < count)


_TILE = ROWS.value * LANES.value
_ALIGNED = ALIGNED_NUMBERS.value
_OPTIONS = {"num_warps": 4, **STRICT}


def ordered_sums(parts: Sequence[torch.Tensor], *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of tiles, with a row for each sample."""
    tiles = _tiles(parts)
    samples, columns = len(parts[0]), len(tiles)
    out = parts[0].new_empty((samples, columns), dtype=torch.float64)
    with torch.cuda.device_of(out):
        for like, batch, aligned in _launches(parts, tiles):
            ordered_sums_kernel[(samples * len(batch),)](
                batch, like, len(batch), out, columns, squares=squares, aligned=aligned, **_OPTIONS
            )
    return out


def clipped_sums(
    gradients: Sequence[torch.Tensor], factor: torch.Tensor, step: float
) -> list[torch.Tensor]:
    """Return the float64 sums of gradients times factors, truncated to multiples of the step."""
    tiles, sizes = _tiles(gradients), [tensor.shape[1] for tensor in gradients]
    starts = _starts(sizes)
    out = factor.new_empty(starts[-1])
    with torch.cuda.device_of(out):
        steps = torch.cat([factor / step, factor.new_full((1,), step)])
        for like, batch, aligned in _launches(gradients, tiles):
            grid = (len(batch) * ROWS.value,)
            clipped_sums_kernel[grid](
                batch, like, steps, len(factor), out, aligned=aligned, **_OPTIONS
            )
    ranges = zip(starts[:-1].tolist(), sizes, strict=True)
    return [out[start : start + size] for start, size in ranges]


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return the aligned offset of each tensor's sums, and the end of all."""
    padded = -(-np.array([0, *sizes], dtype=np.int64) // _ALIGNED) * _ALIGNED
    return np.cumsum(padded)


def _tiles(parts: Sequence[torch.Tensor]) -> NDArray[np.int64]:
    """Return the rows of all tiles, with the index of the tensor as an additional last column."""
    tiles = _layout(
        tuple(part.shape[1] for part in parts), tuple(part.element_size() for part in parts)
    ).copy()
    tiles[:, 0] += np.array([part.data_ptr() for part in parts], dtype=np.int64)[tiles[:, -1]]
    return tiles


@lru_cache(maxsize=128)
def _layout(sizes: tuple[int, ...], widths: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the rows of all tiles for tensors at address 0."""
    numbers = np.array(sizes, dtype=np.int64)
    tile_counts = -(-numbers // _TILE)
    tensor = np.repeat(np.arange(len(sizes)), tile_counts)
    tile = np.arange(len(tensor))
    first = (tile - (np.cumsum(tile_counts) - tile_counts)[tensor]) * _TILE
    count = np.minimum(numbers[tensor] - first, _TILE)
    start = _starts(sizes)[tensor] + first
    address = first * np.array(widths, dtype=np.int64)[tensor]
    columns = (address, numbers[tensor], count, start, tile, tensor)
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
            # Memory that is not pinned has been read when `to` returns.
            yield parts[members[0]], table.to(parts[0].device, non_blocking=True), kind[1]


def _is_aligned(part: torch.Tensor) -> bool:
    return bool(part.shape[1] % _ALIGNED == 0 and part.data_ptr() % 16 == 0)
