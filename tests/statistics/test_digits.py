"""Published numbers as text: no margin or interval is written too small."""

from fractions import Fraction

import numpy as np

from dpnoise import statistics
from dpnoise.statistics.digits import format_interval, format_loss, format_number


def read(text: str) -> Fraction:
    return Fraction(text.strip("± ").replace(",", ""))


def test_numbers_are_shown_with_the_digits_their_error_leaves() -> None:
    assert format_number(33299.87576, 3548.74) == ("33,300", "± 3,600")
    assert format_number(0.123456, 0.0123) == ("0.123", "± 0.013")
    assert format_number(5000, 3.4957) == ("5,000", "± 3.5")
    assert format_number(5000, 1234) == ("5,000", "± 1,234")
    assert format_number(40840.0, None) == ("40,840", "no margin")


def test_a_printed_margin_is_never_too_small() -> None:
    """The exact number is within the written margin of the written number."""
    rng = np.random.default_rng()
    for _ in range(2000):
        value = float(rng.standard_normal() * 10 ** rng.uniform(-12, 12))
        error = float(10 ** rng.uniform(-12, 12))
        number, margin = format_number(value, error)
        assert read(margin) >= Fraction(error) + abs(read(number) - Fraction(value))


def test_a_printed_loss_is_never_too_small() -> None:
    """It is larger by at most the last of six digits; shorter numbers are unchanged."""
    rng = np.random.default_rng()
    for loss in (10 ** rng.uniform(-12, 3, 2000)).tolist():
        assert loss <= float(format_loss(loss)) <= loss * (1 + 1.00001e-5)
        short = float(f"{loss:.6g}")
        assert float(format_loss(short)) == short


def test_a_printed_interval_is_never_too_narrow() -> None:
    rng = np.random.default_rng()
    for _ in range(2000):
        value = float(rng.standard_normal() * 10 ** rng.uniform(-12, 12))
        low, high = (value + sign * float(10 ** rng.uniform(-12, 12)) for sign in (-1, 1))
        _, shown_low, shown_high = format_interval(value, low, high)
        assert read(shown_low) <= Fraction(low)
        assert read(shown_high) >= Fraction(high)


def test_numbers_of_any_size_are_shown() -> None:
    for value in (0, -1, 10**300, 1e300, -1e-300, 0.0, float("inf")):
        for error in (None, 0.0, 5e-324, 1e-300, 1.0, 1e300, float("inf")):
            number, within = format_number(value, error)
            assert number
            assert len(within) < 40
    assert format_number(1.5e300, 1e299) == ("1.5e+300", "± 1.1e+299")
    assert format_number(3.0, float("inf")) == ("3", "no margin")


def test_intervals_of_any_size_are_shown() -> None:
    assert format_interval(3.0, 3.0, 3.0) == ("3", "3", "3")
    assert format_interval(20.0, 20.0, 20.0) == ("20", "20", "20")
    assert format_interval(-2e6, -2e6, -2e6) == ("-2,000,000", "-2,000,000", "-2,000,000")
    number, low, high = format_interval(0.0, -1e300, 1e300)
    assert (number, low) == ("0", f"-{high}")
    assert Fraction(1e300) <= read(high) <= Fraction(1.000000002e300)
    assert len(high) < 20
    assert format_interval(1.0, 0.0, float("inf")) == ("1", "0", "inf")


def test_a_margin_of_0_is_a_margin() -> None:
    """At epsilon 4 a count is exact with a probability above 0.95."""
    released = statistics.count([1.0] * 5000, epsilon=4.0)
    assert released.error == 0
    assert format_number(released.value, released.error)[1] == "± 0"
