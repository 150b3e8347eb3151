"""A Generator that must not be drawn from, for tests of what is refused."""

from typing import Any

import pytest

import dpnoise


class Alarm(dpnoise.Generator):
    """A Generator that must not be drawn from."""

    def _fresh_key(self) -> Any:
        pytest.fail("noise was drawn")

    def _random_bytes(self, _count: int) -> bytes:
        pytest.fail("noise was drawn")
