"""How releases are spent: the few best events are counted in most of them.

The bound and its confidence
----------------------------
Events are proposed and chosen on releases that are then set aside. When the events are fixed, and
with them how many releases they are counted in, fresh releases are drawn; if `tossed`, of one data
set or the other as a fair coin says for each. Each event gives exact binomial limits (Clopper and
Pearson 1934): two of its probabilities, and with the coin one of their ratio (see
`bounds.tossed_epsilon`). The error is the whole count's, split over the events. By the union bound
all limits hold together, whatever was chosen and how many others were looked at before, and with
them every bound that is computed from them.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dpnoise.auditing.attacks import bounds
from dpnoise.auditing.attacks.base import Event, happened
from dpnoise.auditing.attacks.bounds import Claim
from dpnoise.auditing.independence import check_calls, check_flags
from dpnoise.auditing.report import Finding

Draw = Callable[[Any, int], Any]

_LOOKED_AT: Final = 200_000  # Trials of an event that are tested for independence.
_CALLS: Final = 8  # Calls for each data set at least: what is drawn once a call differs in them.
_GROWTH: Final = 16  # The most by which a budget that was not given is raised.


@dataclass(frozen=True)
class Candidate:
    """An event with the two data sets it tells apart; it is meant to happen at the first."""

    attack: str
    access: str
    event: Event
    data: tuple[Any, Any]
    shown: tuple[Any, Any]  # The data, as a report has them.
    promise: float = 0.0


def counted(
    candidates: Sequence[Candidate],
    draw: Draw,
    trials: int,
    chunk: int,
    name: str,
    *,
    tossed: bool = False,
    seed: int | None = None,
) -> list[tuple[list[int], list[int]]]:
    """Count events of one pair of data sets in fresh releases: (hits, trials) at their two data.

    All events are counted in the same releases of the pair, `trials` of each data set; or twice as
    many of both together, if a coin is tossed for each; `seed` is the coin's.
    """
    first = candidates[0].data
    tallies = [([0, 0], [0, 0]) for _ in candidates]
    heads = int(np.random.default_rng(seed).binomial(2 * trials, 0.5)) if tossed else trials
    least = max(candidate.event.releases for candidate in candidates)
    calls = _calls(heads, 2 * trials - heads, chunk, least)
    looked: list[tuple[list[Any], list[Any]]] = [([], []) for _ in candidates]
    each: list[tuple[list[tuple[int, int]], ...]] = [([], []) for _ in candidates]
    drawn = ahead(draw, [(first[side], m) for side, m in calls])
    for (side, _), releases in zip(calls, drawn, strict=True):
        for i, (candidate, (hits, tried)) in enumerate(zip(candidates, tallies, strict=True)):
            where = side if candidate.data[0] is first[0] else 1 - side
            flags = happened(candidate.event, releases, last=len(candidates) == 1)
            happenings = int(np.count_nonzero(flags))
            hits[where] += happenings
            tried[where] += len(flags)
            each[i][side].append((happenings, len(flags)))
            if sum(map(len, looked[i][side])) < _LOOKED_AT:
                looked[i][side].append(flags)
    for side in (0, 1):
        for seen, of_calls in zip(looked, each, strict=True):
            check_flags(name, np.concatenate(seen[side]))
            check_calls(name, of_calls[side])
    return tallies


def _calls(n0: int, n1: int, chunk: int, least: int) -> list[tuple[int, int]]:
    """Return the calls for n0 releases of one data set and n1 of the other: (which, how many).

    They come in the order of Thue and Morse: what changes with time, in whatever smooth way, is the
    same for both. Each has about as many, at least `least`.

    Examples
    --------
    >>> _calls(8, 9, 3, 1)[:6]
    [(0, 1), (1, 2), (1, 1), (0, 1), (1, 1), (0, 1)]
    """
    few = max(1, min(_CALLS, n0 // least, n1 // least))
    calls = max(few, -(-max(n0, n1) // chunk))
    sizes = [[n // calls + (i < n % calls) for i in range(calls)] for n in (n0, n1)]
    sides = [(i.bit_count() + turn) % 2 for i in range(calls) for turn in (0, 1)]
    return [(side, sizes[side][i // 2]) for i, side in enumerate(sides)]


def ahead(draw: Draw, calls: Sequence[tuple[Any, int]]) -> Iterator[Any]:
    """Draw releases, the next ones while the last are looked at."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(draw, *calls[0])
        for call in calls[1:]:
            drawn, coming = coming, pool.submit(draw, *call)
            yield drawn.result()
        yield coming.result()


def finding(
    candidate: Candidate,
    hits: Sequence[int],
    trials: Sequence[int],
    claim: Claim,
    error: float,
    confidence: float,
    evidence: dict[str, list[int]] | None = None,
    *,
    tossed: bool = False,
) -> Finding:
    """Return what counts of an event certify; `tossed` says that a coin divided the trials."""
    k = candidate.event.releases
    by_ratio = tossed and claim.is_ratio and k == 1
    each = error * (1 - bounds.TOSSED if by_ratio else 1) / 2
    low = bounds.lower_limit(hits[0], trials[0], each)
    high = bounds.upper_limit(hits[1], trials[1], each)
    certified = claim.certified(low, high, k)
    epsilon = bounds.epsilon_of(low, high, delta=claim.delta, releases=k)
    if by_ratio:
        certified = epsilon = bounds.tossed_epsilon(
            hits[0], trials[0], hits[1], trials[1], error=error
        )
    return Finding(
        attack=candidate.attack,
        access=candidate.access,
        event=candidate.event.words,
        value0=candidate.shown[0],
        value1=candidate.shown[1],
        releases=k,
        hits0=hits[0],
        trials0=trials[0],
        hits1=hits[1],
        trials1=trials[1],
        low=low,
        high=high,
        certified=certified,
        epsilon_lower=epsilon,
        confidence=confidence,
        broken=certified > claim.value,
        evidence=evidence or {},
    )


def ceiling(claim: Claim, trials: int, error: float, *, tossed: bool = False) -> float:
    """Return what an event that always happens at one data set and never at the other certifies."""
    if tossed:
        return bounds.tossed_epsilon(trials, trials, 0, trials, error=error)
    low = bounds.lower_limit(trials, trials, error / 2)
    return claim.certified(low, bounds.upper_limit(0, trials, error / 2))


def raised(
    claim: Claim, trials: int, error: float, promise: Callable[[int, float], float], most: int
) -> int:
    """Return how many trials the claim needs, if more than planned are needed and may help.

    They are doubled until the best event promises more than the claim with some caution. If `most`
    do not suffice for that, they are taken where a hopeful guess says that they may help. Else the
    plan stays, unless no event at all could be above the claim with it.

    Parameters
    ----------
    claim, error
        What is held against what, and the error of each bound.
    trials, most
        How many are planned, and the most that may be taken.
    promise
        (trials, caution) -> what the best event promises.
    """
    enough = trials
    while enough < most and promise(enough, 1.0) <= claim.value:
        enough = min(most, 2 * enough)
    if promise(enough, -1.0) <= claim.value:
        enough = trials
    while enough < most and ceiling(claim, enough, error) <= claim.value:
        enough = min(most, 2 * enough)
    return enough


def most_trials(trials: int, seconds_each: float, seconds: float) -> int:
    """Return the most trials of each data set that a raised budget may take."""
    by_time = int(seconds / max(2 * seconds_each, 1e-9))
    return max(trials, min(_GROWTH * trials, by_time))
