"""Bounding persons beside the same written by hand in SQL: run as `make bench-persons`.

Rows of persons in 100 groups, of which each counts in two, with three rows in each, are added up
by group on DuckDB: by dpnoise, which releases them too; by hand, with windows over hashes; and not
bounded at all. Every run is a process of its own; contenders take turns, the best round counts.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

import duckdb
from marks import write_between_marks

from dpnoise.machine import described
from dpnoise.statistics import Question, Request, publish
from dpnoise.statistics.engines import Files

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "performance.md"
RESULTS: Final = ROOT / "benchmarks" / "results" / "persons"  # One file for each architecture.
ROWS_A_PERSON: Final = 100
GROUPS: Final = 100
MAX_GROUPS: Final = 2
MAX_ROWS: Final = 3
MOST_TIME: Final = 1.5  # Of bounding and releasing, over the same bounding by hand.
CLAMPED: Final = "least(greatest(x, 0), 100)"
BY_HAND: Final = f"""
WITH held AS (
    SELECT id, city, row_number() OVER (PARTITION BY id ORDER BY hash(hash(id, city))) AS place
    FROM (SELECT DISTINCT id, city FROM visits)
),
kept AS (
    SELECT city, x,
        row_number() OVER (PARTITION BY id, city ORDER BY hash(hash(id, x))) AS place
    FROM visits SEMI JOIN (SELECT * FROM held WHERE place <= {MAX_GROUPS}) USING (id, city)
)
SELECT city, count(*), sum({CLAMPED}) FROM kept WHERE place <= {MAX_ROWS} GROUP BY city
"""  # noqa: S608 - numbers of ours
PLAIN: Final = f"SELECT city, count(*), sum({CLAMPED}) FROM visits GROUP BY city"  # noqa: S608


def write_visits(path: Path, rows: int) -> None:
    """Write invented visits: of each person 100 on average, in groups and of values at random."""
    persons = max(rows // ROWS_A_PERSON, 1)
    duckdb.sql(
        f"COPY (SELECT floor(random() * {persons})::BIGINT AS id, 'city ' || floor(random() * "  # noqa: S608
        f"{GROUPS})::INTEGER AS city, random() * 120 - 10 AS x FROM range({rows})) "
        f"TO '{path}' (FORMAT parquet)"
    )


def in_sql(query: str) -> Callable[[Path], object]:
    """Return what runs a query as it stands."""

    def run(path: Path) -> None:
        with duckdb.connect() as connection:
            connection.execute("SET temp_directory = ''")
            connection.read_parquet(str(path)).create_view("visits")
            connection.sql(query).fetchnumpy()

    return run


def released(path: Path) -> None:
    """Bound, add up and release."""
    cities = {"city": tuple(f"city {number}" for number in range(GROUPS))}
    asked = Question(("count", "sum"), "x", lower=0, upper=100, by=("city",))
    request = Request(1.0, (asked,), cities, person="id", max_groups=MAX_GROUPS, max_rows=MAX_ROWS)
    publish(Files(path), request)


CONTENDERS: Final[dict[str, Callable[[Path], object]]] = {
    "plain": in_sql(PLAIN),
    "by hand": in_sql(BY_HAND),
    "dpnoise": released,
}


def run_here(contender: str, path: Path) -> None:
    """Run one contender, and print what it took, its imports not counted."""
    with tempfile.TemporaryDirectory() as folder:
        few = Path(folder) / "few.parquet"
        write_visits(few, 1_000)
        CONTENDERS[contender](few)
    before = time.process_time()
    start = time.perf_counter()
    CONTENDERS[contender](path)
    seconds = time.perf_counter() - start
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall": seconds, "cpu": time.process_time() - before, "MB": peak}))


def run_apart(contender: str, path: Path) -> dict[str, float]:
    """Run one contender in a process of its own."""
    done = subprocess.run(  # noqa: S603 - this interpreter, our own code
        [sys.executable, "-m", "benchmarks.persons", "--run", contender, str(path)],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])},
        cwd=ROOT,
    )
    return dict(json.loads(done.stdout))


def measured(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Let the contenders take turns; of each the least that a round took."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for contender in CONTENDERS:
            taken = run_apart(contender, path)
            known = best.get(contender, taken)
            best[contender] = {name: min(taken[name], known[name]) for name in taken}
    return best


def rows_of(sizes: list[int], rounds: int) -> list[list[str]]:
    """Measure all sizes, and return the rows of the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "visits.parquet"
            write_visits(path, size)
            rows.append(_row(size, measured(path, rounds)))
            print(" | ".join(rows[-1]), flush=True)
    return rows


def _row(size: int, best: dict[str, dict[str, float]]) -> list[str]:
    plain, hand, ours = (best[name] for name in CONTENDERS)
    return [
        f"{size:,}",
        f"{max(size // ROWS_A_PERSON, 1):,}",
        f"{plain['wall']:.2f}",
        f"{hand['wall']:.2f}",
        f"{ours['wall']:.2f}",
        f"{ours['wall'] / hand['wall']:.2f}",
        f"{ours['cpu'] / hand['cpu']:.2f}",
        f"{ours['wall'] / plain['wall']:.0f}",
        f"{hand['MB']:,.0f}",
        f"{ours['MB']:,.0f}",
    ]


TITLES: Final = (
    "rows",
    "persons",
    "not bounded, s",
    "by hand, s",
    "dpnoise, s",
    "over by hand",
    "of all cores",
    "over not bounded",
    "by hand, MB",
    "dpnoise, MB",
)


def table(results: dict[str, Any]) -> str:
    """Return the table of one machine."""
    lines = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    lines += [f"| {' | '.join(row)} |" for row in results["rows"]]
    return "\n".join([f"Measured on {results['machine']}.", "", *lines])


def main() -> None:
    """Measure, print and keep the table, and write it into the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.persons", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10**6, 10**7, 10**8])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--keep-pages", action="store_true", help="do not write into the pages")
    parser.add_argument("--only-pages", action="store_true", help="write them from what is kept")
    parser.add_argument("--run", nargs=2, metavar=("CONTENDER", "FILE"))
    arguments = parser.parse_args()
    if arguments.run:
        contender, path = arguments.run
        run_here(contender, Path(path))
        return
    if not arguments.only_pages:
        machine = f"{described()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        results = {
            "machine": f"{machine}, duckdb {version('duckdb')}",
            "rows": rows_of(arguments.rows, arguments.rounds),
        }
        if arguments.keep_pages:
            return
        RESULTS.mkdir(exist_ok=True)
        kept = RESULTS / f"{platform.machine()}.json"
        kept.write_text(json.dumps(results, indent=2) + "\n")
    kept_results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    text = "\n\n".join([f"```sql{BY_HAND}```", *map(table, kept_results)])
    write_between_marks(PAGE, "persons", text)


if __name__ == "__main__":
    main()
