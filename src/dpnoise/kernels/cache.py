"""The disk cache of compiled kernels, in a folder that no other user can write to.

Cached code is unpickled and run. So it is read only from a folder of this user, and other users
must not be able to change its parents. Numba's cache is not used: it checks the kernel's file, but
not the files of functions that the kernel calls, and it accepts any folder. A missing, foreign or
damaged entry is ignored, and the kernel is compiled.
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
_OTHERS: Final = 0o077  # Any access by group and others.
_OTHERS_WRITE: Final = 0o022
_DIGEST_SIZE: Final = hashlib.sha256().digest_size
_STAMP: Final = re.compile("[0-9a-f]{32}")
# A link in the folder is not followed.
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_MAX_STAMPS: Final = 16  # Versions whose machine code is kept, for users of several environments.


class KernelCache(CodeCache):
    """The machine code of one function of this package, a file for each signature."""

    def __init__(self, function: Kernel) -> None:
        code = function.__code__
        self._function = (function.__module__, function.__qualname__, code.co_firstlineno)
        self._sources = _sources_of(function)
        self._stamp = _stamp_at_import(self._sources)
        self.allocates = self._sources != _KERNELS

    def read(self, described: str) -> Kept:
        """Return the entry of a signature; raise if it is missing, foreign or damaged."""
        kept: Kept = pickle.loads(_read(self._file(described)))  # noqa: S301 - written by this user
        return kept

    def write(self, described: str, data: bytes) -> None:
        """Write the entry of a signature, unless the sources changed since the import."""
        if stamp(self._sources) == self._stamp:
            _write(self._file(described), data)

    def _file(self, described: str) -> Path:
        """Return the file of a signature on this processor; raise OSError if no folder is safe."""
        name = hashlib.sha256(repr((self._function, described)).encode()).hexdigest()[:32]
        return safe_folder(self._stamp) / name


def _sources_of(function: Kernel) -> Path | None:
    """Return the folder whose sources determine a function's machine code, or None if not ours.

    Kernels import only kernels, as test_cache.py checks. Other compiled functions may use anything
    in the package.
    """
    parents = Path(function.__code__.co_filename).parents
    if function.__closure__:
        return None
    return next((folder for folder in (_KERNELS, _PACKAGE) if folder in parents), None)


def stamp(sources: Path | None) -> str:
    """Return a hash of all sources and of the versions of the compilers.

    It is empty where the sources cannot be read, for example in a zipped or frozen program.
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
    """Return the folder for the machine code of a stamp; create it if it does not exist.

    Raise OSError if another user could write to it; the message says why.
    """
    base = _base()
    if not stamp or not base.is_absolute():
        raise FileNotFoundError("The home folder, an absolute path or the sources are missing.")
    folder = Path(os.path.realpath(base)) / "dpnoise"
    for parent in reversed(folder.parents):
        _check_parent(parent)
    for private in (folder, folder / stamp):
        _check_private(private)
    return folder / stamp


def _base() -> Path:
    """Return the user's cache folder.

    DPNOISE_CACHE_DIR comes first; an empty or relative path turns the cache off.
    """
    asked = os.environ.get("DPNOISE_CACHE_DIR")
    if asked is not None:
        return Path(asked)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", ""))
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    if home == home.parent:
        return Path()  # Services without a home folder have "/".
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return caches if caches.is_absolute() else home / ".cache"


def _check_parent(folder: Path) -> None:
    """Create a folder if it is missing; raise if other users could replace a child of it."""
    status = _create(folder).lstat()
    sticky = status.st_mode & stat.S_ISVTX  # As in /tmp: only the owner can rename a child.
    if _has_owners() and (
        status.st_uid not in {0, os.geteuid()} or (status.st_mode & _OTHERS_WRITE and not sticky)
    ):
        raise PermissionError(f"{folder} can be changed by another user.")


def _check_private(folder: Path) -> None:
    """Create a folder with mode 0700 if it is missing; raise if others can open it."""
    status = _create(folder).lstat()
    if not stat.S_ISDIR(status.st_mode) or not _is_ours(status):
        raise PermissionError(f"{folder} must be a folder of this user with mode 0700.")


def _create(folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
    return folder


def _is_ours(status: os.stat_result) -> bool:
    """Return whether only this user owns and may open a file or folder."""
    return not _has_owners() or (status.st_uid == os.geteuid() and not status.st_mode & _OTHERS)


def _has_owners() -> bool:
    """Return False on Windows, where access lists protect a user's profile."""
    return hasattr(os, "geteuid")


def _read(file: Path) -> bytes:
    """Return the data that `_write` wrote; raise if the file is foreign or damaged."""
    descriptor = os.open(file, os.O_RDONLY | _NO_LINKS)
    with os.fdopen(descriptor, "rb") as stream:
        if not _is_ours(os.fstat(descriptor)):
            raise PermissionError(f"{file} must belong to this user and be closed to others.")
        digest, data = stream.read(_DIGEST_SIZE), stream.read()
    if hashlib.sha256(data).digest() != digest:
        raise ValueError(f"{file} is damaged.")
    return data


def _write(file: Path, data: bytes) -> None:
    """Write a temporary file and rename it, so that a reader sees all of it or nothing."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(data).digest() + data)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink()
        raise
    _remove_oldest(file.parent.parent)


def _remove_oldest(folder: Path) -> None:
    """Remove the machine code of all but the latest stamps; a process that uses it recompiles."""
    stamps = [path for path in folder.iterdir() if _STAMP.fullmatch(path.name)]
    for path in sorted(stamps, key=lambda path: path.lstat().st_mtime)[:-_MAX_STAMPS]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
