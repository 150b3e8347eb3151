"""Audits of other libraries' selections, histograms, quantiles and randomised responses."""

import math
from importlib.metadata import version

import numpy as np
import pytest
from scipy import stats
from support.alarms import FALSE_ALARM, check_counts, check_probability

import dpnoise
from benchmarks import errors
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.targets.mechanisms import CATEGORIES
from dpnoise.core.errors import MissingExtraError

CERTAIN = 1 - FALSE_ALARM
DELTA = 1e-6
SLOW = {"smartnoise.count": 1_000, "smartnoise.group_by": 1_000}
# The released point between two rows is computed in floats, whose last bits reveal the rows.
BROKEN = ["diffprivlib.median", "diffprivlib.quantile"]
PEERS = [
    name
    for name, mechanism in MECHANISMS.items()
    if mechanism.package != "dpnoise" and name not in BROKEN
]


def make_mechanism(name: str, epsilon: float = 1.0) -> dpnoise.auditing.targets.mechanisms.Outputs:
    """Return a mechanism, or skip the test if its library is not installed."""
    try:
        return MECHANISMS[name].build(epsilon, DELTA)
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_s_mechanism_is_not_broken_in_a_small_audit(name: str) -> None:
    """A correct mechanism is called broken in at most one of 10^8 of these audits."""
    make_mechanism(name)
    delta = DELTA if MECHANISMS[name].has_delta else 0.0
    report = dpnoise.audit(name, 1.0, delta, budget=SLOW.get(name, 8_000), confidence=CERTAIN)
    assert not report.broken
    assert report.version == version(MECHANISMS[name].package)


@pytest.mark.parametrize("name", BROKEN)
def test_a_quantile_that_is_placed_in_floats_reveals_its_neighbours(name: str) -> None:
    """0.5 + 3.5 u and 4 u have different possible values, so one data set never gives some."""
    make_mechanism(name)
    report = dpnoise.audit(name, 1.0, budget=20_000)
    assert report.broken
    assert report.epsilon_lower > 2


@pytest.mark.parametrize(
    "name", ["opendp.noisy_max", "diffprivlib.Exponential", "opendp.randomized_response_bool"]
)
def test_a_claim_that_is_too_small_is_refuted(name: str) -> None:
    """A mechanism for epsilon 6 is audited at 1, and any event certifies 4."""
    outputs = make_mechanism(name, 6.0)
    report = dpnoise.audit(outputs, 1.0, neighbours=MECHANISMS[name].neighbours, budget=20_000)
    assert report.broken


def test_a_randomised_response_is_honest_as_often_as_its_epsilon_says() -> None:
    outputs = make_mechanism("opendp.randomized_response", 2.0)
    honest = sum(answer == CATEGORIES[0] for answer in outputs(CATEGORIES[0], 2_000))
    share = math.exp(2) / (math.exp(2) + 2)
    check_probability(float(stats.binomtest(honest, 2_000, share).pvalue))


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_opendp_selects_quantiles_by_the_law_of_the_benchmark(q: float) -> None:
    """Permute-and-flip, with a rank at q of the way through the rows that share a value."""
    pytest.importorskip("opendp")
    from benchmarks.contenders import opendp_plain

    column = errors.column_of("x", np.array([1.0, 2, 2, 3, 5, 5, 5, 8, 9, 12]), 16.0, 1.0)
    selected = opendp_plain.quantile(column, q, 20_000).astype(int)
    law = errors.selection_law(*errors.opendp_scores(column, q))
    check_counts(np.bincount(selected, minlength=law.size), law)
