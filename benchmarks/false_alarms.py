"""Measure how often audits call mechanisms broken that spend exactly what they claim.

`PYTHONPATH=tools python -m benchmarks.false_alarms 1000` runs 1,000 audits at confidence 0.999,
over all kinds of outputs and claims, including learned events. One in 1,000 may be wrong; more than
9 are wrong with probability at most 10^-6, and then the status is 1. With the name of a file, each
audit adds a line to it, and audits that the file has already are not repeated.
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
_ADDITIVE_OPTIONS: Final[dict[str, Any]] = {"pairs": "whole", "attacks": ["threshold", "bits"]}
_MAX_ALARMS: Final = 9  # In 1,000 audits at confidence 0.999.
rng = np.random.default_rng()


def flip(bit: int, n: int, epsilon: float = EPSILON) -> Any:
    """Return a bit, flipped with the probability that spends exactly epsilon."""
    return (rng.random(n) < 1 / (1 + math.exp(epsilon))) ^ bool(bit)


def _vector(bit: int, n: int) -> Any:
    return bit + geometric(EPSILON / 3, (n, 3))


def _texts(bit: int, n: int) -> Any:
    return np.where(flip(bit, n), "yes", "no")


def _tuples(bit: int, n: int) -> Any:
    return [("x",) * (1 + is_set) for is_set in flip(bit, n).tolist()]


def _aborts(bit: int, n: int) -> Any:
    return [7 if is_set else None for is_set in flip(bit, n).tolist()]


def _choices(bit: int, n: int) -> Any:
    """Choose one of four; that of the bit is exp(epsilon) times as likely as the others."""
    weights = np.where(np.arange(4) == bit, math.exp(EPSILON), 1.0)
    return rng.choice(4, size=n, p=weights / weights.sum())


def _reveal_with_delta(bit: int, n: int) -> Any:
    """Return a flipped bit, but the bit itself with probability delta."""
    return np.where(rng.random(n) < DELTA, bool(bit), flip(bit, n))


def _gaussian(bit: int, n: int) -> Any:
    """Add Gaussian noise of scale 1 on a grid, so that floating point reveals nothing."""
    return bit + np.rint(rng.normal(scale=2.0**16, size=n)) / 2.0**16


# Each mechanism with the options of its audit, such as its neighbours.
Kind = tuple[Callable[[Any, int], Any], dict[str, Any]]
KINDS: Final[dict[str, Kind]] = {
    "added noise": (lambda value, n: value + geometric(EPSILON, n), _ADDITIVE_OPTIONS),
    "a number": (lambda value, n: value + geometric(EPSILON, n), {"neighbours": [(0, 1)]}),
    "a vector": (_vector, {"neighbours": [(0, 1), (0, -1)]}),
    "a text": (_texts, {"neighbours": [(0, 1)]}),
    "tuples of varying length": (_tuples, {"neighbours": [(0, 1)]}),
    "aborts": (_aborts, {"neighbours": [(0, 1)]}),
    "choices": (_choices, {"neighbours": [(0, 1), (2, 3)]}),
    "bits": (flip, {"neighbours": [(0, 1)]}),
    "a delta": (_reveal_with_delta, {"neighbours": [(0, 1)], "delta": DELTA}),
    "a mu": (_gaussian, {"neighbours": [(0, 1)], "epsilon": None, "mu": 1.0}),
}
TREES: Final[dict[str, Kind]] = {  # Needs scikit-learn.
    "a vector, by trees": (_vector, {"neighbours": [(0, 1)], "boosting": True}),
}


def is_alarm(kind: Kind, confidence: float, budget: int) -> bool:
    """Return whether an audit calls this mechanism broken."""
    mechanism, options = kind
    defaults: dict[str, Any] = {"epsilon": EPSILON, "budget": budget, "confidence": confidence}
    # Observations of forks and clocks certify nothing.
    with mock.patch.object(additive_noise, "run_side_channel_checks", return_value=[]):
        return dpnoise.audit(mechanism, **(defaults | options)).broken


def main(audits: int, log: Path | None = None) -> int:
    """Run the audits that the log does not have yet, and return the status."""
    kinds = list((KINDS | TREES).items())
    done = log.read_text().splitlines() if log and log.exists() else []
    for i in range(len(done), audits):
        name, kind = kinds[i % len(kinds)]
        done.append(f"{name}\t{'broken' if is_alarm(kind, 0.999, 20_000) else 'not broken'}")
        if log:
            with log.open("a") as lines:
                lines.write(f"{done[-1]}\n")
    alarms, thousands = sum(line.endswith("\tbroken") for line in done), len(done) / 1000
    print(f"{alarms} of {len(done)} audits were wrong; {thousands:.3g} are expected at most.")
    return int(alarms > _MAX_ALARMS * max(1.0, thousands))


if __name__ == "__main__":
    count, *files = sys.argv[1:] or ["1000"]
    sys.exit(main(int(count), *map(Path, files[:1])))
