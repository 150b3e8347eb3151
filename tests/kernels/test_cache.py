"""The compile cache is private, keyed by all that determines the machine code, and optional."""

import ast
import errno
import hashlib
import os
import pickle
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pytest
from support.choices import sample_cases

from dpnoise.auditing.attacks import pairs
from dpnoise.kernels import (
    cache,
    certified,
    compile_kernel,
    elementary,
    first_stage,
    numba_internals,
)
from dpnoise.kernels.cache import KernelCache
from dpnoise.kernels.numba_internals import describe

SOURCE = Path(__file__).parents[2] / "src" / "dpnoise"
STAMP = cache.stamp(SOURCE / "kernels")
OTHER_USER = 54321

# A separate process -------------------------------------------------------------------------------

# Kernels of variates.py and first_stage.py, which call elementary.py and certified.py.
TWO_KERNELS = """
import numpy as np
from dpnoise.core.kernel_table import first_stage, variates
words, (uniform, noise, errors) = np.zeros(1, np.uint64), np.ones((3, 1))
variates.uniforms(words, 1, 53, 1.0, uniform, uniform)
first_stage.exponential(words, 64, noise, errors)
print(uniform[0], noise[0])
"""
NO_HOME = """
import os, pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
from dpnoise.kernels import elementary
print(elementary.power_of_two(3))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, like an installed one.

    It has bytecode of all modules except the kernels, which some tests change.
    """

    def ignore_bytecode(folder: str, names: list[str]) -> list[str]:
        return ["__pycache__"] if Path(folder).name == "kernels" and "__pycache__" in names else []

    return Path(
        shutil.copytree(SOURCE, tmp_path / "site" / "dpnoise", ignore=ignore_bytecode)
    ).parent


def run(code: str, package: Path, folder: Path, **environment: str) -> str:
    """Run code in `folder` with a copy of the package, and return its output."""
    process = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        capture_output=True,
        check=False,
        text=True,
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(package), **environment},
    )
    assert not process.stderr
    return process.stdout


@pytest.mark.long
def test_an_upgrade_of_a_file_that_a_kernel_calls_runs_the_new_code(
    package: Path, tmp_path: Path
) -> None:
    before = run(TWO_KERNELS, package, tmp_path, HOME=str(tmp_path))
    kernels = package / "dpnoise" / "kernels"
    for name, changed in (
        ("elementary", "def uniform(word, precision): return 7.0"),
        ("certified", "def exponential(word, bits): return 8.0, 0.0"),
    ):
        with (kernels / f"{name}.py").open("a") as file:
            file.write(f"\n\n@compile_kernel\n{changed}\n")
    after = run(TWO_KERNELS, package, tmp_path, HOME=str(tmp_path))
    assert before.split()[0] == "0.0"
    assert after.split() == ["7.0", "8.0"]
    assert not list(package.rglob("*.nb?")), "nothing is stored next to the source"


@pytest.mark.long
def test_without_a_home_a_read_only_install_writes_nothing_anywhere(
    package: Path, tmp_path: Path
) -> None:
    """A file in the place of a folder keeps even root from making one."""
    (package / "dpnoise" / "kernels" / "__pycache__").touch()
    for name in sample_cases(["writable", "not writable"], 1):
        folder = tmp_path / name
        folder.mkdir()
        if name == "not writable":
            (folder / "~").touch()
        before = list(folder.iterdir())
        assert run(NO_HOME, package, folder) == "8.0\n"
        assert list(folder.iterdir()) == before


# This process -------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new base folder for the cache."""
    monkeypatch.setenv("DPNOISE_CACHE_DIR", str(tmp_path / "base"))
    (tmp_path / "base").mkdir(mode=0o700)
    return tmp_path / "base"


def draw() -> int:
    """Use a kernel as in a new process, and return the number of cache hits."""
    kernel: Any = compile_kernel(elementary.power_of_two.py_func)  # type: ignore[attr-defined]
    assert kernel(3) == 8.0
    return sum(kernel.stats.cache_hits.values())


def cached_file(base: Path) -> Path:
    """Return the only file in the cache."""
    (file,) = base.glob("dpnoise/*/*")
    return file


def test_compiled_code_is_found_by_the_next_process_and_is_private_to_the_user(
    base: Path,
) -> None:
    assert draw() == 0
    assert draw() == 1
    for path in (cached_file(base), *list(cached_file(base).parents)[:2]):
        assert path.stat().st_mode & 0o077 == 0
        assert path.stat().st_uid == os.geteuid()


def with_checksum(data: bytes) -> bytes:
    """Return the content of a file of the cache: a checksum and the data."""
    return hashlib.sha256(data).digest() + data


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda file: file[:20],
        lambda file: file[:-1],
        lambda file: file[:-1] + bytes([file[-1] ^ 1]),
        lambda _: b"garbage" * 1000,
        lambda _: with_checksum(b"no pickle"),
        lambda _: with_checksum(pickle.dumps("no tuple")),
        lambda file: with_checksum(pickle.dumps((pickle.loads(file[32:])[0], "no code"))),
        lambda file: with_checksum(pickle.dumps(((numba.float64,), pickle.loads(file[32:])[1]))),
    ],
    ids=["empty", "no data", "truncated", "one bit", "garbage", "text", "tuple", "code", "type"],
)
def test_a_damaged_file_is_compiled_again_and_replaced(
    base: Path, damage: Callable[[bytes], bytes]
) -> None:
    draw()
    cached_file(base).write_bytes(damage(cached_file(base).read_bytes()))
    assert draw() == 0
    assert draw() == 1


class PlantedPickle:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.mkdir, (self.marker,)


def give_away(path: Path) -> None:
    """Give a path to another user; without that permission, make it writable by all."""
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, -1)
    else:
        path.chmod(0o777)


@pytest.mark.sample(2)
@pytest.mark.parametrize("foreign", ["base", "dpnoise", "stamp", "file"])
def test_a_file_of_another_user_is_not_unpickled(base: Path, tmp_path: Path, foreign: str) -> None:
    draw()
    file = cached_file(base)
    file.write_bytes(with_checksum(pickle.dumps(PlantedPickle(tmp_path / "marker"))))
    paths = dict(zip(("file", "stamp", "dpnoise", "base"), (file, *file.parents), strict=False))
    give_away(paths[foreign])
    assert draw() == 0
    assert not (tmp_path / "marker").exists()


def test_the_same_in_one_s_own_folder_is_unpickled(base: Path, tmp_path: Path) -> None:
    """Shows that the test above can fail."""
    draw()
    cached_file(base).write_bytes(with_checksum(pickle.dumps(PlantedPickle(tmp_path / "marker"))))
    draw()
    assert (tmp_path / "marker").exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize("mode", [0o770, 0o705])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_file_or_folder_that_others_may_open_is_not_read(
    base: Path, mode: int, depth: int
) -> None:
    draw()
    (cached_file(base), *cached_file(base).parents)[depth].chmod(mode)
    assert draw() == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("mode", "safe"), [(0o700, True), (0o755, True), (0o775, False), (0o757, False), (0o1777, True)]
)
def test_parents_may_be_read_by_others_and_not_written_but_with_the_sticky_bit(
    base: Path, mode: int, *, safe: bool
) -> None:
    base.chmod(mode)
    draw()
    assert draw() == safe
    assert (base / "dpnoise").exists() == safe


def test_links_into_other_places_are_not_followed(base: Path, tmp_path: Path) -> None:
    draw()
    file = cached_file(base)
    shutil.copy2(file, tmp_path / "elsewhere")
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert draw() == 0
    assert not cached_file(base).is_symlink(), "it was replaced"
    (base / "dpnoise").rename(tmp_path / "moved")
    (base / "dpnoise").symlink_to(tmp_path / "moved")
    assert draw() == 0


def test_a_user_other_than_the_owner_of_the_home_keeps_nothing_there(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under sudo, which keeps HOME."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    assert draw() == draw() == 0
    assert not list(base.glob("dpnoise/*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a home to another user")
def test_root_keeps_nothing_in_the_home_of_another(base: Path) -> None:
    os.chown(base, OTHER_USER, -1)
    assert draw() == draw() == 0
    assert not list(base.iterdir())


def raise_disk_full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [(tempfile, "mkstemp"), (Path, "replace"), (Path, "mkdir")])
def test_a_full_disk_costs_a_compilation_and_leaves_nothing(
    base: Path, function: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(*function, raise_disk_full)
        assert draw() == draw() == 0
    assert not list(base.glob("dpnoise/*/*"))


def test_a_file_is_whole_while_others_write_it(base: Path) -> None:
    texts = [bytes([i]) * 10_000 for i in range(8)]
    file = cache.safe_folder(STAMP) / "file"
    cache._write(file, texts[0])

    def write_and_read(text: bytes) -> bool:
        cache._write(file, text)
        return cache._read(file) in texts

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write_and_read, texts * 8))
    assert cached_file(base) == file


def test_the_oldest_stamps_are_forgotten_and_nothing_else_is_removed(base: Path) -> None:
    draw()
    foreign = base / "dpnoise" / "notes"
    foreign.mkdir()
    for i in range(20):
        folder = base / "dpnoise" / f"{i:032x}"
        folder.mkdir()
        (folder / "file").touch()
        os.utime(folder, (i, i))
    other: Any = compile_kernel(elementary.as_unsigned.py_func)  # type: ignore[attr-defined]
    other(3)
    names = {path.name for path in (base / "dpnoise").iterdir()}
    assert names == {"notes", STAMP, *(f"{i:032x}" for i in range(5, 20))}


# Its place ----------------------------------------------------------------------------------------


def test_the_place_is_that_of_the_user_s_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPNOISE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert cache.safe_folder(STAMP) == tmp_path / ".cache" / "dpnoise" / STAMP
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.safe_folder(STAMP) == tmp_path / ".cache" / "dpnoise" / STAMP
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.safe_folder(STAMP) == tmp_path / "xdg" / "dpnoise" / STAMP
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.safe_folder(STAMP) == tmp_path / "Library" / "Caches" / "dpnoise" / STAMP


@pytest.mark.sample(2)
@pytest.mark.parametrize("home", ["", "/", "relative", None])
def test_without_a_home_there_is_no_place(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_unknown(_: int) -> None:
        raise KeyError

    for name in ("DPNOISE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", raise_unknown)
    monkeypatch.chdir(tmp_path)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    with pytest.raises(OSError, match="The home folder"):
        cache.safe_folder(STAMP)
    assert draw() == draw() == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize("path", ["", "relative", "~"])
def test_the_cache_is_turned_off_by_an_empty_or_a_relative_path(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPNOISE_CACHE_DIR", path)
    assert draw() == draw() == 0
    assert not list(tmp_path.iterdir())


# Its keys -----------------------------------------------------------------------------------------


def test_the_stamp_changes_with_the_content_of_every_source(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(SOURCE / "kernels", kernels, ignore=shutil.ignore_patterns("__pycache__"))
    stamps = {cache.stamp(kernels)}
    assert stamps == {STAMP}, "neither the place nor the time of the files matters"
    files = sorted(kernels.glob("*.py"))
    for file in files:
        text = file.read_text()
        file.write_text(text.replace("a", "b"))
        stamps.add(cache.stamp(kernels))
        file.write_text(text)
    assert len(stamps) == 1 + len(files)
    assert cache.stamp(kernels) == STAMP
    assert cache.stamp(tmp_path / "missing") == cache.stamp(None) == ""


def test_the_stamp_changes_with_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = {STAMP}
    for i in range(len(cache._VERSIONS)):
        changed = tuple(f"{v}{'+' * (i == j)}" for j, v in enumerate(cache._VERSIONS))
        monkeypatch.setattr(cache, "_VERSIONS", changed)
        stamps.add(cache.stamp(SOURCE / "kernels"))
        monkeypatch.undo()
    assert len(stamps) == 1 + len(cache._VERSIONS) == 5


class Processor:
    """The description of a processor by Numba's code generator."""

    def __init__(self, *words: str) -> None:
        self.magic_tuple = lambda: words


def test_a_file_is_for_one_function_signature_processor_and_setting(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert base.exists()
    sinpi, log = (
        cache.KernelCache(kernel.py_func)  # type: ignore[attr-defined]
        for kernel in (elementary.sinpi, elementary.log)
    )
    processor = Processor("aarch64", "neoverse-n1", "+neon")
    files = [
        sinpi._file(describe((numba.float64,), processor)),
        log._file(describe((numba.float64,), processor)),
        sinpi._file(describe((numba.float32,), processor)),
        sinpi._file(describe((numba.float64,), Processor("aarch64", "neoverse-n1", "+neon,+sve"))),
        sinpi._file(describe((numba.float64,), Processor("aarch64", "cortex-a72", "+neon"))),
    ]
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    files.append(sinpi._file(describe((numba.float64,), processor)))
    assert len(set(files)) == len(files)


def test_kernels_import_nothing_of_the_package_but_kernels() -> None:
    """Their stamp covers only the sources of their folder."""
    for path in (SOURCE / "kernels").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("dpnoise") or name.startswith("dpnoise.kernels"), path


def test_a_kernel_is_stamped_by_the_kernels_and_any_other_function_by_the_package() -> None:
    def with_a_closure() -> object:
        return base

    def outside_package() -> None:
        """Not a function of the package."""

    kernel: Any = certified.exponential
    attack: Any = pairs.log_32
    assert cache._sources_of(kernel.py_func) == SOURCE / "kernels"
    assert cache._sources_of(attack.py_func) == SOURCE
    assert cache._sources_of(outside_package) is None
    assert cache._sources_of(with_a_closure) is None


def test_code_imported_before_an_upgrade_is_not_cached_as_the_upgrade(
    base: Path, tmp_path: Path
) -> None:
    shutil.copytree(SOURCE / "kernels", tmp_path / "kernels")
    kernel: Any = compile_kernel(elementary.power_of_two.py_func)  # type: ignore[attr-defined]
    kernel._cache._sources = tmp_path / "kernels"
    (tmp_path / "kernels" / "elementary.py").write_text("")
    kernel(3)
    assert not list(base.glob("dpnoise/*/*"))


# Other users --------------------------------------------------------------------------------------


def test_settings_of_other_users_of_numba_are_neither_changed_nor_obeyed(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "Unknown", raising=False)
    environment = dict(os.environ)
    assert (draw(), draw()) == (0, 1)
    assert str(tmp_path / "numba") == numba.config.CACHE_DIR
    assert dict(os.environ) == environment
    assert [path.name for path in tmp_path.iterdir()] == [base.name]


def test_a_kernel_that_allocates_does_not_compile() -> None:
    """`dpnoise.kernels` promises that its kernels allocate nothing."""

    def allocate(size: int) -> float:
        return float(np.empty(size)[0])

    def compile_with(*, allocates: bool) -> Callable[[int], float]:
        options = numba_internals.memory_options(allocates=allocates)
        return cast("Callable[[int], float]", numba.njit(**options)(allocate))

    compile_with(allocates=True)(1)
    with pytest.raises(numba.TypingError):
        compile_with(allocates=False)(1)
    kernel: Any = first_stage.laplace_1
    assert not KernelCache(kernel.py_func).allocates
    assert KernelCache(test_a_kernel_that_allocates_does_not_compile).allocates
