"""Audits of every mechanism that is known by name, as a table of docs/auditing.md.

`PYTHONPATH=tools python -m benchmarks.audit_peers` writes it, or prints one row for each name that
it is given. What is not installed is left out of the table and named below it.
"""

import sys
import time
from pathlib import Path
from typing import Final

from marks import write_between_marks

import dpnoise
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.wording import at_least, percent
from dpnoise.core.errors import MissingExtraError
from dpnoise.core.machine import described

PAGE: Final = Path(__file__).parent.parent / "docs" / "auditing.md"
CLAIMED: Final = 1.0
DELTA: Final = 1e-6
BUDGET: Final = 10_000
SLOWER: Final = {"smartnoise.count": 1_000, "smartnoise.group_by": 1_000}


def row(name: str) -> str:
    """Audit a mechanism, and return its row."""
    delta = DELTA if MECHANISMS[name].has_delta else 0.0
    started = time.process_time()
    report = dpnoise.audit(name, CLAIMED, delta, budget=SLOWER.get(name, BUDGET))
    best = report.findings[0]
    seen = f"{percent(best.hits0, best.trials0)} and {percent(best.hits1, best.trials1)}"
    bound = at_least(report.epsilon_lower, CLAIMED)
    cells = [
        f"`{name}` {report.version}",
        f"**{bound}: broken**" if report.broken else bound,
        f"{best.value0} and {best.value1}",
        seen,
        f"{report.releases:,}",
        f"{time.process_time() - started:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Audit what is installed."""
    if names:
        for name in names:
            print(row(name), flush=True)
        return
    lines = [
        "",
        "| mechanism | certified | strongest at | its event seen there | releases | seconds |",
        "|---|---|---|---|---|---|",
    ]
    missing = []
    for name in MECHANISMS:
        try:
            lines.append(row(name))
            print(lines[-1], flush=True)
        except MissingExtraError:
            missing.append(f"`{name}`")
    note = (
        f"\nEach claims epsilon {CLAIMED:g}, those that find groups at delta {DELTA:g}; on "
        f"{described()}, seconds of one core. Not installed here: {', '.join(missing) or 'none'}.\n"
    )
    write_between_marks(PAGE, "audit-peers", "\n".join([*lines, note]))


if __name__ == "__main__":
    main(sys.argv[1:])
