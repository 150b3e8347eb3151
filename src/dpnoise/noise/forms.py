"""The forms: every way to draw a distribution from n uniforms, with the supported n.

A form is a description. A Generator chooses one, its kernel draws, `inversion` computes its cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from dpnoise.core.arrays import Floats
from dpnoise.core.entropy import Words
from dpnoise.core.errors import check_choice, check_integer, reject
from dpnoise.core.kernel_table import scipy_special, variates

# Above this, a gamma variate is drawn in pieces, because each half needs at least two uniforms.
_MOST_HALVES: Final = 64
# Below this shape every piece rounds to 0, but SciPy returns NaN for some uniforms.
_LEAST_SHAPE: Final = 2.0**-1000


@dataclass(frozen=True, eq=False)
class Form:
    """One way of drawing a distribution from n uniforms.

    Functions return the kernels, because Numba is slow to import.
    """

    name: str  # The value of the argument `form`.
    formula: str  # For display.
    kernel: Callable[[], Callable[..., None]]
    # The number of independent summands of equal size: a meet-in-the-middle search splits it there.
    summands: Callable[[int], int]
    counts: tuple[int, ...] = ()  # Supported n.
    step: int | None = None  # If given, all multiples of it are supported too.
    by_name_only: bool = False  # Whether only the argument `form` selects it.
    parameters: tuple[float, ...] = ()  # Further arguments of the kernel.
    # For a single output from four uniforms, or None.
    scalar_kernel: Callable[[], Callable[[bytes, int], float]] | None = None
    # Whether one uniform's cosine gives a summand its sign. In a search, the sign of the remainder
    # then reveals one bit of that uniform.
    signed_cosine: bool = False

    def supports(self, variates: int) -> bool:
        """Return whether the form can be drawn from this number of uniforms."""
        return self.smallest_supported(variates) == variates

    def smallest_supported(self, variates: int) -> int | None:
        """Return the smallest supported n that is at least `variates`, or None."""
        candidates = [n for n in self.counts if n >= variates]
        if self.step is not None:
            candidates.append(-(-variates // self.step) * self.step)
        return min(candidates, default=None)

    @property
    def supported(self) -> str:
        """The supported n, for display: `4, 8, 16, 24, ...`."""
        multiples = [] if self.step is None else [self.step, 2 * self.step, 3 * self.step, "..."]
        return ", ".join(str(n) for n in [*self.counts, *multiples])

    def __repr__(self) -> str:
        return f"<{self.name!r}: {self.formula}; variates={self.supported}>"


Forms = tuple[Form, ...]


def choose_form(
    forms: Sequence[Form], name: str | None, variates: int | None, at_least: int
) -> tuple[Form, int]:
    """Return the form and the number of uniforms for the given arguments.

    Without `name`, the first form that supports `variates` is chosen. Without `variates`, n is the
    smallest supported number that is at least `at_least`, or else the form's largest.
    """
    if name is not None:
        check_choice("form", name, [form.name for form in forms])
    open_forms = [f for f in forms if (f.name == name if name else not f.by_name_only)]
    if variates is not None:
        variates = check_integer("variates", variates, least=1)
        for form in open_forms:
            if form.supports(variates):
                return form, variates
        offered = open_forms if name else forms
        rule = "; ".join(f"{form.supported} with form={form.name!r}" for form in offered)
        reject("variates", variates, f"be a supported number: {rule}")
    for form in open_forms:
        n = form.smallest_supported(at_least)
        if n is not None:
            return form, n
    return open_forms[-1], max(open_forms[-1].counts)


# Forms whose pieces come from SciPy's inverse CDF, for lack of a closed formula. The time of
# `gammaincinv` depends on its argument: see docs/limitations.md.


def _gammas(words: Words, precision: int, shape: float, scratch: Floats) -> Floats:
    """Return one Gamma(shape) for each word, by the inverse of its CDF, in `scratch`."""
    variates.uniforms(words, 1, precision, 1.0, scratch, scratch)
    pieces = scratch[: words.size]
    scipy_special().gammaincinv(max(shape, _LEAST_SHAPE), pieces, out=pieces)
    return pieces


@np.errstate(all="ignore")
def gamma_pieces(
    words: Words,
    variates: int,
    precision: int,
    shape: float,
    scale: float,
    scratch: Floats,
    out: Floats,
) -> None:
    """Gamma(shape) as the sum of n pieces Gamma(shape/n), one uniform each."""
    pieces = _gammas(words, precision, shape / variates, scratch).reshape(-1, variates)
    np.multiply(scale, pieces.sum(axis=1), out=out[: len(pieces)])


@np.errstate(all="ignore")
def gamma_differences(
    words: Words,
    variates: int,
    precision: int,
    shape: float,
    scale: float,
    scratch: Floats,
    out: Floats,
) -> None:
    """Proposition 4.1: the sum of n/2 differences X - Y, all Gamma(shape/(n/2)), one uniform each.

    Of shape 1 it is the Laplace distribution; of shape 1/k, one of k shares of it.
    """
    pairs = variates // 2
    pieces = _gammas(words, precision, shape / pairs, scratch).reshape(-1, pairs, 2)
    np.multiply(scale, (pieces[..., 0] - pieces[..., 1]).sum(axis=1), out=out[: len(pieces)])


UNIFORM: Final = (Form("inverse", "U", lambda: variates.uniforms, lambda _: 1, counts=(1,)),)

GAUSSIAN: Final = (
    Form(
        name="pairs",
        formula="2/sqrt(n) * sum of n/2 sqrt(-log V) cos(pi U)",
        kernel=lambda: variates.gaussian,
        scalar_kernel=lambda: variates.gaussian_from_bytes,
        summands=lambda n: n // 2,
        step=2,
        signed_cosine=True,
    ),
)

LAPLACE: Final = (
    Form(
        name="exponentials",
        formula="E1 - E2",
        kernel=lambda: variates.laplace_exponentials,
        summands=lambda _: 2,
        counts=(2,),
    ),
    Form(
        name="theorem",
        formula="log V1 cos(pi U1) + log V2 cos(pi U2)",
        kernel=lambda: variates.laplace_theorem,
        scalar_kernel=lambda: variates.laplace_from_bytes,
        summands=lambda _: 2,
        counts=(4,),
        signed_cosine=True,
    ),
    Form(
        name="products",
        formula="N1 N2 - N3 N4",
        kernel=lambda: variates.laplace_products,
        summands=lambda _: 2,
        counts=(4,),
        step=8,
        signed_cosine=True,
    ),
    Form(
        name="squares",
        formula="(N1^2 - N2^2 + N3^2 - N4^2)/2",
        kernel=lambda: variates.laplace_squares,
        # Four uniforms make two Box-Muller pairs; more make four separate Gaussians.
        summands=lambda n: min(n // 2, 4),
        counts=(4,),
        step=8,
        by_name_only=True,
    ),
    Form(
        name="gammas",
        formula="sum of n/2 differences of Gamma(2/n), each by inverse CDF",
        kernel=lambda: gamma_differences,
        summands=lambda n: n,
        step=2,
        by_name_only=True,
        parameters=(1.0,),
    ),
    Form(
        name="inverse",
        formula="inverse CDF of one uniform, insecure as floating noise",
        kernel=lambda: variates.laplace_inverse,
        summands=lambda _: 1,
        counts=(1,),
        by_name_only=True,
    ),
)

GUMBEL: Final = (
    Form(
        name="squares",
        formula="-log(N1^2/2 + N2^2/2)",
        kernel=lambda: variates.gumbel,
        summands=lambda _: 2,
        step=4,
    ),
)

CAUCHY: Final = (
    Form(
        name="tangents",
        formula="mean of n tan(pi U)",
        kernel=lambda: variates.cauchy,
        summands=lambda n: n,
        step=2,
    ),
    Form(
        name="inverse",
        formula="tan(pi U) of one uniform, insecure as floating noise",
        kernel=lambda: variates.cauchy,
        summands=lambda _: 1,
        counts=(1,),
        by_name_only=True,
    ),
)


@lru_cache(maxsize=256)
def gamma(shape: float) -> Forms:
    """Return the forms of Gamma(shape): half gammas where 2*shape is whole, pieces always."""
    pieces = Form(
        name="pieces",
        formula=f"sum of n Gamma({shape:g}/n), each by inverse CDF",
        kernel=lambda: gamma_pieces,
        summands=lambda n: n,
        step=2,
        parameters=(shape,),
    )
    if not (2.0 * shape).is_integer() or not 1 <= 2.0 * shape <= _MOST_HALVES:
        return (pieces,)
    halves = int(2.0 * shape)
    squares = Form(
        name="squares",
        formula=f"sum of {halves} N^2/2",
        kernel=lambda: variates.gamma_from_halves,
        summands=lambda _: halves,
        step=2 * halves,
        parameters=(halves,),
    )
    return squares, pieces


@lru_cache(maxsize=256)
def laplace_share(parties: int) -> Forms:
    """Return the form of one of `parties` shares of a Laplace variate."""
    return (
        Form(
            name="gammas",
            formula=f"sum of n/2 differences of Gamma({2 / parties:g}/n), each by inverse CDF",
            kernel=lambda: gamma_differences,
            summands=lambda n: n,
            step=2,
            parameters=(1.0 / parties,),
        ),
    )
