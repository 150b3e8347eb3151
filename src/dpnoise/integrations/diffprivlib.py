"""Make diffprivlib release through dpnoise, without a change of the code that calls it."""

import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final, NoReturn, ParamSpec, Self, TypeVar, overload

from dpnoise.core.errors import ArgumentTypeError
from dpnoise.core.signals import run_uninterrupted
from dpnoise.integrations import diffprivlib_internals as internals

__all__ = ["Hardening", "harden"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LAZY: Final = (
    "harden() decorates functions that end when they return. In a generator or a coroutine, or for "
    "a class, write `with harden():`."
)
_ABSENT: Final = object()
_lock: Final = threading.Lock()
_holds: Final[list["Hardening"]] = []  # Once for each call and context that is in force.
_originals: Final[list[tuple[Any, str, Any]]] = []

if hasattr(os, "register_at_fork"):  # A child must not find the lock held by a thread it lacks.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


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
        self._is_called = False
        self._begin()
        self._is_called = True

    def undo(self) -> None:
        """End the hold of the call of `harden()`. A second call does nothing."""
        self._end(contexts=0)

    def __enter__(self) -> Self:
        """Hold until the end of the `with` statement."""
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        """End this hold and that of the call of `harden()`."""
        self._end(contexts=1)

    # Signals interrupt neither. If a signal handler raises, this object holds no longer.

    def _begin(self) -> None:
        begun = []

        def begin() -> None:
            with _lock:
                if not _holds:
                    _replace()
                _holds.append(self)
                begun.append(True)

        try:
            run_uninterrupted(begin)
        except BaseException:
            self._end(contexts=len(begun))
            raise

    def _end(self, contexts: int) -> None:
        pending = [contexts]

        def end() -> None:
            with _lock:
                ended = pending.pop() + self._is_called if pending else 0
                for _ in range(min(ended, _holds.count(self))):
                    _holds.remove(self)
                self._is_called = False
                if not _holds:
                    _restore()

        try:
            run_uninterrupted(end)
        except BaseException:
            run_uninterrupted(end)
            raise

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError("A hardening cannot be copied or pickled: call harden() there.")

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
def harden(  # Most of its lines are documentation.
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
        For use as a decorator: diffprivlib is hardened while it runs. It must not be a class, a
        generator or asynchronous, nor return a generator or something to await.

    Returns
    -------
    Hardening
        An object that can undo this, and says in one line what was replaced. As a decorator, the
        decorated function.

    Raises
    ------
    ArgumentTypeError
        If the function would run on after it has returned.
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
    if not callable(function) or isinstance(function, type):
        raise ArgumentTypeError(_LAZY)
    checks = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    for called in (function, type(function).__call__):
        if any(check(called) for check in checks):
            raise ArgumentTypeError(_LAZY)

    @functools.wraps(function)
    def call_hardened(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with harden():
            result = function(*arguments, **options)
        if isinstance(result, Generator | Awaitable | AsyncGenerator):
            raise ArgumentTypeError(_LAZY)
        return result

    return call_hardened
