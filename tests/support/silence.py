"""A Generator that must not be drawn from, for tests of what is refused."""

from typing import Any

import pytest

import dpnoise
from dpnoise.core.entropy import Source


class SilentSource(Source):
    """A source that must not be asked."""

    def key(self, cipher: str = "") -> Any:
        """Fail."""
        del cipher
        pytest.fail("noise was drawn")

    def random_bytes(self, _count: int) -> bytes:
        """Fail."""
        pytest.fail("noise was drawn")

    def two_words_each(self, _variates: int) -> bytes:
        """Fail."""
        pytest.fail("noise was drawn")


class Alarm(dpnoise.Generator):
    """A Generator that must not be drawn from."""

    source = SilentSource()
