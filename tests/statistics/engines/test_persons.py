"""The contribution of a person is bounded on every engine, whatever the rows hold."""

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats
from support.alarms import LONG, check_limit
from support.choices import sample_cases, sample_parameters
from support.engine_list import duckdb_frame
from support.person_worlds import (
    ASKED,
    DISTINCT,
    GROUPS,
    IDS,
    WHALE,
    check_neighbours,
    consistent_requests,
    exact_integers,
    requests,
    table,
    worlds,
)

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.bounds import ContributionBounds, RowChange, root_up
from dpnoise.statistics.engines import Files, count_persons_by_group, persons, tally, tally_all
from dpnoise.statistics.plan import Edges, Grouping, PersonValue, Plan, Rows, Sums, Unit
from dpnoise.statistics.queries import Count, Mean, Sum
from dpnoise.statistics.questions import QUERIES
from dpnoise.statistics.shared_sums import payer_of

FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "DuckDB": duckdb_frame,
    "Polars": pl.from_arrow,
    "Polars lazy": lambda arrow: pl.LazyFrame(pl.from_arrow(arrow)),
    "pandas": lambda arrow: arrow.to_pandas(types_mapper=pd.ArrowDtype),
    "Arrow": lambda arrow: arrow,
}
# max_groups, max_rows and max_total_rows.
BOUNDS = [
    *((1, 1), (2, 3), (5, 2), (None, 1), (None, 4), (2, None)),
    *((3, 2, 4), (2, None, 3), (3, None, 4), (None, 2, 3), (None, None, 4), (5, 3, 5)),
]
CITIES = Grouping("city", GROUPS)


def test_every_statistic_is_tested() -> None:
    assert {*ASKED, DISTINCT} == set(QUERIES)


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@given(data=st.data())
@settings(max_examples=80 if LONG else 2, phases=[Phase.generate])  # Shrinking takes minutes.
def test_one_person_moves_no_statistic_beyond_its_sensitivity(
    neighbours: str, data: st.DataObject
) -> None:
    check_neighbours_on("DuckDB", neighbours, data)


@pytest.mark.parametrize(
    "engine", sample_parameters([name for name in FRAMES if name != "DuckDB"], 1)
)
@given(data=st.data())
@settings(max_examples=20 if LONG else 1, phases=[Phase.generate])
def test_frames_that_go_to_duckdb_keep_the_sensitivity(engine: str, data: st.DataObject) -> None:
    check_neighbours_on(engine, data.draw(st.sampled_from(["add-remove", "replace"])), data)


def check_neighbours_on(engine: str, neighbours: str, data: st.DataObject) -> None:
    ids = data.draw(st.sampled_from(list(IDS.values())))
    rows, without, replaced = data.draw(worlds(ids))
    bounds = data.draw(st.sampled_from(BOUNDS))
    frame = FRAMES[engine]
    other = without if neighbours == "add-remove" else replaced
    all_requests = requests(neighbours, *bounds)
    adding_up = consistent_requests(neighbours, *bounds) if bounds[0] else []
    for batch in (all_requests[:2], all_requests[2:], adding_up):
        if batch:
            check_neighbours(batch, frame(table(rows, ids)), frame(table(other, ids)))


# The sensitivities: declared, and reached ---------------------------------------------------------


def test_sensitivities_are_those_of_the_proofs() -> None:
    many = ContributionBounds(groups=4, rows=3, all_groups=100)
    value, count, sums = (
        RowChange.of_number(10, 50), RowChange.of_number(1, 1), RowChange.of_sums(10),
    )  # fmt: skip
    assert (many.l1(value), many.l2(value)) == (120, 60)
    other = replace(many, replace=True)
    assert other.l1(count) == 24
    # With bounds far apart, the worst neighbour is in the same groups; with counts, in others.
    assert other.l2(value) == root_up(4 * 150**2)
    assert other.l2(count) == root_up(8 * 3**2)
    assert other.l2(sums) == root_up(8 * 30**2)
    # Only one group exists.
    single = ContributionBounds(groups=1, rows=3, replace=True, all_groups=1)
    assert (single.l1(count), single.l2(count), single.l1(sums)) == (3, 3, 60)
    # At most 7 rows: two groups with 3, one with 1.
    total = replace(many, total=7)
    assert (total.l1(value), total.l2(value)) == (70, root_up(2 * 30**2 + 10**2))


@given(st.integers(1, 2**300))
def test_roots_are_the_smallest_floats_that_suffice(squared: int) -> None:
    root = root_up(squared)
    assert Fraction(root) ** 2 >= squared > Fraction(math.nextafter(root, 0.0)) ** 2


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_counts_sums_and_means_reach_their_sensitivity(neighbours: str) -> None:
    """One person with the most rows, of the largest value, in the most groups reaches it."""
    ids = IDS["text"]
    rows = [("p", city, 3.0) for city in (*GROUPS[:2], "z") for _ in range(5)]
    elsewhere = [("p", city, 3.0) for city in GROUPS[2:4] for _ in range(5)]
    below = [("p", city, -2.0) for city in GROUPS[:2] for _ in range(5)]
    others = [[]] if neighbours == "add-remove" else [elsewhere, below]
    for request in requests(neighbours, 2, 3):
        plans = request.plans()
        tables = [duckdb_frame(table(world, ids)) for world in (rows, *others)]
        tallies = {key: [tally(world, plan) for world in tables] for key, plan in plans.items()}
        for question, query in request.prepare():
            if query.name == DISTINCT:
                continue  # These rows have equal values: `test_distinct_values` has others.
            if isinstance(query, Count | Sum | Mean) and payer_of(query) is query:
                key = request.table_key(question, query)
                index = plans[key].asks.index(query.ask)
                base, *neighbour_integers = (
                    exact_integers(query, world.answers[index]) for world in tallies[key]
                )
                squared = query.rho is not None
                changes = (base - other for other in neighbour_integers)
                largest = max(length_of_steps(change, squared=squared) for change in changes)
                assert largest == query.mechanism.sensitivity, query.name


def length_of_steps(steps: Any, *, squared: bool) -> float:
    if squared:
        return root_up(sum(int(step) ** 2 for step in steps) or 1)
    return float(sum(abs(int(step)) for step in steps))


# Which rows and groups count ----------------------------------------------------------------------


def answers(unit: Unit, frame: Any, *asks: Any, by: tuple[Grouping, ...] = (CITIES,)) -> Any:
    """Answer a plan; tables of Arrow in DuckDB, on the connection that all tests share."""
    frame = duckdb_frame(frame) if isinstance(frame, pa.Table) else frame
    return tally(frame, Plan((Rows(), *asks), by, "drop", unit)).answers


def test_every_group_is_chosen_with_the_same_probability() -> None:
    """Each group and each pair of groups is equally likely: chi-squared tests on random ids.

    DuckDB's hash of two columns is an XOR, which by its nature correlates groups.
    """
    first, persons_there = int(np.random.default_rng().integers(2**40)), 20_000
    rows = duckdb.sql(
        "SELECT $first + i AS person0, chr(97 + g::INT) AS key0, 0 AS lost "
        "FROM range($many) a(i), range(10) b(g)",
        params={"first": first, "many": persons_there},
    )
    names = persons.Names(["person0"], ["key0"], [], [])
    single = persons.choose_groups(persons.InDuckDB(rows), 1, names).relation
    seen = single.aggregate("key0, count(*) AS n", "key0").fetchnumpy()["n"]
    assert (seen.size, seen.sum()) == (10, persons_there)
    check_limit(float(stats.chisquare(seen).pvalue))
    double = persons.choose_groups(persons.InDuckDB(rows), 2, names).relation
    pairs = double.aggregate("person0, string_agg(key0, '' ORDER BY key0) AS pair", "person0")
    seen = pairs.aggregate("pair, count(*) AS n", "pair").fetchnumpy()["n"]
    assert (seen.size, seen.sum()) == (45, persons_there)
    check_limit(float(stats.chisquare(seen).pvalue))


def whale_table(groups: int = 5) -> pa.Table:
    """Return one person with 3,000 rows in all groups, and one person with one row."""
    cities = [GROUPS[i % groups] for i in range(WHALE)]
    values = [float(i) for i in range(WHALE)]
    return pa.table({"who": ["w"] * WHALE + ["x"], "city": [*cities, "a"], "x": [*values, 1.0]})


@pytest.mark.sample(1)
@pytest.mark.parametrize("total", [None, 9])
def test_the_order_of_rows_and_a_second_run_change_nothing(total: int | None) -> None:
    unit, ask = Unit(("who",), 2, 7, max_total_rows=total), Sums("x", 1.0, 0, 2**20)
    once, repeated = answers(unit, whale_table(), ask), answers(unit, whale_table(), ask)
    reversed_rows = answers(unit, whale_table().take(list(range(WHALE, -1, -1))), ask)
    for other in (repeated, reversed_rows):
        assert other[0].tolist() == once[0].tolist()
        assert other[1].total.tolist() == once[1].total.tolist()
    # The whale, and the only row of the second person.
    assert int(once[0].sum()) == (total or 14) + 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("max_rows", [1, 999, 1_000, 1_001, 2_999, 3_000, 10**9])
def test_at_most_max_rows_count(max_rows: int) -> None:
    counts = answers(Unit(("who",), 1, max_rows), whale_table(), by=())[0]
    assert int(counts) == min(max_rows, WHALE) + 1


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("max_groups", "max_rows", "total"),
    [
        (2, 3, 4),
        (2, 3, 5),
        (2, 3, 6),
        (2, 3, 1),
        (5, 3, 4),
        (5, 9, 9),
        (4, 9, 3),
        (5, 2_000, 1_500),
    ],
)
def test_at_most_max_total_rows_count_in_all_groups_together(
    max_groups: int, max_rows: int, total: int
) -> None:
    unit = Unit(("who",), max_groups, max_rows, max_total_rows=total)
    alone = whale_table().slice(0, WHALE)
    counts = answers(unit, alone)[0]
    assert int(counts.sum()) == min(total, max_groups * min(max_rows, WHALE // 5))
    assert int(counts.max()) <= max_rows
    assert int((counts > 0).sum()) <= max_groups
    # Without the bound on all rows, these rows count too.
    more = answers(replace(unit, max_total_rows=None), alone)[0]
    if max_groups < total and max_rows < total:
        assert (counts <= more).all()
    with_another = answers(unit, whale_table())[0] - counts
    assert with_another.tolist() == [1, 0, 0, 0, 0]


def test_the_rows_of_a_total_are_chosen_with_the_same_probability() -> None:
    """One of 5 rows in 5 groups counts of each person: a chi-squared test on random ids."""
    first, many = int(np.random.default_rng().integers(2**40)), 5_000
    who = np.repeat(np.arange(first, first + many), 5)
    frame = pa.table({"who": who, "city": np.tile(np.array(GROUPS), many)})
    for unit in (Unit(("who",), 5, 1, max_total_rows=1), Unit(("who",), 5, 5, max_total_rows=1)):
        counts = answers(unit, frame)[0]
        assert int(counts.sum()) == many
        check_limit(float(stats.chisquare(counts).pvalue))


def test_a_total_does_not_limit_the_values_of_persons() -> None:
    own = PersonValue("x", "sum", 1.0, 0, 2**40)
    unit = Unit(("who",), 2, person_value=own, max_total_rows=1)
    ask = Sums("x", 1.0, 0, 2**40)
    unlimited = replace(unit, max_total_rows=None)
    totals = [answers(each, whale_table(), ask)[1].total.tolist() for each in (unit, unlimited)]
    assert totals[0] == totals[1]


class NoColumns(str):
    """SQL of a hash that ignores all columns."""

    __slots__ = ()

    def format(self, *_: object, **__: object) -> str:
        """Return a constant."""
        return "0"


def test_rows_with_the_same_hash_are_ordered_by_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a constant hash, which rows count still depends only on the rows."""
    dialect = replace(persons.InDuckDB.dialect, mixed=NoColumns())
    monkeypatch.setattr(persons.InDuckDB, "dialect", dialect)
    unit, ask = Unit(("who",), 2, 3), Sums("x", 1.0, 0, 2**20)
    order = np.random.default_rng().permutation(WHALE + 1).tolist()
    once, other = answers(unit, whale_table(), ask), answers(unit, whale_table().take(order), ask)
    assert once[0].tolist() == other[0].tolist() == [4, 3, 0, 0, 0]  # The first two groups.
    assert once[1].total.tolist() == other[1].total.tolist()
    assert int(once[1].total[1]) == 1 + 6 + 11  # The first three rows of the second group.
    limited = replace(unit, max_total_rows=4)
    for world in (whale_table(), whale_table().take(order)):
        counts, sums = answers(limited, world, ask)
        assert counts.tolist() == [4, 1, 0, 0, 0]  # The first group, then the second.
        assert sums.total.tolist() == [0 + 5 + 10 + 1, 1, 0, 0, 0]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("spellings", "keys"), [("true,TRUE", (True, False)), ("5,5.0", (5, 6))])
def test_one_group_under_two_spellings_is_one_group(
    spellings: str, keys: tuple[Any, ...], tmp_path: Path
) -> None:
    """A file may spell one group in several ways. That must not raise the bound of a person."""
    rows = [f"w,{city}" for city in spellings.split(",") * 20]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["who,city", *rows]))
    by = (Grouping("city", keys),)
    for max_groups in (1, 2):
        assert answers(Unit(("who",), max_groups, 3), Files(path), by=by)[0].tolist() == [3, 0]


def test_several_columns_identify_a_person() -> None:
    frame = pa.table({"ward": [1, 1, 2, 2, None], "bed": ["a", "a", "a", "b", "b"], "x": [1.0] * 5})
    unit = Unit(("ward", "bed"), 1, 1)
    with pytest.raises(ArgumentError, match="do not identify a person: ward or bed is missing"):
        answers(unit, frame, by=())
    assert int(answers(unit, frame.slice(0, 4), by=())[0]) == 3
    assert int(answers(Unit(("ward", "bed"), 1, 1, "own"), frame, by=())[0]) == 4


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("own", [None, PersonValue("x", "sum", 0.5, 0, 20)])
def test_rows_without_an_id_are_an_error_or_a_person_each(
    kind: str, own: PersonValue | None
) -> None:
    ids = IDS[kind]
    nobody = [(none, city, 2.0) for none in ids.none for city in GROUPS for _ in range(3)]
    rows = [(ids.persons[0], "a", 2.0)] * 2 + nobody
    asked = Sums("x", 0.5, 0, 20)
    with pytest.raises(ArgumentError, match='without_id="own"'):
        answers(Unit(("who",), 1, 1, person_value=own), table(rows, ids), asked)
    counts, sums = answers(Unit(("who",), 1, 1, "own", own), table(rows, ids), asked)
    separate = 3 * len(ids.none)
    assert counts.tolist() == [separate + 1, *[separate] * 4]
    first = 8 if own else 4  # In grid steps: the sum of the person, or one row.
    assert sums.total.tolist() == [4 * separate + first, *[4 * separate] * 4]


def test_rows_of_other_groups_need_no_id_and_do_not_use_up_the_bounds() -> None:
    frame = pa.table({"who": ["w", "w", None], "city": ["z", "a", "z"], "x": [1.0] * 3})
    assert answers(Unit(("who",), 1, 1), frame)[0].tolist() == [1, 0, 0, 0, 0]


def test_ids_that_cannot_be_compared_are_refused() -> None:
    unit = Unit(("who",))
    mixed = pd.DataFrame({"who": pd.Series([1, "1", 1.0], dtype=object)})
    nested = pl.DataFrame({"who": [[1], [2]]})
    for frame in (mixed, nested):
        with pytest.raises(ArgumentError, match=r"cannot identify a person|are not all text"):
            answers(unit, frame, by=())
    with pytest.raises(ArgumentError, match="no column 'who'"):
        answers(unit, pl.DataFrame({"x": [1]}), by=())


def test_a_collation_does_not_merge_persons() -> None:
    """Otherwise the rows that count of one person would change when the other leaves."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits (who VARCHAR COLLATE NOCASE, city VARCHAR)")
        connection.execute("INSERT INTO visits VALUES ('w', 'a'), ('W', 'a'), ('w', 'a')")
        assert answers(Unit(("who",)), connection.table("visits"))[0].tolist()[0] == 2
        connection.execute("PRAGMA default_collation = NOCASE")
        frame = connection.sql("SELECT unnest(['w', 'W', 'w']) AS who, 'a' AS city")
        assert answers(Unit(("who",)), frame)[0].tolist()[0] == 2
        assert count_persons_by_group(frame, ["city"], Unit(("who",))).persons.tolist() == [2]


def test_ids_of_bytes_that_are_not_text_stay_different(tmp_path: Path) -> None:
    """SQLite allows bytes in any column."""
    path = tmp_path / "visits.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE visits (who BLOB)")
        ids = [(number.to_bytes(2, "big"),) for number in range(1_000)]
        database.executemany("INSERT INTO visits VALUES (?)", ids)
    assert answers(Unit(("who",)), Files(path, table="visits"), by=())[0].tolist() == 1_000


@pytest.mark.sample(1)
@pytest.mark.parametrize("unit", [None, Unit(("who",))])
def test_a_collation_does_not_merge_groups(unit: Unit | None) -> None:
    """Otherwise one row could decide the label of a group that others are in."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits (who INTEGER, city VARCHAR COLLATE NOCASE)")
        connection.execute("INSERT INTO visits VALUES (1, 'CORK'), (2, 'cork'), (3, 'cork')")
        frame = connection.table("visits")
        groups = count_persons_by_group(frame, ["city"], unit)
        assert dict(zip(groups.keys, groups.persons.tolist(), strict=True)) == {
            ("CORK",): 1,
            ("cork",): 2,
        }
        for keys in (("cork",), ("cork", "Cork", "CORK")):
            by = (Grouping("city", keys),)
            expected = [2, 0, 1][: len(keys)]
            several = [Plan((Rows(),), unit=unit), Plan((Rows(),), by, unit=unit)]
            for result in (tally(frame, several[1]), tally_all(frame, several)[1]):
                assert result.answers[0].tolist() == expected  # type: ignore[union-attr]


def test_dask_says_what_to_do_instead() -> None:
    dask = pytest.importorskip("dask.dataframe")
    frame = dask.from_pandas(whale_table().to_pandas(), npartitions=3)
    for ask in (
        lambda data: answers(Unit(("who",)), data),
        lambda data: count_persons_by_group(data, ["city"], None),
    ):
        with pytest.raises(ArgumentError, match=r"Take frame.compute\(\)"):
            ask(frame)


def test_files_are_bounded_as_frames_are(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    whale_table().to_pandas().to_csv(path, index=False)
    unit, ask = Unit(("who",), 2, 7), Edges("x", (0.0, 10.0, 1e6))
    ours, theirs = answers(unit, Files(path), ask), answers(unit, whale_table(), ask)
    assert [answer.tolist() for answer in ours] == [answer.tolist() for answer in theirs]
    groups = count_persons_by_group(Files(path), ["city"], unit)
    assert set(groups.keys) <= {(city,) for city in GROUPS}


# Parts of the persons -----------------------------------------------------------------------------


def set_parts(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(persons.InDuckDB, "number_of_parts", lambda *_: parts)


@pytest.mark.parametrize("kind", sample_parameters(IDS, 1))
def test_the_number_of_parts_changes_no_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, rng = IDS[kind], np.random.default_rng()
    who = [*ids.persons, *ids.none]
    rows = [
        (who[rng.integers(len(who))], GROUPS[rng.integers(5)], float(rng.integers(100)))
        for _ in range(500)
    ]
    frame, ask = table(rows, ids), Sums("x", 1.0, 0, 100, squares=True)
    own = PersonValue("x", "mean", 1.0, 0, 100)
    units = [
        Unit(("who",), 2, 3, "own"),
        Unit(("who",), 2, 3, "own", max_total_rows=4),
        Unit(("who",), 2, 1, "own", own),
    ]
    results = []
    for parts in (1, *sample_cases((2, 5), 1)):
        set_parts(monkeypatch, parts)
        sums = [answers(unit, frame, ask, Edges("x", (0.0, 50.0, 100.0))) for unit in units]
        counts = count_persons_by_group(frame, ["city"], units[0], text=["city"])
        results.append(
            [
                dict(sorted(zip(counts.keys, counts.persons.tolist(), strict=True))),
                [[rows.tolist(), [p.tolist() for p in vars(s).values()], c.tolist()]
                 for rows, s, c in sums],
            ]
        )  # fmt: skip
    assert all(other == results[0] for other in results[1:])


def test_errors_are_found_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    set_parts(monkeypatch, 16)
    frame = pa.table({"who": list(range(99)), "city": ["a"] * 99, "x": [*[1.0] * 98, None]})
    plan = Plan((Sums("x", 1.0, 0, 9),), (CITIES,), unit=Unit(("who",)))
    with pytest.raises(ArgumentError, match="rows without a value"):
        tally(frame, plan)
    nobody = pa.table({"who": [*range(98), None], "city": ["a"] * 99})
    with pytest.raises(ArgumentError, match="do not identify a person"):
        answers(Unit(("who",)), nobody)


def test_many_rows_are_answered_in_parts_that_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A part may take a third of the memory limit, and each entry of a row takes 48 bytes.

    A row of the file has an id, a group, a value and two flags. A frame has one more flag.
    """
    seen: list[int] = []

    def part(rows: persons.InDuckDB, ids: Any, index: int, parts: int) -> persons.InDuckDB:
        seen.append(parts)
        return original(rows, ids, index, parts)

    original = persons.InDuckDB.part
    monkeypatch.setattr(persons.InDuckDB, "part", part)
    path = tmp_path / "visits.parquet"
    whale_table().to_pandas().to_parquet(path)
    frame, ask, unit = duckdb_frame(whale_table()), Sums("x", 1.0, 0, 2**20), Unit(("who",), 2, 7)
    for source, size in ((frame, 6 * 48), (Files(path), 5 * 48)):
        whole = 3 * size * (WHALE + 1)  # There are 3,001 rows.
        for memory, expected in ((2**40, 1), (whole + 3, 1), (whole, 2)):

            def count_rows(rows: persons.InDuckDB, *, limit: int = memory, **_: bool) -> Any:
                return rows.relation.aggregate("count(*)").fetchall()[0][0], limit

            monkeypatch.setattr(persons.InDuckDB, "count_rows", count_rows)
            seen.clear()
            answers(unit, source, ask)
            assert seen == [expected] * expected


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [
        ("900000B", 8.9e5, 9e5),
        ("512MB", 5.11e8, 5.12e8),
        ("8GB", 7.9e9, 8e9),
        ("3TB", 2.9e12, 3e12),
        ("-1", 2**63, 2**64),  # No limit.
    ],
)
def test_the_memory_limit_is_that_of_the_connection(limit: str, least: float, most: float) -> None:
    with duckdb.connect() as connection:
        relations = [connection.sql("SELECT 1 AS who"), connection.sql("SELECT 1 AS who LIMIT 0")]
        connection.execute(f"SET memory_limit = '{limit}'")
        for relation in relations:
            for is_needed in (True, False):
                rows, memory_limit = persons.InDuckDB(relation).count_rows(is_needed=is_needed)
                assert rows == (len(relation) if is_needed else 0)
                assert least <= memory_limit <= most


def test_with_too_little_memory_there_are_more_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB has 20 MB. The rows that count of 100,000 persons do not fit at once."""
    numbers: list[int] = []
    original = persons.InDuckDB.part

    def part(rows: persons.InDuckDB, ids: Any, index: int, parts: int) -> persons.InDuckDB:
        numbers.append(parts)
        return original(rows, ids, index, parts)

    monkeypatch.setattr(persons.InDuckDB, "part", part)
    monkeypatch.setattr(persons.InDuckDB, "number_of_parts", lambda *_: 1)
    with duckdb.connect() as connection:
        connection.execute("SET temp_directory = ''")
        connection.execute("SET memory_limit = '20MB'")
        connection.execute("SET threads = 1")
        frame = connection.sql(
            "SELECT i % 100000 AS who, 'a' AS city, i::DOUBLE AS x FROM range(400000) r(i)"
        )
        counts, sums = answers(Unit(("who",), 1, 3), frame, Sums("x", 1.0, 0, 10))
    assert counts.tolist() == [300_000, 0, 0, 0, 0]
    assert int(sums.count.sum()) == 300_000
    assert numbers[0] == 1
    assert numbers[-1] >= 8


# The value of a person ----------------------------------------------------------------------------

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([math.inf, -math.inf, math.nan, 1e300])


@given(st.lists(st.tuples(st.integers(0, 3), NUMBERS), min_size=1, max_size=30), st.data())
@settings(max_examples=100 if LONG else 10, phases=[Phase.generate])
def test_the_value_of_a_person_is_exactly_the_sum_or_mean_of_all_rows(
    rows: list[tuple[int, float]], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["sum", "mean"]))
    own = PersonValue("x", kind, 0.25, -100, 1_000)
    frame = pa.table({"who": [who for who, _ in rows], "x": [x for _, x in rows]})
    # With the same grid and bounds, the sum clamps and rounds no value of a person.
    count, sums = answers(
        Unit(("who",), person_value=own), frame, Sums("x", 0.25, -100, 1_000), by=()
    )
    values = [value for who in range(4) if (value := own_value(who, rows, own)) is not None]
    assert int(count) == len({who for who, _ in rows})
    assert (int(sums.count), int(sums.total)) == (len(values), sum(values))


def own_value(who: int, rows: list[tuple[int, float]], own: PersonValue) -> int | None:
    """Return the value of a person in grid steps, computed with fractions."""
    steps = [grid_steps(x, own) for person, x in rows if person == who and not math.isnan(x)]
    if not steps:
        return None
    if own.kind == "sum":
        return min(max(sum(steps), own.least), own.most)
    return math.floor(Fraction(sum(steps), len(steps)) + Fraction(1, 2))


def grid_steps(x: float, own: PersonValue) -> int:
    least, most = (own.least, own.most) if own.kind == "mean" else (-(2**51), 2**51)
    if math.isinf(x):
        return most if x > 0 else least
    return min(max(math.floor(Fraction(x) / Fraction(own.grid) + Fraction(1, 2)), least), most)
