"""Write what `python -m reproduction` found into docs/paper.md: `make paper`.

A report of some pieces replaces their rows and leaves the others, each with the machine that it was
measured on.
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
HEAD = ["| `--figure` | piece | verdict | why | on |", "|---|---|---|---|---|"]


def escaped(text: str) -> str:
    """Keep the bars of |N1| from ending a cell."""
    return text.replace("|", "\\|")


def rows_of(page: str) -> dict[str, str]:
    """Return the rows that stand in the page, by the key of their piece."""
    _, _, rest = page.partition("<!-- pieces: begin -->")
    between, _, _ = rest.partition("<!-- pieces: end -->")
    return {row[1]: row[0] for row in re.finditer(r"^\| `(\w[\w-]*)` .*$", between, re.MULTILINE)}


def versions(machine: dict[str, object]) -> str:
    """Name what a report was measured with, but for the machine."""
    return ", ".join(f"{name} {number}" for name, number in machine.items() if name != "machine")


def floored(bound: float) -> str:
    """Show a lower bound with two decimals, never more than it is."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def write_adopters(report: dict[str, Any]) -> None:
    """Put the table of those who adopted the fix into docs/beyond-the-paper.md, if measured."""
    for piece in report["pieces"]:
        if piece["key"] == "adopted" and piece["tables"]:
            rows = [
                f"| {name} | {noise} | {floored(bound)} |"
                for name, noise, bound in piece["tables"][0]["rows"]
            ]
            head = ["| released | noise | certified epsilon |", "|---|---|---|"]
            measured = f"Measured on {report['machine']['machine']}."
            write_between_marks(BEYOND, "adopted", "\n".join([*head, *rows, "", measured]))


def main() -> None:
    """Put one row for each piece, and the list of statements, between their marks."""
    report = json.loads(Path(sys.argv[1]).read_text())
    if report["quick"]:
        sys.exit("A quick run says little: run `python -m reproduction` without --quick.")
    on = report["machine"]["machine"]
    rows = rows_of(PAGE.read_text())
    rows |= {
        piece["key"]: f"| `{piece['key']}` | {piece['title']} | {piece['verdict']} | "
        f"{escaped(piece['why'])} | {on} |"
        for piece in report["pieces"]
    }
    if missing := [key for key in reproduction.PIECES if key not in rows]:
        sys.exit(f"No row yet for {', '.join(missing)}: measure these too.")
    measured = f"Last measured on {on}, with {versions(report['machine'])}."
    lines = [*HEAD, *(rows[key] for key in reproduction.PIECES), "", measured]
    write_between_marks(PAGE, "pieces", "\n".join(lines))
    write_between_marks(PAGE, "statements", statements.table())
    write_adopters(report)
    print(f"Wrote {len(report['pieces'])} pieces to {PAGE.name}.")


if __name__ == "__main__":
    main()
