"""Solve for the state of a Mersenne Twister from its noise, then remove all further noise.

Laplace noise by the inverse distribution function takes one uniform U = k 2^-53. Whoever knows the
value behind a release sees k, or its leading bits. Drawn from `random.Random` or
`numpy.random.RandomState`, 624 releases of the value 0 give the whole state, and some more do where
the value hides low bits: see mt19937.py.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import (
    SOURCE,
    Attack,
    Event,
    Flags,
    Progress,
    misfit,
    never,
    silent,
)
from dpnoise.auditing.attacks.mt19937 import (
    UNIFORM_BITS,
    WORDS,
    Bits,
    NoStateError,
    TooFewReleasesError,
    recover_state,
)
from dpnoise.auditing.targets.adapters import paper_laplace
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.errors import ArgumentError, check_choice, check_positive, reject
from dpnoise.kernels import compiled

Floats = NDArray[np.float64]

# Both take log(2U) below U = 1/2. From there on NumPy takes -log(2 - U - U), whose first difference
# is rounded; the paper's equation (2), like most textbooks, takes -log(1 - 2|U - 1/2|), exactly.
FORMULAS: Final = ("numpy", "paper")
_NUMPY: Final = FORMULAS.index("numpy")

_ALL: Final = 2**UNIFORM_BITS - 1
# Enough where the value hides few low bits of k; else `find` asks for more.
_FIRST_RELEASES: Final = 640
_KNOWN_NOISE: Final = 1_000


# From a release to the bits of its uniform -------------------------------------------------------


@compiled
def _release(k: int, value: float, scale: float, formula: int) -> float:
    """Return the release of `value` that U = k 2^-53 leads to, to the last bit.

    Product and sum are rounded one after the other, as they are unless a build fuses them.
    """
    U = k * 2.0**-53
    if U < 0.5:
        return value + scale * math.log(U + U)
    V = 2.0 - U - U if formula == _NUMPY else 1.0 - 2.0 * (U - 0.5)
    return value - scale * math.log(V)


@compiled
def _first_above(y: float, value: float, scale: float, formula: int) -> int:
    """Return the least k whose release is above y, or 2^53."""
    low, high = 1, _ALL + 1
    while low < high:
        k = (low + high) // 2
        if _release(k, value, scale, formula) > y:
            high = k
        else:
            low = k + 1
    return low


@compiled
def _invert(
    y: Floats, below: Floats, value: float, scale: float, formula: int, uniforms: Bits, masks: Bits
) -> int:
    """Fill in k and which bits of it are sure; return the first release without a k, or -1."""
    for i in range(y.size):
        first = _first_above(below[i], value, scale, formula)
        last = _first_above(y[i], value, scale, formula) - 1
        if last < first:
            return i
        mask = _ALL
        while (first & mask) != (last & mask):
            mask = (mask << 1) & _ALL
        uniforms[i] = first & mask
        masks[i] = mask
    return -1


def invert_laplace(
    releases: Releases, value: float, scale: float, formula: str = "numpy"
) -> tuple[Bits, Bits]:
    """Return, for each release of a known value, the bits k of U = k 2^-53 that it determines.

    The release never falls as k grows: from one k to the next the logarithm moves by at least one
    unit in its last place, and a library's error is a little more than half a unit. So the k that
    lead to a release are consecutive, bisection finds the first and the last, and the bits that
    all of them share are their common leading bits. U = 0 is left out: it is drawn again.

    Parameters
    ----------
    releases
        What was released, as float64, in order.
    value, scale
        What is known: the value behind all of the releases, and the scale of the noise.
    formula
        "numpy" for `RandomState.laplace` and SciPy, "paper" for equation (2) of the paper.

    Returns
    -------
    uniforms, masks
        Integers of 53 bits: the bits of k, and ones where they are sure.

    Examples
    --------
    >>> uniforms, masks = invert_laplace(np.array([math.log(0.75)]), 0.0, 1.0)
    >>> uniforms[0] / 2**53, int(masks[0]) == 2**53 - 1
    (np.float64(0.375), True)
    """
    check_choice("formula", formula, FORMULAS)
    scale = check_positive("scale", scale)
    y = np.ascontiguousarray(releases, dtype=np.float64)
    below = np.nextafter(y, -np.inf)
    uniforms, masks = np.empty(y.size, np.int64), np.empty(y.size, np.int64)
    number = FORMULAS.index(formula)
    wrong = _invert(y, below, float(value), scale, number, uniforms, masks)
    if wrong >= 0:
        rule = f"to be {value!r} plus noise of scale {scale!r} by the formula {formula!r}"
        reject(f"releases[{wrong}]", float(y[wrong]), rule)
    return uniforms, masks


# The attack --------------------------------------------------------------------------------------


def clone_numpy(
    releases: Releases, value: float, scale: float, formula: str = "numpy"
) -> np.random.RandomState:
    """Return a `RandomState` in step with the one behind consecutive releases of a known value.

    It stands right after the last of them, so it draws what the victim draws next: its
    `random_sample()` is also the `random()` of a `random.Random`. The releases from number 312 on
    are drawn again and compared, to the last bit.

    Parameters
    ----------
    releases, value, scale, formula
        As in `invert_laplace`. At value 0 it takes 624 releases. A value much larger than the noise
        hides low bits: then give a few thousand.

    Examples
    --------
    >>> victim = np.random.RandomState()
    >>> clone = clone_numpy(42 + victim.laplace(size=5000), value=42, scale=1)
    >>> bool((clone.laplace(size=1000) == victim.laplace(size=1000)).all())
    True
    """
    state = recover_state(*invert_laplace(releases, value, scale, formula))
    clone = np.random.RandomState()
    clone.set_state(("MT19937", state, WORDS, 0, 0.0))
    later = np.asarray(releases)[WORDS // 2 :]
    if (later != value + predict_noise(clone, len(later), scale, formula)).any():
        raise NoStateError
    return clone


def predict_noise(
    clone: np.random.RandomState, n: int, scale: float, formula: str = "numpy"
) -> Floats:
    """Draw the next n uniforms of a clone and return the noise that the victim makes of them.

    Subtracted from the victim's next n releases, it leaves the values. (The clone loses step if
    the victim draws U = 0 and draws again: one release in 2^53.)
    """
    check_choice("formula", formula, FORMULAS)
    uniforms = (clone.random_sample(n) * 2.0**UNIFORM_BITS).astype(np.int64)
    return _noise(uniforms, float(scale), FORMULAS.index(formula))


@compiled
def _noise(uniforms: Bits, scale: float, formula: int) -> Floats:
    """Return the noise of each uniform."""
    noise = np.empty(uniforms.size)
    for i in range(noise.size):
        noise[i] = _release(uniforms[i], 0.0, scale, formula)
    return noise


@dataclass(frozen=True)
class MersenneTwister(Attack):
    """Solves for the state from releases of value0, then predicts every further one of them.

    The event "y is value0 plus the predicted noise" keeps a clone of the generator and draws from
    it, one uniform for each release that it is asked about. It must see all releases that the
    target makes after `find`, once and in order, as `Attack.__call__` does; else it loses step.

    Parameters
    ----------
    formula
        How the target makes Laplace noise of a uniform, one of FORMULAS; by default, each is tried.
    """

    name = "twister"
    access = SOURCE
    breaks = "Laplace noise from random.Random or numpy.random.RandomState"
    source = "Matsumoto and Nishimura 1998; elimination over GF(2)"
    default_target = "numpy.RandomState.laplace"
    in_audit = False
    independent = False

    formula: str | None = None

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that y is predicted, once releases of value0 give the state away."""
        check_choice("formula", self.formula, (None, *FORMULAS))
        formulas = list(FORMULAS if self.formula is None else [self.formula])
        releases = np.empty(0)
        while formulas and len(releases) < n:
            progress(len(releases) / n)
            more = min(max(_FIRST_RELEASES, len(releases) // 4), n - len(releases))
            releases = np.append(releases, target(value0, more))
            for formula in formulas.copy():
                try:
                    clone = clone_numpy(releases, value0, target.scale, formula)
                except TooFewReleasesError:
                    continue
                except ArgumentError:
                    formulas.remove(formula)
                else:
                    return _predicted(clone, value0, target.scale, formula)
        if formulas:
            return never("too few releases to solve for the state of a Mersenne Twister")
        if not all(fits_library(formula) for formula in FORMULAS):
            return misfit("it does not give the noise of a known seed")
        return never("no Mersenne Twister state explains the releases")


def fits_library(formula: str) -> bool:
    """Tell whether a formula gives, of a known seed, the library's noise on this machine."""
    if formula == "numpy":
        noise = np.random.RandomState(0).laplace(size=_KNOWN_NOISE)
    else:
        uniform = np.random.RandomState(0).random_sample
        noise = np.array([paper_laplace(uniform) for _ in range(_KNOWN_NOISE)])
    model = predict_noise(np.random.RandomState(0), _KNOWN_NOISE, 1.0, formula)
    return bool((model == noise).all())


def _predicted(clone: np.random.RandomState, value0: float, scale: float, formula: str) -> Event:
    """Return the event that the clone predicts a release of the value."""

    def explains(y: Releases, value: float) -> Flags:
        return np.equal(y, value + predict_noise(clone, len(y), scale, formula))

    words = f"y is {value0:g} plus the noise that a clone of the generator predicts"
    return Event(words, lambda y: explains(y, value0), explains=explains)
