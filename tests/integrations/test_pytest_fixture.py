"""The fixture for pytest: it fails where a claim is broken, at its part of a suite's error."""

from pathlib import Path

import pytest

CONFTEST = 'pytest_plugins = ["dpnoise.integrations.pytest"]'
SUITE = """
import numpy as np
import pytest

rng = np.random.default_rng()
OPTIONS = {"neighbours": [(0, 1)], "budget": 4000}


def coin(bit, n):
    return rng.random(n) < 0.5


@pytest.mark.parametrize("again", range(3))
def test_a_sound_mechanism(assert_private, again):
    first = assert_private(coin, epsilon=1.0, **OPTIONS)
    second = assert_private(coin, epsilon=1.0, **OPTIONS)
    assert 1 - first.confidence == pytest.approx((1 - 0.99) / 4 / 2)
    assert 1 - second.confidence == pytest.approx((1 - 0.99) / 4 / 4)
    assert assert_private(coin, epsilon=1.0, confidence=0.9, **OPTIONS).confidence == 0.9


def test_a_broken_one(assert_private):
    assert_private(lambda bit, n: np.full(n, bit), epsilon=1.0, **OPTIONS)


def test_without_it():
    pass
"""


@pytest.mark.long
def test_a_suite_has_one_error_and_shows_what_broke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sound one does not depend on the bit: 16 standard deviations from what would be broken."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\ndpnoise_confidence = 0.99\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    # This run has a module called conftest already, so modules are imported without their names.
    options = ["-p", "no:cacheprovider", "--import-mode=importlib", "-q"]
    status = pytest.main([*options, str(tmp_path)])
    printed = capsys.readouterr().out
    assert status == pytest.ExitCode.TESTS_FAILED, printed
    assert "1 failed, 4 passed" in printed
    assert "BrokenError" in printed
    assert "epsilon is at least" in printed
