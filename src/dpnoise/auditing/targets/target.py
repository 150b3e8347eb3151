"""Targets of attacks: functions (value, n) -> n releases, with their public parameters."""

import inspect
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import IO, Final, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.auditing.targets.adapters import ADAPTERS, Privacy, ReleaseFunction
from dpnoise.auditing.targets.mechanisms import MECHANISMS, Data
from dpnoise.core import errors, machine
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, DpnoiseError

Releases = NDArray[np.floating]

NOISE_SIGNATURE: Final = "(value, n) -> array"
MECHANISM_SIGNATURE: Final = "(data, n) -> n outputs"
_NUMBERS_ONLY: Final = "For outputs that are not one number each, give neighbours."


class TargetError(DpnoiseError, RuntimeError):
    """A target could not be made, or returned something else than n releases."""


class DependentError(TargetError):
    """A target gave releases that depend on each other, so that counts of them prove nothing."""


@dataclass(frozen=True)
class Target:
    """A mechanism under attack, with its public parameters.

    `noise` is "laplace" or "gaussian", and `scale` is b of a Laplace distribution or the standard
    deviation of a Gaussian. `release` is a function (value, n) -> n independent releases.
    """

    name: str  # The name in reports: "numpy.laplace".
    noise: str
    scale: float
    release: ReleaseFunction = field(repr=False)
    package: str | None = None  # The installed package that it calls, for its version.

    def __call__(self, value: float, n: int) -> Releases:
        """Return n releases, after checking that they are n finite floats in one dimension."""
        call = f"{self.name}({value!r}, {n})"
        try:
            returned = self.release(value, n)
            # A copy, because a target may write its next releases to the same array.
            releases = np.array(returned)
        except DpnoiseError:
            raise
        except Exception as error:
            raise failure_of(call, error) from error
        if releases.shape != (n,):
            shape = f"an array of shape {releases.shape}"
            kind = shape if releases.ndim else type(returned).__name__
            raise TargetError(
                f"{call} must return an array of n = {n} releases, got {kind}. {_NUMBERS_ONLY}"
            )
        if releases.dtype.kind in "iu":
            releases = releases.astype(np.float64)
        if releases.dtype.kind != "f" or releases.dtype.itemsize > np.dtype(np.float64).itemsize:
            raise TargetError(
                f"{call} must return floats of at most 64 bits, got {releases.dtype}. "
                "For outputs of other kinds, give neighbours."
            )
        if not np.isfinite(releases).all():
            raise TargetError(f"{call} gave a NaN or an infinity.")
        return releases

    @property
    def version(self) -> str:
        """The version of the package behind the target, or an empty string."""
        return installed_version(self.package)


def failure_of(call: str, error: BaseException) -> TargetError:
    """Return the error for an exception that a target raised."""
    try:
        text = f"{call} raised {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception of the target whose __str__ fails
        text = f"{call} raised {type(error).__name__}"
    if isinstance(error, TypeError | AttributeError):  # It was given something else than it takes.
        text = (
            f"{text.rstrip('.')}. A target is called with a number and n; if neighbours are given, "
            "with a data set and n. If its second argument is something else, give "
            "one_by_one=True and a lambda of only the data."
        )
    return TargetError(text)


def installed_version(package: str | None) -> str:
    """Return the version of a package, or an empty string if it is not installed."""
    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return ""


def wrap(
    release: ReleaseFunction, name: str | None = None, noise: str = "laplace", **claims: float
) -> Target:
    """Make a target from any function (value, n) -> array.

    `claims` are epsilon, delta and sensitivity. They determine the scale.

    Examples
    --------
    >>> rng = np.random.default_rng()
    >>> target = wrap(lambda value, n: value + rng.laplace(scale=2.0, size=n), epsilon=0.5)
    >>> target.scale, target(42.0, 3).shape
    (2.0, (3,))
    """
    if not callable(release):
        kind = type(release).__name__  # type: ignore[unreachable] # Callers may not check types.
        raise ArgumentTypeError(f"target must be a function {NOISE_SIGNATURE}, got {kind}.")
    shown = str(name or getattr(release, "__qualname__", type(release).__name__))
    return Target(shown, noise, Privacy(**claims, noise=noise).scale(), release)


def make_target(name: str, **claims: float) -> Target:
    """Make one of the targets that `names()` lists.

    `claims` are epsilon, delta and sensitivity. They determine the scale.

    Examples
    --------
    >>> make_target("numpy.laplace", epsilon=0.1)
    Target(name='numpy.laplace', noise='laplace', scale=10.0, package='numpy')
    """
    if name not in ADAPTERS:
        raise errors.unknown_name_error("target", name, names())
    adapter = ADAPTERS[name]
    scale, release = adapter.make(Privacy(**claims, noise=adapter.noise))
    return Target(name, adapter.noise, scale, release, adapter.package)


def resolve(
    target: object,
    epsilon: float,
    delta: float,
    sensitivity: float,
    scale: float | None = None,
    time_limit: float | None = None,
    *,
    one_by_one: bool = False,
) -> Target:
    """Return the target that a user named or passed.

    That is a Target; one of `names()`; "module:attribute"; a function (value, n) -> array; or a
    list of strings, a command that reads values, one on each line, and writes a release for each.
    A function or a command is assumed to add Gaussian noise if delta is greater than 0, otherwise
    Laplace noise. The scale is given if it does not follow from the claim. `time_limit` is in
    seconds, for one run of a command.
    """
    if isinstance(target, str) and target in ADAPTERS:
        _check_delta(target, ADAPTERS[target].noise, delta)
        target = make_target(target, epsilon=epsilon, delta=delta or 1e-6, sensitivity=sensitivity)
    if isinstance(target, Target):
        _check_delta(target.name, target.noise, delta)
        return target if scale is None else replace(target, scale=scale)
    by_command = partial(_from_command, time_limit)
    name, release = function_of(target, by_command, NOISE_SIGNATURE, one_by_one=one_by_one)
    noise = "gaussian" if delta else "laplace"
    if scale is None:
        scale = Privacy(epsilon, delta or 1e-6, sensitivity).scale(noise)
    return Target(name, noise, scale, release)


def function_of(
    target: object,
    from_command: Callable[..., Data],
    signature: str,
    *,
    one_by_one: bool = False,
) -> tuple[str, Callable[..., Data]]:
    """Return the name and the function of a path, a command or a function.

    `from_command(command, *arguments)` runs a command in place of a function. With `one_by_one`, a
    function of only the data is called once for each output.
    """
    if isinstance(target, list | tuple):
        if not target or not all(isinstance(word, str) for word in target):
            errors.reject("target", target, "be a command: a list of strings, the program first")
        return shlex.join(target), partial(from_command, list(target))
    if isinstance(target, str):
        name, function = target, import_function(target)
    else:
        function = check_target(target, signature)
        name = str(getattr(target, "__qualname__", type(target).__name__))
    if one_by_one and _takes(function, 1) and not _takes(function, 2):
        single: Callable[..., Data] = function
        return name, lambda data, n: [single(data) for _ in range(n)]
    _check_parameters(name, function, signature)
    return name, function


def _takes(function: Callable[..., Data], arguments: int) -> bool:
    """Return whether a function can be called with this many arguments, as far as it says."""
    try:
        inspect.signature(function).bind(*([0] * arguments))
    except (TypeError, ValueError):
        return False
    return not isinstance(function, type)


def check_target(target: Data, signature: str) -> Data:
    """Return a target that is a name, a command, or something that can be called."""
    if callable(target) or isinstance(target, Target | str | list | tuple):
        return target
    kind = type(target).__name__  # Not the value, which may be the data.
    text = f"target must be a name, a function {signature}, or a command, got {kind}."
    if hasattr(target, "release"):
        text += f" Give a function: {_repeat('mechanism.release', signature)}."
    raise ArgumentTypeError(text)


def _check_parameters(name: str, function: Callable[..., Data], signature: str) -> None:
    """Raise unless a function can be called with two arguments."""
    if isinstance(function, type):
        advice = f"Give a function {signature} that uses an object of it."
        raise ArgumentTypeError(f"{name} is a class. {advice}")
    try:
        parameters = inspect.signature(function)
        parameters.bind(0.0, 1)
    except ValueError:  # Some compiled functions do not say what they take.
        return
    except TypeError:
        text = f"{name} must be a function {signature}, got {name}{parameters}."
        if len(parameters.parameters) == 1:
            repeated = _repeat(name, signature)
            text += f" Give one_by_one=True, or a function that calls it n times: {repeated}."
        raise ArgumentTypeError(text) from None


def _repeat(name: str, signature: str) -> str:
    """Return Python code for n calls of a function that makes one release."""
    first, name = signature[1:].partition(",")[0], name.rpartition(":")[2]
    name = name if name.replace(".", "").isidentifier() else "function"
    return f"lambda {first}, n: [{name}({first}) for _ in range(n)]"


def one_by_one(target: Target) -> Target:
    """Return a target that calls `target` once for each release.

    Use it if releases of one call depend on each other.
    """

    def release(value: float, n: int) -> ArrayLike:
        return np.concatenate([np.atleast_1d(target.release(value, 1)) for _ in range(n)])

    return replace(target, release=release)


def _check_delta(name: str, noise: str, delta: float) -> None:
    if noise == "gaussian" and not delta:
        raise ArgumentError(
            f"{name} adds Gaussian noise, which has no finite epsilon at delta = 0. "
            "Give the delta that is claimed: {delta}.",
            delta=1e-6,
        )


def import_function(path: str) -> ReleaseFunction:
    """Import "module:attribute", with the current folder at the end of the search path.

    It comes last, so that a json.py in that folder does not replace Python's json.
    """
    module, _, attribute = path.partition(":")
    is_module = all(part.isidentifier() for part in module.split("."))
    if not attribute or not is_module or module.endswith(".py"):
        _reject_path(path)
    sys.path.append("")
    try:
        release: ReleaseFunction = attrgetter(attribute)(import_module(module))
    except (Exception, SystemExit) as error:
        file = getattr(sys.modules.get(module), "__file__", None)
        location = f" ({module} is {file})" if file else ""
        reason = f"{type(error).__name__}: {error}{location}"
        advice = _import_advice(module, attribute, error)
        raise TargetError(f"{path} was not imported: {reason}{advice}") from error
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index("")]
    if not callable(release):
        raise TargetError(f"{path} is not a function (value, n) -> array.")
    return release


def _import_advice(module: str, attribute: str, error: BaseException) -> str:
    """Return what to do about a module or an attribute that was not found, or an empty text."""
    if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or module):
        return ". A module is installed, on PYTHONPATH or in the current folder."
    near = get_close_matches(attribute, dir(sys.modules.get(module)), n=3)
    if isinstance(error, AttributeError) and near:
        return f". Did you mean {' or '.join(near)}?"
    return ""


def _reject_path(path: str) -> NoReturn:
    """Raise for a text that is neither a name for this audit nor module:attribute."""
    if path in ADAPTERS:
        raise ArgumentError(f"{path} adds noise to a number: leave out neighbours.")
    if path in MECHANISMS:
        problem = f"{path} is not noise that is added to a number"
        raise ArgumentError(f"{problem}. Audits of mechanisms take it.")
    if len(path.split()) > 1:
        advice = f"A command is given as a list of words: {path.split()}."
        raise ArgumentError(f"There is no target {path!r}. {advice}")
    module, colon, attribute = path.partition(":")
    problem = f"{path!r} is not module:function."
    if not colon:
        problem = str(errors.unknown_name_error("target", path, [*names(), *MECHANISMS]))
    if "." in module.removesuffix(".py") and not colon:
        module, _, attribute = module.rpartition(".")
    module = module.removesuffix(".py").lstrip("./").replace("/", ".")
    function = f"{module or 'module'}:{attribute or 'function'}"
    raise ArgumentError(f"{problem} A function of your own is written {function}.")


def _from_command(
    time_limit: float | None, command: list[str], value: float, n: int
) -> list[float]:
    """Run a command that reads n values and writes n releases, one on each line."""
    call = f"{shlex.join(command)}, given {value!r} {n} times,"
    text = run_command(command, time_limit, f"{value!r}\n" * n, call)
    lines = text.splitlines()
    if len(lines) != n:
        raise TargetError(f"{call} wrote {len(lines)} lines, not {n}.")
    releases: list[float] = []
    for line in lines:
        try:
            releases.append(float(line))
        except ValueError:
            shown = errors.short_repr(line)
            raise TargetError(
                f"{call} wrote a line that is not a number: {shown}. {_NUMBERS_ONLY}"
            ) from None
    return releases


def run_command(command: list[str], time_limit: float | None, text: str, call: str) -> str:
    """Run a command on a text and return what it writes; error messages begin with `call`."""
    with start_command(command, call, subprocess.PIPE) as process:
        try:
            output, error_output = process.communicate(text, timeout=time_limit)
        except subprocess.TimeoutExpired:
            raise TargetError(f"{call} took more than {time_limit:g} s.") from None
        finally:
            kill_session(process)
    if process.returncode:
        raise failure_of_command(call, process.returncode, error_output)
    return output


def start_command(
    command: list[str], call: str, errors_to: IO[str] | int
) -> "subprocess.Popen[str]":
    """Start a command with pipes for its input and output."""
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors_to,
            text=True,
            start_new_session=True,  # So that its child processes can be killed with it.
        )
    except OSError as error:
        advice = "Give the path of a program, or its interpreter first: python noise.py."
        raise TargetError(f"{call} did not start: {error}. {advice}") from error


class ProgramError(Exception):
    """A program ended with a status that is not 0: what an exception is to a function."""


def failure_of_command(call: str, status: int, error_output: str) -> TargetError:
    """Return the error for a status that is not 0, with the last line of the errors."""
    last_line = "".join(f": {line}" for line in error_output.strip().splitlines()[-1:])
    error = TargetError(f"{call} gave status {status}{last_line}.")
    error.__cause__ = ProgramError(f"status {status}")
    return error


def kill_session(process: "subprocess.Popen[str]") -> None:
    """Kill a process that still runs, with its whole session if the system has sessions."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def unavailable_targets() -> dict[str, str]:
    """Return the targets whose library has no build for this machine, each with the reason."""
    reasons = {
        name: adapter.package and machine.why_unavailable(adapter.package)
        for name, adapter in ADAPTERS.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def names(noise: str | None = None) -> list[str]:
    """Return the names of all targets, or of those with one kind of noise."""
    return [name for name, adapter in ADAPTERS.items() if noise in {None, adapter.noise}]
