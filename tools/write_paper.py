"""Write the results of `python -m reproduction` to docs/paper.md: `make paper`.

A report of some pieces replaces only their rows. Each row names the machine of its measurement.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from marks import write_between_marks

import reproduction
from reproduction import statements

PAGE = Path(__file__).parent.parent / "docs" / "paper.md"
BEYOND = PAGE.with_name("beyond-the-paper.md")
HEAD = ["| `--figure` | piece | verdict | reason | machine |", "|---|---|---|---|---|"]


def escape_bars(text: str) -> str:
    """Escape vertical bars, so that those of |N1| do not end a cell."""
    return text.replace("|", "\\|")


def rows_of(page: str) -> dict[str, str]:
    """Return the rows of the page, by the key of their piece."""
    _, _, rest = page.partition("<!-- pieces: begin -->")
    between, _, _ = rest.partition("<!-- pieces: end -->")
    return {row[1]: row[0] for row in re.finditer(r"^\| `(\w[\w-]*)` .*$", between, re.MULTILINE)}


def describe_run(machine: dict[str, object]) -> str:
    """Return the machine and the versions that a report was measured with."""
    versions = [f"{name} {number}" for name, number in machine.items() if name != "machine"]
    return f"{machine['machine']}, with {', '.join(versions)}"


def round_down(bound: float) -> str:
    """Return a lower bound with two decimals, rounded down."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def write_adopters(report: dict[str, Any]) -> None:
    """Write the table of libraries that adopted the fix to docs/beyond-the-paper.md."""
    for piece in report["pieces"]:
        if piece["key"] == "adopted" and piece["tables"]:
            rows = [
                f"| {name} | {noise} | {round_down(bound)} |"
                for name, noise, bound in piece["tables"][0]["rows"]
            ]
            head = ["| released | noise | certified epsilon |", "|---|---|---|"]
            measured = f"Measured on {describe_run(report['machine'])}."
            write_between_marks(BEYOND, "adopted", "\n".join([*head, *rows, "", measured]))


def main() -> None:
    """Write one row for each piece, and the list of statements, between their marks."""
    report = json.loads(Path(sys.argv[1]).read_text())
    if report["quick"]:
        sys.exit("A quick run is not precise enough: run `python -m reproduction` without --quick.")
    machine = f"{report['machine']['machine']}, dpnoise {report['dpnoise paper']}"
    rows = rows_of(PAGE.read_text())
    rows |= {
        piece["key"]: f"| `{piece['key']}` | {piece['title']} | {piece['verdict']} | "
        f"{escape_bars(piece['why'])} | {machine} |"
        for piece in report["pieces"]
    }
    if missing := [key for key in reproduction.PIECES if key not in rows]:
        sys.exit(f"No row yet for {', '.join(missing)}: measure these too.")
    measured = f"Last measured on {describe_run(report['machine'])}."
    lines = [*HEAD, *(rows[key] for key in reproduction.PIECES), "", measured]
    write_between_marks(PAGE, "pieces", "\n".join(lines))
    write_between_marks(PAGE, "statements", statements.table())
    write_adopters(report)
    print(f"Wrote {len(report['pieces'])} pieces to {PAGE.name}.")


if __name__ == "__main__":
    main()
