"""Write what `--help` prints of each command into docs/command-line.md: `make pictures`."""

import contextlib
import io
import os
from pathlib import Path
from typing import Final

from marks import write_between_marks

from dpnoise import cli

PAGE: Final = Path(__file__).parent.parent / "docs" / "command-line.md"
COMMANDS: Final = (
    "release", "audit", "budget", "budget create", "budget show", "budget spend", "budget mend",
    "attack", "leakage", "sample", "cost",
)  # fmt: skip


def help_texts() -> str:
    """Return a section for each command. Its width is that of the terminal."""
    sections = []
    for command in COMMANDS:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            cli.main([*command.split(), "--help"])
        sections.append(f"### dpnoise {command}\n\n```\n{output.getvalue().strip()}\n```")
    return "\n\n".join(sections)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    write_between_marks(PAGE, "help", help_texts())
