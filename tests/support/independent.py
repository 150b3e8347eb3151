"""The exact release a second time, as docs/design.md and docs/exact-release.md describe it.

It imports nothing of dpnoise: ChaCha20 in plain integers, AES block by block, uniforms of 192 bits,
mpmath, fractions. Where those bits cannot tell a cell it raises, which happens with a probability
below 2^-50.
"""

import struct
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import mpmath
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

DIGITS = 192  # Of each uniform: its word and two further ones.
UNSURE = Fraction(1, 2**110)  # More than the digits not seen can move Z.
UNIFORMS = {
    "laplace_1": 1,
    "gaussian_2": 2,
    "gaussian_pairs": 2,  # For two numbers.
    "exponential": 1,
    "gumbel": 1,
}
# Digits, smallest exponent and largest number of each format.
FORMATS = {
    "float64": (53, -1022, (2 - Fraction(1, 2**52)) * 2**1023),
    "float32": (24, -126, (2 - Fraction(1, 2**23)) * 2**127),
    "float16": (11, -14, Fraction(65504)),
}


def quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    """RFC 8439, section 2.1."""
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) % 2**32
        mixed = state[z] ^ state[x]
        state[z] = (mixed << turn | mixed >> (32 - turn)) % 2**32


@lru_cache(maxsize=4096)
def chacha20_block(secret: bytes, counter: int, nonce: int) -> bytes:
    """RFC 8439, section 2.3; the nonce is a little-endian integer."""
    position = struct.pack("<I", counter) + nonce.to_bytes(12, "little")
    start = list(struct.unpack("<16I", b"expand 32-byte k" + secret + position))
    state = start.copy()
    for _ in range(10):
        for i in range(4):
            quarter_round(state, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter_round(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((x + y) % 2**32 for x, y in zip(state, start, strict=True)))


@lru_cache(maxsize=4096)
def aes_block(secret: bytes, counter: int) -> bytes:
    """AES-256 of one counter, a big-endian integer."""
    one_block = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305
    return one_block.update(counter.to_bytes(16, "big"))


def words_of(block: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(block) // 8}Q", block)


class Key(NamedTuple):
    """32 bytes and the cipher that expands them; AES's blocks come in groups under one key."""

    secret: bytes
    cipher: str = "AES-256-CTR"
    group_size: int = 2**32

    def word(self, index: int) -> int:
        """Return a word of the key stream."""
        b, place = divmod(index, self.words_in_a_block)
        group, within = divmod(b, self.group_size)
        if self.cipher == "ChaCha20":
            return words_of(chacha20_block(self.secret, within, group))[place]
        secret = self.secret
        if group:
            first = 2**128 - 2 * group
            secret = aes_block(self.secret, first) + aes_block(self.secret, first + 1)
        return words_of(aes_block(secret, b))[place]

    def further_word(self, element: int, index: int) -> int:
        """Return a word of an element's own stream."""
        b, place = divmod(index, self.words_in_a_block)
        if self.cipher == "ChaCha20":
            return words_of(chacha20_block(self.secret, b, 2**95 + element))[place]
        return words_of(aes_block(self.secret, 2**127 + element * 2**64 + b))[place]

    @property
    def words_in_a_block(self) -> int:
        """How many words a block of the cipher has."""
        return 8 if self.cipher == "ChaCha20" else 2


def uniforms(key: Key, element: int, n: int) -> list[int]:
    """Return the first 192 digits of each of an element's uniforms, the first bit the highest."""
    return [
        key.word(element * n + j) << 128
        | key.further_word(element, j) << 64
        | key.further_word(element, n + j)
        for j in range(n)
    ]


def minus_log(digits: int, length: int = DIGITS) -> mpmath.mpf:
    """-log V, V = 1 - U, in the middle of what the digits leave open."""
    return -mpmath.log(1 - mpmath.ldexp(2 * digits + 1, -length - 1))


def cosine(digits: int) -> mpmath.mpf:
    """Remark 1: cos(pi (U mod 1/2)), negative where the first bit is 1."""
    sign, rest = divmod(digits, 2 ** (DIGITS - 1))
    return (1 - 2 * sign) * mpmath.cospi(mpmath.ldexp(2 * rest + 1, -DIGITS - 1))


def paired(v: int, angle: int, member: int) -> mpmath.mpf:
    """Return sqrt(-2 log V) times the cosine of a turned angle (member 0), or its sine (1).

    The first digit is the sign of the cosine, the second that of the sine, the others the angle in
    a quarter turn.
    """
    signs, rest = divmod(angle, 2 ** (DIGITS - 2))
    half_turns = mpmath.ldexp(2 * rest + 1, -DIGITS)
    function = (mpmath.cospi, mpmath.sinpi)[member]
    sign = 1 - 2 * (signs >> (1 - member) & 1)
    return sign * mpmath.sqrt(2 * minus_log(v)) * function(half_turns)


@lru_cache(maxsize=4096)
def noise(form: str, key: Key, element: int) -> Fraction:
    """Return Z, off by less than UNSURE. Element 2i and 2i + 1 are made of pair i."""
    n, width = UNIFORMS[form], 2 if form == "gaussian_pairs" else 1
    u = uniforms(key, element // width, n)
    with mpmath.workprec(3 * DIGITS):
        if form == "laplace_1":
            sign, rest = divmod(u[0], 2 ** (DIGITS - 1))
            z = (2 * sign - 1) * minus_log(rest, DIGITS - 1)
        elif form == "gaussian_2":
            z = mpmath.sqrt(2 * minus_log(u[0])) * cosine(u[1])
        elif form == "gaussian_pairs":
            z = paired(u[0], u[1], element % 2)
        else:
            z = {"exponential": lambda e: e, "gumbel": lambda e: -mpmath.log(e)}[form](
                minus_log(u[0])
            )
        return Fraction(int(mpmath.floor(mpmath.ldexp(z, 256))), 2**256)


def grid_point(
    form: str, key: Key, element: int, x: Fraction, scale: Fraction, grid: Fraction
) -> Fraction:
    """Return grid * floor((x + scale * Z) / grid + 1/2)."""
    z = noise(form, key, element)
    low, high = ((x + scale * (z + d)) / grid + Fraction(1, 2) for d in (-UNSURE, UNSURE))
    if low // 1 != high // 1:
        raise ArithmeticError("192 digits of each uniform do not tell the cell.")
    return low // 1 * grid


def nearest(x: Fraction, name: str) -> Fraction:
    """Return the nearest number of a format, ties to even, saturating."""
    digits, least, largest = FORMATS[name]
    if x == 0:
        return x
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    return min(max(round(x / unit) * unit, -largest), largest)


def release_float(
    form: str,
    key: Key,
    element: int,
    x: float,
    scale: float,
    grid: float,
    kind: str = "float64",
    limits: tuple[float, float] | None = None,
) -> float:
    """Release one float of an array of this kind; limits are numbers of the kind."""
    exactly = (Fraction(x), Fraction(scale), Fraction(grid))
    y = nearest(nearest(grid_point(form, key, element, *exactly), "float64"), kind)
    if limits is not None:
        y = min(max(y, Fraction(limits[0])), Fraction(limits[1]))
    return float(y)


def release_integer(form: str, key: Key, element: int, x: int, scale: float, grid: float) -> int:
    """Release one integer, of any size."""
    point = grid_point(
        form, key, element, Fraction(x), Fraction(scale), max(Fraction(1), Fraction(grid))
    )
    return int(point)


def select(form: str, key: Key, scores: Sequence[float], scale: float) -> int:
    """Return the index of the largest score + scale * Z."""
    totals = [Fraction(x) + Fraction(scale) * noise(form, key, i) for i, x in enumerate(scores)]
    return totals.index(max(totals))
