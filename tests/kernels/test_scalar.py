"""A Python integer is read from its digits, for every size and on every Python."""

import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

import dpnoise
from dpnoise.kernels import scalar, second_stage
from dpnoise.testing import fixed_generator

ENDS = [
    2**k + offset for k in (0, 1, 8, 29, 30, 31, 59, 60, 61, 62, 63, 64) for offset in (-1, 0, 1)
]
ENDS += [2**89, 2**90 - 1, 2**90, 2**120 + 5, 2**63 + 2**90, 10**400, int.from_bytes(os.urandom(7))]
INTEGERS = [sign * number for number in ENDS for sign in (1, -1)]
LONG = 2**119  # An integer of four digits.
readable = pytest.mark.skipif(not scalar.READABLE, reason="the digits are not read here")


def raised_value(value: int) -> int:
    return value + 2**63 if abs(value) < 2**63 else 0


@pytest.fixture(scope="module")
def read_integer() -> Callable[[bytes, int], int]:
    def read_raised(raw: bytes, value: Any) -> Any:  # noqa: ARG001 - kernels for one number take bytes
        return scalar.raised_word(value)

    return scalar.without_dispatch(numba.njit(read_raised), "p")


@readable
def test_every_integer_is_read_from_its_digits(read_integer: Callable[[bytes, int], int]) -> None:
    assert [read_integer(b"", value) for value in INTEGERS] == [*map(raised_value, INTEGERS)]
    for bits in range(1, 95):
        value = int.from_bytes(os.urandom(12)) >> (96 - bits)
        assert (read_integer(b"", value), read_integer(b"", -value)) == (
            raised_value(value),
            raised_value(-value),
        )


@readable
def test_unused_digits_of_an_integer_are_not_read(
    read_integer: Callable[[bytes, int], int],
) -> None:
    """CPython shortens a difference and leaves unused digits in memory, which are all ones here."""
    for value in INTEGERS[:-2]:
        shortened = (value ^ (LONG - 1)) ^ (LONG - 1)
        assert read_integer(b"", shortened) == raised_value(value)


@pytest.mark.parametrize("layout", ["signed count", "tag"])
def test_either_layout_is_read(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signed count of digits in Python 3.11, and the tag of later versions."""
    signed_count = layout == "signed count"

    def digit(number: int, i: int) -> np.uint64:
        digits = [abs(number) >> k & (2**30 - 1) for k in range(0, number.bit_length(), 30)]
        count = len(digits)
        if signed_count:
            tag = -count if number < 0 else count
        else:
            tag = count << 3 | (number <= 0) << (number < 0)
        if i < 0:
            return np.uint64(tag >> 32 * (i + 2) & (2**32 - 1))
        return np.uint64([*digits, 12345][i])  # The first digit always exists.

    monkeypatch.setattr(scalar, "_digit", digit)
    monkeypatch.setattr(scalar, "_SIGNED_COUNT", signed_count)
    monkeypatch.setattr(scalar, "mask_of", lambda word: np.uint64(0) - (word >> np.uint64(63)))
    with np.errstate(over="ignore"):
        assert [int(scalar._read(value)) for value in INTEGERS] == [*map(raised_value, INTEGERS)]


def test_where_no_digits_are_read_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = scalar.without_dispatch(second_stage.laplace_1_integer, "pif")
    monkeypatch.setattr(scalar, "READABLE", False)
    fallback = scalar.without_dispatch(second_stage.laplace_1_integer, "pif")
    assert fallback is not kernel
    for value in INTEGERS:
        raw = os.urandom(16)
        assert kernel(raw, value, 3, 2.5) == fallback(raw, value, 3, 2.5)


@pytest.mark.parametrize("grid", [2.0**-20, 1.0, 8.0, 2.0**40])
@pytest.mark.parametrize("kind", [int, np.int64])
def test_the_noise_is_the_same_for_every_size(grid: float, kind: Callable[[int], Any]) -> None:
    """Shifting a value by whole grids shifts its release equally, without a limit."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=max(1.0, grid), grid=grid)
    step = max(1, int(grid))
    values = {value // step * step for value in INTEGERS}
    if kind is np.int64:
        values = {value for value in values if -(2**63) <= value < 2**63}
    for value in values:
        key = os.urandom(32)
        noise = mechanism.release(0, fixed_generator(key))
        assert mechanism.release(kind(value), fixed_generator(key)) == value + noise
