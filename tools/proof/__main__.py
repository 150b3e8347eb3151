"""Prove every statement, or those that are named: python -m proof [--table] [NAME ...].

Status 1 says that something is not proved. With --table the table of docs/exact-release.md is
written. Scripts can be read with --scripts FOLDER, which writes them instead of running them.
"""

import argparse
import ast
import os
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType

os.environ["NUMBA_DISABLE_JIT"] = "1"  # The source is read and run as it is written.

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

_PAGE = Path(__file__).parents[2] / "docs" / "exact-release.md"
_PARTS = (functions, device_division, forms, decision, subnormals)
_KERNELS = (elementary, certified, first_stage, fixed, noise_128bit, second_stage_kernels)
# What is done with integers before, and with cells once they are decided, which the tests hold
# against the judge.
_LOOPS = {
    *("above_grids", "open_places", "release_float"),
    *("settle_cells", "settle_floats", "to_integers"),
}
# Selections of which one outcome claims nothing.
_NO_CLAIM = {
    ("gumbel", "part < 1.0", False): "the error is infinite",
}


def statements(names: Collection[str] = ()) -> list[Statement]:
    """Return every statement, or at least those that are named."""
    first = [statement for part in _PARTS for statement in part.statements()]
    if names and set(names) <= {statement.name for statement in first}:
        return first  # It takes seconds to write the scripts of the others.
    return first + second_stage.statements()


def selections(modules: Iterable[ModuleType]) -> set[tuple[str, str]]:
    """Return the selections in the functions of these modules: function and condition."""
    return {
        (function.name, ast.unparse(node.test))
        for module in modules
        for function in ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.IfExp)
    }


def not_covered(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the outcomes of selections in the kernels that no script is about."""
    taken = {outcome for verdict in verdicts for c in verdict.cases for outcome in c.selections}
    return [
        f"{function}: {condition} is {outcome}"
        for function, condition in sorted(selections(_KERNELS))
        if function not in _LOOPS
        for outcome in (True, False)
        if (function, condition, outcome) not in taken | set(_NO_CLAIM)
    ]


def not_translated(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the functions of `certified` that no script is about."""
    visited = {name for verdict in verdicts for c in verdict.cases for name in c.functions}
    functions = {
        node.name
        for node in ast.parse(Path(str(certified.__file__)).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    return sorted(functions - visited - bit_tricks.NAMES)


def table(verdicts: Iterable[Verdict]) -> str:
    """Return the table of the docs."""
    rows = ["| | what is proved | bound proved | bound used | scripts |", "|---|---|---|---|---|"]
    rows += [
        f"| `{s.name}` | {s.says} | {proved} | {s.used} | {len(cases) or ''} |"
        for s, cases, proved, _ in verdicts
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
    """Prove, and return the status."""
    parser = argparse.ArgumentParser(prog="proof", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="statements; all if none")
    parser.add_argument("--table", action="store_true", help="write the table of the docs")
    parser.add_argument("--scripts", type=Path, metavar="FOLDER", help="write the scripts there")
    arguments = parser.parse_args()
    every = statements(arguments.names)
    chosen = [s for s in every if not arguments.names or s.name in arguments.names]
    if unknown := set(arguments.names) - {s.name for s in every}:
        parser.error(
            f"no statement {', '.join(sorted(unknown))}; there are: "
            + ", ".join(s.name for s in every)
        )
    if arguments.scripts is not None:
        write_scripts(arguments.scripts, chosen)
        return 0
    started, verdicts = time.perf_counter(), []
    try:
        for verdict in prove(chosen):
            verdicts.append(verdict)
            show(verdict)
    except GappaMissingError as error:
        print(error, file=sys.stderr)
        return 2
    gaps = [] if arguments.names else not_covered(verdicts) + not_translated(verdicts)
    for gap in gaps:
        print(f"NOT COVERED  {gap}")
    failed = sum(bool(verdict.failed) for verdict in verdicts)
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


def show(verdict: Verdict) -> None:
    """Print a line about a statement, and why it failed."""
    statement, _, proved, failed = verdict
    print(
        f"{'FAILED' if failed else 'proved':7} {statement.name:15} {proved:20} {statement.says}",
        flush=True,
    )
    for case, why in failed[:3]:
        print(f"        {case}: {why}")


if __name__ == "__main__":
    sys.exit(main())
