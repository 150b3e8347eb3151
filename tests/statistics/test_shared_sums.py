"""Statistics of one question share noisy sums: one payment, exact derivation, margins that hold."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.alarms import LONG

from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.bounds import ONE_ROW, ContributionBounds, RowChange
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.queries import Mean, Variance
from dpnoise.statistics.results import WholeNoise
from dpnoise.statistics.shared_sums import NoisySums, payer_of, share_sums

BOUNDS = {"column": "x", "lower": -10.0, "upper": 90.0}
SURE = 1e9  # With this epsilon no noise is seen.
DRAWS = 4000 if LONG else 1000
TRUTHS: dict[str, Any] = {
    "count": len,
    "sum": np.sum,
    "mean": np.mean,
    "variance": np.var,
    "std": np.std,
}


def ask(*statistics: str, **options: Any) -> Question:
    return Question(statistics, **{**BOUNDS, **options})


def values(size: int = 300) -> np.ndarray[Any, Any]:
    """Return values on the coarsest grid that occurs here, so that none is rounded."""
    return np.random.default_rng().integers(24, 600, size) / 8


@pytest.mark.parametrize(
    ("statistics", "shared"),
    [
        (("count", "mean"), ("count", "mean")),
        (("sum", "count"), ("sum", "count")),
        (("median", "count", "sum", "mean"), ("count", "sum", "mean")),
        (("count", "sum", "mean", "std"), ("count", "mean", "std")),
        (("variance", "std"), ("variance", "std")),
        (("mean", "median"), ()),
        (("sum", "variance"), ()),
    ],
)
def test_statistics_share_what_their_sums_contain(
    statistics: tuple[str, ...], shared: tuple[str, ...]
) -> None:
    request = Request(1.0, [ask(*statistics)])
    queries = [query for _, query in request.prepare()]
    assert tuple(query.name for query in queries) == statistics
    sharing = [query for query in queries if query.name in shared]
    payers = {payer_of(query) for query in sharing}
    assert len(payers) == (1 if shared else 0)
    payments = len(statistics) - max(len(shared) - 1, 0)
    assert len(request.prices.losses) == payments
    assert all(query.epsilon == len(shared) / len(statistics) for query in sharing)


@pytest.mark.parametrize(
    ("question", "options"),
    [
        (ask("count", "sum", "mean"), {"neighbours": "replace"}),
        (ask("count", "sum", error=100), {"epsilon": None}),
        (ask("count", "sum", lower=3, upper=3.4, grid=1.0), {}),
        (Question(["count", "histogram"], "x", edges=[0, 1]), {}),
    ],
)
def test_statistics_are_paid_for_separately_where_sharing_gains_nothing(
    question: Question, options: dict[str, Any]
) -> None:
    """With equal bounds in whole grids, no sum shows the number of rows."""
    request = Request(publish=[question], **{"epsilon": 1.0, **options})
    assert len(request.prices.losses) == len(question.statistics)
    releases = publish(pl.DataFrame({"x": [1.0, 2.0]}), request).published
    assert all(published.release.shared == () for published in releases)


@pytest.mark.parametrize(
    "statistics", [("count", "sum", "mean"), ("std", "mean", "count", "variance")]
)
@pytest.mark.parametrize("lower", [-10.0, 0.0, 2.5])
def test_shared_statistics_are_those_of_the_data(statistics: Sequence[str], lower: float) -> None:
    by_group = {"a": values(), "b": values(50)}
    frame = pl.DataFrame(
        {
            "g": [key for key, numbers in by_group.items() for _ in numbers],
            "x": np.concatenate(list(by_group.values())),
        }
    )
    question = ask(*statistics, by=["g"], lower=lower)
    table = publish(frame, Request(SURE, [question], {"g": ["a", "b"]}))
    for published in table:
        truth = TRUTHS[published.release.query](by_group[str(published.group[0])])
        assert published.release.value == pytest.approx(truth, rel=1e-6, abs=0.01)
        assert published.release.shared == statistics


def test_shared_statistics_agree_with_each_other() -> None:
    """The mean is the sum over the count, but for the rounding of the count."""
    table = publish(pl.DataFrame({"x": values()}), Request(0.5, [ask("count", "sum", "mean")]))
    count, total, mean = (published.release.value for published in table)
    assert abs(total - mean * count) <= abs(mean) / 2 + 1e-6


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["pure", "gaussian"])
@pytest.mark.parametrize("base_class", [Mean, Variance])
def test_margins_hold_as_often_as_they_say(base_class: type[Mean | Variance], kind: str) -> None:
    """Counts and sums are linear in the noise, so their margins are not too wide either."""
    numbers = values(2000)
    base = base_class("x", -10, 90, Loss(kind, 0.5), contribution=ContributionBounds(2, 3))
    queries = share_sums(base, ("count", "mean"), clamp=False)
    wholes = np.rint(numbers / base.bounds.grid).astype(int).tolist()
    exact = base.sums_of(len(wholes), sum(wholes), sum(q * q for q in wholes))
    sums = base.noise.release(np.array([exact] * DRAWS, dtype=object), None).tolist()
    for name, query in queries.items():
        truth = TRUTHS[name](np.array(wholes) * base.bounds.grid)
        beyond = sum(
            abs(release.value - truth) > release.error
            for row in sums
            for release in query.publish_sums([row], 0.9)  # type: ignore[union-attr]
        )
        deviation = math.sqrt(DRAWS * 0.1 * 0.9)
        assert beyond <= 0.1 * DRAWS + 5 * deviation, name
        if name in {"count", "sum"}:
            assert beyond >= 0.08 * DRAWS - 5 * deviation, name


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["pure", "gaussian"])
@pytest.mark.parametrize(("rows", "amount"), [(30, 0.01), (10_000, 0.5)])
def test_margins_of_a_variance_hold_and_are_not_much_too_wide(
    rows: int, amount: float, kind: str
) -> None:
    """With few rows, noisy sums below 0 count as 0; with many, the law of the noise decides."""
    base = Variance("x", -10, 90, Loss(kind, amount))
    wholes = np.rint(values(rows) / base.bounds.grid).astype(int).tolist()
    exact = base.sums_of(rows, sum(wholes), sum(q * q for q in wholes))
    sums = base.noise.release(np.array([exact] * DRAWS, dtype=object), None).tolist()
    assert (min(map(min, sums)) < 0) == (rows == 30)
    for query in (base, base.deviation()):
        truth = TRUTHS[query.name](np.array(wholes) * base.bounds.grid)
        releases = [query.publish_sums([row], 0.9)[0] for row in sums]
        errors = np.array([release.value - truth for release in releases])
        margins = np.array([release.error for release in releases])
        deviation = math.sqrt(DRAWS * 0.1 * 0.9)
        assert np.sum(np.abs(errors) > margins) <= 0.1 * DRAWS + 5 * deviation
        if rows > 30:  # 1.64 standard deviations of Gaussian noise are within 0.9.
            assert np.median(margins) < 2.2 * errors.std()


def test_the_sum_of_the_sizes_of_three_noises_is_within_its_bound() -> None:
    for loss in (Loss("pure", 1.0), Loss("gaussian", 0.5)):
        noise = WholeNoise.of(loss, ONE_ROW, RowChange.of_number(1000, 1000))
        drawn = np.abs(noise.release(np.zeros((DRAWS, 3), dtype=np.int64), None)).sum(axis=1)
        beyond = int(np.sum(drawn > noise.error_of_three(0.9)))
        assert beyond <= 0.1 * DRAWS + 5 * math.sqrt(DRAWS * 0.1 * 0.9)
        if loss.kind == "pure":
            assert beyond >= 0.1 * DRAWS - 5 * math.sqrt(DRAWS * 0.1 * 0.9)


def test_the_law_of_a_weighted_sum_of_noise() -> None:
    laplace = WholeNoise.of(Loss("pure", 1.0), ONE_ROW, RowChange.of_number(1000, 1000))
    scale = laplace.mechanism.scale
    assert laplace.weighted_error([2.0, 0.0], 0.95) == pytest.approx(2 * scale * math.log(20) + 1)
    # Of two Laplace variates the sum exceeds t with probability (1 + t/2) exp(-t).
    t = (laplace.weighted_error([1.0, -1.0], 0.95) - 1) / scale
    assert 0.04 < (1 + t / 2) * math.exp(-t) <= 0.05
    # Of three, with probability (1 + 5t/8 + t^2/8) exp(-t).
    t = (laplace.weighted_error([1.0, 1.0, 1.0], 0.999) - 1.5) / scale
    assert 0.0009 < (1 + 5 * t / 8 + t * t / 8) * math.exp(-t) <= 0.001
    gaussian = WholeNoise.of(Loss("gaussian", 0.5), ONE_ROW, RowChange.of_number(1000, 1000))
    single = gaussian.mechanism.error(0.95)
    assert gaussian.weighted_error([3.0, 4.0], 0.95) == pytest.approx(5 * single + 3.5)


def test_noise_is_drawn_once_for_all_statistics_that_share_it() -> None:
    request = Request(1.0, [ask("count", "sum", "mean"), ask("count", "mean")])
    noisy = NoisySums(None)
    drawn = []
    for _, query in request.prepare():
        zero = np.zeros(1, dtype=np.int64)
        answer = type("Answer", (), {"count": zero, "total": zero, "squares": None})
        noisy.release(query, answer, 0.95)
        drawn.append(payer_of(query))
    assert len(set(drawn)) == 2
    assert len(noisy._drawn) == 2


def test_every_output_says_what_was_paid_for_together() -> None:
    table = publish(pl.DataFrame({"x": values()}), Request(1.0, [ask("count", "sum", "median")]))
    count, total, median = table.record()["releases"]
    assert count["shared"] == total["shared"] == ("count", "sum")
    assert median["shared"] == ()
    assert count["epsilon"] == total["epsilon"] == pytest.approx(2 / 3)
    assert table.request.cost().floats()["epsilon"] == pytest.approx(1)
