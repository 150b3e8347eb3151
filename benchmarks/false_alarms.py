"""How often audits call mechanisms broken that spend exactly what they claim.

`PYTHONPATH=tools python -m benchmarks.false_alarms 1000` audits that many at confidence 0.999, over
all kinds of output and of claims, learned events included: 1 in 1,000 may be wrong, and more than 9
are wrong with probability 10^-6 at most. Status 1 says that there were more. With the name of a
file, each audit is a line of it, and those that it has already are not made again.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np

import dpnoise
from benchmarks.audit_bugs import geometric
from dpnoise.auditing import additive_noise

EPSILON: Final = 1.0
DELTA: Final = 0.05
_ADDED: Final[dict[str, Any]] = {"pairs": "whole", "attacks": ["threshold", "bits"]}
_MOST: Final = 9  # Of 1,000 audits at confidence 0.999.
rng = np.random.default_rng()


def flipped(bit: int, n: int, epsilon: float = EPSILON) -> Any:
    """Return a bit, turned over so often that exactly epsilon is spent."""
    return (rng.random(n) < 1 / (1 + math.exp(epsilon))) ^ bool(bit)


def _vector(bit: int, n: int) -> Any:
    return bit + geometric(EPSILON / 3, (n, 3))


def _texts(bit: int, n: int) -> Any:
    return np.where(flipped(bit, n), "yes", "no")


def _tuples(bit: int, n: int) -> Any:
    return [("told",) * (1 + told) for told in flipped(bit, n).tolist()]


def _aborts(bit: int, n: int) -> Any:
    return [7 if told else None for told in flipped(bit, n).tolist()]


def _choices(bit: int, n: int) -> Any:
    """One of four, the first or the second exp(epsilon) times as likely as the others."""
    weights = np.where(np.arange(4) == bit, math.exp(EPSILON), 1.0)
    return rng.choice(4, size=n, p=weights / weights.sum())


def _told(bit: int, n: int) -> Any:
    """Return a bit that is turned over, but told outright with probability delta."""
    return np.where(rng.random(n) < DELTA, bool(bit), flipped(bit, n))


def _gaussian(bit: int, n: int) -> Any:
    """Return Gaussian noise of scale 1, on a grid, so that floats tell nothing."""
    return bit + np.rint(rng.normal(scale=2.0**16, size=n)) / 2.0**16


# Each with its neighbours, where it has some, and what else an audit is told.
Kind = tuple[Callable[[Any, int], Any], dict[str, Any]]
KINDS: Final[dict[str, Kind]] = {
    "added noise": (lambda value, n: value + geometric(EPSILON, n), _ADDED),
    "a number": (lambda value, n: value + geometric(EPSILON, n), {"neighbours": [(0, 1)]}),
    "a vector": (_vector, {"neighbours": [(0, 1), (0, -1)]}),
    "a text": (_texts, {"neighbours": [(0, 1)]}),
    "tuples of varying length": (_tuples, {"neighbours": [(0, 1)]}),
    "aborts": (_aborts, {"neighbours": [(0, 1)]}),
    "choices": (_choices, {"neighbours": [(0, 1), (2, 3)]}),
    "bits": (flipped, {"neighbours": [(0, 1)]}),
    "a delta": (_told, {"neighbours": [(0, 1)], "delta": DELTA}),
    "a mu": (_gaussian, {"neighbours": [(0, 1)], "epsilon": None, "mu": 1.0}),
}
TREES: Final[dict[str, Kind]] = {  # These need scikit-learn.
    "a vector, by trees": (_vector, {"neighbours": [(0, 1)], "boosting": True}),
}


def alarmed(kind: Kind, confidence: float, budget: int) -> bool:
    """Tell whether an audit called this broken."""
    mechanism, options = kind
    asked: dict[str, Any] = {"epsilon": EPSILON, "budget": budget, "confidence": confidence}
    # Looks at forks and clocks certify nothing.
    with mock.patch.object(additive_noise, "observations", return_value=[]):
        return dpnoise.audit(mechanism, **(asked | options)).broken


def main(audits: int, made: Path | None = None) -> int:
    """Audit what is not in the file of those that were made, and return the status."""
    kinds = list((KINDS | TREES).items())
    done = made.read_text().splitlines() if made and made.exists() else []
    for i in range(len(done), audits):
        name, kind = kinds[i % len(kinds)]
        done.append(f"{name}\t{'broken' if alarmed(kind, 0.999, 20_000) else 'not broken'}")
        if made:
            with made.open("a") as lines:
                lines.write(f"{done[-1]}\n")
    alarms, thousands = sum(line.endswith("\tbroken") for line in done), len(done) / 1000
    print(f"{alarms} of {len(done)} audits were wrong; {thousands:.3g} are expected at most.")
    return int(alarms > _MOST * max(1.0, thousands))


if __name__ == "__main__":
    asked, *files = sys.argv[1:] or ["1000"]
    sys.exit(main(int(asked), *map(Path, files[:1])))
