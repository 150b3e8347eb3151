"""A statement: what is claimed, the Gappa scripts that prove it, and how they are run."""

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
# What Gappa says of a hint that it could not check, which would be one more axiom, and of
# hypotheses that contradict each other, from which anything follows.
_UNSOUND = re.compile(r"not trivially equal|assumed to be nonzero|anything can be")
# Of a contradiction it says so only if it is asked for something. So every script asks for 1.
_ANSWERED = re.compile(r"^  1 in ", re.MULTILINE)
_NUMBER = r"(?:\S+ \{)?(-?[0-9.e+-]+|-?inf)(?:, \S+\})?"
_FOUND = re.compile(rf"^  (?!1 in ).* in \[{_NUMBER}, {_NUMBER}\]$", re.MULTILINE)


# Proofs take a fraction of a second. What is not provable can keep Gappa busy for very long.
_TOO_LONG = 300


class GappaMissingError(Exception):
    """There is no Gappa on this machine."""


class Outcome(NamedTuple):
    """Why a case is not proved, nothing if it is; and the ends of the intervals it asked for."""

    failure: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Case:
    """One script for Gappa.

    Parameters
    ----------
    name
        What tells it from the other cases of a statement.
    before, goal, after
        The script: definitions and hypotheses, what is to be proved, hints.
    asks
        Expressions of which Gappa is asked for an interval.
    selections
        The outcomes of selections in the source that it is about.
    functions
        The kernels that were translated for it.
    """

    name: str
    before: str
    goal: str
    after: str = ""
    asks: tuple[str, ...] = ()
    selections: frozenset[tuple[str, str, bool]] = frozenset()
    functions: frozenset[str] = frozenset()

    @property
    def claim(self) -> str:
        """The script without a question, as other provers take it."""
        return self._asking(())

    @property
    def script(self) -> str:
        """The script with its questions."""
        return self._asking((*self.asks, "1"))

    def _asking(self, asked: Iterable[str]) -> str:
        goals = [self.goal] * bool(self.goal) + [f"{expression} in ?" for expression in asked]
        return self.before + "-> " + " /\\ ".join(goals) + " }\n" + self.after

    def outcome(self) -> Outcome:
        """Ask Gappa."""
        # Without this Gappa splits an interval of its own choice again and again before it fails.
        command = [program(), "-Eno-auto-dichotomy"]
        try:
            finished = subprocess.run(  # noqa: S603 - Gappa, where it was found
                command,
                input=self.script,
                capture_output=True,
                text=True,
                check=False,
                timeout=_TOO_LONG,
            )
        except subprocess.TimeoutExpired:
            return Outcome(f"Gappa did not come to an end within {_TOO_LONG} s.")
        said = finished.stdout + finished.stderr
        if finished.returncode != 0 or _UNSOUND.search(said) or not _ANSWERED.search(said):
            return Outcome(said.strip() or f"status {finished.returncode}")
        ends = [(float(least), float(most)) for least, most in _FOUND.findall(said)]
        if not ends:
            return Outcome("")
        return Outcome("", min(least for least, _ in ends), max(most for _, most in ends))


@dataclass(frozen=True)
class Statement:
    """A claim about a kernel.

    Parameters
    ----------
    name
        What it is about, as `make proof` lists it.
    says
        The claim, as the table of docs/exact-release.md shows it.
    make_cases
        Makes the scripts of Gappa. All of them together are the proof.
    proved
        What the intervals that the cases asked for show, in words: the bound that is proved.
    used
        The bound that the code, or the next statement, takes.
    checks
        What is shown by running the kernels instead: functions that raise if it is not so.
    """

    name: str
    says: str
    make_cases: Callable[[], Sequence[Case]] = field(default=tuple, repr=False)
    proved: Callable[[Sequence[Outcome]], str] = field(default=lambda _: "", repr=False)
    used: str = ""
    checks: Sequence[Callable[[], None]] = ()


class Verdict(NamedTuple):
    """What came of a statement: the bound proved, and what failed with the reason."""

    statement: Statement
    cases: Sequence[Case]
    proved: str
    failed: list[tuple[str, str]]


def largest(outcomes: Sequence[Outcome]) -> str:
    """Say the largest size in any of the intervals, in u."""
    ends = [end for each in outcomes for end in (each.least, each.most) if end is not None]
    return f"{max(map(abs, ends)) / U:.2f}u"


def spare(outcomes: Sequence[Outcome]) -> str:
    """Say the least number in any of the intervals, in u, as what is left over."""
    return f"{min(each.least for each in outcomes if each.least is not None) / U:.2f}u to spare"


def program() -> str:
    """Return the path of Gappa."""
    found = shutil.which("gappa")
    if found is None:
        raise GappaMissingError(
            "There is no gappa here. Install it (apt-get install gappa) and try again."
        )
    return found


def prove(statements: Iterable[Statement]) -> Iterable[Verdict]:
    """Prove statements, as many scripts at a time as there are cores."""
    program()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for statement in statements:
            try:
                cases = statement.make_cases()
            except UntranslatableError as error:
                yield Verdict(statement, (), "", [("translation", str(error))])
                continue
            outcomes = list(pool.map(Case.outcome, cases))
            failed = [
                (case.name, outcome.failure)
                for case, outcome in zip(cases, outcomes, strict=True)
                if outcome.failure
            ]
            failed += [(check.__name__, why) for check in statement.checks if (why := _why(check))]
            yield Verdict(statement, cases, "" if failed else statement.proved(outcomes), failed)


def _why(check: Callable[[], None]) -> str:
    """Return why a check failed: nothing if it did not."""
    try:
        check()
    except AssertionError as error:
        return str(error) or "it is not so"
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
    """Return a script of Gappa: the kernel's definitions, those of the statement, and the goal."""
    lines = ["@rnd = float<ieee_64, ne>;"]
    lines += [f"{left} = {right};" for left, right in [*translation.definitions, *definitions]]
    lines.append("{ " + " /\\\n  ".join([*translation.hypotheses, *hypotheses]))
    before, after = ("".join(f"{line}\n" for line in part) for part in (lines, map(_line, hints)))
    taken, visited = frozenset(translation.taken), frozenset(translation.visited)
    return Case(name, before, goal, after, tuple(asks), taken, visited)


def _line(hint: str) -> str:
    return f"{hint};"
