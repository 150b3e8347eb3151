"""Audits mechanisms with outputs of any kind, on pairs of neighbouring data sets.

1. All pairs are screened with a few releases (see `screening`).
2. For the best pairs, events are learned with more releases, and compared in a pilot (see
   `event_choice`).
3. The few best events of one pair are counted in the largest part of the releases (see
   `final_count` and `counting`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from dpnoise.auditing.attacks.base import no_progress
from dpnoise.auditing.calls import time_calls
from dpnoise.auditing.counting import FALSE_ALARM_RATE
from dpnoise.auditing.event_choice import ChosenEvents, Stopwatch, choose_events, grown_budget
from dpnoise.auditing.exported_data import describe_change
from dpnoise.auditing.final_count import count_final_events, final_trials
from dpnoise.auditing.learned.events import has_many_duplicates
from dpnoise.auditing.neighbours import MOST_PAIRS_LIKE, describe_relation, neighbours_of
from dpnoise.auditing.options import AuditOptions, Progress, Watch
from dpnoise.auditing.outputs import OutputSource
from dpnoise.auditing.report import Report
from dpnoise.auditing.running_time import check_running_time
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.auditing.targets.mechanisms import Pair
from dpnoise.auditing.targets.target import MECHANISM_SIGNATURE, TargetError, check_target
from dpnoise.auditing.tuning import TUNING, Sizes
from dpnoise.auditing.wording import describe_pair

_COIN: Final = " on average: a fair coin chose the data set of each release"
_MOST_ROWS_COMPARED: Final = 1_000  # Comparing longer pairs row by row would take seconds.
_SCREENED: Final = (
    "{pairs} pairs of data sets were compared on {sizes.screening:,} releases of each data set. "
)
_METHOD: Final = (
    "Events were learned for {chosen.pairs} of {pairs} pairs of data sets, on {sizes.learning:,} "
    "releases of each. Thresholds of {chosen.scores} scores were chosen on {sizes.tuning:,} "
    "releases{compared}. Events counted at the end: {counted}, in {final:,} fresh releases of each "
    "data set{coin}. The number of releases was set before drawing them. "
    "{limits} The audit's failure probability is split over the points of the trade-off curve, the "
    "counted events and the limits of each. Releases were tested for independence, with a false "
    f"alarm probability of {FALSE_ALARM_RATE:g} for each test. Then calls were assumed independent."
)


# Most of its lines are documentation.
def audit_mechanism(  # noqa: PLR0913 - the options of an audit, which `AuditOptions` holds
    target: object,
    epsilon: float | None = None,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    *,
    neighbours: object = None,
    data: object = None,
    size: int = 10,
    mu: float | None = None,
    rho: float | None = None,
    curve: bool = False,
    one_by_one: bool = False,
    exceptions: str | None = None,
    time: str | None = None,
    boosting: bool | None = None,
    public: Sequence[int | str] = (),
    views: Sequence[Callable[[Any], object]] = (),
    budget: int | None = None,
    confidence: float = 0.999,
    time_limit: float = 60.0,
    seed: int | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Report:
    """Audit a mechanism with outputs of any kind: certify a lower bound on its epsilon.

    Events are learned from outputs at neighbouring data sets and counted in fresh outputs. All
    bounds of a report hold together, except with probability 1 - confidence. A report without
    findings proves nothing.

    Parameters
    ----------
    target
        A function (data, n) -> n independent outputs; "module:function"; a name from
        `dpnoise.auditing.targets.MECHANISMS`, such as "opendp.noisy_max"; or a command as a list
        of strings, which reads one line of JSON, {"data": ..., "n": ...}, and writes n lines. An
        output is a number, a text, None, or a tuple, list or array of these.
    epsilon, delta
        The claim of the target. It is refuted if the certified bound is larger.
    sensitivity
        The most by which each answer of neighbours="vector" changes.
    neighbours
        Pairs of neighbouring data sets, [(a, b), ...]; or a relation: "vector", answers to queries
        that each move by at most the sensitivity; "added", one row added or removed; "replaced",
        one row replaced; or "rows", both. Mechanisms that are private if a row is added may not be
        if it is replaced. For unbounded differential privacy take "added", for bounded "replaced".
        Mechanisms that are given by name have neighbours.
    data
        The rows that "rows", "added" and "replaced" start from: a list, an array or a frame. By
        default zeros and ones. Give invented rows, because reports show numbers from them.
    size
        The number of answers in a "vector".
    exceptions
        "output": an exception that the target raises is an output, with its type and its text, and
        the target is asked for one output per call; "error": an exception ends the audit. By
        default the first exception starts the audit again with "output". It ends the audit if all
        outputs are exceptions, or if it comes in the last count.
    time
        "output": also bound the epsilon of the running time of a call, in up to 40,000 more calls.
        The report has this among its observations, and does not count it in its verdict.
    boosting
        Whether to learn events by gradient boosted trees as well, which needs the extra `learning`.
        By default they are learned where it is installed and no budget is given.
    public
        Parts of each output that are public randomness, such as the seed of a hash: their indices,
        or their names in reports ("y[0]"). Other parts are then also viewed together with these.
    views
        Functions of one output that return a number or a text, which events may use:
        [lambda y: y[0] - y[3]].
    budget
        As for `audit_noise`, but the default is 2 million.
    mu, rho, curve, one_by_one, confidence, time_limit, seed, progress, watch
        As for `audit_noise`.

    Examples
    --------
    The largest of three noisy answers, with noise that would suffice for the index only:

    >>> import numpy as np
    >>> from dpnoise.auditing import audit_mechanism
    >>> rng = np.random.default_rng()
    >>> def largest(answers, n):
    ...     return (answers + rng.laplace(scale=2.0, size=(n, len(answers)))).max(axis=1)
    >>> audit_mechanism(largest, 1.0, neighbours="vector", size=3, budget=200_000).broken
    True
    """
    check_target(target, MECHANISM_SIGNATURE)
    options = AuditOptions(
        epsilon=epsilon, delta=delta, sensitivity=sensitivity, mu=mu, rho=rho, curve=curve,
        neighbours=neighbours, data=data, size=size, one_by_one=one_by_one, exceptions=exceptions,
        time=time, boosting=boosting, public=public, views=views, budget=budget,
        confidence=confidence, time_limit=time_limit, seed=seed, progress=progress or no_progress,
        watch=watch or no_progress,
    )  # fmt: skip
    return _audit(target, options)


def _audit(target: object, options: AuditOptions) -> Report:
    """Resolve the target and its neighbours, learn events, and report what was certified."""
    source, pairs, package = _resolve(target, options)
    started = time.perf_counter()
    try:
        chosen, final = _search(source, pairs, options)
    except TargetError as error:
        if not source.take_exceptions(error):
            raise
        chosen, final = _search(source, pairs, options)
    try:
        findings, results = count_final_events(source, chosen, final, options)
    except TargetError as error:
        # A second last count would need a part of the audit's failure probability.
        if not source.take_exceptions(error):
            raise
        advice = "No call before the last count did so. To count exceptions as outputs, audit with"
        failed = str(error).removesuffix(".")
        raise TargetError(f"{failed}. {advice} exceptions='output'.") from error.__cause__
    options.watch(findings)
    shown, coin = list(map(_describe_neighbours, pairs)), _COIN if options.claim.is_ratio else ""
    numbers = {"pairs": chosen.tried, "counted": len(chosen.candidates), "final": final}
    limits = results.pop("limits")
    sizes, compared = chosen.sizes, ""
    if sizes.comparing:
        compared = f", and the best events were compared on {sizes.comparing:,} or more"
    text = (_SCREENED if sizes.screening else "") + _METHOD
    method = text.format(
        sizes=sizes, chosen=chosen, compared=compared, coin=coin, limits=limits, **numbers
    )
    method += _describe_calls(source, options, len(pairs), chosen.tried)
    results |= {"method": method, "releases": source.drawn, "pairs": shown}
    if options.time is not None:
        options.progress(0.9, "timing calls")
        results["observations"] = [check_running_time(source, pairs, options)]
    options.progress(1.0, "done")
    return options.report(target, source.name, package, started, findings=findings, **results)


def _describe_calls(source: OutputSource, options: AuditOptions, given: int, tried: int) -> str:
    """Return sentences on the pairs of data sets, exceptions, and data that was not copied."""
    words = ""
    if options.by_rows:
        words = (
            f" Neighbours differ by {describe_relation(str(options.neighbours))}: {given:,} pairs"
        )
        words += (
            f" are listed, {tried - given:,} more were found by a search." if tried > given else "."
        )
    if options.by_rows and options.data is None:
        words += " The rows were zeros and ones, because no data was given."
    if source.raised:
        words += f" Exceptions were outputs: {source.raised:,} of {source.drawn:,} were one."
    for reason in sorted(source.not_copied):
        words += f" Data of the class {reason}: each call got the same object."
    return words


def _describe_neighbours(pair: Pair) -> tuple[str, str]:
    """Return short descriptions of two data sets: of the second, the row that differs."""
    first, second = describe_pair(pair)
    is_short = first.endswith(" rows") and len(pair[0]) <= _MOST_ROWS_COMPARED
    return first, (is_short and describe_change(*pair)) or second


def _search(
    source: OutputSource, pairs: Sequence[Pair], options: AuditOptions
) -> tuple[ChosenEvents, int]:
    """Choose events, and the number of releases of each data set for the final count."""
    options.progress(0.0, "drawing the first outputs")
    source.prepare(pairs)
    budget = options.budget
    if budget is None:
        pace = time_calls(lambda n: source.outputs(pairs[0][0], n))
        budget = pace.affordable_budget(TUNING.mechanism_budget)
    watch = Stopwatch(source)
    more_pairs = MOST_PAIRS_LIKE if options.by_rows else 0
    plan = _plan_sizes(source, pairs, budget or TUNING.mechanism_budget, more_pairs)
    chosen = choose_events(source, pairs, plan(budget or TUNING.mechanism_budget), options)
    if budget is None:
        budget = grown_budget(chosen, watch.seconds(), options)
        if budget is not None:
            # Trees that found nothing take too long for more releases.
            again = replace(options, boosting=bool(options.boosting))
            chosen = choose_events(source, pairs, plan(budget), again)
    return chosen, final_trials(source, chosen, budget, options)


def _plan_sizes(
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


def _resolve(target: object, options: AuditOptions) -> tuple[OutputSource, list[Pair], str | None]:
    """Return the source of outputs, the pairs of data sets, and the package of a named target."""
    named = MECHANISMS.get(target) if isinstance(target, str) else None
    if named is not None and options.neighbours is None:
        pairs = list(named.neighbours)
    else:
        pairs = neighbours_of(options.neighbours, options.size, options.sensitivity, options.data)
    mechanism = target if named is None else named.build(options.epsilon, options.delta)
    name, package = (None, None) if named is None else (named.name, named.package)
    source = OutputSource(
        mechanism,
        options.time_limit,
        one_by_one=options.one_by_one,
        exceptions=options.exceptions,
        views=options.views,
        name=name,
    )
    return source, pairs, package
