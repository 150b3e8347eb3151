"""Certifies how far the running time of a mechanism depends on its data.

A fair coin chooses the data set of each call. A busy machine slows calls, but it does not know the
coin. It hides a dependence, but does not cause one. Both data sets are copied before each call, so
that making the copies does not depend on the coin either. An event of the time is chosen on some
calls and counted in others. Given what the machine does and which calls have the event, their coins
are independent. The bound uses only these.
"""

import os
import time
from typing import Final

import numpy as np

from dpnoise.auditing.attacks.base import Event, EventCount
from dpnoise.auditing.attacks.certified_bounds import EPSILON, BoundEstimator, Claim, ratio_epsilon
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.processes import Observation
from dpnoise.auditing.targets.mechanisms import Pair
from dpnoise.auditing.targets.target import TargetError
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import bound_text, describe_pair, format_percent
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.safe_text import format_confidence

NAME: Final = "running time"
_WARM_UP: Final = 32  # Calls before the first that counts; they also show how long a call takes.
_LEVELS: Final = np.r_[0.001, 0.005, 0.01:1:0.01, 0.995, 0.999]  # Quantiles to try as thresholds.
_WARNING: Final = (
    "The verdict does not count times. They are of this machine and its load, which hide small "
    "differences: no difference seen does not show constant time."
)


def check_running_time(
    source: OutputSource, pairs: list[Pair], options: AuditOptions
) -> Observation:
    """Report a lower bound on the epsilon of the time of one call, at the audit's confidence."""
    try:
        event, pair, n = _choose_event(source, pairs, options)
        return _count_event(source, event, pair, n, options)
    except TargetError as error:  # The report on outputs is worth more.
        return Observation("not seen", found=False, words=f"The time of calls: {error}")


def _choose_event(
    source: OutputSource, pairs: list[Pair], options: AuditOptions
) -> tuple[Event, Pair, int]:
    """Return the best event, its pair with the likelier data set first, and the calls to count."""
    start = time.perf_counter()
    _time_calls(source, pairs[0], _WARM_UP)
    seconds = (time.perf_counter() - start) / _WARM_UP
    most = min(TUNING.timed_calls, (options.budget or TUNING.mechanism_budget) // 4)
    n = max(TUNING.least_timed_calls, min(most, int(TUNING.timing_seconds / (2 * seconds))))
    chance, caution = TUNING.chance_trials_of_many, TUNING.discount_of_best
    estimator = BoundEstimator(Claim(EPSILON, 1.0), n // 2, 1 - options.confidence, chance, caution)
    each = max(TUNING.least_timed_calls, n // len(pairs))
    events = [
        _best_threshold(pair, _time_calls(source, pair, each), estimator)
        for pair in pairs[: n // TUNING.least_timed_calls]
    ]
    _, event, pair = max(events, key=lambda found: found[0])
    return event, pair, n


def _count_event(
    source: OutputSource, event: Event, pair: Pair, n: int, options: AuditOptions
) -> Observation:
    times, at_second = _time_calls(source, pair, n)
    happened = event.holds(times)
    counts = [EventCount.of(happened[at_second == side]) for side in (False, True)]
    # Only the ratio: a call's time may depend on earlier calls, the coin of the call does not.
    epsilon = ratio_epsilon(
        counts[0].hits,
        counts[1].hits,
        n,
        error=1 - options.confidence,
        delta=options.claim.delta,
    )
    seen = " and at ".join(
        f"{shown} in {format_percent(count.hits, count.trials)} of {count.trials:,} calls"
        for shown, count in zip(describe_pair(pair), counts, strict=True)
    )
    words = "The running time was not seen to depend on the data"
    if epsilon > 0:
        words = f"The running time by itself has an epsilon of at least {bound_text(epsilon)}"
    measured = {"epsilon_lower": epsilon, "confidence": options.confidence}
    for i, count in enumerate(counts):
        measured |= {f"hits{i}": count.hits, f"trials{i}": count.trials}
    confidence = format_confidence(options.confidence)
    words += f" (confidence {confidence}): {event.words} at {seen}. {_WARNING}"
    return Observation(NAME, epsilon > 0, words, measured)


def _time_calls(source: OutputSource, pair: Pair, n: int) -> tuple[Floats, Flags]:
    """Return the seconds of n calls, and whether each was at the second data set of the pair."""
    at_second = np.frombuffer(os.urandom(n), np.uint8) % 2 == 1
    return np.array(source.time_calls(pair, at_second.tolist())), at_second


def _best_threshold(
    pair: Pair, calls: tuple[Floats, Flags], estimator: BoundEstimator
) -> tuple[float, Event, Pair]:
    """Return the best threshold of the time: its expected bound, and its pair, likelier first."""
    times, at_second = calls
    cuts = np.unique(np.quantile(times, _LEVELS))
    slow = times[:, None] >= cuts
    slow0, slow1 = (slow[at_second == side].mean(axis=0) for side in (False, True))
    # Slow calls are likelier at the first data set, or fast ones, or either at the second.
    likelier = np.concatenate([slow0, 1 - slow0, slow1, 1 - slow1])
    other = np.concatenate([slow1, 1 - slow1, slow0, 1 - slow0])
    n = len(times) // 2
    bounds = estimator.expected_bounds(n * likelier, n * other, n)
    kind, j = divmod(int(bounds.argmax()), len(cuts))
    cut, fast = float(cuts[j]), kind % 2 == 1
    words = f"a call takes {'less than' if fast else 'at least'} {1e6 * cut:,.4g} µs"
    event = Event(words, lambda times: (times >= cut) ^ fast)
    return float(bounds.max()), event, pair[::-1] if kind > 1 else pair
