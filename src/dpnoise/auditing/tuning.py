"""Tuning parameters of an audit's search, and how it splits a budget over its steps.

No parameter affects whether a certified bound is true: events are counted in fresh releases, and
the limits of those counts are exact. The parameters affect how much an audit finds, and how long it
takes.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Tuning:
    """Sizes, thresholds and shares that the search of an audit uses."""

    # Budgets.
    noise_budget: int = 480_000  # Releases of added noise: a few seconds for most libraries.
    mechanism_budget: int = 2_000_000  # Outputs of a mechanism: learning events needs more.
    least_budget: int = 1_000  # This leaves 250 releases of each value for the final count.
    # An audit searches for pairs only if its budget is this many times what the search uses.
    least_budget_per_search: int = 30
    budget_growth: int = 16  # Most growth of the default budget, where the claim needs more.
    # Seconds that a grown budget may take for added noise, so that an audit stays interactive.
    noise_growth_seconds: float = 10.0
    # The same for a mechanism, whose outputs take longer to make and to encode.
    mechanism_growth_seconds: float = 20.0
    growth_of_search: float = 3.0  # A second, larger search takes this many times the first.
    # Releases of added noise in one call: large calls are efficient, small ones save memory.
    noise_chunk: int = 1 << 18

    # The final count.
    # Events of added noise in the final count. Each takes a part of the failure probability.
    noise_events_counted: int = 2
    # Shares of the failure probability for the events of a mechanism: the best one, a safeguard,
    # and rare leaks. Without the last ones, the first also gets their shares.
    event_error_shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    # The share for the trade-off curve of a mechanism, before the events divide the rest.
    curve_error_share: float = 0.05
    # Trials of one event that are tested for independence. This limits the time of the tests.
    independence_trials: int = 200_000
    # Calls for each data set in the final count. The variance between calls widens the limits, and
    # is known to 6 % from 500 calls, so that it hardly widens those of independent releases.
    final_calls: int = 500
    least_calls: int = 8  # Calls of a target that takes long to start, such as a program.
    calls_seconds: float = 3.0  # Seconds that a count may take to make its calls.
    # Most timed calls that choose an event of the running time, and most that count it.
    timed_calls: int = 20_000
    least_timed_calls: int = 128
    timing_seconds: float = 10.0  # Seconds that these calls may take together.
    # Orders of Rényi divergence for a bound on rho, from 1 + the first to 1 + the second number.
    # Each order gives a valid bound, so the range and the number of orders only cost time.
    renyi_orders: tuple[float, float, int] = (1e-3, 1e3, 121)
    # Computed bounds move by this fraction in the target's favour, far above the rounding errors.
    rounding_margin: float = 1e-9

    # Choosing events of added noise.
    default_scale: float = 1.0  # Attacks assume it for a claim of mu or rho: these imply none.
    # Best candidates of each pair that are counted again, and learned events that join them.
    candidates_counted_again: int = 3
    noise_pairs_compared: int = 3  # Pairs of values compared again, on part of the budget.

    # How an expected bound discounts counts.
    chance_trials: float = 0.5  # Trials attributed to chance for an event fixed in advance.
    chance_trials_of_many: float = 3.0  # The same for the best of many events: partly luck.
    discount: float = 1.0  # Standard errors by which an estimate is discounted.
    # Standard errors for the event of a mechanism that will be counted: it was the best of many.
    discount_of_best: float = 2.5
    discount_of_safest: float = 5.0  # The same for the safe event that is counted next to it.

    # Screening of pairs of data sets, and learning.
    pairs_learned: int = 2  # Pairs for which events are learned; they share the releases.
    screening_outputs: int = 400_000  # Most outputs of each data set for the comparison of pairs.
    # Most of these outputs on which events are learned; the events are counted in the others.
    screening_train_outputs: int = 100_000
    # Events of each pair that are counted while screening: several, because one may be lucky.
    screening_events: int = 3
    learning_outputs: int = 500_000  # Most outputs of each data set for learning about a pair.
    # Learning takes this many outputs plus a quarter of the pair's share, at most this part of it,
    # or all of it up to a least number: fewer outputs do not show rare events.
    learning_base_outputs: int = 100_000
    learning_share: float = 0.75
    least_learning_outputs: int = 15_000
    # Factor on these sizes where many outputs are equal, because equal ones are processed once.
    repeated_outputs_factor: int = 3
    first_look_outputs: int = 8_000  # Outputs that show whether many are equal.

    # The pilot: thresholds are chosen, and events compared.
    pilot_outputs: int = 10_000_000  # Most outputs of each data set in the pilot.
    threshold_outputs: int = 500_000  # Most outputs for choosing thresholds.
    # Least number of outputs for choosing thresholds, but at most five eighths of the pilot.
    least_threshold_outputs: int = 150_000
    # A smaller pilot only chooses thresholds: both halves would be too small to be conclusive.
    least_split_pilot: int = 100_000
    # A pilot for normal scores has this part of the releases for choosing thresholds, but at least
    # this many: a normal law gives the rates of rare events.
    normal_pilot_part: int = 4
    least_normal_pilot: int = 5_000
    scores_compared: int = 6  # Scores of each pair in the pilot, plus half of that for rare events.
    # Rounds of the comparison: the number of events, and the fraction of the outputs. Later rounds
    # have fewer and closer events, and need more outputs to rank them.
    comparison_rounds: tuple[tuple[int, float], ...] = ((16, 0.1), (10, 0.3), (6, 0.6))
    # Events are equally good if their counts differ by at most this fraction, and are this large:
    # smaller counts do not show that events are equal.
    # Factor by which the optimistic estimate of an event is larger if it is counted next to a
    # certain one.
    bold_factor: float = 1.2
    equal_counts: float = 0.12
    least_equal_count: int = 200

    # Views of an output.
    # Outputs that show whether the texts of a part hardly repeat, and the least share of different
    # ones among them if so.
    texts_compared: int = 1_000
    distinct_share: float = 0.9
    discrete_values: int = 24  # Most distinct numbers of a part of an output that is discrete.
    fraction_values: int = 256  # Most distinct fractions of a part with a view of its fraction.
    parts_viewed: int = 64  # Most parts with a view each: it limits the time for wide outputs.
    parts_with_bits: int = 8  # Most parts with views of their bits.
    parts_ordered: int = 6  # Most parts whose order is a view: they have 720 orders.
    parity_bits: int = 40  # Most bits of an output whose parities are compared.
    parities_viewed: int = 6  # Parities with a view: those that differ most.
    column_edge_outputs: int = 1_000  # Outputs of each data set for the cells that rank columns.
    # Size classes that are combined with the pattern of the special numbers, and their range in
    # log odds. Equal steps in log odds are finer in the tails.
    size_classes: int = 32
    size_class_log_odds: float = 6.0

    # Scores of single views.
    view_outputs: int = 20_000  # Outputs of each data set that determine the views.
    view_ranking_outputs: int = 20_000  # Outputs of each data set for comparing all views.
    quick_outputs: int = 200_000  # Most outputs that a quick comparison of pairs learns from.
    numbers_with_cells: int = 256  # Most distinct numbers for which each has a cell.
    codes_with_cells: int = 4096  # Most codes of patterns with a cell; the most frequent get one.
    # Cells of a monotone ratio, and their range in log odds: the cells are fine in the tails.
    monotone_cells: int = 96
    monotone_log_odds: float = 4.2
    # Cells of a free ratio, which need not be monotone: few, because each is estimated separately.
    free_cells: int = 16
    # A view with at most this many edges has two distinct numbers. Its ratio is always monotone, so
    # no free ratio is learned.
    max_edges_of_binary_view: int = 5
    ratio_shrinkage: float = 1.0  # Standard errors by which a free cell's log ratio is shrunk.
    # Outputs are deduplicated if each occurs this often on average: else sorting does not pay.
    least_repeats: int = 8
    folding_outputs: int = 8_000  # Outputs of each data set on which this is decided.
    scores_relearned: int = 24  # Scores of single views to learn again on all outputs.
    quick_scores_relearned: int = 16  # The same in a quick comparison of pairs.
    single_scores: int = 12  # Scores of single views to try without a sum.
    single_parts: int = 2  # Scores of single parts to try next to these.

    # Sums of scores.
    parts_summed: int = 24  # Most parts of an output that may all enter a sum.
    kinds_summed: int = 6  # Most scores in one sum of views of different kinds.
    # A score enters a sum if its means at the data sets differ by this many standard errors. There
    # is one sum for each of these thresholds.
    summed_standard_errors: tuple[float, ...] = (2.0, 5.0, 10.0)
    scores_per_side: int = 3  # Scores of each side to learn again; the best ones are summed.
    summing_outputs: int = 100_000  # Most outputs of each data set for learning sums.
    newton_steps: int = 6  # Most steps of Newton's method in a logistic regression.
    curve_steps: int = 24  # The same for a curve of one score: more if the data sets differ much.
    newton_tolerance: float = 1e-3  # Newton's method stops after a shorter step.
    # A logistic regression begins with every eighth row, or more of them: at least this many.
    regression_stride: int = 8
    least_regression_rows: int = 8_000
    ridge: float = 1e-3  # The penalty on the weights, per output: it only keeps them finite.

    # Linear discriminants.
    # Ridges, in variances: a small one finds sums without noise, large ones suit few outputs.
    discriminant_ridges: tuple[float, ...] = (1e-9, 0.1, 10.0)
    most_discriminant_features: int = 1_000  # The time grows with their square.
    discriminant_work: int = 5_000_000_000  # Most outputs times squared parts: a second.
    # Fraction of the range of a discriminant by which thresholds are tried beyond both of its ends.
    margin_of_range: float = 0.25
    # Spreads from the median at which parts may be clipped, and how much more than without clipping
    # the best of them must show.
    discriminant_clips: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 4.0)
    least_gain_of_clip: float = 1.05
    clip_work: int = 400_000  # Most outputs times parts from which clips are chosen.

    # Rare leaks.
    least_leak_hits: int = 4  # Least hits at one data set of what the other never gave.
    leaks_of_column: int = 256  # Most numbers or texts of a column: those with the most evidence.
    # Outputs on each side of a number that show which data set is likelier there.
    leak_neighbours: int = 100
    # The largest share of one data set near a number, for claims that do not limit it.
    leak_share: float = 0.9
    leak_work: int = 20_000_000  # Most outputs of each data set times columns: a second.

    # Boosted trees.
    boosting_outputs: int = 150_000  # Most outputs of each data set for learning trees.
    boosting_work: int = 3_000_000  # Most of these outputs times parts: a few seconds.
    boosting_trees: int = 60
    boosting_leaves: int = 16  # Shallow trees: the next step uses only their ranking of outputs.
    boosting_learning_rate: float = 0.15
    boosting_leaf_outputs: int = 100  # Least outputs per leaf, against overfitting.

    # Thresholds of a score.
    # Thresholds to try, and their range in log odds: they are fine in the tails.
    thresholds: int = 120
    threshold_log_odds: float = 9.0
    threshold_sample: int = 50_000  # Scores that are sorted to find these thresholds.
    # Fraction of the expected bound that a score loses for each view, to prefer simpler scores.
    complexity_cost: float = 0.01
    # Factors on that cost for a free ratio, for a linear discriminant, for boosted trees, and for
    # overlapping kinds of views.
    free_cost_factor: int = 4
    discriminant_cost_factor: int = 2
    trees_cost_factor: int = 20
    overlap_cost_factor: int = 2
    # An event is rare up to this fraction of outputs. Rare events are ranked separately.
    rare_share: float = 0.02
    # Events with at least this fraction of outputs are the same if their counts are equal.
    frequent_share: float = 0.2
    least_rare_hits: int = 4  # Least hits of a rare event.
    # Least hits at both data sets for which an event is compared with a smooth curve.
    least_curve_hits: int = 200
    curve_error: float = 0.1  # Relative standard error of a ratio read off the curve.
    # Standard errors by which moments of a score may differ from those of a normal law.
    normal_standard_errors: float = 4.0
    # Skewness and excess kurtosis of scores that are nearly normal: sums of some 50 clipped parts.
    normal_skewness: float = 0.1
    normal_kurtosis: float = 0.15
    # Standard deviations up to which its tails matter: the error of the logarithm of a tail there,
    # in standard errors of the mean.
    normal_tail: float = 4.0
    curve_groups: int = 16  # Groups of scores for measuring the misfit of the curve.
    rarer_events: int = 5  # Events to compare with a score's best, each rarer than the last.
    likelier_events: int = 2  # The same, likelier, for sums: their best event is one of many.
    event_step: float = 0.8  # Largest ratio of the frequencies of two successive such events.

    # Speed.
    block_rows: int = 1 << 14  # Rows per block: values that views share stay in the cache.
    # Intervals of equal width in the table that finds the cell of a number; it fits in the cache.
    lookup_intervals: int = 4096
    # The fraction of edges at either end outside these intervals, because tails are wide.
    lookup_tail: float = 0.05
    hash_slots: int = 4  # Slots of the hash table for each number, so that few collide.


TUNING: Final = Tuning()


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
        # the pilot, unless that only chooses thresholds.
        base = TUNING.learning_base_outputs + share // 4
        most = max(int(TUNING.learning_share * share), min(TUNING.least_learning_outputs, share))
        learning = min(factor * TUNING.learning_outputs, base, most)
        tuning = pilot = min(TUNING.pilot_outputs, share)
        if pilot >= TUNING.least_split_pilot:
            pilot = min(TUNING.pilot_outputs, share + (share - learning) // 2)
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
