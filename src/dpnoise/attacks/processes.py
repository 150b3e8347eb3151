"""Noise that repeats between processes, and time that tells of the noise.

These need no arithmetic on the outputs: a seed copied by a fork gives the same noise to several
processes, a fixed seed gives it again after a restart, and the difference of two releases with the
same noise is the difference of the secrets. A clock may tell the size of the noise, or whether a
sampler had a second Gaussian in store.
"""

import os
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import DpnoiseError, check_integer
from dpnoise.targets.target import Target

Clock = Callable[[], int]

# The p-value below which `timed` and `phased` say that they found something.
FALSE_ALARM: Final = 1e-6
# How often the slower kind of release has to be the slower one of a pair. A Gaussian from the store
# gives 0.7 and more; a machine that hands out memory by turns gives up to 0.54 by itself.
PHASE: Final = 0.6


# This many equal releases at the start are a repetition.
_SAME_START: Final = 8


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
    children
        How many processes to fork, one after the other, all from the same parent.
    n
        How many releases each child draws.
    timeout_s
        After this long a child is killed: a lock held by another thread of the parent stays locked
        in it for ever.

    Examples
    --------
    >>> from dpnoise.targets import named
    >>> forked(named("numpy.laplace")).words
    'All 3 children drew the same 64 releases.'
    >>> forked(named("dpnoise.release")).words
    'No two of 3 children drew the same 64 releases.'
    """
    count = check_integer("children", children, least=2)
    n = check_integer("n", n, least=1)
    target(value, 1)
    raw = [_in_child(lambda: target(value, n).tobytes(), timeout_s) for _ in range(count)]
    drawn = [np.frombuffer(child, dtype=np.uint8).reshape(n, -1) for child in raw]
    shared = [_common_start(a, b) for a, b in combinations(drawn, 2)]
    equal = sum(start >= min(n, _SAME_START) for start in shared)
    who = "No two of" if not equal else "All" if equal == len(shared) else "Some of"
    began = max(shared) if equal and max(shared) < n else n
    did = "drew" if began == n else "began with"
    words = f"{who} {count} children {did} the same {began} releases."
    return Observation("forked", equal > 0, words, {"pairs": len(shared), "equal": equal})


def _common_start(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> int:
    """Return how many releases two children have in common before the first that differs."""
    differ = (a != b).any(axis=1)
    return int(differ.argmax()) if differ.any() else len(a)


def _in_child(work: Callable[[], bytes], timeout_s: float) -> bytes:
    """Return what `work` gives in a forked child, or raise what went wrong there."""
    if not hasattr(os, "fork"):
        raise ProcessError("This needs os.fork, which this system does not have.")
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # Python and JAX warn that a child of several threads may hang. That is what the limit of
        # time is for.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        _work_and_exit(work, theirs)
    os.close(theirs)
    try:
        received = _read_all(ours, timeout_s)
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)  # It has closed its pipe, or it hangs.
        os.waitpid(child, 0)
    if received[:1] != b"+":
        raise ProcessError(f"A forked child failed: {received[1:].decode() or 'no output'}.")
    return received[1:]


def _work_and_exit(work: Callable[[], bytes], pipe: int) -> NoReturn:
    """Send the result, or the exception, and end without the parent's clean-up."""
    try:
        try:
            message = b"+" + work()
        except BaseException as error:  # noqa: BLE001 - nothing may leave the child
            message = b"-" + f"{type(error).__name__}: {error}".encode()
        with os.fdopen(pipe, "wb") as stream:
            stream.write(message)
    finally:
        os._exit(0)


def _read_all(pipe: int, timeout_s: float) -> bytes:
    """Read until the other end is closed."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(pipe, 2**16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise ProcessError(f"A forked child gave no answer in {timeout_s:g} s, and was killed.")


def program_of(name: str, value: float = 0.0, n: int = 64) -> str:
    """Return a program that prints releases of a target: a name, or module:attribute."""
    made = f"targets.resolve({name!r}, 1.0, {0.0 if ':' in name else 1e-6}, 1.0)"
    return f"from dpnoise import targets; print({made}({value!r}, {n}).tolist())"


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

    times, releases = _times(target, value, check_integer("n", n, least=1000), clock)
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

    The test compares the times of every other release with the rest (Mann-Whitney). A busy
    machine can hide such a difference. It can feign a small one, because memory is handed out by
    turns too, so a finding asks for more than a p-value: of one release of either kind, the same
    one must be slower in 60 % of the cases.

    Parameters
    ----------
    target, value, n, clock
        As for `timed`.
    """
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    times, _ = _times(target, value, check_integer("n", n, least=1000), clock)
    even, odd = times[::2], times[1::2]
    test = stats.mannwhitneyu(even, odd)
    measured = {
        "even_median_ns": float(np.median(even)),
        "odd_median_ns": float(np.median(odd)),
        "even_slower": float(test.statistic) / (even.size * odd.size),
        "p_value": float(test.pvalue),
    }
    share = max(measured["even_slower"], 1 - measured["even_slower"])
    found = measured["p_value"] < FALSE_ALARM and share > PHASE
    words = (
        f"Every other release {'is' if found else 'was not seen to be'} slower: the time tells the "
        f"two kinds apart in {share:.1%} of the cases."
    )
    return Observation("phased", found, words, measured)


def _times(
    target: Target, value: float, n: int, clock: Clock
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Time n releases, one by one, without the checks of a target's call.

    The first hundred warm up. Nothing is kept for long but numbers: the memory for a growing list
    of arrays would show in the times. A few results are kept for a random while, because memory
    that is handed out by turns would feign releases that are slow and fast in turn.
    """
    release = target.release
    times = np.empty(n, dtype=np.int64)
    releases = np.empty(n)
    kept: list[object] = [None] * 16
    places = np.frombuffer(os.urandom(n), dtype=np.uint8) % len(kept)
    for _ in range(100):
        release(value, 1)
    for i, place in enumerate(places.tolist()):
        start = clock()
        result = release(value, 1)
        times[i] = clock() - start
        releases[i] = result[0]
        kept[place] = result
    return times, releases


@dataclass(frozen=True)
class Look:
    """One of the observations, as the command line offers it."""

    name: str
    breaks: str
    source: str
    default_target: str
    look: Callable[[Target], Observation]


LOOKS: Final = {
    look.name: look
    for look in (
        Look(
            "forked",
            "generators with state, copied into each child: NumPy, random, PyDP",
            "known since fork; measured here",
            "numpy.laplace",
            forked,
        ),
        Look(
            "restarted",
            "generators with a fixed seed",
            "known since seeds; measured here",
            "numpy.laplace",
            lambda target: restarted(program_of(target.name)),
        ),
        Look(
            "timed",
            "samplers that count or reject: diffprivlib's discrete ones, PyDP's",
            "Jin, McMurtry, Rubinstein and Ohrimenko 2022",
            "diffprivlib.GaussianDiscrete",
            timed,
        ),
        Look(
            "phased",
            "Gaussians made in pairs: random.gauss, numpy.random.RandomState.normal",
            "Holohan and Braghin 2021, section 2.4",
            "random.gauss",
            phased,
        ),
    )
}
