"""Statements: the claim, the Gappa scripts that prove it, and how to run them."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from proof.translation import Translation, UntranslatableError

U = 2.0**-53
# Gappa's warnings about a hint that it could not check, which would be an axiom, and about
# contradictory hypotheses, from which anything follows.
_UNSOUND = re.compile(r"not trivially equal|assumed to be nonzero|anything can be")
# Gappa reports a contradiction only if the script asks a question, so every script asks for 1.
_ANSWER = re.compile(r"^  1 in ", re.MULTILINE)
_NUMBER = r"(?:\S+ \{)?(-?[0-9.e+-]+|-?inf)(?:, \S+\})?"
_INTERVAL = re.compile(rf"^  (?!1 in ).* in \[{_NUMBER}, {_NUMBER}\]$", re.MULTILINE)


# A proof takes a fraction of a second, but Gappa can run very long on a false claim.
_TIMEOUT_SECONDS = 300


class GappaMissingError(Exception):
    """Gappa is not installed."""


class Outcome(NamedTuple):
    """The reason why a case is not proved (empty if it is), and the ends of its intervals."""

    failure: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Case:
    """One script for Gappa.

    Parameters
    ----------
    name
        Distinguishes the case from the others of a statement.
    before, goal, after
        The script: definitions and hypotheses, the goal, hints.
    asks
        Expressions for which Gappa must compute an interval.
    selections
        The outcomes of selections in the source that the case covers.
    functions
        The kernels that were translated for the case.
    """

    name: str
    before: str
    goal: str
    after: str = ""
    asks: tuple[str, ...] = ()
    selections: frozenset[tuple[str, str, bool]] = frozenset()
    functions: frozenset[str] = frozenset()

    @property
    def script_without_questions(self) -> str:
        """The script without questions, as other provers need it."""
        return self._script_asking(())

    @property
    def script(self) -> str:
        """The script with its questions, for Gappa."""
        return self._script_asking((*self.asks, "1"))

    def _script_asking(self, expressions: Iterable[str]) -> str:
        goals = [self.goal] * bool(self.goal) + [f"{expression} in ?" for expression in expressions]
        return self.before + "-> " + " /\\ ".join(goals) + " }\n" + self.after

    def outcome(self) -> Outcome:
        """Run Gappa, and return its result."""
        # Without this option Gappa splits intervals again and again before it fails.
        command = [gappa_path(), "-Eno-auto-dichotomy"]
        try:
            process = subprocess.run(  # noqa: S603 - the installed Gappa
                command,
                input=self.script,
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Outcome(f"Gappa did not finish within {_TIMEOUT_SECONDS} s.")
        output = process.stdout + process.stderr
        if process.returncode != 0 or _UNSOUND.search(output) or not _ANSWER.search(output):
            return Outcome(output.strip() or f"status {process.returncode}")
        ends = [(float(least), float(most)) for least, most in _INTERVAL.findall(output)]
        if not ends:
            return Outcome("")
        return Outcome("", min(least for least, _ in ends), max(most for _, most in ends))


@dataclass(frozen=True)
class Statement:
    """A claim about a kernel.

    Parameters
    ----------
    name
        The kernel or subject, as `make proof` lists it.
    claim
        The claim, as the table of docs/exact-release-proof.md shows it.
    make_cases
        Makes the scripts for Gappa. Together they are the proof.
    summarize
        Makes text of the bound that the intervals of the cases prove.
    used
        The bound that the code, or the next statement, relies on.
    checks
        Functions that check a claim by running the kernels, and raise if it is false.
    """

    name: str
    claim: str
    make_cases: Callable[[], Sequence[Case]] = field(default=tuple, repr=False)
    summarize: Callable[[Sequence[Outcome]], str] = field(default=lambda _: "", repr=False)
    used: str = ""
    checks: Sequence[Callable[[], None]] = ()


class Verdict(NamedTuple):
    """The result of a statement: the bound proved, and the failures with their reasons."""

    statement: Statement
    cases: Sequence[Case]
    bound: str
    failures: list[tuple[str, str]]


def largest_size(outcomes: Sequence[Outcome]) -> str:
    """Return the largest absolute value in any of the intervals, in u."""
    ends = [end for outcome in outcomes for end in (outcome.least, outcome.most) if end is not None]
    return f"{max(map(abs, ends)) / U:.2f}u"


def smallest_margin(outcomes: Sequence[Outcome]) -> str:
    """Return the smallest number in any of the intervals, in u, as the margin to spare."""
    least = min(outcome.least for outcome in outcomes if outcome.least is not None)
    return f"{least / U:.2f}u to spare"


def gappa_path() -> str:
    """Return the path of Gappa."""
    path = shutil.which("gappa")
    if path is None:
        raise GappaMissingError(
            "Gappa is not installed. Install it (apt-get install gappa) and try again."
        )
    return path


def prove(statements: Iterable[Statement]) -> Iterable[Verdict]:
    """Prove statements, with one script per core at a time."""
    gappa_path()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for statement in statements:
            try:
                cases = statement.make_cases()
            except UntranslatableError as error:
                yield Verdict(statement, (), "", [("translation", str(error))])
                continue
            outcomes = list(pool.map(Case.outcome, cases))
            failures = [
                (case.name, outcome.failure)
                for case, outcome in zip(cases, outcomes, strict=True)
                if outcome.failure
            ]
            failures += [
                (check.__name__, reason)
                for check in statement.checks
                if (reason := failure_reason(check))
            ]
            yield Verdict(
                statement, cases, "" if failures else statement.summarize(outcomes), failures
            )


def failure_reason(check: Callable[[], None]) -> str:
    """Return the reason why a check failed, or an empty text."""
    try:
        check()
    except AssertionError as error:
        return str(error) or "the check failed"
    return ""


def case(
    name: str,
    translation: Translation,
    goal: str,
    *,
    asks: Iterable[str] = (),
    definitions: Iterable[tuple[str, str]] = (),
    hypotheses: Iterable[str] = (),
    hints: Iterable[str] = (),
) -> Case:
    """Return a case from the definitions of the kernel and of the statement, and the goal."""
    lines = ["@rnd = float<ieee_64, ne>;"]
    lines += [f"{left} = {right};" for left, right in [*translation.definitions, *definitions]]
    lines.append("{ " + " /\\\n  ".join([*translation.hypotheses, *hypotheses]))
    before, after = ("".join(f"{line}\n" for line in part) for part in (lines, map(_line, hints)))
    selections, functions = frozenset(translation.selections), frozenset(translation.functions)
    return Case(name, before, goal, after, tuple(asks), selections, functions)


def _line(hint: str) -> str:
    return f"{hint};"
