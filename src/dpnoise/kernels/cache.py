"""Where compiled kernels are kept between processes: a folder that nobody else can write to.

What is kept is unpickled and run, so it is read only from a folder of this user, whose parents no
other user can change either. Numba's own cache is not used: it looks at the file of a kernel, not
at the files that it calls, and it takes whatever folder it finds. What is missing, foreign or
damaged here is as good as absent: the kernel is compiled, and nothing is said.
"""

import hashlib
import os
import pickle
import re
import stat
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

import llvmlite
import numba
import numpy as np

from dpnoise.kernels.numba_internals import CodeCache, Kept, Kernel

_KERNELS: Final = Path(__file__).parent
_PACKAGE: Final = _KERNELS.parent
_VERSIONS: Final = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
_DIGEST_SIZE: Final = hashlib.sha256().digest_size
_STAMP: Final = re.compile("[0-9a-f]{32}")
# A link in the folder is not followed.
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_KEPT: Final = 16  # Stamps whose machine code is kept: a user may have several environments.


class KernelCache(CodeCache):
    """The machine code of one function of this package, in one file for each signature."""

    def __init__(self, function: Kernel) -> None:
        code = function.__code__
        self._function = (function.__module__, function.__qualname__, code.co_firstlineno)
        self._sources = _sources_of(function)
        self._stamp = _stamp_at_import(self._sources)

    def read(self, described: str) -> Kept:
        """Return what is kept for a signature; raise if it is missing, foreign or damaged."""
        kept: Kept = pickle.loads(_read(self._file(described)))  # noqa: S301 - written by this user
        return kept

    def write(self, described: str, data: bytes) -> None:
        """Keep it, unless the sources are no longer those of what runs."""
        if stamp(self._sources) == self._stamp:
            _write(self._file(described), data)

    def _file(self, described: str) -> Path:
        """Return the file for a signature on this processor; raise OSError if none is safe."""
        name = hashlib.sha256(repr((self._function, described)).encode()).hexdigest()[:32]
        return safe_folder(self._stamp) / name


def _sources_of(function: Kernel) -> Path | None:
    """Return the folder whose sources decide a function's machine code; None if it is not ours.

    Kernels import nothing but kernels, which test_cache.py holds. Other compiled functions
    may use whatever the package has.
    """
    parents = Path(function.__code__.co_filename).parents
    if function.__closure__:
        return None
    return next((folder for folder in (_KERNELS, _PACKAGE) if folder in parents), None)


def stamp(sources: Path | None) -> str:
    """Return a name for the content of all sources and for the versions of what compiles them.

    It is empty where there are no sources to read, as in a zipped or frozen program.
    """
    if sources is None:
        return ""
    files = sorted(sources.rglob("*.py"))
    whole = hashlib.sha256(repr(_VERSIONS).encode())
    try:
        for file in files:
            whole.update(repr((file.relative_to(sources).parts, file.read_bytes())).encode())
    except OSError:
        return ""
    return whole.hexdigest()[:32] if files else ""


_stamp_at_import = lru_cache(maxsize=None)(stamp)


def safe_folder(stamp: str) -> Path:
    """Return the folder for the machine code of one stamp, made if need be.

    Raises
    ------
    OSError
        Where there is none that only this user can write to; it says why.
    """
    base = _base()
    if not stamp or not base.is_absolute():
        raise FileNotFoundError("There is no home, no absolute path, or no source to stamp.")
    folder = Path(os.path.realpath(base)) / "dpnoise"
    for parent in reversed(folder.parents):
        _check_parent(parent)
    for own in (folder, folder / stamp):
        _check_own(own)
    return folder / stamp


def _base() -> Path:
    """Return the folder that the user or the system has set aside for caches.

    DPNOISE_CACHE_DIR comes first; an empty one turns the cache off, as every relative path does.
    """
    asked = os.environ.get("DPNOISE_CACHE_DIR")
    if asked is not None:
        return Path(asked)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", ""))
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    if home == home.parent:
        return Path()  # "/" is what a service without a home is given.
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return caches if caches.is_absolute() else home / ".cache"


def _check_parent(folder: Path) -> None:
    """Make a folder if need be; raise if others can put something else in a child's place."""
    status = _made(folder).lstat()
    sticky = status.st_mode & stat.S_ISVTX  # As in /tmp: a child is its owner's to rename.
    if _has_owners() and (
        status.st_uid not in {0, os.geteuid()} or (status.st_mode & _OTHERS_WRITE and not sticky)
    ):
        raise PermissionError(f"{folder} can be changed by another user.")


def _check_own(folder: Path) -> None:
    """Make a folder for this user alone if need be; raise if it is anything else."""
    status = _made(folder).lstat()
    if not stat.S_ISDIR(status.st_mode) or not _is_ours(status):
        raise PermissionError(f"{folder} is no folder of this user alone, mode 0700.")


def _made(folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
    return folder


def _is_ours(status: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user, and nobody else may open it."""
    return not _has_owners() or (status.st_uid == os.geteuid() and not status.st_mode & _OTHERS)


def _has_owners() -> bool:
    """Return False on Windows, where a user's profile is private by its access list."""
    return hasattr(os, "geteuid")


def _read(file: Path) -> bytes:
    """Return what `_write` wrote, whole; raise if it is not ours or damaged."""
    descriptor = os.open(file, os.O_RDONLY | _NO_LINKS)
    with os.fdopen(descriptor, "rb") as stream:
        if not _is_ours(os.fstat(descriptor)):
            raise PermissionError(f"{file} is no file of this user alone.")
        digest, data = stream.read(_DIGEST_SIZE), stream.read()
    if hashlib.sha256(data).digest() != digest:
        raise ValueError(f"{file} is damaged.")
    return data


def _write(file: Path, data: bytes) -> None:
    """Write a file beside its place and rename it: a reader sees all of it or nothing."""
    descriptor, beside = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(data).digest() + data)
        Path(beside).replace(file)
    except BaseException:
        Path(beside).unlink()
        raise
    _forget_the_oldest(file.parent.parent)


def _forget_the_oldest(folder: Path) -> None:
    """Remove the machine code of all stamps but the latest; who still uses one compiles again."""
    stamps = [own for own in folder.iterdir() if _STAMP.fullmatch(own.name)]
    for own in sorted(stamps, key=lambda own: own.lstat().st_mtime)[:-_KEPT]:
        for file in own.iterdir():
            file.unlink()
        own.rmdir()
