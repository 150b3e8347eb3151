"""Make diffprivlib release through dpnoise, without a change of the code that calls it."""

import functools
import inspect
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, overload

from dpnoise.core.errors import ArgumentTypeError
from dpnoise.core.signals import run_uninterrupted
from dpnoise.integrations import diffprivlib_internals as internals

__all__ = ["Hardening", "harden"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_ABSENT: Final = object()
_lock: Final = threading.Lock()
_holds: Final[list[None]] = []  # One entry for each call and context that is in force.
_originals: Final[list[tuple[Any, str, Any]]] = []

if hasattr(os, "register_at_fork"):  # A child must not find the lock held by a thread it lacks.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


# Both run without interruption by a signal. After an exception everything is as before.


def _begin_hold() -> None:
    with _lock:
        if not _holds:
            _replace()
        _holds.append(None)


def _end_hold() -> None:
    with _lock:
        _holds.pop()
        if not _holds:
            _restore()


def _replace() -> None:
    try:
        for owner, name, replacement in internals.REPLACEMENTS:
            # A class does not own what it inherits. A function has its code, but not in __dict__.
            own = getattr(owner, "__dict__", {}).get(name, _ABSENT)
            original = owner.__code__ if name == "__code__" else own
            _originals.append((owner, name, original))
            setattr(owner, name, replacement)
    except BaseException:
        _restore()
        raise


def _restore() -> None:
    while _originals:
        owner, name, original = _originals[-1]
        if original is not _ABSENT:
            setattr(owner, name, original)
        elif name in vars(owner):
            delattr(owner, name)
        _originals.pop()


class Hardening:
    """A wish that diffprivlib be hardened, as `harden()` returns it.

    It holds from the call of `harden()` until `undo()`, or until the end of a `with` statement.
    diffprivlib is restored when no hardening holds. Threads may share it. Its repr is one line that
    says what is replaced and what is not.
    """

    def __init__(self) -> None:
        """Harden diffprivlib."""
        run_uninterrupted(_begin_hold)
        self._is_held = [True]  # A list, because its `pop` is atomic.

    def undo(self) -> None:
        """End the hold of the call of `harden()`. A second call does nothing."""
        try:
            self._is_held.pop()
        except IndexError:
            return
        run_uninterrupted(_end_hold)

    def __enter__(self) -> Self:
        """Hold until the end of the `with` statement."""
        run_uninterrupted(_begin_hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End this hold and that of the call of `harden()`."""
        self.undo()
        run_uninterrupted(_end_hold)

    def __repr__(self) -> str:
        """Return one line: what is exact, what has secure bits only, and what is left."""
        exact = ", ".join(sorted([*internals.EXACT, *internals.INHERITING]))
        return (
            f"diffprivlib {internals.diffprivlib.__version__} is "
            f"{'hardened' if _holds else 'not hardened'}. Exact: {exact}, and quantiles. Secure "
            f"bits, but noise in floats: {', '.join(internals.SECURE_BITS)}, and starting points "
            "of models. Left: sums in floats, other processes, methods bound before. "
            "random_state gives no seed."
        )


@overload
def harden() -> Hardening: ...
@overload
def harden(function: Callable[_Arguments, _Result], /) -> Callable[_Arguments, _Result]: ...
def harden(
    function: Callable[_Arguments, _Result] | None = None, /
) -> Hardening | Callable[_Arguments, _Result]:
    """Make diffprivlib release through dpnoise, exactly or at least with secure bits.

    Use it as a function (`harden()`), as a context manager (`with harden():`) or as a decorator
    (`@harden`, without parentheses). It applies to the whole process, so also to other threads, to
    mechanisms made before and to subclasses. Arguments, errors, bias and variance remain those that
    diffprivlib documents.

    While diffprivlib is hardened:

    - Laplace, Gaussian, geometric and exponential mechanisms, their variants, Binary, and the tools
      and models that use them release exactly: see `dpnoise.LaplaceMechanism`.
    - Other mechanisms compute noise in floats, from secure bits.
    - A `random_state` is checked and otherwise ignored. Noise that a seed reproduces protects
      nothing.
    - Models run their jobs in threads. Call `harden()` in processes that you start.

    A mechanism that is made while diffprivlib is hardened keeps secure bits when that ends.

    Parameters
    ----------
    function
        For use as a decorator: diffprivlib is hardened while it runs. It must not be a generator or
        asynchronous.

    Returns
    -------
    Hardening
        An object that can undo this, and says in one line what was replaced. As a decorator, the
        decorated function.

    Raises
    ------
    MissingExtraError
        At the import of this module, if diffprivlib is missing or its version is not supported.

    Examples
    --------
    >>> from diffprivlib.mechanisms import Laplace
    >>> from dpnoise.integrations.diffprivlib import harden
    >>> with harden():
    ...     released = Laplace(epsilon=1, sensitivity=1).randomise(3.5)
    >>> (released * 2**20).is_integer()  # Released on a grid.
    True
    """
    if function is None:
        return Hardening()
    checks = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    is_class = isinstance(function, type)
    if not callable(function) or is_class or any(check(function) for check in checks):
        raise ArgumentTypeError(
            "harden() decorates functions that end when they return. In a generator or a "
            "coroutine, or for a class, write `with harden():`."
        )

    @functools.wraps(function)
    def call_hardened(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with harden():
            return function(*arguments, **options)

    return call_hardened
