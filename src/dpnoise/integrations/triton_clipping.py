"""Triton: per-sample gradients, read once for their norms and once for their clipped sum.

A launch covers many tensors. Each is cut into tiles of its numbers, and `tiles` has a row for each:
the address of the tile in the first sample, how many numbers a sample has in that tensor, how many
of these are in the tile, where the tile's sums go, and which tile it is.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from dpnoise.integrations.triton_stream import INTERPRETED

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
def ordered_sums(tiles, like, every, out, columns, squares: tl.constexpr, aligned: tl.constexpr):
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
def clipped_sums(tiles, like, steps, samples, out, aligned: tl.constexpr):
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
