"""Measure how often audits call mechanisms broken that spend exactly what they claim.

`python -m benchmarks.false_alarms` makes 1,000 audits of each kind of output,
claim and dependence, on all cores, and prints a table: once a minute, and at the end. It stops
after `--seconds` with the audits that it has. `--write` writes the table to docs/audit-bounds.md.
The status is 1 if a kind has more false alarms than its stated error explains (p below 10^-6).
"""

import argparse
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import pandas as pd
from marks import measured_with, write_between_marks
from scipy import stats

import dpnoise
from benchmarks.audit_bugs import geometric
from dpnoise.auditing import additive_noise
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets.target import DependentError
from dpnoise.core.parallel import cores

PAGE: Final = Path(__file__).parent.parent / "docs" / "audit-bounds.md"
EPSILON: Final = 1.0
DELTA: Final = 0.05
BUDGET: Final = 5_000  # Releases of an audit.
_GAUSSIAN_DELTA: Final = stats.norm.cdf(-0.5) - math.e * stats.norm.cdf(-1.5)  # At epsilon 1.
_PRINTED_EVERY: Final = 60.0  # Seconds between two tables.
_CHANCE: Final = 1e-6  # The p-value below which a kind has too many false alarms.
rng = np.random.default_rng()


# Mechanisms --------------------------------------------------------------------------------------


def flip(bit: int, n: int, epsilon: float = EPSILON) -> Any:
    """Return a bit, flipped with the probability that spends exactly epsilon."""
    return (rng.random(n) < 1 / (1 + math.exp(epsilon))) ^ bool(bit)


def _number(value: int, n: int) -> Any:
    return value + geometric(EPSILON, n)


def _vector(bit: int, n: int) -> Any:
    return bit + geometric(EPSILON / 3, (n, 3))


def _texts(bit: int, n: int) -> Any:
    return np.where(flip(bit, n), "yes", "no")


def _printed_numbers(value: int, n: int) -> Any:
    """Print numbers with six digits, so that nearly all texts differ; the last are random."""
    return [f"{x + u:.6f}" for x, u in zip(_number(value, n), rng.random(n) / 2, strict=True)]


def _tuples(bit: int, n: int) -> Any:
    return [("x",) * (1 + is_set) for is_set in flip(bit, n).tolist()]


def _nested(value: int, n: int) -> Any:
    """Return a number twice as likely inside a list as outside of one, together with a text."""
    numbers = zip(_number(value, n).tolist(), (rng.random(n) < 2 / 3).tolist(), strict=True)
    return [([x, ["in"]] if inner else x, "text") for x, inner in numbers]


def _mixed(value: int, n: int) -> Any:
    return ["low" if x < 0 else x / 2 if x % 2 else x for x in _number(value, n).tolist()]


def _records(value: int, n: int) -> Any:
    return [{"count": x, "sign": "-" if x < 0 else "+"} for x in _number(value, n).tolist()]


def _aborts(bit: int, n: int) -> Any:
    return [7 if is_set else None for is_set in flip(bit, n).tolist()]


def _choices(bit: int, n: int) -> Any:
    """Choose one of four; that of the bit is exp(epsilon) times as likely as the others."""
    weights = np.where(np.arange(4) == bit, math.exp(EPSILON), 1.0)
    return rng.choice(4, size=n, p=weights / weights.sum())


def _reveal_with_delta(bit: int, n: int) -> Any:
    """Return a flipped bit, but the bit itself with probability delta."""
    return np.where(rng.random(n) < DELTA, bool(bit), flip(bit, n))


def _gaussian(bit: int, n: int) -> Any:
    """Add Gaussian noise of scale 1 on a grid, so that floating point reveals nothing."""
    return bit + np.rint(rng.normal(scale=2.0**16, size=n)) / 2.0**16


def _frames(rows: pd.DataFrame, n: int) -> Any:
    """Return a frame with the number of rows and that of old persons, half of epsilon for each."""
    noise = geometric(EPSILON / 2, (n, 2))
    return pd.DataFrame({"rows": len(rows) + noise[:, 0], "old": _old(rows) + noise[:, 1]})


def _frames_with_gaps(value: int, n: int) -> Any:
    """Return a frame of numbers, texts and dates, a part of them missing."""
    numbers = np.where(rng.random(n) < 0.1, np.nan, _number(value, n))
    words = np.array(["a", "b", None])
    days = pd.Timestamp("2024-02-28") + pd.to_timedelta(rng.integers(0, 3, n), "D")
    return pd.DataFrame({"n": numbers, "word": words[rng.integers(0, 3, n)], "day": days})


def _shuffled_records(value: int, n: int) -> Any:
    """Return nested records whose keys have a random order."""

    def record(number: int) -> dict[object, object]:
        inner: list[tuple[object, object]] = [("n", number), ("unit", "ms"), (3, None)]
        result = dict(inner[i] for i in rng.permutation(3))
        outer = [("tags", ["a", {"b": number % 3}]), ("result", result)]
        return dict(outer[:: rng.choice([-1, 1])])

    return list(map(record, _number(value, n).tolist()))


def _odd_numbers(bit: int, n: int) -> Any:
    """Return 0.0 or -0.0, or now and then what is no usual number."""
    odd = [None, math.nan, math.inf, -math.inf, *[0.0] * 8]
    drawn = zip(flip(bit, n).tolist(), rng.integers(0, len(odd), n).tolist(), strict=True)
    return [-0.0 if is_set and odd[i] == 0 else odd[i] for is_set, i in drawn]


def _numbers_and_pairs(bit: int, n: int) -> Any:
    return [(1, 2) if is_set else 1 for is_set in flip(bit, n).tolist()]


def _sets(bit: int, n: int) -> Any:
    others = [f"u{i}" for i in rng.integers(0, 6, n)]
    bits = flip(bit, n).tolist()
    return [{"me", u} if is_set else {u} for is_set, u in zip(bits, others, strict=True)]


def _wide_integers(value: int, n: int) -> Any:
    return [(1 << 200) + (value + x) * 10**22 for x in geometric(EPSILON, n).tolist()]


def _heavy_tails(value: int, n: int) -> Any:
    """Return a number next to two of which a few are larger than all others together."""
    noise = rng.standard_cauchy(n), np.exp(5 * rng.standard_normal(n))
    return np.column_stack([noise[0], _number(value, n), noise[1]])


def _ties(bit: int, n: int) -> Any:
    return np.clip(bit + geometric(EPSILON, n), 0, 1)


def _hashes(value: int, n: int) -> Any:
    """Return the public seed of a hash function, and a flipped bit of the value's hash."""
    seeds = rng.integers(0, 1 << 40, n)
    bits = (((seeds ^ (value * 0x5851F42D)) * 0x9E3779B9) >> 17) % 2 == 1
    return np.column_stack([seeds, bits ^ flip(0, n)])


def _fails_now_and_then(bit: int, n: int) -> Any:
    if (rng.random(n) < 0.01).any():
        raise OSError("busy")
    return flip(bit, n)


def _samples(rows: int, n: int) -> Any:
    """Return counts of a row that is in the sample of one release in five."""
    each = math.log1p((math.exp(EPSILON) - 1) / 0.2)
    return rng.binomial(rows, 0.2, n) + geometric(each, n)


_buffer: Final = np.zeros(BUDGET)


def _same_array(value: int, n: int) -> Any:
    """Return the releases of each call in the same memory, as a device's buffer."""
    releases = _buffer[:n]
    releases[:] = _number(value, n)
    return releases


def _copies(bit: int, n: int) -> Any:
    """Return a flip of which one noise in twenty is that of the release before."""
    noise = flip(0, n)
    copied = np.flatnonzero(rng.random(n) < 0.05)
    noise[copied[copied > 0]] = noise[copied[copied > 0] - 1]
    return noise ^ bool(bit)


def _mostly_delta(bit: int, n: int) -> Any:
    """Return the bit itself with probability 0.3, else a flip that spends an epsilon of 0.1."""
    return np.where(rng.random(n) < 0.3, 2 + bit, flip(bit, n, 0.1))


def _old(rows: pd.DataFrame) -> int:
    return int((pd.to_numeric(rows["age"], errors="coerce") > 60).sum())


def _biased(errors: float) -> Callable[[int, int], Any]:
    """Return a flip whose releases of a call share an error of this number of standard errors."""
    p = 1 / (1 + math.exp(EPSILON))

    def flip_with_bias(bit: int, n: int) -> Any:
        bias = errors * math.sqrt(p * (1 - p) / n) * rng.choice([-1, 1])
        return (rng.random(n) < np.clip(p + bias, 0, 2 * p)) ^ bool(bit)

    return flip_with_bias


def _sampled(rate: float) -> Callable[[int, int], Any]:
    """Return a count of a row that is in the sample of a call with this probability.

    The noise is so small that a call for one release spends exactly epsilon.
    """
    each = math.log1p((math.exp(EPSILON) - 1) / rate)
    return lambda rows, n: rows * (rng.random() < rate) + geometric(each, n)


# Kinds -------------------------------------------------------------------------------------------


def _is_broken(report: Report) -> bool:
    return report.broken


def _exceeds_gaussian_curve(report: Report) -> bool:
    """Return whether a certified curve says more than is true of Gaussian noise with mu 1."""
    curve = report.curve()
    return curve.mu > 1 or curve.rho > 1 / 2 or curve.delta(1.0) > _GAUSSIAN_DELTA


@dataclass(frozen=True)
class Kind:
    """A mechanism with the options of its audit, and what a false alarm is."""

    mechanism: Callable[[Any, int], Any]
    options: dict[str, Any]
    is_alarm: Callable[[Report], bool] = _is_broken


_BITS: Final = {"neighbours": [(0, 1)]}
_ADDED: Final[dict[str, Any]] = {"pairs": "whole", "attacks": ["threshold", "bits"]}
_PERSONS: Final = pd.DataFrame({"age": [34, 71]})
_MU: Final = {"neighbours": [(0, 1)], "epsilon": None, "mu": 1.0}
KINDS: Final[dict[str, Kind]] = {
    "added noise": Kind(_number, _ADDED),
    "a number": Kind(_number, _BITS),
    "a vector": Kind(_vector, {"neighbours": [(0, 1), (0, -1)]}),
    "a text": Kind(_texts, _BITS),
    "texts that nearly all differ": Kind(_printed_numbers, _BITS),
    "tuples of varying length": Kind(_tuples, _BITS),
    "nested lists": Kind(_nested, _BITS),
    "numbers and texts mixed": Kind(_mixed, _BITS),
    "records": Kind(_records, _BITS),
    "aborts": Kind(_aborts, _BITS),
    "choices": Kind(_choices, {"neighbours": [(0, 1), (2, 3)]}),
    "bits": Kind(flip, _BITS),
    "a delta": Kind(_reveal_with_delta, {**_BITS, "delta": DELTA}),
    "a mu": Kind(_gaussian, _MU),
    "a whole curve": Kind(_gaussian, {**_BITS, "delta": _GAUSSIAN_DELTA, "curve": True}),
    "the certified curve": Kind(_gaussian, _MU, _exceeds_gaussian_curve),
    "frames of rows": Kind(_frames, {"neighbours": "rows", "data": _PERSONS}),
    "frames with gaps": Kind(_frames_with_gaps, _BITS),
    "nested records, shuffled": Kind(_shuffled_records, _BITS),
    "signs of zero, and no numbers": Kind(_odd_numbers, _BITS),
    "numbers and pairs": Kind(_numbers_and_pairs, _BITS),
    "sets": Kind(_sets, _BITS),
    "wide integers": Kind(_wide_integers, _BITS),
    "heavy tails": Kind(_heavy_tails, _BITS),
    "many ties": Kind(_ties, _BITS),
    "hashes with a public seed": Kind(_hashes, {"neighbours": [(0, 1), (5, 77)], "public": [0]}),
    "exceptions now and then": Kind(_fails_now_and_then, {**_BITS, "exceptions": "output"}),
    "a sample for each release": Kind(_samples, _BITS),
    "an array that is overwritten": Kind(_same_array, _BITS),
    "one release a call": Kind(flip, {**_BITS, "one_by_one": True}),
    "epsilon 6": Kind(partial(flip, epsilon=6.0), {**_BITS, "epsilon": 6.0}),
    "mostly a delta": Kind(_mostly_delta, {**_BITS, "epsilon": 0.1, "delta": 0.3}),
    "a rho": Kind(_gaussian, {**_BITS, "epsilon": None, "rho": 0.5}),
    "one noise in 20 copied": Kind(_copies, _BITS),
    "half a standard error shared": Kind(_biased(0.5), _BITS),
    "a standard error shared": Kind(_biased(1.0), _BITS),
    "two standard errors shared": Kind(_biased(2.0), _BITS),
    "a row in 1 of 20 calls": Kind(_sampled(0.05), _BITS),
}
TREES: Final = {"a vector, by trees": Kind(_vector, {**_BITS, "boosting": True})}

ALARM, REFUSED, QUIET = "false alarm", "refused", "not broken"


def audit_kind(kind: Kind, confidence: float, budget: int) -> str:
    """Return what an audit of this mechanism says."""
    defaults: dict[str, Any] = {"epsilon": EPSILON, "budget": budget, "confidence": confidence}
    # Observations of forks and clocks certify nothing.
    with mock.patch.object(additive_noise, "run_side_channel_checks", return_value=[]):
        try:
            report = dpnoise.audit(kind.mechanism, **(defaults | kind.options))
        except DependentError:
            return REFUSED
    return ALARM if kind.is_alarm(report) else QUIET


# The table ---------------------------------------------------------------------------------------

Result = tuple[str, str, float]  # The kind, what the audit says, and its seconds.


def table(results: list[Result], names: list[str], confidence: float) -> str:
    """Return the table of the docs."""
    head = "| kind | audits | false alarms | refused | stated error | seconds |"
    lines = ["", head, "|---" * 6 + "|"]
    for name in names:
        said = [(answer, seconds) for kind, answer, seconds in results if kind == name]
        alarms, refused = (sum(a == answer for a, _ in said) for answer in (ALARM, REFUSED))
        seconds = sum(seconds for _, seconds in said)
        stated = f"{(1 - confidence) * len(said):.3g} of {len(said):,}"
        lines.append(
            f"| {name} | {len(said):,} | {alarms:,} | {refused:,} | {stated} | {seconds:.0f} |"
        )
    alarms = sum(answer == ALARM for _, answer, _ in results)
    note = (
        f"\n{len(results):,} audits at confidence {confidence:g}, {BUDGET:,} releases each: "
        f"{alarms:,} false alarms. Refused: the audit found that releases depend on each other, "
        f"and certified nothing. Seconds of one core. Measured on {measured_with()}."
    )
    return "\n".join([*lines, note, ""])


def has_too_many(results: list[Result], confidence: float) -> bool:
    """Return whether a kind has more false alarms than its stated error explains."""
    said: dict[str, list[bool]] = {}
    for name, answer, _ in results:
        said.setdefault(name, []).append(answer == ALARM)
    tails = [stats.binom.sf(sum(a) - 1, len(a), 1 - confidence) for a in said.values()]
    return any(tail * len(tails) < _CHANCE for tail in tails)


def _take_core(free: Any) -> None:
    """Run the audits of this process on one core, which no other process has."""
    core = free.get()
    if core is not None:
        os.sched_setaffinity(0, {core})


def _run(job: tuple[str, float]) -> Result:
    name, confidence = job
    started = time.perf_counter()
    answer = audit_kind((KINDS | TREES)[name], confidence, BUDGET)
    return name, answer, time.perf_counter() - started


def _results(jobs: list[tuple[str, float]], processes: int, stop: float) -> Iterator[Result]:
    """Yield results as they come, until all are there or the clock shows `stop`."""
    context = multiprocessing.get_context("spawn")
    has_affinity = hasattr(os, "sched_getaffinity")
    own = sorted(os.sched_getaffinity(0)) if has_affinity else [None]
    free = context.Queue()
    for _, core in zip(range(processes), cycle(own), strict=False):
        free.put(core)
    with context.Pool(processes, _take_core, (free,)) as pool:
        answers = pool.imap_unordered(_run, jobs)
        try:
            for _ in jobs:
                yield answers.next(timeout=max(0.1, stop - time.monotonic()))
        except multiprocessing.TimeoutError:
            print("The time is over.", flush=True)
        pool.terminate()


def main(arguments: list[str]) -> int:
    """Audit all kinds in turns, print the table, and return the status."""
    parser = argparse.ArgumentParser(prog="benchmarks.false_alarms")
    parser.add_argument("--audits", type=int, default=1_000, help="audits of each kind")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--cores", type=int, default=cores(), help="number of processes")
    parser.add_argument("--confidence", type=float, default=0.999)
    parser.add_argument("--kind", action="append", choices=[*KINDS, *TREES], help="only this kind")
    parser.add_argument("--write", action="store_true", help="write the table to the docs")
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    names = chosen.kind or [*KINDS, *(TREES if find_spec("sklearn") else [])]
    _run((names[0], chosen.confidence))  # Compiles what all processes load.
    jobs = [(name, chosen.confidence) for _ in range(chosen.audits) for name in names]
    results: list[Result] = []
    printed = started
    for result in _results(jobs, chosen.cores, started + min(chosen.seconds, 1e9)):
        results.append(result)
        if time.monotonic() - printed > _PRINTED_EVERY:
            printed = time.monotonic()
            shown = table(results, names, chosen.confidence)
            print(f"After {printed - started:.0f} s:\n{shown}", flush=True)
    text = table(results, names, chosen.confidence)
    print(f"After {time.monotonic() - started:.0f} s:\n{text}", flush=True)
    if chosen.write:
        write_between_marks(PAGE, "false-alarms", text)
    return int(has_too_many(results, chosen.confidence))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
