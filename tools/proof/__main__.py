"""Prove every statement, or only the named ones: python -m tools.proof [--table] [NAME ...].

Status 1 means that a proof failed. --table writes the table of docs/exact-release-proof.md.
--scripts FOLDER writes the scripts to a folder instead of running them.
"""

import argparse
import ast
import os
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType

os.environ["NUMBA_DISABLE_JIT"] = "1"  # The proofs read and run the source, not compiled code.

from marks import write_between_marks

from dpnoise.kernels import certified, elementary, first_stage, fixed, noise_128bit
from dpnoise.kernels import second_stage as second_stage_kernels
from proof import (
    bit_tricks,
    decision,
    device_division,
    forms,
    functions,
    second_stage,
    subnormals,
)
from proof.statement import GappaMissingError, Statement, Verdict, prove

_PAGE = Path(__file__).parents[2] / "docs" / "exact-release-proof.md"
_PARTS = (functions, device_division, forms, decision, subnormals)
_KERNELS = (elementary, certified, first_stage, fixed, noise_128bit, second_stage_kernels)
# Functions that prepare integers or handle decided cells. The tests compare them with the
# reference implementation.
_TESTED_FUNCTIONS = {
    *("above_grids", "open_places", "release_float"),
    *("settle_cells", "settle_floats", "to_integers"),
}
# Outcomes of selections that claim nothing.
_NO_CLAIM = {
    ("gumbel", "part < 1.0", False): "the error is infinite",
}


def statements(names: Collection[str] = ()) -> list[Statement]:
    """Return every statement, or at least the named ones."""
    first = [statement for part in _PARTS for statement in part.statements()]
    if names and set(names) <= {statement.name for statement in first}:
        return first  # Writing the scripts of the others takes seconds.
    return first + second_stage.statements()


def selections(modules: Iterable[ModuleType]) -> set[tuple[str, str]]:
    """Return the function and condition of each selection in these modules."""
    return {
        (function.name, ast.unparse(node.test))
        for module in modules
        for function in ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.IfExp)
    }


def uncovered_outcomes(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the outcomes of selections in the kernels that no script covers."""
    covered = {outcome for verdict in verdicts for c in verdict.cases for outcome in c.selections}
    return [
        f"{function}: {condition} is {outcome}"
        for function, condition in sorted(selections(_KERNELS))
        if function not in _TESTED_FUNCTIONS
        for outcome in (True, False)
        if (function, condition, outcome) not in covered | set(_NO_CLAIM)
    ]


def untranslated_functions(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the functions of `certified` that no script covers."""
    covered = {name for verdict in verdicts for c in verdict.cases for name in c.functions}
    functions = {
        node.name
        for node in ast.parse(Path(str(certified.__file__)).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    return sorted(functions - covered - bit_tricks.NAMES)


def table(verdicts: Iterable[Verdict]) -> str:
    """Return the table for the docs."""
    rows = ["| | claim | bound proved | bound used | scripts |", "|---|---|---|---|---|"]
    rows += [
        f"| `{s.name}` | {s.claim} | {bound} | {s.used} | {len(cases) or ''} |"
        for s, cases, bound, _ in verdicts
    ]
    return "\n".join(rows)


def write_scripts(folder: Path, chosen: Iterable[Statement]) -> None:
    """Write the scripts to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for statement in chosen:
        for k, case in enumerate(statement.make_cases()):
            path = folder / f"{statement.name.replace(' ', '-')}-{k:03d}.g"
            path.write_text(f"# {statement.name}: {case.name}\n{case.script}")


def main() -> int:
    """Prove the statements of the command line, and return the exit status."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tools.proof", description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help="statements; default: all")
    parser.add_argument("--table", action="store_true", help="write the table of the docs")
    parser.add_argument("--scripts", type=Path, metavar="FOLDER", help="write the scripts there")
    arguments = parser.parse_args()
    available = statements(arguments.names)
    chosen = [s for s in available if not arguments.names or s.name in arguments.names]
    if unknown := set(arguments.names) - {s.name for s in available}:
        parser.error(
            f"no statement {', '.join(sorted(unknown))}; there are: "
            + ", ".join(s.name for s in available)
        )
    if arguments.scripts is not None:
        write_scripts(arguments.scripts, chosen)
        return 0
    started, verdicts = time.perf_counter(), []
    try:
        for verdict in prove(chosen):
            verdicts.append(verdict)
            print_verdict(verdict)
    except GappaMissingError as error:
        print(error, file=sys.stderr)
        return 2
    gaps = (
        [] if arguments.names else uncovered_outcomes(verdicts) + untranslated_functions(verdicts)
    )
    for gap in gaps:
        print(f"NOT COVERED  {gap}")
    failed = sum(bool(verdict.failures) for verdict in verdicts)
    scripts = sum(len(verdict.cases) for verdict in verdicts)
    print(
        f"{len(chosen) - failed} of {len(chosen)} statements proved by {scripts} scripts in "
        f"{time.perf_counter() - started:.0f} s."
    )
    if failed or gaps:
        return 1
    if arguments.table and not arguments.names:
        write_between_marks(_PAGE, "proof", table(verdicts))
    return 0


def print_verdict(verdict: Verdict) -> None:
    """Print the result of a statement, and the reasons why it failed."""
    statement, _, bound, failures = verdict
    print(
        f"{'FAILED' if failures else 'proved':7} {statement.name:15} {bound:20} {statement.claim}",
        flush=True,
    )
    for case, reason in failures[:3]:
        print(f"        {case}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
