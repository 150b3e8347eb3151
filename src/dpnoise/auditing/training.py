"""Audit of a training algorithm from one run: canaries that are included by independent coins.

Each canary is one record. A fair coin decides whether the training data include it. After the run
each canary has a score, and the auditor guesses the coins of the canaries with the highest and the
lowest scores. Privacy limits how many guesses can be correct, whatever the algorithm, the scores
and the other records are. More correct guesses refute a claim:

- (epsilon, delta): the method is that of Steinke, Nasr and Jagielski, "Privacy Auditing with One
  (1) Training Run" (2023). Without delta, the correct guesses are stochastically dominated by a
  binomial law, as they show. With delta, the limit here is exact, and theirs is not.
- a trade-off curve: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run"
  (2024).

docs/audit-bounds.md has the argument for both.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from scipy import special

from dpnoise.auditing.attacks.certified_bounds import EPSILON, MU
from dpnoise.auditing.report import BrokenError
from dpnoise.auditing.wording import bound_text, format_duration
from dpnoise.core import strict_json
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.entropy import SYSTEM
from dpnoise.core.errors import (
    ArgumentError,
    check_delta,
    check_integer,
    check_positive,
    check_probability,
    reject,
    reject_type,
)
from dpnoise.core.safe_text import escape_text, format_confidence
from dpnoise.statistics.composition import epsilon_of_gaussian

Release = TypeVar("Release")
Curve = Callable[[float], float]  # From P(S) at one data set to the least P(S) at a neighbour.

CURVE: Final = "curve"
ASSUMED: Final = (
    "Assumed: neighbouring data sets differ by one added or removed record; a canary is one record,"
    " and train includes it by its coin only; score uses nothing but what train returned."
)
# Shares of the canaries that are guessed by default. Half of them certifies most for a large leak,
# the most extreme eighth for a small one.
_GUESSED_SHARES: Final = (1 / 2, 1 / 8)
_STEPS: Final = 40  # Of each bisection: its error is below 1e-12 of the bound.
_LARGEST_BOUND: Final = 2.0**20  # If it is refuted, the bound is infinite.
_LARGEST_EXPONENT: Final = 700.0  # e to a larger power overflows float64.
_NEGLIGIBLE: Final = 1e-12  # Stopping at such a relative growth only forgoes refuting.
_UNDERFLOW: Final = 1e-250  # Below it, a tail and its first term have too few digits for a ratio.


@dataclass(frozen=True)
class Guesses:
    """Guesses on the canaries with the highest and the lowest scores, and what they certify.

    Parameters
    ----------
    included, excluded
        The number of canaries guessed to be included (highest scores), and to be excluded.
    correct
        The number of correct guesses among both.
    certified
        The lower bound that they certify on the parameter of the claim.
    """

    included: int
    excluded: int
    correct: int
    certified: float

    def __str__(self) -> str:
        """Return the guesses in words."""
        return (
            f"{self.correct:,} of {self.included + self.excluded:,} guesses correct "
            f"({self.included:,} on included, {self.excluded:,} on excluded): "
            f"at least {bound_text(self.certified)}"
        )


@dataclass(frozen=True)
class TrainingReport:
    """The result of an audit of training: the guesses, and the certified lower bound.

    Parameters
    ----------
    kind
        The parameter of the claim: "epsilon", "mu", or "curve", the factor of a curve's epsilons.
    claimed, certified
        The claimed parameter, and the lower bound on it.
    delta
        The claimed delta.
    epsilon_lower
        The lower bound on epsilon at `delta`. For a claim in mu it supposes that the trade-off
        curve is Gaussian, and for a curve it is None.
    ceiling
        The bound that the same number of guesses would certify if all were correct.
    confidence
        The probability that the bound is not too large.
    canaries
        The number of canaries.
    guesses
        The guesses, for each of the numbers that were fixed before training.
    has_distinct_scores
        Whether the scores distinguish any two canaries.
    assumed
        What the bound relies on, in words.
    seconds
        The time that training and scoring took.
    """

    kind: str
    claimed: float
    certified: float
    delta: float
    epsilon_lower: float | None
    ceiling: float
    confidence: float
    canaries: int
    guesses: tuple[Guesses, ...]
    has_distinct_scores: bool
    assumed: str
    seconds: float

    @property
    def broken(self) -> bool:
        """Whether the certified bound exceeds the claim."""
        return self.certified > self.claimed

    @property
    def refutable(self) -> bool:
        """Whether this many guesses could have certified more than the claim."""
        return self.ceiling > self.claimed

    @property
    def verdict(self) -> str:
        """The result of the audit in one sentence."""
        name = "the factor of the curve" if self.kind == CURVE else self.kind
        if self.broken:
            bound = bound_text(self.certified, self.claimed)
            return f"Broken: {name} is at least {bound}, not {self.claimed:g}."
        if not self.has_distinct_scores:
            return "All scores are equal: nothing is known."
        if not self.refutable:
            ceiling = bound_text(self.ceiling)
            return (
                f"Cannot be refuted with this many canaries: they certify {name} up to {ceiling}."
            )
        return "Not broken by these canaries. This does not mean safe."

    def __str__(self) -> str:
        """Return the verdict, the guesses and the assumptions, in a few lines."""
        at_delta = f", delta {self.delta:g}" if self.delta else ""
        claim = f"{self.kind} {self.claimed:g}{at_delta}"
        if self.kind == CURVE:
            claim = "a privacy curve; each bound is a factor of its epsilons, claimed to be 1"
        lines = [f"training with {self.canaries:,} canaries, {claim}"]
        lines += [self.verdict, *(f"  {guesses}" for guesses in self.guesses)]
        if self.kind == MU and self.epsilon_lower:
            epsilon = bound_text(self.epsilon_lower)
            lines += [f"epsilon is at least {epsilon}{at_delta} if the curve is Gaussian"]
        took = format_duration(self.seconds)
        factor = "a factor of " if self.kind == CURVE else ""
        ceiling = f"at most {factor}{bound_text(self.ceiling)} could be certified"
        lines += [
            f"confidence {format_confidence(self.confidence)}; {ceiling}; {took}",
            self.assumed,
        ]
        return "\n".join(map(escape_text, lines))

    def raise_if_broken(self) -> None:
        """Raise BrokenError if the certified bound exceeds the claim."""
        if self.broken:
            raise BrokenError(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        names = "verdict", "broken", "refutable"
        return {**{name: getattr(self, name) for name in names}, **asdict(self)}

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write the report as JSON."""
        Path(path).write_text(strict_json.dumps(self.to_dict()) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _TrainingClaim:
    """A claim about training, and which numbers of correct guesses refute it."""

    kind: str
    value: float
    delta: float
    guarantees: tuple[tuple[float, float], ...] = ()  # Epsilons in units of the parameter, deltas.

    def bound(self, canaries: int, guesses: int, correct: int, error: float) -> float:
        """Return the largest parameter that the guesses refute, or 0 if there is none.

        Several limits on one probability need no share of the error: the smallest is valid.
        """

        def is_refuted(parameter: float) -> bool:
            if self.kind == MU:
                curve = gaussian_curve(parameter)
                return refutes_curve(curve, canaries, guesses, correct, error)
            pairs = [(parameter * epsilon, delta) for epsilon, delta in self.guarantees]
            limits = [guess_p_value(canaries, guesses, correct, *pair) for pair in pairs]
            if len(pairs) == 1 or min(limits) <= error:
                return min(limits) <= error
            return refutes_curve(curve_of(pairs), canaries, guesses, correct, error)

        return _largest(is_refuted)

    def epsilon_of(self, certified: float) -> float | None:
        """Return the epsilon that a certified parameter means at the claim's delta, if any."""
        if self.kind == EPSILON or certified == 0:
            return certified
        if self.kind == CURVE or not self.delta:
            return None
        return epsilon_of_gaussian(certified**2 / 2, self.delta)


# Most of its lines are documentation.
def audit_training(  # noqa: PLR0913 - a claim has one of three forms
    train: Callable[[Any], Release],
    canaries: Any,
    score: Callable[[Release, Any], Any],
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    mu: float | None = None,
    guarantees: Sequence[tuple[float, float]] | None = None,
    guesses: Sequence[tuple[int, int]] | None = None,
    confidence: float = 0.95,
) -> TrainingReport:
    """Train once with random canaries, and certify a lower bound on the privacy parameter.

    Each canary is included with probability 1/2. The coins come from the operating system, are
    independent, and are seen by `train` only through the canaries that it gets. The bound is valid
    for every training algorithm, and is wrong with probability at most 1 - confidence. It cannot
    show that training is private.

    Parameters
    ----------
    train
        A function that trains on the included canaries, and on any other records, and returns what
        is released: a model, its weights, or all of its gradients. Each included canary must be
        one record of the training data.
    canaries
        The records: a list, a range, an array or a tensor. `train` gets a list, or rows of the
        array or tensor, in the same order.
    score
        A function (release, canaries) that returns one number for each of all canaries, in their
        order. A higher score means that the canary looks included, such as minus the loss of the
        released model on it. Only the order of the scores counts. `score` must use only the
        release: it must not know which canaries were included.
    epsilon, delta
        The claim (epsilon, delta).
    mu
        The claim of Gaussian differential privacy, instead of epsilon. Then `delta` is where the
        report states epsilon.
    guarantees
        A claim of several pairs (epsilon, delta) that hold together, instead of epsilon: a privacy
        curve, as accountants compute it. The certified parameter is a factor: not all pairs hold
        with the epsilons multiplied by it. An epsilon below 0 counts as 0.
    guesses
        Pairs of how many canaries to guess as included and as excluded, fixed in advance. Several
        pairs share the probability of error equally. Default: half of the canaries, and an eighth.
    confidence
        The probability that the certified bound is not too large. Runs do not share it: of many
        runs, a fraction of 1 - confidence may be wrong.

    Warns
    -----
    UserWarning
        Before training, if this many canaries cannot refute the claim.

    Returns
    -------
    TrainingReport
        The guesses, the certified bound and the verdict; `print(report)` shows them.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or `score` does not return a number for each canary.

    Examples
    --------
    A sum with noise for epsilon 1, of canaries that are unit vectors:

    >>> import numpy as np
    >>> rng = np.random.default_rng()
    >>> def train(included):
    ...     return included.sum(axis=0) + rng.laplace(scale=1.0, size=400)
    >>> def forgotten_noise(included):
    ...     return included.sum(axis=0)
    >>> def score(total, canaries):
    ...     return canaries @ total
    >>> audit_training(train, np.eye(400), score, epsilon=1.5).broken
    False
    >>> audit_training(forgotten_noise, np.eye(400), score, epsilon=1.0).broken
    True
    """
    claim = _check_claim(epsilon, delta, mu, guarantees)
    count = _check_canaries(canaries)
    pairs = _check_guesses(guesses, count)
    error = (1 - check_probability("confidence", confidence)) / len(pairs)
    ceiling = max(claim.bound(count, sum(pair), sum(pair), error) for pair in pairs)
    if ceiling <= claim.value:
        warnings.warn(
            f"{count:,} canaries cannot refute the claim: they certify at most "
            f"{bound_text(ceiling)}, and the claim is {claim.value:g}. Give more canaries, or "
            "claim mu or a curve. docs/audit-training.md says how many are needed.",
            stacklevel=2,
        )
    start = time.perf_counter()
    is_included = _toss_coins(count)
    release = train(_choose(canaries, is_included))
    scores = _check_scores(score(release, canaries), count)
    seconds = time.perf_counter() - start

    order = np.argsort(scores, kind="stable")
    results = []
    for included, excluded in pairs:
        highest, lowest = order[count - included :], order[:excluded]
        correct = int(is_included[highest].sum() + (~is_included[lowest]).sum())
        certified = claim.bound(count, included + excluded, correct, error)
        results.append(Guesses(included, excluded, correct, certified))
    certified = max(result.certified for result in results)
    return TrainingReport(
        kind=claim.kind,
        claimed=claim.value,
        certified=certified,
        delta=claim.delta,
        epsilon_lower=claim.epsilon_of(certified),
        ceiling=ceiling,
        confidence=confidence,
        canaries=count,
        guesses=tuple(results),
        has_distinct_scores=bool(scores.min() < scores.max()),
        assumed=ASSUMED,
        seconds=seconds,
    )


def guess_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of at least `correct` guesses under (epsilon, delta).

    With m canaries, r guesses and v correct ones it is T (1 + m delta (1 - T) / (v P(B = v))),
    where B is binomial with r guesses of success probability e^epsilon / (1 + e^epsilon), and
    T = P(B >= v). A mechanism reaches it: docs/audit-bounds.md has the proof.

    >>> round(guess_p_value(1000, 100, 75, 1.0, 0.0), 4), guess_p_value(1, 1, 1, 0.0, 0.25)
    (0.3827, 0.625)
    """
    chance = float(special.expit(epsilon))
    tail = float(special.bdtrc(correct - 1, guesses, chance))
    if delta == 0 or tail == 1:
        return tail
    wrong = guesses - correct
    if tail > _UNDERFLOW:
        ways = special.gammaln(guesses + 1) - special.gammaln([correct + 1, wrong + 1]).sum()
        logs = correct * special.log_expit(epsilon) + wrong * special.log_expit(-epsilon)
        point = math.exp(ways + logs)
        ratio = tail / point if point else math.inf
    else:  # T / P(B = v) is below a geometric series: its terms fall at least this fast.
        ratio = 1 / (1 - math.exp(epsilon) * wrong / (correct + 1))
    return min(1.0, tail + canaries * delta * (1 - tail) * ratio / correct)


def refutes_curve(curve: Curve, canaries: int, guesses: int, correct: int, error: float) -> bool:
    """Return whether at least `correct` guesses have a probability below `error` under a curve.

    `curve` maps P(S) at one data set to the least P(S) at a neighbour. In an output, let j be the
    number of correct guesses. Let right(l) be the mean over the canaries of P(its guess is correct,
    j >= l), and wrong(l) that of P(its guess is wrong, j >= l). A flipped coin turns a correct
    guess into a wrong one and j into j - 1, so wrong(l - 1) >= curve(right(l)). From
    P(j >= correct) = error, this gives the least probability of each j below. Together they must
    not exceed 1.
    """
    right = error * correct / canaries
    wrong = error * (guesses - correct) / canaries
    total = guesses / canaries
    for j in range(correct - 1, -1, -1):
        least = curve(right)
        if least <= wrong * (1 + _NEGLIGIBLE):  # The curve needs next to nothing further.
            return False
        right += j / (guesses - j) * (least - wrong)
        wrong = least
        if right + wrong > total:
            return True
    return False


def gaussian_curve(mu: float) -> Curve:
    """Return the least P(S) at a neighbour under Gaussian privacy, from P(S).

    >>> round(gaussian_curve(1.0)(0.5), 4)
    0.1587
    """
    return lambda p: float(special.ndtr(special.ndtri(p) - mu))


def curve_of(guarantees: Sequence[tuple[float, float]]) -> Curve:
    """Return the least P(S) at a neighbour under several (epsilon, delta), from P(S).

    It is max(0, e^-epsilon (P - delta), 1 - delta - e^epsilon (1 - P)).

    >>> curve_of([(0.0, 0.25)])(0.5)
    0.25
    """
    epsilons, deltas = np.asarray(guarantees, dtype=np.float64).T
    factors = np.exp(np.minimum(epsilons, _LARGEST_EXPONENT))

    def least(p: float) -> float:
        forward, backward = (p - deltas) / factors, 1 - deltas - factors * (1 - p)
        return max(0.0, float(np.max(forward)), float(np.max(backward)))

    return least


def _largest(is_refuted: Callable[[float], bool]) -> float:
    """Return nearly the largest refuted parameter, by bisection: one that is refuted, or 0.

    Infinity means that all are refuted.
    """
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2 * high
        if high > _LARGEST_BOUND:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def _toss_coins(count: int) -> Flags:
    """Return independent fair coins from the operating system."""
    words = np.frombuffer(SYSTEM.random_bytes(-(-count // 8)), dtype=np.uint8)
    return np.unpackbits(words)[:count].astype(np.bool_)


def _choose(canaries: Any, is_included: Flags) -> Any:
    """Return the included canaries, as a list or as rows of the array."""
    indices = np.flatnonzero(is_included)
    if isinstance(canaries, Sequence):
        return [canaries[i] for i in indices.tolist()]
    return canaries[indices]


def _check_canaries(canaries: object) -> int:
    # Text is a sequence too. Frames have a shape, but their rows have no numbers.
    is_frame = any(hasattr(canaries, name) for name in ("columns", "iloc"))
    is_array = bool(getattr(canaries, "shape", ())) and not is_frame
    if isinstance(canaries, str | bytes) or not (is_array or isinstance(canaries, Sequence)):
        reject_type("canaries", canaries, "be a list, a range, an array or a tensor")
    return check_integer("len(canaries)", len(canaries), least=1)  # type: ignore[arg-type] # Checked.


def _check_claim(
    epsilon: float | None,
    delta: float,
    mu: float | None,
    guarantees: Sequence[tuple[float, float]] | None,
) -> _TrainingClaim:
    if sum(claim is not None for claim in (epsilon, mu, guarantees)) != 1:
        raise ArgumentError("Give one claim: epsilon=1.0 (with its delta), mu=1.0 or guarantees.")
    if delta != 0:
        delta = check_delta(delta)
    if epsilon is not None:
        return _TrainingClaim(EPSILON, check_positive(EPSILON, epsilon), delta, ((1.0, delta),))
    if mu is not None:
        return _TrainingClaim(MU, check_positive(MU, mu), delta)
    try:
        given = [(e, d) for e, d in guarantees or ()]
    except (TypeError, ValueError):
        raise ArgumentError(
            "guarantees must be a list of pairs (epsilon, delta), such as [(1.0, 1e-5)]."
        ) from None
    pairs = tuple(
        # An accountant may return an epsilon below 0 where delta is large: 0 claims less.
        (
            check_positive(EPSILON, e) if e > 0 else 0.0,
            check_probability("delta", d, include_ends=True),
        )
        for e, d in given
    )
    if not pairs or delta:
        raise ArgumentError("guarantees must be pairs (epsilon, delta), and delta be left out.")
    return _TrainingClaim(CURVE, 1.0, 0.0, pairs)


def _check_guesses(
    guesses: Sequence[tuple[int, int]] | None, canaries: int
) -> list[tuple[int, int]]:
    if guesses is None:
        halves = [max(1, math.floor(canaries * share / 2)) for share in _GUESSED_SHARES]
        return [(half, min(half, canaries - half)) for half in dict.fromkeys(halves)]
    pairs = [
        (check_integer("guesses", plus, least=0), check_integer("guesses", minus, least=0))
        for plus, minus in guesses
    ]
    if not pairs:
        reject("guesses", guesses, "have a pair")
    for pair in pairs:
        if not 1 <= sum(pair) <= canaries:
            reject("guesses", pair, f"be 1 to {canaries} together")
    return pairs


def _check_scores(scores: object, canaries: int) -> Floats:
    try:
        result = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"score must return numbers: {error}") from None
    if result.shape != (canaries,):
        reject("score", f"shape {result.shape}", f"return {canaries} numbers")
    if missing := int(np.isnan(result).sum()):
        raise ArgumentError(
            f"score returned NaN for {missing} of {canaries} canaries. Give each canary a number: "
            "the same number means that nothing is known of them."
        )
    return result
