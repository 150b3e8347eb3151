"""Counts events in fresh releases, and tests whether these are independent.

The bound and its confidence
----------------------------
Events are proposed and chosen on releases that are then set aside. The events and the number of
releases to count them in are set before fresh releases are drawn. If `tossed`, a fair coin
chooses the data set of each fresh release. Each event gives exact binomial limits (Clopper and
Pearson 1934): two of its probabilities, and with the coin one of their ratio (see
`certified_bounds.tossed_epsilon`). The failure probability of the whole count is split over the
events. By the union bound all limits hold together, and with them every bound that is computed from
them. This does not depend on how the events were chosen, or on how many were tried before.

Dependence within a call
------------------------
Releases of one call may share an effect: a sample of the rows that is drawn once a call, or a small
bias. So the final count takes its releases from many calls, and its limits allow for what the
variance between calls shows (see `call_limits`).

Independence
------------
A rule that is chosen in advance turns a release into a bit. The bits of two independent releases at
distance k are independent. Given the numbers of set bits, the number of pairs with both bits set is
hypergeometric (Fisher's exact test). Each test takes disjoint pairs, and the probability of a false
alarm is split over all bits and distances. Exact repeats, noise used twice or with its sign turned,
slow drifts and short periods all show in some bit at some distance. Noise drawn once per call, and
changes from one call to the next, show as different frequencies of a bit in different calls. A
target that fails a test is refused.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpnoise.auditing import call_limits
from dpnoise.auditing.attacks import certified_bounds
from dpnoise.auditing.attacks.base import Attack, Event, EventCount, event_flags
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim
from dpnoise.auditing.call_limits import ANY_DEPENDENCE, EXACT, SUSPICION, WIDENED, CallCounts
from dpnoise.auditing.learned.views import row_codes
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.report import Finding
from dpnoise.auditing.targets.mechanisms import Data, Pair
from dpnoise.auditing.targets.target import DependentError, Releases
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import bound_text
from dpnoise.core.arrays import Flags, Floats

Words = NDArray[np.uint64]
Drawn = TypeVar("Drawn")

LEARNED: Final = "likelihood"  # The name of learned events in a report.
# Probability that one test rejects independent releases. It is small because an audit makes dozens.
FALSE_ALARM_RATE: Final = 1e-6
# A small count makes fewer calls, because each call takes time: this many, or more if they then
# have this many releases.
_LEAST_USEFUL_CALLS: Final = 64
_RELEASES_PER_CALL: Final = 32
_BATCH: Final = 1 << 16  # Releases of small calls in which an event is evaluated at a time.
_DISTANCES: Final = (*range(1, 9), 10, 16, 20, 32, 50, 64, 100, 128, 256, 500, 512, 1000, 1024)
_MIN_DEVIATIONS: Final = 3  # Standard deviations below which the exact p-value is not computed.
# Bits of a hash that are tested: two different releases differ in some of them.
_BITS: Final = (63, 47, 61, 59, 57, 55, 53, 51)
_REPEATS: Final = 8  # Number of first releases whose next occurrence suggests a period.
_FIRST_SEARCHED: Final = 1 << 10  # Releases searched for it; then twice as many, and so on.


@dataclass(frozen=True)
class Candidate:
    """An event with the two data sets it distinguishes; it is likelier at the first."""

    attack: str
    access: str
    event: Event
    data: Pair
    shown: tuple[float | str, float | str]  # The data sets as a report shows them.
    counts: tuple[EventCount, EventCount] = (EventCount(0, 0),) * 2  # At the two data sets.
    finder: Attack | None = None  # The attack that may choose its event again.
    calls: CallCounts | None = None  # Its counts in each call.

    def count_in(self, calls: Mapping[Data, Sequence[Releases]]) -> "Candidate":
        """Return the candidate with its counts in releases of calls for both data sets."""
        flags = [_flags_of_calls(self.event, calls[data]) for data in self.data]
        return self.with_calls([list(map(EventCount.of, of_side)) for of_side in flags])

    def with_calls(self, calls: Sequence[Sequence[EventCount]]) -> "Candidate":
        """Return the candidate with its counts in the calls for both data sets."""
        counted = CallCounts.of(calls)
        return replace(self, counts=counted.totals, calls=counted)

    def expected_bound(self, estimator: BoundEstimator) -> float:
        """Return the bound that it is expected to certify, given its counts so far."""
        at0, at1 = self.counts
        hits0, hits1 = np.array([at0.hits]), np.array([at1.hits])
        n = min(at0.trials, at1.trials)
        return float(estimator.expected_bounds(hits0, hits1, n, self.event.releases)[0])


@dataclass(frozen=True)
class CountSizes:
    """The numbers of releases in which events are counted, set before drawing them."""

    trials: int  # Releases of each data set.
    most: int  # Most releases of one call.
    calls: int  # Calls for each data set, or more if `most` needs more.
    unit: int = 1  # Calls have multiples of this size, except for the last.


# A third of its lines are the signature and the documentation; the rest is one loop over calls.
def count_events(
    candidates: Sequence[Candidate],
    draw: Callable[[Data, int], Releases],
    sizes: CountSizes,
    name: str,
    *,
    tossed: bool = False,
    seed: int | None = None,
    convert: Callable[[Data, Any], Releases] | None = None,
) -> list[Candidate]:
    """Count events of one pair of data sets in fresh releases, and return them with their counts.

    All events are counted in the same releases of the pair, or in what `convert` makes of those of
    a call. If `tossed`, a coin with this `seed` chooses the data set of each release; then their
    numbers differ.
    """
    first, trials = candidates[0].data, sizes.trials
    heads = int(np.random.default_rng(seed).binomial(2 * trials, 0.5)) if tossed else trials
    per_event = max(candidate.event.releases for candidate in candidates)
    unit = max(per_event, sizes.unit)
    planned = _plan_calls(heads, 2 * trials - heads, replace(sizes, unit=unit))
    # Of each event at either data set: its counts in each call, and the flags of its first trials.
    counts: list[tuple[list[EventCount], ...]] = [([], []) for _ in candidates]
    tested: list[tuple[list[Flags], ...]] = [([], []) for _ in candidates]
    calls = [(first[side], m) for side, m in planned]
    drawn = draw_ahead(draw, calls)
    if convert is not None:
        drawn = (convert(data, releases) for (data, _), releases in zip(calls, drawn, strict=True))
    for side, releases in _batch_calls([side for side, _ in planned], drawn):
        for candidate, seen, kept in zip(candidates, counts, tested, strict=True):
            last = len(candidates) == 1
            for flags in _flags_of_calls(candidate.event, releases, last=last):
                seen[side].append(EventCount.of(flags))
                if len(kept[side]) * len(flags) < TUNING.independence_trials:
                    kept[side].append(flags)
    counted = []
    for candidate, seen, kept in zip(candidates, counts, tested, strict=True):
        for side in (0, 1):
            flags = np.concatenate(kept[side])[: TUNING.independence_trials]
            distances = sorted({*_DISTANCES, *(call.trials for call in seen[side])})
            _check_distances(name, [flags], distances, FALSE_ALARM_RATE)
            check_calls(name, [(call.hits, call.trials) for call in seen[side]])
        swapped = candidate.data[0] is not first[0]
        counted.append(candidate.with_calls(seen[::-1] if swapped else seen))
    return counted


def _batch_calls(
    sides: Sequence[int], drawn: Iterable[Releases]
) -> Iterator[tuple[int, list[Releases]]]:
    """Yield the releases of several small calls together: the data set, and those of each call."""
    waiting: tuple[list[Releases], ...] = [], []
    for side, releases in zip(sides, drawn, strict=True):
        waiting[side].append(releases)
        if len(waiting[side]) * len(releases) >= _BATCH:
            yield side, waiting[side].copy()
            waiting[side].clear()
    yield from ((side, batch) for side, batch in enumerate(waiting) if batch)


def _flags_of_calls(event: Event, calls: Sequence[Releases], *, last: bool = False) -> list[Flags]:
    """Return an event's flags for each call; no trial takes releases of two calls."""
    if event.releases > 1 or len(calls) == 1:
        return [event_flags(event, releases, last=last) for releases in calls]
    flags = event_flags(event, np.concatenate(calls), last=True)
    return np.split(flags, np.cumsum([len(releases) for releases in calls])[:-1])


def _plan_calls(n0: int, n1: int, sizes: CountSizes) -> list[tuple[int, int]]:
    """Return the calls for n0 releases of one data set and n1 of the other: (data set, releases).

    They come in the order of Thue and Morse, so that smooth changes with time affect both alike.

    >>> _plan_calls(8, 9, CountSizes(8, most=4, calls=3))
    [(0, 3), (1, 3), (1, 3), (0, 3), (1, 3), (0, 2)]
    >>> _plan_calls(65, 64, CountSizes(64, most=1000, calls=3, unit=16))
    [(0, 32), (1, 32), (1, 16), (0, 16), (1, 16), (0, 17)]
    """
    useful = max(_LEAST_USEFUL_CALLS, max(n0, n1) // _RELEASES_PER_CALL)
    calls = max(1, min(sizes.calls, useful, *(n // sizes.unit for n in (n0, n1))))
    calls = max(calls, -(-max(n0, n1) // sizes.most))
    of_sides = [split_in_calls(n, calls, sizes.unit) for n in (n0, n1)]
    sides = [(i.bit_count() + turn) % 2 for i in range(calls) for turn in (0, 1)]
    return [(side, of_sides[side][i // 2]) for i, side in enumerate(sides)]


def split_in_calls(n: int, calls: int, unit: int) -> list[int]:
    """Return the sizes of calls for n releases: multiples of the unit, except for the last."""
    parts = n // unit
    calls = max(1, min(calls, parts))
    sizes = [unit * (parts // calls + (i < parts % calls)) for i in range(calls)]
    return [*sizes[:-1], sizes[-1] + n % unit]


def draw_ahead(
    draw: Callable[[Data, int], Drawn], calls: Sequence[tuple[Data, int]]
) -> Iterator[Drawn]:
    """Yield the releases of each call, while a thread draws those of the next."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(draw, *calls[0])
        for call in calls[1:]:
            drawn, pending = pending, pool.submit(draw, *call)
            yield drawn.result()
        yield pending.result()


def certify(
    candidate: Candidate, options: AuditOptions, error: float, *, tossed: bool = False
) -> Finding:
    """Return the finding that an event's counts certify; `tossed`: a coin divided the trials."""
    (at0, at1), bounds = candidate.counts, _certified_bounds(candidate, options, error, tossed)
    return Finding(
        attack=candidate.attack,
        access=candidate.access,
        event=candidate.event.words,
        predicate=candidate.event.source,
        functions=candidate.event.functions,
        value0=candidate.shown[0],
        value1=candidate.shown[1],
        releases=candidate.event.releases,
        hits0=at0.hits,
        trials0=at0.trials,
        hits1=at1.hits,
        trials1=at1.trials,
        confidence=options.confidence,
        broken=bounds["certified"] > options.claim.value,
        evidence={},
        **bounds,
    )


def _certified_bounds(
    candidate: Candidate,
    options: AuditOptions,
    error: float,
    tossed: bool,  # noqa: FBT001 - as in `certify`
) -> dict[str, Any]:
    """Return the limits and bounds of a finding, by name."""
    claim, (at0, at1), k = options.claim, candidate.counts, candidate.event.releases
    by_ratio = tossed and claim.is_ratio and k == 1
    each = error * (1 - certified_bounds.RATIO_ERROR_SHARE if by_ratio else 1) / 2
    # If a call makes one release, calls are independent trials.
    calls = None if options.one_by_one else candidate.calls
    dispersion = calls.widening(each) if calls else 1.0
    low, high = call_limits.limits_of(at0, at1, each, dispersion)
    certified, kind = claim.certified_bound(low, high, k), WIDENED if dispersion > 1 else EXACT
    if by_ratio:  # At the larger error of the ratio the dispersion would be smaller.
        counts = at0.hits, at0.trials, at1.hits, at1.trials
        certified = certified_bounds.tossed_epsilon(
            *counts, error=error, delta=claim.delta, dispersion=dispersion
        )
    if_dependent = certified
    if calls:
        limits = calls.best_any_limits(error / 2)
        if calls.is_suspect or claim.certified_bound(*limits, k) > 0:
            limits = calls.any_limits(error / 2, each)
        if_dependent = claim.certified_bound(*limits, k)
        if calls.is_suspect:
            (low, high), certified, kind = limits, if_dependent, ANY_DEPENDENCE
    epsilon = certified
    if not by_ratio:
        epsilon = certified_bounds.epsilon_of(low, high, delta=claim.delta, releases=k)
    return {
        "low": low,
        "high": high,
        "certified": certified,
        "epsilon_lower": epsilon,
        "limits": kind,
        "dispersion": dispersion,
        "if_dependent": min(certified, if_dependent),
    }


def describe_limits(findings: Sequence[Finding], options: AuditOptions) -> str:
    """Return which limits the best finding has, in words for a report's method."""
    if options.one_by_one or not findings:
        return "Limits are exact (Clopper and Pearson): each call made one release."
    best = max(findings, key=lambda finding: finding.certified)
    if best.limits == ANY_DEPENDENCE:
        return (
            "The counts of calls varied more than those of independent releases (p below "
            f"{SUSPICION:g}). So limits hold for any dependence of releases within a call "
            "(Waudby-Smith and Ramdas)."
        )
    words = (
        "Limits are exact (Clopper and Pearson): the counts of calls varied no more than "
        "those of independent releases."
    )
    if best.limits == WIDENED and f"{best.dispersion:.3g}" == "1":
        words = (
            "No widening was needed: the counts of calls varied about as much as those of "
            "independent releases (Korn and Graubard)."
        )
    elif best.limits == WIDENED:
        words = (
            f"Limits allow for {best.dispersion:.3g} times the variance of independent releases, "
            "because of how much the counts of calls varied (Korn and Graubard)."
        )
    bound = f"{options.claim.kind} is at least {bound_text(best.if_dependent)}"
    return f"{words} Whatever the dependence of releases within a call, {bound}."


def ceiling(claim: Claim, trials: int, error: float, *, tossed: bool = False) -> float:
    """Return the largest possible bound: of an event that separates the data sets perfectly."""
    if tossed:
        counts = trials, trials, 0, trials
        return certified_bounds.tossed_epsilon(*counts, error=error, delta=claim.delta)
    low = certified_bounds.lower_limit(trials, trials, error / 2)
    return claim.certified_bound(low, certified_bounds.upper_limit(0, trials, error / 2))


def needed_trials(
    estimator: BoundEstimator, candidates: Sequence[Candidate], trials: int, limit: float
) -> int:
    """Return the number of trials to refute the claim: `trials`, or more if these may help.

    Trials are doubled, up to `limit`, until a cautious estimate of the best event's bound exceeds
    the claim. If the most trials do not suffice, they are used where an optimistic estimate says
    that they may help. Otherwise the plan stays, unless no event at all could exceed the claim with
    it.
    """
    most = max(trials, min(TUNING.budget_growth * trials, int(limit)))

    def expected_bound(trials: int, caution: float) -> float:
        guess = replace(estimator, trials=trials, caution=caution)
        return max(candidate.expected_bound(guess) for candidate in candidates)

    claim, enough = estimator.claim, trials
    while enough < most and expected_bound(enough, 1.0) <= claim.value:
        enough = min(most, 2 * enough)
    if expected_bound(enough, -1.0) <= claim.value:
        enough = trials
    while enough < most and ceiling(claim, enough, estimator.error) <= claim.value:
        enough = min(most, 2 * enough)
    return enough


def check_independent(
    call: str,
    before: Floats,
    rows: Floats,
    error: float = FALSE_ALARM_RATE,
    call_sizes: AbstractSet[int] = frozenset(),
) -> None:
    """Raise DependentError if the releases in `rows`, in their order, depend on each other.

    Rules are chosen on other releases of the same data, `before`. Independent releases are rejected
    with probability `error`. The message names the call. If the rows are those of several calls,
    of `call_sizes`, these are distances to test, too.
    """
    distances = sorted({*_DISTANCES, *_periods(before), *call_sizes})
    n = min(len(before), len(rows), TUNING.independence_trials)
    rows = rows[: TUNING.independence_trials]
    code = _hash(rows)
    bits = [rule(rows) for rule in _rules(before)] + [_bit(code, i) for i in _BITS[:2]]
    _check_distances(call, bits, distances, error / 3)
    codes = _hash(before[:n]), code[:n]
    hashed = [[_bit(of_call, i) for of_call in codes] for i in _BITS]
    # Releases with the same index in two calls are n apart.
    _check_distances(call, map(np.concatenate, hashed[:2]), [n], error / 3)
    for flags in hashed:
        counts = [(int(bits_of_call.sum()), n) for bits_of_call in flags]
        check_calls(call, counts, error / (3 * len(hashed)))


def check_calls(
    call: str, calls: Sequence[tuple[int, int]], error: float = FALSE_ALARM_RATE
) -> None:
    """Raise DependentError unless an event is about equally frequent in each (hits, trials).

    For independent releases, the number of hits in some of the calls is hypergeometric. Each call
    is compared with all others, which finds noise drawn once per call. The calls up to each one are
    compared with those after it, which finds slow changes.
    """
    *before, (hits, trials) = accumulate(calls, lambda a, b: (a[0] + b[0], a[1] + b[1]))
    subsets = [*calls, *before]
    smallest = min(_two_sided_p_value(both, hits, size, trials) for both, size in subsets)
    if smallest * len(subsets) < error:
        _raise_dependent(call, "those of one call are alike", smallest)


def _raise_dependent(call: str, how: str, p_value: float) -> NoReturn:
    """Raise DependentError with the distance or the call, and the p-value."""
    chance = "less than 1e-300" if p_value == 0 else f"{p_value:.1g}"
    raise DependentError(
        f"{call} gave releases that depend on each other: {how}, which by chance has "
        f"probability {chance}. An audit counts independent releases: draw new "
        "noise for each, or have it ask for one release a call: one_by_one=True."
    )


def _check_distances(
    call: str, sequences: Iterable[Flags], distances: Sequence[int], error: float
) -> None:
    """Raise DependentError if flags depend on those some distance before."""
    lags = [(flags, k) for flags in sequences for k in distances if 2 * k <= len(flags)]
    tests = [(p_value(flags, k), k) for flags, k in lags]
    smallest, distance = min(tests, default=(1.0, 0))
    if tests and smallest * len(tests) < error:
        _raise_dependent(call, f"those {distance} apart are alike", smallest)


def p_value(flags: Flags, distance: int) -> float:
    """Return the two-sided p-value of Fisher's exact test for disjoint pairs at a distance.

    >>> p_value(np.array([True, True, False, False]), 1)
    1.0
    >>> p_value(np.repeat(np.arange(20) % 2 == 0, 2), 1) < 1e-4
    True
    """
    paired = len(flags) // (2 * distance) * (2 * distance)
    first, second = flags[:paired].reshape(-1, 2, distance).swapaxes(0, 1).reshape(2, -1)
    pairs = len(first)
    set0, set1, both = (int(np.count_nonzero(x)) for x in (first, second, first & second))
    return _two_sided_p_value(both, set0, set1, pairs)


def _two_sided_p_value(both: int, set0: int, set1: int, pairs: int) -> float:
    """Return the p-value of `both` pairs in two subsets of `pairs`, of sizes `set0` and `set1`."""
    if set0 in {0, pairs} or set1 in {0, pairs}:
        return 1.0
    mean = set0 * set1 / pairs
    deviation = math.sqrt(mean * (1 - set0 / pairs) * (1 - set1 / pairs) * pairs / (pairs - 1))
    if abs(both - mean) < _MIN_DEVIATIONS * deviation:
        return 1.0  # The exact distribution takes long, and would not be significant.
    law = stats.hypergeom(pairs, set0, set1)
    return float(min(1.0, 2 * min(law.cdf(both), law.sf(both - 1))))


def _rules(before: Floats) -> list[Callable[[Floats], Flags]]:
    """Return two rules that compare a release with medians of earlier releases."""
    # The column with the most distinct numbers carries the most information.
    column = int(np.argmax([len(np.unique(column)) for column in before[:2000].T]))
    median = _median(before[:, column])
    deviation = _median(np.abs(before[:, column] - median))

    return [
        lambda rows: np.asarray(rows[:, column] > median),
        lambda rows: np.asarray(np.abs(rows[:, column] - median) > deviation),
    ]


def _median(x: Floats) -> float:
    known = x[~np.isnan(x)]
    return float(np.median(known)) if len(known) else 0.0


def _hash(rows: Floats) -> Words:
    """Return a hash of each row; 0.0 and -0.0 have the same hash."""
    return row_codes(rows).astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)


def _bit(code: Words, bit: int) -> Flags:
    return np.asarray((code >> np.uint64(bit)) & np.uint64(1), dtype=np.bool_)


def _periods(before: Floats) -> list[int]:
    """Return the distances at which the first releases repeat, as periods to test."""
    return [k for i in range(min(_REPEATS, len(before))) if (k := _period_of(before, i))]


def _period_of(rows: Floats, i: int) -> int:
    """Return the distance from row i to the next one that equals it, or 0 if none does."""
    start, size = i + 1, _FIRST_SEARCHED
    while start < len(rows):
        block = rows[start : start + size]
        equal = np.arange(len(block))
        for j in range(rows.shape[1] - 1, -1, -1):  # The first column is often the same for all.
            equal = equal[block[equal, j] == rows[i, j]]
        if equal.size:
            return start + int(equal[0]) - i
        start, size = start + size, 2 * size
    return 0
