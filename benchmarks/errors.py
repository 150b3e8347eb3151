"""How far published statistics are off, beside OpenDP and diffprivlib at the same epsilon.

`make errors` prints the table and writes it to docs/publishing.md. Every library is asked for the
same statistic of the same clamped values, at epsilon 1 for all of it. OpenDP has our candidates for
quantiles, and a count and a sum for a mean. diffprivlib takes the number of rows for known.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import diffprivlib.tools as theirs
import numpy as np
import opendp.prelude as dp
from marks import write_between_marks
from sklearn.datasets import load_diabetes

from dpnoise.machine import described
from dpnoise.statistics.bounds import Bounds
from dpnoise.statistics.functions import exact_sum
from dpnoise.statistics.plan import Plan
from dpnoise.statistics.queries import Count, Histogram, Mean, Quantiles, Query, Sum
from dpnoise.statistics.tallying import Chunk, tally_chunks

PAGE: Final = Path(__file__).parent.parent / "docs" / "publishing.md"
PEOPLE: Final = Path(__file__).parent.parent / "src" / "dpnoise" / "data" / "people.csv"
EPSILON: Final = 1.0
ADDED, SELECTED, TOGETHER = 4000, 250, 30  # Releases: with added noise, of a median, of deciles.
DECILES: Final = [i / 10 for i in range(1, 10)]
CELLS: Final = 10
_FAIR: Final = 1.05

dp.enable_features("contrib")
warnings.simplefilter("ignore")  # diffprivlib's, about its own defaults.

Floats = Any


class Data(NamedTuple):
    """A column with its declared bounds."""

    name: str
    values: Floats
    lower: float
    upper: float

    @property
    def clamped(self) -> Floats:
        """The values within the bounds."""
        return np.clip(self.values, self.lower, self.upper)

    @property
    def edges(self) -> list[float]:
        """Edges of equal cells."""
        return [float(edge) for edge in np.linspace(self.lower, self.upper, CELLS + 1)]


def data_sets() -> Iterator[Data]:
    """Yield the people, patients of scikit-learn's wheel, ties, and a skewed column."""
    rng = np.random.default_rng(1)  # Test data, not noise.
    people = np.loadtxt(PEOPLE, delimiter=",", skiprows=1, usecols=2)
    yield Data("5,000 people, income", people, 0.0, 200_000.0)
    yield Data("442 patients, diabetes", load_diabetes().target, 0.0, 400.0)
    visits = np.repeat([0, 1], 2500) * rng.poisson(6, 5000).astype(float)
    yield Data("5,000 visits, half 0", visits, 0.0, 100.0)
    skewed = np.exp(rng.normal(9.0, 1.5, 5000))
    yield Data("5,000 skewed", skewed, 0.0, 1_000_000.0)


# Each gives arrays of releases: a row for each release, a column for each number. -----------------


def ours(query: Query, data: Data, rounds: int) -> Floats:
    """Release one tally many times: that of as many groups that are all alike."""
    plan = Plan((query.ask,))
    tally = tally_chunks([Chunk(data.values.size, {"x": data.clamped})], plan)
    answer: Any = tally.answers[0]
    if isinstance(answer, np.ndarray):
        repeated: Any = np.broadcast_to(answer, (rounds, *answer.shape))
    else:
        parts = (np.full(rounds, part.item()) for part in (answer.count, answer.total))
        repeated = type(answer)(*parts)
    released = [one.value for one in query.release(repeated, 0.95, None)]
    return np.array(released, dtype=float).reshape(rounds, -1)


def opendp_laplace(exactly: Floats, sensitivity: float, epsilon: float, rounds: int) -> Floats:
    """Add OpenDP's noise: discrete to integers, and Laplace to floats."""
    kind = int if np.issubdtype(np.asarray(exactly).dtype, np.integer) else float
    space = dp.vector_domain(dp.atom_domain(T=kind, nan=False)), dp.l1_distance(T=kind)
    mechanism = dp.m.make_laplace(*space, scale=sensitivity / epsilon)
    row = np.atleast_1d(exactly).tolist()
    return np.array([mechanism(row) for _ in range(rounds)], dtype=float)


def opendp_quantile(data: Data, q: float, epsilon: float, rounds: int) -> Floats:
    """Select by OpenDP among our candidates."""
    bounds = Bounds.of_cells(data.lower, data.upper)
    candidates = (np.arange(bounds.least, bounds.most + 1) * bounds.grid).tolist()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    scale = 2 * max(q, 1 - q) / epsilon
    mechanism = dp.m.make_private_quantile(
        *space, dp.max_divergence(), candidates=candidates, alpha=q, scale=scale
    )
    assert mechanism.map(1) <= epsilon * 1.0001  # noqa: S101 - the comparison is at equal epsilon
    rows = data.clamped.tolist()
    return np.array([mechanism(rows) for _ in range(rounds)])


def repeated(call: Callable[[], Any], rounds: int) -> Floats:
    """Call diffprivlib again and again."""
    return np.array([np.atleast_1d(call()) for _ in range(rounds)], dtype=float)


# The statistics -----------------------------------------------------------------------------------


class Errors(NamedTuple):
    """A statistic of a data set, and the mean error of each library with its own deviation."""

    data: str
    statistic: str
    found: dict[str, tuple[float, float]]


def measured(data: Data) -> Iterator[Errors]:
    """Yield the errors of all statistics of a data set."""
    clamped, n = data.clamped, data.values.size
    ones = np.repeat([0, 1], n)  # As many zeros, because diffprivlib clamps a count to the size.
    bounds = {"bounds": (data.lower, data.upper)}
    largest, half = max(abs(data.lower), abs(data.upper)), EPSILON / 2
    asked = ("x", data.lower, data.upper, EPSILON)
    total = float(exact_sum(clamped, data.lower, data.upper))

    def errors(name: str, exactly: Floats, **released: Floats) -> Errors:
        found = {}
        for library, values in released.items():
            off = np.abs(values - exactly).mean(axis=1)
            found[library] = (float(off.mean()), float(off.std() / math.sqrt(len(off))))
        return Errors(data.name, name, found)

    yield errors(
        "count",
        n,
        dpnoise=ours(Count(None, EPSILON), data, ADDED),
        opendp=opendp_laplace(n, 1.0, EPSILON, ADDED),
        diffprivlib=repeated(lambda: theirs.count_nonzero(ones, epsilon=EPSILON), ADDED),
    )
    yield errors(
        "sum",
        total,
        dpnoise=ours(Sum(*asked), data, ADDED),
        opendp=opendp_laplace(total, largest, EPSILON, ADDED),
        diffprivlib=repeated(lambda: theirs.sum(clamped, epsilon=EPSILON, **bounds), ADDED),
    )
    sums, counts = (
        opendp_laplace(exactly, moved, half, ADDED) for exactly, moved in ((total, largest), (n, 1))
    )
    yield errors(
        "mean",
        total / n,
        dpnoise=ours(Mean(*asked), data, ADDED),
        opendp=np.clip(sums / np.maximum(counts, 1), data.lower, data.upper),
        diffprivlib=repeated(lambda: theirs.mean(clamped, epsilon=EPSILON, **bounds), ADDED),
    )
    cells = np.histogram(clamped, data.edges)[0]
    span = {"bins": CELLS, "range": (data.lower, data.upper)}
    yield errors(
        f"histogram, {CELLS} cells",
        cells,
        dpnoise=ours(Histogram("x", data.edges, EPSILON), data, ADDED),
        opendp=opendp_laplace(cells, 1.0, EPSILON, ADDED),
        diffprivlib=repeated(lambda: theirs.histogram(clamped, epsilon=EPSILON, **span)[0], ADDED),
    )
    yield errors(
        "median",
        np.quantile(clamped, 0.5, method="inverted_cdf"),
        dpnoise=ours(_quantiles(asked, [0.5], interval=False), data, SELECTED),
        dpnoise_interval=ours(_quantiles(asked, [0.5], interval=True), data, SELECTED),
        opendp=opendp_quantile(data, 0.5, EPSILON, SELECTED).reshape(-1, 1),
        diffprivlib=repeated(
            lambda: theirs.quantile(clamped, 0.5, epsilon=EPSILON, **bounds), SELECTED
        ),
    )
    part = EPSILON / len(DECILES)
    yield errors(
        "deciles",
        np.quantile(clamped, DECILES, method="inverted_cdf"),
        dpnoise=ours(_quantiles(asked, DECILES, interval=False), data, TOGETHER),
        dpnoise_interval=ours(_quantiles(asked, DECILES, interval=True), data, TOGETHER),
        opendp=np.sort(
            np.stack([opendp_quantile(data, q, part, TOGETHER) for q in DECILES], axis=1), axis=1
        ),
        diffprivlib=np.sort(
            repeated(
                lambda: [theirs.quantile(clamped, q, epsilon=part, **bounds) for q in DECILES],
                TOGETHER,
            ).reshape(TOGETHER, -1),
            axis=1,
        ),
    )


def _quantiles(asked: Any, places: list[float], *, interval: bool) -> Quantiles:
    column, lower, upper, epsilon = asked
    return Quantiles(column, places, lower, upper, epsilon, interval=interval)


def row(errors: Errors) -> str:
    """Return a line of the table."""
    found = errors.found
    best = min(found[name][0] for name in ("opendp", "diffprivlib"))
    ratio = found["dpnoise"][0] / best
    deviation = ratio * math.hypot(
        *(found[name][1] / found[name][0] for name in ("dpnoise", "opendp") if found[name][0])
    )
    shown = [f"{found[name][0]:,.3g}" if name in found else "" for name in
             ("dpnoise", "dpnoise_interval", "opendp", "diffprivlib")]  # fmt: skip
    verdict = "" if ratio <= _FAIR + 2 * deviation else " **above 1.05**"
    cells = [errors.data, errors.statistic, *shown, f"{ratio:.2f} ± {deviation:.2f}{verdict}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write the table."""
    titles = ("data", "statistic", "dpnoise", "with intervals", "OpenDP", "diffprivlib")
    lines = [
        f"| {' | '.join(titles)} | dpnoise over the best |",
        "|" + "---|" * (len(titles) + 1),
    ]
    print(*lines, sep="\n")
    for data in data_sets():
        for errors in measured(data):
            lines.append(row(errors))
            print(lines[-1], flush=True)
    versions = ", ".join(f"{name} {version(name)}" for name in ("opendp", "diffprivlib", "numpy"))
    lines += ["", f"Measured on {described()}, {versions}."]
    print(lines[-1])
    write_between_marks(PAGE, "errors", "\n".join(lines))


if __name__ == "__main__":
    main()
