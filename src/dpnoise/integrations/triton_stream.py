"""Triton: the key stream of a device, ChaCha20 in registers, in the layout of `core.entropy`.

A program computes `BLOCK` blocks of the stream in parallel. The parameters of a launch come in one
array of 64-bit words, `parameters`, and its floats are read through a second pointer. As arguments
of a kernel, Triton would pass floats with 32 bits, and compile again for some values of a key.

Apart from constants, the `triton_` modules import only Triton, so that they can be read and timed
separately.
"""

import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret  # True in tests without a device.

# The options of every launch: each operation rounds, and none is fused unless the code says so.
STRICT = {"enable_fp_fusion": False}

# The indices of `parameters`. The key is in the first four words.
FIRST_BLOCK, COUNT, SCALE, RATIO, GRID, INVERSE_GRID, ROUNDING_LIMIT, LEAST, MOST = (
    tl.constexpr(index) for index in range(4, 13)
)
PARAMETERS = 14  # One is unused, so that rows are aligned to 16 bytes.
LOW_32_BITS = tl.constexpr(2**32 - 1)


@triton.jit
def rotate_left(x, left: tl.constexpr):
    return (x << left) | (x >> (32 - left))


@triton.jit
def quarter_round(a, b, c, d):
    """RFC 8439, section 2.1."""
    a += b
    d = rotate_left(d ^ a, 16)
    c += d
    b = rotate_left(b ^ c, 12)
    a += b
    d = rotate_left(d ^ a, 8)
    c += d
    b = rotate_left(b ^ c, 7)
    return a, b, c, d


@triton.jit
def halves(parameters, index: tl.constexpr, like):
    """Return the two halves of a word of the parameters, in the shape of `like`."""
    word = tl.load(parameters + index).to(tl.uint64, bitcast=True)
    low = (word & LOW_32_BITS).to(tl.uint32)
    high = (word >> 32).to(tl.uint32)
    return like * 0 + low, like * 0 + high


# Its lines name the sixteen words of a block, because Triton cannot keep a list in registers.
@triton.jit
def chacha20(parameters, c0, n0, n1, n2):
    """Return the 16 words of 32 bits of the blocks with counters c0 and nonces (n0, n1, n2)."""
    k0, k1 = halves(parameters, 0, c0)
    k2, k3 = halves(parameters, 1, c0)
    k4, k5 = halves(parameters, 2, c0)
    k6, k7 = halves(parameters, 3, c0)
    zero = c0 * 0
    x0, x1 = zero + 0x61707865, zero + 0x3320646E
    x2, x3 = zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = c0, n0, n1, n2
    # Unrolled, because the compiler then runs the additions on the pipe for multiplications. On the
    # pipe of the rotations and XORs they would have to wait.
    for _ in tl.static_range(10):
        x0, x4, x8, x12 = quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = quarter_round(x3, x4, x9, x14)
    return (
        x0 + 0x61707865,
        x1 + 0x3320646E,
        x2 + 0x79622D32,
        x3 + 0x6B206574,
        x4 + k0,
        x5 + k1,
        x6 + k2,
        x7 + k3,
        x8 + k4,
        x9 + k5,
        x10 + k6,
        x11 + k7,
        x12 + c0,
        x13 + n0,
        x14 + n1,
        x15 + n2,
    )


@triton.jit
def word_of(low, high):
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@triton.jit
def block_of_stream(parameters, block):
    """Return the 16 words of 32 bits of blocks of the key stream."""
    b = block.to(tl.uint64, bitcast=True)
    c0, n0 = (b & LOW_32_BITS).to(tl.uint32), (b >> 32).to(tl.uint32)
    return chacha20(parameters, c0, n0, c0 * 0, c0 * 0)


@triton.jit
def words_of_block(parameters, block):
    """Return the eight words of blocks of the key stream."""
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = block_of_stream(
        parameters, block
    )
    return (
        word_of(x0, x1),
        word_of(x2, x3),
        word_of(x4, x5),
        word_of(x6, x7),
        word_of(x8, x9),
        word_of(x10, x11),
        word_of(x12, x13),
        word_of(x14, x15),
    )


@triton.jit
def eight(tile, BLOCK: tl.constexpr):
    """Return the columns of a tile of eight."""
    even, odd = tl.split(tl.reshape(tile, (BLOCK, 2, 2, 2)))
    x04, x26 = tl.split(even)
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def tile_of(x0, x1, x2, x3, x4, x5, x6, x7, BLOCK: tl.constexpr):
    """Return a tile with these eight columns."""
    even = tl.join(tl.join(x0, x4), tl.join(x2, x6))
    odd = tl.join(tl.join(x1, x5), tl.join(x3, x7))
    return tl.reshape(tl.join(even, odd), (BLOCK, 8))


@triton.jit
def further_words_of(parameters, element):
    """Return the first two further words of elements, which have nonce 2^95 + element."""
    e = element.to(tl.uint64, bitcast=True)
    low, high = (e & LOW_32_BITS).to(tl.uint32), (e >> 32).to(tl.uint32)
    x0, x1, x2, x3, _, _, _, _, _, _, _, _, _, _, _, _ = chacha20(
        parameters, low * 0, low, high, low * 0 + 0x80000000
    )
    return word_of(x0, x1), word_of(x2, x3)
