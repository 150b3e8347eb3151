"""Bounding persons beside the same written by hand in SQL: run as `make bench-persons`.

Rows of persons in 100 groups, of which each counts in two, with three rows in each, are added up
by group on DuckDB, or with `--spark` on a Spark of two workers: by dpnoise, which releases them
too; by hand, with windows over hashes; and not bounded at all. Every run is a process of its own;
contenders take turns, the best round counts.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import duckdb
from marks import write_between_marks

from benchmarks.timing import Taken, least_of, taken_by
from dpnoise.core.machine import described
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "performance.md"
RESULTS: Final = (
    ROOT / "benchmarks" / "results"
)  # A folder for each engine, a file for each architecture.
ROWS_A_PERSON: Final = 100
GROUPS: Final = 100
MAX_GROUPS: Final = 2
MAX_ROWS: Final = 3
CLAMPED: Final = "least(greatest(x, 0), 100)"
PLAIN: Final = f"SELECT city, count(*), sum({CLAMPED}) FROM visits GROUP BY city"  # noqa: S608


def by_hand(mixed: str) -> str:
    """Return the SQL that bounds persons by windows, for an engine's hash of columns."""
    of_group, of_row = mixed.format("id, city"), mixed.format("id, x")
    return f"""
WITH held AS (
    SELECT id, city, row_number() OVER (PARTITION BY id ORDER BY {of_group}) AS place
    FROM (SELECT DISTINCT id, city FROM visits)
),
kept AS (
    SELECT city, x,
        row_number() OVER (PARTITION BY id, city ORDER BY {of_row}) AS place
    FROM visits SEMI JOIN (SELECT * FROM held WHERE place <= {MAX_GROUPS}) USING (id, city)
)
SELECT city, count(*), sum({CLAMPED}) FROM kept WHERE place <= {MAX_ROWS} GROUP BY city
"""  # noqa: S608 - numbers of ours


BY_HAND: Final = by_hand("hash(hash({}))")
BY_HAND_IN_SPARK: Final = by_hand("xxhash64({})")


def write_visits(path: Path, rows: int) -> None:
    """Write invented visits: of each person 100 on average, in groups and of values at random."""
    persons = max(rows // ROWS_A_PERSON, 1)
    duckdb.sql(
        f"COPY (SELECT floor(random() * {persons})::BIGINT AS id, 'city ' || floor(random() * "  # noqa: S608
        f"{GROUPS})::INTEGER AS city, random() * 120 - 10 AS x FROM range({rows})) "
        f"TO '{path}' (FORMAT parquet)"
    )


def in_duckdb(query: str) -> Callable[[Path], object]:
    """Return what runs a query as it stands."""

    def run(path: Path) -> None:
        with duckdb.connect() as connection:
            connection.execute("SET temp_directory = ''")
            connection.read_parquet(str(path)).create_view("visits")
            connection.sql(query).fetchnumpy()

    return run


@cache
def spark() -> Any:
    """Start a Spark of two workers, which are processes of their own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only where it is asked for

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
    """Return what runs a query as it stands."""

    def run(path: Path) -> None:
        spark().read.parquet(str(path)).createOrReplaceTempView("visits")
        spark().sql(query).collect()

    return run


def released(source: Any) -> None:
    """Bound, add up and release."""
    cities = {"city": tuple(f"city {number}" for number in range(GROUPS))}
    asked = Question(("count", "sum"), "x", lower=0, upper=100, by=("city",))
    request = Request(1.0, (asked,), cities, person="id", max_groups=MAX_GROUPS, max_rows=MAX_ROWS)
    publish(source, request)


CONTENDERS: Final[dict[str, Callable[[Path], object]]] = {
    "DuckDB plain": in_duckdb(PLAIN),
    "DuckDB by hand": in_duckdb(BY_HAND),
    "DuckDB dpnoise": lambda path: released(Files(path)),
    "Spark plain": in_spark(PLAIN),
    "Spark by hand": in_spark(BY_HAND_IN_SPARK),
    "Spark dpnoise": lambda path: released(spark().read.parquet(str(path))),
}


def figures(plain: Taken, hand: Taken, ours: Taken) -> dict[str, str]:
    """Return what the columns show of the plain query, the one by hand and ours."""
    return {
        "not bounded, s": f"{plain['wall']:.2f}",
        "by hand, s": f"{hand['wall']:.2f}",
        "dpnoise, s": f"{ours['wall']:.2f}",
        "over by hand": f"{ours['wall'] / hand['wall']:.2f}",
        "of all cores": f"{ours['cpu'] / hand['cpu']:.2f}",
        "over not bounded": f"{ours['wall'] / plain['wall']:.0f}",
        "by hand, MB": f"{hand['MB']:,.0f}",
        "dpnoise, MB": f"{ours['MB']:,.0f}",
    }


@dataclass(frozen=True)
class Engine:
    """An engine: its package, its SQL by hand, where its results are, and the columns it has."""

    name: str
    package: str
    sql: str
    mark: str  # Of its table in the page, and the name of its folder of results.
    columns: tuple[str, ...]

    @property
    def results(self) -> Path:
        """Where results are kept."""
        return RESULTS / self.mark

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the table."""
        return ("rows", "persons", *self.columns)

    def row(self, size: int, least: dict[str, Taken]) -> list[str]:
        """Return a row of the table."""
        plain, hand, ours = (least[f"{self.name} {one}"] for one in ("plain", "by hand", "dpnoise"))
        persons = max(size // ROWS_A_PERSON, 1)
        shown = figures(plain, hand, ours)
        return [f"{size:,}", f"{persons:,}", *(shown[column] for column in self.columns)]

    def table(self, results: dict[str, Any]) -> str:
        """Return the table of one machine."""
        lines = [f"| {' | '.join(self.titles)} |", "|" + "---|" * len(self.titles)]
        lines += [f"| {' | '.join(row)} |" for row in results["rows"]]
        return "\n".join([f"Measured on {results['machine']}.", "", *lines])

    def page_text(self) -> str:
        """Return what is written into the page: the SQL, and a table for each machine."""
        kept = [json.loads(path.read_text()) for path in sorted(self.results.glob("*.json"))]
        return "\n\n".join([f"```sql{self.sql}```", *map(self.table, kept)])


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
# Spark's workers are processes of their own: of what they use the clock's time is all we know.
NOT_OF_WORKERS: Final = {"of all cores", "by hand, MB", "dpnoise, MB"}
DUCKDB: Final = Engine("DuckDB", "duckdb", BY_HAND, "persons", COLUMNS)
SPARK: Final = Engine(
    "Spark",
    "pyspark",
    BY_HAND_IN_SPARK,
    "persons-spark",
    tuple(column for column in COLUMNS if column not in NOT_OF_WORKERS),
)


def run_here(contender: str, path: Path) -> None:
    """Run one contender, and print what it took, its imports not counted."""
    with tempfile.TemporaryDirectory() as folder:
        few = Path(folder) / "few.parquet"
        write_visits(few, 1_000)
        CONTENDERS[contender](few)
    print(json.dumps(taken_by(lambda: CONTENDERS[contender](path))))


def rows_of(engine: Engine, sizes: list[int], rounds: int) -> list[list[str]]:
    """Measure all sizes, and return the rows of the table."""
    rows = []
    contenders = [name for name in CONTENDERS if name.startswith(engine.name)]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "visits.parquet"
            write_visits(path, size)
            least = least_of("benchmarks.persons", contenders, [str(path)], rounds)
            rows.append(engine.row(size, least))
            print(" | ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print and keep the table, and write it into the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.persons", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--spark", action="store_true", help="on Spark, which needs Java 17")
    parser.add_argument("--keep-pages", action="store_true", help="do not write into the pages")
    parser.add_argument("--only-pages", action="store_true", help="write them from what is kept")
    parser.add_argument("--run", nargs=2, metavar=("CONTENDER", "FILE"))
    arguments = parser.parse_args()
    if arguments.run:
        contender, path = arguments.run
        run_here(contender, Path(path))
        return
    engine = SPARK if arguments.spark else DUCKDB
    if not arguments.only_pages:
        machine = f"{described()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        sizes = arguments.rows or [10**6, 10**7, *([] if arguments.spark else [10**8])]
        results = {
            "machine": f"{machine}, {engine.package} {version(engine.package)}",
            "rows": rows_of(engine, sizes, arguments.rounds),
        }
        if arguments.keep_pages:
            return
        engine.results.mkdir(exist_ok=True)
        kept = engine.results / f"{platform.machine()}.json"
        kept.write_text(json.dumps(results, indent=2) + "\n")
    write_between_marks(PAGE, engine.mark, engine.page_text())


if __name__ == "__main__":
    main()
