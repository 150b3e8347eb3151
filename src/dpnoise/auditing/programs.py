"""Programs as mechanisms: they read requests and write answers, one JSON value on each line.

A request is one line, {"data": ..., "n": ...}; its answer is n lines. A program may end after one
request, or answer each line that it reads until its input ends. It is started once and kept if it
can be, because starting it may take longer than its answer: a virtual machine of Java takes half a
second. Its first requests show what it does. If it does not answer while its input is open, the
input is closed, and the program is then started for each request.
"""

import json
import queue
import shlex
import subprocess
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from typing import IO, Final

from dpnoise.auditing.calls import LOG_ORDERS, log_orders
from dpnoise.auditing.targets.mechanisms import Data
from dpnoise.auditing.targets.target import (
    DependentError,
    TargetError,
    failure_of_command,
    kill_session,
    run_command,
    start_command,
)
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError, short_repr

Lines = queue.SimpleQueue[str | None]  # The lines that a process wrote, and None at their end.

# Seconds for an answer while the input is open, until the program has answered two requests.
_PATIENCE: Final = 5.0
# Seconds after its first answer in which a process may show that it writes too many lines. Later
# they look like lines of the next answer.
_SILENCE: Final = 0.1
# Answers that are compared between two processes, because a seed that is fixed at the start does
# not show in one.
_COMPARED_LINES: Final = 64


class Program:
    """A program that answers requests, in one process if it can."""

    def __init__(self, command: list[str], time_limit: float) -> None:
        self._command, self._time_limit = command, time_limit
        self._process: _Process | None = None
        self._stays: bool | None = None  # Whether it answers several requests; None is unknown.
        self._first: list[tuple[str, list[str]]] | None = []  # The first requests and answers.

    def outputs(self, data: Data, n: int) -> list[object]:
        """Ask the program for n outputs, as one line of JSON."""
        try:
            line = strict_json.dumps({"data": to_json_types(data), "n": n}).replace("\n", "") + "\n"
        except ArgumentError as error:
            raise TargetError(str(error)) from None
        except TypeError:
            message = f"A program reads data sets as JSON, which has no {type(data).__name__}."
            raise TargetError(message) from None
        call = f"{shlex.join(self._command)}, asked for {n} outputs,"
        lines = self.ask(line, n, call)
        outputs: list[object] = []
        for line in lines:
            try:
                outputs.append(json.loads(line))
            except ValueError:
                shown = short_repr(line)
                raise TargetError(f"{call} wrote a line that is not JSON: {shown}") from None
        return outputs

    def ask(self, request: str, n: int, call: str) -> list[str]:
        """Send a request, and return the n lines of the answer; errors begin with `call`."""
        if self._process is not None and self._process.has_ended(call):
            self._stays, self._process = False, None
        if self._stays is False:
            lines = run_command(self._command, self._time_limit, request, call).splitlines()
            return _check_length(lines, n, call)
        lines = self._ask_process(request, n, call)
        if self._stays and self._first is not None:
            self._first.append((request, lines))
            if sum(len(answer) for _, answer in self._first) >= _COMPARED_LINES:
                self._compare_with_new_process(call)
        elif self._first is not None:
            self._first = [(request, lines)]
        return lines

    def _ask_process(self, request: str, n: int, call: str) -> list[str]:
        end = time.monotonic() + self._time_limit
        is_first = self._process is None
        process = self._process = self._process or _Process(self._command, call)
        process.write(request)
        lines = process.read(n, self._time_limit if self._stays else _PATIENCE)
        if len(lines) == n:
            if is_first:
                process.expect_silence(_SILENCE, call)
            # After a second answer of the same process it is known to stay.
            self._stays = self._stays or (None if is_first else True)
            return lines
        self._process = None
        lines += process.finish(end, call, self._time_limit)
        if is_first or not lines:
            self._stays = False
        if not (is_first or lines):  # It ended after the request before.
            return self.ask(request, n, call)
        return _check_length(lines, n, call)

    def _compare_with_new_process(self, call: str) -> None:
        """Raise DependentError if a new process gives the same first answers."""
        first, self._first, self._process = self._first or [], None, None
        again = [self._ask_process(request, len(lines), call) for request, lines in first]
        lines = [line for _, answer in first for line in answer]
        is_repeated = lines == [line for answer in again for line in answer]
        if is_repeated and log_orders(lines) > LOG_ORDERS:
            reason = "An audit counts releases that are independent of each other."
            raise DependentError(f"{call} gave the same in two processes: a fixed seed. {reason}")


def to_json_types(data: Data) -> Data:
    """Return a data set in types that JSON has; a frame becomes a list of its rows."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        if not data.columns.is_unique:
            raise ArgumentError("The columns of a frame must have different names, for JSON.")
        return to_json_types(data.to_dict("records"))
    for as_list in ("to_dicts", "to_pylist", "to_list", "tolist"):  # Polars, Arrow, pandas, NumPy.
        if hasattr(data, as_list):
            return getattr(data, as_list)()
    if isinstance(data, dict):
        return {key: to_json_types(part) for key, part in data.items()}
    if isinstance(data, list | tuple):
        return [to_json_types(part) for part in data]
    return data


class _Process:
    """A running process, with a thread that reads its lines."""

    def __init__(self, command: list[str], call: str) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by `_end`
        self._popen = start_command(command, call, self._errors)
        self._input, self._lines = _pipe(self._popen.stdin), Lines()
        reader = threading.Thread(
            target=_read_lines, args=(_pipe(self._popen.stdout), self._lines), daemon=True
        )
        reader.start()
        # No process outlives the audit.
        weakref.finalize(self, _end, self._popen, reader, self._errors)

    def has_ended(self, call: str) -> bool:
        """Return whether it ended without an error; raise if it wrote too many lines."""
        self.expect_silence(0.0, call)
        if self._popen.poll() is None:
            return False
        self.finish(time.monotonic() + _PATIENCE, call, _PATIENCE)
        return True

    def expect_silence(self, seconds: float, call: str) -> None:
        """Raise if it writes a line that it was not asked for within some seconds."""
        if self.read(1, seconds):
            raise TargetError(f"{call} wrote more lines than it was asked for.")

    def write(self, text: str) -> None:
        """Send a text, in a thread: the process may write before it has read all."""

        def send() -> None:
            with suppress(OSError, ValueError):  # It ended, which reading notices.
                self._input.write(text)
                self._input.flush()

        self._writer = threading.Thread(target=send, daemon=True)
        self._writer.start()

    def read(self, n: int, seconds: float) -> list[str]:
        """Return n lines, or fewer if it ends or takes too long."""
        lines: list[str] = []
        end = time.monotonic() + seconds
        while len(lines) < n:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                self._lines.put(None)
                break
            lines.append(line)
        return lines

    def finish(self, end: float, call: str, limit: float) -> list[str]:
        """Close its input, and return the lines that it writes until it ends."""
        self._writer.join(max(0.0, end - time.monotonic()))
        with suppress(OSError):
            self._input.close()
        lines = self.read(1 << 62, max(0.0, end - time.monotonic()))
        try:
            status = self._popen.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TargetError(f"{call} took more than {limit:g} s.") from None
        if status:
            self._errors.seek(0)
            raise failure_of_command(call, status, self._errors.read())
        return lines


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ValueError("The stream of a process is not a pipe.")
    return stream


def _read_lines(stream: IO[str], lines: Lines) -> None:
    with stream, suppress(OSError, ValueError):
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _end(popen: "subprocess.Popen[str]", reader: threading.Thread, errors: IO[str]) -> None:
    kill_session(popen)
    with suppress(OSError):
        _pipe(popen.stdin).close()
    popen.wait()
    reader.join(_PATIENCE)
    errors.close()


def _check_length(lines: list[str], n: int, call: str) -> list[str]:
    if len(lines) != n:
        raise TargetError(f"{call} wrote {len(lines)} lines, not {n}.")
    return lines
