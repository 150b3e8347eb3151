"""Check sections 2.5 and 5.3: the paper's fix in libraries, and defences on a grid."""

import math
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing.attacks.generic import BitPatterns, Feasibility, Precision
from dpnoise.auditing.targets.target import Target, make_target
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

_FEWEST_EXPECTED: Final = 50

# Targets without the fix, with it, and with exact release; first Laplace noise, then Gaussian.
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


class _RecordingRandom(random.SystemRandom):
    """The operating system's generator, which records its uniforms."""

    def __init__(self) -> None:
        super().__init__()
        self.uniforms: list[float] = []

    def random(self) -> float:
        self.uniforms.append(super().random())
        return self.uniforms[-1]


def releases_by_the_theorem(mechanisms: Any, count: int) -> float:
    """Return the share of diffprivlib's Laplace releases of 3 that equal Theorem 5.1's."""
    same = 0
    for _ in range(count):
        recorder = _RecordingRandom()
        release = mechanisms.Laplace(epsilon=0.5, sensitivity=1, random_state=recorder).randomise(3)
        U1, U2, U3, U4 = recorder.uniforms
        noise = np.log(1 - U1) * np.cos(np.pi * U2) + np.log(1 - U3) * np.cos(np.pi * U4)
        same += release == 3 - 2 * noise
    return same / count


def adopters() -> list[Target]:
    """Return the installed targets: plain noise, noise with the fix, and exact release."""
    targets = []
    for name in ADOPTERS:
        with suppress(MissingExtraError):
            targets.append(make_target(name))
    return targets


def certified_epsilon(target: Target, n: int) -> float:
    """Return the largest epsilon that three attacks on the addition certify, at 1 - 10^-9 each."""
    return max(
        attack(target, n=n, confidence=1 - 1e-9, placebo=False).epsilon_lower()
        for attack in (Feasibility(), Precision(), BitPatterns())
    )


def check_adopted(effort: Effort) -> Judgement:
    """Replay diffprivlib's uniforms, then attack plain noise and noise with the fix."""
    try:
        mechanisms = import_extra("diffprivlib.mechanisms", "peers")
    except MissingExtraError as error:
        return Judgement(NOT_RUN, str(error))
    adopted = releases_by_the_theorem(mechanisms, effort.pick(2_000, 100))
    targets, rows = adopters(), []
    for i, target in enumerate(targets):
        name = f"{target.name} {target.version}".strip()
        rows.append((name, target.noise, certified_epsilon(target, 20_000)))
        effort.progress((i + 1) / len(targets))
    exact = {target.name.startswith("dpnoise.release") for target in targets}
    only_exact_unbroken = all(
        (bound <= 1) == target.name.startswith("dpnoise.release")
        for target, (*_, bound) in zip(targets, rows, strict=True)
    )
    return Judgement(
        CONFIRMED if adopted == 1 and only_exact_unbroken and exact == {True, False} else DIFFERS,
        "Every release of diffprivlib's Laplace mechanism, replayed from the uniforms that it "
        "drew, is Theorem 5.1's to the last bit: the paper's n = 4 is adopted, as stated. Opacus "
        "adopted section 5.1 for its secure_mode, whose notes count p = 53 where PyTorch's float32 "
        "noise has uniforms of 24 bits. Used as if epsilon were 1 (delta 10^-6 for Gaussian "
        "noise), the addition breaks both plain noise and noise with the fix; exact release is not "
        "broken by these attacks, which does not mean safe.",
        [Table("epsilon >=, at confidence 1 - 10^-9", ("released", "noise", "certified"), rows)],
    )


# Section 2.5: discrete sampling, for other distributions -----------------------------------------


def grid_p_value(law: Any, grid: float, size: int, release: Callable[[Floats], Any]) -> float:
    """Release 0 `size` times onto a grid, and return the p-value of the counts of its points.

    Points with fewer than 50 expected counts are merged, as a chi-squared test requires.
    """
    released = np.rint(np.asarray(release(np.zeros(size))) / grid)
    most = int(10 * law.scale / grid)
    points = np.arange(-most, most + 1)
    probabilities = np.diff(law.cdf((np.arange(-most, most + 2) - 0.5) * grid))
    is_frequent = probabilities * size >= _FEWEST_EXPECTED
    counts = np.array([np.count_nonzero(released == point) for point in points[is_frequent]])
    observed = np.append(counts, size - counts.sum())
    expected = size * np.append(probabilities[is_frequent], 1 - probabilities[is_frequent].sum())
    return float(stats.chisquare(observed, expected).pvalue)


def selections(size: int) -> list[tuple[str, float]]:
    """Select between two scores with difference 2, and return the p-values of the counts."""
    # The softmax of epsilon score / 2 for Gumbel noise; exp(-1)/2 for exponential noise.
    probabilities = {
        "Gumbel, exponential mechanism": (ExponentialMechanism, 1 / (1 + math.e)),
        "exponential, noisy max": (NoisyMax, math.exp(-1) / 2),
    }
    p_values = []
    for name, (mechanism_type, probability) in probabilities.items():
        mechanism = mechanism_type(epsilon=1.0, sensitivity=1.0)
        wrong = sum(mechanism.select([2.0, 0.0]) for _ in range(size))
        p_values.append((name, float(stats.binomtest(wrong, size, probability).pvalue)))
    return p_values


def check_discrete(effort: Effort) -> Judgement:
    """Test exact releases of four distributions against their laws."""
    size, grid = effort.pick(400_000, 20_000), 0.5
    laplace = LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=grid)
    gaussian = GaussianMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0, grid=grid)
    rows: list[tuple[Cell, ...]] = [
        ("Laplace", grid_p_value(Laplace(laplace.scale), grid, size, laplace.release)),
        ("Gaussian", grid_p_value(Gaussian(gaussian.scale), grid, size, gaussian.release)),
        *selections(effort.pick(20_000, 500)),
    ]
    least = min(float(p) for _, p in rows)
    return Judgement(
        SUPERSEDED if least > FALSE_ALARM else DIFFERS,
        "It is possible, by one method for all four: round value + scale Z once, as if in real "
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
        code=(grid_p_value, selections, check_discrete),
    ),
    Piece(
        key="adopted",
        title="Section 5.3: the fix as libraries adopted it",
        place="Section 5.3, footnote 4",
        statement="Four uniforms for each variate are what diffprivlib's Laplace, Gaussian and "
        "other mechanisms have adopted.",
        check=check_adopted,
        code=(releases_by_the_theorem, adopters, certified_epsilon, check_adopted),
    ),
)
