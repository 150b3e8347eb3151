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
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats
from support.alarms import LONG, check_probability
from support.person_worlds import IDS, table, worlds

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
from dpnoise.statistics.queries import Count

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

    The margin then holds with the stated probability or more. Noise that lifts a smaller group to
    the threshold is beyond the margin more often, which docs/persons.md says.
    """
    rounds = 100_000 if LONG else 10_000
    rule: Any = discover(COUNT, confidence=0.9, mechanism=mechanism).discoveries()[0]
    margin = DiscoveredCount(None, rule).error(0.9)

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


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@given(data=st.data())
@settings(max_examples=80 if LONG else 8, phases=[Phase.generate])
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
    question = Question([statistic], "x", 0, 10, edges=[0, 5, 10], by=["city"])
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
