"""Sums of other libraries, on data sets for which float sums are wrong."""

import math
from typing import Any

import numpy as np
import pytest

from dpnoise.auditing.attacks.sensitivity import SensitivityAttack, find_neighbours, sum_target


def test_diffprivlib_s_sum_distinguishes_two_neighbours() -> None:
    """It adds with np.sum, and scales its noise to upper - lower.

    The sums differ by 32; noise of scale 1/2 exceeds half of that once in 10^14.
    """
    tools = pytest.importorskip("diffprivlib.tools")
    neighbours = find_neighbours(np.sum, rows=2**18)

    def release(data: Any, n: int) -> Any:
        bounds = (neighbours.lower, neighbours.upper)
        return np.array([tools.sum(data, epsilon=2.0, bounds=bounds) for _ in range(n)])

    outcome = SensitivityAttack()(sum_target(neighbours, release), n=100, placebo=False)
    assert (outcome.at0.rate, outcome.at1.rate) == (1.0, 0.0)
    assert outcome.epsilon_lower() > 2.0


def test_opendp_s_sensitivity_covers_the_rounding_of_its_sum() -> None:
    """A changed row is two steps of its metric; the gap of np.sum is within its map."""
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    neighbours = find_neighbours(np.sum, rows=2**18)
    rows = neighbours.data[0].size
    bounds = (neighbours.lower, neighbours.upper)
    domain = opendp.vector_domain(opendp.atom_domain(bounds=bounds, nan=False), size=rows)
    total = opendp.t.make_sum(domain, opendp.symmetric_distance())
    declared = total.map(2)
    assert declared > neighbours.gap(np.sum) > neighbours.sensitivity
    assert neighbours.gap(lambda data: total(data.tolist())) <= declared
    assert math.isfinite(declared)
