"""How often audits call mechanisms broken that spend exactly what they claim.

`python -m benchmarks.false_alarms 1000` audits that many at confidence 0.999, over all kinds of
output, learned events included: about 1 in 1,000 may be wrong, and more than 9 are wrong with
probability 10^-6 at most. Status 1 says that there were more.
"""

import math
import sys
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import numpy as np

import dpnoise
from benchmarks.audit_bugs import geometric
from dpnoise.auditing import running
from dpnoise.auditing.report import Report

EPSILON: Final = 1.0
_ADDED: Final = {"pairs": "whole", "attacks": ["threshold", "bits"]}
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


KINDS: Final[dict[str, tuple[Callable[[Any, int], Any], list[tuple[Any, Any]] | None]]] = {
    "added noise": (lambda value, n: value + geometric(EPSILON, n), None),
    "a number": (lambda value, n: value + geometric(EPSILON, n), [(0, 1)]),
    "a vector": (_vector, [(0, 1), (0, -1)]),
    "a text": (_texts, [(0, 1)]),
    "tuples of varying length": (_tuples, [(0, 1)]),
    "aborts": (_aborts, [(0, 1)]),
    "choices": (_choices, [(0, 1), (2, 3)]),
    "bits": (flipped, [(0, 1)]),
}


def count(rounds: int, confidence: float, budget: int) -> int:
    """Return how many of `rounds` audits of each kind called it broken."""
    # Looks at forks and clocks certify nothing.
    with mock.patch.object(running, "observations", return_value=[]):
        return sum(
            _audited(kind, confidence, budget).broken for _ in range(rounds) for kind in KINDS
        )


def _audited(kind: str, confidence: float, budget: int) -> Report:
    mechanism, neighbours = KINDS[kind]
    options: dict[str, Any] = {"neighbours": neighbours} if neighbours else _ADDED
    return dpnoise.audit(mechanism, EPSILON, budget=budget, confidence=confidence, **options)


def main(audits: int) -> int:
    """Audit, and return the status."""
    rounds = math.ceil(audits / len(KINDS))
    alarms = count(rounds, confidence=0.999, budget=20_000)
    made = rounds * len(KINDS)
    print(f"{alarms} of {made} audits were wrong; {made / 1000:.3g} are expected at most.")
    return int(alarms > _MOST * max(1.0, made / 1000))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
