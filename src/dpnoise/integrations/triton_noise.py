"""Triton: the paper's samplers, fused with the key stream: no random bits go through memory.

float64 noise uses 64-bit words and the arithmetic of `kernels/variates.py`, operation for
operation. Narrower formats use 24 bits of each 32-bit word of the same stream, in float32. A block
then gives twice as many numbers as in float64.

An element is the sum of n/2 pieces of two uniforms each, V1, U1, V2, U2, ... `PIECE` is their kind.
"""

import triton
import triton.language as tl

from dpnoise.integrations.triton_release import (
    LOG_2,
    S0,
    S1,
    S2,
    S3,
    S4,
    S5,
    S6,
    log,
    sinpi,
    with_sign_of,
)
from dpnoise.integrations.triton_stream import (
    COUNT,
    FIRST_BLOCK,
    INTERPRETED,
    SCALE,
    block_of_stream,
    tile_of,
    words_of_block,
)

# sqrt(-log V) cos(pi U); log V cos(pi U); log V2 - log V1; -log V cos^2(pi U).
GAUSSIAN, LAPLACE, DIFFERENCE, HALF_GAMMA = (tl.constexpr(piece) for piece in range(4))
SQRT_HALF_BITS_32 = tl.constexpr(0x3F3504F3)
SIGN_BIT_32 = tl.constexpr(-(2**31))
EXPONENT_32 = tl.constexpr(-(2**23))
TOP_24_BITS = tl.constexpr(2**32 - 2**8)
NEXT_23_BITS = tl.constexpr(2**31 - 2**8)


# float64, as in kernels/elementary.py and kernels/variates.py


@triton.jit
def log_complement(word):
    """Return log V for V = 1 - U of 53 bits."""
    k = (word >> 11).to(tl.int64, bitcast=True).to(tl.float64)
    V = tl.fma(k, tl.full(k.shape, -(2.0**-53), tl.float64), tl.full(k.shape, 1.0, tl.float64))
    return log(V)


@triton.jit
def cospi(word):
    k = ((word & 0x7FFFFFFFFFFFFFFF) >> 11).to(tl.int64, bitcast=True).to(tl.float64)
    left = tl.fma(k, tl.full(k.shape, -(2.0**-53), tl.float64), tl.full(k.shape, 0.5, tl.float64))
    return with_sign_of(word, sinpi(left))


@triton.jit
def step_32(q, t, c: tl.constexpr):
    return tl.fma(q, t, tl.full(t.shape, c, tl.float32))


if INTERPRETED:

    @triton.jit
    def reciprocal_32(x):
        return 1.0 / x

    @triton.jit
    def sqrt_32(x):
        return tl.sqrt(x)

else:

    @triton.jit
    def reciprocal_32(x):
        """Return 1 / x within a unit in the last place, for x far from overflow and underflow."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def sqrt_32(x):
        """Return the root of 0 or of a normal number, within a unit in the last place."""
        return tl.inline_asm_elementwise(
            "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log_complement_32(word):
    """Return log V in float32, for V = 1 - U of 24 bits: exact, as is f - 1 near V = 1.

    The exponent is not shifted down, so it has a factor of 2^23. That saves operations on integers,
    which the key stream needs.
    """
    k = (word & TOP_24_BITS).to(tl.float32)
    V = step_32(k, tl.full(k.shape, -(2.0**-32), tl.float32), 1.0)
    bits = V.to(tl.int32, bitcast=True)
    e = (bits - SQRT_HALF_BITS_32) & EXPONENT_32
    f = (bits - e).to(tl.float32, bitcast=True)
    s = (f - 1.0) * reciprocal_32(f + 1.0)
    t = s * s
    q = step_32(step_32(tl.full(t.shape, 2 / 9, tl.float32), t, 2 / 7), t, 2 / 5)
    q = step_32(step_32(q, t, 2 / 3), t, 2.0)
    return tl.fma(e.to(tl.float32), tl.full(t.shape, LOG_2 * 2.0**-23, tl.float32), s * q)


@triton.jit
def cospi_32(word):
    k = (word & NEXT_23_BITS).to(tl.int32, bitcast=True).to(tl.float32)
    x = step_32(k, tl.full(k.shape, -(2.0**-32), tl.float32), 0.5)
    t = x * x
    q = step_32(step_32(tl.full(t.shape, S6, tl.float32), t, S5), t, S4)
    q = step_32(step_32(step_32(step_32(q, t, S3), t, S2), t, S1), t, S0)
    bits = (x * q).to(tl.int32, bitcast=True) | (word.to(tl.int32, bitcast=True) & SIGN_BIT_32)
    return bits.to(tl.float32, bitcast=True)


# One kernel for all forms


@triton.jit
def piece(v, u, PIECE: tl.constexpr):
    """Return the piece of two uniforms, in float64 for 64-bit words and float32 for 32-bit ones."""
    if v.dtype == tl.uint64:
        log_V = log_complement(v)
        second = log_complement(u) if PIECE == DIFFERENCE else cospi(u)
    else:
        log_V = log_complement_32(v)
        second = log_complement_32(u) if PIECE == DIFFERENCE else cospi_32(u)
    if PIECE == GAUSSIAN:
        if v.dtype == tl.uint64:
            return tl.sqrt(0.0 - log_V) * second
        return sqrt_32(0.0 - log_V) * second
    if PIECE == LAPLACE:
        return log_V * second
    if PIECE == DIFFERENCE:
        return (0.0 - log_V) - (0.0 - second)
    return (0.0 - log_V) * (second * second)


@triton.jit
def pieces_of_block(parameters, block, DOUBLE: tl.constexpr, PIECE: tl.constexpr):
    """Return the pieces of a block, four or eight, as a tile."""
    if DOUBLE:
        w0, w1, w2, w3, w4, w5, w6, w7 = words_of_block(parameters, block)
        first = tl.join(piece(w0, w1, PIECE), piece(w4, w5, PIECE))
        second = tl.join(piece(w2, w3, PIECE), piece(w6, w7, PIECE))
        tile = tl.reshape(tl.join(first, second), (block.shape[0], 4))
    else:
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = block_of_stream(
            parameters, block
        )
        tile = tile_of(
            piece(x0, x1, PIECE),
            piece(x2, x3, PIECE),
            piece(x4, x5, PIECE),
            piece(x6, x7, PIECE),
            piece(x8, x9, PIECE),
            piece(x10, x11, PIECE),
            piece(x12, x13, PIECE),
            piece(x14, x15, PIECE),
            block.shape[0],
        )
    return tile


@triton.jit
def noise(
    out,
    parameters,
    floats,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Fill `out` with sums of PIECES pieces, times SCALE; COUNT as for `release`."""
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    DOUBLE: tl.constexpr = out.dtype.element_ty == tl.float64
    EACH: tl.constexpr = (4 if DOUBLE else 8) // PIECES
    total = pieces_of_block(parameters, block + tl.load(parameters + FIRST_BLOCK), DOUBLE, PIECE)
    if PIECES == 2:
        first, second = tl.split(tl.reshape(total, (BLOCK, EACH, 2)))
        total = first + second
    if PIECES == 4:
        ends, middle = tl.split(tl.reshape(total, (BLOCK, EACH, 2, 2)))
        first, third = tl.split(ends)
        second, fourth = tl.split(middle)
        total = ((first + second) + third) + fourth
    if PIECE == GAUSSIAN and PIECES != 2:
        total = (1.414213562373095 if PIECES == 1 else 0.7071067811865475) * total
    count = tl.load(parameters + COUNT)
    at = block[:, None] * EACH + tl.arange(0, EACH)[None, :]
    here = at < count if RAGGED else (block < count)[:, None]
    scaled = total * tl.load(floats + SCALE).to(total.dtype)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=here)


@triton.jit
def uniforms(out, parameters, DIGITS: tl.constexpr, RAGGED: tl.constexpr, BLOCK: tl.constexpr):
    """Fill `out` with uniforms of DIGITS bits; COUNT as for `release`."""
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    stream_block = block + tl.load(parameters + FIRST_BLOCK)
    if out.dtype.element_ty == tl.float64:
        EACH: tl.constexpr = 8
        w0, w1, w2, w3, w4, w5, w6, w7 = words_of_block(parameters, stream_block)
        tile = tile_of(w0, w1, w2, w3, w4, w5, w6, w7, BLOCK) >> (64 - DIGITS)
        U = tile.to(tl.int64, bitcast=True).to(tl.float64) * 2.0**-DIGITS
    else:
        EACH: tl.constexpr = 16  # type: ignore[no-redef] # Of another branch.
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = block_of_stream(
            parameters, stream_block
        )
        even = tile_of(x0, x2, x4, x6, x8, x10, x12, x14, BLOCK)
        odd = tile_of(x1, x3, x5, x7, x9, x11, x13, x15, BLOCK)
        tile = tl.reshape(tl.join(even, odd), (BLOCK, 16)) >> (32 - DIGITS)
        U = tile.to(tl.int32, bitcast=True).to(tl.float32) * 2.0**-DIGITS
    count = tl.load(parameters + COUNT)
    at = block[:, None] * EACH + tl.arange(0, EACH)[None, :]
    here = at < count if RAGGED else (block < count)[:, None]
    tl.store(out + at, U.to(out.dtype.element_ty), mask=here)
