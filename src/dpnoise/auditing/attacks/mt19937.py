"""MT19937 in linear algebra: from known bits of its uniforms to its whole state.

`random.Random` and `numpy.random.RandomState` draw from this generator. Each bit of its outputs is
a sum, over GF(2), of the 19937 bits of its state. The words x[0], x[1], ... behind the outputs obey
one recursion at every place,

    x[k+624] = x[k+397] ^ A(top bit of x[k], other bits of x[k+1]),

so x[0] may be the first word that was seen, wherever the generator stood in its own block of 624:
no phase has to be guessed. A uniform U = k 2^-53 is made of the upper 27 bits of one 32-bit output
and the upper 26 of the next. The unknowns are those bits of the first 624 outputs that were not
seen, 11 in 64 at best. What was seen enters as a constant, which keeps the elimination small.

Counting bits, 377 uniforms would do. But the recursion joins few words at a time, so many of the
bits follow from earlier ones: it takes 624 uniforms with all 53 bits known.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError, reject
from dpnoise.kernels import compiled

Bits = NDArray[np.int64]
Flags = NDArray[np.bool_]

WORDS: Final = 624
UNIFORM_BITS: Final = 53
_MIDDLE: Final = 397
_BITS: Final = 32
_COEFFICIENTS: Final = 0x9908B0DF
_STATE_BITS: Final = 19937
_LOWER_WORD: Final = 26
# This many equations beyond the solution agree by chance with probability 2^-128.
_SPARE: Final = 128
_CONTRADICTION: Final = -1


class TooFewReleasesError(ArgumentError):
    """What was released leaves some bits of the state open."""

    def __init__(self) -> None:
        super().__init__("Too few releases to solve for the state: give more of them.")


class NoStateError(ArgumentError):
    """What was released cannot come from this generator."""

    def __init__(self) -> None:
        super().__init__("No Mersenne Twister state explains the releases.")


# Linear forms over GF(2): 64 coefficients in each word, the constant last ------------------------


@compiled
def _add(form: Bits, total: Bits, start: int) -> None:
    """Add a form to another, from word `start` on."""
    for w in range(start, total.size):
        total[w] ^= form[w]


@compiled
def _combine(chosen: Flags, forms: Bits, total: Bits) -> None:
    """Set `total` to the sum of the forms that are chosen."""
    for w in range(total.size):
        total[w] = 0
    for i in range(chosen.size):
        if chosen[i]:
            _add(forms[i], total, 0)


@compiled
def _toggle(form: Bits, column: int) -> None:
    """Add one unknown, or the constant, to a form."""
    form[column >> 6] ^= np.int64(1) << (column & 63)


@compiled
def _has(form: Bits, column: int) -> int:
    """Return the coefficient of an unknown, or the constant."""
    return int(form[column >> 6] >> (column & 63)) & 1


@compiled
def _insert(equation: Bits, basis: Bits, filled: Flags) -> int:
    """Reduce `equation` = 0 and add it to the basis; return by how much the rank grows.

    Row c of the basis begins in column c, and is zero until it is filled. An equation 1 = 0 is a
    contradiction.
    """
    for column in range(filled.size):
        if _has(equation, column):
            if not filled[column]:
                _add(equation, basis[column], column >> 6)
                filled[column] = True
                return 1
            _add(basis[column], equation, column >> 6)
    return _CONTRADICTION if _has(equation, filled.size) else 0


@compiled
def _solve(basis: Bits, unknowns: int) -> Bits:
    """Return the solution of a full basis, from the last unknown to the first, the constant 1."""
    solution = np.zeros(basis.shape[1], np.int64)
    _toggle(solution, unknowns)
    for column in range(unknowns - 1, -1, -1):
        parity = np.int64(0)
        for w in range(column >> 6, solution.size):
            parity ^= basis[column, w] & solution[w]
        for shift in (32, 16, 8, 4, 2, 1):
            parity ^= parity >> shift
        if parity & 1:
            _toggle(solution, column)
    return solution


# The twister, on words and on forms --------------------------------------------------------------


def _temper(x: Bits) -> Bits:
    """Return the outputs of state words."""
    x = x ^ (x >> 11)
    x = x ^ ((x << 7) & 0x9D2C5680)
    x = x ^ ((x << 15) & 0xEFC60000)
    return x ^ (x >> 18)


def _untemper(y: Bits) -> Bits:
    """Return the state words of outputs: each step undone, the bits that it left alone first."""
    y = y ^ (y >> 18)
    y = y ^ ((y << 15) & 0xEFC60000)
    x = y
    for _ in range(4):
        x = y ^ ((x << 7) & 0x9D2C5680)
    return x ^ (x >> 11) ^ (x >> 22)


def _matrix(linear: Callable[[Bits], Bits]) -> Flags:
    """Return the matrix of a linear map of 32-bit words: a row for each bit of the result."""
    images = linear(np.int64(1) << np.arange(_BITS))
    matrix: Flags = (images >> np.arange(_BITS)[:, None]) & 1 == 1
    return matrix


@compiled
def _twist(window: Bits, k: int) -> Bits:
    """Replace the forms of x[k] in the window by those of x[k+624], and return these."""
    old, after, middle = k % WORDS, (k + 1) % WORDS, (k + _MIDDLE) % WORDS
    # With y the top bit of x[k] and the other bits of x[k+1], bit b is that of x[k+397], plus bit
    # b+1 of y where there is one, plus bit 0 of y where the coefficients say so. Going upwards,
    # the top bit of x[k] is read before it is replaced.
    for bit in range(_BITS):
        upper = old if bit == _BITS - 2 else after
        shifted = np.int64(-1 if bit < _BITS - 1 else 0)
        carried = np.int64(-1 if (_COEFFICIENTS >> bit) & 1 else 0)
        for w in range(window.shape[2]):
            window[old, bit, w] = (
                window[middle, bit, w]
                ^ (shifted & window[upper, (bit + 1) % _BITS, w])
                ^ (carried & window[after, 0, w])
            )
    word: Bits = window[old]
    return word


@compiled
def _eliminate(
    outputs: Bits, known: Bits, window: Bits, temper: Flags, basis: Bits, filled: Flags
) -> int:
    """Take equations from the outputs after the window; return their rank or a contradiction."""
    equation = np.empty(basis.shape[1], np.int64)
    rank = spare = 0
    for k in range(WORDS, outputs.size):
        word = _twist(window, k - WORDS)
        for bit in range(_BITS):
            if (known[k] >> bit) & 1:
                _combine(temper[bit], word, equation)
                if (outputs[k] >> bit) & 1:
                    _toggle(equation, filled.size)
                gain = _insert(equation, basis, filled)
                if gain == _CONTRADICTION:
                    return _CONTRADICTION
                rank += gain
                spare += 1 - gain
        if rank == filled.size and spare >= _SPARE:
            break
    return rank


def _words(uniforms: Bits) -> Bits:
    """Return the two 32-bit outputs behind each uniform, zeros where they do not show."""
    upper = (uniforms >> _LOWER_WORD) << (_BITS - UNIFORM_BITS + _LOWER_WORD)
    lower = (uniforms << (_BITS - _LOWER_WORD)) & (2**_BITS - 1)
    return np.stack([upper, lower], axis=1).ravel()


@compiled
def _first_window(outputs: Bits, columns: Bits, untemper: Flags, unknowns: int) -> Bits:
    """Return the forms of x[0..623], from the bits of the outputs and the columns of the others."""
    window = np.zeros((WORDS, _BITS, (unknowns >> 6) + 1), np.int64)
    _toggle(window[0, _BITS - 1], 0)
    for k in range(1, WORDS):
        forms = np.zeros((_BITS, window.shape[2]), np.int64)
        for bit in range(_BITS):
            if columns[k, bit] > 0:
                _toggle(forms[bit], columns[k, bit])
            elif (outputs[k] >> bit) & 1:
                _toggle(forms[bit], unknowns)
        for bit in range(_BITS):
            _combine(untemper[bit], forms, window[k, bit])
    return window


def recover_state(uniforms: Bits, masks: Bits) -> NDArray[np.uint32]:
    """Return the 624 state words behind the first 312 of consecutive uniforms.

    They are a whole state: a generator that is given them with position 624 continues with uniform
    312. Of the first word only the top bit matters; its other bits are returned as 0.

    Parameters
    ----------
    uniforms, masks
        The bits k of each U = k 2^-53, and ones where they are known. It takes 624 uniforms, and
        more of them if many of their bits are unknown.

    Raises
    ------
    TooFewReleasesError
        If some bits of the state are still open.
    NoStateError
        If no state explains the uniforms.

    Examples
    --------
    >>> victim = np.random.RandomState()
    >>> uniforms = (victim.random_sample(700) * 2.0**53).astype(np.int64)
    >>> state = recover_state(uniforms, np.full(700, 2**53 - 1))
    >>> clone = np.random.RandomState()
    >>> clone.set_state(("MT19937", state, 624))
    >>> bool((clone.random_sample(388) == uniforms[312:] / 2.0**53).all())
    True
    >>> clone.random_sample() == victim.random_sample()
    True
    """
    if np.shape(uniforms) != np.shape(masks):
        reject("masks.shape", np.shape(masks), f"to be that of uniforms, {np.shape(uniforms)}")
    known = _words(np.asarray(masks, np.int64))
    outputs = _words(np.asarray(uniforms, np.int64)) & known
    if len(outputs) < WORDS or int(np.bitwise_count(known).sum()) < _STATE_BITS:
        raise TooFewReleasesError
    columns = _columns(known[:WORDS])
    solution = _solution(outputs, known, columns)

    found = (solution[columns >> 6] >> (columns & 63)) & (columns > 0)
    state = _untemper(outputs[:WORDS] | (found << np.arange(_BITS)).sum(axis=1))
    state[0] = _has(solution, 0) << (_BITS - 1)
    return state.astype(np.uint32)


def _columns(known: Bits) -> Bits:
    """Give the unknown bits of the window their columns, from 1; 0 is for bits that are known.

    Word 0 enters the recursion with its top bit alone. That bit is the unknown in column 0, and
    what was seen of output 0 is not used.
    """
    missing = (known[:, None] >> np.arange(_BITS)) & 1 == 0
    missing[0] = False
    return np.where(missing, np.cumsum(missing).reshape(missing.shape), 0)


def _solution(outputs: Bits, known: Bits, columns: Bits) -> Bits:
    """Set up the equations, eliminate and solve."""
    unknowns = int(columns.max()) + 1
    window = _first_window(outputs, columns, _matrix(_untemper), unknowns)
    basis = np.zeros((unknowns, window.shape[2]), np.int64)
    filled = np.zeros(unknowns, np.bool_)
    rank = _eliminate(outputs, known, window, _matrix(_temper), basis, filled)
    if rank == _CONTRADICTION:
        raise NoStateError
    if rank < unknowns:
        raise TooFewReleasesError
    return _solve(basis, unknowns)
