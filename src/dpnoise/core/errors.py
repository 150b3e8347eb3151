"""The exceptions, and the argument checks with their one wording.

    DpnoiseError
    ├── ArgumentError        also a ValueError: right kind, wrong value
    ├── ArgumentTypeError    also a TypeError: wrong kind
    ├── BudgetError          also a RuntimeError: a ledger has too little left, or is no true one
    ├── CipherError          also a RuntimeError: OpenSSL's cipher is wrong on this machine
    ├── MissingExtraError    also an ImportError: an optional library is missing, or broken
    ├── RoundingModeError    also a RuntimeError: the processor does not round to nearest
    └── SecretError          also a TypeError: an attempt to copy or store a key

Every message names the argument, the value given and the rule: ``Expected scale=-1.0 > 0.``
"""

import math
import numbers
import sys
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from traceback import clear_frames
from types import ModuleType
from typing import Final, NoReturn, ParamSpec, SupportsFloat, SupportsInt, TypeGuard, TypeVar

import numpy as np

from dpnoise.core.machine import left_out, package_of

_NO_NUMBERS: Final = (bool, np.timedelta64)  # To Python and NumPy they are integers.
_LONGEST: Final = 200  # Of an argument in an error.

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class DpnoiseError(Exception):
    """The base of every exception that dpnoise raises on purpose."""


class ArgumentError(DpnoiseError, ValueError):
    """An argument of the right kind has a value outside its rule."""


class ArgumentTypeError(DpnoiseError, TypeError):
    """An argument is of the wrong kind."""


class BudgetError(DpnoiseError, RuntimeError):
    """A ledger does not have what a release costs, or cannot be read, trusted or written."""


class CipherError(DpnoiseError, RuntimeError):
    """The cipher's stream, which every bulk draw is made of, is wrong on this machine."""


class MissingExtraError(DpnoiseError, ImportError):
    """An optional library is missing or fails to import: the message says which, and what helps."""


class RoundingModeError(DpnoiseError, RuntimeError):
    """The processor does not round to nearest, which every error bound rests on."""


class SecretError(DpnoiseError, TypeError):
    """A secret was about to be copied, pickled or stored."""


def shown(value: object) -> str:
    """Return an argument as an error shows it: its repr, cut where it is long or fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - Python refuses to write integers of many digits, for one
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def reject(name: str, value: object, rule: str) -> NoReturn:
    """Raise the ArgumentError that says which argument broke which rule."""
    raise ArgumentError(f"Expected {name}={shown(value)} {rule}.")


def is_integer(value: object) -> TypeGuard[SupportsInt]:
    """Tell whether something is an integer, Python's or NumPy's: no bool, and no span of time."""
    return isinstance(value, int | np.integer) and not isinstance(value, _NO_NUMBERS)


def is_real(value: object) -> TypeGuard[SupportsFloat]:
    """Tell whether something is a number: no bool, no span of time, no array."""
    return isinstance(value, numbers.Real) and not isinstance(value, _NO_NUMBERS)


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int between `least` and `most`."""
    if not is_integer(value):
        raise ArgumentTypeError(f"Expected {name}={shown(value)} to be an integer.")
    result = int(value)
    if result < least:
        reject(name, result, f">= {least}")
    if most is not None and result > most:
        reject(name, result, f"<= {most}")
    return result


def _nearest_float(name: str, value: object) -> float:
    """Return the nearest float to a number: an infinity if it is beyond them all."""
    if not is_real(value):
        raise ArgumentTypeError(f"Expected {name}={shown(value)} to be a number.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_flag(name: str, value: object) -> bool:
    """Return `value` if it is True or False: a text such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"Expected {name}={shown(value)} to be True or False.")
    return bool(value)


def check_positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    if type(value) is float and 0.0 < value < math.inf:
        return value
    result = _nearest_float(name, value)
    if not math.isfinite(result):
        reject(name, result, "to be finite")
    if result <= 0:
        reject(name, result, "> 0")
    if result != value:
        # Rounding it here could put a guarantee on the wrong side.
        reject(name, value, f"to be exactly a float; the nearest is {result!r}")
    return result


def check_power_of_two(name: str, value: object) -> float:
    """Return `value` as a float that is a power of two."""
    result = check_positive(name, value)
    if math.frexp(result)[0] != 0.5:  # noqa: PLR2004 - the significand of a power of two
        reject(name, result, "to be a power of two")
    return result


def check_bound(name: str, value: object) -> int | float | None:
    """Return `value` as an int or a float, finite as a float, or None."""
    if value is None:
        return None
    if is_integer(value):
        bound: int | float = int(value)
    elif isinstance(value, float | np.float32 | np.float16):
        bound = float(value)
    else:
        raise ArgumentTypeError(f"Expected {name}={shown(value)} to be an int or a float, or None.")
    try:
        finite = math.isfinite(bound)
    except OverflowError:
        finite = False
    if not finite:
        reject(name, value, "to be finite, or None")
    return bound


def check_part(name: str, value: object, *, ends: bool = False) -> float:
    """Return `value` as a float between 0 and 1; the two ends only if asked for."""
    part = _nearest_float(name, value)
    if not (0 < part < 1 or (ends and part in {0.0, 1.0})):
        reject(name, value, "to be between 0 and 1")
    return part


def unknown(what: str, name: str, known: Collection[str]) -> ArgumentError:
    """Return the error for a name that is none of those known, with the nearest ones."""
    near = get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
    return ArgumentError(f"There is no {what} {name!r}. {hint}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise unless `value` is one of `choices`, and list them."""
    if not isinstance(value, str | int | None) or value not in choices:
        reject(name, value, "to be one of " + ", ".join(map(repr, choices)))


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional library, or say which lines install it, or that none can.

    One that is installed and fails to import is told from one that is missing: installing it again
    would not help against what it says.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = package_of(module).replace("_", "-")
        install = f'pip install {package}, or in a checkout of dpnoise pip install ".[{extra}]"'
        if not _is_absent(module, error):
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise MissingExtraError(
                f"This needs {module}, which is installed and cannot be imported ({shown(said)}). "
                f"Versions that work together: {install}"
            ) from None
        missing = f"This needs {module}, which is not installed: {install}"
        raise MissingExtraError(left_out(package) or missing) from None
    except (ValueError, RuntimeError) as error:  # Of a setting of its own, such as MPLBACKEND.
        raise ArgumentError(f"{module} cannot be imported: {shown(str(error))}") from None


def _is_absent(module: str, error: ImportError) -> bool:
    """Tell whether the library itself is not there, and not something that it imports."""
    first = module.partition(".")[0]
    return isinstance(error, ModuleNotFoundError) and error.name == first


def forgetful(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Keep secrets out of tracebacks that show locals, whatever the function raises.

    Debuggers, error trackers and rich print the locals of every frame that an exception came
    through. Those of the frames below this one hold keys, words and values, ours and those of the
    libraries that we call, so they are cleared; the lines stay.
    """

    @wraps(function)
    def remembering_nothing(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        before = None
        try:
            before = sys.exception()
            return function(*arguments, **options)
        except BaseException as error:
            del arguments, options
            _clear_frames(error, before)
            raise

    return remembering_nothing


def _clear_frames(error: BaseException | None, before: BaseException | None) -> None:
    """Clear the finished frames of an exception, and of those before it that began in the call."""
    seen = {id(before)}
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        clear_frames(error.__traceback__)  # One that still runs stays as it is.
        if error.__suppress_context__:  # A library's error may quote the data: nobody shows it.
            error.__context__ = None
        error = error.__cause__ or error.__context__
