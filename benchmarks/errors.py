"""How far published statistics are off, beside other libraries at the same epsilon and delta.

`make errors` prints two tables and writes them to docs/publishing.md and docs/persons.md. Every
library is asked for the same statistic of the same clamped values, in its own environment
(`benchmarks.contenders`).
"""

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from marks import write_between_marks

from benchmarks.contenders import DECILES, Column, Floats, Visits
from dpnoise.core.machine import described
from dpnoise.statistics.bounds import Bounds

ROOT: Final = Path(__file__).parent.parent
PEOPLE: Final = ROOT / "src" / "dpnoise" / "cli" / "people.csv"
EPSILON: Final = 1.0
DELTA: Final = 1e-6
HARDLY_ANY_NOISE: Final = 1e4  # An epsilon at which what is off is what bounding left out.
ROUNDS: Final = {"count": 4000, "sum": 4000, "mean": 4000, "histogram": 4000, "median": 250,
                 "deciles": 30, "median, interval": 250, "deciles, interval": 30}  # fmt: skip
VISIT_ROUNDS: Final = 100
_FAIR: Final = 1.05


class Contender(NamedTuple):
    """A library, its module in `benchmarks.contenders`, and the interpreter that has it."""

    title: str
    module: str
    python: str = sys.executable
    share: float = 1.0  # Of the rounds: some take long for a release.


CONTENDERS: Final = (
    Contender("dpnoise", "ours"),
    Contender("OpenDP", "opendp_plain"),
    Contender("OpenDP, Polars", "opendp_polars", ".venv-opendp/bin/python", 0.25),
    Contender("SmartNoise SQL", "smartnoise", ".venv-smartnoise/bin/python", 0.25),
    Contender("diffprivlib", "diffprivlib_tools"),
)
OF_VISITS: Final = tuple(one for one in CONTENDERS if one.title not in {"OpenDP", "diffprivlib"})
SHOWN_OF_COLUMNS: Final = ["dpnoise", "with intervals", *(one.title for one in CONTENDERS[1:])]
SHOWN_OF_VISITS: Final = [one.title for one in OF_VISITS]


def asked(contender: Contender, **question: Any) -> Any:
    """Ask a library in a process of its own."""
    done = subprocess.run(  # noqa: S603 - our own interpreters and code
        [contender.python, "-m", "benchmarks.contenders", contender.module],
        input=json.dumps(question),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout)


class Error(NamedTuple):
    """A mean error over releases, and its own standard deviation."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, off: Sequence[float]) -> "Error":
        """Return that of some releases."""
        return cls(float(np.mean(off)), float(np.std(off) / math.sqrt(len(off))))


def line(what: Sequence[str], found: dict[str, Error], shown: Sequence[str]) -> str:
    """Return a line of a table: the error of each library, and ours over the least."""
    ours = found["dpnoise"]
    best = min(found[one.title] for one in CONTENDERS[1:] if one.title in found)
    ratio = ours.mean / best.mean
    deviation = ratio * math.hypot(*(one.deviation / one.mean for one in (ours, best) if one.mean))
    verdict = "" if ratio <= _FAIR + 2 * deviation else " **above 1.05**"
    cells = [f"{found[title].mean:,.3g}" if title in found else "" for title in shown]
    return f"| {' | '.join([*what, *cells])} | {ratio:.2f} ± {deviation:.2f}{verdict} |"


def header(what: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Return the first lines of a table."""
    titles = [*what, *shown, "dpnoise over the best"]
    return [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]


# Columns ------------------------------------------------------------------------------------------


def columns() -> Iterator[Column]:
    """Yield the people, patients of scikit-learn's wheel, ties, and a skewed column."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415 - only where it is measured

    rng = np.random.default_rng(1)  # Test data, not noise.

    def column(name: str, values: Floats, upper: float) -> Column:
        bounds = Bounds.of_cells(0.0, upper)
        candidates = (np.arange(bounds.least, bounds.most + 1) * bounds.grid).tolist()
        return Column(name, values.tolist(), 0.0, upper, EPSILON, candidates)

    people = np.loadtxt(PEOPLE, delimiter=",", skiprows=1, usecols=2)
    yield column("5,000 people, income", people, 200_000.0)
    yield column("442 patients, diabetes", load_diabetes().target, 400.0)
    visits = np.repeat([0, 1], 2500) * rng.poisson(6, 5000).astype(float)
    yield column("5,000 visits, half 0", visits, 100.0)
    yield column("5,000 skewed", np.exp(rng.normal(9.0, 1.5, 5000)), 1_000_000.0)


def exactly(column: Column) -> dict[str, Floats]:
    """Return what the statistics are."""
    clamped = column.clamped
    total = math.fsum(clamped)
    return {
        "count": clamped.size,
        "sum": total,
        "mean": total / clamped.size,
        "histogram": np.histogram(clamped, column.edges)[0],
        "median": np.quantile(clamped, 0.5, method="inverted_cdf"),
        "deciles": np.quantile(clamped, DECILES, method="inverted_cdf"),
    }


def errors_of(column: Column) -> dict[str, dict[str, Error]]:
    """Return the error of every statistic, by library; a NaN is a number that was not published."""
    truth = exactly(column)
    found: dict[str, dict[str, Error]] = defaultdict(dict)
    for contender in CONTENDERS:
        rounds = {name: math.ceil(number * contender.share) for name, number in ROUNDS.items()}
        for name, values in asked(contender, column=column._asdict(), rounds=rounds).items():
            statistic, _, interval = name.partition(", ")
            off = np.nanmean(np.abs(np.array(values, dtype=float) - truth[statistic]), axis=1)
            found[statistic]["with intervals" if interval else contender.title] = Error.of(off)
    return found


def table_of_columns() -> Iterator[str]:
    """Yield the lines of the table of statistics of columns."""
    yield from header(["data", "statistic"], SHOWN_OF_COLUMNS)
    for column in columns():
        for statistic, found in errors_of(column).items():
            yield line([column.name, statistic], found, SHOWN_OF_COLUMNS)


# Visits of persons --------------------------------------------------------------------------------


def visits() -> Visits:
    """Return invented visits: some persons have many, in several of 60 towns of all sizes."""
    rng = np.random.default_rng(2)  # Test data, not noise.
    persons, names = 3_000, [f"town {number:02}" for number in rng.permutation(60)]
    shares = 1 / np.arange(1, len(names) + 1)
    shares /= shares.sum()
    homes = rng.choice(len(names), persons, p=shares)
    who = np.repeat(np.arange(persons), rng.geometric(0.4, persons))
    away = rng.random(who.size) < 0.15
    towns = np.where(away, rng.choice(len(names), who.size, p=shares), homes[who])
    costs = np.round(rng.lognormal(4.0, 0.6, who.size), 2)
    return Visits(
        who.tolist(), [names[town] for town in towns], costs.tolist(), 500.0,
        max_groups=2, max_rows=3, epsilon=EPSILON, delta=0.0, declared=sorted(names),
    )  # fmt: skip


def table_of_visits() -> Iterator[str]:
    """Yield the lines of the table of persons with several rows."""
    yield from header(["towns", "epsilon", "statistic"], SHOWN_OF_VISITS)
    declared = visits()
    truth = np.array([_totals(declared, town) for town in declared.declared]).T
    nobody = [0.0, 0.0]
    for question in (
        declared,
        declared._replace(delta=DELTA, declared=[]),
        declared._replace(epsilon=HARDLY_ANY_NOISE),
    ):
        found: dict[str, dict[str, Error]] = defaultdict(dict)
        shown: dict[str, Error] = {}
        for contender in OF_VISITS:
            rounds = math.ceil(VISIT_ROUNDS * contender.share)
            tables = asked(contender, visits=question._asdict(), rounds=rounds)
            values = [[one.get(town, nobody) for town in declared.declared] for one in tables]
            off = np.abs(np.transpose(np.array(values, dtype=float), (2, 0, 1)) - truth[:, None])
            for statistic, errors in zip(("count", "sum"), off.mean(axis=2), strict=True):
                found[statistic][contender.title] = Error.of(errors)
            shown[contender.title] = Error.of([len(one) for one in tables])
        how = "declared" if question.declared else f"discovered, delta {DELTA:g}"
        for statistic in ("count", "sum"):
            yield line([how, f"{question.epsilon:g}", statistic], found[statistic], SHOWN_OF_VISITS)
        if not question.declared:
            numbers = " | ".join(
                f"{found['towns shown'][title].mean:.1f}" for title in SHOWN_OF_VISITS
            )
            of_all = f"towns shown, of {truth.shape[1]}"
            yield f"| {how} | {question.epsilon:g} | {of_all} | {numbers} | |"


def _totals(held: Visits, town: str) -> tuple[int, float]:
    costs = [min(cost, held.upper) for where, cost in zip(held.towns, held.costs, strict=True)
             if where == town]  # fmt: skip
    return len(costs), math.fsum(costs)


def main() -> None:
    """Measure, print, and write the tables."""
    versions: dict[str, str] = {}
    for contender in CONTENDERS:
        versions |= {f"{name} {number}": "" for name, number in asked(contender).items()}
    measured = f"Measured on {described()}, {', '.join(versions)}."
    for page, mark, lines in (
        ("publishing.md", "errors", table_of_columns()),
        ("persons.md", "errors", table_of_visits()),
    ):
        written = []
        for text in lines:
            print(text, flush=True)
            written.append(text)
        write_between_marks(ROOT / "docs" / page, mark, "\n".join([*written, "", measured]))


if __name__ == "__main__":
    main()
