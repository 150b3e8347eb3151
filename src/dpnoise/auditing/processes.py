"""Noise that repeats between processes, and time that tells of the noise.

These need no arithmetic on the outputs: a seed copied by a fork gives the same noise to several
processes, a fixed seed gives it again after a restart, and the difference of two releases with the
same noise is the difference of the secrets. A clock may tell the size of the noise, or whether a
sampler had a second Gaussian in store.

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
from functools import partial
from itertools import combinations
from multiprocessing.connection import Connection
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.auditing.targets.adapters import ReleaseFunction
from dpnoise.auditing.targets.target import Releases, Target, TargetError, named
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import DpnoiseError, check_integer
from dpnoise.core.safe_text import percent_beside

Clock = Callable[[], int]
Times = NDArray[np.int64]
_Result = TypeVar("_Result")

# What a child sends: something for its parent to receive, then its result or an error.
_MESSAGE, _RESULT, _ERROR = "message", "result", "error"

# The p-value below which `timed` and `phased` say that they found something.
FALSE_ALARM: Final = 1e-6
# How often the slower kind of release has to be the slower one of a pair, in every repeat. A
# Gaussian from the store gives 0.7 and more.
PHASE: Final = 0.6
_REPEATS: Final = 3

# This many equal releases at the start are a repetition.
_SAME_START: Final = 8
# What an audit looks at: releases that are timed, and from which a state is recovered.
_TIMED_RELEASES: Final = 2_000
_PREDICTED_RELEASES: Final = 2_000
# Seconds: a release that takes longer is not timed so often.
_SLOWEST_RELEASE: Final = 0.002
# Seconds for a forked child of an audit, which hangs on a lock that it inherits.
_FORK_SECONDS: Final = 10.0


class ProcessError(DpnoiseError, RuntimeError):
    """A process did not give its releases."""


@dataclass(frozen=True)
class Observation:
    """What was seen of a target's processes.

    Parameters
    ----------
    name
        What was looked for: "forked", "restarted", "timed" or "phased".
    found
        Whether it is there.
    words
        What was seen, in one sentence.
    measured
        The figures behind it.
    """

    name: str
    found: bool
    words: str
    measured: dict[str, float] = field(default_factory=dict)


def forked(
    target: Target, value: float = 0.0, *, children: int = 3, n: int = 64, timeout_s: float = 60.0
) -> Observation:
    """Look for the same releases in several forked children.

    The target is used once before, so that a generator that seeds itself at first use has done so.
    Children that begin with the same 8 releases count as equal: a generator may draw afresh when
    the bytes that it had in store at the fork are spent. By chance two of them do so with
    probability p^8, where p is that of one equal release.

    Parameters
    ----------
    target, value
        What is attacked, and the value that it releases.
    children, n
        How many processes to fork from the same parent, and how many releases each draws.
    timeout_s
        After this long a child is killed: a lock held by another thread of the parent stays locked
        in it for ever.

    Examples
    --------
    >>> from dpnoise.auditing.targets import named
    >>> forked(named("numpy.laplace")).words
    'All 3 children drew the same 64 releases.'
    >>> forked(named("dpnoise.release")).words
    'No two of 3 children drew the same 64 releases.'
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
    """Say how many of some children have drawn the same releases, or began with the same."""
    n = len(drawn[0])
    # How many releases two children have in common before the first that differs.
    shared = [int((a == b).cumprod().sum()) for a, b in combinations(drawn, 2)]
    equal = sum(start >= min(n, _SAME_START) for start in shared)
    who = "No two of" if not equal else "All" if equal == len(shared) else "Some of"
    began = max(shared) if equal else n
    did = "drew" if began == n else "began with"
    words = f"{who} {len(drawn)} children {did} the same {began} releases."
    return Observation("forked", equal > 0, words, {"pairs": len(shared), "equal": equal})


def run_in_child(
    work: Callable[[Callable[..., None]], _Result],
    name: str,
    timeout_s: float | None = None,
    receive: Callable[..., object] = print,
) -> _Result:
    """Return what `work` returns in a forked child, or raise what it raises there.

    Each time that `work` calls its argument in the child, `receive` is called here. Errors say by
    `name` which child has ended, or is killed after a time without an answer.
    """
    if not hasattr(os, "fork"):
        raise ProcessError("This needs os.fork, which this system does not have.")
    context = multiprocessing.get_context("fork")
    pipe, childs_end = context.Pipe(duplex=False)
    child = context.Process(target=_work_and_answer, args=(work, childs_end))
    with warnings.catch_warnings():
        # Python and JAX warn that a child of several threads may hang. That is what the limit of
        # time is for.
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


def program_of(name: str, value: float = 0.0, n: int = 64) -> str:
    """Return a program that prints releases of a target: a name, or module:attribute."""
    made = f"targets.resolve({name!r}, 1.0, {0.0 if ':' in name else 1e-6}, 1.0)"
    return f"from dpnoise.auditing import targets; print({made}({value!r}, {n}).tolist())"


def restarted(program: str, *, timeout_s: float = 300.0) -> Observation:
    """Look for the same output of a program in two fresh interpreters: a fixed seed.

    Parameters
    ----------
    program
        Python code that prints releases and nothing else; `program_of` writes one. It does not
        import from the current folder (`python -P`), where anybody may have put a json.py.
    timeout_s
        After this long an interpreter is killed.

    Examples
    --------
    >>> restarted("import random; random.seed(7); print(random.gauss(0, 1))").found
    True
    >>> restarted("import random; print([random.gauss(0, 1) for _ in range(9)])").found
    False
    """
    first, second = (_output_of(program, timeout_s) for _ in range(2))
    found = first == second
    words = f"Two fresh interpreters printed {'the same' if found else 'different'} releases."
    return Observation("restarted", found, words, {"characters": len(first)})


def _output_of(program: str, timeout_s: float) -> str:
    """Run a program in this interpreter's twin."""
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


def timed(
    target: Target, value: float = 0.0, *, n: int = 10_000, clock: Clock = time.perf_counter_ns
) -> Observation:
    """Look for a time that depends on the size of the noise, as in samplers that count up to it.

    The test is Spearman's rank correlation of the time of a release with |release - value|. A
    busy machine can hide such a dependence. It cannot feign one: what disturbs the clock does not
    know the noise, and if the two are independent every pairing of them is equally likely, so the
    rate of false alarms holds for times of any kind.

    Parameters
    ----------
    target, value
        What is attacked, and the value that it releases, one at a time.
    n
        How many releases are timed.
    clock
        Returns whole nanoseconds.
    """
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    times, releases = _time_releases(target, value, check_integer("n", n, least=1000), clock)
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


def phased(
    target: Target, value: float = 0.0, *, n: int = 10_000, clock: Clock = time.perf_counter_ns
) -> Observation:
    """Look for calls that are slow and fast in turn: Gaussians made in pairs, one kept in store.

    A busy machine may be slow and fast in turn by itself. So chance decides which releases are the
    odd ones: before each that is timed, a coin calls either the target once more or a control of
    the same shape that keeps nothing, NumPy's Laplace noise. What disturbs the clock does not know
    the coins, and the rate of false alarms holds for times of any kind, as in `timed`. The control
    is timed in the same rounds, and split by the same coins.

    Found is what three repeats agree on: the times of odd and even releases differ with a p-value
    below 10^-6 (Mann-Whitney); of one release of either kind, the same one is slower in more than
    60 % of the cases, in each third of the rounds; and the control's are not. A busy machine can
    hide such a difference.

    Parameters
    ----------
    target, value, n, clock
        As for `timed`.
    """
    measured = _compare_kinds(
        *_time_rounds(target, value, check_integer("n", n, least=1000), clock)
    )
    least, control = measured["least"], measured["control"]
    found = measured["p_value"] < FALSE_ALARM and least > PHASE >= control
    words = (
        f"Every other release {'is' if found else 'was not seen to be'} slower: the time tells the "
        f"two kinds apart in {percent_beside(least, PHASE)} of the cases in the worst of "
        f"{_REPEATS} repeats, and those of a control in {percent_beside(control, PHASE)}."
    )
    return Observation("phased", found, words, measured)


def _compare_kinds(times: Times, control: Times, odd: Flags) -> dict[str, float]:
    """Compare the times of odd and even releases, in all rounds and in each repeat."""
    odd_slower, p_value = _compare_times(times, odd)
    parts = zip(np.array_split(times, _REPEATS), np.array_split(odd, _REPEATS), strict=True)
    repeats = [_compare_times(*part)[0] for part in parts]
    control_slower, _ = _compare_times(control, odd)
    return {
        "odd_median_ns": float(np.median(times[odd])),
        "even_median_ns": float(np.median(times[~odd])),
        "odd_slower": odd_slower,
        "p_value": p_value,
        "least": min(repeats) if odd_slower > 0.5 else 1 - max(repeats),
        "control": max(control_slower, 1 - control_slower),
    }


def _compare_times(times: Times, odd: Flags) -> tuple[float, float]:
    """Return how often an odd one of two is the slower, and the p-value of their being alike."""
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    test = stats.mannwhitneyu(times[odd], times[~odd])
    return float(test.statistic) / int(odd.sum() * (~odd).sum()), float(test.pvalue)


def _time_rounds(target: Target, value: float, n: int, clock: Clock) -> tuple[Times, Times, Flags]:
    """Time n releases of a target and of the control; tell which are the target's odd ones."""
    release, control = target.release, named("numpy.laplace").release
    times = np.empty((n, 3), dtype=np.int64)
    coins = np.frombuffer(os.urandom(n), dtype=np.uint8) % 2
    for _ in range(100):
        release(value, 1)
        control(value, 1)
    for i, coin in enumerate(coins.tolist()):
        for j, call in enumerate((release if coin else control, control, release)):
            times[i, j], _ = _time_call(call, value, clock)
    odd = (np.cumsum(coins, dtype=np.int64) + np.arange(n)) % 2 == 1
    return times[:, 2], times[:, 1], odd


def _time_releases(target: Target, value: float, n: int, clock: Clock) -> tuple[Times, Floats]:
    """Time n releases, one by one, without the checks of a target's call.

    The first hundred warm up. Nothing is kept but numbers: the memory for a growing list of arrays
    would show in the times.
    """
    times, releases = np.empty(n, dtype=np.int64), np.empty(n)
    for _ in range(100):
        target.release(value, 1)
    for i in range(n):
        times[i], result = _time_call(target.release, value, clock)
        releases[i] = np.asarray(result)[0]
    return times, releases


def _time_call(release: ReleaseFunction, value: float, clock: Clock) -> tuple[int, ArrayLike]:
    start = clock()
    result = release(value, 1)
    return clock() - start, result


@dataclass(frozen=True)
class Look:
    """One of the observations, as the command line offers it."""

    name: str
    breaks: str
    source: str
    default_target: str
    look: Callable[[Target], Observation]


_LOOKS: Final = (
    Look("forked", "generators with state, copied into each child: NumPy, random, PyDP",
         "known since fork; measured here", "numpy.laplace", forked),
    Look("restarted", "generators with a fixed seed", "known since seeds; measured here",
         "numpy.laplace", lambda target: restarted(program_of(target.name))),
    Look("timed", "samplers that count or reject: diffprivlib's discrete ones, PyDP's",
         "Jin, McMurtry, Rubinstein and Ohrimenko 2022", "diffprivlib.GaussianDiscrete", timed),
    Look("phased", "Gaussians made in pairs: random.gauss, numpy.random.RandomState.normal",
         "Holohan and Braghin 2021, section 2.4", "random.gauss", phased),
)  # fmt: skip
LOOKS: Final = {look.name: look for look in _LOOKS}


def observations(
    asked: object, target: Target, limited: Target, time_limit: float
) -> list[Observation]:
    """Look at what certifies nothing: a generator's state, forks, restarts and time.

    `asked` is what the audit was given: some looks are for a name or for a command only. The target
    comes by itself and with a time limit, which takes a new thread for each call. That would hide
    what a clock sees, and a generator that each thread has for itself. A look that fails must not
    cost the report, and one that would take minutes is left out.
    """
    if isinstance(asked, list | tuple):
        return [_look_safely(partial(_compare_runs, target))]
    looks: list[Callable[[], Observation]] = [
        partial(_recover_state, limited),
        partial(_look_at_clock, timed, target, limited),
        partial(_look_at_clock, phased, target, limited),
        partial(forked, target, timeout_s=min(time_limit, _FORK_SECONDS)),
    ]
    if isinstance(asked, str):
        program = program_of(asked)
        looks.append(partial(restarted, program, timeout_s=time_limit))
    return [_look_safely(look) for look in looks]


def _look_safely(look: Callable[[], Observation]) -> Observation:
    """Make a look that fails an observation of that."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - whatever a target raises, the report is worth more
        return Observation("not seen", found=False, words=f"{type(error).__name__}: {error}")


def _look_at_clock(
    look: Callable[..., Observation], target: Target, limited: Target
) -> Observation:
    """Time releases one by one, if a single one comes soon enough for that."""
    seconds = min(_seconds(limited) for _ in range(3))
    if seconds > _SLOWEST_RELEASE:
        n = f"{_TIMED_RELEASES:,}"
        words = f"A release takes {1000 * seconds:.0f} ms, too long to time {n} of them."
        return Observation("not seen", found=False, words=words)
    return look(target, n=_TIMED_RELEASES)


def _seconds(target: Target) -> float:
    start = time.perf_counter()
    target(0.0, 1)
    return time.perf_counter() - start


def _recover_state(target: Target) -> Observation:
    """Try to solve for the state of a Mersenne Twister, and to predict what comes next."""
    from dpnoise.auditing.attacks.twister import (  # noqa: PLC0415 - attacks take long to import
        MersenneTwister,
    )

    outcome = MersenneTwister()(target, n=_PREDICTED_RELEASES, placebo=False)
    found = outcome.at0.hits == outcome.at0.trials and outcome.at1.hits == 0
    words = (
        f"The generator's state was recovered from {_PREDICTED_RELEASES:,} releases of a known "
        f"value, and all of the next {outcome.at0.trials:,} releases were predicted."
        if found
        else "No state of a Mersenne Twister was recovered."
    )
    return Observation("state", found, words)


def _compare_runs(target: Target) -> Observation:
    """Compare two runs of a command."""
    found = bool((target(0.0, 64) == target(0.0, 64)).all())
    words = f"Two runs of the command wrote {'the same' if found else 'different'} releases."
    return Observation("restarted", found, words)
