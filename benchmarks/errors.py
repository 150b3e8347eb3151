"""Compare the errors of published statistics with other libraries at equal epsilon and delta.

`make errors` prints four tables and writes them to docs/accuracy.md. Every library computes the
same statistic of the same clamped values, in its environment (`benchmarks.contenders`).
"""

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from marks import measured_with, write_between_marks

from benchmarks.contenders import DECILES, HIGH, Column, Floats, Stays, Visits
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.column_tally import tally_chunks
from dpnoise.statistics.plan import Plan
from dpnoise.statistics.queries import Count, Sum
from dpnoise.statistics.selections import (
    PARTS,
    UNITS_PER_ROW,
    QuantileSelection,
    SpreadRows,
    nearest_place,
    place_scale,
    target_rank,
)

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "accuracy.md"
PEOPLE: Final = ROOT / "src" / "dpnoise" / "cli" / "people.csv"
EPSILON: Final = 1.0
DELTA: Final = 1e-6
HARDLY_ANY_NOISE: Final = 1e4  # An epsilon at which the error comes from bounding only.
ROUNDS: Final = {"count": 6000, "sum": 6000, "mean": 6000, "variance": 4000, "std": 4000,
                 "histogram": 4000, "median": 250, "quantile 0.9": 250,
                 "deciles": 30, "median, interval": 250, "deciles, interval": 30}  # fmt: skip
_PLACES: Final = {"median": 0.5, "quantile 0.9": HIGH}
_DATA_SETS: Final = 10  # Of the table of whole numbers.
_LIKELY_SCALES: Final = 45  # 65,536 candidates of a lower score are selected once in 10^14 times.
_NODES: Final = 200  # Enough for probabilities that add up to 1 within 1e-9.
BY_LAW: Final = "RMSE by the laws"
VISIT_ROUNDS: Final = 100
HOSPITAL_ROUNDS: Final = 12
VISIT_STATISTICS: Final = ("count", "sum", "mean")
STAY_ROUNDS: Final = 5  # The numbers of discovered groups differ by about one percent.
_LARGEST_RATIO: Final = 1.0  # Our goal for the error compared with the best library.
_DOUBTFUL: Final = 3  # Standard errors above the goal that chance rarely explains in 50 rows.
_NEGLIGIBLE: Final = 1e-9  # An error below this part of the bounds' width is 0 in every sample.


class Contender(NamedTuple):
    """A library, its module in `benchmarks.contenders`, and the interpreter that has it."""

    title: str
    module: str
    python: str = sys.executable
    share: float = 1.0  # The share of the rounds to run: some libraries are slow.


CONTENDERS: Final = (
    Contender("dpnoise", "ours"),
    Contender("OpenDP", "opendp_plain"),
    Contender("OpenDP, Polars", "opendp_polars", ".venv-opendp/bin/python", 0.1),
    Contender("SmartNoise SQL", "smartnoise", ".venv-smartnoise/bin/python", 0.1),
    Contender("diffprivlib", "diffprivlib_tools"),
)
VISIT_CONTENDERS: Final = tuple(c for c in CONTENDERS if c.title not in {"OpenDP", "diffprivlib"})
COLUMN_TITLES: Final = ["dpnoise", "with intervals", *(c.title for c in CONTENDERS[1:])]
VISIT_TITLES: Final = [contender.title for contender in VISIT_CONTENDERS]
STAY_CONTENDERS: Final = CONTENDERS[:3]
STAY_TITLES: Final = [contender.title for contender in STAY_CONTENDERS]


def ask(contender: Contender, **question: Any) -> Any:
    """Run a library in a separate process, and return its answer."""
    process = subprocess.run(  # noqa: S603 - our own interpreters and code
        [contender.python, "-m", "benchmarks.contenders", contender.module],
        input=json.dumps(question),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=ROOT,
    )
    return json.loads(process.stdout)


class Error(NamedTuple):
    """A mean error over releases, and the standard deviation of that mean."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Error":
        """Return the mean of some errors, and its standard deviation."""
        return cls(float(np.mean(errors)), float(np.std(errors) / math.sqrt(len(errors))))


def line(cells_before: Sequence[str], errors: dict[str, Error], titles: Sequence[str]) -> str:
    """Return a line of a table: the error of each library, and ours over the smallest."""
    ours = errors["dpnoise"]
    # By the upper limit of its error: of equally good libraries, the luckiest would look better.
    peers = [errors[peer.title] for peer in CONTENDERS[1:] if peer.title in errors]
    best = min(peers, key=lambda error: error.mean + 2 * error.deviation)
    cells = [f"{errors[title].mean:,.3g}" if title in errors else "" for title in titles]
    if not best.mean:  # Several libraries may select the same value each time.
        return f"| {' | '.join([*cells_before, *cells])} | |"
    ratio = ours.mean / best.mean
    deviation = ratio * math.hypot(*(e.deviation / e.mean for e in (ours, best) if e.mean))
    is_higher = round(ratio - _DOUBTFUL * deviation, 2) > _LARGEST_RATIO  # As far as is printed.
    verdict = f" **above {_LARGEST_RATIO}**" if is_higher else ""
    return f"| {' | '.join([*cells_before, *cells])} | {ratio:.2f} ± {deviation:.2f}{verdict} |"


def header(first_titles: Sequence[str], libraries: Sequence[str]) -> list[str]:
    """Return the first lines of a table."""
    titles = [*first_titles, *libraries, "dpnoise over the best"]
    return [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]


# Columns ------------------------------------------------------------------------------------------


def column_of(name: str, values: Floats, upper: float, grid: float | None = None) -> Column:
    """Return a column with bounds from 0, and with our candidates for quantiles."""
    bounds = Bounds.of_cells(0.0, upper, grid)
    candidates = (np.arange(bounds.least, bounds.most + 1) * bounds.grid).tolist()
    return Column(name, values.tolist(), 0.0, upper, EPSILON, candidates)


def columns() -> Iterator[Column]:
    """Yield four columns: people, patients of scikit-learn, one with ties, and a skewed one."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415 - only the benchmark needs it

    rng = np.random.default_rng(1)  # Test data, not noise.
    people = np.loadtxt(PEOPLE, delimiter=",", skiprows=1, usecols=2)
    yield column_of("5,000 people, income", people, 200_000.0)
    yield column_of("442 patients, diabetes", load_diabetes().target, 400.0)
    visits = np.repeat([0, 1], 2500) * rng.poisson(6, 5000).astype(float)
    yield column_of("5,000 visits, half 0", visits, 100.0)
    yield column_of("5,000 skewed", np.exp(rng.normal(9.0, 1.5, 5000)), 1_000_000.0)


def exact_statistics(column: Column) -> dict[str, Floats]:
    """Return the exact statistics of a column."""
    clamped_values = column.clamped_values
    total = math.fsum(clamped_values)
    return {
        "count": clamped_values.size,
        "sum": total,
        "mean": total / clamped_values.size,
        "variance": np.var(clamped_values),
        "std": np.std(clamped_values),
        "histogram": np.histogram(clamped_values, column.edges)[0],
        "median": np.quantile(clamped_values, 0.5, method="inverted_cdf"),
        "quantile 0.9": np.quantile(clamped_values, HIGH, method="inverted_cdf"),
        "deciles": np.quantile(clamped_values, DECILES, method="inverted_cdf"),
    }


def errors_of(column: Column) -> dict[str, dict[str, Error]]:
    """Return the error of every statistic, by library; unpublished numbers (NaN) do not count."""
    truth = exact_statistics(column)
    errors: dict[str, dict[str, Error]] = defaultdict(dict)
    for contender in CONTENDERS:
        rounds = {name: math.ceil(number * contender.share) for name, number in ROUNDS.items()}
        for name, values in ask(contender, column=column._asdict(), rounds=rounds).items():
            statistic, _, interval = name.partition(", ")
            absolute_errors = np.nanmean(
                np.abs(np.array(values, dtype=float) - truth[statistic]), axis=1
            )
            errors[statistic]["with intervals" if interval else contender.title] = Error.of(
                absolute_errors
            )
    return errors


def table_of_columns() -> Iterator[str]:
    """Yield the lines of the table of statistics of columns."""
    titles, rule = header(["data", "statistic"], COLUMN_TITLES)
    yield f"{titles} {BY_LAW} |"
    yield f"{rule}---|"
    for column in columns():
        for statistic, errors in errors_of(column).items():
            ratio = expected_ratio(column, statistic)
            by_law = "" if ratio is None else f"{ratio:.3f}"
            yield f"{line([column.name, statistic], errors, COLUMN_TITLES)} {by_law} |"


# The laws of errors -------------------------------------------------------------------------------


def expected_ratio(column: Column, statistic: str) -> float | None:
    """Return our expected RMSE over that of OpenDP's constructors, from the laws of their noise.

    None if a law is not computed here, or if OpenDP's error is negligible. Noise of one kind has an
    RMSE in proportion to its scale.
    """
    width = max(abs(column.lower), abs(column.upper))
    if statistic == "count":
        return float(Count(None, column.epsilon).mechanism.scale * column.epsilon)
    if statistic == "sum":
        total = Sum("x", column.lower, column.upper, column.epsilon)
        return float(total.mechanism.scale * total.bounds.grid * column.epsilon / width)
    if statistic not in _PLACES:
        return None
    q = _PLACES[statistic]
    ours, theirs = (expected_rmse(column, q, scores) for scores in (our_scores, opendp_scores))
    return ours / theirs if theirs > _NEGLIGIBLE * width else None


def expected_rmse(
    column: Column, q: float, scores_of: Callable[[Column, float], tuple[Floats, float]]
) -> float:
    """Return the root of the expected squared error of a quantile among the candidates."""
    truth = np.quantile(column.clamped_values, q, method="inverted_cdf")
    squared_errors = (np.array(column.candidates) - truth) ** 2
    return math.sqrt(np.dot(selection_law(*scores_of(column, q)), squared_errors))


def our_scores(column: Column, q: float) -> tuple[Floats, float]:
    """Return the scores of our candidates for a quantile, and the scale of the noise on them."""
    grid = column.candidates[1] - column.candidates[0]
    query = QuantileSelection("x", [q], column.lower, column.upper, column.epsilon, grid)
    counts = np.asarray(tally_chunks([column.clamped_values], Plan((query.ask,))).answers[0])
    rows = SpreadRows(counts)
    ranks = rows.ranks(-1, counts.size * PARTS, q, column.epsilon)
    scores = ranks.scores(target_rank(nearest_place(q), ranks.rows))
    return scores, place_scale(q, column.epsilon, UNITS_PER_ROW)


def opendp_scores(column: Column, q: float) -> tuple[Floats, float]:
    """Return the scores that OpenDP 0.16 gives to the candidates, and the scale of its noise."""
    values = np.sort(column.clamped_values)
    below = np.searchsorted(values, column.candidates, "left")
    above = values.size - np.searchsorted(values, column.candidates, "right")
    return -np.abs((1 - q) * below - q * above), 2 * max(q, 1 - q) / column.epsilon


def selection_law(scores: Floats, scale: float) -> Floats:
    """Return the probability of each candidate if exponential noise is added to the scores.

    With w = exp(score/scale), relative to the best, candidate i has the probability of w_i times
    the integral of the product of 1 - y w_j over all j but i, for y from 0 to 1. Candidates with
    equal scores are computed once. Nodes are cubed, because the integrand falls steeply at 0.
    """
    likely = scores > np.max(scores) - _LIKELY_SCALES * scale
    weights = np.exp((scores[likely] - np.max(scores)) / scale)
    different, indices, numbers = np.unique(weights, return_inverse=True, return_counts=True)
    nodes, parts = np.polynomial.legendre.leggauss(_NODES)
    nodes, parts = (nodes + 1) / 2, parts / 2
    logarithms = np.log1p(-np.outer(nodes**3, different))
    products = np.exp((logarithms @ numbers)[:, None] - logarithms)
    law = np.zeros(scores.size)
    law[likely] = (different * ((parts * 3 * nodes**2) @ products))[indices]
    return law


def table_of_whole_numbers() -> Iterator[str]:
    """Yield the lines of the expected errors of medians that are whole, and of those that are not.

    Each is the root mean square over data sets of 1,000 values.
    """
    rng = np.random.default_rng(6)  # Test data, not noise.
    yield "| values | upper bound | whole answers | finest grid |"
    yield "|---|---|---|---|"
    for upper in (1.0, 10.0, 49.0, 50.0, 400.0):
        data_sets = rng.beta(2, 3, (_DATA_SETS, 1000)) * upper
        finest = 2.0 ** math.ceil(math.log2(upper / (2**16 - 1)))
        for kind, values in (("whole", np.rint(data_sets)), ("not whole", data_sets)):
            cells = [kind, f"{upper:g}"]
            for grid in (1.0, finest):
                columns_of_grid = [column_of(kind, row, upper, grid) for row in values]
                errors = [expected_rmse(column, 0.5, our_scores) for column in columns_of_grid]
                cells.append(f"{math.sqrt(np.mean(np.square(errors))):.3g}")
            yield f"| {' | '.join(cells)} |"


# Visits of persons --------------------------------------------------------------------------------


def visits() -> Visits:
    """Return invented visits to 60 towns of all sizes; some persons have many, in several towns."""
    rng = np.random.default_rng(2)  # Test data, not noise.
    persons, names = 3_000, [f"town {number:02}" for number in rng.permutation(60)]
    shares = 1 / np.arange(1, len(names) + 1)
    shares /= shares.sum()
    homes = rng.choice(len(names), persons, p=shares)
    visitors = np.repeat(np.arange(persons), rng.geometric(0.4, persons))
    is_away = rng.random(visitors.size) < 0.15
    towns = np.where(is_away, rng.choice(len(names), visitors.size, p=shares), homes[visitors])
    costs = np.round(rng.lognormal(4.0, 0.6, visitors.size), 2)
    return Visits(
        visitors.tolist(), [names[town] for town in towns], costs.tolist(), 500.0,
        max_groups=2, max_rows=3, epsilon=EPSILON, delta=0.0, declared=sorted(names),
    )  # fmt: skip


def hospital_stays() -> Visits:
    """Return invented stays of 60,000 patients in 120 hospitals; the bounds leave out none."""
    rng = np.random.default_rng(4)  # Test data, not noise.
    names = [f"hospital {number:03}" for number in range(120)]
    shares = 1 / np.arange(5, len(names) + 5)
    usual, other = rng.choice(len(names), (2, 60_000), p=shares / shares.sum())
    patients = np.repeat(np.arange(60_000), rng.integers(5, 9, 60_000))
    is_away = rng.random(patients.size) < 0.2
    hospitals = np.where(is_away, other[patients], usual[patients])
    costs = np.round(rng.lognormal(8.0, 0.9, patients.size), 2)
    return Visits(
        patients.tolist(), [names[place] for place in hospitals], costs.tolist(), 20_000.0,
        max_groups=2, max_rows=8, epsilon=EPSILON, delta=0.0, declared=names,
    )  # fmt: skip


def table_of_visits() -> Iterator[str]:
    """Yield the lines of the table of persons with several rows."""
    yield from header(["groups", "epsilon", "statistic"], VISIT_TITLES)
    declared, hospitals = visits(), hospital_stays()
    for all_groups, question, rounds in (
        (declared.declared, declared, VISIT_ROUNDS),
        (declared.declared, declared._replace(delta=DELTA, declared=[]), VISIT_ROUNDS),
        (declared.declared, declared._replace(epsilon=HARDLY_ANY_NOISE), VISIT_ROUNDS),
        (hospitals.declared, hospitals, HOSPITAL_ROUNDS),
    ):
        yield from _lines_of_visits(all_groups, question, rounds)


def _lines_of_visits(all_groups: list[str], question: Visits, rounds: int) -> Iterator[str]:
    """Yield the lines for one budget. Groups that are not shown count as 0."""
    truth = _exact_numbers(question, all_groups)
    errors_by_statistic: dict[str, dict[str, Error]] = defaultdict(dict)
    shown: dict[str, Error] = {}
    for contender in VISIT_CONTENDERS:
        times = math.ceil(rounds * contender.share)
        tables = ask(contender, visits=question._asdict(), rounds=times)
        values = [[table.get(group, [0.0] * 3) for group in all_groups] for table in tables]
        errors = np.abs(np.array(values, dtype=float) - truth).mean(axis=1)
        for statistic, of_releases in zip(VISIT_STATISTICS, errors.T, strict=True):
            errors_by_statistic[statistic][contender.title] = Error.of(of_releases)
        shown[contender.title] = Error.of([len(table) for table in tables])
    kind = all_groups[0].split()[0]
    grouping = f"{len(all_groups)} {kind}s, " + (
        "declared" if question.declared else f"discovered, delta {DELTA:g}"
    )
    # The mean of a group that is not shown has no error.
    for statistic in VISIT_STATISTICS if question.declared else VISIT_STATISTICS[:2]:
        cells = [grouping, f"{question.epsilon:g}", statistic]
        yield line(cells, errors_by_statistic[statistic], VISIT_TITLES)
    if not question.declared:
        numbers = " | ".join(f"{shown[title].mean:.1f}" for title in VISIT_TITLES)
        yield f"| {grouping} | {question.epsilon:g} | {kind}s shown | {numbers} | |"


def _exact_numbers(question: Visits, groups: list[str]) -> Floats:
    """Return the number, the sum and the mean of the clamped costs in each group."""
    costs = np.minimum(question.costs, question.upper)
    places = np.searchsorted(groups, question.towns)
    numbers, totals = np.bincount(places), np.bincount(places, costs)
    return np.stack([numbers, totals, totals / numbers], axis=1)


# Diagnoses that are discovered -------------------------------------------------------------------


def stays(max_groups: int) -> Stays:
    """Return 400,000 invented stays of 60,000 patients with 2,995 diagnoses, most of them rare."""
    rng = np.random.default_rng(3)  # Test data, not noise.
    shares = np.arange(1, 2_996) ** -1.3
    patients = np.concatenate([np.arange(60_000), rng.integers(0, 60_000, 340_000)])
    diagnoses = rng.choice(2_995, patients.size, p=shares / shares.sum())
    names = [f"D{number:04}" for number in diagnoses]
    return Stays(patients.tolist(), names, max_groups, EPSILON, DELTA)


def table_of_stays() -> Iterator[str]:
    """Yield the lines of the table of discovered groups."""
    titles = ["max_groups", *STAY_TITLES, "dpnoise over the best"]
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for max_groups in (1, 5, 10):
        question = stays(max_groups)
        numbers = []
        for contender in STAY_CONTENDERS:
            tables = ask(contender, stays=question._asdict(), rounds=STAY_ROUNDS)
            numbers.append(Error.of([len(released_table) for released_table in tables]))
        ours, best = numbers[0], max(numbers[1:])
        ratio = ours.mean / best.mean
        deviation = ratio * math.hypot(ours.deviation / ours.mean, best.deviation / best.mean)
        cells = [f"{number.mean:.0f}" for number in numbers]
        yield f"| {' | '.join([str(max_groups), *cells, f'{ratio:.2f} ± {deviation:.2f}'])} |"


def main() -> None:
    """Measure, print and write all tables."""
    versions: dict[str, str] = {}
    for contender in CONTENDERS:
        versions |= {f"{name} {number}": "" for name, number in ask(contender).items()}
    measured = f"Measured on {measured_with()}, {', '.join(versions)}."
    for mark, lines in (
        ("whole", table_of_whole_numbers()),
        ("errors", table_of_columns()),
        ("visits", table_of_visits()),
        ("discovered", table_of_stays()),
    ):
        printed_lines = []
        for text in lines:
            print(text, flush=True)
            printed_lines.append(text)
        write_between_marks(PAGE, mark, "\n".join([*printed_lines, "", measured]))


if __name__ == "__main__":
    main()
