"""The base class of mechanisms: frozen objects that remember their arguments."""

import inspect
from collections.abc import Callable, KeysView, Mapping
from dataclasses import FrozenInstanceError
from functools import wraps
from typing import Concatenate, NoReturn, ParamSpec, Self, TypeVar

from dpnoise.core.errors import ArgumentTypeError, check_positive, explain_calls

_Arguments = ParamSpec("_Arguments")
_Self = TypeVar("_Self")
_Init = Callable[Concatenate[_Self, _Arguments], None]


def require_named_arguments(
    check: Callable[[KeysView[str]], None] = lambda _: None,
) -> Callable[[_Init[_Self, _Arguments]], _Init[_Self, _Arguments]]:
    """Return a decorator of a constructor that raises for arguments by position.

    Its error shows the arguments by name. Then it calls `check` with the names that were given.
    """

    def decorate(init: _Init[_Self, _Arguments]) -> _Init[_Self, _Arguments]:
        init = explain_calls(init)

        @wraps(init)
        def wrapper(self: _Self, /, *args: _Arguments.args, **named: _Arguments.kwargs) -> None:
            if args:
                name = type(self).__name__
                raise ArgumentTypeError(
                    f"{name} takes its arguments by name, as in {name}(epsilon=1.0, "
                    f"{'delta=1e-6, ' if name == 'GaussianMechanism' else ''}sensitivity=1.0)."
                )
            check(named.keys())
            init(self, *args, **named)

        return wrapper

    return decorate


class Mechanism:
    """A frozen object; two are equal if they were made in the same way with equal arguments.

    `_arguments` keeps the arguments as given, including None. The attributes have the values
    that are used, such as the scale or the default grid.
    """

    scale: float
    _arguments: Mapping[str, object]

    def _set_attributes(self, arguments: Mapping[str, object], **derived: object) -> None:
        """Set all attributes: the arguments, then the derived values, which replace a None."""
        # One by one: after an update of __dict__, Python reads attributes more slowly.
        for name, value in {**arguments, **derived, "_arguments": arguments}.items():
            object.__setattr__(self, name, value)

    @property
    def _maker(self) -> Callable[..., Self]:
        """The constructor that takes these arguments: the class or one of its class methods."""
        return type(self)

    def replace(self, **changes: object) -> Self:
        """Return a new mechanism with some arguments replaced.

        The other arguments are the same: a given grid is kept, a default grid is chosen again.
        From Python 3.13 on `copy.replace` does the same.
        """
        unknown_names = sorted(changes.keys() - self._arguments.keys())
        if unknown_names:
            raise ArgumentTypeError(
                f"{self._maker.__qualname__} takes {', '.join(self._arguments)}, got "
                f"{', '.join(unknown_names)}. To use other arguments, make a new mechanism."
            )
        return self._maker(**{**self._arguments, **changes})

    __replace__ = replace

    def __repr__(self) -> str:
        maker = self._maker
        parameters = inspect.signature(maker).parameters
        shown = [
            # The name `for_rho` already says which number comes first.
            repr(value) if maker.__name__ == f"for_{name}" else f"{name}={value!r}"
            for name, value in self._arguments.items()
            if value != parameters[name].default
        ]
        name = type(self).__qualname__
        if maker is not type(self):
            name += f".{maker.__name__}"
        return f"{name}({', '.join(shown)})"

    def __str__(self) -> str:
        """Return the mechanism, the scale of its noise and, of added noise, a margin."""
        error = getattr(self, "error", None)
        margin = "" if error is None else f"; 95 % of releases are within about {error(0.95):.3g}"
        return f"{self!r}: noise of scale {self.scale:.6g}{margin}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mechanism) or type(other) is not type(self):
            return NotImplemented
        # Constructors of a class have different argument names, so `_maker` is the same, too.
        return self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash((type(self), *self._arguments.items()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"A mechanism is frozen: make another with replace({name}=...).")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"A mechanism is frozen: it keeps its {name}.")


def check_all_positive(**arguments: object) -> dict[str, float]:
    """Return the arguments by name, after checking that each is a finite float above zero."""
    return {name: check_positive(name, value) for name, value in arguments.items()}
