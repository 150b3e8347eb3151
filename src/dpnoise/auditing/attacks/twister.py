"""Recover the state of a Mersenne Twister from its noise, then remove all further noise.

Laplace noise by the inverse distribution function takes one uniform U = k 2^-53. A release of a
known value reveals k, or its leading bits.

Each bit of MT19937's outputs is a sum, over GF(2), of the 19937 bits of its state. The words x[0],
x[1], ... behind the outputs obey one recursion for every k,

    x[k+624] = x[k+397] ^ A(top bit of x[k], other bits of x[k+1]).

So x[0] may be the first word that was seen: the position of the generator in its block of 624 is
not needed. A uniform U = k 2^-53 consists of the upper 27 bits of one 32-bit output and the upper
26 of the next. The unknowns are the unseen bits of the first 624 outputs, at least 11 in 64. Seen
bits enter as constants, which keeps the elimination small.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, no_progress
from dpnoise.auditing.attacks.mironov import FORMULAS, laplace_release
from dpnoise.auditing.targets.adapters import paper_laplace
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import ArgumentError, check_choice, check_positive, reject
from dpnoise.kernels import compile_kernel

Bits = NDArray[np.int64]
Forms = NDArray[np.uint64]  # Linear forms over GF(2): 64 coefficients a word, the constant last.

UNIFORM_BITS: Final = 53
_ALL: Final = 2**UNIFORM_BITS - 1
_LOWER_WORD: Final = 26
_WORDS: Final = 624
_MIDDLE: Final = 397
_WORD_BITS: Final = 32
_BIT: Final = np.arange(_WORD_BITS)
_STATE_BITS: Final = 19937
_COEFFICIENTS: Final = 0x9908B0DF
# Tempering as additions of one bit to another. The same ones in reverse undo it.
_TEMPERING: Final = np.array(
    [(bit, bit + 11) for bit in range(21)]
    + [(bit, bit - 7) for bit in range(31, 6, -1) if (0x9D2C5680 >> bit) & 1]
    + [(bit, bit - 15) for bit in range(31, 14, -1) if (0xEFC60000 >> bit) & 1]
    + [(bit, bit + 18) for bit in range(14)]
)
# Equations beyond the solution: all of them hold by chance with probability 2^-128.
_SPARE: Final = 128
_CONTRADICTION: Final = -1

# Releases that suffice if the value hides few low bits of k; otherwise `find` draws more.
_FIRST_RELEASES: Final = 640
_KNOWN_NOISE: Final = 1_000  # Numbers of a known seed on which a formula is tested.

_TOO_FEW: Final = "Too few releases to solve for the state: give more of them."
_NO_STATE: Final = "No Mersenne Twister state explains the releases."


class TooFewReleasesError(ArgumentError):
    """The releases do not determine all bits of the state."""


class NoStateError(ArgumentError):
    """The releases cannot come from this generator."""


@compile_kernel
def _add_unknown(form: Forms, column: int) -> None:
    """Add one unknown, or the constant, to a form."""
    form[column >> 6] ^= np.uint64(1) << np.uint64(column & 63)


@compile_kernel
def _coefficient_of(form: Forms, column: int) -> bool:
    """Return the coefficient of an unknown, or the constant."""
    return bool((form[column >> 6] >> np.uint64(column & 63)) & np.uint64(1))


@compile_kernel
def _add(form: Forms, total: Forms, start: int) -> None:
    """Add a form to another, from word `start` on. LLVM vectorises this loop only if separate."""
    for w in range(start, total.size):
        total[w] ^= form[w]


@compile_kernel
def _insert(equation: Forms, basis: Forms, filled: Flags) -> int:
    """Reduce `equation` = 0 and add it to the basis; return the increase of the rank.

    Row c of the basis begins in column c, and is zero until it is filled. An equation 1 = 0 is a
    contradiction.
    """
    for column in range(filled.size):
        if _coefficient_of(equation, column):
            if not filled[column]:
                _add(equation, basis[column], column >> 6)
                filled[column] = True
                return 1
            _add(basis[column], equation, column >> 6)
    return _CONTRADICTION if _coefficient_of(equation, filled.size) else 0


def _solve(basis: Forms) -> Forms:
    """Return the solution of a full basis by back substitution, with 1 for the constant."""
    solution = np.zeros(basis.shape[1], np.uint64)
    _add_unknown(solution, len(basis))
    for column in reversed(range(len(basis))):
        if np.bitwise_count(basis[column] & solution).sum() & 1:
            _add_unknown(solution, column)
    return solution


@compile_kernel
def _add_bits(word: Forms, additions: Bits) -> None:
    """Add forms of bits to those of other bits, in the order of `additions`."""
    for i in range(len(additions)):
        _add(word[additions[i, 1]], word[additions[i, 0]], 0)


@compile_kernel
def _twist(window: Forms, k: int) -> Forms:
    """Replace the forms of x[k] in the window by those of x[k+624], and return these."""
    old, after, middle = k % _WORDS, (k + 1) % _WORDS, (k + _MIDDLE) % _WORDS
    # Let y be the top bit of x[k] with the other bits of x[k+1]. Bit b of x[k+624] is the sum of
    # bit b of x[k+397], bit b+1 of y if there is one, and bit 0 of y if the coefficients have bit
    # b. In increasing order of b, the top bit of x[k] is read before it is replaced.
    for bit in range(_WORD_BITS):
        upper = old if bit == _WORD_BITS - 2 else after
        for w in range(window.shape[2]):
            total = window[middle, bit, w]
            if bit < _WORD_BITS - 1:
                total ^= window[upper, bit + 1, w]
            if (_COEFFICIENTS >> bit) & 1:
                total ^= window[after, 0, w]
            window[old, bit, w] = total
    word: Forms = window[old]
    return word


@compile_kernel
def _eliminate(outputs: Bits, known: Bits, window: Forms, basis: Forms, filled: Flags) -> int:
    """Add the equations of the outputs after the window; return their rank or _CONTRADICTION."""
    rank = spare = 0
    for k in range(_WORDS, outputs.size):
        word = _twist(window, k - _WORDS).copy()
        _add_bits(word, _TEMPERING)
        for bit in range(_WORD_BITS):
            if (known[k] >> bit) & 1:
                equation = word[bit].copy()
                if (outputs[k] >> bit) & 1:
                    _add_unknown(equation, filled.size)
                gain = _insert(equation, basis, filled)
                if gain == _CONTRADICTION:
                    return _CONTRADICTION
                rank += gain
                spare += 1 - gain
        if rank == filled.size and spare >= _SPARE:
            break
    return rank


def _words(uniforms: Bits) -> Bits:
    """Return the two 32-bit outputs of each uniform, with zeros for unseen bits."""
    upper = (uniforms >> _LOWER_WORD) << (_WORD_BITS - UNIFORM_BITS + _LOWER_WORD)
    lower = (uniforms << (_WORD_BITS - _LOWER_WORD)) & (2**_WORD_BITS - 1)
    return np.stack([upper, lower], axis=1).ravel()


def _first_window(outputs: Bits, known: Bits) -> tuple[Forms, int]:
    """Return the forms of x[0..623], and the number of unknowns.

    Only the top bit of word 0 enters the recursion. That bit is the unknown in column 0, and output
    0 is not used. The unknown bits of the other words have columns from 1 on.
    """
    unknown = (known[:, None] >> _BIT) & 1 == 0
    unknown[0] = False
    unknowns = int(unknown.sum()) + 1
    columns = np.where(unknown, np.cumsum(unknown).reshape(unknown.shape), unknowns)
    present = unknown | ((outputs[:, None] >> _BIT) & 1 == 1)
    present[0] = False
    columns = columns[present]
    window = np.zeros((_WORDS, _WORD_BITS, (unknowns >> 6) + 1), np.uint64)
    window[*np.nonzero(present), columns >> 6] = np.uint64(1) << (columns & 63).astype(np.uint64)
    for word in window:
        _add_bits(word, _TEMPERING[::-1])
    window[0, -1, 0] = 1
    return window, unknowns


def recover_state(uniforms: Bits, masks: Bits) -> NDArray[np.uint32]:
    """Return the 624 state words behind the first 312 of consecutive uniforms.

    `uniforms` has the bits k of each U = k 2^-53, and `masks` has ones for known bits. The attack
    needs 624 uniforms, and more if many bits are unknown: otherwise it raises TooFewReleasesError.
    If no state explains the uniforms, it raises NoStateError.

    The words are a whole state: with position 624 a generator continues with uniform 312. Only the
    top bit of the first word matters; its other bits are returned as 0.

    >>> victim, clone = np.random.RandomState(), np.random.RandomState()
    >>> uniforms = (victim.random_sample(700) * 2.0**53).astype(np.int64)
    >>> clone.set_state(("MT19937", recover_state(uniforms, np.full(700, 2**53 - 1)), 624))
    >>> bool((clone.random_sample(388) == uniforms[312:] / 2.0**53).all())
    True
    """
    if np.shape(uniforms) != np.shape(masks):
        reject("masks.shape", np.shape(masks), f"be that of uniforms, {np.shape(uniforms)}")
    known = _words(np.asarray(masks, np.int64))
    outputs = _words(np.asarray(uniforms, np.int64)) & known
    if len(outputs) < _WORDS or int(np.bitwise_count(known).sum()) < _STATE_BITS:
        raise TooFewReleasesError(_TOO_FEW)
    window, unknowns = _first_window(outputs[:_WORDS], known[:_WORDS])
    basis, filled = np.zeros((unknowns, window.shape[2]), np.uint64), np.zeros(unknowns, np.bool_)
    rank = _eliminate(outputs, known, window.copy(), basis, filled)
    if rank == _CONTRADICTION:
        raise NoStateError(_NO_STATE)
    if rank < unknowns:
        raise TooFewReleasesError(_TOO_FEW)
    values = np.bitwise_count(window & _solve(basis)).sum(axis=-1, dtype=np.int64) & 1
    return np.asarray((values << _BIT).sum(axis=1), np.uint32)


@compile_kernel
def _first_above(y: float, value: float, scale: float, formula: int) -> int:
    """Return the least k with a release above y, or 2^53."""
    low, high = 1, _ALL + 1
    while low < high:
        k = (low + high) // 2
        if laplace_release(k * 2.0**-53, value, scale, formula) > y:
            high = k
        else:
            low = k + 1
    return low


@compile_kernel
def _invert(
    y: Floats, value: float, scale: float, formula: int, uniforms: Bits, masks: Bits
) -> int:
    """Fill in k and the mask of its known bits; return the first release without a k, or -1."""
    for i in range(y.size):
        first = _first_above(np.nextafter(y[i], -np.inf), value, scale, formula)
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
    """Return the bits k of U = k 2^-53 from releases of a known value, and masks of known bits.

    The release never falls as k grows: from one k to the next the logarithm changes by at least one
    unit in its last place, and a library's error is a little more than half a unit. So the k of one
    release are consecutive, and bisection finds the first and the last. Their common leading bits
    are known. U = 0 is left out: samplers draw it again.

    >>> uniforms, masks = invert_laplace(np.array([-0.2876820724517809]), 0.0, 1.0)
    >>> uniforms[0] / 2**53, int(masks[0]) == 2**53 - 1
    (np.float64(0.375), True)
    """
    check_choice("formula", formula, FORMULAS)
    scale = check_positive("scale", scale)
    y = np.ascontiguousarray(releases, dtype=np.float64)
    uniforms, masks = np.empty((2, y.size), np.int64)
    wrong = _invert(y, float(value), scale, FORMULAS.index(formula), uniforms, masks)
    if wrong >= 0:
        rule = f"be {value!r} plus noise of scale {scale!r} by the formula {formula!r}"
        reject(f"releases[{wrong}]", float(y[wrong]), rule)
    return uniforms, masks


def clone_numpy(
    releases: Releases, value: float, scale: float, formula: str = "numpy"
) -> np.random.RandomState:
    """Return a clone of the `RandomState` that made consecutive releases of a known value.

    The clone draws the same numbers that the victim draws next. Its `random_sample()` is also the
    `random()` of a `random.Random`. The releases from number 312 on are drawn again and compared to
    the last bit. At value 0 the attack needs 624 releases. A value much larger than the noise hides
    low bits, and it needs a few thousand.

    >>> victim = np.random.RandomState()
    >>> clone = clone_numpy(42 + victim.laplace(size=5000), value=42, scale=1)
    >>> bool((clone.laplace(size=1000) == victim.laplace(size=1000)).all())
    True
    """
    state = recover_state(*invert_laplace(releases, value, scale, formula))
    clone = np.random.RandomState()
    clone.set_state(("MT19937", state, _WORDS, 0, 0.0))
    later = np.asarray(releases)[_WORDS // 2 :]
    if (later != value + predict_noise(clone, len(later), scale, formula)).any():
        raise NoStateError(_NO_STATE)
    return clone


def predict_noise(
    clone: np.random.RandomState, n: int, scale: float, formula: str = "numpy"
) -> Floats:
    """Draw the next n uniforms of a clone, and return the victim's noise for them.

    Subtracted from the victim's next n releases, it leaves the values. (The clone gets out of step
    if the victim draws U = 0 and draws again: one release in 2^53.)
    """
    check_choice("formula", formula, FORMULAS)
    return _noise(clone.random_sample(n), float(scale), FORMULAS.index(formula))


@compile_kernel
def _noise(uniforms: Floats, scale: float, formula: int) -> Floats:
    """Return the noise of each uniform."""
    noise = np.empty(uniforms.size)
    for i in range(noise.size):
        noise[i] = laplace_release(uniforms[i], 0.0, scale, formula)
    return noise


@dataclass(frozen=True)
class MersenneTwister(Attack):
    """Recovers the state from releases of value0, then predicts all further releases.

    The event "y is value0 plus the predicted noise" keeps a clone of the generator, and draws one
    uniform from it for each release. It must see all releases that the target makes after `find`,
    once and in order, as in `Attack.__call__`. Otherwise it gets out of step. `formula` is the
    target's formula for Laplace noise, one of FORMULAS; by default, each is tried.
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
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that y is predicted, after recovering the state from value0."""
        check_choice("formula", self.formula, (None, *FORMULAS))
        formulas = list(FORMULAS if self.formula is None else [self.formula])
        releases = np.empty(0)
        while formulas and len(releases) < n:
            progress(len(releases) / n)
            size = min(max(_FIRST_RELEASES, len(releases) // 4), n - len(releases))
            releases = np.append(releases, target(value0, size))
            for formula in formulas.copy():
                try:
                    clone = clone_numpy(releases, value0, target.scale, formula)
                except TooFewReleasesError:
                    continue
                except ArgumentError:
                    formulas.remove(formula)
                else:
                    return _prediction_event(clone, value0, target.scale, formula)
        if formulas:
            reason = "too few releases to solve for the state of a Mersenne Twister"
            return base.impossible_event(reason)
        if not all(_fits_library(formula) for formula in FORMULAS):
            return base.misfit_event("it does not give the noise of a known seed")
        return base.impossible_event("no Mersenne Twister state explains the releases")


def _fits_library(formula: str) -> bool:
    """Return whether a formula gives the library's noise of a known seed on this machine."""
    rng = np.random.RandomState(0)
    if formula == "numpy":
        noise = rng.laplace(size=_KNOWN_NOISE)
    else:
        noise = np.array([paper_laplace(rng.random_sample) for _ in range(_KNOWN_NOISE)])
    model = predict_noise(np.random.RandomState(0), _KNOWN_NOISE, 1.0, formula)
    return bool((model == noise).all())


def _prediction_event(
    clone: np.random.RandomState, value0: float, scale: float, formula: str
) -> Event:
    """Return the event that the clone predicts a release of the value."""

    def explains(y: Releases, value: float) -> Flags:
        return np.equal(y, value + predict_noise(clone, len(y), scale, formula))

    words = f"y is {value0:g} plus the noise that a clone of the generator predicts"
    return Event(words, lambda y: explains(y, value0), explains=explains)
