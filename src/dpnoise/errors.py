"""The exceptions, and the argument checks with their one wording.

    DpnoiseError
    ├── ArgumentError        also a ValueError: right kind, wrong value
    ├── ArgumentTypeError    also a TypeError: wrong kind
    ├── MissingExtraError    also an ImportError: an optional library is not installed
    ├── RoundingModeError    also a RuntimeError: the processor does not round to nearest
    └── SecretError          also a TypeError: an attempt to copy or store a key

Every message names the argument, the value given and the rule: ``Expected scale=-1.0 > 0.``
"""

import math
import numbers
from collections.abc import Collection
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.machine import left_out, package_of


class DpnoiseError(Exception):
    """The base of every exception that dpnoise raises on purpose."""


class ArgumentError(DpnoiseError, ValueError):
    """An argument of the right kind has a value outside its rule."""


class ArgumentTypeError(DpnoiseError, TypeError):
    """An argument is of the wrong kind."""


class MissingExtraError(DpnoiseError, ImportError):
    """An optional library is needed: the message has the line that installs it, if one can."""


class RoundingModeError(DpnoiseError, RuntimeError):
    """The processor does not round to nearest, which every error bound rests on."""


class SecretError(DpnoiseError, TypeError):
    """A secret was about to be copied, pickled or stored."""


def reject(name: str, value: object, rule: str) -> NoReturn:
    """Raise the ArgumentError that says which argument broke which rule."""
    raise ArgumentError(f"Expected {name}={value!r} {rule}.")


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int between `least` and `most`."""
    if type(value) is not int and not isinstance(value, np.integer):
        raise ArgumentTypeError(f"Expected {name}={value!r} to be an integer.")
    result = int(value)
    if result < least:
        reject(name, result, f">= {least}")
    if most is not None and result > most:
        reject(name, result, f"<= {most}")
    return result


def check_positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    if type(value) is float and 0.0 < value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(f"Expected {name}={value!r} to be a number.")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        reject(name, result, "to be finite")
    if result <= 0:
        reject(name, result, "> 0")
    if result != value:
        # Rounding it here could put a guarantee on the wrong side.
        reject(name, value, f"to be exactly a float; the nearest is {result!r}")
    return result


def check_positive_array(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Return `value` as a float64 array whose entries are all finite and above zero."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"Expected {name}={value!r} to be a number or an array.") from None
    for entry in array[~(np.isfinite(array) & (array > 0))].flat[:1]:
        check_positive(name, float(entry))
    return array


def unknown(what: str, name: str, known: Collection[str]) -> ArgumentError:
    """Return the error for a name that is none of those known, with the nearest ones."""
    near = get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
    return ArgumentError(f"There is no {what} {name!r}. {hint}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise unless `value` is one of `choices`, and list them."""
    if value not in choices:
        reject(name, value, "to be one of " + ", ".join(map(repr, choices)))


def import_extra(module: str, extra: str) -> Any:
    """Import an optional library, or say which line installs it, or that none can."""
    try:
        return import_module(module)
    except ImportError:
        line = f'pip install "dpnoise[{extra}]"'
        missing = f"This needs {module}, which is not installed: {line}"
        raise MissingExtraError(left_out(package_of(module)) or missing) from None
