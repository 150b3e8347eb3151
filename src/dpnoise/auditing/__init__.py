"""What can be proved against an implementation of noise."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpnoise.attacks.processes import Observation
    from dpnoise.auditing.report import BrokenError, Finding, Report

__all__ = ["BrokenError", "Finding", "Observation", "Report", "audit"]


def __getattr__(name: str) -> Any:
    # What a report is made of brings SciPy, and `import dpnoise` must not.
    if name in __all__:
        from dpnoise.auditing import report

        return getattr(report, name)
    raise AttributeError(f"module 'dpnoise.auditing' has no attribute {name!r}")


def audit(
    target: Any,
    epsilon: float,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    *,
    attacks: Iterable[Any] | None = None,
    budget: int = 480_000,
    confidence: float = 0.999,
    scale: float | None = None,
    time_limit: float = 60.0,
    progress: Callable[[float, str], object] | None = None,
    watch: Callable[[list["Finding"]], object] | None = None,
) -> "Report":
    """Attack a target in every known way, and certify a lower bound on its true epsilon.

    Each attack chooses an event on some releases; all are counted in fresh ones, and exact limits
    give an epsilon that the target is not below: wrong with probability 1 - confidence at most,
    for the whole report. That nothing was found proves nothing.

    Parameters
    ----------
    target
        A name ("numpy.laplace": see `dpnoise.targets.names()`), a function (value, n) -> array of n
        independent releases, "module:attribute", or a command as a list of strings, which reads a
        value on each line and writes a release for each.
    epsilon, delta, sensitivity
        What the target claims.
    attacks
        Names or attacks; by default all that apply to any target.
    budget
        How many releases to ask for to choose events and to count them; at least 1,000. Looks at
        forks, restarts and time ask for some thousands more.
    confidence
        The probability that no certified epsilon of the report is too large.
    scale
        The scale of the noise, where it is another than epsilon, delta and sensitivity ask for.
    time_limit
        The most seconds that one call of the target may take.
    progress
        Called with the part that is done, and what is being done.
    watch
        Called with the findings so far, whenever a pair of values is done.

    Examples
    --------
    >>> import dpnoise
    >>> report = dpnoise.audit("numpy.laplace", epsilon=1.0, budget=24_000)
    >>> report.broken, report.epsilon_lower > 3
    (True, True)
    """
    from dpnoise.attacks.base import silent
    from dpnoise.auditing import running

    return running.run(
        target,
        epsilon,
        delta,
        sensitivity,
        attacks,
        budget,
        confidence,
        scale,
        time_limit,
        progress or silent,
        watch or silent,
    )
