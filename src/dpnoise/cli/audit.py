"""`dpnoise audit`: certify a lower bound on the true epsilon of an implementation."""

import argparse
import csv
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dpnoise
from dpnoise.auditing import targets
from dpnoise.auditing.wording import bound_text, format_value, predicate_text, used_as_if
from dpnoise.cli import terminal
from dpnoise.cli.output_files import check_targets, file_name, replace_when_complete
from dpnoise.cli.terminal import Command, Option
from dpnoise.core.errors import ArgumentError, MissingExtraError, import_extra
from dpnoise.core.safe_text import escape_text, format_confidence, shorten

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dpnoise.auditing import Finding, Report

Progress = Callable[[float, str], object]
Watch = Callable[[list["Finding"]], object]

BROKEN, FAILED, TOO_FEW = 1, 2, 3  # Exit statuses, for CI.
_RELATIONS_OF_ROWS: Final = ("rows", "added", "replaced")
_RELATIONS: Final = ("vector", *_RELATIONS_OF_ROWS)  # Names of neighbours; others are files.
_LONGEST: Final = 24  # The most characters of a data set in a table.
_LEAST_EVENT: Final = 20  # The least width of the column of events; else they are below the table.


def _pair(text: str) -> tuple[float, float]:
    """Read two values with a comma between them."""
    try:
        value0, value1 = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"give two numbers with a comma between them, as in --pair 0,1, not {text!r}"
        ) from None
    return value0, value1


def _budget(text: str) -> int:
    """Read a number of releases, which may have commas as in a report: 24,000."""
    digits = text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", text) else text
    try:
        return int(digits)
    except ValueError:
        raise argparse.ArgumentTypeError(f"give an integer, as 24000, not {text!r}") from None


def _part(text: str) -> int | str:
    """Read the index of a part of an output, or its name."""
    return int(text) if text.isdecimal() else text


_OPTIONS: Final = (
    Option("target", {"nargs": "?", "metavar": "TARGET"},
           "a name (see dpnoise attack --list), or module:attribute, a function "
           "(value, n) -> array of n releases"),
    Option("--command", {"metavar": "COMMAND"},
           "audit a program instead: it reads one value a line and writes one release a line; "
           "with --neighbours, one line of JSON with data and n, and writes n lines"),
    Option("--all", bool, "audit every installed library"),
    Option("--epsilon", float, "the claimed epsilon (with --all: 1)"),
    Option("--delta", 0.0, "the claimed delta (0)"),
    Option("--mu", float, "the claimed mu, in place of epsilon"),
    Option("--rho", float, "the claimed rho, in place of epsilon"),
    Option("--curve", bool, "compare Gaussian noise with its whole privacy curve"),
    Option("--neighbours", {"metavar": "NEIGHBOURS"},
           "audit a mechanism (data, n) -> n outputs of any kind on such data sets: vector; rows "
           "(one added, removed or replaced), added (or removed), replaced; or a JSON file with "
           "pairs of data sets, [[a, b], ...]"),
    Option("--data", {"metavar": "FILE"},
           "the rows that --neighbours rows changes: a JSON file with a list, or a CSV file, which "
           "the mechanism gets as a list of dicts; give invented rows, because "
           "reports show them"),
    Option("--size", int, "answers of a vector (10)"),
    Option("--pair", {"action": "append", "type": _pair, "metavar": "A,B"},
           "two values; repeatable"),
    Option("--whole", bool, "try only multiples of the sensitivity, as for counts"),
    Option("--one-by-one", bool, "ask for one release a call"),
    Option("--exceptions", ("output", "error"),
           "take exceptions as outputs, or as the end of the audit (the first one starts it again, "
           "with exceptions as outputs)"),
    Option("--time", ("output",),
           "also bound the epsilon of the running time of a call; the verdict does not count it"),
    Option("--boosting", bool, "use boosted trees, too, even if that takes long"),
    Option("--public", {"action": "append", "type": _part, "metavar": "PART"},
           "a part of each output that is public randomness: its index, or its name in reports; "
           "repeatable"),
    Option("--sensitivity", 1.0, "the sensitivity of the value (1)"),
    Option("--scale", float, "the scale of the noise, if it differs from the claim"),
    Option("--attack", {"action": "append", "metavar": "NAME"}, "only this; repeatable"),
    Option("--budget", _budget, "releases in all (480,000 or more, as the claim needs)"),
    Option("--confidence", 0.999, "the confidence of the bound (0.999)"),
    Option("--time-limit", 60.0, "seconds for a call (60)"),
    Option("--seed", int, "the seed of the auditor, not of the target"),
    Option("--html", {"type": file_name, "metavar": "FILE"}, "write the report as an HTML page"),
    Option("--json", {"type": file_name, "metavar": "FILE"}, "write the report as JSON"),
)  # fmt: skip

# Options that `dpnoise.audit` has by the same names.
_PASSED_ON: Final = (
    *("epsilon", "delta", "sensitivity", "mu", "rho", "curve", "neighbours", "size", "one_by_one"),
    *("exceptions", "time", "boosting", "public", "budget", "confidence", "scale", "time_limit"),
    "seed",
)


def _check_target(arguments: argparse.Namespace) -> None:
    """Raise unless one target and a claim are given."""
    sources = [arguments.target is not None, arguments.command is not None, arguments.all]
    if sum(sources) != 1:
        raise ArgumentError(
            "Give one of TARGET, --command COMMAND and --all, as in dpnoise audit numpy.laplace "
            "--epsilon 1. dpnoise attack --list has the names of targets."
        )
    if [arguments.epsilon, arguments.mu, arguments.rho] == [None] * 3:
        if not arguments.all:
            raise ArgumentError("Say which epsilon is claimed: --epsilon 1.")
        arguments.epsilon = 1.0
    target = arguments.target or ""
    if len(target.split()) > 1 or ("/" in target and ":" not in target):
        command = shlex.quote(target)
        raise ArgumentError(f"A program is given by --command: dpnoise audit --command {command}.")


def _audit(arguments: argparse.Namespace) -> int:
    from dpnoise.auditing import report

    _check_target(arguments)
    paths = (arguments.html, arguments.json)
    check_targets(*paths, replace=True)
    console = terminal.console(soft_wrap=True)
    write_html: Callable[[Path], None]
    write_json: Callable[[Path], None]
    with ExitStack() as stack:
        html, output = (
            stack.enter_context(replace_when_complete(path, replace=True)) for path in paths
        )
        if arguments.all:
            reports, not_audited, failed = _audit_all(arguments, console)
            _compare(reports, not_audited, console)
            write_html = partial(report.write_comparison, reports, not_audited=not_audited)
            write_json = partial(report.write_list, reports)
        else:
            reports, failed = [_audit_one(arguments, console)], False
            _show(reports[0], console)
            write_html, write_json = reports[0].to_html, reports[0].to_json
        for path, write in ((html, write_html), (output, write_json)):
            if path is not None:
                write(path)
    for path in filter(None, paths):
        console.print(f"Written to {escape_text(path)}.")
    unknown = _complain_of_unknown(reports)
    if any(audited.broken for audited in reports):
        return BROKEN
    if failed or unknown:
        return FAILED
    return 0 if all(audited.refutable for audited in reports) else TOO_FEW


def _complain_of_unknown(reports: "list[Report]") -> bool:
    """Complain of each target of which nothing is known, and return whether there is one."""
    unknown = [report for report in reports if not report.observed]
    for report in unknown:
        reason = f"No attack could be run against {report.target}"
        if report.findings:
            reason = f"No event told two releases of {report.target} apart"
        terminal.complain(f"{reason}: nothing is known.")
    return bool(unknown)


def _audit_one(arguments: argparse.Namespace, console: "Console") -> "Report":
    """Audit the target that is named; the report says how to repeat it with the same files."""
    command = arguments.command
    target = arguments.target if command is None else _split_command(command)
    report = _audit_target(target, arguments, console)
    if arguments.data is None and arguments.neighbours in {None, *_RELATIONS}:
        return report
    return replace(report, command=_shell_command(arguments))


def _read_neighbours(text: str | None) -> object:
    """Return the name of a relation, or the pairs of data sets in a file."""
    if text is None or text in _RELATIONS:
        return text
    if not Path(text).exists():
        names = ", ".join(_RELATIONS)
        raise ArgumentError(f"--neighbours must be one of {names}, or a file; got {text!r}.")
    pairs = _read_json("--neighbours", text)
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):  # noqa: PLR2004 - a pair
        raise ArgumentError(f"{text} must have a list of pairs of data sets, [[a, b], ...].")
    return [tuple(pair) for pair in pairs]


def _read_rows(path: str | None) -> object:
    """Return the rows in a file: those of CSV as dicts, with numbers where all of a column are."""
    if path is None or Path(path).suffix.lower() != ".csv":
        return None if path is None else _read_json("--data", path)
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise ArgumentError(f"--data {path} was not read: {error}.") from None
    for name in rows[0] if rows else ():
        for number in (int, float):
            with suppress(TypeError, ValueError):
                numbers = [number(row[name]) for row in rows]
                for row, x in zip(rows, numbers, strict=True):
                    row[name] = x
                break
    return rows


def _read_json(option: str, path: str) -> object:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{option} {path} was not read: {error}.") from None


def _shell_command(arguments: argparse.Namespace) -> str:
    """Return the command that repeats this one, without the files that it writes."""
    words = ["dpnoise", "audit", *filter(None, [arguments.target])]
    for option in _OPTIONS:
        value = getattr(arguments, option.dest)
        is_default = value is None or value is False or value == option.kind
        if is_default or option.dest in {"target", "html", "json"}:
            continue
        for part in value if isinstance(value, list) else [value]:
            shown = ",".join(map(format_value, part)) if isinstance(part, tuple) else str(part)
            words += [option.name] if value is True else [option.name, shown]
    return shlex.join(words)


def _split_command(command: str) -> list[str]:
    """Split a command into words as a shell does."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ArgumentError(f"--command must be a command, got {command!r}: {error}.") from None


def _audit_target(
    target: str | list[str], arguments: argparse.Namespace, console: "Console"
) -> "Report":
    name = target if isinstance(target, str) else shlex.join(target)
    claims = arguments.epsilon, arguments.mu, arguments.rho
    claimed = next(claim for claim in claims if claim is not None)
    last_findings: list[Finding] = []
    pairs = "whole" if arguments.whole else arguments.pair
    options = {name: getattr(arguments, name) for name in _PASSED_ON}
    options |= {"attacks": arguments.attack, "pairs": pairs}
    options["neighbours"] = _read_neighbours(arguments.neighbours)
    if arguments.neighbours in _RELATIONS_OF_ROWS and arguments.data is None:
        raise ArgumentError(
            f"--neighbours {arguments.neighbours} needs --data FILE, the rows to change, as CSV or "
            "JSON. If the rows are numbers, the file has a list of them, such as [0, 1, 1]."
        )
    options["data"] = _read_rows(arguments.data)
    options = {name: x for name, x in options.items() if x is not None and x is not False}
    try:
        with _show_live(name, claimed, console) as (progress, watch):

            def keep(findings: "list[Finding]") -> None:
                last_findings[:] = findings
                watch(findings)

            if isinstance(target, str) and ":" in target and hasattr(os, "fork"):
                return _audit_in_child(target, progress=progress, watch=keep, **options)
            return dpnoise.audit(target, progress=progress, watch=keep, **options)
    except targets.TargetError as error:
        if last_findings and not isinstance(error, targets.DependentError):
            console.print("What was certified before the target failed:")
            terminal.print_table(console, _table(last_findings, claimed, console.width))
        raise


def _audit_in_child(target: str, *, progress: Progress, watch: Watch, **options: Any) -> "Report":
    """Audit a user's function in a child process, because it may end its process."""
    from dpnoise.auditing.processes import ProcessError, run_in_child

    receivers: dict[str, Callable[..., object]] = {"progress": progress, "watch": watch}
    step = ""

    def audit(send: Callable[..., None]) -> "Report":
        report_progress, report_findings = partial(send, "progress"), partial(send, "watch")
        return dpnoise.audit(target, progress=report_progress, watch=report_findings, **options)

    def receive(kind: str, *content: object) -> None:
        nonlocal step
        step = str(content[1]) if kind == "progress" else step
        receivers[kind](*content)

    try:
        return run_in_child(audit, target, receive=receive)
    except ProcessError as error:
        raise targets.TargetError(f"{error} The audit was at this step: {step}.") from None


def _audit_all(
    arguments: argparse.Namespace, console: "Console"
) -> "tuple[list[Report], dict[str, str], bool]":
    """Audit all installed targets, Gaussian ones at a delta.

    Return the reports, the reasons why other targets were not audited, and whether one failed.
    """
    reports: list[Report] = []
    not_audited: dict[str, str] = {}
    failed = False
    for name in targets.names():
        if name.startswith("paper."):
            continue
        gaussian = name in targets.names("gaussian")
        delta = (arguments.delta or 1e-6) if gaussian else arguments.delta
        target_arguments = argparse.Namespace(**{**vars(arguments), "delta": delta})
        try:
            reports.append(_audit_target(name, target_arguments, console))
        except MissingExtraError as error:
            not_audited[name] = str(error)
            console.print(escape_text(f"{name}: {error}"), style="dim")
        except targets.TargetError as error:
            failed = True
            console.print(escape_text(f"{name}: {error}"), style="red")
        else:
            console.print(f"{name}: {reports[-1].verdict}")
    return reports, not_audited, failed


@contextmanager
def _show_live(name: str, claimed: float, console: "Console") -> Iterator[tuple[Progress, Watch]]:
    """Show the progress and the findings so far, if the output is a terminal."""
    if not sys.stdout.isatty():
        yield (lambda *_: None), (lambda *_: None)
        return
    bar = terminal.bar_on(console)
    group = import_extra("rich.console", "cli").Group
    task = bar.add_task(escape_text(name), total=1.0)
    with import_extra("rich.live", "cli").Live(bar, console=console, transient=True) as live:

        def progress(part: float, doing: str) -> None:
            bar.update(task, completed=part, description=escape_text(f"{name}: {doing}"))

        def watch(findings: "list[Finding]") -> None:
            live.update(group(bar, _table(findings, claimed, console.width)))

        yield progress, watch


def _show(report: "Report", console: "Console") -> None:
    from dpnoise.auditing.tradeoff import curve_words

    used = used_as_if(report.kind, report.claimed, report.delta)
    target = escape_text(f"{report.target} {report.version}".rstrip())
    console.print(terminal.prose(f"{target}, {used}"))
    verdict = terminal.prose(report.verdict)
    console.print(f"{verdict}\n", style="bold red" if report.broken else "bold")
    table = _table(report.findings, report.claimed, console.width, report.kind)
    terminal.print_table(console, table)
    if len(table.columns) == 4:  # noqa: PLR2004 - without events
        for finding in report.findings:
            text = escape_text(f"{finding.attack}, the event of a release y: {finding.event}")
            console.print(terminal.prose(text, hanging=2))
    for finding in report.findings:
        if finding.predicate:
            text = f"{finding.attack} as Python: {predicate_text(finding.predicate)}"
            console.print(escape_text(text))
    for change in dict.fromkeys(x.change for x in report.findings if x.change):
        text = f"The data sets, from the first to the second: {change}."
        console.print(terminal.prose(escape_text(text)))
    for observation in report.observations:
        mark = "!" if observation.found else " "
        console.print(terminal.prose(escape_text(f"{mark} {observation.words}"), hanging=2))
    for name, reason in report.skipped.items():
        console.print(terminal.prose(escape_text(f"  {name} gave no result: {reason}"), hanging=2))
    curve = curve_words(report.curve())
    if curve:
        console.print(f"\n{terminal.prose(f'The certified curve: {curve}.')}")
    if report.unseen:
        console.print(f"\n{terminal.prose(report.unseen)}")
    measured = (
        f"confidence {format_confidence(report.confidence)}, {report.releases:,} releases, "
        f"{report.seconds:.1f} s, of which nothing above {report.kind} "
        f"{bound_text(report.ceiling)} can be certified. {report.method}"
    )
    console.print(f"\n{terminal.prose(measured)}\nAgain: {escape_text(report.command)}")


def _table(
    findings: "list[Finding]", claimed: float, width: int, kind: str = "certified"
) -> "Table":
    titles = ["attack", f"{kind} >=", "seen at", "and at", "the event, of a release y"]
    rows: list[list[str]] = []
    for finding in findings:
        value0, value1 = _values(finding)
        at0 = f"{value0}: {finding.hits0 / finding.trials0:.2%}"
        at1 = f"{value1}: {finding.hits1 / finding.trials1:.2%}"
        bound = bound_text(finding.certified, claimed)
        rows.append([finding.attack, bound, at0, at1, finding.event])
    styles = ["red" if finding.broken else None for finding in findings]
    whole = terminal.format_table(titles, rows, width, folded=4, styles=styles)
    if (whole.columns[4].width or 0) >= _LEAST_EVENT:
        return whole
    cells = [row[:4] for row in rows]
    return terminal.format_table(titles[:4], cells, width, folded=0, styles=styles)


def _values(finding: "Finding") -> list[str]:
    """Return both values of a finding, in full if six digits do not tell them apart."""
    both = (finding.value0, finding.value1)
    short = [shorten(x, _LONGEST) if isinstance(x, str) else f"{x:g}" for x in both]
    alike = short[0] == short[1] and not isinstance(both[0], str)
    return [*map(format_value, both)] if alike else short


def _compare(reports: "list[Report]", not_audited: dict[str, str], console: "Console") -> None:
    """Print one line for each target. Long lines are not folded, so that they can be copied."""
    numbers = f"{'as if':>6}{'certified':>10}{'at most':>8}"
    console.print(f"\n{'target':29}{'version':11}{numbers}  by")
    for report in reports:
        worst = report.findings[0].attack if report.findings else "none was run"
        console.print(
            f"{escape_text(report.target):29}{escape_text(report.version):11}{report.claimed:>6g}"
            f"{bound_text(report.certified, report.claimed):>10}"
            f"{bound_text(report.ceiling):>8}  {worst}",
            style="red" if report.broken else None,
        )
    for name, reason in not_audited.items():
        console.print(escape_text(f"{name:29}not audited: {reason}"), style="dim")


AUDIT: Final = Command(
    "audit",
    _audit,
    _OPTIONS,
    description="Run every attack of dpnoise and certify a lower bound on a target's epsilon. Exit "
    "status: 0 not broken, 1 broken, 2 wrong usage, a target that fails, or no attack that could "
    "be run, 3 a claim that so few releases cannot refute. What is seen of forks, restarts and "
    "time is marked with ! and does not change it.",
)
