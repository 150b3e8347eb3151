"""Write what `dpnoise paper` found into docs/paper.md: `make paper`."""

import json
import sys
from pathlib import Path

from marks import write_between_marks

PAGE = Path(__file__).parent.parent / "docs" / "paper.md"


def escaped(text: str) -> str:
    """Keep the bars of |N1| from ending a cell."""
    return text.replace("|", "\\|")


def main() -> None:
    """Put one row for each piece between the marks."""
    report = json.loads(Path(sys.argv[1]).read_text())
    if report["quick"]:
        sys.exit("A quick run says little: run `dpnoise paper` without --quick.")
    lines = ["| `--figure` | piece | verdict | why |", "|---|---|---|---|"]
    lines += [
        f"| `{piece['key']}` | {piece['title']} | {piece['verdict']} | {escaped(piece['why'])} |"
        for piece in report["pieces"]
    ]
    on, *others = report["machine"].items()
    versions = ", ".join(f"{name} {number}" for name, number in others)
    measured = f"Measured on {on[1]}, with {versions}."
    write_between_marks(PAGE, "pieces", "\n".join([*lines, "", measured]))
    print(f"Wrote {len(report['pieces'])} pieces to {PAGE.name}.")


if __name__ == "__main__":
    main()
