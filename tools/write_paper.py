"""Write what `dpnoise paper` found into docs/paper.md: `make paper`."""

import json
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "paper.md"


def main() -> None:
    """Put one row for each piece between the marks."""
    report = json.loads(Path(sys.argv[1]).read_text())
    if report["quick"]:
        sys.exit("A quick run says little: run `dpnoise paper` without --quick.")
    lines = ["| `--figure` | piece | verdict | why |", "|---|---|---|---|"]
    lines += [
        f"| `{piece['key']}` | {piece['title']} | {piece['verdict']} | {piece['why']} |"
        for piece in report["pieces"]
    ]
    machine = ", ".join(f"{name} {number}" for name, number in report["machine"].items())
    begin, end = "<!-- pieces: begin -->", "<!-- pieces: end -->"
    before, rest = PAGE.read_text().split(begin)
    _, after = rest.split(end)
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{begin}\n{table}\n\nMeasured with {machine}.\n{end}{after}")
    print(f"Wrote {len(report['pieces'])} pieces to {PAGE.name}.")


if __name__ == "__main__":
    main()
