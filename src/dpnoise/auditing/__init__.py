"""Audits of noise and of mechanisms: attacks, and the epsilon that they certify."""

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpnoise.auditing import attacks, leakage, targets
    from dpnoise.auditing.additive_noise import audit_noise
    from dpnoise.auditing.any_mechanism import audit_mechanism
    from dpnoise.auditing.processes import Observation
    from dpnoise.auditing.report import BrokenError, Finding, Report
    from dpnoise.auditing.training import TrainingReport, audit_training

__all__ = [
    "BrokenError",
    "Finding",
    "Observation",
    "Report",
    "TrainingReport",
    "attacks",
    "audit",
    "audit_mechanism",
    "audit_noise",
    "audit_training",
    "leakage",
    "targets",
]


def __getattr__(name: str) -> object:
    # These modules import SciPy, and `import dpnoise` must not.
    if name in {"attacks", "leakage", "targets"}:
        return import_module(f"dpnoise.auditing.{name}")
    if name in __all__:
        modules = {
            "audit_noise": "additive_noise",
            "audit_mechanism": "any_mechanism",
            "audit_training": "training",
            "TrainingReport": "training",
        }
        return getattr(import_module(f"dpnoise.auditing.{modules.get(name, 'report')}"), name)
    raise AttributeError(f"module 'dpnoise.auditing' has no attribute {name!r}")


# Most of its lines are documentation.
def audit(
    target: object,
    epsilon: float | None = None,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    *,
    neighbours: object = None,
    **options: Any,
) -> "Report":
    """Attack a target in every way implemented here, and certify a lower bound on its epsilon.

    Without `neighbours` the target adds noise to a number: this is `dpnoise.auditing.audit_noise`.
    With `neighbours`, or by the name of a mechanism, the target may be of any kind: this is
    `dpnoise.auditing.audit_mechanism`. Both list their options.

    Parameters
    ----------
    target
        A name such as "numpy.laplace" or "opendp.noisy_max", "module:function", a command as a
        list of strings, or a function. A function is called as (value, n) and returns n
        independent releases of the value; with `neighbours` it is called as (data, n).
    epsilon, delta
        The claim of the target.
    sensitivity
        The largest distance of two values, or of two answers, that the claim covers.
    neighbours
        Pairs of neighbouring data sets, [(a, b), ...], or a relation: "vector", "rows", "added"
        or "replaced".
    options
        Further options by name: `budget`, `confidence` and all others of `audit_noise` or
        `audit_mechanism`.

    Returns
    -------
    Report
        The findings, the certified bound and the verdict; `print(report)` shows them.

    Examples
    --------
    >>> import dpnoise
    >>> report = dpnoise.audit("numpy.laplace", epsilon=1.0, budget=24_000)
    >>> report.broken, report.epsilon_lower > 3
    (True, True)

    A mechanism that releases the number of rows without noise:

    >>> def count(rows, n):
    ...     return [len(rows)] * n
    >>> dpnoise.audit(count, epsilon=1.0, neighbours="rows", budget=20_000).broken
    True
    """
    from dpnoise.auditing.additive_noise import audit_noise
    from dpnoise.auditing.any_mechanism import audit_mechanism
    from dpnoise.auditing.targets import MECHANISMS
    from dpnoise.core.errors import ArgumentError, unknown_name_error

    is_mechanism = neighbours is not None or (isinstance(target, str) and target in MECHANISMS)
    of_noise, of_mechanism = (
        inspect.signature(function).parameters.keys() for function in (audit_noise, audit_mechanism)
    )
    known = (of_noise | of_mechanism) - {"target"}
    for name in options:
        if name == "whole":  # As an option of the command is called.
            raise ArgumentError(f'There is no option {name!r}. Give pairs="whole".')
        if name not in known:
            raise unknown_name_error("option", name, sorted(known))
        if is_mechanism and name not in of_mechanism:
            raise ArgumentError(f"{name} is for added noise: leave out neighbours.")
        if not is_mechanism and name not in of_noise:
            example = " of rows, such as 'rows'" if name == "data" else ""
            raise ArgumentError(f"{name} is for mechanisms of any kind: give neighbours{example}.")
    if is_mechanism:
        options["neighbours"] = neighbours
    run = audit_mechanism if is_mechanism else audit_noise
    return run(target, epsilon, delta, sensitivity, **options)
