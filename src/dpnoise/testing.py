"""For tests alone: a Generator whose noise is known to whoever knows its key.

Nothing else in dpnoise can be made to repeat, and nothing in dpnoise imports this module.
"""

import hashlib
from typing import Any, NoReturn

import numpy as np

from dpnoise.entropy import WORD, Key
from dpnoise.errors import ArgumentTypeError, SecretError
from dpnoise.noise.generator import Generator

__all__ = ["fixed_generator"]


def fixed_generator(key: bytes, **options: Any) -> Generator:
    """Return a Generator that draws the same noise whenever it is made with the same key.

    Its first call expands `key` itself, in the layout of `dpnoise.entropy`; each further call
    expands the BLAKE2b hash of the key before it. Scalar calls read the key stream too.

    Parameters
    ----------
    key
        32 bytes.
    options
        As for `Generator`.

    Examples
    --------
    >>> from dpnoise.testing import fixed_generator
    >>> fixed_generator(bytes(32)).laplace() == fixed_generator(bytes(32)).laplace()
    True
    >>> fixed_generator(bytes(32))
    <fixed dpnoise generator: for tests alone, its noise protects nobody>
    """
    if not isinstance(key, bytes):
        raise ArgumentTypeError(f"Expected key to be 32 bytes, got {type(key).__name__}.")
    return _FixedGenerator(key, **options)


class _FixedGenerator(Generator):
    """A Generator with a chain of keys in place of the operating system."""

    def __init__(self, key: bytes, **options: Any) -> None:
        super().__init__(**options)
        Key(key)  # Checks its length.
        object.__setattr__(self, "_next", key)

    def __repr__(self) -> str:
        return "<fixed dpnoise generator: for tests alone, its noise protects nobody>"

    def __reduce__(self) -> NoReturn:
        raise SecretError("A fixed generator holds its key and is never copied or pickled.")

    def _fresh_key(self) -> Key:
        key: bytes = self._next  # type: ignore[attr-defined]
        object.__setattr__(self, "_next", hashlib.blake2b(key, digest_size=32).digest())
        object.__setattr__(self, "_last", key)
        return Key(key)

    def _random_bytes(self, count: int) -> bytes:
        words = np.empty(-(-count // 8), dtype=WORD)
        self._fresh_key().stream().fill(words)
        return words.tobytes()[:count]

    def _further_words(self, row: int, count: int) -> list[int]:
        key = Key(self._last)  # type: ignore[attr-defined]
        words: list[int] = key.further_words(0, count, row).tolist()
        return words
