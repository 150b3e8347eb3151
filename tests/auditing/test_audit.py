"""Audits: broken targets, private targets, and a confidence that holds at the border."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import border
from support.alarms import FALSE_ALARM, LONG, check_rate
from support.choices import sample_parameters
from support.verdicts import EventAttack

import dpnoise
from dpnoise.auditing import additive_noise, calls, processes, targets
from dpnoise.auditing.attacks import certified_bounds
from dpnoise.auditing.attacks.base import Event
from dpnoise.auditing.neighbours import pairs_of_values
from dpnoise.auditing.processes import Observation
from dpnoise.auditing.report import FORMAT, BrokenError, Finding, Report, read_list, write_list
from dpnoise.auditing.targets import Releases, Target, TargetError
from dpnoise.auditing.targets.adapters import ReleaseFunction
from dpnoise.core import errors
from dpnoise.core.errors import ArgumentError, ArgumentTypeError

Floats = NDArray[np.float64]

QUICK = ["precision", "bits"]
CERTAIN = 1 - FALSE_ALARM
rng = np.random.default_rng()


@pytest.fixture
def with_side_channel_checks() -> None:
    """Let an audit run its side-channel checks, as it does outside the tests."""


@pytest.fixture(autouse=True)
def _no_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip these checks, except in tests that use `with_side_channel_checks`."""
    if "with_side_channel_checks" not in request.fixturenames:
        monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


def textbook(value: float, n: int) -> Floats:
    return value + rng.laplace(size=n)


def run_audit(target: Any = textbook, epsilon: float = 1.0, **options: Any) -> Report:
    quick: dict[str, Any] = {"attacks": QUICK, "budget": 24_000, "pairs": [(0, 1)]}
    return dpnoise.audit(target, epsilon, **(quick | options))


# Broken targets and private targets --------------------------------------------------------------


IN_FLOATS = [
    ("numpy.laplace", 0.0),
    ("numpy.normal", 1e-6),
    ("random.gauss", 1e-6),
    ("dpnoise.laplace", 0.0),
    ("dpnoise.normal", 1e-6),
]


@pytest.mark.parametrize(
    ("name", "delta", "epsilon"),
    sample_parameters([(*case, epsilon) for case in IN_FLOATS for epsilon in (1.0, 0.1)], 2),
)
def test_noise_added_in_floats_is_broken(name: str, delta: float, epsilon: float) -> None:
    report = dpnoise.audit(name, epsilon, delta, budget=48_000 if LONG else 24_000)
    assert report.broken
    assert report.epsilon_lower > epsilon


def test_laplace_noise_of_numpy_at_a_tenth_has_an_epsilon_above_3() -> None:
    """DP-Sniper (2021) certified 0.25 after half an hour."""
    budget = 480_000 if LONG else 48_000
    assert dpnoise.audit("numpy.laplace", 0.1, budget=budget).epsilon_lower > 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("epsilon", [1.0, 0.1])
@pytest.mark.parametrize(
    ("name", "delta"), [("dpnoise.release", 0.0), ("dpnoise.release.gaussian", 1e-6)]
)
def test_an_exact_release_is_not_broken(name: str, delta: float, epsilon: float) -> None:
    budget = 48_000 if LONG else 24_000
    report = dpnoise.audit(name, epsilon, delta, budget=budget, confidence=CERTAIN)
    assert not report.broken
    assert report.epsilon_lower <= epsilon


def both_odd(_target: Target, value0: float, _value1: float, _n: int) -> Event:
    """Return the event that two bits both equal value0."""
    bit = float(border.is_odd(value0))
    return Event("both", lambda y: (y.reshape(-1, 2) == bit).all(axis=1), releases=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "epsilon", "delta", "attacks"),
    [
        (border.flip, border.EPSILON, 0.0, ["bits"]),
        (border.flip, border.EPSILON, 0.0, [EventAttack(both_odd)]),
        (border.flip_or_reveal, border.EPSILON, border.DELTA, ["bits"]),
        (border.geometric, border.EPSILON, 0.0, ["bits"]),
        (border.uniform, 1e-9, border.DELTA, ["bits"]),
    ],
    ids=["flipped", "two flipped", "revealed", "geometric", "uniform"],
)
def test_a_target_at_its_border_is_called_broken_no_more_often_than_the_confidence_says(
    target: ReleaseFunction, epsilon: float, delta: float, attacks: list[Any]
) -> None:
    """At confidence 0.6, at most 4 audits of 10 are wrong: counted in 40, exact binomial."""

    def is_wrong() -> bool:
        return run_audit(
            target,
            epsilon,
            delta=delta,
            scale=1.0,
            attacks=attacks,
            pairs="whole",
            budget=2400,
            confidence=0.6,
        ).broken

    check_rate(is_wrong, 40, 0.4)


def test_a_target_beyond_its_border_is_broken() -> None:
    """The same bits are not private at a claim a third lower; n is 20,000."""
    report = run_audit(border.flip, border.EPSILON * 2 / 3, budget=480_000)
    assert report.broken


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32"])
def test_a_constant_of_any_format_is_not_broken(dtype: str) -> None:
    report = run_audit(lambda _, n: np.full(n, 3, dtype), epsilon=1e-9)
    assert report.epsilon_lower == 0.0
    assert not report.broken


def test_the_value_itself_is_broken_as_far_as_the_sample_supports() -> None:
    """All of n against none of n, with the closed forms of both limits."""
    report = run_audit(lambda value, n: np.full(n, value), attacks=["bits"])
    n, error = 24_000 // 4, (1 - 0.999) / 2 / 2 / 2
    root = error ** (1 / n)
    assert report.epsilon_lower == pytest.approx(math.log(root / (1 - root)))
    assert report.epsilon_lower == report.ceiling
    assert all(finding.hits0 > 0 == finding.hits1 for finding in report.findings)


def test_an_event_over_two_releases_is_held_against_twice_the_epsilon_and_the_delta() -> None:
    """All of n pairs against none of n, with the closed forms of both limits."""

    def both(_target: Target, value0: float, _value1: float, _n: int) -> Event:
        return Event("both", lambda y: (y.reshape(-1, 2) == value0).all(axis=1), releases=2)

    report = run_audit(lambda value, n: np.full(n, value), attacks=[EventAttack(both)], delta=0.1)
    n, error = 24_000 // 4 // 2, (1 - 0.999) / 2 / 2 / 2
    root = error ** (1 / n)
    assert report.epsilon_lower == pytest.approx(math.log((root - 2 * 0.1) / (1 - root)) / 2)


# The bound ---------------------------------------------------------------------------------------


def test_every_bound_is_that_of_its_counts_at_its_share_of_the_error() -> None:
    attacks = [*QUICK, EventAttack(both_odd)]
    report = run_audit(border.flip_or_reveal, delta=border.DELTA, attacks=attacks, confidence=0.9)
    assert {finding.attack for finding in report.findings} == {"precision", "bits", "chosen"}
    # The first count is in 1,500 releases of each value, the last, of two events, in 6,000.
    shares = {24_000 // (16 * len(report.pairs)): 3 * len(report.pairs) * 2, 24_000 // 4: 2}
    for finding in report.findings:
        assert finding.epsilon_lower == certified_bounds.certified_epsilon(
            finding.hits0,
            finding.trials0,
            finding.hits1,
            finding.trials1,
            error=(1 - 0.9) / 2 / shares[finding.trials0 * finding.releases],
            delta=border.DELTA,
            releases=finding.releases,
            dispersion=finding.dispersion,
        )
        assert finding.trials0 == finding.trials1
        assert finding.broken == (finding.epsilon_lower > 1.0)
        assert finding.confidence == 0.9
    epsilons = [finding.epsilon_lower for finding in report.findings]
    assert epsilons == sorted(epsilons, reverse=True)
    assert report.epsilon_lower == epsilons[0]


def test_the_method_is_named_with_its_numbers() -> None:
    report = run_audit(budget=24_500, pairs=None)
    limits = ("Limits are exact (Clopper", "Limits allow for", "No widening was")
    assert any(words in report.method for words in limits)
    assert "139 releases" in report.method
    assert "6,125 fresh releases" in report.method
    assert f"{2 * len(QUICK) * len(report.pairs)} events" in report.method
    assert report.releases == 4 * 139 * len(report.pairs) + 2 * 3062 + 2 * 6125 <= 24_500


def test_all_events_of_a_pair_are_fixed_before_any_release_that_they_are_counted_in() -> None:
    happened: list[Any] = []

    def release(value: float, n: int) -> Floats:
        happened.append((value, n))
        return textbook(value, n)

    def note(target: Target, value0: float, _value1: float, n: int) -> Event:
        assert (target(value0, n) == target(value0, n)).all(), "what was seen is drawn once"
        happened.append("fixed")
        return Event("never", lambda y: y < -1e9)

    report = run_audit(release, attacks=[EventAttack(note), EventAttack(note)], pairs=None)
    while happened[0] == (0.0, 1):
        del happened[0]
    for low, high in report.pairs:
        counted = [(value, n) for value in (low, high) for n in [*[16] * 7, 24]]
        expected = [(low, 136), (high, 136), *["fixed"] * 4, *counted]
        assert happened[: len(expected)] == expected
        del happened[: len(expected)]
    best = {report.findings[0].value0, report.findings[0].value1}
    assert "fixed" in happened, "the best chose again"
    after = happened[len(happened) - happened[::-1].index("fixed") :]
    counted = [step for step in after if step[1] < 1_000]
    assert {value for value, _ in counted} == best
    assert [sum(n for x, n in counted if x == value) for value in best] == [6_000] * 2


def test_an_event_made_of_what_was_seen_certifies_nothing() -> None:
    """Noise around 0 and 1 does not repeat; around 2^30 it would in one of 500 runs."""

    def remember(target: Target, value0: float, _value1: float, n: int) -> Event:
        seen = target(value0, n)
        return Event("y was seen", lambda y: np.isin(y, seen))

    report = run_audit(attacks=[EventAttack(remember)])
    assert report.findings[0].hits0 == 0
    assert not report.broken


def test_an_event_cannot_change_what_the_next_one_is_counted_in() -> None:
    def spoil(*_: Any) -> Event:
        def holds(y: Releases) -> NDArray[np.bool_]:
            y[:] = 7.0
            return np.zeros(len(y), dtype=np.bool_)

        return Event("never", holds)

    counted: list[Releases] = []

    def keep(y: Releases) -> NDArray[np.bool_]:
        counted.append(y)
        return np.asarray(y == 7.0)

    attacks = [EventAttack(spoil), EventAttack(lambda *_: Event("y is 7", keep))]
    run_audit(attacks=attacks, pairs=None)
    assert len(counted) >= 4 * 11
    assert not (np.concatenate(counted) == 7.0).any()


@pytest.mark.parametrize(
    ("holds", "trials"),
    [
        (lambda y: np.repeat(y < 0, 2), "3000 trials of 1500 releases"),
        (lambda y: y[:0] < 0, "0 trials of 1500 releases"),
    ],
    ids=["each release twice", "none"],
)
def test_trials_that_share_a_release_are_refused(holds: Any, trials: str) -> None:
    event = Event("odd", holds)
    with pytest.raises(ArgumentError, match=f"The event 'odd' made {trials}"):
        run_audit(attacks=[EventAttack(lambda *_: event)])


def test_overlapping_groups_are_refused() -> None:
    event = Event("rises", lambda y: y[1:] > y[:-1], releases=2)
    with pytest.raises(ArgumentError, match="47 trials of 48 releases, 2 for each"):
        run_audit(attacks=[EventAttack(lambda *_: event)])


def test_a_target_may_write_its_releases_to_one_array() -> None:
    buffer = np.empty(6000)

    def reuse(value: float, n: int) -> Floats:
        buffer[:n] = textbook(value, n)
        return buffer[:n]

    assert run_audit(reuse).broken


# Releases that are not independent ---------------------------------------------------------------


def test_one_noise_for_all_releases_of_a_call_is_refused_and_not_called_broken() -> None:
    with pytest.raises(TargetError, match=r"once\(0\.0, 1500\) gave one number 1500 times"):
        run_audit(Target("once", "laplace", 1.0, lambda value, n: np.full(n, textbook(value, 1))))


def test_a_seed_at_each_call_is_refused_and_not_called_broken() -> None:
    def reseed(value: float, n: int) -> Floats:
        return value + np.random.default_rng(7).integers(9, size=n).astype(np.float64)

    with pytest.raises(TargetError, match=r"reseed\(0\.0, 1500\) gave the same releases twice"):
        run_audit(reseed)


def test_few_releases_of_few_numbers_may_repeat_by_chance() -> None:
    """One 1 among 41 bits has 41 orders: a repeated order does not prove a fixed seed."""
    bits = np.zeros(41)
    bits[7] = 1.0
    target = Target("bits", "laplace", 1.0, lambda _, n: bits[:n])
    assert (calls.draw_fresh(target, 0.0, bits, [41])[0] == bits).all()


# The pairs of values -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "sensitivity", [1.0, 0.1, 1 / 3, 1.9, 0.3, 100.1, 1e-7, 1e-300, 1e300, 1e306, 5e-324]
)
def test_no_pair_is_further_apart_than_the_sensitivity_even_if_the_target_rounds(
    sensitivity: float, dtype: Any
) -> None:
    tried = pairs_of_values(sensitivity, np.dtype(dtype))
    assert (0.0, sensitivity) == pairs_of_values(sensitivity, np.dtype(np.float64))[0]
    for value0, value1 in tried:
        assert 0 < Fraction(value1) - Fraction(value0) <= Fraction(sensitivity)
        if 1e-4 < sensitivity < 50:
            assert (dtype(value0), dtype(value1)) == (value0, value1)
    for value0, value1 in pairs_of_values(sensitivity, np.dtype(dtype), only_multiples=True):
        if 1e-4 < sensitivity < 50:
            assert value1 - value0 > 0.4 * sensitivity


def test_the_pairs_are_around_zero_powers_of_two_counts_negative_and_large_and_shown() -> None:
    report = run_audit(sensitivity=1, pairs=None)
    for pair in [(0, 1), (1, 2), (42, 43), (-1, 0), (1000, 1001)]:
        assert pair in report.pairs
    assert all(type(value) is float for pair in report.pairs for value in pair)


# The report --------------------------------------------------------------------------------------


def test_a_broken_report_raises_with_its_target_and_event() -> None:
    report = run_audit("numpy.laplace")
    with pytest.raises(BrokenError, match=r"numpy\.laplace: Broken: .*y") as e:
        report.raise_if_broken()
    assert report.findings[0].event in str(e.value)
    assert isinstance(e.value, AssertionError)
    run_audit(lambda _, n: np.zeros(n)).raise_if_broken()


def test_a_report_comes_back_from_json_with_the_version_of_its_format(tmp_path: Path) -> None:
    report = run_audit()
    report.to_json(tmp_path / "report.json")
    assert Report.from_json(tmp_path / "report.json") == report
    assert report.to_dict()["format"] == FORMAT
    write_list([report, report], tmp_path / "reports.json")
    assert read_list(tmp_path / "reports.json") == [report, report]


def test_a_report_says_what_runs_it_again() -> None:
    assert run_audit("numpy.laplace", 0.3, budget=2400, confidence=0.99, pairs=None).command == (
        "dpnoise audit numpy.laplace --attack precision --attack bits --epsilon 0.3 "
        "--sensitivity 1 --budget 2400 --confidence 0.99"
    )
    assert run_audit(attacks=["bits"], delta=0.01, pairs=None).command == (
        "dpnoise.audit(textbook, epsilon=1.0, delta=0.01, sensitivity=1.0, attacks=['bits'], "
        "budget=24000, confidence=0.999)"
    )


def test_progress_goes_from_0_to_1() -> None:
    reports: list[tuple[float, str]] = []
    run_audit(progress=lambda part, doing: reports.append((part, doing)))
    parts = [part for part, _ in reports]
    assert (parts[0], parts[-1]) == (0.0, 1.0)
    assert parts == sorted(parts)
    assert reports[0][1] == "0 against 1"


# Side-channel checks -----------------------------------------------------------------------------


def test_looks_at_a_generator_are_separate_from_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    alarming = Observation("forked", found=True, words="All children drew the same.")
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [alarming])
    report = run_audit(lambda _, n: np.zeros(n))
    assert report.observations == [alarming]
    assert (report.epsilon_lower, report.broken) == (0.0, False)


@pytest.mark.usefixtures("with_side_channel_checks")
def test_looks_see_a_fork_and_a_state_and_start_a_known_library_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed = Observation("restarted", found=True, words="The same.")
    monkeypatch.setattr(processes, "check_restarts", lambda *_, **__: fixed)
    monkeypatch.setattr(processes, "_FORK_SECONDS", 600.0)
    report = run_audit("numpy.RandomState.laplace", budget=2400, time_limit=600.0)
    problems = {check.name: check.found for check in report.observations}
    assert problems["forked"]
    assert problems["state"]
    assert problems["restarted"]


@pytest.mark.usefixtures("with_side_channel_checks")
def test_looks_that_fail_do_not_cost_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_FORK_SECONDS", 600.0)

    def fail_late(value: float, n: int) -> Floats:
        if n == 64:
            raise ZeroDivisionError("no child")
        return textbook(value, n)

    report = run_audit(fail_late, time_limit=600.0)
    assert report.broken
    failed = [seen.words for seen in report.observations if seen.name == "not seen"]
    assert any("ZeroDivisionError: no child" in words for words in failed)


@pytest.mark.usefixtures("with_side_channel_checks")
def test_looks_at_the_clock_are_left_out_where_they_would_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_seconds_per_release", lambda _: 0.5)
    words = [seen.words for seen in run_audit().observations]
    assert words.count("A release takes 500 ms, too long to time 2,000 of them.") == 2


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be greater than 0, got 0.0"),
        ({"delta": 1.0}, "delta must be between 0 and 1"),
        ({"delta": -0.1}, "delta must be greater than 0, got -0.1"),
        ({"sensitivity": math.nan}, "sensitivity must be finite"),
        ({"sensitivity": -1.0}, "sensitivity must be greater than 0, got -1.0"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"confidence": 0.0}, "confidence must be greater than 0, got 0.0"),
        ({"budget": 999}, "budget must be at least 1000, got 999"),
        ({"time_limit": 0.0}, "time_limit must be greater than 0, got 0.0"),
        ({"scale": math.inf}, "scale must be finite"),
        ({"attacks": ["nothing"]}, "There is no attack 'nothing'. Known: mironov"),
        ({"attacks": "nothing"}, "There is no attack 'nothing'"),
        ({"attacks": []}, "attacks must have at least one attack"),
        ({"attacks": ["twister"]}, "attacks must be an attack that an audit can run"),
    ],
)
def test_a_wrong_argument_is_named_before_the_target_is_called(
    options: dict[str, Any], message: str
) -> None:
    def never(value: float, n: int) -> Floats:
        pytest.fail(f"called with {value}, {n}")

    with pytest.raises(ArgumentError) as e:
        run_audit(never, **options)
    assert message in str(e.value)


@pytest.mark.parametrize("options", [{"attacks": [3]}, {"budget": 1e6}, {"epsilon": "1"}])
def test_an_argument_of_the_wrong_kind_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{next(iter(options))} must "):
        run_audit(**options)


@pytest.mark.parametrize("target", ["numpy.normal", targets.make_target("numpy.normal")], ids=str)
def test_gaussian_noise_without_a_delta_is_explained(target: Any) -> None:
    with pytest.raises(ArgumentError, match=r"numpy\.normal .* delta = 0.*: delta=1e-06\.$"):
        run_audit(target)


def test_an_attack_without_its_library_is_skipped_with_the_line_that_installs_it() -> None:
    def missing(*_: Any) -> Event:
        errors.import_extra("no_such_library", "peers")
        return Event("never", lambda y: y < 0)

    report = run_audit(attacks=["bits", EventAttack(missing)])
    assert [finding.attack for finding in report.findings] == ["bits"]
    assert (
        'pip install no-such-library, or in a checkout of dpnoise pip install ".[peers]"'
        in report.skipped["chosen"]
    )


def test_findings_are_shown_whenever_a_pair_of_values_is_done() -> None:
    shown: list[list[Finding]] = []
    report = dpnoise.audit(
        "numpy.laplace", 1.0, attacks=["precision"], budget=24_000, watch=shown.append
    )
    assert len(shown) == len(report.pairs) + 1, "and when the best events are counted last"
    assert shown[-1] == report.findings
