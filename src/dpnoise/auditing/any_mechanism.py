"""Audits mechanisms with outputs of any kind, on pairs of neighbouring data sets.

All pairs are screened with a few releases; for the most promising ones events are learned with
more; the best of those are measured in a pilot; and the few best of one pair are counted in the
largest part of the releases (see `spending`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import OUTPUTS, Event
from dpnoise.auditing.attacks.bounds import Claim, Judge
from dpnoise.auditing.independence import ERROR, check_independent
from dpnoise.auditing.learned.events import are_alike, different, proposals, tuned
from dpnoise.auditing.learned.expected_bounds import Proposal, Score, compared, leading, scored
from dpnoise.auditing.mechanisms import Source, described
from dpnoise.auditing.report import Finding, Report
from dpnoise.auditing.spending import (
    Candidate,
    ahead,
    counted,
    finding,
    most_trials,
    raised,
)
from dpnoise.auditing.spending import ceiling as highest
from dpnoise.auditing.versions import versions
from dpnoise.core.parallel import cores

Floats = NDArray[np.float64]
Pair = tuple[Any, Any]
Progress = Callable[[float, str], object]
Watch = Callable[[list[Finding]], object]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

DEFAULT: Final = 2_000_000  # Releases, where no budget is given.
LEARNED: Final = "likelihood"
ERRORS: Final = (0.9, 0.1)  # The parts of the error that two events have which are counted.

_SCREENED: Final = 400_000  # The most releases of a data set by which pairs are compared,
_GLIMPSED: Final = 100_000  # and the most of these in which their events are learned,
_EVENTS: Final = 3  # so many for each pair.
_LEARNED: Final = 500_000  # The most that events of one pair are learned on.
_ENOUGH: Final = 100_000  # What they are learned on besides a share of the budget.
_ALIKE: Final = 3  # How many times as many, where outputs are alike: equal ones are seen once.
_GLANCE: Final = 8_000  # Outputs that tell whether many are.
_TUNED: Final = 500_000  # The most that thresholds are chosen on,
_FEW: Final = 150_000  # and the least, where five eighths of a pilot are as many.
_PILOT: Final = 10_000_000  # The most of a pilot: these, and those in which events are compared.
_PAIRS: Final = 2  # Pairs that events are learned for.
_COMPARED: Final = 6  # Events of each pair whose scores a pilot measures, and half as many rare.
_ROUNDS: Final = ((16, 0.1), (10, 0.3), (6, 0.6))  # How many are compared in which part of them.
_SAME: Final = 0.12  # The part of a count by which two events differ that are as good,
_CLEAR: Final = 200  # and the least count that tells.
_HELD: Final = 100_000  # Releases of a pilot that suffice to hold some of them back.
_CHANCE: Final = 3.0  # Trials put down to chance where one of many events is chosen.
_CAUTION: Final = 2.5  # Standard errors put down to chance where an event is chosen,
_TIMID: Final = 5.0  # and where the one is that chance has least to do with.
_SECONDS: Final = 20.0  # That a budget which is raised by itself may take.
_CONSTANT: Final = Event("never: all outputs were alike", lambda y: np.zeros(len(y), np.bool_))


@dataclass(frozen=True)
class Sizes:
    """How many releases of each data set a step takes."""

    screening: int
    glimpse: int  # Of those of the screening.
    learning: int
    tuning: int
    racing: int
    final: int

    @classmethod
    def of(cls, budget: int, pairs: int, data_sets: int, *, alike: bool) -> "Sizes":
        """Split a budget: the largest part is for the last count."""
        learned, more = min(_PAIRS, pairs), _ALIKE if alike else 1
        screening = min(more * _SCREENED, budget // (5 * data_sets)) if pairs > _PAIRS else 0
        share = budget // (10 * learned)
        # The more releases there are, the smaller is the part of a share by which events are
        # learned; half of what is left of it is for the pilot.
        learning = min(more * _LEARNED, _ENOUGH + share // 4, share)
        pilot = min(_PILOT, share + (share - learning) // 2)
        few = min(_FEW, pilot * 5 // 8)
        tuning = max(few, min(more * _TUNED, pilot // 6)) if pilot >= _HELD else pilot
        used = data_sets * screening + 2 * learned * (learning + pilot)
        return cls(
            screening=screening,
            glimpse=min(more * _GLIMPSED, screening // 3),
            learning=learning,
            tuning=tuning,
            racing=pilot - tuning,
            final=(budget - used) // 2,
        )


def run(
    source: Source,
    claim: Claim,
    pairs: Sequence[Pair],
    budget: int | None,
    confidence: float,
    progress: Progress,
    watch: Watch,
    command: str,
    *,
    seed: int | None = None,
    boosting: bool = False,
) -> Report:
    """Audit a mechanism: see dpnoise.audit."""
    started = time.perf_counter()
    data_sets = len({id(data) for pair in pairs for data in pair})
    progress(0.0, "looking at the first outputs")
    source.prepare([data for pair in pairs for data in pair])
    total = budget or DEFAULT
    glance = source.rows(pairs[0][0], min(_GLANCE, total // 100))
    sizes = Sizes.of(total - len(glance), len(pairs), data_sets, alike=are_alike(glance))
    error = 1 - confidence
    judge = Judge(claim, sizes.final, error)
    wary = replace(judge, chance=_CHANCE)
    screened = _screened(source, pairs, sizes, wary, progress)
    best_pairs = [pairs[i] for i in screened]
    # The trees' seed is drawn from the audit's own, as scikit-learn takes no larger one.
    trees = int(np.random.default_rng(seed).integers(1 << 32)) if boosting else None
    learned = _learned(source, best_pairs, sizes, wary, progress, trees)
    progress(0.4, "comparing the best events")
    clock = time.perf_counter()
    # A race is to come, or the thresholds that are chosen now are the last word.
    chosen_by = wary if sizes.racing else replace(wary, caution=_CAUTION)
    best, counts, seen = _piloted(source, learned, sizes, chosen_by)
    if not best:
        nothing = Candidate(
            LEARNED, OUTPUTS, _CONSTANT, pairs[0], (described(pairs[0][0]), described(pairs[0][1]))
        )
        best, counts = [nothing], [(0.0, 0.0)]
    seconds_each = (time.perf_counter() - clock) / (2 * (sizes.tuning + sizes.racing))
    # What was planned for pairs that were left out early is left for the last count.
    final = max(sizes.final, (total - source.drawn) // 2)
    if budget is None:
        most = most_trials(final, seconds_each, _SECONDS)
        final = raised(claim, final, error, _promise(counts, seen, judge), most)
    progress(0.5, f"counting {len(best)} events in {2 * final:,} releases")
    tossed = claim.is_ratio
    source.close()
    tallies = counted(best, source.rows, final, source.chunk, source.name, tossed=tossed, seed=seed)
    errors = [error * part for part in ERRORS] if len(best) > 1 else [error]
    findings = sorted(
        (
            finding(candidate, hits, tried, claim, own, confidence, tossed=tossed)
            for candidate, (hits, tried), own in zip(best, tallies, errors, strict=True)
        ),
        key=lambda found: -found.certified,
    )
    watch(findings)
    progress(1.0, "done")
    return Report(
        target=source.name,
        version="",
        noise="",
        scale=0.0,
        kind=claim.kind,
        claimed=claim.value,
        delta=claim.delta,
        sensitivity=1.0,
        confidence=confidence,
        findings=findings,
        observations=[],
        skipped={},
        pairs=[(described(a), described(b)) for a, b in pairs],
        method=_METHOD.format(
            pairs=len(pairs),
            screening=sizes.screening,
            learned=len(screened),
            learning=sizes.learning,
            tuning=sizes.tuning,
            racing=sizes.racing,
            compared=len(learned),
            counted=len(best),
            final=final,
            coin=_COIN if tossed else "",
            error=ERROR,
        ),
        ceiling=highest(claim, max(max(tried) for _, tried in tallies), errors[0], tossed=tossed),
        releases=source.drawn,
        seconds=time.perf_counter() - started,
        command=command,
        versions=versions(),
    )


_COIN: Final = " on average, each of the one or the other as a fair coin said"
_METHOD: Final = (
    "{pairs} pairs of data sets were compared on {screening:,} releases of each data set; events "
    "were learned for {learned} of them, on {learning:,}; {compared} kinds got thresholds on "
    "{tuning:,}, and the best were compared on {racing:,} or more. Then {counted} events were "
    "counted in {final:,} fresh releases of each data set{coin}, a number fixed before. Limits are "
    "exact (Clopper and Pearson), and the audit's error is split over the events that were counted "
    "and the limits of each. Releases were tested for independence, at an error of {error:g} for "
    "each test, and then taken to be independent."
)


def _screened(
    source: Source,
    pairs: Sequence[Pair],
    sizes: Sizes,
    judge: Judge,
    progress: Progress,
) -> list[int]:
    """Return the places of the pairs that promise most.

    A few events are learned for each, in few releases, and counted in more that are fresh.
    """
    if len(pairs) <= _PAIRS:
        return list(range(len(pairs)))
    names, first = source.names, sizes.glimpse
    seen: dict[int, Floats] = {}
    for data in _unlike([(None, pair) for pair in pairs]):
        progress(0.1, f"looking at {described(data)}")
        seen[id(data)] = source.rows(data, first)

    def glimpsed(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (seen[id(data)] for data in pair)
        found = proposals(rows0, rows1, names, judge, quick=True)
        best: dict[int, Proposal] = {}
        for one in found:
            if not one.rare:
                best.setdefault(id(one.score), one)
        return [(one, pair) for one in list(best.values())[:_EVENTS]]

    found = [one for some in in_threads(glimpsed, pairs) for one in some]
    if not found:
        return list(range(_PAIRS))
    n = sizes.screening - first
    promised = compared([one for one, _ in found], _tallied(source, found, n), n, judge)
    best = {id(pair): -np.inf for pair in pairs}
    for one, (_, pair) in zip(promised.tolist(), found, strict=True):
        best[id(pair)] = max(best[id(pair)], one)
    return sorted(range(len(pairs)), key=lambda i: -best[id(pairs[i])])[:_PAIRS]


def _learned(
    source: Source,
    pairs: Sequence[Pair],
    sizes: Sizes,
    judge: Judge,
    progress: Progress,
    trees: int | None,
) -> list[tuple[Score, Pair]]:
    """Learn scores for some pairs, after a look at whether releases are independent."""
    names, text = source.names, source.text
    half = sizes.learning // 2
    seen = []
    progress(0.2, "learning events")
    data_sets = [data for pair in pairs for data in pair]
    drawn = ahead(source.rows, [(data, half) for data in data_sets for _ in range(2)])
    for data, before, after in zip(data_sets, drawn, drawn, strict=True):
        check_independent(f"{source.name}({described(data)}, {half})", before, after)
        seen.append(np.concatenate([before, after]))

    def learn(i: int) -> list[tuple[Score, Pair]]:
        found = proposals(seen[2 * i], seen[2 * i + 1], names, judge, text=text, trees=trees)
        best = {id(one.score): (one.score, pairs[i]) for one in leading(found, _COMPARED)}
        return list(best.values())

    return [one for best in in_threads(learn, range(len(pairs))) for one in best]


def _piloted(
    source: Source,
    learned: Sequence[tuple[Score, Pair]],
    sizes: Sizes,
    judge: Judge,
) -> tuple[list[Candidate], list[tuple[float, float]], int]:
    """Choose thresholds in other releases, and return the best events with their counts in some.

    The best of many thresholds looks better than it is. Where there are enough releases, the best
    are compared in some that they were not chosen on: more and more of them, and fewer events.
    """
    releases = {id(data): source.rows(data, sizes.tuning) for data in _unlike(learned)}

    def own(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (releases[id(data)] for data in pair)
        of_pair = [score for score, other in learned if other is pair]
        return [(proposal, pair) for proposal in tuned(of_pair, rows0, rows1, judge)]

    pairs = list({id(pair): pair for _, pair in learned}.values())
    found = [one for some in in_threads(own, pairs) for one in some]
    found.sort(key=lambda one: -one[0].promise)
    counts, seen = np.array([one.hits for one, _ in found]).reshape(-1, 2), sizes.tuning
    if sizes.racing and found:
        found, counts, seen = _raced(source, found, sizes, judge)
    else:
        found, counts = found[:1], counts[:1]
    best = [_candidate(proposal, pair) for proposal, pair in found]
    return best, [(at0, at1) for at0, at1 in counts.tolist()], seen


def _raced(
    source: Source, found: list[tuple[Proposal, Pair]], sizes: Sizes, judge: Judge
) -> tuple[list[tuple[Proposal, Pair]], Floats, int]:
    """Compare events in fresh releases, and return the best, with its counts.

    The best is the one that promises most with caution; those that may be better stay beside it.
    For that, the releases count as well that their thresholds were chosen on: a rare event may be
    missing in a few fresh ones. And a rare event may be the best by chance alone, so that the one
    that promises most with much more caution is returned as well, if it is another.
    """
    bold, careful, timid = (replace(judge, caution=some) for some in (-1.0, _CAUTION, _TIMID))
    events = [one for one, _ in found]
    chosen_by = np.array([one.hits for one in events])
    sure = compared(events, chosen_by, sizes.tuning, careful)
    order = _in_turns(sure, np.array([one.promise for one in events]))
    found = [found[i] for i in _apart(order, found, chosen_by)]
    counts, seen, planned = np.zeros((len(found), 2)), 0, sizes.racing * len(_unlike(found))
    for most, part in _ROUNDS:
        found, counts = found[:most], counts[:most]
        # What was planned for data sets that are left out is for the others.
        more = int(part * planned / len(_unlike(found)))
        counts, seen = counts + _tallied(source, found, more), seen + more
        events = [one for one, _ in found]
        every = counts + [one.hits for one in events]
        hopes = compared(events, every, seen + sizes.tuning, bold)
        sure = compared(events, counts, seen, careful)
        rivals = [i for i in _in_turns(sure, hopes) if hopes[i] >= sure.max()]
        safest = _safest(compared(events, counts, seen, timid), found)
        order = _apart([rivals[0], *safest, *rivals[1:]], found, counts)
        found, counts = [found[i] for i in order], counts[order]
        if set(order) <= {rivals[0], *safest}:
            break
    of_best = [i for i, (_, pair) in enumerate(found) if pair is found[0][1]]
    safe = compared([found[i][0] for i in of_best], counts[of_best], seen, timid)
    chosen = list(dict.fromkeys([0, of_best[int(safe.argmax())]]))
    return [found[i] for i in chosen], counts[chosen], seen


def _safest(safe: Floats, found: Sequence[tuple[Proposal, Pair]]) -> list[int]:
    """Return the place of the event of each pair that promises most."""
    best: dict[int, int] = {}
    for i in np.argsort(-safe, kind="stable").tolist():
        best.setdefault(id(found[i][1]), i)
    return list(best.values())


def _in_turns(sure: Floats, hopes: Floats) -> list[int]:
    """Return, in turns, the place that promises most with caution, and the one that may be best."""
    turns = np.column_stack([np.argsort(-x, kind="stable") for x in (sure, hopes)])
    return list(dict.fromkeys(turns.ravel().tolist()))


def _apart(
    order: Sequence[int], found: Sequence[tuple[Proposal, Pair]], counts: Floats
) -> list[int]:
    """Leave out events that happen about as often as one before: they would certify as much."""
    kept: list[int] = []
    for i in order:
        one, pair = found[i]
        rivals = [k for k in kept if found[k][1] is pair and found[k][0].swapped == one.swapped]
        near = np.abs(counts[rivals] - counts[i]) <= _SAME * counts[rivals]
        if not (near & (counts[rivals] >= _CLEAR)).all(axis=1).any():
            kept.append(i)
    return kept


def _tallied(source: Source, found: Sequence[tuple[Proposal, Pair]], n: int) -> Floats:
    """Count events in n releases: how often each happened where it is meant to, and elsewhere."""
    hits = np.zeros((len(found), 2))
    sides = [(i, side) for i in range(len(found)) for side in (0, 1)]
    for data in _unlike(found):
        here = [(i, side) for i, side in sides if found[i][1][side] is data]
        sizes = [source.chunk] * (n // source.chunk) + [n % source.chunk] * (n % source.chunk > 0)
        for rows in ahead(source.rows, [(data, size) for size in sizes]):
            unlike, often = different(rows)
            scores = {id(found[i][0].score): found[i][0].score for i, _ in here}
            values = dict(zip(scores, scored(list(scores.values()), unlike), strict=True))
            for i, side in here:
                one = found[i][0]
                hits[i, side ^ one.swapped] += often[one.holds(values[id(one.score)])].sum()
    return hits


def _unlike(learned: Sequence[tuple[Any, Pair]]) -> list[Any]:
    return list({id(data): data for _, pair in learned for data in pair}.values())


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Map in as many threads as there are cores: NumPy, which takes most time, lets others run."""
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(function, items))


def _candidate(proposal: Proposal, pair: Pair) -> Candidate:
    data = pair[::-1] if proposal.swapped else pair
    shown = (described(data[0]), described(data[1]))
    return Candidate(LEARNED, OUTPUTS, proposal.event, data, shown, proposal.promise)


def _promise(
    counts: Sequence[tuple[float, float]], n: int, judge: Judge
) -> Callable[[int, float], float]:
    """Return what the best event promises to certify, for any number of trials."""
    hits0, hits1 = (np.array(hits, dtype=np.float64) for hits in zip(*counts, strict=True))

    def promise(trials: int, caution: float) -> float:
        guess = replace(judge, trials=trials, caution=caution)
        return float(guess.promises(hits0, hits1, n).max())

    return promise
