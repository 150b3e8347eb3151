"""The cost of inverting a variate, and the number of uniforms n to use.

This concerns only *floating-point noise*: how much work is it to find the uniforms behind the
output z of a sampler? The cost is not a security level of a release. No n can hide what adding a
secret in floating point reveals (docs/limitations.md). Exact release does not need n.
"""

import math
from dataclasses import dataclass
from typing import Final

from dpnoise.core.errors import check_choice, check_integer
from dpnoise.noise import forms
from dpnoise.noise.distributions import Distribution, Laplace

# The bits p of a uniform in each output format: the digits of its significand.
PRECISIONS: Final = {"float16": 11, "float32": 24, "float64": 53}


def variates_for(security_bits: int = 128, precision: int = 53) -> int:
    """Return the paper's choice of n: the smallest with (n-1) * precision >= security_bits.

    A sampler rounds it up to the next number that it supports (section 5.3 of the paper).

    Parameters
    ----------
    security_bits
        How hard an inversion should be: 2^security_bits checks.
    precision
        The number of random bits of each uniform.

    Examples
    --------
    >>> [variates_for(bits, precision=53) for bits in (128, 192, 256)]
    [4, 5, 6]
    >>> [variates_for(bits, precision=24) for bits in (128, 192, 256)]
    [7, 9, 12]
    >>> [variates_for(bits, precision=11) for bits in (128, 192, 256)]
    [13, 19, 25]
    """
    bits = check_integer("security_bits", security_bits, least=1)
    p = check_integer("precision", precision, least=1, most=53)
    return 1 + -(-bits // p)


@dataclass(frozen=True)
class InversionCost:
    """The cost of inverting one variate; every figure is the exponent of a power of two.

    Parameters
    ----------
    distribution, form, variates, precision, dtype
        What was drawn: see `inversion_cost`.
    paper
        (n-1) * p, the paper's number of checks.
    exhaustive
        Checks to exclude a candidate by trying all its preimages.
    meet_in_the_middle, memory
        Steps and table entries to exclude a candidate by meeting in the middle.
    preimages
        The expected number of preimages of a typical output.
    find_one
        The expected checks until one preimage of a typical output is found.
    """

    distribution: str
    form: str
    variates: int
    precision: int
    dtype: str
    paper: float
    exhaustive: float
    meet_in_the_middle: float
    memory: float
    preimages: float
    find_one: float

    def __str__(self) -> str:
        title = (
            f"One {self.distribution} variate, form {self.form!r}, "
            f"from {self.variates} uniforms of {self.precision} bits, in {self.dtype}:"
        )
        excluded = (
            "a search can exclude a wrong value"
            if self.preimages < 0
            else "no search excludes a wrong value"
        )
        halves = f"{_power(self.meet_in_the_middle)} steps and {_power(self.memory)} entries"
        lines = [
            title,
            f"  the paper's figure               {_power(self.paper)} checks",
            f"  searching all uniforms           {_power(self.exhaustive)} checks, one by one",
            f"                                   {halves}, meeting in the middle",
            f"  preimages of a typical output    {_power(self.preimages)}: {excluded}",
            f"  finding one preimage             {_power(self.find_one)} checks",
            "These count the work of inverting the sampler. They do not measure what a sum of",
            "secret and noise reveals: see docs/limitations.md.",
        ]
        if self.memory == 0:  # Two halves would take as long.
            del lines[3]
        return "\n".join(lines)


def _power(exponent: float) -> str:
    """Format 2^exponent, in digits if it is below a million."""
    if 0 <= exponent < math.log2(1e6):
        return f"{round(2**exponent):,}"
    return f"2^{exponent:.4g}"


def inversion_cost(  # Most of its lines are documentation.
    precision: int = 53,
    variates: int = 4,
    form: str | None = None,
    *,
    distribution: Distribution | None = None,
    dtype: str | None = None,
) -> InversionCost:
    """Return the cost of inverting one variate drawn from n uniforms of p bits.

    The figures, and where they come from
    -------------------------------------
    - The paper's figure: fix all uniforms but one, solve for that one and check. 2^(p(n-1)) checks.
    - Excluding a candidate, one by one: the same search. If the last fixed uniform enters a cosine,
      the sign of the remainder gives its sign bit, which halves the count: 2^(p(n-1) - 1). For
      n = 1 one check suffices.
    - Excluding a candidate, meeting in the middle: the form is a sum of s independent summands of
      n/s uniforms each. Tabulate all values of the smaller half of them, sorted, and look up z
      minus each value of the larger half: 2^(p * ceil(s/2) * n/s) look-ups in
      2^(p * floor(s/2) * n/s) entries. If that is more than the exhaustive search (s = 1), the
      exhaustive search is given, which needs no table.
    - Preimages of a typical output: there are 2^(pn) inputs, and a cell of width ulp(z) around z
      gets f(z) ulp(z) of them, so about 2^(pn) f(z) ulp(z). The typical output is the one where |z|
      is at its median. More than one preimage for every candidate means that no candidate can be
      excluded, ever.
    - Finding one preimage: fix all uniforms but one at random and solve for the last. Over the
      choice of the fixed ones, the expected number of hits on the last line is 2^p f(z) ulp(z),
      because all lines together hold the 2^(pn) f(z) ulp(z) preimages; so about
      1 / (2^p f(z) ulp(z)) checks, at least one and at most the exhaustive search.

    Parameters
    ----------
    precision
        p, the bits of each uniform.
    variates
        n, the number of uniforms.
    form
        A form of the distribution; by default the one that `variates` selects.
    distribution
        By default the standard Laplace distribution.
    dtype
        The output's format; by default the smallest whose significand has `precision` bits.

    Examples
    --------
    >>> cost = inversion_cost(precision=53, variates=4)
    >>> cost.paper, cost.exhaustive, cost.meet_in_the_middle
    (159.0, 158.0, 106.0)
    >>> print(inversion_cost(precision=24, variates=8))
    One Laplace variate, form 'products', from 8 uniforms of 24 bits, in float32:
      the paper's figure               2^168 checks
      searching all uniforms           2^167 checks, one by one
                                       2^96 steps and 2^96 entries, meeting in the middle
      preimages of a typical output    2^166: no search excludes a wrong value
      finding one preimage             4 checks
    These count the work of inverting the sampler. They do not measure what a sum of
    secret and noise reveals: see docs/limitations.md.
    """
    p = check_integer("precision", precision, least=1, most=53)
    distribution = Laplace() if distribution is None else distribution
    chosen, n = forms.choose_form(distribution.forms, form, variates, at_least=1)
    if dtype is None:
        dtype = next(name for name, digits in PRECISIONS.items() if p <= digits)
    check_choice("dtype", dtype, PRECISIONS)

    paper = float(p * (n - 1))
    exhaustive = paper - 1 if chosen.signed_cosine else paper
    summands = chosen.summands(n)
    larger = p * n / summands * -(-summands // 2)
    smaller = p * n / summands * (summands // 2)
    meet, memory = (larger, smaller) if larger < exhaustive else (exhaustive, 0.0)
    mass = _typical_mass(distribution, PRECISIONS[dtype])
    return InversionCost(
        distribution=type(distribution).__name__,
        form=chosen.name,
        variates=n,
        precision=p,
        dtype=dtype,
        paper=paper,
        exhaustive=exhaustive,
        meet_in_the_middle=meet,
        memory=memory,
        preimages=p * n + mass,
        find_one=min(max(-(p + mass), 0.0), exhaustive),
    )


def _typical_mass(distribution: Distribution, digits: int) -> float:
    """Return log2 of f(z) ulp(z) where |z| is at its median."""
    symmetric = distribution.mean == 0 or math.isnan(distribution.mean)
    z = float(distribution.ppf(0.75 if symmetric else 0.5))
    ulp = math.floor(math.log2(z)) - (digits - 1)
    return math.log2(float(distribution.pdf(z))) + ulp
