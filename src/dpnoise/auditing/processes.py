"""Side-channel checks: noise that repeats between processes, and time that depends on the noise.

These checks need no arithmetic on the outputs. A seed copied by a fork gives the same noise to
several processes; a fixed seed repeats the noise after a restart. Two releases with the same noise
reveal the difference of the secrets. The time of a release may reveal the size of the noise, or
whether a sampler had a second Gaussian in store.

None of this is counted in the certified epsilon of an audit.
"""

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from multiprocessing.connection import Connection
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.auditing.targets.adapters import ReleaseFunction
from dpnoise.auditing.targets.target import Releases, Target, TargetError, make_target
from dpnoise.core.arrays import Flags
from dpnoise.core.errors import DpnoiseError, check_integer
from dpnoise.core.safe_text import escape_text, format_percent_near_limit

Clock = Callable[[], int]
Times = NDArray[np.int64]
_Result = TypeVar("_Result")

# Kinds of messages from a child: any number of messages, then its result or an error.
_MESSAGE, _RESULT, _ERROR = "message", "result", "error"

# The p-value below which `check_timing` and `check_stored_noise` report a problem.
FALSE_ALARM: Final = 1e-6
# Least share of pairs, in every repeat, in which the slower kind of release must be slower. A
# stored Gaussian gives 0.7 and more.
PHASE: Final = 0.6
_REPEATS: Final = 3

# Equal releases at the start that count as a repetition: chance does not give this many.
_SAME_START: Final = 8
# Releases that an audit times: enough for the p-value, and a few seconds at most.
_TIMED_RELEASES: Final = 2_000
_WARM_UP: Final = 100  # Calls before the first that is timed.
# Releases from which an audit recovers the state of a generator.
_PREDICTED_RELEASES: Final = 2_000
# Seconds: slower targets are not timed, because the check would take too long.
_SLOWEST_RELEASE: Final = 0.002
# Seconds for a forked child of an audit, which may hang on a lock that it inherits.
_FORK_SECONDS: Final = 10.0


class ProcessError(DpnoiseError, RuntimeError):
    """A process failed to return its releases."""


@dataclass(frozen=True)
class Observation:
    """The result of one side-channel check, and whether it found a problem.

    The name is "forked", "restarted", "timed", "phased" or "state"; "running time" for
    `time="output"`; "not seen" if the check failed. `words` is the result, and `measured` has the
    measurements behind it.
    """

    name: str
    found: bool
    words: str
    measured: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the check and its result."""
        return escape_text(f"{self.name}: {self.words}")


def check_forks(
    target: Target, value: float = 0.0, *, children: int = 3, n: int = 64, timeout_s: float = 60.0
) -> Observation:
    """Check whether several forked children draw the same releases.

    The target is called once before the fork, because some generators seed themselves at first use.
    Children that begin with the same 8 releases count as equal: a generator may reseed itself when
    its buffered bytes run out. Two children do so by chance with probability p^8, where p is the
    probability of one equal release. A child is killed after `timeout_s` seconds: a lock held by
    another thread of the parent stays locked in the child for ever.

    Examples
    --------
    >>> from dpnoise.auditing.targets import make_target
    >>> check_forks(make_target("numpy.laplace")).words
    'All 3 children drew the same 64 releases.'
    """
    count = check_integer("children", children, least=2)
    n = check_integer("n", n, least=1)
    target(value, 1)
    name = "A forked child"
    try:
        drawn = [run_in_child(lambda _: target(value, n), name, timeout_s) for _ in range(count)]
    except TargetError as error:
        raise ProcessError(f"{name} failed: {type(error).__name__}: {error}.") from None
    return _compare_children(drawn)


def _compare_children(drawn: Sequence[Releases]) -> Observation:
    """Report how many children drew the same releases, or began with the same ones."""
    n = len(drawn[0])
    # For each two children, the number of equal releases before the first that differs.
    shared = [int((a == b).cumprod().sum()) for a, b in combinations(drawn, 2)]
    equal = sum(start >= min(n, _SAME_START) for start in shared)
    subject = "No two of" if not equal else "All" if equal == len(shared) else "Some of"
    longest = max(shared) if equal else n
    verb = "drew" if longest == n else "began with"
    words = f"{subject} {len(drawn)} children {verb} the same {longest} releases."
    return Observation("forked", equal > 0, words, {"pairs": len(shared), "equal": equal})


def run_in_child(
    work: Callable[[Callable[..., None]], _Result],
    name: str,
    timeout_s: float | None = None,
    receive: Callable[..., object] = print,
) -> _Result:
    """Run `work` in a forked child, and return its result or raise its error.

    Each time that `work` calls its argument in the child, `receive` is called in the parent. Error
    messages use `name` for a child that ended early, or that was killed after the timeout.
    """
    if not hasattr(os, "fork"):
        raise ProcessError("This needs os.fork, which this system does not have.")
    context = multiprocessing.get_context("fork")
    pipe, childs_end = context.Pipe(duplex=False)
    child = context.Process(target=_work_and_answer, args=(work, childs_end))
    with warnings.catch_warnings():
        # Python and JAX warn that a child of several threads may hang. The timeout covers that.
        warnings.simplefilter("ignore")
        child.start()
    childs_end.close()
    try:
        while pipe.poll(timeout_s):
            kind, content = pipe.recv()
            if kind == _RESULT:
                return content  # type: ignore[no-any-return]
            if kind == _ERROR:
                raise content
            receive(*content)
    except EOFError:
        child.join()
        raise ProcessError(f"{name} ended its process with status {child.exitcode}.") from None
    finally:
        pipe.close()
        child.kill()
        child.join()
    raise ProcessError(f"{name} gave no answer in {timeout_s:g} s, and was killed.")


def _work_and_answer(work: Callable[[Callable[..., None]], object], pipe: Connection) -> None:
    try:
        answer = _RESULT, work(lambda *content: pipe.send((_MESSAGE, content)))
    except DpnoiseError as error:
        answer = _ERROR, error
    except BaseException as error:  # noqa: BLE001 - nothing may leave the child
        answer = _ERROR, ProcessError(f"{type(error).__name__}: {error}")
    pipe.send(answer)


def release_program(name: str, value: float = 0.0, n: int = 64) -> str:
    """Return a Python program that prints releases of a target: a name, or module:attribute."""
    target = f"targets.resolve({name!r}, 1.0, {0.0 if ':' in name else 1e-6}, 1.0)"
    return f"from dpnoise.auditing import targets; print({target}({value!r}, {n}).tolist())"


def check_restarts(program: str, *, timeout_s: float = 300.0) -> Observation:
    """Check for a fixed seed: a program that prints the same in two fresh interpreters.

    The program is Python code that prints releases and nothing else; `release_program` writes one.
    It does not import from the current folder (`python -P`), where anybody may have put a json.py.

    Examples
    --------
    >>> check_restarts("import random; random.seed(7); print(random.gauss(0, 1))").found
    True
    """
    first, second = (_output_of(program, timeout_s) for _ in range(2))
    found = first == second
    words = f"Two fresh interpreters printed {'the same' if found else 'different'} releases."
    return Observation("restarted", found, words, {"characters": len(first)})


def _output_of(program: str, timeout_s: float) -> str:
    """Run a program in a fresh interpreter of this Python, and return what it prints."""
    command = [sys.executable, "-P", "-c", program]
    try:
        run = subprocess.run(  # noqa: S603 - this interpreter and the caller's own program
            command, capture_output=True, check=False, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        message = f"The program gave no answer in {timeout_s:g} s, and was killed."
        raise ProcessError(message) from None
    if run.returncode or not run.stdout.strip():
        last = run.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ProcessError(f"The program failed: {last[0]}.")
    return run.stdout


def check_timing(
    target: Target, value: float = 0.0, *, n: int = 10_000, clock: Clock = time.perf_counter_ns
) -> Observation:
    """Check whether the time of a release depends on the size of its noise.

    It does in samplers that count up to the noise. The test is Spearman's rank correlation of the
    time of a release with |release - value|. A busy machine can hide a dependence, but not cause
    one: its disturbances are independent of the noise. Every pairing of times and noise is then
    equally likely, so the false-alarm rate holds for times of any kind. The clock returns whole
    nanoseconds.
    """
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    check_integer("n", n, least=1000)
    # Only numbers are kept: allocating a growing list of arrays would show in the times.
    times, releases = np.empty(n, dtype=np.int64), np.empty(n)
    for _ in range(_WARM_UP):
        target.release(value, 1)
    for i in range(n):
        # `release` is without the checks of a target's call.
        times[i], result = _time_call(target.release, value, clock)
        releases[i] = np.asarray(result)[0]
    sizes = np.abs(releases - value)
    slow = times > np.quantile(times, 0.9)
    measured = {
        "median_ns": float(np.median(times)),
        "noise_when_slow": float(np.median(sizes[slow] if slow.any() else sizes)),
        "noise_otherwise": float(np.median(sizes[~slow])),
        "correlation": 0.0,
        "p_value": 1.0,
    }
    if np.ptp(times) and np.ptp(sizes):
        test = stats.spearmanr(times, sizes)
        measured |= {"correlation": float(test.statistic), "p_value": float(test.pvalue)}
    found = measured["p_value"] < FALSE_ALARM
    words = (
        f"The time of a release {'depends' if found else 'was not seen to depend'} on its noise: "
        f"rank correlation {measured['correlation']:+.3f} in {n:,} releases."
    )
    return Observation("timed", found, words, measured)


def check_stored_noise(
    target: Target, value: float = 0.0, *, n: int = 10_000, clock: Clock = time.perf_counter_ns
) -> Observation:
    """Check whether calls are slow and fast in turn: Gaussians made in pairs, one kept in store.

    A busy machine may be slow and fast in turn as well. So chance decides which releases are the
    odd ones. Before each timed release, a coin chooses one more call: of the target, or of a
    control that stores nothing, NumPy's Laplace noise. Disturbances of the clock are independent of
    the coins, so the false-alarm rate holds for times of any kind, as in `check_timing`. The
    control is timed in the same rounds, and split by the same coins.

    The check finds a problem if three conditions hold:

    - The times of odd and even releases differ with a p-value below 10^-6 (Mann-Whitney).
    - In each third of the rounds, the same kind is the slower of two in more than 60 % of cases.
    - The releases of the control do not differ like that.

    A busy machine can hide such a difference.
    """
    check_integer("n", n, least=1000)
    times, control_times, odd = _time_rounds(target, value, n, clock)
    # The times of odd and even releases are compared in all rounds, and in each repeat.
    odd_slower, p_value = _compare_times(times, odd)
    parts = zip(np.array_split(times, _REPEATS), np.array_split(odd, _REPEATS), strict=True)
    repeats = [_compare_times(*part)[0] for part in parts]
    least = min(repeats) if odd_slower > 0.5 else 1 - max(repeats)
    control_slower, _ = _compare_times(control_times, odd)
    control = max(control_slower, 1 - control_slower)
    found = p_value < FALSE_ALARM and least > PHASE >= control
    words = (
        f"Every other release {'is' if found else 'was not seen to be'} slower: the time tells the "
        f"two kinds apart in {format_percent_near_limit(least, PHASE)} of the cases in the worst "
        f"of {_REPEATS} repeats, and those of a control in "
        f"{format_percent_near_limit(control, PHASE)}."
    )
    kinds = {"odd": times[odd], "even": times[~odd]}
    measured = {f"{kind}_median_ns": float(np.median(of_kind)) for kind, of_kind in kinds.items()}
    measured |= {"odd_slower": odd_slower, "p_value": p_value, "least": least, "control": control}
    return Observation("phased", found, words, measured)


def _compare_times(times: Times, odd: Flags) -> tuple[float, float]:
    """Return how often the odd release of two is the slower, and the p-value of no difference."""
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    test = stats.mannwhitneyu(times[odd], times[~odd])
    return float(test.statistic) / int(odd.sum() * (~odd).sum()), float(test.pvalue)


def _time_rounds(target: Target, value: float, n: int, clock: Clock) -> tuple[Times, Times, Flags]:
    """Time n releases of a target and of the control, and flag the odd releases of the target."""
    release, control = target.release, make_target("numpy.laplace").release
    times = np.empty((n, 3), dtype=np.int64)
    coins = np.frombuffer(os.urandom(n), dtype=np.uint8) % 2
    for _ in range(_WARM_UP):
        release(value, 1)
        control(value, 1)
    for i, coin in enumerate(coins.tolist()):
        for j, call in enumerate((release if coin else control, control, release)):
            times[i, j], _ = _time_call(call, value, clock)
    odd = (np.cumsum(coins, dtype=np.int64) + np.arange(n)) % 2 == 1
    return times[:, 2], times[:, 1], odd


def _time_call(release: ReleaseFunction, value: float, clock: Clock) -> tuple[int, ArrayLike]:
    start = clock()
    result = release(value, 1)
    return clock() - start, result


@dataclass(frozen=True)
class SideChannelCheck:
    """A side-channel check, as the command line offers it."""

    name: str
    breaks: str
    source: str
    default_target: str
    check: Callable[[Target], Observation]


_CHECKS: Final = (
    ("forked", "generators with state, copied into each child: NumPy, random, PyDP",
     "known since fork; measured here", "numpy.laplace", check_forks),
    ("restarted", "generators with a fixed seed",
     "known since seeds; measured here", "numpy.laplace",
     lambda target: check_restarts(release_program(target.name))),
    ("timed", "samplers that count or reject: diffprivlib's discrete ones, PyDP's",
     "Jin, McMurtry, Rubinstein and Ohrimenko 2022", "diffprivlib.GaussianDiscrete", check_timing),
    ("phased", "Gaussians made in pairs: random.gauss, numpy.random.RandomState.normal",
     "Holohan and Braghin 2021, section 2.4", "random.gauss", check_stored_noise),
)  # fmt: skip
SIDE_CHANNEL_CHECKS: Final = {row[0]: SideChannelCheck(*row) for row in _CHECKS}


def run_side_channel_checks(
    argument: object, target: Target, limited: Target, time_limit: float
) -> list[Observation]:
    """Run the side-channel checks, which certify nothing: state, forks, restarts and time.

    `argument` is the target as the caller named it: some checks need a name or a command. `limited`
    is the target with a time limit, which starts a thread for each call. Threads would distort the
    times, and hide a generator that each thread has for itself. A failed check must not cost the
    report, and a check that would take minutes is skipped.
    """
    if isinstance(argument, list | tuple):
        return [_check_safely(_compare_runs, target)]
    observations = [
        _check_safely(_recover_state, limited),
        _check_safely(_check_time, check_timing, target, limited),
        _check_safely(_check_time, check_stored_noise, target, limited),
        _check_safely(check_forks, target, timeout_s=min(time_limit, _FORK_SECONDS)),
    ]
    if isinstance(argument, str):
        program = release_program(argument)
        observations.append(_check_safely(check_restarts, program, timeout_s=time_limit))
    return observations


def _check_safely(
    check: Callable[..., Observation], *arguments: object, **options: object
) -> Observation:
    """Run a check; if it fails, return an observation that says so."""
    try:
        return check(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - whatever a target raises, the report is worth more
        return Observation("not seen", found=False, words=f"{type(error).__name__}: {error}")


def _check_time(check: Callable[..., Observation], target: Target, limited: Target) -> Observation:
    """Run a check that times single releases, unless a release takes too long."""
    seconds = min(_seconds_per_release(limited) for _ in range(3))
    n = _TIMED_RELEASES
    if seconds <= _SLOWEST_RELEASE:
        return check(target, n=n)
    words = f"A release takes {1000 * seconds:.0f} ms, too long to time {n:,} of them."
    return Observation("not seen", found=False, words=words)


def _seconds_per_release(target: Target) -> float:
    start = time.perf_counter()
    target(0.0, 1)
    return time.perf_counter() - start


def _recover_state(target: Target) -> Observation:
    """Try to recover the state of a Mersenne Twister, and to predict the next releases."""
    from dpnoise.auditing.attacks.twister import (  # noqa: PLC0415 - attacks take long to import
        MersenneTwister,
    )

    n = _PREDICTED_RELEASES
    outcome = MersenneTwister()(target, n=n, placebo=False)
    found = outcome.at0.hits == outcome.at0.trials and outcome.at1.hits == 0
    words = "No state of a Mersenne Twister was recovered."
    if found:
        words = f"The generator's state was recovered from {n:,} releases of a known value"
        words += f", and all of the next {outcome.at0.trials:,} releases were predicted."
    return Observation("state", found, words)


def _compare_runs(target: Target) -> Observation:
    """Compare two runs of a command."""
    found = bool((target(0.0, 64) == target(0.0, 64)).all())
    words = f"Two runs of the command wrote {'the same' if found else 'different'} releases."
    return Observation("restarted", found, words)
