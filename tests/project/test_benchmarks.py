"""The tables of the benchmarks: each names its machine, and the docs show them."""

import json
import math
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from marks import read_results
from numpy.typing import NDArray

from benchmarks import clock, engines, errors, pages, peak, persons
from benchmarks.contenders import Column, ours
from dpnoise.kernels import compile_kernel
from dpnoise.kernels.elementary import fma
from dpnoise.statistics.engines import Files, tally
from dpnoise.statistics.plan import Grouping, Plan, Rows, SumAnswer, Unit

LEFT_OUT = "python-dp has no build for Linux on aarch64, so it is left out."


def results(architecture: str, **changes: Any) -> pages.Results:
    """Return the stored results of x86-64, as if another machine had measured them."""
    measured: pages.Results = json.loads((pages.RESULTS / "x86_64.json").read_text())
    return measured | {"architecture": architecture, "machine": f"{architecture} (cpu)"} | changes


def without_peer(measured: pages.Results, peer: str) -> pages.Results:
    timings = {
        table: {what: ns for what, ns in rows.items() if not what.startswith(peer)}
        for table, rows in measured["nanoseconds"].items()
    }
    promises = [promise for promise in measured["promises"] if not promise["what"].startswith(peer)]
    return measured | {"nanoseconds": timings, "promises": promises, "left out": [LEFT_OUT]}


def test_the_pages_show_the_stored_results_of_every_architecture() -> None:
    pages_with_tables = pages.ROOT / "README.md", pages.ROOT / "docs/performance.md"
    for page in pages_with_tables:
        text = page.read_text()
        for stored in read_results(pages.RESULTS):
            assert stored["format"] == pages.FORMAT
            assert pages.measured_on(stored) in text


def test_both_pages_have_the_tables_of_the_stored_results() -> None:
    stored = read_results(pages.RESULTS)
    assert pages.readme_table(stored) in (pages.ROOT / "README.md").read_text()
    assert pages.full_tables(stored) in (pages.ROOT / "docs/performance.md").read_text()


def test_the_file_of_an_architecture_is_called_after_it() -> None:
    for path in pages.RESULTS.glob("*.json"):
        assert json.loads(path.read_text())["architecture"] == path.stem


def test_pages_show_the_results_of_the_newest_version_only(tmp_path: Path) -> None:
    assert read_results(tmp_path) == []
    machines = {
        "a": "a (cpu), dpnoise 0.9.0",
        "b": "b, dpnoise 0.10.0, numpy 2",
        "c": "c, dpnoise 0.10.0",
    }
    for name, machine in machines.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine}))
    assert [results["machine"][0] for results in read_results(tmp_path)] == ["b", "c"]


def test_a_peer_that_a_machine_has_not_is_left_out_of_its_table_and_named() -> None:
    table = pages.readme_table([without_peer(results("aarch64"), "PyDP"), results("x86_64")])
    assert re.search(r"\| 10⁶ numbers, aarch64 \| [\d.]+ \| none \| [\d,]+ \|", table)
    assert re.search(r"\| 10⁶ numbers, x86_64 \| [\d.]+ \| [\d,]+ \| [\d,]+ \|", table)
    assert f"Measured on aarch64 (cpu). Note: {LEFT_OUT}" in table


@pytest.mark.parametrize("row", ["PyDP Laplace", "PyDP's Laplace, time over our release"])
def test_architectures_stand_side_by_side_and_one_may_have_none(row: str) -> None:
    full = pages.full_tables([without_peer(results("aarch64"), "PyDP"), results("x86_64")])
    line = next(line for line in full.splitlines() if line.startswith(f"| {row} |"))
    *_, aarch64, x86 = line.strip("| ").split(" | ")
    assert aarch64 == "none"
    assert float(x86.split()[0].replace(",", "")) > 200


def test_first_calls_are_shown_in_seconds() -> None:
    stored = results("x86_64", nanoseconds={"first draws": {"laplace()": 2_240_245_736.0}})
    assert "| call | x86_64 |\n|---|---|\n| laplace() | 2.24 s |" in pages.full_tables([stored])


def test_an_architecture_without_a_measured_peak_says_so() -> None:
    parts = {"uniforms": {"cipher": 3.0, "lower bound": 3.25, "measured over bound": 1.5}}
    measured, unmeasured = results("aarch64", peak=parts), results("x86_64")
    unmeasured.pop("peak", None)
    lines = pages.full_tables([measured, unmeasured]).splitlines()
    assert "| uniforms | 3.00 | 3.25 | 1.50 |" in lines
    assert "Not measured on x86_64: `make bench` there does." in lines


@compile_kernel
def mixed_loop(x: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for i in range(out.size):
        out[i] = math.sqrt(fma(x[i], 3.0, 1.0)) / (x[i] * 2.5)


@compile_kernel
def sequential_loop(x: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for i in range(1, out.size):
        out[i] = math.sqrt(out[i - 1]) + x[i]


def test_the_operations_of_a_loop_are_counted_for_each_number() -> None:
    """A fused multiply-add, a product, a root and a division, for any unrolling by LLVM."""
    counts = peak.count_operations(mixed_loop, np.ones(100), np.ones(100))
    assert counts == peak.OperationCounts(divisions=1, roots=1, others=2)


def test_a_loop_over_single_numbers_has_no_peak() -> None:
    with pytest.raises(RuntimeError, match="LLVM made no loop over vectors of sequential_loop"):
        peak.count_operations(sequential_loop, np.ones(100), np.ones(100))


def test_the_lower_bound_is_the_cipher_and_the_operations_at_their_peak() -> None:
    peak_times = peak.Peak(division=2.0, root=3.0, other=0.125)
    assert peak_times.time_of(peak.OperationCounts(divisions=0.5, roots=1, others=8)) == 1 + 3 + 1


def test_the_threat_model_shows_the_timing_results_of_every_architecture() -> None:
    stored = read_results(clock.RESULTS)
    assert stored
    text = clock.PAGE.read_text()
    assert all(clock.table(results) in text for results in stored)


def test_the_page_shows_the_times_of_engines_on_every_architecture_and_the_plain_sql() -> None:
    stored = read_results(engines.RESULTS)
    assert stored
    assert engines.page_text(stored) in engines.PAGE.read_text()
    assert all(
        len(row) == len(engines.TITLES)
        for results_of_machine in stored
        for row in results_of_machine["rows"]
    )


def test_the_plain_and_the_exact_queries_have_the_same_answer(tmp_path: Path) -> None:
    """Sums of floats differ from those of whole grids by at most half a grid per row."""
    people = tmp_path / "people.parquet"
    engines.write_people(people, 1_000)
    income, cells = tally(Files(people), engines.PLANS["count, sum, histogram"]).answers
    assert isinstance(income, SumAnswer)
    with duckdb.connect() as connection:
        connection.read_parquet(str(people)).create_view("people")
        count_and_sum, histogram = (
            connection.sql(query).fetchall() for query in engines.SQL["count, sum, histogram"]
        )
    count, total = count_and_sum[0]
    assert int(income.count) == count == 1_000
    assert abs(int(income.total) * engines.INCOME.grid - total) <= count * engines.INCOME.grid
    assert [number for _, number in sorted(histogram)] == list(cells)  # type: ignore[arg-type]


def test_the_clock_has_a_pair_that_is_equal_and_leaks_that_are_planted() -> None:
    pairs = list(clock.pairs())
    assert any(pair.value0 is pair.value1 for pair in pairs)
    assert sum(pair.planted for pair in pairs) == 2
    assert len({pair.words for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("epsilon", "planted", "verdict"),
    [
        (0.0, False, "nothing"),
        (0.1, False, "within the claim"),
        (0.2, False, "A LEAK"),
        (0.2, True, "found"),
        (0.1, True, "NOT FOUND"),
    ],
)
def test_more_than_the_claim_is_a_leak(epsilon: float, planted: bool, verdict: str) -> None:  # noqa: FBT001
    pair = clock.Pair("0 and 1", lambda _: None, 0, 1, claimed=0.1, planted=planted)
    assert clock.verdict(epsilon, pair) == verdict


def test_bounding_by_hand_bounds_as_much_as_we_do(tmp_path: Path) -> None:
    """Both keep equally many pairs of persons and groups, with three rows each."""
    path = tmp_path / "visits.parquet"
    visits = "SELECT i % 50 AS id, 'city ' || i % 7 AS city, 1.0 AS x FROM range(3500) r(i)"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({visits}) TO '{path}' (FORMAT parquet)")
        connection.read_parquet(str(path)).create_view("visits")
        by_hand = connection.sql(persons.BY_HAND).fetchall()
    unit = Unit(("id",), persons.MAX_GROUPS, persons.MAX_ROWS)
    cities = Grouping("city", tuple(f"city {number}" for number in range(7)))
    (ours,) = tally(Files(path), Plan((Rows(),), (cities,), unit=unit)).answers
    assert sum(count for _, count, _ in by_hand) == 50 * 2 * 3
    assert isinstance(ours, np.ndarray)
    assert int(ours.sum()) == 50 * 2 * 3


@pytest.mark.parametrize(
    "engine",
    [persons.DUCKDB, persons.SPARK],
    ids=lambda results_of_machine: results_of_machine.name,
)
def test_the_page_shows_the_times_of_bounding_persons(engine: persons.Engine) -> None:
    stored = [json.loads(path.read_text()) for path in engine.results.glob("*.json")]
    assert engine.page_text() in persons.PAGE.read_text()
    assert all(
        len(row) == len(engine.titles)
        for results_of_machine in stored
        for row in results_of_machine["rows"]
    )


def test_the_pages_show_the_errors_of_every_library() -> None:
    docs = errors.ROOT / "docs"
    for page, titles in (
        ("accuracy.md", errors.COLUMN_TITLES),
        ("accuracy.md", errors.VISIT_TITLES),
    ):
        header, _ = errors.header([], titles)
        assert header.removeprefix("|") in (docs / page).read_text()


def test_the_page_states_how_many_releases_the_errors_are_of() -> None:
    page = (errors.ROOT / "docs/accuracy.md").read_text()
    statistics = {
        6000: "count, sum and mean",
        4000: "variance, std and histogram",
        250: "median and quantile",
        30: "deciles",
    }
    assert ", ".join(f"{rounds:,} of {names}" for rounds, names in statistics.items()) in page
    for name, rounds in errors.ROUNDS.items():
        assert name.split(",")[0].split(" ")[0] in statistics[rounds]
    others = {contender.share for contender in errors.VISIT_CONTENDERS[1:]}
    assert (errors.VISIT_ROUNDS, errors.HOSPITAL_ROUNDS, others) == (100, 12, {0.1})


@pytest.mark.parametrize(("ours_over_best", "marked"), [(1.04, False), (1.06, True)])
def test_an_error_above_the_goal_by_more_than_chance_is_marked(
    ours_over_best: float,
    marked: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Three standard deviations of the ratio are 0.043 here."""
    errors_by_library = {
        "dpnoise": errors.Error(ours_over_best, 0.01),
        "OpenDP": errors.Error(1.0, 0.01),
    }
    errors_by_library["diffprivlib"] = errors.Error(2.0, 0.5)
    text = errors.line(["people", "count"], errors_by_library, ["dpnoise", "OpenDP", "diffprivlib"])
    assert ("above 1.0" in text) == marked


def test_a_difference_that_is_not_printed_is_not_marked() -> None:
    by_library = {"dpnoise": errors.Error(1.0001, 1e-6), "OpenDP": errors.Error(1.0, 1e-6)}
    text = errors.line(["towns", "count"], by_library, list(by_library))
    assert text.endswith("| 1.00 ± 0.00 |")


def test_the_luckiest_of_equal_libraries_is_not_taken_for_the_best() -> None:
    precise, lucky = errors.Error(1.0, 0.01), errors.Error(0.95, 0.05)
    by_library = {"dpnoise": precise, "OpenDP": precise, "OpenDP, Polars": lucky}
    assert "| 1.00 ± 0.01 |" in errors.line(["people", "count"], by_library, list(by_library))


def test_the_law_of_a_selection_is_that_of_exponential_noise() -> None:
    """A second way to compute it: the sum over the sets of other candidates."""
    scores, scale = np.array([-1.0, 0.0, -0.25, -1.0, -3.0]), 0.7
    weights = np.exp(scores / scale)
    expected = []
    for i, weight in enumerate(weights):
        others = np.delete(weights, i)
        subsets = (np.array(chosen) for size in range(5) for chosen in combinations(others, size))
        expected.append(weight * sum((-1) ** s.size * s.prod() / (s.size + 1) for s in subsets))
    assert np.allclose(errors.selection_law(scores, scale), expected, rtol=1e-9)
    assert sum(expected) == pytest.approx(1)


def test_counts_and_sums_have_the_noise_of_opendp() -> None:
    data = errors.column_of("ages", np.array([1.0, 2.0, 40.0]), 100.0)
    assert errors.expected_ratio(data, "count") == errors.expected_ratio(data, "sum") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("q", [0.5, 0.9])
@pytest.mark.parametrize("kind", ["incomes", "visits", "patients"])
def test_quantiles_are_expected_to_be_no_farther_off_than_those_of_opendp(
    kind: str, q: float
) -> None:
    """By the laws, within half a percent of the RMSE over 16 data sets.

    Incomes share their candidates, patients have few rows, and half of the visits are 0. One data
    set may favour either library, by where its values are between the candidates.
    """
    rng = np.random.default_rng(5)  # Test data, not noise.
    squares = []
    for _ in range(16):
        data = {
            "incomes": errors.column_of("x", np.exp(rng.normal(9.0, 1.5, 5000)), 1_000_000.0),
            "visits": errors.column_of("x", np.repeat([0, 1], 1000) * rng.poisson(6, 2000), 100.0),
            "patients": errors.column_of("x", rng.integers(25, 347, 442), 400.0),
        }[kind]
        both = errors.our_scores, errors.opendp_scores
        squares.append([errors.expected_rmse(data, q, scores) ** 2 for scores in both])
    ours, theirs = np.sum(squares, axis=0)
    assert ours <= theirs * 1.01 + 1e-6


@pytest.mark.parametrize("name", ours.STATISTICS)
def test_with_hardly_any_noise_we_publish_the_exact_statistics(name: str) -> None:
    """Noise exceeds 10,000 scales with a probability below 1e-300."""
    column = Column("x", [float(value) for value in range(200)] * 5, 0.0, 150.0, 1e6, [])
    released = np.array(ours.STATISTICS[name](column, 2), dtype=float).reshape(2, -1)
    expected = errors.exact_statistics(column)[name.partition(",")[0]]
    assert np.abs(released - expected).max() <= 1.5
