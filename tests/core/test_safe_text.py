"""A confidence close to 1 is printed with the digits that distinguish it from 1."""

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest

from dpnoise.core.html import environment
from dpnoise.core.safe_text import format_confidence

SOURCE = Path(__file__).parents[2] / "src" / "dpnoise"


@pytest.mark.parametrize("error", [0.05, 1e-3, 4e-7, 1e-8, 1e-9 / 3, 2.0**-40, 2.0**-53])
def test_no_confidence_below_1_is_printed_as_1(error: float) -> None:
    confidence = 1 - error
    text = format_confidence(confidence)
    assert Fraction(text) < 1
    assert float(text) == pytest.approx(confidence, abs=1e-6)


def test_a_certain_statement_and_the_next_number_below() -> None:
    assert format_confidence(1.0) == "1"
    assert format_confidence(100.0, whole=100) == "100"
    assert Fraction(format_confidence(math.nextafter(1, 0))) < 1
    percent = environment().from_string("{{ part | percent }}").render(part=0.999999995)
    assert percent == "99.9999995%"


def test_no_message_rounds_a_confidence_to_six_digits() -> None:
    rounded = r"confidence:[.\d]*g\}|confidence \{[^}]*:[.\d]*g\}"
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.html")]:
        assert not re.search(rounded, path.read_text()), path
