"""The options of an audit, checked once, and the command that runs it again."""

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

import dpnoise.auditing.attacks
from dpnoise.auditing.attacks.base import Attack, no_progress
from dpnoise.auditing.attacks.certified_bounds import EPSILON, Claim, claim_of, gaussian_claim
from dpnoise.auditing.neighbours import RELATIONS_OF_ROWS, ROWS, WHOLE, check_pairs
from dpnoise.auditing.processes import SIDE_CHANNEL_CHECKS
from dpnoise.auditing.report import Finding, Report, collect_versions
from dpnoise.auditing.targets.target import installed_version
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import format_value
from dpnoise.core import errors
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, is_real

_LONGEST_TEXT: Final = 2_000  # Characters of a data set in the command that repeats an audit.

Progress = Callable[[float, str], object]
Watch = Callable[[list[Finding]], object]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of `audit_noise` and `audit_mechanism`, checked at construction.

    >>> AuditOptions(epsilon=1.0, sensitivity=2).claim
    Claim(kind='epsilon', value=1.0, delta=0.0)
    """

    epsilon: float | None = None
    delta: float = 0.0
    sensitivity: float = 1.0
    mu: float | None = None
    rho: float | None = None
    curve: bool = False
    neighbours: object = None
    data: object = None
    size: int = 10
    attacks: Iterable[str | Attack] | None = None
    pairs: Iterable[tuple[float, float]] | str | None = None
    one_by_one: bool = False
    exceptions: str | None = None
    time: str | None = None
    boosting: bool | None = None
    public: Sequence[int | str] = ()
    views: Sequence[Callable[[Any], object]] = ()
    budget: int | None = None
    confidence: float = 0.999
    scale: float | None = None
    time_limit: float = 60.0
    seed: int | None = None
    progress: Progress = no_progress
    watch: Watch = no_progress

    def __post_init__(self) -> None:
        for flag in ("curve", "one_by_one", *["boosting"] * (self.boosting is not None)):
            errors.check_flag(flag, getattr(self, flag))
        _check_parts("public", self.public, int | str, "indices or names of parts, such as [0]")
        _check_parts("views", self.views, Callable, "functions of one output, [lambda y: ...]")
        _ = self.claim  # Raises for an invalid claim.
        object.__setattr__(
            self, "sensitivity", errors.check_positive("sensitivity", self.sensitivity)
        )
        errors.check_positive("time_limit", self.time_limit)
        for name, least in (("budget", TUNING.least_budget), ("seed", 0)):
            if getattr(self, name) is not None:
                errors.check_integer(name, getattr(self, name), least=least)
        if self.exceptions not in {None, "error", "output"}:
            errors.reject("exceptions", self.exceptions, "be 'output' or 'error'")
        if self.time not in {None, "output"}:
            errors.reject("time", self.time, "be 'output'")
        if self.scale is not None:
            errors.check_positive("scale", self.scale)
        errors.check_probability("confidence", errors.check_positive("confidence", self.confidence))
        if self.data is not None and not self.by_rows:
            needs = "data needs {neighbours}, which adds, removes or replaces one of its rows."
            raise ArgumentError(needs, neighbours=ROWS)
        # Attacks and pairs may be iterators, which can be read only once.
        if self.attacks is not None:
            object.__setattr__(self, "attacks", _check_attacks(self.attacks))
        if self.pairs is not None and not self.whole:
            object.__setattr__(self, "pairs", check_pairs(self.pairs, self.sensitivity))

    @cached_property
    def claim(self) -> Claim:
        """The claim to refute: one of epsilon, mu and rho, or the curve of Gaussian noise."""
        claim = claim_of(self.epsilon, self.delta, mu=self.mu, rho=self.rho)
        if not self.curve:
            return claim
        if claim.kind != EPSILON or not self.delta:
            noise = "Gaussian noise that claims epsilon at a delta above 0"
            raise ArgumentError(f"curve is for {noise}.")
        return gaussian_claim(claim.value, self.delta)

    @property
    def by_rows(self) -> bool:
        """Whether the pairs of data sets come from the rows of `data`."""
        return isinstance(self.neighbours, str) and self.neighbours in RELATIONS_OF_ROWS

    @property
    def whole(self) -> bool:
        """Whether only multiples of the sensitivity are tried."""
        return isinstance(self.pairs, str) and self.pairs == WHOLE

    @property
    def value_pairs(self) -> list[tuple[float, float]]:
        """The caller's pairs of values; empty for the default pairs."""
        return [] if self.pairs is None or isinstance(self.pairs, str) else [*self.pairs]

    def attacks_on(self, noise: str) -> list[Attack]:
        """Return the requested attacks, or all that apply to such noise."""
        if self.attacks is not None:
            return _check_attacks(self.attacks)
        known = dpnoise.auditing.attacks.ATTACKS.values()
        return [attack() for attack in known if attack.in_audit and attack.noise in {None, noise}]

    def command(self, target: object, name: str) -> str:
        """Return the command that runs the audit again: in a shell if possible, else in Python."""
        names = (
            "epsilon", "mu", "rho", "delta", "curve", "sensitivity", "scale", "pairs", "attacks",
            "size", "one_by_one", "exceptions", "time", "boosting", "public", "views",
            "budget", "confidence", "time_limit", "seed",
        )  # fmt: skip
        values = {key: getattr(self, key) for key in names}
        attacks = [] if self.attacks is None else _check_attacks(self.attacks)
        known = dpnoise.auditing.attacks.ATTACKS
        are_named = all(
            type(attack) is known.get(attack.name) and attack == type(attack)()
            for attack in attacks
        )
        values["attacks"] = [attack.name for attack in attacks] if are_named else attacks
        defaults = {"size": type(self).size, "time_limit": type(self).time_limit}
        settings = {
            key: x
            for key, x in values.items()
            if (x or (key in {"boosting", "seed"} and x is not None)) and x != defaults.get(key)
        }
        in_shell = isinstance(target, str | list | tuple) and self.data is None
        in_shell = in_shell and not self.views and self.boosting is not False
        if in_shell and are_named and isinstance(self.neighbours, str | None):
            return _shell_command(target, name, self.neighbours, settings)
        of_data = {key: getattr(self, key) for key in ("neighbours", "data")}
        settings |= {key: value for key, value in of_data.items() if value is not None}
        arguments = [f"{key}={_python_text(value, key)}" for key, value in settings.items()]
        own_name = name if name.replace(".", "").isidentifier() else "mechanism"  # Not <lambda>.
        called = repr(target) if isinstance(target, str | list | tuple) else own_name
        return f"dpnoise.audit({', '.join((called, *arguments))})"

    def report(
        self, target: object, name: str, package: str | None, started: float, **results: Any
    ) -> Report:
        """Return a report of these options and of the results of the audit.

        Without other results, it is the report of a mechanism: without noise or side-channel
        checks.
        """
        version, seconds = installed_version(package), time.perf_counter() - started
        of_mechanism = {"noise": "", "scale": 0.0, "sensitivity": 1.0, "observations": []}
        return Report(
            target=name,
            version=version,
            kind=self.claim.kind,
            claimed=self.claim.value,
            delta=self.claim.delta,
            confidence=self.confidence,
            seconds=seconds,
            command=self.command(target, name),
            versions=collect_versions(package, version),
            **{**of_mechanism, "skipped": {}, **results},
        )


def _python_text(value: object, name: str) -> str:
    """Return a value as Python, or its name if it is too long or cannot be written as Python.

    >>> _python_text([([1.0], np.array([2.0]))], "neighbours"), _python_text(object(), "data")
    ('[([1.0], np.array([2.0]))]', 'data')
    """
    if isinstance(value, list | tuple):
        parts = [_python_text(part, "") for part in value]
        comma = "," if len(parts) == 1 and isinstance(value, tuple) else ""
        first, last = "()" if isinstance(value, tuple) else "[]"
        text = f"{first}{', '.join(parts)}{comma}{last}" if all(parts) else name
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufUS":
        text = f"np.array({value.tolist()!r})"
    elif isinstance(value, str | bytes | int | float | bool | None | Attack) or is_real(value):
        text = repr(value)
    elif isinstance(value, dict):
        text = repr(value) if _python_text([*value.items()], "") else name
    else:
        text = name
    return text if len(text) <= _LONGEST_TEXT else name


def _shell_command(
    target: object, name: str, neighbours: str | None, settings: dict[str, Any]
) -> str:
    words = ["dpnoise", "audit", *([name] if isinstance(target, str) else ["--command", name])]
    for option, key in (("--attack", "attacks"), ("--public", "public")):
        for value in settings.pop(key, []):
            words += [option, str(value)]
    pairs = settings.pop("pairs", [])
    if pairs == WHOLE:
        words.append("--whole")
    else:
        for pair in pairs:
            words += ["--pair", ",".join(map(format_value, pair))]
    if neighbours is not None:
        words += ["--neighbours", neighbours]
    for key, value in settings.items():
        option = f"--{key.replace('_', '-')}"
        shown = format_value(value) if isinstance(value, float) else str(value)
        words += [option] if value is True else [option, shown]
    return shlex.join(words)


def _check_parts(name: str, values: object, kind: Any, wanted: str) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(x, kind) for x in values):
        raise ArgumentTypeError(f"{name} must be a list of {wanted}, got {values!r}.")


def _check_attacks(requested: Iterable[str | Attack]) -> list[Attack]:
    """Return attacks given by name or as objects, or raise for an invalid one."""
    known, attacks = dpnoise.auditing.attacks.ATTACKS, []
    for attack in [requested] if isinstance(requested, str) else requested:
        if isinstance(attack, str) and attack in SIDE_CHANNEL_CHECKS:
            rule = "be an attack; every audit runs this side-channel check"
            errors.reject("attacks", attack, rule)
        if isinstance(attack, str) and attack not in known:
            raise errors.unknown_name_error("attack", attack, known)
        attacks.append(known[attack]() if isinstance(attack, str) else attack)
    for attack in attacks:
        if not isinstance(attack, Attack):
            raise ArgumentTypeError(f"attacks must be names or attacks, got {attack!r}.")
        if not attack.in_audit:
            rule = "be an attack that an audit can run: call it on a target instead"
            errors.reject("attacks", attack.name, rule)
    if not attacks:
        raise ArgumentError("attacks must have at least one attack.")
    return attacks
