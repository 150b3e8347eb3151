"""Write what `--help` prints of each command into docs/command-line.md: `make pictures`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from marks import write_between_marks

PAGE: Final = Path(__file__).parent.parent / "docs" / "command-line.md"
COMMANDS: Final = (
    "release", "audit", "budget", "budget create", "budget show", "budget spend", "budget mend",
    "attack", "leakage", "sample", "cost",
)  # fmt: skip


def help_texts() -> str:
    """Return a section for each command."""
    sections = []
    for command in COMMANDS:
        run = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "dpnoise.cli", *command.split(), "--help"],
            env={**os.environ, "COLUMNS": "80"}, capture_output=True, check=True, text=True,
        )  # fmt: skip
        sections.append(f"### dpnoise {command}\n\n```\n{run.stdout.strip()}\n```")
    return "\n\n".join(sections)


if __name__ == "__main__":
    write_between_marks(PAGE, "help", help_texts())
