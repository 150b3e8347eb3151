"""How an audit of any mechanism chooses the event that it counts, and on which releases."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpnoise.auditing import event_choice
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim
from dpnoise.auditing.learned.events import propose_events
from dpnoise.auditing.learned.expected_bounds import Proposal, evaluate
from dpnoise.auditing.learned.steps import find_cells
from dpnoise.auditing.learned.views import Block
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.tuning import Sizes

Floats = NDArray[np.float64]

PAIR, OTHER = (0, 1), (0, 2)
rng = np.random.default_rng()


def proposal(
    hits: tuple[float, float] = (0.0, 0.0),
    *,
    swapped: bool = False,
    is_leaks: bool = False,
    is_normal: bool = False,
) -> Proposal:
    """Return an event with nothing but its counts, and whether it is of rare leaks."""
    score: Any = SimpleNamespace(is_leaks=is_leaks)
    return Proposal(score, 0.0, swapped, 0.0, hits, (0.0, 0.0), 0.0, 0.0, is_normal=is_normal)


@pytest.mark.parametrize("many_duplicates", [False, True])
@pytest.mark.parametrize(("pairs", "data_sets"), [(1, 2), (2, 3), (3, 4), (12, 13)])
def test_a_budget_is_not_exceeded_and_the_last_count_has_the_largest_part(
    pairs: int, data_sets: int, *, many_duplicates: bool
) -> None:
    for budget in np.geomspace(1_000, 1e9, 40).astype(int).tolist():
        sizes = Sizes.of(budget, pairs, data_sets, many_duplicates=many_duplicates)
        learned = 2 * min(pairs, 2)
        steps = [
            data_sets * sizes.screening,
            learned * sizes.learning,
            learned * (sizes.tuning + sizes.comparing),
            2 * sizes.final,
        ]
        assert budget - 2 <= sum(steps) <= budget
        assert max(steps) == steps[-1] >= 0.4 * budget - 2
        assert sizes.screening_train <= sizes.screening / 3
        # If there are many releases, events are compared in more than thresholds are chosen on.
        assert sizes.tuning + sizes.comparing < 300_000 or sizes.comparing >= sizes.tuning
        # The closest events differ by little: a fifth of a large budget distinguishes them.
        assert learned * (sizes.tuning + sizes.comparing) >= min(0.2 * budget, learned * 7e6) - 4


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("dtype", "size"), [(np.int8, 2), (np.bool_, 2), (np.int64, 8), (float, 8)]
)
def test_calls_ask_for_as_many_bytes_of_rows_whatever_the_outputs_are(
    dtype: Any, size: int
) -> None:
    """Smaller numbers have smaller rows; one call asks for 16 MiB."""
    asked: list[int] = []

    def mechanism(_data: int, n: int) -> Any:
        asked.append(n)
        return np.zeros((n, 3), dtype=dtype)

    source = OutputSource(mechanism, 60.0, one_by_one=False)
    source.prepare([(0, 1)])
    rows = source.rows(0, 5_000_000)
    assert rows.dtype.itemsize == size
    assert max(asked) == source.chunk == 2**24 // (4 * size)


def test_scores_of_shared_views_equal_the_scores_evaluated_singly() -> None:
    n = 5_000
    outputs = [rng.normal(size=(n, 4)) + mean for mean in (0.0, 0.5)]
    for parts in outputs:
        parts[rng.random((n, 4)) < 0.1] = np.nan
    rows = [np.column_stack([np.full(n, 4.0), parts]) for parts in outputs]
    estimator = BoundEstimator(Claim("epsilon", 0.1), n, 0.1)
    events = propose_events(rows[0], rows[1], ["its length", *"abcd"], estimator)
    scores = list({id(event.score): event.score for event in events}.values())
    assert len(scores) > len({tuple(map(id, score.views)) for score in scores}) > 3
    for score, together in zip(scores, evaluate(scores, rows[0]), strict=True):
        total = np.zeros(n)
        for view, step, weight in zip(score.views, score.steps, score.weights, strict=True):
            x = view.take(Block(rows[0])).astype(np.float64)
            total += weight * step.ratios[find_cells(step.edges, x)]
        assert together.tolist() == total.tolist()
        assert score(rows[0]).tolist() == total.tolist()


def test_of_events_that_happen_as_often_the_first_is_compared_further() -> None:
    """All rare events are kept: a few hits do not show that two events are equal."""
    kinds = {
        "first": (proposal(), PAIR, (1000.0, 900.0)),
        "like the first": (proposal(), PAIR, (1050.0, 930.0)),
        "at the other": (proposal(swapped=True), PAIR, (1000.0, 900.0)),
        "of another pair": (proposal(), OTHER, (1000.0, 900.0)),
        "less at the second": (proposal(), PAIR, (1000.0, 700.0)),
        "rare": (proposal(), PAIR, (31.0, 0.0)),
        "as rare": (proposal(), PAIR, (30.0, 0.0)),
        "like the last": (proposal(), PAIR, (1010.0, 720.0)),
    }
    events = [(event, pair) for event, pair, _ in kinds.values()]
    counts = np.array([count for *_, count in kinds.values()])
    order = event_choice._drop_equal_events(range(len(kinds)), events, counts)
    assert [list(kinds)[i] for i in order] == [
        name for name in kinds if not name.startswith("like")
    ]


def test_a_rare_event_that_the_first_fresh_releases_miss_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has 150 hits where its threshold was chosen, and 7 in 7,500 fresh releases.

    A wide event certifies 1, the rare one up to 4; one that never happens has no expected bound.
    """
    sizes = Sizes(0, 0, 150_000, 125_000, 75_000, 700_000)
    rates = {"wide": (0.5, 0.18), "rare": (1e-3, 0.0), "never": (0.0, 0.0)}
    events = {
        name: proposal((sizes.tuning * p, sizes.tuning * q)) for name, (p, q) in rates.items()
    }
    rounds: list[int] = []

    def tally(_source: Any, proposed: Any, n: int) -> Floats:
        rounds.append(n)
        hits = {id(events[name]): n * np.array(rate) for name, rate in rates.items()}
        if len(rounds) == 1:
            hits[id(events["rare"])] *= 0
        return np.array([hits[id(event)] for event, _ in proposed])

    monkeypatch.setattr(event_choice, "tally_events", tally)
    estimator = BoundEstimator(Claim("epsilon", 1.0), sizes.final, 0.001, chance=3.0)
    source: Any = SimpleNamespace()
    best, counts, trials = event_choice._compare_events(
        source, [(event, PAIR) for event in events.values()], sizes, estimator
    )
    assert len(rounds) > 1
    assert rounds[0] < 0.2 * sizes.comparing
    assert best[0][0] is events["rare"]
    assert counts[0, 0] == pytest.approx(1e-3 * (trials - rounds[0]))


def test_an_event_that_does_better_in_fresh_releases_than_where_it_was_chosen_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All releases together then promise less than the fresh ones."""
    sizes = Sizes(0, 0, 150_000, 125_000, 75_000, 700_000)
    event = proposal((0.2 * sizes.tuning, 0.2 * sizes.tuning))
    fresh = lambda _, proposed, n: n * np.array([[0.5, 0.18]] * len(proposed))  # noqa: E731
    monkeypatch.setattr(event_choice, "tally_events", fresh)
    estimator = BoundEstimator(Claim("epsilon", 1.0), sizes.final, 0.001, chance=3.0)
    source: Any = SimpleNamespace()
    best, *_ = event_choice._compare_events(source, [(event, PAIR)], sizes, estimator)
    assert best == [(event, PAIR)]


def test_rare_leaks_are_counted_next_to_the_best_event_if_they_may_be_better() -> None:
    """Of 100,000 releases, 15 against none allow for 2; the other event shows a ratio of e."""
    estimator = BoundEstimator(Claim("epsilon", 1.0), 600_000, 0.001, chance=3.0)
    usual = proposal((27_180, 10_000))
    for hits, expected in (((15.0, 0.0), [1]), ((15.0, 9.0), [])):
        events = [usual, proposal(hits, is_leaks=True)]
        counts = np.array([event.hits for event in events])
        assert event_choice._best_leaks(events, counts, 100_000, estimator) == expected


@pytest.mark.parametrize(
    ("leaks", "is_normal", "clear"),
    [
        ((40.0, 0.0), False, True),
        ((6.0, 0.0), False, False),
        ((6.0, 0.0), True, False),
        ((3.0, 3.0), False, False),
        ((3.0, 3.0), True, True),
    ],
)
def test_an_event_is_clear_if_it_is_of_leaks_or_normal_and_the_others_cannot_be_better(
    leaks: tuple[float, float], *, is_normal: bool, clear: bool
) -> None:
    """Of 100,000 releases, 6 hits against none allow for more than 1 and less."""
    estimator = BoundEstimator(Claim("epsilon", 1.0), 600_000, 0.001, chance=3.0)
    events = [proposal((27_180, 10_000), is_normal=is_normal), proposal(leaks, is_leaks=True)]
    assert event_choice._is_clear(events, 100_000, estimator) == clear
    assert not event_choice._is_clear([], 100_000, estimator)
    # Of other scores, an event that seems much better may not be luck.
    assert not event_choice._is_clear([*events, proposal((60.0, 1.0))], 100_000, estimator)


@pytest.mark.parametrize("comparing", [75_000, 0])
def test_hits_of_rare_leaks_are_also_those_where_their_threshold_was_chosen(comparing: int) -> None:
    """Without a comparison the only counts are those where thresholds were chosen."""
    sizes = Sizes(0, 0, 150_000, 125_000, comparing, 700_000)
    for is_leaks in (True, False):
        event, fresh = proposal((13.0, 0.0), is_leaks=is_leaks), np.array([8.0, 1.0])
        at0, at1 = event_choice._count_in_pilot(event, fresh, 75_000, sizes)
        more = is_leaks and comparing > 0
        assert (at0.hits, at1.hits) == ((21, 1) if more else (8, 1))
        assert at0.trials == at1.trials == (200_000 if more else 75_000)
