"""Thresholds of other libraries, and how often they show a group of one person."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics.discovery_threshold import threshold

PAGE = Path(__file__).parent.parent.parent / "docs" / "accuracy.md"
KEYS = 50_000
# The test errs in either direction with a probability below this.
ERROR_PROBABILITY = 1e-12


def threshold_release(kind: str, scale: float, least: int) -> Any:
    """Return OpenDP's release of a map of integers above a threshold."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    domain = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=int))
    distance = {"laplace": dp.l01inf_distance, "gaussian": dp.l02inf_distance}[kind]
    make = {"laplace": dp.m.make_laplace_threshold, "gaussian": dp.m.make_gaussian_threshold}[kind]
    return make(domain, distance(dp.absolute_distance(T=int)), scale=scale, threshold=least)


def smallest_threshold(scale: float, max_groups: int, delta: float) -> int:
    """Return the smallest threshold that is (epsilon, delta)-private by OpenDP's map."""
    least = 2
    while threshold_release("laplace", scale, least).map((max_groups, max_groups, 1))[1] > delta:
        least += 1
    return least


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_opendp_0_16_shows_groups_of_one_more_often_than_the_delta_it_states(kind: str) -> None:
    """Its map counts noisy numbers above the threshold; its release shows equal ones too."""
    release = threshold_release(kind, 1.0, 3)
    published = release({str(i): 1 for i in range(KEYS)})
    _, stated = release.map((1, 1, 1))
    assert min(published.values()) == 3, "the threshold itself is shown"
    assert (
        stats.binomtest(len(published), KEYS, stated, alternative="greater").pvalue
        < ERROR_PROBABILITY
    )


def test_the_table_of_the_docs_matches_both_libraries() -> None:
    rows = re.findall(
        r"^\| ([\d.e-]+) \| (\d+) \| ([\d.e-]+) \| (\d+) \| ([\d.]+) \| (\d+) \| ([\d.e-]+) \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 4
    for epsilon, groups, delta, ours, continuous, theirs, cost in rows:
        m, target = int(groups), float(delta)
        mechanism = DiscreteLaplaceMechanism(epsilon=float(epsilon), sensitivity=float(m))
        assert threshold(mechanism, m, target) == int(ours)
        delta_of_group = -math.expm1(math.log1p(-target) / m)
        assert f"{1 - mechanism.scale * math.log(2 * delta_of_group):.1f}" == continuous
        assert smallest_threshold(mechanism.scale, m, target) == int(theirs)
        a = math.exp(-1 / mechanism.scale)
        probability = -math.expm1(m * math.log1p(-(a ** (int(theirs) - 1)) / (1 + a)))
        assert f"{probability:.2e}" == cost
