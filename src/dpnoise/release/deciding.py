"""Exact release: the kernels decide almost all cells, the judge settles the others.

Whatever the path, a cell is floor((value + scale * Z) / grid + 1/2) as in real arithmetic, for Z
made of infinite strings of bits. Which path was taken can be seen in time; docs/exact-release.md
bounds what that tells.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise import reference
from dpnoise.chunks import (
    Words,
    Worker,
    cores,
    expand,
    in_runs,
    kernel_for_one,
    kernel_named,
)
from dpnoise.entropy import WORD, Key, Source
from dpnoise.errors import ArgumentError, RoundingModeError
from dpnoise.noise.distributions import Distribution, Exponential, Gaussian, Gumbel, Laplace

Floats = NDArray[np.float64]
Rows = Iterator[
    Sequence[int]
]  # The words of an element's uniforms: 64 digits of each, the next 64 ...
Number = float | Fraction

_BITS: Final = reference.WORD_BITS
_WORTH_A_THREAD: Final = 2**20  # Values that are worth a thread when they are only read.
_LARGEST: Final = float(np.finfo(np.float64).max)
_ROUNDING: Final = [1.0, 2.0**-53]  # In a list, so that the check is done when it is asked for.


@dataclass(frozen=True, eq=False)
class ExactForm:
    """One way of making Z of n uniforms that is known exactly.

    Parameters
    ----------
    name
        Its name, for people; that of its formula and of its kernels too.
    variates
        n.
    kernel
        The kernel that is almost always certain: module and function under `dpnoise.kernels`. The
        one for a single number has `_of` at its end.
    formula
        What Z is, for the judge.
    distribution
        What Z is distributed as.
    """

    name: str
    variates: int
    kernel: str
    formula: reference.Formula
    distribution: Distribution


def _by_variates(*forms: ExactForm) -> dict[int, ExactForm]:
    return {form.variates: form for form in forms}


LAPLACE: Final = _by_variates(
    ExactForm("laplace_1", 1, "rounding.laplace_1", reference.laplace_1, Laplace()),
    ExactForm("laplace_4", 4, "rounding.laplace_4", reference.laplace_4, Laplace()),
)
GAUSSIAN: Final = _by_variates(
    ExactForm("gaussian_2", 2, "rounding.gaussian_2", reference.gaussian_2, Gaussian()),
    ExactForm("gaussian_4", 4, "rounding.gaussian_4", reference.gaussian_4, Gaussian()),
)
EXPONENTIAL: Final = ExactForm(
    "exponential", 1, "rounding.exponential", reference.exponential, Exponential()
)
GUMBEL: Final = ExactForm("gumbel", 1, "rounding.gumbel", reference.gumbel, Gumbel())

ADDITIVE: Final = {form.name: form for form in (*LAPLACE.values(), *GAUSSIAN.values())}
FORMS: Final = ADDITIVE | {form.name: form for form in (EXPONENTIAL, GUMBEL)}


def check_rounding_mode() -> None:
    """Raise unless this thread rounds to nearest: 1 + u, 1 + 3u and -1 - u tell the modes apart."""
    one, unit = _ROUNDING
    if one + unit != one or one + 3 * unit != one + 4 * unit or -one - unit != -one:
        raise RoundingModeError(
            "The floating-point rounding mode of this thread is not round-to-nearest. "
            "Some library changed it (fesetround): release where it has not been changed."
        )


def check_finite(values: Floats, threads: int | None = 1) -> None:
    """Raise before any noise is drawn if a value is NaN or infinite, without showing a value."""
    flat = values.reshape(-1)
    kernel = kernel_named("rounding.not_finite")
    found: list[int] = []

    def look(first: int, last: int) -> None:
        found.append(kernel(flat[first:last]))

    in_runs(look, flat.size, _WORTH_A_THREAD, cores() if threads is None else threads)
    if sum(found):
        raise ArgumentError(f"Expected every value to be finite, got {sum(found)} NaN or infinite.")


def decide(
    form: ExactForm, values: Floats, scale: float, grid: float, key: Key, threads: int | None
) -> tuple[Floats, list[tuple[int, Rows]]]:
    """Return the releases that the kernel is certain of, and the words of those it is not.

    The others stand as NaN in the array, and as (element, rows) in the list.
    """
    variates = form.variates
    kernel = kernel_named(form.kernel)
    out = np.empty(values.shape)
    undecided: list[tuple[int, Rows]] = []

    def prepare(_: int) -> Worker:
        check_rounding_mode()

        def chunk(words: Words, start: int, stop: int) -> None:
            results = out[start:stop]
            if kernel(words, _BITS, values[start:stop], scale, grid, results):
                for i in np.flatnonzero(np.isnan(results)).tolist():
                    first = words[i * variates : (i + 1) * variates].tolist()
                    undecided.append((start + i, rows_from_key(key, start + i, first)))

        return chunk

    if values.size:
        expand(key, variates, values.size, prepare, threads)
    return out, undecided


def decide_one(form: ExactForm, raw: bytes, value: float, scale: float, grid: float) -> float:
    """Return one release from 8 bytes for each uniform, or NaN if the kernel is not certain."""
    return kernel_for_one(f"{form.kernel}_of", floats=3)(raw, _BITS, value, scale, grid)


def settle(form: ExactForm, rows: Rows, value: Number, scale: float, grid: float) -> int:
    """Let the judge decide one cell."""
    return reference.grid_point(form.formula, rows, value, scale, grid)


def nearest_float(cell: int, grid: float) -> float:
    """Return the nearest float to cell * grid, saturating at the largest."""
    point = cell * Fraction(grid)
    try:
        return point.numerator / point.denominator
    except OverflowError:
        return _LARGEST if point > 0 else -_LARGEST


def rows_from_key(key: Key, element: int, first: Sequence[int]) -> Rows:
    """Yield the words of one element of a bulk call, in the layout of `dpnoise.entropy`."""
    return _rows(first, lambda count, row: key.further_words(element, count, row).tolist())


def rows_from_bytes(raw: bytes, source: Source) -> Rows:
    """Yield the words of a scalar call, whose first ones are drawn already."""
    return _rows(np.frombuffer(raw, dtype=WORD).tolist(), source.further_words)


def _rows(first: Sequence[int], further_words: Callable[[int, int], Sequence[int]]) -> Rows:
    yield first
    for row in count():
        yield further_words(len(first), row)
