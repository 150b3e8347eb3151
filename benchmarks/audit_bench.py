"""Audits of the mechanisms that DP-Sniper was measured on, beside its figures: `make audit-bench`.

An event is chosen and counted once; the counts are read at confidence 0.9, as the published ones
were, and at 0.999. Times are by the clock, on the cores of this machine, with the mechanism's own,
after a first small audit of each; DP-Sniper's are its own, of a larger one. Each is audited three
times: the table has the audit that certifies neither most nor least, and how many reach what was
published. `python -m benchmarks.audit_bench SVT1 SVT2` measures some, and writes no table.
"""

import json
import platform
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any, Final

from marks import write_between_marks

import dpnoise
from benchmarks.audit_mechanisms import ROWS, Row
from dpnoise.auditing.attacks.bounds import tossed_epsilon
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import at_least
from dpnoise.cli.terminal import progress_bar
from dpnoise.core.machine import described
from dpnoise.core.parallel import cores

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "auditing.md"
RESULTS: Final = ROOT / "benchmarks" / "results" / "audits"  # One file for each architecture.
TENTH: Final = 10
RUNS: Final = 3
FIRST: Final = 100_000  # Releases of an audit that is not measured.


def measured(row: Row) -> dict[str, Any]:
    """Audit one mechanism, and return what its counts certify."""
    # A first audit imports what there is, and loads what was compiled.
    dpnoise.audit(row.mechanism, row.claim, neighbours=row.neighbours, budget=FIRST)
    cpu, wall = time.process_time(), time.perf_counter()
    with progress_bar(row.name) as show:
        report = dpnoise.audit(
            row.mechanism,
            row.claim,
            neighbours=row.neighbours,
            budget=row.budget,
            confidence=0.9,
            progress=lambda part, _: show(part),
        )
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found = report.findings[0]
    # Of two events it may be either: the smaller part of the error is enough for both.
    error = (1 - 0.999) * (min(TUNING.event_error_shares) if len(report.findings) > 1 else 1)
    sure = tossed_epsilon(found.hits0, found.trials0, found.hits1, found.trials1, error=error)
    return {
        "mechanism": row.name,
        "claim": row.claim,
        "keeps": row.keeps,
        "published": row.published,
        "published_seconds": row.seconds,
        "certified": report.epsilon_lower,
        "certified_0.999": sure,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "releases": report.releases,
        "event": found.event,
        "data": [found.value0, found.value1],
    }


def reached(one: dict[str, Any]) -> bool:
    """Tell whether an audit certifies at least what was published."""
    return bool(one["certified"] >= one["published"])


def in_time(one: dict[str, Any]) -> bool:
    """Tell whether it takes at most a tenth of the published time."""
    return bool(one["wall_seconds"] <= one["published_seconds"] / TENTH)


def middle(audits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the audit of a mechanism that certifies neither most nor least."""
    return sorted(audits, key=lambda one: one["certified"])[len(audits) // 2]


def table(rows: list[list[dict[str, Any]]], machine: str) -> str:
    """Return the table of the docs, of the audits of each mechanism."""
    head = (
        "| mechanism | claims | keeps it | DP-Sniper, 0.9 | ours, 0.9 | ours, 0.999 | reach it "
        "| DP-Sniper, s | ours, s | in time | releases |"
    )
    lines = [head, "|---" * 11 + "|"]
    for audits in rows:
        one, runs = middle(audits), len(audits)
        certified = at_least(one["certified"])
        lines.append(
            f"| {one['mechanism']} | {one['claim']:.3g} | {'yes' if one['keeps'] else 'no'} "
            f"| {one['published']:g} | {f'**{certified}**' if reached(one) else certified} "
            f"| {at_least(one['certified_0.999'])} | {sum(map(reached, audits))} of {runs} "
            f"| {one['published_seconds']:g} | {one['wall_seconds']:.1f} "
            f"| {sum(map(in_time, audits))} of {runs} | {one['releases'] / 1e6:.1f} million |"
        )
    usual, every = [middle(audits) for audits in rows], list(chain(*rows))
    note = (
        f"\nOn {machine}, {cores()} cores; seconds by the clock. In bold: at least what was "
        f"published: {sum(map(reached, usual))} of {len(rows)}; in at most a tenth of its time: "
        f"{sum(map(in_time, usual))}. Of all {len(every)} audits, {sum(map(reached, every))} and "
        f"{sum(map(in_time, every))}."
    )
    return "\n".join(["", *lines, note, ""])


def main(names: list[str]) -> None:
    """Measure, print and write the table."""
    known = [row.name for row in ROWS]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no mechanism is called {', '.join(unknown)}; there are {', '.join(known)}")
    rows = [row for row in ROWS if not names or row.name in names]
    results: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    for _ in range(RUNS):
        for row in rows:
            one = measured(row)
            results[row.name].append(one)
            print(
                f"{row.name:20}{at_least(one['certified']):>8} (published {row.published:g}) "
                f"{at_least(one['certified_0.999']):>8} at 0.999, {one['wall_seconds']:.1f} s of "
                f"{row.seconds / TENTH:g}{'' if in_time(one) else ' (late)'} "
                f"({one['cpu_seconds']:.1f} s of one core): {one['event']}",
                flush=True,
            )
    if not names:
        kept = RESULTS / f"{platform.machine()}.json"
        audits = {"machine": described(), "rows": list(results.values())}
        kept.write_text(json.dumps(audits, indent=1) + "\n")
        write_between_marks(PAGE, "audit-bench", table(list(results.values()), described()))


if __name__ == "__main__":
    main(sys.argv[1:])
