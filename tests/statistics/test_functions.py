"""Statistics: sums whose sensitivity is what they say, and releases with the right laws."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import alarms
from support.choices import sample_parameters

from dpnoise import statistics
from dpnoise.statistics.column_tally import tally_chunks
from dpnoise.statistics.plan import Edges, Plan
from dpnoise.testing import fixed_generator

anything = st.floats(allow_nan=True, allow_infinity=True)
rows = st.lists(anything, max_size=30)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[float, float]:
    size = draw(st.sampled_from([1e-9, 0.7, 1.0, 255.0, 1e6, 1e15]))
    lower, upper = sorted(draw(st.tuples(st.floats(-1, 1), st.floats(-1, 1))))
    return (lower * size, upper * size) if upper - lower > 1e-3 else (-size, size)


@settings(max_examples=300 if alarms.LONG else 60, deadline=None)
@given(rows, anything, st.integers(0, 30), bounds())
def test_one_row_moves_the_exact_sum_by_no_more_than_its_sensitivity(
    data: list[float], row: float, index: int, limits: tuple[float, float]
) -> None:
    """The claim holds for all rows, and wherever the row is added."""
    lower, upper = limits
    neighbour = [*data[:index], row, *data[index:]]
    difference = statistics.exact_sum(neighbour, lower, upper) - statistics.exact_sum(
        data, lower, upper
    )
    assert abs(difference) <= max(abs(Fraction(lower)), abs(Fraction(upper)))


@settings(max_examples=100, deadline=None)
@given(rows, st.randoms(use_true_random=False), bounds())
def test_the_order_of_addition_does_not_matter(
    data: list[float], shuffler: Any, limits: tuple[float, float]
) -> None:
    shuffled = list(data)
    shuffler.shuffle(shuffled)
    assert statistics.exact_sum(data, *limits) == statistics.exact_sum(shuffled, *limits)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.sampled_from([2.0**-10, 1.0, 64.0]))
def test_the_exact_sum_is_the_sum_of_the_rounded_values(data: list[float], grid: float) -> None:
    expected = Fraction(0)
    for value in data:
        clamped = min(max(Fraction(value), Fraction(-1000)), Fraction(1000))
        inward = math.floor(Fraction(1000) / Fraction(grid)) * Fraction(grid)
        rounded = math.floor(clamped / Fraction(grid) + Fraction(1, 2)) * Fraction(grid)
        expected += min(max(rounded, -inward), inward)
    assert statistics.exact_sum(data, -1000, 1000, grid) == expected


# The neighbouring data sets of Casacuberta and others (2022), each of which moves a float sum by
# far more than one row may.
ATTACKS: list[tuple[str, list[float] | np.ndarray, float, float, float]] = [
    ("reordering", [2.0**53] + [1.0] * 1000, 1.0, 0.0, 2.0**53),
    ("rounding", np.full(100_000, 1 / 3), 2.0**20, 0.0, 2.0**20),
    ("overflow", [1.7e308, 1.7e308, -1.7e308], 1.7e308, -1e15, 1e15),
    ("nan", [1.0, math.nan, 2.0], math.nan, 0.0, 10.0),
    ("infinity", [math.inf, -math.inf, 2.0], math.inf, -10.0, 10.0),
    ("wrapping integers", np.array([2**63 - 1, 2**63 - 1]), 1.0, 0.0, 1e15),
]


@pytest.mark.parametrize(
    ("data", "row", "lower", "upper"), [a[1:] for a in ATTACKS], ids=[a[0] for a in ATTACKS]
)
def test_the_attacks_on_float_sums_fail(data: Any, row: float, lower: float, upper: float) -> None:
    total = statistics.exact_sum(data, lower, upper)
    for neighbour in ([row, *data], [*data, row], list(data[1:])):
        neighbour_total = statistics.exact_sum(np.array(neighbour, dtype=np.float64), lower, upper)
        assert abs(neighbour_total - total) <= max(abs(lower), abs(upper))


@pytest.mark.parametrize(
    "column",
    [
        [1, 2, 3, 4],
        (1.0, 2.0, 3.0, 4.0),
        np.array([1, 2, 3, 4], np.int8),
        np.arange(1.0, 9.0)[:4],
        pd.Series([1, 2, 3, 4]),
        pl.Series("x", [1.0, 2.0, 3.0, 4.0]),
        pa.array([1, 2, 3, 4]),
        pa.table({"x": [1.0, None, 2.0, 7.0]})["x"],
        iter([np.array([1.0]), [2, 3], np.array([4.0])]),
        np.array([False, True, True, True] * 1) * np.array([1, 2, 3, 5]),
    ],
    ids=lambda column: type(column).__name__,
)
def test_columns_of_every_kind(column: Any) -> None:
    assert statistics.exact_sum(column, 0, 100) == 10


@pytest.mark.parametrize("column", [[], (), np.array([]), iter([])], ids=lambda x: type(x).__name__)
def test_the_exact_sum_of_no_values_is_0(column: Any) -> None:
    assert statistics.exact_sum(column, 2, 100) == 0


@pytest.mark.parametrize("value", [math.nan, -3.0, 2.0])
def test_a_missing_value_and_one_below_count_as_the_lower_bound(value: float) -> None:
    assert statistics.exact_sum([value, 7.0], 2, 100) == 9


def test_missing_values_are_an_error_or_left_out() -> None:
    data = [1.0, math.nan, 3.0]
    with pytest.raises(ValueError, match='set missing="drop"'):
        statistics.count(data, epsilon=1e6)
    assert statistics.count(data, epsilon=1e6, missing="drop").value == 2
    mean = statistics.mean(data, lower=0, upper=10, epsilon=1e6, missing="drop")
    assert mean.value == pytest.approx(2.0, abs=1e-3)
    with pytest.raises(ValueError, match="missing must be one of"):
        statistics.count(data, epsilon=1.0, missing="zero")


def test_a_long_column_is_added_in_turns() -> None:
    data = np.random.default_rng().random(3_000_001)
    total = statistics.exact_sum(data, 0, 1)
    assert total == sum(
        (statistics.exact_sum(part, 0, 1) for part in np.array_split(data, 7)), Fraction(0)
    )
    assert float(total) == pytest.approx(data.sum(), rel=1e-9)


def test_releases_say_what_they_cost_and_how_far_off_they_are() -> None:
    data = np.linspace(0, 100, 20_001)
    mean = statistics.mean(data, lower=0, upper=100, epsilon=1.0)
    assert mean.epsilon == 1.0
    assert mean.error is not None
    assert abs(mean.value - 50) <= 10 * mean.error
    total = statistics.sum(data, lower=0, upper=100, epsilon=0.5)
    assert total.scale == pytest.approx(200.0)
    assert statistics.count(data, epsilon=0.5).scale == 2.0
    histogram = statistics.histogram(data, edges=[0, 10, 50, 100], epsilon=1.0)
    assert len(histogram.value) == 3


def test_errors_cover_with_their_confidence() -> None:
    """Fewer releases cover than the confidence says only as chance allows."""
    number = 2_000 if alarms.LONG else 250
    data = np.random.default_rng().random(500)
    truth = {"count": 500.0, "sum": float(statistics.exact_sum(data, 0, 1)), "mean": data.mean()}
    questions: list[tuple[str, Callable[[], statistics.Release]]] = [
        ("count", lambda: statistics.count(data, epsilon=0.2, confidence=0.9)),
        ("sum", lambda: statistics.sum(data, lower=0, upper=1, epsilon=0.2, confidence=0.9)),
        ("mean", lambda: statistics.mean(data, lower=0, upper=1, epsilon=0.2, confidence=0.9)),
    ]
    for name, ask in questions:
        releases = [ask() for _ in range(number)]
        inside = sum(abs(r.value - truth[name]) <= (r.error or 0.0) + 1e-9 for r in releases)
        alarms.check_probability(stats.binomtest(inside, number, 0.9, "less").pvalue)


def test_the_histogram_counts_each_row_once() -> None:
    values = np.array([0.0, 0.5, 1.0, 1.999, 2.0, 5.0, -1.0, 6.0, math.nan, math.inf])
    plan = Plan((Edges("x", (0.0, 1.0, 2.0, 5.0)),), missing="drop")
    tally = tally_chunks([values], plan)
    assert np.asarray(tally.answers[0]).tolist() == [2, 2, 2]


def test_the_median_is_the_half_quantile() -> None:
    first, second = (
        ask(rng=fixed_generator(bytes(32)))
        for ask in (
            partial(statistics.median, [1.0, 2.0, 9.0], lower=0, upper=10, epsilon=1.0),
            partial(statistics.quantile, [1.0, 2.0, 9.0], 0.5, lower=0, upper=10, epsilon=1.0),
        )
    )
    assert first == second


def test_releases_repeat_with_a_fixed_generator() -> None:
    data = np.arange(100.0)
    first, second = (
        statistics.quantile(
            data, 0.5, lower=0, upper=100, epsilon=1.0, rng=fixed_generator(bytes(32))
        )
        for _ in range(2)
    )
    assert first == second


def test_bad_arguments_are_named() -> None:
    data = [1.0, 2.0]
    cases: list[tuple[Any, str]] = [
        (
            lambda: statistics.sum(data, lower=1, upper=0, epsilon=1),
            "lower must be below upper=0, got 1",
        ),
        (
            lambda: statistics.sum(data, lower=0, upper=math.inf, epsilon=1),
            "upper must be finite",
        ),
        (
            lambda: statistics.sum(data, lower=0, upper=1, epsilon=0),
            r"epsilon must be greater than 0, got 0\.0",
        ),
        (
            lambda: statistics.mean(data, lower=0, upper=1, epsilon=-1),
            "epsilon must be greater than 0, got -1",
        ),
        (lambda: statistics.exact_sum(data, 0, 1, grid=0.3), r"grid must be a power of two"),
        (lambda: statistics.exact_sum(data, 3, 5, grid=64.0), "must have a multiple between"),
        (lambda: statistics.exact_sum(data, 0, 1, grid=2.0**-60), "larger bound over"),
        (
            lambda: statistics.quantile(data, 2, lower=0, upper=1, epsilon=1),
            "q must be between 0 and 1, got 2",
        ),
        (
            lambda: statistics.quantile(data, 10**400, lower=0, upper=1, epsilon=1),
            "q must be between 0 and 1",
        ),
        (lambda: statistics.histogram(data, edges=[1], epsilon=1), "two or more increasing"),
        (lambda: statistics.count(["a"], epsilon=1), "The data must be a column of numbers"),
        (lambda: statistics.count(data, epsilon=1, confidence=1.0), "between 0 and 1"),
        (lambda: statistics.count(data, epsilon=1, confidence=1 - 2**-53), "at most 1 - 2\\^-52"),
    ]
    for call, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_an_argument_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match=r"no argument 'confidense'\. Every statistic takes"):
        statistics.mean([1.0], lower=0, upper=1, epsilon=1.0, confidense=0.9)  # type: ignore[call-arg]


STATISTICS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "count": (statistics.count, {}, {}),
    "sum": (statistics.sum, {"lower": 0, "upper": 10}, {}),
    "mean": (statistics.mean, {"lower": 0, "upper": 10}, {}),
    "variance": (statistics.variance, {"lower": 0, "upper": 10}, {}),
    "std": (statistics.std, {"lower": 0, "upper": 10}, {}),
    "histogram": (statistics.histogram, {"edges": (0, 5, 10)}, {}),
    "median": (statistics.median, {"lower": 0, "upper": 10}, {"interval": True}),
}
BUDGETS: list[dict[str, Any]] = [
    {"epsilon": 1.0, "delta": 1e-6, "mechanism": "gaussian"},
    {"epsilon": 1.0, "delta": 1e-6, "mechanism": "best"},
    {"epsilon": None, "rho": 0.5, "mechanism": "gaussian"},
    {"epsilon": None, "rho": 0.5},
]


@pytest.mark.parametrize(
    ("name", "budget"),
    sample_parameters(product(STATISTICS, BUDGETS), 6),
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x.values())),
)
def test_a_function_spends_its_budget_as_a_request_does(name: str, budget: dict[str, Any]) -> None:
    """The same data, budget and key give the same release."""
    function, arguments, intervals = STATISTICS[name]
    if name == "median" and budget.get("delta"):
        budget = {"epsilon": 1.0}  # A selection has no delta.
    values, key = [1.0, 4.0, 7.5] * 100, bytes(range(32))
    question = statistics.Question([name], "x", **arguments)
    request = statistics.Request(publish=[question], intervals=True, **budget)
    frame = pa.table({"x": values})
    (published,) = statistics.publish(frame, request, fixed_generator(key))
    released = function(values, rng=fixed_generator(key), **arguments, **intervals, **budget)
    assert released == published.release
    is_gaussian = budget.get("mechanism") == "gaussian" and name != "median"
    assert budget.get("mechanism") == "best" or (released.rho is not None) == is_gaussian
