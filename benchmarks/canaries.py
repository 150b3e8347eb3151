"""Audit DP-SGD with 1,000 canaries, ten times each, and print the medians.

`python -m benchmarks.canaries` writes a table of docs/audit-measurements.md. The training is that
of examples/audit_training.py: Opacus, our engine, and a planted bug. It needs the extra `opacus`.
`--runs 3` makes fewer audits and writes no table. `--controls` writes the table of controls with
too little noise there, by the code of docs/audit-training.md. `--ceilings` writes the table of
docs/audit-training.md: how many canaries a claim needs, which does not depend on chance.
"""

import argparse
import math
import re
import runpy
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final

from marks import measured_with, write_between_marks

from dpnoise.auditing import TrainingReport, audit_training
from dpnoise.auditing.wording import bound_text

ROOT: Final = Path(__file__).parent.parent
GUIDE: Final = ROOT / "docs" / "audit-training.md"
MEASUREMENTS: Final = ROOT / "docs" / "audit-measurements.md"
CLAIMED: Final = (1.0, 4.0, 8.0)
RUNS: Final = 10
DIVISORS: Final = (1, 2, 3, 4, 6, 10)  # Of the claimed noise, for controls.
COUNTS: Final = (100, 300, 1_000, 3_000, 10_000, 100_000)
HEAD: Final = "| engine | epsilon claimed | epsilon | broken | mu claimed | mu | broken | seconds |"


def ceiling(count: int, **claim: Any) -> float:
    """Return the largest bound that this many canaries certify: if all guesses are correct."""
    return audit_training(list, range(count), lambda _, ids: [0.0] * len(ids), **claim).ceiling


def ceiling_table() -> list[str]:
    """Return the table of the largest bounds, for each number of canaries."""
    lines = ["| canaries | epsilon, at delta 10⁻⁵, at most | mu, at most |", "|---|---|---|"]
    for count in COUNTS:
        epsilon, mu = ceiling(count, epsilon=0.01, delta=1e-5), ceiling(count, mu=0.01)
        lines.append(f"| {count:,} | {bound_text(epsilon)} | {bound_text(mu)} |")
    return lines


def control_table(runs: int) -> list[str]:
    """Return the table of controls: trainings of the page with a part of the claimed noise."""
    (code,) = re.findall(r"^```python\n(import torch\n.*?)^for name, noise in", GUIDE.read_text(),
                         re.MULTILINE | re.DOTALL)  # fmt: skip
    page: dict[str, Any] = {}
    exec(code, page)  # noqa: S102 - the page's own example
    lines = ["| noise | certified factor, median | broken |", "|---|---|---|"]
    for divisor in DIVISORS:
        noise = page["NOISE"] / divisor
        reports = [
            audit_training(
                lambda included: page["train"](included, noise),  # noqa: B023 - called here
                range(1000),
                page["score"],
                guarantees=page["claim"],
            )
            for _ in range(runs)
        ]
        median = statistics.median(report.certified for report in reports)
        broken = sum(report.broken for report in reports)
        shown = f"`NOISE / {divisor}`" if divisor > 1 else "`NOISE`"
        lines.append(f"| {shown} | {median:.2f} | {broken} of {runs} |")
        print(lines[-1], flush=True)
    return [*lines, "", f"Measured on {measured_with('opacus')}."]


def audit_once(example: dict[str, Any], engine: Any, claim: dict[str, Any], scale: float) -> Any:
    """Return the report of one audit of an engine whose noise has this scale in all steps."""
    train = example["make_training"](engine, noise_multiplier=math.sqrt(example["STEPS"]) * scale)
    canaries = range(example["CANARIES"])
    return audit_training(train, canaries, example["score"], delta=example["DELTA"], **claim)


def row(name: str, epsilon: float, mu: float, reports: list[list[TrainingReport]]) -> str:
    """Return a row of the table: medians of the audits by epsilon, and of those by mu."""
    cells = [name]
    for claimed, of_claim in zip((f"{epsilon:g}", f"{mu:.3g}"), reports, strict=True):
        median = statistics.median(report.certified for report in of_claim)
        broken = sum(report.broken for report in of_claim)
        cells += [claimed, bound_text(median), f"{broken} of {len(of_claim)}"]
    seconds = statistics.median(report.seconds for of_claim in reports for report in of_claim)
    return f"| {' | '.join([*cells, f'{seconds:.1f}'])} |"


def main(arguments: list[str]) -> None:
    """Audit three engines at three claims, print each row, and write the table."""
    warnings.simplefilter("ignore")  # Opacus warns that its own generator is insecure.
    parser = argparse.ArgumentParser(prog="benchmarks.canaries")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--ceilings", action="store_true")
    parser.add_argument("--controls", action="store_true")
    options = parser.parse_args(arguments)
    if options.ceilings:
        table = "\n".join(ceiling_table())
        print(table)
        write_between_marks(GUIDE, "ceilings", f"\n{table}\n")
        return
    runs = options.runs
    if options.controls:
        table = "\n".join(control_table(runs))
        if runs >= RUNS:
            write_between_marks(MEASUREMENTS, "controls", f"\n{table}\n")
        return
    example = runpy.run_path(str(ROOT / "examples" / "audit_training.py"))
    started, lines = time.monotonic(), ["", HEAD, "|---" * 8 + "|"]
    print("\n".join(lines[1:]))
    for name, engine in example["ENGINES"].items():
        for epsilon in CLAIMED:
            scale = example["noise_scale"](epsilon)
            claims: list[dict[str, Any]] = [{"epsilon": epsilon}, {"mu": 1 / scale}]
            reports = [
                [audit_once(example, engine, claim, scale) for _ in range(runs)] for claim in claims
            ]
            lines.append(row(name, epsilon, 1 / scale, reports))
            print(lines[-1], flush=True)
    note = (
        f"\nMedians of {runs} audits by epsilon at delta {example['DELTA']:g}, and of {runs} by "
        f"mu, with {example['CANARIES']:,} canaries, at confidence 0.95. "
        f"Measured on {measured_with('opacus')}."
    )
    print(f"{note}\n{time.monotonic() - started:.0f} s in total.")
    if runs >= RUNS:
        write_between_marks(MEASUREMENTS, "canaries", "\n".join([*lines, note, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
