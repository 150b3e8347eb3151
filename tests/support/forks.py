"""Draw in the child of a fork, made by Python or by C code that Python does not see."""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def fork_in_c() -> int:
    """Fork without Python's handlers of forks."""
    number: int = ctypes.PyDLL(None).fork()
    return number


def output_of_child_of_thread(draw: Callable[[], str]) -> str:
    """Return what `draw` returns in a child that a thread forks, and that has no other thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(output_of_child, draw, os.fork).result(timeout=60)


def output_of_child(draw: Callable[[], str], fork: Callable[[], int]) -> str:
    """Return what `draw` returns in a child."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.write(writer, draw().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    return drawn
