"""A Generator that must not be used, for tests of rejected arguments."""

from typing import Any

import pytest

import dpnoise
from dpnoise.core.entropy import EntropySource


class SilentSource(EntropySource):
    """A source that fails the test if it is used."""

    def key(self, cipher: str = "") -> Any:
        """Fail the test."""
        del cipher
        pytest.fail("noise was drawn")

    def random_bytes(self, _count: int) -> bytes:
        """Fail the test."""
        pytest.fail("noise was drawn")

    def scalar_words(self, _variates: int) -> bytes:
        """Fail the test."""
        pytest.fail("noise was drawn")


class FailingGenerator(dpnoise.Generator):
    """A Generator that fails the test if noise is drawn."""

    source = SilentSource()
