"""Which libraries draw the same noise in forked children."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpnoise.attacks.processes import forked
from dpnoise.targets import Target, named, wrap


def diffprivlib_staircase() -> Target:
    mechanisms = pytest.importorskip("diffprivlib.mechanisms")
    mechanism = mechanisms.Staircase(epsilon=1.0, sensitivity=1.0)
    return wrap(lambda value, n: np.array([mechanism.randomise(value) for _ in range(n)]))


def randomgen_aes() -> Target:
    rng = np.random.Generator(pytest.importorskip("randomgen").AESCounter())
    return wrap(lambda value, n: value + rng.laplace(size=n))


def library(name: str, package: str) -> Callable[[], Target]:
    def make() -> Target:
        pytest.importorskip(package)
        return named(name)

    return make


@pytest.mark.parametrize(
    ("make", "repeats"),
    [
        pytest.param(library("pydp.laplace", "pydp"), True, id="pydp.laplace"),
        pytest.param(library("pydp.gaussian", "pydp"), True, id="pydp.gaussian"),
        pytest.param(randomgen_aes, True, id="randomgen"),
        pytest.param(diffprivlib_staircase, True, id="diffprivlib.Staircase"),
        pytest.param(library("diffprivlib.Laplace", "diffprivlib"), False, id="diffprivlib"),
        pytest.param(library("opendp.laplace", "opendp"), False, id="opendp.laplace"),
    ],
)
def test_forked_children_repeat_the_noise_of_libraries_that_keep_a_state(
    make: Callable[[], Any], *, repeats: bool
) -> None:
    assert forked(make()).found == repeats
