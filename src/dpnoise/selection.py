"""Mechanisms that select: the exact argmax of scores with noise, as in real arithmetic."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Final

import numpy as np
from flint import arb, ctx
from numpy.typing import ArrayLike, NDArray

from dpnoise import calibration, exact, reference
from dpnoise.entropy import WORD, Key
from dpnoise.errors import ArgumentError, ArgumentTypeError
from dpnoise.generator import Generator
from dpnoise.values import check_finite

_SYSTEM: Final = Generator()
_ROUND: Final = 2.0**-50  # More than the roundings of score + scale * noise, relative to its parts.


@dataclass(frozen=True)
class _Selection:
    """What the two mechanisms share: everything but the law of their noise."""

    epsilon: float
    sensitivity: float
    _: KW_ONLY
    monotonic: bool = False
    scale: float = field(init=False)
    _form: ClassVar[str]

    def __post_init__(self) -> None:
        scale = calibration.selection_scale(
            self.epsilon, self.sensitivity, monotonic=self.monotonic
        )
        object.__setattr__(self, "scale", scale)

    def select(
        self,
        scores: ArrayLike,
        candidates: Sequence[Any] | None = None,
        rng: Generator | None = None,
    ) -> Any:
        """Return the index of the largest noisy score, or the candidate that has it.

        Scores are secrets; candidates are public.
        """
        return _select(self._form, scores, self.scale, candidates, rng)


class NoisyMax(_Selection):
    """Report noisy max with exponential noise, exactly: epsilon-differential privacy.

    The noise has scale 2 * sensitivity / epsilon. With it the mechanism is permute-and-flip
    (McKenna and Sheldon 2020; Ding and others 2021), which is never worse than the exponential
    mechanism.

    Parameters
    ----------
    epsilon
        The privacy loss.
    sensitivity
        How far any score can move between neighbouring data sets.
    monotonic
        True if all scores move in the same direction (counts do, when a row is added). Half the
        noise then suffices.

    Examples
    --------
    >>> mechanism = NoisyMax(epsilon=1.0, sensitivity=1.0)
    >>> mechanism.select([10, 5000, 20])
    1
    >>> mechanism.select([10, 5000, 20], candidates=["cork", "dublin", "galway"])
    'dublin'
    """

    _form = "exponential"


class ExponentialMechanism(_Selection):
    """The exponential mechanism, exactly, as an argmax with Gumbel noise.

    A candidate is selected with probability proportional to exp(epsilon * score / (2 *
    sensitivity)), without the 2 if monotonic. Parameters as in NoisyMax.

    Examples
    --------
    >>> ExponentialMechanism(epsilon=1.0, sensitivity=1.0).select([10, 5000, 20])
    1
    """

    _form = "gumbel"


def _select(
    form: str,
    scores: ArrayLike,
    scale: float,
    candidates: Sequence[Any] | None,
    rng: Generator | None,
) -> Any:
    exactly, approximately = _checked(scores)
    if candidates is not None and len(candidates) != len(exactly):
        raise ArgumentError(
            f"Expected one candidate for each of the {len(exactly)} scores, got {len(candidates)}."
        )
    exact.check_rounding_mode()
    key = (_SYSTEM if rng is None else rng)._fresh_key()  # noqa: SLF001 - the Generator's own hook
    words = np.empty(len(exactly), dtype=WORD)
    key.stream().fill(words)
    leaders = _possible_leaders(form, words, approximately, scale)
    if len(leaders) > 1:
        leaders = _refine(form, key, words, leaders, exactly, scale)
    index = leaders[0]
    return index if candidates is None else candidates[index]


def _checked(scores: ArrayLike) -> tuple[list[int | float], NDArray[np.float64]]:
    """Return the scores as they are and as floats, checked before any noise is drawn."""
    array = np.asarray(scores)
    if array.ndim != 1 or array.size == 0:
        raise ArgumentError(
            f"Expected scores to be a list of one or more numbers, got shape {array.shape}."
        )
    try:
        approximately = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError("Expected scores to be numbers.") from None
    check_finite(approximately)
    exactly = list(scores) if isinstance(scores, list | tuple) else array.tolist()
    return exactly, approximately


def _possible_leaders(
    form: str, words: NDArray[np.uint64], scores: NDArray[np.float64], scale: float
) -> list[int]:
    """Return the candidates that could lead, by the certified errors of their noise."""
    noise, errors = np.empty(len(scores)), np.empty(len(scores))
    words.flags.writeable = False
    exact.kernel_named(f"rounding.{form}")(words, reference.WORD_BITS, noise, errors)
    totals = scores + scale * noise
    radius = scale * errors + _ROUND * (np.abs(scores) + scale * np.abs(noise))
    leaders: list[int] = np.flatnonzero(totals + radius >= (totals - radius).max()).tolist()
    return leaders


def _refine(
    form: str,
    key: Key,
    words: NDArray[np.uint64],
    leaders: list[int],
    scores: Sequence[int | float],
    scale: float,
) -> list[int]:
    """Let the judge compare the possible leaders, with more and more digits, until one is left."""
    formula = reference.FORMS[form][0]
    balls = {
        i: reference.enclosures(formula, exact.rows_from_key(key, i, [int(words[i])]))
        for i in leaders
    }
    while len(leaders) > 1:
        totals: dict[int, arb] = {}
        for i in leaders:
            noise = next(balls[i])
            with ctx.workprec(noise.bits() + 2048):
                totals[i] = reference.exact(Fraction(scores[i])) + reference.exact(scale) * noise
        with ctx.workprec(4096):
            leaders = [
                i for i in leaders if not any(totals[j] > totals[i] for j in leaders if j != i)
            ]
    return leaders
