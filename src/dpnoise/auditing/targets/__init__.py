"""Targets of attacks: functions (value, n) -> n releases, by name, by import or by command."""

from dpnoise.auditing.targets.adapters import Privacy
from dpnoise.auditing.targets.mechanisms import MECHANISMS, NamedMechanism
from dpnoise.auditing.targets.target import (
    DependentError,
    Releases,
    Target,
    TargetError,
    make_target,
    names,
    one_by_one,
    resolve,
    unavailable_targets,
    wrap,
)

__all__ = [
    "MECHANISMS",
    "DependentError",
    "NamedMechanism",
    "Privacy",
    "Releases",
    "Target",
    "TargetError",
    "make_target",
    "names",
    "one_by_one",
    "resolve",
    "unavailable_targets",
    "wrap",
]
