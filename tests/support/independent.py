"""A second implementation of exact release, from docs/design.md and docs/exact-release-proof.md.

It imports nothing from dpnoise: ChaCha20 is written in plain integers, AES works block by block,
uniforms have 192 bits, and mpmath and fractions compute the rest. It raises an error if those bits
do not determine a cell, which has a probability below 2^-50.
"""

import struct
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import mpmath
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

DIGITS = 192  # Bits of each uniform: its word and two further ones.
UNSURE = Fraction(1, 2**110)  # An upper bound on the effect of the unseen digits on Z.
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
    """Apply the quarter round of RFC 8439, section 2.1."""
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) % 2**32
        mixed = state[z] ^ state[x]
        state[z] = (mixed << turn | mixed >> (32 - turn)) % 2**32


@lru_cache(maxsize=4096)
def chacha20_block(secret: bytes, counter: int, nonce: int) -> bytes:
    """Return a block by RFC 8439, section 2.3; the nonce is a little-endian integer."""
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
    """Return AES-256 of one counter, a big-endian integer."""
    encryptor = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(counter.to_bytes(16, "big"))


def words_of(block: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(block) // 8}Q", block)


class Key(NamedTuple):
    """32 bytes and the cipher that expands them; a group of AES blocks shares a key."""

    secret: bytes
    cipher: str = "AES-256-CTR"
    group_size: int = 2**32

    def word(self, index: int) -> int:
        """Return a word of the key stream."""
        b, index_in_block = divmod(index, self.words_in_a_block)
        group, block_in_group = divmod(b, self.group_size)
        if self.cipher == "ChaCha20":
            return words_of(chacha20_block(self.secret, block_in_group, group))[index_in_block]
        secret = self.secret
        if group:
            first = 2**128 - 2 * group
            secret = aes_block(self.secret, first) + aes_block(self.secret, first + 1)
        return words_of(aes_block(secret, b))[index_in_block]

    def further_word(self, element: int, index: int) -> int:
        """Return a word of the further stream of an element."""
        b, index_in_block = divmod(index, self.words_in_a_block)
        if self.cipher == "ChaCha20":
            return words_of(chacha20_block(self.secret, b, 2**95 + element))[index_in_block]
        return words_of(aes_block(self.secret, 2**127 + element * 2**64 + b))[index_in_block]

    @property
    def words_in_a_block(self) -> int:
        """The number of words in a block of the cipher."""
        return 8 if self.cipher == "ChaCha20" else 2


def uniforms(key: Key, element: int, n: int) -> list[int]:
    """Return the first 192 bits of each uniform of an element, the first bit the highest."""
    return [
        key.word(element * n + j) << 128
        | key.further_word(element, j) << 64
        | key.further_word(element, n + j)
        for j in range(n)
    ]


def minus_log(digits: int, length: int = DIGITS) -> mpmath.mpf:
    """Return -log V, V = 1 - U, at the midpoint of the interval that the digits leave open."""
    return -mpmath.log(1 - mpmath.ldexp(2 * digits + 1, -length - 1))


def cosine(digits: int) -> mpmath.mpf:
    """Return the cosine of Remark 1: cos(pi (U mod 1/2)), negative if the first bit is 1."""
    sign, rest = divmod(digits, 2 ** (DIGITS - 1))
    return (1 - 2 * sign) * mpmath.cospi(mpmath.ldexp(2 * rest + 1, -DIGITS - 1))


def pair_member(v: int, angle: int, member: int) -> mpmath.mpf:
    """Return sqrt(-2 log V) times the cosine of an angle (member 0), or its sine (member 1).

    The first digit is the sign of the cosine and the second that of the sine. The others are the
    angle in a quarter turn.
    """
    signs, rest = divmod(angle, 2 ** (DIGITS - 2))
    half_turns = mpmath.ldexp(2 * rest + 1, -DIGITS)
    function = (mpmath.cospi, mpmath.sinpi)[member]
    sign = 1 - 2 * (signs >> (1 - member) & 1)
    return sign * mpmath.sqrt(2 * minus_log(v)) * function(half_turns)


@lru_cache(maxsize=4096)
def noise(form: str, key: Key, element: int) -> Fraction:
    """Return Z with an error below UNSURE. Elements 2i and 2i + 1 come from pair i."""
    n, width = UNIFORMS[form], 2 if form == "gaussian_pairs" else 1
    u = uniforms(key, element // width, n)
    with mpmath.workprec(3 * DIGITS):
        if form == "laplace_1":
            sign, rest = divmod(u[0], 2 ** (DIGITS - 1))
            z = (2 * sign - 1) * minus_log(rest, DIGITS - 1)
        elif form == "gaussian_2":
            z = mpmath.sqrt(2 * minus_log(u[0])) * cosine(u[1])
        elif form == "gaussian_pairs":
            z = pair_member(u[0], u[1], element % 2)
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
        raise ArithmeticError("192 digits of each uniform do not determine the cell.")
    return low // 1 * grid


def nearest(x: Fraction, name: str) -> Fraction:
    """Return the nearest number of a format: ties to even, saturating."""
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
    """Release one float of an array of this dtype; limits are numbers of the dtype."""
    exact_arguments = (Fraction(x), Fraction(scale), Fraction(grid))
    y = nearest(nearest(grid_point(form, key, element, *exact_arguments), "float64"), kind)
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
