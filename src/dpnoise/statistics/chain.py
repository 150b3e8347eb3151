r"""An append-only file of lines, each linked to the previous line by a hash.

A line is a JSON object in canonical form. It has a random id, the head of the previous line, and
its own head, the SHA-256 of the rest. A change in the middle therefore changes every later head.
The file is never replaced, so a lock on it works for all processes: one at a time reads, decides
and appends. The writer continues only when the line and its folder are synced to the disk.

A line without a line end was cut short by a crash, before the writer continued. It is not read.
Nothing can be appended after it until `repair` removes it.
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

_CHAIN_FIELDS: Final = {"before", "head", "id"}  # The fields of a line that link the chain.
_TRIES: Final = 100  # Attempts to lock a file while another program keeps replacing it.
# Without O_NONBLOCK, opening a named pipe would block.
_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class Chain:
    """The lines without the fields of the chain, the heads, and the bytes of an incomplete line."""

    lines: tuple[Line, ...]
    heads: tuple[str, ...]
    incomplete: bytes = b""


def head_of(line: Line) -> str:
    """Return the hash of a line, which depends on all lines before it."""
    return hashlib.sha256(strict_json.canonical_line(line).encode()).hexdigest()


def create(path: Path, first: Line) -> str:
    """Create a file with one line, and return the head of the line."""
    with _raise_budget_errors(path, "made"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
    try:
        with _lock(descriptor, path):
            return _append(descriptor, path, {**first, "before": ""})
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def read(path: Path) -> Chain:
    """Return all lines; raise BudgetError unless every line is valid."""
    with _open_locked(path, os.O_RDONLY) as descriptor:
        return _read(descriptor, path)


@contextmanager
def open_to_append(path: Path) -> Iterator[tuple[Chain, Callable[[Line], str]]]:
    """Lock a file. Yield its chain, and a function that appends a line and returns its head."""
    with _open_locked(path, os.O_RDWR) as descriptor:
        chain = _read(descriptor, path)
        if chain.incomplete:
            raise BudgetError(
                f"{path} ends in an incomplete line, because of a crash or an incomplete copy. If "
                "only that line is incomplete, run: dpnoise budget mend."
            )
        heads = list(chain.heads)

        def add(line: Line) -> str:
            heads.append(_append(descriptor, path, {**line, "before": heads[-1]}))
            return heads[-1]

        yield chain, add


def repair(path: Path, note: Line) -> int:
    """Remove an incomplete last line, append `note`, and return the number of removed bytes."""
    with _open_locked(path, os.O_RDWR) as descriptor:
        chain = _read(descriptor, path)
        if chain.incomplete:
            digest = hashlib.sha256(chain.incomplete).hexdigest()
            removal = {"bytes": len(chain.incomplete), "sha256": digest}
            with _raise_budget_errors(path, "written"):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(chain.incomplete))
            _append(descriptor, path, {**note, "torn": removal, "before": chain.heads[-1]})
        return len(chain.incomplete)


@contextmanager
def _raise_budget_errors(path: Path, action: str) -> Iterator[None]:
    """Turn errors of the operating system into BudgetError: "PATH cannot be {action}"."""
    try:
        yield
    except FileExistsError:
        raise BudgetError(f"{path} exists. Name another file for a new ledger.") from None
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise BudgetError(f"There is no folder {path.parent}.") from None
        raise BudgetError(
            f"There is no ledger {path}: dpnoise budget create makes one, with a person column if "
            "people have several rows."
        ) from None
    except OSError as error:
        raise BudgetError(f"{path} cannot be {action}: {error.strerror}.") from None


@contextmanager
def _open_locked(path: Path, mode: int) -> Iterator[int]:
    """Open and lock a file, and make sure that the path still names it once it is locked."""
    for _ in range(_TRIES):
        with _raise_budget_errors(path, "opened"):
            descriptor = os.open(path, mode | _FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BudgetError(f"{path} is not a regular file, so it is not a ledger.")
            with _lock(descriptor, path, shared=mode == os.O_RDONLY):
                with _raise_budget_errors(path, "opened"):
                    is_current = os.path.samestat(os.fstat(descriptor), path.stat())
                if is_current:
                    yield descriptor
                    return
        finally:
            os.close(descriptor)
    raise BudgetError(f"{path} cannot be locked: another program keeps replacing it.")


@contextmanager
def _lock(descriptor: int, path: Path, *, shared: bool = False) -> Iterator[None]:
    try:
        locks = import_module("fcntl")
    except ImportError:
        raise BudgetError("A ledger needs the file locks of Linux, macOS or BSD.") from None
    with _raise_budget_errors(path, "locked"):
        locks.flock(descriptor, locks.LOCK_SH if shared else locks.LOCK_EX)
    try:
        yield
    finally:
        locks.flock(descriptor, locks.LOCK_UN)  # A fork may have kept a copy of the descriptor.


def _read(descriptor: int, path: Path) -> Chain:
    with _raise_budget_errors(path, "read"):
        os.lseek(descriptor, 0, os.SEEK_SET)
        parts = []
        while part := os.read(descriptor, 2**20):
            parts.append(part)
    return parse(b"".join(parts), path)


def parse(content: bytes, path: Path) -> Chain:
    """Return the lines of a file's content; raise BudgetError unless every line is valid."""
    *complete, incomplete = content.split(b"\n")
    lines: list[Line] = []
    heads = [""]
    for number, text in enumerate(complete, 1):
        line = _parse_line(text, heads[-1])
        if line is None:
            raise BudgetError(
                f"{path} is damaged or was edited: line {number} is not the one that was written. "
                "Restore a backup, and record in it everything that was released after the backup."
            )
        heads.append(line["head"])
        lines.append({name: part for name, part in line.items() if name not in _CHAIN_FIELDS})
    if not lines:
        raise BudgetError(f"{path} is not a ledger: it has no complete line.")
    return Chain(tuple(lines), tuple(heads[1:]), incomplete)


def _parse_line(text: bytes, before: str) -> Line | None:
    """Return a line, or None unless it is canonical byte for byte and has the right head."""
    try:
        line = json.loads(text)
        if not isinstance(line, dict):
            return None
        content = {name: part for name, part in line.items() if name != "head"}
        canonical = strict_json.canonical_line({**content, "head": head_of(content)})
    except (ValueError, RecursionError):
        return None
    return line if canonical.encode() == text and line.get("before") == before else None


def _append(descriptor: int, path: Path, line: Line) -> str:
    """Write a line with its line end, sync it to the disk, and return its head.

    A line that could not be written completely is removed. A complete line stays, even if a later
    step fails.
    """
    line = {**line, "id": secrets.token_hex(16)}  # Two ledgers never have the same head.
    head = head_of(line)
    text = strict_json.canonical_line({**line, "head": head}).encode() + b"\n"
    with _raise_budget_errors(path, "written"), _folder(path) as folder:
        start = os.lseek(descriptor, 0, os.SEEK_END)
        remaining = memoryview(text)
        try:
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
        except BaseException:
            with suppress(OSError):
                os.ftruncate(descriptor, start)
            raise
        os.fsync(descriptor)
        os.fsync(folder)
    return head


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open the folder of a file, with all links resolved."""
    descriptor = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
