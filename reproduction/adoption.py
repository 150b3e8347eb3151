"""Sections 2.5 and 5.3: the paper's fix as libraries adopted it, and the defence it set aside."""

import math
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing.attacks.generic import BitPatterns, Feasibility, Precision
from dpnoise.auditing.targets.target import Target, named
from dpnoise.core.errors import MissingExtraError, import_extra
from dpnoise.noise.distributions import Gaussian, Laplace
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.selection import ExponentialMechanism, NoisyMax
from reproduction.piece import (
    CONFIRMED,
    DIFFERS,
    FALSE_ALARM,
    NOT_RUN,
    SUPERSEDED,
    Cell,
    Effort,
    Judgement,
    Piece,
    Table,
)

Floats = NDArray[np.float64]

_FEW: Final = 50

# Plain, with the fix, and exact; Laplace noise first, then Gaussian.
ADOPTERS: Final = (
    "numpy.laplace",
    "diffprivlib.Laplace",
    "dpnoise.release",
    "torch.normal",
    "opacus",
    "opacus.secure_mode",
    "diffprivlib.GaussianAnalytic",
    "dpnoise.release.gaussian",
)


# Section 5.3: adopted by diffprivlib, and by Opacus ----------------------------------------------


class _Watched(random.SystemRandom):
    """The operating system's uniforms, remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[float] = []

    def random(self) -> float:
        self.given.append(super().random())
        return self.given[-1]


def releases_by_the_theorem(mechanisms: Any, count: int) -> float:
    """Return the share of diffprivlib's Laplace releases of 3 that are Theorem 5.1's."""
    same = 0
    for _ in range(count):
        watched = _Watched()
        release = mechanisms.Laplace(epsilon=0.5, sensitivity=1, random_state=watched).randomise(3)
        U1, U2, U3, U4 = watched.given
        noise = np.log(1 - U1) * np.cos(np.pi * U2) + np.log(1 - U3) * np.cos(np.pi * U4)
        same += release == 3 - 2 * noise
    return same / count


def adopters() -> list[Target]:
    """Return plain noise, the paper's fix in libraries that adopted it, and exact release."""
    targets = []
    for name in ADOPTERS:
        with suppress(MissingExtraError):
            targets.append(named(name))
    return targets


def certified(target: Target, n: int) -> float:
    """Return the largest epsilon that three attacks on the addition certify, at 1 - 10^-9 each."""
    return max(
        attack(target, n=n, confidence=1 - 1e-9, placebo=False).epsilon_lower()
        for attack in (Feasibility(), Precision(), BitPatterns())
    )


def check_adopted(effort: Effort) -> Judgement:
    """Replay diffprivlib's uniforms, then attack those who adopted the fix beside plain noise."""
    try:
        mechanisms = import_extra("diffprivlib.mechanisms", "peers")
    except MissingExtraError as error:
        return Judgement(NOT_RUN, str(error))
    adopted = releases_by_the_theorem(mechanisms, effort.pick(2_000, 100))
    targets, rows = adopters(), []
    for i, target in enumerate(targets):
        shown = f"{target.name} {target.version}".strip()
        rows.append((shown, target.noise, certified(target, 20_000)))
        effort.progress((i + 1) / len(targets))
    exact = {target.name.startswith("dpnoise.release") for target in targets}
    held = all(
        (bound <= 1) == target.name.startswith("dpnoise.release")
        for target, (*_, bound) in zip(targets, rows, strict=True)
    )
    return Judgement(
        CONFIRMED if adopted == 1 and held and exact == {True, False} else DIFFERS,
        "Every release of diffprivlib's Laplace mechanism, replayed from the uniforms that it "
        "drew, is Theorem 5.1's to the last bit: the paper's n = 4 is adopted, as stated. Opacus "
        "adopted section 5.1 for its secure_mode, whose notes count p = 53 where PyTorch's float32 "
        "noise has uniforms of 24 bits. Used as if epsilon were 1 (delta 10^-6 for Gaussian "
        "noise), plain noise and noise with the fix are both broken by the addition alone; exact "
        "release is not broken by these attacks, which does not mean safe.",
        [Table("epsilon >=, at confidence 1 - 10^-9", ("released", "noise", "certified"), rows)],
    )


# Section 2.5: discrete sampling, for other distributions -----------------------------------------


def cells_of(law: Any, grid: float, size: int, release: Callable[[Floats], Any]) -> float:
    """Release 0 this often onto a grid; return the p-value of the counts of its points.

    Points that are expected fewer than 50 times are counted together: chi-squared wants many.
    """
    released = np.rint(np.asarray(release(np.zeros(size))) / grid)
    most = int(10 * law.scale / grid)
    points = np.arange(-most, most + 1)
    chances = np.diff(law.cdf((np.arange(-most, most + 2) - 0.5) * grid))
    often = chances * size >= _FEW
    counts = np.array([np.count_nonzero(released == point) for point in points[often]])
    observed = np.append(counts, size - counts.sum())
    expected = size * np.append(chances[often], 1 - chances[often].sum())
    return float(stats.chisquare(observed, expected).pvalue)


def selections(size: int) -> list[tuple[str, float]]:
    """Choose between two scores a distance of 2 apart; return the p-values of how often."""
    # By the softmax of epsilon score / 2 for Gumbel noise; exp(-1)/2 for exponential noise.
    chances = {
        "Gumbel, exponential mechanism": (ExponentialMechanism, 1 / (1 + math.e)),
        "exponential, noisy max": (NoisyMax, math.exp(-1) / 2),
    }
    found = []
    for name, (kind, chance) in chances.items():
        mechanism = kind(epsilon=1.0, sensitivity=1.0)
        wrong = sum(mechanism.select([2.0, 0.0]) for _ in range(size))
        found.append((name, float(stats.binomtest(wrong, size, chance).pvalue)))
    return found


def check_discrete(effort: Effort) -> Judgement:
    """Hold exact releases of four distributions against their laws."""
    size, grid = effort.pick(400_000, 20_000), 0.5
    laplace = LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=grid)
    gaussian = GaussianMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0, grid=grid)
    rows: list[tuple[Cell, ...]] = [
        ("Laplace", cells_of(Laplace(laplace.scale), grid, size, laplace.release)),
        ("Gaussian", cells_of(Gaussian(gaussian.scale), grid, size, gaussian.release)),
        *selections(effort.pick(20_000, 500)),
    ]
    least = min(float(p) for _, p in rows)
    return Judgement(
        SUPERSEDED if least > FALSE_ALARM else DIFFERS,
        "It is possible, and one idea does it for four: round value + scale Z once, as if in real "
        "arithmetic, for any Z that ball arithmetic can evaluate. The releases have the rounded "
        f"law (the smallest of {len(rows)} p-values is {least:.2g}; below {FALSE_ALARM:g} would "
        "reject). It is not simple to write, as the paper says; to call it is one line.",
        [Table("Exact releases against their law", ("noise", "p-value"), rows)],
    )


PIECES = (
    Piece(
        key="discrete",
        title="Section 2.5: defences on a grid, for other distributions",
        place="Section 2.5",
        statement="Discrete samplers for Laplace and Gaussian noise are complex, and it is not "
        "clear whether adapting them to other distributions is simple, or possible.",
        check=check_discrete,
        code=(cells_of, selections, check_discrete),
    ),
    Piece(
        key="adopted",
        title="Section 5.3: the fix as libraries adopted it",
        place="Section 5.3, footnote 4",
        statement="Four uniforms for each variate are what diffprivlib's Laplace, Gaussian and "
        "other mechanisms have adopted.",
        check=check_adopted,
        code=(releases_by_the_theorem, adopters, certified, check_adopted),
    ),
)
