"""Audit wide outputs next to a logistic regression like DP-Sniper's: each certifies a bound.

`PYTHONPATH=tools python -m benchmarks.audit_wide` prints a table; it needs scikit-learn. The first
words of some mechanisms as arguments measure only these. Both get the same releases
in all, and confidence 0.999. The regression learns from half of them, and chooses its threshold on
these. The other half counts the event. DP-Sniper does the same with a smallest probability of the
event instead of the expected bound (Bichsel and others 2021). The ideal is the bound that the best
event of the true likelihood ratio is expected to certify if all releases count it.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import dpnoise
from benchmarks.audit_bugs import round_to_grid
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, claim_of, tossed_epsilon
from dpnoise.auditing.wording import bound_text

Floats = NDArray[np.float64]

BUDGET: Final = 200_000
RUNS: Final = 3
CONFIDENCE: Final = 0.999
_IDEAL_SAMPLE: Final = 4_000_000  # True scores of each data set from which the ideal is computed.
_CHUNK: Final = 20_000

rng = np.random.default_rng()


@dataclass(frozen=True)
class Wide:
    """A mechanism with many parts, at the data sets 0 and 1, and its claim.

    `score` increases with the true likelihood ratio, and `law` draws it directly.
    """

    words: str
    mechanism: Callable[[int, int], Floats]
    law: Callable[[int, int], Floats]
    claim: dict[str, float]


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


WIDE: Final = [
    _gaussian("mu 5 over 25 parts", 25, 5.0, {"mu": 1.0}),
    _gaussian("100 weights, sigma too small", 100, 0.65, {"epsilon": 1.0, "delta": 1e-5}),
    Wide("one cell of 300 with a third of the noise", _one_cell,
         lambda bit, n: rng.laplace(size=n) / 3 + bit, {"epsilon": 1.0}),
    Wide("a total with the noise of its 100 parts", _total,
         lambda bit, n: np.full(n, float(bit)), {"epsilon": 1.0}),
    _gaussian("500 weights, sigma too small", 500, 2.5, {"epsilon": 1.0, "delta": 1e-5}),
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
    scores = wide.law(0, _IDEAL_SAMPLE), wide.law(1, _IDEAL_SAMPLE)
    return _best_threshold(_estimator(wide, budget // 2), *scores)[1]


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


def main(names: list[str]) -> None:
    """Print a row for each mechanism: the audits' bounds, the regression's, and the ideal."""
    print(f"| {BUDGET:,} releases | audits | logistic regression | ideal | seconds of one core |")
    print("|---" * 5 + "|")
    for wide in WIDE:
        if names and wide.words.split()[0] not in names:
            continue
        seconds = time.process_time()
        audits = [
            dpnoise.audit(
                wide.mechanism,
                neighbours=[(0, 1)],
                budget=BUDGET,
                confidence=CONFIDENCE,
                **wide.claim,
            ).certified
            for _ in range(RUNS)
        ]
        seconds = (time.process_time() - seconds) / RUNS
        regressions = [bound_by_regression(wide, BUDGET) for _ in range(RUNS)]
        ideal = bound_text(ideal_bound(wide, BUDGET))
        shown = (" ".join(map(bound_text, sorted(bounds))) for bounds in (audits, regressions))
        print(f"| {wide.words} | {' | '.join(shown)} | {ideal} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
