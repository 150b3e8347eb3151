"""The command line: one file for each command.

Every command makes one library call and prints the result. Exit statuses:

- 0: success.
- 1: an audit found a violation; no other cause has this status.
- 2: an error, with a message that says what to do.
- 3: an audit had too few releases to find a violation.
- 70: a bug in dpnoise.
- 128 or more: a signal (129 hung up, 130 interrupted, 141 nobody read the output, 143 terminated).

Commands write to a temporary file and rename it, so that no incomplete file remains.
"""

import argparse
import gc
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from types import FrameType
from typing import Any, Final, NoReturn

import dpnoise
from dpnoise.cli import terminal
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, DpnoiseError, did_you_mean

_ERROR, _BUG, _INTERRUPTED, _UNREAD = 2, 70, 130, 141
# The module of each command and its line in the help. A module is imported only if its command is
# chosen: the others, and the libraries that they need, would make every start slower.
_COMMANDS: Final = {
    "release": (
        "release",
        "publish private statistics of files or databases: CSV, Parquet, DuckDB, ...",
    ),
    "budget": ("budget", "what may be spent on a data set, and what was"),
    "sample": ("noise", "draw noise into a file"),
    "cost": ("noise", "what inverting one variate costs"),
    "attack": ("attack", "run an attack against real software"),
    "audit": ("audit", "certify a lower bound on an implementation's true epsilon"),
    "leakage": ("noise", "what noise added in floats leaks, exactly, in small formats"),
}
_GARBAGE_THRESHOLD: Final = 50_000  # New objects between two searches for garbage.
# Signals that ask a process to end, if the system has them. SIGKILL cannot be handled.
_ENDING: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
# An argument with its value, in a rule such as "be below upper=0.0".
_ARGUMENT: Final = re.compile(r"\b(\w+)=")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status. Unexpected errors never give status 1."""
    if sys.stdout is None or sys.stdout.closed:
        terminal.complain("The standard output is closed. Give it a file: > /dev/null.")
        return _ERROR
    with terminal.escape_unencodable(), _raise_signals() as ended:
        argument_list = sys.argv[1:] if arguments is None else arguments
        if arguments is None and argument_list[:1] == ["release"]:  # This process is ours.
            _start_faster()
        options = _parser(argument_list).parse_args(argument_list)
        try:
            status: int = options.run(options) or 0
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - Python would exit with status 1
            typed = {argument.partition("=")[0] for argument in argument_list}
            status = _status_of(ended[0] if ended else error, typed)
            terminal.flush_or_drop()
        return status


def _start_faster() -> None:
    """Set up a process that imports large libraries and then makes a single release.

    Starting NumPy's threads for linear algebra, which no release uses, and searching imported
    modules for garbage took a sixth of the processor time of a small release.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(max(_GARBAGE_THRESHOLD, gc.get_threshold()[0]))


def _status_of(error: BaseException, typed: Collection[str]) -> int:
    """Print an error in one line, and return its exit status."""
    status = _ERROR
    match error:
        case BrokenPipeError():
            status = _UNREAD  # The reader of the output has closed it.
        case DpnoiseError() | OSError():
            terminal.complain(_describe(error, typed))
        case MemoryError():
            terminal.complain("There is not enough memory for this.")
        case KeyboardInterrupt():
            terminal.complain("interrupted")
            status = _INTERRUPTED
        case _EndedError():
            terminal.complain(f"ended by {error.name}")
            status = error.status
        case SystemExit():
            terminal.complain("What was run called sys.exit, and gave no result.")
        case _:
            status = _BUG
            if os.environ.get("DPNOISE_TRACEBACK"):
                traceback.print_exception(error)
            else:  # The message is not shown, because it may quote the data.
                terminal.complain(
                    f"{type(error).__name__} was not foreseen: this is a bug. DPNOISE_TRACEBACK=1 "
                    "shows where it is; the traceback may quote your data."
                )
    return status


def _describe(error: Exception, typed: Collection[str]) -> str:
    """Return an error's message, with typed options in place of Python's arguments."""

    def option_for(argument: str) -> str:
        option = "--" + argument.replace("_", "-")
        return option if option in typed else argument

    def name_option(match: re.Match[str]) -> str:
        option = option_for(match[1])
        return f"{option} " if option != match[1] else match[0]

    if not isinstance(error, ArgumentError | ArgumentTypeError):
        return _name_flags(str(error))
    violation = error.violation
    if violation is None:
        return _name_flags(error.format_message(_write_option))
    argument = option_for(violation.argument)
    rule = _ARGUMENT.sub(name_option, violation.rule)
    return str(violation._replace(argument=argument, rule=rule))


def _name_flags(message: str) -> str:
    """Return a message of an audit with options in place of arguments that are flags here."""
    return message.replace("one_by_one=True", "--one-by-one").replace('pairs="whole"', "--whole")


def _write_option(argument: str, value: object) -> str:
    """Return an argument of Python and its value as an option."""
    if isinstance(value, dict):  # The groups of columns.
        return " ".join(
            f"--group-by {name}" + ("" if isinstance(keys, str) else f"={','.join(keys)}")
            for name, keys in value.items()
        )
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"--{argument.replace('_', '-')} {shlex.quote(text)}"


class _EndedError(SystemExit):
    """A signal asked the command to end; its status is that of a shell."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        self.status = 128 + number
        super().__init__(self.status)


@contextmanager
def _raise_signals() -> Iterator[list[_EndedError]]:
    """Raise _EndedError at a signal that would end the process, so that files are cleaned up.

    The error is also added to the list that this gives, because a library may turn it into another
    error. Signals that are already ignored or handled stay so. Only the main thread handles
    signals.
    """
    ended: list[_EndedError] = []
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    def end(number: int, _frame: FrameType | None) -> None:
        # A second signal must not disturb the cleanup.
        signal.signal(number, signal.SIG_IGN)
        ended.append(_EndedError(number))
        raise ended[0]

    handled = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield ended
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


class _Parser(argparse.ArgumentParser):
    """A parser that prints errors in one line, suggests names and accepts -1e5 as a number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf)")

    def error(self, message: str) -> NoReturn:
        if re.search(r"invalid (int|float) value: .*\d,\d", message):
            message += ". Write a decimal point and no thousands sign"
        end = "" if message.endswith("?") else "."
        self.exit(_ERROR, terminal.complaint(f"{message}{end} See {self.prog} --help."))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report unknown arguments here, so that the error names the help of the command."""
        if self._subparsers is not None and args:  # Else a missing command would be reported.
            self._check_options(args[:1])
        self._check_repeated(args or ())
        parsed, unknown = super().parse_known_args(args, namespace)
        self._check_options(unknown)
        if unknown:
            self.error(
                f"{unknown[0]!r} was not expected. Files and names come before options; quote a "
                "list with spaces"
            )
        return parsed, unknown

    def _check_options(self, arguments: list[str]) -> None:
        """Report the first option that does not exist, with the most similar one."""
        options = [text.partition("=")[0] for text in arguments if text.startswith("-")]
        wrong = next((text for text in options if text not in self._option_string_actions), None)
        if wrong is not None:
            hint = did_you_mean(wrong, self._option_string_actions)
            self.error(f"There is no option {wrong}" + (f". {hint}" if hint else ""))

    def _check_repeated(self, arguments: Sequence[str]) -> None:
        """Report the first option that takes one value and has two: the last would win."""
        typed = [text.partition("=")[0] for text in takewhile("--".__ne__, arguments)]
        for name, count in Counter(typed).items():
            action = self._option_string_actions.get(name)
            if count > 1 and isinstance(action, argparse._StoreAction):  # noqa: SLF001 - has no public name
                self.error(f"{name} was given {count} times, and can be given once")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Report a wrong choice, of a command too, with the most similar one."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), choices) or f"Choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}. {hint}")


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Return a parser with all commands, of which only the chosen one has its options."""
    parser: argparse.ArgumentParser = _Parser(prog="dpnoise", description=dpnoise.__doc__)
    parser.add_argument("--version", action="version", version=dpnoise.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, summary) in _COMMANDS.items():
        if name == chosen:
            getattr(import_module(f"dpnoise.cli.{module}"), name.upper()).add_to(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser
