"""Audit diffprivlib's Laplace mechanism before and after `harden()`.

    pip install ".[diffprivlib]"          # In a checkout of dpnoise.
    python examples/harden_diffprivlib.py

The command line audits the same functions, from this folder:

    dpnoise audit harden_diffprivlib:plain --epsilon 1
    dpnoise audit harden_diffprivlib:hardened --epsilon 1
"""

from collections.abc import Callable

import numpy as np
from diffprivlib.mechanisms import Laplace
from numpy.typing import NDArray

import dpnoise
from dpnoise.integrations.diffprivlib import harden

Releases = NDArray[np.float64]

BUDGET = 100_000  # Releases per audit, which takes a few seconds. The default certifies more.


def plain(value: float, n: int) -> Releases:
    """Return n releases of a value, as diffprivlib makes them."""
    mechanism = Laplace(epsilon=1, sensitivity=1)
    return np.array([mechanism.randomise(value) for _ in range(n)])


@harden
def hardened(value: float, n: int) -> Releases:
    """Return n releases of a value. Only the decorator is new."""
    return plain(value, n)


def main() -> None:
    """Print what each audit certifies."""
    audits: tuple[tuple[str, Callable[[float, int], Releases]], ...] = (
        ("diffprivlib", plain),
        ("hardened", hardened),
    )
    for name, release in audits:
        report = dpnoise.audit(release, epsilon=1.0, budget=BUDGET)
        finding = max(report.findings, key=lambda each: each.epsilon_lower)
        verdict = "broken" if report.broken else "not broken by these attacks"
        print(f"{name}: at least {finding.epsilon_lower:.2f} at a claimed 1: {verdict}")
    print(harden())


if __name__ == "__main__":
    main()
