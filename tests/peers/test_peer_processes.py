"""Libraries that draw the same noise in forked children."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.verdicts import peer

from dpnoise.auditing.processes import check_forks
from dpnoise.auditing.targets import Target, wrap


def diffprivlib_staircase() -> Target:
    mechanisms = pytest.importorskip("diffprivlib.mechanisms")
    mechanism = mechanisms.Staircase(epsilon=1.0, sensitivity=1.0)
    return wrap(lambda value, n: np.array([mechanism.randomise(value) for _ in range(n)]))


def randomgen_aes() -> Target:
    rng = np.random.Generator(pytest.importorskip("randomgen").AESCounter())
    return wrap(lambda value, n: value + rng.laplace(size=n))


@pytest.mark.parametrize(
    ("make", "repeats"),
    [
        pytest.param(randomgen_aes, True, id="randomgen"),
        pytest.param(diffprivlib_staircase, True, id="diffprivlib.Staircase"),
        pytest.param(partial(peer, "diffprivlib.Laplace"), False, id="diffprivlib"),
        pytest.param(partial(peer, "opendp.laplace"), False, id="opendp.laplace"),
    ],
)
def test_forked_children_repeat_the_noise_of_libraries_that_keep_a_state(
    make: Callable[[], Any], *, repeats: bool
) -> None:
    assert check_forks(make()).found == repeats


@pytest.mark.parametrize("name", ["pydp.laplace", "pydp.gaussian"])
def test_forked_children_repeat_the_noise_of_pydp(name: str) -> None:
    """PyDP stores 64 KiB of random bytes per process, and draws new ones when they are used up.

    A new process has nearly all of them left. An older one may have fewer than the first eight
    releases of a child need, and then nothing is found.
    """
    peer(name)
    code = (
        "from dpnoise.auditing.processes import check_forks\n"
        "from dpnoise.auditing.targets import make_target\n"
        f"print(check_forks(make_target({name!r})).found)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert process.stdout == "True\n"
