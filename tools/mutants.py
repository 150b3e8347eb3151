"""Plant errors in the lines that decide the privacy of a release, and check that a test fails.

    python tools/mutants.py [--module statistics/bounds] [--list] [--sample N] [--quick] [--recheck]

A mutant is the package with one small error: `>` for `>=`, a constant that is off by one, `min` for
`max`, a missing factor, a rounding to nearest instead of up. The program finds these places
in the syntax tree of the modules that tools/mutants.toml names. It writes each to a copy of the
repository, not to the working tree. Then it runs the tests that call the changed function, the
quickest first. A mutant that no test finds has survived.

Some mutants are equivalent: they change nothing observable. tools/mutants.toml lists these, each
with the reason. Status 1: a mutant survived that is not listed, or a listed one no longer exists.
"""

import argparse
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mutants_planting import Finder, Module, Mutant

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "tools" / "mutants.toml"
# Folders of the repository that the tests need.
COPIED_FOLDERS: Final = ("src", "tests", "tools", "docs", "examples", "benchmarks", "requirements")
QUICK_TESTS_SECONDS: Final = (
    10.0  # Total time of the quick tests, which run before the slower ones.
)
LEAST_LIMIT: Final = 40.0  # Smallest time limit of a run, in seconds, for a busy machine.
SLOWDOWN: Final = 5.0  # A run this many times slower than without the mutant counts as hung.
FAILURE_STATUSES: Final = (1, 2)  # pytest's: a test failed, or an import failed.

# Running the tests --------------------------------------------------------------------------------


@dataclass
class Coverage:
    """Which tests call which functions, and how long each takes."""

    callers: dict[str, list[str]]
    seconds: dict[str, float]

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Return the tests that call the mutant's function, the quickest first."""
        file = f"{mutant.module.file}:"
        tests = {
            test
            for function, callers in self.callers.items()
            # A constant of a class or module can affect everything in the module.
            if function == file + mutant.function
            or (not mutant.in_function and function.startswith(file))
            for test in callers
        }
        return sorted(tests, key=lambda name: self.seconds.get(name, 0.0))

    def stages(self, mutant: Mutant) -> list[list[str]]:
        """Split these tests: the first file and the examples, then quick ones, then the others."""
        tests = self.tests_for(mutant)
        first_files = (mutant.module.tests[0], mutant.module.tests[-1])
        first = [name for name in tests if name.split("::")[0] in first_files]
        others = [name for name in tests if name not in first]
        total, quick = 0.0, 0
        while quick < len(others) and total < QUICK_TESTS_SECONDS:
            total += self.seconds.get(others[quick], 0.0)
            quick += 1
        return [first, others[:quick], others[quick:]]


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant: the test that found it, or None."""

    mutant: Mutant
    found_by: str | None
    tests: int
    seconds: float


class Copy:
    """A copy of the repository; one module of it is changed at a time."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.package = folder, folder / "src" / "dpnoise"
        ignored = shutil.ignore_patterns("__pycache__", ".venv*", "*.egg-info")
        for name in COPIED_FOLDERS:
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy2(file, folder)
        compile_command = [sys.executable, "-m", "compileall", "-q", str(folder / "src")]
        subprocess.run(compile_command, check=True)  # noqa: S603 - our own interpreter
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder / "tools")]),
            # Python identifies bytecode by time and size, which two mutants can share.
            "PYTHONDONTWRITEBYTECODE": "1",
            # Kernels are compiled once for all mutants, because none changes a kernel.
            "DPNOISE_CACHE_DIR": str(cache),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / ".hypothesis"),
            "MUTANTS_JOB": str(folder / "job.json"),
        }

    def run(
        self, tests: Sequence[str] | None, files: Sequence[str], limit: float, *, record: bool
    ) -> tuple[int | None, dict[str, Any]]:
        """Run tests; return pytest's status, None if it took too long, and the result."""
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        job = {
            "package": str(self.package),
            "tests": tests,
            "record": record,
            "result": str(result),
        }
        (self.folder / "job.json").write_text(json.dumps(job))
        options = ["-q", "-p", "no:cacheprovider", "-p", "mutants_recorder", "--no-header"]
        # One seed, so that a mutant is found in each run or in none.
        options += ["--tb=line", "--hypothesis-seed=0", *([] if record else ["-x"])]
        command = [sys.executable, "-m", "pytest", *options, *files]
        status = self._wait(command, limit)
        if status is None or not result.exists():
            return status, {"failed": []}
        written: dict[str, Any] = json.loads(result.read_text())
        return status, written

    def _wait(self, command: Sequence[str], limit: float) -> int | None:
        with (self.folder / "output.txt").open("w") as output:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter
                command,
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def read_output(self) -> str:
        """Return the end of pytest's output."""
        return (self.folder / "output.txt").read_text()[-3000:]

    def check(self, mutant: Mutant, coverage: Coverage) -> Outcome:
        """Run the tests on a mutant, first the quick ones, then the others."""
        started = time.monotonic()
        file = self.package / mutant.module.file
        original = file.read_bytes()
        for bytecode in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            bytecode.unlink()
        stages = coverage.stages(mutant)
        file.write_text(mutant.source)
        try:
            found_by = self._find_failing_test(stages, coverage)
        finally:
            file.write_bytes(original)
        return Outcome(mutant, found_by, sum(map(len, stages)), time.monotonic() - started)

    def _find_failing_test(self, stages: Sequence[Sequence[str]], coverage: Coverage) -> str | None:
        for tests in stages:
            if not tests:
                continue
            expected = sum(coverage.seconds.get(name, 0.0) for name in tests)
            files = sorted({name.split("::")[0] for name in tests})
            limit = LEAST_LIMIT + SLOWDOWN * expected
            status, result = self.run(tests, files, limit, record=False)
            if status is None:
                return f"no end after {limit:.0f} seconds"
            if status in FAILURE_STATUSES:
                failed: list[str] = result["failed"]
                return failed[0] if failed else "an import that fails"
            if status < 0:  # A signal, such as SIGSEGV, or SIGKILL when memory runs out.
                return f"a crash by {signal.Signals(-status).name}"
            if status != 0:
                raise SystemExit(f"pytest ended with status {status}:\n{self.read_output()}")
        return None


def record_coverage(copies: Sequence[Copy], files: Sequence[str]) -> Coverage:
    """Run all tests without a planted error, and record which functions they call."""
    files_of_copies = [files[number :: len(copies)] for number in range(len(copies))]

    def run_share(copy: Copy, files_of_copy: Sequence[str]) -> dict[str, Any]:
        if not files_of_copy:
            return {"seconds": {}, "functions": {}}
        status, result = copy.run(None, files_of_copy, 3600.0, record=True)
        if status != 0:
            raise SystemExit(
                f"Tests fail without a planted error. Fix them first.\n{copy.read_output()}"
            )
        return result

    with ThreadPoolExecutor(len(copies)) as pool:
        results = list(pool.map(run_share, copies, files_of_copies))
    seconds = {name: duration for result in results for name, duration in result["seconds"].items()}
    callers: dict[str, list[str]] = {}
    for result in results:
        for owner, functions in result["functions"].items():
            # All tests of a file may depend on the calls made while the file is imported.
            tests = [owner] if owner in seconds else [n for n in seconds if n.startswith(owner)]
            for function in functions:
                callers.setdefault(function, []).extend(tests)
    return Coverage(callers, seconds)


# The program --------------------------------------------------------------------------------------


Reasons = dict[tuple[str, str, str], str]  # The reason why a mutant is equivalent, by its key.


def read_table() -> tuple[list[Module], Reasons]:
    """Return the modules to mutate, and the reason for each equivalent mutant."""
    table = tomllib.loads(TABLE.read_text())
    modules = [
        Module(
            row["path"],
            (*row["tests"], f"src/dpnoise/{row['path']}.py"),
            tuple(row.get("include", ())),
            tuple(row.get("skip", ())),
            row.get("sql", False),
            row.get("integers", False),
        )
        for row in table["module"]
    ]
    reasons = {
        (row["module"], row["function"], change): row["reason"]
        for row in table.get("equivalent", [])
        for change in row["changes"]
    }
    return modules, reasons


def print_table(
    modules: list[Module], mutants: list[Mutant], outcomes: list[Outcome], reasons: Reasons
) -> None:
    """Print the number of mutants of each module, by result."""
    print(f"\n{'module':<28}{'planted':>8}{'found':>8}{'equivalent':>12}{'SURVIVED':>10}")
    for module in modules:
        of_module = [mutant for mutant in mutants if mutant.module == module]
        module_outcomes = [outcome for outcome in outcomes if outcome.mutant.module == module]
        equivalent_count = sum(mutant.key in reasons for mutant in of_module)
        found_count = sum(o.found_by is not None for o in module_outcomes)
        survivor_count = sum(
            o.found_by is None and o.mutant.key not in reasons for o in module_outcomes
        )
        print(
            f"{module.path:<28}{len(of_module):>8}{found_count:>8}{equivalent_count:>12}{survivor_count:>10}"
        )


def run_mutants(
    modules: Sequence[Module], mutants: Sequence[Mutant], workers: int
) -> list[Outcome]:
    """Run the tests on every mutant, several at a time, and print each outcome."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        cache = folder / "cache"
        copies = [Copy(folder / f"copy{number}", cache) for number in range(workers)]
        files = sorted({file for module in modules for file in module.tests})
        print(f"Running the tests of {len(files)} files without a planted error ...", flush=True)
        coverage = record_coverage(copies, files)
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)

        def check(mutant: Mutant) -> Outcome:
            copy = free.get()
            try:
                return copy.check(mutant, coverage)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            running = [pool.submit(check, mutant) for mutant in mutants]
            for number, future in enumerate(as_completed(running), 1):
                if (
                    future.exception() is not None
                ):  # Without this the other mutants would run to their end first.
                    pool.shutdown(wait=False, cancel_futures=True)
                outcome = future.result()
                outcomes.append(outcome)
                result = outcome.found_by or f"SURVIVED {outcome.tests} tests"
                print(
                    f"[{number}/{len(mutants)}] {outcome.seconds:5.1f} s  {outcome.mutant}\n"
                    f"        {result}",
                    flush=True,
                )
    return outcomes


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "--module", action="append", metavar="NAME", help="such as statistics/bounds"
    )
    parser.add_argument(
        "--match", metavar="TEXT", help="only mutants with this in function or change"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--sample", type=int, metavar="N", help="run only N mutants, at random")
    parser.add_argument(
        "--recheck", action="store_true", help="run the equivalent mutants too: none may be found"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run only the first test file of each module"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="at a time; default: 2")
    return parser.parse_args()


def choose_modules(modules: list[Module], options: argparse.Namespace) -> list[Module]:
    """Return the modules that the command line names, each with the tests to run."""
    if options.module:
        unknown = set(options.module) - {module.path for module in modules}
        if unknown:
            raise SystemExit(f"tools/mutants.toml has no module {', '.join(sorted(unknown))}.")
        modules = [module for module in modules if module.path in options.module]
    if options.quick:
        modules = [replace(m, tests=(m.tests[0], m.tests[-1])) for m in modules]
    return modules


def choose_mutants(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants to plant."""
    if options.match is not None:
        mutants = [m for m in mutants if options.match in f"{m.function}: {m.change}"]
    if options.sample is not None:
        mutants = random.sample(mutants, min(options.sample, len(mutants)))
    return mutants


def report(modules: list[Module], mutants: list[Mutant], outcomes: list[Outcome],
           reasons: Reasons) -> bool:  # fmt: skip
    """Print the table, the survivors and wrong entries; return whether there are any."""
    print_table(modules, mutants, outcomes, reasons)
    survivors = [o.mutant for o in outcomes if o.found_by is None and o.mutant.key not in reasons]
    wrongly_listed = [o for o in outcomes if o.found_by is not None and o.mutant.key in reasons]
    for mutant in survivors:
        print(f"SURVIVED: {mutant}")
    for outcome in wrongly_listed:
        print(f"Listed as equivalent, but {outcome.found_by} finds it: {outcome.mutant}")
    return bool(survivors or wrongly_listed)


def unknown_names(modules: list[Module]) -> list[str]:
    """Return the names that tools/mutants.toml includes or skips, and that no module defines."""
    return [
        f"{module.path} | {name}"
        for module in modules
        for name in (*module.include, *module.skip)
        if not re.search(
            rf"^\s*((def|class) )?{name.rsplit('.', 1)[-1]}\b",
            (ROOT / "src/dpnoise" / module.file).read_text(),
            re.MULTILINE,
        )
    ]


def main() -> int:
    """Plant the errors; return the status of the program."""
    options = parse_arguments()
    modules, reasons = read_table()
    modules = choose_modules(modules, options)
    mutants = [
        mutant
        for module in modules
        for mutant in Finder(module, (ROOT / "src/dpnoise" / module.file).read_text()).find()
    ]
    keys, paths = {mutant.key for mutant in mutants}, {module.path for module in modules}
    missing_keys = [key for key in reasons if key[0] in paths and key not in keys]
    for key in missing_keys:
        print(f"Listed as equivalent, but no longer in the source: {' | '.join(key)}")
    for name in (unknown := unknown_names(modules)):
        print(f"Named in tools/mutants.toml, but not in the source: {name}")
    if options.list:
        for mutant in mutants:
            print(f"{mutant}{'  (equivalent)' if mutant.key in reasons else ''}")
        print(f"{len(mutants)} mutants, {len(keys & reasons.keys())} of them equivalent")
        return int(bool(missing_keys or unknown))
    planted = [mutant for mutant in mutants if options.recheck or mutant.key not in reasons]
    started = time.monotonic()
    outcomes = run_mutants(modules, choose_mutants(planted, options), options.workers)
    has_failed = report(modules, mutants, outcomes, reasons)
    minutes, times = (time.monotonic() - started) / 60, os.times()
    processor = (times.children_user + times.children_system) / 60
    print(f"{len(outcomes)} mutants in {minutes:.1f} minutes, {processor:.1f} of processor time")
    return int(bool(has_failed or missing_keys or unknown))


if __name__ == "__main__":
    sys.exit(main())
