"""Exact leakage at reduced precision: delta(epsilon) of fl(x + s*z), without sampling error.

From the law of a sampler in a small format follow the probabilities of every output at x and at x',
and from them the curve delta(epsilon). It shows what more uniforms for each variate give, what they
do not, and what exact release gives: docs/leakage.md tells it with figures.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpnoise.auditing.leakage.laws import (
    MOST_BITS,
    Floats,
    Format,
    Law,
    cells,
    enumerated,
    merged,
)
from dpnoise.core.errors import (
    check_choice,
    check_integer,
    check_positive,
    check_power_of_two,
    reject,
)
from dpnoise.core.parallel import Words
from dpnoise.noise.distributions import Distribution
from dpnoise.release import exact

_MOST_EPSILON: Final = 700.0  # Beyond, e^epsilon is no float64.
_FINEST: Final = 2.0**-10  # Grids, in scales: on finer ones short words decide nothing.
_FAR: Final = 60.0  # Scales: what lies beyond has a probability below 10^-26.


def released(law: Law, value: float, fmt: Format, scale: float = 1.0) -> Law:
    """Return the law of fl(value + fl(scale * z)), where z has the given law.

    Examples
    --------
    >>> from dpnoise.auditing.leakage.laws import FLOAT16
    >>> released(Law(np.array([0.001]), np.array([1.0])), 1.0, FLOAT16).values.tolist()
    [1.0009765625]
    """
    for name, number in (("value", value), ("scale", scale)):
        if float(fmt.round(number)) != number:
            reject(name, number, f"to be a value of {fmt.name}")
    return merged(fmt.round(value + fmt.round(scale * law.values)), law.probabilities)


def delta(epsilon: float, law0: Law, law1: Law) -> float:
    """Return the smallest delta with P0(S) <= e^epsilon P1(S) + delta for every set S of outputs.

    It is the sum of max(0, P0 - e^epsilon P1) over the outputs. The other direction, with the laws
    exchanged, is another number; a private mechanism keeps both small.

    Examples
    --------
    >>> from dpnoise.auditing.leakage.laws import FLOAT16, machine
    >>> noise = machine("inverse", variates=1, precision=11, fmt=FLOAT16)
    >>> x, y = (released(noise, value, FLOAT16) for value in (0.0, 1.0))
    >>> round(delta(1.0, x, y), 3)
    0.805
    """
    if not 0 <= epsilon <= _MOST_EPSILON:
        reject("epsilon", epsilon, f"to be between 0 and {_MOST_EPSILON:g}")
    values = np.union1d(law0.values, law1.values)
    difference = np.zeros(len(values))
    difference[np.searchsorted(values, law0.values)] = law0.probabilities
    difference[np.searchsorted(values, law1.values)] -= math.exp(epsilon) * law1.probabilities
    return float(np.maximum(difference, 0).sum())


@dataclass(frozen=True)
class ReleaseBounds:
    """Where delta of the exact release lies, by what words of a few bits decide.

    Parameters
    ----------
    form, bits, grid
        The kernel, the bits of each word, and the grid.
    low, high
        delta(epsilon) lies between these.
    ideal
        delta(epsilon) of the ideal mechanism, rounded to the grid.
    undecided
        The probability that this many bits do not decide the output at value0.
    """

    form: str
    bits: int
    grid: float
    low: float
    high: float
    ideal: float
    undecided: float


# In pairs a number has the law of gaussian_2, two of its uniforms seen from another side.
_FORMS: Final = {name: form for name, form in exact.ADDITIVE.items() if form.width == 1}


def release_bounds(
    form: str,
    bits: int,
    epsilon: float = 1.0,
    *,
    value0: float = 0.0,
    value1: float = 1.0,
    scale: float = 1.0,
    grid: float = 1.0,
) -> ReleaseBounds:
    """Bound delta(epsilon) of the exact release by running its kernel on all short words.

    What the kernel decides from the first bits of each uniform holds whatever bits follow. So the
    probability of output k at x is D_x(k) + e_x(k), where D_x(k) is the share of the words that
    decide for k, and the unknown e_x(k) >= 0 add up to u_x, the share that decide nothing. With
    S the sum over k of max(0, D_0(k) - e^epsilon D_1(k)), it follows that

        S - e^epsilon u_1 <= delta(epsilon) <= S + u_0.

    Examples
    --------
    >>> bounds = release_bounds("laplace_1", bits=16)
    >>> bounds.low <= bounds.ideal <= bounds.high < 0.0012
    True
    """
    check_choice("form", form, _FORMS)
    exact_form = _FORMS[form]
    check_integer("bits", bits, least=2, most=MOST_BITS // exact_form.variates)
    check_positive("scale", scale)
    check_power_of_two("grid", grid)
    if grid < _FINEST * scale:
        reject("grid", grid, ">= scale / 1024: on a finer one short words decide nothing")
    decided0, undecided0 = _decided(exact_form, bits, value0, scale, grid)
    decided1, undecided1 = _decided(exact_form, bits, value1, scale, grid)
    sum_decided = delta(epsilon, decided0, decided1)
    far = math.ceil((abs(value0) + abs(value1) + _FAR * scale) / grid)
    distribution = exact_form.distribution
    ideal0, ideal1 = (_ideal(distribution, x, scale, grid, far) for x in (value0, value1))
    return ReleaseBounds(
        form=form,
        bits=bits,
        grid=grid,
        low=max(0.0, sum_decided - math.exp(epsilon) * undecided1),
        high=min(1.0, sum_decided + undecided0),
        ideal=delta(epsilon, ideal0, ideal1),
        undecided=undecided0,
    )


def _ideal(distribution: Distribution, value: float, scale: float, grid: float, far: int) -> Law:
    """Return the law of the ideal mechanism, rounded to the grid; `far` cells out, all are one."""
    points = grid * np.arange(-far, far + 1, dtype=np.float64)
    return Law(points, cells(distribution, (points[:-1] + grid / 2 - value) / scale))


def _decided(
    form: exact.AdditiveForm, bits: int, value: float, scale: float, grid: float
) -> tuple[Law, float]:
    """Return the shares of the words that decide for each output, and of those that do not."""
    n, kernel = form.variates, form.first_stage()

    def draw(words: Words, out: Floats) -> None:
        if kernel(words, bits, np.full(out.size, value), scale, grid, out):
            out[np.isnan(out)] = math.inf

    law = enumerated(draw, n, bits, 2 ** (n * bits))
    known = law.values < math.inf
    undecided = float(law.probabilities[~known].sum())
    return Law(law.values[known], law.probabilities[known]), undecided
