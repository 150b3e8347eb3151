"""The numbers that an audit's search is tuned by.

None of them decides whether a certified bound is true: whatever was chosen, events are counted in
fresh releases, and the limits of those counts are exact. They decide how much is found, and in what
time. Where no experiment is named, a comment says what the value trades off.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Tuning:
    """What an audit spends its releases and its time on."""

    # Budgets. ----------------------------------------------------------------------------------
    # Releases of added noise without a given budget: seconds of time for most libraries.
    noise_budget: int = 480_000
    # Outputs of a mechanism without a given budget. More than for noise: its events are learned.
    mechanism_budget: int = 2_000_000
    # The least budget leaves 250 releases of each value for the last count.
    least_budget: int = 1_000
    # A search for pairs is made if the budget is this many times what the search takes.
    least_budget_per_search: int = 30
    # A budget that was not given grows by this factor at most where the claim needs more.
    budget_growth: int = 16
    # Seconds that a grown budget may take for added noise, so that an audit stays interactive.
    noise_growth_seconds: float = 10.0
    # The same for a mechanism, whose outputs take longer to make and to look at.
    mechanism_growth_seconds: float = 20.0
    # Releases of added noise in one call: large calls are efficient, small ones save memory.
    noise_chunk: int = 1 << 18

    # The last count. ---------------------------------------------------------------------------
    # Events of added noise in the last count: each one more costs the others a part of the error.
    noise_events_counted: int = 2
    # How the error is split over two events of a mechanism; the second is only a safeguard.
    event_error_shares: tuple[float, float] = (0.9, 0.1)
    # Trials of one event that are tested for independence, which bounds the time of the tests.
    independence_trials: int = 200_000
    # Calls for each data set at least: noise that is drawn once a call differs between calls.
    least_calls: int = 8
    # Orders of Rényi divergence for a bound on rho, from 1 + the first to 1 + the second number.
    # Each order gives a valid bound, so the range and the number of orders only cost time.
    renyi_orders: tuple[float, float, int] = (1e-3, 1e3, 121)
    # Computed bounds move by this part in the target's favour, far above the rounding errors.
    rounding_margin: float = 1e-9

    # Choosing events of added noise. -----------------------------------------------------------
    # The scale that attacks are told for a claim of mu or rho, from which none can be computed.
    default_scale: float = 1.0
    # Attacks, each in one direction, that choose again: more share the same releases.
    attacks_choosing_again: int = 3
    # Pairs of values that are compared once more; their releases are a fixed part of the budget.
    noise_pairs_compared: int = 3

    # How an expected bound discounts what was seen. --------------------------------------------
    chance: float = 0.5  # Trials attributed to chance for an event that was fixed in advance.
    # Trials attributed to chance where the best of many events is taken, which is better by luck.
    chance_of_many: float = 3.0
    caution: float = 1.0  # Standard errors by which an estimate is discounted.
    # The same for the event of a mechanism that will be counted: it was the best of many.
    caution_of_best: float = 2.5
    caution_of_safest: float = 5.0  # The same for the safe event that is counted next to it.

    # Screening of pairs of data sets, and learning. --------------------------------------------
    # Pairs that events are learned for; each takes its share of the releases from the others.
    pairs_learned: int = 2
    # Outputs of each data set at most for the comparison of pairs.
    screening_outputs: int = 400_000
    # How many of these at most are for learning events; the others count them.
    screening_train_outputs: int = 100_000
    # Events of each pair that are counted while screening: a few guard against a lucky one.
    screening_events: int = 3
    # Outputs of each data set at most for learning the events of one pair.
    learning_outputs: int = 500_000
    # Outputs for learning on top of a quarter of a pair's share, as far as that share allows.
    learning_base_outputs: int = 100_000
    # Factor on these sizes where many outputs are equal: equal ones are looked at once.
    repeated_outputs_factor: int = 3
    first_look_outputs: int = 8_000  # Outputs that show whether many are equal.

    # The pilot: thresholds are chosen, and events compared. ------------------------------------
    pilot_outputs: int = 10_000_000  # Outputs of each data set in the pilot at most.
    threshold_outputs: int = 500_000  # Outputs at most for choosing thresholds.
    # Outputs at least for that, if five eighths of the pilot are as many.
    least_threshold_outputs: int = 150_000
    # A smaller pilot only chooses thresholds: both halves would be too small to tell anything.
    least_split_pilot: int = 100_000
    scores_compared: int = 6  # Scores of each pair in the pilot, with half as many of rare events.
    # Rounds of the comparison: how many events, and in which part of the outputs. The fewer events
    # are left, the closer they are, and the more outputs it takes to tell them apart.
    comparison_rounds: tuple[tuple[int, float], ...] = ((16, 0.1), (10, 0.3), (6, 0.6))
    # Two events are taken to be equally good if their counts differ by this part at most.
    equal_counts: float = 0.12
    # And if each count is at least this large: smaller ones do not show that two are the same.
    least_equal_count: int = 200

    # Views of an output. -----------------------------------------------------------------------
    # A part of an output with at most this many different numbers is discrete.
    discrete_values: int = 24
    fraction_values: int = 256  # Different fractions of a part up to which its fraction is a view.
    # Parts of an output that have a view each, which bounds the time for wide outputs.
    parts_viewed: int = 64
    parts_with_bits: int = 8  # Parts whose bits have views.
    # Parts up to which their order is a view: it has a code for each of up to 720 orders.
    parts_ordered: int = 6
    # Classes of size that are combined with the pattern of the special numbers.
    size_classes: int = 32
    # Log odds up to which these classes reach, at equal steps: closer together in the tails.
    size_class_log_odds: float = 6.0

    # Scores of single views. -------------------------------------------------------------------
    view_outputs: int = 20_000  # Outputs of each data set that decide which views there are.
    view_ranking_outputs: int = 20_000  # Outputs of each data set by which all views are compared.
    # The number of outputs that a quick comparison of pairs learns from at most.
    quick_outputs: int = 200_000
    numbers_with_cells: int = 256  # Different numbers up to which each has a cell.
    codes_with_cells: int = 4096  # Codes of patterns that have a cell, the most frequent ones.
    # Cells of a monotone ratio, and the log odds up to which they reach: fine in the tails.
    monotone_cells: int = 96
    monotone_log_odds: float = 4.2
    free_cells: int = 16  # Cells of a free ratio: few, because each is estimated separately.
    # A view with at most this many edges has two numbers, and needs no free ratio.
    edges_of_two_numbers: int = 5
    # Standard errors by which the ratio of a free cell is shrunk to 0.
    ratio_shrinkage: float = 1.0
    # Equal outputs are folded if each is seen this often on average: else sorting does not pay.
    least_repeats: int = 8
    folding_outputs: int = 8_000  # Outputs of each data set that show whether they are.
    scores_relearned: int = 24  # Scores of single views that are learned again, on all outputs.
    quick_scores_relearned: int = 16  # The same in a quick comparison of pairs.
    single_scores: int = 12  # Scores of single views that are tried without a sum.

    # Sums of scores. ---------------------------------------------------------------------------
    parts_summed: int = 24  # Parts of an output up to which all of them may enter a sum.
    kinds_summed: int = 6  # Scores of several kinds in one sum.
    # Standard errors between the data sets that a score must show to enter a sum, for each of
    # three sums: the stricter, the fewer scores.
    summed_standard_errors: tuple[float, ...] = (2.0, 5.0, 10.0)
    # Scores of one sort of parts that are learned again before the best enters the sum of both.
    scores_per_side: int = 3
    summing_outputs: int = 100_000  # Outputs of each data set at most on which sums are learned.
    newton_steps: int = 6  # Steps of Newton's method at most in a logistic regression.
    newton_tolerance: float = 1e-3  # A step of Newton's method that is shorter is the last.
    # The weight of the penalty on the weights, for each output: it only keeps them finite.
    ridge: float = 1e-3

    # Boosted trees. ----------------------------------------------------------------------------
    boosting_outputs: int = 150_000  # Outputs of each data set at most on which trees are learned.
    # Trees: shallow ones, because the next step only takes their ranking of outputs.
    boosting_trees: int = 60
    boosting_leaves: int = 16
    boosting_learning_rate: float = 0.15
    boosting_leaf_outputs: int = 100  # Outputs in each leaf at least, against overfitting.

    # Thresholds of a score. --------------------------------------------------------------------
    # Thresholds that are tried, and the log odds up to which they reach: fine in the tails.
    thresholds: int = 120
    threshold_log_odds: float = 9.0
    threshold_sample: int = 50_000  # Scores that are sorted to find them.
    # The part of its expected bound that each view costs a score: a simpler one is chosen first.
    complexity_cost: float = 0.01
    # Factors on that cost: of a free ratio, of boosted trees, and of kinds of views that overlap.
    free_cost_factor: int = 4
    trees_cost_factor: int = 20
    overlap_cost_factor: int = 2
    # The share of outputs up to which an event is rare, and has a place among the candidates.
    rare_share: float = 0.02
    least_rare_hits: int = 4  # A rare event must have been seen this often.
    # Hits at both data sets from which on an event is compared with a smooth curve.
    least_curve_hits: int = 200
    curve_error: float = 0.1  # The relative standard error of a ratio that is read off the curve.
    curve_groups: int = 16  # Groups of scores in which the misfit of the curve is measured.
    # Events of one score that are compared with its best, each rarer than the last.
    rarer_events: int = 5
    likelier_events: int = 2  # And likelier ones, of a sum: its best event is one of many.
    # How likely the rarer of two such events is at most, relative to the other.
    event_step: float = 0.8

    # Speed. ------------------------------------------------------------------------------------
    # Rows that are looked at at a time: what several views take of them stays in the cache.
    block_rows: int = 1 << 14
    # Intervals of one width by which the cell of a number is looked up; they fit in the cache.
    lookup_intervals: int = 4096
    # The part of the edges at either end that these intervals leave out, because tails are wide.
    lookup_tail: float = 0.05
    # Slots of the hash table for each number that has a cell, so that few collide.
    hash_slots: int = 4


TUNING: Final = Tuning()
