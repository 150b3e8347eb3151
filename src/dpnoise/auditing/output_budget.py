"""How many outputs of a mechanism each step of an audit draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpnoise.auditing.learned.events import has_many_duplicates
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.targets.mechanisms import Pair
from dpnoise.auditing.tuning import TUNING


@dataclass(frozen=True)
class Sizes:
    """Numbers of releases of each data set for the steps of an audit."""

    screening: int
    screening_train: int  # The part of the screening on which events are learned.
    learning: int
    tuning: int  # For choosing thresholds.
    comparing: int  # For comparing the best events; 0 if the pilot is small.
    final: int  # For the final count.

    @classmethod
    def of(cls, budget: int, pairs: int, data_sets: int, *, many_duplicates: bool) -> "Sizes":
        """Split a budget: the largest part is for the final count."""
        factor = TUNING.repeated_outputs_factor if many_duplicates else 1
        learned, screening = min(TUNING.pairs_learned, pairs), 0
        if pairs > learned:
            screening = min(factor * TUNING.screening_outputs, budget // (5 * data_sets))
        share = budget // (10 * learned)
        # With more releases, a smaller part of the share is for learning. Half of the rest is for
        # the pilot.
        base = TUNING.learning_base_outputs + share // 4
        learning = min(factor * TUNING.learning_outputs, base, share)
        tuning = pilot = min(TUNING.pilot_outputs, share + (share - learning) // 2)
        if pilot >= TUNING.least_split_pilot:
            least_tuning = min(TUNING.least_threshold_outputs, pilot * 5 // 8)
            tuning = max(least_tuning, min(factor * TUNING.threshold_outputs, pilot // 6))
        used = data_sets * screening + 2 * learned * (learning + pilot)
        return cls(
            screening=screening,
            screening_train=min(factor * TUNING.screening_train_outputs, screening // 3),
            learning=learning,
            tuning=tuning,
            comparing=pilot - tuning,
            final=(budget - used) // 2,
        )


def plan_sizes(
    source: OutputSource, pairs: Sequence[Pair], total: int, more_pairs: int
) -> Callable[[int], Sizes]:
    """Take a first look at the outputs; return the function that splits a budget.

    `more_pairs` is the number of pairs that a search may add.
    """
    data_sets = len({id(data) for pair in pairs for data in pair}) + 2 * more_pairs
    first = source.rows(pairs[0][0], min(TUNING.first_look_outputs, total // 100))
    many_duplicates = has_many_duplicates(first)

    def plan(total: int) -> Sizes:
        left = total - len(first)
        return Sizes.of(left, len(pairs) + more_pairs, data_sets, many_duplicates=many_duplicates)

    return plan
