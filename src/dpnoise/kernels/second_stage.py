"""The second stage of exact release: decide in fixed point what `first_stage` left open.

`first_stage` decides almost every grid point from 64 bits of each uniform. This stage uses 128 bits
and leaves fewer than one number in 2^64 to the reference implementation. Its work does not depend
on the uniforms or the values, so timing does not reveal which numbers were open. A single number
always takes this stage. A chunk sends a fixed number of places, `slots`, whether open or not.
"""

import numpy as np

from dpnoise.kernels import (
    Floats,
    Integers,
    Truth,
    Words,
    compile_inline,
    compile_kernel,
    noise_128bit,
)
from dpnoise.kernels.elementary import LOW_63_BITS, power_of_two, word_of
from dpnoise.kernels.fixed import (
    Wide,
    down,
    is_less,
    mask_of,
    mask_where,
    negated_if,
    plus,
    product,
    up,
)
from dpnoise.kernels.noise_128bit import Noise
from dpnoise.kernels.scalar import raised_word

OPEN = np.int64(-(2**63))  # The least integer.
_0, _1, _4, _6 = (np.uint64(k) for k in (0, 1, 4, 6))
_52, _62, _63, _64, _128, _1073, _2047 = (np.uint64(k) for k in (52, 62, 63, 64, 128, 1073, 2047))
_LOW_52_BITS, _LEAST_NORMAL = np.uint64(2**52 - 1), np.uint64(2**52)
_SIGN = np.uint64(2**63)
_LARGEST_INTEGER, _LAST, _MOST_SHIFT = np.int64(2**63 - 1), np.int64(63), np.int64(62)
_INFINITY = np.int64(2047 << 52)
_EXACT = np.int64(2**53)  # A cell of at most this size is a float.
_BLOCK = 16  # Numbers that are searched for NaNs together.


# The decision. A number of grids is a whole number plus a fraction in units of 2^-128.


@compile_kernel
def nearest_cell(fraction: Wide, noise: Noise, ratio: float) -> tuple[np.int64, Truth]:
    """Return floor(fraction + ratio * Z + 1/2), and whether it is certain for all Z of the noise.

    ratio = m 2^(exponent - 1075) is at most 2^50; all but m * magnitude is a shift.
    """
    magnitude, sign, error = noise
    bits = np.float64(ratio).view(np.uint64)
    exponent = (bits >> _52) & _2047
    m = ((bits & _LOW_52_BITS) | _LEAST_NORMAL) << _6
    places = _1073 - exponent
    lower = product(magnitude[1], m)
    upper = plus(product(magnitude[0], m), (_0, lower[0]))
    # upper * 2^64 + the low word of `lower`, shifted right, as a whole number and a fraction.
    whole = down(upper, places + _64)[1]
    part = up(down(upper, max(places, _64) - _64), _64 - min(places, _64))
    part = plus(part, down((_0, lower[1]), places))
    # The truncated bits and the rounding of the bound amount to less than 4 units.
    bound = plus(down(product(error, m), places), (_0, _4))
    mask = mask_of(sign)
    part = negated_if(mask, part)
    whole = (whole ^ mask) + (mask & np.uint64((part[0] | part[1]) == _0))
    y = plus(part, fraction)
    whole += np.uint64(is_less(y, fraction))
    y = plus(y, (_SIGN, _0))
    whole += np.uint64(y[0] < _SIGN)
    outside = np.uint64(is_less(y, bound)) | np.uint64(is_less(plus(y, bound), bound))
    return np.uint64(whole).view(np.int64), (outside | (error >> _62)) == _0


@compile_kernel
def split_float(value: float, grid: float) -> tuple[float, np.int64, Wide]:
    """Return base, whole and fraction with value = base + (whole + fraction) * grid.

    base is the value where that is a whole number of grids beyond 2^53, else 0. The bits are read
    as integers, so subnormals count even where the processor flushes them to zero.
    """
    bits = np.float64(value).view(np.uint64)
    exponent = (bits >> _52) & _2047
    normal = np.uint64(exponent > _0)
    m = (bits & _LOW_52_BITS) | (normal << _52)
    # value = m 2^(exponent - 1075), in grids m 2^-places.
    of_grid = (np.float64(grid).view(np.uint64) >> _52) + _52
    places = np.int64(of_grid) - np.int64(exponent + _1 - normal)
    within = places > 0
    right = np.uint64(max(places, np.int64(0)))
    up_by, down_by = _128 - min(right, _128), max(right, _128) - _128
    part = down(up((_0, m), up_by), down_by)
    whole = (m >> (right & _63)) & mask_where(right < _64)
    mask = mask_of(bits)
    part = negated_if(mask, part)
    whole = (whole ^ mask) + (mask & np.uint64((part[0] | part[1]) == _0))
    keep = mask_where(within)
    base = 0.0 if within else value
    return base, np.uint64(whole & keep).view(np.int64), (part[0] & keep, part[1] & keep)


@compile_inline
def release_float(value: float, noise: Noise, scale: float, grid: float) -> float:
    """Return the nearest float to the grid point of value + scale * Z, or NaN if it is open."""
    base, whole, fraction = split_float(value, grid)
    cell, certain = nearest_cell(fraction, noise, scale * (1.0 / grid))
    # All sums below are exact, except the last one, which converts the exact result to a float.
    certain = certain & (abs(cell) <= _EXACT)
    result = base + np.float64(whole + cell) * grid + 0.0  # Adding 0.0 turns -0.0 into 0.0.
    return result if certain else np.nan


@compile_inline
def split_integer(value: np.int64, shift: int) -> tuple[np.int64, Wide]:
    """Return value / 2^shift, for a shift of at most 62, as a whole number and a fraction."""
    return value >> np.int64(shift), up(
        (_0, np.int64(value).view(np.uint64)), np.uint64(128 - shift)
    )


@compile_inline
def release_integer(value: np.int64, shift: int, noise: Noise, ratio: float) -> np.int64:
    """Return value + scale * Z in whole grids of 2^shift, or OPEN if it is not certain.

    For a value of at most 2^62 the sum is an int64: noise is below 2^8 * 2^50 grids.
    """
    whole, fraction = split_integer(value, shift)
    cell, certain = nearest_cell(fraction, noise, ratio)
    return whole + cell if certain else OPEN


@compile_inline
def release_raised(raised: np.uint64, shift: int, noise: Noise, ratio: float) -> np.int64:
    """Return the same for value + 2^63, or OPEN if `raised` is 0 or the sum exceeds int64.

    The bits above the 62nd are a whole number of grids and are added at the end.
    """
    value = np.uint64(raised ^ _SIGN).view(np.int64)
    beyond = value >> _MOST_SHIFT << _MOST_SHIFT
    cell = release_integer(value - beyond, shift, noise, ratio)
    whole = beyond >> np.int64(shift)
    total = whole + cell
    wrapped = ((whole ^ total) & (cell ^ total)) < 0
    return OPEN if (raised == _0) | (cell == OPEN) | wrapped else total


# One number: the words come as bytes, the first word of each uniform, then the second of each.


@compile_inline
def wide_of(raw: bytes, j: int, variates: int) -> Wide:
    """Return 128 bits of uniform j, from 0."""
    return word_of(raw, j), word_of(raw, variates + j)


@compile_inline
def laplace_1_of(raw: bytes) -> Noise:
    """Return the noise of one number."""
    return noise_128bit.laplace_1(wide_of(raw, 0, 1))


@compile_inline
def gaussian_2_of(raw: bytes) -> Noise:
    """Return the noise of one number."""
    return noise_128bit.gaussian_2(wide_of(raw, 0, 2), wide_of(raw, 1, 2))


@compile_kernel
def laplace_1_float(raw: bytes, value: float, scale: float, grid: float) -> float:
    """Release one float with Laplace noise from one uniform."""
    return release_float(value, laplace_1_of(raw), scale, grid)


@compile_kernel
def gaussian_2_float(raw: bytes, value: float, scale: float, grid: float) -> float:
    """Release one float with Gaussian noise from two uniforms."""
    return release_float(value, gaussian_2_of(raw), scale, grid)


# An integer comes as a Python object whose digits the kernel reads, or with 2^63 added.


@compile_kernel
def laplace_1_integer(raw: bytes, raised: np.uint64, shift: int, ratio: float) -> np.int64:
    """Release one integer with Laplace noise from one uniform."""
    return release_raised(raised_word(raised), shift, laplace_1_of(raw), ratio)


@compile_kernel
def gaussian_2_integer(raw: bytes, raised: np.uint64, shift: int, ratio: float) -> np.int64:
    """Release one integer with Gaussian noise from two uniforms."""
    return release_raised(raised_word(raised), shift, gaussian_2_of(raw), ratio)


# Several numbers of a chunk. `slots` are the indices of elements, or of pairs; `further` holds the
# second words of each slot's uniforms. A row of `noise` is magnitude, sign and error.


@compile_kernel
def open_places(out: Floats, width: int, least: int, blocks: Integers, slots: Integers) -> int:
    """Write the places with a NaN to `slots`, in order, and return their number.

    A place is `width` numbers, one or two; the last place may lack its second. `slots` and `blocks`
    are longer by one than the number of places and of blocks. At least `least` blocks are searched,
    with a NaN or without, so the work is constant unless more than `least` places are open.
    """
    whole_blocks = out.size // _BLOCK
    found = np.int64(0)
    for b in range(whole_blocks):
        blocks[found] = b
        is_open = np.int64(0)
        for k in range(_BLOCK):
            is_open |= _is_nan(out[_BLOCK * b + k])
        found += is_open
    count, inside = np.int64(0), _BLOCK // width
    for b in range(max(int(found), min(least, whole_blocks))):
        counts = _is_negative(b - found)
        first = inside * blocks[b] * counts
        for place in range(first, first + inside):
            slots[count] = place
            count += _is_open(out, place, width) & counts
    for place in range(inside * whole_blocks, -(-out.size // width)):
        slots[count] = place
        count += _is_open(out, place, width)
    return int(count)


# These compute 1 or 0 from bits, because LLVM may turn a comparison into a branch.


@compile_inline
def _is_negative(number: int | np.int64) -> np.int64:
    return np.int64(np.int64(number).view(np.uint64) >> _63)


@compile_inline
def _is_nan(x: float) -> np.int64:
    return _is_negative(_INFINITY - np.int64(np.float64(x).view(np.uint64) & LOW_63_BITS))


@compile_inline
def _is_open(out: Floats, place: int, width: int) -> np.int64:
    i, j = width * place, min(width * place + width, out.size) - 1
    return _is_nan(out[i]) | _is_nan(out[j])


@compile_inline
def _store(noise: Words, j: int, row: Noise) -> None:
    magnitude, noise[j, 2], noise[j, 3] = row
    noise[j, 0], noise[j, 1] = magnitude


@compile_inline
def _wide(words: Words, further: Words, slots: Integers, j: int, k: int) -> Wide:
    """Return 128 bits of uniform k of slot j."""
    return words[slots[j] * further.shape[1] + k], further[j, k]


@compile_kernel
def laplace_1(words: Words, further: Words, slots: Integers, noise: Words) -> None:
    """Laplace noise from one uniform each."""
    for j in range(further.shape[0]):
        _store(noise, j, noise_128bit.laplace_1(_wide(words, further, slots, j, 0)))


@compile_kernel
def gaussian_2(words: Words, further: Words, slots: Integers, noise: Words) -> None:
    """Gaussian noise from two uniforms each."""
    for j in range(further.shape[0]):
        v, u = _wide(words, further, slots, j, 0), _wide(words, further, slots, j, 1)
        _store(noise, j, noise_128bit.gaussian_2(v, u))


@compile_kernel
def gaussian_pairs(words: Words, further: Words, slots: Integers, noise: Words) -> None:
    """Two numbers with Gaussian noise from two uniforms for both."""
    for j in range(further.shape[0]):
        v, u = _wide(words, further, slots, j, 0), _wide(words, further, slots, j, 1)
        first, second = noise_128bit.gaussian_pair(v, u)
        _store(noise, 2 * j, first)
        _store(noise, 2 * j + 1, second)


@compile_inline
def _element(slots: Integers, width: int, j: int) -> int:
    """Return the index of the element that row j of the noise belongs to."""
    return int(slots[j // width]) * width + j % width


@compile_inline
def _noise(noise: Words, j: int) -> Noise:
    return (noise[j, 0], noise[j, 1]), noise[j, 2], noise[j, 3]


@compile_kernel
def settle_floats(
    noise: Words,
    slots: Integers,
    width: int,
    values: Floats,
    scale: float,
    grid: float,
    out: Floats,
) -> int:
    """Release the numbers of the slots where the first stage left a NaN.

    Return the number of those that are still open, for the reference implementation.
    """
    left = 0
    for j in range(noise.shape[0]):
        element = _element(slots, width, j)
        i = min(element, out.size - 1)
        released = release_float(values[i], _noise(noise, j), scale, grid)
        # The last pair of an odd number of values has no second member.
        is_open = (out[i] != out[i]) & (element == i)
        out[i] = released if is_open else out[i]
        left += out[i] != out[i]
    return left


@compile_kernel
def settle_cells(
    noise: Words,
    slots: Integers,
    width: int,
    values: Integers,
    shift: int,
    ratio: float,
    out: Floats,
) -> int:
    """Do the same for integers; `out` holds results relative to the grid point below each value."""
    left, grid = 0, power_of_two(shift)
    for j in range(noise.shape[0]):
        element = _element(slots, width, j)
        i = min(element, out.size - 1)
        _, fraction = split_integer(values[i], shift)
        cell, certain = nearest_cell(fraction, _noise(noise, j), ratio)
        settled = np.float64(cell) * grid if certain & (abs(cell) <= _EXACT) else np.nan
        is_open = (out[i] != out[i]) & (element == i)
        out[i] = settled if is_open else out[i]
        left += out[i] != out[i]
    return left


# Integers: the first stage releases their remainders modulo the grid.


@compile_kernel
def add_whole_grids(values: Integers, shift: int, out: Integers) -> None:
    """Add the whole grids of 2^shift below each value to the released remainders in `out`.

    `out` holds floats before and saturated numbers of grids after: one more array of a chunk would
    not fit into a core's cache.
    """
    per_grid = power_of_two(-shift)
    for i in range(values.size):
        whole = values[i] >> np.int64(shift)
        cell = np.int64(np.int64(out[i]).view(np.float64) * per_grid)
        total = whole + cell
        wrapped = ((whole ^ total) & (cell ^ total)) >> _LAST
        end = (cell >> _LAST) ^ _LARGEST_INTEGER
        out[i] = (total & ~wrapped) | (end & wrapped)


@compile_kernel
def to_integers(shift: int, out: Integers) -> None:
    """Convert numbers of grids to integers that saturate."""
    highest = _LARGEST_INTEGER >> np.int64(shift)
    for i in range(out.size):
        result = out[i] << np.int64(shift)
        result = _LARGEST_INTEGER if out[i] > highest else result
        out[i] = OPEN if out[i] < ~highest else result
