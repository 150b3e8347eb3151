"""What an audit looks at beside its bound: a generator's state, forks, restarts and time.

None of this is counted in the certified epsilon. A look that fails must not cost the report, and
one that would take minutes is left out.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from dpnoise.auditing import processes
from dpnoise.auditing.attacks.twister import MersenneTwister
from dpnoise.auditing.calls import ExitCalledError, without_exit
from dpnoise.auditing.processes import Observation
from dpnoise.auditing.targets.target import Target

_TIMED: Final = 2_000  # Releases that are timed, one by one.
_SLOWEST: Final = 0.002  # Seconds: a release that takes longer is not timed so often.
_PREDICTED: Final = 2_000  # Releases from which a state is recovered, and as many to predict.
_FORKED: Final = 10.0  # Seconds for a forked child, which hangs on a lock that it inherits.


def observations(
    asked: Any, target: Target, limited: Target, time_limit: float
) -> list[Observation]:
    """Look at what certifies nothing.

    Parameters
    ----------
    asked
        What the audit was given: some looks are for a name or for a command only.
    target, limited
        The target itself, and with a time limit. The limit takes a new thread for each call, which
        would hide what a clock sees, and a generator that each thread has for itself.
    time_limit
        The most seconds that one call may take.
    """
    if isinstance(asked, list | tuple):
        return [_looked(partial(_repeated, target))]
    looks: list[Callable[[], Observation]] = [
        partial(_stateful, limited),
        partial(_clocked, processes.timed, target, limited),
        partial(_clocked, processes.phased, target, limited),
        partial(processes.forked, target, timeout_s=min(time_limit, _FORKED)),
    ]
    if isinstance(asked, str):
        program = processes.program_of(asked)
        looks.append(partial(processes.restarted, program, timeout_s=time_limit))
    return [_looked(look) for look in looks]


def _looked(look: Callable[[], Observation]) -> Observation:
    """Make a look that fails an observation of that."""
    try:
        with without_exit():
            return look()
    except (Exception, ExitCalledError) as error:  # noqa: BLE001 - whatever a target raises, the report is worth more
        return Observation("not seen", found=False, words=f"{type(error).__name__}: {error}")


def _clocked(look: Callable[..., Observation], target: Target, limited: Target) -> Observation:
    """Time releases one by one, if a single one comes soon enough for that."""
    seconds = min(_seconds(limited) for _ in range(3))
    if seconds > _SLOWEST:
        words = f"A release takes {1000 * seconds:.0f} ms, too long to time {_TIMED:,} of them."
        return Observation("not seen", found=False, words=words)
    return look(target, n=_TIMED)


def _seconds(target: Target) -> float:
    start = time.perf_counter()
    target(0.0, 1)
    return time.perf_counter() - start


def _stateful(target: Target) -> Observation:
    """Try to solve for the state of a Mersenne Twister, and to predict what comes next."""
    outcome = MersenneTwister()(target, n=_PREDICTED, placebo=False)
    found = outcome.at0.hits == outcome.at0.trials and outcome.at1.hits == 0
    words = (
        f"The generator's state was recovered from {_PREDICTED:,} releases of a known value, and "
        f"all of the next {outcome.at0.trials:,} releases were predicted."
        if found
        else "No state of a Mersenne Twister was recovered."
    )
    return Observation("state", found, words)


def _repeated(target: Target) -> Observation:
    """Compare two runs of a command."""
    found = bool((target(0.0, 64) == target(0.0, 64)).all())
    words = f"Two runs of the command wrote {'the same' if found else 'different'} releases."
    return Observation("restarted", found, words)
