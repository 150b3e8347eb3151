"""The limits of audits of training, compared with those of jax-privacy."""

import math

import pytest

from dpnoise.auditing.training import _check_claim
from dpnoise.statistics.composition import epsilon_of_gaussian

peer = pytest.importorskip("jax_privacy.auditing")

CASES = [(1000, 100, 75), (1000, 1000, 800), (1000, 124, 124), (200, 200, 101), (60, 10, 2)]


@pytest.mark.parametrize(("canaries", "guesses", "correct"), CASES)
def test_the_bound_on_epsilon_is_theirs_without_delta_and_larger_with_it(
    canaries: int, guesses: int, correct: int
) -> None:
    for delta in (0.0, 1e-5, 1e-3):
        ours = _check_claim(1.0, delta, None, None).bound(canaries, guesses, correct, 0.05)
        theirs = peer._epsilon_one_run(0.0, canaries, guesses, correct, 0.05, delta)
        assert ours == pytest.approx(theirs, abs=2e-6) if delta == 0 else ours >= theirs - 2e-6


@pytest.mark.parametrize(("canaries", "guesses", "correct"), CASES)
def test_the_bound_on_mu_is_theirs(canaries: int, guesses: int, correct: int) -> None:
    """They give the epsilon at a delta."""
    mu = _check_claim(None, 1e-5, 1.0, None).bound(canaries, guesses, correct, 0.05)
    theirs = peer._epsilon_one_run_fdp(0.0, canaries, guesses, correct, 0.05, 1e-5)
    if mu < 0.01:  # Too small for their search.
        assert theirs < 0.05
    else:
        assert math.isclose(epsilon_of_gaussian(mu**2 / 2, 1e-5), theirs, rel_tol=1e-3)
