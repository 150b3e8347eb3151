"""Screens pairs of data sets: finds those with the largest bounds, with a few outputs each."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import numpy as np

from dpnoise.auditing import counting
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator
from dpnoise.auditing.data_rows import DataRows
from dpnoise.auditing.learned import expected_bounds
from dpnoise.auditing.learned.events import (
    deduplicate_rows,
    propose_events,
)
from dpnoise.auditing.learned.expected_bounds import Proposal
from dpnoise.auditing.neighbours import pairs_like
from dpnoise.auditing.options import Progress
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.targets.mechanisms import Data, Pair
from dpnoise.auditing.targets.target import TargetError
from dpnoise.auditing.tuning import TUNING, Sizes
from dpnoise.auditing.wording import describe_data
from dpnoise.core.arrays import Floats
from dpnoise.core.parallel import cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def screen_pairs(
    source: OutputSource,
    pairs: Sequence[Pair],
    sizes: Sizes,
    estimator: BoundEstimator,
    progress: Progress,
) -> list[Pair]:
    """Return the pairs with the largest expected bound.

    For each pair, a few events are learned on few releases, and counted in more fresh ones.
    """
    if len(pairs) <= TUNING.pairs_learned:
        return list(pairs)
    names, train = source.names, sizes.screening_train
    seen: dict[int, Floats] = {}
    for data in distinct_data_sets([(None, pair) for pair in pairs]):
        progress(0.1, f"screening {describe_data(data)}")
        seen[id(data)] = source.rows(data, train)

    def learn_quickly(pair: Pair) -> list[tuple[Proposal, Pair]]:
        rows0, rows1 = (seen[id(data)] for data in pair)
        best: dict[int, Proposal] = {}
        for proposal in propose_events(rows0, rows1, names, estimator, quick=True):
            if not proposal.rare:
                best.setdefault(id(proposal.score), proposal)
        return [(proposal, pair) for proposal in [*best.values()][: TUNING.screening_events]]

    learned = map_in_threads(learn_quickly, pairs)
    if not learned:
        return list(pairs[: TUNING.pairs_learned])
    n = sizes.screening - train
    counts = tally_events(source, learned, n)
    bounds = expected_bounds.reestimate([event for event, _ in learned], counts, n, estimator)
    best = {id(pair): -np.inf for pair in pairs}
    for bound, (_, pair) in zip(bounds.tolist(), learned, strict=True):
        best[id(pair)] = max(best[id(pair)], bound)
    return sorted(pairs, key=lambda pair: -best[id(pair)])[: TUNING.pairs_learned]


def search_data_sets(
    source: OutputSource,
    best_pairs: list[Pair],
    sizes: Sizes,
    estimator: BoundEstimator,
    progress: Progress,
) -> tuple[list[Pair], int]:
    """Return the best of these pairs and of those like one of them, and the number of the latter.

    Pairs on which the mechanism fails are left out. But a failure at one of two data sets shows
    which one it was: it is raised if exceptions can be outputs, and no row of them was invented by
    this search.
    """

    def are_accepted(pair: Pair) -> bool:
        failures: list[TargetError] = []
        for data in pair:
            try:
                for n in (1, 2):
                    source.rows(data, n)
            except TargetError as error:
                failures.append(error)
        is_telling = len(failures) == 1 and source.may_take(failures[0])
        if is_telling and any(_are_rows_of(pair, known) for known in best_pairs):
            raise failures[0]
        return not failures

    # A row that is added shows more than one that is replaced.
    ordered = sorted(best_pairs, key=lambda pair: len(pair[0]) == len(pair[1]))
    found = next(filter(None, map(pairs_like, ordered)), [])
    like = list(filter(are_accepted, found))
    return screen_pairs(source, [*best_pairs, *like], sizes, estimator, progress), len(like)


def _are_rows_of(pair: Pair, known: Pair) -> bool:
    """Return whether all rows of two data sets are rows of two others."""
    texts = [{repr(row) for x in two for row in DataRows(x).every_row()} for two in (pair, known)]
    return texts[0] <= texts[1]


def tally_events(source: OutputSource, proposed: Sequence[tuple[Proposal, Pair]], n: int) -> Floats:
    """Count events in n releases of both data sets: first of the one where each is likelier."""
    hits = np.zeros((len(proposed), 2))
    sides = [(i, side) for i in range(len(proposed)) for side in (0, 1)]
    for data in distinct_data_sets(proposed):
        of_data = [(i, side) for i, side in sides if proposed[i][1][side] is data]
        sizes = [source.chunk] * (n // source.chunk) + [n % source.chunk] * (n % source.chunk > 0)
        for rows in counting.draw_ahead(source.rows, [(data, size) for size in sizes]):
            distinct, (repeats,), are_distinct = deduplicate_rows(rows)
            scores = {id(proposed[i][0].score): proposed[i][0].score for i, _ in of_data}
            totals = expected_bounds.evaluate(list(scores.values()), distinct)
            values = dict(zip(scores, totals, strict=True))
            for i, side in of_data:
                event = proposed[i][0]
                happened = event.holds(values[id(event.score)])
                # A selection of repeats takes ten times as long as a count.
                number = repeats[happened].sum() if are_distinct else np.count_nonzero(happened)
                hits[i, side ^ event.swapped] += number
    return hits


def distinct_data_sets(learned: Sequence[tuple[object, Pair]]) -> list[Data]:
    """Return the data sets of the pairs, each once."""
    return list({id(data): data for _, pair in learned for data in pair}.values())


def map_in_threads(
    function: Callable[[_Item], list[_Result]], items: Iterable[_Item]
) -> list[_Result]:
    """Concatenate the lists that a function returns for items, in one thread per core.

    NumPy, which takes most of the time, releases the GIL.
    """
    with ThreadPoolExecutor(cores()) as pool:
        return list(chain.from_iterable(pool.map(function, items)))
