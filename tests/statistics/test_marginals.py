"""Counts and sums of several groupings that add up: exactly, closer, and with margins that hold."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from support.alarms import check_probability
from support.choices import sample_parameters

from dpnoise import testing
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics import Question, Request, load_request, publish, publishing
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.marginals import (
    Adjustment,
    Marginal,
    from_coarse_to_fine,
    least_squares,
    level_of,
    share_out,
)
from dpnoise.statistics.publishing import Table
from dpnoise.statistics.queries import Count, Sum
from dpnoise.statistics.report import render_record, request_toml
from dpnoise.statistics.results import combined_error

SURE = 1e6  # With this epsilon no count has noise.
GROUPS: dict[str, list[str]] = {"town": list("abcde"), "sex": ["f", "m"], "age": ["0", "1", "2"]}
COUNTIES = {"north": ["a", "b"], "south": ["e", "c"], "west": ["d"]}
HIERARCHY: dict[str, Any] = {
    "town": {"county": COUNTIES},
    "county": {"half": {"left": ["west", "north"], "right": ["south"]}},
}
CHAIN = [(), ("half",), ("county",), ("town",), ("town", "sex"), ("age", "town", "sex")]
OVERLAPPING = [("sex", "age"), ("county", "sex"), ("town",), ("age",), ()]
DRAWS = 250

Floats = NDArray[np.float64]


def counts(groupings: Sequence[Sequence[str]], **options: Any) -> Request:
    questions = [Question(["count"], by=by) for by in groupings]
    settings = {"groups": GROUPS, "consistent": True, "hierarchy": HIERARCHY, **options}
    return Request(**{"epsilon": 1.0, "publish": questions, **settings})


def people(rows: int = 2000) -> pl.DataFrame:
    rng = np.random.default_rng()
    columns = {name: rng.choice([*keys, "elsewhere"], rows) for name, keys in GROUPS.items()}
    return pl.DataFrame({**columns, "x": rng.integers(-40, 400, rows) / 8})


def groups_of(column: str, row: dict[str, str]) -> str:
    """Return the group of a row of finest groups."""
    for finer, coarser in HIERARCHY.items():
        for name, parts in coarser.items():
            if name == column:
                below = groups_of(finer, row)
                return next(str(key) for key, keys in parts.items() if below in keys)
    return row[column]


def table_rows(columns: Sequence[str]) -> Iterator[dict[str, str]]:
    for keys in product(*(GROUPS[name] for name in columns)):
        yield dict(zip(columns, keys, strict=True))


Values = dict[tuple[tuple[str, ...], tuple[Any, ...]], Fraction]


def values_of(rows: Sequence[dict[str, Any]], groupings: Sequence[Sequence[str]]) -> Values:
    """Return published numbers by the columns and keys of their groups."""
    values: Values = {}
    for row in rows:
        by = next(
            tuple(columns)
            for columns in groupings
            if all((row.get(name) is not None) == (name in columns) for name in LEVELS)
        )
        values[by, tuple(row[name] for name in by)] = Fraction(row["value"])
    return values


LEVELS = ("town", "county", "half", "sex", "age")


def check_adding_up(values: Values, groupings: Sequence[Sequence[str]]) -> int:
    """Fail if a number is not the sum of its parts; return how many were compared."""
    compared = 0
    refined = {"half": {"county", "town"}, "county": {"town"}}
    for coarse, fine in product(groupings, groupings):
        finer = [name for name in coarse if {name, *refined.get(name, ())}.isdisjoint(fine)]
        if finer or coarse == fine:
            continue
        sums: dict[Any, Fraction] = {}
        columns = [name for name in ("town", "sex", "age") if name in fine or name == "town"]
        seen = set()
        for row in table_rows(columns):
            part = tuple(groups_of(name, row) for name in fine)
            if part not in seen:
                seen.add(part)
                whole = tuple(groups_of(name, row) for name in coarse)
                sums[whole] = sums.get(whole, Fraction(0)) + values[tuple(fine), part]
        for whole, total in sums.items():
            assert values[tuple(coarse), whole] == total, (coarse, fine, whole)
            compared += 1
    return compared


def marginal(groupings: Sequence[Sequence[str]], by: Sequence[str]) -> Marginal:
    request = counts(groupings, clamp=False)
    return request.marginal(Question(["count"], by=by), "count")


# What is published adds up ------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("options", [{}, {"rho": 0.05, "epsilon": None}, {"epsilon": 1e-4}])
@pytest.mark.parametrize(
    ("groupings", "is_whole"), [(CHAIN, True), (CHAIN, False), (OVERLAPPING, False)]
)
def test_published_counts_add_up_in_every_table(
    groupings: list[tuple[str, ...]], is_whole: Any, options: dict[str, Any]
) -> None:
    if "rho" in options:
        options = {**options, "mechanism": "gaussian"}
    table = publish(people(), counts(groupings, clamp=is_whole, **options))
    values = values_of(table.rows(), groupings)
    assert check_adding_up(values, groupings) > 5
    record = json.loads(json.dumps(table.record()))
    recorded = [release["value"] for release in record["releases"]]
    assert recorded == [row["value"] for row in table.rows()]
    assert table.to_polars()["value"].to_list() == recorded
    if is_whole:
        assert all(isinstance(value, int) and value >= 0 for value in recorded)


@pytest.mark.parametrize(("lower", "groupings"), [(-5, OVERLAPPING), (0, CHAIN)])
def test_published_sums_add_up_without_a_rounding_error(
    lower: float, groupings: list[tuple[str, ...]]
) -> None:
    questions = [Question(["sum"], "x", lower, 50, by=by) for by in groupings]
    request = replace(counts(CHAIN), publish=questions, epsilon=0.01)
    values = values_of(publish(people(), request).rows(), groupings)
    assert check_adding_up(values, groupings) > 5
    assert (min(values.values()) < 0) == (lower < 0)  # Some sums are smaller than their noise.
    if lower == 0:
        with pytest.raises(ValueError, match="The sums of groupings that overlap add up only if"):
            replace(request, publish=[Question(["sum"], "x", 0, 50, by=by) for by in OVERLAPPING])


def test_with_hardly_any_noise_the_numbers_are_those_of_rows_in_declared_groups() -> None:
    """A total counts what its parts count: rows with an undeclared group are in neither."""
    frame = people()
    inside = frame.filter(*(pl.col(name).is_in(keys) for name, keys in GROUPS.items()))
    assert inside.height < frame.height
    questions = [Question(["count", "sum"], "x", -5, 50, by=by) for by in CHAIN]
    table = publish(frame, replace(counts(CHAIN), publish=questions, epsilon=SURE))
    for published in table:
        rows = inside
        for column, key in zip(published.by, published.group, strict=True):
            base = column if column in GROUPS else "town"
            parts = [part for part in GROUPS[base] if groups_of(column, {base: part}) == key]
            rows = rows.filter(pl.col(base).is_in(parts))
        exact = rows.height if published.release.query == "count" else rows["x"].sum()
        assert published.release.value == pytest.approx(exact, abs=0.01)
        assert published.release.adjusted


def test_a_coarser_column_need_not_be_in_the_data() -> None:
    frame = pl.DataFrame({"sex": ["f", "m", "m"], "town": ["a", "b", "d"]})
    groupings = [("sex", "county"), ("town", "sex")]
    table = publish(frame, counts(groupings, epsilon=SURE))
    shown = {(p.by, p.group): p.release.value for p in table if p.release.value}
    assert shown == {
        (("sex", "county"), ("f", "north")): 1,
        (("sex", "county"), ("m", "north")): 1,
        (("sex", "county"), ("m", "west")): 1,
        (("town", "sex"), ("a", "f")): 1,
        (("town", "sex"), ("b", "m")): 1,
        (("town", "sex"), ("d", "m")): 1,
    }


def test_numbers_of_all_rows_need_no_groups() -> None:
    frame = people()
    table = publish(frame, counts([(), ()], epsilon=SURE, hierarchy={}))
    assert [published.release.value for published in table] == [frame.height] * 2
    assert str(table).splitlines()[-2] == "Adjusted to add up: each count of rows."


def test_other_statistics_are_untouched() -> None:
    every = Question(
        ["mean", "count", "median", "histogram", "std", "sum"], "x", -5, 50, edges=[0, 20, 50]
    )
    total = Question(["count"], "x")
    request = replace(counts(CHAIN), publish=[replace(every, by=["town"]), total])
    table = publish(people(), request)
    adjusted = {(p.by, p.release.query) for p in table if p.release.adjusted}
    assert adjusted == {(("town",), "count"), ((), "count")}  # The sum has no other grouping.
    spread = {p.release.shared for p in table if p.release.query in {"mean", "std"}}
    assert spread == {("mean", "std")}


def test_the_noisy_numbers_alone_decide_the_adjusted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, request = people(), counts(CHAIN)
    key = bytes(32)
    adjusted = publish(frame, request, testing.fixed_generator(key))
    real = Adjustment.adjust_releases
    seen: list[Any] = []

    def keep(_: Adjustment, noisy: Any) -> Any:
        seen.append(noisy)
        return noisy

    monkeypatch.setattr(Adjustment, "adjust_releases", keep)
    noisy = publish(frame, request, testing.fixed_generator(key))
    assert [p.release.value for p in noisy] != [p.release.value for p in adjusted]
    ((_, adjustment),) = request.adjustments()
    again = [release for part in real(adjustment, seen[0]) for release in part]
    assert again == [p.release for p in adjusted]


# Least squares ------------------------------------------------------------------------------------


def project(columns: list[list[Fraction]], numbers: list[Fraction]) -> list[Fraction]:
    """Return the nearest combination of columns, in exact fractions (Gram and Schmidt)."""
    basis: list[list[Fraction]] = []
    nearest = [Fraction(0)] * len(numbers)

    def along(vector: list[Fraction], direction: list[Fraction]) -> Fraction:
        squared = sum(d * d for d in direction)
        return sum((v * d for v, d in zip(vector, direction, strict=True)), Fraction(0)) / squared

    for column in columns:
        rest = column
        for direction in basis:
            factor = along(rest, direction)
            rest = [r - factor * d for r, d in zip(rest, direction, strict=True)]
        if any(rest):
            basis.append(rest)
            factor = along(numbers, rest)
            nearest = [n + factor * r for n, r in zip(nearest, rest, strict=True)]
    return nearest


@pytest.mark.parametrize(
    "groupings",
    [
        [(), ("half",), ("county",), ("town",)],
        [("sex", "town"), ("county",), ("sex", "half"), ()],
        [("sex", "age"), ("age",), ()],
        [("sex", "county"), ("age", "sex"), ("town",)],
        [("half",), ("county", "sex")],
        [(), ()],
    ],
)
def test_estimates_are_the_weighted_least_squares_solution(
    groupings: list[tuple[str, ...]],
) -> None:
    """Variances are squares, so that weighted columns are fractions."""
    rng = np.random.default_rng()
    marginals = [marginal(groupings, by) for by in groupings]
    deviations = [int(d) for d in rng.integers(1, 5, len(marginals))]
    noisy = [rng.integers(-50, 50, one.size).astype(float) for one in marginals]
    cells = least_squares(marginals, noisy, [float(d * d) for d in deviations])
    scaled = [
        Fraction(number) / d
        for part, d in zip(noisy, deviations, strict=True)
        for number in part.tolist()
    ]
    columns = [
        [
            Fraction(int(one.group_of_cell[cell] == group), d)
            for one, d in zip(marginals, deviations, strict=True)
            for group in range(one.size)
        ]
        for cell in range(math.prod(marginals[0].shape))
    ]
    nearest = iter(project(columns, scaled))
    for one, d in zip(marginals, deviations, strict=True):
        exact = [float(next(nearest) * d) for _ in range(one.size)]
        assert one.add_up(cells) == pytest.approx(exact, abs=1e-9)


def test_a_chain_is_found_in_any_order() -> None:
    order = [3, 0, 5, 1, 4, 2]
    marginals = [marginal(CHAIN, CHAIN[i]) for i in order]
    found = from_coarse_to_fine(marginals)
    assert found is not None
    assert [order[i] for i in found] == list(range(6))
    assert from_coarse_to_fine([marginal(OVERLAPPING, by) for by in OVERLAPPING]) is None


@given(
    total=st.integers(0, 200),
    targets=st.lists(st.floats(-100, 100), min_size=1, max_size=8),
)
def test_parts_are_the_nearest_non_negative_numbers_rounded(
    total: int, targets: list[float]
) -> None:
    parts = share_out(total, np.array(targets))
    assert parts.sum() == total
    assert parts.min() >= 0
    # The nearest numbers are max(target - t, 0) for the t with which they add up to the total.
    low, high = min(targets) - total - 1, max(targets)
    for _ in range(100):
        middle = (low + high) / 2
        is_high = sum(max(target - middle, 0) for target in targets) > total
        low, high = (middle, high) if is_high else (low, middle)
    nearest = np.maximum(np.array(targets) - high, 0)
    assert np.abs(parts - nearest).max() < 1 + 1e-6


def test_parts_of_huge_numbers_add_up() -> None:
    total = 2**61 + 1
    parts = share_out(total, np.array([1e18, 3.0, 1.2e18]))
    assert sum(parts.tolist()) == total
    assert parts.min() >= 0


# Margins ------------------------------------------------------------------------------------------


def adjustment_and_draws(
    groupings: Sequence[tuple[str, ...]],
    make: Callable[[], Count | Sum],
    truth: Floats,
    *,
    clamp: bool = False,
    confidence: float = 0.9,
) -> Iterator[list[tuple[Floats, Floats, Floats, Floats, Floats]]]:
    """Yield values, exact values, noisy values, margins and joint margins of each marginal."""
    marginals = [marginal(groupings, by) for by in groupings]
    queries = [make() for _ in marginals]
    adjustment = Adjustment(marginals, queries, confidence, clamp=clamp)
    exact = [one.add_up(truth) for one in marginals]
    for _ in range(DRAWS):
        noisy = [
            query._publish(part.astype(np.int64), confidence, None)
            for query, part in zip(queries, exact, strict=True)
        ]
        adjusted = adjustment.adjust_releases(noisy)
        yield [
            (
                np.array([float(release.value) for release in after]),
                part * (queries[0].bounds.grid if isinstance(queries[0], Sum) else 1.0),
                np.array([float(release.value) for release in before]),
                np.array([release.error for release in after]),
                np.array([release.joint_error or math.inf for release in after]),
            )
            for before, after, part in zip(noisy, adjusted, exact, strict=True)
        ]


def small_cells(mean: float) -> Floats:
    return np.random.default_rng().poisson(mean, 30).astype(float)


CASES: dict[str, Any] = {
    "whole, empty cells": (CHAIN, True, lambda: Count(None, 0.5, clamp=False), 0.3),
    "whole, large cells": (CHAIN, True, lambda: Count(None, 0.5, clamp=False), 1000),
    "fractions": (OVERLAPPING, False, lambda: Count(None, 0.5, clamp=False), 3),
    "little noise": (OVERLAPPING, False, lambda: Count(None, 3.0, clamp=False), 3),
    "Gaussian": (OVERLAPPING, False, lambda: Count(None, Loss("gaussian", 0.02), clamp=False), 3),
    "sums": (OVERLAPPING, False, lambda: Sum("x", 0, 8, 0.5, 0.25, clamp=False), 100),
    "sums from 0": (CHAIN, True, lambda: Sum("x", 0, 8, 0.5, 0.25, clamp=False), 10),
}


@pytest.mark.parametrize("case", sample_parameters(CASES, 1))
def test_margins_hold_as_often_as_they_say(case: str) -> None:
    """The numbers are closer than before, and margins of fractions are not too wide."""
    groupings, clamp, make, mean = CASES[case]
    outside: list[list[Any]] = [[] for _ in groupings]
    all_outside: list[list[bool]] = [[] for _ in groupings]
    squares: list[list[tuple[float, float]]] = [[] for _ in groupings]
    for draw in adjustment_and_draws(groupings, make, small_cells(mean), clamp=clamp):
        for i, (values, exact, noisy, margins, joint) in enumerate(draw):
            outside[i].append(np.abs(values - exact) > margins)
            all_outside[i].append(bool((np.abs(values - exact) > joint).any()))
            squares[i].append((((values - exact) ** 2).mean(), ((noisy - exact) ** 2).mean()))
    for i, by in enumerate(groupings):
        beyond = np.array(outside[i]).sum(axis=0)  # Draws are independent, cells are not.
        check_probability(beyond.size * stats.binom.sf(beyond.max() - 1, DRAWS, 0.1))
        check_probability(stats.binom.sf(sum(all_outside[i]) - 1, DRAWS, 0.1))
        after, before = np.array(squares[i]).mean(axis=0)
        assert after < before, (by, after, before)
        if case in {"fractions", "sums"}:
            check_probability(beyond.size * stats.binom.cdf(beyond.max(), DRAWS, 0.08))


def test_the_error_of_a_total_is_that_of_two_estimates() -> None:
    """A total and the sum of its five parts have variances v and 5 v, together 5/6 v."""
    groupings = [(), ("town",)]
    truth = np.array([100.0, 200, 300, 400, 500])
    draws = adjustment_and_draws(groupings, lambda: Count(None, 0.1, clamp=False), truth)
    errors = np.array([(draw[0][0] - draw[0][1])[0] for draw in draws])
    noise = Count(None, 0.1, clamp=False).noise.deviation ** 2
    # The fourth moment of Laplace noise is 6 squared variances, so that of a sum is at most that.
    deviation = noise * math.sqrt(5 / DRAWS)
    assert abs((errors**2).mean() - noise * 5 / 6) < 6 * deviation


@pytest.mark.parametrize("scale", [0.3, 1.0, 50.0])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_margins_of_discrete_noise_are_those_of_its_exact_law(
    scale: float, confidence: float
) -> None:
    """The law of D1 + D2/2 + D3/2 is computed by convolution of probabilities."""
    noise = Count(None, 1 / scale, clamp=False).noise
    size = math.ceil(40 * scale)
    steps = np.arange(-size, size + 1)
    law = np.exp(-np.abs(steps) / scale)
    law /= law.sum()
    doubled = np.zeros(2 * law.size - 1)
    doubled[::2] = law
    whole = np.convolve(doubled, np.convolve(law, law))
    places = np.abs(np.arange(whole.size) - whole.size // 2) / 2
    margin = combined_error(
        [(noise, np.array([1.0, 0.5, 0.0])), (noise, np.array([-0.5]))], confidence
    )
    assert whole[places > margin].sum() <= 1 - confidence
    # Not wider than needed: by 1/64 of a standard deviation, and the step of the law.
    spread = math.sqrt(1.5) * noise.deviation
    assert whole[places > margin * 0.98 - spread / 32 - 0.5].sum() > (1 - confidence) * 0.98


@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 1e-6, 1 - 1e-12])
def test_margins_of_combined_noise_are_those_of_known_laws(confidence: float) -> None:
    """Rounded integers add half of their weights."""
    weights = np.array([1.0, -0.5, 0.25, 0.25])
    for query in (Sum("x", 0, 8, 0.5, 0.25), Sum("x", 0, 8, Loss("gaussian", 0.5), 0.25)):
        known = query.noise.weighted_error(weights.tolist(), confidence)
        ours = combined_error([(query.noise, weights)], confidence)
        widened = query.noise.deviation / 32
        # Beyond the series there is only a bound on the tails of all such noises.
        most = known * 1.01 + widened if confidence < 1 - 1e-8 else 6 * known
        assert known * 0.99 <= ours <= most


def test_a_single_noise_keeps_its_exact_margin() -> None:
    noise = Count(None, 0.5).noise
    assert combined_error([(noise, np.array([0.0, 1.0]))], 0.95) == noise.error(0.95)


# Persons ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_all_rows_of_a_person_may_be_in_one_coarser_group(neighbours: str, mechanism: str) -> None:
    """The sensitivity of 2 groups and 3 rows each is 6 rows in a county, reached by this person."""
    request = counts(
        [(), ("county",), ("town",)], person="who", max_groups=2, max_rows=3,
        neighbours=neighbours, mechanism=mechanism, delta=1e-6 if mechanism == "gaussian" else 0.0,
    )  # fmt: skip
    moves = 2 if neighbours == "replace" else 1
    expected = {
        "laplace": [6, 6 * moves, 6 * moves],
        "gaussian": [6, 6 * math.sqrt(moves), 3 * math.sqrt(2 * moves)],
    }[mechanism]
    queries: list[Any] = [query for _, query in request.prepare()]
    sensitivities = [query.mechanism.sensitivity for query in queries]
    assert sensitivities == pytest.approx(expected, rel=1e-12)
    (plan,) = request.plans().values()
    assert plan.unit is not None
    assert (plan.unit.max_groups, plan.unit.max_rows) == (2, 3)
    assert plan.grouped == ["town"]


def test_numbers_of_persons_with_many_rows_add_up() -> None:
    frame = people(3000).with_columns(who=pl.int_range(3000) % 40)
    request = counts(CHAIN, person="who", max_groups=4, max_rows=2, epsilon=SURE)
    table = publish(frame, request)
    assert check_adding_up(values_of(table.rows(), CHAIN), CHAIN) > 5
    assert table.published[0].release.value <= 40 * 4 * 2
    assert "rows of a person beyond those that count" in table.rows()[0]["note"]
    assert table.rows()[0]["note"].startswith("adjusted to add up; ")


# Requests -----------------------------------------------------------------------------------------


def counties(**parts: Any) -> dict[str, Any]:
    return {"hierarchy": {"town": {"county": parts}}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"consistent": "yes"}, "consistent must be true or false"),
        ({"consistent": False}, "grouped by a coarser column of a hierarchy, got by=['half']"),
        ({"groupings": [("town",)]}, "Nothing adds up: a consistent request needs"),
        ({"groupings": OVERLAPPING}, "The counts of groupings that overlap add up only"),
        ({"groupings": [("town", "county"), ()]}, "by must name one level of a hierarchy"),
        ({"groups": {**GROUPS, "town": "discover"}}, "'town' must be declared to have a hierarchy"),
        ({"groups": {**GROUPS, "sex": "discover"}, "delta": 1e-6}, "needs declared groups"),
        ({"groups": {**GROUPS, "county": ["north"]}}, "'county' come from the hierarchy: leave"),
        ({"groups": {"sex": ["f", "m"]}}, "The groups of 'town' must be declared."),
        (counties(north=list("abce")), "'d' is in no group of 'county'"),
        (counties(x=list("abcde"), y=["a"]), "'a' is in two groups of 'county'"),
        (counties(x=list("abcdez")), "'z' is not a group of 'town'"),
        (counties(x="abcde"), "must be a text with a list"),
        (counties(), "hierarchy must name for each column one"),
        ({"hierarchy": ["town"]}, "hierarchy must name for each column one coarser column"),
        ({"hierarchy": {"sex": {"age": {"x": ["f", "m"]}}, "age": {"sex": {"f": ["x"]}}}},
         "The groups of 'sex' must be declared."),
    ],
)  # fmt: skip
def test_a_request_that_cannot_add_up_is_an_error(options: dict[str, Any], words: str) -> None:
    groupings = options.pop("groupings", CHAIN)
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        counts(groupings, **options)


def test_margins_asked_for_and_two_hierarchies_are_refused() -> None:
    asked = [Question(["count"], by=by, error=5) for by in ((), ("town",))]
    with pytest.raises(ValueError, match="a budget in place of errors"):
        replace(counts(CHAIN), epsilon=None, publish=asked)
    hierarchy = {"town": {"county": COUNTIES}, "age": {"adult": {"no": ["0"], "yes": ["1", "2"]}}}
    with pytest.raises(ValueError, match="The counts that add up must use one hierarchy"):
        counts([("county",), ("adult",)], clamp=False, hierarchy=hierarchy)
    with pytest.raises(ValueError, match="Only the counts and sums of a consistent request can"):
        replace(counts(CHAIN), publish=[Question(["mean"], "x", 0, 1, by=["county"])])


def test_a_level_of_numbers_keeps_their_types() -> None:
    hierarchy: dict[str, Any] = {"code": {"digit": {"one": [1, 10], "two": [2.5]}}}
    level = level_of("digit", hierarchy, {"code": (10, 2.5, 1)})
    assert level.group_of_key.tolist() == [0, 1, 0]


def test_a_request_is_the_same_after_toml(tmp_path: Path) -> None:
    request = counts(CHAIN)
    text = request_toml(request.to_dict())
    assert '[hierarchy.town.county]\nnorth = ["a", "b"]' in text
    path = tmp_path / "request.toml"
    path.write_text(text)
    loaded = load_request(path).request
    assert loaded.to_dict() == request.to_dict()
    assert replace(loaded, epsilon=2.0).hierarchy == loaded.hierarchy
    declared = '\n[groups]\ntown = ["a", "b"]\n[hierarchy.town.county]\nx = ["a", "b"]\n'
    path.write_text(
        f"epsilon = 1\nconsistent = true\n{declared}"
        '[[publish]]\nstatistics = ["count"]\n[[publish]]\nstatistics = ["count"]\nby = ["county"]'
    )
    assert load_request(path).request.groups["county"] == ("x",)


def test_every_output_says_what_was_adjusted() -> None:
    request = counts([(), ("county",), ("town", "sex")])
    words = (
        "Adjusted to add up: each count of rows, of the rows in declared groups of town and sex."
    )
    table = publish(people(), request)
    record = table.record()
    for text in (str(request), str(table), table._repr_html_(), render_record(record)):
        assert words in text
    assert record["adjusted"] == [words]
    assert all(release["adjusted"] for release in record["releases"])
    assert record["releases"][0]["mechanism"] == "discrete Laplace noise, exact, adjusted to add up"
    assert {row["note"] for row in table.rows()} == {"adjusted to add up"}
    plain = replace(request, publish=[Question(["count"])], consistent=False)
    assert words not in str(publishing.rehearsal(plain))


@pytest.mark.parametrize("epsilon", [1e-12, 1e100, 1e200])
def test_numbers_add_up_with_extreme_noise(epsilon: float) -> None:
    """The square of the smallest scale is not a float."""
    request = replace(counts([(), ("town",)]), epsilon=epsilon)
    total, *parts = publish(people(), request).rows()
    assert total["value"] == sum(row["value"] for row in parts)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-170, 1e300])
def test_noise_beyond_the_supported_scales_is_refused(epsilon: float) -> None:
    with pytest.raises(ArgumentError, match="scale"):
        replace(counts([(), ("town",)]), epsilon=epsilon)


# Groups of three columns and more -----------------------------------------------------------------


def test_groups_of_three_columns_are_counted_and_shown() -> None:
    frame = people()
    question = Question(["count"], by=["town", "sex", "age"])
    table: Table = publish(frame, Request(SURE, [question], GROUPS))
    assert len(table.published) == 30
    for row in table.rows():
        matches = [pl.col(name) == row[name] for name in GROUPS]
        assert row["value"] == frame.filter(*matches).height
    page = render_record(table.record())
    assert "Number of rows, by town and sex and age" in page
    assert "town a, sex f" in page
    assert str(table).splitlines()[0].split()[:4] == ["town", "sex", "age", "statistic"]


def test_columns_to_group_by_are_named_once() -> None:
    with pytest.raises(ValueError, match="by must name each column once"):
        Question(["count"], by=["a", "b", "a"])
