"""The source of all randomness: the operating system, or a one-time key expanded by a cipher.

A scalar draw takes its words directly from the operating system. A bulk draw takes a fresh 256-bit
key from it and reads that key's stream. No generator state outlives a call, so a fork, a thread, a
snapshot or a pickle has nothing to repeat. Both go through the `Source` of a Generator.

Each key belongs to one of two ciphers, both OpenSSL's. Processors have instructions for AES-256 in
counter mode. ChaCha20 serves devices that lack them, and tests that compare both.

The layout makes a result a pure function of the key and the parameters: chunks, threads and device
do not matter. Words are 64 bits, little-endian. For element i (from 0) made of n uniforms, uniform
j (1..n) starts with word i*n + j-1 of the key stream. If that uniform needs more bits, its further
word r (0, 1, ...) is word r*n + j-1 of a separate stream for element i. (Two Gaussians made of one
pair of uniforms count as one element, the pair.)

AES: block b of 16 bytes is the encryption of b, as a big-endian number; element i's further stream
starts at 2^127 + i*2^64. From block 2^32 on, a block is encrypted under the key of its group
k = b div 2^32: the two blocks 2^128 - 2k and 2^128 - 2k + 1 of the first key. An adversary who sees
q blocks under one key distinguishes them from random bits with advantage at most q^2/2^129, which
is 2^-65 for a group. Where OpenSSL's GCM code uses wider vectors, it computes long reads: GCM is
the same counter mode from block 2 on (SP 800-38D), plus a tag that we do not request.

ChaCha20: block b of 64 bytes has counter b mod 2^32 and nonce b div 2^32, in the layout of RFC 8439
(32-bit counter, 96-bit nonce, a little-endian number); element i's further stream starts at nonce
2^95 + i.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError, CipherError, SecretError, check_choice
from dpnoise.core.machine import has_instructions

KEY_BYTES: Final = 32
WORD: Final = np.dtype("<u8")
AES: Final = "AES-256-CTR"
CHACHA20: Final = "ChaCha20"
_BLOCK_BYTES: Final = {AES: 16, CHACHA20: 64}
_COUNTER: Final = np.dtype(">u8")
_ZEROS: Final = memoryview(bytes(2**18))  # A stream cipher's encryption of zeros is its key stream.
# GCM has a nonce of 96 bits, and the blocks 0 and 1 of its 32-bit counter are not for the text.
_GCM_BLOCKS: Final = 2**32
_GCM_START: Final = 2
# Bytes of a first read above which GCM saves more than opening a second cipher costs.
_LONG_READ: Final = 60_000
# OpenSSL uses 512-bit registers for GCM from 3.1 on, and for counter mode from 4.1 on.
_WIDE_GCM_ALONE: Final = range(0x30100000, 0x40100000)
_FURTHER: Final = np.uint64(2**63)
_FURTHER_COUNTER: Final = 2**127
_FURTHER_NONCE: Final = 2**95

# After this many blocks a stream continues under the next key (AES) or nonce (ChaCha20).
blocks_in_a_group = 2**32

system_bytes: Final = os.urandom

Words = NDArray[np.uint64]
Opened = tuple[CipherContext, int]  # A cipher, and the number of blocks it covers.


class Key:
    """A 256-bit key for one bulk call: it is used, never shown, copied or stored."""

    __slots__ = ("_secret", "cipher")

    def __init__(self, secret: bytes, cipher: str = AES) -> None:
        if len(secret) != KEY_BYTES:
            raise ArgumentError(f"A key must have {KEY_BYTES} bytes, got {len(secret)}.")
        check_choice("cipher", cipher, _BLOCK_BYTES)
        self._secret = secret
        self.cipher = cipher

    @classmethod
    def fresh(cls, cipher: str = AES) -> "Key":
        """Draw a new key from the operating system."""
        check_cipher(cipher)
        return cls(system_bytes(KEY_BYTES), cipher)

    def stream(self, word: int = 0) -> "KeyStream":
        """Return the key stream from the given word on."""
        return KeyStream(self._open, _BLOCK_BYTES[self.cipher], word)

    def uses_gcm(self, words: int) -> bool:
        """Return whether a first read of `words` words from word 0 uses GCM."""
        return self.cipher == AES and 8 * words >= _LONG_READ and gcm_is_wider()

    def for_device(self) -> Words:
        """Return the secret key as words, for a device that runs the cipher."""
        return np.frombuffer(self._secret, dtype=WORD)

    def further_words(self, element: int, count: int, row: int = 0) -> Words:
        """Return the next word of each of an element's uniforms, beyond 64 * (row + 1) bits."""
        out = np.empty(count, dtype=WORD)
        self._further_stream(element, row * count).fill(out)
        return out

    def second_words(self, variates: int) -> Callable[[NDArray[np.int64]], Words]:
        """Return a function, for one thread, from elements to the second word of each uniform.

        It returns the rows of `further_words` for all elements, with one cipher call for AES.
        """
        if self.cipher == CHACHA20:
            return lambda elements: np.array(
                [self.further_words(int(i), variates) for i in elements], dtype=WORD
            ).reshape(-1, variates)
        blocks = -(-variates // 2)
        # ECB of a list of counters is counter mode.
        cipher = Cipher(algorithms.AES(self._secret), modes.ECB()).encryptor()  # noqa: S305
        counters = np.empty((0, blocks, 2), dtype=_COUNTER)

        def read(elements: NDArray[np.int64]) -> Words:
            nonlocal counters
            if len(counters) < len(elements):
                counters = np.empty((len(elements), blocks, 2), dtype=_COUNTER)
                counters[:, :, 1] = np.arange(blocks)
            counters[: len(elements), :, 0] = (elements.view(np.uint64) | _FURTHER)[:, None]
            words = np.frombuffer(cipher.update(counters[: len(elements)].tobytes()), dtype=WORD)
            return words.reshape(-1, 2 * blocks)[:, :variates]

        return read

    def _open(self, block: int, size: int) -> "Opened":
        """Return the cipher at a block of the key's stream, for a read of `size` bytes."""
        group, within = divmod(block, blocks_in_a_group)
        left = blocks_in_a_group - within
        if self.cipher == CHACHA20:
            return _chacha20(self._secret, within, group), left
        secret = self._secret_of(group)
        nonce, counter = divmod(block, _GCM_BLOCKS)
        if counter > _GCM_START or not self.uses_gcm(size // 8):
            return _aes(secret, block), left
        if counter < _GCM_START:
            return _aes(secret, block), min(left, _GCM_START - counter)
        return _gcm(secret, nonce), min(left, _GCM_BLOCKS - counter)

    def _secret_of(self, group: int) -> bytes:
        """Return the AES key of a group of blocks."""
        if group == 0:
            return self._secret
        return _aes(self._secret, 2**128 - 2 * group).update(bytes(KEY_BYTES))

    def _further_stream(self, element: int, word: int) -> "KeyStream":
        if self.cipher == CHACHA20:

            def start(block: int, size: int) -> Opened:  # noqa: ARG001 - it is short
                group, within = divmod(block, blocks_in_a_group)
                nonce = _FURTHER_NONCE + element + group
                return _chacha20(self._secret, within, nonce), blocks_in_a_group - within

        else:

            def start(block: int, size: int) -> Opened:  # noqa: ARG001 - it is short
                counter = _FURTHER_COUNTER + (element << 64) + block
                return _aes(self._secret, counter), 2**64 - block

        return KeyStream(start, _BLOCK_BYTES[self.cipher], word)

    def __repr__(self) -> str:
        return f"<dpnoise key: 256 bits for {self.cipher}, not shown>"

    def __getstate__(self) -> NoReturn:
        raise SecretError(
            "A key is used once, in one process, and is never copied or pickled. "
            "Send the Generator instead: it holds no secret and draws a fresh key for each call."
        )

    __reduce__ = __getstate__


def _aes(secret: bytes, counter: int) -> CipherContext:
    mode = modes.CTR(counter.to_bytes(16, "big"))
    return Cipher(algorithms.AES(secret), mode).encryptor()


def _gcm(secret: bytes, nonce: int) -> CipherContext:
    """Return AES in counter mode from block 2 of a nonce on, computed by OpenSSL's GCM code."""
    return Cipher(algorithms.AES(secret), modes.GCM(nonce.to_bytes(12, "big"))).encryptor()


def _chacha20(secret: bytes, counter: int, nonce: int) -> CipherContext:
    initial = counter.to_bytes(4, "little") + nonce.to_bytes(12, "little")
    return Cipher(algorithms.ChaCha20(secret, initial), mode=None).encryptor()


@cache
def check_cipher(cipher: str) -> None:
    """Raise CipherError if OpenSSL computes a wrong stream here. Runs once for each process.

    OpenSSL chooses among several implementations by the processor. One of them was wrong for some
    numbers of blocks (openssl/openssl#32873). So the first block is compared with the published
    one, and reads of 1, 2, ..., 33 blocks with the same blocks read one by one.
    """
    size, start, published = _BLOCK_BYTES[cipher], *_PUBLISHED[cipher]
    blocks = _one_by_one(start(), size)
    if blocks[:size] != bytes.fromhex(published) or blocks != _read_in_pieces(start(), size):
        _refuse(cipher)


@cache
def gcm_is_wider() -> bool:
    """Return whether OpenSSL encrypts four blocks at once for GCM, but one for counter mode.

    This holds on x86-64 with 512-bit AES instructions, from OpenSSL 3.1 up to 4.0. Raise
    CipherError if GCM differs from counter mode on the reads above, on a long read, or on the same
    reads of half blocks, which take a separate code path.
    """
    if not has_instructions("avx512f", "avx512dq", "avx512bw", "avx512vl", "vaes", "vpclmulqdq"):
        return False
    from cryptography.hazmat.backends.openssl import backend  # noqa: PLC0415 - it takes a while

    if backend.openssl_version_number() not in _WIDE_GCM_ALONE:
        return False
    secret, nonce, long = bytes(range(32)), 2**95 + 1, bytes(_LONG_READ)
    gcm, aes = _gcm(secret, nonce), _aes(secret, nonce * _GCM_BLOCKS + _GCM_START)
    for size in (_BLOCK_BYTES[AES], _BLOCK_BYTES[AES] // 2):
        if _read_in_pieces(gcm, size) != _one_by_one(aes, size) or gcm.update(long) != aes.update(
            long
        ):
            _refuse(AES)
    return True


_PIECE_BLOCKS: Final = range(1, 34)


def _read_in_pieces(cipher: CipherContext, size: int) -> bytes:
    return b"".join(cipher.update(bytes(number * size)) for number in _PIECE_BLOCKS)


def _one_by_one(cipher: CipherContext, size: int) -> bytes:
    return b"".join(cipher.update(bytes(size)) for _ in range(sum(_PIECE_BLOCKS)))


def _refuse(cipher: str) -> NoReturn:
    raise CipherError(
        f"OpenSSL computes a wrong {cipher} stream on this machine, so nothing was drawn. Install "
        "another version of the package cryptography, which contains OpenSSL."
    )


# The cipher's input and the published block: FIPS 197, appendix C.3; RFC 8439, 2.3.2.
_PUBLISHED: Final[dict[str, tuple[Callable[[], CipherContext], str]]] = {
    AES: (
        lambda: _aes(bytes(range(32)), 0x00112233445566778899AABBCCDDEEFF),
        "8ea2b7ca516745bfeafc49904b496089",
    ),
    CHACHA20: (
        lambda: _chacha20(bytes(range(32)), 1, 0x4A00000009000000),
        (
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
        ),
    ),
}


class KeyStream:
    """Reads the words of one stream in order, for one call and one thread at a time."""

    __slots__ = ("_block", "_block_bytes", "_cipher", "_left", "_offset", "_open")

    _cipher: CipherContext

    def __init__(self, open_at: Callable[[int, int], Opened], block_bytes: int, word: int) -> None:
        self._open = open_at
        self._block_bytes = block_bytes
        # The next cipher's first block and offset, and the bytes left in the current cipher.
        self._block, self._offset = divmod(8 * word, block_bytes)
        self._left = 0

    def __repr__(self) -> str:
        return "<dpnoise key stream: not shown>"

    def __getstate__(self) -> NoReturn:
        raise SecretError("A key stream belongs to one call and is never copied or pickled.")

    __reduce__ = __getstate__

    def fill(self, words: Words) -> None:
        """Overwrite a contiguous array with the next words of the stream."""
        target = words.data.cast("B")
        while len(target):
            if not self._left:
                self._switch_cipher(len(target))
            size = min(len(target), len(_ZEROS), self._left)
            self._cipher.update_into(_ZEROS[:size], target[:size])
            self._left -= size
            target = target[size:]

    def _switch_cipher(self, size: int) -> None:
        """Switch to the cipher of the next block, for a read of `size` bytes."""
        self._cipher, blocks = self._open(self._block, size)
        if self._offset:
            self._cipher.update(bytes(self._offset))
        self._left = blocks * self._block_bytes - self._offset
        self._block, self._offset = self._block + blocks, 0


class EntropySource:
    """The stateless source of a Generator's keys and bytes: the operating system.

    Only `dpnoise.testing` has another one.
    """

    __slots__ = ()

    # An alias without a call in between: each call counts in the time of a scalar draw.
    random_bytes = staticmethod(system_bytes)

    def key(self, cipher: str = AES) -> Key:
        """Return a new key, for one bulk call."""
        return Key.fresh(cipher)

    def scalar_words(self, variates: int) -> bytes:
        """Return the words of a scalar release: the first of each uniform, then the second."""
        return system_bytes(16 * variates)

    def further_words(self, variates: int, row: int) -> list[int]:  # noqa: ARG002 - all are fresh
        """Return the next word of each uniform of the last scalar draw."""
        words: list[int] = np.frombuffer(self.random_bytes(8 * variates), dtype=WORD).tolist()
        return words

    def __repr__(self) -> str:
        return "<dpnoise source: the operating system>"


SYSTEM: Final = EntropySource()
