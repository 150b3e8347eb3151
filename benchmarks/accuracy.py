"""Compare the true error of the certified kernels with their bound, on millions of points."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

import numpy as np
from flint import arb, ctx

from dpnoise.core import reference
from dpnoise.kernels import certified
from dpnoise.release.exact import FORMS

_BATCH = 20_000
_KERNELS = {"gaussian_pairs": "gaussian_pair"}  # The kernel of one pair has another name.


def worst_of_batch(form: str, count: int) -> float:
    """Return the largest |z - Z| / bound over `count` random points."""
    n, kernel = FORMS[form].variates, getattr(certified, _KERNELS.get(form, form))
    rows = np.frombuffer(os.urandom(8 * n * count), dtype=np.uint64).reshape(-1, n)
    worst = 0.0
    with ctx.workprec(128):
        for row in rows:
            *numbers, error = kernel(*row, 64)
            digits = [reference.Digits(int(word), 64) for word in row]
            for z, formula in zip(numbers, FORMS[form].formulas, strict=True):
                worst = max(worst, float(abs(arb(z) - formula(digits)).upper() / arb(error)))
    return worst


def worst_ratios(points: int, advance: Callable[[], object]) -> dict[str, float]:
    """Return the worst ratio of each form over `points` points in total, on all cores."""
    forms = list(FORMS)
    batches = max(1, points // len(forms) // _BATCH)
    worst = dict.fromkeys(forms, 0.0)
    with ProcessPoolExecutor() as pool:
        jobs = {
            pool.submit(partial(worst_of_batch, form, _BATCH)): form
            for _ in range(batches)
            for form in forms
        }
        for job in as_completed(jobs):
            worst[jobs[job]] = max(worst[jobs[job]], job.result())
            advance()
    return worst


def steps(points: int) -> int:
    """Return the number of calls of `advance`."""
    return max(1, points // len(FORMS) // _BATCH) * len(FORMS)
