"""What an audit ran on."""

import platform
from importlib.metadata import version

import numpy as np

from dpnoise.core import machine


def versions(package: str | None = None, of_package: str = "") -> dict[str, str]:
    """Return the versions of Python, dpnoise, NumPy and the audited package, and the machine."""
    found = {
        "python": platform.python_version(),
        "dpnoise": version("dpnoise"),
        "numpy": np.__version__,
        "machine": machine.described(),
    }
    if package and of_package:
        found[package] = of_package
    return found
