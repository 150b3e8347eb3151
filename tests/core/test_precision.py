"""flint's precision belongs to the user: one number for the whole process, which dpnoise leaves.

It is a setting of the process, not of a thread. Whoever sets it, even for a moment, sets it for
every thread that computes with flint.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from flint import ctx

import dpnoise
from dpnoise.core import reference
from dpnoise.core.entropy import Key
from dpnoise.release import calibration
from dpnoise.release.exact import FORMS, rows_from_key

USERS = 113  # A precision that nothing in dpnoise takes.
THREADS = 4  # For each kind of work.


@pytest.fixture(autouse=True)
def _the_users_precision() -> Iterator[None]:
    before = ctx.prec
    ctx.prec = USERS
    try:
        yield
    finally:
        ctx.prec = before


def release_slowly() -> None:
    """Release on a grid so fine that the judge decides almost every cell."""
    mechanism = dpnoise.LaplaceMechanism(1.0, 1.0, grid=2.0**-50)
    mechanism.release(np.zeros(100), rng=dpnoise.Generator(threads=1))


def select_slowly() -> None:
    """Select among scores that floats do not tell apart."""
    mechanism = dpnoise.ExponentialMechanism(1.0, 1.0)
    for _ in range(20):
        mechanism.select([2**80, 2**80 + 1, 2**80])


def calibrate() -> None:
    calibration.gaussian_scale(1.0, 1e-6, 1.0)


WORK = [release_slowly, select_slowly, calibrate]


@pytest.mark.parametrize("work", WORK)
def test_no_other_thread_can_see_another_precision(work: Callable[[], None]) -> None:
    """Look wherever Python calls or returns: between two of these points no thread takes over."""
    work()  # What must be imported or compiled is so from here on.
    seen: set[int] = set()
    sys.setprofile(lambda *_: seen.add(ctx.prec))
    try:
        work()
    finally:
        sys.setprofile(None)
    assert seen == {USERS}


def test_the_precision_is_the_same_after_slow_paths_in_many_threads() -> None:
    """With turns as short as Python makes them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for work in WORK * THREADS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert ctx.prec == USERS


def test_the_judge_does_not_depend_on_the_users_precision() -> None:
    """At 2 bits and at 2,000 the cells are the same, and so is the calibration."""
    found = []
    for precision in (2, USERS, 2000):
        ctx.prec = precision
        cells = [
            reference.grid_point(
                formula,
                rows_from_key(Key(bytes(32)), i, np.full(form.variates, 2**40 + i, np.uint64)),
                Fraction(1, 2**70),
                3.5,
                2.0**-60,
            )
            for i, form in enumerate(FORMS.values())
            for formula in form.formulas
        ]
        found.append((cells, calibration.gaussian_scale(0.5, 1e-9, 2.0)))
        assert ctx.prec == precision
    assert found[0] == found[1] == found[2]
