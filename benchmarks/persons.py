"""Compare bounding persons in dpnoise with hand-written SQL: `make bench-persons`.

Rows of persons are summed in 100 groups. Each person counts in two groups, with three rows in each.
DuckDB, or with `--spark` a Spark of two workers, sums them in three ways: with dpnoise, which also
releases the sums; with hand-written SQL, by windows over hashes; and without bounds. `--medians`
compares medians by group, of rows without persons, with the plain query and with counts of cells by
hand. DuckDB may use 80 % of 24 GB. Every run is a separate process. Contenders take turns, and the
best round counts.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
from marks import measured_with, read_results, write_between_marks

from benchmarks.timing import Usage, best_rounds, measure_call
from dpnoise.statistics import Question, Request, publish

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "performance.md"
# A folder for each engine, with a file for each architecture.
RESULTS: Final = ROOT / "benchmarks" / "results"
# The rows and persons of each row of the table. Many persons need the most memory.
SIZES: Final[tuple[tuple[int, int], ...]] = (
    (10**6, 10**4),
    (10**7, 10**5),
    (10**8, 10**6),
    (10**8, 15 * 10**6),
)
SIZES_IN_SPARK: Final = SIZES[:2]
GROUPS: Final = 100
MAX_GROUPS: Final = 2
MAX_ROWS: Final = 3
CLAMPED: Final = "least(greatest(x, 0), 100)"
MEMORY_LIMIT: Final = "19.2GB"  # DuckDB's default is 80 % of the memory; these are of 24 GB.
GRID: Final = 2.0**-5  # Of medians: 3,201 cells in each group.
PLAIN: Final = f"SELECT city, count(*), sum({CLAMPED}) FROM visits GROUP BY city"  # noqa: S608


PLAIN_MEDIANS: Final = f"SELECT city, median({CLAMPED}) FROM visits GROUP BY city"  # noqa: S608
MEDIANS_BY_HAND: Final = (
    f"\nSELECT city, CAST(floor({CLAMPED} / {GRID} + 0.5) AS INTEGER) AS cell, count(*)\n"
    "FROM visits GROUP BY city, cell\n"
)


def bounding_sql(hash_template: str) -> str:
    """Return SQL that bounds persons by windows, given the engine's hash function."""
    group_hash, row_hash = hash_template.format("id, city"), hash_template.format("id, x")
    return f"""
WITH top_groups AS (
    SELECT id, city, row_number() OVER (PARTITION BY id ORDER BY {group_hash}) AS number
    FROM (SELECT DISTINCT id, city FROM visits)
),
top_rows AS (
    SELECT city, x,
        row_number() OVER (PARTITION BY id, city ORDER BY {row_hash}) AS number
    FROM visits SEMI JOIN (SELECT * FROM top_groups WHERE number <= {MAX_GROUPS}) USING (id, city)
)
SELECT city, count(*), sum({CLAMPED}) FROM top_rows WHERE number <= {MAX_ROWS} GROUP BY city
"""  # noqa: S608 - only our constants


BY_HAND: Final = bounding_sql("hash(hash({}))")
BY_HAND_IN_SPARK: Final = bounding_sql("xxhash64({})")


def write_visits(path: Path, rows: int, persons: int) -> None:
    """Write invented visits with random persons, groups and values."""
    duckdb.sql(
        f"COPY (SELECT floor(random() * {persons})::BIGINT AS id, 'city ' || floor(random() * "  # noqa: S608
        f"{GROUPS})::INTEGER AS city, random() * 120 - 10 AS x FROM range({rows})) "
        f"TO '{path}' (FORMAT parquet)"
    )


def in_duckdb(query: str) -> Callable[[Path], object]:
    """Return a function that runs a query on DuckDB."""

    def run(path: Path) -> None:
        with connect() as connection:
            connection.read_parquet(str(path)).create_view("visits")
            connection.sql(query).fetchnumpy()

    return run


def with_relation(publish_rows: Callable[[Any], None]) -> Callable[[Path], object]:
    """Return a function that publishes from a relation of DuckDB."""

    def run(path: Path) -> None:
        with connect() as connection:
            publish_rows(connection.read_parquet(str(path)))

    return run


def connect() -> duckdb.DuckDBPyConnection:
    """Connect to a DuckDB that has limited memory and writes nothing to a disk."""
    return duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": ""})


@cache
def spark() -> Any:
    """Start a Spark with two workers in separate processes."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only `--spark` needs it

    settings: dict[str, bool | float | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,2048]").appName("dpnoise")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def in_spark(query: str) -> Callable[[Path], object]:
    """Return a function that runs a query on Spark."""

    def run(path: Path) -> None:
        spark().read.parquet(str(path)).createOrReplaceTempView("visits")
        spark().sql(query).collect()

    return run


def release(source: Any) -> None:
    """Bound, sum and release the visits."""
    cities = {"city": tuple(f"city {number}" for number in range(GROUPS))}
    question = Question(("count", "sum"), "x", lower=0, upper=100, by=("city",))
    request = Request(
        1.0, (question,), cities, person="id", max_groups=MAX_GROUPS, max_rows=MAX_ROWS
    )
    publish(source, request)


def release_medians(source: Any) -> None:
    """Release the median of each group, of rows without persons."""
    cities = {"city": tuple(f"city {number}" for number in range(GROUPS))}
    question = Question(("median",), "x", lower=0, upper=100, grid=GRID, by=("city",))
    publish(source, Request(1.0, (question,), cities))


CONTENDERS: Final[dict[str, Callable[[Path], object]]] = {
    "DuckDB plain": in_duckdb(PLAIN),
    "DuckDB by hand": in_duckdb(BY_HAND),
    "DuckDB dpnoise": with_relation(release),
    "Medians plain": in_duckdb(PLAIN_MEDIANS),
    "Medians by hand": in_duckdb(MEDIANS_BY_HAND),
    "Medians dpnoise": with_relation(release_medians),
    "Spark plain": in_spark(PLAIN),
    "Spark by hand": in_spark(BY_HAND_IN_SPARK),
    "Spark dpnoise": lambda path: release(spark().read.parquet(str(path))),
}


def figures(plain: Usage, by_hand: Usage, ours: Usage) -> dict[str, str]:
    """Return the cells of a row, from the usage of the three contenders."""
    return {
        "not bounded, s": f"{plain['wall']:.2f}",
        "by hand, s": f"{by_hand['wall']:.2f}",
        "dpnoise, s": f"{ours['wall']:.2f}",
        "over by hand": f"{ours['wall'] / by_hand['wall']:.2f}",
        "of all cores": f"{ours['cpu'] / by_hand['cpu']:.2f}",
        "over not bounded": f"{ours['wall'] / plain['wall']:.0f}",
        "by hand, MB": f"{by_hand['MB']:,.0f}",
        "dpnoise, MB": f"{ours['MB']:,.0f}",
    }


@dataclass(frozen=True)
class Engine:
    """An engine: its package, its hand-written SQL, its mark in the docs, and its columns."""

    name: str
    package: str
    sql: str
    mark: str  # Names the table in the docs, and the folder of results.
    columns: tuple[str, ...]

    @property
    def results(self) -> Path:
        """The folder of the stored results."""
        return RESULTS / self.mark

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the table."""
        return ("rows", "persons", *self.columns)

    def row(self, rows: int, persons: int, best: dict[str, Usage]) -> list[str]:
        """Return a row of the table."""
        plain, by_hand, ours = (
            best[f"{self.name} {contender}"] for contender in ("plain", "by hand", "dpnoise")
        )
        cells = figures(plain, by_hand, ours)
        return [f"{rows:,}", f"{persons:,}", *(cells[column] for column in self.columns)]

    def table(self, results: dict[str, Any]) -> str:
        """Return the table of one machine."""
        lines = [f"| {' | '.join(self.titles)} |", "|" + "---|" * len(self.titles)]
        lines += [f"| {' | '.join(row)} |" for row in results["rows"]]
        return "\n".join([f"Measured on {results['machine']}.", "", *lines])

    def page_text(self) -> str:
        """Return the text for the docs: the SQL, and a table for each machine."""
        tables = map(self.table, read_results(self.results))
        return "\n\n".join([f"```sql{self.sql}```", *tables])


COLUMNS: Final = (
    "not bounded, s",
    "by hand, s",
    "dpnoise, s",
    "over by hand",
    "of all cores",
    "over not bounded",
    "by hand, MB",
    "dpnoise, MB",
)
# Spark's workers are separate processes, of which we know only the wall-clock time.
NOT_OF_WORKERS: Final = {"of all cores", "by hand, MB", "dpnoise, MB"}
DUCKDB: Final = Engine("DuckDB", "duckdb", BY_HAND, "persons", COLUMNS)
MEDIANS: Final = Engine("Medians", "duckdb", MEDIANS_BY_HAND, "medians", COLUMNS)
SPARK: Final = Engine(
    "Spark",
    "pyspark",
    BY_HAND_IN_SPARK,
    "persons-spark",
    tuple(column for column in COLUMNS if column not in NOT_OF_WORKERS),
)


def run_contender(contender: str, path: Path) -> None:
    """Run one contender, and print its time and memory, without those of the imports."""
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / "few.parquet"
        write_visits(warm_up, 1_000, 10)
        CONTENDERS[contender](warm_up)
    print(json.dumps(measure_call(lambda: CONTENDERS[contender](path))))


def measure_rows(engine: Engine, sizes: Sequence[tuple[int, int]], rounds: int) -> list[list[str]]:
    """Measure all sizes, and return the rows of the table."""
    rows = []
    contenders = [name for name in CONTENDERS if name.startswith(engine.name)]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "visits.parquet"
            write_visits(path, *size)
            best = best_rounds("benchmarks.persons", contenders, [str(path)], rounds)
            rows.append(engine.row(*size, best))
            print(" | ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print and store the table, and write it to the docs."""
    parser = argparse.ArgumentParser(prog="benchmarks.persons", description=__doc__)
    parser.add_argument("--rows", type=int, default=10**8, help="only sizes up to this")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each contender")
    parser.add_argument("--spark", action="store_true", help="on Spark, which needs Java 17")
    parser.add_argument("--medians", action="store_true", help="medians by group instead")
    parser.add_argument("--keep-pages", action="store_true", help="do not write to the docs")
    parser.add_argument(
        "--only-pages", action="store_true", help="write the docs from the stored results"
    )
    parser.add_argument("--run", nargs=2, metavar=("CONTENDER", "FILE"))
    arguments = parser.parse_args()
    if arguments.run:
        contender, path = arguments.run
        run_contender(contender, Path(path))
        return
    engine = SPARK if arguments.spark else MEDIANS if arguments.medians else DUCKDB
    if not arguments.only_pages:
        sizes = SIZES_IN_SPARK if arguments.spark else SIZES
        sizes = tuple(size for size in sizes if size[0] <= arguments.rows)
        results = {
            "machine": measured_with(engine.package),
            "rows": measure_rows(engine, sizes, arguments.rounds),
        }
        if arguments.keep_pages:
            return
        engine.results.mkdir(exist_ok=True)
        results_file = engine.results / f"{platform.machine()}.json"
        results_file.write_text(json.dumps(results, indent=2) + "\n")
    write_between_marks(PAGE, engine.mark, engine.page_text())


if __name__ == "__main__":
    main()
