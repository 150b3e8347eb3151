"""Check Gappa's proofs with Rocq (Coq): python -m tools.proof.rocq [NAME ...].

Gappa writes its proofs as scripts for Rocq, whose small kernel checks each step against the
theorems of Gappa's library. Debian packages both, as coq and libcoq-gappa. A script takes up to
half a minute.

Without names, the program checks the decision, the sine and Laplace noise from one uniform. These
contain every kind of step from a word to a cell, except roots: Debian's library (1.5.2) lacks a
theorem that Gappa 1.4.1 uses for them (square_sqrt).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from proof.__main__ import statements
from proof.statement import Case, gappa_path

_NAMES = ("lower_end", "sinpi", "laplace_1", "certain_point")


def rejection_reason(case: Case, folder: Path) -> str:
    """Return Rocq's reason for rejecting the proof of a case, or an empty text."""
    gappa = subprocess.run(  # noqa: S603 - the installed Gappa
        [gappa_path(), "-Eno-auto-dichotomy", "-Bcoq"],
        input=case.script_without_questions,
        capture_output=True,
        text=True,
        check=False,
    )
    if gappa.returncode:
        return gappa.stderr
    (folder / "proof.v").write_text(gappa.stdout)
    rocq = subprocess.run(
        ["coqc", "proof.v"],  # noqa: S607 - where Debian installs it
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return rocq.stderr if rocq.returncode else ""


def main() -> int:
    """Check the scripts of the named statements, and return the exit status."""
    names = sys.argv[1:] or _NAMES
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for statement in statements():
            if statement.name not in names:
                continue
            for case in statement.make_cases():
                reason = rejection_reason(case, Path(folder))
                status |= bool(reason)
                print(
                    f"{'refused' if reason else 'checked'} {statement.name}, {case.name}",
                    flush=True,
                )
                if reason:
                    print(reason.strip()[-500:])
    return status


if __name__ == "__main__":
    sys.exit(main())
