"""The exceptions, and argument checks that word their messages alike.

    DpnoiseError
    ├── ArgumentError        also a ValueError: right kind, wrong value
    ├── ArgumentTypeError    also a TypeError: wrong kind
    ├── BudgetError          also a RuntimeError: a ledger is exhausted, or cannot be trusted
    ├── CipherError          also a RuntimeError: OpenSSL's cipher is wrong on this machine
    ├── MissingExtraError    also an ImportError: an optional library is missing, or broken
    ├── RoundingModeError    also a RuntimeError: the processor does not round to nearest
    └── SecretError          also a TypeError: an attempt to copy or store a key

Messages name the argument, the rule and the value: ``scale must be greater than 0, got -1.0.``
"""

import inspect
import json
import math
import numbers
import sys
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from traceback import clear_frames
from types import ModuleType
from typing import (
    Any,
    Final,
    NamedTuple,
    NoReturn,
    ParamSpec,
    SupportsFloat,
    SupportsInt,
    TypeGuard,
    TypeVar,
)

from dpnoise.core.machine import package_of, why_unavailable

# Methods of arrays, columns and frames, by which libraries exchange rows.
_ROWS: Final = ("__array__", "__arrow_c_array__", "__arrow_c_stream__", "__dataframe__")
_MAX_SHOWN: Final = 200  # Characters of an argument that an error shows.
_MAX_LISTED: Final = 20  # Names that an error lists; of more names it lists the five nearest.

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class DpnoiseError(Exception):
    """The base of every exception that dpnoise raises on purpose."""


class Violation(NamedTuple):
    """A broken rule: the argument, the rule and the value.

    The command line uses it to name the option instead of the argument.
    """

    argument: str
    rule: str
    value: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f": {self.advice}" if self.advice else ""
        text = f"{self.argument} must {self.rule}, got {self.value}{advice}"
        return text if text.endswith("?") else f"{text}."


class _BrokenRuleError(DpnoiseError):
    """The base of errors about arguments.

    `problem` is a `Violation` or a text. A text may have placeholders such as {missing} for
    recommended arguments, given as `missing="drop"`. The command line prints them as options.
    """

    def __init__(self, problem: object, **recommended: object) -> None:
        self._text, self._recommended = str(problem), recommended
        self.violation = problem if isinstance(problem, Violation) else None
        super().__init__(
            self.format_message(lambda name, value: f"{name}={json.dumps(value, allow_nan=False)}")
        )

    def format_message(self, format_argument: Callable[[str, object], str]) -> str:
        """Return the message, with recommended arguments in the form of `format_argument`."""
        text = self._text
        for name, value in self._recommended.items():
            text = text.replace(f"{{{name}}}", format_argument(name, value))
        return text


class ArgumentError(_BrokenRuleError, ValueError):
    """An argument of the right kind has a value outside its rule."""


class ArgumentTypeError(_BrokenRuleError, TypeError):
    """An argument is of the wrong kind."""


class BudgetError(DpnoiseError, RuntimeError):
    """A ledger has less left than a release costs, or cannot be read, trusted or written."""


def add_prefix(prefix: str, error: DpnoiseError) -> ArgumentError:
    """Return an error with the message of another after a prefix, and its placeholders."""
    if not isinstance(error, _BrokenRuleError):
        return ArgumentError(f"{prefix}{error}")
    return ArgumentError(prefix + error._text, **error._recommended)  # noqa: SLF001 - same module


class CipherError(DpnoiseError, RuntimeError):
    """OpenSSL computes a wrong key stream on this machine."""


class MissingExtraError(DpnoiseError, ImportError):
    """An optional library is missing or fails to import; the message says how to install it."""


class RoundingModeError(DpnoiseError, RuntimeError):
    """The processor does not round to nearest, which every error bound assumes."""


class SecretError(DpnoiseError, TypeError):
    """A secret was about to be copied, pickled or stored."""


def short_repr(value: object) -> str:
    """Return the repr of an argument for an error message, shortened to 200 characters.

    Arrays, columns and frames are named by their type, because they may hold private rows.
    """
    if any(hasattr(type(value), name) for name in _ROWS) and not isinstance(
        value, _numpy_types("generic")
    ):
        return f"a {type(value).__name__}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - for example, Python refuses to print very long integers
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def name_with_module(value: object) -> str:
    """Return the type of an object with its module, without parts that begin with an underscore.

    >>> from random import Random
    >>> name_with_module(Random()), name_with_module(7)
    ('random.Random', 'int')
    """
    kind = type(value)
    parts = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.").split(".")
    return ".".join(part for part in parts if not part.startswith("_"))


def reject(name: str, value: object, rule: str) -> NoReturn:
    """Raise the ArgumentError for a rule such as "be finite", or "be finite: give a limit"."""
    rule, _, advice = rule.partition(": ")
    raise ArgumentError(Violation(name, rule, short_repr(value), advice))


def reject_type(name: str, value: object, rule: str) -> NoReturn:
    """Raise the ArgumentTypeError for a rule such as "be a number"."""
    raise ArgumentTypeError(Violation(name, rule, short_repr(value)))


def _numpy_types(*names: str) -> tuple[type, ...]:
    """Return types of NumPy, without importing it: before the import no value has them."""
    numpy = sys.modules.get("numpy")
    return tuple(getattr(numpy, name) for name in names) if numpy else ()


def is_integer(value: object) -> TypeGuard[SupportsInt]:
    """Return whether a value is a Python or NumPy integer, but not a bool or a timedelta64."""
    if type(value) is int:
        return True
    return isinstance(value, (int, *_numpy_types("integer"))) and is_real(value)


def is_list(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is a list or another iterable, but not a text."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def is_real(value: object) -> TypeGuard[SupportsFloat]:
    """Return whether a value is a real number, but not a bool, a timedelta64 or an array."""
    if type(value) in {int, float}:
        return True
    # Python and NumPy count bool and timedelta64 as integers.
    not_numbers = (bool, *_numpy_types("timedelta64"))
    return isinstance(value, numbers.Real) and not isinstance(value, not_numbers)


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int between `least` and `most`."""
    if not is_integer(value):
        reject_type(name, value, "be an integer")
    result = int(value)
    if result < least:
        reject(name, result, f"be at least {least}")
    if most is not None and result > most:
        reject(name, result, f"be at most {most}")
    return result


def _nearest_float(name: str, value: object) -> float:
    """Return the nearest float to a number, or infinity above the largest float."""
    if not is_real(value):
        reject_type(name, value, "be a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_flag(name: str, value: object) -> bool:
    """Return `value` as a bool; anything else is an error, because "no" would count as True."""
    if not isinstance(value, (bool, *_numpy_types("bool_"))):
        reject_type(name, value, "be True or False")
    return bool(value)


def check_positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    if type(value) is float and 0.0 < value < math.inf:
        return value
    result = _nearest_float(name, value)
    if not math.isfinite(result):
        reject(name, result, "be finite")
    if result <= 0:
        reject(name, result, "be greater than 0")
    if result != value:
        # Rounding epsilon up, for example, would weaken the guarantee.
        reject(name, value, f"be exactly a float: the nearest is {result!r}")
    return result


def check_power_of_two(name: str, value: object) -> float:
    """Return `value` as a float that is a power of two."""
    result = check_positive(name, value)
    if math.frexp(result)[0] != 0.5:  # noqa: PLR2004 - the significand of a power of two
        reject(name, result, "be a power of two")
    return result


def check_bound(name: str, value: object) -> int | float | None:
    """Return `value` if it is None, or a finite int or float. An int must be in a float's range."""
    if value is None:
        return None
    if is_integer(value):
        bound: int | float = int(value)
    elif isinstance(value, (float, *_numpy_types("float32", "float16"))):
        bound = float(value)  # type: ignore[arg-type] # These types of NumPy are floats.
    else:
        reject_type(name, value, "be an int, a float or None")
    try:
        finite = math.isfinite(bound)
    except OverflowError:
        finite = False
    if not finite:
        reject(name, value, "be finite, or None")
    return bound


def check_probability(name: str, value: object, *, include_ends: bool = False) -> float:
    """Return `value` as a float between 0 and 1; 0 and 1 only with `include_ends`."""
    part = _nearest_float(name, value)
    if not (0 < part < 1 or (include_ends and part in {0.0, 1.0})):
        is_percentage = 1 < part <= 100 and name != "delta"  # noqa: PLR2004 - of a whole
        advice = f": write {part / 100:g} for {part:g} %" if is_percentage else ""
        reject(name, value, f"be between 0 and 1{advice}")
    return part


def check_delta(delta: object) -> float:
    """Return delta; raise unless it is strictly between 0 and 1."""
    return check_probability("delta", check_positive("delta", delta))


def unknown_name_error(what: str, name: str, known: Collection[str]) -> ArgumentError:
    """Return the error for an unknown name, with the most similar known ones."""
    return ArgumentError(f"There is no {what} {name!r}. {suggest_names(name, known)}")


def suggest_names(name: str, known: Collection[str]) -> str:
    """Return a sentence with the known names that are most similar, or with all of them."""
    if suggestion := did_you_mean(name, known):
        return suggestion
    if len(known) <= _MAX_LISTED:
        return f"Known: {', '.join(known)}."
    nearest = get_close_matches(name, known, n=5, cutoff=0.0)
    return f"The nearest of {len(known)}: {', '.join(nearest)}."


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise an error that lists the choices unless `value` is one of them."""
    if not isinstance(value, str | int | None) or value not in choices:
        rule = "be one of " + ", ".join(map(repr, choices))
        hint = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
        raise ArgumentError(Violation(name, rule, short_repr(value), hint[:1].lower() + hint[1:]))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the most similar known names; empty if there are none.

    >>> did_you_mean("Agee", ["age", "city"]), did_you_mean("income", ["age", "city"])
    ('Did you mean age?', '')
    """
    by_lower = {text.lower(): text for text in known}
    near = get_close_matches(name.lower(), by_lower, n=3)
    return f"Did you mean {' or '.join(by_lower[text] for text in near)}?" if near else ""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional library, or raise an error that says how to install it.

    A library that is installed but fails to import gets a different message, because installing it
    again would not help.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = package_of(module).replace("_", "-")
        of_extra = f'in a checkout of dpnoise pip install ".[{extra}]"'
        install = f"pip install {package}, or {of_extra}"
        first = module.partition(".")[0]
        # The library itself is missing, not one of its dependencies.
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == first
        if not is_absent:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise MissingExtraError(
                f"This needs {module}, which is installed and cannot be imported "
                f"({short_repr(said)}). For versions that work together, {of_extra}"
            ) from None
        missing = f"This needs {module}, which is not installed: {install}"
        raise MissingExtraError(why_unavailable(package) or missing) from None
    except (ValueError, RuntimeError) as error:  # Caused by its settings, such as MPLBACKEND.
        raise ArgumentError(f"{module} cannot be imported: {short_repr(str(error))}") from None


def scrub_traceback(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function so that tracebacks of its exceptions show no local variables.

    Debuggers, error trackers and rich print the locals of every frame of a traceback. The frames
    below this one, ours and those of libraries, hold keys, words and values. So their locals are
    cleared; file names and lines stay.
    """

    @wraps(function)
    def wrapper(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        before = None  # An interrupt may arrive in the try statement, before it is set there.
        try:
            before = sys.exception()
            return function(*arguments, **options)
        except BaseException as error:
            del arguments, options
            _explain_wrong_call(function, error)
            _clear_frames(error, before)
            raise

    return wrapper


def explain_calls(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function so that a call with wrong arguments shows how to call it."""

    @wraps(function)
    def wrapper(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            _explain_wrong_call(function, error)
            raise

    return wrapper


def explain_construction(kind: type[_Result]) -> type[_Result]:
    """Decorate a dataclass so that wrong arguments show how to make an object."""
    kind.__init__ = explain_calls(kind.__init__)  # type: ignore[method-assign]
    return kind


def _explain_wrong_call(function: Callable[..., object], error: BaseException) -> None:
    """Raise ArgumentTypeError if Python could not call a function with its arguments."""
    traceback = error.__traceback__
    if type(error) is not TypeError or traceback is None or traceback.tb_next is not None:
        return  # The function was called, and the error is from its body.
    parameters = [
        known
        for known in inspect.signature(function).parameters.values()
        if known.name not in {"self", "cls"}
    ]
    required = ", ".join(
        f"{known.name}=..." if known.kind is known.KEYWORD_ONLY else known.name
        for known in parameters
        if known.name == "epsilon"
        or (known.default is known.empty and known.kind is not known.VAR_KEYWORD)
    )
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    advice = f"Write {called}({required})"
    if "unexpected keyword" in str(error):
        advice = f"It takes {', '.join(known.name for known in parameters)}"
    # Polars looks for Python's own words in the message.
    raise ArgumentTypeError(f"{called}() {str(error).partition('() ')[2]}. {advice}.") from None


def _clear_frames(error: BaseException | None, before: BaseException | None) -> None:
    """Clear the locals of an exception and of its causes, back to the exception `before`."""
    seen = {id(before)}
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        clear_frames(error.__traceback__)  # Frames that still run keep their locals.
        if error.__suppress_context__:  # A library's error may quote the data.
            error.__context__ = None
        error = error.__cause__ or error.__context__
