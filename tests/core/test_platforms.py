"""Without POSIX, dpnoise can be imported, and it draws and releases."""

import subprocess
import sys

WITHOUT_POSIX = """
import ctypes, os, signal, sys

for module, name in (
    *((os, name) for name in ("fork", "forkpty", "register_at_fork", "sched_getaffinity")),
    *((os, name) for name in ("geteuid", "O_NOFOLLOW")),
    *((signal, name) for name in ("pthread_sigmask", "setitimer", "SIGALRM")),
):
    if hasattr(module, name):
        delattr(module, name)
sys.modules["fcntl"] = sys.modules["resource"] = None

class Library(ctypes.CDLL):
    def __init__(self, name, *arguments, **named):
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *arguments, **named)

ctypes.CDLL = Library

import numpy as np
import dpnoise

assert "numba" not in sys.modules
rng = dpnoise.Generator()
mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
print(type(rng.laplace()).__name__, rng.normal(size=10**6).shape)
print(type(mechanism.release(5)).__name__, type(mechanism.release(0.5)).__name__)
print(mechanism.release(np.zeros(3)).dtype, mechanism.release(np.arange(3)).dtype)
print(dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([0, 10**6]))
"""


def test_a_system_without_posix_draws_and_releases() -> None:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_POSIX],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not process.stderr
    assert process.stdout.splitlines() == ["float (1000000,)", "int float", "float64 int64", "1"]
