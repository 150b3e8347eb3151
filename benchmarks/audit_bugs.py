"""Bugs that people really make, each with its true epsilon, and whether an audit finds them.

`PYTHONPATH=tools python -m benchmarks.audit_bugs` writes the table of docs/auditing.md. Noise is
two-sided geometric on whole numbers, or rounded to a fine grid: floats give nothing away.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from marks import write_between_marks
from numpy.typing import NDArray

import dpnoise
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import TargetError
from dpnoise.auditing.wording import at_least
from dpnoise.core.machine import described

PAGE: Final = Path(__file__).parent.parent / "docs" / "auditing.md"
CLAIMED: Final = 1.0
_GRID: Final = 2.0**20
_FORGOTTEN: Final = 1e-3  # How often the noise is.
_SET: Final = [1.0] * 5
_GROUPS: Final = ({"a": 3}, {"a": 3, "b": 1})

rng = np.random.default_rng()


def geometric(epsilon: float, size: Any) -> NDArray[np.int64]:
    """Draw noise that spends exactly epsilon on a whole number that moves by 1."""
    up, down = rng.geometric(1 - math.exp(-epsilon), (2, *np.atleast_1d(size)))
    return np.asarray(up - down)


def on_grid(noise: Any) -> Any:
    """Round noise to the grid."""
    return np.rint(noise * _GRID) / _GRID


@dataclass(frozen=True)
class Bug:
    """A mechanism that claims an epsilon of 1, two neighbours, and what it truly spends on them."""

    words: str
    mechanism: Callable[[Any, int], Any]
    neighbours: tuple[Any, Any]
    true: float
    options: dict[str, Any] = field(default_factory=dict)


def audited(bug: Bug, **options: Any) -> Report:
    """Audit a bug at its claim."""
    claim: dict[str, Any] = {"epsilon": CLAIMED} | bug.options
    return dpnoise.audit(bug.mechanism, neighbours=[bug.neighbours], **(claim | options))


def _scaled(factor: float) -> Callable[[int, int], Any]:
    return lambda value, n: value + geometric(factor * CLAIMED, n)


def _reused(answers: Any, n: int) -> Any:
    return answers + geometric(CLAIMED, n)[:, None]


def _forgotten(value: float, n: int) -> Any:
    noise = on_grid(rng.laplace(scale=1 / CLAIMED, size=n))
    return value + np.where(rng.random(n) < _FORGOTTEN, 0.0, noise)


def _rounded_before(value: int, n: int) -> Any:
    return 10 * round(value / 10) + geometric(CLAIMED, n)


def _classical(value: float, n: int) -> Any:
    return value + on_grid(rng.normal(scale=math.sqrt(2 * math.log(1.25 / 0.01)) / 10, size=n))


def _seeded(value: int, n: int) -> Any:
    fixed = np.random.default_rng(7)
    return value + fixed.geometric(0.5, n) - fixed.geometric(0.5, n)


def _clamped_by_data(rows: list[float], n: int) -> Any:
    most = max(rows)
    total = sum(min(row, most) for row in rows)
    return total + on_grid(rng.laplace(scale=most / CLAIMED, size=n))


def _hidden_cells(cells: list[int], n: int) -> Any:
    noisy = np.array(cells) + geometric(CLAIMED, (n, len(cells)))
    return np.where(np.array(cells) > 0, noisy, np.nan)


def _with_value(answers: Any, n: int) -> Any:
    noisy = answers + on_grid(rng.laplace(scale=2 / CLAIMED, size=(n, len(answers))))
    return np.column_stack([noisy.argmax(axis=1), noisy.max(axis=1)])


def _three_times(value: int, n: int) -> Any:
    return value + geometric(CLAIMED / 2, (n, 3))


def _keys_if_present(groups: dict[str, int], n: int) -> Any:
    noise = geometric(CLAIMED, (n, len(groups)))
    return [dict(zip(groups, row, strict=True)) for row in (noise + list(groups.values())).tolist()]


_ANSWERS: Final = (np.ones(5), np.zeros(5))

BUGS: Final = [
    Bug("the scale is half of what it should be", _scaled(2.0), (0, 1), 2.0),
    Bug("the scale is too small by 1.2", _scaled(1.2), (0, 1), 1.2),
    Bug("one noise for two numbers", _reused, (np.array([3, 5]), np.array([4, 5])), math.inf),
    Bug("a count that a person changes by 2", _scaled(1.0), (10, 12), 2.0),
    Bug("noise forgotten one time in a thousand", _forgotten, (42, 43), math.inf),
    Bug("rounded before the noise, to tens", _rounded_before, (5, 6), 10.0),
    Bug("the classical Gaussian formula at epsilon 10, delta 0.01", _classical, (0, 1), math.inf,
        {"epsilon": 10.0, "delta": 0.01, "curve": True}),
    Bug("a fixed seed", _seeded, (0, 1), math.inf),
    Bug("clamped by the data's largest value", _clamped_by_data, (_SET, [*_SET, 50.0]), math.inf),
    Bug("a histogram that hides empty cells", _hidden_cells, ([4, 0], [4, 1]), math.inf),
    Bug("the place of the largest of 5, and its value", _with_value, _ANSWERS, 2.5),
    Bug("epsilon halved for two queries, which run three times", _three_times, (0, 1), 1.5),
    Bug("groups that appear only if present", _keys_if_present, _GROUPS, math.inf),
]  # fmt: skip


def main() -> None:
    """Audit every bug, and write what was found."""
    lines = ["", "| bug | true epsilon | certified | releases | seconds |", "|---|---|---|---|---|"]
    for bug in BUGS:
        started = time.process_time()
        true = "any" if math.isinf(bug.true) else f"{bug.true:g}"
        try:
            report = audited(bug)
        except TargetError:
            found, releases = "refused: the releases are not independent", "—"
        else:
            unit = (
                ""
                if report.kind == "epsilon"
                else f" ({report.kind}, {report.claimed:.3g} claimed)"
            )
            found = at_least(report.certified, report.claimed) + unit
            found = f"**{found}**" if report.broken else f"{found}: not found"
            releases = f"{report.releases:,}"
        lines.append(
            f"| {bug.words} | {true} | {found} | {releases} | {time.process_time() - started:.1f} |"
        )
        print(lines[-1], flush=True)
    note = (
        f"\nEach claims epsilon 1 unless it says otherwise; on {described()}, seconds of one core."
    )
    write_between_marks(PAGE, "audit-bugs", "\n".join([*lines, note, ""]))


if __name__ == "__main__":
    main()
