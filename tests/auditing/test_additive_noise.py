"""Audits of added noise: what they find with few releases, and which targets they refuse."""

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import FALSE_ALARM, LONG, check_rate
from support.choices import sample_cases, sample_parameters

import dpnoise
from dpnoise import cli
from dpnoise.auditing import additive_noise, calls
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim, gaussian_claim
from dpnoise.auditing.counting import check_calls, check_independent, p_value
from dpnoise.auditing.neighbours import search_pairs
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import DependentError, Target, TargetError
from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.release.calibration import gaussian_scale

Floats = NDArray[np.float64]
Release = Callable[[float, int], Floats]

CERTAIN = 1 - FALSE_ALARM
GRID = 2.0**16  # Noise on a grid is added without rounding, so that floats leak nothing.
rng = np.random.default_rng()


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the side-channel checks."""
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


def laplace(scale: float) -> Release:
    return lambda value, n: value + np.rint(rng.laplace(scale=scale * GRID, size=n)) / GRID


def gaussian(scale: float) -> Release:
    return lambda value, n: value + np.rint(rng.normal(scale=scale * GRID, size=n)) / GRID


# Small errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "factor"), sample_parameters([(0.1, 1.3), (1.0, 1.08)], 1))
def test_a_small_error_of_the_scale_is_found(epsilon: float, factor: float) -> None:
    """The last count has 4 million releases, so that a bound has a standard error of 0.002."""
    report = dpnoise.audit(
        laplace(1 / epsilon / factor), epsilon, attacks=["threshold"], pairs=[(0, 1)],
        budget=8_000_000, confidence=CERTAIN,
    )  # fmt: skip
    assert report.broken
    assert report.epsilon_lower <= factor * epsilon


@pytest.mark.sample(1)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_noise_of_the_right_scale_is_not_broken(epsilon: float) -> None:
    report = dpnoise.audit(
        laplace(1 / epsilon), epsilon, budget=240_000 if LONG else 60_000, confidence=CERTAIN
    )
    assert not report.broken


@pytest.mark.long
def test_more_releases_certify_at_least_as_much_at_a_large_delta() -> None:
    """Gaussian noise too small by 1.2 at (1, 0.01).

    The bounds are about 1.10 and 1.22, with standard errors of 0.014 and 0.005, so that each
    inequality holds by seven standard errors and more.
    """
    scale = gaussian_scale(1.0, 0.01, 1.0) / 1.2
    short, long = (
        dpnoise.audit(
            gaussian(scale),
            1.0,
            0.01,
            attacks=["threshold"],
            pairs=[(0, 1)],
            budget=budget,
            confidence=CERTAIN,
        ).epsilon_lower
        for budget in (1_000_000, 10_000_000)
    )
    assert 1.0 < short < long < 1.4


def test_a_raw_value_once_in_a_thousand_times_is_found() -> None:
    """Once in a hundred times in `make test`, in a tenth of the releases.

    Events are compared in some releases, of which 26 at each value are raw.

    With 7 raw releases of one value the event is chosen; fewer of both have probability 1e-11.
    """
    times, budget = (1_000, 1_250_000) if LONG else (100, 125_000)

    def leak_rarely(value: float, n: int) -> Floats:
        return np.where(rng.random(n) < 1 / times, value, laplace(1.0)(value, n))

    assert dpnoise.audit(leak_rarely, 1.0, budget=budget).broken


@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "attacks"), [(np.float32, ["feasibility"]), (np.float64, None)])
def test_noise_of_64_bits_narrowed_to_32_before_it_is_added_is_found(
    dtype: Any, attacks: Any
) -> None:
    """A sum with 1 loses other bits than one with 0, in either format."""

    def in_narrow_format(value: float, n: int) -> Any:
        return dtype(value) + rng.laplace(size=n).astype(np.float32).astype(dtype)

    report = dpnoise.audit(in_narrow_format, 1.0, pairs=[(0, 1)], attacks=attacks, budget=48_000)
    assert report.broken
    assert report.epsilon_lower > 3


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "release",
    [
        lambda value, n: value + np.rint(rng.laplace(size=n)),
        lambda value, n: laplace(0.05 if 0 < value < 1 else 1.0)(value, n),
        lambda value, n: np.full(n, value) if value == 43 else laplace(1.0)(value, n),
    ],
    ids=["noise rounded, the value not", "a small scale between 0 and 1", "no noise at one value"],
)
def test_what_shows_at_some_values_alone_is_found(release: Release) -> None:
    assert dpnoise.audit(release, 1.0, budget=100_000).broken


def moved_at(odd: float) -> Release:
    return lambda value, n: laplace(1.0)(value + 5 * (value == odd), n)


@pytest.mark.long
def test_a_value_that_is_treated_otherwise_is_searched_for() -> None:
    """One value is shifted by 5, and the default pairs do not have it.

    Most of its 32 releases differ from those of other values: a p-value of about 1e-20, which no
    other of 117 values has by chance.
    """
    for odd in sample_cases([17.0, -5.0, 1e6, 0.625], 2):
        report = dpnoise.audit(moved_at(odd), 1.0, attacks=["threshold"], budget=200_000)
        assert report.broken, odd
        assert {report.findings[0].value0, report.findings[0].value1} & {odd}
        assert "search" in report.method


def test_a_search_for_whole_values_leaves_out_fractions() -> None:
    def whole_alone(value: float, n: int) -> Floats:
        assert value == round(value)
        return laplace(1.0)(value, n)

    report = dpnoise.audit(
        whole_alone, 1.0, attacks=["threshold"], pairs="whole", budget=60_000, confidence=CERTAIN
    )
    assert not report.broken
    # By chance a value stands out once in 100 audits. Two values add at most four new pairs.
    assert 6 <= len(report.pairs) <= 10


def test_the_same_noise_at_every_value_seldom_stands_out() -> None:
    """At most one search in 100 adds pairs: counted in 5, exact binomial."""
    target = Target("mine", "laplace", 1.0, laplace(1.0))
    check_rate(
        lambda: bool(search_pairs(target, 1.0, np.dtype(np.float64), only_multiples=False)), 5, 0.01
    )


def test_a_search_ends_where_a_target_fails() -> None:
    def fragile(value: float, n: int) -> Floats:
        if value < 0:
            raise ValueError("no such count")
        return laplace(1.0)(value, n)

    target = Target("mine", "laplace", 1.0, fragile)
    assert search_pairs(target, 1.0, np.dtype(np.float64), only_multiples=False) == []


def discrete_laplace(scale: float, n: int) -> Floats:
    first, second = rng.geometric(1 - math.exp(-1 / scale), (2, n))
    return np.asarray(first - second, dtype=np.float64)


LARGE_VALUES: dict[str, Callable[[float, int], Floats]] = {
    "half the noise": lambda value, n: value + discrete_laplace(0.5 if value > 12_345 else 1.0, n),
    "16 bits": lambda value, n: float(np.int64(value).astype(np.int16)) + discrete_laplace(1.0, n),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", LARGE_VALUES)
def test_large_values_that_are_treated_differently_are_found(kind: str) -> None:
    """The largest of the pairs that are always tried has 1001."""
    report = dpnoise.audit(LARGE_VALUES[kind], 1.0, pairs="whole", confidence=CERTAIN)
    assert report.broken


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sensitivity", [0.1, 1 / 3, 1.0, 1e300])
def test_pairs_that_are_searched_for_are_neighbours(dtype: Any, sensitivity: float) -> None:
    number = dtype if sensitivity < 1e30 else np.float64
    odd = float(number(17 * sensitivity))

    def shift_one_value(value: float, n: int) -> Floats:
        return np.full(n, value + (value == odd) * sensitivity)

    pairs = search_pairs(
        Target("mine", "laplace", 1.0, shift_one_value),
        sensitivity,
        np.dtype(dtype),
        only_multiples=False,
    )
    assert len(pairs) == 2
    for low, high in pairs:
        assert 0 < Fraction(high) - Fraction(low) <= Fraction(sensitivity)


def test_pairs_that_are_given_are_those_that_are_tried() -> None:
    def odd(value: float, n: int) -> Floats:
        return laplace(0.1 if value > 5e5 else 1.0)(value, n)

    assert not dpnoise.audit(odd, 1.0, pairs=[(0, 1)], budget=48_000, confidence=CERTAIN).broken
    report = dpnoise.audit(odd, 1.0, pairs=[(0, 1), (1e6, 1e6 - 1)], budget=48_000)
    assert report.broken
    assert report.pairs == [(0.0, 1.0), (1e6, 1e6 - 1)]
    assert "pairs=[(0.0, 1.0), (1000000.0, 999999.0)]" in report.command


@pytest.mark.parametrize(
    ("pairs", "kind", "message"),
    [
        ([(0, 2)], ArgumentError, "must differ by the sensitivity, 1, at most"),
        ([(1, 1)], ArgumentError, "must be two different values"),
        ([(0, math.inf)], ArgumentError, "must be finite"),
        ([], ArgumentError, "pairs must have at least one pair"),
        ([3], ArgumentTypeError, "pairs must be a list of pairs of numbers"),
        ([("a", "b")], ArgumentTypeError, "pairs must be a list of pairs of numbers"),
        ("fractions", ArgumentTypeError, "pairs must be 'whole' or a list of pairs"),
    ],
)
def test_pairs_that_are_no_neighbours_are_refused(pairs: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind) as e:
        dpnoise.audit(laplace(1.0), 1.0, pairs=pairs)
    assert message in str(e.value)


# Claims that cannot be refuted -------------------------------------------------------------------


def without_noise(value: float, n: int) -> Floats:
    return np.full(n, value)


def test_a_target_without_noise_is_refuted_at_a_claim_of_8_without_being_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock is frozen: on a busy machine an audit would ask for fewer releases."""
    monkeypatch.setattr(calls, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    assert dpnoise.audit(without_noise, 8.0, attacks=["threshold"], pairs=[(0, 1)]).broken


def test_a_claim_above_the_ceiling_is_not_called_not_broken() -> None:
    report = dpnoise.audit(without_noise, 30.0, attacks=["threshold"], budget=24_000)
    assert not report.broken
    assert not report.refutable
    assert report.verdict.startswith("Cannot be refuted with this many releases: they certify")
    root = ((1 - 0.999) / 8) ** (1 / 6000)
    assert report.ceiling == pytest.approx(math.log(root / (1 - root)))


def test_the_command_has_a_status_of_its_own_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["audit", "dpnoise.release", "--epsilon", "30", "--attack", "threshold"]
    assert cli.main([*asked, "--budget", "24000"]) == 3
    assert "Cannot be refuted with this many releases" in capsys.readouterr().out


# Other claims ------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("scale", "options", "broken"),
    [
        (1.0, {"mu": 1.0}, False),
        (0.5, {"mu": 1.0}, True),
        (1.0, {"rho": 0.5}, False),
        (0.4, {"rho": 0.5}, True),
    ],
)
def test_gaussian_noise_is_held_against_mu_and_rho(
    scale: float, options: dict[str, Any], *, broken: bool
) -> None:
    report = dpnoise.audit(
        gaussian(scale), **options, pairs=[(0, 1)], budget=60_000, confidence=CERTAIN
    )
    assert report.broken == broken
    (kind,) = options
    assert (report.kind, report.claimed, report.epsilon) == (kind, options[kind], None)
    true = 1 / scale if kind == "mu" else 1 / scale**2 / 2
    assert 0 < report.certified <= true


def test_a_curve_is_refuted_at_its_best_point() -> None:
    """At (0.1, 0.1) noise of half the scale is hardly above its claim; elsewhere it is."""
    scale = gaussian_scale(0.1, 0.1, 1.0)
    claim = gaussian_claim(0.1, 0.1)
    report = dpnoise.audit(
        gaussian(scale / 2), 0.1, 0.1, curve=True, pairs=[(0, 1)], budget=40_000,
        confidence=CERTAIN,
    )  # fmt: skip
    assert report.broken
    assert report.kind == "mu"
    assert claim.value < report.certified < 2.001 * claim.value


@pytest.mark.long
def test_box_muller_noise_is_refuted_at_a_point_and_far_more_of_its_whole_curve() -> None:
    """At (0.1, 0.1), where Delta-Siege (Lokna and others 2023) broke it.

    The event that no float leads from 1 to y happens in a third of the releases of 0, more than the
    tenth that delta allows. It clearly refutes the whole curve, which claims mu = 0.35.
    """
    point, curve = (
        dpnoise.audit("random.gauss", 0.1, 0.1, pairs=[(0, 1)], budget=48_000, curve=curve)
        for curve in (False, True)
    )
    assert point.broken
    assert curve.broken
    assert (curve.kind, round(curve.claimed, 2)) == ("mu", 0.35)
    assert curve.certified > 2.5


@pytest.mark.parametrize("options", [{}, {"epsilon": 1.0, "mu": 1.0}, {"mu": 1.0, "rho": 1.0}])
def test_one_claim_has_to_be_given(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="Give one claim"):
        dpnoise.audit(without_noise, **options)


def test_a_curve_needs_an_epsilon_and_a_delta() -> None:
    with pytest.raises(ArgumentError, match="curve is for Gaussian noise"):
        dpnoise.audit(without_noise, 1.0, curve=True)


@pytest.mark.parametrize("p1", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("kind", ["epsilon", "mu", "rho"])
def test_no_bound_is_above_what_the_probabilities_of_a_gaussian_prove(kind: str, p1: float) -> None:
    """Of an event P0 = Phi(Phi^-1(P1) + mu), which mu and rho = mu^2 / 2 allow by definition."""
    mu = 0.7
    p0 = float(stats.norm.cdf(stats.norm.ppf(p1) + mu))
    bound = Claim(kind, 1.0).bound(p0, p1)
    true = {"epsilon": math.log(p0 / p1), "mu": mu, "rho": mu**2 / 2}[kind]
    assert 0.3 * true < bound <= true


def test_rho_is_the_largest_of_renyi_divergences_by_their_orders() -> None:
    p0, p1 = 0.6, 0.2
    orders = np.linspace(1.001, 200, 20_001)
    happens = p0**orders * p1 ** (1 - orders)
    does_not = (1 - p0) ** orders * (1 - p1) ** (1 - orders)
    divergence = np.log(happens + does_not) / (orders - 1)
    assert Claim("rho", 1.0).bound(p0, p1) == pytest.approx((divergence / orders).max(), rel=1e-3)


def test_the_certified_curve_has_the_limits_of_the_best_finding() -> None:
    report = dpnoise.audit(without_noise, 1.0, attacks=["threshold"], budget=24_000)
    best, curve = report.findings[0], report.curve()
    assert curve.delta(0.0) == pytest.approx(best.low - best.high)
    assert curve.epsilon() == pytest.approx(report.epsilon_lower)
    assert curve.delta(report.epsilon_lower) == pytest.approx(0.0, abs=1e-9)


def test_an_expected_bound_is_what_would_be_certified_if_the_counts_were_right() -> None:
    estimator = BoundEstimator(
        Claim("epsilon", 1.0, 0.01), trials=10**6, error=0.001, chance=0.0, caution=0.0
    )
    expected = estimator.expected_bounds(np.array([4000]), np.array([1000]), 10_000)
    assert expected[0] == pytest.approx(math.log(0.39 / 0.1), abs=0.02)


# Releases that depend on each other --------------------------------------------------------------


def repeat_each(times: int) -> Release:
    return lambda value, n: value + np.repeat(laplace(1.0)(0.0, n // times + 1), times)[:n]


def repeat_period(period: int) -> Release:
    return lambda value, n: value + np.tile(laplace(1.0)(0.0, period), n // period + 1)[:n]


def both_signs(value: float, n: int) -> Floats:
    noise = laplace(1.0)(0.0, n // 2 + 1)
    return value + np.column_stack([noise, -noise]).ravel()[:n]


def random_walk(value: float, n: int) -> Floats:
    noise = laplace(1.0)(0.0, n + 1)
    return value + noise[1:] + noise[:-1]


def drawn_once_a_call(value: float, n: int) -> Floats:
    """As of a threshold with one noise for all releases: each single release is private.

    In 8 calls for each of two values the noise is about equal with probability 10^-8.
    """
    return value + laplace(1.0)(0.0, n) + round(rng.uniform(-3, 3) * GRID) / GRID


DEPENDENT = {
    "twice": repeat_each(2),
    "10 times": repeat_each(10),
    "1000 times": repeat_each(1000),
    "period 2": repeat_period(2),
    "period 37": repeat_period(37),
    "both signs": both_signs,
    "random_walk": random_walk,
    "once a call": drawn_once_a_call,
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("release", DEPENDENT.values(), ids=DEPENDENT.keys())
def test_releases_that_depend_on_each_other_are_refused(release: Release) -> None:
    with pytest.raises(TargetError, match=r"depend on each other|gave one number"):
        dpnoise.audit(release, 1.0, attacks=["threshold"], budget=480_000)


def test_a_period_that_is_longer_than_the_counted_calls_breaks_nothing() -> None:
    """The releases of each of these calls are independent."""
    options: dict[str, Any] = {"attacks": ["threshold"], "budget": 60_000, "confidence": CERTAIN}
    with suppress(DependentError):
        assert not dpnoise.audit(repeat_period(100), 1.0, **options).broken


def test_outputs_of_any_kind_that_depend_on_each_other_are_refused() -> None:
    def twice(answers: Any, n: int) -> Any:
        return np.repeat(answers + laplace(2.0)(0.0, 3 * n).reshape(n, 3), 2, axis=0)[:n]

    with pytest.raises(TargetError, match="those 1 apart are alike"):
        dpnoise.audit(twice, 1.0, neighbours="vector", size=3, budget=100_000)


class Changing:
    """Noise that spends 2/3 of the claim, and changes in the middle of the audit."""

    def __init__(self, change: Callable[[NDArray[np.int64], int], Any]) -> None:
        self.change, self.count, self.calls = change, 0, 0

    def __call__(self, value: int, n: int) -> Any:
        """Return n releases, and count all releases so far."""
        indices = np.arange(self.count, self.count + n)
        self.count, self.calls = self.count + n, self.calls + 1
        return value + laplace(1.5)(0.0, n) + self.change(indices, self.calls)


CHANGES: dict[str, Callable[[NDArray[np.int64], int], Any]] = {
    "with every release": lambda indices, _: indices * 1e-5,
    "after half of them": lambda indices, _: 2.0 * (indices > 60_000),
    "with every call": lambda _, calls: 0.2 * calls,
    "in every second call": lambda _, calls: 2.0 * (calls % 2),
    "with how many are asked for": lambda indices, _: 0.0 * indices + len(indices),
}


@pytest.mark.parametrize(
    ("change", "neighbours"),
    sample_parameters([(change, pairs) for change in CHANGES for pairs in (None, [(0, 1)])], 2),
)
def test_what_changes_with_time_and_not_with_the_data_is_never_called_broken(
    change: str, neighbours: Any
) -> None:
    """Each call is private, so the audit refuses it or does not break it."""
    options: dict[str, Any] = {"neighbours": neighbours, "budget": 100_000, "confidence": CERTAIN}
    options |= {} if neighbours else {"attacks": ["threshold"], "pairs": "whole"}
    with suppress(DependentError):
        assert not dpnoise.audit(Changing(CHANGES[change]), 1.0, **options).broken


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_calls_that_are_alike_are_refused_no_more_often_than_the_error_says(share: float) -> None:
    """At an error of 0.3, counted in 60 samples, exact binomial; calls of different sizes."""
    trials = [500, 400, 700, 500, 1, 500, 300, 100]

    def are_refused() -> bool:
        hits = rng.binomial(trials, share).tolist()
        try:
            check_calls("calls", list(zip(hits, trials, strict=True)), error=0.3)
        except DependentError:
            return True
        return False

    check_rate(are_refused, 60, 0.3)


def test_a_call_that_differs_and_a_slow_change_are_refused() -> None:
    with pytest.raises(DependentError, match="those of one call are alike"):
        check_calls("calls", [(250, 500)] * 3 + [(350, 500)])
    with pytest.raises(DependentError, match="those of one call are alike"):
        check_calls("calls", [(230, 500)] * 8 + [(270, 500)] * 8)  # No single call is far off.
    check_calls("calls", [(250, 500), (260, 500), (240, 500), (255, 500)])


def test_one_release_a_call_makes_them_independent() -> None:
    report = dpnoise.audit(
        repeat_each(10), 1.0, attacks=["threshold"], pairs=[(0, 1)], one_by_one=True,
        budget=4_000 if LONG else 1_000,
        confidence=CERTAIN,
    )  # fmt: skip
    assert not report.broken


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_independent_releases_are_refused_no_more_often_than_the_error_says(share: float) -> None:
    """At an error of 0.3, counted in 60 samples, exact binomial."""

    def are_refused() -> bool:
        before, rows = (rng.random((2, 4000, 1)) < share).astype(np.float64)
        try:
            check_independent("bits", before, rows, error=0.3)
        except TargetError:
            return True
        return False

    check_rate(are_refused, 60, 0.3)


def test_the_p_value_is_fishers() -> None:
    flags = np.repeat(rng.random(40) < 0.5, 2)
    first, second = flags.reshape(-1, 2).T
    rows = [[(x & y).sum() for y in (second, ~second)] for x in (first, ~first)]
    table = np.array(rows, dtype=np.int64)
    assert p_value(flags, 1) <= min(1.0, 2.1 * stats.fisher_exact(table).pvalue)


# Targets that misbehave --------------------------------------------------------------------------


def test_a_target_that_hangs_is_reported_with_the_limit() -> None:
    go_on = threading.Event()

    def hang_late(value: float, n: int) -> Floats:
        go_on.wait()
        return without_noise(value, n)

    with pytest.raises(TargetError, match=r"took more than 0\.2 s"):
        dpnoise.audit(hang_late, 1.0, time_limit=0.2)
    with pytest.raises(TargetError, match=r"took more than 0\.2 s"):
        dpnoise.audit(hang_late, 1.0, neighbours=[(0.0, 1.0)], time_limit=0.2)
    go_on.set()


def test_a_report_can_be_read_when_it_is_printed() -> None:
    text = str(dpnoise.audit(without_noise, 1.0, attacks=["threshold"], budget=24_000))
    first, verdict, finding, *_ = text.splitlines()
    assert first == "without_noise, used as if epsilon were 1"
    assert verdict.startswith("Broken: epsilon is at least ")
    assert finding.startswith("  threshold: epsilon >= ")
    assert isinstance(dpnoise.audit(without_noise, 1.0, attacks=["bits"], budget=1000), Report)
