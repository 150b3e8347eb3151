"""For pytest: `assert_private` as a fixture, with one rate of false alarms for the whole suite.

In a conftest.py: `pytest_plugins = ["dpnoise.integrations.pytest"]`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from dpnoise import testing
from dpnoise.core.errors import check_probability

if TYPE_CHECKING:
    from dpnoise.auditing.report import Report

__all__ = ["assert_private"]

_INI = "dpnoise_confidence"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the confidence of a suite to the settings of pytest."""
    parser.addini(_INI, "that no sound mechanism of the suite fails in a run", default="0.999")


@pytest.fixture
def assert_private(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Return `dpnoise.testing.assert_private` at this test's part of the suite's error.

    The error is split over all tests that use the fixture, and over the calls in each, so that a
    suite whose mechanisms all keep their claims fails with probability 0.001 at most, however many
    there are. The setting `dpnoise_confidence` is another, and `confidence=` another for one call.
    """
    confidence = check_probability(_INI, float(request.config.getini(_INI)))
    users = [
        item
        for item in request.session.items
        if "assert_private" in getattr(item, "fixturenames", ())
    ]
    left = (1 - confidence) / max(1, len(users))

    def check(
        mechanism: Any, epsilon: float | None = None, delta: float = 0.0, **options: Any
    ) -> "Report":
        nonlocal left
        left /= 2  # A half, a quarter and so on: together no more than the whole.
        options = {"confidence": 1 - left, **options}
        return testing.assert_private(mechanism, epsilon, delta, **options)

    return check
