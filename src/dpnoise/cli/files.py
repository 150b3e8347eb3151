"""Where commands write: beside the target first, renamed when complete."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpnoise.errors import ArgumentError

_ROOM = 2**20  # More bytes than a report or a plot has.
_PLOTS = (".png", ".pdf", ".svg")


def check_target(target: Path | None, source: Path | None) -> None:
    """Raise if a file to be written has no folder, or is the data itself."""
    if target is None:
        return
    if not target.parent.is_dir():
        raise ArgumentError(f"There is no folder {target.parent} to write {target.name} to.")
    if source is not None and target.exists() and target.samefile(source):
        raise ArgumentError(f"{target} is the data. Write to another file.")


def check_plot(target: Path | None) -> None:
    """Raise if a plot's name says no format that is drawn."""
    if target is not None and target.suffix not in _PLOTS:
        raise ArgumentError(f"Expected --plot {target} to end in {', '.join(_PLOTS)}.")


@contextmanager
def written(path: Path | None) -> Iterator[Path | None]:
    """Give a file beside the target to write to, and rename it when it is complete.

    It starts with room taken on the disk, so that a full one is noticed before noise is drawn.
    """
    if path is None:
        yield None
        return
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder. Give a file to write to.")
    beside = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        try:
            beside.write_bytes(bytes(_ROOM))
        except OSError as error:
            raise type(error)(error.errno, f"{path} cannot be written: {error.strerror}") from None
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def written_folder(path: Path, *, force: bool, mark: str) -> Iterator[Path]:
    """Give a folder beside the target to write to, and rename it when it is complete.

    An existing folder is replaced by force only, and only if it is empty or has the file `mark`:
    then it is an earlier run's.
    """
    path = path.resolve()
    check_target(path, None)
    if path.exists():
        if not force:
            raise ArgumentError(f"{path} exists. Name another folder, or replace it by --force.")
        if not path.is_dir() or (any(path.iterdir()) and not (path / mark).is_file()):
            raise ArgumentError(f"{path} was not written by this command. Name another folder.")
    beside, before = (path.with_name(f".{path.name}-{secrets.token_hex(4)}") for _ in range(2))
    try:
        beside.mkdir()
        yield beside
        if path.exists():
            path.rename(before)
        beside.rename(path)
    finally:
        if before.exists() and not path.exists():
            before.rename(path)
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
