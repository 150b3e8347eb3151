"""Learned events: counted_numbers rows, ratios of cells, and curves through them."""

import math
import warnings
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, special, stats
from support.alarms import FALSE_ALARM, LONG

import dpnoise
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim
from dpnoise.auditing.learned.events import propose_events, tune_thresholds
from dpnoise.auditing.learned.expected_bounds import (
    Score,
    _is_normal,
    _pick_at_several_rates,
    _shrink_to_curve,
    propose_events_of_score,
)
from dpnoise.auditing.learned.steps import (
    Steps,
    _pool_counts,
    count_by_cell,
    edges_of,
    edges_of_codes,
    find_cells,
    fit_line,
    fit_logistic_curve,
    fit_rising_steps,
    fit_steps,
    fit_weights,
)
from dpnoise.auditing.learned.views import (
    DIFFERENCES,
    DISCRIMINANT,
    SIDES,
    WHOLE,
    Block,
    View,
    _mark_special,
    group_equal_rows,
    row_codes,
    views_of,
)
from dpnoise.auditing.tuning import TUNING

CERTAIN = 1 - FALSE_ALARM
rng = np.random.default_rng()


def test_an_event_of_no_pattern_is_not_proposed() -> None:
    """Patterns without a separate cell are in no list, however many of them were seen."""
    edges = np.array([3.0, np.nextafter(3.0, 4.0), 5.0, np.nextafter(5.0, 6.0), np.inf])
    step = Steps(edges, np.array([2.0, 0.5, 2.0, -1.0, 2.0, 2.0]))
    view = View("the pattern", WHOLE, lambda block: block.rows[:, 0], coded=True)
    seen = np.array([2.0, 0.5, -1.0]), np.array([8e4, 1e4, 1e4]), np.array([1e4, 1e4, 8e4])
    estimator = BoundEstimator(Claim("epsilon", 1.0), 100_000, 0.001)
    proposals = propose_events_of_score(Score((view,), (step,), (1.0,)), seen, estimator)
    events = [proposal.event.words for proposal in proposals]
    assert len(events) == 1
    assert events[0].endswith("of 1")


def counted_numbers(n: int) -> tuple[Any, Any, Any, Any, Any]:
    """Return numbers with their counts at two data sets, and all of them one by one."""
    x = np.sort(rng.choice(np.arange(2000.0), n, replace=False))
    count0, count1 = rng.integers(1, 9, n).astype(float), rng.integers(1, 9, n).astype(float)
    each = np.concatenate([np.repeat(x, count0.astype(int)), np.repeat(x, count1.astype(int))])
    at0 = np.repeat([1.0, 0.0], [int(count0.sum()), int(count1.sum())])
    return x, count0, count1, each, at0


@pytest.mark.parametrize("n", [3, 200, 1500])
def test_equal_rows_are_learned_from_once_with_how_often_they_were_seen(n: int) -> None:
    x, count0, count1, each, at0 = counted_numbers(n)
    ones = np.ones(len(each))
    for cells in (16, 64):
        shares = np.arange(1, cells) / cells
        (edges,), (same,) = edges_of(x, count0 + count1, shares), edges_of(each, ones, shares)
        assert edges.tolist() == same.tolist()
        for learn in (fit_steps, fit_rising_steps):
            once = learn(edges, *count_by_cell(edges, find_cells(edges, x), count0, count1))
            one_by_one = learn(edges, *count_by_cell(edges, find_cells(edges, each), at0, 1 - at0))
            assert np.allclose(once.ratios, one_by_one.ratios)
    assert edges_of_codes(x, count0 + count1).tolist() == edges_of_codes(each, ones).tolist()
    features = np.column_stack([x / 1000, np.sin(x)])
    each_features = np.column_stack([each / 1000, np.sin(each)])
    fitted = fit_weights(features, count0, count1)
    assert np.allclose(fitted, fit_weights(each_features, at0, 1 - at0))


@pytest.mark.parametrize("parts", [1, 4, 20])
def test_weights_are_where_the_likelihood_with_its_penalty_is_highest(parts: int) -> None:
    x = rng.normal(size=(3_000, parts)) + rng.normal(size=parts)
    count0, count1 = rng.integers(0, 9, (2, len(x))).astype(np.float64)
    total, fitted = count0 + count1, fit_weights(x, count0, count1)
    columns = [x, np.ones((len(x), 1))]
    spread = [np.cov(column, aweights=total, ddof=0) for x in columns for column in x.T]
    penalty = 1e-3 * total.sum() * np.mean(spread)

    def minus_log(w: Any) -> Any:
        z = np.hstack(columns) @ w
        return count0 @ np.logaddexp(0, -z) + count1 @ np.logaddexp(0, z) + penalty * w @ w / 2

    best = optimize.minimize(minus_log, np.zeros(parts + 1), options={"gtol": 1e-3}).x
    assert np.allclose(fitted, best[:-1], atol=1e-4)


def test_a_number_is_in_the_cell_that_a_search_by_halves_finds() -> None:
    odd = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 5e-324, -5e-324, 1e300, -1000.0]
    for scale in (1e-300, 1.0, 2.0**60):
        numbers = scale * rng.laplace(size=2000)
        for points in (numbers[:1], numbers[:700], np.floor(numbers), np.array(odd[:2] + odd[4:])):
            ends = np.nextafter(points[::2], np.inf)  # Cells of single numbers.
            for edges in (np.append(points, np.inf), np.concatenate([points, ends, [np.inf]])):
                check_cells(np.unique(edges), np.append(odd, numbers))


def check_cells(edges: NDArray[np.float64], numbers: NDArray[np.float64]) -> None:
    near = np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf)
    x = np.concatenate([numbers, edges, *near])
    assert (find_cells(edges, x) == np.searchsorted(edges, x, side="right")).all()


@pytest.mark.parametrize("spread", [1, 32, 1 << 20])
def test_a_code_is_in_its_own_cell_and_others_are_between(spread: int) -> None:
    first = rng.integers(0, 1 << 52, 300)
    codes = np.unique(first[:, None] + rng.integers(0, spread, (300, 10))).astype(np.float64)
    learned = rng.choice(codes, len(codes) // 2, replace=False)
    edges = edges_of_codes(learned, np.ones(len(learned)))
    check_cells(edges, codes)
    assert (find_cells(edges, learned) % 2 == 1).all()


@pytest.mark.parametrize(
    "values", [[3], [0, 1], [-1, 0, 1], [0, 1, 2, 7], [-(1 << 15), (1 << 15) - 1]]
)
@pytest.mark.parametrize("learn", [fit_steps, fit_rising_steps])
def test_small_integers_get_the_ratios_of_equal_floats(
    learn: Callable[..., Steps], values: list[int]
) -> None:
    x, ones = rng.choice(values, 400).astype(np.float64), np.ones(400)
    (edges,) = edges_of(x, ones, np.array([0.5]))
    counts = rng.poisson(20.0, (2, len(edges) + 1)).astype(np.float64)
    counts *= count_by_cell(edges, find_cells(edges, x), ones, ones)[0] > 0
    step, integers = learn(edges, *counts), np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    before = rng.normal(size=1 << 16)
    added = before.copy()
    step.add_of_integers(integers, 0.7, added)
    assert added.tolist() == (before + 0.7 * step.ratios[find_cells(edges, integers)]).tolist()


@pytest.mark.parametrize("values", [5, 100_000])
def test_equal_rows_are_in_one_group_however_many_groups_there_are(values: int) -> None:
    rows = rng.integers(0, values, (60_000, 2)) % [values, 3] + 0.5
    first, same = group_equal_rows(rows)
    assert (rows[first][same] == rows).all()
    assert len(first) == len(np.unique(rows, axis=0))


@pytest.mark.parametrize("edges", [[0.0], [5e-324, 1e-323], [-1e300, 1e300], [-np.inf, 7.0]])
def test_cells_of_few_edges_are_found(edges: list[float]) -> None:
    check_cells(np.array([*edges, np.inf]), np.array([0.0, -0.0, np.nan, 1e-323, -8.0, 1e301]))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [np.float64, np.int16])
def test_special_numbers_are_marked_by_their_indices(kind: type) -> None:
    points = np.array([-1000.0, 0.0, 3.0])
    column: NDArray[Any] = rng.choice([-1000, 0, 1, 2, 3], 500).astype(kind)
    if kind is np.float64:
        column[rng.random(500) < 0.2] = np.nan
        column[rng.random(500) < 0.1] = -0.0
    mark = {-1000.0: 1, 0.0: 2, 3.0: 3}
    expected = [-1 if np.isnan(x) else mark.get(x, 0) for x in column.tolist()]
    assert _mark_special(column, points).tolist() == expected


def test_a_number_that_several_views_share_is_computed_once() -> None:
    asked = []

    def take(block: Block) -> NDArray[np.float64]:
        asked.append(block)
        return np.zeros(len(block.rows))

    block = Block(np.zeros((3, 1)))
    assert block.of(take) is block.of(take)
    assert asked == [block]
    views = views_of(mixed_rows(5_000), ["its length", *"abcxyz"])
    one_number = [view.take for view in views if view.words == "a"]
    assert len(one_number) == 2
    assert len(set(one_number)) == 1


def test_no_number_counts_twice_in_a_sum_and_sums_of_several_kinds_cost_more() -> None:
    estimator = BoundEstimator(Claim("epsilon", 0.1), 1_000_000, 0.1, chance=3.0)
    rows = [np.column_stack([np.full(40_000, 3.0), rng.laplace(size=(40_000, 3)) + mean])
            for mean in (0.0, 0.3)]  # fmt: skip
    events = propose_events(rows[0], rows[1], ["its length", *"abc"], estimator)
    for event in events:
        kinds = {view.kind for view in event.score.views}
        assert len({view.take for view in event.score.views}) == len(event.score.views)
        costs = [4 if step.free else 1 for step in event.score.steps]
        costs = [2] if kinds == {DISCRIMINANT} else costs
        complexity = (2 if len(kinds) > 1 else 1) * sum(costs)
        # An event of a free ratio that happens often costs no more than its text is long.
        shortest = complexity if event.rare else min(complexity, event.length)
        assert event.cost == pytest.approx(0.01 * np.clip(event.cost / 0.01, shortest, complexity))
    assert {1, 2} <= {len({view.kind for view in event.score.views}) for event in events}


def test_the_events_next_to_the_best_are_the_best_rarer_and_likelier_ones() -> None:
    hits = np.sort(rng.integers(0, 10_000, 60)).astype(np.float64)
    expected = rng.normal(size=60)
    expected[rng.random(60) < 0.2] = -np.inf
    rarer, likelier = 4, 3
    indices = _pick_at_several_rates(expected, hits, rarer, likelier)
    best = indices[0]
    assert expected[best] == expected.max()
    down = [index for index in indices if hits[index] < hits[best]]
    up = [index for index in indices if hits[index] > hits[best]]
    assert indices == [best, *down, *up]
    possible = hits[expected > -np.inf]
    assert len(down) == rarer or (possible >= TUNING.event_step * hits[[best, *down][-1]]).all()
    assert len(up) == likelier or (possible <= TUNING.event_step**-1 * hits[[best, *up][-1]]).all()
    for last, index in pairwise([best, *down]):
        assert expected[index] == expected[hits < TUNING.event_step * hits[last]].max()
    for last, index in pairwise([best, *up]):
        assert expected[index] == expected[hits > TUNING.event_step**-1 * hits[last]].max()
    assert _pick_at_several_rates(expected, hits, 0, 0) == [best]
    assert _pick_at_several_rates(np.full(60, -np.inf), hits, rarer, likelier) == []


def test_an_event_that_several_scores_have_is_proposed_once() -> None:
    rng = np.random.default_rng(5)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    rows0, rows1 = (
        np.eye(4)[rng.choice(4, 20_000, p=probabilities)]
        for probabilities in (shares, shares[::-1])
    )
    estimator = BoundEstimator(Claim("epsilon", 1.0), 100_000, 0.001)
    learned = propose_events(rows0, rows1, list("abcd"), estimator)
    tuned = tune_thresholds([event.score for event in learned], rows0, rows1, estimator)
    for events in (learned, tuned):
        counts = [(event.swapped, event.hits) for event in events if not event.rare]
        assert len(counts) == len(set(counts)) > 3
        expected_bounds = [event.expected_bound for event in events]
        assert expected_bounds == sorted(expected_bounds, reverse=True)


def test_the_best_threshold_may_lie_between_two_distant_data_sets() -> None:
    """Half of all releases are below 3: quantiles of both data sets together leave out the gap."""
    n, estimator = 20_000, BoundEstimator(Claim("mu", 1.0), 60_000, 0.001)
    rows0, rows1 = (rng.normal(move, 1.0, (n, 1)) for move in (0.0, 6.0))
    edges = np.append(np.linspace(-6.0, 12.0, 400), np.inf)
    ratios = np.append(18.0 - 6.0 * edges[:-1], [-54.0, 0.0])
    view = views_of(np.concatenate([rows0, rows1]), ["a"])[0]
    score = Score((view,), (Steps(edges, ratios),), (1.0,))
    best = tune_thresholds([score], rows0, rows1, estimator)[0]
    assert 2.2 < (18.0 - best.cut) / 6.0 < 3.8


def test_a_score_is_normal_if_its_moments_are_those_of_normal_laws_of_one_variance() -> None:
    levels = (np.arange(20_000) + 0.5) / 20_000
    normal, laplace = stats.norm.ppf(levels), stats.laplace.ppf(levels) / math.sqrt(2)
    ones, pairs = np.repeat(np.eye(2), 20_000, axis=1), product((normal, laplace), (1, 2))
    for x, scale in pairs:
        scores = np.concatenate([normal, scale * x + 2.0])
        assert _is_normal(scores, *ones) == (x is normal and scale == 1)
        assert not _is_normal(0 * scores, *ones)


def test_codes_of_rows_do_not_depend_on_how_many_there_are() -> None:
    """Several threads compute them, in blocks."""
    rows = rng.integers(0, 3, (3 * TUNING.block_rows + 7, 4)).astype(np.float64)
    codes = row_codes(rows)
    assert codes.tolist() == np.concatenate([row_codes(rows[:100]), row_codes(rows[100:])]).tolist()
    assert len(row_codes(rows[:0])) == 0


@pytest.mark.parametrize(("skewness", "is_normal"), [(0.1, True), (0.3, False)])
def test_a_score_with_the_skewness_of_a_sum_of_many_parts_is_nearly_normal(
    skewness: float, *, is_normal: bool
) -> None:
    """A gamma law has it. In 20,000 scores 0.07 would be significant."""
    levels = (np.arange(20_000) + 0.5) / 20_000
    x = stats.gamma.ppf(levels, 4 / skewness**2) * skewness / 2
    ones = np.repeat(np.eye(2), 20_000, axis=1)
    assert _is_normal(np.concatenate([-x, 2.0 - x]), *ones) == is_normal


def test_where_a_score_is_normal_lucky_hits_promise_hardly_more_than_unlucky_ones() -> None:
    """Of 20,000 releases about 270 and 26 are expected; elsewhere so few hits have no curve."""
    estimator = BoundEstimator(Claim("epsilon", 1.0, 1e-5), 60_000, 0.001)
    shares = np.array([[0.0135], [0.0013]])
    lucky, unlucky = (
        float(_shrink_to_curve(np.array(hits), (shares, 0.03, True), 20_000, estimator)[0])
        for hits in ([[285.0], [16.0]], [[255.0], [36.0]])
    )
    assert 0 < unlucky < lucky < 1.1 * unlucky
    hits = np.array([[285.0], [16.0]])
    assert _shrink_to_curve(hits, (shares, 0.03, False), 20_000, estimator)[0] == -np.inf


def test_of_events_with_the_same_hits_the_smallest_is_chosen() -> None:
    """A cell that was never seen, here the one between, is in neither event."""
    estimator = BoundEstimator(Claim("epsilon", 0.1), 1_000_000, 0.05)
    view = View("y", WHOLE, lambda block: block.rows[:, 0])
    score = Score((view,), (Steps(np.array([0.0, 1.0]), np.array([-2.0, 0.0, 2.0])),), (1.0,))
    seen = np.array([-2.0, 0.0, 2.0]), np.array([100.0, 0.0, 900.0]), np.array([900.0, 0.0, 100.0])
    events = propose_events_of_score(score, seen, estimator)
    assert {event.swapped: event.cut for event in events} == {False: 0.0, True: 0.0}
    assert [event.holds(seen[0]).tolist().count(True) for event in events] == [1, 1]


def test_likelier_events_are_compared_as_well_where_the_best_is_one_of_many() -> None:
    """In few releases a rare event may look best by chance; likelier ones must be compared too."""
    estimator, n = BoundEstimator(Claim("epsilon", 0.1), 1_000_000, 0.05), 20_000
    rows0, rows1 = (rng.laplace(move, 10.0, (n, 3)) for move in (0.0, 2.0))
    scores = {
        id(event.score): event.score
        for event in propose_events(rows0, rows1, ["a", "b", "c"], estimator)
    }
    values = [np.unique(score(np.concatenate([rows0, rows1]))) for score in scores.values()]
    exceed = [len(of_score) > TUNING.thresholds for of_score in values]
    assert any(exceed)
    assert not all(exceed)
    for score, is_one_of_many in zip(scores.values(), exceed, strict=True):
        for swapped in (False, True):
            events = tune_thresholds([score], rows0, rows1, estimator)
            best, *others = [event for event in events if event.swapped == swapped]
            likelier = [event for event in others if event.hits[0] > best.hits[0]]
            if is_one_of_many:
                assert likelier or best.hits[0] > TUNING.event_step**2 * n
            else:
                assert len(others) <= TUNING.rarer_events


def test_pooled_ratios_are_those_of_the_slow_rule() -> None:
    def pool_slowly(c0: list[float], c1: list[float]) -> list[float]:
        blocks: list[list[int]] = []
        for i in range(len(c0)):
            blocks.append([i])
            while len(blocks) > 1:
                (a0, a1), (b0, b1) = (
                    (sum(c0[j] for j in block), sum(c1[j] for j in block)) for block in blocks[-2:]
                )
                if a0 * b1 < b0 * a1:
                    break
                blocks[-2:] = [blocks[-2] + blocks[-1]]
        return [sum(c0[j] for j in block) for block in blocks for _ in block]

    for n in (1, 2, 40):
        c0, c1 = rng.integers(1, 9, n).astype(float), rng.integers(1, 9, n).astype(float)
        assert _pool_counts(c0, c1)[0].tolist() == pool_slowly(c0.tolist(), c1.tolist())


def test_ratios_of_one_pattern_only_rise_or_only_fall_with_the_size_of_the_rest() -> None:
    codes = np.concatenate([np.arange(24.0), 1000 + np.arange(24.0)])
    rising = 1e6 * (1 + np.arange(24) / 24)
    rising[[5, 6]] = rising[[6, 5]]  # Chance may reverse two neighbours.
    count0, count1 = np.concatenate([rising, rising[::-1]]), np.full(48, 1e6)
    edges = edges_of_codes(codes, count0 + count1)
    cells = find_cells(edges, codes)
    seen = count_by_cell(edges, cells, count0, count1)
    learned = fit_steps(edges, *seen, ordered_span=24).ratios[cells].reshape(2, 24)
    assert (np.diff(learned[0]) >= 0).all()
    assert (np.diff(learned[1]) <= 0).all()
    assert np.flatnonzero(np.diff(learned[0]) == 0).tolist() == [5]


@pytest.mark.parametrize("slope", [0.7, 14.0])
def test_a_logistic_curve_is_found_in_counts_that_lie_on_one(slope: float) -> None:
    score = np.linspace(-2, 3, 40)
    share = special.expit(0.3 + slope * score)
    seen = np.full(40, 1e6)
    assert np.allclose(fit_logistic_curve(score, seen * share, seen * (1 - share)), share)
    assert np.isfinite(fit_logistic_curve(score, seen, np.zeros(40))).all()


def indices(ratio: float, n: int) -> NDArray[np.float64]:
    """One of 20 numbers, 7 with probability 0.02 times the ratio."""
    p = np.where(np.arange(20) == 7, 0.02 * ratio, (1 - 0.02 * ratio) / 19)
    return rng.choice(20, size=n, p=p).astype(np.float64)


def test_the_one_informative_number_in_fifty_is_found() -> None:
    """It has 3,000 and 1,800 hits where it is chosen: 17 standard errors from equal.

    Its expected bound is 0.5, within six standard errors of 0.03 (false alarms: 2e-9). At most a
    tenth of it is attributed to chance and to its cost.
    """
    rows = [
        np.column_stack([np.ones(600_000), indices(ratio, 600_000)])
        for ratio in (1.0, math.exp(-0.5))
    ]
    estimator = BoundEstimator(Claim("epsilon", 0.1), 1_000_000, 0.1, chance=3.0)
    best = propose_events(rows[0], rows[1], ["its length", "y"], estimator)[0]
    assert best.event.words == "y is 7"
    assert 0.9 * (0.5 - 6 * 0.03) < best.expected_bound < 0.5 + 6 * 0.03


def test_an_event_is_the_same_by_its_score_and_in_rows_of_integers() -> None:
    """The words of one view are ranges, of several a sum: both agree with the score."""
    n, parts = 20_000, 8
    estimator = BoundEstimator(Claim("epsilon", 0.1), n, 0.1)
    bits = [rng.random((n, parts)) < p for p in (0.5, np.linspace(0.4, 0.6, parts))]
    noisy = [rng.normal(size=(n, parts)) + mean for mean in (0.0, 0.5)]
    for seen in noisy:
        seen[rng.random((n, parts)) < 0.1] = np.nan
    for outputs, dtype in ((bits, np.int16), (noisy, np.float64)):
        rows: list[Any] = [
            np.column_stack([np.full(n, parts), values]).astype(dtype) for values in outputs
        ]
        learned = propose_events(rows[0], rows[1], ["its length", *"abcdefgh"], estimator)
        assert {len(proposal.score.views) > 1 for proposal in learned} == {False, True}
        for proposal in learned:
            flags = proposal.event.holds(rows[0])
            assert 0 <= flags.sum() <= n
            # The exact score decides outputs such as ones of missing parts only, never seen before.
            assert np.array_equal(flags, proposal.holds(proposal.exact_score(rows[0])))
            assert np.array_equal(flags, proposal.event.holds(rows[0].astype(np.float64)))


def test_the_steps_of_sums_that_were_released_are_learned_together() -> None:
    """Each of ten steps changes by 0.5, which is some 20 standard errors from 0."""
    n, parts = 30_000, 10
    noise = [np.rint(rng.laplace(scale=2048, size=(n, parts))) / 1024 for _ in range(2)]
    sums = [(steps_of + up).cumsum(axis=1) for up, steps_of in enumerate(noise)]
    rows = [np.column_stack([np.full(n, float(parts)), values]) for values in sums]
    estimator = BoundEstimator(Claim("epsilon", 0.1), 1_000_000, 0.1, chance=3.0)
    events = propose_events(rows[0], rows[1], ["its length", *"abcdefghij"], estimator)
    assert [DIFFERENCES] * parts in [[view.kind for view in event.score.views] for event in events]


def mixed_rows(n: int, parts: int = 3) -> NDArray[np.float64]:
    """Rows of numbers, some of them -1000 or missing, and then of bits."""
    numbers = rng.normal(size=(n, parts))
    numbers[rng.random((n, parts)) < 0.3] = -1000.0
    numbers[rng.random((n, parts)) < 0.2] = np.nan
    return np.column_stack([np.full(n, 2.0 * parts), numbers, rng.random((n, parts)) < 0.5])


def test_views_of_all_parts_are_what_their_words_say() -> None:
    rows = mixed_rows(5_000)
    views = {view.words: view for view in views_of(rows, ["its length", *"abcxyz"])}
    parts = rows[:, 1:]
    taken = {words: view.take(Block(rows)) for words, view in views.items()}
    assert (taken["the largest part"] == np.nanmax(parts, axis=1)).all()
    assert (taken["the smallest part"] == np.nanmin(parts, axis=1)).all()
    assert np.allclose(taken["the sum of the parts"], np.nansum(parts, axis=1))
    most = np.where(np.isnan(parts), -np.inf, parts)
    assert (taken["the place of the largest part"] == most.argmax(axis=1)).all()
    # Rows have equal codes if and only if the same parts have the same special numbers.
    plain = np.where(np.isnan(parts[:, :3]), 2.0, parts[:, :3] == -1000)
    for words, columns in (
        ("the pattern of the parts", np.column_stack([plain, parts[:, 3:]])),
        ("the pattern of parts that are numbers", plain),
        ("the pattern of parts that are not", parts[:, 3:]),
    ):
        _, same = np.unique(columns, axis=0, return_inverse=True)
        _, code = np.unique(taken[words], return_inverse=True)
        pairs = len(np.unique(np.column_stack([same, code]), axis=0))
        assert pairs == len(np.unique(same)) == len(np.unique(code))
    joint = taken["the pattern of parts that are numbers, and how small the least of the others is"]
    least = np.where(np.isnan(parts[:, :3]) | (plain == 1), np.inf, parts[:, :3]).min(axis=1)
    plain_codes = same_codes(plain)
    both = np.unique(np.column_stack([plain_codes, joint]), axis=0)
    assert len(both) == len(np.unique(joint))
    for code in np.unique(joint):
        inside = np.sort(least[joint == code])
        others = least[(joint != code) & (plain_codes == plain_codes[joint == code][0])]
        assert not ((others > inside[0]) & (others < inside[-1])).any()


def same_codes(columns: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a number for each row, the same for equal ones."""
    return np.asarray(np.unique(columns, axis=0, return_inverse=True)[1]).ravel()


def test_numbers_and_bits_of_two_mechanisms_are_summed_up() -> None:
    estimator = BoundEstimator(Claim("epsilon", 0.1), 1_000_000, 0.1, chance=3.0)
    rows = [mixed_rows(40_000) for _ in range(2)]
    # Numbers and bits both distinguish the data sets; otherwise chance decides which are summed.
    rows[1][:, 1:4] += 0.2 * (rows[1][:, 1:4] > -1000)
    rows[1][:, 4:] = rng.random((40_000, 3)) < 0.55
    events = propose_events(rows[0], rows[1], ["its length", *"abcxyz"], estimator)
    assert set(SIDES) in [{view.kind for view in event.score.views} for event in events]


def test_views_of_the_least_numbers_are_numbers_without_a_warning() -> None:
    rows = rng.laplace(scale=1000.0, size=(2_000, 3)) * 5e-324
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sums = [view for view in views_of(rows, ["a", "b", "c"]) if "sum" in view.words]
        computed = [Block(rows).of(view.take) for view in sums]
    assert len({view.words for view in sums}) >= 2
    assert all(np.isfinite(values).all() and len(np.unique(values)) > 100 for values in computed)


def test_outputs_whose_columns_lie_apart_in_memory_are_the_same_to_an_audit() -> None:
    def answer_in_order(bit: int, n: int, order: str) -> Any:
        flips = rng.random((n, 3)) < np.array([0.5, 0.5, 0.2])
        return np.asarray(flips ^ np.array([0, 0, bit], dtype=bool), order=order)  # type: ignore[call-overload]

    for order in ("C", "F"):
        report = dpnoise.audit(
            lambda bit, n, order=order: answer_in_order(bit, n, order),
            1.0,
            neighbours=[(0, 1)],
            budget=20_000,
            confidence=CERTAIN,
        )
        assert report.broken
        assert report.epsilon_lower < math.log(4)


def test_boosted_trees_find_what_no_view_shows() -> None:
    """Two uniforms in the same half, or not: a single one and its bits reveal nothing.

    They are between 3/8 and 5/8. They are the largest and the smallest part of twelve, which would
    reveal the bit, with probability 4^-10.
    """
    pytest.importorskip("sklearn")

    def same_half(bit: int, n: int) -> Any:
        x = rng.integers(2**32, size=(n, 12)) / 2**32  # So short that the sum below is exact.
        x[:, 7] = np.where((rng.random(n) < 0.3) ^ bool(bit), x[:, 2], (x[:, 2] + 0.5) % 1)
        x[:, [2, 7]] = 3 / 8 + x[:, [2, 7]] / 4
        return x

    report = dpnoise.audit(
        same_half,
        0.1,
        neighbours=[(0, 1)],
        budget=60_000 if LONG else 30_000,
        boosting=True,
        confidence=CERTAIN,
    )
    assert report.broken
    assert "boosted trees" in report.findings[0].event
    assert report.epsilon_lower < math.log(0.7 / 0.3)


def test_a_line_has_the_ratio_of_two_normal_laws_also_beyond_what_was_seen() -> None:
    """Laws of variance 1 around 0 and 2 have the log ratio 2 - 2 x; within 10 % of the slope."""
    samples = [rng.normal(bit * 2, 1.0, 20_000) for bit in (0, 1)]
    edges = np.append(np.linspace(-20.0, 20.0, 401), np.inf)
    ones = np.ones(20_000)
    c0, c1 = (count_by_cell(edges, find_cells(edges, x), ones, ones)[0] for x in samples)
    ratios = fit_line(edges, c0, c1).ratios
    middles = (edges[:-2] + edges[1:-1]) / 2
    assert np.abs(ratios[1:-2] - (2 - 2 * middles)).max() < 0.1 * 2 * 20 + 0.2
    assert ratios[-1] == 0  # Of a missing number.


def test_a_likely_event_is_discounted_for_its_unlikely_side_only() -> None:
    """Of 20,000 releases it happened in all but 124 and in 124: half a percent of mu is unsure."""
    hits = np.array([19_876.0]), np.array([124.0])
    bold, cautious = (
        BoundEstimator(Claim("mu", 1.0), 60_000, 0.001, chance=0.0, caution=caution)
        for caution in (0.0, 2.5)
    )
    bounds = [float(e.expected_bounds(*hits, 20_000)[0]) for e in (bold, cautious)]
    assert 0.97 * bounds[0] < bounds[1] < bounds[0]
