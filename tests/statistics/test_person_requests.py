"""Requests about persons: their costs, the discovered groups, and early errors."""

import json
import math
from dataclasses import replace
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from support.alarms import LONG, check_probability
from support.payments import losses_paid

import dpnoise
from dpnoise import cli
from dpnoise.core.entropy import EntropySource
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import (
    Question,
    Request,
    discovery_threshold,
    load_request,
    publish,
    publishing,
)
from dpnoise.statistics.composition import compose
from dpnoise.statistics.engines import PersonCounts, checking, count_persons_by_group
from dpnoise.statistics.publishing import rehearsal
from dpnoise.statistics.queries import Count, PersonCount
from dpnoise.statistics.report import render_record

COUNT = Question(["count"], by=("city",))
MEDIAN = Question(["median"], "x", 0, 10, 1.0, by=("city",))
CITIES = {"city": ("cork", "dublin", "galway", "limerick", "sligo")}
ALL = Question(
    ["count", "sum", "mean", "variance", "std", "median", "quantiles:0.1,0.9", "histogram"],
    "x", lower=0, upper=10, edges=[0, 5, 10], by=("city",),
)  # fmt: skip


def person_request(*questions: Question, **options: Any) -> Request:
    """Return a request about persons with the given changes."""
    defaults = {
        "epsilon": 1.0, "groups": CITIES, "person": "who", "max_groups": 2, "max_rows": 3,
    }  # fmt: skip
    return Request(**{**defaults, "publish": questions or (COUNT,), **options})


def visits(persons: int = 300) -> pl.DataFrame:
    """Return visits of persons, each with several rows in two or three cities."""
    rng = np.random.default_rng()
    who = rng.integers(0, persons, 6 * persons)
    cities = np.array(CITIES["city"])[(who + rng.integers(0, 3, who.size)) % 5]
    return pl.DataFrame({"who": who, "city": cities, "x": rng.uniform(0, 10, who.size)})


def count_of(request: Request) -> Count:
    """Return the query of a request that asks only for counts."""
    ((_, query),) = request.prepare()
    assert isinstance(query, Count)
    return query


# Errors -------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bounds without a person": ({"person": None}, "max_groups needs person"),
    "no max_groups": ({"max_groups": None}, "max_groups is missing: in how many groups"),
    "no max_rows": ({"max_rows": None}, "max_rows is missing: how many rows .* max_rows=3. Or"),
    "no max_rows of a histogram": (
        {"max_rows": None, "publish": [Question(["histogram"], "x", edges=[0, 9])]},
        "max_rows is missing: .* such as max_rows=1 for a histogram of persons. Or",
    ),
    "no groups at all": ({"max_groups": 0}, "max_groups must be at least 1, got 0"),
    "half a row": ({"max_rows": 2.5}, "max_rows must be an integer"),
    "more groups than there are": ({"max_groups": 6}, "max_groups must be at most 5"),
    "a group": ({"person": "city"}, "'city' identifies a person, and cannot be grouped by"),
    "a value": ({"person": ["who", "x"], "publish": (ALL,)}, "'x' identifies .* be published"),
    "a column twice": ({"person": ["who", "who"]}, "each once"),
    "no column": ({"person": []}, "person must name one or more columns that identify a person"),
    "numbers for names": ({"person": [1]}, "must be a name or a list of names"),
    "unknown neighbours": ({"neighbours": "rows"}, "must be one of 'add-remove', 'replace'"),
    "an unknown way": ({"without_id": "drop"}, "must be one of 'error', 'own'"),
    "an unknown mechanism": ({"mechanism": "normal"}, "'laplace', 'gaussian', 'best'"),
    "a delta without use": ({"delta": 1e-6}, "Nothing uses delta: Laplace noise has none"),
    "Gaussian noise without delta": ({"mechanism": "gaussian"}, "delta"),
    "the best without delta": ({"mechanism": "best"}, "delta"),
    "discovery without delta": ({"groups": {"city": "discover"}}, "discovered need delta > 0"),
    "a delta of one": ({"delta": 1.0, "mechanism": "gaussian"}, "delta must be between"),
    "a negative delta": ({"delta": -1e-6, "mechanism": "gaussian"}, "delta must be between"),
    "two budgets": ({"rho": 0.5}, "in either epsilon or rho, not in both"),
    "no budget": ({"epsilon": None}, "A request needs epsilon, rho"),
    "no rho": ({"epsilon": None, "rho": 0.0}, "rho must be greater than 0, got 0.0"),
    "only quantiles": (
        {"publish": (Question(["median"], "x", 0, 1, by=("city",)),), "mechanism": "gaussian",
         "delta": 1e-6},
        "Nothing uses delta: quantiles are selected",
    ),
    "rows without use": (
        {"publish": (Question(["sum"], "x", 0, 1, by=("city",), per_person="sum"),)},
        "Nothing uses max_rows",
    ),
    "too many groups": ({"max_groups": 2**16 + 1}, "max_groups must be at most 65536, got 65537"),
    "too many losses": (
        {"publish": (ALL,), "mechanism": "gaussian", "delta": 1e-6, "max_groups": 600,
         "groups": {"city": "discover"}},
        "Quantiles of persons in 600 groups are too many losses to compose",
    ),
    "an error for some": (
        {"publish": (replace(COUNT, error=5.0), COUNT)}, "an error for every question, or weights",
    ),
    "an error of unknown groups": (
        {"publish": (replace(COUNT, error=5.0),), "groups": {"city": "discover"}, "delta": 1e-6},
        "A request for an error needs declared groups",
    ),
    "a value of unknown groups beyond what is exact": (
        {"publish": (Question(["count"], "x", 0, 1e300, by=("city",), per_person="sum"),),
         "max_rows": None, "missing": "drop", "groups": {"city": "discover"}, "delta": 1e-6},
        r"between 2\^-960 and 2\^960",
    ),
    "too many cells": (
        {"publish": (Question(["median"], "x", 0, 2**16 - 1, 1.0, by=("city",)),),
         "groups": {"city": [f"city {n}" for n in range(300)]}},
        "19,660,800 counts, and at most 16,777,216",
    ),
    "no rows in all": ({"max_total_rows": 0}, "max_total_rows must be at least 1, got 0"),
    "more rows in a group than in all": (
        {"max_total_rows": 2}, "max_rows must be at most max_total_rows=2, got 3",
    ),
    "more groups than rows": (
        {"max_total_rows": 1, "max_rows": None},
        "max_groups must be at most max_total_rows=1, got 2",
    ),
    "a total without use": (
        {"publish": (Question(["sum"], "x", 0, 1, by=("city",), per_person="sum"),),
         "max_rows": None, "max_total_rows": 3},
        "Nothing uses max_total_rows: all questions",
    ),
    "a total for the groups of values of persons": (
        {"publish": (COUNT, Question(["sum"], "x", 0, 1, by=("city",), per_person="sum")),
         "max_groups": None, "max_total_rows": 3},
        "max_groups is missing",
    ),
    "more groups of a question than it has": (
        {"publish": (COUNT, replace(COUNT, max_groups=6))}, "max_groups must be at most 5",
    ),
    "bounds of a question without a person": (
        {"publish": (replace(COUNT, max_total_rows=3),), "person": None, "max_groups": None,
         "max_rows": None},
        "max_total_rows needs person",
    ),
    "a question without bounds": (
        {"publish": (COUNT, replace(COUNT, max_rows=3)), "max_rows": None},
        "max_rows is missing: how many rows .* max_total_rows=6",
    ),
    "an error too small": (
        {"publish": (replace(COUNT, error=5.0),)}, "more than the 1 of the request",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused_before_anything_is_spent(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EntropySource, "key", lambda *_: pytest.fail("noise was drawn"))
    changes, words = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=words):
        person_request(**changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Question(["mean"], "x", 0, 1, per_person="median"), "'sum', 'mean'"),
        (lambda: Question(["mean"], "x", per_person="sum"), "needs a column and bounds"),
        (lambda: Question(["sum"], "x", 0, 1e300, per_person="sum"), r"between 2\^-960 and 2\^960"),
        (lambda: Question(["mean"], "x", 0, 1, error=1.0), "error of a mean depends on the data"),
        (lambda: Question(["count"], weight=0.0), "weight must be greater than 0, got 0.0"),
        (lambda: Question(["sum"], "x", 0, 1, per_person="sum", max_rows=2), "Nothing uses max_r"),
        (lambda: Question(["count"], max_rows=3, max_total_rows=2), "at most max_total_rows=2"),
        (lambda: Question(["count"], max_groups=0), "max_groups must be at least 1, got 0"),
        (lambda: Request(1.0, [Question(["sum"], "x", 0, 1, per_person="sum")]), "person is"),
        (lambda: Request(1.0, [COUNT], CITIES, max_rows=3), "max_rows needs person"),
        (lambda: Request(1.0, [COUNT], CITIES, without_id="own"), "person is missing"),
        (lambda: Request(1.0, [Question(["count"])], person="who", max_groups=2, max_rows=1),
         "Nothing uses max_groups"),
    ],
)  # fmt: skip
def test_questions_that_contradict_themselves_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()


# Costs --------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "budget",
    [
        {},
        {"neighbours": "replace"},
        {"mechanism": "gaussian", "delta": 1e-6},
        {"mechanism": "best", "delta": 1e-6},
        {"epsilon": None, "rho": 0.3, "mechanism": "gaussian"},
        {"epsilon": None, "rho": 0.3},
        {"groups": {"city": "discover"}, "delta": 1e-6},
        {"groups": {"city": "discover"}, "delta": 1e-6, "mechanism": "gaussian"},
        {"max_total_rows": 4},
        {"max_total_rows": 4, "max_rows": None, "max_groups": None, "neighbours": "replace"},
        {"max_total_rows": 4, "mechanism": "gaussian", "delta": 1e-6},
        {"max_total_rows": 4, "epsilon": None, "rho": 0.3},
        {"max_total_rows": 4, "groups": {"city": "discover"}, "delta": 1e-6},
    ],
)
def test_all_parts_together_are_within_the_budget(budget: dict[str, Any]) -> None:
    request = person_request(ALL, replace(COUNT, weight=3.0), **budget)
    cost = request.cost()
    losses = [loss for discovery in request.discoveries() for loss in discovery.losses]
    losses += losses_paid(request)
    if request.rho is not None:
        assert sum(loss.rho for loss in losses) == cost.rho <= Fraction("0.3")
        assert cost.rho > Fraction("0.3") * (1 - Fraction(1, 2**40))
    else:
        assert cost.epsilon is not None
        assert Fraction(999, 1000) < cost.epsilon <= 1
        composition_delta = float(cost.delta - cost.rho_delta)
        assert compose(losses, composition_delta).epsilon == cost.epsilon
    assert cost.delta <= Fraction(request.delta)


def test_weights_divide_the_budget() -> None:
    request = person_request(replace(COUNT, weight=3.0), Question(["count"]), max_rows=1)
    assert [query.epsilon for _, query in request.prepare()] == [0.75, 0.25]


def test_gaussian_noise_gains_the_root_of_the_groups() -> None:
    """With 100 groups per person, L1 is 100 and L2 is 10. With one group Laplace noise wins."""
    keys = {"city": tuple(range(200))}
    options = {"delta": 1e-6, "mechanism": "best", "groups": keys}
    many_groups, one_group = (person_request(max_groups=groups, **options) for groups in (100, 1))
    assert [query.rho is not None for _, query in many_groups.prepare()] == [True]
    assert [query.rho is not None for _, query in one_group.prepare()] == [False]
    assert many_groups.cost().delta == Fraction(1e-6)
    assert one_group.cost().delta == 0
    gaussian, laplace = (
        count_of(replace(many_groups, mechanism=name, delta=delta))
        for name, delta in (("gaussian", 1e-6), ("laplace", 0.0))
    )
    assert gaussian.mechanism.sensitivity == 30
    assert laplace.mechanism.sensitivity == 300
    # 1.96 deviations of 4.22 * 30, and 300 log(20): Balle and Wang's scale at epsilon 1 is 4.22.
    assert gaussian.error(0.95) < laplace.error(0.95) / 3


def test_a_wanted_error_costs_what_it_costs() -> None:
    """Discrete Laplace noise is beyond 50 with probability 2 a^51/(1 + a), with a = exp(-1/s)."""
    request = person_request(replace(COUNT, error=50.0), epsilon=None)
    query = count_of(request)
    assert query.error(0.95) == 50
    a = math.exp(-1 / query.mechanism.scale)
    assert 2 * a**51 / (1 + a) <= 0.05
    less = math.exp(-1 / (query.mechanism.scale * (1 + 1e-9)))
    assert 2 * less**51 / (1 + less) > 0.05
    assert request.cost().epsilon == Fraction(query.losses[0].amount)
    gaussian = replace(request, mechanism="gaussian", delta=1e-6)
    assert count_of(gaussian).error(0.95) == 50


# Bounds on all rows, and bounds of one question ---------------------------------------------------


def bounds_of(request: Request) -> list[tuple[int, int, int | None]]:
    """Return max_groups, max_rows and max_total_rows of the units of all plans."""
    units = [plan.unit for plan in request.plans().values()]
    return [(unit.max_groups, unit.max_rows, unit.max_total_rows) for unit in units if unit]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_groups": None, "max_rows": None}, (4, 4, 4)),
        ({"max_groups": None}, (4, 3, 4)),
        ({"max_rows": None}, (2, 4, 4)),
        ({}, (2, 3, 4)),
        ({"max_groups": None, "max_rows": None, "max_total_rows": 9}, (5, 9, 9)),
        ({"max_groups": None, "max_rows": None, "max_total_rows": 2**30,
          "groups": {"city": range(2**16 + 1)}}, (2**16, 2**30, 2**30)),
    ],
)  # fmt: skip
def test_with_a_bound_on_all_rows_the_other_bounds_are_optional(
    given: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    request = person_request(**{"max_total_rows": 4, **given})
    assert bounds_of(request) == [expected]


def test_a_bound_on_all_rows_needs_less_noise() -> None:
    """Of 2 groups with 3 rows, 4 rows count: L1 is 4, and L2 the root of 3^2 + 1."""
    request = person_request(max_total_rows=4)
    assert count_of(request).mechanism.sensitivity == 4
    gaussian = replace(request, mechanism="gaussian", delta=1e-6)
    assert math.isclose(count_of(gaussian).mechanism.sensitivity, math.sqrt(10))


def test_each_question_may_have_its_own_bounds() -> None:
    """Patients count once, stays three times; hospitals in two groups, regions in one."""
    groups = {"hospital": tuple("abcdef"), "region": ("n", "s")}
    patients = Question(["count"], max_rows=1)
    stays = Question(["count"], by=("hospital",))
    regions = Question(["count"], by=("region",), max_groups=1, max_total_rows=2)
    costs = Question(["sum"], "x", 0, 1, by=("hospital",), per_person="sum", max_groups=4)
    request = person_request(patients, stays, regions, costs, groups=groups)
    assert bounds_of(request) == [(1, 1, None), (2, 3, None), (1, 2, 2), (4, 1, None)]
    sensitivities = [query.noise.mechanism.sensitivity for _, query in request.prepare()]  # type: ignore[union-attr]
    assert sensitivities[:3] == [1, 6, 2]
    # Statistics with the same bounds share a plan, others do not.
    same, other = replace(stays, max_rows=3), replace(stays, max_rows=2)
    plans = person_request(stays, same, other, groups=groups).plans()
    assert len(plans) == 2


def by_group(table: publishing.Table) -> dict[tuple[str, Any], Any]:
    """Return each number of a table, by its statistic and group."""
    return {(each.release.query, each.group[0]): each.release.value for each in table.published}


def test_each_person_counts_once_in_a_group_and_costs_one_row() -> None:
    """The scale of the counts is that of a person's rows, and of the persons that of groups."""
    question = Question(["count", "persons"], by=("city",))
    request = person_request(question, epsilon=2e9)
    frame = visits()
    published = by_group(publish(frame, request))
    once = frame.group_by("who").agg(pl.col("city").n_unique() <= 2).filter("city")["who"]
    few = frame.filter(pl.col("who").is_in(once.implode()))
    numbers = by_group(publish(few, request))  # Nobody is in more groups than count.
    for city in CITIES["city"]:
        persons = few.filter(pl.col("city") == city)["who"].n_unique()
        assert numbers["persons", city] == persons
        assert published["persons", city] <= frame.filter(pl.col("city") == city)["who"].n_unique()
    prepared: Any = person_request(question).prepare()
    scales = {query.name: query.mechanism.scale for _, query in prepared}
    assert scales == {"count": pytest.approx(2 * 2 * 3), "persons": pytest.approx(2 * 2 * 1)}


def test_the_number_of_persons_takes_the_groups_filter_weight_and_error_of_its_question() -> None:
    question = Question(
        ["persons", "mean"], "x", 0, 10, by=("city",), where="x > 1", weight=3.0, max_groups=1
    )
    mean, persons = person_request(question).publish
    assert mean == replace(question, statistics=("mean",))
    options: dict[str, Any] = {
        "where": "x > 1", "weight": 3.0, "max_groups": 1, "max_rows": 1,
    }  # fmt: skip
    assert persons == Question(["persons"], by=("city",), **options)
    request = person_request(Question(["persons"], by=("city",), error=30.0), epsilon=None)
    ((_, query),) = request.prepare()
    assert isinstance(query, PersonCount)
    assert query.error(0.95) <= 30.0
    own_mean = Question(["persons", "mean"], "x", 0, 10, per_person="mean", by=("city",))
    assert person_request(own_mean, max_rows=None).publish[1].max_rows == 1


def test_the_number_of_persons_in_discovered_groups_is_that_which_discovered_them() -> None:
    persons = Question(["persons"], by=("city",))
    request = person_request(
        persons, max_rows=None, groups={"city": "discover"}, delta=1e-6, epsilon=20.0
    )
    table = publish(visits(), request)
    assert {each.release.query for each in table.published} == {"persons"}
    assert {each.release.shared for each in table.published} == {("groups of city", "persons")}
    assert losses_paid(request) == []  # Nothing more than the discovery.


def test_the_number_of_persons_needs_their_column() -> None:
    with pytest.raises(ArgumentError, match='needs the column that identifies them: person="'):
        Request(1.0, [Question(["persons"])])


def test_the_page_says_what_people_call_persons() -> None:
    page = render_record(rehearsal(person_request(Question(["persons"], by=("city",)))).record())
    assert "Number of persons, by city" in page
    options: dict[str, Any] = {"groups": {}, "max_groups": None, "max_rows": None}
    labelled = person_request(Question(["persons"]), labels={"persons": "patients"}, **options)
    assert "Number of patients" in render_record(rehearsal(labelled).record())
    assert labelled.uncounted == "clamped values"


def test_bounds_of_a_question_and_of_the_request_are_combined() -> None:
    """The total of one limits the rows and groups of the other."""
    assert bounds_of(person_request(replace(COUNT, max_total_rows=1))) == [(1, 1, 1)]
    assert bounds_of(person_request(replace(COUNT, max_rows=5), max_total_rows=4)) == [(2, 4, 4)]


def test_published_numbers_have_the_bounds_of_their_questions() -> None:
    """One person has 4 rows in each of 5 cities; at epsilon 10^6 noise is negligible."""
    frame = pl.DataFrame({"who": [1] * 20, "city": [*CITIES["city"]] * 4})
    questions = [
        Question(["count"], max_rows=1), Question(["count"], max_rows=9),
        replace(COUNT, max_groups=3, max_rows=2), replace(COUNT, max_total_rows=7, max_groups=5),
    ]  # fmt: skip
    request = person_request(*questions, epsilon=1e6, max_groups=None, max_rows=None)
    values = [row["value"] for row in publish(frame, request).rows()]
    assert values[:2] == [1, 9]
    assert sorted(values[2:7]) == [0, 0, 2, 2, 2]
    assert (sum(values[7:]), max(values[7:])) == (7, 4)  # Equal rows have equal hashes.


def test_groups_are_discovered_with_the_largest_bound_of_the_questions_about_them() -> None:
    groups = {"city": "discover", "day": "discover"}
    city, day = replace(COUNT, max_groups=4), Question(["count"], by=("day",), max_total_rows=3)
    request = person_request(COUNT, city, day, groups=groups, delta=1e-6)
    units = {discovery.columns: discovery.unit for discovery in request.discoveries()}
    assert [units[(name,)].max_groups for name in ("city", "day")] == [4, 2]  # type: ignore[union-attr]
    total = person_request(COUNT, max_groups=None, max_rows=None, max_total_rows=3,
                           groups={"city": "discover"}, delta=1e-6)  # fmt: skip
    (discovery,) = total.discoveries()
    assert discovery.unit is not None
    assert discovery.unit.max_groups == 3
    assert len(discovery.losses) == 3  # A person changes this many groups.
    replaced = replace(total, neighbours="replace", mechanism="laplace")
    assert len(replaced.discoveries()[0].losses) == 6


def test_quantiles_cost_all_rows_of_a_person_together() -> None:
    """Four rows in all share epsilon, or eight if another person replaces the first."""
    median = Question(["median"], "x", 0, 10, by=("city",))
    for neighbours, rows in (("add-remove", 4), ("replace", 8)):
        request = person_request(median, max_total_rows=4, neighbours=neighbours)
        ((_, query),) = request.prepare()
        assert query.epsilon_of_row == 1 / rows  # type: ignore[union-attr]
        assert request.cost().epsilon == 1


def test_rows_without_an_id_count_whatever_the_bounds_of_a_person() -> None:
    """Ann's three rows count as one, and as three persons without her id, as the unit says."""
    ann = pl.DataFrame({"who": ["ann"] * 3, "x": [1.0, 2.0, 3.0]})
    options: dict[str, Any] = {"person": "who", "max_rows": 1, "without_id": "own"}
    request = Request(1e6, [Question(["count"]), Question(["persons"])], **options)
    assert [row["value"] for row in publish(ann, request).rows()] == [1, 1]
    nameless = ann.with_columns(who=pl.lit(None, pl.String))
    assert [row["value"] for row in publish(nameless, request).rows()] == [3, 3]
    assert request.privacy_unit.endswith("each row without an id counts as one person")


def test_bounds_are_said_in_words() -> None:
    request = person_request(max_total_rows=4)
    unit = "one person (who), at most "
    assert request.privacy_unit == unit + "2 groups, 3 rows in each and 4 rows in all groups"
    assert "rows of a person beyond those that count" in request.uncounted
    total = replace(request, max_groups=None, max_rows=None)
    assert total.privacy_unit == unit + "4 rows in all groups"
    assert replace(request, max_groups=None).privacy_unit == (
        unit + "3 rows in each group and 4 rows in all groups"
    )
    ungrouped = person_request(
        Question(["count"]), max_groups=None, max_rows=None, max_total_rows=1
    )
    assert ungrouped.privacy_unit == unit + "1 row"
    own = person_request(COUNT, Question(["count"], max_rows=1))
    assert own.privacy_unit == (
        unit + "2 groups and 3 rows in each; count of rows, of each person at most 1 row"
    )
    only = person_request(replace(COUNT, max_total_rows=5), max_groups=None, max_rows=None)
    assert (
        only.privacy_unit
        == "one person (who); count of rows, by city, of each person at most 5 rows in all groups"
    )
    assert only.uncounted == "clamped values and rows of a person beyond those that count"


# Discovered groups --------------------------------------------------------------------------------


def test_persons_are_counted_once_in_each_of_their_groups() -> None:
    frame = pl.DataFrame(
        {
            "who": [1, 1, 1, 2, 2, 3, 4, 5],
            "city": ["a", "a", "b", "a", None, "", "a", "a"],
            "day": [1.0, 1.0, 2.0, math.nan, 1.0, -0.0, 0.0, None],
        }
    )
    request = person_request(groups={"city": "discover"}, delta=1e-6)
    (discovery,) = request.discoveries()
    counts = count_persons_by_group(frame, ["city"], discovery.unit)
    assert dict(zip(counts.keys, counts.persons.tolist(), strict=True)) == {("a",): 4, ("b",): 1}
    counts = count_persons_by_group(frame, ["day"], discovery.unit)
    numbers = dict(zip(counts.keys, counts.persons.tolist(), strict=True))
    assert numbers == {("1",): 2, ("2",): 1, ("0",): 2}


def test_groups_of_many_persons_appear_and_those_of_few_do_not() -> None:
    """At epsilon 1e4 for each the noise is not 0 with probability below 10^-1000."""
    crowd = visits(2_000)
    few = pl.DataFrame({"who": [-1] * 3_000, "city": ["kinsale"] * 3_000, "x": [1.0] * 3_000})
    request = person_request(ALL, COUNT, epsilon=1e5, delta=1e-9, groups={"city": "discover"})
    table = publish(pl.concat([crowd, few]), request)
    assert table.found == {("city",): tuple((city,) for city in sorted(CITIES["city"]))}
    assert {published.group[0] for published in table} == set(CITIES["city"])
    record = table.record()
    assert record["discovered"][0]["groups"] == sorted(CITIES["city"])
    assert record["privacy"]["delta"] == 1e-9
    assert json.loads(json.dumps(record))["request"]["groups"] == {"city": "discover"}


def test_progress_is_reported_from_the_first_pass_on(tmp_path: Path) -> None:
    """There is a pass for each discovered column, one for errors in the data, one for answers."""
    path = tmp_path / "visits.parquet"
    visits(500).write_parquet(path)
    progress: list[float] = []
    publish(
        path,
        person_request(epsilon=1e5, delta=1e-9, groups={"city": "discover"}),
        progress=progress.append,
    )
    assert progress == sorted(progress)
    assert {1 / 3, 2 / 3, 1.0} <= set(progress)


def test_a_column_may_be_discovered_together_with_a_declared_one() -> None:
    frame = visits(2_000).with_columns(sex=pl.lit("f"))
    question = Question(["count"], by=("city", "sex"))
    groups = {"city": "discover", "sex": ["f", "m"]}
    table = publish(frame, person_request(question, epsilon=1e5, delta=1e-9, groups=groups))
    assert len(table.rows()) == 2 * 5
    both = publish(
        frame,
        person_request(question, epsilon=1e5, delta=1e-9, groups=dict.fromkeys(groups, "discover")),
    )
    assert [published.group for published in both] == [
        (city, "f") for city in sorted(CITIES["city"])
    ]


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_two_columns_that_are_discovered_share_the_delta_that_is_set_aside(mechanism: str) -> None:
    """One person may be the only member of a group in each, so the probabilities add up."""
    groups = {"city": "discover", "sex": "discover"}
    questions = [MEDIAN, replace(MEDIAN, by=("sex",))]
    request = person_request(*questions, delta=1e-3, mechanism=mechanism, groups=groups)
    rules: list[Any] = request.discoveries()
    chances = [
        discovery_threshold._any_shown_probability(rule.noise.mechanism, rule.threshold, 2, 128)
        for rule in rules
    ]
    assert len(chances) == 2
    assert sum(chances) <= request.prices.aside  # Balls compare as certain.
    nearly = [
        discovery_threshold._any_shown_probability(rule.noise.mechanism, rule.threshold - 1, 2, 128)
        for rule in rules
    ]
    assert sum(nearly) > request.prices.aside


def test_of_more_groups_than_can_be_computed_the_largest_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error would waste the budget. Groups 1 to 9 have 10 to 90 persons."""
    monkeypatch.setattr(checking, "_MOST_COUNTS", 4 * 11)  # Four groups of 11 cells.
    rows = [(f"p{city}-{who}", city) for city in range(1, 10) for who in range(10 * city)]
    frame = pl.DataFrame(rows, schema=["who", "city"], orient="row").with_columns(x=pl.lit(1.0))
    request = person_request(MEDIAN, epsilon=1e5, delta=1e-9, groups={"city": "discover"})
    assert publish(frame, request).found == {("city",): (("6",), ("7",), ("8",), ("9",))}


def test_labels_do_not_depend_on_the_type_of_a_column() -> None:
    """One empty cell turns integers into floats; discovered groups are labelled by text."""
    frame = pl.DataFrame({"who": range(300), "city": [n % 12 for n in range(300)]})
    request = person_request(epsilon=1e5, delta=1e-9, groups={"city": "discover"})
    expected = tuple(str(city) for city in range(12))  # Ordered as numbers.
    for kind in (pl.Int64, pl.UInt8, pl.Float64, pl.String):
        table = publish(frame.with_columns(pl.col("city").cast(kind)), request)
        assert table.found == {("city",): tuple((city,) for city in expected)}
        assert table.to_arrow()["city"].to_pylist() == list(expected)


@pytest.mark.parametrize(
    "keys",
    [[2**64 - 1, -1], [date(2024, 2, 29), datetime(2024, 2, 29, 1)], [2**70, 5]],  # noqa: DTZ001
)
def test_every_declared_group_can_be_written_as_a_table(keys: list[Any]) -> None:
    table = publishing.rehearsal(Request(1.0, [COUNT], {"city": keys}))
    assert table.to_arrow().num_rows == table.to_polars().height == 2
    assert len(set(table.to_arrow()["city"].to_pylist())) == 2


def test_no_group_at_all_is_an_empty_table() -> None:
    frame = pl.DataFrame({"who": [1], "city": ["cork"], "x": [1.0]})
    table = publish(frame, person_request(delta=1e-9, groups={"city": "discover"}))
    assert (table.rows(), table.found) == ([], {("city",): ()})
    assert table.to_arrow().num_rows == table.to_pandas().shape[0] == 0
    assert "city" in table.to_polars().columns


@pytest.mark.sample(1)
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_groups_of_one_person_alone_appear_as_seldom_as_delta_says(mechanism: str) -> None:
    """Compare two data sets: in one, an additional person has 3,000 rows in three new groups.

    Without the person the groups never appear. With the person they appear in at most a fraction
    delta of the runs; delta is large here, so that runs can be counted. A threshold lower by one
    would be too low. Each of the two comparisons is a false alarm with probability 10^-8.
    """
    rounds = 20_000 if LONG else 2_000
    request = person_request(MEDIAN, delta=0.1, mechanism=mechanism, groups={"city": "discover"})
    discovery: Any = request.discoveries()[0]
    crowd = pl.DataFrame({"who": list(range(40)), "city": ["cork"] * 40})
    extra = pl.DataFrame({"who": [-1] * 3_000, "city": ["new", "newer", "newest"] * 1_000})
    without_person = count_persons_by_group(crowd, ["city"], discovery.unit)
    with_person = count_persons_by_group(pl.concat([crowd, extra]), ["city"], discovery.unit)
    assert without_person.keys == [("cork",)]
    assert sorted(with_person.persons.tolist()) == [1, 1, 40]  # Two of the three groups count.

    def count_runs(counts: PersonCounts, threshold: int, rounds: int = rounds) -> int:
        changed = replace(discovery, threshold=threshold)
        rng = dpnoise.Generator()
        runs = (changed.discover(counts.keys, counts.persons, rng) for _ in range(rounds))
        return sum(any(key != ("cork",) for key in groups) for groups in runs)

    assert count_runs(without_person, 1, rounds // 20) == 0  # Nothing is there to appear.
    delta = request.prices.aside
    assert delta == pytest.approx(0.1 if mechanism == "laplace" else 0.05)
    allowed = stats.binomtest(
        count_runs(with_person, discovery.threshold), rounds, delta, "greater"
    )
    check_probability(float(allowed.pvalue))
    lower = stats.binomtest(count_runs(with_person, discovery.threshold - 1), rounds, delta, "less")
    check_probability(float(lower.pvalue))


def test_what_is_wrong_is_found_before_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntropySource, "key", lambda *_: pytest.fail("noise was drawn"))
    frame = visits().with_columns(pl.when(pl.col("x") > 5).then(pl.col("x")).alias("x"))
    options = {"delta": 1e-6, "groups": {"city": "discover"}}
    with pytest.raises(ArgumentError, match="rows without a value"):
        publish(frame, person_request(ALL, **options))
    with pytest.raises(ArgumentError, match="no column 'income'"):
        publish(frame, person_request(replace(ALL, column="income"), **options))
    with pytest.raises(ArgumentError, match="do not identify a person"):
        publish(frame.with_columns(who=pl.lit(None, pl.Int64)), person_request(**options))


# From a file to a record --------------------------------------------------------------------------


def test_a_signed_request_may_be_about_persons(tmp_path: Path) -> None:
    path = tmp_path / "request.toml"
    path.write_text(
        'rho = 0.5\nmechanism = "gaussian"\nperson = ["ward", "who"]\nmax_groups = 2\n'
        'max_rows = 3\nneighbours = "replace"\nwithout_id = "own"\n[groups]\n'
        'city = ["cork", "dublin"]\n[[publish]]\nstatistics = ["count"]\nby = ["city"]\n'
    )
    request = load_request(path).request
    assert request.person == ("ward", "who")
    assert request.privacy_unit == (
        "one person (ward, who), at most 2 groups and 3 rows in each; "
        "each row without an id counts as one person"
    )
    assert request.neighbours_in_words == "one person in another's place"
    assert request.cost_in_words == "rho 0.5"


def test_a_file_may_bound_all_rows_and_single_questions(tmp_path: Path) -> None:
    path = tmp_path / "request.toml"
    path.write_text(
        'epsilon = 1.0\nperson = "who"\nmax_total_rows = 4\n[groups]\ncity = ["cork", "dublin"]\n'
        '[[publish]]\nstatistics = ["count"]\nby = ["city"]\n'
        '[[publish]]\nstatistics = ["count"]\nmax_rows = 1\n'
    )
    assert bounds_of(load_request(path).request) == [(2, 4, 4), (1, 1, 4)]


def test_the_command_line_bounds_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "visits.csv"
    visits().write_csv(path)
    command = ["release", str(path), "--person", "who", "--max-total-rows", "4", "--json"]
    assert cli.main([*command, "--group-by", "city=cork,dublin"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["privacy_unit"] == "one person (who), at most 4 rows in all groups"
    assert {release["scale"] for release in record["releases"]} == {4.0}


def test_the_record_says_what_was_protected_and_spent() -> None:
    record = publish(visits(), person_request(ALL)).record()
    assert record["format"] == 4
    assert record["privacy_unit"] == "one person (who), at most 2 groups and 3 rows in each"
    assert record["neighbours"] == "differ by one person added or removed"
    assert record["privacy"]["epsilon"] <= 1
    assert (record["privacy"]["delta"], record["ledger"]) == (0, None)


def test_the_command_line_publishes_about_persons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "visits.csv"
    visits(2_000).write_csv(path)
    common = ["release", str(path), "--column", "x", "--person", "who", "--max-rows", "3"]
    declared = [*common, "--max-groups", "2", "--group-by", "city=cork,dublin,galway"]
    assert cli.main(declared) == 0
    assert "epsilon 1 in all: count 1. One person added or removed." in capsys.readouterr().out
    discovered = [*common, "--max-groups", "2", "--group-by", "city", "--delta", "1e-6"]
    assert cli.main([*discovered, "--epsilon", "1000"]) == 0
    out = capsys.readouterr().out
    assert "epsilon 1000, delta 1e-06 in all: groups of city 500, count 500." in out
    assert all(f"{city}, count" in out for city in CITIES["city"])
    assert (
        cli.main([*discovered, "--check", "--mechanism", "gaussian", "--neighbours", "replace"])
        == 0
    )
    out = capsys.readouterr().out
    assert "those whose noisy number of persons is" in out
    assert "One person in another's place." in out
    assert "Protected: one person (who), at most 2 groups and 3 rows in each." in out
    per_person = [
        *common[:-2],
        "--per-person",
        "mean",
        "--lower",
        "0",
        "--upper",
        "10",
        "--rho",
        "0.5",
    ]
    assert cli.main([*per_person, "--query", "mean", "--mechanism", "gaussian"]) == 0
    assert "rho 0.5 in all: mean rho 0.5. One person added or removed." in capsys.readouterr().out
    assert cli.main([*common, "--max-groups", "9", "--group-by", "city=cork"]) == 2
    assert "--max-groups must be at most 1" in capsys.readouterr().err


def test_bounds_on_groups_need_groups(capsys: pytest.CaptureFixture[str]) -> None:
    for question, options in (
        (Question(["count"]), {"max_groups": 1}),
        (Question(["count"], max_groups=1), {"max_groups": None}),
    ):
        with pytest.raises(ArgumentError, match="Nothing uses max_groups: no statistic has groups"):
            person_request(question, **options)
    command = ["release", "--sample", "--person", "city", "--max-rows", "2", "--max-groups", "1"]
    assert cli.main(command) == 2
    assert "Nothing uses max_groups" in capsys.readouterr().err


def test_every_output_says_that_rows_without_a_value_are_left_out() -> None:
    """It says the rule of the request, whether or not there are such rows."""
    rule = "rows without a value"
    values = Question(["mean", "count"], "x", 0, 10)
    persons = replace(values, statistics=("mean", "persons"))
    options: dict[str, Any] = {"groups": {}, "max_groups": None, "missing": "drop"}
    request = person_request(values, **options)
    words = f"clamped values, {rule} and rows of a person beyond those that count"
    assert request.uncounted == words
    table = rehearsal(request)
    assert f"do not cover {words}." in str(table)
    assert f"and do not cover {words}" in render_record(table.record())
    assert f"{rule} (persons counts them too)" in person_request(persons, **options).uncounted
    assert rule not in person_request(Question(["count"]), **options).uncounted
    assert rule not in replace(request, missing="error").uncounted


def test_persons_counts_people_without_a_value() -> None:
    """`count` of a column counts its values, `persons` everybody."""
    data = pl.DataFrame({"who": ["a", "b", "c"], "x": [1.0, None, None]})
    question = Question(["count", "persons"], "x")
    request = Request(1e6, [question], person="who", max_rows=1, missing="drop")
    assert [row["value"] for row in publish(data, request).rows()] == [1, 3]


def test_every_output_says_that_margins_do_not_count_rows_that_are_left_out() -> None:
    request = person_request(max_groups=2, max_rows=3)
    words = "clamped values and rows of a person beyond those that count"
    assert request.uncounted == words
    table = rehearsal(request)
    assert table.record()["margins"] == f"do not cover {words}"
    notes = {"smaller than its margin; the margin does not cover " + words.partition(" and ")[2]}
    assert {row["note"] for row in table.rows()} == notes
    assert f"do not cover {words}." in str(table)
    assert f"and do not cover {words}" in render_record(table.record())
    by_row = rehearsal(Request(1.0, [Question(["count"])]))
    assert {row["note"] for row in by_row.rows()} == {"smaller than its margin"}
    assert "do not cover clamped values." in str(by_row)


def sensitivities(request: Request, groups: dict[Any, Any] | None = None) -> list[float]:
    queries: list[Any] = [query for _, query in request.prepare(groups)]
    return [query.mechanism.sensitivity for query in queries]


def test_a_row_is_in_one_group_and_a_person_has_one_value_of_their_own() -> None:
    """Values are whole numbers of 0 to 8, and the grid is 1."""
    groups = {"city": ["cork", "dublin", "galway"]}
    by_city: dict[str, Any] = {"by": ["city"], "lower": 0, "upper": 8, "grid": 1.0}
    assert sensitivities(Request(1.0, [Question(["sum"], "x", **by_city)], groups)) == [8.0]
    own = Question(["sum"], "x", **by_city, per_person="sum")
    of_rows = Question(["sum"], "x", **by_city)
    request = person_request(own, of_rows, groups=groups)
    assert sensitivities(request) == [2 * 8.0, 2 * 3 * 8.0]


def test_a_person_is_in_no_more_groups_than_were_discovered() -> None:
    bounds = {"max_groups": 3, "max_rows": 2, "delta": 1e-6, "mechanism": "laplace"}
    request = person_request(COUNT, groups={"city": "discover"}, **bounds)
    assert sensitivities(request) == [6.0]
    assert sensitivities(request, {("city",): [("cork",), ("dublin",)]}) == [4.0]
