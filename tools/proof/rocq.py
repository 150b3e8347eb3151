"""Gappa's proofs, checked by Rocq (Coq): python -m proof.rocq [NAME ...].

Gappa writes what it proved as a script for Rocq, whose small kernel checks each step against the
theorems of Gappa's library. Debian has both: coq and libcoq-gappa. It takes seconds to half a
minute a script. Without names, the decision, the sine and Laplace noise from one uniform are
checked: every kind of step from a word to a cell but roots, for which Debian's library (1.5.2)
has no theorem that Gappa 1.4.1 uses (square_sqrt).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from proof.__main__ import statements
from proof.statement import Case, program

_NAMES = ("lower_end", "sinpi", "laplace_1", "certain_point")


def refused(case: Case, folder: Path) -> str:
    """Return why Rocq does not take the proof of a case: nothing if it does."""
    written = subprocess.run(  # noqa: S603 - Gappa, where it was found
        [program(), "-Eno-auto-dichotomy", "-Bcoq"],
        input=case.claim,
        capture_output=True,
        text=True,
        check=False,
    )
    if written.returncode:
        return written.stderr
    (folder / "proof.v").write_text(written.stdout)
    checked = subprocess.run(
        ["coqc", "proof.v"],  # noqa: S607 - where Debian installs it
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return checked.stderr if checked.returncode else ""


def main() -> int:
    """Check the scripts of the statements that are named."""
    names = sys.argv[1:] or _NAMES
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for statement in statements():
            if statement.name not in names:
                continue
            for case in statement.make_cases():
                why = refused(case, Path(folder))
                status |= bool(why)
                print(
                    f"{'refused' if why else 'checked'} {statement.name}, {case.name}", flush=True
                )
                if why:
                    print(why.strip()[-500:])
    return status


if __name__ == "__main__":
    sys.exit(main())
