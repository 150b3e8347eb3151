"""What every mechanism is: a frozen value that remembers its arguments."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from typing import NoReturn, Self

from dpnoise.core.errors import ArgumentTypeError, check_positive


class Mechanism:
    """A frozen value: two are equal if they were asked for in one way, with equal arguments.

    The arguments are checked, and a None that stands for a default is remembered as None. What
    follows from them, such as the scale or a default grid, is computed once.
    """

    _asked: Mapping[str, object]

    def _hold(self, asked: Mapping[str, object], **derived: object) -> None:
        """Set all attributes, once: the arguments, and in place of a None what it stands for."""
        # One by one: after an update of its __dict__, Python reads the attributes more slowly.
        for name, value in {**asked, **derived, "_asked": asked}.items():
            object.__setattr__(self, name, value)

    @property
    def _maker(self) -> Callable[..., Self]:
        """What takes these arguments: the class, or one of its class methods."""
        return type(self)

    def replace(self, **changes: object) -> Self:
        """Return what a new mechanism with these arguments would be.

        All others are as they were asked for: a grid that was given is kept, a default one is
        chosen anew. From Python 3.13 on `copy.replace` does the same.
        """
        strangers = sorted(changes.keys() - self._asked.keys())
        if strangers:
            raise ArgumentTypeError(
                f"Expected arguments of {self._maker.__qualname__} ({', '.join(self._asked)}), "
                f"got {', '.join(strangers)}. To ask with others, make a new mechanism."
            )
        return self._maker(**{**self._asked, **changes})

    __replace__ = replace

    def __repr__(self) -> str:
        maker = self._maker
        parameters = inspect.signature(maker).parameters
        shown = [
            # `for_rho` says already which number comes first.
            repr(value) if maker.__name__ == f"for_{name}" else f"{name}={value!r}"
            for name, value in self._asked.items()
            if value != parameters[name].default
        ]
        name = type(self).__qualname__
        if maker is not type(self):
            name += f".{maker.__name__}"
        return f"{name}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mechanism) or type(other) is not type(self):
            return NotImplemented
        return self._asked == other._asked

    def __hash__(self) -> int:
        return hash((type(self), *self._asked.items()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"A mechanism is frozen: make another with replace({name}=...).")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"A mechanism is frozen: it keeps its {name}.")


def positive(**arguments: object) -> dict[str, float]:
    """Return arguments by their names, each checked to be a finite float above zero."""
    return {name: check_positive(name, value) for name, value in arguments.items()}
