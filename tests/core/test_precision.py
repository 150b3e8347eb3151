"""dpnoise does not change flint's precision, which belongs to the user.

It is a setting of the process, not of a thread. Setting it, even for a moment, affects every thread
that computes with flint.
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

USER_PRECISION = 113  # A precision that dpnoise never uses.
THREADS = 4  # Threads for each kind of work.


@pytest.fixture(autouse=True)
def _the_users_precision() -> Iterator[None]:
    before = ctx.prec
    ctx.prec = USER_PRECISION
    try:
        yield
    finally:
        ctx.prec = before


def release_slowly() -> None:
    """Release on a grid so fine that the reference decides almost every cell."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=2.0**-50)
    mechanism.release(np.zeros(100), rng=dpnoise.Generator(threads=1))


def select_slowly() -> None:
    """Select among scores that floats cannot distinguish."""
    mechanism = dpnoise.ExponentialMechanism(epsilon=1.0, sensitivity=1.0)
    for _ in range(20):
        mechanism.select([2**80, 2**80 + 1, 2**80])


def calibrate() -> None:
    calibration.gaussian_scale(1.0, 1e-6, 1.0)


WORK = [release_slowly, select_slowly, calibrate]


@pytest.mark.parametrize("work", WORK)
def test_no_other_thread_can_see_another_precision(work: Callable[[], None]) -> None:
    """Read it at every call and return of Python: threads switch nowhere else."""
    work()  # Imports and compiles everything.
    precisions: set[int] = set()
    sys.setprofile(lambda *_: precisions.add(ctx.prec))
    try:
        work()
    finally:
        sys.setprofile(None)
    assert precisions == {USER_PRECISION}


def test_the_precision_is_the_same_after_slow_paths_in_many_threads() -> None:
    """With the shortest switch interval of Python."""
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
    assert ctx.prec == USER_PRECISION


def test_the_reference_does_not_depend_on_the_users_precision() -> None:
    """At 2 bits and at 2,000 the cells are the same, and so is the calibration."""
    results = []
    for precision in (2, USER_PRECISION, 2000):
        ctx.prec = precision
        cells = [
            reference.released_whole(
                formula,
                rows_from_key(Key(bytes(32)), i, np.full(form.variates, 2**40 + i, np.uint64)),
                Fraction(1, 2**70),
                3.5,
                2.0**-60,
            )
            for i, form in enumerate(FORMS.values())
            for formula in form.formulas
        ]
        results.append((cells, calibration.gaussian_scale(0.5, 1e-9, 2.0)))
        assert ctx.prec == precision
    assert results[0] == results[1] == results[2]
