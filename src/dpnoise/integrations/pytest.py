"""For pytest: `assert_private` as a fixture, with one false-positive rate for the whole suite.

To use it, write in a conftest.py: `pytest_plugins = ["dpnoise.integrations.pytest"]`.
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
    """Add the confidence of the suite to the settings of pytest."""
    meaning = "probability that no correct mechanism of the suite fails in a run"
    parser.addini(_INI, meaning, default="0.999")


@pytest.fixture
def assert_private(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Return `dpnoise.testing.assert_private` with this test's share of the error probability.

    The error probability is split over all tests that use the fixture, and over the calls in each.
    So a suite of mechanisms that keep their claims fails with probability at most 0.001. The
    setting `dpnoise_confidence` changes this for the suite, and `confidence=` for one call.
    """
    confidence = check_probability(_INI, float(request.config.getini(_INI)))
    users = [
        item
        for item in request.session.items
        if "assert_private" in getattr(item, "fixturenames", ())
    ]
    error_left = (1 - confidence) / max(1, len(users))

    def check(
        mechanism: Any, epsilon: float | None = None, delta: float = 0.0, **options: Any
    ) -> "Report":
        nonlocal error_left
        error_left /= 2  # The shares 1/2, 1/4, 1/8, ... add up to at most 1.
        options = {"confidence": 1 - error_left, **options}
        return testing.assert_private(mechanism, epsilon, delta, **options)

    return check
