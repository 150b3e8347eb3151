"""A Spark with several workers gives the exact integers, even if a worker is killed.

One Spark serves the whole run: a driver, and two executors in separate processes.
"""

import math
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import expression_tables
from support.alarms import LONG
from support.engine_list import Engine, check_engine, check_every_hostile_value
from support.neighbours import HOSTILE, check_hostile_persons, csv_text
from support.person_worlds import IDS, check_neighbours, requests, table, worlds
from support.tally_reference import assert_same
from support.tally_reference import tally as reference_tally

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import count_persons_by_group, tally, tally_all
from dpnoise.statistics.expressions import parse_condition
from dpnoise.statistics.plan import (
    Cells,
    Combinations,
    Grouping,
    PersonValue,
    Plan,
    Rows,
    Sums,
    Unit,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Spark leaves sockets open.
]
ROWS = 10_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark.py"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("dpnoise")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    frame_of_session = session.range(3)
    yield session
    session.stop()
    with pytest.raises(ArgumentError, match="Is its session or connection still open"):
        tally(frame_of_session, Plan((Rows(),)))


def engine(spark: Any) -> Engine:
    def frame(table: pa.Table) -> Any:
        plain = table.drop(["u64"])
        index = plain.schema.get_field_index("dict")
        plain = plain.set_column(index, "dict", plain["dict"].cast(pa.string()))
        return spark.createDataFrame(plain).repartition(3)

    return Engine(frame, lacks=("u64",))


def test_every_hostile_value_counts_as_it_should(spark: Any) -> None:
    check_every_hostile_value(engine(spark))


def test_dates_of_any_year_are_groups(spark: Any) -> None:
    days = [date(1, 1, 1), date(999, 12, 31), date(2024, 2, 29)]
    frame = spark.createDataFrame(pa.table({"day": pa.array([*days, days[0], None])}))
    plan = Plan((Rows(),), (Grouping("day", tuple(days)),))
    single, (_, with_other_plan) = tally(frame, plan), tally_all(frame, [Plan((Rows(),)), plan])
    assert [answer.answers[0].tolist() for answer in (single, with_other_plan)] == [[2, 1, 1]] * 2  # type: ignore[union-attr]


def test_several_groupings_are_one_job_with_the_same_integers(spark: Any) -> None:
    columns: dict[str, list[Any]] = {
        "x": [1.5, 2.25, None, -3.0, 0.1, 7.0] * 50,
        "city": ["cork", "NA", "cork", "dublin", None, "cork"] * 50,
        "sex": [0, 1, 1, 0, 1, 2] * 50,
    }
    city, sex = Grouping("city", ("cork", "NA", "nobody")), Grouping("sex", (0, 1))
    x, cells = Sums("x", 0.5, -100, 100), Cells("x", 1.0, -3, 3)
    plans = [
        Plan((x, Rows()), missing="drop"),
        Plan((cells, x), (city,), missing="drop"),
        Plan((Rows(), cells), (city, sex), missing="drop"),
        Plan((Rows(), x), (sex, city), missing="drop"),
        Plan((cells,), (city,), missing="drop"),
        Plan((cells, x), (Combinations(("city", "sex"), (("cork", "1"), ("NA", "1"))),), "drop"),
    ]
    frame = spark.createDataFrame(pa.table(columns)).repartition(3)
    for ours, plan in zip(tally_all(frame, plans), plans, strict=True):
        assert_same(ours, reference_tally(columns, plan))


@given(data=st.data())
@settings(
    max_examples=4,
    phases=[Phase.generate],  # A query takes seconds.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_spark_gives_the_exact_integers(spark: Any, data: st.DataObject) -> None:
    check_engine(engine(spark), data)


def test_names_of_columns_are_not_syntax(spark: Any) -> None:
    names = ["a.b", "`tick`", "a b;--"]
    columns = {name: [1.0, 2.5, None] for name in names[:2]} | {names[2]: ["x", "y", "x"]}
    frame = spark.createDataFrame(pa.table(columns))
    asks = tuple(Sums(name, 0.5, 0, 10) for name in names[:2])
    plan = Plan(asks, (Grouping(names[2], ("x", "y")),), missing="drop")
    assert_same(tally(frame, plan), reference_tally(columns, plan))


def test_expressions_are_those_of_plain_python(spark: Any) -> None:
    # Spark's usual times have a zone, and are refused.
    frame = spark.createDataFrame(expression_tables.arrow_table(expression_tables.TABLE))
    frame = frame.withColumn("s", frame["s"].cast("timestamp_ntz")).repartition(3)
    texts = expression_tables.CONDITIONS + expression_tables.DATE_CONDITIONS
    expression_tables.check_conditions(frame, texts)
    values = expression_tables.VALUE_EXPRESSIONS
    expression_tables.check_values(frame, expression_tables.TABLE, values)


def test_times_with_a_zone_are_not_dates(spark: Any) -> None:
    frame = spark.sql("SELECT current_timestamp() AS t")
    with pytest.raises(ArgumentError, match="Column 't' holds times with a zone"):
        tally(frame, Plan((Rows(),), where=parse_condition("month(t) == 2")))


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_executor_changes_nothing(spark: Any, tmp_path: Path) -> None:
    """Each task records the executor that started it, and waits until one is dead."""
    started, killed = tmp_path / "started", tmp_path / "killed"
    started.mkdir()
    driver = spark.sparkContext._gateway.proc.pid

    def wait_until_killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not killed.exists():
                # A daemon of the executor forks the workers.
                stat = Path(f"/proc/{os.getppid()}/stat").read_text()
                (started / stat.rpartition(")")[2].split()[1]).touch()
            while not killed.exists():
                threading.Event().wait(0.05)
            yield batch

    numbers = spark.range(ROWS, numPartitions=8)
    numbers = numbers.selectExpr("id", "cast(id % 7 as string) AS day", "id / 3 AS x")
    plan = Plan(
        (Sums("x", 2.0**-20, 0, 2**32), Cells("x", 16.0, 0, 300), Rows()),
        (Grouping("day", tuple("0123456")),),
    )
    expected = tally(numbers, plan)
    slow = numbers.mapInArrow(wait_until_killed, numbers.schema)
    answers: list[Any] = []
    job = threading.Thread(target=lambda: answers.append(tally(slow, plan)))
    job.start()
    while not any(started.iterdir()):
        assert job.is_alive(), "the job ended before it began"
        threading.Event().wait(0.05)
    executor = int(next(started.iterdir()).name)
    assert parent_of(executor) == driver, "it is an executor of this test"
    os.kill(executor, signal.SIGKILL)
    killed.touch()
    job.join()
    assert_same(answers[0], expected)


def test_a_column_that_is_not_there_is_named(spark: Any) -> None:
    frame = spark.createDataFrame(pa.table({"x": [1.0]}))
    with pytest.raises(ArgumentError, match="no column 'y'"):
        tally(frame, Plan((Sums("y", 1.0, 0, 1),)))


def test_the_example_publishes_from_a_cluster(spark: Any) -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    rows = [("cork", 100.0), ("cork", None), ("dublin", 250_000.0), ("nowhere", 1.0)]
    people = spark.createDataFrame(rows, "city STRING, income DOUBLE")
    published = example["release"](people)
    assert [city for city, _, _ in published] == list(example["CITIES"].keys)
    assert all(isinstance(count, int) for _, count, _ in published)
    grid = example["INCOME"].grid
    assert all(total / grid == int(total / grid) for _, _, total in published)


@given(data=st.data())
@settings(
    max_examples=3,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_one_person_moves_no_statistic_beyond_its_sensitivity(
    spark: Any, data: st.DataObject
) -> None:
    ids = data.draw(st.sampled_from(list(IDS.values())))
    rows, without, replaced = data.draw(worlds(ids))
    neighbours = data.draw(st.sampled_from(["add-remove", "replace"]))
    other = without if neighbours == "add-remove" else replaced
    all_requests = requests(neighbours, *data.draw(st.sampled_from([(2, 3), (None, 4), (2, None)])))
    frames = [
        spark.createDataFrame(table(rows_of_world, ids)).repartition(3)
        for rows_of_world in (rows, other)
    ]
    for pair in (all_requests[:2], all_requests[2:]):
        if pair:
            check_neighbours(pair, *frames)


def test_a_hostile_person_moves_no_world_beyond_its_sensitivity(spark: Any, tmp_path: Path) -> None:
    """Spark infers types from all rows of a CSV file. It is slow, so each run tries a few kinds."""

    def read_rows(rows: Any) -> Any:
        path = Path(mkdtemp(dir=tmp_path), "visits.csv")
        path.write_text(csv_text(rows))
        options = {"header": True, "inferSchema": True, "nullValue": ""}
        return spark.read.csv(str(path), **options).repartition(3)

    kinds = np.random.default_rng().permutation(list(HOSTILE)).tolist()
    hostile = ["an empty value", "a fraction", "a text id", *kinds[: 24 if LONG else 4]]
    worlds = 1_000 if LONG else 30
    refused = check_hostile_persons(read_rows, worlds, hostile=hostile, bases=1)
    assert refused < len(hostile)


def test_spark_bounds_persons_as_they_are_declared(spark: Any) -> None:
    """Hashes differ between engines: they keep equally many rows, but maybe not the same."""
    count = 3_000
    rows = spark.range(count).selectExpr("'w' AS who", "cast(id % 5 as string) AS city", "id AS x")
    by = (Grouping("city", tuple("01234")),)
    for groups, most in ((1, 7), (2, 10_000), (5, 1)):
        unit = Unit(("who",), groups, most)
        tally_of_one_part, tally_of_seven_parts = (
            tally(rows.repartition(parts), Plan((Rows(), Sums("x", 1.0, 0, 2**20)), by, unit=unit))
            for parts in (1, 7)
        )
        assert_same(tally_of_one_part, tally_of_seven_parts)
        counts = tally_of_one_part.answers[0]
        assert sorted(counts.tolist())[-groups:] == [min(most, count // 5)] * groups  # type: ignore[union-attr]
        assert int(counts.sum()) == groups * min(most, count // 5)  # type: ignore[union-attr]
    group_counts = count_persons_by_group(rows, ["city"], Unit(("who",), 2, 1))
    assert group_counts.persons.tolist() == [1, 1]


def test_combinations_of_columns_are_discovered_as_in_other_engines(spark: Any) -> None:
    columns = {
        "who": [1, 1, 1, 2, 2, 3, 3, 4],
        "city": ["cork", "cork", "cork", "cork", None, "dublin", "", "dublin"],
        "day": [1.0, 1.0, 2.0, 1.0, 1.0, -0.0, 0.0, math.nan],
    }
    frame = spark.createDataFrame(pa.table(columns)).repartition(3)
    expected = {("cork", "1"): 2, ("cork", "2"): 1, ("dublin", "0"): 1}
    for unit in (Unit(("who",), 2), None):
        counts = count_persons_by_group(frame, ["city", "day"], unit)
        rows = expected if unit else {**expected, ("cork", "1"): 3}
        assert dict(zip(counts.keys, counts.persons.tolist(), strict=True)) == rows
    few = count_persons_by_group(frame, ["city", "day"], Unit(("who",), 1))
    assert int(few.persons.sum()) == 3
    by = Combinations(("city", "day"), (("cork", "2"), ("dublin", "0"), ("dublin", "1")))
    for unit in (Unit(("who",), 2), None):
        (numbers,) = tally(frame, Plan((Rows(),), (by,), unit=unit)).answers
        assert numbers.tolist() == [1, 1, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_per_person_values_equal_those_of_other_engines(spark: Any, kind: str) -> None:
    columns = {"who": [1, 1, 1, 2, 2, None], "x": [0.3, 1e300, -7.0, None, 2.5, 4.0]}
    plan = Plan(
        (Rows(), Sums("x", 0.25, -100, 1_000)),
        missing="drop",
        unit=Unit(
            ("who",), without_id="own", person_value=PersonValue("x", kind, 0.25, -100, 1_000)
        ),
    )
    ours = tally(spark.createDataFrame(pa.table(columns)), plan)
    assert_same(ours, tally(pa.table(columns), plan))


@pytest.mark.parametrize("unit", [None, Unit(("who",))])
def test_a_collation_makes_no_two_groups_one(spark: Any, unit: Unit | None) -> None:
    city = "collate(if(id = 0, 'CORK', 'cork'), 'UTF8_LCASE') AS city"
    frame = spark.range(3).selectExpr("id AS who", city)
    group_counts = count_persons_by_group(frame, ["city"], unit)
    assert dict(zip(group_counts.keys, group_counts.persons.tolist(), strict=True)) == {
        ("CORK",): 1,
        ("cork",): 2,
    }
    plan = Plan((Rows(),), (Grouping("city", ("cork",)),), unit=unit)
    for answer in (tally(frame, plan), tally_all(frame, [plan, Plan((Rows(),), unit=unit)])[0]):
        assert answer.answers[0].tolist() == [2]  # type: ignore[union-attr]
