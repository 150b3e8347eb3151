"""Writing files: commands write a temporary file and rename it when it is complete.

Names are resolved first: links to their end, and the name of an open descriptor, such as
/dev/stdout, to that descriptor. A terminal, a pipe or /dev/null is not a regular file. It gets the
content when it is complete, and is never replaced.
"""

import argparse
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from dpnoise.core.errors import ArgumentError

_RESERVED: Final = 2**20  # Bytes reserved on the disk; more than a report or a plot has.
_PLOTS: Final = (".png", ".pdf", ".svg")
_MOST_LINKS: Final = 40  # The number of links that Linux follows.
_DESCRIPTORS: Final = re.compile(r"/dev/fd|/proc/([0-9]+)/fd")


def file_name(text: str) -> Path:
    """Return an argument as a path; raise ArgumentTypeError for argparse if it is invalid."""
    if not text:
        raise argparse.ArgumentTypeError("give the name of a file")
    if "\0" in text:
        raise argparse.ArgumentTypeError("give a name without NUL characters")
    return Path(text)


def check_targets(
    *targets: Path | None, source: Path | None = None, ledger: Path | None = None, replace: bool
) -> None:
    """Raise if a file to write has no folder, is the data or the ledger, or is named twice.

    Unless `replace` is true, a file that is not empty is an error, too.
    """
    paths = [target for target in targets if target is not None]
    for target in paths:
        with _system_errors(target):
            if ledger is not None and _is_same_file(target, ledger):
                raise ArgumentError(f"{target} is the ledger. Write to another file.")
            resolved = _resolve(target)
            for folder in (target.parent, resolved.parent):
                if not folder.is_dir():
                    raise ArgumentError(f"There is no folder {folder} to write {target.name} to.")
            if source is not None and _is_same_file(target, source):
                raise ArgumentError(f"{target} is the data. Write to another file.")
            if resolved.is_dir():
                raise ArgumentError(f"{target} is a folder. Give a file to write to.")
            if resolved.is_block_device() or resolved.is_socket():
                raise ArgumentError(f"{target} is a disk or a socket. Give a file to write to.")
            if not replace:
                _check_nothing_is_lost(target, resolved)
    for target, other in combinations(paths, 2):
        if _resolve(target) == _resolve(other):
            raise ArgumentError(f"{target} and {other} are the same file. Write to two files.")


def check_plot(target: Path | None) -> None:
    """Raise unless the name of a plot ends in a supported format."""
    if target is not None and target.suffix not in _PLOTS:
        raise ArgumentError(f"--plot must end in {', '.join(_PLOTS)}, got {target}.")


@contextmanager
def replace_when_complete(
    path: Path | None, *, replace: bool, size: int = 0
) -> Iterator[Path | None]:
    """Give a temporary file to write to, and move it to the target when it is complete.

    It starts with at least `size` bytes, so that a full disk is noticed before noise is drawn. The
    new file gets the mode of a file that it replaces, and its owner if the system allows it.
    """
    if path is None:
        yield None
        return
    resolved, size = _resolve(path), max(size, _RESERVED)
    if _is_special(resolved):
        target = _copy_content(path, resolved, size)
    else:
        target = _rename_file(path, resolved, size, replace=replace)
    with target as temporary:
        yield temporary


def _resolve(path: Path) -> Path:
    """Follow links to the last name, or to the name of an open descriptor."""
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(path.parent))  # resolve() raises on circular links.
        path = folder / path.name
        if _DESCRIPTORS.fullmatch(str(folder)) or not path.is_symlink():
            return path
        path = folder / path.readlink()
    raise ArgumentError(f"{path} is a link that leads to itself. Give a file to write to.")


def _descriptor_of(path: Path) -> int | None:
    """Return the number of the open descriptor of this process that a path names, or None."""
    folder = _DESCRIPTORS.fullmatch(str(path.parent))
    if folder is None or folder[1] not in {None, str(os.getpid())} or not path.name.isdecimal():
        return None
    return int(path.name)


def _is_special(path: Path) -> bool:
    return _descriptor_of(path) is not None or (path.exists() and not path.is_file())


def _is_same_file(target: Path, source: Path) -> bool:
    with suppress(OSError):
        return target.samefile(source)
    return False


def _check_nothing_is_lost(path: Path, resolved: Path) -> None:
    """Raise if a regular file is not empty, because repeating a release costs budget."""
    if not _is_special(resolved) and resolved.exists() and resolved.stat().st_size:
        raise ArgumentError(f"{path} exists. Name another file, or replace it by --force.")


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into ArgumentError with the name of the file."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror}.") from None


@contextmanager
def _rename_file(path: Path, resolved: Path, size: int, *, replace: bool) -> Iterator[Path]:
    """Give a temporary file in the folder of a regular file, and rename it afterwards."""
    before = resolved.stat() if resolved.exists() else None
    if before is not None and not os.access(resolved, os.W_OK):
        raise ArgumentError(f"{path} cannot be written: it is read-only.")
    temporary = resolved.with_name(f".dpnoise-{secrets.token_hex(4)}{path.suffix}")
    try:
        with _system_errors(path):
            # Only readers of the replaced file may read the new one.
            temporary.touch(mode=0o666 if before is None else 0o600, exist_ok=False)
            temporary.write_bytes(bytes(size))
        yield temporary
        if not replace:
            _check_nothing_is_lost(path, resolved)
        with _system_errors(path):
            if before is not None and hasattr(os, "chown"):
                with suppress(PermissionError):  # Not every system lets users change the owner.
                    os.chown(temporary, before.st_uid, before.st_gid)
            if before is not None:
                temporary.chmod(stat.S_IMODE(before.st_mode))
            temporary.replace(resolved)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _copy_content(path: Path, resolved: Path, size: int) -> Iterator[Path]:
    """Give a temporary file, and copy its content to a device, pipe or descriptor afterwards."""
    with ExitStack() as stack:
        with _system_errors(path):
            # A device or a pipe is opened. An open descriptor is duplicated, because opening its
            # file again would start at the beginning.
            if (descriptor := _descriptor_of(resolved)) is None:
                sink = os.open(resolved, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
            else:
                os.write(descriptor, b"")  # Raises if it is closed or read-only.
                sink = os.dup(descriptor)
            stack.callback(os.close, sink)
            folder = stack.enter_context(TemporaryDirectory(prefix="dpnoise-"))
            temporary = Path(folder, f"content{path.suffix}")
            temporary.write_bytes(bytes(size))
        yield temporary
        with suppress(OSError):
            sys.stdout.flush()  # The target may be the same descriptor.
        with _system_errors(path), temporary.open("rb") as content:
            while part := content.read(_RESERVED):
                remaining = memoryview(part)
                while remaining:
                    remaining = remaining[os.write(sink, remaining) :]
