"""Audit the mechanisms of the DP-Sniper paper, and compare with its figures: `make audit-bench`.

An event is chosen and counted once. The counts give a bound at confidence 0.9, as in the paper, and
one at 0.999. Times are wall-clock times on all cores of this machine, including those of the
mechanism, after a small warm-up audit. DP-Sniper's times are those of the paper, on a larger
machine.

Each mechanism is audited three times. The table shows the median audit, and how many audits reach
the published bound. `python -m benchmarks.audit_bench SVT1 SVT2` measures only these mechanisms and
writes no table.
"""

import json
import platform
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any, Final

from marks import measured_with, write_between_marks

import dpnoise
from benchmarks.audit_mechanisms import ROWS, Row
from dpnoise.auditing.attacks.certified_bounds import tossed_epsilon
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import bound_text
from dpnoise.cli.terminal import progress_bar

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "dp-sniper.md"
RESULTS: Final = ROOT / "benchmarks" / "results" / "audits"  # One file for each architecture.
TENTH: Final = 10
RUNS: Final = 3
WARM_UP: Final = 100_000  # Releases of the warm-up audit, which is not measured.


def measure_audit(row: Row) -> dict[str, Any]:
    """Audit one mechanism, and return its result and times."""
    # The warm-up audit imports the libraries and loads compiled code.
    dpnoise.audit(row.mechanism, row.claim, neighbours=row.neighbours, budget=WARM_UP)
    cpu_seconds, wall_seconds = time.process_time(), time.perf_counter()
    with progress_bar(row.name) as show:
        report = dpnoise.audit(
            row.mechanism,
            row.claim,
            neighbours=row.neighbours,
            budget=row.budget,
            confidence=0.9,
            progress=lambda part, _: show(part),
        )
    cpu_seconds, wall_seconds = (
        time.process_time() - cpu_seconds,
        time.perf_counter() - wall_seconds,
    )
    finding = report.findings[0]
    # With two events the finding may be either, so the smaller share of the error is used.
    error = (1 - 0.999) * (min(TUNING.event_error_shares) if len(report.findings) > 1 else 1)
    counts = finding.hits0, finding.trials0, finding.hits1, finding.trials1
    certified_at_999 = tossed_epsilon(*counts, error=error, dispersion=finding.dispersion)
    return {
        "mechanism": row.name,
        "claim": row.claim,
        "keeps": row.keeps,
        "published": row.published,
        "published_seconds": row.seconds,
        "certified": report.epsilon_lower,
        "certified_0.999": certified_at_999,
        "cpu_seconds": cpu_seconds,
        "wall_seconds": wall_seconds,
        "releases": report.releases,
        "event": finding.event,
        "data": [finding.value0, finding.value1],
    }


def is_reached(audit: dict[str, Any]) -> bool:
    """Return whether an audit certifies at least the published bound."""
    return bool(audit["certified"] >= audit["published"])


def is_quick(audit: dict[str, Any]) -> bool:
    """Return whether an audit takes at most a tenth of the published time."""
    return bool(audit["wall_seconds"] <= audit["published_seconds"] / TENTH)


def median_of(audits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the audit of a mechanism with the median certified bound."""
    return sorted(audits, key=lambda audit: audit["certified"])[len(audits) // 2]


def table(rows: list[list[dict[str, Any]]], machine: str) -> str:
    """Return the table of the docs from the audits of each mechanism."""
    head = (
        "| mechanism | claims | keeps it | DP-Sniper, 0.9 | ours, 0.9 | ours, 0.999 | reach it "
        "| DP-Sniper, s | ours, s | in time | releases |"
    )
    lines = [head, "|---" * 11 + "|"]
    for audits in rows:
        audit, runs = median_of(audits), len(audits)
        certified = bound_text(audit["certified"])
        lines.append(
            f"| {audit['mechanism']} | {audit['claim']:.3g} | {'yes' if audit['keeps'] else 'no'} "
            f"| {audit['published']:g} | {f'**{certified}**' if is_reached(audit) else certified} "
            f"| {bound_text(audit['certified_0.999'])} | {sum(map(is_reached, audits))} of {runs} "
            f"| {audit['published_seconds']:g} | {audit['wall_seconds']:.1f} "
            f"| {sum(map(is_quick, audits))} of {runs} | {audit['releases'] / 1e6:.1f} million |"
        )
    medians, all_audits = [median_of(audits) for audits in rows], list(chain(*rows))
    note = (
        f"\nOn {machine}; seconds by the clock. In bold: at least what was "
        f"published: {sum(map(is_reached, medians))} of {len(rows)}; "
        f"in at most a tenth of its time: {sum(map(is_quick, medians))}. "
        f"Of the {len(all_audits)} audits, {sum(map(is_reached, all_audits))} reach the published "
        f"bound, and {sum(map(is_quick, all_audits))} take at most a tenth of its time."
    )
    return "\n".join(["", *lines, note, ""])


def main(names: list[str]) -> None:
    """Audit the named mechanisms, or all; print the results and write the table."""
    available = [row.name for row in ROWS]
    if unknown := [name for name in names if name not in available]:
        sys.exit(f"no mechanism is called {', '.join(unknown)}; there are {', '.join(available)}")
    rows = [row for row in ROWS if not names or row.name in names]
    results: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    for _ in range(RUNS):
        for row in rows:
            audit = measure_audit(row)
            results[row.name].append(audit)
            print(
                f"{row.name:20}{bound_text(audit['certified']):>8} (published {row.published:g}) "
                f"{bound_text(audit['certified_0.999']):>8} at 0.999, {audit['wall_seconds']:.1f} "
                f"s of {row.seconds / TENTH:g}{'' if is_quick(audit) else ' (late)'} "
                f"({audit['cpu_seconds']:.1f} s of one core): {audit['event']}",
                flush=True,
            )
    if not names:
        results_file = RESULTS / f"{platform.machine()}.json"
        audits = {"machine": measured_with(), "rows": list(results.values())}
        results_file.write_text(json.dumps(audits, indent=1) + "\n")
        write_between_marks(PAGE, "audit-bench", table(list(results.values()), measured_with()))


if __name__ == "__main__":
    main(sys.argv[1:])
