"""Audit wide outputs next to a logistic regression like DP-Sniper's: each certifies a bound.

`make audit-wide` writes a table of docs/audit-measurements.md; it needs scikit-learn. Words as
arguments measure only mechanisms whose description has one of them, and write nothing. Both get the
same releases in all, and confidence 0.999. The regression learns from half of them, and chooses its
threshold on these. The other half counts the event. DP-Sniper does the same with a smallest
probability of the event instead of the expected bound (Bichsel and others 2021). The ideal is the
bound that the best event of the true likelihood ratio is expected to certify if all releases count
it.

Rare leaks have other budgets. A regression does not see them, and is not measured.
"""

import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from marks import measured_with, write_between_marks
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import dpnoise
from benchmarks.audit_bugs import geometric, round_to_grid
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, claim_of, tossed_epsilon
from dpnoise.auditing.wording import bound_text
from dpnoise.core.parallel import cores

Floats = NDArray[np.float64]
Draw = Callable[[tuple[int, ...]], Floats]
Ratio = Callable[[Floats], Floats]

PAGE: Final = Path(__file__).parents[1] / "docs" / "audit-measurements.md"
BUDGET: Final = 200_000
RUNS: Final = 9  # Bounds of one mechanism differ by a tenth from run to run.
CONFIDENCE: Final = 0.999
_IDEAL_SAMPLE: Final = 4_000_000  # True scores of each data set from which the ideal is computed.
_CHUNK: Final = 20_000
RARE: Final = 1e-4  # The rate of a rare leak.

rng = np.random.default_rng()


@dataclass(frozen=True)
class Wide:
    """A mechanism with many parts, at the data sets 0 and 1, and its claim.

    `law` draws a number that increases with the true likelihood ratio; None for a rare leak, which
    has the probabilities `rates`.
    """

    words: str
    mechanism: Callable[[int, int], Any]
    law: Callable[[int, int], Floats] | None
    claim: dict[str, float]
    rates: tuple[float, float] = (0.0, 0.0)
    budgets: tuple[int | None, ...] = (BUDGET,)  # None is that of an audit without one.


def _gaussian(words: str, parts: int, mu: float, claim: dict[str, float]) -> Wide:
    """Return a release of parts that all move, in all by mu, with Gaussian noise of scale 1."""
    direction = np.random.default_rng(parts).normal(size=parts)
    moves = mu * direction / np.linalg.norm(direction)
    return Wide(
        words,
        lambda bit, n: round_to_grid(rng.normal(size=(n, parts)) + bit * moves),
        lambda bit, n: rng.normal(size=n) + bit * mu,
        claim,
    )


def _one_cell(bit: int, n: int) -> Floats:
    noisy = rng.laplace(size=(n, 300))
    noisy[:, 171] = noisy[:, 171] / 3 + bit
    return np.asarray(round_to_grid(noisy))


def _total(bit: int, n: int) -> Floats:
    parts = np.rint(rng.laplace(scale=100.0, size=(n, 100)))
    return np.column_stack([parts, parts.sum(axis=1) + bit])


def _factor_noise(size: int, parts: int) -> Floats:
    """Return Gaussian noise of scale 1 of which parts share four fifths, in four factors."""
    loadings = np.random.default_rng(4).normal(size=(4, parts))
    loadings /= np.linalg.norm(loadings, axis=0)
    shared = rng.normal(size=(size, 4)) @ loadings
    return np.asarray(math.sqrt(0.8) * shared + math.sqrt(0.2) * rng.normal(size=(size, parts)))


def _correlated(parts: int, mu: float) -> Wide:
    """Return parts with noise that they share, which move by mu in units of that noise."""
    loadings = np.random.default_rng(4).normal(size=(4, parts))
    loadings /= np.linalg.norm(loadings, axis=0)
    covariance = 0.8 * loadings.T @ loadings + 0.2 * np.eye(parts)
    moves = np.random.default_rng(parts).normal(size=parts)
    moves *= mu / math.sqrt(moves @ np.linalg.solve(covariance, moves))
    return Wide(
        f"{parts} parts that share noise",
        lambda bit, n: round_to_grid(_factor_noise(n, parts) + bit * moves),
        lambda bit, n: rng.normal(size=n) + bit * mu,
        {"epsilon": 1.0},
    )


def _independent(words: str, draw: Draw, log_density: Ratio, moves: Floats) -> Wide:
    """Return parts with independent noise, which `draw` gives for a shape."""

    def law(bit: int, n: int) -> Floats:
        total = np.zeros(n)
        for move in moves.tolist():
            x = draw((n,)) + bit * move
            total += log_density(x - move) - log_density(x)
        return total

    return Wide(words, lambda bit, n: draw((n, len(moves))) + bit * moves, law, {"epsilon": 1.0})


def _laplace(size: tuple[int, ...]) -> Floats:
    return np.asarray(round_to_grid(rng.laplace(size=size)))


def _student(size: tuple[int, ...]) -> Floats:
    return np.asarray(round_to_grid(rng.standard_t(2, size=size)))


def _integers(size: tuple[int, ...]) -> Floats:
    return np.asarray(geometric(1 / 3, size), np.float64)


def _spread(parts: int, mu: float) -> Floats:
    direction = np.random.default_rng(parts).normal(size=parts)
    return np.asarray(round_to_grid(mu * direction / np.linalg.norm(direction)))


def _with_large_columns(parts: int, mu: float) -> Wide:
    """Return parts of which five have a million times the noise of the others, and the moves."""
    scales, moves = np.ones(parts), _spread(parts, mu)
    scales[:: parts // 5] = 1e6
    return Wide(
        f"{parts} parts, a few much larger",
        lambda bit, n: round_to_grid((rng.normal(size=(n, parts)) + bit * moves) * scales),
        lambda bit, n: rng.normal(size=n) + bit * mu,
        {"epsilon": 1.0},
    )


def _mixed(parts: int, *, as_tuples: bool) -> Wide:
    """Return equal numbers of counts with geometric noise, and of sums with Gaussian noise."""
    steps, moves = np.resize([1.0, -1.0], parts), _spread(parts, 1.5)

    def draw(bit: int, n: int) -> Any:
        counts = _integers((n, parts)) + bit * steps
        sums = round_to_grid(rng.normal(size=(n, parts)) + bit * moves)
        if as_tuples:
            pairs = zip(counts.astype(int).tolist(), sums.tolist(), strict=True)
            return [(*whole, *real) for whole, real in pairs]
        return np.column_stack([counts, sums])

    def law(bit: int, n: int) -> Floats:
        total = 1.5 * (rng.normal(size=n) + 1.5 * bit)
        for step in steps.tolist():
            x = _integers((n,)) + bit * step
            total += (np.abs(x) - np.abs(x - step)) / 3
        return total

    kind = "tuples" if as_tuples else "rows"
    return Wide(f"{kind} of {parts} integers and {parts} floats", draw, law, {"epsilon": 1.0})


def _forgotten(parts: int) -> Wide:
    """Return Laplace noise that is forgotten once in 10,000 releases."""

    def draw(bit: int, n: int) -> Floats:
        noisy = rng.laplace(size=(n, parts))
        noisy[rng.random(n) < RARE] = 0
        noisy[:, parts // 2] += bit
        return np.asarray(round_to_grid(noisy + 42))

    # Noise of -1 on the grid looks alike at the other data set.
    by_chance = 2.0**-21 / math.e if parts == 1 else 0.0
    words = f"noise forgotten once in 10,000, {parts} number{'s' * (parts > 1)}"
    return Wide(words, draw, None, {"epsilon": 1.0}, (RARE, by_chance), (20_000_000, None))


def _fail(bit: int, n: int) -> list[Any]:
    noisy, fails = round_to_grid(rng.laplace(size=n)) + 42 + bit, rng.random(n) < RARE
    outputs: list[Any] = noisy.tolist()
    for i in np.flatnonzero(fails).tolist():
        outputs[i] = f"no logarithm of {bit}"
    return outputs


def _tail(bit: int, n: int) -> Floats:
    noisy = rng.laplace(size=n) + np.where(rng.random(n) < 2.5 * RARE * bit, 40.0, 0.0)
    return np.asarray(round_to_grid(noisy))


WIDE: Final = [
    _gaussian("mu 5 over 24 parts", 24, 5.0, {"mu": 1.0}),
    _gaussian("mu 5 over 25 parts", 25, 5.0, {"mu": 1.0}),
    _gaussian("mu 5 over 65 parts", 65, 5.0, {"mu": 1.0}),
    _gaussian("mu 5 over 130 parts", 130, 5.0, {"mu": 1.0}),
    _gaussian("100 weights, sigma too small", 100, 0.65, {"epsilon": 1.0, "delta": 1e-5}),
    Wide("one cell of 300 with a third of the noise", _one_cell,
         lambda bit, n: rng.laplace(size=n) / 3 + bit, {"epsilon": 1.0}),
    Wide("a total with the noise of its 100 parts", _total,
         lambda bit, n: np.full(n, float(bit)), {"epsilon": 1.0}),
    _independent("50 parts with Laplace noise", _laplace, lambda x: -np.abs(x), _spread(50, 2.0)),
    _independent("50 parts with noise of heavy tails", _student,
                 lambda x: -1.5 * np.log1p(x**2 / 2), _spread(50, 2.0)),
    _independent("50 integers with geometric noise", _integers,
                 lambda x: -np.abs(x) / 3, np.resize([1.0, -1.0], 50)),
    _with_large_columns(60, 2.0),
    _correlated(60, 2.0),
    _mixed(30, as_tuples=False),
    _mixed(10, as_tuples=True),
    _gaussian("500 weights, sigma too small", 500, 2.5, {"epsilon": 1.0, "delta": 1e-5}),
    _forgotten(1),
    _forgotten(40),
    Wide("an error text once in 10,000", _fail, None, {"epsilon": 1.0}, (RARE, 0.0), (None,)),
    Wide("in the tail once in 4,000", _tail, None, {"epsilon": 1.0}, (2.5 * RARE, 0.0),
         (20_000_000, None)),
]  # fmt: skip


def _estimator(wide: Wide, trials: int) -> BoundEstimator:
    claim = claim_of(wide.claim.get("epsilon"), wide.claim.get("delta", 0.0),
                     mu=wide.claim.get("mu"))  # fmt: skip
    return BoundEstimator(claim, trials, 1 - CONFIDENCE, chance=0.5, caution=0.0)


def _best_threshold(
    estimator: BoundEstimator, score0: Floats, score1: Floats
) -> tuple[float, float]:
    """Return the threshold with the largest expected bound of "above it", and that bound."""
    cuts = np.unique(np.concatenate([np.sort(score0)[-1000:], np.sort(score1)[-1000:],
                                     np.quantile(score1, np.linspace(0, 1, 4000))]))  # fmt: skip
    above = [len(x) - np.searchsorted(np.sort(x), cuts, "right") for x in (score1, score0)]
    bounds = estimator.expected_bounds(above[0], above[1], len(score0))
    best = int(bounds.argmax())
    return float(cuts[best]), float(bounds[best])


def ideal_bound(wide: Wide, budget: int) -> float:
    """Return the expected bound of the best event, counted in all releases."""
    estimator = _estimator(wide, budget // 2)
    if wide.law is None:
        rates = np.array(wide.rates[:1]), np.array(wide.rates[1:])
        return float(estimator.bounds_of(*rates, np.zeros(1))[0])
    scores = wide.law(0, _IDEAL_SAMPLE), wide.law(1, _IDEAL_SAMPLE)
    return _best_threshold(estimator, *scores)[1]


def bound_by_regression(wide: Wide, budget: int) -> float:
    """Return the bound that an event of a logistic regression certifies."""
    each = budget // 4
    rows = np.concatenate([wide.mechanism(bit, each) for bit in (0, 1)])
    spread = np.maximum(rows.std(axis=0), 1e-9)
    model = LogisticRegression(max_iter=200)
    model.fit(rows / spread, np.repeat([0, 1], each))

    def score(rows: Floats) -> Floats:
        return np.asarray(model.decision_function(rows / spread))

    estimator = _estimator(wide, each)
    of_rows = score(rows)
    cut, _ = _best_threshold(estimator, of_rows[:each], of_rows[each:])
    hits = [sum(int((score(wide.mechanism(bit, min(_CHUNK, each - start))) > cut).sum())
                for start in range(0, each, _CHUNK)) for bit in (1, 0)]  # fmt: skip
    if estimator.claim.is_ratio:
        counts = hits[0], each, hits[1], each
        return tossed_epsilon(*counts, error=1 - CONFIDENCE, delta=estimator.claim.delta)
    exact = BoundEstimator(estimator.claim, each, 1 - CONFIDENCE, chance=0.0, caution=0.0)
    return float(exact.expected_bounds(np.array(hits[:1]), np.array(hits[1:]), each)[0])


@dataclass(frozen=True)
class Row:
    """Medians of the bounds of one mechanism, and the releases of the audit with that bound."""

    words: str
    releases: int
    audit: float
    regression: float | None
    ideal: float

    def text(self) -> str:
        """Return the row of the table."""
        regression = "" if self.regression is None else bound_text(self.regression)
        share = f"{100 * self.audit / self.ideal:.0f} %"
        bounds = f"{bound_text(self.audit)} | {regression} | {bound_text(self.ideal)}"
        return f"| {self.words} | {self.releases:,} | {bounds} | {share} |"


def _measure(job: tuple[int, int | None]) -> Row:
    """Return the row of the mechanism with this index and budget."""
    index, budget = job
    wide = WIDE[index]
    audits = [
        dpnoise.audit(
            wide.mechanism, neighbours=[(0, 1)], budget=budget, confidence=CONFIDENCE, **wide.claim
        )
        for _ in range(RUNS)
    ]
    middle = sorted(audits, key=lambda report: report.certified)[RUNS // 2]
    regression = None
    if wide.law is not None:
        bounds = (bound_by_regression(wide, middle.releases) for _ in range(RUNS))
        regression = statistics.median(bounds)
    ideal = ideal_bound(wide, middle.releases)
    is_default = budget is None and len(wide.budgets) > 1
    words = "the same, without a budget" if is_default else wide.words
    return Row(words, middle.releases, middle.certified, regression, ideal)


def _note(rows: list[Row]) -> str:
    wide = [row for row in rows if row.regression is not None]
    near = sum(row.audit >= 0.95 * row.ideal for row in wide)
    better = sum(row.audit >= (row.regression or 0.0) for row in wide)
    return (
        f"\nMedians of {RUNS} audits. Of {len(wide)} mechanisms "
        f"whose leak a regression can see, audits certify at least as much as it for {better}, and "
        f"at least 95 % of the ideal for {near}. Measured on {measured_with('scikit-learn')}."
    )


def main(words: list[str]) -> None:
    """Print the rows of all mechanisms, or of those whose description has one of the words."""
    jobs = [
        (i, budget)
        for i, wide in enumerate(WIDE)
        if not words or {*words} & {*wide.words.split()}
        for budget in wide.budgets
    ]
    lines = [
        "",
        "| mechanism | releases | ours | regression | ideal | share |",
        "|---" * 6 + "|",
    ]
    print("\n".join(lines[1:]))
    rows = []
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # The processes started here fill the cores.
    with multiprocessing.get_context("spawn").Pool(cores()) as pool:
        for row in pool.imap(_measure, jobs, chunksize=1):
            rows.append(row)
            print(row.text(), flush=True)
    if not words:
        lines += [row.text() for row in rows]
        write_between_marks(PAGE, "audit-wide", "\n".join([*lines, _note(rows), ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
