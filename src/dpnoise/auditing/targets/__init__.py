"""Targets of attacks: functions (value, n) -> n releases, by name, by import or by command."""

from dpnoise.auditing.targets.adapters import Privacy
from dpnoise.auditing.targets.mechanisms import MECHANISMS, NamedMechanism
from dpnoise.auditing.targets.target import (
    DependentError,
    Releases,
    Target,
    TargetError,
    left_out,
    named,
    names,
    one_by_one,
    resolve,
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
    "left_out",
    "named",
    "names",
    "one_by_one",
    "resolve",
    "wrap",
]
