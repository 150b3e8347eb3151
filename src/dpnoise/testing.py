"""Tools for tests: a Generator with a fixed key, and an assertion that runs an audit.

Nothing else in dpnoise can repeat its noise. Within dpnoise, only the fixture for pytest imports
this module.
"""

import hashlib
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dpnoise.auditing import audit
from dpnoise.core.entropy import AES, KEY_BYTES, WORD, EntropySource, Key
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, SecretError
from dpnoise.noise.generator import Generator

if TYPE_CHECKING:
    from dpnoise.auditing.report import Report

__all__ = ["assert_private", "fixed_generator"]


def assert_private(
    mechanism: object, epsilon: float | None = None, delta: float = 0.0, **options: Any
) -> "Report":
    """Audit a mechanism, and fail the test if the audit refutes its claim.

    Passing proves nothing: see `dpnoise.audit`. A mechanism that keeps its claim fails with
    probability at most 1 - confidence, 0.001 by default; a suite that runs often needs a higher
    confidence. Two tests could never fail, and are errors: a claim that the sample size could not
    refute, and a mechanism of which nothing was observed, such as one whose outputs are all equal.

    Parameters
    ----------
    mechanism, epsilon, delta
        The mechanism to audit, and its claim.
    options
        As for `dpnoise.audit`: neighbours, sensitivity, budget, confidence, mu, rho and the rest.

    Examples
    --------
    >>> import dpnoise
    >>> from dpnoise.testing import assert_private
    >>> mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    >>> report = assert_private(
    ...     lambda answers, n: mechanism.release(np.tile(answers, (n, 1))),
    ...     epsilon=1.0, neighbours=[([3.0, 5.0], [4.0, 5.0])], budget=40_000, confidence=1 - 1e-8)
    >>> report.broken
    False
    """
    report = audit(mechanism, epsilon, delta, **options)
    report.raise_if_broken()
    if not report.observed:
        raise ArgumentError(f"{report.target}: {report.verdict}")
    if not report.refutable:
        raise ArgumentError(f"{report.target}: {report.verdict} Give a larger budget.")
    return report


def fixed_generator(key: bytes, *, cipher: str = AES, **options: Any) -> Generator:
    """Return a Generator that always draws the same noise for the same key.

    The first call uses `key`. Each further call uses the BLAKE2b hash of the previous key. Scalar
    calls use a key each, too. `dpnoise.core.entropy` defines the key stream.

    Parameters
    ----------
    key
        32 bytes.
    cipher
        "AES-256-CTR", the default on processors, or "ChaCha20", the cipher of other devices.
    options
        As for `Generator`.

    Examples
    --------
    >>> from dpnoise.testing import fixed_generator
    >>> fixed_generator(bytes(32)).laplace() == fixed_generator(bytes(32)).laplace()
    True
    >>> fixed_generator(bytes(32))
    <fixed dpnoise generator (AES-256-CTR): only for tests, its noise protects nobody>
    """
    if not isinstance(key, bytes):
        raise ArgumentTypeError(f"key must be 32 bytes, got {type(key).__name__}.")
    return _FixedGenerator(key, cipher, **options)


class _FixedSource(EntropySource):
    """A chain of keys in place of the operating system."""

    __slots__ = ("_last", "_next", "cipher")

    def __init__(self, secret: bytes, cipher: str) -> None:
        self._last = Key(secret, cipher)
        self._next = secret
        self.cipher = cipher

    def __repr__(self) -> str:
        return f"<fixed dpnoise source ({self.cipher}): only for tests, its bits protect nobody>"

    def __reduce__(self) -> NoReturn:
        raise SecretError("A fixed source holds its key and is never copied or pickled.")

    def key(self, cipher: str | None = None) -> Key:  # noqa: ARG002 - the cipher is fixed
        """Return the next key of the chain."""
        self._last = Key(self._next, self.cipher)
        self._next = hashlib.blake2b(self._next, digest_size=KEY_BYTES).digest()
        return self._last

    def random_bytes(self, count: int) -> bytes:
        """Return the first bytes of the next key's stream."""
        words = np.empty(-(-count // 8), dtype=WORD)
        self.key().stream().fill(words)
        return words.tobytes()[:count]

    def scalar_words(self, variates: int) -> bytes:
        """Return the words of a scalar release: the first of each uniform, then the second.

        They are those of element 0 under the next key.
        """
        first = self.random_bytes(8 * variates)
        return first + self._last.further_words(0, variates).tobytes()

    def further_words(self, variates: int, row: int) -> list[int]:
        """Return the word of each uniform of the last scalar draw after its first row + 1 words."""
        words: list[int] = self._last.further_words(0, variates, row).tolist()
        return words


class _FixedGenerator(Generator):
    """A Generator with a fixed source."""

    source: "_FixedSource"  # type: ignore[misc] # Here it belongs to the instance, not to the class.

    def __init__(self, key: bytes, cipher: str, **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "source", _FixedSource(key, cipher))

    def __repr__(self) -> str:
        cipher = self.source.cipher
        return f"<fixed dpnoise generator ({cipher}): only for tests, its noise protects nobody>"

    def __reduce__(self) -> NoReturn:
        raise SecretError("A fixed generator holds its key and is never copied or pickled.")
