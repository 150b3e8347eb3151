r"""A file of lines, each chained to the one before by a hash, to which lines are only added.

A line is an object of JSON in canonical form, with a random name, the head before it and its own:
the SHA-256 of the rest. Whoever changes, takes out or adds a line in the middle must change every
head after it. The file is never replaced, so a lock on it locks it for all: one process at a time
reads, decides and adds. A line is written, and synced to the disk with its folder, before anybody
goes on.

A line without its end was cut short by a crash, before whoever wrote it went on. It is not read,
and nothing is added after it until it is taken away by `mend`.
"""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from dpnoise.core import strict_json
from dpnoise.core.errors import BudgetError

Line = dict[str, Any]

_OWN: Final = {"before", "head", "id"}  # What a line has of the chain.
_TRIES: Final = 100  # To lock a file that others put new ones in the place of.
_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)  # A pipe would wait.


@dataclass(frozen=True)
class Chain:
    """The lines of a file, without their heads, and the heads; what is after the last whole one."""

    lines: tuple[Line, ...]
    heads: tuple[str, ...]
    torn: bytes = b""


def head_of(line: Line) -> str:
    """Return the hash that stands for a line and all before it."""
    return hashlib.sha256(strict_json.canonical(line).encode()).hexdigest()


def create(path: Path, first: Line) -> str:
    """Make a new file of one line, and return its head."""
    with _complaints(path, "made"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
    try:
        with _locked(descriptor, path):
            return _append(descriptor, path, {**first, "before": ""})
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def read(path: Path) -> Chain:
    """Return all lines, every one of them checked."""
    with _opened(path, os.O_RDONLY) as descriptor:
        return _read(descriptor, path)


@contextmanager
def adding(path: Path) -> Iterator[tuple[Chain, Callable[[Line], str]]]:
    """Give all lines and a function that adds one and returns its head; others wait meanwhile."""
    with _opened(path, os.O_RDWR) as descriptor:
        chain = _read(descriptor, path)
        if chain.torn:
            raise BudgetError(
                f"{path} ends in a line that was cut short, by a crash or by a copy that is not "
                "whole. If it is whole but for that line: dpnoise budget mend."
            )
        heads = list(chain.heads)

        def add(line: Line) -> str:
            heads.append(_append(descriptor, path, {**line, "before": heads[-1]}))
            return heads[-1]

        yield chain, add


def mend(path: Path, line: Line) -> int:
    """Take a torn line away, add one that tells of it, and return how many bytes it had."""
    with _opened(path, os.O_RDWR) as descriptor:
        chain = _read(descriptor, path)
        if chain.torn:
            told = {"bytes": len(chain.torn), "sha256": hashlib.sha256(chain.torn).hexdigest()}
            with _complaints(path, "written"):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(chain.torn))
            _append(descriptor, path, {**line, "torn": told, "before": chain.heads[-1]})
        return len(chain.torn)


@contextmanager
def _complaints(path: Path, verb: str) -> Iterator[None]:
    """Say what the system says about a file in the words of a ledger."""
    try:
        yield
    except FileExistsError:
        raise BudgetError(f"{path} exists. Name another file for a new ledger.") from None
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise BudgetError(f"There is no folder {path.parent}.") from None
        raise BudgetError(f"There is no ledger {path}: dpnoise budget create makes one.") from None
    except OSError as error:
        raise BudgetError(f"{path} cannot be {verb}: {error.strerror}.") from None


@contextmanager
def _opened(path: Path, mode: int) -> Iterator[int]:
    """Open and lock a file: the one that has the name when the lock is there."""
    for _ in range(_TRIES):
        with _complaints(path, "opened"):
            descriptor = os.open(path, mode | _FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BudgetError(f"{path} is no regular file, so it is no ledger.")
            with _locked(descriptor, path, shared=mode == os.O_RDONLY):
                with _complaints(path, "opened"):
                    is_it = os.path.samestat(os.fstat(descriptor), path.stat())
                if is_it:
                    yield descriptor
                    return
        finally:
            os.close(descriptor)
    raise BudgetError(f"{path} is put in its own place again and again, by something else.")


@contextmanager
def _locked(descriptor: int, path: Path, *, shared: bool = False) -> Iterator[None]:
    try:
        locks = import_module("fcntl")
    except ImportError:
        raise BudgetError("A ledger needs the file locks of Linux, macOS or BSD.") from None
    with _complaints(path, "locked"):
        locks.flock(descriptor, locks.LOCK_SH if shared else locks.LOCK_EX)
    try:
        yield
    finally:
        locks.flock(descriptor, locks.LOCK_UN)  # Also for a copy that a fork took.


def _read(descriptor: int, path: Path) -> Chain:
    with _complaints(path, "read"):
        os.lseek(descriptor, 0, os.SEEK_SET)
        parts = []
        while part := os.read(descriptor, 2**20):
            parts.append(part)
    return parsed(b"".join(parts), path)


def parsed(content: bytes, path: Path) -> Chain:
    """Return the lines that a file holds, every one of them checked."""
    *whole, torn = content.split(b"\n")
    lines: list[Line] = []
    heads = [""]
    for number, text in enumerate(whole, 1):
        line = _checked(text, heads[-1])
        if line is None:
            raise BudgetError(
                f"{path} is damaged or was edited: line {number} is not the one that was written. "
                "Take a copy that is whole, and spend there what was released since."
            )
        heads.append(line["head"])
        lines.append({name: part for name, part in line.items() if name not in _OWN})
    if not lines:
        raise BudgetError(f"{path} is no ledger: it has no whole line.")
    return Chain(tuple(lines), tuple(heads[1:]), torn)


def _checked(text: bytes, before: str) -> Line | None:
    """Return a line that is, byte for byte, the canonical one with its head, or None."""
    try:
        line = json.loads(text)
        if not isinstance(line, dict):
            return None
        told = {name: part for name, part in line.items() if name != "head"}
        written = strict_json.canonical({**told, "head": head_of(told)})
    except (ValueError, RecursionError):
        return None
    return line if written.encode() == text and line.get("before") == before else None


def _append(descriptor: int, path: Path, line: Line) -> str:
    """Write a line and its end, and return its head when both have reached the disk.

    A line that does not fit is taken back. One that is whole stays, whatever happens then.
    """
    line = {**line, "id": secrets.token_hex(16)}  # So that no two ledgers ever have one head.
    head = head_of(line)
    text = strict_json.canonical({**line, "head": head}).encode() + b"\n"
    with _complaints(path, "written"), _folder(path) as folder:
        start = os.lseek(descriptor, 0, os.SEEK_END)
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except BaseException:
            with suppress(OSError):
                os.ftruncate(descriptor, start)
            raise
        os.fsync(descriptor)
        os.fsync(folder)
    return head


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open the folder that a file is in, at the end of all links."""
    descriptor = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
