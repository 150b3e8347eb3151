"""Discovered groups: their counts are published once, and groups without counts are selected."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import mpmath
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats
from support.alarms import LONG, check_probability
from support.person_worlds import IDS, check_sensitivity, table, worlds

import dpnoise
from dpnoise.core.entropy import EntropySource
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import (
    Question,
    Request,
    create_ledger,
    engines,
    group_discovery,
    load_request,
    open_ledger,
    publish,
)
from dpnoise.statistics.composition import GAUSSIAN, PURE, Loss
from dpnoise.statistics.group_discovery import (
    DiscoveredCount,
    PartitionSelection,
    show_probabilities,
)
from dpnoise.statistics.plan import Combinations, Grouping
from dpnoise.statistics.publishing import rehearsal
from dpnoise.statistics.queries import Count
from dpnoise.statistics.shared_sums import payer_of

COUNT = Question(["count"], by=["city"])
MEAN = Question(["mean"], "x", 0, 10, by=["city"])
NAMES = Question(["groups"], by=["city"])
PERSON: dict[str, Any] = {"person": "who", "max_groups": 2, "max_rows": 1}
UNIT = 2**128


def discover(*questions: Question, epsilon: float | None = 1.0, **options: Any) -> Request:
    """Return a request that discovers cities."""
    return Request(epsilon, questions, {"city": "discover"}, **{"delta": 1e-6, **options})


def crowd(**sizes: int) -> pl.DataFrame:
    """Return persons with one row each, in cities of some sizes."""
    cities = [city for city, size in sizes.items() for _ in range(size)]
    return pl.DataFrame({"who": range(len(cities)), "city": cities, "x": [1.0] * len(cities)})


# Selection ----------------------------------------------------------------------------------------

LOSSES = [(1.0, 1e-6), (0.1, 1e-7), (0.01, 0.3), (3.0, 2.0**-60), (1e-3, 1e-3), (700.0, 1e-30)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("epsilon", "delta"), LOSSES)
def test_one_person_changes_a_selection_within_epsilon_and_delta(
    epsilon: float, delta: float
) -> None:
    """The probabilities are exact fractions, and e^epsilon is rounded down."""
    chances = [Fraction(number, UNIT) for number in show_probabilities(epsilon, delta)]
    with mpmath.workprec(2_000):
        sign, mantissa, power, _ = mpmath.exp(min(epsilon, 128.0))._mpf_
        factor = Fraction(mantissa) * Fraction(2) ** power * (1 - Fraction(1, 2**1_900))
    assert sign == chances[0] == 0
    chances += [chances[-1]]  # More persons have the last probability.
    for fewer, more in pairwise(chances):
        for first, second in ((fewer, more), (more, fewer)):
            assert first <= factor * second + Fraction(delta)
            assert 1 - first <= factor * (1 - second) + Fraction(delta)


@pytest.mark.parametrize(("epsilon", "delta"), LOSSES[:-1])
def test_no_selection_within_epsilon_and_delta_shows_more(epsilon: float, delta: float) -> None:
    """A probability that is larger by two units breaks an inequality, given the one before it.

    No selection exceeds it: the largest probability grows with the one before it, from p(0) = 0.
    """
    numbers = show_probabilities(epsilon, delta)
    with mpmath.workprec(1_000):
        factor = mpmath.exp(mpmath.mpf(epsilon))
        for last, number in pairwise(numbers[:-1]):
            shown = number + 2 > factor * last + mpmath.mpf(delta) * UNIT
            hidden = UNIT - last > factor * (UNIT - number - 2) + mpmath.mpf(delta) * UNIT
            assert shown or hidden
    assert numbers[-1] == UNIT - 1


def test_probabilities_agree_with_the_published_formula() -> None:
    """Desfontaines and others (2022), theorem 1, for epsilon 1 and delta 1e-6."""
    e, delta = mpmath.e, mpmath.mpf(1e-6)
    turn = 1 + int(mpmath.log((e + 2 * delta - 1) / ((e + 1) * delta)))
    rising = [(e**n - 1) / (e - 1) * delta for n in range(turn + 1)]
    falling = [
        (1 - mpmath.exp(-m)) * (1 + delta / (e - 1)) + mpmath.exp(-m) * rising[turn]
        for m in range(1, 14)
    ]
    numbers = show_probabilities(1.0, 1e-6)[: turn + 14]
    for number, expected in zip(numbers, [*rising, *falling], strict=True):
        assert abs(number / mpmath.mpf(UNIT) - expected) < 1e-14


def test_a_group_is_shown_if_a_uniform_number_is_below_its_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its upper word is the first of the key, its lower word comes after all upper ones."""
    selection, persons = PartitionSelection(1.0, 1e-6), np.array([1, 13, 14, 40, 10**12])
    numbers = show_probabilities(1.0, 1e-6)
    chances = [numbers[min(number, len(numbers) - 1)] for number in persons.tolist()]
    for shift, expected in ((-1, True), (0, False), (1, False), (-(2**64), True)):
        uniforms = [chance + shift for chance in chances]
        words = [u >> 64 for u in uniforms] + [u % 2**64 for u in uniforms]
        if shift == 1:
            words = words[:3] + words[5:8]  # The largest probability has no uniform above it.
        array = np.array(words, dtype=np.uint64)
        monkeypatch.setattr(group_discovery, "first_words", lambda *_, array=array: array)
        shown = selection.show(persons[: len(array) // 2])
        assert shown.tolist() == [expected] * (len(array) // 2)


def test_groups_are_shown_as_often_as_their_probability_says() -> None:
    rounds = 200_000 if LONG else 20_000
    numbers = show_probabilities(1.0, 1e-3)
    for persons in (3, 6, 7, 8, 12):
        shown = PartitionSelection(1.0, 1e-3).show(np.full(rounds, persons))
        chance = numbers[persons] / UNIT
        check_probability(float(stats.binomtest(int(shown.sum()), rounds, chance).pvalue))


def test_the_smallest_group_that_is_shown_with_a_probability() -> None:
    numbers = show_probabilities(0.3, 1e-5)
    for probability in (0.5, 0.95, 0.999):
        size = PartitionSelection(0.3, 1e-5).smallest_shown(probability)
        assert numbers[size - 1] < probability * UNIT <= numbers[size]


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-9, 1e-9), (1.0, 2.0**-130)])
def test_a_selection_that_shows_nothing_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ArgumentError, match="no group can be shown"):
        PartitionSelection(epsilon, delta).smallest_shown(0.5)


@pytest.mark.parametrize(
    ("options", "changed"),
    [({}, 1), ({"neighbours": "replace"}, 2), (PERSON, 2), (PERSON | {"neighbours": "replace"}, 4)],
)
def test_all_groups_of_a_person_share_epsilon_and_delta(
    options: dict[str, Any], changed: int
) -> None:
    """A person who is replaced leaves two groups, and the other person joins two."""
    options = {name: value for name, value in options.items() if name != "max_rows"}
    request = discover(NAMES, mechanism="laplace", **options)
    (rule,) = request.discoveries()
    assert isinstance(rule.noise, PartitionSelection)
    assert rule.losses == (Loss(PURE, 1 / changed),) * changed
    assert Fraction(rule.noise.epsilon) * changed == request.cost().epsilon == 1
    assert Fraction(rule.noise.delta) * changed <= request.cost().delta == Fraction(1e-6)
    assert rule.noise.delta * changed == pytest.approx(1e-6)


def test_two_columns_that_are_selected_share_epsilon_and_delta() -> None:
    groups = {"city": "discover", "sex": "discover"}
    questions = [NAMES, replace(NAMES, by=["sex"], weight=3.0)]
    request = Request(1.0, questions, groups, delta=1e-6)
    rules: list[Any] = request.discoveries()
    assert [rule.noise.epsilon for rule in rules] == [0.25, 0.75]
    assert sum(Fraction(rule.noise.delta) for rule in rules) <= Fraction(1e-6)
    assert [rule.noise.delta for rule in rules] == [5e-7, 5e-7]


def test_many_groups_of_a_person_are_discovered_by_noise() -> None:
    """Their losses would be too many to compose."""
    options: dict[str, Any] = {"person": "who", "mechanism": "laplace"}
    (few,), (many,) = (
        discover(NAMES, max_groups=groups, **options).discoveries() for groups in (100, 101)
    )
    assert (few.threshold is None, many.threshold is None) == (True, False)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_groups_are_selected_more_often_than_with_noise(epsilon: float) -> None:
    """P(X >= k) of discrete Laplace noise is a^k/(1 + a) for k >= 0, with a = exp(-epsilon)."""
    rule: Any = discover(COUNT, epsilon=epsilon, mechanism="laplace").discoveries()[0]
    numbers, a = show_probabilities(epsilon, 1e-6), mpmath.exp(-epsilon)
    for persons, number in enumerate(numbers[1:], start=1):
        k = rule.threshold - persons
        noisy = a**k / (1 + a) if k >= 0 else 1 - a ** (1 - k) / (1 + a)
        assert number / mpmath.mpf(UNIT) >= noisy
    assert numbers[rule.threshold] > UNIT / (1 + a)  # The number of persons is the threshold.


def test_groups_are_published_without_numbers(tmp_path: Path) -> None:
    request = discover(NAMES)
    published_table = publish(crowd(cork=500, dublin=400, sligo=1), request)
    assert published_table.found == {("city",): (("cork",), ("dublin",))}
    rows = [
        (row["city"], row["statistic"], row["value"], row["margin"])
        for row in published_table.rows()
    ]
    assert rows == [("cork", "groups", None, None), ("dublin", "groups", None, None)]
    assert (
        published_table.record()["discovered"][0]["mechanism"]
        == "optimal partition selection, exact"
    )
    assert "shown" in str(published_table)
    assert published_table.to_arrow()["value"].null_count == 2
    published_table.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Groups of city" in page
    assert "those with enough rows; one of 16 rows or more with probability 0.95: 2 of them" in page


def test_groups_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "request.toml"
    path.write_text(
        'epsilon = 1.0\ndelta = 1e-6\n[groups]\ncity = "discover"\n'
        '[[publish]]\nstatistics = ["groups"]\nby = ["city"]'
    )
    request = load_request(path).request
    assert request.publish == (NAMES,)
    path.write_text(dpnoise.statistics.report.request_toml(request.to_dict()))
    assert load_request(path).request == request


@pytest.mark.parametrize(
    ("question", "groups", "words"),
    [
        ({"by": ["city"], "column": "x"}, None, '"groups" publishes which groups there are'),
        ({"statistics": ["groups", "count"], "by": ["city"]}, None, "in a separate question"),
        ({}, None, r'by=\["city"\]'),
        ({"by": ["city"], "where": "x > 3"}, None, "without a column of numbers or a filter"),
        ({"by": ["city"]}, ["cork"], 'groups={"city": "discover"}'),
        ({"statistics": ["keys"], "by": ["city"]}, None, "Did you mean 'groups'"),
    ],
)
def test_groups_without_sense_are_refused(question: Any, groups: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Request(1.0, [Question(**{"statistics": ["groups"], **question})], {"city": groups})


# Counts -------------------------------------------------------------------------------------------


def test_a_count_has_the_whole_budget_and_one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, source_key = [], EntropySource.key

    def count_keys(self: EntropySource) -> Any:
        keys.append(self)
        return source_key(self)

    monkeypatch.setattr(EntropySource, "key", count_keys)
    request = discover(COUNT)
    assert request.prices.losses == (Loss(PURE, 1.0),)
    published_table = publish(crowd(cork=500, dublin=400), request)
    assert len(keys) == 1
    for published in published_table:
        release = published.release
        assert (release.epsilon, release.scale, release.threshold) == (1.0, 1.0, 15)
        assert release.shared == ("groups of city", "count")
        assert release.error == Count(None, 1.0).error(0.95)


def test_published_counts_are_the_numbers_that_passed_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The noise is replaced by an addition, so that the numbers are known."""
    monkeypatch.setattr(
        dpnoise.DiscreteLaplaceMechanism, "release", lambda _, values, __: values - 5
    )
    published_table = publish(crowd(cork=40, dublin=19, galway=20), discover(COUNT))
    assert [(row["city"], row["value"]) for row in published_table.rows()] == [
        ("cork", 35),
        ("galway", 15),
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("question", "options"),
    [
        (COUNT, {}),
        (COUNT, PERSON),
        (COUNT, PERSON | {"neighbours": "replace"}),
        (replace(COUNT, column="x"), PERSON),
        (Question(["count"], "x", 0, 10, by=["city"], per_person="sum"),
         {"person": "who", "max_groups": 2}),
    ],
)  # fmt: skip
def test_counts_are_those_of_a_declared_request(question: Question, options: Any) -> None:
    """At epsilon 1e5 the noise is 0, and nobody is in more than two cities."""
    rng = np.random.default_rng()
    frame = pl.DataFrame({"who": range(900), "city": rng.choice(["a", "b", "c"], 900)})
    if options.get("max_rows") or "person" in options:
        frame = pl.concat([frame, frame.with_columns(city=pl.lit("a"))] * 2)  # Four rows each.
    frame = frame.with_columns(x=pl.lit(2.0))
    request = discover(question, epsilon=1e5, **options)
    ((_, query),) = request.prepare()
    assert isinstance(query, DiscoveredCount)
    declared = Request(1e5, [question], {"city": ["a", "b", "c"]}, **options)
    tables = (publish(frame, each).rows() for each in (request, declared))
    first, second = ([(row["city"], row["value"]) for row in rows] for rows in tables)
    assert first == second


@pytest.mark.parametrize(
    ("questions", "options", "payments"),
    [
        ([COUNT], PERSON | {"max_rows": 2}, 2),  # Rows are not persons.
        ([replace(COUNT, column="x")], {"missing": "drop"}, 2),  # Rows may have no value.
        ([replace(COUNT, by=["city", "sex"])], {}, 2),
        ([replace(COUNT, where="x > 3")], {}, 2),  # Other rows are counted, too.
        ([Question(["count"])], {"groups": {"city": "discover"}}, 1),  # Nothing is discovered.
        ([COUNT, Question(["count"])], {}, 2),
        ([COUNT, replace(COUNT, column="x")], {}, 1),  # Both are the same number.
        ([replace(MEAN, statistics=["count", "mean"])], {}, 2),
        ([replace(MEAN, statistics=["count", "sum", "mean"])], {}, 2),
        ([replace(MEAN, statistics=["count", "mean", "median"])], {}, 3),
        ([MEAN], {}, 2),
    ],
)
def test_a_count_is_paid_for_unless_discovery_counted_the_same(
    questions: list[Question], options: dict[str, Any], payments: int
) -> None:
    groups = {"city": "discover", "sex": ["f", "m"]}
    budget = {"mechanism": "laplace", "delta": 1e-6} if payments > 1 or len(questions) > 1 else {}
    request = Request(1.0, questions, **{"groups": groups, **budget, **options})
    assert len(request.prices.losses) == payments
    assert request.cost().epsilon == pytest.approx(1)


@pytest.mark.parametrize(
    ("questions", "parts"),
    [
        ([COUNT, MEAN], [0.5, 0.5]),
        ([replace(COUNT, weight=3.0), MEAN], [0.75, 0.25]),
        ([replace(MEAN, statistics=["count", "sum", "mean"])], [0.25, 0.5]),
        ([COUNT, COUNT, MEAN, MEAN], [0.5, 0.25, 0.25]),
        ([MEAN, MEAN, MEAN], [0.25] * 4),  # Without a count, discovery has a weight of 1.
    ],
)
def test_discovery_has_the_weight_of_the_counts_that_it_answers(
    questions: list[Question], parts: list[float]
) -> None:
    request = discover(*questions, mechanism="laplace")
    expected = [pytest.approx(part / sum(parts), rel=1e-9) for part in parts]
    assert [loss.amount for loss in request.prices.losses] == expected


def test_every_output_says_that_counts_come_from_the_discovery(tmp_path: Path) -> None:
    published_table = publish(crowd(cork=500, dublin=400), discover(COUNT, MEAN))
    note = "only those of 28 or more are shown, so counts near that are too large on average"
    assert note in str(published_table)
    assert "shown because it is 28 or more" in published_table.rows()[0]["note"]
    record = json.loads(json.dumps(published_table.record()))
    (entry,) = record["discovered"]
    assert (entry["paid_for"], entry["epsilon"]) == (["groups of city", "count"], 0.5)
    assert note in entry["note"]
    assert record["releases"][0]["shared"] == ["groups of city", "count"]
    published_table.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert note in page
    assert page.count("epsilon 0.5 for groups of city, count together") == 2


def test_discovered_counts_are_suppressed_like_others() -> None:
    """At epsilon 0.01 the margin is 299, and the threshold about 1,300."""
    request = discover(COUNT, epsilon=0.01, suppress="margin > 0.1")
    table_of_cities = publish(crowd(cork=50_000, dublin=2_000), request)
    assert [row["value"] is None for row in table_of_cities.rows()] == [False, True]
    names = publish(crowd(cork=500), discover(NAMES, suppress="margin > 0.1"))
    assert names.rows()[0]["note"] == "shown"


def test_a_value_that_is_missing_is_found_in_rows_of_every_group() -> None:
    """Another question is about declared groups only, which do not restrict this check."""
    frame = pl.DataFrame({"city": ["a"] * 50, "sex": ["f"] * 49 + ["x"], "x": [1.0] * 49 + [None]})
    groups: Any = {"city": "discover", "sex": ["f", "m"]}
    questions = [replace(COUNT, column="x"), Question(["sum"], "x", 0, 1, by=["sex"])]
    with pytest.raises(ArgumentError, match="without a value"):
        publish(frame, Request(1.0, questions, groups, delta=1e-6))


# Margins of counts that were selected -------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_margins_hold_for_groups_of_at_least_the_threshold(mechanism: str) -> None:
    """A group of n >= T persons is shown only with noise of at least T - n.

    The margin then holds with the stated probability or more. Proof: let the noise exceed the
    margin m in either direction with probability at most q/2, and d = n - T >= 0. The group is
    shown if the noise is at least -d, so with probability at least 1/2. If d <= m, only noise above
    m fails: with probability at most (q/2)/(1/2) = q. If d > m, the margin fails with probability
    at most (q - r)/(1 - r) <= q, where r is the probability of noise below -d.

    Noise that lifts a smaller group to the threshold is beyond the margin more often, which
    docs/persons.md says.
    """
    rounds = 100_000 if LONG else 10_000
    rule: Any = discover(COUNT, confidence=0.9, mechanism=mechanism).discoveries()[0]
    margin = DiscoveredCount("count", None, rule).error(0.9)

    def outside(persons: int) -> tuple[int, int]:
        noisy = rule.noise.release(np.full(rounds, persons), None)
        shown = noisy[noisy >= rule.threshold]
        return int((np.abs(shown - persons) > margin).sum()), len(shown)

    for surplus in (0, 1, margin - 1, margin, margin + 1, 10 * margin):
        missed, shown = outside(rule.threshold + surplus)
        check_probability(float(stats.binomtest(missed, shown, 0.1, "greater").pvalue))
    missed, shown = outside(rule.threshold - 2 * margin)
    assert missed == shown  # Only noise beyond the margin can lift these.


def test_counts_near_the_threshold_are_too_large_on_average() -> None:
    rule: Any = discover(COUNT).discoveries()[0]
    noisy = rule.noise.release(np.full(20_000, rule.threshold - 2), None)
    shown = noisy[noisy >= rule.threshold]
    assert len(shown) > 0
    assert shown.min() - (rule.threshold - 2) >= 2


# The mechanism ------------------------------------------------------------------------------------


def test_the_mechanism_is_chosen_by_the_smallest_groups_that_are_shown() -> None:
    """With many groups a person Gaussian noise shows smaller ones, with one group Laplace noise."""
    for groups in (1, 2, 3, 4, 5, 10, 50):
        options = PERSON | {"max_groups": groups}
        chosen, laplace, gaussian = (
            discover(COUNT, mechanism=mechanism, **options).discoveries()[0]
            for mechanism in (None, "laplace", "gaussian")
        )
        assert chosen == min((laplace, gaussian), key=lambda rule: rule.shown_size(0.95))
    assert chosen == gaussian
    assert discover(COUNT).discoveries() == discover(COUNT, mechanism="best").discoveries()
    assert discover(COUNT).discoveries()[0].rho is None


def test_a_delta_chooses_the_mechanism_without_discovery_too() -> None:
    groups = {"city": list(range(200))}
    many, one = (PERSON | {"max_groups": number} for number in (100, 1))
    request = Request(1.0, [COUNT], groups, delta=1e-6, **many)
    assert [loss.kind for loss in request.prices.losses] == [GAUSSIAN]
    assert [loss.kind for loss in replace(request, delta=0.0).prices.losses] == [PURE]
    with pytest.raises(ArgumentError, match="its margins are smaller here"):
        Request(1.0, [COUNT], groups, delta=1e-6, **one)
    median = Question(["median"], "x", 0, 10, by=["city"])
    with pytest.raises(ArgumentError, match=r"quantiles are selected.*Leave out delta"):
        Request(1.0, [median], groups, delta=1e-6)


# Neighbouring data sets ---------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@given(data=st.data())
@settings(max_examples=80 if LONG else 3, phases=[Phase.generate])
def test_a_person_moves_published_counts_by_no_more_than_the_sensitivity(
    neighbours: str, data: st.DataObject
) -> None:
    """At most two groups, each by one person: the counts and the selection rely on both."""
    ids = data.draw(st.sampled_from(list(IDS.values())))
    rows, without, replaced = data.draw(worlds(ids))
    other = without if neighbours == "add-remove" else replaced
    requests = [
        discover(question, **PERSON, neighbours=neighbours, without_id="own", mechanism=mechanism)
        for question, mechanism in ((COUNT, "laplace"), (COUNT, "gaussian"), (MEAN, "laplace"))
    ]
    laplace, gaussian, selection = (cast("Any", each.discoveries()[0]) for each in requests)
    counts = [
        engines.count_persons_by_group(table(each, ids), ["city"], laplace.unit, text=["city"])
        for each in (rows, other)
    ]
    first, second = (dict(zip(each.keys, each.persons.tolist(), strict=True)) for each in counts)
    moved = [abs(first.get(key, 0) - second.get(key, 0)) for key in {*first, *second}]
    assert max(moved, default=0) <= 1
    assert sum(moved) <= laplace.noise.mechanism.sensitivity
    assert sum(moved) <= gaussian.noise.mechanism.sensitivity**2
    assert sum(moved) <= len(selection.losses)


def test_no_discovered_group_is_an_empty_table() -> None:
    """Groups of one person each are below every threshold."""
    frame = pl.DataFrame({"city": ["a", "b", "c"]})
    request = Request(0.1, [Question(["count"], by=["city"])], {"city": "discover"}, delta=1e-9)
    table = publish(frame, request)
    assert table.rows() == []
    assert "No group could be published." in str(table)


@pytest.mark.parametrize("statistic", ["count", "sum", "histogram", "variance"])
def test_no_discovered_group_is_no_error_where_persons_are_replaced(statistic: str) -> None:
    frame = pl.DataFrame({"city": ["a", "b", "c"], "x": [1.0, 2.0, 3.0]})
    edges = [0, 5, 10] if statistic == "histogram" else None
    question = Question([statistic], "x", 0, 10, edges=edges, by=["city"])
    request = Request(1.0, [question], {"city": "discover"}, missing="drop", delta=1e-6,
                      neighbours="replace")  # fmt: skip
    assert publish(frame, request).rows() == []


def test_a_wrong_id_in_a_row_without_a_group_is_an_error_before_anything_is_paid(
    tmp_path: Path,
) -> None:
    frame = pl.DataFrame({"city": [*["a"] * 50, None], "p": [*range(50), None]})
    questions = [Question(["count"], by=["city"]), Question(["count"])]
    request = Request(1.0, questions, {"city": "discover"}, person="p", max_groups=1, max_rows=1,
                      delta=1e-6)  # fmt: skip
    ledger = create_ledger(tmp_path / "b.json", name="x", person=["p"], epsilon=1, delta=1e-6)
    with pytest.raises(ArgumentError, match="do not identify a person"):
        publish(frame, request, ledger=ledger)
    assert open_ledger(ledger.path).spent.main == 0


def test_a_request_that_can_show_no_group_is_an_error_when_it_is_made() -> None:
    with pytest.raises(ArgumentError, match="no group can be shown"):
        Request(1e-5, [Question(["groups"], by=["city"])], {"city": "discover"}, delta=1e-9,
                mechanism="laplace")  # fmt: skip


def test_noise_out_of_range_for_many_groups_is_an_error_when_a_request_is_made() -> None:
    """With the bounds of one group its scale is small enough."""
    question = Question(["sum"], "x", 0, 1e281, by=["city"])
    options: dict[str, Any] = {"person": "who", "max_rows": 2**20, "mechanism": "laplace"}
    discover(question, max_groups=1, **options)
    with pytest.raises(ArgumentError, match=r"scale must be at most 2\^960"):
        discover(question, max_groups=60_000, **options)


def test_only_too_many_counts_leave_out_discovered_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error is raised. `check_plans` has no other after a request is made."""
    request = discover(MEAN, epsilon=1e6)

    def fail(*_: Any) -> None:
        raise ArgumentError("another problem")

    monkeypatch.setattr(Request, "check_plans", fail)
    with pytest.raises(ArgumentError, match="another problem"):
        publish(crowd(cork=500, dublin=400), request)


# Several columns ----------------------------------------------------------------------------------

PAIR: dict[str, Any] = {"city": "discover", "day": "discover"}
PAIR_COUNT = Question(["count"], by=["city", "day"])
SURE: dict[str, Any] = {"epsilon": 1e6, "delta": 1e-9}  # Noise is 0, and 2 persons are shown.


def of_pairs(*questions: Question, groups: Any = PAIR, **options: Any) -> Request:
    """Return a request that discovers cities and days."""
    options = {"epsilon": 1.0, "delta": 1e-6, **options}
    return Request(options.pop("epsilon"), questions, groups, **options)


def stays(*sizes: tuple[str, str, int]) -> pl.DataFrame:
    """Return persons with one row each, in cities on days."""
    rows = [(city, day, 1.0) for city, day, size in sizes for _ in range(size)]
    frame = pl.DataFrame(rows, schema=["city", "day", "x"], orient="row")
    return frame.with_row_index("who").with_columns(sex=pl.lit("f"))


# Nobody is in cork on day 10, and one person is in galway on day 9.
STAYS = stays(("cork", "9", 40), ("dublin", "9", 30), ("dublin", "10", 20), ("galway", "9", 1))
SHOWN = (("cork", "9"), ("dublin", "9"), ("dublin", "10"))


def test_only_combinations_with_enough_persons_are_published() -> None:
    """Days are ordered as numbers."""
    published_table = publish(STAYS, of_pairs(PAIR_COUNT, **SURE))
    rows = [(row["city"], row["day"], row["value"]) for row in published_table.rows()]
    assert rows == [("cork", "9", 40), ("dublin", "9", 30), ("dublin", "10", 20)]
    assert published_table.found == {("city", "day"): SHOWN}


def test_a_count_by_the_discovered_columns_costs_nothing_more() -> None:
    request = of_pairs(PAIR_COUNT)
    assert request.prices.losses == (Loss(PURE, 1.0),)
    ((_, query),) = request.prepare()
    assert isinstance(query, DiscoveredCount)
    (rule,) = request.discoveries()
    assert rule.columns == ("city", "day")
    assert rule.threshold == discover(COUNT).discoveries()[0].threshold  # All of epsilon and delta.
    assert rule.paid_for == ("groups of city and day", "count")


def test_the_order_of_columns_changes_only_the_order_of_groups() -> None:
    """Both questions are about the groups of one discovery, and both are answered by it."""
    reverse = replace(PAIR_COUNT, by=["day", "city"])
    request = of_pairs(PAIR_COUNT, reverse, **SURE)
    assert len(request.prices.losses) == 1
    published = [
        (tuple(each.by), each.group, each.release.value) for each in publish(STAYS, request)
    ]
    assert published == [
        (("city", "day"), ("cork", "9"), 40),
        (("city", "day"), ("dublin", "9"), 30),
        (("city", "day"), ("dublin", "10"), 20),
        (("day", "city"), ("9", "cork"), 40),
        (("day", "city"), ("9", "dublin"), 30),
        (("day", "city"), ("10", "dublin"), 20),
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("by", [("city", "sex", "day"), ("sex", "day", "city"), ("day", "city")])
@pytest.mark.parametrize("options", [{}, PERSON])
def test_other_statistics_are_those_of_discovered_combinations(
    by: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Declared columns are multiplied with them. Every order of columns has the same numbers."""
    rng = np.random.default_rng()
    frame = STAYS.with_columns(
        x=pl.Series(rng.integers(0, 10, STAYS.height).astype(float)),
        sex=pl.Series(rng.choice(["f", "m", "other"], STAYS.height)),
    )
    groups = {**PAIR, "sex": ["m", "f"]}
    question = Question(["sum", "histogram"], "x", 0, 10, edges=[0, 5, 10], by=by)
    rows = publish(frame, of_pairs(question, groups=groups, **SURE, **options)).rows()
    sums = {
        tuple(row[name] for name in by): row["value"] for row in rows if row["statistic"] == "sum"
    }
    exact = {
        tuple(key[name] for name in by): frame.filter(*(pl.col(name) == key[name] for name in by))[
            "x"
        ].sum()
        for city, day in SHOWN
        for sex in (groups["sex"] if "sex" in by else [""])
        for key in [{"city": city, "day": day, "sex": sex}]
    }
    assert sums == pytest.approx(exact, abs=0.01)
    assert len(rows) == 3 * len(exact)


def test_groups_of_several_columns_are_selected_together(tmp_path: Path) -> None:
    names = Question(["groups"], by=["day", "city"])
    request = of_pairs(names, mechanism="laplace", person="who", max_groups=2)
    (rule,) = request.discoveries()
    assert isinstance(rule.noise, PartitionSelection)
    assert rule.losses == (Loss(PURE, 0.5),) * 2
    published_table = publish(stays(("cork", "9", 500), ("dublin", "10", 500)), request)
    assert [published.group for published in published_table] == [("9", "cork"), ("10", "dublin")]
    published_table.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Groups of day and city" in page
    assert "The groups of city and day were not declared." in page
    with pytest.raises(ArgumentError, match="The groups of 'sex' are declared"):
        of_pairs(replace(names, by=["city", "sex"]), groups={**PAIR, "sex": ["f"]})


def test_a_column_alone_and_in_a_pair_is_discovered_twice() -> None:
    """Both are paid for, and split the delta that is set aside."""
    request = of_pairs(PAIR_COUNT, COUNT, mechanism="laplace")
    rules: list[Any] = request.discoveries()
    assert [rule.columns for rule in rules] == [("city", "day"), ("city",)]
    assert request.prices.losses == (Loss(PURE, 0.5),) * 2
    single: Any = discover(COUNT, epsilon=0.5, delta=5e-7, mechanism="laplace").discoveries()[0]
    assert [rule.threshold for rule in rules] == [single.threshold] * 2
    published_table = publish(STAYS, of_pairs(PAIR_COUNT, COUNT, MEAN, **SURE))
    assert published_table.found == {
        ("city", "day"): SHOWN,
        ("city",): (("cork",), ("dublin",)),
    }
    means = [row["city"] for row in published_table.rows() if row["statistic"] == "mean"]
    assert means == ["cork", "dublin"]


def test_a_column_alone_and_in_a_pair_is_read_from_typed_files(tmp_path: Path) -> None:
    STAYS.with_columns(pl.col("day").cast(pl.Int16)).write_parquet(tmp_path / "stays.parquet")
    sums = [Question(["sum"], "x", 0, 1, by=by) for by in (["day"], ["city", "day"])]
    published_table = publish(tmp_path / "stays.parquet", of_pairs(*sums, **SURE))
    assert [row["value"] for row in published_table.rows()] == pytest.approx(
        [71, 20, 40, 30, 20], abs=0.01
    )


def test_two_separate_columns_are_two_discoveries() -> None:
    request = of_pairs(COUNT, replace(COUNT, by=["day"]))
    assert [rule.columns for rule in request.discoveries()] == [("city",), ("day",)]


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_pairs_are_discovered_with_the_largest_bound_of_the_questions_about_them(
    neighbours: str,
) -> None:
    """Questions about one of the columns do not count."""
    questions = [
        replace(PAIR_COUNT, max_groups=3),
        Question(["sum"], "x", 0, 1, by=["day", "city", "sex"], max_groups=5),
        replace(COUNT, max_groups=7),
    ]
    options = PERSON | {"neighbours": neighbours, "mechanism": "laplace"}
    request = of_pairs(*questions, groups={**PAIR, "sex": ["f", "m"]}, **options)
    pair, single = cast("list[Any]", request.discoveries())
    assert (pair.unit.max_groups, single.unit.max_groups) == (5, 7)
    moves = 2 if neighbours == "replace" else 1
    assert len(pair.losses) == 5 * moves  # A person changes this many combinations.
    assert single.noise.mechanism.sensitivity == 7 * moves
    assert not isinstance(request.prepare()[0][1], DiscoveredCount)  # It has a smaller bound.


def test_a_person_is_in_no_more_combinations_than_were_discovered() -> None:
    question = Question(["sum"], "x", 0, 8, grid=1.0, by=["city", "day"])
    request = of_pairs(question, **PERSON | {"max_groups": 3}, mechanism="laplace")
    for found, groups in ((SHOWN, 3), (SHOWN[:2], 2), (SHOWN[:1], 1)):
        ((_, query),) = cast("Any", request.prepare({**PAIR, ("city", "day"): found}))
        assert query.mechanism.sensitivity == 8 * groups


def test_plans_are_about_the_discovered_combinations() -> None:
    question = Question(["sum"], "x", 0, 8, by=["sex", "day", "city"])
    groups = {**PAIR, "sex": ["f", "m"]}
    request = of_pairs(question, groups=groups)
    (plan,) = request.plans({**groups, ("city", "day"): SHOWN[::-1]}).values()
    days_first = tuple(pair[::-1] for pair in SHOWN)
    assert plan.by == (Grouping("sex", ("f", "m")), Combinations(("day", "city"), days_first))
    assert request.plans({**groups, ("city", "day"): ()}) == {}


def test_of_more_combinations_than_can_be_computed_the_largest_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The product of their keys would be larger: two cities and two days."""
    monkeypatch.setattr(engines.checking, "_MOST_COUNTS", 2 * 3)  # Two groups of three cells.
    question = Question(["histogram"], "x", edges=[0, 1, 2, 3], by=["city", "day"])
    published_table = publish(STAYS, of_pairs(question, **SURE))
    assert published_table.found == {("city", "day"): SHOWN[:2]}
    assert len(published_table.rows()) == 2 * 3


def test_the_record_has_combinations_as_lists() -> None:
    published_table = publish(STAYS, of_pairs(PAIR_COUNT, COUNT, **SURE))
    record = json.loads(json.dumps(published_table.record()))
    pair, single = record["discovered"]
    assert (pair["columns"], pair["groups"]) == (["city", "day"], [list(key) for key in SHOWN])
    assert (single["columns"], single["groups"]) == (["city"], ["cork", "dublin"])
    assert pair["note"].startswith("The counts by city and day discovered their groups: only")
    assert record["releases"][0]["group"] == ["cork", "9"]
    assert rehearsal(of_pairs(PAIR_COUNT)).rows()[0]["statistic"] == "count"


def test_rows_without_one_of_the_keys_are_in_no_combination() -> None:
    missing = STAYS.with_columns(
        day=pl.when(pl.col("city") == "dublin").then(None).otherwise("day")
    )
    published_table = publish(missing, of_pairs(PAIR_COUNT, **SURE))
    assert published_table.found == {("city", "day"): (("cork", "9"),)}


def test_text_columns_name_the_columns_of_a_pair() -> None:
    codes = STAYS.with_columns(day="0" + pl.col("day"))
    with pytest.raises(ArgumentError, match=r"text_columns=\['day'\]"):
        publish(codes, of_pairs(PAIR_COUNT, **SURE))
    published_table = publish(codes, of_pairs(PAIR_COUNT, text_columns=["day"], **SURE))
    assert [row["day"] for row in published_table.rows()] == ["09", "09", "010"]


def test_progress_has_a_pass_for_each_discovery(tmp_path: Path) -> None:
    STAYS.write_parquet(tmp_path / "stays.parquet")
    progress: list[float] = []
    publish(tmp_path / "stays.parquet", of_pairs(PAIR_COUNT, MEAN), progress=progress.append)
    assert progress == sorted(progress)
    assert {1 / 4, 2 / 4, 3 / 4, 1.0} <= set(progress)


def day_of(row: tuple[Any, ...]) -> str | None:
    """Return one of three days, or none, by the length of the value."""
    return [None, "0", "1", "2"][len(repr(row[-1])) % 4]


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@given(data=st.data())
@settings(max_examples=80 if LONG else 2, phases=[Phase.generate])
def test_a_person_moves_statistics_of_combinations_by_no_more_than_the_sensitivity(
    neighbours: str, data: st.DataObject
) -> None:
    """The numbers of persons, and every statistic by combinations of which some were discovered."""
    ids = data.draw(st.sampled_from(list(IDS.values())))
    rows, without, replaced = data.draw(worlds(ids))
    other = without if neighbours == "add-remove" else replaced
    frames = [
        table(each, ids).append_column("day", pa.array([day_of(row) for row in each], pa.string()))
        for each in (rows, other)
    ]
    options = PERSON | {"neighbours": neighbours, "without_id": "own", "missing": "drop"}
    options["text_columns"] = ["city", "day"]
    statistics = ["count", "sum", "variance", "median", "histogram"]
    question = Question(statistics, "x", -2, 3, 0.25, (-2.0, 0.0, 3.0), by=["day", "city"])
    pairs = data.draw(
        st.lists(
            st.tuples(st.sampled_from("abcde"), st.sampled_from("012")), min_size=1, unique=True
        )
    )
    for mechanism in ("laplace", "gaussian"):
        request = of_pairs(question, **options, mechanism=mechanism)
        (rule,) = cast("list[Any]", request.discoveries())
        counts = [
            engines.count_persons_by_group(frame, rule.columns, rule.unit, text=rule.columns)
            for frame in frames
        ]
        first, second = (
            dict(zip(each.keys, each.persons.tolist(), strict=True)) for each in counts
        )
        moved = [abs(first.get(key, 0) - second.get(key, 0)) for key in {*first, *second}]
        assert max(moved, default=0) <= 1
        power = 1 if mechanism == "laplace" else 2
        assert sum(moved) <= rule.noise.mechanism.sensitivity**power
        groups = {**request.groups, rule.columns: pairs}
        (plan,) = request.plans(groups).values()
        answers = [engines.tally(frame, plan).answers for frame in frames]
        for _, query in request.prepare(groups):
            index = plan.asks.index(query.ask)
            check_sensitivity(payer_of(query), *(each[index] for each in answers))
