"""Where every random bit comes from: the operating system, or a one-time key under ChaCha20.

Nothing here outlives a call. A scalar draw takes its words straight from the operating system;
a bulk draw takes a fresh 256-bit key from it and reads that key's stream. No generator state
exists that a fork, a thread, a snapshot or a pickle could repeat. Both come through a Generator's
`Source`, and there is one: the operating system's.

The layout makes a result a pure function of the key and the parameters, whatever the chunks, the
threads or the device. Words are 64 bits, little-endian. Of element i (from 0) made of n uniforms,
uniform j (1..n) starts with word i*n + j-1 of the key stream. The stream's 64-byte block b
has counter b mod 2^32 and nonce b div 2^32, in the layout of RFC 8439 (32-bit counter, 96-bit
nonce). Should more bits of that uniform be needed, its further word r (0, 1, ...) is word r*n + j-1
of the stream whose nonces start at 2^95 + i.
"""

import os
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, SecretError

KEY_BYTES: Final = 32
WORD: Final = np.dtype("<u8")
_BLOCK_BYTES: Final = 64
_BLOCKS_PER_NONCE: Final = 2**32
_ZEROS: Final = memoryview(bytes(2**18))  # ChaCha20 of zeros is its key stream.
_REFINEMENT_NONCE: Final = 2**95

system_bytes: Final = os.urandom


class Key:
    """A 256-bit key for one bulk call: it is used, never shown, copied or stored."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ArgumentError(f"Expected a key of {KEY_BYTES} bytes, got {len(secret)}.")
        self._secret = secret

    @classmethod
    def fresh(cls) -> "Key":
        """Draw a new key from the operating system."""
        return cls(system_bytes(KEY_BYTES))

    def stream(self, word: int = 0) -> "KeyStream":
        """Return the key stream from the given word on."""
        return KeyStream(self._secret, word)

    def further_words(self, element: int, count: int, row: int = 0) -> NDArray[np.uint64]:
        """Return the next word of each of an element's uniforms, beyond 64 * (row + 1) bits."""
        out = np.empty(count, dtype=WORD)
        KeyStream(self._secret, row * count, first_nonce=_REFINEMENT_NONCE + element).fill(out)
        return out

    def __repr__(self) -> str:
        return "<dpnoise key: 256 bits, not shown>"

    def __getstate__(self) -> NoReturn:
        raise SecretError(
            "A key is used once, in one process, and is never copied or pickled. "
            "Send the Generator instead: it holds no secret and draws a fresh key for each call."
        )

    __reduce__ = __getstate__


class KeyStream:
    """Reads the words of one key in order. It belongs to one thread of one call."""

    __slots__ = ("_block", "_cipher", "_first_nonce", "_offset", "_secret")

    def __init__(self, secret: bytes, word: int, first_nonce: int = 0) -> None:
        self._secret = secret
        self._first_nonce = first_nonce
        self._block, self._offset = divmod(8 * word, _BLOCK_BYTES)
        self._cipher = self._cipher_at_block()
        if self._offset:
            self._cipher.update(bytes(self._offset))

    def __repr__(self) -> str:
        return "<dpnoise key stream: not shown>"

    def __getstate__(self) -> NoReturn:
        raise SecretError("A key stream belongs to one call and is never copied or pickled.")

    __reduce__ = __getstate__

    def _cipher_at_block(self) -> CipherContext:
        nonce, counter = divmod(self._block, _BLOCKS_PER_NONCE)
        initial = counter.to_bytes(4, "little") + (self._first_nonce + nonce).to_bytes(12, "little")
        return Cipher(algorithms.ChaCha20(self._secret, initial), mode=None).encryptor()

    def fill(self, words: NDArray[np.uint64]) -> None:
        """Overwrite a contiguous array with the next words of the stream."""
        target = words.data.cast("B")
        while len(target):
            # The 32-bit counter must never wrap: the next block has the next nonce.
            left = (_BLOCKS_PER_NONCE - self._block % _BLOCKS_PER_NONCE) * _BLOCK_BYTES
            size = min(len(target), len(_ZEROS), left - self._offset)
            self._cipher.update_into(_ZEROS[:size], target[:size])
            target = target[size:]
            blocks, self._offset = divmod(self._offset + size, _BLOCK_BYTES)
            self._block += blocks
            if blocks and self._block % _BLOCKS_PER_NONCE == 0:
                self._cipher = self._cipher_at_block()


class Source:
    """Where a Generator takes its keys and its bytes from: the operating system. It has no state.

    `dpnoise.testing` alone has another one.
    """

    __slots__ = ()

    # A scalar draw takes the bytes of its words here; no call stands between, because each counts.
    random_bytes = staticmethod(system_bytes)

    def key(self) -> Key:
        """Return a new key, for one bulk call."""
        return Key.fresh()

    def further_words(self, count: int, row: int) -> list[int]:  # noqa: ARG002 - all are fresh
        """Return the next word of each of the last scalar draw's uniforms, as a key does."""
        words: list[int] = np.frombuffer(self.random_bytes(8 * count), dtype=WORD).tolist()
        return words

    def __repr__(self) -> str:
        return "<dpnoise source: the operating system>"


SYSTEM: Final = Source()
