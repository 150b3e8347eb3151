"""Triton: what the host needs to settle elements that the first stage left open.

An element is what its own words of the key stream make: a pair of Gaussian numbers, or one Laplace
number. The first stage lists blocks of eight numbers; these kernels take them apart, so that the
host's work is on elements, and hand it all in one array.
"""

import triton
import triton.language as tl

from dpnoise.integrations.triton_stream import further_words_of, tile_of, words_of_block


@triton.jit
def list_elements(
    blocks,
    listed,
    out,
    count,
    counter,
    elements,
    capacity,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List the open elements of the listed blocks, as far as there is room, and count them.

    `counter` has the number of blocks that are open first, and that of elements second. The blocks
    listed after those that are open are read as well, but nothing of them is taken.
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = slot < listed
    taken = slot < tl.load(counter)
    block = tl.load(blocks + slot, mask=here, other=0)
    column = tl.arange(0, 8)[None, :]
    at = block[:, None] * 8 + column
    inside = here[:, None] & (at < count)
    number = tl.load(out + at, mask=inside, other=0.0)
    is_open = (~(tl.abs(number) <= float("inf")) & inside & taken[:, None]).to(tl.int32)
    by_element = tl.max(tl.reshape(is_open, (BLOCK, 8 // WIDTH, WIDTH)), axis=2) > 0
    element = block[:, None] * (8 // WIDTH) + tl.arange(0, 8 // WIDTH)[None, :]
    place = tl.atomic_add(counter + 1 + element * 0, 1, mask=by_element)
    tl.store(elements + place, element, mask=by_element & (place < capacity))


@triton.jit
def picked(tile, column):
    """Return of each row of eight the number of one column."""
    there = tl.arange(0, 8)[None, :] == column[:, None]
    return tl.sum(tl.where(there, tile, 0), axis=1)


@triton.jit
def fetch(
    elements, listed, values, out, parameters, count, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Write a row for each element: its place, words, further words, values, and what `out` has.

    Numbers are written as the bits of float64; one beyond the `count` of the values is 0.
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = slot < listed
    element = tl.load(elements + slot, mask=here, other=0)
    first = element * WIDTH
    w0, w1, w2, w3, w4, w5, w6, w7 = words_of_block(parameters, first // 8)
    words = tile_of(w0, w1, w2, w3, w4, w5, w6, w7, BLOCK).to(tl.int64, bitcast=True)
    further_0, further_1 = further_words_of(parameters, element)
    row = rows + slot * (1 + 4 * WIDTH)
    tl.store(row, element, mask=here)
    for j in tl.static_range(WIDTH):
        further = (further_0 if j == 0 else further_1).to(tl.int64, bitcast=True)
        inside = here & (first + j < count)
        value = tl.load(values + first + j, mask=inside, other=0.0).to(tl.float64)
        number = tl.load(out + first + j, mask=inside, other=0.0).to(tl.float64)
        tl.store(row + 1 + j, picked(words, first % 8 + j), mask=here)
        tl.store(row + 1 + WIDTH + j, further, mask=here)
        tl.store(row + 1 + 2 * WIDTH + j, value.to(tl.int64, bitcast=True), mask=here)
        tl.store(row + 1 + 3 * WIDTH + j, number.to(tl.int64, bitcast=True), mask=here)
