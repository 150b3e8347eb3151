"""How attacks are counted: fresh releases for every claim, and a placebo for every attack."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.verdicts import EventAttack, check_placebo, run_attack

from dpnoise.auditing.attacks import ATTACKS, Attack
from dpnoise.auditing.attacks.base import (
    OUTPUTS,
    SCALE,
    SOURCE,
    Event,
    best_event,
    count_event,
    exclusion_event,
    expected_bound,
    impossible_event,
)
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim
from dpnoise.auditing.targets import Releases, Target, make_target, wrap

Flags = NDArray[np.bool_]


def below(limit: float) -> Event:
    return Event(f"y < {limit:g}", lambda y: np.asarray(y < limit))


def constant() -> Target:
    return wrap(lambda value, n: np.full(n, value), "constant")


def test_an_attack_that_finds_no_event_cannot_be_made() -> None:
    class Idle(Attack):
        name = "idle"

    with pytest.raises(TypeError, match=r"abstract .*find"):
        Idle()  # type: ignore[abstract]


def test_an_event_is_counted_at_both_values_in_n_releases() -> None:
    asked: list[tuple[float, int]] = []

    def release(value: float, n: int) -> Releases:
        asked.append((value, n))
        return np.full(n, value)

    outcome = EventAttack(lambda *_: below(0.5))(wrap(release, "noted"), 0.0, 1.0, n=7)
    assert asked == [(0.0, 7), (1.0, 7), (0.0, 7), (0.0, 7)]
    assert (outcome.at0.hits, outcome.at0.trials) == (7, 7)
    assert (outcome.at1.hits, outcome.at1.trials) == (0, 7)
    assert outcome.placebo is not None
    assert [c.hits for c in outcome.placebo] == [7, 7]
    assert (outcome.attack, outcome.target, outcome.event) == ("chosen", "noted", "y < 0.5")


def test_a_memory_of_the_releases_seen_is_worth_nothing() -> None:
    """The event of the attack is all releases seen at value0; fresh releases differ from these."""

    def memorise(target: Target, value0: float, _value1: float, n: int) -> Event:
        seen = target(value0, n)
        return Event("y was seen", lambda y: np.isin(y, seen))

    outcome = run_attack(EventAttack(memorise), make_target("numpy.normal"), n=1000)
    assert outcome.at0.hits == outcome.at1.hits == 0
    assert outcome.epsilon_lower() == 0.0


def test_the_placebo_exposes_an_attack_that_listens_to_the_order_of_the_calls() -> None:
    def alternate(*_: Any) -> Event:
        calls = iter([True, False])
        return Event("it is my turn", lambda y: np.full(len(y), next(calls)))

    outcome = run_attack(EventAttack(alternate), make_target("numpy.laplace"), n=1000)
    assert outcome.advantage[0] > 0.9
    with pytest.raises(AssertionError):
        check_placebo(outcome)


def test_without_a_placebo_there_is_no_interval_of_it() -> None:
    outcome = EventAttack(lambda *_: below(0.5))(constant(), n=5, placebo=False)
    assert outcome.placebo is None
    assert outcome.placebo_advantage is None


def test_confidence_decides_on_the_error_of_every_limit() -> None:
    certain, hasty = (
        EventAttack(lambda *_: below(0.5))(constant(), n=1000, confidence=confidence)
        for confidence in (1 - 1e-8, 0.9)
    )
    assert certain.epsilon_lower() < hasty.epsilon_lower()
    assert certain.advantage[0] < hasty.advantage[0] < 1.0


def test_several_releases_of_a_decision_share_its_epsilon() -> None:
    pairs = Event("both", lambda y: np.asarray(y.reshape(-1, 2).max(axis=1) < 0.5), releases=2)
    outcome = EventAttack(lambda *_: pairs)(constant(), n=2001)
    assert (outcome.at0.trials, outcome.releases) == (1000, 2)
    single = EventAttack(lambda *_: below(0.5))(constant(), n=1000)
    assert outcome.epsilon_lower() == single.epsilon_lower() / 2


def test_what_is_left_after_the_last_whole_group_is_not_used() -> None:
    sizes: list[int] = []

    def holds(y: Releases) -> Flags:
        sizes.append(len(y))
        return np.ones(len(y) // 3, dtype=np.bool_)

    assert count_event(Event("three", holds, 3), np.zeros(11)).trials == 3
    assert sizes == [9]


def test_the_event_with_the_greatest_difference_is_taken() -> None:
    events = [below(-1.0), below(0.5), below(2.0), impossible_event("nothing")]
    assert best_event(events, constant(), 0.0, 1.0, 10) is events[1]
    assert best_event(events[::-1], constant(), 0.0, 1.0, 10) is events[1]


def test_an_exclusion_asks_about_the_first_value_only_where_the_second_is_impossible() -> None:
    asked: list[tuple[float, int]] = []

    def possible(y: Releases, value: float) -> Flags:
        asked.append((value, len(y)))
        return np.asarray(y >= value)

    event = exclusion_event("words", possible, 1.0, 2.0)
    assert event.holds(np.array([0.0, 1.0, 1.5, 2.0])).tolist() == [False, True, True, False]
    assert asked == [(2.0, 4), (1.0, 3)]


def test_progress_is_passed_on_and_bad_sizes_are_named() -> None:
    reports: list[float] = []
    EventAttack(lambda *_: below(0.5))(constant(), n=5, progress=reports.append)
    assert reports == [0.5]
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        EventAttack(lambda *_: below(0.5))(constant(), n=0)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_says_what_it_is(name: str) -> None:
    attack = ATTACKS[name]
    assert attack.name == name
    assert attack.access in {OUTPUTS, SCALE, SOURCE}
    assert attack.breaks
    assert attack.source
    assert attack.default_size >= 1
    assert attack.noise in {None, "laplace", "gaussian"}
    assert attack() == attack()


@pytest.mark.parametrize("estimator", [None, BoundEstimator(Claim("epsilon", 1.0), 1_000, 0.001)])
def test_an_expected_bound_depends_only_on_its_two_counts(
    estimator: BoundEstimator | None,
) -> None:
    """Repeated counts are evaluated once; 0 and n are among them."""
    n = 9
    hits0, hits1 = np.random.default_rng().integers(0, n + 1, (2, 300))
    together = expected_bound(hits0, hits1, n, estimator)
    alone = [
        expected_bound(hits0[i : i + 1], hits1[i : i + 1], n, estimator) for i in range(hits0.size)
    ]
    np.testing.assert_array_equal(together, np.concatenate(alone))
