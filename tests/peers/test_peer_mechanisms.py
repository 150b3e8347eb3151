"""Other people's selections, histograms, quantiles and randomised responses, audited by name."""

import math
from importlib.metadata import version

import pytest
from scipy import stats
from support.alarms import FALSE_ALARM, check_probability

import dpnoise
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.targets.mechanisms import CATEGORIES
from dpnoise.core.errors import MissingExtraError

CERTAIN = 1 - FALSE_ALARM
DELTA = 1e-6
SLOW = {"smartnoise.count": 1_000, "smartnoise.group_by": 1_000}
# Which place between two data is released is computed in floats, whose last bits tell the data.
BROKEN = ["diffprivlib.median", "diffprivlib.quantile"]
PEERS = [
    name
    for name, mechanism in MECHANISMS.items()
    if mechanism.package != "dpnoise" and name not in BROKEN
]


def made(name: str, epsilon: float = 1.0) -> dpnoise.auditing.targets.mechanisms.Outputs:
    """Make a mechanism, or skip the test if its library is not here."""
    try:
        return MECHANISMS[name].made(epsilon, DELTA)
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_s_mechanism_is_not_broken_in_a_small_audit(name: str) -> None:
    """A correct one is called broken in one of 10^8 of these audits at most."""
    made(name)
    delta = DELTA if MECHANISMS[name].has_delta else 0.0
    report = dpnoise.audit(name, 1.0, delta, budget=SLOW.get(name, 8_000), confidence=CERTAIN)
    assert not report.broken
    assert report.version == version(MECHANISMS[name].package)


@pytest.mark.parametrize("name", BROKEN)
def test_a_quantile_that_is_placed_in_floats_tells_its_neighbours(name: str) -> None:
    """What 0.5 + 3.5 u can be is not what 4 u can be: an event that one data set never gives."""
    made(name)
    report = dpnoise.audit(name, 1.0, budget=20_000)
    assert report.broken
    assert report.epsilon_lower > 2


@pytest.mark.parametrize(
    "name", ["opendp.noisy_max", "diffprivlib.Exponential", "opendp.randomized_response_bool"]
)
def test_a_claim_that_is_too_small_is_refuted(name: str) -> None:
    """Made for an epsilon of 6, and held against 1: whichever event an audit finds certifies 4."""
    outputs = made(name, 6.0)
    report = dpnoise.audit(outputs, 1.0, neighbours=MECHANISMS[name].neighbours, budget=20_000)
    assert report.broken


def test_a_randomised_response_is_honest_as_often_as_its_epsilon_says() -> None:
    outputs = made("opendp.randomized_response", 2.0)
    honest = sum(answer == CATEGORIES[0] for answer in outputs(CATEGORIES[0], 2_000))
    share = math.exp(2) / (math.exp(2) + 2)
    check_probability(float(stats.binomtest(honest, 2_000, share).pvalue))
