"""Triton: the first stage of exact release, and its elementary functions.

The arithmetic is that of `dpnoise.kernels` (elementary, certified, first_stage), operation for
operation in float64. So its certified bounds hold here too; tests/tensors compares the two.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from dpnoise.integrations.triton_stream import (
    COUNT,
    FIRST_BLOCK,
    GRID,
    INTERPRETED,
    INVERSE_GRID,
    LEAST,
    MOST,
    RATIO,
    ROUNDING_LIMIT,
    eight,
    further_words_of,
    tile_of,
    words_of_block,
)
from dpnoise.kernels import certified, elementary

L0, L1, L2, L3, L4, L5, L6, L7 = map(tl.constexpr, elementary.LOG_COEFFICIENTS)
S0, S1, S2, S3, S4, S5, S6, S7, S8 = map(tl.constexpr, elementary.SINPI_COEFFICIENTS)
LOG_2 = tl.constexpr(elementary.LOG_2)
SQRT_HALF_BITS = tl.constexpr(elementary.SQRT_HALF_BITS)
ROUND = tl.constexpr(certified.ROUND)
ROUND_V = tl.constexpr(certified.ROUND_V)
# As in kernels/certified.py and kernels/first_stage.py, which explain them.
LAST_ROUNDINGS = tl.constexpr(2.0**-51)
TWICE_BITS_OF_ONE = tl.constexpr(2046 << 52)
LOW_63_BITS = tl.constexpr(2**63 - 1)
LOW_62_BITS = tl.constexpr(2**62 - 1)
SIGN_BIT = tl.constexpr(-(2**63))
NO_FRACTIONS = tl.constexpr(2.0**52)


# kernels/elementary.py


@triton.jit
def step(q, t, c: tl.constexpr):
    """Return q t + c, rounded once."""
    return tl.fma(q, t, tl.full(t.shape, c, tl.float64))


@triton.jit
def log(x):
    bits = x.to(tl.int64, bitcast=True)
    e = (bits - SQRT_HALF_BITS) >> 52
    f = (bits - (e << 52)).to(tl.float64, bitcast=True)
    s = divide_in_range(f - 1.0, f + 1.0)
    t = s * s
    q = step(tl.full(t.shape, L7, tl.float64), t, L6)
    q = step(step(step(step(step(step(q, t, L5), t, L4), t, L3), t, L2), t, L1), t, L0)
    return tl.fma(e.to(tl.float64), tl.full(t.shape, LOG_2, tl.float64), s * q)


@triton.jit
def sinpi(x):
    t = x * x
    q = step(tl.full(t.shape, S8, tl.float64), t, S7)
    q = step(step(step(step(q, t, S6), t, S5), t, S4), t, S3)
    q = step(step(step(q, t, S2), t, S1), t, S0)
    return x * q


@triton.jit
def with_sign_of(word, magnitude):
    bits = magnitude.to(tl.int64, bitcast=True)
    return (bits | (word.to(tl.int64, bitcast=True) & SIGN_BIT)).to(tl.float64, bitcast=True)


if INTERPRETED:

    @triton.jit
    def rint(x):
        """Round to the nearest integer, ties to even."""
        size = tl.abs(x)
        # From 2^52 on all floats are integers, so adding 2^52 rounds to an integer.
        rounded = tl.where(size < NO_FRACTIONS, (size + NO_FRACTIONS) - NO_FRACTIONS, size)
        return tl.where(x < 0.0, -rounded, rounded)

    @triton.jit
    def divide_in_range(a, b):
        """Return a / b for |a| <= 1 and 1 <= b <= 3."""
        return a / b

else:

    @triton.jit
    def rint(x):
        """Round to the nearest integer, ties to even."""
        return libdevice.rint(x)

    @triton.jit
    def divide_in_range(a, b):
        """Return a / b for |a| <= 1 and 1 <= b <= 3, with a relative error up to u (1 + 2^-50).

        These are the steps of the compiler's division, without its branch for very large or very
        small numbers. Each step squares the error. The last one uses the exact remainder
        (Markstein).
        """
        r = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [b], dtype=tl.float64, is_pure=True, pack=1
        )
        one = tl.full(b.shape, 1.0, tl.float64)
        e = tl.fma(-b, r, one)
        r = tl.fma(r, tl.fma(e, e, e), r)
        r = tl.fma(r, tl.fma(-b, r, one), r)
        q = a * r
        return tl.fma(tl.fma(-b, q, a), r, q)


# kernels/certified.py, for 64 bits


@triton.jit
def reciprocal_bound(x):
    """Return an upper bound on 1/x, as in kernels/certified.py."""
    twice_bits_of_one = tl.full(x.shape, TWICE_BITS_OF_ONE, tl.int64)
    return (twice_bits_of_one - x.to(tl.int64, bitcast=True)).to(tl.float64, bitcast=True)


@triton.jit
def magnitude_of(word, low_bits: tl.constexpr):
    """Return the low bits of a word as a float."""
    return (word.to(tl.int64, bitcast=True) & low_bits).to(tl.float64)


@triton.jit
def laplace_1(word):
    """Return a Laplace number, and a bound on its error."""
    V = magnitude_of(~word, LOW_63_BITS) * 2.0**-63
    E = 0.0 - log(V)
    rounding = step(E, tl.full(E.shape, ROUND, tl.float64), ROUND_V)
    error = tl.fma(tl.full(E.shape, 2.0**-63, tl.float64), reciprocal_bound(V), rounding)
    return -with_sign_of(word, E), error


@triton.jit
def gaussian_pair(v, u):
    """Return two Gaussian numbers, and a bound on the error of either."""
    V = (~v).to(tl.float64) * 2.0**-64
    R = tl.sqrt(log(V) * -2.0 + 0.0)
    unseen_bits_error = tl.fma(
        tl.full(R.shape, 2.0 * ROUND_V, tl.float64),
        reciprocal_bound(R),
        2.0**-63 * reciprocal_bound(V * R),
    )
    cosine_angle = magnitude_of(~u, LOW_62_BITS) * 2.0**-63
    sine_angle = magnitude_of(u, LOW_62_BITS) * 2.0**-63
    return (
        with_sign_of(u, R * sinpi(cosine_angle)),
        with_sign_of(u << 1, R * sinpi(sine_angle)),
        tl.fma(tl.full(R.shape, ROUND + 2.0**-61, tl.float64), R, unseen_bits_error),
    )


# kernels/first_stage.py


@triton.jit
def certain_point(value, z, error, floats):
    """Return the grid point of value + scale * Z, and whether it is certain."""
    ratio, grid = tl.load(floats + RATIO), tl.load(floats + GRID)
    # From this limit on, every float is a multiple of the grid.
    inside = tl.where(tl.abs(value) < tl.load(floats + ROUNDING_LIMIT), value, 0.0)
    quotient = inside * tl.load(floats + INVERSE_GRID)
    value_whole = rint(quotient)
    ratios, grids = tl.zeros_like(z) + ratio, tl.zeros_like(z) + grid
    y = tl.fma(ratios, z, quotient - value_whole)
    noise_whole = rint(y)
    bound = step(error, ratios, LAST_ROUNDINGS)
    certain = tl.abs(y - noise_whole) + bound < 0.5
    return tl.fma(noise_whole, grids, tl.fma(value_whole, grids, value - inside)), certain


@triton.jit
def nearest(x, digits: tl.constexpr, emin: tl.constexpr):
    """Round x to `digits` significant bits, as in kernels/formats.py.

    Below 2^emin the spacing stays the same. The exponent has no upper limit.
    """
    exponent = ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023
    exponent = tl.minimum(tl.maximum(exponent, emin), 2 - emin)
    shift = 1.5 * ((exponent + (1023 + 53 - digits)) << 52).to(tl.float64, bitcast=True)
    return (x + shift) - shift


@triton.jit
def round_to_format(x, certain, floats, kind: tl.constexpr, clip: tl.constexpr):
    """Return x rounded to the format and clamped to the bounds; NaN if uncertain.

    The bounds are numbers of the format, so rounding and clamping can come in either order. Adding
    0.0 turns -0.0 into 0.0.
    """
    if kind == tl.float64:
        if clip:
            x = tl.minimum(tl.maximum(x, tl.load(floats + LEAST)), tl.load(floats + MOST))
        return tl.where(certain, x, float("nan"))
    if kind == tl.bfloat16:
        x = nearest(x, 8, -126)
    if kind == tl.float16:
        x = nearest(x, 11, -14)
    least = tl.load(floats + LEAST).to(tl.float32)
    most = tl.load(floats + MOST).to(tl.float32)
    single = tl.minimum(tl.maximum(x.to(tl.float32) + 0.0, least), most)
    return tl.where(certain, single, float("nan")).to(kind)


@triton.jit
def release_number(value, z, error, floats, kind: tl.constexpr, clip: tl.constexpr):
    """Return the released number, NaN where it is uncertain or the value is not finite."""
    point, certain = certain_point(value.to(tl.float64), z, error, floats)
    certain = certain & (tl.abs(value) < float("inf"))
    return round_to_format(point, certain, floats, kind, clip), certain


@triton.jit
def list_open(some_open, block, counter, blocks, capacity):
    """Write the indices of the blocks with an open number to `blocks`, up to its capacity."""
    # Each block has a pointer to the counter, so atomic_add returns a slot for each block.
    slot = tl.atomic_add(counter + block * 0, 1, mask=some_open)
    tl.store(blocks + slot, block, mask=some_open & (slot < capacity))


# Each of the eight numbers has its own lines, because Triton cannot keep a list in registers.
@triton.jit
def release(
    values,
    out,
    parameters,
    floats,
    counter,
    open_blocks,
    capacity,
    pairs: tl.constexpr,
    clip: tl.constexpr,
    ragged: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Release almost all numbers, with Gaussian noise in pairs or Laplace noise from one uniform.

    COUNT is the number of full blocks of eight numbers, which a device can load several at a time.
    If `ragged`, the launch has one partial block, and COUNT is the number of its values. A program
    handles BLOCK blocks. A number that is not certain, or not finite, is NaN in `out`. Its block is
    counted in `counter` and listed in `open_blocks`, up to its capacity.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(parameters + COUNT)
    at = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    if ragged:
        here = at < count
        some_here = block * 8 < count
    else:
        some_here = block < count
        here = some_here[:, None]
    x0, x1, x2, x3, x4, x5, x6, x7 = eight(tl.load(values + at, mask=here, other=0.0), BLOCK)
    first = tl.load(parameters + FIRST_BLOCK)
    w0, w1, w2, w3, w4, w5, w6, w7 = words_of_block(parameters, block + first)
    kind: tl.constexpr = out.dtype.element_ty
    if pairs:
        z0, z1, e0 = gaussian_pair(w0, w1)
        y0, c0 = release_number(x0, z0, e0, floats, kind, clip)
        y1, c1 = release_number(x1, z1, e0, floats, kind, clip)
        z2, z3, e2 = gaussian_pair(w2, w3)
        y2, c2 = release_number(x2, z2, e2, floats, kind, clip)
        y3, c3 = release_number(x3, z3, e2, floats, kind, clip)
        z4, z5, e4 = gaussian_pair(w4, w5)
        y4, c4 = release_number(x4, z4, e4, floats, kind, clip)
        y5, c5 = release_number(x5, z5, e4, floats, kind, clip)
        z6, z7, e6 = gaussian_pair(w6, w7)
        y6, c6 = release_number(x6, z6, e6, floats, kind, clip)
        y7, c7 = release_number(x7, z7, e6, floats, kind, clip)
    else:
        z0, e0 = laplace_1(w0)
        y0, c0 = release_number(x0, z0, e0, floats, kind, clip)
        z1, e1 = laplace_1(w1)
        y1, c1 = release_number(x1, z1, e1, floats, kind, clip)
        z2, e2 = laplace_1(w2)
        y2, c2 = release_number(x2, z2, e2, floats, kind, clip)
        z3, e3 = laplace_1(w3)
        y3, c3 = release_number(x3, z3, e3, floats, kind, clip)
        z4, e4 = laplace_1(w4)
        y4, c4 = release_number(x4, z4, e4, floats, kind, clip)
        z5, e5 = laplace_1(w5)
        y5, c5 = release_number(x5, z5, e5, floats, kind, clip)
        z6, e6 = laplace_1(w6)
        y6, c6 = release_number(x6, z6, e6, floats, kind, clip)
        z7, e7 = laplace_1(w7)
        y7, c7 = release_number(x7, z7, e7, floats, kind, clip)
    tl.store(out + at, tile_of(y0, y1, y2, y3, y4, y5, y6, y7, BLOCK), mask=here)
    certain = c0 & c1 & c2 & c3 & c4 & c5 & c6 & c7
    list_open(~certain & some_here, block + first, counter, open_blocks, capacity)


# Data for the host to settle the elements that the first stage left open
#
# An element is a pair of Gaussian numbers, or one Laplace number, with separate words of the key
# stream. The first stage lists blocks of eight numbers. These kernels split the blocks into
# elements, and pass the data of all elements to the host in one array.


@triton.jit
def list_elements(
    blocks,
    list_length,
    out,
    count,
    counter,
    elements,
    capacity,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List the open elements of the listed blocks, up to the capacity, and count them.

    `counter` has the number of open blocks, then the number of open elements. The list of blocks
    has a fixed length. Its entries after the open blocks are placeholders: they are read too, but
    none of their elements is listed.
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = slot < list_length
    is_open_block = slot < tl.load(counter)
    block = tl.load(blocks + slot, mask=here, other=0)
    column = tl.arange(0, 8)[None, :]
    at = block[:, None] * 8 + column
    inside = here[:, None] & (at < count)
    number = tl.load(out + at, mask=inside, other=0.0)
    is_open = (~(tl.abs(number) <= float("inf")) & inside & is_open_block[:, None]).to(tl.int32)
    by_element = tl.max(tl.reshape(is_open, (BLOCK, 8 // WIDTH, WIDTH)), axis=2) > 0
    element = block[:, None] * (8 // WIDTH) + tl.arange(0, 8 // WIDTH)[None, :]
    element_slot = tl.atomic_add(counter + 1 + element * 0, 1, mask=by_element)
    tl.store(elements + element_slot, element, mask=by_element & (element_slot < capacity))


@triton.jit
def pick_column(tile, column):
    """Return tile[i, column[i]] for each row i."""
    there = tl.arange(0, 8)[None, :] == column[:, None]
    return tl.sum(tl.where(there, tile, 0), axis=1)


@triton.jit
def write_element_rows(
    elements,
    list_length,
    values,
    out,
    parameters,
    count,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a row for each element: its index, words, further words, values and results.

    Numbers are written as the bits of float64. Numbers beyond the `count` of the values are 0.
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = slot < list_length
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
        tl.store(row + 1 + j, pick_column(words, first % 8 + j), mask=here)
        tl.store(row + 1 + WIDTH + j, further, mask=here)
        tl.store(row + 1 + 2 * WIDTH + j, value.to(tl.int64, bitcast=True), mask=here)
        tl.store(row + 1 + 3 * WIDTH + j, number.to(tl.int64, bitcast=True), mask=here)
