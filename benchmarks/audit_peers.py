"""Audit every named mechanism of other libraries: a table of docs/audit-measurements.md.

`python -m benchmarks.audit_peers` writes the table. With names as arguments it
prints only their rows. The note below the table names the libraries that are not installed.
"""

import sys
import time
from pathlib import Path
from typing import Final

from marks import measured_with, write_between_marks

import dpnoise
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.wording import bound_text, format_percent
from dpnoise.core.errors import MissingExtraError

PAGE: Final = Path(__file__).parent.parent / "docs" / "audit-measurements.md"
CLAIM: Final = 1.0
DELTA: Final = 1e-6
BUDGET: Final = 10_000
SMALLER_BUDGETS: Final = {"smartnoise.count": 1_000, "smartnoise.group_by": 1_000}


def audit_row(name: str) -> str:
    """Audit a mechanism, and return its row of the table."""
    delta = DELTA if MECHANISMS[name].has_delta else 0.0
    started = time.process_time()
    report = dpnoise.audit(name, CLAIM, delta, budget=SMALLER_BUDGETS.get(name, BUDGET))
    best = report.findings[0]
    rates = (
        f"{format_percent(best.hits0, best.trials0)} and {format_percent(best.hits1, best.trials1)}"
    )
    bound = bound_text(report.epsilon_lower, CLAIM)
    cells = [
        f"`{name}` {report.version}",
        f"**{bound}: broken**" if report.broken else bound,
        f"{best.value0} and {best.value1}",
        rates,
        f"{report.releases:,}",
        f"{time.process_time() - started:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Audit the named mechanisms, or all that are installed."""
    if names:
        for name in names:
            print(audit_row(name), flush=True)
        return
    lines = [
        "",
        "| mechanism | certified | strongest at | event rates there | releases | seconds |",
        "|---|---|---|---|---|---|",
    ]
    missing = []
    for name in MECHANISMS:
        try:
            lines.append(audit_row(name))
            print(lines[-1], flush=True)
        except MissingExtraError:
            missing.append(f"`{name}`")
    note = (
        f"\nEach claims epsilon {CLAIM:g}, those that discover groups at delta {DELTA:g}; "
        f"seconds of one core. Measured on {measured_with()}. Not installed here: "
        f"{', '.join(missing) or 'none'}.\n"
    )
    write_between_marks(PAGE, "audit-peers", "\n".join([*lines, note]))


if __name__ == "__main__":
    main(sys.argv[1:])
