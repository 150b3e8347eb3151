"""Mechanisms that select: the argmax of noisy scores, exactly as in real arithmetic."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, ClassVar, Final

import numpy as np
from flint import arb
from numpy.typing import ArrayLike

from dpnoise.core import reference
from dpnoise.core.arrays import Floats, as_number, check_rounding_mode
from dpnoise.core.entropy import Key, Words
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, check_flag, scrub_traceback
from dpnoise.core.parallel import first_words
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import calibration, exact
from dpnoise.release.exact import SelectionForm
from dpnoise.release.mechanism import Mechanism, check_all_positive, require_named_arguments

_NO_BOUND: Final = 2.0**900  # A larger error of a kernel means infinity.
_ROUND: Final = 2.0**-49  # Exceeds the rounding errors of a noisy score, relative to its parts.
_EXPONENT_BITS: Final = 2200  # Enough bits for the exact sum of any two floats.


class _Selection(Mechanism):
    """The common base of both mechanisms: everything except the distribution of the noise."""

    epsilon: float
    sensitivity: float
    monotonic: bool
    scale: float
    _form: ClassVar[SelectionForm]

    @require_named_arguments()
    def __init__(self, *, epsilon: float, sensitivity: float, monotonic: bool = False) -> None:
        checked = check_all_positive(epsilon=epsilon, sensitivity=sensitivity)
        monotonic = check_flag("monotonic", monotonic)
        scale = calibration.selection_scale(**checked, monotonic=monotonic)
        self._set_attributes({**checked, "monotonic": monotonic}, scale=scale)

    @scrub_traceback
    def select(
        self,
        scores: ArrayLike,
        candidates: Sequence[Any] | None = None,
        rng: Generator | None = None,
    ) -> Any:
        """Return the index of the largest noisy score, or the candidate that has it.

        Parameters
        ----------
        scores
            A list of numbers, which are secret.
        candidates
            A list with one entry for each score, which is public.
        rng
            The `dpnoise.Generator` to draw from; None is a new one.
        """
        exact_scores, nearest_scores = _check_scores(scores)
        number = len(exact_scores)
        choices = range(number) if candidates is None else _check_candidates(candidates, number)
        score = exact_scores.__getitem__
        index = noisy_argmax(nearest_scores, score, self.scale, rng, self._form)
        return choices[index]


class NoisyMax(_Selection):
    """The report-noisy-max mechanism with exponential noise, computed exactly.

    It is epsilon-differentially private.

    The noise has scale 2 * sensitivity / epsilon. With it the mechanism is permute-and-flip
    (McKenna and Sheldon 2020; Ding and others 2021), which is never worse than the exponential
    mechanism.

    Parameters
    ----------
    epsilon
        The privacy loss of a selection. Smaller is more private; 0.1 to 10 are common.
    sensitivity
        The largest change of any score when one person's data changes.
    monotonic
        True if all scores change in the same direction, as counts do when a row is added. Half the
        noise then suffices.

    Attributes
    ----------
    scale
        The scale of the noise.
    epsilon, sensitivity, monotonic
        The arguments.

    Examples
    --------
    >>> mechanism = NoisyMax(epsilon=1.0, sensitivity=1.0)
    >>> mechanism.select([10, 5000, 20])
    1
    >>> mechanism.select([10, 5000, 20], candidates=["cork", "dublin", "galway"])
    'dublin'
    >>> mechanism.replace(monotonic=True)
    NoisyMax(epsilon=1.0, sensitivity=1.0, monotonic=True)
    """

    _form = exact.EXPONENTIAL


class ExponentialMechanism(_Selection):
    """The exponential mechanism, computed exactly, as an argmax with Gumbel noise.

    A candidate is selected with probability proportional to exp(epsilon * score / (2 *
    sensitivity)), without the 2 if monotonic. `NoisyMax` is never worse.

    Parameters
    ----------
    epsilon, sensitivity, monotonic
        As for `NoisyMax`.

    Examples
    --------
    >>> ExponentialMechanism(epsilon=1.0, sensitivity=1.0).select([10, 5000, 20])
    1
    """

    _form = exact.GUMBEL


def _check_candidates(candidates: Iterable[object], number: int) -> list[object]:
    """Return the candidates as a list; raise if they have no order or a wrong number."""
    if isinstance(candidates, AbstractSet | Mapping) or not isinstance(candidates, Iterable):
        kind = type(candidates).__name__
        raise ArgumentTypeError(f"candidates must be a list, in the order of scores, got a {kind}.")
    choices = list(candidates)
    if len(choices) != number:
        raise ArgumentError(
            f"There must be one candidate for each of the {number} scores, got {len(choices)}."
        )
    return choices


def noisy_argmax(
    nearest_scores: Floats,
    exact_score: Callable[[int], float | Fraction],
    scale: float,
    rng: Generator | None,
    form: SelectionForm = exact.EXPONENTIAL,
) -> int:
    """Return the index of the largest score + scale * noise, in real arithmetic.

    The noise is that of `NoisyMax` by default. `nearest_scores` are the nearest floats to the
    scores. `exact_score(index)` is called only for candidates between which these floats cannot
    decide, which is rare.
    """
    check_rounding_mode()
    key = check_generator(rng).source.key()
    words = first_words(key, len(nearest_scores))
    leaders = _possible_leaders(form, words, nearest_scores, scale)
    if len(leaders) > 1:
        leaders = _refine(form, key, words, leaders, exact_score, scale)
    return leaders[0]


def _check_scores(scores: ArrayLike) -> tuple[list[int | float], Floats]:
    """Check the scores before any noise is drawn; return them exactly and as nearest floats."""
    if isinstance(scores, np.ma.MaskedArray):
        raise ArgumentTypeError("scores must not be a masked array.")
    if isinstance(scores, str | Mapping | None):
        kind = type(scores).__name__
        raise ArgumentTypeError(f"scores must be a list of one or more numbers, got {kind}.")
    if not isinstance(scores, list | tuple):
        scores = np.atleast_1d(np.asarray(scores))
    entries = list(scores)
    if not entries or any(isinstance(entry, list | tuple | np.ndarray) for entry in entries):
        raise ArgumentError("scores must be a list of one or more numbers.")
    exact_scores = [as_number(entry) for entry in entries]
    try:
        nearest_scores = np.array([float(score) for score in exact_scores])
    except OverflowError:
        raise ArgumentError("Every score must be below the largest float.") from None
    exact.check_finite(nearest_scores)
    return exact_scores, nearest_scores


def _possible_leaders(form: SelectionForm, words: Words, scores: Floats, scale: float) -> list[int]:
    """Return the candidates that could have the largest noisy score, given the error bounds."""
    noise, errors = np.empty(len(scores)), np.empty(len(scores))
    form.kernel()(words, reference.WORD_BITS, noise, errors)
    with np.errstate(all="ignore"):
        totals = scores + scale * noise
        size = np.abs(scores) + scale * np.abs(noise)
        # At V = 0 the noise is unbounded, and the kernel's error means infinity.
        errors[errors > _NO_BOUND] = np.inf
        radius = scale * errors + _ROUND * size
        low, high = totals - radius, totals + radius
    # Where scale * noise overflows, NaN keeps the candidate.
    best = np.fmax.reduce(low, initial=-np.inf)
    leaders: list[int] = np.flatnonzero(~(high < best)).tolist()
    return leaders


def _refine(
    form: SelectionForm,
    key: Key,
    words: Words,
    leaders: list[int],
    exact_score: Callable[[int], float | Fraction],
    scale: float,
) -> list[int]:
    """Compare the possible leaders at increasing precision, until one is left.

    The reference implementation computes their noise.
    """
    balls = {
        i: reference.enclosures(form.formula, exact.rows_from_key(key, i, words[i : i + 1]))
        for i in leaders
    }
    while len(leaders) > 1:
        totals: dict[int, arb] = {}
        for i in leaders:
            ball = next(balls[i])
            noise = reference.Ball(ball, ball.bits() + _EXPONENT_BITS)
            total = reference.ball_of(exact_score(i)) + reference.ball_of(scale) * noise
            totals[i] = total.enclosure
        leaders = [i for i in leaders if not any(totals[j] > totals[i] for j in leaders if j != i)]
    return leaders
