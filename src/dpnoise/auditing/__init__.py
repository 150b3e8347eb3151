"""Audits of noise and of mechanisms: attacks, and the epsilon that they certify."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpnoise.auditing import attacks, leakage, targets
    from dpnoise.auditing.attacks.base import Attack
    from dpnoise.auditing.processes import Observation
    from dpnoise.auditing.report import BrokenError, Finding, Report

__all__ = [
    "BrokenError",
    "Finding",
    "Observation",
    "Report",
    "attacks",
    "audit",
    "leakage",
    "targets",
]


def __getattr__(name: str) -> object:
    # These modules import SciPy, and `import dpnoise` must not.
    if name in {"attacks", "leakage", "targets"}:
        return import_module(f"dpnoise.auditing.{name}")
    if name in __all__:
        from dpnoise.auditing import report

        return getattr(report, name)
    raise AttributeError(f"module 'dpnoise.auditing' has no attribute {name!r}")


# The public keywords and their documentation take most of these lines.
def audit(  # noqa: PLR0913 - the options of an audit, which `AuditOptions` holds behind it
    target: object,
    epsilon: float | None = None,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    *,
    mu: float | None = None,
    rho: float | None = None,
    curve: bool = False,
    neighbours: object = None,
    data: object = None,
    size: int = 10,
    attacks: Iterable["str | Attack"] | None = None,
    pairs: Iterable[tuple[float, float]] | str | None = None,
    one_by_one: bool = False,
    boosting: bool = False,
    budget: int | None = None,
    confidence: float = 0.999,
    scale: float | None = None,
    time_limit: float = 60.0,
    seed: int | None = None,
    progress: Callable[[float, str], object] | None = None,
    watch: Callable[[list["Finding"]], object] | None = None,
) -> "Report":
    """Attack a target in every way implemented here, and certify a lower bound on its epsilon.

    Events are chosen on some releases and counted in fresh ones. Exact confidence
    limits on the counts give a lower bound on epsilon. All bounds of a report hold together, except
    with probability 1 - confidence. A report without findings proves nothing.

    Without `neighbours` the target adds noise to a number, and every attack on such noise is tried.
    With `neighbours` it is a mechanism of any kind, and events are learned from its outputs.

    Parameters
    ----------
    target
        One of:

        - a name such as "numpy.laplace", of `dpnoise.auditing.targets.names()`, or
          "opendp.noisy_max", of `dpnoise.auditing.targets.MECHANISMS`, which have neighbours;
        - a function (value, n) that returns an array of n independent releases;
        - "module:attribute", the path of such a function;
        - a command as a list of strings, which reads one value per line and writes one release per
          line.

        With `neighbours`, a function takes (data, n) and returns n outputs. A command reads one
        line of JSON, {"data": ..., "n": ...}, and writes n outputs. An output is a number, a text,
        None, or a tuple, list or array of these.
    epsilon, delta, sensitivity
        The claim of the target.
    mu, rho
        The claim in the place of epsilon: Gaussian or zero-concentrated differential privacy.
    curve
        Compare the target with the whole privacy curve of Gaussian noise that has this epsilon at
        this delta. The certified bound is then the mu of Gaussian differential privacy.
    neighbours
        Pairs of neighbouring data sets, [(a, b), ...]; or a relation: "vector", answers to queries
        that each move by at most the sensitivity, or "rows", one row added, removed or replaced.
    data
        The rows that "rows" starts from: a list, an array or a frame. By default zeros and ones.
    size
        The number of answers in a "vector".
    attacks
        Names or attacks; by default all that apply to any target that adds noise.
    pairs
        The pairs of values to try, each at most the sensitivity apart; by default some around zero,
        fractional, negative and large. "whole" keeps only multiples of the sensitivity, for counts:
        integer noise does not hide a fraction.
    one_by_one
        Ask for one release per call, for targets whose releases of one call depend on each other.
    boosting
        Learn events of a mechanism by gradient boosted trees as well; needs the extra `learning`.
    budget
        The number of releases to ask for; at least 1,000. The default is 480,000 for added noise
        and 2 million for other mechanisms. If the claim needs more releases, the default grows by
        up to a factor of 16, while drawing takes at most two minutes. The side-channel checks ask
        for some thousands more.
    confidence
        The probability that no certified bound of the report is too large.
    scale
        The scale of the noise, if it does not follow from epsilon, delta and sensitivity.
    time_limit
        The most seconds that one call of the target may take.
    seed
        The seed of the auditor's random choices, which the target must not know. With a seed and a
        budget, the same releases give the same report; the noise of the target is not seeded.
    progress
        Called with the completed fraction, and with a text about the current step.
    watch
        Called with the findings so far, whenever there are new ones.

    Examples
    --------
    >>> import dpnoise
    >>> report = dpnoise.audit("numpy.laplace", epsilon=1.0, budget=24_000)
    >>> report.broken, report.epsilon_lower > 3
    (True, True)

    The largest of three noisy answers, with noise that would suffice for the index only:

    >>> import numpy as np
    >>> rng = np.random.default_rng()
    >>> def largest(answers, n):
    ...     return (answers + rng.laplace(scale=2.0, size=(n, len(answers)))).max(axis=1)
    >>> dpnoise.audit(largest, 1.0, neighbours="vector", size=3, budget=200_000).broken
    True
    """
    from dpnoise.auditing.additive_noise import audit_added_noise
    from dpnoise.auditing.any_mechanism import audit_mechanism
    from dpnoise.auditing.attacks.base import ignore_progress
    from dpnoise.auditing.options import AuditOptions
    from dpnoise.auditing.targets import MECHANISMS

    options = AuditOptions(
        epsilon=epsilon, delta=delta, sensitivity=sensitivity, mu=mu, rho=rho, curve=curve,
        neighbours=neighbours, data=data, size=size, attacks=attacks, pairs=pairs,
        one_by_one=one_by_one, boosting=boosting, budget=budget, confidence=confidence,
        scale=scale, time_limit=time_limit, seed=seed,
        progress=progress or ignore_progress, watch=watch or ignore_progress,
    )  # fmt: skip
    is_mechanism = neighbours is not None or (isinstance(target, str) and target in MECHANISMS)
    return (audit_mechanism if is_mechanism else audit_added_noise)(target, options)
