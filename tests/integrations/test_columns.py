"""What docs/columns.md says of columns of Polars and DuckDB, apart from its examples."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dpnoise

pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

COUNTS = [2, 1, 0, 7]
mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)


@pytest.fixture
def lazy() -> tuple[Any, list[int]]:
    """Return a lazy query with noise, and a list that grows with each evaluation of the noise."""
    evaluated: list[int] = []

    def release(column: Any) -> Any:
        evaluated.append(len(column))
        return mechanism.release(column)

    counts = pl.LazyFrame({"city": ["a", "b", "c", "d"], "len": COUNTS})
    noise = pl.col("len").map_batches(release, return_dtype=pl.Int64)
    return counts.with_columns(noise), evaluated


@pytest.fixture
def connection() -> Iterator[Any]:
    with duckdb.connect() as opened:
        opened.execute("SET threads = 1")
        yield opened


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64])
def test_a_released_column_keeps_its_name_its_type_and_its_length(dtype: Any) -> None:
    column = pl.Series("people", COUNTS, dtype=dtype)
    released = mechanism.release(column)
    assert (released.name, released.dtype, len(released)) == ("people", dtype, 4)


def test_each_collect_of_a_lazy_query_is_a_new_release(lazy: tuple[Any, list[int]]) -> None:
    query, evaluated = lazy
    collected = [tuple(query.collect()["len"]) for _ in range(20)]
    assert len(evaluated) == 20
    assert len(set(collected)) > 1  # False-alarm rate: below 1e-20.


def test_a_self_join_may_evaluate_the_noise_twice(lazy: tuple[Any, list[int]]) -> None:
    query, evaluated = lazy
    joined = query.join(query, on="city")
    flags = pl.QueryOptFlags(comm_subplan_elim=False)
    pairs = joined.collect(optimizations=flags)
    assert len(evaluated) == 2
    differences = [
        np.subtract(*(joined.collect(optimizations=flags)[name] for name in ("len", "len_right")))
        for _ in range(10)
    ]
    assert np.any(differences)
    assert len(pairs) == 4


def test_reused_noise_cancels_in_a_difference(lazy: tuple[Any, list[int]]) -> None:
    """The engine evaluates the plan once, for both sides of the join."""
    query, evaluated = lazy
    shifted = query.with_columns(pl.col("len") + pl.Series(COUNTS))
    pairs = query.join(shifted, on="city", maintain_order="left").collect()
    assert len(evaluated) == 1
    assert (pairs["len_right"] - pairs["len"]).to_list() == COUNTS


def add_noise(connection: Any) -> list[int]:
    """Add the function `noisy` to a connection; return a list that grows with each call."""
    calls: list[int] = []

    def release(values: Any) -> Any:
        calls.append(len(values))
        import pyarrow as pa

        return pa.array(mechanism.release(values.to_numpy()))

    connection.create_function(
        "noisy", release, ["BIGINT"], "BIGINT", type="arrow", side_effects=True
    )
    return calls


def test_an_sql_function_runs_once_for_each_block_of_rows(connection: Any) -> None:
    calls = add_noise(connection)
    connection.execute("CREATE TABLE counts AS SELECT range AS people FROM range(10_000)")
    connection.sql("SELECT noisy(people) FROM counts").fetchall()
    assert sum(calls) == 10_000
    assert 1 < len(calls) <= 10


def test_a_view_releases_again_each_time_someone_reads_it(connection: Any) -> None:
    calls = add_noise(connection)
    connection.execute("CREATE TABLE counts AS SELECT unnest([2, 1, 0, 7])::BIGINT AS people")
    connection.execute("CREATE VIEW published AS SELECT noisy(people) AS people FROM counts")
    read = [tuple(connection.sql("FROM published").fetchall()) for _ in range(20)]
    assert len(calls) == 20
    assert len(set(read)) > 1


def test_a_stored_table_is_released_once(connection: Any) -> None:
    counted = pl.DataFrame({"people": COUNTS})
    published = counted.with_columns(mechanism.release(counted["people"]))
    connection.execute("CREATE TABLE released AS SELECT * FROM published")
    read = [connection.sql("FROM released").fetchall() for _ in range(5)]
    assert read == [[(each,) for each in published["people"]]] * 5


@pytest.mark.parametrize("frame", [pl.LazyFrame({"len": COUNTS}), pl.DataFrame({"len": COUNTS})])
def test_a_query_and_a_frame_are_refused(frame: Any) -> None:
    with pytest.raises(TypeError, match="value must be"):
        mechanism.release(frame)
