"""Facts about this machine: its name in tables, its instructions, libraries without a build for it.

pyproject.toml has the same conditions as environment markers; a test compares the two. So an error
can say that a library has no build for this machine, instead of suggesting to install it.
"""

import platform
import sys
from importlib.util import find_spec
from typing import Final

_SYSTEMS: Final = {"linux": "Linux", "darwin": "all of macOS", "win32": "Windows"}
# Import names of packages with another name on PyPI.
_MODULES: Final = {
    "python-dp": "pydp",
    "jax-privacy": "jax_privacy",
    "smartnoise-sql": "snsql",
    "scikit-learn": "sklearn",
}
# On macOS python-dp has builds for version 15 and later, which environment markers cannot express.
_ONLY_ON_LINUX_X86: Final = {"python-dp"}
_NOT_ON_INTEL_MACS: Final = {"torch", "opacus", "jax", "jax-privacy"}


def has_build(package: str, system: str, processor: str) -> bool:
    """Return whether pip finds a package for a `sys.platform` and a `platform.machine()`.

    >>> has_build("python-dp", "linux", "x86_64"), has_build("python-dp", "linux", "aarch64")
    (True, False)
    """
    if package in _ONLY_ON_LINUX_X86:
        return (system, processor) == ("linux", "x86_64")
    return package not in _NOT_ON_INTEL_MACS or (system, processor) != ("darwin", "x86_64")


def why_unavailable(package: str) -> str | None:
    """Return why a package is left out on this machine, or None if it is not."""
    installed = find_spec(_MODULES.get(package, package)) is not None
    if installed or has_build(package, sys.platform, platform.machine()):
        return None
    system = _SYSTEMS.get(sys.platform, sys.platform)
    return f"{package} has no build for {system} on {platform.machine()}, so it is left out."


def package_of(module: str) -> str:
    """Return the package that a module belongs to.

    >>> package_of("pydp.algorithms"), package_of("jax.random")
    ('python-dp', 'jax')
    """
    first = module.partition(".")[0]
    return next((package for package, name in _MODULES.items() if name == first), first)


def describe_machine() -> str:
    """Return the machine's name for tables, such as "aarch64 (neoverse-n1)", as LLVM calls it."""
    from llvmlite import binding

    processor = binding.get_host_cpu_name()
    return f"{platform.machine()} ({processor})"


def has_instructions(*names: str) -> bool:
    """Return whether this is an x86-64 processor with all these features, by their LLVM names."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in names)
