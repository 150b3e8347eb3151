"""Where commands write: beside the target first, renamed when complete.

A name is followed to what it stands for before anything else: links to their end, and the name of
an open descriptor, such as /dev/stdout, to that descriptor. What is no regular file (a terminal, a
pipe, /dev/null) is written to as it is, when the content is complete; it is never renamed over.
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

_ROOM: Final = 2**20  # More bytes than a report or a plot has.
_PLOTS: Final = (".png", ".pdf", ".svg")
_MOST_LINKS: Final = 40  # As many as Linux follows.
_DESCRIPTORS: Final = re.compile(r"/dev/fd|/proc/([0-9]+)/fd")


def file_name(text: str) -> Path:
    """Return an argument as a path, or raise what argparse expects."""
    if not text:
        raise argparse.ArgumentTypeError("give the name of a file")
    if "\0" in text:
        raise argparse.ArgumentTypeError("give a name without NUL characters")
    return Path(text)


def check_targets(
    *targets: Path | None, source: Path | None = None, ledger: Path | None = None, replace: bool
) -> None:
    """Raise if files to be written have no folder, are the data or the ledger, or each other.

    Unless `replace` is true, a file that holds something is not written to either.
    """
    given = [target for target in targets if target is not None]
    for target in given:
        with _complaints_about(target):
            if ledger is not None and _same(target, ledger):
                raise ArgumentError(f"{target} is the ledger. Write to another file.")
            place = _followed(target)
            for folder in (target.parent, place.parent):
                if not folder.is_dir():
                    raise ArgumentError(f"There is no folder {folder} to write {target.name} to.")
            if source is not None and _same(target, source):
                raise ArgumentError(f"{target} is the data. Write to another file.")
            if place.is_dir():
                raise ArgumentError(f"{target} is a folder. Give a file to write to.")
            if place.is_block_device() or place.is_socket():
                raise ArgumentError(f"{target} is a disk or a socket. Give a file to write to.")
            if not replace:
                _check_nothing_is_lost(target, place)
    for one, other in combinations(given, 2):
        if _followed(one) == _followed(other):
            raise ArgumentError(f"{one} and {other} are the same file. Write to two files.")


def check_plot(target: Path | None) -> None:
    """Raise if a plot's name says no format that is drawn."""
    if target is not None and target.suffix not in _PLOTS:
        raise ArgumentError(f"--plot must end in {', '.join(_PLOTS)}, got {target}.")


@contextmanager
def written(path: Path | None, *, replace: bool, room: int = 0) -> Iterator[Path | None]:
    """Give a file to write to, and put it in the target's place when it is complete.

    It starts with room taken on the disk, for what most files have or more if asked, so that a full
    one is noticed before noise is drawn. A file that is replaced hands on its mode, and its owner
    where the system allows it.
    """
    if path is None:
        yield None
        return
    place = _followed(path)
    special, room = _is_special(place), max(room, _ROOM)
    opened = _copied(path, place, room) if special else _renamed(path, place, room, replace=replace)
    with opened as beside:
        yield beside


# What a name stands for --------------------------------------------------------------------------


def _followed(path: Path) -> Path:
    """Follow links to the last name; that of an open descriptor is one, whatever is behind it."""
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(path.parent))  # resolve() raises on links in circles.
        path = folder / path.name
        if _DESCRIPTORS.fullmatch(str(folder)) or not path.is_symlink():
            return path
        path = folder / path.readlink()
    raise ArgumentError(f"{path} is a link that leads to itself. Give a file to write to.")


def _own_descriptor(place: Path) -> int | None:
    """Return the number of the open descriptor of this process that a name stands for."""
    folder = _DESCRIPTORS.fullmatch(str(place.parent))
    if folder is None or folder[1] not in {None, str(os.getpid())} or not place.name.isdecimal():
        return None
    return int(place.name)


def _is_special(place: Path) -> bool:
    return _own_descriptor(place) is not None or (place.exists() and not place.is_file())


def _same(target: Path, source: Path) -> bool:
    with suppress(OSError):
        return target.samefile(source)
    return False


def _check_nothing_is_lost(path: Path, place: Path) -> None:
    """Raise if a regular file holds something: a release cannot be made again for nothing."""
    if not _is_special(place) and place.exists() and place.stat().st_size:
        raise ArgumentError(f"{path} exists. Name another file, or replace it by --force.")


# How it is written -------------------------------------------------------------------------------


@contextmanager
def _complaints_about(path: Path) -> Iterator[None]:
    """Name the file in what the system says about it."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror}.") from None


@contextmanager
def _renamed(path: Path, place: Path, room: int, *, replace: bool) -> Iterator[Path]:
    """Write a regular file beside its place."""
    before = place.stat() if place.exists() else None
    if before is not None and not os.access(place, os.W_OK):
        raise ArgumentError(f"{path} cannot be written: it is read-only.")
    beside = place.with_name(f".dpnoise-{secrets.token_hex(4)}{path.suffix}")
    try:
        with _complaints_about(path):
            # Nobody may read it who may not read what it replaces.
            beside.touch(mode=0o666 if before is None else 0o600, exist_ok=False)
            beside.write_bytes(bytes(room))
        yield beside
        if not replace:
            _check_nothing_is_lost(path, place)
        with _complaints_about(path):
            if before is not None and hasattr(os, "chown"):
                with suppress(PermissionError):  # Not every system lets a file be given away.
                    os.chown(beside, before.st_uid, before.st_gid)
            if before is not None:
                beside.chmod(stat.S_IMODE(before.st_mode))
            beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _copied(path: Path, place: Path, room: int) -> Iterator[Path]:
    """Write a file elsewhere, and copy it into what was opened before."""
    with ExitStack() as stack:
        with _complaints_about(path):
            # A device or a pipe is opened. Of an open descriptor a copy is written to, because to
            # open a file again would start at its beginning.
            if (descriptor := _own_descriptor(place)) is None:
                sink = os.open(place, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
            else:
                os.write(descriptor, b"")  # Raises if it is closed, or open for reading only.
                sink = os.dup(descriptor)
            stack.callback(os.close, sink)
            folder = stack.enter_context(TemporaryDirectory(prefix="dpnoise-"))
            beside = Path(folder, f"content{path.suffix}")
            beside.write_bytes(bytes(room))
        yield beside
        with suppress(OSError):
            sys.stdout.flush()  # It may be the same descriptor.
        with _complaints_about(path), beside.open("rb") as content:
            while part := content.read(_ROOM):
                left = memoryview(part)
                while left:
                    left = left[os.write(sink, left) :]
