"""Compare exact integers with a plain query of the same engine: `make bench-engines`.

Both read the same Parquet or CSV file and answer the same question. The plain query adds floats,
which round and depend on the order. Every run is a separate process, so that its memory can be
measured. Contenders take turns, and the best round counts.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
from marks import measured_with, read_results, write_between_marks

from benchmarks.timing import Usage, best_rounds, measure_call
from dpnoise.statistics.engines import Files, tally
from dpnoise.statistics.plan import Edges, Grouping, Plan, Rows, Sums

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "performance.md"
RESULTS: Final = ROOT / "benchmarks" / "results" / "engines"  # One file for each architecture.
GROUPS: Final = 2_000

INCOME: Final = Sums("income", 2.0**-14, 0, 200_000 * 2**14)
EDGES: Final = Edges("income", tuple(float(edge) for edge in range(0, 200_001, 10_000)))
CITIES: Final = Grouping("city", tuple(f"city {number}" for number in range(GROUPS)))
COUNTRY: Final = Grouping("country", ("Ireland",))
PLANS: Final = {
    "count, sum, histogram": Plan((INCOME, EDGES)),
    "count, sum in 2,000 groups": Plan((INCOME, Rows()), (CITIES,)),
    "count, sum in one group": Plan((INCOME, Rows()), (COUNTRY,)),
}
CLAMPED: Final = "least(greatest(income, 0), 200000)"
SQL: Final = {
    "count, sum, histogram": (
        f"SELECT count(income), sum({CLAMPED}) FROM people",
        "SELECT floor(income / 10000) AS cell, count(*) FROM people WHERE income BETWEEN 0 AND 200000 GROUP BY cell",  # noqa: E501
    ),
    "count, sum in 2,000 groups": (
        f"SELECT city, count(income), sum({CLAMPED}) FROM people GROUP BY city",
    ),
    "count, sum in one group": (
        f"SELECT country, count(income), sum({CLAMPED}) FROM people GROUP BY country",
    ),
}


def write_people(path: Path, rows: int) -> None:
    """Write invented people, some with incomes outside the bounds."""
    file_format = path.suffix.removeprefix(".")
    duckdb.sql(
        "COPY (SELECT random() * 250000 - 10000 AS income, 'Ireland' AS country, "
        f"'city ' || floor(random() * {GROUPS})::INTEGER AS city FROM range({rows})) "
        f"TO '{path}' (FORMAT {file_format})"
    )


def duckdb_plain(path: Path, what: str) -> None:
    """Run the plain SQL queries."""
    with duckdb.connect() as connection:
        read = connection.read_csv if path.suffix == ".csv" else connection.read_parquet
        read(str(path)).create_view("people")
        for query in SQL[what]:
            connection.sql(query).fetchnumpy()


def polars_plain(path: Path, what: str) -> None:
    """Run the same queries on Polars, all in one pass."""
    people, income = pl.scan_parquet(path), pl.col("income")
    count_and_sum = [income.count().alias("count"), income.clip(0, 200_000).sum().alias("sum")]
    if what == "count, sum, histogram":
        inside = people.filter(income.is_between(0, 200_000))
        queries = [people.select(count_and_sum), inside.group_by((income / 10_000).floor()).len()]
    else:
        by = "city" if "2,000" in what else "country"
        queries = [people.group_by(by).agg(count_and_sum)]
    pl.collect_all(queries, engine="streaming")


CONTENDERS: Final[dict[str, Callable[[Path, str], object]]] = {
    "DuckDB plain": duckdb_plain,
    "DuckDB exact": lambda path, what: tally(Files(path), PLANS[what]),
    "Polars plain": polars_plain,
    "Polars exact": lambda path, what: tally(pl.scan_parquet(path), PLANS[what]),
}
CSV_CONTENDERS: Final = ("DuckDB plain", "DuckDB exact")
MAX_CSV_ROWS: Final = 10**7


def run_contender(contender: str, path: Path, what: str) -> None:
    """Run one contender, and print its time and memory, without those of the imports."""
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / f"few{path.suffix}"
        write_people(warm_up, 10)
        CONTENDERS[contender](warm_up, what)
    print(json.dumps(measure_call(lambda: CONTENDERS[contender](path, what))))


def measure_rows(sizes: list[int], rounds: int) -> list[list[str]]:
    """Measure all plans, and return the rows of the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "people.parquet"
            write_people(path, size)
            for what in PLANS:
                best = best_rounds("benchmarks.engines", CONTENDERS, [str(path), what], rounds)
                rows += [_row(size, what, engine, best) for engine in ("DuckDB", "Polars")]
                print(*map(" | ".join, rows[-2:]), sep="\n", flush=True)
            if size <= MAX_CSV_ROWS:
                rows.append(_row_of_csv(path.with_suffix(".csv"), size, rounds))
                print(" | ".join(rows[-1]), flush=True)
    return rows


def _row_of_csv(path: Path, size: int, rounds: int) -> list[str]:
    """Measure a plan on CSV that the plain query answers in one pass."""
    write_people(path, size)
    what = "count, sum in one group"
    best = best_rounds("benchmarks.engines", CSV_CONTENDERS, [str(path), what], rounds)
    return _row(size, f"{what}, of CSV", "DuckDB", best)


def _row(size: int, what: str, engine: str, best: dict[str, Usage]) -> list[str]:
    plain, exact = best[f"{engine} plain"], best[f"{engine} exact"]
    return [
        f"{size:,}",
        what,
        engine,
        f"{plain['wall']:.3f}",
        f"{exact['wall']:.3f}",
        f"{exact['wall'] / plain['wall']:.2f}",
        f"{exact['cpu'] / plain['cpu']:.2f}",
        f"{plain['MB']:,.0f}",
        f"{exact['MB']:,.0f}",
    ]


TITLES: Final = (
    "rows",
    "what",
    "engine",
    "plain, s",
    "exact, s",
    "exact over plain",
    "of all cores",
    "plain, MB",
    "exact, MB",
)


def table(results: dict[str, Any]) -> str:
    """Return the table of one machine."""
    lines = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    lines += [f"| {' | '.join(row)} |" for row in results["rows"]]
    return "\n".join([f"Measured on {results['machine']}.", "", *lines])


def page_text(results: list[dict[str, Any]]) -> str:
    """Return the text for the docs: the plain SQL, and a table for each machine."""
    sql = "\n".join(f"{query};" for queries in SQL.values() for query in queries)
    return "\n\n".join([f"```sql\n{sql}\n```", *map(table, results)])


def main() -> None:
    """Measure, print and store the table, and write it to the docs."""
    parser = argparse.ArgumentParser(prog="benchmarks.engines", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10**6, 10**7, 10**8])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender")
    parser.add_argument("--keep-pages", action="store_true", help="do not write to the docs")
    parser.add_argument(
        "--only-pages", action="store_true", help="write the docs from the stored results"
    )
    parser.add_argument("--run", nargs=3, metavar=("CONTENDER", "FILE", "WHAT"))
    arguments = parser.parse_args()
    if arguments.run:
        contender, path, what = arguments.run
        run_contender(contender, Path(path), what)
        return
    if not arguments.only_pages:
        results = {
            "machine": measured_with("duckdb", "polars", "narwhals"),
            "rows": measure_rows(arguments.rows, arguments.rounds),
        }
        if arguments.keep_pages:
            return
        RESULTS.mkdir(exist_ok=True)
        results_file = RESULTS / f"{platform.machine()}.json"
        results_file.write_text(json.dumps(results, indent=2) + "\n")
    write_between_marks(PAGE, "engines", page_text(read_results(RESULTS)))


if __name__ == "__main__":
    main()
