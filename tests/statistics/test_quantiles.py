"""Quantiles: their scores, law, order and intervals, and work that reveals nothing."""

import math
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from support import alarms
from support.choices import sample_cases, sample_parameters
from support.person_worlds import ranks_of

from dpnoise import statistics
from dpnoise.core.errors import ArgumentError
from dpnoise.release import selection
from dpnoise.statistics import Quantile, Quantiles, Question, Request
from dpnoise.statistics import selections as quantiles
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.selections import QuantileSelection, nearest_place
from dpnoise.testing import fixed_generator


def test_ties_pull_the_median_to_themselves() -> None:
    """A wrong candidate has a probability below 65,536 exp(-5,000)."""
    released = statistics.median(np.full(10_000, 38.0), lower=0, upper=120, epsilon=1.0)
    assert released.value == 38.0


@pytest.mark.parametrize("width", [60.0, 3600.0, 86400.0, 86400.0 * 365])
def test_candidates_come_from_the_width_of_the_bounds(width: float) -> None:
    """Epoch seconds: at epsilon 10^6 the median is off by a grid at most."""
    first = 1_700_000_000.0
    data = first + np.linspace(0, width, 1001)
    released = statistics.median(
        data, lower=first, upper=first + width, epsilon=1e6, interval=False
    )
    assert abs(released.value - np.median(data)) <= width / 2**15


def score(
    data: tuple[int, ...], candidate: int, q: Fraction, inward: float = 0, cells: int = 0
) -> Fraction:
    """Return minus the distance of [#(x < c), #(x <= c)] to q n, by the definition.

    The ends approach each other by at most `inward` ranks, the lower one by q of them. The outer
    ends of the lowest and the highest cell are not moved.
    """
    below = Fraction(sum(value < candidate for value in data))
    up_to = Fraction(sum(value <= candidate for value in data))
    moved = min(up_to - below, Fraction(inward))
    low = below if candidate == 0 else below + q * moved
    high = up_to if candidate == cells - 1 else up_to - (1 - q) * moved
    return -max(low - q * len(data), q * len(data) - high, Fraction(0))


@pytest.mark.sample(2)
@pytest.mark.parametrize("inward", [0.0, 0.5, 1.0, 2.0, 20.0])
def test_one_row_moves_a_score_by_at_most_max_q_1_q_and_no_less(inward: float) -> None:
    """All data sets of up to three rows, or five, with four values, all rows, all candidates."""
    for q in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(2, 3), Fraction(1)):
        largest = Fraction(0)
        for size in range(6 if alarms.LONG else 4):
            for data in combinations_with_replacement(range(4), size):
                for candidate in range(4):
                    old_score = score(data, candidate, q, inward, 4)
                    for row in range(4):
                        moved = score((*data, row), candidate, q, inward, 4) - old_score
                        largest = max(largest, abs(moved))
        assert largest == max(q, 1 - q)


def test_one_row_moves_no_score_between_two_cuts_by_more() -> None:
    """The claim holds for the scores that select cells between two cuts."""
    rng = np.random.default_rng()
    row = 2 * quantiles.PARTS
    for _ in range(300):
        counts = rng.integers(0, 5, 6)
        neighbour = counts.copy()
        neighbour[rng.integers(0, 6)] += 1
        q = quantiles.nearest_place(float(rng.random()))
        epsilon = float(rng.uniform(0.5, 100))
        first, last = np.sort(rng.integers(-1, 6 * quantiles.PARTS + 1, 2)).tolist()
        scores = []
        for cell_counts in (counts, neighbour):
            ranks = quantiles.SpreadRows(cell_counts).ranks(first, last, q, epsilon)
            target = quantiles.target_rank(q, ranks.rows)
            scores.append([ranks.exact_score(cell, target) for cell in range(ranks.below.size)])
        moved = max(abs(a - b) for a, b in zip(*scores, strict=True))
        assert moved <= row * max(Fraction(q), 1 - Fraction(q))


def test_the_scores_are_those_of_the_definition() -> None:
    rng = np.random.default_rng()
    for _ in range(200):
        data = tuple(rng.integers(0, 8, int(rng.integers(0, 12))).tolist())
        q = float(rng.choice([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]))
        counts = np.bincount(np.array(data, dtype=int), minlength=8)
        ranks = ranks_of(counts)
        exact = quantiles.nearest_place(q)
        target = quantiles.target_rank(exact, ranks.rows)
        scores = ranks.scores(target)
        for candidate in range(8):
            expected = score(data, candidate, Fraction(exact))
            assert ranks.exact_score(candidate, target) == expected
            assert scores[candidate] == pytest.approx(float(expected), rel=1e-15)


def test_the_target_is_exact_for_any_number_of_rows() -> None:
    rng = np.random.default_rng()
    for _ in range(500):
        q = quantiles.nearest_place(float(rng.random()))
        rows = int(rng.integers(0, 2 ** int(rng.integers(1, 61))))
        target = quantiles.target_rank(q, np.int64(rows))
        assert int(target.whole) + Fraction(float(target.part)) == Fraction(q) * rows


def law(scores: list[float], scale: float) -> np.ndarray:
    """Return the law of the argmax of score + scale * exponential noise, by quadrature."""
    chosen = []
    for i, own_score in enumerate(scores):
        distances = [(own_score - other) / scale for j, other in enumerate(scores) if j != i]

        def density(z: float, distances: list[float] = distances) -> float:
            return math.exp(-z) * math.prod(max(0.0, -math.expm1(-(z + d))) for d in distances)

        chosen.append(integrate.quad(density, 0, 60, limit=400)[0])
    return np.array(chosen) / sum(chosen)


@pytest.mark.parametrize("q", sample_parameters([0.0, 0.25, 0.5, 0.9, 1.0], 1))
def test_the_quantile_has_the_law_of_permute_and_flip(q: float) -> None:
    data = (2, 3, 3, 9, 12)
    cells = np.bincount(data, minlength=16)
    draws = [
        quantiles.select_places(cells, [q], 1.0, None)[0]
        for _ in range(5_000 if alarms.LONG else 2_500)
    ]
    counts = np.bincount(draws, minlength=16)
    scale = 2 * max(q, 1 - q)
    scores = [float(score(data, cell, Fraction(q), 4 * scale, 16)) for cell in range(16)]
    alarms.check_counts(counts, law(scores, scale))


def test_rows_that_share_a_cell_but_no_value_do_not_blur_the_median() -> None:
    """With three rows a cell the middle one has the score 0 and the next -3, at a scale of 1.

    Its probability is above 1/(1 + 2 sum of exp(-3 k)) = 0.905. If ranks reached to the borders of
    cells, it would be 0.785, by `law`. In the first case at most 1,690 of 2,000 selections fall on
    it with probability below 1e-17, in the second case more with probability below 1e-11.
    """
    cells = np.full(21, 3)
    draws = [quantiles.select_places(cells, [0.5], 1.0, None)[0] for _ in range(2000)]
    assert draws.count(10) > 1690


def test_several_quantiles_never_cross() -> None:
    rng = np.random.default_rng()
    places = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    for data in (rng.random(30), np.full(100, 0.5), np.zeros(0), rng.integers(0, 2, 50)):
        for _ in range(10 if alarms.LONG else 3):
            released = statistics.quantiles(data, places, lower=0, upper=1, epsilon=0.5)
            assert released.value == sorted(released.value)
            assert len(released.value) == 9


def test_several_quantiles_are_right_where_noise_is_small() -> None:
    """On smooth data, on data with a value that half of the rows share, and in any order."""
    rng = np.random.default_rng()
    smooth = rng.normal(50, 10, 20_000)
    tied = np.concatenate([np.full(10_000, 30.0), rng.uniform(0, 100, 10_000)])
    places = [0.9, 0.1, 0.25, 0.5, 0.75]
    for data in (smooth, tied):
        released = statistics.quantiles(data, places, lower=0, upper=100, epsilon=1e4)
        expected = np.quantile(data, places)
        assert np.abs(np.array(released.value) - expected).max() < 0.5


def test_one_row_moves_all_parts_of_several_quantiles_together_by_one_row() -> None:
    """The changes of all parts add up to those of a single part."""
    rng = np.random.default_rng()
    for _ in range(100):
        counts = rng.integers(0, 4, 6)
        neighbour = counts.copy()
        neighbour[rng.integers(0, 6)] += 1
        cuts = np.sort(rng.integers(0, 6 * quantiles.PARTS, 3))
        moved = 0
        for first, last in zip([-1, *cuts], [*cuts, 6 * quantiles.PARTS], strict=True):
            ends = np.array([first, last])
            rows, neighbour_rows = (
                np.diff(quantiles.SpreadRows(c).below(ends)) for c in (counts, neighbour)
            )
            moved += abs(int(neighbour_rows[0]) - int(rows[0]))
        assert moved == 2 * quantiles.PARTS  # The units of one row.


def test_intervals_cover_with_their_confidence() -> None:
    """Fewer releases cover than the confidence says only as chance allows."""
    rng = np.random.default_rng()
    releases = 1_000 if alarms.LONG else 150
    data_sets = (rng.normal(50, 10, 1000), np.repeat(np.arange(0.0, 100, 5), 40))
    for data, q in sample_cases(product(data_sets, (0.1, 0.5)), 2):
        low = np.quantile(data, q, method="inverted_cdf")
        high = np.quantile(data, q, method="higher")
        inside = 0
        for _ in range(releases):
            released = statistics.quantile(
                data,
                q,
                lower=0,
                upper=100,
                epsilon=1.0,
                confidence=0.8,
                grid=0.125,
                interval=True,
            )
            least, most = released.interval
            inside += least <= high + 0.0625 and low - 0.0625 <= most
            assert least <= released.value <= most
        alarms.check_probability(stats.binomtest(inside, releases, 0.8, "less").pvalue)


def spare_scores(
    data: tuple[int, ...], cell: int, q: Fraction, needed: int, cells: int
) -> list[Fraction]:
    """Return the scores of the intervals around a cell, by the definition."""
    spare = []
    for width in quantiles.interval_widths(cells).tolist():
        first, last = cell - width, cell + width
        # The outer cells have all values beyond them, too.
        under = math.inf if first <= 0 else q * len(data) - sum(x < first for x in data)
        over = math.inf if last >= cells - 1 else sum(x <= last for x in data) - q * len(data)
        spare.append(min(under, over) - needed)
    finite = [Fraction(min(beyond, 2**61)) for beyond in spare]
    lacking = [max(Fraction(0), -beyond) for beyond in finite]
    surplus = [Fraction(0), *(max(Fraction(0), beyond) for beyond in finite[:-1])]
    return [-max(pair) for pair in zip(lacking, surplus, strict=True)]


def test_one_row_moves_the_score_of_an_interval_by_at_most_max_q_1_q_and_no_less() -> None:
    cells, needed = 5, 1
    for q in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1)):
        largest = Fraction(0)
        for size, cell in product(range(5 if alarms.LONG else 3), range(cells)):
            for data in combinations_with_replacement(range(cells), size):
                old_scores = spare_scores(data, cell, q, needed, cells)
                for row in range(cells):
                    scores = spare_scores((*data, row), cell, q, needed, cells)
                    moved = (abs(a - b) for a, b in zip(scores, old_scores, strict=True))
                    largest = max(largest, *moved)
        assert largest == max(q, 1 - q)


def test_the_scores_of_intervals_are_those_of_the_definition() -> None:
    rng = np.random.default_rng()
    for _ in range(200):
        cells = int(rng.integers(1, 40))
        data = tuple(rng.integers(0, cells, int(rng.integers(0, 30))).tolist())
        q = quantiles.nearest_place(float(rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])))
        cell, needed = int(rng.integers(cells)), int(rng.integers(0, 9))
        counts = np.bincount(np.array(data, dtype=int), minlength=cells)
        target = quantiles.target_rank(q, np.int64(len(data)))
        spare = quantiles.SpareRanks(counts, cell, target, needed)
        expected = spare_scores(data, cell, Fraction(q), needed, cells)
        exact = [spare.exact_score(index) for index in range(len(expected))]
        # Both have a score of about -2^61 where the next narrower interval has all cells.
        assert [max(e, Fraction(-(2**50))) for e in exact] == [
            max(e, Fraction(-(2**50))) for e in expected
        ]
        assert spare.scores() == pytest.approx([float(e) for e in exact], rel=1e-15)
        assert max(exact) == 0


def test_an_interval_is_about_as_wide_as_the_error_of_its_quantile() -> None:
    """At epsilon 1 an end is about 17 ranks off; a union over all candidates needed 60.

    The number is off by more than 6 ranks with a probability of 0.05, and 33 widths need
    2 log(32 / 0.1) = 11.5 ranks to spare. The next width is up to sqrt(2) times as wide.
    """
    data = np.arange(20_000.0)
    ranks = []
    for _ in range(60):
        released = statistics.median(data, lower=0.0, upper=20_000.0, epsilon=1.0, interval=True)
        low, high = released.interval
        ranks.append((high - low) / 2)
    assert np.median(ranks) < 30
    (query,) = [
        q for _, q in Request(1.0, [Question(["median"], "x", 0.0, 2e4)], intervals=True).prepare()
    ]
    assert query.expected_margin(20_000, 0.95) == pytest.approx(6 + 13, abs=1)


def test_the_expected_margin_holds_for_evenly_spread_values() -> None:
    data, releases = np.arange(2_000.0), 400 if alarms.LONG else 100
    for q in (0.5, 0.9):
        query = QuantileSelection("x", [q], 0.0, 2000.0, 0.5)
        margin = query.expected_margin(2_000, 0.8)
        values = [
            statistics.quantile(data, q, lower=0.0, upper=2_000.0, epsilon=0.5).value
            for _ in range(releases)
        ]
        # A rank is one unit here, and the quantile any number between two neighbours.
        inside = sum(abs(value - q * 2000) <= margin + 1 for value in values)
        alarms.check_probability(stats.binomtest(inside, releases, 0.8, "less").pvalue)
        assert margin < 4 * q / 0.5  # The scale is 2 q / epsilon, and log(1 / 0.2) is 1.6.


def test_an_interval_takes_half_of_epsilon() -> None:
    released = statistics.median([1.0, 2.0], lower=0, upper=3, epsilon=1.0, interval=True)
    assert released.parts == {"median": 0.5, "interval": 0.5}


def test_without_being_asked_for_an_interval_a_quantile_has_all_of_epsilon() -> None:
    released = statistics.median([1.0, 2.0], lower=0, upper=3, epsilon=1.0)
    assert (released.parts, released.interval, released.epsilon) == ({}, None, 1.0)
    (published,) = statistics.publish(
        pl.DataFrame({"x": [1.0, 2.0]}),
        statistics.Request(1.0, [statistics.Question(["median"], "x", 0, 3)]),
    )
    assert published.release.interval is None


def test_the_work_depends_on_the_number_of_candidates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One distinct value or 5,000, no rows or many: the same arrays, one selection each."""
    shapes: list[tuple[int, ...]] = []
    argmax = selection.noisy_argmax

    def record_shape(scores: np.ndarray, *rest: object) -> int:
        shapes.append(scores.shape)
        return argmax(scores, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(quantiles, "noisy_argmax", record_shape)
    for data in ([], [1.0], np.full(5000, 3.0), np.linspace(0, 10, 5000)):
        statistics.median(data, lower=0, upper=10, epsilon=1.0, interval=True)
    assert shapes == shapes[:2] * 4
    assert shapes[0][0] <= 2**16


def test_at_most_65536_candidates() -> None:
    with pytest.raises(ValueError, match="at most 65,536 candidates"):
        statistics.median([1.0], lower=0, upper=1, epsilon=1.0, grid=2.0**-17)


def test_quantiles_repeat_with_a_fixed_generator() -> None:
    data = np.arange(100.0)
    first, second = (
        statistics.quantiles(
            data, [0.25, 0.75], lower=0, upper=100, epsilon=1.0, rng=fixed_generator(bytes(32))
        )
        for _ in range(2)
    )
    assert first == second


def test_a_loss_in_rho_is_refused() -> None:
    """A selection is a pure mechanism: a rho used as epsilon would be a wrong loss."""
    with pytest.raises(ArgumentError, match="in epsilon, not in rho"):
        QuantileSelection("x", [0.5], 0, 1, Loss("gaussian", 8.0))


def test_quantiles_are_objects_in_python_and_text_in_toml() -> None:
    bounds: Any = {"column": "x", "lower": 0, "upper": 10}
    objects = Question([Quantile(0.9), Quantiles([0.1, np.float64(0.75)]), "median"], **bounds)
    texts = Question(["quantile:0.9", "quantiles:0.1,0.75", "median"], **bounds)
    assert objects == texts
    assert Request(1.0, [objects]).to_dict() == Request(1.0, [texts]).to_dict()
    places = [query.places for _, query in Request(1.0, [objects]).prepare()]  # type: ignore[union-attr]
    assert places == [[0.9], [0.1, 0.75], [0.5]]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5, unique_by=nearest_place))
def test_a_quantile_has_the_same_place_as_object_and_as_text(places: list[float]) -> None:
    """No digit of a float is lost in the text."""
    question = Question([Quantiles(places), Quantile(places[0])], "x", lower=0, upper=1)
    several, one = (query for _, query in Request(1.0, [question]).prepare())
    assert several.places == places  # type: ignore[union-attr]
    assert one.places == places[:1]  # type: ignore[union-attr]
