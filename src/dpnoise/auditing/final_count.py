"""Counts the chosen events of a mechanism in fresh outputs, and with them its trade-off curve."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from dpnoise.auditing import counting
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.counting import Candidate, CountSizes
from dpnoise.auditing.event_choice import ChosenEvents
from dpnoise.auditing.exported_data import describe_change, export_pair
from dpnoise.auditing.learned import expected_bounds
from dpnoise.auditing.learned.expected_bounds import Proposal
from dpnoise.auditing.learned.exports import agrees
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.report import Finding
from dpnoise.auditing.targets.mechanisms import Data
from dpnoise.auditing.tradeoff import ScoreTally, TradeoffPoint
from dpnoise.auditing.tuning import TUNING
from dpnoise.core.arrays import Floats

# First outputs on which an event and its text must agree.
_COMPARED_OUTPUTS: Final = 1_000


def final_trials(
    source: OutputSource, chosen: ChosenEvents, budget: int | None, options: AuditOptions
) -> int:
    """Return the number of releases of each data set for the final count."""
    # The final count also gets the releases that dropped pairs did not use.
    unused = (budget or TUNING.mechanism_budget) - source.drawn
    final = max(chosen.sizes.final, unused // 2)
    if budget is not None:
        return final
    estimator = BoundEstimator(options.claim, chosen.sizes.final, 1 - options.confidence)
    in_time = TUNING.mechanism_growth_seconds / max(2 * chosen.seconds_each, 1e-9)
    return counting.needed_trials(estimator, chosen.candidates, final, in_time)


def count_final_events(
    source: OutputSource, chosen: ChosenEvents, final: int, options: AuditOptions
) -> tuple[list[Finding], dict[str, Any]]:
    """Count events in fresh releases.

    Return the findings, and for the report the limits used, the points of the trade-off curve and
    the largest possible bound.
    """
    candidates, proposals = chosen.candidates, chosen.proposals
    options.progress(0.5, f"counting {len(candidates)} events in {2 * final:,} releases")
    claim, tossed, error = options.claim, options.claim.is_ratio, 1 - options.confidence
    curve_error = TUNING.curve_error_share * error if proposals else 0.0
    source.encoder.close()
    scores = _Scores(source, candidates, proposals)
    sizes = CountSizes(final, source.chunk, source.affordable_calls(candidates[0].data[0]))
    counted = counting.count_events(
        [_of_scores(candidate, i, proposals) for i, candidate in enumerate(candidates)],
        source.rows, sizes, source.name, tossed=tossed, seed=options.seed, convert=scores.of,
    )  # fmt: skip
    others = TUNING.event_error_shares[1 : len(candidates)]
    shares = [1 - sum(others), *others]
    estimator = BoundEstimator(options.claim, final, error)
    expected = [candidate.expected_bound(estimator) for candidate in candidates]
    if proposals and proposals[-1].score.is_leaks and expected[-1] > expected[0]:
        shares[0], shares[-1] = shares[-1], shares[0]
    findings = []
    for i, (candidate, share) in enumerate(zip(counted, shares, strict=True)):
        finding = counting.certify(candidate, options, (error - curve_error) * share, tossed=tossed)
        finding = replace(finding, change=_describe_change(candidate, options.data))
        finding = replace(finding, data=export_pair(candidate.data))
        findings.append(replace(finding, predicate="") if i in scores.differ else finding)
    points = scores.points(curve_error, one_by_one=options.one_by_one)
    trials = max(count.trials for candidate in counted for count in candidate.counts)
    most = counting.ceiling(claim, trials, (error - curve_error) * max(shares), tossed=tossed)
    limits = counting.describe_limits(findings, options)
    findings.sort(key=lambda finding: -finding.certified)
    return findings, {"limits": limits, "points": points, "ceiling": most}


def _describe_change(candidate: Candidate, given: Data) -> str:
    """Describe the row by which the data sets of an event differ; `given` is the caller's data."""
    change = describe_change(*candidate.data)
    is_given = given is None or any(data is given for data in candidate.data)
    if not change or is_given or max(map(len, candidate.data)) == 1:
        return change
    return f"{change}; the other rows are not those given"


class _Scores:
    """Scores of the outputs of the last count. It tallies the first score for the curve."""

    def __init__(
        self,
        source: OutputSource,
        candidates: Sequence[Candidate],
        proposals: Sequence[Proposal],
    ) -> None:
        self._source, self._candidates, self._proposals = source, candidates, proposals
        self._scores = [proposal.exact_score for proposal in proposals]
        self._tally, self._compared = ScoreTally(), 0
        self.differ: set[int] = set()  # The events that are not what their text in Python says.
        # The first data set is the one where large values of the first score are likelier.
        self._turn = -1 if proposals and proposals[0].swapped else 1

    def of(self, data: Data, rows: Floats) -> Floats:
        """Return the scores of the rows of a call, one in each column; without scores, the rows."""
        if not self._scores:
            return rows
        if self._compared < _COMPARED_OUTPUTS:
            self._compare(rows[: _COMPARED_OUTPUTS // 2])
        values = expected_bounds.evaluate(self._scores, rows).T
        self._tally.add(int(data is not self._candidates[0].data[:: self._turn][0]), values[:, 0])
        return values

    def points(self, error: float, *, one_by_one: bool) -> list[TradeoffPoint]:
        """Return the points of the curve, which hold together except with probability `error`."""
        first, second = self._candidates[0].shown[:: self._turn]
        return self._tally.points((first, second), error, one_by_one=one_by_one)

    def _compare(self, rows: Floats) -> None:
        self._compared += len(rows)
        decode = partial(self._source.encoder.decode, views=len(self._source.views))
        pairs = zip(self._candidates, self._proposals, strict=True)
        for i, (candidate, proposal) in enumerate(pairs):
            text = candidate.event.source
            if text and not agrees(text, proposal, rows, decode):
                self.differ.add(i)


def _of_scores(candidate: Candidate, i: int, proposals: Sequence[Proposal]) -> Candidate:
    """Return the candidate with its event as one of scores: column i has its own."""
    if not proposals:
        return candidate
    event = replace(
        candidate.event,
        holds=lambda values: proposals[i].holds(np.asarray(values[:, i], np.float64)),
    )
    return replace(candidate, event=event)
