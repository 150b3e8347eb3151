"""The worked example of docs/adding-a-form.md: a Cauchy form and its error bound."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import test_certified
from flint import arb

from dpnoise.core import reference
from dpnoise.kernels import compile_kernel
from dpnoise.kernels.certified import ROUND, ones_after, reciprocal_bound
from dpnoise.kernels.elementary import (
    LOW_63_BITS,
    Word,
    half_turn,
    power_of_two,
    sinpi,
    with_sign_of,
)

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-form.md"


def cauchy_1_formula(u: Sequence[reference.Digits]) -> arb:
    return u[0].sign * (u[0].rest.ball / 2).tan_pi()


@compile_kernel
def cauchy_1(word: Word, bits: int) -> tuple[float, float]:
    y = np.float64(np.int64(ones_after(word, bits) & LOW_63_BITS)) * power_of_two(-64)
    t = sinpi(half_turn(word, 53)) / sinpi(y)
    inverse = reciprocal_bound(y)
    unseen = (ROUND + power_of_two(-bits)) * inverse * inverse
    return with_sign_of(word, t), ROUND * (1.0 + t) + unseen


@pytest.fixture
def cauchy(monkeypatch: pytest.MonkeyPatch) -> None:
    number = test_certified.Number(cauchy_1, cauchy_1_formula, 1)
    monkeypatch.setitem(test_certified.NUMBERS, "cauchy_1", number)


@pytest.mark.usefixtures("cauchy")
def test_the_added_form_is_within_its_bound() -> None:
    extremes = np.array(test_certified.adversarial_words(), np.uint64)[:, None]
    assert test_certified.worst_ratio("cauchy_1", extremes) <= 1
    assert test_certified.worst_ratio("cauchy_1", test_certified.random_rows(20_000, 1)) <= 1
    for bits in (6, 8, 10, 20):
        test_certified.test_the_bound_holds_for_short_words("cauchy_1", bits)


def test_the_page_shows_this_form() -> None:
    """The page contains the body of the kernel above, word for word."""
    page = re.sub(r"\s+", " ", PAGE.read_text())
    source = Path(__file__).read_text().split("def cauchy_1(word")[1].split("@pytest")[0]
    for line in source.splitlines()[1:]:
        assert re.sub(r"\s+", " ", line.strip()) in page
