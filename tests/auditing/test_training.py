"""Audits of training from one run: the two theorems, the coins, the guesses and the report."""

import itertools
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, sparse, special, stats
from support.alarms import FALSE_ALARM, check_probability, check_rate

from benchmarks.canaries import COUNTS, ceiling, ceiling_table
from dpnoise.auditing import BrokenError, TrainingReport, audit_training, training
from dpnoise.core.errors import ArgumentError, ArgumentTypeError

ERROR = 0.05
Guarantees = list[tuple[float, float]]


def identity(included: Any) -> Any:
    return included


def look_up(included: Any, canaries: Any) -> Any:
    """Return 1 for each canary that was included, if training released all of them."""
    return np.isin(canaries, list(included)) * 1.0


def noisy(scale: float, draw: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a score: whether a canary was included, and independent noise."""
    return lambda included, canaries: look_up(included, canaries) * scale + draw(size=len(canaries))


def bound(kind: str, correct: int, guesses: int, canaries: int, delta: float = 0.0) -> float:
    epsilon, mu = (1.0, None) if kind == "epsilon" else (None, 1.0)
    claim = training._check_claim(epsilon, delta, mu, None)
    return claim.bound(canaries, guesses, correct, ERROR)


def most_correct(canaries: int, guesses: int, correct: int, guarantees: Guarantees) -> float:
    """Return the largest probability of this many correct guesses, over all private mechanisms.

    A mechanism maps coins to guesses. Its probabilities are the variables of a linear program, and
    each pair (epsilon, delta) limits those of any two neighbours by the sum of positive parts.
    """
    coins = list(itertools.product((-1, 1), repeat=canaries))
    outputs = [
        y for y in itertools.product((-1, 0, 1), repeat=canaries) if np.abs(y).sum() == guesses
    ]
    n, size = len(outputs), len(coins) * len(outputs)
    neighbours = [
        (s, t)
        for s, t in itertools.permutations(range(len(coins)), 2)
        if np.not_equal(coins[s], coins[t]).sum() == 1
    ]
    constraints = list(itertools.product(neighbours, guarantees))
    columns = size + n * len(constraints)
    upper = sparse.lil_matrix(((n + 1) * len(constraints), columns))
    limits = np.zeros(upper.shape[0])
    for c, ((s, t), (epsilon, delta)) in enumerate(constraints):
        row, excess = c * (n + 1), size + c * n
        for y in range(n):  # M(y | s) - e^epsilon M(y | t) <= excess of y.
            upper[row + y, s * n + y] = 1
            upper[row + y, t * n + y] = -math.exp(epsilon)
            upper[row + y, excess + y] = -1
        upper[row + n, excess : excess + n] = 1
        limits[row + n] = delta
    totals = sparse.lil_matrix((len(coins), columns))
    for s in range(len(coins)):
        totals[s, s * n : (s + 1) * n] = 1
    hits = [np.equal(s, y).sum() >= correct for s in coins for y in outputs]
    gain = np.concatenate([np.array(hits) / len(coins), np.zeros(columns - size)])
    solve: Any = optimize.linprog  # Its types have no sparse arrays.
    solved = solve(
        -gain, A_ub=upper.tocsr(), b_ub=limits, A_eq=totals.tocsr(), b_eq=np.ones(len(coins))
    )
    return -float(solved.fun)


CURVE = [(0.5, 0.1), (1.0, 0.05), (2.0, 0.01)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("pair", [(1.0, 0.0), (1.0, 0.05), (3.0, 0.001)])
@pytest.mark.parametrize("canaries", [1, 2, 3])
def test_the_limit_for_epsilon_and_delta_is_that_of_the_best_mechanism(
    canaries: int, pair: tuple[float, float]
) -> None:
    for guesses in range(1, canaries + 1):
        for correct in range(1, guesses + 1):
            best = most_correct(canaries, guesses, correct, [pair])
            limit = training.guess_p_value(canaries, guesses, correct, *pair)
            assert limit == pytest.approx(best, abs=1e-7)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct"), [(2, 2, 2), (3, 3, 3), (3, 3, 2), (3, 2, 2), (3, 1, 1)]
)
def test_no_mechanism_under_a_curve_is_guessed_better_than_its_limit(
    canaries: int, guesses: int, correct: int
) -> None:
    """Where all guesses are correct, the best mechanism reaches the limit."""
    best = most_correct(canaries, guesses, correct, CURVE)
    assert 0.2 < best < 1
    curve = training.curve_of(CURVE)
    assert not training.refutes_curve(curve, canaries, guesses, correct, best - 1e-9)
    if guesses == correct:
        assert training.refutes_curve(curve, canaries, guesses, correct, best + 1e-6)


@pytest.mark.parametrize(("guesses", "accuracy"), [(1000, 0.7), (1000, 0.8), (200, 0.95)])
def test_the_bound_on_mu_is_that_of_the_best_mechanism(guesses: int, accuracy: float) -> None:
    """With probability 0.05 its coins show all at once, with this accuracy; else nothing is shown.

    It has Gaussian privacy with this mu and no smaller one, if all canaries are guessed.
    """
    mu = special.ndtri(accuracy * ERROR) - special.ndtri((1 - accuracy) * ERROR)
    certified = bound("mu", round(accuracy * guesses), guesses, guesses)
    assert 0.98 * mu < certified <= mu * (1 + 1e-9)


def published_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Return the p-value, by the loop over all i that the paper prints."""
    q = 1 / (1 + math.exp(-epsilon))
    below = stats.binom.pmf(np.arange(v), r, q)[::-1].cumsum()
    alpha = float(np.max(below / np.arange(1, v + 1), initial=0))
    return float(min(1, stats.binom.sf(v - 1, r, q) + alpha * delta * 2 * m))


def test_the_limit_is_below_the_published_one_where_it_decides() -> None:
    """Both are equal without delta. With it, theirs is not exact, on either side."""
    rng = np.random.default_rng()
    for _ in range(300):
        m = int(rng.integers(1, 400))
        r = int(rng.integers(1, m + 1))
        v, epsilon, delta = (
            int(rng.integers(0, r + 1)),
            2 * rng.exponential(),
            10 ** -rng.uniform(1, 6),
        )
        pure = published_p_value(m, r, v, epsilon, 0.0)
        assert training.guess_p_value(m, r, v, epsilon, 0.0) == pytest.approx(pure, rel=1e-8)
        published = published_p_value(m, r, v, epsilon, delta)
        if published < 0.3:
            limit = training.guess_p_value(m, r, v, epsilon, delta)
            assert limit <= published * (1 + 1e-8)
    assert published_p_value(2, 2, 1, 1.0, 0.05) < most_correct(2, 2, 1, [(1.0, 0.05)]) - 0.002


def test_the_published_example_certifies_more_than_published() -> None:
    """Appendix D: 75 of 100 guesses correct with 1,000 canaries, delta 1e-4, give 0.673."""
    assert published_p_value(1000, 100, 75, 0.673, 1e-4) == pytest.approx(ERROR, rel=1e-3)
    pure = bound("epsilon", 75, 100, 1000)
    assert 0.673 < bound("epsilon", 75, 100, 1000, 1e-4) < pure


@pytest.mark.parametrize("correct", [600, 800, 1000])
def test_a_tail_too_small_for_a_ratio_has_a_limit_above_the_exact_one(
    correct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = training.guess_p_value(1000, 1000, correct, 0.1, 1e-5)
    monkeypatch.setattr(training, "_UNDERFLOW", 1.0)
    assert exact <= training.guess_p_value(1000, 1000, correct, 0.1, 1e-5) < 1.3 * exact


@pytest.mark.parametrize("guesses", [1, 5, 60, 1000])
def test_if_all_guesses_are_correct_the_bound_has_a_closed_form(guesses: int) -> None:
    """The chance q of one guess has q^r = 0.05; about log(r) - log(3)."""
    q = ERROR ** (1 / guesses)
    expected = max(0.0, special.logit(q))
    assert bound("epsilon", guesses, guesses, 1000) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomised_response_is_certified_above_its_epsilon_in_a_twentieth_of_runs(
    epsilon: float,
) -> None:
    """Exactly: the number of correct guesses is binomial."""
    guesses = 100
    wrong = sum(
        float(stats.binom.pmf(correct, guesses, special.expit(epsilon)))
        for correct in range(guesses + 1)
        if bound("epsilon", correct, guesses, guesses) > epsilon
    )
    assert 0.01 < wrong <= ERROR


def test_an_audit_of_randomised_response_is_wrong_as_rarely_as_stated() -> None:
    """A logistic variable is above 0 at epsilon/2 as often as an answer is true."""
    rng = np.random.default_rng()

    def answer(included: Any, canaries: Any) -> NDArray[np.float64]:
        answers = noisy(1.0, lambda size: rng.logistic(scale=0.5, size=size))(included, canaries)
        return np.asarray(answers > 0.5, dtype=np.float64)

    def is_wrong() -> bool:
        report = audit_training(identity, range(60), answer, epsilon=1.0, guesses=[(30, 30)])
        return report.broken

    check_rate(is_wrong, 30, ERROR)


def test_most_of_the_epsilon_of_randomised_response_is_certified() -> None:
    """Of 20,000 guesses the share 0.88 is correct, give or take 0.0023: more than 0.86."""
    rng = np.random.default_rng()
    score = noisy(1.0, lambda size: np.where(rng.random(size) < special.expit(-2.0), 9.0, 0.0))

    def flip(included: Any, canaries: Any) -> NDArray[np.float64]:
        drawn = score(included, canaries)
        return np.asarray(np.where(drawn > 2, 10 - drawn, drawn))

    report = audit_training(identity, range(20_000), flip, epsilon=1.5, guesses=[(9_800, 9_800)])
    assert report.broken
    assert report.certified > 1.8


@pytest.mark.parametrize("claim", [{"mu": 1.0}, {"epsilon": 4.0, "delta": 1e-5}])
def test_gaussian_noise_keeps_its_claim(claim: Any) -> None:
    """Mu 1 has epsilon 4.38 at delta 1e-5. The bounds hold with probability 0.95 for each run."""
    rng = np.random.default_rng()
    score = noisy(0.9, rng.normal)
    check_rate(lambda: audit_training(identity, range(1000), score, **claim).broken, 10, ERROR)


def test_the_guarantees_of_a_gaussian_certify_nearly_what_its_mu_does() -> None:
    rng = np.random.default_rng()
    mu = 1.0
    pairs = [
        (epsilon, special.ndtr(mu / 2 - epsilon / mu)
         - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))
        for epsilon in np.linspace(0.05, 8, 60)
    ]  # fmt: skip
    score = noisy(8.0, rng.normal)
    by_pairs = audit_training(identity, range(1000), score, guarantees=pairs)
    by_mu = audit_training(identity, range(1000), score, mu=mu)
    assert by_mu.broken
    assert by_pairs.broken
    for correct in (450, 480, 500):
        for level in (0.5, 0.8, 1.0, 1.2):
            refuted = [
                training.refutes_curve(curve, 1000, 500, correct, level * ERROR)
                for curve in (training.gaussian_curve(mu), training.curve_of(pairs))
            ]
            assert refuted in ([True, True], [False, False], [True, False])
    assert training.curve_of(pairs)(0.3) == pytest.approx(
        training.gaussian_curve(mu)(0.3), rel=0.01
    )


def test_the_coins_are_fair_independent_and_repeat_for_no_seed() -> None:
    drawn = []

    def train(included: list[int]) -> list[int]:
        drawn.append(included)
        return included

    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - what training may do
        random.seed(0)
        audit_training(train, range(100_000), look_up, epsilon=1.0)
    first, second = drawn
    assert first != second
    for count, trials in ((len(first), 100_000), (len(set(first) & set(second)), len(first))):
        check_probability(stats.binomtest(count, trials).pvalue)
    pairs = np.bincount(2 * look_up(first, range(0, 100_000, 2)).astype(int)
                        + look_up(first, range(1, 100_000, 2)).astype(int))  # fmt: skip
    check_probability(stats.chisquare(pairs).pvalue)


@pytest.mark.parametrize("kind", ["list", "tuple", "array"])
def test_training_gets_the_included_canaries_in_their_order(kind: str) -> None:
    canaries: Any = [[i, i + 0.5] for i in range(64)]
    if kind == "tuple":
        canaries = tuple(canaries)
    if kind == "array":
        canaries = np.array(canaries)

    def train(included: Any) -> Any:
        assert 0 < len(included) < 64
        assert isinstance(included, np.ndarray) == (kind == "array")
        rows = [[float(x) for x in row] for row in included]
        assert rows == sorted(rows)
        assert all(row[1] == row[0] + 0.5 for row in rows)
        return [row[0] for row in rows]

    def score(release: Any, given: Any) -> Any:
        assert given is canaries
        return look_up(release, np.arange(64))

    report = audit_training(train, canaries, score, epsilon=1.0)
    assert report.guesses[0].correct == 32 == report.guesses[0].included * 2


def test_a_release_of_the_canaries_certifies_the_ceiling() -> None:
    """With 600 coins, 150 are of each kind but for a chance below FALSE_ALARM."""
    assert stats.binom.cdf(150, 600, 0.5) < FALSE_ALARM
    report = audit_training(identity, range(600), look_up, epsilon=3.0)
    assert report.broken
    assert report.certified == report.ceiling > 3
    half, eighth = report.guesses
    assert (half.included, half.excluded, half.correct) == (150, 150, 300)
    assert (eighth.included, eighth.excluded, eighth.correct) == (37, 37, 74)
    assert half.certified == pytest.approx(special.logit((ERROR / 2) ** (1 / 300)), abs=1e-6)


@pytest.mark.filterwarnings("ignore:10 canaries cannot refute")
def test_the_extreme_scores_are_guessed() -> None:
    """Of ten canaries, 9 and 5 have the highest scores, and 3, 0 and 7 the lowest."""
    scores = [-8, 0, 0, -9, 1, 7, 0, -7, 0, 8]

    def count_correct(included: list[int]) -> int:
        return len({9, 5} & set(included)) + len({3, 0, 7} - set(included))

    for _ in range(30):
        drawn: list[list[int]] = []
        report = audit_training(
            drawn.append, range(10), lambda _, __: scores, epsilon=1.0, guesses=[(2, 3)]
        )
        assert report.guesses[0].correct == count_correct(drawn[0])


def test_scores_in_the_wrong_direction_certify_nothing() -> None:
    report = audit_training(identity, range(400), lambda y, c: -look_up(y, c), epsilon=1.0)
    assert report.certified == 0
    assert report.guesses[0].correct == 0


def test_equal_scores_show_nothing() -> None:
    report = audit_training(identity, range(400), lambda _, c: np.zeros(len(c)), epsilon=1.0)
    assert "nothing is known" in report.verdict
    assert not report.broken


def test_infinite_scores_are_the_highest_and_the_lowest() -> None:
    def score(included: Any, canaries: Any) -> Any:
        return np.where(look_up(included, canaries) > 0, math.inf, -math.inf)

    assert audit_training(identity, range(400), score, epsilon=1.0).broken


def test_one_canary_certifies_nothing() -> None:
    with pytest.warns(UserWarning, match="1 canaries cannot refute"):
        report = audit_training(identity, ["only"], lambda y, _: [len(y)], epsilon=0.1)
    assert (report.certified, report.ceiling) == (0.0, 0.0)
    assert not report.refutable
    assert "or all scores" not in report.verdict


def test_canaries_that_are_equal_leave_the_bound_valid() -> None:
    """Each coin still moves one record, but no score tells equal canaries apart."""
    report = audit_training(
        identity, [7] * 400, lambda y, c: np.full(len(c), float(len(y))), epsilon=0.5
    )
    assert not report.broken


@pytest.mark.sample(1)
@pytest.mark.parametrize("claim", [{"guarantees": [(1.0, 1e-3), (4.0, 1e-5)]}, {"mu": 2.0}])
def test_a_million_canaries_take_seconds(claim: Any) -> None:
    rng = np.random.default_rng()
    masks = np.zeros(10**6)

    def train(included: list[int]) -> NDArray[np.float64]:
        masks[included] = 1
        return masks

    def score(release: NDArray[np.float64], _: Any) -> Any:
        return release + rng.normal(size=10**6)

    start = time.perf_counter()
    report = audit_training(train, range(10**6), score, **claim)
    assert time.perf_counter() - start < 60
    assert report.certified > 0.3


@pytest.mark.filterwarnings("ignore:10 canaries cannot refute")
@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([0.0] * 9, "return 10 numbers"),
        ([[0.0]] * 10, "return 10 numbers"),
        (0.0, "return 10 numbers"),
        (["a"] * 10, "must return numbers"),
        ([math.nan] * 3 + [0.0] * 7, "NaN for 3 of 10"),
    ],
)
def test_wrong_scores_are_refused(scores: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        audit_training(identity, range(10), lambda _, __: scores, epsilon=1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Give one claim"),
        ({"epsilon": 1.0, "mu": 1.0}, "Give one claim"),
        ({"epsilon": -1.0}, "epsilon must be greater than 0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must be between 0 and 1"),
        ({"guarantees": []}, "pairs"),
        ({"guarantees": (1.0, 1e-5)}, "must be a list of pairs"),
        ({"guarantees": [(1.0, 0.1)], "delta": 0.1}, "pairs"),
        ({"guarantees": [(1.0, 2.0)]}, "delta must be between 0 and 1"),
        ({"epsilon": 1.0, "confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"epsilon": 1.0, "guesses": []}, "guesses must have a pair"),
        ({"epsilon": 1.0, "guesses": [(6, 5)]}, "be 1 to 10 together"),
        ({"epsilon": 1.0, "guesses": [(0, 0)]}, "be 1 to 10 together"),
        ({"epsilon": 1.0, "guesses": [(-1, 5)]}, "guesses must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused_before_training(options: Any, words: str) -> None:
    def train(_: Any) -> Any:
        pytest.fail("training has begun")

    with pytest.raises(ArgumentError, match=words):
        audit_training(train, range(10), look_up, **options)


@pytest.mark.parametrize("canaries", ["text", 10, {1, 2}, iter([1]), np.array(1.0)])
def test_canaries_without_a_length_and_an_order_are_refused(canaries: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="canaries must be a list"):
        audit_training(identity, canaries, look_up, epsilon=1.0)


def test_a_report_says_what_it_assumes(tmp_path: Path) -> None:
    report = audit_training(identity, range(600), look_up, mu=1.0, delta=1e-5)
    assert isinstance(report, TrainingReport)
    text = str(report)
    assert "Broken: mu is at least" in text
    assert "300 of 300 guesses correct" in text
    assert "if the curve is Gaussian" in text
    assert "score uses nothing but what train returned" in text
    with pytest.raises(BrokenError, match="mu is at least"):
        report.raise_if_broken()
    report.to_json(tmp_path / "report.json")
    loaded = json.loads((tmp_path / "report.json").read_text())
    assert loaded["broken"] is True
    assert loaded["certified"] == report.certified
    assert loaded["guesses"][0]["correct"] == 300


def test_a_report_shows_the_digits_of_a_confidence_near_1() -> None:
    report = audit_training(identity, range(600), look_up, epsilon=1.0, confidence=1 - 1e-8)
    assert "\nconfidence 0.99999999; " in str(report)


def test_a_ceiling_below_the_claim_is_said_before_training_and_reported() -> None:
    def fail(_: Any) -> Any:
        pytest.fail("training has begun")

    with pytest.raises(UserWarning, match="and the claim is 8"):  # Warnings are errors in tests.
        audit_training(fail, range(100), look_up, epsilon=8.0)
    with pytest.warns(UserWarning, match="100 canaries cannot refute"):
        report = audit_training(identity, range(100), look_up, epsilon=8.0)
    assert not report.broken
    assert "Cannot be refuted with this many canaries" in report.verdict


def test_the_epsilon_of_a_curve_is_unknown() -> None:
    report = audit_training(identity, range(400), look_up, guarantees=[(1.0, 1e-5), (0.5, 1e-3)])
    assert report.epsilon_lower is None
    assert "the factor of the curve is at least" in report.verdict
    assert "each bound is a factor of its epsilons" in str(report)
    assert "at most a factor of" in str(report)


def test_the_page_has_the_largest_bounds_of_each_number_of_canaries() -> None:
    """Without delta, r correct guesses certify x / (1 - x) = e^epsilon, where x^r is the error."""
    page = Path(__file__).parents[2] / "docs" / "audit-training.md"
    assert "\n".join(ceiling_table()) in page.read_text()
    for count in COUNTS:
        guesses = [2 * (count // share) for share in (4, 16)]
        largest = max(special.logit((ERROR / 2) ** (1 / r)) for r in guesses)
        assert ceiling(count, epsilon=0.01) == pytest.approx(largest, rel=1e-9)
