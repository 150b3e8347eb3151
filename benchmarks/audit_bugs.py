"""Audit common bugs, each with its true epsilon, and show whether the audit finds them.

`python -m benchmarks.audit_bugs` writes a table of docs/audit-measurements.md.
Noise is two-sided geometric on integers, or rounded to a fine grid, so that floating point reveals
nothing.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from marks import measured_with, write_between_marks
from numpy.typing import NDArray

import dpnoise
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import TargetError
from dpnoise.auditing.wording import bound_text

PAGE: Final = Path(__file__).parent.parent / "docs" / "audit-measurements.md"
CLAIM: Final = 1.0
RUNS: Final = 3
_GRID: Final = 2.0**20
_FORGETTING_RATE: Final = 1e-3  # The rate at which noise is forgotten.
_ROWS: Final = [1.0] * 5
_GROUPS: Final = ({"a": 3}, {"a": 3, "b": 1})

rng = np.random.default_rng()


def geometric(epsilon: float, size: Any) -> NDArray[np.int64]:
    """Draw noise that spends exactly epsilon on an integer that changes by 1."""
    positive, negative = rng.geometric(1 - math.exp(-epsilon), (2, *np.atleast_1d(size)))
    return np.asarray(positive - negative)


def round_to_grid(noise: Any) -> Any:
    """Round noise to the grid."""
    return np.rint(noise * _GRID) / _GRID


@dataclass(frozen=True)
class Bug:
    """A mechanism that claims an epsilon of 1, two neighbours, and its true epsilon on them."""

    words: str
    mechanism: Callable[[Any, int], Any]
    neighbours: tuple[Any, Any]
    true: float
    options: dict[str, Any] = field(default_factory=dict)


def audit_bug(bug: Bug, **options: Any) -> Report:
    """Audit a bug at its claim."""
    claim: dict[str, Any] = {"epsilon": CLAIM} | bug.options
    return dpnoise.audit(bug.mechanism, neighbours=[bug.neighbours], **(claim | options))


def _geometric_mechanism(factor: float) -> Callable[[int, int], Any]:
    return lambda value, n: value + geometric(factor * CLAIM, n)


def _reuse_noise(answers: Any, n: int) -> Any:
    return answers + geometric(CLAIM, n)[:, None]


def _forget_noise(value: float, n: int) -> Any:
    noise = round_to_grid(rng.laplace(scale=1 / CLAIM, size=n))
    return value + np.where(rng.random(n) < _FORGETTING_RATE, 0.0, noise)


def _round_first(value: int, n: int) -> Any:
    return 10 * round(value / 10) + geometric(CLAIM, n)


def _classical(value: float, n: int) -> Any:
    return value + round_to_grid(
        rng.normal(scale=math.sqrt(2 * math.log(1.25 / 0.01)) / 10, size=n)
    )


def _fix_seed(value: int, n: int) -> Any:
    seeded_rng = np.random.default_rng(7)
    return value + seeded_rng.geometric(0.5, n) - seeded_rng.geometric(0.5, n)


def _clamp_by_data(rows: list[float], n: int) -> Any:
    largest = max(rows)
    total = sum(min(row, largest) for row in rows)
    return total + round_to_grid(rng.laplace(scale=largest / CLAIM, size=n))


def _hide_empty_cells(cells: list[int], n: int) -> Any:
    noisy = np.array(cells) + geometric(CLAIM, (n, len(cells)))
    return np.where(np.array(cells) > 0, noisy, np.nan)


def _release_largest(answers: Any, n: int) -> Any:
    noisy = answers + round_to_grid(rng.laplace(scale=2 / CLAIM, size=(n, len(answers))))
    return np.column_stack([noisy.argmax(axis=1), noisy.max(axis=1)])


def _release_three_times(value: int, n: int) -> Any:
    return value + geometric(CLAIM / 2, (n, 3))


def _show_present_keys(groups: dict[str, int], n: int) -> Any:
    noise = geometric(CLAIM, (n, len(groups)))
    return [dict(zip(groups, row, strict=True)) for row in (noise + list(groups.values())).tolist()]


_ANSWERS: Final = (np.ones(5), np.zeros(5))

BUGS: Final = [
    Bug("the scale is half of what it should be", _geometric_mechanism(2.0), (0, 1), 2.0),
    Bug("the scale is too small by 1.2", _geometric_mechanism(1.2), (0, 1), 1.2),
    Bug("one noise for two numbers", _reuse_noise, (np.array([3, 5]), np.array([4, 5])), math.inf),
    Bug("a count that a person changes by 2", _geometric_mechanism(1.0), (10, 12), 2.0),
    Bug("noise forgotten one time in a thousand", _forget_noise, (42, 43), math.inf),
    Bug("rounded before the noise, to tens", _round_first, (5, 6), 10.0),
    Bug("the classical Gaussian formula at epsilon 10, delta 0.01", _classical, (0, 1), math.inf,
        {"epsilon": 10.0, "delta": 0.01, "curve": True}),
    Bug("a fixed seed", _fix_seed, (0, 1), math.inf),
    Bug("clamped by the data's largest value", _clamp_by_data, (_ROWS, [*_ROWS, 50.0]), math.inf),
    Bug("a histogram that hides empty cells", _hide_empty_cells, ([4, 0], [4, 1]), math.inf),
    Bug("the place of the largest of 5, and its value", _release_largest, _ANSWERS, 2.5),
    Bug("epsilon halved for two queries, which run three times", _release_three_times, (0, 1), 1.5),
    Bug("groups that appear only if present", _show_present_keys, _GROUPS, math.inf),
]  # fmt: skip


def measure_bug(bug: Bug) -> str:
    """Audit a bug three times, and return the row of the middle audit by its bound."""
    started = time.process_time()
    true = "any" if math.isinf(bug.true) else f"{bug.true:g}"
    try:
        report = sorted((audit_bug(bug) for _ in range(RUNS)), key=lambda r: r.certified)[RUNS // 2]
    except TargetError:
        result, releases = "refused: the releases are not independent", "—"
    else:
        is_epsilon = report.kind == "epsilon"
        unit = "" if is_epsilon else f" ({report.kind}, {report.claimed:.3g} claimed)"
        result = bound_text(report.certified, report.claimed) + unit
        result = f"**{result}**" if report.broken else f"{result}: not found"
        releases = f"{report.releases:,}"
    seconds = (time.process_time() - started) / RUNS
    return f"| {bug.words} | {true} | {result} | {releases} | {seconds:.1f} |"


def main() -> None:
    """Audit every bug, and write the table."""
    lines = ["", "| bug | true epsilon | certified | releases | seconds |", "|---|---|---|---|---|"]
    for bug in BUGS:
        lines.append(measure_bug(bug))
        print(lines[-1], flush=True)
    note = (
        "\nEach claims epsilon 1 unless it says otherwise; the middle of three audits, and seconds "
        f"of one core for each. Measured on {measured_with()}."
    )
    write_between_marks(PAGE, "audit-bugs", "\n".join([*lines, note, ""]))


if __name__ == "__main__":
    main()
