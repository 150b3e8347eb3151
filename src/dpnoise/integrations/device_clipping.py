"""Clips and sums per-sample gradients on a device: one launch for many tensors."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpnoise.integrations import triton_clipping as kernels
from dpnoise.integrations.triton_stream import STRICT

_TILE = kernels.ROWS.value * kernels.LANES.value
_ALIGNED = kernels.ALIGNED_NUMBERS.value
_OPTIONS: dict[str, Any] = {"num_warps": 4, **STRICT}


def ordered_sums(parts: Sequence[torch.Tensor], *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of the tiles of rows, a row for each sample."""
    tiles = _tiles(parts)
    samples, columns = len(parts[0]), len(tiles)
    out = parts[0].new_empty((samples, columns), dtype=torch.float64)
    for like, some, aligned in _launches(parts, tiles):
        kernels.ordered_sums[(samples * len(some),)](
            some, like, len(some), out, columns, squares=squares, aligned=aligned, **_OPTIONS
        )
    return out


def clipped_sums(
    gradients: Sequence[torch.Tensor], factor: torch.Tensor, step: float
) -> list[torch.Tensor]:
    """Return the sums of gradients times factors, cut to multiples of the step, in float64."""
    tiles, samples = _tiles(gradients), len(factor)
    starts = _starts([each.shape[1] for each in gradients])
    out = factor.new_empty(starts[-1])
    steps = torch.cat([factor / step, factor.new_full((1,), step)])
    for like, some, aligned in _launches(gradients, tiles):
        grid = (len(some) * kernels.ROWS.value,)
        kernels.clipped_sums[grid](some, like, steps, samples, out, aligned=aligned, **_OPTIONS)
    return [
        out[start : start + each.shape[1]]
        for start, each in zip(starts[:-1].tolist(), gradients, strict=True)
    ]


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
) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Return a tensor of the kind, the tiles, and whether they are aligned, for each launch."""
    kinds = [(part.dtype, _is_aligned(part)) for part in parts]
    found = []
    for kind in dict.fromkeys(kinds):
        members = [i for i, each in enumerate(kinds) if each == kind]
        rows = tiles[np.isin(tiles[:, -1], members)] if len(members) < len(parts) else tiles
        if len(rows):
            table = torch.from_numpy(np.ascontiguousarray(rows[:, :-1]))
            # What is not pinned has been read when this returns.
            there = table.to(parts[0].device, non_blocking=True)
            found.append((parts[members[0]], there, kind[1]))
    return found


def _is_aligned(part: torch.Tensor) -> bool:
    return bool(part.shape[1] % _ALIGNED == 0 and part.data_ptr() % 16 == 0)
